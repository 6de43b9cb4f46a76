//! `k3s install` and `k3s upgrade` over the network: a server of releases on loopback, with TLS,
//! that behaves and misbehaves. The machine is a folder.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Output,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use pipeops_agent::core::{
    doctor, format,
    k3s::{
        self,
        index::{Channel, Choice, Index},
    },
    time::Wall,
    update::{
        signature::PublicKey,
        signed::{KeyOrigin, Trust},
    },
};
use plane::{Options, Plane};
use ring::{
    digest::{SHA256, digest},
    signature::{Ed25519KeyPair, KeyPair as _},
};
use rustls::{ServerConfig, ServerConnection, StreamOwned, pki_types::PrivateKeyDer};

use crate::agent::{Agent, SOON, command, is_root_or_skip, output_text, put};

const VERSION: &str = "v1.34.4+k3s1";
const NEXT: &str = "v1.34.5+k3s1";
/// Long enough for tenths of progress.
const PROGRAM_BYTES: usize = 400_000;

/// A machine with systemd, whose k3s is Ready as soon as it is started.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        for name in [
            "etc/systemd/system/multi-user.target.wants",
            "usr/local/bin",
            "var/lib",
        ] {
            std::fs::create_dir_all(machine.path().join(name)).unwrap();
        }
        machine.put("config.toml", "", 0o600);
        machine.put("run/systemd/system/x", "", 0o644);
        machine.put("proc/sys/kernel/hostname", "box\n", 0o644);
        machine.put(
            "proc/meminfo",
            "MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\n",
            0o644,
        );
        machine.program("systemctl", "case \"$*\" in start*) mkdir -p run/k3s etc/rancher/k3s var/lib/rancher/k3s/server/db; : >var/lib/rancher/k3s/server/db/state.db; echo k >etc/rancher/k3s/k3s.yaml;; show*) printf 'ActiveState=active\\nNRestarts=0\\n';; esac");
        machine.program("k3s-killall.sh", "rm -rf run/k3s");
        machine.is(VERSION);
        machine
    }

    /// From now on its k3s says that it is this version.
    fn is(&self, version: &str) {
        self.program("k3s", &format!("case $1 in --version) echo 'k3s version {version} (x)';; kubectl) [ -d run/k3s ] && printf '{version}|True|2099-01-01T00:00:00Z|';; esac"));
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn put(&self, name: &str, text: &str, mode: u32) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        put(&path, text);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn program(&self, name: &str, script: &str) {
        let text = format!("#!/bin/sh\ncd \"${{0%/usr/sbin/*}}\" || exit 9\n{script}\n");
        self.put(&format!("usr/sbin/{name}"), &text, 0o755);
    }

    fn installed(&self) -> Option<Vec<u8>> {
        std::fs::read(self.path().join("usr/local/bin/k3s")).ok()
    }

    fn download(&self) -> PathBuf {
        self.path().join("var/keeper/download/k3s")
    }

    fn k3s(&self, server: &Server, words: &[&str]) -> Output {
        let root = self.path().display();
        let set = |text: String| ["--set".to_owned(), text];
        let settings = [
            format!("keeper.state_dir={root}/var/keeper"),
            format!("k3s.mirror={}/mirror/", server.url),
            format!("k3s.index={}/index", server.url),
            format!("update.key={}", signer(1).1),
            format!("tls.ca_file={}", server.ca.display()),
        ];
        let ignored = doctor::checks().map(|check| check.id);
        let ignored = ignored.chain(["disk.room", "disk.noexec", "cgroup.v1"]);
        command(env!("CARGO_BIN_EXE_pipeops-agent"))
            .arg("k3s")
            .args(words)
            .args(["--root", &root.to_string(), "--timeout", "10"])
            .args(settings.into_iter().flat_map(set))
            .args(ignored.flat_map(|id| ["--ignore", id]))
            .env("PIPEOPS_CONFIG", self.path().join("config.toml"))
            .output()
            .unwrap()
    }
}

/// A key of minisign: itself, and its public half.
fn signer(seed: u8) -> (Ed25519KeyPair, String) {
    let key = Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap();
    let public = BASE64.encode([b"Ed", &[1; 8][..], key.public_key().as_ref()].concat());
    (key, public)
}

