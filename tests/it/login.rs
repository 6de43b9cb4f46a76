//! The dashboard of the running agent, by whoever comes: with a key, without one, and with bad
//! intentions.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, TcpStream},
    os::unix::net::UnixStream,
    time::Duration,
};

use plane::Plane;
use serde_json::{Value, json};

use crate::agent::{Agent, SOON, clock, until};

/// An answer.
pub(crate) struct Heard {
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Heard {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines();
        let mut found = lines.filter_map(|line| line.split_once(": "));
        Some(found.find(|(own, _)| *own == name)?.1)
    }

    /// The cookie that it sets, as it is to be sent.
    pub(crate) fn cookie(&self) -> String {
        let set = self.header("set-cookie").expect("a cookie");
        let pair = set.split(';').next().unwrap();
        format!("cookie: {pair}\r\n")
    }
}

/// An agent whose dashboard is on a port, and that port.
pub(crate) struct House {
    pub(crate) plane: Plane,
    pub(crate) agent: Agent,
    pub(crate) port: u16,
}

impl House {
    pub(crate) fn new(more: &[(&str, &str)]) -> Self {
        let plane = Plane::start(plane::Options::default()).unwrap();
        let mut agent = Agent::new(&plane).with("PIPEOPS_DASHBOARD_LISTEN", "127.0.0.1:0");
        for (name, value) in more {
            agent = agent.with(name, *value);
        }
        agent.start();
        let port = port(&agent, 0);
        // The socket may open after the port.
        agent.status();
        Self { plane, agent, port }
    }

    fn restart(&mut self) {
        let before = self.agent.log().len();
        self.agent.kill();
        self.agent.start();
        self.port = port(&self.agent, before);
        self.agent.status();
    }

    /// Sends bytes to the port as they are and hears everything until the end.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Option<Heard> {
        raw(self.port, bytes)
    }

    pub(crate) fn ask(&self, line: &str, headers: &str, body: &str) -> Heard {
        ask(self.port, line, headers, body)
    }

    pub(crate) fn get(&self, path: &str, headers: &str) -> Heard {
        self.ask(&format!("GET {path}"), headers, "")
    }

    /// The same on the socket, as whoever tests: an operator.
    pub(crate) fn on_socket(&self, line: &str, body: &str) -> Heard {
        let stream = UnixStream::connect(self.agent.folder().join("agent.sock")).unwrap();
        let request = request(line, "host: agent\r\n", body);
        talk(stream, request.as_bytes()).expect("an answer")
    }

    fn token(&self, role: &str) -> String {
        let told = self.on_socket("POST /api/v1/tokens", &json!({"role": role}).to_string());
        assert_eq!(told.code, 200, "{}", told.body);
        let told = told.json();
        let token = told["token"].as_str().unwrap().to_owned();
        let url = format!("http://127.0.0.1:{}/#token={token}", self.port);
        assert_eq!(told["url"], url);
        assert_eq!(token.len(), 32);
        token
    }

    fn log_in(&self, how: &Value) -> Heard {
        self.ask("POST /api/v1/session", "", &how.to_string())
    }

    /// The cookie of a new session.
    pub(crate) fn session(&self, role: &str) -> String {
        let heard = self.log_in(&json!({"token": self.token(role)}));
        assert_eq!(heard.code, 200, "{}", heard.body);
        heard.cookie()
    }

    /// A stream of what changes.
    fn watch(&self, topics: &str, headers: &str) -> Viewer {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        let line = format!("GET /api/v1/stream?topics={topics}");
        let request = request(&line, &format!("host: localhost\r\n{headers}"), "");
        stream.write_all(request.as_bytes()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        Viewer {
            stream,
            heard: String::new(),
        }
    }
}

/// Where the dashboard is, by what was logged after so many bytes.
pub(crate) fn port(agent: &Agent, after: usize) -> u16 {
    until("the dashboard is on its port", SOON, || {
        let log = agent.log();
        let (_, rest) = log.get(after..)?.split_once("http://127.0.0.1:")?;
        rest.split_once('/')?.0.parse().ok()
    })
}

