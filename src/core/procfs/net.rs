//! The network: `dev`, `route`, `ipv6_route`, `fib_trie`, `if_inet6`, `tcp` and `tcp6` below
//! `/proc/net`.
//!
//! The kernel prints IPv4 addresses in the order of bytes of the machine; all that run the agent
//! are little-endian.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::numbers;
use crate::core::rates::Network;

/// Bit of a route that is up (`RTF_UP`).
const UP: u32 = 1;

/// Beginnings of the names of interfaces that are the machine's alone, of ends of tunnels that
/// modules make by themselves, and of those of containers: they come and go by the hundred.
const INNER: [&str; 26] = [
    "antrea",
    "br-",
    "cali",
    "cilium",
    "cni",
    "docker",
    "dummy",
    "erspan",
    "flannel",
    "gre",
    "ifb",
    "ip6_vti",
    "ip6gre",
    "ip6tnl",
    "ip_vti",
    "kube-",
    "lxc",
    "lxd",
    "nodelocaldns",
    "podman",
    "sit",
    "tunl",
    "veth",
    "virbr",
    "vnet",
    "vxlan.calico",
];

/// Returns whether an interface leads nowhere but into this machine: loopback, ends of tunnels
/// that modules make by themselves, and those of containers and virtual machines.
pub fn is_inner(name: &str) -> bool {
    name == "lo" || INNER.iter().any(|inner| name.starts_with(inner))
}

/// Interfaces of `/proc/net/dev` by their names.
pub fn interfaces(dev: &str) -> impl Iterator<Item = (&str, Network)> {
    dev.lines().filter_map(|line| {
        let (name, counts) = line.split_once(':')?;
        let name = name.trim();
        // The name becomes part of a path: no kernel gives one with a slash.
        if name.is_empty() || name == "." || name == ".." || name.contains('/') {
            return None;
        }
        let numbers = numbers(counts);
        let number = |column: usize| numbers.get(column).copied().flatten();
        // Received: bytes packets errors drops fifo frame compressed multicast; then sent: bytes
        // packets errors drops …
        let network = Network {
            bytes: [number(0)?, number(8)?],
            errors: [number(2)?, number(10)?],
            drops: [number(3)?, number(11)?],
            ..Network::default()
        };
        Some((name, network))
    })
}

/// A route of IPv4 that is up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Route<'a> {
    /// Interface that packets go out by.
    pub interface: &'a str,
    /// Lowest address of the network.
    pub network: Ipv4Addr,
    /// Bits of the network: 0 for the default route.
    pub prefix: u32,
    /// Router; unspecified where the network is at the interface itself.
    pub gateway: Ipv4Addr,
}

/// The lines of `/proc/net/route`.
pub fn routes(route: &str) -> impl Iterator<Item = Route<'_>> {
    route.lines().skip(1).filter_map(|line| {
        let mut columns = line.split_ascii_whitespace();
        let interface = columns.next()?;
        let hex = |word: Option<&str>| u32::from_str_radix(word?, 16).ok();
        let address = |word| Some(hex(word)?.swap_bytes());
        let (network, gateway) = (address(columns.next())?, address(columns.next())?);
        let flags = hex(columns.next())?;
        let mask = address(columns.nth(3))?;
        (flags & UP == UP).then_some(Route {
            interface,
            network: network.into(),
            prefix: mask.count_ones(),
            gateway: gateway.into(),
        })
    })
}

/// The interface of the first default route of `/proc/net/ipv6_route`.
pub fn default_route_v6(ipv6_route: &str) -> Option<&str> {
    ipv6_route.lines().find_map(|line| {
        let words: Vec<_> = line.split_ascii_whitespace().take(11).collect();
        let [target, "00", _, _, _, metric, _, _, _, interface] = words.as_slice() else {
            return None;
        };
        // The kernel refuses everything by a route of its own with the highest metric, on lo.
        let is_default =
            target.bytes().all(|byte| byte == b'0') && *metric != "ffffffff" && *interface != "lo";
        is_default.then_some(*interface)
    })
}

/// Addresses of this machine by `/proc/net/fib_trie`, in its order and once each, without loopback.
pub fn addresses_v4(fib_trie: &str) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    let mut last = None;
    for line in fib_trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL"
            && let Some(address) = last.filter(|address| !address.is_loopback())
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found
}

