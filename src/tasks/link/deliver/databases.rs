//! Databases with the records of this agent: two of them, and the cursors of all streams in one.

use super::RecordStore;
use crate::{
    core::outbox::{Backlog, Batch, Body, Cursor, Range, Stream, StreamState},
    store::{self, Failure, telemetry},
};

/// The name of the control plane among those who get records.
pub const DESTINATION: &str = "control-plane";

/// The databases of this agent.
#[derive(Clone, Debug)]
pub struct Databases {
    /// Samples, events and log lines, and all cursors.
    pub telemetry: telemetry::Handle,
    /// The audit, and how changes ended.
    pub state: store::Handle,
    /// True if there is a control plane that records wait for.
    pub has_control_plane: bool,
}

impl Databases {
    /// Undelivered records of each destination, of all streams.
    pub async fn backlog(&self) -> Result<Vec<Backlog>, Failure> {
        let mut all = self.telemetry.backlog().await?;
        if !self.has_control_plane {
            all.retain(|backlog| backlog.destination != DESTINATION);
            return Ok(all);
        }
        for stream in [Stream::Audit, Stream::Outcomes] {
            let StreamState { epoch, last, .. } = self.state.stock(stream).await?;
            let (of, cursor) = self.position(stream).await?;
            let cursor = Some(cursor).filter(|_| of == epoch).unwrap_or_default();
            let mut backlog = Backlog {
                destination: DESTINATION.to_owned(),
                stream,
                records: cursor.backlog(last),
                oldest: None,
            };
            if let Some(waiting) = cursor.oldest_missing(last)
                && let Body::Rows(rows) = self.state.read(stream, waiting, 1).await?.body
            {
                backlog.oldest = rows.first().map(|row| row.at);
            }
            all.push(backlog);
        }
        Ok(all)
    }
}

impl RecordStore for Databases {
    async fn position(&self, stream: Stream) -> Result<(u64, Cursor), Failure> {
        self.telemetry
            .position(DESTINATION.to_owned(), stream)
            .await
    }

    async fn holdings(&self, stream: Stream) -> Result<StreamState, Failure> {
        match stream {
            Stream::Audit | Stream::Outcomes => self.state.stock(stream).await,
            Stream::Metrics | Stream::Events | Stream::Logs => self.telemetry.stock(stream).await,
        }
    }

    async fn read(&self, stream: Stream, range: Range, bytes_max: usize) -> Result<Batch, Failure> {
        match stream {
            Stream::Audit | Stream::Outcomes => self.state.read(stream, range, bytes_max).await,
            Stream::Metrics | Stream::Events | Stream::Logs => {
                self.telemetry.read(stream, range, bytes_max).await
            }
        }
    }

    async fn settle(&self, stream: Stream, (epoch, cursor): (u64, Cursor)) -> Result<(), Failure> {
        let destination = DESTINATION.to_owned();
        self.telemetry
            .settle(destination, stream, epoch, cursor)
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        core::{
            journal::{ChangeEnd, Intent, Journal, Outcome},
            time::{Now, Wall},
        },
        store::{Store, telemetry::Telemetry},
    };
    use smol::block_on;

    #[test]
    fn what_waits_is_counted_with_the_time_of_its_oldest() {
        let directory = tempfile::tempdir().unwrap();
        let options = telemetry::Options {
            disk_bytes_max: 1 << 20,
            boot_id: "boot".to_owned(),
            epoch: 5,
        };
        let now = Now {
            mono: crate::core::time::Mono::default(),
            wall: Wall::default(),
        };
        block_on(async {
            let (telemetry, _) = Telemetry::open(directory.path(), options, now)
                .await
                .unwrap();
            let (store, _) = Store::open(directory.path(), now.wall).await.unwrap();
            let databases = Databases {
                has_control_plane: true,
                telemetry: telemetry.handle(),
                state: store.handle(),
            };
            for (id, ended) in [("a", 1_000), ("b", 2_000), ("c", 3_000)] {
                let lock = Journal::new().lock(id).unwrap();
                let (state, at) = (&databases.state, Wall::from_millis(ended));
                state
                    .begin_change(&lock, Intent::default(), at)
                    .await
                    .unwrap();
                let ended = state
                    .finish_change(&lock, ChangeEnd::new(Outcome::Done), at)
                    .await;
                ended.unwrap();
            }
            let epoch = databases.holdings(Stream::Outcomes).await.unwrap().epoch;
            let first = Cursor::of(Range::new(1, 1));
            let settled = databases.settle(Stream::Outcomes, (epoch, first));
            settled.await.unwrap();
            let backlog = databases.backlog().await.unwrap();
            let of = |stream| backlog.iter().find(|one| one.stream == stream).unwrap();
            let outcomes = of(Stream::Outcomes);
            assert_eq!(
                (outcomes.records, outcomes.oldest),
                (2, Some(Wall::from_millis(2_000)))
            );
            assert_eq!(
                (of(Stream::Audit).records, of(Stream::Audit).oldest),
                (0, None)
            );
            store.close().await.unwrap();
            telemetry.close().await.unwrap();
        });
    }
}
