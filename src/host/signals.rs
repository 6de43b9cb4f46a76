//! Signals to the process: stop, or reload.

use std::io;

use async_signal::{Signal, Signals as Stream};
use nix::sys::signal::{SigSet, Signal as Number};
use smol::stream::StreamExt;

use crate::error::{Error, Result};

/// Meaning of a signal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wish {
    /// SIGTERM or SIGINT: stop in good order; the second one: stop at once.
    Stop,
    /// SIGHUP: read files again.
    Reload,
}

/// Keeps signals waiting: for this thread, for those that it starts, and over an exec. Who passes a
/// process on in this way loses none of them.
pub fn hold() {
    SigSet::all().thread_block().unwrap_or_default();
}

/// Lets signals come to this thread, those that waited too.
pub fn release() {
    SigSet::empty().thread_set_mask().unwrap_or_default();
}

/// The same, but for SIGHUP, which would end a process that does not listen for it.
pub fn release_ends() {
    let mut reload = SigSet::empty();
    reload.add(Number::SIGHUP);
    reload.thread_set_mask().unwrap_or_default();
}

/// The signals of this process, one after the other. While it lives they do nothing by themselves.
#[derive(Debug)]
pub struct Signals(Stream);

impl Signals {
    /// Takes over SIGTERM, SIGINT and SIGHUP.
    pub fn new() -> Result<Self> {
        let taken = Stream::new([Signal::Term, Signal::Int, Signal::Hup]);
        taken
            .map(Self)
            .map_err(|error: io::Error| Error::new("cannot listen for signals").because(&error))
    }

    /// Waits for the next signal. `None` where no more can come.
    pub async fn next(&mut self) -> Option<Wish> {
        loop {
            match self.0.next().await? {
                Ok(Signal::Hup) => return Some(Wish::Reload),
                Ok(Signal::Term | Signal::Int) => return Some(Wish::Stop),
                // None other was asked for, and a failed read is tried again with the next signal.
                Ok(_) | Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{SIGHUP, SIGTERM, raise};

    #[test]
    fn a_signal_arrives_as_a_wish() {
        smol::block_on(async {
            let mut signals = Signals::new().unwrap();
            raise(SIGHUP).unwrap();
            assert_eq!(signals.next().await, Some(Wish::Reload));
            raise(SIGTERM).unwrap();
            assert_eq!(signals.next().await, Some(Wish::Stop));
        });
    }
}
