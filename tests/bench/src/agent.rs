//! The two agents, started in the same way: ours, and the existing one where its binary is named.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::child::Running;
use crate::cluster::{Cluster, SERVICE, SERVICE_NAMESPACE};
use crate::https::{Address, Trust};
use crate::os;
use crate::plane::PlaneProcess;

/// Which agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ours,
    Rival,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ours => "pipeops-agent",
            Self::Rival => "the existing agent",
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Rival => "rival",
        }
    }
}

/// An agent with its control plane; running between [`Agent::start`] and [`Agent::stop`].
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) kind: Kind,
    pub(crate) binary: PathBuf,
    pub(crate) dir: PathBuf,
    /// Where ours can be looked at; the existing one has no such thing.
    pub(crate) dashboard: Dashboard,
    pub(crate) plane: PlaneProcess,
    running: Option<Running>,
    /// The cluster's API through the link.
    pub(crate) address: Option<Address>,
    /// Since when it is linked.
    pub(crate) linked_at: Option<Instant>,
    /// The largest resident memory that was seen, over all its starts.
    pub(crate) peak_mb: f64,
}

/// How long after its exec an agent could be used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartTimes {
    /// Ours: `READY=1`. The existing agent: its own health page answers.
    pub(crate) ready_ms: f64,
    /// Requests can go through the link.
    pub(crate) linked_ms: f64,
}

/// 60 s: the existing agent asks around for its address before it registers.
const LINK_LIMIT: Duration = Duration::from_secs(60);
const READY_LIMIT: Duration = Duration::from_secs(30);

impl Agent {
    /// Prepares one, with its state below `work`.
    pub(crate) fn new(kind: Kind, binary: PathBuf, work: &Path) -> Result<Self, String> {
        if !binary.is_file() {
            return Err(format!("{} is no file", binary.display()));
        }
        let dir = work.join(kind.as_str());
        std::fs::create_dir_all(dir.join("state"))
            .map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        let plane = PlaneProcess::start(&dir.join("plane"))?;
        Ok(Self {
            kind,
            binary,
            dashboard: Dashboard::new(&dir)?,
            dir,
            plane,
            running: None,
            address: None,
            linked_at: None,
            peak_mb: 0.0,
        })
    }

    /// Starts it and waits until it is linked.
    pub(crate) fn start(&mut self, cluster: &Cluster) -> Result<StartTimes, String> {
        let socket = ReadySocket::new(&self.dir.join("notify.sock"))?;
        let port = free_port()?;
        let mut command = match self.kind {
            Kind::Ours => self.ours(cluster, &socket.path)?,
            Kind::Rival => self.rival(cluster, port)?,
        };
        let log = self.dir.join("log");
        let log = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(|error| format!("cannot open {}: {error}", log.display()))?;
        let errors = log.try_clone().map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let exec = os::now();
        let mut running = Running::start(self.kind.name(), &mut command)?;
        let ready_ms = match self.kind {
            Kind::Ours => socket.ready(exec, &mut running)?,
            Kind::Rival => healthy(port, exec, &mut running)?,
        };
        let link = self.plane.linked(LINK_LIMIT)?;
        let linked_ms = os::since(exec).as_secs_f64() * 1e3;
        self.linked_at = Some(os::now());
        running.check()?;
        let ca = self.plane.text("ca.pem")?;
        self.address = Some(Address::new(&link.url, Some(link.token), Trust::Pem(&ca))?);
        self.running = Some(running);
        Ok(StartTimes {
            ready_ms,
            linked_ms,
        })
    }

    /// Ends it, and waits until its control plane has noticed.
    pub(crate) fn stop(&mut self) -> Result<(), String> {
        self.running = None;
        self.plane.gone(READY_LIMIT)
    }

    /// Its process id; an error once it has ended by itself.
    pub(crate) fn pid(&mut self) -> Result<u32, String> {
        let name = self.kind.name();
        let running = self
            .running
            .as_mut()
            .ok_or_else(|| format!("{name} does not run"))?;
        running.check()?;
        Ok(running.pid())
    }

    /// Remembers a peak before it is forgotten, or after.
    pub(crate) const fn note_peak(&mut self, peak_mb: f64) {
        self.peak_mb = self.peak_mb.max(peak_mb);
    }

