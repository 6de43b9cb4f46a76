//! The table of all keys. `config show`, the documented example file, the text of `--help`, the
//! names in the environment and the suggestions for misspelt keys all come from here.

use super::value::ValueKind;
use crate::core::policy::Expose;

/// One setting.
#[derive(Debug, Eq, PartialEq)]
pub struct Key {
    /// Section and name with a dot between them: `agent.state_dir`. A section may lie in another:
    /// `telemetry.remote_write.url`.
    pub path: &'static str,
    /// Kind of value.
    pub kind: ValueKind,
    /// The default as it would be written in the environment. `None` has a meaning of its own,
    /// which `doc` tells.
    pub default: Option<&'static str>,
    /// Meaning: one sentence or two.
    pub doc: &'static str,
    /// More names in the environment, from the strongest to the weakest; the regular name is
    /// stronger than all of them.
    pub older_names: &'static [&'static str],
    /// Visibility of the value.
    pub secrecy: Secrecy,
}

/// Visibility of a value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Secrecy {
    /// Everybody.
    Open,
    /// Never printed, and not accepted on the command line, where every user of the machine could
    /// read it.
    Hidden,
    /// An address in which a password may stand before the `@`.
    Password,
}

impl Key {
    pub fn section(&self) -> &'static str {
        self.path
            .rsplit_once('.')
            .map_or("", |(section, _)| section)
    }

    /// The name within the section.
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(_, name)| name)
    }

    /// The regular name in the environment: `PIPEOPS_AGENT_STATE_DIR`; keys of `[pipeops]` have the
    /// prefix once.
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
    kind: ValueKind::Text,
    default: None,
    doc: "",
    older_names: &[],
    secrecy: Secrecy::Open,
};

