//! Data of a registration and numbers of a heartbeat.
//!
//! No third party is asked: an address or a region is a setting, or what this machine sees itself.

use std::{
    cell::{Cell, RefCell},
    net::IpAddr,
    path::PathBuf,
    rc::Rc,
    time::Duration,
};

use litemap::LiteMap;

use crate::{
    core::{
        order::GatherExt as _,
        rates::{CpuTimes, Memory, cpu_share},
        time::{Mono, Wall},
        url::Security,
    },
    error::{Error, Result, Retry},
    host::facts as host,
    tasks::{
        rights::credential::Credential,
        state::{HostView, SharedState},
    },
    wire::{
        control::{Heartbeat, Registration, ServerSpecs},
        handshake::DialTarget,
    },
};

/// Two readings of the processor closer together than this say nothing.
const READ_INTERVAL_MIN: Duration = Duration::from_secs(1);
const GIB: u64 = 1 << 30;
/// Version sent while that of the API server is unknown: it can be parsed and belongs to no
/// release.
const VERSION_UNKNOWN: &str = "v0.0.0";

/// Facts from the configuration.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The version of this program.
    pub version: &'static str,
    /// The cluster's name; the host's name where none is set.
    pub cluster_name: Option<String>,
    /// Address of this server for the control plane; default: the link's local one.
    pub server_ip: Option<IpAddr>,
    /// Free text.
    pub region: String,
    /// Free text.
    pub cloud_provider: String,
    /// The user's labels.
    pub labels: LiteMap<String, String>,
    /// True if unencrypted links to other machines are allowed.
    pub allows_plaintext: bool,
}

/// Makes registrations and heartbeats.
#[derive(Debug)]
pub struct Registrar {
    profile: Profile,
    host: host::Facts,
    root: PathBuf,
    shared_state: Rc<SharedState>,
    last: Cell<Option<(Mono, CpuTimes)>>,
    agent_id: RefCell<String>,
    link_fix: RefCell<Option<String>>,
    credential: Option<Rc<Credential>>,
}

impl Registrar {
    /// Facts of this machine: `host` is what does not change, `root` where the rest is read: `/`,
    /// or a captured tree.
    pub fn new(
        profile: Profile,
        (host, root): (host::Facts, PathBuf),
        shared_state: Rc<SharedState>,
    ) -> Self {
        Self {
            profile,
            host,
            root,
            shared_state,
            last: Cell::new(None),
            agent_id: RefCell::default(),
            link_fix: RefCell::default(),
            credential: None,
        }
    }

    /// The same, and each registration gives the control plane this.
    #[must_use]
    pub fn giving(self, credential: Option<Rc<Credential>>) -> Self {
        Self { credential, ..self }
    }

    /// The control plane has taken the last registration.
    pub fn registered(&self) {
        if let Some(credential) = &self.credential {
            credential.taken();
        }
    }

