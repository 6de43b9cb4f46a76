//! Staging: namespaces and definitions of custom resources, which root has created before the rest
//! of an app is tried. From then on they are the cluster owner's: apps neither change nor delete
//! them.

use serde_json::{Map, Value};

use super::{
    InventoryEntry,
    kinds::is_custom_group,
    manifests::{Problem, is_object_name, problem},
};
use crate::core::{order::GatherExt as _, value::text};

/// Kinds: version of the API, name, and path of all.
const KINDS: [(&str, &str, &str); 2] = [
    ("v1", NAMESPACE, "/api/v1/namespaces"),
    (
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    ),
];
const NAMESPACE: &str = "Namespace";

/// An object of the whole cluster that has to be there before an app.
#[derive(Clone, Debug, PartialEq)]
pub struct Staged {
    pub name: String,
    /// The object as it is created.
    pub object: Value,
    kind: &'static (&'static str, &'static str, &'static str),
}

/// Takes what comes before an app out of its objects, namespaces first.
///
/// # Errors
/// Something has no usable name.
pub fn staged(objects: &mut Vec<Value>) -> Result<Vec<Staged>, Problem> {
    let mut found = Vec::new();
    for kind in &KINDS {
        let is_meant = |object: &Value| {
            text(object, "/apiVersion") == kind.0 && text(object, "/kind") == kind.1
        };
        for object in objects.extract_if(.., |object| is_meant(object)) {
            let name = text(&object, "/metadata/name").to_owned();
            if !is_object_name(&name) || name.is_empty() {
                return Err(problem(
                    format!("{} {name:?}", kind.1),
                    "its name is not valid in Kubernetes",
                    "names have lowercase letters, digits, dashes and dots",
                ));
            }
            found.push(Staged {
                name,
                object: sent(&object),
                kind,
            });
        }
    }
    Ok(found)
}

/// Fields of an object that are sent. What the API server sets is nobody's to send.
fn sent(object: &Value) -> Value {
    let take = |from: &Value, names: &[&str]| {
        let fields = from.as_object().into_iter().flatten();
        let fields = fields.filter(|(name, _)| names.contains(&name.as_str()));
        let fields = fields.map(|(name, value)| (name.clone(), value.clone()));
        fields.gather::<Map<_, _>>()
    };
    let mut kept = take(object, &["apiVersion", "kind", "spec"]);
    if let Some(metadata) = object.get("metadata") {
        let metadata = take(metadata, &["name", "labels", "annotations"]);
        kept.insert("metadata".to_owned(), Value::Object(metadata));
    }
    Value::Object(kept)
}

impl Staged {
    /// `Namespace shop`.
    pub fn in_words(&self) -> String {
        format!("{} {}", self.kind.1, self.name)
    }

