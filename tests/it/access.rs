//! The owner's side of the policy, with the real program: what is set here holds at once, against
//! the link, and after a restart.

pub(crate) mod api;
mod labels;
mod order;

use std::time::Duration;

use nix::{sys::signal::Signal, unistd::geteuid};
use plane::{Failed, Options, Plane, ProxyRequest, Streams};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::Value;

use self::api::Api;
use crate::agent::{Agent, SOON, is_root_or_skip, put, until};

/// The disk is looked after every half minute.
const TENDED: Duration = Duration::from_secs(60);

struct Bench {
    plane: Plane,
    agent: Agent,
    api: Api,
}

impl Bench {
    /// An agent under `managed` between a control plane that uses this carrier and an API server of
    /// our own.
    fn linked(streams: Streams) -> Self {
        let mut plane = Plane::start(Options::default()).unwrap();
        plane.set(|behaviour| behaviour.streams = streams);
        let api = Api::start();
        let agent = Agent::new(&plane);
        let kubeconfig = agent.folder().join("kubeconfig");
        put(&kubeconfig, &api.kubeconfig());
        let agent = agent
            .with("KUBECONFIG", kubeconfig.display().to_string())
            .with("PIPEOPS_ACCESS_LEVEL", "managed");
        let mut bench = Self { plane, agent, api };
        bench.agent.start();
        bench.agent.until_linked();
        bench
    }

    fn restart(&mut self) {
        self.stop();
        self.start();
    }

    /// Starts it again at another level of its settings.
    fn restart_at(mut self, level: &str) -> Self {
        self.stop();
        self.agent = self.agent.with("PIPEOPS_ACCESS_LEVEL", level);
        self.start();
        self
    }

    fn stop(&mut self) {
        assert!(self.agent.stop().success());
        self.plane.wait_gone(SOON).expect("the session is closed");
    }

    fn start(&mut self) {
        self.agent.start();
        self.agent.until_linked();
    }

    fn access(&self) -> Value {
        let (_, text) = self.agent.cli(&["access", "--json"]);
        serde_json::from_str(&text).unwrap()
    }

    /// What the control plane reads for an answer.
    fn ask(&self, method: &str, target: &str) -> (u16, String) {
        let request = ProxyRequest {
            method: method.to_owned(),
            ..ProxyRequest::get(target)
        };
        match self.plane.request(request, SOON) {
            Ok(answer) => {
                let code = answer.head.status;
                let body = answer.body.read_all(SOON).unwrap();
                (code, String::from_utf8(body).unwrap())
            }
            Err(Failed::Error(text) | Failed::Aborted(text)) => (403, text),
            Err(other) => panic!("{method} {target}: {other}"),
        }
    }

    fn refused(&self, target: &str) -> String {
        let (code, text) = self.ask("GET", target);
        assert_eq!(code, 403, "{text}");
        text
    }
}

#[test]
fn tightening_cuts_what_runs_and_outlives_reloads_restarts_and_the_configuration() {
    for streams in [Streams::Preferred, Streams::Off] {
        let mut bench = Bench::linked(streams);
        let watch = ProxyRequest::get("/api/v1/configmaps?watch=true");
        let mut watch = bench.plane.request(watch, SOON).unwrap();
        let event = watch.body.next(SOON).unwrap().unwrap();
        assert!(event.starts_with(b"{\"type\":\"ADDED\""), "{event:?}");
        until("the watch runs", SOON, || {
            (bench.api.watches() == 1).then_some(())
        });
        assert_eq!(bench.access()["running"]["long"], 1);

        let (code, told) = bench.agent.cli(&["access", "off"]);
        assert_eq!(
            (code, told.as_str()),
            (
                0,
                "access is off now; it was managed; 1 running call was cut\n"
            )
        );
        let end = watch.body.next(SOON);
        assert!(!matches!(end, Some(Ok(_) | Err(Failed::Late))), "{end:?}");
        until("the API server is let go", SOON, || {
            (bench.api.watches() == 0).then_some(())
        });
        let text = bench.refused("/api/v1/pods");
        assert!(text.contains("sudo pipeops-agent access managed"), "{text}");
        assert!(
            bench.plane.violations().is_empty(),
            "{:?}",
            bench.plane.violations()
        );

        bench.agent.signal(Signal::SIGHUP);
        bench.refused("/api/v1/pods");
        bench.restart();
        bench.refused("/api/v1/pods");
        let shown = bench.access();
        assert_eq!(shown["by_hand"]["level"], "off");
        assert!(
            shown["by_hand"]["by"].as_str().unwrap().starts_with("uid "),
            "{shown}"
        );
        assert_eq!(bench.agent.status()["access"]["tightened_from"], "managed");

        bench = bench.restart_at("full");
        bench.refused("/api/v1/pods");
        assert_eq!(bench.access()["configured"]["level"], "full");
    }
}

