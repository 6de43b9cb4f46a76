//! RBAC objects: bindings, and access reviews.

use serde::Serialize;

use super::Metadata;
use crate::wire::json::fields;

/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";
/// The collection in which an account asks about its own rights.
pub const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// The collection in which an account asks for all of its rights in a namespace.
pub const RULES_REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";

/// Gives a role to somebody in one namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleBinding {
    /// Needed when it is written.
    pub api_version: String,
    /// Needed when it is written.
    pub kind: String,
    /// The head.
    pub metadata: Metadata,
    /// Role that is bound.
    pub role_ref: RoleRef,
    /// To whom.
    pub subjects: Vec<Subject>,
}
fields!(RoleBinding {
    api_version: "apiVersion",
    kind,
    metadata,
    role_ref: "roleRef",
    subjects
});

/// A role that is given.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleRef {
    /// The group of roles.
    pub api_group: String,
    /// `Role` or `ClusterRole`.
    pub kind: String,
    pub name: String,
}
fields!(RoleRef {
    api_group: "apiGroup",
    kind,
    name
});

/// Somebody to whom a role is given.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Subject {
    /// `ServiceAccount`, `User` or `Group`.
    pub kind: String,
    pub name: String,
    /// The namespace of a service account.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
}
fields!(Subject {
    kind,
    name,
    namespace
});

/// Asks whether the asker may do something.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct SelfSubjectAccessReview {
    /// Question.
    pub spec: AccessReviewSpec,
    /// The answer.
    #[serde(skip_serializing)]
    pub status: AccessReviewStatus,
}
fields!(SelfSubjectAccessReview { spec, status });

/// Question of an access review.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AccessReviewSpec {
    /// About objects.
    pub resource_attributes: ResourceAttributes,
}
fields!(AccessReviewSpec {
    resource_attributes: "resourceAttributes"
});

/// Verb and objects of the question.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct ResourceAttributes {
    pub namespace: String,
    pub verb: String,
    /// API group; empty for the core.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// To what.
    pub resource: String,
    /// Part of it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
    /// One object; empty for all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}
fields!(ResourceAttributes {
    namespace,
    verb,
    group,
    resource,
    subresource,
    name
});

/// The answer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AccessReviewStatus {
    /// True if one may.
    pub allowed: bool,
}
fields!(AccessReviewStatus { allowed });
