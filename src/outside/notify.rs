//! Somebody elsewhere who is told of conditions: a webhook, a topic of ntfy, a channel of Slack. One call, one connection.

use std::{fmt, rc::Rc, time::Duration};

use hyper::{
    Request, StatusCode,
    client::conn::http1,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, USER_AGENT},
};
use smol::LocalExecutor;
use smol_hyper::rt::FuturesIo;

use super::remote_write::{Address, retry_after, words};
use crate::{
    core::secret::Secret,
    error::{Error, Result, Retry},
    net::{
        Body, deadline,
        dial::{Dialer, Route},
        proxy::{Proxies, Use},
        tls::Tls,
    },
    wire::notify::Letter,
};

const ANSWER_WITHIN: Duration = Duration::from_secs(30);
const CONNECT_WITHIN: Duration = Duration::from_secs(15);

/// The way to them.
pub struct Receiver {
    /// Where they are.
    pub address: Address,
    /// TLS with them; `None`: plain.
    pub tls: Option<Tls>,
    /// Proxies between.
    pub proxies: Proxies,
    /// Makes connections.
    pub dialer: Dialer,
    /// What we call ourselves.
    pub user_agent: String,
    /// Runs the connection.
    pub executor: Rc<LocalExecutor<'static>>,
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The path is a secret of its own with most of them.
        f.debug_struct("Receiver")
            .field("host", &self.address.host)
            .finish_non_exhaustive()
    }
}

/// What they said.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Answer {
    /// They have it.
    Taken,
    /// Not now, with how long to wait where they said so.
    Busy(Error, Option<Duration>),
    /// Not like this: somebody must change a setting.
    Wrong(Error),
}

impl Receiver {
    /// Sends one letter. An error says that there was no answer.
    pub async fn send(&self, letter: &Letter, authorization: Option<&Secret>) -> Result<Answer> {
        let work = Box::pin(self.converse(letter, authorization));
        let Ok(answered) = deadline(ANSWER_WITHIN, work).await else {
            let why = format!("no answer within {} s", ANSWER_WITHIN.as_secs());
            return Err(self.what().why(why).retry(Retry::Soon));
        };
        let (status, headers, words) = answered?;
        Ok(self.answer(status, &headers, &words))
    }

    fn what(&self) -> Error {
        Error::new(format!("notices do not reach {}", self.address.host))
    }

    async fn converse(
        &self,
        letter: &Letter,
        authorization: Option<&Secret>,
    ) -> Result<(StatusCode, HeaderMap, String)> {
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
        let broken = |error: &hyper::Error| {
            let error = self.what().because(error);
            error
                .fix("check that notify.url has http or https as the other side speaks it")
                .retry(Retry::Soon)
        };
        let (mut sender, connection) = http1::handshake::<_, Body>(FuturesIo::new(stream))
            .await
            .map_err(|error| broken(&error))?;
        // It ends with this call. Its error is told to the sender.
        let _line = self.executor.spawn(async move {
            if let Err(error) = connection.await {
                log::trace!("notify: a connection ended: {error}");
            }
        });
        let request = self.request(letter, authorization)?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| broken(&error))?;
        let (head, body) = response.into_parts();
        let (words, _) = words(body).await;
        Ok((head.status, head.headers, words))
    }

    fn request(&self, letter: &Letter, authorization: Option<&Secret>) -> Result<Request<Body>> {
        let mut request = Request::post(self.address.path.as_str())
            .header(HOST, self.address.host.as_str())
            .header(USER_AGENT, self.user_agent.as_str())
            .header(CONTENT_TYPE, letter.content_type);
        for (name, value) in &letter.headers {
            request = request.header(*name, value.as_str());
        }
        if let Some(authorization) = authorization {
            let mut value = HeaderValue::try_from(authorization.reveal()).or(Err(self
                .what()
                .why("the token holds characters that no HTTP header can carry")))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        request.body(Body::full(letter.body.clone())).or(Err(self
            .what()
            .why("its address cannot be written as an HTTP request")))
    }

    fn answer(&self, status: StatusCode, headers: &HeaderMap, words: &str) -> Answer {
        let said = if words.is_empty() {
            format!("it answered HTTP {status}")
        } else {
            format!("it answered HTTP {status}: {words}")
        };
        let error = self.what().why(said);
        match status.as_u16() {
            200..=299 => Answer::Taken,
            408 | 425 | 429 | 500..=599 => {
                Answer::Busy(error.retry(Retry::Later), retry_after(headers))
            }
            401 | 403 => Answer::Wrong(error.fix("put what it wants into the file of notify.token_file, or renew the address in notify.url")),
            300..=399 => Answer::Wrong(error.fix("write the address that it redirects to into notify.url: redirects are not followed")),
            _ => Answer::Wrong(error.fix("check notify.url and notify.kind (webhook, ntfy or slack)")),
        }
    }
}
