//! Doctor: collects facts from the host and the network and runs the checks, within two seconds in
//! all.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use smol::{
    LocalExecutor, Timer,
    channel::{Receiver, bounded},
    future::{or, zip},
};

use super::keeper::Keeper;
use crate::{
    core::{
        doctor::{CERTIFICATE, CheckResult, SECRETS, is_behind, judge},
        environment::Environment,
        facts::{Fact, Facts},
        order::GatherExt as _,
        rates::Reading,
        time::Wall,
    },
    dashboard::{Origin, Time},
    error::Error,
    executor::{self, Executor},
    files,
    host::{clock, doctor, sample},
    kube::{
        self, Client,
        kubeconfig::{self, Source},
    },
    net::{
        self, Elapsed, Phase, deadline,
        dial::{Dialer, Route},
        nameserver,
        proxy::Proxy,
        steps::{Deadlines, try_steps},
        target::Target,
        tls::{Tls, build_date},
    },
    wire::api::Doctor,
};

/// Time for disk and kernel to answer: a file that hangs costs the facts behind it.
const READ_WITHIN: Duration = Duration::from_millis(900);
/// Time for everything together.
const ALL_WITHIN: Duration = Duration::from_millis(1850);
/// Minimum time left for the network.
const ASK_AT_LEAST: Duration = Duration::from_millis(300);
/// Facts on the way from the reading thread.
const FACTS_MAX: usize = 64;
/// Servers of resolv.conf that are asked; libc asks three.
const SERVERS_MAX: usize = 4;
/// Search domains that are tried.
const DOMAINS_MAX: usize = 2;
/// A name that nobody has, in front of a search domain.
const NOBODY: &str = "no-such-machine-4f1d7c";

/// Paths to read.
#[derive(Clone, Debug)]
pub struct Paths {
    /// `/`, or a captured tree.
    pub root: PathBuf,
    /// The agent's own folder, below `root`.
    pub state_dir: PathBuf,
}

/// Machine and agent that the doctor examines.
#[derive(Clone, Debug)]
pub struct DoctorTarget {
    /// Paths of files.
    pub paths: Paths,
    /// State of the configuration: values or the error.
    pub settings: Result<String, Error>,
    /// Certificate of the dashboard; `None`: other machines do not reach it.
    pub certificate: Option<Origin>,
    /// Files that hold tokens and passwords.
    pub secrets: Vec<PathBuf>,
    /// Servers to ask over the network; `None` asks none.
    pub network: Option<Network>,
    /// Socket of the keeper, which sees facts that only root can read.
    pub keeper: PathBuf,
}

impl DoctorTarget {
    /// This machine, where the files of the settings cannot be read now.
    pub fn unread(why: Error, state_dir: PathBuf, keeper: PathBuf) -> Self {
        Self {
            paths: Paths {
                root: PathBuf::from("/"),
                state_dir,
            },
            settings: Err(why),
            certificate: None,
            secrets: Vec::new(),
            network: None,
            keeper,
        }
    }
}

/// Servers to ask over the network.
#[derive(Clone, Debug)]
pub struct Network {
    /// Makes connections.
    pub dialer: Dialer,
    /// The control plane, where the settings name one.
    pub control_plane: Option<ControlPlane>,
    /// The cluster, where there is one.
    pub cluster: Option<kube::Settings>,
}

/// The way to the control plane.
#[derive(Clone, Debug)]
pub struct ControlPlane {
    /// Address.
    pub target: Target,
    /// TLS settings; `None` for a plain connection.
    pub tls: Option<Tls>,
    pub proxy: Option<Proxy>,
}

/// Everything that was found out.
#[derive(Debug)]
pub struct Report {
    /// Environment of the machine.
    pub environment: Environment,
    /// All checks: problems first, the worst on top.
    pub verdicts: Vec<CheckResult>,
    /// Time.
    pub at: Wall,
    /// Duration.
    pub took: Duration,
    /// True if the root helper answered.
    pub has_helper: bool,
    /// True if everything on this machine was read in time; otherwise what was not read may look
    /// missing.
    pub is_whole: bool,
}

