//! Decisions of the machine, frame by frame.

use super::*;
use proptest::prelude::*;

const NOTHING: [u32; 0] = [];

fn session() -> Yamux {
    Yamux::new(MuxLimits::default())
}

fn frame(kind: FrameType, flags: Flags, stream: u32, length: u32) -> Vec<u8> {
    header(kind, flags, stream, length).to_vec()
}

fn syn(stream: u32) -> Vec<u8> {
    frame(FrameType::Window, Flags::SYN, stream, 0)
}

fn data(flags: Flags, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    let mut frame = frame(FrameType::Data, flags, stream, length);
    frame.extend_from_slice(payload);
    frame
}

/// Feeds everything in one piece.
fn feed(yamux: &mut Yamux, bytes: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    let mut rest = bytes;
    loop {
        let received = yamux.receive(rest);
        rest = &rest[received.used..];
        let Some(event) = received.event else {
            assert!(rest.is_empty(), "all input is used when nothing happens");
            return events;
        };
        events.push(event);
    }
}

fn open(yamux: &mut Yamux, id: u32) -> StreamKey {
    match feed(yamux, &syn(id)).as_slice() {
        [Event::Opened(key)] => *key,
        other => panic!("not opened: {other:?}"),
    }
}

/// All control frames that wait.
fn control(yamux: &mut Yamux) -> Vec<Header> {
    std::iter::from_fn(|| yamux.next_control())
        .map(|head| Header::decode(head).unwrap())
        .collect()
}

fn resets(yamux: &mut Yamux) -> Vec<u32> {
    control(yamux)
        .into_iter()
        .filter(|header| header.flags.has(Flags::RST))
        .map(|header| header.stream)
        .collect()
}

#[test]
fn an_opened_stream_is_acknowledged_before_anybody_uses_it() {
    let mut yamux = session();
    let key = open(&mut yamux, 2);
    let answers = control(&mut yamux);
    let ack = Header {
        kind: FrameType::Window,
        flags: Flags::ACK,
        stream: 2,
        length: 0,
    };
    assert_eq!((key.id(), answers), (2, vec![ack]));
}

#[test]
fn the_first_frame_carries_the_acknowledgement_and_only_the_first() {
    let mut yamux = session();
    let key = open(&mut yamux, 2);
    let flags = |write| match write {
        Write::Frame(head, _) => Header::decode(head).unwrap().flags,
        Write::Blocked | Write::Closed => panic!("{write:?}"),
    };
    assert_eq!(flags(yamux.write(key, 1)), Flags::ACK);
    assert_eq!(flags(yamux.write(key, 1)), Flags::NONE);
    assert_eq!(control(&mut yamux), []);
}

#[test]
fn one_frame_may_open_fill_and_finish_a_stream() {
    let mut yamux = session();
    let events = feed(&mut yamux, &data(Flags::SYN.with(Flags::FIN), 4, b"all"));
    let [
        Event::Opened(key),
        Event::Data(to, at),
        Event::Finished(end),
    ] = events.as_slice()
    else {
        panic!("{events:?}");
    };
    assert_eq!((key, key, at.len()), (to, end, 3));
}

#[test]
fn a_stream_too_many_is_reset_and_the_others_go_on() {
    let mut yamux = session();
    let first = open(&mut yamux, 2);
    for number in 2..=128 {
        open(&mut yamux, number * 2);
    }
    assert_eq!(feed(&mut yamux, &syn(1000)), []);
    assert_eq!(feed(&mut yamux, &data(Flags::NONE, 1000, b"early")), []);
    assert_eq!(resets(&mut yamux), [1000]);
    assert_eq!(
        (yamux.load().streams, yamux.load().refused),
        (128, 1),
        "the one too many is counted"
    );
    assert!(matches!(yamux.write(first, 9), Write::Frame(_, 9)));
    yamux.release(first);
    open(&mut yamux, 1002);
}

#[test]
fn a_stream_keeps_its_slot_until_it_is_released() {
    let mut yamux = session();
    let mut keys = Vec::new();
    for number in 1..=200 {
        for event in feed(&mut yamux, &syn(number * 2)) {
            if let Event::Opened(key) = event {
                keys.push(key);
            }
        }
        feed(
            &mut yamux,
            &frame(FrameType::Window, Flags::RST, number * 2, 0),
        );
    }
    assert_eq!(
        keys.len(),
        128,
        "opening and resetting does not get round the limit"
    );
    for key in keys {
        yamux.release(key);
    }
    assert_eq!(yamux.load().streams, 0);
}

