//! The table of all keys. `config show`, the documented example file, the text of `--help`, the names in the environment and the
//! suggestions for misspelt keys all come from here.

use super::value::Kind;
use crate::core::policy::Expose;

/// One setting.
#[derive(Debug, Eq, PartialEq)]
pub struct Key {
    /// Section and name with a dot between them: `agent.state_dir`. A section may lie in another: `telemetry.remote_write.url`.
    pub path: &'static str,
    /// Kind of value.
    pub kind: Kind,
    /// The default as it would be written in the environment. `None` has a meaning of its own, which `doc` tells.
    pub default: Option<&'static str>,
    /// Meaning: one sentence or two.
    pub doc: &'static str,
    /// More names in the environment, from the strongest to the weakest; the regular name is stronger than all of them.
    pub older_names: &'static [&'static str],
    /// Visibility of the value.
    pub secrecy: Secrecy,
}

/// Visibility of a value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Secrecy {
    /// Everybody.
    Open,
    /// Nobody: it is never printed and not accepted on the command line, where every user of the machine could read it.
    Hidden,
    /// An address in which a password may stand before the `@`.
    Password,
}

impl Key {
    /// The section.
    pub fn section(&self) -> &'static str {
        self.path
            .rsplit_once('.')
            .map_or("", |(section, _)| section)
    }

    /// The name within the section.
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(_, name)| name)
    }

    /// The regular name in the environment: `PIPEOPS_AGENT_STATE_DIR`; keys of `[pipeops]` have the prefix once.
    pub fn variable(&self) -> String {
        let path = match self.section() {
            "pipeops" => self.path.to_owned(),
            _ => format!("pipeops.{}", self.path),
        };
        path.replace('.', "_").to_ascii_uppercase()
    }

    /// All names in the environment, the strongest first.
    fn variables(&self) -> String {
        let mut names = vec![self.variable()];
        names.extend(self.older_names.iter().map(|name| (*name).to_owned()));
        names.join(", ")
    }
}

const PLAIN: Key = Key {
    path: "",
    kind: Kind::Text,
    default: None,
    doc: "",
    older_names: &[],
    secrecy: Secrecy::Open,
};

/// The sections in the order in which people read them, with a line on each.
pub const SECTIONS: &[(&str, &str)] = &[
    (
        "pipeops",
        "The control plane and how this cluster introduces itself to it.",
    ),
    ("agent", "The agent itself."),
    (
        "access",
        "What the control plane may do with the cluster. It cannot change this section.",
    ),
    ("telemetry", "What is measured and how long it is kept."),
    (
        "telemetry.remote_write",
        "A receiver of samples beside the control plane, by Prometheus' remote write: Prometheus, VictoriaMetrics, Mimir, Thanos or a service.",
    ),
    (
        "dashboard",
        "The socket that the command line speaks to, and the port for browsers and a Prometheus.",
    ),
    (
        "notify",
        "Somebody who is told when something begins to be wrong, and when it is over.",
    ),
    (
        "keeper",
        "The helper that works as root. It reads this section itself, from files that nobody else can change.",
    ),
    (
        "k3s",
        "The k3s that the agent looks after. No settings in this version.",
    ),
    (
        "apps",
        "Deployed applications. No settings in this version.",
    ),
    (
        "tunnels",
        "TCP and UDP tunnels. No settings in this version.",
    ),
    (
        "tls",
        "How the control plane proves who it is, and how the agent does.",
    ),
    ("log", "Log lines."),
];

macro_rules! keys {
    ($($name:ident = { $($field:ident: $value:expr),* $(,)? })*) => {
        $(pub(super) const $name: Key = Key { $($field: $value,)* ..PLAIN };)*
        /// Every key, in the order in which people read them.
        pub const KEYS: &[Key] = &[$($name),*];
    };
}

