//! Several agents of one real cluster: one link, whatever happens to the one that holds it.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use plane::{Direction, Opcode, Options, Plane, SessionInfo};
use serde_json::{Value, json};

use crate::{
    accounts::{Accounts, GrantScope},
    agent::{Agent, clock, command, output_text, put, until},
    cluster::{Held, admin, calm, kubectl, variable},
    kube::certificates::{Authority, Valid},
};

/// What is promised.
pub(crate) const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(20);
/// What settles by itself, on a busy machine.
const SETTLES_WITHIN: Duration = Duration::from_secs(60);
/// A day: clocks of two machines have nothing to do with each other.
const SHIFTED_BOOT: [&str; 6] = [
    "unshare",
    "-T",
    "--boottime",
    "86400",
    "--monotonic",
    "86400",
];
/// Debian's, below the folder of an architecture.
const FAKETIME: &str = "faketime/libfaketime.so.1";

fn agent(plane: &Plane, accounts: &Accounts, name: &str) -> Agent {
    let kubeconfig = accounts.kubeconfig("pipeops-agent");
    Agent::new(plane)
        .with("PIPEOPS_AGENT_ID", format!("agent-{name}"))
        .with("PIPEOPS_ACCESS_LEVEL", "managed")
        .with("PIPEOPS_AGENT_NAMESPACE", accounts.namespace())
        // Where it may look for an earlier installation.
        .with("PIPEOPS_STATE_NAMESPACE", accounts.namespace())
        .with("KUBECONFIG", kubeconfig.display().to_string())
}

/// Where libfaketime lies, on whatever architecture.
pub(crate) fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
    let mut files = folders.map(|folder| folder.path().join(FAKETIME));
    files.find(|file| file.exists())
}

pub(crate) fn in_another_time(agent: Agent, library: &Path, shift: &str) -> Agent {
    agent
        .with("LD_PRELOAD", library.display().to_string())
        .with("FAKETIME", shift)
        .with("FAKETIME_DONT_FAKE_MONOTONIC", "1")
}

/// Returns whether a program that `unshare -T` starts lives in another time: older kernels give
/// that to its children only.
fn can_shift_boot() -> bool {
    let [unshare, more @ ..] = SHIFTED_BOOT;
    let own = std::fs::read_link("/proc/self/ns/time").ok();
    let there = command(unshare)
        .args(more)
        .args(["readlink", "/proc/self/ns/time"])
        .output();
    own.is_some()
        && there.is_ok_and(|output| {
            output.status.success()
                && Path::new(output_text(&output).trim()) != own.as_deref().unwrap()
        })
}

/// A control plane and the agents of one cluster.
struct Bench {
    plane: Plane,
    agents: Vec<Agent>,
    accounts: Accounts,
    _cluster: Held,
}

impl Bench {
    fn new() -> Option<Self> {
        let held = calm()?;
        let accounts = Accounts::new(GrantScope::Managed);
        let plane = Plane::start(Options::default()).unwrap();
        let agents = ["a", "b", "c"].map(|name| agent(&plane, &accounts, name));
        let [a, mut b, mut c] = agents;
        // One was booted at another time, one is in the next month.
        if can_shift_boot() {
            b = b.under(&SHIFTED_BOOT);
        } else {
            println!(
                "skipped: an agent that was booted at another time: no time namespace can be had here"
            );
        }
        match faketime() {
            Some(library) => c = in_another_time(c, &library, "+30d"),
            None => println!(
                "skipped: an agent whose clock is a month ahead: libfaketime is not installed: tests/setup test installs it"
            ),
        }
        Some(Self {
            plane,
            agents: vec![a, b, c],
            accounts,
            _cluster: held,
        })
    }

    /// The Lease, as it is.
    fn lease(&self) -> Value {
        let text = kubectl(&[
            "get",
            "lease",
            "pipeops-agent",
            "-o",
            "json",
            "-n",
            self.accounts.namespace(),
        ]);
        serde_json::from_str(&text).unwrap()
    }

    fn note(&self, name: &str) -> Value {
        let lease = self.lease();
        let note = lease["metadata"]["annotations"][name].as_str();
        serde_json::from_str(note.unwrap_or("null")).unwrap()
    }

    fn beat(&self) -> u64 {
        self.note("pipeops.io/link-holder")["beat"]
            .as_u64()
            .unwrap()
    }

