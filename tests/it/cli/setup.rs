//! Commands that set a machine up, change its token and take over from the other agent, against the
//! reference control plane and a real cluster; and the archive for whoever helps.

use std::{
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Output,
};

use plane::Plane;
use serde_json::json;

use super::{agent, code, json as answer, local::said, text};
use crate::cluster::{admin, calm, kubectl, leave};

/// A folder in which a machine keeps its settings, and the environment that leads to a control
/// plane.
struct Machine {
    folder: tempfile::TempDir,
    environment: Vec<(String, String)>,
}

impl Machine {
    fn new(plane: &Plane) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ca = folder.path().join("ca.pem");
        pipeops_agent::files::replace(&ca, plane.ca_pem().as_bytes(), 0o644).unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let environment = [
            ("PIPEOPS_TLS_CA_FILE", path("ca.pem")),
            ("PIPEOPS_STATE_DIR", path("state")),
            ("PIPEOPS_DASHBOARD_SOCKET", path("agent.sock")),
        ];
        let environment = environment
            .map(|(name, value)| (name.to_owned(), value))
            .to_vec();
        Self {
            folder,
            environment,
        }
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("etc").join(name)
    }

    fn write(&self, name: &str, content: &str, mode: u32) -> String {
        let path = self.folder.path().join(name);
        pipeops_agent::files::replace(&path, content.as_bytes(), mode).unwrap();
        path.display().to_string()
    }

    fn run(&self, words: &[&str]) -> Output {
        let config = self.path("config.toml").display().to_string();
        let words = [words, &["--config", &config]].concat();
        let environment = self.environment.iter();
        let environment = environment.map(|(name, value)| (name.as_str(), value.as_str()));
        agent(&words, &environment.collect::<Vec<_>>())
    }
}

