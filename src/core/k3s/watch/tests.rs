use std::time::Duration;

use super::*;
use crate::core::{
    k3s::{
        faults::{Api, Node, Service},
        images::Archives,
    },
    time::Mono,
};

fn at(seconds: u64) -> Now {
    let wall = 1_795_000_000 + i64::try_from(seconds).unwrap();
    Now {
        mono: Mono::since_boot(Duration::from_secs(seconds)),
        wall: Wall::from_millis(wall * 1000),
    }
}

fn service(active: &str, result: &str) -> Service {
    Service {
        active: active.to_owned(),
        result: result.to_owned(),
        is_enabled: true,
        was_started: true,
        ..Service::default()
    }
}

fn node(conditions: &[(&str, &str, &str)]) -> Api {
    let conditions = conditions.iter();
    Api::Node(Node {
        conditions: conditions
            .map(|(kind, status, message)| [*kind, *status, *message].map(str::to_owned))
            .collect(),
        address: "192.0.2.7".parse().ok(),
        ..Node::default()
    })
}

fn without_dns(ready: &str) -> K3sState {
    let Api::Node(node) = node(&[("Ready", ready, "")]) else {
        panic!("a node");
    };
    K3sState {
        api: Some(Api::Node(Node {
            lacks_dns: true,
            ..node
        })),
        dns: "Pod coredns-1: Pending, ImagePullBackOff".to_owned(),
        ..healthy()
    }
}

fn ids(watch_state: &WatchState) -> Vec<&'static str> {
    watch_state
        .escalated()
        .iter()
        .map(|fault| fault.id)
        .collect()
}

fn healthy() -> K3sState {
    K3sState {
        service: service("active", "success"),
        up_s: 100_000,
        api: Some(node(&[
            ("Ready", "True", ""),
            ("DiskPressure", "False", ""),
        ])),
        certificate: Some(("serving-kube-apiserver.crt".to_owned(), 364)),
        addresses: vec!["192.0.2.7".parse().unwrap()],
        has_route: true,
        ..K3sState::default()
    }
}

fn silent() -> K3sState {
    K3sState {
        api: Some(Api::Silent("no answer".to_owned())),
        ..healthy()
    }
}

fn looping(line: &str) -> K3sState {
    K3sState {
        service: service("activating", "exit-code"),
        restarts: 3,
        log: format!("level=info msg=\"x\"\n{line}\n"),
        api: None,
        ..healthy()
    }
}

/// Looks every minute from `from`, until something is ordered.
fn until_order(watch_state: &mut WatchState, state: &K3sState, from: u64) -> Option<(u64, Order)> {
    (0..60).find_map(|minute| {
        let now = from + minute * 60;
        // The file in between, as in life.
        *watch_state = WatchState::parse(&watch_state.text());
        let orders = watch_state.observe(state, at(now), true);
        orders.into_iter().next().map(|order| (now - from, order))
    })
}

#[test]
fn a_day_of_a_healthy_machine_has_no_repair_and_asks_rarely() {
    let mut watch_state = WatchState::default();
    let (mut asked, mut state) = (0, healthy());
    for minute in 0..1440 {
        let now = at(1000 + minute * 60);
        let asks = watch_state.is_api_due(now);
        asked += u32::from(asks);
        // The odd failed request, a restart by a person, a clock that is mended by seconds.
        state.api = match (asks, minute % 97) {
            (false, _) => None,
            (true, 0) => Some(Api::Silent("slow".to_owned())),
            (true, _) => healthy().api,
        };
        state.restarts = watch_state.record_restarts(u32::from(minute > 700), now);
        state.jumped_s = watch_state.jumped_s(now);
        assert!(
            watch_state.observe(&state, now, true).is_empty(),
            "{minute}"
        );
        assert_eq!(watch_state.escalated(), [], "{minute}");
        watch_state = WatchState::parse(&watch_state.text());
    }
    assert!((700..760).contains(&asked), "{asked}");
}

/// Checks which fault the log of a k3s that is starting has; no repair is ordered.
fn starts_with_log(log: &str, role: Role, id: Option<&str>) {
    let state = K3sState {
        service: service("activating", "success"),
        log: log.to_owned(),
        api: None,
        role,
        ..healthy()
    };
    let mut watch_state = WatchState::default();
    assert!(watch_state.observe(&state, at(1000), true).is_empty());
    let faults = watch_state.escalated();
    assert_eq!(faults.first().map(|fault| fault.id), id, "{faults:?}");
}

#[test]
fn a_start_that_does_not_end_is_told_by_what_it_says_again_and_again() {
    let line = "\u{1b}[31mERRO\u{1b}[0m[2026] Failed to ping database connection: file is not a database\n";
    for (times, id) in [(2, None), (3, Some("k3s.datastore-damaged"))] {
        starts_with_log(&line.repeat(times), Role::Server, id);
    }
}

