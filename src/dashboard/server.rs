//! The socket: who asks there is known by the word of the kernel.

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

use http_body_util::{BodyExt, Limited};
use hyper::{
    Request, StatusCode,
    body::{Body, Bytes, Incoming},
    header,
};
use smol::{LocalExecutor, future::FutureExt, net::unix::UnixListener};

use super::{
    answers::Answers,
    connections::{Connections, Respond, Stream, late},
    peer::Peer,
    routes::{Answer, Asked, BODY_BYTES_MAX, Route, answer, refusal, route},
};
use crate::{
    error::{Error, Result},
    files,
};

/// How long a viewer may take to send the body of a request.
const BODY_DEADLINE: Duration = Duration::from_secs(5);
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
        let mut connections = Connections::new(executor);
        loop {
            let accepted = self.listener.accept().await.map(|(stream, _)| {
                let peer = Peer::of(&stream);
                let answers = Rc::clone(&answers);
                let respond: Respond = Box::new(move |request| {
                    let answers = Rc::clone(&answers);
                    Box::pin(async move { respond(request, peer, &*answers).await })
                });
                let stream: Stream = Box::new(stream);
                (stream, respond)
            });
            connections.take(accepted).await;
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
        Route::Health | Route::Status | Route::Metrics | Route::Access | Route::Decision(_) => {
            Bytes::new()
        }
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
