//! The wait for the node, asked at the API of this machine by k3s' own client.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    net::Ipv6Addr,
    time::Duration,
};

use super::super::system::System;
use crate::{
    core::{
        k3s::{self, BINARY, Role, adopt::Service, join, ready},
        time::{Wall, in_words},
        url::{Authority, bracketed},
    },
    error::{Error, Result},
    host::{
        clock,
        exec::{self, Limits, ProcessOutput},
    },
};

/// Pause between two looks: each starts a program that a small board needs a second of its time
/// for.
const PAUSE: Duration = Duration::from_secs(2);
/// End of a log that is read.
const LOG_BYTES_MAX: u64 = 16 * 1024;
/// Lines of the log of containerd: its last one says why it ended.
const LAST_LINES: usize = 10;
/// Interval between two progress lines of a wait.
const REPORT_EVERY: Duration = Duration::from_secs(15);

impl System {
    /// Waits until the node has reported that it is Ready, with this version where one is named.
    pub(in super::super) fn wait_ready(
        &self,
        node: &str,
        version: Option<&str>,
        within: Duration,
    ) -> Result<()> {
        let (started, awake) = (clock::now(), clock::awake());
        let version = version.and_then(|version| version.parse().ok());
        let restarts = ready::restarts(&self.unit());
        let mut reported = started.mono;
        loop {
            // Before the node: what it reported after the start of this process is of this one.
            let unit = self.unit();
            let since = ready::reports_since(&unit, started.wall, awake);
            let lacks = match self.node(node) {
                Ok(found) => match found.lacks(version, since) {
                    None if self.is_api_ready() => return Ok(()),
                    None => "its API is not ready yet: /readyz".to_owned(),
                    Some(lacks) => lacks,
                },
                Err(why) => why,
            };
            let now = clock::now().mono;
            let waited = now.since(started.mono);
            let cannot = || Error::new(format!("k3s did not become ready: {lacks}"));
            if let Some(why) = ready::failure_reason(&unit, restarts) {
                return Err(self.explained(cannot().why(why)));
            }
            if let Some((why, fix)) = self.rejection(node, started.wall) {
                return Err(cannot().why(why).fix(fix));
            }
            if waited >= within {
                let why = format!("waited {}", in_words(within));
                return Err(self.explained(cannot().why(why)));
            }
            if now.since(reported) >= REPORT_EVERY {
                reported = now;
                self.tell(&format!("waiting for {}: {lacks}", in_words(waited)));
            }
            clock::pause(PAUSE);
        }
    }

    /// The node as the API of this machine has it; what keeps it from answering otherwise.
    pub(in super::super) fn node(&self, node: &str) -> std::result::Result<ready::Node, String> {
        let jsonpath = format!("jsonpath={}", ready::JSONPATH);
        let ended = self
            .kubectl(&["get", "node", node, "-o", &jsonpath])
            .map_err(|error| error.sentence())?;
        let found = ready::Node::parse(&ended.stdout).filter(|_| ended.success());
        found.ok_or_else(|| {
            let said = ended.stderr.lines().rfind(|line| !line.trim().is_empty());
            let said: String = said
                .unwrap_or("no answer")
                .trim()
                .chars()
                .take(160)
                .collect();
            format!("its API does not answer yet ({said})")
        })
    }

    /// Returns whether the API of this machine calls itself ready.
    pub(super) fn is_api_ready(&self) -> bool {
        let asked = self.kubectl(&["get", "--raw=/readyz"]);
        asked.is_ok_and(|ended| ended.success())
    }

    /// Asks the API of this machine by k3s' own client.
    pub(super) fn kubectl(&self, arguments: &[&str]) -> Result<ProcessOutput> {
        // The cache not in somebody's home: it goes with k3s.
        self.kubectl_within("5s", Limits::SHORT, arguments)
    }

    /// Asks it with a limit for each request, and limits for the client.
    pub(super) fn kubectl_within(
        &self,
        request: &str,
        limits: Limits,
        arguments: &[&str],
    ) -> Result<ProcessOutput> {
        let request = format!("--request-timeout={request}");
        let mut first = self.client();
        first.push(request);
        let first: Vec<_> = first.iter().map(String::as_str).collect();
        exec::run(self.root(), &[&first, arguments].concat(), limits)
    }

    /// k3s' own client, for the API of this machine.
    pub(super) fn client(&self) -> Vec<String> {
        let first = [BINARY, "kubectl", "--cache-dir=/run/k3s/kubectl"].map(str::to_owned);
        // A worker has no administrator's kubeconfig: its kubelet's may see its own node.
        let more = self.kubelet_kubeconfig().into_iter().chain(self.loopback());
        first.into_iter().chain(more).collect()
    }

    /// Option for the API server's own port, where k3s answers on another address than loopback
    /// only: the units of the watch and of the credential reach nothing else.
    fn loopback(&self) -> Option<String> {
        if self.role() == Role::Worker {
            return None;
        }
        let (bind, port) = self.bound();
        let server = ready::loopback(bind.as_deref(), port.as_deref())?;
        Some(format!("--server={server}"))
    }

    /// Address of k3s' own port, where its commands would ask at another one.
    pub(super) fn supervisor(&self) -> Option<String> {
        let (bind, port) = self.bound();
        ready::supervisor(bind.as_deref(), port.as_deref())
    }

    /// Address at which others reach k3s on a machine, with its port where the address names one:
    /// all servers of a cluster have the same.
    pub(in super::super) fn server_at(&self, address: &str) -> String {
        let (_, port) = self.bound();
        let port = port.unwrap_or_else(|| ready::PORT.to_string());
        let is_bare = address.parse::<Ipv6Addr>().is_ok();
        let found = Authority::parse(address).ok();
        if !is_bare && found.is_some_and(|found| found.port.is_some()) {
            return format!("https://{address}");
        }
        let host = bracketed(address.trim_matches(['[', ']']));
        format!("https://{host}:{}", port.trim())
    }

