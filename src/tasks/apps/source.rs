//! Apps that have a source: set up, asked for at once, and kept up to date; and what is wrong with
//! sources of all kinds.

use std::{cell::RefCell, path::PathBuf, rc::Rc, sync::Arc, time::Duration};

use litemap::LiteMap;
use serde_json::{Value, json};
use smol::{Timer, lock::Mutex};

use super::{
    Apps, check_name,
    ledger::{AppRecord, api_error},
    problem_error,
    requester::{Origin, Requester, Submission, Trigger},
};
use crate::{
    core::{
        apps::{
            App, GitHost, Owner, Revision, Source, Upstream,
            repository::{Cause, Failure, RemoteHead, Repository},
        },
        health::Severity,
        rollout::RolloutVerdict,
        time::Wall,
        verdict::sentences,
    },
    error::{Error, Result, Retry},
    executor,
    host::{
        git::{Content, Git},
        random,
    },
    wire::apps::{ApplyRequest, PullRequest, SourceRequest},
};

/// Condition: an app is not kept up to date.
const CONDITION: &str = "apps.source";
/// Cause: what came from a source is not deployed.
const REFUSED: &str = "source.refused";
/// Characters of a commit id that are shown.
const COMMIT_CHARS: usize = 12;
/// Minimum time until the first poll after a start.
const FIRST: Duration = Duration::from_secs(10);

/// Sources of apps, and what is wrong with them.
#[derive(Debug)]
pub(super) struct Sources {
    git: Git,
    pub(super) every: Duration,
    /// Folder whose files and sub-folders are apps.
    pub(super) folder: Option<PathBuf>,
    git_hosts: Vec<GitHost>,
    /// Memory is small: one git at a time, also where nobody waits for its answer any more.
    one: Arc<Mutex<()>>,
    failed: RefCell<LiteMap<String, SourceFailure>>,
}

/// Latest failure of a source.
#[derive(Clone, Debug)]
struct SourceFailure {
    /// Commit that was refused; empty where none was seen.
    commit: String,
    cause: &'static str,
    error: Error,
    since: Wall,
}

/// Reason why a source gave nothing: the commit that was seen, the cause and the sentence.
pub(super) struct SourceError {
    commit: String,
    cause: &'static str,
    error: Error,
}

impl From<Failure> for SourceError {
    fn from(failure: Failure) -> Self {
        Self {
            commit: String::new(),
            cause: failure.cause.id(),
            error: failure.error,
        }
    }
}

impl SourceError {
    /// A file or sub-folder that cannot be used.
    pub(super) fn of_entry(cause: Cause, error: Error) -> Self {
        Self {
            commit: String::new(),
            cause: cause.id(),
            error,
        }
    }

    /// A version whose content is refused.
    pub(super) fn refused(what: String, error: Error) -> Self {
        Self {
            commit: String::new(),
            cause: REFUSED,
            error: error.within(what),
        }
    }

    /// Adds the commit that was refused.
    fn with_commit(self, commit: &str) -> Self {
        let commit = commit.to_owned();
        Self { commit, ..self }
    }

    pub(super) const fn retry(&self) -> Retry {
        self.error.retry
    }
}

/// Refuses what a source gave whose app was paused, or has another source, since it was asked.
pub(super) fn still_follows(app: &App, source: &Source, reason: Trigger) -> Result<()> {
    let is_its = |its: &Source| match (&its.upstream, &source.upstream) {
        // Its file may have become a sub-folder.
        (Upstream::Folder(_), Upstream::Folder(_)) => true,
        (its, of_it) => its == of_it,
    };
    let why = if !app.source.as_ref().is_some_and(is_its) {
        "its source was changed meanwhile"
    } else if app.is_paused && reason == Trigger::ByTime {
        "it was paused meanwhile"
    } else {
        return Ok(());
    };
    Err(Error::new(format!("{} is not deployed", app.name))
        .why(why)
        .fix(format!("pipeops-agent apps why {}", app.name))
        .retry(Retry::Soon))
}

