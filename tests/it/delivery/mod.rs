//! Records on their way from the real program to the reference control plane.

mod source;

use std::time::Duration;

use plane::{
    Acknowledging, Behaviour, Cut, Direction, Frame, Options, Plane, ReceivedRecords, Sessions,
    Streams, View,
};
use serde_json::json;

use crate::agent::{Agent, SOON, clock, until};
use source::{Source, are_in};

/// How long a whole delivery may take on a machine that does other things besides.
const LIMIT: Duration = Duration::from_secs(240);

/// So that there is something left for the next fault.
const SLOW: Acknowledging = Acknowledging::After(Duration::from_millis(30));

fn plane_with(change: impl FnOnce(&mut Behaviour)) -> Plane {
    let mut plane = Plane::start(Options::default()).unwrap();
    plane.set(change);
    plane
}

/// A number from the environment, for longer runs by hand.
#[expect(
    clippy::disallowed_methods,
    reason = "how long a test runs is no setting of the agent"
)]
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn agent_id(plane: &Plane) -> String {
    let registration = plane.until(SOON, |view| view.registrations.front().cloned());
    let registration = registration.expect("a registration");
    registration["agent_id"].as_str().unwrap().to_owned()
}

fn minutes_in(plane: &Plane) -> usize {
    let count = |view: &View<'_>| {
        let sources = view.records.sources.iter();
        let metrics = sources.filter(|(source, _)| source.stream == "metrics");
        metrics.map(|(_, received)| received.records.len()).sum()
    };
    plane.look(count).unwrap_or_default()
}

fn batches(plane: &Plane) -> u64 {
    plane
        .look(|view| view.records.sources.values().map(|one| one.batches).sum())
        .unwrap_or_default()
}

/// Returns whether all of it was delivered. Looked at where it lies: it may be a month.
fn is_in(plane: &Plane, source: &Source) -> bool {
    let counts = source.counts();
    plane
        .look(move |view| are_in(&counts, view.records))
        .unwrap_or_default()
}

/// Waits until the sessions that are there now are gone.
fn until_cut(plane: &Plane) {
    let newest = plane.sessions().iter().map(|session| session.number).max();
    let gone = plane.until(LIMIT, move |view| {
        let is_there = view
            .sessions
            .iter()
            .any(|session| Some(session.number) <= newest);
        (!is_there).then_some(())
    });
    gone.expect("the session ends");
}

/// Waits until something more was delivered, or all of it.
fn until_more(plane: &Plane, source: &Source) {
    let before = batches(plane);
    until("a batch", LIMIT, || {
        let is_more = batches(plane) > before;
        (is_more || is_in(plane, source)).then_some(())
    });
}

/// One fault between the agent and what it delivers to.
fn spoil(plane: &mut Plane, source: &Source, kind: u32) {
    let bad = match kind {
        0 => return plane.cut(Sessions::All, Cut::Reset),
        1 => {
            plane.kill();
            return plane.start_again().unwrap();
        }
        2 => Acknowledging::CutAfter,
        3 => Acknowledging::CutBefore,
        _ => Acknowledging::Never,
    };
    plane.set(|behaviour| behaviour.acknowledging = bad);
    if bad == Acknowledging::Never {
        until_more(plane, source);
        plane.cut(Sessions::All, Cut::Fin);
    } else if !is_in(plane, source) {
        until_cut(plane);
    }
}

