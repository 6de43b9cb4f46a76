//! Changes to the cluster and the machine, step by step, so that a power cut at any point leaves a
//! way on or a way back.
//!
//! It keeps nothing: the store writes what is said here, before the effect it speaks of.

use std::{cell::RefCell, rc::Rc};

use crate::core::time::Wall;

/// State of a step. A step is safe to repeat until it is done.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum StepState {
    /// It is about to act; nothing may have happened, or all.
    Intended,
    /// It acted; whether that worked is not known yet.
    Acted,
    /// Its effect was verified.
    Verified,
    /// It is over.
    Done,
    /// It did not work.
    Failed,
    /// Its effect was undone.
    Undone,
}

impl StepState {
    /// The word on disk, in the API and in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Intended => "intended",
            Self::Acted => "acted",
            Self::Verified => "verified",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Undone => "undone",
        }
    }

    /// The state of that word.
    pub fn of(word: &str) -> Option<Self> {
        [
            Self::Intended,
            Self::Acted,
            Self::Verified,
            Self::Done,
            Self::Failed,
            Self::Undone,
        ]
        .into_iter()
        .find(|state| state.as_str() == word)
    }

    /// Returns whether `next` may follow. A step goes forward one by one, fails from anywhere but
    /// the end, and is undone from anywhere.
    pub const fn may_become(self, next: Self) -> bool {
        match (self, next) {
            (Self::Intended, Self::Acted)
            | (Self::Acted, Self::Verified)
            | (Self::Verified, Self::Done) => true,
            (Self::Intended | Self::Acted | Self::Verified, Self::Failed) => true,
            (Self::Undone, _) => false,
            (_, Self::Undone) => true,
            _ => false,
        }
    }
}

/// Outcome of a change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// All of it is done.
    Done,
    /// All of it was taken back.
    Undone,
    /// It stopped half-way and could not be taken back.
    Failed,
}

impl Outcome {
    /// The word on disk, in the API and in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Undone => "undone",
            Self::Failed => "failed",
        }
    }

    /// The outcome of that word.
    pub fn of(word: &str) -> Option<Self> {
        [Self::Done, Self::Undone, Self::Failed]
            .into_iter()
            .find(|outcome| outcome.as_str() == word)
    }
}

/// End of a change.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ChangeEnd {
    pub outcome: Outcome,
    /// Reason.
    pub why: Option<String>,
    /// Action for a person.
    pub fix: Option<String>,
}

impl ChangeEnd {
    /// An end without a reason.
    pub const fn new(outcome: Outcome) -> Self {
        Self {
            outcome,
            why: None,
            fix: None,
        }
    }

    /// Says why.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    /// Says what a person can do.
    #[must_use]
    pub fn fix(mut self, fix: Option<String>) -> Self {
        self.fix = fix;
        self
    }
}

/// Intent of a change: written before the first step.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Intent {
    /// Requester: `control-plane`, `cli uid 0`, `dashboard operator`.
    pub origin: String,
    /// Kind of change: `deploy`, `k3s-upgrade`.
    pub kind: String,
    /// Everything that is needed to go on after a restart, in the words of the kind.
    pub body: String,
}

/// One step of a change.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ChangeStep {
    /// Its place in the change, from 0.
    pub position: u32,
    /// Its name within the kind of change: `stop`, `swap`.
    pub name: String,
    pub state: StepState,
    /// Data for undoing it, in a form that its kind defines; `None` if there is nothing to undo.
    pub undo: Option<String>,
    /// Observation, or the reason of a failure.
    pub detail: Option<String>,
}

/// One change as the journal has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Change {
    /// Chosen by who asks: asking twice with one id changes once.
    pub id: String,
    pub intent: Intent,
    /// Time when the intent was written.
    pub started: Wall,
    /// Time when it ended, and how; `None` while it is under way.
    pub ended: Option<(Wall, ChangeEnd)>,
    /// Its steps so far, in order.
    pub steps: Vec<ChangeStep>,
}

/// Continuation of an unfinished change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    /// Do, or do again, the step at this place: the one after the last that is on disk where that
    /// one is done.
    Forward(u32),
    /// Take back the step at this place.
    Undo(u32),
    /// Every step was taken back: write the outcome.
    AllUndone,
    Over,
}

impl Change {
    /// Returns how to continue according to the journal: forward, unless a step failed or an undo
    /// was begun. The kind of change may choose to undo for reasons of its own.
    pub fn next(&self) -> Next {
        if self.ended.is_some() {
            return Next::Over;
        }
        let is_going_back = self
            .steps
            .iter()
            .any(|step| matches!(step.state, StepState::Failed | StepState::Undone));
        if is_going_back {
            // The last first: what was built on a step goes before it.
            let left = self
                .steps
                .iter()
                .rev()
                .find(|step| step.state != StepState::Undone);
            return left.map_or(Next::AllUndone, |step| Next::Undo(step.position));
        }
        let open = self
            .steps
            .iter()
            .find(|step| step.state != StepState::Done)
            .map(|step| step.position);
        let after = || {
            self.steps
                .last()
                .map_or(0, |step| step.position.saturating_add(1))
        };
        Next::Forward(open.unwrap_or_else(after))
    }
}

