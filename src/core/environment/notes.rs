//! Notes on environments that are not ordinary machines: supported functions, and changes that
//! enable more.

use super::{Environment, Init, Nas, Virtualisation};

/// One thing to know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Note {
    /// Supported functions.
    pub works: &'static str,
    /// Changes that enable more, or the reason why there are none.
    pub change: &'static str,
}

const LXC: Note = Note {
    works: "the agent and its measurements work; k3s needs a privileged container with nesting",
    change: "on the host, in /etc/pve/lxc/ID.conf (Proxmox) or the container's configuration: features: nesting=1,keyctl=1; lxc.apparmor.profile: unconfined; lxc.cap.drop: (empty); lxc.cgroup2.devices.allow: a; lxc.mount.auto: proc:rw sys:rw; lxc.mount.entry: /dev/kmsg dev/kmsg none bind,create=file; then restart it. A virtual machine needs none of this",
};
const DOCKER: Note = Note {
    works: "the agent can connect to a cluster with a kubeconfig; it measures the container, not the machine",
    change: "install the agent on the machine itself, or in the cluster; k3s in Docker is for testing only",
};
const POD: Note = Note {
    works: "the agent connects to its cluster with its service account; it cannot see the node",
    change: "to monitor and repair the node as well, install the agent on it",
};
const WSL2: Note = Note {
    works: "the agent and k3s work while Windows keeps this system running",
    change: "in /etc/wsl.conf: [boot] systemd=true; in %UserProfile%\\.wslconfig: [wsl2] vmIdleTimeout=-1, and kernelCommandLine= for kernel parameters; then: wsl --shutdown. Other machines reach ports only with networkingMode=mirrored",
};
const WSL1: Note = Note {
    works: "nothing that needs a Linux kernel works: k3s cannot run",
    change: "in Windows: wsl --set-version NAME 2",
};
const CONTAINER: Note = Note {
    works: "the agent works; k3s needs its own kernel or a privileged container",
    change: "install both on the machine that runs this container",
};
const SYNOLOGY: Note = Note {
    works: "the agent works with a cluster on another machine (its kubeconfig in agent.kubeconfig)",
    change: "k3s does not work: the DSM kernel lacks control groups and VXLAN, and cannot be extended. Run Debian in Virtual Machine Manager, with its disk on a volume",
};
const QNAP: Note = Note {
    works: "the agent works with a cluster on another machine (its kubeconfig in agent.kubeconfig)",
    change: "/etc is written anew at each start of QTS: keep configuration and state on a volume; k3s belongs into a virtual machine \
        (Virtualization Station)",
};
const UNRAID: Note = Note {
    works: "the agent works; the root file system is in memory",
    change: "keep configuration and state below /mnt/user/appdata and start the agent from /boot/config/go; run k3s in a virtual machine",
};
const TRUENAS: Note = Note {
    works: "the agent works with a cluster on another machine (its kubeconfig in agent.kubeconfig)",
    change: "upgrades replace the whole system: keep configuration and state on a pool; run k3s in a virtual machine of TrueNAS",
};
const NO_INIT: Note = Note {
    works: "the agent works if something starts it",
    change: "the package only includes services for systemd and OpenRC: start pipeops-agent run from your init system",
};
const USERLAND_32: Note = Note {
    works: "32-bit programs; k3s does not start images for arm64 or amd64, and many images exist for nothing else",
    change: "install the 64-bit image",
};

impl Environment {
    /// All that is to be known about this environment beyond what any machine has.
    pub fn notes(&self) -> Vec<Note> {
        let virtualisation = match self.virtualisation {
            Virtualisation::Lxc => Some(LXC),
            Virtualisation::Docker => Some(DOCKER),
            Virtualisation::Pod => Some(POD),
            Virtualisation::Wsl2 => Some(WSL2),
            Virtualisation::Wsl1 => Some(WSL1),
            Virtualisation::Container => Some(CONTAINER),
            Virtualisation::Bare | Virtualisation::Vm => None,
        };
        let nas = self.nas.map(|nas| match nas {
            Nas::Synology => SYNOLOGY,
            Nas::Qnap => QNAP,
            Nas::Unraid => UNRAID,
            Nas::TrueNas => TRUENAS,
        });
        let is_strange = self.init == Init::Other
            && self.virtualisation == Virtualisation::Bare
            && self.nas.is_none();
        let others = [
            is_strange.then_some(NO_INIT),
            self.is_userland_32_bit.then_some(USERLAND_32),
        ];
        [virtualisation, nas]
            .into_iter()
            .chain(others)
            .flatten()
            .collect()
    }
}
