//! Turns of the changes that are watched: a bound on what is watched at once, from which no app
//! suffers that goes back.

use crate::core::{apps::Owner, time::Mono};

/// Changes of one owner that are carried out at once. Each one watches eight or nine lists, with a
/// connection each, until its verdict. Each owner has turns of its own: a change may wait for ever,
/// and those of the control plane must not keep the owner of this machine from anything.
pub(super) const AT_ONCE: usize = 8;
/// Changes beyond them that are judged on the way back.
pub(super) const BACK_AT_ONCE: usize = 4;

/// Direction of a version.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Direction {
    /// It is new. It is written in its turn, because nobody would see that it is bad.
    Forward,
    /// It ran before. It is written at once, and judged in its turn.
    Back,
}

/// Turn of a change: the right to watch it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Turn {
    /// It has none and waits for none.
    Unasked,
    /// It waits for one since then.
    Awaited(Direction, Mono),
    /// It has one.
    Taken(Direction),
}

/// Returns whether a change of an owner that waits since then may take a turn, by those of the
/// other changes.
pub(super) fn is_free(
    owner: Owner,
    (direction, since): (Direction, Mono),
    others: &[(Owner, Turn)],
) -> bool {
    let (mut forward, mut back) = (0_usize, 0_usize);
    for (_, turn) in others.iter().filter(|(other, _)| *other == owner) {
        match turn {
            Turn::Taken(Direction::Forward) => forward += 1,
            Turn::Taken(Direction::Back) => back += 1,
            // Whoever goes back has turns of its own, and does not wait for a new version.
            Turn::Awaited(Direction::Forward, _) if direction == Direction::Back => {}
            Turn::Awaited(_, earlier) if *earlier < since => return false,
            Turn::Unasked | Turn::Awaited(..) => {}
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

    /// Turns that may be taken beside others.
    fn free(direction: Direction, others: &[(Owner, Turn)]) -> usize {
        let mut all = others.to_vec();
        while is_free(OURS, (direction, at(0)), &all) {
            all.push((OURS, Turn::Taken(direction)));
        }
        all.len() - others.len()
    }

    #[test]
    fn new_versions_take_no_turn_of_those_that_go_back() {
        assert_eq!(free(Direction::Forward, &[]), AT_ONCE);
        let forward = [(OURS, Turn::Taken(Direction::Forward)); AT_ONCE];
        assert_eq!(free(Direction::Back, &forward), BACK_AT_ONCE);
        assert_eq!(free(Direction::Back, &[]), AT_ONCE + BACK_AT_ONCE);
        let back = [(OURS, Turn::Taken(Direction::Back)); BACK_AT_ONCE];
        assert_eq!(free(Direction::Forward, &back), AT_ONCE);
    }

    #[test]
    fn the_control_plane_takes_no_turn_of_the_machine() {
        let taken = [(Owner::ControlPlane, Turn::Taken(Direction::Forward)); AT_ONCE];
        assert_eq!(free(Direction::Forward, &taken), AT_ONCE);
        let waits = [(
            Owner::ControlPlane,
            Turn::Awaited(Direction::Forward, at(0)),
        )];
        assert!(is_free(OURS, (Direction::Forward, at(1)), &waits));
    }

    #[test]
    fn the_longest_wait_ends_first_and_going_back_waits_for_no_new_version() {
        let is_next = |direction, second, waits| {
            let waits = [Turn::Awaited(waits, at(5)), Turn::Unasked].map(|turn| (OURS, turn));
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
