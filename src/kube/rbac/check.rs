//! Compares what the cluster has with the manifest. One small request an object; nothing is watched
//! and nothing changed.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{ACCOUNT, APPS_ACCOUNT, GrantScope, Manifest};
use crate::{
    core::{order::GatherExt as _, secret::Secret, yaml},
    kube::{Client, Error, Identity},
    wire::{
        json::{self, fields},
        kube::rights::{
            ACCESS_REVIEWS, AccessReviewSpec, ResourceAttributes, SelfSubjectAccessReview,
        },
    },
};

/// An object that is not as the manifest has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Deviation {
    /// Kind and name.
    pub object: String,
    /// Purpose.
    pub part: ObjectPurpose,
    /// Difference.
    pub state: DeviationKind,
}

/// Purpose of an object of the manifest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ObjectPurpose {
    /// An account or what it may do.
    Rights,
    /// A policy that bounds an account, whatever it may do.
    Lock,
}

/// Difference of an object from the manifest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DeviationKind {
    /// It is not there.
    Missing,
    /// The agent may not look at it.
    Hidden,
    /// It gives less.
    Less,
    /// It gives more.
    More,
    /// It says something else.
    Other,
    /// It is there and should not be.
    Unwanted,
}

/// An object of the manifest, or the same in the cluster, as far as it is compared.
#[derive(Debug, Default)]
struct Compared {
    kind: String,
    metadata: Head,
    rules: Option<Vec<Rule>>,
    role_ref: Value,
    subjects: Value,
    spec: Value,
}
fields!(Compared {
    kind,
    metadata,
    rules,
    role_ref: "roleRef",
    subjects,
    spec
});

#[derive(Debug, Default)]
struct Head {
    name: String,
    namespace: String,
}
fields!(Head { name, namespace });

#[derive(Debug, Default)]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    resource_names: Vec<String>,
    verbs: Vec<String>,
    paths: Vec<String>,
}
fields!(Rule {
    api_groups: "apiGroups",
    resources,
    resource_names: "resourceNames",
    verbs,
    paths: "nonResourceURLs",
});

/// Group, resource, name and verb.
type Right<'a> = (&'a str, &'a str, &'a str, &'a str);

