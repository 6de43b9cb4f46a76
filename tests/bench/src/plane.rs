//! A reference control plane in a process of its own, told over its standard input what to do.
//!
//! Each agent has its own, so that they share nothing but the cluster.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use plane::{Acknowledging, Cut, Frame, Mode, Options, Plane, Role, SessionInfo, Sessions, View};
use serde::{Deserialize, Serialize};

use crate::child::Running;
use crate::os;

/// The argument that makes the bench's own program such a process.
pub(crate) const ARGUMENT: &str = "plane-process";

/// What can be asked of the process; one line of JSON each, answered by one line.
#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    /// The link's address, once an agent is linked.
    Linked { limit_ms: u64 },
    /// Answers in one message, or in pieces.
    Mode { is_buffered: bool },
    /// Resets the connection and waits until the agent is linked again.
    Reset { limit_ms: u64 },
    /// Waits until no agent is linked.
    Gone { limit_ms: u64 },
    /// Pings one after the other over a link of this speed, and takes records meanwhile.
    Pings { count: u32, bytes_per_s: u32 },
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Done,
    Linked {
        url: String,
        token: String,
    },
    Again {
        ms: f64,
    },
    /// Each ping until its pong, and how many met a batch of records on the way.
    Pongs {
        ms: Vec<f64>,
        behind: u32,
    },
    Late,
}

/// Runs as the process: until standard input ends, which it does when the bench does.
pub(crate) fn run(dir: &Path) -> Result<(), String> {
    let mut plane = Plane::start(Options {
        state_dir: Some(dir.to_owned()),
        // Frames are for tests to look at; here they would only cost time.
        record_frames_max: 64,
        ..Options::default()
    })
    .map_err(|error| error.to_string())?;
    // What a slow reader has not read yet waits in the control plane: the JSON form can hold it
    // back only together with all the rest.
    plane.set(|behaviour| behaviour.spool_bytes_max = 2 << 30);
    reply(&Answer::Done)?;
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let ask = serde_json::from_str(&line).map_err(|error| format!("{line}: {error}"))?;
        reply(&act(&mut plane, &ask))?;
    }
    Ok(())
}

fn reply(answer: &Answer) -> Result<(), String> {
    let text = serde_json::to_string(answer).map_err(|error| error.to_string())?;
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|error| error.to_string())
}

fn act(plane: &mut Plane, ask: &Ask) -> Answer {
    match ask {
        Ask::Mode { is_buffered } => {
            let mode = if *is_buffered {
                Mode::Buffered
            } else {
                Mode::Streaming
            };
            plane.set(|behaviour| behaviour.mode = mode);
            Answer::Done
        }
        Ask::Linked { limit_ms } => {
            let limit = Duration::from_millis(*limit_ms);
            let linked = plane.until(limit, |view| linked(view, 0));
            linked
                .and_then(|session| session.cluster_id)
                .map_or(Answer::Late, |cluster| Answer::Linked {
                    url: plane.cluster_url(&cluster),
                    token: plane.user_token().to_owned(),
                })
        }
        Ask::Reset { limit_ms } => {
            let last = plane.look(|view| linked(view, 0).map_or(0, |session| session.number));
            let last = last.unwrap_or_default();
            let start = os::now();
            plane.cut(Sessions::All, Cut::Reset);
            let limit = Duration::from_millis(*limit_ms);
            let again = plane.until(limit, move |view| linked(view, last.saturating_add(1)));
            let ms = os::since(start).as_secs_f64() * 1e3;
            again.map_or(Answer::Late, |_| Answer::Again { ms })
        }
        Ask::Gone { limit_ms } => {
            let gone = plane.wait_gone(Duration::from_millis(*limit_ms));
            gone.map_or(Answer::Late, |()| Answer::Done)
        }
        Ask::Pings { count, bytes_per_s } => pings(plane, *count, *bytes_per_s),
    }
}

/// So that the next batch is not there at once: what a receiver takes that syncs to a disk.
const ACKNOWLEDGED_AFTER: Duration = Duration::from_millis(30);
const PONG_LIMIT: Duration = Duration::from_secs(30);

fn pings(plane: &mut Plane, count: u32, bytes_per_s: u32) -> Answer {
    plane.set(|behaviour| {
        behaviour.acknowledging = Acknowledging::After(ACKNOWLEDGED_AFTER);
    });
    plane.cut(Sessions::All, Cut::Slow(bytes_per_s));
    let (mut ms, mut behind) = (Vec::new(), 0_u32);
    for number in 0..count {
        let Some((wait, has_met)) = ping(plane, format!("ping-{number}")) else {
            return Answer::Late;
        };
        ms.push(wait.as_secs_f64() * 1e3);
        behind = behind.saturating_add(u32::from(has_met));
    }
    plane.cut(Sessions::All, Cut::Heal);
    Answer::Pongs { ms, behind }
}

