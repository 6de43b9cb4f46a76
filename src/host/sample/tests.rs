use proptest::prelude::*;

use super::*;
use crate::{
    core::{
        procfs::kernel::throttled,
        rates::{AgentUsage, Cpu, Disk, FileSystem, MemoryUse, Network, Transfers, Zram, points},
    },
    host::captured::tree,
};

/// Made by hand from the documented formats, with the devices of a Raspberry Pi 4 that boots from
/// its card.
const PI: &[(&str, &str)] = &[
    (
        "proc/sys/kernel/random/boot_id",
        "0f3a1f5e-0d6e-4c8b-9a57-0a1b2c3d4e5f\n",
    ),
    ("proc/uptime", "4242.42 9999.99\n"),
    (
        "proc/stat",
        "cpu  1000 20 300 50000 700 6 40 9 100 0\ncpu0 1 1 1 1 1 1 1 1 0 0\nctxt 99\nprocesses 8210\nprocs_running 2\nprocs_blocked 1\n",
    ),
    ("proc/loadavg", "0.52 1.07 12.00 2/431 8210\n"),
    (
        "proc/meminfo",
        "MemTotal: 3884352 kB\nMemFree: 1000 kB\nBuffers: 20 kB\nCached: 300 kB\nSwapCached: 4 kB\nMemAvailable: 3000000 kB\nSwapTotal: 204796 kB\nSwapFree: 204540 kB\n",
    ),
    (
        "proc/vmstat",
        "nr_free_pages 1\noom_kill 3\noom_kill_other 9\n",
    ),
    ("proc/sys/fs/file-nr", "2240\t0\t9223372036854775807\n"),
    (
        "proc/pressure/io",
        "some avg10=0.00 avg60=0.11 avg300=0.04 total=1204533\nfull avg10=0.00 avg60=0.10 avg300=0.03 total=1100211\n",
    ),
    // Kernels before 5.13 have no second line here.
    (
        "proc/pressure/cpu",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=77\n",
    ),
    (
        "proc/diskstats",
        "   7       0 loop0 1 0 8 1 0 0 0 0 0 1 1 0 0 0 0\n\
         \x20179       0 mmcblk0 21053 8061 1546242 92817 9204 11127 420818 334003 1 140404 426821 0 0 0 0\n\
         \x20179       1 mmcblk0p1 120 500 9000 100 2 0 2 4 0 90 104 0 0 0 0\n",
    ),
    ("sys/block/loop0/size", "0\n"),
    ("sys/block/mmcblk0/device/life_time", "0x01 0x03\n"),
    ("sys/block/mmcblk0/device/pre_eol_info", "0x02\n"),
    ("sys/block/zram0/disksize", "536870912\n"),
    (
        "sys/block/zram0/mm_stat",
        " 4096000  1024000  1130496        0  1130496       12        0        0        0\n",
    ),
    ("sys/block/zram1/disksize", "0\n"),
    ("sys/block/zram1/mm_stat", "0 0 0 0 0 0 0 0 0\n"),
    (
        "proc/self/mountinfo",
        "22 1 179:2 / / rw,noatime shared:1 - ext4 /dev/mmcblk0p2 rw\n\
         23 22 179:1 / /boot/firmware rw - vfat /dev/mmcblk0p1 rw,errors=remount-ro\n",
    ),
    ("proc/1/comm", "systemd\n"),
    ("proc/812/comm", "k3s\n"),
    (
        "proc/self/smaps_rollup",
        "00-ff r--p 0 00:00 0 [rollup]\nRss: 9000 kB\nPss:  4096 kB\n",
    ),
    (
        "proc/self/io",
        "rchar: 1\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n",
    ),
    ("run/systemd/timesync/synchronized", ""),
    (
        "proc/net/dev",
        "Inter-|   Receive                            |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes\n\
         \x20   lo:  100 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0\n\
         \x20 eth0:948120533 800000 2 17 0 0 0 4000 55120031 300000 1 5 0 0 0 0\n\
         calia1b2c3d4e5f: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n",
    ),
    ("sys/class/net/eth0/speed", "1000\n"),
    ("sys/class/net/eth0/ifindex", "2\n"),
    ("sys/class/hwmon/hwmon0/name", "cpu_thermal\n"),
    ("sys/class/hwmon/hwmon0/temp1_input", "54042\n"),
    ("sys/class/hwmon/hwmon1/name", "rpi_volt\n"),
    ("sys/class/hwmon/hwmon1/in0_lcrit_alarm", "0\n"),
    ("sys/class/hwmon/hwmon2/name", "pwmfan\n"),
    ("sys/class/hwmon/hwmon2/fan1_input", "2870\n"),
    ("sys/class/thermal/thermal_zone0/type", "cpu-thermal\n"),
    ("sys/class/thermal/thermal_zone0/temp", "54042\n"),
    (
        "sys/bus/platform/drivers/raspberrypi-firmware/soc:firmware/get_throttled",
        "50004\n",
    ),
];

