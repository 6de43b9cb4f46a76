//! Notifications: a condition began, got worse, or ended.
//!
//! There is no queue: the notifier compares the current conditions with those that it reported, so
//! an outage of the receiver leaves one message, which is true when it arrives. A condition that
//! comes and goes is reported less and less often, and there is a budget per hour. It sends nothing
//! and knows no receiver.

use std::time::Duration;

use crate::core::order::OrderExt as _;

use litemap::LiteMap;

use super::{
    backoff::Backoff,
    health::{Condition, Severity},
    time::{Mono, Now, Wall},
};

/// Time that a change must last before it is reported.
pub const SETTLE: Duration = Duration::from_secs(30);
/// Number of [`SETTLE`] periods after the start in which nothing is reported as resolved.
const START: u32 = 6;
/// Messages in an hour; those in the reserve are for what is critical.
const MESSAGES_MAX: usize = 12;
const RESERVE: usize = 4;
const HOUR: Duration = Duration::from_secs(3600);
/// Doublings of that time for what comes and goes: 32 minutes at most.
const DOUBLINGS_MAX: u32 = 6;
/// Conditions that came and went unseen and are named.
const MISSED_MAX: usize = 16;
const RETRY_FIRST: Duration = Duration::from_secs(10);
const RETRY_LONGEST: Duration = Duration::from_secs(900);

/// Quiet hours: minutes of a day in which only critical conditions are reported.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Quiet {
    /// The first minute, of 1440.
    pub from: u16,
    /// The first minute after it; less than `from` where midnight is between them.
    pub to: u16,
}

impl Quiet {
    /// Reads `22:00-07:00`.
    pub fn parse(text: &str) -> Option<Self> {
        let (from, to) = text.split_once('-')?;
        let minute = |text: &str| {
            let (hour, minute) = text.trim().split_once(':')?;
            let is_two = |text: &str| text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
            let (hour, minute) = (
                is_two(hour).then_some(hour)?,
                is_two(minute).then_some(minute)?,
            );
            let (hour, minute) = (hour.parse::<u16>().ok()?, minute.parse::<u16>().ok()?);
            (hour < 24 && minute < 60).then_some(hour * 60 + minute)
        };
        let quiet = Self {
            from: minute(from)?,
            to: minute(to)?,
        };
        (quiet.from != quiet.to).then_some(quiet)
    }

    /// Time left from a minute of the day; `None` outside quiet hours.
    fn left(self, minute: u16) -> Option<Duration> {
        let since = |minute: u16| (minute + DAY - self.from) % DAY;
        let (length, passed) = (since(self.to), since(minute));
        let left = length.checked_sub(passed).filter(|left| *left > 0)?;
        Some(Duration::from_secs(u64::from(left) * 60))
    }
}

const DAY: u16 = 1440;

/// Configuration of notifications.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Wanted {
    /// Minimum severity.
    pub minimum: Severity,
    /// Quiet hours, if any.
    pub quiet: Option<Quiet>,
    /// Time that a change must last before it is reported: [`SETTLE`].
    pub settle: Duration,
}

/// Transition of a condition.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Transition {
    /// It is more severe than it was reported.
    Worse,
    Began,
    /// It is over.
    Ended,
}

impl Transition {
    /// The word in messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Worse => "worse",
            Self::Began => "began",
            Self::Ended => "ended",
        }
    }
}

/// One condition in a message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Notice {
    pub id: String,
    /// The change.
    pub turn: Transition,
    /// Severity, the last one for an ended condition.
    pub severity: Severity,
    /// Problem, the last one for an ended condition.
    pub sentence: String,
    /// Action for a person.
    pub fix: Option<String>,
    /// Since when it is, or was.
    pub since: Wall,
}

/// Message to send.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Message {
    /// Changes, worst first.
    pub notices: Vec<Notice>,
    /// Conditions that came and went while nothing could be sent, with their counts.
    pub missed: LiteMap<String, u32>,
    /// Time during which nothing could be sent.
    pub late: Option<Duration>,
}

