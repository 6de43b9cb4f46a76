//! The link breaks in the middle of everything: whoever waits for something sees an error, and
//! nothing is left in the agent.

use std::{net::TcpStream, path::PathBuf, process::Command, time::Duration};

use plane::{Cut, Sessions};

use super::{
    bench::{Bench, Form, Upgrade},
    forward::forward,
    running::Running,
};
use crate::agent::{SOON, until};

/// A cut must show to the user within a minute.
const CUT_SHOWS_WITHIN: Duration = Duration::from_secs(60);
/// How long the control plane believes in a connection that says nothing, once it has become
/// silent.
const SILENCE: Duration = Duration::from_secs(5);

/// All queues, windows and buffers of what runs here, with room for a program that is not
/// optimised.
const MEMORY_MORE_KB_MAX: u64 = 10_000;

/// How it shows that something has come.
enum Shown {
    /// A line of the server that begins so. What kubectl itself says may come before it is
    /// connected.
    Line(&'static str),
    File(PathBuf),
    /// It only sends.
    Not,
}

/// Something under way.
struct Under {
    what: String,
    running: Running,
    shown: Shown,
}

impl Under {
    /// Nobody has met its end before the cut.
    fn still_runs(&mut self) {
        let what = &self.what;
        if let Some(status) = self.running.child.try_wait().unwrap() {
            panic!(
                "{what} ended before the cut: {status}: {}",
                self.running.rest()
            );
        }
    }

    /// Waits until something has come.
    fn flows(&self) {
        let what = &self.what;
        match &self.shown {
            Shown::Line(begin) => drop(self.running.line(what, |line| line.starts_with(begin))),
            Shown::File(file) => until(what, SOON, || {
                let length = std::fs::metadata(file).map_or(0, |file| file.len());
                (length > 0).then_some(())
            }),
            Shown::Not => {}
        }
    }
}

const PLACE: &str = "/api/v1/namespaces/fixtures";

/// Starts all that a form carries.
fn start(bench: &Bench, form: Form) -> Vec<Under> {
    let second = *Upgrade::of(form).last().unwrap();
    let kubectl = |words: &[&str]| second.on(bench.kubectl(&[words, &["-n", "fixtures"]].concat()));
    let service = |path: &str| format!("{PLACE}/services/echo:80/proxy{path}");
    let mut under = Vec::new();
    let mut begin = |what: &str, command: Command, shown: Shown| {
        under.push(Under {
            what: format!("{what} by {form:?}"),
            running: Running::start(command),
            shown,
        });
    };
    begin(
        "kubectl's watch",
        kubectl(&["get", "configmaps", "-w"]),
        Shown::Line("NAME "),
    );
    let watch = bench.curl(&["-N"], &format!("{PLACE}/configmaps?watch=true"));
    begin("curl's watch", watch, Shown::Line("{\"type\":"));
    begin(
        "a followed log",
        kubectl(&["logs", "-f", "logger"]),
        Shown::Line("line "),
    );
    let attach = bench.kubectl(&["attach", "logger", "-n", "fixtures"]);
    begin(
        "attach",
        Upgrade::WebSocket.on(attach),
        Shown::Line("line "),
    );
    let attach = kubectl(&["attach", "logger"]);
    begin("the other attach", attach, Shown::Line("line "));
    let sleep = [
        "exec",
        "shell",
        "-n",
        "fixtures",
        "--",
        "sh",
        "-c",
        "echo here; sleep 600",
    ];
    begin(
        "exec",
        Upgrade::WebSocket.on(bench.kubectl(&sleep)),
        Shown::Line("here"),
    );
    let drip = bench.curl(&["-N"], &service("/drip?n=100000&ms=20"));
    begin("a slow server's answer", drip, Shown::Line("drip "));
    // A slow reader of messages holds up the whole session.
    if form == Form::Streams {
        for (what, more) in [("a download", ""), ("one of unknown length", "&chunked=1")] {
            let file = bench.agent.folder().join(format!("download{more}"));
            // That of the cut before.
            std::fs::remove_file(&file).ok();
            let path = service(&format!("/bytes?n=4000000000{more}"));
            let slow = ["--limit-rate", "5M", "-o", file.to_str().unwrap()];
            begin(what, bench.curl(&slow, &path), Shown::File(file));
        }
        let slow = [
            "--fail",
            "-X",
            "POST",
            "-T",
            "/dev/zero",
            "--limit-rate",
            "1M",
        ];
        begin("an upload", bench.curl(&slow, &service("/")), Shown::Not);
    }
    under.iter().for_each(Under::flows);
    under
}

/// An idle connection to the API server stays for up to a minute (`kube/pool.rs`): calls at
/// the same time leave several.
const IDLE_AT_MOST: Duration = Duration::from_secs(75);

#[test]
fn every_kind_of_cut_is_an_error_for_all_that_runs_and_leaks_nothing() {
    let Some(mut bench) = Bench::calm() else {
        return;
    };
    bench.text(&["get", "pods", "-n", "fixtures"]);
    bench.nothing_is_left();
    let (before, memory_kb) = (bench.descriptors(), bench.memory_peak_kb());
    for cut in [
        Cut::Reset,
        Cut::Fin,
        Cut::Close(1012, "restart".to_owned()),
        Cut::BlackHole,
    ] {
        let mut under = Vec::new();
        bench.use_form(Form::Streams);
        let (mut forward, port) = forward(bench.kubectl(&[]));
        let mut connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
        under.extend(start(&bench, Form::Streams));
        bench.use_form(Form::Json);
        under.extend(start(&bench, Form::Json));
        let count = u64::try_from(under.len()).unwrap() + 1;
        bench.agent.until("everything runs", SOON, |status| {
            under.iter_mut().for_each(Under::still_runs);
            (status["load"]["exchanges"] == count).then_some(())
        });
        echo(&mut connection);
        bench.plane.cut(Sessions::All, cut.clone());
        if cut == Cut::BlackHole {
            bench.plane.set(|behaviour| behaviour.silence_max = SILENCE);
        }
        for Under { what, running, .. } in &mut under {
            let status = running.ends(CUT_SHOWS_WITHIN);
            // To kubectl any end of a watch is a good one, and so is any end by SPDY; straight at
            // the API server too.
            let is_good = ["kubectl's watch", "the other attach"];
            let is_told = !status.success() || is_good.iter().any(|good| what.starts_with(good));
            assert!(is_told, "{cut:?}: {what}: {status}");
        }
        assert_eq!(forward.ends(CUT_SHOWS_WITHIN).code(), Some(1), "{cut:?}");
        bench
            .plane
            .set(|behaviour| behaviour.silence_max = Duration::from_secs(45));
        until("kubectl works again", CUT_SHOWS_WITHIN, || {
            let pods = bench.run(&["get", "pods", "-n", "fixtures", "--request-timeout=5s"]);
            String::from_utf8_lossy(&pods.stdout)
                .contains("shell")
                .then_some(())
        });
        bench.nothing_is_left();
        until("no descriptor is left", IDLE_AT_MOST, || {
            (bench.descriptors() <= before + 2).then_some(())
        });
        let more_kb = bench.memory_peak_kb() - memory_kb;
        println!("{cut:?}: {more_kb} kB more than at the start, at most");
        assert!(more_kb <= MEMORY_MORE_KB_MAX, "{cut:?}: {more_kb}");
    }
}

/// The connection carries something.
fn echo(connection: &mut TcpStream) {
    use std::io::{Read, Write};
    connection.set_read_timeout(Some(SOON)).unwrap();
    connection.write_all(b"here").unwrap();
    let mut heard = [0; 4];
    connection.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"here");
}
