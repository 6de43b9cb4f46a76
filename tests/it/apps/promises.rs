//! Promises of a deployment before it writes, and of a rollback about what it leaves alone.

use std::{io::Write as _, process::Stdio};

use serde_json::json;

use super::{Bench, SOON, deployment, drift::LOOK, job};
use crate::{
    agent::{command, put, until_every},
    cluster::kubectl,
};

fn map(text: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: page}}\ndata: {{text: {text}}}\n"
    )
}

#[test]
fn a_change_of_an_immutable_field_is_refused_before_the_first_write() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let first = deployment("web", "") + &map("one");
    assert_eq!(bench.apply("web", &first).0, 0);
    bench.until_verdict("web", "soaking");
    let other = deployment("web", "").replace("{app: web}", "{app: other}") + &map("two");
    let (code, said) = bench.apply("web", &other);
    assert!(code == 2 && said.contains("immutable"), "{said}");
    assert_eq!(bench.get("configmap/page", "{.data.text}"), "one");
    let selector = bench.get("deployment/web", "{.spec.selector.matchLabels.app}");
    assert_eq!(selector, "web");
    let (_, history) = bench.apps(&["history", "web", "--json"]);
    assert_eq!(history.matches(r#""number""#).count(), 1, "{history}");
}

#[test]
fn a_mistake_in_a_job_that_is_there_is_refused_before_the_first_write() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let version = |script: &str, text: &str| job(script) + &map(text);
    assert_eq!(bench.apply("web", &version("true", "one")).0, 0);
    bench.until_verdict("web", "soaking");
    let uid = bench.get("job/once", "{.metadata.uid}");
    let wrong = version("exit 0", "two").replace("restartPolicy: Never", "restartPolicy: Always");
    let (code, said) = bench.apply("web", &wrong);
    assert!(code == 2 && said.contains("restartPolicy"), "{said}");
    assert_eq!(bench.get("configmap/page", "{.data.text}"), "one");
    assert_eq!(bench.get("job/once", "{.metadata.uid}"), uid);
}

#[test]
fn a_deployment_becomes_recreate_and_rolls_again() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let rolling = deployment("web", "");
    let recreated = rolling.replace(
        "spec:\n  selector",
        "spec:\n  strategy: {type: Recreate}\n  selector",
    );
    for (manifests, strategy) in [
        (&rolling, "RollingUpdate 25%"),
        (&recreated, "Recreate "),
        (&recreated, "Recreate "),
        (&rolling, "RollingUpdate 25%"),
    ] {
        let (code, said) = bench.apply("web", manifests);
        assert_eq!(code, 0, "{said}");
        bench.until_verdict("web", "soaking");
        let fields = "{.spec.strategy.type} {.spec.strategy.rollingUpdate.maxSurge}";
        assert_eq!(bench.get("deployment/web", fields), strategy);
    }
}

#[test]
fn manifests_come_from_standard_input() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let words = ["apps", "apply", "-f", "-", "--app", "web", "--namespace"];
    let mut child = bench
        .agent
        .command(&[&words[..], &[&bench.namespace]].concat())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(map("one").as_bytes()).unwrap();
    drop(input);
    assert!(child.wait().unwrap().success());
    bench.until_verdict("web", "soaking");
    assert_eq!(bench.get("configmap/page", "{.data.text}"), "one");
}

#[test]
fn a_stateful_set_becomes_on_delete_also_after_it_rolled_again() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let rolling = deployment("web", "")
        .replace("kind: Deployment", "kind: StatefulSet")
        .replace("spec:\n  selector", "spec:\n  serviceName: web\n  selector");
    let by_hand = rolling.replace(
        "spec:\n  serviceName",
        "spec:\n  updateStrategy: {type: OnDelete}\n  serviceName",
    );
    for (manifests, strategy) in [
        (&rolling, "RollingUpdate 0"),
        (&by_hand, "OnDelete "),
        (&rolling, "RollingUpdate 0"),
        (&by_hand, "OnDelete "),
    ] {
        let (code, said) = bench.apply("web", manifests);
        assert_eq!(code, 0, "{said}");
        bench.until_verdict("web", "soaking");
        let fields = "{.spec.updateStrategy.type} {.spec.updateStrategy.rollingUpdate.partition}";
        assert_eq!(bench.get("statefulset/web", fields), strategy);
    }
}

