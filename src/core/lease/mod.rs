//! Leader election: decides which agent of a cluster holds its link, over one Lease object in the
//! Kubernetes API.
//!
//! **Time.** Clocks lie: boards start in 1970, and nobody's wall clock says when another one wrote.
//! So the Lease is judged by the reader's own monotonic clock alone. A holder stands under a
//! *fence*: a moment after which it has no link unless it is moved on, counted from the **start**
//! of the last call that confirmed it. Everybody else waits from the **answer** that first showed
//! the Lease as it is, and takes it over with a write that the API refuses where the Lease changed
//! meanwhile. Both count the same stretch, the holder from before it and the others from after it,
//! and the fence ([`FENCE_SHORT`], [`FENCE_LONG`]) is a quarter and a sixth shorter than the wait
//! ([`SHORT`], [`LONG`]): that is the room for clocks that run at different speeds. A holder that
//! was stopped, suspended or cut off therefore finds its fence passed whatever it does first.
//!
//! **Two gaits.** A holder that knows of rivals writes each [`RENEW`] and promises [`SHORT`]. One
//! that knows of none writes **nothing**: flash wears. It only reads each [`CHECK`], and promises
//! [`LONG`]. A rival announces itself in the Lease before it may take a quiet one over, and waits
//! [`LONG`] from when that was written. A holder that lives sees it at its next reading and goes
//! over to the short gait; one that cannot read any more reaches its fence, because every reading
//! that did not show the rival began before the rival wrote. On the way from the long gait to the
//! short one the fence is moved up **before** the write is sent, since its answer may be lost.
//! Announcements are refreshed each [`REFRESH`] and forgotten after [`FORGET`], and a holder whose
//! last rival is forgotten or has left is quiet again. What a holder writes changes its `beat`,
//! whatever its wall clock says; announcements of others do not, so that they cannot keep a dead
//! holder's Lease alive.
//!
//! **No API.** A holder that knows of rivals, in this life or from its disk, is fenced. One that
//! knows of none keeps its link, and one that starts takes it after a while: helping a box whose
//! cluster is broken is what the link is for. The price: a **first** rival that starts while the
//! holder cannot reach an API that the rival reaches takes over after [`LONG`], and both have a
//! link until the holder reaches the API again. A board that starts in 1970 beside a cluster made
//! yesterday cannot believe the API's certificate: that is no broken cluster, and it links only
//! when its clock is set. An agent that may not use the Lease links as if it were alone, and says
//! so.
//!
//! **Cost**, in calls an hour: 1 agent: at most 360 reads, no writes. 3 agents: the holder 900
//! writes, each of the others 1,030 reads and 1 write. **Take-over**, after an orderly stop: with
//! the next look, 4 s at most; else 16 s and two round trips at most: the holder's last write is
//! seen 4 s late, and is waited for 12 s.

use std::{collections::VecDeque, time::Duration};

use litemap::LiteMap;

use crate::core::time::Mono;

mod answers;
mod record;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub use record::{Candidate, LONG, Record, SHORT, Standby};

/// Age of the start of its last write at which a holder with rivals gives up the link.
pub const FENCE_SHORT: Duration = Duration::from_secs(9);
/// Age of the start of its last call at which a holder without rivals gives up the link.
pub const FENCE_LONG: Duration = Duration::from_secs(25);
/// The longest that a call may take. A slow card gets all the time that there is between a write
/// and the fence of the one before it.
pub const CALL_WITHIN: Duration = Duration::from_secs(5);
/// Between two writes of a holder with rivals.
const RENEW: Duration = Duration::from_secs(4);
/// Between two readings of a holder without.
const CHECK: Duration = Duration::from_secs(10);
/// Between two readings of an agent that stands by, with up to a third more.
const LOOK: Duration = Duration::from_secs(3);
/// Between two tries while the API does not answer and that matters.
const RETRY_WAIT: Duration = Duration::from_secs(1);
/// The same for a holder that keeps its link meanwhile.
const RETRY_WAIT_ALONE: Duration = Duration::from_secs(5);
/// Between two tries of an agent that may not use the Lease, and its fence.
const BARRED: Duration = Duration::from_secs(60);
const FENCE_BARRED: Duration = Duration::from_secs(180);
/// Between two announcements of an agent that stands by.
const REFRESH: Duration = Duration::from_secs(3600);
/// Time without an announcement after which an agent is no rival any more.
const FORGET: Duration = Duration::from_secs(6 * 3600);
/// Silence of the API after which an agent that stands by reports it.
const SILENCE: Duration = Duration::from_secs(10);
/// Calls that a stopping agent makes at most to leave the Lease in order: a reading, a write that
/// another one was faster than, and both again.
const GOOD_BYES_MAX: u32 = 4;

