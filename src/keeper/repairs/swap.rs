//! Swap on a card: it makes everything wait, and wears the card out.

use super::{Planned, nothing};
use crate::{
    core::repair::{
        recipe::{self, RPI_SWAP_FOLDER},
        swaps_on_card,
    },
    error::{Error, Result},
    host::facts,
    keeper::system::System,
};

pub(super) fn on_card(system: &System) -> Result<Planned> {
    if system.is_there("/etc/rpi/swap.conf") || system.is_there("/usr/lib/rpi-swap") {
        return rpi_swap(system);
    }
    let swaps = system.text("/proc/swaps").unwrap_or_default();
    let mounts = system.text("/proc/self/mountinfo").unwrap_or_default();
    let found = swaps_on_card(&swaps, &mounts);
    let Some(first) = found.first() else {
        return Ok(nothing("nothing is swapped to a card"));
    };
    let cannot = || Error::new(format!("cannot stop swapping to {}", first.path));
    let used_kib: u64 = found.iter().map(|swap| swap.used_kib).sum();
    let free_kib = facts::memory(system.root()).map_or(0, |memory| memory.available_bytes / 1024);
    // All that lies there must fit into memory, with a quarter to spare: else the kernel ends
    // programs.
    if used_kib.saturating_mul(4) > free_kib.saturating_mul(3) {
        return Err(cannot()
            .why(format!(
                "{} MB are swapped out, but only {} MB of memory are free",
                used_kib / 1024,
                free_kib / 1024
            ))
            .fix("stop what needs the memory, or add zram (apt install zram-tools), then again"));
    }
    if !system.has("dphys-swapfile") || !system.has("systemctl") {
        return Err(cannot()
            .why("it was not set up by dphys-swapfile")
            .fix(format!(
                "sudo swapoff {}, and take it out of /etc/fstab",
                first.path
            )));
    }
    Ok(Planned::Work(recipe::swap_file(
        first.path,
        is_enabled(system),
    )))
}

fn is_enabled(system: &System) -> bool {
    let wanted = "/etc/systemd/system/multi-user.target.wants/dphys-swapfile.service";
    std::fs::symlink_metadata(system.path(wanted)).is_ok()
}

/// From version 13 on Raspberry Pi OS writes cold pages of zram back to a file on the card, which
/// no list of swaps shows.
fn rpi_swap(system: &System) -> Result<Planned> {
    let mut files = vec!["/etc/rpi/swap.conf".to_owned()];
    files.extend(system.list(RPI_SWAP_FOLDER, ".conf"));
    let last = files.iter().rev().find_map(|path| {
        let text = system.text(path)?;
        let mut lines = text
            .lines()
            .rev()
            .filter_map(|line| line.trim().split_once('='));
        let (_, value) = lines.find(|(key, _)| key.trim() == "Mechanism")?;
        Some((path.clone(), value.trim().to_owned()))
    });
    if let Some((path, mechanism)) = last.filter(|(_, value)| value == "zram" || value == "none") {
        return Ok(nothing(format!(
            "{path} keeps swap off the card (Mechanism={mechanism})"
        )));
    }
    if !system.is_there("/etc/rpi") {
        return Err(Error::new("cannot keep swap off the card")
            .why("there is no /etc/rpi")
            .fix(format!("sudo mkdir -p {RPI_SWAP_FOLDER}, then again")));
    }
    Ok(Planned::Work(recipe::rpi_swap()))
}