#[test]
fn what_is_on_disk_arrives_once_whatever_happens_on_the_way() {
    let faults = setting("PIPEOPS_TEST_FAULTS", 16);
    let minutes = setting("PIPEOPS_TEST_MINUTES", 600);
    let mut plane = plane_with(|behaviour| {
        behaviour.acknowledging = SLOW;
        behaviour.batch_bytes_max = Some(8 * 1024);
    });
    let mut agent = Agent::new(&plane);
    let source = Source::write(&agent.folder().join("state"), minutes);
    agent.start();
    agent.until_linked();
    let agent_id = agent_id(&plane);
    let mut random = fastrand::Rng::with_seed(7);
    for fault in 0..faults {
        until_more(&plane, &source);
        // The agent waits longer after each session that was short; a start begins anew.
        if fault % 4 == 3 {
            agent.kill();
            agent.start();
        } else {
            spoil(&mut plane, &source, random.u32(0..5));
            let good = [SLOW, Acknowledging::Halves][random.usize(0..2)];
            plane.set(|behaviour| behaviour.acknowledging = good);
        }
    }
    plane.set(|behaviour| behaviour.acknowledging = Acknowledging::Prompt);
    until("all of it arrives", LIMIT, || {
        is_in(&plane, &source).then_some(())
    });
    let records = plane.records();
    source.check(&records, &agent_id);
    let sum = |of: fn(&ReceivedRecords) -> u64| records.sources.values().map(of).sum::<u64>();
    let (all, again) = (sum(|one| one.batches), sum(|one| one.duplicates));
    eprintln!("{faults} faults: {all} batches, {again} records came again");
    assert!(again > 0, "no fault hit a batch");
    assert_eq!(plane.violations(), Vec::<String>::new());
    // What was acknowledged is on disk after an orderly stop, and is not sent again.
    agent.stop();
    let before = sum(|one| one.duplicates);
    agent.start();
    agent.until_linked();
    plane.ping(Some("after-all"));
    plane
        .wait_for(0, SOON, |frame| {
            frame.is_from_agent("pong") && frame.id == "after-all"
        })
        .expect("a pong");
    let records = plane.records();
    let again: u64 = records.sources.values().map(|one| one.duplicates).sum();
    assert_eq!(again, before);
}

#[test]
fn a_control_plane_that_knows_no_records_gets_none() {
    let changes: [fn(&mut Behaviour); 3] = [
        |behaviour| behaviour.streams = Streams::Off,
        |behaviour| behaviour.takes = Vec::new(),
        |behaviour| behaviour.batch_bytes_max = Some(1000),
    ];
    for change in changes {
        let plane = plane_with(change);
        let mut agent = Agent::new(&plane);
        Source::write(&agent.folder().join("state"), 2);
        agent.start();
        agent.until_linked();
        let mark = plane.mark();
        plane.ping(Some("p"));
        plane
            .wait_for(mark, SOON, |frame| frame.is_from_agent("pong"))
            .expect("a pong");
        let is_record = |kind: &str| matches!(kind, "edge_batch" | "edge_gap");
        let frames = plane.frames();
        let from_agent = frames
            .iter()
            .filter(|frame| frame.direction == Direction::FromAgent);
        let sent: Vec<_> = from_agent.filter(|frame| is_record(&frame.kind)).collect();
        assert!(sent.is_empty(), "{sent:?}");
        assert!(plane.records().sources.is_empty());
        assert_eq!(plane.violations(), Vec::<String>::new());
    }
}

#[test]
fn a_receiver_that_lies_is_told_of_and_loses_nothing() {
    let mut plane = plane_with(|behaviour| behaviour.acknowledging = Acknowledging::Garbage);
    let mut agent = Agent::new(&plane);
    let source = Source::write(&agent.folder().join("state"), 3);
    agent.start();
    agent.until_linked();
    agent.until_condition("delivery.ignored", LIMIT);
    for lie in [
        Acknowledging::WrongRange,
        Acknowledging::Future,
        Acknowledging::OtherEpoch,
    ] {
        plane.set(|behaviour| behaviour.acknowledging = lie);
        // Each stream has a batch under way that waits for an honest word: a new session sends them
        // again at once.
        plane.cut(Sessions::All, Cut::Fin);
        until_cut(&plane);
        until_more(&plane, &source);
    }
    let numbers = |plane: &Plane| -> Vec<_> {
        plane
            .sessions()
            .iter()
            .map(|session| session.number)
            .collect()
    };
    let session = numbers(&plane);
    for payload in [
        json!(null),
        json!([]),
        json!({"stream": "metrics", "epoch": 12_345, "from": 1, "to": 9_007_199_254_740_991_u64}),
        json!({"stream": "metrics", "epoch": 12_345, "from": 0, "to": 0}),
        json!({"stream": ["metrics"], "epoch": {}, "from": "1", "to": true}),
    ] {
        for _ in 0..100 {
            plane.send("edge_ack", None, payload.clone());
        }
    }
    plane.send("edge_batch", None, json!({"stream": "metrics"}));
    plane.ping(Some("still-there"));
    plane
        .wait_for(0, SOON, |frame| {
            frame.is_from_agent("pong") && frame.id == "still-there"
        })
        .expect("a pong");
    assert_eq!(numbers(&plane), session, "nothing of it ends a session");
    plane.set(|behaviour| behaviour.acknowledging = Acknowledging::Prompt);
    plane.cut(Sessions::All, Cut::Fin);
    until("all of it arrives", LIMIT, || {
        is_in(&plane, &source).then_some(())
    });
    source.check(&plane.records(), &agent_id(&plane));
    agent.until("the condition ends", SOON, |status| {
        let conditions = status["conditions"].as_array()?;
        let is_there = |id: &str| conditions.iter().any(|one| one["id"] == id);
        (!is_there("delivery.ignored")).then_some(())
    });
    assert_eq!(plane.violations(), Vec::<String>::new());
}

