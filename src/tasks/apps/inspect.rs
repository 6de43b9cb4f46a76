//! Looks at an app that change nothing: its Pods, its events, and what a deployment would change.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Apps, redact::in_words};
use crate::{
    core::{
        apps::{App, Difference, InventoryEntry, Manifest, differences},
        order::GatherExt as _,
        rollout::{EventLine, Observation, PodLine, events_of, pods_of, shown_log},
        secret::Secret,
        time::Wall,
    },
    error::{Error, Result},
    wire::apps::ApplyRequest,
};

/// Objects of a revision that are named as changed; the rest is counted.
const CHANGED_MAX: usize = 50;
/// Fields of one of them.
const FIELDS_MAX: usize = 20;
/// Characters of a value.
const VALUE_CHARS_MAX: usize = 200;

/// Visibility of values of fields, beside their names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Values {
    Shown,
    Withheld,
}

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
        let mut events = events_of(uids, &seen);
        if events.iter().any(quotes) {
            let read = self.require_record(app).await?;
            let known = self.hidden_in_logs(&read.app).await;
            redact(&mut events, known.as_deref());
        }
        let events: Vec<_> = events.iter().map(event).collect();
        Ok(json!({"app": app, "events": events}))
    }

    /// The UIDs of an app, and what there is in its namespace.
    async fn seen(&self, app: &str) -> Result<(BTreeSet<String>, Observation)> {
        let app = self.require_record(app).await?.app;
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
    pub async fn diff(&self, request: &ApplyRequest) -> Result<Value> {
        let (mut manifests, namespace, _) = self.read(request, None).await?;
        let mut app = self.record_or_new(&request.app, &namespace).await?.app;
        let mut overlay = app.overlay(app.running);
        overlay.fit(&manifests);
        overlay.apply(&mut manifests);
        if request.adopt {
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
        Ok(json!({"app": request.app, "objects": objects}))
    }
}

/// Difference between a Job and its manifest in the revision that runs. The API server cannot try
/// it: a Job that is different takes the place of the one that ran.
fn rerun(app: &App, kept: &[Manifest], manifest: &Manifest) -> Option<Vec<Difference>> {
    if manifest.kind.name != "Job" || app.uid(&InventoryEntry::of(manifest)).is_none() {
        return None;
    }
    let before = kept.iter().find(|kept| kept.is_same_object(manifest))?;
    Some(differences(&before.object, &manifest.object))
}

/// Differences between two revisions, object by object.
pub(super) fn changed(before: &[Manifest], after: &[Manifest], values: Values) -> Value {
    let mut objects = Vec::new();
    for manifest in after {
        let Some(old) = before.iter().find(|old| old.is_same_object(manifest)) else {
            objects.push((manifest, "added", Vec::new()));
            continue;
        };
        let found = differences(&old.object, &manifest.object);
        if !found.is_empty() {
            objects.push((manifest, "changed", found));
        }
    }
    for old in before {
        if !after.iter().any(|new| new.is_same_object(old)) {
            objects.push((old, "removed", Vec::new()));
        }
    }
    let more = objects.len().saturating_sub(CHANGED_MAX);
    let mut shown = Vec::new();
    for (manifest, word, found) in objects.into_iter().take(CHANGED_MAX) {
        let fields = found.iter().take(FIELDS_MAX);
        let fields: Vec<_> = match values {
            Values::Shown => fields
                .map(|it| json!({"field": it.field, "from": cut(&it.from), "to": cut(&it.to)}))
                .collect(),
            Values::Withheld => fields.map(|it| json!({"field": it.field})).collect(),
        };
        let more = found.len().saturating_sub(FIELDS_MAX);
        shown.push(json!({
            "object": manifest.in_words(), "change": word, "fields": fields, "more": more,
        }));
    }
    json!({"objects": shown, "more": more})
}

/// A value without what is beyond a line or two.
fn cut(value: &Value) -> Value {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    };
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => Value::from(format!("{}…", text.get(..end).unwrap_or_default())),
        None => value.clone(),
    }
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

