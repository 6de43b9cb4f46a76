//! Two agents of one cluster: the one that holds the Lease changes and judges apps, and goes on
//! with what the other one began.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::{
    Bench, SOON,
    half_written::{leave_policy, refuse_in},
};
use crate::{
    agent::{Agent, clock, command, put, until_every},
    cluster::{admin, kubectl, variable},
    lease::{TAKEN_OVER_WITHIN, faketime, in_another_time, never_two_links},
};

const LOOK: Duration = Duration::from_millis(300);

/// Another agent of the cluster, prepared before it starts.
fn another(bench: &Bench, name: &str, prepare: impl FnOnce(Agent) -> Agent) -> Agent {
    let kubeconfig = bench.accounts.kubeconfig("pipeops-agent");
    let agent = Agent::new(&bench.plane)
        .with("PIPEOPS_AGENT_ID", name)
        .with("KUBECONFIG", kubeconfig.display().to_string())
        .with("PIPEOPS_AGENT_NAMESPACE", bench.accounts.namespace())
        .with(
            "PIPEOPS_AGENT_GO_STATE_NAMESPACE",
            bench.accounts.namespace(),
        );
    let mut agent = prepare(agent);
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

/// The conditions of what is wrong with sources.
const OF_SOURCES: [&str; 2] = ["apps.folder", "apps.source"];

/// The agent that is the first, with a file that names no app, and one that is no manifest.
fn with_odd_files(agent: Agent) -> Agent {
    let folder = agent.folder().join("apps");
    std::fs::create_dir(&folder).unwrap();
    put(&folder.join("Odd.yaml"), "");
    put(&folder.join("broken.yaml"), "a: [");
    let agent = agent.with("PIPEOPS_AGENT_ID", "agent-first");
    agent.with("PIPEOPS_APPS_FOLDER", folder.display().to_string())
}

/// What is wrong with its own sources is of no interest while an agent deploys nothing.
fn until_no_source_is_reported(agent: &Agent) {
    agent.until("no source is reported", SOON, |status| {
        let ids = status["conditions"].as_array()?.iter();
        let mut ids = ids.filter_map(|condition| condition["id"].as_str());
        (!ids.any(|id| OF_SOURCES.contains(&id))).then_some(())
    });
}

#[test]
fn only_the_holder_of_the_lease_changes_apps_and_goes_on_with_what_others_began() {
    let Some(bench) = Bench::prepared(with_odd_files) else {
        return;
    };
    bench.bind();
    let map = |name: &str, more: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}{more}}}\n")
    };
    let mut second = another(&bench, "agent-second", |agent| agent);
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
    until_no_source_is_reported(&bench.agent);
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
    for id in OF_SOURCES {
        bench.agent.until_condition(id, SOON);
    }
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

#[test]
fn a_take_over_that_cannot_write_the_record_goes_on_once_it_can() {
    let Some(mut bench) = Bench::prepared(|agent| agent.with("PIPEOPS_AGENT_ID", "agent-first"))
    else {
        return;
    };
    bench.bind();
    let second = another(&bench, "agent-second", |agent| agent);
    let (code, said) = bench.apply("web", MAP);
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("web", "soaking");
    let own = bench.accounts.namespace();
    let policy = format!("no-record.{own}");
    let record = "object.metadata.name != 'pipeops-app.web'";
    refuse_in(&bench, &policy, ((own, "secrets"), ("UPDATE", record)));
    until_every(LOOK, "the record is not written", SOON, || {
        let mut tried = command(variable("KUBECTL"));
        tried.arg("--kubeconfig").arg(admin()).args(["-n", own]);
        tried.args(["label", "secret/pipeops-app.web", "--dry-run=server", "a=b"]);
        (!tried.output().unwrap().status.success()).then_some(())
    });
    bench.agent.kill();
    until_every(LOOK, "it could not be taken over", SOON, || {
        let log = second.log();
        let is_said = log.contains("app web does not go on with what was under way");
        is_said.then_some(())
    });
    leave_policy(&policy);
    until_why(&second, "web", |why| why["verdict"] == "soaking");
}

