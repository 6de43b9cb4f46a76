//! Disk watch: touches the state directory every few seconds and reports disks that do not respond.

use std::{path::PathBuf, rc::Rc, time::Duration};

use smol::{
    Timer,
    future::{self, FutureExt as _},
};

use crate::{
    core::{
        health::Severity,
        stall::{CONDITIONS, FIX, Job, StallReport, Stalls},
    },
    executor,
    files::{self, Jobs},
    store::IDENTITY,
    tasks::state::SharedState,
};

/// Interval between touches. With the patience of a touch it makes 7 s from the first write that
/// hangs to the condition.
const TOUCH_EVERY: Duration = Duration::from_secs(3);
/// Interval between looks while a job is under way.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Watches until it is dropped. `directory` is the state directory, as soon as it is known.
#[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
pub async fn watch(jobs: Jobs, directory: Option<PathBuf>, shared_state: Rc<SharedState>) {
    let mut stalls = Stalls::default();
    let mut touch = None;
    let shown = directory.as_ref().map(|directory| directory.display());
    let name = shown.map(|name| name.to_string()).unwrap_or_default();
    let look = |stalls: &mut Stalls| {
        let found = stalls.look(&jobs.running(), shared_state.now().mono);
        report(&found, &jobs, &name, &shared_state);
        found
    };
    loop {
        let mut touched = touch.take().or_else(|| {
            let (begun, directory) = (jobs.begin(Job::Touch), directory.clone()?);
            Some(executor::unblock(move || {
                let _begun = begun;
                files::touch(&directory, IDENTITY);
            }))
        });
        look(&mut stalls);
        let is_touched = async {
            match &mut touched {
                Some(touched) => touched.await,
                None => future::pending().await,
            }
            true
        };
        let later = async {
            Timer::after(LOOK_EVERY).await;
            false
        };
        if !is_touched.or(later).await {
            touch = touched;
            continue;
        }
        // What was held up is told to go on at once.
        let found = look(&mut stalls);
        let rest = if found.is_busy {
            LOOK_EVERY
        } else {
            TOUCH_EVERY
        };
        Timer::after(rest).await;
    }
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
