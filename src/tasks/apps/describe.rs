//! Answers about apps: verdicts, objects, revisions.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    Apps,
    active::ActiveChange,
    change::{Plan, Verb, is_ours},
    inspect::{Values, changed},
    ledger::api_error,
    redact::redact,
    verdict::{kinds, refused, scope, view},
};
use crate::{
    core::{
        apps::{
            App, InventoryEntry, LastChange, Manifest, Need, Revision, RevisionOutcome, Stage,
            needs, unpinned,
        },
        journal::Change,
        rollout::{ClusterView, JudgedRollout, RolloutVerdict, inputs, standing},
        time::Wall,
    },
    error::{Error, Result, Retry},
    net::deadline,
    wire::rollout::shown,
};

/// Time for a record or a revision to be read: an answer without what runs now is better than none,
/// and whoever asks waits no longer than for one call.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// Time for all records, one after the other.
const LISTED_WITHIN: Duration = Duration::from_secs(20);
/// Time for everything that a verdict on what runs reads.
const SEEN_WITHIN: Duration = Duration::from_secs(10);
/// Changes of the journal that are looked through for the last one of an app.
const CHANGES_MAX: u32 = 200;

impl Apps {
    /// Every app, in short.
    ///
    /// # Errors
    /// Reason why they are not known.
    pub async fn list(&self) -> Result<Value> {
        let apps = deadline(LISTED_WITHIN, Box::pin(self.ledger.list())).await;
        let apps = apps.map_err(|_elapsed| silent())?.map_err(api_error)?;
        let apps: Vec<_> = apps.iter().map(|app| self.change_answer(app)).collect();
        Ok(json!({ "apps": apps }))
    }

    /// One app: its objects and its revisions.
    ///
    /// # Errors
    /// There is no such app, or it is not known.
    pub async fn describe(&self, app: &str) -> Result<Value> {
        let read = self.require_record(app).await?;
        let mut answer = self.change_answer(&read.app);
        let objects: Vec<_> = read
            .app
            .inventory
            .iter()
            .map(|entry| json!({"kind": entry.kind, "name": entry.name, "uid": entry.uid}))
            .collect();
        let revisions = read.app.revisions.iter().map(|it| self.revision(it));
        let revisions: Vec<_> = revisions.collect();
        let running = self.running_manifests(&read.app).await;
        let last = self.change_of(&read.app).await;
        if let Value::Object(fields) = &mut answer {
            fields.insert("change".to_owned(), last);
            fields.insert("objects".to_owned(), json!(objects));
            fields.insert("revisions".to_owned(), json!(revisions));
            fields.insert(
                "offline".to_owned(),
                self.offline(&read.app, running.as_deref()),
            );
        }
        Ok(answer)
    }

    /// Verdict on the last change, with what runs.
    ///
    /// # Errors
    /// There is no such app, or it is not known.
    pub async fn why(&self, app: &str) -> Result<Value> {
        let read = deadline(READ_WITHIN, Box::pin(self.record(app))).await;
        let read = match read.unwrap_or_else(|_elapsed| Err(silent())) {
            Ok(found) => found.map(|read| read.app),
            Err(error) => {
                let known = self.known.borrow().get(app).cloned();
                Some(known.ok_or(error)?)
            }
        };
        let Some(read) = read else {
            return Err(self.unknown(app));
        };
        let manifests = self.running_manifests(&read).await;
        let running = self.what_runs(&read, manifests.as_deref()).await;
        let last = self.change_of(&read).await;
        // Last, and of the record as it is by now: a change that has ended has its verdict there.
        let known = self.known.borrow().get(app).cloned();
        let known = known.as_ref().unwrap_or(&read);
        let kept = last_judged(known).map(|last| &last.outcome.inputs);
        let inputs = self.inputs(app).or_else(|| kept.cloned());
        let mut answer = self.change_answer(known);
        if let Value::Object(fields) = &mut answer {
            fields.insert("inputs".to_owned(), json!(inputs.unwrap_or_default()));
            fields.insert("running".to_owned(), running);
            fields.insert(
                "offline".to_owned(),
                self.offline(&read, manifests.as_deref()),
            );
            fields.insert("change".to_owned(), last);
        }
        Ok(answer)
    }

