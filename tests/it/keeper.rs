//! The root helper as a real process of root, on a tree that stands for a machine: who is served,
//! what a kill at any moment leaves behind, what it does at rest.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        net::{UnixDatagram, UnixStream},
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use nix::{
    fcntl::{Flock, FlockArg},
    sys::signal::{Signal, kill},
    unistd::{Pid, User},
};
use proptest::{
    collection::vec, option, prelude::*, sample::select, strategy::ValueTree as _,
    test_runner::TestRunner,
};
use serde_json::{Value, json};

use crate::{
    agent::{command, copy_program, is_root_or_skip, put, until},
    store::can_trace,
};

/// The user in the place of the agent's: it is on every machine.
const USER: &str = "nobody";
/// Somebody else.
const STRANGER: u32 = 54_321;
/// Number of SIGTERM.
const TERM: i32 = 15;
/// A fix may wait for a disk, under strace and beside everything else.
const LONG: Duration = Duration::from_secs(60);

/// Root's helper with a folder of its own. Dropping it kills it.
struct Helper {
    folder: tempfile::TempDir,
    child: Option<Child>,
}

/// `None`, and a word about it, where the test cannot run.
fn helper() -> Option<Helper> {
    if !is_root_or_skip("the root helper runs as root") {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let helper = Helper {
        folder,
        child: None,
    };
    for (path, text) in [
        ("proc/sys/fs/inotify/max_user_instances", "128\n"),
        ("proc/sys/fs/inotify/max_user_watches", "8192\n"),
        ("etc/hostname", "edge\n"),
    ] {
        helper.place(path, text);
    }
    let name = |name: &str| helper.folder.path().join(name).display().to_string();
    put(
        &helper.folder.path().join("config.toml"),
        &format!(
            "[keeper]\nsocket = \"{}\"\nstate_dir = \"{}\"\nuser = \"{USER}\"\n[dashboard]\nsocket = \"{}\"\n",
            name("run/keeper.sock"),
            name("state"),
            name("no-agent.sock"),
        ),
    );
    let config = helper.folder.path().join("config.toml");
    std::fs::set_permissions(config, std::fs::Permissions::from_mode(0o644)).unwrap();
    copy_program(&helper.path("pipeops-agent"));
    Some(helper)
}

impl Helper {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file of the tree.
    fn place(&self, path: &str, text: &str) {
        let path = self.path("tree").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        put(&path, text);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
    }

    /// Everything in the tree.
    fn tree(&self) -> BTreeMap<PathBuf, String> {
        let mut all = BTreeMap::new();
        let mut open = vec![self.path("tree")];
        while let Some(folder) = open.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    open.push(path.clone());
                }
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                all.insert(path, text);
            }
        }
        all
    }

    fn words(&self, words: &[&str]) -> Vec<String> {
        let named = ["--root", "tree", "--config", "config.toml"];
        let (options, paths): (Vec<_>, Vec<_>) =
            named.chunks(2).map(|pair| (pair[0], pair[1])).unzip();
        let options = options
            .into_iter()
            .zip(paths)
            .flat_map(|(option, path)| [option.to_owned(), self.path(path).display().to_string()]);
        words
            .iter()
            .map(|word| (*word).to_owned())
            .chain(options)
            .collect()
    }

    /// Starts it by these words, before the program.
    fn start_by(&mut self, before: &[&str], notify: Option<&Path>) {
        let log = std::fs::File::options()
            .append(true)
            .create(true)
            .open(self.path("log"))
            .unwrap();
        let program = self.path("pipeops-agent").display().to_string();
        let mut words: Vec<_> = before.iter().map(|word| (*word).to_owned()).collect();
        words.push(program);
        let mut process = command(&words[0]);
        process
            .args(&words[1..])
            .args(self.words(&["keeper"]))
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        if let Some(notify) = notify {
            process.env("NOTIFY_SOCKET", notify);
        }
        self.child = Some(process.spawn().unwrap());
    }

    fn start(&mut self) {
        self.start_by(&[], None);
        until("the helper listens", LONG, || {
            UnixStream::connect(self.path("run/keeper.sock"))
                .ok()
                .map(drop)
        });
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.as_ref().unwrap().id()).unwrap()
    }

    /// Waits until it began again: with one thread, which waits for nothing but its socket.
    fn until_it_rests(&self) {
        let entries = |of: &str| {
            let entries = std::fs::read_dir(format!("/proc/{}/{of}", self.pid()));
            entries.unwrap().flatten().map(|entry| entry.path())
        };
        let is_poller = |file: PathBuf| {
            let target = std::fs::read_link(file).unwrap_or_default();
            target.to_string_lossy().contains("eventpoll")
        };
        until("it rests", LONG, || {
            let rests = entries("task").count() == 1 && !entries("fd").any(is_poller);
            rests.then_some(())
        });
    }

    fn end(&mut self, signal: Signal) -> ExitStatus {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
        self.ended()
    }

    fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        until("the helper ends", LONG, || child.try_wait().unwrap())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// One line, one answer; `None` where it hung up without one.
    fn ask(&self, line: &str) -> Option<Value> {
        let mut stream = UnixStream::connect(self.path("run/keeper.sock")).ok()?;
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(line.as_bytes()).ok()?;
        stream.write_all(b"\n").ok()?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).ok()?;
        serde_json::from_str(&answer).ok()
    }

    fn fix(&self) -> Option<Value> {
        self.ask(r#"{"verb":"fix","check":"limits.inotify"}"#)
    }

    /// A command of the same program, of this user and group: its exit code, and what it printed.
    fn cli(&self, who: (u32, u32), words: &[&str]) -> (i32, String) {
        let output = command(self.path("pipeops-agent"))
            .args(self.words(words))
            .env_clear()
            .uid(who.0)
            .gid(who.1)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap_or(-1), text.into_owned())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
        if std::thread::panicking() {
            eprintln!("--- log of the helper\n{}", self.log());
        }
    }
}

