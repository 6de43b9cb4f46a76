//! Looks at an app that change nothing: its Pods, its events, and what a deployment would change.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Apps;
use crate::{
    core::{
        apps::{App, Difference, InventoryEntry, Manifest, differences},
        order::GatherExt as _,
        rollout::{EventLine, Observation, PodLine, events_of, pods_of},
        time::Wall,
    },
    error::Result,
    wire::apps::ApplyWish,
};

impl Apps {
    /// Pods of an app, the most telling first.
    ///
    /// # Errors
    /// There is no such app, or the cluster cannot be seen.
    pub async fn pods(&self, app: &str) -> Result<Value> {
        let pods: Vec<_> = self.pod_lines(app).await?.iter().map(pod).collect();
        Ok(json!({"app": app, "pods": pods}))
    }

    pub(super) async fn pod_lines(&self, app: &str) -> Result<Vec<PodLine>> {
        let (uids, seen) = self.seen(app).await?;
        Ok(pods_of(uids, &seen))
    }

    /// Events about an app and its Pods, the oldest first.
    ///
    /// # Errors
    /// As [`Apps::pods`].
    pub async fn events(&self, app: &str) -> Result<Value> {
        let (uids, seen) = self.seen(app).await?;
        let events: Vec<_> = events_of(uids, &seen).iter().map(event).collect();
        Ok(json!({"app": app, "events": events}))
    }

    /// The UIDs of an app, and what there is in its namespace.
    async fn seen(&self, app: &str) -> Result<(BTreeSet<String>, Observation)> {
        let app = self.existing(app).await?.app;
        let kinds = app.inventory.iter().filter_map(InventoryEntry::known_kind);
        let kinds: Vec<_> = kinds.collect();
        let seen = self
            .cluster(app.owner)
            .observe(&app.namespace, &kinds)
            .await?;
        let uids = app.inventory.iter().map(|entry| entry.uid.clone());
        Ok((uids.filter(|uid| !uid.is_empty()).gather(), seen))
    }

    /// Differences that deploying these manifests would make, by a dry run of the API server.
    /// Values of Secrets are not among them.
    ///
    /// # Errors
    /// Reason why it could not be tried.
    pub async fn diff(&self, wish: &ApplyWish) -> Result<Value> {
        let (mut manifests, namespace, _) = self.read(wish, None).await?;
        let mut app = self.kept(&wish.app, &namespace).await?.app;
        let mut overlay = app.overlay(app.running);
        overlay.fit(&manifests);
        overlay.lay(&mut manifests);
        if wish.adopt {
            self.adopt(&mut app, &manifests).await?;
        }
        let cluster = self.cluster(app.owner);
        cluster.only_ours(&mut app, &manifests).await?;
        let kept = self.ledger.manifests(&app.name, app.running).await;
        let kept = kept.ok().flatten().unwrap_or_default();
        let mut objects = Vec::new();
        for manifest in &manifests {
            let found = match rerun(&app, &kept, manifest) {
                Some(found) => found,
                None => cluster.differences(&app, manifest).await?,
            };
            objects.push(change(&app, manifest, &found));
        }
        for entry in app.surplus(&manifests) {
            let object = entry.in_words(&app.namespace);
            objects.push(json!({"object": object, "change": "deleted", "fields": []}));
        }
        Ok(json!({"app": wish.app, "objects": objects}))
    }
}

/// Difference between a Job and its manifest in the revision that runs. The API server cannot try
/// it: a Job that is different takes the place of the one that ran.
fn rerun(app: &App, kept: &[Manifest], manifest: &Manifest) -> Option<Vec<Difference>> {
    let is_it = |known: &&Manifest| known.kind == manifest.kind && known.name == manifest.name;
    if manifest.kind.name != "Job" || app.uid(&InventoryEntry::of(manifest)).is_none() {
        return None;
    }
    let before = kept.iter().find(is_it)?;
    Some(differences(&before.object, &manifest.object))
}

fn change(app: &App, manifest: &Manifest, found: &[Difference]) -> Value {
    let entry = InventoryEntry::of(manifest);
    let word = match (app.uid(&entry), found.is_empty()) {
        _ if app.is_adopted(&entry) => "adopted",
        (None, _) => "created",
        (Some(_), true) => "unchanged",
        (Some(_), false) => "changed",
    };
    let running = app.revision(app.running);
    let is_pinned = running.is_some_and(|running| !running.overlay.pinned.is_empty());
    let field = |found: &Difference| {
        let why = if manifest.kind.name == "Job" {
            Some("the Job is run again")
        } else {
            (is_pinned && is_digest_of(&found.from, &found.to)).then_some("it went back by digest")
        };
        json!({"field": found.field, "from": found.from, "to": found.to, "why": why})
    };
    let fields: Vec<_> = found.iter().map(field).collect();
    json!({"object": manifest.in_words(), "change": word, "fields": fields})
}

/// Returns whether one is the other image with its digest.
fn is_digest_of(one: &Value, other: &Value) -> bool {
    let (one, other) = (one.as_str(), other.as_str());
    let rest = one.and_then(|one| one.strip_prefix(other?));
    rest.is_some_and(|rest| rest.starts_with("@sha256:"))
}

fn pod(pod: &PodLine) -> Value {
    json!({
        "namespace": pod.namespace, "name": pod.name, "ready": pod.is_ready, "restarts": pod.restarts,
        "containers": pod.containers,
    })
}

fn event(event: &EventLine) -> Value {
    json!({
        "at": event.at.map(Wall::rfc3339), "severity": if event.is_warning { "warning" } else { "note" },
        "subject": event.object, "reason": event.reason, "message": event.message, "count": event.count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::apps::parse;

    #[test]
    fn a_job_that_is_different_is_shown_as_run_again() {
        let job = |limit: u64| {
            let text = format!(
                "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: migrate}}\nspec: {{backoffLimit: {limit}}}\n"
            );
            parse(&text, Some("shop")).unwrap()
        };
        let (kept, same, other) = (job(0), job(0), job(1));
        let mut app = App::default();
        assert_eq!(rerun(&app, &kept, &other[0]), None);
        app.plan(&kept, ["n1".to_owned()]);
        app.own(&InventoryEntry::of(&kept[0]), "u");
        assert_eq!(rerun(&app, &kept, &same[0]), Some(Vec::new()));
        let found = rerun(&app, &kept, &other[0]).unwrap();
        let shown = change(&app, &other[0], &found);
        let field = json!({"field": "spec.backoffLimit", "from": 0, "to": 1, "why": "the Job is run again"});
        assert_eq!(
            shown,
            json!({"object": "Job shop/migrate", "change": "changed", "fields": [field]})
        );
    }
}