#[test]
fn a_worker_whose_server_refuses_it_needs_a_new_token() {
    let line = "time=\"2026-11-28T05:00:00Z\" level=info msg=\"Waiting to retrieve agent configuration; server is not ready: failed to get CA certs: https://127.0.0.1:6444/v1-k3s/config: 401 Unauthorized\"\n";
    for (role, id) in [(Role::Worker, Some("k3s.token")), (Role::Server, None)] {
        starts_with_log(&line.repeat(3), role, id);
    }
}

#[test]
fn what_k3s_waits_for_without_an_end_is_told_though_it_is_no_error_to_it() {
    for (line, id) in [
        (
            "time=\"2026-11-28T05:00:00Z\" level=info msg=\"Failed to test etcd connection: this server is a not a member of the etcd cluster. Found [a-12a6cd30=https://192.0.2.10:2380], expect: a-12a6cd30=https://192.0.2.9:2380\"\n",
            Some("k3s.etcd-address"),
        ),
        (
            "time=\"2023-11-28T05:00:00Z\" level=info msg=\"Failed to test data store connection: this server is a not a member of the etcd cluster. Found [a-12a6cd30=https://192.0.2.10:2380], expect: a-12a6cd30=https://192.0.2.9:2380\"\n",
            Some("k3s.etcd-address"),
        ),
        (
            "time=\"2026-11-28T05:00:00Z\" level=info msg=\"Waiting to retrieve agent configuration; server is not ready: /var/lib/rancher/k3s/agent/serving-kubelet.crt: Node password rejected, duplicate hostname or contents of '/etc/rancher/node/password' may not match server node-passwd entry, try enabling a unique node name with the --with-node-id flag\"\n",
            Some("k3s.node-name"),
        ),
        (
            "time=\"2026-11-28T05:00:00Z\" level=info msg=\"Waiting to retrieve agent configuration; server is not ready: yaml: line 4: did not find expected key\"\n",
            Some("k3s.registries"),
        ),
        // k3s goes on without a manifest that it cannot read.
        (
            "time=\"2026-11-28T05:00:00Z\" level=error msg=\"Failed to process config: failed to process /var/lib/rancher/k3s/server/manifests/mine.yaml: yaml: line 4: did not find expected key\"\n",
            None,
        ),
        // Its own API is not there yet.
        (
            "time=\"2026-11-28T05:00:00Z\" level=info msg=\"Waiting to retrieve agent configuration; server is not ready: failed to retrieve configuration from server: https://127.0.0.1:6443/v1-k3s/config: 503 Service Unavailable\"\n",
            None,
        ),
    ] {
        let state = K3sState {
            service: service("activating", "success"),
            log: line.repeat(3),
            api: None,
            ..healthy()
        };
        let mut watch_state = WatchState::default();
        watch_state.observe(&state, at(1000), true);
        assert_eq!(ids(&watch_state).first().copied(), id, "{line}");
    }
}

#[test]
fn a_fix_can_be_followed_where_the_fault_is() {
    let fix = |id| faults::of(id).unwrap().fix;
    for id in ["k3s.certificates-ended", "k3s.certificates-end"] {
        assert!(
            fix(id).contains("--data-dir DIR") && !fix(id).contains("--output"),
            "{id}"
        );
    }
    assert!(fix("k3s.no-route").contains("dev dummy0") && !fix("k3s.no-route").contains("node-ip"));
    let worker = faults::fix(fix("k3s.token"), Init::Systemd, Role::Worker);
    assert!(
        worker.contains("join-token, then: sudo systemctl restart k3s-agent"),
        "{worker}"
    );
}

#[test]
fn openrc_and_a_worker_get_fixes_of_their_own() {
    for fault in FAULTS {
        let own = faults::fix(fault.fix, Init::OpenRc, Role::Worker);
        let strange = [
            "systemctl",
            "journalctl",
            "timedatectl",
            "service k3s ",
            "-u k3s ",
        ];
        assert!(!strange.iter().any(|word| own.contains(word)), "{own}");
        assert_eq!(
            faults::fix(fault.fix, Init::Systemd, Role::Server),
            fault.fix
        );
    }
    let mut watch_state = WatchState::default();
    let state = K3sState {
        init: Init::OpenRc,
        role: Role::Worker,
        service: Service {
            started_s: Some(99_940),
            ..service("active", "")
        },
        ..silent()
    };
    assert!(until_order(&mut watch_state, &state, 100_000).is_none());
    let escalated = watch_state.escalated();
    let [fault] = escalated.as_slice() else {
        panic!("{escalated:?}");
    };
    assert_eq!(fault.id, "k3s.server-silent");
}

