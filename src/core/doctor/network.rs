//! Checks of the network: links, addresses, routes, ports.

#![expect(
    clippy::items_after_statements,
    reason = "an advice stands where it is given"
)]

use super::{Advice, Check, Facts, Judgement, Problem, facts::Network, ok};
use crate::core::{
    environment::Environment,
    health::Severity::{Critical, Warning},
    procfs::net,
};

const STATES: &str = "/sys/class/net/*/operstate";
const SIZES: &str = "/sys/class/net/*/mtu";
const ROUTES: &str = "/proc/self/net/route";
const ROUTES_6: &str = "/proc/self/net/ipv6_route";
const ADDRESSES_6: &str = "/proc/self/net/if_inet6";
pub(super) const CONFIG: &str = "/etc/rancher/k3s/config.yaml";
pub(super) const CONFIG_FOLDER: &str = "/etc/rancher/k3s/";
pub(super) const UNITS: &str = "/sys/fs/cgroup/system.slice/";
const PROCESSES: &str = "/proc/*/comm";
pub(super) const BINARY: &str = "stat /usr/local/bin/k3s";
pub(super) const NO_K3S: &str = "k3s is not installed";
const HOLDERS: &str = "holders of ports";
/// Defaults of `cluster-cidr` and `service-cidr`.
pub(super) const NETWORKS: [(&str, &str); 2] = [
    ("cluster-cidr", "10.42.0.0/16"),
    ("service-cidr", "10.43.0.0/16"),
];

/// The table.
pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "network.carrier",
        title: "Network interface",
        severity: Critical,
        after: &[],
        reads: &[STATES],
        why: "this machine has no network connection",
        judge: carrier,
    },
    Check {
        id: "network.address",
        title: "Address",
        severity: Critical,
        after: &["network.carrier"],
        reads: &[ROUTES, ADDRESSES_6, UNITS],
        why: "without an address the network is unreachable",
        judge: address,
    },
    Check {
        id: "network.route",
        title: "Default route",
        severity: Critical,
        after: &["network.address"],
        reads: &[ROUTES, ROUTES_6],
        why: "k3s stops with \"no default routes found\", and nothing beyond the local network is reachable",
        judge: route,
    },
    Check {
        id: "network.mtu",
        title: "MTU",
        severity: Warning,
        after: &["network.carrier"],
        reads: &[SIZES, STATES],
        why: "connections are established, but stall as soon as something large is sent",
        judge: size,
    },
    Check {
        id: "network.overlap",
        title: "Cluster networks",
        severity: Critical,
        after: &["network.address"],
        reads: &[ROUTES, CONFIG, CONFIG_FOLDER],
        why: "this machine loses access to that network as soon as k3s starts; the cluster networks cannot be changed after the first start",
        judge: overlap,
    },
    Check {
        id: "network.node-ip",
        title: "Node address",
        severity: Critical,
        after: &["network.address"],
        reads: &[
            CONFIG,
            CONFIG_FOLDER,
            "/proc/self/net/fib_trie",
            ADDRESSES_6,
        ],
        why: "k3s stops when the configured address does not exist",
        judge: node_address,
    },
    Check {
        id: "network.local-name",
        title: "Name of the k3s server",
        severity: Warning,
        after: &[],
        reads: &[CONFIG, CONFIG_FOLDER],
        why: "k3s cannot resolve names that end with .local",
        judge: local_name,
    },
    Check {
        id: "network.other-kubernetes",
        title: "Another Kubernetes",
        severity: Critical,
        after: &[],
        reads: &[
            BINARY,
            "/var/snap/",
            UNITS,
            PROCESSES,
            "/var/lib/k0s/",
            "/etc/kubernetes/manifests/",
        ],
        why: "two distributions on one machine compete for ports, interfaces and firewall rules",
        judge: other_kubernetes,
    },
    Check {
        id: "network.ports",
        title: "Ports of k3s",
        severity: Critical,
        after: &["network.other-kubernetes"],
        reads: &[
            "/proc/self/net/tcp",
            "/proc/self/net/tcp6",
            PROCESSES,
            HOLDERS,
        ],
        why: "k3s does not start while another program listens on its ports",
        judge: ports,
    },
    Check {
        id: "network.web-ports",
        title: "Ports 80 and 443",
        severity: Warning,
        after: &["network.ports"],
        reads: &[
            "/proc/self/net/tcp",
            "/proc/self/net/tcp6",
            BINARY,
            HOLDERS,
            CONFIG,
            CONFIG_FOLDER,
        ],
        why: "the k3s load balancer takes over these ports: the other program becomes unreachable",
        judge: web_ports,
    },
];
fn carrier(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "check the cable and its other end; for wireless: sudo nmcli device wifi connect NAME --ask, or raspi-config",
        commands: &["ip -brief link"],
    };
    let mut seen = Vec::new();
    for (name, state) in facts.each(STATES).filter(|(name, _)| !net::is_inner(name)) {
        // Tunnels and drivers that do not know say "unknown".
        if matches!(state.trim(), "up" | "unknown") {
            return ok(format!("{name} is up"));
        }
        seen.push(format!("{name} is {}", state.trim()));
    }
    let seen = if seen.is_empty() {
        "no interface leads to the network".to_owned()
    } else {
        seen.join(", ")
    };
    Problem::new(seen, &ADVICE).into()
}

