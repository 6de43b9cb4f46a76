//! Wiring of the agent: its parts, made from settings; each adapter gets its own small struct.

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use litemap::LiteMap;
use smol::Timer;

use super::VERSION;
use crate::{
    config::{
        ControlPlane, DEFAULT_FILE, Origin, RemoteWrite, Roots, ServiceEnvironment, Settings,
    },
    core::{
        doctor::is_behind,
        gateway,
        health::Severity,
        identity::Identity,
        link::Membership,
        order::GatherExt as _,
        policy::{self, Level},
        safe_mode::Mode,
        time::Wall,
        url::{ProxyUrl, Security, Url},
    },
    error::{Error, Result},
    executor::Executor,
    files::{Jobs, Spool},
    host::{
        self, clock,
        git::{self, Git},
        random,
    },
    kube::{
        self, Client,
        kubeconfig::{self, Source},
        rbac::{GrantScope, Manifest},
    },
    link::dial::Caller,
    net::{
        dial::Dialer,
        proxy::{self, Proxies},
        target::Target,
        tls::{self, ClientIdentity, Tls, read_pem},
    },
    outside::{
        post::{ANSWER_WITHIN, Address, HttpClient},
        transport::Transport,
    },
    store::{
        self,
        telemetry::{self, Telemetry},
    },
    tasks::{
        self,
        apps::{self, Accounts, Apps, PinImages, account::Account},
        audit::AuditWriter,
        lease_gate::{LeaseGate, Permission},
        link::{
            deliver::{Databases, Delivery},
            lease,
            registration::{Profile, Registrar},
        },
        machine::keeper::Keeper,
        proxy::{Proxy, level::Configured},
        rights::{
            credential::{Credential, CredentialKind},
            delegate::Delegate,
            manifest::Rights,
            revocation::Revocation,
        },
        state::SharedState,
        stream::Stream,
        telemetry::{
            events::Events,
            liveness::Liveness,
            publisher::Publisher,
            sample::{self, Sampler},
        },
    },
};

/// Number of tries to save an identity while the disk is busy.
const KEEP_TRIES: u32 = 5;
const KEEP_RETRY_WAIT: Duration = Duration::from_secs(2);

/// The condition of a clock that is certainly wrong; the doctor's check of it has the same name.
const CLOCK: &str = "clock.wrong";

/// Components below all network connections.
#[derive(Clone, Debug)]
pub(super) struct Network {
    dialer: Dialer,
    clock: tls::Clock,
    proxies: Proxies,
}

pub(super) fn wall() -> Wall {
    clock::now().wall
}

/// Opens the samples, and leaves them alone in safe mode. What is wrong with them is a condition.
pub(super) async fn telemetry(
    settings: &Settings,
    shared_state: &SharedState,
    (jobs, mode): (Jobs, Mode),
) -> Result<Telemetry> {
    let options = telemetry::Options {
        disk_bytes_max: settings.telemetry.disk_bytes_max,
        // Without an id each start is a boot of its own.
        boot_id: clock::boot_id().map_or_else(random::hex::<16>, Ok)?,
        epoch: u64::from_ne_bytes(random::bytes::<8>()?),
    };
    let directory = &settings.agent.state_dir;
    let options = (options, shared_state.now());
    if !mode.is_normal() {
        return Telemetry::put_aside(directory, options, jobs);
    }
    let (opened, conditions) = Telemetry::open_listed(directory, options, jobs).await?;
    shared_state.show_all(&telemetry::CONDITIONS, conditions);
    Ok(opened)
}

impl Network {
    /// Returns whether the wall clock may have been set since boot.
    pub(super) fn clock_is_set(&self) -> bool {
        !self.clock.is_behind()
    }

    /// Current time: never before one that has certainly been.
    pub(super) fn time(&self) -> Wall {
        self.clock.now()
    }

