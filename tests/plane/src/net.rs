//! Accepted connections: TCP with TLS or without, behind a gate that a test can close.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use futures_rustls::server::TlsStream;
use nix::sys::socket::{setsockopt, sockopt};
use smol::Timer;
use smol::io::{AsyncRead, AsyncWrite};
use smol::lock::Mutex;
use smol::net::TcpStream;

/// What a connection is allowed to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Everything.
    #[default]
    Open,
    /// Read at most so many bytes a second.
    Slow(u32),
    /// Neither read nor write, and stay open: what a dropped route looks like.
    Silent,
    /// Every read and write fails; the socket is closed by its owner's end.
    Cut(Ending),
}

/// How the socket of a cut connection goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// TCP FIN.
    Fin,
    /// TCP RST.
    Reset,
}

#[derive(Default)]
struct State {
    flow: Flow,
    wakers: Vec<Waker>,
}

/// Sets the flow of one connection from outside of it.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<Mutex<State>>);

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gate").field(&self.flow()).finish()
    }
}

impl Gate {
    /// Changes the flow; a cut one stays cut.
    pub(crate) fn set(&self, flow: Flow) {
        // Everything runs on one thread and nothing awaits under this lock: it is always free.
        let mut state = self.0.lock_blocking();
        if !matches!(state.flow, Flow::Cut(_)) {
            state.flow = flow;
        }
        for waker in state.wakers.drain(..) {
            waker.wake();
        }
    }

    /// The flow now.
    pub(crate) fn flow(&self) -> Flow {
        self.0.lock_blocking().flow
    }

    fn enter(&self, context: &Context<'_>) -> Flow {
        let mut state = self.0.lock_blocking();
        // The connection must hear of a change while it waits for its socket.
        if !state
            .wakers
            .iter()
            .any(|waker| waker.will_wake(context.waker()))
        {
            state.wakers.push(context.waker().clone());
        }
        state.flow
    }
}

/// A slow reader takes its bytes in helpings: a hundred a second where it is a link that is
/// measured, else twenty.
const fn helping(rate: u32) -> (Duration, u32) {
    if rate < 10_000 {
        (Duration::from_millis(50), rate / 20)
    } else {
        (Duration::from_millis(10), rate / 100)
    }
}

/// A TCP connection behind its gate.
#[derive(Debug)]
pub(crate) struct Gated {
    socket: TcpStream,
    gate: Gate,
    pause: Option<Timer>,
    allowance: usize,
}

impl Gated {
    pub(crate) const fn new(socket: TcpStream, gate: Gate) -> Self {
        Self {
            socket,
            gate,
            pause: None,
            allowance: 0,
        }
    }

    /// How many bytes may be read now by a slow reader.
    fn poll_allowance(&mut self, context: &mut Context<'_>, rate: u32) -> Poll<usize> {
        if self.allowance == 0 {
            let (wait, bytes) = helping(rate);
            let pause = self.pause.get_or_insert_with(|| Timer::after(wait));
            ready!(Pin::new(pause).poll(context));
            self.pause = None;
            self.allowance = usize::try_from(bytes).unwrap_or(1).max(1);
        }
        Poll::Ready(self.allowance)
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        if self.gate.flow() == Flow::Cut(Ending::Reset) {
            let linger = nix::libc::linger {
                l_onoff: 1,
                l_linger: 0,
            };
            if let Err(error) = setsockopt(&self.socket, sockopt::Linger, &linger) {
                log::warn!("cannot make the socket close with a reset: {error}");
            }
        }
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "cut by the test")
}

impl AsyncRead for Gated {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match self.gate.enter(context) {
            Flow::Open => Pin::new(&mut self.socket).poll_read(context, buffer),
            Flow::Silent => Poll::Pending,
            Flow::Cut(_) => Poll::Ready(Err(cut())),
            Flow::Slow(rate) => {
                let allowed = ready!(self.poll_allowance(context, rate)).min(buffer.len());
                let part = buffer.get_mut(..allowed).unwrap_or_default();
                let bytes = ready!(Pin::new(&mut self.socket).poll_read(context, part))?;
                self.allowance = self.allowance.saturating_sub(bytes);
                Poll::Ready(Ok(bytes))
            }
        }
    }
}

impl AsyncWrite for Gated {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.gate.enter(context) {
            Flow::Open | Flow::Slow(_) => Pin::new(&mut self.socket).poll_write(context, data),
            Flow::Silent => Poll::Pending,
            Flow::Cut(_) => Poll::Ready(Err(cut())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.gate.enter(context) {
            Flow::Open | Flow::Slow(_) => Pin::new(&mut self.socket).poll_close(context),
            Flow::Silent => Poll::Pending,
            Flow::Cut(_) => Poll::Ready(Err(cut())),
        }
    }
}

/// A connection with or without TLS.
#[derive(Debug)]
pub(crate) enum Conn {
    Plain(Gated),
    Tls(Box<TlsStream<Gated>>),
}

impl AsyncRead for Conn {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(conn) => Pin::new(conn).poll_read(context, buffer),
            Self::Tls(conn) => Pin::new(conn).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Conn {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(conn) => Pin::new(conn).poll_write(context, data),
            Self::Tls(conn) => Pin::new(conn).poll_write(context, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(conn) => Pin::new(conn).poll_flush(context),
            Self::Tls(conn) => Pin::new(conn).poll_flush(context),
        }
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(conn) => Pin::new(conn).poll_close(context),
            Self::Tls(conn) => Pin::new(conn).poll_close(context),
        }
    }
}