/// Last report of a condition that is not known to be over.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Notified {
    /// As it was told.
    pub severity: Severity,
    /// As it was told.
    pub sentence: String,
    /// Since when it is.
    pub since: Wall,
}

/// Next action.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Next {
    /// Send this, and say what came of it.
    Send(Message),
    /// Nothing before this moment, unless conditions change.
    Wait(Option<Mono>),
}

#[derive(Debug)]
struct Pending {
    severity: Severity,
    sentence: String,
    fix: Option<String>,
    since: Wall,
    /// Time when it was seen first, or seen to be gone.
    changed: Mono,
    is_over: bool,
}

/// Decides which changes to report, and when.
#[derive(Debug)]
pub struct Notifier {
    wanted: Wanted,
    started: Mono,
    seen: LiteMap<String, Pending>,
    notified: LiteMap<String, Notified>,
    /// Tellings of each condition in the last hour, to find those that come and go.
    turns: LiteMap<String, Vec<Mono>>,
    sent: Vec<Mono>,
    missed: LiteMap<String, u32>,
    backoff: Backoff,
    failing: Option<Mono>,
    not_before: Option<Mono>,
}

impl Notifier {
    /// Notifier that had reported `notified` before its start.
    pub fn new(wanted: Wanted, notified: LiteMap<String, Notified>, now: Mono) -> Self {
        Self {
            wanted,
            started: now,
            seen: LiteMap::new(),
            notified,
            turns: LiteMap::new(),
            sent: Vec::new(),
            missed: LiteMap::new(),
            backoff: Backoff::new(RETRY_FIRST, RETRY_LONGEST),
            failing: None,
            not_before: None,
        }
    }

    /// Takes what holds now: all of it.
    pub fn see(&mut self, holding: &[&Condition], now: Mono) {
        let minimum = self.wanted.minimum;
        let mut gone: Vec<String> = self.seen.keys().cloned().collect();
        for condition in holding.iter().filter(|one| one.severity >= minimum) {
            gone.retain(|id| id != condition.id);
            let known = self.seen.get(condition.id);
            // One that comes back before its end was told has never been away, for whoever is told.
            let is_new =
                known.is_none_or(|known| known.is_over || known.severity < condition.severity);
            let changed = known.filter(|_| !is_new).map_or(now, |known| known.changed);
            let held = Pending {
                severity: condition.severity,
                sentence: condition.sentence.clone(),
                fix: condition.fix.clone(),
                since: condition.since,
                changed,
                is_over: false,
            };
            self.seen.insert(condition.id.to_owned(), held);
        }
        for id in gone {
            let Some(held) = self.seen.get_mut(&id).filter(|held| !held.is_over) else {
                continue;
            };
            held.is_over = true;
            held.changed = now;
            if !self.notified.contains_key(&id) {
                self.seen.remove(&id);
                // Worth a word only where it could not be told: what passes in half a minute is of
                // no interest.
                if self.failing.is_some()
                    && (self.missed.len() < MISSED_MAX || self.missed.contains_key(&id))
                {
                    *self.missed.entry(id).or_default() += 1;
                }
            }
        }
    }

    /// Returns the next action. `minute` is the minute of the day in the machine's time zone.
    pub fn next(&mut self, now: Mono, minute: u16) -> Next {
        self.forget(now);
        let mut wake: Option<Mono> = None;
        let mut wait = |until: Mono| wake = Some(wake.map_or(until, |wake| wake.min(until)));
        if let Some(until) = self.not_before.filter(|until| *until > now) {
            return Next::Wait(Some(until));
        }
        let quiet = self.wanted.quiet.and_then(|quiet| quiet.left(minute));
        let mut notices = Vec::new();
        for (notice, ripe) in self.open() {
            let is_urgent =
                notice.severity == Severity::Critical && notice.turn != Transition::Ended;
            let room = if is_urgent {
                MESSAGES_MAX
            } else {
                MESSAGES_MAX - RESERVE
            };
            if ripe > now {
                wait(ripe);
            } else if let Some(left) = quiet.filter(|_| !is_urgent) {
                // A minute at most: the clock may be set in between.
                wait(now.after(left.min(Duration::from_secs(60))));
            } else if self.sent.len() >= room {
                let oldest = self.sent.first().copied().unwrap_or(now);
                wait(oldest.after(HOUR));
            } else {
                notices.push(notice);
            }
        }
        if notices.is_empty() {
            return Next::Wait(wake);
        }
        notices.order_by_key(|notice| (std::cmp::Reverse(notice.severity), notice.turn));
        Next::Send(Message {
            notices,
            missed: self.missed.clone(),
            late: self.failing.map(|since| now.since(since)),
        })
    }