const ROOT: (u32, u32) = (0, 0);

fn agent_user() -> (u32, u32) {
    let user = User::from_name(USER).unwrap().unwrap();
    (user.uid.as_raw(), user.gid.as_raw())
}

#[test]
fn a_fix_is_asked_for_shown_done_listed_and_taken_back_over_the_socket() {
    let Some(mut helper) = helper() else { return };
    let before = helper.tree();
    helper.start();
    let plan = helper
        .ask(r#"{"verb":"plan","check":"limits.inotify"}"#)
        .unwrap();
    assert_eq!(plan["is_needed"], true);
    assert_eq!(helper.tree(), before);
    let done = helper.fix().unwrap();
    assert_eq!(
        (&done["outcome"], &done["change"]),
        (&json!("done"), &json!("limits-inotify-1"))
    );
    assert_eq!(helper.fix().unwrap()["change"], "limits-inotify-1");
    let file = helper.path("tree/etc/sysctl.d/90-pipeops-inotify.conf");
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(
        text,
        "fs.inotify.max_user_instances = 8192\nfs.inotify.max_user_watches = 524288\n"
    );
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o7777, 0o644);
    let changes = helper.ask(r#"{"verb":"changes"}"#).unwrap();
    assert_eq!(changes["changes"][0]["undo"]["possible"], true);
    assert_eq!(changes["changes"][0]["who"], "root");
    let undone = helper
        .ask(r#"{"verb":"undo","change":"limits-inotify-1"}"#)
        .unwrap();
    assert_eq!(undone["outcome"], "undone");
    assert_eq!(helper.tree(), before);
    let facts = helper.ask(r#"{"verb":"inspect"}"#).unwrap();
    assert!(facts["facts"]["stat /etc/rancher/k3s/config.yaml"].is_null());
    let state = std::fs::metadata(helper.path("state")).unwrap();
    assert_eq!((state.mode() & 0o7777, state.uid()), (0o700, 0));
}

#[test]
fn root_and_the_agents_user_are_served_and_nobody_else() {
    let Some(mut helper) = helper() else { return };
    helper.start();
    let socket = std::fs::metadata(helper.path("run/keeper.sock")).unwrap();
    let agent = agent_user();
    assert_eq!(
        (socket.mode() & 0o7777, socket.uid(), socket.gid()),
        (0o660, 0, agent.1)
    );
    // The agent's user undoes what it did itself, and both are written down.
    assert_eq!(helper.fix().unwrap()["outcome"], "done");
    let (code, told) = helper.cli(agent, &["undo", "limits-inotify-1", "--json"]);
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("it was made by root"), "{told}");
    assert!(
        told.contains("sudo pipeops-agent undo limits-inotify-1"),
        "{told}"
    );
    let (code, told) = helper.cli(ROOT, &["undo", "limits-inotify-1"]);
    assert_eq!(code, 0, "{told}");
    let fix = ["doctor", "--fix", "limits.inotify", "--yes"];
    let (code, told) = helper.cli(agent, &fix);
    assert_eq!(code, 0, "{told}");
    let (code, told) = helper.cli(agent, &["undo", "limits-inotify-2", "--json"]);
    assert_eq!(code, 0, "{told}");
    let (_, told) = helper.cli(ROOT, &["changes", "--json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    let why = told["changes"][0]["why"].as_str().unwrap();
    assert_eq!(why, format!("undone by the agent (uid {})", agent.0));
    // One of the agent's group gets to the socket and no further; others not even there.
    let (code, told) = helper.cli((STRANGER, agent.1), &["undo", "limits-inotify-1"]);
    assert_eq!(code, 2, "{told}");
    assert!(
        told.contains("serves root and the agent, and you are uid 54321"),
        "{told}"
    );
    assert!(told.contains("sudo"), "{told}");
    let (code, told) = helper.cli((STRANGER, STRANGER), &["undo", "limits-inotify-1"]);
    assert_eq!(code, 2, "{told}");
    assert!(told.to_lowercase().contains("permission denied"), "{told}");
    assert!(helper.log().contains("uid 54321 asked and may not"));
}

#[test]
fn the_service_of_an_update_logs_what_became_of_it() {
    let Some(helper) = helper() else { return };
    // As long as it is there, the update is not over.
    helper.place("etc/systemd/system/pipeops-update.service", "");
    std::fs::create_dir_all(helper.path("state/update")).unwrap();
    for folder in ["state", "state/update"] {
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(helper.path(folder), private).unwrap();
    }
    let record = json!({
        "version": "0.1.1", "sha256": "", "previous": "0.1.0", "previous_sha256": "",
        "was_linked": true, "within_s": 300, "step": "kept", "starts": 1, "is_banned": false,
    });
    put(
        &helper.path("state/update/update.json"),
        &record.to_string(),
    );
    let (code, told) = helper.cli(ROOT, &["update", "--finish"]);
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("updated to 0.1.1"), "{told}");
    assert!(!helper.path("state/update/update.json").exists());
}

#[test]
fn without_a_helper_root_works_alone_and_others_are_told_how() {
    let Some(helper) = helper() else { return };
    let (code, told) = helper.cli(agent_user(), &["undo", "limits-inotify-1"]);
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("the root helper is not running"), "{told}");
    assert!(
        told.contains("sudo systemctl start pipeops-keeper"),
        "{told}"
    );
    let (code, told) = helper.cli(ROOT, &["changes"]);
    assert_eq!(code, 0, "{told}");
    assert!(
        told.contains("No changes were made to this machine."),
        "{told}"
    );
    let (code, told) = helper.cli(ROOT, &["undo", "limits-inotify-9"]);
    assert_eq!(code, 2);
    assert!(
        told.contains("no such change: \"limits-inotify-9\""),
        "{told}"
    );
}

#[test]
fn doctor_fix_shows_what_it_would_do_and_does_it_only_when_it_is_told_to() {
    let Some(helper) = helper() else { return };
    let before = helper.tree();
    let check = ["doctor", "--fix", "limits.inotify"];
    let (code, told) = helper.cli(ROOT, &check);
    assert_eq!(code, 2, "{told}");
    assert!(
        told.contains("not touched") && told.contains("add --yes"),
        "{told}"
    );
    let (code, told) = helper.cli(ROOT, &["doctor", "--fix", "limits.inotify", "--json"]);
    let plan: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((code, &plan["plans"][0]["is_needed"]), (0, &json!(true)));
    assert_eq!(helper.tree(), before, "a plan changes nothing");
    let (code, told) = helper.cli(ROOT, &["doctor", "--fix", "limits.inotify", "--yes"]);
    assert_eq!(code, 0, "{told}");
    assert!(
        told.contains("undo: sudo pipeops-agent undo limits-inotify-1"),
        "{told}"
    );
    let (code, told) = helper.cli(ROOT, &check);
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("high enough"), "{told}");
    let (code, told) = helper.cli(ROOT, &["undo", "limits-inotify-1"]);
    assert_eq!(code, 0, "{told}");
    assert_eq!(helper.tree(), before);
    // The doctor finds by itself what is to be repaired.
    let (code, told) = helper.cli(ROOT, &["doctor", "--fix", "--yes"]);
    assert!(
        told.contains("undo: sudo pipeops-agent undo limits-inotify-2"),
        "{code} {told}"
    );
    for (check, why) in [
        ("disk.space", "there is no automatic fix for \"disk.space\""),
        ("disk.full", "no such check: \"disk.full\""),
    ] {
        let (code, told) = helper.cli(ROOT, &["doctor", "--fix", check]);
        assert_eq!(code, 2, "{told}");
        assert!(told.contains(why), "{told}");
    }
}

#[test]
fn who_says_nothing_too_much_or_nonsense_holds_nobody_up_for_long() {
    let Some(mut helper) = helper() else { return };
    helper.start();
    // It says nothing at all: the one behind it is served all the same.
    let mut silent = UnixStream::connect(helper.path("run/keeper.sock")).unwrap();
    assert!(helper.ask(r#"{"verb":"changes"}"#).is_some());
    silent.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(silent.read(&mut [0; 10]).unwrap(), 0, "it is hung up on");
    // It never ends its line.
    let mut endless = UnixStream::connect(helper.path("run/keeper.sock")).unwrap();
    let mut taken = 0;
    while endless.write_all(&[b'x'; 4096]).is_ok() && taken < 1 << 22 {
        taken += 4096;
    }
    assert!(taken < 1 << 22, "a line of 4 MiB was taken");
    for nonsense in [
        "",
        "{",
        "[]",
        "null",
        r#"{"verb":"rm"}"#,
        r#"{"verb":"fix"}"#,
        r#"{"verb":"undo","change":"../../etc/passwd"}"#,
    ] {
        let answer = helper.ask(nonsense).unwrap();
        assert!(!answer["error"].as_str().unwrap().is_empty(), "{nonsense}");
    }
    // What is asked for in a flood of connections is answered in the end.
    let crowd: Vec<_> = (0..100)
        .filter_map(|_| UnixStream::connect(helper.path("run/keeper.sock")).ok())
        .collect();
    drop(crowd);
    assert!(helper.ask(r#"{"verb":"changes"}"#).is_some());
}

/// Asks for each line of its input, as the user that it runs as: the kernel tells the helper who.
const ASK_AS: &str = r#"
import base64, socket, sys
for line in sys.stdin:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(60)
        peer.connect(sys.argv[1])
        peer.sendall(base64.b64decode(line) + b"\n")
        print(base64.b64encode(peer.makefile("rb").readline()).decode(), flush=True)
"#;
/// Names that mean something to the helper, and what somebody tries who wants more.
const WORDS: &[&str] = &[
    "inspect",
    "plan",
    "fix",
    "undo",
    "changes",
    "pin",
    "install",
    "k3s.install",
    "limits.inotify",
    "limits-inotify-1",
    "limits-inotify-999999999999999999999",
    "k3s.images",
    "clock.wrong",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "sha256:",
    "",
    ".",
    "../../etc/hostname",
    "/etc/hostname",
    "limits.inotify/../../x",
    "$(touch /tmp/x)",
    "; touch x",
    "--root=/",
    "limits.inotify\0",
];

/// A request as nobody's program writes it: members of other types, names of other things, cut off
/// or with a byte changed.
fn mangled() -> impl Strategy<Value = Vec<u8>> {
    let text = prop_oneof![
        6 => select(WORDS).prop_map(str::to_owned),
        2 => ".{0,40}",
        1 => "[a-z.:-]{60,300}",
        1 => (9_000_usize..10_500).prop_map(|length| "\u{1}".repeat(length)),
    ];
    let text = text.boxed();
    let other = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        vec(text.clone(), 0..3).prop_map(|texts| json!({ "a": texts })),
        vec(select(WORDS), 0..300).prop_map(Value::from),
    ];
    let value = prop_oneof![8 => text.prop_map(Value::from), 2 => other].boxed();
    let verb = prop_oneof![8 => select(&WORDS[..6]).prop_map(Value::from), 1 => value.clone()];
    let members = (
        option::weighted(0.95, verb),
        option::of(value.clone()),
        option::of(value.clone()),
        option::of(value),
    );
    let damage = option::weighted(0.2, (any::<prop::sample::Index>(), any::<u8>()));
    (members, damage, any::<bool>()).prop_map(|((verb, check, change, images), damage, is_cut)| {
        let all = [
            ("verb", verb),
            ("check", check),
            ("change", change),
            ("images", images),
        ];
        let given = all
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let mut line = Value::Object(given.collect()).to_string().into_bytes();
        if let Some((at, byte)) = damage {
            let at = at.index(line.len());
            if is_cut {
                line.truncate(at);
            } else {
                line[at] = byte;
            }
        }
        line
    })
}

#[test]
fn whatever_the_agents_user_asks_for_is_answered_and_can_be_undone() {
    let Some(mut helper) = helper() else { return };
    let before = helper.tree();
    helper.start();
    let mut runner = TestRunner::deterministic();
    let request = mangled();
    let asked = (0..1_000).map(|_| request.new_tree(&mut runner).unwrap().current());
    let asked: Vec<_> = asked.filter(|line| line.len() < 60_000).collect();
    let (uid, gid) = agent_user();
    let mut peer = command("python3")
        .args(["-c", ASK_AS])
        .arg(helper.path("run/keeper.sock"))
        .uid(uid)
        .gid(gid)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut to, from) = (peer.stdin.take().unwrap(), peer.stdout.take().unwrap());
    let mut answers = BufReader::new(from).lines();
    let (mut refused, mut served) = (0, 0);
    for line in &asked {
        writeln!(to, "{}", STANDARD.encode(line)).unwrap();
        let answer = STANDARD.decode(answers.next().unwrap().unwrap()).unwrap();
        let shown = String::from_utf8_lossy(line);
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_else(|error| {
            panic!("{shown}: {error}: {}", String::from_utf8_lossy(&answer))
        });
        match answer["error"].as_str() {
            Some(error) => {
                assert!(!error.is_empty() && error.len() < 4_096, "{shown}: {error}");
                refused += 1;
            }
            None => served += 1,
        }
    }
    drop(to);
    assert!(peer.wait().unwrap().success());
    println!("{refused} refused, {served} served");
    assert!(refused > 500 && served > 50, "{refused} and {served}");
    // The one fix that this machine has may have been among them, again and again.
    let changes = helper.ask(r#"{"verb":"changes"}"#).unwrap();
    for change in changes["changes"].as_array().unwrap() {
        let id = change["id"].as_str().unwrap();
        assert!(id.starts_with("limits-inotify-"), "{change}");
        if change["undo"]["possible"] == true {
            let (code, told) = helper.cli(ROOT, &["undo", id]);
            assert_eq!(code, 0, "{told}");
        }
    }
    assert_eq!(helper.tree(), before);
}

#[test]
fn it_says_that_it_is_ready_sleeps_and_stops_when_told() {
    let Some(mut helper) = helper() else { return };
    let manager = UnixDatagram::bind(helper.path("notify")).unwrap();
    manager.set_read_timeout(Some(LONG)).unwrap();
    let notify = helper.path("notify");
    helper.start_by(&[], Some(&notify));
    let mut buffer = [0; 512];
    let length = manager.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"READY=1\nSTATUS=waiting for requests");
    // Asked once, so that everything that runs lazily has run; then it sleeps.
    assert!(helper.ask(r#"{"verb":"changes"}"#).is_some());
    until("nothing wakes it for three seconds", LONG, || {
        let before = wake_ups(helper.pid());
        let deadline = crate::agent::clock() + Duration::from_secs(3);
        until("three seconds", LONG, || {
            (crate::agent::clock() > deadline).then_some(())
        });
        (wake_ups(helper.pid()) == before).then_some(())
    });
    assert!(helper.end(Signal::SIGTERM).success());
    assert!(!helper.path("run/keeper.sock").exists());
}

#[test]
fn where_nobody_asks_it_begins_again_and_waits_as_one_thread() {
    let Some(mut helper) = helper() else { return };
    helper.start();
    let socket = std::fs::metadata(helper.path("run/keeper.sock")).unwrap();
    assert_eq!(helper.fix().unwrap()["outcome"], "done");
    helper.until_it_rests();
    // Several at once are all answered, by who they are, also while root makes a change itself.
    let lock = std::fs::File::open(helper.path("state/lock")).unwrap();
    let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).unwrap();
    let crowd: Vec<_> = (0..20)
        .map(|_| {
            let mut peer = UnixStream::connect(helper.path("run/keeper.sock")).unwrap();
            peer.write_all(b"{\"verb\":\"changes\"}\n").unwrap();
            peer.set_read_timeout(Some(LONG)).unwrap();
            peer
        })
        .collect();
    for peer in crowd {
        let mut answer = String::new();
        BufReader::new(peer).read_line(&mut answer).unwrap();
        assert!(answer.contains("limits-inotify-1"), "{answer}");
    }
    drop(lock);
    let agent = agent_user();
    let (code, told) = helper.cli((STRANGER, agent.1), &["undo", "limits-inotify-1"]);
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("you are uid 54321"), "{told}");
    // It reads its settings for those who ask next.
    let mut settings = std::fs::read_to_string(helper.path("config.toml")).unwrap();
    settings = settings.replace("[keeper]\n", "[keeper]\nallow = []\n");
    let config = helper.path("config.toml");
    put(&config, &settings);
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o644)).unwrap();
    helper.until_it_rests();
    let (code, told) = helper.cli(agent, &["undo", "limits-inotify-1"]);
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("keeper.allow does not list repair"), "{told}");
    let after = std::fs::metadata(helper.path("run/keeper.sock")).unwrap();
    let of = |socket: std::fs::Metadata| (socket.ino(), socket.mode(), socket.gid());
    assert_eq!(of(after), of(socket));
    // One start for the log, however often it began again.
    assert_eq!(helper.log().matches("keeper started").count(), 1);
    assert!(helper.end(Signal::SIGTERM).success());
    assert!(!helper.path("run/keeper.sock").exists());
}

