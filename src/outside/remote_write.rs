//! A receiver of samples that speaks Prometheus' remote write: Prometheus, VictoriaMetrics, Mimir, Thanos.
//!
//! A request is sent and its answer sorted into four kinds; what follows from them is decided elsewhere.

use std::{cell::RefCell, fmt, rc::Rc, time::Duration};

use http_body_util::BodyExt;
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header::{
        AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, LOCATION,
        RETRY_AFTER, USER_AGENT,
    },
};
use smol::{LocalExecutor, Task};
use smol_hyper::rt::FuturesIo;

use crate::{
    core::{secret::Secret, time::in_words},
    error::{Error, Result, Retry},
    net::{
        Body, Bytes, deadline,
        dial::{Dialer, Route, Target},
        proxy::{Proxies, Use},
        tls::Tls,
    },
    wire::remote_write as wire,
};

/// Everything from the look-up of the name to the head of the answer. A request has 32 KiB: half a minute is enough at 10 kbit/s.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(40);
const CONNECT_WITHIN: Duration = Duration::from_secs(15);
/// How long the body of an answer is waited for, and how much of it is read: it is a sentence, if anything.
const WORDS_WITHIN: Duration = Duration::from_secs(5);
const WORDS_BYTES_MAX: usize = 64 * 1024;
/// What of it is shown to people.
const WORDS_SHOWN: usize = 200;
/// The longest wait that a receiver can ask for.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// What a connection reads ahead, and the longest head of an answer.
const BUFFER_BYTES: usize = 16 * 1024;

/// Where a receiver is.
#[derive(Clone, Debug)]
pub struct Address {
    /// Its host and port.
    pub target: Target,
    /// Path and query of the request.
    pub path: String,
    /// How the target is named in a request: with its port, where that is not the usual one.
    pub host: String,
}

/// The way to a receiver. Keeps one connection until [`Receiver::hang_up`].
pub struct Receiver {
    /// Where it is.
    pub address: Address,
    /// TLS with it; `None`: plain.
    pub tls: Option<Tls>,
    /// Proxies between.
    pub proxies: Proxies,
    /// Makes connections.
    pub dialer: Dialer,
    /// What we call ourselves: `pipeops-agent/1.2.3`.
    pub user_agent: String,
    /// How long an answer may take: [`ANSWER_WITHIN`].
    pub answer_within: Duration,
    /// Runs the connection.
    pub executor: Rc<LocalExecutor<'static>>,
    /// The connection, between two requests.
    pub line: RefCell<Option<Line>>,
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// An open connection, and the task that drives it.
#[derive(Debug)]
pub struct Line {
    sender: SendRequest<Body>,
    _task: Task<()>,
}

/// What a receiver said.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Answer {
    /// It has the samples.
    Taken,
    /// It does not take this request, now or later, and says why: a sample in it is too old, or there are too many.
    Refused(String),
    /// It cannot take anything now; with how long to wait, where it said so.
    Busy(Error, Option<Duration>),
    /// It does not take anything from us as it is: somebody must change a setting.
    Wrong(Error),
}

impl Receiver {
    /// Sends one request. An error says that there was no answer.
    pub async fn send(&self, body: Vec<u8>, authorization: Option<&Secret>) -> Result<Answer> {
        let work = Box::pin(self.converse(Bytes::from(body), authorization));
        let Ok(answered) = deadline(self.answer_within, work).await else {
            let why = format!("no answer within {}", in_words(self.answer_within));
            return Err(self.what().why(why).retry(Retry::Soon));
        };
        let (response, line) = answered?;
        let (head, body) = response.into_parts();
        let (words, is_whole) = words(body).await;
        if is_whole && !line.sender.is_closed() {
            self.line.replace(Some(line));
        }
        Ok(self.answer(head.status, &head.headers, &words))
    }

    /// Closes the connection: nothing more is sent for a while.
    pub fn hang_up(&self) {
        drop(self.line.take());
    }

    /// The beginning of every error: `samples do not reach metrics.example:9090`.
    pub fn what(&self) -> Error {
        Error::new(format!("samples do not reach {}", self.address.host))
    }

    async fn converse(
        &self,
        body: Bytes,
        authorization: Option<&Secret>,
    ) -> Result<(Response<Incoming>, Line)> {
        let kept = self.line.take();
        if let Some(mut line) = kept.filter(|line| line.sender.is_ready()) {
            let request = self.request(body.clone(), authorization)?;
            if let Ok(response) = line.sender.send_request(request).await {
                return Ok((response, line));
            }
            // It was closed meanwhile. What did arrive may be sent twice: a receiver takes the same sample again.
        }
        let mut line = self.open().await?;
        let request = self.request(body, authorization)?;
        match line.sender.send_request(request).await {
            Ok(response) => Ok((response, line)),
            Err(error) => Err(self.broken(&error)),
        }
    }

