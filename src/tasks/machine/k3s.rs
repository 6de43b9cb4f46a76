//! k3s, as root's watch reports it in files in memory: its state, and a condition about the faults
//! that are left to a person.

use std::{
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use crate::{
    core::k3s::watch::{Escalation, PROGRESS, STATE, STATUS, STATUS_BYTES_MAX, WatchState},
    executor, files,
    host::clock,
    tasks::state::SharedState,
    wire::{
        json::{self, Shape},
        keeper::{Doing, K3sStatus},
    },
};

/// The condition.
const FAULT: &str = "k3s.fault";
/// Interval between two looks at the files: as the watch looks at k3s.
const EVERY: Duration = Duration::from_secs(60);
/// A line for each row of the table, of some hundred characters.
const BYTES_MAX: usize = 64 * 1024;

/// Tells of it until it is dropped. `root` is the machine's.
#[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
pub async fn follow(root: PathBuf, shared_state: Rc<SharedState>) {
    loop {
        let below = root.clone();
        let text = executor::unblock(move || text(&below, STATE, BYTES_MAX)).await;
        // Without the file nobody watches; what cannot be read says nothing.
        let watch_state = WatchState::parse(&String::from_utf8_lossy(&text.unwrap_or_default()));
        report(&watch_state.escalated(), &shared_state);
        refresh(root.clone(), &shared_state).await;
        clock::tick(EVERY).await;
    }
}

/// Reads the state again, with the change that is under way.
pub async fn refresh(root: PathBuf, shared_state: &SharedState) {
    let read = move || {
        let doing: Option<Doing> = shape(&root, PROGRESS);
        let status = shape(&root, STATUS);
        // Before the first look there is only the change that brings k3s.
        let none = || K3sStatus {
            managed: "none".to_owned(),
            ..K3sStatus::default()
        };
        let status = status.or_else(|| doing.as_ref().map(|_| none()))?;
        Some(K3sStatus { doing, ..status })
    };
    let seen = executor::unblock(read).await;
    *shared_state.k3s.borrow_mut() = seen;
}

/// Reads a file of the watch; `None` if it is absent or invalid.
fn shape<T: Shape + Default>(root: &Path, path: &str) -> Option<T> {
    json::shape(&text(root, path, STATUS_BYTES_MAX)?).ok()
}

fn text(root: &Path, path: &str, bytes_max: usize) -> Option<Vec<u8>> {
    let path = root.join(path.trim_start_matches('/'));
    files::read_if_there(&path, bytes_max).ok()?
}

fn report(escalated: &[Escalation], shared_state: &SharedState) {
    let Some(worst) = escalated.iter().max_by_key(|fault| fault.severity) else {
        shared_state.clear(FAULT);
        return;
    };
    let more = match escalated.len() {
        1 => String::new(),
        all => format!("; and {} more: sudo pipeops-agent k3s status", all - 1),
    };
    let sentence = format!("{}{more}", worst.sentence);
    let fix = Some(worst.fix.clone());
    shared_state.report(FAULT, worst.severity, sentence, fix);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_root_left_is_shown_and_what_is_none_of_its_files_is_as_none() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &[u8]| {
            let path = root.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            files::replace(&path, text, 0o640).unwrap();
        };
        let shared_state = SharedState::new(clock::now);
        let seen = || {
            smol::block_on(refresh(root.path().to_owned(), &shared_state));
            shared_state.k3s.borrow().clone()
        };
        assert_eq!(seen(), None);
        // The first change of all: there was no look yet.
        put(PROGRESS, br#"{"does":"install k3s","step":"","since":""}"#);
        let first = seen().unwrap();
        assert_eq!(first.managed, "none");
        assert_eq!(first.doing.unwrap().does, "install k3s");
        put(
            STATUS,
            br#"{"managed":"adopted","is_ready":true,"later":[1]}"#,
        );
        assert!(seen().unwrap().is_ready);
        put(PROGRESS, br#"{"does":"upgrade k3s","step":"","since":""}"#);
        assert_eq!(seen().unwrap().doing.unwrap().does, "upgrade k3s");
        for (path, text) in [(PROGRESS, &b"{"[..]), (STATUS, &b"[1]"[..])] {
            put(path, text);
        }
        assert_eq!(seen(), None);
        put(STATUS, &vec![b' '; STATUS_BYTES_MAX + 1]);
        assert_eq!(seen(), None);
    }
}
