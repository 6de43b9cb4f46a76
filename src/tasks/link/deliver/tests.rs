use super::*;
use crate::{
    core::{
        outbox::{Body, Gap, Loss, Row},
        time::Wall,
    },
    executor::Executor,
    host::clock,
    link::outlet::Frame,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;
use smol::{block_on, future::poll_fn};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
};

const EPOCH: u64 = 77;

#[derive(Debug, Default)]
struct Shelf {
    rows: BTreeMap<u64, String>,
    last: u64,
    gaps: Vec<Gap>,
    settled: Cursor,
    is_broken: bool,
}

/// Rows of one stream, in memory.
#[derive(Clone, Debug, Default)]
struct Memory(Rc<RefCell<Shelf>>);

impl RecordStore for Memory {
    async fn position(&self, _: Stream) -> Result<(u64, Cursor), Failure> {
        Ok((EPOCH, self.0.borrow().settled.clone()))
    }

    async fn holdings(&self, _of: Stream) -> Result<StreamState, Failure> {
        let kept = self.0.borrow();
        if kept.is_broken {
            return Err(Failure::Busy);
        }
        Ok(StreamState {
            epoch: EPOCH,
            last: kept.last,
            gaps: kept.gaps.clone(),
        })
    }

    async fn read(&self, _of: Stream, range: Range, bytes_max: usize) -> Result<Batch, Failure> {
        let kept = self.0.borrow();
        let mut rows: Vec<Row> = Vec::new();
        let mut bytes = 0;
        for (sequence, body) in kept.rows.range(range.from()..=range.to()) {
            bytes += body.len();
            if bytes > bytes_max && !rows.is_empty() {
                break;
            }
            rows.push(Row {
                sequence: *sequence,
                at: Wall::from_millis(0),
                body: body.clone(),
            });
        }
        Ok(Batch {
            range: Range::new(range.from(), rows.last().unwrap().sequence).unwrap(),
            body: Body::Rows(rows),
        })
    }

    async fn settle(&self, _: Stream, (epoch, cursor): (u64, Cursor)) -> Result<(), Failure> {
        assert_eq!(epoch, EPOCH);
        self.0.borrow_mut().settled = cursor;
        Ok(())
    }
}

struct Bench {
    executor: Rc<Executor>,
    store: Memory,
    shared_state: Rc<SharedState>,
    delivery: Delivery,
    outlet: Outlet,
    seen: BTreeSet<u64>,
}

impl Bench {
    fn new(bodies: impl IntoIterator<Item = String>) -> Self {
        let rows: BTreeMap<u64, String> = (1..).zip(bodies).collect();
        let store = Memory::default();
        store.0.borrow_mut().last = rows.keys().last().copied().unwrap_or(0);
        store.0.borrow_mut().rows = rows;
        let executor = Rc::new(Executor::new());
        let shared_state = Rc::new(SharedState::new(clock::now));
        let delivery = Delivery::new(
            store.clone(),
            || "agent-1".to_owned(),
            Rc::clone(&shared_state),
            Rc::clone(&executor),
        );
        let mut bench = Self {
            executor,
            store,
            shared_state,
            delivery,
            outlet: Outlet::new(),
            seen: BTreeSet::new(),
        };
        bench.link();
        bench
    }

    /// A new session that takes events.
    fn link(&mut self) {
        self.link_for(vec![Stream::Events]);
    }

    fn link_for(&mut self, streams: Vec<Stream>) {
        self.outlet = Outlet::new();
        let hello = EdgeHello {
            version: 1,
            streams,
            batch_bytes_max: Some(32 * 1024),
        };
        self.delivery.begin(&hello, &self.outlet);
    }

    /// The next message, once it is time for it.
    fn awaited(&self) -> Value {
        let outlet = self.outlet.clone();
        let first = self
            .executor
            .run(poll_fn(|context| outlet.poll_next(context)));
        let Some(Frame::Text(text)) = block_on(first) else {
            panic!("no message")
        };
        serde_json::from_str(&text).unwrap()
    }

