//! Apps that come from a Git repository: the adapter against a real server, and the whole way to
//! the cluster.

use pipeops_agent::{
    core::apps::repository::{Cause, Failure, Repository},
    host::git::{Content, FETCHED_BYTES_MAX, Git, GitOptions},
};

use std::{fmt::Write as _, path::Path, time::Duration};

use serde_json::Value;

use super::{
    Bench, SOON, deployment,
    forge::{CREDENTIALS, Forge, Mood},
    holds,
};
use crate::agent::{Agent, put, until_every};

const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";

/// A server, and the adapter beside it.
struct Pair {
    forge: Forge,
    folder: tempfile::TempDir,
    bytes_max: u64,
}

impl Pair {
    fn new() -> Self {
        Self {
            forge: Forge::start(),
            folder: tempfile::tempdir().unwrap(),
            bytes_max: FETCHED_BYTES_MAX,
        }
    }

    fn git(&self) -> Git {
        let ca_file = self.folder.path().join("ca.pem");
        put(&ca_file, &self.forge.ca_pem());
        Git::new(GitOptions {
            scratch: self.folder.path().join("git"),
            known_hosts: self.folder.path().join("known_hosts"),
            ca_file: Some(ca_file),
            bytes_max: self.bytes_max,
            ..GitOptions::default()
        })
    }

    fn repository(&self, reference: &str, path: &str) -> Repository {
        let repository = Repository {
            url: self.forge.url(),
            reference: reference.to_owned(),
            path: path.to_owned(),
            credentials: String::new(),
        };
        repository.checked().unwrap()
    }

    fn read(&self, of: &Repository) -> Result<Content, Failure> {
        let git = self.git();
        let content = git.tip(of).and_then(|tip| git.manifests(of, &tip));
        let left = std::fs::read_dir(self.folder.path().join("git"));
        assert_eq!(left.map_or(0, Iterator::count), 0, "nothing is kept");
        content
    }

    fn refused(&self, reference: &str, path: &str) -> Failure {
        self.read(&self.repository(reference, path)).unwrap_err()
    }
}

#[test]
fn manifests_of_a_branch_a_tag_and_a_commit_are_read() {
    let pair = Pair::new();
    let forge = &pair.forge;
    let first = forge.commit(&[("deploy/b.yaml", MAP), ("deploy/README.md", "no")]);
    forge.here(&["tag", "--annotate", "v1", "--message", "first"]);
    let second = forge.commit(&[
        ("deploy/a.yml", "a: 1\n"),
        ("deploy/sub/c.yaml", "c: 1\n"),
        ("deploy/.gitlab-ci.yml", "stages: [x]\n"),
    ]);
    let read = |reference: &str, path: &str| pair.read(&pair.repository(reference, path)).unwrap();
    let whole = Content {
        commit: second,
        manifests: format!("--- # file a.yml\na: 1\n--- # file b.yaml\n{MAP}"),
    };
    assert_eq!(read("", "deploy/"), whole);
    assert_eq!(read("main", "/deploy"), whole);
    assert_eq!(read("refs/heads/main", "deploy"), whole);
    let old = Content {
        commit: first.clone(),
        manifests: MAP.to_owned(),
    };
    assert_eq!(read("v1", "deploy/b.yaml"), old);
    assert_eq!(read(&first, "deploy"), old);
    // A fixed one has the name that each poll compares, whatever it is resolved to.
    let tag = forge.here(&["rev-parse", "v1"]).trim().to_owned();
    assert_ne!(tag, first);
    for fixed in [first.to_uppercase(), tag] {
        let of = pair.repository(&fixed, "deploy");
        let tip = pair.git().tip(&of).unwrap().commit;
        assert_eq!(
            pair.read(&of).unwrap(),
            Content {
                commit: tip,
                ..old.clone()
            }
        );
    }
    // A history that was written anew is what it is now.
    forge.here(&["reset", "--quiet", "--hard", &first]);
    assert_eq!(read("main", "deploy"), old);
    // A branch and a tag of one name are not guessed at.
    forge.here(&["branch", "v1"]);
    let failure = pair.refused("v1", "deploy");
    assert_eq!(failure.cause, Cause::Reference);
    assert!(
        failure.error.fix.unwrap().contains("refs/tags/v1"),
        "both are named"
    );
}