/// ElectionSettings of the election.
#[derive(Clone, Debug)]
pub struct ElectionSettings {
    /// This agent.
    pub me: Candidate,
    /// True if rivals were known before the start.
    pub knows_rivals: bool,
    /// Until when an agent that knows of no rivals waits for the first answer of the API before it
    /// links without it.
    pub ask_until: Mono,
}

/// Inputs of the machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Input {
    /// The Lease was read.
    Found(Record),
    /// There is none; or, after [`Output::Create`], not even a place for it.
    NotFound,
    /// A write succeeded; the object has this version now.
    Written(String),
    /// The Lease was another one than what was to be replaced.
    Conflict,
    /// This agent may not; the text says what.
    Forbidden(String),
    /// No answer, or none that says anything; the text says why.
    Unanswered(String),
    /// The API is there and cannot be believed, because this machine's clock is behind it. The text
    /// says so in detail.
    ClockBehind(String),
    /// Id of this cluster at the control plane.
    ClusterId(String),
    /// The control plane has taken a registration of this agent.
    Registered,
    /// This agent's rights may be other ones now.
    LookAgain,
    /// The end: the link is closed, leave the Lease to the others.
    Stop,
}

/// Purpose of a write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Change {
    /// Only who stands by.
    Standby,
    /// The holder goes on.
    Renewed,
    /// There is another holder.
    Acquired,
    /// The holder goes.
    Released,
}

/// Requests of the machine to its owner. After a call it waits for the answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Output {
    /// Read the Lease.
    Get,
    Create(Record),
    /// Replace the state of it that the record's version names.
    Update(Record, Change),
    /// Keep on disk whether rivals are known, before anything else is done.
    KeepRivals(bool),
    /// A line for the log, once for each transition.
    Log(String),
    /// Nothing until then.
    Wait(Mono),
    /// Nothing any more.
    Done,
}

/// Permission to link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LeaseState {
    /// This agent may link until this time.
    Open(Mono),
    /// The API has not answered yet.
    Asking,
    /// Another agent holds the Lease.
    StandingBy(Candidate),
    /// The API does not answer, and there are rivals.
    Blind,
}

/// Last known state of the Lease.
#[derive(Clone, Debug, Eq, PartialEq)]
enum KnownLease {
    Unknown,
    Nothing,
    Record(Record),
}

/// Reasons why there is no answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Silence {
    /// Perhaps for nobody.
    NoAnswer,
    /// For this machine, until its clock is set.
    ClockBehind,
}

#[derive(Clone, Debug)]
enum Ask {
    Get,
    Create(Record),
    Update(Record, Change),
}

/// A holder that is not this agent, as long as it shows no sign of life.
#[derive(Clone, Debug)]
struct Watched {
    holder: Candidate,
    beat: u64,
    since: Mono,
    is_quiet: bool,
    patience: Duration,
}

