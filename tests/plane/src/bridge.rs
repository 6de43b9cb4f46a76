//! WebSockets of HTTP clients: `kubectl exec` and `attach`, and those of applications.
//!
//! The JSON form of exec loses two things that this part can only guess back (docs/protocol.md,
//! WebSockets of the Kubernetes API):
//! standard error comes out as standard output, and the final status is recognised by its shape.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap};
use hyper::{Request, Response, StatusCode};
use serde_json::Value;
use smol::future::or;
use smol::io::{AsyncWrite, AsyncWriteExt};

use crate::api;
use crate::bell::{Inbox, within};
use crate::exchange::Received;
use crate::http::{self, Reply};
use crate::json::{self, LiveStream, StreamRequest};
use crate::net::Conn;
use crate::request::ProxyRequest;
use crate::session::Session;
use crate::world::World;
use crate::ws::{self, Last, Opcode};

/// What the frames of a client mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    /// A channel byte and data (`*.channel.k8s.io`).
    Channels,
    /// Whatever the application says.
    Plain,
}

/// Answers a request with `Upgrade`.
pub(crate) async fn answer(
    world: &Rc<World>,
    session: Rc<Session>,
    proxied: ProxyRequest,
    mut request: Request<Incoming>,
) -> Response<Reply> {
    if proxied.service.is_none() && proxied.path.ends_with("/portforward") {
        let message = "port-forward cannot be carried as messages to the agent";
        return api::status(StatusCode::NOT_IMPLEMENTED, message);
    }
    let Some(key) = http::websocket_key(request.headers()).cloned() else {
        let message = "only WebSockets can be carried as messages to the agent, not SPDY";
        return api::status(StatusCode::NOT_IMPLEMENTED, message);
    };
    let on = hyper::upgrade::on(&mut request);
    let opened = if proxied.service.is_some() {
        application(world, session, proxied).await
    } else {
        kubernetes(world, session, proxied, request.headers()).await
    };
    let opened = match opened {
        Ok(opened) => opened,
        Err(refusal) => return *refusal,
    };
    let (stream, dialect, protocol) = opened;
    let running = Rc::clone(world);
    world.tasks.spawn(async move {
        let connected = within(api::UPGRADE_DEADLINE, http::upgraded(on)).await;
        match connected {
            Some(Ok((conn, read_before))) => {
                run(&running, conn, &read_before, (stream, dialect)).await;
            }
            Some(Err(error)) => log::debug!("a client's upgrade failed: {error}"),
            None => log::debug!("a client's upgrade took too long"),
        }
    });
    http::switching(&key, protocol.as_deref())
}

type Opened = Result<(LiveStream, Dialect, Option<String>), Box<Response<Reply>>>;

async fn application(world: &Rc<World>, session: Rc<Session>, proxied: ProxyRequest) -> Opened {
    let opened = json::websocket(world, session, &proxied);
    match within(api::UPGRADE_DEADLINE, opened).await {
        Some(Ok((head, stream))) => {
            let protocol = head.header("sec-websocket-protocol").map(str::to_owned);
            Ok((stream, Dialect::Plain, protocol))
        }
        Some(Err((head, failed))) => {
            let mut response = api::failure(&failed);
            let refused = head.and_then(|head| StatusCode::from_u16(head.status).ok());
            if let Some(status) = refused.filter(|status| !status.is_informational()) {
                *response.status_mut() = status;
            }
            Err(Box::new(response))
        }
        None => Err(Box::new(api::failure(&crate::exchange::Failed::Late))),
    }
}

/// The subprotocols of exec and attach, the best first. Their frames are the same; version 5
/// adds the close of one channel (255 and the channel), which passes as any other frame.
const CHANNELS: [&str; 5] = [
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
];

async fn kubernetes(
    world: &Rc<World>,
    session: Rc<Session>,
    proxied: ProxyRequest,
    headers: &HeaderMap,
) -> Opened {
    let refuse = |message| {
        let response = api::status(StatusCode::NOT_IMPLEMENTED, message);
        Err(Box::new(response))
    };
    let last = proxied.path.rsplit('/').next().unwrap_or_default();
    let is_channels = matches!(last, "exec" | "attach");
    let offered = |name: &str| http::has_word(headers, header::SEC_WEBSOCKET_PROTOCOL, name);
    let chosen = CHANNELS.into_iter().find(|name| offered(name));
    if is_channels && chosen.is_none() && headers.contains_key(header::SEC_WEBSOCKET_PROTOCOL) {
        return refuse("none of the offered subprotocols can be carried");
    }
    let request = StreamRequest {
        cluster_id: proxied.cluster_id,
        path: proxied.path,
        query: proxied.query,
        headers: proxied.headers,
        protocol: chosen.unwrap_or("v4.channel.k8s.io").to_owned(),
    };
    let started = json::start(world, session, &request);
    let Some(stream) = within(api::UPGRADE_DEADLINE, started).await else {
        return Err(Box::new(api::failure(&crate::exchange::Failed::Late)));
    };
    let dialect = if is_channels {
        Dialect::Channels
    } else {
        Dialect::Plain
    };
    Ok((stream, dialect, chosen.map(str::to_owned)))
}

/// 256 KiB: what waits to be written to a client before the agent's data waits.
const CLIENT_BYTES_MAX: usize = 256 * 1024;

