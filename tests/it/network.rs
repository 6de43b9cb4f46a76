//! The dashboard for other machines: the machine asks itself by an address that is not of the
//! loopback interface, so that the agent takes it for another one. curl and openssl are the
//! counterparts.

use std::{
    io::Read,
    net::{IpAddr, TcpListener, TcpStream},
    time::Duration,
};

use pipeops_agent::host::network::addresses;
use plane::Plane;
use serde_json::{Value, json};

use crate::agent::{Agent, SOON, command, has, until};

/// The agent looks at its certificate every 20 s.
const RENEWED: Duration = Duration::from_secs(60);

/// An agent that other machines reach.
struct Open {
    _plane: Plane,
    agent: Agent,
    address: IpAddr,
    port: u16,
}

/// An answer. Where none came its code is 0, and its body what curl says of it.
struct Heard {
    code: u16,
    head: String,
    body: String,
}

impl Heard {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// An agent that is to listen everywhere, not started yet, and an address of this machine. `None`:
/// said why it is skipped.
fn machine() -> Option<(Plane, Agent, IpAddr)> {
    if !has("curl") || !has("openssl") {
        return None;
    }
    let Some(address) = addresses().into_iter().find(IpAddr::is_ipv4) else {
        println!("skipped: this machine has no address but those of the loopback interface");
        return None;
    };
    let plane = Plane::start(plane::Options::default()).unwrap();
    let agent = Agent::new(&plane).with("PIPEOPS_DASHBOARD_LISTEN", "0.0.0.0:0");
    Some((plane, agent, address))
}

impl Open {
    fn new() -> Option<Self> {
        let (plane, mut agent, address) = machine()?;
        agent.start();
        let port = port(&agent, "https");
        Some(Self {
            _plane: plane,
            agent,
            address,
            port,
        })
    }

    /// What curl hears that trusts the certificate of this agent and nothing else.
    fn curl(&self, url: &str, more: &[&str]) -> Heard {
        let certificate = self.agent.state("dashboard.pem").display().to_string();
        curl(url, &[&["--cacert", certificate.as_str()], more].concat())
    }

    fn there(&self, path: &str, more: &[&str]) -> Heard {
        self.curl(
            &format!("https://{}:{}{path}", self.address, self.port),
            more,
        )
    }

    fn here(&self, path: &str, more: &[&str]) -> Heard {
        self.curl(&format!("https://127.0.0.1:{}{path}", self.port), more)
    }

