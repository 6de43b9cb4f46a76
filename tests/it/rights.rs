//! The agent under its own account, as `pipeops-agent rbac` makes it: what it needs it has, what it
//! gives it takes back, and what is wrong in the cluster it says.

use std::{
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::Duration,
};

use plane::{Options, Plane};
use serde_json::Value;

use crate::{
    accounts::{Accounts, GrantScope},
    agent::{Agent, SOON, command, output_text, put, until},
    cluster::{Held, admin, calm, kubectl, leave, variable},
};

/// Longer than the pause between two looks at the cluster.
const LOOKED: Duration = Duration::from_secs(90);

/// Control plane, agent under its own account, and a namespace that is managed.
pub(crate) struct Bench {
    pub(crate) plane: Plane,
    pub(crate) agent: Agent,
    pub(crate) managed: String,
    through: PathBuf,
    pub(crate) accounts: Accounts,
    _cluster: Held,
}

/// An agent that has nothing in the cluster but its account.
fn agent_of(plane: &Plane, accounts: &Accounts) -> Agent {
    let kubeconfig = accounts.kubeconfig("pipeops-agent");
    Agent::new(plane)
        .with("KUBECONFIG", kubeconfig.display().to_string())
        .with("PIPEOPS_AGENT_NAMESPACE", accounts.namespace())
        .with("PIPEOPS_AGENT_GO_STATE_NAMESPACE", accounts.namespace())
        .with("PIPEOPS_ACCESS_LEVEL", "managed")
}

impl Bench {
    /// At the default level; `None` where there is no cluster.
    fn new() -> Option<Self> {
        Self::at("managed")
    }

    /// At another one.
    pub(crate) fn at(level: &str) -> Option<Self> {
        Self::with(level, &[])
    }

    /// The same with more settings, by their names in the environment.
    pub(crate) fn with(level: &str, settings: &[(&str, &str)]) -> Option<Self> {
        calm().map(|held| Self::linked(held, level, settings))
    }

    fn linked(held: Held, level: &str, settings: &[(&str, &str)]) -> Self {
        let reach = match level {
            "full" => GrantScope::Full,
            _ => GrantScope::Managed,
        };
        let accounts = Accounts::new(reach);
        let managed = format!("shop-of-{}", accounts.namespace());
        kubectl(&["create", "namespace", &managed]);
        let labels = [
            "pipeops.io/managed=true",
            "pod-security.kubernetes.io/enforce=baseline",
        ];
        kubectl(&["label", "namespace", &managed, labels[0], labels[1]]);
        let plane = Plane::start(Options::default()).unwrap();
        let mut agent = agent_of(&plane, &accounts).with("PIPEOPS_ACCESS_LEVEL", level);
        for (name, value) in settings {
            agent = agent.with(name, *value);
        }
        agent.start();
        let status = until_ready(&agent);
        let through = agent.folder().join("through-the-link.yaml");
        put(
            &through,
            &plane.kubeconfig(status["cluster_id"].as_str().unwrap()),
        );
        Self {
            plane,
            agent,
            managed,
            through,
            accounts,
            _cluster: held,
        }
    }

    /// Stock kubectl through the link.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Output {
        let mut kubectl = self.kubectl(arguments);
        kubectl.stdin(Stdio::null()).output().unwrap()
    }

    /// How often the agent has refused something because of this level or of what it permits.
    pub(crate) fn refusals(&self, level: &str) -> usize {
        let log = self.agent.log();
        let refused = log
            .lines()
            .filter(|line| line.contains("refused by the agent: "));
        match level {
            "off" => refused
                .filter(|line| line.contains("access.level is \"off\", so nothing passes"))
                .count(),
            _ => refused.count(),
        }
    }

    /// The same, not started yet.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut kubectl = command(variable("KUBECTL"));
        kubectl.arg("--kubeconfig").arg(&self.through);
        kubectl
            .arg("--cache-dir")
            .arg(self.agent.folder().join("cache"));
        kubectl.args(arguments);
        kubectl
    }

    pub(crate) fn agent(&self) -> &Agent {
        &self.agent
    }

    pub(crate) fn plane(&mut self) -> &mut Plane {
        &mut self.plane
    }

    /// The namespace of the accounts.
    pub(crate) fn own(&self) -> &str {
        self.accounts.namespace()
    }

    pub(crate) fn works(&self, arguments: &[&str]) -> String {
        let output = self.ask(arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            output_text(&output)
        );
        output_text(&output)
    }
}

