//! Typed and checked settings of the program. The daemon passes each value to the module that needs
//! it.

use std::{
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use litemap::LiteMap;

use super::{
    Shown,
    layers::Origin,
    token::{self, Credentials, TokenSource},
};
use crate::{
    core::{
        age::Recipient,
        apps::GitHost,
        k3s::window::Window,
        namespace::OwnNamespace,
        notify::Wanted,
        policy::{Expose, Level, PodSecurity},
        s3::{Bucket, Signer},
        url::{ProxyUrl, Url},
    },
    error::{Error, Result},
    files,
};

/// All settings, section by section.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The control plane.
    pub pipeops: Pipeops,
    /// The agent itself.
    pub agent: Agent,
    /// Permissions of the control plane.
    pub access: Access,
    /// Samples of the host.
    pub telemetry: Telemetry,
    /// The local viewers.
    pub dashboard: Dashboard,
    /// Users and groups (`@NAME`) that may deploy apps besides root.
    pub app_operators: Vec<String>,
    /// The root helper.
    pub keeper: Keeper,
    pub k3s: K3s,
    pub k3s_backup: K3sBackup,
    /// Deployed applications.
    pub apps: Apps,
    /// Receiver of notifications.
    pub notify: Option<Notify>,
    /// Certificates.
    pub tls: Tls,
    /// Log lines.
    pub log: Log,
    /// Surroundings of the process.
    pub surroundings: ServiceEnvironment,
    /// Warnings, to be logged once at the start.
    pub warnings: Vec<Error>,
    /// Every key as people look at it.
    pub shown: Vec<Shown>,
}

impl Settings {
    /// Files that hold tokens, passwords and keys.
    pub fn secret_files(&self) -> Vec<PathBuf> {
        let token = self.pipeops.token_file().map(Path::to_owned);
        let notify = self.notify.as_ref().and_then(|it| it.credentials.as_ref());
        let samples = self.telemetry.remote_write.as_ref();
        let samples = samples.and_then(|it| it.credentials.as_ref());
        let credentials = [notify, samples].into_iter().flatten();
        let keys = [&self.tls.client, &self.dashboard.certificate];
        let keys = keys.into_iter().flatten().map(|it| it.key_file.clone());
        let files = credentials.map(|it| it.file().to_owned());
        let copies = self.k3s_backup.s3.iter().map(|it| it.secret_file.clone());
        let all = token.into_iter().chain(files).chain(keys);
        all.chain(copies).collect()
    }
}

/// Environment that the service manager or Kubernetes set. Not settings: no file has them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ServiceEnvironment {
    /// `NOTIFY_SOCKET`: where the service manager listens.
    pub notify_socket: Option<OsString>,
    /// `WATCHDOG_USEC`: within what time the service manager wants a sign of life, where it does.
    pub watchdog_us: Option<u64>,
    /// `JOURNAL_STREAM`: which standard stream is the journal.
    pub journal_stream: Option<String>,
    /// `RUNTIME_DIRECTORY`: folder of the service, which lasts until the machine stops.
    pub runtime_directory: Option<PathBuf>,
    /// `KUBERNETES_SERVICE_HOST`: the API server, as seen from inside a Pod.
    pub kubernetes_host: Option<String>,
    /// `KUBERNETES_SERVICE_PORT`.
    pub kubernetes_port: Option<String>,
}

impl ServiceEnvironment {
    /// Reads them from an environment.
    pub(super) fn of(environment: &LiteMap<OsString, OsString>) -> Self {
        let value = |name: &str| environment.get(&OsString::from(name)).cloned();
        let text = |name: &str| value(name).and_then(|value| value.into_string().ok());
        Self {
            notify_socket: value("NOTIFY_SOCKET"),
            watchdog_us: text("WATCHDOG_USEC").and_then(|text| text.parse().ok()),
            journal_stream: text("JOURNAL_STREAM"),
            runtime_directory: value("RUNTIME_DIRECTORY").map(PathBuf::from),
            kubernetes_host: text("KUBERNETES_SERVICE_HOST"),
            kubernetes_port: text("KUBERNETES_SERVICE_PORT"),
        }
    }
}