/// A file system that is a quarter full, as large as the path is long.
fn quarter(path: &str) -> Space {
    let size = 4_000_000 * u64::try_from(path.len()).unwrap();
    Space {
        size,
        free: size / 4 * 3,
        available: size / 2,
        inodes: 1000,
        inodes_free: 900,
    }
}

fn read_quarters(root: &Path) -> Reading {
    read_below(root, &|path| Some(quarter(path)))
}

#[test]
fn a_pi_is_read_as_it_is() {
    let tree = tree(PI);
    let reading = read_quarters(tree.path());
    let expected = Reading {
        at: reading.at,
        awake: reading.awake,
        own: AgentUsage {
            pss: Some(4096 * 1024),
            written: Some(8192),
            ..reading.own
        },
        // Kernels before 5.13 have no second line for processors; this one was built without the
        // memory's.
        unread: [(
            "pressure",
            "/proc/pressure/memory: No such file or directory (os error 2)".to_owned(),
        )]
        .into_iter()
        .collect(),
        ..pi()
    };
    assert_eq!(reading, expected);
    assert!(reading.own.cpu_us.unwrap() > 0 && reading.own.wakeups.is_some());
}

fn pi_disk() -> Disk {
    Disk {
        number: (179, 0),
        reads: Transfers {
            operations: 21_053,
            bytes: 1_546_242 * 512,
            took_ms: 92_817,
        },
        writes: Transfers {
            operations: 9204,
            bytes: 420_818 * 512,
            took_ms: 334_003,
        },
        busy_ms: 140_404,
        life_used_tenths: Some(3),
        pre_eol: Some(2),
    }
}

fn pi() -> Reading {
    let network = Network {
        index: Some(2),
        bytes: [948_120_533, 55_120_031],
        errors: [2, 1],
        drops: [17, 5],
        speed_mbit: Some(1000),
    };
    let file_system = |path: &str, kind: &str, part| FileSystem {
        device: format!("/dev/mmcblk0p{part}"),
        kind: kind.to_owned(),
        is_read_only: false,
        space: quarter(path),
    };
    let zram = Zram {
        original: 4_096_000,
        compressed: 1_024_000,
        memory: 1_130_496,
    };
    Reading {
        boot_id: Some("0f3a1f5e-0d6e-4c8b-9a57-0a1b2c3d4e5f".to_owned()),
        uptime_s: Some(4242),
        is_clock_synchronised: Some(true),
        cpu: Some(Cpu {
            ticks: [1000, 20, 300, 50_000, 700, 6, 40, 9],
        }),
        load_hundredths: Some([52, 107, 1200]),
        tasks: Some(431),
        processes: Some(2),
        running: Some(2),
        blocked: Some(1),
        forks: Some(8210),
        stalled_us: [
            (("cpu", "some"), 77),
            (("io", "some"), 1_204_533),
            (("io", "full"), 1_100_211),
        ]
        .into_iter()
        .collect(),
        memory: MemoryUse {
            total: Some(3_884_352 * 1024),
            free: Some(1000 * 1024),
            buffers: Some(20 * 1024),
            cached: Some(300 * 1024),
            available: Some(3_000_000 * 1024),
            swap_total: Some(204_796 * 1024),
            swap_free: Some(204_540 * 1024),
        },
        oom_kills: Some(3),
        files: Some((2240, i64::MAX.unsigned_abs())),
        file_systems: [("/", "ext4", 2), ("/boot/firmware", "vfat", 1)]
            .map(|(path, kind, part)| (path.to_owned(), file_system(path, kind, part)))
            .into_iter()
            .collect(),
        zram: [("zram0".to_owned(), zram)].into_iter().collect(),
        disks: [("mmcblk0".to_owned(), pi_disk())].into_iter().collect(),
        networks: [("eth0".to_owned(), network)].into_iter().collect(),
        temperatures_milli: [("cpu_thermal/temp1".to_owned(), 54_042)]
            .into_iter()
            .collect(),
        fans_rpm: [("pwmfan/fan1".to_owned(), 2870)].into_iter().collect(),
        is_under_voltage: Some(false),
        is_throttled: Some(true),
        ..Reading::default()
    }
}

#[test]
fn nothing_there_is_nothing_known_and_each_fact_says_why() {
    let reading = read_quarters(tree(&[]).path());
    let nothing = Reading {
        at: reading.at,
        awake: reading.awake,
        own: AgentUsage {
            pss: None,
            written: None,
            ..reading.own
        },
        unread: reading.unread.clone(),
        ..Reading::default()
    };
    assert_eq!(reading, nothing);
    assert_eq!(points(None, &reading), []);
    for what in ["processors", "memory", "disks", "file systems", "pressure"] {
        assert!(
            reading.unread.get(what).unwrap().contains("No such file"),
            "{what}"
        );
    }
}

#[test]
fn processes_that_are_hidden_are_not_counted() {
    let hidden = "22 1 0:21 / /proc rw - proc proc rw,hidepid=2\n";
    let tree = tree(&[("proc/self/mountinfo", hidden), ("proc/1/comm", "init\n")]);
    let reading = read_quarters(tree.path());
    assert_eq!(reading.processes, None);
    assert!(reading.unread.get("processes").unwrap().contains("hidepid"));
}

