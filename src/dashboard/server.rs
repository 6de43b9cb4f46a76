//! The socket and its connections: bounded in number, in time and in bytes.

use std::{
    convert::Infallible,
    io,
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
        net::UnixStream as Plain,
    },
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, Response, StatusCode,
    body::{Body, Bytes, Incoming},
    header,
    server::conn::http1,
    service::service_fn,
};
use smol::{
    LocalExecutor, Task,
    future::FutureExt,
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::{UnixListener, UnixStream},
};
use smol_hyper::rt::{FuturesIo, SmolTimer};

use super::{
    answers::Answers,
    peer::Peer,
    routes::{Answer, Asked, BODY_BYTES_MAX, Route, answer, refusal, route},
};
use crate::{
    error::{Error, Result},
    files,
};

/// Connections at a time; the next is told 503.
pub const CONNECTIONS_MAX: usize = 16;
/// How long a viewer may take to send the head of a request.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// How long a viewer may take to send the body of one.
const BODY_DEADLINE: Duration = Duration::from_secs(5);
/// How long a connection may last in all: no route streams, so who needs longer does not read.
const CONNECTION_DEADLINE: Duration = Duration::from_secs(60);
/// How long the refusal of a connection may take.
const REFUSAL_DEADLINE: Duration = Duration::from_secs(1);
/// How long the server rests after the kernel refused it a connection (no descriptors): it would be refused at once again.
const REST: Duration = Duration::from_millis(200);
/// A request's head at most.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The socket is for the agent's user and its group.
const SOCKET_MODE: u32 = 0o660;

/// The listening socket. Dropping it removes its path.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    inode: Option<u64>,
}

impl Server {
    /// Listens at `path`. Its directory is made where it is missing. A socket that a dead agent left is replaced; one on which
    /// somebody answers is not.
    pub fn bind(path: &Path) -> Result<Self> {
        let what = || format!("cannot listen on {}", path.display());
        let cannot = |error: io::Error| files::explain(what(), &error);
        make_directory(path).map_err(cannot)?;
        refuse_taken(path)?;
        // Made beside it and renamed, so that it is never there with another mode, nor gone in between.
        let mut beside = path.to_owned().into_os_string();
        beside.push("~");
        let beside = PathBuf::from(beside);
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&beside).map_err(|error| {
            let explained = cannot(error);
            if path.as_os_str().len() > 100 {
                return explained.fix("use a path below 100 characters: dashboard.socket");
            }
            explained
        })?;
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(SOCKET_MODE))
            .and_then(|()| std::fs::rename(&beside, path))
            .map_err(cannot)?;
        Ok(Self {
            listener,
            inode: inode(path),
            path: path.to_owned(),
        })
    }

    /// Answers viewers until it is dropped. Connections run on `executor` and end with this future.
    #[expect(clippy::infinite_loop, reason = "it serves until it is dropped")]
    pub async fn serve<A: Answers>(
        self,
        executor: Rc<LocalExecutor<'static>>,
        answers: Rc<A>,
    ) -> Infallible {
        // Owned here: dropping this future ends them all. Neither is ever longer than CONNECTIONS_MAX.
        let mut connections: Vec<Task<()>> = Vec::new();
        let mut refusals: Vec<Task<()>> = Vec::new();
        loop {
            let accepted = self.listener.accept().await;
            connections.retain(|connection| !connection.is_finished());
            refusals.retain(|refusal| !refusal.is_finished());
            match accepted {
                Err(_) => {
                    smol::Timer::after(REST).await;
                }
                Ok((stream, _)) if connections.len() < CONNECTIONS_MAX => {
                    connections.push(executor.spawn(converse(stream, Rc::clone(&answers))));
                }
                Ok((stream, _)) if refusals.len() < CONNECTIONS_MAX => {
                    refusals.push(executor.spawn(refuse(stream)));
                }
                // A flood: closed without a word.
                Ok(_) => {}
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Another agent may have taken the path in the meantime.
        if self.inode.is_some() && inode(&self.path) == self.inode {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    let Some(directory) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    else {
        return Ok(());
    };
    // The group may enter: it may use the socket. Not create_dir_all: a path that is missing altogether is a mistake.
    match std::fs::DirBuilder::new().mode(0o750).create(directory) {
        Err(error) if !directory.is_dir() => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Leaves alone what is not the socket of a dead agent.
fn refuse_taken(path: &Path) -> Result<()> {
    let what = || format!("cannot listen on {}", path.display());
    let Ok(found) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        return Err(Error::new(what())
            .why("there is something else than a socket")
            .fix(format!("look at it, then: rm {}", path.display())));
    }
    match Plain::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A full backlog is somebody too, and so is one that this user may not ask.
        Ok(_) | Err(_) => Err(Error::new(what())
            .why("another agent answers there")
            .fix("pipeops-agent status; stop that one (systemctl stop pipeops-agent), or give this one a path of its own: PIPEOPS_DASHBOARD_SOCKET")),
    }
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path)
        .ok()
        .map(|found| found.ino())
}

/// Tells one viewer too many that it is.
async fn refuse(mut stream: UnixStream) {
    let answer = refusal(
        StatusCode::SERVICE_UNAVAILABLE,
        "too many viewers are connected",
        Some("try again in a second"),
    );
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.body.len()
    );
    let told = async {
        // Heard before answered: a viewer that is still writing when its peer closes sees a broken pipe and not the answer.
        let mut request = [0; 1024];
        let _heard = stream.read(&mut request).await?;
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&answer.body).await?;
        stream.close().await
    };
    // Whoever does not read it is gone already.
    drop(told.or(late(REFUSAL_DEADLINE)).await);
}