    async fn open(&self) -> Result<Line> {
        let used = if self.tls.is_some() {
            Use::Tls
        } else {
            Use::Plain
        };
        let target = &self.address.target;
        let route = Route::direct(target)
            .with_tls(self.tls.as_ref())
            .through(self.proxies.between(target, used));
        let dialled = self.dialer.dial(&route, CONNECT_WITHIN).await;
        let stream = dialled.map_err(|error| Error::from(&error).within(self.what().what))?;
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .handshake::<_, Body>(FuturesIo::new(stream))
            .await
            .map_err(|error| self.broken(&error))?;
        let task = self.executor.spawn(async move {
            // Its error is told to the sender, which says it where something can be done.
            if let Err(error) = connection.with_upgrades().await {
                log::trace!("remote write: a connection ended: {error}");
            }
        });
        Ok(Line {
            sender,
            _task: task,
        })
    }

    fn request(&self, body: Bytes, authorization: Option<&Secret>) -> Result<Request<Body>> {
        let unusable = |why: &str| self.what().why(why.to_owned());
        let mut request = Request::post(self.address.path.as_str())
            .header(HOST, self.address.host.as_str())
            .header(USER_AGENT, self.user_agent.as_str())
            .header(CONTENT_TYPE, wire::CONTENT_TYPE)
            .header(CONTENT_ENCODING, wire::CONTENT_ENCODING)
            .header("X-Prometheus-Remote-Write-Version", wire::VERSION)
            .body(Body::full(body))
            .or(Err(unusable(
                "its address cannot be written as an HTTP request",
            )))?;
        if let Some(authorization) = authorization {
            let mut value = HeaderValue::try_from(authorization.reveal()).or(Err(unusable(
                "the token holds characters that no HTTP header can carry",
            )))?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        Ok(request)
    }

    fn broken(&self, error: &hyper::Error) -> Error {
        self.what()
            .because(error)
            .fix("check that telemetry.remote_write.url names a receiver, and http or https as it speaks")
            .retry(Retry::Soon)
    }

    fn answer(&self, status: StatusCode, headers: &HeaderMap, words: &str) -> Answer {
        let said = if words.is_empty() {
            format!("it answered HTTP {status}")
        } else {
            format!("it answered HTTP {status}: {words}")
        };
        let error = self.what().why(said.clone());
        match status.as_u16() {
            200..=299 => Answer::Taken,
            // Thanos says 409 of samples out of order; 413 is a request that is too large, and a part of it is not.
            400 | 409 | 413 | 422 => Answer::Refused(said),
            408 | 425 | 429 | 500..=599 => {
                Answer::Busy(error.retry(Retry::Later), retry_after(headers))
            }
            401 | 403 => Answer::Wrong(error.fix(
                "put what it wants into the file of telemetry.remote_write.bearer_token_file, or of password_file with its username; a changed file is picked up without a restart",
            )),
            300..=399 => {
                let location = headers.get(LOCATION).map(HeaderValue::as_bytes);
                let location = printable(location.unwrap_or_default());
                Answer::Wrong(
                    self.what()
                        .why(format!("it redirects to {location:?}, which is not followed"))
                        .fix("write the address that it means into telemetry.remote_write.url"),
                )
            }
            _ => Answer::Wrong(error.fix(
                "check telemetry.remote_write.url: the path is /api/v1/write for Prometheus (started with --web.enable-remote-write-receiver) and VictoriaMetrics, /api/v1/push for Mimir",
            )),
        }
    }
}

/// The beginning of an answer's body, for people, and whether that was all of it.
pub(super) async fn words(mut body: Incoming) -> (String, bool) {
    let mut read = Vec::new();
    let mut is_whole = false;
    let reading = async {
        while read.len() <= WORDS_BYTES_MAX {
            match body.frame().await {
                Some(Ok(frame)) => read.extend(frame.data_ref().into_iter().flatten()),
                Some(Err(_)) => return,
                None => {
                    is_whole = true;
                    return;
                }
            }
        }
    };
    // A receiver that does not end its answer has answered all the same.
    let _late = deadline(WORDS_WITHIN, reading).await;
    (printable(&read), is_whole)
}

/// The first line, without what a terminal would obey.
fn printable(bytes: &[u8]) -> String {
    let line = bytes
        .split(|byte| *byte == b'\n')
        .find(|line| !line.is_empty());
    let start = line.and_then(|line| line.get(..WORDS_SHOWN).or(Some(line)));
    let text = String::from_utf8_lossy(start.unwrap_or_default());
    let signs = text.chars().filter(|sign| !sign.is_control());
    signs.collect::<String>().trim().to_owned()
}

/// `Retry-After` in seconds; the form with a date is not worth a calendar here.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    let wait = Duration::from_secs(text.trim().parse().ok()?);
    Some(wait.min(WAIT_MAX))
}
