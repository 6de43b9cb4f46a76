//! Ctrl-C reaches the API server: what a user gives up is over there too, as the API server itself
//! counts it.

use std::{
    io::Write,
    net::TcpStream,
    process::Command,
    time::{Duration, Instant},
};

use super::{
    bench::{Bench, Form, Upgrade},
    forward::forward,
    running::Running,
};
use crate::{
    agent::{SOON, clock, command, until},
    cluster::{cluster, variable},
};

/// A second after the user's command ended nobody finds its request at the API server.
const OVER_WITHIN: Duration = Duration::from_secs(1);
/// How often each is tried; each attempt has to hold.
const ATTEMPTS: u32 = 3;

/// Requests that run as long as somebody looks.
#[derive(Clone, Copy, Debug)]
enum Long {
    Log,
    Exec,
    PortForward,
    Watch,
}

impl Long {
    /// How the API server names them in its metrics.
    const fn labels(self) -> [&'static str; 2] {
        match self {
            Self::Log => ["resource=\"pods\"", "subresource=\"log\""],
            Self::Exec => ["resource=\"pods\"", "subresource=\"exec\""],
            Self::PortForward => ["resource=\"pods\"", "subresource=\"portforward\""],
            Self::Watch => [
                "resource=\"configmaps\",scope=\"namespace\"",
                "verb=\"WATCH\"",
            ],
        }
    }

    /// How many of them the API server has under way.
    fn count(self) -> u64 {
        let tls = cluster().unwrap().join("server/tls");
        let metrics = command("curl")
            .args(["-sS", "--fail", "--max-time", "60"])
            .arg("--cacert")
            .arg(tls.join("server-ca.crt"))
            .arg("--cert")
            .arg(tls.join("client-admin.crt"))
            .arg("--key")
            .arg(tls.join("client-admin.key"))
            .arg(format!("{}/metrics", variable("API_SERVER")))
            .output()
            .unwrap();
        assert!(metrics.status.success(), "{metrics:?}");
        let text = String::from_utf8(metrics.stdout).unwrap();
        let lines = text.lines().filter(|line| {
            let labels = self.labels();
            let is_gauge = line.starts_with("apiserver_longrunning_requests{");
            is_gauge && labels.iter().all(|label| line.contains(label))
        });
        let numbers = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>());
        numbers.map(Result::unwrap).sum()
    }

    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Log => &["logs", "-f", "logger", "-n", "fixtures"],
            Self::Exec => &["exec", "-i", "shell", "-n", "fixtures", "--", "cat"],
            Self::Watch => &["get", "configmaps", "-n", "fixtures", "-w"],
            Self::PortForward => &[],
        }
    }

    /// One that runs, and the user's connection where there is one.
    fn start(self, kubectl: Command) -> (Running, Option<TcpStream>) {
        if matches!(self, Self::PortForward) {
            let (running, port) = forward(kubectl);
            let mut connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
            connection.write_all(b"here").unwrap();
            return (running, Some(connection));
        }
        (Running::start(kubectl), None)
    }

    /// How long after the end of the user's command the API server is known to have had the
    /// request: when the last look began that found it. A look takes its time (all metrics of the
    /// API server, by curl), and what it finds is as old as its beginning at most.
    fn outlives(self, kubectl: Command) -> Duration {
        let before = self.count();
        let (mut running, connection) = self.start(kubectl);
        until("it runs", SOON, || (self.count() > before).then_some(()));
        running.interrupt();
        running.ends(SOON);
        let ended: Instant = clock();
        let mut found = ended;
        until("it is over at the API server", SOON, || {
            let began = clock();
            let is_over = self.count() <= before;
            if !is_over {
                found = began;
            }
            is_over.then_some(())
        });
        drop(connection);
        found - ended
    }
}

#[test]
fn ctrl_c_ends_a_request_at_the_api_server_within_a_second() {
    let Some(mut bench) = Bench::alone() else {
        return;
    };
    for form in [Form::Streams, Form::Json] {
        bench.use_form(form);
        for long in [Long::Log, Long::Watch, Long::Exec, Long::PortForward] {
            if matches!((form, long), (Form::Json, Long::PortForward)) {
                continue;
            }
            for upgrade in Upgrade::of(form) {
                if matches!(long, Long::Log | Long::Watch) && *upgrade == Upgrade::Spdy {
                    continue;
                }
                let what = format!("{long:?} by {form:?} and {upgrade:?}");
                for _ in 0..ATTEMPTS {
                    let kubectl = upgrade.on(bench.kubectl(long.words()));
                    let found = long.outlives(kubectl);
                    println!("{what}: found for {found:?}");
                    assert!(found <= OVER_WITHIN, "{what}: {found:?}");
                }
            }
        }
    }
    bench.nothing_is_left();
}
