//! State of the service of k3s, as its service manager has it.

use crate::core::k3s::ready;

/// The service, as systemd has it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Service {
    /// `ActiveState`.
    pub active: String,
    /// `Result` of the last run.
    pub result: String,
    /// `NRestarts`.
    pub restarts: u32,
    /// Exit status of the last run.
    pub status: u32,
    /// True if it starts with the machine.
    pub is_enabled: bool,
    /// True if it was started since the machine was.
    pub was_started: bool,
    /// Microseconds from the end of its process to its state of now.
    pub settled_us: u64,
    /// Seconds from the start of the machine to that of its process; `None`: not known.
    pub started_s: Option<u64>,
}

/// Properties that [`Service::parse`] reads, for `systemctl show -p`.
pub const PROPERTIES: &str = "ActiveState,Result,NRestarts,ExecMainStatus,UnitFileState,InactiveExitTimestampMonotonic,\
    ExecMainStartTimestampMonotonic,ExecMainExitTimestampMonotonic,StateChangeTimestampMonotonic";

/// `Result` of a service that is restarted no more.
const GIVEN_UP: &str = "start-limit-hit";

/// Longest time from the end of a process to the state of its service, where nothing was waited
/// for.
const AT_ONCE_US: u64 = 1_000_000;

impl Service {
    /// Reads the answer of `systemctl show`.
    pub fn parse(shown: &str) -> Self {
        let value = |name: &str| {
            let mut lines = shown.lines().filter_map(|line| line.split_once('='));
            lines
                .find(|(found, _)| *found == name)
                .map_or("", |(_, value)| value)
        };
        let micros = |name: &str| value(name).parse::<u64>().unwrap_or(0);
        let ended = micros("ExecMainExitTimestampMonotonic");
        let changed = micros("StateChangeTimestampMonotonic");
        Self {
            active: value("ActiveState").to_owned(),
            result: value("Result").to_owned(),
            restarts: ready::restarts(shown),
            status: value("ExecMainStatus").parse().unwrap_or(0),
            is_enabled: value("UnitFileState") == "enabled",
            was_started: !matches!(value("InactiveExitTimestampMonotonic"), "" | "0"),
            settled_us: changed.saturating_sub(ended),
            started_s: Some(micros("ExecMainStartTimestampMonotonic") / 1_000_000)
                .filter(|started| *started > 0),
        }
    }

    /// Reads the answer of `rc-service NAME status`. `has_failed` is the mark of supervise-daemon
    /// that it gave the service up, and `is_alive` tells whether its process is there, which
    /// matters where the supervisor is gone. OpenRC does not know whether a stopped service ran
    /// before, so it counts as stopped by somebody.
    pub fn of_openrc(status: &str, has_failed: bool, is_alive: bool) -> Self {
        let word = status.split_once("status:").map_or("", |(_, word)| word);
        let (active, is_given_up) = match word.split_whitespace().next() {
            Some("started") => ("active", false),
            Some("unsupervised") if is_alive => ("active", false),
            Some("starting") => ("activating", false),
            Some("stopping") => ("deactivating", false),
            Some("crashed" | "unsupervised") => ("failed", true),
            Some("stopped") if has_failed => ("failed", true),
            Some(_) => ("inactive", false),
            None => ("", false),
        };
        Self {
            active: active.to_owned(),
            result: if is_given_up { GIVEN_UP } else { "" }.to_owned(),
            was_started: true,
            ..Self::default()
        }
    }

    /// Returns whether it runs.
    pub fn is_running(&self) -> bool {
        self.active == "active"
    }

    /// True if systemd has ended it for good, by itself. It says so as the result of a service that
    /// had none; otherwise that of the last run stays. Then the time tells: it had waited for the
    /// next restart (`RestartSec`, 5 s in the unit of k3s), while a service that somebody stopped
    /// is down as soon as its process is.
    pub(super) fn is_given_up(&self) -> bool {
        let has_waited = self.result != "success" && self.settled_us > AT_ONCE_US;
        self.active == "failed" && (self.result == GIVEN_UP || has_waited)
    }

    /// Returns whether somebody stopped it, or does not want it to start: then it stays as it is.
    pub fn is_stopped_on_purpose(&self) -> bool {
        let is_down = matches!(self.active.as_str(), "inactive" | "failed" | "deactivating");
        is_down && (!self.is_enabled || (self.was_started && !self.is_given_up()))
    }
}
