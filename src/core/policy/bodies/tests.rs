use serde_json::{Value, json};

use super::{
    super::{
        protobuf::write,
        schema::{FieldKind, Schema},
    },
    content::MANIFEST_BYTES_MAX,
    *,
};
use crate::core::proxy::{Cluster, RawRequest, route};

#[path = "../../../../tests/hostile/bodies.rs"]
mod lists;

use lists::{Body, bodies, yaml};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const APPLY: &str = "application/apply-patch+yaml";

fn call(method: &str, path: &str, content_type: &str) -> Call {
    let mut request = RawRequest::kubernetes(method, path, "");
    if !content_type.is_empty() {
        request.headers = vec![("Content-Type".to_owned(), vec![content_type.to_owned()])];
    }
    route(&request, Cluster::Known).unwrap()
}

/// Judges a body as it is sent; the error is the refusal.
fn judged(call: &Call, expose: Expose, body: &[u8]) -> Result<Judged, String> {
    let rules = Rules {
        expose,
        ..Rules::default()
    };
    let written = written(call).expect("a call whose body is judged");
    let content = Content::of(call, &written)?;
    judge(&rules, call, &written, content, body.to_vec()).map_err(|refusal| refusal.0)
}

/// A whole object in protobuf, as far as its shape goes.
fn protobuf(object: &Value, schema: &Schema) -> Vec<u8> {
    let text = |name: &str| object[name].as_str().unwrap();
    write::object(text("apiVersion"), text("kind"), &message(object, schema))
}

fn message(object: &Value, schema: &Schema) -> Vec<u8> {
    let mut bytes = Vec::new();
    let object = object.as_object().unwrap();
    for field in schema.fields {
        let mut put = |content: &[u8]| bytes.extend(write::field(field.number, content));
        if let FieldKind::Inline(inner) = field.kind {
            put(&message(&Value::Object(object.clone()), inner));
            continue;
        }
        let Some(value) = object.get(field.name).filter(|_| field.number > 0) else {
            continue;
        };
        match field.kind {
            FieldKind::Text => put(value.as_str().unwrap().as_bytes()),
            FieldKind::Texts => {
                for text in value.as_array().unwrap() {
                    put(text.as_str().unwrap().as_bytes());
                }
            }
            FieldKind::Object(inner) => put(&message(value, inner)),
            FieldKind::Objects(inner) => {
                for item in value.as_array().unwrap() {
                    put(&message(item, inner));
                }
            }
            FieldKind::TextMap(_) | FieldKind::Names => {
                for (key, value) in value.as_object().unwrap() {
                    let value = value.as_str().unwrap_or_default();
                    let entry = [
                        write::field(1, key.as_bytes()),
                        write::field(2, value.as_bytes()),
                    ];
                    put(&entry.concat());
                }
            }
            FieldKind::Presence => put(b""),
            FieldKind::Whole => put(value.to_string().as_bytes()),
            FieldKind::Flag | FieldKind::Number | FieldKind::Inline(_) => {
                unreachable!("not in a body")
            }
        }
    }
    bytes
}

/// Every way to send a body: method, path, type and bytes.
fn ways(body: &Body) -> Vec<(&'static str, String, &'static str, Vec<u8>)> {
    let all = format!("{}/namespaces/shop/{}", body.root, body.resource);
    let one = format!("{all}/attempt");
    let schema = written(&call("POST", &all, JSON)).unwrap().subject.schema();
    let json = body.object.to_string().into_bytes();
    let yaml = yaml(&body.object).into_bytes();
    let mut ways = Vec::new();
    for (method, path) in [("POST", &all), ("PUT", &one)] {
        ways.push((method, path.clone(), JSON, json.clone()));
        ways.push((method, path.clone(), "", json.clone()));
        ways.push((method, path.clone(), "application/yaml", yaml.clone()));
        if body.resource != "certificates" {
            ways.push((
                method,
                path.clone(),
                PROTOBUF,
                protobuf(&body.object, schema),
            ));
        }
    }
    ways.push(("PATCH", one.clone(), APPLY, json));
    ways.push(("PATCH", one, APPLY, yaml));
    ways
}

