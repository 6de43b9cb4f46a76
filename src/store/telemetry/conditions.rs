//! Conditions of the archive, for people.

use super::{archive::Archive, series::LIVE_MAX};
use crate::{
    core::health::{Condition, Severity},
    error::Error,
    store::database::DatabaseState,
};

/// Every condition that the archive reports.
pub const CONDITIONS: [&str; 7] = [
    UNWRITABLE, NEWER, DAMAGED, LOST, TOO_MANY, THINNED, OVERSIZED,
];

const UNWRITABLE: &str = "telemetry.unwritable";
const NEWER: &str = "telemetry.newer";
const DAMAGED: &str = "telemetry.damaged";
const LOST: &str = "telemetry.lost";
const TOO_MANY: &str = "telemetry.too-many-series";
const THINNED: &str = "telemetry.thinned";
const OVERSIZED: &str = "telemetry.oversized";

/// A condition before it has a time.
type Finding = (&'static str, Severity, Error);

impl Archive {
    pub(super) fn conditions(&self) -> Vec<Condition> {
        let all = [
            self.trouble(),
            self.damage(),
            self.losses(),
            self.too_many(),
            self.pruned(),
            self.oversized(),
        ];
        let since = self.database.wall();
        let condition = |(id, severity, error): Finding| Condition {
            id,
            severity,
            since,
            sentence: error.sentence(),
            fix: error.fix,
        };
        all.into_iter().flatten().map(condition).collect()
    }

    fn trouble(&self) -> Option<Finding> {
        match self.database.state() {
            DatabaseState::Newer(error) => Some((NEWER, Severity::Warning, error.clone())),
            DatabaseState::Unwritable(error) => {
                let sentence = format!(
                    "{}; samples wait in memory, the last hour of them",
                    error.sentence()
                );
                let fix = error.fix.clone();
                let said = Error {
                    fix,
                    ..Error::new(sentence)
                };
                Some((UNWRITABLE, Severity::Warning, said))
            }
            DatabaseState::Well => None,
        }
    }

    fn damage(&self) -> Option<Finding> {
        if self.database.has_removed_damaged() {
            let said = Error::new(
                "telemetry.db was damaged and has been recreated; the damaged file took more than half of telemetry.disk_max and was deleted",
            )
            .fix("check the disk: dmesg | grep -i error");
            return Some((DAMAGED, Severity::Warning, said));
        }
        let path = self.database.newest_damaged()?;
        let path = path.display();
        let said = Error::new(format!(
            "telemetry.db was damaged and has been recreated; the damaged file is {path}"
        ))
        .fix(format!(
            "check the disk (dmesg | grep -i error); when it is no longer needed: rm {path}*"
        ));
        Some((DAMAGED, Severity::Warning, said))
    }

    fn losses(&self) -> Option<Finding> {
        let lost = self.pending.lost + self.events.lost + self.logs.lost;
        let said = Error::new(format!(
            "{lost} samples, events and log lines were lost since the start because the disk could not be written for too long"
        ));
        (lost > 0).then_some((LOST, Severity::Warning, said))
    }

    fn too_many(&self) -> Option<Finding> {
        let refused = self.numbers.refused_last;
        if refused > 0 {
            let said = Error::new(format!(
                "more than {LIVE_MAX} series are measured at once; {refused} values of others were not kept in the last minute"
            ));
            return Some((TOO_MANY, Severity::Warning, said));
        }
        let unnumbered = self.numbers.unnumbered_last;
        let forgotten = self.forgotten;
        let said = Error::new(if unnumbered > 0 {
            format!("{unnumbered} new series are not stored: the maximum number of series is reached")
        } else {
            format!(
                "too many series come and go: {forgotten} of them were deleted since the start, before every receiver had them"
            )
        })
        .fix("find what comes and goes: kubectl get pods -A --sort-by=.metadata.creationTimestamp; let the receivers catch up: pipeops-agent metrics outbox");
        (unnumbered > 0 || forgotten > 0).then_some((TOO_MANY, Severity::Warning, said))
    }

    fn oversized(&self) -> Option<Finding> {
        let error = self.oversized.as_ref()?;
        let said = Error::new(format!(
            "telemetry.db is larger than telemetry.disk_max and cannot be made smaller: {}",
            error.sentence()
        ));
        let fix = error.fix.clone();
        Some((OVERSIZED, Severity::Note, Error { fix, ..said }))
    }

    fn pruned(&self) -> Option<Finding> {
        let said = Error::new(
            "the disk budget of the samples is used up: the oldest single values were deleted early",
        )
        .fix("raise telemetry.disk_max, or let the receivers catch up: pipeops-agent metrics outbox");
        self.has_thinned.then_some((THINNED, Severity::Note, said))
    }
}