    /// The settings `bind-address` and `https-listen-port`.
    fn bound(&self) -> (Option<String>, Option<String>) {
        (
            self.k3s_value("bind-address", ""),
            self.k3s_value("https-listen-port", ""),
        )
    }

    /// A value of the k3s of this machine, as it reads them itself: of the command line of its
    /// service before its settings before its environment.
    pub(super) fn k3s_value(&self, flag: &str, variable: &str) -> Option<String> {
        let settings = self.k3s_settings();
        match self.service_of_k3s() {
            Some(service) => service.value(flag, variable, &settings),
            None => k3s::setting(&settings, flag),
        }
    }

    /// The same by these files of its settings. A flag without a value is on.
    pub(super) fn k3s_value_by(&self, settings: &[String], flag: &str) -> Option<String> {
        let Some(service) = self.service_of_k3s() else {
            return k3s::setting(settings, flag);
        };
        let value = service.value(flag, "", settings);
        value.or_else(|| service.has(flag).then(|| "true".to_owned()))
    }

    fn service_of_k3s(&self) -> Option<Service> {
        let (_, service) = self.found_service(self.init().ok()?)?;
        Some(service)
    }

    /// Options about the node of the command line and the environment of its service, which other
    /// commands of k3s do not know of.
    pub(super) fn node_options(&self) -> Vec<String> {
        let service = self.service_of_k3s();
        let option = |(flag, variable): (&str, &str)| {
            let value = service.as_ref()?.value(flag, variable, &[])?;
            Some(format!("--{flag}={value}"))
        };
        let options = [("node-ip", ""), ("node-name", "K3S_NODE_NAME")];
        options.into_iter().filter_map(option).collect()
    }

    /// Option for the kubeconfig of the kubelet, where this is a worker.
    pub(super) fn kubelet_kubeconfig(&self) -> Option<String> {
        (self.role() == Role::Worker).then(|| {
            let data_dir = self.k3s_value("data-dir", "K3S_DATA_DIR");
            let data_dir = data_dir.unwrap_or_else(|| k3s::DATA_DIR.to_owned());
            format!("--kubeconfig={data_dir}/agent/kubelet.kubeconfig")
        })
    }

    /// State of the unit, or the starts that supervise-daemon of OpenRC counts, in the same form.
    fn unit(&self) -> String {
        let name = self.role().name();
        if let Some(starts) = self.line(&format!("/run/openrc/options/{name}/start_count")) {
            return format!("NRestarts={starts}");
        }
        let argv = [
            "systemctl",
            "show",
            name,
            "-p",
            "ActiveState",
            "-p",
            "NRestarts",
            "-p",
            "Job",
            "-p",
            "ExecMainStartTimestampMonotonic",
        ];
        let ended = exec::run(self.root(), &argv, Limits::SHORT);
        ended.map(|ended| ended.stdout).unwrap_or_default()
    }

    /// The reason for which a server does not take this worker, and the fix. k3s itself tries again
    /// without an end.
    fn rejection(&self, node: &str, since: Wall) -> Option<(String, String)> {
        if self.role() == Role::Server {
            return None;
        }
        let since = format!("--since=@{}", since.millis().div_euclid(1000));
        join::rejection(&self.log(&since), node)
    }

    /// The end of the log of k3s; `since` is an option of journalctl.
    pub(super) fn log(&self, since: &str) -> String {
        let argv = [
            "journalctl",
            "-u",
            self.role().name(),
            "-n",
            "60",
            "-o",
            "cat",
            "--no-pager",
            since,
        ];
        match exec::run(self.root(), &argv, Limits::SHORT) {
            Ok(ended) if ended.success() => ended.stdout,
            Ok(_) | Err(_) => self.end_of("/var/log/k3s.log"),
        }
    }

    /// The end of the log of k3s since this boot, with that of containerd, where it is containerd
    /// that ended: it writes into a file of its own.
    pub(super) fn log_of_parts(&self, data_dir: &str) -> String {
        let mut log = self.log("--boot");
        if ["containerd exited: ", "containerd: exit status "]
            .iter()
            .any(|said| log.contains(said))
        {
            let own = self.end_of(&format!("{data_dir}/agent/containerd/containerd.log"));
            let lines: Vec<_> = own.lines().collect();
            let last = lines.len().saturating_sub(LAST_LINES);
            log += "\n";
            log += &lines.get(last..).unwrap_or_default().join("\n");
        }
        log
    }

    /// The end of a file that may be long; empty where it cannot be read.
    fn end_of(&self, path: &str) -> String {
        let read = || {
            let mut file = File::open(self.path(path))?;
            let from = file.metadata()?.len().saturating_sub(LOG_BYTES_MAX);
            file.seek(SeekFrom::Start(from))?;
            let mut end = Vec::new();
            file.take(LOG_BYTES_MAX).read_to_end(&mut end)?;
            std::io::Result::Ok(end)
        };
        String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
    }

    /// With what k3s itself said last.
    fn explained(&self, error: Error) -> Error {
        let error = match ready::reason(&self.log("--quiet")) {
            Some(reason) => error.why(format!("k3s says: {reason}")),
            None => error,
        };
        let name = self.role().name();
        error.fix(format!("read its log: journalctl -u {name} -n 100 (OpenRC: /var/log/k3s.log); then: sudo pipeops-agent doctor"))
    }
}
