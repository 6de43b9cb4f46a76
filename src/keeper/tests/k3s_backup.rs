//! Backups of k3s and their way back, on a datastore that is a real one.

use std::{os::unix::fs::MetadataExt, time::Duration};

use rusqlite::Connection;

use super::{
    super::k3s::{Backup, Restore, Target, WatchOptions},
    k3s_life::{VERSION, assert_same, cut_everywhere, good, install, starts},
    *,
};
use crate::core::{
    age::{Identity, Recipient},
    k3s::backup::Limits,
};

const STATE: &str = "var/lib/rancher/k3s/server/db/state.db";
/// A start that needs a token of now.
const STARTS: &str = "grep -q new var/lib/rancher/k3s/server/token && mkdir -p run/k3s";

fn datastore(tree: &Tree) -> Connection {
    Connection::open(tree.root().join(STATE)).unwrap()
}

pub(super) fn write(tree: &Tree, word: &str) {
    let connection = datastore(tree);
    let make = "CREATE TABLE IF NOT EXISTS kine (id INTEGER PRIMARY KEY, name TEXT)";
    connection.execute_batch(make).unwrap();
    let add = "INSERT INTO kine (name) VALUES (?1)";
    connection.execute(add, [word]).unwrap();
}

pub(super) fn words(tree: &Tree) -> Vec<String> {
    let connection = datastore(tree);
    let mut all = connection
        .prepare("SELECT name FROM kine ORDER BY id")
        .unwrap();
    let all = all.query_map([], |row| row.get(0)).unwrap();
    all.map(|word| word.unwrap()).collect()
}

/// A cluster with a datastore, secrets and a volume.
pub(super) fn cluster(tree: Tree) -> Tree {
    install(&tree).unwrap();
    std::fs::remove_file(tree.root().join(STATE)).unwrap();
    starts(&tree, "mkdir -p run/k3s");
    for (path, text) in [
        ("var/lib/rancher/k3s/server/token", "K10::server:old\n"),
        ("var/lib/rancher/k3s/server/tls/server-ca.crt", "old ca\n"),
        ("var/lib/rancher/k3s/server/cred/passwd", "old\n"),
        ("var/lib/rancher/k3s/storage/pvc-1_shop_data/file", "data"),
        ("etc/rancher/k3s/config.yaml", "tls-san: [old.lan]\n"),
    ] {
        tree.put(path, text, 0o600);
    }
    write(&tree, "first");
    tree
}

pub(super) fn wanted() -> Backup {
    Backup {
        to: Target::Usual,
        limits: Limits {
            count: 2,
            days: 30,
            bytes: 1 << 30,
        },
        recipients: Vec::new(),
        copied_by: None,
    }
}

/// The path of a new backup.
fn backup(tree: &Tree) -> PathBuf {
    let report = tree.keeper().k3s_backup(&wanted()).unwrap();
    tree.root().join(report.file.trim_start_matches('/'))
}

fn restore(tree: &Tree, file: &Path) -> Result<Done> {
    tree.keeper().k3s_restore(&from(file), "root")
}

fn from(file: &Path) -> Restore {
    Restore {
        file: file.to_owned(),
        identities: Vec::new(),
        ignored: Vec::new(),
        within: Duration::ZERO,
        program: "/usr/bin/pipeops-agent".to_owned(),
    }
}

/// Changes after the backup.
fn later(tree: &Tree) {
    write(tree, "second");
    tree.put(
        "var/lib/rancher/k3s/server/token",
        "K10::server:new\n",
        0o600,
    );
    tree.put("etc/rancher/k3s/config.yaml", "tls-san: [new.lan]\n", 0o600);
}

