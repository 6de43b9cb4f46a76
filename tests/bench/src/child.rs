//! A program that the bench started, and ends.

use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::os;

/// Ends with its owner: asked first, killed when it does not listen.
#[derive(Debug)]
pub(crate) struct Running {
    name: &'static str,
    child: Child,
}

/// 5 s: how long a program may take to end when asked to.
const END_LIMIT: Duration = Duration::from_secs(5);

impl Running {
    pub(crate) fn start(name: &'static str, command: &mut Command) -> Result<Self, String> {
        let child = command
            .spawn()
            .map_err(|error| format!("cannot start {name}: {error}"))?;
        Ok(Self { name, child })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard input and output, when they were made pipes.
    pub(crate) fn pipes(&mut self) -> Result<(ChildStdin, ChildStdout), String> {
        let pipes = (self.child.stdin.take(), self.child.stdout.take());
        let (Some(input), Some(output)) = pipes else {
            return Err(format!("{} has no pipes", self.name));
        };
        Ok((input, output))
    }

    /// Its standard output, when it was made a pipe.
    pub(crate) fn output(&mut self) -> Result<ChildStdout, String> {
        let output = self.child.stdout.take();
        output.ok_or_else(|| format!("{} has no pipe", self.name))
    }

    /// Its exit status, once it has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, String> {
        let ended = self.child.try_wait();
        ended.map_err(|error| format!("{} is lost: {error}", self.name))
    }

    /// An error once it has ended by itself.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => Err(format!("{} ended: {status}", self.name)),
        }
    }

    fn end(&mut self) {
        if self.check().is_err() {
            return;
        }
        if let Ok(id) = i32::try_from(self.child.id()) {
            // It may have ended since the look; then nothing is left to do.
            kill(Pid::from_raw(id), Signal::SIGTERM).unwrap_or_default();
        }
        let start = os::now();
        while os::since(start) < END_LIMIT {
            if self.check().is_err() {
                return;
            }
            os::pause(Duration::from_millis(5));
        }
        os::progress(&format!(
            "{} did not end when asked to, and is killed",
            self.name
        ));
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_ends_with_its_owner() {
        let mut command = os::program("sleep");
        let mut running = Running::start("sleep", command.arg("600")).unwrap();
        running.check().unwrap();
        let path = format!("/proc/{}", running.pid());
        assert!(std::path::Path::new(&path).exists());
        drop(running);
        assert!(!std::path::Path::new(&path).exists());
    }

    #[test]
    fn a_program_that_ended_by_itself_is_noticed() {
        let mut running = Running::start("true", &mut os::program("true")).unwrap();
        let start = os::now();
        while running.check().is_ok() {
            assert!(os::since(start) < END_LIMIT);
            os::pause(Duration::from_millis(1));
        }
        assert!(running.check().unwrap_err().contains("true ended"));
    }
}
