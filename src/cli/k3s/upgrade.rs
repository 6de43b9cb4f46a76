//! `k3s upgrade`: to a version from a folder.

use super::{DRY_RUN, TIMEOUT, keeper, many, program, release, report, tell, within};
use crate::{
    cli::{
        args::Args,
        changes,
        output::Output,
        table::{Command, Opt, Takes},
    },
    core::k3s::backup::Limits,
    error::{Exit, Result},
    keeper::k3s::Upgrade,
    net::tls::build_date,
};

/// `k3s upgrade`.
pub(super) static COMMAND: Command = Command {
    name: "upgrade",
    about: "Upgrade k3s to a version from a folder",
    options: &[
        release::FROM,
        Opt::value(
            "to",
            Takes::Text,
            "VERSION",
            "Version that it must be, such as v1.34.5+k3s1",
        ),
        release::SHA256,
        many("ignore", "CHECK", "Continue in spite of this finding"),
        TIMEOUT,
        Opt::flag(
            "check",
            "Say whether this upgrade is possible, without its steps",
        ),
        DRY_RUN,
    ],
    notes: "To a later patch, or to the next minor version: Kubernetes supports no other step, and no way back.\n\
            A backup is made first. What fails ends on the old version; after a minor version also on its datastore.\n\
            Pods go on while k3s restarts; a minor version may restart containers.",
    examples: &[
        "sudo pipeops-agent k3s upgrade --from /media/usb/k3s --check",
        "sudo pipeops-agent k3s upgrade --from /media/usb/k3s --to v1.34.5+k3s1",
    ],
    exit: "0 upgraded, or --check found nothing, 1 it failed and was undone, or --check found a problem, 2 the command could not run.",
    run: Some(upgrade),
    ..Command::BARE
};

fn upgrade(args: &Args, output: &mut Output) -> Result<Exit> {
    let keeper = keeper(args, "k3s upgrade")?;
    let (binary, images) = release::sources(args)?;
    let wanted = Upgrade {
        binary,
        images,
        version: release::version(args, "to")?,
        ignored: args.all("ignore"),
        limits: Limits::USUAL,
        within: within(args, 900)?,
        program: program()?,
        built: build_date(),
    };
    if args.has(DRY_RUN.long) || args.has("check") {
        let mut plan = keeper.k3s_upgrade_plan(&wanted)?;
        if args.has("check") {
            plan.steps.clear();
        }
        report::plan(&plan, args, output);
        let is_fine = plan.refused.is_empty();
        return Ok(if is_fine { Exit::Fine } else { Exit::Problem });
    }
    let done = keeper.k3s_upgrade(&wanted, &changes::who())?;
    Ok(tell(&done, args, output))
}