async fn converse<A: Answers>(stream: UnixStream, answers: Rc<A>) {
    let peer = Peer::of(&stream);
    let service = service_fn(|request| {
        let answers = Rc::clone(&answers);
        async move {
            let answer = respond(request, peer, &*answers).await;
            Ok::<_, Infallible>(response(answer))
        }
    });
    let connection = http1::Builder::new()
        .timer(SmolTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(FuturesIo::new(stream), service);
    let ended = async { connection.await.map_err(io::Error::other) };
    // A viewer that breaks off or sends nonsense is none of the agent's troubles; hyper has answered what it could.
    drop(ended.or(late(CONNECTION_DEADLINE)).await);
}

async fn respond<A: Answers>(
    request: Request<Incoming>,
    peer: Option<Peer>,
    answers: &A,
) -> Answer {
    let Some(peer) = peer else {
        return refusal(
            StatusCode::FORBIDDEN,
            "the kernel does not say who is asking",
            None,
        );
    };
    let content_type = request.headers().get(header::CONTENT_TYPE);
    let asked = Asked {
        method: request.method(),
        path: request.uri().path(),
        query: request.uri().query().unwrap_or_default(),
        content_type: content_type.and_then(|value| value.to_str().ok()),
        has_body: !request.body().is_end_stream(),
    };
    let route = match route(asked, peer.role()) {
        Ok(route) => route,
        Err(answer) => return answer,
    };
    let body = match route {
        Route::SetAccess => match read(request.into_body()).await {
            Ok(body) => body,
            Err(answer) => return answer,
        },
        Route::Health | Route::Status | Route::Access | Route::Decision(_) => Bytes::new(),
    };
    answer(route, &body, peer, answers).await
}

/// The whole body of a request.
async fn read(body: Incoming) -> std::result::Result<Bytes, Answer> {
    let whole = async {
        let whole = Limited::new(body, BODY_BYTES_MAX).collect().await;
        match whole {
            Ok(whole) => Ok(whole.to_bytes()),
            Err(_too_long_or_broken) => Err(refusal(
                StatusCode::PAYLOAD_TOO_LARGE,
                "the body is too long, or broke off",
                Some("a level fits into a hundred bytes"),
            )),
        }
    };
    let late = async {
        drop(late(BODY_DEADLINE).await);
        Err(refusal(
            StatusCode::REQUEST_TIMEOUT,
            "the body did not come",
            None,
        ))
    };
    whole.or(late).await
}

fn response(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(answer.body)));
    *response.status_mut() = answer.code;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, header::HeaderValue::from_static(value));
    }
    if let Some(allow) = answer.allow {
        headers.insert(header::ALLOW, header::HeaderValue::from_static(allow));
    }
    response
}

async fn late(deadline: Duration) -> io::Result<()> {
    smol::Timer::after(deadline).await;
    Err(io::ErrorKind::TimedOut.into())
}
