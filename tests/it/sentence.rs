//! One sentence for one trouble: each part of a running agent is broken in turn, and `/readyz`, the
//! page's view, the service manager and `status` say the same of it, word by word.

use std::{
    fs::{File, Permissions},
    io::Write,
    net::{Ipv4Addr, TcpListener},
    os::unix::{
        fs::{PermissionsExt, chown},
        net::UnixDatagram,
    },
    path::PathBuf,
    time::Duration,
};

use pipeops_agent::{core::time::Wall, wire::state::write_clock};
use plane::Plane;
use serde_json::Value;

use crate::agent::{Agent, is_root_or_skip, put, until};

/// The disk is looked after every half minute, and samples are delivered every minute.
const LONG: Duration = Duration::from_secs(180);

/// A service manager, as far as it is told something.
struct Manager {
    socket: UnixDatagram,
    said: String,
}

impl Manager {
    fn of(agent: &Agent) -> Self {
        let socket = UnixDatagram::bind(agent.folder().join("notify.sock")).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self {
            socket,
            said: String::new(),
        }
    }

    /// What it was told last.
    fn status(&mut self) -> &str {
        let mut message = [0; 8192];
        while let Ok(length) = self.socket.recv(&mut message) {
            let text = std::str::from_utf8(&message[..length]).unwrap();
            let status = text.lines().find_map(|line| line.strip_prefix("STATUS="));
            if let Some(status) = status {
                status.clone_into(&mut self.said);
            }
        }
        &self.said
    }
}

/// An agent with its service manager, not started yet.
fn managed(plane: &Plane, more: &[(&str, &str)]) -> (Agent, Manager) {
    let mut agent = Agent::new(plane).with("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    for (name, value) in more {
        agent = agent.with(name, *value);
    }
    let socket = agent.folder().join("notify.sock").display().to_string();
    let agent = agent.with("NOTIFY_SOCKET", socket);
    let manager = Manager::of(&agent);
    (agent, manager)
}

/// The sentences of the four places. What `status` prints begins a line, so its first letter is a
/// capital one.
fn sentences(agent: &Agent, manager: &mut Manager) -> Option<[String; 4]> {
    let (_, ready) = agent.get("/readyz")?;
    let ready: Value = serde_json::from_str(&ready).unwrap();
    let (_, told) = agent.cli(&["status"]);
    // With its ages: "(for 3 min, checked 2 s ago)".
    let first = told.lines().next()?;
    let first = first
        .split(" (for ")
        .next()?
        .split(" (checked ")
        .next()?
        .to_owned();
    let status = agent.view("/api/v1/status");
    let capital = |text: &str| {
        let mut letters = text.chars();
        let first: String = letters
            .next()
            .into_iter()
            .flat_map(char::to_uppercase)
            .collect();
        first + letters.as_str()
    };
    let shown = status["summary"].as_str()?;
    assert_eq!(status["readiness"]["sentence"], shown);
    Some([
        capital(ready["sentence"].as_str()?),
        capital(shown),
        capital(manager.status()),
        first,
    ])
}

/// Waits until all four say the same and it has `word` in it.
fn agreed(agent: &Agent, manager: &mut Manager, word: &str) -> String {
    let mut last = None;
    let deadline = crate::agent::clock() + LONG;
    loop {
        let said = sentences(agent, manager);
        if let Some(all) = &said
            && all
                .iter()
                .all(|sentence| *sentence == all[0] && sentence.contains(word))
        {
            return all[0].clone();
        }
        last = said.or(last);
        assert!(crate::agent::clock() < deadline, "{word}: {last:#?}");
    }
}

/// Waits until a condition holds, then until all four places say it, and its part says it too.
fn says(agent: &Agent, manager: &mut Manager, condition: &str) {
    let held = agent.until_condition(condition, LONG);
    let word = held["sentence"].as_str().unwrap();
    let word = word.split(':').next().unwrap();
    let word: String = word.chars().skip(1).collect();
    // The worst is told first: where there are several, this one may only be counted.
    agreed(agent, manager, "");
    let part = condition.split('.').next().unwrap();
    until(&format!("part {part} says {condition}"), LONG, || {
        let (code, ready) = agent.get("/readyz")?;
        let ready: Value = serde_json::from_str(&ready).unwrap();
        let parts = ready["parts"].as_array()?.clone();
        let of = |parts: &[Value]| parts.iter().find(|it| it["id"] == part).cloned();
        let status = agent.view("/api/v1/status");
        let same = of(&parts) == of(status["readiness"]["parts"].as_array()?);
        let sentence = of(&parts)?["sentence"].as_str()?.to_owned();
        let (exit, told) = agent.cli(&["status"]);
        // Where it begins a line, its first letter is a capital one.
        let is_told = told.to_lowercase().contains(&sentence.to_lowercase());
        (code == 503 && same && sentence.contains(&word) && exit == 1 && is_told).then_some(())
    });
}