/// A control plane to link to.
#[derive(Clone, Debug)]
pub struct ControlPlane {
    pub api_url: Url,
    /// Source of the token.
    pub token: TokenSource,
}

/// `[pipeops]`: the control plane and how this cluster introduces itself to it.
#[derive(Clone, Debug)]
pub struct Pipeops {
    /// The control plane; `None` if this agent works without one.
    pub control_plane: Option<ControlPlane>,
    /// Name of this cluster; `None` is the name of the host.
    pub cluster_name: Option<String>,
    /// Id of this agent; `None` is the one on disk, or a new one.
    pub agent_id: Option<String>,
    /// True if an unencrypted control plane on another machine is accepted: for gateways that it
    /// names, too.
    pub allows_plaintext: bool,
    /// Gateways that the control plane may name whatever their address.
    pub gateways: Vec<Url>,
    /// The proxy on the way to the control plane.
    pub proxy: Option<ProxyUrl>,
    /// Hosts that are reached without the proxy, as they were written: names, `.domains`,
    /// addresses, networks, `*`.
    pub no_proxy: Vec<String>,
    /// The address to report; `None` is the local address of the link.
    pub server_ip: Option<IpAddr>,
    /// The region to report.
    pub region: String,
    /// The provider to report.
    pub cloud_provider: String,
}

impl Pipeops {
    /// The control plane, or an error for work that needs one.
    pub fn control_plane(&self) -> Result<&ControlPlane> {
        self.control_plane.as_ref().ok_or_else(|| {
            Error::new("no control plane is configured")
                .why("pipeops.api_url is \"off\"")
                .fix("sudo pipeops-agent up --api-url https://api.pipeops.io, or the address of your own control plane")
        })
    }

    /// The file of the token, where it is in one.
    pub fn token_file(&self) -> Option<&Path> {
        match &self.control_plane.as_ref()?.token {
            TokenSource::File(path) => Some(path),
            TokenSource::Inline(_) => None,
        }
    }
}

/// `[agent]`: the agent itself.
#[derive(Clone, Debug)]
pub struct Agent {
    /// The folder of `state.db` and the identity.
    pub state_dir: PathBuf,
    /// The kubeconfig that was named; `None` is to look for k3s and for the service account of the
    /// pod.
    pub kubeconfig: Option<PathBuf>,
    /// Labels to report.
    pub labels: LiteMap<String, String>,
    /// Time between heartbeats on a ready link.
    pub heartbeat: Duration,
    /// Namespace of what the agent has in the cluster.
    pub namespace: OwnNamespace,
    /// Namespace of the Go agent's state.
    pub go_state_namespace: String,
}

/// `[access]`: what the control plane may do. Nothing that it sends can change this.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Access {
    /// Access level.
    pub level: Level,
    /// Origin of the level.
    pub level_origin: Origin,
    /// Minimum Pod Security of a managed namespace.
    pub pod_security: PodSecurity,
    /// Services that it may open ports of the nodes with.
    pub expose: Expose,
    /// True if a short-lived token of a narrow account is shared with it.
    pub shares_token: bool,
    /// True if requests may bring an `Authorization` of their own.
    pub accepts_foreign_tokens: bool,
}

/// `[telemetry]`: samples of the host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Telemetry {
    /// Time between two samples.
    pub interval: Duration,
    /// Disk space that samples may take.
    pub disk_bytes_max: u64,
    /// Receiver of samples in addition to the control plane.
    pub remote_write: Option<RemoteWrite>,
}

/// `[telemetry.remote_write]`: a receiver of samples, by Prometheus' remote write.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RemoteWrite {
    /// Its address, with the path that it documents.
    pub url: Url,
    /// Credentials for the receiver.
    pub credentials: Option<Credentials>,
    /// Labels of every series, in addition to those that the agent adds.
    pub labels: LiteMap<String, String>,
}

/// `[dashboard]`: the local viewers.
#[derive(Clone, Debug)]
pub struct Dashboard {
    /// The Unix socket that the command line asks; at most 107 bytes long.
    pub socket: PathBuf,
    /// The address where browsers and a Prometheus ask; `None`: nowhere. One that is not of the
    /// loopback interface is served by TLS alone.
    pub listen: Option<SocketAddr>,
    /// Additional names of this machine for clients on other machines.
    pub names: Vec<String>,
    /// The certificate that is shown there; `None`: one that is made for it.
    pub certificate: Option<CertificateFiles>,
    /// True if the state of the machine is shown there without a login.
    pub shows_itself: bool,
}

