use super::*;
use crate::core::{
    series::decimal,
    time::{Mono, Wall},
};

/// A machine with a processor, a disk and an interface, so many seconds after its boot, everything
/// counted in proportion.
fn after(seconds: u64) -> Reading {
    let transfers = Transfers {
        operations: 10 * seconds,
        bytes: 4096 * seconds,
        took_ms: 25 * seconds,
    };
    let disk = Disk {
        number: (179, 0),
        reads: transfers,
        writes: transfers,
        busy_ms: 500 * seconds,
        life_used_tenths: Some(2),
        pre_eol: None,
    };
    let network = Network {
        bytes: [1000 * seconds, 2000 * seconds],
        errors: [seconds, 0],
        ..Network::default()
    };
    Reading {
        at: Now {
            mono: Mono::since_boot(Duration::from_secs(seconds)),
            wall: Wall::from_millis(1_781_589_028_000 + i64::try_from(1000 * seconds).unwrap()),
        },
        awake: Duration::from_secs(seconds),
        boot_id: Some("one".to_owned()),
        cpu: Some(Cpu {
            ticks: [25 * seconds, 0, 0, 75 * seconds, 0, 0, 0, 0],
        }),
        stalled_us: [(("io", "some"), 100_000 * seconds)].into_iter().collect(),
        oom_kills: Some(seconds / 100),
        forks: Some(3 * seconds),
        own: AgentUsage {
            cpu_us: Some(500 * seconds),
            wakeups: Some(seconds / 2),
            written: Some(100 * seconds),
            ..AgentUsage::default()
        },
        disks: [("mmcblk0".to_owned(), disk)].into_iter().collect(),
        networks: [("eth0".to_owned(), network)].into_iter().collect(),
        ..Reading::default()
    }
}

fn value(earlier: &Reading, later: &Reading, key: &str) -> Option<String> {
    let points = points(Some(earlier), later);
    let found = points
        .iter()
        .find(|point| point.series.key.to_string() == key)?;
    Some(decimal(found.value, found.series.digits))
}

const CPU: &str = "host_cpu_ratio{mode=\"user\"}";
const DISK: &str = "host_disk_read_bytes_per_second{device=\"mmcblk0\"}";
const NETWORK: &str = "host_network_bytes_per_second{device=\"eth0\",direction=\"transmit\"}";
const PRESSURE: &str = "host_pressure_ratio{kind=\"some\",resource=\"io\"}";
/// One series of each kind of counter.
const RATES: [&str; 4] = [CPU, DISK, NETWORK, PRESSURE];

#[track_caller]
fn has_no_rate(earlier: &Reading, later: &Reading) {
    for key in RATES {
        assert_eq!(value(earlier, later, key), None, "{key}");
    }
}

#[test]
fn counters_become_what_happened_in_a_second() {
    let (one, two) = (after(1000), after(1015));
    for (key, expected) in [
        (CPU, "0.25"),
        (DISK, "4096"),
        (NETWORK, "2000"),
        (PRESSURE, "0.1"),
        ("host_disk_writes_per_second{device=\"mmcblk0\"}", "10"),
        ("host_disk_write_seconds{device=\"mmcblk0\"}", "0.0025"),
        ("host_disk_busy_ratio{device=\"mmcblk0\"}", "0.5"),
        ("host_disk_life_used_ratio{device=\"mmcblk0\"}", "0.2"),
        (
            "host_network_errors_per_second{device=\"eth0\",direction=\"receive\"}",
            "1",
        ),
        ("host_oom_kills", "0"),
        ("host_forks_per_second", "3"),
        ("host_clock_step_seconds", "0"),
        ("agent_cpu_ratio", "0.0005"),
        ("agent_wakeups_per_second", "0.47"),
        ("agent_written_bytes_per_second", "100"),
    ] {
        assert_eq!(value(&one, &two, key).as_deref(), Some(expected), "{key}");
    }
}

#[test]
fn the_first_reading_has_levels_only() {
    let points = points(None, &after(1000));
    let keys: Vec<_> = points
        .iter()
        .map(|point| point.series.key.to_string())
        .collect();
    assert_eq!(keys, ["host_disk_life_used_ratio{device=\"mmcblk0\"}"]);
}

#[test]
fn a_reboot_gives_no_value() {
    has_no_rate(&after(1000), &after(10));
    // One that took long to be noticed: all counters are higher already.
    let rebooted = Reading {
        boot_id: Some("two".to_owned()),
        ..after(1015)
    };
    has_no_rate(&after(1000), &rebooted);
}

#[test]
fn a_suspend_gives_no_value() {
    let slept = Reading {
        awake: Duration::from_secs(1015),
        ..after(1075)
    };
    has_no_rate(&after(1000), &slept);
}

#[test]
fn a_long_pause_and_none_at_all_give_no_value() {
    has_no_rate(&after(1000), &after(1000));
    has_no_rate(&after(1000), &after(1901));
    has_no_rate(&after(1015), &after(1000));
}

