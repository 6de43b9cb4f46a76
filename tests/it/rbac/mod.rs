//! The second lock: what the control plane's account may do at the API server itself, with nothing
//! of ours in between.
//!
//! Stock kubectl with a token of that account asks a real API server. Whoever got hold of the
//! token, or past the agent's own policy, would stand here.

mod bench;

use std::{io::Write, process::Stdio, time::Duration};

use serde_json::{Value, json};

use crate::{
    accounts::{Accounts, GrantScope},
    agent::{SOON, output_text, put, until},
    cluster::{calm, kubectl, variable},
};
use bench::{Bench, LOCK, POD_SECURITY, RBAC};

#[test]
fn applying_twice_changes_nothing_and_the_policies_have_no_slip() {
    let Some(bench) = Bench::new() else { return };
    let again = bench.accounts.apply(&bench.accounts.manifest(&[]));
    for line in again.lines() {
        assert!(line.ends_with(" unchanged"), "{line}");
    }
    assert_eq!(again.lines().count(), 16);
    for policy in ["pipeops-cp-lock", "pipeops-agent-lock"] {
        let name = format!("{policy}.{}", bench.accounts.namespace());
        let warnings = "jsonpath={.status.typeChecking.expressionWarnings}";
        let warnings = kubectl(&["get", "validatingadmissionpolicy", &name, "-o", warnings]);
        assert_eq!(warnings, "", "{name}");
    }
}

#[test]
fn what_a_managed_namespace_is_for_works() {
    let Some(bench) = Bench::new() else { return };
    let namespace = ["-n", bench.managed.as_str()];
    let with = |arguments: &[&str]| bench.works(&[arguments, &namespace].concat());
    let labels = json!({"app": "web"});
    let template = bench.pod(&json!({"container.command": ["testpod", "serve"]}))["spec"].clone();
    let deployment = bench.object(
        "apps/v1/Deployment",
        &json!({"spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template},
        }}),
    );
    let created = bench.create(&deployment);
    assert!(created.status.success(), "{}", output_text(&created));
    with(&["rollout", "status", "deployment/attempt", "--timeout=60s"]);
    with(&["scale", "deployment/attempt", "--replicas=1"]);
    with(&["logs", "deployment/attempt"]);
    let text = bench.works(
        &[
            &["exec", "deployment/attempt"],
            &namespace[..],
            &["--", "echo", "inside"],
        ]
        .concat(),
    );
    assert!(text.contains("inside"), "{text}");
    with(&["create", "secret", "generic", "key", "--from-literal=a=b"]);
    assert!(with(&["get", "secret", "key", "-o", "jsonpath={.data.a}"]).contains("Yg=="));
    with(&["create", "configmap", "map"]);
    with(&["delete", "configmap", "--all"]);
    with(&["create", "job", "one", "--image=x.invalid/x"]);
    with(&["delete", "job", "one"]);
    with(&[
        "expose",
        "deployment/attempt",
        "--port=80",
        "--target-port=8080",
    ]);
    port_is_forwarded(&bench);
    with(&["delete", "deployment/attempt", "service/attempt"]);
    assert!(bench.works(&["auth", "whoami"]).contains(":pipeops-cp"));
    assert!(
        bench
            .works(&["get", "nodes,pods,deployments", "-A"])
            .contains("fixtures")
    );
    bench.works(&["logs", "logger", "-n", "fixtures", "--tail=1"]);
}

#[test]
fn the_agents_own_account_does_its_work_and_nothing_else() {
    let Some(bench) = Bench::new() else { return };
    let (managed, plain, own) = (&bench.managed, &bench.plain, bench.accounts.namespace());
    let refused = |by: &str, lines: &[String]| {
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let output = bench.accounts.kubectl_as("pipeops-agent", &words).output();
            let output = output.unwrap();
            let text = output_text(&output);
            assert!(
                !output.status.success() && text.contains(by),
                "{line}: {text}"
            );
        }
    };
    let role = format!("--clusterrole=pipeops-managed.{own}");
    let (cp, agent) = (
        format!("--serviceaccount={own}:pipeops-cp"),
        format!("--serviceaccount={own}:pipeops-agent"),
    );
    refused(
        RBAC,
        &[
            format!("create token default -n {managed}"),
            format!("create token pipeops-agent -n {own}"),
            format!("get secrets -n {managed}"),
            format!("create configmap x -n {managed}"),
            "exec shell -n fixtures -- true".to_owned(),
            "create namespace x".to_owned(),
        ],
    );
    // "Attempting to grant RBAC permissions not currently held": neither bound nor held.
    let more = format!("create rolebinding x --clusterrole=edit {cp} -n {managed}");
    refused("not currently held", &[more]);
    refused(
        "ValidatingAdmissionPolicy 'pipeops-agent-lock.",
        &[
            format!("create rolebinding x {role} {cp} -n {plain}"),
            format!("create rolebinding x {role} {cp} -n {own}"),
            format!("create rolebinding x {role} {cp} -n kube-system"),
            format!("create rolebinding x {role} {agent} -n {managed}"),
            format!("create rolebinding x {role} {cp} {agent} -n {managed}"),
            format!("delete rolebinding pipeops-agent -n {own}"),
        ],
    );
    let line = format!("create rolebinding x {role} {cp} -n {managed}");
    let words: Vec<&str> = line.split(' ').collect();
    let made = bench.accounts.kubectl_as("pipeops-agent", &words).output();
    assert!(made.unwrap().status.success());
}

