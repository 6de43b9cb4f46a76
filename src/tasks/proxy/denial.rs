//! Denials: one sentence for both forms of request, and the HTTP status for it.

use hyper::StatusCode;
use serde::Serialize;

use crate::{
    core::proxy::{CallTarget, Refusal},
    kube::Error,
};

/// Text for a call whose time is over.
pub(super) const DEADLINE: &str = "context deadline exceeded";

/// Side that caused it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Cause {
    /// The request makes no sense.
    Invalid,
    /// The policy of this box.
    Refused,
    /// Too much at once, or the disk: worth another try.
    Busy,
    /// The cluster, or the way to it.
    Backend,
    /// It took too long.
    Late,
}

/// Answer to the caller.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Denial {
    pub(super) cause: Cause,
    pub(super) text: String,
}

impl Denial {
    pub(super) fn new(cause: Cause, text: impl Into<String>) -> Self {
        Self {
            cause,
            text: text.into(),
        }
    }

    pub(super) fn backend(text: impl Into<String>) -> Self {
        Self::new(Cause::Backend, text)
    }

    pub(super) fn code(&self) -> StatusCode {
        match self.cause {
            Cause::Invalid => StatusCode::BAD_REQUEST,
            Cause::Refused => StatusCode::FORBIDDEN,
            Cause::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Cause::Backend => StatusCode::BAD_GATEWAY,
            Cause::Late => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// The `Status` object that clients of Kubernetes print.
    pub(super) fn status_object(&self) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Object<'a> {
            kind: &'a str,
            api_version: &'a str,
            metadata: Empty,
            status: &'a str,
            message: &'a str,
            reason: &'a str,
            code: u16,
        }
        #[derive(Serialize)]
        struct Empty {}
        let reason = match self.cause {
            Cause::Invalid => "BadRequest",
            Cause::Refused => "Forbidden",
            Cause::Busy | Cause::Backend => "ServiceUnavailable",
            Cause::Late => "Timeout",
        };
        let object = Object {
            kind: "Status",
            api_version: "v1",
            metadata: Empty {},
            status: "Failure",
            message: &self.text,
            reason,
            code: self.code().as_u16(),
        };
        // Texts only: this does not fail, and were it to, the code says enough.
        serde_json::to_vec(&object).unwrap_or_default()
    }
}

/// Converts a refusal by the policy.
impl From<Refusal> for Denial {
    fn from(Refusal(text): Refusal) -> Self {
        Self::new(Cause::Refused, text)
    }
}

/// Denial of a call whose request failed.
pub(super) fn failure(target: &CallTarget, error: &Error) -> Denial {
    let what = match target {
        CallTarget::Kubernetes(_) => "kubernetes API request failed",
        CallTarget::Service(_) => "service request failed",
    };
    if matches!(error, Error::Unconfigured(_)) {
        return Denial::backend(format!("kubernetes client not initialized: {error}"));
    }
    if error.is_deadline() {
        return Denial::new(Cause::Late, format!("{what}: {DEADLINE}: {error}"));
    }
    Denial::backend(format!("{what}: {error}"))
}

/// Denial of a call whose time is over.
pub(super) fn late() -> Denial {
    Denial::new(Cause::Late, DEADLINE)
}
