//! Record of an app: its inventory, its revisions, and which of them runs.

use std::time::Duration;

use super::{
    super::{order::OrderExt as _, rollout::RolloutVerdict, time::Wall},
    drift::Contested,
    kinds::{Kind, kind_of},
    manifests::Manifest,
    overlay::Overlay,
    repository::Repository,
};

/// Revisions that are remembered; the last good one stays beyond that.
const REVISIONS_MAX: usize = 10;

/// Longest deadline that is learned.
const PATIENCE_MAX: Duration = Duration::from_secs(3_600);

/// An object of the inventory.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct InventoryEntry {
    /// Group and version.
    pub api_version: String,
    pub kind: String,
    pub name: String,
    /// UID; empty while it is about to be written for the first time.
    pub uid: String,
    /// Random mark ([`NONCE`](super::NONCE)) under which it is created if it is not there; empty
    /// outside of a write.
    pub nonce: String,
    /// True until the first write of an object that others made: what `kubectl` applied to it
    /// becomes ours then.
    pub is_adopted: bool,
    /// Revision that has written it, of a Job: it is not run again, however often the rest of the
    /// revision is written. 0: none, or it is no Job.
    pub ran_in: u64,
    /// Last revision with it in which it has succeeded, of a Job: its TTL may have it deleted. 0:
    /// none.
    pub done_in: u64,
    /// Revision that took it over from others. Going back to an earlier one leaves it as it is. 0:
    /// it is ours from its creation on.
    pub adopted_in: u64,
}

impl InventoryEntry {
    /// The object that this manifest is about.
    pub fn of(manifest: &Manifest) -> Self {
        Self {
            api_version: manifest.kind.api_version.to_string(),
            kind: manifest.kind.name.to_string(),
            name: manifest.name.clone(),
            uid: String::new(),
            nonce: String::new(),
            is_adopted: false,
            ran_in: 0,
            done_in: 0,
            adopted_in: 0,
        }
    }

    /// `Deployment shop/web`, for the namespace of the app.
    pub fn in_words(&self, namespace: &str) -> String {
        if self.is_staged() {
            format!("{} {}", self.kind, self.name)
        } else {
            format!("{} {namespace}/{}", self.kind, self.name)
        }
    }

    /// Returns whether it belongs to the whole cluster and came before the app. Nobody knows such a
    /// kind, so it is kept.
    pub fn is_staged(&self) -> bool {
        matches!(self.kind.as_str(), "Namespace" | "CustomResourceDefinition")
    }

    /// Returns whether both are about the same object, in whatever version of its API.
    pub fn is(&self, other: &Self) -> bool {
        (&self.kind, &self.name) == (&other.kind, &other.name)
    }

    /// Its kind; `None`: a newer version of the agent knows it.
    pub fn known_kind(&self) -> Option<Kind> {
        kind_of(&self.api_version, &self.kind)
            .or_else(|| Kind::custom(&self.api_version, &self.kind))
    }

    /// True if it holds data and is never deleted with a version.
    pub fn is_kept(&self) -> bool {
        self.known_kind().is_none_or(|kind| kind.is_kept())
    }
}

/// Result of a revision.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RevisionOutcome {
    /// Verdict; `None` while it is not judged.
    pub verdict: Option<RolloutVerdict>,
    /// Id of the cause; empty where there is none.
    pub cause: String,
    /// Object that showed it.
    pub object: String,
    pub sentence: String,
    /// Line of the cluster.
    pub evidence: String,
    /// Action for a person.
    pub fix: String,
    /// Reports of the objects that decided it, a line each; kept for the last verdict that is not
    /// good.
    pub inputs: Vec<String>,
    /// Time since when.
    pub since: Wall,
}