    /// The cluster's API through the link.
    pub(crate) fn link(&self) -> Result<&Address, String> {
        self.address
            .as_ref()
            .ok_or_else(|| format!("{} is not linked", self.kind.name()))
    }

    fn ours(&self, cluster: &Cluster, notify: &Path) -> Result<Command, String> {
        let kubeconfig = self.dir.join("kubeconfig.yaml");
        os::write(&kubeconfig, &kubeconfig_text(cluster))?;
        let mut command = os::program(&self.binary);
        command
            .arg("run")
            .env_clear()
            .env("PIPEOPS_API_URL", self.plane.text("api_url")?)
            .env("PIPEOPS_TOKEN_FILE", self.plane.file("token"))
            .env("PIPEOPS_TLS_CA_FILE", self.plane.file("ca.pem"))
            .env("PIPEOPS_CLUSTER_NAME", "bench")
            .env("PIPEOPS_STATE_DIR", self.dir.join("state"))
            .env("PIPEOPS_ACCESS_LEVEL", "full")
            .env("KUBECONFIG", kubeconfig)
            .env("NOTIFY_SOCKET", notify);
        self.dashboard.name(&mut command);
        Ok(command)
    }

    /// The existing agent runs inside a pod only. What it looks for there is laid over the
    /// machine's own files in a mount namespace that ends with it. Its questions to the rest of
    /// the world are refused at once, which is kind to its start.
    fn rival(&self, cluster: &Cluster, port: u16) -> Result<Command, String> {
        let account = self.dir.join("account");
        std::fs::create_dir_all(&account).map_err(|error| error.to_string())?;
        os::write(&account.join("token"), &cluster.token)?;
        os::write(&account.join("ca.crt"), &cluster.ca_pem)?;
        os::write(&account.join("namespace"), "default")?;
        let name = format!("{SERVICE}.{SERVICE_NAMESPACE}.svc.cluster.local");
        let hosts = format!("127.0.0.1 localhost\n{} {name}\n", cluster.service_ip);
        os::write(&self.dir.join("hosts"), &hosts)?;
        os::write(&self.dir.join("resolv.conf"), "nameserver 127.0.0.1\n")?;
        let (host, api_port) = cluster
            .api_url
            .trim_start_matches("https://")
            .rsplit_once(':')
            .ok_or("the API server's address has no port")?;
        let mut command = os::program("unshare");
        command
            .args(["--mount", "sh", "-c", INSIDE_A_POD, "rival"])
            .arg(&self.binary)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", self.dir.join("state"))
            .env("DIR", &self.dir)
            .env("PIPEOPS_API_URL", self.plane.text("api_url")?)
            .env("PIPEOPS_TOKEN", self.plane.text("token")?)
            .env("PIPEOPS_CLUSTER_NAME", "bench")
            .env("PIPEOPS_AGENT_ID", "bench-rival")
            .env("PIPEOPS_STATE_NAMESPACE", RIVAL_NAMESPACE)
            .env("SSL_CERT_FILE", self.plane.file("ca.pem"))
            .env("KUBERNETES_SERVICE_HOST", host)
            .env("KUBERNETES_SERVICE_PORT", api_port)
            .env("AGENT_PORT", port.to_string())
            .env("SKIP_GEOIP", "1");
        Ok(command)
    }
}

/// Where the existing agent keeps its state: not where ours looks for an agent to take over.
pub(crate) const RIVAL_NAMESPACE: &str = "bench-rival";

