//! Settings with a mistake: under a service manager the agent stays up to say so, and waits until
//! they are mended.
//!
//! It shows its page to this machine only and its socket, out of memory. Nothing else begins: no
//! link, no cluster, no databases, because the line that cannot be read may be the one that forbids
//! it.

use std::{future::Future, time::Duration};

use smol::Timer;

use super::starting::{Addresses, Starting};
use crate::{
    config::{self, Loaded, Provisional, Settings, Sources},
    core::{health::Severity, stall::Job},
    error::Error,
    host::{notify::Notifier, signals::Signals},
    tasks::dashboard::status::SETTINGS_CONDITION,
};

/// Interval between looks at settings with a mistake. The files are short.
const RETRY_WAIT: Duration = Duration::from_secs(5);

/// Reads the settings until they can be used. `None`: problems to stop. Without a service manager
/// their mistakes are returned at once, to whoever typed the command.
pub(super) async fn settings(
    sources: &Sources,
    known: &Provisional,
    (starting, notifier): (&Starting, &Notifier),
    signals: &mut Signals,
) -> Option<Result<Settings, Vec<Error>>> {
    let is_service = known.surroundings.runtime_directory.is_some();
    let mut addresses = Addresses::provisional(known);
    let mut problems: Vec<Error> = Vec::new();
    loop {
        let changed = changed(sources, starting, &problems);
        let loaded = starting
            .until(changed, (&addresses, notifier), signals)
            .await?;
        if loaded.problems().is_empty() || !is_service {
            starting.shared_state.clear(SETTINGS_CONDITION);
            return Some(loaded.settings());
        }
        report(starting, loaded.problems());
        loaded.problems().clone_into(&mut problems);
        addresses = Addresses::unusable(&loaded, known);
        if !addresses.has_port() {
            starting.listeners().close_port();
        }
    }
}

/// Waits for settings that can be used, or have other mistakes than `problems`.
fn changed(
    sources: &Sources,
    starting: &Starting,
    problems: &[Error],
) -> impl Future<Output = Loaded> {
    let (sources, problems) = (sources.clone(), problems.to_vec());
    let jobs = starting.jobs.clone();
    async move {
        loop {
            let sources = sources.clone();
            let read = jobs.run_to_end(Job::Settings, move || config::load(&sources));
            let loaded = read.await;
            let is_told = loaded
                .problems()
                .iter()
                .map(Error::sentence)
                .eq(problems.iter().map(Error::sentence));
            if loaded.problems().is_empty() || !is_told {
                return loaded;
            }
            Timer::after(RETRY_WAIT).await;
        }
    }
}

/// Names the first mistake in the condition, and all of them in the log.
fn report(starting: &Starting, problems: &[Error]) {
    let Some((first, others)) = problems.split_first() else {
        return;
    };
    for problem in others {
        log::error!("{}", problem.sentence());
    }
    let more = match others.len() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let sentence = format!(
        "nothing runs but the local page, because the settings cannot be used: {}{more}",
        first.sentence()
    );
    let fix = first.fix.as_deref().unwrap_or("correct that line");
    let fix = format!(
        "{fix}; then nothing more: the file is read again every few seconds (all mistakes: pipeops-agent config check)"
    );
    starting
        .shared_state
        .report(SETTINGS_CONDITION, Severity::Critical, sentence, Some(fix));
}