    fn fingerprint(&self) -> String {
        let status = self.agent.status();
        let fingerprint = status["dashboard"]["fingerprint"].as_str();
        fingerprint.unwrap().to_owned()
    }
}

/// Where the page is, once it is there.
fn port(agent: &Agent, scheme: &str) -> u16 {
    agent.until("the page is open", SOON, |status| {
        let url = status["dashboard"]["urls"][0].as_str()?;
        let url = url.strip_prefix(scheme)?;
        url.rsplit_once(':')?.1.parse().ok()
    })
}

fn curl(url: &str, more: &[&str]) -> Heard {
    let output = command("curl")
        .args(["-sSi", "--noproxy", "*", "--max-time", "20", url])
        .args(more)
        .env_clear()
        .output()
        .unwrap();
    if !output.status.success() {
        return Heard {
            code: 0,
            head: String::new(),
            body: String::from_utf8_lossy(&output.stderr).into_owned(),
        };
    }
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    Heard {
        code: head.split(' ').nth(1).unwrap().parse().unwrap(),
        head: head.to_owned(),
        body: body.to_owned(),
    }
}

fn openssl(words: &[&str]) -> String {
    let output = command("openssl").args(words).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {told}{wrong}");
    told
}

/// SHA-256 of the certificate in this file, as openssl says it.
fn fingerprint_of(file: &str) -> String {
    let told = openssl(&["x509", "-in", file, "-noout", "-fingerprint", "-sha256"]);
    told.trim().split_once('=').unwrap().1.to_owned()
}

#[test]
fn the_certificate_that_it_makes_is_one_for_openssl_and_its_fingerprint_is_told() {
    let Some(open) = Open::new() else { return };
    let file = open.agent.state("dashboard.pem").display().to_string();
    assert_eq!(fingerprint_of(&file), open.fingerprint());
    let text = openssl(&["x509", "-in", &file, "-noout", "-text"]);
    for part in [
        "Version: 3",
        "ecdsa-with-SHA256",
        "prime256v1",
        "CA:FALSE",
        "Digital Signature",
        "TLS Web Server Authentication",
        "DNS:localhost",
        "IP Address:127.0.0.1",
        "IP Address:0:0:0:0:0:0:0:1",
        &format!("IP Address:{}", open.address),
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    openssl(&["verify", "-x509_strict", "-CAfile", &file, &file]);
    openssl(&["pkey", "-in", &file, "-check", "-noout"]);

    // Where somebody asks where the page is, there is what is to be compared.
    let print = open.fingerprint();
    let (_, told) = open.agent.cli(&["status"]);
    assert!(told.contains(&format!("SHA-256 {print}")), "{told}");
    let (code, told) = open.agent.cli(&["dashboard", "token", "--json"]);
    assert_eq!(code, 0, "{told}");
    let token: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(token["fingerprint"], print);
    let url = format!("https://{}:{}/#token=", open.address, open.port);
    assert!(token["url"].as_str().unwrap().starts_with(&url), "{told}");
    let (_, told) = open.agent.cli(&["dashboard", "open"]);
    assert!(told.contains(&print), "{told}");
}

#[test]
fn other_machines_see_nothing_without_a_login_and_with_one_what_it_opens() {
    let Some(open) = Open::new() else { return };
    for (path, code) in [
        ("/", 200),
        ("/healthz", 200),
        ("/api/v1/status", 401),
        ("/api/v1/host", 401),
        ("/api/v1/stream", 401),
        ("/metrics", 401),
        ("/readyz", 401),
        ("/api/v1/access", 401),
    ] {
        assert_eq!(open.there(path, &[]).code, code, "{path}");
    }
    let page = open.there("/", &[]).body;
    assert!(page.contains("requires a login"), "{page}");
    assert!(!page.contains("Link to the control plane"), "{page}");
    let nobody = open.there("/api/v1/session", &[]).json();
    assert_eq!(nobody["role"], "none");
    assert_eq!(nobody["via"], "network");
    // This machine sees what it always saw, and no more.
    assert_eq!(open.here("/api/v1/status", &[]).code, 200);
    assert_eq!(open.here("/metrics", &[]).code, 200);
    assert_eq!(open.here("/api/v1/access", &[]).code, 401);

    let token = open.agent.post("/api/v1/tokens", r#"{"role":"viewer"}"#).1;
    let token: Value = serde_json::from_str(&token).unwrap();
    let login = json!({ "token": token["token"] }).to_string();
    let kind = "content-type: application/json";
    let heard = open.there("/api/v1/session", &["-H", kind, "-d", &login]);
    assert_eq!(heard.code, 200, "{}", heard.body);
    assert_eq!(heard.json()["role"], "viewer");
    let set = heard.head.lines();
    let set = set.filter_map(|line| line.strip_prefix("set-cookie: "));
    let set: Vec<_> = set.collect();
    let [set] = set.as_slice() else {
        panic!("{}", heard.head);
    };
    assert!(set.starts_with("__Host-pipeops-session="), "{set}");
    for part in ["; Path=/", "; HttpOnly", "; SameSite=Strict", "; Secure"] {
        assert!(set.contains(part), "{set}");
    }
    let cookie = format!("cookie: {}", set.split(';').next().unwrap());
    for path in ["/api/v1/status", "/metrics", "/api/v1/access"] {
        assert_eq!(open.there(path, &["-H", &cookie]).code, 200, "{path}");
    }
    let set = |more: &[&str]| {
        let words = ["-H", &cookie, "-H", kind, "-d", r#"{"level":"off"}"#];
        open.there("/api/v1/access", &[&words[..], more].concat())
    };
    assert_eq!(set(&[]).code, 403);
    assert!(set(&[]).body.contains("operator"));
    let plain = format!("origin: http://{}:{}", open.address, open.port);
    assert!(set(&["-H", &plain]).body.contains("cross-origin"));
    let changes = open.agent.view("/api/v1/changes").to_string();
    assert!(
        changes.contains(&format!("from {}", open.address)),
        "{changes}"
    );
}

#[test]
fn a_name_of_somebody_else_is_refused_and_so_is_what_comes_in_the_open() {
    let Some(open) = Open::new() else { return };
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for (host, code) in [
        (host.trim(), 200),
        ("203.0.113.9", 200),
        ("[2001:db8::7]", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
    ] {
        let header = format!("host: {host}:{}", open.port);
        assert_eq!(
            open.there("/healthz", &["-H", &header]).code,
            code,
            "{host}"
        );
    }

    let plain = |path: &str, more: &[&str]| {
        let url = format!("http://{}:{}{path}", open.address, open.port);
        curl(&url, more)
    };
    let sent = plain("/assets/app.js?a=b", &[]);
    assert_eq!(sent.code, 307);
    let there = format!("https://{}:{}/assets/app.js?a=b", open.address, open.port);
    assert!(
        sent.head.contains(&format!("location: {there}\r\n")),
        "{}",
        sent.head
    );
    for refused in [
        plain("/", &["-H", "host: evil.example"]),
        plain("/api/v1/session", &["-d", "{}"]),
    ] {
        assert_eq!(refused.code, 400, "{}", refused.head);
        assert!(refused.body.contains("https"), "{}", refused.body);
    }
    // Whoever trusts nobody yet is told so by the handshake, and by nothing else.
    let error = curl(&format!("https://{}:{}/", open.address, open.port), &[]);
    assert_eq!(error.code, 0);
    assert!(error.body.contains("certificate"), "{}", error.body);
    // Nonsense ends with its connection.
    let mut stream = TcpStream::connect((open.address, open.port)).unwrap();
    std::io::Write::write_all(&mut stream, b"\x16\x03\x01\x00\x05nonsense").unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut heard = Vec::new();
    assert!(stream.read_to_end(&mut heard).is_ok());
    assert_eq!(open.there("/healthz", &[]).code, 200);
}

#[test]
fn a_thousand_connections_that_say_nothing_keep_nobody_out() {
    let Some(open) = Open::new() else { return };
    let silent: Vec<_> = (0..1000)
        .map(|_| TcpStream::connect((open.address, open.port)).unwrap())
        .collect();
    assert_eq!(open.here("/healthz", &[]).code, 200);
    assert_eq!(open.there("/healthz", &[]).code, 200);
    assert!(open.agent.get("/healthz").is_some());
    // Most of them are closed already: the agent has room for few.
    let mut open_still = 0;
    for mut stream in silent {
        stream.set_nonblocking(true).unwrap();
        let heard = stream.read(&mut [0]);
        let is_open = heard.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        open_still += usize::from(is_open);
    }
    assert!(open_still <= 8, "{open_still}");
}

fn free_port() -> u16 {
    let free = TcpListener::bind("0.0.0.0:0").unwrap();
    free.local_addr().unwrap().port()
}

/// Makes a certificate for `box.example` and its key.
fn make(kind: &str, certificate: &str, key: &str) {
    openssl(&[
        "req",
        "-x509",
        "-newkey",
        kind,
        "-nodes",
        "-days",
        "30",
        "-subj",
        "/CN=box.example",
        "-addext",
        "subjectAltName=DNS:box.example",
        "-out",
        certificate,
        "-keyout",
        key,
    ]);
}

#[test]
fn a_certificate_of_the_user_is_shown_and_renewed_and_one_that_is_wrong_harms_nothing_else() {
    let Some((_plane, agent, address)) = machine() else {
        return;
    };
    let folder = agent.folder().to_owned();
    let file = |name: &str| folder.join(name).display().to_string();
    let (certificate_file, key_file) = (file("cert.pem"), file("key.pem"));
    let port = free_port();
    let mut agent = agent
        .with("PIPEOPS_DASHBOARD_LISTEN", format!("0.0.0.0:{port}"))
        .with("PIPEOPS_DASHBOARD_CERT_FILE", &certificate_file)
        .with("PIPEOPS_DASHBOARD_KEY_FILE", &key_file);
    make("rsa:2048", &certificate_file, &file("right.pem"));
    make("rsa:2048", &file("other.pem"), &key_file);
    agent.start();

    // Its key is another one: this machine goes on as ever, and others do not come in.
    let wrong = agent.until_condition("dashboard.certificate", SOON);
    let sentence = wrong["sentence"].as_str().unwrap();
    assert!(
        sentence.contains("it does not match the certificate"),
        "{sentence}"
    );
    assert!(
        wrong["fix"]
            .as_str()
            .unwrap()
            .contains("dashboard.key_file")
    );
    let here = format!("http://127.0.0.1:{port}/healthz");
    until("the page is open here", SOON, || {
        (curl(&here, &[]).code == 200).then_some(())
    });
    let there = curl(&format!("https://{address}:{port}/healthz"), &["-k"]);
    assert_eq!(there.code, 0, "{}", there.body);

    std::fs::copy(file("right.pem"), &key_file).unwrap();
    let ask = |trusted: &str| {
        let resolve = format!("box.example:{port}:{address}");
        let words = ["--cacert", trusted, "--resolve", &resolve];
        curl(&format!("https://box.example:{port}/healthz"), &words)
    };
    agent.until("the certificate is shown", RENEWED, |status| {
        (!status["dashboard"]["fingerprint"].is_null()).then_some(())
    });
    let heard = ask(&certificate_file);
    assert_eq!(heard.code, 200, "{}", heard.body);
    let shown = |agent: &Agent| agent.status()["dashboard"].clone();
    assert_eq!(
        shown(&agent)["fingerprint"],
        fingerprint_of(&certificate_file)
    );
    assert_eq!(shown(&agent)["is_self_made"], false);
    assert_eq!(
        agent.status()["conditions"]
            .to_string()
            .matches("dashboard.cert")
            .count(),
        0
    );

    // Renewed, one file after the other.
    make("rsa:2048", &certificate_file, &key_file);
    let print = fingerprint_of(&certificate_file);
    agent.until("the new one is shown", RENEWED, |status| {
        (status["dashboard"]["fingerprint"] == print).then_some(())
    });
    assert_eq!(ask(&certificate_file).code, 200);
    assert!(agent.log().contains("the dashboard has a new certificate"));

    // Lost: what was read is shown on.
    let trusted = file("trusted.pem");
    std::fs::copy(&certificate_file, &trusted).unwrap();
    std::fs::remove_file(&key_file).unwrap();
    let wrong = agent.until_condition("dashboard.certificate", RENEWED);
    assert_eq!(ask(&trusted).code, 200);
    doctor_says(&mut agent, &wrong);
}

/// The doctor says of the certificate what the agent says, with and without it, and so does an
/// agent that starts.
fn doctor_says(agent: &mut Agent, wrong: &Value) {
    let sentence = &wrong["sentence"];
    let beginning = "the dashboard cannot use its certificate: ";
    assert!(
        sentence.as_str().unwrap().starts_with(beginning),
        "{sentence}"
    );
    for is_running in [true, false] {
        if !is_running {
            agent.stop();
        }
        let (code, told) = agent.cli(&["doctor", "--json"]);
        let told: Value = serde_json::from_str(&told).unwrap();
        let checks = told["checks"].as_array().unwrap();
        let check = checks
            .iter()
            .find(|check| check["id"] == wrong["id"])
            .unwrap();
        assert_eq!(
            (code, &check["outcome"]),
            (1, &"problem".into()),
            "{check:#}"
        );
        assert_eq!(&check["seen"], sentence);
        assert_eq!(check["fix"], wrong["fix"]);
    }
    agent.start();
    let again = agent.until_condition("dashboard.certificate", RENEWED);
    assert_eq!(&again["sentence"], sentence);
}