    /// The next message; `None` where none comes while there is anything to do.
    fn next(&self) -> Option<Value> {
        while self.executor.try_tick() {}
        let taken = smol::future::poll_once(poll_fn(|context| self.outlet.poll_next(context)));
        let frame = block_on(taken).flatten()?;
        while self.executor.try_tick() {}
        let Frame::Text(text) = frame else {
            panic!("{frame:?}")
        };
        assert!(text.len() <= 32 * 1024, "{} bytes", text.len());
        let message: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(message["payload"]["agent_id"], "agent-1");
        assert_eq!(message["payload"]["epoch"], EPOCH);
        Some(message)
    }

    fn say(&self, epoch: u64, from: u64, to: u64) {
        let said = Acknowledgement { epoch, from, to };
        self.delivery.acknowledged(Some((Stream::Events, said)));
        while self.executor.try_tick() {}
    }

    /// Acknowledges a message.
    fn acknowledge(&mut self, message: &Value) -> (u64, u64) {
        let number = |name: &str| message["payload"][name].as_u64().unwrap();
        let (from, to) = (number("from"), number("to"));
        for sequence in from..=to {
            assert!(self.seen.insert(sequence), "{sequence} came twice");
        }
        self.say(EPOCH, from, to);
        (from, to)
    }

    fn take_all(&mut self) -> Vec<(u64, u64)> {
        let mut taken = Vec::new();
        while let Some(message) = self.next() {
            taken.push(self.acknowledge(&message));
        }
        taken
    }

    fn conditions(&self) -> Vec<&'static str> {
        self.shared_state.with_conditions(|known| {
            known
                .worst_first()
                .iter()
                .map(|condition| condition.id)
                .collect()
        })
    }
}

