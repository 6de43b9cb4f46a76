//! "Link or node?": the side that is broken, from the result of each step to the control plane.

use std::time::Duration;

/// A step of the way from this machine to the control plane's answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PathStep {
    /// A cable, or a Wi-Fi that is joined.
    Carrier,
    /// An address of this machine.
    Address,
    /// A way out of its network.
    Route,
    /// From the name to an address.
    Dns,
    /// A connection.
    Tcp,
    /// An encrypted one.
    Tls,
    /// An answer.
    Http,
    /// The time that this machine believes it is.
    Clock,
    /// The session that the link holds, or why it holds none.
    Session,
    /// The Kubernetes API of this machine's cluster.
    Cluster,
}

impl PathStep {
    /// The word in the API, and the name for people.
    pub const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Carrier => ("carrier", "Cable or Wi-Fi"),
            Self::Address => ("address", "Address"),
            Self::Route => ("route", "Default route"),
            Self::Dns => ("dns", "DNS"),
            Self::Tcp => ("tcp", "Connection"),
            Self::Tls => ("tls", "Encryption"),
            Self::Http => ("http", "Answer"),
            Self::Clock => ("clock", "Clock"),
            Self::Session => ("session", "Session"),
            Self::Cluster => ("cluster", "Kubernetes"),
        }
    }
}

/// Result of a step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StepResult {
    /// The step succeeded.
    Ok,
    /// The step failed; the side that is to blame.
    Failed(Side),
    /// It was not tried, because one before it failed or it does not apply.
    Skipped,
    Unknown,
}

impl StepResult {
    /// The word in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed(_) => "failed",
            Self::Skipped => "skipped",
            Self::Unknown => "unknown",
        }
    }
}

/// Side that has the problem.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// None of them.
    None,
    /// This machine.
    Node,
    /// The network in between.
    Network,
    ControlPlane,
    Unknown,
}

impl Side {
    /// The word in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Node => "node",
            Self::Network => "network",
            Self::ControlPlane => "control plane",
            Self::Unknown => "unknown",
        }
    }
}

/// One step with what it showed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Probe {
    pub step: PathStep,
    /// Its result.
    pub outcome: StepResult,
    /// Observation.
    pub seen: String,
    /// Duration.
    pub took: Option<Duration>,
    /// Action for a person.
    pub fix: Option<String>,
}

impl Probe {
    /// A step that needs no more words.
    pub fn new(step: PathStep, outcome: StepResult, seen: impl Into<String>) -> Self {
        Self {
            step,
            outcome,
            seen: seen.into(),
            took: None,
            fix: None,
        }
    }

    /// One that was not tried because another failed.
    pub fn skipped(step: PathStep) -> Self {
        Self::new(step, StepResult::Skipped, "skipped: an earlier step failed")
    }

    /// The same with what a person can do.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// The same with how long it took.
    #[must_use]
    pub fn took(mut self, took: Duration) -> Self {
        self.took = Some(took);
        self
    }
}

/// Finds the side that has the problem, and the sentence for it. The last step that works proves
/// those before it, even those that seemed to fail.
pub fn verdict(probes: &[Probe]) -> (Side, String) {
    let is_aside = |step| matches!(step, PathStep::Clock | PathStep::Cluster);
    let is_ok = |probe: &Probe| probe.outcome == StepResult::Ok && !is_aside(probe.step);
    let proven = probes.iter().rposition(is_ok).unwrap_or(0);
    let failed = probes.iter().enumerate().find_map(|(index, probe)| {
        let StepResult::Failed(side) = probe.outcome else {
            return None;
        };
        let counts = index > proven || is_aside(probe.step) || proven == 0;
        counts.then_some((side, probe))
    });
    if let Some((side, probe)) = failed {
        let who = match side {
            Side::Node => "this machine is the cause",
            Side::Network => "the network between this machine and the control plane is the cause",
            Side::ControlPlane => "the control plane is the cause",
            Side::None | Side::Unknown => "the cause is unknown",
        };
        return (side, format!("{who}: {}", probe.seen));
    }
    let session = probes.iter().find(|probe| probe.step == PathStep::Session);
    // The way may work now although there is no session yet: nobody knows before there is one.
    if let Some(session) = session.filter(|session| session.outcome == StepResult::Unknown) {
        return (Side::Unknown, session.seen.clone());
    }
    let is_proof = |step| matches!(step, PathStep::Http | PathStep::Session);
    if probes
        .iter()
        .any(|probe| is_proof(probe.step) && is_ok(probe))
    {
        let all = "every step of the connection to the control plane works";
        return (Side::None, all.to_owned());
    }
    let unknown = "the cause is unknown: no step failed, but not every step could be tested";
    (Side::Unknown, unknown.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [PathStep; 10] = [
        PathStep::Carrier,
        PathStep::Address,
        PathStep::Route,
        PathStep::Dns,
        PathStep::Tcp,
        PathStep::Tls,
        PathStep::Http,
        PathStep::Clock,
        PathStep::Session,
        PathStep::Cluster,
    ];

    fn probes(outcomes: &str) -> Vec<Probe> {
        let probes = ALL
            .into_iter()
            .zip(outcomes.chars())
            .map(|(step, character)| {
                let outcome = match character {
                    '+' => StepResult::Ok,
                    'n' => StepResult::Failed(Side::Node),
                    'w' => StepResult::Failed(Side::Network),
                    'c' => StepResult::Failed(Side::ControlPlane),
                    '-' => StepResult::Skipped,
                    _ => StepResult::Unknown,
                };
                Probe::new(step, outcome, step.words().0)
            });
        probes.collect()
    }

    #[test]
    fn the_first_step_that_fails_says_whose_fault_it_is() {
        for (outcomes, side, about) in [
            ("++++++++", Side::None, "works"),
            ("n-------", Side::Node, "carrier"),
            ("++n-----", Side::Node, "route"),
            ("+++w----", Side::Network, "dns"),
            ("++++c---", Side::ControlPlane, "tcp"),
            ("+++++w--", Side::Network, "tls"),
            ("++++++c?", Side::ControlPlane, "http"),
            ("+++++++n", Side::Node, "clock"),
            // A container without /sys: the way works all the same.
            ("n?n+++++", Side::None, "works"),
            ("????----", Side::Unknown, "unknown"),
            ("", Side::Unknown, "unknown"),
            ("+++++++++-", Side::None, "works"),
            ("+++++++n+", Side::Node, "clock"),
            // A refused token, a session that is still being made, a dead API server.
            ("++++++++n+", Side::Node, "session"),
            ("++++++++?+", Side::Unknown, "session"),
            ("+++++++++n", Side::Node, "cluster"),
            // A session proves what could not be tried.
            ("+++?????+-", Side::None, "works"),
        ] {
            let (found, sentence) = verdict(&probes(outcomes));
            assert_eq!(found, side, "{outcomes}: {sentence}");
            assert!(sentence.contains(about), "{outcomes}: {sentence}");
        }
    }
}