fn hash(content: &[u8]) -> String {
    format::hex(digest(&SHA256, content).as_ref())
}

/// A program that is none, the same for every version.
fn program() -> Vec<u8> {
    (0..PROGRAM_BYTES)
        .map(|at| b'a' + u8::try_from(at % 7).unwrap())
        .collect()
}

fn binary() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "k3s-arm64",
        _ => "k3s",
    }
}

fn index(head: &str, of: &[u8]) -> String {
    let (sum, bytes, name) = (hash(of), of.len(), binary());
    let files = [VERSION, NEXT]
        .map(|version| format!("# bytes {bytes} {version}/{name}\n{sum}  {version}/{name}\n"));
    format!(
        "# role k3s-index\n{head}# channel stable {VERSION}\n# channel v1.34 {NEXT}\n{}",
        files.concat()
    )
}

const HEAD: &str = "# sequence 7\n# expires 2099-01-01T00:00:00Z\n";

/// A request, as far as it matters.
struct Request<'a> {
    path: &'a str,
    /// The whole head, with what the caller shows of itself.
    head: &'a str,
    /// First byte that is wanted.
    from: Option<usize>,
    /// Number of requests before it.
    turn: u32,
}

/// An answer. `sent` is how many bytes of the body follow before the connection ends.
struct Answer {
    status: &'static str,
    headers: String,
    body: Vec<u8>,
    sent: usize,
    pause: Duration,
}

impl Answer {
    fn whole(body: Vec<u8>) -> Self {
        Self {
            status: "200 OK",
            headers: String::new(),
            sent: body.len(),
            body,
            pause: Duration::ZERO,
        }
    }

    fn nothing(status: &'static str, headers: &str) -> Self {
        Self {
            status,
            headers: headers.to_owned(),
            ..Self::whole(Vec::new())
        }
    }
}

struct Server {
    url: String,
    ca: PathBuf,
    requests: AtomicU32,
}

/// Serves the index with the signature of `key`, and leaves all else to `answer`, while `work`
/// runs.
fn served(
    index: &str,
    key: u8,
    answer: impl Fn(&Request<'_>) -> Option<Answer> + Sync,
    work: impl FnOnce(&Server),
) {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let ca = folder.path().join("ca.pem");
    put(&ca, &made.cert.pem());
    let private = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let tls = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], private)
        .unwrap();
    let tls = Arc::new(tls);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server {
        url: format!("https://{address}"),
        ca,
        requests: AtomicU32::new(0),
    };
    let signature = BASE64.encode(
        [
            b"Ed",
            &[1; 8][..],
            signer(key).0.sign(index.as_bytes()).as_ref(),
        ]
        .concat(),
    );
    let signature = format!("untrusted comment: x\n{signature}\ntrusted comment: y\nz\n");
    let is_over = AtomicBool::new(false);
    let given = |request: &Request<'_>| match request.path {
        "/index/k3s-index" => Answer::whole(index.as_bytes().to_vec()),
        "/index/k3s-index.minisig" => Answer::whole(signature.clone().into_bytes()),
        _ => answer(request).unwrap_or_else(|| Answer::nothing("404 Not Found", "")),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Ok((stream, _)) = listener.accept() {
                if is_over.load(Relaxed) {
                    break;
                }
                // One that hangs up has enough.
                let _end = converse(stream, &tls, &server, &given);
            }
        });
        // Also where the work panics: the scope waits for the server.
        let _end = End(&is_over, address);
        work(&server);
    });
}

/// Ends the server.
struct End<'a>(&'a AtomicBool, SocketAddr);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        drop(TcpStream::connect(self.1));
    }
}