impl Report {
    /// Shape for the API and the command line.
    pub fn to_wire(&self) -> Doctor {
        let took_ms = u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX);
        let answer = Doctor {
            is_whole: self.is_whole,
            ..Doctor::new(&self.environment, &self.verdicts, self.at, took_ms)
        };
        if self.has_helper {
            return answer;
        }
        let start = self.environment.filled("{start pipeops-keeper}", "");
        answer.without_helper(&start)
    }
}

/// Runs all checks.
pub async fn run(subject: &DoctorTarget) -> Report {
    let started = clock::now();
    let found = zip(read(&subject.paths), seen_by_root(&subject.keeper));
    let (((mut facts, is_whole), by_root), certificate) = zip(found, certificate(subject)).await;
    let has_helper = by_root.is_some();
    facts.complete(by_root.unwrap_or_default());
    let certificate = certificate.map(|fact| (CERTIFICATE.to_owned(), fact));
    facts.found.extend(certificate);
    let secrets = secrets(subject).await;
    facts
        .found
        .extend(secrets.map(|fact| (SECRETS.to_owned(), fact)));
    settings(subject, &mut facts);
    if let Some(network) = &subject.network {
        let spent = clock::now().mono.since(started.mono);
        let limit = ALL_WITHIN.saturating_sub(spent).max(ASK_AT_LEAST);
        let answers = ask(network, &facts, limit).await;
        facts.found.extend(answers);
    }
    let environment = Environment::of(&facts);
    let verdicts = judge(&facts, &environment);
    Report {
        environment,
        verdicts,
        at: started.wall,
        took: clock::now().mono.since(started.mono),
        has_helper,
        is_whole,
    }
}

/// Message of the thread that reads files.
enum DoctorInput {
    Fact(String, Fact),
    Reading(Box<Reading>),
}

/// Reads this machine. False beside it where the time was over before everything was read.
async fn read(paths: &Paths) -> (Facts, bool) {
    let mut facts = Facts {
        now: clock::now().wall,
        built: build_date(),
        ..Facts::default()
    };
    let (sender, receiver) = bounded(FACTS_MAX);
    let paths = paths.clone();
    // It owns itself: a file that hangs cannot be cancelled, only left behind. Dropping `told` ends
    // it at its next fact.
    let reading = executor::unblock(move || {
        let tell_fact = |name, fact| sender.send_blocking(DoctorInput::Fact(name, fact)).is_ok();
        doctor::read(&paths.root, doctor::names(), tell_fact);
        let (name, fact) = doctor::state(&paths.root, &paths.state_dir);
        tell_fact(name, fact);
        let reading = sample::read_below(&paths.root, &sample::space);
        // Nobody waits any more where it came too late.
        drop(sender.send_blocking(DoctorInput::Reading(Box::new(reading))));
    });
    let whole = async {
        collect(&receiver, &mut facts).await;
        true
    };
    let late = async {
        Timer::after(READ_WITHIN).await;
        false
    };
    let is_whole = or(whole, late).await;
    drop(reading);
    (facts, is_whole)
}

async fn collect(receiver: &Receiver<DoctorInput>, facts: &mut Facts) {
    while let Ok(found) = receiver.recv().await {
        match found {
            DoctorInput::Fact(name, fact) => {
                facts.found.insert(name, fact);
            }
            DoctorInput::Reading(reading) => facts.reading = *reading,
        }
    }
}

/// Facts from the keeper; `None` without one. A slow one has no facts and counts as present.
async fn seen_by_root(socket: &Path) -> Option<BTreeMap<String, Fact>> {
    match deadline(READ_WITHIN, Keeper::at(socket).inspect()).await {
        Ok(Ok(inspection)) => Some(inspection.by_root()),
        Ok(Err(_)) => None,
        Err(_late) => Some(BTreeMap::new()),
    }
}

/// Certificate of the dashboard. This user may not be allowed to read it although the agent's user
/// is.
async fn certificate(subject: &DoctorTarget) -> Option<Fact> {
    let origin = subject.certificate.clone()?;
    let state_dir = subject.paths.state_dir.clone();
    let now = clock::now().wall;
    let time = Time {
        now,
        is_believed: !is_behind(now, build_date()),
    };
    let look = executor::unblock(move || match origin.inspect(time) {
        Ok(seen) => Fact::Text(seen),
        Err(error) if doctor::is_mine(&state_dir) => wrong(&error),
        Err(error) => failed(&error),
    });
    let late = |Elapsed(limit)| Fact::Failed(format!("it could not be read within {limit:?}\n"));
    Some(deadline(READ_WITHIN, look).await.unwrap_or_else(late))
}

