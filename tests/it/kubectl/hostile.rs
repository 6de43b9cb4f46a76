//! A control plane that means harm, on the frames of the real link: it costs its bounds, and nobody
//! else is served worse.

mod peer;

use pipeops_agent::core::yamux::frame::{Flags, FrameType};
use plane::{Cut, Direction, Opcode, ProxyRequest, Sessions, Streams};
use serde_json::json;

use super::bench::Bench;
use crate::agent::{SOON, clock, until};
use peer::{Heard, Peer, Stream, echo, frame, head, kubernetes};

/// The window of a stream.
const WINDOW: usize = 256 * 1024;
/// Streams at once.
const STREAMS_MAX: usize = 128;
/// Connections that are kept for the next calls: the agent's own, and those of the control plane's
/// account.
const POOLED_MAX: usize = 2 * 8;
/// A request that everybody may make.
const PATH: &str = "/api/v1/namespaces/fixtures";

/// The agent before it is bothered.
struct Calm<'a> {
    bench: &'a Bench,
    session: u64,
    outages: u64,
    memory_kb: u64,
    descriptors: usize,
}

impl<'a> Calm<'a> {
    fn of(bench: &'a Bench) -> Self {
        answers(bench);
        Self {
            bench,
            session: session(bench),
            outages: outages(bench),
            memory_kb: bench.memory_peak_kb(),
            descriptors: bench.descriptors(),
        }
    }

    /// Nothing is different now, but for so much memory at most.
    fn is_back(&self, what: &str, memory_more_kb_max: u64) {
        let bench = self.bench;
        let beats = heartbeats(bench);
        until("heartbeats go on", SOON, || {
            (heartbeats(bench) > beats).then_some(())
        });
        answers(bench);
        bench.nothing_is_left();
        until("no descriptor is left", SOON, || {
            (bench.descriptors() <= self.descriptors + POOLED_MAX).then_some(())
        });
        assert_eq!(session(bench), self.session, "{what}: the session stays");
        assert_eq!(outages(bench), self.outages, "{what}");
        assert!(!bench.agent.log().contains("panicked"), "{what}");
        let more_kb = bench.memory_peak_kb() - self.memory_kb;
        println!("{what}: {more_kb} kB more than {} kB", self.memory_kb);
        assert!(more_kb <= memory_more_kb_max, "{what}: {more_kb} kB");
    }
}

fn session(bench: &Bench) -> u64 {
    bench.plane.sessions().last().unwrap().number
}

fn outages(bench: &Bench) -> u64 {
    bench.agent.status()["link"]["outages"].as_u64().unwrap()
}

fn heartbeats(bench: &Bench) -> usize {
    bench.plane.look(|view| view.heartbeats.len()).unwrap()
}

/// A request in JSON is answered.
fn answers(bench: &Bench) {
    let request = ProxyRequest {
        // What only messages have.
        timeout_ms: Some(10_000),
        ..ProxyRequest::get(PATH)
    };
    let answer = bench.plane.request(request, SOON).unwrap();
    assert_eq!(answer.head.status, 200);
}

fn request(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").into_bytes()
}

fn endless() -> Vec<u8> {
    [echo(), request("/bytes?n=4000000000")].concat()
}

fn watch() -> Vec<u8> {
    [kubernetes(), request(&format!("{PATH}/pods?watch=true"))].concat()
}

fn exec() -> Vec<u8> {
    let query = "command=cat&stdin=true&stdout=true";
    let request = format!(
        "GET {PATH}/pods/shell/exec?{query} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         sec-websocket-protocol: v5.channel.k8s.io\r\n\r\n"
    );
    [kubernetes(), request.into_bytes()].concat()
}

/// Frames about one stream.
type Frames = fn(u32) -> Vec<u8>;

