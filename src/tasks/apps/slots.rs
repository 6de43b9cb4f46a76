//! Slots of the changes that are watched: a bound on what is watched at once, from which no app
//! suffers that goes back.

use crate::core::{apps::Owner, time::Mono};

/// Changes of one owner that are carried out at once. Each one watches eight or nine lists, with a
/// connection each, until its verdict. Each owner has slots of its own: a change may wait for ever,
/// and those of the control plane must not keep the owner of this machine from anything.
pub(super) const AT_ONCE: usize = 8;
/// Changes beyond them that are judged on the way back.
pub(super) const BACK_AT_ONCE: usize = 4;

/// Direction of a version.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Direction {
    /// A new version: it is written in its slot, because nobody would see that it is bad.
    Forward,
    /// A version that ran before: it is written at once, and judged in its slot.
    Back,
}

/// Slot of a change: the right to watch it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Slot {
    /// Neither in a slot nor waiting for one.
    Unasked,
    /// It waits for one since then.
    Awaited(Direction, Mono),
    /// In a slot.
    Taken(Direction),
}

/// Returns whether a change of an owner that waits since then may take a slot, by those of the
/// other changes.
pub(super) fn is_free(
    owner: Owner,
    (direction, since): (Direction, Mono),
    others: &[(Owner, Slot)],
) -> bool {
    let (mut forward, mut back) = (0_usize, 0_usize);
    for (_, slot) in others.iter().filter(|(other, _)| *other == owner) {
        match slot {
            Slot::Taken(Direction::Forward) => forward += 1,
            Slot::Taken(Direction::Back) => back += 1,
            // Whoever goes back has slots of its own, and does not wait for a new version.
            Slot::Awaited(Direction::Forward, _) if direction == Direction::Back => {}
            Slot::Awaited(_, earlier) if *earlier < since => return false,
            Slot::Unasked | Slot::Awaited(..) => {}
        }
    }
    match direction {
        Direction::Forward => forward + back.saturating_sub(BACK_AT_ONCE) < AT_ONCE,
        Direction::Back => forward + back < AT_ONCE + BACK_AT_ONCE,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(second: u64) -> Mono {
        Mono::default().after(Duration::from_secs(second))
    }

    const OURS: Owner = Owner::Machine;

    /// Slots that may be taken beside others.
    fn free(direction: Direction, others: &[(Owner, Slot)]) -> usize {
        let mut all = others.to_vec();
        while is_free(OURS, (direction, at(0)), &all) {
            all.push((OURS, Slot::Taken(direction)));
        }
        all.len() - others.len()
    }

    #[test]
    fn new_versions_take_no_turn_of_those_that_go_back() {
        assert_eq!(free(Direction::Forward, &[]), AT_ONCE);
        let forward = [(OURS, Slot::Taken(Direction::Forward)); AT_ONCE];
        assert_eq!(free(Direction::Back, &forward), BACK_AT_ONCE);
        assert_eq!(free(Direction::Back, &[]), AT_ONCE + BACK_AT_ONCE);
        let back = [(OURS, Slot::Taken(Direction::Back)); BACK_AT_ONCE];
        assert_eq!(free(Direction::Forward, &back), AT_ONCE);
    }

    #[test]
    fn the_control_plane_takes_no_turn_of_the_machine() {
        let taken = [(Owner::ControlPlane, Slot::Taken(Direction::Forward)); AT_ONCE];
        assert_eq!(free(Direction::Forward, &taken), AT_ONCE);
        let waits = [(
            Owner::ControlPlane,
            Slot::Awaited(Direction::Forward, at(0)),
        )];
        assert!(is_free(OURS, (Direction::Forward, at(1)), &waits));
    }

    #[test]
    fn the_longest_wait_ends_first_and_going_back_waits_for_no_new_version() {
        let is_next = |direction, second, waits| {
            let waits = [Slot::Awaited(waits, at(5)), Slot::Unasked].map(|slot| (OURS, slot));
            is_free(OURS, (direction, at(second)), &waits)
        };
        for direction in [Direction::Forward, Direction::Back] {
            assert!(is_next(direction, 4, direction));
            assert!(!is_next(direction, 6, direction));
        }
        assert!(!is_next(Direction::Forward, 6, Direction::Back));
        assert!(is_next(Direction::Back, 6, Direction::Forward));
    }
}
