//! Images of apps in a real containerd, pinned there by the root helper: of what runs and of what
//! an app goes back to, and no longer once the app is gone.

use std::{
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use super::{
    Bench, SOON,
    digests::{Registry, version_at},
};
use crate::{
    agent::{command, copy_program, is_root_or_skip, put, until_every},
    cluster::variable,
};

const LOOK: Duration = Duration::from_millis(300);
/// Not that of another test: both may run at once.
const ADDRESS: &str = "127.0.0.1:5051";

/// The root helper of a machine whose k3s is the cluster; it ends when this is dropped.
struct Helper(Child);

impl Drop for Helper {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// containerd's client beside the containerd of the cluster.
fn ctr() -> PathBuf {
    let mounts = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let inside = mounts(&variable("INIT_PID"));
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let exe = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let program = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        let is_it = program.trim() == "containerd" && mounts(&name) == inside;
        std::fs::read_link(entry.path().join("exe"))
            .ok()
            .filter(|_| is_it)
    };
    let mut found = processes.filter_map(exe);
    found.next().unwrap().with_file_name("ctr")
}

fn executable(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    put(path, text);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

impl Helper {
    /// Starts it in a folder, on a tree with the notes of an installation of k3s.
    fn start(folder: &Path) -> Self {
        let at = |name: &str| folder.join(name).display().to_string();
        let client = format!(
            "#!/bin/sh\nshift\nexec nsenter --target {} --mount --net -- {} --address /run/k3s/containerd/containerd.sock \"$@\"\n",
            variable("INIT_PID"),
            ctr().display()
        );
        executable(&folder.join("tree/usr/sbin/k3s"), &client);
        for name in ["tree/run/k3s/containerd", "keeper"] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
        put(&folder.join("tree/run/k3s/containerd/containerd.sock"), "");
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(folder.join("keeper"), private).unwrap();
        let note = r#"{"how":"installed","data_dir":"/data","node":"bench","kept":[]}"#;
        put(&folder.join("keeper/k3s.managed"), note);
        let settings = format!(
            "[keeper]\nsocket = \"{}\"\nstate_dir = \"{}\"\nuser = \"nobody\"\n",
            at("keeper.sock"),
            at("keeper")
        );
        put(&folder.join("keeper.toml"), &settings);
        let program = folder.join("helper");
        copy_program(&program);
        let mut helper = command(&program);
        helper
            .args(["keeper", "--root", &at("tree"), "--config"])
            .arg(at("keeper.toml"))
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let helper = Self(helper.spawn().unwrap());
        until_every(LOOK, "the helper listens", SOON, || {
            UnixStream::connect(folder.join("keeper.sock")).ok()
        });
        helper
    }
}

/// Names of images in the cluster with this label.
fn labelled(label: &str) -> Vec<String> {
    let output = command("nsenter")
        .args(["--target", &variable("INIT_PID"), "--mount", "--net", "--"])
        .arg(ctr())
        .args(["--address", "/run/k3s/containerd/containerd.sock"])
        .args(["--namespace", "k8s.io", "images", "ls", "-q"])
        .arg(format!("labels.{label:?}==pinned"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let names = String::from_utf8(output.stdout).unwrap();
    names.lines().map(str::to_owned).collect()
}

fn until_pinned(digests: &[&String]) {
    let mut wanted: Vec<_> = digests
        .iter()
        .map(|digest| format!("{ADDRESS}/web@{digest}"))
        .collect();
    wanted.sort();
    let what = format!("these images are pinned: {wanted:?}");
    until_every(LOOK, &what, SOON, || {
        let mut ours = labelled("io.pipeops.pinned");
        ours.sort();
        let pinned = labelled("io.cri-containerd.pinned");
        (ours == wanted && wanted.iter().all(|name| pinned.contains(name))).then_some(())
    });
}

#[test]
fn images_of_what_runs_and_of_what_it_goes_back_to_are_pinned_on_the_node() {
    if !is_root_or_skip("the root helper runs as root") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("keeper.sock");
    let prepared = Bench::prepared(|agent| {
        agent
            .with("PIPEOPS_TEST_SOAK_MS", "300")
            .with("PIPEOPS_KEEPER_SOCKET", socket.display().to_string())
    });
    let Some(bench) = prepared else { return };
    let Some(registry) = Registry::start(bench.agent.folder(), ADDRESS) else {
        return;
    };
    let _helper = Helper::start(folder.path());
    bench.bind();
    let digests = ["1", "2", "3"].map(|label| {
        let digest = registry.push(label);
        let variable = format!(", env: [{{name: V, value: {label:?}}}]");
        let (code, said) = bench.apply(
            "web",
            &version_at(ADDRESS, ", imagePullPolicy: Always", &variable),
        );
        assert_eq!(code, 0, "{said}");
        bench.change_is("web", "done");
        digest
    });
    // The first one is two good versions back.
    until_pinned(&[&digests[1], &digests[2]]);
    let kept = |revision: usize| bench.history("web")[revision]["images"][0]["kept"].clone();
    assert_eq!([0, 1, 2].map(kept), [false, true, true]);
    let (_, said) = bench.apps(&["show", "web"]);
    let line = format!(
        "{ADDRESS}/web:v1 was {}, which stays on this node\n",
        digests[2]
    );
    assert!(said.contains(&line), "{said}");
    let (code, said) = bench.apps(&["remove", "web"]);
    assert_eq!(code, 0, "{said}");
    until_pinned(&[]);
}
