//! What works in an environment that is no ordinary machine, what to change there, or why it cannot be.

use super::{Environment, Init, Nas, Virtualisation};

/// One thing to know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Note {
    /// What works.
    pub works: &'static str,
    /// What to change, or why there is nothing to change.
    pub change: &'static str,
}

const LXC: Note = Note {
    works: "the agent and its measurements work; k3s works in a privileged container that may nest",
    change: "on the host, in /etc/pve/lxc/ID.conf (Proxmox) or the container's configuration: features: nesting=1,keyctl=1; \
        lxc.apparmor.profile: unconfined; lxc.cap.drop: (empty); lxc.cgroup2.devices.allow: a; lxc.mount.auto: proc:rw sys:rw; \
        lxc.mount.entry: /dev/kmsg dev/kmsg none bind,create=file; then start it anew. A virtual machine needs none of this",
};
const DOCKER: Note = Note {
    works: "the agent can reach a cluster by a kubeconfig; what it measures is the container, not the machine",
    change: "install the agent on the machine itself, or in the cluster; k3s in Docker is for trials only",
};
const POD: Note = Note {
    works: "the agent reaches its cluster by its service account; the node below it is not seen",
    change: "to watch and repair the node too, install the agent on it",
};
const WSL2: Note = Note {
    works: "the agent and k3s work while Windows keeps this system running",
    change: "in /etc/wsl.conf: [boot] systemd=true; in %UserProfile%\\.wslconfig: [wsl2] vmIdleTimeout=-1, and kernelCommandLine= for words \
        of the kernel; then: wsl --shutdown. Ports are reached from other machines only with networkingMode=mirrored",
};
const WSL1: Note = Note {
    works: "nothing that needs a Linux kernel does: k3s cannot run",
    change: "in Windows: wsl --set-version NAME 2",
};
const CONTAINER: Note = Note {
    works: "the agent works; k3s needs a kernel of its own or a privileged container",
    change: "install both on the machine that runs this container",
};
const SYNOLOGY: Note = Note {
    works: "the agent works with a cluster on another machine (its kubeconfig in agent.kubeconfig)",
    change: "k3s does not: DSM's kernel lacks control groups and vxlan, and nothing can be added to it. Run Debian in Virtual Machine Manager, \
        its disk on a volume",
};
const QNAP: Note = Note {
    works: "the agent works with a cluster on another machine (its kubeconfig in agent.kubeconfig)",
    change: "/etc is written anew at each start of QTS: keep configuration and state on a volume; k3s belongs into a virtual machine \
        (Virtualization Station)",
};
const UNRAID: Note = Note {
    works: "the agent works; the root file system is memory",
    change: "keep configuration and state below /mnt/user/appdata and start the agent from /boot/config/go; k3s belongs into a virtual machine",
};
const TRUENAS: Note = Note {
    works: "the agent works with a cluster on another machine (its kubeconfig in agent.kubeconfig)",
    change: "the system is replaced whole with each upgrade: keep configuration and state on a pool; k3s belongs into a virtual machine of TrueNAS",
};
const NO_INIT: Note = Note {
    works: "the agent works when something starts it",
    change: "only services of systemd and OpenRC are made by the package: start pipeops-agent run from the init system that is here",
};
const USERLAND_32: Note = Note {
    works: "programs of 32 bit; images for arm64 or amd64 do not start in k3s of 32 bit, and many images have no other form",
    change: "write the image of 64 bit onto the disk",
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