    /// The version of this program.
    pub const fn version(&self) -> &'static str {
        self.profile.version
    }

    /// The id of this agent; empty before it was decided.
    pub fn agent_id(&self) -> String {
        self.agent_id.borrow().clone()
    }

    /// Sets the id of this agent.
    pub fn set_agent_id(&self, agent_id: &str) {
        agent_id.clone_into(&mut self.agent_id.borrow_mut());
    }

    /// The cluster's name: the configured one, else the host's.
    pub fn cluster_name(&self) -> String {
        let named = self
            .profile
            .cluster_name
            .clone()
            .or_else(|| self.host.hostname.clone());
        named.unwrap_or_else(|| self.agent_id())
    }

    /// Facts that do not change while the machine runs.
    pub const fn host(&self) -> &host::Facts {
        &self.host
    }

    /// Returns whether a session may be opened there: plain text only to this machine, or where it
    /// was allowed.
    pub fn allows(&self, target: &DialTarget) -> Result<()> {
        let is_here = target.host == "localhost"
            || target
                .host
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback());
        match target.security {
            Security::Tls => Ok(()),
            Security::Plain if is_here || self.profile.allows_plaintext => Ok(()),
            Security::Plain => Err(Error::new(format!("no session with {}", target.host))
                .why("the address is unencrypted (http, ws): anyone on the network path could read the token")
                .fix("use https:// or wss://, or allow it with pipeops.allow_plaintext = true")
                .retry(Retry::Never)),
        }
    }

    /// Remembers what would mend the link, as far as it is known.
    pub fn link_fix(&self, fix: Option<String>) {
        *self.link_fix.borrow_mut() = fix;
    }

    /// Fix for the link.
    pub fn known_link_fix(&self) -> Option<String> {
        self.link_fix.borrow().clone()
    }

    /// The facts of a registration.
    pub fn registration(
        &self,
        cluster_id: Option<String>,
        local_ip: Option<IpAddr>,
        now: Wall,
    ) -> Registration {
        let hostname = self.host.hostname.clone().unwrap_or_default();
        let mode = if cluster_id.is_some() {
            "resume"
        } else {
            "fresh"
        };
        let metadata = [
            ("agent_mode", "vm-agent".to_owned()),
            ("registration_mode", mode.to_owned()),
            ("registration_timestamp", in_seconds(now)),
        ];
        let mut labels = self.profile.labels.clone();
        labels.insert("hostname".to_owned(), hostname.clone());
        labels.insert(
            "agent.pipeops.io/version".to_owned(),
            self.profile.version.to_owned(),
        );
        Registration {
            agent_id: self.agent_id(),
            agent_version: self.profile.version.to_owned(),
            cloud_provider: self.profile.cloud_provider.clone(),
            cluster_id: cluster_id.unwrap_or_default(),
            hostname,
            k8s_service_token: self.credential.as_ref().and_then(|given| given.offer()),
            k8s_version: self.kubernetes_version(),
            labels,
            metadata: metadata
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .gather(),
            name: self.cluster_name(),
            region: self.profile.region.clone(),
            server_ip: self
                .server_ip(local_ip)
                .map_or_else(|| "0.0.0.0".to_owned(), |address| address.to_string()),
            server_specs: ServerSpecs {
                cpu_cores: self.host.cores.unwrap_or_default(),
                disk_gb: self.host.disk_bytes.unwrap_or_default() / GIB,
                memory_gb: self.host.memory_bytes.unwrap_or_default() / GIB,
                os: self.host.os.clone().unwrap_or_else(|| "linux".to_owned()),
            },
            ..Registration::default()
        }
    }

    /// The numbers of a heartbeat.
    pub fn heartbeat(&self, cluster_id: String, local_ip: Option<IpAddr>) -> Heartbeat {
        let host = self.read_host();
        let (nodes, pods) = {
            let cluster = self.shared_state.cluster.borrow();
            (
                cluster.nodes.unwrap_or_default(),
                cluster.pods.unwrap_or_default(),
            )
        };
        Heartbeat {
            cluster_id,
            agent_id: self.agent_id(),
            // The two words of a link that is up; without one there is no heartbeat.
            status: "healthy".to_owned(),
            tunnel_status: "connected".to_owned(),
            agent_version: self.profile.version.to_owned(),
            k8s_version: self.kubernetes_version(),
            k8s_nodes: nodes,
            k8s_pods: pods,
            cpu_percent: host.cpu_share.map(|share| share * 100.0),
            memory_percent: host.memory_share.map(|share| share * 100.0),
            is_private: self.server_ip(local_ip).is_none_or(is_private),
            gateway_routes: 0,
        }
    }

    /// Reads the host's changing numbers, unless that was done a moment ago.
    pub fn read_host(&self) -> HostView {
        let now = self.shared_state.now().mono;
        let last = self.last.get();
        if last.is_some_and(|(at, _)| now.since(at) < READ_INTERVAL_MIN) {
            return self.shared_state.host.get();
        }
        let times = host::cpu_times(&self.root);
        // Before the first interval is over, the time since boot is the interval.
        let before = last.map_or_else(CpuTimes::default, |(_, before)| before);
        let share = times.and_then(|times| cpu_share(before, times));
        let view = HostView {
            cpu_share: share.or_else(|| self.shared_state.host.get().cpu_share),
            memory_share: host::memory(&self.root).and_then(Memory::used_share),
        };
        self.last.set(times.map(|times| (now, times)));
        self.shared_state.host.set(view);
        view
    }

    fn kubernetes_version(&self) -> String {
        self.shared_state
            .cluster
            .borrow()
            .version
            .clone()
            .unwrap_or_else(|| VERSION_UNKNOWN.to_owned())
    }

    fn server_ip(&self, local_ip: Option<IpAddr>) -> Option<IpAddr> {
        self.profile.server_ip.or(local_ip)
    }
}

/// RFC 3339 without the fraction.
fn in_seconds(now: Wall) -> String {
    Wall::from_millis(now.millis().div_euclid(1000) * 1000)
        .rfc3339()
        .replace(".000Z", "Z")
}

/// Returns whether an address is not reachable from the Internet.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            // 100.64.0.0/10 is what providers give to lines behind their own address translation
            // (RFC 6598).
            let is_shared = first == 100 && (64..128).contains(&second);
            v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_unspecified()
                || is_shared
        }
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_unique_local()
                || v6.is_unicast_link_local()
                || v6.is_unspecified()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_told_from_public_ones() {
        for (address, expected) in [
            ("192.168.1.4", true),
            ("100.64.0.1", true),
            ("100.128.0.1", false),
            ("127.0.0.1", true),
            ("203.0.113.7", false),
            ("fd00::1", true),
            ("2001:db8::1", false),
        ] {
            assert_eq!(is_private(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn a_stamp_in_seconds_has_no_fraction() {
        assert_eq!(
            in_seconds(Wall::from_millis(1_781_589_028_123)),
            "2026-06-16T05:50:28Z"
        );
    }
}
