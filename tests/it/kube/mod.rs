//! Conversations with the Kubernetes API and with what lies before it: real TCP, real TLS, real
//! HTTP, against a server that does what a test tells it.

pub(crate) mod certificates;
mod client;
mod discovery;
mod events;
mod figures;
mod ledger;
mod net;
pub(crate) mod real;
mod server;
mod services;
mod watch;

use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use pipeops_agent::core::time::Wall;
use pipeops_agent::executor;
use pipeops_agent::host::clock;
use pipeops_agent::kube::kubeconfig::Source;
use pipeops_agent::kube::{Client, Settings};
use pipeops_agent::net::dial::Dialer;
use pipeops_agent::net::proxy::Proxies;
use pipeops_agent::net::tls::Clock;

use certificates::Authority;

/// Longer than any test may take.
const TEST_WITHIN: Duration = Duration::from_secs(180);

/// Long enough for everything on loopback.
const SOON: Duration = Duration::from_secs(60);

pub(crate) type Executor = Rc<executor::Executor>;

/// Runs a test with an executor of its own.
fn run<F: Future<Output = ()>>(test: impl FnOnce(Executor) -> F) {
    let executor = Executor::default();
    let test = test(Rc::clone(&executor));
    let ended = smol::block_on(executor.run(pipeops_agent::net::deadline(TEST_WITHIN, test)));
    ended.expect("the test took too long");
}

/// Waits for a level.
async fn until(what: &str, level: impl Fn() -> bool) {
    let waiting = async {
        while !level() {
            smol::Timer::after(Duration::from_millis(5)).await;
        }
    };
    let done = pipeops_agent::net::deadline(SOON, waiting).await;
    assert!(done.is_ok(), "not within {SOON:?}: {what}");
}

fn wall() -> Wall {
    clock::now().wall
}

fn now_clock() -> Clock {
    Clock::new(wall, Wall::default())
}

/// A kubeconfig on disk, written as a user's would be.
struct Kubeconfig {
    directory: tempfile::TempDir,
}

impl Kubeconfig {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().expect("a directory"),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("config")
    }

    /// `user` is the YAML of the user, one line.
    fn write(&self, server: &server::Server, authority: &Authority, user: &str) {
        let ca = base64(authority.pem().as_bytes());
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: c, user: u}}\nclusters:\n- name: c\n  cluster:\n    server: https://{}\n    certificate-authority-data: {ca}\nusers:\n- name: u\n  user: {user}\n",
            server.address()
        );
        // Written aside and renamed, as k3s does, so that no half file is seen.
        put(&self.directory.path().join("new"), &text);
        std::fs::rename(self.directory.path().join("new"), self.path()).expect("a rename");
    }

    fn client(&self, executor: &Executor) -> Client {
        let settings = Settings {
            source: Source::Files(vec![self.path()]),
            proxies: Proxies::default(),
            clock: now_clock(),
            now: clock::now,
            jobs: pipeops_agent::files::Jobs::default(),
        };
        Client::new(&settings, Dialer::default(), Rc::clone(executor))
    }
}

fn put(path: &std::path::Path, text: &str) {
    use std::io::Write;
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .expect("a file");
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// A user with a client certificate of `authority`.
fn certificate_user(authority: &Authority) -> String {
    let (certificate, key) = authority.client("system:admin");
    format!(
        "{{client-certificate-data: {}, client-key-data: {}}}",
        base64(certificate.as_bytes()),
        base64(key.as_bytes())
    )
}
