//! Series that are kept and sent, and the page that a Prometheus reads.

use std::{collections::BTreeSet, time::Duration};

use pipeops_agent::{
    core::{
        link::LinkState,
        outbox::{Backlog, Stream},
        rates::{
            AgentUsage, Cpu, Disk, FileSystem, MemoryUse, Network, Reading, Space, Transfers, Zram,
            points,
        },
        time::{Mono, Now, Wall},
    },
    wire::exposition::{Agent, Cluster, Link, page},
};

use super::{hold, quoted};

/// Facts of such a machine, and what the agent uses on it.
fn devices(seconds: u64) -> Reading {
    let transfers = Transfers {
        operations: seconds,
        bytes: seconds,
        took_ms: seconds,
    };
    let disk = Disk {
        reads: transfers,
        writes: transfers,
        busy_ms: seconds,
        life_used_tenths: Some(1),
        pre_eol: Some(1),
        ..Disk::default()
    };
    let network = Network {
        speed_mbit: Some(1000),
        ..Network::default()
    };
    let space = Space {
        size: 100,
        inodes: 100,
        ..Space::default()
    };
    let file_system = FileSystem {
        device: "/dev/sda1".to_owned(),
        kind: "ext4".to_owned(),
        space,
        ..FileSystem::default()
    };
    let some = Some(seconds);
    let own = AgentUsage {
        pss: some,
        cpu_us: some,
        wakeups: some,
        written: some,
    };
    Reading {
        file_systems: [("/".to_owned(), file_system)].into_iter().collect(),
        disks: [("sda".to_owned(), disk)].into_iter().collect(),
        networks: [("eth0".to_owned(), network)].into_iter().collect(),
        own,
        ..Reading::default()
    }
}

/// A machine that has everything, so many seconds after its start.
fn reading(seconds: u64) -> Reading {
    let some = Some(seconds);
    let pressure =
        ["cpu", "memory", "io"].map(|it| ["some", "full"].map(|kind| ((it, kind), seconds)));
    Reading {
        at: Now {
            mono: Mono::since_boot(Duration::from_secs(seconds)),
            wall: Wall::from_millis(1_781_589_028_123),
        },
        awake: Duration::from_secs(seconds),
        boot_id: Some("boot".to_owned()),
        uptime_s: some,
        is_clock_synchronised: Some(true),
        cpu: Some(Cpu {
            ticks: [seconds; 8],
        }),
        load_hundredths: Some([1, 5, 15]),
        tasks: some,
        processes: some,
        running: some,
        blocked: some,
        forks: some,
        stalled_us: pressure.into_iter().flatten().collect(),
        memory: MemoryUse {
            total: some,
            free: some,
            buffers: some,
            cached: some,
            available: some,
            swap_total: some,
            swap_free: some,
        },
        oom_kills: some,
        files: Some((1, 2)),
        zram: [("zram0".to_owned(), Zram::default())]
            .into_iter()
            .collect(),
        temperatures_milli: [("nvme/Composite".to_owned(), 1)].into_iter().collect(),
        fans_rpm: [("fan/1".to_owned(), 1)].into_iter().collect(),
        is_under_voltage: Some(false),
        is_throttled: Some(false),
        ..devices(seconds)
    }
}

/// A series with the names of its labels; their values are of this machine, but for words that are
/// ours.
fn with_labels(series: &str) -> String {
    let Some((name, labels)) = series.split_once('{') else {
        return series.to_owned();
    };
    let labels = labels.trim_end_matches('}').split("\",");
    let labels = labels.map(|label| {
        let (name, value) = label.split_once('=').unwrap();
        match name {
            "mode" | "kind" | "resource" | "direction" | "why" => {
                format!("{name}={}", value.trim_matches('"'))
            }
            _ => name.to_owned(),
        }
    });
    format!("{name}{{{}}}", labels.collect::<Vec<_>>().join(","))
}

#[test]
fn the_page_for_a_prometheus_keeps_its_names_types_and_labels() {
    let some = Some(7);
    let agent = Agent {
        version: "1.2.3",
        link: Link {
            state: LinkState::Ready,
            last_heartbeat: Some(Wall::from_millis(1)),
            round_trip_us: some,
            ..Link::default()
        },
        cluster: Some(Cluster {
            is_up: true,
            nodes: some,
            nodes_ready: some,
            pods: some,
        }),
        conditions: vec![("warning", 0)],
        turned_away: [("full", 0), ("slow", 0), ("unreadable", 0)],
        backlog: vec![Backlog {
            destination: "control-plane".to_owned(),
            stream: Stream::Metrics,
            records: 42,
            oldest: Some(Wall::from_millis(1_781_500_000_000)),
        }],
        ..Agent::default()
    };
    let page = page(&agent, &reading(1000));
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let series = page.lines().filter(|line| !line.starts_with('#'));
    let series: BTreeSet<_> = series
        .map(|line| with_labels(line.rsplit_once(' ').unwrap().0))
        .collect();
    hold("exposition.txt", types.map(str::to_owned).chain(series));
}

#[test]
fn series_of_the_machine_keep_their_names_and_labels() {
    let found = points(Some(&reading(1000)), &reading(1015));
    let found: BTreeSet<_> = found
        .iter()
        .map(|point| with_labels(&point.series.key.to_string()))
        .collect();
    hold("series.txt", found);
}

#[test]
fn names_of_all_series_stay() {
    let is_series = |text: &String| {
        let (family, rest) = text.split_once('_').unwrap_or_default();
        let is_family = matches!(family, "agent" | "cluster" | "host" | "node" | "pipeops");
        is_family
            && !rest.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    hold(
        "series-in-the-program.txt",
        quoted().into_iter().filter(is_series),
    );
}
