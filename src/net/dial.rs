//! Opens a [`Stream`] to a name and port: name resolution, TCP, proxy and TLS under one deadline.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use smol::Async;
use smol::future::BoxedLocal;
use smol::lock::Semaphore;

use super::proxy::{self, Proxy};
use super::target::Target;
use super::tls::Tls;
use super::{Elapsed, Error, ErrorKind, Phase, Stream, deadline};
use crate::executor;

/// Look-ups that may be outstanding at once. A look-up holds a thread of the blocking pool until
/// libc gives up (5 s a name server and attempt), so without a bound a network without DNS would
/// take the whole pool.
const LOOKUPS_MAX: usize = 2;

/// Head start of an address before the next one is tried in parallel (RFC 8305 recommends 250 ms).
const STAGGER: Duration = Duration::from_millis(250);

/// Addresses tried of one name. More only help an attacker who answers our look-ups.
const ADDRESSES_MAX: usize = 8;

/// A silent connection is probed after 30 s, then each 10 s; after three lost probes it is dead.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// Socket options of the connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SocketOptions {
    /// Bytes that may wait unsent in the kernel (TCP_NOTSENT_LOWAT). The link sets 16 KiB: what
    /// waits in the kernel has left our priorities.
    pub unsent_bytes_max: Option<u32>,
    /// Maximum time that sent bytes may stay unacknowledged before the connection is dead
    /// (TCP_USER_TIMEOUT); the kernel's default is about 15 min.
    pub unacknowledged_max: Option<Duration>,
}

/// Everything that leads to a connection.
#[derive(Clone, Debug)]
pub struct Route<'a> {
    pub target: &'a Target,
    /// The proxy between, chosen by [`proxy::Proxies::between`].
    pub proxy: Option<&'a Proxy>,
    /// TLS to the target; `None` is plain TCP.
    pub tls: Option<&'a Tls>,
    /// Options of the TCP socket.
    pub options: SocketOptions,
    /// Addresses of the target that were looked up and checked: they are dialled, and nothing is
    /// looked up again. A proxy looks the name up itself.
    pub addresses: Option<&'a [SocketAddr]>,
}

impl<'a> Route<'a> {
    /// The way to `target` without a proxy, plain.
    pub fn direct(target: &'a Target) -> Self {
        Self {
            target,
            proxy: None,
            tls: None,
            options: SocketOptions::default(),
            addresses: None,
        }
    }

    /// The same way, to these addresses of the target alone.
    #[must_use]
    pub fn at(mut self, addresses: Option<&'a [SocketAddr]>) -> Self {
        self.addresses = addresses;
        self
    }

    /// The same way with TLS to the target.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<&'a Tls>) -> Self {
        self.tls = tls;
        self
    }

    /// The same way through a proxy.
    #[must_use]
    pub fn through(mut self, proxy: Option<&'a Proxy>) -> Self {
        self.proxy = proxy;
        self
    }

    /// The same way with other socket options.
    #[must_use]
    pub fn with_options(mut self, options: SocketOptions) -> Self {
        self.options = options;
        self
    }
}

/// Makes connections. Clones share the bound on look-ups, so a process has one and clones it.
#[derive(Clone, Debug)]
pub struct Dialer {
    lookups: Arc<Semaphore>,
}

impl Default for Dialer {
    fn default() -> Self {
        Self {
            lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)),
        }
    }
}

impl Dialer {
    /// Connects along `route`; `limit` is for everything together. Dropping the future ends every
    /// attempt.
    ///
    /// # Errors
    /// What went wrong and in which phase; at the deadline, the phase that was not over.
    pub async fn dial(&self, route: &Route<'_>, limit: Duration) -> Result<Stream, Error> {
        let phase = Cell::new(Phase::Dns);
        // Boxed: a handshake takes 20 KB that whoever waits for an answer later must not carry
        // along.
        match deadline(limit, Box::pin(self.connect(route, &phase))).await {
            Ok(done) => done,
            Err(Elapsed(limit)) => Err(Error::new(
                phase.get(),
                ErrorKind::Deadline(limit),
                route.target.authority(),
            )),
        }
    }

    /// Connects to whichever of `addresses` answers first, in their order, plain; `name` is for the
    /// error.
    ///
    /// # Errors
    /// Why the first address failed, or the deadline.
    pub async fn dial_any(
        &self,
        addresses: &[SocketAddr],
        name: &str,
        limit: Duration,
    ) -> Result<Stream, Error> {
        let some = addresses.get(..ADDRESSES_MAX).unwrap_or(addresses);
        match deadline(limit, Box::pin(race(some))).await {
            Ok(tcp) => tcp
                .and_then(|tcp| {
                    prepare(&tcp, SocketOptions::default())?;
                    Ok(Stream::Plain(tcp.into()))
                })
                .map_err(|error| Error::from_io(Phase::Tcp, &error, name)),
            Err(Elapsed(limit)) => Err(Error::new(Phase::Tcp, ErrorKind::Deadline(limit), name)),
        }
    }

