//! yamux over the binary messages of one session: the plane is its server and opens the streams.
//!
//! The `yamux` crate speaks it, because a peer that shares code with the agent would prove little.
//! Beside it the stream table has what really went over the wire.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::Bytes;
use smol::Timer;
use smol::channel::{Sender, bounded};
use smol::future::or;
use smol::io::{AsyncRead, AsyncWrite};
use smol::lock::{Semaphore, SemaphoreGuardArc};
use yamux::{Config, Connection, Mode};

use crate::bell::{Bell, Inbox};
use crate::clock;
use crate::exchange::Failed;
use crate::framing::{self, Framing};
use crate::pool::Pool;
use crate::record::{Direction, StreamEvent};
use crate::session::Session;
use crate::stream_table::{StreamTable, StreamUpdate};
use crate::wire::Wire;
use crate::world::World;

/// Streams at once for requests: below the agent's 128, so that one that ends there a moment later
/// than here does no harm. More requests wait.
const STREAMS_MAX: usize = 120;

/// Streams at once that the crate allows, those of tests included. One more would end the session.
const CRATE_STREAMS_MAX: usize = 4096;

/// 256 KiB, the window that every stream starts with and keeps.
const WINDOW_BYTES: usize = 256 * 1024;

/// 64 MiB: by how much all windows together may grow, as the distance to the agent wants it.
const TUNING_BYTES: usize = 64 * 1024 * 1024;

/// 512 KiB: what came and the crate has not read yet.
const INBOX_BYTES_MAX: usize = 512 * 1024;

/// 256 KiB: what waits to be written to the agent before streams wait.
const OUTBOX_BYTES_MAX: usize = 256 * 1024;

/// From here on whole frames go out as a message. With one more frame of the crate (16 KiB) a
/// message stays below 32 KiB.
const MESSAGE_BYTES: usize = 15 * 1024;

/// 100 ms: how long the place of a stream that was reset stays taken. The agent needs a moment to
/// end what it carried.
const RESET_PAUSE: Duration = Duration::from_millis(100);

/// 1 s: how often streams are looked for that the agent does not finish.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Somebody who waits for a stream.
#[derive(Debug)]
struct Wanted {
    target: String,
    place: Option<SemaphoreGuardArc>,
    given: Sender<Wire>,
}

/// One yamux session.
#[derive(Debug)]
pub(crate) struct Mux {
    inbox: Inbox<Bytes>,
    incoming: RefCell<Framing>,
    outgoing: RefCell<Framing>,
    /// What the crate wrote, and how much of it are whole frames.
    pending: RefCell<Vec<u8>>,
    whole: Cell<usize>,
    streams: RefCell<StreamTable>,
    wanted: RefCell<VecDeque<Wanted>>,
    places: Arc<Semaphore>,
    ended: RefCell<Option<String>>,
    bell: Bell,
    /// Streams that wait for their next request.
    pub(crate) pool: Pool,
}

impl Mux {
    /// Starts a session of yamux on an agent's session.
    pub(crate) fn start(world: &Rc<World>, session: &Rc<Session>) -> Rc<Self> {
        let mux = Rc::new(Self {
            inbox: Inbox::default(),
            incoming: RefCell::default(),
            outgoing: RefCell::default(),
            pending: RefCell::default(),
            whole: Cell::new(0),
            streams: RefCell::default(),
            wanted: RefCell::default(),
            places: Arc::new(Semaphore::new(STREAMS_MAX)),
            ended: RefCell::default(),
            bell: Bell::default(),
            pool: Pool::default(),
        });
        let driving = drive(Rc::clone(world), Rc::clone(session), Rc::clone(&mux));
        world.tasks.spawn(driving);
        mux
    }

    /// Takes a binary message, waiting while too much waits to be read.
    pub(crate) async fn take(&self, data: Bytes) {
        self.inbox.below(INBOX_BYTES_MAX).await;
        let bytes = data.len();
        self.inbox.push(data, bytes);
    }

    /// Opens a stream for a request, when there is a place.
    pub(crate) async fn open(&self, target: String, header: &[u8]) -> Result<Wire, Failed> {
        let place = if let Some(place) = self.places.try_acquire_arc() {
            place
        } else {
            self.pool.clear();
            self.places.acquire_arc().await
        };
        self.begin(target, Some(place), header).await
    }