/// Everything that is not as the manifest has it.
///
/// # Errors
/// The cluster does not answer. What it refuses is a finding.
pub async fn compare(client: &Client, manifest: &Manifest) -> Result<Vec<Deviation>, Error> {
    let mut findings = Vec::new();
    for wanted in objects(&manifest.text()) {
        findings.extend(finding(client, &wanted).await?);
    }
    if manifest.reach == GrantScope::Managed {
        let name = manifest.wide("pipeops-full");
        let path = format!("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{name}");
        match client.get::<Head>(&path).await {
            Ok(_) => findings.push(Deviation {
                object: format!("ClusterRoleBinding {name}"),
                part: ObjectPurpose::Lock,
                state: DeviationKind::Unwanted,
            }),
            // That it may not be looked at was found with the others.
            Err(error) if error.is_not_found() || error.is_forbidden() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(findings)
}

/// Differences in the policy that restricts the account.
///
/// # Errors
/// As [`compare`].
pub async fn compare_lock(client: &Client, manifest: &Manifest) -> Result<Vec<Deviation>, Error> {
    let name = manifest.wide("pipeops-cp-lock");
    let mut findings = Vec::new();
    for wanted in objects(&manifest.text()) {
        if wanted.metadata.name == name {
            findings.extend(finding(client, &wanted).await?);
        }
    }
    Ok(findings)
}

/// Difference of one object.
async fn finding(client: &Client, wanted: &Compared) -> Result<Option<Deviation>, Error> {
    let Some((path, part)) = path(wanted) else {
        return Ok(None);
    };
    let state = match client.get::<Compared>(&path).await {
        Ok(found) => difference(wanted, &found),
        Err(error) if error.is_not_found() => Some(DeviationKind::Missing),
        Err(error) if error.is_forbidden() => Some(DeviationKind::Hidden),
        Err(error) => return Err(error),
    };
    Ok(state.map(|state| Deviation {
        object: format!("{} {}", wanted.kind, wanted.metadata.name),
        part,
        state,
    }))
}

/// Returns whether the account reaches Secrets that no manifest but the full one gives it. `token`
/// is the account's.
///
/// # Errors
/// The cluster does not answer, or does not believe the token.
pub async fn reaches_secrets(
    client: &Client,
    manifest: &Manifest,
    token: &Secret,
) -> Result<bool, Error> {
    let question = SelfSubjectAccessReview {
        spec: AccessReviewSpec {
            resource_attributes: ResourceAttributes {
                namespace: manifest.namespace().to_string(),
                verb: "get".to_owned(),
                resource: "secrets".to_owned(),
                ..ResourceAttributes::default()
            },
        },
        ..SelfSubjectAccessReview::default()
    };
    let identity = Identity::Bearer(token.clone());
    let answer: SelfSubjectAccessReview = client
        .create_as(&identity, ACCESS_REVIEWS, &question)
        .await?;
    Ok(answer.status.allowed)
}

fn objects(text: &str) -> Vec<Compared> {
    let documents = text.split("\n---\n");
    let parsed = documents.filter_map(|document| yaml::parse(document).ok());
    parsed
        .filter_map(|object| json::shape(object.to_string().as_bytes()).ok())
        .collect()
}

/// Path of an object, if it is compared at all. The agent's own account is not: an agent may use
/// another one.
fn path(object: &Compared) -> Option<(String, ObjectPurpose)> {
    let Head { name, namespace } = &object.metadata;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let policies = "/apis/admissionregistration.k8s.io/v1";
    Some(match object.kind.as_str() {
        "ServiceAccount" if [ACCOUNT, APPS_ACCOUNT].contains(&name.as_str()) => (
            format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}"),
            ObjectPurpose::Rights,
        ),
        "ClusterRole" => (format!("{rbac}/clusterroles/{name}"), ObjectPurpose::Rights),
        "ClusterRoleBinding" => (
            format!("{rbac}/clusterrolebindings/{name}"),
            ObjectPurpose::Rights,
        ),
        "Role" => (
            format!("{rbac}/namespaces/{namespace}/roles/{name}"),
            ObjectPurpose::Rights,
        ),
        "RoleBinding" => (
            format!("{rbac}/namespaces/{namespace}/rolebindings/{name}"),
            ObjectPurpose::Rights,
        ),
        "ValidatingAdmissionPolicy" => (
            format!("{policies}/validatingadmissionpolicies/{name}"),
            ObjectPurpose::Lock,
        ),
        "ValidatingAdmissionPolicyBinding" => (
            format!("{policies}/validatingadmissionpolicybindings/{name}"),
            ObjectPurpose::Lock,
        ),
        _ => return None,
    })
}

fn difference(wanted: &Compared, found: &Compared) -> Option<DeviationKind> {
    let (wanted_rights, found_rights) = (rights(wanted), rights(found));
    if found_rights.difference(&wanted_rights).next().is_some() {
        return Some(DeviationKind::More);
    }
    if wanted_rights.difference(&found_rights).next().is_some() {
        return Some(DeviationKind::Less);
    }
    let is_same = wanted.role_ref == found.role_ref
        && wanted.subjects == found.subjects
        && without_empty(&wanted.spec) == without_empty(&found.spec);
    (!is_same).then_some(DeviationKind::Other)
}

/// Each right by itself: rules may be cut and ordered in many ways that mean the same.
fn rights(object: &Compared) -> BTreeSet<Right<'_>> {
    let mut rights = BTreeSet::new();
    for rule in object.rules.iter().flatten() {
        for verb in &rule.verbs {
            rights.extend(
                rule.paths
                    .iter()
                    .map(|path| ("", path.as_str(), "", verb.as_str())),
            );
            for group in &rule.api_groups {
                for resource in &rule.resources {
                    let mut add = |name| {
                        rights.insert((group.as_str(), resource.as_str(), name, verb.as_str()))
                    };
                    if rule.resource_names.is_empty() {
                        add("");
                    }
                    for name in &rule.resource_names {
                        add(name.as_str());
                    }
                }
            }
        }
    }
    rights
}