#[test]
fn a_backup_has_all_that_a_cluster_is_and_names_what_it_has_not() {
    let tree = cluster(good());
    // A writer that goes on: its log is not in the file yet.
    let writer = datastore(&tree);
    writer.pragma_update(None, "journal_mode", "WAL").unwrap();
    write(&tree, "second");
    let before = tree.snapshot();
    let plan = tree.keeper().k3s_backup_plan(&wanted()).unwrap();
    assert!(plan.warned[0].what.contains("pvc-1_shop_data"), "{plan:?}");
    assert_same(&tree.snapshot(), &before, "a plan");

    let report = tree.keeper().k3s_backup(&wanted()).unwrap();
    assert_eq!((&*report.version, report.revision), (VERSION, 2));
    assert!(
        report.volumes[0].path.ends_with("pvc-1_shop_data"),
        "{report:?}"
    );
    let file = tree.root().join(report.file.trim_start_matches('/'));
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let folder = file.parent().unwrap();
    assert_eq!(
        std::fs::read_dir(folder).unwrap().count(),
        1,
        "only it is left"
    );
    let status = tree.keeper().k3s_status(None).unwrap();
    assert_eq!(status.backups.len(), 1);
    assert_eq!(status.backups[0].version.as_deref(), Some(VERSION));
    assert_eq!(words(&tree), ["first", "second"]);
}

#[test]
fn the_cluster_comes_back_as_it_was_and_the_undo_brings_the_later_one_back() {
    let tree = cluster(good());
    let file = backup(&tree);
    later(&tree);
    let after = tree.snapshot();
    let plan = tree.keeper().k3s_restore_plan(&from(&file)).unwrap();
    assert!(
        plan.steps.iter().any(|step| step.undo == "moved back"),
        "{plan:?}"
    );
    assert_same(&tree.snapshot(), &after, "a plan");

    let done = restore(&tree, &file).unwrap();
    assert_eq!(done.outcome, "done", "{done:?}");
    assert_eq!(words(&tree), ["first"]);
    let read = |path: &str| tree.read(path).unwrap();
    assert_eq!(
        read("var/lib/rancher/k3s/server/token"),
        "K10::server:old\n"
    );
    assert_eq!(read("etc/rancher/k3s/config.yaml"), "tls-san: [old.lan]\n");

    write(&tree, "third");
    let undone = tree.keeper().undo(&done.change.unwrap(), "root").unwrap();
    assert_eq!(undone.outcome, "undone", "{undone:?}");
    assert_eq!(words(&tree), ["first", "second"]);
    assert_same(&tree.snapshot(), &after, "undone");
}

#[test]
fn settings_that_are_long_or_no_text_come_back_and_go_with_the_undo() {
    let tree = cluster(good());
    let put = |path: &str, bytes: &[u8], mode: u32| {
        tree.put(path, "", mode);
        crate::files::replace(&tree.root().join(path), bytes, mode).unwrap();
    };
    let read = |path: &str| std::fs::read(tree.root().join(path)).ok();
    let (bundle, der) = ("etc/rancher/k3s/ca.pem", "etc/rancher/k3s/keys/root.der");
    let (short, long) = ("etc/rancher/k3s/audit.yaml", "y".repeat(70_000));
    put(bundle, "x".repeat(100_000).as_bytes(), 0o600);
    put(der, &[0x30, 0x82, 0xff, 0xfe, 0], 0o600);
    put(short, b"short", 0o600);
    // Together longer than what the journal takes.
    for number in 0..20 {
        let path = format!("etc/rancher/k3s/more/{number}.yaml");
        put(&path, "z: \"\\\"\n".repeat(6000).as_bytes(), 0o600);
    }
    let file = backup(&tree);
    later(&tree);
    put(bundle, b"later", 0o644);
    put(short, long.as_bytes(), 0o640);
    for folder in ["keys", "more"] {
        std::fs::remove_dir_all(tree.root().join("etc/rancher/k3s").join(folder)).unwrap();
    }
    let after = tree.snapshot();

    let done = restore(&tree, &file).unwrap();
    assert_eq!(done.outcome, "done", "{done:?}");
    assert_eq!(read(bundle).unwrap().len(), 100_000);
    assert_eq!(read(der).unwrap(), [0x30, 0x82, 0xff, 0xfe, 0]);
    assert_eq!(read(short).as_deref(), Some(&b"short"[..]));
    assert_eq!(read("etc/rancher/k3s/more/19.yaml").unwrap().len(), 42_000);
    assert_eq!(words(&tree), ["first"]);

    let undone = tree.keeper().undo(&done.change.unwrap(), "root").unwrap();
    assert_eq!(undone.outcome, "undone", "{undone:?}");
    assert_same(&tree.snapshot(), &after, "undone");
}

