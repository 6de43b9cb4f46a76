//! Findings of the doctor, repairs by the keeper, and the changes so far.

use std::{path::PathBuf, rc::Rc, time::Duration};

use smol::{
    Timer,
    channel::{Receiver, Sender, bounded},
    future::{BoxedLocal, FutureExt as _},
};

use super::Local;
use crate::{
    core::{
        audit::{AuditDecision, AuditEntry, Effect},
        health::Severity,
        order::OrderExt as _,
        policy::Level,
        time::Now,
        verdict::{MACHINE, sentences},
    },
    dashboard::{ApiRequest, Reply},
    error::Error,
    tasks::{
        audit::Begun,
        dashboard::{
            status,
            views::{cached::Cached, history},
        },
        machine::{doctor::Report, keeper::Keeper},
        state::SharedState,
    },
    wire::{
        api::{ChangeList, Check, Doctor, Environment},
        keeper::Done,
    },
};

/// Time for which findings are reused.
const KEPT_FOR: Duration = Duration::from_secs(30);
/// Time for which the environment is reused: it changes with a reboot.
const ENVIRONMENT_KEPT_FOR: Duration = Duration::from_secs(3600);
/// First check after the start, interval between checks, and minimum time between two checks for
/// people.
const FIRST_AFTER: Duration = Duration::from_secs(60);
const EXAMINED_EVERY: Duration = Duration::from_secs(3600);
const EXAMINE_INTERVAL_MIN: Duration = Duration::from_secs(60);
/// Checks of what the running agent watches itself.
const OWN_PARTS: [&str; 2] = ["agent", "dashboard"];
const OWN_CHECKS: [&str; 2] = ["clock.wrong", "k3s.api"];
/// Maximum number of changes in the list.
const CHANGES_MAX: usize = 200;

/// Looks at the machine.
pub type Look = Box<dyn Fn() -> BoxedLocal<Report>>;

/// Doctor and keeper.
pub struct Repairs {
    look: Look,
    keeper: PathBuf,
    findings: Cached<Doctor>,
    request: (Sender<()>, Receiver<()>),
    environment: Cached<Environment>,
}

impl std::fmt::Debug for Repairs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Repairs")
    }
}

impl Repairs {
    /// `look` finds out; the root helper listens at `keeper`.
    pub fn new(look: Look, keeper: PathBuf, clock: fn() -> Now) -> Self {
        Self {
            look,
            keeper,
            findings: Cached::new(clock, KEPT_FOR),
            request: bounded(1),
            environment: Cached::new(clock, ENVIRONMENT_KEPT_FOR),
        }
    }

    async fn findings(&self) -> Rc<Doctor> {
        self.findings
            .get(async { (self.look)().await.to_wire() })
            .await
    }

    /// Environment of the machine.
    pub(super) async fn environment(&self) -> Rc<Environment> {
        self.environment
            .get(async { self.findings().await.environment.clone() })
            .await
    }

    fn keeper(&self) -> Keeper<'_> {
        Keeper::at(&self.keeper)
    }
}

/// Makes what the doctor found a condition.
fn report(shared_state: &SharedState, found: &Doctor) {
    // A busy machine: what was not read in time is no finding, and what was found before holds.
    if !found.is_whole {
        return;
    }
    shared_state.examined.set(Some(shared_state.now().mono));
    let problems: Vec<_> = found.checks.iter().filter(|check| is_told(check)).collect();
    let Some(worst) = problems.first() else {
        return shared_state.clear(MACHINE);
    };
    let severity = Severity::of(&worst.severity).unwrap_or(Severity::Warning);
    let sentence = sentences::machine_problems(problems.len(), &worst.title, &worst.seen);
    let fix = "sudo pipeops-agent doctor".to_owned();
    shared_state.report(MACHINE, severity, sentence, Some(fix));
}

