//! Requests of HTTP clients over streams, passed as they are: bodies, trailers, and upgrades of
//! any protocol as raw bytes.

use std::cell::Cell;
use std::future::pending;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode, Uri};
use smol::Timer;
use smol::future::{or, yield_now};
use smol::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::api::{self, Asked};
use crate::bell::within;
use crate::exchange::Failed;
use crate::http::{self, Reply};
use crate::mux::Mux;
use crate::net::{Ending, Flow, Gate};
use crate::streams::{self, Answer, Outgoing, Target};
use crate::wire::Wire;
use crate::world::World;

/// Says to the agent that a service wants TLS.
pub(crate) const SCHEME: HeaderName = HeaderName::from_static("x-pipeops-scheme");

/// Answers a request of an HTTP client.
pub(crate) async fn answer(
    world: &Rc<World>,
    mux: &Rc<Mux>,
    asked: &Asked<'_>,
    mut request: Request<Incoming>,
) -> Response<Reply> {
    let on_client = request
        .headers()
        .contains_key(header::UPGRADE)
        .then(|| hyper::upgrade::on(&mut request));
    let Some((target, outgoing)) = rewritten(world, asked, request) else {
        return api::status(StatusCode::BAD_REQUEST, "the path cannot be sent on");
    };
    let limit = match &on_client {
        Some(_) => api::UPGRADE_DEADLINE,
        None => world.behaviour(|behaviour| behaviour.answer_deadline),
    };
    let sent = streams::send(world, mux, &target, outgoing);
    let (response, lane) = match within(limit, sent).await {
        Some(Ok(answered)) => answered,
        Some(Err(failed)) => return api::failure(&failed),
        None => return api::failure(&Failed::Late),
    };
    match (response.status(), on_client) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(on_client)) => {
            let switched = switched(&response);
            let ends = Ends {
                on_client,
                on_agent: hyper::upgrade::on(response),
                gate: asked.gate.clone(),
            };
            world.tasks.spawn(async move {
                if let Err(why) = ends.carry().await {
                    log::debug!("an upgrade failed: {why}");
                }
                drop(lane);
            });
            switched
        }
        (status, _) if status.is_informational() => {
            let message = format!("the agent answered with status {status}");
            api::status(StatusCode::BAD_GATEWAY, &message)
        }
        _ => {
            let (mut head, body) = response.into_parts();
            remove_hop_by_hop(&mut head.headers);
            let answer = Answer::new(world, mux, body, lane);
            let mut response = Response::new(Reply::Stream(Box::new(answer)));
            *response.status_mut() = head.status;
            *response.headers_mut() = head.headers;
            response
        }
    }
}

/// The request as the agent gets it, and where its stream goes.
fn rewritten(
    world: &World,
    asked: &Asked<'_>,
    request: Request<Incoming>,
) -> Option<(Target, Request<Outgoing>)> {
    let (mut head, body) = request.into_parts();
    let service = api::service(world, &asked.path);
    let (target, path, scheme) = match service {
        Some((service, path)) => {
            let target = Target::Service {
                namespace: service.namespace,
                name: service.name,
                port: service.port,
            };
            (target, path, service.scheme)
        }
        None => (Target::Kubernetes, asked.path.clone(), None),
    };
    let path = match (path.as_str(), head.uri.query()) {
        ("", None) => "/".to_owned(),
        (_, None) => path,
        (path, Some(query)) => format!("{path}?{query}"),
    };
    let headers = &mut head.headers;
    let upgrade = headers.remove(header::UPGRADE);
    remove_hop_by_hop(headers);
    // The plane has asked for the body itself, and the token was for the plane.
    for name in [header::EXPECT, header::AUTHORIZATION, SCHEME] {
        headers.remove(name);
    }
    headers.insert(header::HOST, target.host()?);
    if let Some(upgrade) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, upgrade);
    }
    if scheme.as_deref() == Some("https") {
        headers.insert(SCHEME, HeaderValue::from_static("https"));
    }
    if target == Target::Kubernetes
        && let Some(token) = api::token(world, asked.cluster)
    {
        headers.insert(header::AUTHORIZATION, HeaderValue::from_str(&token).ok()?);
    }
    let mut outgoing = Request::new(Outgoing::Streamed(body));
    *outgoing.method_mut() = head.method;
    *outgoing.uri_mut() = Uri::from(PathAndQuery::try_from(path).ok()?);
    *outgoing.headers_mut() = head.headers;
    Some((target, outgoing))
}