#[test]
fn one_object_too_many_is_refused() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let maps = |count: usize| -> String {
        let one = |number| map("x").replace("name: page", &format!("name: page-{number}"));
        (0..count).map(one).collect()
    };
    let (code, said) = bench.apply("web", &maps(1_001));
    assert!(code == 2 && said.contains("1000 at most"), "{said}");
    assert!(!bench.objects("configmaps").contains("page-"));
}

#[test]
fn the_first_secret_in_a_datastore_that_does_not_encrypt_is_told_once() {
    let can = command("unshare").args(["--mount", "true"]).status();
    if !nix::unistd::geteuid().is_root() || !can.is_ok_and(|status| status.success()) {
        println!("skipped: a /run of its own takes root, and unshare");
        return;
    }
    let run = tempfile::tempdir().unwrap();
    let status = run.path().join("pipeops-k3s/status");
    std::fs::create_dir(run.path().join("pipeops-k3s")).unwrap();
    put(
        &status,
        r#"{"managed":"installed","encrypts_secrets":false}"#,
    );
    let mount = format!("mount --bind {} /run && exec \"$@\"", run.path().display());
    let words = ["unshare", "--mount", "--propagation", "private"];
    let words = [&words[..], &["sh", "-c", &mount, "sh"]].concat();
    let Some(bench) = Bench::prepared(|agent| agent.under(&words)) else {
        return;
    };
    bench.bind();
    let seen = || bench.agent.view("/api/v1/k3s")["seen"]["encrypts_secrets"].clone();
    assert_eq!(seen(), false);
    let secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: NAME}\n";
    let told = |app: &str, manifests: &str| {
        let (code, said) = bench.apply(app, manifests);
        assert_eq!(code, 0, "{said}");
        bench.until_verdict(app, "soaking");
        said.contains("note: k3s stores Secrets unencrypted")
    };
    let with = |text: &str| map(text) + &secret.replace("NAME", "key");
    assert!(!told("web", &map("zero")));
    assert!(told("web", &with("one")));
    assert!(!told("web", &with("two")));
    // Of a datastore that encrypts, or that nobody knows, nothing is said.
    for (number, status_text) in [r#"{"managed":"installed","encrypts_secrets":true}"#, "{}"]
        .into_iter()
        .enumerate()
    {
        put(&status, status_text);
        seen();
        let name = format!("more-{number}");
        assert!(
            !told(&name, &secret.replace("NAME", &name)),
            "{status_text}"
        );
    }
}