    /// Waits until this one links and all others stand by, and say so in the Lease.
    fn until_settled(&self, holder: usize) {
        for (index, agent) in self.agents.iter().enumerate() {
            let wanted = if index == holder {
                "ready"
            } else {
                "standing by"
            };
            agent.until(wanted, SETTLES_WITHIN, |status| {
                (status["link"]["state"] == wanted).then_some(())
            });
        }
        until("rivals are known", SETTLES_WITHIN, || {
            let lease = self.lease();
            let standby = self.note("pipeops.io/link-standby");
            let names: Vec<_> = standby.as_array()?.iter().map(|one| &one["beat"]).collect();
            let are_here = names.len() == 2 && names.iter().all(|beat| **beat != json!(0));
            (lease["spec"]["leaseDurationSeconds"] == 12 && are_here).then_some(())
        });
    }

    /// The session that carries requests now.
    fn session(&self) -> SessionInfo {
        self.plane.wait_ready(SETTLES_WITHIN).expect("a link")
    }

    /// Waits for a link after this one; which agent has it, and how long that took.
    fn until_taken_over(&self, lost: &SessionInfo, began: Instant) -> (usize, Duration) {
        let before = lost.number;
        self.plane
            .until(TAKEN_OVER_WITHIN, move |view| {
                view.sessions
                    .iter()
                    .any(|session| session.is_ready && session.number > before)
                    .then_some(())
            })
            .expect("another agent takes over");
        let took = clock() - began;
        let next = self.session();
        assert_eq!(next.cluster_id, lost.cluster_id, "it is the same cluster");
        let holder = until("the Lease says who", SETTLES_WITHIN, || {
            let note = self.note("pipeops.io/link-holder");
            let name = note["agent"].as_str()?.strip_prefix("agent-")?.to_owned();
            ["a", "b", "c"].iter().position(|known| **known == *name)
        });
        (holder, took)
    }

    /// A user of the control plane reaches the cluster, by way of whoever has the link.
    fn is_reached(&self) {
        let cluster_id = self.session().cluster_id.unwrap();
        let file = self.agents[0].folder().join("through-the-link.yaml");
        put(&file, &self.plane.kubeconfig(&cluster_id));
        until("a request is answered", SETTLES_WITHIN, || {
            let output = command(variable("KUBECTL"))
                .arg("--kubeconfig")
                .arg(&file)
                .args(["get", "namespaces", "-o", "name"])
                .output()
                .unwrap();
            output_text(&output)
                .contains("namespace/default")
                .then_some(())
        });
    }
}

/// No agent said anything on its link after another one had begun: sessions follow each other.
pub(crate) fn never_two_links(plane: &Plane) {
    let mut lives: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for frame in plane.frames() {
        if frame.direction == Direction::FromAgent && frame.opcode != Opcode::Close {
            let life = lives
                .entry(frame.session)
                .or_insert((frame.number, frame.number));
            life.1 = frame.number;
        }
    }
    let mut lives: Vec<_> = lives.into_values().collect();
    lives.sort_unstable();
    for pair in lives.windows(2) {
        assert!(pair[0].1 < pair[1].0, "two links at once: {lives:?}");
    }
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn three_agents_have_one_link_whatever_happens_to_the_holder() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.agents[0].start();
    bench.session();
    for index in [1, 2] {
        bench.agents[index].start();
    }
    bench.until_settled(0);
    the_clocks_differ(&bench);
    standing_by_is_healthy(&bench.agents[1]);
    bench.is_reached();
    clocks_in_the_lease_mean_nothing(&bench);

    // Killed, as by a power cut; it comes back and stands by.
    let (lost, began) = (bench.session(), clock());
    bench.agents[0].kill();
    let (second, killed) = bench.until_taken_over(&lost, began);
    bench.agents[0].start();
    bench.until_settled(second);
    bench.is_reached();

    // Stopped, and going on when another one has the link: it has nothing more to say on its own.
    let (lost, began) = (bench.session(), clock());
    bench.agents[second].signal(Signal::SIGSTOP);
    let (third, stopped) = bench.until_taken_over(&lost, began);
    bench.agents[second].signal(Signal::SIGCONT);
    bench.until_settled(third);
    bench.is_reached();

    // An orderly stop gives the link away.
    let (lost, began) = (bench.session(), clock());
    assert!(bench.agents[third].stop().success());
    let (_, released) = bench.until_taken_over(&lost, began);
    bench.is_reached();

    never_two_links(&bench.plane);
    assert_eq!(bench.plane.clusters().len(), 1, "all are one cluster");
    println!(
        "take-over: killed {} ms, stopped {} ms, released {} ms",
        killed.as_millis(),
        stopped.as_millis(),
        released.as_millis()
    );
}

