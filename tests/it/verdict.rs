//! The verdict follows the world: each change of it is the first line within a stated time, by its
//! code. The sentences are in `src/core/verdict/sentences.txt`.
//!
//! `PIPEOPS_VERDICT_TRIES=10` makes each change ten times and prints how long it took: p50 and the
//! longest.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use plane::{Cut, Options, Plane, Sessions};
use serde_json::Value;

use crate::{
    accounts::{Accounts, GrantScope},
    agent::{Agent, clock, until},
    cluster::{admin, alone, calm, cluster, command, kubectl, leave, must},
};

/// Longest time from a change to a true first line, while somebody asks: 10 s of silence and one
/// question, on a busy machine.
const SILENT: Duration = Duration::from_secs(30);
/// The same for what the API server or the kubelet tells by itself.
const TOLD: Duration = Duration::from_secs(30);
/// The same for the link, whose dials back off.
const DIALLED: Duration = Duration::from_secs(60);
/// The code of a cluster that does not answer.
const UNREACHABLE: &str = "cluster.unreachable";
/// Longest time that a sentence may outlive its cause.
const OUTLIVED: Duration = Duration::from_secs(30);

fn tries() -> usize {
    let tries = std::env::var_os("PIPEOPS_VERDICT_TRIES");
    let tries = tries.and_then(|tries| tries.to_str()?.parse().ok());
    tries.unwrap_or(1)
}

/// How long changes of one kind took to be the first line.
struct Times(&'static str, Vec<Duration>);

impl Times {
    fn of(change: &'static str) -> Self {
        Self(change, Vec::new())
    }

    /// Waits until the verdict is as it should be.
    fn take(
        &mut self,
        agent: &Agent,
        since: Instant,
        limit: Duration,
        is: impl Fn(&Value) -> bool,
    ) {
        let verdict = until(self.0, limit, || {
            let verdict = verdict(agent);
            is(&verdict).then_some(verdict)
        });
        self.1.push(clock() - since);
        is_whole(&verdict);
    }
}

impl Drop for Times {
    fn drop(&mut self) {
        self.1.sort();
        if let (Some(p50), Some(longest)) = (self.1.get(self.1.len() / 2), self.1.last()) {
            let (change, count) = (self.0, self.1.len());
            println!("figure: {change}: p50 {p50:.1?}, max {longest:.1?} of {count}");
        }
    }
}

fn verdict(agent: &Agent) -> Value {
    agent.status()["verdict"].clone()
}

fn part<'a>(verdict: &'a Value, id: &str) -> &'a Value {
    let parts = verdict["parts"].as_array().unwrap();
    parts.iter().find(|part| part["id"] == id).unwrap()
}

/// Five parts, and the worst of them is the headline.
fn is_whole(verdict: &Value) {
    let parts = verdict["parts"].as_array().unwrap();
    let ids: Vec<_> = parts
        .iter()
        .map(|part| part["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["agent", "link", "machine", "cluster", "workloads"]);
    if ["warning", "critical"].contains(&verdict["severity"].as_str().unwrap()) {
        let own = part(verdict, verdict["part"].as_str().unwrap());
        assert_eq!(own["severity"], verdict["severity"], "{verdict}");
        assert!(verdict["since"].is_string(), "{verdict}");
    }
}

/// Returns whether the cluster's part says that it does not answer: the machine may have a worse
/// problem.
fn is_silent(verdict: &Value) -> bool {
    part(verdict, "cluster")["code"] == UNREACHABLE
}

fn is(code: &str) -> impl Fn(&Value) -> bool {
    move |verdict| part(verdict, "link")["code"] == code
}

fn is_not(code: &str) -> impl Fn(&Value) -> bool {
    move |verdict| part(verdict, "link")["code"] != code
}

fn step(agent: &Agent, id: &str) -> Value {
    let diagnosis = agent.view("/api/v1/diagnosis");
    let mut steps = diagnosis["steps"].as_array().unwrap().iter();
    steps.find(|step| step["id"] == id).unwrap().clone()
}

fn agent_of_the_cluster(plane: &Plane) -> Agent {
    let mut agent = Agent::new(plane).with("KUBECONFIG", admin().display().to_string());
    agent.start();
    agent.until("link and cluster are ready", DIALLED, |status| {
        let is_ready = status["link"]["state"] == "ready" && status["cluster"]["state"] == "ready";
        is_ready.then_some(())
    });
    agent
}

/// The cluster is whole again when this goes, whatever became of the test.
struct Mended<'a>(&'a Path);

impl Drop for Mended<'_> {
    fn drop(&mut self) {
        for verb in ["mend", "start-apiserver"] {
            command(verb, self.0, &[]);
        }
    }
}

