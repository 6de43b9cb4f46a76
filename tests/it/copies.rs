//! Copies of backups of k3s in a bucket, on a server that checks signatures by an implementation of
//! its own, and misbehaves.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    rc::Rc,
    sync::OnceLock,
    time::Duration,
};

use pipeops_agent::{
    core::{
        k3s::backup::{Form, Owner, name},
        s3::{Bucket, Signer},
        secret::Secret,
        time::{Mono, Wall},
        url::Url,
    },
    files,
    host::clock,
    net::{
        deadline,
        dial::Dialer,
        proxy::Proxies,
        tls::{self, Clock, Roots, Tls},
    },
    outside::{
        s3::{Caller, Store},
        transport::Transport,
    },
    tasks::{
        machine::copies::{self, MISSING, Uploader},
        state::{CopiesView, SharedState},
    },
};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use smol::{Timer, future::or};

use crate::{
    agent::{SOON, command},
    kube::certificates::Authority,
};

const SECRET: &str = "not-a-secret/+=";
const DAY_MS: i64 = 86_400_000;

struct Server {
    child: Child,
    port: u16,
    tls: Option<Tls>,
}

impl Server {
    /// `None`: there is no Python.
    fn start() -> Option<Self> {
        Self::run(&[], None)
    }

    /// One with TLS, for `name`; `trusted` is what its caller trusts.
    fn start_tls(
        name: &str,
        trusted: impl FnOnce(&CertifiedKey<KeyPair>) -> String,
    ) -> Option<Self> {
        let made = generate_simple_self_signed([name.to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let files = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
        let texts = [made.cert.pem(), made.signing_key.serialize_pem()];
        for (file, text) in files.iter().zip(texts) {
            files::replace(file, text.as_bytes(), 0o600).unwrap();
        }
        let settings = tls::Settings {
            roots: Roots::BuiltIn,
            extra_ca_pem: Some(trusted(&made).into_bytes()),
            ..tls::Settings::default()
        };
        let tls = Tls::new(&settings, Clock::new(|| clock::now().wall, Wall::default())).unwrap();
        // It has read them once it says its port.
        Self::run(&files.each_ref().map(PathBuf::as_path), Some(tls))
    }

    fn run(words: &[&Path], tls: Option<Tls>) -> Option<Self> {
        let mut child = command(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3-server"))
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .inspect_err(|error| println!("skipped: {error}"))
            .ok()?;
        let mut line = String::new();
        let output = child.stdout.take().map(BufReader::new);
        let read = output.map(|mut output| output.read_line(&mut line));
        assert!(matches!(read, Some(Ok(_))), "it says no port");
        let port = line.trim().parse().unwrap_or_default();
        Some(Self { child, port, tls })
    }

    fn store(&self, folder: &str) -> Store {
        let scheme = self.tls.as_ref().map_or("http", |_| "https");
        let url = format!("{scheme}://127.0.0.1:{}/backups/{folder}", self.port);
        let url = Url::parse(&url).unwrap();
        Store {
            transport: Transport {
                dialer: Dialer::default(),
                proxies: Proxies::default(),
                tls: self.tls.clone(),
                user_agent: "test".to_owned(),
                clock: || Mono::since_boot(Duration::ZERO),
            },
            bucket: Bucket::parse(&url.path).unwrap(),
            url,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn signer(secret: &str) -> Signer {
    Signer {
        key_id: "AKIDTEST".to_owned(),
        secret: Secret::new(secret),
        region: "us-east-1".to_owned(),
    }
}

const CLUSTER: &str = "3f9a1c07";

fn name_of(node: &str, days_ago: i64) -> String {
    name_in(CLUSTER, node, days_ago)
}

/// The same name each time, also when the second is over.
fn name_in(cluster: &str, node: &str, days_ago: i64) -> String {
    static NOW: OnceLock<i64> = OnceLock::new();
    let now = NOW.get_or_init(|| clock::now().wall.millis());
    let at = Wall::from_millis(now - days_ago * DAY_MS);
    name(Owner { node, cluster }, at, Form::Encrypted)
}

/// Backups in root's directory, each with its age in days.
fn left(spool: &Path, days: &[i64]) {
    for day in days {
        let text = format!("age-encryption.org/v1\n{day} {}", "x".repeat(200_000));
        files::replace(&spool.join(name_of("box", *day)), text.as_bytes(), 0o600).unwrap();
    }
}

/// Runs the task until what it shows is as `until` says.
fn copied(
    store: Store,
    secret: &'static str,
    spool: &Path,
    until: impl Fn(&CopiesView, &SharedState) -> bool,
) -> (CopiesView, Rc<SharedState>) {
    let shared_state = Rc::new(SharedState::new(clock::now));
    let parts = Uploader {
        store,
        signer: Box::new(move || Box::pin(async move { Ok(signer(secret)) })),
        spool: spool.to_owned(),
        every: Some(Duration::from_hours(24)),
        poll_interval: Duration::from_millis(20),
        shared_state: Rc::clone(&shared_state),
    };
    let is_it = || {
        let view = shared_state.copies.borrow();
        view.as_ref().is_some_and(|view| until(view, &shared_state))
    };
    let watch = async {
        let waiting = async {
            while !is_it() {
                Timer::after(Duration::from_millis(10)).await;
            }
        };
        let done = deadline(SOON, waiting).await;
        assert!(
            done.is_ok(),
            "not within {SOON:?}: {:?}",
            shared_state.copies.borrow()
        );
    };
    smol::block_on(or(copies::run(&parts), watch));
    let view = shared_state.copies.borrow().clone().unwrap();
    (view, shared_state)
}

fn listed(store: &Store) -> Vec<(String, u64)> {
    let signer = signer(SECRET);
    let caller = Caller {
        signer: &signer,
        now: clock::now().wall,
    };
    smol::block_on(store.list("", caller)).unwrap()
}

fn told(shared_state: &SharedState) -> Option<String> {
    shared_state.with_conditions(|all| {
        let found = all.get(MISSING)?;
        let fix = found.fix.clone().unwrap_or_default();
        Some(format!("{} | {fix}", found.sentence))
    })
}

#[test]
fn what_root_left_is_copied_and_what_is_one_too_many_is_removed() {
    let Some(server) = Server::start() else {
        return;
    };
    let spool = tempfile::tempdir().unwrap();
    left(spool.path(), &[0, 1, 2]);
    let plain = spool.path().join("k3s-box-20261123T033700Z.tar.gz");
    files::replace(&plain, b"plain", 0o600).unwrap();
    let store = server.store("box");
    let signer = signer(SECRET);
    let caller = Caller {
        signer: &signer,
        now: clock::now().wall,
    };
    let sum = files::sum(&spool.path().join(name_of("box", 1))).unwrap();
    // Old ones, one that is too old, one of another node, those of a cluster whose node has the
    // same name, and something of somebody else.
    let mut earlier: Vec<_> = (3..9).map(|day| name_of("box", day)).collect();
    let mut others = vec![name_of("box-2", 1), "k3s-box-notes.txt".to_owned()];
    others.extend((0..8).map(|day| name_in("0a0a0a0a", "box", day)));
    others.push(name_in("", "box", 50));
    earlier.push(name_of("box", 100));
    earlier.extend(others.iter().cloned());
    let from = spool.path().join(name_of("box", 1));
    for object in &earlier {
        let put = store.put(object, (&from, sum.as_ref().unwrap()), caller);
        smol::block_on(put).unwrap();
    }
    let (view, state) = copied(store.clone(), SECRET, spool.path(), |view, _| {
        view.checked.is_some()
    });
    assert_eq!((view.count, view.why, view.doing), (7, None, None));
    assert_eq!(view.newest.unwrap().name, name_of("box", 0));
    assert_eq!(told(&state), None);
    let mut wanted: Vec<_> = (0..7)
        .map(|day| name_of("box", day))
        .chain(others)
        .collect();
    wanted.sort();
    let mut found: Vec<_> = listed(&store).into_iter().map(|(name, _)| name).collect();
    found.sort();
    assert_eq!(found, wanted);
}

#[test]
fn a_server_that_misbehaves_is_told_and_nothing_counts_that_did_not_arrive() {
    let Some(server) = Server::start() else {
        return;
    };
    let spool = tempfile::tempdir().unwrap();
    left(spool.path(), &[0, 1]);
    let has_told = |_: &CopiesView, state: &SharedState| told(state).is_some();
    for (folder, secret, word) in [
        ("busy", SECRET, "HTTP 503 Service Unavailable: SlowDown"),
        ("denied", SECRET, "s3:PutObject"),
        (
            "elsewhere",
            SECRET,
            "127.0.0.2:9/backups\", which is not followed",
        ),
        ("endless", SECRET, "more than 10 pages"),
        ("short", SECRET, "bytes there, not"),
        ("cut", SECRET, "backups are not copied"),
        ("fine", "another", "k3s.backup_s3_secret_file"),
    ] {
        let (view, state) = copied(server.store(folder), secret, spool.path(), has_told);
        let told = told(&state).unwrap();
        assert!(told.contains(word), "{folder}: {told}");
        assert_eq!((view.newest, view.count), (None, 0), "{folder}");
        assert!(!format!("{told}{:?}", view.why).contains(SECRET));
    }
    // A part of it is there, with another length.
    let part = listed(&server.store("cut"));
    assert!(
        part.iter().all(|(_, bytes)| *bytes < 200_000) && !part.is_empty(),
        "{part:?}"
    );
}

#[test]
fn a_server_that_was_busy_has_the_copies_later_and_one_that_keeps_all_is_no_fault() {
    let Some(server) = Server::start() else {
        return;
    };
    let spool = tempfile::tempdir().unwrap();
    left(spool.path(), &[0, 1]);
    let is_done = |view: &CopiesView, _: &SharedState| view.checked.is_some();
    let (view, state) = copied(server.store("once"), SECRET, spool.path(), is_done);
    assert_eq!((view.count, told(&state)), (2, None));

    left(spool.path(), &[2, 3, 4, 5, 6, 7, 8, 9]);
    let store = server.store("keeps");
    let signer = signer(SECRET);
    let caller = Caller {
        signer: &signer,
        now: clock::now().wall,
    };
    for day in 0..10 {
        let path = spool.path().join(name_of("box", day));
        let sum = files::sum(&path).unwrap().unwrap();
        smol::block_on(store.put(&name_of("box", day), (&path, &sum), caller)).unwrap();
    }
    let (view, state) = copied(store, SECRET, spool.path(), is_done);
    assert_eq!((view.count, view.keeps_all, told(&state)), (10, true, None));

    // It takes seven objects: an old one goes first.
    let store = server.store("full");
    for day in 1..8 {
        let path = spool.path().join(name_of("box", day));
        let sum = files::sum(&path).unwrap().unwrap();
        smol::block_on(store.put(&name_of("box", day), (&path, &sum), caller)).unwrap();
    }
    let (view, state) = copied(store.clone(), SECRET, spool.path(), is_done);
    assert_eq!((view.count, told(&state)), (7, None));
    assert_eq!(view.newest.unwrap().name, name_of("box", 0));
    let path = spool.path().join(name_of("box", 0));
    let sum = files::sum(&path).unwrap().unwrap();
    let refused = smol::block_on(store.put("another", (&path, &sum), caller)).unwrap_err();
    assert!(refused.fix.unwrap().contains("quota"));
}

#[test]
fn a_directory_that_stays_empty_is_told_only_where_backups_are_late() {
    let Some(server) = Server::start() else {
        return;
    };
    let spool = tempfile::tempdir().unwrap();
    let (view, state) = copied(server.store("empty"), SECRET, spool.path(), |_, _| true);
    assert_eq!((view.checked, told(&state)), (None, None));
    // Long ago, and by a clock that was ahead.
    for day in [5, -500] {
        let spool = tempfile::tempdir().unwrap();
        left(spool.path(), &[day]);
        let has_told = |_: &CopiesView, state: &SharedState| told(state).is_some();
        let (view, state) = copied(server.store("late"), SECRET, spool.path(), has_told);
        assert!(view.count > 0, "it is copied all the same");
        let told = told(&state).unwrap();
        assert!(told.contains("the newest backup to copy is from"), "{told}");
    }
}

#[test]
fn copies_go_to_a_server_whose_certificate_is_trusted_and_to_no_other() {
    let spool = tempfile::tempdir().unwrap();
    left(spool.path(), &[0, 1]);
    let own = |made: &CertifiedKey<KeyPair>| made.cert.pem();
    let Some(server) = Server::start_tls("127.0.0.1", own) else {
        return;
    };
    let store = server.store("tls");
    let is_done = |view: &CopiesView, _: &SharedState| view.checked.is_some();
    let (view, state) = copied(store.clone(), SECRET, spool.path(), is_done);
    assert_eq!((view.count, told(&state)), (2, None));
    assert_eq!(
        view.at,
        format!("https://127.0.0.1:{}/backups/tls", server.port)
    );
    assert_eq!(listed(&store).len(), 2);

    let other = |_: &CertifiedKey<KeyPair>| Authority::new().pem();
    for (server, words) in [
        (
            Server::start_tls("127.0.0.1", other),
            ["is not signed by a trusted CA", "set tls.ca_file to the CA"],
        ),
        (
            Server::start_tls("s3.example.com", own),
            [
                "is for another name",
                "use a name that the certificate contains",
            ],
        ),
    ] {
        let server = server.unwrap();
        let has_told = |_: &CopiesView, state: &SharedState| told(state).is_some();
        let (view, state) = copied(server.store("tls"), SECRET, spool.path(), has_told);
        let told = told(&state).unwrap();
        for word in words
            .iter()
            .chain(&["backups are not copied to https://127.0.0.1"])
        {
            assert!(told.contains(word), "{told}");
        }
        assert_eq!((view.newest, view.count), (None, 0), "{told}");
    }
}