#[test]
fn settings_that_no_backup_takes_are_a_refusal() {
    let tree = cluster(good());
    tree.put("etc/rancher/k3s/disk.img", "", 0o600);
    let path = tree.root().join("etc/rancher/k3s/disk.img");
    let image = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    image.set_len(17 << 20).unwrap();
    let refused = tree.keeper().k3s_backup(&wanted()).unwrap_err();
    assert!(
        refused.sentence().contains("/etc/rancher/k3s/disk.img"),
        "{refused}"
    );
    assert!(refused.fix.is_some());
}

#[test]
fn settings_that_are_links_are_in_a_backup_with_what_they_lead_to() {
    let tree = cluster(good());
    let config = tree.root().join("etc/rancher/k3s/config.yaml");
    let folder = tree.root().join("etc/rancher/k3s/config.yaml.d");
    let link = |to: &str, at: &Path| {
        drop(std::fs::remove_file(at));
        std::os::unix::fs::symlink(to, at).unwrap();
    };
    tree.put("srv/k3s/config.yaml", "tls-san: [linked.lan]\n", 0o600);
    tree.put("srv/k3s/a.yaml", "node-label: a=b\n", 0o600);
    link("../../../srv/k3s/config.yaml", &config);
    link("../../../../srv/k3s/a.yaml", &folder.join("a.yaml"));
    // An editor makes such a one, and k3s reads neither.
    link("root@box.123", &folder.join(".#a.yaml.swp"));
    link("/", &tree.root().join("etc/rancher/k3s/other"));
    // k3s makes such a one by itself.
    let kubeconfig = tree.root().join("etc/rancher/k3s/k3s.yaml");
    link("/nowhere", &kubeconfig);
    let file = backup(&tree);
    // What is there is not replaced.
    let refused = restore(&tree, &file).unwrap_err();
    assert!(refused.sentence().contains("config.yaml"), "{refused:?}");
    assert!(config.is_symlink());
    std::fs::remove_file(&config).unwrap();
    std::fs::remove_file(folder.join("a.yaml")).unwrap();
    assert_eq!(restore(&tree, &file).unwrap().outcome, "done");
    for (path, text) in [
        ("etc/rancher/k3s/config.yaml", "tls-san: [linked.lan]\n"),
        ("etc/rancher/k3s/config.yaml.d/a.yaml", "node-label: a=b\n"),
    ] {
        assert_eq!(tree.read(path).as_deref(), Some(text));
    }
    link("../../../srv/k3s/gone.yaml", &config);
    let refused = tree.keeper().k3s_backup(&wanted()).unwrap_err();
    assert!(
        refused
            .sentence()
            .contains("config.yaml is a link that leads nowhere"),
        "{refused:?}"
    );
}

#[test]
fn only_the_last_restore_can_be_undone() {
    let tree = cluster(good());
    let file = backup(&tree);
    let first = restore(&tree, &file).unwrap().change.unwrap();
    let second = restore(&tree, &file).unwrap().change.unwrap();
    let refused = tree.keeper().undo(&first, "root").unwrap_err();
    assert!(
        refused.sentence().contains("cannot be undone"),
        "{refused:?}"
    );
    assert_eq!(
        tree.keeper().undo(&second, "root").unwrap().outcome,
        "undone"
    );
}

#[test]
fn a_restore_that_stopped_halfway_keeps_the_only_copy_of_the_cluster_before_it() {
    let tree = cluster(good());
    let file = backup(&tree);
    let id = restore(&tree, &file).unwrap().change.unwrap();
    let record = tree.root().join("var/keeper/0002-k3s-restore.json");
    let text = std::fs::read_to_string(&record).unwrap();
    let halfway = text.replace("\"outcome\": \"done\"", "\"outcome\": \"failed\"");
    assert_ne!(text, halfway);
    crate::files::replace(&record, halfway.as_bytes(), 0o600).unwrap();
    let aside = tree
        .root()
        .join("var/lib/rancher/k3s/server/before-restore");
    assert!(aside.is_dir());
    let refused = restore(&tree, &file).unwrap_err();
    assert!(refused.sentence().contains("only copy"), "{refused:?}");
    assert!(
        refused
            .fix
            .unwrap()
            .contains(&format!("before-restore.{id}"))
    );
    assert!(aside.is_dir());
    std::fs::rename(&aside, tree.root().join("elsewhere")).unwrap();
    assert_eq!(restore(&tree, &file).unwrap().outcome, "done");
}