    /// Manifests of what runs, as they were written; `None`: they are not known.
    async fn running_manifests(&self, app: &App) -> Option<Vec<Manifest>> {
        let reading = Box::pin(self.ledger.manifests(&app.name, app.running));
        let mut manifests = deadline(READ_WITHIN, reading).await.ok()?.ok().flatten()?;
        app.overlay(app.running).apply(&mut manifests);
        Some(manifests)
    }

    /// Adds to each revision of an answer of [`Apps::describe`], or to `only` one of them, what it
    /// changed against the one before it, as far as both are kept. No other revision is read.
    ///
    /// # Errors
    /// There is no such app, or it is not known.
    pub async fn add_changes(
        &self,
        (app, only): (&str, Option<u64>),
        answer: &mut Value,
        values: Values,
    ) -> Result<()> {
        let read = self.require_record(app).await?.app;
        let numbers = read.revisions.iter().map(|revision| revision.number);
        let numbers: Vec<_> = numbers.collect();
        let revisions = answer.get_mut("revisions").and_then(Value::as_array_mut);
        let mut before: Option<Vec<Manifest>> = None;
        for shown in revisions.into_iter().flatten() {
            let number = shown.get("number").and_then(Value::as_u64).unwrap_or(0);
            if !is_compared(&numbers, number, only) {
                continue;
            }
            let kept = self
                .ledger
                .manifests(app, number)
                .await
                .map_err(api_error)?;
            let applied = kept.map(|mut manifests| {
                read.overlay(number).apply(&mut manifests);
                manifests
            });
            if let (Some(before), Some(applied)) = (&before, &applied)
                && let Value::Object(fields) = shown
            {
                fields.insert("changes".to_owned(), changed(before, applied, values));
            }
            before = applied;
        }
        Ok(())
    }

    /// Images without which Pods of these manifests do not start while their registry is away.
    fn offline(&self, app: &App, manifests: Option<&[Manifest]>) -> Value {
        let stays = |image: &str| self.stays(app, image);
        let needs = needs(manifests.unwrap_or_default(), stays);
        let need = |it: &Need| json!({"image": it.image, "object": it.object, "why": it.why, "fix": it.fix});
        needs.iter().map(need).collect()
    }

    fn revision(&self, revision: &Revision) -> Value {
        let (outcome, overlay) = (&revision.outcome, &revision.overlay);
        let image = |(image, digest): (&String, &String)| {
            let why = unpinned(digest);
            json!({"image": image, "digest": why.is_none().then_some(digest), "why": why,
                "kept": self.pins.has(digest)})
        };
        let images: Value = overlay.digests.iter().map(image).collect();
        json!({
            "number": revision.number, "at": revision.at.rfc3339(), "by": revision.by, "verdict": outcome.verdict.map(RolloutVerdict::as_str),
            "cause": text(&outcome.cause), "sentence": text(&outcome.sentence),
            "images": images, "pinned": overlay.pinned,
        })
    }

    async fn what_runs(&self, app: &App, manifests: Option<&[Manifest]>) -> Value {
        let Some(manifests) = manifests else {
            return unseen(app.running);
        };
        let judged: Vec<_> = manifests.iter().filter(|it| is_judged(app, it)).collect();
        let scope = scope(&judged);
        let judge = |view: ClusterView<'_>| (standing(&scope, view), inputs(&scope, view));
        let known = self.look_by_watches(app, judge);
        let cluster = self.cluster(app.owner);
        let ((verdict, sentence, mut finding), inputs) = if let Some(known) = known {
            known
        } else {
            let kinds = kinds(&judged);
            let observing = Box::pin(cluster.observe(&app.namespace, &kinds));
            let seen = deadline(SEEN_WITHIN, observing).await;
            let seen = seen.unwrap_or_else(|_elapsed| Err(silent()));
            judge(view(&seen.map_err(|error| refused(&error))))
        };
        redact(&cluster, (manifests, &app.namespace), finding.as_mut()).await;
        let judgement = JudgedRollout {
            verdict,
            sentence,
            finding,
            since: self.now().mono,
        };
        let mut answer = shown(&judgement);
        if let Value::Object(fields) = &mut answer {
            fields.insert("revision".to_owned(), json!(app.running));
            fields.insert("inputs".to_owned(), json!(inputs));
        }
        answer
    }

