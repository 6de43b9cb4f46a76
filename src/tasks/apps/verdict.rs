//! Meaning of errors and looks for an app: what it waits for, what is bad, what is kept with its
//! revision.

use std::time::Duration;

use serde_json::Value;

use super::{
    cluster::{Targets, key},
    fail_points,
};
use crate::{
    core::{
        apps::{Kind, Manifest, RevisionOutcome},
        journal::ChangeEnd,
        rollout::{
            Cause, ClusterView, DEADLINE, Finding, JudgedRollout, Observation, RolloutVerdict,
            Scope, is_watched,
        },
        time::{Mono, Now},
    },
    error::{Error, Retry},
};

/// The finding of an error that ends as soon as somebody gives the rights that are missing, or
/// raises the level of access; `None`: it is another one.
pub(super) fn refused(error: &Error) -> Option<Finding> {
    (error.retry != Retry::Soon).then(|| Finding {
        cause: Cause::AccessRefused,
        object: String::new(),
        sentence: error.what.clone(),
        evidence: error.why.join(": "),
        fix: error.fix.clone().unwrap_or_default(),
        is_definite: false,
    })
}

/// The view of the cluster that a look gave: an observation, a refusal, or nothing.
pub(super) const fn view(seen: &Result<Observation, Option<Finding>>) -> ClusterView<'_> {
    match seen {
        Ok(seen) => ClusterView::Seen(seen),
        Err(Some(found)) => ClusterView::Refused(found),
        Err(None) => ClusterView::Blind,
    }
}

pub(super) fn waiting(finding: Finding, now: Now) -> JudgedRollout {
    JudgedRollout {
        verdict: RolloutVerdict::Waiting,
        sentence: finding.sentence.clone(),
        finding: Some(finding),
        since: now.mono,
    }
}

/// The judgement on a version that the API server refuses.
pub(super) fn refusal(error: &Error) -> JudgedRollout {
    let finding = Finding {
        cause: Cause::Admission,
        object: error.what.trim_end_matches(" is not deployed").to_owned(),
        sentence: error.sentence(),
        evidence: error.why.join(": "),
        fix: error.fix.clone().unwrap_or_default(),
        is_definite: true,
    };
    JudgedRollout {
        verdict: RolloutVerdict::Bad,
        sentence: finding.sentence.clone(),
        finding: Some(finding),
        since: Mono::default(),
    }
}

/// The judgement on a version whose change ended before it was judged, such as by a level of access
/// that was lowered. It is not held against the version.
pub(super) fn unjudged(ending: &ChangeEnd, cause: Option<Cause>) -> JudgedRollout {
    let sentence = ending.why.clone().unwrap_or_default();
    let finding = |cause| Finding {
        cause,
        object: String::new(),
        sentence: sentence.clone(),
        evidence: String::new(),
        fix: ending.fix.clone().unwrap_or_default(),
        is_definite: false,
    };
    JudgedRollout {
        verdict: RolloutVerdict::Waiting,
        finding: cause.map(finding),
        sentence,
        since: Mono::default(),
    }
}

/// A judgement as it is kept with its revision.
pub(super) fn concluded(judged: &JudgedRollout, now: Now) -> RevisionOutcome {
    let found = judged.finding.as_ref();
    RevisionOutcome {
        verdict: Some(judged.verdict),
        cause: found
            .map(|found| found.cause.id().to_owned())
            .unwrap_or_default(),
        object: found.map(|found| found.object.clone()).unwrap_or_default(),
        sentence: judged.sentence.clone(),
        evidence: found
            .map(|found| found.evidence.clone())
            .unwrap_or_default(),
        fix: found.map(|found| found.fix.clone()).unwrap_or_default(),
        inputs: Vec::new(),
        since: now.wall,
    }
}

/// Kinds of the objects of a version.
pub(super) fn kinds(manifests: &[&Manifest]) -> Vec<Kind> {
    let kinds = manifests.iter().map(|manifest| manifest.kind.clone());
    kinds.collect()
}

/// Objects and times of a version. A generation of 0 is that of the object when it is seen.
pub(super) fn scope(manifests: &[&Manifest]) -> Scope {
    scope_within(manifests, DEADLINE)
}

/// The same, with the deadline for workloads that give none.
pub(super) fn scope_within(manifests: &[&Manifest], otherwise: Duration) -> Scope {
    let mut targets = Targets::new();
    let (mut deadline, mut gives_none) = (None, false);
    for manifest in manifests {
        let key = key(manifest);
        let is_watched = is_watched(&key.kind);
        targets.insert(key, 0);
        let given = manifest
            .object
            .pointer("/spec/progressDeadlineSeconds")
            .and_then(Value::as_u64);
        gives_none |= given.is_none() && is_watched;
        deadline = deadline.max(given.map(Duration::from_secs));
    }
    if gives_none {
        deadline = deadline.max(Some(otherwise));
    }
    Scope {
        targets,
        deadline: deadline.unwrap_or(otherwise),
        soak: fail_points::soak(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::apps::parse;

    #[test]
    fn what_only_somebody_with_rights_changes_is_no_silence() {
        let error = |retry| Error::new("the level is off").retry(retry);
        assert!(refused(&error(Retry::Never)).is_some() && refused(&error(Retry::Later)).is_some());
        assert!(refused(&error(Retry::Soon)).is_none());
    }

    #[test]
    fn the_deadline_of_one_workload_does_not_bind_those_that_give_none() {
        let deadline = |text: &str| {
            let manifests = parse(text, Some("shop")).unwrap();
            let all: Vec<_> = manifests.iter().collect();
            scope_within(&all, Duration::from_secs(600))
                .deadline
                .as_secs()
        };
        let of = |kind: &str, name: &str, spec: &str| {
            format!(
                "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n---\n"
            )
        };
        let short = of("Deployment", "web", "progressDeadlineSeconds: 60");
        let long = of("Deployment", "db", "progressDeadlineSeconds: 900");
        let none = of("StatefulSet", "queue", "");
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n";
        assert_eq!(deadline(&format!("{short}{service}")), 60);
        assert_eq!(deadline(&format!("{short}{none}")), 600);
        assert_eq!(deadline(&format!("{short}{long}{none}")), 900);
        assert_eq!(deadline(service), 600);
    }
}
