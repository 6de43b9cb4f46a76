//! Adoption of a k3s that its own script installed, and of Kubernetes that is not k3s.

use super::{
    super::k3s::Uninstall,
    k3s_life::{assert_same, good, install},
    *,
};
use crate::core::k3s::{Role, watch::TIMER};

const PROGRAM: &str = "/usr/bin/pipeops-agent";

/// A machine with the k3s of the official script: an installation without our note, with its unit
/// and environment.
fn official(command: &str) -> Tree {
    let tree = good();
    install(&tree).unwrap();
    std::fs::remove_dir_all(tree.root().join("var/keeper")).unwrap();
    std::fs::remove_dir_all(tree.root().join("etc/rancher/k3s/config.yaml.d")).unwrap();
    for path in tree.snapshot().into_keys() {
        let path = tree.root().join(path);
        if path.display().to_string().contains("pipeops-k3s") {
            drop(std::fs::remove_dir(&path).or_else(|_| std::fs::remove_file(&path)));
        }
    }
    let unit = format!("[Service]\nExecStart=/usr/local/bin/k3s \\\n    {command} \\\n\n");
    tree.put("etc/systemd/system/k3s.service", &unit, 0o644);
    tree.put(
        "etc/systemd/system/k3s.service.env",
        "K3S_TOKEN='secret'\n",
        0o600,
    );
    tree.put("etc/rancher/k3s/config.yaml", "node-name: box\n", 0o600);
    tree
}

fn ids(findings: &[crate::wire::keeper::Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.id.as_str()).collect()
}

#[test]
fn an_adoption_changes_nothing_of_k3s_and_is_taken_back() {
    let tree = official("server '--disable' 'traefik' '--token' 'secret'");
    let (before, calls) = (tree.snapshot(), tree.calls());
    let plan = tree.keeper().k3s_adopt_plan(&[], PROGRAM).unwrap();
    assert!(plan.refused.is_empty(), "{plan:?}");
    assert!(ids(&plan.warned).contains(&"adopt.arguments"), "{plan:?}");
    let listed = plan.unchanged.join("\n");
    assert!(
        listed.contains("k3s.service.env with K3S_TOKEN"),
        "{listed}"
    );
    assert!(
        listed.contains("--disable=traefik") && listed.contains("config.yaml"),
        "{listed}"
    );
    assert!(!format!("{plan:?}").contains("secret"), "{plan:?}");
    assert!(
        plan.manages
            .iter()
            .any(|line| line.contains("the node box")),
        "{plan:?}"
    );
    assert_eq!(tree.keeper().k3s_status(None).unwrap().managed, "found");

    let done = tree.keeper().k3s_adopt(&[], PROGRAM, "root").unwrap();
    assert_eq!(done.outcome, "done", "{done:?}");
    // The watch, and nothing else.
    let mut after = tree.snapshot();
    after.retain(|path, _| !path.contains("pipeops-k3s"));
    assert_same(&after, &before, "adopted");
    assert!(tree.read(TIMER.trim_start_matches('/')).is_some());
    let since = tree.calls().replace(&calls, "");
    let since = since.lines().filter(|line| !line.starts_with("k3s "));
    let since: Vec<_> = since
        .filter(|line| !line.contains("show") && !line.contains("is-active"))
        // Lines of a question about the node.
        .filter(|line| !line.starts_with('"'))
        .collect();
    assert_eq!(
        since,
        [
            "systemctl daemon-reload",
            "systemctl start pipeops-k3s-watch.timer"
        ]
    );
    assert_eq!(tree.keeper().k3s_status(None).unwrap().managed, "adopted");
    assert!(tree.keeper().k3s_adopt(&[], PROGRAM, "root").is_err());

    let (adopted, called) = (tree.snapshot(), tree.calls());
    let plan = tree.keeper().k3s_unadopt_plan().unwrap();
    let does = |wanted: &str| plan.steps.iter().any(|step| step.does.contains(wanted));
    assert!(does("remove /var/keeper/k3s.managed"), "{plan:?}");
    assert!(
        does("remove /etc/systemd/system/pipeops-k3s-watch.timer"),
        "{plan:?}"
    );
    assert_same(&tree.snapshot(), &adopted, "a plan of the undo");
    assert_eq!(tree.calls(), called);

    assert_eq!(tree.keeper().k3s_unadopt("root").unwrap().outcome, "undone");
    assert!(tree.keeper().k3s_unadopt_plan().is_err());
    assert_eq!(tree.keeper().k3s_status(None).unwrap().managed, "found");
    assert_same(&tree.snapshot(), &before, "taken back");
    assert!(tree.keeper().k3s_unadopt("root").is_err());
}