    /// Path of all objects of its kind.
    pub const fn collection(&self) -> &'static str {
        self.kind.2
    }

    /// Returns whether it is a namespace.
    pub fn is_namespace(&self) -> bool {
        self.kind.1 == NAMESPACE
    }

    /// The object in the inventory: it is named when the app is removed, and stays.
    pub fn entry(&self, uid: &str) -> InventoryEntry {
        InventoryEntry {
            api_version: self.kind.0.to_owned(),
            kind: self.kind.1.to_owned(),
            name: self.name.clone(),
            uid: uid.to_owned(),
            ..InventoryEntry::default()
        }
    }

    /// Versions of the API that serve the objects of a definition: those that these objects use,
    /// else the first one.
    pub fn serves(&self, objects: &[Value]) -> Vec<String> {
        let mut served = self.served();
        let used = |api_version: &String| {
            let mut objects = objects.iter().filter(|it| self.defines(it));
            objects.any(|it| text(it, "/apiVersion") == api_version)
        };
        if served.iter().any(used) {
            served.retain(used);
        } else {
            served.truncate(1);
        }
        served
    }

    /// Plural of the objects of a definition.
    pub fn plural(&self) -> &str {
        text(&self.object, "/spec/names/plural")
    }

    fn served(&self) -> Vec<String> {
        let group = text(&self.object, "/spec/group");
        let versions = self.object.pointer("/spec/versions");
        let versions = versions.and_then(Value::as_array).into_iter().flatten();
        let served = versions.filter(|it| it.get("served") == Some(&Value::Bool(true)));
        served
            .map(|version| format!("{group}/{}", text(version, "/name")))
            .collect()
    }

    /// Returns whether an object is of the kind that it defines, in whatever version.
    fn defines(&self, object: &Value) -> bool {
        let group = text(object, "/apiVersion").split_once('/');
        group.is_some_and(|(group, _)| group == text(&self.object, "/spec/group"))
            && text(object, "/kind") == text(&self.object, "/spec/names/kind")
    }

    /// Judges whether it may come before the rest of an app in this namespace.
    ///
    /// # Errors
    /// The object is not allowed, or does not serve what the rest uses.
    pub fn may_come(&self, namespace: &str, rest: &[Value]) -> Result<(), Problem> {
        let group = text(&self.object, "/spec/group");
        if self.is_namespace() && self.name != namespace {
            return Err(problem(
                self.in_words(),
                format!("the app is in namespace {namespace}, and creates no other one"),
                format!("kubectl create namespace {}", self.name),
            ));
        }
        if !self.is_namespace() && !is_custom_group(group) {
            return Err(problem(
                self.in_words(),
                format!("apps define nothing in the group {group:?}"),
                "it is the business of the cluster's owner: kubectl apply",
            ));
        }
        let served = self.served();
        let is_served = |it: &Value| served.iter().any(|known| known == text(it, "/apiVersion"));
        let mut of_it = rest.iter().filter(|it| self.defines(it));
        let unserved = of_it.find(|it| !is_served(it));
        if let Some(object) = unserved {
            return Err(problem(
                format!(
                    "{} {}",
                    text(object, "/kind"),
                    text(object, "/metadata/name")
                ),
                format!(
                    "{} serves no {}",
                    self.in_words(),
                    text(object, "/apiVersion")
                ),
                format!("use one of: {}", served.join(", ")),
            ));
        }
        Ok(())
    }

    /// First field of it that an object which is there has otherwise; `None`: it is as it is meant.
    /// Labels and annotations are the owner's.
    pub fn differs(&self, live: &Value) -> Option<String> {
        let spec = |object: &Value| object.get("spec").cloned().unwrap_or_default();
        differing("spec", &spec(&self.object), &spec(live))
    }
}

