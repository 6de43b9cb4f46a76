//! Commands that run for a long time: what they print line by line, their terminal, and how they
//! end.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::agent::{SOON, clock, command, until};

/// A command that prints for a long time, line by line. Dropping it kills it.
pub(crate) struct Running {
    pub(crate) child: Child,
    lines: Receiver<String>,
}

impl Running {
    #[expect(
        clippy::disallowed_methods,
        reason = "a reader for each long-running command; it ends with its pipe"
    )]
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let outputs: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().unwrap()),
            Box::new(child.stderr.take().unwrap()),
        ];
        for output in outputs {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Self { child, lines }
    }

    /// The same on a terminal of its own, whose name is returned too.
    pub(crate) fn on_terminal(command: &Command, rows: u16, columns: u16) -> (Self, String) {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<String> = words
            .map(|word| format!("'{}'", word.to_str().unwrap().replace('\'', r"'\''")))
            .collect();
        let script = format!(
            "tty; stty rows {rows} cols {columns}; exec {}",
            words.join(" ")
        );
        let mut terminal = crate::agent::command("script");
        terminal.args(["-qefc", &script, "/dev/null"]);
        for (name, value) in command.get_envs() {
            terminal.env(name, value.unwrap());
        }
        let running = Self::start(terminal);
        let name = running.line("the name of the terminal", |line| line.contains("/dev/"));
        (running, name.trim().to_owned())
    }

    /// The next line that is it.
    pub(crate) fn line(&self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        let deadline = clock() + SOON;
        let mut others = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(clock());
            match self.lines.recv_timeout(left) {
                Ok(line) if is_it(&line) => return line,
                Ok(line) => others.push(line),
                Err(error) => panic!("{what}: {error} after {others:?}"),
            }
        }
    }

    /// What else it printed, once it has ended.
    pub(crate) fn rest(&self) -> String {
        let lines: Vec<String> = self.lines.iter().collect();
        lines.join("\n")
    }

    /// Types something.
    pub(crate) fn say(&mut self, text: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        input.flush().unwrap();
    }

    /// Ctrl-C.
    pub(crate) fn interrupt(&self) {
        let id = i32::try_from(self.child.id()).unwrap();
        kill(Pid::from_raw(id), Signal::SIGINT).unwrap();
    }

    /// The user sees an end.
    pub(crate) fn ends(&mut self, limit: Duration) -> ExitStatus {
        wait(&mut self.child, limit)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Waits for the end of a command. One that does not end is killed, so that nobody waits for its
/// pipes for ever.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> ExitStatus {
    let deadline = clock() + limit;
    until("the command ends, or is late", 2 * limit, || {
        let ended = child.try_wait().unwrap();
        if ended.is_none() && clock() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the command did not end within {limit:?}");
        }
        ended
    })
}

/// Changes the size of a terminal, as a window does that is dragged.
pub(crate) fn resize(terminal: &str, rows: u16, columns: u16) {
    let (rows, columns) = (rows.to_string(), columns.to_string());
    let stty = ["-F", terminal, "rows", &rows, "cols", &columns];
    assert!(command("stty").args(stty).status().unwrap().success());
}
