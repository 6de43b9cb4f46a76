//! Network below the adapters: TCP with deadlines, TLS, proxies, addresses. It knows no protocol
//! above TLS; of HTTP it has the one body type that adapters and tasks exchange.
//!
//! A connection is requested with a [`dial::Route`] and returned as a [`Stream`], whatever is in
//! between: a proxy, TLS to the proxy, TLS to the target. An [`Error`] names the phase that failed,
//! so that a reader knows which side is broken.

mod body;
pub mod dial;
mod error;
pub mod head;
pub mod nameserver;
pub mod proxy;
pub mod served;
pub mod steps;
mod stream;
pub mod target;
pub mod tls;

use std::time::Duration;

pub use body::{Body, Bytes};
pub use error::{Error, ErrorKind, Phase};
pub use stream::{Carrier, Stream};

/// The time was over before the future was ready. The future has been dropped, which ends what it
/// was doing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Elapsed(
    /// The time it was given.
    pub Duration,
);

impl std::fmt::Display for Elapsed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no answer in {}", crate::core::time::in_words(self.0))
    }
}

impl std::error::Error for Elapsed {}

/// Waits for `future`, but no longer than `limit`. The one place that turns a wait into an error.
///
/// # Errors
/// [`Elapsed`] where the time was over first; a future that is ready in the same moment wins.
pub async fn deadline<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, Elapsed> {
    let timer = async {
        smol::Timer::after(limit).await;
        Err(Elapsed(limit))
    };
    smol::future::or(async { Ok(future.await) }, timer).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_at_its_deadline() {
        let limit = Duration::from_millis(5);
        let never = std::future::pending::<()>();
        assert_eq!(smol::block_on(deadline(limit, never)), Err(Elapsed(limit)));
    }

    #[test]
    fn what_is_ready_wins_over_a_deadline_of_nothing() {
        assert_eq!(smol::block_on(deadline(Duration::ZERO, async { 7 })), Ok(7));
    }
}
