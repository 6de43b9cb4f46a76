//! An agent that finds an earlier installation in its cluster.

use std::time::Duration;

use plane::{Options, Plane};

use crate::{
    agent::Agent,
    cluster::{admin, alone, kubectl, variable},
};

/// What an installation of the Go agent leaves in a cluster, and a Pod that looks like it.
fn install_go_agent() {
    kubectl(&["create", "namespace", "pipeops-system"]);
    kubectl(&[
        "create",
        "configmap",
        "pipeops-agent-state",
        "-n",
        "pipeops-system",
        "--from-literal=agent_id=agent-old",
        "--from-literal=cluster_id=7d1f0b52-6a1e-4b0e-9a64-2f0c1f3f9b10",
        "--from-literal=gateway_ws_url=",
    ]);
    kubectl(&[
        "run",
        "go-agent",
        "-n",
        "pipeops-system",
        "--image",
        &variable("IMAGE"),
        "--image-pull-policy=Never",
        "--labels=app.kubernetes.io/name=pipeops-agent",
        "--command",
        "--",
        "/bin/sleep",
        "1000",
    ]);
    kubectl(&[
        "wait",
        "pod/go-agent",
        "-n",
        "pipeops-system",
        "--for=condition=Ready",
        "--timeout=60s",
    ]);
}

#[test]
fn an_installation_of_the_go_agent_is_taken_over_once_it_no_longer_runs() {
    let Some(_held) = alone() else { return };
    install_go_agent();
    let plane = Plane::start(Options::default()).unwrap();
    let mut agent = Agent::new(&plane).with("KUBECONFIG", admin().display().to_string());
    agent.start();
    agent.until_condition("identity.go-agent-runs", Duration::from_secs(30));
    assert!(
        plane.handshakes().is_empty(),
        "no second link while it runs"
    );
    kubectl(&[
        "delete",
        "pod",
        "go-agent",
        "-n",
        "pipeops-system",
        "--grace-period=0",
        "--force",
    ]);
    let status = agent.until("the link is ready", Duration::from_secs(60), |status| {
        (status["link"]["state"] == "ready").then(|| status.clone())
    });
    assert_eq!(status["agent_id"], "agent-old");
    assert_eq!(status["cluster_id"], "7d1f0b52-6a1e-4b0e-9a64-2f0c1f3f9b10");
    // Gone before others use the cluster: they would take it over too.
    kubectl(&["delete", "namespace", "pipeops-system", "--timeout=60s"]);
}
