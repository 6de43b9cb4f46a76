//! Network state of the machine: carrier, address, default route. Read below a root path, in a few
//! milliseconds.

use std::{net::IpAddr, path::Path};

use super::facts::{line, text};
use crate::core::diagnosis::{Outcome, Probe, Side, Step};

/// Interfaces that containers and tunnels make: they are up without a cable.
const MADE: [&str; 12] = [
    "lo", "cni", "flannel", "veth", "docker", "br-", "virbr", "kube-", "cali", "tunl", "dummy",
    "lxc",
];

/// Addresses by which other machines in the network may reach this one: IPv4 first, and in the order of their interfaces, of which those of
/// the board come before what was made later. None of containers, and none that is for one link only.
pub fn addresses() -> Vec<IpAddr> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let others = interfaces.filter(|interface| {
        let name = &interface.interface_name;
        !MADE.iter().any(|made| name.starts_with(made))
    });
    let mut found: Vec<_> = others
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
            let v6 = address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip()));
            v4.or(v6)
        })
        .filter(|address| match address {
            IpAddr::V4(address) => !address.is_link_local() && !address.is_loopback(),
            IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_loopback(),
        })
        .collect();
    // A stable sort: what the kernel has in order stays so.
    found.sort_by_key(IpAddr::is_ipv6);
    found.dedup();
    found
}

/// The first steps of the way.
pub fn probes(root: &Path) -> [Probe; 3] {
    let interfaces = interfaces(root);
    [carrier(&interfaces), address(root), route(root)]
}

/// Interfaces to the outside, and whether each has a carrier.
fn interfaces(root: &Path) -> Vec<(String, bool)> {
    let Ok(entries) = std::fs::read_dir(root.join("sys/class/net")) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut found: Vec<_> = names
        .filter(|name| !MADE.iter().any(|made| name.starts_with(made)))
        .map(|name| {
            let file = |what: &str| line(root, &format!("sys/class/net/{name}/{what}"));
            // The carrier of an interface that is down cannot be read.
            let is_up = file("carrier").is_some_and(|word| word == "1");
            (name, is_up)
        })
        .collect();
    found.sort();
    found
}

fn carrier(interfaces: &[(String, bool)]) -> Probe {
    let named = |is_up: bool| {
        let names = interfaces.iter().filter(|(_, up)| *up == is_up);
        names
            .map(|(name, _)| name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let (up, down) = (named(true), named(false));
    match (up.as_str(), down.as_str()) {
        ("", "") => Probe::new(
            Step::Carrier,
            Outcome::Unknown,
            "no network interface is visible here",
        ),
        ("", down) => Probe::new(
            Step::Carrier,
            Outcome::Failed(Side::Node),
            format!("no cable or Wi-Fi is connected: {down}"),
        )
        .fix("connect the cable or the Wi-Fi: nmcli device status, or ip link"),
        (up, _) => Probe::new(Step::Carrier, Outcome::Ok, format!("{up} is connected")),
    }
}

/// Addresses of this machine that are not its own loopback, as the kernel lists them.
fn address(root: &Path) -> Probe {
    let v4 = text(root, "proc/net/fib_trie").map(|trie| own_v4(&trie));
    let v6 = text(root, "proc/net/if_inet6").map(|list| own_v6(&list));
    let is_blind = v4.is_none() && v6.is_none();
    let mut found = v4.unwrap_or_default();
    found.extend(v6.unwrap_or_default());
    let is_wanting = |address: &String| address.starts_with("169.254.");
    if is_blind {
        return Probe::new(
            Step::Address,
            Outcome::Unknown,
            "the kernel does not list addresses here",
        );
    }
    let shown: Vec<_> = found
        .iter()
        .filter(|address| !is_wanting(address))
        .take(3)
        .cloned()
        .collect();
    match (shown.is_empty(), found.is_empty()) {
        (false, _) => Probe::new(Step::Address, Outcome::Ok, shown.join(", ")),
        (true, true) => no_address("this machine has no address"),
        (true, false) => no_address(
            "this machine has a link-local address only, because no DHCP server answered",
        ),
    }
}

fn no_address(seen: &str) -> Probe {
    Probe::new(Step::Address, Outcome::Failed(Side::Node), seen)
        .fix("check the DHCP server (the router), or configure a static address; ip address shows the current ones")
}

/// The addresses that lead to this machine itself, in the order of the trie and once each.
fn own_v4(trie: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut last = "";
    for line in trie.lines() {
        let line = line.trim();
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address;
        }
        let is_own = line == "/32 host LOCAL" && !last.starts_with("127.");
        if is_own && !found.iter().any(|known| known == last) {
            found.push(last.to_owned());
        }
    }
    found
}

/// Global addresses: their scope is 00.
fn own_v6(list: &str) -> Vec<String> {
    let lines = list.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (digits, scope) = (words.next()?, words.nth(2)?);
        let address = u128::from_str_radix(digits, 16).ok()?;
        (scope == "00").then(|| std::net::Ipv6Addr::from(address).to_string())
    });
    lines.collect()
}