/// A path that leads to the API of the node's kubelet.
fn kubelet() -> String {
    format!("/api/v1/nodes/{}/proxy/pods", variable("NODE_NAME"))
}

/// The echo server answers through `kubectl port-forward`.
fn port_is_forwarded(bench: &Bench) {
    use std::io::{BufRead, BufReader, Read};
    let arguments = [
        "port-forward",
        "deployment/attempt",
        ":8080",
        "-n",
        &bench.managed,
    ];
    let mut child = bench
        .accounts
        .kubectl(&arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    // Kept: kubectl says something for each connection, and ends where nobody listens.
    let mut told = BufReader::new(child.stdout.take().unwrap());
    told.read_line(&mut line).unwrap();
    let address = line.split(' ').find(|word| word.starts_with("127.0.0.1:"));
    let mut stream = std::net::TcpStream::connect(address.expect("an address")).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok();
    child.kill().ok();
    child.wait().ok();
    drop(told);
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
}

#[test]
fn no_pod_reaches_the_host() {
    let Some(bench) = Bench::new() else { return };
    let security = |context: Value| json!({"container.securityContext": context});
    let pods = [
        ("a privileged Pod", security(json!({"privileged": true}))),
        (
            "a capability",
            security(json!({"capabilities": {"add": ["SYS_ADMIN"]}})),
        ),
        (
            "a hostPath",
            json!({"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}),
        ),
        ("the host's network", json!({"hostNetwork": true})),
        ("the host's processes", json!({"hostPID": true})),
        (
            "a port of the host",
            json!({"container.ports": [{"containerPort": 80, "hostPort": 80}]}),
        ),
    ];
    let pods = pods.map(|(what, spec)| (what, bench.pod(&spec)));
    bench.none_created(POD_SECURITY, &pods);
}

#[test]
fn no_object_gives_more_than_the_account_has() {
    let Some(bench) = Bench::new() else { return };
    let own = bench.accounts.namespace();
    let rights = json!({
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "pipeops-cp", "namespace": own}],
    });
    let api = json!({
        "metadata": {"name": "v1.evil.example"},
        "spec": {"group": "evil.example", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1},
    });
    let disk = json!({"spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/"},
    }});
    let (rbac, webhooks) = (
        "rbac.authorization.k8s.io/v1",
        "admissionregistration.k8s.io/v1",
    );
    let objects = [
        (
            "a RoleBinding",
            format!("{rbac}/RoleBinding"),
            rights.clone(),
        ),
        (
            "a ClusterRoleBinding",
            format!("{rbac}/ClusterRoleBinding"),
            rights,
        ),
        ("a Role", format!("{rbac}/Role"), json!({"rules": []})),
        (
            "a webhook",
            format!("{webhooks}/MutatingWebhookConfiguration"),
            json!({}),
        ),
        (
            "a policy",
            format!("{webhooks}/ValidatingAdmissionPolicy"),
            json!({"spec": {}}),
        ),
        (
            "an aggregated API",
            "apiregistration.k8s.io/v1/APIService".to_owned(),
            api,
        ),
        ("a quota", "ResourceQuota".to_owned(), json!({})),
        (
            "endpoints",
            "discovery.k8s.io/v1/EndpointSlice".to_owned(),
            json!({"addressType": "IPv4", "endpoints": []}),
        ),
        ("a disk of the host", "PersistentVolume".to_owned(), disk),
    ];
    let objects = objects.map(|(what, kind, more)| (what, bench.object(&kind, &more)));
    bench.none_created(RBAC, &objects);
    let token = json!({
        "type": "kubernetes.io/service-account-token",
        "metadata": {
            "name": "t", "namespace": bench.managed,
            "annotations": {"kubernetes.io/service-account.name": "default"},
        },
    });
    let traffic = json!({"spec": {"ports": [{"port": 80}], "externalIPs": ["203.0.113.7"]}});
    let objects = [
        ("a token that never ends", bench.object("Secret", &token)),
        ("other people's traffic", bench.object("Service", &traffic)),
    ];
    bench.none_created(LOCK, &objects);
}

