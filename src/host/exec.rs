//! Runs other programs: by argument list and never through a shell, with a deadline, a cap on
//! output, and an environment that reveals nothing about the caller.

use std::{
    io::{ErrorKind, Read},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{fs::PermissionsExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use crate::{
    core::time::in_words,
    error::{Error, Result, Retry},
    host::clock,
};

/// Directories of system programs. Those of users are not among them.
const FOLDERS: [&str; 4] = ["usr/sbin", "usr/bin", "sbin", "bin"];
/// Interval between checks on a silent program.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The same once it has closed both streams: it is about to end.
const POLL_INTERVAL_AT_END: Duration = Duration::from_millis(5);
/// Number of tries of a program whose file is being written, and the milliseconds between two of
/// them.
const BUSY_TRIES: u32 = 50;
const BUSY_REST: u8 = 20;

/// Limits of a program.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// It is killed after that, with all that it started.
    pub within: Duration,
    /// Bytes kept of each of its two streams; the rest is read and dropped.
    pub output_bytes_max: usize,
}

impl Limits {
    /// For a program that answers and ends.
    pub const SHORT: Self = Self {
        within: Duration::from_secs(10),
        output_bytes_max: 64 * 1024,
    };
}

/// Output of a program that ended, and how it ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProcessOutput {
    /// Its exit code; `None` where a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// True if there was more output than is kept.
    pub is_truncated: bool,
}

impl ProcessOutput {
    /// Returns whether it exited with code 0.
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }
}

/// Reason why a program has no output.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ProcessError {
    /// It did not end in time and was killed.
    TimedOut(Error),
    /// It is not there, could not be started, or was killed for another reason.
    Failed(Error),
}

impl From<Error> for ProcessError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<ProcessError> for Error {
    fn from(error: ProcessError) -> Self {
        match error {
            ProcessError::TimedOut(error) | ProcessError::Failed(error) => error,
        }
    }
}

/// The program of that name below `root`, which is `/` or a tree that stands for it. An absolute
/// path is one program of this machine; a tree has a program of its own in the place of it, so that
/// what is written for a machine never runs on another.
pub fn find(root: &Path, name: &str) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        let found = std::fs::metadata(path);
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if name.starts_with('/') && root == Path::new("/") {
        return Some(PathBuf::from(name)).filter(is_program);
    }
    let name = name.rsplit('/').next().unwrap_or(name);
    let mut candidates = FOLDERS.iter().map(|folder| root.join(folder).join(name));
    candidates.find(is_program)
}

/// Options of a program that needs more than its arguments.
pub struct ProcessOptions<'a> {
    /// Variables, in addition to the few that every program gets.
    pub variables: &'a [(&'a str, &'a str)],
    /// Working directory.
    pub folder: &'a Path,
    /// Looks every now and then at what it does; a reason ends it.
    pub guard: &'a dyn Fn() -> Option<String>,
}

impl std::fmt::Debug for ProcessOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Variables may be secret.
        f.debug_tuple("ProcessOptions").field(&self.folder).finish()
    }
}

/// Runs the program of that name below `root` to its end, or to its deadline. An error says that it
/// is not there, could not be started or did not end; how it ended is for the caller to judge. It
/// blocks.
pub fn run(root: &Path, argv: &[&str], limits: Limits) -> Result<ProcessOutput> {
    let nothing = ProcessOptions {
        variables: &[],
        folder: Path::new("/"),
        guard: &|| None,
    };
    Ok(run_with(root, argv, limits, &nothing)?)
}

/// Runs a program as [`run`] does, with these options.
pub fn run_with(
    root: &Path,
    argv: &[&str],
    limits: Limits,
    options: &ProcessOptions<'_>,
) -> std::result::Result<ProcessOutput, ProcessError> {
    let what = || format!("cannot run {:?}", argv.join(" "));
    let Some((name, arguments)) = argv.split_first() else {
        return Err(Error::new("there is no program to run").into());
    };
    let program = find(root, name).ok_or_else(|| {
        Error::new(what())
            .why(format!("there is no program {name} on this machine"))
            .fix(format!("install what has {name}"))
    })?;
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that starts programs"
    )]
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs([
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            ("LC_ALL", "C"),
            ("HOME", "/"),
        ])
        .envs(options.variables.iter().copied())
        .current_dir(options.folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A group of its own, so that a deadline ends what it started too.
        .process_group(0);
    let mut child = start(&mut command)
        .map_err(|error| Error::new(what()).because(&error).retry(Retry::Soon))?;
    let mut streams = [
        CapturedStream::new(child.stdout.take(), limits.output_bytes_max),
        CapturedStream::new(child.stderr.take(), limits.output_bytes_max),
    ];
    let code = match follow(&mut child, &mut streams, limits.within, options.guard) {
        Ok(Followed::Ended(status)) => status.code(),
        Ok(Followed::TimedOut) => {
            kill_group(&mut child);
            let why = format!("it did not end within {}", in_words(limits.within));
            let error = Error::new(what()).why(why).retry(Retry::Later);
            return Err(ProcessError::TimedOut(error));
        }
        Ok(Followed::Stopped(why)) => {
            kill_group(&mut child);
            return Err(Error::new(what()).why(why).retry(Retry::Later).into());
        }
        Err(error) => {
            kill_group(&mut child);
            return Err(Error::new(what()).because(&error).retry(Retry::Soon).into());
        }
    };
    let is_truncated = streams.first().is_some_and(|stdout| stdout.is_truncated);
    let [stdout, stderr] = streams.map(CapturedStream::text);
    Ok(ProcessOutput {
        code,
        stdout,
        stderr,
        is_truncated,
    })
}

