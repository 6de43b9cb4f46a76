//! The `yamux` crate as the peer, over a socket pair.

use std::{future::poll_fn, io, pin::pin, rc::Rc, task::Poll};

use pipeops_agent::{core::yamux::MuxLimits, executor::Executor};
use smol::{
    Task,
    channel::{Receiver, Sender, bounded},
    future::zip,
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::UnixStream,
    stream::Stream as _,
};
use yamux::{Config, Connection, Mode, Stream};

use super::bench::{Agent, run};

/// The gateway's side of a session.
pub(crate) struct Peer {
    wanted: Sender<Sender<Stream>>,
    _task: Task<()>,
}

impl Peer {
    pub(crate) fn start(executor: &Executor, socket: UnixStream) -> Self {
        let mut config = Config::default();
        config.set_max_num_streams(1024);
        config.set_max_connection_receive_window(None);
        let connection = Connection::new(socket, config, Mode::Server);
        let (wanted, requests) = bounded(1024);
        Self {
            wanted,
            _task: executor.spawn(drive(connection, requests)),
        }
    }

    pub(crate) async fn open(&self, first: &[u8]) -> Stream {
        let (given, stream) = bounded(1);
        self.wanted.send(given).await.unwrap();
        let mut stream = stream.recv().await.unwrap();
        stream.write_all(first).await.unwrap();
        stream.flush().await.unwrap();
        stream
    }
}

async fn drive(mut connection: Connection<UnixStream>, requests: Receiver<Sender<Stream>>) {
    let mut requests = pin!(requests);
    let mut opening: Option<Sender<Stream>> = None;
    poll_fn(|context| {
        loop {
            if opening.is_none()
                && let Poll::Ready(Some(next)) = requests.as_mut().poll_next(context)
            {
                opening = Some(next);
            }
            if let Some(given) = &opening
                && let Poll::Ready(stream) = connection.poll_new_outbound(context)
            {
                given.try_send(stream.unwrap()).unwrap();
                opening = None;
                continue;
            }
            return match connection.poll_next_inbound(context) {
                Poll::Ready(Some(Ok(stream))) => panic!("the agent opened {stream}"),
                Poll::Ready(Some(Err(_)) | None) => Poll::Ready(()),
                Poll::Pending => Poll::Pending,
            };
        }
    })
    .await;
}

pub(super) fn pair(executor: &Rc<Executor>) -> (Agent, Peer) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (
        Agent::start(executor, ours, MuxLimits::default()),
        Peer::start(executor, theirs),
    )
}

/// Sends `length` bytes in which every place is different, half-closes, and compares what comes
/// back.
async fn echo(peer: &Peer, seed: u64, length: usize) {
    let (mut read, mut write) = smol::io::split(peer.open(b"E").await);
    let sent = async {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut block = vec![0; 50_000];
        let mut left = length;
        while left > 0 {
            let part = left.min(block.len());
            random.fill(&mut block[..part]);
            write.write_all(&block[..part]).await.unwrap();
            left -= part;
        }
        write.close().await.unwrap();
    };
    let compared = async {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut expected = vec![0; 50_000];
        let mut block = vec![0; 50_000];
        let mut left = length;
        while left > 0 {
            let part = left.min(block.len());
            random.fill(&mut expected[..part]);
            read.read_exact(&mut block[..part]).await.unwrap();
            assert!(
                block[..part] == expected[..part],
                "seed {seed}: other bytes"
            );
            left -= part;
        }
        assert_eq!(read.read(&mut block).await.unwrap(), 0);
    };
    zip(sent, compared).await;
}

#[test]
fn bytes_come_back_from_one_stream_as_they_were_sent() {
    run(async |executor| {
        let (agent, peer) = pair(&executor);
        for length in [0, 1, 262_144, 262_145, 32 << 20] {
            echo(&peer, 7, length).await;
        }
        assert_eq!(agent.until_empty().await.cut, 0);
    });
}

#[test]
fn a_hundred_streams_at_once_are_not_mixed_up() {
    run(async |executor| {
        let (agent, peer) = pair(&executor);
        let peer = Rc::new(peer);
        let echoes: Vec<Task<()>> = (0..100)
            .map(|seed| {
                let peer = Rc::clone(&peer);
                executor.spawn(async move { echo(&peer, seed, 600_000).await })
            })
            .collect();
        for echo in echoes {
            echo.await;
        }
        let load = agent.until_empty().await;
        assert_eq!((load.refused, load.cut), (0, 0));
    });
}

#[test]
fn a_stream_too_many_is_refused_and_the_session_goes_on() {
    run(async |executor| {
        let (agent, peer) = pair(&executor);
        let mut held = Vec::new();
        for _ in 0..128 {
            held.push(peer.open(b"N").await);
        }
        let mut refused = peer.open(b"E").await;
        let end = refused.read(&mut [0; 8]).await;
        assert!(matches!(end, Ok(0)) || end.is_err(), "{end:?}");
        assert_eq!(agent.mux.load().refused, 1);
        held.clear();
        // The peer tells that they are gone when it comes to it, perhaps after the next one is
        // opened.
        agent.until_empty().await;
        echo(&peer, 1, 100_000).await;
    });
}

#[test]
fn a_stream_that_the_peer_drops_is_dropped_here() {
    run(async |executor| {
        let (agent, peer) = pair(&executor);
        for _ in 0..200 {
            let mut stream = peer.open(b"S\0\0\0\0\xff\xff\xff\xff").await;
            stream.read_exact(&mut [0; 1000]).await.unwrap();
            drop(stream);
        }
        agent.until_empty().await;
        echo(&peer, 1, 100_000).await;
    });
}

#[test]
fn a_stream_that_is_dropped_here_ends_for_the_peer() {
    run(async |executor| {
        let (_agent, peer) = pair(&executor);
        let mut stream = peer.open(b"R\0\0\0\0\0\0\x10\0").await;
        let sent = loop {
            if let Err(error) = stream.write_all(&[0; 4096]).await {
                break error;
            }
        };
        assert_eq!(sent.kind(), io::ErrorKind::WriteZero);
        echo(&peer, 1, 100_000).await;
    });
}
