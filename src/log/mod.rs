//! The logger: journald priorities, timestamps on a terminal, or JSON lines.
//!
//! It writes to standard error and never waits long for it: a reader that stalls loses lines, which
//! are counted and told when it reads again. The last lines are remembered for local viewers
//! whatever becomes of the stream. What dependencies say is cut at `warn`: their lower levels print
//! headers, in which tokens stand.

use std::{
    collections::VecDeque,
    io::{self, Write},
    os::fd::AsFd,
    sync::{Arc, MutexGuard, OnceLock, PoisonError},
};

use log::{Level, LevelFilter, Metadata, Record};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{
    core::{format::is_unprintable, time::Wall},
    error::{Error, Result},
};

// The lock of the logger: `log::Log` must be `Sync`, and the lines come from every thread.
#[expect(clippy::disallowed_types, reason = "log::Log is shared by all threads")]
type Lock<T> = std::sync::Mutex<T>;

/// Format of log lines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    /// Time, level, message.
    Plain,
    /// `<N>` with the priority of syslog(3), without time: journald adds its own.
    Journal,
    /// One object a line with `time`, `level`, `target` and `message`.
    Json,
}

/// Form of the log.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// Format of log lines.
    pub format: Format,
    /// The least important lines that are written.
    pub level: LevelFilter,
}

/// A remembered line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Line {
    /// Time when it was written.
    pub at: Wall,
    /// Level of importance.
    pub level: Level,
    /// Message, on one line.
    pub message: String,
}

/// The last lines, for local viewers. Clones share the same memory.
#[derive(Clone, Debug, Default)]
pub struct Recent(Arc<Lock<Memory>>);

#[derive(Debug, Default)]
struct Memory {
    lines: VecDeque<Line>,
    /// Lines in all, those that are not remembered any more among them.
    written: u64,
    bytes: usize,
}

// A screen or two of lines; 200 lines are 20 KB in practice and never more than this.
const LINES_MAX: usize = 200;
const BYTES_MAX: usize = 64 * 1024;
// A pipe that poll(2) calls writable takes PIPE_BUF bytes without waiting; longer lines could
// block.
const LINE_BYTES_MAX: usize = 4096;
// How long a reader may hold up the whole program for one line.
const PATIENCE_MS: u16 = 20;

impl Recent {
    /// The remembered lines after the first so many, with how many there were in all.
    pub fn lines_after(&self, seen: u64) -> (Vec<Line>, u64) {
        let memory = lock_unpoisoned(&self.0);
        let new = usize::try_from(memory.written.saturating_sub(seen)).unwrap_or(usize::MAX);
        let old = memory.lines.len().saturating_sub(new);
        (
            memory.lines.iter().skip(old).cloned().collect(),
            memory.written,
        )
    }

    fn remember(&self, line: Line) {
        let mut memory = lock_unpoisoned(&self.0);
        memory.written += 1;
        memory.bytes += line.message.len();
        memory.lines.push_back(line);
        while memory.lines.len() > LINES_MAX || memory.bytes > BYTES_MAX {
            let Some(oldest) = memory.lines.pop_front() else {
                return;
            };
            memory.bytes -= oldest.message.len();
        }
    }
}

/// Locks, ignoring poisoning: a line of a thread that panicked is still a line.
fn lock_unpoisoned<T>(lock: &Lock<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receiver of log lines.
trait Sink: Send {
    /// Writes a whole line, or says that the reader is not ready within this patience.
    fn write_line(&mut self, line: &[u8], patience_ms: u16) -> io::Result<()>;
}

struct StandardError;

impl Sink for StandardError {
    fn write_line(&mut self, line: &[u8], patience_ms: u16) -> io::Result<()> {
        let stream = io::stderr();
        let mut wanted = [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)];
        if poll(&mut wanted, PollTimeout::from(patience_ms))? == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        stream.lock().write_all(line)
    }
}

struct Stream {
    sink: Box<dyn Sink>,
    lost_lines: u64,
}

struct Logger {
    form: Lock<Form>,
    clock: fn() -> Wall,
    stream: Lock<Stream>,
    recent: Recent,
}

static LOGGER: OnceLock<Logger> = OnceLock::new();

