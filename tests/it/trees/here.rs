//! The machine that runs the tests, held against what its own tools say.
//!
//! Counters only grow: what a tool says lies between what was read before it and after. Levels
//! move: they are compared with room.

use pipeops_agent::{core::rates::Reading, host::sample};

use super::tools::{has, output};

/// What a tool says, between two readings.
fn between(tool: &str, arguments: &[&str]) -> Option<(Reading, String, Reading)> {
    if !has(tool) {
        return None;
    }
    let before = sample::read(None);
    let said = output(tool, arguments);
    Some((before, said, sample::read(None)))
}

#[track_caller]
fn is_near(ours: u64, theirs: u64, room: u64) {
    assert!(
        ours.abs_diff(theirs) <= room,
        "{ours} is not {theirs} within {room}"
    );
}

/// The words of the first line that begins with this one.
fn words<'a>(said: &'a str, first: &str) -> Vec<&'a str> {
    let line = said
        .lines()
        .find(|line| line.split_whitespace().next() == Some(first));
    line.unwrap_or_else(|| panic!("no {first} in {said}"))
        .split_whitespace()
        .collect()
}

#[test]
fn memory_is_what_free_says() {
    let Some((before, said, _)) = between("free", &["-b"]) else {
        return;
    };
    let number = |line: &str, column: usize| words(&said, line)[column].parse::<u64>().unwrap();
    let total = before.memory.total.unwrap();
    assert_eq!(number("Mem:", 1), total);
    // Other tests run meanwhile.
    is_near(
        before.memory.available.unwrap(),
        number("Mem:", 6),
        total / 4,
    );
    assert_eq!(number("Swap:", 1), before.memory.swap_total.unwrap());
}

#[test]
fn file_systems_are_what_df_says() {
    let arguments = ["-B1", "--output=target,size,used,avail,itotal"];
    let Some((before, said, after)) = between("df", &arguments) else {
        return;
    };
    assert!(before.file_systems.contains_key("/") || !said.contains(" /\n"));
    for (path, file_system) in &before.file_systems {
        // Other tests mount and unmount meanwhile.
        let Some(after) = after.file_systems.get(path) else {
            continue;
        };
        let columns = words(&said, path);
        let number = |column: usize| columns[column].parse::<u64>().unwrap();
        let (one, two) = (file_system.space, after.space);
        assert_eq!(number(1), one.size, "{path}");
        // Other tests write meanwhile.
        let room = one.size / 20 + one.available.abs_diff(two.available);
        is_near(one.size - one.free, number(2), room);
        is_near(one.available, number(3), room);
        // btrfs and vfat have no inodes, and df says "-" or 0.
        assert_eq!(columns[4].parse().unwrap_or(0), one.inodes, "{path}");
    }
}

#[test]
fn processors_are_what_vmstat_says() {
    let Some((before, said, after)) = between("vmstat", &["-s"]) else {
        return;
    };
    let number = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_suffix(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {said}"));
        line.trim().parse::<u64>().unwrap()
    };
    let (one, two) = (before.cpu.unwrap().ticks, after.cpu.unwrap().ticks);
    for (mode, name) in [
        (0, " non-nice user cpu ticks"),
        (1, " nice user cpu ticks"),
        (2, " system cpu ticks"),
        (5, " IRQ cpu ticks"),
        (6, " softirq cpu ticks"),
        (7, " stolen cpu ticks"),
    ] {
        let told = number(name);
        assert!(
            one[mode] <= told && told <= two[mode],
            "{name}: {told} is not from {} to {}",
            one[mode],
            two[mode]
        );
    }
    let forks = number(" forks");
    assert!(before.forks.unwrap() <= forks && forks <= after.forks.unwrap());
}

#[test]
fn disks_are_what_iostat_says() {
    let Some((before, said, after)) = between("iostat", &["-d", "-k"]) else {
        return;
    };
    let header = words(&said, "Device");
    let column = |name: &str| header.iter().position(|found| *found == name).unwrap();
    let mut compared = 0;
    for (device, disk) in &before.disks {
        if !said
            .lines()
            .any(|line| line.starts_with(&format!("{device} ")))
        {
            // It does not show disks that were never used.
            assert_eq!(
                disk.reads.operations + disk.writes.operations,
                0,
                "{device}"
            );
            continue;
        }
        let line = words(&said, device);
        let later = &after.disks[device];
        for (name, one, two) in [
            ("kB_read", disk.reads.bytes, later.reads.bytes),
            ("kB_wrtn", disk.writes.bytes, later.writes.bytes),
        ] {
            let told: u64 = line[column(name)].parse().unwrap();
            assert!(
                one / 1024 <= told && told <= two / 1024,
                "{device} {name}: {told} is not from {one} to {two} bytes"
            );
        }
        compared += 1;
    }
    assert!(compared > 0 || before.disks.is_empty(), "{said}");
}
