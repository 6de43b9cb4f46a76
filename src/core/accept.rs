//! Refused accepts: the wait before a listener tries again, and the lines for the log.
//!
//! Where the process or the machine has no descriptor left, `accept` fails at once, again and
//! again, while somebody waits to be let in.

use std::time::Duration;

use super::{
    backoff::Backoff,
    time::{Mono, in_words},
};

const WAIT_FIRST: Duration = Duration::from_millis(100);
/// A viewer that comes when descriptors are free again waits no longer than this.
const WAIT_LONGEST: Duration = Duration::from_secs(2);
/// Time between two pairs of lines, where descriptors come and go.
const QUIET: Duration = Duration::from_secs(60);

/// The listeners of one process.
#[derive(Debug)]
pub struct Accepts {
    backoff: Backoff,
    /// Start and number of failing accepts.
    failing: Option<(Mono, u64)>,
    /// True if the log has a line about it.
    is_told: bool,
    told_at: Option<Mono>,
}

/// Follow-up of a failed accept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pause {
    /// Time until the next try.
    pub wait: Duration,
    /// True if it is worth a line.
    pub is_news: bool,
}

impl Default for Accepts {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(WAIT_FIRST, WAIT_LONGEST),
            failing: None,
            is_told: false,
            told_at: None,
        }
    }
}

impl Accepts {
    /// The kernel refused a connection. `random` is for the jitter.
    pub fn failed(&mut self, now: Mono, random: u16) -> Pause {
        let (since, count) = self.failing.unwrap_or((now, 0));
        self.failing = Some((since, count.saturating_add(1)));
        let is_quiet = self.told_at.is_some_and(|at| now.since(at) < QUIET);
        let is_news = !self.is_told && !is_quiet;
        if is_news {
            self.is_told = true;
            self.told_at = Some(now);
        }
        Pause {
            wait: self.backoff.next(random),
            is_news,
        }
    }

    /// A connection was accepted. Returns the sentence for the log where the log says that none
    /// were.
    pub fn accepted(&mut self, now: Mono) -> Option<String> {
        let (since, count) = self.failing.take()?;
        self.backoff.reset();
        std::mem::take(&mut self.is_told).then(|| {
            format!(
                "connections are accepted again, after {} and {count} failed attempts",
                in_words(now.since(since))
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Mono {
        Mono::since_boot(Duration::from_millis(millis))
    }

    #[test]
    fn refused_accepts_wait_longer_and_are_told_once() {
        let mut accepts = Accepts::default();
        let mut now = 0;
        let mut reports = 0;
        for _ in 0..100 {
            let pause = accepts.failed(at(now), 0);
            assert!(pause.wait >= WAIT_FIRST && pause.wait <= WAIT_LONGEST);
            reports += u32::from(pause.is_news);
            now += u64::try_from(pause.wait.as_millis()).unwrap();
        }
        assert_eq!(reports, 1);
        assert!(now > 50_000, "{now} ms for a hundred tries");
        let over = accepts.accepted(at(now)).unwrap();
        assert!(over.contains("100 failed attempts"), "{over}");
        assert_eq!(accepts.accepted(at(now)), None);
    }

    #[test]
    fn descriptors_that_come_and_go_are_told_once_a_minute() {
        let mut accepts = Accepts::default();
        let mut lines = 0;
        for second in 0..120 {
            lines += u32::from(accepts.failed(at(second * 1000), 7).is_news);
            lines += u32::from(accepts.accepted(at(second * 1000 + 500)).is_some());
        }
        assert_eq!(lines, 4);
    }
}
