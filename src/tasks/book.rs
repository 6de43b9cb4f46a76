//! The book of what is done here: written into the audit before it is done, and told to whoever watches when it begins and when it ends.

use std::{fmt, rc::Rc};

use super::{live::Live, views::happenings};
use crate::{
    core::{
        audit::{Effect, Entry, Verdict},
        time::Wall,
    },
    store::{AuditRow, Failure, Handle, Ticket},
};

/// The book.
#[derive(Clone)]
pub struct Book {
    store: Handle,
    live: Option<Rc<Live>>,
}

/// Something that was written down and has no end yet.
#[derive(Debug)]
pub struct Begun {
    ticket: Ticket,
    row: AuditRow,
}

impl fmt::Debug for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Book")
    }
}

impl From<Handle> for Book {
    /// A book that nobody watches.
    fn from(store: Handle) -> Self {
        Self { store, live: None }
    }
}

impl Book {
    /// A book that viewers watch.
    pub const fn told(store: Handle, live: Rc<Live>) -> Self {
        Self {
            store,
            live: Some(live),
        }
    }

    /// The disk that it is written on.
    pub const fn store(&self) -> &Handle {
        &self.store
    }

    /// Writes a row before its effect; see [`Handle::audit_begin`].
    pub async fn begin(&self, entry: Entry, now: Wall) -> Result<Begun, Failure> {
        let ticket = self.store.audit_begin(entry.clone(), now).await?;
        let row = AuditRow {
            number: ticket.number(),
            at: now,
            entry,
            ended: None,
        };
        // What is refused begins and ends at once.
        if row.entry.verdict() == Verdict::Permitted {
            self.tell(&row);
        }
        Ok(Begun { ticket, row })
    }

    /// Says what came of it; see [`Handle::audit_end`].
    pub async fn end(&self, begun: Begun, outcome: &str, effect: Effect) -> Result<(), Failure> {
        let Begun { ticket, mut row } = begun;
        row.ended = Some((outcome.to_owned(), effect));
        self.tell(&row);
        self.store
            .audit_end(ticket, outcome.to_owned(), effect)
            .await
    }

    fn tell(&self, row: &AuditRow) {
        if let Some(live) = &self.live {
            live.changed(&happenings::change(row, true));
        }
    }
}
