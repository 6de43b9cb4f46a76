//! Time of each report, second by second, over hours.

use super::*;

const NOON: u16 = 720;

fn at(seconds: u64) -> Mono {
    Mono::since_boot(Duration::from_secs(seconds))
}

fn now(seconds: u64) -> Now {
    Now {
        mono: at(seconds),
        wall: Wall::default(),
    }
}

fn condition(id: &'static str, severity: Severity) -> Condition {
    Condition {
        id,
        severity,
        since: Wall::default(),
        sentence: format!("{id} is wrong"),
        fix: None,
    }
}

fn notifier(quiet: Option<&str>) -> Notifier {
    let wanted = Wanted {
        minimum: Severity::Warning,
        quiet: quiet.map(|text| Quiet::parse(text).unwrap()),
        settle: SETTLE,
    };
    Notifier::new(wanted, LiteMap::new(), at(0))
}

fn turns(next: &Next) -> Vec<(&str, Transition)> {
    match next {
        Next::Send(message) => message
            .notices
            .iter()
            .map(|notice| (notice.id.as_str(), notice.turn))
            .collect(),
        Next::Wait(_) => Vec::new(),
    }
}

fn look(notifier: &mut Notifier, holding: &[Condition], second: u64) {
    notifier.see(&holding.iter().collect::<Vec<_>>(), at(second));
}

/// Looks at every second and takes every message; says when each went out.
fn run(
    notifier: &mut Notifier,
    seconds: std::ops::Range<u64>,
    minute: impl Fn(u64) -> u16,
    holding: impl Fn(u64) -> Vec<Condition>,
) -> Vec<(u64, Message)> {
    let mut sent = Vec::new();
    for second in seconds {
        look(notifier, &holding(second), second);
        if let Next::Send(message) = notifier.next(at(second), minute(second)) {
            notifier.sent(&message, at(second));
            sent.push((second, message));
        }
    }
    sent
}

#[test]
fn a_condition_is_told_when_it_has_settled_and_when_it_is_over_and_not_in_between() {
    let mut notifier = notifier(None);
    let sent = run(
        &mut notifier,
        1000..5000,
        |_| NOON,
        |second| {
            let holds = second < 3000;
            let list = holds.then(|| condition("link.down", Severity::Warning));
            list.into_iter().collect()
        },
    );
    let notices: Vec<_> = sent
        .iter()
        .map(|(second, message)| (*second, message.notices[0].turn))
        .collect();
    assert_eq!(
        notices,
        [(1030, Transition::Began), (3030, Transition::Ended)]
    );
}

#[test]
fn what_passes_at_once_and_what_matters_little_is_not_told() {
    let mut notifier = notifier(None);
    let sent = run(
        &mut notifier,
        1000..2000,
        |_| NOON,
        |second| {
            let mut list = vec![condition("cluster.none", Severity::Note)];
            if (1100..1120).contains(&second) {
                list.push(condition("link.down", Severity::Critical));
            }
            list
        },
    );
    assert!(sent.is_empty(), "{sent:?}");
}

#[test]
fn what_begins_together_is_one_message_with_the_worst_first() {
    let mut notifier = notifier(None);
    let all = [
        condition("a.small", Severity::Warning),
        condition("z.large", Severity::Critical),
    ];
    look(&mut notifier, &all, 1000);
    assert_eq!(notifier.next(at(1000), NOON), Next::Wait(Some(at(1030))));
    let next = notifier.next(at(1030), NOON);
    assert_eq!(
        turns(&next),
        [
            ("z.large", Transition::Began),
            ("a.small", Transition::Began)
        ]
    );
}

#[test]
fn a_condition_that_grows_worse_is_told_again_and_one_that_eases_is_not() {
    let mut notifier = notifier(None);
    let sent = run(
        &mut notifier,
        1000..4000,
        |_| NOON,
        |second| {
            let severity = match second {
                2000..3000 => Severity::Critical,
                _ => Severity::Warning,
            };
            vec![condition("disk.full", severity)]
        },
    );
    let notices: Vec<_> = sent
        .iter()
        .map(|(_, message)| message.notices[0].turn)
        .collect();
    assert_eq!(notices, [Transition::Began, Transition::Worse]);
}

#[test]
fn something_that_comes_and_goes_every_minute_makes_no_storm() {
    let mut notifier = notifier(None);
    let sent = run(
        &mut notifier,
        1000..1000 + 6 * 3600,
        |_| NOON,
        |second| {
            let holds = second / 60 % 2 == 0;
            let list = holds.then(|| condition("link.down", Severity::Critical));
            list.into_iter().collect()
        },
    );
    assert!((2..=12).contains(&sent.len()), "{}", sent.len());
}

#[test]
fn many_things_that_come_and_go_keep_to_the_budget_and_leave_room_for_what_is_critical() {
    const IDS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let mut notifier = notifier(None);
    let sent = run(
        &mut notifier,
        1000..1000 + 4 * 3600,
        |_| NOON,
        |second| {
            let mut list: Vec<_> = (0_u64..)
                .zip(IDS)
                .filter(|(n, _)| second / (97 + n * 31) % 2 == 0)
                .map(|(_, id)| condition(id, Severity::Warning))
                .collect();
            if second > 9000 {
                list.push(condition("node.gone", Severity::Critical));
            }
            list
        },
    );
    for (from, _) in &sent {
        let hour = sent
            .iter()
            .filter(|(at, _)| (*from..from + 3600).contains(at));
        assert!(hour.count() <= MESSAGES_MAX);
    }
    let critical = sent.iter().find(|(_, message)| {
        message
            .notices
            .iter()
            .any(|notice| notice.id == "node.gone")
    });
    assert_eq!(critical.map(|(second, _)| *second), Some(9031));
}