/// The RoleBindings of a namespace.
fn bindings(namespace: &str) -> String {
    kubectl(&["get", "rolebindings", "-n", namespace, "-o", "name"])
}

impl Drop for Bench {
    fn drop(&mut self) {
        leave(&self.managed);
    }
}

fn until_ready(agent: &Agent) -> Value {
    agent.until(
        "link and cluster are ready",
        Duration::from_secs(40),
        |status| {
            let is_ready =
                status["link"]["state"] == "ready" && status["cluster"]["state"] == "ready";
            is_ready.then(|| status.clone())
        },
    )
}

/// What is said about access.
fn conditions(status: &Value) -> Vec<String> {
    let all = status["conditions"].as_array().unwrap().iter();
    all.filter(|condition| condition["id"].as_str().unwrap().starts_with("access."))
        .map(|condition| {
            format!(
                "{}: {}; fix: {}",
                condition["id"], condition["sentence"], condition["fix"]
            )
        })
        .collect()
}

#[test]
fn the_manifest_is_all_that_an_agent_needs() {
    let Some(bench) = Bench::new() else { return };
    let status = bench.agent.status();
    assert_eq!(conditions(&status), Vec::<String>::new());
    assert!(status["cluster"]["pods"].as_u64() > Some(1), "{status}");
    let beat = bench.plane.until(LOOKED, |view| {
        let beat = view.heartbeats.back()?;
        (beat["metadata"]["k8s_nodes"] == 1).then_some(())
    });
    assert!(beat.is_some(), "a heartbeat with the nodes of the cluster");
    assert!(bench.works(&["get", "nodes"]).contains(" Ready "));

    // The first change in a managed namespace finds no binding and needs no second try.
    let shop = bench.managed.as_str();
    assert!(!bindings(shop).contains("pipeops-cp"));
    bench.works(&["create", "configmap", "first", "-n", shop]);
    let label = "app.kubernetes.io/managed-by=pipeops-agent";
    let made = kubectl(&["get", "rolebindings", "-n", shop, "-l", label, "-o", "name"]);
    assert_eq!(
        made.trim(),
        "rolebinding.rbac.authorization.k8s.io/pipeops-cp"
    );
    bench.works(&[
        "create",
        "secret",
        "generic",
        "key",
        "--from-literal=a=b",
        "-n",
        shop,
    ]);
    assert!(
        bench
            .works(&["get", "secret", "key", "-n", shop, "-o", "yaml"])
            .contains("Yg==")
    );

    let image = format!("--image={}", variable("IMAGE"));
    let run = [
        "run",
        "web",
        &image,
        "--image-pull-policy=Never",
        "--port=8080",
        "-n",
        shop,
    ];
    bench.works(&[&run[..], &["--expose", "--", "serve"]].concat());
    bench.works(&[
        "wait",
        "pod/web",
        "--for=condition=Ready",
        "--timeout=60s",
        "-n",
        shop,
    ]);
    let service = format!("/api/v1/namespaces/{shop}/services/web:8080/proxy/healthz");
    until("the service answers through the link", SOON, || {
        bench
            .ask(&["get", "--raw", &service])
            .status
            .success()
            .then_some(())
    });
    assert!(
        bench
            .works(&["exec", "web", "-n", shop, "--", "echo", "in"])
            .contains("in")
    );
}

#[test]
fn a_namespace_made_through_the_link_can_be_used_at_once() {
    let Some(bench) = Bench::new() else { return };
    let new = format!("new-of-{}", bench.accounts.namespace());
    bench.works(&["create", "namespace", &new]);
    bench.works(&["create", "configmap", "first", "-n", &new]);
    let labels = kubectl(&[
        "get",
        "namespace",
        &new,
        "-o",
        "jsonpath={.metadata.labels}",
    ]);
    for label in [
        r#""pipeops.io/managed":"true""#,
        r#""pod-security.kubernetes.io/enforce":"baseline""#,
    ] {
        assert!(labels.contains(label), "{labels}");
    }
    let refused = bench.ask(&["delete", "namespace", &new]);
    assert!(!refused.status.success(), "{}", output_text(&refused));
    kubectl(&["delete", "namespace", &new, "--wait=false"]);
}