fn is_told(check: &Check) -> bool {
    let part = check.id.split('.').next().unwrap_or_default();
    check.is_problem()
        && check.severity != Severity::Note.as_str()
        && !OWN_PARTS.contains(&part)
        && !OWN_CHECKS.contains(&check.id.as_str())
}

impl Local {
    pub(super) async fn problems(&self, request: &ApiRequest) -> Reply {
        let repairs = &self.sources.repairs;
        let is_fresh = request.value("fresh").is_some_and(|value| value == "1");
        if is_fresh && request.caller.role >= crate::core::authorization::Role::Operator {
            repairs.findings.forget();
        }
        let found = self.examined().await;
        let verdict = status::verdict(&self.shared_state).into();
        Reply::json(&Doctor {
            verdict: Some(verdict),
            ..(*found).clone()
        })
    }

    /// Findings of the doctor, a part of the verdict.
    async fn examined(&self) -> Rc<Doctor> {
        let found = self.sources.repairs.findings().await;
        report(&self.shared_state, &found);
        found
    }

    /// Looks at the machine now and then, and when a person asked how it is.
    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    pub async fn examine(&self) {
        let request = &self.sources.repairs.request.1;
        let mut wait = FIRST_AFTER;
        loop {
            let time = async {
                Timer::after(wait).await;
            };
            let question = async {
                request.recv().await.ok();
            };
            time.or(question).await;
            let found = self.examined().await;
            wait = if found.is_whole {
                EXAMINED_EVERY
            } else {
                FIRST_AFTER
            };
        }
    }

    /// Has the machine looked at, where that was not done for a while; nobody waits for it.
    pub(super) fn ask_for_examination(&self) {
        let now = self.shared_state.now().mono;
        let is_fresh = self
            .shared_state
            .examined
            .get()
            .is_some_and(|at| now.since(at) < EXAMINE_INTERVAL_MIN);
        if !is_fresh {
            // Full: it is asked for already.
            self.sources.repairs.request.0.try_send(()).ok();
        }
    }

    /// Has the root helper repair what a check found.
    pub(super) async fn fix(&self, request: &ApiRequest) -> Reply {
        let keeper = self.sources.repairs.keeper();
        self.repair(request, "fix", keeper.fix(&request.id)).await
    }

    /// Takes a change back: a switch of access here, all others by the root helper.
    pub(super) async fn undo(&self, request: &ApiRequest) -> Reply {
        if let Some(level) = self.level_before(&request.id).await {
            return self.set_back(level, request).await;
        }
        let keeper = self.sources.repairs.keeper();
        self.repair(request, "undo", keeper.undo(&request.id)).await
    }

    /// Access level before the change of that id, if that one is in force.
    async fn level_before(&self, id: &str) -> Option<Level> {
        let changes = history::changes(self.audit_writer.store()).await.ok()?;
        let mut found = changes.into_iter();
        let change = found.find(|change| change.id == id && change.undo.possible)?;
        let (before, _) = change.what.strip_prefix("access ")?.split_once(" -> ")?;
        Level::from_word(before)
    }

    async fn set_back(&self, level: Level, request: &ApiRequest) -> Reply {
        let change = match self.access.set(level, &request.caller).await {
            Ok(change) => change,
            Err(refused) => return refused.into(),
        };
        Reply::json(&Done {
            change: Some(request.id.clone()),
            outcome: "undone".to_owned(),
            sentence: format!("access is {}", change.level),
            undo: Some(format!("sudo pipeops-agent access {}", change.before)),
            remains: change.trouble,
        })
    }

