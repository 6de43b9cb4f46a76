//! Checks of other programs that change the network of Pods: firewalls and their rules, network
//! managers.

#![expect(
    clippy::items_after_statements,
    reason = "an advice stands where it is given"
)]

use super::{
    Advice, Check, Facts, Judgement, Problem,
    facts::version,
    network::{BINARY, CONFIG, CONFIG_FOLDER, NETWORKS, NO_K3S, UNITS},
    ok,
};
use crate::core::{
    environment::{Environment, Init},
    health::Severity::{Critical, Note, Warning},
    procfs::kernel::modules,
    repair::{recipe::network_manager, settled},
};

/// Duplicate rules that are too many. A few are there in any cluster: rules of ports that were
/// opened by hand.
pub const DUPLICATES_MAX: u64 = 50;

/// The table.
pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "network.manager",
        title: "NetworkManager",
        severity: Warning,
        after: &[],
        reads: &[
            UNITS,
            BINARY,
            settled::NETWORK_MANAGER[0],
            settled::NETWORK_MANAGER[1],
            settled::NETWORK_MANAGER[2],
            settled::NETWORK_MANAGER[3],
        ],
        why: "it takes over the interfaces of Pods, and the Pod network breaks after a restart",
        judge: manager,
    },
    Check {
        id: "network.cloud-setup",
        title: "nm-cloud-setup",
        severity: Critical,
        after: &[],
        reads: &[
            "/etc/systemd/system/multi-user.target.wants/",
            "/etc/systemd/system/timers.target.wants/",
        ],
        why: "its routes break the Pod network",
        judge: cloud_setup,
    },
    Check {
        id: "network.firewalld",
        title: "firewalld",
        severity: Critical,
        after: &[],
        reads: &[
            UNITS,
            BINARY,
            "/etc/firewalld/zones/trusted.xml",
            "/etc/firewalld/",
            CONFIG,
            CONFIG_FOLDER,
        ],
        why: "Pods cannot reach DNS or the API server",
        judge: firewalld,
    },
    Check {
        id: "network.ufw",
        title: "ufw",
        severity: Critical,
        after: &[],
        reads: &[
            "/etc/ufw/ufw.conf",
            BINARY,
            "/etc/ufw/user.rules",
            CONFIG,
            CONFIG_FOLDER,
        ],
        why: "Pods cannot reach DNS or the API server",
        judge: ufw,
    },
    Check {
        id: "network.iptables",
        title: "iptables version",
        severity: Warning,
        after: &[],
        reads: &["package iptables", CONFIG, CONFIG_FOLDER],
        why: "this version keeps adding the same rules, which slows the network down",
        judge: iptables,
    },
    Check {
        id: "network.duplicates",
        title: "Duplicate firewall rules",
        severity: Warning,
        after: &["network.iptables"],
        reads: &["iptables duplicates", BINARY],
        why: "thousands of duplicates slow down every packet",
        judge: duplicates,
    },
    Check {
        id: "network.backends",
        title: "Mixed firewall backends",
        severity: Warning,
        after: &["network.iptables"],
        reads: &["/proc/net/ip_tables_names", "/proc/modules"],
        why: "old and new rules are both active and contradict each other",
        judge: backends,
    },
];
fn manager(facts: &Facts, _: &Environment) -> Judgement {
    if !facts.is_running("NetworkManager") {
        return Judgement::NotHere("NetworkManager is not running");
    }
    let mut files = settled::NETWORK_MANAGER
        .iter()
        .flat_map(|name| facts.each(name));
    if files.any(|(_, text)| settled::spares_pods(text)) {
        return ok("it ignores Pod interfaces");
    }
    if !facts.has(BINARY) {
        return Judgement::NotHere(NO_K3S);
    }
    const ADVICE: Advice = Advice {
        fix: "configure it to ignore Pod interfaces, with a file in /etc/NetworkManager/conf.d",
        commands: &[],
    };
    Problem::new("it manages Pod interfaces", &ADVICE)
        .repaired_by(Some(network_manager(true)))
        .into()
}

