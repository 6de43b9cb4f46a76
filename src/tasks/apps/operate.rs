//! Requests in a few words: deploy an app of one container, restart it, scale it, and leave it
//! alone for a while.

use std::rc::Rc;

use serde_json::{Value, json};

use super::{
    Apps,
    change::Plan,
    check_name,
    ledger::{AppRecord, api_error},
    problem_error,
    requester::{Origin, Requester, Submission},
};
use crate::{
    core::apps::{App, Manifest, Overlay, Simple, Stage, deployed},
    error::{Error, Result},
    wire::apps::ScaleRequest,
};

/// Pods of a workload at most: a small machine runs 110.
const PODS_MAX: u64 = 1_000;

/// Automation of an app: what the agent does with it unasked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Automation {
    /// Nothing is changed without being asked for: no version is put back.
    Paused,
    /// It is no longer left alone; going back by itself is [`Self::Automatic`] or
    /// [`Self::ByHand`].
    Resumed,
    /// It goes back by itself, unless it is paused.
    Automatic,
    /// A bad version stays; everything else goes on.
    ByHand,
}

impl Automation {
    /// The one that turns automatic rollback on or off.
    pub fn of_rollback(word: &str) -> Result<Self> {
        match word {
            "on" => Ok(Self::Automatic),
            "off" => Ok(Self::ByHand),
            _ => Err(Error::new("nothing was changed")
                .why("automatic rollback is either on or off")
                .fix("sudo pipeops-agent apps rollback NAME --auto off")),
        }
    }
}

impl Apps {
    /// Replaces the Pods of an app, as a revision of its own.
    ///
    /// # Errors
    /// Reason why nothing was changed.
    pub async fn restart(self: Rc<Self>, app: &str, requester: &Requester) -> Result<Value> {
        self.require_leadership().await?;
        let now = self.now().wall;
        let restart = |overlay: &mut Overlay, manifests: &[Manifest]| {
            if !manifests.iter().any(Overlay::is_restarted) {
                return Err(Error::new("nothing was changed")
                    .why(format!("{app} has no Deployment, StatefulSet or DaemonSet"))
                    .fix("a Job that failed runs again when it is deployed again"));
            }
            overlay.restarted = now;
            Ok(())
        };
        self.again(app, restart, requester).await
    }

    /// Changes the number of Pods of a workload. It stays when the app is deployed again.
    ///
    /// # Errors
    /// Reason why nothing was changed.
    pub async fn scale(
        self: Rc<Self>,
        app: &str,
        request: &ScaleRequest,
        requester: &Requester,
    ) -> Result<Value> {
        self.require_leadership().await?;
        if let Some(to) = request.to.filter(|to| *to > PODS_MAX) {
            return Err(Error::new("nothing was changed").why(format!(
                "{to} Pods are asked for, and {PODS_MAX} are the most"
            )));
        }
        let read = self.require_record(app).await?;
        requester.owns(&read)?;
        let kept = self.ledger().manifests(app, base(&read.app)).await;
        let kept = kept.map_err(api_error)?.unwrap_or_default();
        let workload = workload(app, &kept, &request.workload)?;
        let (kind, name) = workload.split_once('/').unwrap_or_default();
        let cluster = self.cluster(read.app.owner);
        let scaler = cluster
            .autoscaler(&read.app.namespace, (kind, name))
            .await?;
        if let Some(scaler) = scaler {
            return Err(Error::new(format!("{workload} of {app} is not scaled"))
                .why(format!("the HorizontalPodAutoscaler {scaler} does that"))
                .fix(format!(
                    "set its bounds: kubectl -n {} edit hpa {scaler}",
                    read.app.namespace
                )));
        }
        let scale = |overlay: &mut Overlay, _: &[Manifest]| {
            match request.to {
                Some(to) => overlay.scaled.insert(workload.clone(), to),
                None => overlay.scaled.remove(&workload),
            };
            Ok(())
        };
        self.again(app, scale, requester).await
    }