impl Sources {
    pub(super) fn new(
        git: Git,
        (every, git_hosts): (Duration, Vec<GitHost>),
        folder: Option<PathBuf>,
    ) -> Self {
        Self {
            git,
            every,
            folder,
            git_hosts,
            one: Arc::default(),
            failed: RefCell::default(),
        }
    }

    /// Reason why the source of an app gave nothing last.
    pub(super) fn failure(&self, app: &str) -> Option<Error> {
        self.failed
            .borrow()
            .get(app)
            .map(|failed| failed.error.clone())
    }

    async fn tip(&self, of: &Repository, owner: Owner) -> std::result::Result<RemoteHead, Failure> {
        self.ask((of, owner), Git::tip).await
    }

    async fn content(
        &self,
        of: &Repository,
        (tip, owner): (&RemoteHead, Owner),
    ) -> std::result::Result<Content, Failure> {
        let tip = tip.clone();
        let read = move |git: &Git, of: &Repository| git.manifests(of, &tip);
        self.ask((of, owner), read).await
    }

    /// Asks a repository, with the authority of the owner of its app: for the control plane a host
    /// that is listed, with the credentials that were laid down for it.
    async fn ask<T: Send + 'static>(
        &self,
        (of, owner): (&Repository, Owner),
        work: impl FnOnce(&Git, &Repository) -> std::result::Result<T, Failure> + Send + 'static,
    ) -> std::result::Result<T, Failure> {
        let (git, of) = (self.git.clone(), of.clone());
        match owner {
            Owner::Machine => {}
            Owner::ControlPlane => of.is_listed(&self.git_hosts)?,
        }
        let one = self.one.lock_arc().await;
        executor::unblock(move || {
            let _one = one;
            match owner {
                Owner::Machine => work(&git, &of),
                Owner::ControlPlane => {
                    let (of, file) = git.with_host_credentials(of)?;
                    work(&git, &of).map_err(|failure| failure.with_credentials_in(&file))
                }
            }
        })
        .await
    }

    /// Time until the next poll: a fifth more or less, so that a hundred boxes do not ask at
    /// once.
    fn pause(&self, is_first: bool) -> Duration {
        let share = f64::from(random::jitter()) / f64::from(u16::MAX);
        if is_first {
            FIRST + FIRST.mul_f64(3.0 * share)
        } else {
            self.every.mul_f64(0.8 + 0.4 * share)
        }
    }
}

impl Apps {
    /// Deploys an app from a repository and keeps it up to date from then on; without an address it
    /// is deployed by hand again.
    ///
    /// # Errors
    /// Reason why nothing was changed.
    pub async fn follow(
        self: Rc<Self>,
        app: &str,
        request: &SourceRequest,
        requester: &Requester,
    ) -> Result<Value> {
        self.require_leadership().await?;
        check_name(app)?;
        if request.git.is_empty() {
            return self.unfollow(app, requester).await;
        }
        let repository = Repository {
            url: request.git.clone(),
            reference: request.reference.clone(),
            path: request.path.clone(),
            credentials: request.credentials.clone(),
        };
        let repository = repository.checked().map_err(problem_error)?;
        let known = self.record(app).await?;
        if let Some(read) = &known {
            requester.owns(read)?;
            self.refuse_if_in_folder(&read.app).await?;
        }
        let of_app = known.map(|read| read.app.namespace);
        let namespace = match request.namespace.as_str() {
            "" => of_app.unwrap_or_default(),
            wanted => wanted.to_owned(),
        };
        if requester.owner == Owner::ControlPlane && namespace.is_empty() {
            return Err(Error::new("no namespace is named")
                .fix("name it: \"namespace\" in the args of the command"));
        }
        let (sources, owner) = (&self.sources, requester.owner);
        self.may_ask(owner, (&namespace, app)).await?;
        let tip = sources.tip(&repository, owner).await;
        let tip = tip.map_err(|it| it.error)?;
        let content = sources.content(&repository, (&tip, owner)).await;
        let content = content.map_err(|it| it.error)?;
        let request = ApplyRequest {
            app: app.to_owned(),
            namespace,
            manifests: content.manifests,
            prune_most: request.prune_most,
            adopt: false,
        };
        let source = Source {
            upstream: Upstream::Git(repository),
            taken: content.commit,
        };
        let origin = Origin::Source(source);
        let accepted = Rc::clone(&self)
            .deploy_from_source(&request, origin, requester)
            .await?;
        self.clear_failure(app);
        Ok(accepted)
    }

