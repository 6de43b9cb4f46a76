//! Jobs that run before the workloads of their version are written, and what goes back by itself
//! after them.

use serde_json::json;

use super::{Bench, SOON, deployment, drift::LOOK, job};
use crate::agent::until_every;

fn migration(script: &str) -> String {
    let marked = "metadata: {name: once, annotations: {pipeops.io/run-first: \"true\"}}";
    job(script).replace("metadata: {name: once}", marked)
}

#[test]
fn workloads_wait_for_the_jobs_that_run_first() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let map = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n---\n";
    let version = |name: &str, script: &str| deployment(name, "") + map + &migration(script);
    let (code, said) = bench.apply("web", &version("web", "sleep 6"));
    assert_eq!(code, 0, "{said}");
    until_every(LOOK, "the Job is there", SOON, || {
        (!bench.objects("jobs").is_empty()).then_some(())
    });
    assert!(bench.objects("configmaps").contains("settings"));
    let is_done = || !bench.get("job/once", "{.status.completionTime}").is_empty();
    while !is_done() {
        let written = bench.objects("deployments");
        assert!(written.is_empty() || is_done(), "it did not wait");
    }
    bench.until_verdict("web", "soaking");
    assert_eq!(bench.objects("deployments"), "deployment.apps/web\n");
    let uid = bench.get("job/once", "{.metadata.uid}");

    // The same one does not run again, and nothing waits for it.
    let (code, said) = bench.apply("web", &version("web", "sleep 6"));
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("web", "soaking");
    assert_eq!(bench.get("job/once", "{.metadata.uid}"), uid);

    // Where it fails, no workload is written.
    let (code, said) = bench.apply(
        "web",
        &(version("web", "exit 3") + "---\n" + &deployment("late", "")),
    );
    assert_eq!(code, 0, "{said}");
    let (_, why) = bench.until_verdict("web", "bad");
    assert_eq!(
        (&why["revision"], &why["cause"]),
        (&json!(3), &json!("job.failed")),
        "{why:#}"
    );
    assert_eq!(bench.objects("deployments"), "deployment.apps/web\n");
}

#[test]
fn a_job_of_a_bad_version_is_not_forgotten_by_the_next_one() {
    let Some(bench) = Bench::prepared(|agent| agent.with("PIPEOPS_TEST_SOAK_MS", "300")) else {
        return;
    };
    bench.bind();
    let fails = |number: u64| {
        let map = format!(", envFrom: [{{configMapRef: {{name: absent-{number}}}}}]");
        deployment("web", &map)
    };
    let ends = |revision: u64, manifests: &str, state: &str| {
        let (code, said) = bench.apply("web", manifests);
        assert_eq!(code, 0, "{said}");
        let why = bench.until_ended("web", revision, state);
        why.as_str().unwrap().to_owned()
    };
    ends(1, &deployment("web", ""), "done");
    for (revision, manifests) in [(2, fails(2) + "---\n" + &migration("true")), (3, fails(3))] {
        let why = ends(revision, &manifests, "failed");
        assert!(
            why.contains("not rolled back automatically, because Job ")
                && why.contains("/once may have changed data"),
            "{why}"
        );
    }
    // A person went back, and it works with what the Job did.
    let (code, said) = bench.apps(&["rollback", "web", "--wait"]);
    assert_eq!(code, 0, "{said}");
    ends(4, &fails(4), "undone");
}
