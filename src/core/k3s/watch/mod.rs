//! Watch over k3s: which fault is there, whether it is repaired now, and when it is left to a
//! person.
//!
//! Its state between two runs is one small file in memory; [`WatchState::observe`] decides.

mod service;

use std::fmt::Write as _;

use litemap::LiteMap;

pub use self::service::{
    PROGRESS, SERVICE, STATE, STATE_MODE, STATUS, STATUS_BYTES_MAX, TIMER, UNIT, created_paths,
    steps, stop_command, unit_path,
};
use super::{
    Role,
    faults::{self, Component, FAULTS, Fault, K3sState, Repair},
    texts::Init,
};
use crate::core::{
    format::one_line,
    health::Severity::{self, Warning},
    order::GatherExt as _,
    time::{Now, Wall},
};

/// Seconds between two requests to the API of a k3s that is well: k3s' own client takes a second
/// of a small board.
const ASK_EVERY_S: u64 = 110;
/// Seconds between two counts of firewall rules: many of them take a small board a second.
const COUNT_EVERY_S: u64 = 3600;
/// Window in which restarts make a loop.
const LOOP_S: u64 = 600;
/// Restarts that are remembered.
const ENDS_MAX: usize = 16;
/// Certificates that are left alone.
const UNRENEWED_MAX: usize = 64;
/// Absence after which a fault is forgotten, and its failures with it.
const FORGOTTEN_S: u64 = 3600;
/// Failures after which a repair is left to a person.
const FAILURES_MAX: u32 = 2;
/// Repairs of a day after which a fault is left to a person: it comes back.
const REPAIRS_MAX: usize = 4;
const DAY_S: u64 = 86_400;
/// The service manager's name in the file.
const OPENRC: &str = "openrc";
/// Time in which an interrupted change is taken up again after a start of the machine, so that
/// nobody has to hear of it.
const STANDS_STILL_S: u64 = 300;
/// Time from a backup that failed to the next try.
const BACKUP_RETRY_MS: i64 = 3_600_000;

/// State of the watch between two runs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct WatchState {
    /// The last run: seconds since the machine started, and since 1970.
    looked: Option<(u64, i64)>,
    /// Seconds since the machine started when the API was asked last.
    asked_s: Option<u64>,
    /// The same of the last count of firewall rules.
    counted_s: Option<u64>,
    /// True if the datastore has to be checked, once k3s is Ready.
    is_unchecked: bool,
    /// Seconds since the machine started when it was checked last.
    checked_s: u64,
    /// Damage that this found.
    pub damage: Option<String>,
    /// Number of restarts at the last run.
    restarts: u32,
    /// Restarts that were seen: when, and how many.
    ends: Vec<(u64, u32)>,
    /// True if somebody stopped k3s.
    pub is_stopped: bool,
    /// The service manager, for whoever tells of a fix.
    init: Init,
    /// The part of a cluster, for the same.
    role: Role,
    /// Milliseconds since 1970 of the next backup; none by schedule.
    pub next_backup_ms: Option<i64>,
    /// Reason why the last backup by schedule failed.
    pub unsaved: Option<String>,
    /// Change that was interrupted and that nobody goes on with.
    unfinished: Option<Unfinished>,
    /// Ends of certificates that a restart of k3s did not renew, in milliseconds since 1970;
    /// negative: before that end.
    unrenewed_ms: Vec<i64>,
    /// Faults by id.
    entries: LiteMap<String, SeenFault>,
}

/// A change that was interrupted.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Unfinished {
    id: String,
    since_s: u64,
    seen_s: u64,
}

/// A fault that was seen.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct SeenFault {
    since_s: u64,
    seen_s: u64,
    is_there: bool,
    failures: u32,
    /// Times of tries within a day.
    tries: Vec<u64>,
    sentence: String,
    /// Reason why it is left to a person.
    escalated: Option<String>,
}

/// A repair that is due.
#[derive(Clone, Debug)]
pub struct Order {
    pub fault: &'static Fault,
    pub repair: Repair,
    /// Observation.
    pub seen: String,
}

/// A fault that is left to a person.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Escalation {
    /// Its row.
    pub id: &'static str,
    pub severity: Severity,
    /// Observation, and the reason why nothing is done about it.
    pub sentence: String,
    pub fix: String,
}