#[test]
fn what_would_not_work_here_is_refused_with_the_reason() {
    let tree = cluster(good());
    let file = backup(&tree);
    let before = tree.snapshot();
    let why = |file: &Path| {
        let refused = restore(&tree, file).unwrap_err();
        assert!(refused.fix.is_some(), "{refused:?}");
        assert_same(&tree.snapshot(), &before, "refused");
        refused.sentence()
    };
    let whole = std::fs::read(&file).unwrap();
    let other = tempfile::tempdir().unwrap();
    let damaged = other.path().join("damaged");
    for (system, length) in [
        (whole.len() / 2, whole.len()),
        (0, whole.len() / 2),
        (0, 10),
    ] {
        let mut bytes = whole.clone();
        bytes[system] ^= 1;
        crate::files::replace(&damaged, &bytes[..length], 0o600).unwrap();
        assert!(why(&damaged).contains("damaged"));
    }
    let note = tree.root().join("var/keeper/k3s.managed");
    let text = std::fs::read_to_string(&note).unwrap();
    crate::files::replace(
        &note,
        text.replace("\"box\"", "\"other\"").as_bytes(),
        0o600,
    )
    .unwrap();
    assert!(why(&file).contains("taken on node box, and this is other"));
    std::fs::remove_file(&note).unwrap();
    assert!(why(&file).contains("does not manage"));
}

#[test]
fn a_backup_does_not_go_where_others_are_and_a_damaged_datastore_into_none() {
    let tree = cluster(good());
    make(&tree.root().join("shared"));
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(tree.root().join("shared"), open).unwrap();
    make(&tree.root().join("sticky"));
    let sticky = std::fs::Permissions::from_mode(0o1777);
    std::fs::set_permissions(tree.root().join("sticky"), sticky).unwrap();
    for folder in ["/shared", "/sticky", "/sticky/new", "relative", "/var/../x"] {
        let to = Target::Folder(folder.to_owned());
        let refused = tree.keeper().k3s_backup(&Backup { to, ..wanted() });
        assert!(refused.is_err(), "{folder}");
    }
    write(&tree, &"x".repeat(50_000));
    let mut bytes = std::fs::read(tree.root().join(STATE)).unwrap();
    let end = bytes.len();
    bytes[4096..end].fill(0x5a);
    crate::files::replace(&tree.root().join(STATE), &bytes, 0o600).unwrap();
    let refused = tree.keeper().k3s_backup(&wanted()).unwrap_err();
    assert!(refused.sentence().contains("damaged"), "{refused:?}");
    assert!(tree.keeper().k3s_status(None).unwrap().backups.is_empty());
}

#[test]
fn a_restore_that_fails_ends_with_the_cluster_of_before() {
    let tree = cluster(good());
    let file = backup(&tree);
    later(&tree);
    // A k3s that does not take the restored token.
    starts(&tree, STARTS);
    let after = tree.snapshot();
    let done = restore(&tree, &file).unwrap();
    assert_eq!(done.outcome, "failed", "{done:?}");
    assert!(done.sentence.contains("reverted"), "{done:?}");
    assert_same(&tree.snapshot(), &after, "failed");
}

#[test]
fn a_restore_that_was_cut_off_anywhere_comes_to_its_end() {
    let prepared = || {
        let tree = cluster(good());
        backup(&tree);
        later(&tree);
        tree
    };
    let file = |tree: &Tree| {
        let name = tree.keeper().k3s_status(None).unwrap().backups[0]
            .name
            .clone();
        tree.root().join("var/backups/pipeops").join(name)
    };
    let work = |tree: &Tree| restore(tree, &file(tree));
    cut_everywhere(7, prepared, work, |tree, at| {
        // Cut before the intent was on disk, nothing has happened.
        if words(tree).len() == 2 {
            work(tree).unwrap();
        }
        assert_eq!(words(tree), ["first"], "{at}");
        let token = tree.read("var/lib/rancher/k3s/server/token").unwrap();
        assert_eq!(token, "K10::server:old\n", "{at}");
        let left = tree.read("etc/systemd/system/pipeops-k3s-resume.service");
        assert_eq!(left, None, "{at}");
    });
}

