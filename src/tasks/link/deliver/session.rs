//! Delivery of one session: the most urgent stream with data and nothing in flight goes next.

use std::{rc::Rc, time::Duration};

use smol::{Timer, channel::Receiver, future};

use super::{Agreement, RecordStore, Shared, Word};
use crate::{
    core::{
        backoff::Backoff,
        outbox::{Acknowledgement, Batch, Body, Loss, Next, Order, Outbox, Range, Stream},
        time::{Mono, Now},
    },
    host::{clock, random},
    link::outlet::{Frame, Lane, Lost},
    store::Failure,
    wire::{
        control::{About, Messages, Records, edge_gap},
        edge,
    },
};

/// Waits after a failure of the disk.
const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_LONGEST: Duration = Duration::from_secs(60);
/// Bytes to read from the disk for one message. The disk has another format, so the size shows only
/// when records are packed.
const READ_BYTES_MIN: usize = 4 * 1024;
const READ_BYTES_MAX: usize = 256 * 1024;

/// Time for which an unacknowledged batch counts as in flight: no other one is sent until then. So
/// data behind records, in the network too, waits for 32 KiB at most, whatever the number of
/// streams.
const UNDER_WAY: Duration = Duration::from_secs(1);
/// Between the messages of one record, for the same reason: on a link of 8 Mbit/s one of them takes
/// a third of it.
const PAUSE: Duration = Duration::from_millis(100);

/// One stream.
struct Line {
    stream: Stream,
    outbox: Option<Outbox>,
    /// The newest record when it was looked at last.
    last: u64,
    /// All is settled, as far as that is known.
    is_done: bool,
    /// True if an acknowledgement is not stored yet.
    is_unsettled: bool,
    read_bytes: usize,
    not_before: Mono,
    backoff: Backoff,
}

impl Line {
    const fn new(stream: Stream, bytes_max: usize) -> Self {
        Self {
            stream,
            outbox: None,
            last: 0,
            is_done: false,
            is_unsettled: false,
            read_bytes: bytes_max,
            not_before: Mono::since_boot(Duration::ZERO),
            backoff: Backoff::new(RETRY_FIRST, RETRY_LONGEST),
        }
    }

    /// Time until which there is nothing to do, unless a message comes; `None`: for ever.
    fn until(&self, now: Mono) -> Option<Mono> {
        let waits = self.outbox.as_ref().and_then(|outbox| outbox.until(now));
        match waits {
            Some(until) => Some(until.max(self.not_before)),
            None if self.is_done => None,
            None => Some(self.not_before),
        }
    }
}

/// Payload: the records of a range in the wire format, or the report that there are none.
enum Load {
    Data(Records, Vec<u8>),
    Gap(Loss),
}

/// The delivery.
pub(super) struct Session<B> {
    agent_id: Rc<str>,
    store: B,
    shared: Rc<Shared>,
    lines: Vec<Line>,
    bytes_max: usize,
    lane: Lane,
    words: Receiver<Word>,
    /// The stream of the last batch, and until when that may be under way.
    under_way: Option<(Stream, Mono)>,
}

/// Reasons why a turn ended early.
enum Stop {
    Lost,
    Failed(Failure),
}