fn cloud_setup(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "disable it and restart the machine",
        commands: &[
            "sudo systemctl disable nm-cloud-setup.service nm-cloud-setup.timer",
            "sudo reboot",
        ],
    };
    let wants = ["multi-user", "timers"];
    let is_on = wants.iter().any(|target| {
        facts
            .names(&format!("/etc/systemd/system/{target}.target.wants/"))
            .any(|name| name.starts_with("nm-cloud-setup."))
    });
    if is_on {
        Problem::new("it is enabled", &ADVICE).into()
    } else {
        ok("it is not enabled")
    }
}

/// The networks of Pods and services, as they are set.
fn networks(facts: &Facts) -> [String; 2] {
    NETWORKS.map(|(key, usual)| facts.k3s_setting(key).unwrap_or_else(|| usual.to_owned()))
}

fn firewalld(facts: &Facts, _: &Environment) -> Judgement {
    if !facts.is_running("firewalld") {
        return Judgement::NotHere("firewalld is not running");
    }
    if !facts.has(BINARY) {
        return Judgement::NotHere(NO_K3S);
    }
    const ZONE: &str = "/etc/firewalld/zones/trusted.xml";
    if facts.is_forbidden(ZONE) {
        return Judgement::Unknown(super::NEEDS_ROOT.to_owned());
    }
    let trusted = facts.text(ZONE).unwrap_or_default();
    if networks(facts)
        .iter()
        .all(|network| trusted.contains(network))
    {
        return ok("it trusts the Pod networks");
    }
    const ADVICE: Advice = Advice {
        fix: "add the Pod and service networks to the trusted zone, and open the API port for other nodes",
        commands: &[
            "sudo firewall-cmd --permanent --zone=trusted --add-source=10.42.0.0/16",
            "sudo firewall-cmd --permanent --zone=trusted --add-source=10.43.0.0/16",
            "sudo firewall-cmd --permanent --add-port=6443/tcp",
            "sudo firewall-cmd --reload",
        ],
    };
    const OWN: Advice = Advice {
        fix: "add the Pod and service networks ({about}) to the trusted zone, and open the API port for other nodes",
        commands: &[
            "for n in {about}; do sudo firewall-cmd --permanent --zone=trusted --add-source=$n; done",
            "sudo firewall-cmd --permanent --add-port=6443/tcp",
            "sudo firewall-cmd --reload",
        ],
    };
    firewall(
        facts,
        "firewalld does not trust the Pod networks",
        &ADVICE,
        &OWN,
    )
}

fn firewall(facts: &Facts, seen: &str, usual: &'static Advice, own: &'static Advice) -> Judgement {
    let networks = networks(facts);
    let advice = if networks == NETWORKS.map(|(_, network)| network) {
        usual
    } else {
        own
    };
    Problem::new(seen, advice).about(networks.join(" ")).into()
}

fn ufw(facts: &Facts, _: &Environment) -> Judgement {
    let is_on = facts
        .text("/etc/ufw/ufw.conf")
        .is_some_and(|text| text.lines().any(|line| line.trim() == "ENABLED=yes"));
    if !is_on {
        return Judgement::NotHere("ufw is not active");
    }
    if !facts.has(BINARY) {
        return Judgement::NotHere(NO_K3S);
    }
    if facts.is_forbidden("/etc/ufw/user.rules") {
        return Judgement::Unknown(super::NEEDS_ROOT.to_owned());
    }
    let rules = facts.text("/etc/ufw/user.rules").unwrap_or_default();
    if networks(facts)
        .iter()
        .all(|network| rules.contains(network))
    {
        return ok("it allows the Pod networks");
    }
    const ADVICE: Advice = Advice {
        fix: "allow the Pod and service networks, and open the API port for other nodes",
        commands: &[
            "sudo ufw allow from 10.42.0.0/16 to any",
            "sudo ufw allow from 10.43.0.0/16 to any",
            "sudo ufw allow 6443/tcp",
        ],
    };
    const OWN: Advice = Advice {
        fix: "allow the Pod and service networks ({about}), and open the API port for other nodes",
        commands: &[
            "for n in {about}; do sudo ufw allow from $n to any; done",
            "sudo ufw allow 6443/tcp",
        ],
    };
    firewall(facts, "ufw blocks the Pod networks", &ADVICE, &OWN)
}