const IDENTITY: &str = "AGE-SECRET-KEY-1EGTZVFFV20835NWYV6270LXYVK2VKNX2MMDKWYKLMGR48UAWX40Q2P2LM0";
const RECIPIENT: &str = "age1xmwwc06ly3ee5rytxm9mflaz2u56jjj36s0mypdrwsvlul66mv4q47ryef";
const OTHER: &str = "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj";

fn encrypted(recipients: &[&str]) -> Backup {
    let recipients = recipients
        .iter()
        .map(|text| Recipient::parse(text).unwrap());
    Backup {
        recipients: recipients.collect(),
        ..wanted()
    }
}

#[test]
fn an_encrypted_backup_is_read_with_an_identity_and_shows_nothing_without() {
    let tree = cluster(good());
    let secret = "K10::server:old";
    let report = tree
        .keeper()
        .k3s_backup(&encrypted(&[OTHER, RECIPIENT]))
        .unwrap();
    assert_eq!(report.recipients, [OTHER, RECIPIENT]);
    let file = tree.root().join(report.file.trim_start_matches('/'));
    assert!(report.file.ends_with(".tar.gz.age"), "{report:?}");
    let folder = std::fs::read_dir(file.parent().unwrap()).unwrap();
    assert_eq!(folder.count(), 1, "nothing plain is left");
    let bytes = std::fs::read(&file).unwrap();
    let has = |text: &str| {
        bytes
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    };
    assert!(!has(secret) && !has("manifest.json"));
    let entry = &tree.keeper().k3s_status(None).unwrap().backups[0];
    assert!(entry.is_encrypted && entry.version.is_none(), "{entry:?}");

    later(&tree);
    let after = tree.snapshot();
    let refused = restore(&tree, &file).unwrap_err();
    assert!(refused.to_string().contains("--identity FILE"), "{refused}");
    let with = |file: &Path, text: &str| {
        tree.keeper().k3s_restore(
            &Restore {
                identities: Identity::parse_file(text).unwrap(),
                ..from(file)
            },
            "root",
        )
    };
    let stranger = "AGE-SECRET-KEY-143WN7DCXU4G8R5AXQSSYD9AEPYDNT3HXSLWSPK36CDU6E8M59SSSAGZ3KG";
    let refused = with(&file, stranger).unwrap_err();
    assert!(
        refused
            .sentence()
            .contains("not encrypted to any key in that file"),
        "{refused}"
    );
    for cut in [1, 100, bytes.len() / 2, bytes.len() - 300] {
        let damaged = tree.root().join("damaged");
        crate::files::replace(&damaged, &bytes[..bytes.len() - cut], 0o600).unwrap();
        let refused = with(&damaged, IDENTITY).unwrap_err();
        assert!(refused.sentence().contains("damaged"), "{cut}: {refused}");
        std::fs::remove_file(&damaged).unwrap();
    }
    assert_same(&tree.snapshot(), &after, "refused");
    assert_eq!(with(&file, IDENTITY).unwrap().outcome, "done");
    assert_eq!(words(&tree), ["first"]);
}

/// The name of a backup with another time in it.
fn dated(file: &Path, time: &str) -> PathBuf {
    let name = file.file_name().unwrap().to_str().unwrap();
    let (node, rest) = name.split_at("k3s-box-".len());
    let (_, rest) = rest.split_at(time.len());
    file.with_file_name(format!("{node}{time}{rest}"))
}

