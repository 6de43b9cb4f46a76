//! The API server, its certificate or the kubeconfig come and go; the agent goes on.

use std::{path::Path, time::Duration};

use plane::{Options, Plane};

use super::bench::Bench;
use crate::{
    agent::{Agent, put, until},
    cluster::{admin, calm, must},
};

#[test]
fn an_api_server_that_restarts_is_served_again_without_a_restart_of_the_agent() {
    let Some(bench) = Bench::alone() else { return };
    must("stop-apiserver", &[]);
    let condition = bench
        .agent
        .until_condition("cluster.unreachable", Duration::from_secs(30));
    assert!(condition["fix"].is_string(), "{condition}");
    let refused = bench.run(&["get", "nodes", "--request-timeout=10s"]);
    assert!(!refused.status.success());
    must("start-apiserver", &[]);
    bench.agent.until(
        "the cluster is ready again",
        Duration::from_secs(90),
        |status| (status["cluster"]["state"] == "ready").then_some(()),
    );
    assert!(bench.text(&["get", "nodes"]).contains("bench"));
}

#[test]
fn a_changed_serving_certificate_changes_nothing() {
    let Some(bench) = Bench::alone() else { return };
    must("rotate-serving-cert", &[]);
    until("kubectl works", Duration::from_secs(30), || {
        bench
            .run(&["get", "nodes", "--request-timeout=10s"])
            .status
            .success()
            .then_some(())
    });
}

#[test]
fn an_agent_started_before_its_kubeconfig_exists_finds_the_cluster_later() {
    let Some(_held) = calm() else { return };
    let plane = Plane::start(Options::default()).unwrap();
    let mut agent = Agent::new(&plane);
    let late = agent.folder().join("late.yaml");
    agent = agent.with("KUBECONFIG", late.display().to_string());
    agent.start();
    agent.until(
        "the link is ready, cluster or not",
        Duration::from_secs(40),
        |status| (status["link"]["state"] == "ready").then_some(()),
    );
    put(&late, &read(&admin()));
    agent.until("the cluster is ready", Duration::from_secs(90), |status| {
        (status["cluster"]["state"] == "ready").then_some(())
    });
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}
