//! The root process: what the doctor's findings need root for. It repairs what is on a closed list,
//! keeps a journal of it, takes it back, and reads what only root can read.
//!
//! It speaks to no network and decides nothing that the agent could decide. It believes nothing
//! that the agent says: a request names a check or a change, and everything else comes from the
//! machine itself.

mod acts;
mod inspect;
mod journal;
pub mod k3s;
mod repairs;
mod server;
mod system;
pub mod update;

use std::path::{Path, PathBuf};

pub use server::{Allowed, Server, wait_for_connection};
pub use system::Watch;

use self::{
    acts::Certainty,
    journal::{Journal, LockedJournal},
    repairs::Planned,
    system::System,
};
use crate::{
    core::{
        doctor::UPDATE_TAKEN_BACK,
        journal::{Next, Outcome, StepState},
        repair::Repair,
        time::Wall,
    },
    error::{Error, Result},
    host::clock,
    wire::{
        api::{ChangeReport, Undo},
        keeper::{Act, Done, Inspection, Plan, Record},
    },
};

/// Applies and undoes repairs, below a root.
#[derive(Debug)]
pub struct Keeper {
    system: System,
    directory: PathBuf,
    reach: Confinement,
}

/// Confinement of this process: the part of the machine that it can change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Confinement {
    /// All of it.
    Host,
    /// The rest that the sandbox of its service leaves: no mounts, no other processes.
    Sandbox,
}

impl Keeper {
    /// A keeper of what is below `root`, which is `/` or a tree that stands for it, with its
    /// journal in `directory`.
    pub fn new(root: &Path, directory: &Path) -> Self {
        Self {
            system: System::new(root),
            directory: directory.to_owned(),
            reach: Confinement::Host,
        }
    }

    /// The same in a sandbox: an interrupted change of k3s is left to a process that has none.
    #[must_use]
    pub fn in_sandbox(mut self) -> Self {
        self.reach = Confinement::Sandbox;
        self
    }

    /// The same, with somebody who hears what a change is doing.
    #[must_use]
    pub fn watched(mut self, watch: Watch) -> Self {
        self.system.watch = watch;
        self
    }

    /// The same, telling the agent of changes of k3s from the first one on, by its group.
    #[must_use]
    pub fn shown_to(mut self, group: Option<u32>) -> Self {
        self.system.group = group;
        self
    }

    /// Goes on with what a power cut interrupted. Says what came of it.
    pub fn resume(&self) -> Result<Vec<Done>> {
        let journal = self.open()?;
        self.settle(&journal)
    }

    /// Describes the fix of that check on this machine now.
    pub fn plan(&self, check: &str) -> Result<Plan> {
        let repair = repair_of(check)?;
        let plan = Plan {
            check: check.to_owned(),
            ..Plan::default()
        };
        Ok(match repairs::plan(repair, &self.system)? {
            Planned::Nothing(why) => Plan { does: why, ..plan },
            Planned::Work(recipe) => Plan {
                is_needed: true,
                remains: recipe.remains(),
                does: recipe.does,
                leaves: recipe.leaves,
                undo: recipe.undo,
                ..plan
            },
        })
    }

    /// Repairs what that check found. Asked twice, it does it once.
    pub fn fix(&self, check: &str, who: &str) -> Result<Done> {
        let repair = repair_of(check)?;
        let journal = self.open()?;
        // What was interrupted comes first: it may be this very thing.
        self.settle(&journal)?;
        let recipe = match repairs::plan(repair, &self.system)? {
            Planned::Work(recipe) => recipe,
            Planned::Nothing(why) => {
                let earlier = journal.records()?.into_iter().rev();
                let mut earlier = earlier.filter(|record| record.check == check);
                let change = earlier.find(is_in_force).map(|record| record.id());
                return Ok(Done {
                    undo: change.as_deref().map(undo_command),
                    change,
                    outcome: Outcome::Done.as_str().to_owned(),
                    sentence: why,
                    remains: None,
                });
            }
        };
        let acts = repairs::acts(&recipe, &self.system)?;
        let record = Record {
            remains: recipe.remains(),
            ..Record::new(check, who, now(), recipe.does)
        };
        self.begin(&journal, record, acts)
    }

