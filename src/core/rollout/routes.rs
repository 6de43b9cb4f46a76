//! Services and Ingresses of a version whose Pods are ready: whether anything can be reached
//! through them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    Cause, Finding, Key, Object, Observation, Scope,
    messages::evidence,
    object::{list, may_make, text},
    pods::{declared_ports, named_ports},
    workloads,
};

/// Reasons why nobody is reached.
pub(super) fn findings(scope: &Scope, seen: &Observation) -> Vec<Finding> {
    let mut found = Vec::new();
    // Pods of a CronJob come at their time, and what the controllers of others make nobody knows.
    let makes_pods = |key: &Key| key.kind == "CronJob" || may_make(&key.kind);
    let may_come = scope.targets.keys().any(makes_pods);
    let is_meant = |found: &Finding| !(may_come && found.cause == Cause::ServiceNoEndpoints);
    for key in scope.targets.keys() {
        let Some(target) = seen.get(key) else {
            continue;
        };
        match target.kind() {
            "Service" => found.extend(service(target, seen).filter(is_meant)),
            "Ingress" => found.extend(ingress(target, (scope, seen))),
            _ => {}
        }
    }
    found
}

/// Pods that a Service leads to; `None`: it has no selector.
fn selected<'a>(target: &Object, seen: &'a Observation) -> Option<Vec<&'a Object>> {
    let selector = target.value().pointer("/spec/selector")?.as_object()?;
    if selector.is_empty() || target.text("/spec/type") == "ExternalName" {
        return None;
    }
    let namespace = target.text("/metadata/namespace");
    let is_meant = |pod: &&Object| {
        pod.text("/metadata/namespace") == namespace
            && selector
                .iter()
                .all(|(name, value)| Some(pod.label(name)) == value.as_str())
    };
    Some(seen.of_kind("Pod").filter(is_meant).collect())
}

/// Labels of the Pods that a workload makes.
const LABELS: &str = "/spec/template/metadata/labels";

/// Returns whether a workload makes Pods that a Service leads to, even if it has none now.
fn has_workload(target: &Object, seen: &Observation) -> bool {
    let selector = target.value().pointer("/spec/selector");
    let Some(selector) = selector.and_then(Value::as_object) else {
        return false;
    };
    let namespace = target.text("/metadata/namespace");
    // Not ReplicaSets: those of earlier versions stay.
    let mut workloads = ["Deployment", "StatefulSet", "DaemonSet"]
        .into_iter()
        .flat_map(|kind| seen.of_kind(kind));
    workloads.any(|workload| {
        let labels = workload.value().pointer(LABELS);
        let has =
            |(name, value): (&String, &Value)| labels.and_then(|all| all.get(name)) == Some(value);
        workload.text("/metadata/namespace") == namespace && selector.iter().all(has)
    })
}

/// Returns whether Pods of a Service would be selected but for labels that no template gives them
/// and that they have: their program sets these, as Patroni does for its leader.
fn are_labelled_by_program(target: &Object, seen: &Observation) -> bool {
    let selector = target.value().pointer("/spec/selector");
    let selector = || selector.and_then(Value::as_object).into_iter().flatten();
    let namespace = target.text("/metadata/namespace");
    let is_of_template = |name: &str| {
        seen.all().any(|object| {
            let labels = object.value().pointer(LABELS);
            labels.is_some_and(|labels| labels.get(name).is_some())
        })
    };
    seen.of_kind("Pod").any(|pod| {
        let fits = |(name, value): (&String, &Value)| Some(pod.label(name)) == value.as_str();
        let mut others = selector().filter(|pair| !fits(*pair));
        pod.text("/metadata/namespace") == namespace
            && selector().any(fits)
            && others.all(|(name, _)| !pod.label(name).is_empty() && !is_of_template(name))
    })
}

