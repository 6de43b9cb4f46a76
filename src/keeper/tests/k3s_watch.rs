//! The watch over k3s, on trees that stand for machines.

use serde_json::Value;

use super::{
    super::{journal::cut, k3s::WatchOptions},
    k3s_life::{VERSION, borders, good, install, wanted},
    *,
};
use crate::{
    core::k3s::{
        pins::SOCKET,
        watch::{PROGRESS, STATE, STATUS, TIMER, WatchState},
        window::Window,
    },
    wire::{json, keeper::K3sStatus},
};

const HEALTHY: &str = "ActiveState=active\\nResult=success\\nNRestarts=0\\nUnitFileState=enabled\\nInactiveExitTimestampMonotonic=7";

/// An installed k3s. `service` is what systemd says of it, until it is started or restarted.
fn machine(service: &str) -> Tree {
    let tree = good();
    assert_eq!(install(&tree).unwrap().outcome, "done");
    // As after a shutdown that stopped it: its datastore is none.
    tree.put("var/keeper/k3s.managed.stopped", "", 0o600);
    broken(&tree, service);
    tree
}

fn broken(tree: &Tree, service: &str) {
    let tree = tree.root();
    drop(std::fs::remove_file(tree.join("mended")));
    let systemctl = format!(
        "case \"$*\" in\n\
         show*) [ -e mended ] && printf '{HEALTHY}' || printf '{service}';;\n\
         start*k3s|restart*k3s) [ -e hopeless ] || touch mended;;\n\
         esac"
    );
    let k3s = format!(
        "[ \"$1\" != --version ] || {{ echo 'k3s version {VERSION} (x)'; exit; }}\n\
         flock -n var/keeper/lock true && echo free >> calls || echo held >> calls\n\
         [ -e mended ] || {{ echo 'connection refused' >&2; exit 1; }}\n\
         case \"$*\" in *range*) printf 'condition|Ready|True|fine\\naddress|InternalIP|192.0.2.7\\n';;\n\
         *plans*) exit 1;; *) printf '{VERSION}|True|2099-01-01T00:00:00Z|';; esac"
    );
    for (name, script) in [("systemctl", systemctl), ("k3s", k3s)] {
        let text = format!(
            "#!/bin/sh\ncd \"${{0%/usr/sbin/*}}\" || exit 9\necho \"{name} $*\" >> calls\n{script}\n"
        );
        let path = tree.join("usr/sbin").join(name);
        crate::files::replace(&path, text.as_bytes(), 0o755).unwrap();
    }
}

const OPTIONS: WatchOptions = WatchOptions {
    repairs: true,
    window: None,
    backups: None,
    group: None,
    built: Wall::from_millis(0),
};

fn watch_once(tree: &Tree, repairs: bool) -> Option<Done> {
    let wanted = WatchOptions { repairs, ..OPTIONS };
    let repaired = tree.keeper().k3s_watch_once(&wanted).unwrap();
    repaired.map(|repaired| repaired.done)
}

/// Lines of the memory about faults.
fn faults(tree: &Tree) -> String {
    let text = tree.read(STATE.trim_start_matches('/')).unwrap_or_default();
    text.lines().skip(1).collect::<Vec<_>>().join("\n")
}

/// Makes what was seen half an hour older.
fn age_faults(tree: &Tree) {
    let watch_state = tree.read(STATE.trim_start_matches('/')).unwrap();
    let aged: Vec<_> = watch_state
        .lines()
        .map(|line| match line.split('\t').collect::<Vec<_>>() {
            fields if fields[0].starts_with("k3s.") => {
                let since: u64 = fields[1].parse().unwrap();
                let mut fields = fields;
                let since = since.saturating_sub(1800).to_string();
                fields[1] = &since;
                fields.join("\t")
            }
            _ => line.to_owned(),
        })
        .collect();
    tree.put(STATE.trim_start_matches('/'), &aged.join("\n"), 0o640);
}