impl WatchState {
    /// Returns whether the next run is to query the API: in turn, because something is wrong, or
    /// because the clock was set, which the run after it no longer sees.
    pub fn is_api_due(&self, now: Now) -> bool {
        let asked = self.asked_s.map(|asked| seconds(now).saturating_sub(asked));
        let is_open = |entry: &SeenFault| entry.is_there && entry.escalated.is_none();
        asked.is_none_or(|ago| ago >= ASK_EVERY_S)
            || self.entries.values().any(is_open)
            || faults::is_set_back(self.jumped_s(now))
    }

    /// Returns whether firewall rules are to be counted now, and records the count.
    pub fn take_count_turn(&mut self, now: Now) -> bool {
        let now_s = seconds(now);
        let before = self.counted_s.map(|at| now_s.saturating_sub(at));
        let is_due = before.is_none_or(|ago| ago >= COUNT_EVERY_S);
        if is_due {
            self.counted_s = Some(now_s);
        }
        is_due
    }

    /// Returns whether this is the first run since the machine started.
    pub fn is_first(&self) -> bool {
        // A change that was interrupted is recorded before the first run.
        self.looked.is_none_or(|(mono, _)| mono == 0)
    }

    /// Records that the machine went down without stopping k3s.
    pub fn record_power_cut(&mut self) {
        self.is_unchecked = true;
    }

    /// Returns whether this run is to check the datastore, of a k3s that is Ready: once, and where
    /// it is damaged each hour, until somebody has restored it.
    pub fn is_check_due(&self, now: Now) -> bool {
        let ago = seconds(now).saturating_sub(self.checked_s);
        self.is_unchecked || (self.damage.is_some() && ago >= COUNT_EVERY_S)
    }

    /// Records the result of such a check.
    pub fn record_check(&mut self, damage: Option<&str>, now: Now) {
        (self.is_unchecked, self.checked_s) = (false, seconds(now));
        self.damage = damage.map(plain);
    }

    /// Records the count of restarts, and returns those of the last ten minutes.
    pub fn record_restarts(&mut self, restarts: u32, now: Now) -> u32 {
        let now_s = seconds(now);
        // A start by hand begins to count again. Of what was before the first look, no time is
        // known.
        let before = if self.looked.is_none() {
            restarts
        } else {
            self.restarts
        };
        let more = if restarts < before {
            restarts
        } else {
            restarts - before
        };
        self.restarts = restarts;
        if more > 0 {
            self.ends.push((now_s, more));
        }
        self.ends
            .retain(|(at, _)| now_s.saturating_sub(*at) < LOOP_S);
        let surplus = self.ends.len().saturating_sub(ENDS_MAX);
        self.ends.drain(..surplus);
        self.ends.iter().map(|(_, more)| more).sum()
    }

    /// Seconds by which the wall clock was set since the last run.
    pub fn jumped_s(&self, now: Now) -> i64 {
        let Some((mono, wall)) = self.looked else {
            return 0;
        };
        let passed = i64::try_from(seconds(now).saturating_sub(mono)).unwrap_or(0);
        now.wall.millis() / 1000 - wall - passed
    }

    /// Records an observation and returns the repairs that are due, of which the first that nothing
    /// speaks against is to be done. `repairs` is false where root does not want any.
    pub fn observe(&mut self, state: &K3sState, now: Now, repairs: bool) -> Vec<Order> {
        let now_s = seconds(now);
        self.looked = Some((now_s, now.wall.millis() / 1000));
        if state.api.is_some() {
            self.asked_s = Some(now_s);
        }
        (self.init, self.role) = (state.init, state.role);
        self.is_stopped = state.service.is_stopped_on_purpose();
        let found = if self.is_stopped {
            Vec::new()
        } else {
            found(state)
        };
        for (id, entry) in &mut self.entries {
            let part = faults::of(id).map(|fault| fault.part);
            let is_found = found.iter().any(|(fault, _)| fault.id == id);
            let is_looked_at = part.is_none_or(|part| state.shows(part));
            // A fault of an earlier part explains it away.
            let is_explained =
                self.is_stopped || part.is_some_and(|part| is_explained(&found, part));
            if !is_found && (is_looked_at || is_explained) {
                entry.is_there = false;
                entry.escalated = None;
            }
        }
        for (_, entry) in &mut self.entries {
            entry.tries.retain(|at| now_s.saturating_sub(*at) < DAY_S);
        }
        self.entries.retain(|_, entry| {
            entry.is_there
                || !entry.tries.is_empty()
                || now_s.saturating_sub(entry.seen_s) < FORGOTTEN_S
        });
        let mut orders = Vec::new();
        for (fault, seen) in found {
            let entry = self.entries.entry(fault.id.to_owned()).or_default();
            entry.see(&seen, now_s);
            if let Some(repair) = entry.due(fault, now_s, repairs) {
                orders.push(Order {
                    fault,
                    repair,
                    seen,
                });
            }
        }
        orders
    }

