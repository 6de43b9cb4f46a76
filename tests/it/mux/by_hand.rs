//! yamux driver against hand-made frames, without a socket: every frame that goes in and out is
//! seen.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
};

use pipeops_agent::{
    core::yamux::{
        MuxLimits,
        frame::{Flags, FrameType, HEADER_BYTES, Header},
    },
    link::{
        mux::{HeaderError, Mux, MuxEnd, MuxStream, StreamEnd},
        outlet::{Frame, Outlet},
    },
    wire::stream::{Invalid, StreamTarget},
};
use smol::{
    future::{block_on, poll_once, zip},
    io::{AsyncReadExt, AsyncWriteExt},
};

struct Bench {
    mux: Mux,
    outlet: Outlet,
}

impl Bench {
    fn new() -> Self {
        let outlet = Outlet::new();
        let mux = Mux::new(MuxLimits::default(), outlet.clone());
        Self { mux, outlet }
    }

    fn says(&self, kind: FrameType, flags: Flags, stream: u32, length: u32) {
        let header = Header {
            kind,
            flags,
            stream,
            length,
        };
        self.mux.receive(&header.encode().to_vec().into());
    }

    fn sends(&self, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap();
        self.says(FrameType::Data, Flags::NONE, stream, length);
        self.mux.receive(&payload.to_vec().into());
    }

    fn opens(&self, stream: u32) -> MuxStream {
        self.says(FrameType::Window, Flags::SYN, stream, 0);
        now(self.mux.accept()).unwrap().unwrap()
    }

    /// The frames that are ready to go out, each with its payload's length; the driver gets its
    /// turn before each.
    fn goes_out(&self) -> Vec<(Header, usize)> {
        let driver = pin!(self.mux.drive());
        self.goes_out_by(driver)
    }

    /// The same with a driver that stays.
    fn goes_out_by(&self, mut driver: Pin<&mut impl Future>) -> Vec<(Header, usize)> {
        let mut out = Vec::new();
        loop {
            now(&mut driver);
            let next = now(poll_fn(|context| self.outlet.poll_next(context)));
            let Some(Some(Frame::Binary(message))) = next else {
                return out;
            };
            let mut rest = message.as_ref();
            while let Some((head, after)) = rest.split_first_chunk::<HEADER_BYTES>() {
                let header = Header::decode(*head).unwrap();
                let payload = match header.kind {
                    FrameType::Data => usize::try_from(header.length).unwrap(),
                    FrameType::Window | FrameType::Ping | FrameType::GoAway => 0,
                };
                rest = &after[payload..];
                out.push((header, payload));
            }
            assert!(rest.is_empty(), "a message is whole frames");
        }
    }

    /// Type, flags and payload of what goes out for one stream.
    fn goes_out_for(&self, stream: u32) -> Vec<(FrameType, Flags, usize)> {
        let mut out = self.goes_out();
        out.retain(|(header, _)| header.stream == stream);
        out.into_iter()
            .map(|(header, payload)| (header.kind, header.flags, payload))
            .collect()
    }
}

/// The result, if it is there at once.
fn now<F: Future>(future: F) -> Option<F::Output> {
    block_on(poll_once(future))
}

