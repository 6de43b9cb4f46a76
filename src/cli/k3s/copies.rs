//! Copies of backups elsewhere, as the running agent knows them.

use super::super::{
    args::Args,
    load,
    socket::{self, Ask},
};
use crate::wire::api::{Copies, K3S_PATH, K3sReport};

/// Copies; `None` where no setting asks for them, or no agent answers.
pub(super) fn of(args: &Args) -> Option<Copies> {
    let loaded = load(args);
    let s3 = loaded.k3s_backup().ok()?.s3?;
    let sockets = socket::candidates_of(&loaded);
    let answer = socket::ask(&sockets, &Ask::Get(K3S_PATH)).ok();
    let report = answer.filter(|answer| answer.code == 200);
    let report = report.and_then(|answer| answer.understood::<K3sReport>().ok());
    let copies = report.and_then(|report| report.copies);
    Some(copies.unwrap_or_else(|| Copies {
        at: s3.url.to_string(),
        why: Some("no agent answers that knows of it: pipeops-agent status".to_owned()),
        ..Copies::default()
    }))
}