/// 32 MiB: the largest message taken from a client.
const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Carries frames both ways until one side ends.
async fn run(
    world: &Rc<World>,
    conn: Conn,
    read_before: &[u8],
    (stream, dialect): (LiveStream, Dialect),
) {
    let (read, mut write) = smol::io::split(conn);
    let out: Inbox<Vec<u8>> = Inbox::default();
    let mut reader = ws::Reader::new(read, read_before, MESSAGE_BYTES_MAX);
    let up = async {
        while let Ok(message) = reader.next().await {
            match message.opcode {
                Opcode::Text | Opcode::Binary if dialect == Dialect::Channels => {
                    stream.send(Opcode::Binary.code(), &message.data).await;
                }
                Opcode::Text | Opcode::Binary => {
                    stream.send(message.opcode.code(), &message.data).await;
                }
                Opcode::Ping => put(&out, Opcode::Pong, &message.data),
                Opcode::Pong | Opcode::Continuation => {}
                Opcode::Close => {
                    put(&out, Opcode::Close, &message.data);
                    break;
                }
            }
        }
    };
    let down = async {
        match dialect {
            Dialect::Channels => channels(&stream, &out).await,
            Dialect::Plain => plain(&stream, &out).await,
        }
    };
    let both = async {
        or(up, down).await;
        out.close();
    };
    // The writer ends when the inbox is closed and empty.
    smol::future::zip(both, async {
        let written = write_all(&out, &mut write).await;
        if written.is_err() {
            out.abandon();
        }
    })
    .await;
    drop(stream);
    log::debug!("a client's WebSocket ended; {} tasks", world.tasks.count());
    within(Duration::from_secs(1), write.close()).await;
}

async fn write_all(
    out: &Inbox<Vec<u8>>,
    write: &mut (impl AsyncWrite + Unpin),
) -> std::io::Result<()> {
    while let Some(frames) = out.pop().await {
        write.write_all(&frames).await?;
        if out.bytes() == 0 {
            write.flush().await?;
        }
    }
    Ok(())
}

fn put(out: &Inbox<Vec<u8>>, opcode: Opcode, data: &[u8]) {
    let mut frames = Vec::new();
    ws::put_frame(&mut frames, opcode, data, Last::Yes);
    let bytes = frames.len();
    out.push(frames, bytes);
}

/// An application's frames, as they are.
async fn plain(stream: &LiveStream, out: &Inbox<Vec<u8>>) {
    while let Some(received) = stream.receive().await {
        match received {
            Received::Data { opcode, data } => {
                out.below(CLIENT_BYTES_MAX).await;
                let opcode = Opcode::of(opcode).unwrap_or(Opcode::Binary);
                put(out, opcode, &data);
            }
            Received::Closed => break,
            Received::Failed(failed) => {
                let data = ws::close_payload(1011, &failed.to_string());
                return put(out, Opcode::Close, &data);
            }
        }
    }
    put(out, Opcode::Close, &ws::close_payload(1000, ""));
}

/// Output of exec and attach, given its channels back.
async fn channels(stream: &LiveStream, out: &Inbox<Vec<u8>>) {
    // A message that looks like the final status waits for what comes next: only the last one
    // before the end is the status.
    let held: RefCell<Option<Bytes>> = RefCell::new(None);
    let mut failed = None;
    while let Some(received) = stream.receive().await {
        match received {
            Received::Data { opcode: 1, data } => {
                out.below(CLIENT_BYTES_MAX).await;
                if let Some(output) = held.take() {
                    put_channel(out, STDOUT, &output);
                }
                if is_status(&data) {
                    held.replace(Some(data));
                } else {
                    put_channel(out, STDOUT, &data);
                }
            }
            // Channels that the agent does not know keep their byte.
            Received::Data { data, .. } => {
                out.below(CLIENT_BYTES_MAX).await;
                put(out, Opcode::Binary, &data);
            }
            Received::Failed(why) => failed = Some(why),
            Received::Closed => break,
        }
    }
    if let Some(status) = held.take() {
        put_channel(out, ERROR, &status);
    } else if let Some(why) = failed {
        let status = api::status_text(StatusCode::BAD_GATEWAY, &why.to_string());
        put_channel(out, ERROR, &status);
    }
    put(out, Opcode::Close, &ws::close_payload(1000, ""));
}

const STDOUT: u8 = 1;
const ERROR: u8 = 3;

fn put_channel(out: &Inbox<Vec<u8>>, channel: u8, data: &[u8]) {
    let mut message = Vec::with_capacity(data.len().saturating_add(1));
    message.push(channel);
    message.extend_from_slice(data);
    put(out, Opcode::Binary, &message);
}

/// Returns whether a message has the shape of the `Status` that ends exec and attach.
fn is_status(data: &[u8]) -> bool {
    if !data.starts_with(b"{") {
        return false;
    }
    let Ok(value) = serde_json::from_slice::<Value>(data) else {
        return false;
    };
    let is = |name: &str, expected: &[&str]| {
        let text = value.get(name).and_then(Value::as_str);
        text.is_some_and(|text| expected.contains(&text))
    };
    value.get("metadata").is_some_and(Value::is_object)
        && is("status", &["Success", "Failure"])
        && (value.get("kind").is_none() || is("kind", &["Status"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_status_object_is_taken_for_the_status() {
        assert!(is_status(br#"{"metadata":{},"status":"Success"}"#));
        let failure =
            br#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":500}"#;
        assert!(is_status(failure));
        for output in [
            &b"{\"status\":\"Success\"}"[..],
            b"{\"kind\":\"Pod\",\"metadata\":{},\"status\":\"Success\"}",
            b"hello",
            b"{",
            b"",
        ] {
            assert!(!is_status(output), "{}", String::from_utf8_lossy(output));
        }
    }
}