/// `[notify]`: receiver of notifications.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Notify {
    /// Their address. With most of them it is the password too.
    pub url: Url,
    /// Format: `webhook`, `ntfy` or `slack`.
    pub kind: String,
    /// Credentials for the receiver.
    pub credentials: Option<Credentials>,
    /// Selection and times of notifications.
    pub wanted: Wanted,
}

/// `[keeper]`: the root helper.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Keeper {
    pub socket: PathBuf,
    /// Directory of its journal.
    pub state_dir: PathBuf,
    /// The name of the agent's user.
    pub user: String,
    /// Changes that may happen without root.
    pub allow: Allow,
}

/// `keeper.allow`: changes that nobody of root's asks for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Allow {
    pub repair: bool,
    pub backup: bool,
}

/// `[k3s]`: sources of k3s.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct K3s {
    /// Address of its releases.
    pub mirror: String,
    /// Address of the signed index.
    pub index: String,
    /// Time of the day for restarts that can wait.
    pub window: Option<Window>,
    /// Interval of backups by schedule.
    pub backup_every: Duration,
}

/// `[k3s]`: its backups.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct K3sBackup {
    /// Directory on another disk.
    pub dir: Option<String>,
    /// Age recipients that can decrypt them; none: they are not encrypted.
    pub recipients: Vec<Recipient>,
    /// Bucket that has copies of them.
    pub s3: Option<S3>,
}

/// `[k3s]`: bucket of a server of the S3 protocol.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct S3 {
    /// Address of the bucket, and of the folder in it.
    pub url: Url,
    /// Both of them.
    pub bucket: Bucket,
    pub region: String,
    /// Id of the access key.
    pub key_id: String,
    /// File with the secret of that key.
    pub secret_file: PathBuf,
}

impl S3 {
    /// Signer of requests, with the secret as it is now. Reads the file: a short blocking call.
    pub fn signer(&self) -> Result<Signer> {
        if let Some(error) = files::exposed(&self.secret_file) {
            return Err(error);
        }
        Ok(Signer {
            key_id: self.key_id.clone(),
            secret: token::read(&self.secret_file, "secret", token::checked)?,
            region: self.region.clone(),
        })
    }
}

/// `[apps]`: deployed applications.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Apps {
    /// Time between two polls of a Git repository.
    pub interval: Duration,
    /// Folder whose files and sub-folders are apps.
    pub folder: Option<PathBuf>,
    /// File with the pinned keys of hosts.
    pub known_hosts: PathBuf,
    /// Hosts from which the control plane may deploy.
    pub git_hosts: Vec<GitHost>,
    /// Folder with credentials for those.
    pub git_credentials: PathBuf,
    /// API groups whose custom resources apps may have.
    pub groups: Vec<String>,
}

/// `[update]`: updates of this program.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Update {
    /// Address of the releases.
    pub url: String,
    /// Folder there: `latest`, or a version.
    pub channel: String,
    /// True if a timer may update.
    pub automatic: bool,
    /// Key that signs them, in place of the built-in one.
    pub key: Option<String>,
}

/// `[tls]`: certificates on the way to the control plane.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Trusted authorities.
    pub roots: Roots,
    /// PEM file of more authorities.
    pub ca_file: Option<PathBuf>,
    /// The certificate that the agent shows.
    pub client: Option<CertificateFiles>,
}

/// Trusted authorities.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Roots {
    /// The list of Mozilla inside this program.
    BuiltIn,
    /// The list of the system.
    System,
}

/// A certificate with its key, both PEM files.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CertificateFiles {
    /// The certificate, with those between it and its authority.
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
}

/// `[log]`: log lines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Log {
    /// Minimum level of log lines.
    pub level: log::LevelFilter,
    /// Format of log lines.
    pub format: LogFormat,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LogFormat {
    /// `Journal` under systemd, `Plain` elsewhere.
    Auto,
    /// Time, level, message.
    Plain,
    /// `<N>` priorities without time, which journald adds.
    Journal,
    /// One JSON object a line.
    Json,
}