#[test]
fn ten_thousand_openings_in_a_second_leave_the_session_and_everybody_else_alone() {
    let Some(bench) = Bench::calm() else { return };
    let calm = Calm::of(&bench);
    let mut peer = Peer::instead_of(&bench.plane);
    let rows: [(&str, Frames); 4] = [
        ("opened", |id| {
            head(FrameType::Window, Flags::SYN, id, 0).to_vec()
        }),
        ("opened for a watch", |id| frame(Flags::SYN, id, &watch())),
        ("opened and half closed", |id| {
            frame(Flags::SYN.with(Flags::FIN), id, &watch())
        }),
        ("opened and reset", |id| {
            let reset = head(FrameType::Window, Flags::RST, id, 0);
            [frame(Flags::SYN, id, &watch()), reset.to_vec()].concat()
        }),
    ];
    for (what, opening) in rows {
        let ids = peer.ids(10_000);
        let began = clock();
        for (count, ids) in ids.chunks(10).enumerate() {
            peer.sends(&ids.iter().flat_map(|id| opening(*id)).collect::<Vec<_>>());
            if count == 500 {
                answers(&bench);
            }
        }
        let sent = clock() - began;
        peer.settle();
        let accepted = peer.heard.count(|stream| stream.is_accepted);
        let refused = peer
            .heard
            .count(|stream| stream.is_reset && !stream.is_accepted);
        let open = peer
            .heard
            .count(|stream| stream.is_accepted && !stream.is_over());
        println!(
            "{what}: sent in {sent:?}, over after {:?}; {accepted} accepted, {refused} refused, {open} open",
            clock() - began
        );
        assert!(open <= STREAMS_MAX, "{what}: {open}");
        answers(&bench);
        for ids in ids.chunks(1000) {
            peer.reset(ids);
        }
        peer.settle();
        peer.get(PATH);
        peer.heard = Heard::default();
    }
    calm.is_back("a flood of openings", 10_000);
}

#[test]
fn streams_that_nobody_reads_give_their_window_and_then_wait() {
    let Some(bench) = Bench::calm() else { return };
    let calm = Calm::of(&bench);
    let mut peer = Peer::instead_of(&bench.plane);
    let mut ids = Vec::new();
    for _ in 0..8 {
        let more: Vec<u32> = (0..8).map(|_| peer.open(&endless())).collect();
        peer.until("the windows are full", |heard| {
            let is_full = |id: &u32| heard.has(*id, |stream| stream.bytes == WINDOW);
            more.iter().all(is_full)
        });
        ids.extend(more);
    }
    // A window of nothing, again and again, is no window.
    for id in &ids {
        let nothing = head(FrameType::Window, Flags::NONE, *id, 0);
        peer.sends(&nothing.repeat(100));
    }
    peer.settle();
    peer.get(PATH);
    answers(&bench);
    assert_eq!(peer.heard.count(|stream| stream.bytes == WINDOW), ids.len());
    for id in &ids {
        peer.says(FrameType::Window, Flags::NONE, *id, 1);
    }
    peer.until("a byte each", |heard| {
        heard.count(|stream| stream.bytes == WINDOW + 1) == ids.len()
    });
    calm.bench.agent.until("all wait", SOON, |status| {
        (status["load"]["queued_bytes"] == 0).then_some(())
    });
    // Windows without an end, and a socket that nobody reads.
    bench.plane.cut(Sessions::All, Cut::BlackHole);
    let most = u32::MAX;
    for id in &ids {
        peer.says(FrameType::Window, Flags::NONE, *id, most);
    }
    bench.plane.cut(Sessions::All, Cut::Slow(1));
    let mut queued = 0;
    bench.agent.until("all lanes are full", SOON, |status| {
        let before = queued;
        queued = status["load"]["queued_bytes"].as_u64()?;
        (queued > 1_000_000 && queued == before).then_some(())
    });
    println!("{queued} bytes wait in lanes");
    // Another request, resets, and the hello that ends it all: no frame of before comes after its
    // answer.
    peer.ask(PATH);
    peer.reset(&ids[..32]);
    let mark = bench.plane.mark();
    bench.plane.gateway_hello(json!({ "use_yamux": true }));
    bench.agent.until("the lanes are empty", SOON, |status| {
        (status["load"]["exchanges"] == 0).then_some(())
    });
    bench.plane.cut(Sessions::All, Cut::Heal);
    let is_ack = |frame: &plane::Frame| frame.is_from_agent("gateway_hello_ack");
    let ack = bench.plane.wait_for(mark, SOON, is_ack).unwrap().number;
    answers(&bench);
    let is_late = |frame: &&plane::Frame| {
        let is_binary = frame.opcode == Opcode::Binary && frame.direction == Direction::FromAgent;
        is_binary && frame.number > ack
    };
    let late = bench.plane.frames();
    let late: Vec<_> = late.iter().filter(is_late).collect();
    assert!(late.is_empty(), "frames of streams that are over: {late:?}");
    peer.hello();
    peer.get(PATH);
    calm.is_back("streams that nobody reads", 16_000);
}