fn converse(
    stream: TcpStream,
    tls: &Arc<ServerConfig>,
    server: &Server,
    given: &dyn Fn(&Request<'_>) -> Answer,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.set_write_timeout(Some(Duration::from_secs(30)))?;
    let session = ServerConnection::new(Arc::clone(tls)).map_err(std::io::Error::other)?;
    let mut reader = BufReader::new(StreamOwned::new(session, stream));
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let from = head.to_ascii_lowercase();
        let from = from.split("range: bytes=").nth(1);
        let from = from.and_then(|text| text.split('-').next()?.parse::<usize>().ok());
        let mut answer = given(&Request {
            path: head.split(' ').nth(1).unwrap(),
            head: &head,
            from,
            turn: server.requests.fetch_add(1, Relaxed),
        });
        let (all, out) = (answer.body.len(), reader.get_mut());
        if let Some(from) = from.filter(|_| all > 0) {
            answer.body.drain(..from);
            (answer.status, answer.sent) = ("206 Partial Content", all - from);
            answer.headers = format!("content-range: bytes {from}-{}/{all}\r\n", all - 1);
        }
        let (status, headers, length) = (answer.status, &answer.headers, answer.body.len());
        write!(
            out,
            "HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}\r\n"
        )?;
        for piece in answer.body[..answer.sent].chunks(40_000) {
            out.write_all(piece)?;
            out.flush()?;
            smol::block_on(smol::Timer::after(answer.pause));
        }
        out.flush()?;
        if answer.sent < length {
            return Ok(());
        }
    }
}

/// The path of the program of a version.
fn at(version: &str) -> String {
    format!("/mirror/{}/{}", version.replace('+', "%2B"), binary())
}

/// An installation that is refused: its words, which leave nothing behind.
fn refused(
    index: &str,
    key: u8,
    words: &[&str],
    answer: impl Fn(&Request<'_>) -> Option<Answer> + Sync,
) -> String {
    let machine = Machine::new();
    let mut said = String::new();
    served(index, key, answer, |server| {
        let output = machine.k3s(server, words);
        said = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
    });
    assert_eq!(machine.installed(), None, "{said}");
    said
}

#[test]
fn k3s_comes_over_the_network_with_a_hash_of_the_signed_index() {
    if !is_root_or_skip("it takes root") {
        return;
    }
    let machine = Machine::new();
    let good = |request: &Request<'_>| {
        let is_wanted = [VERSION, NEXT]
            .iter()
            .any(|version| request.path == at(version));
        is_wanted.then(|| Answer::whole(program()))
    };
    served(&index(HEAD, &program()), 1, good, |server| {
        let plan = machine.k3s(server, &["install", "--dry-run", "--json"]);
        let said = output_text(&plan);
        assert_eq!(plan.status.code(), Some(0), "{said}");
        let plan: serde_json::Value = serde_json::from_slice(&plan.stdout).unwrap();
        let download = &plan["plan"]["download"];
        assert_eq!(download["url"], format!("{}{}", server.url, at(VERSION)));
        assert_eq!(download["bytes"], PROGRAM_BYTES);
        assert_eq!(download["sha256"], hash(&program()));
        assert_eq!(download["to"], machine.download().display().to_string());
        assert_eq!(server.requests.load(Relaxed), 2, "a plan downloads nothing");
        assert!(!machine.path().join("var/keeper/k3s.index").exists());

        let done = machine.k3s(server, &["install"]);
        let said = output_text(&done);
        assert_eq!(done.status.code(), Some(0), "{said}");
        assert!(said.contains("400.0 KB of 400.0 KB"), "{said}");
        assert_eq!(machine.installed(), Some(program()));
        assert!(!machine.download().exists());

        let check = machine.k3s(server, &["upgrade", "--check"]);
        let said = output_text(&check);
        assert!(
            said.contains(&format!("upgrade k3s from {VERSION} to {NEXT}")),
            "{said}"
        );
        assert!(said.contains(&at(NEXT)), "{said}");
        machine.is(NEXT);
        let newest = output_text(&machine.k3s(server, &["upgrade", "--check"]));
        assert!(newest.contains("the newest of its channel"), "{newest}");
    });
    // From now on an older index is refused.
    let older = index(HEAD, &program()).replace("sequence 7", "sequence 6");
    served(
        &older,
        1,
        |_| None,
        |server| {
            let said = output_text(&machine.k3s(server, &["upgrade", "--check"]));
            assert!(said.contains("sequence 6 after 7"), "{said}");
        },
    );
}

