//! `k3s adopt`: manages a k3s that was installed by other means.

use super::{DRY_RUN, IGNORE, YES, keeper, print_declined, print_outcome, program, report};
use crate::{
    cli::{
        args::Args,
        ask, changes,
        output::Output,
        table::{Command, JSON, Opt},
    },
    error::{Exit, Result},
};

/// `k3s adopt`.
pub(super) static COMMAND: Command = Command {
    name: "adopt",
    about: "Manage a k3s that came from somewhere else",
    options: &[
        Opt::flag("undo", "Stop managing it; k3s keeps running unchanged"),
        IGNORE,
        YES,
        DRY_RUN,
    ],
    notes: "Lists what will be managed and what stays unchanged, then asks. Nothing of k3s is restarted or\n\
            rewritten: a note is made, and root looks at k3s each minute (`k3s watch --help`).\n\
            k0s, MicroK8s, RKE2, kubeadm, minikube, k3d and kind are recognized but never managed; agent.kubeconfig connects to them.",
    examples: &[
        "sudo pipeops-agent k3s adopt --dry-run",
        "sudo pipeops-agent k3s adopt --undo",
    ],
    exit: "0 adopted, or --dry-run found nothing against it, 1 cancelled, or --dry-run found a problem, 2 the command could not run.",
    run: Some(adopt),
    ..Command::BARE
};

fn adopt(args: &Args, output: &mut Output) -> Result<Exit> {
    let keeper = keeper(args, "k3s adopt")?;
    if args.has("undo") {
        if args.has(DRY_RUN.long) {
            report::plan(&keeper.k3s_unadopt_plan()?, args, output);
            return Ok(Exit::Fine);
        }
        let done = keeper.k3s_unadopt(&changes::who())?;
        print_outcome(&done, args, output);
        let is_undone = done.outcome == "undone";
        return Ok(if is_undone { Exit::Fine } else { Exit::Problem });
    }
    let ignored = args.all("ignore");
    let plan = keeper.k3s_adopt_plan(&ignored, &program()?)?;
    if args.has(DRY_RUN.long) {
        report::plan(&plan, args, output);
        let is_fine = plan.refused.is_empty();
        return Ok(if is_fine { Exit::Fine } else { Exit::Problem });
    }
    // JSON has one answer only: the outcome.
    if !args.has(JSON.long) {
        report::plan(&plan, args, output);
    }
    if plan.refused.is_empty() && !ask::is_permitted(args, "Adopt it?")? {
        return Ok(print_declined("Nothing was changed.", args, output));
    }
    let done = keeper.k3s_adopt(&ignored, &program()?, &changes::who())?;
    Ok(print_outcome(&done, args, output))
}