/// First field that is not the same in `live`, which may have more; what says nothing may be
/// absent.
fn differing(path: &str, wanted: &Value, live: &Value) -> Option<String> {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => wanted.iter().find_map(|(name, value)| {
            let live = live.get(name).unwrap_or(&Value::Null);
            differing(&format!("{path}.{name}"), value, live)
        }),
        (Value::Array(wanted), live) if live.as_array().map_or(0, Vec::len) == wanted.len() => {
            let pairs = wanted.iter().zip(live.as_array().into_iter().flatten());
            let mut numbered = (0_usize..).zip(pairs);
            numbered
                .find_map(|(at, (wanted, live))| differing(&format!("{path}[{at}]"), wanted, live))
        }
        (Value::Null | Value::Bool(false), Value::Null) => None,
        (wanted, live) => (wanted != live).then(|| path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn definition(group: &str) -> Value {
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("widgets.{group}"), "uid": "u", "labels": {"a": "b"}, "finalizers": ["x"]},
            "spec": {"group": group, "scope": "Namespaced", "preserveUnknownFields": false,
                "names": {"kind": "Widget", "plural": "widgets", "shortNames": []},
                "versions": [{"name": "v1alpha1", "served": false}, {"name": "v1", "served": true}]},
            "status": {"conditions": []}})
    }

    #[test]
    fn namespaces_and_definitions_come_before_the_rest_and_are_sent_without_what_is_not_theirs() {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}, "spec": {"finalizers": []}});
        let other = json!({"apiVersion": "example.com/v1", "kind": "Namespace", "metadata": {"name": "shop"}});
        let mut objects = vec![definition("example.com"), other.clone(), namespace];
        let found = staged(&mut objects).unwrap();
        assert_eq!(objects, [other]);
        let words: Vec<_> = found.iter().map(Staged::in_words).collect();
        assert_eq!(
            words,
            [
                "Namespace shop",
                "CustomResourceDefinition widgets.example.com"
            ]
        );
        let sent = &found[1].object;
        assert_eq!(
            sent["metadata"],
            json!({"name": "widgets.example.com", "labels": {"a": "b"}})
        );
        assert!(sent.get("status").is_none());
        assert!(found.iter().all(|it| it.may_come("shop", &[]).is_ok()));
        assert!(found[0].may_come("other", &[]).is_err());
        for group in ["", "apps", "rbac.authorization.k8s.io", "helm.cattle.io"] {
            let found = staged(&mut vec![definition(group)]);
            let refused = found.map(|found| found[0].may_come("shop", &[]).is_err());
            assert!(refused.unwrap_or(true), "{group}");
        }
        let odd = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a/b"}});
        assert!(staged(&mut vec![odd]).is_err());
    }

    #[test]
    fn the_versions_are_awaited_that_the_rest_uses() {
        let mut definition = definition("example.com");
        let version = |name: &str, served: bool| json!({"name": name, "served": served});
        definition["spec"]["versions"] = json!([
            version("v3", false),
            version("v2", true),
            version("v1beta1", true),
            version("v1", true)
        ]);
        let found = staged(&mut vec![definition]).unwrap();
        let object = |api_version: &str, kind: &str| json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}});
        let widget = |version: &str| object(&format!("example.com/{version}"), "Widget");
        let others = [object("example.com/v1", "Gadget"), object("v1", "Widget")];
        for (rest, versions) in [
            (others.to_vec(), vec!["example.com/v2"]),
            (vec![widget("v1")], vec!["example.com/v1"]),
            (
                vec![widget("v1"), widget("v2"), widget("v1")],
                vec!["example.com/v2", "example.com/v1"],
            ),
        ] {
            assert!(found[0].may_come("shop", &rest).is_ok());
            assert_eq!(found[0].serves(&rest), versions);
        }
        assert_eq!(found[0].plural(), "widgets");
        for version in ["v3", "v4"] {
            let refused = found[0].may_come("shop", &[widget("v1"), widget(version)]);
            let refused = refused.unwrap_err();
            assert!(
                refused
                    .why
                    .ends_with(&format!("serves no example.com/{version}"))
            );
            assert!(
                refused
                    .fix
                    .ends_with("example.com/v2, example.com/v1beta1, example.com/v1")
            );
        }
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
        let found = staged(&mut vec![namespace]).unwrap();
        assert!(found[0].serves(&others).is_empty());
    }

    #[test]
    fn a_definition_that_is_there_is_the_same_if_it_has_all_that_is_wanted() {
        let wanted = staged(&mut vec![definition("example.com")]).unwrap();
        let mut live = definition("example.com");
        live["spec"]["conversion"] = json!({"strategy": "None"});
        live["spec"]
            .as_object_mut()
            .unwrap()
            .remove("preserveUnknownFields");
        live["spec"]["names"]
            .as_object_mut()
            .unwrap()
            .remove("shortNames");
        live["metadata"]["labels"] = json!({});
        assert_eq!(wanted[0].differs(&live), None);
        // What is empty may still mean something.
        live["spec"]["versions"][1]["subresources"] = json!({"scale": {}});
        assert_eq!(wanted[0].differs(&live), None);
        let mut other = definition("example.com");
        other["spec"]["versions"][1]["subresources"] = json!({"status": {}});
        let other = staged(&mut vec![other]).unwrap();
        let field = "spec.versions[1].subresources.status";
        assert_eq!(other[0].differs(&live).as_deref(), Some(field));
        live["spec"]["versions"][1]["served"] = json!(false);
        assert_eq!(
            wanted[0].differs(&live).as_deref(),
            Some("spec.versions[1].served")
        );
        live["spec"]["versions"] = json!([]);
        assert_eq!(wanted[0].differs(&live).as_deref(), Some("spec.versions"));
    }
}
