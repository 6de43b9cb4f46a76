//! One behaviour a test, in the order of a session's life.

use super::*;

struct Bench {
    link: Link,
    now: Now,
}

impl Bench {
    fn new(membership: Option<Membership>) -> Self {
        Self::with(Settings::new("agent-1"), membership)
    }

    fn with(settings: Settings, membership: Option<Membership>) -> Self {
        let now = Now {
            mono: Mono::since_boot(Duration::from_secs(100)),
            wall: Wall::from_millis(1_781_588_400_000),
        };
        Self {
            link: Link::new(settings, membership, 7, now),
            now,
        }
    }

    /// All outputs up to the next wait, without log lines.
    fn outputs(&mut self) -> Vec<Output> {
        let mut all = Vec::new();
        loop {
            match self.link.poll(self.now) {
                Output::Wait(..) => return all,
                Output::Log(_) => {}
                output @ (Output::Dial(_)
                | Output::Send(_)
                | Output::Ping
                | Output::Persist(_)
                | Output::Registered
                | Output::Close { .. }) => all.push(output),
            }
        }
    }

    fn give(&mut self, input: Input) -> Vec<Output> {
        self.link.handle(input, self.now);
        self.outputs()
    }

    fn pass(&mut self, time: Duration) -> Vec<Output> {
        self.now.mono = self.now.mono.after(time);
        self.outputs()
    }

    /// Lets time pass until the machine wants something; returns how long that took.
    fn pass_to_next(&mut self) -> Duration {
        let Output::Wait(until, _) = self.link.poll(self.now) else {
            panic!("drain the outputs first")
        };
        let wait = until.since(self.now.mono);
        self.now.mono = self.now.mono.after(wait);
        wait
    }

    /// Dials, connects and returns the id of the registration.
    fn registering(&mut self) -> String {
        assert_eq!(self.outputs(), [Output::Dial(Endpoint::Controller)]);
        let outputs = self.give(Input::Connected);
        registration(&outputs).expect("a registration").0
    }

    fn ready(&mut self) {
        let id = self.registering();
        self.give(success(&id, None));
        assert!(self.link.is_ready());
    }
}

fn registration(outputs: &[Output]) -> Option<(String, Option<String>)> {
    outputs.iter().find_map(|output| {
        if let Output::Send(Message::Register {
            request_id,
            cluster_id,
        }) = output
        {
            Some((request_id.clone(), cluster_id.clone()))
        } else {
            None
        }
    })
}

fn known(gateway: Option<&str>) -> Membership {
    Membership {
        cluster_id: "c-1".to_owned(),
        cluster_uuid: "u-1".to_owned(),
        gateway_url: gateway.map(str::to_owned),
    }
}

fn success(id: &str, gateway: Option<&str>) -> Input {
    Input::RegisterSuccess {
        request_id: Some(id.to_owned()),
        membership: Some(known(gateway)),
    }
}

fn heartbeat() -> Output {
    Output::Send(Message::Heartbeat {
        cluster_id: "c-1".to_owned(),
    })
}

#[test]
fn a_new_box_registers_keeps_the_answer_and_beats_at_once() {
    let mut bench = Bench::new(None);
    assert_eq!(bench.outputs(), [Output::Dial(Endpoint::Controller)]);
    let (id, cluster) = registration(&bench.give(Input::Connected)).unwrap();
    assert!(
        id.starts_with("req_1781588400000") && id.ends_with("_agent-1"),
        "{id}"
    );
    assert_eq!(cluster, None);
    assert_eq!(
        bench.give(success(&id, None)),
        [
            Output::Persist(known(None)),
            Output::Registered,
            heartbeat()
        ]
    );
    assert_eq!(bench.link.state(), LinkState::Ready);
}

