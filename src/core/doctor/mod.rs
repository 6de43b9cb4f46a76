//! Checks of the doctor: each with its problem, the reason why it matters, and the fix on this
//! machine.
//!
//! A check reads nothing: it judges [`Facts`] for an [`Environment`]. It runs after the checks that
//! it depends on, and is skipped if one of them has a problem, so that one cause is one finding.

mod agent;
mod clock;
mod disk;
mod firewall;
mod k3s;
mod kernel;
mod logs;
mod machine;
mod network;
mod resolver;

use litemap::LiteMap;

use crate::core::order::OrderExt as _;

pub use self::{
    agent::{CERTIFICATE, SECRETS, UPDATE_TAKEN_BACK},
    clock::is_behind,
    firewall::DUPLICATES_MAX,
    k3s::{DATASTORE_BYTES_MAX, DATASTORE_LOG_BYTES_MAX},
};
use super::{
    environment::Environment,
    facts::{self, Fact, Facts},
    health::Severity,
    repair::Recipe,
};

/// One thing that can be wrong.
#[derive(Debug)]
pub struct Check {
    /// Stable id, `part.name`.
    pub id: &'static str,
    /// Name of the check for people.
    pub title: &'static str,
    /// Severity of a problem, unless the judgement sets another.
    pub severity: Severity,
    /// Checks whose problem explains this one.
    pub after: &'static [&'static str],
    /// Facts that it judges, by name.
    pub reads: &'static [&'static str],
    /// Reason why it matters.
    pub why: &'static str,
    /// The judgement.
    pub judge: fn(&Facts, &Environment) -> Judgement,
}

/// Advice for a person, with placeholders in braces (see [`Environment::filled`]).
#[derive(Debug)]
pub struct Advice {
    /// In words.
    pub fix: &'static str,
    /// Commands to type, in this order.
    pub commands: &'static [&'static str],
}

/// Result of a check.
#[derive(Debug)]
pub enum Judgement {
    /// No problem; the observation.
    Ok(String),
    /// A problem.
    Problem(Problem),
    /// Unknown, with the reason.
    Unknown(String),
    /// Not applicable here; the reason.
    NotHere(&'static str),
}

/// Problem that a check found.
#[derive(Debug)]
pub struct Problem {
    /// Observation, in one sentence without a full stop.
    pub seen: String,
    /// Severity, where it differs from that of the table.
    pub severity: Option<Severity>,
    /// Value of `{about}` in the advice.
    pub about: String,
    pub advice: &'static Advice,
    /// Repair by the keeper on this machine; its commands follow those of the advice.
    pub recipe: Option<Recipe>,
}

impl Problem {
    fn new(seen: impl Into<String>, advice: &'static Advice) -> Self {
        Self {
            seen: seen.into(),
            severity: None,
            about: String::new(),
            advice,
            recipe: None,
        }
    }

    fn repaired_by(mut self, recipe: Option<Recipe>) -> Self {
        self.recipe = recipe;
        self
    }

    fn about(mut self, about: impl Into<String>) -> Self {
        self.about = about.into();
        self
    }

    fn severity(mut self, severity: Severity) -> Self {
        self.severity = Some(severity);
        self
    }
}

impl From<Problem> for Judgement {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

/// The word for what a check came to.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum CheckOutcome {
    /// Something is wrong.
    Problem,
    Unknown,
    /// It was not looked at: something else is the cause, or there is nothing of the kind here.
    Skipped,
    /// It is as it should be.
    Ok,
}

impl CheckOutcome {
    /// The word in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Unknown => "unknown",
            Self::Skipped => "skipped",
            Self::Ok => "ok",
        }
    }
}

/// A check with what it came to.
#[derive(Debug)]
pub struct CheckResult {
    pub check: &'static Check,
    pub outcome: CheckOutcome,
    pub severity: Severity,
    /// Observation.
    pub seen: String,
    /// Fix in words.
    pub fix: Option<String>,
    /// Commands to type.
    pub commands: Vec<String>,
    /// The check whose problem explains this one.
    pub because: Option<&'static str>,
    /// True if only root could have seen it.
    pub needs_root: bool,
    /// Repair by the keeper.
    pub recipe: Option<Recipe>,
}

/// Said where only root can tell.
pub const NEEDS_ROOT: &str = "needs root: run sudo pipeops-agent doctor";

const TABLES: [&[Check]; 10] = [
    kernel::CHECKS,
    machine::CHECKS,
    clock::CHECKS,
    disk::CHECKS,
    logs::CHECKS,
    network::CHECKS,
    firewall::CHECKS,
    resolver::CHECKS,
    k3s::CHECKS,
    agent::CHECKS,
];

