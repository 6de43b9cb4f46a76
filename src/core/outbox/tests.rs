use super::*;

const EPOCH: u64 = 7;

fn range(from: u64, to: u64) -> Range {
    Range::new(from, to).unwrap()
}

const fn stock(last: u64) -> StreamView<'static> {
    StreamView { last, gaps: &[] }
}

fn said(from: u64, to: u64) -> Acknowledgement {
    Acknowledgement {
        epoch: EPOCH,
        from,
        to,
    }
}

fn at(seconds: u64) -> Mono {
    Mono::default().after(Duration::from_secs(seconds))
}

fn outbox(order: Order, ranges: &[Range]) -> Outbox {
    Outbox::new(EPOCH, order, Cursor::of(ranges.iter().copied()))
}

#[test]
fn the_newest_goes_first_and_then_the_past_from_its_oldest_end() {
    let mut outbox = outbox(Order::NewestFirst, &[]);
    for (next, sent) in [
        (range(100, 100), range(100, 100)),
        (range(1, 99), range(1, 40)),
        (range(41, 99), range(41, 99)),
    ] {
        let now = at(1);
        assert_eq!(outbox.next(stock(100), 0, now), Some(Next::Records(next)));
        outbox.sent(sent, now);
        assert_eq!(outbox.next(stock(100), 0, now), None, "one is in flight");
        assert_eq!(
            outbox.acknowledge(said(sent.from(), sent.to()), 100),
            Ok(sent)
        );
    }
    assert_eq!(outbox.next(stock(100), 0, at(1)), None);
    assert_eq!(outbox.until(at(1)), None);
    assert_eq!(outbox.next(stock(0), 0, at(1)), None);
}

#[test]
fn a_receiver_that_takes_no_old_records_gets_them_as_they_happened() {
    let mut outbox = outbox(Order::OldestFirst, &[range(1, 4)]);
    let next = outbox.next(stock(100), 0, at(1));
    assert_eq!(next, Some(Next::Records(range(5, 100))));
}

#[test]
fn the_past_goes_first_where_the_newest_would_be_a_range_too_many() {
    let islands: Vec<_> = (1..=15).map(|n| range(n * 10, n * 10)).collect();
    let mut outbox = outbox(Order::NewestFirst, &islands);
    let next = outbox.next(stock(1000), 0, at(1));
    assert_eq!(next, Some(Next::Records(range(1, 9))));
    outbox.sent(range(1, 9), at(1));
    outbox.acknowledge(said(1, 9), 1000).unwrap();
    let next = outbox.next(stock(1000), 0, at(1));
    assert_eq!(next, Some(Next::Records(range(1000, 1000))));
}

#[test]
fn a_gap_is_told_in_the_place_of_its_records() {
    let gap = Gap {
        range: range(3, 6),
        loss: Loss::Budget,
    };
    let stock = StreamView {
        last: 9,
        gaps: &[gap],
    };
    let mut outbox = outbox(Order::OldestFirst, &[]);
    for wanted in [
        Next::Records(range(1, 2)),
        Next::Gap(gap),
        Next::Records(range(7, 9)),
    ] {
        assert_eq!(outbox.next(stock, 0, at(1)), Some(wanted));
        outbox.sent(wanted.range(), at(1));
        let said = said(wanted.range().from(), wanted.range().to());
        assert_eq!(outbox.acknowledge(said, 9), Ok(wanted.range()));
    }
}

#[test]
fn what_a_receiver_makes_up_is_ignored() {
    let mut outbox = outbox(Order::OldestFirst, &[range(1, 10)]);
    outbox.sent(range(11, 20), at(1));
    for (said, ignored) in [
        (said(0, 15), Ignored::NoRange),
        (said(15, 11), Ignored::NoRange),
        (said(11, u64::MAX), Ignored::NoRange),
        (
            Acknowledgement {
                epoch: 8,
                ..said(11, 20)
            },
            Ignored::Epoch,
        ),
        (said(11, 31), Ignored::Future),
        (said(21, 30), Ignored::NotSent),
        (said(5, 15), Ignored::NotSent),
        (said(15, 25), Ignored::NotSent),
    ] {
        assert_eq!(outbox.acknowledge(said, 30), Err(ignored), "{said:?}");
    }
    assert_eq!(outbox.cursor().floor(), 11);
    assert_eq!(outbox.acknowledge(said(14, 16), 30), Ok(range(14, 16)));
    assert_eq!(
        outbox.next(stock(30), 0, at(2)),
        None,
        "the rest is awaited"
    );
    assert_eq!(outbox.acknowledge(said(11, 20), 30), Ok(range(11, 20)));
    assert_eq!(outbox.cursor().floor(), 21);
    assert_eq!(outbox.acknowledge(said(11, 20), 30), Err(Ignored::NotSent));
}

#[test]
fn an_acknowledgement_that_does_not_come_is_met_with_a_growing_wait() {
    let mut outbox = outbox(Order::OldestFirst, &[]);
    let mut now = at(0);
    let mut waits = Vec::new();
    for _ in 0..8 {
        let next = outbox.next(stock(5), 0, now);
        assert_eq!(next, Some(Next::Records(range(1, 5))));
        outbox.sent(range(1, 5), now);
        now = outbox.until(now).unwrap();
        assert_eq!(outbox.next(stock(5), 0, now), None);
        let until = outbox.until(now).unwrap();
        waits.push(until.since(now).as_secs());
        now = until;
    }
    assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300]);
    outbox.next(stock(5), 0, now).unwrap();
    outbox.sent(range(1, 5), now);
    outbox.session_lost();
    assert!(outbox.next(stock(5), 0, now).is_some(), "a new session");
    outbox.sent(range(1, 5), now);
    // A session that ends during the wait ends the wait, too.
    now = outbox.until(now).unwrap();
    assert_eq!(outbox.next(stock(5), 0, now), None);
    outbox.session_lost();
    assert_eq!(outbox.until(now), None);
    assert!(outbox.next(stock(5), 0, now).is_some(), "a new session");
    outbox.sent(range(1, 5), now);
    outbox.acknowledge(said(1, 5), 5).unwrap();
    assert_eq!(outbox.until(now), None);
    // After an acknowledgement the waits begin again.
    outbox.next(stock(6), 0, now).unwrap();
    outbox.sent(range(6, 6), now);
    now = outbox.until(now).unwrap();
    assert_eq!(outbox.next(stock(6), 0, now), None);
    assert_eq!(outbox.until(now), Some(now.after(RETRY_FIRST)));
}
