//! Trial of a new version: it must prove itself in time, or the previous one comes back.

use std::time::Duration;

use crate::core::time::Mono;

/// Time for a new version to prove itself.
pub const WITHIN: Duration = Duration::from_secs(300);
/// Starts of a trial: each but the first follows a power cut or a reboot. A machine that dies again
/// and again goes back.
pub const STARTS_MAX: u32 = 3;
/// Time for which everything must hold, at most.
const SOAK_MAX: Duration = Duration::from_secs(60);

/// Status of the agent, as read from its socket; the default is no answer.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct AgentStatus {
    /// Version that answers.
    pub version: Option<String>,
    /// Time since it started.
    pub up: Duration,
    /// True if its databases work.
    pub stores: bool,
    /// True if it is linked.
    pub is_linked: bool,
    /// True if it runs its link and its page only, because it crashed again and again.
    pub is_in_safe_mode: bool,
}

/// Cause of a return to the previous version.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cause {
    /// It did not answer at the end: it crashes or hangs.
    Silent,
    /// It cannot use its databases, or never got to them: it refuses the settings.
    Store,
    /// It has no link, or only just got one, and the previous version had one.
    Link,
    /// The machine went down again and again.
    Restarts,
}

impl Cause {
    /// Returns whether the version is at fault, so that it is not tried again by itself. A lost
    /// link may be the fault of the network, and a machine that goes down that of its power.
    pub const fn bans(self) -> bool {
        match self {
            Self::Silent | Self::Store => true,
            Self::Link | Self::Restarts => false,
        }
    }

    /// The cause in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Silent => "it crashed or did not answer",
            Self::Store => "it could not use its databases or its settings",
            Self::Link => {
                "it did not reach the control plane in time, which the previous version had reached"
            }
            Self::Restarts => "the machine kept going down",
        }
    }
}

/// Verdict on a new version.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TrialVerdict {
    /// It is not known yet.
    Wait,
    /// It proved itself.
    Keep,
    /// The previous version comes back.
    Return(Cause),
}

/// A trial that runs.
#[derive(Clone, Debug)]
pub struct Trial {
    version: String,
    was_linked: bool,
    within: Duration,
    began: Mono,
    sound_since: Option<Mono>,
    linked_since: Option<Mono>,
}

impl Trial {
    /// A trial of `version` from now on.
    pub fn new(version: &str, was_linked: bool, within: Duration, now: Mono) -> Self {
        Self {
            version: version.to_owned(),
            was_linked,
            within,
            began: now,
            sound_since: None,
            linked_since: None,
        }
    }

    /// Judges what is seen now.
    pub fn look(&mut self, agent: &AgentStatus, now: Mono) -> TrialVerdict {
        let answers = agent.version.as_ref() == Some(&self.version);
        if answers && agent.is_in_safe_mode {
            return TrialVerdict::Return(Cause::Silent);
        }
        let soak = SOAK_MAX.min(self.within / 3);
        let is_sound = answers && agent.stores;
        let is_linked = agent.is_linked || !self.was_linked;
        // A link that comes late or goes away must not hide that the version itself is sound.
        self.sound_since = is_sound.then(|| self.sound_since.unwrap_or(now));
        self.linked_since = is_linked.then(|| self.linked_since.unwrap_or(now));
        let held = |since: Option<Mono>| since.is_some_and(|since| now.since(since) >= soak);
        // A start in between would make its time shorter than ours.
        let is_proved = held(self.sound_since) && agent.up >= soak;
        if is_proved && held(self.linked_since) {
            return TrialVerdict::Keep;
        }
        if now.since(self.began) < self.within {
            return TrialVerdict::Wait;
        }
        TrialVerdict::Return(if !answers {
            Cause::Silent
        } else if !agent.stores {
            Cause::Store
        } else if is_proved {
            Cause::Link
        } else {
            // It was not sound for long enough: it starts again and again.
            Cause::Silent
        })
    }
}
