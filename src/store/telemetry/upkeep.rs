//! Upkeep of the archive: finer levels become coarser ones, what is old or over a bound goes, and
//! the file shrinks to its budget.

use std::time::Duration;

use super::{
    archive::{Archive, millis},
    boots::{self, Boots},
    compact::{self, Compaction},
    forget, gaps,
    prune::{self, Cut},
    series,
};
use crate::{
    core::{
        health::Condition,
        outbox::{Loss, Range, Stream},
        retention,
        time::Now,
    },
    store::{Failure, trouble},
};

/// Minimum excess over the budget before the file is rewritten: less is not worth the wear.
const SHRINK_BYTES_MIN: u64 = 1 << 20;
/// Time between two tries to make the file smaller.
const SHRINK_EVERY: Duration = Duration::from_secs(600);
/// Compactions and deletions of one [`Archive::tend`]: after a long rest there are many, and
/// somebody may be waiting for the thread.
const STEPS_MAX: usize = 32;

impl Archive {
    /// See [`super::Handle::tend`].
    pub(super) fn tend(&mut self, now: Now) -> Vec<Condition> {
        self.database.set_latest_time(now.wall);
        self.recover();
        for _ in 0..STEPS_MAX {
            // What fails is remembered as trouble, and tried again.
            if !matches!(self.compact(now), Ok(true)) {
                break;
            }
        }
        let budget = self.budget_bytes();
        for _ in 0..STEPS_MAX {
            if !matches!(self.prune(budget), Ok(true)) {
                break;
            }
        }
        for _ in 0..STEPS_MAX {
            if !matches!(self.forget_dead(), Ok(true)) {
                break;
            }
        }
        drop(self.forget_excess());
        self.shrink(budget, now);
        self.conditions()
    }

    /// Budget of the samples, minus damaged files.
    pub(super) fn budget_bytes(&self) -> u64 {
        self.whole_budget_bytes()
            .saturating_sub(self.database.damaged_bytes())
    }

    /// Budget of samples and damaged files together.
    pub(super) fn whole_budget_bytes(&self) -> u64 {
        retention::budget_bytes(
            self.options.disk_bytes_max,
            trouble::size_bytes(self.database.directory()),
        )
    }

    /// Does one compaction. `false` where none is due.
    fn compact(&mut self, now: Now) -> Result<bool, Failure> {
        let hour = millis(now.mono) / 3_600_000;
        let now_hour = (self.contents.boot.unwrap_or(0), hour);
        let boots = &self.contents.boots;
        let due = self
            .database
            .read(|connection| compact::next(connection, boots, now_hour))?;
        let Some(due) = due else {
            return Ok(false);
        };
        let damaged = match &due {
            Compaction::Damaged(range) => Some((Stream::Metrics, *range, Loss::Damaged)),
            Compaction::Hour(..) | Compaction::Roll(..) => None,
        };
        self.change(damaged, |transaction, boots| {
            compact::compact(transaction, boots, &due)
        })?;
        Ok(true)
    }

    /// One cut. `false` where nothing has to go.
    fn prune(&mut self, budget: u64) -> Result<bool, Failure> {
        if !self.has_cursors {
            return Ok(false);
        }
        let at = (self.contents.epoch, self.contents.metrics.last);
        let cursors = &self.cursors;
        let cut = self
            .database
            .read(|connection| prune::next(connection, cursors, at, (&self.bounds, budget)))?;
        let Some(cut) = cut else {
            return Ok(false);
        };
        self.has_thinned |= matches!(
            cut,
            Cut::Chunks(_, Loss::Budget) | Cut::Minutes(_) | Cut::Rows(_, _, Loss::Budget)
        );
        self.change(cut.lost(), |transaction, _| prune::cut(transaction, &cut))?;
        self.may_forget = true;
        Ok(true)
    }

    /// Forgets series and boots whose last sample is gone, a batch of them. `false` where there may
    /// be no more.
    fn forget_dead(&mut self) -> Result<bool, Failure> {
        if !self.may_forget {
            return Ok(false);
        }
        let live = self.numbers.in_use();
        let (boots, bounds) = (&self.contents.boots, &self.bounds);
        let (dead, boots) = self.database.read(|connection| {
            Ok((
                forget::dead(connection, &live)?,
                forget::boots(connection, boots, bounds)?,
            ))
        })?;
        if dead.is_empty() && boots.is_empty() {
            self.may_forget = false;
            return Ok(false);
        }
        self.change(None, |transaction, _| {
            forget::series(transaction, &dead)?;
            boots::delete(transaction, &boots)
        })?;
        self.contents.series = self.contents.series.saturating_sub(dead.len());
        for number in boots {
            self.contents.boots.remove(number);
        }
        Ok(true)
    }

    /// Forgets a batch of ended series where too many are known.
    fn forget_excess(&mut self) -> Result<(), Failure> {
        let series_max = self.bounds.series_max;
        if self.contents.series <= series_max {
            return Ok(());
        }
        // What was counted since the start may have been found instead of new.
        let known = self.database.read(series::count)?;
        self.contents.series = known;
        if known <= series_max {
            return Ok(());
        }
        let live = self.numbers.in_use();
        let (excess, is_hard) = self
            .database
            .read(|connection| forget::excess(connection, (known, series_max), &live))?;
        if excess.is_empty() {
            return Ok(());
        }
        self.change(None, |transaction, _| forget::series(transaction, &excess))?;
        self.contents.series = known.saturating_sub(excess.len());
        if is_hard {
            self.forgotten = self.forgotten.saturating_add(excess.len());
        }
        Ok(())
    }

    /// Makes the file smaller where it is far larger than it may be and what is in it is not: after
    /// `telemetry.disk_max` was lowered.
    fn shrink(&mut self, budget: u64, now: Now) {
        let Ok((used, whole)) = self.database.read(prune::used_and_whole_bytes) else {
            return;
        };
        let is_far = whole > budget.saturating_add((budget / 8).max(SHRINK_BYTES_MIN));
        if !is_far {
            self.oversized = None;
            return;
        }
        if used > budget || now.mono < self.shrink_at {
            return;
        }
        self.shrink_at = now.mono.after(SHRINK_EVERY);
        match self.database.rebuild() {
            Ok(true) => self.oversized = None,
            // Somebody reads it: the next try is soon enough.
            Ok(false) => {}
            Err(failure) => self.oversized = Some(failure.into()),
        }
    }

    /// Does something to the file in one transaction, together with what is lost by it.
    fn change(
        &mut self,
        lost: Option<(Stream, Range, Loss)>,
        work: impl Fn(&rusqlite::Transaction<'_>, &Boots) -> rusqlite::Result<()>,
    ) -> Result<(), Failure> {
        let after = lost.and_then(|(stream, range, loss)| {
            let mut holdings = self.contents.of(stream)?.clone();
            holdings.lose(range, loss);
            Some((stream, holdings))
        });
        let contents = &self.contents;
        let changed = self.database.write(|transaction| {
            contents.check(transaction)?;
            work(transaction, &contents.boots)?;
            if let Some((stream, holdings)) = &after {
                gaps::write(transaction, *stream, &holdings.gaps)?;
            }
            Ok(())
        });
        if self.database.was_replaced() {
            self.reset();
        }
        changed?;
        if let Some((stream, after)) = after
            && let Some(holdings) = self.contents.of_mut(stream)
        {
            *holdings = after;
        }
        Ok(())
    }
}