    /// The last change of an app, by the record where another agent carries changes out.
    async fn change_of(&self, app: &App) -> Value {
        if let Some(last) = app.change.as_ref().filter(|_| self.stands_by().is_some()) {
            return noted(last);
        }
        let last = self.last_change(&app.name).await.ok().flatten();
        last.as_ref().map_or(Value::Null, change_json)
    }

    /// The last change of an app in the journal.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub(super) async fn last_change(&self, app: &str) -> Result<Option<Change>> {
        let changes = self.store.recent_changes(CHANGES_MAX).await?;
        let of_app = |change: &Change| {
            is_ours(&change.intent.kind)
                && Plan::read(&change.intent.body).is_some_and(|plan| plan.app == app)
        };
        Ok(changes.into_iter().find(of_app))
    }

    /// Answer about the last change, in the order of what is known best: live, then kept.
    fn change_answer(&self, app: &App) -> Value {
        let active = self.active_changes.borrow();
        let active = active.get(&app.name);
        let last = last_judged(app).map(|revision| (revision.number, &revision.outcome));
        let (number, outcome) = active
            .and_then(ActiveChange::rollout)
            .or(last)
            .map(|(number, outcome)| (number, outcome.clone()))
            .unwrap_or_default();
        let failed = app.revisions.last().and_then(|last| replaced(last, number));
        let standing_by = self.stands_by();
        let unknown = match &standing_by {
            None => "it was not looked at yet",
            Some(_) => "another agent of this cluster has not judged it yet",
        };
        let mut sentence = text(&outcome.sentence).unwrap_or(unknown).to_owned();
        if let Some(failed) = failed {
            sentence = format!("{sentence}; {failed}");
        }
        json!({
            "app": app.name, "namespace": app.namespace, "revision": number,
            "verdict": outcome.verdict.unwrap_or(RolloutVerdict::Waiting).as_str(),
            "cause": text(&outcome.cause), "object": text(&outcome.object),
            "sentence": sentence,
            "evidence": text(&outcome.evidence), "fix": text(&outcome.fix),
            "since": (outcome.since != Wall::default()).then(|| outcome.since.rfc3339()),
            "owner": app.owner.as_str(), "good": app.good, "runs": app.running, "paused": app.is_paused,
            "auto_rollback": !app.is_rolled_back_by_hand,
            "usually_s": app.median_s(),
            "source": self.source_of(app), "standing_by": standing_by,
            "drift": self.drift_of(app),
            "rollback": active.and_then(ActiveChange::rollback).map(rollback),
        })
    }
}

/// Answer about the revision that is put back in the place of a bad one.
fn rollback((revision, outcome): (u64, &RevisionOutcome)) -> Value {
    json!({
        "revision": revision, "verdict": outcome.verdict.map(RolloutVerdict::as_str),
        "sentence": outcome.sentence,
    })
}

/// Returns whether a revision is read for the changes of `only` one, or of all: it is that one, or
/// the one before it.
fn is_compared(numbers: &[u64], number: u64, only: Option<u64>) -> bool {
    let Some(only) = only else {
        return true;
    };
    let mut earlier = numbers.iter().rev().filter(|number| **number < only);
    number == only || earlier.next() == Some(&number)
}

/// Returns whether the verdict on what runs is about an object: a Job is left out where it has
/// succeeded, because it may be gone by its TTL, and where another revision has run it.
fn is_judged(app: &App, manifest: &Manifest) -> bool {
    let entry = InventoryEntry::of(manifest);
    manifest.kind.name != "Job"
        || app.has_job_run(&entry, app.running) && !app.has_job_succeeded(&entry, app.running)
}

/// The error of an API server that does not answer in time.
fn silent() -> Error {
    Error::new("the Kubernetes API does not answer in time")
        .fix("pipeops-agent doctor")
        .retry(Retry::Soon)
}