fn raw(port: u16, bytes: &[u8]) -> Option<Heard> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    talk(stream, bytes)
}

/// Asks the dashboard on a port.
pub(crate) fn ask(port: u16, line: &str, headers: &str, body: &str) -> Heard {
    let request = request(line, &format!("host: localhost:{port}\r\n{headers}"), body);
    raw(port, request.as_bytes()).expect("an answer")
}

fn request(line: &str, headers: &str, body: &str) -> String {
    let content = if body.is_empty() {
        String::new()
    } else {
        let length = body.len();
        format!("content-type: application/json\r\ncontent-length: {length}\r\n")
    };
    format!("{line} HTTP/1.1\r\n{headers}{content}connection: close\r\n\r\n{body}")
}

fn talk(mut stream: impl Read + Write, bytes: &[u8]) -> Option<Heard> {
    // A server that has seen enough closes while this is still being written.
    let _written = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _end = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some(Heard {
        code: head.split(' ').nth(1)?.parse().ok()?,
        head: head.to_owned(),
        body: body.to_owned(),
    })
}

/// Somebody who watches.
struct Viewer {
    stream: TcpStream,
    heard: String,
}

impl Viewer {
    /// Reads until that was said, and forgets everything before it.
    fn until(&mut self, what: &str) {
        until(&format!("the stream says {what}"), SOON, || {
            let mut piece = [0; 4096];
            if let Ok(length) = self.stream.read(&mut piece) {
                let piece = piece.get(..length)?;
                self.heard.push_str(&String::from_utf8_lossy(piece));
            }
            let place = self.heard.find(what)?;
            self.heard.drain(..place + what.len());
            Some(())
        });
    }

    /// Reads until the server ends it.
    fn until_end(mut self) {
        until("the stream ends", SOON, || {
            let mut piece = [0; 4096];
            matches!(self.stream.read(&mut piece), Ok(0)).then_some(())
        });
    }
}

#[test]
fn a_token_logs_in_once_and_its_session_ends_when_it_is_told_to() {
    let here = House::new(&[]);
    let refused = here.get("/api/v1/access", "");
    assert_eq!(refused.code, 401);
    assert!(
        refused.json()["fix"]
            .as_str()
            .unwrap()
            .contains("dashboard open")
    );
    let token = here.token("operator");
    let heard = here.log_in(&json!({"token": token}));
    let set = heard.header("set-cookie").unwrap();
    for part in ["; Path=/", "; HttpOnly", "; SameSite=Strict", "; Max-Age="] {
        assert!(set.contains(part), "{set}");
    }
    assert_eq!(heard.json()["role"], "operator");
    assert_eq!(heard.json()["via"], "loopback");
    let operator = heard.cookie();
    assert_eq!(here.get("/api/v1/access", &operator).code, 200);
    assert_eq!(here.log_in(&json!({"token": token})).code, 401);
    let viewer = here.session("viewer");
    let off = r#"{"level":"off"}"#;
    assert_eq!(here.ask("POST /api/v1/access", &viewer, off).code, 403);
    assert_eq!(here.ask("POST /api/v1/access", &operator, off).code, 200);
    // The other direction is root's alone, however it is asked over the port.
    let full = r#"{"level":"full"}"#;
    assert_eq!(here.ask("POST /api/v1/access", &operator, full).code, 403);

    let mut logs = here.watch("logs", &viewer);
    logs.until("retry: 1000");
    assert_eq!(here.ask("DELETE /api/v1/session", &viewer, "").code, 200);
    assert_eq!(here.get("/api/v1/access", &viewer).code, 401);
    logs.until_end();
    let unused = here.token("operator");
    let ended = here.ask("DELETE /api/v1/sessions", &operator, "");
    assert_eq!(ended.json()["ended"], 1);
    assert_eq!(here.get("/api/v1/access", &operator).code, 401);
    assert_eq!(here.log_in(&json!({"token": unused})).code, 401);

    let changes = here.on_socket("GET /api/v1/changes", "").body;
    for what in [
        "log in to the dashboard as operator",
        "log in to the dashboard as viewer",
        "log out of the dashboard",
        "log everybody out of the dashboard",
        "access full -> off",
    ] {
        assert!(changes.contains(what), "{what}: {changes}");
    }
    assert!(changes.contains("(operator), from 127.0.0.1"), "{changes}");
    let log = here.agent.log();
    assert!(!log.contains(&token) && !log.contains(&unused));
    let kept = std::fs::read_to_string(here.agent.state("notes.json")).unwrap();
    assert!(!kept.contains(&token), "{kept}");
}

