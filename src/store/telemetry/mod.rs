//! `telemetry.db`: samples, events and log lines, stored compactly for years, delivered from, and
//! written once a minute.
//!
//! It is large and expendable, so it has a file and a thread of its own: whatever happens to it,
//! `state.db` goes on. At most the samples since the last flush are at risk. Decisions are
//! elsewhere: what is measured in `core::rates`, what is sent next in `core::outbox`, how long it
//! is kept in `core::retention`.

use std::path::PathBuf;

use smol::{channel::Sender, future::FutureExt as _};

use crate::{
    core::{
        event::{Event, LogLine},
        health::Condition,
        outbox::{Backlog, Batch, Cursor, Range, Row, Stream, StreamState},
        series::{Line, Page, Query, Search, Tick},
        stall::Job,
        time::{Now, Wall},
    },
    error::Result,
    files::Jobs,
    store::{
        Failure,
        thread::{ANSWER_DEADLINE, Listed, Post, Thread},
    },
};

mod archive;
mod boots;
mod chunk;
mod compact;
mod conditions;
mod contents;
mod cursors;
mod forget;
mod gaps;
mod journal;
mod prune;
mod query;
mod read;
mod reader;
mod recent;
mod rows;
mod series;
#[cfg(test)]
mod tests;
mod upkeep;
#[cfg(test)]
mod years;

pub use conditions::CONDITIONS;
pub use reader::{StoredLevel, TelemetryReader};

use archive::Archive;

/// The name of the database in the state directory.
pub const DATABASE: &str = "telemetry.db";

/// Options of the archive for this start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes that it may take; never more than a twentieth of the disk.
    pub disk_bytes_max: u64,
    /// Boot id, as the kernel reports it.
    pub boot_id: String,
    /// A random number: the epoch of a database that begins now.
    pub epoch: u64,
}

/// The archive's owner: closing it writes what waits and ends the thread.
#[derive(Debug)]
pub struct Telemetry {
    thread: Thread<Archive>,
}

/// Handle of the archive's thread, to be cloned.
#[derive(Clone, Debug)]
pub struct Handle {
    post: Post<Archive>,
}

impl Telemetry {
    /// Opens what is in `directory`. Fails only where no thread can be had; everything else is a
    /// condition.
    #[cfg(feature = "internals")]
    pub async fn open(
        directory: impl Into<PathBuf>,
        options: Options,
        now: Now,
    ) -> Result<(Self, Vec<Condition>)> {
        Self::open_listed(directory, (options, now), Jobs::default()).await
    }

    /// As `Telemetry::open`; what the thread does stands in the list of `jobs`. Nobody waits for a
    /// disk that hangs: then what is asked waits in the queue, and the conditions come with the
    /// first [`Handle::tend`].
    pub async fn open_listed(
        directory: impl Into<PathBuf>,
        (options, now): (Options, Now),
        jobs: Jobs,
    ) -> Result<(Self, Vec<Condition>)> {
        let directory = directory.into();
        let open = move |found: &Sender<Vec<Condition>>| {
            let (archive, conditions) = Archive::open(directory, options, now);
            drop(found.try_send(conditions));
            Some(archive)
        };
        let listed = Listed {
            jobs: jobs.clone(),
            job: Job::Telemetry,
        };
        let (thread, found) = Thread::start("telemetry", listed, open)?;
        let found = async { found.recv().await.unwrap_or_default() };
        let hung = async {
            jobs.give_up(ANSWER_DEADLINE).await;
            Vec::new()
        };
        Ok((Self { thread }, found.or(hung).await))
    }

    /// Opens nothing: each query is told that, and what is on disk stays as it is.
    pub fn put_aside(
        directory: impl Into<PathBuf>,
        (options, now): (Options, Now),
        jobs: Jobs,
    ) -> Result<Self> {
        let directory = directory.into();
        let open = move |_: &Sender<()>| Some(Archive::put_aside(directory, options, now));
        let job = Job::Telemetry;
        let (thread, _) = Thread::start("telemetry", Listed { jobs, job }, open)?;
        Ok(Self { thread })
    }

    /// The way to the thread.
    pub fn handle(&self) -> Handle {
        Handle {
            post: self.thread.post(),
        }
    }

    /// Writes pending data and ends the thread. Later calls get `Closed`.
    pub async fn close(self) -> std::result::Result<(), Failure> {
        self.thread.close().await
    }
}

type Answer<T> = std::result::Result<T, Failure>;