fn address(facts: &Facts, _: &Environment) -> Judgement {
    let found = facts
        .routes()
        .find(|route| !net::is_inner(route.interface) && !route.network.is_link_local());
    let has_6 = || {
        let mut found = net::addresses_v6(facts.text(ADDRESSES_6).unwrap_or_default());
        found.any(|found| found.is_global && !net::is_inner(found.interface))
    };
    if let Some(route) = found {
        return ok(if route.prefix == 0 {
            format!("on {}", route.interface)
        } else {
            format!("{} on {}", Network::from(route), route.interface)
        });
    }
    if has_6() {
        return ok("of IPv6");
    }
    const MANAGER: Advice = Advice {
        fix: "check the DHCP server (the router), or configure a static address",
        commands: &[
            "nmcli device status",
            "sudo systemctl restart NetworkManager",
        ],
    };
    const NETWORKD: Advice = Advice {
        fix: "check the DHCP server (the router), or configure a static address",
        commands: &[
            "networkctl status",
            "sudo systemctl restart systemd-networkd",
        ],
    };
    const OTHER: Advice = Advice {
        fix: "check the DHCP server (the router), or configure a static address",
        commands: &["ip -brief address", "{restart networking}"],
    };
    let advice = if facts.is_running("NetworkManager") {
        &MANAGER
    } else if facts.is_running("systemd-networkd") {
        &NETWORKD
    } else {
        &OTHER
    };
    Problem::new("no interface that leads out has an address", advice).into()
}

fn route(facts: &Facts, _: &Environment) -> Judgement {
    if let Some(route) = facts.routes().find(|route| route.prefix == 0) {
        return ok(format!("by {} at {}", route.gateway, route.interface));
    }
    if facts
        .text(ROUTES_6)
        .and_then(net::default_route_v6)
        .is_some()
    {
        return ok("of IPv6");
    }
    const ADVICE: Advice = Advice {
        fix: "make the router announce itself (DHCP), or set the route by hand; on a site without a router, add a dummy route as below at every boot",
        commands: &[
            "ip route",
            "sudo ip link add dummy0 type dummy && sudo ip link set dummy0 up",
            "sudo ip addr add 203.0.113.254/31 dev dummy0",
            "sudo ip route add default via 203.0.113.255 dev dummy0 metric 1000",
        ],
    };
    Problem::new("there is none", &ADVICE).into()
}

