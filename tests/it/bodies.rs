//! Bodies, Pods and names through the link, against a real API server: what the agent refuses by
//! itself, what the admission policy refuses where the agent cannot see, and that both judge Pods
//! as Pod Security admission does.

use std::{rc::Rc, time::Duration};

use http_body_util::BodyExt;
use hyper::{Method, Request, header};
use pipeops_agent::{
    core::policy::{self, PodSecurity},
    executor::Executor,
    host::clock,
    kube::{Body, Client, Identity, Settings, kubeconfig::Source},
    net::{dial::Dialer, proxy::Proxies, tls::Clock},
};
use plane::{ProxyRequest, Service};
use serde_json::{Value, json};

use crate::{
    agent::{SOON, output_text, put, until, until_every},
    cluster::{admin, calm, define, kubectl, leave, variable},
    rights::Bench,
};

#[path = "../hostile/bodies.rs"]
mod lists;
#[path = "../hostile/pods.rs"]
mod pods;

use lists::{bodies, yaml};
use pods::{Standard, pods as pods_of_the_list};

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";

/// The certificates of cert-manager, as far as an API server needs to know them.
const CERTIFICATES: &str = r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
"metadata":{"name":"certificates.cert-manager.io"},"spec":{"group":"cert-manager.io","scope":"Namespaced",
"names":{"plural":"certificates","singular":"certificate","kind":"Certificate","listKind":"CertificateList"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object",
"x-kubernetes-preserve-unknown-fields":true}}}]}}"#;

/// What an answer says.
struct RawCommand {
    status: u16,
    text: String,
}

impl RawCommand {
    fn is_refused_by_the_agent(&self) -> bool {
        self.status == 403 && self.text.contains("refused by the agent")
    }

    fn is_refused_by_the_policy(&self) -> bool {
        self.status == 403 && self.text.contains("pipeops-cp-lock")
    }
}

/// A request through the link.
fn ask(bench: &Bench, method: &str, target: &str, content: (&str, &[u8])) -> RawCommand {
    let mut request = ProxyRequest::get(target);
    method.clone_into(&mut request.method);
    if !content.0.is_empty() {
        request.headers = vec![("Content-Type".to_owned(), content.0.to_owned())];
    }
    request.body = content.1.to_vec().into();
    let answer = bench.plane.request(request, SOON).unwrap();
    let text = answer.body.read_all(SOON).unwrap();
    RawCommand {
        status: answer.head.status,
        text: String::from_utf8_lossy(&text).into_owned(),
    }
}

/// The administrator's own requests, straight to the API server.
fn straight(requests: Vec<(&str, String, &str, Vec<u8>)>) -> Vec<(u16, Vec<u8>)> {
    let executor = Rc::new(Executor::new());
    let settings = Settings {
        source: Source::Files(vec![admin()]),
        proxies: Proxies::default(),
        clock: Clock::new(
            || clock::now().wall,
            pipeops_agent::core::time::Wall::default(),
        ),
        now: clock::now,
        jobs: pipeops_agent::files::Jobs::default(),
    };
    let client = Client::new(&settings, Dialer::default(), Rc::clone(&executor));
    smol::block_on(executor.run(async {
        let mut answers = Vec::new();
        for (method, target, accept, body) in requests {
            let request = Request::builder()
                .method(Method::from_bytes(method.as_bytes()).unwrap())
                .uri(target)
                .header(header::CONTENT_TYPE, JSON)
                .header(header::ACCEPT, accept)
                .body(Body::full(body))
                .unwrap();
            let answer = client.send(request, &Identity::Agent, SOON).await.unwrap();
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            answers.push((status, body.to_vec()));
        }
        answers
    }))
}

/// An agent whose cluster knows cert-manager's certificates.
fn bench() -> Option<Bench> {
    let bench = Bench::at("managed")?;
    let file = bench.agent.folder().join("certificates.json");
    put(&file, CERTIFICATES);
    define(&file, &["certificates.cert-manager.io"]);
    Some(bench)
}

