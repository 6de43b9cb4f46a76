//! `k3s connect`: the agent's own credential for the k3s of this machine.

use std::path::Path;

use nix::unistd::User;

use super::{
    super::{
        args::Args,
        changes, load,
        output::Output,
        table::{Command, Opt},
    },
    DRY_RUN, keeper, print_outcome, program, report,
};
use crate::{
    config::{DEFAULT_FILE, Loaded},
    core::{namespace::OwnNamespace, policy::PodSecurity},
    daemon::oneshot,
    error::{Error, Exit, Result},
    keeper::k3s::Connect,
    kube::rbac::{GrantScope, Manifest},
};

/// `k3s connect`.
pub(super) static COMMAND: Command = Command {
    name: "connect",
    about: "Create the agent's own credential for k3s, and renew it",
    options: &[
        DRY_RUN,
        Opt::flag(
            "renew",
            "Create the next credential, and change nothing else (used by its timer)",
        ),
    ],
    notes: "The credential is a token of the account pipeops-agent, valid for a week and kept in memory (/run/pipeops-k3s).\n\
            A timer renews it twice a day and after each boot. Only root can read the administrator's kubeconfig.\n\
            If the account is missing, the manifest of `pipeops-agent rbac` is applied first. `k3s install` does all of this.",
    examples: &[
        "sudo pipeops-agent k3s connect --dry-run",
        "sudo pipeops-agent k3s connect",
    ],
    exit: "0 the agent has a credential, 1 a step failed and was undone, 2 the command could not run.",
    run: Some(connect),
    ..Command::BARE
};

fn connect(args: &Args, output: &mut Output) -> Result<Exit> {
    let keeper = keeper(args, "k3s connect")?;
    let wanted = wanted(args)?;
    if args.has(DRY_RUN.long) {
        report::plan(&keeper.k3s_connect_plan(&wanted)?, args, output);
        return Ok(Exit::Fine);
    }
    if args.has("renew") {
        keeper.k3s_renew(&wanted)?;
        return Ok(Exit::Fine);
    }
    let done = keeper.k3s_connect(&wanted, &changes::who())?;
    Ok(print_outcome(&done, args, output))
}

fn wanted(args: &Args) -> Result<Connect> {
    let loaded = load(args);
    let user = user(&loaded).ok_or_else(|| {
        Error::new("cannot give the agent a credential for k3s")
            .why("there is no such user as keeper.user names")
            .fix("install the agent by its package or install.sh, which create the user")
    })?;
    let (namespace, manifest) = match loaded.settings() {
        Ok(settings) => oneshot::manifest(&settings),
        // Before `up` there are none.
        Err(_) if !Path::new(DEFAULT_FILE).exists() => {
            let namespace = OwnNamespace::default();
            let manifest = Manifest::new(
                namespace.clone(),
                PodSecurity::Baseline,
                GrantScope::Managed,
            );
            (namespace, manifest)
        }
        Err(mut problems) => return Err(problems.swap_remove(0)),
    };
    Ok(Connect {
        namespace: namespace.to_string(),
        manifest: manifest.text(),
        group: user.gid.as_raw(),
        program: program()?,
    })
}

/// The agent's user, if there is one.
pub(super) fn user(loaded: &Loaded) -> Option<User> {
    User::from_name(&loaded.keeper().user).ok().flatten()
}
