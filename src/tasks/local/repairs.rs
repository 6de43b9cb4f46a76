//! What is wrong with the machine, what the root helper does about it, and what was done here so far.

use std::{path::PathBuf, pin::Pin, rc::Rc, time::Duration};

use super::Local;
use crate::{
    core::{
        audit::{Effect, Entry, Verdict},
        policy::Level,
        time::Now,
    },
    dashboard::{Asked, Reply},
    error::Error,
    tasks::{
        book::Begun,
        doctor::Report,
        keeper::Keeper,
        views::{happenings, kept::Kept},
    },
    wire::{
        api::{ChangeList, Doctor, Environment},
        keeper::Done,
    },
};

/// How long findings are told again.
const KEPT_FOR: Duration = Duration::from_secs(30);
/// How long the environment is: it changes with a reboot.
const ENVIRONMENT_KEPT_FOR: Duration = Duration::from_secs(3600);
/// Changes that are told.
const CHANGES_MAX: usize = 200;

/// Looks at the machine.
pub type Look = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Report>>>>;

/// Who finds out and who repairs.
pub struct Repairs {
    look: Look,
    keeper: PathBuf,
    findings: Kept<Doctor>,
    environment: Kept<Environment>,
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
            findings: Kept::new(clock, KEPT_FOR),
            environment: Kept::new(clock, ENVIRONMENT_KEPT_FOR),
        }
    }

    async fn findings(&self) -> Rc<Doctor> {
        self.findings
            .get(async { (self.look)().await.told() })
            .await
    }

    /// What kind of machine this is.
    pub(super) async fn environment(&self) -> Rc<Environment> {
        self.environment
            .get(async { self.findings().await.environment.clone() })
            .await
    }

    fn keeper(&self) -> Keeper<'_> {
        Keeper::at(&self.keeper)
    }
}

impl Local {
    pub(super) async fn problems(&self, asked: &Asked) -> Reply {
        let repairs = &self.sources.repairs;
        let is_fresh = asked.value("fresh").is_some_and(|value| value == "1");
        if is_fresh && asked.caller.role >= crate::core::door::Role::Operator {
            repairs.findings.forget();
        }
        Reply::json(&*repairs.findings().await)
    }

    /// Has the root helper repair what a check found.
    pub(super) async fn fix(&self, asked: &Asked) -> Reply {
        let keeper = self.sources.repairs.keeper();
        self.repair(asked, "fix", keeper.fix(&asked.id)).await
    }

    /// Takes a change back: a switch of access here, all others by the root helper.
    pub(super) async fn undo(&self, asked: &Asked) -> Reply {
        if let Some(level) = self.level_before(&asked.id).await {
            return self.set_back(level, asked).await;
        }
        let keeper = self.sources.repairs.keeper();
        self.repair(asked, "undo", keeper.undo(&asked.id)).await
    }

    /// How strict this box was before the change of that id, where that is the one that holds.
    async fn level_before(&self, id: &str) -> Option<Level> {
        let changes = happenings::changes(self.book.store()).await.ok()?;
        let mut found = changes.into_iter();
        let change = found.find(|change| change.id == id && change.undo.possible)?;
        let (before, _) = change.what.strip_prefix("access ")?.split_once(" -> ")?;
        Level::from_word(before)
    }

    async fn set_back(&self, level: Level, asked: &Asked) -> Reply {
        let change = match self.access.set(level, &asked.caller).await {
            Ok(change) => change,
            Err(refused) => return refused.into(),
        };
        Reply::json(&Done {
            change: Some(asked.id.clone()),
            outcome: "undone".to_owned(),
            sentence: format!("access is {}", change.level),
            undo: Some(format!("sudo pipeops-agent access {}", change.before)),
            remains: change.trouble,
        })
    }

    async fn repair(
        &self,
        asked: &Asked,
        verb: &str,
        act: impl Future<Output = Result<Done, Error>>,
    ) -> Reply {
        let who = asked.caller.in_words();
        let what = format!("{verb} {}", asked.id);
        let entry = Entry::new(&who, &what, Verdict::Permitted, "asked for on this machine");
        let begun = self.book.begin(entry, self.board.now().wall).await;
        log::info!("{what}, by {who}");
        let done = act.await;
        let outcome = done.as_ref().map_or("failed", |done| &done.outcome);
        match begun {
            Ok(begun) => self.note_end(begun, outcome).await,
            // The root helper has a journal of its own, so this is not the only word of it.
            Err(failure) => log::warn!("{what} by {who} is not in the audit: {failure}"),
        }
        self.sources.repairs.findings.forget();
        if let Ok(Done {
            change: Some(change),
            ..
        }) = &done
        {
            self.tell(change).await;
        }
        match done {
            Ok(done) => Reply::json(&done),
            Err(error) => Reply::unavailable(error.sentence(), error.fix.as_deref()),
        }
    }

    /// Tells viewers what became of a change of the root helper.
    async fn tell(&self, change: &str) {
        let changes = self.sources.repairs.keeper().changes().await;
        let found = changes.into_iter().flatten();
        for change in found.filter(|known| known.id == change) {
            self.live.changed(&change);
        }
    }

    async fn note_end(&self, begun: Begun, outcome: &str) {
        let ended = self.book.end(begun, outcome, Effect::default());
        if let Err(failure) = ended.await {
            log::warn!("how a repair ended is not in the audit: {failure}");
        }
    }

    /// What was done here, by whom, and how it is taken back: of the audit, and of the root helper where there is one.
    pub(super) async fn changes(&self) -> Reply {
        let own = happenings::changes(self.book.store()).await;
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
        changes.sort_by(|one, other| other.at.cmp(&one.at));
        changes.truncate(CHANGES_MAX);
        Reply::json(&ChangeList { changes })
    }
}