#[test]
fn a_gateway_in_the_answer_moves_the_link_there() {
    let mut bench = Bench::new(None);
    let id = bench.registering();
    let outputs = bench.give(success(&id, Some("wss://gw/ws")));
    let gateway = known(Some("wss://gw/ws"));
    assert_eq!(
        outputs,
        [
            Output::Persist(gateway.clone()),
            Output::Registered,
            Output::Close {
                code: 1000,
                reason: ""
            },
            Output::Dial(Endpoint::Gateway(gateway)),
        ]
    );
    assert_eq!(bench.give(Input::Connected), [heartbeat()]);
}

#[test]
fn a_known_box_resumes_at_its_gateway_without_registering() {
    let mut bench = Bench::new(Some(known(Some("wss://gw/ws"))));
    assert_eq!(
        bench.outputs(),
        [Output::Dial(Endpoint::Gateway(known(Some("wss://gw/ws"))))]
    );
    assert_eq!(bench.give(Input::Connected), [heartbeat()]);
}

#[test]
fn a_known_box_without_gateway_registers_under_its_id() {
    let mut bench = Bench::new(Some(known(None)));
    assert_eq!(bench.outputs(), [Output::Dial(Endpoint::Controller)]);
    let outputs = bench.give(Input::Connected);
    assert_eq!(registration(&outputs).unwrap().1.as_deref(), Some("c-1"));
}

#[test]
fn a_gateway_that_stays_away_leads_back_to_the_controller() {
    let mut bench = Bench::new(Some(known(Some("wss://gw/ws"))));
    for _ in 0..GATEWAY_FAILURES_MAX {
        assert!(matches!(
            bench.outputs()[..],
            [Output::Dial(Endpoint::Gateway(_))]
        ));
        bench.give(Input::DialFailed(
            DialFailure::Network,
            "refused".to_owned(),
        ));
        bench.pass_to_next();
    }
    assert_eq!(bench.outputs(), [Output::Dial(Endpoint::Controller)]);
    bench.give(Input::DialFailed(
        DialFailure::Network,
        "refused".to_owned(),
    ));
    bench.pass_to_next();
    assert!(
        matches!(bench.outputs()[..], [Output::Dial(Endpoint::Gateway(_))]),
        "and back to the gateway"
    );
}

#[test]
fn a_gateway_that_refuses_the_token_leads_to_the_controller_with_the_id_kept() {
    let mut bench = Bench::new(Some(known(Some("wss://gw/ws"))));
    bench.outputs();
    bench.give(Input::DialFailed(
        DialFailure::Refused,
        "HTTP 403".to_owned(),
    ));
    assert!(bench.pass_to_next() < Duration::from_secs(1));
    assert_eq!(bench.outputs(), [Output::Dial(Endpoint::Controller)]);
    assert_eq!(
        registration(&bench.give(Input::Connected))
            .unwrap()
            .1
            .as_deref(),
        Some("c-1")
    );
}

#[test]
fn a_refused_token_is_tried_again_for_ever_with_long_waits_and_erases_nothing() {
    let mut bench = Bench::new(Some(known(None)));
    let mut waits = Vec::new();
    for _ in 0..10 {
        assert_eq!(bench.outputs(), [Output::Dial(Endpoint::Controller)]);
        bench.give(Input::DialFailed(
            DialFailure::Refused,
            "HTTP 401".to_owned(),
        ));
        assert_eq!(bench.link.state(), LinkState::Refused);
        assert!(bench.link.status(bench.now).is_refused);
        waits.push(bench.pass_to_next().as_secs());
    }
    assert!(
        waits[0] >= 10 && waits[9] >= 300 && waits[9] <= 375,
        "{waits:?}"
    );
    bench.outputs();
    assert_eq!(
        registration(&bench.give(Input::Connected))
            .unwrap()
            .1
            .as_deref(),
        Some("c-1")
    );
}

#[test]
fn a_new_token_is_tried_at_once() {
    let mut bench = Bench::new(None);
    bench.outputs();
    bench.give(Input::DialFailed(
        DialFailure::Refused,
        "HTTP 401".to_owned(),
    ));
    assert_eq!(
        bench.give(Input::TokenChanged),
        [Output::Dial(Endpoint::Controller)]
    );
}