/// State that a look left for the agent.
fn left(tree: &Tree) -> K3sStatus {
    let text = tree.read(STATUS.trim_start_matches('/')).unwrap();
    json::shape(text.as_bytes()).unwrap()
}

// As systemd 252 has a service that was killed again and again.
const GIVEN_UP: &str = "ActiveState=failed\\nResult=signal\\nNRestarts=5\\nUnitFileState=enabled\\nInactiveExitTimestampMonotonic=7\\n\
    ExecMainExitTimestampMonotonic=60000000\\nStateChangeTimestampMonotonic=65104000";

#[test]
fn an_installation_is_watched_and_its_removal_ends_that() {
    let tree = machine(HEALTHY);
    assert!(
        tree.calls()
            .contains("systemctl start pipeops-k3s-watch.timer")
    );
    assert!(tree.read(TIMER.trim_start_matches('/')).is_some());
    let again = tree.keeper().k3s_watch("/usr/bin/pipeops-agent", "root");
    assert_eq!(again.unwrap().change, None);
}

#[test]
fn memory_that_runs_out_is_told_with_the_pod_that_has_it() {
    let uid = "8c1d2b66-2f4e-4a43-9a6f-0123456789ab";
    let tree = machine(HEALTHY);
    for (id, name, cgroup, kib) in [
        (7, "k3s-server", "0::/system.slice/k3s.service\n", 500_000),
        (8, "node", &*format!("0::/kubepods/pod{uid}/x\n"), 400_000),
        (9, "node", &*format!("0::/kubepods/pod{uid}/x\n"), 400_000),
    ] {
        tree.put(&format!("proc/{id}/comm"), name, 0o644);
        tree.put(&format!("proc/{id}/cgroup"), cgroup, 0o644);
        let status = format!("Name:\t{name}\nVmRSS:\t{kib} kB\n");
        tree.put(&format!("proc/{id}/status"), &status, 0o644);
    }
    tree.put(&format!("var/log/pods/shop_web-1_{uid}/x"), "", 0o644);
    let k3s = tree.read("usr/sbin/k3s").unwrap();
    let lacking = k3s.replace("address|", "condition|MemoryPressure|True|low\\naddress|");
    tree.put("usr/sbin/k3s", &lacking, 0o755);
    tree.put("mended", "", 0o644);
    assert!(watch_once(&tree, true).is_none());
    let found = faults(&tree);
    assert!(
        found.contains("k3s.memory-pressure") && found.contains("the Pod shop/web-1 has 819.2 MB"),
        "{found}"
    );
}

#[test]
fn the_datastore_is_checked_after_a_power_cut_and_not_after_a_shutdown() {
    for (is_cut, told) in [(false, &[][..]), (true, &["k3s.datastore-damaged"])] {
        let tree = machine(HEALTHY);
        tree.put("mended", "", 0o644);
        tree.put(
            "var/lib/rancher/k3s/server/db/state.db",
            "something else, of some length",
            0o600,
        );
        let mark = tree.root().join("var/keeper/k3s.managed.stopped");
        if is_cut {
            std::fs::remove_file(&mark).unwrap();
        }
        assert!(watch_once(&tree, true).is_none());
        assert!(!mark.exists());
        let faults = left(&tree).faults;
        let ids: Vec<_> = faults.iter().map(|fault| fault.id.as_str()).collect();
        assert_eq!(ids, told);
    }
}

#[test]
fn a_restart_that_can_wait_waits_for_the_maintenance_window() {
    let tree = machine(HEALTHY).program("date", "echo 12:00");
    let opens_in = |window: &str| {
        tree.keeper()
            .k3s_opens_in(Window::parse(window).unwrap())
            .unwrap()
    };
    assert_eq!(opens_in("11:59-12:01"), None);
    assert_eq!(opens_in("02:00-05:00"), Some(14 * 60));
}