/// Doubt about a version that is complete: a DaemonSet fits no node, Pods of before have to be
/// deleted by a person, an Ingress has no class that exists, or a Service leads to nothing, or to a
/// number that none of its Pods declares. Declared ports only describe a Pod (a program may listen
/// on others), so this makes no version bad, and Pods that declare none leave nothing to say.
pub(super) fn doubt(scope: &Scope, seen: &Observation) -> Option<Finding> {
    let mut targets = scope.targets.keys().filter_map(|key| seen.get(key));
    targets.find_map(|target| match target.kind() {
        "DaemonSet" => workloads::nowhere(target).or_else(|| workloads::on_delete(target)),
        "StatefulSet" => workloads::on_delete(target),
        "Ingress" => without_class(target).or_else(|| unknown_class(target, seen)),
        "Service" => {
            let found = service(target, seen).filter(|found| !found.is_definite);
            found.or_else(|| undeclared(target, seen))
        }
        _ => None,
    })
}

/// Doubt about an Ingress without a class; the API server sets the default one where there is one.
fn without_class(target: &Object) -> Option<Finding> {
    const CLASSES: [&str; 2] = [
        "/spec/ingressClassName",
        "/metadata/annotations/kubernetes.io~1ingress.class",
    ];
    let has_none = CLASSES.iter().all(|class| target.text(class).is_empty());
    let object = target.in_words();
    has_none.then(|| Finding {
        cause: Cause::IngressNoClass,
        sentence: format!(
            "{object} has no class, and got no default one: many controllers ignore it"
        ),
        object,
        evidence: String::new(),
        fix: "set ingressClassName in the manifest: kubectl get ingressclass".to_owned(),
        is_definite: false,
    })
}

/// Doubt about an Ingress of a class that the cluster does not have, while it has others.
fn unknown_class(target: &Object, seen: &Observation) -> Option<Finding> {
    let class = target.text("/spec/ingressClassName");
    let classes: Vec<_> = seen.of_kind("IngressClass").map(Object::name).collect();
    // Some controllers work without any.
    if class.is_empty() || classes.is_empty() || classes.contains(&class) {
        return None;
    }
    let object = target.in_words();
    Some(Finding {
        cause: Cause::IngressNoClass,
        sentence: format!(
            "{object} names the class {class:?}, which does not exist: no controller serves it"
        ),
        object,
        evidence: evidence("ingress classes", &classes.join(", ")),
        fix: format!("set ingressClassName to {}", classes.join(" or ")),
        is_definite: false,
    })
}

fn undeclared(target: &Object, seen: &Observation) -> Option<Finding> {
    let pods = selected(target, seen)?;
    let mut declared = BTreeSet::new();
    for pod in &pods {
        let ports: Vec<_> = declared_ports(pod).collect();
        if ports.is_empty() {
            return None;
        }
        declared.extend(ports);
    }
    let number = |port: &Value| {
        let leads_to = port.get("targetPort").or_else(|| port.get("port"));
        leads_to.and_then(Value::as_u64)
    };
    let mut wanted = target.list("/spec/ports").filter_map(number);
    let wrong = wanted.find(|number| !declared.is_empty() && !declared.contains(number))?;
    let object = target.in_words();
    let declared: Vec<_> = declared.iter().map(u64::to_string).collect();
    Some(Finding {
        cause: Cause::ServiceWrongPort,
        sentence: format!("{object} leads to port {wrong}, which its Pods do not declare"),
        object,
        evidence: evidence("ports of the Pods", &declared.join(", ")),
        fix: format!(
            "if nobody answers there, set targetPort to {}; if the program listens on {wrong}, add it to its ports",
            declared.join(" or ")
        ),
        is_definite: false,
    })
}

