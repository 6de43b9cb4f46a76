//! Facts about the machine and its current state, read below a root path.
//!
//! Every fact may be missing: what cannot be read is `None`, never a guess. Every file is read with
//! a cap.

use std::path::Path;

use nix::sys::statvfs::statvfs;
use ring::digest::{SHA256, digest};

use crate::{
    core::{
        format::hex,
        identity::Fingerprint,
        os_release, procfs,
        rates::{CpuTimes, DiskSpace, Memory, Space},
    },
    files,
};

/// More than any of the files here has, on a machine with a thousand cores.
pub(super) const FILE_BYTES_MAX: usize = 512 * 1024;

/// Facts that do not change while the machine runs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Facts {
    /// The host's name.
    pub hostname: Option<String>,
    /// The distribution with its version, as people call it.
    pub os: Option<String>,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// The architecture as the kernel calls it: `aarch64`.
    pub architecture: Option<String>,
    /// Cores that are on line.
    pub cores: Option<u64>,
    /// All memory.
    pub memory_bytes: Option<u64>,
    /// The size of the file system at the root.
    pub disk_bytes: Option<u64>,
    /// Fingerprint of the machine, which tells it from a copy of its disk.
    pub fingerprint: Fingerprint,
}

impl Facts {
    /// Reads them all. `root` is `/`, or a captured tree.
    pub fn read(root: &Path) -> Self {
        Self {
            hostname: hostname(root),
            os: os(root),
            kernel: line(root, "proc/sys/kernel/osrelease"),
            architecture: line(root, "proc/sys/kernel/arch").or_else(architecture),
            cores: text(root, "proc/stat").and_then(|stat| procfs::stat::cores(&stat)),
            memory_bytes: memory(root).map(|memory| memory.total_bytes),
            disk_bytes: disk_space(root).map(|disk| disk.total_bytes),
            fingerprint: fingerprint(root),
        }
    }
}

/// The host's name, without a domain that the kernel does not know either.
pub fn hostname(root: &Path) -> Option<String> {
    line(root, "proc/sys/kernel/hostname").or_else(|| line(root, "etc/hostname"))
}

/// Processor times since boot.
pub fn cpu_times(root: &Path) -> Option<CpuTimes> {
    procfs::stat::cpu(&text(root, "proc/stat")?).map(CpuTimes::from)
}

/// Use of the memory.
pub fn memory(root: &Path) -> Option<Memory> {
    procfs::memory::meminfo(&text(root, "proc/meminfo")?)?.in_short()
}

/// Time since the machine booted, in whole seconds.
pub fn uptime_s(root: &Path) -> Option<u64> {
    procfs::stat::uptime_s(&text(root, "proc/uptime")?)
}

/// Size and free space of the file system that holds `path`. Never ask for one that comes over the
/// network: a server that is gone would hold the call for ever.
pub fn disk_space(path: &Path) -> Option<DiskSpace> {
    space(path).map(DiskSpace::from)
}

/// The same with inodes.
pub(super) fn space(path: &Path) -> Option<Space> {
    let found = statvfs(path).ok()?;
    #[expect(
        clippy::useless_conversion,
        reason = "the fields have 32 bit on 32-bit machines"
    )]
    let (block, counts) = (
        u64::from(found.fragment_size()),
        [
            found.blocks(),
            found.blocks_free(),
            found.blocks_available(),
            found.files(),
            found.files_free(),
        ]
        .map(u64::from),
    );
    let [size, free, available, inodes, inodes_free] = counts;
    let bytes = |blocks: u64| blocks.saturating_mul(block);
    Some(Space {
        size: bytes(size),
        free: bytes(free),
        available: bytes(available),
        inodes,
        inodes_free,
    })
}