/// A moment in the life of a stream.
struct State {
    name: &'static str,
    begins: fn() -> Vec<u8>,
    is_reached: fn(&Stream) -> bool,
}

const STATES: &[State] = &[
    State {
        name: "before its header",
        begins: Vec::new,
        is_reached: |stream| stream.is_accepted,
    },
    State {
        name: "in its header",
        begins: || kubernetes()[..5].to_vec(),
        is_reached: |stream| stream.is_accepted,
    },
    State {
        name: "before its request",
        begins: kubernetes,
        is_reached: |stream| stream.is_accepted,
    },
    State {
        name: "in the head of its request",
        begins: || [kubernetes(), b"GET /api/v1/nodes HT".to_vec()].concat(),
        is_reached: |stream| stream.is_accepted,
    },
    State {
        name: "in the body of its request",
        begins: || {
            let head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\nsome";
            [echo(), head.to_vec()].concat()
        },
        is_reached: |stream| stream.is_accepted,
    },
    State {
        name: "while it waits for an answer",
        begins: || [echo(), request("/slow?ms=600000")].concat(),
        is_reached: |stream| stream.is_accepted,
    },
    State {
        name: "in an answer that flows",
        begins: endless,
        is_reached: |stream| stream.bytes == WINDOW,
    },
    State {
        name: "in a watch",
        begins: watch,
        is_reached: |stream| stream.text().contains("ADDED"),
    },
    State {
        name: "after a 101",
        begins: exec,
        is_reached: |stream| stream.text().starts_with("HTTP/1.1 101"),
    },
];

#[test]
fn a_stream_that_is_given_up_at_any_moment_is_over_in_the_agent() {
    let Some(bench) = Bench::calm() else { return };
    let calm = Calm::of(&bench);
    let mut peer = Peer::instead_of(&bench.plane);
    // What comes instead of the rest.
    let ends: [(&str, Frames); 5] = [
        ("is reset", |id| {
            head(FrameType::Window, Flags::RST, id, 0).to_vec()
        }),
        ("is half closed and reset", |id| {
            let finish = head(FrameType::Data, Flags::FIN, id, 0);
            [finish, head(FrameType::Data, Flags::RST, id, 0)].concat()
        }),
        ("is opened again", |id| frame(Flags::SYN, id, b"again")),
        ("goes on after its end", |id| {
            [
                head(FrameType::Data, Flags::FIN, id, 0).to_vec(),
                frame(Flags::NONE, id, b"more"),
            ]
            .concat()
        }),
        ("is half closed", |id| {
            head(FrameType::Data, Flags::FIN, id, 0).to_vec()
        }),
    ];
    for (end, bytes) in ends {
        for state in STATES {
            let what = format!("a stream that {end} {}", state.name);
            let ids: Vec<u32> = (0..4).map(|_| peer.open(&(state.begins)())).collect();
            peer.until(&what, |heard| {
                ids.iter().all(|id| heard.has(*id, state.is_reached))
            });
            peer.sends(&ids.iter().flat_map(|id| bytes(*id)).collect::<Vec<_>>());
            if end == "is half closed" && state.name == "after a 101" {
                // The half that is open may still speak.
                peer.reset(&ids);
            }
            bench.agent.until(&what, SOON, |status| {
                (status["load"]["exchanges"] == 0).then_some(())
            });
        }
        peer.get(PATH);
        answers(&bench);
    }
    calm.is_back("streams that are given up", 4_000);
}

