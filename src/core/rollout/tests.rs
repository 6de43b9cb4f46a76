use super::*;
use serde_json::{Value, json};

use RolloutVerdict::{Bad, Good, Progressing, Soaking, Waiting};

fn at(seconds: u64) -> Mono {
    Mono::since_boot(Duration::from_secs(10_000 + seconds))
}

fn key(kind: &str, name: &str) -> Key {
    Key {
        kind: kind.to_owned(),
        namespace: "shop".to_owned(),
        name: name.to_owned(),
    }
}

fn rollout() -> Rollout {
    let scope = Scope {
        targets: BTreeMap::from([(key("Deployment", "web"), 1)]),
        deadline: DEADLINE,
        soak: SOAK,
    };
    Rollout::new(scope, at(0))
}

/// A Deployment of one Pod with this container status.
fn seen(ready: bool, restarts: u64, state: &Value) -> Observation {
    let mut seen = Observation::default();
    let revision = json!({"deployment.kubernetes.io/revision": "1"});
    let available = u64::from(ready);
    seen.add(Object::reduced("Deployment", &json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "d", "generation": 1, "annotations": revision},
        "spec": {"replicas": 1},
        "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": available,
            "conditions": [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]}})));
    seen.add(Object::reduced(
        "ReplicaSet",
        &json!({
        "metadata": {"name": "web-1", "namespace": "shop", "uid": "r", "annotations": revision,
            "ownerReferences": [{"kind": "Deployment", "name": "web", "uid": "d"}]},
        "spec": {"replicas": 1}, "status": {"replicas": 1, "availableReplicas": available}}),
    ));
    seen.add(Object::reduced("Pod", &json!({
        "metadata": {"name": "web-1-a", "namespace": "shop", "uid": "p",
            "ownerReferences": [{"kind": "ReplicaSet", "name": "web-1", "uid": "r"}]},
        "spec": {"restartPolicy": "Always", "nodeName": "n", "containers": [
            {"name": "c", "image": "i", "resources": {"limits": {"memory": "8Mi"}}}]},
        "status": {"phase": "Running",
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
            "containerStatuses": [{"name": "c", "image": "i", "ready": ready, "restartCount": restarts, "state": state}]}})));
    seen
}

fn ready() -> Observation {
    seen(true, 0, &json!({"running": {}}))
}

fn starting() -> Observation {
    seen(
        false,
        0,
        &json!({"waiting": {"reason": "ContainerCreating"}}),
    )
}

fn pulling(message: &str) -> Observation {
    seen(
        false,
        0,
        &json!({"waiting": {"reason": "ErrImagePull", "message": message}}),
    )
}

/// Verdicts at these moments, with a look every second from each to the next.
fn verdicts(rollout: &mut Rollout, times: &[(u64, Option<Observation>)]) -> Vec<RolloutVerdict> {
    let mut verdicts = Vec::new();
    for (number, (time, seen)) in times.iter().enumerate() {
        let until = times.get(number + 1).map_or(time + 1, |(next, _)| *next);
        let mut judge = |second| rollout.observe(seen.as_ref().into(), at(second)).verdict;
        verdicts.push(judge(*time));
        for second in time + 1..until {
            judge(second);
        }
    }
    verdicts
}

#[test]
fn a_version_is_good_only_after_its_soak() {
    let mut rollout = rollout();
    let times = [
        (0, Some(starting())),
        (5, Some(ready())),
        (64, Some(ready())),
        (65, Some(ready())),
    ];
    assert_eq!(
        verdicts(&mut rollout, &times),
        [Progressing, Soaking, Soaking, Good]
    );
}

#[test]
fn the_time_that_a_version_took_is_without_its_soak_and_without_a_blind_hour() {
    let mut one = rollout();
    let times = [
        (0, Some(starting())),
        (25, Some(ready())),
        (85, Some(ready())),
    ];
    assert_eq!(verdicts(&mut one, &times), [Progressing, Soaking, Good]);
    assert_eq!(one.took(), Duration::from_secs(25));
    let mut other = rollout();
    other.observe(ClusterView::Seen(&starting()), at(0));
    for second in 1..3600 {
        other.observe(ClusterView::Blind, at(second));
    }
    let times = [(3600, Some(starting())), (3640, Some(ready()))];
    assert_eq!(verdicts(&mut other, &times), [Progressing, Soaking]);
    assert_eq!(other.took(), Duration::from_secs(40));
}

#[test]
fn flapping_is_never_good_and_bad_at_the_deadline() {
    let mut rollout = rollout();
    let mut last = Progressing;
    for second in 0..1000 {
        let seen = if (second / 30) % 2 == 0 {
            ready()
        } else {
            starting()
        };
        last = rollout
            .observe(ClusterView::Seen(&seen), at(second))
            .verdict;
        assert_ne!(last, Good);
    }
    assert_eq!(last, Bad);
}

/// A Deployment that is to have so many Pods, of which so many are there and ready.
fn scaled(wanted: u64, ready: u64) -> Observation {
    let mut seen = self::ready();
    let name = key("Deployment", "web");
    let mut web = seen.get(&name).unwrap().value().clone();
    web["spec"]["replicas"] = json!(wanted);
    for field in ["replicas", "updatedReplicas", "availableReplicas"] {
        web["status"][field] = json!(ready);
    }
    seen.add(Object::recorded(&web));
    seen
}

#[test]
fn an_autoscaler_that_never_rests_makes_nothing_late() {
    let mut rollout = rollout();
    let mut judge = |second: u64, seen: &Observation| {
        let judged = rollout.observe(ClusterView::Seen(seen), at(second));
        (judged.verdict, judged.sentence)
    };
    for second in 0..2_000 {
        let seen = match second % 50 {
            0..25 => scaled(2, 2),
            25..30 => scaled(4, 2),
            _ => scaled(4, 4),
        };
        let (verdict, sentence) = judge(second, &seen);
        assert!(matches!(verdict, Soaking | Progressing), "{sentence}");
    }
    // What fails without being scaled is late as ever, and good once it stays ready.
    assert_eq!(judge(2_000, &scaled(4, 4)).0, Soaking);
    for second in 2_001..2_570 {
        assert_eq!(judge(second, &scaled(4, 3)).0, Progressing);
    }
    for second in 2_570..2_574 {
        judge(second, &scaled(4, 4));
    }
    judge(2_574, &scaled(4, 3));
    let (verdict, sentence) = judge(2_575, &scaled(4, 3));
    assert_eq!(verdict, Bad);
    assert!(
        sentence.starts_with("it became ready and failed again 2 times: "),
        "{sentence}"
    );
}

#[test]
fn one_failure_is_told_as_one() {
    let mut rollout = rollout();
    rollout.observe(ClusterView::Seen(&ready()), at(0));
    let mut last = None;
    for second in 1..=600 {
        last = Some(rollout.observe(ClusterView::Seen(&starting()), at(second)));
    }
    let last = last.unwrap();
    assert!(
        last.sentence
            .starts_with("it became ready and failed again 1 time: "),
        "{}",
        last.sentence
    );
    let fix = last.finding.unwrap().fix;
    assert!(fix.ends_with("kubectl -n shop logs POD"), "{fix}");
}

#[test]
fn a_restart_within_the_soak_begins_it_again() {
    let mut rollout = rollout();
    let restarted = seen(true, 1, &json!({"running": {}}));
    let times = [
        (0, Some(ready())),
        (59, Some(restarted.clone())),
        (61, Some(restarted.clone())),
        (119, Some(restarted)),
    ];
    assert_eq!(
        verdicts(&mut rollout, &times),
        [Soaking, Soaking, Soaking, Good]
    );
}

#[test]
fn a_missing_image_is_bad_after_a_minute_not_at_once() {
    let mut rollout = rollout();
    let missing =
        pulling("rpc error: code = NotFound desc = failed to resolve reference: not found");
    let first = rollout.observe(ClusterView::Seen(&missing), at(0));
    assert_eq!(
        (first.verdict, first.finding.unwrap().cause),
        (Progressing, Cause::ImageNotFound)
    );
    let times = [
        (1, Some(missing.clone())),
        (59, Some(missing.clone())),
        (60, Some(missing)),
    ];
    assert_eq!(
        verdicts(&mut rollout, &times),
        [Progressing, Progressing, Bad]
    );
    // It stays so, whatever comes later.
    assert_eq!(
        rollout.observe(ClusterView::Seen(&ready()), at(61)).verdict,
        Bad
    );
}

#[test]
fn a_registry_that_is_away_for_an_hour_makes_nothing_bad() {
    let mut rollout = rollout();
    let away = pulling("failed to do request: dial tcp 192.0.2.1:443: i/o timeout");
    for second in 0..3600 {
        assert_eq!(
            rollout
                .observe(ClusterView::Seen(&away), at(second))
                .verdict,
            Waiting
        );
    }
    let times = [(3600, Some(ready())), (3660, Some(ready()))];
    assert_eq!(verdicts(&mut rollout, &times), [Soaking, Good]);
}

#[test]
fn a_node_that_makes_no_containers_for_an_hour_makes_nothing_bad() {
    for message in [
        "context deadline exceeded",
        "write /x: no space left on device",
    ] {
        let mut rollout = rollout();
        let state = json!({"waiting": {"reason": "CreateContainerError", "message": message}});
        let (away, lost) = (seen(false, 0, &state), restarted(9, &state, ("Error", 1)));
        for second in 0..3600 {
            let judged = rollout.observe(ClusterView::Seen(&away), at(second));
            assert_eq!(judged.verdict, Waiting, "{message}");
        }
        let judged = rollout.observe(ClusterView::Seen(&lost), at(3600));
        assert_eq!(judged.verdict, Waiting, "{message}");
    }
    // What nobody knows is left to the deadline.
    let mut rollout = rollout();
    let state = json!({"waiting": {"reason": "RunContainerError", "message": "something new"}});
    for second in 0..600 {
        let judged = rollout.observe(ClusterView::Seen(&seen(false, 0, &state)), at(second));
        assert_eq!(judged.verdict, Progressing);
    }
    let late = rollout.observe(ClusterView::Seen(&seen(false, 0, &state)), at(600));
    assert_eq!(
        (late.verdict, late.finding.unwrap().cause),
        (Bad, Cause::ContainerStart)
    );
}