#[test]
fn what_leads_out_of_the_repository_is_not_followed() {
    let pair = Pair::new();
    let forge = &pair.forge;
    forge.commit(&[("deploy/a.yaml", MAP), ("other/x", "y")]);
    let link = |target: &str, name: &str| {
        std::os::unix::fs::symlink(target, forge.folder().join(name)).unwrap();
    };
    link("/etc", "etc");
    std::fs::create_dir(forge.folder().join("links")).unwrap();
    link("/etc/passwd", "links/a.yaml");
    // A hook and a filter of the repository never run here.
    forge.commit(&[(".gitattributes", "*.yaml filter=lfs\n")]);
    let sub = forge.folder().join("other").display().to_string();
    forge.git(&["init", "--quiet", &sub]);
    forge.git(&[
        "-C",
        &sub,
        "commit",
        "--quiet",
        "--allow-empty",
        "--message",
        "x",
    ]);
    forge.here(&["submodule", "--quiet", "add", "./other", "sub"]);
    forge.commit(&[]);
    for (path, cause, word) in [
        ("etc", Cause::Link, "etc is a symbolic link"),
        ("etc/ssl", Cause::Link, "etc is a symbolic link"),
        ("links", Cause::Link, "a.yaml is a symbolic link"),
        ("sub", Cause::Link, "sub is a submodule"),
        ("absent/x", Cause::Path, "there is no absent/x in commit"),
        (
            "deploy/a.yaml/x",
            Cause::Path,
            "there is no deploy/a.yaml/x",
        ),
        ("", Cause::Path, "has 0 files of manifests"),
    ] {
        let failure = pair.refused("main", path);
        assert_eq!(failure.cause, cause, "{}", failure.error);
        assert!(failure.error.sentence().contains(word), "{}", failure.error);
        assert!(failure.error.fix.is_some(), "{}", failure.error);
    }
    assert!(pair.read(&pair.repository("main", "deploy")).is_ok());
}

#[test]
fn a_server_that_refuses_is_told_apart_from_one_that_is_away() {
    let pair = Pair::new();
    let forge = &pair.forge;
    forge.commit(&[("a.yaml", MAP)]);
    let failed = |cause: Cause, word: &str| {
        let failure = pair.refused("main", "");
        assert_eq!(failure.cause, cause, "{}", failure.error);
        assert!(failure.error.sentence().contains(word), "{}", failure.error);
    };
    assert_eq!(pair.refused("absent", "").cause, Cause::Reference);
    assert_eq!(pair.refused(&"1".repeat(40), "").cause, Cause::Reference);
    forge.is(Mood::MOVED);
    failed(Cause::Moved, "names another address");
    forge.is(Mood::AWAY);
    failed(Cause::Unreachable, "is not reached");
    forge.is(Mood::CLOSED);
    failed(Cause::Access, "asks for credentials, and none are named");
    // The file is read each time; nobody else may read it.
    let file = pair.folder.path().join("credentials");
    put(&file, "deploy:wrong\n");
    let of = Repository {
        credentials: file.display().to_string(),
        ..pair.repository("main", "")
    };
    let failure = pair.read(&of).unwrap_err();
    assert_eq!(failure.cause, Cause::Access, "{}", failure.error);
    assert!(
        !failure.error.to_string().contains("wrong"),
        "{}",
        failure.error
    );
    put(&file, &format!("{CREDENTIALS}\n"));
    assert!(pair.read(&of).is_ok());
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&file, everybody).unwrap();
    let failure = pair.read(&of).unwrap_err();
    assert_eq!(failure.cause, Cause::File, "{}", failure.error);
    forge.is(Mood::OPEN);
    let missing = Repository {
        url: forge.url().replace("/web/", "/absent/"),
        ..pair.repository("main", "")
    };
    assert_eq!(pair.read(&missing).unwrap_err().cause, Cause::Missing);
    // Without its authority the server is a stranger.
    put(
        &pair.folder.path().join("empty.pem"),
        &Forge::start().ca_pem(),
    );
    let git = Git::new(GitOptions {
        scratch: pair.folder.path().join("git"),
        ca_file: Some(pair.folder.path().join("empty.pem")),
        bytes_max: FETCHED_BYTES_MAX,
        ..GitOptions::default()
    });
    let failure = git.tip(&pair.repository("main", "")).unwrap_err();
    assert_eq!(failure.cause, Cause::Certificate, "{}", failure.error);
}

