//! Findings of the doctor: `doctor --json` and `/api/v1/problems`.

use serde::Serialize;

use super::stamp;
use crate::{
    core::{
        doctor::{CheckOutcome, CheckResult},
        environment,
        repair::Recipe,
        time::Wall,
    },
    wire::json::fields,
};

/// Path of the findings of the running agent's doctor.
pub const PROBLEMS_PATH: &str = "/api/v1/problems";

/// One look at everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Doctor {
    /// Environment of the machine.
    pub environment: Environment,
    /// Duration of the checks.
    pub took_ms: u64,
    /// Time: RFC 3339 in UTC.
    pub at: String,
    /// All checks: problems first, the worst on top.
    pub checks: Vec<Check>,
    /// True if everything on the machine was read in time; otherwise what was not read may look
    /// missing.
    pub is_whole: bool,
    /// The verdict of the running agent; `null` where none was asked.
    pub verdict: Option<super::Verdict>,
}
fields!(Doctor {
    environment,
    took_ms,
    at,
    checks,
    is_whole,
    verdict
});

/// Environment of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Environment {
    /// The board or machine, as its maker calls it.
    pub board: Option<String>,
    /// The distribution with its version.
    pub distribution: Option<String>,
    /// `systemd`, `OpenRC` or `other`.
    pub init: String,
    /// `bare`, `vm`, `lxc`, `docker`, `pod`, `wsl2`, `wsl1` or `container`.
    pub virtualisation: String,
    /// The maker of a storage box.
    pub nas: Option<String>,
    /// The version of control groups and their controllers: `2: cpu, memory`.
    pub cgroup: Option<String>,
    /// The size of a page of memory.
    pub page_size_bytes: Option<u64>,
    /// The kernel's architecture, and whether programs are of 32 bit.
    pub architecture: Option<String>,
    pub boot_loader: String,
    /// The file with them.
    pub boot_file: Option<String>,
    /// Package manager; `none` if there is none.
    pub package_manager: String,
    /// Notes about this environment.
    pub notes: Vec<Note>,
}
fields!(Environment {
    board,
    distribution,
    init,
    virtualisation,
    nas,
    cgroup,
    page_size_bytes,
    architecture,
    boot_loader,
    boot_file,
    package_manager,
    notes
});

/// One thing to know about an environment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Note {
    /// Supported functions.
    pub works: String,
    /// Changes that enable more, or the reason why there are none.
    pub change: String,
}
fields!(Note { works, change });

/// One check with what it came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Check {
    /// Stable id, `part.name`.
    pub id: String,
    /// Name of the check.
    pub title: String,
    /// `critical`, `warning` or `note`.
    pub severity: String,
    /// `ok`, `problem`, `unknown` or `skipped`.
    pub outcome: String,
    /// Observation.
    pub seen: String,
    /// Reason why it matters.
    pub why: String,
    /// Fix in words.
    pub fix: Option<String>,
    /// Commands to type, in this order.
    pub commands: Vec<String>,
    /// The check whose problem explains this one.
    pub because: Option<String>,
    /// True if only root can see it.
    pub needs_root: bool,
    /// Repair by the keeper, if there is a problem.
    pub automatic: Option<Automatic>,
}
fields!(Check {
    id,
    title,
    severity,
    outcome,
    seen,
    why,
    fix,
    commands,
    because,
    needs_root,
    automatic
});

/// Repair by the keeper.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Automatic {
    /// Description of the change.
    pub does: String,
    /// Description of what it leaves alone.
    pub leaves: String,
    /// Description of the undo.
    pub undo: String,
    /// Command that starts the root helper; `None` where it runs.
    pub start: Option<String>,
}
fields!(Automatic {
    does,
    leaves,
    undo,
    start
});

impl Doctor {
    /// From what was found out.
    pub fn new(
        environment: &environment::Environment,
        verdicts: &[CheckResult],
        at: Wall,
        took_ms: u64,
    ) -> Self {
        Self {
            environment: environment.into(),
            took_ms,
            at: stamp(at),
            checks: verdicts.iter().map(Check::from).collect(),
            is_whole: true,
            verdict: None,
        }
    }

    /// The same where the root helper does not run: `start` is the command that starts it.
    #[must_use]
    pub fn without_helper(mut self, start: &str) -> Self {
        for check in &mut self.checks {
            if let Some(automatic) = &mut check.automatic {
                automatic.start = Some(start.to_owned());
            }
        }
        self
    }

    /// Returns whether anything is wrong. Notes are told, but nothing is wrong with them.
    pub fn is_wrong(&self) -> bool {
        self.checks
            .iter()
            .any(|check| check.is_problem() && check.severity != "note")
    }
}

impl From<&environment::Environment> for Environment {
    fn from(environment: &environment::Environment) -> Self {
        let version = environment.cgroup_version;
        let bits = if environment.is_userland_32_bit && environment.is_64_bit() {
            " with programs of 32 bit"
        } else {
            ""
        };
        Self {
            board: environment.board.clone(),
            distribution: environment.distribution.clone(),
            init: environment.init.as_str().to_owned(),
            virtualisation: environment.virtualisation.as_str().to_owned(),
            nas: environment.nas.map(|nas| nas.as_str().to_owned()),
            cgroup: version
                .map(|version| format!("{version}: {}", environment.controllers.join(", "))),
            page_size_bytes: environment.page_size_bytes,
            architecture: environment
                .architecture
                .as_ref()
                .map(|name| format!("{name}{bits}")),
            boot_loader: environment.loader.as_str().to_owned(),
            boot_file: environment.boot_file.clone(),
            package_manager: environment.packages.as_str().to_owned(),
            notes: environment.notes().iter().map(Note::from).collect(),
        }
    }
}

impl From<&environment::Note> for Note {
    fn from(note: &environment::Note) -> Self {
        Self {
            works: note.works.to_owned(),
            change: note.change.to_owned(),
        }
    }
}

impl From<&Recipe> for Automatic {
    fn from(recipe: &Recipe) -> Self {
        Self {
            does: recipe.does.clone(),
            leaves: recipe.leaves.clone(),
            undo: recipe.undo.clone(),
            start: None,
        }
    }
}

impl Check {
    /// Returns whether it found something wrong.
    pub fn is_problem(&self) -> bool {
        self.outcome == CheckOutcome::Problem.as_str()
    }

    /// Returns whether it could not find out.
    pub fn is_unknown(&self) -> bool {
        self.outcome == CheckOutcome::Unknown.as_str()
    }
}

impl From<&CheckResult> for Check {
    fn from(verdict: &CheckResult) -> Self {
        let check = verdict.check;
        Self {
            id: check.id.to_owned(),
            title: check.title.to_owned(),
            severity: verdict.severity.as_str().to_owned(),
            outcome: verdict.outcome.as_str().to_owned(),
            seen: verdict.seen.clone(),
            why: check.why.to_owned(),
            fix: verdict.fix.clone(),
            commands: verdict.commands.clone(),
            because: verdict.because.map(str::to_owned),
            needs_root: verdict.needs_root,
            automatic: verdict.recipe.as_ref().map(Automatic::from),
        }
    }
}
