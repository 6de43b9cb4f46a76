//! Objects of an observation: reduced to the fields that a verdict reads, so that neither memory
//! nor a recording holds values of environment variables, ConfigMaps or Secrets.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::super::time::Wall;
pub(super) use super::super::value::text;

/// Kind, namespace and name.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Key {
    pub kind: String,
    /// Namespace; empty for what belongs to the whole cluster.
    pub namespace: String,
    pub name: String,
}

impl Key {
    /// `Deployment shop/web`.
    pub fn in_words(&self) -> String {
        if self.namespace.is_empty() {
            format!("{} {}", self.kind, self.name)
        } else {
            format!("{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// Everything that was seen at one moment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Observation {
    objects: BTreeMap<Key, Object>,
}

impl Observation {
    /// Takes an object in.
    pub fn add(&mut self, object: Object) {
        self.objects.insert(object.key(), object);
    }

    /// Forgets an object.
    pub fn remove(&mut self, key: &Key) {
        self.objects.remove(key);
    }

    /// Forgets the objects of a kind that are not among these.
    pub fn keep(&mut self, kind: &str, keys: &BTreeSet<Key>) {
        self.objects
            .retain(|key, _| key.kind != kind || keys.contains(key));
    }

    /// The object with this key.
    pub fn get(&self, key: &Key) -> Option<&Object> {
        self.objects.get(key)
    }

    /// All objects, in the order of their keys.
    pub fn all(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }

    /// All objects of a kind.
    pub fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Object> {
        self.all().filter(move |object| object.kind() == kind)
    }
}

/// A reduced object.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Object(Value);

/// Fields that are kept of all kinds.
const OF_ALL: &[&str] = &[
    "kind",
    "metadata/name",
    "metadata/namespace",
    "metadata/uid",
    "metadata/generation",
    "metadata/labels",
    "metadata/creationTimestamp",
    "metadata/deletionTimestamp",
    "metadata/ownerReferences/*/kind",
    "metadata/ownerReferences/*/name",
    "metadata/ownerReferences/*/uid",
    "metadata/annotations/deployment.kubernetes.io~revision",
];

/// Fields that are kept of custom resources and charts: those by which many say whether they are
/// ready.
const OF_CUSTOM: &[&str] = &[
    "status/observedGeneration",
    "status/conditions/*/type",
    "status/conditions/*/status",
    "status/conditions/*/reason",
    "status/conditions/*/message",
    "status/conditions/*/observedGeneration",
];
/// Conditions of a custom resource that are kept, and characters of each text in them: anybody may
/// have written its controller.
const CONDITIONS_MAX: usize = 16;
const CONDITION_CHARS_MAX: usize = 500;

/// Words before the message of an event that stands for several of which each is a little
/// different.
const COMBINED: &str = "(combined from similar events): ";

/// Returns whether this is the name of a kind of custom resources.
pub(super) fn is_custom(kind: &str) -> bool {
    kind.contains('.')
}

/// Returns whether an object of this kind may make others that its app needs: the Secret of a
/// certificate, what an operator or a chart consists of. That may take longer than Pods.
pub(super) fn may_make(kind: &str) -> bool {
    is_custom(kind) || kind == "HelmChart"
}

/// Fields that are kept of one kind.
fn of_kind(kind: &str) -> &'static [&'static str] {
    match kind.as_bytes() {
        b"Pod" => &[
            "spec/nodeName",
            "spec/restartPolicy",
            "spec/resources",
            "spec/containers/*/name",
            "spec/containers/*/image",
            "spec/containers/*/imagePullPolicy",
            "spec/containers/*/ports",
            "spec/containers/*/resources",
            "spec/initContainers/*/name",
            "spec/initContainers/*/image",
            "spec/initContainers/*/restartPolicy",
            "spec/initContainers/*/ports",
            "spec/initContainers/*/resources",
            "spec/volumes/*/persistentVolumeClaim/claimName",
            "status/phase",
            "status/reason",
            "status/message",
            "status/conditions",
            "status/containerStatuses",
            "status/initContainerStatuses",
        ],
        b"Deployment" | b"StatefulSet" | b"DaemonSet" | b"ReplicaSet" => &[
            "spec/replicas",
            "spec/paused",
            "spec/podManagementPolicy",
            "spec/ordinals/start",
            "spec/template/metadata/labels",
            "spec/template/spec/nodeSelector",
            "spec/updateStrategy/type",
            "spec/updateStrategy/rollingUpdate/partition",
            "status",
        ],
        b"Job" => &[
            "spec/backoffLimit",
            "spec/activeDeadlineSeconds",
            "spec/suspend",
            "status",
        ],
        b"LastLines" => &["id", "lines", "hidden"],
        b"Service" => &[
            "spec/selector",
            "spec/type",
            "spec/ports/*/name",
            "spec/ports/*/port",
            "spec/ports/*/targetPort",
        ],
        b"Ingress" => &[
            "metadata/annotations/kubernetes.io~ingress.class",
            "spec/ingressClassName",
            "spec/defaultBackend",
            "spec/rules",
        ],
        b"PersistentVolumeClaim" => &[
            "spec/storageClassName",
            "spec/volumeName",
            "spec/accessModes",
            "spec/resources",
            "status/phase",
        ],
        b"Node" => &[
            "spec/unschedulable",
            "spec/taints",
            "status/conditions",
            "status/allocatable/cpu",
            "status/allocatable/memory",
            "status/nodeInfo/architecture",
        ],
        b"Event" => &[
            "involvedObject/kind",
            "involvedObject/namespace",
            "involvedObject/name",
            "involvedObject/uid",
            "involvedObject/fieldPath",
            "reason",
            "message",
            "type",
            "count",
            "firstTimestamp",
            "lastTimestamp",
            "eventTime",
            "series",
        ],
        b"HelmChart" => OF_CUSTOM,
        _ if is_custom(kind) => OF_CUSTOM,
        _ => &[],
    }
}

impl Object {
    /// Reduces an object of this kind, as the API returns it; items of a list do not name their
    /// kind.
    pub fn reduced(kind: &str, whole: &Value) -> Self {
        let mut kept = Value::Object(Map::new());
        for path in OF_ALL.iter().chain(of_kind(kind)) {
            let steps: Vec<&str> = path.split('/').collect();
            copy(whole, &mut kept, &steps);
        }
        if of_kind(kind) == OF_CUSTOM {
            cut_conditions(&mut kept);
        }
        if let Some(Value::String(message)) = kept.get_mut("message")
            && let Some(said) = message.strip_prefix(COMBINED)
        {
            *message = said.to_owned();
        }
        if let Value::Object(fields) = &mut kept {
            fields.insert("kind".to_owned(), Value::String(kind.to_owned()));
        }
        Self(kept)
    }

    /// An object that was reduced before. Reduces it again: a recording is a file that anybody may
    /// have edited.
    pub fn recorded(value: &Value) -> Self {
        let kind = value
            .get("kind")
            .and_then(Value::as_str)
            .unwrap_or_default();
        Self::reduced(kind, value)
    }

    /// The reduced object.
    pub const fn value(&self) -> &Value {
        &self.0
    }

    /// Kind, namespace and name.
    pub fn key(&self) -> Key {
        Key {
            kind: self.kind().to_owned(),
            namespace: self.text("/metadata/namespace").to_owned(),
            name: self.name().to_owned(),
        }
    }

    pub fn kind(&self) -> &str {
        self.text("/kind")
    }

    pub fn name(&self) -> &str {
        self.text("/metadata/name")
    }

    pub(super) fn uid(&self) -> &str {
        self.text("/metadata/uid")
    }

    pub(super) fn in_words(&self) -> String {
        self.key().in_words()
    }

    /// A text; empty where there is none.
    pub(super) fn text(&self, pointer: &str) -> &str {
        text(&self.0, pointer)
    }

    pub(super) fn number(&self, pointer: &str) -> Option<u64> {
        self.0.pointer(pointer).and_then(Value::as_u64)
    }

    /// A count; an absent one is none.
    pub(super) fn count(&self, pointer: &str) -> u64 {
        self.number(pointer).unwrap_or(0)
    }

    pub(super) fn is(&self, pointer: &str) -> bool {
        self.0.pointer(pointer).and_then(Value::as_bool) == Some(true)
    }

    pub(super) fn list(&self, pointer: &str) -> impl Iterator<Item = &Value> + use<'_> {
        list(&self.0, pointer)
    }

    pub(super) fn label(&self, name: &str) -> &str {
        let labels = self.0.pointer("/metadata/labels");
        let value = labels.and_then(|labels| labels.get(name));
        value.and_then(Value::as_str).unwrap_or_default()
    }

    /// True if an owner has this UID.
    pub(super) fn is_owned_by(&self, uid: &str) -> bool {
        !uid.is_empty()
            && self
                .list("/metadata/ownerReferences")
                .any(|owner| text(owner, "/uid") == uid)
    }

    /// The condition of this type.
    pub(super) fn condition(&self, kind: &str) -> Option<&Value> {
        self.list("/status/conditions")
            .find(|condition| text(condition, "/type") == kind)
    }

    /// Last time at which an event happened, else when it was made.
    pub fn moment(&self) -> Option<Wall> {
        [
            "/series/lastObservedTime",
            "/lastTimestamp",
            "/eventTime",
            "/metadata/creationTimestamp",
        ]
        .iter()
        .find_map(|field| Wall::parse_rfc3339(self.text(field)))
    }
}

/// A list in a value; empty where there is none.
pub(super) fn list<'a>(
    value: &'a Value,
    pointer: &str,
) -> impl Iterator<Item = &'a Value> + use<'a> {
    let found = value.pointer(pointer).and_then(Value::as_array);
    found.map(Vec::as_slice).unwrap_or_default().iter()
}

