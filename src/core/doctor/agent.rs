//! Checks of the agent: settings, state directory, service, control plane.

use super::{Advice, Check, Fact, Facts, Judgement, Problem, k3s::answered, ok};
use crate::core::{
    environment::Environment,
    health::Severity::{Critical, Warning},
};

const STATE: &str = "write {state}";
/// The fact of what the dashboard shows to other machines.
pub const CERTIFICATE: &str = "certificate of the dashboard";

/// The fact of who can read the files with tokens and passwords.
pub const SECRETS: &str = "files with secrets";

/// The fact of an update that was taken back: its version, time and reason.
pub const UPDATE_TAKEN_BACK: &str = "update that was taken back";

/// The table.
pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "agent.settings",
        title: "Agent configuration",
        severity: Critical,
        after: &[],
        reads: &[],
        why: "the agent does not start with an invalid configuration",
        judge: settings,
    },
    Check {
        id: "agent.state",
        title: "State directory of the agent",
        severity: Critical,
        after: &["disk.read-only", "disk.space", "disk.inodes"],
        reads: &[STATE, "/etc/passwd"],
        why: "it holds the agent's identity and the data that is not delivered yet",
        judge: state,
    },
    Check {
        id: "agent.secrets",
        title: "Permissions of files with secrets",
        severity: Warning,
        after: &["agent.settings"],
        reads: &[],
        why: "anyone who can read the token can impersonate this agent; members of the agent's group may view the agent, nothing else",
        judge: secrets,
    },
    Check {
        id: "agent.service",
        title: "Service of the agent",
        severity: Warning,
        after: &["agent.settings", "agent.state"],
        reads: &[
            "stat /etc/systemd/system/pipeops-agent.service",
            "stat /usr/lib/systemd/system/pipeops-agent.service",
            "/sys/fs/cgroup/system.slice/",
        ],
        why: "this machine is not monitored, and its control plane cannot reach it",
        judge: service,
    },
    Check {
        id: "agent.update",
        title: "Updates of the agent",
        severity: Warning,
        after: &[],
        reads: &[],
        why: "this machine stays on the previous version, without the fixes of the newer one",
        judge: update,
    },
    Check {
        id: "agent.name",
        title: "DNS name of the control plane",
        severity: Critical,
        after: &[
            "agent.settings",
            "network.route",
            "dns.servers",
            "dns.answers",
        ],
        reads: &[],
        why: "the control plane's address cannot be resolved",
        judge: name,
    },
    Check {
        id: "agent.control-plane",
        title: "Connection to the control plane",
        severity: Critical,
        after: &[
            "agent.settings",
            "network.carrier",
            "network.address",
            "network.route",
            "network.mtu",
        ],
        reads: &[],
        why: "applications keep running; nothing can be deployed or viewed remotely until the connection is back",
        judge: control_plane,
    },
    Check {
        id: "agent.tls",
        title: "Certificate of the control plane",
        severity: Critical,
        after: &["clock.wrong", "network.mtu", "agent.control-plane"],
        reads: &[],
        why: "the agent only connects to servers with a valid certificate",
        judge: tls,
    },
    Check {
        id: "dashboard.certificate",
        title: "Certificate of the dashboard",
        severity: Warning,
        after: &["clock.wrong", "agent.settings"],
        reads: &[],
        why: "browsers reject a certificate that has expired or was issued for another name; without a certificate the agent serves the dashboard on this machine only",
        judge: certificate,
    },
];

const AS_TOLD: Advice = Advice {
    fix: "{about}",
    commands: &[],
};

fn settings(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "{about}",
        commands: &["pipeops-agent config check"],
    };
    // A machine that was never set up.
    const NEW: Advice = Advice {
        fix: "set up this machine: the command asks for the token of this cluster and starts the agent",
        commands: &["sudo pipeops-agent up"],
    };
    let is_new = match facts.found.get("settings") {
        Some(Fact::Failed(why)) => why.contains("\nsudo pipeops-agent up"),
        Some(_) | None => false,
    };
    let advice = if is_new { &NEW } else { &ADVICE };
    answered(facts, "settings", "the configuration was not read", advice)
}

fn state(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "give the agent's user {about} and everything in it, then restart the agent",
        commands: &[
            "sudo chown -R pipeops-agent:pipeops-agent {about}",
            "{restart pipeops-agent}",
        ],
    };
    const ATTRIBUTES: Advice = Advice {
        fix: "find out why {about} cannot be written: check its attributes (lsattr), mount and owner",
        commands: &["sudo lsattr -d {about}", "findmnt -T {about}"],
    };
    let mut found = facts.found.iter();
    let Some((path, fact)) =
        found.find_map(|(name, fact)| Some((name.strip_prefix("write ")?, fact)))
    else {
        return Judgement::NotHere("none is configured");
    };
    let owner = |user: &str| {
        let users = facts.text("/etc/passwd").unwrap_or_default().lines();
        let mut ids =
            users.filter_map(|line| line.strip_prefix("pipeops-agent:")?.split(':').nth(1));
        ids.next().is_none_or(|id| id == user)
    };
    match fact {
        Fact::Missing => ok(format!("{path} will be created at the first start")),
        Fact::Forbidden => Judgement::Unknown(super::NEEDS_ROOT.to_owned()),
        Fact::Failed(why) => Problem::new(format!("{path}: {why}"), &ATTRIBUTES)
            .about(path)
            .into(),
        Fact::Text(user) if owner(user) => ok(format!("{path} is writable")),
        Fact::Text(user) => Problem::new(
            format!("{path} belongs to user {user}, not to pipeops-agent"),
            &ADVICE,
        )
        .about(path)
        .into(),
    }
}

fn secrets(facts: &Facts, _: &Environment) -> Judgement {
    answered(facts, SECRETS, "none is configured", &AS_TOLD)
}

fn service(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "find out why it stopped, then start it",
        commands: &["{log pipeops-agent}", "{enable pipeops-agent}"],
    };
    let is_installed = ["/etc", "/usr/lib"].iter().any(|folder| {
        facts.has(&format!(
            "stat {folder}/systemd/system/pipeops-agent.service"
        ))
    });
    if !is_installed {
        return Judgement::NotHere("it is not installed as a systemd service");
    }
    if facts.is_running("pipeops-agent") {
        return ok("it is running");
    }
    Problem::new("it is installed but not running", &ADVICE).into()
}

fn update(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "report the failure; with automatic updates on, the next release is tried automatically",
        commands: &["{log pipeops-agent}", "sudo pipeops-agent update --check"],
    };
    facts
        .text(UPDATE_TAKEN_BACK)
        .map_or(Judgement::NotHere("no update was rolled back"), |seen| {
            Problem::new(seen, &ADVICE).into()
        })
}

fn name(facts: &Facts, _: &Environment) -> Judgement {
    asked(facts, "control plane dns")
}

fn control_plane(facts: &Facts, _: &Environment) -> Judgement {
    asked(facts, "control plane tcp")
}

fn tls(facts: &Facts, _: &Environment) -> Judgement {
    asked(facts, "control plane tls")
}

fn certificate(facts: &Facts, _: &Environment) -> Judgement {
    const NOT_OPEN: &str = "the dashboard only listens on this machine";
    answered(facts, CERTIFICATE, NOT_OPEN, &AS_TOLD)
}

/// Result of the connection, if one was tried.
fn asked(facts: &Facts, name: &str) -> Judgement {
    if !facts.found.contains_key(name)
        && matches!(facts.found.get("settings"), Some(Fact::Failed(_)))
    {
        return super::unknown("the configuration is invalid");
    }
    answered(facts, name, "not tested", &AS_TOLD)
}
