//! HTTP client of the API server: requests under one of three identities, streamed both ways, with
//! a deadline for the head of the response and none for its body.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Response, StatusCode, Uri};

use super::access::{Access, Freshness, Settings, Updater, bearer};
use super::error::Error;
use super::gate::Judged;
use super::heard::Heard;
use super::pool::{Pool, PooledBody, PooledConnection};
use super::upgraded::{Upgraded, UpgradedStream};
use crate::core::time::{Mono, Now};
use crate::net::Body;
use crate::net::dial::{Dialer, Route};
use crate::net::tls::{self, Tls};
use crate::net::{self, Elapsed, Stream, deadline};
use crate::{core::secret::Secret, executor::Executor};

/// The longest that a connection may take within the time of a call.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Time for which unreachable Pods are taken to be so.
const UNREACHABLE_FOR: Duration = Duration::from_secs(60);

/// Identity of a call. Only [`Identity::Agent`] uses the credentials of the kubeconfig; the others
/// use connections of their own, because the API server accepts a client certificate before it
/// looks at a token.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Identity {
    /// The agent itself, with the certificate or token of its kubeconfig.
    Agent,
    /// Owner of this token.
    Bearer(Secret),
    /// Nobody.
    Anonymous,
    /// The one that a gate gives to each request that it lets through.
    Judged(Judged),
}

/// The connection to one cluster. Clones share everything.
#[derive(Clone)]
pub struct Client {
    shared: Rc<Shared>,
}

struct Shared {
    access: Updater,
    dialer: Dialer,
    executor: Rc<Executor>,
    open: Rc<Cell<usize>>,
    heard: Rc<Heard>,
    clock: tls::Clock,
    /// TLS to services inside the cluster, made when first used.
    service_tls: OnceCell<Tls>,
    /// Makes connections that are used once.
    unpooled: Rc<Pool>,
    now: fn() -> Now,
    /// Until when the network of the Pods is taken to be out of reach.
    unreachable_until: Cell<Mono>,
    /// True if the last call found no server: the files may name another by now.
    has_failed: Cell<bool>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({} connections)", self.open_connections())
    }
}

/// A request with what is needed to send it again.
struct Call {
    /// Method and path for people, without the query: it may hold secrets.
    name: String,
    /// The head, where the request has no body and so can be sent again.
    again: Option<hyper::http::request::Parts>,
    request: Request<Body>,
}

impl Client {
    /// A client. Reads nothing and connects to nothing yet.
    pub fn new(settings: &Settings, dialer: Dialer, executor: Rc<Executor>) -> Self {
        let open = Rc::default();
        // What services answer says nothing of the API server.
        let unheard = Heard::new(settings.now);
        let heard = Heard::new(settings.now);
        Self {
            shared: Rc::new(Shared {
                access: Updater::new(settings, Rc::clone(&heard)),
                dialer,
                unpooled: Pool::new(Rc::clone(&executor), Rc::clone(&open), unheard),
                executor,
                open,
                heard,
                clock: settings.clock,
                service_tls: OnceCell::new(),
                now: settings.now,
                unreachable_until: Cell::default(),
                has_failed: Cell::default(),
            }),
        }
    }

    /// Connections that live, in use or idle.
    pub fn open_connections(&self) -> usize {
        self.shared.open.get()
    }

    /// The last byte of the API server.
    pub fn heard(&self) -> Rc<Heard> {
        Rc::clone(&self.shared.heard)
    }

    /// Sends a request and waits for the head of its answer; the body streams for as long as it is
    /// read. Path and query are taken from the request's URI, host and credentials never are:
    /// `Host` and `Authorization` are set here, hop-by-hop headers are removed. Dropping the future
    /// or the answer closes the connection.
    ///
    /// # Errors
    /// What kept the head from coming within `head_deadline`. An HTTP status is never an error
    /// here.
    pub async fn send(
        &self,
        mut request: Request<Body>,
        identity: &Identity,
        head_deadline: Duration,
    ) -> Result<Response<Body>, Error> {
        if let Identity::Judged(Judged(gate)) = identity {
            let name = format!("{} {}", request.method(), request.uri().path());
            return within(head_deadline, name, gate.send(request)).await;
        }
        strip_hop_by_hop(request.headers_mut());
        let call = Call::new(request);
        let name = call.name.clone();
        let work = async {
            let (response, pooled) = Box::pin(self.converse(call, identity, head_deadline)).await?;
            Ok(response.map(|incoming| Body::of_io(PooledBody::new(incoming, pooled))))
        };
        let sent = within(head_deadline, name, work).await;
        sent.inspect_err(|error| self.note(error))
    }

