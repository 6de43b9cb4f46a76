//! k3s on this machine: where its files are, which version may follow which, and the plans of what
//! the keeper does to it.
//!
//! It reads and writes nothing; the keeper does.

pub mod adopt;
pub mod backup;
pub mod clock;
pub mod connect;
pub mod consumer;
pub mod copies;
pub mod data;
pub mod drain;
pub mod faults;
pub mod images;
pub mod index;
pub mod join;
pub mod leave;
pub mod pins;
pub mod plan;
pub mod proxy;
pub mod ready;
pub mod runtimes;
pub mod servers;
pub mod shutdown;
pub mod step;
pub mod texts;
pub mod viewer;
pub mod watch;
pub mod window;

use std::{cmp::Ordering, fmt, str::FromStr};

use serde_json::Value;

use super::{
    doctor::{CheckOutcome, CheckResult},
    yaml,
};

/// Default data directory of k3s.
pub const DATA_DIR: &str = "/var/lib/rancher/k3s";
/// Token of the server, beside k3s' settings: no setting holds it, so that no plan, journal or
/// bundle shows it.
pub const JOIN_TOKEN: &str = "/etc/rancher/k3s/join-token";
/// The program.
pub const BINARY: &str = "/usr/local/bin/k3s";
/// The user's own settings of k3s.
pub const CONFIG: &str = "/etc/rancher/k3s/config.yaml";
/// Our settings of k3s, beside the user's.
pub const DROP_IN: &str = "/etc/rancher/k3s/config.yaml.d/50-pipeops-agent.yaml";
/// The administrator's kubeconfig, as k3s writes it.
pub const KUBECONFIG: &str = "/etc/rancher/k3s/k3s.yaml";
/// Mirrors and credentials of registries.
pub const REGISTRIES: &str = "/etc/rancher/k3s/registries.yaml";
/// Ends all Pods and removes what they left in memory; works without this program.
pub const KILLALL: &str = "/usr/local/bin/k3s-killall.sh";
/// Names under which k3s is other programs.
pub const LINKS: [&str; 3] = ["kubectl", "crictl", "ctr"];

/// Part of a cluster that k3s runs on a machine.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Role {
    /// API server, datastore, and a node.
    #[default]
    Server,
    /// A node only.
    Worker,
}

impl Role {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Server, Self::Worker];

    /// Name of its service.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Server => "k3s",
            Self::Worker => "k3s-agent",
        }
    }

    /// Subcommand of k3s.
    pub const fn subcommand(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Worker => "agent",
        }
    }

    /// Path of its systemd unit.
    pub const fn unit_path(self) -> &'static str {
        match self {
            Self::Server => "/etc/systemd/system/k3s.service",
            Self::Worker => "/etc/systemd/system/k3s-agent.service",
        }
    }

    /// Path of its OpenRC init script.
    pub const fn init_script(self) -> &'static str {
        match self {
            Self::Server => "/etc/init.d/k3s",
            Self::Worker => "/etc/init.d/k3s-agent",
        }
    }

    /// Path of the script that removes k3s without this program.
    pub const fn uninstall_script(self) -> &'static str {
        match self {
            Self::Server => "/usr/local/bin/k3s-uninstall.sh",
            Self::Worker => "/usr/local/bin/k3s-agent-uninstall.sh",
        }
    }
}

/// Places that k3s fills by itself, besides its data directory.
pub const MADE: [&str; 14] = [
    "/etc/rancher/node",
    "/run/k3s",
    "/run/flannel",
    "/run/containerd",
    "/run/netns",
    "/usr/libexec/kubernetes",
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/log/pods",
    "/var/log/containers",
    "/var/log/k3s.log",
    "/var/log/k3s.log.1",
    "/var/log/k3s.log.2",
    "/etc/rancher/k3s/k3s.yaml",
];