    /// Judges whether a source may be asked at all: under `off` nothing is.
    async fn may_ask(&self, owner: Owner, (namespace, app): (&str, &str)) -> Result<()> {
        if !namespace.is_empty() {
            self.allowed(namespace)?;
        }
        self.account(owner).may_change((namespace, app)).await
    }

    /// Leaves an app to those on this machine who deploy it by hand, also one of the control plane.
    /// What runs stays.
    async fn unfollow(&self, app: &str, requester: &Requester) -> Result<Value> {
        self.wait_for_writes(app).await?;
        let mut read = self.require_record(app).await?;
        self.refuse_if_in_folder(&read.app).await?;
        let write = async {
            read.app.source = None;
            read.app.owner = requester.owner;
            self.ledger().write(&mut read).await
        };
        let what = format!("forget the source of app {app}");
        self.audited((requester, &what), write).await?;
        self.remember(&read.app);
        self.clear_failure(app);
        Ok(
            json!({"app": app, "state": "unchanged", "revision": read.app.next_number().saturating_sub(1)}),
        )
    }

    /// Asks the source of an app at once. A version that failed is tried again.
    ///
    /// # Errors
    /// Reason why nothing was changed.
    pub async fn pull(
        self: Rc<Self>,
        app: &str,
        request: &PullRequest,
        requester: &Requester,
    ) -> Result<Value> {
        self.require_leadership().await?;
        let known = self.record(app).await?.map(|read| {
            let owns = requester.owns(&read);
            owns.map(|()| read.app)
        });
        let known = known.transpose()?;
        let reason = Trigger::ByPerson {
            prune_most: request.prune_most,
        };
        let done = match (&known, known.as_ref().and_then(|app| app.source.as_ref())) {
            (
                Some(read),
                Some(Source {
                    upstream: Upstream::Git(repository),
                    taken,
                }),
            ) => {
                let from = (repository, taken.as_str());
                Rc::clone(&self)
                    .ask(read, from, (reason, &requester.by))
                    .await
            }
            // Also one that is deployed by hand, or not at all, may be there.
            (_, from) => match self.in_folder(app).await? {
                Some(entry) => Rc::clone(&self).take(app, entry, (reason, requester)).await,
                None if known.is_none() => return Err(self.unknown(app)),
                None => return Err(nothing_to_pull(app, from)),
            },
        };
        match done {
            Ok(accepted) => {
                self.clear_failure(app);
                let mut answer = accepted.unwrap_or_else(|| {
                    let last = known.map_or(0, |app| app.next_number().saturating_sub(1));
                    let sentence = format!("nothing is new: revision {last} stays");
                    json!({"app": app, "state": "unchanged", "revision": last, "sentence": sentence})
                });
                let commit = self.known.borrow().get(app).and_then(commit_of);
                if let (Value::Object(fields), Some(commit)) = (&mut answer, commit) {
                    fields.insert("commit".to_owned(), json!(commit));
                }
                Ok(answer)
            }
            Err(refusal) => {
                let error = refusal.error.clone();
                self.record_failure(app, refusal);
                Err(error)
            }
        }
    }