#[test]
fn the_removal_of_an_adopted_k3s_says_so_and_leaves_what_others_share() {
    let tree = official("server");
    tree.put("run/containerd/of-docker", "", 0o644);
    tree.keeper().k3s_adopt(&[], PROGRAM, "root").unwrap();
    let wanted = Uninstall {
        takes_found: false,
        keeps_data: false,
        program: "/usr/bin/pipeops-agent".to_owned(),
    };
    let plan = tree.keeper().k3s_uninstall_plan(&wanted).unwrap();
    assert_eq!(ids(&plan.warned), ["uninstall.foreign"]);
    let done = tree.keeper().k3s_uninstall(&wanted, "root").unwrap();
    assert_eq!(done.outcome, "done");
    assert!(tree.read("usr/local/bin/k3s").is_none());
    assert!(tree.read("run/containerd/of-docker").is_some());
    assert_eq!(tree.keeper().k3s_status(None).unwrap().managed, "none");
}

#[test]
fn what_is_no_server_of_k3s_is_named_and_never_managed() {
    let tree = official("agent '--server' 'https://10.0.0.2:6443'");
    let plan = tree.keeper().k3s_adopt_plan(&[], PROGRAM).unwrap();
    assert_eq!(ids(&plan.refused), ["adopt.worker"]);
    assert!(tree.keeper().k3s_adopt(&[], PROGRAM, "root").is_err());
    let container = |label: &str| format!("{{\"Config\":{{\"Labels\":{{\"{label}\":\"x\"}}}}}}");
    for (path, text, name) in [
        ("var/snap/microk8s/x", String::new(), "MicroK8s"),
        ("var/lib/k0s/x", String::new(), "k0s"),
        ("var/lib/rancher/rke2/x", String::new(), "RKE2"),
        ("etc/kubernetes/manifests/x", String::new(), "kubeadm"),
        (
            "var/lib/docker/containers/1/config.v2.json",
            container("k3d.cluster"),
            "k3d",
        ),
        (
            "var/lib/docker/containers/1/config.v2.json",
            container("io.x-k8s.kind.cluster"),
            "kind",
        ),
        (
            "var/lib/docker/containers/1/config.v2.json",
            container("name.minikube.sigs.k8s.io"),
            "minikube",
        ),
    ] {
        let tree = systemd().with(path, &text);
        let plan = tree.keeper().k3s_adopt_plan(&[], PROGRAM).unwrap();
        assert_eq!(ids(&plan.refused), ["adopt.other"], "{name}");
        assert!(plan.refused[0].what.contains(name), "{plan:?}");
        assert!(plan.refused[0].fix.contains("agent.kubeconfig"), "{plan:?}");
        let refused = tree.keeper().k3s_adopt(&[], PROGRAM, "root").unwrap_err();
        assert!(refused.sentence().contains(name), "{refused:?}");
        assert_eq!(
            tree.keeper().k3s_status(None).unwrap().other.as_deref(),
            Some(name)
        );
    }
    let none = systemd().keeper().k3s_adopt_plan(&[], PROGRAM).unwrap_err();
    assert!(none.fix.unwrap().contains("k3s install"));
}

