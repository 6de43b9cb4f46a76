//! Stock kubectl against the plane, with a scripted agent behind it.
//!
//! `kubectl` is taken from the path, or from `PIPEOPS_TEST_KUBECTL`.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::agent::{self, Agent, b64};
use plane::{Options, Plane};
use serde_json::{Value, json};

fn program() -> Option<String> {
    let named = std::env::vars_os().find(|(name, _)| name == "PIPEOPS_TEST_KUBECTL");
    let program = named.map_or_else(
        || "kubectl".to_owned(),
        |(_, path)| path.to_string_lossy().into_owned(),
    );
    let found = command(&program).args(["version", "--client"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(program);
    }
    println!("skipped: there is no kubectl on this machine");
    None
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place of this test that starts kubectl"
)]
fn command(program: &str) -> Command {
    Command::new(program)
}

fn kubectl(program: &str, kubeconfig: &Path, arguments: &[&str]) -> Child {
    command(program)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn answer(agent: &mut Agent, request: &Value, status: u16, body: &Value) {
    let id = request["request_id"].as_str().unwrap();
    agent.head(id, status, &json!({"Content-Type": ["application/json"]}));
    agent.chunk(id, body.to_string().as_bytes());
    agent.send("proxy_response_end", Some(id), &json!({}));
}

/// What kubectl asks before exec.
fn api(path: &str) -> Option<Value> {
    Some(match path {
        "/api" => json!({"kind": "APIVersions", "versions": ["v1"]}),
        "/apis" => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []}),
        "/version" => json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4"}),
        "/api/v1" => json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": [
            {"name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod",
             "verbs": ["get", "list"], "shortNames": ["po"]}]}),
        "/api/v1/namespaces/default/pods/web" => json!({
            "kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"containers": [{"name": "web"}]}, "status": {"phase": "Running"}}),
        _ => return None,
    })
}

/// Answers kubectl's questions until something else comes.
fn answer_api(agent: &mut Agent) -> Value {
    loop {
        let request = agent.next_json();
        let known = match request["type"].as_str().unwrap() {
            "proxy_request" => api(request["payload"]["path"].as_str().unwrap()),
            "proxy_cancel" | "heartbeat_ack" => continue,
            _ => return request,
        };
        match known {
            Some(body) => answer(agent, &request, 200, &body),
            None => answer(
                agent,
                &request,
                404,
                &json!({"kind": "Status", "apiVersion": "v1",
                "metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404}),
            ),
        }
    }
}

struct Bench {
    plane: Plane,
    agent: Agent,
    dir: tempfile::TempDir,
}

fn linked() -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::start(Options {
        plaintext_listen: Some("127.0.0.1:0".parse().unwrap()),
        state_dir: Some(dir.path().to_owned()),
        ..Options::default()
    })
    .unwrap();
    let mut agent = Agent::dial_controller(&plane).unwrap();
    let reply = agent.register();
    let cluster = reply["payload"]["cluster_id"].as_str().unwrap();
    agent.close();
    let agent = Agent::dial_gateway(&plane, cluster).unwrap();
    plane.wait_ready(agent::LIMIT).unwrap();
    Bench { plane, agent, dir }
}

#[test]
fn exec_by_stock_kubectl_carries_input_output_and_the_exit_code() {
    let Some(program) = program() else { return };
    let Bench {
        plane,
        mut agent,
        dir,
    } = linked();
    let kubeconfig = dir.path().join("kubeconfig.yaml");
    for (status, exit) in [
        (json!({"metadata": {}, "status": "Success"}), 0),
        (
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "reason": "NonZeroExitCode", "message": "exit code 7", "code": 500,
                "details": {"causes": [{"reason": "ExitCode", "message": "7"}]}}),
            7,
        ),
    ] {
        let arguments = ["exec", "-i", "web", "--", "cat"];
        let mut child = kubectl(&program, &kubeconfig, &arguments);
        child.stdin.take().unwrap().write_all(b"hello").unwrap();
        let start = answer_api(&mut agent);
        assert_eq!(start["type"], "ws_start", "{start}");
        assert_eq!(start["payload"]["protocol"], "v5.channel.k8s.io");
        let query = start["payload"]["query"].as_str().unwrap();
        assert!(
            query.contains("command=cat") && query.contains("stdin=true"),
            "{query}"
        );
        let id = start["payload"]["stream_id"].as_str().unwrap().to_owned();
        assert_eq!(agent.stream_data(&id), b"\x02\0hello");
        assert_eq!(
            agent.stream_data(&id),
            b"\x02\xff\0",
            "the end of the input"
        );
        let mut say = |data: &[u8]| {
            let framed = b64(&[b"\x01", data].concat());
            let payload = json!({"stream_id": id, "data": framed});
            agent.send("proxy_websocket_data", Some(&id), &payload);
        };
        say(b"hello");
        say(status.to_string().as_bytes());
        agent.send(
            "proxy_websocket_close",
            Some(&id),
            &json!({"stream_id": id}),
        );
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.stdout, b"hello", "{errors}");
        assert_eq!(output.status.code(), Some(exit), "{errors}");
    }
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn an_attach_that_the_agent_refuses_says_why() {
    let Some(program) = program() else { return };
    let Bench {
        plane: _plane,
        mut agent,
        dir,
    } = linked();
    let kubeconfig = dir.path().join("kubeconfig.yaml");
    let exec = ["attach", "web"];
    let child = kubectl(&program, &kubeconfig, &exec);
    let start = answer_api(&mut agent);
    let id = start["payload"]["stream_id"].as_str().unwrap().to_owned();
    let refused = json!({"request_id": id, "error": "failed to connect to K8s API: (status: 403)"});
    agent.send("proxy_error", Some(&id), &refused);
    agent.send(
        "proxy_websocket_close",
        Some(&id),
        &json!({"stream_id": id}),
    );
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("(status: 403)"), "{errors}");
    assert_ne!(output.status.code(), Some(0));
}

#[test]
fn port_forward_is_refused_with_the_reason() {
    let Some(program) = program() else { return };
    let Bench {
        plane,
        mut agent,
        dir,
    } = linked();
    let kubeconfig = dir.path().join("kubeconfig.yaml");
    let child = kubectl(&program, &kubeconfig, &["port-forward", "pod/web", ":80"]);
    let errors = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let output = child.wait_with_output().unwrap();
            plane.ping(Some("done"));
            String::from_utf8_lossy(&output.stderr).into_owned()
        });
        assert_eq!(answer_api(&mut agent)["type"], "ping");
        waiting.join().unwrap()
    });
    assert!(errors.contains("cannot be carried as messages"), "{errors}");
}
