//! Records on their way into the plane: checked, put together, kept, acknowledged; or spoilt, where
//! a test wants that.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smol::Timer;

use crate::clock;
use crate::net::{Ending, Flow};
use crate::options::Acknowledging;
use crate::records::{Record, Records, Source};
use crate::session::Session;
use crate::shape;
use crate::unpack;
use crate::world::World;

/// 32 KiB: the largest message with records.
const MESSAGE_BYTES_MAX: u64 = 32 * 1024;

/// 25 s: an agent waits 30 s for an acknowledgement before it sends records again. What comes
/// sooner was sent beside others.
const FLIGHT: Duration = Duration::from_secs(25);

/// A gap is kept record by record, as everything else. Twenty years of minutes are fewer.
const GAP_RECORDS_MAX: u64 = 10_000_000;

/// The records of one session.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    takes: RefCell<Vec<&'static str>>,
    bytes_max: Cell<Option<u64>>,
    /// Pieces of batches that are not whole yet, by their stream.
    pieces: RefCell<BTreeMap<String, Pieces>>,
    /// Since when a batch waits for its acknowledgement, by its stream.
    waiting: RefCell<BTreeMap<String, Instant>>,
}

#[derive(Debug)]
struct Pieces {
    about: About,
    parts: u64,
    next: u64,
    data: Vec<u8>,
}

/// Which records a message is about.
#[derive(Clone, Debug, PartialEq, Eq)]
struct About {
    source: Source,
    from: u64,
    to: u64,
}

impl About {
    /// 2^53: up to here numbers of JSON are exact everywhere.
    const NUMBER_MAX: u64 = 1 << 53;

    fn of(payload: &Value) -> Result<Self, String> {
        let number = |name: &str| {
            let number = payload.get(name).and_then(Value::as_u64);
            number
                .filter(|number| *number < Self::NUMBER_MAX)
                .ok_or_else(|| format!("{name} is no number below 2^53"))
        };
        let text = |name: &str| {
            let text = payload.get(name).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let about = Self {
            source: Source {
                agent_id: text("agent_id"),
                stream: text("stream"),
                epoch: number("epoch")?,
            },
            from: number("from")?,
            to: number("to")?,
        };
        if about.from == 0 || about.from > about.to {
            return Err(format!("{}..={} is no range", about.from, about.to));
        }
        Ok(about)
    }
}

impl Intake {
    /// The plane offers to take these streams.
    pub(crate) fn begin(&self, takes: Vec<&'static str>, bytes_max: Option<u64>) {
        self.takes.replace(takes);
        self.bytes_max.set(bytes_max);
    }