/// The sections in the order in which people read them, with a line on each.
pub const SECTIONS: &[(&str, &str)] = &[
    (
        "pipeops",
        "The control plane, and this cluster's name and labels there.",
    ),
    ("agent", "The agent itself."),
    (
        "access",
        "What the control plane may do with the cluster. It cannot change this section.",
    ),
    ("telemetry", "Measurements and their retention."),
    (
        "telemetry.remote_write",
        "A receiver of samples in addition to the control plane, by Prometheus' remote write: Prometheus, VictoriaMetrics, Mimir, Thanos or a hosted service.",
    ),
    (
        "dashboard",
        "The socket of the command line, and the port for browsers and Prometheus.",
    ),
    ("notify", "Notifications when a condition begins and ends."),
    (
        "keeper",
        "The root helper. It reads this section itself, and only from files that no other user can change.",
    ),
    ("k3s", "The k3s that the agent looks after."),
    (
        "apps",
        "Deployed applications, and where they come from. The control plane cannot change this section.",
    ),
    (
        "tunnels",
        "TCP and UDP tunnels. No settings in this version.",
    ),
    (
        "update",
        "Updates of this program, where no package manager does them.",
    ),
    ("tls", "Trusted CA certificates and the client certificate."),
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
        doc: "Address of the control plane. https and wss are encrypted; http and ws are accepted for this machine only, unless allow_plaintext is true. \"off\": the agent works without a control plane.",
    }
    TOKEN = {
        path: "pipeops.token",
        secrecy: Secrecy::Hidden,
        doc: "Token from the control plane for this cluster. Prefer a separate file: see token_file.",
    }
    TOKEN_FILE = {
        path: "pipeops.token_file",
        kind: ValueKind::Path,
        doc: "File with the token. It is reloaded when it changes, so a new token needs no restart.",
    }
    CLUSTER_NAME = {
        path: "pipeops.cluster_name",
        doc: "Name of this cluster at the control plane. Default: the host name.",
    }
    AGENT_ID = {
        path: "pipeops.agent_id",
        doc: "Id of this agent. Default: a random one, generated at the first start and stored.",
    }
    ALLOW_PLAINTEXT = {
        path: "pipeops.allow_plaintext",
        kind: ValueKind::Flag,
        default: Some("false"),
        doc: "Accept an unencrypted control plane on another machine. Anyone who can read the network traffic can then read the token.",
    }
    GATEWAYS = {
        path: "pipeops.gateways",
        doc: "Gateways in private networks that the control plane may name: wss://gateway.lan:8443, with commas between them. Any other gateway must be encrypted and have a public address, or be like api_url in both.",
    }
    PROXY = {
        path: "pipeops.proxy",
        secrecy: Secrecy::Password,
        older_names: &["HTTPS_PROXY", "https_proxy"],
        doc: "HTTP proxy (CONNECT) for connections to the control plane and to a receiver of samples: http://[user:password@]host:port. Default: a direct connection.",
    }
    NO_PROXY = {
        path: "pipeops.no_proxy",
        older_names: &["NO_PROXY", "no_proxy"],
        doc: "Hosts to connect to without the proxy: names, .domains, addresses and networks with commas between them; * means all.",
    }
    SERVER_IP = {
        path: "pipeops.server_ip",
        kind: ValueKind::Ip,
        doc: "Address of this server that is reported to the control plane. Default: the local address of the link. No third party is asked.",
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
        kind: ValueKind::Path,
        default: Some("/var/lib/pipeops-agent"),
        older_names: &["PIPEOPS_STATE_DIR"],
        doc: "Directory for the identity, the databases and the temporary files of large responses. It has to belong to the agent's user: sudo install -d -m 700 -o pipeops-agent -g pipeops-agent DIRECTORY. systemd lets the agent write to the default alone; for another one: sudo systemctl edit pipeops-agent, with the lines [Service] and ReadWritePaths=DIRECTORY.",
    }
    KUBECONFIG = {
        path: "agent.kubeconfig",
        kind: ValueKind::Path,
        older_names: &["KUBECONFIG"],
        doc: "Kubeconfig of the cluster. Default: what `k3s connect` made, /etc/rancher/k3s/k3s.yaml, then the service account of the Pod; if neither exists, the agent runs without a cluster until one appears.",
    }
    LABELS = {
        path: "agent.labels",
        kind: ValueKind::Labels,
        doc: "Labels that are reported to the control plane. In the environment: site=berlin,rack=4.",
    }
    HEARTBEAT_CONNECTED = {
        path: "agent.heartbeat_interval_connected",
        kind: ValueKind::Time { min_s: 5, max_s: 600 },
        default: Some("30s"),
        doc: "Interval between heartbeats while the link is up.",
    }
    HEARTBEAT_RECONNECTING = {
        path: "agent.heartbeat_interval_reconnecting",
        kind: ValueKind::Time { min_s: 5, max_s: 600 },
        default: Some("60s"),
        doc: "Has no effect: heartbeats are only sent while the link is up. Accepted so that older files load.",
    }
    HEARTBEAT_DISCONNECTED = {
        path: "agent.heartbeat_interval_disconnected",
        kind: ValueKind::Time { min_s: 5, max_s: 600 },
        default: Some("15s"),
        doc: "Has no effect: heartbeats are only sent while the link is up. Accepted so that older files load.",
    }
    NAMESPACE = {
        path: "agent.namespace",
        default: Some("pipeops-system"),
        doc: "Namespace of the agent's objects in the cluster: its service accounts and its Lease. `pipeops-agent rbac` creates it.",
    }
    GO_STATE_NAMESPACE = {
        path: "agent.go_state_namespace",
        default: Some("pipeops-system"),
        older_names: &["PIPEOPS_STATE_NAMESPACE", "PIPEOPS_POD_NAMESPACE"],
        doc: "Namespace of the Go agent's ConfigMap pipeops-agent-state, from which an existing installation is taken over.",
    }
    LEVEL = {
        path: "access.level",
        kind: ValueKind::Choice(&["full", "managed", "read-only", "off"]),
        default: Some("managed"),
        doc: "What the control plane may do in the cluster. managed: read everything except Secrets, and change namespaces with the label pipeops.io/managed=true; read-only: read everything except Secrets; full: whatever the cluster permits; off: nothing. `pipeops-agent access` can make it stricter at any time.",
    }
    POD_SECURITY = {
        path: "access.pod_security",
        kind: ValueKind::Choice(&["privileged", "baseline", "restricted"]),
        default: Some("baseline"),
        doc: "Minimum Pod Security Standard that a managed namespace must enforce. privileged: none.",
    }
    EXPOSE = {
        path: "access.expose",
        kind: ValueKind::Words(Expose::TYPES),
        doc: "Types of Services that the control plane may create in managed namespaces although they open ports of the nodes. Default: none. Also apply the output of `pipeops-agent rbac --expose TYPES`.",
    }
    SHARE_TOKEN = {
        path: "access.share_token",
        kind: ValueKind::Flag,
        default: Some("false"),
        doc: "Give the control plane a short-lived token of an account with few rights, for control planes that require one.",
    }
    FOREIGN_TOKENS = {
        path: "access.foreign_tokens",
        kind: ValueKind::Flag,
        default: Some("false"),
        doc: "Accept requests with an Authorization header of their own.",
    }
    TELEMETRY_INTERVAL = {
        path: "telemetry.interval",
        kind: ValueKind::Time { min_s: 5, max_s: 300 },
        default: Some("15s"),
        doc: "Interval between samples of the host.",
    }
    TELEMETRY_DISK_MAX = {
        path: "telemetry.disk_max",
        kind: ValueKind::Bytes { min: 8_000_000 },
        default: Some("256MB"),
        doc: "Disk space for samples; the oldest of the finest resolution are deleted first.",
    }
    REMOTE_WRITE_URL = {
        path: "telemetry.remote_write.url",
        doc: "URL to which all samples are sent, including those of an outage: https://host[:port]/path, with the path that the receiver documents. http is accepted for this machine only, unless allow_plaintext is true. Default: samples stay on this machine and at the control plane.",
    }
    REMOTE_WRITE_BEARER_TOKEN_FILE = {
        path: "telemetry.remote_write.bearer_token_file",
        kind: ValueKind::Path,
        doc: "File with the token for the receiver. It is reloaded when it changes.",
    }
    REMOTE_WRITE_USERNAME = {
        path: "telemetry.remote_write.username",
        doc: "User name for the receiver; needs password_file.",
    }
    REMOTE_WRITE_PASSWORD_FILE = {
        path: "telemetry.remote_write.password_file",
        kind: ValueKind::Path,
        doc: "File with the password of username. It is reloaded when it changes.",
    }
    REMOTE_WRITE_LABELS = {
        path: "telemetry.remote_write.labels",
        kind: ValueKind::Labels,
        doc: "Labels of every series at the receiver, in addition to instance (the host name) and agent_id, which they may replace; an empty value removes one. In the environment: site=berlin,rack=4.",
    }
    REMOTE_WRITE_ALLOW_PLAINTEXT = {
        path: "telemetry.remote_write.allow_plaintext",
        kind: ValueKind::Flag,
        default: Some("false"),
        doc: "Accept an unencrypted receiver on another machine. Anyone who can read the network traffic can then read the samples and the password or token.",
    }
    SOCKET = {
        path: "dashboard.socket",
        kind: ValueKind::Path,
        doc: "Unix socket of the agent, which the command line connects to. Default: /run/pipeops-agent/agent.sock as root, otherwise in the user's runtime directory, or in agent.state_dir if that is set.",
    }
    LISTEN = {
        path: "dashboard.listen",
        kind: ValueKind::Address,
        default: Some("127.0.0.1:7480"),
        doc: "Address of the dashboard and of /metrics for Prometheus; off: on the socket only. On an address that other machines can reach (0.0.0.0:7480 means all addresses) it uses TLS and requires a login: see pipeops-agent dashboard expose.",
    }
    DASHBOARD_NAMES = {
        path: "dashboard.names",
        doc: "Additional names of the dashboard for other machines, with commas between them: box.example. The host name, with and without .local, and the names in dashboard.cert_file are always accepted.",
    }
    DASHBOARD_CERT_FILE = {
        path: "dashboard.cert_file",
        kind: ValueKind::Path,
        doc: "PEM file with the certificate of the dashboard for other machines, including its chain; needs key_file, and is reloaded when it changes. Default: a self-signed certificate, whose fingerprint pipeops-agent status shows.",
    }
    DASHBOARD_KEY_FILE = {
        path: "dashboard.key_file",
        kind: ValueKind::Path,
        doc: "PEM file with the private key of dashboard.cert_file.",
    }
    ANONYMOUS = {
        path: "dashboard.anonymous",
        kind: ValueKind::Choice(&["view", "none"]),
        default: Some("view"),
        doc: "What is shown at dashboard.listen without a login. view: the state of the machine, without logs and workloads; none: only /metrics and the health endpoints.",
    }
    NOTIFY_URL = {
        path: "notify.url",
        secrecy: Secrecy::Hidden,
        doc: "URL to notify when a condition begins or ends: a webhook, an ntfy topic, or an incoming webhook of Slack or Mattermost. Anyone who knows it can post there, so it is never shown. Default: no notifications.",
    }
    NOTIFY_KIND = {
        path: "notify.kind",
        kind: ValueKind::Choice(&["webhook", "ntfy", "slack"]),
        default: Some("webhook"),
        doc: "Kind of receiver at notify.url: webhook gets JSON, ntfy text with a title and a priority, slack JSON with a text, which Mattermost and others accept, too.",
    }
    NOTIFY_TOKEN_FILE = {
        path: "notify.token_file",
        kind: ValueKind::Path,
        doc: "File with the token for notify.url (Authorization: Bearer). It is reloaded when it changes.",
    }
    NOTIFY_MINIMUM = {
        path: "notify.minimum",
        kind: ValueKind::Choice(&["note", "warning", "critical"]),
        default: Some("warning"),
        doc: "Minimum severity of conditions that are reported.",
    }
    NOTIFY_QUIET = {
        path: "notify.quiet",
        doc: "Quiet hours in local time, such as 22:00-07:00: only critical conditions are reported immediately, others at the end of the quiet hours if they still hold.",
    }
    NOTIFY_ALLOW_PLAINTEXT = {
        path: "notify.allow_plaintext",
        kind: ValueKind::Flag,
        default: Some("false"),
        doc: "Accept an unencrypted notify.url on another machine.",
    }
    KEEPER_SOCKET = {
        path: "keeper.socket",
        kind: ValueKind::Path,
        default: Some("/run/pipeops-keeper/keeper.sock"),
        doc: "Unix socket on which the root helper listens.",
    }
    KEEPER_STATE_DIR = {
        path: "keeper.state_dir",
        kind: ValueKind::Path,
        default: Some("/var/lib/pipeops-keeper"),
        doc: "Directory for the root helper's journal and the previous content of changed files; only accessible to root. systemd lets the helper write to the default alone; for another one: sudo systemctl edit pipeops-keeper (and pipeops-agent-update, if it is there), with the lines [Service] and ReadWritePaths=DIRECTORY.",
    }
    KEEPER_USER = {
        path: "keeper.user",
        default: Some("pipeops-agent"),
        doc: "User that the agent runs as: the root helper serves this user and root, and the user's group owns the socket.",
    }
    KEEPER_ALLOW = {
        path: "keeper.allow",
        kind: ValueKind::Words(&["repair", "backup"]),
        default: Some("repair,backup"),
        doc: "What the root helper may do unattended: repair (fix known faults of k3s, apply fixes that the agent requests, pin images of apps), backup (back up k3s on schedule). An empty list allows neither.",
    }
    K3S_MIRROR = {
        path: "k3s.mirror",
        default: Some("https://github.com/k3s-io/k3s/releases/download"),
        doc: "Address of the releases of k3s, a folder for each version. A mirror needs no trust: programs are checked by their hash.",
    }
    K3S_INDEX = {
        path: "k3s.index",
        default: Some("https://releases.pipeops.io/k3s"),
        doc: "Address of the signed index of k3s (k3s-index and k3s-index.minisig), with versions, channels and hashes. update.key has its key.",
    }
    K3S_WINDOW = {
        path: "k3s.window",
        doc: "Maintenance window, as 02:00-05:00 in the time of this machine: restarts of k3s that can wait (for its certificates, for pins of images, and k3s upgrade --in-window) happen within it. Default: at any time.",
    }
    K3S_BACKUP_EVERY = {
        path: "k3s.backup_every",
        kind: ValueKind::Time { min_s: 3600, max_s: 2_592_000 },
        default: Some("24h"),
        doc: "Interval of scheduled backups of a monitored k3s. The newest 7 are kept, at most 90 days and 2 GB; the very newest is always kept. keeper.allow without backup stops them.",
    }
    K3S_BACKUP_DIR = {
        path: "k3s.backup_dir",
        kind: ValueKind::Path,
        doc: "Directory on another disk that backups of k3s go to, in place of /var/backups/pipeops. While that disk is not mounted, no backup is made, and the status says so. It needs k3s.backup_recipients, because a disk can be carried away.",
    }
    K3S_BACKUP_RECIPIENTS = {
        path: "k3s.backup_recipients",
        doc: "Public keys of age (age1…), with commas between them: every backup of k3s is encrypted to them, and only their private keys, which are kept elsewhere, can read it. Default: backups are not encrypted, and stay in directories that only root can read.",
    }
    K3S_BACKUP_S3 = {
        path: "k3s.backup_s3",
        doc: "Bucket of a server of the S3 protocol, as https://server/bucket or https://server/bucket/folder: the agent copies encrypted backups of k3s there, 7 of them, no older than 90 days, 2 GB together. It needs k3s.backup_recipients, k3s.backup_s3_key_id and k3s.backup_s3_secret_file. Default: backups stay on this machine.",
    }
    K3S_BACKUP_S3_REGION = {
        path: "k3s.backup_s3_region",
        default: Some("us-east-1"),
        doc: "Region of that bucket. Servers that have none take the default.",
    }
    K3S_BACKUP_S3_KEY_ID = {
        path: "k3s.backup_s3_key_id",
        doc: "Id of the access key for that bucket. It needs s3:ListBucket and s3:PutObject; without s3:DeleteObject older copies stay.",
    }
    K3S_BACKUP_S3_SECRET_FILE = {
        path: "k3s.backup_s3_secret_file",
        kind: ValueKind::Path,
        doc: "File with the secret of that access key, which only the agent's user may read (chmod 600). It is reloaded when it changes.",
    }
    K3S_BACKUP_S3_ALLOW_PLAINTEXT = {
        path: "k3s.backup_s3_allow_plaintext",
        kind: ValueKind::Flag,
        default: Some("false"),
        doc: "Allow http:// to another machine: contents are encrypted and requests are signed, but names and lengths can be seen, and answers forged.",
    }
    APPS_INTERVAL = {
        path: "apps.interval",
        kind: ValueKind::Time { min_s: 30, max_s: 86400 },
        default: Some("5m"),
        doc: "Polling interval for Git repositories of apps (jittered by 20 %), and for retrying an app of apps.folder that cannot be used. `pipeops-agent apps pull` polls immediately.",
    }
    APPS_FOLDER = {
        path: "apps.folder",
        kind: ValueKind::Path,
        doc: "Folder of apps: each manifest file and each subfolder in it is an app of that name, and is deployed again when it changes. The folder, its contents and its parent folders must belong to root and be writable by root only. Default: none.",
    }
    APPS_KNOWN_HOSTS = {
        path: "apps.known_hosts",
        kind: ValueKind::Path,
        default: Some("/etc/pipeops-agent/known_hosts"),
        doc: "Keys of the hosts from which apps come by ssh, as ssh-keyscan prints them. No other host is trusted. The file and the folders above it have to be root's.",
    }
    APPS_GIT_HOSTS = {
        path: "apps.git_hosts",
        doc: "Hosts of Git repositories from which the control plane may deploy, with commas between them: git.example, git.example:8443. Exactly these; without a port the usual one of https or ssh. Default: none.",
    }
    APPS_GIT_CREDENTIALS = {
        path: "apps.git_credentials",
        kind: ValueKind::Path,
        default: Some("/etc/pipeops-agent/git"),
        doc: "Folder with credentials for apps.git_hosts, a file for each: https_git.example with user:password or a token, ssh_git.example_2222 with a private key. The control plane names none.",
    }
    APPS_GROUPS = {
        path: "apps.groups",
        doc: "API groups whose custom resources apps of this machine may have, with commas between them: example.com, cert-manager.io. Their controllers act with rights of their own, so list only what everybody who deploys may ask of them. Each namespace has to let the account in besides (docs/apps.md). Default: none.",
    }
    APPS_OPERATORS = {
        path: "apps.operators",
        doc: "Users of this machine that may deploy apps besides root, with commas between them; @NAME is a group: alice, @deploy. They also need the group of the socket. Default: root alone.",
    }
    UPDATE_URL = {
        path: "update.url",
        default: Some("https://releases.pipeops.io/agent"),
        doc: "Address of the releases, a folder for each: latest, 0.2.0.",
    }
    UPDATE_CHANNEL = {
        path: "update.channel",
        default: Some("latest"),
        doc: "Release to follow: latest, or a version to stay at.",
    }
    UPDATE_AUTOMATIC = {
        path: "update.automatic",
        kind: ValueKind::Flag,
        default: Some("true"),
        doc: "Update at night (by the systemd timer or the cron job of the tarball).",
    }
    UPDATE_KEY = {
        path: "update.key",
        doc: "Public key of minisign that signs releases, for a mirror with releases of its own; after key rotations preceded by their number: \"1 RW…\". Default: the key of this program.",
    }
    ROOTS = {
        path: "tls.roots",
        kind: ValueKind::Choice(&["built-in", "system"]),
        default: Some("built-in"),
        doc: "Trusted CA certificates: Mozilla's list, which is part of this program, or the list of the system (380 KB more memory).",
    }
    CA_FILE = {
        path: "tls.ca_file",
        kind: ValueKind::Path,
        doc: "PEM file with additional trusted CA certificates.",
    }
    CERT_FILE = {
        path: "tls.cert_file",
        kind: ValueKind::Path,
        doc: "PEM file with a client certificate for the control plane; needs key_file.",
    }
    KEY_FILE = {
        path: "tls.key_file",
        kind: ValueKind::Path,
        doc: "PEM file with the private key of cert_file.",
    }
    INSECURE_SKIP_VERIFY = {
        path: "tls.insecure_skip_verify",
        kind: ValueKind::Flag,
        default: Some("false"),
        doc: "Known from the Go agent. Only false is accepted: set ca_file to the CA certificate of the control plane instead.",
    }
    LOG_LEVEL = {
        path: "log.level",
        kind: ValueKind::Choice(&["error", "warn", "info", "debug", "trace"]),
        default: Some("info"),
        doc: "Minimum level of log lines.",
    }
    LOG_FORMAT = {
        path: "log.format",
        kind: ValueKind::Choice(&["auto", "plain", "journal", "json"]),
        default: Some("auto"),
        doc: "plain has a timestamp on each line, journal a priority for systemd, json one object per line; auto is journal under systemd and plain elsewhere.",
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
        (ValueKind::Flag, Some(default)) => default.to_owned(),
        (_, Some(default)) => format!("{default:?}"),
        (ValueKind::Labels, None) => "{ site = \"berlin\" }".to_owned(),
        (ValueKind::Path, None) => format!("\"/etc/pipeops-agent/{}\"", key.name()),
        (ValueKind::Words(words), None) => format!("{words:?}"),
        (ValueKind::Ip, None) => "\"203.0.113.7\"".to_owned(),
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
    use crate::core::nearest::nearest;

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