    fn note(&self, error: &Error) {
        if error.is_silence() {
            self.shared.heard.failed();
        }
    }

    /// Sends a request for an upgrade (`Upgrade` names the protocol) and gives the raw stream after
    /// the answer 101.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn upgrade(
        &self,
        mut request: Request<Body>,
        identity: &Identity,
        head_deadline: Duration,
    ) -> Result<Upgraded, Error> {
        keep_upgrade(&mut request)?;
        let call = Call::new(request);
        let name = call.name.clone();
        let work = async {
            let (response, pooled) = Box::pin(self.converse(call, identity, head_deadline)).await?;
            switched(&name, response, pooled).await
        };
        let sent = within(head_deadline, name.clone(), work).await;
        sent.inspect_err(|error| self.note(error))
    }

    /// One request over a connection that serves nothing else.
    pub(super) async fn send_once(
        &self,
        stream: Stream,
        call: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        let (response, pooled) = self.exchange_once(stream, call, request).await?;
        Ok(response.map(|incoming| Body::of_io(PooledBody::single(incoming, pooled))))
    }

    /// One request for an upgrade over a connection that serves nothing else.
    pub(super) async fn upgrade_once(
        &self,
        stream: Stream,
        call: &str,
        request: Request<Body>,
    ) -> Result<Upgraded, Error> {
        let (response, pooled) = self.exchange_once(stream, call, request).await?;
        switched(call, response, pooled).await
    }

    async fn exchange_once(
        &self,
        stream: Stream,
        call: &str,
        request: Request<Body>,
    ) -> Result<(Response<Incoming>, PooledConnection), Error> {
        let broken = |error: &hyper::Error| Error::Broken {
            call: call.to_owned(),
            why: causes(error),
        };
        let begun = self.shared.unpooled.begin(stream).await;
        let mut pooled = begun.map_err(|error| broken(&error))?;
        let answer = pooled.sender.send_request(request).await;
        let response = answer.map_err(|error| broken(&error))?;
        Ok((response, pooled))
    }

    /// Returns whether Pods are out of reach from here, as far as the last tries tell.
    pub(super) fn are_pods_unreachable(&self) -> bool {
        (self.shared.now)().mono < self.shared.unreachable_until.get()
    }

    /// Pods were reached by way of the API server only: for a while nobody tries it straight.
    pub(super) fn mark_unreachable(&self) {
        if !self.are_pods_unreachable() {
            let until = (self.shared.now)().mono.after(UNREACHABLE_FOR);
            self.shared.unreachable_until.set(until);
        }
    }

    pub(super) fn dialer(&self) -> &Dialer {
        &self.shared.dialer
    }

    /// TLS that believes any certificate, for services inside the cluster.
    pub(super) fn service_tls(&self) -> Result<&Tls, net::Error> {
        if let Some(tls) = self.shared.service_tls.get() {
            return Ok(tls);
        }
        let settings = tls::Settings {
            roots: tls::Roots::ExtraOnly,
            verification: tls::Verification::Opportunistic,
            ..tls::Settings::default()
        };
        let tls = Tls::new(&settings, self.shared.clock)?;
        Ok(self.shared.service_tls.get_or_init(|| tls))
    }

    /// One request to its answer, with the two reasons to try a second time: what is on disk has
    /// changed, and a connection from the pool had died unnoticed.
    async fn converse(
        &self,
        mut call: Call,
        identity: &Identity,
        limit: Duration,
    ) -> Result<(Response<Incoming>, PooledConnection), Error> {
        let freshness = if self.shared.has_failed.get() {
            Freshness::AfterFailure
        } else {
            Freshness::Recent
        };
        let access = self.access(freshness).await?;
        let again = call.again.take();
        let name = call.name.clone();
        let first = self
            .exchange(&access, call, again.as_ref(), identity, limit)
            .await;
        let is_refused = match &first {
            Ok((response, _)) => {
                response.status() == StatusCode::UNAUTHORIZED && *identity == Identity::Agent
            }
            Err(Error::Connection(error)) => tls::is_about_certificates(error),
            Err(_) => false,
        };
        let has_failed = matches!(first, Err(Error::Connection(_)));
        self.shared.has_failed.set(has_failed);
        if !is_refused {
            return first;
        }
        // The server does not believe us or we do not believe it: k3s may have been installed anew.
        let fresh = self.access(Freshness::AfterFailure).await?;
        let Some(parts) = again.filter(|_| !Rc::ptr_eq(&fresh, &access)) else {
            return first;
        };
        drop(first);
        let call = Call {
            name,
            again: None,
            request: Request::from_parts(parts, Body::empty()),
        };
        self.exchange(&fresh, call, None, identity, limit).await
    }

    async fn exchange(
        &self,
        access: &Access,
        call: Call,
        again: Option<&hyper::http::request::Parts>,
        identity: &Identity,
        limit: Duration,
    ) -> Result<(Response<Incoming>, PooledConnection), Error> {
        let name = call.name;
        let request = addressed(call.request, access, identity)?;
        let pool = match identity {
            Identity::Agent => &access.agent_pool,
            Identity::Bearer(_) | Identity::Anonymous | Identity::Judged(_) => &access.foreign_pool,
        };
        let mut pooled = match pool.take().await {
            Some(pooled) => pooled,
            None => self.open(access, identity, limit).await?,
        };
        let broken = |error: &hyper::Error| Error::Broken {
            call: name.clone(),
            why: causes(error),
        };
        let mut failed = match pooled.sender.try_send_request(request).await {
            Ok(response) => {
                self.shared.heard.byte();
                return Ok((response, pooled));
            }
            Err(failed) => failed,
        };
        let unsent = failed.take_message();
        let error = failed.into_error();
        // Not sent at all: hyper gives the request back. Sent and not answered: only where asking
        // twice changes nothing.
        let retry = match (unsent, again) {
            (Some(unsent), _) if pooled.is_reused => Some(unsent),
            (None, Some(parts)) if pooled.is_reused && is_safe(&parts.method) => {
                let request = Request::from_parts(parts.clone(), Body::empty());
                Some(addressed(request, access, identity)?)
            }
            _ => None,
        };
        let Some(request) = retry else {
            return Err(broken(&error));
        };
        drop(pooled);
        let mut pooled = self.open(access, identity, limit).await?;
        match pooled.sender.send_request(request).await {
            Ok(response) => {
                self.shared.heard.byte();
                Ok((response, pooled))
            }
            Err(error) => Err(broken(&error)),
        }
    }

    /// A new connection of the identity's class.
    async fn open(
        &self,
        access: &Access,
        identity: &Identity,
        limit: Duration,
    ) -> Result<PooledConnection, Error> {
        let (pool, tls) = match identity {
            Identity::Agent => (&access.agent_pool, access.agent_tls.as_ref()),
            Identity::Bearer(_) | Identity::Anonymous | Identity::Judged(_) => {
                (&access.foreign_pool, access.foreign_tls.as_ref())
            }
        };
        let route = Route::direct(&access.server.target)
            .with_tls(tls)
            .through(access.proxy.as_ref());
        let stream = self
            .shared
            .dialer
            .dial(&route, limit.min(CONNECT_WITHIN))
            .await?;
        let begun = pool.begin(stream).await;
        begun.map_err(|error| {
            let io = std::io::Error::other(error);
            let target = access.server.target.authority();
            net::Error::from_io(net::Phase::Tls, &io, target).into()
        })
    }

    async fn access(&self, freshness: Freshness) -> Result<Rc<Access>, Error> {
        let make_pool = || {
            Pool::new(
                Rc::clone(&self.shared.executor),
                Rc::clone(&self.shared.open),
                Rc::clone(&self.shared.heard),
            )
        };
        self.shared.access.access(freshness, make_pool).await
    }
}