/// Runs this program once more from its beginning, in the place of this process: with the same
/// arguments, and this standard input. It returns only where that fails.
pub fn again(input: OwnedFd) -> std::io::Error {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let mut words = std::env::args_os();
    words.next();
    #[expect(
        clippy::disallowed_methods,
        reason = "it starts no other program, so there is none to limit"
    )]
    let mut command = Command::new(program);
    command.args(words).stdin(input).exec()
}

/// Starts it; where somebody is just writing its file, as a package that is updated does, a moment
/// later.
fn start(command: &mut Command) -> std::io::Result<Child> {
    for _ in 0..BUSY_TRIES {
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                poll(&mut [], BUSY_REST).map_err(std::io::Error::from)?;
            }
            started => return started,
        }
    }
    command.spawn()
}

enum Followed {
    Ended(ExitStatus),
    TimedOut,
    /// It has to be ended, for this reason.
    Stopped(String),
}

/// Reads the output until the program has ended, or there is a reason to end it.
fn follow(
    child: &mut Child,
    streams: &mut [CapturedStream; 2],
    within: Duration,
    guard: &dyn Fn() -> Option<String>,
) -> std::io::Result<Followed> {
    let deadline = clock::now().mono.after(within);
    loop {
        let left = deadline.since(clock::now().mono);
        if left.is_zero() {
            return Ok(Followed::TimedOut);
        }
        if let Some(why) = guard() {
            return Ok(Followed::Stopped(why));
        }
        let is_silent = streams.iter().all(|stream| stream.pipe.is_none());
        let pause = if is_silent {
            POLL_INTERVAL_AT_END
        } else {
            POLL_INTERVAL
        };
        read_available(streams, left.min(pause))?;
        if let Some(status) = child.try_wait()? {
            // What it said before its end is still in the pipes; what its children say later is of
            // no interest.
            while read_available(streams, Duration::ZERO)? {}
            return Ok(Followed::Ended(status));
        }
    }
}

/// Reads available output once; returns whether there was any.
fn read_available(streams: &mut [CapturedStream; 2], wait: Duration) -> std::io::Result<bool> {
    let wait = PollTimeout::try_from(wait).unwrap_or(PollTimeout::ZERO);
    let is_ready = {
        let mut waited: Vec<_> = streams
            .iter()
            .filter_map(|stream| Some(PollFd::new(stream.as_fd()?, PollFlags::POLLIN)))
            .collect();
        poll(&mut waited, wait).map_err(std::io::Error::from)?;
        let mut ready = waited.iter().map(|one| one.any().unwrap_or(false));
        streams
            .each_ref()
            .map(|stream| stream.pipe.is_some() && ready.next().unwrap_or(false))
    };
    for (stream, is_ready) in streams.iter_mut().zip(is_ready) {
        if is_ready {
            stream.read()?;
        }
    }
    Ok(is_ready.contains(&true))
}

fn kill_group(child: &mut Child) {
    if let Ok(id) = i32::try_from(child.id()) {
        // It may have ended by itself in the meantime.
        let _gone = killpg(Pid::from_raw(id), Signal::SIGKILL).is_err();
    }
    drop(child.wait());
}

/// One of the two streams of a program.
struct CapturedStream {
    pipe: Option<Box<dyn Pipe>>,
    bytes: Vec<u8>,
    bytes_max: usize,
    is_truncated: bool,
}

trait Pipe: Read + AsFd {}

impl<T: Read + AsFd> Pipe for T {}

