//! POST requests, one after the other, to a server that a setting names, over one connection.

use std::{cell::RefCell, fmt, io::Read, time::Duration};

use smol::future::BoxedLocal;
use ureq::{
    Body,
    http::{
        Request, Response, StatusCode,
        header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue, RETRY_AFTER},
    },
};

use super::transport::{Calls, Limits, Transport, dial_error};
use crate::{
    core::{format::is_unprintable, secret::Secret, time::in_words},
    error::{Error, Result, Retry},
    executor,
    net::{Bytes, deadline, target::Target},
};

/// Everything from the look-up of the name to the head of the answer. A request has 32 KiB: half a
/// minute is enough at 10 kbit/s.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(40);
/// Deadline for the body of an answer, and its maximum size: it is a sentence, if anything.
const WORDS_WITHIN: Duration = Duration::from_secs(5);
const WORDS_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of its bytes that are shown to people.
const WORDS_SHOWN: usize = 200;
/// The longest wait that a server can ask for.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// Credentials that are being read; `None` where the server wants none.
pub type Authorization = BoxedLocal<Result<Option<Secret>>>;

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

/// Transport to a server.
pub struct HttpClient {
    pub address: Address,
    /// Transport; without TLS it is plain.
    pub transport: Transport,
    /// Deadline of an answer: [`ANSWER_WITHIN`].
    pub answer_within: Duration,
    /// The connection, between two requests.
    pub line: RefCell<Option<Line>>,
}

/// Connection that may be used again.
#[derive(Debug)]
pub struct Line(Calls);

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // With many servers the path is a secret.
        f.debug_struct("HttpClient")
            .field("host", &self.address.host)
            .finish_non_exhaustive()
    }
}

/// Request to post.
#[derive(Debug)]
pub(super) struct Post<'a> {
    pub(super) headers: &'a [(&'static str, &'a str)],
    pub(super) body: Bytes,
    pub(super) authorization: Option<&'a Secret>,
}

#[derive(Debug)]
pub(super) struct Answered {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// The beginning of the body, for people.
    words: String,
}

/// Parts of the text of an error.
#[derive(Clone, Copy, Debug)]
pub(super) struct ErrorText {
    /// Data that was not delivered.
    pub(super) what: &'static str,
    /// Fix if no HTTP server answers.
    pub(super) fix: &'static str,
}

impl HttpClient {
    /// Sends one request. An error says that there was no answer.
    pub(super) async fn post(&self, error_text: ErrorText, post: Post<'_>) -> Result<Answered> {
        let work = Box::pin(self.converse(error_text, post));
        let Ok(answered) = deadline(self.answer_within, work).await else {
            let why = format!("no answer within {}", in_words(self.answer_within));
            return Err(self.failure(error_text).why(why).retry(Retry::Soon));
        };
        let (response, calls) = answered?;
        let (head, body) = response.into_parts();
        let (words, is_whole) = executor::unblock(move || words(body)).await;
        if is_whole {
            self.line.replace(Some(Line(calls)));
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
    pub(super) fn failure(&self, error_text: ErrorText) -> Error {
        Error::new(format!(
            "{} do not reach {}",
            error_text.what, self.address.host
        ))
    }

    async fn converse(
        &self,
        error_text: ErrorText,
        post: Post<'_>,
    ) -> Result<(Response<Body>, Calls)> {
        let request = self.request(error_text, &post)?;
        if let Some(Line(calls)) = self.line.take() {
            match ask(&calls, request.clone()).await {
                Ok(response) => return Ok((response, calls)),
                Err(error) if dial_error(&error).is_some() => {
                    return Err(self.broken(error_text, &error));
                }
                // It was closed meanwhile. What did arrive may be sent twice: who keeps a
                // connection takes the same again.
                Err(_) => {}
            }
        }
        let calls = self.transport.calls(Limits {
            body: Some(WORDS_WITHIN),
            read: None,
        });
        match ask(&calls, request).await {
            Ok(response) => Ok((response, calls)),
            Err(error) => Err(self.broken(error_text, &error)),
        }
    }

    fn request(&self, error_text: ErrorText, post: &Post<'_>) -> Result<Request<Bytes>> {
        let unusable = |why: &str| self.failure(error_text).why(why.to_owned());
        let scheme = match self.transport.tls {
            Some(_) => "https",
            None => "http",
        };
        let (authority, path) = (self.address.target.authority(), &self.address.path);
        let mut request = Request::post(format!("{scheme}://{authority}{path}"))
            .header(HOST, self.address.host.as_str());
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
            .body(post.body.clone())
            .or(Err(unusable("its address is not valid in an HTTP request")))
    }

    fn broken(&self, error_text: ErrorText, error: &ureq::Error) -> Error {
        if let Some(error) = dial_error(error) {
            return Error::from(error).within(self.failure(error_text).what);
        }
        self.failure(error_text)
            .because(error)
            .fix(error_text.fix)
            .retry(Retry::Soon)
    }
}

/// Makes one call in the blocking pool. It ends with `calls`, should nobody wait for it any more.
async fn ask(
    calls: &Calls,
    request: Request<Bytes>,
) -> std::result::Result<Response<Body>, ureq::Error> {
    let agent = calls.agent.clone();
    executor::unblock(move || {
        let (head, body) = request.into_parts();
        agent.run(Request::from_parts(head, body.as_ref()))
    })
    .await
}

impl Answered {
    /// Status of the answer, with the text of the server.
    pub(super) fn description(&self) -> String {
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

/// The beginning of an answer's body, for people, and whether that was all of it. Who does not end
/// an answer has answered all the same.
fn words(mut body: Body) -> (String, bool) {
    let mut read = Vec::new();
    let bytes_max = u64::try_from(WORDS_BYTES_MAX).unwrap_or(u64::MAX);
    let mut reader = body.as_reader();
    let ended = reader.by_ref().take(bytes_max).read_to_end(&mut read);
    let is_whole = ended.is_ok() && matches!(reader.read(&mut [0]), Ok(0));
    (printable(&read), is_whole)
}

/// The first line, without what a terminal would obey.
pub(super) fn printable(bytes: &[u8]) -> String {
    let line = bytes
        .split(|byte| *byte == b'\n')
        .find(|line| !line.is_empty());
    let start = line.and_then(|line| line.get(..WORDS_SHOWN).or(Some(line)));
    let text = String::from_utf8_lossy(start.unwrap_or_default());
    let shown = text.chars().filter(|c| !is_unprintable(*c));
    shown.collect::<String>().trim().to_owned()
}
