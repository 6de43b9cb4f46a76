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
/// Kinds of objects of which one may be what an app is about.
const WORKLOADS: [&str; 4] = ["Deployment", "StatefulSet", "DaemonSet", "HelmChart"];
/// Fix of what a few words do not say.
const BY_MANIFEST: &str = "change its manifest: sudo pipeops-agent apps apply";

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
    options: &Simple,
) -> Result<Vec<Manifest>, Problem> {
    let objects = before.iter().map(|manifest| manifest.object.clone());
    let mut objects = Objects(objects.collect());
    let mut web = objects.deployment(name)?;
    // It is put back below.
    let taken = web.pointer_mut(CONTAINER).map(Value::take);
    let Some(mut container) = taken.filter(Value::is_object) else {
        return Err(problem(
            format!("Deployment {name}"),
            "it has no container",
            BY_MANIFEST,
        ));
    };
    if let Some(image) = &options.image {
        place(&mut container, &["image"], json!(image));
    }
    if container.get("image").is_none() {
        return Err(problem(
            format!("{name} is not deployed"),
            "it does not exist yet, and no image is named",
            "--image REGISTRY/NAME:TAG",
        ));
    }
    if let Some(port) = options.port {
        listen(&mut objects, (&web, &mut container), (name, port))?;
    }
    if let Some(host) = &options.host {
        reach(&mut objects, &web, (name, host))?;
    }
    if let Some(secret) = &options.pull_secret {
        let path = ["spec", "template", "spec", "imagePullSecrets"];
        place(&mut web, &path, json!([{ "name": secret }]));
    }
    variables(&mut objects, &mut container, (name, options));
    volumes(&mut objects, (&mut web, &mut container), (name, options))?;
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

/// Has the container listen on another port, and leads its probes and Services there. What is not
/// there yet is made.
fn listen(
    objects: &mut Objects,
    (web, container): (&Value, &mut Value),
    (name, port): (&str, u16),
) -> Result<(), Problem> {
    let is_http = |one: &Value| text(one, "/name") == "http";
    let old = match list(container, "/ports") {
        [] => None,
        [_] => Some(0),
        many => Some(many.iter().position(is_http).ok_or_else(|| {
            let what = format!("the container of Deployment {name}");
            problem(
                what,
                "it has several ports, and none is named http",
                BY_MANIFEST,
            )
        })?),
    };
    let port = json!(port);
    let old = old.and_then(|at| container.pointer_mut(&format!("/ports/{at}/containerPort")));
    let old = old.map(|old| std::mem::replace(old, port.clone()));
    if let Some(old) = &old {
        for probe in ["readinessProbe", "livenessProbe", "startupProbe"] {
            for action in ["httpGet", "tcpSocket", "grpc"] {
                let found = container.pointer_mut(&format!("/{probe}/{action}/port"));
                if let Some(found) = found.filter(|found| *found == old) {
                    found.clone_from(&port);
                }
            }
        }
    } else {
        let ports = json!([{"name": "http", "containerPort": port}]);
        place(container, &["ports"], ports);
        if container.get("readinessProbe").is_none() {
            // Without a probe a program that hangs at its start counts as ready.
            let probe = json!({"tcpSocket": {"port": "http"}});
            place(container, &["readinessProbe"], probe);
        }
    }
    if objects.service_of(web).is_none() {
        if objects.get("Service", name).is_some() {
            let why = "it leads to other Pods than those of the Deployment";
            return Err(problem(format!("Service {name}"), why, BY_MANIFEST));
        }
        objects.put(service(name, web));
    }
    for service in objects.0.iter_mut().filter(|it| leads_to(it, web)) {
        let is_only = list(service, "/spec/ports").len() == 1;
        let entries = service.pointer_mut("/spec/ports");
        let entries = entries.and_then(Value::as_array_mut);
        for entry in entries.into_iter().flatten() {
            let target = entry.get("targetPort").or_else(|| entry.get("port"));
            let is_meant = old.as_ref().map_or_else(
                || is_only && target.is_some_and(Value::is_number),
                |old| target == Some(old),
            );
            if is_meant {
                place(entry, &["targetPort"], port.clone());
            }
        }
    }
    Ok(())
}

/// Has the Ingress lead from another host to the Service of the app.
fn reach(objects: &mut Objects, web: &Value, (name, host): (&str, &str)) -> Result<(), Problem> {
    let Some(mut known) = objects.get("Ingress", name) else {
        let service = objects.service_of(web).ok_or_else(|| {
            let what = format!("{name} cannot be reached as {host}");
            problem(what, "it has no port", "--port PORT")
        })?;
        let made = ingress(name, host, service);
        objects.put(made);
        return Ok(());
    };
    let [rule] = list(&known, "/spec/rules") else {
        let why = "it has not exactly one rule";
        return Err(problem(format!("Ingress {name}"), why, BY_MANIFEST));
    };
    let old = rule.get("host").cloned();
    if let Some(rule) = known.pointer_mut("/spec/rules/0") {
        place(rule, &["host"], json!(host));
    }
    let certificates = known.pointer_mut("/spec/tls").and_then(Value::as_array_mut);
    for certificate in certificates.into_iter().flatten() {
        let hosts = certificate.get_mut("hosts").and_then(Value::as_array_mut);
        for known in hosts.into_iter().flatten() {
            if Some(&*known) == old.as_ref() {
                *known = json!(host);
            }
        }
    }
    objects.put(known);
    Ok(())
}

/// Returns whether an object is a Service that leads to the Pods of a Deployment.
fn leads_to(object: &Value, web: &Value) -> bool {
    let labels = web.pointer("/spec/template/metadata/labels");
    let selector = object.pointer("/spec/selector").and_then(Value::as_object);
    text(object, "/kind") == "Service"
        && selector.is_some_and(|selector| {
            !selector.is_empty()
                && selector
                    .iter()
                    .all(|(name, value)| labels.and_then(|all| all.get(name)) == Some(value))
        })
}

/// A list in an object; empty where there is none.
fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    let found = object.pointer(pointer).and_then(Value::as_array);
    found.map(Vec::as_slice).unwrap_or_default()
}