    /// Writes a change down and carries it out.
    fn begin(&self, journal: &LockedJournal, record: Record, acts: Vec<Act>) -> Result<Done> {
        for act in &acts {
            self.system.check(act)?;
        }
        let mut record = Record {
            number: journal.next_number()?,
            acts,
            ..record
        };
        journal.keep_copies(&mut record, &self.system)?;
        journal.write(&record)?;
        log::info!("{}: {}, for {}", record.id(), record.does, record.who);
        self.go_on(journal, record)
    }

    /// Takes a change back. What somebody else changed since is left alone, and so is all the rest
    /// then.
    pub fn undo(&self, id: &str, who: &str) -> Result<Done> {
        let journal = self.open()?;
        self.settle(&journal)?;
        let found = journal
            .records()?
            .into_iter()
            .find(|record| record.id() == id);
        let Some(mut record) = found else {
            return Err(Error::new(format!("there is no change {id:?}"))
                .fix("sudo pipeops-agent changes shows all"));
        };
        if record.outcome.as_deref() == Some(Outcome::Undone.as_str()) {
            return Ok(summary(&record));
        }
        if let Some(why) = no_undo(&record) {
            return Err(Error::new(format!("cannot undo {id}")).why(why));
        }
        if k3s::is_k3s(&record) {
            if self.reach == Confinement::Sandbox {
                return Err(Error::new(format!("cannot undo {id} from here"))
                    .why("this service is sandboxed and cannot make that change")
                    .fix(undo_command(id)));
            }
            let turn = self.take_turn_to_undo(&record);
            turn.map_err(|error| error.within(format!("cannot undo {id} now")))?;
            for act in k3s::guards(&record) {
                self.system.act(act)?;
            }
        }
        self.begin_undo(&journal, &mut record, who)?;
        self.go_on(&journal, record)
    }

    /// Refuses a change that somebody else made than one whose name begins so.
    fn only_by(&self, id: &str, who: &str) -> Result<()> {
        let records = Journal::open(&self.directory)?.records()?.into_iter();
        let mut others = records.filter(|record| !record.who.starts_with(who));
        let Some(record) = others.find(|record| record.id() == id) else {
            return Ok(());
        };
        Err(Error::new(format!("cannot undo {id} from here"))
            .why(format!(
                "the agent did not ask for it: it was made by {}",
                record.who
            ))
            .fix(undo_command(id)))
    }

    fn begin_undo(&self, journal: &LockedJournal, record: &mut Record, who: &str) -> Result<()> {
        let cannot = || format!("cannot undo {}", record.id());
        for (act, state) in record.acts.iter().zip(&record.steps) {
            let was_begun = state != StepState::Undone.as_str();
            // One that was not done may have moved nothing.
            let is_open = !matches!(act, Act::File { .. }) && state != StepState::Done.as_str();
            if was_begun && !is_open {
                self.system
                    .check_undo(act, journal.directory())
                    .map_err(|error| error.within(cannot()))?;
            }
        }
        record.undone_by = Some(who.to_owned());
        record.outcome = None;
        journal.write(record)?;
        log::info!("{}: undoing it, for {who}", record.id());
        Ok(())
    }

    /// All changes that are known, the newest first.
    pub fn changes(&self) -> Result<Vec<ChangeReport>> {
        let records = Journal::open(&self.directory)?.records()?;
        Ok(records.iter().rev().map(change).collect())
    }

    /// Facts that only root can read.
    pub fn inspect(&self) -> Inspection {
        let mut facts = inspect::facts(&self.system);
        if let Some(update) = self.update_taken_back() {
            facts.insert(UPDATE_TAKEN_BACK.to_owned(), Some(update));
        }
        Inspection { facts }
    }

    /// Brings what is under way to its end.
    fn settle(&self, journal: &LockedJournal) -> Result<Vec<Done>> {
        let open = journal.records()?.into_iter();
        let open = open.filter(|record| record.outcome.is_none());
        let open = open.filter(|record| self.reach == Confinement::Host || !k3s::is_k3s(record));
        open.map(|record| {
            self.system.tell(&format!("going on with {}", record.id()));
            log::info!("{}: going on with it", record.id());
            self.go_on(journal, record)
        })
        .collect()
    }

    /// The one that may change things now.
    fn open(&self) -> Result<LockedJournal> {
        Journal::open(&self.directory)?.lock()
    }

