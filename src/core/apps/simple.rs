//! Manifests of an app of one container, made from a few words; and the same changed by a few
//! words, where only what is named changes.

use litemap::LiteMap;
use serde_json::{Value, json};

use super::{
    kinds::kind_of,
    manifests::{Manifest, Problem, judged, problem},
    overlay::place,
};
use crate::core::order::GatherExt as _;

/// The container in a Deployment.
const CONTAINER: &str = "/spec/template/spec/containers/0";
/// Port of the Service.
const SERVICE_PORT: u16 = 80;

/// A few words about an app of one container. What is absent stays as it is.
#[derive(Clone, Debug, Default)]
pub struct Simple {
    /// Namespace; empty: the one of the app.
    pub namespace: String,
    pub image: Option<String>,
    /// Port that the program listens on.
    pub port: Option<u16>,
    /// Name of the host under which it is reached.
    pub host: Option<String>,
    /// Environment variables.
    pub env: LiteMap<String, String>,
    /// Environment variables with values that go into a Secret.
    pub secret_env: LiteMap<String, String>,
    /// Sizes of volumes by the path where they are mounted: `/data`, `1Gi`.
    pub volumes: LiteMap<String, String>,
    /// Name of the Secret with the credentials of the registry.
    pub pull_secret: Option<String>,
}

/// The manifests of `name` with these words; `before` is what it has now.
///
/// # Errors
/// The word that is missing or makes no sense.
pub fn deployed(
    (name, namespace): (&str, &str),
    before: &[Manifest],
    wish: &Simple,
) -> Result<Vec<Manifest>, Problem> {
    let objects = before.iter().map(|manifest| manifest.object.clone());
    let mut objects = Objects(objects.collect());
    let mut web = objects
        .get("Deployment", name)
        .unwrap_or_else(|| fresh(name));
    // It is put back below.
    let taken = web.pointer_mut(CONTAINER).map(Value::take);
    let Some(mut container) = taken.filter(Value::is_object) else {
        return Err(problem(
            format!("Deployment {name}"),
            "it has no container",
            "change its manifest: pipeops-agent apps apply",
        ));
    };
    if let Some(image) = &wish.image {
        place(&mut container, &["image"], json!(image));
    }
    if container.get("image").is_none() {
        return Err(problem(
            format!("{name} is not deployed"),
            "it does not exist yet, and no image is named",
            "--image REGISTRY/NAME:TAG",
        ));
    }
    if let Some(port) = wish.port {
        let ports = json!([{"name": "http", "containerPort": port}]);
        place(&mut container, &["ports"], ports);
        // Without a probe a program that hangs at its start counts as ready.
        let probe = json!({"tcpSocket": {"port": "http"}});
        place(&mut container, &["readinessProbe"], probe);
        objects.put(service(name));
    }
    if let Some(host) = &wish.host {
        if objects.get("Service", name).is_none() {
            let what = format!("{name} cannot be reached as {host}");
            return Err(problem(what, "it has no port", "--port PORT"));
        }
        objects.put(ingress(name, host));
    }
    if let Some(secret) = &wish.pull_secret {
        let path = ["spec", "template", "spec", "imagePullSecrets"];
        place(&mut web, &path, json!([{ "name": secret }]));
    }
    variables(&mut objects, &mut container, (name, wish));
    volumes(&mut objects, (&mut web, &mut container), (name, wish))?;
    if let Some(place) = web.pointer_mut(CONTAINER) {
        *place = container;
    }
    objects.put(web);
    let customs = before.iter().filter(|manifest| manifest.kind.is_custom());
    let customs = customs.map(|manifest| {
        let text = |pointer| text(&manifest.object, pointer);
        ((text("/apiVersion"), text("/kind")), manifest.kind.clone())
    });
    judged(objects.0, Some(namespace), &customs.gather())
}

/// Sets the variables that are named, with the Secret of those whose values are secret.
fn variables(objects: &mut Objects, container: &mut Value, (name, wish): (&str, &Simple)) {
    for (variable, value) in &wish.env {
        let variable = json!({"name": variable, "value": value});
        upsert(container, ("env", "name"), variable);
    }
    if wish.secret_env.is_empty() {
        return;
    }
    let secret = format!("{name}-env");
    let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret}});
    let mut object = objects.get("Secret", &secret).unwrap_or(object);
    for (variable, value) in &wish.secret_env {
        place(&mut object, &["stringData", variable], json!(value));
        let source = json!({"secretKeyRef": {"name": secret, "key": variable}});
        let variable = json!({"name": variable, "valueFrom": source});
        upsert(container, ("env", "name"), variable);
    }
    objects.put(object);
}

/// Mounts the volumes that are named, each with its claim.
fn volumes(
    objects: &mut Objects,
    (web, container): (&mut Value, &mut Value),
    (name, wish): (&str, &Simple),
) -> Result<(), Problem> {
    for (path, size) in &wish.volumes {
        let claim = claim_name(name, path)?;
        let mount = json!({"name": claim, "mountPath": path});
        upsert(container, ("volumeMounts", "mountPath"), mount);
        let volume = json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
        if let Some(pod) = web.pointer_mut("/spec/template/spec") {
            upsert(pod, ("volumes", "name"), volume);
        }
        // A volume of one node cannot be mounted by two versions at once.
        place(web, &["spec", "strategy"], json!({"type": "Recreate"}));
        objects.put(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
        }));
    }
    Ok(())
}

/// Objects of an app.
struct Objects(Vec<Value>);