    /// The addresses of a target, in the order in which to try them.
    ///
    /// # Errors
    /// What the resolver says, or the deadline.
    pub async fn look_up(
        &self,
        target: &Target,
        limit: Duration,
    ) -> Result<Vec<SocketAddr>, Error> {
        match deadline(limit, Box::pin(self.resolve(target))).await {
            Ok(done) => done,
            Err(Elapsed(limit)) => Err(Error::new(
                Phase::Dns,
                ErrorKind::Deadline(limit),
                target.authority(),
            )),
        }
    }

    async fn connect(&self, route: &Route<'_>, phase: &Cell<Phase>) -> Result<Stream, Error> {
        let nearest = route.proxy.map_or(route.target, |proxy| &proxy.target);
        let addresses = match (route.proxy, route.addresses) {
            (None, Some(checked)) => checked.to_vec(),
            (Some(_), _) | (None, None) => self.resolve(nearest).await?,
        };
        phase.set(Phase::Tcp);
        let tcp = race(&addresses)
            .await
            .and_then(|tcp| {
                prepare(&tcp, route.options)?;
                Ok(tcp)
            })
            .map_err(|error| Error::from_io(Phase::Tcp, &error, nearest.authority()))?;
        let mut stream = Stream::Plain(tcp.into());
        if let Some(proxy) = route.proxy {
            if let Some(tls) = &proxy.tls {
                phase.set(Phase::Tls);
                stream = tls.connect(stream, &proxy.target).await?;
            }
            phase.set(Phase::Proxy);
            proxy::tunnel(&mut stream, proxy, route.target).await?;
        }
        let Some(tls) = route.tls else {
            return Ok(stream);
        };
        phase.set(Phase::Tls);
        tls.connect(stream, route.target).await
    }

    /// The addresses of a target, in the order in which to try them. An address needs no look-up.
    async fn resolve(&self, target: &Target) -> Result<Vec<SocketAddr>, Error> {
        if let Ok(address) = target.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, target.port)]);
        }
        let unknown =
            |why: String| Error::new(Phase::Dns, ErrorKind::UnknownHost(why), target.authority());
        // The permit travels into the blocking job and comes back when libc does: dropping our wait
        // cannot end the look-up.
        let permit = self.lookups.acquire_arc().await;
        let (host, port) = (target.host.clone(), target.port);
        let found = executor::unblock(move || {
            let found = (host.as_str(), port).to_socket_addrs().map(Vec::from_iter);
            drop(permit);
            found
        })
        .await
        .map_err(|error| unknown(error.to_string()))?;
        if found.is_empty() {
            return Err(unknown("the name has no address".to_owned()));
        }
        Ok(alternate(found))
    }
}

/// Takes turns between the families, beginning with the one that the resolver prefers (RFC 6724),
/// and drops repetitions.
fn alternate(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = found.first().is_some_and(SocketAddr::is_ipv6);
    let (preferred, other): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|address| address.is_ipv6() == first_is_v6);
    let (mut preferred, mut other) = (preferred.into_iter(), other.into_iter());
    let mut order: Vec<SocketAddr> = Vec::new();
    loop {
        let turn = [preferred.next(), other.next()];
        if turn.iter().all(Option::is_none) {
            break;
        }
        for address in turn.into_iter().flatten() {
            if !order.contains(&address) {
                order.push(address);
            }
        }
    }
    order.truncate(ADDRESSES_MAX);
    order
}

type Attempt = BoxedLocal<io::Result<Async<TcpStream>>>;

enum Step {
    Connected(Async<TcpStream>),
    Failed(io::Error),
    TimeForTheNext,
}

/// Tries the addresses side by side, each with a head start over the next; a failure starts the
/// next at once. The first connection wins and the other attempts are dropped.
async fn race(addresses: &[SocketAddr]) -> io::Result<Async<TcpStream>> {
    let mut waiting = addresses.iter();
    let mut running: Vec<Attempt> = Vec::new();
    let mut first_failure = None;
    loop {
        let mut stagger = smol::Timer::never();
        if let Some(address) = waiting.next() {
            running.push(Box::pin(Async::<TcpStream>::connect(*address)));
            stagger = smol::Timer::after(STAGGER);
        }
        if running.is_empty() {
            return Err(first_failure.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()));
        }
        match step(&mut running, &mut stagger).await {
            Step::Connected(tcp) => return Ok(tcp),
            // The first failure is that of the preferred address, so it is the one that a person
            // should read.
            Step::Failed(error) => {
                first_failure.get_or_insert(error);
            }
            Step::TimeForTheNext => {}
        }
    }
}

