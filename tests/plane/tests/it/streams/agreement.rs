//! Agreement on streams, and the requests that use them.

use plane::{
    BodyForm, Bytes, Carrier, Cut, Direction, Mode, Opcode, Plane, ProxyRequest, Redirect,
    Sessions, Streams,
};
use serde_json::json;

use super::fake::{Fake, Manners, offered, streaming};
use crate::agent::{Agent, LIMIT};
use crate::sessions::{linked, plane};

/// The types of the messages, in order, without those of the registration.
fn kinds(plane: &Plane) -> Vec<(Direction, String)> {
    let frames = plane.frames();
    frames
        .iter()
        .filter(|frame| frame.kind.contains("hello"))
        .map(|frame| (frame.direction, frame.kind.to_string()))
        .collect()
}

#[test]
fn the_extension_is_agreed_on_before_yamux() {
    let (plane, _fake, _cluster) = streaming();
    let expected = [
        (Direction::ToAgent, "edge_hello".to_owned()),
        (Direction::FromAgent, "edge_hello_ack".to_owned()),
        (Direction::ToAgent, "gateway_hello".to_owned()),
        (Direction::FromAgent, "gateway_hello_ack".to_owned()),
    ];
    assert_eq!(kinds(&plane), expected);
    let hello = plane
        .wait_for(0, LIMIT, |frame| frame.kind == "edge_hello")
        .unwrap();
    let payload = &hello.json().unwrap()["payload"];
    assert_eq!(
        *payload,
        json!({"version": 1, "streams": ["metrics", "events", "logs", "audit", "outcomes"], "limits": {}})
    );
    let frames = plane.frames();
    let ack = frames.iter().position(|f| f.kind == "gateway_hello_ack");
    let binary = frames.iter().position(|f| f.opcode == Opcode::Binary);
    assert!(binary.is_none_or(|binary| binary > ack.unwrap()));
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn requests_wait_for_the_agreement_and_go_over_streams() {
    let (plane, agent, _cluster) = offered();
    let answer = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| plane.request(ProxyRequest::get("/version"), LIMIT));
        let _hello = plane.wait_for(0, LIMIT, |frame| frame.kind == "edge_hello");
        let _fake = Fake::start(agent, Manners::default());
        let answer = waiting.join().unwrap().unwrap();
        assert_eq!(answer.head.status, 200);
        assert_eq!(answer.head.headers["x-twice"], ["a", "b"]);
        answer.body.read_all(LIMIT).unwrap()
    });
    assert_eq!(answer, [0; 7]);
    let is_message = |frame: &plane::Frame| frame.kind == "proxy_request";
    assert!(!plane.frames().iter().any(is_message));
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn an_agent_that_offers_nothing_gets_messages_and_no_hello() {
    let (plane, agent, _cluster) = linked();
    let fake = Fake::start(agent, Manners::default());
    let answer = plane.request(ProxyRequest::get("/version"), LIMIT).unwrap();
    assert_eq!(answer.body.read_all(LIMIT).unwrap(), b"message");
    assert!(kinds(&plane).is_empty());
    let failed = plane.open_stream(None, b"").unwrap_err();
    assert_eq!(failed, plane::Failed::NoStreams);
    fake.message();
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn an_agent_that_does_not_keep_its_offer_gets_messages() {
    let fallback = json!({
        "agent_version": "1", "unknown_type": "edge_hello", "supported_types": [],
        "fallback_mode": "json", "protocol_version": "1.0", "timestamp": "2026-06-16T05:50:28Z",
    });
    for (edge, what) in [
        (("protocol_fallback", fallback), "does not know edge_hello"),
        (
            ("edge_hello_ack", json!({"version": 2})),
            "not for version 1",
        ),
    ] {
        let (plane, agent, _cluster) = offered();
        let _fake = Fake::start(agent, Manners { edge: Some(edge) });
        let answer = plane.request(ProxyRequest::get("/version"), LIMIT).unwrap();
        assert_eq!(answer.body.read_all(LIMIT).unwrap(), b"message");
        let violations = plane.violations();
        assert!(
            violations.len() == 1 && violations[0].contains(what),
            "{violations:?}"
        );
    }
}

#[test]
fn streams_are_switched_off_and_on_while_it_runs() {
    let (mut plane, fake, _cluster) = streaming();
    let body = |plane: &Plane| {
        let answer = plane.request(ProxyRequest::get("/version"), LIMIT);
        answer.unwrap().body.read_all(LIMIT).unwrap()
    };
    assert_eq!(body(&plane), [0; 7]);
    plane.set(|behaviour| behaviour.streams = Streams::Off);
    assert_eq!(body(&plane), b"message");
    plane.set(|behaviour| behaviour.streams = Streams::Preferred);
    assert_eq!(body(&plane), [0; 7]);
    assert_eq!(plane.violations(), Vec::<String>::new());
    drop(fake);
}

#[test]
fn a_session_that_began_without_streams_gets_them_when_they_are_wanted() {
    let mut plane = plane();
    plane.set(|behaviour| behaviour.streams = Streams::Off);
    let (agent, _cluster) = super::fake::offer(&plane);
    let _fake = Fake::start(agent, Manners::default());
    let answer = plane.request(ProxyRequest::get("/version"), LIMIT).unwrap();
    assert_eq!(answer.body.read_all(LIMIT).unwrap(), b"message");
    assert!(kinds(&plane).is_empty());
    plane.set(|behaviour| behaviour.streams = Streams::Preferred);
    let answer = plane.request(ProxyRequest::get("/version"), LIMIT).unwrap();
    assert_eq!(answer.body.read_all(LIMIT).unwrap(), [0; 7]);
}

#[test]
fn streams_come_on_the_controllers_connection_too() {
    let mut plane = plane();
    plane.set(|behaviour| behaviour.redirect = Redirect::None);
    let mut agent = Agent::dial_controller(&plane).unwrap();
    agent.register_edge();
    let _fake = Fake::start(agent, Manners::default());
    let answer = plane.request(ProxyRequest::get("/version"), LIMIT).unwrap();
    assert_eq!(answer.body.read_all(LIMIT).unwrap(), [0; 7]);
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn beside_yamux_all_messages_are_text() {
    let (mut plane, fake, _cluster) = streaming();
    plane.set(|behaviour| behaviour.carrier = Carrier::Binary);
    let mark = plane.mark();
    let request = ProxyRequest {
        method: "POST".into(),
        body: Bytes::from_static(b"hello"),
        body_form: BodyForm::Frame,
        ..ProxyRequest::get("/x")
    };
    let answer = plane.request(request, LIMIT).unwrap();
    assert_eq!(answer.body.read_all(LIMIT).unwrap(), b"message");
    let message = fake.message();
    assert_eq!(message["payload"]["body"], "aGVsbG8=");
    assert_eq!(message["payload"]["body_encoding"], "base64");
    let sent = plane
        .wait_for(mark, LIMIT, |frame| frame.kind == "proxy_request")
        .unwrap();
    assert_eq!(sent.opcode, Opcode::Text);
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn what_only_messages_can_say_goes_as_a_message() {
    let (plane, _fake, _cluster) = streaming();
    for request in [
        ProxyRequest {
            body_form: BodyForm::Text,
            ..ProxyRequest::get("/x")
        },
        ProxyRequest {
            timeout_ms: Some(1000),
            ..ProxyRequest::get("/x")
        },
        ProxyRequest {
            extra: [("x".to_owned(), 1.into())].into_iter().collect(),
            ..ProxyRequest::get("/x")
        },
    ] {
        let answer = plane.request(request, LIMIT).unwrap();
        assert_eq!(answer.body.read_all(LIMIT).unwrap(), b"message");
    }
    assert!(ProxyRequest::default().mode == Mode::Streaming);
}

#[test]
fn yamux_can_be_started_again_on_the_same_session() {
    let (plane, _fake, _cluster) = streaming();
    let before = plane.open_stream(None, b"x").unwrap();
    let mark = plane.mark();
    plane.gateway_hello(json!({"use_yamux": true}));
    let ack = |frame: &plane::Frame| frame.is_from_agent("gateway_hello_ack");
    plane.wait_for(mark, LIMIT, ack).unwrap();
    let answer = plane.request(ProxyRequest::get("/version"), LIMIT).unwrap();
    assert_eq!(answer.body.read_all(LIMIT).unwrap(), [0; 7]);
    let ended = before.read(LIMIT);
    assert!(
        matches!(ended, Some(Err(plane::Failed::Lost(_)))),
        "{ended:?}"
    );
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn a_lost_session_is_told_to_who_waits_for_the_agreement() {
    let (plane, _agent, _cluster) = offered();
    let failed = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| plane.request(ProxyRequest::get("/version"), LIMIT));
        let _hello = plane.wait_for(0, LIMIT, |frame| frame.kind == "edge_hello");
        plane.cut(Sessions::Newest, Cut::Reset);
        waiting.join().unwrap().unwrap_err()
    });
    assert!(
        matches!(failed, plane::Failed::NotConnected | plane::Failed::Lost(_)),
        "{failed}"
    );
}