    /// Does the steps that are left, forth or back, each on disk before and after it.
    fn go_on(&self, journal: &LockedJournal, mut record: Record) -> Result<Done> {
        let undoes = record.undone_by.as_ref().map_or("", |_| "undo: ");
        let telling = format!("{undoes}{}", record.does);
        let mut telling = k3s::is_k3s(&record).then(|| self.system.begin_telling(&telling));
        loop {
            match next(&record) {
                Next::Over => return Ok(summary(&record)),
                Next::Forward(position) => match self.step(journal, &mut record, position)? {
                    Step::Taken => {}
                    Step::None => end(&mut record, Outcome::Done),
                },
                Next::Undo(position) => self.step_back(journal, &mut record, position)?,
                Next::AllUndone => end(&mut record, Outcome::Undone),
            }
            if record.outcome.is_some() {
                // Before the last write: nothing would take it back after a kill that follows it.
                drop(telling.take());
                journal.write(&record)?;
                journal.prune()?;
                log::info!("{}: {}", record.id(), summary(&record).sentence);
            }
        }
    }

    fn step(&self, journal: &LockedJournal, record: &mut Record, position: u32) -> Result<Step> {
        let system = usize::try_from(position).unwrap_or(usize::MAX);
        let Some(act) = record.acts.get(system).cloned() else {
            return Ok(Step::None);
        };
        let worked = match state(record, system) {
            None => {
                record.steps.push(StepState::Intended.as_str().to_owned());
                journal.write(record)?;
                return Ok(Step::Taken);
            }
            Some(StepState::Intended) => {
                if let Some(summary) = k3s::describe_act(&act).filter(|_| k3s::is_k3s(record)) {
                    let all = record.acts.len();
                    self.system.tell(&format!(
                        "step {} of {all}: {summary}",
                        system.saturating_add(1)
                    ));
                }
                self.system.act(&act).map(|()| StepState::Acted)
            }
            Some(StepState::Acted) => self.system.see(&act).map(|()| StepState::Verified),
            Some(StepState::Verified) => Ok(StepState::Done),
            Some(StepState::Done | StepState::Failed | StepState::Undone) => {
                return Ok(Step::Taken);
            }
        };
        let next = worked.unwrap_or_else(|error| {
            record.why = Some(with_fix(&error));
            StepState::Failed
        });
        set(record, system, next);
        if next == StepState::Failed && record.is_one_way {
            end(record, Outcome::Failed);
        } else if next == StepState::Failed {
            let why = record.why.as_deref().unwrap_or_default();
            self.system.tell(&format!("failed, undoing it: {why}"));
        }
        journal.write(record)?;
        Ok(Step::Taken)
    }

    fn step_back(&self, journal: &LockedJournal, record: &mut Record, position: u32) -> Result<()> {
        let system = usize::try_from(position).unwrap_or(usize::MAX);
        let Some(act) = record.acts.get(system) else {
            return Ok(());
        };
        let certainty = match state(record, system) {
            Some(StepState::Failed | StepState::Intended) => Certainty::Unsure,
            Some(_) | None => Certainty::Sure,
        };
        match self.system.undo(act, journal.directory(), certainty) {
            Ok(()) => set(record, system, StepState::Undone),
            Err(error) => {
                let before = record.why.take().map(|why| format!("{why}; and then: "));
                record.why = Some(before.unwrap_or_default() + &with_fix(&error));
                end(record, Outcome::Failed);
                return Ok(());
            }
        }
        journal.write(record)
    }
}

/// Refuses a file that others than root could have written, or put in the place of another: root
/// does not take its settings from it.
fn trust(path: &Path) -> Result<()> {
    System::new(Path::new("/")).guard(&path.display().to_string())
}

/// The same for files of settings, and for those in folders of settings.
pub fn trust_all(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        let inside = std::fs::read_dir(path).into_iter().flatten().flatten();
        for path in inside.map(|entry| entry.path()).chain([path.clone()]) {
            trust(&path)?;
        }
    }
    Ok(())
}

enum Step {
    Taken,
    None,
}

fn repair_of(check: &str) -> Result<Repair> {
    Repair::of(check).ok_or_else(|| {
        let all: Vec<_> = Repair::ALL.iter().map(|repair| repair.check()).collect();
        Error::new(format!("there is no automatic fix for {:?}", short(check)))
            .fix(format!("there is one for {}", all.join(", ")))
    })
}

/// Excerpt of a stranger's text that fits into a sentence.
fn short(text: &str) -> String {
    text.chars().take(60).collect()
}

fn now() -> Wall {
    clock::now().wall
}

fn with_fix(error: &Error) -> String {
    match &error.fix {
        Some(fix) => format!("{} (fix: {fix})", error.sentence()),
        None => error.sentence(),
    }
}

