//! The program as a person or a script meets it: its output, its exit codes, what it never prints.

mod fresh;
pub(crate) mod local;
mod setup;
mod shells;

use std::{
    io::{Read, Write},
    os::unix::net::UnixListener,
    path::Path,
    process::Output,
};

use serde_json::Value;

/// The program with an environment of its own.
#[expect(
    clippy::disallowed_methods,
    reason = "the program under test ends by itself: status has a deadline, the rest does not wait"
)]
fn agent(words: &[&str], environment: &[(&str, &str)]) -> Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_pipeops-agent"))
        .args(words)
        .env_clear()
        .envs(environment.iter().copied())
        .output()
        .unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A folder with a file of settings in it.
fn folder(settings: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    pipeops_agent::files::replace(&path, settings.as_bytes(), 0o600).unwrap();
    let path = path.display().to_string();
    (folder, path)
}

#[test]
fn a_command_line_that_is_refused_is_json_where_that_was_asked_for() {
    for words in [
        ["apps", "why", "Not_A_Name", "--json"],
        ["apps", "list", "--bogus", "--json"],
    ] {
        let output = agent(&words, &[]);
        assert_eq!(code(&output), 2);
        assert!(json(&output)["error"]["what"].is_string(), "{words:?}");
    }
    let output = agent(&["apps", "why", "Not_A_Name"], &[]);
    assert_eq!((code(&output), output.stdout.as_slice()), (2, &b""[..]));
}

#[test]
fn scripts_can_rely_on_the_exit_codes() {
    let (_folder, file) = folder("");
    let token = [("PIPEOPS_TOKEN", "clt_test")];
    let check = ["config", "check", "--config", &file];
    assert_eq!(code(&agent(&check, &token)), 0);
    assert_eq!(code(&agent(&check, &[])), 1);
    assert_eq!(code(&agent(&["run", "--config", &file], &[])), 2);
    assert_eq!(code(&agent(&["frobnicate"], &[])), 2);
    assert_eq!(code(&agent(&[], &[])), 2);
    assert_eq!(code(&agent(&["--help"], &[])), 0);
    assert_eq!(code(&agent(&["version"], &[])), 0);
}

#[test]
fn a_mistake_is_told_with_its_line_and_its_fix() {
    let (_folder, file) = folder("[pipeops]\nclustername = \"edge\"\n");
    let output = agent(
        &["config", "check", "--config", &file],
        &[("PIPEOPS_TOKEN", "clt_1")],
    );
    assert_eq!(
        text(&output.stderr),
        format!(
            "error: {file}:2: unknown key \"pipeops.clustername\"\n  fix: did you mean cluster_name?\n"
        )
    );
    assert_eq!(code(&output), 1);
}

#[test]
fn a_token_is_in_no_output_and_not_taken_from_the_command_line() {
    let (_folder, file) = folder("[pipeops]\ntoken = \"clt_file\"\n");
    for words in [
        vec!["config", "show", "--config", &file],
        vec!["config", "show", "--config", &file, "--json"],
        vec!["config", "check", "--config", &file, "--json"],
        vec![
            "config",
            "check",
            "--config",
            &file,
            "--set",
            "pipeops.token=clt_argv",
        ],
        vec!["run", "--config", &file, "--set", "log.level=loud"],
    ] {
        for environment in [vec![], vec![("PIPEOPS_TOKEN", "clt_environment")]] {
            let output = agent(&words, &environment);
            let all = text(&output.stdout) + &text(&output.stderr);
            assert!(!all.contains("clt_"), "{words:?}: {all}");
        }
    }
    let refused = agent(
        &["run", "--config", &file, "--set", "pipeops.token=clt_argv"],
        &[],
    );
    assert_eq!(code(&refused), 2);
}

#[test]
fn every_setting_says_where_it_came_from() {
    let (_folder, file) = folder("[log]\nlevel = \"debug\"\n");
    let words = [
        "config",
        "show",
        "--json",
        "--config",
        &file,
        "--set",
        "access.level=off",
    ];
    let shown = json(&agent(
        &words,
        &[("PIPEOPS_TOKEN", "clt_1"), ("KUBECONFIG", "/k")],
    ));
    let from = |key: &str| {
        let settings = shown["settings"].as_array().unwrap();
        let setting = settings
            .iter()
            .find(|setting| setting["key"] == key)
            .unwrap();
        (
            setting["value"].clone(),
            setting["from"].as_str().unwrap().to_owned(),
        )
    };
    assert_eq!(from("log.level"), ("debug".into(), format!("{file}:2")));
    assert_eq!(from("access.level"), ("off".into(), "--set".to_owned()));
    assert_eq!(
        from("agent.kubeconfig"),
        ("/k".into(), "KUBECONFIG".to_owned())
    );
    assert_eq!(from("log.format"), ("auto".into(), "default".to_owned()));
    assert_eq!(
        from("pipeops.token"),
        ("(set, hidden)".into(), "PIPEOPS_TOKEN".to_owned())
    );
}