fn noise(length: usize, seed: usize) -> String {
    let mut random = fastrand::Rng::with_seed(u64::try_from(seed).unwrap());
    let text: String = (0..length).map(|_| random.alphanumeric()).collect();
    format!(r#"{{"text":"{text}"}}"#)
}

#[test]
fn the_newest_record_goes_first_and_all_arrive_once_in_full_messages() {
    let mut bench = Bench::new((0..3_000).map(|seed| noise(100, seed)));
    let taken = bench.take_all();
    assert_eq!(taken[..2], [(3_000, 3_000), (1, taken[1].1)]);
    assert_eq!(bench.seen.len(), 3_000);
    // 300 KB of noise, which base64 makes a third longer and deflate a quarter shorter.
    assert!(taken.len() < 20, "{} messages", taken.len());
    let settled = bench.store.0.borrow().settled.clone();
    assert_eq!(settled.floor(), 3_001);
    bench.store.0.borrow_mut().rows.insert(3_001, noise(1, 1));
    bench.store.0.borrow_mut().last = 3_001;
    assert_eq!(bench.take_all(), [], "nobody said that there is more");
    bench.delivery.look();
    assert_eq!(bench.take_all(), [(3_001, 3_001)]);
}

#[test]
fn batches_of_two_streams_are_not_under_way_together() {
    let mut bench = Bench::new((0..2).map(|seed| noise(9, seed)));
    bench.link_for(vec![Stream::Events, Stream::Logs]);
    let first = bench.next().unwrap();
    assert_eq!(first["payload"]["stream"], "events");
    assert_eq!(bench.next(), None, "the first may still be in the network");
    bench.say(EPOCH, 2, 2);
    let older = bench.next().unwrap();
    assert_eq!(older["payload"]["stream"], "events");
    // A second later it may not, whether it was acknowledged or not.
    let other = bench.awaited();
    assert_eq!(other["payload"]["stream"], "logs");
}

#[test]
fn a_record_that_fits_no_message_comes_in_pieces() {
    let large = noise(200_000, 1);
    let mut bench = Bench::new([noise(9, 2), large.clone(), noise(9, 3)]);
    let first = bench.next().unwrap();
    assert_eq!(bench.acknowledge(&first), (3, 3));
    let small = bench.next().unwrap();
    assert_eq!(bench.acknowledge(&small), (1, 1));
    let mut data = Vec::new();
    let parts = loop {
        let piece = bench.awaited()["payload"].clone();
        assert_eq!(
            (piece["from"].as_u64(), piece["to"].as_u64()),
            (Some(2), Some(2))
        );
        data.extend(STANDARD.decode(piece["data"].as_str().unwrap()).unwrap());
        if piece["part"] == piece["parts"] {
            break piece["parts"].as_u64().unwrap();
        }
    };
    assert!(parts > 5);
    let mut text = String::new();
    flate2::bufread::DeflateDecoder::new(&data[..])
        .read_to_string(&mut text)
        .unwrap();
    assert!(text.contains(&large));
    bench.say(EPOCH, 2, 2);
    assert_eq!(bench.next(), None);
    assert_eq!(bench.store.0.borrow().settled.floor(), 4);
}

#[test]
fn what_is_gone_is_told_in_its_place() {
    let mut bench = Bench::new((0..9).map(|seed| noise(9, seed)));
    bench
        .store
        .0
        .borrow_mut()
        .rows
        .retain(|sequence, _| *sequence > 4);
    bench.store.0.borrow_mut().gaps = vec![Gap {
        range: Range::new(1, 4).unwrap(),
        loss: Loss::Budget,
    }];
    let newest = bench.next().unwrap();
    bench.acknowledge(&newest);
    let gap = bench.next().unwrap();
    assert_eq!(gap["type"], "edge_gap");
    assert_eq!(gap["payload"]["reason"], "disk budget");
    assert_eq!(bench.acknowledge(&gap), (1, 4));
    assert_eq!(bench.take_all(), [(5, 8)]);
}

#[test]
fn nonsense_is_ignored_is_a_condition_and_ends_nothing() {
    let mut bench = Bench::new((0..9).map(|seed| noise(9, seed)));
    let newest = bench.next().unwrap();
    for _ in 0..IGNORED_MAX {
        assert_eq!(bench.next(), None, "one is under way");
        assert_eq!(bench.conditions(), [""; 0]);
        bench.say(EPOCH + 1, 9, 9);
    }
    assert_eq!(bench.conditions(), [IGNORED]);
    for _ in 0..1000 {
        bench.delivery.acknowledged(None);
        let said = Acknowledgement {
            epoch: EPOCH,
            from: 1,
            to: 1,
        };
        for stream in Stream::ALL {
            bench.delivery.acknowledged(Some((stream, said)));
        }
    }
    while bench.executor.try_tick() {}
    bench.acknowledge(&newest);
    assert_eq!(bench.conditions(), [""; 0]);
    assert_eq!(bench.take_all(), [(1, 8)]);
    assert!(!bench.outlet.is_lost());
}

#[test]
fn a_new_session_goes_on_behind_what_was_acknowledged() {
    let mut bench = Bench::new((0..9).map(|seed| noise(9, seed)));
    let newest = bench.next().unwrap();
    bench.acknowledge(&newest);
    for _ in 0..=IN_VAIN_MAX {
        assert_eq!(bench.conditions(), [""; 0]);
        let unanswered = bench.next().unwrap();
        assert_eq!(unanswered["payload"]["to"], 8);
        bench.outlet.lose();
        bench.delivery.session_lost();
        bench.say(EPOCH, 1, 8);
        bench.link();
    }
    assert_eq!(bench.conditions(), [IN_VAIN]);
    assert_eq!(bench.take_all(), [(1, 8)]);
    assert_eq!(bench.conditions(), [""; 0]);
}

#[test]
fn a_disk_that_does_not_answer_is_asked_again_later() {
    let mut bench = Bench::new((0..2).map(|seed| noise(9, seed)));
    bench.store.0.borrow_mut().is_broken = true;
    assert_eq!(bench.next(), None);
    bench.store.0.borrow_mut().is_broken = false;
    bench.delivery.look();
    assert_eq!(bench.next(), None, "not at once");
    let newest = bench.awaited();
    assert_eq!(bench.acknowledge(&newest), (2, 2));
    assert_eq!(bench.take_all(), [(1, 1)]);
}

#[test]
fn who_takes_no_streams_gets_nothing() {
    let mut bench = Bench::new([noise(9, 1)]);
    assert!(bench.next().is_some());
    for (streams, batch_bytes_max) in [(vec![], Some(32_768)), (vec![Stream::Events], None)] {
        let hello = EdgeHello {
            version: 1,
            streams,
            batch_bytes_max,
        };
        bench.outlet = Outlet::new();
        bench.delivery.begin(&hello, &bench.outlet);
        assert_eq!(bench.next(), None);
        assert_eq!(bench.outlet.load(), (0, 0));
    }
    bench.seen.clear();
}
