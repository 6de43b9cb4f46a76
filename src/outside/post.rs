//! POST requests, one after the other, to a server that a setting names, over one connection.

use std::{cell::RefCell, fmt, pin::Pin, rc::Rc, time::Duration};

use http_body_util::BodyExt;
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT},
};
use smol::{LocalExecutor, Task};
use smol_hyper::rt::FuturesIo;

use crate::{
    core::{secret::Secret, time::in_words},
    error::{Error, Result, Retry},
    net::{
        Body, Bytes, deadline,
        dial::{Dialer, Route, Target},
        proxy::Proxies,
        tls::Tls,
    },
};

/// Everything from the look-up of the name to the head of the answer. A request has 32 KiB: half a minute is enough at 10 kbit/s.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(40);
const CONNECT_WITHIN: Duration = Duration::from_secs(15);
/// Deadline for the body of an answer, and its maximum size: it is a sentence, if anything.
const WORDS_WITHIN: Duration = Duration::from_secs(5);
const WORDS_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of its bytes that are shown to people.
const WORDS_SHOWN: usize = 200;
/// The longest wait that a server can ask for.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// Read-ahead of a connection, and the longest head of an answer.
const BUFFER_BYTES: usize = 16 * 1024;

/// Credentials that are being read; `None` where the server wants none.
pub type Authorization = Pin<Box<dyn Future<Output = Result<Option<Secret>>>>>;

/// Address of a server.
#[derive(Clone, Debug)]
pub struct Address {
    /// Its host and port.
    pub target: Target,
    /// Path and query of the request.
    pub path: String,
    /// Host header: with the port, unless it is the default.
    pub host: String,
}

/// The way to a server.
pub struct HttpClient {
    /// Address.
    pub address: Address,
    /// TLS with it; `None`: plain.
    pub tls: Option<Tls>,
    /// Proxies between.
    pub proxies: Proxies,
    /// Makes connections.
    pub dialer: Dialer,
    /// User agent: `pipeops-agent/1.2.3`.
    pub user_agent: String,
    /// Deadline of an answer: [`ANSWER_WITHIN`].
    pub answer_within: Duration,
    /// Runs the connection.
    pub executor: Rc<LocalExecutor<'static>>,
    /// The connection, between two requests.
    pub line: RefCell<Option<Line>>,
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // With many servers the path is a secret.
        f.debug_struct("HttpClient")
            .field("host", &self.address.host)
            .finish_non_exhaustive()
    }
}

/// An open connection, and the task that drives it.
#[derive(Debug)]
pub struct Line {
    sender: SendRequest<Body>,
    _task: Task<()>,
}

/// Request to post.
#[derive(Debug)]
pub(super) struct Post<'a> {
    pub(super) headers: &'a [(&'static str, &'a str)],
    pub(super) body: Bytes,
    pub(super) authorization: Option<&'a Secret>,
}

/// Answer.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// The beginning of the body, for people.
    words: String,
}

/// Wording of an error for people.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wording {
    /// Data that was not delivered.
    pub(super) what: &'static str,
    /// Fix if no HTTP server answers.
    pub(super) fix: &'static str,
}

impl HttpClient {
    /// Sends one request. An error says that there was no answer.
    pub(super) async fn post(&self, wording: Wording, post: Post<'_>) -> Result<Answered> {
        let work = Box::pin(self.converse(wording, post));
        let Ok(answered) = deadline(self.answer_within, work).await else {
            let why = format!("no answer within {}", in_words(self.answer_within));
            return Err(self.failure(wording).why(why).retry(Retry::Soon));
        };
        let (response, line) = answered?;
        let (head, body) = response.into_parts();
        let (words, is_whole) = words(body).await;
        if is_whole && !line.sender.is_closed() {
            self.line.replace(Some(line));
        }
        Ok(Answered {
            status: head.status,
            headers: head.headers,
            words,
        })
    }

    /// Closes the connection: nothing more is sent for a while.
    pub fn hang_up(&self) {
        drop(self.line.take());
    }

