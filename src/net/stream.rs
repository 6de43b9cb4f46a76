//! A connected byte stream, plain or inside TLS.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_rustls::client::TlsStream;
use rustls::pki_types::CertificateDer;
use smol::io::{AsyncRead, AsyncWrite};
use smol::net::TcpStream;

/// A connection as the parties see it. `Send` and `Unpin`, because an upgraded HTTP connection must
/// be.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Plain(TcpStream),
    /// TLS over another stream: over TCP, or over TLS to a proxy.
    Tls(Box<TlsStream<Self>>),
    /// Bytes that another protocol carries.
    Carried(Box<dyn Carrier>),
}

/// A protocol that carries a byte stream over a connection.
pub trait Carrier: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {
    /// The connection below.
    fn below(&self) -> &Stream;
}

impl Stream {
    /// The TCP connection at the bottom.
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => tls.get_ref().0.tcp(),
            Self::Carried(carrier) => carrier.below().tcp(),
        }
    }

    /// The certificate that the other end of the TLS connection showed. `None` without TLS.
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        match self {
            Self::Tls(tls) => tls.get_ref().1.peer_certificates()?.first(),
            Self::Plain(_) | Self::Carried(_) => None,
        }
    }

    /// Our address on this connection.
    ///
    /// # Errors
    /// What the kernel says of a socket that is gone.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.tcp().local_addr()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, buffer),
            // Many peers (all Go programs) end the connection without TLS' close_notify. The
            // protocols above say themselves where a message ends, so a missing one is the end of
            // the stream and not an error.
            Self::Tls(tls) => match Pin::new(tls.as_mut()).poll_read(cx, buffer) {
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    Poll::Ready(Ok(0))
                }
                other @ (Poll::Ready(_) | Poll::Pending) => other,
            },
            Self::Carried(carrier) => Pin::new(carrier.as_mut()).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            Self::Tls(tls) => Pin::new(tls.as_mut()).poll_write(cx, bytes),
            Self::Carried(carrier) => Pin::new(carrier.as_mut()).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, slices),
            Self::Tls(tls) => Pin::new(tls.as_mut()).poll_write_vectored(cx, slices),
            Self::Carried(carrier) => Pin::new(carrier.as_mut()).poll_write_vectored(cx, slices),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls.as_mut()).poll_flush(cx),
            Self::Carried(carrier) => Pin::new(carrier.as_mut()).poll_flush(cx),
        }
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_close(cx),
            Self::Tls(tls) => Pin::new(tls.as_mut()).poll_close(cx),
            Self::Carried(carrier) => Pin::new(carrier.as_mut()).poll_close(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_can_be_handed_to_an_upgrade() {
        fn sendable<T: Send + Unpin + 'static>() {}
        sendable::<Stream>();
    }
}
