//! Automatic rollback that is off for one app: what does not work stays until a person goes back.

use serde_json::json;

use super::{Bench, SOON, deployment, drift::LOOK};
use crate::agent::until_every;

fn version(text: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: page}}\ndata: {{text: {text}}}\n---\n{}",
        deployment("web", more)
    )
}

#[test]
fn a_bad_version_stays_where_automatic_rollback_is_off_and_the_rest_goes_on() {
    let Some(mut bench) = Bench::prepared(|agent| agent.with("PIPEOPS_TEST_SOAK_MS", "300")) else {
        return;
    };
    bench.bind();
    let says = |bench: &Bench, words: &[&str], code: i32, part: &str| {
        let (ended, said) = bench.apps(words);
        assert!(ended == code && said.contains(part), "{ended}: {said}");
    };
    let (code, said) = bench.apply("web", &version("one", ""));
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("web", "good");
    let auto = |word| ["rollback", "web", "--auto", word];
    says(&bench, &auto("never"), 2, "use 'on' or 'off'");
    says(&bench, &auto(""), 2, "use 'on' or 'off'");
    let both = ["rollback", "web", "--auto", "off", "--to", "1"];
    says(&bench, &both, 2, "rolls nothing back");
    let is_on = r#""auto_rollback": true"#;
    says(&bench, &["show", "web", "--json"], 0, is_on);
    says(&bench, &auto("off"), 0, "web: automatic rollback is off");
    bench.agent.kill();
    bench.agent.start();
    bench.agent.until_linked();
    says(&bench, &["list"], 0, "(automatic rollback is off)");
    says(&bench, &["show", "web"], 0, "apps rollback web --auto on");
    let resumed = "web: it is no longer left alone; automatic rollback stays off";
    says(&bench, &["resume", "web"], 0, resumed);
    assert_eq!(bench.why("web").1["auto_rollback"], false);

    // What somebody edits is still put back.
    let text = |bench: &Bench| bench.get("configmap/page", "{.data.text}");
    let edit = json!({"data": {"text": "edited"}}).to_string();
    crate::cluster::kubectl(&[
        "-n",
        &bench.namespace,
        "patch",
        "configmap/page",
        "-p",
        &edit,
    ]);
    until_every(LOOK, "it is put back", SOON, || {
        (text(&bench) == "one").then_some(())
    });

    let bad = version("two", ", command: [/app/missing]");
    assert_eq!(bench.apply("web", &bad).0, 0);
    let why = until_every(LOOK, "it failed", SOON, || {
        let (_, why) = bench.why("web");
        (why["change"]["state"] == "failed").then_some(why)
    });
    let said = why["change"]["why"].as_str().unwrap();
    assert!(
        said.contains("stays, because automatic rollback is off")
            && said.ends_with("pipeops-agent apps rollback web"),
        "{said}"
    );
    assert_eq!((&why["verdict"], &why["runs"]), (&json!("bad"), &json!(2)));
    assert_eq!(text(&bench), "two");

    let changed = "  Deployment shop/web changed\n    spec.template.spec.containers[0].command: - -> [\"/app/missing\"]";
    let changed = changed.replace("shop", &bench.namespace);
    says(&bench, &["history", "web"], 0, &changed);
    says(&bench, &["history", "web"], 0, "data.text: one -> two");

    says(&bench, &auto("on"), 0, "automatic rollback is on");
    says(&bench, &["rollback", "web", "--wait"], 0, "");
    assert_eq!(text(&bench), "one");
}

#[test]
fn on_the_way_back_the_verdict_is_that_on_the_bad_version() {
    let Some(bench) = Bench::prepared(|agent| agent.with("PIPEOPS_TEST_SOAK_MS", "300")) else {
        return;
    };
    bench.bind();
    assert_eq!(bench.apply("web", &version("one", "")).0, 0);
    bench.until_verdict("web", "good");
    let bad = version("two", ", command: [/app/missing]");
    assert_eq!(bench.apply("web", &bad).0, 0);
    let why = until_every(LOOK, "it goes back", SOON, || {
        let (_, why) = bench.why("web");
        (why["rollback"]["revision"] == 1).then_some(why)
    });
    assert_eq!(
        (&why["revision"], &why["verdict"], &why["cause"]),
        (&json!(2), &json!("bad"), &json!("container.start")),
        "{why:#}"
    );
    assert_ne!(why["rollback"]["verdict"], "bad", "{why:#}");
    let why = until_every(LOOK, "it is back", SOON, || {
        let (_, why) = bench.why("web");
        (why["change"]["state"] == "undone").then_some(why)
    });
    assert_eq!(
        (&why["verdict"], &why["runs"], &why["rollback"]),
        (&json!("bad"), &json!(1), &json!(null))
    );
}
