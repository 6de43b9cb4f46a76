//! Disks and interfaces that are worth measuring.

use crate::core::{
    order::GatherExt as _,
    procfs,
    rates::{Disk, Network},
};
use litemap::LiteMap;

/// Disks and interfaces that are kept. A box with more has its first ones in the order of the
/// kernel.
const DEVICES_MAX: usize = 64;

/// The lines of `/proc/diskstats` about whole disks, which are those in `/sys/block`; not what is
/// made of memory or of files.
pub(super) fn disks(diskstats: &str, whole: &[String]) -> LiteMap<String, Disk> {
    let is_wanted = |name: &str| {
        let is_made_up = ["loop", "ram", "zram"].iter().any(|kind| {
            let number = name.strip_prefix(kind);
            number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        });
        // A `/` in the name of a device is a `!` in the name of its folder.
        !is_made_up && whole.contains(&name.replace('/', "!"))
    };
    procfs::stat::disks(diskstats)
        .filter(|(name, _)| is_wanted(name))
        .take(DEVICES_MAX)
        .map(|(name, disk)| (name.to_owned(), disk))
        .gather()
}

/// The interfaces of `/proc/net/dev` through which the machine speaks with others.
pub(super) fn networks(dev: &str) -> LiteMap<String, Network> {
    procfs::net::interfaces(dev)
        .filter(|(name, _)| !procfs::net::is_inner(name))
        .take(DEVICES_MAX)
        .map(|(name, network)| (name.to_owned(), network))
        .gather()
}