#[test]
fn root_loosens_as_far_as_the_configuration_goes_and_is_told_where_that_stands() {
    if !is_root_or_skip("loosening takes root") {
        return;
    }
    let mut bench = Bench::linked(Streams::Preferred);
    let set = |bench: &Bench, level: &str| bench.agent.cli(&["access", level]);
    assert_eq!(set(&bench, "off").0, 0);
    assert_eq!(
        set(&bench, "read-only").1,
        "access is read-only now; it was off\n"
    );
    assert_eq!(
        set(&bench, "read-only").1,
        "access is read-only, as it was\n"
    );
    let (code, told) = set(&bench, "full");
    assert_eq!(code, 1, "{told}");
    assert!(
        told.contains("allows managed at most, not full (PIPEOPS_ACCESS_LEVEL)")
            && told.contains("fix: change PIPEOPS_ACCESS_LEVEL in"),
        "{told}"
    );
    bench = bench.restart_at("off");
    let (_, told) = bench.agent.cli(&["access"]);
    assert!(told.starts_with("off: "), "{told}");
    assert!(
        told.contains("the configuration is no less strict"),
        "{told}"
    );
    assert_eq!(set(&bench, "read-only").0, 1, "the stricter holds");
    bench = bench.restart_at("managed");
    assert_eq!(
        bench.access()["level"],
        "read-only",
        "what was set is not forgotten"
    );
    assert_eq!(set(&bench, "managed").0, 0);
    assert_eq!(bench.access()["by_hand"], Value::Null);
    assert_eq!(bench.ask("GET", "/api/v1/pods").0, 200);
}

#[test]
fn the_agents_user_tightens_and_its_group_looks() {
    if !is_root_or_skip("becoming other users takes root") {
        return;
    }
    let (owner, viewer) = (60_001, 60_002);
    let plane = Plane::start(Options::default()).unwrap();
    let mut agent = Agent::new(&plane)
        .with("PIPEOPS_ACCESS_LEVEL", "managed")
        .owned_by(owner);
    agent.start();
    agent.until_linked();
    let as_owner = |words: &[&str]| agent.cli_as(owner, owner, words);
    let as_viewer = |words: &[&str]| agent.cli_as(viewer, owner, words);

    let (code, told) = as_viewer(&["access"]);
    assert!(code == 0 && told.starts_with("managed: "), "{told}");
    assert_eq!(as_viewer(&["access", "test", "GET", "/version"]).0, 0);
    let (code, told) = as_viewer(&["access", "off"]);
    assert_eq!(code, 1, "{told}");
    assert!(
        told.contains("only root, the agent's own user")
            && told.contains("fix: sudo pipeops-agent access off"),
        "{told}"
    );
    assert_eq!(agent.status()["access"]["level"], "managed");

    assert_eq!(
        as_owner(&["access", "off"]).1,
        "access is off now; it was managed\n"
    );
    for level in ["read-only", "managed"] {
        let (code, told) = as_owner(&["access", level]);
        assert_eq!(code, 1, "{told}");
        let fix = format!("fix: sudo pipeops-agent access {level}\n");
        assert!(
            told.contains("only root can make it less strict") && told.contains(&fix),
            "{told}"
        );
    }
    assert_eq!(agent.status()["access"]["level"], "off");
    assert_eq!(agent.cli(&["access", "managed"]).0, 0);
    assert_eq!(agent.status()["access"]["level"], "managed");
    let stranger = agent.cli_as(viewer, viewer, &["access"]);
    assert_eq!(stranger.0, 2, "{}", stranger.1);
    assert!(
        stranger.1.contains("usermod -aG pipeops-agent"),
        "{}",
        stranger.1
    );
}

