//! Apps in a folder of root's: deployed as they change, and left alone where the folder is empty,
//! broken or not root's.

use std::{
    fs::{self, OpenOptions, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::unistd::geteuid;
use serde_json::Value;

use super::{Bench, SOON, deployment};
use crate::agent::{Agent, clock, put, until_every};

const LOOK: Duration = Duration::from_millis(300);

struct Whole {
    bench: Bench,
    folder: PathBuf,
}

impl Whole {
    fn new() -> Option<Self> {
        Self::prepared(|agent| agent)
    }

    fn prepared(prepare: impl FnOnce(Agent) -> Agent) -> Option<Self> {
        if !geteuid().is_root() {
            return None;
        }
        let bench = Bench::prepared(|agent| {
            let folder = agent.folder().join("apps");
            fs::create_dir_all(folder.join("web")).unwrap();
            mode(&folder, 0o755);
            mode(&folder.join("web"), 0o755);
            prepare(agent.with("PIPEOPS_APPS_FOLDER", folder.display().to_string()))
        })?;
        bench.bind();
        let folder = bench.agent.folder().join("apps");
        Some(Self { bench, folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn map(&self, name: &str, text: &str) -> String {
        let namespace = &self.bench.namespace;
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: {namespace}}}\ndata: {{text: {text}}}\n"
        )
    }

    fn write(&self, name: &str, text: &str) {
        put(
            &self.path(&format!("web/{name}.yaml")),
            &self.map(name, text),
        );
    }

    fn text(&self) -> String {
        self.bench.get("configmap/page", "{.data.text}")
    }

    fn until_text(&self, text: &str) {
        until(&format!("the page is {text}"), || self.text() == text);
    }

    fn until_failure(&self, cause: &str) {
        let failure = || self.bench.why("web").1["source"]["failure"].clone();
        until(cause, || failure()["cause"] == cause);
        self.bench.agent.until_condition("apps.source", SOON);
    }

    fn says(&self, words: &[&str], code: i32, wanted: &str) {
        let (ended, said) = self.bench.apps(words);
        assert!(
            ended == code && said.contains(wanted),
            "{words:?} ended with {ended}: {said}"
        );
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    until_every(LOOK, what, SOON, || is_so().then_some(()));
}

fn grow(path: &Path, bytes: u64) {
    put(path, "");
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(bytes).unwrap();
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_folder_of_root_is_deployed_as_it_changes_and_an_empty_one_deletes_nothing() {
    let Some(mut whole) = Whole::new() else {
        return;
    };
    let web = whole.path("web");
    let namespace = whole.bench.namespace.clone();
    let server = deployment("web", "");
    let server = server.replace(
        "{name: web}\nspec",
        &format!("{{name: web, namespace: {namespace}}}\nspec"),
    );
    put(&web.join("server.yaml"), &server);
    whole.write("more", "x");
    whole.write("page", "one");
    // Beside it what nobody should follow or read to its end.
    grow(&whole.path("large.yaml"), 100 << 20);
    symlink("/etc/hostname", whole.path("link.yaml")).unwrap();
    until("the app is deployed", || {
        whole.bench.apps(&["show", "web"]).0 == 0
    });
    whole.bench.until_verdict("web", "soaking");
    assert_eq!(whole.text(), "one");
    whole.says(&["show", "web"], 0, &format!("source: {}\n", web.display()));
    whole.says(&["list"], 0, "folder");
    whole.says(&["history", "web"], 0, "folder");
    whole.says(&["pull", "web"], 0, "web is up to date: revision 1\n");
    whole.says(&["pull", "large"], 2, "it is longer than 1048576 bytes");
    whole.says(&["pull", "link"], 2, "a symbolic link leads to");
    whole.says(&["show", "large"], 2, "there is no app large");
    one_source(&whole);
    half_written_files_wait(&whole);
    bad_content_changes_nothing(&whole);
    // The box is off while somebody works on the folder.
    whole.bench.agent.kill();
    whole.write("page", "three");
    whole.bench.agent.start();
    whole.bench.agent.until_linked();
    whole.until_text("three");
    // The folder is gone, as where a disk is not mounted.
    let away = whole.bench.agent.folder().join("away");
    fs::rename(&web, &away).unwrap();
    whole.until_failure("source.path-missing");
    let objects = whole.bench.objects("configmaps,deployments");
    for name in ["configmap/page", "configmap/more", "deployment.apps/web"] {
        assert!(objects.contains(name), "{objects}");
    }
    whole.says(&["remove", "web"], 0, "web is removed");
    assert!(
        !whole
            .bench
            .objects("configmaps,deployments")
            .contains("web")
    );
}

fn one_source(whole: &Whole) {
    let (code, said) = whole.bench.apply("web", &whole.map("page", "hand"));
    assert!(code == 2 && said.contains("change it there"), "{said}");
    let place = whole.path("web").display().to_string();
    let first = format!("move {place} to another place first");
    whole.says(&["remove", "web"], 2, &first);
    whole.says(&["deploy", "web", "--git", "none"], 2, &first);
    // One that was deployed by hand stays that until somebody says otherwise.
    let (code, said) = whole.bench.apply("shop", &whole.map("shop", "hand"));
    assert_eq!(code, 0, "{said}");
    put(&whole.path("shop.yaml"), &whole.map("shop", "folder"));
    whole.bench.agent.until_condition("apps.source", SOON);
    let text = || whole.bench.get("configmap/shop", "{.data.text}");
    assert_eq!(text(), "hand");
    whole.says(&["pull", "shop"], 0, "revision 2 of shop is being deployed");
    until("it comes from there", || text() == "folder");
}

#[test]
fn what_a_removed_file_deployed_goes_once_the_rest_is_good_and_most_of_an_app_when_asked() {
    let soak = ("PIPEOPS_TEST_SOAK_MS", "300");
    let Some(whole) = Whole::prepared(|agent| agent.with(soak.0, soak.1)) else {
        return;
    };
    let maps = |names: &str| {
        let all = whole.bench.objects("configmaps");
        let ours = ["one", "two", "three", "four"];
        let ours = ours
            .iter()
            .filter(|name| all.contains(&format!("configmap/{name}")));
        let found: Vec<_> = ours.copied().collect();
        found.join(" ") == names
    };
    let goes = |name: &str| fs::remove_file(whole.path(&format!("web/{name}.yaml"))).unwrap();
    let revisions = || {
        let (_, said) = whole.bench.apps(&["history", "web", "--json"]);
        let revisions: Value = serde_json::from_str(&said).unwrap_or_default();
        revisions.as_array().map_or(0, Vec::len)
    };
    for name in ["one", "two", "three", "four"] {
        whole.write(name, "x");
    }
    // What holds data stays also where its version is rolled back.
    let claim = format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: data, namespace: {}}}\n\
         spec: {{accessModes: [ReadWriteOnce], storageClassName: none, volumeName: none, resources: {{requests: {{storage: 1Mi}}}}}}\n",
        whole.bench.namespace
    );
    until("all of it is there", || maps("one two three four"));
    whole.bench.until_verdict("web", "good");
    goes("one");
    until("it is gone", || maps("two three four"));
    whole.bench.until_verdict("web", "good");
    assert_eq!(revisions(), 2);
    // Two of three: nothing goes, for as long as nobody says so.
    goes("two");
    goes("three");
    whole.until_failure("source.refused");
    let refused = "more than half of the app would be deleted: ConfigMap three, ConfigMap two";
    whole.says(&["pull", "web"], 2, refused);
    whole.says(
        &["pull", "web"],
        2,
        "sudo pipeops-agent apps pull web --prune-most",
    );
    assert!(maps("two three four"));
    assert_eq!(revisions(), 2);
    whole.says(&["pull", "web", "--prune-most"], 0, "revision 3");
    until("they are gone", || maps("four"));
    whole.bench.until_verdict("web", "good");
    let failure = || whole.bench.why("web").1["source"]["failure"].clone();
    until("nothing is refused any more", || failure().is_null());
    // A version that does not work deletes nothing: what it no longer has comes back with the last
    // good one.
    whole.write("five", "x");
    put(&whole.path("web/claim.yaml"), &claim);
    let server = deployment("web", ", command: [/app/missing]");
    let here = format!("{{name: web, namespace: {}}}\nspec", whole.bench.namespace);
    put(
        &whole.path("web/server.yaml"),
        &server.replace("{name: web}\nspec", &here),
    );
    goes("four");
    until("it is rolled back", || {
        whole.bench.why("web").1["change"]["state"] == "undone"
    });
    assert!(maps("four"));
    assert!(!whole.bench.objects("deployments").contains("web"));
    assert!(whole.bench.objects("pvc").contains("data"), "a claim stays");
}

/// What changes from look to look is not read; what stays is.
fn half_written_files_wait(whole: &Whole) {
    let start = clock();
    while !waits_while_written(whole) {
        assert!(clock() - start < SOON, "this machine stalls for seconds");
        // What nobody wrote for that long may have been read.
        whole.write("page", "one");
        whole.until_text("one");
    }
    whole.write("page", "two");
    whole.until_text("two");
}

/// Writes a file for 8 s, which must not be read meanwhile. Returns `false` where this machine
/// stalled for so long that nobody wrote it.
fn waits_while_written(whole: &Whole) -> bool {
    let start = clock();
    let mut last = start;
    while clock() - start < Duration::from_secs(8) {
        let now = clock();
        whole.write("page", &format!("half-{}", (now - start).as_millis()));
        let is_stalled = now - last > Duration::from_secs(4);
        last = now;
        let text = whole.text();
        if is_stalled || clock() - last > Duration::from_secs(4) {
            return false;
        }
        assert_eq!(text, "one");
    }
    true
}

fn bad_content_changes_nothing(whole: &Whole) {
    let web = whole.path("web");
    put(&web.join("page.yaml"), "a: [");
    whole.says(&["pull", "web"], 2, "cannot be read");
    whole.until_failure("source.refused");
    // Others could have written it.
    whole.write("page", "others");
    mode(&web, 0o777);
    whole.says(&["pull", "web"], 2, "chmod go-w");
    mode(&web, 0o755);
    // Most of it is gone, and then everything.
    for name in ["page", "more"] {
        fs::remove_file(web.join(format!("{name}.yaml"))).unwrap();
    }
    whole.says(
        &["pull", "web"],
        2,
        "more than half of the app would be deleted",
    );
    let server = fs::read_to_string(web.join("server.yaml")).unwrap();
    put(&web.join("server.yaml"), "");
    whole.says(&["pull", "web"], 2, "is not deployed");
    fs::remove_file(web.join("server.yaml")).unwrap();
    whole.says(&["pull", "web"], 2, "it has 0 files of manifests");
    whole.until_failure("source.file");
    assert_eq!(whole.text(), "two");
    let objects = whole.bench.objects("configmaps,deployments");
    assert!(objects.contains("configmap/more") && objects.contains("deployment.apps/web"));
    put(&web.join("server.yaml"), &server);
    whole.write("more", "x");
    whole.write("page", "two");
    whole.says(&["pull", "web"], 0, "revision");
    let failure = &whole.bench.why("web").1["source"]["failure"];
    assert_eq!(failure, &Value::Null);
}

#[test]
fn a_version_that_did_not_work_is_tried_again_once_its_manifests_change() {
    let Some(mut whole) = Whole::new() else {
        return;
    };
    whole.write("page", "one");
    until("the app is deployed", || {
        whole.bench.apps(&["show", "web"]).0 == 0
    });
    whole.bench.until_verdict("web", "soaking");
    whole.bench.agent.kill();
    whole.bench.change_record("web", |record| {
        record["revisions"][0]["verdict"] = "bad".into();
        record["change"]["stage"] = "over".into();
    });
    let taken = |whole: &Whole| whole.bench.record("web")["source"]["taken"].clone();
    let before = taken(&whole);
    // The same with other words beside it.
    put(
        &whole.path("web/page.yaml"),
        &format!("# not what it does\n{}", whole.map("page", "one")),
    );
    whole.bench.agent.start();
    whole.bench.agent.until_linked();
    until("it is noted", || taken(&whole) != before);
    let revisions = whole.bench.record("web")["revisions"].clone();
    assert_eq!(revisions.as_array().map(Vec::len), Some(1), "{revisions:#}");
    whole.write("page", "two");
    whole.until_text("two");
}
