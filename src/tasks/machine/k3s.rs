//! Condition about k3s: the faults that root's watch has left to a person.

use std::{path::PathBuf, rc::Rc, time::Duration};

use smol::Timer;

use crate::{
    core::k3s::watch::{Handed, Memory},
    executor, files,
    tasks::state::SharedState,
};

/// The condition.
const FAULT: &str = "k3s.fault";
/// Interval between two looks at the file: as the watch looks at k3s.
const EVERY: Duration = Duration::from_secs(60);
/// A line for each row of the table, of some hundred letters.
const BYTES_MAX: usize = 64 * 1024;

/// Tells of them until it is dropped. `path` is the file that the watch writes, in memory.
#[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
pub async fn follow(path: PathBuf, shared_state: Rc<SharedState>) {
    loop {
        let read = path.clone();
        let text = executor::unblock(move || files::read_if_there(&read, BYTES_MAX)).await;
        // Without the file nobody watches; what cannot be read says nothing.
        let text = text.ok().flatten().unwrap_or_default();
        let memory = Memory::parse(&String::from_utf8_lossy(&text));
        report(&memory.handed(), &shared_state);
        Timer::after(EVERY).await;
    }
}

fn report(handed: &[Handed], shared_state: &SharedState) {
    let Some(worst) = handed.iter().max_by_key(|fault| fault.severity) else {
        shared_state.clear(FAULT);
        return;
    };
    let more = match handed.len() {
        1 => String::new(),
        all => format!("; and {} more: sudo pipeops-agent k3s status", all - 1),
    };
    let sentence = format!("{}{more}", worst.sentence);
    let fix = Some(worst.fix.clone());
    shared_state.report(FAULT, worst.severity, sentence, fix);
}