/// Names in the agent's directory.
fn handed(tree: &Tree) -> Vec<String> {
    let entries = std::fs::read_dir(tree.root().join("var/spool/pipeops-k3s"));
    let names = entries.into_iter().flatten();
    let mut names: Vec<_> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A backup that the agent copies on, with more places than there will be backups.
fn copied() -> Backup {
    Backup {
        copied_by: Some(nix::unistd::getegid().as_raw()),
        limits: Limits {
            count: 20,
            days: 36_500,
            bytes: 1 << 30,
        },
        ..encrypted(&[RECIPIENT])
    }
}

#[test]
fn only_encrypted_backups_are_left_to_the_agent() {
    let (tree, copied) = (cluster(good()), copied());
    backup(&tree);
    let report = tree.keeper().k3s_backup(&copied).unwrap();
    let name = report.file.rsplit('/').next().unwrap().to_owned();
    assert_eq!(handed(&tree), [name.as_str()], "the plain one is not");
    let spool = tree.root().join("var/spool/pipeops-k3s");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(
        (mode(&spool), mode(&spool.join(&name))),
        (0o2750, 0o640),
        "it can read and not write"
    );
    let original = tree.root().join(report.file.trim_start_matches('/'));
    let number = |path: &Path| std::fs::metadata(path).unwrap().ino();
    assert_eq!(
        number(&original),
        number(&spool.join(&name)),
        "no room is taken"
    );

    // The newest three, also of those before; a plain file with such a name is refused.
    for day in 1..5 {
        let older = dated(&original, &format!("2020010{day}T000000Z"));
        std::fs::copy(&original, older).unwrap();
    }
    let keeper = tree.keeper();
    keeper.k3s_backup(&copied).unwrap();
    let names = handed(&tree);
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(
        names[0].contains("20200103") || names[0].contains("20200104"),
        "{names:?}"
    );
    let folder = original.parent().unwrap();
    let aside = tree.root().join("aside");
    std::fs::rename(folder, &aside).unwrap();
    let false_name = dated(&original, "20200105T000000Z");
    make(folder);
    crate::files::replace(&false_name, b"plain", 0o600).unwrap();
    let refused = keeper.k3s_backup(&copied).unwrap_err();
    assert!(refused.sentence().contains("is none"), "{refused}");
    assert!(handed(&tree).iter().all(|name| !name.contains("20200105")));
}

#[test]
fn backups_are_left_to_the_agent_only_while_it_copies_them() {
    let (tree, copied) = (cluster(good()), copied());
    let (keeper, group) = (tree.keeper(), copied.copied_by);
    let report = keeper.k3s_backup(&copied).unwrap();
    let name = report.file.rsplit('/').next().unwrap();
    let original = tree.root().join(report.file.trim_start_matches('/'));
    let folder = original.parent().unwrap();
    let aside = tree.root().join("aside");
    let spool = tree.root().join("var/spool/pipeops-k3s");
    for day in 1..5 {
        let older = dated(&original, &format!("2020010{day}T000000Z"));
        std::fs::copy(&original, older).unwrap();
    }
    // One of a clock that was ahead is not the newest; one of another cluster is not this one's.
    std::fs::copy(&original, dated(&original, "20990101T000000Z")).unwrap();
    let (dated_name, _) = name.rsplit_once('-').unwrap();
    let other = format!("{dated_name}-0a0a0a0a.tar.gz.age");
    std::fs::copy(&original, original.with_file_name(other)).unwrap();

    // Each look of the watch sees to it, and takes it back when the setting goes.
    std::fs::remove_dir_all(&spool).unwrap();
    let look = |copied_by, to| {
        let backup = Backup {
            to,
            copied_by,
            ..copied.clone()
        };
        let wanted = WatchOptions {
            repairs: false,
            window: None,
            backups: Some((Duration::from_hours(24), Ok(backup))),
            group,
            built: Wall::default(),
        };
        keeper.k3s_watch_once(&wanted).unwrap();
    };
    look(group, Target::Usual);
    let names = handed(&tree);
    assert_eq!(names.len(), 3);
    assert!(
        names
            .iter()
            .all(|name| !name.contains("2099") && !name.contains("0a0a0a0a"))
    );
    // Nothing is taken back while the disk is away, or cannot be read.
    make(&tree.root().join("mnt/usb"));
    look(group, Target::Disk("/mnt/usb".to_owned()));
    assert_eq!(handed(&tree), names);
    std::fs::rename(folder, &aside).unwrap();
    look(group, Target::Usual);
    assert_eq!(handed(&tree), names);
    look(None, Target::Usual);
    assert!(!spool.exists());
}

#[test]
fn the_schedule_leaves_what_a_person_kept() {
    let tree = cluster(good());
    let folder = tree.root().join("var/backups/pipeops");
    let first = backup(&tree);
    for minute in 10..18 {
        let ahead = dated(&first, &format!("20990101T00{minute}00Z"));
        std::fs::copy(&first, ahead).unwrap();
    }
    std::fs::remove_file(first).unwrap();
    let count = || std::fs::read_dir(&folder).unwrap().count();
    let keeper = tree.keeper();
    let wide = Backup {
        limits: Limits {
            count: 30,
            ..Limits::USUAL
        },
        ..wanted()
    };
    keeper.k3s_backup(&wide).unwrap();
    assert_eq!(count(), 9);
    // Due at once: the clock was ahead when the newest was made.
    let look = WatchOptions {
        repairs: false,
        window: None,
        backups: Some((Duration::from_hours(24), Ok(wanted()))),
        group: None,
        built: Wall::default(),
    };
    let made = folder.read_dir().unwrap().flatten();
    let made = made.map(|entry| entry.path());
    let today = made.filter(|path| !path.display().to_string().contains("2099"));
    today.for_each(|path| std::fs::remove_file(path).unwrap());
    keeper.k3s_watch_once(&look).unwrap();
    assert_eq!(count(), 9, "one was made, and none is gone");
    // Whoever asks for fewer gets that.
    keeper.k3s_backup(&wanted()).unwrap();
    assert_eq!(count(), 2);
}

#[test]
fn plain_and_encrypted_backups_are_thinned_together() {
    let tree = cluster(good());
    let first = backup(&tree);
    for day in 1..4 {
        std::fs::copy(&first, dated(&first, &format!("2001010{day}T000000Z"))).unwrap();
    }
    // Those of a cluster whose node has the same name.
    for day in 1..4 {
        let other = format!("k3s-box-2001010{day}T000000Z-0a0a0a0a.tar.gz");
        std::fs::copy(&first, first.with_file_name(other)).unwrap();
    }
    std::fs::remove_file(&first).unwrap();
    let report = tree.keeper().k3s_backup(&encrypted(&[RECIPIENT])).unwrap();
    assert_eq!(report.removed.len(), 2, "too many: {report:?}");
    assert!(report.removed.iter().all(|name| !name.contains("0a0a0a0a")));
    assert_eq!(tree.keeper().k3s_status(None).unwrap().backups.len(), 5);
}

#[test]
fn age_removes_backups_but_the_newest_three_and_only_by_a_clock_that_is_synchronized() {
    for (is_synchronized, removed) in [("no", 0), ("yes", 2)] {
        let tree = cluster(good().program("timedatectl", &format!("echo {is_synchronized}")));
        let first = backup(&tree);
        for day in 1..5 {
            std::fs::copy(&first, dated(&first, &format!("2001010{day}T000000Z"))).unwrap();
        }
        std::fs::remove_file(&first).unwrap();
        let many = Backup {
            limits: Limits {
                count: 9,
                ..wanted().limits
            },
            ..wanted()
        };
        let report = tree.keeper().k3s_backup(&many).unwrap();
        assert_eq!(
            report.removed.len(),
            removed,
            "{is_synchronized}: {report:?}"
        );
    }
}

#[test]
fn a_datastore_goes_to_no_k3s_with_other_settings_than_it_depends_on() {
    let tree = cluster(good());
    let drop_in = "etc/rancher/k3s/config.yaml.d/50-pipeops-agent.yaml";
    let own = tree.read(drop_in).unwrap();
    // As of a server that joined: they are in no file that a restore brings.
    tree.put(drop_in, &format!("{own}secrets-encryption: true\n"), 0o600);
    tree.put(
        "etc/rancher/k3s/config.yaml",
        "cluster-cidr: 10.50.0.0/16\nnode-ip: 192.0.2.77\nflannel-iface: eth7\n",
        0o600,
    );
    let file = backup(&tree);
    let plan = || tree.keeper().k3s_restore_plan(&from(&file));
    let warned = plan().unwrap().warned;
    let addresses = warned.iter().filter(|it| it.id == "restore.address");
    assert_eq!(addresses.count(), 2, "{warned:?}");

    // A new machine.
    tree.put(drop_in, &own, 0o600);
    std::fs::remove_file(tree.root().join("etc/rancher/k3s/config.yaml")).unwrap();
    let before = tree.snapshot();
    for refused in [plan().unwrap_err(), restore(&tree, &file).unwrap_err()] {
        assert!(
            refused.sentence().contains("secrets-encryption: true"),
            "{refused}"
        );
        assert!(refused.fix.unwrap().contains("60-restored.yaml"));
    }
    assert_same(&tree.snapshot(), &before, "refused");
    let ignoring = Restore {
        ignored: vec!["restore.settings".to_owned()],
        ..from(&file)
    };
    assert!(tree.keeper().k3s_restore_plan(&ignoring).is_ok());
    let more = "etc/rancher/k3s/config.yaml.d/60-restored.yaml";
    tree.put(
        more,
        "secrets-encryption: true\nnode-ip: 192.0.2.8\n",
        0o600,
    );
    let warned = plan().unwrap().warned;
    let addresses: Vec<_> = warned
        .iter()
        .filter(|it| it.id == "restore.address")
        .collect();
    assert!(
        addresses.len() == 1 && addresses[0].what.contains("eth7"),
        "{warned:?}"
    );
    tree.put(
        more,
        "secrets-encryption: true\ncluster-cidr: 10.60.0.0/16\n",
        0o600,
    );
    assert!(
        plan()
            .unwrap_err()
            .sentence()
            .contains("cluster-cidr: 10.50.0.0/16")
    );
    tree.put(more, "secrets-encryption: true\n", 0o600);
    assert_eq!(restore(&tree, &file).unwrap().outcome, "done");
}

#[test]
fn a_backup_for_another_disk_is_encrypted_and_needs_that_disk() {
    let tree = cluster(good());
    let to = |folder: &str| Backup {
        to: Target::Disk(folder.to_owned()),
        ..wanted()
    };
    let folder = |folder: &str| Backup {
        to: Target::Folder(folder.to_owned()),
        ..wanted()
    };
    make(&tree.root().join("mnt/usb"));
    let before = tree.snapshot();
    let refused = tree.keeper().k3s_backup(&to("/mnt/usb")).unwrap_err();
    assert!(
        refused.sentence().contains("no disk is mounted"),
        "{refused}"
    );
    assert_same(&tree.snapshot(), &before, "refused");

    // In memory: another file system than that of the tree, if the machine has one.
    let disk = tempfile::tempdir_in("/dev/shm").unwrap();
    let device = |path: &Path| std::fs::metadata(path).unwrap().dev();
    if device(disk.path()) == device(tree.root()) {
        return;
    }
    std::fs::remove_dir(tree.root().join("mnt/usb")).unwrap();
    std::os::unix::fs::symlink(disk.path(), tree.root().join("mnt/usb")).unwrap();
    let plain = [to("/mnt/usb"), folder("/mnt/usb")];
    for wanted in plain {
        let refused = tree.keeper().k3s_backup(&wanted).unwrap_err();
        assert!(refused.sentence().contains("carried away"), "{refused}");
    }
    assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 0);
    let sealed = Backup {
        recipients: encrypted(&[RECIPIENT]).recipients,
        ..to("/mnt/usb")
    };
    let report = tree.keeper().k3s_backup(&sealed).unwrap();
    assert!(report.file.starts_with("/mnt/usb/k3s-box-"), "{report:?}");
    let found = tree.keeper().k3s_status(Some(&to("/mnt/usb").to));
    assert_eq!(found.unwrap().backups[0].name, report.file);
    assert!(tree.keeper().k3s_status(None).unwrap().backups.is_empty());
}

