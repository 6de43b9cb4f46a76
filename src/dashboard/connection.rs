//! One accepted connection, from its first byte to the start of HTTP.

use std::{net::IpAddr, time::Duration};

use smol::{
    Timer,
    future::FutureExt as _,
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use super::answers::{From, Rejection};
use crate::net::served::Served;

/// Deadline of the TLS handshake, from the connection on.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// The first byte of a handshake: a record of that type.
const HANDSHAKE: u8 = 0x16;

/// Both directions of a connection.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

/// A connection of any kind: one type, so that HTTP is in the program once.
pub(super) type Stream = Box<dyn Duplex>;

/// Source of a connection, for sharing out the slots.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Source {
    /// This machine.
    Here,
    /// Elsewhere: an address, or the network that one household has of the newer kind.
    Elsewhere(IpAddr),
}

impl Source {
    pub(super) fn of(address: IpAddr) -> Self {
        match address {
            address if address.is_loopback() => Self::Here,
            IpAddr::V4(_) => Self::Elsewhere(address),
            IpAddr::V6(address) => {
                let household = address.to_bits() >> 64 << 64;
                Self::Elsewhere(IpAddr::V6(household.into()))
            }
        }
    }
}

/// Accepted connection.
pub(super) enum Accepted {
    /// Speaks HTTP at once. `None` where the kernel does not say who it is.
    Plain(Stream, Option<From>),
    /// Has to come by TLS, from this address.
    Tls(TcpStream, IpAddr, Served),
}

/// Protocol of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Protocol {
    /// As it should.
    Expected(Option<From>),
    /// Without TLS, where it is wanted.
    Plaintext,
}

impl Accepted {
    pub(super) fn source(&self) -> Source {
        match self {
            Self::Plain(_, Some(From::Port { address, .. })) | Self::Tls(_, address, _) => {
                Source::of(*address)
            }
            Self::Plain(..) => Source::Here,
        }
    }

    /// Returns the stream that carries HTTP; nothing if the peer went away, or never sent anything:
    /// browsers open connections in advance.
    pub(super) async fn arrive(self) -> Result<(Stream, Protocol), Option<Rejection>> {
        match self {
            Self::Plain(stream, from) => Ok((stream, Protocol::Expected(from))),
            Self::Tls(stream, address, served) => shake_hands(stream, address, served).await,
        }
    }
}

async fn shake_hands(
    stream: TcpStream,
    address: IpAddr,
    served: Served,
) -> Result<(Stream, Protocol), Option<Rejection>> {
    // One deadline for all of it.
    let mut deadline = Timer::after(HANDSHAKE_DEADLINE);
    let mut first = [0];
    let late = async {
        (&mut deadline).await;
        Ok(0)
    };
    if !matches!(stream.peek(&mut first).or(late).await, Ok(1)) {
        return Err(None);
    }
    if first != [HANDSHAKE] {
        // People type the address without its scheme, and browsers then try the plain one.
        return Ok((Box::new(stream), Protocol::Plaintext));
    }
    let late = async {
        deadline.await;
        Err(Some(Rejection::Slow))
    };
    let shaken = async {
        served.accept(stream).await.map_err(|error| {
            // A browser that asks its user first breaks off, too.
            log::debug!("dashboard: no TLS with {address}: {error}");
            None
        })
    };
    let stream = shaken.or(late).await?;
    let from = From::Port {
        address,
        is_encrypted: true,
    };
    Ok((Box::new(stream), Protocol::Expected(Some(from))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_household_is_one_source_and_this_machine_another() {
        let of = |text: &str| Source::of(text.parse().unwrap());
        assert_eq!(of("127.0.0.1"), Source::Here);
        assert_eq!(of("::1"), Source::Here);
        assert_eq!(of("2001:db8:1:2::7"), of("2001:db8:1:2:ffff::1"));
        assert_ne!(of("2001:db8:1:2::7"), of("2001:db8:1:3::7"));
        assert_ne!(of("192.0.2.7"), of("192.0.2.8"));
    }
}
