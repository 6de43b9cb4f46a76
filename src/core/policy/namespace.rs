//! Managed namespaces: which ones are managed, and how the control plane creates one.

use serde_json::Value;

use super::{
    CONFIG, Namespace, PodSecurity, Rules, protobuf, reserved_names,
    schema::{FieldKind, Schema, field, read_json},
};
use crate::core::proxy::Refusal;

/// The label that an owner gives to a namespace.
const MANAGED: &str = "pipeops.io/managed";
/// The label by which a namespace enforces a Pod Security level.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// The longest body that is read for a name.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// The namespace that is made in place of the one that was sent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NewNamespace {
    pub name: String,
    /// The whole object in JSON: name and labels, and nothing else of what was sent.
    pub object: Vec<u8>,
}

/// Returns whether a text is a name of a namespace (RFC 1123 label).
pub(super) fn is_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Returns whether a namespace can be a managed one at all, whatever labels it carries; why not
/// otherwise.
pub(super) fn may_be_managed(name: &str) -> Result<(), String> {
    if !is_name(name) {
        return Err(format!("{name:?} is not a valid namespace name"));
    }
    if matches!(name, "default" | "pipeops-system") || name.starts_with("kube-") {
        return Err(format!(
            "the namespace {name} is never managed, whatever labels it carries"
        ));
    }
    Ok(())
}

/// Returns whether the link may make a namespace of this name; why not otherwise. Names that begin
/// like the agent's are kept for it.
fn may_be_made(name: &str) -> Result<(), String> {
    may_be_managed(name)?;
    if name.starts_with("pipeops-") {
        return Err("names that begin with pipeops- are reserved for the agent".to_owned());
    }
    if reserved_names::is_system(name) {
        return Err(format!(
            "{name} is the usual namespace of a cluster component, which brings rights of its own for it"
        ));
    }
    Ok(())
}

/// Judges a call that depends on a managed namespace by what the cluster says of it; `None` where
/// the cluster has none of that name.
pub fn settle(rules: &Rules, name: &str, found: Option<&Namespace>) -> Result<(), Refusal> {
    may_be_managed(name).map_err(|why| {
        Refusal(format!(
            "refused by the agent: {why}; fix: use a namespace that you labelled {MANAGED}=true: kubectl get namespaces -l {MANAGED}=true"
        ))
    })?;
    let wanted = rules.pod_security;
    let Some(found) = found else {
        return Err(Refusal(format!(
            "refused by the agent: there is no namespace {name}; fix: kubectl create namespace {name}, which creates a managed one through the link"
        )));
    };
    // Without the label the cluster's default counts, which nobody can look up and which is to let
    // everything run unless it was changed.
    let enforces = found.enforces.unwrap_or(PodSecurity::Privileged);
    let why = match (found.is_managed, enforces >= wanted) {
        (true, true) => return Ok(()),
        (false, _) => format!("the namespace {name} is not managed"),
        (true, false) => format!(
            "the namespace {name} is managed but enforces only Pod Security \"{}\", and access.pod_security is \"{}\"",
            enforces.as_str(),
            wanted.as_str()
        ),
    };
    let fix = format!(
        "kubectl label --overwrite namespace {name} {MANAGED}=true {ENFORCE}={}",
        wanted.max(enforces).as_str()
    );
    Err(Refusal(format!(
        "refused by the agent: {why}; fix, on the box: {fix}"
    )))
}

static NAMESPACE: Schema = Schema::of(&[
    field("kind", 0, FieldKind::Text),
    field("metadata", 1, FieldKind::Object(&METADATA)),
]);
static METADATA: Schema = Schema::of(&[
    field("name", 1, FieldKind::Text),
    field("generateName", 2, FieldKind::Text),
]);