impl Call {
    fn new(request: Request<Body>) -> Self {
        let name = format!("{} {}", request.method(), request.uri().path());
        let (parts, body) = request.into_parts();
        let again = hyper::body::Body::is_end_stream(&body).then(|| parts.clone());
        Self {
            name,
            again,
            request: Request::from_parts(parts, body),
        }
    }
}

/// Runs a call with a deadline.
pub(super) async fn within<T>(
    limit: Duration,
    call: String,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match deadline(limit, work).await {
        Ok(done) => done,
        Err(Elapsed(limit)) => Err(Error::NoAnswer { call, limit }),
    }
}

/// Messages of a hyper error, from the nearest cause to the farthest.
fn causes(error: &hyper::Error) -> String {
    crate::error::Error::new("").because(error).why.join(": ")
}

/// The raw stream after 101, or the answer.
async fn switched(
    call: &str,
    mut response: Response<Incoming>,
    pooled: PooledConnection,
) -> Result<Upgraded, Error> {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let response = response.map(|body| Body::of_io(PooledBody::new(body, pooled)));
        return Ok(Upgraded::Refused(response));
    }
    let broken = |why: String| Error::Broken {
        call: call.to_owned(),
        why,
    };
    let upgraded = hyper::upgrade::on(&mut response).await;
    let upgraded = upgraded.map_err(|error| broken(causes(&error)))?;
    let stream = UpgradedStream::new(upgraded).map_err(|error| broken(error.to_string()))?;
    drop(pooled);
    let (parts, _no_body) = response.into_parts();
    Ok(Upgraded::Switched(Box::new(parts), stream))
}

