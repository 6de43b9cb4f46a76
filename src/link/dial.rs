//! Opens a WebSocket to an endpoint: name, TCP, proxy, TLS and upgrade under one deadline.

use std::time::Duration;

use async_tungstenite::{
    client_async_with_config,
    tungstenite::{self, handshake::client::generate_key},
};
use hyper::{
    Request, StatusCode,
    header::{AUTHORIZATION, CONNECTION, HOST, HeaderValue, RETRY_AFTER, USER_AGENT},
    http::response,
};

use super::session::{Session, limits};
use crate::{
    core::{gateway::Rules, link::DialFailure, url::Security},
    error::{Error, Retry},
    net::{
        deadline,
        dial::{Dialer, Route, SocketOptions},
        proxy::Proxies,
        target::Target as Peer,
        tls::Tls,
    },
    wire::{certificate::validity, handshake::DialTarget},
};

/// Maximum bytes that wait unsent in the kernel, where our priorities no longer apply: as little as
/// one bulk frame.
const UNSENT_BYTES_MAX: u32 = 16 * 1024;
/// Time after which a link with unacknowledged bytes is cut. Below the 60 s within which a dead
/// peer must be noticed.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(45);
/// Help for a token that the control plane refuses.
pub const TOKEN_FIX: &str = "put a valid token into the token file (pipeops.token_file) or PIPEOPS_TOKEN; a changed file is reloaded without a restart";

/// Opens sessions with the control plane.
#[derive(Debug)]
pub struct Caller {
    /// Makes the connections.
    pub dialer: Dialer,
    /// TLS with the control plane.
    pub tls: Tls,
    /// Proxies between.
    pub proxies: Proxies,
    /// Rules for gateways that the control plane names.
    pub gateways: Rules,
    /// User agent: `pipeops-agent/1.2.3`.
    pub user_agent: String,
}

/// Reason why there is no session.
#[derive(Debug)]
pub struct Failure {
    /// Kind of failure, for the link machine.
    pub kind: DialFailure,
    /// Error, for people.
    pub error: Error,
}

impl Caller {
    /// Opens a session at `target`, all within `limit`. Dropping the future ends every attempt.
    pub async fn call(
        &self,
        target: &DialTarget,
        token: &str,
        limit: Duration,
    ) -> Result<Session, Failure> {
        let host = target.host_header();
        match deadline(limit, self.connect(target, token, limit)).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure {
                kind: DialFailure::Network,
                error: Error::new(format!("no session with {host}"))
                    .why(format!(
                        "no answer to the upgrade request within {} s",
                        limit.as_secs()
                    ))
                    .fix("check pipeops.api_url, and whether a proxy blocks WebSockets")
                    .retry(Retry::Later),
            }),
        }
    }

    async fn connect(
        &self,
        target: &DialTarget,
        token: &str,
        limit: Duration,
    ) -> Result<Session, Failure> {
        let request = self.request(target, token)?;
        let peer = Peer::new(&target.host, target.port);
        let tls = match target.security {
            Security::Tls => Some(&self.tls),
            Security::Plain => None,
        };
        let proxy = self.proxies.between(&peer);
        let addresses = self.admitted(target, proxy, limit).await?;
        let route = Route::direct(&peer)
            .with_tls(tls)
            .through(proxy)
            .at(addresses.as_deref())
            .with_options(SocketOptions {
                unsent_bytes_max: Some(UNSENT_BYTES_MAX),
                unacknowledged_max: Some(UNACKNOWLEDGED_MAX),
            });
        let stream = self
            .dialer
            .dial(&route, limit)
            .await
            .map_err(|error| Failure {
                kind: DialFailure::Network,
                error: Error::from(&error)
                    .within(format!("no session with {}", target.host_header())),
            })?;
        let certificate = tls.and_then(|_| stream.certificate());
        let since = certificate
            .and_then(|shown| validity(shown))
            .map(|(from, _)| from);
        match client_async_with_config(request, stream, Some(limits())).await {
            Ok((socket, _)) => Ok(Session::new(socket).certified(since)),
            Err(error) => Err(refusal(&error, target)),
        }
    }

    fn request(&self, target: &DialTarget, token: &str) -> Result<Request<()>, Failure> {
        let unusable = |what: &str| Failure {
            kind: DialFailure::Network,
            error: Error::new(format!("no session with {}", target.host_header()))
                .why(what.to_owned()),
        };
        let mut bearer = HeaderValue::try_from(format!("Bearer {token}")).or(Err(unusable(
            "the token contains characters that no HTTP header can carry",
        )))?;
        bearer.set_sensitive(true);
        Request::builder()
            .uri(format!("{}{}", target.origin(), target.path_and_query))
            .header(HOST, target.host_header())
            .header(CONNECTION, "Upgrade")
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", generate_key())
            .header(USER_AGENT, &self.user_agent)
            .header(AUTHORIZATION, bearer)
            .body(())
            .or(Err(unusable("its address is not valid in an HTTP request")))
    }
}

/// Reads why the upgrade failed.
fn refusal(error: &tungstenite::Error, target: &DialTarget) -> Failure {
    let host = target.host_header();
    let what = format!("no session with {host}");
    let tungstenite::Error::Http(answer) = error else {
        let error = Error::new(what)
            .because(error)
            .fix("check pipeops.api_url, and whether a proxy blocks WebSockets")
            .retry(Retry::Soon);
        return Failure {
            kind: DialFailure::Network,
            error,
        };
    };
    let status = answer.status();
    let error = Error::new(what).why(format!("it answered HTTP {status}"));
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Failure {
            kind: DialFailure::Refused,
            error: error.fix(TOKEN_FIX).retry(Retry::Never),
        },
        StatusCode::NOT_FOUND => Failure {
            kind: DialFailure::Status(404, None),
            error: error
                .fix("check pipeops.api_url: there is no control plane at this address")
                .retry(Retry::Later),
        },
        other => Failure {
            kind: DialFailure::Status(other.as_u16(), retry_after(answer)),
            error: error.fix(status_fix(other)).retry(Retry::Later),
        },
    }
}

/// Action for a person where a server answers the upgrade with another status.
fn status_fix(status: StatusCode) -> &'static str {
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        "try again in a few minutes: the control plane is busy, or a part of it is down"
    } else {
        "check pipeops.api_url: something else answers there, such as a proxy or the login page of this network"
    }
}

/// `Retry-After` in seconds; the form with a date is not worth a calendar here.
fn retry_after<T>(answer: &response::Response<T>) -> Option<Duration> {
    let seconds = answer
        .headers()
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds))
}