/// The batches among the frames between a ping and its pong. One may be on its way already; the
/// next one goes when that is acknowledged, which the agent reads after the ping. Only where no
/// acknowledgement comes at all it goes on by itself, after a second: such a batch is not counted.
fn batches_on_their_own(between: &[&Frame]) -> usize {
    let (mut count, mut is_acknowledged) = (0, true);
    for frame in between {
        if frame.is_from_agent("edge_batch") {
            count += usize::from(count == 0 || is_acknowledged);
            is_acknowledged = false;
        }
        is_acknowledged |= frame.direction == Direction::ToAgent && frame.kind == "edge_ack";
    }
    count
}

#[test]
fn a_backlog_lets_everything_else_pass() {
    let minutes = setting("PIPEOPS_TEST_MINUTES", 1_500);
    let mut plane = plane_with(|behaviour| behaviour.acknowledging = SLOW);
    let mut agent = Agent::new(&plane);
    let source = Source::write(&agent.folder().join("state"), minutes);
    agent.start();
    agent.until_linked();
    // 8 Mbit/s.
    plane.cut(Sessions::All, Cut::Slow(1_000_000));
    let (mut waits, mut meetings) = (Vec::new(), 0);
    while !is_in(&plane, &source) && waits.len() < 300 {
        let id = format!("ping-{}", waits.len());
        let mark = plane.mark();
        plane.ping(Some(&id));
        let pong = plane
            .wait_for(mark, LIMIT, move |frame| {
                frame.is_from_agent("pong") && frame.id == id
            })
            .expect("a pong");
        let frames = plane.frames();
        let since = |frame: &&Frame| frame.number >= mark && frame.number < pong.number;
        let since: Vec<&Frame> = frames.iter().filter(since).collect();
        let batches = batches_on_their_own(&since);
        assert!(
            batches <= 1,
            "{batches} batches went before an answer: {since:?}"
        );
        meetings += usize::from(batches > 0);
        let sent = since.iter().find(|frame| frame.kind == "ping");
        waits.push(pong.at.saturating_sub(sent.unwrap().at));
    }
    waits.sort();
    // How long that is depends on the machine: `make bench` has a goal for it.
    let (middle, most) = (waits[waits.len() / 2], waits[waits.len() - 1]);
    eprintln!(
        "{} answers, {meetings} of them behind a batch: {middle:?} in the middle, {most:?} at most",
        waits.len()
    );
    assert!(meetings > 0, "no answer met a batch");
    plane.cut(Sessions::All, Cut::Heal);
    plane.set(|behaviour| behaviour.acknowledging = Acknowledging::Prompt);
    let (before, began) = (minutes_in(&plane), clock());
    until("all of it arrives", LIMIT, || {
        is_in(&plane, &source).then_some(())
    });
    let (minutes, took) = (minutes_in(&plane) - before, clock() - began);
    eprintln!("without a limit the other {minutes} minutes took {took:?}, with all other streams");
    assert_eq!(plane.violations(), Vec::<String>::new());
}