#[test]
fn the_answer_to_another_registration_is_ignored() {
    let mut bench = Bench::new(None);
    let id = bench.registering();
    for wrong in [None, Some("req_0_x".to_owned())] {
        assert_eq!(
            bench.give(Input::RegisterSuccess {
                request_id: wrong,
                membership: Some(known(None))
            }),
            []
        );
    }
    assert_eq!(bench.link.state(), LinkState::Registering);
    assert!(bench.give(success(&id, None)).contains(&heartbeat()));
    assert_eq!(
        bench.give(success(&id, Some("wss://late"))),
        [],
        "a second answer changes nothing"
    );
}

#[test]
fn an_answer_without_a_cluster_ends_the_attempt() {
    let mut bench = Bench::new(None);
    let id = bench.registering();
    let outputs = bench.give(Input::RegisterSuccess {
        request_id: Some(id),
        membership: None,
    });
    assert_eq!(
        outputs,
        [Output::Close {
            code: 1001,
            reason: "no cluster_id"
        }]
    );
    assert_eq!(bench.link.state(), LinkState::Waiting);
}

#[test]
fn no_answer_for_half_a_minute_ends_the_attempt_unless_it_is_in_progress() {
    let mut bench = Bench::new(None);
    bench.registering();
    assert_eq!(bench.pass(Duration::from_secs(29)), []);
    bench.give(Input::RegisterInProgress);
    assert_eq!(bench.pass(Duration::from_secs(29)), []);
    for _ in 0..20 {
        bench.give(Input::RegisterInProgress);
        bench.pass(Duration::from_secs(5));
    }
    assert_eq!(bench.link.state(), LinkState::Waiting, "but not for ever");
}

#[test]
fn a_refused_registration_does_not_wait_for_the_deadline() {
    let mut bench = Bench::new(None);
    let id = bench.registering();
    let outputs = bench.give(Input::Refusal {
        request_id: Some(id),
        text: "quota exceeded".to_owned(),
    });
    assert_eq!(
        outputs,
        [Output::Close {
            code: 1001,
            reason: "registration refused"
        }]
    );
    assert!(bench.link.status(bench.now).why.contains("quota exceeded"));
}

#[test]
fn an_unrelated_error_disturbs_nothing() {
    let mut bench = Bench::new(None);
    bench.registering();
    assert_eq!(
        bench.give(Input::Refusal {
            request_id: None,
            text: "maintenance at noon".to_owned()
        }),
        []
    );
    assert_eq!(bench.link.state(), LinkState::Registering);
}

#[test]
fn a_controller_that_forgot_the_cluster_gets_a_fresh_registration_on_the_same_socket() {
    let mut bench = Bench::new(Some(known(None)));
    bench.outputs();
    bench.give(Input::Connected);
    let outputs = bench.give(Input::Refusal {
        request_id: None,
        text: "Cluster Not Found".to_owned(),
    });
    assert_eq!(registration(&outputs).unwrap().1, None);
    assert!(
        !outputs
            .iter()
            .any(|output| matches!(output, Output::Persist(_))),
        "the id on disk stays"
    );
    assert_eq!(bench.link.membership(), Some(&known(None)));
}

#[test]
fn a_gateway_that_forgot_the_cluster_leads_to_a_registration_under_the_old_id() {
    let mut bench = Bench::new(Some(known(Some("wss://gw/ws"))));
    bench.outputs();
    bench.give(Input::Connected);
    let outputs = bench.give(Input::Refusal {
        request_id: None,
        text: "cluster not registered".to_owned(),
    });
    assert_eq!(
        outputs,
        [Output::Close {
            code: 1001,
            reason: "register again"
        }]
    );
    bench.pass_to_next();
    assert_eq!(bench.outputs(), [Output::Dial(Endpoint::Controller)]);
    assert_eq!(
        registration(&bench.give(Input::Connected))
            .unwrap()
            .1
            .as_deref(),
        Some("c-1")
    );
}