/// Sets the variables that are named, with the Secret of those whose values are secret.
fn variables(objects: &mut Objects, container: &mut Value, (name, options): (&str, &Simple)) {
    for (variable, value) in &options.env {
        let variable = json!({"name": variable, "value": value});
        upsert(container, ("env", "name"), variable);
    }
    if options.secret_env.is_empty() {
        return;
    }
    let secret = format!("{name}-env");
    let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret}});
    let mut object = objects.get("Secret", &secret).unwrap_or(object);
    for (variable, value) in &options.secret_env {
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
    (name, options): (&str, &Simple),
) -> Result<(), Problem> {
    for (path, size) in &options.volumes {
        let claim = claim_name(name, path)?;
        let mount = json!({"name": claim, "mountPath": path});
        upsert(container, ("volumeMounts", "mountPath"), mount);
        let volume = json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
        if let Some(pod) = web.pointer_mut("/spec/template/spec") {
            upsert(pod, ("volumes", "name"), volume);
        }
        // A volume of one node cannot be mounted by two versions at once.
        place(web, &["spec", "strategy"], json!({"type": "Recreate"}));
        let fresh = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim},
            "spec": {"accessModes": ["ReadWriteOnce"]},
        });
        let known = objects.get("PersistentVolumeClaim", &claim);
        let mut object = known.unwrap_or(fresh);
        let path = ["spec", "resources", "requests", "storage"];
        place(&mut object, &path, json!(size));
        objects.put(object);
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

    /// The Deployment that is meant: that of this name, or the only one. Of an app without objects
    /// it is made.
    fn deployment(&self, name: &str) -> Result<Value, Problem> {
        if self.0.is_empty() {
            return Ok(fresh(name));
        }
        if let Some(named) = self.get("Deployment", name) {
            return Ok(named);
        }
        let is_workload = |object: &&Value| WORKLOADS.contains(&text(object, "/kind").as_str());
        let mut all = self.0.iter().filter(is_workload);
        if let (Some(only), None) = (all.next(), all.next())
            && text(only, "/kind") == "Deployment"
        {
            return Ok(only.clone());
        }
        let why = format!("it has no Deployment {name}, and not one Deployment alone");
        Err(problem(
            format!("{name} is not deployed"),
            &why,
            BY_MANIFEST,
        ))
    }

    /// The Service that leads to the Pods of a Deployment.
    fn service_of(&self, web: &Value) -> Option<&Value> {
        self.0.iter().find(|object| leads_to(object, web))
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

fn service(name: &str, web: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {
            "selector": web.pointer("/spec/selector/matchLabels"),
            "ports": [{"name": "http", "port": SERVICE_PORT, "targetPort": "http"}],
        },
    })
}

