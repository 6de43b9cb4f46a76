//! Custom resources: what those say about themselves that follow the conventions of Kubernetes for
//! conditions, read by the rules of kstatus. Of all others nothing is known but that they are
//! applied.

use serde_json::Value;

use super::{
    Cause, Finding, Object, messages,
    object::text,
    state::{ObjectState, Readiness, waits},
};

/// Judges a custom resource.
pub(super) fn state(target: &Object, generation: u64) -> ObjectState<'_> {
    let wanted = generation.max(target.count("/metadata/generation"));
    let is_old = |seen: Option<u64>| seen.is_some_and(|seen| seen < wanted);
    // A controller that says which version it saw has to have seen this one.
    if is_old(target.number("/status/observedGeneration")) {
        return ObjectState {
            wanted: 1,
            missing: waits(target),
            ..ObjectState::default()
        };
    }
    let current = |kind: &str| {
        let found = target.condition(kind)?;
        let seen = found.get("observedGeneration").and_then(Value::as_u64);
        Some((found, is_old(seen)))
    };
    let is_true = |kind: &str| {
        let found = current(kind).filter(|(_, is_old)| !is_old)?.0;
        (text(found, "/status") == "True").then_some(found)
    };
    let ready = current("Ready").or_else(|| current("Available"));
    let says = is_true("Stalled").map(|found| (found, true));
    let says = says.or_else(|| is_true("Reconciling").map(|found| (found, false)));
    let says = says.or_else(|| {
        let is_ready =
            |(found, is_old): &(&Value, bool)| !is_old && text(found, "/status") == "True";
        ready
            .filter(|ready| !is_ready(ready))
            .map(|(found, _)| (found, false))
    });
    let Some((says, is_stalled)) = says else {
        let readiness = match ready {
            Some(_) => Readiness::Reported,
            None => Readiness::Unknown,
        };
        let count = u64::from(ready.is_some());
        return ObjectState {
            readiness,
            ready: count,
            wanted: count,
            ..ObjectState::applied()
        };
    };
    let found = finding(target, says, is_stalled);
    ObjectState {
        is_seen: true,
        wanted: 1,
        missing: found.sentence.clone(),
        findings: vec![found],
        ..ObjectState::default()
    }
}

/// The reason that a condition gives why its object is not ready.
fn finding(target: &Object, says: &Value, is_definite: bool) -> Finding {
    let object = target.in_words();
    let word = |pointer| messages::evidence(text(says, pointer), "");
    let (kind, status) = (word("/type"), word("/status"));
    let (plural, namespace) = (target.kind(), target.text("/metadata/namespace"));
    Finding {
        cause: if is_definite {
            Cause::CustomStalled
        } else {
            Cause::CustomNotReady
        },
        sentence: format!("{object} is not ready: its condition {kind} is {status}"),
        object,
        evidence: messages::evidence(text(says, "/reason"), text(says, "/message")),
        fix: format!("kubectl -n {namespace} describe {plural} {}", target.name()),
        is_definite,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn judged(status: &Value) -> (String, String) {
        let whole = json!({"metadata": {"name": "a", "namespace": "shop", "generation": 2}, "status": status});
        let object = Object::reduced("widgets.example.com", &whole);
        let state = state(&object, 0);
        let word = match (state.is_complete, state.readiness, state.is_seen) {
            (true, Readiness::Unknown, _) => "unknown",
            (true, Readiness::Reported, _) => "ready",
            (false, _, true) => "not ready",
            (false, _, false) => "unseen",
        };
        let found = state.findings.first();
        let found = found.map(|found| format!("{} {}", found.cause.id(), found.evidence));
        (word.to_owned(), found.unwrap_or_default())
    }

    #[test]
    fn what_follows_the_conventions_says_whether_it_is_ready_and_all_else_is_unknown() {
        let of = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "R", "message": "m"});
        let old = json!({"type": "Ready", "status": "True", "observedGeneration": 1});
        let (bad, open) = ("custom.stalled R: m", "custom.not-ready R: m");
        for (status, word, found) in [
            (json!(null), "unknown", ""),
            (json!({"phase": "Ready"}), "unknown", ""),
            (json!({"observedGeneration": 2}), "unknown", ""),
            (
                json!({"conditions": [of("Synced", "False")]}),
                "unknown",
                "",
            ),
            (json!({"observedGeneration": 1}), "unseen", ""),
            (
                json!({"observedGeneration": 1, "conditions": [of("Ready", "True")]}),
                "unseen",
                "",
            ),
            (json!({"conditions": [of("Ready", "True")]}), "ready", ""),
            (
                json!({"observedGeneration": 2, "conditions": [of("Available", "True")]}),
                "ready",
                "",
            ),
            (
                json!({"conditions": [of("Ready", "False")]}),
                "not ready",
                open,
            ),
            (
                json!({"conditions": [of("Ready", "Unknown")]}),
                "not ready",
                open,
            ),
            (
                json!({"conditions": [of("Available", "False")]}),
                "not ready",
                open,
            ),
            // Ready says more than Available.
            (
                json!({"conditions": [of("Available", "True"), of("Ready", "False")]}),
                "not ready",
                open,
            ),
            (
                json!({"conditions": [of("Ready", "True"), of("Reconciling", "True")]}),
                "not ready",
                open,
            ),
            (
                json!({"conditions": [of("Reconciling", "True"), of("Stalled", "True")]}),
                "not ready",
                bad,
            ),
            (
                json!({"conditions": [of("Ready", "True"), of("Stalled", "False")]}),
                "ready",
                "",
            ),
            // What was said about the version before says nothing about this one.
            (
                json!({"conditions": [old]}),
                "not ready",
                "custom.not-ready ",
            ),
        ] {
            let wanted = (word.to_owned(), found.to_owned());
            assert_eq!(judged(&status), wanted, "{status}");
        }
    }
}
