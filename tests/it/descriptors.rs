//! The dashboard of an agent that has no file descriptors left, by the limit of the kernel.

use std::{io::Read, os::unix::net::UnixStream};

use crate::agent::{SOON, command, until};
use crate::login::House;

/// Sets how many descriptors a process may have.
fn limit(pid: i32, count: u64) {
    let set = command("prlimit")
        .args(["--pid", &pid.to_string(), &format!("--nofile={count}:")])
        .status();
    assert!(set.unwrap().success());
}

/// The processor time that a process has used, in hundredths of a second.
pub(crate) fn used(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<_> = fields.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn errors(house: &House) -> Option<u64> {
    let page = house.on_socket("GET /metrics", "").body;
    let name = "pipeops_agent_accept_errors_total ";
    let line = page.lines().find_map(|line| line.strip_prefix(name))?;
    line.parse().ok()
}

#[test]
fn an_agent_without_descriptors_says_so_once_does_not_spin_and_goes_on() {
    if !crate::agent::has("prlimit") {
        return;
    }
    let house = House::new(&[]);
    house.agent.until_linked();
    assert_eq!(errors(&house), Some(0));
    let pid = house.agent.pid();
    let before = used(pid);
    // Less than are open: the kernel gives out none.
    limit(pid, 4);
    let mut waiting = UnixStream::connect(house.agent.folder().join("agent.sock")).unwrap();
    until("the log says so", SOON, || {
        let log = house.agent.log();
        log.contains("the dashboard cannot accept connections")
            .then_some(())
    });
    // Nothing else shows that time passes while nobody can connect: a heartbeat of the link, which
    // is 30 s apart, would be too long.
    waiting
        .set_read_timeout(Some(std::time::Duration::from_secs(3)))
        .unwrap();
    let mut nothing = [0; 1];
    assert!(waiting.read(&mut nothing).is_err(), "nobody is let in");
    let spent = used(pid) - before;
    assert!(spent < 150, "{spent} hundredths of a second in 3 s");
    limit(pid, 1024);
    drop(waiting);
    let count = until("connections are accepted again", SOON, || errors(&house));
    // 100 ms, 200 ms, … 2 s: some in three seconds, and not thousands.
    assert!((1..40).contains(&count), "{count}");
    until("the log says that it is over", SOON, || {
        let log = house.agent.log();
        log.contains("connections are accepted again, after")
            .then_some(())
    });
    let log = house.agent.log();
    let lines = log
        .matches("the dashboard cannot accept connections")
        .count();
    assert_eq!(lines, 1, "{log}");
}
