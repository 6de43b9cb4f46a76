//! Commands that go on and commands that ask, against a running agent: in a pipe, at a terminal,
//! when the agent is killed, when nobody reads any more, and with names that are meant to harm.

mod cluster;
mod terminal;

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    os::unix::{
        net::{UnixListener, UnixStream},
        process::ExitStatusExt,
    },
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use plane::Plane;
use serde_json::{Value, json};

use crate::agent::{Agent, SOON, command, until};

/// A command that goes on, and what it has printed.
struct Running {
    child: Child,
    folder: tempfile::TempDir,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| File::create_new(folder.path().join(name)).unwrap();
        let child = command
            .stdout(file("out"))
            .stderr(file("err"))
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What is on its standard output so far.
    fn out(&self) -> String {
        String::from_utf8(std::fs::read(self.file("out")).unwrap()).unwrap()
    }

    fn err(&self) -> String {
        std::fs::read_to_string(self.file("err")).unwrap()
    }

    fn until_out(&self, what: &str) {
        until(&format!("{what:?} is printed"), SOON, || {
            self.out().contains(what).then_some(())
        });
    }

    fn until_err(&self, what: &str) {
        until(&format!("{what:?} is said"), SOON, || {
            self.err().contains(what).then_some(())
        });
    }

    /// Every line of its output, each of which is one object.
    fn objects(&self) -> Vec<Value> {
        let out = self.out();
        let lines = out.lines().map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<Value> = lines.collect();
        assert!(lines.iter().all(Value::is_object), "{out}");
        lines
    }

    fn signal(&self, signal: Signal) {
        kill(
            Pid::from_raw(i32::try_from(self.child.id()).unwrap()),
            signal,
        )
        .unwrap();
    }

    fn end(&mut self) -> ExitStatus {
        until("the command ends", SOON, || self.child.try_wait().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            eprintln!("--- output\n{}\n--- errors\n{}", self.out(), self.err());
        }
    }
}

fn switch(agent: &Agent, level: &str) {
    let body = json!({ "level": level }).to_string();
    let (code, told) = agent.post("/api/v1/access", &body);
    assert_eq!(code, 200, "{told}");
}

#[test]
fn lines_go_on_through_a_killed_agent_each_of_them_once() {
    let plane = Plane::start(plane::Options::default()).unwrap();
    let mut agent = Agent::start_for(&plane);
    agent.until_linked();
    let follow = |words: &[&str]| Running::start(agent.command(words));
    let mut lines = follow(&["logs", "-f", "--json", "--tail", "3"]);
    let plain = follow(&["logs", "-f", "--tail", "1"]);
    let events = follow(&["events", "-f", "--json"]);
    // Both go on from here.
    lines.until_out("\"text\":");
    plain.until_out("\n");
    switch(&agent, "off");
    for running in [&lines, &plain] {
        running.until_out("access full -> off");
    }
    agent.kill();
    for running in [&lines, &plain, &events] {
        running.until_err("waiting for the agent");
    }
    agent.start();
    agent.until_linked();
    switch(&agent, "full");
    for running in [&lines, &plain] {
        running.until_out("access off -> full");
        // Also what was said before anybody was there to hear it.
        running.until_out("pipeops-agent 0.1.0 starts");
        let errors = running.err();
        assert_eq!(errors.matches("waiting").count(), 1, "{errors}");
    }
    let told = lines.objects();
    for (index, line) in told.iter().enumerate() {
        assert!(!told[..index].contains(line), "twice: {line}");
    }
    assert!(!plain.out().contains('\u{1b}'), "{}", plain.out());

    plane.cut(plane::Sessions::All, plane::Cut::Reset);
    events.until_out("\"reason\":\"link.lost\"");
    let told = events.objects();
    for (index, event) in told.iter().enumerate() {
        assert!(!told[..index].contains(event), "twice: {event}");
    }
    // ctrl-C: a shell makes 130 of it.
    lines.signal(Signal::SIGINT);
    assert_eq!(lines.end().signal(), Some(2));
    assert_eq!(lines.err().matches("error").count(), 0, "{}", lines.err());
}

/// The numbers of lines begin again with each agent.
#[test]
fn lines_go_on_where_an_agent_ended_before_its_first_message() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let words = ["logs", "-f", "--socket", socket.to_str().unwrap()];
    let mut program = command(env!("CARGO_BIN_EXE_pipeops-agent"));
    program.args(words);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut agents = 0;
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut first = String::new();
                reader.read_line(&mut first).unwrap();
                let mut line = first.clone();
                while !line.trim().is_empty() {
                    line.clear();
                    reader.read_line(&mut line).unwrap();
                }
                let answer = if first.contains("/stream") {
                    // It ends right after its head.
                    agents += 1;
                    "retry: 1000\n\n".to_owned()
                } else if first.contains("/logs") {
                    let (id, text) = if agents < 2 { (9, "old") } else { (1, "new") };
                    json!({"lines": [{"id": id, "level": "info", "text": text}]}).to_string()
                } else {
                    return;
                };
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
                stream.write_all(format!("{head}{answer}").as_bytes()).ok();
            }
        });
        let lines = Running::start(program);
        let found = || lines.out().contains("new").then_some(());
        // The stand-in has to end where the line does not come, too.
        let found = std::panic::catch_unwind(|| until("the line of the second agent", SOON, found));
        let mut end = UnixStream::connect(&socket).unwrap();
        end.write_all(b"end\r\n\r\n").unwrap();
        found.unwrap();
        assert_eq!(lines.out().matches("old").count(), 1, "{}", lines.out());
    });
}

#[test]
fn what_goes_on_ends_quietly_when_nobody_reads_any_more() {
    let plane = Plane::start(plane::Options::default()).unwrap();
    let agent = Agent::start_for(&plane);
    agent.until_linked();
    plane.cut(plane::Sessions::All, plane::Cut::Reset);
    agent.until("an event", SOON, |_| {
        let events = agent.view("/api/v1/events");
        (!events["events"].as_array()?.is_empty()).then_some(())
    });
    for words in [
        &["logs", "-f"][..],
        &["events", "-f"],
        &["status", "--watch"],
        &["status", "--watch", "--json"],
    ] {
        let mut child = agent
            .command(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut head = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        head.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "{words:?}: {line}");
        drop(head);
        // Nothing has to happen for it to notice.
        until("the command ends", SOON, || child.try_wait().unwrap());
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(0), "{words:?}");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(said, "", "{words:?}");
    }
}

#[test]
fn a_status_that_is_watched_in_a_pipe_is_a_line_a_change() {
    let plane = Plane::start(plane::Options::default()).unwrap();
    let mut agent = Agent::start_for(&plane);
    agent.until_linked();
    let watch = Running::start(agent.command(&["status", "--watch"]));
    let objects = Running::start(agent.command(&["status", "-w", "--json"]));
    watch.until_out("link connected");
    objects.until_out("\"summary\"");
    agent.kill();
    watch.until_out("he agent is not running");
    objects.until_out("\"error\"");
    agent.start();
    agent.until_linked();
    until("it is told once more", SOON, || {
        (watch.out().matches("link connected").count() == 2).then_some(())
    });
    let told = watch.out();
    let lines: Vec<_> = told
        .lines()
        .map(|line| line.split_once(' ').unwrap().1)
        .collect();
    assert!(lines.windows(2).all(|pair| pair[0] != pair[1]), "{told}");
    assert!(!told.contains('\u{1b}'), "{told}");
    objects.objects();
}
