//! Checks of DNS: the name servers of this machine and those of Pods.

#![expect(
    clippy::items_after_statements,
    reason = "an advice stands where it is given"
)]

use std::net::IpAddr;

use super::{Advice, Check, Fact, Facts, Judgement, Problem, ok, unread};
use crate::core::{
    environment::Environment,
    health::Severity::{Critical, Note, Warning},
};

const RESOLVER: &str = "/etc/resolv.conf";
/// Upstream servers of systemd-resolved.
const BEHIND_STUB: &str = "/run/systemd/resolve/resolv.conf";
const CONFIG: &str = "/etc/rancher/k3s/config.yaml";

/// The table.
pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "dns.servers",
        title: "DNS servers",
        severity: Critical,
        after: &[],
        reads: &[RESOLVER],
        why: "no name can be resolved: no control plane, no image pulls",
        judge: servers,
    },
    Check {
        id: "dns.answers",
        title: "DNS resolution",
        severity: Critical,
        after: &[
            "dns.servers",
            "network.carrier",
            "network.address",
            "network.route",
        ],
        reads: &[RESOLVER],
        why: "no name can be resolved: no control plane, no image pulls",
        judge: answers,
    },
    Check {
        id: "dns.too-many",
        title: "Number of DNS servers",
        severity: Note,
        after: &["dns.servers"],
        reads: &[RESOLVER, BEHIND_STUB],
        why: "Pods use the first three only, and Kubernetes logs a warning for each Pod",
        judge: too_many,
    },
    Check {
        id: "dns.pods",
        title: "DNS servers for Pods",
        severity: Warning,
        after: &["dns.servers"],
        reads: &[
            RESOLVER,
            BEHIND_STUB,
            "stat /usr/local/bin/k3s",
            CONFIG,
            "/etc/rancher/k3s/",
        ],
        why: "Pods cannot use a server on the loopback address, so k3s gives them 8.8.8.8: local names do not resolve, and without internet access no name does",
        judge: of_pods,
    },
    Check {
        id: "dns.search",
        title: "Search domain",
        severity: Warning,
        after: &["dns.answers"],
        reads: &[RESOLVER, BEHIND_STUB],
        why: "Pods try each name with this domain first: if it resolves any name, every name leads to the wrong host",
        judge: search,
    },
];

fn servers(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "add a DNS server to /etc/resolv.conf, preferably the router; if NetworkManager or systemd-resolved writes that file, add it in their configuration",
        commands: &["echo 'nameserver ADDRESS' | sudo tee -a /etc/resolv.conf"],
    };
    match facts.found.get(RESOLVER) {
        Some(Fact::Text(_)) => {}
        Some(Fact::Missing) => return Problem::new("there is no /etc/resolv.conf", &ADVICE).into(),
        Some(Fact::Forbidden | Fact::Failed(_)) | None => return unread(facts, RESOLVER),
    }
    let servers = facts.name_servers(RESOLVER);
    if servers.is_empty() {
        return Problem::new("/etc/resolv.conf names none", &ADVICE).into();
    }
    let servers: Vec<_> = servers.iter().map(IpAddr::to_string).collect();
    ok(servers.join(", "))
}

fn answers(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "check the router, or replace {about} with another server; the firewall must allow outgoing port 53",
        commands: &["getent hosts example.com", "ip route get {about}"],
    };
    let mut well = Vec::new();
    let mut silent = Vec::new();
    for server in facts.name_servers(RESOLVER) {
        match facts.found.get(&format!("dns {server}")) {
            Some(Fact::Text(_)) => well.push(server.to_string()),
            Some(Fact::Failed(why)) => silent.push((server, why.as_str())),
            Some(Fact::Missing | Fact::Forbidden) | None => {}
        }
    }
    let Some((server, why)) = silent.first() else {
        return if well.is_empty() {
            super::unknown("not tested")
        } else {
            ok(format!("{} answers", well.join(", ")))
        };
    };
    let problem = Problem::new(format!("{server}: {why}"), &ADVICE).about(server.to_string());
    // With one that answers, each look-up is late at worst.
    if well.is_empty() {
        problem.into()
    } else {
        problem.severity(Warning).into()
    }
}

/// The file that k3s gives to Pods.
fn for_pods(facts: &Facts) -> &'static str {
    let is_stub = facts.name_servers(RESOLVER).iter().all(IpAddr::is_loopback);
    if is_stub && !facts.name_servers(BEHIND_STUB).is_empty() {
        BEHIND_STUB
    } else {
        RESOLVER
    }
}

fn too_many(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "keep three of them in {about}, or write a file with three and set resolv-conf: in /etc/rancher/k3s/config.yaml to it",
        commands: &[],
    };
    let file = for_pods(facts);
    let count = facts.name_servers(file).len();
    if count > 3 {
        return Problem::new(format!("{count} in {file}"), &ADVICE)
            .about(file)
            .into();
    }
    ok(count.to_string())
}

fn of_pods(facts: &Facts, _: &Environment) -> Judgement {
    if !facts.has("stat /usr/local/bin/k3s") {
        return Judgement::NotHere("k3s is not installed");
    }
    if let Some(file) = facts.k3s_setting("resolv-conf") {
        return ok(format!("k3s reads them from {file}"));
    }
    let file = for_pods(facts);
    let usable = |address: &IpAddr| !address.is_loopback() && !address.is_unspecified();
    if facts.name_servers(file).iter().all(usable) {
        return ok(format!("k3s reads them from {file}"));
    }
    const ADVICE: Advice = Advice {
        fix: "write a file with the router's address, set resolv-conf: in /etc/rancher/k3s/config.yaml to it and restart k3s",
        commands: &[
            "echo 'nameserver ADDRESS' | sudo tee /etc/rancher/k3s/resolv.conf",
            "echo 'resolv-conf: /etc/rancher/k3s/resolv.conf' | sudo tee -a /etc/rancher/k3s/config.yaml",
            "{restart k3s}",
        ],
    };
    Problem::new(format!("{file} contains the loopback address"), &ADVICE).into()
}

fn search(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "write a file without the line \"search\", set resolv-conf: in /etc/rancher/k3s/config.yaml to it and restart k3s",
        commands: &[
            "grep -v ^search {about} | sudo tee /etc/rancher/k3s/resolv.conf",
            "echo 'resolv-conf: /etc/rancher/k3s/resolv.conf' | sudo tee -a /etc/rancher/k3s/config.yaml",
            "{restart k3s}",
        ],
    };
    let file = for_pods(facts);
    let mut domains = facts
        .resolver_words(file, "search")
        .filter(|domain| *domain != ".")
        .peekable();
    if domains.peek().is_none() {
        return ok("there is none");
    }
    for domain in domains {
        // The answer is there where a name was asked for that nobody can have.
        if facts.text(&format!("any name of {domain}")).is_some() {
            return Problem::new(format!("{domain} resolves any name"), &ADVICE)
                .about(file)
                .into();
        }
    }
    ok("it resolves only its own names")
}
