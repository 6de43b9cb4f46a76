//! Boots without a clock: their samples are later than those before them, and where they belong
//! once the clock is known.

use super::*;

/// The next boot begins at zero, like a board without a battery.
fn reboot_without_clock(place: &mut Machine) {
    place.reboot();
    (place.offset_ms, place.clock_is_set) = (0, false);
}

/// Times and values, whatever clock they are by.
fn values(aggregates: &[Aggregate]) -> Vec<i64> {
    aggregates.iter().map(|aggregate| aggregate.mean).collect()
}

#[test]
fn a_boot_without_a_clock_puts_no_sample_over_one_of_the_boot_before() {
    // The minutes of the boot before are in the journal, or in a finished hour.
    for tends_first in [false, true] {
        let mut place = Machine::new();
        place.live(75);
        for _ in 0..3 {
            reboot_without_clock(&mut place);
            if tends_first {
                block_on(place.handle().tend(place.now())).unwrap();
            }
            place.live(70);
        }
        let all = place.query(None);
        let wanted: Vec<_> = place.model.iter().map(|(_, value)| *value).collect();
        assert_eq!(values(&all), wanted);
        assert!(all.is_sorted_by(|one, next| one.at < next.at), "{all:?}");
        // Nobody will know the clock of the first two any more: they are delivered by the guess,
        // each moment once.
        let (got, gaps) = deliver(&place, "plane", Order::OldestFirst);
        assert!(gaps.is_empty());
        assert!(got.is_sorted_by(|one, next| one.0 < next.0), "{got:?}");
        let got: Vec<_> = got.iter().map(|(_, value)| *value).collect();
        assert_eq!(got, wanted[..wanted.len() - 70 * 4]);
    }
}

#[test]
fn a_boot_without_a_clock_comes_after_a_minute_that_cannot_be_read() {
    let mut place = Machine::new();
    place.live(10);
    place.close();
    let file = rusqlite::Connection::open(place.path().join(DATABASE)).unwrap();
    file.execute("UPDATE minute SET block = x'00' WHERE sequence = 10", [])
        .unwrap();
    place.open();
    reboot_without_clock(&mut place);
    place.live(2);
    place.model.drain(9 * 4..10 * 4);
    let wanted: Vec<_> = place.model.iter().map(|(_, value)| *value).collect();
    assert_eq!(values(&place.query(None)), wanted);
}

#[test]
fn finished_hours_are_found_at_their_time_once_the_clock_is_set() {
    let mut place = Machine::new();
    place.live(3);
    reboot_without_clock(&mut place);
    let true_offset = NEW_YEAR_MS + 86_400_000;
    place.live(70);
    (place.offset_ms, place.clock_is_set) = (true_offset, true);
    place.live(2);
    let (at, value) = place.model[20 * 4];
    let at = at + true_offset;
    let found = place.query_between(at, at + 1, None);
    assert_eq!(values(&found), [value]);
    let minute = place.query_between(at - 60_000, at + 60_000, Some(Duration::from_secs(60)));
    assert_eq!(minute.len(), 2);
}