#[test]
fn a_ready_link_pings_and_beats_on_time() {
    let mut bench = Bench::new(None);
    bench.ready();
    let mut log = Vec::new();
    for second in 1..=60 {
        bench.give(Input::Heard);
        for output in bench.pass(Duration::from_secs(1)) {
            log.push((second, output == heartbeat()));
        }
    }
    let pings: Vec<_> = log
        .iter()
        .filter(|entry| !entry.1)
        .map(|entry| entry.0)
        .collect();
    let beats: Vec<_> = log
        .iter()
        .filter(|entry| entry.1)
        .map(|entry| entry.0)
        .collect();
    assert_eq!((pings, beats), (vec![10, 20, 30, 40, 50, 60], vec![30, 60]));
}

#[test]
fn a_silent_peer_is_given_up_within_a_minute() {
    let mut bench = Bench::new(None);
    bench.ready();
    let mut passed = Duration::ZERO;
    while bench.link.is_ready() {
        passed += bench.pass_to_next();
        let outputs = bench.outputs();
        let closes = outputs.contains(&Output::Close {
            code: 1001,
            reason: "peer is silent",
        });
        assert_eq!(closes, !bench.link.is_ready());
    }
    assert!(passed <= Duration::from_secs(60), "{passed:?}");
}

#[test]
fn a_suspended_box_gives_its_old_socket_up_at_once() {
    let mut bench = Bench::new(None);
    bench.ready();
    let outputs = bench.pass(Duration::from_secs(8 * 3600));
    assert_eq!(
        outputs,
        [Output::Close {
            code: 1001,
            reason: "peer is silent"
        }]
    );
}

#[test]
fn a_server_that_accepts_and_drops_is_met_with_growing_waits() {
    let mut bench = Bench::new(None);
    let mut waits = Vec::new();
    for _ in 0..9 {
        bench.ready();
        bench.give(Input::Lost("connection reset".to_owned()));
        waits.push(bench.pass_to_next().as_secs());
    }
    assert!(waits.is_sorted() && waits[8] >= 60, "{waits:?}");
}

#[test]
fn a_good_session_makes_the_next_wait_short_again() {
    let mut bench = Bench::new(None);
    for _ in 0..5 {
        bench.ready();
        bench.give(Input::Lost("reset".to_owned()));
        bench.pass_to_next();
    }
    bench.ready();
    for _ in 0..7 {
        bench.pass(Duration::from_secs(10));
        bench.give(Input::Heard);
    }
    bench.give(Input::Lost("reset".to_owned()));
    assert!(bench.pass_to_next() < Duration::from_secs(1));
}

#[test]
fn retry_after_is_honoured_within_reason() {
    for (asked, least, most) in [(30, 30, 31), (1_000_000, 900, 901)] {
        let mut bench = Bench::new(None);
        bench.outputs();
        let failure = DialFailure::Status(503, Some(Duration::from_secs(asked)));
        bench.give(Input::DialFailed(failure, "HTTP 503".to_owned()));
        let wait = bench.pass_to_next().as_secs();
        assert!((least..=most).contains(&wait), "{wait}");
    }
}

#[test]
fn a_ping_is_answered_with_its_id() {
    let mut bench = Bench::new(None);
    bench.ready();
    let pong = Output::Send(Message::Pong {
        request_id: Some("p-1".to_owned()),
    });
    assert_eq!(
        bench.give(Input::Ping {
            request_id: Some("p-1".to_owned())
        }),
        [pong]
    );
}

