//! Automatic repairs of the doctor's findings: the closed list, the recipe of each, and edits of
//! files that others own.
//!
//! It reads and writes nothing; the keeper does.

pub mod recipe;
pub mod settled;

pub use recipe::{Proof, Recipe, RecipeStep};

use crate::core::procfs::{
    memory::{self, Swap},
    mounts::mount_of,
};

/// Repairs that the program itself can do. The keeper accepts nothing else.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Repair {
    /// Switch the kernel's memory controller on.
    CgroupMemory,
    /// Raise the limits of inotify.
    Inotify,
    /// Keep NetworkManager away from the interfaces of Pods.
    NetworkManager,
    /// Stop swapping on a card.
    SwapCard,
    /// Load the kernel modules that k3s needs.
    KernelModules,
    /// Set the clock by the network.
    ClockSync,
    /// Give the journal a limit.
    JournalSize,
}

impl Repair {
    /// All of them, in the order in which they are done: what needs a reboot last.
    pub const ALL: [Self; 7] = [
        Self::ClockSync,
        Self::Inotify,
        Self::KernelModules,
        Self::NetworkManager,
        Self::JournalSize,
        Self::SwapCard,
        Self::CgroupMemory,
    ];

    /// The id of the doctor's check that it repairs.
    pub const fn check(self) -> &'static str {
        match self {
            Self::CgroupMemory => "cgroup.memory",
            Self::Inotify => "limits.inotify",
            Self::NetworkManager => "network.manager",
            Self::SwapCard => "swap.card",
            Self::KernelModules => "kernel.modules",
            Self::ClockSync => "clock.sync",
            Self::JournalSize => "log.journal",
        }
    }

    /// The repair of that check, where there is one.
    pub fn of(check: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|repair| repair.check() == check)
    }
}

/// Reason why a file is not repaired, with the fix for a person.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NotRepairable {
    /// The reason.
    pub why: &'static str,
    /// Fix; `FILE` stands for the file.
    pub fix: &'static str,
}

/// Longer lines are cut by some kernels (COMMAND_LINE_SIZE is 2048 on arm64).
const KERNEL_LINE_BYTES_MAX: usize = 2000;

/// A file with the kernel's command line that gets words at its end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KernelLine {
    /// Words that it does not have yet.
    pub missing: Vec<&'static str>,
    /// Whole content of the file with them.
    pub content: String,
}