    /// Records that a repair has begun: until its pause is over there is no other one, whatever its
    /// end.
    pub fn record_begin(&mut self, order: &Order, now: Now) {
        if let Some(entry) = self.entries.get_mut(order.fault.id) {
            entry.tries.push(seconds(now));
        }
    }

    /// Records the certificates that a restart of k3s did not renew, by their ends: k3s did not
    /// make them, or makes them no longer, and another restart would do as little. One more is
    /// tried once they have ended: a worker has a certificate of its server, which renews it at its
    /// own restart.
    pub fn record_unrenewed(&mut self, ends: impl Iterator<Item = Wall>, now: Wall) {
        let signed = ends.map(|end| {
            if end > now {
                -end.millis()
            } else {
                end.millis()
            }
        });
        self.unrenewed_ms = signed.take(UNRENEWED_MAX).collect();
    }

    /// Returns whether a restart of k3s renews a certificate that ends then, as far as is known.
    pub fn is_renewed(&self, end: Wall, now: Wall) -> bool {
        let end_ms = end.millis();
        let has_ended = end <= now;
        !self.unrenewed_ms.contains(&end_ms) && (has_ended || !self.unrenewed_ms.contains(&-end_ms))
    }

    /// Records the end of a repair: the reason of a failure.
    pub fn record_end(&mut self, order: &Order, failure: Option<&str>) {
        let Some(entry) = self.entries.get_mut(order.fault.id) else {
            return;
        };
        match failure {
            None => {
                entry.failures = 0;
                entry.is_there = false;
                // It was restarted on purpose.
                self.ends.clear();
            }
            Some(why) => {
                entry.failures = entry.failures.saturating_add(1);
                entry.sentence = plain(&format!(
                    "{}; to {} failed: {why}",
                    order.seen,
                    order.repair.does()
                ));
            }
        }
    }

    /// Returns whether a backup is due, and records that it is made now; after one that failed no
    /// sooner than in an hour.
    pub fn take_backup_turn(&mut self, next: Option<Wall>, now: Now) -> bool {
        let is_due = next.is_some_and(|next| next <= now.wall);
        let again = self
            .next_backup_ms
            .filter(|_| is_due && self.unsaved.is_some());
        let again = again.filter(|again| *again <= now.wall.millis() + BACKUP_RETRY_MS);
        let at = again.or_else(|| next.map(Wall::millis));
        self.next_backup_ms = at;
        at.is_some_and(|at| at <= now.wall.millis())
    }

    /// Records the end of a backup: the reason of a failure.
    pub fn record_backup(&mut self, failure: Option<&str>, now: Now) {
        self.unsaved = failure.map(plain);
        self.next_backup_ms = failure.map(|_| now.wall.millis() + BACKUP_RETRY_MS);
    }

    /// Records a change that was interrupted and does not go on: nothing is judged until it ends.
    pub fn record_unfinished(&mut self, id: &str, now: Now) {
        let now_s = seconds(now);
        let earlier = self.unfinished.take().filter(|earlier| earlier.id == id);
        self.unfinished = Some(Unfinished {
            id: id.to_owned(),
            since_s: earlier.map_or(now_s, |earlier| earlier.since_s),
            seen_s: now_s,
        });
    }

    /// Records that no change is left unfinished.
    pub fn clear_unfinished(&mut self) {
        self.unfinished = None;
    }

    /// Leaves a fault to a person for now, because `why` speaks against its repair.
    pub fn record_hold(&mut self, order: &Order, why: &str) {
        if let Some(entry) = self.entries.get_mut(order.fault.id) {
            entry.escalated = Some(plain(why));
        }
    }