impl CapturedStream {
    fn new(pipe: Option<impl Read + AsFd + 'static>, bytes_max: usize) -> Self {
        Self {
            pipe: pipe.map(|pipe| -> Box<dyn Pipe> { Box::new(pipe) }),
            bytes: Vec::new(),
            bytes_max,
            is_truncated: false,
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(|pipe| pipe.as_fd())
    }

    fn read(&mut self) -> std::io::Result<()> {
        let Some(pipe) = &mut self.pipe else {
            return Ok(());
        };
        let mut piece = [0; 4096];
        match pipe.read(&mut piece) {
            Ok(0) => self.pipe = None,
            Ok(length) => {
                let room = self.bytes_max.saturating_sub(self.bytes.len());
                let kept = piece.get(..length.min(room)).unwrap_or_default();
                self.bytes.extend_from_slice(kept);
                self.is_truncated |= length > room;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn text(self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "/";

    fn limits(within_ms: u64, output_bytes_max: usize) -> Limits {
        Limits {
            within: Duration::from_millis(within_ms),
            output_bytes_max,
        }
    }

    #[test]
    fn a_program_is_heard_to_its_end_and_knows_nothing_of_us() {
        let ended = run(Path::new(ROOT), &["env"], Limits::SHORT).unwrap();
        assert!(ended.success());
        assert_eq!(
            ended.stdout,
            "HOME=/\nLC_ALL=C\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\n"
        );
        let argv = ["sh", "-c", "echo out; echo bad >&2; exit 3"];
        let ended = run(Path::new(ROOT), &argv, Limits::SHORT).unwrap();
        assert_eq!(ended.code, Some(3));
        assert_eq!((&*ended.stdout, &*ended.stderr), ("out\n", "bad\n"));
    }

    #[test]
    fn a_guard_ends_a_program_in_its_surroundings() {
        let folder = tempfile::tempdir().unwrap();
        let options = ProcessOptions {
            variables: &[("WORD", "seen"), ("HOME", "/nowhere")],
            folder: folder.path(),
            guard: &|| {
                let said = std::fs::read_to_string(folder.path().join("said")).unwrap_or_default();
                (said == "seen /nowhere\n").then(|| "it said enough".to_owned())
            },
        };
        let argv = ["sh", "-c", "echo $WORD $HOME > said; sleep 600"];
        let error = run_with(Path::new(ROOT), &argv, limits(60_000, 1000), &options);
        let ProcessError::Failed(error) = error.unwrap_err() else {
            panic!("it did not time out");
        };
        assert_eq!(error.why, ["it said enough"]);
        assert!(!format!("{options:?}").contains("seen"));
    }

    #[test]
    fn what_says_too_much_is_cut_and_ends_all_the_same() {
        let argv = ["head", "-c", "3000000", "/dev/zero"];
        let ended = run(Path::new(ROOT), &argv, limits(60_000, 1000)).unwrap();
        assert!(ended.success() && ended.is_truncated);
        assert_eq!(ended.stdout.len(), 1000);
        let argv = ["head", "-c", "1000", "/dev/zero"];
        let ended = run(Path::new(ROOT), &argv, limits(60_000, 1000)).unwrap();
        assert!(ended.stdout.len() == 1000 && !ended.is_truncated);
    }

    #[test]
    fn the_deadline_ends_a_program_and_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", pid.display());
        let argv = ["sh", "-c", &script];
        let options = ProcessOptions {
            variables: &[],
            folder: Path::new("/"),
            guard: &|| None,
        };
        let ended = run_with(Path::new(ROOT), &argv, limits(1500, 1000), &options);
        let ProcessError::TimedOut(error) = ended.unwrap_err() else {
            panic!("it timed out");
        };
        assert!(error.sentence().contains("did not end within"), "{error}");
        let pid = std::fs::read_to_string(pid).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        // Gone, or dead and not yet taken off by init: the kernel takes a moment for it.
        let is_over = || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z"));
        for _ in 0..1_000 {
            if is_over() {
                return;
            }
            poll(&mut [], 10_u8).unwrap();
        }
        panic!("what it started goes on");
    }

    #[test]
    fn a_child_that_outlives_its_program_is_not_waited_for() {
        let argv = ["sh", "-c", "sleep 20 & echo done"];
        let before = clock::now().mono;
        let ended = run(Path::new(ROOT), &argv, limits(60_000, 1000)).unwrap();
        assert_eq!(ended.stdout, "done\n");
        assert!(clock::now().mono.since(before) < Duration::from_secs(15));
    }

    #[test]
    fn a_program_that_is_just_being_written_is_started_when_it_is_whole() {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("usr/bin/thing");
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        crate::files::replace(&program, b"#!/bin/sh\necho whole\n", 0o755).unwrap();
        let writer = std::fs::File::options()
            .append(true)
            .open(&program)
            .unwrap();
        let written = crate::executor::unblock(move || {
            poll(&mut [], 200_u8).unwrap();
            drop(writer);
        });
        let ended = run(root.path(), &["thing"], Limits::SHORT).unwrap();
        assert_eq!(ended.stdout, "whole\n");
        smol::block_on(written);
    }

    #[test]
    fn only_programs_of_the_system_are_found() {
        assert!(find(Path::new(ROOT), "sh").is_some());
        assert_eq!(find(Path::new("/nowhere"), "sh"), None);
        assert_eq!(find(Path::new(ROOT), "no-such-program"), None);
        let error = run(Path::new(ROOT), &["no-such-program"], Limits::SHORT).unwrap_err();
        assert!(error.fix.is_some());
    }
}