#[test]
fn a_repository_that_is_too_large_is_left_before_it_is_here() {
    let mut pair = Pair::new();
    pair.bytes_max = 1 << 20;
    let bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
        .take(8 << 20)
        .collect();
    let hex = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &bytes);
    pair.forge.commit(&[("a.yaml", MAP), ("large.bin", &hex)]);
    let failure = pair.refused("main", "");
    assert_eq!(failure.cause, Cause::TooLarge, "{}", failure.error);
    // A file of manifests has its own limit.
    pair.bytes_max = FETCHED_BYTES_MAX;
    std::fs::rename(
        pair.forge.folder().join("large.bin"),
        pair.forge.folder().join("large.yaml"),
    )
    .unwrap();
    pair.forge.commit(&[]);
    let failure = pair.refused("main", "");
    assert_eq!(failure.cause, Cause::TooLarge, "{}", failure.error);
}

/// Two files of which one is the other and a bit: a pack of some hundred kilobytes, from which git
/// makes both in memory.
#[test]
fn a_small_pack_that_becomes_large_is_refused_before_it_takes_memory() {
    const MEMORY_BYTES_MAX: u64 = 40_000_000;
    let pair = Pair::new();
    let forge = &pair.forge;
    let large = "line\n".repeat(9_000_000);
    let larger = format!("first\n{large}");
    let commit = forge.commit(&[("a.yaml", MAP), ("one", &large), ("two", &larger)]);
    let packed = ["-c", "core.compression=9", "repack", "-q", "-a", "-d", "-F"];
    forge.here(&packed);
    let pack = bytes_below(&forge.folder().join(".git/objects/pack"));
    assert!(pack < 1_000_000, "{pack} bytes of the pack");
    let of = pair.repository(&commit, "");
    let scratch = pair.folder.path().join("git");
    let (refused, _, memory) = watched(pair.git(), of, &scratch);
    let failure = refused.unwrap_err();
    assert_eq!(failure.cause, Cause::TooLarge, "{}", failure.error);
    let fix = failure.error.fix.unwrap();
    assert!(fix.contains("a repository of their own"), "{fix}");
    assert!(memory < MEMORY_BYTES_MAX, "{memory} bytes of memory");
}

/// What is not seen of a folder would be deleted as if it had been removed.
#[test]
fn a_folder_with_more_names_than_are_read_is_refused() {
    let pair = Pair::new();
    let forge = &pair.forge;
    forge.commit(&[("b.yaml", MAP), ("z.yaml", MAP)]);
    let blob = forge.here(&["hash-object", "-w", "b.yaml"]);
    let mut lines = String::new();
    for number in 0..16_000 {
        writeln!(lines, "100644 blob {blob}\tm-image-layer-{number:05}.dat").unwrap();
    }
    for name in ["b.yaml", "z.yaml"] {
        writeln!(lines, "100644 blob {blob}\t{name}").unwrap();
    }
    let listed = forge.folder().join(".git/listed");
    put(&listed, &lines);
    let script = format!("alias.tree=!git mktree < {}", listed.display());
    let tree = forge.here(&["-c", &script, "tree"]);
    let commit = forge.here(&["commit-tree", &tree, "-m", "many"]);
    forge.here(&["reset", "--quiet", "--soft", &commit]);
    let failure = pair.refused("main", "");
    assert_eq!(failure.cause, Cause::TooLarge, "{}", failure.error);
    assert!(failure.error.fix.unwrap().contains("--path"));
    // One that is named is found.
    let named = pair.read(&pair.repository("main", "z.yaml")).unwrap();
    assert_eq!(named.manifests, MAP);
}

