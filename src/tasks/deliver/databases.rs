//! Where the records of this agent lie: two databases, and the cursors of all streams in one of them.

use super::Books;
use crate::{
    core::outbox::{Batch, Cursor, Holdings, Range, Stream},
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
}

impl Books for Databases {
    async fn position(&self, stream: Stream) -> Result<(u64, Cursor), Failure> {
        self.telemetry
            .position(DESTINATION.to_owned(), stream)
            .await
    }

    async fn holdings(&self, stream: Stream) -> Result<Holdings, Failure> {
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
