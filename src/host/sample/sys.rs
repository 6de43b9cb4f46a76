//! The files of `/sys`: the kernel's `sysfs-class-hwmon`, `sysfs-class-thermal`, `mmc-dev-attrs`
//! and `zram`, and the Raspberry Pi's firmware.

use super::Tree;
use crate::core::{
    procfs::kernel::throttled,
    rates::{Reading, Zram},
};
use litemap::LiteMap;

/// Sensors that are kept.
const SENSORS_MAX: usize = 64;
/// Inputs of one chip that are asked.
const INPUTS_MAX: usize = 32;

/// The worse of the two estimates of an eMMC: 1 to 10 for each begun tenth of its life, 11 beyond
/// it. 0 says nothing.
pub(super) fn life_used_tenths(text: &str) -> Option<u64> {
    let estimates = text.split_ascii_whitespace().filter_map(hexadecimal);
    estimates.filter(|tenths| (1..=11).contains(tenths)).max()
}

/// State of an eMMC's spare blocks: 1 to 3. 0 means unknown.
pub(super) fn pre_eol(text: &str) -> Option<u64> {
    hexadecimal(text.trim()).filter(|state| (1..=3).contains(state))
}

/// The three first numbers of `mm_stat` (the kernel's `zram.rst`).
pub(super) fn zram(mm_stat: &str) -> Option<Zram> {
    let mut numbers = mm_stat.split_ascii_whitespace().map(str::parse);
    let mut number = || numbers.next()?.ok();
    Some(Zram {
        original: number()?,
        compressed: number()?,
        memory: number()?,
    })
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// Reads what the firmware of a Raspberry Pi says, on every model: its folder has another name on
/// each.
pub(super) fn firmware(tree: &Tree<'_>, reading: &mut Reading) {
    let driver = "sys/bus/platform/drivers/raspberrypi-firmware";
    let flags = tree.entries(driver).into_iter().find_map(|device| {
        let text = tree.text(&format!("{driver}/{device}/get_throttled"));
        throttled(&text?)
    });
    reading.is_under_voltage = flags.map(|flags| flags.is_under_voltage);
    reading.is_throttled = flags.map(|flags| flags.is_throttled);
}

/// Reads temperatures, fans and the alarm of the supply. A processor that is both a thermal zone
/// and a chip is read as the chip.
pub(super) fn sensors(tree: &Tree<'_>, reading: &mut Reading) {
    let mut chips = Vec::new();
    for folder in tree.entries("sys/class/hwmon") {
        let path = format!("sys/class/hwmon/{folder}");
        let Some(name) = word(tree, &format!("{path}/name")) else {
            continue;
        };
        if name == "rpi_volt" && reading.is_under_voltage.is_none() {
            let alarm = number(tree, &format!("{path}/in0_lcrit_alarm"));
            reading.is_under_voltage = alarm.map(|alarm| alarm != 0);
        }
        chip(tree, &path, &name, reading);
        chips.push(name);
    }
    for folder in tree.entries("sys/class/thermal") {
        if !folder.starts_with("thermal_zone") {
            continue;
        }
        let path = format!("sys/class/thermal/{folder}");
        // Chips have no dashes in their names.
        let kind = word(tree, &format!("{path}/type"))
            .filter(|kind| !chips.contains(&kind.replace('-', "_")));
        if let Some(kind) = kind
            && let Some(value) = number(tree, &format!("{path}/temp"))
        {
            keep(&mut reading.temperatures_milli, &kind, value);
        }
    }
}

fn chip(tree: &Tree<'_>, path: &str, name: &str, reading: &mut Reading) {
    let files = tree.entries(path);
    let inputs = files.iter().filter_map(|file| file.strip_suffix("_input"));
    for input in inputs.take(INPUTS_MAX) {
        let value = || number(tree, &format!("{path}/{input}_input"));
        if input.starts_with("temp")
            && let Some(value) = value()
        {
            let label = word(tree, &format!("{path}/{input}_label"));
            let label = label.unwrap_or_else(|| input.to_owned());
            keep(
                &mut reading.temperatures_milli,
                &format!("{name}/{label}"),
                value,
            );
        }
        if input.starts_with("fan")
            && let Some(turns) = value().and_then(|turns| u64::try_from(turns).ok())
        {
            keep(&mut reading.fans_rpm, &format!("{name}/{input}"), turns);
        }
    }
}

/// Keeps a value under its name; the second of the same name, as that of a second disk, under one
/// with a number.
fn keep<T>(sensors: &mut LiteMap<String, T>, name: &str, value: T) {
    if sensors.len() >= SENSORS_MAX {
        return;
    }
    let names = (2..=SENSORS_MAX + 1).map(|count| format!("{name}-{count}"));
    let free = std::iter::once(name.to_owned())
        .chain(names)
        .find(|name| !sensors.contains_key(name));
    if let Some(name) = free {
        sensors.insert(name, value);
    }
}

fn word(tree: &Tree<'_>, path: &str) -> Option<String> {
    let word = tree.text(path)?.lines().next()?.trim().to_owned();
    (!word.is_empty()).then_some(word)
}

fn number(tree: &Tree<'_>, path: &str) -> Option<i64> {
    tree.text(path)?.trim().parse().ok()
}
