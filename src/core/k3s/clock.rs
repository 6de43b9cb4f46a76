//! Clock: whether k3s may recreate its certificates by the time that this machine believes it is.
//!
//! A restart with a wrong clock makes certificates of a wrong time; no restart lets them end. Where
//! no time service ever answers, the second is certain, so the wait for evidence has an end. A
//! clock that is ahead does no harm then: k3s has a certificate begin when its CA does
//! (`NewSignedCert` of dynamiclistener), so all that is wrong with it is a later end.

use crate::core::time::{DAY_MS, Wall};

/// Days before the end of a certificate from which on a restart needs no evidence.
const WITHOUT_EVIDENCE_DAYS: i64 = 10;

/// Facts about the clock of this machine.
#[derive(Clone, Copy, Debug)]
pub struct ClockFacts {
    /// Time that it shows.
    pub now: Wall,
    /// Date of this program: the true time is later.
    pub built: Wall,
    /// Beginning of the certificate that began last: the true time is later.
    pub newest_start: Wall,
    /// End of the certificate that ends first.
    pub first_end: Wall,
    /// True if a time service says that it is synchronized.
    pub is_synchronized: bool,
}

impl ClockFacts {
    /// The reason not to make certificates by this clock now.
    pub fn doubt(&self) -> Option<String> {
        for (earlier, what) in [
            (self.built, "this program was built"),
            (self.newest_start, "its newest certificate was made"),
        ] {
            if self.now < earlier {
                return Some(format!(
                    "the clock is wrong: it shows {}, and {what} at {}",
                    self.now.rfc3339(),
                    earlier.rfc3339()
                ));
            }
        }
        if self.is_synchronized {
            return None;
        }
        let left_ms = self.first_end.millis().saturating_sub(self.now.millis());
        (left_ms > WITHOUT_EVIDENCE_DAYS * DAY_MS).then(|| {
            format!(
                "nothing confirms that the clock is synchronized, so new certificates could have wrong dates; {WITHOUT_EVIDENCE_DAYS} days before they expire it is done anyway"
            )
        })
    }
}

/// Returns whether `chronyc tracking` says that the clock is synchronized.
pub fn is_tracked(text: &str) -> bool {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.any(|(key, value)| key.trim() == "Leap status" && value.trim() == "Normal")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Wall {
        Wall::parse_rfc3339(text).unwrap()
    }

    /// Certificates of 2026, with a clock that nobody vouches for.
    fn facts(now: &str) -> ClockFacts {
        ClockFacts {
            now: at(now),
            built: at("2025-11-01T00:00:00Z"),
            newest_start: at("2026-01-01T00:00:00Z"),
            first_end: at("2027-01-01T00:00:00Z"),
            is_synchronized: false,
        }
    }

    fn doubt(facts: ClockFacts) -> String {
        facts.doubt().unwrap_or_default()
    }

    #[test]
    fn without_evidence_a_restart_waits_until_ten_days_are_left_and_no_longer() {
        assert!(doubt(facts("2026-11-01T00:00:00Z")).contains("10 days before they expire"));
        assert!(doubt(facts("2026-12-21T23:59:59Z")).contains("synchronized"));
        for now in [
            "2026-12-22T00:00:00Z",
            "2026-12-31T12:00:00Z",
            "2027-01-01T00:00:00Z",
            "2028-03-01T00:00:00Z",
        ] {
            assert_eq!(facts(now).doubt(), None, "{now}");
        }
    }

    #[test]
    fn a_synchronized_clock_does_not_wait() {
        let facts = ClockFacts {
            is_synchronized: true,
            ..facts("2026-10-10T00:00:00Z")
        };
        assert_eq!(facts.doubt(), None);
    }

    #[test]
    fn a_clock_that_is_known_wrong_makes_no_certificates_whatever_is_said_of_it() {
        for is_synchronized in [false, true] {
            for (now, why) in [
                ("1970-01-01T00:00:12Z", "this program was built"),
                ("2025-12-24T00:00:00Z", "newest certificate was made"),
            ] {
                let facts = ClockFacts {
                    is_synchronized,
                    ..facts(now)
                };
                assert!(doubt(facts).contains(why), "{now}");
            }
        }
        // Also where little is left.
        let short = ClockFacts {
            first_end: at("2025-12-26T00:00:00Z"),
            ..facts("2025-12-24T00:00:00Z")
        };
        assert!(short.doubt().is_some());
    }

    #[test]
    fn chrony_says_it_in_its_leap_status() {
        let of = |leap: &str| {
            format!(
                "Reference ID    : C0000201 (ntp.example)\nStratum         : 3\nLeap status     : {leap}\n"
            )
        };
        assert!(is_tracked(&of("Normal")));
        for text in [&*of("Not synchronised"), "", "506 Cannot talk to daemon"] {
            assert!(!is_tracked(text), "{text}");
        }
    }
}