    /// Deploys an app of one container by a few words. Of an app that is there only what is named
    /// changes.
    ///
    /// # Errors
    /// Reason why nothing was changed.
    pub async fn deploy(
        self: Rc<Self>,
        app: &str,
        request: &Simple,
        requester: &Requester,
    ) -> Result<Value> {
        self.require_leadership().await?;
        check_name(app)?;
        let known = self.record(app).await?;
        if let Some(read) = &known {
            requester.owns(read)?;
            Self::refuse_if_sourced(read)?;
        }
        let namespace = match (&known, request.namespace.as_str()) {
            (Some(read), "") => read.app.namespace.clone(),
            (Some(read), wanted) if wanted == read.app.namespace => wanted.to_owned(),
            (Some(read), _) => {
                let what = format!("the app {app} is in namespace {}", read.app.namespace);
                return Err(Error::new(what).fix("deploy it under another name"));
            }
            (None, "") => {
                return Err(Error::new("no namespace is named").fix("add --namespace NAME"));
            }
            (None, wanted) => wanted.to_owned(),
        };
        self.allowed(&namespace)?;
        let read = known.unwrap_or_else(|| AppRecord::new(app, &namespace));
        let base = base(&read.app);
        let kept = self
            .ledger()
            .manifests(app, base)
            .await
            .map_err(api_error)?;
        let mut overlay = read.app.overlay(base);
        // What went back by digest stays so until another image is named.
        if request.image.is_some() || overlay.pinned.is_empty() {
            overlay.unpin();
        }
        let kept = kept.unwrap_or_default();
        let manifests = deployed((app, &namespace), &kept, request).map_err(problem_error)?;
        overlay.reconfigure(&kept, &manifests, self.now().wall);
        overlay.fit_kept(&kept, &manifests);
        let submission = Submission {
            requester,
            origin: Origin::Manifests,
            is_partial: true,
        };
        self.accept(read, (manifests, overlay), submission).await
    }

    /// Deploys what runs, or is being deployed, under other settings, as a revision of its own.
    pub(super) async fn again(
        self: Rc<Self>,
        app: &str,
        change: impl FnOnce(&mut Overlay, &[Manifest]) -> Result<()>,
        requester: &Requester,
    ) -> Result<Value> {
        let read = self.require_record(app).await?;
        requester.owns(&read)?;
        let base = base(&read.app);
        let kept = self.ledger().manifests(app, base).await;
        let Some(manifests) = kept.map_err(api_error)? else {
            return Err(Error::new(format!("nothing of {app} runs yet"))
                .fix(format!("pipeops-agent apps why {app}")));
        };
        let mut overlay = read.app.overlay(base);
        // What went back by digest stays so: its tag may still lead to what was bad.
        if overlay.pinned.is_empty() {
            overlay.digests.clear();
        }
        change(&mut overlay, &manifests)?;
        let submission = Submission {
            requester,
            origin: Origin::Known,
            is_partial: true,
        };
        self.accept(read, (manifests, overlay), submission).await
    }

    /// Says whether the agent changes an app by itself.
    ///
    /// # Errors
    /// Reason why that stays as it was.
    pub async fn automate(
        &self,
        app: &str,
        automation: Automation,
        requester: &Requester,
    ) -> Result<Value> {
        self.require_leadership().await?;
        self.wait_for_writes(app).await?;
        let mut read = self.require_record(app).await?;
        requester.owns(&read)?;
        self.may_change(&read).await?;
        let (word, sentence) = match automation {
            Automation::Paused => ("pause", "it is left alone until it is resumed"),
            Automation::Resumed if read.app.is_rolled_back_by_hand => (
                "resume",
                "it is no longer left alone; automatic rollback stays off",
            ),
            Automation::Resumed => (
                "resume",
                "it is no longer left alone, and automatic rollback is on",
            ),
            Automation::Automatic => ("start automatic rollback of", "automatic rollback is on"),
            Automation::ByHand => (
                "stop automatic rollback of",
                "automatic rollback is off: a version that does not work stays until 'apps rollback'",
            ),
        };
        let write = async {
            match automation {
                Automation::Paused => read.app.is_paused = true,
                Automation::Resumed => {
                    read.app.is_paused = false;
                    read.app.left.clear();
                }
                Automation::Automatic => read.app.is_rolled_back_by_hand = false,
                Automation::ByHand => read.app.is_rolled_back_by_hand = true,
            }
            self.ledger().write(&mut read).await
        };
        self.audited((requester, &format!("{word} app {app}")), write)
            .await?;
        self.remember(&read.app);
        self.forget_drift(app);
        Ok(json!({
            "app": app, "paused": read.app.is_paused,
            "auto_rollback": !read.app.is_rolled_back_by_hand, "sentence": sentence,
        }))
    }
}

