//! One GET on the Unix socket of the running agent.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, body::Bytes};
use smol::{Timer, future::or, net::unix::UnixStream};
use smol_hyper::rt::FuturesIo;

use crate::error::{Error, Result, Retry};

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
    /// The body.
    pub(super) body: Bytes,
}

/// The sockets to try: the one that was named, else the one of these settings and the one of the service.
pub(super) fn candidates(named: Option<PathBuf>, of_settings: &Path) -> Vec<PathBuf> {
    if let Some(named) = named {
        return vec![named];
    }
    let mut sockets = vec![of_settings.to_owned()];
    if of_settings != Path::new(SERVICE_SOCKET) {
        sockets.push(PathBuf::from(SERVICE_SOCKET));
    }
    sockets
}

/// Asks the first of `sockets` behind which an agent listens.
pub(super) fn fetch(sockets: &[PathBuf], path: &str) -> Result<Answer> {
    smol::block_on(or(
        async {
            let (stream, socket) = connect(sockets).await?;
            converse(stream, path).await.map_err(|cause| {
                Error::new(format!(
                    "the agent behind {} does not answer as it should",
                    socket.display()
                ))
                .because(&*cause)
                .fix("look at its log: journalctl -u pipeops-agent -n 50")
                .retry(Retry::Soon)
            })
        },
        async {
            Timer::after(DEADLINE).await;
            Err(Error::new(format!(
                "the agent has not answered for {} s",
                DEADLINE.as_secs()
            ))
            .fix("look at its log: journalctl -u pipeops-agent -n 50")
            .retry(Retry::Soon))
        },
    ))
}

async fn connect(sockets: &[PathBuf]) -> Result<(UnixStream, &PathBuf)> {
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
    Err(first_failure.map_or_else(|| Error::new("no socket was named"), |(error, _)| error))
}

fn unreachable(socket: &Path, error: &io::Error, looked_at: &[PathBuf]) -> Error {
    let name = socket.display();
    let kind = error.kind();
    if kind == io::ErrorKind::NotFound {
        let paths: Vec<_> = looked_at
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        return Error::new("the agent is not running")
            .why(format!("there is no socket at {}", paths.join(" nor at ")))
            .fix(format!(
                "{START}; if it runs with other settings, name its socket with --socket"
            ));
    }
    if kind == io::ErrorKind::ConnectionRefused {
        return Error::new("the agent is not running")
            .why(format!("nobody listens at {name}, which it left behind"))
            .fix(START);
    }
    let error = Error::new(format!("cannot speak to the agent at {name}")).because(error);
    error.fix(if kind == io::ErrorKind::PermissionDenied {
        "run as root, or join its group: usermod -aG pipeops-agent USER, then log in again"
    } else {
        START
    })
}

async fn converse(
    stream: UnixStream,
    path: &str,
) -> std::result::Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
    let request = Request::get(path)
        .header(hyper::header::HOST, "localhost")
        .body(Empty::<Bytes>::new())?;
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