#[test]
fn a_repository_with_sha256_is_read() {
    let pair = Pair::new();
    let forge = &pair.forge;
    std::fs::remove_dir_all(forge.folder()).unwrap();
    let format = "--object-format=sha256";
    forge.git(&["init", "--quiet", format, "--initial-branch=main", "web"]);
    let commit = forge.commit(&[("my dir/a.yaml", MAP)]);
    assert_eq!(commit.len(), 64);
    for reference in ["", "main", &commit] {
        let of = pair.repository(reference, "my dir");
        assert_eq!(pair.read(&of).unwrap().manifests, MAP);
    }
}

#[test]
fn a_default_branch_that_is_not_there_is_named_as_the_reason() {
    let pair = Pair::new();
    let forge = &pair.forge;
    forge.commit(&[("a.yaml", MAP)]);
    forge.here(&["symbolic-ref", "HEAD", "refs/heads/absent"]);
    let failure = pair.refused("", "");
    assert_eq!(failure.cause, Cause::Reference, "{}", failure.error);
    let sentence = failure.error.sentence();
    let why = "its default branch has no commit";
    assert!(sentence.contains(why), "{sentence}");
}

/// The most that git takes while a repository is read: bytes of its folder, and of the memory of
/// one of its programs.
fn watched(git: Git, of: Repository, scratch: &Path) -> (Result<Content, Failure>, u64, u64) {
    let (mut disk, mut memory) = (0, 0);
    std::thread::scope(|scope| {
        let reads = scope.spawn(move || git.tip(&of).and_then(|tip| git.manifests(&of, &tip)));
        until_every(Duration::from_millis(5), "git ends", SOON, || {
            disk = disk.max(bytes_below(scratch));
            memory = memory.max(memory_within(scratch));
            reads.is_finished().then_some(())
        });
        (reads.join().unwrap(), disk, memory)
    })
}

fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        found => found.map_or(0, |found| found.len()),
    };
    entries.map(bytes).sum()
}

