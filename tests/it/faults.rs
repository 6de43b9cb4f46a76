//! `docs/faults.md`: every fault of k3s that is looked for, from its table. `UPDATE_EXPECT=1`
//! writes it.

use std::fmt::Write as _;

use expect_test::expect_file;
use pipeops_agent::core::{
    doctor,
    k3s::faults::{Component, Confidence, FAULTS, Fault, OF_THE_DOCTOR, REPAIRS},
};

const HEAD: &str = "\
# Faults of k3s, and what is done about them

`k3s install`, `k3s join` and `k3s adopt` have root look at k3s each minute; `sudo pipeops-agent k3s watch` does it for one that is managed already.
On a worker the service is `k3s-agent`, and the API is asked with the rights of the kubelet, which may see its own node only. Each fix names the
service and the service manager of the machine. What is well is left alone, and so is a k3s that somebody stopped, disabled or masked: only a
person starts it again. This page is generated from the table in `src/core/k3s/faults/table.rs`.

Where a row has a repair, the root helper carries it out as a change of its journal (`sudo pipeops-agent changes`), and asks the API of this machine
itself whether `/readyz` is fine and the node has reported that it is Ready. Nothing is repaired, and the fault is left to a person, as the condition
`k3s.fault` in the status and in notifications and in `sudo pipeops-agent k3s status`, where

* `keeper.allow` does not list `repair`;
* the repair failed twice; the pause after a try is in the table below, and twice as long after a failure;
* it was repaired four times within a day: it comes back;
* the system-upgrade-controller has plans for this cluster;
* it is about certificates, and the clock is wrong (earlier than this program, or than the newest certificate), or more than 10 days are left and nothing
  says that the clock is synchronized (`timedatectl`, or `chronyc`);
* it is about certificates or images, and another of several servers is not Ready or is being restarted or upgraded;
* an image is gone, and the disk has less room than three times the length of the archives, which is what they take unpacked;
* it is about the address of a server with embedded etcd, whose members know each other by their addresses: k3s does not start with another one.

Faults that a repair could make worse have none: compacting a datastore stops k3s for minutes and takes as much space again; duplicate firewall rules may
belong to other programs; the kubelet restarts CoreDNS itself, so a CoreDNS that stays down lacks an image, a server or a setting.

A scheduled backup that failed is reported in the same places, as `k3s.unsaved`, with its reason: a full disk, a damaged datastore.

A repair that was interrupted is finished by the next look. While another change is under way, or was interrupted, nothing is judged, repaired or
backed up. A change that was interrupted is tried again after a
start of the machine, up to twelve times with pauses; one that nobody goes on with for five minutes is reported in the same places, as
`k3s.unfinished`. What needs the API is judged only while it answers.

The column *injected* says what happens within five minutes when `tests/k3s/run --faults` (`tests/k3s/servers` for the address of etcd) causes the fault on
a machine with systemd and the stand-in of k3s: *repaired* automatically, or *reported* with its reason. *Log only*: the test cannot cause the fault, so a
program prints the log lines of k3s, and the fault is reported. *Unit test*: no test on a machine.
";

const OTHERS: &str = "\
## Seen by the doctor

The watch owns what happens to a k3s that runs, because nobody has to ask for its look. The doctor looks when somebody asks for it, and owns what the
machine brings along. `sudo pipeops-agent doctor` judges these, and `docs/operate.md` has them; the watch does not look at them a second time. Of a k3s
that nobody watches it also shows the length of the datastore (`k3s.datastore`) and duplicate rules (`network.duplicates`).
";

fn page() -> String {
    let mut page = HEAD.to_owned();
    for (part, title) in [
        (Component::Service, "The service"),
        (Component::Api, "The API"),
        (Component::Node, "The node"),
        (Component::Certificates, "Certificates"),
        (Component::Datastore, "The datastore"),
        (Component::Firewall, "The firewall"),
        (Component::Images, "Images"),
        (Component::Dns, "Cluster DNS"),
    ] {
        write!(
            page,
            "\n## {title}\n\n| fault | seen by | after | repair | injected | for a person |\n|---|---|---|---|---|---|\n"
        ).unwrap();
        for fault in FAULTS.iter().filter(|fault| fault.part == part) {
            writeln!(page, "{}", row(fault)).unwrap();
        }
    }
    page.push_str("\nIn each part, the first matching row is the cause. A fault of the service, the API or the node hides faults of the parts below it, except of the\ndatastore and the firewall.\n");
    page.push_str("\n## Repairs\n\n| repair | touches | undo | pause |\n|---|---|---|---|\n");
    for repair in REPAIRS {
        writeln!(
            page,
            "| {} | {} | {} | {} min |",
            repair.does(),
            repair.touches(),
            repair.undo(),
            repair.back_off_s() / 60
        )
        .unwrap();
    }
    write!(page, "\n{OTHERS}\n").unwrap();
    for check in doctor::checks().filter(|check| OF_THE_DOCTOR.contains(&check.id)) {
        writeln!(page, "* `{}`: {}", check.id, check.title).unwrap();
    }
    page
}

fn row(fault: &Fault) -> String {
    let sure = match fault.confidence {
        Confidence::Certain => "",
        Confidence::Likely => " (likely)",
    };
    let after = match fault.grace_s {
        0 => "at once".to_owned(),
        seconds => format!("{} min", seconds / 60),
    };
    let repair = fault.repair.map_or("", |repair| repair.does());
    let cell = |text: &str| text.replace('|', "\\|");
    format!(
        "| `{}` | {}{sure} | {after} | {repair} | {} | {} |",
        fault.id,
        cell(fault.from),
        injected(fault.id),
        cell(fault.fix)
    )
}

/// Treatment of a fault by the scripts that inject faults on a machine.
fn injected(id: &str) -> &'static str {
    let script = include_str!("../k3s/faults");
    let begins = |verb: &str| script.contains(&format!("\n        {id}) {verb}"));
    let says = script.contains(&format!("\n{id} "));
    let elsewhere = include_str!("../k3s/first").contains(&format!("is_told {id}\n"));
    if begins("heals") || begins("images") {
        "repaired"
    } else if begins("tells") || begins("dns") || elsewhere {
        "reported"
    } else if says {
        "log only"
    } else {
        "unit test"
    }
}

#[test]
fn the_page_of_faults_is_what_the_table_says() {
    expect_file!["../../docs/faults.md"].assert_eq(&page());
}

#[test]
fn most_rows_are_injected_on_a_machine_and_no_injection_lacks_its_row() {
    let count = |kind| {
        FAULTS
            .iter()
            .filter(|fault| injected(fault.id) == kind)
            .count()
    };
    assert!(count("repaired") >= 8 && count("reported") >= 13 && count("log only") >= 6);
    for line in include_str!("../k3s/faults").lines() {
        let Some((id, _)) = line.trim_start().split_once(") ") else {
            continue;
        };
        if id.starts_with("k3s.") {
            assert!(FAULTS.iter().any(|fault| fault.id == id), "{id}");
        }
    }
}

#[test]
fn each_row_has_a_name_of_its_own_and_says_what_to_do() {
    let mut names: Vec<_> = FAULTS.iter().map(|fault| fault.id).collect();
    names.extend(doctor::checks().map(|check| check.id));
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
    for fault in FAULTS {
        assert!(fault.id.starts_with("k3s.") && !fault.fix.is_empty() && !fault.from.is_empty());
        assert!(!fault.fix.ends_with('.'), "{}", fault.id);
    }
    for id in OF_THE_DOCTOR {
        assert!(doctor::checks().any(|check| check.id == id), "{id}");
    }
}
