//! `apps why` after the end of the last change: the running objects may have changed since.

use serde_json::json;

use super::{Bench, SOON, config_map, deployment, drift::LOOK};
use crate::{agent::until_every, cluster::kubectl};

/// A container that ends as soon as `/state/gone` is there, and at once whenever it starts again.
const FRAGILE: &str = ", command: [sh, -c, \"until [ -e /state/gone ]; do sleep 0.2; done; exit 3\"], \
                       volumeMounts: [{name: state, mountPath: /state}]";

#[test]
fn an_app_that_began_to_crash_after_its_change_is_not_called_good() {
    let Some(bench) = Bench::prepared(|agent| agent.with("PIPEOPS_TEST_SOAK_MS", "300")) else {
        return;
    };
    bench.bind();
    let manifests = deployment("web", FRAGILE) + "      volumes: [{name: state, emptyDir: {}}]\n";
    let (code, said) = bench.apply("web", &manifests);
    assert_eq!(code, 0, "{said}");
    let (code, why) = bench.until_verdict("web", "good");
    assert_eq!((code, &why["running"]["verdict"]), (0, &json!("good")));
    let gone = ["exec", "deployment/web", "--", "touch", "/state/gone"];
    kubectl(&[&["-n", &bench.namespace], gone.as_slice()].concat());
    let why = until_every(LOOK, "it crashes", SOON, || {
        let (_, why) = bench.why("web");
        (why["running"]["verdict"] == "bad").then_some(why)
    });
    // The last change is over and was good; what runs is another matter.
    assert_eq!(
        (&why["verdict"], &why["running"]["cause"]),
        (&json!("good"), &json!("container.crash-loop")),
        "{why:#}"
    );
    let (code, said) = bench.apps(&["why", "web"]);
    let told = "revision 1 runs and is bad: ";
    assert!(
        code == 1 && said.contains(told) && said.contains("  cause: container.crash-loop\n"),
        "{code}: {said}"
    );
}

#[test]
fn a_rollback_that_failed_is_what_why_is_about() {
    let Some(bench) = Bench::prepared(|agent| agent.with("PIPEOPS_TEST_SOAK_MS", "300")) else {
        return;
    };
    bench.bind();
    kubectl(&[
        "-n",
        &bench.namespace,
        "create",
        "configmap",
        "settings",
        "--from-literal=a=b",
    ]);
    let version = |text: &str, map: &str| {
        let reads = format!(", envFrom: [{{configMapRef: {{name: {map}}}}}]");
        // No Pod of the version before is left over.
        let one_by_one = "spec:\n  strategy: {type: Recreate}\n  selector";
        let web = deployment("web", &reads).replace("spec:\n  selector", one_by_one);
        config_map("page", text) + "---\n" + &web
    };
    let (code, said) = bench.apply("web", &version("one", "settings"));
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("web", "good");
    let delete = ["-n", &bench.namespace, "delete"];
    kubectl(&[&delete[..], &["configmap", "settings"]].concat());
    let (code, said) = bench.apply("web", &version("two", "absent"));
    assert_eq!(code, 0, "{said}");
    let (code, why) = until_every(LOOK, "the way back failed", SOON, || {
        let (code, why) = bench.why("web");
        (why["change"]["state"] == "failed").then_some((code, why))
    });
    assert_eq!(
        (code, &why["verdict"], &why["cause"]),
        (1, &json!("bad"), &json!("config.missing")),
        "{why:#}"
    );
}
