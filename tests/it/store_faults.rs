//! The store on a disk that is full, read-only or failing, each for real: a small tmpfs in a mount
//! namespace of its own, and I/O errors that strace puts in the place of system calls.

use std::{fs::File, io::Write, path::Path};

use nix::mount::{MsFlags, mount};
use pipeops_agent::{
    core::journal::{Intent, Journal},
    store::{Failure, Handle, IDENTITY, Stored},
};
use smol::block_on;

use crate::store::{CHILD, again, at, can_trace, entry, identity, ids, open, said};

/// Runs the test again as root of a mount namespace. `None` in the child: go on. `Some` in the
/// parent: all is done.
fn in_own_mounts(test: &str) -> Option<()> {
    if std::env::var_os(CHILD).is_some() {
        return None;
    }
    if !crate::agent::is_root_or_skip("mounting a tmpfs takes root") {
        return Some(());
    }
    let directory = tempfile::tempdir().unwrap();
    let told = said(again(
        test,
        directory.path(),
        &["unshare", "--mount", "--propagation", "private"],
    ));
    assert!(told.contains("1 passed"), "{told}");
    Some(())
}

/// The child's directory, with a tmpfs on it.
fn tmpfs(options: &str) -> std::path::PathBuf {
    let path = std::path::PathBuf::from(std::env::var_os(CHILD).unwrap());
    mount(
        Some("tmpfs"),
        &path,
        Some("tmpfs"),
        MsFlags::empty(),
        Some(options),
    )
    .unwrap();
    path
}

fn remount(path: &Path, flags: MsFlags) {
    let flags = MsFlags::MS_REMOUNT | flags;
    mount(None::<&str>, path, None::<&str>, flags, None::<&str>).unwrap();
}

/// Takes all room that is left.
fn fill(path: &Path) {
    let mut file = File::options()
        .append(true)
        .create(true)
        .open(path)
        .unwrap();
    for length in [65_536, 4096] {
        while file.write_all(&vec![1; length]).is_ok() {}
    }
}

async fn begin(handle: &Handle, id: &str, bytes: usize) -> Result<(), Failure> {
    let intent = Intent {
        body: "x".repeat(bytes),
        ..Intent::default()
    };
    let lock = Journal::new().lock(id).unwrap();
    handle.begin_change(&lock, intent, at(1)).await.map(|_| ())
}

#[test]
fn on_a_full_disk_the_state_goes_on_from_the_reserve_and_recovers_by_itself() {
    const TEST: &str =
        "store_faults::on_a_full_disk_the_state_goes_on_from_the_reserve_and_recovers_by_itself";
    if in_own_mounts(TEST).is_some() {
        return;
    }
    let root = tmpfs("size=12m");
    let (directory, filler) = (root.join("state"), root.join("filler"));
    block_on(async {
        let (store, handle, loaded) = open(&directory).await;
        assert!(loaded.conditions.is_empty(), "{:?}", loaded.conditions);
        fill(&filler);
        // The reserve makes room for what matters.
        let kept = handle.keep_identity(identity(1), at(1)).await.unwrap();
        assert_eq!(kept, Stored::OnDisk);
        begin(&handle, "c-reserve", 1000).await.unwrap();
        let conditions = handle.tend(at(2)).await.unwrap();
        assert_eq!(ids(&conditions), ["store.full"]);
        assert!(conditions[0].fix.as_ref().unwrap().contains("df -h"));
        // Until that is used up too.
        let mut refused = None;
        for n in 0..40 {
            fill(&filler);
            refused = begin(&handle, &format!("c{n}"), 200_000).await.err();
            if refused.is_some() {
                break;
            }
        }
        let Some(Failure::Disk(error)) = refused else {
            panic!("{refused:?}")
        };
        assert!(error.sentence().contains("is full"), "{error}");
        handle
            .audit_begin(entry("PUT /while-full"), at(3))
            .await
            .unwrap();
        handle.keep_identity(identity(2), at(3)).await.unwrap();
        let conditions = handle.tend(at(3)).await.unwrap();
        assert!(ids(&conditions).contains(&"store.full"), "{conditions:?}");
        // Room again: everything that waited is written, and the reserve is taken again.
        std::fs::remove_file(&filler).unwrap();
        let conditions = handle.tend(at(4)).await.unwrap();
        assert!(conditions.is_empty(), "{conditions:?}");
        begin(&handle, "c-after", 200_000).await.unwrap();
        assert!(directory.join("reserve").exists());
        store.close().await.unwrap();
        let (store, handle, loaded) = open(&directory).await;
        assert_eq!(
            (loaded.database, loaded.file),
            (Some(identity(2)), Some(identity(2)))
        );
        let rows = handle.recent_audit(9).await.unwrap();
        assert_eq!(rows[0].entry.what(), "PUT /while-full");
        store.close().await.unwrap();
    });
}