#[test]
fn a_download_that_is_slow_cut_or_sent_on_arrives() {
    if !is_root_or_skip("it takes root") {
        return;
    }
    let machine = Machine::new();
    let resumed = AtomicU32::new(0);
    let answer = |request: &Request<'_>| {
        if request.path == at(VERSION) {
            return Some(Answer::nothing("302 Found", "location: /elsewhere\r\n"));
        }
        let is_cut = request.from.is_none();
        if let Some(from) = request.from {
            resumed.store(u32::try_from(from).unwrap(), Relaxed);
        }
        (request.path == "/elsewhere").then(|| Answer {
            sent: if is_cut { 250_000 } else { PROGRAM_BYTES },
            pause: Duration::from_millis(10),
            ..Answer::whole(program())
        })
    };
    served(&index(HEAD, &program()), 1, answer, |server| {
        let done = machine.k3s(server, &["install", "--channel", "stable"]);
        assert_eq!(done.status.code(), Some(0), "{}", output_text(&done));
    });
    assert_eq!(machine.installed(), Some(program()));
    assert_eq!(
        resumed.load(Relaxed),
        250_000,
        "it goes on where it was cut"
    );
}

#[test]
fn a_program_that_is_not_the_one_of_the_index_is_not_installed() {
    if !is_root_or_skip("it takes root") {
        return;
    }
    let good = index(HEAD, &program());
    let other = refused(&good, 1, &["install"], |_| {
        Some(Answer::whole(vec![b'x'; PROGRAM_BYTES]))
    });
    assert!(other.contains("its SHA-256 is"), "{other}");
    let long = refused(&good, 1, &["install"], |_| {
        Some(Answer::whole(vec![b'a'; PROGRAM_BYTES + 1]))
    });
    assert!(long.contains("400001 bytes or more, not 400000"), "{long}");
    let plain = refused(&good, 1, &["install"], |_| {
        Some(Answer::nothing(
            "302 Found",
            "location: http://127.0.0.1:1/login\r\n",
        ))
    });
    assert!(
        plain.contains("not https") && plain.contains("k3s.mirror"),
        "{plain}"
    );
    let round = refused(&good, 1, &["install"], |request| {
        Some(Answer::nothing(
            "302 Found",
            &format!("location: {}\r\n", request.path),
        ))
    });
    assert!(round.contains("too many redirects"), "{round}");
    let gone = refused(&good, 1, &["install"], |_| None);
    assert!(
        gone.contains("HTTP 404") && gone.contains("check k3s.mirror"),
        "{gone}"
    );
    // The beginning of a program of a processor that this test never runs on.
    let mut foreign = b"\x7fELF\x02\x01\x01".to_vec();
    foreign.resize(4096, 0);
    foreign[18] = if cfg!(target_arch = "x86_64") {
        183
    } else {
        62
    };
    let processor = refused(&index(HEAD, &foreign), 1, &["install"], |_| {
        Some(Answer::whole(foreign.clone()))
    });
    assert!(processor.contains("another processor"), "{processor}");
}

