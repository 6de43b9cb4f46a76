//! `kubectl port-forward`: connections to a port of a Pod, through everything that lies between.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    process::Command,
};

use ring::digest::{Context, Digest, SHA256};

use super::{
    bench::{Bench, Form, Upgrade},
    running::Running,
};
use crate::agent::SOON;

/// Both ways at once.
const LARGE: usize = 100_000_000;

/// A forward to the echo server's port for bytes, and the local port.
pub(super) fn forward(mut kubectl: Command) -> (Running, u16) {
    // So that it says when it falls back to another protocol.
    kubectl.args([
        "-v=4",
        "port-forward",
        "-n",
        "fixtures",
        "--address=127.0.0.1",
    ]);
    kubectl.args(["deployment/echo", ":7007"]);
    let forward = Running::start(kubectl);
    let line = forward.line("the local port", |line| line.starts_with("Forwarding"));
    let port = line.split([':', ' ']).find_map(|word| word.parse().ok());
    (forward, port.unwrap())
}

/// Sends so many bytes, none of them like those of another `seed`, and reads them back. Both
/// hashes.
///
/// The way there is closed when everything has come back: containerd ends a forward half a second
/// after either direction has ended, whatever is still on its way in the other.
fn echoed(port: u16, bytes: usize, seed: u64) -> (Digest, Digest) {
    let mut reader = TcpStream::connect(("127.0.0.1", port)).unwrap();
    reader.set_read_timeout(Some(SOON)).unwrap();
    reader.set_write_timeout(Some(SOON)).unwrap();
    let mut writer = reader.try_clone().unwrap();
    std::thread::scope(|scope| {
        let sent = scope.spawn(move || {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut hash, mut left) = (Context::new(&SHA256), bytes);
            let mut block = vec![0; 64 * 1024];
            while left > 0 {
                random.fill(&mut block);
                let piece = &block[..left.min(block.len())];
                writer.write_all(piece).unwrap();
                hash.update(piece);
                left -= piece.len();
            }
            hash.finish()
        });
        let (mut hash, mut block) = (Context::new(&SHA256), vec![0; 64 * 1024]);
        let mut heard = 0;
        loop {
            let count = reader.read(&mut block).unwrap();
            if count == 0 {
                break;
            }
            hash.update(&block[..count]);
            heard += count;
            if heard == bytes {
                reader.shutdown(Shutdown::Write).unwrap();
            }
        }
        (sent.join().unwrap(), hash.finish())
    })
}

#[test]
fn port_forward_carries_a_hundred_megabytes_both_ways() {
    let Some(mut bench) = Bench::calm() else {
        return;
    };
    bench.use_form(Form::Streams);
    for (seed, upgrade) in (0..).zip(Upgrade::of(Form::Streams)) {
        let (mut running, port) = forward(upgrade.on(bench.kubectl(&[])));
        let (sent, heard) = echoed(port, LARGE, seed);
        assert_eq!(sent.as_ref(), heard.as_ref(), "{upgrade:?}");
        // Several at once on one forward, each its own.
        std::thread::scope(|scope| {
            for connection in 0..5 {
                scope.spawn(move || {
                    let (sent, heard) = echoed(port, 1_000_000, 100 + connection);
                    assert_eq!(sent.as_ref(), heard.as_ref(), "{upgrade:?}");
                });
            }
        });
        running.interrupt();
        running.ends(SOON);
        let said = running.rest();
        assert!(!said.contains("allback"), "{upgrade:?}: {said}");
    }
    bench.nothing_is_left();
}

#[test]
fn messages_say_that_they_carry_no_port_forward() {
    let Some(mut bench) = Bench::calm() else {
        return;
    };
    bench.use_form(Form::Json);
    let words = ["port-forward", "-n", "fixtures", "pod/shell", ":7007"];
    let mut running = Running::start(bench.kubectl(&words));
    running.line("the reason", |line| {
        line.contains("port-forward cannot be carried as messages")
    });
    assert_eq!(running.ends(SOON).code(), Some(1));
}