/// Removes what is for one connection only, but the wish for an upgrade, which is for the next one
/// too.
pub(super) fn keep_upgrade(request: &mut Request<Body>) -> Result<(), Error> {
    let Some(protocol) = request.headers().get(header::UPGRADE).cloned() else {
        return Err(Error::BadRequest(
            "an upgrade without an Upgrade header".to_owned(),
        ));
    };
    let headers = request.headers_mut();
    strip_hop_by_hop(headers);
    headers.insert(header::UPGRADE, protocol);
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    Ok(())
}

/// Methods that change nothing, so that asking twice is the same as asking once.
fn is_safe(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD || method == Method::OPTIONS
}

/// The request as the API server gets it: path below the server's base, our `Host`, the identity's
/// `Authorization` and no other.
fn addressed(
    mut request: Request<Body>,
    access: &Access,
    identity: &Identity,
) -> Result<Request<Body>, Error> {
    // CONNECT would turn the connection into a tunnel that nobody has asked for by its right name.
    if request.method() == Method::CONNECT {
        return Err(Error::BadRequest(
            "CONNECT is not a call of the API".to_owned(),
        ));
    }
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", PathAndQuery::as_str);
    let path = format!("{}{path}", access.server.base);
    let uri: Uri = path
        .parse()
        .map_err(|error| Error::BadRequest(format!("the path cannot be sent: {error}")))?;
    if uri.authority().is_some() {
        return Err(Error::BadRequest(
            "the path cannot be sent: it names a host".to_owned(),
        ));
    }
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    headers.insert(header::HOST, access.server.authority.clone());
    headers.remove(header::AUTHORIZATION);
    let authorization = match identity {
        Identity::Agent => access.authorization.clone(),
        // What is judged has its identity from the gate, and none besides.
        Identity::Anonymous | Identity::Judged(_) => None,
        Identity::Bearer(token) => Some(bearer(token).ok_or_else(|| {
            Error::BadRequest("the token contains characters that HTTP does not allow".to_owned())
        })?),
    };
    if let Some(authorization) = authorization {
        headers.insert(header::AUTHORIZATION, authorization);
    }
    Ok(request)
}

/// Removes the headers that are for one connection only, and those that `Connection` nominates (RFC
/// 9110, 7.6.1).
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    const HOP_BY_HOP: [&str; 9] = [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    let nominated: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in nominated {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_for_one_connection_go_no_further() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, X-Secret"),
            ("x-secret", "1"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("accept", "application/json"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        strip_hop_by_hop(&mut headers);
        let left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["accept"]);
    }

    #[test]
    fn a_secret_shows_neither_in_debug_output_nor_in_a_header() {
        let secret = Secret::new("s3cret");
        let shown = format!(
            "{:?} {:?} {:?}",
            secret,
            Identity::Bearer(secret.clone()),
            bearer(&secret)
        );
        assert!(!shown.contains("s3cret"), "{shown}");
        assert!(bearer(&Secret::new("a\r\nb: c")).is_none());
    }
}
