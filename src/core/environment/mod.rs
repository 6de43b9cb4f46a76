//! Environment: the properties of a machine that decide which commands a person has to type (board,
//! distribution, init, boot loader, package manager).

mod commands;
mod notes;

pub use commands::BootFix;
pub use notes::Note;

use super::{facts::Facts, os_release, procfs::kernel};

/// Facts that [`Environment::of`] reads, by the names of [`Facts`].
pub const READS: &[&str] = &[
    "/etc/os-release",
    "/usr/lib/os-release",
    "/proc/1/comm",
    "/proc/cpuinfo",
    "/proc/device-tree/model",
    "page size",
    "/proc/self/cgroup",
    "/proc/self/mountinfo",
    "/proc/sys/kernel/arch",
    "/proc/sys/kernel/osrelease",
    "/run/openrc/",
    "/run/systemd/container",
    "/run/systemd/system/",
    "/sys/class/dmi/id/board_name",
    "/sys/class/dmi/id/product_name",
    "/sys/class/dmi/id/sys_vendor",
    "/sys/fs/cgroup/cgroup.controllers",
    "/proc/cgroups",
    "/sys/hypervisor/type",
    "elf /bin/sh",
    "stat /.dockerenv",
    "stat /run/.containerenv",
    "/var/run/secrets/kubernetes.io/serviceaccount/",
    "/etc/config/",
    "stat /etc/synoinfo.conf",
    "stat /etc/unraid-version",
    "stat /usr/bin/midclt",
    "/etc/version",
    "/boot/",
    "/boot/firmware/",
    "/boot/extlinux/",
    "/boot/loader/entries/",
    "/boot/cmdline.txt",
    "stat /etc/default/grub",
    "stat /etc/update-extlinux.conf",
    "/media/",
    "/media/mmcblk0p1/",
    "/usr/bin/",
    "/sbin/",
    "/bin/",
    "stat /etc/systemd/system/k3s-agent.service",
    "stat /etc/init.d/k3s-agent",
];

/// Init system.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Init {
    Systemd,
    /// OpenRC.
    OpenRc,
    /// Another one, or none.
    #[default]
    Other,
}

/// Virtualization or container.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Virtualisation {
    /// Nothing: the kernel has the machine.
    #[default]
    Bare,
    /// A virtual machine.
    Vm,
    /// A system container: LXC, Incus.
    Lxc,
    /// A container of Docker or Podman.
    Docker,
    Pod,
    /// The Windows Subsystem for Linux with a kernel of its own.
    Wsl2,
    /// The one without.
    Wsl1,
    /// A container of another kind.
    Container,
}

/// NAS vendor whose system is not a plain distribution.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Nas {
    /// DSM.
    Synology,
    /// QTS.
    Qnap,
    Unraid,
    /// TrueNAS SCALE.
    TrueNas,
}

/// Boot loader.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Loader {
    /// The firmware of a Raspberry Pi: one line in `cmdline.txt`.
    RaspberryPi,
    Grub,
    /// U-Boot or syslinux by `extlinux.conf`.
    Extlinux,
    /// Alpine's extlinux, which is rewritten by a program.
    AlpineExtlinux,
    /// Armbian's U-Boot script.
    Armbian,
    SystemdBoot,
    Windows,
    /// The host of this container: nothing in here can change it.
    Host,
    /// Not found out.
    #[default]
    Unknown,
}

/// Package manager.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Packages {
    /// Debian, Ubuntu, Raspberry Pi OS.
    Apt,
    /// Fedora, Rocky, Alma.
    Dnf,
    /// Alpine.
    Apk,
    /// Arch.
    Pacman,
    /// SUSE.
    Zypper,
    /// None: the image is written as a whole, or the manufacturer updates it.
    #[default]
    None,
}