#[test]
fn a_binding_goes_with_the_label_and_those_of_others_stay() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    let shop = bench.managed.clone();
    bench.works(&["create", "configmap", "first", "-n", &shop]);
    // By the name of ours, with our label, but for somebody else: not ours.
    let other = format!("other-of-{}", bench.accounts.namespace());
    kubectl(&["create", "namespace", &other]);
    let own = bench.accounts.namespace();
    let account = format!("--serviceaccount={own}:pipeops-cp");
    let view = ["--clusterrole=view", &account];
    kubectl(
        &[
            &["create", "rolebinding", "pipeops-cp", "-n", &other][..],
            &view,
        ]
        .concat(),
    );
    let label = "app.kubernetes.io/managed-by=pipeops-agent";
    kubectl(&["label", "rolebinding", "pipeops-cp", label, "-n", &other]);
    // Ours in all but the label: made by hand.
    let role = format!("--clusterrole=pipeops-managed.{own}");
    kubectl(&[
        "create",
        "rolebinding",
        "by-hand",
        "-n",
        &other,
        &role,
        &account,
    ]);

    bench.agent.stop();
    kubectl(&["label", "namespace", &shop, "pipeops.io/managed-"]);
    bench.agent.start();
    until_ready(&bench.agent);
    until("ours is gone", LOOKED, || {
        (!bindings(&shop).contains("pipeops-cp")).then_some(())
    });
    let left = bindings(&other);
    assert!(
        left.contains("pipeops-cp") && left.contains("by-hand"),
        "{left}"
    );

    // Managed now, but the name is taken: said, and not taken over.
    for label in [
        "pipeops.io/managed=true",
        "pod-security.kubernetes.io/enforce=baseline",
    ] {
        kubectl(&["label", "namespace", &other, label]);
    }
    let refused = bench.ask(&["create", "configmap", "x", "-n", &other]);
    let fix = format!("kubectl -n {other} delete rolebinding pipeops-cp");
    assert!(
        output_text(&refused).contains(&fix),
        "{}",
        output_text(&refused)
    );
    kubectl(&["delete", "namespace", &other, "--wait=false"]);
}

#[test]
fn a_cluster_without_the_manifest_is_told_with_the_line_that_mends_it() {
    let Some(_held) = calm() else { return };
    let accounts = Accounts::planned(GrantScope::Managed);
    let plane = Plane::start(Options::default()).unwrap();
    // An administrator's kubeconfig sees everything, and still finds no account for calls.
    let mut agent = Agent::new(&plane)
        .with("KUBECONFIG", admin().display().to_string())
        .with("PIPEOPS_AGENT_NAMESPACE", accounts.namespace())
        .with("PIPEOPS_ACCESS_LEVEL", "managed");
    agent.start();
    let condition = agent.until_condition("access.rbac", Duration::from_secs(40));
    assert_eq!(condition["severity"], "warning");
    let sentence = condition["sentence"].as_str().unwrap();
    assert!(sentence.contains("ServiceAccount pipeops-cp"), "{sentence}");
    let fix = format!(
        "pipeops-agent rbac --namespace {} | kubectl apply -f -",
        accounts.namespace()
    );
    assert_eq!(condition["fix"], fix.as_str());
    accounts.apply(&accounts.manifest(&[]));
    agent.until("the conditions are gone", LOOKED, |status| {
        conditions(status).is_empty().then_some(())
    });
}

#[test]
fn rights_that_are_wider_or_narrower_than_the_manifest_are_named() {
    let Some(_held) = calm() else { return };
    let accounts = Accounts::new(GrantScope::Managed);
    let wide = |name: &str| format!("{name}.{}", accounts.namespace());
    let (managed, reads) = (wide("pipeops-managed"), wide("pipeops-cp-cluster"));
    let more = r#"[{"op": "add", "path": "/rules/-", "value": {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}}]"#;
    let less = r#"[{"op": "remove", "path": "/rules/0"}]"#;
    kubectl(&["patch", "clusterrole", &managed, "--type=json", "-p", more]);
    kubectl(&["patch", "clusterrole", &reads, "--type=json", "-p", less]);
    let audit = r#"[{"op": "replace", "path": "/spec/validationActions", "value": ["Audit"]}]"#;
    let lock = wide("pipeops-cp-lock");
    kubectl(&[
        "patch",
        "validatingadmissionpolicybinding",
        &lock,
        "--type=json",
        "-p",
        audit,
    ]);

    let plane = Plane::start(Options::default()).unwrap();
    let mut agent = agent_of(&plane, &accounts);
    agent.start();
    let differs = agent.until_condition("access.rbac-differs", Duration::from_secs(40));
    let sentence = differs["sentence"].as_str().unwrap();
    assert!(
        sentence.contains(&format!("grants more: ClusterRole {managed}")),
        "{sentence}"
    );
    assert!(
        sentence.contains(&format!("grants less: ClusterRole {reads}")),
        "{sentence}"
    );
    let open = agent.until_condition("access.second-lock", SOON);
    let sentence = open["sentence"].as_str().unwrap();
    assert!(
        sentence.contains(&format!("ValidatingAdmissionPolicyBinding {lock}")),
        "{sentence}"
    );
    assert!(
        open["fix"]
            .as_str()
            .unwrap()
            .ends_with("| kubectl apply -f -")
    );
}

