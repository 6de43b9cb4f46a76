//! Streams for tests: any header, any bytes, as a control plane could send them.

use std::time::Duration;

use hyper::body::Bytes;
use serde_json::Value;
use smol::channel::{Receiver, Sender, bounded};
use smol::future::or;
use smol::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};

use crate::bell::within;
use crate::edge;
use crate::exchange::Failed;
use crate::plane::{Plane, SessionInfo};
use crate::record::StreamEvent;
use crate::transport;
use crate::wire::{End, Fate, Wire};

/// 64 KiB: what one read gives at most.
const READ_BYTES_MAX: usize = 64 * 1024;

/// A stream of yamux with nothing on it but what the test sends. Dropping it resets the stream,
/// unless both halves are finished.
///
/// Nothing is read before it is asked for: an unread stream costs the agent its window.
#[derive(Debug)]
pub struct RawStream {
    id: u32,
    writes: Sender<Write>,
    reads: Sender<Sender<Read>>,
    /// Tells by its end that the handle was dropped.
    _held: Sender<()>,
}

/// What a read gives; `None` at the end.
type Read = Option<Result<Bytes, Failed>>;

#[derive(Debug)]
enum Write {
    Data(Vec<u8>, Sender<Result<(), Failed>>),
    Close(Sender<Result<(), Failed>>),
}

/// The plane's side of a [`RawStream`].
#[derive(Debug)]
struct Ends {
    writes: Receiver<Write>,
    reads: Receiver<Sender<Read>>,
    held: Receiver<()>,
}

impl RawStream {
    fn pair(id: u32) -> (Self, Ends) {
        let (writes, writes_out) = bounded(1);
        let (reads, reads_out) = bounded(1);
        let (held_in, held) = bounded(1);
        let ends = Ends {
            writes: writes_out,
            reads: reads_out,
            held,
        };
        let stream = Self {
            id,
            writes,
            reads,
            _held: held_in,
        };
        (stream, ends)
    }

    /// Its id on the wire.
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// Sends bytes, waiting for the agent's window. After [`Failed::Late`] they still go out
    /// when the window opens.
    pub fn write(&self, data: &[u8], limit: Duration) -> Result<(), Failed> {
        let data = data.to_vec();
        self.call(limit, |done| Write::Data(data, done))
    }

    /// Finishes the plane's half: no more is sent, and what the agent sends can still be read.
    pub fn close(&self, limit: Duration) -> Result<(), Failed> {
        self.call(limit, Write::Close)
    }

    fn call(
        &self,
        limit: Duration,
        write: impl FnOnce(Sender<Result<(), Failed>>) -> Write,
    ) -> Result<(), Failed> {
        let (done, answer) = bounded(1);
        let called = async {
            self.writes.send(write(done)).await.ok()?;
            answer.recv().await.ok()
        };
        match smol::block_on(within(limit, called)) {
            Some(result) => result.unwrap_or(Err(Failed::Stopped)),
            None => Err(Failed::Late),
        }
    }

    /// The next bytes that came; `None` once the agent finished its half.
    pub fn read(&self, limit: Duration) -> Option<Result<Bytes, Failed>> {
        let (done, answer) = bounded(1);
        let called = async {
            self.reads.send(done).await.ok()?;
            answer.recv().await.ok()
        };
        match smol::block_on(within(limit, called)) {
            Some(result) => result.unwrap_or(Some(Err(Failed::Stopped))),
            None => Some(Err(Failed::Late)),
        }
    }

    /// Reads until the agent finishes its half; `limit` is for each piece.
    pub fn read_all(&self, limit: Duration) -> Result<Vec<u8>, Failed> {
        let mut all = Vec::new();
        while let Some(piece) = self.read(limit) {
            all.extend_from_slice(&piece?);
        }
        Ok(all)
    }

    /// Resets the stream.
    pub fn reset(self) {
        drop(self);
    }
}

impl Ends {
    /// Does what the handle asks for until it is dropped.
    async fn carry(self, wire: Wire) {
        let fate = std::sync::Arc::clone(&wire.fate);
        let (mut read, mut write) = smol::io::split(wire);
        let reading = async {
            let mut held = None;
            while let Ok(asked) = self.reads.recv().await {
                let next = match held.take() {
                    Some(next) => next,
                    None => next(&mut read, &fate).await,
                };
                // Who asked may have given up: the next one gets it.
                if let Err(error) = asked.try_send(next) {
                    held = Some(error.into_inner());
                }
            }
        };
        let writing = async {
            while let Ok(wanted) = self.writes.recv().await {
                let (done, result) = match wanted {
                    Write::Data(data, done) => (done, send(&mut write, &data).await),
                    Write::Close(done) => (done, write.close().await),
                };
                let result = result.map_err(|_error| ended(&fate));
                drop(done.try_send(result));
            }
        };
        let dropped = async {
            // Nothing is ever sent: this waits for the end of the handle.
            while self.held.recv().await.is_ok() {}
        };
        or(dropped, or(reading, writing)).await;
        fate.abort();
    }
}