/// The environment. What is not known is `None` or the last word of its list.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Environment {
    /// The board or machine, as its maker calls it.
    pub board: Option<String>,
    /// The distribution with its version, as people call it.
    pub distribution: Option<String>,
    /// The distribution's `ID` and those that it is like.
    pub families: Vec<String>,
    /// Its `VERSION_ID`.
    pub version: Option<String>,
    /// Init system.
    pub init: Init,
    /// Virtualization or container.
    pub virtualisation: Virtualisation,
    /// NAS system.
    pub nas: Option<Nas>,
    /// The version of control groups: 1 or 2.
    pub cgroup_version: Option<u8>,
    /// Their controllers that are on.
    pub controllers: Vec<String>,
    /// The size of a page of memory.
    pub page_size_bytes: Option<u64>,
    /// The kernel's architecture.
    pub architecture: Option<String>,
    /// True if programs are of 32 bit; with a kernel of 64 bit most images do not fit.
    pub is_userland_32_bit: bool,
    /// Boot loader.
    pub loader: Loader,
    /// The file with them.
    pub boot_file: Option<String>,
    /// Package manager.
    pub packages: Packages,
    /// The name of the service of k3s here.
    pub k3s: &'static str,
}

impl Init {
    /// The word in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Systemd => "systemd",
            Self::OpenRc => "OpenRC",
            Self::Other => "other",
        }
    }
}

impl Virtualisation {
    /// The word in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Vm => "vm",
            Self::Lxc => "lxc",
            Self::Docker => "docker",
            Self::Pod => "pod",
            Self::Wsl2 => "wsl2",
            Self::Wsl1 => "wsl1",
            Self::Container => "container",
        }
    }

    /// Returns whether the kernel belongs to a host.
    pub const fn is_container(self) -> bool {
        match self {
            Self::Lxc | Self::Docker | Self::Pod | Self::Container => true,
            Self::Bare | Self::Vm | Self::Wsl2 | Self::Wsl1 => false,
        }
    }
}

impl Nas {
    /// The maker's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Synology => "Synology",
            Self::Qnap => "QNAP",
            Self::Unraid => "Unraid",
            Self::TrueNas => "TrueNAS",
        }
    }
}

impl Loader {
    /// The word in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RaspberryPi => "Raspberry Pi firmware",
            Self::Grub => "GRUB",
            Self::Extlinux | Self::AlpineExtlinux => "extlinux",
            Self::Armbian => "U-Boot (Armbian)",
            Self::SystemdBoot => "systemd-boot",
            Self::Windows => "Windows",
            Self::Host => "host",
            Self::Unknown => "unknown",
        }
    }
}

impl Packages {
    /// The program's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Apt => "apt",
            Self::Dnf => "dnf",
            Self::Apk => "apk",
            Self::Pacman => "pacman",
            Self::Zypper => "zypper",
            Self::None => "none",
        }
    }
}

impl Environment {
    /// Finds it out.
    pub fn of(facts: &Facts) -> Self {
        let board = board(facts);
        let virtualisation = virtualisation(facts);
        let (loader, boot_file) = loader(facts, board.as_deref(), virtualisation);
        let mut families = Vec::new();
        families.extend(release(facts, "ID"));
        if let Some(like) = release(facts, "ID_LIKE") {
            families.extend(like.split(' ').map(str::to_owned));
        }
        let (cgroup_version, controllers) = control_groups(facts);
        Self {
            board,
            distribution: release(facts, "PRETTY_NAME").or_else(|| release(facts, "NAME")),
            families,
            version: release(facts, "VERSION_ID"),
            init: init(facts),
            virtualisation,
            nas: nas(facts),
            cgroup_version,
            controllers,
            page_size_bytes: facts.number("page size"),
            architecture: facts.word("/proc/sys/kernel/arch").map(str::to_owned),
            is_userland_32_bit: facts.word("elf /bin/sh") == Some("32"),
            loader,
            boot_file,
            packages: packages(facts),
            k3s: if facts.has("stat /etc/systemd/system/k3s-agent.service")
                || facts.has("stat /etc/init.d/k3s-agent")
            {
                "k3s-agent"
            } else {
                "k3s"
            },
        }
    }

    /// Returns whether it is this distribution, or one that is like it.
    pub fn is(&self, family: &str) -> bool {
        self.families.iter().any(|name| name == family)
    }

    /// Returns whether it is a Raspberry Pi.
    pub fn is_raspberry_pi(&self) -> bool {
        self.board
            .as_deref()
            .is_some_and(|board| board.starts_with("Raspberry Pi"))
    }