/// Clocks that are hours apart, and a holder that is stopped, killed, and ends: the next one goes
/// on with the app in time, and one alone changes it.
#[test]
fn agents_whose_clocks_are_hours_apart_follow_each_other() {
    let Some(library) = faketime() else {
        println!("skipped: libfaketime is not installed: tests/setup test installs it");
        return;
    };
    let named = |agent: Agent| agent.with("PIPEOPS_AGENT_ID", "agent-0");
    let Some(mut bench) = Bench::prepared(|agent| in_another_time(named(agent), &library, "+5h"))
    else {
        return;
    };
    bench.bind();
    let mut others = [("agent-1", "+0"), ("agent-2", "+11h")].map(|(name, shift)| {
        another(&bench, name, |agent| {
            in_another_time(agent, &library, shift)
        })
    });
    let hour = |agent: &Agent| agent.log().get(..13).map(str::to_owned);
    assert_ne!(hour(&bench.agent), hour(&others[0]));
    assert_ne!(hour(&others[0]), hour(&others[1]));
    let (code, said) = bench.apply("web", MAP);
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("web", "soaking");
    one_alone_changes(&[&bench.agent, &others[0], &others[1]], &bench);

    // The holder knows of them by now: one that is alone renews the Lease less often.
    until_every(LOOK, "rivals are known", SOON, || {
        let own = bench.accounts.namespace();
        let seconds = "jsonpath={.spec.leaseDurationSeconds}";
        let lease = kubectl(&["-n", own, "get", "lease/pipeops-agent", "-o", seconds]);
        (lease == "12").then_some(())
    });
    // Stopped, and going on when another one has the Lease.
    let began = clock();
    bench.agent.signal(Signal::SIGSTOP);
    let next = until_goes_on(&[&others[0], &others[1]]);
    let stopped = clock() - began;
    bench.agent.signal(Signal::SIGCONT);
    until_stands_by(&bench.agent);
    one_alone_changes(&[&bench.agent, &others[0], &others[1]], &bench);

    let began = clock();
    others[next].kill();
    let left = &others[1 - next];
    let third = until_goes_on(&[&bench.agent, left]);
    let killed = clock() - began;
    one_alone_changes(&[&bench.agent, left], &bench);

    let began = clock();
    let (holder, last) = if third == 0 {
        (&mut bench.agent, &others[1 - next])
    } else {
        (&mut others[1 - next], &bench.agent)
    };
    assert!(holder.stop().success());
    until_goes_on(&[last]);
    let ended = clock() - began;
    never_two_links(&bench.plane);
    let took = [stopped, killed, ended];
    println!("taken over: stopped, killed, ended {took:?}");
    assert!(
        took.iter().all(|took| *took <= TAKEN_OVER_WITHIN),
        "{took:?}"
    );
}

const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\n";

/// Waits until one of these agents goes on with the app.
fn until_goes_on(agents: &[&Agent]) -> usize {
    until_every(LOOK, "another agent goes on", SOON, || {
        agents.iter().position(|agent| {
            let (_, said) = Bench::apps_of(agent, &["why", "web", "--json"]);
            let why: Value = serde_json::from_str(&said).unwrap_or_default();
            why["verdict"] == "soaking" && why["standing_by"].is_null()
        })
    })
}

/// Of all agents that are asked at once, one accepts a change.
fn one_alone_changes(agents: &[&Agent], bench: &Bench) {
    let file = bench.agent.folder().join("web.yaml").display().to_string();
    let words = ["apply", "-f", &file, "--namespace", &bench.namespace];
    let codes: Vec<_> = std::thread::scope(|scope| {
        let (words, mut asked) = (&words, Vec::new());
        for &agent in agents {
            asked.push(scope.spawn(move || Bench::apps_of(agent, words).0));
        }
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let accepted = codes.iter().filter(|code| **code == 0).count();
    assert_eq!(accepted, 1, "{codes:?}");
}
