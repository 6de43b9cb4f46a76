//! `k3s upgrade`: to a version from the network, or from a folder.

use std::time::Duration;

use serde_json::json;

use super::{
    DRY_RUN, IGNORE, TIMEOUT, backup, keeper, print_outcome, program, release, report, within,
};
use crate::{
    cli::{
        args::Args,
        changes, load,
        output::Output,
        table::{Command, JSON, Opt, Takes},
    },
    core::{
        k3s::index::{Channel, Choice},
        time::in_words,
    },
    error::{Error, Exit, Result},
    keeper::{Keeper, k3s::Upgrade},
    net::tls::build_date,
};

/// `k3s upgrade`.
pub(super) static COMMAND: Command = Command {
    name: "upgrade",
    about: "Upgrade k3s to a later patch, or the next minor version",
    options: &[
        release::FROM,
        Opt::value(
            "to",
            Takes::Text,
            "VERSION",
            "Version to upgrade to, such as v1.34.5+k3s1 (default: the newest patch of the minor version that is installed)",
        ),
        release::CHANNEL,
        release::SHA256,
        IGNORE,
        TIMEOUT,
        Opt::flag(
            "in-window",
            "Refuse outside the maintenance window of k3s.window, and say when it opens",
        ),
        Opt::flag(
            "check",
            "Say whether this upgrade is possible, without its steps",
        ),
        DRY_RUN,
    ],
    notes: "To a later patch, or to the next minor version: Kubernetes supports no other upgrade, and no downgrade.\n\
            A backup is made first. A failed upgrade returns to the old version, and after a minor version also to its datastore.\n\
            Pods keep running while k3s restarts; a new minor version may restart containers.",
    examples: &[
        "sudo pipeops-agent k3s upgrade --check",
        "sudo pipeops-agent k3s upgrade --to v1.34.5+k3s1",
        "sudo pipeops-agent k3s upgrade --from /media/usb/k3s --check",
        "sudo pipeops-agent k3s upgrade --from /media/usb/k3s --to v1.34.5+k3s1",
    ],
    exit: "0 upgraded, or --check found nothing, 1 it failed and was undone, or --check found a problem, 2 the command could not run.",
    run: Some(upgrade),
    ..Command::BARE
};

/// Refuses an upgrade that is wanted in the maintenance window only while that is closed.
fn check_window(args: &Args, keeper: &Keeper) -> Result<()> {
    if !args.has("in-window") {
        return Ok(());
    }
    let cannot = || Error::new("k3s is not upgraded now");
    let window = load(args).k3s().window.ok_or_else(|| {
        cannot()
            .why("k3s.window does not set a maintenance window")
            .fix("set one, such as k3s.window = \"02:00-05:00\", in /etc/pipeops/config.toml; or leave --in-window out")
    })?;
    let Some(minutes) = keeper.k3s_opens_in(window)? else {
        return Ok(());
    };
    let waits = in_words(Duration::from_secs(u64::from(minutes) * 60));
    Err(cannot()
        .why(format!("the maintenance window {window} opens in {waits}"))
        .fix("try again then, from a timer for example; or leave --in-window out"))
}

fn upgrade(args: &Args, output: &mut Output) -> Result<Exit> {
    let keeper = keeper(args, "k3s upgrade")?;
    check_window(args, &keeper)?;
    // Before anything is looked at that would be installed.
    let version = keeper.k3s_version().ok_or_else(|| {
        Error::new("k3s cannot be upgraded")
            .why("there is no k3s on this machine")
            .fix("install it: sudo pipeops-agent k3s install")
    })?;
    let release = release::release(args, &keeper, "to", || {
        Choice::Channel(Channel::Minor(version.major, version.minor))
    })?;
    let is_named = args.has("to") || args.has(release::FROM.long);
    if !is_named && release.version == Some(version) {
        if args.has(JSON.long) {
            output.json(&json!({ "installed": version.to_string(), "is_newest": true }));
        } else {
            output.line(&format!(
                "k3s {version} is installed, the newest of its channel"
            ));
        }
        return Ok(Exit::Fine);
    }
    let mut wanted = Upgrade {
        binary: release.binary.clone(),
        images: release.images.clone(),
        version: release.version,
        ignored: args.all("ignore"),
        backup: backup::usual(args)?,
        within: within(args, 900)?,
        program: program()?,
        built: build_date(),
    };
    if args.has(DRY_RUN.long) || args.has("check") {
        let mut plan = keeper.k3s_upgrade_plan(&wanted)?;
        let is_fine = plan.refused.is_empty();
        if args.has("check") {
            plan.steps.clear();
        }
        report::plan(&release.shown(plan), args, output);
        return Ok(if is_fine { Exit::Fine } else { Exit::Problem });
    }
    wanted.binary = release.fetch(args, &keeper, || {
        keeper.k3s_resume()?;
        keeper.k3s_upgrade_plan(&wanted)
    })?;
    // A slow download may have taken longer than it is open.
    check_window(args, &keeper)?;
    let done = keeper.k3s_upgrade(&wanted, &changes::who())?;
    release.clean();
    Ok(print_outcome(&done, args, output))
}
