//! `k3s kubeconfig`: prints a read-only kubeconfig, or the administrator's.

use serde_json::json;

use super::{DRY_RUN, keeper, report};
use crate::{
    cli::{
        args::Args,
        output::Output,
        table::{Command, JSON, Opt, Takes},
    },
    core::{
        k3s::KUBECONFIG,
        url::{Security, Url},
    },
    error::{Error, Exit, Result},
    keeper::k3s::View,
    wire::keeper::K3sPlan,
};

/// `k3s kubeconfig`.
pub(super) static COMMAND: Command = Command {
    name: "kubeconfig",
    about: "Print a read-only kubeconfig that expires, or the administrator's",
    options: &[
        Opt::value(
            "hours",
            Takes::Text,
            "HOURS",
            "Lifetime of the token, 1 to 8760 hours",
        )
        .default("24"),
        Opt::value(
            "server",
            Takes::Text,
            "URL",
            "Address of the API in it, for another machine: https://192.0.2.10, with a port where it is not that of k3s",
        ),
        Opt::flag(
            "admin",
            "Print the administrator's, which grants everything and does not expire",
        ),
        DRY_RUN,
    ],
    notes: "It grants Kubernetes' role `view` in all namespaces: no Secrets, and no changes.\n\
            The account is kube-system/pipeops-viewer. Deleting it revokes all of these kubeconfigs:\n\
            sudo /usr/local/bin/k3s kubectl -n kube-system delete serviceaccount pipeops-viewer",
    examples: &[
        "sudo pipeops-agent k3s kubeconfig > view.yaml",
        "sudo pipeops-agent k3s kubeconfig --hours 720 --server https://192.0.2.10 > view.yaml",
    ],
    exit: "0 printed, 2 there is none.",
    run: Some(kubeconfig),
    ..Command::BARE
};

fn kubeconfig(args: &Args, output: &mut Output) -> Result<Exit> {
    let keeper = keeper(args, "k3s kubeconfig")?;
    let text = if args.has("admin") {
        let other = ["hours", "server"];
        if let Some(other) = other.into_iter().find(|name| args.has(name)) {
            return Err(
                Error::new(format!("--{other} does not go with --admin")).fix("leave one out")
            );
        }
        let text = keeper.k3s_admin()?;
        if args.has(DRY_RUN.long) {
            let plan = K3sPlan {
                does: format!("print {KUBECONFIG}"),
                undo: "none is needed: nothing is made".to_owned(),
                ..K3sPlan::default()
            };
            report::plan(&plan, args, output);
            return Ok(Exit::Fine);
        }
        text
    } else if args.has(DRY_RUN.long) {
        report::plan(&keeper.k3s_view_plan(&wanted(args)?)?, args, output);
        return Ok(Exit::Fine);
    } else {
        keeper.k3s_view(&wanted(args)?)?
    };
    if args.has(JSON.long) {
        output.json(&json!({ "kubeconfig": text }));
    } else {
        output.line(text.trim_end());
    }
    Ok(Exit::Fine)
}

fn wanted(args: &Args) -> Result<View> {
    let hours = args.read("hours", |text| {
        let hours = text.parse::<u32>().ok();
        hours
            .filter(|hours| (1..=8760).contains(hours))
            .ok_or_else(|| "it is a number of hours, 1 to 8760".to_owned())
    })?;
    let server = args.read("server", |text| {
        let url = Url::parse(text).ok();
        let is_usable = url.is_some_and(|url| url.security == Security::Tls);
        is_usable
            .then(|| text.to_owned())
            .ok_or_else(|| "it looks like https://192.0.2.10:6443".to_owned())
    })?;
    Ok(View {
        hours: hours.unwrap_or(24),
        server,
    })
}
