use std::{
    cell::RefCell,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use smol::future::{block_on, pending};

use super::*;
use crate::core::time::Now;

const SOON: Duration = Duration::from_secs(10);

fn sampler(read: fn(Option<u64>) -> Reading) -> Sampler {
    Sampler::new(SamplerOptions {
        every: Duration::from_millis(20),
        is_believed: Box::new(|wall| wall > Wall::from_millis(1000)),
        shared_state: Rc::new(SharedState::new(clock::now)),
        read,
        timeout: TIMEOUT,
    })
}

/// Runs a sampler until `done`, which has to be soon.
fn run(sampler: &Sampler, keep: impl AsyncFnMut(Tick), done: impl Future<Output = ()>) {
    let late = async {
        Timer::after(SOON).await;
        panic!("not within {SOON:?}");
    };
    block_on(sampler.run(keep).or(done).or(late));
}

fn sentence(sampler: &Sampler, id: &str) -> Option<String> {
    let conditions = |list: &crate::core::health::Conditions| Some(list.get(id)?.sentence.clone());
    sampler.options.shared_state.with_conditions(conditions)
}

/// Waits for a level that the sampler brings about.
async fn until<T>(mut level: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = level() {
            return found;
        }
        Timer::after(Duration::from_millis(5)).await;
    }
}

#[test]
fn its_own_memory_is_not_added_up_for_each_sample() {
    static ADDED_UP: AtomicU64 = AtomicU64::new(0);
    fn read(pss: Option<u64>) -> Reading {
        let add_up = || 100 + ADDED_UP.fetch_add(1, Ordering::SeqCst);
        let mut reading = Reading::default();
        reading.own.pss = Some(pss.unwrap_or_else(add_up));
        reading
    }
    let kept = RefCell::new(Vec::new());
    let keep = async |tick: Tick| {
        let mut points = tick.points.iter();
        let point = points.find(|point| point.series.key.name() == "agent_memory_pss_bytes");
        kept.borrow_mut().push(point.unwrap().value);
    };
    let four = until(|| (kept.borrow().len() >= 4).then_some(()));
    run(&sampler(read), keep, four);
    assert!(kept.take().iter().all(|value| *value == 100));
}

#[test]
fn each_interval_gives_a_sample_of_what_was_read() {
    static READ: AtomicU64 = AtomicU64::new(0);
    fn read(_: Option<u64>) -> Reading {
        let count = READ.fetch_add(1, Ordering::SeqCst);
        Reading {
            at: Now {
                mono: Mono::since_boot(Duration::from_secs(100 + 15 * count)),
                wall: Wall::from_millis(i64::try_from(count * 2000).unwrap()),
            },
            awake: Duration::from_secs(100 + 15 * count),
            uptime_s: Some(count),
            oom_kills: Some(count * count),
            ..Reading::default()
        }
    }
    let ticks = RefCell::new(Vec::new());
    let keep = async |tick| ticks.borrow_mut().push(tick);
    let three = until(|| (ticks.borrow().len() == 3).then_some(()));
    run(&sampler(read), keep, three);
    let ticks: Vec<_> = ticks
        .take()
        .into_iter()
        .map(|tick: Tick| {
            let value = |name: &str| {
                let mut points = tick.points.iter();
                let point = points.find(|point| point.series.key.name() == name)?;
                Some(point.value)
            };
            let values = (value("host_uptime_seconds"), value("host_oom_kills"));
            (tick.at.wall.millis(), tick.clock_is_set, values)
        })
        .collect();
    assert_eq!(
        ticks,
        [
            // The first has no rates, and its clock is that of a board without a battery.
            (0, false, (Some(0), None)),
            (2000, true, (Some(1), Some(1))),
            (4000, true, (Some(2), Some(3))),
        ]
    );
}

#[test]
fn who_asks_gets_a_fresh_reading_that_is_no_sample() {
    let sampler = Sampler {
        options: SamplerOptions {
            every: Duration::from_secs(3600),
            ..sampler(sample::read).options
        },
        ..sampler(sample::read)
    };
    let ticks = RefCell::new(0);
    let asked = async {
        let one = sampler.reading().await.unwrap();
        let two = sampler.reading().await.unwrap();
        assert!(one.memory.total.is_some());
        // Within a second it is the same one; on a machine that is slow, another.
        assert!(Rc::ptr_eq(&one, &two) || two.at.mono.since(one.at.mono) >= FRESH);
        let now = sampler.options.shared_state.now().mono;
        clock::until(now.after(FRESH)).await;
        assert!(sampler.reading().await.unwrap().at.mono > two.at.mono);
    };
    run(&sampler, async |_| *ticks.borrow_mut() += 1, asked);
    assert_eq!(ticks.take(), 1);
}

#[test]
fn what_cannot_be_read_is_one_condition_until_it_can() {
    static READ: AtomicU64 = AtomicU64::new(0);
    fn read(_: Option<u64>) -> Reading {
        let unread = if READ.fetch_add(1, Ordering::SeqCst) < 3 {
            vec![("disks", "gone".to_owned()), ("pressure", "off".to_owned())]
        } else {
            Vec::new()
        };
        Reading {
            unread: unread.into_iter().collect(),
            ..Reading::default()
        }
    }
    let sampler = sampler(read);
    let gone = async {
        let reported = until(|| sentence(&sampler, UNREAD)).await;
        assert_eq!(
            reported,
            "not measured on this machine: disks (gone), pressure (off)"
        );
        until(|| sentence(&sampler, UNREAD).is_none().then_some(())).await;
    };
    run(&sampler, async |_| {}, gone);
}

#[test]
fn a_kernel_that_does_not_answer_is_said_and_holds_nobody_else() {
    static GATE: OnceLock<Receiver<()>> = OnceLock::new();
    fn read(_: Option<u64>) -> Reading {
        // An error, once the gate is open for good.
        GATE.get().unwrap().recv_blocking().ok();
        Reading::default()
    }
    let (holds, gate) = bounded(1);
    GATE.set(gate).unwrap();
    let mut sampler = sampler(read);
    sampler.options.timeout = Duration::from_millis(20);
    let held = async {
        until(|| sentence(&sampler, STUCK)).await;
        // Whoever asks meanwhile is told so, in time.
        assert!(sampler.reading().await.is_none());
        drop(holds);
        until(|| sentence(&sampler, STUCK).is_none().then_some(())).await;
    };
    run(&sampler, async |_| {}, held);
}

#[test]
fn more_askers_than_there_is_room_for_are_sent_away_at_once() {
    let sampler = sampler(sample::read);
    let asked: Vec<_> = (0..ASKING_MAX)
        .map(|_| {
            let (answer, answered) = bounded(1);
            sampler.ask.try_send(answer).unwrap();
            answered
        })
        .collect();
    // Nobody samples: it would wait for ever.
    assert!(block_on(sampler.reading().or(pending())).is_none());
    drop(asked);
}

#[test]
fn samples_keep_their_distance_and_missed_ones_are_not_made_up_for() {
    let at = |seconds| Mono::since_boot(Duration::from_secs(seconds));
    let every = Duration::from_secs(15);
    assert_eq!(following(at(100), every, at(103)), at(115));
    assert_eq!(following(at(100), every, at(115)), at(130));
    // It slept for an hour.
    assert_eq!(following(at(100), every, at(3700)), at(3715));
}