/// The kernel's command line with these words at its end. `None` where it has them all.
///
/// The firmware of a Raspberry Pi reads the first line only, and takes a CR for a part of the last
/// word.
pub fn kernel_line(
    text: &str,
    words: &[&'static str],
) -> Result<Option<KernelLine>, NotRepairable> {
    if text.contains(['\r', '\0']) {
        return Err(NotRepairable {
            why: "it has Windows line ends, which the firmware takes as part of the last parameter",
            fix: "sudo sed -i 's/\\r//g' FILE, then again",
        });
    }
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let (Some(line), None, false) = (lines.next(), lines.next(), text.starts_with('\n')) else {
        return Err(NotRepairable {
            why: "it must be one single line, but is not",
            fix: "check FILE: all parameters belong on its first line",
        });
    };
    let there: Vec<_> = line.split_ascii_whitespace().collect();
    if !there.iter().any(|word| word.contains('=')) {
        return Err(NotRepairable {
            why: "it does not look like a kernel command line",
            fix: "check FILE: on newer systems the real one is /boot/firmware/cmdline.txt",
        });
    }
    let disables = |word: &&str| {
        word.strip_prefix("cgroup_disable=")
            .is_some_and(|list| list.split(',').any(|name| name == "memory"))
    };
    if there.iter().any(disables) {
        return Err(NotRepairable {
            why: "the memory controller is disabled there on purpose",
            fix: "remove cgroup_disable=memory from FILE, then try again",
        });
    }
    let missing: Vec<_> = words
        .iter()
        .copied()
        .filter(|word| !there.contains(word))
        .collect();
    if missing.is_empty() {
        return Ok(None);
    }
    // Everything behind the first line stays as it is, also where it does not end with a line end.
    let rest = text.split_once('\n').map(|(_, rest)| format!("\n{rest}"));
    let line = format!("{} {}", line.trim_end(), missing.join(" "));
    if line.len() > KERNEL_LINE_BYTES_MAX {
        return Err(NotRepairable {
            why: "it would exceed the length that kernels read",
            fix: "shorten the line in FILE, then try again",
        });
    }
    let content = line + &rest.unwrap_or_default();
    Ok(Some(KernelLine { missing, content }))
}

/// The swaps that lie on a card or on built-in flash: `mmcblk`, by themselves or by the file system
/// of their file.
pub fn swaps_on_card<'a>(swaps: &'a str, mountinfo: &str) -> Vec<Swap<'a>> {
    let is_on_card = |swap: &Swap<'_>| {
        let holder = swap.is_file.then(|| mount_of(mountinfo, swap.path));
        let device = match &holder {
            Some(mount) => mount.as_ref().map_or("", |mount| mount.device),
            None => swap.path,
        };
        device.starts_with("/dev/mmcblk")
    };
    memory::swaps(swaps).filter(is_on_card).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [&str; 2] = ["cgroup_memory=1", "cgroup_enable=memory"];

    #[test]
    fn each_repair_is_found_by_its_check_and_nothing_else_is() {
        for repair in Repair::ALL {
            assert_eq!(Repair::of(repair.check()), Some(repair));
        }
        assert_eq!(Repair::of("rm -rf"), None);
    }

    #[test]
    fn words_are_added_to_the_one_line_and_only_where_they_are_missing() {
        let line = "console=tty1 root=PARTUUID=1-02 rootwait";
        let content = |text: &str| Some(kernel_line(text, &WORDS).unwrap()?.content);
        let both = format!("{line} cgroup_memory=1 cgroup_enable=memory");
        for (before, after) in [("", ""), (" \n", "\n"), ("\n\n", "\n\n")] {
            let text = format!("{line}{before}");
            assert_eq!(content(&text), Some(format!("{both}{after}")), "{text:?}");
        }
        let one = format!("{line} cgroup_enable=memory\n");
        let wanted = format!("{line} cgroup_enable=memory cgroup_memory=1\n");
        assert_eq!(content(&one), Some(wanted));
        assert_eq!(content(&both), None);
    }

    #[test]
    fn a_file_that_is_not_understood_is_left_alone() {
        for text in [
            "",
            "\n\n",
            "console=tty1 root=/dev/sda1\r\n",
            "root=/dev/sda1\ncgroup_enable=memory\n",
            "DO NOT EDIT THIS FILE\n\nThe file you are looking for has moved to /boot/firmware/cmdline.txt\n",
            "moved to elsewhere",
            "\nroot=/dev/sda1\n",
            "root=/dev/sda1 cgroup_disable=memory",
            "root=/dev/sda1 cgroup_disable=cpuset,memory",
        ] {
            assert!(kernel_line(text, &WORDS).is_err(), "{text:?}");
        }
        let long = format!("root=/dev/sda1 {}", "x".repeat(2000));
        assert!(kernel_line(&long, &WORDS).is_err());
    }

    const MOUNTS: &str = "21 1 179:2 / / rw,noatime - ext4 /dev/mmcblk0p2 rw\n\
        24 21 8:1 / /mnt/ssd ro - ext4 /dev/sda1 ro\n";

    #[test]
    fn swap_on_a_card_is_told_from_swap_elsewhere() {
        let swaps = "Filename\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
            /var/swap file 102396 2048 -2\n\
            /dev/zram0 partition 1000 0 100\n\
            /mnt/ssd/swap file 1000 0 -3\n\
            /dev/mmcblk0p3 partition 500 12 -4\n";
        let found = swaps_on_card(swaps, MOUNTS);
        let found: Vec<_> = found
            .iter()
            .map(|swap| (swap.path, swap.used_kib))
            .collect();
        assert_eq!(found, [("/var/swap", 2048), ("/dev/mmcblk0p3", 12)]);
        assert!(swaps_on_card("", MOUNTS).is_empty());
    }
}