/// Makes the object that is sent in place of a namespace that the caller wants: with its name and
/// both labels. Nothing else of it passes.
pub fn new_namespace(
    rules: &Rules,
    body: &[u8],
    content_type: &str,
) -> Result<NewNamespace, Refusal> {
    let name = wanted_name(body, content_type)
        .map_err(|why| Refusal(format!("refused by the agent: create a namespace: {why}")))?;
    may_be_made(&name).map_err(|why| {
        Refusal(format!(
            "refused by the agent: create namespace {name}: {why}; fix: choose another name, or set access.level = \"full\" in {CONFIG}"
        ))
    })?;
    let enforce = rules.pod_security.as_str();
    let object = format!(
        r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{name}","labels":{{"{MANAGED}":"true","{ENFORCE}":"{enforce}"}}}}}}"#
    );
    Ok(NewNamespace {
        name,
        object: object.into_bytes(),
    })
}

fn wanted_name(body: &[u8], content_type: &str) -> Result<String, String> {
    if body.len() > BODY_BYTES_MAX {
        return Err(format!("its body is larger than {BODY_BYTES_MAX} bytes"));
    }
    let sent = head(body, content_type)?;
    let text = |path: &str| {
        sent.pointer(path)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let kind = text("/kind");
    if !matches!(kind, "" | "Namespace") {
        return Err(format!("its body is a {kind:?}"));
    }
    let name = text("/metadata/name");
    if name.is_empty() && !text("/metadata/generateName").is_empty() {
        return Err("generateName is not supported; fix: choose a name".to_owned());
    }
    if name.is_empty() {
        return Err("it has no name".to_owned());
    }
    Ok(name.to_owned())
}

fn head(body: &[u8], content_type: &str) -> Result<Value, String> {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/vnd.kubernetes.protobuf") {
        let read = protobuf::read(body, &NAMESPACE)
            .map_err(|why| format!("its body is not a valid protobuf namespace: {why}"))?;
        let mut object = read.object;
        if let Some(object) = object.as_object_mut() {
            object.insert("kind".to_owned(), read.kind.into());
        }
        return Ok(object);
    }
    if !kind.is_empty() && !kind.eq_ignore_ascii_case("application/json") {
        return Err(format!(
            "its body is {kind:?}, and the agent reads JSON and Kubernetes' protobuf only; fix: send one of them, as kubectl does"
        ));
    }
    read_json(body, &NAMESPACE)
        .map_err(|why| format!("its body is not a valid JSON namespace: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(wanted: PodSecurity, name: &str, enforces: Option<PodSecurity>) -> String {
        let rules = Rules {
            pod_security: wanted,
            ..Rules::default()
        };
        let found = Namespace {
            is_managed: true,
            enforces,
            is_protected: false,
        };
        settle(&rules, name, Some(&found)).map_or_else(|refusal| refusal.0, |()| "fine".to_owned())
    }

    #[test]
    fn a_managed_namespace_enforces_what_is_asked_or_more() {
        use PodSecurity::{Baseline, Privileged, Restricted};
        for (wanted, enforces, is_fine) in [
            (Baseline, Some(Baseline), true),
            (Baseline, Some(Restricted), true),
            (Baseline, Some(Privileged), false),
            (Baseline, None, false),
            (Restricted, Some(Baseline), false),
            (Privileged, None, true),
        ] {
            let text = settled(wanted, "shop", enforces);
            assert_eq!(text == "fine", is_fine, "{wanted:?} {enforces:?}: {text}");
        }
        let text = settled(Baseline, "shop", None);
        assert!(text.ends_with("kubectl label --overwrite namespace shop pipeops.io/managed=true pod-security.kubernetes.io/enforce=baseline"), "{text}");
    }

    #[test]
    fn some_namespaces_are_never_managed() {
        for name in [
            "default",
            "kube-system",
            "kube-",
            "kube-anything",
            "pipeops-system",
            "",
            "-a",
            "a-",
            "A",
            "a.b",
            "a/b",
            "a b",
            &"a".repeat(64),
        ] {
            let text = settled(PodSecurity::Privileged, name, Some(PodSecurity::Restricted));
            assert_ne!(text, "fine", "{name}");
        }
        assert_eq!(
            settled(PodSecurity::Privileged, "kubernetes", None),
            "fine",
            "only the prefix with its dash is kept"
        );
    }

    #[test]
    fn what_is_not_labelled_or_not_there_says_what_to_do() {
        let Refusal(text) = settle(&Rules::default(), "shop", None).unwrap_err();
        assert!(text.contains("kubectl create namespace shop"), "{text}");
        let plain = Namespace::default();
        let Refusal(text) = settle(&Rules::default(), "shop", Some(&plain)).unwrap_err();
        assert!(text.contains("pipeops.io/managed=true"), "{text}");
    }

    #[test]
    fn a_new_namespace_keeps_its_name_and_nothing_else() {
        let body = r#"{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"shop","labels":{
            "pod-security.kubernetes.io/enforce":"privileged","x":"y"},"annotations":{"a":"b"},"finalizers":["c"]},
            "spec":{"finalizers":["d"]}}"#;
        let made = new_namespace(
            &Rules::default(),
            body.as_bytes(),
            "application/json; charset=utf-8",
        )
        .unwrap();
        assert_eq!(made.name, "shop");
        assert_eq!(
            String::from_utf8(made.object).unwrap(),
            r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop","labels":{"pipeops.io/managed":"true","pod-security.kubernetes.io/enforce":"baseline"}}}"#
        );
    }

    #[test]
    fn a_body_that_names_no_namespace_for_us_is_refused() {
        let json = "application/json";
        let named = |name: &str| format!(r#"{{"metadata":{{"name":"{name}"}}}}"#);
        let long = format!(
            r#"{{"metadata":{{"name":"a"}},"x":"{}"}}"#,
            "x".repeat(65536)
        );
        for (body, kind) in [
            (named("shop"), "application/yaml"),
            (named("shop"), "application/vnd.kubernetes.protobuf"),
            (named("shop"), "application/apply-patch+yaml"),
            (named("kube-public"), json),
            (named("kube-new"), json),
            (named("default"), json),
            (named("pipeops-system"), json),
            (named("pipeops-other"), json),
            (named("flux-system"), json),
            (named("cattle-fleet-system"), json),
            (named("Shop"), json),
            (named(r#"a\",\"labels\":{\"x\":\"y"#), json),
            (named(""), json),
            (r#"{"metadata":{"generateName":"shop-"}}"#.to_owned(), json),
            (
                r#"{"metadata":{"name":"a","name":"kube-system"}}"#.to_owned(),
                json,
            ),
            (r#"{"kind":"Pod","metadata":{"name":"a"}}"#.to_owned(), json),
            (r#"{"metadata":null}"#.to_owned(), json),
            ("k8s\0".to_owned(), json),
            (String::new(), json),
            (long, json),
        ] {
            let made = new_namespace(&Rules::default(), body.as_bytes(), kind);
            assert!(made.is_err(), "{kind} {body:.80}: {made:?}");
        }
        assert!(new_namespace(&Rules::default(), named("shop").as_bytes(), "").is_ok());
    }

    #[test]
    fn a_body_may_have_the_whole_length_and_a_name_beside_a_generated_one() {
        let long = |bytes: usize| {
            let (head, tail) = (r#"{"metadata":{"name":"a"},"x":""#, r#""}"#);
            let filling = "x".repeat(bytes - head.len() - tail.len());
            format!("{head}{filling}{tail}")
        };
        let made =
            |body: &str| new_namespace(&Rules::default(), body.as_bytes(), "application/json");
        assert!(made(&long(65_536)).is_ok());
        let Refusal(text) = made(&long(65_537)).unwrap_err();
        assert!(text.contains("larger than 65536 bytes"), "{text}");
        let both = r#"{"metadata":{"name":"shop","generateName":"shop-"}}"#;
        assert_eq!(made(both).unwrap().name, "shop");
        let Refusal(text) = made(r#"{"metadata":{"generateName":"shop-"}}"#).unwrap_err();
        assert!(text.contains("generateName is not supported"), "{text}");
        let Refusal(text) = made(r#"{"metadata":{}}"#).unwrap_err();
        assert!(text.contains("it has no name"), "{text}");
    }
}