#[test]
fn the_example_passes_the_check() {
    let example = text(&agent(&["config", "example"], &[]).stdout);
    let (_folder, file) = folder(&example);
    let output = agent(
        &["config", "check", "--config", &file],
        &[("PIPEOPS_TOKEN", "clt_1")],
    );
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
}

#[test]
fn a_missing_agent_is_told_with_where_it_was_looked_for() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let name = socket.to_str().unwrap();
    let output = agent(&["status", "--socket", name], &[]);
    assert_eq!(code(&output), 2);
    let told = text(&output.stderr);
    assert!(
        told.starts_with(&format!(
            "error: the agent is not running: there is no socket at {name}\n"
        )),
        "{told}"
    );
    assert!(told.contains("  fix: start it: "), "{told}");

    drop(UnixListener::bind(&socket).unwrap());
    let told = text(&agent(&["status", "--socket", name], &[]).stderr);
    assert!(told.contains("nothing listens at"), "{told}");
    let output = agent(&["status", "--socket", name, "--json"], &[]);
    assert_eq!(json(&output)["error"]["what"], "the agent is not running");
}

#[test]
fn an_agent_that_cannot_start_is_told_with_the_line_of_its_settings() {
    let (_folder, file) = folder("[pipeops]\napi_url = \"off\"\n\n[agent]\nsokcet = 1\n");
    let output = agent(&["status", "--config", &file], &[]);
    assert_eq!(code(&output), 2);
    let told = text(&output.stderr);
    let wanted = format!(
        "error: the agent is not running, and does not start with its settings: {file}:5: unknown key"
    );
    assert!(told.starts_with(&wanted), "{told}");
    assert!(told.contains("  fix: [agent] knows "), "{told}");
}

/// What stands behind the socket answers one request with these bytes.
fn status_from(answer: &'static [u8], words: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            assert!(request.starts_with(b"GET /api/v1/status?fresh=1 HTTP/1.1\r\n"));
            // The reader may hang up where it has seen enough.
            stream.write_all(answer).ok();
        });
        let all: Vec<&str> = ["status", "--socket", path(&socket)]
            .into_iter()
            .chain(words.iter().copied())
            .collect();
        agent(&all, &[])
    })
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_truth_is_the_first_line_and_decides_the_exit_code() {
    let fine = status_from(
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n\
          {\"summary\":\"everything works\",\"link\":{\"state\":\"ready\"},\"new\":[1,2]}",
        &[],
    );
    assert!(text(&fine.stdout).starts_with("Everything works\n"));
    assert_eq!(code(&fine), 0);
    let wrong = status_from(
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n\
          {\"summary\":\"the disk is full\",\"conditions\":[{\"severity\":\"critical\",\
          \"sentence\":\"the disk is full\",\"fix\":\"make room\"}]}",
        &[],
    );
    let told = text(&wrong.stdout);
    assert!(
        told.starts_with("The disk is full\n  fix: make room\n\n"),
        "{told}"
    );
    assert_eq!(code(&wrong), 1);
}

#[test]
fn an_odd_answer_is_an_error_and_never_a_status() {
    for answer in [
        &b""[..],
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
        b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\n{}",
        b"garbage\r\n\r\n",
    ] {
        let output = status_from(answer, &[]);
        assert_eq!(code(&output), 2, "{}", text(answer));
        assert!(
            text(&output.stderr).starts_with("error: the agent "),
            "{}",
            text(&output.stderr)
        );
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn json_is_passed_on_as_the_agent_said_it() {
    let output = status_from(
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"summary\":\"x\",\"of_the_future\":[1]}",
        &["--json"],
    );
    assert_eq!(json(&output)["of_the_future"][0], 1);
}

#[test]
fn the_manifest_is_printed_offline_and_without_settings() {
    let output = agent(&["rbac"], &[]);
    assert_eq!(code(&output), 0);
    let manifest = text(&output.stdout);
    assert!(manifest.starts_with("# What pipeops-agent needs in a cluster."));
    assert_eq!(manifest.matches("\nkind: ").count(), 16);
    assert!(!manifest.contains("  name: cluster-admin\n"));
    let full = json(&agent(
        &["rbac", "--full", "--namespace", "edge", "--json"],
        &[],
    ));
    let manifest = full["manifest"].as_str().unwrap();
    assert!(manifest.contains("  name: cluster-admin\n"));
    assert_eq!(
        full["apply"],
        "pipeops-agent rbac --namespace edge --full | kubectl apply -f -"
    );
    for words in [
        &["rbac", "--namespace", "kube-system"],
        &["rbac", "--pod-security", "none"],
    ] {
        assert_eq!(code(&agent(words, &[])), 2, "{words:?}");
    }
}