#[test]
fn a_k3s_that_systemd_gave_up_is_started_and_the_change_is_written_down() {
    let tree = machine(GIVEN_UP);
    let done = watch_once(&tree, true).unwrap();
    assert_eq!(done.outcome, "done", "{done:?}");
    assert_eq!(done.undo, None);
    assert!(done.change.as_deref().unwrap().starts_with("k3s-start-"));
    assert!(
        tree.calls().contains("systemctl reset-failed k3s"),
        "{}",
        tree.calls()
    );
    let changes = tree.keeper().changes().unwrap();
    assert_eq!(changes[0].who, "the watch over k3s");
    // All is well: nothing more is done.
    assert!(watch_once(&tree, true).is_none());
    assert_eq!(tree.keeper().changes().unwrap().len(), changes.len());
}

#[test]
fn a_repair_holds_nothing_up_while_k3s_starts_and_one_that_does_not_help_is_written_down() {
    let tree = machine(GIVEN_UP);
    assert_eq!(watch_once(&tree, true).unwrap().outcome, "done");
    let after = tree.calls();
    let (_, after) = after.rsplit_once("systemctl start --no-block k3s").unwrap();
    assert!(after.contains("free") && !after.contains("held"), "{after}");

    let tree = machine(GIVEN_UP);
    tree.put("hopeless", "", 0o644);
    let done = watch_once(&tree, true).unwrap();
    assert_eq!(done.outcome, "failed", "{done:?}");
    assert!(done.sentence.contains("did not become ready"), "{done:?}");
    let changes = tree.keeper().changes().unwrap();
    assert_eq!(changes[0].outcome, "failed", "{changes:?}");
    // The pause before the next try.
    assert!(watch_once(&tree, true).is_none());
    assert_eq!(tree.keeper().changes().unwrap().len(), changes.len());
    assert!(faults(&tree).contains("failed"), "{}", faults(&tree));
}

#[test]
fn repairs_are_forgotten_some_day_and_the_installation_is_not() {
    let tree = machine(GIVEN_UP);
    watch_once(&tree, true).unwrap();
    let folder = tree.root().join("var/keeper");
    let record = std::fs::read_to_string(folder.join("0002-k3s-start.json")).unwrap();
    for number in 3..110 {
        let copy = record.replace("\"number\": 2", &format!("\"number\": {number}"));
        tree.put(
            &format!("var/keeper/{number:04}-k3s-start.json"),
            &copy,
            0o600,
        );
    }
    tree.keeper().open().unwrap().prune().unwrap();
    let changes = tree.keeper().changes().unwrap();
    assert_eq!(changes.len(), 101);
    assert!(changes.last().unwrap().id.starts_with("k3s-install"));
    assert_eq!(changes[0].id, "k3s-start-109");
}

#[test]
fn what_a_person_did_and_what_root_forbids_is_left_alone() {
    let stopped = GIVEN_UP
        .replace("signal", "success")
        .replace("failed", "inactive");
    for (service, repairs) in [(stopped.as_str(), true), (GIVEN_UP, false)] {
        let tree = machine(service);
        for _ in 0..3 {
            assert!(watch_once(&tree, repairs).is_none());
        }
        let calls = tree.calls();
        let after = calls.rsplit("ActiveState").next().unwrap();
        assert!(!after.contains("reset-failed"), "{after}");
        assert_eq!(
            faults(&tree).contains("keeper.allow"),
            !repairs,
            "{}",
            faults(&tree)
        );
    }
}

/// Opens the record of the installation again, as a power cut leaves it after some of its steps.
fn interrupt(tree: &Tree, steps: impl Fn(usize) -> usize) {
    let name = "var/keeper/0001-k3s-install.json";
    let mut record: Value = serde_json::from_str(&tree.read(name).unwrap()).unwrap();
    let acts = record["acts"].as_array().unwrap().len();
    record["outcome"] = Value::Null;
    record["undone_by"] = Value::Null;
    record["steps"] = vec!["done"; steps(acts)].into();
    tree.put(name, &record.to_string(), 0o600);
}

