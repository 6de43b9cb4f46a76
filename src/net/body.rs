//! Body of requests and responses: bytes that are produced when polled, and an I/O error if they
//! end early.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::{BodyExt, Empty, Full};
pub use hyper::body::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// A body of a request or an answer. Not `Send`: everything runs on one thread. Dropping the body
/// of an answer closes its connection, unless it was read to its end; back-pressure is not polling
/// it.
pub struct Body(Pin<Box<dyn HttpBody<Data = Bytes, Error = io::Error>>>);

impl Body {
    /// Any body of bytes.
    pub fn new<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        Self(Box::pin(body.map_err(io::Error::other)))
    }

    /// A body whose errors are I/O errors already.
    pub fn of_io(body: impl HttpBody<Data = Bytes, Error = io::Error> + 'static) -> Self {
        Self(Box::pin(body))
    }

    /// No body at all.
    pub fn empty() -> Self {
        Self::new(Empty::new())
    }

    /// All bytes at once, with their length in the head.
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        Self::new(Full::new(bytes.into()))
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({:?})", self.0.size_hint())
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0.as_mut().poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
