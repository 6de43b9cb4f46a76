//! Discovery: the custom resource that a manifest means, in what the API server says about a
//! version of its group. An aggregated API may say anything.

use serde_json::Value;

use super::{
    kinds::Kind,
    manifests::{Problem, problem},
};

/// Action where the cluster does not have a kind.
pub const CREATE_FIRST: &str = "create its CustomResourceDefinition first, as its makers say";

/// The custom resource of a kind in a list of resources of the version of its group.
///
/// # Errors
/// There is none, there are several, or it belongs to the whole cluster.
pub fn discovered(list: &Value, api_version: &str, kind: &str) -> Result<Kind, Problem> {
    let refused = |why: &str, fix: &str| Err(problem(format!("{kind} of {api_version}"), why, fix));
    let text = |resource: &Value, field: &str| {
        let text = resource.get(field).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let all = list.get("resources").and_then(Value::as_array);
    // Subresources have the kind of what they belong to, or another one.
    let is_meant =
        |resource: &&Value| text(resource, "kind") == kind && !text(resource, "name").contains('/');
    let mut meant = all.into_iter().flatten().filter(is_meant);
    let (found, None) = (meant.next(), meant.next()) else {
        return refused(
            "the API server knows several resources of this kind",
            "kubectl api-resources shows them; ask who makes that API",
        );
    };
    let Some(found) = found else {
        return refused(
            "the cluster does not have this kind",
            &format!("{CREATE_FIRST}; kubectl api-resources shows what there is"),
        );
    };
    if found.get("namespaced").and_then(Value::as_bool) != Some(true) {
        return refused(
            "it belongs to the whole cluster, and apps lie in a namespace",
            "it is the business of the cluster's owner: kubectl apply",
        );
    }
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let name = format!("{}.{group}", text(found, "name"));
    let custom = Kind::custom(api_version, &name);
    custom.map_or_else(
        || {
            refused(
                "the API server names it by a name that is not valid in Kubernetes",
                "kubectl api-resources shows it; ask who makes that API",
            )
        },
        Ok,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_kind_is_found_by_its_name_and_whatever_else_is_said_leads_nowhere() {
        let resource = |name: &str, kind: &str, is_namespaced: bool| json!({"name": name, "kind": kind, "namespaced": is_namespaced, "group": "", "version": "v1"});
        let of = |resources: &[Value]| {
            let list =
                json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources});
            discovered(&list, "example.com/v1", "Widget")
        };
        let found = of(&[
            resource("gadgets", "Gadget", true),
            resource("widgets/status", "Widget", true),
            resource("widgets", "Widget", true),
            resource("widgets/scale", "Scale", true),
        ]);
        let found = found.unwrap();
        assert_eq!(
            found.path("shop", "a"),
            "/apis/example.com/v1/namespaces/shop/widgets/a"
        );
        let twice = [
            resource("widgets", "Widget", true),
            resource("secrets", "Widget", true),
        ];
        assert!(of(&twice).unwrap_err().why.contains("several"));
        let wide = of(&[resource("widgets", "Widget", false)]).unwrap_err();
        assert!(wide.why.contains("whole cluster"));
        let said_nothing = json!({"name": "widgets", "kind": "Widget"});
        assert!(
            of(&[said_nothing])
                .unwrap_err()
                .why
                .contains("whole cluster")
        );
        for name in [
            "",
            ".",
            "..",
            "Widgets",
            "a.b",
            "w\u{e4}",
            "a%2fb",
            "a?b",
            "a b",
            &"w".repeat(64),
        ] {
            let odd = of(&[resource(name, "Widget", true)]).unwrap_err();
            assert!(odd.why.contains("not valid in Kubernetes"), "{name}");
        }
        for list in [
            json!(null),
            json!([]),
            json!({"resources": {}}),
            json!({"resources": [1]}),
        ] {
            let none = discovered(&list, "example.com/v1", "Widget").unwrap_err();
            assert!(none.why.contains("does not have this kind"), "{list}");
        }
    }
}
