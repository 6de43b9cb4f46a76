//! StatefulSets, whose Pods start one after the other.

use super::{Bench, deployment};

#[test]
fn a_corrected_stateful_set_starts_although_a_pod_of_before_is_in_its_way() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let apply = |more: &str| {
        let manifests = deployment("db", more)
            .replace("kind: Deployment", "kind: StatefulSet")
            .replace("spec:\n  selector", "spec:\n  serviceName: db\n  selector");
        let (code, said) = bench.apply("db", &manifests);
        assert_eq!(code, 0, "{said}");
    };
    apply(", command: [/app/missing]");
    let (_, why) = bench.until_verdict("db", "bad");
    assert_eq!(why["cause"], "container.start", "{why:#}");
    bench.until_ended("db", 1, "failed");
    apply("");
    let (_, why) = bench.until_verdict("db", "soaking");
    assert_eq!(why["revision"], 2, "{why:#}");
}
