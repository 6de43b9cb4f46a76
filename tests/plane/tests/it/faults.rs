//! Cuts, restarts, black holes, and readers that do not read.

use std::time::Duration;

use plane::{Cut, Failed, Opcode, Overflow, Plane, ProxyRequest, Sessions};
use serde_json::json;

use crate::agent::{Agent, LIMIT};
use crate::sessions::linked;

#[test]
fn cuts_end_the_session_and_what_was_under_way() {
    for cut in [Cut::Reset, Cut::Fin, Cut::Close(1012, "restart".into())] {
        let (plane, mut agent, _cluster) = linked();
        let failed = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| plane.request(ProxyRequest::get("/x"), LIMIT));
            assert_eq!(agent.next_json()["type"], "proxy_request");
            plane.cut(Sessions::Newest, cut.clone());
            let end = agent.end();
            assert_eq!(
                end.is_some(),
                matches!(cut, Cut::Close(..)),
                "{cut:?}: {end:?}"
            );
            waiting.join().unwrap().unwrap_err()
        });
        assert!(matches!(failed, Failed::Lost(_)), "{failed:?}");
        plane.wait_gone(LIMIT).unwrap();
    }
}

#[test]
fn a_restart_keeps_addresses_and_cluster_ids() {
    let (mut plane, mut agent, cluster) = linked();
    let url = plane.api_url().to_owned();
    plane.kill();
    assert_eq!(agent.end(), None);
    plane.start_again().unwrap();
    assert_eq!(plane.api_url(), url);
    let mut agent = Agent::dial_controller(&plane).unwrap();
    assert_eq!(agent.register()["payload"]["cluster_id"], *cluster);
    assert!(Agent::dial_gateway(&plane, &cluster).is_ok());
}

/// Asks for an answer that nobody reads, and sends `chunks` of 32 KiB of it.
fn unread(plane: &Plane, agent: &mut Agent, chunks: usize) -> (plane::Response, String) {
    let (answer, id) = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| plane.request(ProxyRequest::get("/big"), LIMIT));
        let id = agent.next_json()["request_id"].as_str().unwrap().to_owned();
        agent.head(&id, 200, &json!({}));
        (waiting.join().unwrap().unwrap(), id)
    });
    for _ in 0..chunks {
        agent.chunk(&id, &vec![7; 32 * 1024]);
    }
    (answer, id)
}

#[test]
fn an_unread_answer_stops_the_session_and_a_reader_frees_it() {
    let (mut plane, mut agent, _cluster) = linked();
    plane.set(|b| b.spool_bytes_max = 64 * 1024);
    // 8 chunks wait with the handle, 2 in the spool, and one stops the reading.
    let (answer, id) = unread(&plane, &mut agent, 16);
    agent.send("proxy_response_end", Some(&id), &json!({}));
    agent.send("pong", None, &json!({"timestamp": "2026-06-16T05:50:28Z"}));
    let early = plane.wait_for(0, Duration::from_millis(300), |f| f.is_from_agent("pong"));
    assert!(early.is_none(), "the plane read on");
    let body = answer.body.read_all(LIMIT).unwrap();
    assert_eq!(body.len(), 16 * 32 * 1024);
    plane
        .wait_for(0, LIMIT, |f| f.is_from_agent("pong"))
        .unwrap();
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn an_unread_answer_may_be_cancelled_instead() {
    let (mut plane, mut agent, _cluster) = linked();
    plane.set(|b| {
        b.spool_bytes_max = 64 * 1024;
        b.overflow = Overflow::Cancel;
    });
    let (answer, id) = unread(&plane, &mut agent, 16);
    let cancel = agent.next_json();
    assert_eq!(
        (&cancel["type"], &cancel["request_id"]),
        (&json!("proxy_cancel"), &json!(id))
    );
    assert_eq!(answer.body.read_all(LIMIT), Err(Failed::Overflow));
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn a_black_hole_loses_what_was_under_way_and_keeps_the_socket() {
    let (mut plane, mut agent, _cluster) = linked();
    plane.set(|b| b.silence_max = Duration::from_millis(400));
    let mut asked = plane.mark();
    let failed = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| plane.request(ProxyRequest::get("/x"), LIMIT));
        assert_eq!(agent.next_json()["type"], "proxy_request");
        plane.cut(Sessions::Newest, Cut::BlackHole);
        asked = plane.mark();
        agent.ping(b"anybody?");
        waiting.join().unwrap().unwrap_err()
    });
    assert!(matches!(failed, Failed::Lost(_)), "{failed}");
    let heard = plane.wait_for(asked, Duration::from_millis(50), |f| {
        f.opcode == Opcode::Ping
    });
    assert!(heard.is_none());
    agent.ping(b"the socket is still open");
    plane.kill();
    assert_eq!(agent.end(), None);
}