    /// Puts the pieces of a batch together; gives its data once it is whole.
    fn piece(&self, about: &About, payload: &Value) -> Result<Option<Vec<u8>>, String> {
        let data = payload.get("data").and_then(Value::as_str);
        let data = shape::base64(data.unwrap_or_default())?.to_vec();
        let number = |name| payload.get(name).and_then(Value::as_u64);
        let (part, parts) = match (number("part"), number("parts")) {
            (None, None) => return Ok(Some(data)),
            (Some(part), Some(parts)) if 1 <= part && part <= parts && parts >= 2 => (part, parts),
            other => return Err(format!("part and parts are {other:?}")),
        };
        if about.from != about.to {
            return Err("more than one record in more than one message".to_owned());
        }
        let mut all = self.pieces.borrow_mut();
        let stream = about.source.stream.clone();
        if part == 1 {
            let pieces = Pieces {
                about: about.clone(),
                parts,
                next: 1,
                data: Vec::new(),
            };
            all.insert(stream.clone(), pieces);
        }
        let fitting = all.get_mut(&stream).filter(|pieces| {
            pieces.about == *about && pieces.parts == parts && pieces.next == part
        });
        let Some(pieces) = fitting else {
            all.remove(&stream);
            return Err(format!("part {part} of {parts} follows no part before it"));
        };
        pieces.data.extend(data);
        pieces.next += 1;
        if part < parts {
            return Ok(None);
        }
        Ok(all.remove(&stream).map(|pieces| pieces.data))
    }
}

/// Looks at the size of a message.
pub(crate) fn weigh(world: &World, session: &Session, kind: &str, bytes: usize) {
    let limit = session.edge.intake.bytes_max.get().unwrap_or(u64::MAX);
    let limit = limit.min(MESSAGE_BYTES_MAX);
    let is_records = matches!(kind, "edge_batch" | "edge_gap");
    if is_records && u64::try_from(bytes).is_ok_and(|bytes| bytes > limit) {
        violation(
            world,
            session,
            format!("{kind} of {bytes} bytes, above {limit}"),
        );
    }
}

fn violation(world: &World, session: &Session, what: impl Into<String>) {
    world.record.violation(session.number, what);
}

/// Takes `edge_batch`.
pub(crate) fn take(world: &Rc<World>, session: &Rc<Session>, payload: &Value) {
    let read = || {
        let about = About::of(payload)?;
        let Some(data) = session.edge.intake.piece(&about, payload)? else {
            return Ok(None);
        };
        let records = records(&about, payload, &data)?;
        Ok(Some((about, records)))
    };
    match read() {
        Ok(Some((about, records))) => keep(world, session, &about, records),
        Ok(None) => {}
        Err(wrong) => {
            let wrong: String = wrong;
            violation(world, session, format!("edge_batch: {wrong}"));
        }
    }
}

/// Takes `edge_gap`.
pub(crate) fn take_gap(world: &Rc<World>, session: &Rc<Session>, payload: &Value) {
    match About::of(payload) {
        Ok(about) if about.to - about.from > GAP_RECORDS_MAX => {
            let what = format!("edge_gap of {}..={}", about.from, about.to);
            violation(world, session, what);
        }
        Ok(about) => {
            let reason = payload.get("reason").and_then(Value::as_str);
            let gap = Record::Gap {
                reason: reason.unwrap_or_default().to_owned(),
            };
            let gaps = (about.from..=about.to).map(|sequence| (sequence, gap.clone()));
            keep(world, session, &about, gaps.collect());
        }
        Err(wrong) => violation(world, session, format!("edge_gap: {wrong}")),
    }
}

/// The records of a batch: one for each sequence of its range.
fn records(about: &About, payload: &Value, data: &[u8]) -> Result<Vec<(u64, Record)>, String> {
    let is_metrics = about.source.stream == "metrics";
    match payload.get("encoding").and_then(Value::as_str) {
        Some("samples+deflate") if is_metrics => {
            Records::minutes((about.from, about.to), &unpack::samples(data)?)
        }
        Some("rows+deflate") if !is_metrics => {
            let rows = unpack::rows(data)?;
            let sequences = rows.iter().map(|row| row.sequence);
            if !sequences.eq(about.from..=about.to) {
                return Err(format!("the rows are not {}..={}", about.from, about.to));
            }
            rows.into_iter()
                .map(|row| {
                    let body = serde_json::from_str(row.body.get())
                        .map_err(|error| format!("row {}: {error}", row.sequence))?;
                    Ok((row.sequence, Record::Row { at: row.at, body }))
                })
                .collect()
        }
        other => Err(format!(
            "records of {} in the encoding {other:?}",
            about.source.stream
        )),
    }
}

fn keep(world: &Rc<World>, session: &Rc<Session>, about: &About, records: Vec<(u64, Record)>) {
    let intake = &session.edge.intake;
    let stream = &about.source.stream;
    if !intake.takes.borrow().contains(&stream.as_str()) {
        let what = format!("records of {stream}, which was not offered to be taken");
        return violation(world, session, what);
    }
    let before = intake
        .waiting
        .borrow_mut()
        .insert(stream.clone(), clock::now());
    if before.is_some_and(|before| clock::now().saturating_duration_since(before) < FLIGHT) {
        let what = format!("a second batch of {stream} before the acknowledgement of the first");
        violation(world, session, what);
    }
    let acknowledging = world.behaviour(|behaviour| behaviour.acknowledging);
    if acknowledging == Acknowledging::CutBefore {
        return session.gate.set(Flow::Cut(Ending::Reset));
    }
    let dir = world.options.state_dir.clone();
    let taken = world
        .records
        .borrow_mut()
        .take(&about.source, records, dir.as_deref());
    world.record.bell.ring();
    match taken {
        Ok(wrong) => {
            for wrong in wrong {
                violation(world, session, wrong);
            }
            answer(world, session, about, acknowledging);
        }
        // What is not on disk is not acknowledged.
        Err(error) => log::error!("{error}"),
    }
}

fn answer(world: &Rc<World>, session: &Rc<Session>, about: &About, acknowledging: Acknowledging) {
    let About { source, from, to } = about.clone();
    let epoch = source.epoch;
    match acknowledging {
        Acknowledging::Prompt => acknowledge(world, session, about, (from, to)),
        Acknowledging::After(wait) => {
            let (later, session, about) = (Rc::clone(world), Rc::clone(session), about.clone());
            world.tasks.spawn(async move {
                Timer::after(wait).await;
                acknowledge(&later, &session, &about, (from, to));
            });
        }
        Acknowledging::Halves => {
            let middle = from + (to - from) / 2;
            if middle < to {
                acknowledge(world, session, about, (middle + 1, to));
            }
            acknowledge(world, session, about, (from, middle));
        }
        Acknowledging::Never => {}
        Acknowledging::CutAfter | Acknowledging::CutBefore => {
            session.gate.set(Flow::Cut(Ending::Reset));
        }
        Acknowledging::WrongRange => {
            say(world, session, &source, (epoch, from.saturating_sub(1), to));
            say(world, session, &source, (epoch, from, to + 1));
        }
        Acknowledging::Future => say(world, session, &source, (epoch, to + 1000, to + 2000)),
        Acknowledging::OtherEpoch => say(world, session, &source, (epoch ^ 1, from, to)),
        Acknowledging::Garbage => {
            for payload in [
                json!({}),
                json!({ "stream": source.stream, "epoch": epoch, "from": to + 1, "to": from }),
                json!({ "stream": source.stream, "epoch": "x", "from": [], "to": null }),
                json!({ "stream": "dreams", "epoch": epoch, "from": from, "to": to }),
                json!({ "stream": source.stream, "epoch": -1, "from": 1e300, "to": 0.5 }),
            ] {
                session.send(world, "edge_ack", None, payload);
            }
        }
    }
}

fn acknowledge(world: &World, session: &Session, about: &About, (from, to): (u64, u64)) {
    let intake = &session.edge.intake;
    intake.waiting.borrow_mut().remove(&about.source.stream);
    say(
        world,
        session,
        &about.source,
        (about.source.epoch, from, to),
    );
}

fn say(world: &World, session: &Session, source: &Source, (epoch, from, to): (u64, u64, u64)) {
    let payload = json!({ "stream": source.stream, "epoch": epoch, "from": from, "to": to });
    session.send(world, "edge_ack", None, payload);
}