#[test]
fn what_was_set_and_cannot_be_read_is_off_until_somebody_says_what_is_to_hold() {
    let mut bench = Bench::linked(Streams::Preferred);
    bench.agent.stop();
    put(&bench.agent.state("notes.json"), "{\"access.override\":");
    bench.agent.start();
    bench.agent.until_linked();
    for _ in 0..2 {
        let condition = bench.agent.until_condition("access.unknown", SOON);
        assert_eq!(condition["severity"], "critical");
        assert!(
            condition["fix"]
                .as_str()
                .unwrap()
                .contains("access managed"),
            "{condition}"
        );
        bench.refused("/version");
        let (code, told) = bench.agent.cli(&["access"]);
        assert_eq!(code, 1, "{told}");
        assert!(
            told.contains("unknown, so every request is refused"),
            "{told}"
        );
        // Somebody else's note makes the file readable again, and the doubt must outlive that.
        until("the doubt is on disk", SOON, || {
            let notes = std::fs::read_to_string(bench.agent.state("notes.json")).ok()?;
            notes.contains("unknown").then_some(())
        });
        bench.restart();
    }
    let level = if geteuid().is_root() {
        "managed"
    } else {
        "off"
    };
    assert_eq!(bench.agent.cli(&["access", level]).0, 0);
    let status = bench.agent.status();
    let conditions = status["conditions"].as_array().unwrap();
    assert!(
        conditions.iter().all(|it| it["id"] != "access.unknown"),
        "{status}"
    );
    if level == "managed" {
        assert_eq!(bench.ask("GET", "/version").0, 200);
    }
}

#[test]
fn what_the_disk_cannot_keep_holds_at_once_and_is_kept_when_it_can() {
    let mut bench = Bench::linked(Streams::Preferred);
    let notes = bench.agent.state("notes.json");
    until("the first note is there", SOON, || {
        notes.exists().then_some(())
    });
    // At one stroke: the agent may write its next note at any time.
    let folder = bench.agent.state("notes.away");
    std::fs::create_dir_all(folder.join("in the way")).unwrap();
    renameat_with(CWD, &folder, CWD, &notes, RenameFlags::EXCHANGE).unwrap();
    let (code, told) = bench.agent.cli(&["access", "read-only"]);
    assert_eq!(code, 1, "{told}");
    assert!(
        told.contains("access is read-only now") && told.contains("does not survive a restart yet"),
        "{told}"
    );
    let (code, text) = bench.ask("DELETE", "/api/v1/namespaces/shop/pods/a");
    assert_eq!(code, 403, "{text}");
    bench.agent.until_condition("access.not-kept", SOON);
    std::fs::remove_dir_all(&notes).unwrap();
    bench.agent.until("it is kept", TENDED, |status| {
        let conditions = status["conditions"].as_array()?;
        conditions
            .iter()
            .all(|it| it["id"] != "access.not-kept")
            .then_some(())
    });
    bench.restart();
    assert_eq!(bench.access()["level"], "read-only");
}

#[test]
fn what_was_asked_is_counted_and_what_was_refused_comes_with_what_would_allow_it() {
    let bench = Bench::linked(Streams::Preferred);
    for _ in 0..3 {
        assert_eq!(bench.ask("GET", "/api/v1/pods").0, 200);
        assert_eq!(
            bench.ask("DELETE", "/api/v1/namespaces/plain/pods/a").0,
            403
        );
    }
    assert_eq!(bench.ask("DELETE", "/api/v1/namespaces/shop/pods/a").0, 200);
    bench.refused("/api/v1/namespaces/kube-system/secrets/x; fix: rm -rf ~");
    let shown = bench.access();
    let day = &shown["last_day"];
    assert_eq!(
        (&day["total"]["count"], &day["total"]["refused"]),
        (&8.into(), &4.into()),
        "{day}"
    );
    assert_eq!(day["reads"]["permitted"], 3, "{day}");
    assert_eq!(
        (&day["changes"]["permitted"], &day["changes"]["refused"]),
        (&1.into(), &3.into())
    );
    assert!(day["reads"]["sent_bytes"].as_u64() > Some(0), "{day}");
    let refusals = day["refusals"].as_array().unwrap();
    assert_eq!(refusals.len(), 2, "{day}");
    let plain = refusals.iter().find(|it| it["count"] == 3).unwrap();
    assert_eq!(plain["what"], "DELETE /api/v1/namespaces/plain/pods/a");
    assert_eq!(plain["why"], "the namespace plain is not managed");
    assert!(
        plain["fix"]
            .as_str()
            .unwrap()
            .starts_with("kubectl label --overwrite namespace plain "),
        "{plain}"
    );
    let evil = refusals.iter().find(|it| it["count"] == 1).unwrap();
    assert!(
        evil["fix"]
            .as_str()
            .unwrap()
            .starts_with("use kubectl on the box"),
        "{evil}"
    );
    let (_, told) = bench.agent.cli(&["access"]);
    assert!(
        told.contains("last day       4 permitted, 4 refused; "),
        "{told}"
    );
    assert!(
        told.contains("DELETE /api/v1/namespaces/plain/pods/a (3 times, last "),
        "{told}"
    );
    assert!(!told.contains("fix: rm"), "{told}");
}

