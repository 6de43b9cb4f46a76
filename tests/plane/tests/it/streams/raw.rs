//! Streams with anything on them.

use std::time::Duration;

use plane::{Failed, ProxyRequest, RawStream, StreamChange, StreamHeader};

use super::fake::streaming;
use super::until_no_stream_is_open;
use crate::agent::LIMIT;

fn read_until(stream: &RawStream, end: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while !all.ends_with(end) {
        let piece = stream.read(LIMIT).expect("it goes on").unwrap();
        all.extend_from_slice(&piece);
    }
    all
}

#[test]
fn http_can_be_written_by_hand() {
    let (plane, fake, cluster) = streaming();
    let header = StreamHeader::kubernetes("by-hand").bytes();
    let stream = plane.open_stream(Some(&cluster), &header).unwrap();
    assert_eq!(stream.id(), 2);
    stream
        .write(
            b"GET //a/../b HTTP/1.1\r\nHost: x\r\nX-Odd:\tyes\r\n\r\n",
            LIMIT,
        )
        .unwrap();
    let answer = read_until(&stream, &[0; 7]);
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
    let seen = fake.header();
    assert_eq!(seen, header);
    assert_eq!(fake.request("//a/../b")["x-odd"], "yes");
    stream.close(LIMIT).unwrap();
    assert_eq!(stream.read(LIMIT), None);
    let refused = stream.write(b"more", LIMIT).unwrap_err();
    assert!(matches!(refused, Failed::Lost(_)), "{refused}");
    let changes: Vec<_> = plane.stream_events().iter().map(|e| e.change).collect();
    assert_eq!(changes[0], StreamChange::Opened);
    assert!(!changes.contains(&StreamChange::ResetByPlane));
    assert_eq!(plane.sessions()[0].streams_open, 0);
}

#[test]
fn a_stream_is_reset_in_every_state() {
    let (plane, fake, _cluster) = streaming();
    let header = StreamHeader::kubernetes("x").bytes();
    let request = b"GET /watch HTTP/1.1\r\nHost: x\r\n\r\n";
    for is_closed in [false, true] {
        let stream = plane.open_stream(None, &header).unwrap();
        stream.write(request, LIMIT).unwrap();
        stream.read(LIMIT).unwrap().unwrap();
        if is_closed {
            // hyper takes the end of a request's half for the end of its client.
            stream.close(LIMIT).unwrap();
        }
        stream.reset();
        fake.dropped("/watch");
    }
    let opened = plane.open_stream(None, b"").unwrap();
    opened.reset();
    until_no_stream_is_open(&plane);
    assert_eq!(plane.sessions()[0].streams_opened, 2);
    assert_eq!(plane.violations(), Vec::<String>::new());
}

#[test]
fn a_stream_that_is_not_read_is_filled_once_and_a_late_read_gets_it() {
    let (plane, fake, _cluster) = streaming();
    let header = StreamHeader::kubernetes("x").bytes();
    let stream = plane.open_stream(None, &header).unwrap();
    let early = stream.read(Duration::from_millis(50));
    assert_eq!(early, Some(Err(Failed::Late)));
    stream
        .write(
            b"GET /big?1000000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            LIMIT,
        )
        .unwrap();
    fake.request("/big?1000000");
    let all = stream.read_all(LIMIT).unwrap();
    assert!(all.starts_with(b"HTTP/1.1 200 OK\r\n") && all.len() > 1_000_000);
}

#[test]
fn a_full_window_makes_a_write_late() {
    let (plane, _fake, _cluster) = streaming();
    let header = StreamHeader::kubernetes("x").bytes();
    let stream = plane.open_stream(None, &header).unwrap();
    let head = b"POST /upload?wait HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n";
    stream.write(head, LIMIT).unwrap();
    let written = stream.write(&vec![0; 2_000_000], Duration::from_millis(300));
    assert_eq!(written, Err(Failed::Late));
    let other = plane.open_stream(None, &header).unwrap();
    other
        .write(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n", LIMIT)
        .unwrap();
    read_until(&other, &[0; 7]);
    stream.reset();
}

#[test]
fn a_stream_that_was_finished_can_still_be_reset() {
    let (plane, fake, _cluster) = streaming();
    let header = StreamHeader::kubernetes("x").bytes();
    let stream = plane.open_stream(None, &header).unwrap();
    let head = b"POST /upload?wait HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx";
    stream.write(head, LIMIT).unwrap();
    fake.request("/upload?wait");
    stream.close(LIMIT).unwrap();
    stream.reset();
    let changes = plane.until(LIMIT, |view| {
        let changes = view.stream_events.iter().map(|event| event.change);
        let changes: Vec<_> = changes.collect();
        changes
            .contains(&StreamChange::ResetByPlane)
            .then_some(changes)
    });
    let expected = [
        StreamChange::Opened,
        StreamChange::FinishedByPlane,
        StreamChange::ResetByPlane,
    ];
    assert_eq!(changes.unwrap(), expected);
}

#[test]
fn a_reset_by_the_agent_is_told_to_who_reads() {
    let (plane, _fake, _cluster) = streaming();
    let header = StreamHeader::kubernetes("x").bytes();
    let stream = plane.open_stream(None, &header).unwrap();
    let head =
        b"GET /upgrade?reset HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
    stream.write(head, LIMIT).unwrap();
    read_until(&stream, b"\r\n\r\n");
    stream.write(b"x", LIMIT).unwrap();
    assert_eq!(stream.read(LIMIT), Some(Err(Failed::Reset)));
    assert_eq!(plane.sessions()[0].streams_open, 0);
}

#[test]
fn the_agents_end_of_yamux_is_not_the_end_of_the_session() {
    let (plane, _fake, _cluster) = streaming();
    let stream = plane.open_stream(None, b"").unwrap();
    // The plane opens a stream with an id of the agent's: its yamux gives up.
    plane.send_binary(&[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]);
    let ended = stream.read(LIMIT);
    assert!(matches!(ended, Some(Err(Failed::Lost(_)))), "{ended:?}");
    let answer = plane.request(ProxyRequest::get("/version"), LIMIT).unwrap();
    assert_eq!(answer.body.read_all(LIMIT).unwrap(), b"message");
}
