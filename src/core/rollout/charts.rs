//! Charts: what the helm-controller of k3s reports of them, a condition and the Job that installs
//! each. It does not say which version of a HelmChart it has seen; within the soak it replaces the
//! Job of the version before.

use super::{
    Cause, Finding, Key, Object, messages,
    object::text,
    state::{ObjectState, Readiness},
};

/// Judges a HelmChart by its condition and the state of its Job. Without a Job nothing is known but
/// that it is applied.
pub(super) fn state<'a>(target: &Object, job: Option<ObjectState<'a>>) -> ObjectState<'a> {
    let says = target.condition("Failed");
    let failed = says.filter(|says| text(says, "/status") == "True");
    let failed = failed.map(|says| Finding {
        cause: Cause::ChartFailed,
        object: target.in_words(),
        sentence: format!("{} is not installed", target.in_words()),
        evidence: messages::evidence(text(says, "/reason"), text(says, "/message")),
        fix: fix(target, job.is_some()),
        is_definite: true,
    });
    let Some(job) = job else {
        return ObjectState {
            is_complete: failed.is_none(),
            readiness: Readiness::Unknown,
            missing: format!("{} is not installed", target.in_words()),
            findings: failed.into_iter().collect(),
            ..ObjectState::applied()
        };
    };
    // The controller begins with a Job that is suspended.
    let is_done = job.ready > 0 && failed.is_none();
    ObjectState {
        is_complete: is_done,
        ready: u64::from(is_done),
        missing: format!("{} is being installed: {}", target.in_words(), job.missing),
        findings: failed.into_iter().chain(job.findings).collect(),
        // An installation has the time of every other workload.
        open_jobs: 0,
        ..job
    }
}

/// The Job by which the controller installs a chart.
pub(super) fn job_of(target: &Object) -> Key {
    Key {
        kind: "Job".to_owned(),
        namespace: target.text("/metadata/namespace").to_owned(),
        name: format!("helm-install-{}", target.name()),
    }
}

fn fix(target: &Object, has_job: bool) -> String {
    let (namespace, name) = (target.text("/metadata/namespace"), target.name());
    if has_job {
        format!("kubectl -n {namespace} logs job/helm-install-{name}")
    } else {
        format!("kubectl -n {namespace} describe helmchart {name}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Observation, workloads};
    use super::*;
    use serde_json::{Value, json};

    fn condition(kind: &str, status: &str) -> Value {
        json!([{"type": kind, "status": status, "reason": "R", "message": "m"}])
    }

    fn chart(conditions: &Value) -> Object {
        let whole = json!({"metadata": {"name": "web", "namespace": "shop"},
            "spec": {"valuesContent": "s3cret"}, "status": {"conditions": conditions}});
        let object = Object::reduced("HelmChart", &whole);
        assert!(!object.value().to_string().contains("s3cret"));
        object
    }

    #[test]
    fn a_chart_is_ready_once_its_job_is_done_and_unknown_without_one() {
        let none = json!(null);
        let (is_suspended, complete, bad) = (
            json!({"suspend": true}),
            condition("Complete", "True"),
            condition("Failed", "True"),
        );
        for (of_chart, job, word, cause) in [
            (&none, None, "unknown", None),
            (&condition("JobCreated", "True"), None, "unknown", None),
            (&bad, None, "open", Some("chart.failed")),
            (&none, Some((&is_suspended, &none)), "open", None),
            (&none, Some((&none, &none)), "open", None),
            (
                &condition("Failed", "False"),
                Some((&none, &complete)),
                "ready",
                None,
            ),
            // It could not make the Job of the new version.
            (&bad, Some((&none, &complete)), "open", Some("chart.failed")),
            (&none, Some((&none, &bad)), "open", Some("job.failed")),
        ] {
            let mut seen = Observation::default();
            if let Some((spec, conditions)) = job {
                seen.add(Object::reduced(
                    "Job",
                    &json!({"spec": spec, "status": {"conditions": conditions},
                    "metadata": {"name": "helm-install-web", "namespace": "shop", "uid": "j"}}),
                ));
            }
            let target = chart(of_chart);
            let state = workloads::state(&target, 0, &seen);
            let found = match (state.is_complete, state.readiness) {
                (true, Readiness::Unknown) => "unknown",
                (true, Readiness::Reported) => "ready",
                (false, _) => "open",
            };
            let case = format!("{of_chart} {job:?}");
            assert_eq!(found, word, "{case}");
            let first = state.findings.first().map(|found| found.cause.id());
            assert_eq!(first, cause, "{case}");
        }
    }
}