#[test]
fn fin_reads_as_the_end_and_a_reset_as_an_error() {
    let bench = Bench::new();
    let (mut finished, mut reset) = (bench.opens(2), bench.opens(4));
    bench.sends(2, b"all");
    bench.says(FrameType::Data, Flags::FIN, 2, 0);
    bench.sends(4, b"part");
    bench.says(FrameType::Window, Flags::RST, 4, 0);
    let mut buffer = [0; 8];
    assert_eq!(now(finished.read(&mut buffer)).unwrap().unwrap(), 3);
    assert_eq!(now(finished.read(&mut buffer)).unwrap().unwrap(), 0);
    let error = now(reset.read(&mut buffer)).unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(error.to_string(), "the peer reset the stream");
    let error = now(reset.write(b"x")).unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn dropping_a_stream_resets_it_and_what_it_had_written_stays_here() {
    let bench = Bench::new();
    let mut stream = bench.opens(2);
    now(stream.write_all(b"never sent")).unwrap().unwrap();
    drop(stream);
    assert_eq!(
        bench.goes_out_for(2),
        [(FrameType::Window, Flags::RST, 0)],
        "and nothing else"
    );
    assert_eq!(bench.mux.load().streams, 0);
}

#[test]
fn closing_a_stream_lets_everything_out_and_then_says_fin() {
    let bench = Bench::new();
    let mut stream = bench.opens(2);
    now(stream.write_all(b"the end")).unwrap().unwrap();
    now(stream.close()).unwrap().unwrap();
    now(stream.close()).unwrap().unwrap();
    let late = now(stream.write(b"x")).unwrap().unwrap_err();
    assert_eq!(late.kind(), io::ErrorKind::BrokenPipe);
    drop(stream);
    assert_eq!(
        bench.goes_out_for(2),
        [
            (FrameType::Data, Flags::ACK, 7),
            (FrameType::Data, Flags::FIN, 0)
        ]
    );
    assert_eq!(bench.outlet.load(), (0, 0));
}

#[test]
fn closing_goes_on_while_the_peer_still_sends() {
    let bench = Bench::new();
    let mut stream = bench.opens(2);
    now(stream.close()).unwrap().unwrap();
    bench.sends(2, b"more");
    let mut buffer = [0; 8];
    assert_eq!(now(stream.read(&mut buffer)).unwrap().unwrap(), 4);
    assert!(now(stream.read(&mut buffer)).is_none(), "there may be more");
}

#[test]
fn a_writer_waits_for_the_lane_and_then_for_the_window() {
    let bench = Bench::new();
    let mut stream = bench.opens(2);
    let data = vec![7; 400 * 1024];
    let mut sent = 0;
    while let Some(count) = now(stream.write(&data[sent..])) {
        sent += count.unwrap();
    }
    // Eight frames in the lane and one in hand, though the window is used up with the eighth.
    assert_eq!(sent, 256 * 1024);
    assert_eq!(bench.goes_out_for(2).len(), 8);
    assert!(now(stream.write(&data)).is_none(), "the window is used up");
    bench.says(FrameType::Window, Flags::NONE, 2, 10);
    assert_eq!(now(stream.write(&data)).unwrap().unwrap(), 10);
}

#[test]
fn a_write_that_was_taken_goes_out_though_its_writer_never_comes_back() {
    let bench = Bench::new();
    let mut stream = bench.opens(2);
    bench.says(FrameType::Window, Flags::NONE, 2, 1 << 20);
    let mut sent = 0;
    while let Some(count) = now(stream.write(b"small")) {
        sent += count.unwrap();
    }
    assert_eq!(sent, 45, "eight frames in the lane and one in hand");
    let out: usize = bench
        .goes_out_for(2)
        .iter()
        .map(|(.., payload)| payload)
        .sum();
    assert_eq!(out, 45);
}

#[test]
fn a_small_answer_does_not_wait_behind_bulk() {
    let bench = Bench::new();
    let (mut bulk, mut small) = (bench.opens(2), bench.opens(4));
    bench.says(FrameType::Window, Flags::NONE, 2, 1 << 30);
    let data = vec![7; 1 << 20];
    // The lane of the bulk has become bulk, and is full again.
    while now(bulk.write(&data)).is_some() {}
    bench.goes_out();
    while now(bulk.write(&data)).is_some() {}
    now(small.write_all(b"here")).unwrap().unwrap();
    bench.sends(2, &vec![0; 200_000]);
    now(bulk.read_exact(&mut vec![0; 200_000]))
        .unwrap()
        .unwrap();
    let order: Vec<(FrameType, u32)> = bench
        .goes_out()
        .iter()
        .map(|(header, _)| (header.kind, header.stream))
        .collect();
    let place = |wanted| order.iter().position(|seen| *seen == wanted).unwrap();
    assert!(place((FrameType::Data, 4)) <= 1, "{order:?}");
    assert!(place((FrameType::Window, 2)) <= 1, "{order:?}");
    assert!(place((FrameType::Data, 2)) >= 2, "{order:?}");
}

#[test]
fn windows_stay_in_front_of_bulk_however_many_there_were() {
    let bench = Bench::new();
    let mut stream = bench.opens(2);
    let mut driver = pin!(bench.mux.drive());
    // 10,000 answers are 120 kB: a lane that carried them all would have become bulk.
    for _ in 0..10_000 {
        bench.says(FrameType::Ping, Flags::SYN, 0, 1);
        assert!(!bench.goes_out_by(driver.as_mut()).is_empty());
    }
    bench.says(FrameType::Window, Flags::NONE, 2, 1 << 30);
    let data = vec![7; 1 << 20];
    while now(stream.write(&data)).is_some() {}
    bench.goes_out_by(driver.as_mut());
    while now(stream.write(&data)).is_some() {}
    bench.says(FrameType::Ping, Flags::SYN, 0, 1);
    assert_eq!(
        bench.goes_out_by(driver.as_mut())[0].0.kind,
        FrameType::Ping
    );
}

#[test]
fn a_lost_session_ends_every_wait() {
    let bench = Bench::new();
    let mut stream = bench.opens(2);
    let watch = stream.watch();
    let waits = async {
        let read = stream.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(read.kind(), io::ErrorKind::ConnectionAborted);
        let write = stream.write(b"x").await.unwrap_err();
        assert_eq!(write.kind(), io::ErrorKind::ConnectionAborted);
        assert!(stream.close().await.is_err());
    };
    let others = zip(
        async { assert!(bench.mux.accept().await.is_none()) },
        zip(
            async { assert_eq!(bench.mux.drive().await, MuxEnd::SessionLost) },
            async {
                let end = watch.ended().await;
                assert_eq!(end, Some(StreamEnd::Over(MuxEnd::SessionLost)));
            },
        ),
    );
    let lose = async {
        smol::future::yield_now().await;
        bench.outlet.lose();
        bench.mux.session_lost();
    };
    block_on(zip(zip(waits, others), lose));
    drop(stream);
    assert_eq!(bench.mux.load().streams, 0);
    bench.says(FrameType::Window, Flags::SYN, 4, 0);
    assert_eq!(bench.mux.load().streams, 0, "nothing is opened any more");
}

#[test]
fn lost_framing_is_said_to_the_peer_and_ends_the_mux_with_its_reason() {
    let bench = Bench::new();
    let mut stream = bench.opens(2);
    bench.mux.receive(&b"GET / HTTP/1.1\r\n".to_vec().into());
    let over = block_on(bench.mux.drive());
    assert_eq!(
        over.to_string(),
        "the peer sent a yamux frame of version 71, not 0"
    );
    let last = now(poll_fn(|context| bench.outlet.poll_next(context)));
    let go_away = Header {
        kind: FrameType::GoAway,
        flags: Flags::NONE,
        stream: 0,
        length: 1,
    };
    let expected = Frame::Binary(go_away.encode().to_vec().into());
    assert_eq!(last, Some(Some(expected)));
    let error = now(stream.read(&mut [0; 1])).unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
}

#[test]
fn a_stream_that_was_reset_before_anybody_took_it_is_gone() {
    let bench = Bench::new();
    for id in 1..=1000 {
        bench.says(FrameType::Window, Flags::SYN, id * 2, 0);
        bench.says(FrameType::Window, Flags::RST, id * 2, 0);
    }
    assert!(now(bench.mux.accept()).is_none());
    assert_eq!((bench.mux.load().streams, bench.mux.load().refused), (0, 0));
}

#[test]
fn the_end_of_a_stream_is_seen_without_reading() {
    let bench = Bench::new();
    let (finished, dropped) = (bench.opens(2), bench.opens(4));
    let (watch, gone) = (finished.watch(), dropped.watch());
    assert_eq!(now(watch.ended()), None);
    bench.sends(2, b"a pipelined request");
    bench.says(FrameType::Data, Flags::FIN, 2, 0);
    assert_eq!(now(watch.ended()), Some(Some(StreamEnd::Finished)));
    drop(dropped);
    assert_eq!(now(gone.ended()), Some(None));
}

#[test]
fn the_header_of_a_stream_is_read_and_not_a_byte_more() {
    let bench = Bench::new();
    let mut stream = bench.opens(2);
    let mut reading = Box::pin(stream.read_header());
    bench.sends(2, &[2, 3, 0]);
    assert!(now(&mut reading).is_none());
    bench.sends(2, b"\0\0\0\0\0\0\x01xGET");
    let header = now(&mut reading).unwrap().unwrap();
    drop(reading);
    assert_eq!(
        (header.target, header.id.as_str()),
        (StreamTarget::Kubernetes, "x")
    );
    let mut rest = [0; 3];
    now(stream.read_exact(&mut rest)).unwrap().unwrap();
    assert_eq!(&rest, b"GET");
}

#[test]
fn a_header_that_is_none_is_refused_with_its_reason() {
    let bench = Bench::new();
    let (mut wrong, mut short, mut broken) = (bench.opens(2), bench.opens(4), bench.opens(6));
    bench.sends(2, &[9]);
    bench.sends(4, &[2, 3]);
    bench.says(FrameType::Data, Flags::FIN, 4, 0);
    bench.says(FrameType::Data, Flags::RST, 6, 0);
    let wrong = now(wrong.read_header()).unwrap().unwrap_err();
    assert!(matches!(wrong, HeaderError::Invalid(Invalid::Version(9))));
    let short = now(short.read_header()).unwrap().unwrap_err();
    assert!(matches!(short, HeaderError::Truncated));
    let broken = now(broken.read_header()).unwrap().unwrap_err();
    assert!(matches!(broken, HeaderError::Broken(_)));
}
