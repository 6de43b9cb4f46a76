//! The kernel itself: `/proc/cmdline`, `/proc/modules` and indexes of modules, controllers,
//! `/proc/sys/fs/file-nr`, and the firmware of a Raspberry Pi.

use super::numbers;

/// A loaded module.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Module<'a> {
    /// Its name, with underscores.
    pub name: &'a str,
    /// True if something uses it. A kernel that cannot unload modules does not count (`-`).
    pub is_used: bool,
}

/// The lines of `/proc/modules`: `nf_tables 300 12 …`, where the third column counts who uses it.
pub fn modules(modules: &str) -> impl Iterator<Item = Module<'_>> {
    modules.lines().filter_map(|line| {
        let mut columns = line.split_ascii_whitespace();
        Some(Module {
            name: columns.next()?,
            is_used: columns.nth(1).is_some_and(|count| count != "0"),
        })
    })
}

/// Controllers that are on by `/proc/cgroups`: `memory 0 100 1`. From Linux 6.12 on the file leaves
/// controllers of version 2 out.
pub fn controllers(cgroups: &str) -> impl Iterator<Item = &str> {
    cgroups.lines().filter_map(|line| {
        let mut columns = line.split_ascii_whitespace();
        let name = columns.next()?;
        (columns.nth(2)? == "1").then_some(name)
    })
}

/// Controllers that are on by `/sys/fs/cgroup/cgroup.controllers`, which version 2 has.
pub fn controllers_v2(controllers: &str) -> impl Iterator<Item = &str> {
    controllers.split_ascii_whitespace()
}

/// Parameters of `/proc/cmdline`.
pub fn parameters(cmdline: &str) -> impl Iterator<Item = &str> {
    cmdline.split_ascii_whitespace()
}

/// Module of a line of `modules.builtin` or `modules.dep`:
/// `kernel/drivers/net/vxlan/vxlan.ko.xz: kernel/net/…`. With underscores, as the kernel writes it.
pub fn listed_module(line: &str) -> Option<String> {
    let file = line.split(':').next()?.rsplit('/').next()?;
    Some(file.split(".ko").next()?.replace('-', "_"))
}

/// Flags of `get_throttled`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Throttled {
    /// True if the voltage is too low now.
    pub is_under_voltage: bool,
    /// True if the voltage has been too low since boot.
    pub was_under_voltage: bool,
    /// True if the processor is slowed down for its supply or its heat, or capped.
    pub is_throttled: bool,
}

/// Reads `get_throttled`, which is hexadecimal. Bits 0 to 3 are now, 16 to 19 since boot.
pub fn throttled(text: &str) -> Option<Throttled> {
    let text = text.trim();
    let flags = u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()?;
    Some(Throttled {
        is_under_voltage: flags & 0x1 != 0,
        was_under_voltage: flags & 0x1_0000 != 0,
        is_throttled: flags & 0xe != 0,
    })
}

/// The first and the last number of `/proc/sys/fs/file-nr`: open, and at most.
pub fn open_files(file_nr: &str) -> Option<(u64, u64)> {
    match numbers(file_nr).as_slice() {
        [Some(open), _, Some(most)] => Some((*open, *most)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_and_controllers_are_read_line_by_line() {
        let text = "nf_tables 303104 12 nft_chain_nat, Live 0x0\nvxlan 1 0 - Live 0x0\nx 1 - - Live 0x0\n\n";
        let all: Vec<_> = modules(text)
            .map(|module| (module.name, module.is_used))
            .collect();
        assert_eq!(all, [("nf_tables", true), ("vxlan", false), ("x", true)]);
        let table =
            "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t0\t80\t1\nmemory\t0\t80\t0\ncut\n";
        assert_eq!(controllers(table).collect::<Vec<_>>(), ["cpu"]);
        for (line, module) in [
            (
                "kernel/net/bridge/br-netfilter.ko.xz: kernel/a.ko",
                "br_netfilter",
            ),
            ("kernel/fs/overlayfs/overlay.ko", "overlay"),
        ] {
            assert_eq!(listed_module(line).as_deref(), Some(module));
        }
    }
}
