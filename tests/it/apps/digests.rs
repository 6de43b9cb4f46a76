//! The way back by digest, with a real registry: what ran before runs again, although its tag was
//! moved meanwhile, and also while the registry is away.

use std::{
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use pipeops_agent::{core::format, files};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use super::{Bench, IMAGE, SOON, deployment};
use crate::{
    agent::{command, put, until_every},
    cluster::variable,
};

const LOOK: Duration = Duration::from_millis(300);
/// In the network of the cluster, where containerd asks it without TLS.
const ADDRESS: &str = "127.0.0.1:5050";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Debian's docker-registry; it ends when this is dropped.
pub(super) struct Registry {
    folder: PathBuf,
    address: &'static str,
    program: Child,
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.program.kill().ok();
        self.program.wait().ok();
    }
}

/// A program in the network of the cluster.
fn within(program: &str) -> std::process::Command {
    let mut inside = command("nsenter");
    inside.args(["--target", &variable("INIT_PID"), "--net", "--", program]);
    inside
}

fn curl(words: &[&str]) -> Option<String> {
    let output = within("curl")
        .args(["-sS", "--fail", "--max-time", "30"])
        .args(words)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    output.status.success().then_some(text)
}

impl Registry {
    pub(super) fn start(folder: &Path, address: &'static str) -> Option<Self> {
        if command("docker-registry")
            .arg("--version")
            .output()
            .is_err()
        {
            println!("skipped: docker-registry is not installed: tests/setup test installs it");
            return None;
        }
        let folder = folder.join("registry");
        std::fs::create_dir(&folder).unwrap();
        let settings = json!({"version": 0.1, "http": {"addr": address}, "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": folder.join("data")}}});
        let file = folder.join("config.yml");
        put(&file, &settings.to_string());
        let program = within("docker-registry")
            .arg("serve")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until_every(LOOK, "the registry answers", SOON, || {
            curl(&[&format!("http://{address}/v2/")])
        });
        Some(Self {
            folder,
            address,
            program,
        })
    }

    /// Uploads a blob, and returns its digest.
    fn blob(&self, content: &[u8]) -> String {
        let hash = format!("sha256:{}", format::hex(digest(&SHA256, content).as_ref()));
        let file = self.folder.join("blob");
        files::replace(&file, content, files::PRIVATE).unwrap();
        let file = format!("@{}", file.display());
        let uploads = format!("http://{}/v2/web/blobs/uploads/", self.address);
        let head = curl(&["-X", "POST", "-D", "-", "-o", "/dev/null", &uploads]).unwrap();
        let mut lines = head.lines();
        let location = lines
            .find_map(|line| line.strip_prefix("Location: "))
            .unwrap();
        let place = format!("{}&digest={hash}", location.trim());
        let kind = "Content-Type: application/octet-stream";
        curl(&["-X", "PUT", "-H", kind, "--data-binary", &file, &place]).unwrap();
        hash
    }

    /// Moves the tag `v1` to an image of the fixtures' program that differs by its label. Returns
    /// the digest.
    pub(super) fn push(&self, label: &str) -> String {
        let images = Path::new(&variable("KUBECTL")).with_file_name("images.tar");
        let read = |path: &str| {
            let output = command("tar").arg("-xOf").arg(&images).arg(path).output();
            let output = output.unwrap();
            assert!(output.status.success(), "{path} in {}", images.display());
            output.stdout
        };
        let blob = |digest: &Value| {
            let (_, hash) = digest.as_str().unwrap().split_once(':').unwrap();
            read(&format!("blobs/sha256/{hash}"))
        };
        let parsed = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        let index = parsed(&read("index.json"));
        let mut manifest = parsed(&blob(&index["manifests"][0]["digest"]));
        let mut config = parsed(&blob(&manifest["config"]["digest"]));
        config["config"]["Labels"] = json!({"version": label});
        let config = config.to_string();
        manifest["config"]["size"] = json!(config.len());
        manifest["config"]["digest"] = json!(self.blob(config.as_bytes()));
        self.blob(&blob(&manifest["layers"][0]["digest"]));
        let manifest = manifest.to_string();
        let kind = format!("Content-Type: {MANIFEST}");
        let place = format!("http://{}/v2/web/manifests/v1", self.address);
        curl(&["-X", "PUT", "-H", &kind, "--data-binary", &manifest, &place]).unwrap();
        format!(
            "sha256:{}",
            format::hex(digest(&SHA256, manifest.as_bytes()).as_ref())
        )
    }
}