#[test]
fn a_file_system_that_cannot_be_asked_or_has_no_size_is_left_out() {
    let tree = tree(PI);
    let only_boot = |path: &str| match path {
        "/" => Some(Space::default()),
        _ => None,
    };
    let reading = read_below(tree.path(), &only_boot);
    assert!(reading.file_systems.is_empty());
}

#[test]
fn a_clock_that_waits_for_its_server_is_not_synchronised() {
    let tree = tree(&[("run/systemd/timesync/other", "")]);
    assert_eq!(
        read_quarters(tree.path()).is_clock_synchronised,
        Some(false)
    );
}

#[test]
fn garbage_in_every_file_is_no_fact_and_no_panic() {
    for garbage in [
        "",
        "\0",
        "x y z",
        "-1\n",
        ":::: /",
        "18446744073709551616 1 1",
        "0xzz",
    ] {
        let files: Vec<_> = PI.iter().map(|(path, _)| (*path, garbage)).collect();
        let reading = read_quarters(tree(&files).path());
        assert_eq!((reading.cpu, reading.files), (None, None), "{garbage:?}");
        assert!(
            reading.disks.is_empty() && reading.networks.is_empty(),
            "{garbage:?}"
        );
        assert!(reading.stalled_us.is_empty() && reading.load_hundredths.is_none());
        assert_eq!(reading.memory, MemoryUse::default(), "{garbage:?}");
    }
}

#[test]
fn a_wear_or_a_speed_that_says_nothing_is_none() {
    assert_eq!(sys::life_used_tenths("0x00 0x00\n"), None);
    assert_eq!(sys::life_used_tenths("0x0b 0x01\n"), Some(11));
    for speed in ["-1\n", "0\n", "4294967295\n"] {
        let dev = ("proc/net/dev", "eth0: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n");
        let tree = tree(&[dev, ("sys/class/net/eth0/speed", speed)]);
        assert_eq!(
            read_quarters(tree.path())
                .networks
                .get("eth0")
                .unwrap()
                .speed_mbit,
            None,
            "{speed:?}"
        );
    }
}

#[test]
fn two_sensors_of_one_name_are_told_apart() {
    let tree = tree(&[
        ("sys/class/hwmon/hwmon0/name", "nvme\n"),
        ("sys/class/hwmon/hwmon0/temp1_input", "41000\n"),
        ("sys/class/hwmon/hwmon1/name", "nvme\n"),
        ("sys/class/hwmon/hwmon1/temp1_input", "-5000\n"),
    ]);
    let expected = [
        ("nvme/temp1".to_owned(), 41_000),
        ("nvme/temp1-2".to_owned(), -5000),
    ];
    assert_eq!(
        read_quarters(tree.path()).temperatures_milli,
        expected.into_iter().collect()
    );
}

#[test]
fn this_machine_is_read_too() {
    let one = read(None);
    let two = read(one.own.pss);
    let busy = |reading: &Reading| reading.cpu.unwrap().ticks[0];
    assert!(busy(&two) >= busy(&one) && two.at.mono >= one.at.mono && two.awake >= one.awake);
    assert!(one.memory.total.unwrap() >= one.memory.available.unwrap());
    assert!(one.boot_id.is_some() && one.tasks.unwrap() > 1);
    assert!(one.processes.unwrap() > 1 && one.running.unwrap() > 0);
    assert!(one.own.pss.unwrap() > 100_000 && two.own.cpu_us >= one.own.cpu_us);
    assert_eq!(two.own.pss, one.own.pss, "it is known");
    assert!(points(Some(&one), &two).len() > 8);
}

proptest! {
    #[test]
    fn any_text_is_read_without_a_panic_and_within_bounds(
        // What the files are made of, so that some of it is nearly right.
        text in "((cpu |some |full | total=|oom_kill |MemTotal:|eth|: |0x|sda|[0-9]{1,21}|/|\\.|kB|\n| |\\PC){0,40}\n?){0,8}",
    ) {
        let whole = ["sda".to_owned()];
        let _cpu = stat::cpu(&text);
        let _load = stat::load(&text);
        let _memory = memory::meminfo(&text);
        let _kills = memory::oom_kills(&text);
        let _files = kernel::open_files(&text);
        let _tenths = sys::life_used_tenths(&text);
        let _flags = throttled(&text);
        let _spare = sys::pre_eol(&text);
        let _zram = sys::zram(&text);
        let _number = stat::number(&text, "cpu ");
        prop_assert!(memory::pressure(&text).count() <= 2);
        let _tables = (memory::swaps(&text).count(), stat::cores(&text), stat::uptime_s(&text));
        prop_assert!(devices::disks(&text, &whole).len() <= 1);
        prop_assert!(devices::networks(&text).keys().all(|name| !name.contains('/')));
    }
}