#[test]
fn a_control_plane_that_is_away_is_said_with_one_sentence() {
    let mut plane = Plane::start(plane::Options::default()).unwrap();
    let (mut agent, mut manager) = managed(&plane, &[]);
    agent.start();
    agent.until_linked();
    // Neither a cluster nor a root helper is here, and that is no failure.
    agreed(&agent, &mut manager, "");
    let (code, ready) = agent.get("/readyz").unwrap();
    assert_eq!(code, 200, "{ready}");
    plane.stop();
    says(&agent, &mut manager, "link.down");
    plane.start_again().unwrap();
    agent.until("the link is ready again", LONG, |status| {
        (status["link"]["state"] == "ready").then_some(())
    });
    // Not the same as before: meanwhile the doctor may have found something.
    agreed(&agent, &mut manager, "");
    assert_eq!(agent.get("/readyz").unwrap().0, 200);
    plane.set_token("another");
    plane.cut(plane::Sessions::All, plane::Cut::Reset);
    says(&agent, &mut manager, "link.refused");
}

#[test]
fn settings_with_a_mistake_are_said_with_one_sentence_until_they_are_mended() {
    let plane = Plane::start(plane::Options::default()).unwrap();
    let (agent, mut manager) = managed(&plane, &[]);
    // As under a service manager, which would start it again and again.
    let run = agent.folder().display().to_string();
    let mut agent = agent.with("RUNTIME_DIRECTORY", run);
    let file = agent.folder().join("config.toml");
    put(&file, "[access]\nlevle = \"off\"\n");
    agent.start();
    let said = agreed(&agent, &mut manager, "cannot be used");
    let line = format!("{}:2: unknown key \"access.levle\"", file.display());
    assert!(said.contains(&line), "{said}");
    let held = agent.until_condition("agent.settings", LONG);
    let fix = held["fix"].as_str().unwrap();
    assert!(fix.contains("level") && fix.contains("read again"), "{fix}");
    let (_, found) = agent.cli(&["doctor"]);
    assert!(found.contains(&line), "{found}");
    // Neither a link nor a view of anything begins with settings that are not known.
    assert_eq!(agent.get("/api/v1/events").unwrap().0, 503);
    // An update that cannot use the settings did not prove itself.
    let status: Value = serde_json::from_str(&agent.get("/api/v1/status").unwrap().1).unwrap();
    let parts = status["readiness"]["parts"].as_array().unwrap();
    let store = parts.iter().find(|part| part["id"] == "store").unwrap();
    assert_eq!(store["ready"], false, "{store}");
    put(&file, "[access\n");
    agreed(&agent, &mut manager, "this is not TOML");
    assert!(plane.sessions().is_empty());
    put(&file, "[access]\nlevel = \"off\"\n");
    agent.until_linked();
}

#[test]
fn what_is_away_from_the_start_is_said_with_one_sentence() {
    let plane = Plane::start(plane::Options::default()).unwrap();
    // Nobody listens at the one, somebody else at the other.
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let taken = taken.local_addr().map(|address| (taken, address)).unwrap();
    let dead = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    put(
        &kubeconfig,
        &format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: c, user: u}}\nclusters:\n- name: c\n  cluster: {{server: \"https://{dead}\", insecure-skip-tls-verify: false}}\nusers:\n- name: u\n  user: {{token: t}}\n"
        ),
    );
    let kubeconfig = kubeconfig.display().to_string();
    let (port, url) = (taken.1.to_string(), format!("http://{dead}/"));
    let cases = [
        (
            "cluster.unreachable",
            vec![("KUBECONFIG", kubeconfig.as_str())],
        ),
        (
            "dashboard.listen",
            vec![("PIPEOPS_DASHBOARD_LISTEN", port.as_str())],
        ),
        (
            "telemetry.remote-write",
            vec![("PIPEOPS_TELEMETRY_REMOTE_WRITE_URL", url.as_str())],
        ),
        (
            "notify.unreached",
            vec![
                ("PIPEOPS_NOTIFY_URL", url.as_str()),
                // There has to be something to tell.
                ("PIPEOPS_DASHBOARD_LISTEN", port.as_str()),
            ],
        ),
    ];
    let mut running: Vec<_> = cases
        .iter()
        .map(|(condition, more)| {
            let (mut agent, manager) = managed(&plane, more);
            agent.start();
            (condition, agent, manager)
        })
        .collect();
    for (condition, agent, manager) in &mut running {
        says(agent, manager, condition);
    }
}

#[test]
fn a_disk_that_is_full_is_said_with_one_sentence_until_there_is_room() {
    if !is_root_or_skip("mounting a tmpfs takes root") {
        return;
    }
    let plane = Plane::start(plane::Options::default()).unwrap();
    let (agent, mut manager) = managed(&plane, &[]);
    let state = agent.state("").display().to_string();
    let mounted =
        format!("mkdir -p {state} && mount -t tmpfs -o size=16m none {state} && exec \"$@\"");
    let words = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        &mounted,
        "sh",
    ];
    let mut agent = agent.under(&words);
    agent.start();
    agent.until_linked();
    agreed(&agent, &mut manager, "");
    // The folder as the agent sees it.
    let seen = format!("/proc/{}/root{state}", agent.pid());
    let filler = PathBuf::from(seen).join("filler");
    let mut file = File::create_new(&filler).unwrap();
    for length in [65_536, 4096, 1] {
        while file.write_all(&vec![1; length]).is_ok() {}
    }
    drop(file);
    // What must be written takes the reserve, and that is said.
    let (code, told) = agent.post("/api/v1/access", r#"{"level":"off"}"#);
    assert_eq!(code, 200, "{told}");
    says(&agent, &mut manager, "store.full");
    std::fs::remove_file(&filler).unwrap();
    until("there is room, and that is said", LONG, || {
        (agent.get("/readyz")?.0 == 200).then_some(())
    });
    agreed(&agent, &mut manager, "");
}