#[test]
fn network_policies_that_the_owner_protected_stay_as_they_are() {
    let Some(bench) = Bench::new() else { return };
    let managed = &bench.managed;
    let policy = |name: &str, labels: Value| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": managed, "labels": labels},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
        })
    };
    let protected = json!({"pipeops.io/protected": "true"});
    let folder = tempfile::tempdir().unwrap();
    for (name, labels) in [("fence", protected.clone()), ("own", json!({}))] {
        let file = folder.path().join(name);
        put(&file, &policy(name, labels).to_string());
        kubectl(&["create", "-f", &file.display().to_string()]);
    }
    let all = format!("/apis/networking.k8s.io/v1/namespaces/{managed}/networkpolicies");
    let change = |what: &'static str, command: &str| (what, format!("{command} -n {managed}"));
    let lines = [
        change("a deletion", "delete networkpolicy fence"),
        change(
            "its label",
            "label networkpolicy fence pipeops.io/protected-",
        ),
        change("an annotation", "annotate networkpolicy fence a=b"),
        change(
            "a label on another",
            "label networkpolicy own pipeops.io/protected=true",
        ),
        (
            "all at once",
            format!("delete --raw {all}?labelSelector=pipeops.io/protected"),
        ),
    ];
    bench.all_refused(LOCK, &lines);
    bench.none_created(LOCK, &[("a protected one", policy("new", protected))]);
    bench.works(&["annotate", "networkpolicy", "own", "a=b", "-n", managed]);
    // Policies add up: where the namespace is protected there are no others.
    kubectl(&["label", "namespace", managed, "pipeops.io/protected=true"]);
    until("the label is in force", SOON, || {
        let output = bench.ask(&[
            "annotate",
            "networkpolicy",
            "own",
            "a=c",
            "--overwrite",
            "-n",
            managed,
        ]);
        (!output.status.success()).then_some(())
    });
    bench.none_created(LOCK, &[("one that opens", policy("open", json!({})))]);
    bench.all_refused(LOCK, &[change("a deletion", "delete networkpolicy own")]);
    kubectl(&["get", "networkpolicy", "fence", "own", "-n", managed]);
}

#[test]
fn no_command_leads_out_of_a_managed_namespace() {
    let Some(bench) = Bench::new() else { return };
    let (managed, plain, own) = (&bench.managed, &bench.plain, bench.accounts.namespace());
    let lock = format!("pipeops-cp-lock.{own}");
    let node = variable("NODE_NAME");
    let lines = [
        ("a token", format!("create token default -n {managed}")),
        (
            "a token of the agent",
            format!("create token pipeops-agent -n {own}"),
        ),
        ("another person", "get pods -A --as=system:admin".to_owned()),
        ("the kubelet", format!("get --raw {}", kubelet())),
        ("a node", format!("label node {node} a=b")),
        (
            "the labels of its namespace",
            format!("label namespace {managed} a=b"),
        ),
        (
            "the end of its namespace",
            format!("delete namespace {managed}"),
        ),
        (
            "its own lock",
            format!("delete validatingadmissionpolicybinding {lock}"),
        ),
        ("secrets of a namespace", format!("get secrets -n {plain}")),
        ("secrets of all", "get secrets -A -w".to_owned()),
        ("secrets of the agent", format!("get secrets -n {own}")),
        ("exec", "exec shell -n fixtures -- true".to_owned()),
        ("attach", "attach shell -n fixtures".to_owned()),
        (
            "port-forward",
            "port-forward shell :80 -n fixtures".to_owned(),
        ),
        ("a proxy", format!("get --raw {ECHO}")),
        ("a configmap", format!("create configmap x -n {plain}")),
        ("deletion", "delete pod shell -n fixtures".to_owned()),
    ];
    bench.all_refused(RBAC, &lines);
}

/// The echo server of the fixtures, by way of the API server.
const ECHO: &str = "/api/v1/namespaces/fixtures/services/echo:http/proxy/";