#[test]
fn who_guesses_the_password_waits_and_a_restart_does_not_help() {
    let mut here = House::new(&[]);
    let set = |here: &House, body: Value| here.on_socket("PUT /api/v1/password", &body.to_string());
    assert_eq!(set(&here, json!({"password": "short"})).code, 400);
    assert_eq!(here.log_in(&json!({"password": "correct horse"})).code, 401);
    let password = json!({"password": "correct horse", "role": "viewer"});
    assert_eq!(set(&here, password).json()["has_password"], true);
    let over_port = here.ask("PUT /api/v1/password", "", r#"{"password":"mine now"}"#);
    assert_eq!(over_port.code, 403);
    let right = json!({"password": "correct horse"});
    let heard = here.log_in(&right);
    assert_eq!(
        (heard.code, heard.json()["role"].clone()),
        (200, json!("viewer"))
    );
    let cookie = heard.cookie();

    let guess = |here: &House| here.log_in(&json!({"password": "wrong horse"}));
    let blocked = until(
        "guesses are not heard any more",
        Duration::from_secs(60),
        || {
            let heard = guess(&here);
            (heard.code == 429).then_some(heard)
        },
    );
    let wait: u64 = blocked.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=900).contains(&wait), "{wait}");
    // On, until the wait is longer than a restart takes.
    until("the wait is long", Duration::from_secs(120), || {
        let heard = guess(&here);
        let wait: u64 = heard.header("retry-after")?.parse().ok()?;
        (wait > 25).then_some(())
    });
    here.restart();
    let heard = here.log_in(&right);
    assert_eq!(heard.code, 429, "{}", heard.body);
    // A session and a token are no guesses.
    assert_eq!(here.get("/api/v1/access", &cookie).code, 200);
    here.session("operator");
}

#[test]
fn pages_of_others_and_names_of_others_are_refused_even_with_the_right_cookie() {
    let here = House::new(&[]);
    let cookie = here.session("operator");
    let off = r#"{"level":"off"}"#;
    let own = format!("origin: http://localhost:{}\r\n", here.port);
    for (more, code) in [
        ("origin: https://evil.example\r\n", 403),
        ("origin: null\r\n", 403),
        ("origin: http://localhost:1\r\n", 403),
        ("sec-fetch-site: cross-site\r\n", 403),
        ("sec-fetch-site: same-site\r\n", 403),
        ("host: evil.example\r\n", 421),
        ("x-forwarded-host: evil.example\r\n", 200),
        (own.as_str(), 200),
    ] {
        let heard = here.ask("POST /api/v1/access", &format!("{cookie}{more}"), off);
        assert_eq!(heard.code, code, "{more}: {}", heard.body);
        assert!(
            !heard.head.to_lowercase().contains("access-control"),
            "{}",
            heard.head
        );
    }
    // A form needs no leave of this machine, but cannot say that it is JSON.
    let form = format!(
        "POST /api/v1/access HTTP/1.1\r\nhost: localhost\r\n{cookie}content-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{off}",
        off.len()
    );
    assert_eq!(here.raw(form.as_bytes()).unwrap().code, 415);
    let preflight = here.ask(
        "OPTIONS /api/v1/access",
        "origin: https://evil.example\r\naccess-control-request-method: POST\r\n",
        "",
    );
    assert_eq!(preflight.code, 405);
    // By its own name in the DNS of an attacker: rebinding.
    let rebound =
        "GET /api/v1/status HTTP/1.1\r\nhost: rebound.example\r\nconnection: close\r\n\r\n";
    assert_eq!(here.raw(rebound.as_bytes()).unwrap().code, 421);
    let framed = here.get(
        "/",
        "sec-fetch-site: cross-site\r\nsec-fetch-dest: iframe\r\n",
    );
    assert_eq!(framed.header("x-frame-options"), Some("DENY"));
    let policy = framed.header("content-security-policy").unwrap();
    assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
}

