//! One request on the Unix socket of the running agent.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, body::Bytes, header};
use smol::{Timer, future::or, net::unix::UnixStream};
use smol_hyper::rt::FuturesIo;

use super::given::Given;
use crate::{
    config::Loaded,
    error::{Error, Result, Retry},
    wire::api,
};

/// Where the agent of a service has its socket.
const SERVICE_SOCKET: &str = "/run/pipeops-agent/agent.sock";

const START: &str = "start it: systemctl start pipeops-agent, or pipeops-agent run";

// The agent answers from memory in a millisecond; a board that swaps may take seconds.
const DEADLINE: Duration = Duration::from_secs(5);
// Ten thousand conditions would fit.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// An answer that came back.
#[derive(Debug)]
pub(super) struct Answer {
    /// The status code.
    pub(super) code: u16,
    body: Bytes,
}

impl Answer {
    /// What the agent says, as it said it: it may know more than this program.
    pub(super) fn json(&self) -> Result<serde_json::Value> {
        let value: serde_json::Value =
            serde_json::from_slice(&self.body).map_err(|error| odd(error.to_string()))?;
        if value.is_object() {
            Ok(value)
        } else {
            Err(odd("it is no object"))
        }
    }

    /// Why the agent does not do `what`: the answer to a request that it refused.
    pub(super) fn refusal(&self, what: &str) -> Error {
        let refusal: api::Refusal = serde_json::from_slice(&self.body).unwrap_or_default();
        if refusal.error.is_empty() {
            return odd(format!("HTTP status {}", self.code));
        }
        Error {
            fix: refusal.fix,
            ..Error::new(what).why(refusal.error)
        }
    }
}

/// The error of an answer that makes no sense here.
pub(super) fn odd(why: impl Into<String>) -> Error {
    Error::new("the agent gave an answer that this program does not understand")
        .why(why)
        .fix("are both of the same version? pipeops-agent version")
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) struct Silence {
    /// For people.
    pub(super) error: Error,
    /// Whether no agent runs, as far as one can see.
    pub(super) is_down: bool,
}

impl Silence {
    fn of(error: Error) -> Self {
        Self {
            error,
            is_down: false,
        }
    }
}

/// What is asked.
#[derive(Debug)]
pub(super) enum Ask<'a> {
    /// This path, with its query.
    Get(&'a str),
    /// This path with this JSON.
    Post(&'a str, Vec<u8>),
}

/// The sockets to try: the one that was named, else the one of these settings and the one of the service.
pub(super) fn candidates(given: &Given, of_settings: &Loaded) -> Vec<PathBuf> {
    if let Some(named) = given.path("socket") {
        return vec![named];
    }
    let mut sockets = vec![of_settings.socket().to_owned()];
    if of_settings.socket() != Path::new(SERVICE_SOCKET) {
        sockets.push(PathBuf::from(SERVICE_SOCKET));
    }
    sockets
}

/// Asks the first of `sockets` behind which an agent listens.
pub(super) fn ask(sockets: &[PathBuf], ask: Ask<'_>) -> std::result::Result<Answer, Silence> {
    smol::block_on(or(
        async {
            let (stream, socket) = connect(sockets).await?;
            converse(stream, ask).await.map_err(|cause| {
                Silence::of(
                    Error::new(format!(
                        "the agent behind {} does not answer as it should",
                        socket.display()
                    ))
                    .because(&*cause)
                    .fix("look at its log: journalctl -u pipeops-agent -n 50")
                    .retry(Retry::Soon),
                )
            })
        },
        async {
            Timer::after(DEADLINE).await;
            let what = format!("the agent has not answered for {} s", DEADLINE.as_secs());
            let error = Error::new(what).fix("look at its log: journalctl -u pipeops-agent -n 50");
            Err(Silence::of(error.retry(Retry::Soon)))
        },
    ))
}

async fn connect(sockets: &[PathBuf]) -> std::result::Result<(UnixStream, &PathBuf), Silence> {
    let mut first_failure = None;
    for socket in sockets {
        match UnixStream::connect(socket).await {
            Ok(stream) => return Ok((stream, socket)),
            // The first is the one that the settings name: its failure says most, unless it is just not there.
            Err(error) => {
                let is_missing = error.kind() == io::ErrorKind::NotFound;
                let replaces = first_failure
                    .as_ref()
                    .is_none_or(|(_, was_missing)| *was_missing && !is_missing);
                if replaces {
                    first_failure = Some((unreachable(socket, &error, sockets), is_missing));
                }
            }
        }
    }
    Err(first_failure.map_or_else(
        || Silence::of(Error::new("no socket was named")),
        |(silence, _)| silence,
    ))
}

fn unreachable(socket: &Path, error: &io::Error, looked_at: &[PathBuf]) -> Silence {
    let is_down = |error| Silence {
        error,
        is_down: true,
    };
    let name = socket.display();
    let kind = error.kind();
    if kind == io::ErrorKind::NotFound {
        let paths: Vec<_> = looked_at
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let error = Error::new("the agent is not running")
            .why(format!("there is no socket at {}", paths.join(" nor at ")))
            .fix(format!(
                "{START}; if it runs with other settings, name its socket with --socket"
            ));
        return is_down(error);
    }
    if kind == io::ErrorKind::ConnectionRefused {
        let error = Error::new("the agent is not running")
            .why(format!("nobody listens at {name}, which it left behind"));
        return is_down(error.fix(START));
    }
    let error = Error::new(format!("cannot speak to the agent at {name}")).because(error);
    Silence::of(error.fix(if kind == io::ErrorKind::PermissionDenied {
        "run as root, or join its group: usermod -aG pipeops-agent USER, then log in again"
    } else {
        START
    }))
}

async fn converse(
    stream: UnixStream,
    ask: Ask<'_>,
) -> std::result::Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
    let request = match ask {
        Ask::Get(path) => Request::get(path).body(Full::default()),
        Ask::Post(path, body) => Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body))),
    };
    let mut request = request?;
    let host = header::HeaderValue::from_static("localhost");
    request.headers_mut().insert(header::HOST, host);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(FuturesIo::new(stream)).await?;
    let exchange = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX)
            .collect()
            .await?
            .to_bytes();
        Ok(Answer {
            code: head.status.as_u16(),
            body,
        })
    };
    // The connection ends by itself only where the agent hangs up; what the exchange says then is the reason.
    let drive = async {
        if let Err(error) = connection.await {
            return Err(error.into());
        }
        std::future::pending().await
    };
    or(exchange, drive).await
}