    /// The beginning of every error: `samples do not reach metrics.example:9090`.
    pub(super) fn failure(&self, wording: Wording) -> Error {
        Error::new(format!(
            "{} do not reach {}",
            wording.what, self.address.host
        ))
    }

    async fn converse(
        &self,
        wording: Wording,
        post: Post<'_>,
    ) -> Result<(Response<Incoming>, Line)> {
        let kept = self.line.take();
        if let Some(mut line) = kept.filter(|line| line.sender.is_ready()) {
            let request = self.request(wording, &post)?;
            if let Ok(response) = line.sender.send_request(request).await {
                return Ok((response, line));
            }
            // It was closed meanwhile. What did arrive may be sent twice: who keeps a connection takes the same again.
        }
        let mut line = self.open(wording).await?;
        let request = self.request(wording, &post)?;
        match line.sender.send_request(request).await {
            Ok(response) => Ok((response, line)),
            Err(error) => Err(self.broken(wording, &error)),
        }
    }

    async fn open(&self, wording: Wording) -> Result<Line> {
        let target = &self.address.target;
        let route = Route::direct(target)
            .with_tls(self.tls.as_ref())
            .through(self.proxies.between(target));
        let dialled = self.dialer.dial(&route, CONNECT_WITHIN).await;
        let stream =
            dialled.map_err(|error| Error::from(&error).within(self.failure(wording).what))?;
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .handshake::<_, Body>(FuturesIo::new(stream))
            .await
            .map_err(|error| self.broken(wording, &error))?;
        let task = self.executor.spawn(async move {
            // Its error is told to the sender, which says it where something can be done.
            if let Err(error) = connection.with_upgrades().await {
                log::trace!("{}: a connection ended: {error}", wording.what);
            }
        });
        Ok(Line {
            sender,
            _task: task,
        })
    }

    fn request(&self, wording: Wording, post: &Post<'_>) -> Result<Request<Body>> {
        let unusable = |why: &str| self.failure(wording).why(why.to_owned());
        let mut request = Request::post(self.address.path.as_str())
            .header(HOST, self.address.host.as_str())
            .header(USER_AGENT, self.user_agent.as_str());
        for (name, value) in post.headers {
            request = request.header(*name, *value);
        }
        if let Some(authorization) = post.authorization {
            let mut value = HeaderValue::try_from(authorization.reveal()).or(Err(unusable(
                "the token contains characters that no HTTP header can carry",
            )))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        request
            .body(Body::full(post.body.clone()))
            .or(Err(unusable("its address is not valid in an HTTP request")))
    }

    fn broken(&self, wording: Wording, error: &hyper::Error) -> Error {
        self.failure(wording)
            .because(error)
            .fix(wording.fix)
            .retry(Retry::Soon)
    }
}

impl Answered {
    /// The status, and what the server has to say about it.
    pub(super) fn said(&self) -> String {
        if self.words.is_empty() {
            format!("it answered HTTP {}", self.status)
        } else {
            format!("it answered HTTP {}: {}", self.status, self.words)
        }
    }

    /// `Retry-After` in seconds; the form with a date is not worth a calendar here.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let text = self.headers.get(RETRY_AFTER)?.to_str().ok()?;
        let wait = Duration::from_secs(text.trim().parse().ok()?);
        Some(wait.min(WAIT_MAX))
    }
}

/// The beginning of an answer's body, for people, and whether that was all of it.
async fn words(mut body: Incoming) -> (String, bool) {
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
    // Who does not end an answer has answered all the same.
    let _late = deadline(WORDS_WITHIN, reading).await;
    (printable(&read), is_whole)
}

/// The first line, without what a terminal would obey.
pub(super) fn printable(bytes: &[u8]) -> String {
    let line = bytes
        .split(|byte| *byte == b'\n')
        .find(|line| !line.is_empty());
    let start = line.and_then(|line| line.get(..WORDS_SHOWN).or(Some(line)));
    let text = String::from_utf8_lossy(start.unwrap_or_default());
    let signs = text.chars().filter(|sign| !sign.is_control());
    signs.collect::<String>().trim().to_owned()
}