/// Removes what is about one connection only (RFC 9110, 7.6.1).
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let is_for_trailers = http::has_word(headers, header::TE, "trailers");
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in api::HOP_BY_HOP {
        // Trailers pass, so what announces them does.
        if name != "trailer" {
            headers.remove(name);
        }
    }
    if is_for_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// The agent's 101 for the client.
fn switched(response: &Response<Incoming>) -> Response<Reply> {
    let mut headers = response.headers().clone();
    let upgrade = headers.remove(header::UPGRADE);
    remove_hop_by_hop(&mut headers);
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Some(upgrade) = upgrade {
        headers.insert(header::UPGRADE, upgrade);
    }
    let mut switched = Response::new(Reply::Whole(None));
    *switched.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *switched.headers_mut() = headers;
    switched
}

/// The two ends of an upgraded request.
#[derive(Debug)]
struct Ends {
    on_client: OnUpgrade,
    on_agent: OnUpgrade,
    gate: Gate,
}

/// How it came to an end.
enum Ended {
    /// The agent finished its half: nothing more comes from there.
    ByAgent,
    /// The agent reset the stream, or its session is lost.
    Broken,
    /// The client is gone.
    ByClient,
}

/// 500 ms: how long the agent may be silent after a client that closed its connection, which
/// looks the same as one that only finished its half.
const HALF_OPEN_LIMIT: Duration = Duration::from_millis(500);

impl Ends {
    /// Carries bytes until one side ends.
    async fn carry(self) -> Result<(), String> {
        let agent = self.on_agent.await.map_err(|error| error.to_string())?;
        let agent = agent
            .downcast::<Wire>()
            .map_err(|_other| "the stream is of another kind".to_owned())?;
        let client = within(api::UPGRADE_DEADLINE, http::upgraded(self.on_client)).await;
        let (client, first_up) = client.ok_or("the client's upgrade took too long")??;
        let fate = Arc::clone(&agent.io.fate);
        let (mut client_read, mut client_write) = smol::io::split(client);
        let (mut agent_read, mut agent_write) = smol::io::split(agent.io);
        let moved = Cell::new(0);
        let down = async {
            match copy(&agent.read_buf, &mut agent_read, &mut client_write, &moved).await {
                Ok(()) => Ended::ByAgent,
                Err(Side::From) => Ended::Broken,
                Err(Side::To) => Ended::ByClient,
            }
        };
        let up = async {
            let ignored = Cell::new(0);
            match copy(&first_up, &mut client_read, &mut agent_write, &ignored).await {
                Ok(()) => {
                    // An error shows where the stream is read.
                    drop(agent_write.close().await);
                    until_silent(&moved).await;
                    Ended::ByClient
                }
                Err(Side::From) => Ended::ByClient,
                Err(Side::To) => pending().await,
            }
        };
        match or(down, up).await {
            Ended::ByAgent => {
                within(Duration::from_secs(1), client_write.close()).await;
            }
            Ended::Broken => self.gate.set(Flow::Cut(Ending::Reset)),
            Ended::ByClient => fate.abort(),
        }
        Ok(())
    }
}

async fn until_silent(moved: &Cell<u64>) {
    let mut before = None;
    while before != Some(moved.get()) {
        before = Some(moved.get());
        Timer::after(HALF_OPEN_LIMIT).await;
    }
}

/// Which side of a copy failed.
enum Side {
    From,
    To,
}

/// 16 KiB: what one step of a copy moves at most.
const STEP_BYTES: usize = 16 * 1024;

/// Steps after which other tasks get their turn: smol has no budget for a task.
const STEPS_MAX: u32 = 16;

/// Copies to the end of `from`, after what was already read from it.
async fn copy(
    first: &Bytes,
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    moved: &Cell<u64>,
) -> Result<(), Side> {
    let failed = |_error: io::Error| Side::To;
    to.write_all(first).await.map_err(failed)?;
    to.flush().await.map_err(failed)?;
    let mut buffer = vec![0; STEP_BYTES];
    for step in 1_u32.. {
        let bytes = from.read(&mut buffer).await.map_err(|_error| Side::From)?;
        if bytes == 0 {
            break;
        }
        let data = buffer.get(..bytes).unwrap_or_default();
        to.write_all(data).await.map_err(failed)?;
        to.flush().await.map_err(failed)?;
        moved.set(moved.get().wrapping_add(1));
        if step % STEPS_MAX == 0 {
            yield_now().await;
        }
    }
    Ok(())
}