#[test]
fn the_words_of_openrc_are_understood() {
    for (said, has_failed, is_alive, state, is_on_purpose) in [
        (" * status: started\n", false, true, "active", false),
        (" * status: unsupervised\n", false, true, "active", false),
        (" * status: unsupervised\n", false, false, "failed", false),
        (" * status: starting\n", false, false, "activating", false),
        (" * status: crashed\n", false, false, "failed", false),
        (" * status: stopped\n", true, false, "failed", false),
        (" * status: stopped\n", false, false, "inactive", true),
        ("service does not exist", false, false, "", false),
    ] {
        let service = Service {
            is_enabled: true,
            ..Service::of_openrc(said, has_failed, is_alive)
        };
        assert_eq!(service.active, state, "{said}");
        assert_eq!(service.is_stopped_on_purpose(), is_on_purpose, "{said}");
    }
    // It says that it is started as soon as its process is: then it gets time.
    let state = |age: u64| K3sState {
        init: Init::OpenRc,
        service: Service {
            started_s: Some(100_000 - age),
            ..service("active", "")
        },
        ..silent()
    };
    assert!(until_order(&mut WatchState::default(), &state(300), 1000).is_none());
    assert!(until_order(&mut WatchState::default(), &state(900), 1000).is_some());
}

#[test]
fn what_somebody_stopped_stays_stopped() {
    for (service, is_on_purpose) in [
        (service("inactive", "success"), true),
        // k3s that was told to end does not always end with 0.
        (service("failed", "exit-code"), true),
        (service("failed", "signal"), true),
        (service("deactivating", "success"), true),
        (service("failed", "start-limit-hit"), false),
        // systemd keeps the result of the last run where it gives up; it had waited for the
        // next one.
        (
            Service {
                settled_us: 5_104_000,
                ..service("failed", "signal")
            },
            false,
        ),
        (
            Service {
                settled_us: 90_000,
                ..service("failed", "signal")
            },
            true,
        ),
        (service("activating", "exit-code"), false),
        (service("active", "success"), false),
        (
            Service {
                was_started: false,
                ..service("inactive", "success")
            },
            false,
        ),
        (
            Service {
                was_started: false,
                is_enabled: false,
                ..service("inactive", "success")
            },
            true,
        ),
    ] {
        assert_eq!(
            service.is_stopped_on_purpose(),
            is_on_purpose,
            "{service:?}"
        );
        let mut watch_state = WatchState::default();
        let state = K3sState {
            service,
            restarts: 9,
            api: None,
            ..healthy()
        };
        let order = until_order(&mut watch_state, &state, 1000);
        assert!(
            !is_on_purpose || (order.is_none() && watch_state.escalated().is_empty()),
            "{order:?}"
        );
        assert_eq!(watch_state.is_stopped, is_on_purpose);
    }
}

#[test]
fn a_service_that_was_given_up_is_started_at_once() {
    let mut watch_state = WatchState::default();
    let state = K3sState {
        service: service("failed", "start-limit-hit"),
        api: None,
        ..healthy()
    };
    let (after, order) = until_order(&mut watch_state, &state, 1000).unwrap();
    assert_eq!(
        (after, order.fault.id, order.repair),
        (0, "k3s.given-up", Repair::Start)
    );
}

#[test]
fn a_silent_api_is_restarted_after_two_minutes_and_handed_over_after_two_failures() {
    let mut watch_state = WatchState::default();
    let mut from = 1000;
    for (failures, waits) in [(0, 120), (1, 1200)] {
        let (after, order) = until_order(&mut watch_state, &silent(), from).unwrap();
        assert_eq!(
            (after, order.repair),
            (waits, Repair::Restart),
            "{failures}"
        );
        from += after;
        watch_state.record_begin(&order, at(from));
        watch_state.record_end(&order, Some("no answer"));
    }
    assert!(until_order(&mut watch_state, &silent(), from).is_none());
    let escalated = watch_state.escalated();
    assert_eq!(escalated.len(), 1);
    assert!(
        escalated[0].sentence.contains("it was tried 2 times"),
        "{escalated:?}"
    );
    // It came back by itself, and an hour later it is forgotten.
    watch_state.observe(&healthy(), at(from + 60), true);
    assert_eq!(watch_state.escalated(), []);
}

