//! State of the telemetry thread, and its jobs.

use std::{collections::BTreeMap, path::PathBuf};

use super::{
    DATABASE, Options,
    boots::{self, Boot},
    contents::{Contents, backlog},
    cursors::Cursors,
    journal::{self, Pending, Waiting},
    query::{self, Answered, Fresh},
    read, recent,
    rows::{self, Rows},
    series::{self, Numbers},
    signed,
};
use crate::{
    core::{
        event::Event,
        health::Condition,
        outbox::{Backlog, Batch, Cursor, Range, Row, Stream, StreamState},
        retention::Bounds,
        series::{Line, Page, Query, Search, Tick},
        time::{Mono, Now, Wall},
    },
    error::Error,
    store::{
        Failure,
        database::{Database, Form},
        quarantine::Copies,
        schema,
        thread::Owned,
    },
};

/// Epochs are numbers that JavaScript reads exactly, too.
const EPOCH_BITS: u32 = 53;

pub(super) static FORM: Form = Form {
    file: DATABASE,
    migrations: &schema::TELEMETRY,
    // Small pages: a flush changes two or three. 256 of them in the log, and then each goes to its
    // place once for many flushes.
    pragmas: "PRAGMA page_size = 1024;
         PRAGMA journal_mode = WAL;
         PRAGMA synchronous = FULL;
         PRAGMA trusted_schema = OFF;
         PRAGMA wal_autocheckpoint = 512;
         PRAGMA journal_size_limit = 1048576;
         PRAGMA cache_size = -256;
         PRAGMA temp_store = MEMORY;",
    // It may be 256 MB on a slow card.
    is_checked: false,
    // Half of what samples may take: see Archive::open.
    damaged: Copies {
        count: 1,
        bytes: u64::MAX,
    },
};

/// Everything of the thread.
#[derive(Debug)]
pub(super) struct Archive {
    pub(super) database: Database,
    pub(super) options: Options,
    pub(super) bounds: Bounds,
    pub(super) contents: Contents,
    pub(super) numbers: Numbers,
    pub(super) pending: Pending,
    pub(super) events: Rows,
    pub(super) logs: Rows,
    pub(super) cursors: Cursors,
    /// True if those on disk are among them: until then nothing may be removed.
    pub(super) has_cursors: bool,
    pub(super) has_thinned: bool,
    /// True if samples went since it was last looked which series and boots have none left.
    pub(super) may_forget: bool,
    /// Series that went before every receiver had them, since the start.
    pub(super) forgotten: usize,
    /// Reason why the file cannot be made smaller, where it should be.
    pub(super) oversized: Option<Error>,
    /// Time when it is tried again.
    pub(super) shrink_at: Mono,
}

impl Archive {
    pub(super) fn open(directory: PathBuf, options: Options, now: Now) -> (Self, Vec<Condition>) {
        let mut archive = Self::new(directory, options, now);
        let budget = archive.whole_budget_bytes();
        archive.database.bound_damaged(budget / 2);
        archive.recover();
        let conditions = archive.conditions();
        (archive, conditions)
    }

    /// See [`super::Telemetry::put_aside`].
    pub(super) fn put_aside(directory: PathBuf, options: Options, now: Now) -> Self {
        let mut archive = Self::new(directory, options, now);
        let why = Error::new("safe mode: stored measurements are not opened");
        archive.database.stay_away(why);
        archive
    }

    fn new(directory: PathBuf, options: Options, now: Now) -> Self {
        Self {
            database: Database::new(directory, &FORM, None, now.wall),
            options,
            bounds: Bounds::default(),
            contents: Contents::default(),
            numbers: Numbers::default(),
            pending: Pending::default(),
            events: Rows::of("event"),
            logs: Rows::of("log"),
            cursors: Cursors::default(),
            has_cursors: false,
            has_thinned: false,
            may_forget: true,
            forgotten: 0,
            oversized: None,
            shrink_at: Mono::default(),
        }
    }

    /// Takes a tick into memory.
    pub(super) fn take(&mut self, tick: &Tick) {
        let values = tick
            .points
            .iter()
            .filter_map(|point| Some((self.numbers.local(&point.series)?, point.value)))
            .collect();
        self.pending.take(Waiting {
            mono_ms: millis(tick.mono()),
            wall_ms: tick.at.wall.millis(),
            clock_is_set: tick.clock_is_set,
            values,
        });
    }

    /// See [`super::Handle::note_events`].
    pub(super) fn note_events(&mut self, events: &[Event]) -> Vec<u64> {
        self.events.take_events(events, self.contents.events.last)
    }