    /// Opens a stream however many there are.
    pub(crate) async fn open_anyway(&self, header: &[u8]) -> Result<Wire, Failed> {
        self.begin("test".to_owned(), None, header).await
    }

    async fn begin(
        &self,
        target: String,
        place: Option<SemaphoreGuardArc>,
        header: &[u8],
    ) -> Result<Wire, Failed> {
        if let Some(why) = self.ended.borrow().clone() {
            return Err(Failed::Lost(why));
        }
        let (given, stream) = bounded(1);
        self.wanted.borrow_mut().push_back(Wanted {
            target,
            place,
            given,
        });
        self.bell.ring();
        let mut stream = stream.recv().await.map_err(|_closed| self.lost())?;
        // The stream exists for the agent from its first byte on.
        smol::io::AsyncWriteExt::write_all(&mut stream, header)
            .await
            .map_err(|_error| self.lost())?;
        Ok(stream)
    }

    /// What a stream failed of that ended with the session.
    pub(crate) fn lost(&self) -> Failed {
        let why = self.ended.borrow().clone();
        Failed::Lost(why.unwrap_or_else(|| "the stream ended".to_owned()))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Streams that are open, and that ever were.
    pub(crate) fn count(&self) -> (usize, u64) {
        let streams = self.streams.borrow();
        (streams.open(), streams.opened())
    }

    /// Ends everything; the driver and the crate go with it.
    pub(crate) fn lose(&self, why: &str) {
        let mut ended = self.ended.borrow_mut();
        if ended.is_none() {
            *ended = Some(why.to_owned());
            drop(ended);
            self.streams.borrow_mut().lose();
            self.wanted.borrow_mut().clear();
            self.pool.clear();
            self.inbox.abandon();
            self.bell.ring();
        }
    }

    /// Sends the whole frames that the crate wrote.
    fn write_out(&self, world: &World, session: &Session) {
        let whole = self.whole.replace(0);
        if whole == 0 {
            return;
        }
        let mut pending = self.pending.borrow_mut();
        let rest = pending.split_off(whole);
        let message = std::mem::replace(&mut *pending, rest);
        session.send_yamux(world, &message);
    }

    /// Resets streams that the crate cannot reset.
    fn sweep(&self, world: &World, session: &Session) {
        let reset = self.streams.borrow_mut().given_up(clock::now());
        let frames: Vec<u8> = reset.into_iter().flat_map(framing::reset).collect();
        if !frames.is_empty() {
            // Between whole frames: what the crate has begun to write stays in `pending`.
            self.write_out(world, session);
            session.send_yamux(world, &frames);
        }
        self.publish(world, session);
    }

    /// Tells the record what happened.
    fn publish(&self, world: &World, session: &Session) {
        let mut streams = self.streams.borrow_mut();
        let news = std::mem::take(&mut streams.news);
        let freed = std::mem::take(&mut streams.freed);
        drop(streams);
        if !freed.is_empty() {
            world.tasks.spawn(async move {
                Timer::after(RESET_PAUSE).await;
                drop(freed);
            });
        }
        for StreamUpdate {
            stream,
            target,
            change,
        } in news
        {
            world.record.stream(StreamEvent {
                at: world.record.at(),
                session: session.number,
                stream,
                target,
                change,
            });
        }
    }
}

/// The session as the crate sees it: a pipe of bytes.
struct Socket {
    world: Rc<World>,
    session: Rc<Session>,
    mux: Rc<Mux>,
    chunk: Bytes,
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        while self.chunk.is_empty() {
            let Some(chunk) = ready!(self.mux.inbox.poll_pop(context)) else {
                return Poll::Ready(Ok(0));
            };
            let mut streams = self.mux.streams.borrow_mut();
            let mut incoming = self.mux.incoming.borrow_mut();
            incoming.read(&chunk, |header| streams.came(&header));
            drop((streams, incoming));
            self.chunk = chunk;
        }
        let bytes = self.chunk.len().min(buffer.len());
        let part = self.chunk.split_to(bytes);
        if let Some(room) = buffer.get_mut(..bytes) {
            room.copy_from_slice(&part);
        }
        Poll::Ready(Ok(bytes))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.session.poll_room(context, OUTBOX_BYTES_MAX));
        let mut pending = self.mux.pending.borrow_mut();
        pending.extend_from_slice(data);
        let mut streams = self.mux.streams.borrow_mut();
        let mut outgoing = self.mux.outgoing.borrow_mut();
        outgoing.read(data, |header| streams.sent(&header));
        if outgoing.is_between() {
            self.mux.whole.set(pending.len());
        }
        drop((pending, streams, outgoing));
        if self.mux.whole.get() >= MESSAGE_BYTES {
            self.mux.write_out(&self.world, &self.session);
        }
        Poll::Ready(Ok(data.len()))
    }

    /// The driver sends what is pending after each turn: the crate flushes after each frame.
    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Runs a session of yamux to its end.