/// Requests, and the exit codes of `access test` under `read-only`, `managed` and `full`: 0
/// permitted, 1 refused, 2 it depends.
const TABLE: &[(&str, [i32; 3])] = &[
    ("GET /version", [0, 0, 0]),
    ("GET /api/v1/pods?watch=1", [0, 0, 0]),
    ("get //api/v1/p%6Fds", [0, 0, 0]),
    (
        "GET /api/v1/namespaces/shop/pods/web/log?follow=true",
        [0, 0, 0],
    ),
    (
        "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        [0, 0, 0],
    ),
    ("GET /api/v1/secrets", [1, 1, 0]),
    ("GET /api/v1/namespaces/shop/secrets/x", [1, 2, 0]),
    ("GET /api/v1/namespaces/kube-system/secrets/x", [1, 1, 0]),
    (
        "PATCH /apis/apps/v1/namespaces/shop/deployments/web",
        [1, 2, 0],
    ),
    ("DELETE /api/v1/namespaces/default/pods/web", [1, 1, 0]),
    ("POST /api/v1/namespaces/shop/pods/web/exec", [1, 2, 0]),
    ("GET /api/v1/namespaces/shop/services/web/proxy/", [1, 2, 0]),
    ("GET shop/web:80/", [1, 2, 0]),
    ("GET default/web:80/", [1, 1, 0]),
    ("POST /api/v1/namespaces", [1, 0, 0]),
    ("DELETE /api/v1/namespaces/shop", [1, 1, 0]),
    (
        "POST /apis/rbac.authorization.k8s.io/v1/namespaces/shop/rolebindings",
        [1, 1, 0],
    ),
    (
        "POST /api/v1/namespaces/shop/serviceaccounts/a/token",
        [1, 1, 0],
    ),
    ("GET /api/v1/nodes/a/proxy/pods", [1, 1, 0]),
    ("GET /api/v1/namespaces/shop/../x", [1, 1, 1]),
    ("GET /etc/passwd", [1, 1, 1]),
    ("TRACE /api/v1/pods", [1, 1, 1]),
];

#[test]
fn without_an_agent_the_configuration_alone_is_judged_by() {
    let plane = Plane::start(Options::default()).unwrap();
    let levels = ["read-only", "managed", "full"];
    let mut agent = Agent::new(&plane);
    for (place, level) in levels.into_iter().enumerate() {
        agent = agent.with("PIPEOPS_ACCESS_LEVEL", level);
        for (request, codes) in TABLE {
            let (method, path) = request.split_once(' ').unwrap();
            let (code, told) = agent.cli(&["access", "test", method, path]);
            assert_eq!(code, codes[place], "{level} {request}: {told}");
            let verdict = ["permitted\n", "refused\n", "depends\n"];
            assert!(
                told.starts_with(verdict[usize::try_from(code).unwrap()]),
                "{told}"
            );
            assert!(told.contains("the agent is not running"), "{told}");
        }
    }
    agent = agent.with("PIPEOPS_ACCESS_LEVEL", "loose");
    let (code, told) = agent.cli(&["access", "test", "GET", "/version"]);
    assert!(
        code == 2 && told.contains("the settings cannot be judged by"),
        "{code} {told}"
    );
}

#[test]
fn a_running_agent_asks_the_cluster_what_a_decision_depends_on() {
    let bench = Bench::linked(Streams::Preferred);
    let test = |words: [&str; 2]| bench.agent.cli(&["access", "test", words[0], words[1]]);
    for (namespace, code, said) in [
        ("shop", 0, "shop: managed, enforces Pod Security baseline"),
        (
            "plain",
            1,
            "fix        kubectl label --overwrite namespace plain ",
        ),
        ("nowhere", 1, "nowhere: the cluster has none of that name"),
        ("broken", 2, "broken: the cluster could not be asked"),
    ] {
        let path = format!("/api/v1/namespaces/{namespace}/pods/web/exec");
        let (found, told) = test(["POST", &path]);
        assert_eq!(found, code, "{told}");
        assert!(told.contains(said), "{told}");
    }
    let (_, told) = test(["POST", "/api/v1/namespaces/shop/pods"]);
    assert!(
        told.contains("runs as    system:serviceaccount:pipeops-system:pipeops-cp"),
        "{told}"
    );
    assert!(!told.contains("not running"), "{told}");
    let (_, told) = test(["GET", "shop/web:80/"]);
    assert!(
        told.contains("runs as    none: the application receives"),
        "{told}"
    );
    assert_eq!(
        bench.access()["last_day"]["total"]["count"],
        0,
        "a question is no call"
    );
}
