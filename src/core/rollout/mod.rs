//! Verdict on a rollout: recorded observations and time in, verdict, cause and fix out.
//!
//! [`look()`] judges one observation by itself; [`Rollout`] adds time: how long a cause has held,
//! deadlines that stop while the cluster cannot be seen, the soak. Nothing here asks the cluster or
//! reads a clock, so a recording gives the same verdict bit for bit.

mod cause;
mod charts;
mod containers;
mod custom;
mod earlier;
mod evidence;
mod inputs;
mod last_lines;
mod look;
mod messages;
mod object;
mod pods;
mod related;
mod routes;
mod state;
mod workloads;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

pub use cause::{Blame, Cause};
pub use evidence::LAST_LINES;
pub use inputs::inputs;
pub use last_lines::{Died, LINES_MAX, died, last_lines, shown_log};
use look::look_since;
pub use look::{RolloutProgress, look};
pub use object::{Key, Object, Observation};
pub use related::{EventLine, PodLine, events_of, images_of, owned, pods_of};
pub use workloads::{JobEnd, Stuck, is_watched, job_end};

use self::earlier::Earlier;
use super::time::{Mono, in_words};

/// Time for which everything must stay ready before a version is good.
pub const SOAK: Duration = Duration::from_secs(60);
/// Time without progress after which a rollout is bad, unless the Deployment says otherwise: the
/// default of Kubernetes.
pub const DEADLINE: Duration = Duration::from_secs(600);

/// Time within which a controller tries again to make a Pod that the quota refused, after refusals
/// for half a minute: it waits twice as long each time.
const RETRIED_WITHIN: Duration = Duration::from_secs(60);

/// Time within which the kubelet looks again for a Secret that a Job has made meanwhile: it waits
/// twice as long each time, two minutes at most.
const MOUNTED_WITHIN: Duration = Duration::from_secs(130);

/// Time between two looks after which the machine slept, or this process was stopped: nobody knows
/// what happened meanwhile, and what is seen may be of before. A look that asks for the last lines
/// of some containers takes 5 s for each at most.
const GAP: Duration = Duration::from_secs(30);

/// Verdict on a change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RolloutVerdict {
    /// Something outside the app has to happen first.
    Waiting,
    /// Under way.
    Progressing,
    /// The cluster cannot be seen.
    Blind,
    /// Everything is ready, but not for long enough.
    Soaking,
    /// Everything has been ready for long enough.
    Good,
    /// Failed; the cause lies in the app.
    Bad,
    /// A person has stopped it.
    Paused,
}

impl RolloutVerdict {
    const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Progressing,
        Self::Blind,
        Self::Soaking,
        Self::Good,
        Self::Bad,
        Self::Paused,
    ];

    /// The word in the API and on disk.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Progressing => "progressing",
            Self::Blind => "blind",
            Self::Soaking => "soaking",
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Paused => "paused",
        }
    }

    /// The verdict of that word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == word)
    }

    /// Returns whether it will not change by itself.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Good | Self::Bad)
    }
}

/// Something that keeps a version from being good.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Finding {
    pub cause: Cause,
    /// Object that shows it: `Pod shop/web-7d4b9`.
    pub object: String,
    pub sentence: String,
    /// Line of the cluster that proves it; empty where the sentence says all.
    pub evidence: String,
    /// Action for a person.
    pub fix: String,
    /// True if waiting is pointless once it has held for [`Cause::hold`].
    pub is_definite: bool,
}

/// Objects that a verdict is about, and its times.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Scope {
    /// Objects of the version, each with the generation that its controller must have seen.
    pub targets: BTreeMap<Key, u64>,
    /// Time without progress that is allowed.
    pub deadline: Duration,
    /// Time for which everything must stay ready.
    pub soak: Duration,
}

/// Verdict with its reasons.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct JudgedRollout {
    pub verdict: RolloutVerdict,
    pub sentence: String,
    /// Worst finding, where there is one.
    pub finding: Option<Finding>,
    /// Time since when the verdict and its cause hold.
    pub since: Mono,
}

/// View of the cluster at one moment.
#[derive(Clone, Copy, Debug)]
pub enum ClusterView<'a> {
    /// Everything that a verdict reads.
    Seen(&'a Observation),
    /// The API server refuses to show it.
    Refused(&'a Finding),
    /// The API server does not answer.
    Blind,
}

impl<'a> From<Option<&'a Observation>> for ClusterView<'a> {
    fn from(seen: Option<&'a Observation>) -> Self {
        seen.map_or(Self::Blind, Self::Seen)
    }
}

