//! Quota of last words: which failed containers are asked for what they wrote.
//!
//! Logs are kept in a bounded number of rows. Without a quota a container that fails every ten
//! seconds pushes out all others in hours.

use std::{collections::VecDeque, time::Duration};

use super::time::Mono;

/// Time between two questions about the same container: it mostly fails for the same reason.
const SAME_AFTER: Duration = Duration::from_secs(600);
/// Questions within [`SPAN`]: with 20 lines each they leave a full table of 20,000 rows more than a
/// day.
const ASKED_MAX: usize = 30;
const SPAN: Duration = Duration::from_secs(3600);

/// The questions of the last hour.
#[derive(Debug, Default)]
pub struct Quota {
    // Never longer than ASKED_MAX.
    asked: VecDeque<(String, Mono)>,
    skipped: u64,
}

impl Quota {
    /// Returns whether this container is asked now; where it is, that counts.
    pub fn admits(&mut self, container: &str, now: Mono) -> bool {
        self.asked.retain(|(_, asked)| now.since(*asked) < SPAN);
        let is_too_soon =
            |(known, asked): &(String, Mono)| known == container && now.since(*asked) < SAME_AFTER;
        if self.asked.len() >= ASKED_MAX || self.asked.iter().any(is_too_soon) {
            self.skipped = self.skipped.saturating_add(1);
            return false;
        }
        self.asked.push_back((container.to_owned(), now));
        true
    }

    /// Failures since the start whose lines were not asked for.
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono::since_boot(Duration::from_secs(seconds))
    }

    #[test]
    fn a_container_that_fails_again_and_again_is_asked_every_ten_minutes() {
        let mut quota = Quota::default();
        let asked = (0..360).filter(|n| quota.admits("shop/web-0/app", at(n * 10)));
        assert_eq!(asked.count(), 6);
        assert_eq!(quota.skipped(), 354);
    }

    #[test]
    fn a_cluster_in_which_everything_fails_is_asked_for_a_part_of_it() {
        let mut quota = Quota::default();
        let asked = |quota: &mut Quota, from: u64| {
            let names = (0..1000).map(|n| format!("shop/web-{n}/app"));
            names.filter(|name| quota.admits(name, at(from))).count()
        };
        assert_eq!(asked(&mut quota, 0), ASKED_MAX);
        assert_eq!(asked(&mut quota, 1800), 0);
        assert_eq!(asked(&mut quota, 3600), ASKED_MAX);
        assert_eq!(quota.asked.len(), ASKED_MAX);
    }
}
