//! The tools that everybody knows read the captured trees too: in a mount namespace where the files
//! stand in the place of `/proc`'s.
//!
//! Takes root and the packages procps and sysstat.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, geteuid},
};

use pipeops_agent::core::rates::Cpu;

use super::{Machine, lay_out, machines, values};
use crate::agent::{SOON, command, until};

/// What these tools read of `/proc`.
const FILES: [&str; 5] = ["meminfo", "stat", "vmstat", "uptime", "diskstats"];

/// Returns whether a tool is here; says so where it is not.
pub(super) fn has(tool: &str) -> bool {
    let mut asked = command(tool);
    asked.arg("-V").stdout(Stdio::null()).stderr(Stdio::null());
    let is_here = asked.status().is_ok();
    if !is_here {
        println!("skipped: {tool} is not installed: tests/setup test installs it");
    }
    is_here
}

/// What a tool prints, in the language of the tests.
pub(super) fn output(tool: &str, arguments: &[&str]) -> String {
    printed(command(tool).args(arguments))
}

fn printed(command: &mut Command) -> String {
    let output = command.env("LC_ALL", "C").output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns whether the files of other machines can be put before `/proc`.
fn can_replace(tool: &str) -> bool {
    if !geteuid().is_root() {
        println!("skipped: {tool} on captured trees: takes root");
        return false;
    }
    let unshare = command("unshare").args(["-m", "true"]).status();
    let can = unshare.is_ok_and(|status| status.success());
    if !can {
        println!("skipped: {tool} on captured trees: no mount namespace can be had here");
    }
    can && has(tool)
}

/// A tool that sees this tree in the place of `/proc` and `/sys/block`.
fn before(root: &Path, tool: &str) -> Command {
    let binds = FILES.map(|file| format!("mount --bind \"$0/proc/{file}\" /proc/{file}"));
    let script = format!(
        "set -e\n{}\nmount --bind \"$0/sys/block\" /sys/block\nexec {tool}\n",
        binds.join("\n")
    );
    let mut command = command("unshare");
    command.args(["-m", "sh", "-c", &script]).arg(root);
    command
}

/// The files of one moment, with those that only the tools read.
fn files(machine: &Machine, later: bool) -> BTreeMap<String, String> {
    let mut files = machine.first.clone();
    if later {
        files.extend(machine.later.clone());
    }
    // sysstat reads a file for each disk: the same columns as in diskstats.
    for line in files["proc/diskstats"].clone().lines() {
        let mut words = line.split_whitespace().skip(2);
        let name = words.next().unwrap();
        if machine
            .first
            .keys()
            .any(|path| path.starts_with(&format!("sys/block/{name}/")))
        {
            let columns: Vec<_> = words.collect();
            let path = format!("sys/block/{name}/stat");
            files.insert(path, columns.join(" ") + "\n");
        }
    }
    files
}

/// The columns of a line, by the words of the header above it.
fn columns<'a>(header: &'a str, line: &'a str) -> BTreeMap<&'a str, f64> {
    let numbers = line
        .split_whitespace()
        .map(|word| word.parse().unwrap_or(f64::NAN));
    header.split_whitespace().zip(numbers).collect()
}

#[track_caller]
fn is_near(what: &str, ours: f64, theirs: f64, room: f64) {
    assert!(
        (ours - theirs).abs() <= room,
        "{what}: {ours} is not {theirs} within {room}"
    );
}

#[test]
fn free_says_the_same_of_every_machine() {
    if !can_replace("free") {
        return;
    }
    for machine in machines() {
        let root = tempfile::tempdir().unwrap();
        lay_out(&files(&machine, false), root.path());
        let said = printed(&mut before(root.path(), "free -b -w"));
        let (memory, name) = (machine.readings().0.memory, &machine.name);
        let mut lines = said.lines();
        let header = lines.next().unwrap();
        // The first word of a line is its name, which the header does not have.
        let mut line = || columns(header, lines.next().unwrap().split_once(':').unwrap().1);
        let (ram, swap) = (line(), line());
        let bytes = |value: Option<u64>| value.unwrap().to_string().parse::<f64>().unwrap();
        for (word, ours) in [
            ("total", bytes(memory.total)),
            ("free", bytes(memory.free)),
            ("buffers", bytes(memory.buffers)),
            ("available", bytes(memory.available)),
        ] {
            is_near(&format!("{name}: {word}"), ours, ram[word], 0.0);
        }
        is_near(name, bytes(memory.swap_total), swap["total"], 0.0);
        is_near(name, bytes(memory.swap_free), swap["free"], 0.0);
    }
}

#[test]
fn vmstat_says_the_same_of_every_machine() {
    if !can_replace("vmstat") {
        return;
    }
    for machine in machines() {
        let root = tempfile::tempdir().unwrap();
        lay_out(&files(&machine, false), root.path());
        let said = printed(&mut before(root.path(), "vmstat -n"));
        let (_, table) = said.split_once('\n').unwrap();
        let (header, line) = table.split_once('\n').unwrap();
        let told = columns(header, line);
        let (now, name) = (machine.readings().0, &machine.name);
        // Its only line is the time since boot: as if every counter had been zero 15 s before.
        let mut boot = machine.read(root.path(), 985);
        boot.cpu = Some(Cpu::default());
        let values = values(Some(&boot), &now);
        let percent = |modes: &[&str]| -> f64 {
            let share = |mode: &&str| values[&format!("host_cpu_ratio{{mode=\"{mode}\"}}")];
            modes.iter().map(share).sum::<f64>() * 100.0
        };
        for (word, ours, room) in [
            ("r", values["host_tasks_running"], 0.0),
            ("b", values["host_tasks_blocked"], 0.0),
            ("us", percent(&["user", "nice"]), 0.51),
            ("sy", percent(&["system", "irq", "softirq"]), 0.51),
            ("id", percent(&["idle"]), 0.51),
            ("wa", percent(&["iowait"]), 0.51),
            ("st", percent(&["steal"]), 0.51),
        ] {
            is_near(&format!("{name}: {word}"), ours, told[word], room);
        }
    }
}

#[test]
fn iostat_says_the_same_of_every_machine() {
    if !can_replace("iostat") {
        return;
    }
    for machine in machines() {
        let said = second_report(&machine);
        let (first, later) = machine.readings();
        let values = values(Some(&first), &later);
        let mut lines = said.lines().skip_while(|line| !line.starts_with("Device"));
        let header = lines.next().unwrap();
        let mut compared = 0;
        for line in lines.take_while(|line| !line.is_empty()) {
            let device = line.split_whitespace().next().unwrap();
            let told = columns(header, line);
            let value =
                |name: &str| values.get(&format!("host_disk_{name}{{device=\"{device}\"}}"));
            // What sysstat shows of a disk that was replaced is nonsense; what is made of memory is
            // not ours.
            let Some(busy) = value("busy_ratio") else {
                continue;
            };
            let mut pairs = vec![
                ("%util", busy * 100.0),
                ("r/s", *value("reads_per_second").unwrap()),
                ("w/s", *value("writes_per_second").unwrap()),
                ("rkB/s", value("read_bytes_per_second").unwrap() / 1024.0),
                ("wkB/s", value("written_bytes_per_second").unwrap() / 1024.0),
            ];
            // Of no operation there is no time; it says 0.
            pairs.extend(value("read_seconds").map(|wait| ("r_await", wait * 1000.0)));
            pairs.extend(value("write_seconds").map(|wait| ("w_await", wait * 1000.0)));
            for (word, ours) in pairs {
                is_near(
                    &format!("{}: {device} {word}", machine.name),
                    ours,
                    told[word],
                    0.011,
                );
            }
            compared += 1;
        }
        // The container has no disk of its own that did anything.
        assert!(compared > 0, "{}: {said}", machine.name);
    }
}

/// The report of sysstat on the time between the two moments. It would wait for an hour for its
/// second one: files are replaced after the first, and then its alarm rings. It measures the time
/// by the captured `/proc/uptime`.
fn second_report(machine: &Machine) -> String {
    let root = tempfile::tempdir().unwrap();
    lay_out(&files(machine, false), root.path());
    let mut child = Tool(
        before(root.path(), "iostat -d -x -k 3600 2")
            .env("LC_ALL", "C")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut next = || lines.next().map(Result::unwrap);
    while next().is_some_and(|line| !line.starts_with("Device")) {}
    // A report ends with an empty line.
    while next().is_some_and(|line| !line.is_empty()) {}
    lay_out(&files(machine, true), root.path());
    let process = Pid::from_raw(i32::try_from(child.0.id()).unwrap());
    let status = until("the second report", SOON, || {
        // Again and again: one that comes before it waits is lost.
        kill(process, Signal::SIGALRM).ok();
        child.0.try_wait().unwrap()
    });
    assert!(status.success());
    let rest: Vec<_> = std::iter::from_fn(next).collect();
    rest.join("\n") + "\n"
}

/// A running tool. Dropping it ends it.
struct Tool(Child);

impl Drop for Tool {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
