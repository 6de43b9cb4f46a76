//! Files of earlier versions: the state, configuration and keeper's journal of each version in
//! `tests/data/released` are opened by this one; and where the files are of a later version, they
//! are left as they are and the page stays up.
//!
//! A folder there is made once, of a machine that ran that version (or a build with that schema of
//! its databases, before it is one), and never changed: `state` (stopped after some minutes with
//! samples, a change of the access level and a registration), `config.toml`, and `keeper` with the
//! journal of one repair, and what is remembered of updates.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use pipeops_agent::{
    core::{
        series::{Query, Select},
        time::{Mono, Now, Wall},
    },
    store::{
        DATABASE, IDENTITY, Store,
        telemetry::{self, Telemetry},
    },
};
use plane::{Options, Plane};
use rusqlite::Connection;
use serde_json::Value;
use smol::block_on;

use crate::agent::{Agent, SOON, command, is_root_or_skip, put};

/// Any moment after all versions there.
const LATER_MS: i64 = 1_900_000_000_000;

fn versions() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/released");
    let entries = fs::read_dir(folder).unwrap();
    let versions: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(!versions.is_empty());
    versions
}

/// A copy that may be written to, with the modes that the agent gives its files.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let place = to.join(entry.file_name());
        fs::copy(entry.path(), &place).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o600)).unwrap();
    }
}

fn audit_rows(database: &Path) -> i64 {
    let connection = Connection::open(database).unwrap();
    let is_whole: String = connection
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(is_whole, "ok");
    connection
        .query_row("SELECT count(*) FROM audit", [], |row| row.get(0))
        .unwrap()
}

#[test]
fn the_state_of_every_version_is_opened() {
    for version in versions() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        copy(&version.join("state"), &state);
        let rows = audit_rows(&state.join(DATABASE));
        assert!(rows >= 1, "{}: {rows} rows", version.display());
        let wall = Wall::from_millis(LATER_MS);
        block_on(async {
            let (store, loaded) = Store::open(&state, wall).await.unwrap();
            assert_eq!(loaded.conditions, [], "{}", version.display());
            let identity = loaded.database.unwrap();
            assert!(identity.cluster_id.is_some(), "{identity:?}");
            assert_eq!(Some(identity), loaded.file);
            let level = loaded.notes.get("access.override").unwrap();
            assert!(level.starts_with("read-only "), "{level}");
            assert!(loaded.clock.is_some());
            store.close().await.unwrap();
        });
        assert_eq!(audit_rows(&state.join(DATABASE)), rows);
    }
}

#[test]
fn the_samples_of_every_version_are_read() {
    for version in versions() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        copy(&version.join("state"), &state);
        let options = telemetry::Options {
            disk_bytes_max: 64 << 20,
            boot_id: "another boot".to_owned(),
            epoch: 7,
        };
        let now = Now {
            mono: Mono::since_boot(Duration::from_secs(60)),
            wall: Wall::from_millis(LATER_MS),
        };
        let query = Query {
            select: Select::All,
            from: Wall::from_millis(0),
            to: Wall::from_millis(LATER_MS),
            step: Some(Duration::from_secs(3600)),
        };
        block_on(async {
            let (samples, conditions) = Telemetry::open(&state, options, now).await.unwrap();
            assert_eq!(conditions, [], "{}", version.display());
            let lines = samples.handle().query(query).await.unwrap();
            assert!(lines.len() > 10, "{} series", lines.len());
            samples.close().await.unwrap();
        });
    }
}

#[test]
fn the_configuration_of_every_version_is_understood() {
    for version in versions() {
        let directory = tempfile::tempdir().unwrap();
        let text = fs::read_to_string(version.join("config.toml")).unwrap();
        // The files that it names are of the machine, and not there.
        let folder = directory.path().display().to_string();
        let config = directory.path().join("config.toml");
        let text = text.replace("/etc/pipeops-agent", &folder);
        put(&config, &text.replace("/plane", &folder));
        put(&directory.path().join("token"), "a-token");
        let plane = Plane::start(Options::default()).unwrap();
        put(&directory.path().join("ca.pem"), plane.ca_pem());
        let checked = command(env!("CARGO_BIN_EXE_pipeops-agent"))
            .args(["config", "check", "--config"])
            .arg(&config)
            .env_clear()
            .output()
            .unwrap();
        assert!(checked.status.success(), "{checked:?}");
    }
}