/// Returns whether an answer is what the list wants of this body, sent this way.
fn is_as_listed(said: &RawCommand, verdict: &str, method: &str, kind: &str) -> bool {
    let is_refused = said.is_refused_by_the_agent() || said.is_refused_by_the_policy();
    match (verdict, method) {
        // There is nothing yet that could be updated, and what the API server filled into the
        // object in protobuf may not be there at a creation (the selector of a Job).
        ("fine", "PUT") => matches!(said.status, 200 | 201 | 404 | 409 | 422),
        ("fine", _) if kind == PROTOBUF => !is_refused && said.status != 400,
        ("fine", _) => matches!(said.status, 200 | 201),
        _ => said.is_refused_by_the_agent(),
    }
}

/// Every body of the list by every way to send a whole object: what the link says, and what the
/// list wants.
fn try_whole_objects(bench: &Bench) {
    let shop = &bench.managed;
    let bodies = bodies();
    let encoded = straight(
        bodies
            .iter()
            .filter(|body| body.resource != "certificates")
            .map(|body| {
                let all = format!("{}/namespaces/{shop}/{}", body.root, body.resource);
                let target = format!("{all}?dryRun=All");
                (
                    "POST",
                    target,
                    PROTOBUF,
                    body.object.to_string().into_bytes(),
                )
            })
            .collect(),
    );
    let mut encoded = encoded.into_iter();
    let (mut wrong, mut tried) = (Vec::new(), 0);
    for body in &bodies {
        let all = format!("{}/namespaces/{shop}/{}", body.root, body.resource);
        let (create, one) = (
            format!("{all}?dryRun=All"),
            format!("{all}/attempt?dryRun=All"),
        );
        let apply = format!("{one}&fieldManager=it&force=true");
        let json = body.object.to_string().into_bytes();
        let text = yaml(&body.object).into_bytes();
        let mut ways = vec![
            ("POST", &create, JSON, json.clone()),
            ("POST", &create, YAML, text.clone()),
            ("PUT", &one, JSON, json.clone()),
            ("PUT", &one, YAML, text.clone()),
            ("PATCH", &apply, APPLY, json),
            ("PATCH", &apply, APPLY, text),
        ];
        if body.resource != "certificates" {
            let (status, protobuf) = encoded.next().unwrap();
            assert_eq!(
                status,
                201,
                "{}: {:?}",
                body.naive,
                String::from_utf8_lossy(&protobuf)
            );
            ways.push(("POST", &create, PROTOBUF, protobuf.clone()));
            ways.push(("PUT", &one, PROTOBUF, protobuf));
        }
        for (method, target, kind, bytes) in ways {
            let said = ask(bench, method, target, (kind, &bytes));
            tried += 1;
            let is_fine = is_as_listed(&said, body.verdict, method, kind);
            if !is_fine {
                let RawCommand { status, text } = said;
                wrong.push(format!(
                    "{method} {target} {kind}: {status} {text}: {}",
                    body.naive
                ));
            }
        }
    }
    println!("tried {tried} bodies");
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(tried > 300, "{tried}");
}

#[test]
fn the_agent_refuses_hostile_bodies_by_itself_and_patches_without_the_lock() {
    let Some(bench) = bench() else { return };
    let shop = bench.managed.clone();
    let service = format!("/api/v1/namespaces/{shop}/services/web");
    kubectl(&[
        "create",
        "service",
        "clusterip",
        "web",
        "--tcp=80",
        "-n",
        &shop,
    ]);
    let label = br#"{"metadata":{"labels":{"a":"b"}}}"#;
    until("a harmless patch passes while the lock holds", SOON, || {
        (ask(&bench, "PATCH", &service, (MERGE, label)).status == 200).then_some(())
    });
    let hostile = br#"{"spec":{"type":"NodePort"}}"#;
    let said = ask(&bench, "PATCH", &service, (MERGE, hostile));
    assert!(said.is_refused_by_the_policy(), "{}", said.text);

    // Whatever the agent refuses from here on it refuses alone.
    let lock = format!("pipeops-cp-lock.{}", bench.accounts.namespace());
    kubectl(&["delete", "validatingadmissionpolicybinding", &lock]);
    // Once a second: each patch takes one of the rows that the audit has for a minute.
    let second = Duration::from_secs(1);
    let said = until_every(second, "a patch is refused without the lock", SOON, || {
        let said = ask(&bench, "PATCH", &service, (MERGE, label));
        said.is_refused_by_the_agent().then_some(said)
    });
    assert!(
        said.text.contains("the result of a patch")
            && said.text.contains("pipeops-agent rbac --namespace"),
        "{}",
        said.text
    );
    for kind in [
        "application/json-patch+json",
        "application/strategic-merge-patch+json",
        "",
    ] {
        let said = ask(&bench, "PATCH", &service, (kind, b"[]"));
        assert!(said.is_refused_by_the_agent(), "{kind}: {}", said.text);
    }
    let map = format!("/api/v1/namespaces/{shop}/configmaps/kube-root-ca.crt");
    let said = ask(&bench, "PATCH", &map, (MERGE, label));
    assert_eq!(
        said.status, 200,
        "of other kinds nothing matters: {}",
        said.text
    );
    try_whole_objects(&bench);
}