#[test]
fn no_version_is_taken_without_an_index_of_today_or_a_hash() {
    if !is_root_or_skip("it takes root") {
        return;
    }
    let good = index(HEAD, &program());
    let never = |request: &Request<'_>| -> Option<Answer> {
        assert!(
            !request.path.starts_with("/mirror"),
            "{} downloads",
            request.turn
        );
        None
    };
    let forged = refused(&good, 2, &["install"], never);
    assert!(forged.contains("signature is invalid"), "{forged}");
    let expired = index("# sequence 7\n# expires 2025-01-01T00:00:00Z\n", &program());
    let expired = refused(&expired, 1, &["install"], never);
    assert!(expired.contains("it expired at 2025-01-01"), "{expired}");
    let unknown = refused(&good, 1, &["install", "--version", "v1.33.1+k3s1"], never);
    assert!(unknown.contains("has no v1.33.1+k3s1"), "{unknown}");
    assert!(
        unknown.contains("k3s.index") && unknown.contains("--sha256 HEX"),
        "{unknown}"
    );
    let moves = refused(
        &good,
        1,
        &["install", "--channel", "stable", "--sha256", &hash(b"")],
        never,
    );
    assert!(moves.contains("channel stable changes"), "{moves}");

    // Root's own word needs no index, and no length.
    let machine = Machine::new();
    let answer = |request: &Request<'_>| {
        assert!(!request.path.starts_with("/index"));
        (request.path == at(VERSION)).then(|| Answer::whole(program()))
    };
    served("", 2, answer, |server| {
        let wrong = machine.k3s(server, &["install", "--sha256", &hash(b"another")]);
        let said = output_text(&wrong);
        assert!(said.contains("its SHA-256 is"), "{said}");
        assert_eq!(machine.installed(), None);
        let done = machine.k3s(
            server,
            &[
                "install",
                "--version",
                VERSION,
                "--sha256",
                &hash(&program()),
            ],
        );
        assert_eq!(done.status.code(), Some(0), "{}", output_text(&done));
        assert_eq!(machine.installed(), Some(program()));
    });
}

#[test]
fn the_index_that_is_made_for_releases_is_read() {
    let minisign = |words: &[&str]| command("minisign").args(words).output();
    if minisign(&["-v"]).is_err() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (secret, public) = (path("key"), path("key.pub"));
    let made = minisign(&[
        "-G",
        "-W",
        "-f",
        "-s",
        secret.to_str().unwrap(),
        "-p",
        public.to_str().unwrap(),
    ]);
    assert!(made.unwrap().status.success());
    std::fs::create_dir(path(VERSION)).unwrap();
    put(&path(VERSION).join("k3s-arm64"), "a program");
    let run = || {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/k3s-index");
        command(script)
            .arg(folder.path())
            .env("PIPEOPS_SIGNING_KEY", &secret)
            .env("PIPEOPS_CHANNELS", format!("stable {VERSION}"))
            .output()
            .unwrap()
    };
    let list = path(VERSION).join("sha256sum-arm64.txt");
    put(&list, &format!("{}  k3s-arm64\n", hash(b"another")));
    let refused = run();
    assert!(
        output_text(&refused).contains("is not the one of its list"),
        "{}",
        output_text(&refused)
    );
    put(&list, &format!("{}  k3s-arm64\n", hash(b"a program")));
    let made = run();
    assert!(made.status.success(), "{}", output_text(&made));
    let key = std::fs::read_to_string(public).unwrap();
    let trust = Trust {
        key: PublicKey::parse(key.lines().last().unwrap()).unwrap(),
        number: 0,
        origin: KeyOrigin::BuiltIn,
        sequence: 0,
        keys: 0,
    };
    let read = |name: &str| std::fs::read(path(name)).unwrap();
    let (text, signature) = (read("k3s-index"), read("k3s-index.minisig"));
    let index = Index::verified(&text, &signature, &trust, Wall::default()).unwrap();
    let version = index.version(Choice::Channel(Channel::Stable)).unwrap();
    let file = index
        .program(version, &k3s::names("aarch64").unwrap())
        .unwrap();
    assert_eq!((version.to_string().as_str(), file.bytes), (VERSION, 9));
}

/// The credential of a token, which nobody but its server may see.
const CREDENTIAL: &str = "abc123.0123456789abcdef";

/// The password of a cluster.
const PASSWORD: &str = "5d41402abc4b2a76b9719d911017c592";

/// Settings that all servers share.
const CONFIG: &str =
    r#"{"ClusterDomain": "edge.local", "FlannelBackend": "host-gw", "DisableNPC": true}"#;

/// A server of k3s that says this of its time, and takes the credential or not. Returns what it
/// says of a token was seen, too.
fn joined(
    machine: &Machine,
    (date, is_known, is_own): (&str, bool, bool),
    words: &[&str],
) -> (Output, bool) {
    joined_by(machine, CREDENTIAL, (date, is_known, is_own), words)
}