async fn drive(world: Rc<World>, session: Rc<Session>, mux: Rc<Mux>) {
    let mut config = Config::default();
    // In this order: the crate asserts that the window has room for all streams.
    config
        .set_max_connection_receive_window(None)
        .set_max_num_streams(CRATE_STREAMS_MAX)
        .set_max_connection_receive_window(Some(CRATE_STREAMS_MAX * WINDOW_BYTES + TUNING_BYTES));
    let socket = Socket {
        world: Rc::clone(&world),
        session: Rc::clone(&session),
        mux: Rc::clone(&mux),
        chunk: Bytes::new(),
    };
    let mut connection = Connection::new(socket, config, Mode::Server);
    let turns = poll_fn(|context| {
        mux.bell.remember(context);
        let end = mux.turn(&world, &session, &mut connection, context);
        // Once it is over, binary messages may belong to the next one.
        if !mux.is_over() {
            mux.write_out(&world, &session);
            mux.sweep(&world, &session);
        }
        end
    });
    let sweeps = async {
        while !mux.is_over() {
            Timer::after(SWEEP_INTERVAL).await;
            mux.sweep(&world, &session);
        }
        "the session ended".to_owned()
    };
    let why = or(turns, sweeps).await;
    if !mux.is_over() {
        log::info!("session {}: yamux ended: {why}", session.number);
    }
    mux.lose(&why);
    mux.publish(&world, &session);
}

impl Mux {
    /// Lets the crate read, write and open streams; gives why the session is over, if it is.
    fn turn(
        &self,
        world: &World,
        session: &Session,
        connection: &mut Connection<Socket>,
        context: &mut Context<'_>,
    ) -> Poll<String> {
        loop {
            if let Some(why) = self.ended.borrow().clone() {
                return Poll::Ready(why);
            }
            let inbound = connection.poll_next_inbound(context);
            let go_away = self.streams.borrow_mut().go_away.take();
            match go_away {
                Some((Direction::FromAgent, code)) => {
                    return Poll::Ready(format!("the agent ended yamux with code {code}"));
                }
                Some((Direction::ToAgent, code)) => {
                    let what = format!("the agent broke yamux: it was told code {code}");
                    world.record.violation(session.number, what.as_str());
                    return Poll::Ready(what);
                }
                None => {}
            }
            match inbound {
                Poll::Ready(Some(Ok(stream))) => {
                    let what = format!("the agent opened stream {}", stream.id().val());
                    world.record.violation(session.number, what);
                    continue;
                }
                Poll::Ready(Some(Err(error))) => {
                    let what = format!("the agent broke yamux: {error}");
                    world.record.violation(session.number, what.as_str());
                    return Poll::Ready(what);
                }
                Poll::Ready(None) => return Poll::Ready("yamux is closed".to_owned()),
                Poll::Pending => {}
            }
            // A stream that was dropped counts for the crate until it could write that.
            if self.is_nothing_wanted() || session.poll_room(context, OUTBOX_BYTES_MAX).is_pending()
            {
                return Poll::Pending;
            }
            match ready!(connection.poll_new_outbound(context)) {
                Ok(stream) => self.give(stream),
                Err(error) => return Poll::Ready(format!("no stream can be opened: {error}")),
            }
        }
    }

    /// Forgets who has given up; says whether nobody waits.
    fn is_nothing_wanted(&self) -> bool {
        let mut wanted = self.wanted.borrow_mut();
        wanted.retain(|wanted| !wanted.given.is_closed());
        wanted.is_empty()
    }

    fn give(&self, stream: yamux::Stream) {
        let Some(wanted) = self.wanted.borrow_mut().pop_front() else {
            return;
        };
        let mut streams = self.streams.borrow_mut();
        let fate = streams.add(stream.id().val(), wanted.target, wanted.place);
        drop(streams);
        // Who does not take it drops it.
        drop(wanted.given.try_send(Wire::new(stream, fate)));
    }
}