#[test]
fn an_update_keeps_what_the_owner_gave_and_adds_nothing() {
    let Some(bench) = bench() else { return };
    let shop = bench.managed.clone();
    kubectl(&[
        "create", "service", "nodeport", "given", "--tcp=80", "-n", &shop,
    ]);
    let address = r#"{"spec":{"externalIPs":["192.0.2.7"]}}"#;
    kubectl(&["patch", "service", "given", "-n", &shop, "-p", address]);
    let target = format!("/api/v1/namespaces/{shop}/services/given");
    for accept in [JSON, PROTOBUF] {
        let (status, body) = straight(vec![("GET", target.clone(), accept, Vec::new())]).remove(0);
        assert_eq!(status, 200);
        let said = ask(&bench, "PUT", &target, (accept, &body));
        assert_eq!(said.status, 200, "{accept}: {}", said.text);
    }
    let (_, body) = straight(vec![("GET", target.clone(), JSON, Vec::new())]).remove(0);
    let mut object: Value = serde_json::from_slice(&body).unwrap();
    object["spec"]["externalIPs"] = json!(["192.0.2.7", "192.0.2.8"]);
    let said = ask(
        &bench,
        "PUT",
        &target,
        (JSON, object.to_string().as_bytes()),
    );
    assert!(
        said.is_refused_by_the_agent() && said.text.contains("192.0.2.8"),
        "{}",
        said.text
    );
    let said = ask(
        &bench,
        "PATCH",
        &target,
        (MERGE, br#"{"metadata":{"labels":{"a":"b"}}}"#),
    );
    assert_eq!(said.status, 200, "a patch of something else: {}", said.text);
}

#[test]
fn an_exposed_type_of_service_passes_both_locks() {
    let Some(bench) = Bench::with("managed", &[("PIPEOPS_ACCESS_EXPOSE", "NodePort")]) else {
        return;
    };
    bench
        .accounts
        .apply(&bench.accounts.manifest(&["--expose", "NodePort"]));
    let shop = &bench.managed;
    let target = format!("/api/v1/namespaces/{shop}/services?dryRun=All");
    let of = |kind: &str| {
        let spec = json!({"type": kind, "ports": [{"port": 80}]});
        json!({"metadata": {"name": "x"}, "spec": spec})
            .to_string()
            .into_bytes()
    };
    until("a NodePort passes", SOON, || {
        (ask(&bench, "POST", &target, (JSON, &of("NodePort"))).status == 201).then_some(())
    });
    let said = ask(&bench, "POST", &target, (JSON, &of("LoadBalancer")));
    assert!(
        said.is_refused_by_the_agent() && said.text.contains("access.expose"),
        "{}",
        said.text
    );
}

#[test]
fn the_judgement_of_pods_is_that_of_pod_security_admission() {
    let Some(_held) = calm() else { return };
    let standards = [
        (PodSecurity::Baseline, "psa-baseline"),
        (PodSecurity::Restricted, "psa-restricted"),
    ];
    for (standard, namespace) in standards {
        kubectl(&["create", "namespace", namespace]);
        let label = format!("pod-security.kubernetes.io/enforce={}", standard.as_str());
        kubectl(&["label", "namespace", namespace, &label]);
    }
    let pods = pods_of_the_list();
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for (standard, namespace) in standards {
        let target = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All");
        let requests = pods.iter().map(|pod| {
            (
                "POST",
                target.clone(),
                JSON,
                pod.object.to_string().into_bytes(),
            )
        });
        for (pod, (status, answer)) in pods.iter().zip(straight(requests.collect())) {
            let text = String::from_utf8_lossy(&answer);
            let admits = match status {
                201 => true,
                403 if text.contains("violates PodSecurity") => false,
                _ => {
                    wrong.push(format!("{}: {status} {text}", pod.what));
                    continue;
                }
            };
            compared += 1;
            let found = policy::breaches(pod.object.to_string().as_bytes(), standard).unwrap();
            let listed = match standard {
                PodSecurity::Restricted => pod.meets == Standard::Restricted,
                PodSecurity::Baseline | PodSecurity::Privileged => pod.meets != Standard::None,
            };
            if admits != found.is_empty() || admits != listed {
                wrong.push(format!("{standard:?} {}: {text}: {found:?}", pod.what));
            }
        }
        leave(namespace);
    }
    println!("compared {compared} Pods with Pod Security admission");
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared > 120, "{compared}");
}