/// The same with this credential: what a password of k3s opens, and to whom, is in its router
/// (`pkg/server/handlers/router.go`).
fn joined_by(
    machine: &Machine,
    credential: &str,
    (date, is_known, is_own): (&str, bool, bool),
    words: &[&str],
) -> (Output, bool) {
    let index = index(HEAD, &program());
    let is_shown = AtomicBool::new(false);
    let ca = OnceLock::new();
    let mut output = None;
    let answer = |request: &Request<'_>| {
        if request.head.to_ascii_lowercase().contains("authorization:") {
            is_shown.store(true, Relaxed);
        }
        let shows = |expected: &str| is_known && request.head.contains(expected);
        let as_user = |user| {
            format!(
                "Authorization: Basic {}",
                BASE64.encode(format!("{user}:{PASSWORD}"))
            )
        };
        let mut answer = match request.path {
            "/cacerts" => Answer::whole(ca.get().cloned().unwrap_or_default()),
            "/version" if shows(&format!("Authorization: Bearer {CREDENTIAL}")) => {
                Answer::whole(format!("{{\"gitVersion\": \"{VERSION}\"}}").into_bytes())
            }
            "/v1-k3s/config" if shows(&as_user("node")) => Answer::whole(CONFIG.into()),
            "/v1-k3s/server-bootstrap" if shows(&as_user("server")) => Answer::whole(b"{}".into()),
            "/v1-k3s/config" if shows(&as_user("server")) => Answer::nothing("403 Forbidden", ""),
            "/version" | "/v1-k3s/config" | "/v1-k3s/server-bootstrap" => {
                Answer::nothing("401 Unauthorized", "")
            }
            path if path == at(VERSION) => Answer::whole(program()),
            _ => return None,
        };
        answer.headers = date.to_owned();
        Some(answer)
    };
    served(&index, 1, answer, |server| {
        let own = ca.get_or_init(|| std::fs::read(&server.ca).unwrap());
        let sum = if is_own { hash(own) } else { "0".repeat(64) };
        machine.put("token", &format!("K10{sum}::{credential}\n"), 0o600);
        let token = machine.path().join("token").display().to_string();
        let all = ["join", "--server", &server.url, "--token-file", &token];
        output = Some(machine.k3s(server, &[&all, words].concat()));
    });
    (output.unwrap(), is_shown.into_inner())
}