#[test]
fn a_change_that_no_service_goes_on_with_is_ended_by_the_watch() {
    let tree = machine(HEALTHY);
    tree.put("mended", "", 0o644);
    watch_once(&tree, true);
    let outcome = || {
        watch_once(&tree, true);
        let changes = tree.keeper().changes().unwrap();
        changes.last().unwrap().outcome.clone()
    };
    let link = "etc/systemd/system/multi-user.target.wants/pipeops-k3s-resume.service";
    for left in 0..=1 {
        interrupt(&tree, |acts| acts - left);
        assert_eq!(outcome(), "done", "{left} steps are left");
    }
    for begun in 0..=1 {
        interrupt(&tree, |_| begun);
        assert_eq!(outcome(), "undone", "{begun} steps were begun");
    }
    // What the next boot goes on with is left to it, and what else was begun to a person.
    tree.put(link, "", 0o644);
    for steps in [2, 3] {
        interrupt(&tree, |_| steps);
        assert_eq!(outcome(), "running", "{steps} steps were begun");
    }
    interrupt(&tree, |acts| acts - 2);
    assert_eq!(outcome(), "running");
    std::fs::remove_file(tree.root().join(link)).unwrap();
    interrupt(&tree, |_| 3);
    assert_eq!(outcome(), "running");
}

#[test]
fn nothing_is_judged_while_a_change_is_under_way_or_unfinished() {
    let tree = machine(GIVEN_UP);
    let lock = tree.keeper().open().unwrap();
    assert!(watch_once(&tree, true).is_none());
    drop(lock);
    interrupt(&tree, |acts| acts - 3);
    assert!(watch_once(&tree, true).is_none());
    assert_eq!(faults(&tree), "");
    // As if it had stood still for six minutes.
    let watch_state = || WatchState::parse(&tree.read(STATE.trim_start_matches('/')).unwrap());
    assert_eq!(watch_state().escalated(), []);
    let text = watch_state().text();
    let mut fields: Vec<_> = text.trim_end_matches('\n').split('\t').collect();
    let at = fields
        .iter()
        .position(|field| field.contains("k3s-install-1"))
        .unwrap();
    let aged = format!("0 1 {}", fields[at].rsplit(' ').next().unwrap());
    fields[at] = &aged;
    tree.put(STATE.trim_start_matches('/'), &fields.join("\t"), 0o640);
    assert!(watch_once(&tree, true).is_none());
    let told = watch_state().escalated();
    assert_eq!(told[0].id, "k3s.unfinished");
    assert!(told[0].sentence.contains("k3s-install-1"), "{told:?}");
    // It ends, and so does that.
    tree.keeper().k3s_resume().unwrap();
    watch_once(&tree, true);
    assert!(
        watch_state()
            .escalated()
            .iter()
            .all(|it| it.id != "k3s.unfinished")
    );
}

#[test]
fn a_look_leaves_for_the_agent_what_k3s_status_says() {
    let tree = machine(HEALTHY);
    tree.put("mended", "", 0o644);
    assert!(watch_once(&tree, true).is_none());
    let (left, status) = (left(&tree), tree.keeper().k3s_status(None).unwrap());
    assert!(left.is_ready, "{left:?}");
    assert_eq!(left.version.as_deref(), Some(VERSION));
    let told = left.changes.first().unwrap();
    assert_eq!(told.what, tree.keeper().changes().unwrap()[0].what);
    let alike = K3sStatus {
        at: left.at.clone(),
        measured: left.measured.clone(),
        service: left.service.clone(),
        ..status
    };
    assert_eq!(left, alike);
    let path = tree.root().join(STATUS.trim_start_matches('/'));
    let mode = std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o640);
    // Nobody knows without k3s' directory, and without its settings nothing is encrypted.
    let settings = r#"{"resources":[{"providers":[{"secretbox":{}},{"identity":{}}]}]}"#;
    let folder = "var/lib/rancher/k3s/server/cred";
    let mut seen = vec![left.encrypts_secrets];
    for (name, text) in [("passwd", ""), ("encryption-config.json", settings)] {
        tree.put(&format!("{folder}/{name}"), text, 0o600);
        watch_once(&tree, true);
        seen.push(self::left(&tree).encrypts_secrets);
    }
    assert_eq!(seen, [None, Some(false), Some(true)]);
    // The program is not started again for its version within the hour.
    let count = || tree.calls().matches("k3s --version").count();
    let before = count();
    watch_once(&tree, true);
    assert_eq!(count(), before);
}

