//! Disk watch: touches the state directory every few seconds and reports disks that do not respond.

use std::{
    io,
    path::PathBuf,
    rc::Rc,
    sync::{Arc, Weak},
    time::Duration,
};

use crate::{
    core::{
        health::Severity,
        stall::{CONDITIONS, FIX, Job, StallReport, Stalls},
    },
    files::{self, Jobs},
    host::clock,
    store::IDENTITY,
    tasks::state::SharedState,
};

/// Pause between touches. With [`POLL_INTERVAL`], the patience of a touch and a second for the last
/// look it makes 10 s from the first write that hangs to the condition.
const TOUCH_EVERY: Duration = Duration::from_millis(2_500);
/// Interval between looks.
const POLL_INTERVAL: Duration = Duration::from_millis(2_500);
/// Interval between looks while a job is under way.
const POLL_INTERVAL_BUSY: Duration = Duration::from_secs(1);
/// A touch opens and reads a file.
const STACK_BYTES: usize = 64 * 1024;

/// Watches until it is dropped. `directory` is the state directory, as soon as it is known.
#[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
pub async fn watch(jobs: Jobs, directory: Option<PathBuf>, shared_state: Rc<SharedState>) {
    let mut stalls = Stalls::default();
    let shown = directory.as_ref().map(|directory| directory.display());
    let name = shown.map(|name| name.to_string()).unwrap_or_default();
    let owner = Arc::new(());
    if let Some(directory) = directory
        && let Err(error) = touch(Arc::downgrade(&owner), jobs.clone(), directory)
    {
        log::warn!("a disk that hangs will be noticed late: no thread to watch it: {error}");
    }
    loop {
        let found = stalls.look(&jobs.running(), shared_state.now().mono);
        report(&found, &jobs, &name, &shared_state);
        clock::tick(if found.is_busy {
            POLL_INTERVAL_BUSY
        } else {
            POLL_INTERVAL
        })
        .await;
    }
}

/// Starts the thread that touches the state directory for as long as `owner` is there. It wakes up
/// nobody: a touch that hangs is seen by the looks.
fn touch(owner: Weak<()>, jobs: Jobs, directory: PathBuf) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("disk".to_owned());
    let touches = move || {
        while owner.strong_count() > 0 {
            let begun = jobs.begin(Job::Touch);
            files::touch(&directory, IDENTITY);
            drop(begun);
            clock::pause(TOUCH_EVERY);
        }
    };
    thread.stack_size(STACK_BYTES).spawn(touches).map(drop)
}

fn report(found: &StallReport, jobs: &Jobs, directory: &str, shared_state: &SharedState) {
    jobs.store_hangs(found.is_store_hung);
    let holding = found.conditions(directory, shared_state.stage.get());
    for id in CONDITIONS {
        match holding.iter().find(|(held, _)| *held == id) {
            Some((_, sentence)) => {
                let fix = Some(FIX.to_owned());
                shared_state.report(id, Severity::Critical, sentence.clone(), fix);
            }
            None => shared_state.clear(id),
        }
    }
}
