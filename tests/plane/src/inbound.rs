//! Handling of an agent's messages.

use std::borrow::Cow;
use std::rc::Rc;

use hyper::body::Bytes;
use serde_json::{Value, json};
use smol::Timer;

use crate::batch;
use crate::check;
use crate::clock;
use crate::edge;
use crate::exchange::{Exchange, Failed, Gone, Part, Progress, Received, StreamKind};
use crate::options::{Mode, Overflow, Redirect, RegisterReply};
use crate::record::{Direction, Note, Role};
use crate::session::Session;
use crate::shape::{self, BinaryAnswer, Chunk, ChunkMessage, Envelope, Head};
use crate::state::Cluster;
use crate::world::World;
use crate::ws::{self, Last, Message, Opcode};

/// Takes one message; returns why the session ends, if it does.
pub(crate) async fn take(
    world: &Rc<World>,
    session: &Rc<Session>,
    message: Message,
) -> Option<String> {
    let note = |kind, id: &str| {
        world.record.frame(
            session.number,
            session.role,
            Direction::FromAgent,
            Note {
                opcode: message.opcode,
                kind,
                id,
                data: &message.data,
            },
        );
    };
    match message.opcode {
        Opcode::Text => {
            if let Some(chunk) = ChunkMessage::guess(&message.data) {
                note(Cow::Borrowed("proxy_response_chunk"), &chunk.request_id);
                stamp(world, session, &chunk.timestamp);
                answer_chunk(world, session, &chunk.request_id, &chunk.payload).await;
                return None;
            }
            match serde_json::from_slice::<Envelope<'_>>(&message.data) {
                Ok(envelope) => {
                    let id = envelope.request_id.as_deref().unwrap_or_default();
                    note(known(&envelope.kind), id);
                    batch::weigh(world, session, &envelope.kind, message.data.len());
                    json(world, session, &envelope).await;
                }
                Err(error) => {
                    note(Cow::Borrowed(""), "");
                    let what = format!("a text message is no envelope: {error}");
                    violation(world, session, what);
                }
            }
        }
        Opcode::Binary if session.edge.is_yamux() => {
            note(Cow::Borrowed(""), "");
            edge::take(session, message.data).await;
        }
        Opcode::Binary => match BinaryAnswer::parse(&message.data) {
            Ok(answer) => {
                note(Cow::Borrowed(""), answer.id);
                binary(world, session, &answer);
            }
            Err(error) => {
                note(Cow::Borrowed(""), "");
                violation(world, session, error);
            }
        },
        Opcode::Ping => {
            note(Cow::Borrowed(""), "");
            if world.behaviour(|behaviour| behaviour.answers_pings) {
                session.send_frame(world, Opcode::Pong, &message.data, Last::Yes);
            }
        }
        Opcode::Pong | Opcode::Continuation => note(Cow::Borrowed(""), ""),
        Opcode::Close => {
            note(Cow::Borrowed(""), "");
            let (code, reason) = ws::close_code(&message.data);
            session.send_frame(world, Opcode::Close, &message.data, Last::Yes);
            return Some(match code {
                Some(code) => format!("the agent closed it: {code} {reason}"),
                None => "the agent closed it without a code".to_owned(),
            });
        }
    }
    None
}

fn violation(world: &World, session: &Session, what: impl Into<String>) {
    world.record.violation(session.number, what);
}

/// The `type` without an allocation where it is a known one.
fn known(kind: &str) -> Cow<'static, str> {
    Cow::Borrowed(match kind {
        "proxy_response_chunk" => "proxy_response_chunk",
        "proxy_response_header" => "proxy_response_header",
        "proxy_response_end" => "proxy_response_end",
        "proxy_response" => "proxy_response",
        "proxy_websocket_data" => "proxy_websocket_data",
        "heartbeat" => "heartbeat",
        "edge_batch" => "edge_batch",
        other => return Cow::Owned(other.to_owned()),
    })
}

fn stamp(world: &World, session: &Session, timestamp: &str) {
    if let Some(wrong) = check::timestamp(timestamp) {
        violation(world, session, wrong);
    }
}