#[test]
fn nobody_sees_anything_where_the_box_does_not_show_itself() {
    let here = House::new(&[("PIPEOPS_DASHBOARD_ANONYMOUS", "none")]);
    let version = env!("CARGO_PKG_VERSION");
    for path in [
        "/api/v1/status",
        "/api/v1/host",
        "/api/v1/stream?topics=status",
    ] {
        assert_eq!(here.get(path, "").code, 401, "{path}");
    }
    let page = here.get("/", "");
    assert_eq!(page.code, 200);
    assert!(!page.body.contains(version), "{}", page.body);
    assert_eq!(here.get("/api/v1/session", "").json()["role"], "none");
    let cookie = here.session("viewer");
    assert!(here.get("/", &cookie).body.contains(version));
}

/// What it is, and the request; each would switch access off if it were believed.
const AMBIGUOUS: &[(&str, &str)] = &[
    (
        "both lengths",
        "POST /api/v1/access HTTP/1.1\r\nhost: localhost\r\nCOOKIEcontent-type: application/json\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\nf\r\n{\"level\":\"off\"}\r\n0\r\n\r\n",
    ),
    (
        "two lengths",
        "POST /api/v1/access HTTP/1.1\r\nhost: localhost\r\nCOOKIEcontent-type: application/json\r\ncontent-length: 15\r\ncontent-length: 2\r\n\r\n{\"level\":\"off\"}",
    ),
    (
        "a list of lengths",
        "POST /api/v1/access HTTP/1.1\r\nhost: localhost\r\nCOOKIEcontent-type: application/json\r\ncontent-length: 15, 2\r\n\r\n{\"level\":\"off\"}",
    ),
    (
        "a signed length",
        "POST /api/v1/access HTTP/1.1\r\nhost: localhost\r\nCOOKIEcontent-type: application/json\r\ncontent-length: +15\r\n\r\n{\"level\":\"off\"}",
    ),
    (
        "chunks",
        "POST /api/v1/access HTTP/1.1\r\nhost: localhost\r\nCOOKIEcontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nf\r\n{\"level\":\"off\"}\r\n0\r\n\r\n",
    ),
    (
        "bad chunks",
        "POST /api/v1/access HTTP/1.1\r\nhost: localhost\r\nCOOKIEcontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n-f\r\n{\"level\":\"off\"}\r\n0\r\n\r\n",
    ),
    (
        "another coding",
        "POST /api/v1/access HTTP/1.1\r\nhost: localhost\r\nCOOKIEcontent-type: application/json\r\ntransfer-encoding: xchunked\r\ncontent-length: 15\r\n\r\n{\"level\":\"off\"}",
    ),
    (
        "a folded header",
        "POST /api/v1/access HTTP/1.1\r\nhost: localhost\r\nCOOKIEcontent-type: application/json\r\nx: a\r\n content-length: 15\r\n\r\n{\"level\":\"off\"}",
    ),
    (
        "a space before the colon",
        "POST /api/v1/access HTTP/1.1\r\nhost: localhost\r\nCOOKIEcontent-type: application/json\r\ncontent-length : 15\r\n\r\n{\"level\":\"off\"}",
    ),
    (
        "a line feed alone",
        "POST /api/v1/access HTTP/1.1\nhost: localhost\nhost: evil.example\nCOOKIEcontent-type: application/json\ncontent-length: 15\n\n{\"level\":\"off\"}",
    ),
    (
        "two hosts",
        "POST /api/v1/access HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\nCOOKIEcontent-type: application/json\r\ncontent-length: 15\r\n\r\n{\"level\":\"off\"}",
    ),
    (
        "a NUL",
        "POST /api/v1/access HTTP/1.1\r\nhost: localhost\0\r\nCOOKIEcontent-type: application/json\r\ncontent-length: 15\r\n\r\n{\"level\":\"off\"}",
    ),
    (
        "another version",
        "POST /api/v1/access HTTP/9.9\r\nhost: localhost\r\nCOOKIEcontent-type: application/json\r\ncontent-length: 15\r\n\r\n{\"level\":\"off\"}",
    ),
];

