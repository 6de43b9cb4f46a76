//! Workloads whose Pods read configuration of their app are replaced when it has changed.

use super::{Bench, IMAGE, SEED, SOON, drift::LOOK};
use crate::agent::until_every;

fn version(value: &str, secret: &str) -> String {
    let workload = |name: &str, read: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: 0\n  \
             selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    \
             spec: {{containers: [{{name: web, image: \"{IMAGE}\", {read}}}]}}\n---\n"
        )
    };
    [
        workload("map", "envFrom: [{configMapRef: {name: settings}}]"),
        workload(
            "secret",
            "env: [{name: KEY, valueFrom: {secretKeyRef: {name: key, key: k}}}]",
        ),
        workload("neither", "env: [{name: A, value: b}]"),
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings}}\ndata: {{a: {value}}}\n---\n"),
        format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: key}}\nstringData: {{k: {secret}}}\n"),
    ]
    .concat()
}

#[test]
fn what_reads_changed_configuration_is_replaced() {
    let Some(bench) = Bench::new() else {
        return;
    };
    bench.bind();
    // Annotations of the Pods of each workload.
    let marks = |bench: &Bench| {
        ["map", "secret", "neither"].map(|name| {
            let path = "{.spec.template.metadata.annotations}";
            bench.get(&format!("deployment/{name}"), path)
        })
    };
    let deploy = |bench: &Bench, value: &str, secret: &str| {
        let (code, said) = bench.apply("web", &version(value, secret));
        assert_eq!(code, 0, "{said}");
        bench.until_verdict("web", "soaking");
        marks(bench)
    };
    let none = [const { String::new() }; 3];
    assert_eq!(deploy(&bench, "one", "one"), none);
    // Also an agent that knew nothing of it deployed what runs.
    assert_eq!(deploy(&bench, "one", "one"), none);
    let of_map = deploy(&bench, "two", "one");
    assert!(of_map[0].contains("pipeops.io/restarted-at"), "{of_map:?}");
    assert_eq!(of_map[1..], none[1..]);
    let of_both = deploy(&bench, "two", SEED);
    assert_eq!(of_both[0], of_map[0]);
    assert!(of_both[1].contains("restarted-at"), "{of_both:?}");
    assert_eq!(of_both[2], "");
    assert_eq!(deploy(&bench, "two", SEED), of_both);
    // The mark is no difference, and says nothing about the value.
    let file = bench.agent.folder().join("web.yaml").display().to_string();
    let (code, said) = bench.apps(&["diff", "-f", &file, "--app", "web"]);
    assert!(code == 0 && !said.contains("restarted-at"), "{said}");
    let (code, said) = bench.apps(&["rollback", "web", "--to", "1"]);
    assert_eq!(code, 0, "{said}");
    let is_back = || (marks(&bench) == none).then_some(());
    until_every(LOOK, "the marks are back", SOON, is_back);
}