/// The largest of the programs of git that work in a folder, at its peak. One that was just forked
/// still has the memory and the name of the test.
fn memory_within(folder: &Path) -> u64 {
    let programs = std::fs::read_dir("/proc").unwrap().flatten();
    let works_there = |entry: &std::fs::DirEntry| {
        let at = std::fs::read_link(entry.path().join("cwd"));
        let name = std::fs::read_to_string(entry.path().join("comm"));
        at.is_ok_and(|at| at.starts_with(folder)) && name.is_ok_and(|name| name.starts_with("git"))
    };
    let peak = |entry: std::fs::DirEntry| {
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let peaks = programs.filter(works_there).filter_map(peak);
    peaks.max().unwrap_or(0) * 1024
}

/// Its size is that of the commit that is deployed: what came before is not fetched, and what is
/// beside the manifests counts.
#[test]
fn a_repository_of_100_mb_is_deployed_or_left_without_taking_much() {
    const FILES: usize = 100;
    const FILE_BYTES: usize = 1_000_000;
    const MEMORY_BYTES_MAX: u64 = 40_000_000;
    let pair = Pair::new();
    let forge = &pair.forge;
    // The server does not look for differences between random bytes.
    for setting in ["pack.window", "core.compression"] {
        forge.here(&["config", setting, "0"]);
    }
    forge.commit(&[("deploy/a.yaml", MAP)]);
    let folder = forge.folder().join("large");
    std::fs::create_dir(&folder).unwrap();
    for number in 0..FILES {
        let mut bytes = vec![0; FILE_BYTES];
        fastrand::Rng::new().fill(&mut bytes);
        let file = folder.join(number.to_string());
        pipeops_agent::files::replace(&file, &bytes, 0o644).unwrap();
    }
    let large = forge.commit(&[]);
    let repository = bytes_below(&forge.folder().join(".git"));
    assert!(repository >= 100_000_000, "it has {repository} bytes");
    let scratch = pair.folder.path().join("git");
    let read = |reference: &str| {
        let of = pair.repository(reference, "deploy");
        let (read, disk, memory) = watched(pair.git(), of, &scratch);
        println!("figure: {disk} bytes of the disk, {memory} bytes of memory");
        assert!(memory < MEMORY_BYTES_MAX, "{memory} bytes of memory");
        (read, disk)
    };
    let (refused, disk) = read(&large);
    let failure = refused.unwrap_err();
    assert_eq!(failure.cause, Cause::TooLarge, "{}", failure.error);
    let sentence = failure.error.sentence();
    assert!(
        sentence.contains("its commit takes more than 67.1 MB"),
        "{sentence}"
    );
    let fix = failure.error.fix.unwrap();
    assert!(fix.contains("a repository of their own"), "{fix}");
    // What came until it was looked at again is more than the limit.
    assert!(disk < 95_000_000, "{disk} bytes of the disk");
    assert_eq!(bytes_below(&scratch), 0, "nothing is kept");
    // The same repository, once the files are gone from its tip.
    forge.here(&["rm", "--quiet", "-r", "large"]);
    forge.commit(&[]);
    let (content, disk) = read("main");
    assert!(content.unwrap().manifests.contains(MAP));
    assert!(disk < 1_000_000, "{disk} bytes of the disk");
    assert_eq!(bytes_below(&scratch), 0, "nothing is kept");
}

pub(super) fn map(value: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: page}}\ndata: {{text: {value}}}\n")
}

/// A cluster and a server that asks for credentials.
struct Whole {
    bench: Bench,
    forge: Forge,
}

impl Whole {
    fn new() -> Option<Self> {
        Self::prepared(|agent| agent)
    }

    /// With an agent that is prepared before it starts.
    fn prepared(prepare: impl FnOnce(Agent) -> Agent) -> Option<Self> {
        let forge = Forge::start();
        forge.is(Mood::CLOSED);
        forge.commit(&[
            ("deploy/web.yaml", &deployment("web", "")),
            ("deploy/page.yaml", &map("one")),
        ]);
        let bench = Bench::prepared(|agent| {
            forge.is_trusted_by(&agent);
            put(&agent.folder().join("credentials"), CREDENTIALS);
            prepare(agent.with("PIPEOPS_APPS_INTERVAL", "30s"))
        })?;
        bench.bind();
        Some(Self { bench, forge })
    }

    fn deploy(&self) -> (i32, String) {
        let file = self.bench.agent.folder().join("credentials");
        let url = self.forge.url();
        let words = [
            "deploy", "web", "--git", &url, "--ref", "main", "--path", "deploy/",
        ];
        let more = [
            "--credentials",
            file.to_str().unwrap(),
            "--namespace",
            &self.bench.namespace,
        ];
        self.bench.apps(&[&words[..], &more].concat())
    }

    fn page(&self) -> String {
        self.bench.get("configmap/page", "{.data.text}")
    }

    fn until_page(&self, text: &str) {
        let what = format!("the page is {text}");
        until_every(Duration::from_millis(500), &what, SOON, || {
            (self.page() == text).then_some(())
        });
    }

    fn pull(&self, code: i32, word: &str) {
        let (ended, said) = self.bench.apps(&["pull", "web"]);
        assert!(ended == code && said.contains(word), "{ended}: {said}");
    }

    fn source(&self) -> Value {
        self.bench.why("web").1["source"].clone()
    }
}