/// Returns whether a line of the kernel's log is of interest to any check.
pub fn is_of_interest(line: &str) -> bool {
    let words = logs::IO_ERRORS
        .iter()
        .chain(&logs::USB)
        .chain(&logs::UNCLEAN);
    words.into_iter().any(|word| line.contains(word))
}

/// The whole table; a check stands behind those that it depends on.
pub fn checks() -> impl Iterator<Item = &'static Check> {
    TABLES.into_iter().flatten()
}

/// Judges everything. Problems come first, the worst of them on top; within the same, the order of
/// the table, which is that of causes.
///
/// What is well is told as such whatever else is wrong; anything else waits for its cause.
pub fn judge(facts: &Facts, environment: &Environment) -> Vec<CheckResult> {
    let mut verdicts: Vec<CheckResult> = Vec::new();
    // The problem that a check has or waits for.
    let mut causes: LiteMap<&str, &'static str> = LiteMap::new();
    for check in checks() {
        let cause = check.after.iter().find_map(|id| causes.get(id).copied());
        let verdict = verdict(check, cause, facts, environment);
        let own = (verdict.outcome == CheckOutcome::Problem).then_some(check.id);
        causes.extend(verdict.because.or(own).map(|cause| (check.id, cause)));
        verdicts.push(verdict);
    }
    verdicts.order_by_key(|verdict| {
        let severity = match verdict.outcome {
            CheckOutcome::Problem => verdict.severity,
            CheckOutcome::Unknown | CheckOutcome::Skipped | CheckOutcome::Ok => Severity::Note,
        };
        (verdict.outcome, std::cmp::Reverse(severity))
    });
    verdicts
}

fn verdict(
    check: &'static Check,
    cause: Option<&'static str>,
    facts: &Facts,
    environment: &Environment,
) -> CheckResult {
    let needs_root = check.reads.iter().any(|name| facts.is_forbidden(name));
    let mut verdict = CheckResult {
        check,
        outcome: CheckOutcome::Skipped,
        severity: check.severity,
        seen: String::new(),
        fix: None,
        commands: Vec::new(),
        because: None,
        needs_root,
        recipe: None,
    };
    match (check.judge)(facts, environment) {
        // What is seen to be well may only seem so.
        Judgement::Ok(_) | Judgement::Unknown(_) if needs_root && cause.is_none() => {
            verdict.outcome = CheckOutcome::Unknown;
            NEEDS_ROOT.clone_into(&mut verdict.seen);
        }
        Judgement::Ok(seen) if !needs_root => {
            verdict.outcome = CheckOutcome::Ok;
            verdict.seen = seen;
        }
        Judgement::NotHere(why) => why.clone_into(&mut verdict.seen),
        Judgement::Ok(_) | Judgement::Unknown(_) | Judgement::Problem(_) if cause.is_some() => {
            verdict.because = cause;
            verdict.seen = format!("skipped because of {}", cause.unwrap_or_default());
        }
        Judgement::Ok(seen) | Judgement::Unknown(seen) => {
            verdict.outcome = CheckOutcome::Unknown;
            verdict.seen = seen;
        }
        Judgement::Problem(problem) => {
            let Problem { about, advice, .. } = &problem;
            verdict.fix = Some(environment.filled(advice.fix, about));
            verdict.commands = environment.typed(advice.commands, about);
            let by_hand = problem.recipe.as_ref().map(Recipe::commands);
            verdict.commands.extend(by_hand.unwrap_or_default());
            verdict.recipe.clone_from(&problem.recipe);
            verdict.severity = problem.severity.unwrap_or(check.severity);
            verdict.outcome = CheckOutcome::Problem;
            verdict.seen = problem.seen;
        }
    }
    verdict
}

fn unknown(why: &str) -> Judgement {
    Judgement::Unknown(why.to_owned())
}

fn ok(seen: impl Into<String>) -> Judgement {
    Judgement::Ok(seen.into())
}

/// Returns why a fact is not there, for a judgement that cannot do without.
fn unread(facts: &Facts, name: &str) -> Judgement {
    Judgement::Unknown(match facts.found.get(name) {
        Some(Fact::Failed(why)) => format!("{name}: {why}"),
        Some(Fact::Text(_)) => format!("{name} does not report it"),
        Some(Fact::Forbidden) => NEEDS_ROOT.to_owned(),
        Some(Fact::Missing) | None => format!("{name} does not exist"),
    })
}
