//! Back-off: doubling waits with jitter.

use std::time::Duration;

/// Waits that double from a first to a longest, each with up to a quarter more, so that a thousand
/// boxes that lost the same control plane do not come back in the same second.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// A back-off before its first failure.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            failures: 0,
        }
    }

    /// Counts a failure and says how long to wait. `jitter` is a random number in `0..=u16::MAX`;
    /// it comes in with the input so that every run can be replayed.
    pub fn next(&mut self, jitter: u16) -> Duration {
        let doublings = self.failures.min(20);
        self.failures = self.failures.saturating_add(1);
        let nominal = self.first.saturating_mul(1 << doublings).min(self.longest);
        nominal + (nominal / 4).mul_f64(f64::from(jitter) / f64::from(u16::MAX))
    }

    /// Number of failures since the last success.
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Back to the first wait, after a success that lasted.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));
        let waits: Vec<_> = (0..9).map(|_| backoff.next(0).as_millis()).collect();
        assert_eq!(
            waits,
            [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]
        );
    }

    #[test]
    fn jitter_adds_at_most_a_quarter() {
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));
        assert_eq!(backoff.next(u16::MAX), Duration::from_millis(625));
    }

    #[test]
    fn a_year_of_failures_does_not_overflow() {
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));
        backoff.failures = u32::MAX;
        assert_eq!(backoff.next(0), Duration::from_secs(60));
    }
}