/// Answer about what runs where its manifests cannot be read.
fn unseen(revision: u64) -> Value {
    json!({
        "revision": revision, "verdict": RolloutVerdict::Blind.as_str(),
        "sentence": "its manifests cannot be read from the cluster now",
        "cause": null, "object": null, "evidence": null, "fix": null, "inputs": [],
    })
}

/// The revision that the last change is about: an earlier one where somebody went back.
fn last_judged(app: &App) -> Option<&Revision> {
    let plan = app.change.as_ref().and_then(|last| Plan::read(&last.body));
    let back = plan.filter(|plan| plan.verb == Verb::Rollback);
    let back = back.and_then(|plan| app.revision(plan.revision));
    back.or_else(|| app.revisions.last())
}

/// Sentence about a bad revision whose place an earlier one takes because somebody asked for it.
fn replaced(last: &Revision, number: u64) -> Option<String> {
    let is_bad = last.outcome.verdict == Some(RolloutVerdict::Bad);
    (is_bad && number < last.number).then(|| {
        let (bad, why) = (last.number, &last.outcome.sentence);
        format!("it takes the place of revision {bad}, which is bad: {why}")
    })
}

/// A text; `None` where it is empty.
fn text(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// A change as the journal has it.
fn change_json(change: &Change) -> Value {
    let (state, why) = match &change.ended {
        None => ("under way", None),
        Some((_, ending)) => (ending.outcome.as_str(), ending.why.as_deref()),
    };
    json!({"id": change.id, "state": state, "why": why, "by": change.intent.origin})
}

/// A change as the agent that carries it out noted it in the record.
fn noted(change: &LastChange) -> Value {
    let state = if change.stage == Stage::Over {
        "over"
    } else {
        "under way"
    };
    json!({"id": change.id, "state": state, "why": null, "by": change.by})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::apps::parse;

    #[test]
    fn what_runs_has_a_sentence_while_the_api_is_away() {
        let answer = unseen(3);
        assert!(answer["sentence"].as_str().is_some_and(|it| !it.is_empty()));
        assert_eq!(answer["verdict"], "blind");
    }

    #[test]
    fn what_runs_is_judged_by_the_jobs_that_it_has_run_and_that_did_not_succeed() {
        let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: migrate}\n";
        let manifests = parse(job, Some("shop")).unwrap();
        let job = &manifests[0];
        let mut app = App {
            running: 2,
            ..App::default()
        };
        assert!(!is_judged(&app, job));
        app.plan(&manifests, [String::new()]);
        app.record_job_run(&InventoryEntry::of(job), 2);
        assert!(is_judged(&app, job));
        app.record_job_success(&InventoryEntry::of(job), 2);
        assert!(!is_judged(&app, job));
        // A version that was taken back has run it again.
        app.record_job_run(&InventoryEntry::of(job), 3);
        assert!(!is_judged(&app, job));
    }

    #[test]
    fn for_the_changes_of_one_revision_two_are_read() {
        // Revision 3 was forgotten.
        let numbers = [1, 2, 4, 5];
        let read = |only| {
            let read = numbers.iter().copied();
            let read = read.filter(|number| is_compared(&numbers, *number, only));
            read.collect::<Vec<_>>()
        };
        assert_eq!(read(Some(4)), [2, 4]);
        assert_eq!(read(Some(1)), [1]);
        assert_eq!(read(Some(9)), [5]);
        assert_eq!(read(None), numbers);
    }

    #[test]
    fn while_a_version_is_put_back_the_bad_one_is_named() {
        let mut last = Revision {
            number: 4,
            ..Revision::default()
        };
        assert_eq!(replaced(&last, 3), None);
        last.outcome.verdict = Some(RolloutVerdict::Bad);
        last.outcome.sentence = "container web keeps exiting".to_owned();
        assert_eq!(replaced(&last, 4), None);
        assert_eq!(
            replaced(&last, 3).unwrap(),
            "it takes the place of revision 4, which is bad: container web keeps exiting"
        );
    }
}