/// A rollout being judged.
#[derive(Clone, Debug)]
pub struct Rollout {
    scope: Scope,
    /// Time since when nothing outside the app has held it up.
    free_since: Mono,
    /// Last progress; deadlines count from here.
    progressed: Mono,
    /// Most that was ready at once.
    best: u64,
    /// Number of Pods that were wanted at the last look.
    replicas: Option<u64>,
    looked: Mono,
    blind_since: Option<Mono>,
    soak: Option<Soak>,
    /// Last moment at which a Pod was being deleted.
    left: Option<Mono>,
    /// Number of times that everything was ready and something was not any more.
    flaps: u32,
    /// The last reason that was seen.
    found: Option<Finding>,
    /// Causes that are seen, with their first moment.
    held: BTreeMap<Cause, Mono>,
    /// Jobs that were seen to be done. One with a TTL is deleted soon after.
    done: BTreeSet<Key>,
    /// True if a Pod lacked something that a Job which ran beside it may have made.
    has_lacked: bool,
    /// Ends of containers from before the first look, or the first one after blindness.
    earlier: Option<Earlier>,
    last: Option<JudgedRollout>,
}

#[derive(Clone, Copy, Debug)]
struct Soak {
    since: Mono,
    restarts: u64,
}

impl Rollout {
    /// Begins to judge. After a restart of the agent it begins again: what happened meanwhile was
    /// not seen.
    pub const fn new(scope: Scope, now: Mono) -> Self {
        Self {
            scope,
            free_since: now,
            progressed: now,
            best: 0,
            replicas: None,
            looked: now,
            blind_since: None,
            soak: None,
            left: None,
            flaps: 0,
            found: None,
            held: BTreeMap::new(),
            done: BTreeSet::new(),
            has_lacked: false,
            earlier: None,
            last: None,
        }
    }

    /// Marks Jobs as done that were seen so before.
    pub fn mark_done(&mut self, jobs: impl IntoIterator<Item = Key>) {
        self.done.extend(jobs);
    }

    /// Jobs that were seen to be done.
    pub const fn done(&self) -> &BTreeSet<Key> {
        &self.done
    }

    /// Time that it took until everything was ready, without what held it up from outside before
    /// that; zero until then.
    pub fn took(&self) -> Duration {
        let soak = self.soak.map(|soak| soak.since);
        soak.map_or(Duration::ZERO, |ready| ready.since(self.free_since))
    }

    /// Judges what is seen now.
    pub fn observe(&mut self, view: ClusterView<'_>, now: Mono) -> JudgedRollout {
        if let Some(last) = self.last.as_ref().filter(|last| last.verdict.is_final()) {
            return last.clone();
        }
        if now.since(self.looked) >= GAP {
            self.blind_since.get_or_insert(self.looked);
        }
        self.looked = now;
        let (verdict, sentence, finding) = match view {
            ClusterView::Seen(seen) => {
                self.restart_timers(now);
                if workloads::has_leaving(seen) {
                    self.left = Some(now);
                }
                let earlier = self.earlier.get_or_insert_with(|| Earlier::of(seen));
                earlier.keep_those_of(seen);
                note_done(&mut self.done, &mut self.scope, seen);
                let look = look_since(&self.scope, seen, earlier);
                if look.excused.is_some() {
                    earlier.exclude_past_ends(seen);
                }
                self.judge(look, now)
            }
            ClusterView::Refused(_) | ClusterView::Blind => {
                self.blind_since.get_or_insert(now);
                unseen(view)
            }
        };
        let since = match &self.last {
            Some(last)
                if last.verdict == verdict
                    && cause_of(last.finding.as_ref()) == cause_of(finding.as_ref()) =>
            {
                last.since
            }
            Some(_) | None => now,
        };
        let judgement = JudgedRollout {
            verdict,
            sentence,
            finding,
            since,
        };
        self.last = Some(judgement.clone());
        judgement
    }

    /// Restarts deadlines, holds, the soak and the count of restarts after a time without
    /// observations.
    fn restart_timers(&mut self, now: Mono) {
        if self.blind_since.take().is_some() {
            (self.progressed, self.free_since) = (now, now);
            self.held.clear();
            self.soak = None;
            self.earlier = None;
        }
    }

