//! Connection pool for one server and one identity class: a connection in use owns its task, an
//! idle one waits here for a while.
//!
//! Dropping a [`PooledConnection`] whose response was not read to its end closes the connection.
//! That is how cancelling works: there is no other way to make the server stop.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use smol::Task;
use smol_hyper::rt::FuturesIo;

use super::heard::Heard;
use crate::net::{Stream, deadline};
use crate::{executor::Executor, net::Body};

/// Idle connections kept. The agent has a few calls at a time, a busy proxy 8 short ones (house
/// rules); more than that are opened in a burst and closed again.
const IDLE_MAX: usize = 8;

/// The sweeper comes this often; an idle connection survives one visit and not the second, so it
/// stays between 30 and 60 s.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// Time from the end of an answer until a connection is ready. It is one turn of its task; more
/// means that the server has not read our request's body.
const READY_WITHIN: Duration = Duration::from_millis(100);

/// Read-ahead of a connection. It decides the memory under stalled readers: with 16 KiB, 60 stalled
/// lists took 15 MB in all; with hyper's default 43 MB. It is also the longest head of an answer.
const BUFFER_BYTES: usize = 16 * 1024;

struct Idle {
    sender: SendRequest<Body>,
    task: Task<()>,
    visits: u8,
}

/// The idle connections of one identity class.
pub(super) struct Pool {
    executor: Rc<Executor>,
    idle: RefCell<Vec<Idle>>,
    sweeper: RefCell<Option<Task<()>>>,
    open: Rc<Cell<usize>>,
    heard: Rc<Heard>,
}

/// A connection in use.
pub(super) struct PooledConnection {
    pub(super) sender: SendRequest<Body>,
    task: Task<()>,
    home: Weak<Pool>,
    heard: Rc<Heard>,
    /// True if it waited in the pool: then the server may have closed it meanwhile.
    pub(super) is_reused: bool,
}

/// Counts an open connection for as long as its task lives.
struct Counted(Rc<Cell<usize>>);

impl Counted {
    fn new(open: &Rc<Cell<usize>>) -> Self {
        open.set(open.get() + 1);
        Self(Rc::clone(open))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

impl Pool {
    /// An empty pool. `open` counts the connections that live, in use or idle; `heard` takes the
    /// time of each byte that comes.
    pub(super) fn new(executor: Rc<Executor>, open: Rc<Cell<usize>>, heard: Rc<Heard>) -> Rc<Self> {
        Rc::new(Self {
            executor,
            idle: RefCell::default(),
            sweeper: RefCell::default(),
            open,
            heard,
        })
    }

    /// An idle connection that is ready, the one used last first.
    pub(super) async fn take(self: &Rc<Self>) -> Option<PooledConnection> {
        loop {
            let Idle {
                mut sender, task, ..
            } = self.idle.borrow_mut().pop()?;
            let ready = deadline(
                READY_WITHIN,
                std::future::poll_fn(|cx| sender.poll_ready(cx)),
            );
            if matches!(ready.await, Ok(Ok(()))) {
                return Some(PooledConnection {
                    sender,
                    task,
                    home: Rc::downgrade(self),
                    heard: Rc::clone(&self.heard),
                    is_reused: true,
                });
            }
        }
    }

    /// Speaks HTTP on a new connection.
    pub(super) async fn begin(
        self: &Rc<Self>,
        stream: Stream,
    ) -> Result<PooledConnection, hyper::Error> {
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .handshake::<_, Body>(FuturesIo::new(stream))
            .await?;
        let counted = Counted::new(&self.open);
        let task = self.executor.spawn(async move {
            // Its error is told to the sender and to the body, which say it where a caller can do
            // something.
            if let Err(error) = connection.with_upgrades().await {
                log::trace!("kube: a connection ended: {error}");
            }
            drop(counted);
        });
        Ok(PooledConnection {
            sender,
            task,
            home: Rc::downgrade(self),
            heard: Rc::clone(&self.heard),
            is_reused: false,
        })
    }

    fn put(self: &Rc<Self>, sender: SendRequest<Body>, task: Task<()>) {
        let mut idle = self.idle.borrow_mut();
        if sender.is_closed() || idle.len() >= IDLE_MAX {
            return;
        }
        idle.push(Idle {
            sender,
            task,
            visits: 0,
        });
        let mut sweeper = self.sweeper.borrow_mut();
        if sweeper.as_ref().is_none_or(Task::is_finished) {
            *sweeper = Some(self.executor.spawn(sweep(Rc::downgrade(self))));
        }
    }
}

/// Closes what has been idle for long; ends when nothing is idle, so that a quiet agent is not
/// woken up.
async fn sweep(pool: Weak<Pool>) {
    loop {
        smol::Timer::after(SWEEP_EVERY).await;
        let Some(pool) = pool.upgrade() else {
            return;
        };
        let mut idle = pool.idle.borrow_mut();
        for connection in idle.iter_mut() {
            connection.visits += 1;
        }
        idle.retain(|connection| connection.visits < 2 && !connection.sender.is_closed());
        if idle.is_empty() {
            return;
        }
    }
}

impl PooledConnection {
    /// Gives the connection back after an answer that was read to its end.
    fn give_back(self) {
        if let Some(home) = self.home.upgrade() {
            home.put(self.sender, self.task);
        }
    }
}

/// The body of an answer together with the connection that it comes from.
pub(super) struct PooledBody {
    incoming: Incoming,
    pooled: Option<PooledConnection>,
}

impl PooledBody {
    pub(super) fn new(incoming: Incoming, pooled: PooledConnection) -> Self {
        Self {
            incoming,
            pooled: Some(pooled),
        }
    }
}

impl PooledBody {
    /// A body whose connection is closed at its end.
    pub(super) fn single(incoming: Incoming, mut pooled: PooledConnection) -> Self {
        pooled.home = Weak::new();
        Self::new(incoming, pooled)
    }
}

impl HttpBody for PooledBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let frame = Pin::new(&mut self.incoming).poll_frame(cx);
        match &frame {
            Poll::Ready(None) => {
                if let Some(pooled) = self.pooled.take() {
                    pooled.give_back();
                }
            }
            Poll::Ready(Some(Err(_))) => drop(self.pooled.take()),
            Poll::Ready(Some(Ok(_))) => {
                if let Some(pooled) = &self.pooled {
                    pooled.heard.byte();
                }
            }
            Poll::Pending => {}
        }
        frame.map(|frame| frame.map(|frame| frame.map_err(io::Error::other)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for PooledBody {
    fn drop(&mut self) {
        // A reader may stop at the last byte without asking for more.
        if self.incoming.is_end_stream()
            && let Some(pooled) = self.pooled.take()
        {
            pooled.give_back();
        }
    }
}