fn ingress(name: &str, host: &str, service: &Value) -> Value {
    let port = list(service, "/spec/ports").first();
    let port = match port.map(|port| (text(port, "/name"), port.get("port"))) {
        Some((name, _)) if !name.is_empty() => json!({"name": name}),
        Some((_, number)) => json!({"number": number}),
        None => json!({}),
    };
    let backend = json!({"service": {"name": text(service, "/metadata/name"), "port": port}});
    let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": name},
        "spec": {"rules": [{"host": host, "http": {"paths": paths}}]},
    })
}

/// Name of the claim of a path: `web-var-lib-data` for `/var/lib/data`.
fn claim_name(name: &str, path: &str) -> Result<String, Problem> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
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
    use crate::core::apps::parse;

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
        let options = Simple {
            image: Some("i:2".to_owned()),
            env: map(&[("B", "3")]),
            ..Simple::default()
        };
        let second = deployed(("web", "shop"), &first, &options).unwrap();
        let mut wanted = first[3].clone();
        let container = wanted.object.pointer_mut(CONTAINER).unwrap();
        container["image"] = json!("i:2");
        container["env"][1]["value"] = json!("3");
        assert_eq!(second[3], wanted);
        assert_eq!(second[..3], first[..3]);
    }

    #[test]
    fn the_only_deployment_is_meant_whatever_its_name() {
        let options = Simple {
            image: Some("i:2".to_owned()),
            ..Simple::default()
        };
        let other = BY_HAND.replace("{name: web}\nspec:\n", "{name: front}\nspec:\n");
        assert_ne!(other, BY_HAND);
        let [mut wanted, after] = by_hand(&other, &options).map(Result::unwrap);
        let image = wanted[1].object.pointer_mut(&format!("{CONTAINER}/image"));
        *image.unwrap() = json!("i:2");
        assert_eq!(after, wanted);
        let second = other
            .split("---")
            .nth(1)
            .unwrap()
            .replace("front}\nspec", "back}\nspec");
        let service = BY_HAND.split("---").next().unwrap();
        let database = second.replace("kind: Deployment", "kind: StatefulSet");
        assert_ne!(database, second);
        for unclear in [
            format!("{other}---{second}"),
            format!("{other}---{database}"),
            service.to_owned(),
        ] {
            let [_, after] = by_hand(&unclear, &options);
            assert_eq!(after.unwrap_err().fix, BY_MANIFEST);
        }
    }

    const BY_HAND: &str = "
apiVersion: v1
kind: Service
metadata: {name: front}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{name: web, port: 80, targetPort: 8080}, {name: metrics, port: 9090}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, tier: front}}
    spec:
      containers:
      - name: web
        image: i:1
        ports: [{name: http, containerPort: 8080}, {name: metrics, containerPort: 9090}]
        readinessProbe: {httpGet: {path: /ready, port: 8080}}
        livenessProbe: {tcpSocket: {port: metrics}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, annotations: {a: b}}
spec:
  ingressClassName: own
  tls: [{hosts: [old.example, more.example], secretName: tls}]
  rules: [{host: old.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: front, port: {name: web}}}}]}}]