    /// Faults that are left to a person, in the order of the table.
    pub fn escalated(&self) -> Vec<Escalation> {
        let rows = FAULTS.iter().filter_map(|fault| {
            let entry = self.entries.get(fault.id).filter(|entry| entry.is_there)?;
            let why = entry.escalated.as_ref()?;
            Some(Escalation {
                id: fault.id,
                severity: fault.severity,
                sentence: if why.is_empty() {
                    entry.sentence.clone()
                } else {
                    format!("{}; not repaired automatically: {why}", entry.sentence)
                },
                fix: faults::fix(fault.fix, self.init, self.role),
            })
        });
        let unsaved = self.unsaved.as_ref().map(|why| Escalation {
            id: "k3s.unsaved",
            severity: Warning,
            sentence: format!("k3s was not backed up: {why}"),
            fix: "sudo pipeops-agent k3s backup tries it now; keeper.allow without backup ends the schedule"
                .to_owned(),
        });
        let unfinished = self.unfinished.as_ref();
        let unfinished = unfinished
            .filter(|it| it.seen_s.saturating_sub(it.since_s) >= STANDS_STILL_S)
            .map(|it| Escalation {
                id: "k3s.unfinished",
                severity: Severity::Critical,
                sentence: format!(
                    "the change {} was interrupted; until it is finished, k3s is neither monitored nor backed up",
                    it.id
                ),
                fix: "sudo pipeops-agent k3s resume finishes or undoes it, or says what is in the way"
                    .to_owned(),
            });
        rows.chain(unsaved).chain(unfinished).collect()
    }

    /// Faults that are there and not left to a person yet.
    pub fn open(&self) -> impl Iterator<Item = &str> {
        let open = self
            .entries
            .values()
            .filter(|entry| entry.is_there && entry.escalated.is_none());
        open.map(|entry| entry.sentence.as_str())
    }

    /// Milliseconds since 1970 of the last run.
    pub fn last_run_ms(&self) -> Option<i64> {
        self.looked.map(|(_, wall)| wall.saturating_mul(1000))
    }

    /// The text of the file: a line of its own, then one for each fault, in fields that tabs part.
    pub fn text(&self) -> String {
        let (mono, wall) = self.looked.unwrap_or_default();
        let asked = self
            .asked_s
            .map(|asked| asked.to_string())
            .unwrap_or_default();
        let ends = self.ends.iter().map(|(at, more)| format!("{at}:{more}"));
        let unrenewed = self.unrenewed_ms.iter().map(i64::to_string);
        let mut text = format!(
            "{mono}\t{wall}\t{asked}\t{}\t{}\t{}\t{}\t{}\t{} {}\t{}\t{}\t{} {} {}\t{}\n",
            self.restarts,
            ends.collect::<Vec<_>>().join(","),
            u8::from(self.is_stopped),
            self.next_backup_ms
                .map(|at| at.to_string())
                .unwrap_or_default(),
            self.unsaved.as_deref().unwrap_or_default(),
            match self.init {
                Init::Systemd => "systemd",
                Init::OpenRc => OPENRC,
            },
            self.role.name(),
            self.counted_s
                .map(|counted| counted.to_string())
                .unwrap_or_default(),
            self.unfinished
                .as_ref()
                .map(|it| format!("{} {} {}", it.since_s, it.seen_s, it.id))
                .unwrap_or_default(),
            u8::from(self.is_unchecked),
            self.checked_s,
            self.damage.as_deref().unwrap_or_default(),
            unrenewed.collect::<Vec<_>>().join(","),
        );
        for (id, entry) in &self.entries {
            let tries: Vec<_> = entry.tries.iter().map(u64::to_string).collect();
            let escalated = entry.escalated.as_ref().map(|why| format!("={why}"));
            // Writing to a text does not fail.
            let _written = writeln!(
                text,
                "{id}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
                entry.since_s,
                entry.seen_s,
                u8::from(entry.is_there),
                entry.failures,
                tries.join(","),
                escalated.unwrap_or_default(),
                entry.sentence,
            );
        }
        text
    }

    /// Reads that. A line that is not understood is as none.
    pub fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let first: Vec<_> = lines.next().unwrap_or_default().split('\t').collect();
        let [
            mono,
            wall,
            asked,
            restarts,
            ends,
            is_stopped,
            next,
            unsaved,
            rest @ ..,
        ] = first.as_slice()
        else {
            return Self::default();
        };
        let of = rest.first().and_then(|of| of.split_once(' '));
        let (init, role) = of.unwrap_or_default();
        let looked = mono.parse().ok().zip(wall.parse().ok());
        let unfinished = |text: &str| {
            let (since, rest) = text.split_once(' ')?;
            let (seen, id) = rest.split_once(' ')?;
            Some(Unfinished {
                id: id.to_owned(),
                since_s: since.parse().ok()?,
                seen_s: seen.parse().ok()?,
            })
        };
        let mut check = rest.get(3).map_or("", |check| *check).splitn(3, ' ');
        let mut check = || check.next().unwrap_or_default();
        let end = |text: &str| {
            let (at, more) = text.split_once(':')?;
            Some((at.parse().ok()?, more.parse().ok()?))
        };
        Self {
            looked,
            asked_s: asked.parse().ok(),
            counted_s: rest.get(1).and_then(|counted| counted.parse().ok()),
            is_unchecked: check() == "1",
            checked_s: check().parse().unwrap_or(0),
            damage: Some(check())
                .filter(|damage| !damage.is_empty())
                .map(str::to_owned),
            restarts: restarts.parse().unwrap_or(0),
            ends: ends.split(',').filter_map(end).take(ENDS_MAX).collect(),
            is_stopped: *is_stopped == "1",
            next_backup_ms: next.parse().ok(),
            unsaved: Some(*unsaved)
                .filter(|why| !why.is_empty())
                .map(str::to_owned),
            init: if init == OPENRC {
                Init::OpenRc
            } else {
                Init::Systemd
            },
            role: if role == Role::Worker.name() {
                Role::Worker
            } else {
                Role::Server
            },
            unfinished: rest.get(2).and_then(|text| unfinished(text)),
            unrenewed_ms: numbers(rest.get(4).unwrap_or(&"")),
            entries: lines
                .filter_map(SeenFault::parse)
                .take(FAULTS.len())
                .gather(),
        }
    }
}

