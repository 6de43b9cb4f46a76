//! Retry: a call is repeated for as long as the API server is away, or a right is missing.

use std::time::Duration;

use smol::Timer;

use super::{
    super::verdict::{refused, waiting},
    Work,
};
use crate::{
    core::backoff::Backoff,
    error::{Error, Result, Retry},
};

/// Pauses before a call is repeated that found no API server, or no rights: the first.
pub(super) const RETRY_FIRST: Duration = Duration::from_secs(1);
/// The longest.
pub(super) const RETRY_LONGEST: Duration = Duration::from_secs(10);

impl Work {
    /// Repeats a call for as long as the API server is away, or a right is missing.
    pub(super) async fn with_retries<T>(&self, call: impl AsyncFnMut() -> Result<T>) -> Result<T> {
        self.until(|error| error.retry == Retry::Never, call).await
    }

    /// Repeats a call for as long as the API server is away.
    pub(super) async fn while_silent<T>(&self, call: impl AsyncFnMut() -> Result<T>) -> Result<T> {
        self.until(|error| error.retry != Retry::Soon, call).await
    }

    async fn until<T>(
        &self,
        is_over: fn(&Error) -> bool,
        mut call: impl AsyncFnMut() -> Result<T>,
    ) -> Result<T> {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LONGEST);
        loop {
            match call().await {
                Err(error) if !is_over(&error) => self.waits(&error, &mut backoff).await,
                done => return done,
            }
        }
    }

    pub(super) async fn waits(&self, error: &Error, backoff: &mut Backoff) {
        log::debug!("app {}: {}", self.plan.app, error.sentence());
        match refused(error) {
            Some(finding) => {
                let judgement = waiting(finding, self.apps.now());
                self.apps.show(&self.plan.app, &judgement);
            }
            None => self.apps.show_blind(&self.plan.app, error),
        }
        Timer::after(backoff.next(fastrand::u16(..))).await;
    }
}
