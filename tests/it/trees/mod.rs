//! Other machines, as captured trees: see `tests/data/trees/README.md`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use pipeops_agent::{
    core::{
        rates::{Reading, Space, points},
        series::decimal,
        time::{Mono, Now, Wall},
    },
    host::sample,
};

mod garbage;
mod here;
mod tools;

/// A machine at two moments.
pub(crate) struct Machine {
    name: String,
    pub(crate) first: BTreeMap<String, String>,
    later: BTreeMap<String, String>,
    pub(crate) spaces: BTreeMap<String, Space>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/trees")
}

fn machines() -> Vec<Machine> {
    let mut files: Vec<_> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "txt"))
        .collect();
    files.sort();
    files.iter().map(|path| machine(path)).collect()
}

/// The machine of that name.
pub(crate) fn named(name: &str) -> Machine {
    machine(&folder().join(format!("{name}.txt")))
}

fn machine(path: &Path) -> Machine {
    let text = fs::read_to_string(path).unwrap();
    let mut first = BTreeMap::new();
    let mut later = BTreeMap::new();
    let mut spaces = BTreeMap::new();
    for section in text.split("\n==> ").skip(1) {
        let (name, content) = section.split_once(" <==\n").unwrap();
        if name == "statvfs" {
            spaces = content.lines().map(space).collect();
        } else if let Some(path) = name.strip_prefix("later/") {
            later.insert(path.to_owned(), content.to_owned());
        } else {
            first.insert(name.to_owned(), content.to_owned());
        }
    }
    Machine {
        name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
        first,
        later,
        spaces,
    }
}

fn space(line: &str) -> (String, Space) {
    let mut words = line.rsplitn(6, ' ');
    let mut number = || words.next().unwrap().parse::<u64>().unwrap();
    let (inodes_free, inodes, available, free, size) =
        (number(), number(), number(), number(), number());
    let (path, block) = words.next().unwrap().rsplit_once(' ').map_or_else(
        || panic!("no block size: {line}"),
        |(path, block)| (path.to_owned(), block.parse::<u64>().unwrap()),
    );
    let space = Space {
        size: size * block,
        free: free * block,
        available: available * block,
        inodes,
        inodes_free,
    };
    (path, space)
}

/// Writes files below a folder.
fn lay_out(files: &BTreeMap<String, String>, root: &Path) {
    for (path, content) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        crate::agent::put(&path, content);
    }
}

impl Machine {
    /// What the agent reads at both moments. What is not the machine's but this program's own is
    /// left out.
    fn readings(&self) -> (Reading, Reading) {
        let root = tempfile::tempdir().unwrap();
        lay_out(&self.first, root.path());
        let first = self.read(root.path(), 1000);
        lay_out(&self.later, root.path());
        (first, self.read(root.path(), 1015))
    }

    fn read(&self, root: &Path, second: u64) -> Reading {
        let mut reading = sample::read_below(root, &|path| self.spaces.get(path).copied());
        let wall = i64::try_from(1_781_589_028 + second).unwrap() * 1000;
        reading.at = Now {
            mono: Mono::since_boot(Duration::from_secs(second)),
            wall: Wall::from_millis(wall),
        };
        reading.awake = Duration::from_secs(second);
        (reading.own.cpu_us, reading.own.wakeups) = (None, None);
        reading
    }
}

/// The values of a moment, by their names.
fn values(earlier: Option<&Reading>, later: &Reading) -> BTreeMap<String, f64> {
    let points = points(earlier, later);
    let count = points.len();
    let values: BTreeMap<_, _> = points
        .into_iter()
        .map(|point| {
            let value = decimal(point.value, point.series.digits);
            (point.series.key.to_string(), value.parse().unwrap())
        })
        .collect();
    assert_eq!(values.len(), count, "a series is there twice");
    values
}

#[test]
fn each_machine_gives_the_values_that_are_written_down() {
    for machine in machines() {
        let (first, later) = machine.readings();
        let mut text = String::from("# The first moment.\n");
        write_values(&mut text, None, &first);
        text.push_str("\n# 15 s later.\n");
        write_values(&mut text, Some(&first), &later);
        text.push_str("\n# What it could not read, and why.\n");
        let unread = later.unread.iter();
        text.extend(unread.map(|(what, why)| format!("{what}: {why}\n")));
        let path = folder().join(format!("{}.points", machine.name));
        expect_test::expect_file![path].assert_eq(&text);
    }
}

fn write_values(text: &mut String, earlier: Option<&Reading>, later: &Reading) {
    let mut lines: Vec<_> = points(earlier, later)
        .into_iter()
        .map(|point| {
            let value = decimal(point.value, point.series.digits);
            format!("{} {value}\n", point.series.key)
        })
        .collect();
    lines.sort();
    text.extend(lines);
}

#[test]
fn every_value_of_every_machine_makes_sense() {
    let machines = machines();
    assert_eq!(machines.len(), 8);
    for machine in machines {
        let (first, later) = machine.readings();
        let values = values(Some(&first), &later);
        let name = &machine.name;
        assert!((40..=200).contains(&values.len()), "{name}");
        let modes: f64 = values
            .iter()
            .filter(|(key, _)| key.starts_with("host_cpu_ratio"))
            .map(|(_, share)| share)
            .sum();
        assert!((modes - 1.0).abs() < 0.001, "{name}: {modes}");
        for (key, value) in &values {
            let range = match key.split(['{', ' ']).next().unwrap() {
                ratio if ratio.ends_with("_ratio") => 0.0..=1.0,
                "host_temperature_celsius" => 10.0..=110.0,
                "host_clock_step_seconds" => 0.0..=0.0,
                // A wire of ten gigabits.
                "host_network_bytes_per_second" => 0.0..=1.25e9,
                // The kernel says the largest number that it has.
                "host_open_files_max" => 0.0..=1e19,
                _ => 0.0..=1e15,
            };
            assert!(range.contains(value), "{name}: {key} {value}");
        }
        for (path, file_system) in &later.file_systems {
            let space = file_system.space;
            assert!(space.available <= space.free && space.free <= space.size);
            assert!(machine.spaces.contains_key(path), "{name}: {path}");
        }
        assert_eq!(
            later.file_systems.len(),
            machine.spaces.len(),
            "{name}: each that was written down, and no other"
        );
        assert!(later.memory.available <= later.memory.total, "{name}");
    }
}

#[test]
fn what_became_another_thing_between_two_moments_has_no_rate() {
    let values = |wanted: &str| {
        let machine = machine(&folder().join(format!("{wanted}.txt")));
        let (first, later) = machine.readings();
        values(Some(&first), &later)
    };
    let nas = values("x86-nas");
    assert!(!nas.contains_key("host_disk_busy_ratio{device=\"sdd\"}"));
    assert!(nas.contains_key("host_disk_busy_ratio{device=\"sdc\"}"));
    assert!(nas["host_filesystem_read_only{mount=\"/srv/pool one\"}"] > 0.5);
    let network = |device: &str| {
        format!("host_network_bytes_per_second{{device=\"{device}\",direction=\"receive\"}}")
    };
    assert!(nas.contains_key(&network("bond0")));
    assert!(!values("lxc").contains_key(&network("eth0")));
    assert!(!values("cgroup-v2").contains_key(&network("ens18")));
}