    fn judge(
        &mut self,
        look: RolloutProgress,
        now: Mono,
    ) -> (RolloutVerdict, String, Option<Finding>) {
        self.note_causes(&look, now);
        // An autoscaler may scale for as long as it likes.
        let before = self.replicas.replace(look.replicas);
        let is_scaled = before.is_some_and(|before| before != look.replicas);
        if is_scaled || look.ready > self.best {
            self.progressed = now;
        }
        self.best = self.best.max(look.ready);
        if look.is_paused {
            (self.progressed, self.free_since) = (now, now);
            self.soak = None;
            let sentence = "the rollout is paused (spec.paused)".to_owned();
            return (RolloutVerdict::Paused, sentence, look.worst());
        }
        if look.is_complete {
            return self.soaks(&look, now);
        }
        if self.soak.take().is_some() && !is_scaled {
            self.flaps = self.flaps.saturating_add(1);
        }
        let worst = look.worst();
        // What lay outside is over without a trace, and explains nothing that is late after it.
        let lasts = |found: &Finding| found.cause.blame() == Blame::App;
        if let Some(found) = worst.clone().filter(lasts) {
            self.found = Some(found);
        }
        // A definite cause in the app wins over trouble outside: that would not help.
        if let Some(found) = self.definite(&look, now) {
            return (RolloutVerdict::Bad, found.sentence.clone(), Some(found));
        }
        match worst {
            Some(found) if found.cause.blame() == Blame::Outside => {
                (self.progressed, self.free_since) = (now, now);
                (RolloutVerdict::Waiting, found.sentence.clone(), Some(found))
            }
            // The others may wait for the Job, unless something is wrong with them.
            None if look.open_jobs > 0 => {
                self.progressed = now;
                (RolloutVerdict::Progressing, look.missing, None)
            }
            found if now.since(self.progressed) >= self.scope.deadline => {
                let found = found.unwrap_or_else(|| self.late(&look));
                let sentence = format!("{}, for {}", found.sentence, in_words(self.scope.deadline));
                (RolloutVerdict::Bad, sentence, Some(found))
            }
            Some(found) => (
                RolloutVerdict::Progressing,
                found.sentence.clone(),
                Some(found),
            ),
            None if !look.is_seen => (RolloutVerdict::Waiting, look.missing, None),
            None => (RolloutVerdict::Progressing, look.missing, None),
        }
    }

    fn soaks(
        &mut self,
        look: &RolloutProgress,
        now: Mono,
    ) -> (RolloutVerdict, String, Option<Finding>) {
        let begun = Soak {
            since: now,
            restarts: look.restarts,
        };
        let soak = match self.soak {
            // A container that was restarted has to prove itself again.
            Some(soak) if soak.restarts == look.restarts => soak,
            Some(_) => {
                self.flaps = self.flaps.saturating_add(1);
                begun
            }
            None => begun,
        };
        self.soak = Some(soak);
        let left = self.scope.soak.saturating_sub(now.since(soak.since));
        if left.is_zero() {
            return (
                RolloutVerdict::Good,
                look.missing.clone(),
                look.doubt.clone(),
            );
        }
        if now.since(self.progressed) >= self.scope.deadline && self.flaps > 0 {
            let found = self.late(look);
            return (RolloutVerdict::Bad, found.sentence.clone(), Some(found));
        }
        let sentence = format!(
            "{}; good in {} if it stays so",
            look.missing,
            in_words(left)
        );
        (RolloutVerdict::Soaking, sentence, look.doubt.clone())
    }

    fn note_causes(&mut self, look: &RolloutProgress, now: Mono) {
        let seen = |cause: &Cause| {
            look.findings
                .iter()
                .any(|found| found.cause == *cause && found.is_definite)
        };
        self.held.retain(|cause, _| seen(cause));
        let lacks = |found: &Finding| found.cause == Cause::ConfigMissing && !found.is_definite;
        self.has_lacked |= look.findings.iter().any(lacks);
        for found in look.findings.iter().filter(|found| found.is_definite) {
            self.held.entry(found.cause).or_insert(now);
        }
    }

    /// Worst finding for which waiting has become pointless.
    fn definite(&self, look: &RolloutProgress, now: Mono) -> Option<Finding> {
        let has_left = self
            .left
            .is_some_and(|left| now.since(left) < RETRIED_WITHIN);
        let hold = |cause: Cause| {
            if cause == Cause::ConfigMissing && self.has_lacked {
                MOUNTED_WITHIN
            } else {
                cause.hold()
            }
        };
        let is_held = |found: &&Finding| {
            found.is_definite
                && !(has_left && found.cause == Cause::Quota)
                && found.cause.blame() == Blame::App
                && self
                    .held
                    .get(&found.cause)
                    .is_some_and(|since| now.since(*since) >= hold(found.cause))
        };
        look.findings
            .iter()
            .filter(is_held)
            .min_by_key(|found| found.cause)
            .cloned()
    }

    /// Finding of a version that was not ready in time.
    fn late(&self, look: &RolloutProgress) -> Finding {
        let mut late = self.found.clone().unwrap_or_else(|| Finding {
            cause: Cause::Deadline,
            object: look.behind.clone(),
            sentence: look.missing.clone(),
            evidence: String::new(),
            fix: format!(
                "read what the containers write: kubectl -n {} logs POD",
                self.namespace()
            ),
            is_definite: true,
        });
        if self.flaps > 0 {
            let times = if self.flaps == 1 { "time" } else { "times" };
            late.sentence = format!(
                "it became ready and failed again {} {times}: {}",
                self.flaps, late.sentence
            );
        }
        late
    }