#[test]
fn a_blind_hour_does_not_count_against_the_deadline() {
    let mut rollout = rollout();
    rollout.observe(ClusterView::Seen(&starting()), at(0));
    for second in 1..3600 {
        assert_eq!(
            rollout.observe(ClusterView::Blind, at(second)).verdict,
            RolloutVerdict::Blind
        );
    }
    let times = [(3600, Some(starting())), (4199, Some(starting()))];
    assert_eq!(verdicts(&mut rollout, &times), [Progressing, Progressing]);
    let late = rollout.observe(ClusterView::Seen(&starting()), at(4200));
    assert_eq!(
        (late.verdict, late.finding.unwrap().cause),
        (Bad, Cause::Deadline)
    );
}

#[test]
fn a_night_in_which_the_machine_slept_counts_neither_as_a_deadline_nor_as_a_soak() {
    let missing = || pulling("rpc error: code = NotFound desc = not found");
    let mut waits = rollout();
    let times = [(0, Some(starting())), (590, Some(starting()))];
    verdicts(&mut waits, &times);
    let mut lacks = rollout();
    verdicts(&mut lacks, &[(0, Some(missing())), (50, Some(missing()))]);
    let mut soaks = rollout();
    verdicts(&mut soaks, &[(0, Some(ready())), (50, Some(ready()))]);
    // What is seen first is of before; the watches bring the rest.
    let night = 30_000;
    let times = |seen: Observation| [(night, Some(seen.clone())), (night + 59, Some(seen))];
    let progressing = [Progressing, Progressing];
    assert_eq!(verdicts(&mut waits, &times(starting())), progressing);
    assert_eq!(verdicts(&mut lacks, &times(missing())), progressing);
    assert_eq!(verdicts(&mut soaks, &times(ready())), [Soaking, Soaking]);
    let last = [(night + 60, Some(ready()))];
    assert_eq!(verdicts(&mut soaks, &last), [Good]);
}

/// A container in this state that was restarted so often, and ended last in this way.
fn restarted(restarts: u64, state: &Value, (reason, code): (&str, u64)) -> Observation {
    let mut seen = seen(false, restarts, state);
    let mut pod = seen.get(&key("Pod", "web-1-a")).unwrap().value().clone();
    pod["status"]["containerStatuses"][0]["lastState"] =
        json!({"terminated": {"exitCode": code, "reason": reason}});
    seen.add(Object::recorded(&pod));
    seen
}

fn backs_off() -> Value {
    json!({"waiting": {"reason": "CrashLoopBackOff"}})
}

#[test]
fn three_restarts_are_a_loop_and_two_are_not() {
    let crashed = |count| restarted(count, &backs_off(), ("Error", 3));
    let mut rollout = rollout();
    rollout.observe(ClusterView::Seen(&starting()), at(0));
    assert_eq!(
        rollout
            .observe(ClusterView::Seen(&crashed(2)), at(1))
            .verdict,
        Progressing
    );
    let bad = rollout.observe(ClusterView::Seen(&crashed(3)), at(2));
    assert_eq!(bad.verdict, Bad);
    assert_eq!(
        bad.sentence,
        "container c keeps exiting, last with exit code 3 (a failure of the program)"
    );
}

#[test]
fn restarts_from_before_the_change_count_neither_as_a_loop_nor_as_lack_of_memory() {
    let runs = json!({"running": {}});
    for (reason, code, more) in [("Error", 1, 3), ("OOMKilled", 137, 1), ("Unknown", 255, 9)] {
        let end = (reason, code);
        let mut rollout = rollout();
        for second in 0..100 {
            let judged = rollout.observe(ClusterView::Seen(&restarted(7, &runs, end)), at(second));
            assert_eq!(
                (judged.verdict, judged.finding),
                (Progressing, None),
                "{reason}"
            );
        }
        // It goes on as it was: still within what a node does to it.
        let waits = restarted(6 + more, &backs_off(), end);
        assert_eq!(
            rollout.observe(ClusterView::Seen(&waits), at(101)).verdict,
            Progressing,
            "{reason}"
        );
        let last = rollout.observe(
            ClusterView::Seen(&restarted(7 + more, &backs_off(), end)),
            at(102),
        );
        let is_lost = reason == "Unknown";
        assert_eq!(last.verdict == Bad, !is_lost, "{reason}");
    }
}

#[test]
fn a_program_that_lacks_dns_or_disk_waits_and_one_that_asks_for_a_wrong_name_is_bad() {
    for (line, wanted, cause) in [
        ("EAI_AGAIN db", Waiting, Cause::DnsUnavailable),
        (
            "write /x: no space left on device",
            Waiting,
            Cause::NodePressure,
        ),
        ("lookup db: no such host", Bad, Cause::CrashLoop),
    ] {
        let mut rollout = rollout();
        rollout.observe(ClusterView::Seen(&starting()), at(0));
        let mut crashed = restarted(5, &backs_off(), ("Error", 1));
        crashed.add(Object::reduced(
            LAST_LINES,
            &json!({"metadata": {"name": "web-1-a/c", "namespace": "shop"}, "id": "", "lines": [line]}),
        ));
        let judged = rollout.observe(ClusterView::Seen(&crashed), at(1));
        assert_eq!(
            (judged.verdict, judged.finding.unwrap().cause),
            (wanted, cause)
        );
    }
}

#[test]
fn a_container_that_waits_after_an_end_of_before_shows_it_and_is_not_bad() {
    let mut rollout = rollout();
    let waits = restarted(9, &backs_off(), ("StartError", 128));
    let first = rollout.observe(ClusterView::Seen(&waits), at(0));
    assert_eq!(
        (first.verdict, first.finding.unwrap().cause),
        (Progressing, Cause::ContainerStart)
    );
    // The end of before has its restart, and that one the next two.
    for (second, restarts) in [(1, 10), (2, 11), (3, 12)] {
        let crashed = restarted(restarts, &backs_off(), ("Error", 1));
        let judged = rollout.observe(ClusterView::Seen(&crashed), at(second));
        assert_eq!(judged.verdict, Progressing, "{restarts}");
    }
    let crashed = restarted(13, &backs_off(), ("Error", 1));
    let judged = rollout.observe(ClusterView::Seen(&crashed), at(4));
    assert_eq!(judged.verdict, Bad);
}

#[test]
fn what_ended_while_nothing_was_seen_proves_nothing() {
    let mut rollout = rollout();
    rollout.observe(ClusterView::Seen(&starting()), at(0));
    rollout.observe(ClusterView::Blind, at(1));
    let runs = restarted(4, &json!({"running": {}}), ("Error", 137));
    let judged = rollout.observe(ClusterView::Seen(&runs), at(2));
    assert_eq!(judged.verdict, Progressing);
    let judged = rollout.observe(
        ClusterView::Seen(&restarted(7, &backs_off(), ("Error", 1))),
        at(3),
    );
    assert_eq!(judged.verdict, Bad);
}

#[test]
fn a_pod_that_takes_the_place_of_an_earlier_one_has_no_earlier_ends() {
    let crashed = restarted(5, &backs_off(), ("Error", 1));
    let mut earlier = Earlier::of(&crashed);
    let mut pod = crashed.get(&key("Pod", "web-1-a")).unwrap().value().clone();
    assert_eq!(earlier.ends(&Object::recorded(&pod), "c"), 6);
    assert_eq!(earlier.ends(&Object::recorded(&pod), "other"), 0);
    pod["metadata"]["uid"] = json!("q");
    let pod = Object::recorded(&pod);
    assert_eq!(earlier.ends(&pod, "c"), 0);
    let mut seen = Observation::default();
    seen.add(pod);
    earlier.keep_those_of(&seen);
    // Also where the first one came back.
    assert_eq!(
        earlier.ends(crashed.get(&key("Pod", "web-1-a")).unwrap(), "c"),
        0
    );
}

#[test]
fn a_version_whose_controller_has_not_seen_it_waits() {
    let mut rollout = rollout();
    let first = rollout.observe(ClusterView::Seen(&Observation::default()), at(0));
    assert_eq!(first.verdict, Waiting);
    assert_eq!(first.sentence, "Deployment shop/web is not there yet");
}

#[test]
fn ids_are_unique_and_never_change_their_form() {
    let mut ids: Vec<_> = Cause::ALL.iter().map(|cause| cause.id()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), Cause::ALL.len());
    assert!(ids.iter().all(|id| {
        id.bytes()
            .all(|byte| byte.is_ascii_lowercase() || b".-".contains(&byte))
    }));
    for verdict in RolloutVerdict::ALL {
        assert_eq!(RolloutVerdict::of(verdict.as_str()), Some(verdict));
    }
}

#[test]
fn a_refused_look_says_so_and_stops_deadlines_and_the_soak() {
    let mut rollout = rollout();
    rollout.observe(ClusterView::Seen(&ready()), at(0));
    let refused = Finding {
        cause: Cause::AccessRefused,
        object: String::new(),
        sentence: "the account pipeops-apps may not list pods".to_owned(),
        evidence: String::new(),
        fix: "let it in".to_owned(),
        is_definite: false,
    };
    for second in 1..3600 {
        let judged = rollout.observe(ClusterView::Refused(&refused), at(second));
        assert_eq!(judged.verdict, Waiting);
        assert_eq!(judged.finding.as_ref(), Some(&refused));
    }
    let scope = &rollout.scope;
    let (verdict, sentence, _) = standing(scope, ClusterView::Refused(&refused));
    assert_eq!((verdict, sentence), (Waiting, refused.sentence));
    assert_eq!(
        rollout
            .observe(ClusterView::Seen(&ready()), at(3600))
            .verdict,
        Soaking
    );
}