keys! {
    API_URL = {
        path: "pipeops.api_url",
        default: Some("https://api.pipeops.io"),
        doc: "Address of the control plane. https and wss are encrypted; http and ws are accepted for this machine only, unless allow_plaintext is true.",
    }
    TOKEN = {
        path: "pipeops.token",
        secrecy: Secrecy::Hidden,
        doc: "The token that the control plane gave for this cluster. Better in a file of its own: see token_file.",
    }
    TOKEN_FILE = {
        path: "pipeops.token_file",
        kind: Kind::Path,
        doc: "File that holds the token. It is read again when it changes, so a new token needs no restart.",
    }
    CLUSTER_NAME = {
        path: "pipeops.cluster_name",
        doc: "Name of this cluster at the control plane. Without it: the name of the host.",
    }
    AGENT_ID = {
        path: "pipeops.agent_id",
        doc: "Id of this agent. Without it: a random one is made at the first start and kept.",
    }
    ALLOW_PLAINTEXT = {
        path: "pipeops.allow_plaintext",
        kind: Kind::Flag,
        default: Some("false"),
        doc: "Accept an unencrypted control plane on another machine. Whoever can read the network then reads the token.",
    }
    GATEWAYS = {
        path: "pipeops.gateways",
        doc: "Gateways in private networks that the control plane may name: wss://gateway.lan:8443, with commas between them. Without it a gateway is encrypted and has a public address, or is like api_url in both.",
    }
    PROXY = {
        path: "pipeops.proxy",
        secrecy: Secrecy::Password,
        older_names: &["HTTPS_PROXY", "https_proxy"],
        doc: "HTTP proxy (CONNECT) on the way to the control plane and to a receiver of samples: http://[user:password@]host:port. Without it: a direct connection.",
    }
    NO_PROXY = {
        path: "pipeops.no_proxy",
        older_names: &["NO_PROXY", "no_proxy"],
        doc: "Hosts that are reached without the proxy: names, .domains, addresses and networks with commas between them; * is all.",
    }
    SERVER_IP = {
        path: "pipeops.server_ip",
        kind: Kind::Ip,
        doc: "Address that is reported as this server's. Without it: the local address of the link. No third party is asked.",
    }
    REGION = {
        path: "pipeops.region",
        default: Some("unknown-country"),
        doc: "Region that is reported to the control plane.",
    }
    CLOUD_PROVIDER = {
        path: "pipeops.cloud_provider",
        default: Some("agent"),
        doc: "Provider that is reported to the control plane.",
    }
    STATE_DIR = {
        path: "agent.state_dir",
        kind: Kind::Path,
        default: Some("/var/lib/pipeops-agent"),
        older_names: &["PIPEOPS_STATE_DIR"],
        doc: "Where the agent keeps its identity, its journal and large answers on their way.",
    }
    KUBECONFIG = {
        path: "agent.kubeconfig",
        kind: Kind::Path,
        older_names: &["KUBECONFIG"],
        doc: "How the cluster is reached. Without it: /etc/rancher/k3s/k3s.yaml, then the service account of the pod; where neither exists the agent runs without a cluster until one comes.",
    }
    LABELS = {
        path: "agent.labels",
        kind: Kind::Labels,
        doc: "Labels that are reported to the control plane. In the environment: site=berlin,rack=4.",
    }
    HEARTBEAT_CONNECTED = {
        path: "agent.heartbeat_interval_connected",
        kind: Kind::Time { min_s: 5, max_s: 600 },
        default: Some("30s"),
        doc: "Time between heartbeats while the link is ready.",
    }
    HEARTBEAT_RECONNECTING = {
        path: "agent.heartbeat_interval_reconnecting",
        kind: Kind::Time { min_s: 5, max_s: 600 },
        default: Some("60s"),
        doc: "Has no effect: heartbeats are sent on a ready link only. Accepted so that older files load.",
    }
    HEARTBEAT_DISCONNECTED = {
        path: "agent.heartbeat_interval_disconnected",
        kind: Kind::Time { min_s: 5, max_s: 600 },
        default: Some("15s"),
        doc: "Has no effect: heartbeats are sent on a ready link only. Accepted so that older files load.",
    }
    NAMESPACE = {
        path: "agent.namespace",
        default: Some("pipeops-system"),
        doc: "Namespace of what the agent has in the cluster: its accounts and its Lease. `pipeops-agent rbac` makes it.",
    }
    GO_STATE_NAMESPACE = {
        path: "agent.go_state_namespace",
        default: Some("pipeops-system"),
        older_names: &["PIPEOPS_STATE_NAMESPACE", "PIPEOPS_POD_NAMESPACE"],
        doc: "Namespace in which the Go agent keeps its ConfigMap pipeops-agent-state, from which an existing installation is taken over.",
    }
    LEVEL = {
        path: "access.level",
        kind: Kind::Choice(&["full", "managed", "read-only", "off"]),
        default: Some("managed"),
        doc: "What the control plane may reach in the cluster. managed: reads without the Secrets of others, and changes in namespaces labelled pipeops.io/managed=true; read-only: reads without Secrets; full: whatever the cluster permits; off: nothing. `pipeops-agent access` can make it stricter at any time.",
    }
    POD_SECURITY = {
        path: "access.pod_security",
        kind: Kind::Choice(&["privileged", "baseline", "restricted"]),
        default: Some("baseline"),
        doc: "The Pod Security Standard that a managed namespace must enforce at least. privileged: none is asked for.",
    }
    EXPOSE = {
        path: "access.expose",
        kind: Kind::Words(Expose::TYPES),
        doc: "Types of Services that the control plane may make in managed namespaces although they open ports of the nodes. Without it none of them. Apply what `pipeops-agent rbac --expose` prints as well.",
    }
    SHARE_TOKEN = {
        path: "access.share_token",
        kind: Kind::Flag,
        default: Some("false"),
        doc: "Give a control plane that insists on it a short-lived token of a narrow account.",
    }
    FOREIGN_TOKENS = {
        path: "access.foreign_tokens",
        kind: Kind::Flag,
        default: Some("false"),
        doc: "Accept requests that bring an Authorization of their own.",
    }
    TELEMETRY_INTERVAL = {
        path: "telemetry.interval",
        kind: Kind::Time { min_s: 5, max_s: 300 },
        default: Some("15s"),
        doc: "Time between two samples of the host.",
    }
    TELEMETRY_DISK_MAX = {
        path: "telemetry.disk_max",
        kind: Kind::Bytes { min: 8_000_000 },
        default: Some("256MB"),
        doc: "Disk space that samples may take; the oldest and finest are thinned out first.",
    }
    REMOTE_WRITE_URL = {
        path: "telemetry.remote_write.url",
        doc: "Where all samples are sent, the past after an outage too: https://host[:port]/path, with the path that the receiver documents. http is accepted for this machine only, unless allow_plaintext is true. Without it: samples stay here and at the control plane.",
    }
    REMOTE_WRITE_BEARER_TOKEN_FILE = {
        path: "telemetry.remote_write.bearer_token_file",
        kind: Kind::Path,
        doc: "File with the token that the receiver wants. It is read again when it changes.",
    }
    REMOTE_WRITE_USERNAME = {
        path: "telemetry.remote_write.username",
        doc: "User name for a receiver that wants one; needs password_file.",
    }
    REMOTE_WRITE_PASSWORD_FILE = {
        path: "telemetry.remote_write.password_file",
        kind: Kind::Path,
        doc: "File with the password of username. It is read again when it changes.",
    }
    REMOTE_WRITE_LABELS = {
        path: "telemetry.remote_write.labels",
        kind: Kind::Labels,
        doc: "Labels of every series there, beside instance (the name of the host) and agent_id, which they may replace; an empty text takes one away. In the environment: site=berlin,rack=4.",
    }
    REMOTE_WRITE_ALLOW_PLAINTEXT = {
        path: "telemetry.remote_write.allow_plaintext",
        kind: Kind::Flag,
        default: Some("false"),
        doc: "Accept an unencrypted receiver on another machine. Whoever can read the network then reads the samples and what the receiver is shown for a password.",
    }
    SOCKET = {
        path: "dashboard.socket",
        kind: Kind::Path,
        doc: "Unix socket that the command line asks. Without it: /run/pipeops-agent/agent.sock as root, in the runtime folder of the user otherwise, in agent.state_dir where that is set.",
    }
    LISTEN = {
        path: "dashboard.listen",
        kind: Kind::Address,
        default: Some("127.0.0.1:7480"),
        doc: "Address where a browser finds the dashboard and a Prometheus /metrics; off: nowhere but on the socket. At an address that other machines reach (0.0.0.0:7480 is all) it is encrypted, and shows nothing without a login: pipeops-agent dashboard expose.",
    }
    DASHBOARD_NAMES = {
        path: "dashboard.names",
        doc: "Names under which other machines ask for the dashboard, with commas between them: box.example. Its host name, that with .local, and the names of dashboard.cert_file are known.",
    }
    DASHBOARD_CERT_FILE = {
        path: "dashboard.cert_file",
        kind: Kind::Path,
        doc: "PEM file of the certificate, with its chain, that the dashboard shows where other machines reach it; needs key_file, and is read again when it changes. Without it: one that it makes for itself, with the fingerprint in pipeops-agent status.",
    }
    DASHBOARD_KEY_FILE = {
        path: "dashboard.key_file",
        kind: Kind::Path,
        doc: "PEM file of the private key that belongs to dashboard.cert_file.",
    }
    ANONYMOUS = {
        path: "dashboard.anonymous",
        kind: Kind::Choice(&["view", "none"]),
        default: Some("view"),
        doc: "What somebody sees at dashboard.listen who has not logged in. view: how the machine is, no logs, and nothing of what runs on it; none: nothing but /metrics and whether the agent works.",
    }
    NOTIFY_URL = {
        path: "notify.url",
        secrecy: Secrecy::Hidden,
        doc: "Where conditions are told as they begin and end: a webhook, a topic of ntfy, an incoming webhook of Slack or Mattermost. Whoever knows it may post there, so it is never shown. Without it: nobody is told.",
    }
    NOTIFY_KIND = {
        path: "notify.kind",
        kind: Kind::Choice(&["webhook", "ntfy", "slack"]),
        default: Some("webhook"),
        doc: "What notify.url is: webhook gets JSON, ntfy text with a title and a priority, slack JSON with a text, as Mattermost and others take it too.",
    }
    NOTIFY_TOKEN_FILE = {
        path: "notify.token_file",
        kind: Kind::Path,
        doc: "File with the token that notify.url wants (Authorization: Bearer). It is read again when it changes.",
    }
    NOTIFY_MINIMUM = {
        path: "notify.minimum",
        kind: Kind::Choice(&["note", "warning", "critical"]),
        default: Some("warning"),
        doc: "What matters less than this is not told.",
    }
    NOTIFY_QUIET = {
        path: "notify.quiet",
        doc: "Part of the day, by the machine's local time, in which only what is critical is told: 22:00-07:00. The rest is told when it is over, if it still holds then.",
    }
    NOTIFY_ALLOW_PLAINTEXT = {
        path: "notify.allow_plaintext",
        kind: Kind::Flag,
        default: Some("false"),
        doc: "Accept an unencrypted notify.url on another machine.",
    }
    KEEPER_SOCKET = {
        path: "keeper.socket",
        kind: Kind::Path,
        default: Some("/run/pipeops-keeper/keeper.sock"),
        doc: "Unix socket on which the root helper listens.",
    }
    KEEPER_STATE_DIR = {
        path: "keeper.state_dir",
        kind: Kind::Path,
        default: Some("/var/lib/pipeops-keeper"),
        doc: "Where the root helper keeps its journal and what was there before a fix; for root alone.",
    }
    KEEPER_USER = {
        path: "keeper.user",
        default: Some("pipeops-agent"),
        doc: "The user that the agent runs as: the root helper serves this one and root, and its group gets the socket.",
    }
    ROOTS = {
        path: "tls.roots",
        kind: Kind::Choice(&["built-in", "system"]),
        default: Some("built-in"),
        doc: "Which authorities may vouch for the control plane: the list of Mozilla inside this program, or the list of the system (380 KB more memory).",
    }
    CA_FILE = {
        path: "tls.ca_file",
        kind: Kind::Path,
        doc: "PEM file of more authorities that may vouch for the control plane.",
    }
    CERT_FILE = {
        path: "tls.cert_file",
        kind: Kind::Path,
        doc: "PEM file of the certificate that the agent shows; needs key_file.",
    }
    KEY_FILE = {
        path: "tls.key_file",
        kind: Kind::Path,
        doc: "PEM file of the private key that belongs to cert_file.",
    }
    INSECURE_SKIP_VERIFY = {
        path: "tls.insecure_skip_verify",
        kind: Kind::Flag,
        default: Some("false"),
        doc: "Known from the Go agent. Only false is accepted: name the authority of the control plane in ca_file instead.",
    }
    LOG_LEVEL = {
        path: "log.level",
        kind: Kind::Choice(&["error", "warn", "info", "debug", "trace"]),
        default: Some("info"),
        doc: "The least important lines that are written.",
    }
    LOG_FORMAT = {
        path: "log.format",
        kind: Kind::Choice(&["auto", "plain", "journal", "json"]),
        default: Some("auto"),
        doc: "plain has a time before each line, journal a priority for systemd, json is one object a line; auto is journal under systemd and plain elsewhere.",
    }
}

