//! Facts that only root can read, under the names that the doctor has for them: a closed list,
//! whatever the agent would like to see.
//!
//! A name is a path (the text of that file), a path with a slash at its end (the names in that
//! folder), or a word and a path: `stat` (octal mode, user, group, bytes, time of the last change),
//! `dates` (the first and the last moment of a certificate, in milliseconds), `elf` (the processor
//! that a program is built for). No key, token or password leaves this module: of what may hold
//! one, only what is known to hold none.

use std::os::unix::fs::MetadataExt;

use litemap::LiteMap;

use super::system::System;
use crate::{
    core::{facts::Fact, order::OrderExt as _},
    host::{
        doctor,
        exec::{self, Limits},
    },
};

const KERNEL_LOG: &str = "/dev/kmsg";
/// Files that are for root alone: their owner, mode and length, what is in a folder, until when a
/// certificate is good.
const NAMES: [&str; 27] = [
    KERNEL_LOG,
    "stat /etc/rancher/k3s/config.yaml",
    "stat /etc/rancher/k3s/k3s.yaml",
    "stat /etc/rancher/k3s/registries.yaml",
    "stat /etc/rancher/node/password",
    "stat /etc/systemd/system/k3s.service.env",
    "stat /var/lib/rancher/k3s/server/token",
    "stat /var/lib/rancher/k3s/server/agent-token",
    "stat /var/lib/rancher/k3s/server/db/state.db",
    "stat /var/lib/rancher/k3s/server/db/state.db-wal",
    "stat /var/lib/rancher/k3s/server/tls/*.crt",
    "stat /var/lib/rancher/k3s/agent/*.crt",
    "stat /var/lib/rancher/k3s/agent/etc/resolv.conf",
    "stat /var/lib/rancher/k3s/agent/containerd/containerd.log",
    "stat /var/lib/rancher/k3s/agent/images/.cache.json",
    "stat /var/log/k3s.log",
    "/etc/rancher/k3s/",
    "/etc/rancher/k3s/config.yaml.d/",
    "/var/lib/rancher/k3s/",
    "/var/lib/rancher/k3s/server/",
    "/var/lib/rancher/k3s/server/db/etcd/",
    "/var/lib/rancher/k3s/agent/",
    "/var/lib/rancher/k3s/agent/images/",
    "dates /var/lib/rancher/k3s/server/tls/*.crt",
    "dates /var/lib/rancher/k3s/server/tls/etcd/*.crt",
    "dates /var/lib/rancher/k3s/agent/*.crt",
    "elf /proc/1/exe",
];
/// Keys of k3s' configuration whose values are no secrets.
const OPEN_KEYS: [&str; 30] = [
    "advertise-address",
    "bind-address",
    "cluster-cidr",
    "cluster-dns",
    "cluster-domain",
    "cluster-init",
    "data-dir",
    "default-local-storage-path",
    "disable",
    "disable-network-policy",
    "flannel-backend",
    "flannel-external-ip",
    "flannel-iface",
    "https-listen-port",
    "kube-proxy-arg",
    "kubelet-arg",
    "node-external-ip",
    "node-ip",
    "node-name",
    "prefer-bundled-bin",
    "private-registry",
    "protect-kernel-defaults",
    "resolv-conf",
    "secrets-encryption",
    "selinux",
    "server",
    "service-cidr",
    "snapshotter",
    "tls-san",
    "write-kubeconfig-mode",
];
/// Facts of a kind that a pattern stands for.
const FACTS_MAX: usize = 400;
/// All of an answer must fit into a line of the socket, with what JSON adds.
const NAMES_BYTES_MAX: usize = 4096;

/// Facts by name; `None` where the file is missing.
type FactTexts = LiteMap<String, Option<String>>;

pub(super) fn facts(system: &System) -> FactTexts {
    let mut found = FactTexts::new();
    doctor::read(system.root(), NAMES, |name, fact| {
        match fact {
            Fact::Text(text) => {
                // The kernel's log is as short as it may be, and its end is what counts.
                let kept = if name == KERNEL_LOG { text } else { cut(&text) };
                found.insert(name, Some(kept));
            }
            Fact::Missing => drop(found.insert(name, None)),
            Fact::Forbidden | Fact::Failed(_) => {}
        }
        found.len() < FACTS_MAX
    });
    k3s_settings(system, &mut found);
    iptables(system, &mut found);
    smart(system, &mut found);
    if let Some(count) = inotify_instances(system) {
        found.insert(
            "inotify instances of root".to_owned(),
            Some(count.to_string()),
        );
    }
    found
}

/// A list of names that is longer than anybody needs.
fn cut(text: &str) -> String {
    text.chars().take(NAMES_BYTES_MAX).collect()
}

/// The lines of k3s' configuration that hold no secret.
fn k3s_settings(system: &System, found: &mut FactTexts) {
    for path in system.settings_files().into_iter().take(16) {
        if let Some(text) = system.text(&path) {
            let open = open_lines(&text);
            found.insert(path, Some(open.chars().take(4096).collect()));
        } else if !system.is_there(&path) {
            found.insert(path, None);
        }
    }
}

/// Lines of known keys, and what belongs to them below.
fn open_lines(yaml: &str) -> String {
    let mut is_open = false;
    let mut lines = Vec::new();
    for line in yaml.lines() {
        let is_below = line.starts_with([' ', '\t', '-']);
        if !is_below {
            let key = line.split(':').next().unwrap_or_default();
            let key = key.trim_matches(['"', '\'']).trim_end_matches('+');
            is_open = OPEN_KEYS.contains(&key);
        }
        if is_open && !is_suspicious(line) {
            lines.push(line);
        }
    }
    lines.join("\n")
}