async fn json(world: &Rc<World>, session: &Rc<Session>, envelope: &Envelope<'_>) {
    stamp(world, session, &envelope.timestamp);
    let id = envelope.request_id.as_deref();
    if envelope.kind == "proxy_response_chunk" {
        match serde_json::from_str::<Chunk<'_>>(envelope.payload.get()) {
            Ok(chunk) => answer_chunk(world, session, id.unwrap_or_default(), &chunk).await,
            Err(error) => violation(world, session, format!("proxy_response_chunk: {error}")),
        }
        return;
    }
    let payload: Value = match serde_json::from_str(envelope.payload.get()) {
        Ok(payload) => payload,
        Err(error) => return violation(world, session, format!("payload: {error}")),
    };
    match &*envelope.kind {
        "register" => return register(world, session, id, &payload),
        "heartbeat" => return heartbeat(world, session, id, payload),
        kind => {
            for wrong in check::payload(kind, &payload) {
                violation(world, session, wrong);
            }
        }
    }
    let id = id.unwrap_or_default();
    match &*envelope.kind {
        "proxy_response_header" => answer_head(world, session, id, &payload),
        "proxy_response_end" => answer_end(world, session, id, Part::End),
        "proxy_response_abort" => {
            let failed = Failed::Aborted(text(&payload, "error"));
            answer_end(world, session, id, Part::Failed(failed));
        }
        "proxy_response" => {
            let decoded = shape::buffered_answer(&payload);
            buffered(world, session, id, decoded);
        }
        "proxy_error" => failed(world, session, id, &payload),
        "proxy_websocket_data" => stream_data(world, session, id, &payload).await,
        "proxy_websocket_close" => stream_close(world, session, id, &payload),
        "edge_hello_ack" => edge::hello_ack(world, session, &payload),
        "gateway_hello_ack" => edge::gateway_hello_ack(world, session, &payload),
        "edge_batch" => batch::take(world, session, &payload),
        "edge_gap" => batch::take_gap(world, session, &payload),
        "edge_command_ack" => command_ack(world, session, &payload),
        "protocol_fallback" => edge::unknown(world, session, &text(&payload, "unknown_type")),
        _ => {}
    }
}

fn command_ack(world: &World, session: &Session, payload: &Value) {
    let (id, state) = (text(payload, "id"), text(payload, "state"));
    match state.as_str() {
        "accepted" | "known" => log::info!("command {id}: {state}"),
        "refused" => {
            let (error, fix) = (text(payload, "error"), text(payload, "fix"));
            log::info!("command {id}: refused: {error}; fix: {fix}");
        }
        _ => violation(
            world,
            session,
            format!("edge_command_ack: no state {state:?}"),
        ),
    }
}

