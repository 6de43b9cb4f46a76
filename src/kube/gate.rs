//! Gate: judges a request before it is sent, and sends it under an identity of its own choice.

use std::{fmt, pin::Pin, rc::Rc};

use hyper::{Request, Response};

use super::error::Error;
use crate::net::Body;

/// Reason of an [`Error::Refused`] that comes from a gate, not from the API server.
pub const REFUSED: &str = "RefusedByAgent";

/// Answer of a gate that is on its way.
pub type Passing<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + 'a>>;

/// Judge of requests. A refusal is an [`Error::Refused`] with the reason [`REFUSED`] and the gate's
/// own words.
pub trait Gate {
    /// Judges a request and sends it, if it may pass.
    fn send(&self, request: Request<Body>) -> Passing<'_, Response<Body>>;
    /// Judges a request without sending it.
    fn judge(&self, request: Request<Body>) -> Passing<'_, ()>;
}

/// Gate as the identity of a call: it judges each request.
#[derive(Clone)]
pub struct Judged(pub Rc<dyn Gate>);

impl fmt::Debug for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Judged")
    }
}

impl PartialEq for Judged {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Judged {}