    /// Says whether the wall clock shows a time that cannot be. The sentence has no time of now in
    /// it, so that it stays the same.
    pub(super) fn report_clock(&self, shared_state: &SharedState) {
        let passed = self.clock.floor();
        if !is_behind(wall(), passed) {
            shared_state.clear(CLOCK);
            return;
        }
        let sentence = format!(
            "the clock of this machine is wrong: it is before {}, which has passed",
            passed.rfc3339()
        );
        let fix = "synchronize it with a time server, or set it by hand, in UTC: sudo date -u -s \"YYYY-MM-DD HH:MM:SS\"; pipeops-agent doctor shows which time service is installed";
        shared_state.report(CLOCK, Severity::Warning, sentence, Some(fix.to_owned()));
    }

    pub(super) fn new(settings: &Settings, recorded: Wall) -> Self {
        let clock = tls::Clock::new(wall, recorded);
        Self {
            dialer: Dialer::default(),
            clock,
            proxies: proxies(settings),
        }
    }

    /// The clock that certificates are checked by.
    pub(super) const fn clock(&self) -> tls::Clock {
        self.clock
    }

    /// Returns whether a wall clock that shows this can be believed.
    pub(super) fn believer(&self) -> Box<dyn Fn(Wall) -> bool> {
        let clock = self.clock;
        Box::new(move |wall| clock.believes(wall))
    }

    /// Reads the machine.
    pub(super) fn sampler(&self, settings: &Settings, shared_state: &Rc<SharedState>) -> Sampler {
        let is_believed = self.believer();
        let every = settings.telemetry.interval;
        Sampler::new(sample::SamplerOptions::new(
            every,
            is_believed,
            Rc::clone(shared_state),
        ))
    }

    /// Opens sessions with the control plane. Reads certificates: blocking.
    pub(super) fn caller(&self, settings: &Settings, server: &ControlPlane) -> Result<Caller> {
        let client = match &settings.tls.client {
            None => None,
            Some(files) => Some(ClientIdentity {
                certificate_pem: pem(&files.cert_file)?,
                key_pem: pem(&files.key_file)?,
            }),
        };
        Ok(Caller {
            dialer: self.dialer.clone(),
            tls: self.tls(settings, client)?,
            proxies: self.proxies.clone(),
            gateways: gateway::Rules {
                controller: gateway_origin(&server.api_url),
                listed: settings
                    .pipeops
                    .gateways
                    .iter()
                    .map(gateway_origin)
                    .collect(),
            },
            user_agent: format!("pipeops-agent/{VERSION}"),
        })
    }

    /// TLS with a server that a setting names, where it is encrypted. It is not shown the
    /// certificate that the control plane knows the agent by. Reads certificates: blocking.
    pub(super) fn client_tls(&self, settings: &Settings, url: &Url) -> Result<Option<Tls>> {
        match url.security {
            Security::Tls => self.tls(settings, None).map(Some),
            Security::Plain => Ok(None),
        }
    }

    /// Speaks to a server that a setting names.
    pub(super) fn client(&self, url: &Url, tls: Option<Tls>) -> HttpClient {
        let path = if url.path.is_empty() { "/" } else { &url.path };
        let query = url.query.as_ref().map(|query| format!("?{query}"));
        HttpClient {
            address: Address {
                target: Target::new(&url.host, url.port),
                path: format!("{path}{}", query.unwrap_or_default()),
                host: url.authority(),
            },
            transport: self.transport(tls),
            answer_within: ANSWER_WITHIN,
            line: RefCell::default(),
        }
    }

    /// Transport to servers that a setting names, encrypted or not. Reads certificates: blocking.
    pub(super) fn named_transport(&self, settings: &Settings) -> Result<Transport> {
        Ok(self.transport(Some(self.tls(settings, None)?)))
    }

    /// Transport to servers that a setting names.
    fn transport(&self, tls: Option<Tls>) -> Transport {
        Transport {
            dialer: self.dialer.clone(),
            proxies: self.proxies.clone(),
            tls,
            user_agent: format!("pipeops-agent/{VERSION}"),
            clock: || clock::now().mono,
        }
    }

