//! Transport of HTTP calls: ureq over connections of our own dialler.
//!
//! ureq blocks, so its calls run in the blocking pool. A connection waits for its socket, for
//! ureq's deadline and for the end of its [`Calls`] at once: dropping those ends a call within
//! milliseconds, whatever it waits for.

use std::{fmt, io, time::Duration};

use smol::{
    channel::{self, Receiver, Sender},
    future::{block_on, or},
    io::{AsyncReadExt, AsyncWriteExt},
    lock::Mutex,
};
use ureq::{
    Agent,
    config::{AutoHeaderValue, Config},
    http::Uri,
    unversioned::{
        resolver::{ResolvedSocketAddrs, Resolver},
        transport::{
            Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout,
            Transport as UreqTransport,
        },
    },
};

use crate::{
    core::time::Mono,
    net::{
        Elapsed, Error, Stream, deadline,
        dial::{Dialer, Route},
        proxy::Proxies,
        target::Target,
        tls::Tls,
    },
};

const CONNECT_WITHIN: Duration = Duration::from_secs(15);
/// Deadline for one piece of a request, of [`BUFFER_BYTES`] at most.
const WRITE_WITHIN: Duration = Duration::from_secs(60);
/// Read-ahead of a connection, and the longest head of a response.
const BUFFER_BYTES: usize = 16 * 1024;

/// Transport to a server.
#[derive(Clone, Debug)]
pub struct Transport {
    /// Makes connections.
    pub dialer: Dialer,
    /// Proxies between.
    pub proxies: Proxies,
    /// TLS for addresses with https.
    pub tls: Option<Tls>,
    /// User agent: `pipeops-agent/1.2.3`.
    pub user_agent: String,
    /// Reads the time.
    pub clock: fn() -> Mono,
}

/// Deadlines of a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Deadline of the whole body.
    pub(super) body: Option<Duration>,
    /// Deadline between two chunks.
    pub(super) read: Option<Duration>,
}

/// Calls over one connection, one after the other. Dropping it ends the one that runs.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) agent: Agent,
    _end: Sender<()>,
}

impl Transport {
    /// Calls that follow no redirect and read no settings but ours.
    pub(super) fn calls(&self, limits: Limits) -> Calls {
        let (end, ended) = channel::bounded(1);
        let config = Config::builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .accept(AutoHeaderValue::None)
            .accept_encoding(AutoHeaderValue::None)
            .user_agent(&self.user_agent)
            .max_response_header_size(BUFFER_BYTES)
            .max_idle_connections(1)
            .timeout_per_write(Some(WRITE_WITHIN))
            .timeout_recv_body(limits.body)
            .timeout_per_read(limits.read)
            .build();
        let transport = self.clone();
        Calls {
            agent: Agent::with_parts(config, Dial { transport, ended }, NoLookup),
            _end: end,
        }
    }
}

/// Opens connections.
struct Dial {
    transport: Transport,
    ended: Receiver<()>,
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dial").finish_non_exhaustive()
    }
}

impl Connector for Dial {
    type Out = Connection;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<Connection>, ureq::Error> {
        let usual_port = if details.needs_tls() { 443 } else { 80 };
        let port = details.uri.port_u16().unwrap_or(usual_port);
        let target = Target::new(details.uri.host().unwrap_or_default(), port);
        let tls = self.transport.tls.as_ref().filter(|_| details.needs_tls());
        let route = Route::direct(&target)
            .with_tls(tls)
            .through(self.transport.proxies.between(&target));
        let dialled = async {
            let stream = self.transport.dialer.dial(&route, CONNECT_WITHIN).await;
            stream.map_err(|error| ureq::Error::Other(Box::new(error)))
        };
        let stream = block_on(or(dialled, end(&self.ended)))?;
        Ok(Some(Connection {
            stream: Mutex::new(stream),
            is_tls: tls.is_some(),
            buffers: LazyBuffers::new(BUFFER_BYTES, BUFFER_BYTES),
            ended: self.ended.clone(),
        }))
    }
}

/// An open connection. The lock makes it `Sync`, which ureq asks for; nobody ever waits for it.
struct Connection {
    stream: Mutex<Stream>,
    is_tls: bool,
    buffers: LazyBuffers,
    ended: Receiver<()>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl UreqTransport for Connection {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let stream = self.stream.get_mut();
        let output = self.buffers.output();
        let output = output.get(..amount).unwrap_or_default();
        wait(&self.ended, timeout.for_write(), async {
            stream.write_all(output).await?;
            stream.flush().await
        })
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let stream = self.stream.get_mut();
        let input = self.buffers.input_append_buf();
        let read = wait(&self.ended, timeout.for_read(), stream.read(input))?;
        self.buffers.input_appended(read);
        Ok(read > 0)
    }

    fn is_open(&mut self) -> bool {
        // What can be read between two calls is the end, or bytes that nobody asked for.
        let mut byte = [0];
        let reading = self.stream.get_mut().read(&mut byte);
        block_on(smol::future::poll_once(reading)).is_none()
    }

    fn is_tls(&self) -> bool {
        self.is_tls
    }
}

fn wait<T>(
    ended: &Receiver<()>,
    timeout: NextTimeout,
    work: impl Future<Output = io::Result<T>>,
) -> Result<T, ureq::Error> {
    let work = async {
        match deadline(*timeout.after, work).await {
            Ok(done) => done.map_err(ureq::Error::Io),
            Err(Elapsed(_)) => Err(ureq::Error::Timeout(timeout.reason)),
        }
    };
    block_on(or(work, end(ended)))
}

async fn end<T>(ended: &Receiver<()>) -> Result<T, ureq::Error> {
    // Nothing is ever sent: it is ready when the sender is gone.
    let _closed = ended.recv().await;
    Err(ureq::Error::Io(io::ErrorKind::Interrupted.into()))
}

/// Leaves names to the dialler, and to a proxy where there is one.
#[derive(Debug)]
struct NoLookup;

impl Resolver for NoLookup {
    fn resolve(
        &self,
        _: &Uri,
        _: &Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        Ok(self.empty())
    }
}

/// The failure of our dialler, where it is one.
pub(super) fn dial_error(error: &ureq::Error) -> Option<&Error> {
    let ureq::Error::Other(inside) = error else {
        return None;
    };
    inside.downcast_ref()
}

#[cfg(test)]
mod tests {
    use smol::{net::TcpListener, pin};

    use super::*;

    #[test]
    fn a_call_that_nobody_waits_for_ends_at_once() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = format!("http://{}/", listener.local_addr().unwrap());
            let transport = Transport {
                dialer: Dialer::default(),
                proxies: Proxies::default(),
                tls: None,
                user_agent: "test".to_owned(),
                clock: || Mono::since_boot(Duration::ZERO),
            };
            let calls = transport.calls(Limits {
                body: None,
                read: None,
            });
            let agent = calls.agent.clone();
            let asking = crate::executor::unblock(move || agent.get(address).call().map(drop));
            pin!(asking);
            // It has asked, and gets no answer.
            let (mut peer, _) = listener.accept().await.unwrap();
            let mut head = [0; 1024];
            assert!(peer.read(&mut head).await.unwrap() > 0);
            assert!(smol::future::poll_once(&mut asking).await.is_none());
            drop(calls);
            let ended = deadline(Duration::from_secs(30), asking).await.unwrap();
            assert!(matches!(ended, Err(ureq::Error::Io(_))), "{ended:?}");
            assert_eq!(peer.read(&mut head).await.unwrap(), 0);
        });
    }
}
