//! The network, firewalls and names.

#![expect(clippy::too_many_lines, reason = "tables")]

use super::{
    super::tree::{alpine, ubuntu},
    Case, case,
};

const ROUTES: &str = "proc/self/net/route";

pub(super) fn network() -> Vec<Case> {
    let lan = "eth0 0001A8C0 00000000 0001 0 0 100 00FFFFFF 0 0 0\n";
    let default = "eth0 00000000 0101A8C0 0003 0 0 100 00000000 0 0 0\n";
    let config = "etc/rancher/k3s/config.yaml";
    vec![
        case(
            "network.carrier",
            ubuntu().with("sys/class/net/eth0/operstate", "down\n"),
            &["eth0 is down"],
        ),
        case(
            "network.address",
            ubuntu()
                .with_words(ROUTES, lan, "")
                .with_words(ROUTES, default, "")
                .with("sys/fs/cgroup/system.slice/NetworkManager.service/", ""),
            &["sudo systemctl restart NetworkManager"],
        ),
        case(
            "network.address",
            ubuntu()
                .with_words(
                    ROUTES,
                    lan,
                    "eth0 0000FEA9 00000000 0001 0 0 100 0000FFFF 0 0 0\n",
                )
                .with_words(ROUTES, default, ""),
            &["no interface that leads out has an address"],
        ),
        case(
            "network.route",
            ubuntu().with_words(ROUTES, default, ""),
            &["dummy0"],
        ),
        case(
            "network.mtu",
            ubuntu().with("sys/class/net/eth0/mtu", "576\n"),
            &["sudo ip link set dev eth0 mtu 1500"],
        ),
        case(
            "network.mtu",
            ubuntu().with("sys/class/net/flannel.1/mtu", "1480\n"),
            &[
                "sudo ip link delete flannel.1",
                "sudo systemctl restart k3s",
            ],
        ),
        case(
            "network.overlap",
            ubuntu().with_words(ROUTES, "eth0 0001A8C0", "eth0 00012A0A"),
            &["10.42.1.0/24", "10.52.0.0/16"],
        ),
        case(
            "network.overlap",
            ubuntu().with(config, "cluster-cidr: 10.52.0.0/16,192.168.1.0/24 # Pods\n"),
            &["192.168.1.0/24"],
        ),
        case(
            "network.node-ip",
            ubuntu().with(config, "node-ip: 192.168.1.9\n"),
            &["192.168.1.9", "/etc/rancher/k3s/config.yaml"],
        ),
        case(
            "network.local-name",
            ubuntu().with(config, "server: https://pi.local:6443\n"),
            &["pi.local"],
        ),
        case(
            "network.other-kubernetes",
            ubuntu().with("var/snap/microk8s/", ""),
            &["MicroK8s", "snap remove"],
        ),
        case(
            "network.ports",
            ubuntu().without("sys/fs/cgroup/system.slice"),
            &["port 6443", "sport = :6443"],
        ),
        case(
            "network.web-ports",
            ubuntu().with_words("proc/self/net/tcp", ":192B", ":0050"),
            &["port 80", "traefik"],
        ),
    ]
}

pub(super) fn firewall() -> Vec<Case> {
    let unit =
        |name: &str| ubuntu().with(&format!("sys/fs/cgroup/system.slice/{name}.service/"), "");
    let iptables = "Package: iptables\nStatus: install ok installed\nVersion: 1.8.2-4\n\n";
    vec![
        case(
            "network.manager",
            unit("NetworkManager").with("etc/NetworkManager/conf.d/", ""),
            &["/etc/NetworkManager/conf.d/", "sudo nmcli general reload conf"],
        ),
        case(
            "network.cloud-setup",
            ubuntu().with("etc/systemd/system/timers.target.wants/nm-cloud-setup.timer", ""),
            &["disable nm-cloud-setup.service"],
        ),
        case("network.firewalld", unit("firewalld"), &["--add-source=10.42.0.0/16"]),
        case(
            "network.firewalld",
            unit("firewalld").with("etc/rancher/k3s/config.yaml", "cluster-cidr: 10.60.0.0/16\n"),
            &["10.60.0.0/16 10.43.0.0/16"],
        ),
        case("network.ufw", ubuntu().with("etc/ufw/ufw.conf", "ENABLED=yes\n"), &["ufw allow from 10.42.0.0/16"]),
        case("network.iptables", ubuntu().with("var/lib/dpkg/status", iptables), &["1.8.2", "prefer-bundled-bin"]),
        case("network.iptables", alpine().with("lib/apk/db/installed", "P:iptables\nV:1.8.10-r3\n"), &["1.8.10"]),
        case("network.duplicates", ubuntu().answering("iptables duplicates", "4120"), &["4120", "prefer-bundled-bin"]),
        case(
            "network.backends",
            ubuntu().with("proc/net/ip_tables_names", "nat\nfilter\n").with("proc/modules", "nf_tables 300 12 nft_compat, Live 0x0\noverlay 1 0 - Live 0x0\nbr_netfilter 1 0 - Live 0x0\nnf_conntrack 1 0 - Live 0x0\n"),
            &["nat, filter", "update-alternatives"],
        ),
    ]
}

pub(super) fn names() -> Vec<Case> {
    let many = "nameserver 9.9.9.1\nnameserver 9.9.9.2\nnameserver 9.9.9.3\nnameserver 9.9.9.4\n";
    vec![
        case(
            "dns.servers",
            ubuntu().with("etc/resolv.conf", "# nothing\n"),
            &["names none"],
        ),
        case(
            "dns.servers",
            ubuntu().without("etc/resolv.conf"),
            &["there is no /etc/resolv.conf"],
        ),
        case(
            "dns.answers",
            ubuntu().failing("dns 192.168.1.1", "no answer in 1 s"),
            &["192.168.1.1: no answer"],
        ),
        case(
            "dns.too-many",
            ubuntu().with("etc/resolv.conf", many),
            &["4 in /etc/resolv.conf"],
        ),
        case(
            "dns.pods",
            ubuntu().with("etc/resolv.conf", "nameserver 127.0.0.1\n"),
            &["loopback", "resolv-conf: /etc/rancher/k3s/resolv.conf"],
        ),
        case(
            "dns.search",
            ubuntu()
                .answering("dns 192.168.1.1", "it answers")
                .answering("any name of house", "x.house"),
            &[
                "house resolves any name",
                "grep -v ^search /etc/resolv.conf",
            ],
        ),
    ]
}