";

    /// Manifests, and what these words make of them.
    fn by_hand(text: &str, options: &Simple) -> [Result<Vec<Manifest>, Problem>; 2] {
        let before = parse(text, Some("shop"));
        let after = before
            .as_ref()
            .map(|before| deployed(("web", "shop"), before, options));
        let after = after.map_err(Clone::clone).flatten();
        [before, after]
    }

    #[test]
    fn a_port_and_a_host_change_nothing_else_of_objects_that_were_made_by_hand() {
        let options = Simple {
            port: Some(8081),
            host: Some("new.example".to_owned()),
            ..Simple::default()
        };
        let [mut wanted, after] = by_hand(BY_HAND, &options).map(Result::unwrap);
        for (at, pointer, value) in [
            (0, "/spec/ports/0/targetPort", json!(8081)),
            (
                1,
                "/spec/template/spec/containers/0/ports/0/containerPort",
                json!(8081),
            ),
            (
                1,
                "/spec/template/spec/containers/0/readinessProbe/httpGet/port",
                json!(8081),
            ),
            (2, "/spec/rules/0/host", json!("new.example")),
            (2, "/spec/tls/0/hosts/0", json!("new.example")),
        ] {
            *wanted[at].object.pointer_mut(pointer).unwrap() = value;
        }
        assert_eq!(after, wanted);
    }

    #[test]
    fn what_is_missing_beside_objects_that_were_made_by_hand_is_made_for_their_pods() {
        let options = Simple {
            host: Some("new.example".to_owned()),
            ..Simple::default()
        };
        let own = BY_HAND.replace("name: web, annotations", "name: own, annotations");
        let [_, after] = by_hand(&own, &options).map(Result::unwrap);
        let backend = &after[3].object["spec"]["rules"][0]["http"]["paths"][0]["backend"];
        assert_eq!(
            *backend,
            json!({"service": {"name": "front", "port": {"name": "web"}}})
        );
        let options = Simple {
            port: Some(8081),
            ..Simple::default()
        };
        let alone = BY_HAND.split("---").nth(1).unwrap();
        let [_, after] = by_hand(alone, &options).map(Result::unwrap);
        assert_eq!(after[0].object["spec"]["selector"], json!({"app": "web"}));
    }

    #[test]
    fn what_a_few_words_do_not_say_is_left_to_the_manifest() {
        let port = Simple {
            port: Some(8081),
            ..Simple::default()
        };
        let host = Simple {
            host: Some("new.example".to_owned()),
            ..Simple::default()
        };
        for (from, to, options) in [
            (
                "name: http, containerPort",
                "name: main, containerPort",
                &port,
            ),
            (
                "front}\nspec: {type: LoadBalancer, selector: {app: web",
                "web}\nspec: {selector: {app: other",
                &port,
            ),
            ("rules: [", "rules: [{host: more.example}, ", &host),
        ] {
            let text = BY_HAND.replace(from, to);
            assert_ne!(text, BY_HAND, "{from}");
            let [_, after] = by_hand(&text, options);
            assert_eq!(after.unwrap_err().fix, BY_MANIFEST, "{from}");
        }
    }

    #[test]
    fn a_word_that_is_missing_is_asked_for() {
        let refused = |options: Simple| deployed(("web", "shop"), &[], &options).unwrap_err().fix;
        assert_eq!(refused(Simple::default()), "--image REGISTRY/NAME:TAG");
        let of = |options: Simple| Simple {
            image: Some("i".to_owned()),
            ..options
        };
        let host = Simple {
            host: Some("h".to_owned()),
            ..Simple::default()
        };
        assert_eq!(refused(of(host)), "--port PORT");
        for path in ["data", "/", "/a b"] {
            let volumes = map(&[(path, "1Gi")]);
            let options = Simple {
                volumes,
                ..Simple::default()
            };
            assert_eq!(refused(of(options)), "--volume /data:1Gi");
        }
    }
}