/// The objects of [`ready`], with a Deployment without Pods and a Service that leads to these Pods.
fn with_service(replicas: u64, selector: &str) -> (Scope, Observation) {
    let mut seen = ready();
    seen.add(Object::reduced("Deployment", &json!({
        "metadata": {"name": "worker", "namespace": "shop", "uid": "w", "generation": 1},
        "spec": {"replicas": replicas, "template": {"metadata": {"labels": {"app": "worker", "tier": "back"}}}},
        "status": {"observedGeneration": 1}})));
    seen.add(Object::reduced("Service", &json!({
        "metadata": {"name": "worker", "namespace": "shop"}, "spec": {"selector": {"app": selector}, "ports": [{"port": 80}]}})));
    let scope = Scope {
        targets: BTreeMap::from([
            (key("Deployment", "web"), 1),
            (key("Deployment", "worker"), 1),
            (key("Service", "worker"), 0),
        ]),
        deadline: DEADLINE,
        soak: SOAK,
    };
    (scope, seen)
}

#[test]
fn a_service_of_a_workload_that_is_scaled_to_nothing_is_good() {
    let (scope, seen) = with_service(0, "worker");
    let mut rollout = Rollout::new(scope, at(0));
    let times = [(0, Some(seen.clone())), (60, Some(seen))];
    assert_eq!(verdicts(&mut rollout, &times), [Soaking, Good]);
    let (scope, seen) = with_service(0, "typo");
    let mut rollout = Rollout::new(scope, at(0));
    rollout.observe(ClusterView::Seen(&seen), at(0));
    let bad = rollout.observe(ClusterView::Seen(&seen), at(20));
    assert_eq!(
        (bad.verdict, bad.finding.unwrap().cause),
        (Bad, Cause::ServiceNoEndpoints)
    );
}