fn size(facts: &Facts, _: &Environment) -> Judgement {
    let sizes = || {
        facts
            .each(SIZES)
            .filter_map(|(name, bytes)| Some((name, bytes.trim().parse::<u64>().ok()?)))
    };
    let is_up =
        |name: &str| facts.word(&format!("/sys/class/net/{name}/operstate")) != Some("down");
    const SMALL: Advice = Advice {
        fix: "set it to 1500, or to what the line supports (1492 for PPPoE), now and in the configuration of the interface",
        commands: &["sudo ip link set dev {about} mtu 1500"],
    };
    const TUNNEL: Advice = Advice {
        fix: "restart k3s, which creates {about} with the MTU that the underlying interface has now",
        commands: &["sudo ip link delete {about}", "{restart k3s}"],
    };
    // IPv6 does not work below 1280 bytes, and no line of today has less.
    let mut out = sizes().filter(|(name, _)| !net::is_inner(name) && is_up(name));
    if let Some((name, bytes)) = out.find(|(_, bytes)| *bytes < 1280) {
        return Problem::new(format!("{name} has an MTU of {bytes} bytes"), &SMALL)
            .about(name)
            .into();
    }
    let smallest = sizes()
        .filter(|(name, _)| !net::is_inner(name) && is_up(name))
        .map(|(_, bytes)| bytes)
        .min();
    // vxlan wraps each packet in 50 bytes.
    let tunnel = sizes().find(|(name, _)| *name == "flannel.1");
    match (smallest, tunnel) {
        (Some(smallest), Some((name, bytes))) if bytes + 50 > smallest => {
            let seen = format!(
                "{name} has an MTU of {bytes} bytes and adds 50 for VXLAN; the underlying interface has {smallest}"
            );
            Problem::new(seen, &TUNNEL).about(name).into()
        }
        (Some(smallest), _) => ok(format!("{smallest} bytes")),
        (None, _) => Judgement::NotHere("no interface leads to the network"),
    }
}

fn overlap(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "before the first start of k3s, configure other networks in /etc/rancher/k3s/config.yaml; after it, k3s has to be reinstalled",
        commands: &[
            "sudo mkdir -p /etc/rancher/k3s",
            "printf 'cluster-cidr: 10.52.0.0/16\\nservice-cidr: 10.53.0.0/16\\ncluster-dns: 10.53.0.10\\n' | sudo tee -a /etc/rancher/k3s/config.yaml",
        ],
    };
    let of = |(key, usual): (&'static str, &str)| {
        let mut set = facts.k3s_values(key);
        if set.is_empty() {
            set.push(usual.to_owned());
        }
        let networks = set.into_iter().filter_map(|text| Network::parse(&text));
        networks.map(move |network| (key, network))
    };
    for (key, wanted) in NETWORKS.into_iter().flat_map(of) {
        let mut routes = facts
            .routes()
            .filter(|route| !net::is_inner(route.interface) && route.prefix > 0)
            .map(|route| (route.interface, Network::from(route)));
        if let Some((name, network)) = routes.find(|(_, network)| network.overlaps(&wanted)) {
            let seen = format!("{network} at {name} overlaps {wanted}, the {key} of k3s");
            return Problem::new(seen, &ADVICE).into();
        }
    }
    ok("no overlap with local networks")
}

fn node_address(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "give this machine that address again (a DHCP reservation), or remove node-ip from /etc/rancher/k3s/config.yaml and restart k3s",
        commands: &[
            "sudo sed -i.bak '/^node-ip:/d' /etc/rancher/k3s/config.yaml",
            "{restart k3s}",
        ],
    };
    let wanted = facts.k3s_values("node-ip");
    let Some(first) = wanted.first() else {
        return Judgement::NotHere("k3s chooses it automatically");
    };
    let address = match first.parse::<std::net::Ipv4Addr>() {
        Ok(address) if !facts.addresses().contains(&address) => address,
        Ok(_) | Err(_) => return ok(wanted.join(",")),
    };
    Problem::new(
        format!("node-ip is {address}, which this machine does not have"),
        &ADVICE,
    )
    .into()
}

fn local_name(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "use the server's address in /etc/rancher/k3s/config.yaml, or a name that the router resolves, and restart k3s",
        commands: &[
            "sudo sed -i.bak 's#^server:.*#server: https://ADDRESS:6443#' /etc/rancher/k3s/config.yaml",
            "{restart k3s}",
        ],
    };
    let Some(server) = facts.k3s_setting("server") else {
        return Judgement::NotHere("this node does not join a server");
    };
    let host = server
        .rsplit("://")
        .next()
        .and_then(|rest| rest.split([':', '/']).next());
    if host.is_some_and(|host| host.strip_suffix(".local").is_some()) {
        return Problem::new(format!("this node joins {server}"), &ADVICE).into();
    }
    ok(server)
}

