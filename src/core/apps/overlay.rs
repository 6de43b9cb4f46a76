//! Overlay of a revision: changes on top of its manifests, which stay when the
//! manifests are deployed again.

use litemap::LiteMap;
use serde_json::{Map, Value};

use super::{
    super::time::Wall,
    Manifest,
    digests::{pod_of, workload},
    suggest::{CONTAINERS_MAX, Sizes},
    values::{is_other_content, read_names},
};

/// Annotation of Pods with the time of a restart: another value makes the controller replace them.
/// Of configuration that they read it says when it changed, and nothing about what it holds.
const RESTARTED: &str = "pipeops.io/restarted-at";
/// Workloads whose configuration changed at a time of their own, because the record has to fit into
/// a Secret.
const RECONFIGURED_MAX: usize = 8;
/// Word between the sizes of a manifest and those that take their place.
const BECOMES: &str = " > ";

/// Changes on top of the manifests: scale, restart, digests, sizes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Overlay {
    /// Numbers of Pods, by workload: `Deployment/web`.
    pub scaled: LiteMap<String, u64>,
    /// Time of the last restart; the beginning of time where there was none.
    pub restarted: Wall,
    /// Times since when the Pods of a workload read other configuration, in milliseconds:
    /// `Deployment/web`.
    pub reconfigured: LiteMap<String, u64>,
    /// Digests that its Pods ran when the revision became good, by the names of its images; for an
    /// image without one a word that [`super::unpinned`] knows.
    pub digests: LiteMap<String, String>,
    /// Workloads that are deployed by these digests, because they went back: `Deployment/web`.
    pub pinned: Vec<String>,
    /// Secrets that somebody changed before it went back, and that keep their value: `Secret/key`;
    /// and what could not go back.
    pub kept: Vec<String>,
    /// Requests and limits by container, `Deployment/web/app`: those of the manifest, and those
    /// that take their place for as long as it says the same.
    pub sized: LiteMap<String, String>,
}

impl Overlay {
    /// Key of a workload in [`Overlay::scaled`]; `None`: its number of Pods is not in it.
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

    /// Applies the overlay to manifests.
    pub fn apply(&self, manifests: &mut [Manifest]) {
        for manifest in manifests {
            if let Some(count) = Self::key(manifest).and_then(|key| self.scaled.get(&key)) {
                place(
                    &mut manifest.object,
                    &["spec", "replicas"],
                    Value::from(*count),
                );
            }
            let restarted = self.restarted(manifest);
            if Self::is_restarted(manifest) && restarted != Wall::default() {
                let path = ["spec", "template", "metadata", "annotations", RESTARTED];
                let restarted = Value::from(restarted.rfc3339());
                place(&mut manifest.object, &path, restarted);
            }
            self.lay_digests(manifest);
            self.lay_sizes(manifest);
        }
    }

    /// Time since when the Pods of a workload are to be new ones.
    fn restarted(&self, manifest: &Manifest) -> Wall {
        let of_its_own = self.reconfigured.get(&workload(manifest)).copied();
        let of_its_own = i64::try_from(of_its_own.unwrap_or_default());
        self.restarted
            .max(Wall::from_millis(of_its_own.unwrap_or_default()))
    }

    /// Has the Pods of the workloads replaced that read a ConfigMap or Secret of the app with
    /// another content than in the version before: a container reads its variables when it starts.
    pub fn reconfigure(&mut self, before: &[Manifest], manifests: &[Manifest], now: Wall) {
        let changed = manifests
            .iter()
            .filter(|manifest| is_other_content(before, manifest));
        let changed: Vec<_> = changed.map(workload).collect();
        if changed.is_empty() {
            return;
        }
        for manifest in manifests.iter().filter(|it| Self::is_restarted(it)) {
            let read = read_names(manifest);
            if !changed.iter().any(|name| read.contains(name)) {
                continue;
            }
            let key = workload(manifest);
            match u64::try_from(now.millis()) {
                Ok(now)
                    if self.reconfigured.len() < RECONFIGURED_MAX
                        || self.reconfigured.contains_key(&key) =>
                {
                    self.reconfigured.insert(key, now);
                }
                Ok(_) | Err(_) => self.restarted = now,
            }
        }
    }

