//! Overlay of a revision: wishes that were made beside its manifests, and that stay when the
//! manifests are deployed again.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{super::time::Wall, Manifest};

/// Annotation of Pods with the time of a restart: another value makes the controller replace them.
const RESTARTED: &str = "pipeops.io/restarted-at";

/// Wishes beside the manifests.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Overlay {
    /// Numbers of Pods, by workload: `Deployment/web`.
    pub scaled: BTreeMap<String, u64>,
    /// Time of the last restart; the beginning of time where there was none.
    pub restarted: Wall,
    /// Digests that its Pods ran when the revision became good, by the names of its images; for an
    /// image without one a word that [`super::unpinned`] knows.
    pub digests: BTreeMap<String, String>,
    /// Workloads that are deployed by these digests, because they went back: `Deployment/web`.
    pub pinned: Vec<String>,
}

impl Overlay {
    /// Key of a workload in [`Overlay::scaled`]; `None`: its number of Pods is not a wish.
    pub fn key(manifest: &Manifest) -> Option<String> {
        matches!(&*manifest.kind.name, "Deployment" | "StatefulSet")
            .then(|| format!("{}/{}", manifest.kind.name, manifest.name))
    }

    /// Returns whether a restart replaces the Pods of an object.
    pub fn is_restarted(manifest: &Manifest) -> bool {
        matches!(
            &*manifest.kind.name,
            "Deployment" | "StatefulSet" | "DaemonSet"
        )
    }

    /// Lays the wishes over manifests.
    pub fn lay(&self, manifests: &mut [Manifest]) {
        for manifest in manifests {
            if let Some(count) = Self::key(manifest).and_then(|key| self.scaled.get(&key)) {
                place(
                    &mut manifest.object,
                    &["spec", "replicas"],
                    Value::from(*count),
                );
            }
            if Self::is_restarted(manifest) && self.restarted != Wall::default() {
                let path = ["spec", "template", "metadata", "annotations", RESTARTED];
                place(
                    &mut manifest.object,
                    &path,
                    Value::from(self.restarted.rfc3339()),
                );
            }
            self.lay_digests(manifest);
        }
    }

    /// Forgets wishes about workloads that are not there any more, and how it went back: the words
    /// of the manifests count again.
    pub fn fit(&mut self, manifests: &[Manifest]) {
        self.unpin();
        let keys: Vec<_> = manifests.iter().filter_map(Self::key).collect();
        self.scaled.retain(|key, _| keys.contains(key));
    }
}

/// Sets a field. Where something else than an object is on the way, the API server refuses the
/// manifest anyway.
pub fn place(object: &mut Value, path: &[&str], value: Value) {
    let Some((name, rest)) = path.split_first() else {
        *object = value;
        return;
    };
    if object.is_null() {
        *object = Value::Object(Map::new());
    }
    if let Value::Object(fields) = object {
        place(
            fields.entry((*name).to_owned()).or_insert(Value::Null),
            rest,
            value,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::apps::parse;

    #[test]
    fn wishes_are_laid_over_workloads_and_only_these() {
        let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: 1}\n---\n\
            apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: web}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\n";
        let manifests = parse(text, Some("shop")).unwrap();
        let mut overlay = Overlay {
            scaled: BTreeMap::from([
                ("Deployment/web".to_owned(), 3),
                ("Deployment/old".to_owned(), 2),
                ("DaemonSet/web".to_owned(), 2),
            ]),
            restarted: Wall::from_millis(1000),
            ..Overlay::default()
        };
        let mut laid = manifests.clone();
        overlay.lay(&mut laid);
        let of = |kind: &str| laid.iter().find(|one| one.kind.name == kind).unwrap();
        assert_eq!(of("Deployment").object["spec"]["replicas"], 3);
        assert!(of("DaemonSet").object["spec"].get("replicas").is_none());
        for kind in ["Deployment", "DaemonSet"] {
            let annotations = &of(kind).object["spec"]["template"]["metadata"]["annotations"];
            assert_eq!(annotations[RESTARTED], Wall::from_millis(1000).rfc3339());
        }
        assert!(of("ConfigMap").object.get("spec").is_none());
        overlay.fit(&manifests);
        assert_eq!(overlay.scaled.len(), 1);
        let mut same = manifests.clone();
        Overlay::default().lay(&mut same);
        assert_eq!(same, manifests);
    }
}