/// Findings of the doctor with which k3s does not work, or harms the machine: an installation is
/// refused.
const REFUSED: [&str; 19] = [
    "cgroup.controllers",
    "cgroup.memory",
    "kernel.restart",
    "kernel.vxlan",
    "system.architecture",
    "system.wsl",
    "system.nas",
    "system.selinux",
    "disk.volatile",
    "disk.network-root",
    "disk.read-only",
    "disk.space",
    "clock.wrong",
    "network.route",
    "network.overlap",
    "network.other-kubernetes",
    "network.ports",
    WEB_PORTS,
    "network.cloud-setup",
];
/// Finding that a web server has the ports of k3s' ingress.
pub const WEB_PORTS: &str = "network.web-ports";
/// Parts of k3s without which nothing takes these ports over.
pub const INGRESS: [&str; 2] = ["traefik", "servicelb"];
/// Checks whose findings are warnings.
const WARNED: [&str; 10] = [
    "swap.card",
    "disk.card",
    "disk.wear",
    "memory.size",
    "kernel.modules",
    "clock.sync",
    "host.name",
    "limits.inotify",
    "network.firewalld",
    "network.ufw",
];

/// A version of k3s: `v1.34.4+k3s1`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Version {
    /// Major version of Kubernetes.
    pub major: u32,
    /// Minor version of Kubernetes.
    pub minor: u32,
    /// Patch of Kubernetes.
    pub patch: u32,
    /// Release of k3s on top of it.
    pub release: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            major,
            minor,
            patch,
            release,
        } = self;
        write!(f, "v{major}.{minor}.{patch}+k3s{release}")
    }
}

impl FromStr for Version {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (numbers, release) = text
            .strip_prefix('v')
            .and_then(|text| text.split_once("+k3s"))
            .ok_or(())?;
        let number = |text: &str| {
            let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            is_plain.then(|| text.parse().ok()).flatten().ok_or(())
        };
        let mut numbers = numbers.split('.');
        let mut next = || numbers.next().ok_or(()).and_then(number);
        let version = Self {
            major: next()?,
            minor: next()?,
            patch: next()?,
            release: number(release)?,
        };
        numbers.next().is_none().then_some(version).ok_or(())
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |version: &Self| (version.major, version.minor, version.patch, version.release);
        key(self).cmp(&key(other))
    }
}

/// The version in the answer to `k3s --version`: `k3s version v1.34.4+k3s1 (commit)`.
pub fn version_in(output: &str) -> Option<Version> {
    let mut words = output.split_ascii_whitespace();
    words.find_map(|word| word.parse().ok())
}