#[test]
fn a_daemon_set_that_fits_no_node_is_good_with_a_doubt() {
    let mut seen = Observation::default();
    seen.add(Object::reduced(
        "DaemonSet",
        &json!({
        "metadata": {"name": "disks", "namespace": "shop", "uid": "s", "generation": 1},
        "spec": {"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}},
        "status": {"observedGeneration": 1, "desiredNumberScheduled": 0}}),
    ));
    let scope = Scope {
        targets: BTreeMap::from([(key("DaemonSet", "disks"), 1)]),
        deadline: DEADLINE,
        soak: SOAK,
    };
    let (verdict, sentence, found) = standing(&scope, ClusterView::Seen(&seen));
    assert_eq!(verdict, Good);
    assert_eq!(
        sentence,
        "everything is applied, but DaemonSet shop/disks runs nowhere: no node fits its nodeSelector, affinity or tolerations"
    );
    let found = found.unwrap();
    assert_eq!(
        (found.cause, found.evidence.as_str()),
        (Cause::ScheduleAffinity, "nodeSelector: disk=ssd")
    );
}

/// An object of this kind whose newest event says that the quota refuses a Pod.
fn without_room(kind: &str, spec: &Value, status: &Value) -> RolloutVerdict {
    let mut seen = Observation::default();
    seen.add(Object::reduced(
        kind,
        &json!({"metadata": {"name": "db", "namespace": "shop", "uid": "s", "generation": 1},
            "spec": spec, "status": status}),
    ));
    for (name, reason) in [("e1", "SuccessfulCreate"), ("e2", "FailedCreate")] {
        seen.add(Object::reduced(
            "Event",
            &json!({"metadata": {"name": name, "namespace": "shop"}, "reason": reason,
            "lastTimestamp": "2026-01-01T00:00:00Z", "message": "pods \"db-2\" is forbidden: exceeded quota: one",
            "involvedObject": {"kind": kind, "namespace": "shop", "name": "db", "uid": "s"}}),
        ));
    }
    let scope = Scope {
        targets: BTreeMap::from([(key(kind, "db"), 1)]),
        deadline: DEADLINE,
        soak: SOAK,
    };
    standing(&scope, ClusterView::Seen(&seen)).0
}

#[test]
fn a_refused_pod_that_is_not_wanted_any_more_says_nothing() {
    let of_set = |wanted: u64| {
        let status = json!({"observedGeneration": 1, "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2});
        without_room("StatefulSet", &json!({"replicas": wanted}), &status)
    };
    let of_daemons = |wanted: u64| {
        let status = json!({"observedGeneration": 1, "desiredNumberScheduled": wanted,
            "updatedNumberScheduled": 2, "numberAvailable": 2});
        without_room("DaemonSet", &json!({}), &status)
    };
    let of_job = |status: &Value| without_room("Job", &json!({}), status);
    let done = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    assert_eq!([of_set(2), of_daemons(2), of_job(&done)], [Good; 3]);
    assert_eq!(of_job(&json!({"active": 1})), Progressing);
    let bad = Bad;
    assert_eq!([of_set(3), of_daemons(3), of_job(&json!({}))], [bad; 3]);
}

#[test]
fn an_ingress_that_names_a_port_its_service_has_not_leads_nowhere() {
    let judged = |port: &Value| {
        let (mut scope, mut seen) = with_service(0, "worker");
        seen.add(Object::reduced(
            "Service",
            &json!({
            "metadata": {"name": "worker", "namespace": "shop"},
            "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]}}),
        ));
        let backend = json!({"service": {"name": "worker", "port": port}});
        seen.add(Object::reduced(
            "Ingress",
            &json!({
            "metadata": {"name": "worker", "namespace": "shop"},
            "spec": {"rules": [{"http": {"paths": [{"backend": backend}]}}]}}),
        ));
        scope.targets.insert(key("Ingress", "worker"), 0);
        standing(&scope, ClusterView::Seen(&seen))
    };
    for port in [json!({"number": 80}), json!({"name": "http"})] {
        assert_eq!(judged(&port).0, Good, "{port}");
    }
    for (port, wanted) in [
        (json!({"number": 8080}), "8080"),
        (json!({"name": "web"}), "named \"web\""),
    ] {
        let (verdict, sentence, found) = judged(&port);
        assert_eq!(verdict, Bad, "{port}");
        assert_eq!(
            sentence,
            format!("Ingress shop/worker has no backend: the Service worker has no port {wanted}")
        );
        let found = found.unwrap();
        assert_eq!(
            (found.cause, found.evidence.as_str()),
            (Cause::IngressNoBackend, "ports of the Service: 80 (http)")
        );
    }
}

#[test]
fn a_pod_of_before_says_nothing_until_the_controller_has_seen_the_version() {
    let message = "exec: \"serve\": executable file not found in $PATH";
    let cannot_start = json!({"waiting": {"reason": "RunContainerError", "message": message}});
    let mut old = seen(false, 0, &cannot_start);
    let mut target = old.get(&key("Deployment", "web")).unwrap().value().clone();
    target["metadata"]["generation"] = json!(2);
    old.add(Object::recorded(&target));
    let mut rollout = rollout();
    let judged = rollout.observe(ClusterView::Seen(&old), at(0));
    assert_eq!((judged.verdict, judged.finding), (Waiting, None));
    target["status"]["observedGeneration"] = json!(2);
    old.add(Object::recorded(&target));
    assert_eq!(rollout.observe(ClusterView::Seen(&old), at(1)).verdict, Bad);
}

#[test]
fn pods_of_a_daemon_set_that_has_none_of_the_new_version_say_nothing_about_it() {
    let judged = |updated: u64| {
        let mut seen = Observation::default();
        seen.add(Object::reduced(
            "DaemonSet",
            &json!({"metadata": {"name": "disks", "namespace": "shop", "uid": "s", "generation": 2},
                "status": {"observedGeneration": 2, "desiredNumberScheduled": 1, "updatedNumberScheduled": updated}}),
        ));
        let waiting = json!({"reason": "InvalidImageName"});
        seen.add(Object::reduced(
            "Pod",
            &json!({"metadata": {"name": "disks-1", "namespace": "shop", "uid": "p", "ownerReferences": [{"uid": "s"}]},
                "status": {"containerStatuses": [{"name": "c", "state": {"waiting": waiting}}]}}),
        ));
        standing(&scope_of("DaemonSet", "disks"), ClusterView::Seen(&seen)).0
    };
    assert_eq!([judged(0), judged(1)], [Progressing, Bad]);
}

#[test]
fn pods_that_a_person_deletes_leave_a_doubt_until_all_are_of_the_new_version() {
    let judged = |kind: &str, strategy: &str, updated: u64| {
        let mut seen = Observation::default();
        seen.add(Object::reduced(
            kind,
            &json!({"metadata": {"name": "db", "namespace": "shop", "uid": "s", "generation": 2},
                "spec": {"replicas": 2, "updateStrategy": {"type": strategy}},
                "status": {"observedGeneration": 2, "desiredNumberScheduled": 2, "numberAvailable": 2,
                    "updatedNumberScheduled": updated, "updatedReplicas": updated, "readyReplicas": 2, "replicas": 2}}),
        ));
        let (verdict, sentence, found) = standing(&scope_of(kind, "db"), ClusterView::Seen(&seen));
        (verdict, sentence, found.map(|found| found.cause))
    };
    for kind in ["DaemonSet", "StatefulSet"] {
        let ready = "2 of 2 are ready".to_owned();
        assert_eq!(judged(kind, "OnDelete", 2), (Good, ready.clone(), None));
        let doubt = format!(
            "{ready}, but 1 of 2 Pods of {kind} shop/db run the new version: a person has to delete the others"
        );
        assert_eq!(
            judged(kind, "OnDelete", 1),
            (Good, doubt, Some(Cause::OnDelete))
        );
        assert_eq!(judged(kind, "RollingUpdate", 1).0, Progressing);
    }
}

/// A controller of two Pods, of which the second one is on a node that is lost: the version of this
/// Pod, and whether it is being deleted.
fn half_lost(kind: &str, (hash, is_leaving): (&str, bool)) -> Observation {
    let mut seen = Observation::default();
    let metadata = json!({"name": "db", "namespace": "shop", "uid": "s", "generation": 1});
    let status = match kind {
        "StatefulSet" => {
            json!({"observedGeneration": 1, "replicas": 2, "readyReplicas": 1, "updatedReplicas": 1, "updateRevision": "new"})
        }
        _ => {
            json!({"observedGeneration": 1, "desiredNumberScheduled": 2, "numberAvailable": 1, "updatedNumberScheduled": 1})
        }
    };
    let whole = json!({"metadata": metadata, "spec": {"replicas": 2}, "status": status});
    seen.add(Object::reduced(kind, &whole));
    let mut add = |(name, hash): (&str, &str), node: &str, (ready, gone): (&str, &Value)| {
        let metadata = json!({"name": name, "namespace": "shop", "uid": name, "ownerReferences": [{"kind": kind, "uid": "s"}],
            "labels": {"controller-revision-hash": hash}, "creationTimestamp": "2026-01-01T10:00:00Z", "deletionTimestamp": gone});
        let containers =
            json!([{"name": "c", "ready": false, "restartCount": 0, "state": {"running": {}}}]);
        let pod = json!({"metadata": metadata, "spec": {"nodeName": node, "restartPolicy": "Always"},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}], "containerStatuses": containers}});
        seen.add(Object::reduced("Pod", &pod));
        let conditions =
            json!([{"type": "Ready", "status": if ready == "True" { "True" } else { "Unknown" }}]);
        let whole = json!({"metadata": {"name": node}, "status": {"conditions": conditions}});
        seen.add(Object::reduced("Node", &whole));
    };
    let gone = is_leaving.then_some("2026-01-01T11:00:00Z");
    add(("db-0", "new"), "here", ("True", &Value::Null));
    add(("db-1", hash), "lost", ("False", &json!(gone)));
    let event = json!({"metadata": {"name": "e", "namespace": "shop"}, "reason": "Unhealthy", "message": "Readiness probe failed",
        "lastTimestamp": "2026-01-01T10:30:00Z",
        "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "db-1", "uid": "db-1", "fieldPath": "spec.containers{c}"}});
    seen.add(Object::reduced("Event", &event));
    seen
}

#[test]
fn a_pod_that_waits_for_its_lost_node_makes_nothing_bad() {
    for kind in ["StatefulSet", "DaemonSet"] {
        for pod in [("old", true), ("new", true), ("old", false), ("new", false)] {
            let seen = half_lost(kind, pod);
            let mut rollout = Rollout::new(scope_of(kind, "db"), at(0));
            for second in 0..1200 {
                let judged = rollout.observe(ClusterView::Seen(&seen), at(second));
                let cause = judged.finding.map(|found| found.cause);
                assert_eq!(
                    (judged.verdict, cause),
                    (Waiting, Some(Cause::NodeNotReady)),
                    "{kind} {pod:?}"
                );
            }
        }
    }
}

#[test]
fn a_daemon_set_waits_for_a_cordoned_node_and_a_stateful_set_does_not() {
    let judged = |kind: &str| {
        let mut seen = half_lost(kind, ("new", false));
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let node = json!({"metadata": {"name": "lost"}, "spec": {"unschedulable": true}, "status": {"conditions": ready}});
        seen.add(Object::reduced("Node", &node));
        let mut rollout = Rollout::new(scope_of(kind, "db"), at(0));
        let mut judge = |second| rollout.observe(ClusterView::Seen(&seen), at(second));
        let judged = (0..=600).map(&mut judge).last().unwrap();
        (judged.verdict, judged.finding.unwrap().cause)
    };
    assert_eq!(judged("DaemonSet"), (Waiting, Cause::NodeCordoned));
    assert_eq!(judged("StatefulSet"), (Bad, Cause::ProbeReadiness));
}

/// [`starting`], with these events about its container: reason and time.
fn with_events(events: &[(&str, &str)]) -> Observation {
    let mut seen = starting();
    for (number, (reason, time)) in events.iter().enumerate() {
        seen.add(Object::reduced(
            "Event",
            &json!({"metadata": {"name": format!("e{number}"), "namespace": "shop"}, "reason": reason,
                "lastTimestamp": format!("2026-01-01T{time}Z"), "message": "m",
                "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "web-1-a", "uid": "p",
                    "fieldPath": "spec.containers{c}"}}),
        ));
    }
    seen
}

#[test]
fn an_image_that_is_still_being_pulled_waits_for_the_link_and_is_not_late() {
    let pulls = with_events(&[("Failed", "09:59:58"), ("Pulling", "10:00:00")]);
    let mut slow = rollout();
    for second in 0..3600 {
        let judged = slow.observe(ClusterView::Seen(&pulls), at(second));
        assert_eq!(judged.verdict, Waiting, "{second}");
        assert_eq!(
            judged.sentence,
            "the node pulls the image i of container c, since 2026-01-01T10:00:00Z"
        );
    }
    // The time of the pull does not count, and what follows is late for another reason.
    let pulled = with_events(&[("Pulling", "10:00:00"), ("Pulled", "10:00:00")]);
    let times = [(3600, Some(pulled.clone())), (4198, Some(pulled.clone()))];
    assert_eq!(verdicts(&mut slow, &times), [Progressing, Progressing]);
    let late = slow.observe(ClusterView::Seen(&pulled), at(4200));
    assert_eq!(
        (late.verdict, late.finding.unwrap().cause),
        (Bad, Cause::Deadline)
    );
}

/// [`starting`], with a sandbox and this state of its init container, an hour and more after its
/// events.
fn without_events(init: &Value) -> Observation {
    let mut seen = starting();
    let mut pod = seen.get(&key("Pod", "web-1-a")).unwrap().value().clone();
    pod["status"]["initContainerStatuses"] = json!([{"name": "i", "state": init}]);
    pod["status"]["conditions"] = json!([{"type": "PodReadyToStartContainers", "status": "True"}]);
    seen.add(Object::recorded(&pod));
    seen
}

#[test]
fn a_pull_that_outlasts_the_event_of_its_begin_goes_on() {
    let judged = |init: &Value| {
        let mut rollout = rollout();
        let (pulls, silent) = (
            with_events(&[("Pulling", "10:00:00")]),
            without_events(init),
        );
        let times = [
            (0, Some(pulls)),
            (3600, Some(silent.clone())),
            (9000, Some(silent)),
        ];
        verdicts(&mut rollout, &times);
        rollout.last.unwrap()
    };
    for (init, image) in [
        (json!({"terminated": {"exitCode": 0}}), "i of container c"),
        (
            json!({"waiting": {"reason": "PodInitializing"}}),
            " of container i",
        ),
    ] {
        let long = judged(&init);
        let wanted = format!("the node pulls the image {image}");
        assert_eq!((long.verdict, long.sentence), (Waiting, wanted), "{init}");
    }
    // The others wait for it.
    assert_eq!(judged(&json!({"running": {}})).verdict, Bad);
}

/// A Deployment that waits for a Pod of before on this node, which ends, to make the new one.
fn recreated(node: &str, phase: &str) -> Observation {
    let mut seen = with_leaving(starting());
    let ready = json!([{"type": "Ready", "status": node}]);
    let revision = |set: &str| json!({"deployment.kubernetes.io/revision": set});
    for (kind, whole) in [
        (
            "Deployment",
            json!({"metadata": {"name": "web", "namespace": "shop", "uid": "d", "generation": 1,
            "annotations": revision("1")}, "status": {"observedGeneration": 1}}),
        ),
        (
            "ReplicaSet",
            json!({"metadata": {"name": "web-0", "namespace": "shop", "uid": "o", "annotations": revision("0"),
            "ownerReferences": [{"uid": "d"}]}}),
        ),
        (
            "Pod",
            json!({"metadata": {"name": "web-0-a", "namespace": "shop", "uid": "a", "ownerReferences": [{"uid": "o"}],
            "deletionTimestamp": "2026-01-01T11:00:00Z"}, "spec": {"nodeName": "n"}, "status": {"phase": phase}}),
        ),
        (
            "Node",
            json!({"metadata": {"name": "n"}, "status": {"conditions": ready}}),
        ),
    ] {
        seen.add(Object::reduced(kind, &whole));
    }
    for kind in ["Pod", "ReplicaSet"] {
        let name = if kind == "Pod" { "web-1-a" } else { "web-1" };
        seen.remove(&key(kind, name));
    }
    seen
}

#[test]
fn a_version_that_waits_for_a_pod_of_before_to_end_is_not_late() {
    let judged = |node: &str, phase: &str| {
        let mut rollout = rollout();
        let seen = recreated(node, phase);
        let times = [(0, Some(seen.clone())), (3600, Some(seen))];
        verdicts(&mut rollout, &times);
        let last = rollout.last.unwrap();
        (last.verdict, last.finding.unwrap().cause)
    };
    assert_eq!(judged("True", "Running"), (Waiting, Cause::PodTerminating));
    assert_eq!(judged("Unknown", "Running"), (Waiting, Cause::NodeNotReady));
    // It runs no more.
    assert_eq!(judged("True", "Failed"), (Bad, Cause::Deadline));
    for kind in ["StatefulSet", "DaemonSet"] {
        let mut seen = half_lost(kind, ("old", true));
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let node = json!({"metadata": {"name": "lost"}, "status": {"conditions": ready}});
        seen.add(Object::reduced("Node", &node));
        let mut rollout = Rollout::new(scope_of(kind, "db"), at(0));
        let times = [(0, Some(seen.clone())), (3600, Some(seen))];
        assert_eq!(verdicts(&mut rollout, &times), [Waiting, Waiting], "{kind}");
    }
}

#[test]
fn what_lay_outside_before_does_not_explain_what_is_late() {
    let mut rollout = rollout();
    let away = pulling("dial tcp 192.0.2.1:443: i/o timeout");
    let times = [
        (0, Some(away)),
        (9, Some(starting())),
        (608, Some(starting())),
    ];
    verdicts(&mut rollout, &times);
    let late = rollout.observe(ClusterView::Seen(&starting()), at(608));
    assert_eq!(
        (late.verdict, late.finding.unwrap().cause),
        (Bad, Cause::Deadline)
    );
}

/// A Job that is open, with a Pod in this phase.
fn open_job(spec: &Value, phase: &str) -> Observation {
    let mut seen = Observation::default();
    seen.add(Object::reduced(
        "Job",
        &json!({"metadata": {"name": "migrate", "namespace": "shop", "uid": "j"},
            "spec": spec, "status": {"active": 1}}),
    ));
    seen.add(Object::reduced(
        "Pod",
        &json!({"metadata": {"name": "migrate-1", "namespace": "shop", "uid": "p", "ownerReferences": [{"uid": "j"}]},
            "status": {"phase": phase}}),
    ));
    seen
}

fn scope_of(kind: &str, name: &str) -> Scope {
    Scope {
        targets: BTreeMap::from([(key(kind, name), 0)]),
        deadline: DEADLINE,
        soak: SOAK,
    }
}

#[test]
fn a_job_takes_the_time_that_it_needs_while_its_pod_runs() {
    let verdict = |spec: &Value, phase: &str| {
        let mut rollout = Rollout::new(scope_of("Job", "migrate"), at(0));
        let seen = open_job(spec, phase);
        verdicts(&mut rollout, &[(0, Some(seen.clone())), (7200, Some(seen))])[1]
    };
    assert_eq!(verdict(&json!({}), "Running"), Progressing);
    assert_eq!(verdict(&json!({}), "Pending"), Bad);
    // Kubernetes ends it.
    let limited = json!({"activeDeadlineSeconds": 9000});
    assert_eq!(verdict(&limited, "Pending"), Progressing);
}

#[test]
fn a_workload_that_does_not_work_is_late_also_while_a_job_runs() {
    let mut scope = scope_of("Job", "migrate");
    scope.targets.insert(key("Deployment", "web"), 1);
    let mut seen = seen(false, 0, &json!({"running": {}}));
    for object in open_job(&json!({}), "Running").all() {
        seen.add(object.clone());
    }
    let judged = |seen: &Observation| {
        let mut rollout = Rollout::new(scope.clone(), at(0));
        let times = [(0, Some(seen.clone())), (7200, Some(seen.clone()))];
        verdicts(&mut rollout, &times)[1]
    };
    // It may wait for the Job.
    assert_eq!(judged(&seen), Progressing);
    seen.add(Object::reduced(
        "Event",
        &json!({"metadata": {"name": "e", "namespace": "shop"}, "reason": "Unhealthy",
            "lastTimestamp": "2026-01-01T10:00:00Z", "message": "Readiness probe failed: no",
            "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "web-1-a", "uid": "p",
                "fieldPath": "spec.containers{c}"}}),
    ));
    assert_eq!(judged(&seen), Bad);
}

/// Adds a Pod of the namespace that is being deleted.
fn with_leaving(mut seen: Observation) -> Observation {
    seen.add(Object::reduced(
        "Pod",
        &json!({"metadata": {"name": "web-0-a", "namespace": "shop", "uid": "o",
            "deletionTimestamp": "2026-01-01T10:00:30Z"}}),
    ));
    seen
}

#[test]
fn a_pod_that_waits_for_the_place_of_one_that_ends_is_not_bad() {
    for (message, is_held) in [
        (
            "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.",
            true,
        ),
        (
            "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules.",
            true,
        ),
        (
            "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules.",
            true,
        ),
        (
            "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
            false,
        ),
    ] {
        let mut unplaced = seen(false, 0, &json!({}));
        let mut pod = unplaced
            .get(&key("Pod", "web-1-a"))
            .unwrap()
            .value()
            .clone();
        pod["status"]["conditions"] =
            json!([{"type": "PodScheduled", "status": "False", "message": message}]);
        unplaced.add(Object::recorded(&pod));
        let mut rollout = rollout();
        let times = [
            (0, Some(with_leaving(unplaced.clone()))),
            (40, Some(with_leaving(unplaced.clone()))),
            (41, Some(unplaced.clone())),
            (61, Some(unplaced)),
        ];
        let wanted = if is_held {
            [Progressing, Progressing, Progressing, Bad]
        } else {
            [Progressing, Bad, Bad, Bad]
        };
        assert_eq!(verdicts(&mut rollout, &times), wanted, "{message}");
    }
}

#[test]
fn a_pod_that_waits_for_the_place_of_one_that_is_replaced_next_is_not_bad() {
    let ports =
        "0/4 nodes are available: 4 node(s) didn't have free ports for the requested pod ports.";
    let unplaced = |available: u64, before: u64| {
        let mut seen = seen(false, 0, &json!({}));
        let mut add = |kind: &str, whole: Value| seen.add(Object::reduced(kind, &whole));
        let pod = |name: &str, node: &str, conditions: Value| {
            json!({"metadata": {"name": name, "namespace": "shop", "uid": name,
                    "ownerReferences": [{"uid": "r"}]},
                "spec": {"nodeName": node}, "status": {"conditions": conditions}})
        };
        let refused = json!([{"type": "PodScheduled", "status": "False", "message": ports}]);
        add("Pod", pod("web-1-b", "", refused));
        let owners = json!([{"kind": "Deployment", "uid": "d"}]);
        for (name, revision, status) in [
            ("web-0", "0", json!({"replicas": before})),
            (
                "web-1",
                "1",
                json!({"replicas": 2, "availableReplicas": available}),
            ),
        ] {
            let uid = if name == "web-1" { "r" } else { "o" };
            let annotations = json!({"deployment.kubernetes.io/revision": revision});
            let metadata = json!({"name": name, "namespace": "shop", "uid": uid,
                "annotations": annotations, "ownerReferences": owners});
            add(
                "ReplicaSet",
                json!({"metadata": metadata, "status": status}),
            );
        }
        seen
    };
    for (available, before, is_held) in [(0, 3, true), (1, 3, false), (0, 0, false)] {
        let mut rollout = rollout();
        let seen = unplaced(available, before);
        let times = [0, 20, 599, 600].map(|second| (second, Some(seen.clone())));
        let wanted = if is_held {
            [Progressing, Progressing, Progressing, Bad]
        } else {
            [Progressing, Bad, Bad, Bad]
        };
        let case = format!("{available} {before}");
        assert_eq!(verdicts(&mut rollout, &times), wanted, "{case}");
    }
}

#[test]
fn a_quota_that_a_pod_which_ends_still_uses_is_not_exceeded_for_good() {
    let refused = |kind: &str| {
        let mut seen = Observation::default();
        seen.add(Object::reduced(
            "StatefulSet",
            &json!({"metadata": {"name": "db", "namespace": "shop", "uid": "s", "generation": 1},
                "status": {"observedGeneration": 1}}),
        ));
        seen.add(Object::reduced(
            "Event",
            &json!({"metadata": {"name": "e", "namespace": "shop"}, "reason": kind,
            "lastTimestamp": "2026-01-01T00:00:00Z", "message": "pods \"db-0\" is forbidden: exceeded quota: one",
            "involvedObject": {"kind": "StatefulSet", "namespace": "shop", "name": "db", "uid": "s"}}),
        ));
        seen
    };
    let full = refused("FailedCreate");
    let mut rollout = Rollout::new(scope_of("StatefulSet", "db"), at(0));
    let times = [
        (0, Some(with_leaving(full.clone()))),
        (40, Some(with_leaving(full.clone()))),
        // The controller tries again later each time.
        (41, Some(full.clone())),
        (99, Some(full.clone())),
        (101, Some(full.clone())),
    ];
    let wanted = [Progressing, Progressing, Progressing, Progressing, Bad];
    assert_eq!(verdicts(&mut rollout, &times), wanted);
    let mut alone = Rollout::new(scope_of("StatefulSet", "db"), at(0));
    let times = [(0, Some(full.clone())), (5, Some(full))];
    assert_eq!(verdicts(&mut alone, &times), [Progressing, Bad]);
}

#[test]
fn a_job_that_was_done_and_is_gone_by_its_ttl_is_still_done() {
    let mut scope = scope_of("Job", "migrate");
    scope.targets.insert(key("Deployment", "web"), 1);
    let mut done = ready();
    done.add(Object::reduced(
        "Job",
        &json!({"metadata": {"name": "migrate", "namespace": "shop", "uid": "j"},
            "status": {"conditions": [{"type": "Complete", "status": "True"}]}}),
    ));
    let mut rollout = Rollout::new(scope.clone(), at(0));
    let times = [(0, Some(done)), (30, Some(ready())), (60, Some(ready()))];
    assert_eq!(verdicts(&mut rollout, &times), [Soaking, Soaking, Good]);
    let mut rollout = Rollout::new(scope, at(0));
    let never = rollout.observe(ClusterView::Seen(&ready()), at(0));
    assert_eq!(never.verdict, Waiting);
}

/// An observation with a Pod of the Deployment that was evicted because of its own use.
fn with_evicted(mut seen: Observation) -> Observation {
    seen.add(Object::reduced("Pod", &json!({
        "metadata": {"name": "web-1-old", "namespace": "shop", "uid": "old",
            "ownerReferences": [{"kind": "ReplicaSet", "name": "web-1", "uid": "r"}]},
        "spec": {"restartPolicy": "Always", "nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Failed", "reason": "Evicted",
            "message": "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi."}})));
    seen
}

#[test]
fn a_pod_that_was_evicted_before_a_change_says_nothing_about_it() {
    let mut before = rollout();
    let times = [
        (0, Some(with_evicted(ready()))),
        (60, Some(with_evicted(ready()))),
    ];
    assert_eq!(verdicts(&mut before, &times), [Soaking, Good]);
    assert!(look(&before.scope, &with_evicted(ready())).is_complete);
    let mut during = rollout();
    let times = [
        (0, Some(starting())),
        (5, Some(with_evicted(starting()))),
        (20, Some(with_evicted(starting()))),
    ];
    assert_eq!(verdicts(&mut during, &times)[2], Bad);
}

#[test]
fn a_pod_that_its_node_rejects_is_the_reason_at_the_deadline() {
    let rejected = |mut seen: Observation| {
        let mut pod = seen.get(&key("Pod", "web-1-a")).unwrap().value().clone();
        pod["metadata"]["uid"] = json!("rejected");
        pod["metadata"]["name"] = json!("web-1-b");
        pod["status"] = json!({"phase": "Failed", "reason": "OutOfcpu", "message": "m"});
        seen.add(Object::recorded(&pod));
        seen
    };
    let mut alone = rejected(starting());
    alone.remove(&key("Pod", "web-1-a"));
    let mut rollout = rollout();
    let times = [(0, Some(alone.clone())), (599, Some(alone.clone()))];
    assert_eq!(verdicts(&mut rollout, &times), [Progressing; 2]);
    let late = rollout.observe(ClusterView::Seen(&alone), at(600));
    assert_eq!(
        (late.verdict, late.finding.unwrap().cause),
        (Bad, Cause::Schedule)
    );
    let complete = look(&scope_of("Deployment", "web"), &rejected(ready()));
    assert_eq!((complete.is_complete, complete.findings), (true, vec![]));
}

#[test]
fn a_secret_that_a_custom_resource_of_the_app_may_make_is_waited_for() {
    let message = "secret \"web-tls\" not found";
    let state = json!({"waiting": {"reason": "CreateContainerConfigError", "message": message}});
    let judged = |kind: Option<&str>| {
        let mut scope = scope_of("Deployment", "web");
        let seen = seen(false, 0, &state);
        scope.targets.extend(kind.map(|kind| (key(kind, "web"), 0)));
        let mut rollout = Rollout::new(scope, at(0));
        let times = [5, 599, 600].map(|second| (second, Some(seen.clone())));
        rollout.observe(ClusterView::Seen(&seen), at(0));
        let verdicts = verdicts(&mut rollout, &times);
        let last = rollout.observe(ClusterView::Seen(&seen), at(601));
        (verdicts, last.finding.unwrap().cause)
    };
    let missing = Cause::ConfigMissing;
    for kind in [None, Some("ConfigMap")] {
        assert_eq!(judged(kind), (vec![Bad, Bad, Bad], missing), "{kind:?}");
    }
    for kind in ["certificates.cert-manager.io", "HelmChart"] {
        let late = (vec![Progressing, Progressing, Bad], missing);
        assert_eq!(judged(Some(kind)), late, "{kind}");
    }
}

#[test]
fn a_secret_that_a_job_of_the_app_may_make_is_waited_for() {
    let mut scope = scope_of("Deployment", "web");
    scope.targets.insert(key("Job", "migrate"), 0);
    let message = "secret \"web-tls\" not found";
    let state = json!({"waiting": {"reason": "CreateContainerConfigError", "message": message}});
    let lacking = |conditions: Value| {
        let mut seen = seen(false, 0, &state);
        let metadata = json!({"name": "migrate", "namespace": "shop", "uid": "j"});
        let job = json!({"metadata": metadata, "status": {"conditions": conditions}});
        seen.add(Object::reduced("Job", &job));
        Some(seen)
    };
    let open = || lacking(json!([]));
    let mut late = Rollout::new(scope.clone(), at(0));
    let times = [(0, open()), (599, open()), (600, open())];
    assert_eq!(verdicts(&mut late, &times), [Progressing, Progressing, Bad]);
    // The kubelet looks again within two minutes.
    let done = || lacking(json!([{"type": "Complete", "status": "True"}]));
    let mut rollout = Rollout::new(scope, at(0));
    let times = [(0, open()), (100, done()), (229, done()), (230, done())];
    assert_eq!(
        verdicts(&mut rollout, &times),
        [Progressing, Progressing, Progressing, Bad]
    );
}

#[test]
fn an_ingress_waits_for_a_service_that_an_operator_or_a_chart_of_the_app_may_make() {
    let judged = |kind: Option<&str>| {
        let mut seen = ready();
        let backend = json!({"service": {"name": "grafana-service", "port": {"number": 3000}}});
        let metadata = json!({"name": "web", "namespace": "shop"});
        let spec = json!({"defaultBackend": backend});
        let ingress = json!({"metadata": metadata, "spec": spec});
        seen.add(Object::reduced("Ingress", &ingress));
        let mut scope = scope_of("Deployment", "web");
        scope.targets.insert(key("Ingress", "web"), 0);
        scope.targets.extend(kind.map(|kind| (key(kind, "web"), 0)));
        if let Some(kind) = kind {
            seen.add(Object::reduced(kind, &json!({"metadata": metadata})));
        }
        let mut rollout = Rollout::new(scope, at(0));
        let times = [0, 20, 599, 600].map(|second| (second, Some(seen.clone())));
        let verdicts = verdicts(&mut rollout, &times);
        let last = rollout.observe(ClusterView::Seen(&seen), at(601));
        (verdicts, last.finding.unwrap().cause)
    };
    let missing = Cause::IngressNoBackend;
    assert_eq!(judged(None), (vec![Progressing, Bad, Bad, Bad], missing));
    for kind in ["grafanas.grafana.integreatly.org", "HelmChart"] {
        let late = (vec![Progressing, Progressing, Progressing, Bad], missing);
        assert_eq!(judged(Some(kind)), late, "{kind}");
    }
}

/// A Pod of the Job of [`open_job`] that is in this phase and not ready; its container ended so.
fn pod_of_job(name: &str, phase: &str, (spec, status): (&Value, &Value)) -> Object {
    let whole = json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "ownerReferences": [{"uid": "j"}]},
        "spec": spec, "status": {"phase": phase, "containerStatuses": [status]}});
    Object::reduced("Pod", &whole)
}