/// The machine. See the module.
#[derive(Debug)]
pub struct Election {
    me: Candidate,
    cluster_id: Option<String>,
    /// True if the control plane heard this agent since it holds the link.
    is_registered: bool,
    ask_until: Mono,
    knows_rivals: bool,
    seen: KnownLease,
    /// True if it must be read again before anything is written.
    is_stale: bool,
    watched: Option<Watched>,
    /// Under which beat this agent's announcement stands in the Lease, and since when it surely
    /// does.
    announced: Option<(u64, Mono)>,
    next_beat: u64,
    /// Time when each rival's announcement was first seen as it is.
    ages: LiteMap<String, (u64, Mono)>,
    /// Time when the last confirmed write of this holder began.
    renewed: Option<Mono>,
    /// The fence that the Lease gives.
    fence: Option<Mono>,
    /// The fence without the Lease: of an agent that knows of no rivals and gets no answer, or that
    /// may not use it.
    grace: Option<Mono>,
    asked: Option<(Ask, Mono)>,
    answered: Option<Mono>,
    /// Reason why the last call was not answered; `None` where it was.
    silence: Option<Silence>,
    barred: Option<String>,
    next: Mono,
    good_byes: Option<u32>,
    outputs: VecDeque<Output>,
    random: fastrand::Rng,
}

