//! `k3s backup`: one file with the datastore, the token, the certificates and the settings.

use serde_json::json;

use super::{DRY_RUN, connect, copies, keeper, report};
use crate::{
    cli::{
        args::Args,
        load,
        output::{Output, Tone, printable, size},
        table::{Command, JSON, Opt, Takes},
    },
    config::Loaded,
    core::k3s::backup::Limits,
    error::{Exit, Result},
    host::clock,
    keeper::k3s::{Backup, Target},
    wire::api::copies_row,
};

/// `k3s backup`.
pub(super) static COMMAND: Command = Command {
    name: "backup",
    about: "Back up datastore, token, certificates and settings of k3s",
    options: &[
        Opt::value(
            "to",
            Takes::Folder,
            "FOLDER",
            "Directory of this machine that only root can write (default: k3s.backup_dir, or /var/backups/pipeops)",
        ),
        Opt::value(
            "keep",
            Takes::Text,
            "COUNT",
            "Number of backups of this node to keep there",
        )
        .default("7"),
        Opt::value(
            "keep-days",
            Takes::Text,
            "DAYS",
            "Age in days after which they are removed",
        )
        .default("90"),
        Opt::value("keep-mb", Takes::Text, "MB", "Total size of them in MB").default("2000"),
        DRY_RUN,
    ],
    notes: "k3s keeps running. The file is read back before it counts as a backup; the newest is never removed.\n\
            It does not contain the data of volumes, which are listed with their sizes.\n\
            It contains the keys of the cluster: k3s.backup_recipients encrypts it to a key that you keep elsewhere.\n\
            Without it, it stays in a directory that is root's.",
    examples: &[
        "sudo pipeops-agent k3s backup",
        "sudo pipeops-agent k3s backup --to /mnt/ssd/backups --keep 30 --dry-run",
    ],
    exit: "0 there is a backup, 2 there is none.",
    run: Some(backup),
    ..Command::BARE
};

fn backup(args: &Args, output: &mut Output) -> Result<Exit> {
    let keeper = keeper(args, "k3s backup")?;
    let wanted = wanted(args)?;
    if args.has(DRY_RUN.long) {
        report::plan(&keeper.k3s_backup_plan(&wanted)?, args, output);
        return Ok(Exit::Fine);
    }
    let done = keeper.k3s_backup(&wanted)?;
    let copies = wanted.copied_by.and_then(|_| copies::of(args));
    if args.has(JSON.long) {
        output.json(&json!({ "backup": done, "copies": copies }));
        return Ok(Exit::Fine);
    }
    let head = format!("{} ({})", printable(&done.file), size(done.bytes));
    output.line(&output.toned(Tone::Good, &head));
    output.line(&format!(
        "  k3s {} of the node {}: the datastore ({}) and {} more files, read back and checked",
        printable(&done.version),
        printable(&done.node),
        size(done.datastore_bytes),
        done.files.saturating_sub(1)
    ));
    for recipient in &done.recipients {
        output.line(&format!("  encrypted to {}", printable(recipient)));
    }
    for name in &done.removed {
        output.line(&format!("  removed: {}", printable(name)));
    }
    if let Some(copies) = copies {
        output.line("  left to the agent, which copies it within minutes");
        report::print_copies(&copies_row(&copies, clock::now().wall), output);
    }
    report::volumes(&done.volumes, output);
    Ok(Exit::Fine)
}

fn wanted(args: &Args) -> Result<Backup> {
    let number = |name: &'static str, default: u32| {
        let read = args.read(name, |text| {
            let number = text.parse::<u32>().ok().filter(|number| *number > 0);
            number.ok_or_else(|| "it is a number above 0".to_owned())
        });
        read.map(|number| number.unwrap_or(default))
    };
    let usual = usual(args)?;
    let to = match args.path("to") {
        None => usual.to,
        Some(path) => {
            let path = std::path::absolute(&path).unwrap_or(path);
            Target::Folder(path.display().to_string())
        }
    };
    Ok(Backup {
        to,
        limits: Limits {
            count: usize::try_from(number("keep", 7)?).unwrap_or(usize::MAX),
            days: number("keep-days", 90)?,
            bytes: u64::from(number("keep-mb", 2000)?) * 1_000_000,
        },
        recipients: usual.recipients,
        // A directory that was named is a place of the owner's choice: what is there is not copied
        // on.
        copied_by: usual.copied_by.filter(|_| args.path("to").is_none()),
    })
}

/// The backup that the settings ask for.
pub(super) fn usual(args: &Args) -> Result<Backup> {
    by(&load(args))
}

/// The same of settings that were read.
pub(super) fn by(loaded: &Loaded) -> Result<Backup> {
    let settings = loaded.k3s_backup()?;
    Ok(Backup {
        to: settings.dir.map_or(Target::Usual, Target::Disk),
        limits: Limits::USUAL,
        recipients: settings.recipients,
        // Without the agent's user nobody copies.
        copied_by: settings
            .s3
            .and_then(|_| connect::user(loaded))
            .map(|user| user.gid.as_raw()),
    })
}