#[test]
fn a_cluster_that_falls_silent_or_stops_is_the_first_line_in_time() {
    let Some(_held) = alone() else { return };
    let _mended = Mended(cluster().unwrap());
    let plane = Plane::start(Options::default()).unwrap();
    let agent = agent_of_the_cluster(&plane);
    let (mut cut, mut mended) = (Times::of("cluster cut"), Times::of("cluster mended"));
    let (mut stopped, mut started) = (
        Times::of("API server stopped"),
        Times::of("API server started"),
    );
    for _ in 0..tries() {
        let since = clock();
        must("cut", &["drop"]);
        cut.take(&agent, since, SILENT, is_silent);
        let status = agent.status();
        // Numbers carry their age, and nobody says that both sides work.
        assert!(status["cluster"]["age_s"].as_u64() >= Some(9), "{status}");
        assert_eq!(status["cluster"]["state"], "unreachable");
        let (exit, told) = agent.cli(&["status"]);
        let row = told.lines().find(|line| line.starts_with("cluster"));
        assert!(exit == 1 && row.unwrap().contains(" ago"), "{told}");
        assert_eq!(step(&agent, "cluster")["outcome"], "failed");
        assert_eq!(agent.view("/api/v1/diagnosis")["side"], "node");
        let since = clock();
        must("mend", &[]);
        mended.take(&agent, since, OUTLIVED, |verdict| !is_silent(verdict));
        assert_eq!(step(&agent, "cluster")["outcome"], "ok");

        let since = clock();
        must("stop-apiserver", &[]);
        stopped.take(&agent, since, SILENT, is_silent);
        must("start-apiserver", &[]);
        let since = clock();
        started.take(&agent, since, OUTLIVED, |verdict| !is_silent(verdict));
        agent.until("the watches go on", OUTLIVED, |status| {
            (status["cluster"]["state"] == "ready").then_some(())
        });
    }
}

#[test]
fn a_control_plane_that_is_gone_or_refuses_the_token_is_the_first_line_in_time() {
    let mut plane = Plane::start(Options::default()).unwrap();
    let mut agent = Agent::start_for(&plane);
    agent.until_linked();
    let token = plane.token().to_owned();
    let works = step(&agent, "http");
    assert_eq!(works["outcome"], "ok", "{works}");
    assert!(!works["seen"].as_str().unwrap().contains("HTTP"), "{works}");
    assert_eq!(step(&agent, "session")["outcome"], "ok");
    let (mut gone, mut back) = (
        Times::of("control plane gone"),
        Times::of("control plane back"),
    );
    let (mut refused, mut replaced) = (Times::of("token refused"), Times::of("token replaced"));
    for _ in 0..tries() {
        let since = clock();
        plane.stop();
        gone.take(&agent, since, DIALLED, is("link.down"));
        let diagnosis = agent.view("/api/v1/diagnosis");
        assert_eq!(diagnosis["side"], "control plane", "{diagnosis}");
        plane.start_again().unwrap();
        let since = clock();
        back.take(&agent, since, DIALLED, is_not("link.down"));
        agent.until_linked();

        let since = clock();
        plane.set_token("another");
        plane.cut(Sessions::All, Cut::Reset);
        refused.take(&agent, since, DIALLED, is("link.refused"));
        let session = step(&agent, "session");
        assert_eq!(session["outcome"], "failed", "{session}");
        let seen = session["seen"].as_str().unwrap();
        assert!(seen.starts_with("the token was rejected"), "{session}");
        assert!(session["fix"].is_string(), "{session}");
        let (exit, told) = agent.cli(&["link"]);
        assert!(
            exit == 1 && told.contains("the token was rejected"),
            "{told}"
        );
        said_once(&told, session["seen"].as_str().unwrap());
        plane.set_token(&token);
        let since = clock();
        // The file is another one, so that it is tried at once.
        agent.set_token(&format!("{token}\n"));
        replaced.take(&agent, since, DIALLED, is_not("link.refused"));
        agent.until_linked();
        agent.set_token(&token);
        // It dials later after each session that was short; a start begins anew.
        agent.stop();
        agent.start();
        agent.until_linked();
    }
}

/// A reason is told once by one command, fixes and ages aside.
fn said_once(told: &str, reason: &str) {
    assert_eq!(told.matches(reason).count(), 1, "{told}");
}

#[test]
fn no_command_repeats_its_sentence() {
    let mut plane = Plane::start(Options::default()).unwrap();
    let agent = Agent::start_for(&plane);
    agent.until_linked();
    plane.stop();
    let condition = agent.until_condition("link.down", DIALLED);
    let sentence = condition["sentence"].as_str().unwrap();
    // Without its first letter, which may be a capital one.
    let rest = sentence.get(1..).unwrap();
    let (_, status) = agent.cli(&["status"]);
    assert_eq!(status.matches(rest).count(), 1, "{status}");
    let (_, why) = agent.cli(&["why"]);
    assert_eq!(why.matches(rest).count(), 1, "{why}");
}

