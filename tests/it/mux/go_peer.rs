//! hashicorp/yamux 0.1.2 as the peer: the program in tests/mux-peer, over TCP.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

use pipeops_agent::core::yamux::{Load, MuxLimits};
use smol::net::TcpListener;

use super::bench::{Agent, Peak, run};

/// Builds the peer once. `None` where there is no Go: then these tests say so and prove nothing.
#[expect(
    clippy::disallowed_methods,
    reason = "a test runs the compiler of its peer"
)]
fn peer() -> Option<&'static PathBuf> {
    static PEER: OnceLock<Option<PathBuf>> = OnceLock::new();
    PEER.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mux-peer");
        let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("mux-peer");
        let built = Command::new("go")
            .args(["build", "-buildvcs=false", "-o"])
            .arg(&program)
            .arg(".")
            .current_dir(source)
            .status();
        match built {
            Ok(status) => {
                assert!(status.success(), "tests/mux-peer does not build");
                Some(program)
            }
            Err(error) => {
                println!("skipped: go is not installed ({error})");
                None
            }
        }
    })
    .as_ref()
}

/// Ends the peer when the test ends, however that is.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the peer is a program of its own"
)]
fn start(program: &PathBuf, address: &str, arguments: &[&str]) -> Running {
    let child = Command::new(program)
        .arg(address)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    Running(child.unwrap())
}

/// Lets the peer do what the arguments say; what was left after all streams had ended, and the most
/// there was.
fn with_peer(arguments: &[&str]) -> Option<(Load, Peak)> {
    with_peer_and(MuxLimits::default(), arguments)
}

fn with_peer_and(settings: MuxLimits, arguments: &[&str]) -> Option<(Load, Peak)> {
    let program = peer()?;
    Some(run(async |executor| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut running = start(program, &address, arguments);
        let (socket, _) = listener.accept().await.unwrap();
        socket.set_nodelay(true).unwrap();
        let agent = Agent::start(&executor, socket, settings);
        let mut output = BufReader::new(running.0.stdout.take().unwrap());
        let said = pipeops_agent::executor::unblock(move || {
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            line
        })
        .await;
        assert!(said.starts_with("ok "), "the peer said {said:?}");
        println!("{arguments:?}: {} ms, {:?}", said.trim(), agent.mux.load());
        // The streams that never end by themselves end with the session.
        drop(running);
        let load = agent.until_empty().await;
        (load, *agent.peak.borrow())
    }))
}

#[test]
fn bytes_come_back_from_one_stream_as_they_were_sent() {
    let Some((load, _)) = with_peer(&["echo", "1", "67108864"]) else {
        return;
    };
    assert_eq!((load.refused, load.cut), (0, 0));
}

#[test]
fn downloads_share_the_link_and_all_come_to_their_end() {
    let Some((load, peak)) = with_peer(&["download", "8", "33554432"]) else {
        return;
    };
    assert_eq!((load.refused, load.cut), (0, 0));
    assert!(peak.outgoing_bytes <= 4 << 20, "{peak:?}");
}

#[test]
fn two_hundred_streams_at_once_are_not_mixed_up() {
    let settings = MuxLimits {
        streams_max: 256,
        ..MuxLimits::default()
    };
    let Some((load, peak)) = with_peer_and(settings, &["echo", "200", "40000"]) else {
        return;
    };
    assert_eq!((load.refused, load.cut), (0, 0), "{peak:?}");
}

#[test]
fn as_many_streams_as_fit_into_memory_move_megabytes_each() {
    // 30 windows of 256 KiB are less than 8 MiB: none of them may be cut, however fast the peer is.
    let Some((load, peak)) = with_peer(&["echo", "30", "2097152"]) else {
        return;
    };
    assert_eq!((load.refused, load.cut), (0, 0), "{peak:?}");
    assert!(peak.buffered_bytes <= 8 << 20, "{peak:?}");
}

#[test]
fn ten_thousand_openings_end_neither_the_session_nor_the_others() {
    let Some((load, peak)) = with_peer(&["flood", "10000"]) else {
        return;
    };
    assert_eq!(load.streams, 0);
    assert!(peak.streams <= 128 && peak.tasks <= 256, "{peak:?}");
    assert!(peak.outgoing_bytes <= 8 << 20, "{peak:?}");
}

#[test]
fn streams_that_the_peer_never_reads_hold_up_nobody_else() {
    let Some((_, peak)) = with_peer(&["unread", "100", "67108864"]) else {
        return;
    };
    assert!(peak.outgoing_bytes <= 8 << 20, "{peak:?}");
}

#[test]
fn streams_that_nobody_here_reads_are_reset_before_memory_runs_out() {
    let Some((load, peak)) = with_peer(&["stall", "60", "1048576"]) else {
        return;
    };
    assert!(peak.buffered_bytes <= 8 << 20, "{peak:?}");
    assert!(load.cut >= 28, "32 windows fit into 8 MiB: {load:?}");
}

#[test]
fn a_dropped_stream_is_a_reset_for_the_peer() {
    assert!(with_peer(&["abort", "50"]).is_none_or(|(load, _)| load.streams == 0));
}

#[test]
fn a_peer_that_goes_away_still_gets_what_is_running() {
    let Some((load, _)) = with_peer(&["goaway", "1", "33554432"]) else {
        return;
    };
    assert_eq!(load.cut, 0);
}
