//! The link, between the real program and the reference control plane.

use std::time::Duration;

use plane::{
    Behaviour, Carrier, Cut, Options, Plane, Redirect, RegisterReply, Sessions, StreamHeader,
    Upgrade,
};
use serde_json::{Value, json};

use crate::agent::{Agent, SOON};

fn plane() -> Plane {
    Plane::start(Options::default()).unwrap()
}

fn plane_with(change: impl FnOnce(&mut Behaviour)) -> Plane {
    let mut plane = plane();
    plane.set(change);
    plane
}

/// The conditions that are more than a note.
fn wrong(status: &Value) -> Vec<String> {
    let conditions = status["conditions"].as_array().unwrap();
    conditions
        .iter()
        .filter(|condition| condition["severity"] != "note")
        .map(|condition| condition["id"].to_string())
        .collect()
}

fn no_violations(plane: &Plane) {
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn a_new_box_registers_is_redirected_and_beats_with_real_numbers() {
    let plane = plane();
    let agent = Agent::start_for(&plane);
    agent.until_linked();
    let (registration, beat) = plane
        .until(SOON, |view| {
            Some((
                view.registrations.front()?.clone(),
                view.heartbeats.front()?.clone(),
            ))
        })
        .expect("a registration and a heartbeat");
    assert_eq!(registration["name"], "test");
    assert_eq!(registration["metadata"]["registration_mode"], "fresh");
    assert_eq!(registration["server_ip"], "127.0.0.1");
    assert!(registration["server_specs"]["cpu_cores"].as_u64() > Some(0));
    assert_eq!(registration.get("k8s_service_token"), None);
    for number in ["cpu_usage", "memory_usage"] {
        let text = beat["metadata"][number].as_str().unwrap();
        let value: f64 = text.strip_suffix('%').unwrap().parse().unwrap();
        assert!(
            text != "0%" && (0.0..=100.0).contains(&value),
            "{number} {text}"
        );
    }
    assert_eq!(
        beat.get("worker_join"),
        None,
        "the node token never rides in a heartbeat"
    );
    no_violations(&plane);
}

#[test]
fn json_in_binary_frames_and_in_fragments_is_understood() {
    for fragment_bytes in [None, Some(7)] {
        let plane = plane_with(|behaviour| {
            behaviour.carrier = Carrier::Binary;
            behaviour.fragment_bytes = fragment_bytes;
        });
        let agent = Agent::start_for(&plane);
        agent.until_linked();
        let mark = plane.mark();
        plane.ping(Some("p-1"));
        plane
            .wait_for(mark, SOON, |frame| {
                frame.is_from_agent("pong")
                    && frame.json().is_some_and(|j| j["request_id"] == "p-1")
            })
            .expect("a pong");
        no_violations(&plane);
    }
}

#[test]
fn an_unknown_type_is_answered_once() {
    let plane = plane();
    let agent = Agent::start_for(&plane);
    agent.until_linked();
    let mark = plane.mark();
    for _ in 0..3 {
        plane.send("frobnicate", Some("x-1"), json!({}));
    }
    let answer = plane
        .wait_for(mark, SOON, |frame| frame.is_from_agent("protocol_fallback"))
        .expect("an answer");
    let answer = answer.json().unwrap();
    assert_eq!(answer["payload"]["unknown_type"], "frobnicate");
    assert_eq!(answer["payload"]["original_request_id"], "x-1");
    plane.ping(None);
    plane
        .wait_for(mark, SOON, |frame| frame.is_from_agent("pong"))
        .expect("a pong");
    let answers = plane
        .frames()
        .iter()
        .filter(|frame| frame.is_from_agent("protocol_fallback"))
        .count();
    assert_eq!(answers, 1);
}

#[test]
fn garbage_is_dropped_and_the_session_stays() {
    let plane = plane();
    let agent = Agent::start_for(&plane);
    agent.until_linked();
    let session = plane.sessions().last().unwrap().number;
    for text in [
        "",
        "{",
        "null",
        "[]",
        "42",
        "\"ping\"",
        "{\"type\":7}",
        "{\"type\":\"ping\",\"payload\":3}",
        "{\"type\":\"ping\",\"timestamp\":\"noon\"}",
        "{\"type\":\"proxy_request\"}",
        "{\"type\":\"proxy_request\",\"request_id\":\"a\",\"payload\":{\"headers\":{\"a\":[1,{},[]]},\"path\":7}}",
        "{\"type\":\"ws_start\",\"payload\":{\"path\":\"../../etc\"}}",
        "{\"type\":\"tcp_tunnel_start\",\"request_id\":\"t\",\"payload\":{\"gateway_port\":22}}",
        "{\"type\":\"proxy_stream_data\",\"request_id\":\"a\",\"payload\":{\"data\":\"AA==\"}}",
        "{\"type\":\"gateway_hello\",\"payload\":{\"use_yamux\":false}}",
    ] {
        plane.send_text(text);
    }
    plane.send_text(&format!(
        "{{\"type\":\"ping\",\"payload\":{}1{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    ));
    plane.send_binary(&[0xff, 0xfe, 0, 1, 2]);
    let mark = plane.mark();
    plane.ping(Some("still-there"));
    plane
        .wait_for(mark, SOON, |frame| frame.is_from_agent("pong"))
        .expect("the session answers");
    assert_eq!(
        plane.sessions().last().unwrap().number,
        session,
        "on the same session"
    );
}

#[test]
fn a_message_over_the_limit_ends_the_session_with_a_reason_and_the_link_comes_back() {
    let plane = plane();
    let agent = Agent::start_for(&plane);
    agent.until_linked();
    let before = plane.sessions().last().unwrap().number;
    plane.send_text(&"x".repeat(33 * 1024 * 1024));
    plane
        .until(SOON, move |view| {
            view.sessions
                .iter()
                .any(|s| s.is_ready && s.number != before)
                .then_some(())
        })
        .expect("a new session");
    assert!(
        agent.log().contains("the limit is 33554432"),
        "the log says why"
    );
}

#[test]
fn the_agent_starts_before_its_control_plane_and_links_when_it_comes() {
    let mut plane = plane();
    plane.stop();
    let agent = Agent::start_for(&plane);
    let condition = agent.until_condition("link.down", SOON);
    assert!(
        condition["sentence"]
            .as_str()
            .unwrap()
            .contains("no control plane"),
        "{condition}"
    );
    assert!(
        condition["fix"]
            .as_str()
            .is_some_and(|fix| fix.contains("nothing listens")),
        "{condition}"
    );
    plane.start_again().unwrap();
    agent.until("the link is ready", Duration::from_secs(30), |status| {
        (status["link"]["state"] == "ready").then_some(())
    });
    assert_eq!(wrong(&agent.status()), Vec::<String>::new());
}

#[test]
fn a_refused_token_keeps_the_identity_and_a_new_one_is_picked_up_without_a_restart() {
    let mut plane = plane();
    let agent = Agent::start_for(&plane);
    let before = agent.until_linked();
    plane.set_token("another-token");
    plane.cut(Sessions::All, Cut::Reset);
    let condition = agent.until_condition("link.refused", SOON);
    assert_eq!(condition["severity"], "critical");
    assert!(
        condition["fix"].as_str().unwrap().contains("token"),
        "{condition}"
    );
    // A control plane that is away refuses nothing.
    plane.stop();
    agent.set_token("another-token");
    agent.until("nothing is refused any more", SOON, |status| {
        let refused = |id: &String| id.contains("link.refused");
        (!wrong(status).iter().any(refused)).then_some(())
    });
    plane.start_again().unwrap();
    let after = agent.until_linked();
    assert_eq!(after["cluster_id"], before["cluster_id"]);
    assert_eq!(after["agent_id"], before["agent_id"]);
    assert_eq!(wrong(&after), Vec::<String>::new());
    assert_eq!(plane.clusters().len(), 1, "no second cluster came of it");
}

#[test]
fn a_gateway_that_refuses_or_forgets_leads_back_to_the_controller_under_the_old_id() {
    let mut plane = plane();
    let agent = Agent::start_for(&plane);
    let before = agent.until_linked();
    plane.set(|behaviour| behaviour.gateway = Upgrade::Reject(403));
    plane.cut(Sessions::All, Cut::Fin);
    plane
        .until(SOON, |view| (view.registrations.len() >= 2).then_some(()))
        .expect("a registration");
    plane.set(|behaviour| behaviour.gateway = Upgrade::Accept);
    agent.until_linked();
    plane.error("cluster not registered");
    plane
        .until(SOON, |view| (view.registrations.len() >= 3).then_some(()))
        .expect("another registration");
    agent.until_linked();
    let modes = plane.look(|view| {
        view.registrations
            .iter()
            .map(|r| r["metadata"]["registration_mode"].clone())
            .collect::<Vec<_>>()
    });
    assert!(modes.unwrap().iter().skip(1).all(|mode| mode == "resume"));
    assert_eq!(agent.status()["cluster_id"], before["cluster_id"]);
}

#[test]
fn odd_answers_to_a_registration_end_in_a_link() {
    for reply in [
        RegisterReply::NoCluster,
        RegisterReply::Error("try later".to_owned()),
        RegisterReply::Error("cluster not found".to_owned()),
    ] {
        let mut plane = plane_with(|behaviour| {
            behaviour.register = reply.clone();
            behaviour.redirect = Redirect::None;
        });
        let agent = Agent::start_for(&plane);
        plane
            .until(SOON, |view| (!view.registrations.is_empty()).then_some(()))
            .expect("a registration");
        plane.set(|behaviour| behaviour.register = RegisterReply::Success);
        agent.until("the link is ready", Duration::from_secs(20), |status| {
            (status["link"]["state"] == "ready").then_some(())
        });
        no_violations(&plane);
    }
}

#[test]
fn a_restarted_agent_resumes_at_its_gateway_without_registering() {
    let plane = plane();
    let mut agent = Agent::start_for(&plane);
    let before = agent.until_linked();
    assert!(agent.stop().success());
    plane.wait_gone(SOON).expect("the session is closed");
    agent.start();
    let after = agent.until_linked();
    assert_eq!(after["agent_id"], before["agent_id"]);
    assert_eq!(after["cluster_id"], before["cluster_id"]);
    assert_eq!(
        plane.look(|view| view.registrations.len()),
        Some(1),
        "one registration in all"
    );
}

#[test]
fn a_stopped_agent_says_good_bye() {
    let plane = plane();
    let mut agent = Agent::start_for(&plane);
    agent.until_linked();
    let mark = plane.mark();
    assert!(agent.stop().success());
    let close = plane
        .wait_for(mark, SOON, |frame| frame.opcode == plane::Opcode::Close)
        .expect("a close frame");
    assert!(close.number >= mark);
    assert!(
        !agent.folder().join("agent.sock").exists(),
        "its socket is gone too"
    );
}

#[test]
fn a_killed_agent_comes_back_as_itself() {
    let plane = plane();
    let mut agent = Agent::start_for(&plane);
    let before = agent.until_linked();
    for _ in 0..3 {
        agent.kill();
        agent.start();
        assert_eq!(agent.until_linked()["cluster_id"], before["cluster_id"]);
    }
}

#[test]
fn a_damaged_database_is_moved_aside_and_the_agent_stays_who_it_was() {
    let plane = plane();
    let mut agent = Agent::start_for(&plane);
    let before = agent.until_linked();
    agent.stop();
    crate::agent::put(&agent.state("state.db"), &"not a database ".repeat(1000));
    agent.start();
    let after = agent.until_linked();
    assert_eq!(after["agent_id"], before["agent_id"]);
    let aside = std::fs::read_dir(agent.folder().join("state"))
        .unwrap()
        .flatten();
    assert!(
        aside
            .into_iter()
            .any(|entry| entry.file_name().to_string_lossy().contains("damaged"))
    );
    assert!(agent.log().contains("damaged"), "{}", agent.log());
}

#[test]
fn a_silent_control_plane_is_noticed_within_a_minute() {
    let plane = plane();
    let agent = Agent::start_for(&plane);
    agent.until_linked();
    let before = plane.sessions().last().unwrap().number;
    plane.cut(Sessions::Newest, Cut::BlackHole);
    agent.until("the link is given up", Duration::from_secs(60), |status| {
        (status["link"]["outages"].as_u64() > Some(0)).then_some(())
    });
    plane
        .until(SOON, move |view| {
            view.sessions
                .iter()
                .any(|s| s.is_ready && s.number != before)
                .then_some(())
        })
        .expect("a new session");
}

/// A request over a stream, with a token of its own; waits for the end of the answer.
fn ask_with_a_token(plane: &Plane, token: &str) {
    plane.wait_streams(SOON).expect("streams");
    let stream = plane.open_stream(None, &StreamHeader::kubernetes("id").bytes());
    let stream = stream.unwrap();
    let request = format!(
        "GET /version HTTP/1.1\r\nhost: cluster\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
    );
    stream.write(request.as_bytes(), SOON).unwrap();
    let answer = stream.read_all(SOON).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 "), "{answer:?}");
}

#[test]
fn a_token_never_shows_in_the_log_the_status_or_the_command_line() {
    let mut plane = plane();
    let mut agent = Agent::new(&plane).with("PIPEOPS_LOG_LEVEL", "trace");
    agent.start();
    agent.until_linked();
    let first = plane.token().to_owned();
    // Refused, then replaced: what is said of a token that does not work names no token either.
    plane.set_token("another-token-of-the-test");
    plane.cut(Sessions::All, Cut::Reset);
    agent.until_condition("link.refused", SOON);
    agent.set_token("another-token-of-the-test");
    agent.until_linked();
    ask_with_a_token(&plane, "a-token-of-a-user");
    crate::agent::until("a line at trace", SOON, || {
        agent.log().contains(" trace ").then_some(())
    });
    let argv = std::fs::read_to_string(format!("/proc/{}/cmdline", agent.pid())).unwrap();
    let (_, shown) = agent.cli(&["config", "show"]);
    let (_, shown_json) = agent.cli(&["config", "show", "--json"]);
    let (_, lines) = agent.get("/api/v1/logs").unwrap_or_default();
    for text in [
        agent.log(),
        agent.status().to_string(),
        argv,
        shown,
        shown_json,
        lines,
    ] {
        for token in [
            first.as_str(),
            "another-token-of-the-test",
            "a-token-of-a-user",
        ] {
            assert!(!text.contains(token), "{text}");
            let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, token);
            assert!(!text.contains(&encoded), "{text}");
        }
    }
}

#[test]
fn status_answers_in_one_sentence_and_its_exit_code_tells() {
    let mut plane = plane();
    let agent = Agent::start_for(&plane);
    agent.until_linked();
    let (code, text) = agent.cli(&["status"]);
    assert!(code <= 1 && text.contains("connected"), "{code} {text}");
    plane.set(|behaviour| behaviour.controller = Upgrade::Reject(401));
    plane.set(|behaviour| behaviour.gateway = Upgrade::Reject(401));
    plane.cut(Sessions::All, Cut::Reset);
    agent.until_condition("link.refused", SOON);
    let (code, text) = agent.cli(&["status"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("refuses the token"), "{text}");
}
