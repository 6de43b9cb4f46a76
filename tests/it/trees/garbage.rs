//! Captured trees with nonsense in their files: whatever stands there, nothing panics and what
//! comes of it is bounded.

use std::collections::BTreeMap;

use pipeops_agent::{
    core::rates::{Reading, Space, points},
    host::sample,
};
use proptest::prelude::*;

use super::{lay_out, machines};

/// More than any machine has: 64 disks, interfaces and sensors, 32 file systems.
const POINTS_MAX: usize = 2000;

/// What becomes of a file.
#[derive(Clone, Debug)]
enum Harm {
    Cut(usize),
    Flip(usize, u8),
    /// Every number is this one.
    Numbers(&'static str),
    /// The whole file, so many times.
    Repeat(usize),
    Replace(String),
}

fn harm() -> impl Strategy<Value = Harm> {
    let numbers = [
        "0",
        "-1",
        "18446744073709551615",
        "99999999999999999999999999",
        "1.5",
        "nan",
        "",
    ];
    prop_oneof![
        any::<usize>().prop_map(Harm::Cut),
        (any::<usize>(), 0..128_u8).prop_map(|(at, byte)| Harm::Flip(at, byte)),
        prop::sample::select(numbers.to_vec()).prop_map(Harm::Numbers),
        (2..200_usize).prop_map(Harm::Repeat),
        "\\PC{0,200}".prop_map(Harm::Replace),
    ]
}

fn harmed(content: &str, harm: &Harm) -> String {
    match harm {
        Harm::Cut(at) => content.chars().take(at % (content.len() + 1)).collect(),
        Harm::Flip(at, byte) => {
            let mut signs: Vec<char> = content.chars().collect();
            if let Some(count) = signs.len().checked_sub(1) {
                signs[at % (count + 1)] = char::from(*byte);
            }
            signs.into_iter().collect()
        }
        Harm::Numbers(number) => {
            let parts = content.split(|sign: char| sign.is_ascii_digit());
            let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
            parts.join(number)
        }
        Harm::Repeat(times) => content.repeat(*times),
        Harm::Replace(text) => text.clone(),
    }
}

fn read(files: &BTreeMap<String, String>) -> Reading {
    let root = tempfile::tempdir().unwrap();
    lay_out(files, root.path());
    let full = Space {
        size: u64::MAX,
        free: u64::MAX,
        available: u64::MAX,
        inodes: u64::MAX,
        inodes_free: u64::MAX,
    };
    sample::read_below(root.path(), &|_| Some(full))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn harm_in_any_file_of_any_machine_is_bounded(
        index in 0..8_usize,
        harms in prop::collection::vec(harm(), 1..20),
        pick in any::<usize>(),
    ) {
        let machine = &machines()[index];
        let whole = read(&machine.first);
        let mut files = machine.first.clone();
        let paths: Vec<_> = files.keys().cloned().collect();
        for (n, harm) in harms.iter().enumerate() {
            let path = &paths[(pick / 7).wrapping_add(n * 5) % paths.len()];
            let content = harmed(&files[path], harm);
            files.insert(path.clone(), content);
        }
        let mut broken = read(&files);
        broken.at.mono = whole.at.mono.after(std::time::Duration::from_secs(15));
        broken.awake = whole.awake + std::time::Duration::from_secs(15);
        broken.boot_id.clone_from(&whole.boot_id);
        for (earlier, later) in [(&whole, &broken), (&broken, &whole)] {
            prop_assert!(points(Some(earlier), later).len() <= POINTS_MAX);
            prop_assert!(points(None, later).len() <= POINTS_MAX);
        }
    }
}

#[test]
fn a_tree_of_nothing_but_large_and_binary_files_is_bounded() {
    for content in [
        "9".repeat(600_000),
        "a\n".repeat(300_000),
        "\0\u{1}\u{ff}é ".repeat(1000),
    ] {
        for machine in machines() {
            let harmed = machine
                .first
                .keys()
                .map(|path| (path.clone(), content.clone()));
            let reading = read(&harmed.collect());
            assert!(
                points(None, &reading).len() <= POINTS_MAX,
                "{}",
                machine.name
            );
            assert!(
                reading.unread.contains_key("processors"),
                "{}",
                machine.name
            );
        }
    }
}
