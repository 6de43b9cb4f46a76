//! Credential that the control plane receives in place of a Kubernetes one, told by the
//! registrations that it gets.

use std::{
    io::BufReader,
    net::{TcpListener, TcpStream},
    time::Duration,
};

use base64::Engine;
use plane::{Behaviour, Options, Plane, Redirect};
use serde_json::json;

use crate::{
    accounts::{Accounts, GrantScope, of_token},
    agent::{Agent, SOON, clock, command, output_text, put, until},
    by_hand,
    cluster::{admin, calm, kubectl, variable},
};

/// Registrations, dials and tokens that last seconds instead of minutes.
const LONG: Duration = Duration::from_secs(60);

/// Promise after access became stricter: the API server believes a token for 10 s that it has seen
/// before.
const WORTHLESS_WITHIN: Duration = Duration::from_secs(15);

/// An API server as far as a new agent asks it: no earlier installation, and tokens that last this
/// long. It ends with the test's process.
#[expect(
    clippy::disallowed_methods,
    reason = "a server of a few lines; it ends with the process of the tests"
)]
fn api(token_life_s: u64) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut made = 0;
        for stream in listener.incoming().map_while(Result::ok) {
            made += 1;
            answer(stream, made, token_life_s);
        }
    });
    format!("http://{address}")
}

fn answer(mut stream: TcpStream, number: u64, life_s: u64) -> Option<()> {
    stream.set_read_timeout(Some(SOON)).ok()?;
    let request = by_hand::read(&mut BufReader::new(stream.try_clone().ok()?))?;
    let claims = json!({"iat": 1_700_000_000, "exp": 1_700_000_000 + life_s, "jti": number});
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(claims.to_string());
    let (status, body) = match request.path.as_str() {
        path if path.ends_with("/serviceaccounts/pipeops-cp/token") => (
            "201 Created",
            json!({"status": {"token": format!("e30.{claims}.c2ln")}}),
        ),
        path if path.contains("/pods?labelSelector") => ("200 OK", json!({"items": []})),
        path if path.ends_with("/serviceaccounts/pipeops-cp") => (
            "200 OK",
            json!({"metadata": {"name": "pipeops-cp", "uid": "1"}}),
        ),
        path if path.ends_with("/selfsubjectaccessreviews") => {
            ("201 Created", json!({"status": {"allowed": true}}))
        }
        _ => ("404 Not Found", json!({"reason": "NotFound"})),
    };
    by_hand::answer(&mut stream, status, &body)
}

/// An agent with that API server.
fn agent(plane: &Plane, server: &str) -> Agent {
    let agent = Agent::new(plane);
    let path = agent.folder().join("kubeconfig");
    put(&path, &by_hand::kubeconfig(server));
    agent.with("KUBECONFIG", path.display().to_string())
}

fn plane_with(change: impl FnOnce(&mut Behaviour)) -> Plane {
    let mut plane = Plane::start(Options::default()).unwrap();
    plane.set(change);
    plane
}

/// What each registration gave, the oldest first.
fn given(plane: &Plane) -> Vec<String> {
    let found = plane.look(|view| {
        let given = view.registrations.iter();
        let given =
            given.filter_map(|facts| Some(facts.get("k8s_service_token")?.as_str()?.to_owned()));
        given.collect::<Vec<_>>()
    });
    found.unwrap_or_default()
}

fn until_given(plane: &Plane, count: usize) -> Vec<String> {
    plane
        .until(LONG, move |view| {
            (view.registrations.len() >= count).then_some(())
        })
        .expect("the registrations");
    given(plane)
}

#[test]
fn a_handle_is_given_once_and_means_the_same_after_a_restart() {
    let plane = plane_with(|_| {});
    let mut agent = agent(&plane, &api(3600));
    agent.start();
    agent.until_linked();
    let handles = until_given(&plane, 1);
    assert_eq!(handles.len(), 1);
    let first = handles[0].clone();
    assert!(first.len() == 64 && first.bytes().all(|b| b.is_ascii_hexdigit()));
    agent.until("the handle is on disk", SOON, |_| {
        let notes = std::fs::read_to_string(agent.state("notes.json")).ok()?;
        notes.contains(&first).then_some(())
    });

    agent.stop();
    agent.start();
    agent.until_linked();
    assert_eq!(
        given(&plane).len(),
        1,
        "the gateway knows it: nothing to say"
    );

    // Lost: the control plane holds something that means nothing any more, so it hears of the new
    // one first.
    agent.stop();
    std::fs::remove_file(agent.state("notes.json")).unwrap();
    agent.start();
    let handles = until_given(&plane, 2);
    assert_ne!(handles[1], first);
    let status = agent.until_linked().to_string();
    for handle in &handles {
        assert!(!agent.log().contains(handle), "in the log");
        assert!(!status.contains(handle), "in the status");
    }
}