    async fn repair(
        &self,
        request: &ApiRequest,
        verb: &str,
        act: impl Future<Output = Result<Done, Error>>,
    ) -> Reply {
        let who = request.caller.in_words();
        let what = format!("{verb} {}", request.id);
        let entry = AuditEntry::new(
            &who,
            &what,
            AuditDecision::Permitted,
            "asked for on this machine",
        );
        let begun = self
            .audit_writer
            .begin(entry, self.shared_state.now().wall)
            .await;
        log::info!("{what}, by {who}");
        let done = act.await;
        let outcome = done.as_ref().map_or("failed", |done| &done.outcome);
        match begun {
            Ok(begun) => self.note_end(begun, outcome).await,
            // The root helper has a journal of its own, so this is not the only word of it.
            Err(failure) => log::warn!("{what} by {who} is not in the audit: {failure}"),
        }
        self.sources.repairs.findings.forget();
        self.shared_state.examined.set(None);
        self.ask_for_examination();
        if let Ok(Done {
            change: Some(change),
            ..
        }) = &done
        {
            self.announce(change).await;
        }
        match done {
            Ok(done) => Reply::json(&done),
            Err(error) => Reply::unavailable(error.sentence(), error.fix.as_deref()),
        }
    }

    /// Tells viewers what became of a change of the root helper.
    async fn announce(&self, change: &str) {
        let changes = self.sources.repairs.keeper().changes().await;
        let found = changes.into_iter().flatten();
        for change in found.filter(|known| known.id == change) {
            self.stream.changed(&change);
        }
    }

    async fn note_end(&self, begun: Begun, outcome: &str) {
        let ended = self.audit_writer.end(begun, outcome, Effect::default());
        if let Err(failure) = ended.await {
            log::warn!("how a repair ended is not in the audit: {failure}");
        }
    }

    /// Changes on this machine with requester and undo: from the audit, and from the keeper if it
    /// runs.
    pub(super) async fn changes(&self) -> Reply {
        let own = history::changes(self.audit_writer.store()).await;
        let mut changes = match own {
            Ok(changes) => changes,
            Err(why) => {
                return Reply::unavailable(why, Some("pipeops-agent status says more"));
            }
        };
        match self.sources.repairs.keeper().changes().await {
            Ok(repairs) => changes.extend(repairs),
            // Not having one is how many machines are.
            Err(error) => log::debug!("changes of the root helper are not shown: {error}"),
        }
        changes.order_by(|one, other| other.at.cmp(&one.at));
        changes.truncate(CHANGES_MAX);
        Reply::json(&ChangeList { changes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(id: &str, severity: &str, outcome: &str) -> Check {
        Check {
            id: id.to_owned(),
            title: "Space on the disk".to_owned(),
            severity: severity.to_owned(),
            outcome: outcome.to_owned(),
            seen: "94 % used".to_owned(),
            ..Check::default()
        }
    }

    fn reported(checks: Vec<Check>) -> Option<(String, Severity)> {
        let shared_state = SharedState::new(Now::default);
        let mut found = Doctor {
            checks,
            ..Doctor::default()
        };
        report(&shared_state, &found);
        assert_eq!(shared_state.examined.get(), None, "it was not whole");
        found.is_whole = true;
        report(&shared_state, &found);
        assert!(shared_state.examined.get().is_some());
        shared_state.with_conditions(|list| {
            let found = list.get(MACHINE)?;
            Some((found.sentence.clone(), found.severity))
        })
    }

    #[test]
    fn problems_of_the_machine_are_one_condition_with_the_worst_of_them() {
        let found = reported(vec![
            check("disk.space", "critical", "problem"),
            check("limits.inotify", "warning", "problem"),
            check("disk.wear", "note", "problem"),
            check("disk.inodes", "critical", "ok"),
        ]);
        let wanted = sentences::machine_problems(2, "Space on the disk", "94 % used");
        assert_eq!(found, Some((wanted, Severity::Critical)));
    }

    #[test]
    fn what_the_agent_watches_itself_is_not_told_twice() {
        assert_eq!(
            reported(vec![
                check("agent.control-plane", "critical", "problem"),
                check("k3s.api", "critical", "problem"),
                check("clock.wrong", "critical", "problem"),
            ]),
            None
        );
    }
}