    /// Asks for new commits as long as the agent runs.
    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    pub async fn keep_up_to_date(self: Rc<Self>) {
        let git = self.sources.git.clone();
        executor::unblock(move || git.clean()).await;
        let mut is_known = false;
        let mut is_first = true;
        loop {
            Timer::after(self.sources.pause(is_first)).await;
            if !self.is_leader() {
                // The records are those of another agent meanwhile.
                is_known = false;
                continue;
            }
            if !is_known {
                let apps = self.ledger().list().await;
                is_known = apps.is_ok();
                // The list is short, and it is read once.
                apps.iter().flatten().for_each(|app| self.remember(app));
            }
            // Until the records were read, nothing is known of the sources.
            is_first = !is_known;
            let due = |app: &&App| app.source.is_some() && !app.is_paused;
            let apps: Vec<_> = self.known.borrow().values().filter(due).cloned().collect();
            for app in apps {
                // The question about the one before may have taken its time.
                let app = self.known.borrow().get(&app.name).filter(due).cloned();
                let Some(app) = app else {
                    continue;
                };
                // A folder is looked at more often, by its own task.
                if let Some(Source {
                    upstream: Upstream::Git(repository),
                    taken,
                }) = &app.source
                {
                    self.look(&app, (repository, taken)).await;
                }
            }
        }
    }

    /// Asks the source of one app, because it is time.
    async fn look(self: &Rc<Self>, app: &App, (repository, taken): (&Repository, &str)) {
        let by = format!("git {}", repository.reference);
        let asked = Rc::clone(self).ask(app, (repository, taken), (Trigger::ByTime, &by));
        let done = asked.await;
        match done {
            Ok(accepted) => {
                if accepted.is_some() {
                    log::info!("app {}: there is a new commit", app.name);
                }
                self.clear_failure(&app.name);
            }
            // It is only busy: the next time will do.
            Err(refusal) if refusal.error.retry == Retry::Soon => {
                log::debug!("{}", refusal.error.sentence());
            }
            Err(refusal) => self.record_failure(&app.name, refusal),
        }
    }

    /// Asks a repository, and deploys what is new there.
    async fn ask(
        self: Rc<Self>,
        app: &App,
        (repository, taken): (&Repository, &str),
        (reason, by): (Trigger, &str),
    ) -> std::result::Result<Option<Value>, SourceError> {
        let may_ask = self.may_ask(app.owner, (&app.namespace, &app.name)).await;
        may_ask.map_err(|error| SourceError {
            commit: String::new(),
            cause: REFUSED,
            error,
        })?;
        let tip = self.sources.tip(repository, app.owner).await?;
        if tip.commit == taken && !reason.retries(app) {
            return Ok(None);
        }
        if let (Trigger::ByTime, Some(failed)) = (reason, self.refused_before(&app.name, &tip)) {
            return Err(failed);
        }
        let of_app = (&tip, app.owner);
        let content = self.sources.content(repository, of_app).await;
        let content =
            content.map_err(|failure| SourceError::from(failure).with_commit(&tip.commit))?;
        let commit = content.commit.clone();
        let request = ApplyRequest {
            app: app.name.clone(),
            namespace: app.namespace.clone(),
            manifests: content.manifests,
            prune_most: reason == Trigger::ByPerson { prune_most: true },
            adopt: false,
        };
        let source = Source {
            upstream: Upstream::Git(repository.clone()),
            taken: content.commit,
        };
        if reason == Trigger::ByTime && self.is_still_bad(&request, &source).await {
            return Ok(None);
        }
        let by = format!("{by} at {commit:.COMMIT_CHARS$}");
        let requester = Requester::repository(&by, app.owner);
        let origin = Origin::Update(source, reason);
        let taken = self.deploy_from_source(&request, origin, &requester).await;
        let what = format!("commit {commit:.COMMIT_CHARS$} is not deployed");
        let refused = |error: Error| SourceError::refused(what, error).with_commit(&commit);
        taken.map(Some).map_err(refused)
    }