impl Bench {
    pub(super) fn change_is(&self, app: &str, state: &str) -> Value {
        until_every(LOOK, &format!("the change is {state}"), SOON, || {
            let (_, why) = self.why(app);
            (why["change"]["state"] == state).then_some(why)
        })
    }

    pub(super) fn history(&self, app: &str) -> Value {
        let (code, said) = self.apps(&["history", app, "--json"]);
        assert_eq!(code, 0, "{said}");
        serde_json::from_str(&said).unwrap()
    }

    /// Digests that the containers of all Pods run under this name, once all are ready.
    fn until_run(&self, digest: &str, pods: usize) {
        let fields = "{range .items[*]}{range .status.containerStatuses[?(@.name==\"web\")]}{.ready} {.imageID}{end} \
            {.status.initContainerStatuses[0].imageID}{\"\\n\"}{end}";
        let wanted = format!("true {ADDRESS}/web@{digest} {ADDRESS}/web@{digest}");
        until_every(LOOK, &format!("{pods} Pods run {digest}"), SOON, || {
            let found = self.get("pods", fields);
            let lines: Vec<_> = found.lines().collect();
            (lines.len() == pods && lines.iter().all(|line| *line == wanted)).then_some(())
        });
    }
}

/// The app: an image of the registry, started first once more, and one that was imported.
fn version(policy: &str, more: &str) -> String {
    version_at(ADDRESS, policy, more)
}

/// The same, from the registry at this address.
pub(super) fn version_at(address: &str, policy: &str, more: &str) -> String {
    let image = format!("image: \"{address}/web:v1\"{policy}");
    let plain = format!("image: \"{IMAGE}\", imagePullPolicy: Never");
    deployment("web", more).replace(&plain, &image)
        + &format!(
            "      - {{name: side, {plain}, command: [sleep, \"3600\"]}}\n      initContainers:\n      - {{name: first, {image}, command: [sh, -c, \"true\"]}}\n"
        )
}

#[test]
fn what_ran_before_runs_again_although_its_tag_was_moved_and_the_registry_is_away() {
    let Some(bench) = Bench::prepared(|agent| agent.with("PIPEOPS_TEST_SOAK_MS", "300")) else {
        return;
    };
    let Some(registry) = Registry::start(bench.agent.folder(), ADDRESS) else {
        return;
    };
    bench.bind();
    let first = registry.push("first");
    let (code, said) = bench.apply("web", &version("", ""));
    assert_eq!(code, 0, "{said}");
    bench.change_is("web", "done");
    bench.until_run(&first, 1);
    let images = &bench.history("web")[0]["images"];
    let image = format!("{ADDRESS}/web:v1");
    assert_eq!(
        images[0],
        json!({"image": image, "digest": first, "why": null, "kept": false}),
        "{images:#}"
    );
    assert_eq!(images[1]["image"], IMAGE, "{images:#}");
    for words in [["history", "web"], ["show", "web"]] {
        let (_, said) = bench.apps(&words);
        assert!(
            said.contains(&format!("  {image} was {first}\n"))
                && said.contains(&format!(
                    "  {IMAGE} rolls back to whatever image has that tag then: it was imported"
                )),
            "{said}"
        );
        assert!(!said.contains("needs its registry"), "{said}");
    }

    // The tag moves, and the next version pulls what it leads to now.
    let second = registry.push("second");
    assert_ne!(first, second);
    let always = ", imagePullPolicy: Always";
    let bad = version(always, ", envFrom: [{configMapRef: {name: absent}}]");
    let (code, said) = bench.apply("web", &bad);
    assert_eq!(code, 0, "{said}");
    let why = bench.change_is("web", "undone");
    assert_eq!(
        (&why["cause"], &why["running"]["revision"]),
        (&json!("config.missing"), &json!(1)),
        "{why:#}"
    );
    bench.until_run(&first, 1);
    let pinned = format!("{image}@{first}");
    let named =
        "{.spec.template.spec.containers[0].image} {.spec.template.spec.initContainers[0].image}";
    assert_eq!(
        bench.get("deployment/web", named),
        format!("{pinned} {pinned}")
    );
    // Without the digest it would have been the other one, which the node has under that tag.
    let probe = format!("--image={image}");
    bench.kubectl(&["run", "probe", &probe, "--image-pull-policy=Never"]);
    until_every(LOOK, "the tag was moved on the node", SOON, || {
        let id = bench.get("pod/probe", "{.status.containerStatuses[0].imageID}");
        (id == format!("{ADDRESS}/web@{second}")).then_some(())
    });
    bench.kubectl(&["delete", "pod", "probe", "--now"]);

    it_starts_again_without_its_registry(&bench, registry, &first);
    it_is_nobodys_change(&bench, &pinned);
    the_words_of_the_manifests_count_again(&bench, &image, &pinned);
}