/// Returns whether the kubelet repeats in an event what a program has written.
fn quotes(event: &EventLine) -> bool {
    matches!(
        event.reason.as_str(),
        "Unhealthy" | "FailedPostStartHook" | "FailedPreStopHook"
    )
}

/// Hides values of Secrets in events. Where they are not known, no words of programs are shown.
fn redact(events: &mut [EventLine], known: std::result::Result<&[Secret], &Error>) {
    for event in events.iter_mut().filter(|event| quotes(event)) {
        event.message = match known {
            Ok(known) => shown_log(event.message.as_bytes(), true, known)
                .trim_end()
                .to_owned(),
            Err(error) => format!("its words are not shown: {}", in_words(error)),
        };
    }
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
    fn a_revision_names_what_it_changed_without_values_of_secrets() {
        let parsed = |text: &str| parse(text, Some("shop")).unwrap();
        let secret = |value: &str| {
            format!(
                "apiVersion: v1\nkind: Secret\nmetadata: {{name: key}}\nstringData: {{p: {value}}}\n---\n"
            )
        };
        let map = |name: &str, value: &str| {
            format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{x: \"{value}\"}}\n---\n"
            )
        };
        let long = "y".repeat(300);
        let before = parsed(&(secret("s3cret") + &map("a", "1") + &map("gone", "1")));
        let after = parsed(&(secret("s4cret") + &map("a", &long) + &map("new", "1")));
        let shown = changed(&before, &after, Values::Shown);
        let objects = shown["objects"].as_array().unwrap();
        let of = |name: &str| objects.iter().find(|it| it["object"] == name).unwrap();
        assert_eq!(of("ConfigMap shop/new")["change"], "added");
        assert_eq!(of("ConfigMap shop/gone")["change"], "removed");
        let field = &of("ConfigMap shop/a")["fields"][0];
        assert_eq!(
            (&field["field"], &field["from"]),
            (&json!("data.x"), &json!("1"))
        );
        assert_eq!(
            field["to"].as_str().unwrap().chars().count(),
            VALUE_CHARS_MAX + 1
        );
        assert_eq!(of("Secret shop/key")["fields"][0]["to"], "(hidden)");
        assert!(!shown.to_string().contains("cret\""));
        let names = changed(&before, &after, Values::Withheld);
        assert!(!names.to_string().contains(r#""from""#), "{names}");
        assert_eq!(changed(&after, &after, Values::Shown)["objects"], json!([]));
        // A revision of very many objects.
        let many: Vec<_> = (0..CHANGED_MAX + 3)
            .map(|it| map(&format!("m{it}"), "1"))
            .collect();
        let many = changed(&[], &parsed(&many.concat()), Values::Shown);
        assert_eq!(many["objects"].as_array().unwrap().len(), CHANGED_MAX);
        assert_eq!(many["more"], 3);
    }

    #[test]
    fn events_show_no_values_of_secrets_that_a_program_has_written() {
        let shown = |reason: &str, known: std::result::Result<&[Secret], &Error>| {
            let mut events = [EventLine {
                at: None,
                object: "Pod shop/web-1".to_owned(),
                is_warning: true,
                reason: reason.to_owned(),
                message: "Readiness probe failed: hunter2 is wrong".to_owned(),
                count: 1,
            }];
            redact(&mut events, known);
            event(&events[0])["message"].as_str().unwrap().to_owned()
        };
        let known = [Secret::new("hunter2".to_owned())];
        let told = "Readiness probe failed: (hidden) is wrong";
        assert_eq!(shown("Unhealthy", Ok(&known)), told);
        let unread = Error::new("the Secret key cannot be read");
        assert_eq!(
            shown("Unhealthy", Err(&unread)),
            "its words are not shown: the Secret key cannot be read"
        );
        assert!(shown("BackOff", Err(&unread)).contains("hunter2"));
    }

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
        app.record_uid(&InventoryEntry::of(&kept[0]), "u");
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