    fn tls(&self, settings: &Settings, client: Option<ClientIdentity>) -> Result<Tls> {
        let settings = tls::Settings {
            roots: match settings.tls.roots {
                Roots::BuiltIn => tls::Roots::BuiltIn,
                Roots::System => tls::Roots::System,
            },
            extra_ca_pem: settings.tls.ca_file.as_deref().map(pem).transpose()?,
            client,
            ..tls::Settings::default()
        };
        Tls::new(&settings, self.clock).map_err(|error| Error::from(&error))
    }
}

fn pem(path: &Path) -> Result<Vec<u8>> {
    read_pem(path).map_err(|error| Error::from(&error))
}

pub(super) fn proxies(settings: &Settings) -> Proxies {
    let proxy = settings.pipeops.proxy.as_ref();
    let proxy = proxy.map(|url| proxy::Proxy::new(url, None));
    Proxies::new(proxy, &settings.pipeops.no_proxy.join(","))
}

fn gateway_origin(url: &Url) -> gateway::GatewayAddress {
    gateway::GatewayAddress {
        is_encrypted: url.security == Security::Tls,
        host: url.host.clone(),
        port: url.port,
    }
}

/// The cluster as far as its files can be read.
#[derive(Debug)]
pub(super) struct FoundCluster {
    source: Source,
    server: Option<String>,
}

impl FoundCluster {
    /// Looks for it. Blocking.
    pub(super) fn read(named: Option<&Path>, around: &ServiceEnvironment) -> Option<Self> {
        let source = source(named, around)?;
        // Unreadable now may be readable later (k3s writes its file at its start): the watch says
        // what is wrong until then.
        let server = kubeconfig::load(&source).ok().map(|cluster| cluster.server);
        Some(Self { source, server })
    }

    /// The cluster while its files cannot be read: there is one, and the watch reads them again.
    pub(super) fn unread(named: Option<&Path>, around: &ServiceEnvironment) -> Self {
        Self {
            source: chosen(named, around),
            server: None,
        }
    }
}

fn chosen(named: Option<&Path>, around: &ServiceEnvironment) -> Source {
    Source::choose(
        named.and_then(Path::to_str),
        around.kubernetes_host.as_deref(),
        around.kubernetes_port.as_deref(),
    )
}

/// Source of the access to the cluster; `None` if none is configured and none is found. Blocking.
pub(super) fn source(named: Option<&Path>, around: &ServiceEnvironment) -> Option<Source> {
    let source = chosen(named, around);
    match (&source, named) {
        (Source::Files(paths), None) if !paths.iter().any(|path| path.exists()) => None,
        (Source::K3s { own, admin }, _) if !own.exists() && !admin.exists() => None,
        (Source::Files(_) | Source::K3s { .. } | Source::InCluster { .. }, _) => Some(source),
    }
}

/// The client of the cluster's API, where a cluster was found.
pub(super) fn cluster(
    found: Option<FoundCluster>,
    network: &Network,
    shared_state: &SharedState,
    (executor, jobs): (&Rc<Executor>, &Jobs),
) -> Option<Client> {
    let Some(FoundCluster { source, server }) = found else {
        let fix = "install k3s, or set a kubeconfig: KUBECONFIG=/path/to/kubeconfig, or agent.kubeconfig in the configuration";
        let sentence = "no cluster is configured: only the host is reported";
        shared_state.report(
            "cluster.none",
            Severity::Note,
            sentence,
            Some(fix.to_owned()),
        );
        return None;
    };
    let server = server.unwrap_or_else(|| "not known yet".to_owned());
    shared_state.cluster.borrow_mut().server = Some(server);
    let settings = kube::Settings {
        source,
        proxies: network.proxies.clone(),
        clock: network.clock,
        now: clock::now,
        jobs: jobs.clone(),
    };
    let client = Client::new(&settings, network.dialer.clone(), Rc::clone(executor));
    shared_state.cluster.borrow_mut().heard = Some(client.heard());
    Some(client)
}

