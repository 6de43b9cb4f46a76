//! Network state of the machine: carrier, address, default route. Read below a root path, in a few
//! milliseconds.

use std::{net::IpAddr, path::Path};

use super::facts::{line, text};
use crate::core::{
    diagnosis::{PathStep, Probe, Side, StepResult},
    order::OrderExt as _,
    procfs::net,
};

/// Addresses by which other machines in the network may reach this one: IPv4 first, and in the
/// order of their interfaces, of which those of the board come before what was made later. None of
/// containers, and none that is for one link only.
pub fn addresses() -> Vec<IpAddr> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let others = interfaces.filter(|interface| {
        let name = &interface.interface_name;
        !net::is_inner(name)
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
    found.order_by_key(IpAddr::is_ipv6);
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
        .filter(|name| !net::is_inner(name))
        .map(|name| {
            let file = |what: &str| line(root, &format!("sys/class/net/{name}/{what}"));
            // The carrier of an interface that is down cannot be read.
            let is_up = file("carrier").is_some_and(|word| word == "1");
            (name, is_up)
        })
        .collect();
    found.order();
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
            PathStep::Carrier,
            StepResult::Unknown,
            "no network interface is visible here",
        ),
        ("", down) => Probe::new(
            PathStep::Carrier,
            StepResult::Failed(Side::Node),
            format!("no cable or Wi-Fi is connected: {down}"),
        )
        .fix("connect the cable or the Wi-Fi: nmcli device status, or ip link"),
        (up, _) => Probe::new(
            PathStep::Carrier,
            StepResult::Ok,
            format!("{up} is connected"),
        ),
    }
}

/// Addresses of this machine that are not its own loopback, as the kernel lists them below a root
/// path; `None` where it does not.
pub fn all_addresses(root: &Path) -> Option<Vec<IpAddr>> {
    let v4 = text(root, "proc/net/fib_trie");
    let v6 = text(root, "proc/net/if_inet6");
    if v4.is_none() && v6.is_none() {
        return None;
    }
    let v4 = net::addresses_v4(v4.as_deref().unwrap_or_default());
    let v6 = net::addresses_v6(v6.as_deref().unwrap_or_default()).filter(|found| found.is_global);
    let mut found: Vec<_> = v4.into_iter().map(IpAddr::V4).collect();
    found.extend(v6.map(|found| IpAddr::V6(found.address)));
    Some(found)
}

fn address(root: &Path) -> Probe {
    let Some(found) = all_addresses(root) else {
        return Probe::new(
            PathStep::Address,
            StepResult::Unknown,
            "the kernel does not list addresses here",
        );
    };
    let is_wanting =
        |address: &IpAddr| matches!(address, IpAddr::V4(address) if address.is_link_local());
    let shown: Vec<_> = found
        .iter()
        .filter(|address| !is_wanting(address))
        .take(3)
        .map(IpAddr::to_string)
        .collect();
    match (shown.is_empty(), found.is_empty()) {
        (false, _) => Probe::new(PathStep::Address, StepResult::Ok, shown.join(", ")),
        (true, true) => no_address("this machine has no address"),
        (true, false) => no_address(
            "this machine has a link-local address only, because no DHCP server answered",
        ),
    }
}

fn no_address(seen: &str) -> Probe {
    Probe::new(PathStep::Address, StepResult::Failed(Side::Node), seen)
        .fix("check the DHCP server (the router), or configure a static address; ip address shows the current ones")
}

/// Returns whether the kernel has a default route below a root path.
pub fn has_default_route(root: &Path) -> bool {
    matches!(route(root).outcome, StepResult::Ok)
}

/// The interface and the router of the default route, in either protocol.
fn route(root: &Path) -> Probe {
    let v4 = text(root, "proc/net/route");
    let v6 = text(root, "proc/net/ipv6_route");
    if v4.is_none() && v6.is_none() {
        return Probe::new(
            PathStep::Route,
            StepResult::Unknown,
            "the kernel does not list routes here",
        );
    }
    let v4 = v4.as_deref().and_then(default_v4);
    let v6 = v6.as_deref().and_then(net::default_route_v6);
    match v4.or_else(|| v6.map(|interface| format!("on {interface} (IPv6)"))) {
        Some(seen) => Probe::new(PathStep::Route, StepResult::Ok, seen),
        None => Probe::new(
            PathStep::Route,
            StepResult::Failed(Side::Node),
            "there is no default route",
        )
        .fix("check the DHCP server, or set one by hand: ip route add default via ROUTER"),
    }
}

fn default_v4(table: &str) -> Option<String> {
    let route = net::routes(table).find(|route| route.prefix == 0)?;
    Some(if route.gateway.is_unspecified() {
        format!("on {}", route.interface)
    } else {
        format!("via {} on {}", route.gateway, route.interface)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(probe.outcome, StepResult::Unknown, "{probe:?}");
        }
        at("sys/class/net/eth0/operstate", "down\n");
        at("sys/class/net/lo/carrier", "1\n");
        at("proc/net/fib_trie", "|-- 127.0.0.1\n /32 host LOCAL\n");
        at("proc/net/route", "Iface\tDestination\n");
        for probe in probes(root.path()) {
            assert_eq!(probe.outcome, StepResult::Failed(Side::Node), "{probe:?}");
            assert!(probe.fix.is_some(), "{probe:?}");
        }
        assert!(!has_default_route(root.path()));
        at(
            "proc/net/route",
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\n",
        );
        assert!(has_default_route(root.path()));
    }
}