#[test]
fn a_repair_of_every_version_is_undone() {
    if !is_root_or_skip("the root helper runs as root") {
        return;
    }
    for version in versions() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path();
        copy(&version.join("keeper"), &folder.join("keeper"));
        let config = folder.join("config.toml");
        let keeper = folder.join("keeper").display().to_string();
        let socket = folder.join("no.sock").display().to_string();
        let text = format!(
            "[keeper]\nsocket = \"{socket}\"\nstate_dir = \"{keeper}\"\n[dashboard]\nsocket = \"{socket}\"\n"
        );
        put(&config, &text);
        fs::set_permissions(&config, fs::Permissions::from_mode(0o644)).unwrap();
        let place = |path: &str, text: &str| {
            let path = folder.join("tree").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            put(&path, text);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            path
        };
        place("etc/hostname", "edge\n");
        let limits = "fs.inotify.max_user_instances = 8192\nfs.inotify.max_user_watches = 524288\n";
        let limits = place("etc/sysctl.d/90-pipeops-inotify.conf", limits);
        let instances = place("proc/sys/fs/inotify/max_user_instances", "8192\n");
        place("proc/sys/fs/inotify/max_user_watches", "524288\n");
        let run = |words: &[&str]| {
            let run = command(env!("CARGO_BIN_EXE_pipeops-agent"))
                .args(words)
                .arg("--json")
                .args([Path::new("--root"), &folder.join("tree")])
                .args([Path::new("--config"), &config])
                .env_clear()
                .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
                .output()
                .unwrap();
            serde_json::from_slice::<Value>(&run.stdout).unwrap_or_else(|_| panic!("{run:?}"))
        };
        // What is remembered of updates is no change.
        let changes = run(&["changes"]);
        assert_eq!(changes["changes"][0]["id"], "limits-inotify-1", "{changes}");
        let undone = run(&["undo", "limits-inotify-1"]);
        assert!(!limits.exists(), "{undone}");
        assert_eq!(fs::read_to_string(instances).unwrap().trim(), "128");
    }
}

#[test]
fn a_downgrade_leaves_what_is_newer_alone_and_the_page_up() {
    let version = versions().pop().unwrap();
    let plane = Plane::start(Options::default()).unwrap();
    let mut agent = Agent::new(&plane);
    let state = agent.state("");
    copy(&version.join("state"), &state);
    for database in [DATABASE, telemetry::DATABASE] {
        let connection = Connection::open(state.join(database)).unwrap();
        connection.pragma_update(None, "user_version", 99).unwrap();
    }
    let bytes = || [DATABASE, telemetry::DATABASE, IDENTITY].map(|name| fs::read(state.join(name)));
    let before = bytes().map(Result::unwrap);
    agent.start();
    for (condition, database) in [
        ("store.newer", DATABASE),
        ("telemetry.newer", telemetry::DATABASE),
    ] {
        let told = agent.until_condition(condition, SOON);
        let sentence = told["sentence"].as_str().unwrap();
        assert!(sentence.contains(database), "{told}");
        assert!(
            sentence.contains("is from a newer pipeops-agent (schema 99"),
            "{told}"
        );
        let fix = told["fix"].as_str().unwrap();
        assert!(
            fix.contains("install the newer pipeops-agent again"),
            "{told}"
        );
    }
    let (code, said) = agent.cli(&["status"]);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("install the newer pipeops-agent again"),
        "{said}"
    );
    agent.stop();
    assert_eq!(bytes().map(Result::unwrap), before);
}
