//! `kubectl cp`: tar through exec, in both directions.

use std::{
    fs::File,
    io::{Read, Write},
    path::{Path, PathBuf},
};

use super::{
    bench::{Bench, Form},
    exec::pattern,
};

/// A folder with a folder in it, an empty file, and one file of this size.
fn tree(bench: &Bench, bytes: usize) -> PathBuf {
    let tree = bench.agent.folder().join("tree");
    std::fs::create_dir_all(tree.join("deep/er")).unwrap();
    for (name, data) in [
        ("empty", Vec::new()),
        ("deep/small", b"small\n".to_vec()),
        ("deep/er/large", pattern(bytes)),
    ] {
        let path = tree.join(name);
        let mut options = File::options();
        options.create(true).truncate(true).write(true);
        options.open(path).unwrap().write_all(&data).unwrap();
    }
    tree
}

fn same(one: &Path, other: &Path) {
    for name in ["empty", "deep/small", "deep/er/large"] {
        let read = |folder: &Path| {
            let mut data = Vec::new();
            let mut file = File::open(folder.join(name)).unwrap();
            file.read_to_end(&mut data).unwrap();
            data
        };
        assert!(read(one) == read(other), "{name}");
    }
}

#[test]
fn cp_carries_a_tree_both_ways() {
    let Some(mut bench) = Bench::calm() else {
        return;
    };
    bench.in_both_forms(|bench, form| {
        // What comes faster than tar reads it has nowhere to wait in messages.
        let bytes = match form {
            Form::Streams => 20_000_000,
            Form::Json => 100_000,
        };
        let there = tree(bench, bytes);
        let back = bench.agent.folder().join(format!("back-{form:?}"));
        let (from, to) = (there.display().to_string(), back.display().to_string());
        // Not from the root: tar's word about that would be taken for the archive where both
        // outputs are one.
        let remote = format!("fixtures/shell:tmp/{form:?}");
        bench.text(&["cp", &from, &remote]);
        bench.text(&["cp", &remote, &to]);
        same(&there, &back);
        let folder = format!("/tmp/{form:?}");
        let cleanup = ["exec", "-n", "fixtures", "shell", "--", "rm", "-r", &folder];
        bench.text(&cleanup);
    });
}
