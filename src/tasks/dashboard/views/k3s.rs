//! k3s of this machine.

use crate::{
    core::time::Wall,
    tasks::state::{CopiesView, SharedState},
    wire::api::{Copies, K3sReport, k3s_page},
};

/// k3s of this machine, as far as the agent knows it.
pub fn report(shared_state: &SharedState) -> K3sReport {
    let copies = shared_state.copies.borrow().as_ref().map(copies);
    let seen = shared_state.k3s.borrow().clone();
    let now = shared_state.now().wall;
    let rows = seen
        .as_ref()
        .map(|seen| k3s_page(seen, copies.as_ref(), now));
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
