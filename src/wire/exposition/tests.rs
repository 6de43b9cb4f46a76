use std::{collections::BTreeSet, time::Duration};

use super::*;
use crate::core::{
    link::LinkState,
    outbox::{Backlog, Stream},
    rates::{AgentUsage, Cpu, Disk, FileSystem, MemoryUse, Network, Space, Transfers, Zram},
    time::{Mono, Now, Wall},
};

fn reading() -> Reading {
    let transfers = Transfers {
        operations: 10,
        bytes: 4096,
        took_ms: 2500,
    };
    let disk = Disk {
        reads: transfers,
        writes: transfers,
        busy_ms: 1,
        life_used_tenths: Some(3),
        ..Disk::default()
    };
    let network = Network {
        bytes: [7, 8],
        speed_mbit: Some(1000),
        ..Network::default()
    };
    let file_system = FileSystem {
        device: "/dev/sda1".to_owned(),
        kind: "ext4".to_owned(),
        space: Space {
            size: 100,
            ..Space::default()
        },
        ..FileSystem::default()
    };
    Reading {
        at: Now {
            mono: Mono::since_boot(Duration::from_secs(1000)),
            wall: Wall::from_millis(1_781_589_028_123),
        },
        uptime_s: Some(1000),
        cpu: Some(Cpu {
            ticks: [12_345, 0, 7, 0, 0, 0, 0, 0],
        }),
        load_hundredths: Some([52, 107, 1200]),
        memory: MemoryUse {
            available: Some(u64::from(u32::MAX) * 1024),
            ..MemoryUse::default()
        },
        stalled_us: [(("io", "full"), 1_500_000)].into_iter().collect(),
        file_systems: [("/a \"b\"\n\\".to_owned(), file_system)]
            .into_iter()
            .collect(),
        zram: [("zram0".to_owned(), Zram::default())]
            .into_iter()
            .collect(),
        disks: [("sda".to_owned(), disk)].into_iter().collect(),
        networks: [("eth0".to_owned(), network)].into_iter().collect(),
        temperatures_milli: [
            ("nvme/Composite".to_owned(), -5500),
            ("acpitz".to_owned(), 40_000),
        ]
        .into_iter()
        .collect(),
        is_under_voltage: Some(true),
        own: AgentUsage {
            cpu_us: Some(1_234_567),
            ..AgentUsage::default()
        },
        ..Reading::default()
    }
}

fn agent() -> Agent<'static> {
    let waiting = Backlog {
        destination: "control-plane".to_owned(),
        stream: Stream::Metrics,
        records: 42,
        oldest: Some(Wall::from_millis(1_781_500_000_000)),
    };
    Agent {
        version: "1.2.3",
        started: Wall::from_millis(1_781_589_000_000),
        link: Link {
            state: LinkState::Ready,
            heartbeats: 9,
            round_trip_us: Some(12_340),
            ..Link::default()
        },
        cluster: Some(Cluster {
            is_up: true,
            nodes: Some(3),
            ..Cluster::default()
        }),
        conditions: vec![("warning", 0)],
        turned_away: [("full", 0), ("slow", 2), ("unreadable", 1)],
        backlog: vec![waiting],
        ..Agent::default()
    }
}

#[test]
fn counters_are_told_in_the_units_of_node_exporter() {
    let page = page(&agent(), &reading());
    for line in [
        "node_cpu_seconds_total{mode=\"user\"} 123.45",
        "node_boot_time_seconds 1781588028",
        "node_time_seconds 1781589028.123",
        "node_load5 1.07",
        "node_memory_MemAvailable_bytes 4398046510080",
        "node_pressure_io_stalled_seconds_total 1.5",
        "node_filesystem_size_bytes{device=\"/dev/sda1\",fstype=\"ext4\",mountpoint=\"/a \\\"b\\\"\\n\\\\\"} 100",
        "node_filesystem_readonly{device=\"/dev/sda1\",fstype=\"ext4\",mountpoint=\"/a \\\"b\\\"\\n\\\\\"} 0",
        "node_disk_read_time_seconds_total{device=\"sda\"} 2.5",
        "node_disk_io_time_seconds_total{device=\"sda\"} 0.001",
        "node_network_receive_bytes_total{device=\"eth0\"} 7",
        "node_network_transmit_bytes_total{device=\"eth0\"} 8",
        "node_network_speed_bytes{device=\"eth0\"} 125000000",
        "node_hwmon_temp_celsius{chip=\"nvme\",sensor=\"Composite\"} -5.5",
        "node_hwmon_temp_celsius{sensor=\"acpitz\"} 40",
        "pipeops_host_disk_life_used_ratio{device=\"sda\"} 0.3",
        "pipeops_host_under_voltage 1",
        "pipeops_agent_build_info{version=\"1.2.3\"} 1",
        "pipeops_agent_cpu_seconds_total 1.234567",
        "pipeops_agent_link_up 1",
        "pipeops_agent_link_heartbeats_total 9",
        "pipeops_agent_link_round_trip_seconds 0.01234",
        "pipeops_agent_backlog_records{destination=\"control-plane\",stream=\"metrics\"} 42",
        "pipeops_agent_backlog_oldest_timestamp_seconds{destination=\"control-plane\",stream=\"metrics\"} 1781500000",
        "pipeops_agent_dashboard_turned_away_total{why=\"slow\"} 2",
        "pipeops_cluster_nodes 3",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
}

#[test]
fn what_is_not_known_is_not_mentioned() {
    let page = page(&Agent::default(), &Reading::default());
    for name in [
        "node_cpu",
        "node_load",
        "node_mem",
        "node_disk",
        "node_boot",
        "pipeops_cluster",
        "pipeops_host",
        "pipeops_agent_memory",
        "pipeops_agent_backlog",
    ] {
        assert!(!page.contains(name), "{name}\n{page}");
    }
}

#[test]
fn each_family_is_introduced_once_before_its_series() {
    let page = page(&agent(), &reading());
    let mut introduced = BTreeSet::new();
    let mut current = "";
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(introduced.insert(name), "{name} twice");
            let is_counter = name.ends_with("_total") || name == "node_vmstat_oom_kill";
            assert_eq!(kind == "counter", is_counter, "{line}");
            current = name;
        } else if let Some(help) = line.strip_prefix("# HELP ") {
            assert!(help.ends_with('.'), "{line}");
        } else {
            let name = line.split(['{', ' ']).next().unwrap();
            assert_eq!(name, current);
        }
    }
    assert!(introduced.len() > 40, "{}", introduced.len());
}

#[test]
fn a_machine_with_many_disks_gets_a_page_of_the_same_size() {
    let mut many = reading();
    for n in 0..64 {
        many.disks.insert(format!("sd{n}"), Disk::default());
        many.networks.insert(format!("eth{n}"), Network::default());
    }
    let page = page(&agent(), &many);
    let series = page.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(series, SERIES_MAX);
    let last = page.lines().last().unwrap();
    let left_out = last
        .strip_prefix("pipeops_agent_metrics_left_out ")
        .unwrap();
    assert!(left_out.parse::<u64>().unwrap() > 300, "{last}");
}
