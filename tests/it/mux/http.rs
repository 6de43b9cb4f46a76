//! HTTP on a stream as the agent serves it: hyper, keep-alive, and an upgrade in the same task.

use std::{convert::Infallible, io};

use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{CONNECTION, UPGRADE},
    server::conn::http1,
    service::service_fn,
};
use pipeops_agent::{
    core::yamux::Settings,
    link::mux::{Mux, MuxStream},
    link::outlet::{Frame, Outlet},
};
use smol::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::UnixStream,
};
use smol_hyper::rt::FuturesIo;

use super::{bench::run, crate_peer::Peer};

type Body = http_body_util::Full<Bytes>;

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let mut response = Response::new(Body::from(path.clone()));
    if path == "/upgrade" {
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response
            .headers_mut()
            .insert(CONNECTION, "Upgrade".parse().unwrap());
        response
            .headers_mut()
            .insert(UPGRADE, "echo".parse().unwrap());
        *response.body_mut() = Body::default();
    }
    Ok(response)
}

/// Serves requests; after a 101 the stream is an echo. Neither needs `Send`.
async fn serve(stream: MuxStream) -> io::Result<()> {
    let connection = http1::Builder::new()
        .max_buf_size(16 * 1024)
        .serve_connection(FuturesIo::new(stream), service_fn(answer));
    let parts = connection
        .without_shutdown()
        .await
        .map_err(io::Error::other)?;
    let mut stream = parts.io.into_inner();
    // Without an upgrade there is nothing to echo: the peer has finished, and the stream is closed.
    stream.write_all(&parts.read_buf).await?;
    let mut buffer = [0; 1024];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return stream.close().await;
        }
        stream.write_all(&buffer[..count]).await?;
    }
}

async fn carry(mut socket: UnixStream, mux: Mux, outlet: Outlet) {
    let mut reader = socket.clone();
    let inbound = async {
        let mut buffer = vec![0; 4096];
        loop {
            match reader.read(&mut buffer).await {
                Ok(0) | Err(_) => return mux.session_lost(),
                Ok(count) => mux.receive(&buffer[..count].to_vec().into()),
            }
        }
    };
    let outbound = async {
        while let Some(Frame::Binary(bytes)) =
            std::future::poll_fn(|context| outlet.poll_next(context)).await
        {
            socket.write_all(&bytes).await.unwrap_or_default();
        }
    };
    smol::future::zip(inbound, outbound).await;
}

async fn read_until(stream: &mut yamux::Stream, end: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end.as_bytes()) {
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        text.extend(byte);
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn requests_and_an_upgrade_share_a_stream() {
    run(async |executor| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let outlet = Outlet::new();
        let mux = Mux::new(Settings::default(), outlet.clone());
        let _tasks = [
            executor.spawn(carry(ours, mux.clone(), outlet)),
            executor.spawn({
                let mux = mux.clone();
                async move {
                    mux.drive().await;
                }
            }),
            executor.spawn({
                let mux = mux.clone();
                async move {
                    let stream = mux.accept().await.unwrap();
                    serve(stream).await.unwrap();
                }
            }),
        ];
        let peer = Peer::start(&executor, theirs);
        let get = |path: &str, more: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\n{more}\r\n");
        let mut stream = peer.open(get("/one", "").as_bytes()).await;
        assert!(
            read_until(&mut stream, "/one")
                .await
                .starts_with("HTTP/1.1 200 OK\r\n")
        );
        stream.write_all(get("/two", "").as_bytes()).await.unwrap();
        assert!(
            read_until(&mut stream, "/two")
                .await
                .starts_with("HTTP/1.1 200 OK\r\n")
        );
        // What follows the request at once is not lost in hyper's buffer.
        let upgrade = get("/upgrade", "connection: upgrade\r\nupgrade: echo\r\n") + "early ";
        stream.write_all(upgrade.as_bytes()).await.unwrap();
        let head = read_until(&mut stream, "\r\n\r\n").await;
        assert!(
            head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"),
            "{head}"
        );
        stream.write_all(b"and late").await.unwrap();
        stream.close().await.unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "early and late");
        while mux.load().streams > 0 {
            smol::future::yield_now().await;
        }
    });
}
