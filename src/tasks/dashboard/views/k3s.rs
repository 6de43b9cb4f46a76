//! k3s of this machine.

use crate::{
    core::time::Wall,
    tasks::state::{CopiesView, SharedState},
    wire::{
        api::{Copies, K3sReport, k3s_page},
        keeper::K3sStatus,
    },
};

/// k3s of this machine, as far as the agent knows it.
pub fn report(shared_state: &SharedState) -> K3sReport {
    let copies = shared_state.copies.borrow().as_ref().map(copies);
    let seen = shared_state.k3s.borrow().clone();
    let now = shared_state.now().wall;
    let rows = seen
        .as_ref()
        .map(|seen| k3s_page(seen, copies.as_ref(), now));
    // As `k3s status` has it: root's watch does not know of copies.
    let seen = seen.map(|seen| K3sStatus {
        copies: copies.clone(),
        ..seen
    });
    K3sReport {
        copies,
        rows: rows.unwrap_or_default(),
        seen,
    }
}

fn copies(view: &CopiesView) -> Copies {
    let newest = view.newest.as_ref();
    Copies {
        at: view.at.clone(),
        newest: newest.map(|newest| newest.name.clone()),
        newest_at: newest.map(|newest| newest.at.rfc3339()),
        count: u64::try_from(view.count).unwrap_or(u64::MAX),
        bytes: view.bytes,
        keeps_all: view.keeps_all,
        checked_at: view.checked.map(Wall::rfc3339),
        doing: view.doing.clone(),
        why: view.why.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::clock;

    #[test]
    fn copies_are_in_the_state_that_is_shown_as_in_k3s_status() {
        let shared_state = SharedState::new(clock::now);
        *shared_state.copies.borrow_mut() = Some(CopiesView {
            at: "https://s3.example.com/backups".to_owned(),
            count: 3,
            ..CopiesView::default()
        });
        assert_eq!(report(&shared_state).seen, None);
        *shared_state.k3s.borrow_mut() = Some(K3sStatus::default());
        let report = report(&shared_state);
        assert_eq!(report.seen.unwrap().copies, report.copies);
        assert_eq!(report.copies.unwrap().count, 3);
    }
}