#[test]
fn the_unit_and_the_environment_of_a_k3s_count_as_its_settings_do() {
    let tree = official("server '--data-dir' '/mnt/ssd/k3s' '--node-name' 'Alpha'");
    tree.put("mnt/ssd/k3s/server/token", "secret", 0o600);
    let wanted = Uninstall {
        takes_found: true,
        keeps_data: false,
        program: PROGRAM.to_owned(),
    };
    let status = tree.keeper().k3s_status(None).unwrap();
    assert_eq!(status.node.as_deref(), Some("alpha"));
    tree.keeper().k3s_uninstall(&wanted, "root").unwrap();
    assert!(!tree.root().join("mnt/ssd/k3s/server").exists());

    for (command, environment) in [
        ("server '--datastore-endpoint' 'postgres://x'", ""),
        ("server", "K3S_DATASTORE_ENDPOINT='postgres://x'\n"),
    ] {
        let tree = official(command);
        tree.put("etc/systemd/system/k3s.service.env", environment, 0o600);
        tree.put("var/lib/rancher/k3s/server/db/state.db", "old", 0o600);
        let plan = tree.keeper().k3s_adopt_plan(&[], PROGRAM).unwrap();
        assert!(ids(&plan.warned).contains(&"adopt.datastore"), "{plan:?}");
        let refused = tree.keeper().k3s_backup(&k3s_backup::wanted());
        assert!(refused.is_err(), "{refused:?}");
    }
}

#[test]
fn a_k3s_whose_settings_are_elsewhere_is_not_adopted() {
    let refused = |tree: &Tree| {
        let plan = tree.keeper().k3s_adopt_plan(&[], PROGRAM).unwrap();
        ids(&plan.refused)
            .iter()
            .map(|id| (*id).to_owned())
            .collect::<Vec<_>>()
    };
    let with = |path: &str, text: &str| {
        let tree = official("server");
        tree.put(path, text, 0o600);
        tree
    };
    let drop_in = |text| with("etc/systemd/system/k3s.service.d/a.conf", text);
    for (tree, wanted) in [
        (official("server"), &[][..]),
        (
            with(
                "etc/systemd/system/k3s-agent.service",
                "[Service]\nExecStart=/usr/local/bin/k3s \\\n    agent \\\n",
            ),
            &["adopt.roles"],
        ),
        (
            official("server '--config' '/srv/k3s.yaml'"),
            &["adopt.config"],
        ),
        (
            official("server '--config=/etc/rancher/k3s/config.yaml'"),
            &[],
        ),
        (
            with("etc/default/k3s", "K3S_CONFIG_FILE=/srv/k3s.yaml\n"),
            &["adopt.config"],
        ),
        (drop_in("[Service]\nMemoryMin=1G\n"), &[]),
        (
            drop_in("[Service]\nEnvironment=\"HTTP_PROXY=http://proxy:3128\"\n"),
            &[],
        ),
        (
            drop_in("[Service]\nEnvironment=K3S_DATA_DIR=/srv\n"),
            &["adopt.drop-in"],
        ),
        (
            drop_in("[Service]\nExecStart=\nExecStart=/usr/local/bin/k3s server\n"),
            &["adopt.drop-in"],
        ),
        (official("server '--disable-apiserver'"), &["adopt.no-api"]),
        (
            with("etc/rancher/k3s/config.yaml", "disable-apiserver: true\n"),
            &["adopt.no-api"],
        ),
    ] {
        assert_eq!(refused(&tree), wanted);
        assert_eq!(tree.keeper().system.role(), Role::Server, "{wanted:?}");
    }
    let tree = with("etc/default/k3s", "K3S_NODE_NAME=beta\n");
    tree.put("etc/rancher/k3s/config.yaml", "", 0o600);
    let status = tree.keeper().k3s_status(None).unwrap();
    assert_eq!(status.node.as_deref(), Some("beta"));
}