#[test]
fn a_repair_that_helps_for_a_while_is_not_done_for_ever() {
    let mut watch_state = WatchState::default();
    let (mut now, mut repairs) = (1000, 0);
    while now < 80_000 {
        if let Some((after, order)) = until_order(&mut watch_state, &silent(), now) {
            repairs += 1;
            now += after + 30;
            watch_state.record_begin(&order, at(now));
            watch_state.record_end(&order, None);
            watch_state.observe(&healthy(), at(now + 60), true);
        }
        now += 700;
    }
    assert_eq!(repairs, REPAIRS_MAX);
    watch_state.observe(&silent(), at(now), true);
    watch_state.observe(&silent(), at(now + 130), true);
    assert!(
        watch_state.escalated()[0]
            .sentence
            .contains("came back 4 times")
    );
}

#[test]
fn nothing_is_repaired_that_root_does_not_allow() {
    let mut watch_state = WatchState::default();
    for minute in 0..30 {
        assert!(
            watch_state
                .observe(&silent(), at(1000 + minute * 60), false)
                .is_empty()
        );
    }
    assert!(watch_state.escalated()[0].sentence.contains("keeper.allow"));
}

#[test]
fn a_loop_is_named_by_its_reason_and_explains_all_else() {
    for (line, id) in [
        (
            "level=fatal msg=\"Error: no default routes found in \\\"/proc/net/route\\\"\"",
            "k3s.no-route",
        ),
        (
            "level=fatal msg=\"Error: invalid node-ip: invalid ip format ''\"",
            "k3s.node-ip",
        ),
        (
            "level=fatal msg=\"unable to find interface tailscale0: route ip+net: no such network interface\"",
            "k3s.node-ip",
        ),
        (
            "level=fatal msg=\"listen tcp :6443: bind: address already in use\"",
            "k3s.port-taken",
        ),
        (
            "level=fatal msg=\"failed to find memory cgroup (v2)\"",
            "k3s.cgroups",
        ),
        (
            "E1123 10:00:00.1 1 x.go:1] \"database disk image is malformed\"",
            "k3s.datastore-damaged",
        ),
        (
            "level=fatal msg=\"bootstrap data already found and encrypted with different token\"",
            "k3s.token",
        ),
        (
            "level=fatal msg=\"tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2016-01-01T00:00:00Z is before 2026-01-01T00:00:00Z\"",
            "k3s.clock",
        ),
        (
            "level=error msg=\"tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2027-03-01T00:00:00Z is after 2027-01-01T00:00:00Z\"",
            "k3s.expired",
        ),
        (
            "{\"level\":\"fatal\",\"ts\":\"2026-11-28T05:00:00Z\",\"msg\":\"failed to open WAL\",\"error\":\"walpb: crc mismatch\"}",
            "k3s.datastore-damaged",
        ),
        // The last line is of containerd's own log.
        (
            "level=error msg=\"Shutdown request received: containerd exited: exit status 1\"\n\
                 time=\"2026-11-28T05:00:00Z\" level=fatal msg=\"Failed to run CRI service\" error=\"failed to recover state: failed to get metadata for stored sandbox \\\"a\\\": not found\"",
            "k3s.containerd",
        ),
        ("level=info msg=\"address already in use\"", "k3s.looping"),
        ("level=fatal msg=\"something new\"", "k3s.looping"),
    ] {
        let mut watch_state = WatchState::default();
        watch_state.observe(&looping(line), at(1000), true);
        let escalated = watch_state.escalated();
        assert_eq!(
            escalated
                .iter()
                .map(|escalated| escalated.id)
                .collect::<Vec<_>>(),
            [id],
            "{line}"
        );
    }
    // Twice in ten minutes is no loop.
    let calm = K3sState {
        restarts: 2,
        ..looping("level=fatal msg=\"address already in use\"")
    };
    let mut watch_state = WatchState::default();
    watch_state.observe(&calm, at(1000), true);
    assert_eq!(watch_state.escalated(), []);
}

#[test]
fn restarts_count_for_ten_minutes_and_not_from_before_the_first_look() {
    let mut watch_state = WatchState::default();
    assert_eq!(watch_state.record_restarts(57, at(1000)), 0);
    watch_state.observe(&healthy(), at(1000), true);
    assert_eq!(watch_state.record_restarts(59, at(1060)), 2);
    assert_eq!(watch_state.record_restarts(60, at(1120)), 3);
    // systemd begins to count again with a start by hand.
    assert_eq!(watch_state.record_restarts(1, at(1180)), 4);
    assert_eq!(watch_state.record_restarts(1, at(1700)), 2);
    assert_eq!(watch_state.record_restarts(1, at(1800)), 0);
}