/// An agent of a user that is not root, which has linked and was stopped; `None` where only root is
/// missing.
fn of_user(plane: &Plane, user: u32) -> Option<(Agent, Manager)> {
    if !is_root_or_skip("running the agent as another user takes root") {
        return None;
    }
    let (agent, manager) = managed(plane, &[]);
    let mut agent = agent.owned_by(user);
    agent.start();
    agent.until_linked();
    agent.stop();
    Some((agent, manager))
}

#[test]
fn samples_that_cannot_be_written_are_said_with_one_sentence() {
    const USER: u32 = 54_322;
    let plane = Plane::start(plane::Options::default()).unwrap();
    let Some((mut agent, mut manager)) = of_user(&plane, USER) else {
        return;
    };
    let database = agent.state("telemetry.db");
    let own = |user| {
        chown(&database, Some(user), Some(user)).unwrap();
        std::fs::set_permissions(&database, Permissions::from_mode(0o600)).unwrap();
    };
    // Somebody looked at it as root, and copied it back.
    own(0);
    agent.start();
    says(&agent, &mut manager, "telemetry.unwritable");
    own(USER);
    until("it is writable, and that is said", LONG, || {
        (agent.get("/readyz")?.0 == 200).then_some(())
    });
    agreed(&agent, &mut manager, "");
}

#[test]
fn a_clock_that_shows_what_is_past_is_said_with_one_sentence() {
    let plane = Plane::start(plane::Options::default()).unwrap();
    let (mut agent, mut manager) = managed(&plane, &[]);
    agent.start();
    agent.until_linked();
    agreed(&agent, &mut manager, "");
    agent.stop();
    let record = agent.state("clock");
    let before = std::fs::read(&record).expect("the session wrote it");
    // A certificate of forty days from now was verified once, so that is past.
    let now = std::fs::metadata(&record).unwrap().modified().unwrap();
    let ahead =
        now.duration_since(std::time::UNIX_EPOCH).unwrap() + Duration::from_secs(40 * 24 * 3600);
    let ahead = Wall::from_millis(ahead.as_millis().try_into().unwrap());
    let write = |content: &[u8]| pipeops_agent::files::replace(&record, content, 0o600).unwrap();
    write(&write_clock(ahead));
    agent.start();
    says(&agent, &mut manager, "clock.wrong");
    let (code, told) = agent.cli(&["why", "clock"]);
    assert!(code == 1 && told.contains("date -u -s"), "{told}");
    agent.stop();
    // Damaged, it says nothing, and the next session writes it again.
    let mut damaged = write_clock(ahead);
    damaged[0] ^= 1;
    write(&damaged);
    agent.start();
    agent.until_linked();
    agreed(&agent, &mut manager, "");
    assert_eq!(agent.get("/readyz").unwrap().0, 200);
    until("the record is written again", LONG, || {
        (std::fs::read(&record).unwrap() == before).then_some(())
    });
}

#[test]
fn a_file_that_is_dated_ahead_makes_no_clock_wrong() {
    let plane = Plane::start(plane::Options::default()).unwrap();
    let (mut agent, mut manager) = managed(&plane, &[]);
    agent.start();
    agent.until_linked();
    agent.stop();
    for name in ["identity.json", "clock", "notes.json", "state.db"] {
        let Ok(file) = File::options().append(true).open(agent.state(name)) else {
            continue;
        };
        let written = file.metadata().unwrap().modified().unwrap();
        file.set_modified(written + Duration::from_secs(10 * 365 * 24 * 3600))
            .unwrap();
    }
    agent.start();
    agent.until_linked();
    agreed(&agent, &mut manager, "");
    assert_eq!(agent.get("/readyz").unwrap().0, 200);
}

#[test]
fn a_folder_that_cannot_be_written_is_said_with_one_sentence() {
    const USER: u32 = 54_323;
    let plane = Plane::start(plane::Options::default()).unwrap();
    let Some((mut agent, mut manager)) = of_user(&plane, USER) else {
        return;
    };
    let folder = agent.state("");
    let own = |user| chown(&folder, Some(user), Some(user)).unwrap();
    // Somebody put it back from a backup, as root.
    own(0);
    std::fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
    agent.start();
    says(&agent, &mut manager, "store.unwritable");
    own(USER);
    until("it is writable, and that is said", LONG, || {
        (agent.get("/readyz")?.0 == 200).then_some(())
    });
    agreed(&agent, &mut manager, "");
}