#[test]
fn an_unknown_type_is_answered_once_a_connection() {
    let mut bench = Bench::new(None);
    bench.ready();
    let unknown = || Input::Unknown {
        message_type: "frobnicate".to_owned(),
        request_id: None,
    };
    assert_eq!(bench.give(unknown()).len(), 1);
    assert_eq!(bench.give(unknown()), []);
    bench.give(Input::Lost("reset".to_owned()));
    bench.pass_to_next();
    bench.ready();
    assert_eq!(bench.give(unknown()).len(), 1);
    let answered: usize = (0..1000)
        .map(|n| {
            bench
                .give(Input::Unknown {
                    message_type: format!("t{n}"),
                    request_id: None,
                })
                .len()
        })
        .sum();
    assert_eq!(answered, UNKNOWN_TYPES_MAX - 1, "and only so many");
}

#[test]
fn a_dial_that_hangs_is_ended() {
    let mut bench = Bench::new(None);
    bench.outputs();
    assert_eq!(
        bench.pass(Duration::from_secs(30)),
        [Output::Close {
            code: 1001,
            reason: "dial took too long"
        }]
    );
    assert_eq!(bench.link.state(), LinkState::Waiting);
}

#[test]
fn a_held_link_closes_and_comes_back_when_all_have_released_it() {
    let mut bench = Bench::new(None);
    bench.ready();
    let outputs = bench.give(Input::Hold(Holder::Lease, "agent b has it".to_owned()));
    assert_eq!(
        outputs,
        [Output::Close {
            code: 1000,
            reason: "standing by"
        }]
    );
    assert_eq!(
        bench.give(Input::Hold(Holder::GoAgent, "a Go agent runs".to_owned())),
        []
    );
    assert_eq!(bench.pass(Duration::from_secs(7200)), []);
    let status = bench.link.status(bench.now);
    assert_eq!(
        (status.held_by, status.why.as_str()),
        (Some(Holder::GoAgent), "a Go agent runs")
    );
    assert_eq!(bench.give(Input::Release(Holder::GoAgent)), []);
    let status = bench.link.status(bench.now);
    assert_eq!(
        (status.held_by, status.why.as_str()),
        (Some(Holder::Lease), "agent b has it")
    );
    assert_eq!(
        bench.give(Input::Release(Holder::Lease)),
        [Output::Dial(Endpoint::Controller)]
    );
    assert_eq!(bench.link.status(bench.now).held_by, None);
}

#[test]
fn a_box_that_never_registered_registers_under_the_id_that_its_cluster_has() {
    let mut bench = Bench::new(None);
    bench.link.handle(
        Input::Hold(Holder::Lease, "agent b has it".to_owned()),
        bench.now,
    );
    assert_eq!(bench.outputs(), []);
    let membership = Membership {
        cluster_id: "c-7".to_owned(),
        cluster_uuid: "c-7".to_owned(),
        gateway_url: None,
    };
    assert_eq!(
        bench.give(Input::AdoptClusterId("c-7".to_owned())),
        [Output::Persist(membership)]
    );
    assert_eq!(
        bench.give(Input::Release(Holder::Lease)),
        [Output::Dial(Endpoint::Controller)]
    );
    let (_, cluster) = registration(&bench.give(Input::Connected)).unwrap();
    assert_eq!(cluster.as_deref(), Some("c-7"));
}

#[test]
fn a_box_that_registered_keeps_its_own_id() {
    let mut bench = Bench::new(Some(known(None)));
    bench.outputs();
    assert_eq!(bench.give(Input::AdoptClusterId("c-7".to_owned())), []);
    assert_eq!(bench.link.membership(), Some(&known(None)));
}

#[test]
fn a_stopped_link_says_good_bye_and_does_nothing_more() {
    let mut bench = Bench::new(None);
    bench.ready();
    assert_eq!(
        bench.give(Input::Stop),
        [Output::Close {
            code: 1000,
            reason: "agent stops"
        }]
    );
    assert_eq!(bench.give(Input::TokenChanged), []);
    assert_eq!(bench.pass(Duration::from_secs(100_000)), []);
    assert_eq!(bench.link.state(), LinkState::Closed);
}

