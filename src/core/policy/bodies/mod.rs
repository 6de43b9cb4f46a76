//! Bodies: what an object that is written into a managed namespace may not ask for, whatever
//! namespace it lies in.
//!
//! A namespace bounds who may be changed, not what the change reaches: a Service takes ports of the
//! host, a Secret becomes a token that never ends, a Pod mounts a disk of the network. The
//! admission policy `pipeops-cp-lock` holds the same list in the API server, where the result of a
//! patch is seen; here the body of a create, an update or a server-side apply is read before it is
//! sent.

mod content;
mod kinds;
mod rules;

pub use content::{BODY_BYTES_MAX, Content};
pub use kinds::{BodyKind, Write, Written, written};
pub use rules::Fault;

use super::{CONFIG, Rules};
use crate::core::{
    proxy::{Call, Refusal},
    value::text,
};

/// Services that open ports outside the cluster's network, where the owner lets the control plane
/// make them (`access.expose`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Expose {
    /// Services of type `NodePort`.
    pub node_port: bool,
    /// Services of type `LoadBalancer`.
    pub load_balancer: bool,
}

impl Expose {
    /// The types that can be named.
    pub const TYPES: &[&str] = &["NodePort", "LoadBalancer"];

    /// The types in this order; `None` for any other word.
    pub fn from_words(words: &[&str]) -> Option<Self> {
        let mut expose = Self::default();
        for word in words {
            match *word {
                "NodePort" => expose.node_port = true,
                "LoadBalancer" => expose.load_balancer = true,
                _ => return None,
            }
        }
        Some(expose)
    }

    /// The types that are allowed.
    pub fn words(self) -> Vec<&'static str> {
        [
            (self.node_port, "NodePort"),
            (self.load_balancer, "LoadBalancer"),
        ]
        .into_iter()
        .filter_map(|(is_allowed, word)| is_allowed.then_some(word))
        .collect()
    }

    /// Returns whether a Service of this type is allowed.
    fn allows(self, kind: &str) -> bool {
        match kind {
            "NodePort" => self.node_port,
            "LoadBalancer" => self.load_balancer,
            // A type that is not known yet may open anything.
            _ => matches!(kind, "" | "ClusterIP" | "ExternalName"),
        }
    }
}

/// A body that was read and judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The bytes to send. A manifest in YAML is sent in JSON, so that the API server reads what was
    /// judged.
    pub body: Vec<u8>,
    /// The type of these bytes.
    pub content_type: &'static str,
    /// Fields that are not allowed.
    pub faults: Vec<Fault>,
}

/// Reads a body and judges it.
///
/// # Errors
/// It cannot be read in one way only, is too large, or is not what its path says.
pub fn judge(
    rules: &Rules,
    call: &Call,
    written: &Written,
    content: Content,
    body: Vec<u8>,
) -> Result<Judged, Refusal> {
    let read = content::read(written.subject, content, body).map_err(|why| {
        Refusal(format!(
            "refused by the agent: {}: the body cannot be judged: {why}; fix: send it as kubectl does, in JSON",
            asked(call)
        ))
    })?;
    Ok(Judged {
        faults: rules::faults(rules.expose, written.subject, &read.object),
        body: read.body,
        content_type: content.as_str(),
    })
}

/// Judges an object as the API server has it, in the form of the body that it is compared with.
///
/// # Errors
/// It cannot be read.
pub fn judge_existing(
    rules: &Rules,
    subject: BodyKind,
    content: Content,
    body: Vec<u8>,
) -> Result<Vec<Fault>, String> {
    let read = content::read(subject, content.existing(), body)?;
    Ok(rules::faults(rules.expose, subject, &read.object))
}

/// Refuses what is wrong with a body, except where the object that it changes had it already.
///
/// # Errors
/// The first fault that is new.
pub fn settle_body(call: &Call, faults: &[Fault], had: &[Fault]) -> Result<(), Refusal> {
    let Some(fault) = faults.iter().find(|fault| !had.contains(fault)) else {
        return Ok(());
    };
    Err(Refusal(format!(
        "refused by the agent: {}: {}; {}",
        asked(call),
        fault.sentence(),
        fault.fix(),
    )))
}

/// Refuses a patch, whose result only the API server sees, where that does not hold the same list.
pub fn unlocked(call: &Call, why: &str, mend: &str) -> Refusal {
    Refusal(format!(
        "refused by the agent: {}: the result of a patch is seen by the API server only, and {why}; fix: {mend}",
        asked(call)
    ))
}

fn asked(call: &Call) -> String {
    kinds::attributes(call).unwrap_or_else(|| call.line())
}

/// Names a setting for a refusal.
fn setting(value: &str) -> String {
    format!(
        "set access.expose = [\"{value}\"] in {CONFIG} and apply what `pipeops-agent rbac --expose {value}` prints"
    )
}

#[cfg(test)]
mod tests;