    /// See [`super::Handle::flush`].
    pub(super) fn flush(&mut self, now: Now, clock_is_set: bool) -> Result<(), Failure> {
        self.database.set_latest_time(now.wall);
        let is_idle = self.pending.is_empty()
            && self.events.is_empty()
            && self.logs.is_empty()
            && !self.cursors.is_dirty();
        if is_idle {
            return Ok(());
        }
        let mut written = self.write_minute(now, clock_is_set);
        if self.database.was_replaced() {
            self.reset();
            written = self.write_minute(now, clock_is_set);
        }
        written
    }

    fn write_minute(&mut self, now: Now, clock_is_set: bool) -> Result<(), Failure> {
        let offset = now.wall.millis().saturating_sub(signed(millis(now.mono)));
        let sequence = self.contents.metrics.last.saturating_add(1);
        let number = self
            .contents
            .boot
            .unwrap_or_else(|| self.contents.boots.next());
        let known = self.contents.boots.get(number);
        let boot = Boot {
            guess_ms: match known {
                Some(known) => known.guess_ms,
                None => self.guess(offset)?,
            },
            wall_offset_ms: known
                .and_then(|known| known.wall_offset_ms)
                .or_else(|| clock_is_set.then_some(offset)),
            sequence_from: known.map_or(sequence, |known| known.sequence_from),
        };
        let Self {
            database,
            contents,
            numbers,
            pending,
            events,
            logs,
            cursors,
            options,
            ..
        } = self;
        let (on_disk, last_event, last_line) = database.write(|transaction| {
            contents.check(transaction)?;
            let mut on_disk = BTreeMap::new();
            if !pending.is_empty() {
                if known != Some(boot) {
                    boots::write(transaction, (number, &options.boot_id), boot)?;
                }
                on_disk = numbers.write(transaction, sequence)?;
                let block = pending.block((number, sequence), (offset, clock_is_set), &on_disk);
                journal::insert(transaction, sequence, &block.encode())?;
            }
            let last_event = events.write(transaction, contents.events.last)?;
            let last_line = logs.write(transaction, contents.logs.last)?;
            cursors.write(transaction)?;
            Ok((on_disk, last_event, last_line))
        })?;
        (contents.events.last, contents.logs.last) = (last_event, last_line);
        events.written();
        logs.written();
        cursors.written();
        if !pending.is_empty() {
            // Those that were found and not new are counted too; see Archive::forget_excess.
            let new = on_disk.len().saturating_sub(numbers.in_use().len());
            contents.series = contents.series.saturating_add(new);
            numbers.written(&on_disk);
            pending.written();
            contents.metrics.last = sequence;
            contents.boots.put(number, boot);
            contents.boot = Some(number);
        }
        Ok(())
    }

    /// A guess at when this boot began: after the last sample of the boot before it, where the
    /// clock says otherwise.
    fn guess(&mut self, offset: i64) -> Result<i64, Failure> {
        let last = self.contents.metrics.last;
        let boots = &self.contents.boots;
        let end = self
            .database
            .read(|connection| read::end(connection, boots, last))?;
        Ok(end.map_or(offset, |end| offset.max(end)))
    }

    pub(super) fn query(&mut self, query: &Query) -> Result<Vec<Line>, Failure> {
        let boots = &self.contents.boots;
        let boot = self.contents.boot.unwrap_or_else(|| boots.next());
        let (numbers, pending) = (&self.numbers, &self.pending);
        let answered = self.database.read(|connection| {
            let (numbers, series) = numbers.meant(connection, &query.select)?;
            let mut block = pending.block((boot, 0), pending.clock(), &numbers);
            boots.set_clock(&mut block);
            query::answer(connection, boots, query, Fresh { series, block })
        })?;
        lines(answered)
    }

    /// See [`super::Handle::series`].
    pub(super) fn series(&mut self, search: &Search) -> Result<Page, Failure> {
        let live = self.numbers.live();
        self.database
            .read(|connection| series::list(connection, &live, search))
    }