/// A Pod that serves the echo server, with a Service before it.
fn served(name: &str, spec: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": variable("IMAGE"), "imagePullPolicy": "Never",
                "command": ["testpod", "serve"], "ports": [{"containerPort": 8080}],
            }],
        },
    });
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
    });
    json!({"apiVersion": "v1", "kind": "List", "items": [pod, service]})
}

/// A managed namespace with a Pod `good` and a Pod `bad`, both older than its labels, with a
/// Service before each.
fn with_old_pods() -> Option<Bench> {
    let bench = Bench::at("managed")?;
    let shop = bench.managed.as_str();
    let (managed, enforce) = ("pipeops.io/managed", "pod-security.kubernetes.io/enforce");
    let unlabel = [format!("{enforce}-"), format!("{managed}-")];
    kubectl(&["label", "namespace", shop, &unlabel[0], &unlabel[1]]);
    let file = bench.agent.folder().join("pods.json");
    for (name, spec) in [("good", json!({})), ("bad", json!({"hostPID": true}))] {
        put(&file, &served(name, &spec).to_string());
        kubectl(&["apply", "-n", shop, "-f", &file.display().to_string()]);
    }
    let ready = [
        "wait",
        "pod",
        "--all",
        "--for=condition=Ready",
        "--timeout=90s",
    ];
    kubectl(&[&ready[..], &["-n", shop]].concat());
    let label = [format!("{enforce}=baseline"), format!("{managed}=true")];
    kubectl(&["label", "namespace", shop, &label[0], &label[1]]);
    until("the good Pod is entered", SOON, || {
        let exec = ["exec", "good", "-n", shop, "--", "true"];
        bench.ask(&exec).status.success().then_some(())
    });
    Some(bench)
}

const FORBIDDEN: &str = "spec.hostPID is true";

#[test]
fn nothing_leads_into_a_pod_that_ran_before_its_namespace_was_labelled() {
    let Some(bench) = with_old_pods() else { return };
    let shop = bench.managed.as_str();
    let of =
        |kind: &str, name: &str| format!("/api/v1/namespaces/{shop}/{kind}/{name}/proxy/healthz");
    for target in [of("pods", "good:8080"), of("services", "good:80")] {
        let output = bench.ask(&["get", "--raw", &target]);
        assert!(
            output.status.success(),
            "{target}: {}",
            output_text(&output)
        );
    }
    let (pod, behind) = (of("pods", "bad:8080"), of("services", "bad:80"));
    let lines: [&[&str]; 5] = [
        &["exec", "bad", "-n", shop, "--", "true"],
        &["attach", "bad", "-n", shop],
        &["debug", "bad", "-n", shop, "--image=x", "--attach=false"],
        &["get", "--raw", &pod],
        &["get", "--raw", &behind],
    ];
    for line in lines {
        let output = bench.ask(line);
        let text = output_text(&output);
        let names = text.contains(&format!("{shop}/bad")) && text.contains(FORBIDDEN);
        assert!(!output.status.success() && names, "{line:?}: {text}");
    }
    let forward = format!("/api/v1/namespaces/{shop}/pods/bad/portforward?ports=8080");
    let refused = ask(&bench, "POST", &forward, ("", b""));
    assert!(refused.text.contains(FORBIDDEN), "{}", refused.text);
}