#[test]
fn going_back_keeps_the_secret_of_today_and_runs_no_job() {
    let Some(mut bench) = Bench::prepared(|agent| agent.with("PIPEOPS_TEST_SOAK_MS", "300")) else {
        return;
    };
    bench.bind();
    let secret =
        "---\napiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {p: one}\n---\n";
    let version = |more: &str| deployment("web", more) + secret + &job("true");
    let (code, said) = bench.apply("web", &version(""));
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("web", "good");
    let ran = bench.get("job/once", "{.metadata.uid}");
    deploy_other(&bench);
    // What does not work stays, and until then so does what somebody changes.
    assert_eq!(bench.apps(&["rollback", "web", "--auto", "off"]).0, 0);
    assert_eq!(
        bench.apply("web", &version(", command: [/app/missing]")).0,
        0
    );
    until_every(LOOK, "it failed", SOON, || {
        (bench.why("web").1["change"]["state"] == "failed").then_some(())
    });
    let edit = json!({"stringData": {"p": "two"}}).to_string();
    kubectl(&["-n", &bench.namespace, "patch", "secret/key", "-p", &edit]);
    let today = bench.get("secret/key", "{.data.p}");
    let (code, said) = bench.apps(&["rollback", "web", "--wait"]);
    assert_eq!(code, 0, "{said}");
    let command = "{.spec.template.spec.containers[0].command}";
    assert_eq!(bench.get("deployment/web", command), "");
    assert_eq!(bench.get("secret/key", "{.data.p}"), today);
    assert_eq!(bench.get("job/once", "{.metadata.uid}"), ran);
    // Nor is it put back afterwards, whoever looks, until its manifest is deployed.
    let is_kept = |bench: &Bench| {
        bench.until_all_is_looked_at();
        assert_eq!(bench.get("secret/key", "{.data.p}"), today);
    };
    is_kept(&bench);
    bench.agent.kill();
    bench.agent.start();
    bench.agent.until_linked();
    is_kept(&bench);
    let (code, said) = bench.apps(&["restart", "web", "--wait"]);
    assert_eq!(code, 0, "{said}");
    is_kept(&bench);
    let (code, said) = bench.apply("web", &version(""));
    assert_eq!(code, 0, "{said}");
    until_every(LOOK, "the value of the manifest", SOON, || {
        (bench.get("secret/key", "{.data.p}") != today).then_some(())
    });
}