fn plane() -> Plane {
    Plane::start(plane::Options::default()).unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_machine_is_set_up_once_the_control_plane_takes_its_token_and_taken_down_again() {
    let plane = plane();
    let machine = Machine::new(&plane);
    let wrong = machine.write("wrong", "clt_wrong\n", 0o600);
    let right = machine.write("right", &format!("{}\n", plane.token()), 0o600);
    let up = |token: &str| {
        let url = plane.api_url();
        machine.run(&[
            "up",
            "--token-file",
            token,
            "--cluster-name",
            "berlin-3",
            "--api-url",
            url,
            "--access",
            "read-only",
        ])
    };
    let output = up(&wrong);
    assert_eq!(code(&output), 2);
    let told = text(&output.stderr);
    assert!(
        told.contains("the control plane rejected this token, so nothing was changed"),
        "{told}"
    );
    assert!(!machine.path("config.toml").exists() && !machine.path("token").exists());

    let output = up(&right);
    let told = text(&output.stdout);
    assert_eq!(code(&output), 0, "{told}{}", text(&output.stderr));
    let config = machine.path("config.toml");
    assert!(
        told.contains("accepted the token") && told.contains("Run it: pipeops-agent run --config"),
        "{told}"
    );
    assert!(!told.contains(plane.token()));
    assert_eq!(read(&machine.path("token")).trim(), plane.token());
    assert_eq!(machine.path("token").metadata().unwrap().mode() & 0o137, 0);
    assert!(!read(&config).contains(plane.token()));
    let shown = answer(&machine.run(&["config", "show", "--json"]));
    let value = |key: &str| {
        let settings = shown["settings"].as_array().unwrap();
        settings.iter().find(|it| it["key"] == key).unwrap()["value"].clone()
    };
    assert_eq!(value("pipeops.cluster_name"), "berlin-3");
    assert_eq!(value("access.level"), "read-only");
    assert_eq!(shown["problems"], json!([]));

    // Again: what is set stays, what is given changes, the file that somebody may have edited is
    // not written.
    let before = read(&config);
    let output = machine.run(&["up", "--cluster-name", "berlin-4", "--no-start", "--json"]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    assert_eq!(read(&config), before);
    assert_eq!(
        answer(&output)["settings"],
        json!(machine.path("config.d/up.toml"))
    );
    assert_eq!(read(&machine.path("token")).trim(), plane.token());

    let output = machine.run(&["down", "--purge"]);
    assert_eq!(code(&output), 2);
    assert!(text(&output.stderr).contains("fix: confirm with --yes"));
    let output = machine.run(&["down", "--purge", "--yes"]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    assert!(!config.exists() && !machine.path("token").exists());
}

#[test]
fn the_page_is_opened_to_other_machines_and_closed_again_beside_the_settings_of_the_user() {
    let plane = plane();
    let token = plane.token().to_owned();
    let machine = Machine::new(&plane).with("PIPEOPS_API_URL", plane.api_url());
    let token = machine.write("right", &token, 0o600);
    std::fs::create_dir(machine.folder.path().join("etc")).unwrap();
    let mine = format!(
        "# Mine.\n[pipeops]\ntoken_file = {token:?}\n[dashboard]\nlisten = \"127.0.0.1:7999\" # Here.\n"
    );
    machine.write("etc/config.toml", &mine, 0o600);
    let listen = || {
        let shown = answer(&machine.run(&["config", "show", "--json"]));
        let settings = shown["settings"].as_array().unwrap();
        let found = settings.iter().find(|it| it["key"] == "dashboard.listen");
        found.unwrap()["value"].clone()
    };
    for (words, wanted) in [
        (&["dashboard", "expose"][..], "0.0.0.0:7999"),
        (&["dashboard", "expose", "--off"], "127.0.0.1:7999"),
        (
            &["dashboard", "expose", "--listen", "[::]:7480"],
            "[::]:7480",
        ),
        (&["dashboard", "expose"], "[::]:7480"),
        (
            &["dashboard", "expose", "--off", "--no-start"],
            "127.0.0.1:7480",
        ),
    ] {
        let output = machine.run(words);
        let told = text(&output.stdout);
        assert_eq!(code(&output), 0, "{words:?}: {}", text(&output.stderr));
        assert!(told.contains("config.d/up.toml"), "{told}");
        // No service is installed here.
        let is_told = told.contains("Restart the agent: pipeops-agent run --config");
        assert_eq!(is_told, !words.contains(&"--no-start"), "{told}");
        assert_eq!(listen(), wanted, "{words:?}");
    }
    assert_eq!(read(&machine.path("config.toml")), mine);
    for (address, why) in [
        ("127.0.0.1:7480", "is not reachable from other machines"),
        ("box:7480", "is not an address with a port"),
    ] {
        let output = machine.run(&["dashboard", "expose", "--listen", address]);
        assert_eq!(code(&output), 2);
        let told = text(&output.stderr);
        assert!(told.contains(why) && told.contains("fix: "), "{told}");
    }
    assert_eq!(listen(), "127.0.0.1:7480");
    // What is read later wins, and is named.
    machine.write(
        "etc/config.d/zz.toml",
        "dashboard.listen = \"127.0.0.1:1\"\n",
        0o600,
    );
    let output = machine.run(&["dashboard", "expose"]);
    assert_eq!(code(&output), 2);
    let told = text(&output.stderr);
    assert!(told.contains("zz.toml:1 overrides it"), "{told}");
}

#[test]
fn a_setting_of_the_environment_is_written_closed_to_others_where_it_is_a_secret() {
    let plane = plane();
    let machine = Machine::new(&plane)
        .with("HTTPS_PROXY", "http://me:canary-1@192.0.2.1:3128")
        .with("PIPEOPS_ALLOW_PLAINTEXT", "yes")
        .with("PIPEOPS_AGENT_LABELS", "site=berlin,rack=4")
        .with("KUBECONFIG", "/root/.kube/config");
    let token = machine.write("right", plane.token(), 0o600);
    let up = |more: &[&str]| {
        let words = ["up", "--unchecked", "--no-start", "--token-file", &token];
        machine.run(&[&words[..], &["--cluster-name", "edge"], more].concat())
    };
    let output = up(&[]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let config = machine.path("config.toml");
    let written = read(&config);
    for line in [
        "pipeops.proxy = \"http://me:canary-1@192.0.2.1:3128\"\n",
        "pipeops.allow_plaintext = true\n",
        "agent.labels = { \"rack\" = \"4\", \"site\" = \"berlin\" }\n",
    ] {
        assert!(written.contains(line), "{line}: {written}");
    }
    assert!(!written.contains("kubeconfig"), "{written}");
    let mode = config.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o007, 0, "{mode:o}");
    let all = text(&output.stdout) + &text(&output.stderr);
    assert!(!all.contains("canary"), "{all}");
    // What is there already is not written again.
    let again = up(&["--json"]);
    assert_eq!(
        answer(&again)["settings"],
        json!(machine.path("config.d/up.toml"))
    );
    let drop_in = read(&machine.path("config.d/up.toml"));
    assert_eq!(drop_in.lines().count(), 2, "{drop_in}");
    assert!(drop_in.contains("pipeops.cluster_name"), "{drop_in}");
    // What another file says later would hold in place of what was checked.
    machine.write(
        "etc/config.d/zz.toml",
        "pipeops.cluster_name = \"other\"\n",
        0o644,
    );
    let output = up(&[]);
    assert_eq!(code(&output), 2);
    let told = text(&output.stderr);
    assert!(
        told.starts_with("error: pipeops.cluster_name cannot be set to edge: ")
            && told.contains("zz.toml:1 overrides it"),
        "{told}"
    );
}

#[test]
fn a_folder_that_is_not_the_agents_is_not_removed() {
    let plane = plane();
    let machine = Machine::new(&plane);
    let foreign = machine.folder.path().join("state");
    std::fs::create_dir(&foreign).unwrap();
    machine.write("state/photos", "", 0o600);
    let output = machine.run(&["down", "--purge", "--yes"]);
    let told = text(&output.stdout);
    assert_eq!(code(&output), 0, "{told}{}", text(&output.stderr));
    let left = format!(
        "Left: {}: there is no identity.json in it, so it may be somebody else's.",
        foreign.display()
    );
    assert!(told.contains(&left), "{told}");
    assert!(foreign.join("photos").exists());
}

#[test]
fn a_machine_is_set_up_without_a_control_plane() {
    let plane = plane();
    let machine = Machine::new(&plane);
    let output = machine.run(&["up", "--api-url", "off", "--no-start"]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let written = read(&machine.path("config.toml"));
    assert!(written.contains("pipeops.api_url = \"off\""), "{written}");
    assert!(!written.contains("token"), "{written}");
    assert_eq!(code(&machine.run(&["config", "check"])), 0);
    // The next one says how to get a control plane.
    let output = machine.run(&["up", "--no-start"]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let told = text(&output.stderr);
    assert!(told.contains("up --api-url https://"), "{told}");
    assert_eq!(read(&machine.path("config.toml")), written);
    assert!(!machine.path("config.d").exists());
    // A token has nobody to be shown to.
    let token = machine.write("new", plane.token(), 0o600);
    let output = machine.run(&["up", "--no-start", "--token-file", &token]);
    assert_eq!(code(&output), 2);
    let told = text(&output.stderr);
    assert!(told.contains("this token has no use"), "{told}");
    let output = machine.run(&["token", "rotate"]);
    assert_eq!(code(&output), 2);
    let told = text(&output.stderr);
    assert!(told.contains("no control plane is configured"), "{told}");
    assert_eq!(plane.sessions().len(), 0);
}

#[test]
fn a_token_becomes_the_agents_own_where_its_group_could_read_it() {
    if !crate::agent::is_root_or_skip("only root gives a file to another user") {
        return;
    }
    let plane = plane();
    let machine = Machine::new(&plane).with("PIPEOPS_API_URL", plane.api_url());
    std::fs::create_dir(machine.folder.path().join("etc")).unwrap();
    let file = PathBuf::from(machine.write("etc/token", "clt_old\n", 0o640));
    let user = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    chown(&file, Some(0), Some(user.gid.as_raw())).unwrap();
    machine.write(
        "etc/config.toml",
        &format!("[pipeops]\ntoken_file = {file:?}\n[keeper]\nuser = \"nobody\"\n"),
        0o644,
    );
    let checked = machine.run(&["config", "check"]);
    let told = text(&checked.stdout) + &text(&checked.stderr);
    assert!(told.contains("can read the secret in"), "{told}");
    let new = machine.write("new", plane.token(), 0o600);
    let output = machine.run(&["token", "rotate", "--token-file", &new]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let after = file.metadata().unwrap();
    let mode = after.permissions().mode() & 0o777;
    assert_eq!((after.uid(), mode), (user.uid.as_raw(), 0o600));
    let checked = machine.run(&["config", "check"]);
    let told = text(&checked.stdout) + &text(&checked.stderr);
    assert!(!told.contains("can read the secret in"), "{told}");
}

#[test]
fn a_new_token_takes_the_place_of_the_old_one_only_where_the_control_plane_takes_it() {
    let plane = plane();
    let machine = Machine::new(&plane).with("PIPEOPS_API_URL", plane.api_url());
    std::fs::create_dir(machine.folder.path().join("etc")).unwrap();
    let file = PathBuf::from(machine.write("etc/token", "clt_old\n", 0o640));
    machine.write(
        "etc/config.toml",
        &format!("[pipeops]\ntoken_file = {file:?}\n"),
        0o644,
    );
    if nix::unistd::geteuid().is_root() {
        chown(&file, Some(12345), Some(23456)).unwrap();
    }
    let before = file.metadata().unwrap();
    let wrong = machine.write("wrong", "clt_wrong\n", 0o600);
    let output = machine.run(&["token", "rotate", "--token-file", &wrong]);
    assert_eq!(code(&output), 2);
    assert_eq!(read(&file), "clt_old\n");

    let right = machine.write("right", plane.token(), 0o600);
    let output = machine.run(&["token", "rotate", "--token-file", &right]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    assert_eq!(read(&file).trim(), plane.token());
    let after = file.metadata().unwrap();
    assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
    let mode = after.permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "members of the group may look, and no more");
    let output = machine.run(&["token", "rotate", "--token-file", &right, "--json"]);
    assert_eq!(answer(&output)["changed"], false);

    // Nobody there: the old one stays, unless somebody says that it is known to be good.
    drop(plane);
    machine.write("right", "clt_newer", 0o600);
    let output = machine.run(&["token", "rotate", "--token-file", &right]);
    assert_eq!(code(&output), 2);
    assert!(
        text(&output.stderr).contains("--unchecked"),
        "{}",
        text(&output.stderr)
    );
    let output = machine.run(&["token", "rotate", "--token-file", &right, "--unchecked"]);
    assert_eq!(code(&output), 0);
    assert_eq!(read(&file), "clt_newer\n");
}

#[test]
fn the_agent_in_the_cluster_is_replaced_and_its_settings_taken_over() {
    let Some(_held) = calm() else { return };
    let plane = plane();
    let namespace = "cli-replace";
    kubectl(&["create", "namespace", namespace]);
    let manifest = json!({
        "apiVersion": "v1", "kind": "List", "items": [
            { "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "agent", "namespace": namespace }, "stringData": { "token": plane.token() } },
            { "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "pipeops-agent", "namespace": namespace, "labels": { "app.kubernetes.io/name": "pipeops-agent" } },
              "spec": { "replicas": 2, "selector": { "matchLabels": { "a": "b" } }, "template": { "metadata": { "labels": { "a": "b" } },
                "spec": { "containers": [{ "name": "agent", "image": "example.invalid/agent:1", "env": [
                    { "name": "PIPEOPS_TOKEN", "valueFrom": { "secretKeyRef": { "name": "agent", "key": "token" } } },
                    { "name": "PIPEOPS_API_URL", "value": plane.api_url() },
                    { "name": "PIPEOPS_CLUSTER_NAME", "value": "from-the-cluster" },
                ] }] } } } },
        ],
    });
    let machine = Machine::new(&plane)
        .with("KUBECONFIG", admin().to_str().unwrap())
        .with("PIPEOPS_STATE_NAMESPACE", namespace);
    let file = machine.write("manifest.json", &manifest.to_string(), 0o600);
    kubectl(&["apply", "-f", &file]);

    let output = machine.run(&["replace-go-agent", "--no-start"]);
    assert_eq!(code(&output), 2);
    assert!(
        text(&output.stdout).contains("scale it from 2 to 0"),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    let output = machine.run(&["replace-go-agent", "--no-start", "--yes"]);
    let told = text(&output.stdout);
    assert_eq!(code(&output), 0, "{told}{}", text(&output.stderr));
    assert!(
        told.contains("kubectl -n cli-replace scale deployment pipeops-agent --replicas=2"),
        "{told}"
    );
    assert!(!told.contains(plane.token()), "{told}");
    let replicas = kubectl(&[
        "-n",
        namespace,
        "get",
        "deployment",
        "pipeops-agent",
        "-o",
        "jsonpath={.spec.replicas}",
    ]);
    assert_eq!(replicas, "0");
    assert_eq!(read(&machine.path("token")).trim(), plane.token());
    assert!(
        read(&machine.path("config.toml")).contains("pipeops.cluster_name = \"from-the-cluster\"")
    );

    let output = machine.run(&["replace-go-agent", "--no-start", "--yes", "--remove"]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let kept = machine.path("go-agent.json");
    assert!(kubectl(&["-n", namespace, "get", "deployments"]).is_empty());
    kubectl(&["apply", "-f", kept.to_str().unwrap()]);
    leave(namespace);
}

#[test]
fn the_archive_holds_no_secret_and_is_told_before_it_is_written() {
    let canary = "canary-0123456789";
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let config =
        format!("[pipeops]\ntoken = \"{canary}\"\nproxy = \"http://me:{canary}@proxy:3128\"\n");
    pipeops_agent::files::replace(Path::new(&path("config.toml")), config.as_bytes(), 0o600)
        .unwrap();
    // Its end is what is kept of a long one.
    let log = json!({ "lines": [
        { "text": "x".repeat(3_000_000) },
        { "text": format!("dial with {canary} and clt_otherotherother") },
        { "text": "GET /x?token=parameterparameter" },
        { "text": "Authorization: Bearer headerheaderheader" },
        { "text": "-----BEGIN PRIVATE KEY-----\nkeykeykeykey\n-----END PRIVATE KEY-----" },
    ] });
    let answers = [
        ("/api/v1/status", json!({ "summary": "everything works" })),
        ("/api/v1/logs", log),
    ];
    let (out, config) = (path("b.tar.gz"), path("config.toml"));
    let (output, _) = said(
        &answers,
        &["bundle", "--list", "--config", &config, "-o", &out],
    );
    assert_eq!(code(&output), 0);
    assert!(text(&output.stdout).contains("status.json"));
    assert!(!Path::new(&out).exists());
    let (output, _) = said(
        &answers,
        &["bundle", "--yes", "--config", &config, "-o", &out],
    );
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let written = Path::new(&out).metadata().unwrap();
    assert!(written.len() < 5_000_000 && written.mode() & 0o777 == 0o600);
    let tar = |words: &[&str]| {
        let output = crate::agent::command("tar").args(words).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let listed = tar(&["-tzf", &out]);
    assert!(
        listed.lines().any(|name| name.ends_with("/status.json")),
        "{listed}"
    );
    let all = tar(&["-xzOf", &out]);
    for secret in [
        canary,
        "clt_other",
        "parameterparameter",
        "headerheader",
        "keykey",
    ] {
        assert!(!all.contains(secret), "{secret}");
    }
    assert!(all.contains("everything works") && all.contains("(hidden)"));
    // On standard output there is nothing but the archive.
    let (output, _) = said(
        &answers,
        &["bundle", "--yes", "--config", &config, "-o", "-"],
    );
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("status.json"));
    std::fs::remove_file(&out).unwrap();
    std::fs::File::create_new(&out)
        .and_then(|mut file| std::io::Write::write_all(&mut file, &output.stdout))
        .unwrap();
    assert!(tar(&["-xzOf", &out]).contains("everything works"));
    assert!(!Path::new("-").exists());
}
