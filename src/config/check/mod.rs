//! Converts merged values to [`Settings`]. It checks that they fit together and collects all
//! problems.

use std::{
    net::SocketAddr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    keys::{self, Key},
    layers::{ConfigEntry, Merged, Origin},
    settings::{
        Access, Agent, Allow, Apps, CertificateFiles, ControlPlane, Dashboard, K3sBackup, Keeper,
        Log, LogFormat, Pipeops, Roots, ServiceEnvironment, Settings, Telemetry, Tls, Update,
    },
    token::{self, TokenSource},
    value::Value,
};
mod k3s;
mod notify;
mod remote_write;

use crate::{
    core::{
        apps::{GitHost, is_custom_group},
        namespace::OwnNamespace,
        policy::{Expose, Level, PodSecurity},
        secret::Secret,
        url::{ProxyUrl, Security, Url, is_loopback},
    },
    error::Error,
};

/// Facts about this process that defaults depend on.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessContext {
    /// True if it runs as root.
    pub(super) is_root: bool,
    /// `RUNTIME_DIRECTORY`, which systemd makes for the service.
    pub(super) service_runtime_dir: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR` of the user.
    pub(super) user_runtime_dir: Option<PathBuf>,
}

// The length of sun_path in Linux, less the NUL at its end.
const SOCKET_PATH_BYTES_MAX: usize = 107;

impl Merged {
    fn entry(&self, key: &Key) -> Option<&ConfigEntry> {
        self.entries.get(key.path)
    }

    fn origin(&self, key: &Key) -> Origin {
        self.entry(key)
            .map_or(Origin::Default, |entry| entry.origin.clone())
    }

    fn about(&self, key: &Key, what: &str) -> Error {
        Error::new(format!("{}: {} {what}", self.origin(key), key.path))
    }

    fn text(&self, key: &Key) -> Option<String> {
        let Value::Text(text) = &self.entry(key)?.value else {
            return None;
        };
        (!text.is_empty()).then(|| text.clone())
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        let Value::Path(path) = &self.entry(key)?.value else {
            return None;
        };
        Some(path.clone())
    }

    fn is_on(&self, key: &Key) -> bool {
        self.entry(key)
            .is_some_and(|entry| entry.value == Value::Flag(true))
    }

    fn time(&self, key: &Key) -> Duration {
        match self.entry(key).map(|entry| &entry.value) {
            Some(Value::Time(length)) => *length,
            _ => Duration::ZERO,
        }
    }

    /// The socket of the agent that these settings belong to.
    pub(super) fn socket(&self, process: &ProcessContext) -> PathBuf {
        if let Some(path) = self.path(&keys::SOCKET) {
            return path;
        }
        let state_dir = self.state_dir();
        let folder = if let Some(folder) = &process.service_runtime_dir {
            folder.clone()
        } else if self.origin(&keys::STATE_DIR) != Origin::Default {
            // Who gives an agent a folder of its own may run several: their sockets must not meet.
            state_dir
        } else if process.is_root {
            PathBuf::from("/run/pipeops-agent")
        } else {
            let user = process.user_runtime_dir.as_ref();
            user.map_or(state_dir, |folder| folder.join("pipeops-agent"))
        };
        folder.join("agent.sock")
    }

    /// The folder of the agent's files.
    pub(super) fn state_dir(&self) -> PathBuf {
        self.path(&keys::STATE_DIR).unwrap_or_default()
    }

    /// Configuration of the keeper.
    pub(super) fn keeper(&self) -> Keeper {
        Keeper {
            socket: self.path(&keys::KEEPER_SOCKET).unwrap_or_default(),
            state_dir: self.path(&keys::KEEPER_STATE_DIR).unwrap_or_default(),
            user: self.text(&keys::KEEPER_USER).unwrap_or_default(),
            allow: self.keeper_allows(),
        }
    }

    fn keeper_allows(&self) -> Allow {
        let entry = self.entry(&keys::KEEPER_ALLOW);
        let has = |word| match entry.map(|entry| &entry.value) {
            Some(Value::Words(words)) => words.contains(&word),
            Some(_) | None => false,
        };
        Allow {
            repair: has("repair"),
            backup: has("backup"),
        }
    }

    /// Source of updates.
    pub(super) fn update(&self) -> Update {
        Update {
            url: self.text(&keys::UPDATE_URL).unwrap_or_default(),
            channel: self.text(&keys::UPDATE_CHANNEL).unwrap_or_default(),
            automatic: self.is_on(&keys::UPDATE_AUTOMATIC),
            key: self.text(&keys::UPDATE_KEY),
        }
    }

    /// The settings, or nothing where `problems` says why.
    pub(super) fn settings(&mut self, process: &ProcessContext) -> Option<Settings> {
        let pipeops = self.pipeops();
        let agent = self.agent();
        let tls = self.tls();
        let telemetry = self.telemetry();
        let dashboard = self.dashboard(process);
        let notify = self.notify();
        let app_operators = self.app_operators();
        self.warn_of_lone_s3();
        self.check_window();
        let k3s_backup = match self.k3s_backup() {
            Ok(backup) => backup,
            Err(problem) => {
                self.problems.push(problem);
                K3sBackup::default()
            }
        };
        let secret = k3s_backup.s3.as_ref().map(|s3| s3.secret_file.as_path());
        let doubts = secret.and_then(|file| token::doubts(file, "backups of k3s wait for it"));
        self.warnings.extend(doubts);
        let git_hosts = self.git_hosts();
        let groups = self.app_groups();
        if !self.problems.is_empty() {
            return None;
        }
        Some(Settings {
            pipeops: pipeops?,
            agent: agent?,
            access: self.access(),
            telemetry,
            dashboard: dashboard?,
            notify,
            app_operators,
            tls,
            log: self.log(),
            surroundings: ServiceEnvironment::default(),
            warnings: self.warnings.clone(),
            shown: Vec::new(),
            keeper: self.keeper(),
            k3s: self.k3s(),
            k3s_backup,
            apps: Apps {
                interval: self.time(&keys::APPS_INTERVAL),
                folder: self.path(&keys::APPS_FOLDER),
                known_hosts: self.path(&keys::APPS_KNOWN_HOSTS).unwrap_or_default(),
                git_hosts,
                git_credentials: self.path(&keys::APPS_GIT_CREDENTIALS).unwrap_or_default(),
                groups,
            },
        })
    }

    fn pipeops(&mut self) -> Option<Pipeops> {
        let control_plane = if self.is_alone() {
            Some(None)
        } else {
            self.control_plane().map(Some)
        };
        let gateways = self.gateways();
        let proxy = self.proxy();
        let no_proxy = self.text(&keys::NO_PROXY).unwrap_or_default();
        let server_ip = match self.entry(&keys::SERVER_IP).map(|entry| &entry.value) {
            Some(Value::Ip(ip)) => Some(*ip),
            _ => None,
        };
        Some(Pipeops {
            control_plane: control_plane?,
            cluster_name: self.text(&keys::CLUSTER_NAME),
            agent_id: self.text(&keys::AGENT_ID),
            allows_plaintext: self.is_on(&keys::ALLOW_PLAINTEXT),
            gateways,
            proxy,
            no_proxy: no_proxy
                .split([',', ' '])
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect(),
            server_ip,
            region: self.text(&keys::REGION).unwrap_or_default(),
            cloud_provider: self.text(&keys::CLOUD_PROVIDER).unwrap_or_default(),
        })
    }

    /// Returns true if the agent shall work without a control plane.
    fn is_alone(&self) -> bool {
        self.text(&keys::API_URL).as_deref() == Some("off")
    }

    fn control_plane(&mut self) -> Option<ControlPlane> {
        let (api_url, token) = (self.api_url(), self.token());
        Some(ControlPlane {
            api_url: api_url?,
            token: token?,
        })
    }

    fn api_url(&mut self) -> Option<Url> {
        let origin = self.origin(&keys::API_URL);
        let text = self.text(&keys::API_URL)?;
        let url = match Url::parse(&text) {
            Ok(url) => url,
            Err(why) => {
                self.problems.push(
                    Error::new(format!("{origin}: pipeops.api_url cannot be used"))
                        .why(why)
                        .fix("write it like https://api.pipeops.io, or off to use the agent without a control plane"),
                );
                return None;
            }
        };
        let is_open = url.security == Security::Plain && !is_loopback(&url.host);
        if is_open && !self.is_on(&keys::ALLOW_PLAINTEXT) {
            self.problems.push(
                Error::new(format!("{origin}: pipeops.api_url is not encrypted"))
                    .why(format!("the token would be sent to {} unencrypted", url.host))
                    .fix("use https:// or wss://, or set pipeops.allow_plaintext = true if only you use that network"),
            );
            return None;
        }
        if is_open {
            self.warnings.push(
                Error::new(format!("the link to {} is not encrypted", url.host))
                    .why("pipeops.allow_plaintext is true"),
            );
        }
        Some(url)
    }

    fn gateways(&mut self) -> Vec<Url> {
        let origin = self.origin(&keys::GATEWAYS);
        let text = self.text(&keys::GATEWAYS).unwrap_or_default();
        let mut gateways = Vec::new();
        for part in text.split([',', ' ']).filter(|part| !part.is_empty()) {
            let fix = "write each like wss://gateway.example:8443, with a comma between them";
            let cannot = || Error::new(format!("{origin}: pipeops.gateways cannot have {part:?}"));
            match Url::parse(part) {
                Err(why) => self.problems.push(cannot().why(why).fix(fix)),
                Ok(url) if !url.path.is_empty() || url.query.is_some() => {
                    let why = "it may contain nothing but scheme, host and port";
                    self.problems.push(cannot().why(why).fix(fix));
                }
                Ok(url)
                    if url.security == Security::Plain
                        && !is_loopback(&url.host)
                        && !self.is_on(&keys::ALLOW_PLAINTEXT) =>
                {
                    let why = "the token would be sent unencrypted";
                    let fix = "use wss://, or set pipeops.allow_plaintext = true if only you use that network";
                    self.problems.push(cannot().why(why).fix(fix));
                }
                Ok(url) => gateways.push(url),
            }
        }
        gateways
    }

    fn token(&mut self) -> Option<TokenSource> {
        let layer = |key| self.entry(key).map(|entry| entry.origin.layer());
        let (inline, file) = (layer(&keys::TOKEN), layer(&keys::TOKEN_FILE));
        if inline.is_none() && file.is_none() {
            if self.is_incomplete {
                return None;
            }
            self.problems.push(
                Error::new("there is no token for the control plane")
                    .why("PIPEOPS_TOKEN_FILE, PIPEOPS_TOKEN and pipeops.token_file are not set")
                    .fix("sudo pipeops-agent up, which asks for it; by hand: write the token of this cluster into a file and name that by PIPEOPS_TOKEN_FILE or pipeops.token_file. To use the agent without a control plane: sudo pipeops-agent up --api-url off"),
            );
            return None;
        }
        if inline == file {
            let (one, other) = (self.origin(&keys::TOKEN), self.origin(&keys::TOKEN_FILE));
            self.problems.push(
                Error::new("there are two tokens")
                    .why(format!(
                        "pipeops.token comes from {one}, pipeops.token_file from {other}"
                    ))
                    .fix("remove one of them"),
            );
            return None;
        }
        if file > inline {
            let path = self.path(&keys::TOKEN_FILE)?;
            self.warnings
                .extend(token::doubts(&path, "the link waits for it"));
            return Some(TokenSource::File(path));
        }
        self.inline_token().map(TokenSource::Inline)
    }

    fn inline_token(&mut self) -> Option<Secret> {
        let origin = self.origin(&keys::TOKEN);
        if let Origin::File { path, .. } = &origin {
            self.warnings
                .extend(token::doubts(path, "the link waits for it"));
        }
        match token::checked(&self.text(&keys::TOKEN).unwrap_or_default()) {
            Ok(token) => Some(token),
            Err(why) => {
                self.problems.push(
                    Error::new(format!("{origin}: pipeops.token cannot be used"))
                        .why(why)
                        .fix("copy the token of this cluster again, without quotes or line ends"),
                );
                None
            }
        }
    }

    fn proxy(&mut self) -> Option<ProxyUrl> {
        let text = self.text(&keys::PROXY)?;
        let origin = self.origin(&keys::PROXY);
        ProxyUrl::parse(&text)
            .and_then(|proxy| match proxy.security {
                Security::Plain => Ok(proxy),
                Security::Tls => Err("only HTTP proxies (http://) are supported".to_owned()),
            })
            .map_err(|why| {
                self.problems.push(
                    Error::new(format!("{origin}: pipeops.proxy cannot be used"))
                        .why(why)
                        .fix("write it like http://proxy.example:3128"),
                );
            })
            .ok()
    }

    /// Warns of settings that are accepted and do nothing.
    fn warn_of_unused(&mut self) {
        for key in [&keys::HEARTBEAT_RECONNECTING, &keys::HEARTBEAT_DISCONNECTED] {
            let origin = self.origin(key);
            if origin != Origin::Default {
                let what = format!("{origin}: {} has no effect", key.path);
                self.warnings.push(Error::new(what).fix(
                    "remove it; heartbeats are sent on a ready link only; agent.heartbeat_interval_connected is their interval",
                ));
            }
        }
    }

    fn agent(&mut self) -> Option<Agent> {
        self.warn_of_unused();
        let labels = match self.entry(&keys::LABELS).map(|entry| &entry.value) {
            Some(Value::Labels(labels)) => labels.clone(),
            _ => litemap::LiteMap::new(),
        };
        Some(Agent {
            state_dir: self.path(&keys::STATE_DIR)?,
            kubeconfig: self.path(&keys::KUBECONFIG),
            labels,
            heartbeat: self.time(&keys::HEARTBEAT_CONNECTED),
            namespace: self.namespace()?,
            go_state_namespace: self.text(&keys::GO_STATE_NAMESPACE)?,
        })
    }

    fn namespace(&mut self) -> Option<OwnNamespace> {
        let text = self.text(&keys::NAMESPACE)?;
        let origin = self.origin(&keys::NAMESPACE);
        OwnNamespace::parse(&text)
            .map_err(|why| {
                self.problems.push(
                    Error::new(format!("{origin}: agent.namespace cannot be {text:?}"))
                        .why(why)
                        .fix("name one like pipeops-system"),
                );
            })
            .ok()
    }

    pub(super) fn access(&self) -> Access {
        // Another word cannot pass the table; if it could, the strictest holds.
        let level = self
            .text(&keys::LEVEL)
            .and_then(|word| Level::from_word(&word));
        let pod_security = self
            .text(&keys::POD_SECURITY)
            .and_then(|word| PodSecurity::from_word(&word));
        Access {
            level: level.unwrap_or(Level::Off),
            level_origin: self.origin(&keys::LEVEL),
            pod_security: pod_security.unwrap_or(PodSecurity::Restricted),
            expose: self.expose(),
            shares_token: self.is_on(&keys::SHARE_TOKEN),
            accepts_foreign_tokens: self.is_on(&keys::FOREIGN_TOKENS),
        }
    }

    fn expose(&self) -> Expose {
        match self.entry(&keys::EXPOSE).map(|entry| &entry.value) {
            Some(Value::Words(words)) => Expose::from_words(words).unwrap_or_default(),
            _ => Expose::default(),
        }
    }

    fn telemetry(&mut self) -> Telemetry {
        let disk_bytes_max = match self
            .entry(&keys::TELEMETRY_DISK_MAX)
            .map(|entry| &entry.value)
        {
            Some(Value::Bytes(bytes)) => *bytes,
            _ => 0,
        };
        Telemetry {
            interval: self.time(&keys::TELEMETRY_INTERVAL),
            disk_bytes_max,
            remote_write: self.remote_write(),
        }
    }

    fn dashboard(&mut self, process: &ProcessContext) -> Option<Dashboard> {
        let socket = self.socket(process);
        if socket.as_os_str().as_bytes().len() > SOCKET_PATH_BYTES_MAX {
            let from = match self.entry(&keys::SOCKET) {
                Some(entry) => format!("{}: dashboard.socket", entry.origin),
                None => "the path of the socket".to_owned(),
            };
            self.problems.push(
                Error::new(format!("{from} is too long"))
                    .why(format!(
                        "{} is longer than {SOCKET_PATH_BYTES_MAX} bytes",
                        socket.display()
                    ))
                    .fix("set dashboard.socket (PIPEOPS_DASHBOARD_SOCKET) to a shorter path"),
            );
            return None;
        }
        let certificate = self.certificate(&keys::DASHBOARD_CERT_FILE, &keys::DASHBOARD_KEY_FILE);
        let names = self.dashboard_names();
        let listen = self.listen();
        if certificate.is_some() && listen.is_none_or(|listen| listen.ip().is_loopback()) {
            self.warnings.push(
                Error::new("dashboard.cert_file is not used")
                    .why("dashboard.listen is not reachable from other machines, so the dashboard does not use TLS")
                    .fix("sudo pipeops-agent dashboard expose"),
            );
        }
        Some(Dashboard {
            socket,
            listen,
            names,
            certificate,
            shows_itself: self.shows_itself(),
        })
    }

    /// The address where browsers ask.
    pub(super) fn listen(&self) -> Option<SocketAddr> {
        match self.entry(&keys::LISTEN).map(|entry| &entry.value) {
            Some(Value::Address(listen)) => *listen,
            _ => None,
        }
    }

    /// True if the page is for everybody on this machine. Another word cannot pass the table; if it
    /// could, the stricter one holds.
    pub(super) fn shows_itself(&self) -> bool {
        self.text(&keys::ANONYMOUS).as_deref() == Some("view")
    }

    fn dashboard_names(&mut self) -> Vec<String> {
        let text = self.text(&keys::DASHBOARD_NAMES).unwrap_or_default();
        let names = text.split([',', ' ']).filter(|name| !name.is_empty());
        let is_plain = |name: &str| {
            let mut labels = name.split('.');
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            let is_label =
                |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(is_plain);
            name.len() <= 253 && labels.all(is_label)
        };
        let (plain, others): (Vec<_>, Vec<_>) = names.partition(|name| is_plain(name));
        let plain = plain.into_iter().map(str::to_owned).collect();
        if let Some(other) = others.first() {
            let origin = self.origin(&keys::DASHBOARD_NAMES);
            self.problems.push(
                Error::new(format!("{origin}: dashboard.names cannot have {other:?}"))
                    .why("it is not a valid host name")
                    .fix("separate names with commas, without https:// and port: box.example, box.lan"),
            );
        }
        plain
    }

    fn git_hosts(&mut self) -> Vec<GitHost> {
        let text = self.text(&keys::APPS_GIT_HOSTS).unwrap_or_default();
        let mut hosts = Vec::new();
        for part in text.split([',', ' ']).filter(|part| !part.is_empty()) {
            let Some(host) = GitHost::parse(part) else {
                let origin = self.origin(&keys::APPS_GIT_HOSTS);
                self.problems.push(
                    Error::new(format!("{origin}: apps.git_hosts cannot have {part:?}"))
                        .why("it is neither a host nor host:port; there are no wildcards")
                        .fix("write each like git.example or git.example:8443, with a comma between them"),
                );
                continue;
            };
            hosts.push(host);
        }
        hosts
    }

    fn app_groups(&mut self) -> Vec<String> {
        let text = self.text(&keys::APPS_GROUPS).unwrap_or_default();
        let groups = text.split([',', ' ']).filter(|group| !group.is_empty());
        let (groups, others): (Vec<_>, Vec<_>) = groups.partition(|group| is_custom_group(group));
        if let Some(other) = others.first() {
            let origin = self.origin(&keys::APPS_GROUPS);
            self.problems.push(
                Error::new(format!("{origin}: apps.groups cannot have {other:?}"))
                    .why("it is not a group of custom resources, or one that grants rights; there are no wildcards")
                    .fix("separate groups with commas, without versions: example.com, cert-manager.io"),
            );
        }
        groups.into_iter().map(str::to_owned).collect()
    }

    fn app_operators(&mut self) -> Vec<String> {
        let text = self.text(&keys::APPS_OPERATORS).unwrap_or_default();
        let names = text.split([',', ' ']).filter(|name| !name.is_empty());
        let is_name = |name: &&str| {
            let name = name.strip_prefix('@').unwrap_or(name);
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            (1..=64).contains(&name.len()) && name.bytes().all(is_plain)
        };
        let (names, others): (Vec<_>, Vec<_>) = names.partition(is_name);
        if let Some(other) = others.first() {
            let origin = self.origin(&keys::APPS_OPERATORS);
            self.problems.push(
                Error::new(format!("{origin}: apps.operators cannot have {other:?}"))
                    .why("it is not the name of a user, or of a group with @ before it")
                    .fix("separate names with commas: alice, @deploy"),
            );
        }
        names.into_iter().map(str::to_owned).collect()
    }

    fn tls(&mut self) -> Tls {
        if self.is_on(&keys::INSECURE_SKIP_VERIFY) {
            // Whoever answers in the place of the control plane would get the token and, with it,
            // the cluster. Each honest use has a safe form: a private authority has a certificate,
            // and a trial on this machine may use http.
            let origin = self.origin(&keys::INSECURE_SKIP_VERIFY);
            self.problems.push(
                Error::new(format!(
                    "{origin}: tls.insecure_skip_verify is not possible"
                ))
                .why("anyone on the network path could impersonate the control plane")
                .fix("save the certificate of its CA to a file and set tls.ca_file to it"),
            );
        }
        for key in [&keys::CA_FILE, &keys::CERT_FILE, &keys::KEY_FILE] {
            let warning = self
                .path(key)
                .and_then(|path| self.doubts_of_file(key, &path));
            self.warnings.extend(warning);
        }
        let client = self.certificate(&keys::CERT_FILE, &keys::KEY_FILE);
        Tls {
            roots: match self.text(&keys::ROOTS).as_deref() {
                Some("system") => Roots::System,
                _ => Roots::BuiltIn,
            },
            ca_file: self.path(&keys::CA_FILE),
            client,
        }
    }

    /// A certificate with its key: both or none.
    fn certificate(&mut self, certificate: &Key, key: &Key) -> Option<CertificateFiles> {
        let (there, missing) = match (self.path(certificate), self.path(key)) {
            (Some(cert_file), Some(key_file)) => {
                return Some(CertificateFiles {
                    cert_file,
                    key_file,
                });
            }
            (None, None) => return None,
            (Some(_), None) => (certificate, key),
            (None, Some(_)) => (key, certificate),
        };
        self.problems.push(
            Error::new(format!(
                "{}: {} is set alone",
                self.origin(there),
                there.path
            ))
            .fix(format!("set {} too, or remove both", missing.path)),
        );
        None
    }

    fn doubts_of_file(&self, key: &Key, path: &Path) -> Option<Error> {
        let error = std::fs::File::open(path).err()?;
        Some(
            Error::new(format!("{}: {} cannot be read", self.origin(key), key.path))
                .why(path.display().to_string())
                .because(&error)
                .fix("create the file, readable for the agent; the link waits for it"),
        )
    }

    /// Log lines.
    pub(super) fn log(&self) -> Log {
        Log {
            level: match self.text(&keys::LOG_LEVEL).as_deref() {
                Some("error") => log::LevelFilter::Error,
                Some("warn") => log::LevelFilter::Warn,
                Some("debug") => log::LevelFilter::Debug,
                Some("trace") => log::LevelFilter::Trace,
                _ => log::LevelFilter::Info,
            },
            format: match self.text(&keys::LOG_FORMAT).as_deref() {
                Some("plain") => LogFormat::Plain,
                Some("journal") => LogFormat::Journal,
                Some("json") => LogFormat::Json,
                _ => LogFormat::Auto,
            },
        }
    }
}
