//! A Git server on loopback: `git http-backend` behind TLS, with repositories that a test changes.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU32, Ordering},
    },
};

use base64::{Engine, engine::general_purpose::STANDARD};
use rustls::{ServerConnection, StreamOwned};

use crate::{
    agent::{Agent, command, put},
    kube::certificates::{Authority, Valid},
};

/// User and password that the server asks for, where it does.
pub(super) const CREDENTIALS: &str = "deploy:pa55-6d0c";

/// Behaviour of the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mood;

impl Mood {
    pub(super) const OPEN: u8 = 0;
    /// It asks for credentials.
    pub(super) const CLOSED: u8 = 1;
    /// It names another address.
    pub(super) const MOVED: u8 = 2;
    /// It answers nothing.
    pub(super) const AWAY: u8 = 3;
    const OVER: u8 = 4;
}

/// A server with one repository, until it is dropped.
pub(super) struct Forge {
    folder: tempfile::TempDir,
    address: SocketAddr,
    mood: Arc<AtomicU8>,
    /// Connections so far.
    asked: Arc<AtomicU32>,
    authority: Authority,
}

impl Forge {
    #[expect(
        clippy::disallowed_methods,
        reason = "a server of the test; its threads end with their connections"
    )]
    pub(super) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let tls = authority.server(Valid::Now);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mood = Arc::new(AtomicU8::new(Mood::OPEN));
        let root = folder.path().to_owned();
        let now = Arc::clone(&mood);
        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::Relaxed);
                let mood = now.load(Ordering::Relaxed);
                if mood == Mood::OVER {
                    return;
                }
                if mood == Mood::AWAY {
                    continue;
                }
                let tls = ServerConnection::new(Arc::clone(&tls)).unwrap();
                let root = root.clone();
                std::thread::spawn(move || {
                    let _the_client_went = serve(StreamOwned::new(tls, stream), &root, mood);
                });
            }
        });
        let forge = Self {
            folder,
            address,
            mood,
            asked,
            authority,
        };
        forge.git(&["init", "--quiet", "--initial-branch=main", "web"]);
        forge
    }

    /// The folder of the repository, with its files.
    pub(super) fn folder(&self) -> PathBuf {
        self.folder.path().join("web")
    }

    pub(super) fn host(&self) -> String {
        self.address.to_string()
    }

    pub(super) fn url(&self) -> String {
        format!("https://{}/web/.git", self.address)
    }

    /// Connections so far.
    pub(super) fn asked(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }

    pub(super) fn ca_pem(&self) -> String {
        self.authority.pem()
    }

    /// Adds its authority to those that an agent trusts.
    pub(super) fn is_trusted_by(&self, agent: &Agent) {
        let ca_file = agent.folder().join("ca.pem");
        let known = std::fs::read_to_string(&ca_file).unwrap();
        put(&ca_file, &(known + &self.ca_pem()));
    }

    pub(super) fn is(&self, mood: u8) {
        self.mood.store(mood, Ordering::Relaxed);
    }

    /// Runs git in the folder of all repositories, or with `-C` elsewhere.
    pub(super) fn git(&self, words: &[&str]) -> String {
        git(self.folder.path(), words)
    }

    /// Runs git in the repository.
    pub(super) fn here(&self, words: &[&str]) -> String {
        git(&self.folder(), words)
    }

    /// Commits files, and returns the commit.
    pub(super) fn commit(&self, files: &[(&str, &str)]) -> String {
        for (name, text) in files {
            let path = self.folder().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            put(&path, text);
        }
        self.here(&["add", "--all"]);
        self.here(&["commit", "--quiet", "--allow-empty", "--message", "change"]);
        self.here(&["rev-parse", "HEAD"])
    }
}

impl Drop for Forge {
    fn drop(&mut self) {
        self.is(Mood::OVER);
        TcpStream::connect(self.address).ok();
    }
}

fn git(folder: &Path, words: &[&str]) -> String {
    let output = command("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@test.invalid"])
        .args([
            "-c",
            "core.compression=0",
            "-c",
            "protocol.file.allow=always",
        ])
        .args(words)
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "git {words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// One request of a connection.
fn serve(
    stream: StreamOwned<ServerConnection, TcpStream>,
    root: &Path,
    mood: u8,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        head.push(line.trim_end().to_owned());
        line.clear();
    }
    // Who leaves without a request has nothing to be told.
    let Some(request) = head.first() else {
        return Ok(());
    };
    let header = |name: &str| {
        let found = head.iter().skip(1).filter_map(|line| line.split_once(':'));
        let mut found = found.filter(|(known, _)| known.eq_ignore_ascii_case(name));
        found.next().map_or("", |(_, value)| value.trim())
    };
    let length = header("content-length").parse().unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let basic = format!("Basic {}", STANDARD.encode(CREDENTIALS));
    let refusal: &[u8] = if mood == Mood::MOVED {
        b"HTTP/1.1 301 Moved\r\nlocation: https://127.0.0.1:1/other\r\n"
    } else if mood == Mood::CLOSED && header("authorization") != basic {
        b"HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Basic realm=\"test\"\r\n"
    } else {
        b""
    };
    let mut words = request.split(' ');
    let (Some(method), Some(target)) = (words.next(), words.next()) else {
        return Ok(());
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let variables = [
        ("GIT_PROJECT_ROOT", root.to_str().unwrap()),
        ("GIT_HTTP_EXPORT_ALL", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("REQUEST_METHOD", method),
        ("PATH_INFO", path),
        ("QUERY_STRING", query),
        ("CONTENT_TYPE", header("content-type")),
        ("HTTP_CONTENT_ENCODING", header("content-encoding")),
        ("GIT_PROTOCOL", header("git-protocol")),
    ];
    let mut stream = if refusal.is_empty() {
        let mut stream = reader.into_inner();
        backend(&variables, &body, &mut stream)?;
        stream
    } else {
        let mut stream = reader.into_inner();
        stream.write_all(refusal)?;
        stream.write_all(b"content-length: 0\r\nconnection: close\r\n\r\n")?;
        stream
    };
    stream.conn.send_close_notify();
    stream.flush()
}

/// Passes an answer of the program of git on, as one of HTTP, while it comes.
fn backend(
    variables: &[(&str, &str)],
    body: &[u8],
    stream: &mut impl Write,
) -> std::io::Result<()> {
    let mut child = command("git")
        .arg("http-backend")
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    // Where nobody takes its answer any more it ends by that.
    let passed_on = pass_on(&mut child, body, stream);
    child.wait()?;
    passed_on
}

fn pass_on(child: &mut Child, body: &[u8], stream: &mut impl Write) -> std::io::Result<()> {
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Ok(());
    };
    input.write_all(body).ok();
    drop(input);
    let mut output = BufReader::with_capacity(64 << 10, output);
    let mut first = String::new();
    output.read_line(&mut first)?;
    let named = first.strip_prefix("Status: ");
    let status = named.and_then(|rest| rest.get(..3)).unwrap_or("200");
    let head = format!("HTTP/1.1 {status} it is\r\nconnection: close\r\n{first}");
    stream.write_all(head.as_bytes())?;
    std::io::copy(&mut output, stream).map(drop)
}
