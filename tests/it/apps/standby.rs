//! Two agents of one cluster: the one that holds the Lease changes and judges apps, and goes on
//! with what the other one began.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Bench, SOON};
use crate::{
    agent::{Agent, clock, put, until_every},
    cluster::kubectl,
};

const LOOK: Duration = Duration::from_millis(300);

/// Another agent of the cluster.
fn second(bench: &Bench) -> Agent {
    let kubeconfig = bench.accounts.kubeconfig("pipeops-agent");
    let mut agent = Agent::new(&bench.plane)
        .with("PIPEOPS_AGENT_ID", "agent-second")
        .with("KUBECONFIG", kubeconfig.display().to_string())
        .with("PIPEOPS_AGENT_NAMESPACE", bench.accounts.namespace())
        .with(
            "PIPEOPS_AGENT_GO_STATE_NAMESPACE",
            bench.accounts.namespace(),
        );
    agent.start();
    until_stands_by(&agent);
    agent
}

fn until_stands_by(agent: &Agent) {
    agent.until("standing by", SOON, |status| {
        (status["link"]["state"] == "standing by").then_some(())
    });
}

/// Answer of an agent about an app, once it is like this.
fn until_why(agent: &Agent, app: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let what = format!("{app} is as it was meant to be");
    until_every(LOOK, &what, SOON, || {
        let (_, said) = Bench::apps_of(agent, &["why", app, "--json"]);
        let why: Value = serde_json::from_str(&said).ok()?;
        is_so(&why).then_some(why)
    })
}

#[test]
fn only_the_holder_of_the_lease_changes_apps_and_goes_on_with_what_others_began() {
    let Some(bench) = Bench::prepared(|agent| agent.with("PIPEOPS_AGENT_ID", "agent-first")) else {
        return;
    };
    bench.bind();
    let map = |name: &str, more: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}{more}}}\n")
    };
    let mut second = second(&bench);
    let (code, said) = bench.apply("web", &map("web", ""));
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("web", "soaking");
    // Its removal waits for somebody.
    let (code, said) = bench.apply("gone", &map("gone", ", finalizers: [test.example/wait]"));
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("gone", "soaking");
    let (code, said) = bench.apps(&["remove", "gone"]);
    assert!(code == 2 && said.contains("finalizers"), "{said}");

    changes_nothing_and_says_who_does(&bench, &second);

    // The holder is stopped: what it had under way goes on elsewhere.
    let began = clock();
    bench.agent.signal(Signal::SIGSTOP);
    until_why(&second, "gone", |why| why["cause"] == "object.finalizer");
    println!("taken over within {} ms", (clock() - began).as_millis());
    until_why(&second, "web", |why| {
        why["verdict"] == "soaking" && why["standing_by"].is_null()
    });
    let patch = r#"{"metadata":{"finalizers":null}}"#;
    let patch = ["patch", "configmap", "gone", "--type=merge", "-p", patch];
    kubectl(&[&["-n", &bench.namespace], patch.as_slice()].concat());
    until_every(LOOK, "it is removed", SOON, || {
        (!Bench::apps_of(&second, &["list"]).1.contains("gone")).then_some(())
    });
    let gone = bench.agent.folder().join("gone.yaml");
    put(&gone, &map("gone", ""));
    let gone = gone.display().to_string();
    let words = ["apply", "-f", &gone, "--namespace", &bench.namespace];
    let (code, said) = Bench::apps_of(&second, &words);
    assert_eq!(code, 0, "{said}");
    until_why(&second, "gone", |why| why["verdict"] == "soaking");
    let versions = || {
        let own = ["-n", bench.accounts.namespace(), "get", "secrets", "-o"];
        let fields = r#"jsonpath={range .items[?(@.type=="pipeops.io/app")]}{.metadata.name}={.metadata.resourceVersion} {end}"#;
        kubectl(&[&own[..], &[fields]].concat())
            + &bench.get("configmaps", "{.items[*].metadata.resourceVersion}")
    };
    let before = versions();
    assert!(before.contains("pipeops-app.gone="), "{before}");

    // The one that was stopped was about to forget the app of this name.
    bench.agent.signal(Signal::SIGCONT);
    until_stands_by(&bench.agent);
    until_every(LOOK, "it leaves them alone", SOON, || {
        bench
            .agent
            .log()
            .contains("app gone: another agent goes on")
            .then_some(())
    });
    assert_eq!(before, versions());

    // When it is its turn again, it goes on with what the other one began, and not with its own.
    assert!(second.stop().success());
    until_why(&bench.agent, "gone", |why| {
        why["verdict"] == "soaking" && why["standing_by"].is_null()
    });
    assert!(bench.objects("configmaps").contains("configmap/gone"));
    assert_eq!(bench.apps(&["remove", "gone"]).0, 0);
}

fn changes_nothing_and_says_who_does(bench: &Bench, second: &Agent) {
    let holder = "agent agent-first on host ";
    let file = bench.agent.folder().join("web.yaml").display().to_string();
    let words = ["apply", "-f", &file, "--namespace", &bench.namespace];
    for words in [
        &words[..],
        &["remove", "web"],
        &["pause", "web"],
        &["rollback", "web"],
    ] {
        let (code, said) = Bench::apps_of(second, words);
        assert!(
            code == 2 && said.contains("nothing was changed") && said.contains(holder),
            "{said}"
        );
    }
    let (_, said) = Bench::apps_of(second, &["list"]);
    assert!(
        said.contains("changes and judges no apps now") && said.contains(holder),
        "{said}"
    );
    let why = until_why(second, "web", |_| true);
    assert_eq!(
        (&why["verdict"], &why["change"]["state"]),
        (&"waiting".into(), &"under way".into()),
        "{why:#}"
    );
}
