//! k3s of this machine: `/api/v1/k3s`.

use std::time::Duration;

use serde::Serialize;

use super::{Copies, Row};
use crate::{
    core::{
        format::size,
        k3s::servers::quorum,
        time::{Wall, in_words, moment},
        verdict::sentences::SECRETS_UNENCRYPTED,
    },
    wire::{
        json::fields,
        keeper::{Doing, K3sStatus},
    },
};

/// Path of the report.
pub const K3S_PATH: &str = "/api/v1/k3s";
/// Age of a look of the watch from which it says how k3s was, and no longer how it is: the watch
/// looks each minute, and not while a change runs.
const OLD: Duration = Duration::from_secs(600);

/// k3s of this machine, as far as the agent knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct K3sReport {
    /// Copies of backups elsewhere; `null`: no setting asks for them.
    pub copies: Option<Copies>,
    /// k3s as root's watch saw it last; `null`: it is not managed here, or nobody watches.
    pub seen: Option<K3sStatus>,
    /// The same for people, in the words of `k3s status`; empty where that is `null`. The first row
    /// is the state.
    pub rows: Vec<Row>,
}
fields!(K3sReport { copies, seen, rows });

/// Rows of k3s: its one wording, for the command line and the page. The first one is the state.
pub fn k3s_rows(status: &K3sStatus, copies: Option<&Copies>, now: Wall) -> Vec<Row> {
    let managed = match status.managed.as_str() {
        "found" => Some("no: installed by something else".to_owned()),
        "none" => None,
        word => Some(format!("yes, {word}")),
    };
    let other = status.other.as_deref();
    let ends = status.certificate_ends.as_deref().map(moment);
    let file = status.certificate.as_deref().unwrap_or_default();
    // What runs is not unfinished yet.
    let unfinished = status
        .unfinished
        .as_deref()
        .filter(|_| status.doing.is_none());
    let rows = [
        ("Why", status.why.clone()),
        ("Under way", status.doing.as_ref().map(|it| doing(it, now))),
        ("Managed", managed),
        (
            "Also here",
            other.map(|name| format!("{name}, which is not managed")),
        ),
        ("Server", status.server.clone()),
        ("Version", status.version.clone()),
        ("Service", status.service.clone()),
        ("Node", status.node.clone()),
        ("Data", status.data_dir.clone()),
        ("Datastore", datastore(status)),
        (
            "Certificates",
            ends.map(|end| format!("the first expires {end} ({file})")),
        ),
        ("Watched", watched(status)),
        (
            "Backups",
            lacks_backup(status).then(|| "none: sudo pipeops-agent k3s backup".to_owned()),
        ),
        ("Next backup", status.next_backup.as_deref().map(moment)),
        (
            "Unfinished",
            unfinished.map(|id| format!("{id}; go on with it: sudo pipeops-agent k3s resume")),
        ),
    ];
    let rows = rows
        .into_iter()
        .filter_map(|(name, value)| Some(row(name, value?, Vec::new())));
    let copies = copies.map(|copies| copies_row(copies, now));
    [head(status, now)]
        .into_iter()
        .chain(rows)
        .chain(copies)
        .collect()
}