fn it_starts_again_without_its_registry(bench: &Bench, registry: Registry, first: &str) {
    drop(registry);
    let before = bench.objects("pods");
    bench.kubectl(&["delete", "pods", "--all"]);
    bench.until_run(first, 1);
    assert_ne!(bench.objects("pods"), before);
}

fn it_is_nobodys_change(bench: &Bench, pinned: &str) {
    let image = "{.spec.template.spec.containers[0].image}";
    let other =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "x"}]}}}});
    bench.kubectl(&["patch", "deployment", "web", "-p", &other.to_string()]);
    until_every(LOOK, "the image is put back", SOON, || {
        (bench.get("deployment/web", image) == pinned).then_some(())
    });
    let repaired = until_every(LOOK, "it is reported", SOON, || {
        let why = bench.why("web").1;
        let repaired = why["drift"]["repaired"].as_array().unwrap().clone();
        (!repaired.is_empty()).then_some(repaired)
    });
    assert_eq!(repaired.len(), 1, "{repaired:#?}");
    assert_eq!(
        repaired[0]["field"], "spec.template.spec.containers[0].image",
        "{repaired:#?}"
    );
    let (_, said) = bench.apps(&["history", "web"]);
    assert!(
        said.contains("  Deployment/web went back by digest, until the app is deployed again\n"),
        "{said}"
    );
    let file = bench.agent.folder().join("web.yaml");
    put(&file, &version("", ""));
    let file = file.display().to_string();
    let (code, said) = bench.apps(&["diff", "-f", &file, "--app", "web"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("(it went back by digest)"), "{said}");
}

fn the_words_of_the_manifests_count_again(bench: &Bench, image: &str, pinned: &str) {
    let named = "{.spec.template.spec.containers[0].image}";
    // Another number of Pods does not bring what was bad back.
    let (code, said) = bench.apps(&["scale", "web", "--to", "2"]);
    assert_eq!(code, 0, "{said}");
    bench.change_is("web", "done");
    assert_eq!(bench.get("deployment/web", named), pinned);
    assert_eq!(bench.history("web")[2]["pinned"], json!(["Deployment/web"]));
    let (code, said) = bench.apply("web", &version(", imagePullPolicy: Always", ""));
    assert_eq!(code, 0, "{said}");
    until_every(LOOK, "the words of the manifests are written", SOON, || {
        (bench.get("deployment/web", named) == image).then_some(())
    });
    let (_, why) = bench.why("web");
    assert_eq!(
        why["offline"],
        json!([{"image": image, "object": format!("Deployment {}/web", bench.namespace),
            "why": "it is pulled at each start (imagePullPolicy: Always)", "fix": "set imagePullPolicy: IfNotPresent"}]),
        "{why:#}"
    );
    let (_, said) = bench.apps(&["why", "web"]);
    assert!(
        said.contains(&format!("  needs its registry: {image} of Deployment ")),
        "{said}"
    );
}
