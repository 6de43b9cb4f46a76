//! The plane's thread: its listeners, its executor, and the end of both.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use smol::LocalExecutor;
use smol::channel::Receiver;
use smol::net::TcpListener;

use crate::http::{self, Endpoints, Listener};
use crate::options::{Behaviour, Options};
use crate::records::Records;
use crate::state::{Failure, State};
use crate::world::{Addresses, Security, World};

/// Something to do on the plane's thread.
pub(crate) type Job = Box<dyn FnOnce(&Rc<World>) + Send>;

/// What a plane's thread is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) options: Options,
    pub(crate) addresses: Addresses,
    pub(crate) kept: (State, Records),
    pub(crate) behaviour: Behaviour,
    pub(crate) listeners: Vec<Listener>,
}

/// While a plane was away, any connection of this machine may have been given its port.
const TRIES_AGAIN: u32 = 400;

/// Binds every listener; addresses that were bound before are kept.
pub(crate) fn bind(options: &Options, addresses: &mut Addresses) -> Result<Vec<Listener>, Failure> {
    let mut listeners = Vec::new();
    let tries = if addresses.tls.is_empty() {
        1
    } else {
        TRIES_AGAIN
    };
    let mut add = |address: SocketAddr, security, endpoints| -> Result<SocketAddr, Failure> {
        let failed = |error| Failure::new(format!("cannot listen at {address}: {error}"));
        let socket = smol::block_on(bound(address, tries)).map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        listeners.push(Listener {
            socket,
            security,
            endpoints,
        });
        Ok(address)
    };
    let mut tls: Vec<SocketAddr> = Vec::new();
    for (place, wanted) in options.listen.iter().enumerate() {
        let mut address = addresses.tls.get(place).copied().unwrap_or(*wanted);
        if let Some(first) = tls.first().filter(|_| address.port() == 0) {
            address.set_port(first.port());
        }
        tls.push(add(address, Security::Tls, Endpoints::All)?);
    }
    addresses.tls = tls;
    if let Some(wanted) = options.gateway_listen {
        let address = addresses.gateway.unwrap_or(wanted);
        addresses.gateway = Some(add(address, Security::Tls, Endpoints::Gateway)?);
    }
    if let Some(wanted) = options.plaintext_listen {
        let address = addresses.plaintext.unwrap_or(wanted);
        addresses.plaintext = Some(add(address, Security::Plaintext, Endpoints::All)?);
    }
    Ok(listeners)
}

/// Tries so often while somebody else has the port, a twentieth of a second apart.
async fn bound(address: SocketAddr, tries: u32) -> io::Result<TcpListener> {
    for _ in 1..tries {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                smol::Timer::after(Duration::from_millis(50)).await;
            }
            bound => return bound,
        }
    }
    TcpListener::bind(address).await
}

/// The plane's thread; gives back what outlives it.
pub(crate) fn run(parts: Parts, queue: &Receiver<Job>) -> Option<(State, Records)> {
    let executor = Rc::new(LocalExecutor::new());
    let tls = match parts.kept.0.tls(parts.options.client_certificates) {
        Ok(tls) => tls,
        Err(error) => {
            log::error!("{error}");
            return None;
        }
    };
    let world = World::new(
        parts.options,
        parts.addresses,
        parts.kept,
        parts.behaviour,
        Rc::clone(&executor),
    );
    let world = match world {
        Ok(world) => Rc::new(world),
        Err(error) => {
            log::error!("{error}");
            return None;
        }
    };
    for listener in parts.listeners {
        let accept = http::accept(Rc::clone(&world), listener, Arc::clone(&tls));
        world.tasks.spawn(accept);
    }
    smol::block_on(executor.run(async {
        while let Ok(job) = queue.recv().await {
            job(&world);
        }
    }));
    world.tasks.clear();
    // Dropped tasks are still to be run once by the executor, which then drops what they own.
    while executor.try_tick() {}
    Some((world.state.borrow().clone(), world.records.take()))
}
