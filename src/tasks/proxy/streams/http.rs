//! HTTP/1.1 on one stream: every request passes the same authorization as in JSON, and continues on
//! a connection of the agent's own.

use std::{
    cell::{OnceCell, RefCell},
    convert::Infallible,
    rc::Rc,
    time::Duration,
};

use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue, UPGRADE},
    http::request,
    server::conn::http1,
    service::service_fn,
};
use smol::{
    channel::{Receiver, Sender, bounded},
    future::FutureExt as _,
    io::AsyncWriteExt,
};
use smol_hyper::rt::{FuturesIo, SmolTimer};

use super::{
    LAST_WORD_WITHIN,
    flow::{Counted, Flow},
    relay::{self, Switched},
};
use crate::{
    core::{
        audit::RequestOutcome,
        proxy::{CallTarget, Form, HeaderList, Limit, Limits, RawRequest, Scheme, route_http},
    },
    host::clock,
    kube::{Body, Upgraded, strip_hop_by_hop},
    link::mux::MuxStream,
    tasks::proxy::{
        Shared,
        admission::{Cut, Pass},
        audit::Record,
        authorization::Authorization,
        deadline::until,
        denial::{Cause, Denial},
        upstream,
    },
    wire::stream::Service,
};

/// Buffer of hyper for a request or an answer: with 128 streams this decides how much memory a
/// caller can take.
const BUFFER_BYTES_MAX: usize = 16 * 1024;
/// Time that a stream may wait for its next request, and for the head of one.
const HEAD_WITHIN: Duration = Duration::from_secs(90);
/// Time in which an answer whose permission was withdrawn ends by itself.
const END_WITHIN: Duration = Duration::from_secs(1);
/// Header with the scheme of a service; the agent reads and removes it.
const SCHEME: &str = "x-pipeops-scheme";

/// Destination of the requests of a stream.
#[derive(Clone, Debug)]
pub(super) enum Destination {
    Kubernetes,
    Service(Service),
}

/// State that the requests of one stream share.
struct Server {
    shared: Rc<Shared>,
    to: Destination,
    /// Connection after a 101, until its head was sent.
    switched: RefCell<Option<Switched>>,
    /// Receives the permission of each request that begins.
    begun: (Sender<Cut>, Receiver<Cut>),
}