/// How long a pong takes, and whether a batch came before it.
fn ping(plane: &Plane, id: String) -> Option<(Duration, bool)> {
    let mark = plane.mark();
    plane.ping(Some(&id));
    let pong = plane.wait_for(mark, PONG_LIMIT, move |frame| {
        frame.is_from_agent("pong") && frame.id == id
    })?;
    let since = plane.frames().into_iter();
    let since = since.filter(|frame| frame.number >= mark && frame.number < pong.number);
    let since: Vec<Frame> = since.collect();
    let sent = since.iter().find(|frame| frame.kind == "ping")?;
    let has_met = since.iter().any(|frame| frame.is_from_agent("edge_batch"));
    Some((pong.at.saturating_sub(sent.at), has_met))
}

/// A session at the gateway that requests can go over, with this number or a later one.
fn linked(view: &View<'_>, first: u64) -> Option<SessionInfo> {
    let fits = |session: &&SessionInfo| {
        session.is_ready && session.role == Role::Gateway && session.number >= first
    };
    view.sessions.iter().rev().find(fits).cloned()
}

/// The process, as the bench sees it.
#[derive(Debug)]
pub(crate) struct PlaneProcess {
    dir: PathBuf,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
    _process: Running,
}

/// Where a linked cluster's API is, and the token that it wants.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) url: String,
    pub(crate) token: String,
}

impl PlaneProcess {
    /// Starts one with its state in this directory.
    pub(crate) fn start(dir: &Path) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| format!("who am I: {error}"))?;
        let mut command = os::program(own);
        command
            .arg(ARGUMENT)
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = Running::start("the control plane", &mut command)?;
        let (asks, answers) = process.pipes()?;
        let mut plane = Self {
            dir: dir.to_owned(),
            asks,
            answers: BufReader::new(answers),
            _process: process,
        };
        plane.answer()?;
        Ok(plane)
    }

    fn ask(&mut self, ask: &Ask) -> Result<Answer, String> {
        let text = serde_json::to_string(ask).map_err(|error| error.to_string())?;
        writeln!(self.asks, "{text}")
            .map_err(|error| format!("the control plane hears nothing: {error}"))?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Answer, String> {
        let mut line = String::new();
        self.answers
            .read_line(&mut line)
            .map_err(|error| format!("the control plane says nothing: {error}"))?;
        serde_json::from_str(&line).map_err(|error| format!("the control plane ended: {error}"))
    }

    /// A file that the plane wrote: `ca.pem`, `token`, `api_url`.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Its content.
    pub(crate) fn text(&self, name: &str) -> Result<String, String> {
        let path = self.file(name);
        std::fs::read_to_string(&path)
            .map(|text| text.trim().to_owned())
            .map_err(|error| format!("cannot read {}: {error}", path.display()))
    }

    /// Waits until an agent is linked.
    pub(crate) fn linked(&mut self, limit: Duration) -> Result<Link, String> {
        match self.ask(&Ask::Linked {
            limit_ms: ms(limit),
        })? {
            Answer::Linked { url, token } => Ok(Link { url, token }),
            other @ (Answer::Done | Answer::Again { .. } | Answer::Pongs { .. } | Answer::Late) => {
                Err(format!("no agent is linked after {limit:?} ({other:?})"))
            }
        }
    }

    /// From now on answers are asked for whole, or in pieces.
    pub(crate) fn mode(&mut self, mode: Mode) -> Result<(), String> {
        let is_buffered = mode == Mode::Buffered;
        self.ask(&Ask::Mode { is_buffered }).map(drop)
    }

    /// Resets the link; gives the ms until it is there again.
    pub(crate) fn reset(&mut self, limit: Duration) -> Result<f64, String> {
        match self.ask(&Ask::Reset {
            limit_ms: ms(limit),
        })? {
            Answer::Again { ms } => Ok(ms),
            other
            @ (Answer::Done | Answer::Linked { .. } | Answer::Pongs { .. } | Answer::Late) => {
                Err(format!("not linked again after {limit:?} ({other:?})"))
            }
        }
    }

    /// The ms of so many pings while records are delivered, and how many of them met a batch.
    pub(crate) fn pings(
        &mut self,
        count: u32,
        bytes_per_s: u32,
    ) -> Result<(Vec<f64>, u32), String> {
        match self.ask(&Ask::Pings { count, bytes_per_s })? {
            Answer::Pongs { ms, behind } => Ok((ms, behind)),
            other
            @ (Answer::Done | Answer::Linked { .. } | Answer::Again { .. } | Answer::Late) => {
                Err(format!("a ping was not answered ({other:?})"))
            }
        }
    }

    /// Waits until no agent is linked.
    pub(crate) fn gone(&mut self, limit: Duration) -> Result<(), String> {
        match self.ask(&Ask::Gone {
            limit_ms: ms(limit),
        })? {
            Answer::Done => Ok(()),
            other @ (Answer::Linked { .. }
            | Answer::Again { .. }
            | Answer::Pongs { .. }
            | Answer::Late) => Err(format!("still linked after {limit:?} ({other:?})")),
        }
    }
}

fn ms(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)
}