#[test]
fn a_pod_without_an_image_is_the_workloads_problem_in_time() {
    let Some(_held) = calm() else { return };
    let plane = Plane::start(Options::default()).unwrap();
    let agent = agent_of_the_cluster(&plane);
    let namespace = "verdict-pods";
    kubectl(&["create", "namespace", namespace]);
    let named = |verdict: &Value| {
        let workloads = part(verdict, "workloads");
        workloads["code"] == "workloads.not-ready"
            && workloads["sentence"]
                .as_str()
                .is_some_and(|it| it.contains(namespace))
    };
    let (mut broken, mut gone) = (Times::of("Pod without its image"), Times::of("Pod deleted"));
    for number in 0..tries() {
        // The one before may still be on its way out.
        let pod = format!("web-{number}");
        let since = clock();
        kubectl(&[
            "-n",
            namespace,
            "run",
            &pod,
            "--image=pipeops-test.invalid/missing:1",
            "--image-pull-policy=Never",
        ]);
        broken.take(&agent, since, TOLD, named);
        let status = agent.status();
        let (all, bad) = (
            &status["cluster"]["pods_expected"],
            &status["cluster"]["pods_not_ready"],
        );
        assert!(
            all.as_u64() > bad.as_u64() && bad.as_u64() >= Some(1),
            "{status}"
        );
        // A broken application does not keep the agent from its work.
        let readiness = status["readiness"]["parts"].as_array().unwrap();
        assert!(
            readiness.iter().all(|part| part["id"] != "workloads"),
            "{status}"
        );
        let since = clock();
        kubectl(&["-n", namespace, "delete", "pod", &pod, "--wait=false"]);
        gone.take(&agent, since, OUTLIVED, |verdict| !named(verdict));
    }
    // A Pod that runs and is not ready is no Pod that runs.
    let report = agent.view("/api/v1/cluster");
    let mut all = report["namespaces"].as_array().unwrap().iter();
    let fixtures = all.find(|it| it["name"] == "fixtures").unwrap();
    assert!(fixtures["not_ready"].as_u64() >= Some(1), "{fixtures}");
    leave(namespace);
}

#[test]
fn rights_that_are_given_are_the_first_line_in_time_and_one_cause_is_one_warning() {
    let Some(_held) = calm() else { return };
    let plane = Plane::start(Options::default()).unwrap();
    let (mut missing, mut given) = (Times::of("manifest missing"), Times::of("manifest applied"));
    for _ in 0..tries() {
        let accounts = Accounts::planned(GrantScope::Managed);
        let mut agent = Agent::new(&plane)
            .with("KUBECONFIG", admin().display().to_string())
            .with("PIPEOPS_AGENT_NAMESPACE", accounts.namespace())
            .with("PIPEOPS_ACCESS_LEVEL", "managed");
        let since = clock();
        agent.start();
        let holds = |verdict: &Value| part(verdict, "cluster")["code"] == "access.rbac";
        missing.take(&agent, since, TOLD, holds);
        let status = agent.status();
        for condition in status["conditions"].as_array().unwrap() {
            let id = condition["id"].as_str().unwrap();
            assert_ne!(id, "access.second-lock", "{condition}");
            let follows = ["access.rbac-differs", "lease.rbac", "cluster.events-hidden"];
            assert!(
                !follows.contains(&id) || condition["because"] == "access.rbac",
                "{condition}"
            );
        }
        accounts.apply(&accounts.manifest(&[]));
        let since = clock();
        given.take(&agent, since, OUTLIVED, |verdict| !holds(verdict));
        agent.until("nothing of it is left", OUTLIVED, |status| {
            let mut all = status["conditions"].as_array()?.iter();
            all.all(|it| it["id"] != "lease.rbac" && it["id"] != "access.rbac")
                .then_some(())
        });
    }
}

#[test]
fn what_the_doctor_finds_is_a_part_of_the_verdict() {
    let plane = Plane::start(Options::default()).unwrap();
    let agent = Agent::start_for(&plane);
    agent.until_linked();
    // A busy machine may not be read in time, and then nothing is said of it.
    let found = until("the machine was read in time", DIALLED, || {
        let found = agent.view("/api/v1/problems?fresh=1");
        (found["is_whole"] == true).then_some(found)
    });
    let watched = ["agent", "dashboard", "clock.wrong", "k3s.api"];
    let is_told = |check: &Value| {
        let id = check["id"].as_str().unwrap();
        let is_own = watched
            .iter()
            .any(|own| id == *own || id.starts_with(&format!("{own}.")));
        check["outcome"] == "problem" && check["severity"] != "note" && !is_own
    };
    let is_wrong = found["checks"].as_array().unwrap().iter().any(is_told);
    let wanted = if is_wrong { "machine.doctor" } else { "ok" };
    assert_eq!(part(&verdict(&agent), "machine")["code"], wanted, "{found}");
    assert!(part(&verdict(&agent), "machine")["age_s"].is_u64());
    assert_eq!(found["verdict"]["parts"].as_array().unwrap().len(), 5);
    assert_eq!(agent.status()["readiness"]["ready"], true);
    let (_, told) = agent.cli(&["doctor"]);
    let first = told.lines().next().unwrap().to_lowercase();
    let sentence = verdict(&agent)["sentence"].as_str().unwrap().to_lowercase();
    assert!(first.starts_with(&sentence), "{told}");
}
