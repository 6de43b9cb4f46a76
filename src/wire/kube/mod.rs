//! Kubernetes objects: the few fields that are read; everything else is skipped while parsing. A
//! list of 4.7 MB takes under 1 MB this way, and 60 MB as a tree of values.
//!
//! To read another field, add a line to its struct and a word to the `fields!` below it.

pub mod event;
mod pod;
pub mod rights;
pub mod shown;
pub mod summary;

use std::{fmt, time::Duration};

use base64::Engine;
use litemap::LiteMap;
use serde::{Deserialize, Serialize};

pub use pod::{ContainerStatus, Pod, PodStatus};

use super::json::{Fields, Place, Shape, fields, object};
use crate::core::{cluster, quantity, secret::Secret};

/// The head of every object.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Unique in its namespace at one time.
    pub name: String,
    /// Empty for what belongs to the whole cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Unique for ever.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Changes with each write; only to be compared and given back.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[serde(skip_serializing_if = "LiteMap::is_empty", serialize_with = "object")]
    pub labels: LiteMap<String, String>,
    /// Time when it was made.
    #[serde(skip_serializing)]
    pub creation_timestamp: Option<String>,
    /// Time when it is to be gone, where it is being deleted.
    #[serde(skip_serializing)]
    pub deletion_timestamp: Option<String>,
}
fields!(Metadata {
    name,
    namespace,
    uid,
    resource_version: "resourceVersion",
    labels,
    creation_timestamp: "creationTimestamp",
    deletion_timestamp: "deletionTimestamp",
});

impl Metadata {
    /// `namespace/name`, or the name alone.
    pub fn key(&self) -> String {
        if self.namespace.is_empty() {
            self.name.clone()
        } else {
            format!("{}/{}", self.namespace, self.name)
        }
    }
}

/// Object that a watch can carry.
pub trait Object: Shape + Default {
    /// The object's head.
    fn metadata(&self) -> &Metadata;
}

/// Only the head of an object, whatever its kind: `PartialObjectMetadata`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HeadOnly {
    /// The head.
    pub metadata: Metadata,
}
fields!(HeadOnly { metadata });

impl Object for HeadOnly {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// One page of a list.
#[derive(Clone, Debug)]
pub struct List<T> {
    /// Position of the list.
    pub metadata: ListMetadata,
    /// The objects.
    pub items: Vec<T>,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self {
            metadata: ListMetadata::default(),
            items: Vec::new(),
        }
    }
}

impl<T: Shape + Default> Fields for List<T> {
    fn field(&mut self, name: &str) -> Place<'_> {
        match name {
            "metadata" => self.metadata.place(),
            "items" => self.items.place(),
            _ => Place::Nowhere,
        }
    }
}

impl<T: Shape + Default> Shape for List<T> {
    fn place(&mut self) -> Place<'_> {
        Place::Object(self)
    }
}

/// Position of a list.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ListMetadata {
    /// The moment that the list shows.
    pub resource_version: String,
    /// Asks for the next page; empty on the last.
    pub next: String,
}
fields!(ListMetadata {
    resource_version: "resourceVersion",
    next: "continue"
});

/// The API's own error object.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Status {
    /// The HTTP status.
    pub code: u16,
    /// A word for programs.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}
fields!(Status {
    code,
    reason,
    message
});

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Node {
    /// The head.
    pub metadata: Metadata,
    /// Status reported by the kubelet.
    pub status: NodeStatus,
}
fields!(Node { metadata, status });

/// Status reported by a kubelet.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NodeStatus {
    /// `Ready` and the pressures.
    pub conditions: Vec<NodeCondition>,
    /// Versions.
    pub node_info: NodeVersions,
    /// Resources that Pods may use.
    pub allocatable: Allocatable,
}
fields!(NodeStatus {
    conditions,
    node_info: "nodeInfo",
    allocatable
});

/// Resources of a node that Pods may use, as quantities.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Allocatable {
    /// Cores.
    pub cpu: String,
    /// Bytes.
    pub memory: String,
    /// Number of Pods.
    pub pods: String,
}
fields!(Allocatable { cpu, memory, pods });