fn other_kubernetes(facts: &Facts, _: &Environment) -> Judgement {
    if !facts.has(BINARY) {
        return Judgement::NotHere(NO_K3S);
    }
    const ADVICE: Advice = Advice {
        fix: "keep one of the two and remove the other: {about}",
        commands: &["{about}"],
    };
    let others = [
        (
            facts.names("/var/snap/").any(|name| name == "microk8s"),
            "MicroK8s",
            "sudo snap remove --purge microk8s",
        ),
        (
            facts.has("/var/lib/k0s/"),
            "k0s",
            "sudo k0s stop && sudo k0s reset",
        ),
        (
            facts.is_running("kubelet")
                || facts.names("/etc/kubernetes/manifests/").next().is_some(),
            "a kubelet of kubeadm",
            "sudo kubeadm reset",
        ),
        (facts.has_process("rke2"), "RKE2", "sudo rke2-uninstall.sh"),
    ];
    match others.into_iter().find(|(is_there, _, _)| *is_there) {
        Some((_, name, command)) => {
            Problem::new(format!("both k3s and {name} are installed"), &ADVICE)
                .about(command)
                .into()
        }
        None => ok("none found"),
    }
}

/// Returns whether k3s runs: as a service of systemd, or as a process of one of its names.
pub(super) fn has_k3s(facts: &Facts) -> bool {
    ["k3s", "k3s-agent"]
        .iter()
        .any(|unit| facts.is_running(unit))
        || ["k3s-server", "k3s-agent", "k3s-init", "k3s"]
            .iter()
            .any(|name| facts.has_process(name))
}

/// The program behind a port, where it could be found out.
fn holder(facts: &Facts, port: u16) -> Option<(&str, &str)> {
    let port = port.to_string();
    let mut lines = facts.text(HOLDERS)?.lines().map(|line| line.splitn(3, ' '));
    lines.find_map(|mut words| {
        (words.next() == Some(&port)).then_some((words.next()?, words.next()?))
    })
}

fn taken(facts: &Facts, port: u16) -> String {
    match holder(facts, port) {
        Some((process, name)) => format!("{name} (process {process}) listens on port {port}"),
        None => format!("a program listens on port {port}"),
    }
}

fn ports(facts: &Facts, _: &Environment) -> Judgement {
    if has_k3s(facts) {
        return ok("k3s uses them");
    }
    const ADVICE: Advice = Advice {
        fix: "stop that program, or change its port",
        commands: &["sudo ss -ltnp 'sport = :{about}'"],
    };
    let listening = facts.listening();
    let wanted = [
        6443, 6444, 10248, 10249, 10250, 10256, 10257, 10258, 10259, 2379, 2380,
    ];
    match wanted.into_iter().find(|port| listening.contains_key(port)) {
        Some(port) => Problem::new(taken(facts, port), &ADVICE)
            .about(port.to_string())
            .into(),
        None => ok("all are free"),
    }
}

fn web_ports(facts: &Facts, _: &Environment) -> Judgement {
    if !facts.has(BINARY) {
        return Judgement::NotHere(NO_K3S);
    }
    let mut left_out = ["disable", "disable+"]
        .into_iter()
        .flat_map(|key| facts.k3s_values(key));
    if left_out.any(|name| name == "traefik" || name == "servicelb") {
        return Judgement::NotHere("the k3s load balancer is disabled");
    }
    const ADVICE: Advice = Advice {
        fix: "change the ports of the other program, or disable the ingress of k3s: disable: [traefik] in /etc/rancher/k3s/config.yaml",
        commands: &["sudo ss -ltnp 'sport = :{about}'"],
    };
    let listening = facts.listening();
    match [80, 443]
        .into_iter()
        .find(|port| listening.contains_key(port))
    {
        Some(port) => Problem::new(taken(facts, port), &ADVICE)
            .about(port.to_string())
            .into(),
        None => ok("both are free, or used by the load balancer"),
    }
}