impl Election {
    /// An agent that asks at its first poll, and has no link before.
    pub fn new(settings: ElectionSettings, seed: u64, now: Mono) -> Self {
        Self {
            me: settings.me,
            cluster_id: None,
            is_registered: false,
            ask_until: settings.ask_until,
            knows_rivals: settings.knows_rivals,
            seen: KnownLease::Unknown,
            is_stale: false,
            watched: None,
            announced: None,
            next_beat: 1,
            ages: LiteMap::new(),
            renewed: None,
            fence: None,
            grace: None,
            asked: None,
            answered: None,
            silence: None,
            barred: None,
            next: now,
            good_byes: None,
            outputs: VecDeque::new(),
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Returns whether there may be a link now. An open one ends at its moment by itself.
    pub fn standing(&self, now: Mono) -> LeaseState {
        // None is smaller than any.
        if let Some(fence) = self.fence.max(self.grace).filter(|fence| now < *fence) {
            return LeaseState::Open(fence);
        }
        let is_silent = self.silence.is_some()
            && self
                .answered
                .is_none_or(|answered| now.since(answered) >= SILENCE);
        match &self.watched {
            _ if self.silence == Some(Silence::ClockBehind) && is_silent => LeaseState::Blind,
            _ if self.knows_rivals && is_silent => LeaseState::Blind,
            Some(watched) => LeaseState::StandingBy(watched.holder.clone()),
            None => LeaseState::Asking,
        }
    }

    /// Returns why this agent may not use the Lease and links all the same.
    pub fn barred(&self) -> Option<&str> {
        self.barred.as_deref()
    }

    /// Id of this cluster at the control plane, as the agents of the cluster share it.
    pub fn cluster_id(&self) -> Option<&str> {
        let KnownLease::Record(record) = &self.seen else {
            return None;
        };
        record.cluster_id.as_deref()
    }

    /// Returns whether the control plane knows this cluster through another agent, and is to hear
    /// this one before anything else.
    pub fn must_register(&self) -> bool {
        let KnownLease::Record(record) = &self.seen else {
            return false;
        };
        record.registered.as_ref() != Some(&self.me.id)
    }

    /// The word of the state: in logs and in tests.
    pub fn state(&self, now: Mono) -> &'static str {
        if self.good_byes.is_some() {
            return "leaving";
        }
        if self.barred.is_some() {
            return "barred";
        }
        match (self.standing(now), &self.seen) {
            (LeaseState::Open(_), KnownLease::Record(record)) if record.is_quiet() => "alone",
            (LeaseState::Open(_), KnownLease::Record(_)) => "holding",
            (LeaseState::Open(_), KnownLease::Unknown | KnownLease::Nothing) => {
                "alone without the cluster"
            }
            (LeaseState::StandingBy(_), _) => "standing by",
            (LeaseState::Asking, _) => "asking",
            (LeaseState::Blind, _) => "blind",
        }
    }

    /// Takes what happened. What follows from it is asked for by the next calls of
    /// [`Election::poll`].
    pub fn handle(&mut self, input: Input, now: Mono) {
        let before = self.state(now);
        let why = match input {
            Input::ClusterId(id) => {
                self.cluster_id = Some(id);
                return;
            }
            Input::Registered => {
                let is_mine = matches!(&self.seen, KnownLease::Record(record) if record.is_held_by(&self.me.id));
                self.is_registered |= is_mine;
                return;
            }
            Input::LookAgain => {
                if self.barred.is_some() && self.asked.is_none() {
                    self.next = self.next.min(now);
                }
                return;
            }
            Input::Stop => {
                // A write under way is given up, and may come to pass all the same.
                let is_writing = self
                    .asked
                    .take()
                    .is_some_and(|(ask, _)| !matches!(ask, Ask::Get));
                self.is_stale |= is_writing;
                (self.fence, self.grace) = (None, None);
                self.good_byes = Some(0);
                self.next = now;
                return;
            }
            Input::Found(_)
            | Input::NotFound
            | Input::Written(_)
            | Input::Conflict
            | Input::Forbidden(_)
            | Input::Unanswered(_)
            | Input::ClockBehind(_) => {
                let Some((ask, began)) = self.asked.take() else {
                    return;
                };
                self.answer(input, ask, began, now)
            }
        };
        let after = self.state(now);
        if before != after {
            self.outputs
                .push_back(Output::Log(format!("lease: {before} -> {after} ({why})")));
        }
    }

    /// Returns the next action; call until it is [`Output::Wait`] or [`Output::Done`], or a call.
    pub fn poll(&mut self, now: Mono) -> Output {
        if let Some(output) = self.outputs.pop_front() {
            return output;
        }
        if now < self.next || self.asked.is_some() {
            return Output::Wait(self.next);
        }
        let Some(ask) = self.ask(now) else {
            return Output::Done;
        };
        if let Ask::Update(record, _) = &ask
            && record.is_held_by(&self.me.id)
            && !record.is_quiet()
        {
            // From the moment at which this may be written others wait for the short promise only.
            let short = now.after(FENCE_SHORT);
            self.fence = self.fence.map(|fence| fence.min(short));
        }
        self.next = now.after(CALL_WITHIN);
        self.asked = Some((ask.clone(), now));
        match ask {
            Ask::Get => Output::Get,
            Ask::Create(record) => Output::Create(record),
            Ask::Update(record, change) => Output::Update(record, change),
        }
    }

    /// The next call; `None` where there is none any more.
    fn ask(&mut self, now: Mono) -> Option<Ask> {
        if let Some(good_byes) = &mut self.good_byes {
            *good_byes += 1;
            return (*good_byes <= GOOD_BYES_MAX)
                .then(|| self.release())
                .flatten();
        }
        let wanted = self.wanted(now);
        Some(match (&self.seen, wanted) {
            (KnownLease::Nothing, Some((record, _))) => Ask::Create(record),
            (KnownLease::Record(_), Some((record, change))) => Ask::Update(record, change),
            (KnownLease::Unknown, _) | (_, None) => Ask::Get,
        })
    }

    /// Releases the Lease to the others.
    fn release(&self) -> Option<Ask> {
        match &self.seen {
            _ if self.is_stale => Some(Ask::Get),
            KnownLease::Record(record) if record.is_held_by(&self.me.id) => {
                Some(Ask::Update(record.without(&self.me.id), Change::Released))
            }
            KnownLease::Record(record) if record.announced(&self.me.id).is_some() => {
                Some(Ask::Update(record.without(&self.me.id), Change::Standby))
            }
            KnownLease::Unknown | KnownLease::Nothing | KnownLease::Record(_) => None,
        }
    }

    /// Wanted state of the Lease; `None` if it is correct, or must not be touched yet.
    fn wanted(&self, now: Mono) -> Option<(Record, Change)> {
        let record = match &self.seen {
            _ if self.is_stale => return None,
            KnownLease::Unknown => return None,
            KnownLease::Nothing => {
                let is_ours = self.watched.is_none() || self.is_over(now);
                let first = Record {
                    beat: u64::from(self.random.clone().u32(..)),
                    ..Record::default()
                };
                return is_ours.then(|| (self.held(&first, Vec::new()), Change::Acquired));
            }
            KnownLease::Record(record) => record,
        };
        let others = record.others(&self.me.id);
        match &record.holder {
            None => Some((self.held(record, others), Change::Acquired)),
            Some(holder) if holder.id == self.me.id => self.renewal(record, now),
            Some(holder) if self.is_over(now) => {
                // It may come back: it is a rival until it was silent for long.
                let mut rivals = others;
                rivals.retain(|other| other.party.id != holder.id);
                rivals.push(Standby {
                    party: holder.clone(),
                    beat: 0,
                });
                Some((self.held(record, rivals), Change::Acquired))
            }
            Some(_) => {
                let is_said = self
                    .announced
                    .is_some_and(|(_, since)| now.since(since) < REFRESH);
                let record = record.with(&self.me, self.next_beat)?;
                (!is_said).then_some((record, Change::Standby))
            }
        }
    }

    /// Next write of this holder, if it is due or the Lease is not as it should be.
    fn renewal(&self, record: &Record, now: Mono) -> Option<(Record, Change)> {
        let mut rivals = record.others(&self.me.id);
        rivals.retain(|rival| {
            let age = self.ages.get(&rival.party.id);
            age.is_none_or(|(_, since)| now.since(*since) < FORGET)
        });
        let next = self.held(record, rivals);
        // The first write of a life makes void what an earlier life wrote that may still be under
        // way: a release, perhaps.
        let is_due = self
            .renewed
            .is_none_or(|began| !next.is_quiet() && now.since(began) >= RENEW);
        let is_news = next.duration != record.duration
            || next.cluster_id != record.cluster_id
            || next.registered != record.registered
            || next.standby != record.standby
            || next.holder != record.holder;
        (is_due || is_news).then_some((next, Change::Renewed))
    }

    fn held(&self, record: &Record, rivals: Vec<Standby>) -> Record {
        let mut held = record.held(&self.me, rivals);
        if self.cluster_id.is_some() {
            held.cluster_id.clone_from(&self.cluster_id);
        }
        let me = Some(&self.me.id);
        if self.is_registered {
            held.registered = me.cloned();
        } else if held.registered.as_ref() != me {
            // This one is about to register. Whoever follows it, however soon, cannot know whether
            // it did.
            held.registered = None;
        }
        held
    }

    /// Returns whether the holder's promise is over.
    fn is_over(&self, now: Mono) -> bool {
        self.over_at().is_some_and(|over| now >= over)
    }

    /// Returns when it is over, unless the holder shows a sign of life.
    fn over_at(&self) -> Option<Mono> {
        let watched = self.watched.as_ref()?;
        let since = if watched.is_quiet {
            // A quiet holder owes its sign of life to a rival that announced itself.
            self.announced?.1.max(watched.since)
        } else {
            watched.since
        };
        Some(since.after(watched.patience))
    }

    fn next_call(&mut self, now: Mono) -> Mono {
        let jitter = f64::from(self.random.u16(..)) / f64::from(u16::MAX);
        if self.good_byes.is_some() || self.wanted(now).is_some() {
            return now;
        }
        match &self.seen {
            // Several that were too late must not be too late together again.
            _ if self.is_stale => now.after(Duration::from_millis(200).mul_f64(jitter)),
            KnownLease::Record(record) if record.is_held_by(&self.me.id) => {
                let renewed = self.renewed.filter(|_| !record.is_quiet());
                renewed.map_or_else(|| now.after(CHECK), |began| began.after(RENEW))
            }
            KnownLease::Unknown | KnownLease::Nothing | KnownLease::Record(_) => {
                let look = now.after(LOOK + (LOOK / 3).mul_f64(jitter));
                self.over_at().map_or(look, |over| over.min(look)).max(now)
            }
        }
    }
}
