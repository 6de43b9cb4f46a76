//! The files of `/sys`: the kernel's `sysfs-class-hwmon`, `sysfs-class-thermal` and `mmc-dev-attrs`, and the Raspberry Pi's firmware.

use std::{collections::BTreeMap, path::Path};

use super::{entries, text};
use crate::core::rates::Reading;

/// Sensors that are kept.
const SENSORS_MAX: usize = 64;
/// Inputs of one chip that are asked for: they are numbered from 1 without large gaps.
const INPUTS_MAX: usize = 16;

/// What a Raspberry Pi's firmware says about its supply and its heat.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Throttled {
    pub(super) is_under_voltage: bool,
    pub(super) is_throttled: bool,
}

/// Reads the flags of `get_throttled`, which are hexadecimal. Bits 0 to 3 are now, 16 to 19 since boot.
pub(super) fn throttled(text: &str) -> Option<Throttled> {
    let flags = hexadecimal(text.trim())?;
    Some(Throttled {
        is_under_voltage: flags & 0x1 != 0,
        // Slowed down for its supply, capped, or slowed down for its heat.
        is_throttled: flags & 0xe != 0,
    })
}

/// The worse of the two estimates of an eMMC: 1 to 10 for each begun tenth of its life, 11 beyond it. 0 says nothing.
pub(super) fn life_used_tenths(text: &str) -> Option<u64> {
    let estimates = text.split_ascii_whitespace().filter_map(hexadecimal);
    estimates.filter(|tenths| (1..=11).contains(tenths)).max()
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// Reads temperatures, fans and the alarm of the supply. A processor that is both a thermal zone and a chip is read as the chip.
pub(super) fn sensors(root: &Path, reading: &mut Reading) {
    let mut chips = Vec::new();
    for folder in entries(root, "sys/class/hwmon") {
        let path = format!("sys/class/hwmon/{folder}");
        let Some(name) = word(root, &format!("{path}/name")) else {
            continue;
        };
        if name == "rpi_volt" {
            let alarm = number(root, &format!("{path}/in0_lcrit_alarm"));
            reading.is_under_voltage = alarm.map(|alarm| alarm != 0);
        }
        for input in 1..=INPUTS_MAX {
            if let Some(value) = number(root, &format!("{path}/temp{input}_input")) {
                let label = word(root, &format!("{path}/temp{input}_label"));
                let label = label.unwrap_or_else(|| format!("temp{input}"));
                keep(
                    &mut reading.temperatures_milli,
                    &format!("{name}/{label}"),
                    value,
                );
            }
            let turns = number(root, &format!("{path}/fan{input}_input"));
            if let Some(turns) = turns.and_then(|turns| u64::try_from(turns).ok()) {
                keep(&mut reading.fans_rpm, &format!("{name}/fan{input}"), turns);
            }
        }
        chips.push(name);
    }
    for folder in entries(root, "sys/class/thermal") {
        let path = format!("sys/class/thermal/{folder}");
        let kind = word(root, &format!("{path}/type"));
        let value = number(root, &format!("{path}/temp"));
        if let (true, Some(kind), Some(value)) = (folder.starts_with("thermal_zone"), kind, value)
            // Chips have no dashes in their names.
            && !chips.contains(&kind.replace('-', "_"))
        {
            keep(&mut reading.temperatures_milli, &kind, value);
        }
    }
}

/// Keeps a value under its name; the second of the same name, as that of a second disk, under one with a number.
fn keep<T>(sensors: &mut BTreeMap<String, T>, name: &str, value: T) {
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

fn word(root: &Path, path: &str) -> Option<String> {
    let word = text(root, path)?.lines().next()?.trim().to_owned();
    (!word.is_empty()).then_some(word)
}

fn number(root: &Path, path: &str) -> Option<i64> {
    text(root, path)?.trim().parse().ok()
}