#[test]
fn an_id_that_is_in_use_resets_its_stream() {
    let mut yamux = session();
    let key = open(&mut yamux, 2);
    let again = data(Flags::SYN, 2, b"whose?");
    let reset = Event::Reset(key, ResetReason::IdReused);
    assert_eq!(feed(&mut yamux, &again), [reset]);
    assert_eq!(resets(&mut yamux), [2]);
    yamux.release(key);
    let next = open(&mut yamux, 2);
    assert_ne!(key, next, "a key never comes back");
    assert_eq!(yamux.write(key, 1), Write::Closed);
}

#[test]
fn more_than_the_window_costs_that_stream_only_and_is_not_stored() {
    let mut yamux = session();
    let (rude, other) = (open(&mut yamux, 2), open(&mut yamux, 4));
    let mut bytes = frame(FrameType::Data, Flags::NONE, 2, WINDOW + 1);
    bytes.extend(vec![0; usize::try_from(WINDOW).unwrap() + 1]);
    bytes.extend(data(Flags::NONE, 4, b"fine"));
    let events = feed(&mut yamux, &bytes);
    assert_eq!(events[0], Event::Reset(rude, ResetReason::WindowExceeded));
    assert!(matches!(&events[1..], [Event::Data(to, at)] if *to == other && at.len() == 4));
    assert_eq!(yamux.load().buffered_bytes, 4);
    assert_eq!(resets(&mut yamux), [2]);
}

#[test]
fn a_length_of_four_gibibytes_is_skipped_as_it_comes() {
    let mut yamux = session();
    feed(
        &mut yamux,
        &frame(FrameType::Data, Flags::NONE, 77, u32::MAX),
    );
    let block = vec![0xff; 1 << 20];
    for _ in 0..4095 {
        assert_eq!(feed(&mut yamux, &block), []);
    }
    assert_eq!(feed(&mut yamux, &block[1..]), []);
    assert_eq!(yamux.load().buffered_bytes, 0);
    open(&mut yamux, 2);
}

#[test]
fn data_for_an_unknown_stream_is_answered_once() {
    let mut yamux = session();
    for _ in 0..1000 {
        assert_eq!(feed(&mut yamux, &data(Flags::NONE, 8, b"hello?")), []);
    }
    assert_eq!(resets(&mut yamux), [8]);
    feed(&mut yamux, &data(Flags::NONE, 8, b"hello?"));
    assert_eq!(resets(&mut yamux), NOTHING);
}

#[test]
fn what_is_left_of_an_ended_stream_is_not_answered() {
    let mut yamux = session();
    for left in [
        frame(FrameType::Window, Flags::NONE, 2, 5),
        frame(FrameType::Data, Flags::FIN, 2, 0),
        frame(FrameType::Window, Flags::RST, 2, 0),
        frame(FrameType::Data, Flags::RST, 2, 0),
        frame(FrameType::Data, Flags::NONE, 0, 0),
        data(Flags::NONE, 0, b"to the session?"),
        syn(0),
    ] {
        assert_eq!(feed(&mut yamux, &left), []);
    }
    assert_eq!(control(&mut yamux), []);
}

#[test]
fn the_window_is_granted_again_when_half_of_it_was_consumed() {
    let mut yamux = session();
    let key = open(&mut yamux, 2);
    control(&mut yamux);
    let half = usize::try_from(WINDOW / 2).unwrap();
    feed(&mut yamux, &data(Flags::NONE, 2, &vec![0; 2 * half]));
    yamux.consumed(key, half - 1);
    assert!(!yamux.has_control());
    yamux.consumed(key, 1);
    let grants = control(&mut yamux);
    assert_eq!(grants.len(), 1);
    assert_eq!(
        (grants[0].kind, grants[0].length),
        (FrameType::Window, WINDOW / 2)
    );
    assert_eq!(yamux.load().buffered_bytes, half);
}

#[test]
fn a_finished_stream_is_not_granted_more() {
    let mut yamux = session();
    let key = open(&mut yamux, 2);
    control(&mut yamux);
    let all = usize::try_from(WINDOW).unwrap();
    feed(&mut yamux, &data(Flags::FIN, 2, &vec![0; all]));
    yamux.consumed(key, all);
    assert_eq!(control(&mut yamux), []);
}