/// Identity of this machine at a receiver of samples; `None` while it has no id yet.
pub(super) fn external_labels(
    settings: &RemoteWrite,
    registrar: &Registrar,
) -> Option<LiteMap<String, String>> {
    let agent_id = Some(registrar.agent_id()).filter(|id| !id.is_empty())?;
    let host = registrar.host().hostname.clone().unwrap_or_default();
    let own = [("instance", host), ("agent_id", agent_id)];
    let own = own.map(|(name, value)| (name.to_owned(), value));
    Some(own.into_iter().chain(settings.labels.clone()).gather())
}

/// Makes registrations with the profile of this machine.
pub(super) fn registrar(
    settings: &Settings,
    host: host::facts::Facts,
    shared_state: &Rc<SharedState>,
    delegate: Option<&Delegate>,
) -> Rc<Registrar> {
    let registrar = Registrar::new(
        profile(settings),
        (host, PathBuf::from("/")),
        Rc::clone(shared_state),
    );
    Rc::new(registrar.giving(delegate.map(Delegate::credential)))
}

/// Facts about this machine from the settings.
pub(super) fn profile(settings: &Settings) -> Profile {
    let pipeops = &settings.pipeops;
    Profile {
        version: VERSION,
        cluster_name: pipeops.cluster_name.clone(),
        server_ip: pipeops.server_ip,
        region: pipeops.region.clone(),
        cloud_provider: pipeops.cloud_provider.clone(),
        labels: settings.agent.labels.clone(),
        allows_plaintext: pipeops.allows_plaintext,
    }
}

/// Manifest of the rights that the agent needs at the access level of the settings.
pub(super) fn manifest(settings: &Settings) -> Manifest {
    let reach = match settings.access.level {
        Level::Full => GrantScope::Full,
        Level::Managed | Level::ReadOnly | Level::Off => GrantScope::Managed,
    };
    let namespace = settings.agent.namespace.clone();
    Manifest::new(namespace, settings.access.pod_security, reach).exposing(settings.access.expose)
}

/// Makes shared tokens worthless that permit more than the level.
pub(super) fn revocation(
    settings: &Settings,
    delegate: Option<&Rc<Delegate>>,
    (store, notes, shared_state): (&store::Handle, &store::Notes, &Rc<SharedState>),
) -> Option<Rc<Revocation>> {
    let delegate = Rc::clone(delegate?);
    let state = Rc::clone(shared_state);
    let shares = settings.access.shares_token;
    let kept = (store.clone(), notes);
    Some(Rc::new(Revocation::new(delegate, kept, state, shares)))
}

/// Publisher of events.
pub(super) fn publisher(
    shared_state: &Rc<SharedState>,
    telemetry: &telemetry::Handle,
    stream: &Rc<Stream>,
) -> Rc<Publisher> {
    let events = Events::new(Rc::clone(shared_state));
    Rc::new(Publisher::new(events, telemetry.clone(), Rc::clone(stream)))
}

/// Delivery of the records of this agent, which has the id that it has when a session begins.
pub(super) fn delivery(
    records: Databases,
    registrar: &Rc<Registrar>,
    shared_state: &Rc<SharedState>,
    executor: &Rc<Executor>,
) -> Rc<Delivery> {
    let me = Rc::clone(registrar);
    let me = move || me.agent_id();
    let (shared_state, executor) = (Rc::clone(shared_state), Rc::clone(executor));
    Rc::new(Delivery::new(records, me, shared_state, executor))
}