/// Revision that a few words are about: the one that is being deployed, also where it does not work
/// yet, else the one that runs.
fn base(app: &App) -> u64 {
    let open = app.under_way().filter(|last| last.stage != Stage::Back);
    let plan = open.and_then(|last| Plan::read(&last.body));
    plan.map_or(app.running, |plan| plan.revision)
}

/// The workload that is meant, as the key of an overlay.
fn workload(app: &str, manifests: &[Manifest], asked: &str) -> Result<String> {
    let all: Vec<_> = manifests.iter().filter_map(Overlay::key).collect();
    let cannot = || Error::new("nothing was changed");
    match all.as_slice() {
        [] => Err(cannot().why(format!("{app} has no Deployment and no StatefulSet"))),
        [only] if asked.is_empty() => Ok(only.clone()),
        all if all.iter().any(|key| key == asked) => Ok(asked.to_owned()),
        all => {
            let why = if asked.is_empty() {
                format!("{app} has several workloads")
            } else {
                format!("{app} has no {asked}")
            };
            let ways: Vec<_> = all.iter().map(|key| format!("--workload {key}")).collect();
            Err(cannot().why(why).fix(ways.join(" or ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::apps::{LastChange, parse};

    #[test]
    fn a_few_words_are_about_what_is_being_deployed_or_runs() {
        let app = |verb: &str, stage: Stage| App {
            running: 2,
            good: 2,
            change: Some(LastChange {
                body: json!({"app": "web", "verb": verb, "revision": 3, "before": 2, "back_to": 2})
                    .to_string(),
                stage,
                ..LastChange::default()
            }),
            ..App::default()
        };
        assert_eq!(base(&app("apply", Stage::Write)), 3);
        assert_eq!(base(&app("rollback", Stage::Judge)), 3);
        // It was cancelled, or did not work.
        for stage in [Stage::Back, Stage::Over] {
            assert_eq!(base(&app("apply", stage)), 2);
        }
        assert_eq!(base(&App::default()), 0);
    }

    #[test]
    fn the_workload_that_is_scaled_is_the_only_one_or_named() {
        let text = |kinds: &[&str]| {
            let documents: Vec<_> = kinds
                .iter()
                .map(|kind| format!("apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: a}}\n"))
                .collect();
            parse(&documents.join("---\n"), Some("shop")).unwrap()
        };
        let one = text(&["Deployment", "DaemonSet"]);
        assert_eq!(workload("web", &one, "").unwrap(), "Deployment/a");
        assert_eq!(
            workload("web", &one, "Deployment/b").unwrap_err().why,
            ["web has no Deployment/b"]
        );
        let two = text(&["Deployment", "StatefulSet"]);
        let error = workload("web", &two, "").unwrap_err();
        assert_eq!(
            error.fix.unwrap(),
            "--workload Deployment/a or --workload StatefulSet/a"
        );
        assert_eq!(
            workload("web", &two, "StatefulSet/a").unwrap(),
            "StatefulSet/a"
        );
        let none = text(&["DaemonSet"]);
        assert!(workload("web", &none, "").is_err());
    }
}