#[test]
fn a_writer_waits_for_the_window_and_hears_when_it_opens() {
    let mut yamux = session();
    let key = open(&mut yamux, 2);
    let mut sent = 0;
    while let Write::Frame(_, count) = yamux.write(key, 1 << 20) {
        assert!(count <= PAYLOAD_MAX);
        sent += count;
    }
    assert_eq!(sent, usize::try_from(WINDOW).unwrap());
    assert_eq!(yamux.write(key, 1), Write::Blocked);
    assert_eq!(
        feed(&mut yamux, &frame(FrameType::Window, Flags::NONE, 2, 0)),
        []
    );
    let room = feed(&mut yamux, &frame(FrameType::Window, Flags::NONE, 2, 3));
    assert_eq!(room, [Event::Room(key)]);
    assert!(matches!(yamux.write(key, 9), Write::Frame(_, 3)));
}

#[test]
fn a_window_above_32_bits_costs_the_stream() {
    let mut yamux = session();
    let key = open(&mut yamux, 2);
    let most = frame(FrameType::Window, Flags::NONE, 2, u32::MAX - WINDOW);
    assert_eq!(feed(&mut yamux, &most), []);
    let over = feed(&mut yamux, &frame(FrameType::Window, Flags::NONE, 2, 1));
    assert_eq!(over, [Event::Reset(key, ResetReason::WindowOverflow)]);
}

#[test]
fn data_after_fin_costs_the_stream_and_a_second_fin_nothing() {
    let mut yamux = session();
    let key = open(&mut yamux, 2);
    let fin = frame(FrameType::Data, Flags::FIN, 2, 0);
    assert_eq!(feed(&mut yamux, &fin), [Event::Finished(key)]);
    assert_eq!(feed(&mut yamux, &fin), []);
    let late = feed(&mut yamux, &data(Flags::NONE, 2, b"one more thing"));
    assert_eq!(late, [Event::Reset(key, ResetReason::DataAfterFinish)]);
}

#[test]
fn half_a_stream_goes_on_after_the_other_half_is_finished() {
    let mut yamux = session();
    let (ours, theirs) = (open(&mut yamux, 2), open(&mut yamux, 4));
    assert!(yamux.finish(ours).is_some());
    assert_eq!(yamux.finish(ours), None, "FIN is said once");
    assert_eq!(yamux.write(ours, 1), Write::Closed);
    let more = feed(&mut yamux, &data(Flags::NONE, 2, b"more"));
    assert!(matches!(more.as_slice(), [Event::Data(..)]));
    feed(&mut yamux, &frame(FrameType::Window, Flags::FIN, 4, 0));
    assert!(matches!(yamux.write(theirs, 4), Write::Frame(_, 4)));
}

#[test]
fn letting_go_of_a_stream_tells_the_peer_where_it_could_not_know() {
    let mut yamux = session();
    control(&mut yamux);
    // Nothing was finished: RST.
    let key = open(&mut yamux, 2);
    yamux.release(key);
    assert_eq!(resets(&mut yamux), [2]);
    // Finished here, nothing unread: what was sent must arrive, so no RST, until more data comes.
    let key = open(&mut yamux, 4);
    yamux.finish(key);
    yamux.release(key);
    assert_eq!(resets(&mut yamux), NOTHING);
    feed(&mut yamux, &frame(FrameType::Data, Flags::FIN, 4, 0));
    assert_eq!(resets(&mut yamux), NOTHING);
    feed(&mut yamux, &data(Flags::NONE, 4, b"too late"));
    assert_eq!(resets(&mut yamux), [4]);
    // Finished here, but what came was not read: RST, as its window never opens again.
    let key = open(&mut yamux, 6);
    feed(&mut yamux, &data(Flags::NONE, 6, b"unread"));
    yamux.finish(key);
    yamux.release(key);
    assert_eq!(resets(&mut yamux), [6]);
    // Finished on both sides.
    let key = open(&mut yamux, 8);
    feed(&mut yamux, &data(Flags::FIN, 8, b"unread"));
    yamux.finish(key);
    yamux.release(key);
    assert_eq!(resets(&mut yamux), NOTHING);
    assert_eq!((yamux.load().streams, yamux.load().buffered_bytes), (0, 0));
}