/// A doubt about a change of k3s: id, observation, fix.
pub type Doubt = (&'static str, String, String);

/// Step from one version to another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Change {
    /// No change.
    None,
    /// Within a minor version: the datastore stays readable by both.
    Patch,
    /// To the next minor version.
    Minor,
    /// Not supported; the reason.
    Refused(&'static str),
}

/// Returns what kind of a change it is.
pub fn change(from: Version, to: Version) -> Change {
    match (to.cmp(&from), to.minor.checked_sub(from.minor)) {
        (Ordering::Equal, _) => Change::None,
        _ if to.major != from.major => Change::Refused("it is another major version"),
        (Ordering::Less, _) => {
            Change::Refused("it is older, and k3s does not read the datastore of a newer version")
        }
        (_, Some(0)) => Change::Patch,
        (_, Some(1)) => Change::Minor,
        (_, _) => Change::Refused("it skips a minor version, which Kubernetes does not support"),
    }
}

/// The suffix of the files of a release for this processor (`uname -m`), and of its list of
/// checksums.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Names {
    /// The program.
    pub binary: &'static str,
    /// The list of checksums.
    pub checksums: &'static str,
    /// Archives of images, the best first.
    pub images: [&'static str; 3],
}

/// Names of the files of a release; `None` where there is none for this processor.
pub fn names(machine: &str) -> Option<Names> {
    Some(match machine {
        "x86_64" => Names {
            binary: "k3s",
            checksums: "sha256sum-amd64.txt",
            images: [
                "k3s-airgap-images-amd64.tar.zst",
                "k3s-airgap-images-amd64.tar.gz",
                "k3s-airgap-images-amd64.tar",
            ],
        },
        "aarch64" => Names {
            binary: "k3s-arm64",
            checksums: "sha256sum-arm64.txt",
            images: [
                "k3s-airgap-images-arm64.tar.zst",
                "k3s-airgap-images-arm64.tar.gz",
                "k3s-airgap-images-arm64.tar",
            ],
        },
        "armv7l" | "armv8l" => Names {
            binary: "k3s-armhf",
            checksums: "sha256sum-arm.txt",
            images: [
                "k3s-airgap-images-arm.tar.zst",
                "k3s-airgap-images-arm.tar.gz",
                "k3s-airgap-images-arm.tar",
            ],
        },
        _ => return None,
    })
}

/// Returns whether a program with this beginning runs on a machine (`uname -m`). What is no ELF
/// file tells by running.
pub fn is_for(machine: &str, head: &[u8]) -> bool {
    // ELF: magic, class (32 or 64 bit), and after 18 bytes the machine in little-endian order.
    let (Some(b"\x7fELF"), Some(class), Some(number)) =
        (head.get(..4), head.get(4), head.get(18..20))
    else {
        return true;
    };
    match machine {
        "x86_64" => (*class, number) == (2, &[62, 0]),
        "aarch64" => (*class, number) == (2, &[183, 0]),
        "armv7l" | "armv8l" => (*class, number) == (1, &[40, 0]),
        _ => true,
    }
}

/// The checksum of a file in a list as `sha256sum` writes it.
pub fn checksum(list: &str, name: &str) -> Option<String> {
    list.lines().find_map(|line| {
        let (sum, file) = line.split_once(char::is_whitespace)?;
        let file = file.trim_start().trim_start_matches('*');
        (file == name && is_sha256(sum)).then(|| sum.to_ascii_lowercase())
    })
}

/// Returns whether a text is a SHA-256 in hexadecimal.
pub fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A value of k3s' settings: of the files in the order in which k3s reads them, the last one that
/// has it, and what `key+` appends. A list has commas between its values, which k3s takes as well.
pub fn setting(files: &[String], key: &str) -> Option<String> {
    let mut found = String::new();
    for settings in files
        .iter()
        .filter_map(|text| yaml::parse_settings(text).ok())
    {
        if let Some(value) = settings.get(key) {
            found = yaml::words(value).join(",");
        }
        for more in settings
            .get(format!("{key}+"))
            .iter()
            .flat_map(|value| yaml::words(value))
        {
            if !found.is_empty() {
                found.push(',');
            }
            found.push_str(&more);
        }
    }
    (!found.is_empty()).then_some(found)
}

/// Returns whether a file of k3s' settings leaves the ingress out.
pub fn leaves_ingress_out(text: &str) -> bool {
    let settings = yaml::parse_settings(text).unwrap_or_default();
    let found = ["disable", "disable+"].map(|key| settings.get(key));
    let mut names = found.into_iter().flatten().flat_map(yaml::words);
    names.any(|name| INGRESS.contains(&name.as_str()))
}

/// Returns whether a switch of k3s' settings is on, by the last file that has it.
pub fn is_on(files: &[String], key: &str) -> bool {
    let found = files.iter().rev().find_map(|text| {
        let value = yaml::parse_settings(text).ok()?;
        let value = value.get(key)?;
        Some(value.as_bool() == Some(true) || value.as_str() == Some("true"))
    });
    found.unwrap_or(false)
}

/// Returns whether the datastore encrypts Secrets, by the settings that k3s wrote for its API
/// server: the first provider of Secrets encrypts. Without them there is none; `None`: they cannot
/// be read.
pub fn encrypts_secrets(settings: Option<&str>) -> Option<bool> {
    let Some(settings) = settings else {
        return Some(false);
    };
    let settings: Value = serde_json::from_slice(settings.as_bytes()).ok()?;
    let first = settings.pointer("/resources/0/providers/0")?.as_object()?;
    Some(!first.contains_key("identity"))
}

/// A name that Kubernetes takes for a node.
pub fn is_node_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_fine = |byte: u8| is_letter(byte) || byte == b'-' || byte == b'.';
    name.len() <= 63
        && name.bytes().all(is_fine)
        && name.bytes().next().is_some_and(is_letter)
        && name.bytes().last().is_some_and(is_letter)
}

