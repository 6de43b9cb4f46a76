//! The targets of the Makefile: each one fails when any program that it runs fails, and when a test
//! that it exists for was skipped.
//!
//! The scripts are the real ones, in a checkout of their own. The programs that they run (cargo,
//! node, kubectl, the test cluster) are stand-ins that write down how they were called, and of
//! which one at a time fails.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Output,
};

use crate::agent::{command, has};

/// Scripts and lists that are taken as they are.
const TAKEN: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    "Makefile",
    ".ci/run",
    "cross/build",
    "cross/compiler",
    "cross/rust-version",
    "cross/stamp",
    "docs/metrics.md",
    "packaging/dist",
    "packaging/reproduce",
    "src/core/mod.rs",
    "src/error.rs",
    "tests/all",
    "tests/bench/goals.txt",
    "tests/bench/run",
    "tests/browser/run",
    "tests/check",
    "tests/fuzz/run",
    "tests/fuzz/words.dict",
    "tests/hostile/paths.txt",
    "tests/lib.sh",
    "tests/mutants",
    "tests/mutants.txt",
    "tests/packages/all",
    "tests/packages/arm64",
    "tests/pages",
    "tests/run",
    "tests/soak",
    "tests/torture",
    "tests/corpus",
];

/// Programs that a stand-in takes the place of.
const PROGRAMS: &[&str] = &[
    "cross/tools",
    "home/.cargo/bin/c++",
    "home/.cargo/bin/cargo",
    "home/.cargo/bin/cargo-deny",
    "home/.cargo/bin/cargo-mutants",
    "home/.cargo/bin/chromium",
    "home/.cargo/bin/kubectl",
    "home/.cargo/bin/node",
    "home/.cargo/bin/readelf",
    "home/.cargo/bin/rustc",
    "home/.cargo/bin/shellcheck",
    "packaging/build",
    "packaging/sbom",
    "packaging/sign",
    "target/debug/pipeops-agent",
    "target/debug/plane",
    "tests/cluster/cluster",
    "packaging/repo",
    "tests/packages/emulate",
    "tests/packages/install",
    "tests/packages/managed",
    "tests/packages/openrc",
    "tests/packages/release",
    "tests/packages/repo",
    "tests/packages/update",
    "tests/k3s/run",
    "tests/k3s/join",
    "tests/k3s/servers",
    "tests/packages/run",
    "tests/packages/table",
    "tests/setup",
];

/// Writes its call down, fails where it is told to, and else does what the scripts wait for.
const STAND_IN: &str = r#"#!/bin/sh
# The id of a process differs from run to run.
call=$(printf '%s %s' "${0##*/}" "$*" | sed 's/--owner [0-9]*/--owner PID/; s/tmp[.][0-9A-Za-z]*/tmp.ANY/g')
case "$call" in
*' status' | 'cluster down '*) ;;
*) printf '%s\n' "$call" >>"$CALLS" ;;
esac
[ "$call" != "$FAILS" ] || exit "$FAILS_WITH"
case "$call" in
'setup tools') echo "$HOME/tools" ;;
'node -p '*) echo 18 ;;
'node --test '*) printf '%s' "$BROWSER_PRINTS" ;;
'pipeops-agent version --json') date --utc --date="@${SOURCE_DATE_EPOCH:-0}" +%Y-%m-%d ;;
'rustc -vV') echo 'host: stand-in' ;;
'cargo test '*' --list '*) [ "$LISTS" = nothing ] || echo 'a::b: test' ;;
'cargo test '*) printf '%s' "$TESTS_PRINT" ;;
'cargo build --profile fuzz '*)
    mkdir -p target/fuzz/build/stand-in/fuzz
    cp "$0" target/fuzz/build/stand-in/fuzz/one ;;
'cargo build --release '*)
    mkdir -p target/release
    cp "$0" target/release/pipeops-agent ;;
'cargo zigbuild '*)
    folder=target/${call##* }/release
    mkdir -p "$folder"
    cp "$0" "$folder/pipeops-agent"
    truncate -s "$BINARY_BYTES" "$folder/pipeops-agent" ;;
'cargo mutants '*)
    mkdir -p target/mutants/mutants.out
    printf '%s' "$SURVIVES" >target/mutants/mutants.out/missed.txt
    : >target/mutants/mutants.out/caught.txt ;;
