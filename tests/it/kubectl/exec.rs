//! Commands in a container: their input, both outputs, their exit code, their terminal.

use std::{
    io::{Read, Write},
    process::{Command, Output, Stdio},
    time::Duration,
};

use super::{
    bench::{Bench, Form, Upgrade},
    running::{Running, resize, wait},
};
use crate::agent::SOON;

/// More than all windows and queues on the way hold together.
const LARGE: usize = 20_000_000;
/// For all of it, on a machine with other things to do.
const LARGE_WITHIN: Duration = Duration::from_secs(180);
/// What a queue without back-pressure takes before the command has read it.
const SMALL: usize = 200_000;

/// `kubectl exec` of this command in the fixture's shell.
fn words<'a>(options: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    let head = ["exec", "-n", "fixtures"];
    [&head, options, &["shell", "--"], command].concat()
}

/// Runs a command with this input, and lets it end with a last newline once so many bytes of its
/// output are here. kubectl itself may lose the end of what a command writes right before it ends
/// (kubernetes/kubernetes#124571), also without an agent between.
fn fed(mut command: Command, input: &[u8], bytes: u64) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let (mut stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (heard, all_is_heard) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A command that ends early shows in its exit code.
            stdin.write_all(input).ok();
            if all_is_heard.recv().is_ok() {
                stdin.write_all(b"\n").ok();
            }
        });
        let stdout = scope.spawn(move || {
            let mut data = all((&mut stdout).take(bytes));
            heard.send(()).unwrap();
            data.extend(all(stdout));
            data
        });
        let stderr = scope.spawn(|| all(stderr));
        let status = wait(&mut child, LARGE_WITHIN);
        Output {
            status,
            stdout: stdout.join().unwrap(),
            stderr: stderr.join().unwrap(),
        }
    })
}

fn all(mut from: impl Read) -> Vec<u8> {
    let mut data = Vec::new();
    from.read_to_end(&mut data).unwrap();
    data
}

pub(super) fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect()
}

#[test]
fn exec_carries_both_outputs_exit_codes_large_data_and_terminals() {
    let Some(mut bench) = Bench::calm() else {
        return;
    };
    bench.in_both_forms(|bench, form| {
        does_not_fall_back(bench);
        for upgrade in Upgrade::of(form) {
            let exec = Exec {
                bench,
                form,
                upgrade: *upgrade,
            };
            exec.keeps_both_outputs_and_every_exit_code();
            exec.carries_large_data_both_ways();
            exec.on_a_terminal_sees_its_size_and_every_change_of_it();
        }
    });
}

/// With a WebSocket kubectl would fall back to SPDY, and the other cases would not show it.
fn does_not_fall_back(bench: &Bench) {
    let words = [&["-v=6"], &words(&[], &["true"])[..]].concat();
    let output = Upgrade::WebSocket.on(bench.kubectl(&words)).output();
    let said = String::from_utf8_lossy(&output.unwrap().stderr).into_owned();
    assert!(said.contains("101") && !said.contains("allback"), "{said}");
}

/// One way of exec.
struct Exec<'a> {
    bench: &'a Bench,
    form: Form,
    upgrade: Upgrade,
}

impl Exec<'_> {
    fn kubectl(&self, options: &[&str], command: &[&str]) -> Command {
        self.upgrade
            .on(self.bench.kubectl(&words(options, command)))
    }

    fn keeps_both_outputs_and_every_exit_code(&self) {
        let Self { form, upgrade, .. } = self;
        for code in [0, 1, 3, 137] {
            let script = format!("echo out; echo err >&2; exit {code}");
            let output = self.kubectl(&[], &["sh", "-c", &script]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let complained = String::from_utf8_lossy(&output.stderr).into_owned();
            let what = format!("{form:?} {upgrade:?}: {said:?} {complained:?}");
            assert_eq!(output.status.code(), Some(code), "{what}");
            let is_apart = said == "out\n" && complained.starts_with("err\n");
            // The messages have no word for which output it was.
            let is_mixed = said.contains("out\n") && said.contains("err\n");
            assert!(
                if *form == Form::Json {
                    is_mixed
                } else {
                    is_apart
                },
                "{what}"
            );
        }
    }

    fn carries_large_data_both_ways(&self) {
        let Self { form, upgrade, .. } = self;
        let input = pattern(match form {
            Form::Streams => LARGE,
            Form::Json => SMALL,
        });
        let script = format!("head -c {}; read answer", input.len());
        let carried = |script: &str, input: &[u8], bytes: usize| {
            let exec = self.kubectl(&["-i"], &["sh", "-c", script]);
            let heard = fed(exec, input, u64::try_from(bytes).unwrap());
            let why = String::from_utf8_lossy(&heard.stderr).into_owned();
            let length = heard.stdout.len();
            let what = format!("{form:?} {upgrade:?}: {length} of {bytes}: {why}");
            assert!(heard.status.success() && length == bytes, "{what}");
            heard.stdout
        };
        assert!(carried(&script, &input, input.len()) == input);
        // 9 numbers of one digit, 90 of two, and so on, each with its newline.
        let numbers = carried("seq 2000000; read answer", b"", 14_888_896);
        assert!(numbers.ends_with(b"\n1999999\n2000000\n"));
    }

    fn on_a_terminal_sees_its_size_and_every_change_of_it(&self) {
        // The size comes after the start, so it is looked for.
        let script = "until [ \"$(stty size)\" = '33 101' ]; do sleep 0.1; done; echo first; \
                      until [ \"$(stty size)\" = '50 132' ]; do sleep 0.1; done; echo second; \
                      read answer; echo \"it is $answer\"; exit 5";
        let shell = self.kubectl(&["-it"], &["sh", "-c", script]);
        let (mut shell, terminal) = Running::on_terminal(&shell, 33, 101);
        shell.line("the first size", |line| line.contains("first"));
        resize(&terminal, 50, 132);
        shell.line("the second size", |line| line.contains("second"));
        shell.say("heard\n");
        shell.line("what was typed", |line| line.contains("it is heard"));
        let Self { form, upgrade, .. } = self;
        assert_eq!(shell.ends(SOON).code(), Some(5), "{form:?} {upgrade:?}");
    }
}
