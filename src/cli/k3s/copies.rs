//! Copies of backups elsewhere, as the running agent knows them.

use super::super::{
    args::Args,
    load,
    output::{Output, Tone, ago, printable, size},
    socket::{self, Ask},
};
use crate::{
    host::clock,
    wire::api::{Copies, K3S_PATH, K3sReport},
};

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

/// Prints where the copies are, and how old the newest is.
pub(super) fn print(copies: &Copies, output: &mut Output) {
    let newest = match (&copies.newest, &copies.newest_at) {
        (Some(name), Some(at)) => {
            let old = ago(at, clock::now().wall).unwrap_or_else(|| "?".to_owned());
            format!(
                "{} there ({}), the newest is {old} old: {}",
                copies.count,
                size(copies.bytes),
                printable(name)
            )
        }
        _ => "none is known there yet".to_owned(),
    };
    output.line(&format!("copies: {}", printable(&copies.at)));
    output.line(&format!("  {newest}"));
    if copies.keeps_all {
        output.line("  the server lets none be removed, so older ones stay");
    }
    if let Some(doing) = &copies.doing {
        output.line(&format!("  {}", printable(doing)));
    }
    if let Some(why) = &copies.why {
        output.line(&output.toned(Tone::Doubtful, &format!("  {}", printable(why))));
    }
}
