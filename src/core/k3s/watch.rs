//! Watch over k3s: which fault is there, whether it is repaired now, and when it is left to a
//! person.
//!
//! Its state between two runs is one small file in memory; [`WatchState::observe`] decides.

use std::fmt::Write as _;

use litemap::LiteMap;

use super::{
    Role, connect,
    copies::SPOOL,
    faults::{self, Component, FAULTS, Fault, K3sState, Repair},
    step::{Step, directories, file, run},
    texts::{self, Init},
};
use crate::core::{
    format::one_line,
    health::Severity::{self, Warning},
    order::GatherExt as _,
    time::{Now, Wall},
};

/// File with the state of the watch, which the agent reads: root's, in memory.
pub const STATE: &str = "/run/pipeops-k3s/watch";
/// File with the state of k3s as of the last run, for the agent: root's, in memory.
pub const STATUS: &str = "/run/pipeops-k3s/status";
/// Longest such state: some hundred volumes.
pub const STATUS_BYTES_MAX: usize = 256 * 1024;
/// File with the progress of a change, for the agent: root's, in memory.
pub const PROGRESS: &str = "/run/pipeops-k3s/doing";
/// Permissions of these files: the agent's group may read them.
pub const STATE_MODE: u32 = 0o640;
/// Unit of the service that runs the watch once.
pub const UNIT: &str = "/etc/systemd/system/pipeops-k3s-watch.service";
/// Unit of the timer of that service.
pub const TIMER: &str = "/etc/systemd/system/pipeops-k3s-watch.timer";
const WANTS_LINK: &str = "/etc/systemd/system/timers.target.wants/pipeops-k3s-watch.timer";
/// Init script for OpenRC, which has no timers: a loop that sleeps.
pub const SERVICE: &str = "/etc/init.d/pipeops-k3s-watch";
const RUNLEVEL_LINK: &str = "/etc/runlevels/default/pipeops-k3s-watch";

/// Path of a unit that exists where k3s is watched.
pub const fn unit_path(init: Init) -> &'static str {
    match init {
        Init::Systemd => TIMER,
        Init::OpenRc => SERVICE,
    }
}

/// Command that stops the watch.
pub const fn stop_command(init: Init) -> &'static str {
    match init {
        Init::Systemd => "systemctl stop pipeops-k3s-watch.timer pipeops-k3s-watch.service",
        Init::OpenRc => "rc-service pipeops-k3s-watch stop",
    }
}

/// Paths that the watch creates, and a removal of k3s removes.
pub const fn created_paths(init: Init) -> &'static [&'static str] {
    match init {
        Init::Systemd => &[WANTS_LINK, TIMER, UNIT, STATE, STATUS, PROGRESS, SPOOL],
        Init::OpenRc => &[RUNLEVEL_LINK, SERVICE, STATE, STATUS, PROGRESS, SPOOL],
    }
}

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

