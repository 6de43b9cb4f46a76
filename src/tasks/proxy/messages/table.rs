//! Running exchanges, by the id that the control plane gave them.

use std::rc::Rc;

use litemap::LiteMap;
use smol::Task;

use super::frames::{Frames, StreamKind};
use crate::tasks::proxy::{Shared, body::Pipe};

/// The exchanges of a session.
#[derive(Debug, Default)]
pub(in crate::tasks::proxy) struct Table {
    pub(in crate::tasks::proxy) entries: LiteMap<String, Running>,
    /// The request whose body is the next binary message.
    pub(in crate::tasks::proxy) awaited: Option<String>,
    pub(in crate::tasks::proxy) dropped_messages: u64,
    numbers: u64,
}

/// One exchange. Dropping it ends it.
#[derive(Debug)]
pub(in crate::tasks::proxy) struct Running {
    /// Tells exchanges apart that have the same id one after another.
    pub(in crate::tasks::proxy) number: u64,
    /// Inlet for later messages.
    pub(in crate::tasks::proxy) inlet: Inlet,
    pub(in crate::tasks::proxy) _task: Task<()>,
}

/// Inlet of an exchange for messages after its beginning.
#[derive(Clone, Debug)]
pub(in crate::tasks::proxy) enum Inlet {
    /// Nothing.
    None,
    /// Pieces of its request body.
    Body(Rc<Pipe>),
    /// Frames of its WebSocket.
    Frames(StreamKind, Rc<Frames>),
}

impl Inlet {
    pub(in crate::tasks::proxy) fn pipe(&self) -> Option<&Rc<Pipe>> {
        match self {
            Self::Body(pipe) => Some(pipe),
            Self::None | Self::Frames(..) => None,
        }
    }

    pub(in crate::tasks::proxy) fn frames(&self) -> Option<(StreamKind, &Rc<Frames>)> {
        match self {
            Self::Frames(kind, frames) => Some((*kind, frames)),
            Self::None | Self::Body(_) => None,
        }
    }
}

impl Table {
    pub(in crate::tasks::proxy) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(in crate::tasks::proxy) fn sockets(&self) -> usize {
        let inlets = self.entries.values().map(|entry| &entry.inlet);
        inlets.filter(|inlet| inlet.frames().is_some()).count()
    }

    /// Takes everything out, to be dropped when the table is not borrowed.
    pub(in crate::tasks::proxy) fn take_all(&mut self) -> LiteMap<String, Running> {
        self.awaited = None;
        std::mem::take(&mut self.entries)
    }
}

impl Shared {
    /// The slot of a new exchange.
    pub(in crate::tasks::proxy) fn slot(self: &Rc<Self>, id: &str, number: u64) -> ExchangeSlot {
        ExchangeSlot {
            shared: Rc::clone(self),
            id: id.to_owned(),
            number,
        }
    }
}

/// Slot of an exchange in the table: dropping it frees the slot, however the exchange ended.
#[derive(Debug)]
pub(in crate::tasks::proxy) struct ExchangeSlot {
    pub(in crate::tasks::proxy) shared: Rc<Shared>,
    pub(in crate::tasks::proxy) id: String,
    number: u64,
}

impl Drop for ExchangeSlot {
    fn drop(&mut self) {
        let mut table = self.shared.table.borrow_mut();
        if table.awaited.as_deref() == Some(self.id.as_str())
            && table
                .entries
                .get(&self.id)
                .is_some_and(|entry| entry.number == self.number)
        {
            table.awaited = None;
        }
        let is_mine = table
            .entries
            .get(&self.id)
            .is_some_and(|entry| entry.number == self.number);
        let entry = is_mine.then(|| table.entries.remove(&self.id)).flatten();
        drop(table);
        drop(entry);
    }
}