    /// Returns whether what a source has now is the version that did not work, under another commit
    /// or with other comments. It is noted as taken: time alone does not make it work.
    pub(super) async fn is_still_bad(&self, request: &ApplyRequest, source: &Source) -> bool {
        let app = &request.app;
        let noted = async {
            let Some(mut read) = self.record(app).await? else {
                return Ok(false);
            };
            let is_bad = |last: &&Revision| last.outcome.verdict == Some(RolloutVerdict::Bad);
            let Some(last) = read.app.revisions.last().filter(is_bad) else {
                return Ok(false);
            };
            still_follows(&read.app, source, Trigger::ByTime)?;
            let (manifests, _, _) = Box::pin(self.read(request, None)).await?;
            let kept = self.ledger().manifests(app, last.number).await;
            if kept.map_err(api_error)?.as_deref() != Some(manifests.as_slice()) {
                return Ok(false);
            }
            if read.app.under_way().is_none() {
                read.app.source = Some(source.clone());
                self.ledger().write(&mut read).await?;
                self.remember(&read.app);
            }
            Ok::<_, Error>(true)
        };
        // What is wrong with it is said by whoever deploys it.
        noted.await.unwrap_or(false)
    }

    /// Deploys what came from a source.
    pub(super) async fn deploy_from_source(
        self: Rc<Self>,
        request: &ApplyRequest,
        origin: Origin,
        requester: &Requester,
    ) -> Result<Value> {
        let submission = Submission {
            requester,
            origin,
            is_partial: false,
        };
        Box::pin(self.deploy_manifests(request, submission)).await
    }

    /// The refusal of a commit that only a person or another commit can change.
    fn refused_before(&self, app: &str, tip: &RemoteHead) -> Option<SourceError> {
        let failed = self.sources.failed.borrow();
        let failed = failed.get(app)?;
        (failed.commit == tip.commit && failed.error.retry == Retry::Never).then(|| SourceError {
            commit: failed.commit.clone(),
            cause: failed.cause,
            error: failed.error.clone(),
        })
    }

    pub(super) fn clear_failure(&self, app: &str) {
        let ended = self.sources.failed.borrow_mut().remove(app);
        if ended.is_some() {
            self.report_sources();
        }
    }

    /// Forgets all failures.
    pub(super) fn forget_failures(&self) {
        self.sources.failed.take();
        self.report_sources();
    }

    pub(super) fn record_failure(&self, app: &str, refusal: SourceError) {
        if !self.is_leader() {
            return;
        }
        let since = {
            let failed = self.sources.failed.borrow();
            let same = failed.get(app).filter(|it| it.cause == refusal.cause);
            same.map_or_else(|| self.now().wall, |it| it.since)
        };
        let failed = SourceFailure {
            commit: refusal.commit,
            cause: refusal.cause,
            error: refusal.error,
            since,
        };
        let mut all = self.sources.failed.borrow_mut();
        all.insert(app.to_owned(), failed);
        drop(all);
        self.report_sources();
    }

    /// One condition for all sources: the first one that waits for a person, else the first.
    fn report_sources(&self) {
        let failed = self.sources.failed.borrow();
        let waits = |failed: &SourceFailure| failed.error.retry == Retry::Never;
        let worst = failed
            .iter()
            .find(|(_, it)| waits(it))
            .or_else(|| failed.iter().next());
        let Some((app, first)) = worst else {
            self.shared_state.clear(CONDITION);
            return;
        };
        // A server that is away is no harm: what runs goes on.
        let severity = if waits(first) {
            Severity::Warning
        } else {
            Severity::Note
        };
        let sentence = sentences::app_not_kept(app, &first.error.sentence());
        let sentence = match failed.len() {
            1 => sentence,
            all => sentences::with_count(&sentence, all - 1),
        };
        self.shared_state
            .report(CONDITION, severity, sentence, first.error.fix.clone());
    }

    /// Source of an app, for answers.
    pub(super) fn source_of(&self, app: &App) -> Value {
        let Some(source) = &app.source else {
            return Value::Null;
        };
        let failed = self.sources.failed.borrow();
        let failed = failed.get(&app.name).map(|failed| {
            json!({
                "cause": failed.cause, "sentence": failed.error.sentence(), "fix": failed.error.fix,
                "since": failed.since.rfc3339(),
            })
        });
        match &source.upstream {
            Upstream::Git(Repository {
                url,
                reference,
                path,
                ..
            }) => {
                json!({"git": url, "ref": reference, "path": path, "commit": source.taken, "failure": failed})
            }
            // The digest of manifests stays here: they may hold a Secret with a value that can be
            // guessed.
            Upstream::Folder(place) => json!({"folder": place, "failure": failed}),
        }
    }

