//! Cost of an idle linked agent, and its peak.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::{Bench, Group, Results, all, each};
use crate::agent::Kind;
use crate::child::Running;
use crate::os;
use crate::process::{self, WakeUps};
use crate::stats::Samples;
use crate::table::{Figure, Measured, number};

pub(crate) const REST: Group = Group {
    name: "rest",
    about: "memory, processor and wake-ups, linked and idle",
    figures: &[
        Figure {
            name: "PSS, linked and idle",
            unit: "MB",
            published: Some(62.0),
        },
        Figure::new("anonymous memory, linked and idle", "MB"),
        Figure {
            name: "processor, idle",
            unit: "% of a core",
            published: Some(0.32),
        },
        Figure {
            name: "wake-ups, idle",
            unit: "1/s",
            published: Some(53.0),
        },
    ],
    measure: rest,
};

pub(crate) const KEEPER: Group = Group {
    name: "keeper",
    about: "memory of the root helper beside the agent, where no service manager holds its socket",
    figures: &[
        Figure::new("PSS of the root helper at rest", "MB"),
        Figure::new("anonymous memory of the root helper at rest", "MB"),
    ],
    measure: keeper,
};

pub(crate) const PEAK: Group = Group {
    name: "peak",
    about: "the largest resident memory of all groups that ran",
    figures: &[Figure::new("VmHWM after everything", "MB")],
    measure: peak,
};

/// 250 ms: threads of a blocking pool live for longer, so that none is missed.
const LOOK: Duration = Duration::from_millis(250);

/// 60 s: it waits ten seconds for another request, on a busy machine.
const KEEPER_LIMIT: Duration = Duration::from_secs(60);

fn rest(bench: &mut Bench) -> Results {
    all(bench, |bench| {
        os::pause(bench.options.settle);
        let mut pids = Vec::new();
        for agent in &mut bench.agents {
            pids.push(agent.pid()?);
        }
        let start = os::now();
        let mut watches = Vec::new();
        for pid in pids {
            watches.push(Watch::start(pid)?);
        }
        while os::since(start) < bench.options.idle {
            os::pause(LOOK);
            for watch in &mut watches {
                watch.look()?;
            }
        }
        let seconds = os::since(start).as_secs_f64();
        watches
            .into_iter()
            .map(|watch| watch.end(seconds))
            .collect()
    })
}

/// One process over a time in which it should do nothing.
#[derive(Debug)]
struct Watch {
    pid: u32,
    cpu: Duration,
    wake_ups: WakeUps,
    pss: Vec<f64>,
    anonymous: Vec<f64>,
    looks: u32,
}

impl Watch {
    fn start(pid: u32) -> Result<Self, String> {
        Ok(Self {
            pid,
            cpu: process::cpu_time(pid)?,
            wake_ups: WakeUps::start(pid),
            pss: vec![process::pss_mb(pid)?],
            anonymous: vec![process::anonymous_mb(pid)?],
            looks: 0,
        })
    }

    fn look(&mut self) -> Result<(), String> {
        self.wake_ups.look(self.pid);
        self.looks = self.looks.wrapping_add(1);
        // Every 5 s: the kernel walks the whole address space for it.
        if self.looks.is_multiple_of(20) {
            self.pss.push(process::pss_mb(self.pid)?);
            self.anonymous.push(process::anonymous_mb(self.pid)?);
        }
        Ok(())
    }

    fn end(self, seconds: f64) -> Result<Vec<Measured>, String> {
        let cpu = process::cpu_time(self.pid)?.saturating_sub(self.cpu);
        let pss = Samples::of(self.pss);
        let anonymous = Samples::of(self.anonymous);
        let files = process::pss_of_files_mb(self.pid)?;
        let voluntary = os::float(self.wake_ups.voluntary()) / seconds;
        let forced = os::float(self.wake_ups.forced()) / seconds;
        Ok(vec![
            Measured::new(
                pss.median(),
                format!("{} of files; {}", number(files), pss.spread()),
            ),
            Measured::new(anonymous.median(), anonymous.spread()),
            Measured::new(
                cpu.as_secs_f64() / seconds * 100.0,
                format!("{:.1} ms in {seconds:.0} s", cpu.as_secs_f64() * 1e3),
            ),
            Measured::new(voluntary, format!("and {forced:.1} forced by others")),
        ])
    }
}

fn keeper(bench: &mut Bench) -> Results {
    vec![(Kind::Ours, keeper_at_rest(bench))]
}

fn keeper_at_rest(bench: &mut Bench) -> Result<Vec<Measured>, String> {
    let ours = bench
        .agents
        .iter_mut()
        .find(|agent| agent.kind == Kind::Ours);
    let agent = ours.ok_or("it does not run")?;
    // Both have the pages of the program that both use.
    agent.pid()?;
    let socket = agent.dir.join("keeper/keeper.sock");
    let mut command = os::program(&agent.binary);
    command
        .arg("keeper")
        .env_clear()
        .env("PIPEOPS_KEEPER_SOCKET", &socket)
        .env("PIPEOPS_KEEPER_STATE_DIR", agent.dir.join("keeper-state"))
        .env("PIPEOPS_KEEPER_USER", "nobody")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut running = Running::start("the root helper", &mut command)?;
    let pid = running.pid();
    within_limit(&mut running, "listen", || {
        UnixStream::connect(&socket).is_ok()
    })?;
    ask(&socket).map_err(|error| format!("the root helper does not answer: {error}"))?;
    let after_request = process::pss_mb(pid)?;
    within_limit(&mut running, "rest", || process::thread_count(pid) == 1)?;
    Ok(vec![
        Measured::new(
            process::pss_mb(pid)?,
            format!("{} after a request", number(after_request)),
        ),
        Measured::new(process::anonymous_mb(pid)?, ""),
    ])
}

/// One request that changes nothing.
fn ask(socket: &Path) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(KEEPER_LIMIT))?;
    stream.write_all(b"{\"verb\":\"changes\"}\n")?;
    BufReader::new(stream).read_line(&mut String::new())?;
    Ok(())
}

fn within_limit(
    running: &mut Running,
    what: &str,
    mut level: impl FnMut() -> bool,
) -> Result<(), String> {
    let start = os::now();
    while !level() {
        running.check()?;
        if os::since(start) > KEEPER_LIMIT {
            return Err(format!("the root helper does not {what}"));
        }
        os::pause(Duration::from_millis(50));
    }
    Ok(())
}

fn peak(bench: &mut Bench) -> Results {
    each(bench, |_, _, agent| {
        let now = process::peak_mb(agent.pid()?)?;
        agent.note_peak(now);
        Ok(vec![Measured::new(agent.peak_mb, "")])
    })
}