#[test]
fn the_agent_sees_the_fault_while_it_is_repaired_and_the_step_that_runs() {
    let tree = machine(GIVEN_UP);
    // Whatever is left while the repair starts the service is kept.
    let keep = "mkdir -p kept; cp run/pipeops-k3s/* kept/";
    let path = tree.root().join("usr/sbin/systemctl");
    let script = std::fs::read_to_string(&path).unwrap();
    let script = script.replace(
        "start*k3s|",
        &format!("start*k3s) {keep}; touch mended;; nothing|"),
    );
    crate::files::replace(&path, script.as_bytes(), 0o755).unwrap();
    assert_eq!(watch_once(&tree, true).unwrap().outcome, "done");
    let during: K3sStatus = json::shape(tree.read("kept/status").unwrap().as_bytes()).unwrap();
    assert!(!during.is_ready);
    assert!(
        during.open[0].contains("stopped restarting it"),
        "{during:?}"
    );
    let doing = tree.read("kept/doing").unwrap();
    assert!(doing.contains("start k3s: k3s kept crashing"), "{doing}");
    assert!(doing.contains("step 2 of 2"), "{doing}");
    // Afterwards nothing runs, and the repair is in the list.
    assert_eq!(tree.read(PROGRESS.trim_start_matches('/')), None);
    let after = left(&tree);
    assert!(after.is_ready && after.open.is_empty(), "{after:?}");
    assert!(after.changes[0].id.starts_with("k3s-start-"), "{after:?}");
}

#[test]
fn a_repair_that_waits_for_ready_says_so_and_since_when() {
    let tree = machine(GIVEN_UP);
    // The first question after the start sees what is told meanwhile.
    let path = tree.root().join("usr/sbin/k3s");
    let script = std::fs::read_to_string(&path).unwrap();
    let keep = "[ $1 = --version ] || [ -e kept ] || { [ -e mended ] && cp -r run/pipeops-k3s kept && cp var/keeper/0002* kept/; }\n";
    let script = script.replacen("echo \"k3s", &format!("{keep}echo \"k3s"), 1);
    crate::files::replace(&path, script.as_bytes(), 0o755).unwrap();
    assert_eq!(watch_once(&tree, true).unwrap().outcome, "done");
    let during: K3sStatus = json::shape(tree.read("kept/status").unwrap().as_bytes()).unwrap();
    let told = &during.changes[0];
    assert_eq!(told.outcome, "waits", "{told:?}");
    let why = told.why.as_deref().unwrap();
    assert!(
        why.starts_with("for the node box to be Ready, since 20"),
        "{why}"
    );
    let changes = tree.keeper().changes().unwrap();
    assert_eq!(
        (changes[0].outcome.as_str(), &changes[0].why),
        ("done", &None)
    );
    // A look that was killed meanwhile leaves no wait behind.
    let kept = tree.read("kept/0002-k3s-start.json").unwrap();
    assert!(kept.contains("\"waits\": \"for the node box"), "{kept}");
    tree.put("var/keeper/0002-k3s-start.json", &kept, 0o600);
    assert_eq!(tree.keeper().changes().unwrap()[0].outcome, "waits");
    watch_once(&tree, true);
    assert_eq!(tree.keeper().changes().unwrap()[0].outcome, "done");
}

