//! Uploads encrypted backups of k3s from root's directory to a bucket, checks the copies there, and
//! deletes surplus ones.
//!
//! A copy counts once the bucket lists it with its length; its hash is a part of the signed
//! request, so the server has compared that.

use std::{path::PathBuf, rc::Rc, time::Duration};

use smol::{Timer, future::BoxedLocal};

use crate::{
    core::{
        backoff::Backoff,
        format::size,
        health::Severity,
        k3s::{
            backup::{ENCRYPTED, Kept, Limits, Owner, parse_name, sort_newest_first, surplus},
            copies,
        },
        s3::Signer,
        time::{Mono, Wall},
    },
    error::{Error, Result, Retry},
    executor, files,
    host::random,
    outside::s3::{Caller, Removal, Store},
    tasks::state::{CopiesView, SharedState},
};

/// Condition of copies that are missing.
pub const MISSING: &str = "k3s.copies";
/// Interval between two looks at root's directory.
pub const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between two looks at the bucket while nothing is to be copied.
const LIST_EVERY: Duration = Duration::from_hours(6);
/// Longest wait after failures, short enough for a person who has just mended a setting of the
/// server.
const LONGEST_WAIT: Duration = Duration::from_mins(15);
/// Failures in a row that are worth a condition, where another try may help.
const FAILURES_MAX: u32 = 3;
/// Time that a backup by schedule may be late: one that fails is tried again every hour.
const LATE: Duration = Duration::from_hours(3);
/// Files in root's directory that are looked at; there are [`copies::SPOOLED_MAX`].
const FILES_MAX: usize = 100;

/// The signer as its file says now.
pub type Signing = BoxedLocal<Result<Signer>>;

/// Uploads backups from root's directory to the bucket.
pub struct Uploader {
    /// Bucket.
    pub store: Store,
    /// Reads the key, again for each pass.
    pub signer: Box<dyn Fn() -> Signing>,
    /// Root's directory: [`copies::SPOOL`].
    pub spool: PathBuf,
    /// Interval of backups by schedule; `None`: there is no schedule.
    pub every: Option<Duration>,
    /// Interval between two looks at root's directory, and the wait after a failure:
    /// [`POLL_INTERVAL`].
    pub poll_interval: Duration,
    /// State of all components.
    pub shared_state: Rc<SharedState>,
}

impl std::fmt::Debug for Uploader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Uploader({})", self.store.url)
    }
}

/// Copies until it is dropped.
#[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
pub async fn run(uploader: &Uploader) {
    let mut backoff = Backoff::new(uploader.poll_interval, LONGEST_WAIT);
    let started = uploader.now().0;
    let mut copied: Option<(Vec<Kept>, Mono)> = None;
    loop {
        let (now, wall) = uploader.now();
        let here = spooled(uploader.spool.clone(), wall).await;
        let is_fresh = copied
            .as_ref()
            .is_some_and(|(before, at)| *before == here && now.since(*at) < LIST_EVERY);
        if !is_fresh && !here.is_empty() {
            if let Err(error) = uploader.pass(&here).await {
                let wait = backoff.next(random::jitter());
                uploader.failed(&error, backoff.failures());
                Timer::after(wait).await;
                continue;
            }
            backoff.reset();
            copied = Some((here.clone(), now));
        }
        uploader.judge(&here, now.since(started));
        Timer::after(uploader.poll_interval).await;
    }
}

/// Backups that root left, of the owner of the newest.
async fn spooled(spool: PathBuf, now: Wall) -> Vec<Kept> {
    let read = move || {
        let entries = std::fs::read_dir(&spool).into_iter().flatten().flatten();
        let found = entries.take(FILES_MAX).filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (_, at) = parse_name(&name).filter(|_| name.ends_with(ENCRYPTED))?;
            let metadata = entry.metadata().ok().filter(std::fs::Metadata::is_file)?;
            Some(Kept {
                at,
                bytes: metadata.len(),
                name,
            })
        });
        found.collect::<Vec<_>>()
    };
    let mut found = executor::unblock(read).await;
    sort_newest_first(&mut found, now);
    if let Some(newest) = found.first().map(|kept| kept.name.clone()) {
        found.retain(|kept| owner_of(&kept.name) == owner_of(&newest));
    }
    found
}

fn owner_of(name: &str) -> Owner<'_> {
    parse_name(name).unwrap_or_default().0
}

impl Uploader {
    fn now(&self) -> (Mono, Wall) {
        let now = self.shared_state.now();
        (now.mono, now.wall)
    }