async fn send(write: &mut WriteHalf<Wire>, data: &[u8]) -> std::io::Result<()> {
    write.write_all(data).await?;
    write.flush().await
}

async fn next(read: &mut ReadHalf<Wire>, fate: &Fate) -> Read {
    let mut buffer = vec![0; READ_BYTES_MAX];
    match read.read(&mut buffer).await {
        Ok(0) => None,
        Ok(bytes) => {
            buffer.truncate(bytes);
            Some(Ok(buffer.into()))
        }
        Err(_) => Some(Err(ended(fate))),
    }
}

fn ended(fate: &Fate) -> Failed {
    match fate.end() {
        End::Reset => Failed::Reset,
        End::Open | End::Finished | End::Lost => Failed::Lost("the stream is over".to_owned()),
    }
}

/// Messages that wait for a test that speaks yamux itself; with more, the session is not read.
const BINARY_MESSAGES_MAX: usize = 4096;

/// The binary messages of a session, for a test that speaks yamux itself.
#[derive(Debug)]
pub struct BinaryMessages {
    messages: Receiver<Bytes>,
}

impl BinaryMessages {
    /// The next one; `None` where none came in time.
    pub fn next(&self, limit: Duration) -> Option<Bytes> {
        smol::block_on(within(limit, self.messages.recv()))?.ok()
    }
}

/// 10 s: how long opening a stream may take.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

impl Plane {
    /// Waits for a session whose requests go over streams.
    pub fn wait_streams(&self, limit: Duration) -> Option<SessionInfo> {
        self.until(limit, |view| {
            let mut sessions = view.sessions.iter().rev();
            sessions.find(|s| s.is_ready && s.has_streams).cloned()
        })
    }

    /// All that happened to streams of yamux.
    pub fn stream_events(&self) -> Vec<StreamEvent> {
        self.look(|view| view.stream_events.iter().cloned().collect())
            .unwrap_or_default()
    }

    /// Sends the newest session `edge_hello` with this payload, whatever the agent offered.
    pub fn edge_hello(&self, payload: Value) {
        self.call(move |world| {
            if let Some(session) = world.newest(None) {
                edge::hello(world, &session, payload);
            }
        });
    }

    /// Sends the newest session `gateway_hello` with this payload. With `use_yamux` the agent's
    /// answer starts yamux (again), and binary messages belong to it.
    pub fn gateway_hello(&self, payload: Value) {
        self.call(move |world| {
            if let Some(session) = world.newest(None) {
                edge::gateway_hello(world, &session, payload);
            }
        });
    }

    /// Gives the newest session's binary messages to the test from here on: it is the agent's
    /// peer in yamux, and sends with [`Plane::send_binary`]. The plane's own yamux ends, and
    /// requests go as JSON.
    pub fn take_binary(&self) -> BinaryMessages {
        let (taker, messages) = bounded(BINARY_MESSAGES_MAX);
        self.call(move |world| {
            if let Some(session) = world.newest(None) {
                session.edge.give_away(taker);
            }
        });
        BinaryMessages { messages }
    }

    /// Opens a stream to a cluster's agent (the newest session's, without an id) that begins
    /// with these bytes: a [`StreamHeader`](crate::StreamHeader), or none. With no bytes at all
    /// the agent sees it with the first write. It waits for no place among the requests; more than
    /// 4,000 handles at once end yamux.
    pub fn open_stream(
        &self,
        cluster_id: Option<&str>,
        header: &[u8],
    ) -> Result<RawStream, Failed> {
        let (cluster_id, header) = (cluster_id.map(str::to_owned), header.to_vec());
        self.run(OPEN_LIMIT, |world| async move {
            let mux = transport::mux(&world, cluster_id.as_deref()).await?;
            let wire = mux.open_anyway(&header).await?;
            let (stream, ends) = RawStream::pair(wire.id());
            world.tasks.spawn(ends.carry(wire));
            Ok(stream)
        })
        .unwrap_or(Err(Failed::Late))
    }
}