/// A value that speaks of a secret, where none is expected.
fn is_suspicious(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    let speaks = ["token", "password", "secret"]
        .iter()
        .any(|word| line.contains(word));
    speaks && !line.starts_with("secrets-encryption:")
}

/// Output of a program that lists all rules.
fn output_of(system: &System, argv: &[&str]) -> Option<String> {
    let within = Limits {
        output_bytes_max: 8 << 20,
        ..Limits::SHORT
    };
    let ended = exec::run(system.root(), argv, within).ok()?;
    ended.success().then_some(ended.stdout)
}

/// Rules of both backends.
fn all_rules(system: &System) -> [Option<String>; 2] {
    let save = |program| output_of(system, &[program]);
    [
        save("iptables-nft-save").or_else(|| save("iptables-save")),
        save("iptables-legacy-save"),
    ]
}

/// Counts rules that are there already; `None`: there is no iptables.
pub(super) fn all_duplicates(system: &System) -> Option<u64> {
    let rules = all_rules(system);
    let counts = rules.iter().flatten().map(|text| duplicates(text));
    u64::try_from(counts.reduce(|one, other| one + other)?).ok()
}

/// Counts the rules, and the duplicates among them.
fn iptables(system: &System, found: &mut FactTexts) {
    let mut tell = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            found.insert(format!("iptables {name}"), Some(value));
        }
    };
    tell(
        "version",
        output_of(system, &["iptables", "--version"]).map(|text| text.trim().to_owned()),
    );
    let [nft, legacy] = all_rules(system);
    let rules = |text: &String| text.lines().filter(|line| line.starts_with("-A")).count();
    tell(
        "rules nft",
        nft.as_ref().map(rules).map(|count| count.to_string()),
    );
    tell(
        "rules legacy",
        legacy.as_ref().map(rules).map(|count| count.to_string()),
    );
    let both = [nft, legacy];
    if both.iter().any(Option::is_some) {
        let count: usize = both.iter().flatten().map(|text| duplicates(text)).sum();
        tell("duplicates", Some(count.to_string()));
    }
}

/// Rules that are there already, in the same chain of the same table.
fn duplicates(rules: &str) -> usize {
    let mut counts: LiteMap<(&str, &str), usize> = LiteMap::new();
    let mut table = "";
    for line in rules.lines() {
        if line.starts_with('*') {
            table = line;
        } else if line.starts_with("-A") {
            *counts.entry((table, line)).or_default() += 1;
        }
    }
    counts.values().map(|count| count - 1).sum()
}

/// Reads the self-assessment of disks, if smartctl is installed.
fn smart(system: &System, found: &mut FactTexts) {
    let entries = std::fs::read_dir(system.path("/sys/block"));
    let mut disks: Vec<_> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("sd") || name.starts_with("nvme"))
        .collect();
    disks.order();
    for disk in disks.into_iter().take(8) {
        let device = format!("/dev/{disk}");
        let Ok(ended) = exec::run(system.root(), &["smartctl", "-H", &device], Limits::SHORT)
        else {
            return;
        };
        // Bit 3 of the code: the disk says that it fails. Bits 0 and 1: it could not be asked.
        let state = match ended.code {
            Some(code) if code & 3 != 0 => continue,
            Some(code) if code & 8 != 0 => "failing",
            Some(_) => "healthy",
            None => continue,
        };
        found.insert(format!("smart {disk}"), Some(state.to_owned()));
    }
}

/// Instances of inotify of root's processes: the limit counts all of a user's together.
fn inotify_instances(system: &System) -> Option<usize> {
    let processes = std::fs::read_dir(system.path("/proc")).ok()?;
    let mut count = 0;
    for process in processes.flatten() {
        let is_process = process
            .file_name()
            .to_str()
            .is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        let is_root = process.metadata().is_ok_and(|metadata| metadata.uid() == 0);
        if !is_process || !is_root {
            continue;
        }
        // It may end while it is looked at.
        let files = std::fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten();
        let targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        count += targets
            .filter(|target| target.to_str() == Some("anon_inode:inotify"))
            .count();
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_of_k3s_is_told_and_what_belongs_to_an_open_key_is() {
        let yaml = "token: K10secret\ncluster-cidr: 10.52.0.0/16\nagent-token: secret\ndisable:\n  - traefik\n\
            - servicelb\netcd-s3-secret-key: secret\ndatastore-endpoint: mysql://root:secret@db\n\"node-ip\": 10.0.0.1\n\
            kubelet-arg+:\n- eviction-hard=memory.available<100Mi\n  secret: secret\ntoken:\n  secret\n";
        let lines = open_lines(yaml);
        assert!(
            lines.contains("10.52.0.0/16") && lines.contains("traefik"),
            "{lines}"
        );
        assert!(
            lines.contains("servicelb") && lines.contains("10.0.0.1"),
            "{lines}"
        );
        assert!(lines.contains("eviction-hard"), "{lines}");
        assert!(!lines.contains("secret"), "{lines}");
    }

    #[test]
    fn a_rule_is_one_too_many_where_it_stands_twice_in_one_table() {
        let rules = "*nat\n-A KUBE -j X\n*filter\n-A KUBE -j X\n-A KUBE -j X\n-A KUBE -j X\n-A KUBE -j Y\nCOMMIT\n";
        assert_eq!(duplicates(rules), 2);
        assert_eq!(duplicates(""), 0);
    }
}