/// Serves requests until the stream ends, or until one of them has switched protocols and that is
/// over.
pub(super) async fn serve(shared: Rc<Shared>, stream: MuxStream, to: Destination) {
    let watch = stream.watch();
    let server = Rc::new(Server {
        shared,
        to,
        switched: RefCell::new(None),
        begun: bounded(1),
    });
    let service = service_fn({
        let server = Rc::clone(&server);
        move |request| Rc::clone(&server).answer(request)
    });
    let connection = http1::Builder::new()
        .max_buf_size(BUFFER_BYTES_MAX)
        .timer(SmolTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .serve_connection(FuturesIo::new(stream), service)
        .without_shutdown();
    let done = async {
        match connection.await {
            Ok(parts) => Some(parts),
            Err(error) => {
                log::debug!("proxy: a stream of HTTP ended: {error}");
                None
            }
        }
    };
    // hyper does not look for the caller's end while bytes of a next request lie in its buffer.
    let gone = async {
        watch.ended().await;
        None
    };
    let withdrawn = async {
        server.withdrawn().await;
        None
    };
    let Some(parts) = done.or(gone).or(withdrawn).await else {
        return;
    };
    let mut stream = parts.io.into_inner();
    let switched = server.switched.take();
    if let Some(switched) = switched {
        return relay::run(stream, parts.read_buf, switched).await;
    }
    let moment = clock::now().mono.after(LAST_WORD_WITHIN);
    let closed = until(moment, stream.close()).await;
    log::trace!("proxy: a stream of HTTP is over: {closed:?}");
}

impl Server {
    /// Waits until the permission of the request that runs was withdrawn and its answer had time to
    /// end by itself. It does not where the caller has stopped reading: nobody polls the answer
    /// then, and the backend would stay connected. A next request on this stream says that the
    /// answer has ended.
    async fn withdrawn(&self) {
        let begun = &self.begun.1;
        let mut running = begun.recv().await.ok();
        while let Some(cut) = &mut running {
            let next = async { Some(begun.recv().await) };
            let is_overdue = async {
                cut.cut().await;
                clock::until(clock::now().mono.after(END_WITHIN)).await;
                None
            };
            match next.or(is_overdue).await {
                Some(next) => running = next.ok(),
                None => return,
            }
        }
    }

    async fn answer(
        self: Rc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let answer = Box::pin(self.converse(request)).await;
        Ok(answer.unwrap_or_else(|denial| refusal(&denial)))
    }

    async fn converse(&self, request: Request<Incoming>) -> Result<Response<Body>, Denial> {
        let (head, body) = request.into_parts();
        let shared = &self.shared;
        let admitted = match shared.admit(&self.asked(&head)?, route_http) {
            Ok(admitted) => admitted,
            Err(denied) => {
                if let Some(row) = denied.row {
                    shared.audit.refused(row).await;
                }
                return Err(denied.denial);
            }
        };
        let pass = shared.admission.ask(&admitted.call)?;
        if let Err(error) = self.begun.0.force_send(pass.watch_cut()) {
            log::debug!("proxy: a stream of HTTP is over already: {error}");
        }
        let written: Rc<OnceCell<Record>> = Rc::default();
        let call = Rc::clone(&admitted.call);
        let limits = call.limits(clock::now());
        let opening = async {
            let authorization = shared.authorization(admitted, &pass, &written).await?;
            let opened = self.open(&authorization, &limits, body, &written).await;
            if opened.is_err()
                && let Some(record) = written.get()
            {
                record.ended(RequestOutcome::Failed);
            }
            opened
        };
        let cut = async { Err(pass.cut().await) };
        let opened = Box::pin(opening).or(cut).await?;
        Ok(self.begin(opened, pass, written, (&call.target, limits.idle)))
    }

    async fn open(
        &self,
        authorization: &Authorization,
        limits: &Limits,
        body: Incoming,
        written: &Rc<OnceCell<Record>>,
    ) -> Result<Upgraded, Denial> {
        if let Form::Upgrade(protocol) = &authorization.call.form {
            return upstream::upgrade(&self.shared, authorization, limits, protocol).await;
        }
        let body = Body::new(Counted::new(body, Rc::clone(written)));
        let sent = upstream::send(&self.shared, authorization, limits, body).await;
        sent.map(Upgraded::Refused)
    }

    /// The head of the answer; what follows it keeps its place at the gate for as long as it flows.
    fn begin(
        &self,
        opened: Upgraded,
        pass: Pass,
        written: Rc<OnceCell<Record>>,
        (target, idle): (&CallTarget, Duration),
    ) -> Response<Body> {
        match opened {
            Upgraded::Refused(response) => {
                if let Some(record) = written.get() {
                    record.answered(target, response.status().as_u16());
                }
                // The window of the stream holds it back from here on, so it need not hold up
                // others.
                pass.step_aside();
                let (mut head, body) = response.into_parts();
                strip_hop_by_hop(&mut head.headers);
                Response::from_parts(head, Body::of_io(Flow::new(body, pass, written, idle)))
            }
            Upgraded::Switched(head, stream) => {
                let mut response = Response::new(Body::empty());
                *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                *response.headers_mut() = switching(head.headers);
                self.switched.replace(Some(Switched {
                    stream,
                    pass,
                    written,
                }));
                response
            }
        }
    }

    /// Converts the head of a request into the common form.
    fn asked(&self, head: &request::Parts) -> Result<RawRequest, Denial> {
        // A request in absolute form names a host, and which of the two counts is not ours to
        // guess.
        if head.uri.scheme().is_some() || head.uri.authority().is_some() {
            return Err(invalid("send the path alone, not a whole URL"));
        }
        let mut headers = header_list(&head.headers)?;
        let (namespace, service, port, scheme) = match &self.to {
            Destination::Kubernetes => (String::new(), String::new(), 0, Scheme::Http),
            Destination::Service(service) => (
                service.namespace.clone(),
                service.name.clone(),
                i64::from(service.port.get()),
                take_scheme(&mut headers)?,
            ),
        };
        Ok(RawRequest {
            method: head.method.as_str().to_owned(),
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            headers,
            scheme,
            namespace,
            service,
            port,
            is_websocket: false,
            protocol: String::new(),
            limit: Limit::Default,
        })
    }
}

fn invalid(text: &str) -> Denial {
    Denial::new(Cause::Invalid, format!("invalid request: {text}"))
}

pub(in crate::tasks::proxy) fn header_list(headers: &HeaderMap) -> Result<HeaderList, Denial> {
    let text = |value: &HeaderValue| {
        let text = std::str::from_utf8(value.as_bytes()).map(str::to_owned);
        text.map_err(|_not_text| invalid("a header is not UTF-8"))
    };
    headers
        .keys()
        .map(|name| {
            let values = headers.get_all(name).iter().map(text);
            Ok((name.as_str().to_owned(), values.collect::<Result<_, _>>()?))
        })
        .collect()
}

fn take_scheme(headers: &mut HeaderList) -> Result<Scheme, Denial> {
    let Some(at) = headers.iter().position(|(name, _)| name == SCHEME) else {
        return Ok(Scheme::Http);
    };
    let (_, values) = headers.swap_remove(at);
    match values.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["http"] => Ok(Scheme::Http),
        ["https"] => Ok(Scheme::Https),
        _ => Err(invalid("x-pipeops-scheme is http or https")),
    }
}

/// The headers of a 101, with those of this connection in place of those of the other one.
fn switching(mut headers: HeaderMap) -> HeaderMap {
    let protocol = headers.get(UPGRADE).cloned();
    strip_hop_by_hop(&mut headers);
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Some(protocol) = protocol {
        headers.insert(UPGRADE, protocol);
    }
    headers
}

fn refusal(denial: &Denial) -> Response<Body> {
    log::debug!(
        "proxy: a request on a stream was not answered: {}",
        denial.text
    );
    let mut response = Response::new(Body::full(denial.status_object()));
    *response.status_mut() = denial.code();
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