    /// Refuses by hand what a source would undo.
    pub(super) fn refuse_if_sourced(read: &AppRecord) -> Result<()> {
        let Some(source) = &read.app.source else {
            return Ok(());
        };
        let app = &read.app.name;
        Err(Error::new(format!("{app} is not deployed by hand"))
            .why(format!("it comes from {}", source.place()))
            .fix(match &source.upstream {
                Upstream::Git(_) => format!(
                    "push the change there, or forget the source: sudo pipeops-agent apps deploy {app} --git none"
                ),
                Upstream::Folder(_) => format!(
                    "change it there; or move it to another place, and then: sudo pipeops-agent apps deploy {app} --git none"
                ),
            }))
    }
}

/// The commit that was taken last, as people are shown it.
fn commit_of(app: &App) -> Option<String> {
    let source = app.source.as_ref()?;
    let is_commit = matches!(source.upstream, Upstream::Git(_));
    is_commit.then(|| format!("{:.COMMIT_CHARS$}", source.taken))
}

/// There is nothing that an app could be pulled from.
pub(super) fn nothing_to_pull(app: &str, source: Option<&Source>) -> Error {
    let Some(source) = source else {
        return Error::new(format!("{app} has no source"))
            .why("it is deployed by hand")
            .fix(format!("sudo pipeops-agent apps deploy {app} --git URL"));
    };
    Error::new(format!("there is no {}", source.place()))
        .why("nothing is deleted because a file is missing")
        .fix(format!(
            "put it back, or: sudo pipeops-agent apps remove {app}"
        ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::git::GitOptions;

    #[test]
    fn a_git_that_nobody_waits_for_any_more_holds_up_the_next() {
        let git = Git::new(GitOptions::default());
        let sources = Sources::new(git, (Duration::ZERO, Vec::new()), None);
        let (begins, begun) = smol::channel::bounded(1);
        let (ends, end) = smol::channel::bounded::<()>(1);
        smol::block_on(async {
            let of = Repository::default();
            let asked = sources.ask((&of, Owner::Machine), move |_, _| {
                begins.try_send(()).unwrap();
                end.recv_blocking().ok();
                Ok(())
            });
            let left = async {
                begun.recv().await.unwrap();
                Ok(())
            };
            smol::future::or(asked, left).await.unwrap();
            assert!(sources.one.try_lock().is_none());
            drop(ends);
            drop(sources.one.lock().await);
        });
    }

    #[test]
    fn what_a_source_gave_is_not_taken_once_the_app_is_paused_or_has_another_source() {
        let git = |url: &str| Source {
            upstream: Upstream::Git(Repository {
                url: url.to_owned(),
                ..Repository::default()
            }),
            taken: String::new(),
        };
        let folder = |place: &str| Source {
            upstream: Upstream::Folder(place.to_owned()),
            taken: String::new(),
        };
        let app = |source: Option<Source>, is_paused: bool| App {
            name: "web".to_owned(),
            source,
            is_paused,
            ..App::default()
        };
        let by_person = Trigger::ByPerson { prune_most: false };
        let (one, other) = (git("https://one.example"), git("https://other.example"));
        for reason in [Trigger::ByTime, by_person] {
            let same = app(Some(one.clone()), false);
            assert_eq!(still_follows(&same, &one, reason), Ok(()));
            for source in [None, Some(other.clone()), Some(folder("web.yaml"))] {
                let error = still_follows(&app(source, false), &one, reason).unwrap_err();
                assert!(error.sentence().contains("source was changed"), "{error:?}");
                assert_eq!(error.retry, Retry::Soon);
            }
            let moved = app(Some(folder("web.yaml")), false);
            assert_eq!(still_follows(&moved, &folder("web"), reason), Ok(()));
        }
        let paused = app(Some(one.clone()), true);
        assert!(still_follows(&paused, &one, Trigger::ByTime).is_err());
        assert_eq!(still_follows(&paused, &one, by_person), Ok(()));
    }
}
