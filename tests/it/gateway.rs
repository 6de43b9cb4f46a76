//! Gateways that a control plane names, between the real program and the reference control plane.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
};

use plane::{Options, Plane, Redirect};
use serde_json::Value;

use crate::agent::{Agent, SOON, until};

/// A service that only this machine reaches, which must not hear of the agent.
struct Service {
    listener: TcpListener,
    port: u16,
}

impl Service {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        Self { listener, port }
    }

    /// Whoever connected since the last look.
    fn visitor(&self) -> Option<TcpStream> {
        match self.listener.accept() {
            Ok((stream, _)) => Some(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A control plane whose registrations name this gateway.
fn plane_naming(gateway: &str) -> Plane {
    let mut plane = Plane::start(Options::default()).unwrap();
    plane.set(|behaviour| behaviour.redirect = Redirect::To(gateway.to_owned()));
    plane
}

fn why(status: &Value) -> String {
    status["link"]["why"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Everything that is delivered as events, as far as it happened.
fn events(agent: &Agent) -> String {
    let (code, body) = agent.get("/api/v1/events").expect("the agent answers");
    assert_eq!(code, 200, "{body}");
    body
}

#[test]
fn a_plain_gateway_on_this_machine_is_not_asked_and_nothing_of_it_is_delivered() {
    let service = Service::new();
    let address = format!("127.0.0.1:{}", service.port);
    let plane = plane_naming(&format!("ws://{address}/internal/admin/reboot?really=yes"));
    for level in ["full", "off"] {
        let mut agent = Agent::new(&plane).with("PIPEOPS_ACCESS_LEVEL", level);
        agent.start();
        let condition = agent.until_condition("link.down", SOON);
        let sentence = condition["sentence"].as_str().unwrap();
        assert!(sentence.contains("the gateway"), "{condition}");
        assert!(!sentence.contains(&address), "{condition}");
        let fix = condition["fix"].as_str().unwrap_or_default();
        assert!(fix.contains("pipeops.gateways"), "{condition}");
        // This machine's owner sees all of it.
        agent.until("the reason", SOON, |status| {
            why(status).contains(&address).then_some(())
        });
        let delivered = until("the event of the condition", SOON, || {
            let events = events(&agent);
            events.contains("link.down").then_some(events)
        });
        assert!(!delivered.contains(&address), "{delivered}");
        assert!(service.visitor().is_none(), "at level {level}");
        // The gateway on disk is checked like one that was just named.
        agent.kill();
        let seen = agent.log().len();
        agent.start();
        until("the gateway of before is refused", SOON, || {
            let log = agent.log();
            let news = log.get(seen..)?;
            let refused = format!("no session with ws://{address}");
            let first = news.find("link: dialing -> waiting")?;
            let line = news.get(first..)?.lines().next()?;
            assert!(line.contains(&refused), "{line}");
            Some(())
        });
        assert!(service.visitor().is_none(), "after a restart");
    }
}

#[test]
fn a_metadata_service_is_refused_even_where_it_is_listed() {
    for gateway in [
        "wss://169.254.169.254",
        "wss://[::ffff:169.254.169.254]",
        "wss://metadata.google.internal",
        "wss://2852039166",
    ] {
        let plane = plane_naming(gateway);
        let listed = "wss://169.254.169.254, wss://metadata.google.internal";
        let mut agent = Agent::new(&plane).with("PIPEOPS_GATEWAYS", listed);
        agent.start();
        agent.until("the refusal", SOON, |status| {
            why(status).contains("which is never allowed").then_some(())
        });
    }
}

#[test]
fn what_fails_at_a_gateway_is_known_here_and_not_delivered() {
    let service = Service::new();
    let address = format!("127.0.0.1:{}", service.port);
    // Like the control plane's own address, so it is dialled; it speaks no TLS.
    let plane = plane_naming(&format!("wss://{address}/x"));
    let agent = Agent::start_for(&plane);
    // Until then it has no events yet.
    until("the end of the start", SOON, || {
        agent.get("/api/v1/events").filter(|(code, _)| *code != 503)
    });
    until("the condition", SOON, || {
        if let Some(mut visitor) = service.visitor() {
            visitor.set_nonblocking(false).unwrap();
            // Heard before answered: who closes with something unread resets the connection.
            drop(visitor.read(&mut [0; 4096]));
            drop(visitor.write_all(b"SSH-2.0-secret_1\r\n"));
        }
        let events = events(&agent);
        assert!(
            !events.contains("TLS") && !events.contains(&address),
            "{events}"
        );
        events.contains("link.down").then_some(())
    });
    let sentence = agent.until_condition("link.down", SOON);
    assert!(!sentence.to_string().contains(&address), "{sentence}");
    assert!(agent.log().contains(&format!("no session with {address}")));
}

#[test]
fn a_listed_gateway_is_dialled_without_the_query_that_came_with_it() {
    let service = Service::new();
    let address = format!("ws://127.0.0.1:{}", service.port);
    let plane = plane_naming(&format!("{address}/tunnel?really=yes#x"));
    let mut agent = Agent::new(&plane).with("PIPEOPS_GATEWAYS", address);
    agent.start();
    let visitor = until("the agent dials", SOON, || service.visitor());
    visitor.set_nonblocking(false).unwrap();
    let mut line = String::new();
    BufReader::new(visitor).read_line(&mut line).unwrap();
    assert!(line.starts_with("GET /tunnel?agent_version="), "{line}");
    assert!(!line.contains("really"), "{line}");
}