/// One version of an app.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Revision {
    /// Number, from 1.
    pub number: u64,
    /// Time when it was asked for.
    pub at: Wall,
    /// Requester.
    pub by: String,
    /// Changes on top of its manifests.
    pub overlay: Overlay,
    /// Result; empty while there is none.
    pub outcome: RevisionOutcome,
    /// Seconds until it was ready, where it became good; 0: not known, or at once.
    pub took_s: u64,
}

/// Place that an app is kept up to date with.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Upstream {
    /// A Git repository.
    Git(Repository),
    /// A file or sub-folder in the folder of apps of this machine.
    Folder(String),
}

/// Source of an app.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Source {
    pub upstream: Upstream,
    /// Commit, or digest of the manifests, that was deployed last, whatever came of it.
    pub taken: String,
}

impl Source {
    /// Its place in words.
    pub fn place(&self) -> &str {
        match &self.upstream {
            Upstream::Git(repository) => &repository.url,
            Upstream::Folder(place) => place,
        }
    }
}

/// Progress of a change in the record: what another agent of the cluster has to know to go on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Stage {
    /// Its version is being written.
    #[default]
    Write,
    /// Its version is written and judged.
    Judge,
    /// Its version is good; what is too much goes.
    Prune,
    /// Its version is bad.
    Back,
    Over,
}

impl Stage {
    const ALL: [Self; 5] = [
        Self::Write,
        Self::Judge,
        Self::Prune,
        Self::Back,
        Self::Over,
    ];

    /// Word on disk.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Judge => "judge",
            Self::Prune => "prune",
            Self::Back => "back",
            Self::Over => "over",
        }
    }

    /// The stage of that word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.as_str() == word)
    }
}

/// The last change of an app.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LastChange {
    /// Id in the journal of the agent that carries it out.
    pub id: String,
    /// Requester.
    pub by: String,
    /// Body of its intent.
    pub body: String,
    /// Progress.
    pub stage: Stage,
}

/// Owner of an app: the only one who changes it, and the authority under which it is changed.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Owner {
    /// The owner of this machine.
    #[default]
    Machine,
    ControlPlane,
}

impl Owner {
    /// Word on disk and in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::ControlPlane => "control-plane",
        }
    }

    /// The owner of that word.
    pub fn of(word: &str) -> Option<Self> {
        [Self::Machine, Self::ControlPlane]
            .into_iter()
            .find(|owner| owner.as_str() == word)
    }
}

/// Record of an app.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct App {
    pub name: String,
    /// Namespace of all its objects.
    pub namespace: String,
    /// Owner, who alone deploys it.
    pub owner: Owner,
    /// The revision that was written last: what runs. 0: none.
    pub running: u64,
    /// The last good revision. 0: none.
    pub good: u64,
    /// True while nothing is changed without being asked for.
    pub is_paused: bool,
    /// True where a bad version stays until a person rolls it back.
    pub is_rolled_back_by_hand: bool,
    /// Its source; `None`: it is deployed by hand.
    pub source: Option<Source>,
    /// The last change; `None`: there was none yet.
    pub change: Option<LastChange>,
    /// The last Job that was written since a revision became good: `Job shop/migrate`; empty: none.
    pub unproven_job: String,
    /// Objects that are ours.
    pub inventory: Vec<InventoryEntry>,
    /// Fields that are left to others.
    pub left: Vec<Contested>,
    /// Oldest first.
    pub revisions: Vec<Revision>,
}