#[test]
fn going_back_to_an_earlier_revision_keeps_the_secret_of_the_last_good_one() {
    let Some(bench) = Bench::prepared(|agent| agent.with("PIPEOPS_TEST_SOAK_MS", "300")) else {
        return;
    };
    bench.bind();
    let secret = |value: &str| {
        format!(
            "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: key}}\nstringData: {{p: {value}}}\n"
        )
    };
    let ends = |revision: u64, manifests: &str, state: &str| {
        let (code, said) = bench.apply("web", manifests);
        assert_eq!(code, 0, "{said}");
        bench.until_ended("web", revision, state);
    };
    let value = || bench.get("secret/key", "{.data.p}");
    let text = || bench.get("configmap/page", "{.data.text}");
    ends(1, &(map("one") + &secret("one")), "done");
    let other = map("other").replace("page", "other");
    let other = other.replace("text: other", "x: \"1\"");
    assert_eq!(bench.apply("other", &other).0, 0);
    bench.until_verdict("other", "good");
    ends(2, &(map("two") + &secret("two")), "done");
    let today = value();
    let (code, said) = bench.apps(&["rollback", "web", "--to", "1", "--wait"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!((text().as_str(), value()), ("one", today.clone()));
    bench.until_all_is_looked_at();
    assert_eq!(value(), today);

    // The Secret of a version that fails is not kept, whichever revision comes after it.
    assert_eq!(bench.apps(&["rollback", "web", "--auto", "off"]).0, 0);
    let fails = deployment("web", ", envFrom: [{configMapRef: {name: absent}}]");
    ends(
        3,
        &(map("three") + &secret("three") + "---\n" + &fails),
        "failed",
    );
    assert_ne!(value(), today);
    let (code, said) = bench.apps(&["rollback", "web", "--to", "2", "--wait"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!((text().as_str(), value()), ("two", today));
}

/// Deploys the app whose drift says that all apps were looked at.
fn deploy_other(bench: &Bench) {
    let other = map("\"1\"").replace("page", "other").replace("text", "x");
    assert_eq!(bench.apply("other", &other).0, 0);
    bench.until_verdict("other", "good");
}

#[test]
fn going_back_leaves_what_cannot_go_back_and_restores_the_rest() {
    let Some(bench) = Bench::prepared(|agent| agent.with("PIPEOPS_TEST_SOAK_MS", "300")) else {
        return;
    };
    bench.bind();
    let ends = |revision: u64, manifests: &str, state: &str| {
        let (code, said) = bench.apply("web", manifests);
        assert_eq!(code, 0, "{said}");
        bench.until_ended("web", revision, state);
    };
    deploy_other(&bench);
    ends(1, &(deployment("web", "") + &map("one")), "done");
    let bad = deployment("web", ", command: [/app/missing]") + &map("two") + "immutable: true\n";
    ends(2, &bad, "undone");
    let restored = || {
        let command = "{.spec.template.spec.containers[0].command}";
        assert_eq!(bench.get("deployment/web", command), "");
        assert_eq!(bench.get("configmap/page", "{.data.text}"), "two");
    };
    restored();
    bench.until_all_is_looked_at();
    let (code, said) = bench.apps(&["restart", "web", "--wait"]);
    assert_eq!(code, 0, "{said}");
    restored();
}

#[test]
fn a_text_of_a_secret_goes_with_its_manifest_and_is_put_back() {
    let Some(bench) = Bench::prepared(|agent| agent.with("PIPEOPS_TEST_SOAK_MS", "300")) else {
        return;
    };
    bench.bind();
    let ends = |revision: u64, texts: &str| {
        let head = "apiVersion: v1\nkind: Secret\nmetadata: {name: key}";
        let secret = format!("{head}\nstringData: {{{texts}}}\n");
        let (code, said) = bench.apply("web", &secret);
        assert_eq!(code, 0, "{said}");
        bench.until_ended("web", revision, "done");
    };
    let value = |key: &str| bench.get("secret/key", &format!("{{.data.{key}}}"));
    deploy_other(&bench);
    ends(1, "p: one, q: one");
    // Written as texts, a key is ours up to here.
    ends(2, "p: two, q: two");
    ends(3, "p: two");
    assert_eq!((value("p").as_str(), value("q").as_str()), ("dHdv", ""));
    bench.until_all_is_looked_at();
    let edit = json!({"data": {"p": "b25l"}}).to_string();
    kubectl(&["-n", &bench.namespace, "patch", "secret/key", "-p", &edit]);
    until_every(LOOK, "it is put back", SOON, || {
        (value("p") == "dHdv").then_some(())
    });
}

#[test]
fn how_long_a_version_usually_takes_is_learned_and_said() {
    let Some(mut bench) = Bench::prepared(|agent| agent.with("PIPEOPS_TEST_SOAK_MS", "300")) else {
        return;
    };
    bench.bind();
    let ready_after = |delay_s: u32| {
        let probe = format!(
            ", readinessProbe: {{initialDelaySeconds: {delay_s}, exec: {{command: [\"true\"]}}}}"
        );
        deployment("web", &probe)
    };
    assert_eq!(bench.apply("web", &ready_after(4)).0, 0);
    assert!(!bench.apps(&["why", "web"]).1.contains("usually takes"));
    // A verdict is shown a moment before it is in the record.
    let usual_s = until_every(LOOK, "the record has its time", SOON, || {
        bench.why("web").1["usually_s"].as_u64()
    });
    assert!((4..60).contains(&usual_s), "{usual_s}");
    // It is in the record, so that the next agent knows it.
    bench.agent.kill();
    bench.agent.start();
    bench.agent.until_linked();
    assert_eq!(bench.apply("web", &ready_after(3_600)).0, 0);
    let (_, why) = bench.until_verdict("web", "progressing");
    assert_eq!(why["usually_s"], usual_s, "{why:#}");
    let (_, said) = bench.apps(&["why", "web"]);
    assert!(said.contains("  usually takes about "), "{said}");
    assert_eq!(bench.apps(&["cancel", "web"]).0, 0);
}

#[test]
fn an_app_whose_namespace_was_deleted_by_hand_is_removed() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let (code, said) = bench.apply("web", &map("one"));
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("web", "soaking");
    kubectl(&["delete", "namespace", &bench.namespace, "--wait=true"]);
    let (code, said) = bench.apps(&["remove", "web"]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = bench.apps(&["list"]);
    assert!(code == 0 && !said.contains("web"), "{said}");
}