/// Cuts the conditions of a custom resource.
fn cut_conditions(kept: &mut Value) {
    let conditions = kept.pointer_mut("/status/conditions");
    let Some(conditions) = conditions.and_then(Value::as_array_mut) else {
        return;
    };
    conditions.truncate(CONDITIONS_MAX);
    let fields = conditions.iter_mut().filter_map(Value::as_object_mut);
    for value in fields.flat_map(Map::values_mut) {
        match value {
            Value::String(text) => {
                if let Some((at, _)) = text.char_indices().nth(CONDITION_CHARS_MAX) {
                    text.truncate(at);
                }
            }
            Value::Array(_) | Value::Object(_) => *value = Value::Null,
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Copies the fields below `steps`; `*` is each item of a list, `~` a slash in a name.
fn copy(from: &Value, to: &mut Value, steps: &[&str]) {
    let Some((step, rest)) = steps.split_first() else {
        to.clone_from(from);
        return;
    };
    match from {
        Value::Array(items) if *step == "*" => {
            if !to.is_array() {
                *to = Value::Array(vec![Value::Object(Map::new()); items.len()]);
            }
            let Value::Array(kept) = to else { return };
            for (item, kept) in items.iter().zip(kept) {
                copy(item, kept, rest);
            }
        }
        Value::Object(fields) => {
            let name = step.replace('~', "/");
            let Some(found) = fields.get(&name) else {
                return;
            };
            if !to.is_object() {
                *to = Value::Object(Map::new());
            }
            let Value::Object(kept) = to else { return };
            copy(found, kept.entry(name).or_insert(Value::Null), rest);
        }
        Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_of_variables_and_arguments_are_not_kept() {
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "namespace": "b",
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "s3cret", "deployment.kubernetes.io/revision": "3"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "x", "uid": "u", "controller": true}]},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i", "args": ["s3cret"],
                "env": [{"name": "A", "value": "s3cret"}]}, {"name": "d"}]},
            "status": {"phase": "Running"}});
        let reduced = Object::reduced("Pod", &pod);
        assert!(!reduced.value().to_string().contains("s3cret"));
        assert_eq!(reduced.text("/spec/containers/1/name"), "d");
        assert_eq!(reduced.text("/spec/containers/0/image"), "i");
        assert_eq!(
            reduced.text("/metadata/annotations/deployment.kubernetes.io~1revision"),
            "3"
        );
        assert!(reduced.is_owned_by("u") && !reduced.is_owned_by(""));
        assert_eq!(Object::recorded(reduced.value()), reduced);
        assert_eq!(reduced.key().in_words(), "Pod b/a");
    }

    #[test]
    fn of_custom_resources_some_conditions_are_kept_and_cut() {
        let condition = json!({"type": "Ready", "status": "False", "message": "m".repeat(9_000),
            "reason": {"s3cret": ["s3cret"]}, "other": "s3cret"});
        let whole = json!({"metadata": {"name": "a"}, "spec": {"password": "s3cret"},
            "status": {"conditions": vec![condition; 999], "observedGeneration": 3, "token": "s3cret"}});
        let reduced = Object::reduced("widgets.example.com", &whole);
        let text = reduced.value().to_string();
        assert!(
            !text.contains("s3cret") && text.len() < 16 * 600,
            "{}",
            text.len()
        );
        assert_eq!(reduced.count("/status/observedGeneration"), 3);
        assert_eq!(Object::recorded(reduced.value()), reduced);
        for odd in [
            json!("x"),
            json!({"conditions": "x"}),
            json!({"conditions": [1, null]}),
        ] {
            let reduced = Object::reduced("widgets.example.com", &json!({"status": odd}));
            assert!(reduced.condition("Ready").is_none());
        }
    }

    #[test]
    fn secrets_and_config_maps_keep_their_names_only() {
        for kind in ["Secret", "ConfigMap", "CustomThing"] {
            let whole = json!({"metadata": {"name": "a"}, "data": {"k": "s3cret"}, "stringData": {"k": "s3cret"}, "spec": {"k": "s3cret"}});
            let reduced = Object::reduced(kind, &whole);
            assert_eq!(
                *reduced.value(),
                json!({"kind": kind, "metadata": {"name": "a"}})
            );
        }
    }
}