#[test]
fn on_a_read_only_disk_the_agent_knows_who_it_is_and_writes_once_it_can() {
    const TEST: &str =
        "store_faults::on_a_read_only_disk_the_agent_knows_who_it_is_and_writes_once_it_can";
    if in_own_mounts(TEST).is_some() {
        return;
    }
    let root = tmpfs("size=12m");
    let directory = root.join("state");
    block_on(async {
        let (store, handle, _) = open(&directory).await;
        handle.keep_identity(identity(1), at(1)).await.unwrap();
        store.close().await.unwrap();

        remount(&root, MsFlags::MS_RDONLY);
        let (store, handle, loaded) = open(&directory).await;
        assert_eq!(loaded.file, Some(identity(1)));
        assert_eq!(ids(&loaded.conditions), ["store.unwritable"]);
        let kept = handle.keep_identity(identity(2), at(2)).await.unwrap();
        assert!(matches!(kept, Stored::InMemory(_)), "{kept:?}");
        handle
            .audit_begin(entry("PUT /while-read-only"), at(2))
            .await
            .unwrap();
        assert!(begin(&handle, "c1", 10).await.is_err());
        assert_eq!(
            ids(&handle.tend(at(3)).await.unwrap()),
            ["store.unwritable"]
        );

        remount(&root, MsFlags::empty());
        let conditions = handle.tend(at(4)).await.unwrap();
        assert!(conditions.is_empty(), "{conditions:?}");
        store.close().await.unwrap();
        let (store, handle, loaded) = open(&directory).await;
        assert_eq!(
            (loaded.database, loaded.file),
            (Some(identity(2)), Some(identity(2)))
        );
        assert_eq!(handle.recent_audit(9).await.unwrap().len(), 1);
        store.close().await.unwrap();
    });
}

/// What the child does while its system calls fail: it tells what was answered, and never falls
/// over.
fn work_on_a_failing_disk(directory: &Path) {
    block_on(async {
        let (store, handle, _) = open(directory).await;
        for n in 1..=4_u64 {
            if handle.keep_identity(identity(n), at(1)).await.unwrap() == Stored::OnDisk {
                println!("told kept {n}");
            }
            if begin(&handle, &format!("c{n}"), 100).await.is_ok() {
                println!("told began {n}");
            }
            handle
                .audit_begin(entry(&format!("PUT /{n}")), at(1))
                .await
                .unwrap();
            handle.tend(at(2)).await.unwrap();
        }
        let conditions = handle.tend(at(3)).await.unwrap();
        println!("told conditions {:?}", ids(&conditions));
        store.close().await.unwrap();
    });
}

/// The numbers behind a word in what the child told.
fn numbers(told: &str, word: &str) -> Vec<u64> {
    let parts = told
        .split("told ")
        .filter_map(|part| part.strip_prefix(word));
    parts
        .map(|rest| rest.split_whitespace().next().unwrap().parse().unwrap())
        .collect()
}

/// Once, at early and late calls; and from some call on for ever. Each thread counts its own calls.
const FAULTS: [&str; 17] = [
    "pwrite64:error=EIO:when=1",
    "pwrite64:error=EIO:when=9",
    "pwrite64:error=ENOSPC:when=14",
    "pwrite64:error=EIO:when=25+",
    "fsync:error=EIO:when=2",
    "fdatasync:error=EIO:when=3",
    "fdatasync:error=EIO:when=5+",
    "fdatasync:error=EIO:when=6",
    "fdatasync:error=ENOSPC:when=9",
    "fsync:error=EIO:when=3+",
    "rename:error=EIO:when=2",
    "rename:error=EROFS:when=1+",
    "openat:error=EIO:when=4",
    "openat:error=EIO:when=12",
    "openat:error=EMFILE:when=20",
    "ftruncate:error=EIO:when=1",
    "pread64:error=EIO:when=5",
];

#[test]
fn an_io_error_at_any_call_loses_nothing_that_was_answered() {
    const TEST: &str = "store_faults::an_io_error_at_any_call_loses_nothing_that_was_answered";
    if let Some(directory) = std::env::var_os(CHILD) {
        work_on_a_failing_disk(Path::new(&directory));
        return;
    }
    if !can_trace() {
        return;
    }
    let mut missed = Vec::new();
    for fault in FAULTS {
        let directory = tempfile::tempdir().unwrap();
        let trace = directory.path().join("trace");
        let state = directory.path().join("state");
        let inject = format!("inject={fault}");
        let before = [
            "strace",
            "-f",
            "-qq",
            "-o",
            trace.to_str().unwrap(),
            "-e",
            &inject,
        ];
        let told = said(again(TEST, &state, &before));
        if !std::fs::read_to_string(&trace)
            .unwrap()
            .contains("INJECTED")
        {
            missed.push(fault);
        }
        let (kept, began) = (numbers(&told, "kept "), numbers(&told, "began "));
        assert!(told.contains("told conditions"), "{fault}: {told}");
        if !fault.ends_with('+') {
            // One error: whoever comes after it is served again, and nothing is left of it.
            assert!(kept.contains(&4) && began.contains(&4), "{fault}: {told}");
            assert!(told.contains("told conditions []"), "{fault}: {told}");
        }
        check(&state, &told, fault);
    }
    assert!(missed.is_empty(), "never injected: {missed:?}");
}

/// Whatever the child was told is on disk, and the disk is well again.
fn check(state: &Path, told: &str, fault: &str) {
    let (kept, began) = (numbers(told, "kept "), numbers(told, "began "));
    block_on(async {
        let (store, handle, loaded) = open(state).await;
        let copies = [&loaded.database, &loaded.file].into_iter().flatten();
        let newest = copies.map(|copy| copy.generation).max();
        assert!(
            newest >= kept.iter().copied().max(),
            "{fault}: {newest:?} {told}"
        );
        let changes = handle.recent_changes(100).await.unwrap();
        for n in began {
            let id = format!("c{n}");
            assert!(
                changes.iter().any(|change| change.id == id),
                "{fault}: {id}"
            );
        }
        let conditions = handle.tend(at(9)).await.unwrap();
        assert!(conditions.is_empty(), "{fault}: {conditions:?}");
        assert!(state.join(IDENTITY).exists() || kept.is_empty(), "{fault}");
        store.close().await.unwrap();
    });
}
