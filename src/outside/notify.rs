//! Client of a notification receiver: a webhook, an ntfy topic, a Slack channel. One connection per
//! call.

use std::time::Duration;

use super::post::{Answered, ErrorText, HttpClient, Post};
use crate::{
    core::secret::Secret,
    error::{Error, Result, Retry},
    wire::notify::NotifyRequest,
};

const WORDING: ErrorText = ErrorText {
    what: "notices",
    fix: "check scheme and port of notify.url",
};

/// Transport to them.
#[derive(Debug)]
pub struct NotifyClient(pub HttpClient);

/// Answer of the receiver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NotifyResponse {
    /// Accepted.
    Taken,
    /// Not now, with how long to wait where they said so.
    Busy(Error, Option<Duration>),
    /// The receiver accepts nothing until a setting is changed.
    Wrong(Error),
}

impl NotifyClient {
    /// Sends one notification. An error says that there was no answer.
    pub async fn send(
        &self,
        request: &NotifyRequest,
        authorization: Option<&Secret>,
    ) -> Result<NotifyResponse> {
        let own = request.headers.iter();
        let headers: Vec<_> = own
            .map(|(name, value)| (*name, value.as_str()))
            .chain([("content-type", request.content_type)])
            .collect();
        let post = Post {
            headers: &headers,
            body: request.body.clone().into(),
            authorization,
        };
        let answered = self.0.post(WORDING, post).await;
        self.0.hang_up();
        Ok(self.answer(&answered?))
    }

    fn answer(&self, answered: &Answered) -> NotifyResponse {
        let error = self.0.failure(WORDING).why(answered.description());
        match answered.status.as_u16() {
            200..=299 => NotifyResponse::Taken,
            408 | 425 | 429 | 500..=599 => {
                NotifyResponse::Busy(error.retry(Retry::Later), answered.retry_after())
            }
            401 | 403 => NotifyResponse::Wrong(error.fix("put valid credentials into the file of notify.token_file, or renew the address in notify.url")),
            300..=399 => NotifyResponse::Wrong(error.fix("set notify.url to the redirect target: redirects are not followed")),
            _ => NotifyResponse::Wrong(error.fix("check notify.url and notify.kind (webhook, ntfy or slack)")),
        }
    }
}
