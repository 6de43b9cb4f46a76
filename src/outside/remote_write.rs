//! Client of a receiver of Prometheus' remote write: Prometheus, VictoriaMetrics, Mimir, Thanos.
//!
//! It sends a request and sorts the response into four kinds; their consequences are decided
//! elsewhere.

use std::time::Duration;

use ureq::http::header::{HeaderValue, LOCATION};

use super::post::{Answered, ErrorText, HttpClient, Post, printable};
use crate::{
    core::secret::Secret,
    error::{Error, Result, Retry},
    wire::remote_write as wire,
};

const WORDING: ErrorText = ErrorText {
    what: "samples",
    fix: "check telemetry.remote_write.url, including its scheme",
};

/// Transport to a receiver. Keeps one connection until it is closed.
#[derive(Debug)]
pub struct RemoteWriteClient(pub HttpClient);

/// Answer of a receiver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum WriteResponse {
    /// Accepted.
    Taken,
    /// It does not take this request, now or later, and says why: a sample in it is too old, or
    /// there are too many.
    Refused(String),
    /// It cannot take anything now; with how long to wait, where it said so.
    Busy(Error, Option<Duration>),
    /// The receiver accepts nothing until a setting is changed.
    Wrong(Error),
}

impl RemoteWriteClient {
    /// Sends one request. An error says that there was no answer.
    pub async fn send(
        &self,
        body: Vec<u8>,
        authorization: Option<&Secret>,
    ) -> Result<WriteResponse> {
        let post = Post {
            headers: &[
                ("content-type", wire::CONTENT_TYPE),
                ("content-encoding", wire::CONTENT_ENCODING),
                ("x-prometheus-remote-write-version", wire::VERSION),
            ],
            body: body.into(),
            authorization,
        };
        let answered = self.0.post(WORDING, post).await?;
        Ok(self.answer(&answered))
    }

    /// The beginning of every error: `samples do not reach metrics.example:9090`.
    pub fn failure(&self) -> Error {
        self.0.failure(WORDING)
    }

    fn answer(&self, answered: &Answered) -> WriteResponse {
        let said = answered.description();
        let error = self.failure().why(said.clone());
        match answered.status.as_u16() {
            200..=299 => WriteResponse::Taken,
            // Thanos says 409 of samples out of order; 413 is a request that is too large, and a
            // part of it is not.
            400 | 409 | 413 | 422 => WriteResponse::Refused(said),
            408 | 425 | 429 | 500..=599 => {
                WriteResponse::Busy(error.retry(Retry::Later), answered.retry_after())
            }
            401 | 403 => WriteResponse::Wrong(error.fix(
                "put valid credentials into the file of telemetry.remote_write.bearer_token_file, or of password_file with its username; a changed file is reloaded without a restart",
            )),
            300..=399 => {
                let location = answered.headers.get(LOCATION).map(HeaderValue::as_bytes);
                let location = printable(location.unwrap_or_default());
                WriteResponse::Wrong(
                    self.failure()
                        .why(format!("it redirects to {location:?}, which is not followed"))
                        .fix("set telemetry.remote_write.url to the redirect target"),
                )
            }
            _ => WriteResponse::Wrong(error.fix(
                "check telemetry.remote_write.url: the path is /api/v1/write for Prometheus (started with --web.enable-remote-write-receiver) and VictoriaMetrics, /api/v1/push for Mimir",
            )),
        }
    }
}
