//! Stalls: disk jobs that wait for too long, and what follows from them.
//!
//! A job is known by a number and says nothing about time: it has waited as long as looks at it
//! say. So a process that was stopped, or a machine that slept, does not take its own absence for a
//! disk that hangs.

use std::time::Duration;

use litemap::LiteMap;

use crate::core::order::OrderExt as _;

use super::{
    time::Mono,
    verdict::{Stage, sentences},
};

/// Condition of a state directory that does not answer.
pub const STORE: &str = "store.hung";
/// Condition of other files that cannot be read because their disk does not answer.
pub const FILES: &str = "files.hung";
/// Every condition of this module.
pub const CONDITIONS: [&str; 2] = [STORE, FILES];
/// Fix of both.
pub const FIX: &str = "dmesg | tail -n 40 says why; a card or a cable that hangs is about to fail: copy what matters and replace it \
    (where somebody froze the file system: sudo fsfreeze -u MOUNTPOINT)";

/// Longest time that a look accounts for: whoever looks comes back after 3 s at most, unless it was
/// held up itself.
const LOOK_MAX: Duration = Duration::from_secs(4);

/// Kinds of work that may wait for a disk.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Job {
    /// A touch of the state directory that writes nothing.
    Touch,
    /// A job of the thread of `state.db`.
    State,
    /// A job of the thread of `telemetry.db`.
    Telemetry,
    /// A large answer on disk.
    Spool,
    /// A file with a token or a password.
    Secret,
    Kubeconfig,
    Settings,
    /// Certificates and keys.
    Certificate,
    /// Identity of the machine: its name, its distribution, its id.
    Machine,
    /// The socket of the command line.
    Socket,
}

impl Job {
    /// Time after which a job of this kind has stalled. A touch takes milliseconds, and seconds
    /// while a slow card writes; the samples of a month are packed for many seconds on a small
    /// board, without any trouble of the disk.
    pub const fn patience(self) -> Duration {
        Duration::from_secs(match self {
            Self::Touch
            | Self::Secret
            | Self::Kubeconfig
            | Self::Settings
            | Self::Certificate
            | Self::Machine
            | Self::Socket => 4,
            Self::State | Self::Spool => 8,
            Self::Telemetry => 60,
        })
    }

    /// Returns whether a job of this kind works in the state directory.
    const fn is_of_store(self) -> bool {
        match self {
            Self::Touch | Self::State | Self::Telemetry | Self::Spool => true,
            Self::Secret
            | Self::Kubeconfig
            | Self::Settings
            | Self::Certificate
            | Self::Machine
            | Self::Socket => false,
        }
    }

    /// Name of what a job of this kind reads or writes.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Touch => "the state directory",
            Self::State => "state.db",
            Self::Telemetry => "telemetry.db",
            Self::Spool => "a large answer",
            Self::Secret => "the file of a token or password",
            Self::Kubeconfig => "the kubeconfig",
            Self::Settings => "the settings",
            Self::Certificate => "a certificate",
            Self::Machine => "the facts of this machine",
            Self::Socket => "the folder of the socket",
        }
    }
}

/// Jobs that are under way, and how long each was seen waiting.
#[derive(Debug, Default)]
pub struct Stalls {
    seen: LiteMap<u64, (Job, Duration)>,
    looked: Option<Mono>,
}

/// Hung jobs, as of one look.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StallReport {
    /// True while the state directory does not answer.
    pub is_store_hung: bool,
    /// Kinds of other files that do not answer.
    pub files: Vec<Job>,
    /// True while any job is under way.
    pub is_busy: bool,
}

impl Stalls {
    /// Takes the jobs that are under way now.
    pub fn look(&mut self, running: &[(u64, Job)], now: Mono) -> StallReport {
        let passed = self.looked.map_or(Duration::ZERO, |at| now.since(at));
        let passed = passed.min(LOOK_MAX);
        self.looked = Some(now);
        let before = std::mem::take(&mut self.seen);
        for (number, job) in running {
            let waited = before.get(number);
            let waited = waited.map_or(Duration::ZERO, |(_, waited)| waited.saturating_add(passed));
            self.seen.insert(*number, (*job, waited));
        }
        let stalled = self.seen.values();
        let stalled = stalled.filter(|(job, waited)| *waited >= job.patience());
        let mut found = StallReport {
            is_busy: !running.is_empty(),
            ..StallReport::default()
        };
        for (job, _) in stalled {
            if job.is_of_store() {
                found.is_store_hung = true;
            } else if !found.files.contains(job) {
                found.files.push(*job);
            }
        }
        found.files.order();
        found
    }
}

impl StallReport {
    /// Conditions that hold, as id and sentence; `directory` is the state directory.
    pub fn conditions(&self, directory: &str, stage: Stage) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        if self.is_store_hung {
            all.push((STORE, sentences::store_hung(directory, stage)));
        }
        if !self.files.is_empty() {
            let named: Vec<_> = self.files.iter().map(|job| job.as_str()).collect();
            all.push((FILES, sentences::files_hung(&named.join(" and "), stage)));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono::since_boot(Duration::from_secs(seconds))
    }

    #[test]
    fn a_touch_that_waits_for_four_seconds_is_a_disk_that_hangs() {
        let mut stalls = Stalls::default();
        let running = [(7, Job::Touch)];
        for second in 0..4 {
            let found = stalls.look(&running, at(second));
            assert!(!found.is_store_hung && found.is_busy, "after {second} s");
        }
        assert!(stalls.look(&running, at(4)).is_store_hung);
        assert_eq!(stalls.look(&[], at(5)), StallReport::default());
    }

    #[test]
    fn jobs_that_end_one_after_the_other_are_no_stall() {
        let mut stalls = Stalls::default();
        for second in 0..60 {
            let found = stalls.look(
                &[(second, Job::Touch), (100 + second, Job::State)],
                at(second),
            );
            assert!(!found.is_store_hung);
        }
    }

    #[test]
    fn a_process_that_was_stopped_does_not_blame_the_disk() {
        let mut stalls = Stalls::default();
        let running = [(1, Job::State)];
        assert!(!stalls.look(&running, at(0)).is_store_hung);
        assert!(!stalls.look(&running, at(3_600)).is_store_hung);
        assert!(!stalls.look(&[], at(3_601)).is_store_hung);
    }

    #[test]
    fn a_token_file_that_hangs_leaves_the_store_alone() {
        let mut stalls = Stalls::default();
        let running = [(1, Job::Secret), (2, Job::Kubeconfig), (3, Job::Secret)];
        for second in 0..5 {
            stalls.look(&running, at(second));
        }
        let found = stalls.look(&running, at(5));
        assert!(!found.is_store_hung);
        let [(id, sentence)] = &*found.conditions("/var/lib/x", Stage::Running) else {
            panic!("{found:?}");
        };
        assert_eq!(*id, FILES);
        assert!(
            sentence.contains("token or password and the kubeconfig"),
            "{sentence}"
        );
    }

    #[test]
    fn samples_may_be_packed_for_longer_than_a_touch_may_take() {
        let mut stalls = Stalls::default();
        let running = [(1, Job::Telemetry)];
        for second in 0..60 {
            assert!(!stalls.look(&running, at(second)).is_store_hung);
        }
        assert!(stalls.look(&running, at(60)).is_store_hung);
    }
}