    /// Key of a container in [`Overlay::sized`].
    pub fn container_key(manifest: &Manifest, container: &Value) -> String {
        let name = container.get("name").and_then(Value::as_str);
        format!("{}/{}", workload(manifest), name.unwrap_or_default())
    }

    /// Gives a container other sizes than its manifest has.
    pub fn resize(&mut self, key: &str, (from, to): (&Sizes, &Sizes)) {
        if self.sized.len() < CONTAINERS_MAX || self.sized.contains_key(key) {
            let sizes = format!("{from}{BECOMES}{to}");
            self.sized.insert(key.to_owned(), sizes);
        }
    }

    fn lay_sizes(&self, manifest: &mut Manifest) {
        let Some(path) = pod_of(manifest).filter(|_| !self.sized.is_empty()) else {
            return;
        };
        let head = format!("{}/", workload(manifest));
        let containers = manifest.object.pointer_mut(&format!("{path}/containers"));
        for container in containers
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            let name = container.get("name").and_then(Value::as_str);
            let key = format!("{head}{}", name.unwrap_or_default());
            let sizes = self
                .sized
                .get(&key)
                .and_then(|sizes| sizes.split_once(BECOMES));
            let Some((_, to)) = sizes else {
                continue;
            };
            for (word, (list, resource, _)) in to.split(' ').zip(Sizes::default().quantities()) {
                if word != "-" {
                    place(container, &["resources", list, resource], Value::from(word));
                }
            }
        }
    }

    /// Returns whether an object stays as it is: it keeps the value that somebody gave it, or could
    /// not go back.
    pub fn keeps(&self, manifest: &Manifest) -> bool {
        self.kept.contains(&workload(manifest))
    }

    /// Has objects written again whose manifests are other ones by now.
    pub fn fit_kept(&mut self, before: &[Manifest], manifests: &[Manifest]) {
        self.kept.retain(|key| {
            let mut same = manifests.iter().filter(|it| before.contains(it));
            same.any(|it| workload(it) == *key)
        });
    }

    /// Forgets sizes of containers for which the manifests say something else by now.
    pub fn fit_sizes(&mut self, manifests: &[Manifest]) {
        let says: Vec<_> = manifests
            .iter()
            .flat_map(|manifest| containers(manifest).map(move |one| (manifest, one)))
            .map(|(manifest, container)| {
                (
                    Self::container_key(manifest, container),
                    Sizes::of(container).to_string(),
                )
            })
            .collect();
        self.sized.retain(|key, sizes| {
            let from = sizes.split_once(BECOMES).map(|(from, _)| from);
            says.iter()
                .any(|(known, says)| known == key && Some(says.as_str()) == from)
        });
    }

    /// Forgets entries of workloads that are not there any more, and how it went back: the words
    /// of the manifests count again.
    pub fn fit(&mut self, manifests: &[Manifest]) {
        self.unpin();
        self.kept.clear();
        let keys: Vec<_> = manifests.iter().filter_map(Self::key).collect();
        self.scaled.retain(|key, _| keys.contains(key));
        let all: Vec<_> = manifests.iter().map(workload).collect();
        self.reconfigured.retain(|key, _| all.contains(key));
        self.fit_sizes(manifests);
    }
}