#[test]
fn outages_are_remembered_with_their_length() {
    let mut bench = Bench::new(None);
    bench.ready();
    bench.give(Input::Lost("connection reset".to_owned()));
    bench.pass_to_next();
    bench.ready();
    let outages = bench.link.outages();
    assert_eq!(outages.len(), 2);
    assert_eq!(outages[1].why, "connection reset");
    assert!(outages[1].length.is_some());
}

#[test]
fn an_outage_while_a_registration_is_repeated_is_one() {
    let forgot = || Input::Refusal {
        request_id: None,
        text: "cluster not registered".to_owned(),
    };
    let mut bench = Bench::new(None);
    bench.ready();
    assert_eq!(bench.link.recoveries(), 1, "it has started");
    for _ in 0..2 {
        bench.pass(STABLE_AFTER / 2);
        bench.give(Input::Heard);
    }
    let up = bench.link.status(bench.now).since;
    bench.now.wall = Wall::from_millis(bench.now.wall.millis() + 60_000);
    let (id, _) = registration(&bench.give(forgot())).unwrap();
    bench.give(success(&id, None));
    let status = bench.link.status(bench.now);
    assert_eq!((status.since, bench.link.losses()), (up, 0), "it was up");
    for _ in 0..2 {
        bench.pass(STABLE_AFTER / 2);
        bench.give(Input::Heard);
    }
    bench.give(forgot());
    bench.give(Input::Lost("connection reset".to_owned()));
    assert_eq!(bench.link.losses(), 1);
    let status = bench.link.status(bench.now);
    assert_eq!(status.since, bench.now.wall, "it is down since now");
    bench.pass_to_next();
    bench.ready();
    assert_eq!((bench.link.losses(), bench.link.recoveries()), (1, 2));

    // On the way from a gateway to a controller that is away.
    let mut bench = Bench::new(Some(known(Some("wss://gw/ws"))));
    bench.outputs();
    bench.give(Input::Connected);
    bench.give(Input::RegisterAgain);
    bench.give(Input::DialFailed(
        DialFailure::Network,
        "refused".to_owned(),
    ));
    assert_eq!(bench.link.losses(), 1);
}

#[test]
fn a_control_plane_that_registers_and_forgets_at_once_is_met_with_growing_waits() {
    let mut bench = Bench::new(None);
    let mut waits = Vec::new();
    let forgot = || Input::Refusal {
        request_id: None,
        text: "cluster not registered".to_owned(),
    };
    for round in 0..6 {
        bench.ready();
        let mut outputs = bench.give(forgot());
        if round == 0 {
            // A replica may have been restarted: what runs goes on.
            let (id, _) = registration(&outputs).unwrap();
            bench.give(success(&id, None));
            outputs = bench.give(forgot());
        }
        assert_eq!(registration(&outputs), None);
        waits.push(bench.pass_to_next());
    }
    assert!(waits[5] >= Duration::from_secs(10), "{waits:?}");
}

#[test]
fn a_token_that_was_refused_is_no_reason_of_later_failures() {
    let mut bench = Bench::new(None);
    for (failure, is_refused) in [(DialFailure::Refused, true), (DialFailure::Network, false)] {
        bench.outputs();
        bench.give(Input::DialFailed(failure, "no".to_owned()));
        assert_eq!(bench.link.status(bench.now).is_refused, is_refused);
        bench.pass_to_next();
    }
}

#[test]
fn every_transition_is_one_log_line() {
    let mut bench = Bench::new(None);
    let mut lines = Vec::new();
    let mut drain = |bench: &mut Bench| loop {
        match bench.link.poll(bench.now) {
            Output::Wait(..) => return,
            Output::Log(line) => lines.push(line),
            Output::Dial(_)
            | Output::Send(_)
            | Output::Ping
            | Output::Persist(_)
            | Output::Registered
            | Output::Close { .. } => {}
        }
    };
    drain(&mut bench);
    bench.link.handle(
        Input::DialFailed(DialFailure::Network, "cannot resolve api".to_owned()),
        bench.now,
    );
    drain(&mut bench);
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0], "link: waiting -> dialing");
    assert!(
        lines[1].starts_with("link: dialing -> waiting (cannot resolve api; next attempt in "),
        "{}",
        lines[1]
    );
}