#[test]
fn a_service_leads_to_those_of_its_pods_only_that_meet_the_standard() {
    let Some(bench) = with_old_pods() else { return };
    for (name, works) in [("good", true), ("bad", false)] {
        let mut request = ProxyRequest::get("/healthz");
        request.service = Some(Service {
            namespace: bench.managed.clone(),
            name: name.to_owned(),
            port: 80,
            scheme: None,
        });
        let text = match bench.plane.request(request, SOON) {
            Ok(answer) => {
                let status = answer.head.status;
                let body = answer.body.read_all(SOON).unwrap();
                format!("{status} {}", String::from_utf8_lossy(&body))
            }
            Err(failed) => format!("{failed:?}"),
        };
        let is_right = if works {
            text.starts_with("200")
        } else {
            text.contains(FORBIDDEN)
        };
        assert!(is_right, "{name}: {text}");
    }
}

#[test]
fn a_namespace_inherits_no_rights_that_somebody_left_for_its_name() {
    let Some(bench) = Bench::at("managed") else {
        return;
    };
    let own = bench.accounts.namespace().to_owned();
    let (left, grouped, free) = (
        format!("left-of-{own}"),
        format!("grouped-of-{own}"),
        format!("free-of-{own}"),
    );
    let account = format!("--serviceaccount={left}:default");
    let group = format!("--group=system:serviceaccounts:{grouped}");
    kubectl(&[
        "create",
        "clusterrolebinding",
        &left,
        "--clusterrole=view",
        &account,
    ]);
    kubectl(&[
        "create",
        "rolebinding",
        &grouped,
        "--clusterrole=view",
        &group,
        "-n",
        &bench.managed,
    ]);
    for (name, why) in [
        (
            left.as_str(),
            format!("ClusterRoleBinding {left} already grants rights"),
        ),
        (
            &grouped,
            format!(
                "RoleBinding {}/{grouped} already grants rights",
                bench.managed
            ),
        ),
        (
            "flux-system",
            "the usual namespace of a cluster component".to_owned(),
        ),
        (
            "cattle-any",
            "the usual namespace of a cluster component".to_owned(),
        ),
    ] {
        let output = bench.ask(&["create", "namespace", name]);
        let text = output_text(&output);
        assert!(
            !output.status.success() && text.contains(&why),
            "{name}: {text}"
        );
    }
    let dry = ["create", "namespace", &free, "--dry-run=server"];
    let output = bench.ask(&dry);
    assert!(output.status.success(), "{}", output_text(&output));
    kubectl(&["delete", "clusterrolebinding", &left]);
}

#[test]
fn without_the_right_to_list_bindings_no_namespace_is_made() {
    let Some(bench) = Bench::at("managed") else {
        return;
    };
    let own = bench.accounts.namespace();
    let name = format!("any-of-{own}");
    let dry = ["create", "namespace", &name, "--dry-run=server"];
    // The manifest of an earlier version.
    let role = format!("pipeops-agent-cluster.{own}");
    let rules = kubectl(&["get", "clusterrole", &role, "-o", "json"]);
    let mut rules: Value = serde_json::from_str(&rules).unwrap();
    let all = rules["rules"].as_array_mut().unwrap();
    all.retain(|rule| {
        rule["resources"] != json!(["clusterrolebindings"]) || rule["verbs"] != json!(["list"])
    });
    let file = bench.agent.folder().join("role.json");
    put(&file, &rules.to_string());
    kubectl(&["replace", "-f", &file.display().to_string()]);
    until("the missing right is named with its fix", SOON, || {
        let text = output_text(&bench.ask(&dry));
        let mend = format!("pipeops-agent rbac --namespace {own} | kubectl apply -f -");
        (text.contains("cannot check whether") && text.contains(&mend)).then_some(())
    });
}