#[test]
fn an_etcd_whose_servers_cannot_be_counted_is_not_reset_without_a_word() {
    let tree = cluster(good());
    let file = backup(&tree);
    make_etcd(&tree);
    // Its API is silent.
    std::fs::remove_dir_all(tree.root().join("run/k3s")).unwrap();
    let before = tree.snapshot();
    let refused = restore(&tree, &file).unwrap_err();
    assert!(refused.sentence().contains("how many servers"), "{refused}");
    assert!(
        refused.to_string().contains("--ignore restore.servers"),
        "{refused}"
    );
    let plan = tree.keeper().k3s_restore_plan(&from(&file));
    assert_eq!(plan.unwrap_err().sentence(), refused.sentence());
    assert_same(&tree.snapshot(), &before, "refused");
    // Somebody who knows goes on: to the next refusal, for the backup is of SQLite.
    let forced = Restore {
        ignored: vec!["restore.servers".to_owned()],
        ..from(&file)
    };
    let refused = tree.keeper().k3s_restore(&forced, "root").unwrap_err();
    assert!(
        refused.sentence().contains("its datastore is SQLite"),
        "{refused}"
    );
}

fn make_etcd(tree: &Tree) {
    std::fs::create_dir_all(
        tree.root()
            .join("var/lib/rancher/k3s/server/db/etcd/member/wal"),
    )
    .unwrap();
}
