//! Copies of backups of k3s in a bucket: which are missing there, which count, and which are one
//! too many.

use super::backup::{Kept, Limits, sort_newest_first, surplus};
use crate::core::time::Wall;

/// Directory in which root leaves encrypted backups for the agent, which copies them.
pub const SPOOL: &str = "/var/spool/pipeops-k3s";
/// Backups in it: those of some days without the server.
pub const SPOOLED_MAX: usize = 3;

/// Beginning of the names of a node's backups. Those of other nodes may have it, too.
pub fn beginning(node: &str) -> String {
    format!("k3s-{node}-")
}

/// Objects that are whole, as far as that is known: one of another length than the backup here was
/// cut.
pub fn whole(here: &[Kept], there: &[Kept]) -> Vec<Kept> {
    let is_cut = |object: &&Kept| {
        let original = here.iter().find(|kept| kept.name == object.name);
        original.is_some_and(|original| original.bytes != object.bytes)
    };
    there
        .iter()
        .filter(|object| !is_cut(object))
        .cloned()
        .collect()
}

/// Backups that are to be copied, the newest first: those that are not there whole, and would not
/// be removed again.
pub fn missing(here: &[Kept], there: &[Kept], now: Wall, limits: Limits) -> Vec<Kept> {
    let mut all = whole(here, there);
    let is_there = |kept: &Kept, all: &[Kept]| all.iter().any(|object| object.name == kept.name);
    let mut missing: Vec<Kept> = here.to_vec();
    missing.retain(|kept| !is_there(kept, &all));
    all.extend(missing.iter().cloned());
    let surplus = surplus(all, now, limits);
    missing.retain(|kept| !surplus.contains(&kept.name));
    sort_newest_first(&mut missing, now);
    missing
}

/// Copies that are removed before these are written, so that a full bucket has room: those that
/// would be too many then, but never the newest.
pub fn outdated(missing: &[Kept], mut there: Vec<Kept>, now: Wall, limits: Limits) -> Vec<String> {
    sort_newest_first(&mut there, now);
    let newest = there.first().map(|kept| kept.name.clone());
    there.extend_from_slice(missing);
    let mut names = surplus(there, now, limits);
    names.retain(|name| Some(name) != newest.as_ref());
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::DAY_MS;

    const LIMITS: Limits = Limits {
        count: 3,
        days: 30,
        bytes: 100,
    };

    fn kept(day: i64, bytes: u64) -> Kept {
        Kept {
            name: format!("day{day}"),
            at: Wall::from_millis(day * DAY_MS),
            bytes,
        }
    }

    fn named(here: &[Kept], there: &[Kept]) -> Vec<String> {
        let now = Wall::from_millis(100 * DAY_MS);
        let missing = missing(here, there, now, LIMITS).into_iter();
        missing.map(|kept| kept.name).collect()
    }

    #[test]
    fn what_is_not_there_or_was_cut_is_copied_the_newest_first() {
        let here = [kept(97, 10), kept(98, 10), kept(99, 10)];
        assert_eq!(named(&here, &[]), ["day99", "day98", "day97"]);
        assert_eq!(
            named(&here, &[kept(98, 10), kept(99, 4)]),
            ["day99", "day97"]
        );
        assert!(named(&here, &here).is_empty());
        assert_eq!(
            whole(&here, &[kept(98, 4), kept(50, 1)]),
            [kept(50, 1)],
            "one that was cut does not count"
        );
    }

    #[test]
    fn room_is_made_for_what_comes_and_the_newest_copy_stays() {
        let now = Wall::from_millis(100 * DAY_MS);
        let there = || (90..93).map(|day| kept(day, 10)).collect();
        let gone = |missing: &[Kept]| outdated(missing, there(), now, LIMITS);
        assert!(gone(&[]).is_empty());
        assert_eq!(gone(&[kept(99, 10)]), ["day90"]);
        assert_eq!(gone(&[kept(99, 95)]), ["day91", "day90"]);
    }

    #[test]
    fn nothing_is_copied_that_would_be_removed_again() {
        // Too many, and too long together.
        let many = [kept(60, 10), kept(97, 10), kept(98, 10), kept(99, 10)];
        assert_eq!(named(&many, &[]), ["day99", "day98", "day97"]);
        assert_eq!(named(&[kept(98, 60), kept(99, 60)], &[]), ["day99"]);
        // The newest is, whatever its age.
        assert_eq!(named(&[kept(1, 1000)], &[]), ["day1"]);
    }
}