    /// Records that the message arrived. Returns all reported conditions, to be stored on disk.
    pub fn sent(&mut self, message: &Message, now: Mono) -> &LiteMap<String, Notified> {
        self.sent.push(now);
        self.backoff.reset();
        self.failing = None;
        self.not_before = None;
        self.missed.clear();
        for notice in &message.notices {
            self.turns.entry(notice.id.clone()).or_default().push(now);
            if notice.turn == Transition::Ended {
                self.notified.remove(&notice.id);
                if self.seen.get(&notice.id).is_some_and(|held| held.is_over) {
                    self.seen.remove(&notice.id);
                }
                continue;
            }
            let notified = Notified {
                severity: notice.severity,
                sentence: notice.sentence.clone(),
                since: notice.since,
            };
            self.notified.insert(notice.id.clone(), notified);
        }
        &self.notified
    }

    /// Records that the message did not arrive. `wait` is the receiver's `Retry-After`.
    pub fn failed(&mut self, now: Now, jitter: u16, wait: Option<Duration>) {
        self.failing.get_or_insert(now.mono);
        let own = self.backoff.next(jitter);
        let wait = wait.map_or(own, |wait| wait.min(HOUR).max(own));
        self.not_before = Some(now.mono.after(wait));
    }

    /// Number of consecutive failures.
    pub const fn failures(&self) -> u32 {
        self.backoff.failures()
    }

    /// Differences between current and reported conditions, each with the time from which it may be
    /// reported.
    fn open(&self) -> Vec<(Notice, Mono)> {
        let mut open = Vec::new();
        for (id, held) in self.seen.iter().filter(|(_, held)| !held.is_over) {
            let turn = match self.notified.get(id) {
                None => Transition::Began,
                Some(notified) if notified.severity < held.severity => Transition::Worse,
                Some(_) => continue,
            };
            let notice = Notice {
                id: id.clone(),
                turn,
                severity: held.severity,
                sentence: held.sentence.clone(),
                fix: held.fix.clone(),
                since: held.since,
            };
            open.push((notice, held.changed.after(self.settle(id))));
        }
        let start = self.started.after(self.wanted.settle.saturating_mul(START));
        for (id, notified) in &self.notified {
            let ripe = match self.seen.get(id) {
                Some(held) if !held.is_over => continue,
                Some(held) => held.changed.after(self.settle(id)),
                // Told before the start, and not seen since.
                None => start,
            };
            let notice = Notice {
                id: id.clone(),
                turn: Transition::Ended,
                severity: notified.severity,
                sentence: notified.sentence.clone(),
                fix: None,
                since: notified.since,
            };
            open.push((notice, ripe.max(start)));
        }
        open
    }

    /// Time that a change of this condition must last. The first two reports within an hour, a
    /// beginning and an end, wait as configured; each further one waits twice as long.
    fn settle(&self, id: &str) -> Duration {
        let turns = self.turns.get(id).map_or(0, Vec::len);
        let doublings = u32::try_from(turns.saturating_sub(1)).unwrap_or(u32::MAX);
        let wait = self.wanted.settle;
        wait.saturating_mul(1 << doublings.min(DOUBLINGS_MAX))
    }

    fn forget(&mut self, now: Mono) {
        let is_recent = |at: &Mono| now.since(*at) < HOUR;
        self.sent.retain(is_recent);
        for (_, turns) in self.turns.iter_mut() {
            turns.retain(is_recent);
        }
        self.turns.retain(|_, turns| !turns.is_empty());
    }
}

#[cfg(test)]
mod tests;