impl Objects {
    fn get(&self, kind: &str, name: &str) -> Option<Value> {
        let is_meant = |object: &&Value| is(object, kind, name);
        self.0.iter().find(is_meant).cloned()
    }

    /// Takes an object in, in the place of the one with its kind and name.
    fn put(&mut self, object: Value) {
        let (kind, name) = (text(&object, "/kind"), text(&object, "/metadata/name"));
        self.0.retain(|known| !is(known, &kind, &name));
        self.0.push(object);
    }
}

fn is(object: &Value, kind: &str, name: &str) -> bool {
    kind_of(&text(object, "/apiVersion"), kind).is_some()
        && text(object, "/kind") == kind
        && text(object, "/metadata/name") == name
}

fn text(object: &Value, pointer: &str) -> String {
    let text = object.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

/// Puts an item into the list `field`, in the place of the one with the same `key`.
fn upsert(object: &mut Value, (field, key): (&str, &str), item: Value) {
    let Some(fields) = object.as_object_mut() else {
        return;
    };
    let list = fields.entry(field.to_owned()).or_insert_with(|| json!([]));
    let Some(items) = list.as_array_mut() else {
        return;
    };
    match items
        .iter_mut()
        .find(|known| known.get(key) == item.get(key))
    {
        Some(known) => *known = item,
        None => items.push(item),
    }
}

fn fresh(name: &str) -> Value {
    let labels = json!({"app.kubernetes.io/name": name});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": name}]}},
        },
    })
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {
            "selector": {"app.kubernetes.io/name": name},
            "ports": [{"name": "http", "port": SERVICE_PORT, "targetPort": "http"}],
        },
    })
}

fn ingress(name: &str, host: &str) -> Value {
    let backend = json!({"service": {"name": name, "port": {"name": "http"}}});
    let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": name},
        "spec": {"rules": [{"host": host, "http": {"paths": paths}}]},
    })
}

/// Name of the claim of a path: `web-var-lib-data` for `/var/lib/data`.
fn claim_name(name: &str, path: &str) -> Result<String, Problem> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/-_.".contains(letter);
    let steps = path.split('/').filter(|step| !step.is_empty());
    let words: Vec<_> = steps
        .map(|step| step.to_ascii_lowercase().replace(['_', '.'], "-"))
        .collect();
    if !path.starts_with('/') || words.is_empty() || !path.chars().all(is_plain) {
        return Err(problem(
            format!("the volume {path:?}"),
            "it is not a path in a container",
            "--volume /data:1Gi",
        ));
    }
    Ok(format!("{name}-{}", words.join("-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(manifests: &[Manifest]) -> Vec<String> {
        manifests.iter().map(Manifest::in_words).collect()
    }

    fn map(pairs: &[(&str, &str)]) -> LiteMap<String, String> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    fn whole() -> Simple {
        Simple {
            image: Some("i:1".to_owned()),
            port: Some(8080),
            host: Some("web.example".to_owned()),
            env: map(&[("A", "1"), ("B", "2")]),
            secret_env: map(&[("KEY", "s3cret")]),
            volumes: map(&[("/var/data", "1Gi")]),
            pull_secret: Some("ghcr".to_owned()),
            ..Simple::default()
        }
    }

    #[test]
    fn a_few_words_make_everything_that_an_app_needs() {
        let made = deployed(("web", "shop"), &[], &whole()).unwrap();
        assert_eq!(
            words(&made),
            [
                "Secret shop/web-env",
                "PersistentVolumeClaim shop/web-var-data",
                "Service shop/web",
                "Deployment shop/web",
                "Ingress shop/web"
            ]
        );
        let pod = &made[3].object["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        assert_eq!(container["image"], "i:1");
        assert_eq!(container["env"].as_array().unwrap().len(), 3);
        assert_eq!(container["volumeMounts"][0]["mountPath"], "/var/data");
        assert_eq!(pod["volumes"][0]["name"], "web-var-data");
        assert_eq!(pod["imagePullSecrets"][0]["name"], "ghcr");
        assert!(!made[3].object.to_string().contains("s3cret"));
    }

    #[test]
    fn a_second_deploy_changes_only_what_is_named() {
        let first = deployed(("web", "shop"), &[], &whole()).unwrap();
        let same = deployed(("web", "shop"), &first, &Simple::default()).unwrap();
        assert_eq!(same, first);
        let wish = Simple {
            image: Some("i:2".to_owned()),
            env: map(&[("B", "3")]),
            ..Simple::default()
        };
        let second = deployed(("web", "shop"), &first, &wish).unwrap();
        let mut wanted = first[3].clone();
        let container = wanted.object.pointer_mut(CONTAINER).unwrap();
        container["image"] = json!("i:2");
        container["env"][1]["value"] = json!("3");
        assert_eq!(second[3], wanted);
        assert_eq!(second[..3], first[..3]);
    }

    #[test]
    fn a_word_that_is_missing_is_asked_for() {
        let refused = |wish: Simple| deployed(("web", "shop"), &[], &wish).unwrap_err().fix;
        assert_eq!(refused(Simple::default()), "--image REGISTRY/NAME:TAG");
        let of = |wish: Simple| Simple {
            image: Some("i".to_owned()),
            ..wish
        };
        let host = Simple {
            host: Some("h".to_owned()),
            ..Simple::default()
        };
        assert_eq!(refused(of(host)), "--port PORT");
        for path in ["data", "/", "/a b"] {
            let volumes = map(&[(path, "1Gi")]);
            let wish = Simple {
                volumes,
                ..Simple::default()
            };
            assert_eq!(refused(of(wish)), "--volume /data:1Gi");
        }
    }
}