#[test]
fn in_quiet_hours_only_what_is_critical_is_told_and_the_rest_when_they_are_over() {
    let mut notifier = notifier(Some("22:00-07:00"));
    // The test begins at 23:00.
    let minute = |second: u64| u16::try_from((23 * 60 + second / 60) % 1440).unwrap();
    let sent = run(&mut notifier, 0..10 * 3600, minute, |second| {
        let mut list = vec![condition("disk.full", Severity::Warning)];
        if second > 3600 {
            list.push(condition("k3s.down", Severity::Critical));
        }
        // One that is over before the morning is never told.
        if (600..7200).contains(&second) {
            list.push(condition("clock.wrong", Severity::Warning));
        }
        list
    });
    let notices: Vec<_> = sent
        .iter()
        .flat_map(|(second, message)| {
            message
                .notices
                .iter()
                .map(|notice| (*second, notice.id.as_str()))
        })
        .collect();
    assert_eq!(notices[0], (3631, "k3s.down"));
    assert_eq!(notices[1..], [(8 * 3600, "disk.full")]);
}

#[test]
fn an_outage_of_the_receiver_ends_with_one_message_that_says_what_is_true_then() {
    let mut notifier = notifier(None);
    let mut tries = 0;
    let mut second = 1000;
    while second < 1000 + 6 * 3600 {
        let mut list = vec![condition("link.down", Severity::Warning)];
        if second / 600 % 2 == 0 {
            list.push(condition("disk.full", Severity::Warning));
        }
        if second > 20_000 {
            list.push(condition("k3s.down", Severity::Critical));
        }
        look(&mut notifier, &list, second);
        if let Next::Send(_) = notifier.next(at(second), NOON) {
            tries += 1;
            notifier.failed(now(second), 0, None);
        }
        second += 1;
    }
    assert!(tries < 40, "{tries} tries in six hours");
    let Next::Send(message) = notifier.next(at(second + 900), NOON) else {
        panic!("nothing to say");
    };
    assert!(message.late.unwrap() > Duration::from_secs(5 * 3600));
    let ids: Vec<_> = message
        .notices
        .iter()
        .map(|notice| notice.id.as_str())
        .collect();
    assert_eq!(ids[0], "k3s.down");
    assert!(ids.contains(&"link.down"));
    assert!(message.missed.get("disk.full") > Some(&10));
    notifier.sent(&message, at(second + 900));
    assert!(matches!(
        notifier.next(at(second + 901), NOON),
        Next::Wait(_)
    ));
    assert_eq!(notifier.failures(), 0);
}

#[test]
fn a_receiver_that_asks_for_time_gets_it() {
    let mut notifier = notifier(None);
    look(
        &mut notifier,
        &[condition("link.down", Severity::Warning)],
        1000,
    );
    assert!(matches!(notifier.next(at(1030), NOON), Next::Send(_)));
    notifier.failed(now(1030), 0, Some(Duration::from_secs(120)));
    assert_eq!(notifier.next(at(1031), NOON), Next::Wait(Some(at(1150))));
    notifier.failed(now(1150), 0, Some(Duration::from_secs(1_000_000)));
    assert_eq!(
        notifier.next(at(1151), NOON),
        Next::Wait(Some(at(1150 + 3600)))
    );
}

#[test]
fn a_restart_tells_nothing_again_and_ends_what_is_really_over() {
    let mut first = notifier(None);
    let all = [
        condition("disk.full", Severity::Warning),
        condition("link.down", Severity::Warning),
    ];
    let sent = run(&mut first, 1000..1100, |_| NOON, |_| all.to_vec());
    assert_eq!(sent.len(), 1);
    let notified = first.notified.clone();
    for _ in 0..20 {
        // A crash loop: each start finds the conditions a little later.
        let mut again = Notifier::new(first.wanted, notified.clone(), at(5000));
        let sent = run(
            &mut again,
            5000..5120,
            |_| NOON,
            |second| {
                if second < 5090 {
                    Vec::new()
                } else {
                    all.to_vec()
                }
            },
        );
        assert!(sent.is_empty(), "{sent:?}");
    }
    let mut again = Notifier::new(first.wanted, notified, at(9000));
    let sent = run(&mut again, 9000..9400, |_| NOON, |_| vec![all[0].clone()]);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].0, 9180);
    assert_eq!(
        turns(&Next::Send(sent[0].1.clone())),
        [("link.down", Transition::Ended)]
    );
}

#[test]
fn quiet_hours_are_read_strictly_and_may_cross_midnight() {
    for text in [
        "",
        "22-7",
        "22:00",
        "25:00-07:00",
        "22:60-07:00",
        "22:00-22:00",
        "-1:00-07:00",
        "2:00-07:00",
    ] {
        assert_eq!(Quiet::parse(text), None, "{text}");
    }
    let night = Quiet::parse("22:00-07:00").unwrap();
    let minutes = |minute| night.left(minute).map(|left| left.as_secs() / 60);
    assert_eq!(minutes(22 * 60), Some(9 * 60));
    assert_eq!(minutes(6 * 60 + 59), Some(1));
    assert_eq!(minutes(7 * 60), None);
    assert_eq!(minutes(21 * 60 + 59), None);
    let nap = Quiet::parse("12:00 - 13:30").unwrap();
    assert_eq!(nap.left(720), Some(Duration::from_secs(90 * 60)));
    assert_eq!(nap.left(719), None);
}