'cluster build' | 'cluster clients') echo "built $HOME/.cargo/bin" ;;
'cluster up '*)
    mkdir -p "$2"
    printf 'KUBECTL=%s\n' "$HOME/.cargo/bin/kubectl" >"$2/env"
    echo "ready kubeconfig=$2/kubeconfig.yaml" ;;
'plane '*)
    mkdir -p target/run/plane
    for file in api_url kubeconfig.yaml; do echo here >"target/run/plane/$file"; done
    exec sleep 60 ;;
'pipeops-agent status')
    touch asked
    printf 'link connected\ncluster reachable\n' ;;
'pipeops-agent run')
    # Until somebody has seen that it is linked.
    until [ -e asked ]; do sleep 0.05; done ;;
esac
exit 0
"#;

/// How a target is run, and which calls may fail without harm.
struct Target {
    name: &'static str,
    words: &'static [&'static str],
    /// A call that the target has to make, so that the list of calls is not empty by mistake.
    runs: &'static str,
    /// The beginning of calls whose failure leads to another way, not to a false verdict.
    may_fail: &'static [&'static str],
}

const TARGETS: &[Target] = &[
    Target {
        name: "run",
        words: &[],
        runs: "pipeops-agent run",
        may_fail: &[],
    },
    Target {
        name: "run",
        words: &["CLUSTER=bench"],
        runs: "kubectl --kubeconfig",
        may_fail: &[],
    },
    Target {
        name: "test",
        words: &["CI=true"],
        runs: "cargo test --locked --workspace --no-fail-fast",
        may_fail: &[],
    },
    Target {
        name: "test-packages",
        words: &[],
        runs: "run trixie",
        may_fail: &[],
    },
    Target {
        name: "test-arm64",
        words: &[],
        runs: "emulate tests/packages/run bookworm arm64 virtual",
        may_fail: &[],
    },
    Target {
        name: "test-k3s",
        words: &[],
        runs: "run --data-dir /mnt/disk/k3s",
        may_fail: &[],
    },
    Target {
        name: "pages",
        words: &[],
        runs: "node --test",
        may_fail: &[],
    },
    Target {
        name: "torture",
        words: &[],
        runs: "cargo test --locked --test it -- --nocapture power::",
        may_fail: &[],
    },
    Target {
        name: "soak",
        words: &[],
        runs: "cargo test --locked --test it -- --nocapture --test-threads 2 kubectl::held",
        may_fail: &[],
    },
    Target {
        name: "corpus",
        words: &[],
        runs: "cargo test --locked --test it -- --nocapture corpus::",
        may_fail: &[],
    },
    Target {
        name: "fuzz",
        words: &[],
        runs: "one target/fuzz/one/learnt",
        may_fail: &[],
    },
    Target {
        name: "mutants",
        words: &[],
        runs: "cargo mutants",
        may_fail: &[],
    },
    Target {
        name: "check",
        words: &[],
        runs: "cargo deny --offline",
        may_fail: &[],
    },
    Target {
        name: "bench",
        words: &["BENCH=--gate"],
        runs: "cargo run --quiet --locked --profile bench-tools --package bench -- --gate",
        may_fail: &[],
    },
    Target {
        name: "dist",
        words: &[],
        runs: "pipeops-agent version",
        may_fail: &[],
    },
    Target {
        name: "repo",
        words: &[],
        runs: "repo ",
        may_fail: &[],
    },
    Target {
        name: "reproduce",
        words: &[],
        runs: "cargo zigbuild",
        may_fail: &[],
    },
    Target {
        name: "clean",
        words: &[],
        runs: "cargo clean",
        may_fail: &[],
    },
];

/// A checkout with the real scripts and no real program.
struct Checkout {
    folder: tempfile::TempDir,
}

/// What a run is told beside its target.
#[derive(Clone, Copy)]
struct World<'a> {
    /// The call that fails, and its exit code.
    fails: (&'a str, u8),
    tests_print: &'a str,
    browser_prints: &'a str,
    lists: &'a str,
    binary_bytes: &'a str,
    survives: &'a str,
}

const FINE: World<'_> = World {
    fails: ("", 1),
    // With the last line of the simulated years, which make torture looks for.
    tests_print: "year 5: over\ntest result: ok. 1 passed\n",
    browser_prints: "",
    lists: "one",
    binary_bytes: "100000",
    survives: "",
};

