//! Change of the machine or the cluster, as the journals of the agent and the keeper report it.

use serde::Serialize;

use super::json::fields;

/// Something that was done, or refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChangeReport {
    /// Its id, for `pipeops-agent undo`.
    pub id: String,
    /// Time: RFC 3339 in UTC.
    pub at: String,
    /// By whom.
    pub who: String,
    /// From where: `control plane`, `this machine`, an address.
    pub from: String,
    /// Change.
    pub what: String,
    /// `done`, `failed`, `undone`, `refused` by the agent, `rejected` by the API server,
    /// `withdrawn` while it ran, `cancelled`, `link lost` or `running`; `waits` for a repair of k3s
    /// that is carried out, until the node is Ready: `why` has for what, and since when.
    pub outcome: String,
    /// Reason why it ended so, in words.
    pub why: Option<String>,
    /// Possibility and way to undo it.
    pub undo: Undo,
}
fields!(ChangeReport {
    id,
    at,
    who,
    from,
    what,
    outcome,
    why,
    undo
});

/// Possibility and way to undo something.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Undo {
    /// True if it can.
    pub possible: bool,
    /// Command that undoes it.
    pub command: Option<String>,
    /// Reason why it cannot.
    pub why_not: Option<String>,
}
fields!(Undo {
    possible,
    command,
    why_not
});

impl Undo {
    /// The command, or the reason that there is none.
    pub fn words(&self) -> &str {
        let way = self.command.as_ref().or(self.why_not.as_ref());
        way.map_or("it cannot be undone", String::as_str)
    }
}
