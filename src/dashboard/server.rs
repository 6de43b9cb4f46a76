//! HTTP server on the socket and the port. The kernel identifies users of the socket, a cookie
//! those of the port.

use std::{convert::Infallible, net::SocketAddr, path::Path, rc::Rc};

use smol::net::TcpListener;

use super::{
    answers::From, certificate::Shown, connection::Accepted, connections::Connections, peer::Peer,
    site::Site, socket::Socket,
};
use crate::{
    core::stall::Job,
    error::{Error, Result},
    executor::Executor,
    files::{self, Jobs},
};

/// A way to the dashboard that is open. Dropping it closes it, and a socket's path goes with it.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
}

#[derive(Debug)]
enum Listener {
    Socket(Socket),
    Port {
        listener: TcpListener,
        address: SocketAddr,
        shown: Option<Shown>,
    },
}

impl Server {
    /// Listens at the path of a Unix socket. Its directory is made where it is missing. A socket
    /// that a dead agent left is replaced; one on which somebody answers is not. In the blocking
    /// pool: the path may be in the state directory, whose disk may hang.
    pub async fn on_socket(path: &Path, jobs: &Jobs) -> Result<Self> {
        let path = path.to_owned();
        let bound = jobs.run(Job::Socket, move || Socket::bind(&path)).await;
        let listener = Listener::Socket(bound.flatten()?);
        Ok(Self { listener })
    }

    /// Listens at an address of this machine alone; port 0 is any that is free.
    pub async fn on_port(wanted: SocketAddr) -> Result<Self> {
        if !wanted.ip().is_loopback() {
            return Err(Error::new(format!("cannot listen on {wanted}"))
                .why("other machines could connect to it, and it is not encrypted")
                .fix("set dashboard.listen to 127.0.0.1:7480 or [::1]:7480"));
        }
        Self::listen(wanted, None).await
    }

    /// Listens at any address, over TLS alone; port 0 is any that is free.
    pub async fn on_network(wanted: SocketAddr, shown: Shown) -> Result<Self> {
        Self::listen(wanted, Some(shown)).await
    }

    async fn listen(wanted: SocketAddr, shown: Option<Shown>) -> Result<Self> {
        let what = || format!("cannot listen on {wanted}");
        let cannot = |error: std::io::Error| {
            if error.kind() == std::io::ErrorKind::AddrNotAvailable {
                return Error::new(what()).because(&error).fix(
                    "this machine does not have that address (yet): ip address; 0.0.0.0 is all that it has",
                );
            }
            if error.kind() != std::io::ErrorKind::AddrInUse {
                return files::explain(what(), &error);
            }
            let who = format!("ss -tlnp sport = :{}", wanted.port());
            Error::new(what()).because(&error).fix(format!(
                "another program has that port: {who}; set dashboard.listen to another one, or to off"
            ))
        };
        let listener = TcpListener::bind(wanted).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let listener = Listener::Port {
            listener,
            address,
            shown,
        };
        Ok(Self { listener })
    }

    /// The port where it listens, if it is one.
    pub const fn address(&self) -> Option<SocketAddr> {
        match &self.listener {
            Listener::Port { address, .. } => Some(*address),
            Listener::Socket(_) => None,
        }
    }

    /// Answers viewers until it is dropped. Connections run on `executor` and end with this future.
    #[expect(clippy::infinite_loop, reason = "it serves until it is dropped")]
    pub async fn serve(&self, executor: Rc<Executor>, site: Rc<Site>) -> Infallible {
        let mut connections = Connections::new(executor, site);
        loop {
            let accepted = self.accept().await;
            connections.take(accepted).await;
        }
    }

    async fn accept(&self) -> std::io::Result<Accepted> {
        match &self.listener {
            Listener::Socket(socket) => {
                let (stream, _) = socket.listener.accept().await?;
                let peer = Peer::of(&stream);
                Ok(Accepted::Plain(Box::new(stream), peer.map(From::Socket)))
            }
            Listener::Port {
                listener, shown, ..
            } => {
                let (stream, address) = listener.accept().await?;
                let address = address.ip().to_canonical();
                if let Some(shown) = shown {
                    return Ok(Accepted::Tls(stream, address, shown.now()));
                }
                let from = From::Port {
                    address,
                    is_encrypted: false,
                };
                Ok(Accepted::Plain(Box::new(stream), Some(from)))
            }
        }
    }
}