fn state(record: &Record, system: usize) -> Option<StepState> {
    // A word that is not known is that of an interrupted write of another version: the step is done
    // again.
    let word = record.steps.get(system)?;
    Some(StepState::of(word).unwrap_or(StepState::Intended))
}

fn set(record: &mut Record, system: usize, next: StepState) {
    debug_assert!(
        state(record, system).is_some_and(|now| now.may_become(next)),
        "{record:?} {system} {next:?}"
    );
    if let Some(word) = record.steps.get_mut(system) {
        next.as_str().clone_into(word);
    }
}

fn end(record: &mut Record, outcome: Outcome) {
    record.outcome = Some(outcome.as_str().to_owned());
}

/// Returns how to continue: like [`crate::core::journal::Change::next`], and back if somebody wants
/// that.
fn next(record: &Record) -> Next {
    if record.outcome.is_some() {
        return Next::Over;
    }
    let states: Vec<_> = (0..record.steps.len())
        .filter_map(|system| state(record, system))
        .collect();
    let at = |system: usize| u32::try_from(system).unwrap_or(u32::MAX);
    let is_back = record.undone_by.is_some()
        || states
            .iter()
            .any(|state| matches!(state, StepState::Failed | StepState::Undone));
    if is_back {
        let left = states.iter().rposition(|state| *state != StepState::Undone);
        return left.map_or(Next::AllUndone, |system| Next::Undo(at(system)));
    }
    let open = states.iter().position(|state| *state != StepState::Done);
    Next::Forward(at(open.unwrap_or(states.len())))
}

/// The reason that a change which is done cannot be undone as others are.
fn no_undo(record: &Record) -> Option<String> {
    let opposite = record.opposite.as_ref();
    let other = opposite.map(|command| format!("to revert it: {command}"));
    other.or_else(|| record.is_one_way.then(|| "it cannot be undone".to_owned()))
}

fn is_in_force(record: &Record) -> bool {
    record.outcome.as_deref() == Some(Outcome::Done.as_str())
}

fn undo_command(id: &str) -> String {
    format!("sudo pipeops-agent undo {id}")
}

/// The answer about a change that is over.
fn summary(record: &Record) -> Done {
    let outcome = record.outcome.clone().unwrap_or_default();
    let id = record.id();
    let is_undone = outcome == Outcome::Undone.as_str();
    let sentence = match (&record.why, is_undone) {
        (None, true) => format!("reverted: {}", record.does),
        (Some(why), true) => format!("it failed and was reverted: {why}"),
        (None, false) => record.does.clone(),
        (Some(why), false) => format!("it stopped halfway: {why}"),
    };
    // A change that failed and was taken back is a failed fix, and a change that was taken back on
    // demand a successful undo.
    let word = match (is_undone, &record.undone_by) {
        (true, None) => Outcome::Failed.as_str().to_owned(),
        (true, Some(_)) | (false, _) => outcome,
    };
    let undo = || record.opposite.clone().unwrap_or_else(|| undo_command(&id));
    Done {
        undo: (is_in_force(record) && !record.is_one_way).then(undo),
        remains: record.remains.clone().filter(|_| is_in_force(record)),
        change: Some(id),
        outcome: word,
        sentence,
    }
}

fn change(record: &Record) -> ChangeReport {
    let outcome = record.outcome.as_deref();
    let is_undone = outcome == Some(Outcome::Undone.as_str());
    let why_not = match outcome {
        None => Some("it is in progress".to_owned()),
        Some(_) if is_undone => Some("it is undone already".to_owned()),
        Some(_) => no_undo(record),
    };
    let id = record.id();
    let by = record.undone_by.as_ref();
    let by = by.filter(|_| is_undone).map(|by| format!("undone by {by}"));
    ChangeReport {
        at: Wall::from_millis(record.at_ms).rfc3339(),
        who: record.who.clone(),
        from: "this machine".to_owned(),
        what: record.does.clone(),
        outcome: match outcome {
            None => "running".to_owned(),
            Some(_) if record.waits.is_some() => "waits".to_owned(),
            Some(outcome) => outcome.to_owned(),
        },
        why: record.waits.clone().or_else(|| record.why.clone()).or(by),
        undo: Undo {
            possible: why_not.is_none(),
            command: why_not.is_none().then(|| undo_command(&id)),
            why_not,
        },
        id,
    }
}

#[cfg(test)]
mod tests;