#[test]
fn a_server_whose_kubelet_does_not_report_is_restarted_though_it_counts_as_ready() {
    let text = "condition|Ready|True|\nreported|2026-11-26T10:00:00Z\n";
    let of = |time: &str, role| K3sState {
        api: Node::parse(text).map(Api::Node),
        wall: Wall::parse_rfc3339(time).unwrap(),
        role,
        ..healthy()
    };
    for (time, role, after_s) in [
        ("2026-11-26T10:00:10Z", Role::Server, None),
        // One report was late.
        ("2026-11-26T10:10:00Z", Role::Server, None),
        ("2026-11-26T10:11:00Z", Role::Server, Some(360)),
        ("2026-11-26T10:11:00Z", Role::Worker, None),
        // The clock was set back.
        ("2016-01-01T00:00:00Z", Role::Server, None),
    ] {
        let found = until_order(&mut WatchState::default(), &of(time, role), 1000);
        let found = found.map(|(after_s, order)| (after_s, order.fault.id));
        let wanted = after_s.map(|after_s| (after_s, "k3s.node-silent"));
        assert_eq!(found, wanted, "{time} {role:?}");
    }
}

#[test]
fn the_node_is_judged_by_its_condition_its_name_and_its_address() {
    let of = |api| K3sState {
        api: Some(api),
        ..healthy()
    };
    let moved = K3sState {
        addresses: vec!["192.0.2.8".parse().unwrap()],
        ..healthy()
    };
    let fixed = K3sState {
        has_fixed_address: true,
        ..moved.clone()
    };
    for (state, expected) in [
        (
            of(node(&[("Ready", "False", "cni plugin not initialized")])),
            Some("k3s.node-not-ready"),
        ),
        (
            of(node(&[("Ready", "Unknown", "Kubelet stopped posting")])),
            Some("k3s.node-not-ready"),
        ),
        (of(Api::NoNode), Some("k3s.node-gone")),
        (moved, Some("k3s.node-address")),
        (fixed, None),
        (
            of(node(&[
                ("Ready", "True", ""),
                ("DiskPressure", "True", "x"),
            ])),
            None,
        ),
        (
            K3sState {
                jumped_s: -301,
                ..healthy()
            },
            Some("k3s.clock-set"),
        ),
        (
            K3sState {
                jumped_s: 86_400,
                ..healthy()
            },
            None,
        ),
        (
            K3sState {
                certificate: Some(("a.crt".to_owned(), -1)),
                ..healthy()
            },
            Some("k3s.certificates-ended"),
        ),
        (
            K3sState {
                certificate: Some(("a.crt".to_owned(), 84)),
                ..healthy()
            },
            Some("k3s.certificates-end"),
        ),
    ] {
        let mut watch_state = WatchState::default();
        // Every two hours: what has to last an hour has.
        let order = (0..3).find_map(|hour| {
            let orders = watch_state.observe(&state, at(1000 + hour * 7200), true);
            orders.into_iter().next()
        });
        assert_eq!(order.map(|order| order.fault.id), expected, "{state:?}");
    }
}

#[test]
fn an_address_that_is_away_with_the_network_is_left_alone_because_k3s_would_not_start() {
    let state = |has_route| K3sState {
        addresses: vec!["10.42.0.1".parse().unwrap()],
        has_route,
        ..healthy()
    };
    for has_route in [false, true] {
        let order = until_order(&mut WatchState::default(), &state(has_route), 1000);
        assert_eq!(order.is_some(), has_route);
    }
}

#[test]
fn a_clock_that_was_set_back_is_seen_by_whichever_look_comes_next() {
    for seconds in [60, 120] {
        let mut watch_state = WatchState::default();
        watch_state.observe(&healthy(), at(10_000), true);
        let now = Now {
            wall: at(10_000 + seconds - 3600).wall,
            ..at(10_000 + seconds)
        };
        assert!(watch_state.is_api_due(now), "{seconds}");
        let state = K3sState {
            jumped_s: watch_state.jumped_s(now),
            ..healthy()
        };
        let orders = watch_state.observe(&state, now, true);
        assert_eq!(orders[0].fault.id, "k3s.clock-set", "{seconds}");
    }
}

#[test]
fn a_certificate_that_was_not_renewed_is_tried_once_more_when_it_has_ended() {
    let mut watch_state = WatchState::default();
    let (end, before, after) = (at(5000).wall, at(1000).wall, at(6000).wall);
    for (now, is_renewed) in [(before, [false, true]), (after, [false, false])] {
        watch_state.record_unrenewed([end].into_iter(), now);
        watch_state = WatchState::parse(&watch_state.text());
        assert_eq!(
            [before, after].map(|now| watch_state.is_renewed(end, now)),
            is_renewed
        );
    }
}