async fn step(running: &mut Vec<Attempt>, stagger: &mut smol::Timer) -> Step {
    std::future::poll_fn(|cx| {
        for (index, attempt) in running.iter_mut().enumerate() {
            if let Poll::Ready(outcome) = attempt.as_mut().poll(cx) {
                drop(running.swap_remove(index));
                return Poll::Ready(outcome.map_or_else(Step::Failed, Step::Connected));
            }
        }
        Pin::new(&mut *stagger)
            .poll(cx)
            .map(|_| Step::TimeForTheNext)
    })
    .await
}

/// Small messages must not wait for each other (TCP_NODELAY), and a peer that lost its power must
/// be noticed (keep-alive).
fn prepare(tcp: &Async<TcpStream>, options: SocketOptions) -> io::Result<()> {
    let socket = socket2::SockRef::from(tcp.get_ref());
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(
        &socket2::TcpKeepalive::new()
            .with_time(KEEPALIVE_IDLE)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_PROBES),
    )?;
    if let Some(bytes) = options.unsent_bytes_max {
        socket.set_tcp_notsent_lowat(bytes)?;
    }
    if options.unacknowledged_max.is_some() {
        socket.set_tcp_user_timeout(options.unacknowledged_max)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_take_turns_and_the_resolvers_choice_is_first() {
        let found = addresses(&["[::1]:1", "[::2]:1", "10.0.0.1:1", "[::1]:1", "10.0.0.2:1"]);
        let wanted = addresses(&["[::1]:1", "10.0.0.1:1", "[::2]:1", "10.0.0.2:1"]);
        assert_eq!(alternate(found), wanted);
        let only = addresses(&["10.0.0.1:1", "10.0.0.2:1"]);
        assert_eq!(alternate(only.clone()), only);
    }

    #[test]
    fn a_name_with_a_thousand_addresses_is_cut() {
        let many = (0..1000_u32)
            .map(|n| SocketAddr::new(IpAddr::from(n.to_be_bytes()), 1))
            .collect();
        assert_eq!(alternate(many).len(), ADDRESSES_MAX);
    }

    #[test]
    fn a_literal_of_version_6_gets_brackets_in_an_authority() {
        assert_eq!(Target::new("[::1]", 6443).authority(), "[::1]:6443");
        assert_eq!(Target::new("::1", 6443).authority(), "[::1]:6443");
        assert_eq!(Target::new("cp.example", 443).authority(), "cp.example:443");
    }

    /// A port that nobody listens at, nor can as long as the socket is there.
    fn refusing() -> (socket2::Socket, SocketAddr) {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        socket.bind(&any.into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        (socket, address)
    }

    #[test]
    fn a_dead_first_address_costs_no_more_than_the_head_start() {
        smol::block_on(async {
            let alive = smol::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (_refusing, refused) = refusing();
            // 192.0.2.0/24 is for documentation: it answers nothing, or the route is missing; both
            // must not end the race.
            let silent = "192.0.2.1:9".parse().unwrap();
            let alive = alive.local_addr().unwrap();
            let all = [silent, refused, alive];
            let race = deadline(Duration::from_secs(5), race(&all));
            let tcp = race.await.unwrap().unwrap();
            assert_eq!(tcp.get_ref().peer_addr().unwrap(), alive);
        });
    }

    #[test]
    fn a_refused_port_says_so_with_its_phase() {
        smol::block_on(async {
            let (_refusing, refused) = refusing();
            let target = Target::new("127.0.0.1", refused.port());
            let route = Route::direct(&target);
            let error = Dialer::default()
                .dial(&route, Duration::from_secs(5))
                .await
                .unwrap_err();
            assert_eq!(
                (error.phase, error.kind),
                (Phase::Tcp, ErrorKind::ConnectionRefused)
            );
        });
    }

    #[test]
    fn the_kernel_takes_the_options_of_the_link() {
        smol::block_on(async {
            let listener = smol::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let target = Target::new("127.0.0.1", listener.local_addr().unwrap().port());
            let route = Route::direct(&target).with_options(SocketOptions {
                unsent_bytes_max: Some(16 * 1024),
                unacknowledged_max: Some(Duration::from_secs(30)),
            });
            let stream = Dialer::default()
                .dial(&route, Duration::from_secs(5))
                .await
                .unwrap();
            let socket = socket2::SockRef::from(stream.tcp());
            assert_eq!(socket.tcp_notsent_lowat().unwrap(), 16 * 1024);
            assert_eq!(
                socket.tcp_user_timeout().unwrap(),
                Some(Duration::from_secs(30))
            );
            assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
        });
    }
}