#[test]
fn whoever_breaks_the_rules_of_a_stream_loses_that_stream() {
    let Some(bench) = Bench::calm() else { return };
    let calm = Calm::of(&bench);
    let mut peer = Peer::instead_of(&bench.plane);
    let good = peer.open(&watch());
    peer.until("a watch", |heard| {
        heard.has(good, |stream| stream.bytes > 0)
    });

    let rows: [(&str, Frames); 3] = [
        ("a window that overflows", |id| {
            head(FrameType::Window, Flags::NONE, id, u32::MAX).to_vec()
        }),
        ("more than the window", |id| {
            frame(Flags::NONE, id, &vec![b'x'; WINDOW + 1])
        }),
        ("an opening of what is open", |id| {
            head(FrameType::Window, Flags::SYN, id, 0).to_vec()
        }),
    ];
    for (what, bytes) in rows {
        let bad = peer.open(&watch());
        peer.until(what, |heard| heard.has(bad, |stream| stream.bytes > 0));
        peer.sends(&bytes(bad));
        peer.until(what, |heard| heard.has(bad, |stream| stream.is_reset));
        peer.get(PATH);
    }

    // Unread data of all streams together, each within its window.
    let ids: Vec<u32> = (0..60).map(|_| peer.open(&watch())).collect();
    for id in &ids {
        peer.writes(*id, &vec![b'x'; WINDOW - 1024]);
    }
    peer.settle();
    let cut = |heard: &Heard| {
        ids.iter()
            .filter(|id| heard.has(**id, |s| s.is_reset))
            .count()
    };
    println!(
        "{} of 60 streams cut for 15 MB of unread data",
        cut(&peer.heard)
    );
    assert!(cut(&peer.heard) >= 60 - 33);
    peer.get(PATH);
    peer.reset(&ids);

    streams_that_never_were(&mut peer);
    peer.sends(&frame(Flags::NONE, 0, b"data of the session"));
    peer.says(FrameType::Window, Flags::SYN, 0, 0);
    peer.settle();
    peer.get(PATH);

    // Questions without end, and a peer that goes away while it goes on.
    for _ in 0..100 {
        peer.sends(&head(FrameType::Ping, Flags::SYN, 0, 1).repeat(1000));
    }
    for reason in [0, 1, 2, 77] {
        peer.says(FrameType::GoAway, Flags::NONE, 0, reason);
    }
    peer.settle();
    peer.get(PATH);
    assert!(
        peer.heard.has(good, |stream| !stream.is_over()),
        "the watch"
    );
    assert_eq!(peer.heard.go_away, None);
    peer.reset(&[good]);
    calm.is_back("broken rules", 20_000);
}