/// Returns whether others than their owner can read the files with tokens and passwords. `None`
/// where there are no such files.
async fn secrets(subject: &DoctorTarget) -> Option<Fact> {
    let secrets = subject.secrets.clone();
    if secrets.is_empty() {
        return None;
    }
    let look = executor::unblock(move || {
        let exposed = secrets.iter().find_map(|path| files::exposed(path));
        exposed.map_or_else(
            || Fact::Text("only their owner can read them".to_owned()),
            |error| wrong(&error),
        )
    });
    let late =
        |Elapsed(limit)| Fact::Failed(format!("they could not be looked at within {limit:?}\n"));
    Some(deadline(READ_WITHIN, look).await.unwrap_or_else(late))
}

/// An error as checks read it: the sentence, and the fix in a second line.
fn failed(error: &Error) -> Fact {
    if error.is_denied() {
        return Fact::Forbidden;
    }
    wrong(error)
}

fn wrong(error: &Error) -> Fact {
    let fix = error
        .fix
        .as_deref()
        .unwrap_or("try again; if it persists, create a support bundle: sudo pipeops-agent bundle");
    Fact::Failed(format!("{}\n{fix}", error.sentence()))
}

fn settings(subject: &DoctorTarget, facts: &mut Facts) {
    let fact = match &subject.settings {
        Ok(seen) => Fact::Text(seen.clone()),
        Err(error) => failed(error),
    };
    facts.found.insert("settings".to_owned(), fact);
}

type Answers = Vec<(String, Fact)>;

/// Asks everybody at the same time.
async fn ask(network: &Network, facts: &Facts, limit: Duration) -> Answers {
    let name = network
        .control_plane
        .as_ref()
        .map(|way| way.target.host.as_str());
    let name = name.filter(|name| name.parse::<IpAddr>().is_err());
    let servers = ask_servers(facts, name, limit);
    let control_plane = async {
        match &network.control_plane {
            Some(way) => ask_control_plane(&network.dialer, way, limit).await,
            None => Answers::new(),
        }
    };
    let cluster = async {
        match &network.cluster {
            Some(settings) => ask_cluster(&network.dialer, settings, limit).await,
            None => Answers::new(),
        }
    };
    let ((mut answers, more), rest) = zip(zip(servers, control_plane), cluster).await;
    answers.extend(more);
    answers.extend(rest);
    answers
}

/// Each name server by itself, and whether a search domain answers to anything.
async fn ask_servers(facts: &Facts, name: Option<&str>, limit: Duration) -> Answers {
    const RESOLVER: &str = "/etc/resolv.conf";
    let servers = facts.name_servers(RESOLVER);
    let domains: BTreeSet<&str> = [RESOLVER, "/run/systemd/resolve/resolv.conf"]
        .into_iter()
        .flat_map(|file| facts.resolver_words(file, "search"))
        .filter(|domain| *domain != ".")
        .gather();
    let name = name.unwrap_or(".");
    let executor = LocalExecutor::new();
    let asked = servers.iter().take(SERVERS_MAX).map(|server| {
        executor.spawn(async move {
            (
                format!("dns {server}"),
                answered(*server, name, limit).await,
            )
        })
    });
    let first = servers.first().copied();
    let tried = domains.iter().take(DOMAINS_MAX).filter_map(|domain| {
        let server = first?;
        Some(executor.spawn(async move {
            let asked = format!("{NOBODY}.{domain}");
            let fact = match nameserver::ask(server, &asked, limit).await {
                Ok(answer) if answer.code == 0 && answer.records > 0 => Fact::Text(asked),
                Ok(_) | Err(_) => Fact::Missing,
            };
            (format!("any name of {domain}"), fact)
        }))
    });
    let all: Vec<_> = asked.chain(tried).collect();
    executor
        .run(async {
            let mut answers = Answers::new();
            for one in all {
                answers.push(one.await);
            }
            answers
        })
        .await
}