impl Handle {
    /// Takes what was measured; it is on disk with the next flush.
    pub async fn take(&self, tick: Tick) -> Answer<()> {
        self.post
            .queue(move |archive| {
                archive.take(&tick);
                Ok(())
            })
            .await
    }

    /// Takes events; they are on disk with the next flush. One that was taken since the last flush
    /// is replaced by what is known of it now. Returns the sequence of each: the one that it has on
    /// disk, too.
    pub async fn note_events(&self, events: Vec<Event>) -> Answer<Vec<u64>> {
        self.post
            .queue(move |archive| Ok(archive.note_events(&events)))
            .await
    }

    /// Takes log lines; they are on disk with the next flush.
    pub async fn note_logs(&self, lines: Vec<LogLine>) -> Answer<()> {
        self.post
            .queue(move |archive| {
                archive.logs.take_lines(&lines);
                Ok(())
            })
            .await
    }

    /// Writes what waits, in one transaction. Call it once a minute: that is what a power cut
    /// takes, and what a card can bear. `clock_is_set` says whether the wall clock of `now` can be
    /// believed.
    pub async fn flush(&self, now: Now, clock_is_set: bool) -> Answer<()> {
        self.post
            .call(move |archive| archive.flush(now, clock_is_set))
            .await
    }

    /// Makes old samples coarser, removes what was kept long enough or is over the budget, opens
    /// again what was broken. Call it every half minute. Returns all conditions that hold; those of
    /// [`CONDITIONS`] that are not among them do not.
    pub async fn tend(&self, now: Now) -> Answer<Vec<Condition>> {
        self.post.call(move |archive| Ok(archive.tend(now))).await
    }

    /// Values over a time. What was not flushed yet is among them.
    pub async fn query(&self, query: Query) -> Answer<Vec<Line>> {
        self.post.call(move |archive| archive.query(&query)).await
    }

    /// A part of the list of series that have samples here, those of the minute that was not
    /// flushed yet among them.
    pub async fn series(&self, search: Search) -> Answer<Page> {
        self.post.call(move |archive| archive.series(&search)).await
    }

    /// Events or log lines before a sequence, the newest first. What was not flushed yet is among
    /// them.
    pub async fn recent(
        &self,
        stream: Stream,
        before: Option<u64>,
        count_max: u32,
    ) -> Answer<Vec<Row>> {
        self.post
            .call(move |archive| archive.recent(stream, before, count_max))
            .await
    }

    /// Returns when the boots began that samples are of, the oldest first, as far as the clock of
    /// each is known.
    pub async fn boots(&self) -> Answer<Vec<Wall>> {
        self.post.call(|archive| Ok(archive.boots())).await
    }

    /// Position of a destination in a stream: epoch and acknowledged records. From now on nothing
    /// is deleted that it does not have, as long as the budget lasts. Streams in other files
    /// (audit, outcomes) only have their cursors here: their epoch is the one that was last
    /// settled.
    pub async fn position(&self, destination: String, stream: Stream) -> Answer<(u64, Cursor)> {
        self.post
            .call(move |archive| Ok(archive.position(destination, stream)))
            .await
    }

    /// Stored records of a stream. Samples whose clock is unknown are left out until it is known.
    pub async fn stock(&self, stream: Stream) -> Answer<StreamState> {
        self.post
            .call(move |archive| Ok(archive.holdings(stream)))
            .await
    }

    /// The first records of a range, as far as they fit into so many bytes of the disk: at least
    /// one. What is gone is said as a gap.
    pub async fn read(&self, stream: Stream, range: Range, bytes_max: usize) -> Answer<Batch> {
        self.post
            .call(move |archive| archive.read(stream, range, bytes_max))
            .await
    }

    /// Keeps what a destination has; it is on disk with the next flush. A cursor of another epoch
    /// is ignored.
    pub async fn settle(
        &self,
        destination: String,
        stream: Stream,
        epoch: u64,
        cursor: Cursor,
    ) -> Answer<()> {
        self.post
            .queue(move |archive| {
                archive.settle(destination, stream, epoch, cursor);
                Ok(())
            })
            .await
    }

    /// Nothing is kept for a destination any more: it is not one of this agent's now.
    pub async fn forget(&self, destination: String) -> Answer<()> {
        self.post
            .queue(move |archive| {
                archive.forget(&destination);
                Ok(())
            })
            .await
    }

    /// Undelivered records of each destination, of the streams in this file.
    pub async fn backlog(&self) -> Answer<Vec<Backlog>> {
        self.post.call(Archive::backlog).await
    }
}

/// A number as SQLite has it.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number from SQLite. A negative one is not ours.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