/// A value without the empty parts that the API server adds.
fn without_empty(value: &Value) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    match value {
        Value::Object(map) => Value::Object(
            map.iter()
                .map(|(key, value)| (key.clone(), without_empty(value)))
                .filter(|(_, value)| !is_empty(value))
                .gather(),
        ),
        Value::Array(list) => list.iter().map(without_empty).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{
        namespace::OwnNamespace,
        policy::{self, PodSecurity, Terms},
        proxy::{Cluster, RawRequest, Refusal, route},
    };
    use serde_json::json;

    fn compared(value: Value) -> Compared {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn every_object_of_the_manifest_has_a_place_in_the_cluster() {
        let manifest = Manifest::new(
            OwnNamespace::default(),
            PodSecurity::Baseline,
            GrantScope::Full,
        );
        let objects = objects(&manifest.text());
        assert_eq!(objects.len(), 17);
        let compared = objects.iter().filter(|object| path(object).is_some());
        // All but the namespace and the agent's own account.
        assert_eq!(compared.count(), 15);
    }

    /// Verdict of the policy on one right at the level `managed`.
    fn permitted(right: Right<'_>, namespace: &str) -> Result<Terms, Refusal> {
        let (group, resource, _, verb) = right;
        let group = if group.is_empty() {
            "api/v1".to_owned()
        } else {
            format!("apis/{group}/v1")
        };
        let resource = if resource == "*" { "things" } else { resource };
        let (kind, part) = resource.split_once('/').unwrap_or((resource, ""));
        let is_of_one = matches!(verb, "get" | "update" | "patch" | "delete") || !part.is_empty();
        let path = match (is_of_one, part) {
            (false, _) => format!("/{group}{namespace}/{kind}"),
            (true, "") => format!("/{group}{namespace}/{kind}/x"),
            (true, part) => format!("/{group}{namespace}/{kind}/x/{part}"),
        };
        let method = match verb {
            "get" | "list" | "watch" => "GET",
            "create" => "POST",
            "update" => "PUT",
            "patch" => "PATCH",
            "delete" | "deletecollection" => "DELETE",
            other => panic!("{other}"),
        };
        let query = if verb == "watch" { "watch=1" } else { "" };
        let request = RawRequest::kubernetes(method, &path, query);
        let call = route(&request, Cluster::Known)?;
        policy::decide(&policy::Rules::default(), &call)
    }

    #[test]
    fn the_account_has_no_right_that_the_policy_refuses() {
        let manifest = Manifest::new(
            OwnNamespace::default(),
            PodSecurity::Baseline,
            GrantScope::Managed,
        );
        let objects = objects(&manifest.text());
        let of = |name: &str| {
            let mut all = objects.iter();
            rights(
                all.find(|object| object.kind == "ClusterRole" && object.metadata.name == name)
                    .unwrap(),
            )
        };
        let everywhere = of("pipeops-cp-cluster");
        assert!(everywhere.len() > 100);
        for right in everywhere {
            let wanted = match right {
                ("", "namespaces", _, "create") => Terms::NewNamespace,
                _ => Terms::Free,
            };
            assert_eq!(permitted(right, ""), Ok(wanted), "{right:?}");
        }
        let managed = of("pipeops-managed");
        assert!(managed.len() > 200);
        for right in managed {
            let found = permitted(right, "/namespaces/shop");
            let is_fine = matches!(&found, Ok(Terms::Free | Terms::InManaged(_)));
            assert!(is_fine, "{right:?}: {found:?}");
        }
    }

    #[test]
    fn rules_mean_the_same_however_they_are_cut() {
        let one = json!({"rules": [{"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list"]}]});
        let other = json!({"rules": [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "get"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]});
        assert_eq!(difference(&compared(one.clone()), &compared(other)), None);
        let wanted = compared(one);
        for (rules, state) in [
            (json!([]), DeviationKind::Less),
            (
                json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]),
                DeviationKind::Less,
            ),
            (
                json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]),
                DeviationKind::More,
            ),
            (
                json!([{"apiGroups": [""], "resources": ["pods", "nodes", "secrets"], "verbs": ["get", "list"]}]),
                DeviationKind::More,
            ),
            (
                json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]),
                DeviationKind::More,
            ),
        ] {
            let found = compared(json!({ "rules": rules }));
            assert_eq!(difference(&wanted, &found), Some(state), "{rules}");
        }
        let named = compared(
            json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"], "verbs": ["get"]}]}),
        );
        let unnamed = compared(
            json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
        );
        assert_eq!(difference(&named, &unnamed), Some(DeviationKind::More));
    }

    #[test]
    fn what_the_api_server_adds_is_no_difference_and_what_somebody_else_adds_is() {
        let wanted = compared(json!({"spec": {"policyName": "p", "validationActions": ["Deny"]}}));
        for (spec, state) in [
            (
                json!({"policyName": "p", "validationActions": ["Deny"], "matchResources": {"namespaceSelector": {}}}),
                None,
            ),
            (
                json!({"policyName": "p", "validationActions": ["Audit"]}),
                Some(DeviationKind::Other),
            ),
            (
                json!({"policyName": "p", "validationActions": ["Deny"], "matchResources": {"namespaceSelector": {"matchLabels": {"a": "b"}}}}),
                Some(DeviationKind::Other),
            ),
        ] {
            let found = compared(json!({ "spec": spec }));
            assert_eq!(difference(&wanted, &found), state, "{spec}");
        }
        let subject =
            |name: &str| compared(json!({"subjects": [{"kind": "ServiceAccount", "name": name}]}));
        assert_eq!(
            difference(&subject("a"), &subject("b")),
            Some(DeviationKind::Other)
        );
    }
}
