//! Signals to the process: stop, or reload.

use std::io;

use async_signal::{Signal as Received, Signals as Stream};
use nix::sys::signal::{SIGHUP, SigSet};
use smol::stream::StreamExt;

use crate::error::{Error, Result};

/// Meaning of a signal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Signal {
    /// SIGTERM or SIGINT: stop in good order; the second one: stop at once.
    Stop,
    /// SIGHUP: read files again.
    Reload,
}

/// Blocks signals: for this thread, for those that it starts, and over an exec. Who passes a
/// process on in this way loses none of them.
pub fn block() {
    SigSet::all().thread_block().unwrap_or_default();
}

/// Unblocks signals of this thread; those that waited arrive.
pub fn unblock() {
    SigSet::empty().thread_set_mask().unwrap_or_default();
}

/// The same, but for SIGHUP, which would end a process that does not listen for it.
pub fn unblock_ends() {
    let mut reload = SigSet::empty();
    reload.add(SIGHUP);
    reload.thread_set_mask().unwrap_or_default();
}

/// The signals of this process, one after the other. While it lives they do nothing by themselves.
#[derive(Debug)]
pub struct Signals(Stream);

impl Signals {
    /// Takes over SIGTERM, SIGINT and SIGHUP.
    pub fn new() -> Result<Self> {
        let taken = Stream::new([Received::Term, Received::Int, Received::Hup]);
        taken
            .map(Self)
            .map_err(|error: io::Error| Error::new("cannot listen for signals").because(&error))
    }

    /// Waits for the next signal. `None` where no more can come.
    pub async fn next(&mut self) -> Option<Signal> {
        loop {
            match self.0.next().await? {
                Ok(Received::Hup) => return Some(Signal::Reload),
                Ok(Received::Term | Received::Int) => return Some(Signal::Stop),
                // None other was asked for, and a failed read is tried again with the next signal.
                Ok(_) | Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{SIGTERM, raise};

    #[test]
    fn a_signal_arrives_with_its_meaning() {
        smol::block_on(async {
            let mut signals = Signals::new().unwrap();
            raise(SIGHUP).unwrap();
            assert_eq!(signals.next().await, Some(Signal::Reload));
            raise(SIGTERM).unwrap();
            assert_eq!(signals.next().await, Some(Signal::Stop));
        });
    }
}