#[test]
fn a_worker_gets_the_version_of_its_server_and_its_token_is_in_no_journal() {
    if !is_root_or_skip("it takes root") {
        return;
    }
    let machine = Machine::new();
    let (output, _) = joined(&machine, ("", true, true), &["--dry-run", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    assert!(output_text(&output).contains(VERSION) && !output_text(&output).contains(CREDENTIAL));
    assert_eq!(machine.installed(), None);
    let (output, is_shown) = joined(&machine, ("", true, true), &["--label", "a=b"]);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    assert!(is_shown && !output_text(&output).contains(CREDENTIAL));
    assert_eq!(machine.installed(), Some(program()));
    let text = |name: &str| std::fs::read_to_string(machine.path().join(name)).unwrap();
    let token = text("etc/rancher/k3s/join-token");
    assert!(token.contains(CREDENTIAL));
    let settings = text("etc/rancher/k3s/config.yaml.d/50-pipeops-agent.yaml");
    assert!(
        settings.contains("server: \"https://127.0.0.1:") && !settings.contains(CREDENTIAL),
        "{settings}"
    );
    assert!(text("etc/systemd/system/k3s-agent.service").contains("k3s agent"));
    for entry in std::fs::read_dir(machine.path().join("var/keeper")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let content = std::fs::read(&path).unwrap();
            assert!(
                !String::from_utf8_lossy(&content).contains(CREDENTIAL),
                "{path:?}"
            );
        }
    }
}

#[test]
fn the_password_of_a_cluster_joins_and_tells_no_version() {
    if !is_root_or_skip("it takes root") {
        return;
    }
    let credential = format!("server:{PASSWORD}");
    let join = |is_known, words: &[&str]| {
        let machine = Machine::new();
        let (output, _) = joined_by(&machine, &credential, ("", is_known, true), words);
        let said = output_text(&output);
        assert!(!said.contains(PASSWORD), "{said}");
        (output.status.code(), said, machine)
    };
    for role in [&[][..], &["--server-role"]] {
        let (code, said, machine) = join(true, role);
        assert_eq!(code, Some(2), "{said}");
        assert!(
            said.contains("the version of the servers is not known"),
            "{said}"
        );
        assert_eq!(machine.installed(), None);
        let (code, said, _) = join(false, role);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("does not accept this token"), "{said}");
    }
    let (code, said, machine) = join(true, &["--version", VERSION]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(machine.installed(), Some(program()));
    let (code, said, _) = join(true, &["--server-role", "--version", VERSION, "--dry-run"]);
    assert_eq!(code, Some(0), "{said}");
    for words in ["as the server", "was not compared with it"] {
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn a_token_is_shown_to_its_own_server_only_and_with_a_right_clock_only() {
    if !is_root_or_skip("it takes root") {
        return;
    }
    let late = "date: Tue, 16 Jun 2020 05:50:28 GMT\r\n";
    for (server, is_shown, wanted) in [
        (
            ("", true, false),
            false,
            "is not the one that made this token",
        ),
        ((late, true, true), false, "the clock of this machine is"),
        (("", false, true), true, "does not accept this token"),
    ] {
        let machine = Machine::new();
        let (output, was_shown) = joined(&machine, server, &[]);
        let said = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(wanted), "{said}");
        assert!(!said.contains(CREDENTIAL), "{said}");
        assert_eq!((was_shown, machine.installed()), (is_shown, None), "{said}");
    }
}

#[test]
fn a_worker_is_never_newer_than_its_server() {
    if !is_root_or_skip("it takes root") {
        return;
    }
    let machine = Machine::new();
    let sum = hash(&program());
    let (output, _) = joined(
        &machine,
        ("", true, true),
        &["--version", NEXT, "--sha256", &sum],
    );
    assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
    assert!(
        output_text(&output).contains("newer than the server"),
        "{}",
        output_text(&output)
    );
    assert_eq!(machine.installed(), None);
}

/// Shell command that gives its arguments the machine's /run.
fn mount_run(machine: &Machine) -> String {
    let root = machine.path().display();
    format!("mount --bind {root}/run /run && exec \"$@\"")
}

/// One look of the watch.
fn look(machine: &Machine) {
    let root = machine.path().display();
    let output = command(env!("CARGO_BIN_EXE_pipeops-agent"))
        .args(["k3s", "watch", "--now", "--root", &root.to_string()])
        .args(["--set", &format!("keeper.state_dir={root}/var/keeper")])
        .env("PIPEOPS_CONFIG", machine.path().join("config.toml"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
}

#[test]
fn the_agent_shows_the_state_that_a_look_of_the_watch_left() {
    let can = command("unshare").args(["--mount", "true"]).status();
    if !nix::unistd::geteuid().is_root() || !can.is_ok_and(|status| status.success()) {
        println!("skipped: a machine with a /run of its own takes root, and unshare");
        return;
    }
    let machine = Machine::new();
    let shown = |ready: &str| {
        machine.program("k3s", &format!(
            "case \"$*\" in --version) echo 'k3s version {VERSION} (x)';; *items*) printf 'condition|Ready|{ready}|\\n';; \
             *plans*) exit 1;; kubectl*) [ -d run/k3s ] && printf '{VERSION}|True|2099-01-01T00:00:00Z|';; esac"
        ));
    };
    shown("True");
    machine.program(
        "iptables-save",
        "echo '*filter'; for n in $(seq 60); do echo '-A INPUT -j ACCEPT'; done",
    );
    let good =
        |request: &Request<'_>| (request.path == at(VERSION)).then(|| Answer::whole(program()));
    let plane = Plane::start(Options::default()).unwrap();
    let mount = mount_run(&machine);
    let words = ["unshare", "--mount", "--propagation", "private"];
    let words = [&words[..], &["sh", "-c", &mount, "sh"]].concat();
    let mut agent = Agent::new(&plane).under(&words);
    served(&index(HEAD, &program()), 1, good, |server| {
        let done = machine.k3s(server, &["install"]);
        assert_eq!(done.status.code(), Some(0), "{}", output_text(&done));
        look(&machine);
        agent.start();
        // While it starts, it answers about its status only.
        agent.until_linked();
        let report = agent.view("/api/v1/k3s");
        let left = std::fs::read(machine.path().join("run/pipeops-k3s/status")).unwrap();
        let left: serde_json::Value = serde_json::from_slice(&left).unwrap();
        assert_eq!(report["seen"], left);
        assert_eq!(left["version"], VERSION);
        assert_eq!(left["is_ready"], true);
        assert_eq!(left["faults"][0]["id"], "k3s.firewall-duplicates");
        let condition = agent.until_condition("k3s.fault", SOON);
        let sentence = condition["sentence"].as_str().unwrap();
        assert!(sentence.starts_with("59 firewall rules"), "{condition}");
        let (_, said) = agent.cli(&["status"]);
        for words in [
            "k3s runs, and its node is Ready",
            VERSION,
            sentence,
            "prefer-bundled-bin",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
        // The next look is shown as soon as somebody asks.
        shown("False");
        let memory = machine.path().join("run/pipeops-k3s/watch");
        drop(std::fs::remove_file(memory));
        look(&machine);
        let seen = agent.view("/api/v1/k3s");
        assert_eq!(seen["seen"]["is_ready"], false, "{seen}");
        let open = seen["seen"]["open"].to_string();
        assert!(open.contains("the node is not Ready"), "{seen}");
        assert_eq!(
            seen["rows"][0]["value"],
            "k3s is installed, but its node is not Ready"
        );
    });
}

#[test]
fn a_dry_run_of_any_command_of_k3s_changes_nothing() {
    if !is_root_or_skip("it takes root") {
        return;
    }
    let machine = Machine::new();
    machine.program("k3s", &format!(
        "echo \"$*\" >>calls; case \"$*\" in --version) echo 'k3s version {VERSION} (x)';; *InternalIP*address*) echo 192.0.2.7;; \
         kubectl*) printf '{VERSION}|True|2099-01-01T00:00:00Z|';; esac"
    ));
    machine.put("usr/local/bin/k3s", "", 0o755);
    machine.put("run/k3s/x", "", 0o644);
    let unit = "[Service]\nExecStart=/usr/local/bin/k3s server\n";
    machine.put("etc/systemd/system/k3s.service", unit, 0o644);
    let root = machine.path().display().to_string();
    let run = |words: &[&str]| {
        let output = command(env!("CARGO_BIN_EXE_pipeops-agent"))
            .arg("k3s")
            .args(words)
            .args(["--root", &root])
            .args(["--set", &format!("keeper.state_dir={root}/var/keeper")])
            .env("PIPEOPS_CONFIG", machine.path().join("config.toml"))
            .output()
            .unwrap();
        (output.status.code(), output_text(&output))
    };
    let note = machine.path().join("var/keeper/k3s.managed");
    let (code, said) = run(&["adopt", "--yes"]);
    assert!(code == Some(0) && note.exists(), "{said}");
    for (words, told) in [
        (&["adopt", "--undo"][..], "k3s.managed"),
        (&["token"], "token create --ttl 60m"),
        (
            &["token", "--to", "/root/no-such-token"],
            "/root/no-such-token",
        ),
        (&["kubeconfig"], "kube-system/pipeops-viewer"),
    ] {
        let (code, said) = run(&[words, &["--dry-run"]].concat());
        assert_eq!(code, Some(0), "{words:?}: {said}");
        assert!(said.contains(told), "{words:?}: {said}");
    }
    let (code, said) = run(&["watch", "--now", "--dry-run"]);
    assert!(code == Some(2) && said.contains("k3s status"), "{said}");
    let calls = std::fs::read_to_string(machine.path().join("calls")).unwrap();
    assert!(
        !calls.contains("create") && !calls.contains("apply"),
        "{calls}"
    );
    assert!(note.exists() && !Path::new("/root/no-such-token").exists());
    let (code, said) = run(&["adopt", "--undo"]);
    assert!(code == Some(0) && !note.exists(), "{said}");
}
