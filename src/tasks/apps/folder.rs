//! Apps in a folder of root's: a file or sub-folder is an app, and what changes there is deployed.
//!
//! What is gone from there stays in the cluster: an empty folder may be one that is not mounted.

use std::{
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use litemap::LiteMap;
use serde_json::Value;
use smol::Timer;

use super::{
    Apps,
    requester::{Origin, Requester, Trigger},
    source::{SourceError, nothing_to_pull},
};
use crate::{
    core::{
        apps::{App, Source, Upstream, repository::Cause},
        health::Severity,
        time::Mono,
        verdict::sentences,
    },
    error::{Error, Result, Retry},
    executor,
    host::folder::{FolderContent, FolderEntry, look},
    wire::apps::ApplyRequest,
};

/// Condition: the folder as a whole, or something in it, is not used.
const CONDITION: &str = "apps.folder";
/// Time between two looks, which are a few calls of the file system. What is the same at two of
/// them is not being written.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Time until the next try where the cluster is to blame.
const RETRY_WAIT: Duration = Duration::from_secs(60);

/// A file or sub-folder, as it was at the last look.
struct TrackedEntry {
    entry: FolderEntry,
    /// True once it is what was deployed last.
    is_done: bool,
    not_before: Mono,
}

impl Apps {
    /// Deploys what changes in the folder of apps, as long as the agent runs.
    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    pub async fn watch_folder(self: Rc<Self>) {
        let Some(folder) = self.sources.folder.clone() else {
            return std::future::pending().await;
        };
        let mut seen = LiteMap::new();
        loop {
            Timer::after(POLL_INTERVAL).await;
            if !self.is_leader() {
                // Another agent may deploy something else meanwhile.
                seen.clear();
                self.shared_state.clear(CONDITION);
                continue;
            }
            let problem = match looked_at(&folder).await {
                Ok(found) => {
                    self.miss(&found);
                    self.compare(&mut seen, found.apps).await;
                    found.odd
                }
                Err(error) => Some(error),
            };
            let Some(error) = problem else {
                self.shared_state.clear(CONDITION);
                continue;
            };
            let sentence = sentences::app_folder(&error.sentence());
            self.shared_state
                .report(CONDITION, Severity::Warning, sentence, error.fix);
        }
    }

    /// Deploys what is as it was at the last look and not done yet.
    async fn compare(
        self: &Rc<Self>,
        seen: &mut LiteMap<String, TrackedEntry>,
        found: LiteMap<String, FolderEntry>,
    ) {
        seen.retain(|app, _| found.contains_key(app));
        for (app, entry) in found {
            let now = self.now().mono;
            let Some(known) = seen.get_mut(&app).filter(|known| known.entry == entry) else {
                let new = TrackedEntry {
                    entry,
                    is_done: false,
                    not_before: now,
                };
                seen.insert(app, new);
                continue;
            };
            if known.is_done || now < known.not_before || self.is_left_alone(&app) {
                continue;
            }
            let requester = Requester::here("folder");
            let taken = Rc::clone(self).take(&app, entry, (Trigger::ByTime, &requester));
            let again = match taken.await {
                Ok(accepted) => {
                    if accepted.is_some() {
                        log::info!("app {app}: {} is new", known.entry.place());
                    }
                    self.clear_failure(&app);
                    // Only now it may be known that it is paused.
                    known.is_done = !self.is_left_alone(&app);
                    RETRY_WAIT
                }
                Err(refusal) => match refusal.retry() {
                    Retry::Soon => POLL_INTERVAL,
                    retry @ (Retry::Later | Retry::Never) => {
                        self.record_failure(&app, refusal);
                        // A namespace or a right may come meanwhile.
                        match retry {
                            Retry::Never => RETRY_WAIT.max(self.sources.every),
                            Retry::Soon | Retry::Later => RETRY_WAIT,
                        }
                    }
                },
            };
            known.not_before = self.now().mono.after(again);
        }
    }

    fn is_left_alone(&self, app: &str) -> bool {
        self.known
            .borrow()
            .get(app)
            .is_some_and(|app| app.is_paused)
    }

    /// The file or sub-folder of an app; `None`: it has none.
    pub(super) async fn in_folder(&self, app: &str) -> Result<Option<FolderEntry>> {
        match &self.sources.folder {
            Some(folder) => Ok(looked_at(folder).await?.apps.remove(app)),
            None => Ok(None),
        }
    }

    /// Reads a file or sub-folder, and deploys it where it is not what was deployed last.
    pub(super) async fn take(
        self: Rc<Self>,
        app: &str,
        entry: FolderEntry,
        (reason, requester): (Trigger, &Requester),
    ) -> std::result::Result<Option<Value>, SourceError> {
        let place = entry.place();
        let refused = |cause| move |error: Error| SourceError::of_entry(cause, error);
        let content = executor::unblock(move || entry.read()).await;
        let (manifests, digest) = content.map_err(refused(Cause::File))?;
        let known = self
            .record(app)
            .await
            .map_err(refused(Cause::Unreachable))?;
        if let Some(read) = &known {
            let may = requester
                .owns(read)
                .and_then(|()| comes_from_here(&read.app, reason));
            may.map_err(refused(Cause::File))?;
            let last = read.app.source.as_ref();
            let is_taken = last.is_some_and(|last| last.taken == digest);
            let is_left_alone = read.app.is_paused && reason == Trigger::ByTime;
            if is_left_alone || (is_taken && !reason.retries(&read.app)) {
                return Ok(None);
            }
        }
        let has_it = known.as_ref().is_some_and(|read| is_from_folder(&read.app));
        let request = ApplyRequest {
            app: app.to_owned(),
            namespace: known.map(|read| read.app.namespace).unwrap_or_default(),
            manifests,
            prune_most: reason == Trigger::ByPerson { prune_most: true },
            adopt: false,
        };
        let source = Source {
            upstream: Upstream::Folder(place.clone()),
            taken: digest,
        };
        if reason == Trigger::ByTime && self.is_still_bad(&request, &source).await {
            return Ok(None);
        }
        let origin = if has_it {
            Origin::Update(source, reason)
        } else {
            Origin::Source(source)
        };
        let taken = self.deploy_from_source(&request, origin, requester).await;
        let refused =
            |error: Error| SourceError::refused(format!("{place} is not deployed"), error);
        taken.map(Some).map_err(refused)
    }

    /// Says which apps are no longer in the folder. They stay.
    fn miss(&self, found: &FolderContent) {
        let known = self.known.borrow();
        let missing = known.values().filter(|app| {
            is_from_folder(app) && !app.is_paused && !found.apps.contains_key(&app.name)
        });
        let missing: Vec<_> = missing.cloned().collect();
        drop(known);
        for app in missing {
            let error = nothing_to_pull(&app.name, app.source.as_ref());
            self.record_failure(&app.name, SourceError::of_entry(Cause::Path, error));
        }
    }

    /// Refuses what the folder would undo: the app is still in it.
    pub(super) async fn refuse_if_in_folder(&self, app: &App) -> Result<()> {
        if !is_from_folder(app) {
            return Ok(());
        }
        let Some(entry) = self.in_folder(&app.name).await? else {
            return Ok(());
        };
        let place = entry.place();
        Err(Error::new("nothing was changed")
            .why(format!("{} is deployed from {place}", app.name))
            .fix(format!("move {place} to another place first")))
    }
}

async fn looked_at(folder: &Path) -> Result<FolderContent> {
    let folder = PathBuf::from(folder);
    executor::unblock(move || look(&folder)).await
}

fn is_from_folder(app: &App) -> bool {
    let source = app.source.as_ref().map(|source| &source.upstream);
    matches!(source, Some(Upstream::Folder(_)))
}

/// Refuses an app that comes from elsewhere. One that is deployed by hand comes from the folder
/// once a person asks for that.
fn comes_from_here(app: &App, reason: Trigger) -> Result<()> {
    let name = &app.name;
    let (elsewhere, fix) = match &app.source {
        _ if is_from_folder(app) => return Ok(()),
        None if reason != Trigger::ByTime => return Ok(()),
        None => (
            "it is deployed by hand".to_owned(),
            format!(
                "rename the file or sub-folder; if the app is to come from there: sudo pipeops-agent apps pull {name}"
            ),
        ),
        Some(source) => (
            format!("it comes from {}", source.place()),
            format!(
                "rename the file or sub-folder, or: sudo pipeops-agent apps deploy {name} --git none"
            ),
        ),
    };
    Err(Error::new(format!("there is an app {name} already"))
        .why(elsewhere)
        .fix(fix))
}