#[test]
fn a_namespace_is_made_with_both_labels_and_under_no_name_of_others() {
    let Some(bench) = Bench::new() else { return };
    let name = format!("made-of-{}", bench.accounts.namespace());
    let namespace = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
    let good =
        json!({"pipeops.io/managed": "true", "pod-security.kubernetes.io/enforce": "baseline"});
    let with = |key: &str, value: &str| {
        let mut labels = good.clone();
        labels[key] = value.into();
        labels
    };
    let attempts = [
        ("no labels", namespace(&name, json!({}))),
        (
            "one label",
            namespace(&name, json!({"pipeops.io/managed": "true"})),
        ),
        (
            "the other label",
            namespace(
                &name,
                json!({"pod-security.kubernetes.io/enforce": "baseline"}),
            ),
        ),
        (
            "not managed",
            namespace(&name, with("pipeops.io/managed", "yes")),
        ),
        (
            "privileged",
            namespace(
                &name,
                with("pod-security.kubernetes.io/enforce", "privileged"),
            ),
        ),
        (
            "an old standard",
            namespace(
                &name,
                with("pod-security.kubernetes.io/enforce-version", "v1.0"),
            ),
        ),
        (
            "a label of others",
            namespace(&name, with("istio-injection", "disabled")),
        ),
        ("a name of Kubernetes", namespace("kube-x", good.clone())),
        ("a name of ours", namespace("pipeops-x", good.clone())),
        (
            "a generated name",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "kube-", "labels": good}}),
        ),
    ];
    bench.none_created(LOCK, &attempts);
    let made = bench.create(&namespace(&name, good.clone()));
    assert!(made.status.success(), "{}", output_text(&made));
    let line = format!("create configmap x -n {name}");
    bench.all_refused(RBAC, &[("a namespace it was not let into", line)]);
    kubectl(&["delete", "namespace", &name, "--wait=false"]);
}

#[test]
fn the_policy_holds_by_itself_where_somebody_gave_the_account_too_many_rights() {
    let Some(bench) = Bench::new() else { return };
    let (managed, plain, own) = (&bench.managed, &bench.plain, bench.accounts.namespace());
    let mistake = format!("mistake-of-{own}");
    let account = format!("--serviceaccount={own}:pipeops-cp");
    let admin = "--clusterrole=cluster-admin";
    kubectl(&["create", "clusterrolebinding", &mistake, admin, &account]);
    // Its own namespace and those of Kubernetes are nobody's to manage.
    bench.manage(own);
    until("the mistake is in force", SOON, || {
        let output = bench.ask(&["auth", "can-i", "*", "*", "-A"]);
        output.status.success().then_some(())
    });
    let lines = [
        ("a configmap", format!("create configmap x -n {plain}")),
        ("one of the agent's", format!("create configmap x -n {own}")),
        (
            "one of Kubernetes'",
            "create configmap x -n kube-system".to_owned(),
        ),
        ("exec", "exec shell -n fixtures -- true".to_owned()),
        ("a proxy", format!("get --raw {ECHO}")),
        ("the kubelet", format!("get --raw {}", kubelet())),
        ("deletion", "delete pod shell -n fixtures".to_owned()),
        (
            "deletion of all",
            format!("delete configmaps --all -n {plain}"),
        ),
        ("a token", format!("create token default -n {managed}")),
        (
            "a rolebinding",
            format!("create rolebinding x --role=x {account} -n {managed}"),
        ),
        (
            "a clusterrolebinding",
            format!("create clusterrolebinding x {admin} {account}"),
        ),
        (
            "labels",
            format!("label namespace {plain} pipeops.io/managed=true"),
        ),
        (
            "the end of a namespace",
            format!("delete namespace {plain}"),
        ),
        ("a new namespace", "create namespace kube-x".to_owned()),
    ];
    bench.all_refused(LOCK, &lines);
    // The policy speaks of changes only: reading is left to the roles, and questions about oneself
    // are none.
    bench.works(&["get", "secrets", "-n", plain]);
    bench.works(&["auth", "whoami"]);
    bench.works(&["create", "configmap", "x", "-n", managed]);
    kubectl(&["delete", "clusterrolebinding", &mistake]);
}

#[test]
fn full_means_everything() {
    let Some(_held) = calm() else { return };
    let accounts = Accounts::new(GrantScope::Full);
    let name = format!("any-of-{}", accounts.namespace());
    for arguments in [
        &["create", "namespace", &name][..],
        &["get", "secrets", "-A"],
        &["exec", "shell", "-n", "fixtures", "--", "true"],
        &["delete", "namespace", &name, "--wait=false"],
    ] {
        let output = accounts.run(arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            output_text(&output)
        );
    }
}

#[test]
fn another_standard_than_baseline_is_asked_for_where_the_owner_says_so() {
    let Some(bench) = Bench::new() else { return };
    bench
        .accounts
        .apply(&bench.accounts.manifest(&["--pod-security", "restricted"]));
    let create = [
        "create",
        "configmap",
        "x",
        "--dry-run=server",
        "-n",
        &bench.managed,
    ];
    until("baseline is not enough any more", SOON, || {
        output_text(&bench.ask(&create))
            .contains("enforce=restricted")
            .then_some(())
    });
    kubectl(&[
        "label",
        "--overwrite",
        "namespace",
        &bench.managed,
        "pod-security.kubernetes.io/enforce=restricted",
    ]);
    until("restricted is", SOON, || {
        bench.ask(&create).status.success().then_some(())
    });
}