/// Fingerprint of the machine, which tells it from a copy of its disk: hashes, so that serial
/// numbers stay on the machine.
///
/// The product's UUID of x86 machines is readable for root alone: the agent as an ordinary user
/// knows the machine id only.
pub fn fingerprint(root: &Path) -> Fingerprint {
    let machine = ["etc/machine-id", "var/lib/dbus/machine-id"]
        .into_iter()
        .filter_map(|path| line(root, path))
        // During the first boot systemd writes the word "uninitialized".
        .find(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let board = [
        "proc/device-tree/serial-number",
        "sys/firmware/devicetree/base/serial-number",
        "sys/class/dmi/id/product_uuid",
        "sys/class/dmi/id/board_serial",
    ]
    .into_iter()
    .filter_map(|path| line(root, path))
    .find(|serial| is_serial(serial));
    Fingerprint {
        machine: machine.map(|id| hash("machine", &id)),
        board: board.map(|serial| hash("board", &serial)),
    }
}

fn os(root: &Path) -> Option<String> {
    let release = text(root, "etc/os-release").or_else(|| text(root, "usr/lib/os-release"))?;
    os_release::value(&release, "PRETTY_NAME").or_else(|| os_release::value(&release, "NAME"))
}

/// Processor of this machine, as `uname -m` names it.
pub fn architecture() -> Option<String> {
    let name = nix::sys::utsname::uname().ok()?;
    name.machine().to_str().map(str::to_owned)
}

/// Makers leave these in where they have no serial number.
fn is_serial(serial: &str) -> bool {
    let lower = serial.to_ascii_lowercase();
    let is_filled = lower
        .bytes()
        .any(|byte| byte.is_ascii_alphanumeric() && byte != b'0' && byte != b'f');
    let is_phrase = [
        "not specified",
        "to be filled",
        "default string",
        "system serial",
        "none",
        "unknown",
    ]
    .iter()
    .any(|phrase| lower.contains(phrase));
    is_filled && !is_phrase && serial.len() >= 4
}

fn hash(kind: &str, serial: &str) -> String {
    let salted = format!("pipeops-agent {kind} {}", serial.to_ascii_lowercase());
    let digest = digest(&SHA256, salted.as_bytes());
    hex(digest.as_ref().get(..16).unwrap_or_default())
}

pub(super) fn text(root: &Path, path: &str) -> Option<String> {
    let content = files::read(&root.join(path), FILE_BYTES_MAX).ok()?;
    Some(String::from_utf8_lossy(&content).into_owned())
}

/// The first line of a file, without the NUL that the device tree ends its text with.
pub(super) fn line(root: &Path, path: &str) -> Option<String> {
    let text = text(root, path)?;
    let line = text.split(['\n', '\0']).next().unwrap_or_default().trim();
    (!line.is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::captured::tree;

    const STAT: &str = "cpu  1000 20 300 50000 700 6 40 9 100 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n\
        cpu1 1 1 1 1 1 1 1 1 0 0\nintr 12345\nctxt 99\nbtime 1781589028\n";

    #[test]
    fn a_pi_is_read_as_it_is() {
        let tree = tree(&[
            ("proc/sys/kernel/hostname", "berry\n"),
            ("proc/sys/kernel/osrelease", "6.6.51+rpt-rpi-2712\n"),
            ("proc/sys/kernel/arch", "aarch64\n"),
            (
                "etc/os-release",
                "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
            ),
            ("proc/stat", STAT),
            (
                "proc/meminfo",
                "MemTotal:        8256096 kB\nMemFree:  100 kB\nMemAvailable:    6192072 kB\n",
            ),
            ("proc/device-tree/serial-number", "10000000a1b2c3d4\0"),
            ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"),
            ("proc/uptime", "4242.42 9999.99\n"),
        ]);
        let facts = Facts::read(tree.path());
        assert_eq!(facts.hostname.as_deref(), Some("berry"));
        assert_eq!(facts.os.as_deref(), Some("Debian GNU/Linux 12 (bookworm)"));
        assert_eq!(facts.kernel.as_deref(), Some("6.6.51+rpt-rpi-2712"));
        assert_eq!(facts.architecture.as_deref(), Some("aarch64"));
        assert_eq!(facts.cores, Some(2));
        assert_eq!(facts.memory_bytes, Some(8_256_096 * 1024));
        assert!(facts.disk_bytes.unwrap() > 0);
        assert!(facts.fingerprint.machine.is_some() && facts.fingerprint.board.is_some());
        assert_eq!(
            cpu_times(tree.path()),
            Some(CpuTimes {
                busy: 1375,
                idle: 50_700
            })
        );
        assert_eq!(memory(tree.path()).unwrap().used_share(), Some(0.25));
        assert_eq!(uptime_s(tree.path()), Some(4242));
    }

    #[test]
    fn nothing_there_is_nothing_known() {
        let tree = tree(&[]);
        let facts = Facts::read(tree.path());
        // These two are of the kernel and the disk themselves.
        let known = Facts {
            disk_bytes: facts.disk_bytes,
            architecture: facts.architecture.clone(),
            ..Facts::default()
        };
        assert_eq!(facts, known);
        assert_eq!(cpu_times(tree.path()), None);
        assert_eq!(memory(tree.path()), None);
    }

    #[test]
    fn garbage_in_a_file_is_no_fact_and_no_panic() {
        for garbage in [
            "",
            "\0",
            "cpu",
            "cpu ",
            "cpu x y z",
            "cpu 1 2 3",
            "\u{fffd}\n\n",
            "MemTotal: 9e9 kB",
        ] {
            let tree = tree(&[
                ("proc/stat", garbage),
                ("proc/meminfo", garbage),
                ("etc/machine-id", garbage),
                ("proc/uptime", garbage),
                ("etc/os-release", garbage),
            ]);
            assert_eq!(cpu_times(tree.path()), None, "{garbage:?}");
            assert_eq!(memory(tree.path()), None, "{garbage:?}");
            assert_eq!(uptime_s(tree.path()), None, "{garbage:?}");
            assert_eq!(
                fingerprint(tree.path()),
                Fingerprint::default(),
                "{garbage:?}"
            );
            assert_eq!(os(tree.path()), None, "{garbage:?}");
        }
    }

    #[test]
    fn a_serial_number_that_every_board_has_is_none() {
        for serial in [
            "To be filled by O.E.M.",
            "00000000-0000-0000-0000-000000000000",
            "Not Specified",
            "0",
            "ffffffff",
        ] {
            let tree = tree(&[("sys/class/dmi/id/product_uuid", serial)]);
            assert_eq!(fingerprint(tree.path()).board, None, "{serial}");
        }
        let uuid = "4c4c4544-0042-3510-8034-b7c04f503732";
        let lower = tree(&[("sys/class/dmi/id/product_uuid", uuid)]);
        let upper = tree(&[("sys/class/dmi/id/product_uuid", &uuid.to_uppercase())]);
        assert!(fingerprint(lower.path()).board.is_some());
        assert_eq!(fingerprint(lower.path()), fingerprint(upper.path()));
    }

    #[test]
    fn the_first_boot_has_no_machine_id_yet() {
        let tree = tree(&[
            ("etc/machine-id", "uninitialized\n"),
            (
                "var/lib/dbus/machine-id",
                "0123456789abcdef0123456789abcdef\n",
            ),
        ]);
        assert!(fingerprint(tree.path()).machine.is_some());
    }

    #[test]
    fn names_with_quotes_of_any_kind_are_read() {
        for (written, read) in [
            ("PRETTY_NAME=Alpine\n", "Alpine"),
            ("PRETTY_NAME='Arch Linux'\n", "Arch Linux"),
            ("PRETTY_NAME=\"A \\\"B\\\"\"\n", "A \"B\""),
            ("NAME=\"Void\"\nPRETTY_NAME=\"\"\n", "Void"),
        ] {
            assert_eq!(
                os(tree(&[("etc/os-release", written)]).path()).as_deref(),
                Some(read)
            );
        }
    }

    #[test]
    fn this_machine_is_read_too() {
        let root = Path::new("/");
        let facts = Facts::read(root);
        assert!(facts.cores.unwrap() >= 1);
        assert!(facts.memory_bytes.unwrap() > 64 << 20);
        assert!(facts.hostname.is_some() && facts.architecture.is_some());
        let (first, space) = (cpu_times(root).unwrap(), disk_space(root).unwrap());
        assert!(cpu_times(root).unwrap().busy >= first.busy);
        assert!(space.available_bytes <= space.total_bytes);
    }
}