async fn answered(server: IpAddr, name: &str, limit: Duration) -> Fact {
    match nameserver::ask(server, name, limit).await {
        Err(why) => Fact::Failed(why),
        // A server of names in the house may refuse to speak about the root, and is well.
        Ok(answer) if answer.code == 2 || answer.code == 5 && name != "." => {
            Fact::Failed(format!("it cannot look up {name} (code {})", answer.code))
        }
        Ok(_) => Fact::Text("it answers".to_owned()),
    }
}

/// The steps of a connection as the link makes it.
async fn ask_control_plane(dialer: &Dialer, way: &ControlPlane, limit: Duration) -> Answers {
    let route = Route::direct(&way.target)
        .with_tls(way.tls.as_ref())
        .through(way.proxy.as_ref());
    let deadlines = Deadlines {
        step: limit,
        all: limit,
    };
    let steps = try_steps(dialer, &route, deadlines, clock::now).await;
    let target = way.target.authority();
    let fact = |result: Result<(), net::Error>, seen: String| match result {
        Ok(()) => Fact::Text(seen),
        Err(error) => failed(&(&error).into()),
    };
    let mut tcp = steps.tcp.map(|tried| tried.result);
    let mut whole = steps.whole.map(|tried| tried.result.map(drop));
    // What the proxy says, and what a plain connection does, is no matter of TLS.
    let is_of_tls = |error: &net::Error| matches!(error.phase, Phase::Settings | Phase::Tls);
    if way.tls.is_none() || matches!(&whole, Some(Err(error)) if !is_of_tls(error)) {
        tcp = whole.take().or(tcp);
    }
    let dns = fact(steps.dns.result.map(drop), format!("{target} resolves"));
    let tcp = tcp.map(|result| fact(result, format!("{target} answers")));
    let tls = whole.map(|result| fact(result, "it is valid".to_owned()));
    let facts = [("dns", Some(dns)), ("tcp", tcp), ("tls", tls)].into_iter();
    facts
        .filter_map(|(step, fact)| Some((format!("control plane {step}"), fact?)))
        .collect()
}

async fn ask_cluster(dialer: &Dialer, settings: &kube::Settings, limit: Duration) -> Answers {
    let mut answers = Answers::new();
    let source = settings.source.clone();
    if executor::unblock(move || is_forbidden(&source)).await {
        answers.push(("kubeconfig".to_owned(), Fact::Forbidden));
        answers.push(("kubernetes api".to_owned(), Fact::Forbidden));
        return answers;
    }
    let source = settings.source.clone();
    let cluster = match executor::unblock(move || kubeconfig::load(&source)).await {
        Ok(cluster) => cluster,
        Err(error) => {
            answers.push(("kubeconfig".to_owned(), failed(&error)));
            return answers;
        }
    };
    answers.push((
        "kubeconfig".to_owned(),
        Fact::Text(format!("it points to {}", cluster.server)),
    ));
    let certificate = cluster
        .client
        .as_ref()
        .map(|client| &client.certificate_pem);
    if let Some((from, to)) = certificate.and_then(|pem| doctor::certificate::of_pem(pem)) {
        let dates = format!("{} {}", from.millis(), to.millis());
        answers.push(("kubeconfig dates".to_owned(), Fact::Text(dates)));
    }
    let executor = Rc::new(Executor::new());
    let client = Client::new(settings, dialer.clone(), Rc::clone(&executor));
    let version = deadline(limit, executor.run(client.version())).await;
    let fact = match version {
        Ok(Ok(version)) => Fact::Text(format!("it answers, {version}")),
        Ok(Err(error)) => failed(&Error::from(&error)),
        Err(Elapsed(limit)) => {
            failed(&Error::new(Elapsed(limit).to_string()).fix("wait until k3s has started"))
        }
    };
    answers.push(("kubernetes api".to_owned(), fact));
    answers
}

fn is_forbidden(source: &Source) -> bool {
    let is_denied = |path: &PathBuf| {
        let opened = std::fs::File::open(path).map_err(|error| error.kind());
        matches!(opened, Err(io::ErrorKind::PermissionDenied))
    };
    match source {
        Source::Files(paths) => paths.iter().any(is_denied),
        Source::K3s { own, admin } if own.exists() => is_denied(own),
        Source::K3s { admin, .. } => is_denied(admin),
        Source::InCluster { .. } => false,
    }
}