    /// Returns whether the processor has 64 bit.
    pub fn is_64_bit(&self) -> bool {
        self.architecture
            .as_deref()
            .is_some_and(|name| name.contains("64"))
    }
}

/// A value of os-release(5).
fn release(facts: &Facts, name: &str) -> Option<String> {
    let text = facts
        .text("/etc/os-release")
        .or_else(|| facts.text("/usr/lib/os-release"))?;
    os_release::value(text, name)
}

fn board(facts: &Facts) -> Option<String> {
    if let Some(model) = facts.word("/proc/device-tree/model") {
        return Some(model.to_owned());
    }
    let vendor = facts
        .word("/sys/class/dmi/id/sys_vendor")
        .unwrap_or_default();
    let product = facts
        .word("/sys/class/dmi/id/product_name")
        .unwrap_or_default();
    // Makers of boards leave these in where the maker of the machine wrote nothing.
    let is_name = |text: &str| {
        !text.is_empty() && !text.contains("To Be Filled") && !text.contains("Default string")
    };
    match (is_name(vendor), is_name(product)) {
        (true, true) => Some(format!("{vendor} {product}")),
        (false, true) => Some(product.to_owned()),
        _ => facts
            .word("/sys/class/dmi/id/board_name")
            .filter(|name| is_name(name))
            .map(str::to_owned),
    }
}

fn init(facts: &Facts) -> Init {
    if facts.has("/run/systemd/system/") {
        Init::Systemd
    } else if facts.has("/run/openrc/") {
        Init::OpenRc
    } else {
        Init::Other
    }
}

fn virtualisation(facts: &Facts) -> Virtualisation {
    let kernel = facts.word("/proc/sys/kernel/osrelease").unwrap_or_default();
    if kernel.contains("WSL2") || kernel.contains("microsoft-standard") {
        return Virtualisation::Wsl2;
    }
    if kernel.ends_with("-Microsoft") {
        return Virtualisation::Wsl1;
    }
    if facts.has("/var/run/secrets/kubernetes.io/serviceaccount/") {
        return Virtualisation::Pod;
    }
    match facts.word("/run/systemd/container") {
        Some("lxc" | "lxc-libvirt") => return Virtualisation::Lxc,
        Some("docker" | "podman") => return Virtualisation::Docker,
        Some(_) => return Virtualisation::Container,
        None => {}
    }
    if facts.has("stat /.dockerenv") || facts.has("stat /run/.containerenv") {
        return Virtualisation::Docker;
    }
    // lxcfs stands before files of /proc in a container, and only there.
    if facts
        .mounts()
        .any(|mount| mount.kind == "fuse.lxcfs" && mount.point.starts_with("/proc/"))
    {
        return Virtualisation::Lxc;
    }
    let vendor = facts
        .word("/sys/class/dmi/id/sys_vendor")
        .unwrap_or_default();
    let product = facts
        .word("/sys/class/dmi/id/product_name")
        .unwrap_or_default();
    let is_vm = [
        "QEMU",
        "KVM",
        "VMware",
        "VirtualBox",
        "Virtual Machine",
        "Xen",
        "Amazon EC2",
        "Google Compute",
        "OpenStack",
        "Parallels",
        "Bochs",
        "Droplet",
        "Hetzner",
    ]
    .iter()
    .any(|name| vendor.contains(name) || product.contains(name));
    let has_hypervisor = || {
        let text = facts.text("/proc/cpuinfo").unwrap_or_default();
        let mut flags = text.lines().filter(|line| line.starts_with("flags"));
        flags.any(|line| line.ends_with(" hypervisor") || line.contains(" hypervisor "))
    };
    let is_virtual_board = facts.word("/proc/device-tree/model") == Some("linux,dummy-virt");
    if is_vm || is_virtual_board || facts.has("/sys/hypervisor/type") || has_hypervisor() {
        Virtualisation::Vm
    } else {
        Virtualisation::Bare
    }
}