#[test]
fn a_job_that_tries_again_after_a_pod_that_failed_is_not_late_while_it_runs() {
    let mut seen = open_job(&json!({"backoffLimit": 6}), "Running");
    let ended = json!({"terminated": {"exitCode": 1, "reason": "Error", "containerID": "x"}});
    let ended = json!({"name": "c", "restartCount": 0, "state": ended});
    let never = json!({"restartPolicy": "Never"});
    seen.add(pod_of_job("migrate-0", "Failed", (&never, &ended)));
    let mut rollout = Rollout::new(scope_of("Job", "migrate"), at(0));
    let times = [(0, Some(seen.clone())), (7200, Some(seen.clone()))];
    assert_eq!(verdicts(&mut rollout, &times), [Progressing, Progressing]);
    // What the one that failed wrote is read all the same.
    assert_eq!(died(&rollout.scope, &seen)[0].pod, "migrate-0");
    // Until there is another one it is the reason, and the next one may come too late.
    seen.remove(&key("Pod", "migrate-1"));
    let mut rollout = Rollout::new(scope_of("Job", "migrate"), at(0));
    let times = [(0, Some(seen.clone())), (600, Some(seen.clone()))];
    assert_eq!(verdicts(&mut rollout, &times), [Progressing, Bad]);
    let found = rollout.observe(ClusterView::Seen(&seen), at(601)).finding;
    assert_eq!(found.unwrap().cause, Cause::CrashLoop);
}