/// Findings of the doctor, from the point of view of a k3s that is to be installed.
#[derive(Debug, Default)]
pub struct Findings<'a> {
    /// Blocking findings.
    pub refused: Vec<&'a CheckResult>,
    /// Warnings.
    pub warned: Vec<&'a CheckResult>,
}

/// Sorts findings of the doctor; those in `ignored` do not block.
pub fn findings<'a>(verdicts: &'a [CheckResult], ignored: &[String]) -> Findings<'a> {
    let mut findings = Findings::default();
    let problems = verdicts
        .iter()
        .filter(|verdict| verdict.outcome == CheckOutcome::Problem);
    for verdict in problems {
        let id = verdict.check.id;
        if REFUSED.contains(&id) && !ignored.iter().any(|name| name == id) {
            findings.refused.push(verdict);
        } else if REFUSED.contains(&id) || WARNED.contains(&id) {
            findings.warned.push(verdict);
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn a_version_is_read_in_one_form_only() {
        let text = "v1.34.4+k3s1";
        assert_eq!(version(text).to_string(), text);
        for wrong in [
            "",
            "1.34.4+k3s1",
            "v1.34.4",
            "v1.34+k3s1",
            "v1.34.4.1+k3s1",
            "v1.34.4+k3s",
            "v1.34.4+rke2r1",
            "v1.34.+4+k3s1",
            "v1.34.4+k3s1/../..",
            "v1.34.99999999999+k3s1",
        ] {
            assert_eq!(wrong.parse::<Version>(), Err(()), "{wrong}");
        }
        let said = "k3s version v1.34.4+k3s1 (c6017918)\ngo version go1.24.12\n";
        assert_eq!(version_in(said), Some(version(text)));
        assert_eq!(version_in("k3s: not found"), None);
    }

    #[test]
    fn the_ingress_is_left_out_by_the_setting_and_by_no_other_word() {
        for (text, wanted) in [
            ("disable: traefik\n", true),
            ("disable: \"metrics-server, traefik\"\n", true),
            ("disable+:\n- servicelb\n", true),
            ("# disable: traefik\n", false),
            ("node-label: site=traefik-hall\n", false),
            ("disable: metrics-server\n", false),
        ] {
            assert_eq!(leaves_ingress_out(text), wanted, "{text}");
        }
        let files = ["a: true\n", "a: false\nb: 'true'\n"].map(str::to_owned);
        assert_eq!(
            ["a", "b", "c"].map(|key| is_on(&files, key)),
            [false, true, false]
        );
    }

    #[test]
    fn secrets_are_encrypted_where_the_first_provider_does_it() {
        let of = |providers: &str| {
            let text = format!(
                r#"{{"resources":[{{"resources":["secrets"],"providers":[{providers}]}}]}}"#
            );
            encrypts_secrets(Some(&text))
        };
        let (key, none) = (r#"{"aescbc":{"keys":[]}}"#, r#"{"identity":{}}"#);
        assert_eq!(of(&format!("{key},{none}")), Some(true));
        assert_eq!(of(&format!("{none},{key}")), Some(false));
        assert_eq!(encrypts_secrets(None), Some(false));
        assert_eq!(of(""), None);
        assert_eq!(encrypts_secrets(Some("{")), None);
    }

    #[test]
    fn an_upgrade_takes_one_minor_version_at_a_time_and_never_goes_back() {
        let from = version("v1.34.4+k3s1");
        for (to, kind) in [
            ("v1.34.4+k3s1", Change::None),
            ("v1.34.4+k3s2", Change::Patch),
            ("v1.34.11+k3s1", Change::Patch),
            ("v1.35.0+k3s1", Change::Minor),
        ] {
            assert_eq!(change(from, version(to)), kind, "{to}");
        }
        for to in [
            "v1.36.0+k3s1",
            "v2.34.4+k3s1",
            "v1.34.3+k3s1",
            "v1.33.9+k3s1",
            "v1.34.4+k3s0",
        ] {
            assert!(
                matches!(change(from, version(to)), Change::Refused(_)),
                "{to}"
            );
        }
    }

    #[test]
    fn a_program_is_for_one_kind_of_processor() {
        let program = |class, machine| {
            let mut head = b"\x7fELF".to_vec();
            head.resize(20, 0);
            (head[4], head[18]) = (class, machine);
            head
        };
        let machines = ["x86_64", "aarch64", "armv7l"];
        let programs = [program(2, 62), program(2, 183), program(1, 40)];
        for (at, machine) in machines.into_iter().enumerate() {
            for (of, head) in programs.iter().enumerate() {
                assert_eq!(is_for(machine, head), at == of, "{machine}");
            }
            assert!(is_for(machine, b"#!/bin/sh\n"));
        }
    }

    #[test]
    fn a_checksum_belongs_to_the_whole_name() {
        let sum = "a".repeat(64);
        let list = format!("{sum}  k3s-arm64\n{}  k3s\nshort  other\n", "B".repeat(64));
        assert_eq!(checksum(&list, "k3s"), Some("b".repeat(64)));
        assert_eq!(checksum(&list, "k3s-arm64"), Some(sum));
        assert_eq!(checksum(&list, "3s"), None);
        assert_eq!(checksum(&list, "other"), None);
    }

    #[test]
    fn of_a_key_that_is_there_twice_the_last_counts() {
        let files = ["data-dir: /x\ndisable: traefik\nb: true\ndisable: servicelb\n".to_owned()];
        assert_eq!(setting(&files, "data-dir").as_deref(), Some("/x"));
        assert_eq!(setting(&files, "disable").as_deref(), Some("servicelb"));
        assert!(is_on(&files, "b") && leaves_ingress_out(&files[0]));
    }

    #[test]
    fn the_last_file_with_a_setting_counts() {
        let files = [
            "node-name: a\ndata-dir: /x\n".to_owned(),
            "node-name: \"b\"\n".to_owned(),
        ];
        assert_eq!(setting(&files, "node-name").as_deref(), Some("b"));
        assert_eq!(setting(&files, "data-dir").as_deref(), Some("/x"));
        assert_eq!(setting(&files, "token"), None);
        for text in [
            "node-ip: 192.0.2.7,2001:db8::7\n",
            "node-ip: [192.0.2.7, '2001:db8::7']\n",
            "node-ip:\n- 192.0.2.7\n- 2001:db8::7\n",
            "node-ip: 192.0.2.7\nnode-ip+: 2001:db8::7\n",
        ] {
            let found = setting(
                &["node-ip: 192.0.2.9\n".to_owned(), text.to_owned()],
                "node-ip",
            );
            assert_eq!(found.as_deref(), Some("192.0.2.7,2001:db8::7"), "{text}");
        }
    }

    #[test]
    fn a_node_is_named_as_kubernetes_wants_it() {
        for name in ["a", "pi-4", "pi.lan", "9"] {
            assert!(is_node_name(name), "{name}");
        }
        for name in [
            "",
            "Pi",
            "a_b",
            "-a",
            "a-",
            "a b",
            "a\nb: c",
            &"a".repeat(64),
        ] {
            assert!(!is_node_name(name), "{name}");
        }
    }
}