#[test]
fn a_shared_token_is_replaced_before_it_ends_on_the_socket_of_the_controller() {
    let plane = plane_with(|behaviour| behaviour.redirect = Redirect::None);
    let mut agent = agent(&plane, &api(4)).with("PIPEOPS_ACCESS_SHARE_TOKEN", "true");
    agent.start();
    let tokens = until_given(&plane, 3);
    assert!(
        tokens[0] != tokens[1] && tokens[1] != tokens[2],
        "{tokens:?}"
    );
    assert_eq!(plane.handshakes().len(), 1, "no session ended for it");
    let condition = agent.until_condition("access.token-shared", SOON);
    assert_eq!(condition["severity"], "note");
    let seen = agent.log() + &agent.status().to_string();
    for token in tokens {
        assert!(!seen.contains(&token));
    }
    assert!(!agent.state("notes.json").exists() || !read(&agent).contains("access.handle"));
}

#[test]
fn a_shared_token_is_replaced_before_it_ends_by_way_of_the_controller() {
    let plane = plane_with(|_| {});
    let mut agent = agent(&plane, &api(6)).with("PIPEOPS_ACCESS_SHARE_TOKEN", "true");
    agent.start();
    let tokens = until_given(&plane, 2);
    assert_ne!(tokens[0], tokens[1]);
    let status = agent.until_linked();
    assert!(
        plane.handshakes().len() >= 4,
        "controller, gateway, and both again"
    );
    assert_eq!(status["link"]["outages"], 0, "of our own will");
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn a_token_for_longer_than_an_hour_is_not_shared() {
    let plane = plane_with(|_| {});
    let mut agent = agent(&plane, &api(3601)).with("PIPEOPS_ACCESS_SHARE_TOKEN", "true");
    agent.start();
    agent.until_linked();
    assert_eq!(until_given(&plane, 1), Vec::<String>::new());
    assert!(agent.log().contains("more than an hour"), "it says why");
}

fn read(agent: &Agent) -> String {
    std::fs::read_to_string(agent.state("notes.json")).unwrap_or_default()
}

#[test]
fn a_real_token_is_that_of_the_narrow_account_and_ends_within_the_hour() {
    let Some(_held) = calm() else { return };
    let accounts = Accounts::new(GrantScope::Managed);
    let plane = plane_with(|_| {});
    let mut agent = Agent::new(&plane)
        .with("KUBECONFIG", admin().display().to_string())
        .with("PIPEOPS_AGENT_NAMESPACE", accounts.namespace())
        .with("PIPEOPS_ACCESS_SHARE_TOKEN", "true");
    agent.start();
    let tokens = until_given(&plane, 1);
    let kubeconfig = agent.folder().join("shared.yaml");
    put(&kubeconfig, &of_token(&tokens[0]));
    let output = command(variable("KUBECTL"))
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["auth", "whoami"])
        .output()
        .unwrap();
    let who = format!("system:serviceaccount:{}:pipeops-cp", accounts.namespace());
    assert!(
        output_text(&output).contains(&who),
        "{}",
        output_text(&output)
    );
    let claims = tokens[0].split('.').nth(1).unwrap();
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(claims)
        .unwrap();
    let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
    let life = claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap();
    assert!(life <= 3600, "{life}");
}

/// An agent under its own account that shares tokens.
fn sharing(plane: &Plane, accounts: &Accounts, level: &str) -> Agent {
    let kubeconfig = accounts.kubeconfig("pipeops-agent");
    Agent::new(plane)
        .with("KUBECONFIG", kubeconfig.display().to_string())
        .with("PIPEOPS_AGENT_NAMESPACE", accounts.namespace())
        .with("PIPEOPS_AGENT_GO_STATE_NAMESPACE", accounts.namespace())
        .with("PIPEOPS_ACCESS_LEVEL", level)
        .with("PIPEOPS_ACCESS_SHARE_TOKEN", "true")
}

/// What a token is worth at the API server itself.
struct Worth {
    folder: tempfile::TempDir,
}

impl Worth {
    fn of(token: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        put(&folder.path().join("config"), &of_token(token));
        Self { folder }
    }

    /// What the API server says to a request for the list of nodes.
    fn says(&self, arguments: &[&str]) -> (bool, String) {
        let output = command(variable("KUBECTL"))
            .arg("--kubeconfig")
            .arg(self.folder.path().join("config"))
            .args(arguments)
            .output()
            .unwrap();
        (output.status.success(), output_text(&output))
    }

    fn is_believed(&self) -> bool {
        self.says(&["get", "nodes"]).0
    }