fn nas(facts: &Facts) -> Option<Nas> {
    if facts.has("stat /etc/synoinfo.conf") {
        Some(Nas::Synology)
    } else if facts.has("stat /etc/unraid-version") {
        Some(Nas::Unraid)
    } else if facts.names("/etc/config/").any(|name| name == "qpkg.conf") {
        Some(Nas::Qnap)
    } else if facts.has("stat /usr/bin/midclt")
        || facts
            .word("/etc/version")
            .is_some_and(|version| version.starts_with("TrueNAS"))
    {
        Some(Nas::TrueNas)
    } else {
        None
    }
}

fn control_groups(facts: &Facts) -> (Option<u8>, Vec<String>) {
    if let Some(controllers) = facts.text("/sys/fs/cgroup/cgroup.controllers") {
        let on = kernel::controllers_v2(controllers).map(str::to_owned);
        return (Some(2), on.collect());
    }
    if !facts.mounts().any(|mount| mount.kind == "cgroup") {
        return (None, Vec::new());
    }
    let on = kernel::controllers(facts.text("/proc/cgroups").unwrap_or_default());
    (Some(1), on.map(str::to_owned).collect())
}

fn loader(
    facts: &Facts,
    board: Option<&str>,
    virtualisation: Virtualisation,
) -> (Loader, Option<String>) {
    let found = |loader, file: &str| (loader, Some(file.to_owned()));
    let boot_has = |file: &str| facts.names("/boot/").any(|name| name == file);
    if virtualisation.is_container() {
        return (Loader::Host, None);
    }
    if matches!(virtualisation, Virtualisation::Wsl1 | Virtualisation::Wsl2) {
        return (Loader::Windows, None);
    }
    if board.is_some_and(|board| board.starts_with("Raspberry Pi")) {
        if facts
            .names("/boot/firmware/")
            .any(|name| name == "cmdline.txt")
        {
            return found(Loader::RaspberryPi, "/boot/firmware/cmdline.txt");
        }
        if facts
            .names("/media/mmcblk0p1/")
            .any(|name| name == "cmdline.txt")
        {
            return found(Loader::RaspberryPi, "/media/mmcblk0p1/cmdline.txt");
        }
        // Newer images leave a stub there that says where the file went.
        let is_stub = |text: &str| text.contains("has moved") || text.contains("DO NOT EDIT");
        if boot_has("cmdline.txt") && !facts.text("/boot/cmdline.txt").is_some_and(is_stub) {
            return found(Loader::RaspberryPi, "/boot/cmdline.txt");
        }
        if !facts.has("stat /etc/default/grub") {
            return (Loader::RaspberryPi, None);
        }
    }
    if boot_has("armbianEnv.txt") {
        return found(Loader::Armbian, "/boot/armbianEnv.txt");
    }
    if facts.has("stat /etc/update-extlinux.conf") {
        return found(Loader::AlpineExtlinux, "/etc/update-extlinux.conf");
    }
    if facts
        .names("/boot/extlinux/")
        .any(|name| name == "extlinux.conf")
    {
        return found(Loader::Extlinux, "/boot/extlinux/extlinux.conf");
    }
    if facts.has("stat /etc/default/grub") {
        return found(Loader::Grub, "/etc/default/grub");
    }
    let mut entries = facts.names("/boot/loader/entries/");
    match entries.find(|name| name.strip_suffix(".conf").is_some()) {
        Some(entry) => found(
            Loader::SystemdBoot,
            &format!("/boot/loader/entries/{entry}"),
        ),
        None => (Loader::Unknown, None),
    }
}

fn packages(facts: &Facts) -> Packages {
    let has = |program: &str| {
        ["/usr/bin/", "/sbin/", "/bin/"]
            .iter()
            .any(|folder| facts.names(folder).any(|name| name == program))
    };
    // Ostree systems have dnf and cannot use it; of the others each has one of these.
    [
        ("rpm-ostree", Packages::None),
        ("transactional-update", Packages::None),
        ("apt-get", Packages::Apt),
        ("dnf", Packages::Dnf),
        ("zypper", Packages::Zypper),
        ("pacman", Packages::Pacman),
        ("apk", Packages::Apk),
    ]
    .into_iter()
    .find(|(program, _)| has(program))
    .map_or(Packages::None, |(_, packages)| packages)
}