#[test]
fn every_body_of_the_list_is_judged_as_it_says_however_it_is_sent() {
    let bodies = bodies();
    assert!(bodies.len() >= 45, "{}", bodies.len());
    let everything = Expose {
        node_port: true,
        load_balancer: true,
    };
    let (mut wrong, mut tried) = (Vec::new(), 0);
    for body in &bodies {
        for (method, path, kind, bytes) in ways(body) {
            let call = call(method, &path, kind);
            for expose in [Expose::default(), everything] {
                let is_fine =
                    body.verdict == "fine" || (expose == everything && body.verdict != "no");
                let found = judged(&call, expose, &bytes)
                    .and_then(|judged| settle_body(&call, &judged.faults, &[]).map_err(|it| it.0));
                tried += 1;
                if found.is_ok() != is_fine {
                    wrong.push(format!("{method} {path} {kind}: {found:?}: {}", body.naive));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(tried > 800, "{tried}");
}

#[test]
fn a_refusal_names_the_field_and_what_would_pass() {
    let body = br#"{"spec":{"type":"NodePort"}}"#;
    let call = call("POST", "/api/v1/namespaces/shop/services", JSON);
    let judged = judged(&call, Expose::default(), body).unwrap();
    let Refusal(text) = settle_body(&call, &judged.faults, &[]).unwrap_err();
    assert_eq!(
        text,
        "refused by the agent: create services in namespace shop: spec.type is \"NodePort\", which opens ports of the nodes; fix: use type \
         ClusterIP, or set access.expose = [\"NodePort\"] in /etc/pipeops-agent/config.toml and apply what `pipeops-agent rbac --expose \
         NodePort` prints"
    );
}

/// A whole object that is refused stays refused when it is the same object again, unless it was
/// there before.
#[test]
fn an_update_is_refused_for_what_is_new_only() {
    for body in bodies().iter().filter(|body| body.verdict != "fine") {
        for (method, path, kind, bytes) in ways(body) {
            let call = call(method, &path, kind);
            let judged = judged(&call, Expose::default(), &bytes).unwrap();
            let content = Content::of(&call, &written(&call).unwrap()).unwrap();
            let schema = written(&call).unwrap().subject.schema();
            let existing = match content {
                Content::Protobuf => protobuf(&body.object, schema),
                Content::Json | Content::Yaml | Content::Apply => {
                    body.object.to_string().into_bytes()
                }
            };
            let subject = written(&call).unwrap().subject;
            let had = judge_existing(&Rules::default(), subject, content, existing).unwrap();
            let settled = settle_body(&call, &judged.faults, &had);
            assert_eq!(settled, Ok(()), "{kind}: {}", body.naive);
        }
    }
    let path = "/api/v1/namespaces/shop/services/attempt";
    let call = call("PUT", path, JSON);
    let of = |addresses: Value| {
        let body = json!({"spec": {"externalIPs": addresses}}).to_string();
        judged(&call, Expose::default(), body.as_bytes())
            .unwrap()
            .faults
    };
    let had = of(json!(["192.0.2.1", "192.0.2.2"]));
    assert!(settle_body(&call, &of(json!(["192.0.2.2"])), &had).is_ok());
    assert!(settle_body(&call, &of(json!(["192.0.2.2", "192.0.2.3"])), &had).is_err());
}

const SERVICES: &str = "/api/v1/namespaces/shop/services";
const PODS: &str = "/api/v1/namespaces/shop/pods";

/// Path, type and a body that one reader takes for something else than another, or that nobody can
/// judge.
const AMBIGUOUS: &[(&str, &str, &str)] = &[
    (SERVICES, JSON, r#"{"spec":{"type":"NodePort"},"spec":{}}"#),
    (SERVICES, JSON, r#"{"spec":{},"spec":{"type":"NodePort"}}"#),
    (
        SERVICES,
        JSON,
        r#"{"spec":{"type":"NodePort","type":"ClusterIP"}}"#,
    ),
    (SERVICES, JSON, r#"{"Spec":{"type":"NodePort"}}"#),
    (SERVICES, JSON, r#"{"spec":{"Type":"NodePort"}}"#),
    (SERVICES, JSON, r#"{"spec":{"externalips":["192.0.2.1"]}}"#),
    (SERVICES, JSON, r#"{"spec":[{"type":"NodePort"}]}"#),
    (
        SERVICES,
        JSON,
        r#"{"kind":"List","items":[{"kind":"Service","spec":{"type":"NodePort"}}]}"#,
    ),
    (SERVICES, JSON, r#"{"kind":"ServiceList","items":[]}"#),
    (SERVICES, JSON, r#"{"kind":"Pod","spec":{}}"#),
    (SERVICES, JSON, r#"[{"kind":"Service"}]"#),
    (SERVICES, JSON, "{} {\"spec\":{\"type\":\"NodePort\"}}"),
    (SERVICES, JSON, "spec: {type: NodePort}"),
    (SERVICES, JSON, ""),
    (
        SERVICES,
        "application/yaml",
        "spec:\n  <<: {type: NodePort}\n",
    ),
    (SERVICES, "application/yaml", "spec: &a {type: NodePort}\n"),
    (
        SERVICES,
        "application/yaml",
        "spec: !!map {type: NodePort}\n",
    ),
    (
        SERVICES,
        "application/yaml",
        "spec: {type: NodePort}\nspec: {}\n",
    ),
    (
        SERVICES,
        "application/yaml",
        "spec: {type: !!binary Tm9kZVBvcnQ=}\n",
    ),
    (SERVICES, "application/yaml", "? {a: b}\n: c\n"),
    (SERVICES, APPLY, "spec: {type: NodePort}\n"),
    (SERVICES, "application/cbor", "\u{a0}"),
    (SERVICES, "text/plain", "{}"),
    (SERVICES, "application/json, application/yaml", "{}"),
    (SERVICES, PROTOBUF, "{}"),
    (
        PODS,
        JSON,
        r#"{"spec":{"volumes":[{"name":"a","nfs":{},"NFS":{}}],"Volumes":[]}}"#,
    ),
    (PODS, JSON, r#"{"spec":{"volumes":{"0":{"nfs":{}}}}}"#),
    (
        "/apis/cert-manager.io/v1/namespaces/shop/certificates",
        PROTOBUF,
        "k8s\0",
    ),
];

#[test]
fn a_body_that_could_be_read_in_two_ways_is_refused() {
    for (path, kind, body) in AMBIGUOUS {
        let call = call("POST", path, kind);
        let found = judged(&call, Expose::default(), body.as_bytes());
        assert!(found.is_err(), "{kind} {body}: {found:?}");
    }
    let call = call("POST", SERVICES, JSON);
    let long = format!(r#"{{"x":"{}"}}"#, "x".repeat(BODY_BYTES_MAX));
    let refusal = judged(&call, Expose::default(), long.as_bytes()).unwrap_err();
    assert!(refusal.contains("larger than 2048 KiB"), "{refusal}");
}

#[test]
fn a_body_may_be_as_large_as_its_form_allows_and_no_larger() {
    let path = "/api/v1/namespaces/shop/services";
    let limits = [
        (JSON, BODY_BYTES_MAX),
        ("application/yaml", MANIFEST_BYTES_MAX),
    ];
    for (form, most) in limits {
        let call = call("POST", path, form);
        let padded = |length: usize| ("{}".to_owned() + &" ".repeat(length - 2)).into_bytes();
        assert!(
            judged(&call, Expose::default(), &padded(most)).is_ok(),
            "{form}"
        );
        let why = judged(&call, Expose::default(), &padded(most + 1)).unwrap_err();
        assert!(why.contains("larger than"), "{form}: {why}");
    }
}

#[test]
fn an_existing_object_is_asked_for_in_the_form_it_is_compared_in() {
    for (content, accept) in [
        (Content::Json, JSON),
        (Content::Yaml, JSON),
        (Content::Apply, JSON),
        (Content::Protobuf, PROTOBUF),
    ] {
        assert_eq!(content.accept(), accept, "{content:?}");
    }
}

#[test]
fn a_manifest_in_yaml_is_sent_as_what_was_judged() {
    let call = call(
        "POST",
        "/api/v1/namespaces/shop/services",
        "application/yaml",
    );
    let body = b"spec:\n  ports:\n  - port: 80\n    name: 'on'\n---\nspec: {type: NodePort}\n";
    let judged = judged(&call, Expose::default(), body).unwrap();
    assert_eq!(judged.content_type, JSON);
    let sent: Value = serde_json::from_slice(&judged.body).unwrap();
    assert_eq!(
        sent,
        json!({"spec": {"ports": [{"port": 80, "name": "on"}]}})
    );
}

#[test]
fn a_source_of_volumes_that_nobody_knows_yet_is_refused() {
    let call = call("POST", "/api/v1/namespaces/shop/pods", JSON);
    let body = br#"{"spec":{"volumes":[{"name":"a","future":{"server":"x"}}]}}"#;
    assert_eq!(
        judged(&call, Expose::default(), body).unwrap().faults.len(),
        1
    );
    let body = br#"{"spec":{"volumes":[{"name":"a","nfs":null,"emptyDir":{}}]}}"#;
    assert!(
        judged(&call, Expose::default(), body)
            .unwrap()
            .faults
            .is_empty()
    );
    let source = write::field(31, b"x");
    let volume = [write::field(1, b"a"), write::field(2, &source)].concat();
    let raw = write::field(2, &write::field(1, &volume));
    let sent = write::object("v1", "Pod", &raw);
    let call = self::call("POST", "/api/v1/namespaces/shop/pods", PROTOBUF);
    assert_eq!(
        judged(&call, Expose::default(), &sent)
            .unwrap()
            .faults
            .len(),
        1
    );
}

#[test]
fn only_writes_of_whole_objects_are_judged() {
    let shop = "/api/v1/namespaces/shop";
    for (method, path, kind, wanted) in [
        ("POST", "services", JSON, Some(Write::Create)),
        ("PUT", "services/x", JSON, Some(Write::Update)),
        ("PATCH", "services/x", APPLY, Some(Write::Apply)),
        (
            "PATCH",
            "services/x",
            "application/apply-patch+yaml; charset=utf-8",
            Some(Write::Apply),
        ),
        (
            "PATCH",
            "services/x",
            "APPLICATION/apply-patch+yaml",
            Some(Write::Patch),
        ),
        (
            "PATCH",
            "services/x",
            "application/json-patch+json",
            Some(Write::Patch),
        ),
        (
            "PATCH",
            "services/x",
            "application/strategic-merge-patch+json",
            Some(Write::Patch),
        ),
        ("PATCH", "services/x", "", Some(Write::Patch)),
        ("GET", "services/x", "", None),
        ("DELETE", "services/x", JSON, None),
        ("POST", "configmaps", JSON, None),
        ("PUT", "pods/x/ephemeralcontainers", JSON, None),
        ("POST", "pods/x/eviction", JSON, None),
        ("PUT", "replicationcontrollers/x/scale", JSON, None),
    ] {
        let call = call(method, &format!("{shop}/{path}"), kind);
        assert_eq!(
            written(&call).map(|it| it.write),
            wanted,
            "{method} {path} {kind}"
        );
    }
    let mut twice = call("PATCH", &format!("{shop}/services/x"), APPLY);
    let json_patch = vec!["application/json-patch+json".to_owned()];
    twice.headers.push(("content-type".to_owned(), json_patch));
    assert_eq!(written(&twice).map(|it| it.write), Some(Write::Patch));
    let mut twice = call("POST", &format!("{shop}/services"), JSON);
    twice.headers[0].1.push(PROTOBUF.to_owned());
    assert!(Content::of(&twice, &written(&twice).unwrap()).is_err());
}

#[test]
fn exposed_types_are_known_words() {
    assert_eq!(Expose::from_words(&[]), Some(Expose::default()));
    let all = Expose::from_words(Expose::TYPES).unwrap();
    assert_eq!(all.words(), Expose::TYPES);
    assert_eq!(Expose::from_words(&["nodeport"]), None);
    for kind in ["Nodeport", "Future", "NODEPORT"] {
        assert!(!all.allows(kind), "{kind}");
    }
}

#[test]
fn only_annotations_that_ask_an_issuer_of_the_whole_cluster_are_refused() {
    let path = "/apis/networking.k8s.io/v1/namespaces/shop/ingresses";
    for (annotation, is_fine) in [
        (r#""example.org/note":"true""#, true),
        (r#""cert-manager.io/":"true""#, true),
        (r#""kubernetes.io/tls-acme":"false""#, true),
        (r#""kubernetes.io/tls-acme":"true""#, false),
    ] {
        let body = format!(
            r#"{{"apiVersion":"networking.k8s.io/v1","kind":"Ingress","metadata":{{"name":"a","annotations":{{{annotation}}}}}}}"#
        );
        let call = call("POST", path, JSON);
        let found = judged(&call, Expose::default(), body.as_bytes()).unwrap();
        assert_eq!(found.faults.is_empty(), is_fine, "{annotation}: {found:?}");
    }
}

#[test]
fn a_type_that_no_setting_allows_is_not_offered_as_one() {
    let body = br#"{"spec":{"type":"Odd"}}"#;
    let call = call("POST", "/api/v1/namespaces/shop/services", JSON);
    let judged = judged(&call, Expose::default(), body).unwrap();
    let Refusal(text) = settle_body(&call, &judged.faults, &[]).unwrap_err();
    assert!(text.ends_with("fix: use type ClusterIP"), "{text}");
}
