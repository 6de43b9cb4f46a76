//! Services of the cluster: plain requests, WebSockets, and answers that are asked for whole.

use std::time::Duration;

use plane::{Mode, ProxyRequest, Received};
use serde_json::Value;

use super::bench::{Bench, echo};
use crate::agent::{SOON, until};

#[test]
fn a_service_answers_requests_websockets_and_whole_answers_of_all_sizes() {
    let Some(mut bench) = Bench::calm() else {
        return;
    };
    let path = "/api/v1/namespaces/fixtures/services/http:echo:80/proxy/hello?a=1";
    bench.in_both_forms(|bench, _| {
        let curl = bench.curl(&["--max-time", "20"], path).output().unwrap();
        let answer: Value =
            serde_json::from_slice(&curl.stdout).unwrap_or_else(|_| panic!("{curl:?}"));
        assert_eq!(answer["path"], "/hello");
        assert_eq!(answer["query"]["a"][0], "1");
    });
    echoes_a_websocket(&bench);
    answers_whole(&mut bench);
}

fn echoes_a_websocket(bench: &Bench) {
    let mut request = ProxyRequest::get("/ws");
    request.service = Some(echo());
    let (_, socket) = bench
        .plane
        .websocket(request, SOON)
        .expect("a WebSocket through the link");
    assert!(socket.send(1, b"are you there", SOON));
    let echo = until("the echo", SOON, || socket.receive(Duration::from_secs(1)));
    assert!(
        matches!(&echo, Received::Data { opcode: 1, data } if &data[..] == b"are you there"),
        "{echo:?}"
    );
}

fn answers_whole(bench: &mut Bench) {
    bench.plane.set(|behaviour| behaviour.mode = Mode::Buffered);
    for size in [0_usize, 1, 10_239, 10_240, 70_000, 20_000_000] {
        let mut request = ProxyRequest::get(&format!("/bytes?n={size}"));
        request.service = Some(echo());
        request.mode = Mode::Buffered;
        let answer = bench
            .plane
            .request(request, Duration::from_secs(60))
            .unwrap();
        let body = answer.body.read_all(Duration::from_secs(60)).unwrap();
        assert_eq!(body.len(), size);
        assert!(
            body.iter()
                .enumerate()
                .all(|(at, byte)| usize::from(*byte) == at % 251),
            "{size}"
        );
    }
    bench.nothing_is_left();
}