/// Starts the logger of this process; a second call is an error. `clock` stamps the lines.
pub fn install(form: Form, clock: fn() -> Wall) -> Result<Recent> {
    let recent = Recent::default();
    let logger = Logger::new(form, clock, Box::new(StandardError), recent.clone());
    log::set_logger(LOGGER.get_or_init(|| logger))
        .map_err(|taken| Error::new("cannot start the log").why(taken.to_string()))?;
    log::set_max_level(form.level);
    Ok(recent)
}

/// Reconfigures the logger of this process: the settings were read.
pub fn reconfigure(form: Form) {
    if let Some(logger) = LOGGER.get() {
        logger.take_form(form);
        log::set_max_level(form.level);
    }
}

/// Returns whether standard error is the journal: systemd names the device and inode of the stream
/// that it made.
pub fn is_journal(journal_stream: Option<&str>) -> bool {
    let Some((device, inode)) = journal_stream.and_then(|text| text.split_once(':')) else {
        return false;
    };
    nix::sys::stat::fstat(io::stderr())
        .is_ok_and(|facts| facts.st_dev.to_string() == device && facts.st_ino.to_string() == inode)
}

impl Logger {
    fn new(form: Form, clock: fn() -> Wall, sink: Box<dyn Sink>, recent: Recent) -> Self {
        Self {
            form: Lock::new(form),
            clock,
            stream: Lock::new(Stream {
                sink,
                lost_lines: 0,
            }),
            recent,
        }
    }

    fn take_form(&self, form: Form) {
        *lock_unpoisoned(&self.form) = form;
    }

    fn line(&self, at: Wall, level: Level, target: &str, message: &str) -> String {
        let format = lock_unpoisoned(&self.form).format;
        let mut line = match format {
            Format::Plain => format!("{} {:5} {message}", at.rfc3339(), as_str(level)),
            Format::Journal => format!("<{}>{message}", priority(level)),
            Format::Json => serde_json::json!({
                "time": at.rfc3339(),
                "level": as_str(level),
                "target": target,
                "message": message,
            })
            .to_string(),
        };
        line.push('\n');
        line
    }
}

impl log::Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_ours = metadata.target().starts_with("pipeops_agent");
        metadata.level() <= lock_unpoisoned(&self.form).level
            && (is_ours || metadata.level() <= Level::Warn)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let (at, level) = ((self.clock)(), record.level());
        let message = one_line(&record.args().to_string());
        let line = self.line(at, level, record.target(), &message);
        self.recent.remember(Line { at, level, message });
        let mut stream = lock_unpoisoned(&self.stream);
        if stream.lost_lines > 0 {
            let lost = format!(
                "the log could not be written for a time: lines={}",
                stream.lost_lines
            );
            let notice = self.line(at, Level::Warn, "pipeops_agent::log", &lost);
            // A reader that stalled once is not waited for again until it reads.
            if stream.sink.write_line(notice.as_bytes(), 0).is_err() {
                stream.lost_lines += 1;
                return;
            }
            stream.lost_lines = 0;
        }
        match stream.sink.write_line(line.as_bytes(), PATIENCE_MS) {
            Ok(()) => {}
            // Nobody reads any more: no reason to stop, and none to count.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(_) => stream.lost_lines += 1,
        }
    }

    fn flush(&self) {}
}

fn as_str(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    }
}

/// The priorities of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

/// The message without line ends and control characters, which could forge lines or command the
/// terminal, and not too long.
fn one_line(text: &str) -> String {
    // Room for the time, the level and the JSON around it.
    const MESSAGE_BYTES_MAX: usize = LINE_BYTES_MAX - 256;
    let mut line = String::with_capacity(text.len());
    for c in text.trim_end().chars() {
        let before = line.len();
        match c {
            '\n' => line.push_str("\\n"),
            '\t' => line.push_str("\\t"),
            '\r' => line.push_str("\\r"),
            c if is_unprintable(c) => line.push_str(&c.escape_unicode().to_string()),
            c => line.push(c),
        }
        if line.len() > MESSAGE_BYTES_MAX {
            line.truncate(before);
            line.push('…');
            break;
        }
    }
    line
}

#[cfg(test)]
mod tests;