#[test]
fn a_request_that_two_could_read_differently_is_refused() {
    let here = House::new(&[]);
    let cookie = here.session("operator");
    let level = |here: &House| here.on_socket("GET /api/v1/access", "").json()["level"].clone();
    let inner =
        "POST /api/v1/access HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    for (name, request) in AMBIGUOUS {
        let request = request.replace("COOKIE", &cookie);
        let heard = here.raw(request.as_bytes());
        let code = heard.as_ref().map_or(400, |heard| heard.code);
        assert!((400..500).contains(&code), "{name}: {code}");
        assert_eq!(level(&here), "full", "{name}");
        if let Some(heard) = heard {
            assert_eq!(
                heard.body.matches("HTTP/1.1").count(),
                0,
                "{name}: {}",
                heard.body
            );
        }
    }
    // A body that looks like a request is a body.
    let hidden = format!("{inner}{cookie}content-length: 15\r\n\r\n{{\"level\":\"off\"}}");
    let heard = here.ask("POST /api/v1/session", "", &hidden);
    assert_eq!(heard.code, 400, "{}", heard.body);
    assert_eq!(level(&here), "full");
}

#[test]
fn no_path_leads_out_of_the_page() {
    let here = House::new(&[]);
    for path in [
        "/assets/../../etc/passwd",
        "/assets/..%2f..%2fetc%2fpasswd",
        "/assets/%2e%2e/%2e%2e/etc/passwd",
        "/assets/....//etc/passwd",
        "/assets/..\\..\\etc\\passwd",
        "/assets/%252e%252e/%252e%252e/etc/passwd",
        "/assets/..%255c..%255cetc%255cpasswd",
        "/assets/%c0%ae%c0%ae/etc/passwd",
        "/assets//etc/passwd",
        "/../../etc/passwd",
        "//etc/passwd",
        "/assets/\u{ff0e}\u{ff0e}/x",
        "/api/v1/changes/../access/undo",
        "/api/v1/status/..",
        "/api/v1/status;x",
        "/api/v1/status%00",
        "/assets/app.css%00.js",
    ] {
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let heard = here.raw(request.as_bytes()).unwrap();
        assert!(
            matches!(heard.code, 400 | 404 | 405),
            "{path}: {}",
            heard.code
        );
        assert!(!heard.body.contains("root:"), "{path}");
    }
    let bytes =
        b"GET /assets/\xff\xfe\x80 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let code = here.raw(bytes).map_or(400, |heard| heard.code);
    assert!(matches!(code, 400 | 404), "{code}");
}

#[test]
fn a_thousand_that_say_nothing_keep_nobody_else_out() {
    let here = House::new(&[]);
    let mut silent = Vec::new();
    for n in 0..1000 {
        // Half of them begin a head and leave it there.
        if let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, here.port)) {
            if n % 2 == 0 {
                drop(stream.write_all(b"GET / HTTP/1.1\r\nx-slow: "));
            }
            silent.push(stream);
        }
        if n % 100 == 99 {
            let began = clock();
            assert_eq!(here.get("/healthz", "").code, 200);
            let took = clock().duration_since(began);
            assert!(
                took < Duration::from_secs(10),
                "after {n} silent ones: {took:?}"
            );
        }
    }
    assert!(silent.len() > 900, "{}", silent.len());
    assert_eq!(here.get("/api/v1/status", "").code, 200);
    assert_eq!(here.on_socket("GET /api/v1/status", "").code, 200);
}