/// Kind, length and quorum of the datastore.
fn datastore(status: &K3sStatus) -> Option<String> {
    let parts = [
        status.datastore.clone(),
        status.datastore_bytes.map(size),
        Some(quorum(status.servers)).filter(|words| !words.is_empty()),
        (status.encrypts_secrets == Some(false)).then(|| "Secrets unencrypted".to_owned()),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The same with faults, backups, volumes and changes, which the command line lays out as lists of
/// their own.
pub fn k3s_page(status: &K3sStatus, copies: Option<&Copies>, now: Wall) -> Vec<Row> {
    let mut rows = k3s_rows(status, copies, now);
    let is_unencrypted = status.encrypts_secrets == Some(false);
    for row in rows
        .iter_mut()
        .filter(|row| is_unencrypted && row.id == "datastore")
    {
        row.details.push(SECRETS_UNENCRYPTED.to_owned());
    }
    let open = status.open.iter();
    rows.extend(open.map(|what| row("Fault", what.clone(), Vec::new())));
    rows.extend(status.faults.iter().map(|fault| {
        let fix = format!("Fix: {}", fault.fix);
        row("Fault", fault.what.clone(), vec![fault.id.clone(), fix])
    }));
    let backups = status.backups.iter();
    let backups = backups.map(|it| format!("{}, {}: {}", size(it.bytes), it.word(), it.name));
    rows.extend(list("Backups", backups));
    let volumes = status.volumes.iter();
    let volumes = volumes.map(|it| format!("{}: {}", size(it.bytes), it.path));
    rows.extend(list("In no backup", volumes));
    rows.extend(status.changes.iter().map(|change| {
        let what = format!("{} {}: {}", moment(&change.at), change.outcome, change.what);
        let undo = format!("Undo: {}", change.undo.words());
        let details = change.why.clone().into_iter().chain([undo]);
        row("Change", what, details.collect())
    }));
    rows
}

/// Items of a list that are shown.
const SHOWN_MAX: usize = 7;

/// A row with a line for each, where there are any.
fn list(title: &str, lines: impl ExactSizeIterator<Item = String>) -> Option<Row> {
    let count = lines.len();
    let more = count.saturating_sub(SHOWN_MAX);
    let more = (more > 0).then(|| format!("and {more} more: sudo pipeops-agent k3s status"));
    let lines = lines.take(SHOWN_MAX).chain(more).collect();
    (count > 0).then(|| row(title, count.to_string(), lines))
}

fn row(title: &str, value: String, details: Vec<String>) -> Row {
    Row {
        id: title.to_lowercase().replace(' ', "_"),
        title: title.to_owned(),
        value,
        details,
        state: "unknown".to_owned(),
        ..Row::default()
    }
}

/// Row of k3s among those of the machine.
pub fn k3s_row(status: &K3sStatus, now: Wall) -> Row {
    let head = head(status, now);
    let backup = match status.backups.first() {
        Some(newest) => format!("backup of {}", moment(&newest.at)),
        None => "no backup".to_owned(),
    };
    let ends = status.certificate_ends.as_deref().map(moment);
    let details = [
        status.version.clone(),
        status.doing.as_ref().map(|it| doing(it, now)),
        status
            .datastore_bytes
            .map(|bytes| format!("datastore {}", size(bytes))),
        ends.map(|end| format!("certificates until {end}")),
        (status.server.is_none() && status.managed != "none").then_some(backup),
    ];
    Row {
        details: details.into_iter().flatten().collect(),
        ..head
    }
}

fn head(status: &K3sStatus, now: Wall) -> Row {
    let (state, value) = match (status.managed.as_str(), status.is_ready) {
        ("none", _) if status.doing.is_some() => ("unknown", "k3s is being set up"),
        ("none", _) => ("unknown", "k3s is not installed on this machine"),
        (_, true) => ("ok", "k3s runs, and its node is Ready"),
        (_, false) => ("critical", "k3s is installed, but its node is not Ready"),
    };
    let row = Row {
        id: "k3s".to_owned(),
        title: "k3s".to_owned(),
        value: value.to_owned(),
        state: state.to_owned(),
        ..Row::default()
    };
    match age(&status.at, now) {
        Some(age) if age >= OLD => Row {
            value: format!(
                "k3s has not been checked for {}; last known state: {value}",
                in_words(age)
            ),
            state: "unknown".to_owned(),
            ..row
        },
        Some(_) | None => row,
    }
}

fn age(stamp: &str, now: Wall) -> Option<Duration> {
    let millis = now
        .millis()
        .checked_sub(Wall::parse_rfc3339(stamp)?.millis())?;
    u64::try_from(millis).ok().map(Duration::from_millis)
}

fn doing(doing: &Doing, now: Wall) -> String {
    let step = match doing.step.as_str() {
        "" => String::new(),
        step => format!("; {step}"),
    };
    let lasted = age(&doing.since, now).map(|age| format!(", for {}", in_words(age)));
    format!("{}{step}{}", doing.does, lasted.unwrap_or_default())
}

fn watched(status: &K3sStatus) -> Option<String> {
    let is_managed = !matches!(status.managed.as_str(), "none" | "found");
    let looked = status.looked.as_deref().map(moment);
    let text = looked.map_or_else(
        || "no: sudo pipeops-agent k3s watch".to_owned(),
        |looked| format!("yes, checked {looked}"),
    );
    (is_managed && status.server.is_none()).then_some(text)
}

fn lacks_backup(status: &K3sStatus) -> bool {
    status.backups.is_empty() && status.managed != "none" && status.server.is_none()
}

/// Row of copies elsewhere: their address, with how many there are and how old the newest is.
pub fn copies_row(copies: &Copies, now: Wall) -> Row {
    let newest = match (&copies.newest, &copies.newest_at) {
        (Some(name), Some(at)) => {
            let old = age(at, now).map_or_else(|| "?".to_owned(), in_words);
            let (count, bytes) = (copies.count, size(copies.bytes));
            format!("{count} in the bucket ({bytes}), newest {old} old: {name}")
        }
        _ => "none is known there yet".to_owned(),
    };
    let keeps = copies
        .keeps_all
        .then(|| "the server allows no deletion, so older copies stay".to_owned());
    let details = [
        Some(newest),
        keeps,
        copies.doing.clone(),
        copies.why.clone(),
    ];
    Row {
        id: "copies".to_owned(),
        title: "Copies".to_owned(),
        value: copies.at.clone(),
        details: details.into_iter().flatten().collect(),
        state: if copies.why.is_some() {
            "warning"
        } else {
            "unknown"
        }
        .to_owned(),
        ..Row::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{
        api::{ChangeReport, Undo},
        backup::{BackupEntry, Volume},
        keeper::Finding,
    };

    fn at(text: &str) -> Wall {
        Wall::parse_rfc3339(text).unwrap()
    }

    fn status() -> K3sStatus {
        K3sStatus {
            managed: "installed".to_owned(),
            at: "2026-11-23T10:00:00Z".to_owned(),
            is_ready: true,
            version: Some("v1.34.4+k3s1".to_owned()),
            datastore_bytes: Some(4_200_000),
            encrypts_secrets: Some(false),
            certificate: Some("kubelet.crt".to_owned()),
            certificate_ends: Some("2027-11-23T10:00:00Z".to_owned()),
            looked: Some("2026-11-23T10:00:00Z".to_owned()),
            ..K3sStatus::default()
        }
    }

    fn texts(rows: &[Row]) -> Vec<String> {
        let rows = rows.iter();
        rows.map(|row| format!("{}: {}", row.title, row.value))
            .collect()
    }

    #[test]
    fn rows_say_how_k3s_is_and_what_is_not_known_has_none() {
        let rows = k3s_rows(&status(), None, at("2026-11-23T10:00:40Z"));
        assert_eq!(
            texts(&rows),
            [
                "k3s: k3s runs, and its node is Ready",
                "Managed: yes, installed",
                "Version: v1.34.4+k3s1",
                "Datastore: 4.2 MB, Secrets unencrypted",
                "Certificates: the first expires 2027-11-23 10:00:00Z (kubelet.crt)",
                "Watched: yes, checked 2026-11-23 10:00:00Z",
                "Backups: none: sudo pipeops-agent k3s backup",
            ]
        );
        assert_eq!(rows[0].state, "ok");
    }

    #[test]
    fn a_change_that_runs_is_told_with_its_step_and_is_not_unfinished() {
        let mut status = status();
        status.unfinished = Some("k3s-upgrade-3".to_owned());
        let now = at("2026-11-23T10:00:40Z");
        let told = texts(&k3s_rows(&status, None, now)).join("\n");
        assert!(told.contains("Unfinished: k3s-upgrade-3; go on"), "{told}");
        status.doing = Some(Doing {
            does: "upgrade k3s to v1.34.5+k3s1".to_owned(),
            step: "step 3 of 9: stop k3s".to_owned(),
            since: "2026-11-23T10:00:10Z".to_owned(),
        });
        let told = texts(&k3s_rows(&status, None, now)).join("\n");
        let wanted = "Under way: upgrade k3s to v1.34.5+k3s1; step 3 of 9: stop k3s, for 30 s";
        assert!(told.contains(wanted), "{told}");
        assert!(!told.contains("unfinished"), "{told}");
    }

    #[test]
    fn the_page_has_faults_with_their_fix_a_bounded_list_of_volumes_and_the_way_back() {
        let volume = |number: u64| Volume {
            path: format!("/data/pvc-{number}"),
            bytes: 1_000_000 * number,
        };
        let status = K3sStatus {
            open: vec!["the API is silent".to_owned()],
            faults: vec![Finding {
                id: "k3s.port-taken".to_owned(),
                what: "a port is taken".to_owned(),
                fix: "stop the other one".to_owned(),
            }],
            backups: vec![BackupEntry {
                name: "a.tar.gz.age".to_owned(),
                bytes: 2_000_000,
                is_encrypted: true,
                ..BackupEntry::default()
            }],
            volumes: (1..=22).map(volume).collect(),
            changes: vec![ChangeReport {
                at: "2026-11-23T09:00:00Z".to_owned(),
                outcome: "done".to_owned(),
                what: "watch over k3s".to_owned(),
                undo: Undo {
                    possible: true,
                    command: Some("sudo pipeops-agent undo k3s-watch-2".to_owned()),
                    why_not: None,
                },
                ..ChangeReport::default()
            }],
            ..status()
        };
        let rows = k3s_page(&status, None, at("2026-11-23T10:00:40Z"));
        let told: Vec<_> = rows[6..]
            .iter()
            .map(|row| format!("{}: {}", row.title, row.value))
            .collect();
        assert_eq!(rows[3].details, [SECRETS_UNENCRYPTED]);
        let wanted = [
            "Fault: the API is silent",
            "Fault: a port is taken",
            "Backups: 1",
            "In no backup: 22",
            "Change: 2026-11-23 09:00:00Z done: watch over k3s",
        ];
        assert_eq!(told, wanted);
        assert_eq!(
            rows[7].details,
            ["k3s.port-taken", "Fix: stop the other one"]
        );
        assert_eq!(rows[8].details, ["2.0 MB, encrypted: a.tar.gz.age"]);
        assert_eq!(rows[9].details.len(), SHOWN_MAX + 1);
        assert!(rows[9].details[SHOWN_MAX].starts_with("and 15 more: "));
        assert_eq!(
            rows[10].details,
            ["Undo: sudo pipeops-agent undo k3s-watch-2"]
        );
    }

    #[test]
    fn an_old_look_does_not_say_how_k3s_is() {
        let row = k3s_row(&status(), at("2026-11-23T10:10:00Z"));
        assert_eq!(row.state, "unknown");
        assert!(
            row.value.starts_with("k3s has not been checked for 10 min"),
            "{row:?}"
        );
        let fresh = k3s_row(&status(), at("2026-11-23T10:09:59Z"));
        assert_eq!(fresh.state, "ok");
        assert_eq!(fresh.details.last().unwrap(), "no backup");
        let mut status = status();
        status.backups = vec![BackupEntry {
            at: "2026-11-23T02:00:00Z".to_owned(),
            ..BackupEntry::default()
        }];
        let row = k3s_row(&status, at("2026-11-23T10:01:00Z"));
        assert_eq!(
            row.details.last().unwrap(),
            "backup of 2026-11-23 02:00:00Z"
        );
    }

    #[test]
    fn copies_are_told_with_the_age_of_the_newest_and_with_why_there_are_none() {
        let mut copies = Copies {
            at: "https://s3.example/b".to_owned(),
            newest: Some("box.tar.gz.age".to_owned()),
            newest_at: Some("2026-11-23T08:00:00Z".to_owned()),
            count: 3,
            bytes: 3_000_000,
            ..Copies::default()
        };
        let now = at("2026-11-23T10:00:00Z");
        let told = |copies: &Copies| k3s_rows(&status(), Some(copies), now).pop().unwrap();
        let wanted = "3 in the bucket (3.0 MB), newest 2 h old: box.tar.gz.age";
        assert_eq!(told(&copies).details, [wanted]);
        copies.why = Some("the bucket is gone".to_owned());
        assert_eq!(told(&copies).details[1], "the bucket is gone");
        assert_eq!(told(&copies).state, "warning");
    }
}