/// One condition of a node.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NodeCondition {
    /// `Ready`, `MemoryPressure` and so on.
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
}
fields!(NodeCondition {
    kind: "type",
    status
});

/// The versions that a node runs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NodeVersions {
    /// `v1.34.4+k3s1`.
    pub kubelet_version: String,
    /// `containerd://2.1.4`.
    pub container_runtime_version: String,
}
fields!(NodeVersions {
    kubelet_version: "kubeletVersion",
    container_runtime_version: "containerRuntimeVersion",
});

impl Node {
    /// Returns whether the kubelet says that it takes Pods.
    pub fn is_ready(&self) -> bool {
        self.is("Ready")
    }

    /// Fields that are sampled.
    pub fn sampled(&self) -> cluster::Node {
        let pressures = ["MemoryPressure", "DiskPressure", "PIDPressure"];
        let allocatable = &self.status.allocatable;
        cluster::Node {
            is_ready: self.is_ready(),
            pressures: pressures.map(|kind| self.is(kind)),
            cpu_milli: quantity::milli(&allocatable.cpu),
            memory: quantity::whole(&allocatable.memory),
            pods: quantity::whole(&allocatable.pods),
        }
    }

    fn is(&self, kind: &str) -> bool {
        self.status
            .conditions
            .iter()
            .any(|condition| condition.kind == kind && condition.status == "True")
    }
}

impl Object for Node {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Service {
    /// The head.
    pub metadata: Metadata,
    /// Specification.
    pub spec: ServiceSpec,
}
fields!(Service { metadata, spec });

/// Specification of a Service.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ServiceSpec {
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    pub kind: String,
    /// `None` for a headless one.
    pub cluster_ip: String,
    pub ports: Vec<ServicePort>,
}
fields!(ServiceSpec {
    kind: "type",
    cluster_ip: "clusterIP",
    ports
});

/// A port of a service.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ServicePort {
    /// Joins it to the port of an endpoint; empty where there is one port only.
    pub name: String,
    /// The number that callers use.
    pub port: u16,
    /// `TCP` (also when absent), `UDP` or `SCTP`.
    pub protocol: String,
}
fields!(ServicePort {
    name,
    port,
    protocol
});

/// A part of the addresses behind a service (`discovery.k8s.io/v1`).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct EndpointSlice {
    /// The head.
    pub metadata: Metadata,
    /// `IPv4`, `IPv6` or `FQDN`.
    pub address_type: String,
    /// The addresses.
    pub endpoints: Vec<Endpoint>,
    /// The ports that all of them have.
    pub ports: Vec<EndpointPort>,
}
fields!(EndpointSlice {
    metadata,
    address_type: "addressType",
    endpoints,
    ports
});

/// One target behind a service.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Endpoint {
    /// Its addresses; only the first is used by anyone.
    pub addresses: Vec<String>,
    /// Conditions of the endpoint.
    pub conditions: EndpointConditions,
    /// Target behind the address.
    pub target_ref: Option<TargetRef>,
}
fields!(Endpoint {
    addresses,
    conditions,
    target_ref: "targetRef"
});

/// Conditions of an endpoint.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct EndpointConditions {
    /// Absent counts as ready, as the API defines it.
    pub ready: Option<bool>,
}
fields!(EndpointConditions { ready });

/// Target behind an address.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TargetRef {
    /// `Pod`, mostly.
    pub kind: String,
    pub namespace: String,
    pub name: String,
}
fields!(TargetRef {
    kind,
    namespace,
    name
});

/// A port of the endpoints of a slice.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct EndpointPort {
    /// Joins it to the port of the service.
    pub name: Option<String>,
    /// The number in the Pod; absent means all ports.
    pub port: Option<u16>,
    /// `TCP` also when absent.
    pub protocol: Option<String>,
}
fields!(EndpointPort {
    name,
    port,
    protocol
});