/// Containers of a workload, without those that only prepare it.
pub fn containers(manifest: &Manifest) -> impl Iterator<Item = &Value> {
    let pod = pod_of(manifest).and_then(|path| manifest.object.pointer(path));
    let list = pod.and_then(|pod| pod.get("containers")?.as_array());
    list.into_iter().flatten()
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
            scaled: LiteMap::from_iter([
                ("Deployment/web".to_owned(), 3),
                ("Deployment/old".to_owned(), 2),
                ("DaemonSet/web".to_owned(), 2),
            ]),
            restarted: Wall::from_millis(1000),
            ..Overlay::default()
        };
        let mut laid = manifests.clone();
        overlay.apply(&mut laid);
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
        Overlay::default().apply(&mut same);
        assert_eq!(same, manifests);
    }

    /// Three workloads, of which two read the ConfigMap, with these values.
    fn configured(map: &str, secret: &str) -> Vec<Manifest> {
        let workload = |kind: &str, name: &str, pod: &str| {
            format!(
                "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{template: {{spec: {pod}}}}}\n---\n"
            )
        };
        let text = [
            workload(
                "Deployment",
                "env",
                "{containers: [{name: a, envFrom: [{configMapRef: {name: settings}}]}]}",
            ),
            workload(
                "StatefulSet",
                "volume",
                "{volumes: [{name: v, projected: {sources: [{configMap: {name: settings}}, {secret: {name: key}}]}}]}",
            ),
            workload(
                "DaemonSet",
                "other",
                "{containers: [{name: a, env: [{name: A, valueFrom: {configMapKeyRef: {name: foreign, key: a}}}]}]}",
            ),
            format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings}}\ndata: {map}\n---\n"
            ),
            format!(
                "apiVersion: v1\nkind: Secret\nmetadata: {{name: key}}\nstringData: {secret}\n"
            ),
        ];
        parse(&text.concat(), Some("shop")).unwrap()
    }

    #[test]
    fn only_the_readers_of_changed_configuration_are_replaced() {
        let at = Wall::from_millis;
        let first = configured("{a: b}", "{k: one}");
        let mut overlay = Overlay::default();
        // Neither is a first version, nor one that says the same.
        overlay.reconfigure(&[], &first, at(1000));
        overlay.reconfigure(&first, &configured("{a: b}", "{k: one}"), at(1000));
        assert_eq!(overlay, Overlay::default());
        let key = configured("{a: b}", "{k: two}");
        overlay.reconfigure(&first, &key, at(2000));
        assert_eq!(overlay.reconfigured.len(), 1);
        let mut map = configured("{a: c}", "{k: two}");
        overlay.reconfigure(&key, &map, at(3000));
        overlay.fit(&map);
        let again = overlay.clone();
        overlay.reconfigure(&map, &map, at(4000));
        assert_eq!(overlay, again);
        overlay.apply(&mut map);
        let annotation = |manifest: &Manifest| {
            let path = ["spec", "template", "metadata", "annotations", RESTARTED];
            let found = path
                .iter()
                .try_fold(&manifest.object, |it, step| it.get(step));
            found.and_then(Value::as_str).map(str::to_owned)
        };
        let of = |name: &str| annotation(map.iter().find(|it| it.name == name).unwrap());
        assert_eq!(of("env"), Some(at(3000).rfc3339()));
        assert_eq!(of("volume"), Some(at(3000).rfc3339()));
        assert_eq!((of("other"), of("settings"), of("key")), (None, None, None));
        // A restart of all is newer.
        overlay.restarted = at(5000);
        overlay.apply(&mut map);
        let all = map.iter().filter_map(annotation);
        assert!(all.eq(std::iter::repeat_n(at(5000).rfc3339(), 3)));
    }

    #[test]
    fn sizes_hold_until_the_manifest_says_something_else() {
        let text = |image: &str, memory: &str| {
            let pod = format!(
                "{{containers: [{{name: a, image: {image}, resources: {{limits: {{memory: {memory}, gpu: 1}}}}}}, {{name: b}}]}}"
            );
            let text = format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec: {{template: {{spec: {pod}}}}}\n---\n\
                apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: web}}\nspec: {{jobTemplate: {{spec: {{template: {{spec: {pod}}}}}}}}}\n"
            );
            parse(&text, Some("shop")).unwrap()
        };
        let manifests = text("web:1", "64Mi");
        let from = Sizes::of(containers(&manifests[0]).next().unwrap());
        let to = Sizes {
            cpu_request: Some(60),
            memory_limit: Some(96 << 20),
            ..Sizes::default()
        };
        let mut overlay = Overlay::default();
        for key in ["Deployment/web/a", "CronJob/web/a", "Deployment/web/gone"] {
            overlay.resize(key, (&from, &to));
        }
        overlay.fit(&manifests);
        assert_eq!(overlay.sized.len(), 2);
        let mut laid = text("web:2", "65536Ki");
        overlay.fit(&laid);
        overlay.apply(&mut laid);
        for manifest in &laid {
            let all: Vec<_> = containers(manifest).map(|one| &one["resources"]).collect();
            let wanted = serde_json::json!({"requests": {"cpu": "60m"}, "limits": {"memory": "96Mi", "gpu": 1}});
            assert_eq!(all, [&wanted, &Value::Null]);
        }
        overlay.fit(&text("web:2", "128Mi"));
        assert!(overlay.sized.is_empty());
    }
}