#[test]
fn pressure_is_left_to_a_person_after_ten_minutes() {
    let api = node(&[
        ("Ready", "True", ""),
        ("DiskPressure", "True", "kubelet has disk pressure"),
    ]);
    let state = K3sState {
        api: Some(api),
        ..healthy()
    };
    let mut watch_state = WatchState::default();
    watch_state.observe(&state, at(1000), true);
    assert_eq!(watch_state.escalated(), []);
    watch_state.observe(&state, at(1600), true);
    assert_eq!(watch_state.escalated()[0].id, "k3s.disk-pressure");
}

#[test]
fn a_worker_that_was_told_to_leave_is_not_restarted_and_so_does_not_join_again() {
    let state = K3sState {
        api: Some(Api::NoNode),
        role: Role::Worker,
        ..healthy()
    };
    let mut watch_state = WatchState::default();
    for minute in 0..60 {
        let orders = watch_state.observe(&state, at(1000 + minute * 60), true);
        assert!(orders.is_empty());
    }
    let escalated = watch_state.escalated();
    assert_eq!(ids(&watch_state), ["k3s.worker-gone"]);
    assert!(
        escalated[0].fix.contains("node leave")
            && escalated[0].fix.contains("systemctl restart k3s-agent"),
        "{}",
        escalated[0].fix
    );
}

#[test]
fn coredns_that_stays_unready_is_left_to_a_person_with_the_reason_of_its_pod() {
    let mut watch_state = WatchState::default();
    for (seconds, expected) in [(0, &[][..]), (180, &[]), (240, &["k3s.dns"])] {
        assert!(
            watch_state
                .observe(&without_dns("True"), at(1000 + seconds), true)
                .is_empty()
        );
        watch_state = WatchState::parse(&watch_state.text());
        assert_eq!(ids(&watch_state), expected, "{seconds}");
        // It is asked for again by each look until it is left to somebody.
        assert_eq!(
            watch_state.is_api_due(at(1060 + seconds)),
            expected.is_empty()
        );
    }
    let said = &watch_state.escalated()[0].sentence;
    assert!(
        said.ends_with("Pod coredns-1: Pending, ImagePullBackOff"),
        "{said}"
    );
    // A look that does not ask leaves it, and one that sees it mended does not.
    let unasked = K3sState {
        api: None,
        ..healthy()
    };
    watch_state.observe(&unasked, at(1300), true);
    assert_eq!(ids(&watch_state), ["k3s.dns"]);
    watch_state.observe(&healthy(), at(1360), true);
    assert_eq!(ids(&watch_state), [""; 0]);
}

#[test]
fn coredns_is_not_judged_where_the_node_or_the_api_is_at_fault() {
    for state in [
        without_dns("False"),
        silent(),
        looping("level=fatal msg=\"x\""),
    ] {
        let mut watch_state = WatchState::default();
        for minute in 0..30 {
            watch_state.observe(&state, at(1000 + minute * 60), false);
        }
        assert!(
            !ids(&watch_state).contains(&"k3s.dns"),
            "{:?}",
            ids(&watch_state)
        );
        assert!(!watch_state.escalated().is_empty());
    }
    // Nor does it hide certificates that end, or they it.
    let state = K3sState {
        certificate: Some(("a.crt".to_owned(), 84)),
        ..without_dns("True")
    };
    let mut watch_state = WatchState::default();
    watch_state.observe(&state, at(1000), false);
    watch_state.observe(&state, at(5000), false);
    assert_eq!(ids(&watch_state), ["k3s.certificates-end", "k3s.dns"]);
}

#[test]
fn a_large_datastore_is_told_whatever_else_is_wrong() {
    for (datastore, is_large) in [
        (None, false),
        (Some([2_000_000_000, 1_000_000_000]), false),
        (Some([2_000_000_001, 0]), true),
        (Some([1, 1_000_000_001]), true),
    ] {
        for state in [healthy(), looping("level=fatal msg=\"x\"")] {
            let state = K3sState { datastore, ..state };
            let mut watch_state = WatchState::default();
            watch_state.observe(&state, at(1000), true);
            watch_state.observe(&state, at(1060), true);
            assert!(!ids(&watch_state).contains(&"k3s.datastore-large"));
            assert!(watch_state.observe(&state, at(1120), true).is_empty());
            let is_told = ids(&watch_state).contains(&"k3s.datastore-large");
            assert_eq!(is_told, is_large, "{datastore:?}");
        }
    }
    // Whoever stopped k3s is compacting it.
    let stopped = K3sState {
        service: service("inactive", "success"),
        datastore: Some([9_000_000_000, 0]),
        api: None,
        ..healthy()
    };
    let mut watch_state = WatchState::default();
    watch_state.observe(&stopped, at(1000), true);
    watch_state.observe(&stopped, at(2000), true);
    assert_eq!(ids(&watch_state), [""; 0]);
}