#[test]
fn lost_framing_ends_the_streams_until_the_next_hello_and_nothing_else() {
    let Some(bench) = Bench::calm() else { return };
    let calm = Calm::of(&bench);
    let mut peer = Peer::instead_of(&bench.plane);
    let mut random = fastrand::Rng::with_seed(20_261_121);
    let noise: Vec<u8> = std::iter::once(9)
        .chain(std::iter::repeat_with(|| random.u8(..)).take(100_000))
        .collect();
    let rows: [(&str, &[u8]); 6] = [
        ("another version", &[1; 12]),
        ("another type", &[0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("HTTP", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"),
        ("JSON", br#"{"type":"ping","payload":{}}"#),
        ("TLS", &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0, 0]),
        ("noise", &noise),
    ];
    for (what, bytes) in rows {
        let running = [watch(), exec(), endless(), kubernetes(), Vec::new()];
        let ids = running.map(|begin| peer.open(&begin));
        peer.until("a watch", |heard| {
            heard.has(ids[0], |stream| stream.bytes > 0)
        });
        peer.sends(bytes);
        peer.until(what, |heard| heard.go_away == Some(1));
        bench.agent.until(what, SOON, |status| {
            (status["load"]["exchanges"] == 0).then_some(())
        });
        // From here on nothing binary means anything.
        let before = peer.heard.pongs;
        for _ in 0..1000 {
            peer.says(FrameType::Ping, Flags::SYN, 0, 1);
            peer.sends(bytes);
        }
        answers(&bench);
        assert_eq!(peer.heard.pongs, before);
        peer.hello();
        peer.get(PATH);
    }

    // A frame of four gigabytes swallows what follows, for as long as the peer means it.
    let id = peer.open(&watch());
    peer.until("a watch", |heard| heard.has(id, |stream| stream.bytes > 0));
    peer.says(FrameType::Data, Flags::NONE, id, u32::MAX);
    peer.until("too much", |heard| heard.has(id, |stream| stream.is_reset));
    for _ in 0..100 {
        peer.writes(id, &noise);
    }
    answers(&bench);
    peer.hello();
    peer.get(PATH);
    calm.is_back("lost framing", 4_000);
}

#[test]
fn words_that_come_too_early_too_late_or_too_often_are_no_harm() {
    let Some(mut bench) = Bench::calm() else {
        return;
    };
    bench
        .plane
        .set(|behaviour| behaviour.streams = Streams::Off);
    // A new session, on which nothing was agreed.
    let before = session(&bench);
    bench.plane.cut(Sessions::All, Cut::Fin);
    bench.plane.until(SOON, move |view| {
        let is_new = |s: &&plane::SessionInfo| s.is_ready && s.number > before;
        view.sessions.iter().find(is_new).map(|_| ())
    });
    let calm = Calm::of(&bench);
    let mut peer = Peer::silent(&bench.plane);
    for _ in 0..1000 {
        peer.sends(&frame(Flags::SYN, 2, &watch()));
        peer.says(FrameType::Ping, Flags::SYN, 0, 1);
    }
    answers(&bench);
    assert!(peer.heard.streams.is_empty() && peer.heard.pongs == 0);

    // The way of the existing protocol, without a word of the extension.
    peer.hello();
    peer.get(PATH);
    for payload in [
        json!({ "use_yamux": false }),
        json!({}),
        json!([]),
        json!(null),
    ] {
        bench.plane.send("gateway_hello", None, payload);
    }
    let held: Vec<u32> = (0..20).map(|_| peer.open(&watch())).collect();
    peer.until("watches", |heard| {
        held.iter()
            .all(|id| heard.has(*id, |stream| stream.bytes > 0))
    });
    for version in [0, 1, 2, 4_294_967_296_u64] {
        bench
            .plane
            .send("edge_hello", None, json!({ "version": version }));
    }
    peer.settle();
    peer.get(PATH);
    assert_eq!(peer.heard.count(|stream| stream.is_reset), 0, "all go on");

    // Another hello: what was is over, and its ids are free.
    peer.hello();
    bench.agent.until("the watches end", SOON, |status| {
        (status["load"]["exchanges"] == 0).then_some(())
    });
    peer.get(PATH);
    for _ in 0..100 {
        bench
            .plane
            .send("gateway_hello", None, json!({ "use_yamux": true }));
        peer.sends(&frame(Flags::SYN, 2, &watch()));
    }
    peer.hello();
    peer.get(PATH);
    answers(&bench);
    calm.is_back("words at the wrong time", 5_000);
}

/// Every kind of frame for ids that nobody opened.
fn streams_that_never_were(peer: &mut Peer<'_>) {
    for id in peer.ids(2000) {
        let frames = [
            frame(Flags::NONE, id, b"data of nothing"),
            head(FrameType::Window, Flags::NONE, id, 1).to_vec(),
            head(FrameType::Data, Flags::FIN, id, 0).to_vec(),
            head(FrameType::Data, Flags::RST, id, 0).to_vec(),
            head(FrameType::Window, Flags::ACK, id, 0).to_vec(),
        ];
        peer.sends(&frames.concat());
    }
}