    pub(super) fn recent(
        &mut self,
        stream: Stream,
        before: Option<u64>,
        count_max: u32,
    ) -> Result<Vec<Row>, Failure> {
        let (Some(table), Some(holdings)) = (rows::table(stream), self.contents.of(stream)) else {
            return Ok(Vec::new());
        };
        let waiting = match stream {
            Stream::Logs => &self.logs,
            Stream::Events | Stream::Metrics | Stream::Audit | Stream::Outcomes => &self.events,
        };
        let most = usize::try_from(count_max).unwrap_or(usize::MAX);
        let mut found = waiting.newest(holdings.last, before, most);
        let left = u32::try_from(most.saturating_sub(found.len())).unwrap_or(0);
        let rows = self
            .database
            .read(|connection| recent::rows(connection, table, before, left))?;
        found.extend(rows);
        Ok(found)
    }

    pub(super) fn boots(&self) -> Vec<Wall> {
        recent::boots(&self.contents.boots)
    }

    pub(super) fn position(&mut self, destination: String, stream: Stream) -> (u64, Cursor) {
        let epoch = self.contents.of(stream).map(|_| self.contents.epoch);
        self.cursors.position(destination, stream, epoch)
    }

    pub(super) fn settle(
        &mut self,
        destination: String,
        stream: Stream,
        epoch: u64,
        cursor: Cursor,
    ) {
        let is_current = self.contents.of(stream).is_none() || epoch == self.contents.epoch;
        if is_current {
            self.cursors.settle(destination, stream, (epoch, cursor));
        }
    }

    pub(super) fn forget(&mut self, destination: &str) {
        self.cursors.forget(destination);
    }

    pub(super) fn holdings(&self, stream: Stream) -> StreamState {
        let mut holdings = self.contents.of(stream).cloned().unwrap_or_default();
        holdings.epoch = self.contents.epoch;
        if stream == Stream::Metrics && !self.contents.clock_is_known() {
            holdings.last = self.contents.before_boot;
        }
        holdings
    }

    pub(super) fn read(
        &mut self,
        stream: Stream,
        range: Range,
        bytes_max: usize,
    ) -> Result<Batch, Failure> {
        let holdings = self.holdings(stream);
        let boots = &self.contents.boots;
        self.database
            .read(|connection| read::read(connection, boots, (stream, &holdings), range, bytes_max))
    }

    pub(super) fn backlog(&mut self) -> Result<Vec<Backlog>, Failure> {
        let (contents, cursors) = (&self.contents, &self.cursors);
        self.database
            .read(|connection| backlog(connection, contents, cursors))
    }

    /// Opens what is not open, and reads what it has.
    pub(super) fn recover(&mut self) {
        let was_opened = self.database.recover();
        if self.database.was_replaced() {
            self.reset();
        } else if was_opened || self.contents.epoch == 0 {
            self.load();
        }
        if !self.has_cursors
            && let Ok(found) = self.database.read(Cursors::load)
        {
            self.cursors.join(found);
            self.has_cursors = true;
        }
    }

    /// Starts over in an empty file: what is known is written again, under another epoch.
    pub(super) fn reset(&mut self) {
        self.options.epoch = self.options.epoch.wrapping_add(1);
        self.numbers.forget_disk();
        self.cursors
            .reset(|stream| self.contents.of(stream).is_some());
        self.load();
    }

    fn load(&mut self) {
        let first_epoch = signed(self.options.epoch % (1 << EPOCH_BITS)).max(1);
        let boot_id = self.options.boot_id.clone();
        let made = self.database.write(|transaction| {
            transaction.execute("INSERT OR IGNORE INTO meta VALUES (1, ?1)", [first_epoch])?;
            Ok(())
        });
        let loaded = self
            .database
            .read(|connection| Contents::load(connection, &boot_id));
        match made.and(loaded) {
            Ok((contents, newest)) => {
                self.contents = contents;
                if let Some(mono_ms) = newest {
                    self.pending.drop_until(mono_ms);
                }
            }
            // Nothing may be built on a file that was not read: it is opened again with the next
            // look.
            Err(Failure::Disk(error)) if self.database.newer().is_none() => {
                self.database.stay_away(error);
            }
            // It is said already.
            Err(_) => {}
        }
    }
}

impl Owned for Archive {
    fn close(&mut self) {
        self.database.close();
    }
}

/// The lines of an answer, where it is one.
pub(super) fn lines(answered: Answered) -> Result<Vec<Line>, Failure> {
    match answered {
        Answered::Lines(lines) => Ok(lines),
        Answered::TooMany => Err(Failure::Conflict(
            "that is more than 100,000 values: choose a shorter period or a longer step".to_owned(),
        )),
    }
}

/// Milliseconds since boot.
pub(super) fn millis(mono: Mono) -> u64 {
    u64::try_from(mono.elapsed_since_boot().as_millis()).unwrap_or(u64::MAX)
}