#[test]
fn a_stream_reset_within_a_frame_skips_the_rest_of_it() {
    let mut yamux = session();
    let key = open(&mut yamux, 2);
    let bytes = data(Flags::FIN, 2, &[0; 100]);
    let (start, rest) = bytes.split_at(50);
    assert_eq!(feed(&mut yamux, start).len(), 1);
    yamux.release(key);
    assert_eq!(feed(&mut yamux, rest), []);
    let _next: StreamKey = open(&mut yamux, 4);
    assert_eq!(yamux.load().buffered_bytes, 0);
}

#[test]
fn a_stream_that_holds_much_goes_before_one_that_holds_little() {
    let mut yamux = Yamux::new(MuxLimits {
        streams_max: 8,
        buffered_bytes_max: 1000,
    });
    let (small, large) = (open(&mut yamux, 2), open(&mut yamux, 4));
    feed(&mut yamux, &data(Flags::NONE, 4, &[0; 700]));
    feed(&mut yamux, &data(Flags::NONE, 2, &[0; 300]));
    let events = feed(&mut yamux, &data(Flags::NONE, 2, &[0; 1]));
    assert!(matches!(&events[0], Event::Data(key, _) if *key == small));
    assert_eq!(events[1..], [Event::Reset(large, ResetReason::BufferFull)]);
    assert_eq!(yamux.load().buffered_bytes, 301);
}

#[test]
fn of_streams_that_hold_about_the_same_the_one_left_alone_longest_goes() {
    let mut yamux = Yamux::new(MuxLimits {
        streams_max: 8,
        buffered_bytes_max: 300,
    });
    let (first, second, moving) = (
        open(&mut yamux, 2),
        open(&mut yamux, 4),
        open(&mut yamux, 6),
    );
    feed(&mut yamux, &data(Flags::NONE, 2, &[0; 101]));
    feed(&mut yamux, &data(Flags::NONE, 4, &[0; 100]));
    yamux.consumed(first, 1);
    let events = feed(&mut yamux, &data(Flags::NONE, 6, &[0; 120]));
    assert_eq!(events[1..], [Event::Reset(second, ResetReason::BufferFull)]);
    feed(&mut yamux, &data(Flags::NONE, 2, &[0; 50]));
    yamux.consumed(moving, 20);
    let events = feed(&mut yamux, &data(Flags::NONE, 6, &[0; 60]));
    assert_eq!(
        events[1..],
        [Event::Reset(first, ResetReason::BufferFull)],
        "not the one that has the most but is read"
    );
    // Only one is left, and it alone holds too much.
    let events = feed(&mut yamux, &data(Flags::NONE, 6, &[0; 141]));
    assert_eq!(events, [Event::Reset(moving, ResetReason::BufferFull)]);
}

#[test]
fn pings_are_answered_with_their_value_and_a_flood_of_them_is_not_stored() {
    let mut yamux = session();
    feed(
        &mut yamux,
        &frame(FrameType::Ping, Flags::SYN, 0, 0xdead_beef),
    );
    feed(&mut yamux, &frame(FrameType::Ping, Flags::ACK, 0, 7));
    let pongs = control(&mut yamux);
    assert_eq!(pongs.len(), 1);
    assert_eq!(
        (pongs[0].kind, pongs[0].flags, pongs[0].length),
        (FrameType::Ping, Flags::ACK, 0xdead_beef)
    );
    for value in 0..100_000 {
        feed(&mut yamux, &frame(FrameType::Ping, Flags::SYN, 0, value));
    }
    let pongs = control(&mut yamux);
    assert_eq!(pongs.len(), PONGS_MAX);
    assert_eq!(pongs.last().unwrap().length, 99_999);
}

#[test]
fn a_peer_that_goes_away_stops_nothing() {
    let mut yamux = session();
    let key = open(&mut yamux, 2);
    let said = feed(&mut yamux, &frame(FrameType::GoAway, Flags::NONE, 0, 0));
    assert_eq!(said, [Event::GoAway(GoAway::Normal)]);
    assert!(matches!(yamux.write(key, 4), Write::Frame(..)));
    let more = feed(&mut yamux, &data(Flags::NONE, 2, b"more"));
    assert!(matches!(more.as_slice(), [Event::Data(..)]));
}