#[test]
fn a_change_that_was_interrupted_is_told_as_that_and_its_step_goes() {
    let tree = machine(HEALTHY);
    tree.put("mended", "", 0o644);
    watch_once(&tree, true);
    let doing = PROGRESS.trim_start_matches('/');
    tree.put(
        doing,
        "{\"does\":\"upgrade k3s\",\"step\":\"\",\"since\":\"\"}",
        0o640,
    );
    let lock = tree.keeper().open().unwrap();
    assert!(watch_once(&tree, true).is_none());
    assert!(tree.read(doing).is_some());
    drop(lock);
    interrupt(&tree, |acts| acts - 3);
    watch_once(&tree, true);
    assert_eq!(tree.read(doing), None);
    assert_eq!(left(&tree).unfinished.as_deref(), Some("k3s-install-1"));
}

#[test]
fn coredns_the_datastore_and_the_firewall_are_left_to_a_person_without_a_change() {
    let tree = machine(HEALTHY);
    tree.put("mended", "", 0o644);
    let k3s = tree.root().join("usr/sbin/k3s");
    let script = std::fs::read_to_string(&k3s).unwrap();
    let unready = script.replace(
        "case \"$*\" in ",
        "case \"$*\" in *kube-dns*) printf 'coredns-1|Pending||ErrImagePull|no such image|\\n\\n';;\n\
         *range*deployment/coredns) printf 'condition|Ready|True|fine\\ndns|1|\\n'; exit 1;;\n",
    );
    assert_ne!(unready, script);
    crate::files::replace(&k3s, unready.as_bytes(), 0o755).unwrap();
    let save = format!(
        "#!/bin/sh\nprintf '*filter\\n{}'\n",
        "-A INPUT -j ACCEPT\\n".repeat(60)
    );
    tree.put("usr/sbin/iptables-save", &save, 0o755);
    let db = "var/lib/rancher/k3s/server/db/state.db-wal";
    tree.put("var/lib/rancher/k3s/server/db/state.db", "x", 0o600);
    tree.put(db, "x", 0o600);
    let log = std::fs::OpenOptions::new()
        .write(true)
        .open(tree.root().join(db))
        .unwrap();
    log.set_len(3_000_000_000).unwrap();
    assert!(watch_once(&tree, true).is_none());
    age_faults(&tree);
    let before = tree.keeper().changes().unwrap().len();
    assert!(watch_once(&tree, true).is_none());
    assert_eq!(tree.keeper().changes().unwrap().len(), before);
    let left = left(&tree);
    let told: Vec<_> = left.faults.iter().map(|fault| fault.id.as_str()).collect();
    assert_eq!(
        told,
        ["k3s.datastore-large", "k3s.firewall-duplicates", "k3s.dns"]
    );
    let said: Vec<_> = left
        .faults
        .iter()
        .map(|fault| fault.what.as_str())
        .collect();
    assert!(said[0].contains("3.0 GB in its log"), "{said:?}");
    assert!(said[1].starts_with("59 firewall rules"), "{said:?}");
    assert!(
        said[2].ends_with("Pod coredns-1: Pending, ErrImagePull, no such image"),
        "{said:?}"
    );
    // It is no reason to call the node unready.
    assert!(left.is_ready);
}

/// A k3s that skips the archive of its images, and of whose images `pinned` are pinned.
fn with_skipped_archive(pinned: &str) -> Tree {
    let tree = machine(HEALTHY);
    tree.put("mended", "", 0o644);
    let name = "k3s-airgap-images-amd64.tar.zst";
    tree.put(&format!("{IMAGES}/{name}"), "images", 0o600);
    let cache = format!("{{\"/var/lib/rancher/k3s/agent/images/{name}\":{{\"size\":6}}}}");
    tree.put(CACHE, &cache, 0o600);
    tree.put(SOCKET.trim_start_matches('/'), "", 0o600);
    let k3s = tree.read("usr/sbin/k3s").unwrap();
    let case = format!("case \"$*\" in *ctr*io.cattle.k3s.pinned*) printf '{pinned}';;\n");
    let asked = k3s.replace("case \"$*\" in ", &case);
    assert_ne!(asked, k3s);
    tree.put("usr/sbin/k3s", &asked, 0o755);
    tree
}

