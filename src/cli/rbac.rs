//! `rbac`: prints the manifest of the agent's rights. It connects to nothing and reads no settings,
//! so that the fix of a condition works when it is pasted.

use serde_json::json;

use super::{
    args::Args,
    output::Output,
    table::{Command, JSON, Opt, Takes},
};
use crate::{
    core::{
        namespace::OwnNamespace,
        policy::{Expose, PodSecurity},
    },
    error::{Error, Exit, Result},
    kube::rbac::{GrantScope, Manifest},
};

/// `rbac`.
pub(super) static COMMAND: Command = Command {
    name: "rbac",
    about: "Print the RBAC manifest of the agent, for kubectl apply",
    options: &[
        Opt::flag(
            "full",
            "For access.level = \"full\": the control plane may do everything in the cluster",
        ),
        Opt::flag(
            "node-stats",
            "Print only the role that queries kubelets for usage data; it grants broad access: read its comment first",
        )
        .against("full"),
        Opt::value(
            "namespace",
            Takes::Text,
            "NAME",
            "Where the accounts are; the same as agent.namespace",
        )
        .default(OwnNamespace::USUAL),
        Opt::value(
            "pod-security",
            Takes::Word(&["privileged", "baseline", "restricted"]),
            "LEVEL",
            "What a managed namespace must enforce; the same as access.pod_security",
        )
        .default(PodSecurity::Baseline.as_str()),
        Opt::value(
            "expose",
            Takes::Text,
            "TYPES",
            "Service types that may open ports of the nodes, such as NodePort,LoadBalancer; the same as access.expose",
        ),
        JSON,
    ],
    notes: "It needs neither agent nor cluster and reads no settings. Comments in the manifest explain each part.",
    examples: &[
        "pipeops-agent rbac | kubectl apply -f -",
        "pipeops-agent rbac --full | kubectl apply -f -",
        "pipeops-agent rbac | kubectl delete -f -",
    ],
    run: Some(rbac),
    ..Command::BARE
};

fn rbac(args: &Args, output: &mut Output) -> Result<Exit> {
    let reach = if args.has("full") {
        GrantScope::Full
    } else {
        GrantScope::Managed
    };
    let word = args.text("pod-security").unwrap_or_default();
    let pod_security = PodSecurity::from_word(word).unwrap_or_default();
    let name = args.text("namespace").unwrap_or_default();
    let namespace = OwnNamespace::parse(name).map_err(|why| {
        Error::new(format!("the accounts cannot be in the namespace {name:?}"))
            .why(why)
            .fix("--namespace pipeops-system")
    })?;
    let types = args.text("expose").unwrap_or_default();
    let named = types.split(',').map(str::trim);
    let named: Vec<&str> = named.filter(|word| !word.is_empty()).collect();
    let expose = Expose::from_words(&named).ok_or_else(|| {
        Error::new(format!("no manifest for Services of {types:?}"))
            .why("the types are NodePort and LoadBalancer")
            .fix("--expose NodePort,LoadBalancer")
    })?;
    let manifest = Manifest::new(namespace, pod_security, reach).exposing(expose);
    let (text, command) = if args.has("node-stats") {
        (manifest.node_stats(), manifest.node_stats_command())
    } else {
        (manifest.text(), manifest.command())
    };
    if args.has("json") {
        output.json(&json!({ "manifest": text, "apply": command }));
    } else {
        output.line(text.trim_end());
    }
    Ok(Exit::Fine)
}