impl App {
    /// Reason why a bad version is not rolled back automatically; `None`: it is.
    pub const fn no_rollback_reason(&self) -> Option<&'static str> {
        if self.is_paused {
            Some("the app is paused")
        } else if self.is_rolled_back_by_hand {
            Some("automatic rollback is off")
        } else {
            None
        }
    }

    /// Times that good revisions took, shortest first.
    fn times(&self) -> Vec<u64> {
        let times = self.revisions.iter().map(|revision| revision.took_s);
        let mut times: Vec<_> = times.filter(|took_s| *took_s > 0).collect();
        times.order();
        times
    }

    /// Seconds that a version usually takes until it is ready: the median of the good ones.
    pub fn median_s(&self) -> Option<u64> {
        let times = self.times();
        times.get(times.len() / 2).copied()
    }

    /// Time without progress that is allowed where no manifest gives one: three times the longest
    /// of the good ones, and no less than for an app of which nothing is known.
    pub fn patience(&self, least: Duration) -> Duration {
        let longest = self.times().last().copied().unwrap_or(0);
        Duration::from_secs(longest.saturating_mul(3)).clamp(least, PATIENCE_MAX.max(least))
    }

    /// Notes that a revision works, with what the Jobs before it did.
    pub fn mark_good(&mut self, number: u64) {
        self.good = number;
        self.unproven_job.clear();
    }

    /// Number of the revision whose Secrets have the values of today: the one that runs, or the
    /// last good one where that does not work and may have changed them. 0: none.
    pub fn secrets_revision(&self) -> u64 {
        let running = self.revision(self.running);
        match running.filter(|it| it.outcome.verdict == Some(RolloutVerdict::Good)) {
            Some(running) => running.number,
            None => self.good,
        }
    }

    /// Number of the next revision.
    pub fn next_number(&self) -> u64 {
        let last = self.revisions.last().map_or(0, |revision| revision.number);
        last.saturating_add(1)
    }

    /// The revision with this number.
    pub fn revision(&self, number: u64) -> Option<&Revision> {
        self.revisions
            .iter()
            .find(|revision| revision.number == number)
    }

    /// Number of the revision that a rollback without a number goes back to; 0: there is none.
    pub fn rollback_target(&self) -> u64 {
        if self.good < self.running {
            return self.good;
        }
        // Whoever goes back once more does not mean what was left by that.
        let is_good = |it: &&Revision| {
            it.number < self.running && it.outcome.verdict == Some(RolloutVerdict::Good)
        };
        let earlier = self.revisions.iter().rev().find(is_good);
        let no_earlier = if self.good > self.running {
            self.good
        } else {
            0
        };
        earlier.map_or(no_earlier, |revision| revision.number)
    }

    /// Notes the progress of a change, if it is the last one.
    pub fn set_stage(&mut self, change: &str, stage: Stage) {
        if let Some(last) = self.change.as_mut().filter(|last| last.id == change) {
            last.stage = stage;
        }
    }

    /// The change that is under way.
    pub fn under_way(&self) -> Option<&LastChange> {
        self.change
            .as_ref()
            .filter(|last| last.stage != Stage::Over)
    }

    /// The revision with this number, to note something about it.
    pub fn revision_mut(&mut self, number: u64) -> Option<&mut Revision> {
        self.revisions
            .iter_mut()
            .find(|revision| revision.number == number)
    }

    /// Overlay of a revision; none where it is forgotten.
    pub fn overlay(&self, number: u64) -> Overlay {
        let revision = self.revision(number);
        revision
            .map(|revision| revision.overlay.clone())
            .unwrap_or_default()
    }

    /// Entry of the inventory about the same object.
    pub(super) fn recorded(&self, entry: &InventoryEntry) -> Option<&InventoryEntry> {
        self.inventory.iter().find(|known| known.is(entry))
    }

    /// UID of an object that was written.
    pub fn uid(&self, entry: &InventoryEntry) -> Option<&str> {
        let known = self.recorded(entry)?;
        Some(known.uid.as_str()).filter(|uid| !uid.is_empty())
    }

    /// Nonce under which an object is created; `None`: it is not about to be written.
    pub fn nonce(&self, entry: &InventoryEntry) -> Option<&str> {
        let known = self.recorded(entry)?;
        Some(known.nonce.as_str()).filter(|nonce| !nonce.is_empty())
    }

    /// Takes objects into the inventory that are about to be written, each with one of these
    /// nonces. A nonce of an interrupted write stays: an object may have been created under it.
    pub fn plan(&mut self, manifests: &[Manifest], nonces: impl IntoIterator<Item = String>) {
        for (manifest, nonce) in manifests.iter().zip(nonces) {
            let entry = InventoryEntry::of(manifest);
            if self.recorded(&entry).is_none() {
                self.inventory.push(entry.clone());
            }
            let known = self.inventory.iter_mut().find(|known| known.is(&entry));
            let Some(known) = known else {
                continue;
            };
            // The version before may have been written in another version of the API.
            known.api_version = entry.api_version;
            if known.nonce.is_empty() {
                known.nonce = nonce;
            }
        }
    }

    /// Forgets the nonces of what has its UID. An object that may have been created or not keeps
    /// its own.
    pub fn clear_nonces(&mut self) {
        let written = self.inventory.iter_mut();
        for known in written.filter(|known| !known.uid.is_empty()) {
            known.nonce.clear();
        }
    }

    /// Notes the UID of an object that was written.
    pub fn record_uid(&mut self, entry: &InventoryEntry, uid: &str) {
        if let Some(known) = self.inventory.iter_mut().find(|known| known.is(entry)) {
            if known.uid != uid {
                // Another one is in its place, which we created.
                known.adopted_in = 0;
            }
            uid.clone_into(&mut known.uid);
            known.is_adopted = false;
        }
    }

    /// Notes that a revision has written a Job.
    pub fn record_job_run(&mut self, job: &InventoryEntry, revision: u64) {
        if let Some(known) = self.inventory.iter_mut().find(|known| known.is(job)) {
            known.ran_in = revision;
            known.done_in = 0;
        }
    }

    /// Notes that a Job has succeeded, as this revision has it.
    pub fn record_job_success(&mut self, job: &InventoryEntry, revision: u64) {
        if let Some(known) = self.inventory.iter_mut().find(|known| known.is(job)) {
            known.done_in = revision;
        }
    }

    /// Returns whether a Job has succeeded, as this revision has it.
    pub fn has_job_succeeded(&self, job: &InventoryEntry, revision: u64) -> bool {
        let known = self.recorded(job);
        revision != 0 && known.is_some_and(|known| known.done_in == revision)
    }

    /// Returns whether a revision has written a Job.
    pub fn has_job_run(&self, job: &InventoryEntry, revision: u64) -> bool {
        let known = self.recorded(job);
        known.is_some_and(|known| known.ran_in == revision)
    }

    /// Takes an object of others into the inventory, to be written as ours by this revision.
    pub fn adopt(&mut self, entry: &InventoryEntry, uid: &str, revision: u64) {
        self.inventory.retain(|known| !known.is(entry));
        self.inventory.push(InventoryEntry {
            uid: uid.to_owned(),
            is_adopted: true,
            adopted_in: revision,
            ..entry.clone()
        });
    }

    /// Takes what came before the app into the inventory.
    pub fn stage(&mut self, staged: &[InventoryEntry]) {
        self.forget(staged);
        self.inventory.extend_from_slice(staged);
    }

    /// Takes the settings of the owner from a record that was written meanwhile: no change decides
    /// them.
    pub fn take_owner_settings(&mut self, written: Self) {
        self.owner = written.owner;
        self.is_paused = written.is_paused;
        self.is_rolled_back_by_hand = written.is_rolled_back_by_hand;
        self.source = written.source;
        self.left = written.left;
    }

    /// Objects of others that were taken into the inventory and not written yet.
    pub fn adopted(&self) -> Vec<InventoryEntry> {
        let adopted = self.inventory.iter().filter(|known| known.is_adopted);
        adopted.cloned().collect()
    }

    /// Returns whether an object of others is about to become ours.
    pub fn is_adopted(&self, entry: &InventoryEntry) -> bool {
        self.recorded(entry).is_some_and(|known| known.is_adopted)
    }

    /// Forgets objects of others, as far as none of these manifests is about them: those that were
    /// never written, and those that were taken over after `revision`, to which the app goes back.
    pub fn give_back(&mut self, manifests: &[Manifest], revision: u64) {
        let wanted: Vec<_> = manifests.iter().map(InventoryEntry::of).collect();
        self.inventory.retain(|known| {
            let is_theirs = known.is_adopted || known.adopted_in > revision;
            !is_theirs || wanted.iter().any(|entry| entry.is(known))
        });
    }

    /// Objects that are ours, not among these manifests, and hold no data.
    pub fn surplus(&self, manifests: &[Manifest]) -> Vec<InventoryEntry> {
        let wanted: Vec<_> = manifests.iter().map(InventoryEntry::of).collect();
        let is_surplus = |known: &&InventoryEntry| {
            !known.is_kept() && !wanted.iter().any(|entry| entry.is(known))
        };
        self.inventory.iter().filter(is_surplus).cloned().collect()
    }

    /// Returns whether more than half of what is ours and may be deleted would go.
    pub fn loses_most(&self, manifests: &[Manifest]) -> bool {
        let surplus = self.surplus(manifests).len();
        let prunable = self.inventory.iter().filter(|known| !known.is_kept());
        surplus > 1 && surplus.saturating_mul(2) > prunable.count()
    }

    /// Forgets objects that are gone.
    pub fn forget(&mut self, gone: &[InventoryEntry]) {
        self.inventory
            .retain(|known| !gone.iter().any(|entry| entry.is(known)));
    }

    /// Forgets the oldest revisions beyond the quota, and returns their numbers. What runs and what
    /// is good stays.
    pub fn prune(&mut self) -> Vec<u64> {
        let mut over = self.revisions.len().saturating_sub(REVISIONS_MAX);
        let (running, good) = (self.running, self.good);
        let mut gone = Vec::new();
        self.revisions.retain(|revision| {
            let goes = over > 0 && revision.number != running && revision.number != good;
            if goes {
                over -= 1;
                gone.push(revision.number);
            }
            !goes
        });
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::apps::parse;

    fn manifests(names: &[&str]) -> Vec<Manifest> {
        let documents: Vec<_> = names
            .iter()
            .map(|name| {
                let (kind, name) = name.split_once('/').unwrap();
                format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}}}\n")
            })
            .collect();
        parse(&documents.join("---\n"), Some("shop")).unwrap()
    }

    #[test]
    fn what_a_version_no_longer_has_is_surplus_but_data_stays() {
        let mut app = App::default();
        let all = [
            "ConfigMap/a",
            "Service/b",
            "PersistentVolumeClaim/c",
            "Secret/d",
        ];
        app.plan(&manifests(&all), std::iter::repeat(String::new()));
        let next = manifests(&["ConfigMap/a", "Secret/d"]);
        let surplus = app.surplus(&next);
        assert_eq!(surplus.len(), 1);
        let path = surplus[0].known_kind().unwrap().path("shop", "b");
        assert_eq!(path, "/api/v1/namespaces/shop/services/b");
        assert!(!app.loses_most(&next));
        assert!(app.loses_most(&manifests(&["ConfigMap/x"])));
        app.forget(&surplus);
        assert_eq!(app.inventory.len(), 3);
    }

    #[test]
    fn the_secrets_of_today_are_those_of_the_last_version_that_worked() {
        let of = |verdict: RolloutVerdict| {
            let mut app = App {
                good: 1,
                running: 2,
                ..App::default()
            };
            let outcome = RevisionOutcome {
                verdict: Some(verdict),
                ..RevisionOutcome::default()
            };
            app.revisions.push(Revision {
                number: 2,
                outcome,
                ..Revision::default()
            });
            app.secrets_revision()
        };
        assert_eq!(of(RolloutVerdict::Good), 2);
        assert_eq!(of(RolloutVerdict::Bad), 1);
    }

    #[test]
    fn who_goes_back_again_and_again_never_goes_forward() {
        let revision = |number: u64, verdict: RolloutVerdict| Revision {
            number,
            outcome: RevisionOutcome {
                verdict: Some(verdict),
                ..RevisionOutcome::default()
            },
            ..Revision::default()
        };
        let (good, bad) = (RolloutVerdict::Good, RolloutVerdict::Bad);
        let all = [(1, good), (2, good), (3, bad), (4, good), (5, bad)];
        let app = |running: u64, good: u64| App {
            running,
            good,
            revisions: all
                .map(|(number, verdict)| revision(number, verdict))
                .into(),
            ..App::default()
        };
        for (running, good, before) in [
            // What the cluster goes back to by itself, also where a later one was good once.
            (5, 4, 4),
            (5, 2, 2),
            (5, 0, 0),
            (4, 4, 2),
            (2, 2, 1),
            (1, 1, 0),
            // It was good, and is not any more.
            (2, 4, 1),
            (1, 4, 4),
        ] {
            assert_eq!(app(running, good).rollback_target(), before, "{running}");
        }
    }

    #[test]
    fn a_change_goes_on_with_what_its_owner_wished_meanwhile() {
        let mut app = App::default();
        app.plan(&manifests(&["ConfigMap/a"]), ["n1".to_owned()]);
        app.record_uid(&InventoryEntry::of(&manifests(&["ConfigMap/a"])[0]), "u1");
        (app.running, app.good) = (2, 1);
        let before = app.clone();
        app.take_owner_settings(App {
            is_paused: true,
            is_rolled_back_by_hand: true,
            running: 1,
            ..App::default()
        });
        assert!(app.is_paused && app.is_rolled_back_by_hand);
        app.take_owner_settings(App::default());
        assert_eq!(app, before);
    }

    #[test]
    fn what_is_never_deleted_does_not_count_where_most_would_go() {
        let mut app = App::default();
        let claims = ["a", "b", "c"].map(|name| format!("PersistentVolumeClaim/{name}"));
        let all: Vec<_> = claims.iter().map(String::as_str).collect();
        let all = [all, vec!["ConfigMap/a", "Service/b", "Secret/c"]].concat();
        app.plan(&manifests(&all), std::iter::repeat(String::new()));
        assert!(app.loses_most(&manifests(&["Secret/c"])));
        assert!(!app.loses_most(&manifests(&["Secret/c", "Service/b"])));
    }

    #[test]
    fn the_deadline_is_learned_from_good_revisions_and_never_shorter_than_the_usual_one() {
        let mut app = App::default();
        let least = Duration::from_secs(600);
        assert_eq!((app.median_s(), app.patience(least)), (None, least));
        for (number, took_s) in [(1, 20), (2, 0), (3, 500), (4, 30)] {
            app.revisions.push(Revision {
                number,
                took_s,
                ..Revision::default()
            });
        }
        assert_eq!(app.median_s(), Some(30));
        assert_eq!(app.patience(least), Duration::from_secs(1500));
        app.revisions[2].took_s = 40;
        assert_eq!(app.patience(least), least);
        app.revisions[2].took_s = u64::MAX;
        assert_eq!(app.patience(least), Duration::from_secs(3600));
    }

    #[test]
    fn a_job_runs_once_in_each_revision() {
        let mut app = App::default();
        let all = manifests(&["ConfigMap/a"]);
        let entry = InventoryEntry::of(&all[0]);
        app.plan(&all, ["n1".to_owned()]);
        assert!(!app.has_job_run(&entry, 1));
        app.record_uid(&entry, "u1");
        app.record_job_run(&entry, 1);
        app.plan(&all, ["n2".to_owned()]);
        assert!(app.has_job_run(&entry, 1));
        assert!(!app.has_job_run(&entry, 2));
    }

    #[test]
    fn a_job_that_succeeded_has_done_so_until_it_is_written_again() {
        let mut app = App::default();
        let all = manifests(&["ConfigMap/a"]);
        let entry = InventoryEntry::of(&all[0]);
        assert!(!app.has_job_succeeded(&entry, 0));
        app.plan(&all, ["n1".to_owned()]);
        app.record_job_run(&entry, 1);
        assert!(!app.has_job_succeeded(&entry, 1) && !app.has_job_succeeded(&entry, 0));
        app.record_job_success(&entry, 1);
        assert!(app.has_job_succeeded(&entry, 1) && !app.has_job_succeeded(&entry, 2));
        app.record_job_run(&entry, 2);
        assert!(!app.has_job_succeeded(&entry, 1) && !app.has_job_succeeded(&entry, 2));
    }

    #[test]
    fn going_back_gives_back_what_was_taken_over_since_and_nothing_else() {
        let mut app = App::default();
        let all = manifests(&["ConfigMap/early", "ConfigMap/late", "ConfigMap/queued"]);
        let ours = manifests(&["ConfigMap/ours"]);
        app.plan(&ours, ["n1".to_owned()]);
        app.record_uid(&InventoryEntry::of(&ours[0]), "u0");
        for (manifest, revision) in all.iter().zip([2, 3, 4]) {
            let entry = InventoryEntry::of(manifest);
            app.adopt(&entry, "u1", revision);
            if revision < 4 {
                app.record_uid(&entry, "u1");
            }
        }
        let names = |app: &App| -> Vec<String> {
            let left = app.inventory.iter();
            left.map(|entry| entry.name.clone()).collect()
        };
        // The version that goes on has them deleted with what else it no longer has.
        let mut on = app.clone();
        on.give_back(&[], 5);
        assert_eq!(names(&on), ["ours", "early", "late"]);
        let mut same = app.clone();
        same.give_back(&all, 1);
        assert_eq!(same.inventory, app.inventory);
        // What we created in the place of one that somebody deleted is ours.
        let mut anew = app.clone();
        anew.record_uid(&InventoryEntry::of(&all[1]), "u2");
        anew.give_back(&[], 2);
        assert_eq!(names(&anew), ["ours", "early", "late"]);
        app.give_back(&[], 2);
        assert_eq!(names(&app), ["ours", "early"]);
    }

    #[test]
    fn an_object_is_ours_by_its_uid() {
        let mut app = App::default();
        let all = manifests(&["ConfigMap/a"]);
        let entry = InventoryEntry::of(&all[0]);
        assert_eq!(app.uid(&entry), None);
        let plan = |app: &mut App, nonce: &str| app.plan(&all, [nonce.to_owned()]);
        plan(&mut app, "n1");
        assert_eq!((app.nonce(&entry), app.uid(&entry)), (Some("n1"), None));
        // After a power cut the object may be there under the first nonce.
        plan(&mut app, "n2");
        assert_eq!(app.nonce(&entry), Some("n1"));
        app.record_uid(&entry, "u1");
        app.clear_nonces();
        assert_eq!((app.nonce(&entry), app.uid(&entry)), (None, Some("u1")));
        // What others made is ours as such from its first write on.
        app.adopt(&entry, "u2", 1);
        assert!(app.is_adopted(&entry) && app.inventory.len() == 1);
        assert_eq!(app.adopted()[0].uid, "u2");
        app.record_uid(&entry, "u2");
        assert_eq!(app.adopted(), []);
        // What somebody deletes is created under another one.
        plan(&mut app, "n3");
        assert_eq!(app.nonce(&entry), Some("n3"));
    }

    #[test]
    fn old_revisions_are_forgotten_but_never_the_good_one() {
        let mut app = App {
            good: 1,
            running: 15,
            ..App::default()
        };
        for number in 1..=15 {
            assert_eq!(app.next_number(), number);
            app.revisions.push(Revision {
                number,
                ..Revision::default()
            });
        }
        assert_eq!(app.prune(), [2, 3, 4, 5, 6]);
        assert!(app.revision(1).is_some());
    }
}
