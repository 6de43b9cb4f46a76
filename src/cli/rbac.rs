//! `rbac`: what the agent needs in the cluster. It asks nobody and reads no settings: the fix of a condition is a line that works as it
//! stands.

use clap::Args;
use serde_json::json;

use super::{Form, output::Output};
use crate::{
    core::{namespace::OwnNamespace, policy::PodSecurity},
    error::{Error, Exit},
    kube::rbac::{Manifest, Reach},
};

/// What may be asked of the manifest.
#[derive(Args, Debug)]
pub(super) struct Asked {
    /// For access.level = "full": the control plane may do everything in the cluster
    #[arg(long)]
    full: bool,
    /// Only what lets the agent ask kubelets what nodes and Pods use: a powerful right, read its text first
    #[arg(long, conflicts_with = "full")]
    node_stats: bool,
    /// Where the accounts are; the same as agent.namespace
    #[arg(long, value_name = "NAME", default_value = OwnNamespace::USUAL)]
    namespace: String,
    /// What a managed namespace must enforce; the same as access.pod_security
    #[arg(long, value_name = "LEVEL", default_value = PodSecurity::Baseline.word(), value_parser = ["privileged", "baseline", "restricted"])]
    pod_security: String,
}

/// Prints the manifest.
pub(super) fn rbac(asked: &Asked, form: Form, output: &mut Output) -> Exit {
    let reach = if asked.full {
        Reach::Full
    } else {
        Reach::Managed
    };
    let pod_security = PodSecurity::from_word(&asked.pod_security).unwrap_or_default();
    let namespace = match OwnNamespace::parse(&asked.namespace) {
        Ok(namespace) => namespace,
        Err(why) => {
            let what = format!("no accounts in the namespace {:?}", asked.namespace);
            output.error(&Error::new(what).why(why).fix("--namespace pipeops-system"));
            return Exit::CouldNotRun;
        }
    };
    let manifest = Manifest::new(namespace, pod_security, reach);
    let (text, command) = if asked.node_stats {
        (manifest.node_stats(), manifest.node_stats_command())
    } else {
        (manifest.text(), manifest.command())
    };
    if form.json {
        output.json(&json!({ "manifest": text, "apply": command }));
    } else {
        output.line(text.trim_end());
    }
    Exit::Fine
}