const IMAGES: &str = "var/lib/rancher/k3s/agent/images";
const CACHE: &str = "var/lib/rancher/k3s/agent/images/.cache.json";

#[test]
fn archives_whose_pins_are_gone_are_imported_again_by_a_restart_that_knows_of_none() {
    let tree = with_skipped_archive("");
    assert!(watch_once(&tree, true).is_none());
    age_faults(&tree);
    let done = watch_once(&tree, true).unwrap();
    assert_eq!(done.outcome, "done", "{}", done.sentence);
    assert_eq!(tree.read(CACHE).as_deref(), Some(""));
    assert!(tree.calls().contains("systemctl restart --no-block k3s"));
    assert!(
        tree.read(&format!("{IMAGES}/k3s-airgap-images-amd64.tar.zst"))
            .is_some()
    );
    // With the file empty, the next start imports everything, so that nothing is asked.
    let asked = |tree: &Tree| tree.calls().matches(" images ls ").count();
    let before = asked(&tree);
    assert!(watch_once(&tree, true).is_none());
    assert_eq!(asked(&tree), before);
}

#[test]
fn a_repair_that_was_cut_off_anywhere_is_finished_by_the_next_look() {
    let due = || {
        let tree = with_skipped_archive("");
        assert!(watch_once(&tree, true).is_none());
        age_faults(&tree);
        tree
    };
    let all = borders(&due(), |tree| tree.keeper().k3s_watch_once(&OPTIONS));
    let mut left_open = 0;
    for border in 0..all {
        let tree = due();
        cut::at(Some(border));
        let cut_off = tree.keeper().k3s_watch_once(&OPTIONS).is_err();
        cut::at(None);
        let open = tree.keeper().changes().unwrap()[0].outcome == "running";
        left_open += u32::from(cut_off && open);
        watch_once(&tree, true);
        let changes = tree.keeper().changes().unwrap();
        assert_eq!(changes[0].outcome, "done", "cut at {border}");
        assert_eq!(left(&tree).unfinished, None, "cut at {border}");
    }
    assert!(left_open > 3, "{left_open} of {all}");
}

#[test]
fn an_import_that_did_not_help_has_failed() {
    let tree = with_skipped_archive("");
    // k3s skips the archive whatever the file says.
    let k3s = tree.read("usr/sbin/k3s").unwrap();
    let cache = tree.read(CACHE).unwrap();
    let again = k3s.replace(
        "case \"$*\" in ",
        &format!("printf '{cache}' > {CACHE}\ncase \"$*\" in "),
    );
    tree.put("usr/sbin/k3s", &again, 0o755);
    assert!(watch_once(&tree, true).is_none());
    age_faults(&tree);
    let done = watch_once(&tree, true).unwrap();
    assert_eq!(done.outcome, "failed");
    assert!(
        done.sentence.contains("k3s has pinned no image again"),
        "{}",
        done.sentence
    );
}

#[test]
fn an_import_that_cannot_be_prepared_is_held_up_and_nothing_else() {
    let tree = with_skipped_archive("");
    let foreign = tree.root().join("foreign");
    let cache = tree.root().join(CACHE);
    std::fs::rename(&cache, &foreign).unwrap();
    std::os::unix::fs::symlink(&foreign, &cache).unwrap();
    assert!(watch_once(&tree, true).is_none());
    age_faults(&tree);
    assert!(watch_once(&tree, true).is_none());
    let told = left(&tree).faults;
    assert_eq!(told[0].id, "k3s.images-unpinned");
    assert!(
        told[0].what.contains("not repaired automatically"),
        "{told:?}"
    );
}