#[test]
fn restarts_of_a_job_are_counted_by_the_job() {
    let judged = |policy: &str, reason: &str| {
        let mut seen = open_job(&json!({"backoffLimit": 6}), "Pending");
        let last = json!({"terminated": {"exitCode": 1, "reason": reason}});
        let ended =
            json!({"name": "c", "restartCount": 5, "state": backs_off(), "lastState": last});
        let limits = json!({"limits": {"memory": "8Mi"}});
        let spec =
            json!({"restartPolicy": policy, "containers": [{"name": "c", "resources": limits}]});
        seen.add(pod_of_job("migrate-1", "Running", (&spec, &ended)));
        let mut rollout = Rollout::new(scope_of("Job", "migrate"), at(0));
        rollout.observe(ClusterView::Seen(&Observation::default()), at(0));
        let judged = rollout.observe(ClusterView::Seen(&seen), at(1));
        (judged.verdict, judged.finding.unwrap().cause)
    };
    for (reason, cause) in [("Error", Cause::CrashLoop), ("OOMKilled", Cause::Oom)] {
        assert_eq!(
            judged("OnFailure", reason),
            (Progressing, cause),
            "{reason}"
        );
        assert_eq!(judged("Always", reason), (Bad, cause), "{reason}");
    }
}

/// A Job that has failed, with its Pod that is like this.
fn failed_job(pod: &Object) -> Finding {
    let mut seen = open_job(&json!({}), "Pending");
    let mut job = seen.get(&key("Job", "migrate")).unwrap().value().clone();
    job["status"] = json!({"failed": 1, "conditions": [{"type": "FailureTarget", "status": "True",
        "reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}]});
    seen.add(Object::recorded(&job));
    seen.remove(&key("Pod", "migrate-1"));
    seen.add(pod.clone());
    let look = look(&scope_of("Job", "migrate"), &seen);
    assert_eq!(look.missing, "Job shop/migrate has failed");
    let found = look.worst().unwrap();
    assert!(found.is_definite && found.object == "Job shop/migrate");
    found
}

#[test]
fn a_job_that_has_failed_says_why_its_pod_did() {
    let limits = json!({"limits": {"memory": "64Mi"}});
    let spec =
        json!({"restartPolicy": "Never", "containers": [{"name": "c", "resources": limits}]});
    let ended = |reason: &str, code: u64, message: &str| {
        json!({"name": "c", "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "reason": reason, "message": message, "containerID": "x"}}})
    };
    let found = |status: &Value| failed_job(&pod_of_job("m", "Failed", (&spec, status)));
    let oom = found(&ended("OOMKilled", 137, ""));
    assert_eq!(
        (oom.cause, oom.sentence.as_str()),
        (
            Cause::Oom,
            "Job shop/migrate failed: container c used more memory than its limit of 64Mi and was killed"
        )
    );
    assert!(oom.fix.starts_with("raise resources.limits.memory"));
    let absent = "exec: \"migrate\": executable file not found in $PATH: unknown";
    let start = found(&ended("StartError", 128, absent));
    assert_eq!(start.cause, Cause::ContainerStart);
    assert!(start.evidence.ends_with(absent), "{}", start.evidence);
    let mut evicted = pod_of_job("m", "Failed", (&spec, &ended("Error", 137, "")))
        .value()
        .clone();
    evicted["status"]["reason"] = json!("Evicted");
    evicted["status"]["message"] = json!("The node was low on resource: memory.");
    let evicted = failed_job(&Object::recorded(&evicted));
    assert_eq!(
        (evicted.cause, evicted.sentence.as_str()),
        (
            Cause::JobFailed,
            "Job shop/migrate failed: Pod shop/m was evicted: its node lacks disk, memory or process ids"
        )
    );
}

#[test]
fn a_job_whose_pod_is_deleted_as_it_fails_says_how_it_ended() {
    let last = json!({"terminated": {"exitCode": 3, "reason": "Error", "containerID": "x"}});
    let ended = json!({"name": "c", "restartCount": 2, "state": backs_off(), "lastState": last});
    let spec = json!({"restartPolicy": "OnFailure", "containers": [{"name": "c"}]});
    let mut pod = pod_of_job("m", "Running", (&spec, &ended)).value().clone();
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T10:00:00Z");
    let pod = Object::recorded(&pod);
    let found = failed_job(&pod);
    assert!(found.sentence.contains("exit code 3"), "{}", found.sentence);
    let fix = "run it again with restartPolicy: Never and without ttlSecondsAfterFinished: then its Pods and their logs stay";
    assert_eq!(found.fix, fix);
    // What it wrote is kept meanwhile.
    let mut seen = open_job(&json!({}), "Pending");
    seen.add(pod);
    assert_eq!(died(&scope_of("Job", "migrate"), &seen)[0].pod, "m");
    let gone = failed_job(&pod_of_job("other", "Succeeded", (&spec, &json!({}))));
    assert!(gone.fix.starts_with("kubectl"), "{}", gone.fix);
}

#[test]
fn a_service_that_selects_a_label_which_a_program_sets_is_good_with_a_doubt() {
    let judged = |selector: &Value, label: &str| {
        let (scope, mut seen) = with_service(0, "worker");
        let mut pod = seen.get(&key("Pod", "web-1-a")).unwrap().value().clone();
        pod["metadata"]["labels"] = json!({"app": "db", label: "primary"});
        seen.add(Object::recorded(&pod));
        let mut set = seen.get(&key("Deployment", "web")).unwrap().value().clone();
        set["spec"]["template"] = json!({"metadata": {"labels": {"app": "db"}}});
        seen.add(Object::recorded(&set));
        let metadata = json!({"name": "worker", "namespace": "shop"});
        seen.add(Object::reduced(
            "Service",
            &json!({"metadata": metadata, "spec": {"selector": selector, "ports": [{"port": 5432}]}}),
        ));
        let (verdict, _, found) = standing(&scope, ClusterView::Seen(&seen));
        (verdict, found.map(|found| found.cause))
    };
    let none = Some(Cause::ServiceNoEndpoints);
    let replica = json!({"app": "db", "role": "replica"});
    assert_eq!(judged(&replica, "role"), (Good, none));
    assert_eq!(judged(&replica, "other"), (Bad, none));
    assert_eq!(judged(&json!({"app": "dbb"}), "role"), (Bad, none));
    assert_eq!(judged(&json!({"role": "replica"}), "role"), (Bad, none));
}

#[test]
fn an_ingress_without_a_class_is_good_with_a_doubt() {
    let judged = |ingress: Value| {
        let mut seen = ready();
        let mut ingress = ingress;
        ingress["metadata"]["name"] = json!("web");
        ingress["metadata"]["namespace"] = json!("shop");
        seen.add(Object::reduced("Ingress", &ingress));
        let mut scope = scope_of("Deployment", "web");
        scope.targets.insert(key("Ingress", "web"), 0);
        let (verdict, _, found) = standing(&scope, ClusterView::Seen(&seen));
        assert_eq!(verdict, Good);
        found.map(|found| found.cause)
    };
    assert_eq!(judged(json!({})), Some(Cause::IngressNoClass));
    let class = json!({"spec": {"ingressClassName": "traefik"}});
    assert_eq!(judged(class), None);
    let annotation = json!({"kubernetes.io/ingress.class": "traefik"});
    assert_eq!(
        judged(json!({"metadata": {"annotations": annotation}})),
        None
    );
}

#[test]
fn an_ingress_of_a_class_that_is_not_among_those_of_the_cluster_is_good_with_a_doubt() {
    let judged = |classes: &[&str]| {
        let mut seen = ready();
        let ingress = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"ingressClassName": "nginx"}});
        seen.add(Object::reduced("Ingress", &ingress));
        for class in classes {
            let class = json!({"metadata": {"name": class}});
            seen.add(Object::reduced("IngressClass", &class));
        }
        let mut scope = scope_of("Deployment", "web");
        scope.targets.insert(key("Ingress", "web"), 0);
        let (verdict, _, found) = standing(&scope, ClusterView::Seen(&seen));
        assert_eq!(verdict, Good);
        found.map(|found| (found.cause, found.fix))
    };
    assert_eq!(judged(&[]), None);
    assert_eq!(judged(&["nginx", "traefik"]), None);
    let fix = "set ingressClassName to traefik".to_owned();
    assert_eq!(judged(&["traefik"]), Some((Cause::IngressNoClass, fix)));
}

#[test]
fn what_stands_is_bad_by_a_job_that_failed_and_nothing_by_one_that_is_gone() {
    let mut scope = scope_of("Deployment", "web");
    scope.targets.insert(key("Job", "migrate"), 0);
    let judged = |seen: &Observation| {
        let (verdict, _, found) = standing(&scope, ClusterView::Seen(seen));
        (verdict, found.map(|found| found.cause))
    };
    let mut seen = ready();
    assert_eq!(judged(&seen), (Good, None));
    let mut job =
        json!({"metadata": {"name": "migrate", "namespace": "shop"}, "status": {"active": 1}});
    seen.add(Object::reduced("Job", &job));
    assert_eq!(judged(&seen), (Progressing, None));
    job["status"] = json!({"failed": 1, "conditions": [{"type": "Failed", "status": "True",
        "reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}]});
    seen.add(Object::reduced("Job", &job));
    assert_eq!(judged(&seen), (Bad, Some(Cause::JobFailed)));
}

#[test]
fn what_stands_is_not_bad_for_restarts_of_long_ago() {
    let judged = |state: &Value, reason: &str| {
        let seen = restarted(7, state, (reason, 137));
        let (verdict, _, found) = standing(&rollout().scope, ClusterView::Seen(&seen));
        (verdict, found.map(|found| found.cause))
    };
    let runs = json!({"running": {}});
    for (reason, cause) in [("Error", Cause::CrashLoop), ("OOMKilled", Cause::Oom)] {
        assert_eq!(judged(&runs, reason), (Progressing, None), "{reason}");
        let now = (Bad, Some(cause));
        assert_eq!(judged(&backs_off(), reason), now, "{reason}");
    }
}

#[test]
fn of_a_route_of_the_gateway_api_nobody_knows_whether_it_is_ready() {
    let judged = |kinds: &[&str]| {
        let mut scope = scope_of("Deployment", "web");
        let keys = kinds.iter().map(|kind| (key(kind, "web"), 0));
        scope.targets.extend(keys);
        let (verdict, sentence, _) = standing(&scope, ClusterView::Seen(&ready()));
        assert_eq!(verdict, Good);
        sentence
    };
    assert_eq!(judged(&[]), "1 of 1 is ready");
    assert_eq!(
        judged(&["HTTPRoute"]),
        "1 of 1 is ready; HTTPRoute shop/web is applied, readiness unknown"
    );
    assert_eq!(
        judged(&["HTTPRoute", "TCPRoute"]),
        "1 of 1 is ready; 2 routes and custom resources are applied, readiness unknown"
    );
}

/// Adds a database that is not up yet, with its newest event.
fn with_database(mut seen: Observation, reason: &str) -> Observation {
    let metadata = json!({"name": "db", "namespace": "shop", "uid": "s", "generation": 1});
    let status = json!({"observedGeneration": 1, "replicas": 1, "updateRevision": "new"});
    let whole = json!({"metadata": metadata, "spec": {"replicas": 1}, "status": status});
    seen.add(Object::reduced("StatefulSet", &whole));
    let metadata = json!({"name": "db-0", "namespace": "shop", "uid": "db-0", "ownerReferences": [{"uid": "s"}],
        "labels": {"controller-revision-hash": "new"}});
    let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
    let containers =
        json!([{"name": "db", "image": "postgres:17", "restartCount": 0, "state": waiting}]);
    let whole = json!({"metadata": metadata, "status": {"phase": "Pending", "containerStatuses": containers}});
    seen.add(Object::reduced("Pod", &whole));
    let about = json!({"kind": "Pod", "namespace": "shop", "name": "db-0", "uid": "db-0", "fieldPath": "spec.containers{db}"});
    seen.add(Object::reduced(
        "Event",
        &json!({"metadata": {"name": "e", "namespace": "shop"}, "reason": reason, "message": "m",
            "lastTimestamp": "2026-01-01T10:00:00Z", "involvedObject": about}),
    ));
    seen
}

#[test]
fn a_program_that_crashes_until_its_database_is_pulled_is_not_bad() {
    let mut scope = scope_of("Deployment", "web");
    scope.targets.insert(key("StatefulSet", "db"), 1);
    let crashed = |count| restarted(count, &backs_off(), ("Error", 1));
    let mut rollout = Rollout::new(scope.clone(), at(0));
    rollout.observe(
        ClusterView::Seen(&with_database(starting(), "Pulling")),
        at(0),
    );
    for second in 1..3600 {
        let seen = with_database(crashed(1 + second / 300), "Pulling");
        let judged = rollout.observe(ClusterView::Seen(&seen), at(second));
        let cause = judged.finding.unwrap().cause;
        assert_eq!((judged.verdict, cause), (Waiting, Cause::ImagePulling));
        assert_eq!(
            judged.sentence,
            "the node pulls the image postgres:17 of container db, since 2026-01-01T10:00:00Z; meanwhile container c keeps exiting, last with exit code 1 (a failure of the program)"
        );
    }
    // From now on its restarts count: the last end has its restart first.
    for (second, count, wanted) in [
        (3600, 12, Progressing),
        (3601, 15, Progressing),
        (3602, 16, Bad),
    ] {
        let seen = with_database_that(crashed(count), true, &json!({}));
        let judged = rollout.observe(ClusterView::Seen(&seen), at(second));
        assert_eq!(judged.verdict, wanted, "{count}");
    }
    // What is not of the app excuses nothing.
    let mut rollout = Rollout::new(scope_of("Deployment", "web"), at(0));
    let alone = |seen| with_database(seen, "Pulling");
    rollout.observe(ClusterView::Seen(&alone(starting())), at(0));
    let judged = rollout.observe(ClusterView::Seen(&alone(crashed(3))), at(1));
    assert_eq!(judged.verdict, Bad);
}

/// Adds a database that is ready or not, and whose container says this as well.
fn with_database_that(seen: Observation, is_ready: bool, says: &Value) -> Observation {
    let mut seen = with_database(seen, "Started");
    let mut set = seen.get(&key("StatefulSet", "db")).unwrap().value().clone();
    set["status"]["updatedReplicas"] = json!(1);
    set["status"]["readyReplicas"] = json!(u64::from(is_ready));
    let mut pod = seen.get(&key("Pod", "db-0")).unwrap().value().clone();
    let word = if is_ready { "True" } else { "False" };
    pod["status"]["conditions"] = json!([{"type": "Ready", "status": word}]);
    let container = &mut pod["status"]["containerStatuses"][0];
    container["state"] = json!({"running": {}});
    for (field, value) in says.as_object().unwrap() {
        container[field] = value.clone();
    }
    seen.add(Object::recorded(&set));
    seen.add(Object::recorded(&pod));
    seen
}

#[test]
fn a_program_that_crashes_until_its_database_is_up_is_bad_only_at_the_deadline() {
    let mut scope = scope_of("Deployment", "web");
    scope.targets.insert(key("StatefulSet", "db"), 1);
    let crashed = |count| restarted(count, &backs_off(), ("Error", 1));
    let judged = |is_ready: bool, says: &Value| {
        let mut rollout = Rollout::new(scope.clone(), at(0));
        let seen = |seen| with_database_that(seen, is_ready, says);
        let first = with_database_that(starting(), false, &json!({}));
        rollout.observe(ClusterView::Seen(&first), at(0));
        let times = [
            (1, Some(seen(crashed(3)))),
            (599, Some(seen(crashed(9)))),
            (600, Some(seen(crashed(9)))),
        ];
        let verdicts = verdicts(&mut rollout, &times);
        let last = rollout.observe(ClusterView::Seen(&seen(crashed(9))), at(601));
        (verdicts, last.finding.map(|found| found.cause))
    };
    let bad = (vec![Bad; 3], Some(Cause::CrashLoop));
    assert_eq!(
        judged(false, &json!({})),
        (vec![Progressing, Progressing, Bad], Some(Cause::CrashLoop))
    );
    assert_eq!(judged(true, &json!({})), bad);
    // A database that fails as well is not on its way.
    let failed =
        json!({"restartCount": 1, "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}});
    assert_eq!(judged(false, &failed), bad);
    let wrong = json!({"state": {"waiting": {"reason": "InvalidImageName"}}});
    assert_eq!(judged(false, &wrong).0, [Bad; 3]);
    // Nor is one whose registry is away: nobody knows for how long.
    let message = "failed to do request: dial tcp 192.0.2.1:443: i/o timeout";
    let away = json!({"state": {"waiting": {"reason": "ErrImagePull", "message": message}}});
    assert_eq!(judged(false, &away), bad);
}

#[test]
fn a_job_that_runs_and_a_program_that_has_crashed_excuse_nothing() {
    let crashed = |count| restarted(count, &backs_off(), ("Error", 1));
    let mut scope = scope_of("Deployment", "web");
    scope.targets.insert(key("Job", "seed"), 0);
    let with_job = |mut seen: Observation| {
        let metadata = json!({"name": "seed", "namespace": "shop", "uid": "j"});
        let job = json!({"metadata": metadata, "status": {"active": 1, "ready": 1}});
        seen.add(Object::reduced("Job", &job));
        seen
    };
    let mut rollout = Rollout::new(scope, at(0));
    rollout.observe(ClusterView::Seen(&with_job(starting())), at(0));
    let times = [
        (1, Some(with_job(crashed(1)))),
        (60, Some(with_job(crashed(3)))),
    ];
    assert_eq!(verdicts(&mut rollout, &times)[1], Bad);

    // Both crash in turn: the first one is not on its way any more when the other does.
    let mut scope = scope_of("Deployment", "web");
    scope.targets.insert(key("StatefulSet", "db"), 1);
    let failed = |count: u64| json!({"restartCount": count, "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}});
    let mut rollout = Rollout::new(scope, at(0));
    let first = with_database_that(starting(), false, &json!({}));
    rollout.observe(ClusterView::Seen(&first), at(0));
    let times = [
        (3, Some(with_database_that(crashed(1), false, &json!({})))),
        (7, Some(with_database_that(crashed(1), false, &failed(1)))),
        (60, Some(with_database_that(crashed(6), false, &failed(4)))),
    ];
    assert_eq!(verdicts(&mut rollout, &times)[2], Bad);
}

#[test]
fn restarts_from_before_its_database_is_up_do_not_count_and_a_lack_of_memory_does() {
    let mut scope = scope_of("Deployment", "web");
    scope.targets.insert(key("StatefulSet", "db"), 1);
    let seen = |count, is_ready, end| {
        let seen = restarted(count, &backs_off(), end);
        with_database_that(seen, is_ready, &json!({}))
    };
    let judged = |end| {
        let mut rollout = Rollout::new(scope.clone(), at(0));
        let starts = with_database_that(starting(), false, &json!({}));
        rollout.observe(ClusterView::Seen(&starts), at(0));
        let times = [
            (1, Some(seen(5, false, ("Error", 1)))),
            (60, Some(seen(7, true, end))),
            (90, Some(seen(9, true, end))),
        ];
        verdicts(&mut rollout, &times)
    };
    assert_eq!(judged(("Error", 1)), [Progressing, Progressing, Bad]);
    assert_eq!(judged(("OOMKilled", 137)), [Progressing, Bad, Bad]);
}

/// A StatefulSet of three Pods whose newest version is `new`, and its last Pod: its number, its
/// version and the state of its container.
fn replaced_set(spec: &Value, (number, hash, state): (u64, &str, &Value)) -> Observation {
    let mut seen = Observation::default();
    let metadata = json!({"name": "db", "namespace": "shop", "uid": "s", "generation": 1});
    let status = json!({"observedGeneration": 1, "replicas": 3, "readyReplicas": 0,
        "updateRevision": "new", "currentRevision": "old"});
    let mut whole = json!({"metadata": metadata, "spec": spec, "status": status});
    whole["spec"]["replicas"] = json!(number + 1);
    seen.add(Object::reduced("StatefulSet", &whole));
    let name = format!("db-{number}");
    let metadata = json!({"name": name, "namespace": "shop", "uid": name, "ownerReferences": [{"uid": "s"}],
        "labels": {"controller-revision-hash": hash}});
    let last = json!({"terminated": {"exitCode": 1, "reason": "Error"}});
    let containers = json!([{"name": "c", "restartCount": 3, "state": state, "lastState": last}]);
    let pod = json!({"metadata": metadata, "spec": {"restartPolicy": "Always"},
        "status": {"phase": "Running", "containerStatuses": containers}});
    seen.add(Object::reduced("Pod", &pod));
    seen
}

#[test]
fn a_pod_of_an_earlier_version_that_fails_makes_room_for_the_newest_one() {
    let (fails, runs) = (backs_off(), json!({"running": {}}));
    let (ordered, parallel) = (json!({}), json!({"podManagementPolicy": "Parallel"}));
    let on_delete = json!({"updateStrategy": {"type": "OnDelete"}});
    let below = |partition: u64, start: u64| {
        json!({"ordinals": {"start": start},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}})
    };
    let is_stuck = |spec: &Value, which: Stuck, pod: (u64, &str, &Value)| {
        let seen = replaced_set(spec, pod);
        let found = stuck(&scope_of("StatefulSet", "db"), which, &seen);
        !found.is_empty()
    };
    for (which, pod, wanted) in [
        (Stuck::Failing, (0, "old", &fails), true),
        (Stuck::Failing, (0, "bad", &fails), true),
        // It may be on its way.
        (Stuck::Failing, (0, "old", &runs), false),
        (Stuck::Failing, (0, "bad", &runs), false),
        (Stuck::NotCurrent, (0, "old", &runs), false),
        (Stuck::NotCurrent, (0, "old", &fails), true),
        (Stuck::NotCurrent, (0, "bad", &runs), true),
        (Stuck::NotReady, (0, "old", &runs), true),
        (Stuck::NotReady, (0, "new", &fails), false),
    ] {
        let case = format!("{which:?} {pod:?}");
        assert_eq!(is_stuck(&ordered, which, pod), wanted, "{case}");
        // Its controller takes them all at once.
        assert!(!is_stuck(&parallel, which, pod), "{case}");
    }
    assert!(!is_stuck(&on_delete, Stuck::Failing, (0, "old", &fails)));
    // The one in its place would be of the earlier version again.
    for (spec, number, wanted) in [
        (below(2, 0), 1, false),
        (below(2, 0), 2, true),
        (below(2, 5), 6, false),
        (below(2, 5), 7, true),
    ] {
        let pod = (number, "old", &fails);
        assert_eq!(is_stuck(&spec, Stuck::Failing, pod), wanted, "{spec}");
        assert_eq!(is_stuck(&spec, Stuck::NotReady, pod), wanted, "{spec}");
    }
}

#[test]
fn a_stateful_set_that_waits_for_a_pod_of_before_says_how_to_replace_it() {
    let said = |hash: &str| {
        let seen = replaced_set(&json!({}), (0, hash, &json!({"running": {}})));
        look(&scope_of("StatefulSet", "db"), &seen).missing
    };
    assert_eq!(
        said("old"),
        "StatefulSet shop/db waits for Pod db-0, which runs an earlier version and is not ready; if it stays so: kubectl -n shop delete pod db-0"
    );
    assert_eq!(
        said("new"),
        "StatefulSet shop/db waits for Pod db-0; its Pods start one after the other"
    );
    let spec = json!({"ordinals": {"start": 5}});
    let seen = replaced_set(&spec, (5, "new", &json!({"running": {}})));
    assert_eq!(
        look(&scope_of("StatefulSet", "db"), &seen).missing,
        "StatefulSet shop/db waits for Pod db-5; its Pods start one after the other"
    );
}