#[test]
fn one_that_rests_is_stopped_by_a_signal_and_its_socket_is_replaced() {
    let Some(mut helper) = helper() else { return };
    helper.start();
    helper.until_it_rests();
    // It has nothing to read again, and says so to the log when somebody asks.
    kill(Pid::from_raw(helper.pid()), Signal::SIGHUP).unwrap();
    assert!(helper.ask(r#"{"verb":"changes"}"#).is_some());
    until("the signal is in the log", LONG, || {
        helper.log().contains("SIGHUP: restart").then_some(())
    });
    helper.until_it_rests();
    let ended = helper.end(Signal::SIGTERM);
    assert_eq!(ended.signal(), Some(TERM));
    helper.start();
    assert!(helper.ask(r#"{"verb":"changes"}"#).is_some());
}

#[test]
fn a_signal_that_comes_while_it_begins_again_is_not_lost() {
    let Some(mut helper) = helper() else { return };
    if !can_trace() {
        return;
    }
    let trace = helper.path("trace").display().to_string();
    // It reads the path of its program right before it begins again.
    let slow = "inject=?readlink,?readlinkat:delay_enter=8000000";
    helper.start_by(&["strace", "-f", "-qq", "-o", &trace, "-e", slow], None);
    let socket = helper.path("run/keeper.sock");
    until("it listens", LONG, || {
        UnixStream::connect(&socket).ok().map(drop)
    });
    let children = format!("/proc/{0}/task/{0}/children", helper.pid());
    let traced = std::fs::read_to_string(children).unwrap();
    let traced: i32 = traced.trim().parse().unwrap();
    until("it holds signals back", LONG, || {
        let status = std::fs::read_to_string(format!("/proc/{traced}/status")).ok()?;
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("SigBlk:"))?;
        let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
        (mask & (1 << (TERM - 1)) != 0).then_some(())
    });
    kill(Pid::from_raw(traced), Signal::SIGTERM).unwrap();
    // Strace ends as its program does.
    assert_eq!(helper.ended().signal(), Some(TERM));
}

/// How often the threads of a process gave up a processor, each time to wait.
fn wake_ups(pid: i32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let statuses = threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok());
    statuses
        .filter_map(|status| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line?.trim().parse::<u64>().ok()
        })
        .sum()
}

#[test]
fn settings_and_a_journal_that_others_could_change_are_not_believed() {
    let Some(mut helper) = helper() else { return };
    let config = helper.path("config.toml");
    for mode in [0o666, 0o664] {
        std::fs::set_permissions(&config, std::fs::Permissions::from_mode(mode)).unwrap();
        helper.start_by(&[], None);
        assert_eq!(helper.ended().code(), Some(2));
        assert!(
            helper.log().contains("users other than root can change"),
            "{}",
            helper.log()
        );
    }
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::os::unix::fs::chown(&config, Some(agent_user().0), None).unwrap();
    helper.start_by(&[], None);
    assert_eq!(helper.ended().code(), Some(2));
    std::os::unix::fs::chown(&config, Some(0), None).unwrap();

    std::fs::create_dir(helper.path("state")).unwrap();
    std::os::unix::fs::chown(helper.path("state"), Some(agent_user().0), None).unwrap();
    std::fs::set_permissions(helper.path("state"), std::fs::Permissions::from_mode(0o700)).unwrap();
    helper.start_by(&[], None);
    assert_eq!(helper.ended().code(), Some(2));
    assert!(
        helper.log().contains("its contents are not trusted"),
        "{}",
        helper.log()
    );
}

#[test]
fn a_socket_that_a_killed_helper_left_is_replaced_and_one_that_answers_is_not() {
    let Some(mut helper) = helper() else { return };
    helper.start();
    helper.end(Signal::SIGKILL);
    assert!(helper.path("run/keeper.sock").exists());
    helper.start();
    let first = helper.child.take();
    helper.start_by(&[], None);
    assert_eq!(helper.ended().code(), Some(2));
    assert!(
        helper.log().contains("another root helper answers there"),
        "{}",
        helper.log()
    );
    helper.child = first;
    assert!(helper.ask(r#"{"verb":"changes"}"#).is_some());
}

/// Lets the helper do a fix while a system call does this at its nth time; says whether that
/// happened.
fn disturbed(helper: &mut Helper, call: &str, what: &str, time: usize) -> bool {
    let trace = helper.path("trace");
    let inject = format!("inject={call}:{what}:when={time}");
    let trace_name = trace.display().to_string();
    helper.start_by(
        &["strace", "-f", "-qq", "-o", &trace_name, "-e", &inject],
        None,
    );
    // It may be killed before it listens at all.
    let is_there = until("it listens or is gone", LONG, || {
        if helper.child.as_mut().unwrap().try_wait().unwrap().is_some() {
            return Some(false);
        }
        UnixStream::connect(helper.path("run/keeper.sock"))
            .ok()
            .map(|_| true)
    });
    let is_answered = is_there && helper.fix().is_some();
    if what.starts_with("signal") && !is_answered {
        helper.ended();
        return true;
    }
    // The child of strace ends with a signal of ours, and strace after it.
    let traced = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", helper.pid()));
    for child in traced.unwrap_or_default().split_whitespace() {
        kill(Pid::from_raw(child.parse().unwrap()), Signal::SIGKILL).ok();
    }
    helper.ended();
    std::fs::read_to_string(&trace).is_ok_and(|told| told.contains("INJECTED"))
}

/// After a disturbance: a start without one brings everything to its end, and undo to where it was.
fn settles(helper: &mut Helper, before: &BTreeMap<PathBuf, String>, what: &str) {
    helper.start();
    let changes = helper.ask(r#"{"verb":"changes"}"#).unwrap();
    let list = changes["changes"].as_array().unwrap();
    assert!(list.len() <= 1, "{what}: {list:?}");
    for change in list {
        let outcome = change["outcome"].as_str().unwrap();
        assert!(["done", "undone"].contains(&outcome), "{what}: {change}");
        if outcome == "undone" {
            assert_eq!(helper.tree(), *before, "{what}");
        }
    }
    let done = helper.fix().unwrap();
    assert_eq!(done["outcome"], "done", "{what}: {done}");
    let id = done["change"].as_str().unwrap();
    let undone = helper
        .ask(&format!(r#"{{"verb":"undo","change":"{id}"}}"#))
        .unwrap();
    assert_eq!(undone["outcome"], "undone", "{what}: {undone}");
    assert_eq!(helper.tree(), *before, "{what}");
    helper.end(Signal::SIGTERM);
    std::fs::remove_dir_all(helper.path("state")).unwrap();
}

#[test]
fn a_kill_or_an_io_error_at_any_step_leaves_a_way_on_and_a_way_back() {
    let Some(mut helper) = helper() else { return };
    if !can_trace() {
        return;
    }
    let before = helper.tree();
    let mut disturbances = 0;
    for (call, what) in [
        ("rename", "signal=SIGKILL"),
        ("fsync", "signal=SIGKILL"),
        ("rename", "error=EIO"),
        ("fsync", "error=ENOSPC"),
    ] {
        // Each record is one rename and two fsyncs: of the latter every third time is as good as
        // all.
        let step = if call == "fsync" { 3 } else { 1 };
        for time in (1..200).step_by(step) {
            let name = format!("{call} {what} at {time}");
            let happened = disturbed(&mut helper, call, what, time);
            settles(&mut helper, &before, &name);
            if !happened {
                assert!(time > 5, "{name}: never injected");
                break;
            }
            disturbances += 1;
        }
    }
    println!("{disturbances} kills and errors");
    assert!(disturbances > 30, "{disturbances}");
}

#[test]
fn the_unit_is_one_that_systemd_understands() {
    if !crate::agent::has("systemd-analyze") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd");
    // The service requires the socket, which systemd looks for beside it.
    for name in ["pipeops-keeper.socket", "pipeops-keeper.service"] {
        let unit = std::fs::read_to_string(units.join(name)).unwrap();
        let program = env!("CARGO_BIN_EXE_pipeops-agent");
        let unit = unit.replace("/usr/bin/pipeops-agent", program);
        put(&folder.path().join(name), &unit);
    }
    let path = folder.path().join("pipeops-keeper.service");
    let output = command("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&path)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.is_empty(), "{told}");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/openrc/pipeops-keeper");
    assert!(
        command("sh")
            .args(["-n", script])
            .status()
            .unwrap()
            .success()
    );
}