#[test]
fn duplicate_rules_are_counted_each_hour_and_told_until_a_count_is_well() {
    let mut watch_state = WatchState::default();
    let mut told = Vec::new();
    for minute in 0..180 {
        let now = at(1000 + minute * 60);
        let is_counted = watch_state.take_count_turn(now);
        assert_eq!(is_counted, minute % 60 == 0, "{minute}");
        let count = [49, 50, 3][usize::try_from(minute / 60).unwrap()];
        let state = K3sState {
            duplicates: is_counted.then_some(count),
            ..healthy()
        };
        assert!(watch_state.observe(&state, now, true).is_empty());
        watch_state = WatchState::parse(&watch_state.text());
        if !watch_state.escalated().is_empty() {
            assert_eq!(ids(&watch_state), ["k3s.firewall-duplicates"]);
            told.push(minute);
        }
    }
    assert_eq!(told, (60..120).collect::<Vec<_>>());
}

#[test]
fn a_backup_that_fails_is_told_of_and_tried_again_after_an_hour() {
    let mut watch_state = WatchState::default();
    let next = |seconds: u64| Some(at(seconds).wall);
    assert!(!watch_state.take_backup_turn(None, at(1000)));
    assert!(!watch_state.take_backup_turn(next(2000), at(1000)));
    assert_eq!(watch_state.next_backup_ms, next(2000).map(Wall::millis));
    assert!(watch_state.take_backup_turn(next(2000), at(2000)));
    watch_state.record_backup(Some("no room"), at(2000));
    watch_state = WatchState::parse(&watch_state.text());
    assert!(watch_state.escalated()[0].sentence.contains("no room"));
    assert!(!watch_state.take_backup_turn(next(2000), at(2060)));
    assert!(watch_state.take_backup_turn(next(2000), at(5600)));
    watch_state.record_backup(None, at(5600));
    assert_eq!(watch_state.escalated(), []);
    // One that a person made meanwhile counts as well.
    watch_state.record_backup(Some("no room"), at(5600));
    assert!(!watch_state.take_backup_turn(next(90_000), at(5660)));
    assert_eq!(watch_state.next_backup_ms, next(90_000).map(Wall::millis));
}

#[test]
fn a_change_that_stays_unfinished_is_told_of_after_five_minutes_until_it_ends() {
    let mut watch_state = WatchState::default();
    for (seconds, is_told) in [(1000, false), (1060, false), (1300, true), (1360, true)] {
        watch_state.record_unfinished("k3s-upgrade-3", at(seconds));
        watch_state = WatchState::parse(&watch_state.text());
        let told = watch_state.escalated();
        assert_eq!(told.len() == 1, is_told, "{seconds} {told:?}");
    }
    let told = &watch_state.escalated()[0];
    assert_eq!(told.id, "k3s.unfinished");
    assert!(told.sentence.contains("k3s-upgrade-3"), "{told:?}");
    assert!(told.fix.contains("k3s resume"), "{told:?}");
    // Another one has its own time.
    watch_state.record_unfinished("k3s-restore-4", at(1420));
    assert_eq!(watch_state.escalated(), []);
    watch_state.record_unfinished("k3s-restore-4", at(1720));
    assert_eq!(watch_state.escalated().len(), 1);
    watch_state.clear_unfinished();
    assert_eq!(WatchState::parse(&watch_state.text()).escalated(), []);
}

fn with_archives(has_release: bool, are_unpinned: bool) -> K3sState {
    K3sState {
        archives: Some(Archives {
            has_release,
            are_unpinned,
        }),
        lacks_image: Some("docker.io/rancher/mirrored-coredns-coredns:1".to_owned()),
        ..without_dns("True")
    }
}

#[test]
fn archives_are_imported_again_where_coredns_lacks_its_image_or_k3s_dropped_the_pins() {
    for (state, id) in [
        (with_archives(true, true), "k3s.images"),
        (with_archives(false, true), "k3s.images-unpinned"),
    ] {
        let mut watch_state = WatchState::default();
        let (after, order) = until_order(&mut watch_state, &state, 1000).unwrap();
        assert_eq!(
            (after, order.fault.id, order.repair),
            (60, id, Repair::Import)
        );
        watch_state.record_begin(&order, at(1060));
        watch_state.record_end(&order, None);
        // It helped; then it did not.
        assert!(watch_state.observe(&healthy(), at(1120), true).is_empty());
        assert_eq!(watch_state.escalated(), []);
        let (after, again) = until_order(&mut watch_state, &state, 1180).unwrap();
        assert_eq!((after, again.fault.id), (480, id));
    }
}