/// Returns whether a variable of this name sets a key.
pub fn is_variable(name: &str) -> bool {
    KEYS.iter()
        .any(|key| key.variable() == name || key.older_names.contains(&name))
}

/// The key with this path.
pub fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// The word that was probably meant: at most a third of its letters differ.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Longer words are not typing errors, and the comparison is quadratic.
    if word.len() > 64 {
        return None;
    }
    known
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(1))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Letters that must be put in, taken out or replaced to make `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (line, left) in a.chars().enumerate() {
        let mut next = vec![line + 1];
        for ((right, above), pair) in b.iter().zip(row.iter().skip(1)).zip(&row) {
            let before = next.last().copied().unwrap_or_default();
            let replaced = pair + usize::from(left != *right);
            next.push(replaced.min(above + 1).min(before + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

/// The documented example file: every key with its default, commented out.
pub fn example_file() -> String {
    let mut lines = vec![
        "# Settings of pipeops-agent. Lines with a # are the defaults or examples.".to_owned(),
        "# Later wins: this file, config.d/*.toml beside it by name, the environment, the command line.".to_owned(),
    ];
    for (section, doc) in SECTIONS {
        lines.extend([String::new(), format!("# {doc}"), format!("[{section}]")]);
        for key in KEYS.iter().filter(|key| key.section() == *section) {
            lines.extend([
                String::new(),
                format!("# {}", key.doc),
                format!("# {}; {}", key.kind.accepts(), key.variables()),
                format!("#{} = {}", key.name(), example(key)),
            ]);
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

fn example(key: &Key) -> String {
    match (key.kind, key.default) {
        (Kind::Flag, Some(default)) => default.to_owned(),
        (_, Some(default)) => format!("{default:?}"),
        (Kind::Labels, None) => "{ site = \"berlin\" }".to_owned(),
        (Kind::Path, None) => format!("\"/etc/pipeops-agent/{}\"", key.name()),
        (Kind::Words(words), None) => format!("{words:?}"),
        (Kind::Ip, None) => "\"203.0.113.7\"".to_owned(),
        (_, None) => "\"…\"".to_owned(),
    }
}

/// The keys for people who look at `--help`: default, names in the environment, what it does.
pub fn help() -> String {
    let mut lines = vec![
        "Settings (in the file, by their name in the environment, or --set KEY=VALUE):".to_owned(),
    ];
    for key in KEYS {
        let default = key
            .default
            .map_or_else(String::new, |default| format!(" [{default}]"));
        lines.extend([
            format!("  {}{default}", key.path),
            format!("      {} ({})", key.variables(), key.kind.accepts()),
            format!("      {}", key.doc),
        ]);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::*;

    #[test]
    fn every_key_is_documented_and_its_default_is_valid() {
        for key in KEYS {
            assert!(
                SECTIONS
                    .iter()
                    .any(|(section, _)| *section == key.section()),
                "{}",
                key.path
            );
            assert!(
                key.doc.len() > 15 && key.doc.ends_with('.'),
                "{}: {}",
                key.path,
                key.doc
            );
            if let Some(default) = key.default {
                assert!(
                    key.kind.read_text(default, Path::new("/")).is_ok(),
                    "{}",
                    key.path
                );
            }
        }
    }

    #[test]
    fn no_two_keys_share_a_path_or_a_variable() {
        let mut seen = BTreeSet::new();
        for key in KEYS {
            assert!(seen.insert(key.path.to_owned()), "{}", key.path);
            assert!(seen.insert(key.variable()), "{}", key.variable());
            for name in key.older_names {
                assert!(seen.insert((*name).to_owned()), "{name}");
            }
        }
    }

    #[test]
    fn the_names_that_scripts_use_are_there() {
        let names: BTreeSet<String> = KEYS
            .iter()
            .flat_map(|key| {
                std::iter::once(key.variable())
                    .chain(key.older_names.iter().map(|name| (*name).to_owned()))
            })
            .collect();
        for name in [
            "PIPEOPS_API_URL",
            "PIPEOPS_TOKEN",
            "PIPEOPS_TOKEN_FILE",
            "PIPEOPS_CLUSTER_NAME",
            "PIPEOPS_AGENT_ID",
            "PIPEOPS_STATE_DIR",
            "PIPEOPS_ACCESS_LEVEL",
            "KUBECONFIG",
            "PIPEOPS_TELEMETRY_INTERVAL",
            "PIPEOPS_DASHBOARD_LISTEN",
        ] {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn a_typing_error_finds_the_right_word_and_nonsense_finds_none() {
        let known = || KEYS.iter().map(Key::path_of);
        assert_eq!(
            nearest("pipeops.contol_url", ["pipeops.control_url"].into_iter()),
            Some("pipeops.control_url")
        );
        assert_eq!(nearest("pipeops.tokn", known()), Some("pipeops.token"));
        assert_eq!(nearest("zzzzzzz", known()), None);
        assert_eq!(nearest(&"x".repeat(10_000), known()), None);
    }

    impl Key {
        fn path_of(&self) -> &'static str {
            self.path
        }
    }
}