#[test]
fn a_counter_of_32_bits_that_wraps_gives_no_value_of_its_device() {
    let (mut one, mut two) = (after(1000), after(1015));
    one.networks.get_mut("eth0").unwrap().bytes = [u64::from(u32::MAX) - 5, 7];
    two.networks.get_mut("eth0").unwrap().bytes = [20, 50_000];
    assert_eq!(value(&one, &two, NETWORK), None);
    assert!(
        value(&one, &two, DISK).is_some(),
        "the others are not concerned"
    );
    one.disks.get_mut("mmcblk0").unwrap().busy_ms = u64::from(u32::MAX);
    assert_eq!(value(&one, &two, DISK), None);
}

#[test]
fn counters_that_were_reset_give_no_value() {
    let (one, mut two) = (after(1000), after(1015));
    two.disks = after(3).disks;
    two.networks = after(3).networks;
    two.stalled_us = after(3).stalled_us;
    two.cpu = after(3).cpu;
    has_no_rate(&one, &two);
}

#[test]
fn a_device_that_vanished_and_came_back_has_no_value_until_its_second_reading() {
    let mut away = after(1015);
    away.disks.clear();
    away.networks.clear();
    for key in [DISK, NETWORK] {
        assert_eq!(value(&after(1000), &away, key), None);
        assert_eq!(value(&away, &after(1030), key), None);
        assert!(value(&after(1030), &after(1045), key).is_some());
    }
    // Another disk took its name between two readings.
    let mut other = after(1045);
    other.disks.get_mut("mmcblk0").unwrap().number = (179, 8);
    assert_eq!(value(&after(1030), &other, DISK), None);
}

#[test]
fn an_interface_that_came_back_under_its_name_between_two_readings_has_no_value() {
    let (mut one, mut two) = (after(1000), after(1015));
    let numbered = |reading: &mut Reading, index| {
        reading.networks.get_mut("eth0").unwrap().index = Some(index);
    };
    numbered(&mut one, 3);
    numbered(&mut two, 3);
    assert_eq!(value(&one, &two, NETWORK).as_deref(), Some("2000"));
    numbered(&mut two, 9);
    assert_eq!(value(&one, &two, NETWORK), None);
}

#[test]
fn a_clock_that_was_set_shows_by_how_much() {
    let one = after(1000);
    for (by_ms, step) in [(99, "0"), (2500, "2.5"), (-3_600_000, "-3600")] {
        let mut two = after(1015);
        two.at.wall = Wall::from_millis(two.at.wall.millis() + by_ms);
        assert_eq!(
            value(&one, &two, "host_clock_step_seconds").as_deref(),
            Some(step)
        );
        // Rates go by the other clock.
        assert_eq!(value(&one, &two, DISK).as_deref(), Some("4096"));
    }
}

#[test]
fn a_program_that_counts_less_than_before_has_no_value() {
    let (one, mut two) = (after(1000), after(1015));
    two.own = after(3).own;
    two.forks = after(3).forks;
    for key in [
        "agent_cpu_ratio",
        "agent_wakeups_per_second",
        "agent_written_bytes_per_second",
        "host_forks_per_second",
    ] {
        assert_eq!(value(&one, &two, key), None, "{key}");
    }
}

#[test]
fn a_file_system_has_its_levels_and_one_without_inodes_has_none_of_those() {
    let mut now = after(1000);
    let mut boot = FileSystem {
        is_read_only: true,
        ..FileSystem::default()
    };
    boot.space.size = 512;
    now.file_systems = [("/boot".to_owned(), boot)].into_iter().collect();
    let keys = |key: &str| {
        value(
            &now,
            &now,
            &format!("host_filesystem_{key}{{mount=\"/boot\"}}"),
        )
    };
    assert_eq!(keys("size_bytes").as_deref(), Some("512"));
    assert_eq!(keys("read_only").as_deref(), Some("1"));
    assert_eq!(keys("inodes"), None);
}

#[test]
fn idle_time_that_went_back_a_little_is_none() {
    let (one, mut two) = (after(1000), after(1015));
    two.cpu.as_mut().unwrap().ticks[3] = one.cpu.unwrap().ticks[3] - 1;
    assert_eq!(value(&one, &two, CPU).as_deref(), Some("1"));
}

#[test]
fn the_largest_numbers_neither_wrap_nor_panic() {
    let (mut one, mut two) = (after(1000), after(1015));
    one.cpu = Some(Cpu { ticks: [0; 8] });
    two.cpu = Some(Cpu {
        ticks: [u64::MAX; 8],
    });
    two.disks.get_mut("mmcblk0").unwrap().busy_ms = u64::MAX;
    two.disks.get_mut("mmcblk0").unwrap().reads.took_ms = u64::MAX;
    two.networks.get_mut("eth0").unwrap().speed_mbit = Some(u64::MAX);
    assert_eq!(value(&one, &two, CPU), None);
    assert!(!points(Some(&one), &two).is_empty());
}
