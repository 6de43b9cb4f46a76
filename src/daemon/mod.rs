//! Start order, wiring, stop order: the one place where everything meets.
//!
//! Start: settings → store and samples → dashboard → cluster → link → READY=1. Nothing after the
//! store is fatal: it becomes a condition. While a disk holds up the start, [`starting`] answers in
//! place of the agent. Stop: refuse new work → say good-bye on the link → drop tasks → the store
//! writes what is queued. k3s is never stopped by our stop.

use std::{
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use smol::{
    Task, Timer,
    channel::{Receiver, Sender, bounded},
    future::{self, FutureExt as _},
    stream::StreamExt as _,
};

use crate::{
    config::{self, LogFormat, Provisional, ServiceEnvironment, Settings, Sources},
    core::{VERSION, link::LinkCommand, safe_mode::Mode, series::Tick, stall::Job, verdict::Stage},
    dashboard::Topic,
    error::{Error, Exit, Result},
    executor::Executor,
    files::Jobs,
    host::{
        self, clock,
        notify::Notifier,
        signals::{Signal, Signals},
    },
    kube::Client,
    log, outside,
    store::{
        self, Store,
        telemetry::{self, Telemetry},
    },
    tasks::{
        apps::Apps,
        audit::AuditWriter,
        dashboard::{handlers::Local, login::Logins, status},
        lease_gate::LeaseGate,
        link::{
            deliver::{self, Delivery},
            registration::Registrar,
        },
        machine::k3s,
        proxy::{
            Proxy,
            level::{self, Access},
        },
        rights::{delegate::Delegate, manifest::Rights, revocation::Revocation},
        state::SharedState,
        stream::Stream,
        telemetry::{
            cluster, last_words, liveness::Liveness, observe, publisher::Publisher, remote_write,
            sample::Sampler,
        },
    },
};

use safe_mode::Start;
use starting::{Addresses, Listeners, Starting};
use wiring::{FoundCluster, Network};

mod copies;
mod dashboard_tls;
pub mod doctor;
pub mod keeper;
mod link;
mod notify;
pub mod oneshot;
mod reload;
mod safe_mode;
mod starting;
mod unusable;
mod viewers;
mod wiring;

/// Time for the link to close, and for the Lease to be released after it.
const GOOD_BYE: Duration = Duration::from_secs(6);
/// Time for the last sums of the audit at the stop.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);
/// Interval between flushes of samples.
const FLUSH_EVERY: Duration = Duration::from_secs(60);
/// Interval between maintenance runs of the disk.
const TEND_EVERY: Duration = Duration::from_secs(30);
/// Interval between status updates to the service manager, from memory.
const TELL_EVERY: Duration = Duration::from_millis(2_500);
/// Requests to the uplink that wait: each is sent by somebody who then waits for its effect.
const COMMANDS_MAX: usize = 8;

/// Runs the agent until it is told to stop. Fails with every problem that stands in its way.
///
/// The main thread reads no file, here neither: a disk may hang when the agent starts. (Standard
/// error, where the log goes, is a pipe or the journal under every service manager; whoever lets it
/// be a file on a disk that hangs has a log that hangs.)
pub fn run(sources: Sources) -> std::result::Result<Exit, Vec<Error>> {
    let known = config::provisional(&sources);
    let lines = log::install(form(known.log, &known.surroundings), || clock::now().wall);
    let lines = lines.map_err(|error| vec![error])?;
    let executor = Rc::new(Executor::new());
    let for_tasks = Rc::clone(&executor);
    // The record is in the runtime directory, which is in memory.
    let start = Start::begin(&known.surroundings);
    let ended = executor.block_on(
        clock::awake,
        begin(sources, known, lines, (for_tasks, &start)),
    );
    if ended.is_err() {
        // It says why by itself, and is no crash.
        start.forget();
    }
    ended
}

fn form(settings: config::Log, surroundings: &ServiceEnvironment) -> log::Form {
    log::Form {
        format: log_format(settings.format, surroundings.journal_stream.as_deref()),
        level: settings.level,
    }
}

/// Starts the log of a service of root's, which has no settings of its own for that.
pub fn log_of_root(journal_stream: Option<&str>) -> Result<()> {
    let form = log::Form {
        format: log_format(LogFormat::Auto, journal_stream),
        level: ::log::LevelFilter::Info,
    };
    log::install(form, || clock::now().wall).map(drop)
}

fn log_format(wanted: LogFormat, journal_stream: Option<&str>) -> log::Format {
    match wanted {
        LogFormat::Auto if log::is_journal(journal_stream) => log::Format::Journal,
        LogFormat::Auto | LogFormat::Plain => log::Format::Plain,
        LogFormat::Journal => log::Format::Journal,
        LogFormat::Json => log::Format::Json,
    }
}

/// Reads the settings, while the page is there already, and goes on to [`live`].
async fn begin(
    sources: Sources,
    known: Provisional,
    lines: log::Recent,
    (executor, start): (Rc<Executor>, &Start),
) -> std::result::Result<Exit, Vec<Error>> {
    let mut signals = Signals::new().map_err(|error| vec![error])?;
    let shared_state = Rc::new(SharedState::new(clock::now));
    let jobs = Jobs::default();
    let _alive = executor.spawn(keep_alive(known.surroundings.clone()));
    let starting = Starting::new(executor, shared_state, jobs.clone());
    let watched = starting.watch(None);
    let notifier = Notifier::new(known.surroundings.notify_socket.as_deref());
    let before = (&starting, &notifier);
    let Some(settings) = unusable::settings(&sources, &known, before, &mut signals).await else {
        start.forget();
        return Ok(Exit::Fine);
    };
    let settings = settings?;
    drop(watched);
    log::reconfigure(form(settings.log, &settings.surroundings));
    let live = Box::pin(live(settings, lines, (starting, start), signals));
    live.await.map_err(|error| vec![error])
}

/// The machine as its files say at the start.
struct Machine {
    host: host::facts::Facts,
    cluster: Option<FoundCluster>,
}

/// Parts that the agent cannot begin without.
struct Opened {
    store: Store,
    telemetry: Telemetry,
    loaded: store::Loaded,
    machine: Machine,
}

/// Opens what is on disk. A kubeconfig that cannot be read now holds up nothing: it is read again
/// later.
async fn open(settings: &Settings, mode: Mode, starting: &Starting) -> Result<Opened> {
    let (jobs, shared_state) = (&starting.jobs, &starting.shared_state);
    let directory = settings.agent.state_dir.clone();
    let (store, opening) = Store::begin(directory, shared_state.now().wall, jobs.clone())?;
    let host = jobs.run_to_end(Job::Machine, || host::facts::Facts::read(Path::new("/")));
    let named = settings.agent.kubeconfig.clone();
    let surroundings = settings.surroundings.clone();
    let find = move || FoundCluster::read(named.as_deref(), &surroundings);
    let find = jobs.run(Job::Kubeconfig, find);
    let ((loaded, host), found) = future::zip(future::zip(opening.loaded(), host), find).await;
    let loaded = loaded?;
    shared_state.show_all(&store::CONDITIONS, loaded.conditions.clone());
    let unread = |_: Error| {
        let named = settings.agent.kubeconfig.as_deref();
        Some(FoundCluster::unread(named, &settings.surroundings))
    };
    let cluster = found.unwrap_or_else(unread);
    Ok(Opened {
        store,
        // Not before the store: it has the lock of the directory.
        telemetry: wiring::telemetry(settings, shared_state, (jobs.clone(), mode)).await?,
        loaded,
        machine: Machine { host, cluster },
    })
}

/// Waits for a signal to stop.
async fn stop_signal(signals: &mut Signals, start: &Start) {
    while signals.next().await == Some(Signal::Reload) {
        ::log::info!(
            "SIGHUP: tokens, kubeconfigs and certificates are reloaded automatically; restart to apply a changed configuration"
        );
    }
    start.forget();
}

async fn live(
    settings: Settings,
    lines: log::Recent,
    (starting, start): (Starting, &Start),
    mut signals: Signals,
) -> Result<Exit> {
    ::log::info!("pipeops-agent {VERSION} starts");
    for warning in &settings.warnings {
        ::log::warn!("{}", warning.sentence());
    }
    let _watched = starting.watch(Some(settings.agent.state_dir.clone()));
    let notifier = Notifier::new(settings.surroundings.notify_socket.as_deref());
    start.report(&starting.shared_state);
    let mode = start.mode();
    let (opened, addresses) = (open(&settings, mode, &starting), Addresses::of(&settings));
    let opened = starting
        .until(opened, (&addresses, &notifier), &mut signals)
        .await;
    let Some(opened) = opened else {
        start.forget();
        return Ok(Exit::Fine);
    };
    let Opened {
        store,
        telemetry,
        loaded,
        machine,
    } = opened?;
    let listeners = starting.listeners();
    let Starting {
        executor,
        shared_state,
        jobs,
        ..
    } = starting;
    let databases = (store.handle(), telemetry.handle());
    shared_state.stage.set(Stage::Running);
    let found = (&loaded, machine);
    let settings = (settings, jobs, mode);
    let agent = Agent::new(settings, executor, shared_state, databases, found);
    let agent = Rc::new(Agent {
        lines,
        listeners,
        ..agent
    });
    let (commands, received) = bounded(COMMANDS_MAX);
    let mut tasks = vec![
        agent.spawn(Rc::clone(&agent).serve()),
        agent.spawn(Rc::clone(&agent).tend()),
        agent.spawn(Rc::clone(&agent).report_status()),
    ];
    if mode.is_normal() {
        tasks.extend(agent.work(&loaded));
    }
    let link = agent.spawn(Rc::clone(&agent).link(loaded, commands.clone(), received));
    agent.notifier.ready("starting");
    stop_signal(&mut signals, start)
        .or(start.watch())
        .or(agent.restart_on_cluster(start))
        .await;
    agent.notifier.stopping();
    ::log::info!("stopping");
    let again = async {
        signals.next().await;
        ::log::warn!("second signal: stopping immediately");
    };
    let stopped = async {
        stop_link(link, &commands).await;
        drop(tasks);
        stop(&agent, store, telemetry).await;
    };
    stopped.or(again).await;
    ::log::info!("stopped");
    Ok(Exit::Fine)
}

/// Writes what waits, once nothing new can come.
async fn stop(agent: &Agent, store: Store, telemetry: Telemetry) {
    agent.proxy.session_lost();
    // A disk that hangs may keep the last sums; it may not keep the program.
    agent.proxy.flush_audit().or(wait(FLUSH_WITHIN)).await;
    if agent.mode.is_normal() {
        agent.flush_samples().or(wait(FLUSH_WITHIN)).await;
    }
    let closed = store.close().await.and(telemetry.close().await);
    if let Err(failure) = closed {
        ::log::warn!("the store was not closed cleanly: {failure}");
    }
}

async fn wait(time: Duration) {
    Timer::after(time).await;
}

/// Tells the service manager that the executor runs, for as long as it does: no task that waits for
/// a disk or for the network holds this up.
async fn keep_alive(surroundings: ServiceEnvironment) {
    let Some(within_us) = surroundings.watchdog_us else {
        return;
    };
    let notifier = Notifier::new(surroundings.notify_socket.as_deref());
    notifier.watchdog();
    // Four signs of life in the time in which one has to come.
    let mut signs = Timer::interval(Duration::from_micros(within_us / 4));
    while signs.next().await.is_some() {
        notifier.watchdog();
    }
}

async fn stop_link(link: Task<()>, commands: &Sender<LinkCommand>) {
    let good_bye = async {
        // The uplink has ended where nobody takes the command any more.
        if commands.send(LinkCommand::Stop).await.is_ok() {
            link.await;
        }
    };
    let late = async {
        Timer::after(GOOD_BYE).await;
    };
    good_bye.or(late).await;
}

/// Shared components of the running agent.
struct Agent {
    settings: Settings,
    jobs: Jobs,
    mode: Mode,
    lines: log::Recent,
    listeners: Rc<Listeners>,
    executor: Rc<Executor>,
    shared_state: Rc<SharedState>,
    notifier: Notifier,
    store: store::Handle,
    telemetry: telemetry::Handle,
    network: Network,
    cluster: Option<Client>,
    known: Rc<cluster::Known>,
    liveness: Option<Rc<Liveness>>,
    rights: Option<Rc<Rights>>,
    apps: Option<Rc<Apps>>,
    lease_gate: Rc<LeaseGate>,
    delegate: Option<Rc<Delegate>>,
    revocation: Option<Rc<Revocation>>,
    registrar: Rc<Registrar>,
    proxy: Rc<Proxy>,
    delivery: Rc<Delivery>,
    access: Rc<Access>,
    login: Rc<Logins>,
    stream: Rc<Stream>,
    sampler: Rc<Sampler>,
    publisher: Rc<Publisher>,
    audit_writer: AuditWriter,
}

impl Agent {
    fn new(
        (settings, jobs, mode): (Settings, Jobs, Mode),
        executor: Rc<Executor>,
        shared_state: Rc<SharedState>,
        (store, telemetry): (store::Handle, telemetry::Handle),
        (loaded, machine): (&store::Loaded, Machine),
    ) -> Self {
        let notes = &loaded.notes;
        let network = Network::new(&settings, loaded.clock.unwrap_or_default());
        let cluster = wiring::cluster(machine.cluster, &network, &shared_state, (&executor, &jobs));
        // In safe mode nobody looks at the cluster beside the link.
        let watched = cluster.as_ref().filter(|_| mode.is_normal());
        let liveness = wiring::liveness(watched, &shared_state);
        let delegate = wiring::delegate(&settings, cluster.as_ref(), notes);
        let shared = (&store, notes, &shared_state);
        let revocation = wiring::revocation(&settings, delegate.as_ref(), shared);
        let registrar =
            wiring::registrar(&settings, machine.host, &shared_state, delegate.as_deref());
        let stream = Rc::new(Stream::new(shared_state.started().wall));
        let audit_writer = AuditWriter::streamed(store.clone(), Rc::clone(&stream));
        let configured = wiring::configured(&settings, mode);
        let proxy = Rc::new(wiring::proxy(
            (&settings, &configured),
            (cluster.clone(), delegate.clone()),
            &executor,
            (audit_writer.clone(), jobs.clone()),
        ));
        let rights = delegate.as_ref().filter(|_| mode.is_normal());
        let rights = wiring::rights(rights, &shared_state, &proxy);
        let lease_gate = wiring::lease_gate(&settings, cluster.as_ref());
        let records = deliver::Databases {
            has_control_plane: settings.pipeops.control_plane.is_some(),
            telemetry: telemetry.clone(),
            state: store.clone(),
        };
        let delivery = wiring::delivery(records, &registrar, &shared_state, &executor);
        let kept = (&store, &audit_writer, &shared_state);
        let flows = (&proxy, &delivery, &executor);
        let apps = wiring::apps(&settings, watched, (kept, &lease_gate), flows);
        let access = level::AccessDependencies {
            configured,
            proxy: Rc::clone(&proxy),
            audit_writer: audit_writer.clone(),
            shared_state: Rc::clone(&shared_state),
        };
        let access = Rc::new(Access::new(access, notes));
        let login = Logins::new(audit_writer.clone(), Rc::clone(&shared_state), notes);
        let sampler = Rc::new(network.sampler(&settings, &shared_state));
        Self {
            publisher: wiring::publisher(&shared_state, &telemetry, &stream),
            notifier: Notifier::new(settings.surroundings.notify_socket.as_deref()),
            settings,
            jobs,
            mode,
            lines: log::Recent::default(),
            listeners: Rc::default(),
            executor,
            shared_state,
            store,
            telemetry,
            network,
            cluster,
            known: Rc::default(),
            liveness,
            rights,
            apps,
            lease_gate,
            delegate,
            revocation,
            registrar,
            proxy,
            delivery,
            access,
            login: Rc::new(login),
            stream,
            sampler,
            audit_writer,
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + 'static) -> Task<()> {
        self.executor.spawn(work)
    }

    /// Everything beside the link and the local page.
    fn work(self: &Rc<Self>, loaded: &store::Loaded) -> [Task<()>; 11] {
        // One word is enough for any number of flushes.
        let (flushed, to_write) = bounded(1);
        let notified = loaded.notes.get(crate::tasks::telemetry::notify::NOTE);
        let notified = notified.map(str::to_owned);
        [
            self.spawn(Rc::clone(self).sample()),
            self.spawn(Rc::clone(self).observe()),
            self.spawn(Rc::clone(self).check_liveness()),
            self.spawn(Rc::clone(self).compare_rights()),
            self.spawn(Rc::clone(self).revoke()),
            self.spawn(Rc::clone(self).run_apps()),
            self.spawn(Rc::clone(self).keep_samples(flushed)),
            self.spawn(Rc::clone(self).write_remotely(to_write)),
            self.spawn(Rc::clone(self).notify_people(notified)),
            self.spawn(Rc::clone(self).copy_backups()),
            self.spawn(k3s::follow(
                PathBuf::from("/"),
                Rc::clone(&self.shared_state),
            )),
        ]
    }

    fn local(self: &Rc<Self>) -> Rc<Local> {
        Rc::new(Local {
            shared_state: Rc::clone(&self.shared_state),
            registrar: Rc::clone(&self.registrar),
            proxy: Rc::clone(&self.proxy),
            access: Rc::clone(&self.access),
            login: Rc::clone(&self.login),
            sampler: Rc::clone(&self.sampler),
            telemetry: self.telemetry.clone(),
            audit_writer: self.audit_writer.clone(),
            stream: Rc::clone(&self.stream),
            publisher: Rc::clone(&self.publisher),
            sources: self.sources(),
            liveness: self.liveness.clone(),
            rights: self.rights.clone(),
            apps: self.apps.clone(),
            app_operators: self.settings.app_operators.clone(),
        })
    }

    /// Measures the machine, for whoever asks and for the archive.
    async fn sample(self: Rc<Self>) {
        self.sampler
            .run(async |tick| self.keep(Topic::Ticks, tick).await)
            .await;
    }

    /// Keeps a sample.
    async fn keep(&self, topic: Topic, tick: Tick) {
        self.stream.measured(topic, &tick);
        if let Err(failure) = self.telemetry.take(tick).await {
            ::log::debug!("a sample was not stored: {failure}");
        }
    }

    /// Watches the cluster, where there is one.
    async fn observe(self: Rc<Self>) {
        if let Some(client) = self.cluster.clone() {
            let fix = wiring::manifest(&self.settings).command();
            let known = Rc::clone(&self.known);
            let (tell, failures) = last_words::channel();
            let counted = observe::run(
                client.clone(),
                Rc::clone(&self.shared_state),
                Rc::clone(&known),
                tell,
            );
            let collector = cluster::Collector {
                client: client.clone(),
                known,
                shared_state: Rc::clone(&self.shared_state),
                is_believed: self.network.believer(),
                fix: wiring::manifest(&self.settings).node_stats_command(),
            };
            let sampled = cluster::run(&collector, cluster::EVERY, async |tick| {
                self.keep(Topic::ClusterTicks, tick).await
            });
            let sinks = (&self.telemetry, &self.shared_state);
            let words = last_words::run(&client, &failures, sinks, &fix);
            let watched = future::zip(counted, self.publisher.events().run(&client, &fix));
            future::zip(future::zip(watched, words), sampled).await;
        }
    }

    /// Finds out whether the cluster answers, where there is one.
    async fn check_liveness(self: Rc<Self>) {
        if let Some(liveness) = &self.liveness {
            liveness.run().await;
        }
    }

    /// Looks whether the cluster has what calls of the control plane need, and no more.
    async fn compare_rights(self: Rc<Self>) {
        if let Some(rights) = &self.rights {
            rights.run().await;
        }
    }

    /// Invalidates shared tokens that permit more than the access level.
    async fn revoke(self: Rc<Self>) {
        if let Some(revocation) = &self.revocation {
            revocation.run().await;
        }
    }

    /// Carries out changes of apps while this agent is the one that does, and keeps them up to
    /// date.
    async fn run_apps(self: Rc<Self>) {
        if let Some(apps) = self.apps.clone() {
            let led = Box::pin(Rc::clone(&apps).lead());
            let kept = Box::pin(Rc::clone(&apps).keep_as_deployed());
            let folder = Box::pin(Rc::clone(&apps).watch_folder());
            let up_to_date = Box::pin(Rc::clone(&apps).keep_up_to_date());
            let images = Box::pin(apps.keep_images());
            let cared_for = led.or(kept).or(folder);
            cared_for.or(up_to_date).or(images).await;
        }
    }

    /// Writes what was measured once a minute: that is what a power cut takes, and what a card can
    /// bear.
    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    async fn keep_samples(self: Rc<Self>, flushed: Sender<()>) {
        loop {
            Timer::after(FLUSH_EVERY).await;
            self.flush_samples().await;
            // Where nobody waits, or one word waits already, nothing is lost.
            let _full_or_closed = flushed.try_send(());
        }
    }

    /// Delivers samples to the receiver of the settings, where there is one.
    async fn write_remotely(self: Rc<Self>, flushed: Receiver<()>) {
        let Some(settings) = &self.settings.telemetry.remote_write else {
            // What another configuration had begun holds back nothing any more.
            let destination = remote_write::DESTINATION.to_owned();
            if let Err(failure) = self.telemetry.forget(destination).await {
                ::log::debug!("a receiver of samples is not forgotten: {failure}");
            }
            return;
        };
        let authorization = self.authorization(settings.credentials.as_ref());
        let dependencies = remote_write::DeliveryDependencies {
            samples: self.telemetry.clone(),
            receiver: outside::remote_write::RemoteWriteClient(
                self.client(&settings.url, remote_write::UNREACHED).await,
            ),
            authorization: &authorization,
            labels: &|| wiring::external_labels(settings, &self.registrar),
            flushed,
            shared_state: &self.shared_state,
        };
        remote_write::run(dependencies).await;
    }

    async fn flush_samples(&self) {
        self.publisher.end_minute().await;
        let now = self.shared_state.now();
        let clock_is_set = self.network.clock_is_set();
        // The archive reports what is wrong with its disk by itself.
        if let Err(failure) = self.telemetry.flush(now, clock_is_set).await {
            ::log::debug!("samples wait for the disk: {failure}");
        }
        self.delivery.look();
    }

    /// Looks after the disk.
    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    async fn tend(self: Rc<Self>) {
        loop {
            self.network.report_clock(&self.shared_state);
            self.access.tend().await;
            match self.store.tend(self.shared_state.now().wall).await {
                Ok(conditions) => self.shared_state.show_all(&store::CONDITIONS, conditions),
                Err(failure) => ::log::debug!("the disk was not looked after: {failure}"),
            }
            // What was asked and changed is written by then.
            self.delivery.look();
            if self.mode.is_normal() {
                self.tend_samples().await;
            }
            clock::tick(TEND_EVERY).await;
        }
    }

    async fn tend_samples(&self) {
        match self.telemetry.tend(self.shared_state.now()).await {
            Ok(conditions) => self
                .shared_state
                .show_all(&telemetry::CONDITIONS, conditions),
            Err(failure) => ::log::debug!("the samples were not looked after: {failure}"),
        }
    }

    /// Tells the service manager how everything is, when that is another word than before.
    async fn report_status(self: Rc<Self>) {
        let mut said = String::new();
        while self.notifier.is_heard() {
            let sentence = status::verdict(&self.shared_state).sentence;
            if said != sentence {
                self.notifier.status(&sentence);
                said = sentence;
            }
            clock::tick(TELL_EVERY).await;
        }
    }
}