impl Checkout {
    fn new() -> Self {
        let checkout = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        for name in TAKEN {
            let place = checkout.place(name);
            fs::copy(source.join(name), &place).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        for name in PROGRAMS {
            write(&checkout.place(name), STAND_IN);
        }
        for name in [
            "tests/fuzz/targets/one.rs",
            "tests/browser/node_modules/playwright-core/here",
        ] {
            write(&checkout.place(name), "");
        }
        checkout
    }

    fn place(&self, name: &str) -> PathBuf {
        let place = self.folder.path().join(name);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        place
    }

    /// Runs a program of the checkout; its output, and the calls that it made.
    fn run(&self, words: &[&str], world: World<'_>) -> (Output, Vec<String>) {
        let calls = self.place("calls");
        for left in ["calls", "asked"] {
            fs::remove_file(self.place(left)).ok();
        }
        for folder in ["release", "cross", "dist", "fuzz", "run"] {
            let folder = format!("target/{folder}");
            fs::remove_dir_all(self.place(&folder)).ok();
        }
        let output = command(words[0])
            .args(&words[1..])
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", self.place("home"))
            .env("PIPEOPS_TEST_CHROMIUM", "/stand-in/chromium")
            .env("CALLS", &calls)
            .env("FAILS", world.fails.0)
            .env("FAILS_WITH", world.fails.1.to_string())
            .env("TESTS_PRINT", world.tests_print)
            .env("BROWSER_PRINTS", world.browser_prints)
            .env("LISTS", world.lists)
            .env("BINARY_BYTES", world.binary_bytes)
            .env("SURVIVES", world.survives)
            .output()
            .unwrap();
        let calls = fs::read_to_string(&calls).unwrap_or_default();
        (output, calls.lines().map(str::to_owned).collect())
    }

    fn make(&self, words: &[&str], world: World<'_>) -> (Output, Vec<String>) {
        self.run(&[&["make"], words].concat(), world)
    }

    /// Runs a target that has to pass.
    #[track_caller]
    fn passes(&self, words: &[&str], world: World<'_>) -> (String, Vec<String>) {
        let (output, calls) = self.make(words, world);
        assert!(
            output.status.success(),
            "{words:?}: {}",
            told(&output, &calls)
        );
        (told(&output, &calls), calls)
    }

    /// Runs a target that has to fail, with a word that says why.
    #[track_caller]
    fn fails(&self, words: &[&str], world: World<'_>, why: &str) {
        let (output, calls) = self.make(words, world);
        let told = told(&output, &calls);
        assert!(!output.status.success(), "{words:?} passed: {told}");
        assert!(told.contains(why), "{words:?}: no {why:?} in {told}");
    }
}

fn told(output: &Output, calls: &[String]) -> String {
    format!(
        "{}\n{}{}\ncalls:\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        calls.join("\n")
    )
}

#[expect(
    clippy::disallowed_methods,
    reason = "a file of a checkout that lives for a test"
)]
fn write(place: &Path, text: &str) {
    fs::write(place, text).unwrap();
    fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn every_target_fails_when_a_program_fails_that_it_runs() {
    if !has("make") {
        return;
    }
    let checkout = Checkout::new();
    for target in TARGETS {
        let words = [&[target.name], target.words].concat();
        let (_, calls) = checkout.passes(&words, FINE);
        assert!(
            calls.iter().any(|call| call.starts_with(target.runs)),
            "{words:?} does not run {:?}: {calls:#?}",
            target.runs
        );
        let must_pass =
            |call: &&String| !target.may_fail.iter().any(|begin| call.starts_with(begin));
        for call in calls.iter().filter(must_pass) {
            let world = World {
                fails: (call, 1),
                ..FINE
            };
            let (output, calls) = checkout.make(&words, world);
            assert!(
                !output.status.success(),
                "{words:?} passes though {call:?} failed: {}",
                told(&output, &calls)
            );
        }
    }
}

#[test]
fn no_target_of_the_makefile_is_left_out_of_these_tests() {
    let makefile = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Makefile"));
    let makefile = makefile.unwrap();
    let phony = makefile
        .lines()
        .find_map(|line| line.strip_prefix(".PHONY: "));
    let targets: Vec<&str> = phony.unwrap().split(' ').collect();
    let rules = makefile
        .lines()
        .filter_map(|line| line.strip_suffix(':'))
        .filter(|name| !name.starts_with(['\t', '.', '#']));
    let rules: Vec<&str> = rules.collect();
    assert_eq!(rules, targets, "every rule is in .PHONY, in the same order");
    for target in targets.iter().filter(|name| **name != "help") {
        assert!(
            TARGETS.iter().any(|known| known.name == *target),
            "make {target} is not tried by tests/it/scripts.rs"
        );
    }
}

#[test]
fn a_skipped_test_is_listed_and_is_a_failure_where_all_have_to_run() {
    if !has("make") {
        return;
    }
    let checkout = Checkout::new();
    let skip = "skipped: there is no such machine\n";
    let skipped = [
        World {
            tests_print: skip,
            ..FINE
        },
        World {
            browser_prints: skip,
            ..FINE
        },
    ];
    for world in skipped {
        let (told, _) = checkout.passes(&["test"], world);
        assert!(told.contains("Not run on this machine:\nskipped: there is no"));
        for word in ["CI=true", "PIPEOPS_TEST_REQUIRE=1"] {
            checkout.fails(&["test", word], world, "A skipped test is a failure here");
        }
    }
    // The browser is not there: its script says so with an exit code of its own.
    fs::remove_dir_all(checkout.place("tests/browser/node_modules/playwright-core")).unwrap();
    let (told, _) = checkout.passes(&["test"], FINE);
    assert!(told.contains("skipped: the page in a browser: playwright-core"));
    checkout.fails(&["test", "CI=true"], FINE, "A skipped test is a failure");
    checkout.fails(&["pages"], FINE, "playwright-core is not installed");
}

#[test]
fn a_target_that_exists_for_a_test_fails_when_that_test_did_not_run() {
    if !has("make") {
        return;
    }
    let checkout = Checkout::new();
    for line in ["skipped: no root\n", "impossible here: no loop devices\n"] {
        let world = World {
            tests_print: line,
            browser_prints: line,
            ..FINE
        };
        for target in ["torture", "soak", "corpus", "pages"] {
            checkout.fails(&[target], world, "so this is a failure");
        }
    }
    // A renamed test leaves its filter behind.
    let world = World {
        lists: "nothing",
        ..FINE
    };
    for target in ["torture", "soak", "corpus"] {
        checkout.fails(&[target], world, "no test matches");
    }
    // A root that is not to be had (75): the script says so.
    for (target, part) in [
        ("test-packages", "repo "),
        ("test-arm64", "emulate tests/packages/run bookworm arm64"),
        (
            "test-arm64",
            "emulate tests/packages/run bookworm arm64 virtual",
        ),
    ] {
        let world = World {
            fails: (part, 75),
            ..FINE
        };
        checkout.fails(&[target], world, "");
    }
    // The cluster is not to be had (75): the script says so.
    let world = World {
        fails: ("cluster clients", 75),
        ..FINE
    };
    checkout.fails(&["soak"], world, "");
}

#[test]
fn a_release_that_is_too_large_fails_and_is_measured_all_the_same() {
    if !has("make") {
        return;
    }
    let checkout = Checkout::new();
    let large = World {
        binary_bytes: "8000001",
        ..FINE
    };
    checkout.fails(&["dist"], large, "1 bytes too large");
    let (_, calls) = checkout.passes(&["bench", "BENCH=--only size"], large);
    assert!(calls.last().unwrap().ends_with("-- --only size"));
    let limit = World {
        binary_bytes: "8000000",
        ..FINE
    };
    checkout.passes(&["dist"], limit);
}

#[test]
fn a_release_that_depends_on_its_folder_fails() {
    if !has("make") {
        return;
    }
    let checkout = Checkout::new();
    checkout.passes(&["reproduce"], FINE);
    let asks = "#!/bin/sh\necho \"sbom\" >>\"$CALLS\"\npwd\n";
    write(&checkout.place("packaging/sbom"), asks);
    checkout.fails(
        &["reproduce"],
        FINE,
        "2 files of the release depend on where",
    );
}

#[test]
fn a_mutant_that_survives_needs_a_reason() {
    if !has("make") {
        return;
    }
    let checkout = Checkout::new();
    let survives = World {
        survives: "src/a.rs:3:4: replace f -> bool with true\nsrc/a.rs:9:1: replace < with <= in f\n",
        ..FINE
    };
    write(
        &checkout.place("tests/mutants.txt"),
        "# a comment\nsrc/a.rs: replace f -> bool with true | f has no effect here\n",
    );
    let why = "says why that is right:\nsrc/a.rs: replace < with <= in f\n";
    checkout.fails(&["mutants"], survives, why);
    let known = World {
        survives: "src/a.rs:70:4: replace f -> bool with true\n",
        ..FINE
    };
    checkout.passes(&["mutants"], known);
    fs::remove_file(checkout.place("home/.cargo/bin/cargo-mutants")).unwrap();
    checkout.fails(&["mutants"], FINE, "cargo install --locked cargo-mutants");
}

#[test]
fn the_last_line_of_the_build_server_is_its_verdict() {
    if !has("make") {
        return;
    }
    let checkout = Checkout::new();
    let last = |output: &Output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().last().unwrap_or_default().to_owned()
    };
    let (output, calls) = checkout.run(&[".ci/run"], FINE);
    assert_eq!(last(&output), "ci: passed", "{}", told(&output, &calls));
    assert!(output.status.success());
    assert!(calls.iter().any(|call| call.starts_with("cargo deny ")));
    for call in &calls {
        let world = World {
            fails: (call, 1),
            ..FINE
        };
        let (output, calls) = checkout.run(&[".ci/run"], world);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{call}: {}",
            told(&output, &calls)
        );
        assert!(last(&output).starts_with("ci: FAILED: make "), "{call}");
    }
    let world = World {
        tests_print: "skipped: no root\n",
        ..FINE
    };
    let (output, _) = checkout.run(&[".ci/run"], world);
    assert_eq!(last(&output), "ci: FAILED: make test");
    // Where cargo-deny cannot be had, everything else still counts.
    fs::remove_file(checkout.place("home/.cargo/bin/cargo-deny")).unwrap();
    let (output, calls) = checkout.run(&[".ci/run"], FINE);
    let told = told(&output, &calls);
    assert_eq!(last(&output), "ci: passed", "{told}");
    assert!(told.contains("impossible here: licences and bans"));
}