/// Gives the right to change things to one change at a time.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    holder: Rc<RefCell<Option<String>>>,
}

/// The right to change the cluster or the machine. Every function that does so takes a reference to
/// it; dropping it lets the next change begin.
#[derive(Debug)]
pub struct ChangeLock {
    id: String,
    holder: Rc<RefCell<Option<String>>>,
}

/// Another change is under way.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Occupied {
    /// Id of that change.
    pub by: String,
}

impl Journal {
    /// A journal without a change under way.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the right for the change of that id.
    pub fn lock(&self, id: &str) -> Result<ChangeLock, Occupied> {
        let mut holder = self.holder.borrow_mut();
        if let Some(by) = holder.clone() {
            return Err(Occupied { by });
        }
        *holder = Some(id.to_owned());
        Ok(ChangeLock {
            id: id.to_owned(),
            holder: Rc::clone(&self.holder),
        })
    }
}

impl ChangeLock {
    /// The change that holds it.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Drop for ChangeLock {
    fn drop(&mut self) {
        *self.holder.borrow_mut() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use StepState::{Acted, Done, Failed, Intended, Undone, Verified};

    const STATES: [StepState; 6] = [Intended, Acted, Verified, Done, Failed, Undone];

    fn change(states: &[StepState]) -> Change {
        Change {
            id: "c1".to_owned(),
            intent: Intent::default(),
            started: Wall::default(),
            ended: None,
            steps: (0..)
                .zip(states)
                .map(|(position, state)| ChangeStep {
                    position,
                    name: format!("step {position}"),
                    state: *state,
                    undo: None,
                    detail: None,
                })
                .collect(),
        }
    }

    #[test]
    fn a_step_goes_forward_fails_before_its_end_and_is_undone_once() {
        use StepState::{Acted, Done, Failed, Intended, Undone, Verified};
        let states = [Intended, Acted, Verified, Done, Failed, Undone];
        let followers: [Vec<StepState>; 6] = states.map(|state| {
            let next = states.iter().copied();
            next.filter(|next| state.may_become(*next)).collect()
        });
        let expected = [
            vec![Acted, Failed, Undone],
            vec![Verified, Failed, Undone],
            vec![Done, Failed, Undone],
            vec![Undone],
            vec![Undone],
            vec![],
        ];
        assert_eq!(followers, expected);
    }

    #[test]
    fn a_change_goes_forward_until_a_step_fails_and_then_back() {
        for (states, next) in [
            (&[][..], Next::Forward(0)),
            (&[Intended], Next::Forward(0)),
            (&[Done, Acted], Next::Forward(1)),
            (&[Done, Done], Next::Forward(2)),
            (&[Done, Failed], Next::Undo(1)),
            (&[Done, Undone], Next::Undo(0)),
            (&[Done, Done, Undone], Next::Undo(1)),
            (&[Undone, Undone], Next::AllUndone),
        ] {
            assert_eq!(change(states).next(), next, "{states:?}");
        }
    }

    #[test]
    fn an_ended_change_is_over_whatever_its_steps_are() {
        for outcome in [Outcome::Done, Outcome::Undone, Outcome::Failed] {
            let mut change = change(&[Done, Failed]);
            change.ended = Some((Wall::default(), ChangeEnd::new(outcome)));
            assert_eq!(change.next(), Next::Over);
            assert_eq!(Outcome::of(outcome.as_str()), Some(outcome));
        }
    }

    #[test]
    fn a_step_is_never_done_twice_nor_after_it_was_undone() {
        for from in STATES {
            assert!(!from.may_become(from), "{from:?}");
            assert!(!Undone.may_become(from), "{from:?}");
            assert_eq!(from.may_become(Done), from == Verified, "{from:?}");
            assert_eq!(from.may_become(Undone), from != Undone, "{from:?}");
            assert!(!from.may_become(Intended), "{from:?}");
            assert_eq!(StepState::of(from.as_str()), Some(from));
        }
        assert!(!Done.may_become(Failed));
    }

    #[test]
    fn one_change_at_a_time() {
        let journal = Journal::new();
        let lock = journal.lock("c1").unwrap();
        let by = "c1".to_owned();
        assert_eq!(journal.lock("c2").unwrap_err(), Occupied { by });
        assert_eq!(lock.id(), "c1");
        drop(lock);
        assert!(journal.lock("c2").is_ok());
    }
}