    /// Namespace of what is judged.
    fn namespace(&self) -> &str {
        let mut namespaces = self.scope.targets.keys().map(|key| key.namespace.as_str());
        namespaces.find(|name| !name.is_empty()).unwrap_or_default()
    }
}

/// Notes which Jobs are done, and looks for none of them any more once it is gone.
fn note_done(done: &mut BTreeSet<Key>, scope: &mut Scope, seen: &Observation) {
    scope.targets.retain(|key, _| match seen.get(key) {
        Some(target) => {
            if key.kind == "Job" && job_end(target) == JobEnd::Done {
                done.insert(key.clone());
            }
            true
        }
        None => !done.contains(key),
    });
}

/// Verdict on a cluster that cannot be seen.
fn unseen(view: ClusterView<'_>) -> (RolloutVerdict, String, Option<Finding>) {
    match view {
        ClusterView::Refused(found) => (
            RolloutVerdict::Waiting,
            found.sentence.clone(),
            Some(found.clone()),
        ),
        ClusterView::Blind | ClusterView::Seen(_) => {
            let sentence = "the Kubernetes API does not answer; deadlines stop until it does";
            (RolloutVerdict::Blind, sentence.to_owned(), None)
        }
    }
}

/// Judges what runs, without a change in progress: there is neither a soak nor a deadline.
pub fn standing(scope: &Scope, view: ClusterView<'_>) -> (RolloutVerdict, String, Option<Finding>) {
    let ClusterView::Seen(seen) = view else {
        return unseen(view);
    };
    let mut there = scope.clone();
    // One that is gone says nothing any more: its TTL may have ended.
    there
        .targets
        .retain(|key, _| key.kind != "Job" || seen.get(key).is_some());
    let look = look(&there, seen);
    if look.is_complete {
        return (RolloutVerdict::Good, look.missing, look.doubt);
    }
    // Of what runs nothing is on its way for ever.
    let is_kept = |found: &Finding| found.cause.blame() == Blame::Outside;
    let held = look.excused.as_ref().filter(|found| found.is_definite);
    if let Some(found) = held.filter(|_| !look.findings.iter().any(is_kept)) {
        return (
            RolloutVerdict::Bad,
            found.sentence.clone(),
            Some(found.clone()),
        );
    }
    let definite = look
        .findings
        .iter()
        .filter(|found| found.is_definite && found.cause.blame() == Blame::App)
        .min_by_key(|found| found.cause)
        .cloned();
    match definite.or_else(|| look.worst()) {
        Some(found) => {
            let verdict = match found.cause.blame() {
                Blame::Outside => RolloutVerdict::Waiting,
                Blame::App if found.is_definite => RolloutVerdict::Bad,
                Blame::App => RolloutVerdict::Progressing,
            };
            (verdict, found.sentence.clone(), Some(found))
        }
        None if look.is_paused => (RolloutVerdict::Paused, look.missing, None),
        None => (RolloutVerdict::Progressing, look.missing, None),
    }
}

/// Time between two looks of a replay, and of the agent.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Judges recorded observations as if they happened now: every judgement that differs from the one
/// before, with its moment.
pub fn replay(
    scope: &Scope,
    frames: impl IntoIterator<Item = (Mono, Option<Observation>)>,
) -> Vec<(Mono, JudgedRollout)> {
    let mut judged: Vec<(Mono, JudgedRollout)> = Vec::new();
    let mut rest = frames.into_iter().peekable();
    let Some((begun, _)) = rest.peek() else {
        return judged;
    };
    let mut rollout = Rollout::new(scope.clone(), *begun);
    let mut note = |now: Mono, judgement: JudgedRollout| {
        if judged.last().is_none_or(|(_, last)| *last != judgement) {
            judged.push((now, judgement));
        }
    };
    while let Some((from, seen)) = rest.next() {
        let until = rest.peek().map_or(from, |(next, _)| *next);
        let mut now = from;
        loop {
            note(now, rollout.observe(seen.as_ref().into(), now));
            now = now.after(POLL_INTERVAL);
            if now >= until {
                break;
            }
        }
    }
    judged
}

/// Pods that keep a StatefulSet from its newest version: namespace, name and UID.
pub fn stuck(scope: &Scope, which: Stuck, seen: &Observation) -> Vec<(String, String, String)> {
    let targets = scope.targets.keys().filter_map(|key| seen.get(key));
    targets
        .flat_map(|target| workloads::stuck(target, which, seen))
        .collect()
}

fn cause_of(finding: Option<&Finding>) -> Option<Cause> {
    finding.map(|found| found.cause)
}

#[cfg(test)]
mod tests;