/// An address of `/proc/net/if_inet6`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AddressV6<'a> {
    pub address: Ipv6Addr,
    /// True if it is more than this machine's and its cable's (scope 00).
    pub is_global: bool,
    /// Interface that has it.
    pub interface: &'a str,
}

/// The lines of `/proc/net/if_inet6`: address, index, prefix, scope, flags, interface.
pub fn addresses_v6(if_inet6: &str) -> impl Iterator<Item = AddressV6<'_>> {
    if_inet6.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (digits, scope) = (words.next()?, words.nth(2)?);
        Some(AddressV6 {
            address: u128::from_str_radix(digits, 16).ok()?.into(),
            is_global: scope == "00",
            interface: words.nth(1)?,
        })
    })
}

/// A TCP socket that listens.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Listener<'a> {
    pub port: u16,
    /// Number of the user that it belongs to; root where the line was cut.
    pub user: u32,
    /// Inode of the socket, by which a process has it open.
    pub inode: Option<&'a str>,
}

/// Sockets of `/proc/net/tcp` or `tcp6` that listen.
pub fn listeners(tcp: &str) -> impl Iterator<Item = Listener<'_>> {
    tcp.lines().skip(1).filter_map(|line| {
        let mut columns = line.split_ascii_whitespace();
        let (local, state) = (columns.nth(1)?, columns.nth(1)?);
        let port = u16::from_str_radix(local.rsplit(':').next()?, 16).ok()?;
        let user = columns.nth(3).and_then(|user| user.parse().ok());
        // 0A: listening.
        (state == "0A").then_some(Listener {
            port,
            user: user.unwrap_or(0),
            inode: columns.nth(1),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_routes_are_read_as_the_kernel_writes_them() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     +-- 127.0.0.0/8 2 0 2\n        |-- 127.0.0.1\n           /32 host LOCAL\n     |-- 192.168.1.7\n        /32 host LOCAL\n     |-- 192.168.1.255\n        /32 link BROADCAST\nLocal:\n     |-- 192.168.1.7\n        /32 host LOCAL\n";
        assert_eq!(addresses_v4(trie), [Ipv4Addr::new(192, 168, 1, 7)]);
        let list = "00000000000000000000000000000001 01 80 10 80       lo\nfe800000000000000000000000000001 02 40 20 80 eth0\n20010db8000000000000000000000007 02 40 00 80 eth0\n";
        let global: Vec<_> = addresses_v6(list)
            .filter(|v6| v6.is_global)
            .map(|v6| (v6.address.to_string(), v6.interface))
            .collect();
        assert_eq!(global, [("2001:db8::7".to_owned(), "eth0")]);
        let table = "Iface\tDestination\n\
            eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
            eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n\
            down\t0001A8C0\t00000000\t0000\t0\t0\t100\t00FFFFFF\t0\t0\t0\n\
            cut\t0001A8C0\n";
        let found: Vec<_> = routes(table)
            .map(|route| {
                (
                    route.network.to_string(),
                    route.prefix,
                    route.gateway.to_string(),
                )
            })
            .collect();
        let row =
            |network: &str, prefix, gateway: &str| (network.to_owned(), prefix, gateway.to_owned());
        assert_eq!(
            found,
            [
                row("0.0.0.0", 0, "192.168.1.1"),
                row("192.168.1.0", 24, "0.0.0.0")
            ]
        );
        let zero = "0".repeat(32);
        let line = |metric: &str, interface: &str| {
            format!("{zero} 00 {zero} 00 {zero} {metric} 00000001 00000000 00000003 {interface}")
        };
        assert_eq!(default_route_v6(&line("00000400", "eth0")), Some("eth0"));
        assert_eq!(default_route_v6(&line("ffffffff", "lo")), None);
    }

    #[test]
    fn sockets_that_listen_are_told_from_the_others() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:192B 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000 0 4711 1\n\
            1: 0100007F:9C40 0100007F:192B 01 00000000:00000000 00:00000000 00000000  1000 0 4712 1\n\
            2: 0100007F:0016 00000000:0000 0A\n";
        let all: Vec<_> = listeners(table)
            .map(|socket| (socket.port, socket.user, socket.inode))
            .collect();
        assert_eq!(all, [(6443, 1000, Some("4711")), (22, 0, None)]);
    }
}