    /// Waits until the API server refuses it, by 401 or 403.
    fn until_worthless(&self) -> Duration {
        let began = clock();
        until("the token is worth nothing", WORTHLESS_WITHIN, || {
            let (works, text) = self.says(&["get", "nodes"]);
            let is_refused = text.contains("Unauthorized") || text.contains("Forbidden");
            (!works && is_refused).then_some(())
        });
        clock() - began
    }
}

#[test]
fn a_shared_token_ends_with_the_level_and_the_next_registration_brings_none() {
    let Some(_held) = calm() else { return };
    let accounts = Accounts::new(GrantScope::Managed);
    let plane = plane_with(|_| {});
    let mut agent = sharing(&plane, &accounts, "managed");
    agent.start();
    let tokens = until_given(&plane, 1);
    assert_eq!(tokens.len(), 1);
    let worth = Worth::of(&tokens[0]);
    assert!(worth.is_believed());
    agent.until_linked();

    let (code, told) = agent.cli(&["access", "off"]);
    assert_eq!(code, 0, "{told}");
    let taken = worth.until_worthless();
    println!("a shared token was worthless after {taken:?}");
    plane
        .until(LONG, |view| (view.registrations.len() >= 2).then_some(()))
        .expect("a registration without a token");
    assert_eq!(given(&plane).len(), 1, "the second one brings none");
    agent.until("the note is gone", SOON, |_| {
        (!read(&agent).contains("access.shared")).then_some(())
    });

    // After a restart nothing is made or sent.
    agent.stop();
    agent.start();
    agent.until_linked();
    assert_eq!(given(&plane).len(), 1);
    let account = [
        "get",
        "serviceaccount",
        "pipeops-cp",
        "-n",
        accounts.namespace(),
    ];
    let made = kubectl(&[&account[..], &["-o", "yaml"]].concat());
    assert!(
        made.contains("automountServiceAccountToken: false"),
        "{made}"
    );
    let again = accounts.apply(&accounts.manifest(&[]));
    assert!(again.contains("serviceaccount/pipeops-cp"), "{again}");
}

#[test]
fn what_full_gave_is_taken_back_at_a_stricter_level() {
    let Some(_held) = calm() else { return };
    let accounts = Accounts::new(GrantScope::Full);
    let plane = plane_with(|_| {});
    let mut agent = sharing(&plane, &accounts, "full");
    agent.start();
    let tokens = until_given(&plane, 1);
    let worth = Worth::of(&tokens[0]);
    until("the token can do everything", SOON, || {
        worth.says(&["get", "secrets", "-A"]).0.then_some(())
    });

    // Tightened while the agent does not run: the note brings it about.
    agent.stop();
    assert!(read(&agent).contains("access.shared"));
    let mut agent = agent.with("PIPEOPS_ACCESS_LEVEL", "managed");
    agent.start();
    worth.until_worthless();
    let tokens = until_given(&plane, 2);
    let narrow = Worth::of(tokens.last().unwrap());
    assert!(narrow.is_believed(), "a new one, of the new level");
    assert!(!narrow.says(&["get", "secrets", "-A"]).0);
    let full = format!("pipeops-full.{}", accounts.namespace());
    let bindings = kubectl(&["get", "clusterrolebindings", "-o", "name"]);
    assert!(!bindings.contains(&full), "{bindings}");
}

#[test]
fn without_the_right_to_end_a_token_none_is_shared_and_the_fix_is_told() {
    let Some(_held) = calm() else { return };
    let accounts = Accounts::new(GrantScope::Managed);
    // The manifest of an earlier version.
    let role = ["patch", "role", "pipeops-agent", "-n", accounts.namespace()];
    let printed = kubectl(&[
        "get",
        "role",
        "pipeops-agent",
        "-n",
        accounts.namespace(),
        "-o",
        "json",
    ]);
    let found: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let rules = found["rules"].as_array().unwrap().iter();
    let at = rules
        .take_while(|rule| {
            rule["resources"][0] != "serviceaccounts" || rule["resourceNames"][0] != "pipeops-cp"
        })
        .count();
    let patch = format!(r#"[{{"op":"replace","path":"/rules/{at}/verbs","value":["get"]}}]"#);
    kubectl(&[&role[..], &["--type=json", "-p", &patch]].concat());
    let plane = plane_with(|_| {});
    let mut agent = sharing(&plane, &accounts, "managed");
    agent.start();
    agent.until_linked();
    let condition = agent.until_condition("access.token-withheld", LONG);
    let fix = condition["fix"].as_str().unwrap();
    assert!(fix.ends_with("| kubectl apply -f -"), "{condition}");
    assert_eq!(given(&plane), Vec::<String>::new());
}