/// The shifts arrived, where this machine can do them: without them nothing here says that clocks
/// mean nothing.
fn the_clocks_differ(bench: &Bench) {
    let time_of = |agent: &Agent| {
        std::fs::read_link(format!("/proc/{}/ns/time", agent.pid())).expect("its namespace of time")
    };
    if can_shift_boot() {
        assert_ne!(time_of(&bench.agents[1]), time_of(&bench.agents[0]));
    }
    let day_of = |agent: &Agent| {
        let log = agent.log();
        let line = log.lines().find(|line| line.starts_with("20"));
        line.and_then(|line| line.get(..10))
            .expect("a line with its time")
            .to_owned()
    };
    if faketime().is_some() {
        assert_ne!(day_of(&bench.agents[2]), day_of(&bench.agents[0]));
    }
}

/// It says whose the link is, in words, and nothing is wrong with it.
fn standing_by_is_healthy(agent: &Agent) {
    let status = agent.status();
    let why = status["link"]["why"].as_str().unwrap();
    assert!(
        why.starts_with("agent agent-a on host ")
            && why.ends_with(" holds the link of this cluster"),
        "{why}"
    );
    let condition = agent.until_condition("lease.standby", SETTLES_WITHIN);
    assert_eq!(condition["severity"], "note");
    // Machine and workloads may be another matter: the cluster has a Pod that is never ready.
    let link = &status["verdict"]["parts"][1];
    assert_eq!(
        (&link["code"], &link["severity"]),
        (&"link.standby".into(), &"note".into()),
        "{status}"
    );
}

/// Times of the past and of the future in the Lease change nothing.
fn clocks_in_the_lease_mean_nothing(bench: &Bench) {
    let before = bench.session();
    for time in ["1970-01-01T00:00:00.000000Z", "2199-01-01T00:00:00.000000Z"] {
        let patch = json!({"spec": {"renewTime": time, "acquireTime": time}}).to_string();
        let namespace = bench.accounts.namespace();
        kubectl(&[
            "patch",
            "lease",
            "pipeops-agent",
            "--type=merge",
            "-p",
            &patch,
            "-n",
            namespace,
        ]);
        let beat = bench.beat();
        until("the holder goes on", SETTLES_WITHIN, || {
            (bench.beat() > beat + 2).then_some(())
        });
    }
    assert_eq!(bench.session().number, before.number);
}

/// A board without a clock may be one of several that serve a healthy cluster: it does not take a
/// certificate of the future for a cluster without an API.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a server of a few lines; it ends with the process of the tests"
)]
fn an_agent_whose_clock_is_behind_the_clusters_does_not_link() {
    let authority = Authority::new();
    let tls = authority.server(Valid::Later);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut session = rustls::ServerConnection::new(Arc::clone(&tls)).unwrap();
            // The client is the one that says no.
            session.complete_io(&mut stream).ok();
        }
    });
    let plane = Plane::start(Options::default()).unwrap();
    let mut agent = Agent::new(&plane);
    let (ca, kubeconfig) = (
        agent.folder().join("future-ca.pem"),
        agent.folder().join("future.yaml"),
    );
    put(&ca, &authority.pem());
    put(
        &kubeconfig,
        &format!(
            "clusters: [{{name: c, cluster: {{server: 'https://{address}', certificate-authority: {}}}}}]\n\
             users: [{{name: u, user: {{token: t}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\ncurrent-context: c\n",
            ca.display()
        ),
    );
    agent = agent.with("KUBECONFIG", kubeconfig.display().to_string());
    agent.start();
    agent.until_condition("lease.unreachable", SETTLES_WITHIN);
    assert_eq!(agent.status()["link"]["state"], "standing by");
    assert!(plane.clusters().is_empty(), "nobody registered");
}

#[test]
fn an_agent_that_cannot_use_the_lease_links_and_says_what_to_do() {
    let Some(_held) = calm() else { return };
    let accounts = Accounts::new(GrantScope::Managed);
    let plane = Plane::start(Options::default()).unwrap();
    let narrow = accounts.kubeconfig("pipeops-cp");
    for (kubeconfig, namespace, why) in [
        (narrow, accounts.namespace(), "is forbidden"),
        (admin(), "nowhere", "its namespace is not there"),
    ] {
        let mut agent = Agent::new(&plane)
            .with("PIPEOPS_AGENT_NAMESPACE", namespace)
            .with("KUBECONFIG", kubeconfig.display().to_string());
        agent.start();
        agent.until("a link", SETTLES_WITHIN, |status| {
            (status["link"]["state"] == "ready").then_some(())
        });
        let condition = agent.until_condition("lease.rbac", SETTLES_WITHIN);
        let sentence = condition["sentence"].as_str().unwrap();
        assert!(sentence.contains(why), "{sentence}");
        let fix = condition["fix"].as_str().unwrap();
        let program = format!("pipeops-agent rbac --namespace {namespace}");
        assert!(
            fix.starts_with(&program) && fix.ends_with("| kubectl apply -f -"),
            "{fix}"
        );
    }
}