#[test]
fn a_service_with_a_name_of_its_own_is_named_and_outlives_no_removal() {
    let tree = official("server");
    let unit = tree.read("etc/systemd/system/k3s.service").unwrap();
    tree.put("etc/systemd/system/k3s-edge.service", &unit, 0o644);
    let wanted = Uninstall {
        takes_found: true,
        keeps_data: false,
        program: PROGRAM.to_owned(),
    };
    // Of somebody's own.
    tree.put(
        "etc/systemd/system/k3s-cleanup.service",
        "[Service]\nType=oneshot\nExecStart=/usr/local/bin/k3s crictl rmi --prune\n",
        0o644,
    );
    assert_eq!(
        tree.keeper().system.named_services(),
        ["/etc/systemd/system/k3s-edge.service"]
    );
    let before = tree.snapshot();
    let refused = tree.keeper().k3s_uninstall(&wanted, "root").unwrap_err();
    assert!(
        refused.sentence().contains("k3s-edge.service"),
        "{refused:?}"
    );
    assert_same(&tree.snapshot(), &before, "refused");
    std::fs::remove_file(tree.root().join("etc/systemd/system/k3s.service")).unwrap();
    let refused = tree.keeper().k3s_adopt_plan(&[], PROGRAM).unwrap_err();
    assert!(
        refused.sentence().contains("k3s-edge.service"),
        "{refused:?}"
    );
}

#[test]
fn a_node_that_the_api_does_not_know_is_not_adopted() {
    let tree = official("server '--with-node-id'");
    assert!(tree.keeper().k3s_adopt_plan(&[], PROGRAM).is_err());
    tree.put("etc/rancher/node/id", "1a2b3c4d\n", 0o600);
    let plan = tree.keeper().k3s_adopt_plan(&[], PROGRAM).unwrap();
    let mut manages = plan.manages.iter();
    assert!(
        manages.any(|line| line.contains("the node box-1a2b3c4d")),
        "{plan:?}"
    );
    let k3s = "case $1 in --version) echo 'k3s version v1.34.4+k3s1 (x)';; \
        kubectl) echo 'Error from server (NotFound): nodes \"box\" not found' >&2; exit 1;; esac";
    let tree = official("server").program("k3s", k3s);
    let plan = tree.keeper().k3s_adopt_plan(&[], PROGRAM).unwrap();
    assert_eq!(ids(&plan.refused), ["adopt.no-node"]);
}

#[test]
fn settings_that_cannot_be_read_are_adopted_by_nobody() {
    let tree = official("server");
    let config = "etc/rancher/k3s/config.yaml";
    tree.put(config, "data-dir: &data /srv\nnode-name: box\n", 0o600);
    let refused = tree.keeper().k3s_adopt_plan(&[], PROGRAM).unwrap_err();
    let sentence = refused.sentence();
    assert!(
        sentence.contains("config.yaml") && sentence.contains("line 1"),
        "{refused:?}"
    );
    // k3s reads these.
    tree.put(
        config,
        "disable: traefik\nnode-name: box\ndisable: servicelb\ndata-dir: /srv\n",
        0o600,
    );
    let plan = tree.keeper().k3s_adopt_plan(&[], PROGRAM).unwrap();
    let mut manages = plan.manages.iter();
    assert!(manages.any(|line| line.starts_with("/srv: ")), "{plan:?}");
}

#[test]
fn a_node_that_was_renamed_goes_on_under_its_new_name_and_the_adoption_is_still_taken_back() {
    let tree = official("server");
    let before = tree.snapshot();
    tree.keeper().k3s_adopt(&[], PROGRAM, "root").unwrap();
    tree.put("etc/rancher/k3s/config.yaml", "node-name: garage\n", 0o600);
    let node = || tree.keeper().k3s_status(None).unwrap().node;
    assert_eq!(node().as_deref(), Some("box"));
    let plan = tree.keeper().k3s_adopt_plan(&[], PROGRAM).unwrap();
    assert!(plan.does.contains("garage in place of box"), "{plan:?}");
    let done = tree.keeper().k3s_adopt(&[], PROGRAM, "root").unwrap();
    assert_eq!(done.outcome, "done", "{done:?}");
    assert_eq!(node().as_deref(), Some("garage"));
    assert!(tree.keeper().k3s_adopt(&[], PROGRAM, "root").is_err());
    assert_eq!(tree.keeper().k3s_unadopt("root").unwrap().outcome, "undone");
    tree.put("etc/rancher/k3s/config.yaml", "node-name: box\n", 0o600);
    assert_same(&tree.snapshot(), &before, "taken back");
}
