//! Connections of viewers, from wherever they come: bounded in number, in time and in bytes.

use std::{convert::Infallible, io, pin::Pin, rc::Rc, time::Duration};

use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header,
    server::conn::http1,
    service::service_fn,
};
use smol::{
    LocalExecutor, Task,
    future::FutureExt,
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
};
use smol_hyper::rt::{FuturesIo, SmolTimer};

use super::routes::{Answer, refusal};

/// Connections at a time; the next is told 503.
pub const CONNECTIONS_MAX: usize = 16;
/// How long a viewer may take to send the head of a request.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// How long a connection may last in all: no route streams, so who needs longer does not read.
const CONNECTION_DEADLINE: Duration = Duration::from_secs(60);
/// How long the refusal of a connection may take.
const REFUSAL_DEADLINE: Duration = Duration::from_secs(1);
/// How long the server rests after the kernel refused it a connection (no descriptors): it would be refused at once again.
const REST: Duration = Duration::from_millis(200);
/// A request's head at most.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Both directions of a connection.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

/// A connection of either kind: one type, so that HTTP is in the program once.
pub(super) type Stream = Box<dyn Duplex>;
/// What answers the requests of one connection.
pub(super) type Respond = Box<dyn Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = Answer>>>>;

/// The connections of one listener. Dropping it ends them all.
pub(super) struct Connections {
    executor: Rc<LocalExecutor<'static>>,
    // Neither is ever longer than CONNECTIONS_MAX.
    served: Vec<Task<()>>,
    refused: Vec<Task<()>>,
}

impl Connections {
    pub(super) fn new(executor: Rc<LocalExecutor<'static>>) -> Self {
        Self {
            executor,
            served: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Serves what was accepted, or sends it away.
    pub(super) async fn take(&mut self, accepted: io::Result<(Stream, Respond)>) {
        self.served.retain(|connection| !connection.is_finished());
        self.refused.retain(|refusal| !refusal.is_finished());
        match accepted {
            Err(_) => {
                smol::Timer::after(REST).await;
            }
            Ok((stream, respond)) if self.served.len() < CONNECTIONS_MAX => {
                self.served
                    .push(self.executor.spawn(converse(stream, respond)));
            }
            Ok((stream, _)) if self.refused.len() < CONNECTIONS_MAX => {
                self.refused.push(self.executor.spawn(refuse(stream)));
            }
            // A flood: closed without a word.
            Ok(_) => {}
        }
    }
}

/// Tells one viewer too many that it is.
async fn refuse(mut stream: Stream) {
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

async fn converse(stream: Stream, respond: Respond) {
    let service = service_fn(|request| {
        let answer = respond(request);
        async { Ok::<_, Infallible>(response(answer.await)) }
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

fn response(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(answer.body)));
    *response.status_mut() = answer.code;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, answer.content_type),
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

/// Ends a wait.
pub(super) async fn late(deadline: Duration) -> io::Result<()> {
    smol::Timer::after(deadline).await;
    Err(io::ErrorKind::TimedOut.into())
}
