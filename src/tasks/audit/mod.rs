//! Audit writer: a row is on disk before its effect, and viewers see it begin and end.

pub mod report;

use std::{fmt, rc::Rc};

use super::stream::Stream;
use crate::{
    core::{
        audit::{AuditDecision, AuditEntry, Effect},
        time::Wall,
    },
    store::{AuditRow, Failure, Handle, Ticket},
};

/// Writer of the audit.
#[derive(Clone)]
pub struct AuditWriter {
    store: Handle,
    stream: Option<Rc<Stream>>,
}

/// Audit row whose call has not ended.
#[derive(Debug)]
pub struct Begun {
    ticket: Ticket,
    row: AuditRow,
}

impl fmt::Debug for AuditWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuditWriter")
    }
}

impl From<Handle> for AuditWriter {
    /// A writer without viewers.
    fn from(store: Handle) -> Self {
        Self {
            store,
            stream: None,
        }
    }
}

impl AuditWriter {
    /// A writer whose rows viewers see.
    pub const fn streamed(store: Handle, stream: Rc<Stream>) -> Self {
        Self {
            store,
            stream: Some(stream),
        }
    }

    /// Store that the rows are written to.
    pub const fn store(&self) -> &Handle {
        &self.store
    }

    /// Writes a row before its effect; see [`Handle::audit_begin`].
    pub async fn begin(&self, entry: AuditEntry, now: Wall) -> Result<Begun, Failure> {
        let ticket = self.store.audit_begin(entry.clone(), now).await?;
        Ok(self.begun(ticket, entry, now))
    }

    /// Writes the row of a call that does not go on without it; see [`Handle::audit_begin_call`].
    pub async fn begin_call(&self, entry: AuditEntry, now: Wall) -> Result<Begun, Failure> {
        let ticket = self.store.audit_begin_call(entry.clone(), now).await?;
        Ok(self.begun(ticket, entry, now))
    }

    fn begun(&self, ticket: Ticket, entry: AuditEntry, now: Wall) -> Begun {
        let row = AuditRow {
            number: ticket.number(),
            at: now,
            entry,
            ended: None,
        };
        // What is refused begins and ends at once.
        if row.entry.decision() == AuditDecision::Permitted {
            self.publish(&row);
        }
        Begun { ticket, row }
    }

    /// Writes the outcome of a row; see [`Handle::audit_end`].
    pub async fn end(&self, begun: Begun, outcome: &str, effect: Effect) -> Result<(), Failure> {
        let Begun { ticket, mut row } = begun;
        row.ended = Some((outcome.to_owned(), effect));
        self.publish(&row);
        self.store
            .audit_end(ticket, outcome.to_owned(), effect)
            .await
    }

    fn publish(&self, row: &AuditRow) {
        if let Some(stream) = &self.stream {
            stream.changed(&report::change(row, true));
        }
    }
}