#[test]
fn a_cluster_admin_behind_a_managed_level_is_removed_or_told() {
    let Some(_held) = calm() else { return };
    let accounts = Accounts::new(GrantScope::Full);
    let name = format!("pipeops-full.{}", accounts.namespace());
    // By another name it is somebody else's, and told.
    let other = format!("another-of-{}", accounts.namespace());
    let account = format!("--serviceaccount={}:pipeops-cp", accounts.namespace());
    let create = ["create", "clusterrolebinding", &other, &account];
    kubectl(&[&create[..], &["--clusterrole=cluster-admin"]].concat());
    let plane = Plane::start(Options::default()).unwrap();
    let mut agent = agent_of(&plane, &accounts);
    agent.start();
    until("the agent's own is gone", LOOKED, || {
        let bindings = kubectl(&["get", "clusterrolebindings", "-o", "name"]);
        (!bindings.contains(&name)).then_some(())
    });
    let told = agent.until("the other one is told", LOOKED, |status| {
        let all = conditions(status);
        all.into_iter()
            .find(|told| told.contains("has more rights"))
    });
    assert!(told.contains("grep pipeops-cp"), "{told}");
    kubectl(&["delete", "clusterrolebinding", &other]);
}

#[test]
fn an_agent_that_is_tightened_asks_for_the_manifest_of_its_level() {
    let Some(_held) = calm() else { return };
    let accounts = Accounts::new(GrantScope::Full);
    let plane = Plane::start(Options::default()).unwrap();
    let mut agent = agent_of(&plane, &accounts).with("PIPEOPS_ACCESS_LEVEL", "full");
    agent.start();
    until_ready(&agent);
    assert_eq!(agent.cli(&["access", "managed"]).0, 0);
    // The policy of `full` refuses nothing.
    let open = agent.until_condition("access.second-lock", LOOKED);
    let rbac = ["rbac", "--namespace", accounts.namespace()];
    let line = format!("pipeops-agent {} | kubectl apply -f -", rbac.join(" "));
    assert_eq!(open["fix"], line.as_str());
    let (code, manifest) = agent.cli(&rbac);
    assert_eq!(code, 0, "{manifest}");
    accounts.apply(&manifest);
    agent.until("nothing is missing at this level", LOOKED, |status| {
        let told = conditions(status).join(" ");
        (!told.contains("manifest") && !told.contains("polic")).then_some(())
    });
}

#[test]
fn a_cluster_admin_that_the_agent_may_not_remove_is_an_open_lock() {
    let Some(_held) = calm() else { return };
    let accounts = Accounts::new(GrantScope::Full);
    // The manifest of an earlier version has no such right.
    let role = format!("pipeops-agent-cluster.{}", accounts.namespace());
    let found = kubectl(&["get", "clusterrole", &role, "-o", "json"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    let rules = found["rules"].as_array().unwrap().iter();
    let at = rules
        .take_while(|rule| {
            rule["resources"][0] != "clusterrolebindings" || rule["verbs"][0] != "delete"
        })
        .count();
    let patch = format!(r#"[{{"op":"remove","path":"/rules/{at}"}}]"#);
    kubectl(&["patch", "clusterrole", &role, "--type=json", "-p", &patch]);
    let plane = Plane::start(Options::default()).unwrap();
    let mut agent = agent_of(&plane, &accounts);
    agent.start();
    let open = agent.until_condition("access.second-lock", Duration::from_secs(40));
    let name = format!("pipeops-full.{}", accounts.namespace());
    let sentence = open["sentence"].as_str().unwrap();
    assert!(
        sentence.contains("cluster-admin although access.level is \"managed\""),
        "{sentence}"
    );
    assert_eq!(
        open["fix"],
        format!("kubectl delete clusterrolebinding {name}").as_str()
    );
}
