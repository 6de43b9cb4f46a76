//! k3s and the agent.

#![expect(clippy::too_many_lines, reason = "tables")]

use super::{
    super::tree::{Tree, alpine, ubuntu},
    Case, case,
};

const ENDED: &str = "1546300800000 1577836800000";

pub(super) fn k3s() -> Vec<Case> {
    let config = "etc/rancher/k3s/config.yaml";
    let server = "var/lib/rancher/k3s/server";
    let stopped = |tree: Tree| {
        tree.without("sys/fs/cgroup/system.slice")
            .with("proc/self/net/tcp", "")
    };
    vec![
        case(
            "k3s.program",
            ubuntu().with("usr/local/bin/k3s", ""),
            &["is empty", "sudo systemctl restart k3s"],
        ),
        case(
            "k3s.config",
            ubuntu().with(config, "tls-san:\n\t- box\n"),
            &["line 2"],
        ),
        case(
            "k3s.config",
            ubuntu()
                .with("etc/systemd/system/k3s-agent.service", "")
                .with(config, "flannel-backend: host-gw\n"),
            &[
                "flannel-backend is a setting of servers",
                "restart k3s-agent",
            ],
        ),
        case(
            "k3s.empty-files",
            ubuntu().with(&format!("{server}/tls/client-admin.crt"), ""),
            &["client-admin.crt is empty", "certificate rotate"],
        ),
        case(
            "k3s.empty-files",
            ubuntu().with(&format!("{server}/db/state.db"), ""),
            &["state.db is empty", "backup"],
        ),
        case(
            "k3s.certificates",
            ubuntu().answering(
                "dates /var/lib/rancher/k3s/server/tls/client-admin.crt",
                ENDED,
            ),
            &["client-admin.crt expired"],
        ),
        case(
            "k3s.certificates",
            ubuntu().answering(
                "dates /var/lib/rancher/k3s/agent/client-kubelet.crt",
                "4000000000000 4100000000000",
            ),
            &["not valid yet", "clock was wrong"],
        ),
        case(
            "k3s.service",
            stopped(ubuntu()),
            &[
                "not running",
                "journalctl -u k3s -n 50",
                "sudo systemctl enable --now k3s",
            ],
        ),
        case(
            "k3s.service",
            stopped(
                alpine()
                    .without("proc/77")
                    .with("sys/fs/cgroup/system.slice/", ""),
            ),
            &["tail -n 50 /var/log/k3s.log", "rc-update add k3s"],
        ),
        case(
            "k3s.datastore",
            ubuntu()
                .answering(
                    "stat /var/lib/rancher/k3s/server/db/state.db",
                    "600 0 0 5000000000 1",
                )
                .with(&format!("{server}/db/x"), ""),
            &["5000 MB", "VACUUM"],
        ),
        case(
            "k3s.kubeconfig-mode",
            ubuntu().answering("stat /etc/rancher/k3s/k3s.yaml", "644 0 0 2900 1"),
            &["sudo chmod 600 /etc/rancher/k3s/k3s.yaml"],
        ),
        case(
            "k3s.kubeconfig",
            ubuntu().failing("kubeconfig", "cannot read it\nwrite it anew"),
            &["cannot read it", "write it anew"],
        ),
        case(
            "k3s.kubeconfig-certificate",
            ubuntu().answering("kubeconfig dates", ENDED),
            &["it expired"],
        ),
        case(
            "k3s.api",
            ubuntu().failing("kubernetes api", "no answer in 1 s\nwait"),
            &["no answer", "journalctl -u k3s"],
        ),
    ]
}

pub(super) fn agent() -> Vec<Case> {
    vec![
        case(
            "agent.settings",
            ubuntu().failing("settings", "no token\nwrite one"),
            &["no token", "write one", "config check"],
        ),
        case(
            "agent.state",
            ubuntu().with("etc/passwd", "pipeops-agent:x:998:998::/:/bin/false\n"),
            &["belongs to user 0", "chown -R", "systemctl restart"],
        ),
        case(
            "agent.state",
            ubuntu()
                .without("var/lib/pipeops-agent/")
                .with("var/lib/pipeops-agent", ""),
            &["not a directory", "lsattr"],
        ),
        case(
            "agent.secrets",
            ubuntu().failing("files with secrets", "others can read it\nchmod 600 it"),
            &["others can read it", "chmod 600 it"],
        ),
        case(
            "agent.service",
            ubuntu().with("usr/lib/systemd/system/pipeops-agent.service", ""),
            &["journalctl -u pipeops-agent", "enable --now pipeops-agent"],
        ),
        case(
            "agent.update",
            ubuntu().answering(
                "update that was taken back",
                "1.3.0 was tried and rolled back at 2026-11-20T03:12:09Z: it crashed",
            ),
            &["1.3.0 was tried", "it crashed", "update --check"],
        ),
        case(
            "agent.name",
            ubuntu().failing("control plane dns", "no such name\ncheck it"),
            &["no such name", "check it"],
        ),
        case(
            "agent.control-plane",
            ubuntu().failing("control plane tcp", "refused\nopen the port"),
            &["open the port"],
        ),
        case(
            "agent.tls",
            ubuntu().failing("control plane tls", "expired\nset the clock"),
            &["set the clock"],
        ),
        case(
            "dashboard.certificate",
            ubuntu().failing("certificate of the dashboard", "it ended\nrenew it"),
            &["it ended", "renew it"],
        ),
    ]
}
