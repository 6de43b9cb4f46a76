//! `k3s restore`: the cluster as it was when a backup was taken.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::{
    DRY_RUN, IGNORE, TIMEOUT, YES, keeper, print_declined, print_outcome, program, report, text_of,
    within,
};
use crate::{
    cli::{
        args::Args,
        ask, changes,
        output::{Output, printable},
        table::{Argument, Command, JSON, Need, Opt, Takes},
    },
    core::{age::Identity, k3s::backup::FOLDER},
    error::{Error, Exit, Result},
    keeper::k3s::Restore,
};

/// `k3s restore`.
pub(super) static COMMAND: Command = Command {
    name: "restore",
    about: "Restore a backup of k3s",
    arguments: &[Argument {
        name: "BACKUP",
        takes: Takes::File,
        need: Need::One,
        help: "Name as `k3s status` shows it, or the path of a file",
    }],
    options: &[
        Opt::value(
            "identity",
            Takes::File,
            "FILE",
            "Private age key to decrypt the backup with; it is not stored",
        ),
        IGNORE,
        YES,
        TIMEOUT,
        DRY_RUN,
    ],
    notes: "All Pods are stopped. The current cluster is moved aside, and `pipeops-agent undo` moves it back.\n\
            On a new machine, first install k3s with the node name of the backup. Settings that the datastore depends on must be the same.\n\
            Data of volumes is not in a backup; it stays as it is.",
    examples: &[
        "sudo pipeops-agent k3s restore k3s-box-20261123T033700Z-3f9a1c07.tar.gz --dry-run",
        "sudo pipeops-agent k3s restore k3s-box-20261123T033700Z-3f9a1c07.tar.gz.age --identity /media/usb/key.txt",
    ],
    exit: "0 restored, and the node is Ready, 1 cancelled, or it failed and was undone, 2 the command could not run.",
    run: Some(restore),
    ..Command::BARE
};

fn restore(args: &Args, output: &mut Output) -> Result<Exit> {
    let keeper = keeper(args, "k3s restore")?;
    let named = args.text("BACKUP").unwrap_or_default();
    let file = if named.contains('/') {
        PathBuf::from(named)
    } else {
        PathBuf::from(FOLDER).join(named)
    };
    let wanted = Restore {
        file: std::path::absolute(&file).unwrap_or(file),
        identities: match args.path("identity") {
            Some(path) => identities(&path)?,
            None => Vec::new(),
        },
        ignored: args.all("ignore"),
        within: within(args, 900)?,
        program: program()?,
    };
    let plan = keeper.k3s_restore_plan(&wanted)?;
    if args.has(DRY_RUN.long) {
        report::plan(&plan, args, output);
        return Ok(Exit::Fine);
    }
    if !args.has(JSON.long) {
        report::warnings(&plan, output);
    }
    let question = format!("{}, replacing the current cluster?", printable(&plan.does));
    if !ask::is_permitted(args, &question)? {
        return Ok(print_declined("Nothing was changed.", args, output));
    }
    let done = keeper.k3s_restore(&wanted, &changes::who())?;
    Ok(print_outcome(&done, args, output))
}

/// Private keys in a file that nobody else can read.
fn identities(path: &Path) -> Result<Vec<Identity>> {
    let cannot = || Error::new(format!("cannot use the identity in {}", path.display()));
    let metadata = std::fs::metadata(path).map_err(|error| cannot().because(&error))?;
    let is_open = metadata.permissions().mode() & 0o077 != 0;
    // A stick with FAT has no owners, and shows every file to all.
    if is_open {
        return Err(cannot().why("other users can read it").fix(format!(
            "sudo install -m 600 {} /run/identity, and remove that afterwards",
            path.display()
        )));
    }
    Identity::parse_file(&text_of(path)?).ok_or_else(|| {
        cannot()
            .why("it has no private key of age")
            .fix("name a file of age-keygen, with a line AGE-SECRET-KEY-1…; one with a passphrase is decrypted with age -d first")
    })
}