impl SeenFault {
    fn see(&mut self, seen: &str, now_s: u64) {
        if !self.is_there {
            self.since_s = now_s;
            self.is_there = true;
        }
        self.seen_s = now_s;
        if self.failures == 0 {
            self.sentence = plain(seen);
        }
    }

    /// The repair that is due now; where there will be none, the reason is recorded.
    fn due(&mut self, fault: &Fault, now_s: u64, repairs: bool) -> Option<Repair> {
        if now_s.saturating_sub(self.since_s) < u64::from(fault.grace_s) {
            return None;
        }
        let Some(repair) = fault.repair else {
            self.escalated = Some(String::new());
            return None;
        };
        let why_not = if !repairs {
            Some("keeper.allow does not list repair".to_owned())
        } else if self.failures >= FAILURES_MAX {
            Some(format!("it was tried {} times", self.failures))
        } else if self.tries.len() >= REPAIRS_MAX {
            Some(format!(
                "it came back {} times within a day",
                self.tries.len()
            ))
        } else {
            None
        };
        if why_not.is_some() {
            self.escalated = why_not;
            return None;
        }
        let factor = 1_u64.checked_shl(self.failures).unwrap_or(u64::MAX);
        let pause = u64::from(repair.back_off_s()).saturating_mul(factor);
        let last = self.tries.last().map(|last| now_s.saturating_sub(*last));
        // What held it may be over.
        self.escalated = None;
        last.is_none_or(|ago| ago >= pause).then_some(repair)
    }

    fn parse(line: &str) -> Option<(String, Self)> {
        let fields: Vec<_> = line.splitn(8, '\t').collect();
        let [
            id,
            since,
            seen,
            is_there,
            failures,
            tries,
            escalated,
            sentence,
        ] = fields.as_slice()
        else {
            return None;
        };
        let id = faults::of(id)?.id.to_owned();
        let entry = Self {
            since_s: since.parse().ok()?,
            seen_s: seen.parse().ok()?,
            is_there: *is_there == "1",
            failures: failures.parse().ok()?,
            tries: numbers(tries),
            sentence: (*sentence).to_owned(),
            escalated: escalated.strip_prefix('=').map(str::to_owned),
        };
        Some((id, entry))
    }
}

/// The faults of a state: of each part the first row that fits, and nothing behind a part that is
/// at fault, but what stands by itself.
fn found(state: &K3sState) -> Vec<(&'static Fault, String)> {
    let mut found: Vec<(&'static Fault, String)> = Vec::new();
    for fault in FAULTS {
        if state.shows(fault.part)
            && !is_explained(&found, fault.part)
            && found.iter().all(|(earlier, _)| earlier.part != fault.part)
            && let Some(seen) = (fault.detect)(state)
        {
            found.push((fault, seen));
        }
    }
    found
}

/// Returns whether one of these faults explains those of a part.
fn is_explained(found: &[(&Fault, String)], part: Component) -> bool {
    found.iter().any(|(fault, _)| fault.part.explains(part))
}

/// Numbers of a list, as many as are written.
fn numbers<N: std::str::FromStr>(list: &str) -> Vec<N> {
    let numbers = list.split(',').filter_map(|number| number.parse().ok());
    numbers.take(UNRENEWED_MAX).collect()
}

fn seconds(now: Now) -> u64 {
    now.mono.elapsed_since_boot().as_secs()
}

/// One line of a length that a person reads.
fn plain(text: &str) -> String {
    one_line(text, 400)
}

#[cfg(test)]
mod tests;
