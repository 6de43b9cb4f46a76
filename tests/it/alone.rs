//! An agent without a control plane: everything local works, and nothing is dialled.

use plane::{Options, Plane};

use crate::{
    access::api::Api,
    agent::{Agent, SOON, put},
};

#[test]
fn an_agent_without_a_control_plane_does_everything_local() {
    let plane = Plane::start(Options::default()).unwrap();
    let api = Api::start();
    let agent = Agent::new(&plane);
    let path = |name: &str| agent.folder().join(name).display().to_string();
    put(&agent.folder().join("kubeconfig"), &api.kubeconfig());
    let (kubeconfig, no_token) = (path("kubeconfig"), path("no-token"));
    let mut agent = agent
        .with("PIPEOPS_API_URL", "off")
        .with("PIPEOPS_TOKEN_FILE", no_token)
        .with("PIPEOPS_DASHBOARD_LISTEN", "127.0.0.1:0")
        .with("KUBECONFIG", kubeconfig);
    agent.start();
    let status = agent.until("the cluster is known", SOON, |status| {
        (status["cluster"]["state"] == "ready").then(|| status.clone())
    });
    assert_eq!(status["link"]["state"], "off", "{status}");
    let (code, told) = agent.cli(&["status"]);
    assert!(told.contains("no control plane is configured"), "{told}");
    assert!(!told.contains("connecting"), "{told}");
    // Whatever this machine may be short of, the link is none of it.
    assert!(!told.contains("link.") && code < 2, "{code}: {told}");
    let (code, told) = agent.cli(&["link"]);
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("No control plane is configured"), "{told}");
    assert!(
        !told.contains("control-plane "),
        "nothing waits for it: {told}"
    );
    let access = agent.view("/api/v1/access");
    assert_eq!(access["level"], "off", "{access}");
    let (code, page) = agent.get("/").unwrap();
    assert_eq!(code, 200);
    assert!(page.contains("<html"), "{page}");
    assert_eq!(plane.sessions().len(), 0);
    assert_eq!(plane.rest_calls().len(), 0);
    assert!(agent.stop().success());
}