impl From<Lost> for Stop {
    fn from(Lost: Lost) -> Self {
        Self::Lost
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl<B: RecordStore> Session<B> {
    pub(super) fn new(store: B, shared: Rc<Shared>, agreement: Agreement) -> Self {
        let Agreement {
            agent_id,
            streams,
            bytes_max,
            lane,
            words,
        } = agreement;
        let line = |stream| Line::new(stream, bytes_max);
        Self {
            agent_id: agent_id.into(),
            store,
            shared,
            lines: streams.into_iter().map(line).collect(),
            bytes_max,
            lane,
            words,
            under_way: None,
        }
    }

    /// Delivers until the session ends.
    pub(super) async fn run(mut self) {
        loop {
            while let Ok(word) = self.words.try_recv() {
                self.hear(word);
            }
            self.settle().await;
            match self.turn().await {
                Ok(true) => {}
                Ok(false) => {
                    let Some(word) = self.wait().await else {
                        continue;
                    };
                    self.hear(word);
                }
                Err(Lost) => return,
            }
        }
    }

    /// Waits until somebody says something, or it is time for a line.
    async fn wait(&self) -> Option<Word> {
        let now = self.now().mono;
        let line = self.lines.iter().filter_map(|line| line.until(now)).min();
        let until = line.map(|until| match self.under_way {
            Some((_, under_way)) => until.max(under_way),
            None => until,
        });
        let unsettled = self.lines.iter().filter(|line| line.is_unsettled);
        let until = unsettled.map(|line| line.not_before).chain(until).min();
        let time = async {
            match until {
                Some(until) => clock::until(until).await,
                None => future::pending().await,
            }
            None
        };
        // The delivery that holds the other end drops this task with it.
        let word = async { self.words.recv().await.ok() };
        future::or(word, time).await
    }

    fn now(&self) -> Now {
        self.shared.state.now()
    }

    fn hear(&mut self, word: Word) {
        match word {
            Word::Look => {
                for line in &mut self.lines {
                    line.is_done = false;
                }
            }
            Word::Acknowledged(stream, said) => self.acknowledged(stream, said),
        }
    }

    fn acknowledged(&mut self, stream: Stream, said: Acknowledgement) {
        let line = self.lines.iter_mut().find(|line| line.stream == stream);
        let settled = line.and_then(|line| {
            let settled = line.outbox.as_mut()?.acknowledge(said, line.last);
            if let Err(ignored) = &settled {
                log::debug!(
                    "delivery: an acknowledgement is ignored: {ignored:?} stream={} epoch={} from={} to={}",
                    stream.as_str(),
                    said.epoch,
                    said.from,
                    said.to
                );
            }
            line.is_unsettled |= settled.is_ok();
            settled.ok()
        });
        match settled {
            Some(_) => {
                self.under_way.take_if(|(of, _)| *of == stream);
                self.shared.acknowledged(stream);
            }
            None => self.shared.ignore(),
        }
    }

    /// Tells the store what was acknowledged.
    async fn settle(&mut self) {
        let now = self.now().mono;
        for index in 0..self.lines.len() {
            let due = self.lines.get_mut(index).and_then(|line| {
                let outbox = line.outbox.as_ref()?;
                let at = (outbox.epoch(), outbox.cursor().clone());
                let is_due = line.is_unsettled && line.not_before <= now;
                is_due.then_some((line, at))
            });
            let Some((line, at)) = due else {
                continue;
            };
            match self.store.settle(line.stream, at).await {
                Ok(()) => line.is_unsettled = false,
                Err(failure) => self.failed(index, &failure),
            }
        }
    }

    /// Sends one batch of the first line that has one. `false`: none has.
    async fn turn(&mut self) -> Result<bool, Lost> {
        let now = self.now().mono;
        self.under_way.take_if(|(_, until)| *until <= now);
        if self.under_way.is_some() {
            return Ok(false);
        }
        for index in 0..self.lines.len() {
            let now = self.now().mono;
            let Some(line) = self.lines.get_mut(index) else {
                continue;
            };
            if line.until(now).is_none_or(|until| until > now) {
                continue;
            }
            match self.serve(index).await {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(Stop::Lost) => return Err(Lost),
                Err(Stop::Failed(failure)) => self.failed(index, &failure),
            }
        }
        Ok(false)
    }

    fn failed(&mut self, index: usize, failure: &Failure) {
        let now = self.now().mono;
        let Some(line) = self.lines.get_mut(index) else {
            return;
        };
        line.not_before = now.after(line.backoff.next(random::jitter()));
        let stream = line.stream.as_str();
        log::debug!("delivery: records of {stream} cannot be had now: {failure}");
    }

    /// Sends one batch of a line, where it has one.
    async fn serve(&mut self, index: usize) -> Result<bool, Stop> {
        let Some(line) = self.lines.get_mut(index) else {
            return Ok(false);
        };
        let stream = line.stream;
        let holdings = self.store.holdings(stream).await?;
        let outbox = match &mut line.outbox {
            Some(outbox) if outbox.epoch() == holdings.epoch => outbox,
            other => {
                let (epoch, cursor) = self.store.position(stream).await?;
                let cursor = Some(cursor).filter(|_| epoch == holdings.epoch);
                let cursor = cursor.unwrap_or_default();
                other.insert(Outbox::new(holdings.epoch, Order::NewestFirst, cursor))
            }
        };
        line.last = holdings.last;
        let now = self.shared.state.now().mono;
        let Some(next) = outbox.next(holdings.view(), random::jitter(), now) else {
            line.is_done = outbox.until(now).is_none();
            return Ok(false);
        };
        let (range, load) = match next {
            Next::Gap(gap) => (gap.range, Load::Gap(gap.loss)),
            Next::Records(range) => self.records(index, (holdings.epoch, range)).await?,
        };
        self.send(stream, (holdings.epoch, range), &load).await?;
        let now = self.now().mono;
        if let Some(line) = self.lines.get_mut(index) {
            line.backoff.reset();
            if let Some(outbox) = &mut line.outbox {
                outbox.sent(range, now);
            }
        }
        self.under_way = Some((stream, now.after(UNDER_WAY)));
        self.shared.sent(stream);
        Ok(true)
    }

    /// Longest prefix of these records that fits into one message; a single record may take
    /// several.
    async fn records(
        &mut self,
        index: usize,
        (epoch, mut range): (u64, Range),
    ) -> Result<(Range, Load), Failure> {
        let me = Rc::clone(&self.agent_id);
        loop {
            let Some(line) = self.lines.get_mut(index) else {
                return Err(Failure::Closed);
            };
            let stream = line.stream;
            let Batch { range: found, body } =
                self.store.read(stream, range, line.read_bytes).await?;
            if found.from() != range.from() || !range.holds(found) {
                let why = format!("{} were asked for, and others came", stream.as_str());
                return Err(Failure::Conflict(why));
            }
            let (records, data) = match body {
                Body::Gap(loss) => return Ok((found, Load::Gap(loss))),
                Body::Samples(samples) => (Records::Samples, edge::samples(&samples)),
                Body::Rows(rows) => (Records::Rows, edge::rows(&rows)),
            };
            let about = about(&me, stream, (epoch, found));
            let messages = Messages::new(about, records, &data, self.bytes_max);
            let Some(messages) = messages.filter(|all| all.count() == 1 || found.count() == 1)
            else {
                // Fewer of them, in proportion, and at least one less than before.
                let fitting = fitting(found.count(), data.len(), self.bytes_max);
                if found.count() == 1 {
                    log::warn!(
                        "delivery: record {} of {} is too large to be sent: {} bytes",
                        found.from(),
                        stream.as_str(),
                        data.len()
                    );
                    return Ok((found, Load::Gap(Loss::Damaged)));
                }
                range = Range::new(found.from(), found.from() + fitting - 1).unwrap_or(found);
                line.read_bytes = scaled(line.read_bytes, self.bytes_max, data.len());
                continue;
            };
            if found.to() < range.to() && messages.count() == 1 {
                line.read_bytes = scaled(line.read_bytes, self.bytes_max, data.len());
            }
            return Ok((found, Load::Data(records, data)));
        }
    }

    /// Puts records, or the word that there are none, into the lane, and waits until they are out.
    async fn send(
        &mut self,
        stream: Stream,
        (epoch, range): (u64, Range),
        load: &Load,
    ) -> Result<(), Lost> {
        let me = Rc::clone(&self.agent_id);
        let about = about(&me, stream, (epoch, range));
        let clock = || self.shared.state.now().wall;
        match load {
            Load::Gap(loss) => {
                let text = edge_gap(about, *loss, clock());
                self.lane.send(Frame::Text(text)).await?;
            }
            Load::Data(records, data) => {
                let Some(messages) = Messages::new(about, *records, data, self.bytes_max) else {
                    return Ok(());
                };
                for part in 0..messages.count() {
                    if part > 0 {
                        self.lane.drained().await?;
                        Timer::after(PAUSE).await;
                    }
                    let text = messages.get(part, clock());
                    self.lane.send(Frame::Text(text)).await?;
                }
            }
        }
        self.lane.drained().await
    }
}

fn about(agent_id: &str, stream: Stream, (epoch, range): (u64, Range)) -> About<'_> {
    About {
        agent_id,
        stream,
        epoch,
        range,
    }
}

/// Number of records that fit if all of them have this size: fewer than all.
fn fitting(count: u64, bytes: usize, bytes_max: usize) -> u64 {
    let wide = |bytes: usize| u128::try_from(bytes).unwrap_or(u128::MAX);
    // Two thirds: a quarter for base64, the rest for the envelope and for records that differ.
    let room = wide(bytes_max).saturating_mul(2) / 3;
    let fitting = u128::from(count).saturating_mul(room) / wide(bytes).max(1);
    let fitting = u64::try_from(fitting).unwrap_or(count);
    fitting.min(count.saturating_sub(1)).max(1)
}

/// Bytes to read from the disk so that a message is filled and not more.
fn scaled(read_bytes: usize, bytes_max: usize, bytes: usize) -> usize {
    let room = bytes_max / 3 * 2;
    let scaled = read_bytes.saturating_mul(room) / bytes.max(1);
    scaled.clamp(READ_BYTES_MIN, READ_BYTES_MAX)
}