#[test]
fn archives_whose_images_are_pinned_are_left_alone() {
    let tree = with_skipped_archive("docker.io/rancher/mirrored-pause:3.6\\n");
    for _ in 0..2 {
        assert!(watch_once(&tree, true).is_none());
        age_faults(&tree);
    }
    assert_eq!(faults(&tree), "");
    assert_ne!(tree.read(CACHE).as_deref(), Some(""));
}

#[test]
fn the_agent_sees_the_steps_of_the_first_installation_and_a_failed_one_leaves_nothing() {
    let group = nix::unistd::Gid::effective().as_raw();
    for is_good in [true, false] {
        let tree = good();
        let path = tree.root().join("usr/sbin/systemctl");
        let script = std::fs::read_to_string(&path).unwrap();
        let keep = "case \"$*\" in *start*k3s) ls -ld run/pipeops-k3s >mode; cp run/pipeops-k3s/doing kept;; esac\n";
        let fail = if is_good {
            ""
        } else {
            "case \"$*\" in *start*k3s) exit 1;; esac\n"
        };
        let (head, rest) = script.split_once("echo \"systemctl").unwrap();
        let script = format!("{head}{keep}{fail}echo \"systemctl{rest}");
        crate::files::replace(&path, script.as_bytes(), 0o755).unwrap();
        let keeper = tree.keeper().shown_to(Some(group));
        let done = keeper.k3s_install(&wanted(&tree), "root").unwrap();
        assert_eq!(done.outcome == "done", is_good, "{done:?}");
        let doing = tree.read("kept").unwrap();
        assert!(doing.contains("\"does\":\"install k3s"), "{doing}");
        assert!(doing.contains("\"step\":\"step "), "{doing}");
        assert!(tree.read("mode").unwrap().starts_with("drwxr-s---"));
        assert!(!tree.root().join("run/pipeops-k3s").exists());
    }
}

#[test]
fn a_k3s_that_is_bound_to_one_address_is_asked_past_it_on_the_loopback_interface() {
    let tree = machine(HEALTHY);
    tree.put("mended", "", 0o644);
    tree.keeper().k3s_status(None).unwrap();
    assert!(!tree.calls().contains("--server="), "{}", tree.calls());
    tree.put(
        "etc/rancher/k3s/config.yaml",
        "bind-address: 192.0.2.7\n",
        0o600,
    );
    let before = tree.calls();
    assert!(watch_once(&tree, true).is_none());
    let calls = tree.calls().replace(&before, "");
    let mut asked = calls
        .lines()
        .filter(|line| line.starts_with("k3s kubectl"))
        .peekable();
    assert!(asked.peek().is_some());
    for line in asked {
        assert!(line.contains("--server=https://127.0.0.1:6444 "), "{line}");
    }
}

#[test]
fn a_machine_that_was_renamed_is_reported_and_not_restarted() {
    let tree = machine(HEALTHY);
    tree.put("etc/rancher/k3s/config.yaml", "node-name: garage\n", 0o600);
    tree.put("mended", "", 0o644);
    for answer in [
        "printf 'condition|Ready|Unknown|x\\naddress|InternalIP|192.0.2.7\\n'",
        "echo 'Error from server (NotFound): nodes \"box\" not found' >&2; exit 1",
    ] {
        let k3s = format!(
            "#!/bin/sh\n[ \"$1\" != --version ] || {{ echo 'k3s version {VERSION} (x)'; exit; }}\n\
             case \"$*\" in *plans*) exit 1;; esac\n{answer}\n"
        );
        tree.put("usr/sbin/k3s", &k3s, 0o755);
        for _ in 0..2 {
            assert!(watch_once(&tree, true).is_none());
            age_faults(&tree);
        }
        assert!(watch_once(&tree, true).is_none());
        let found = left(&tree).faults;
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].id, "k3s.renamed");
        assert!(found[0].what.contains("the node garage"), "{found:?}");
    }
    let calls = tree.calls();
    assert!(!calls.contains("restart"), "{calls}");
}