fn text(payload: &Value, name: &str) -> String {
    let text = payload.get(name).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

fn register(world: &Rc<World>, session: &Rc<Session>, id: Option<&str>, payload: &Value) {
    for wrong in check::register(id, payload) {
        violation(world, session, wrong);
    }
    if session.role == Role::Gateway {
        return violation(world, session, "register on the gateway");
    }
    world.record.registration(payload.clone());
    log::info!(
        "session {}: register of {} ({})",
        session.number,
        text(payload, "name"),
        text(payload, "agent_id")
    );
    let features = payload.get("features");
    if features.and_then(|features| features.get("supports_edge")) == Some(&Value::Bool(true)) {
        session.edge.offer();
    }
    let id = id.unwrap_or_default().to_owned();
    if world.behaviour(|behaviour| behaviour.announces_progress) {
        session.send(world, "register_in_progress", Some(&id), json!({}));
    }
    let delay = world.behaviour(|behaviour| behaviour.register_delay);
    if delay.is_zero() {
        return reply_to_register(world, session, &id, payload);
    }
    let (world, session, payload) = (Rc::clone(world), Rc::clone(session), payload.clone());
    let tasks = Rc::clone(&world);
    tasks.tasks.spawn(async move {
        Timer::after(delay).await;
        reply_to_register(&world, &session, &id, &payload);
    });
}

fn reply_to_register(world: &Rc<World>, session: &Rc<Session>, id: &str, payload: &Value) {
    let (reply, redirect) =
        world.behaviour(|behaviour| (behaviour.register.clone(), behaviour.redirect.clone()));
    let mut registering = Cluster {
        cluster_id: text(payload, "cluster_id"),
        agent_id: text(payload, "agent_id"),
        name: text(payload, "name"),
        k8s_service_token: payload
            .get("k8s_service_token")
            .and_then(Value::as_str)
            .map(str::to_owned),
    };
    let other_id = format!("{id}-other");
    let mut reply_id = Some(id);
    match reply {
        RegisterReply::Silence => return,
        RegisterReply::Error(error) => {
            return session.send(world, "error", Some(id), json!({ "error": error }));
        }
        RegisterReply::NoCluster => {
            let payload = json!({"name": registering.name, "status": "active"});
            return session.send(world, "register_success", Some(id), payload);
        }
        RegisterReply::Success => {}
        RegisterReply::Cluster(cluster_id) => {
            let agent = registering.agent_id.clone();
            let mut state = world.state.borrow_mut();
            state.clusters.retain(|cluster| cluster.agent_id != agent);
            registering.cluster_id = cluster_id;
        }
        RegisterReply::WrongRequestId => reply_id = Some(&other_id),
        RegisterReply::NoRequestId => reply_id = None,
    }
    let cluster = match world.register(registering) {
        Ok(cluster) => cluster,
        Err(error) => {
            log::error!("cannot register: {error}");
            let payload = json!({ "error": format!("cannot register: {error}") });
            return session.send(world, "error", Some(id), payload);
        }
    };
    let mut payload = json!({
        "cluster_id": cluster.cluster_id, "cluster_uuid": cluster.cluster_id,
        "name": cluster.name, "status": "active", "workspace_id": 1,
        "tunnel_url": "", "api_server": "",
    });
    let gateway = match redirect {
        Redirect::None => None,
        Redirect::Gateway => Some(world.gateway_url(session.security)),
        Redirect::To(url) => Some(url),
    };
    let accepted = reply_id == Some(id);
    if let (Some(url), Some(object)) = (gateway, payload.as_object_mut()) {
        object.insert("gateway_ws_url".to_owned(), url.into());
        if accepted {
            session.redirected();
        }
    }
    if accepted {
        log::info!(
            "cluster {} registered as {}",
            cluster.name,
            cluster.cluster_id
        );
        *session.cluster_id.borrow_mut() = Some(cluster.cluster_id);
    }
    session.send(world, "register_success", reply_id, payload);
    if accepted && session.carries(None) {
        edge::begin(world, session);
    }
}

fn heartbeat(world: &World, session: &Session, id: Option<&str>, payload: Value) {
    for wrong in check::heartbeat(id, &payload, session.cluster_id.borrow().as_deref()) {
        violation(world, session, wrong);
    }
    let summary = summary(&payload);
    let mut before = session.heartbeat.borrow_mut();
    if *before == summary {
        log::debug!("session {}: heartbeat, unchanged", session.number);
    } else {
        log::info!("session {}: heartbeat: {summary}", session.number);
        *before = summary;
    }
    drop(before);
    world.record.heartbeat(payload);
    if world.behaviour(|behaviour| behaviour.acknowledges_heartbeats) {
        let payload = json!({ "received_at": clock::rfc3339() });
        session.send(world, "heartbeat_ack", None, payload);
    }
}

/// What a person wants to know of a heartbeat.
fn summary(payload: &Value) -> String {
    let metadata = |name: &str| {
        let value = payload.get("metadata").and_then(|data| data.get(name));
        value.map(Value::to_string).unwrap_or_default()
    };
    format!(
        "{} nodes={} pods={} k8s={} cpu={} memory={}",
        text(payload, "status"),
        metadata("k8s_nodes"),
        metadata("k8s_pods"),
        metadata("k8s_version"),
        metadata("cpu_usage"),
        metadata("memory_usage"),
    )
}

/// The exchange of an id, in the mode that the message belongs to.
fn exchange(
    world: &World,
    session: &Session,
    id: &str,
    (kind, mode): (&str, Option<Mode>),
) -> Option<Rc<Exchange>> {
    let found = session.exchanges.borrow().get(id).map(Rc::clone);
    match found {
        Some(exchange) if mode.is_none_or(|mode| mode == exchange.mode) => Some(exchange),
        Some(exchange) => {
            let what = format!(
                "{kind} for {id}, which was asked for as {:?}",
                exchange.mode
            );
            violation(world, session, what);
            None
        }
        None => {
            match world.past.get(id) {
                Some(Gone::GivenUp) => {}
                Some(Gone::Ended) => {
                    violation(world, session, format!("{kind} for {id} after its end"));
                }
                None => violation(world, session, format!("{kind} for the unknown id {id:?}")),
            }
            None
        }
    }
}

fn answer_head(world: &World, session: &Session, id: &str, payload: &Value) {
    let what = ("proxy_response_header", Some(Mode::Streaming));
    let Some(exchange) = exchange(world, session, id, what) else {
        return;
    };
    if exchange.progress.get() != Progress::Nothing {
        return violation(world, session, format!("a second head for {id}"));
    }
    match Head::of(payload.get("status"), payload.get("headers")) {
        Ok(head) => {
            exchange.progress.set(Progress::Head);
            exchange.inbox.push(Part::Head(head), 0);
        }
        Err(error) => {
            violation(world, session, format!("head for {id}: {error}"));
            let failed = Part::Failed(Failed::Unreadable(error));
            end(world, session, id, &exchange, failed);
        }
    }
}

/// 32 KiB: the largest piece of a body in one chunk (docs/protocol.md, Streamed responses).
const CHUNK_BYTES_MAX: usize = 32_768;

async fn answer_chunk(world: &World, session: &Session, id: &str, chunk: &Chunk<'_>) {
    let what = ("proxy_response_chunk", Some(Mode::Streaming));
    let Some(exchange) = exchange(world, session, id, what) else {
        return;
    };
    if exchange.progress.get() != Progress::Head {
        violation(world, session, format!("a chunk before the head of {id}"));
    }
    let data = match shape::base64(&chunk.data) {
        Ok(data) => data,
        Err(error) => {
            violation(world, session, format!("chunk of {id}: {error}"));
            let failed = Part::Failed(Failed::Unreadable(error));
            return end(world, session, id, &exchange, failed);
        }
    };
    if chunk.encoding != "base64" {
        violation(
            world,
            session,
            format!("chunk of {id} is in {:?}", chunk.encoding),
        );
    }
    if chunk.size != data.len() {
        let what = format!(
            "chunk of {id} says {} bytes and has {}",
            chunk.size,
            data.len()
        );
        violation(world, session, what);
    }
    if data.is_empty() || data.len() > CHUNK_BYTES_MAX {
        let what = format!("chunk of {id} has {} bytes, not 1 to 32768", data.len());
        violation(world, session, what);
    }
    let bytes = data.len();
    exchange.inbox.push(Part::Chunk(data), bytes);
    let (spool, overflow) =
        world.behaviour(|behaviour| (behaviour.spool_bytes_max, behaviour.overflow));
    if exchange.inbox.bytes() <= spool {
        return;
    }
    match overflow {
        // The JSON form has no window: not reading is all that holds the agent back. It holds
        // everything else on the session back too, so memory is given first.
        Overflow::StopReading => {
            session.is_holding.set(true);
            exchange.inbox.below(spool.max(1)).await;
            session.is_holding.set(false);
        }
        Overflow::Cancel => {
            exchange.finish(Part::Failed(Failed::Overflow));
            session.forget(world, id, Gone::GivenUp);
            session.send(world, "proxy_cancel", Some(id), json!({}));
        }
    }
}

fn answer_end(world: &World, session: &Session, id: &str, part: Part) {
    let (kind, is_end) = match part {
        Part::End => ("proxy_response_end", true),
        Part::Failed(_) | Part::Head(_) | Part::Chunk(_) => ("proxy_response_abort", false),
    };
    let Some(exchange) = exchange(world, session, id, (kind, Some(Mode::Streaming))) else {
        return;
    };
    if is_end && exchange.progress.get() != Progress::Head {
        violation(
            world,
            session,
            format!("the end of {id} came before its head"),
        );
    }
    end(world, session, id, &exchange, part);
}

/// Ends an exchange by the agent's will.
fn end(world: &World, session: &Session, id: &str, exchange: &Exchange, part: Part) {
    exchange.finish(part);
    session.exchanges.borrow_mut().remove(id);
    world.past.add(id, Gone::Ended);
}

fn buffered(world: &World, session: &Session, id: &str, decoded: Result<(Head, Bytes), String>) {
    let what = ("proxy_response", Some(Mode::Buffered));
    let Some(exchange) = exchange(world, session, id, what) else {
        return;
    };
    match decoded {
        Ok((head, body)) => {
            exchange.inbox.push(Part::Head(head), 0);
            if !body.is_empty() {
                let bytes = body.len();
                exchange.inbox.push(Part::Chunk(body), bytes);
            }
            end(world, session, id, &exchange, Part::End);
        }
        Err(error) => {
            violation(world, session, format!("answer to {id}: {error}"));
            let failed = Part::Failed(Failed::Unreadable(error));
            end(world, session, id, &exchange, failed);
        }
    }
}

/// 10 KiB: buffered bodies from here on come as a binary message (docs/protocol.md, Buffered
/// responses).
const BINARY_BYTES_MIN: usize = 10_240;

fn binary(world: &World, session: &Session, answer: &BinaryAnswer<'_>) {
    let body = answer.body();
    if body.len() < BINARY_BYTES_MIN {
        let what = format!(
            "a binary answer of only {} bytes for {}",
            body.len(),
            answer.id
        );
        violation(world, session, what);
    }
    buffered(world, session, answer.id, Ok((answer.head.clone(), body)));
}

fn failed(world: &World, session: &Session, id: &str, payload: &Value) {
    let failed = Failed::Error(text(payload, "error"));
    // The error of a Kubernetes stream is followed by its close.
    let stream = session.streams.borrow().get(id).map(Rc::clone);
    if let Some(stream) = stream.filter(|stream| stream.kind == StreamKind::Kubernetes) {
        stream.inbox.push(Received::Failed(failed), 0);
        return;
    }
    let what = ("proxy_error", Some(Mode::Buffered));
    if let Some(exchange) = exchange(world, session, id, what) {
        end(world, session, id, &exchange, Part::Failed(failed));
    }
}

async fn stream_data(world: &World, session: &Session, id: &str, payload: &Value) {
    let stream_id = text(payload, "stream_id");
    if id != stream_id {
        let what = format!("stream data of {stream_id:?} in an envelope of {id:?}");
        violation(world, session, what);
    }
    let found = session.streams.borrow().get(&stream_id).map(Rc::clone);
    let Some(stream) = found else {
        return stray(world, session, "proxy_websocket_data", &stream_id);
    };
    if stream.kind == StreamKind::Application {
        // Data before the 101 would reach a client that has no WebSocket yet.
        let exchange = session.exchanges.borrow().get(&stream_id).map(Rc::clone);
        if exchange.is_some_and(|exchange| exchange.progress.get() == Progress::Nothing) {
            violation(
                world,
                session,
                format!("data of {stream_id} before its 101"),
            );
        }
    }
    let (opcode, data) = match shape::unframed(payload) {
        Ok(framed) => framed,
        Err(error) => return violation(world, session, format!("{stream_id}: {error}")),
    };
    if !matches!(opcode, 1 | 2) {
        violation(
            world,
            session,
            format!("{stream_id}: opcode {opcode} was forwarded"),
        );
    }
    let kind = payload.get("message_type").and_then(Value::as_u64);
    match stream.kind {
        StreamKind::Application if kind != Some(opcode.into()) => {
            violation(
                world,
                session,
                format!("{stream_id}: message_type is {kind:?}"),
            );
        }
        StreamKind::Kubernetes if kind.is_some() => {
            violation(world, session, format!("{stream_id}: message_type on exec"));
        }
        StreamKind::Application | StreamKind::Kubernetes => {}
    }
    let bytes = data.len();
    stream.inbox.push(Received::Data { opcode, data }, bytes);
    let spool = world.behaviour(|behaviour| behaviour.spool_bytes_max);
    if stream.inbox.bytes() > spool {
        session.is_holding.set(true);
        stream.inbox.below(spool.max(1)).await;
        session.is_holding.set(false);
    }
}

fn stream_close(world: &World, session: &Session, id: &str, payload: &Value) {
    let stream_id = text(payload, "stream_id");
    if id != stream_id {
        let what = format!("the close of {stream_id:?} in an envelope of {id:?}");
        violation(world, session, what);
    }
    let removed = session.streams.borrow_mut().remove(&stream_id);
    match removed {
        Some(stream) => {
            stream.finish(Received::Closed);
            world.past.add(&stream_id, Gone::Ended);
        }
        None => stray(world, session, "proxy_websocket_close", &stream_id),
    }
}

fn stray(world: &World, session: &Session, kind: &str, id: &str) {
    match world.past.get(id) {
        Some(Gone::GivenUp) => {}
        Some(Gone::Ended) => violation(world, session, format!("{kind} for {id} after its end")),
        None => violation(
            world,
            session,
            format!("{kind} for the unknown stream {id:?}"),
        ),
    }
}