fn service(target: &Object, seen: &Observation) -> Option<Finding> {
    let selector = target.value().pointer("/spec/selector")?.as_object()?;
    let namespace = target.text("/metadata/namespace");
    let pods = selected(target, seen)?;
    let object = target.in_words();
    let finding = |cause, sentence, evidence, fix: &str| {
        Some(Finding {
            cause,
            object: target.in_words(),
            sentence,
            evidence,
            fix: fix.to_owned(),
            is_definite: true,
        })
    };
    if pods.is_empty() {
        // A workload that is scaled to nothing has no Pods, and is meant so.
        let is_empty = !seen
            .of_kind("Pod")
            .any(|pod| pod.text("/metadata/namespace") == namespace);
        if is_empty || has_workload(target, seen) {
            return None;
        }
        let labels: Vec<_> = selector
            .iter()
            .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
            .collect();
        let found = finding(
            Cause::ServiceNoEndpoints,
            format!("{object} has no endpoints: no Pod matches its selector"),
            evidence("selector", &labels.join(",")),
            "make spec.selector of the Service and the labels of the Pod template the same, unless the program sets the label itself",
        );
        let is_definite = !are_labelled_by_program(target, seen);
        return found.map(|found| Finding {
            is_definite,
            ..found
        });
    }
    for port in target.list("/spec/ports") {
        let Some(Value::String(name)) = port.get("targetPort") else {
            continue;
        };
        let has_it = pods
            .iter()
            .any(|pod| named_ports(pod).any(|known| known == name));
        if !has_it {
            let named: Vec<_> = pods
                .iter()
                .flat_map(|pod| named_ports(pod))
                .filter(|name| !name.is_empty())
                .collect();
            return finding(
                Cause::ServiceWrongPort,
                format!("{object} has no endpoints: its Pods have no port named {name:?}"),
                evidence(
                    "ports of the Pods",
                    &if named.is_empty() {
                        "none has a name".to_owned()
                    } else {
                        named.join(", ")
                    },
                ),
                "correct targetPort of the Service, or name the port in the Pod template",
            );
        }
    }
    None
}

fn ingress(target: &Object, context: (&Scope, &Observation)) -> Option<Finding> {
    let paths = target
        .list("/spec/rules")
        .flat_map(|rule| list(rule, "/http/paths"));
    let backends = paths.filter_map(|path| path.pointer("/backend/service"));
    let default = target.value().pointer("/spec/defaultBackend/service");
    let mut backends = backends.chain(default);
    backends.find_map(|backend| no_backend(target, backend, context))
}

/// The reason why an Ingress reaches nobody through one of its Services.
fn no_backend(
    target: &Object,
    backend: &Value,
    (scope, seen): (&Scope, &Observation),
) -> Option<Finding> {
    let (namespace, name) = (target.text("/metadata/namespace"), text(backend, "/name"));
    if name.is_empty() {
        return None;
    }
    let object = target.in_words();
    let finding = |sentence, evidence, fix: &str| Finding {
        cause: Cause::IngressNoBackend,
        object: target.in_words(),
        sentence,
        evidence,
        fix: fix.to_owned(),
        is_definite: true,
    };
    let key = Key {
        kind: "Service".to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let Some(service) = seen.get(&key) else {
        let found = finding(
            format!("{object} has no backend: there is no Service {name} in namespace {namespace}"),
            evidence("backend", name),
            "correct the name of the Service in the Ingress, or create the Service",
        );
        return Some(Finding {
            // An operator or a chart may make it in its own time: the deadline decides.
            is_definite: !scope.targets.keys().any(|key| may_make(&key.kind)),
            ..found
        });
    };
    let (named, number) = (
        text(backend, "/port/name"),
        backend.pointer("/port/number").and_then(Value::as_u64),
    );
    let is_it = |port: &Value| {
        let is_named = !named.is_empty() && text(port, "/name") == named;
        is_named || (number.is_some() && port.get("port").and_then(Value::as_u64) == number)
    };
    let ports: Vec<_> = service.list("/spec/ports").collect();
    // One of type ExternalName needs no ports.
    if ports.is_empty() || ports.iter().any(|port| is_it(port)) {
        return None;
    }
    let wanted = number.map_or_else(|| format!("named {named:?}"), |number| number.to_string());
    let shown = ports.iter().map(|port| {
        let number = port.get("port").and_then(Value::as_u64).unwrap_or(0);
        match text(port, "/name") {
            "" => number.to_string(),
            name => format!("{number} ({name})"),
        }
    });
    Some(finding(
        format!("{object} has no backend: the Service {name} has no port {wanted}"),
        evidence(
            "ports of the Service",
            &shown.collect::<Vec<_>>().join(", "),
        ),
        "name a port of the Service in the Ingress; not targetPort, which is that of the Pods",
    ))
}