fn close(reason: &'static str) -> Output {
    Output::Close { code: 1000, reason }
}

#[test]
fn what_the_control_plane_lacks_is_told_to_the_controller_before_a_gateway_is_used() {
    let gateway = known(Some("wss://gw/ws"));
    let settings = Settings {
        registers_first: true,
        ..Settings::new("agent-1")
    };
    let mut bench = Bench::with(settings, Some(gateway.clone()));
    let id = bench.registering();
    assert_eq!(
        bench.give(success(&id, Some("wss://gw/ws"))),
        [
            Output::Registered,
            close(""),
            Output::Dial(Endpoint::Gateway(gateway)),
        ]
    );
}

#[test]
fn another_registration_goes_over_the_socket_of_the_controller_or_leaves_the_gateway() {
    let mut bench = Bench::new(None);
    bench.ready();
    let (id, cluster) = registration(&bench.give(Input::RegisterAgain)).unwrap();
    assert_eq!(cluster.as_deref(), Some("c-1"));
    assert_eq!(
        bench.give(success(&id, None)),
        [Output::Registered, heartbeat()]
    );

    let gateway = known(Some("wss://gw/ws"));
    let mut bench = Bench::new(Some(gateway));
    bench.outputs();
    bench.give(Input::Connected);
    assert!(bench.link.is_ready());
    assert_eq!(
        bench.give(Input::RegisterAgain),
        [close("registers again"), Output::Dial(Endpoint::Controller)]
    );
    assert_eq!(bench.link.losses(), 0, "of our own will");
    let (id, _) = registration(&bench.give(Input::Connected)).unwrap();
    bench.give(success(&id, Some("wss://gw/ws")));
    bench.give(Input::Connected);
    assert!(bench.link.is_ready());
    assert!(registration(&bench.pass(OWED_FOR)).is_none());
}

#[test]
fn a_wish_to_register_survives_everything_between_it_and_the_answer() {
    let mut bench = Bench::new(None);
    let first = bench.registering();
    assert_eq!(bench.give(Input::RegisterAgain), []);
    let (second, _) = registration(&bench.give(success(&first, None))).unwrap();
    bench.give(Input::Lost("cut".to_owned()));
    bench.pass_to_next();
    assert_eq!(bench.outputs(), [Output::Dial(Endpoint::Controller)]);
    assert_eq!(
        bench.give(success(&second, None)),
        [],
        "the answer to a registration of another socket"
    );
    let (third, _) = registration(&bench.give(Input::Connected)).unwrap();
    assert_eq!(
        bench.give(success(&third, None)),
        [Output::Registered, heartbeat()]
    );
}

#[test]
fn a_gateway_serves_while_the_controller_is_away_but_not_for_ever_unregistered() {
    let gateway = known(Some("wss://gw/ws"));
    let settings = Settings {
        registers_first: true,
        ..Settings::new("agent-1")
    };
    let mut bench = Bench::with(settings, Some(gateway.clone()));
    assert_eq!(bench.outputs(), [Output::Dial(Endpoint::Controller)]);
    bench.give(Input::DialFailed(DialFailure::Network, "gone".to_owned()));
    bench.pass_to_next();
    assert_eq!(bench.outputs(), [Output::Dial(Endpoint::Gateway(gateway))]);
    bench.give(Input::Connected);
    let mut waited = Duration::ZERO;
    loop {
        waited += bench.pass_to_next();
        let outputs = bench.outputs();
        if outputs.contains(&Output::Dial(Endpoint::Controller)) {
            break;
        }
        bench.give(Input::Heard);
        assert!(waited < OWED_FOR);
    }
    assert_eq!(waited, OWED_FOR);
}
