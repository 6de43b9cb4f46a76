//! Number of Pods under a HorizontalPodAutoscaler: left to it, and handed over before our manifests
//! leave it out.

use serde_json::{Value, json};

use super::{MANAGER, Manifest, Overlay};

/// Number of Pods of a workload.
pub const REPLICAS: &str = "spec.replicas";

/// Field manager that keeps a number of Pods in place of ours, until an autoscaler changes it: a
/// field that its only owner leaves out is reset by the API server, which makes one Pod of many.
pub const HOLDER: &str = "pipeops-apps-replicas";

/// Returns whether one of these manifests is an autoscaler of a workload.
pub fn is_autoscaled(manifests: &[Manifest], workload: &Manifest) -> bool {
    let Some(key) = Overlay::key(workload) else {
        return false;
    };
    let text = |scaler: &Manifest, name: &str| {
        let path = format!("/spec/scaleTargetRef/{name}");
        let named = scaler.object.pointer(&path).and_then(Value::as_str);
        named.unwrap_or_default().to_owned()
    };
    let targets = |scaler: &Manifest| {
        scaler.kind.name == "HorizontalPodAutoscaler"
            && format!("{}/{}", text(scaler, "kind"), text(scaler, "name")) == key
    };
    manifests.iter().any(targets)
}

/// A workload without its number of Pods.
#[must_use]
pub fn without_replicas(workload: &Manifest) -> Manifest {
    let mut workload = workload.clone();
    if let Some(Value::Object(spec)) = workload.object.get_mut("spec") {
        spec.remove("replicas");
    }
    workload
}

/// Returns whether we own the number of Pods of an object.
pub fn owns_replicas(managed_fields: &[Value]) -> bool {
    managed_fields.iter().any(|entry| {
        entry.get("manager").and_then(Value::as_str) == Some(MANAGER)
            && entry.pointer("/fieldsV1/f:spec/f:replicas").is_some()
    })
}

/// The number of Pods that an object has, as [`HOLDER`] applies it; `None`: it has none.
pub fn handed_over(workload: &Manifest, live: &Value) -> Option<Value> {
    let replicas = live.pointer("/spec/replicas")?;
    let metadata = |name: &str| live.pointer(&format!("/metadata/{name}"));
    Some(json!({
        "apiVersion": &*workload.kind.api_version,
        "kind": &*workload.kind.name,
        "metadata": {
            "name": workload.name, "namespace": workload.namespace,
            "uid": metadata("uid")?, "resourceVersion": metadata("resourceVersion")?,
        },
        "spec": {"replicas": replicas},
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::apps::parse;

    #[test]
    fn an_autoscaler_is_that_of_the_workload_that_it_names() {
        let workload = |kind: &str, name: &str| {
            format!(
                "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{replicas: 3}}\n---\n"
            )
        };
        let scaler = "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: any}\n\
            spec: {maxReplicas: 4, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}\n";
        let text = workload("Deployment", "web")
            + &workload("StatefulSet", "web")
            + &workload("Deployment", "other")
            + scaler;
        let manifests = parse(&text, Some("shop")).unwrap();
        let found: Vec<_> = manifests
            .iter()
            .filter(|manifest| is_autoscaled(&manifests, manifest))
            .map(Manifest::in_words)
            .collect();
        assert_eq!(found, ["Deployment shop/web"]);
        // It is written after what it scales.
        assert_eq!(
            manifests.last().unwrap().kind.name,
            "HorizontalPodAutoscaler"
        );
        let web = without_replicas(manifests.first().unwrap());
        assert_eq!(web.object["spec"], json!({}));
    }

    #[test]
    fn a_number_is_handed_over_as_it_is_bound_to_its_version() {
        let fields = |manager: &str| json!([{"manager": manager, "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]);
        assert!(owns_replicas(fields(MANAGER).as_array().unwrap()));
        assert!(!owns_replicas(fields(HOLDER).as_array().unwrap()));
        let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n";
        let web = &parse(text, Some("shop")).unwrap()[0];
        let live = json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {"replicas": 5, "paused": true}});
        let handed = handed_over(web, &live).unwrap();
        assert_eq!(handed["spec"], json!({"replicas": 5}));
        assert_eq!(handed["metadata"]["resourceVersion"], "7");
        assert_eq!(handed_over(web, &json!({"metadata": {}})), None);
    }
}
