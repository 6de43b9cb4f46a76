//! Commands of the control plane: which of them may be accepted at all, by their id, their verb,
//! their size and their time.

use std::time::Duration;

use crate::{core::time::Wall, error::Error};

/// The longest id.
pub const ID_BYTES_MAX: usize = 128;
/// The largest arguments, as JSON. An app of a hundred objects has 100 KB of manifests.
pub const ARGS_BYTES_MAX: usize = 512 << 10;
/// Time by which the clocks of both sides may differ. Ids are forgotten in the order of their
/// times, so one that comes from far ahead would never be.
const AHEAD_MAX: Duration = Duration::from_secs(24 * 3600);

/// Action of a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verb {
    /// Deploy manifests.
    Apply,
    /// Delete an app.
    Remove,
    /// Put an earlier version back.
    Rollback,
    /// Replace the Pods of an app.
    Restart,
    /// Change the number of Pods of a workload.
    Scale,
    /// Cancel the change that is under way.
    Cancel,
    /// Leave a version that does not work as it is, from now on.
    Pause,
    /// Put the last good version back again, from now on.
    Resume,
    /// Read the log of the Pod that says most.
    Logs,
}

impl Verb {
    const ALL: [Self; 9] = [
        Self::Apply,
        Self::Remove,
        Self::Rollback,
        Self::Restart,
        Self::Scale,
        Self::Cancel,
        Self::Pause,
        Self::Resume,
        Self::Logs,
    ];

    /// The word on the wire and in the journal.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "app.apply",
            Self::Remove => "app.remove",
            Self::Rollback => "app.rollback",
            Self::Restart => "app.restart",
            Self::Scale => "app.scale",
            Self::Cancel => "app.cancel",
            Self::Pause => "app.pause",
            Self::Resume => "app.resume",
            Self::Logs => "app.logs",
        }
    }

    /// The verb of that word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.as_str() == word)
    }
}

/// A command that may be accepted, without its arguments.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Command {
    /// Chosen by the control plane: the same id is carried out once.
    pub id: String,
    /// Action.
    pub verb: Verb,
    /// Time that the control plane gave it.
    pub issued: Wall,
}

/// A command as it was received.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RawCommand {
    /// Its id, which [`is_id`].
    pub id: String,
    /// Word of the verb.
    pub verb: String,
    /// JSON of the arguments; `None`: none, or too many.
    pub args: Option<String>,
    /// Size of the arguments.
    pub args_bytes: usize,
    /// Time that it was given; `None`: none that can be read.
    pub issued: Option<Wall>,
    /// Time after which it is not accepted any more.
    pub deadline: Deadline,
}

/// Deadline of a command.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Deadline {
    /// It has none.
    #[default]
    None,
    /// This time.
    At(Wall),
    /// One that cannot be read.
    Unreadable,
}

/// Returns whether a text can be the id of a command: printable ASCII without blanks.
pub fn is_id(text: &str) -> bool {
    (1..=ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Judges what a command says of itself.
///
/// # Errors
/// Reason why it is not accepted.
pub fn judge(said: &RawCommand, now: Wall) -> Result<Command, Error> {
    let refused = |why: String| Error::new("the command is not accepted").why(why);
    let Some(verb) = Verb::of(&said.verb) else {
        let known: Vec<_> = Verb::ALL.iter().map(|verb| verb.as_str()).collect();
        let word: String = said.verb.chars().take(40).collect();
        return Err(refused(format!("there is no verb {word:?}"))
            .fix(format!("this agent knows {}", known.join(", "))));
    };
    if said.args_bytes > ARGS_BYTES_MAX {
        return Err(refused(format!(
            "its args have {} bytes, and {ARGS_BYTES_MAX} is the most",
            said.args_bytes
        ))
        .fix("deploy the app in parts"));
    }
    let time = "as RFC 3339: 2026-06-16T05:50:28Z";
    let Some(issued) = said.issued else {
        return Err(refused("issued_at is missing or no time".to_owned())
            .fix(format!("send issued_at {time}")));
    };
    if issued.millis().saturating_sub(now.millis()) > millis(AHEAD_MAX) {
        return Err(refused(format!(
            "it was issued at {}, and the clock of this machine shows {}",
            issued.rfc3339(),
            now.rfc3339()
        ))
        .fix("synchronize the clock of this machine: pipeops-agent doctor"));
    }
    match said.deadline {
        Deadline::Unreadable => Err(refused("its deadline is not a valid time".to_owned())
            .fix(format!("send deadline {time}, or none"))),
        Deadline::At(deadline) if deadline < now => Err(refused(format!(
            "it expired at {}, and the clock of this machine shows {}",
            deadline.rfc3339(),
            now.rfc3339()
        ))
        .fix("send it again under another id")),
        Deadline::At(_) | Deadline::None => Ok(Command {
            id: said.id.clone(),
            verb,
            issued,
        }),
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: i64 = 24 * 3600 * 1000;

    fn said() -> RawCommand {
        RawCommand {
            id: "c-1".to_owned(),
            verb: "app.restart".to_owned(),
            args: Some("{}".to_owned()),
            args_bytes: 2,
            issued: Some(Wall::from_millis(1_000)),
            deadline: Deadline::None,
        }
    }

    #[test]
    fn a_command_is_accepted_by_what_it_says_of_itself() {
        let now = Wall::from_millis(1_000);
        let command = judge(&said(), now).unwrap();
        assert_eq!((command.verb, command.id.as_str()), (Verb::Restart, "c-1"));
        for (said, why) in [
            (
                RawCommand {
                    verb: "app.explode".to_owned(),
                    ..said()
                },
                "there is no verb \"app.explode\"",
            ),
            (
                RawCommand {
                    args_bytes: ARGS_BYTES_MAX + 1,
                    ..said()
                },
                "524288 is the most",
            ),
            (
                RawCommand {
                    issued: None,
                    ..said()
                },
                "issued_at is missing",
            ),
            (
                RawCommand {
                    deadline: Deadline::Unreadable,
                    ..said()
                },
                "its deadline is not a valid time",
            ),
            (
                RawCommand {
                    deadline: Deadline::At(Wall::from_millis(999)),
                    ..said()
                },
                "it expired at 1970-01-01T00:00:00.999Z",
            ),
            (
                RawCommand {
                    issued: Some(Wall::from_millis(1_001 + DAY_MS)),
                    ..said()
                },
                "and the clock of this machine shows 1970-01-01T00:00:01",
            ),
        ] {
            let error = judge(&said, now).unwrap_err();
            assert!(error.sentence().contains(why), "{error}");
            assert!(error.fix.is_some(), "{error}");
        }
        let at_the_last_moment = RawCommand {
            issued: Some(Wall::from_millis(1_000 + DAY_MS)),
            deadline: Deadline::At(now),
            ..said()
        };
        assert!(judge(&at_the_last_moment, now).is_ok());
    }

    #[test]
    fn ids_are_short_and_printable() {
        for id in ["c", "0198-a/b:c", &"x".repeat(ID_BYTES_MAX)] {
            assert!(is_id(id), "{id}");
        }
        for id in ["", "a b", "ä", "a\n", &"x".repeat(ID_BYTES_MAX + 1)] {
            assert!(!is_id(id), "{id}");
        }
        for verb in Verb::ALL {
            assert_eq!(Verb::of(verb.as_str()), Some(verb));
        }
    }
}
