//! Who may do what: bindings, and the question whether one may.

use serde::{Deserialize, Serialize};

use super::{Metadata, null_is_empty};

/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// Gives a role to somebody in one namespace.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RoleBinding {
    /// Needed when it is written.
    pub api_version: String,
    /// Needed when it is written.
    pub kind: String,
    /// The head.
    pub metadata: Metadata,
    /// What is given.
    pub role_ref: RoleRef,
    /// To whom.
    #[serde(deserialize_with = "null_is_empty")]
    pub subjects: Vec<Subject>,
}

/// A role that is given.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RoleRef {
    /// The group of roles.
    pub api_group: String,
    /// `Role` or `ClusterRole`.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// Somebody to whom a role is given.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Subject {
    /// `ServiceAccount`, `User` or `Group`.
    pub kind: String,
    /// The name.
    pub name: String,
    /// The namespace of a service account.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
}

/// Asks whether the asker may do something.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct SelfSubjectAccessReview {
    /// What.
    pub spec: AccessReviewSpec,
    /// The answer.
    #[serde(skip_serializing)]
    pub status: AccessReviewStatus,
}

/// What is asked.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AccessReviewSpec {
    /// About objects.
    pub resource_attributes: ResourceAttributes,
}

/// What would be done to which objects.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct ResourceAttributes {
    /// Where.
    pub namespace: String,
    /// What.
    pub verb: String,
    /// To what; of the core's group.
    pub resource: String,
}

/// The answer.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct AccessReviewStatus {
    /// Whether one may.
    pub allowed: bool,
}