fn iptables(facts: &Facts, environment: &Environment) -> Judgement {
    if facts.k3s_setting("prefer-bundled-bin").as_deref() == Some("true") {
        return ok("k3s uses its bundled version");
    }
    const ADVICE: Advice = Advice {
        fix: "make k3s use its bundled iptables, then restart the machine once to remove the duplicates",
        commands: &[
            "sudo mkdir -p /etc/rancher/k3s",
            "echo 'prefer-bundled-bin: true' | sudo tee -a /etc/rancher/k3s/config.yaml",
            "sudo reboot",
        ],
    };
    let Some(text) = facts.word("package iptables") else {
        return Judgement::NotHere("iptables is not installed, or not from a package");
    };
    // 1.8.0 to 1.8.4 everywhere; 1.8.10 as Alpine 3.19 built it.
    let third = text.split('.').nth(2).and_then(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u64>().ok()
    });
    let is_broken = version(text) == Some((1, 8))
        && third.is_some_and(|third| third <= 4 || third == 10 && environment.is("alpine"));
    if is_broken {
        Problem::new(text, &ADVICE).into()
    } else {
        ok(text)
    }
}

fn backends(facts: &Facts, environment: &Environment) -> Judgement {
    const NAMES: &str = "/proc/net/ip_tables_names";
    let Some(legacy) = facts.text(NAMES) else {
        return if facts.is_forbidden(NAMES) {
            Judgement::Unknown(super::NEEDS_ROOT.to_owned())
        } else {
            ok("no legacy rules")
        };
    };
    let mut modules = modules(facts.text("/proc/modules").unwrap_or_default());
    let has_new = modules.any(|module| module.name == "nf_tables" && module.is_used);
    if legacy.trim().is_empty() || !has_new {
        return ok("only one backend is used");
    }
    const DEBIAN: Advice = Advice {
        fix: "use the same backend for all programs, then restart the machine",
        commands: &[
            "sudo update-alternatives --set iptables /usr/sbin/iptables-nft",
            "sudo update-alternatives --set ip6tables /usr/sbin/ip6tables-nft",
            "sudo reboot",
        ],
    };
    const OTHER: Advice = Advice {
        fix: "find the program that still adds legacy rules (iptables-legacy-save lists them), then restart the machine",
        commands: &["sudo iptables-legacy-save"],
    };
    let advice = if environment.is("debian") && environment.init == Init::Systemd {
        &DEBIAN
    } else {
        &OTHER
    };
    Problem::new(
        format!(
            "legacy rules in {}, and nftables rules",
            legacy.trim().replace('\n', ", ")
        ),
        advice,
    )
    .severity(Note)
    .into()
}

fn duplicates(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "make k3s use its bundled iptables, then restart the machine once to remove them",
        commands: &[
            "echo 'prefer-bundled-bin: true' | sudo tee -a /etc/rancher/k3s/config.yaml",
            "sudo reboot",
        ],
    };
    match facts.number("iptables duplicates") {
        None if !facts.has(BINARY) => Judgement::NotHere(NO_K3S),
        None => super::unknown("only the root helper can count them (pipeops-agent keeper)"),
        Some(count) if count < DUPLICATES_MAX => ok(count.to_string()),
        Some(count) => Problem::new(count.to_string(), &ADVICE).into(),
    }
}