const INSIDE_A_POD: &str = r#"set -e
cd "$DIR"
mount --bind hosts /etc/hosts
mount --bind resolv.conf /etc/resolv.conf
mount -t tmpfs tmpfs /run
account=/run/secrets/kubernetes.io/serviceaccount
mkdir -p $account
cp account/* $account/
exec "$1""#;

fn kubeconfig_text(cluster: &Cluster) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: bench\n\
         clusters:\n- name: bench\n  cluster:\n    server: {}\n    certificate-authority: {}\n\
         users:\n- name: bench\n  user:\n    tokenFile: {}\n\
         contexts:\n- name: bench\n  context:\n    cluster: bench\n    user: bench\n",
        cluster.api_url,
        cluster.ca_file.display(),
        cluster.token_file.display()
    )
}

/// The addresses of an agent's dashboard.
#[derive(Debug)]
pub(crate) struct Dashboard {
    pub(crate) socket: PathBuf,
    pub(crate) listen: SocketAddr,
}

impl Dashboard {
    /// Addresses that nobody uses, the socket in this directory.
    pub(crate) fn new(dir: &Path) -> Result<Self, String> {
        Ok(Self {
            socket: dir.join("agent.sock"),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)),
        })
    }

    /// Tells an agent to use them.
    pub(crate) fn name(&self, command: &mut Command) {
        command
            .env("PIPEOPS_DASHBOARD_SOCKET", &self.socket)
            .env("PIPEOPS_DASHBOARD_LISTEN", self.listen.to_string());
    }

    /// Waits until somebody answers there.
    pub(crate) fn answers(&self, agent: &mut Running) -> Result<(), String> {
        let start = os::now();
        while TcpStream::connect(self.listen).is_err() {
            agent.check()?;
            if os::since(start) > READY_LIMIT {
                return Err(format!("nobody answers at {}", self.listen));
            }
            os::pause(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16, String> {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| format!("no free port: {error}"))
}

/// The socket of systemd's notifications.
#[derive(Debug)]
struct ReadySocket {
    path: PathBuf,
    socket: UnixDatagram,
}

impl ReadySocket {
    fn new(path: &Path) -> Result<Self, String> {
        let fault = |error: std::io::Error| format!("cannot listen at {}: {error}", path.display());
        match std::fs::remove_file(path) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(fault(error)),
        }
        let socket = UnixDatagram::bind(path).map_err(fault)?;
        socket
            .set_read_timeout(Some(Duration::from_millis(200)))
            .map_err(fault)?;
        Ok(Self {
            path: path.to_owned(),
            socket,
        })
    }

    /// Waits for `READY=1`; gives the ms since `exec`.
    fn ready(&self, exec: Instant, running: &mut Running) -> Result<f64, String> {
        let mut message = [0_u8; 4096];
        while os::since(exec) < READY_LIMIT {
            let read = match self.socket.recv(&mut message) {
                Ok(read) => read,
                Err(error) if is_late(&error) => {
                    running.check()?;
                    continue;
                }
                Err(error) => return Err(format!("cannot hear of READY=1: {error}")),
            };
            let at = os::since(exec);
            let text = String::from_utf8_lossy(message.get(..read).unwrap_or_default());
            if text.lines().any(|line| line == "READY=1") {
                return Ok(at.as_secs_f64() * 1e3);
            }
        }
        Err(format!("no READY=1 after {READY_LIMIT:?}"))
    }
}

fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Waits until the health page of the existing agent answers; gives the ms since `exec`.
fn healthy(port: u16, exec: Instant, running: &mut Running) -> Result<f64, String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    while os::since(exec) < READY_LIMIT {
        if answers(address) {
            return Ok(os::since(exec).as_secs_f64() * 1e3);
        }
        running.check()?;
        os::pause(Duration::from_millis(1));
    }
    Err(format!(
        "no answer from {address}/health after {READY_LIMIT:?}"
    ))
}

fn answers(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut socket = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        socket.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut start = [0_u8; 12];
        socket.read_exact(&mut start)?;
        Ok(start.ends_with(b" 200"))
    };
    ask().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_heard_among_other_notifications() {
        let path = std::env::temp_dir().join(format!("bench-notify-{}", std::process::id()));
        let socket = ReadySocket::new(&path).unwrap();
        let mut running = Running::start("sleep", os::program("sleep").arg("60")).unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        sender.send_to(b"STATUS=READY=1 soon", &path).unwrap();
        sender.send_to(b"STATUS=linked\nREADY=1\n", &path).unwrap();
        let start = os::now();
        assert!(socket.ready(start, &mut running).unwrap() < 30_000.0);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn an_agent_that_ends_instead_of_getting_ready_is_an_error_at_once() {
        let path = std::env::temp_dir().join(format!("bench-ended-{}", std::process::id()));
        let socket = ReadySocket::new(&path).unwrap();
        let mut running = Running::start("false", &mut os::program("false")).unwrap();
        let start = os::now();
        assert!(
            socket
                .ready(start, &mut running)
                .unwrap_err()
                .contains("ended")
        );
        assert!(os::since(start) < Duration::from_secs(5));
        std::fs::remove_file(&path).unwrap();
    }
}