#[test]
fn only_lost_framing_ends_the_session() {
    let mut yamux = session();
    open(&mut yamux, 2);
    let mut bytes = data(Flags::NONE, 2, b"unread");
    bytes.extend([1; 12]);
    bytes.extend(syn(4));
    let events = feed(&mut yamux, &bytes);
    assert_eq!(events[1..], [Event::Ended(Unreadable::Version(1))]);
    let said = control(&mut yamux);
    assert_eq!(
        (said.len(), said[0].kind, said[0].length),
        (1, FrameType::GoAway, 1)
    );
    assert!(yamux.is_ended());
    assert_eq!(feed(&mut yamux, &syn(6)), []);
    assert_eq!(yamux.load().buffered_bytes, 0);
}

#[test]
fn a_peer_that_does_not_read_our_resets_does_not_make_them_grow() {
    let mut yamux = Yamux::new(MuxLimits {
        streams_max: 1,
        ..MuxLimits::default()
    });
    open(&mut yamux, 2);
    for id in 2..50_000 {
        feed(&mut yamux, &syn(id * 2));
    }
    let load = yamux.load();
    assert!(load.control_frames <= resets::WAITING_MAX + 2, "{load:?}");
    assert_eq!(load.refused, 49_998);
    assert!(load.unanswered > 0);
    // When they went out, the next ones are answered again.
    control(&mut yamux);
    feed(&mut yamux, &syn(4));
    assert_eq!(resets(&mut yamux), [4]);
}

#[test]
fn frames_are_smaller_when_more_streams_run() {
    let mut yamux = session();
    let first = open(&mut yamux, 2);
    assert!(matches!(
        yamux.write(first, 1 << 20),
        Write::Frame(_, PAYLOAD_MAX)
    ));
    for number in 2..=128 {
        open(&mut yamux, number * 2);
    }
    assert!(matches!(
        yamux.write(first, 1 << 20),
        Write::Frame(_, PAYLOAD_MIN)
    ));
}

/// Each event with the bytes that it stands for, parts of one stream joined.
fn story(pieces: &[&[u8]]) -> Vec<(Event, Vec<u8>)> {
    let mut yamux = session();
    let mut story: Vec<(Event, Vec<u8>)> = Vec::new();
    for piece in pieces {
        let mut rest = *piece;
        loop {
            let Received { used, event } = yamux.receive(rest);
            let Some(event) = event else { break };
            let bytes = if let Event::Data(_, at) = &event {
                rest[at.clone()].to_vec()
            } else {
                Vec::new()
            };
            rest = &rest[used..];
            match (story.last_mut(), &event) {
                (Some((Event::Data(last, _), all)), Event::Data(key, _)) if last == key => {
                    all.extend(bytes);
                }
                (_, Event::Data(key, _)) => story.push((Event::Data(*key, 0..0), bytes)),
                _ => story.push((event, bytes)),
            }
        }
    }
    story
}

/// Frames that are mostly sensible, so that the interesting states are reached.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![4 => Just(0_u16), 2 => Just(1), 2 => Just(4), 1 => any::<u16>()];
    let payload = prop::collection::vec(any::<u8>(), 0..200);
    (0..4_u8, flags, 0..6_u32, any::<u32>(), payload).prop_map(
        |(kind, flags, stream, length, payload)| {
            let length = match kind {
                0 => u32::try_from(payload.len()).unwrap(),
                1 => length % 1000,
                _ => length,
            };
            let mut bytes = vec![0, kind];
            bytes.extend(flags.to_be_bytes());
            bytes.extend(stream.to_be_bytes());
            bytes.extend(length.to_be_bytes());
            if kind == 0 {
                bytes.extend(payload);
            }
            bytes
        },
    )
}

proptest! {
    #[test]
    fn where_messages_are_cut_means_nothing(
        frames in prop::collection::vec(any_frame(), 0..30),
        cuts in prop::collection::vec(1..50_usize, 1..20),
    ) {
        let bytes = frames.concat();
        let mut pieces = Vec::new();
        let (mut rest, mut cuts) = (bytes.as_slice(), cuts.iter().cycle());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
            pieces.push(piece);
            rest = after;
        }
        prop_assert_eq!(story(&pieces), story(&[&bytes]));
    }

    #[test]
    fn no_bytes_make_it_panic_or_hold_more_than_came(bytes: Vec<u8>) {
        let mut yamux = session();
        feed(&mut yamux, &bytes);
        prop_assert!(yamux.load().buffered_bytes <= bytes.len());
        prop_assert!(control(&mut yamux).len() <= bytes.len() / HEADER_BYTES + 1);
    }
}
