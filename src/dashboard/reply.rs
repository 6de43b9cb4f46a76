//! HTTP replies: whole, or with a body that is produced while its viewer reads.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use hyper::{
    Response, StatusCode,
    body::{Body, Bytes, Frame, SizeHint},
    header::{self, HeaderName, HeaderValue},
};
use serde::Serialize;
use smol::stream::Stream;

use crate::wire::api::ErrorBody;

/// Headers of every reply, so that no foreign page can embed this one, and this page runs or loads
/// nothing from elsewhere.
const EVERYWHERE: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (header::CACHE_CONTROL, "no-store"),
];

/// Body that is produced over time. Dropped when its viewer goes.
pub type Flow = Pin<Box<dyn Stream<Item = io::Result<Bytes>>>>;

enum Content {
    Whole(Option<Bytes>),
    Flow(Flow),
}

/// An answer.
pub struct Reply {
    code: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
    content: Content,
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { code, headers, .. } = self;
        write!(f, "Reply {code} {headers:?}")
    }
}

impl Reply {
    /// 200 with these bytes. `kind` is their content type.
    pub fn whole(kind: &'static str, bytes: impl Into<Bytes>) -> Self {
        Self::of(kind, Content::Whole(Some(bytes.into())))
    }

    /// 200 with a body that comes while its viewer reads: it is asked for more only when there is
    /// room.
    pub fn flowing(kind: &'static str, flow: Flow) -> Self {
        Self::of(kind, Content::Flow(flow))
    }

    /// 200 with a shape.
    pub fn json(shape: &impl Serialize) -> Self {
        match serde_json::to_vec(shape) {
            Ok(mut bytes) => {
                bytes.push(b'\n');
                Self::whole("application/json", bytes)
            }
            // The shapes have text keys and finite numbers only, so this does not happen.
            Err(error) => Self::refusal(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("the answer cannot be written: {error}"),
                None,
            ),
        }
    }

    /// An answer that says what is wrong, and what to do.
    pub fn refusal(code: StatusCode, error: impl Into<String>, fix: Option<&str>) -> Self {
        let refusal = ErrorBody {
            error: error.into(),
            fix: fix.map(str::to_owned),
        };
        Self::json(&refusal).with_code(code)
    }

    /// 404: there is no such thing.
    pub fn not_found(error: impl Into<String>, fix: Option<&str>) -> Self {
        Self::refusal(StatusCode::NOT_FOUND, error, fix)
    }

    /// 400: the query or the body makes no sense.
    pub fn bad_request(error: impl Into<String>, fix: Option<&str>) -> Self {
        Self::refusal(StatusCode::BAD_REQUEST, error, fix)
    }

    /// 503: not now.
    pub fn unavailable(error: impl Into<String>, fix: Option<&str>) -> Self {
        Self::refusal(StatusCode::SERVICE_UNAVAILABLE, error, fix)
    }

    /// The same with another status code.
    #[must_use]
    pub const fn with_code(mut self, code: StatusCode) -> Self {
        self.code = code;
        self
    }

    /// The same with one more header, in place of one of that name. A value that no header can hold
    /// is left out.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.retain(|(own, _)| *own != name);
            self.headers.push((name, value));
        }
        self
    }

    #[cfg(feature = "internals")]
    pub const fn code(&self) -> StatusCode {
        self.code
    }

    /// One of its own headers.
    #[cfg(test)]
    pub(super) fn header(&self, name: &HeaderName) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(own, _)| own == name)?;
        value.to_str().ok()
    }

    /// The same, with a body that ends where this does not hold any more.
    #[must_use]
    pub(super) fn while_true(mut self, holds: Box<dyn Fn() -> bool>) -> Self {
        if let Content::Flow(flow) = self.content {
            let flow = smol::stream::StreamExt::take_while(flow, move |_| holds());
            self.content = Content::Flow(Box::pin(flow));
        }
        self
    }

    /// Returns whether its body comes while it is read.
    pub(super) const fn flows(&self) -> bool {
        matches!(self.content, Content::Flow(_))
    }

    /// The bytes of a whole answer.
    pub fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::Whole(Some(bytes)) => bytes,
            Content::Whole(None) | Content::Flow(_) => &[],
        }
    }

    fn of(kind: &'static str, content: Content) -> Self {
        Self {
            code: StatusCode::OK,
            headers: vec![(header::CONTENT_TYPE, HeaderValue::from_static(kind))],
            content,
        }
    }

    /// As hyper sends it. `until_sent` is dropped with the body.
    pub(super) fn response<T: Unpin>(self, until_sent: T) -> Response<Sending<T>> {
        let mut response = Response::new(Sending {
            content: self.content,
            _until_sent: until_sent,
        });
        *response.status_mut() = self.code;
        let headers = response.headers_mut();
        for (name, value) in EVERYWHERE {
            headers.insert(name, HeaderValue::from_static(value));
        }
        for (name, value) in self.headers {
            headers.insert(name, value);
        }
        response
    }
}

/// The body of an answer on its way.
pub(super) struct Sending<T> {
    content: Content,
    _until_sent: T,
}

impl<T: Unpin> Body for Sending<T> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let next = match &mut self.content {
            Content::Whole(bytes) => Poll::Ready(bytes.take().map(Ok)),
            Content::Flow(flow) => flow.as_mut().poll_next(context),
        };
        next.map(|piece| piece.map(|bytes| bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Content::Flow(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => {
                let length = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
            }
            Content::Flow(_) => SizeHint::default(),
        }
    }
}