    /// Copies what is missing, looks whether it arrived, and removes what is one too many.
    async fn pass(&self, here: &[Kept]) -> Result<()> {
        let signer = (self.signer)().await?;
        let there = self.list(here, &signer).await?;
        // By now the server has compared the clock: it refuses one that is 15 minutes off.
        let missing = copies::missing(here, &there, self.now().1, Limits::USUAL);
        let mut whole = copies::whole(here, &there);
        let outdated = copies::outdated(&missing, whole.clone(), self.now().1, Limits::USUAL);
        // A server that removes nothing may take a copy nevertheless; below it is told.
        let removed = self.remove(outdated, &mut whole, &signer).await;
        let mut keeps_all = removed.unwrap_or_default();
        for kept in &missing {
            let doing = format!("copying {} ({})", kept.name, size(kept.bytes));
            log::info!("k3s: {doing} to {}", self.store.url);
            self.view(|view| view.doing = Some(doing));
            let path = self.spool.join(&kept.name);
            let read = path.clone();
            let sum = executor::unblock(move || files::sum(&read)).await?;
            let sum = sum.filter(|sum| sum.bytes == kept.bytes).ok_or_else(|| {
                Error::new(format!("{} was removed meanwhile", kept.name)).retry(Retry::Soon)
            })?;
            let put = self
                .store
                .put(&kept.name, (&path, &sum), self.caller(&signer));
            put.await?;
        }
        let there = match missing.as_slice() {
            [] => there,
            _ => self.list(here, &signer).await?,
        };
        whole = copies::whole(here, &there);
        let is_there = |kept: &&Kept| !whole.iter().any(|object| object.name == kept.name);
        if let Some(lost) = missing.iter().find(is_there) {
            let found = there.iter().find(|object| object.name == lost.name);
            let why = found.map_or_else(
                || format!("it took {} and does not list it", lost.name),
                |found| {
                    format!(
                        "{} has {} bytes there, not {}",
                        lost.name, found.bytes, lost.bytes
                    )
                },
            );
            let error = Error::new(format!("backups are not copied to {}", self.store.url));
            return Err(error.why(why).retry(Retry::Soon));
        }
        let surplus = surplus(whole.clone(), self.now().1, Limits::USUAL);
        keeps_all |= self.remove(surplus, &mut whole, &signer).await?;
        let checked = self.now().1;
        sort_newest_first(&mut whole, checked);
        self.view(|view| {
            view.newest = whole.first().cloned();
            view.count = whole.len();
            view.bytes = whole.iter().map(|kept| kept.bytes).sum();
            view.keeps_all = keeps_all;
            view.checked = Some(checked);
            view.doing = None;
            view.why = None;
        });
        Ok(())
    }

    /// Removes copies; true: the server lets none be removed.
    async fn remove(
        &self,
        names: Vec<String>,
        whole: &mut Vec<Kept>,
        signer: &Signer,
    ) -> Result<bool> {
        for name in names {
            match self.store.remove(&name, self.caller(signer)).await? {
                Removal::Done => whole.retain(|object| object.name != name),
                Removal::Forbidden => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Copies of the owner of these backups.
    async fn list(&self, here: &[Kept], signer: &Signer) -> Result<Vec<Kept>> {
        let owner = here
            .first()
            .map_or_else(Owner::default, |kept| owner_of(&kept.name));
        let beginning = copies::beginning(owner.node);
        let listed = self.store.list(&beginning, self.caller(signer)).await?;
        let own = listed.into_iter().filter_map(|(name, bytes)| {
            let (of, at) = parse_name(&name)?;
            (of == owner).then(|| Kept {
                at,
                bytes,
                name: name.clone(),
            })
        });
        Ok(own.collect())
    }

    fn caller<'a>(&self, signer: &'a Signer) -> Caller<'a> {
        Caller {
            signer,
            now: self.now().1,
        }
    }

    fn view(&self, change: impl FnOnce(&mut CopiesView)) {
        let mut view = self.shared_state.copies.borrow_mut();
        change(view.get_or_insert_with(|| CopiesView {
            at: self.store.url.to_string(),
            ..CopiesView::default()
        }));
    }

    fn failed(&self, error: &Error, failures: u32) {
        log::info!("k3s: {}", error.sentence());
        self.view(|view| {
            view.doing = None;
            view.why = Some(error.sentence());
        });
        if error.retry == Retry::Never || failures >= FAILURES_MAX {
            self.report(error.sentence(), error.fix.clone());
        }
    }

    /// Tells where there has been nothing to copy for too long.
    fn judge(&self, here: &[Kept], up: Duration) {
        self.view(|_| {});
        let Some(every) = self.every else {
            self.shared_state.clear(MISSING);
            return;
        };
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let now = self.now().1.millis();
        let age = here
            .first()
            .map(|newest| now.saturating_sub(newest.at.millis()));
        // One of a clock that was ahead says nothing about today.
        let fine = -ms(LATE)..=ms(every.saturating_mul(2) + LATE);
        let why = match age {
            None if up > LATE => "root has left no encrypted backup to copy".to_owned(),
            Some(age) if !fine.contains(&age) => {
                let at = here.first().map(|newest| newest.at.rfc3339());
                format!(
                    "the newest backup to copy is from {}",
                    at.unwrap_or_default()
                )
            }
            Some(_) | None => {
                self.shared_state.clear(MISSING);
                return;
            }
        };
        let sentence = format!("backups of k3s are not copied to {}: {why}", self.store.url);
        let fix =
            "sudo pipeops-agent k3s backup makes one and says why; sudo pipeops-agent k3s status";
        self.report(sentence, Some(fix.to_owned()));
    }

    fn report(&self, sentence: String, fix: Option<String>) {
        let severity = Severity::Warning;
        self.shared_state.report(MISSING, severity, sentence, fix);
    }
}