#[test]
fn archives_that_would_not_help_are_not_imported() {
    let full = node(&[("Ready", "True", ""), ("DiskPressure", "True", "low")]);
    let full = K3sState {
        api: Some(full),
        ..with_archives(true, true)
    };
    let mut starts = with_archives(true, true);
    starts.service.started_s = Some(99_940);
    let another = K3sState {
        lacks_image: None,
        ..with_archives(true, false)
    };
    for state in [with_archives(false, false), full, starts, another] {
        assert!(until_order(&mut WatchState::default(), &state, 1000).is_none());
    }
}

#[test]
fn a_repair_that_is_held_up_holds_up_no_other_one() {
    let state = K3sState {
        certificate: Some(("a.crt".to_owned(), 20)),
        archives: Some(Archives {
            has_release: false,
            are_unpinned: true,
        }),
        ..healthy()
    };
    let mut watch_state = WatchState::default();
    watch_state.observe(&state, at(1000), true);
    let orders = watch_state.observe(&state, at(5000), true);
    let ids: Vec<_> = orders.iter().map(|order| order.fault.id).collect();
    assert_eq!(ids, ["k3s.certificates-end", "k3s.images-unpinned"]);
    watch_state.record_hold(&orders[0], "the clock is wrong");
    watch_state.record_hold(&orders[1], "the disk is full");
    assert_eq!(self::ids(&watch_state), ids);
}

#[test]
fn a_kubelet_that_waits_for_images_gets_time() {
    let waits = |started_s, reported_s: i64| {
        let Api::Node(node) = node(&[("Ready", "Unknown", "")]) else {
            panic!("a node");
        };
        let reported = at(0).wall.millis() + reported_s * 1000;
        let api = Some(Api::Node(Node {
            reported: Some(Wall::from_millis(reported)),
            ..node
        }));
        move |now: u64| K3sState {
            service: Service {
                started_s: Some(started_s),
                ..service("active", "success")
            },
            up_s: now,
            wall: at(now).wall,
            api: api.clone(),
            ..healthy()
        }
    };
    let until = |state: &dyn Fn(u64) -> K3sState| {
        let mut watch_state = WatchState::default();
        (0..30).find(|minute| {
            let now = 1000 + minute * 60;
            !watch_state.observe(&state(now), at(now), true).is_empty()
        })
    };
    // It reported last before k3s was started again.
    assert_eq!(until(&waits(1000, 900)), Some(17));
    // It has reported since, so that it is not the images.
    assert_eq!(until(&waits(1000, 1000)), Some(2));
    // Nobody knows when it was started.
    assert_eq!(until(&waits(0, 1000)), Some(2));
}

#[test]
fn the_datastore_is_checked_once_after_a_cut_and_a_damage_stays_until_it_is_gone() {
    let mut watch_state = WatchState::default();
    assert!(watch_state.is_first() && !watch_state.is_check_due(at(1000)));
    watch_state.record_unfinished("k3s-upgrade-3", at(940));
    watch_state = WatchState::parse(&watch_state.text());
    watch_state.clear_unfinished();
    assert!(watch_state.is_first());
    watch_state.record_power_cut();
    watch_state.observe(&healthy(), at(1000), true);
    watch_state = WatchState::parse(&watch_state.text());
    assert!(!watch_state.is_first() && watch_state.is_check_due(at(1060)));
    watch_state.record_check(
        Some("Tree 4 page 7: btreeInitPage() returns error code 11"),
        at(1060),
    );
    watch_state = WatchState::parse(&watch_state.text());
    assert!(!watch_state.is_check_due(at(1120)) && watch_state.is_check_due(at(4660)));
    let state = K3sState {
        damage: watch_state.damage.clone(),
        ..healthy()
    };
    assert!(watch_state.observe(&state, at(1120), true).is_empty());
    let escalated = watch_state.escalated();
    assert_eq!(ids(&watch_state), ["k3s.datastore-damaged"]);
    assert!(
        escalated[0].sentence.contains("Tree 4 page 7"),
        "{escalated:?}"
    );
    assert!(escalated[0].fix.contains("k3s restore"), "{escalated:?}");
    watch_state.record_check(None, at(4660));
    watch_state.observe(&healthy(), at(4660), true);
    assert_eq!(ids(&watch_state), [""; 0]);
}

#[test]
fn a_file_of_somebody_else_is_an_empty_memory() {
    for text in [
        "",
        "x",
        "1\t2\t3",
        "a\tb\tc\td\te\tf\nk3s.looping\t1\n",
        "\u{0}\t\t\t\t\t\t\t",
    ] {
        assert_eq!(WatchState::parse(text).escalated(), [], "{text:?}");
    }
    let mut watch_state = WatchState::default();
    watch_state.observe(&looping("level=fatal msg=\"a\tb\""), at(1000), true);
    assert_eq!(WatchState::parse(&watch_state.text()), watch_state);
}