#[test]
fn a_head_that_dribbles_is_cut_and_holds_up_nobody() {
    let here = House::new(&[]);
    let mut slow = TcpStream::connect((Ipv4Addr::LOCALHOST, here.port)).unwrap();
    slow.set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    slow.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ")
        .unwrap();
    // A byte now and then is no progress: the deadline is for the whole head.
    until("it is cut", Duration::from_secs(60), || {
        assert_eq!(here.get("/healthz", "").code, 200);
        let is_cut = slow.write_all(b"a").is_err();
        let mut answer = [0; 512];
        let read = slow.read(&mut answer);
        (is_cut
            || matches!(read, Ok(0))
            || read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset))
        .then_some(())
    });
    // It is counted, and a connection that is kept and let be is not.
    let mut quiet = TcpStream::connect((Ipv4Addr::LOCALHOST, here.port)).unwrap();
    quiet
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .unwrap();
    let mut heard = String::new();
    quiet.read_to_string(&mut heard).unwrap();
    assert!(heard.starts_with("HTTP/1.1 200 "), "{heard}");
    let mut nonsense = TcpStream::connect((Ipv4Addr::LOCALHOST, here.port)).unwrap();
    nonsense.write_all(b"\x16\x03\x01 what?\r\n\r\n").unwrap();
    nonsense.read_to_string(&mut heard).unwrap();
    let status = here.on_socket("GET /api/v1/status", "");
    let counts = r#""turned_away":{"full":0,"slow":1,"unreadable":1}"#;
    assert!(status.body.contains(counts), "{}", status.body);
    let metrics = here.get("/metrics", "").body;
    for line in ["slow\"} 1", "unreadable\"} 1", "full\"} 0"] {
        let line = format!("pipeops_agent_dashboard_turned_away_total{{why=\"{line}");
        assert!(metrics.contains(&line), "{metrics}");
    }
}

#[test]
fn viewers_are_told_what_changes_and_where_they_missed_something() {
    let mut here = House::new(&[]);
    assert_eq!(here.get("/api/v1/stream?topics=logs", "").code, 401);
    assert_eq!(here.get("/api/v1/stream?topics=weather", "").code, 400);
    let mut open = here.watch("status,ticks", "");
    open.until("content-type: text/event-stream");
    open.until("event: status\ndata: {");
    open.until("event: beat\ndata: {\"time\":");
    let cookie = here.session("viewer");
    let mut all = here.watch("status,ticks,events,logs,changes", &cookie);
    all.until("event: beat");
    let off = r#"{"level":"off"}"#;
    assert_eq!(here.on_socket("POST /api/v1/access", off).code, 200);
    all.until("event: log\ndata: {");
    all.until("access full -> off");
    all.until("event: status\ndata: {");
    all.until("\"level\":\"off\"");
    open.until("\"level\":\"off\"");
    here.restart();
    open.until_end();
    let mut back = here.watch("status", "last-event-id: 12345\r\n");
    back.until("event: reset");
}

#[test]
fn a_viewer_that_never_reads_costs_nothing_and_disturbs_nobody() {
    let here = House::new(&[]);
    let cookie = here.session("viewer");
    let mut mute: Vec<_> = (0..8)
        .map(|_| here.watch("status,ticks,events,logs,changes", &cookie))
        .collect();
    let mut reader = here.watch("logs", &cookie);
    reader.until("event: beat");
    let before = resident(&here.agent);
    for _ in 0..200 {
        assert_eq!(here.get("/api/v1/nothing", &cookie).code, 404);
    }
    for level in ["off", "full", "off"] {
        let body = json!({"level": level}).to_string();
        here.on_socket("POST /api/v1/access", &body);
        reader.until(&format!("-> {level}"));
    }
    let grown = resident(&here.agent).saturating_sub(before);
    assert!(grown < 4 << 20, "{grown} bytes");
    // The seventeenth is told that there are too many.
    mute.extend((0..7).map(|_| here.watch("status", "")));
    for viewer in mute.iter_mut().skip(8) {
        viewer.until("event: beat");
    }
    let heard = here.get("/api/v1/stream?topics=status", "");
    assert_eq!(heard.code, 503);
    assert!(heard.header("retry-after").is_some());
    assert_eq!(here.get("/healthz", "").code, 200);
}

/// The resident memory of the agent.
fn resident(agent: &Agent) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", agent.pid())).unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