/// The interface and the router of the default route, in either protocol.
fn route(root: &Path) -> Probe {
    let v4 = text(root, "proc/net/route");
    let v6 = text(root, "proc/net/ipv6_route");
    if v4.is_none() && v6.is_none() {
        return Probe::new(
            Step::Route,
            Outcome::Unknown,
            "the kernel does not list routes here",
        );
    }
    let v4 = v4
        .as_deref()
        .and_then(|table| table.lines().find_map(default_v4));
    let v6 = v6
        .as_deref()
        .and_then(|table| table.lines().find_map(default_v6));
    match v4.or(v6) {
        Some(seen) => Probe::new(Step::Route, Outcome::Ok, seen),
        None => Probe::new(
            Step::Route,
            Outcome::Failed(Side::Node),
            "there is no default route",
        )
        .fix("check the DHCP server, or set one by hand: ip route add default via ROUTER"),
    }
}

fn default_v4(line: &str) -> Option<String> {
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    let [interface, "00000000", gateway, _, _, _, _, "00000000", ..] = words.as_slice() else {
        return None;
    };
    // In the byte order of the machine: all that run this are little endian.
    let gateway = u32::from_str_radix(gateway, 16).ok()?.swap_bytes();
    Some(match gateway {
        0 => format!("by {interface}"),
        gateway => format!("by {interface} to {}", std::net::Ipv4Addr::from(gateway)),
    })
}

fn default_v6(line: &str) -> Option<String> {
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    let [target, "00", _, _, _, metric, _, _, _, interface] = words.as_slice() else {
        return None;
    };
    // The kernel refuses everything by a route of its own with the highest metric, on lo.
    let is_default =
        target.bytes().all(|byte| byte == b'0') && *metric != "ffffffff" && *interface != "lo";
    is_default.then(|| format!("by {interface} (IPv6)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_routes_are_read_as_the_kernel_writes_them() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     +-- 127.0.0.0/8 2 0 2\n        |-- 127.0.0.1\n           /32 host LOCAL\n     |-- 192.168.1.7\n        /32 host LOCAL\n     |-- 192.168.1.255\n        /32 link BROADCAST\nLocal:\n     |-- 192.168.1.7\n        /32 host LOCAL\n";
        assert_eq!(own_v4(trie), ["192.168.1.7"]);
        let list = "00000000000000000000000000000001 01 80 10 80       lo\nfe800000000000000000000000000001 02 40 20 80 eth0\n20010db8000000000000000000000007 02 40 00 80 eth0\n";
        assert_eq!(own_v6(list), ["2001:db8::7"]);
        assert_eq!(
            default_v4("eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0").as_deref(),
            Some("by eth0 to 192.168.1.1")
        );
        assert_eq!(
            default_v4("eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0"),
            None
        );
        let zero = "0".repeat(32);
        let line = |metric: &str, interface: &str| {
            format!("{zero} 00 {zero} 00 {zero} {metric} 00000001 00000000 00000003 {interface}")
        };
        assert_eq!(
            default_v6(&line("00000400", "eth0")).as_deref(),
            Some("by eth0 (IPv6)")
        );
        assert_eq!(default_v6(&line("ffffffff", "lo")), None);
    }

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "a test's own file need not survive a power cut"
    )]
    fn a_machine_without_anything_says_so_step_by_step() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str, content: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        };
        for probe in probes(root.path()) {
            assert_eq!(probe.outcome, Outcome::Unknown, "{probe:?}");
        }
        at("sys/class/net/eth0/operstate", "down\n");
        at("sys/class/net/lo/carrier", "1\n");
        at("proc/net/fib_trie", "|-- 127.0.0.1\n /32 host LOCAL\n");
        at("proc/net/route", "Iface\tDestination\n");
        for probe in probes(root.path()) {
            assert_eq!(probe.outcome, Outcome::Failed(Side::Node), "{probe:?}");
            assert!(probe.fix.is_some(), "{probe:?}");
        }
    }
}
