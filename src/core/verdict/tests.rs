use std::fmt::Write as _;

use super::*;
use crate::core::time::Mono;

fn condition(id: &'static str, severity: Severity) -> Condition {
    Condition {
        id,
        severity,
        since: Wall::from_millis(5_000),
        sentence: format!("{id} is wrong"),
        fix: Some(format!("mend {id}")),
    }
}

fn list(conditions: &[(&'static str, Severity)]) -> Conditions {
    let mut list = Conditions::default();
    for (id, severity) in conditions {
        list.report(condition(id, *severity), Mono::default());
    }
    list
}

fn known(conditions: &Conditions) -> Known<'_> {
    Known {
        conditions,
        link: Link::Ready,
        link_age: Some(Duration::from_secs(3)),
        has_cluster: true,
        cluster_age: Duration::from_secs(8),
        machine_age: Some(Duration::from_secs(600)),
        now: Wall::from_millis(60_000),
    }
}

#[test]
fn nothing_wrong_is_said_with_the_age_of_the_oldest_answer() {
    let none = Conditions::default();
    let verdict = known(&none).verdict();
    assert_eq!((verdict.code, verdict.level), (OK, Level::Ok));
    assert_eq!(verdict.age, Some(Duration::from_secs(8)));
    assert!(verdict.parts.iter().all(|part| part.code == OK));
    assert_eq!(verdict.parts.map(|part| part.part), Part::ALL);
}

#[test]
fn a_link_that_is_not_there_yet_is_neither_a_problem_nor_well() {
    let none = Conditions::default();
    let mut known = known(&none);
    known.link = Link::Away;
    let verdict = known.verdict();
    assert_eq!((verdict.code, verdict.level), (CONNECTING, Level::Unknown));
    known.link = Link::StandingBy("b holds the link".to_owned());
    assert_eq!(known.verdict().code, STANDBY);
    known.link = Link::Off;
    let verdict = known.verdict();
    assert_eq!((verdict.code, verdict.level), (OK, Level::Ok));
    assert_eq!(verdict.parts[1].code, NONE);
}

#[test]
fn the_worst_is_named_and_what_follows_from_it_is_not_counted() {
    let list = list(&[
        ("access.rbac", Severity::Warning),
        ("lease.rbac", Severity::Warning),
        ("cluster.events-hidden", Severity::Note),
        (PODS, Severity::Warning),
    ]);
    let verdict = known(&list).verdict();
    assert_eq!((verdict.code, verdict.part), ("access.rbac", Part::Cluster));
    assert!(
        verdict.sentence.ends_with("; and one more condition"),
        "{}",
        verdict.sentence
    );
    assert_eq!(cause(&list, "lease.rbac"), Some("access.rbac"));
    assert_eq!(cause(&list, "access.rbac"), None);
}

#[test]
fn of_two_warnings_the_one_that_explains_more_comes_first() {
    let both = list(&[
        ("link.down", Severity::Warning),
        (UNREACHABLE, Severity::Warning),
        (MACHINE, Severity::Warning),
    ]);
    assert_eq!(known(&both).verdict().code, UNREACHABLE);
    let refused = list(&[
        ("link.refused", Severity::Critical),
        (UNREACHABLE, Severity::Warning),
    ]);
    assert_eq!(known(&refused).verdict().code, "link.refused");
    let of_machine = list(&[(MACHINE, Severity::Warning), (PODS, Severity::Warning)]);
    assert_eq!(known(&of_machine).verdict().code, PODS);
}

#[test]
fn a_silent_cluster_is_told_with_the_time_of_its_last_byte() {
    let list = list(&[(UNREACHABLE, Severity::Warning), (PODS, Severity::Warning)]);
    let mut known = known(&list);
    known.cluster_age = Duration::from_secs(24);
    let verdict = known.verdict();
    assert_eq!(
        verdict.sentence,
        sentences::cluster_silent(known.cluster_age)
    );
    assert_eq!(verdict.since, Some(Wall::from_millis(36_000)));
    // What was known of the Pods before stays, with its age.
    let [.., workloads] = &verdict.parts;
    assert_eq!(workloads.code, PODS);
    assert_eq!(workloads.age, Some(Duration::from_secs(24)));
}

#[test]
fn a_part_that_is_not_there_or_was_not_looked_at_is_not_called_well() {
    let none = Conditions::default();
    let mut known = known(&none);
    known.has_cluster = false;
    known.machine_age = None;
    let [agent, _, machine, cluster, workloads] = known.verdict().parts;
    assert_eq!(agent.code, OK);
    assert_eq!((machine.code, machine.level), (UNKNOWN, Level::Unknown));
    assert_eq!((cluster.code, workloads.code), (NONE, NONE));
}

#[test]
fn notes_are_not_wrong() {
    let list = list(&[("cluster.none", Severity::Note)]);
    assert_eq!(known(&list).verdict().code, OK);
}

#[test]
fn a_length_is_told_in_seconds_for_a_minute_and_then_in_minutes() {
    for (seconds, text) in [
        (0, "1 s"),
        (24, "24 s"),
        (59, "59 s"),
        (99, "1 min"),
        (3_725, "1 h 2 min"),
    ] {
        assert_eq!(roughly(Duration::from_secs(seconds)), text);
    }
}

fn of_apps() -> [(&'static str, String); 7] {
    use sentences::{
        app_field_left, app_folder, app_lost, app_not_kept, app_not_put_back, app_object_left,
        apps_not_watched,
    };
    [
        (
            "apps.source",
            app_not_kept(
                "web",
                "cannot read https://git.example/web.git: git.example does not accept the credentials",
            ),
        ),
        (
            "apps.folder",
            app_folder(
                "/etc/pipeops-agent/apps is not used: users other than root can change /etc/pipeops-agent/apps",
            ),
        ),
        (
            "apps.drift",
            app_lost("web", "PersistentVolumeClaim shop/data"),
        ),
        (
            "apps.drift",
            app_field_left("web", ("Deployment shop/web", "spec.replicas"), "robot"),
        ),
        (
            "apps.drift",
            app_object_left("web", "ConfigMap shop/settings"),
        ),
        (
            "apps.drift",
            app_not_put_back(
                "web",
                "ConfigMap shop/settings",
                "ConfigMap shop/settings is not deployed: exceeded quota: maps",
            ),
        ),
        (
            "apps.drift",
            apps_not_watched(
                "shop",
                "the account pipeops-apps may not watch configmaps in the namespace shop",
            ),
        ),
    ]
}

/// Every sentence of the verdict: `UPDATE_EXPECT=1 cargo test --lib core::verdict` writes the file.
#[test]
fn every_sentence_is_in_the_snapshot() {
    use crate::core::verdict::Stage::{Running, Starting};
    use sentences::{
        CONNECTING as BEGINS, GATEWAY_FAILED, OK as FINE, OK_ALONE, STATS_UNREAD, cluster_refused,
        cluster_silent, cluster_unreachable, cluster_unwatched, files_hung, link_down, link_held,
        link_refused, machine_problems, nodes_not_ready, pods_not_ready, rights_missing,
        standing_by, store_hung, with_count,
    };
    let silent = cluster_silent(Duration::from_secs(24));
    let missing_image = "cannot pull its image";
    let all = [
        (OK, FINE.to_owned()),
        (OK, OK_ALONE.to_owned()),
        (CONNECTING, BEGINS.to_owned()),
        (STANDBY, standing_by("pi-2 holds the link of this cluster")),
        ("link.refused", link_refused("it answered HTTP 401")),
        ("link.down", link_down("connection refused")),
        ("link.down", GATEWAY_FAILED.to_owned()),
        ("link.held", link_held("the Go agent runs")),
        (UNREACHABLE, silent.clone()),
        (UNREACHABLE, cluster_silent(Duration::from_secs(4_000))),
        (UNREACHABLE, cluster_unreachable("connection refused")),
        ("cluster.refused", cluster_refused("GET /api/v1/nodes: 401")),
        (
            "cluster.unwatched",
            cluster_unwatched("GET /api/v1/pods: 503"),
        ),
        ("cluster.node-not-ready", nodes_not_ready("pi-2")),
        ("cluster.stats-unread", STATS_UNREAD.to_owned()),
        (PODS, pods_not_ready(1, 1, "demo/web", missing_image)),
        (PODS, pods_not_ready(3, 7, "demo/web", missing_image)),
        (
            MACHINE,
            machine_problems(1, "Space on the disk", "94 % used"),
        ),
        (
            MACHINE,
            machine_problems(2, "Space on the disk", "94 % used"),
        ),
        ("access.rbac", rights_missing("ServiceAccount pipeops-cp")),
        ("store.hung", store_hung("/var/lib/pipeops-agent", Starting)),
        ("store.hung", store_hung("/var/lib/pipeops-agent", Running)),
        ("files.hung", files_hung("the settings", Starting)),
        ("files.hung", files_hung("the kubeconfig", Running)),
        ("several", with_count(&silent, 1)),
        ("several", with_count(&silent, 2)),
    ];
    let mut text = String::new();
    for (code, sentence) in all.into_iter().chain(of_apps()) {
        writeln!(text, "{code}: {sentence}").unwrap();
    }
    expect_test::expect_file!["sentences.txt"].assert_eq(&text);
}