/// Permission to link and to change apps. Agents without a control plane do not share a cluster:
/// nothing decides between them.
pub(super) fn lease_gate(settings: &Settings, client: Option<&Client>) -> Rc<LeaseGate> {
    let is_shared = settings.pipeops.control_plane.is_some() && client.is_some();
    Rc::new(LeaseGate::new(if is_shared {
        lease::not_asked_yet()
    } else {
        Permission::Always
    }))
}

type Kept<'a> = (&'a store::Handle, &'a AuditWriter, &'a Rc<SharedState>);

/// The apps of the cluster, where there is one.
pub(super) fn apps(
    settings: &Settings,
    client: Option<&Client>,
    ((store, audit, shared_state), lease_gate): (Kept<'_>, &Rc<LeaseGate>),
    (proxy, delivery, executor): (&Rc<Proxy>, &Rc<Delivery>, &Rc<Executor>),
) -> Option<Rc<Apps>> {
    let client = client?.clone();
    let (gate, delivery) = (Rc::clone(proxy), Rc::clone(delivery));
    let accounts = Accounts {
        machine: Account::new(
            client.clone(),
            manifest(settings),
            settings.apps.groups.clone(),
        ),
        control_plane: Account::judged(gate, manifest(settings)),
    };
    let git = Git::new(git::GitOptions {
        scratch: settings.agent.state_dir.join(git::SCRATCH),
        known_hosts: settings.apps.known_hosts.clone(),
        ca_file: settings.tls.ca_file.clone(),
        proxy: settings.pipeops.proxy.as_ref().map(ProxyUrl::url),
        no_proxy: settings.pipeops.no_proxy.join(","),
        credentials: settings.apps.git_credentials.clone(),
        bytes_max: git::FETCHED_BYTES_MAX,
    });
    Some(Rc::new(Apps::new(apps::AppsDependencies {
        accounts,
        client,
        store: store.clone(),
        audit: audit.clone(),
        executor: Rc::clone(executor),
        shared_state: Rc::clone(shared_state),
        lease_gate: Rc::clone(lease_gate),
        git,
        interval: settings.apps.interval,
        folder: settings.apps.folder.clone(),
        git_hosts: settings.apps.git_hosts.clone(),
        pin: pin_images(settings.keeper.socket.clone()),
        now: clock::now,
        ended: Box::new(move || delivery.look()),
    })))
}

/// Pins of images by the root helper.
fn pin_images(socket: PathBuf) -> PinImages {
    let socket = Rc::new(socket);
    Box::new(move |images| {
        let socket = Rc::clone(&socket);
        Box::pin(async move { Keeper::at(&socket).pin(images).await })
    })
}

/// The account under which calls of the control plane run.
pub(super) fn delegate(
    settings: &Settings,
    client: Option<&Client>,
    notes: &store::Notes,
) -> Option<Rc<Delegate>> {
    let kind = if settings.access.shares_token {
        CredentialKind::Token
    } else {
        CredentialKind::Handle
    };
    let credential = Rc::new(Credential::new(kind, notes));
    let delegate = Delegate::new(client?.clone(), manifest(settings), credential);
    Some(Rc::new(delegate))
}

/// Liveness check of the cluster.
pub(super) fn liveness(
    client: Option<&Client>,
    shared_state: &Rc<SharedState>,
) -> Option<Rc<Liveness>> {
    client.map(|client| Rc::new(Liveness::new(client.clone(), Rc::clone(shared_state))))
}

/// Comparison of the cluster's rights with the manifest.
pub(super) fn rights(
    delegate: Option<&Rc<Delegate>>,
    shared_state: &Rc<SharedState>,
    proxy: &Rc<Proxy>,
) -> Option<Rc<Rights>> {
    let (shared_state, proxy) = (Rc::clone(shared_state), Rc::clone(proxy));
    let rules = Box::new(move || proxy.rules());
    let rights = Rights::new(Rc::clone(delegate?), shared_state, rules);
    Some(Rc::new(rights))
}

/// Access by the configuration. In safe mode nothing is let into the cluster, and without a control
/// plane there is nobody to let in.
pub(super) fn configured(settings: &Settings, mode: Mode) -> Configured {
    let access = &settings.access;
    let (level, from, edit) = match mode {
        Mode::Normal if settings.pipeops.control_plane.is_none() => (
            Level::Off,
            "no control plane is configured".to_owned(),
            "connect this machine to one: sudo pipeops-agent up --api-url https://api.pipeops.io"
                .to_owned(),
        ),
        Mode::Normal => (
            access.level,
            access.level_origin.to_string(),
            edit(&access.level_origin),
        ),
        Mode::Safe { .. } => (
            Level::Off,
            "safe mode".to_owned(),
            "restart the agent once the cause of its crashes is fixed".to_owned(),
        ),
    };
    Configured {
        rules: policy::Rules {
            level,
            tightened_from: None,
            pod_security: access.pod_security,
            accepts_foreign_tokens: access.accepts_foreign_tokens,
            expose: access.expose,
        },
        from,
        edit,
    }
}

fn edit(origin: &Origin) -> String {
    match origin {
        Origin::Default => format!("set access.level in {DEFAULT_FILE}"),
        Origin::File { path, line } => {
            format!("change access.level in {}, line {line}", path.display())
        }
        Origin::Environment(name) => format!("change {name} in the agent's environment"),
        Origin::Flag(option) => format!("start the agent with another {option} access.level"),
    }
}

/// Server of proxied requests.
pub(super) fn proxy(
    (settings, configured): (&Settings, &Configured),
    (client, delegate): (Option<Client>, Option<Rc<Delegate>>),
    executor: &Rc<Executor>,
    (audit_writer, jobs): (AuditWriter, Jobs),
) -> Proxy {
    let dependencies = tasks::proxy::ProxyDependencies {
        executor: Rc::clone(executor),
        client,
        delegate,
        rules: configured.rules,
        spool: Spool::new(&settings.agent.state_dir).listed(jobs),
    };
    Proxy::audited(dependencies, audit_writer)
}

/// Name of this agent among others that have the same agent id: by their settings, or because
/// several took over what the Go agent left in their cluster. Made once, and kept.
pub(super) async fn lease_name(store: &store::Handle, notes: &store::Notes) -> String {
    if let Some(name) = notes.get(lease::NOTE_NAME) {
        return name.to_owned();
    }
    let name = random::hex::<4>().unwrap_or_default();
    let kept = store.keep_note(lease::NOTE_NAME, Some(name.clone()));
    if let Err(failure) = kept.await {
        // After a restart this agent then waits for its own Lease as for another one's.
        log::warn!("lease: the name of this agent is not saved: {failure}");
    }
    name
}

/// Membership that the control plane knew this cluster by.
pub(super) fn membership(identity: &Identity) -> Option<Membership> {
    let cluster_id = identity.cluster_id.clone()?;
    let cluster_uuid = identity
        .cluster_uuid
        .clone()
        .unwrap_or_else(|| cluster_id.clone());
    Some(Membership {
        cluster_id,
        cluster_uuid,
        gateway_url: identity.gateway_ws_url.clone(),
    })
}

/// Keeps an identity on disk. Where the disk refuses, the store keeps it in memory and says so
/// itself; only a busy disk is asked again.
pub(super) async fn keep(store: &store::Handle, identity: Identity) {
    for _ in 0..KEEP_TRIES {
        match store.keep_identity(identity.clone(), wall()).await {
            Ok(_) => return,
            Err(failure @ (store::Failure::Busy | store::Failure::Slow)) => {
                log::debug!("the identity is not on disk yet: {failure}");
                Timer::after(KEEP_RETRY_WAIT).await;
            }
            Err(failure) => {
                log::warn!("the identity is not on disk: {failure}");
                return;
            }
        }
    }
    log::warn!("the identity is not on disk: it was too slow {KEEP_TRIES} times");
}