/// A person's settings lead everywhere else, and a template brings hooks into each new repository.
#[test]
fn settings_and_hooks_of_this_machine_have_no_effect() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).display().to_string();
    std::fs::create_dir_all(home.path().join("template/hooks")).unwrap();
    for name in ["reference-transaction", "post-checkout", "post-merge"] {
        let hook = home.path().join("template/hooks").join(name);
        put(&hook, &format!("#!/bin/sh\ntouch {}\n", at("ran")));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&hook, mode).unwrap();
    }
    let settings = format!(
        "[url \"https://elsewhere.invalid/\"]\n  insteadOf = https://\n[init]\n  templateDir = {}\n",
        at("template")
    );
    put(&home.path().join(".gitconfig"), &settings);
    let prepared = Whole::prepared(|agent| {
        agent
            .with("HOME", at(""))
            .with("GIT_CONFIG_GLOBAL", at(".gitconfig"))
            .with("GIT_TEMPLATE_DIR", at("template"))
    });
    let Some(whole) = prepared else { return };
    let (code, said) = whole.deploy();
    assert_eq!(code, 0, "{said}");
    whole.bench.until_verdict("web", "soaking");
    whole.until_page("one");
    assert!(!home.path().join("ran").exists(), "a hook ran");
}

#[test]
fn an_app_follows_its_repository_and_outlives_what_is_wrong_there() {
    let Some(whole) = Whole::new() else { return };
    let Whole { bench, forge } = &whole;
    let (code, said) = whole.deploy();
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("web", "soaking");
    whole.until_page("one");
    let shown = bench.apps(&["show", "web"]).1;
    assert!(
        shown.contains(&format!("source: {}, main at ", forge.url())),
        "{shown}"
    );
    whole.pull(0, "is up to date");
    // One source: by hand nothing is deployed over it.
    let (code, said) = bench.apply("web", &map("by hand"));
    assert!(code == 2 && said.contains("--git none"), "{said}");
    // A new commit, and a history that was written anew.
    let first = forge.here(&["rev-parse", "HEAD"]);
    forge.commit(&[("deploy/page.yaml", &map("two"))]);
    whole.pull(0, "is being deployed");
    whole.until_page("two");
    forge.here(&["reset", "--quiet", "--hard", &first]);
    forge.commit(&[("deploy/page.yaml", &map("three"))]);
    bench.until_verdict("web", "soaking");
    whole.pull(0, "is being deployed");
    whole.until_page("three");
    bench.until_verdict("web", "soaking");
    // What cannot be read, and what is empty, changes nothing.
    forge.commit(&[("deploy/page.yaml", "a: [")]);
    whole.pull(2, "cannot be read");
    forge.here(&["rm", "--quiet", "-r", "deploy"]);
    forge.commit(&[]);
    whole.pull(2, "there is no deploy");
    assert_eq!(whole.source()["failure"]["cause"], "source.path-missing");
    assert!(bench.objects("deployments").contains("deployment.apps/web"));
    assert_eq!(whole.page(), "three");
    bench.agent.until_condition("apps.source", SOON);
    // With the server away the app is here.
    forge.is(Mood::AWAY);
    whole.pull(2, "is not reached");
    let (code, said) = bench.apps(&["restart", "web"]);
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("web", "soaking");
    // Nobody asks for it: the next commit comes by itself, with a new try after the failure.
    forge.is(Mood::CLOSED);
    forge.commit(&[
        ("deploy/web.yaml", &deployment("web", "")),
        ("deploy/page.yaml", &map("four")),
    ]);
    whole.until_page("four");
    assert_eq!(whole.source()["failure"], Value::Null);
    let history = bench.apps(&["history", "web"]).1;
    assert!(history.contains("git main at "), "{history}");
    let (_, password) = CREDENTIALS.split_once(':').unwrap();
    assert!(!bench.agent.log().contains(password));
    assert_eq!(bench.apps(&["deploy", "web", "--git", "none"]).0, 0);
    assert_eq!(whole.source(), Value::Null);
    std::fs::remove_file(bench.agent.folder().join("credentials")).unwrap();
    assert_eq!(holds(bench.agent.folder(), password), Vec::<String>::new());
}