/// Settings kept in the cluster.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMap {
    /// `v1`; needed when it is written.
    pub api_version: String,
    /// `ConfigMap`; needed when it is written.
    pub kind: String,
    /// The head.
    pub metadata: Metadata,
    /// The texts.
    #[serde(serialize_with = "object")]
    pub data: LiteMap<String, String>,
}
fields!(ConfigMap {
    api_version: "apiVersion",
    kind,
    metadata,
    data
});

impl Object for ConfigMap {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// The answer of `/version`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Version {
    /// `v1.34.4+k3s1`.
    pub git_version: String,
}
fields!(Version {
    git_version: "gitVersion"
});

/// A request for a token of a service account, and its answer.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenRequest {
    /// Request.
    pub spec: TokenRequestSpec,
    /// Answer.
    #[serde(skip_serializing)]
    pub status: TokenRequestStatus,
}
fields!(TokenRequest { spec, status });

impl TokenRequest {
    /// Asks for a token of this life, for the API server itself.
    pub fn lasting(life: Duration) -> Self {
        let spec = TokenRequestSpec {
            expiration_seconds: life.as_secs(),
        };
        Self {
            spec,
            ..Self::default()
        }
    }
}

/// Request for a token.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenRequestSpec {
    /// The token's life; the API server may shorten it.
    pub expiration_seconds: u64,
}
fields!(TokenRequestSpec {
    expiration_seconds: "expirationSeconds"
});

/// Token that was issued.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct TokenRequestStatus {
    /// The token itself.
    pub token: String,
}
fields!(TokenRequestStatus { token });

impl fmt::Debug for TokenRequestStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Lifetime of a token from its creation, by its own claims: two stamps of one clock. `None` if it
/// does not have them.
pub fn token_life(token: &Secret) -> Option<Duration> {
    #[derive(Deserialize)]
    struct Claims {
        iat: u64,
        exp: u64,
    }
    let claims = token.reveal().split('.').nth(1)?;
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims);
    let claims: Claims = serde_json::from_slice(&claims.ok()?).ok()?;
    claims.exp.checked_sub(claims.iat).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::json;

    #[test]
    fn a_token_says_how_long_it_is_good_for() {
        let token = |claims: &str| {
            let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(claims);
            Secret::new(format!("e30.{claims}.c2ln"))
        };
        let life = token_life(&token(r#"{"aud":["a"],"exp":1700003600,"iat":1700000000}"#));
        assert_eq!(life, Some(Duration::from_secs(3600)));
        for claims in ["{}", r#"{"exp":1,"iat":2}"#, r#"{"exp":"1","iat":0}"#] {
            assert_eq!(token_life(&token(claims)), None, "{claims}");
        }
        assert_eq!(token_life(&Secret::new("opaque")), None);
    }

    #[test]
    fn what_is_null_or_absent_is_empty() {
        let list: List<EndpointSlice> =
            json::shape(br#"{"items":[{"endpoints":null,"ports":null}],"metadata":{}}"#).unwrap();
        assert_eq!(list.items, [EndpointSlice::default()]);
        let list: List<HeadOnly> = json::shape(br#"{"items":null}"#).unwrap();
        assert!(list.items.is_empty() && list.metadata.next.is_empty());
    }

    #[test]
    fn a_node_is_ready_when_its_kubelet_says_so() {
        let of = |status: &str| -> Node {
            serde_json::from_str(&format!(
                r#"{{"metadata":{{"name":"n"}},"status":{{"conditions":[{{"type":"Ready","status":"{status}","reason":"x"}}]}}}}"#
            ))
            .unwrap()
        };
        assert!(of("True").is_ready());
        assert!(!of("Unknown").is_ready());
        assert!(!Node::default().is_ready());
    }

    #[test]
    fn a_config_map_is_written_without_what_the_server_sets() {
        let map = ConfigMap {
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            metadata: Metadata {
                name: "a".to_owned(),
                ..Metadata::default()
            },
            data: LiteMap::from_iter([("k".to_owned(), "v".to_owned())]),
        };
        let text = serde_json::to_string(&map).unwrap();
        assert_eq!(
            text,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"v"}}"#
        );
    }
}