#[test]
fn the_bill_of_materials_has_the_libraries_that_no_crate_names() {
    if !has("python3") || !has("rustc") {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let zig = folder.path().join("zig");
    write(&zig, "#!/bin/sh\necho 0.99.1\n");
    let header = folder.path().join("lib/libc/musl/src/internal/version.h");
    fs::create_dir_all(header.parent().unwrap()).unwrap();
    write(&header, "#define VERSION \"9.8.7\"\n");
    let output = command("packaging/sbom")
        .args(["x86_64-unknown-linux-musl", "9.9.9"])
        .current_dir(source)
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .env("CARGO_ZIGBUILD_ZIG_PATH", &zig)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", told(&output, &[]));
    let bom: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(bom["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
    assert_eq!(bom["metadata"]["component"]["version"], "9.9.9");
    assert_eq!(
        bom["metadata"]["tools"]["components"][1]["version"],
        "0.99.1"
    );
    let components = bom["components"].as_array().unwrap();
    let version = |name: &str| {
        let named = components.iter().filter(|one| one["name"] == name);
        let versions: Vec<_> = named.map(|one| one["version"].as_str().unwrap()).collect();
        assert_eq!(versions.len(), 1, "{name}: {versions:?}");
        versions[0]
    };
    assert_eq!(version("sqlite"), rusqlite::version());
    assert_eq!(version("musl"), "9.8.7");
    let rustc = command("rustc").arg("--version").output().unwrap();
    let rustc = String::from_utf8(rustc.stdout).unwrap();
    assert!(rustc.starts_with(&format!("rustc {} ", version("rust-std"))));
    assert!(!version("rustls").is_empty() && !version("ring").is_empty());
    // Every part that something depends on is listed, and nothing of the tests.
    let refs: Vec<_> = components.iter().map(|one| &one["bom-ref"]).collect();
    for one in bom["dependencies"].as_array().unwrap() {
        for needed in one["dependsOn"].as_array().unwrap() {
            assert!(refs.contains(&needed), "{needed}");
        }
    }
    assert!(!components.iter().any(|one| one["name"] == "proptest"));
}