/// Steps that set up the watch.
pub fn steps(init: Init, program: &str, is_there: &dyn Fn(&str) -> bool) -> Vec<Step> {
    let mut steps = Vec::new();
    directories(&mut steps, connect::DIRECTORY, is_there);
    // Undone last: until then the service may write them.
    let files = [STATE, STATUS, PROGRESS].map(|path| Step::Made {
        path: path.to_owned(),
    });
    steps.extend(files);
    match init {
        Init::Systemd => {
            directories(&mut steps, connect::WANTS, is_there);
            steps.extend([
                run("", "systemctl daemon-reload"),
                file(UNIT, texts::watch(init, program), 0o644),
                file(TIMER, include_str!("texts/watch.timer").to_owned(), 0o644),
                Step::Link {
                    path: WANTS_LINK.to_owned(),
                    target: TIMER.to_owned(),
                },
                run("systemctl daemon-reload", ""),
                run(
                    "systemctl start pipeops-k3s-watch.timer",
                    stop_command(init),
                ),
            ]);
        }
        Init::OpenRc => steps.extend([
            file(SERVICE, texts::watch(init, program), 0o755),
            Step::Link {
                path: RUNLEVEL_LINK.to_owned(),
                target: SERVICE.to_owned(),
            },
            run("rc-service pipeops-k3s-watch start", stop_command(init)),
        ]),
    }
    steps
}

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
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::{
        k3s::{
            faults::{Api, Node, Service},
            images::Archives,
        },
        time::Mono,
    };

    fn at(seconds: u64) -> Now {
        let wall = 1_795_000_000 + i64::try_from(seconds).unwrap();
        Now {
            mono: Mono::since_boot(Duration::from_secs(seconds)),
            wall: Wall::from_millis(wall * 1000),
        }
    }

    fn service(active: &str, result: &str) -> Service {
        Service {
            active: active.to_owned(),
            result: result.to_owned(),
            is_enabled: true,
            was_started: true,
            ..Service::default()
        }
    }

    fn node(conditions: &[(&str, &str, &str)]) -> Api {
        let conditions = conditions.iter();
        Api::Node(Node {
            conditions: conditions
                .map(|(kind, status, message)| [*kind, *status, *message].map(str::to_owned))
                .collect(),
            address: "192.0.2.7".parse().ok(),
            ..Node::default()
        })
    }

    fn without_dns(ready: &str) -> K3sState {
        let Api::Node(node) = node(&[("Ready", ready, "")]) else {
            panic!("a node");
        };
        K3sState {
            api: Some(Api::Node(Node {
                lacks_dns: true,
                ..node
            })),
            dns: "Pod coredns-1: Pending, ImagePullBackOff".to_owned(),
            ..healthy()
        }
    }

    fn ids(watch_state: &WatchState) -> Vec<&'static str> {
        watch_state
            .escalated()
            .iter()
            .map(|fault| fault.id)
            .collect()
    }

    fn healthy() -> K3sState {
        K3sState {
            service: service("active", "success"),
            up_s: 100_000,
            api: Some(node(&[
                ("Ready", "True", ""),
                ("DiskPressure", "False", ""),
            ])),
            certificate: Some(("serving-kube-apiserver.crt".to_owned(), 364)),
            addresses: vec!["192.0.2.7".parse().unwrap()],
            has_route: true,
            ..K3sState::default()
        }
    }

    fn silent() -> K3sState {
        K3sState {
            api: Some(Api::Silent("no answer".to_owned())),
            ..healthy()
        }
    }

    fn looping(line: &str) -> K3sState {
        K3sState {
            service: service("activating", "exit-code"),
            restarts: 3,
            log: format!("level=info msg=\"x\"\n{line}\n"),
            api: None,
            ..healthy()
        }
    }

    /// Looks every minute from `from`, until something is ordered.
    fn until_order(
        watch_state: &mut WatchState,
        state: &K3sState,
        from: u64,
    ) -> Option<(u64, Order)> {
        (0..60).find_map(|minute| {
            let now = from + minute * 60;
            // The file in between, as in life.
            *watch_state = WatchState::parse(&watch_state.text());
            let orders = watch_state.observe(state, at(now), true);
            orders.into_iter().next().map(|order| (now - from, order))
        })
    }

    #[test]
    fn a_day_of_a_healthy_machine_has_no_repair_and_asks_rarely() {
        let mut watch_state = WatchState::default();
        let (mut asked, mut state) = (0, healthy());
        for minute in 0..1440 {
            let now = at(1000 + minute * 60);
            let asks = watch_state.is_api_due(now);
            asked += u32::from(asks);
            // The odd failed request, a restart by a person, a clock that is mended by seconds.
            state.api = match (asks, minute % 97) {
                (false, _) => None,
                (true, 0) => Some(Api::Silent("slow".to_owned())),
                (true, _) => healthy().api,
            };
            state.restarts = watch_state.record_restarts(u32::from(minute > 700), now);
            state.jumped_s = watch_state.jumped_s(now);
            assert!(
                watch_state.observe(&state, now, true).is_empty(),
                "{minute}"
            );
            assert_eq!(watch_state.escalated(), [], "{minute}");
            watch_state = WatchState::parse(&watch_state.text());
        }
        assert!((700..760).contains(&asked), "{asked}");
    }

    #[test]
    fn a_start_that_does_not_end_is_told_by_what_it_says_again_and_again() {
        let line = "\u{1b}[31mERRO\u{1b}[0m[2026] Failed to ping database connection: file is not a database\n";
        for (times, id) in [(2, None), (3, Some("k3s.datastore-damaged"))] {
            let state = K3sState {
                service: service("activating", "success"),
                log: line.repeat(times),
                api: None,
                ..healthy()
            };
            let mut watch_state = WatchState::default();
            assert!(watch_state.observe(&state, at(1000), true).is_empty());
            let faults = watch_state.escalated();
            assert_eq!(faults.first().map(|fault| fault.id), id, "{faults:?}");
        }
    }

    #[test]
    fn what_k3s_waits_for_without_an_end_is_told_though_it_is_no_error_to_it() {
        for (line, id) in [
            (
                "time=\"2026-11-28T05:00:00Z\" level=info msg=\"Failed to test etcd connection: this server is a not a member of the etcd cluster. Found [a-12a6cd30=https://192.0.2.10:2380], expect: a-12a6cd30=https://192.0.2.9:2380\"\n",
                Some("k3s.etcd-address"),
            ),
            (
                "time=\"2023-11-28T05:00:00Z\" level=info msg=\"Failed to test data store connection: this server is a not a member of the etcd cluster. Found [a-12a6cd30=https://192.0.2.10:2380], expect: a-12a6cd30=https://192.0.2.9:2380\"\n",
                Some("k3s.etcd-address"),
            ),
            (
                "time=\"2026-11-28T05:00:00Z\" level=info msg=\"Waiting to retrieve agent configuration; server is not ready: /var/lib/rancher/k3s/agent/serving-kubelet.crt: Node password rejected, duplicate hostname or contents of '/etc/rancher/node/password' may not match server node-passwd entry, try enabling a unique node name with the --with-node-id flag\"\n",
                Some("k3s.node-name"),
            ),
            (
                "time=\"2026-11-28T05:00:00Z\" level=info msg=\"Waiting to retrieve agent configuration; server is not ready: yaml: line 4: did not find expected key\"\n",
                Some("k3s.registries"),
            ),
            // k3s goes on without a manifest that it cannot read.
            (
                "time=\"2026-11-28T05:00:00Z\" level=error msg=\"Failed to process config: failed to process /var/lib/rancher/k3s/server/manifests/mine.yaml: yaml: line 4: did not find expected key\"\n",
                None,
            ),
            // Its own API is not there yet.
            (
                "time=\"2026-11-28T05:00:00Z\" level=info msg=\"Waiting to retrieve agent configuration; server is not ready: failed to retrieve configuration from server: https://127.0.0.1:6443/v1-k3s/config: 503 Service Unavailable\"\n",
                None,
            ),
        ] {
            let state = K3sState {
                service: service("activating", "success"),
                log: line.repeat(3),
                api: None,
                ..healthy()
            };
            let mut watch_state = WatchState::default();
            watch_state.observe(&state, at(1000), true);
            assert_eq!(ids(&watch_state).first().copied(), id, "{line}");
        }
    }

    #[test]
    fn a_fix_can_be_followed_where_the_fault_is() {
        let fix = |id| faults::of(id).unwrap().fix;
        for id in ["k3s.certificates-ended", "k3s.certificates-end"] {
            assert!(
                fix(id).contains("--data-dir DIR") && !fix(id).contains("--output"),
                "{id}"
            );
        }
        assert!(
            fix("k3s.no-route").contains("dev dummy0") && !fix("k3s.no-route").contains("node-ip")
        );
        let worker = faults::fix(fix("k3s.token"), Init::Systemd, Role::Worker);
        assert!(
            worker.contains("join-token, then: sudo systemctl restart k3s-agent"),
            "{worker}"
        );
    }

    #[test]
    fn openrc_and_a_worker_get_fixes_of_their_own() {
        for fault in FAULTS {
            let own = faults::fix(fault.fix, Init::OpenRc, Role::Worker);
            let strange = [
                "systemctl",
                "journalctl",
                "timedatectl",
                "service k3s ",
                "-u k3s ",
            ];
            assert!(!strange.iter().any(|word| own.contains(word)), "{own}");
            assert_eq!(
                faults::fix(fault.fix, Init::Systemd, Role::Server),
                fault.fix
            );
        }
        let mut watch_state = WatchState::default();
        let state = K3sState {
            init: Init::OpenRc,
            role: Role::Worker,
            service: Service {
                started_s: Some(99_940),
                ..service("active", "")
            },
            ..silent()
        };
        assert!(until_order(&mut watch_state, &state, 100_000).is_none());
        let escalated = watch_state.escalated();
        let [fault] = escalated.as_slice() else {
            panic!("{escalated:?}");
        };
        assert_eq!(fault.id, "k3s.server-silent");
    }

    #[test]
    fn the_words_of_openrc_are_understood() {
        for (said, has_failed, is_alive, state, is_on_purpose) in [
            (" * status: started\n", false, true, "active", false),
            (" * status: unsupervised\n", false, true, "active", false),
            (" * status: unsupervised\n", false, false, "failed", false),
            (" * status: starting\n", false, false, "activating", false),
            (" * status: crashed\n", false, false, "failed", false),
            (" * status: stopped\n", true, false, "failed", false),
            (" * status: stopped\n", false, false, "inactive", true),
            ("service does not exist", false, false, "", false),
        ] {
            let service = Service {
                is_enabled: true,
                ..Service::of_openrc(said, has_failed, is_alive)
            };
            assert_eq!(service.active, state, "{said}");
            assert_eq!(service.is_stopped_on_purpose(), is_on_purpose, "{said}");
        }
        // It says that it is started as soon as its process is: then it gets time.
        let state = |age: u64| K3sState {
            init: Init::OpenRc,
            service: Service {
                started_s: Some(100_000 - age),
                ..service("active", "")
            },
            ..silent()
        };
        assert!(until_order(&mut WatchState::default(), &state(300), 1000).is_none());
        assert!(until_order(&mut WatchState::default(), &state(900), 1000).is_some());
    }

    #[test]
    fn what_somebody_stopped_stays_stopped() {
        for (service, is_on_purpose) in [
            (service("inactive", "success"), true),
            // k3s that was told to end does not always end with 0.
            (service("failed", "exit-code"), true),
            (service("failed", "signal"), true),
            (service("deactivating", "success"), true),
            (service("failed", "start-limit-hit"), false),
            // systemd keeps the result of the last run where it gives up; it had waited for the
            // next one.
            (
                Service {
                    settled_us: 5_104_000,
                    ..service("failed", "signal")
                },
                false,
            ),
            (
                Service {
                    settled_us: 90_000,
                    ..service("failed", "signal")
                },
                true,
            ),
            (service("activating", "exit-code"), false),
            (service("active", "success"), false),
            (
                Service {
                    was_started: false,
                    ..service("inactive", "success")
                },
                false,
            ),
            (
                Service {
                    was_started: false,
                    is_enabled: false,
                    ..service("inactive", "success")
                },
                true,
            ),
        ] {
            assert_eq!(
                service.is_stopped_on_purpose(),
                is_on_purpose,
                "{service:?}"
            );
            let mut watch_state = WatchState::default();
            let state = K3sState {
                service,
                restarts: 9,
                api: None,
                ..healthy()
            };
            let order = until_order(&mut watch_state, &state, 1000);
            assert!(
                !is_on_purpose || (order.is_none() && watch_state.escalated().is_empty()),
                "{order:?}"
            );
            assert_eq!(watch_state.is_stopped, is_on_purpose);
        }
    }

    #[test]
    fn a_service_that_was_given_up_is_started_at_once() {
        let mut watch_state = WatchState::default();
        let state = K3sState {
            service: service("failed", "start-limit-hit"),
            api: None,
            ..healthy()
        };
        let (after, order) = until_order(&mut watch_state, &state, 1000).unwrap();
        assert_eq!(
            (after, order.fault.id, order.repair),
            (0, "k3s.given-up", Repair::Start)
        );
    }

    #[test]
    fn a_silent_api_is_restarted_after_two_minutes_and_handed_over_after_two_failures() {
        let mut watch_state = WatchState::default();
        let mut from = 1000;
        for (failures, waits) in [(0, 120), (1, 1200)] {
            let (after, order) = until_order(&mut watch_state, &silent(), from).unwrap();
            assert_eq!(
                (after, order.repair),
                (waits, Repair::Restart),
                "{failures}"
            );
            from += after;
            watch_state.record_begin(&order, at(from));
            watch_state.record_end(&order, Some("no answer"));
        }
        assert!(until_order(&mut watch_state, &silent(), from).is_none());
        let escalated = watch_state.escalated();
        assert_eq!(escalated.len(), 1);
        assert!(
            escalated[0].sentence.contains("it was tried 2 times"),
            "{escalated:?}"
        );
        // It came back by itself, and an hour later it is forgotten.
        watch_state.observe(&healthy(), at(from + 60), true);
        assert_eq!(watch_state.escalated(), []);
    }

    #[test]
    fn a_repair_that_helps_for_a_while_is_not_done_for_ever() {
        let mut watch_state = WatchState::default();
        let (mut now, mut repairs) = (1000, 0);
        while now < 80_000 {
            if let Some((after, order)) = until_order(&mut watch_state, &silent(), now) {
                repairs += 1;
                now += after + 30;
                watch_state.record_begin(&order, at(now));
                watch_state.record_end(&order, None);
                watch_state.observe(&healthy(), at(now + 60), true);
            }
            now += 700;
        }
        assert_eq!(repairs, REPAIRS_MAX);
        watch_state.observe(&silent(), at(now), true);
        watch_state.observe(&silent(), at(now + 130), true);
        assert!(
            watch_state.escalated()[0]
                .sentence
                .contains("came back 4 times")
        );
    }

    #[test]
    fn nothing_is_repaired_that_root_does_not_allow() {
        let mut watch_state = WatchState::default();
        for minute in 0..30 {
            assert!(
                watch_state
                    .observe(&silent(), at(1000 + minute * 60), false)
                    .is_empty()
            );
        }
        assert!(watch_state.escalated()[0].sentence.contains("keeper.allow"));
    }

    #[test]
    fn a_loop_is_named_by_its_reason_and_explains_all_else() {
        for (line, id) in [
            (
                "level=fatal msg=\"Error: no default routes found in \\\"/proc/net/route\\\"\"",
                "k3s.no-route",
            ),
            (
                "level=fatal msg=\"Error: invalid node-ip: invalid ip format ''\"",
                "k3s.node-ip",
            ),
            (
                "level=fatal msg=\"unable to find interface tailscale0: route ip+net: no such network interface\"",
                "k3s.node-ip",
            ),
            (
                "level=fatal msg=\"listen tcp :6443: bind: address already in use\"",
                "k3s.port-taken",
            ),
            (
                "level=fatal msg=\"failed to find memory cgroup (v2)\"",
                "k3s.cgroups",
            ),
            (
                "E1123 10:00:00.1 1 x.go:1] \"database disk image is malformed\"",
                "k3s.datastore-damaged",
            ),
            (
                "level=fatal msg=\"bootstrap data already found and encrypted with different token\"",
                "k3s.token",
            ),
            (
                "level=fatal msg=\"tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2016-01-01T00:00:00Z is before 2026-01-01T00:00:00Z\"",
                "k3s.clock",
            ),
            (
                "level=error msg=\"tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2027-03-01T00:00:00Z is after 2027-01-01T00:00:00Z\"",
                "k3s.expired",
            ),
            (
                "{\"level\":\"fatal\",\"ts\":\"2026-11-28T05:00:00Z\",\"msg\":\"failed to open WAL\",\"error\":\"walpb: crc mismatch\"}",
                "k3s.datastore-damaged",
            ),
            // The last line is of containerd's own log.
            (
                "level=error msg=\"Shutdown request received: containerd exited: exit status 1\"\n\
                 time=\"2026-11-28T05:00:00Z\" level=fatal msg=\"Failed to run CRI service\" error=\"failed to recover state: failed to get metadata for stored sandbox \\\"a\\\": not found\"",
                "k3s.containerd",
            ),
            ("level=info msg=\"address already in use\"", "k3s.looping"),
            ("level=fatal msg=\"something new\"", "k3s.looping"),
        ] {
            let mut watch_state = WatchState::default();
            watch_state.observe(&looping(line), at(1000), true);
            let escalated = watch_state.escalated();
            assert_eq!(
                escalated
                    .iter()
                    .map(|escalated| escalated.id)
                    .collect::<Vec<_>>(),
                [id],
                "{line}"
            );
        }
        // Twice in ten minutes is no loop.
        let calm = K3sState {
            restarts: 2,
            ..looping("level=fatal msg=\"address already in use\"")
        };
        let mut watch_state = WatchState::default();
        watch_state.observe(&calm, at(1000), true);
        assert_eq!(watch_state.escalated(), []);
    }

    #[test]
    fn restarts_count_for_ten_minutes_and_not_from_before_the_first_look() {
        let mut watch_state = WatchState::default();
        assert_eq!(watch_state.record_restarts(57, at(1000)), 0);
        watch_state.observe(&healthy(), at(1000), true);
        assert_eq!(watch_state.record_restarts(59, at(1060)), 2);
        assert_eq!(watch_state.record_restarts(60, at(1120)), 3);
        // systemd begins to count again with a start by hand.
        assert_eq!(watch_state.record_restarts(1, at(1180)), 4);
        assert_eq!(watch_state.record_restarts(1, at(1700)), 2);
        assert_eq!(watch_state.record_restarts(1, at(1800)), 0);
    }

    #[test]
    fn a_server_whose_kubelet_does_not_report_is_restarted_though_it_counts_as_ready() {
        let text = "condition|Ready|True|\nreported|2026-11-26T10:00:00Z\n";
        let of = |time: &str, role| K3sState {
            api: Node::parse(text).map(Api::Node),
            wall: Wall::parse_rfc3339(time).unwrap(),
            role,
            ..healthy()
        };
        for (time, role, after_s) in [
            ("2026-11-26T10:00:10Z", Role::Server, None),
            // One report was late.
            ("2026-11-26T10:10:00Z", Role::Server, None),
            ("2026-11-26T10:11:00Z", Role::Server, Some(360)),
            ("2026-11-26T10:11:00Z", Role::Worker, None),
            // The clock was set back.
            ("2016-01-01T00:00:00Z", Role::Server, None),
        ] {
            let found = until_order(&mut WatchState::default(), &of(time, role), 1000);
            let found = found.map(|(after_s, order)| (after_s, order.fault.id));
            let wanted = after_s.map(|after_s| (after_s, "k3s.node-silent"));
            assert_eq!(found, wanted, "{time} {role:?}");
        }
    }

    #[test]
    fn the_node_is_judged_by_its_condition_its_name_and_its_address() {
        let of = |api| K3sState {
            api: Some(api),
            ..healthy()
        };
        let moved = K3sState {
            addresses: vec!["192.0.2.8".parse().unwrap()],
            ..healthy()
        };
        let fixed = K3sState {
            has_fixed_address: true,
            ..moved.clone()
        };
        for (state, expected) in [
            (
                of(node(&[("Ready", "False", "cni plugin not initialized")])),
                Some("k3s.node-not-ready"),
            ),
            (
                of(node(&[("Ready", "Unknown", "Kubelet stopped posting")])),
                Some("k3s.node-not-ready"),
            ),
            (of(Api::NoNode), Some("k3s.node-gone")),
            (moved, Some("k3s.node-address")),
            (fixed, None),
            (
                of(node(&[
                    ("Ready", "True", ""),
                    ("DiskPressure", "True", "x"),
                ])),
                None,
            ),
            (
                K3sState {
                    jumped_s: -301,
                    ..healthy()
                },
                Some("k3s.clock-set"),
            ),
            (
                K3sState {
                    jumped_s: 86_400,
                    ..healthy()
                },
                None,
            ),
            (
                K3sState {
                    certificate: Some(("a.crt".to_owned(), -1)),
                    ..healthy()
                },
                Some("k3s.certificates-ended"),
            ),
            (
                K3sState {
                    certificate: Some(("a.crt".to_owned(), 84)),
                    ..healthy()
                },
                Some("k3s.certificates-end"),
            ),
        ] {
            let mut watch_state = WatchState::default();
            // Every two hours: what has to last an hour has.
            let order = (0..3).find_map(|hour| {
                let orders = watch_state.observe(&state, at(1000 + hour * 7200), true);
                orders.into_iter().next()
            });
            assert_eq!(order.map(|order| order.fault.id), expected, "{state:?}");
        }
    }

    #[test]
    fn an_address_that_is_away_with_the_network_is_left_alone_because_k3s_would_not_start() {
        let state = |has_route| K3sState {
            addresses: vec!["10.42.0.1".parse().unwrap()],
            has_route,
            ..healthy()
        };
        for has_route in [false, true] {
            let order = until_order(&mut WatchState::default(), &state(has_route), 1000);
            assert_eq!(order.is_some(), has_route);
        }
    }

    #[test]
    fn a_clock_that_was_set_back_is_seen_by_whichever_look_comes_next() {
        for seconds in [60, 120] {
            let mut watch_state = WatchState::default();
            watch_state.observe(&healthy(), at(10_000), true);
            let now = Now {
                wall: at(10_000 + seconds - 3600).wall,
                ..at(10_000 + seconds)
            };
            assert!(watch_state.is_api_due(now), "{seconds}");
            let state = K3sState {
                jumped_s: watch_state.jumped_s(now),
                ..healthy()
            };
            let orders = watch_state.observe(&state, now, true);
            assert_eq!(orders[0].fault.id, "k3s.clock-set", "{seconds}");
        }
    }

    #[test]
    fn a_certificate_that_was_not_renewed_is_tried_once_more_when_it_has_ended() {
        let mut watch_state = WatchState::default();
        let (end, before, after) = (at(5000).wall, at(1000).wall, at(6000).wall);
        for (now, is_renewed) in [(before, [false, true]), (after, [false, false])] {
            watch_state.record_unrenewed([end].into_iter(), now);
            watch_state = WatchState::parse(&watch_state.text());
            assert_eq!(
                [before, after].map(|now| watch_state.is_renewed(end, now)),
                is_renewed
            );
        }
    }

    #[test]
    fn pressure_is_left_to_a_person_after_ten_minutes() {
        let api = node(&[
            ("Ready", "True", ""),
            ("DiskPressure", "True", "kubelet has disk pressure"),
        ]);
        let state = K3sState {
            api: Some(api),
            ..healthy()
        };
        let mut watch_state = WatchState::default();
        watch_state.observe(&state, at(1000), true);
        assert_eq!(watch_state.escalated(), []);
        watch_state.observe(&state, at(1600), true);
        assert_eq!(watch_state.escalated()[0].id, "k3s.disk-pressure");
    }

    #[test]
    fn a_worker_that_was_told_to_leave_is_not_restarted_and_so_does_not_join_again() {
        let state = K3sState {
            api: Some(Api::NoNode),
            role: Role::Worker,
            ..healthy()
        };
        let mut watch_state = WatchState::default();
        for minute in 0..60 {
            let orders = watch_state.observe(&state, at(1000 + minute * 60), true);
            assert!(orders.is_empty());
        }
        let escalated = watch_state.escalated();
        assert_eq!(ids(&watch_state), ["k3s.worker-gone"]);
        assert!(
            escalated[0].fix.contains("node leave")
                && escalated[0].fix.contains("systemctl restart k3s-agent"),
            "{}",
            escalated[0].fix
        );
    }

    #[test]
    fn coredns_that_stays_unready_is_left_to_a_person_with_the_reason_of_its_pod() {
        let mut watch_state = WatchState::default();
        for (seconds, expected) in [(0, &[][..]), (180, &[]), (240, &["k3s.dns"])] {
            assert!(
                watch_state
                    .observe(&without_dns("True"), at(1000 + seconds), true)
                    .is_empty()
            );
            watch_state = WatchState::parse(&watch_state.text());
            assert_eq!(ids(&watch_state), expected, "{seconds}");
            // It is asked for again by each look until it is left to somebody.
            assert_eq!(
                watch_state.is_api_due(at(1060 + seconds)),
                expected.is_empty()
            );
        }
        let said = &watch_state.escalated()[0].sentence;
        assert!(
            said.ends_with("Pod coredns-1: Pending, ImagePullBackOff"),
            "{said}"
        );
        // A look that does not ask leaves it, and one that sees it mended does not.
        let unasked = K3sState {
            api: None,
            ..healthy()
        };
        watch_state.observe(&unasked, at(1300), true);
        assert_eq!(ids(&watch_state), ["k3s.dns"]);
        watch_state.observe(&healthy(), at(1360), true);
        assert_eq!(ids(&watch_state), [""; 0]);
    }

    #[test]
    fn coredns_is_not_judged_where_the_node_or_the_api_is_at_fault() {
        for state in [
            without_dns("False"),
            silent(),
            looping("level=fatal msg=\"x\""),
        ] {
            let mut watch_state = WatchState::default();
            for minute in 0..30 {
                watch_state.observe(&state, at(1000 + minute * 60), false);
            }
            assert!(
                !ids(&watch_state).contains(&"k3s.dns"),
                "{:?}",
                ids(&watch_state)
            );
            assert!(!watch_state.escalated().is_empty());
        }
        // Nor does it hide certificates that end, or they it.
        let state = K3sState {
            certificate: Some(("a.crt".to_owned(), 84)),
            ..without_dns("True")
        };
        let mut watch_state = WatchState::default();
        watch_state.observe(&state, at(1000), false);
        watch_state.observe(&state, at(5000), false);
        assert_eq!(ids(&watch_state), ["k3s.certificates-end", "k3s.dns"]);
    }

    #[test]
    fn a_large_datastore_is_told_whatever_else_is_wrong() {
        for (datastore, is_large) in [
            (None, false),
            (Some([2_000_000_000, 1_000_000_000]), false),
            (Some([2_000_000_001, 0]), true),
            (Some([1, 1_000_000_001]), true),
        ] {
            for state in [healthy(), looping("level=fatal msg=\"x\"")] {
                let state = K3sState { datastore, ..state };
                let mut watch_state = WatchState::default();
                watch_state.observe(&state, at(1000), true);
                watch_state.observe(&state, at(1060), true);
                assert!(!ids(&watch_state).contains(&"k3s.datastore-large"));
                assert!(watch_state.observe(&state, at(1120), true).is_empty());
                let is_told = ids(&watch_state).contains(&"k3s.datastore-large");
                assert_eq!(is_told, is_large, "{datastore:?}");
            }
        }
        // Whoever stopped k3s is compacting it.
        let stopped = K3sState {
            service: service("inactive", "success"),
            datastore: Some([9_000_000_000, 0]),
            api: None,
            ..healthy()
        };
        let mut watch_state = WatchState::default();
        watch_state.observe(&stopped, at(1000), true);
        watch_state.observe(&stopped, at(2000), true);
        assert_eq!(ids(&watch_state), [""; 0]);
    }

    #[test]
    fn duplicate_rules_are_counted_each_hour_and_told_until_a_count_is_well() {
        let mut watch_state = WatchState::default();
        let mut told = Vec::new();
        for minute in 0..180 {
            let now = at(1000 + minute * 60);
            let is_counted = watch_state.take_count_turn(now);
            assert_eq!(is_counted, minute % 60 == 0, "{minute}");
            let count = [49, 50, 3][usize::try_from(minute / 60).unwrap()];
            let state = K3sState {
                duplicates: is_counted.then_some(count),
                ..healthy()
            };
            assert!(watch_state.observe(&state, now, true).is_empty());
            watch_state = WatchState::parse(&watch_state.text());
            if !watch_state.escalated().is_empty() {
                assert_eq!(ids(&watch_state), ["k3s.firewall-duplicates"]);
                told.push(minute);
            }
        }
        assert_eq!(told, (60..120).collect::<Vec<_>>());
    }

    #[test]
    fn a_backup_that_fails_is_told_of_and_tried_again_after_an_hour() {
        let mut watch_state = WatchState::default();
        let next = |seconds: u64| Some(at(seconds).wall);
        assert!(!watch_state.take_backup_turn(None, at(1000)));
        assert!(!watch_state.take_backup_turn(next(2000), at(1000)));
        assert_eq!(watch_state.next_backup_ms, next(2000).map(Wall::millis));
        assert!(watch_state.take_backup_turn(next(2000), at(2000)));
        watch_state.record_backup(Some("no room"), at(2000));
        watch_state = WatchState::parse(&watch_state.text());
        assert!(watch_state.escalated()[0].sentence.contains("no room"));
        assert!(!watch_state.take_backup_turn(next(2000), at(2060)));
        assert!(watch_state.take_backup_turn(next(2000), at(5600)));
        watch_state.record_backup(None, at(5600));
        assert_eq!(watch_state.escalated(), []);
        // One that a person made meanwhile counts as well.
        watch_state.record_backup(Some("no room"), at(5600));
        assert!(!watch_state.take_backup_turn(next(90_000), at(5660)));
        assert_eq!(watch_state.next_backup_ms, next(90_000).map(Wall::millis));
    }

    #[test]
    fn a_change_that_stays_unfinished_is_told_of_after_five_minutes_until_it_ends() {
        let mut watch_state = WatchState::default();
        for (seconds, is_told) in [(1000, false), (1060, false), (1300, true), (1360, true)] {
            watch_state.record_unfinished("k3s-upgrade-3", at(seconds));
            watch_state = WatchState::parse(&watch_state.text());
            let told = watch_state.escalated();
            assert_eq!(told.len() == 1, is_told, "{seconds} {told:?}");
        }
        let told = &watch_state.escalated()[0];
        assert_eq!(told.id, "k3s.unfinished");
        assert!(told.sentence.contains("k3s-upgrade-3"), "{told:?}");
        assert!(told.fix.contains("k3s resume"), "{told:?}");
        // Another one has its own time.
        watch_state.record_unfinished("k3s-restore-4", at(1420));
        assert_eq!(watch_state.escalated(), []);
        watch_state.record_unfinished("k3s-restore-4", at(1720));
        assert_eq!(watch_state.escalated().len(), 1);
        watch_state.clear_unfinished();
        assert_eq!(WatchState::parse(&watch_state.text()).escalated(), []);
    }

    fn with_archives(has_release: bool, are_unpinned: bool) -> K3sState {
        K3sState {
            archives: Some(Archives {
                has_release,
                are_unpinned,
            }),
            lacks_image: Some("docker.io/rancher/mirrored-coredns-coredns:1".to_owned()),
            ..without_dns("True")
        }
    }

    #[test]
    fn archives_are_imported_again_where_coredns_lacks_its_image_or_k3s_dropped_the_pins() {
        for (state, id) in [
            (with_archives(true, true), "k3s.images"),
            (with_archives(false, true), "k3s.images-unpinned"),
        ] {
            let mut watch_state = WatchState::default();
            let (after, order) = until_order(&mut watch_state, &state, 1000).unwrap();
            assert_eq!(
                (after, order.fault.id, order.repair),
                (60, id, Repair::Import)
            );
            watch_state.record_begin(&order, at(1060));
            watch_state.record_end(&order, None);
            // It helped; then it did not.
            assert!(watch_state.observe(&healthy(), at(1120), true).is_empty());
            assert_eq!(watch_state.escalated(), []);
            let (after, again) = until_order(&mut watch_state, &state, 1180).unwrap();
            assert_eq!((after, again.fault.id), (480, id));
        }
    }

    #[test]
    fn archives_that_would_not_help_are_not_imported() {
        let full = node(&[("Ready", "True", ""), ("DiskPressure", "True", "low")]);
        let full = K3sState {
            api: Some(full),
            ..with_archives(true, true)
        };
        let mut starts = with_archives(true, true);
        starts.service.started_s = Some(99_940);
        let another = K3sState {
            lacks_image: None,
            ..with_archives(true, false)
        };
        for state in [with_archives(false, false), full, starts, another] {
            assert!(until_order(&mut WatchState::default(), &state, 1000).is_none());
        }
    }

    #[test]
    fn a_repair_that_is_held_up_holds_up_no_other_one() {
        let state = K3sState {
            certificate: Some(("a.crt".to_owned(), 20)),
            archives: Some(Archives {
                has_release: false,
                are_unpinned: true,
            }),
            ..healthy()
        };
        let mut watch_state = WatchState::default();
        watch_state.observe(&state, at(1000), true);
        let orders = watch_state.observe(&state, at(5000), true);
        let ids: Vec<_> = orders.iter().map(|order| order.fault.id).collect();
        assert_eq!(ids, ["k3s.certificates-end", "k3s.images-unpinned"]);
        watch_state.record_hold(&orders[0], "the clock is wrong");
        watch_state.record_hold(&orders[1], "the disk is full");
        assert_eq!(self::ids(&watch_state), ids);
    }

    #[test]
    fn a_kubelet_that_waits_for_images_gets_time() {
        let waits = |started_s, reported_s: i64| {
            let Api::Node(node) = node(&[("Ready", "Unknown", "")]) else {
                panic!("a node");
            };
            let reported = at(0).wall.millis() + reported_s * 1000;
            let api = Some(Api::Node(Node {
                reported: Some(Wall::from_millis(reported)),
                ..node
            }));
            move |now: u64| K3sState {
                service: Service {
                    started_s: Some(started_s),
                    ..service("active", "success")
                },
                up_s: now,
                wall: at(now).wall,
                api: api.clone(),
                ..healthy()
            }
        };
        let until = |state: &dyn Fn(u64) -> K3sState| {
            let mut watch_state = WatchState::default();
            (0..30).find(|minute| {
                let now = 1000 + minute * 60;
                !watch_state.observe(&state(now), at(now), true).is_empty()
            })
        };
        // It reported last before k3s was started again.
        assert_eq!(until(&waits(1000, 900)), Some(17));
        // It has reported since, so that it is not the images.
        assert_eq!(until(&waits(1000, 1000)), Some(2));
        // Nobody knows when it was started.
        assert_eq!(until(&waits(0, 1000)), Some(2));
    }

    #[test]
    fn the_datastore_is_checked_once_after_a_cut_and_a_damage_stays_until_it_is_gone() {
        let mut watch_state = WatchState::default();
        assert!(watch_state.is_first() && !watch_state.is_check_due(at(1000)));
        watch_state.record_unfinished("k3s-upgrade-3", at(940));
        watch_state = WatchState::parse(&watch_state.text());
        watch_state.clear_unfinished();
        assert!(watch_state.is_first());
        watch_state.record_power_cut();
        watch_state.observe(&healthy(), at(1000), true);
        watch_state = WatchState::parse(&watch_state.text());
        assert!(!watch_state.is_first() && watch_state.is_check_due(at(1060)));
        watch_state.record_check(
            Some("Tree 4 page 7: btreeInitPage() returns error code 11"),
            at(1060),
        );
        watch_state = WatchState::parse(&watch_state.text());
        assert!(!watch_state.is_check_due(at(1120)) && watch_state.is_check_due(at(4660)));
        let state = K3sState {
            damage: watch_state.damage.clone(),
            ..healthy()
        };
        assert!(watch_state.observe(&state, at(1120), true).is_empty());
        let escalated = watch_state.escalated();
        assert_eq!(ids(&watch_state), ["k3s.datastore-damaged"]);
        assert!(
            escalated[0].sentence.contains("Tree 4 page 7"),
            "{escalated:?}"
        );
        assert!(escalated[0].fix.contains("k3s restore"), "{escalated:?}");
        watch_state.record_check(None, at(4660));
        watch_state.observe(&healthy(), at(4660), true);
        assert_eq!(ids(&watch_state), [""; 0]);
    }

    #[test]
    fn a_file_of_somebody_else_is_an_empty_memory() {
        for text in [
            "",
            "x",
            "1\t2\t3",
            "a\tb\tc\td\te\tf\nk3s.looping\t1\n",
            "\u{0}\t\t\t\t\t\t\t",
        ] {
            assert_eq!(WatchState::parse(text).escalated(), [], "{text:?}");
        }
        let mut watch_state = WatchState::default();
        watch_state.observe(&looping("level=fatal msg=\"a\tb\""), at(1000), true);
        assert_eq!(WatchState::parse(&watch_state.text()), watch_state);
    }
}
