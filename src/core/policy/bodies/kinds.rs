//! Kinds of objects whose bodies are judged, and the fields of each that matter.

use super::super::{
    Attributes, Verb,
    schema::{Field, FieldKind, Others, Schema, field},
};
use crate::core::proxy::{Call, CallTarget, values};

/// A kind of object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BodyKind {
    Service,
    Secret,
    Ingress,
    /// `Certificate` of cert-manager.
    Certificate,
    Pod,
    /// A Deployment, ReplicaSet, StatefulSet or ReplicationController: the kind.
    Workload(&'static str),
    /// `DaemonSet`.
    DaemonSet,
    Job,
    /// `CronJob`.
    CronJob,
}

/// The form of a write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Write {
    /// POST: the whole object.
    Create,
    /// PUT: the whole object.
    Update,
    /// Server-side apply: every field that it sets is in its body.
    Apply,
    /// Any other patch: the result is not in its body.
    Patch,
}

/// A call whose body is judged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Written {
    /// The kind of object.
    pub subject: BodyKind,
    /// The form of the write.
    pub write: Write,
}

/// The content type of server-side apply.
pub(super) const APPLY: &str = "application/apply-patch+yaml";

/// Names a call whose body is judged; `None` for any other.
pub fn written(call: &Call) -> Option<Written> {
    let CallTarget::Kubernetes(path) = &call.target else {
        return None;
    };
    let Some(Attributes::Object(object)) = Attributes::of(&call.method, path, &call.query) else {
        return None;
    };
    let write = match object.verb {
        Verb::Create => Write::Create,
        Verb::Update => Write::Update,
        Verb::Patch if patch_type(call) == APPLY => Write::Apply,
        Verb::Patch => Write::Patch,
        Verb::Get
        | Verb::List
        | Verb::Watch
        | Verb::Delete
        | Verb::DeleteCollection
        | Verb::Proxy
        | Verb::None => return None,
    };
    if !object.subresource.is_empty() {
        return None;
    }
    let subject = match (object.group.as_ref(), object.resource.as_ref()) {
        ("", "services") => BodyKind::Service,
        ("", "secrets") => BodyKind::Secret,
        ("", "pods") => BodyKind::Pod,
        ("", "replicationcontrollers") => BodyKind::Workload("ReplicationController"),
        ("apps", "daemonsets") => BodyKind::DaemonSet,
        ("apps", "deployments") => BodyKind::Workload("Deployment"),
        ("apps", "replicasets") => BodyKind::Workload("ReplicaSet"),
        ("apps", "statefulsets") => BodyKind::Workload("StatefulSet"),
        ("batch", "jobs") => BodyKind::Job,
        ("batch", "cronjobs") => BodyKind::CronJob,
        ("networking.k8s.io", "ingresses") => BodyKind::Ingress,
        ("cert-manager.io", "certificates") => BodyKind::Certificate,
        _ => return None,
    };
    Some(Written { subject, write })
}

/// The type of a patch as the API server reads it: what stands before a semicolon, to the letter.
fn patch_type(call: &Call) -> &str {
    match values(&call.headers, "content-type").collect::<Vec<_>>()[..] {
        [one] => one.split(';').next().unwrap_or_default(),
        // Two of them: which one counts is not guessed.
        _ => "",
    }
}

/// A call in the API server's words.
pub(super) fn attributes(call: &Call) -> Option<String> {
    let CallTarget::Kubernetes(path) = &call.target else {
        return None;
    };
    Attributes::of(&call.method, path, &call.query).map(|attributes| attributes.to_string())
}

impl BodyKind {
    /// The kind in a body.
    pub(super) const fn kind(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::Secret => "Secret",
            Self::Ingress => "Ingress",
            Self::Certificate => "Certificate",
            Self::Pod => "Pod",
            Self::Workload(kind) => kind,
            Self::DaemonSet => "DaemonSet",
            Self::Job => "Job",
            Self::CronJob => "CronJob",
        }
    }

    /// The fields that are judged.
    pub(super) fn schema(self) -> &'static Schema {
        match self {
            Self::Service => &SERVICE,
            Self::Secret => &SECRET,
            Self::Ingress => &INGRESS,
            Self::Certificate => &CERTIFICATE,
            Self::Pod => &POD,
            Self::Workload(_) => &WORKLOAD,
            Self::DaemonSet => &DAEMON_SET,
            Self::Job => &JOB,
            Self::CronJob => &CRON_JOB,
        }
    }

    /// Path of the Pod specification in the object.
    pub(super) const fn pod_spec(self) -> Option<&'static str> {
        match self {
            Self::Pod => Some("/spec"),
            Self::Workload(_) | Self::DaemonSet | Self::Job => Some("/spec/template/spec"),
            Self::CronJob => Some("/spec/jobTemplate/spec/template/spec"),
            Self::Service | Self::Secret | Self::Ingress | Self::Certificate => None,
        }
    }
}

// The numbers are those of `generated.proto` in k8s.io/api v0.34 (core, apps, batch, networking);
// they never change.

const VERSION: Field = field("apiVersion", 0, FieldKind::Text);
const KIND: Field = field("kind", 0, FieldKind::Text);

static SERVICE: Schema = Schema::of(&[
    VERSION,
    KIND,
    field("spec", 2, FieldKind::Object(&SERVICE_SPEC)),
]);
static SERVICE_SPEC: Schema = Schema::of(&[
    field("type", 4, FieldKind::Text),
    field("externalIPs", 5, FieldKind::Texts),
]);

static SECRET: Schema = Schema::of(&[VERSION, KIND, field("type", 3, FieldKind::Text)]);

/// Annotations by which cert-manager is asked for a certificate.
pub(super) const ISSUER_ANNOTATIONS: &[&str] = &[
    "cert-manager.io/",
    "certmanager.k8s.io/",
    "kubernetes.io/tls-acme",
];

static INGRESS: Schema = Schema::of(&[
    VERSION,
    KIND,
    field("metadata", 1, FieldKind::Object(&INGRESS_METADATA)),
]);
static INGRESS_METADATA: Schema = Schema::of(&[field(
    "annotations",
    12,
    FieldKind::TextMap(ISSUER_ANNOTATIONS),
)]);

// A custom resource: there is no protobuf of it.
static CERTIFICATE: Schema = Schema::of(&[
    VERSION,
    KIND,
    field("spec", 0, FieldKind::Object(&CERTIFICATE_SPEC)),
]);
static CERTIFICATE_SPEC: Schema =
    Schema::of(&[field("issuerRef", 0, FieldKind::Object(&ISSUER_REFERENCE))]);
static ISSUER_REFERENCE: Schema = Schema::of(&[
    field("name", 0, FieldKind::Text),
    field("kind", 0, FieldKind::Text),
    field("group", 0, FieldKind::Text),
]);

static POD: Schema = Schema::of(&[
    VERSION,
    KIND,
    field("spec", 2, FieldKind::Object(&POD_SPEC)),
]);
static TEMPLATE: Schema = Schema::of(&[field("spec", 2, FieldKind::Object(&POD_SPEC))]);
static WORKLOAD: Schema = Schema::of(&[
    VERSION,
    KIND,
    field("spec", 2, FieldKind::Object(&WORKLOAD_SPEC)),
]);
static WORKLOAD_SPEC: Schema = Schema::of(&[field("template", 3, FieldKind::Object(&TEMPLATE))]);
static DAEMON_SET: Schema = Schema::of(&[
    VERSION,
    KIND,
    field("spec", 2, FieldKind::Object(&DAEMON_SET_SPEC)),
]);
static DAEMON_SET_SPEC: Schema = Schema::of(&[field("template", 2, FieldKind::Object(&TEMPLATE))]);
static JOB: Schema = Schema::of(&[
    VERSION,
    KIND,
    field("spec", 2, FieldKind::Object(&JOB_SPEC)),
]);
static JOB_SPEC: Schema = Schema::of(&[field("template", 6, FieldKind::Object(&TEMPLATE))]);
static CRON_JOB: Schema = Schema::of(&[
    VERSION,
    KIND,
    field("spec", 2, FieldKind::Object(&CRON_JOB_SPEC)),
]);
static CRON_JOB_SPEC: Schema =
    Schema::of(&[field("jobTemplate", 5, FieldKind::Object(&JOB_TEMPLATE))]);
static JOB_TEMPLATE: Schema = Schema::of(&[field("spec", 2, FieldKind::Object(&JOB_SPEC))]);

static POD_SPEC: Schema = Schema::of(&[
    field("volumes", 1, FieldKind::Objects(&VOLUME)),
    field("containers", 2, FieldKind::Objects(&CONTAINER)),
    field("initContainers", 20, FieldKind::Objects(&CONTAINER)),
    field("priorityClassName", 24, FieldKind::Text),
    field("resources", 40, FieldKind::Object(&RESOURCES)),
]);
static CONTAINER: Schema = Schema::of(&[
    field("name", 1, FieldKind::Text),
    field("resources", 8, FieldKind::Object(&RESOURCES)),
]);
static RESOURCES: Schema = Schema::of(&[
    field("limits", 1, FieldKind::Names),
    field("requests", 2, FieldKind::Names),
]);

/// Sources of volumes that lie in the namespace, in the node's own storage, or behind a claim.
/// `hostPath` is the business of the Pod Security Standard. A `csi` volume takes its server from
/// the Pod, as `nfs` does.
pub(super) const LOCAL_VOLUMES: &[&str] = &[
    "configMap",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "hostPath",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

static VOLUME: Schema = Schema {
    fields: &[
        field("name", 1, FieldKind::Text),
        // In protobuf the sources lie in a message of their own.
        field("volumeSource", 2, FieldKind::Inline(&VOLUME_SOURCE)),
    ],
    others: Others::Keep,
};
static VOLUME_SOURCE: Schema = Schema {
    fields: &[
        field("hostPath", 1, FieldKind::Presence),
        field("emptyDir", 2, FieldKind::Presence),
        field("gcePersistentDisk", 3, FieldKind::Whole),
        field("awsElasticBlockStore", 4, FieldKind::Whole),
        field("gitRepo", 5, FieldKind::Whole),
        field("secret", 6, FieldKind::Presence),
        field("nfs", 7, FieldKind::Whole),
        field("iscsi", 8, FieldKind::Whole),
        field("glusterfs", 9, FieldKind::Whole),
        field("persistentVolumeClaim", 10, FieldKind::Presence),
        field("rbd", 11, FieldKind::Whole),
        field("flexVolume", 12, FieldKind::Whole),
        field("cinder", 13, FieldKind::Whole),
        field("cephfs", 14, FieldKind::Whole),
        field("flocker", 15, FieldKind::Whole),
        field("downwardAPI", 16, FieldKind::Presence),
        field("fc", 17, FieldKind::Whole),
        field("azureFile", 18, FieldKind::Whole),
        field("configMap", 19, FieldKind::Presence),
        field("vsphereVolume", 20, FieldKind::Whole),
        field("quobyte", 21, FieldKind::Whole),
        field("azureDisk", 22, FieldKind::Whole),
        field("photonPersistentDisk", 23, FieldKind::Whole),
        field("portworxVolume", 24, FieldKind::Whole),
        field("scaleIO", 25, FieldKind::Whole),
        field("projected", 26, FieldKind::Presence),
        field("storageos", 27, FieldKind::Whole),
        field("csi", 28, FieldKind::Whole),
        field("ephemeral", 29, FieldKind::Presence),
        field("image", 30, FieldKind::Presence),
    ],
    others: Others::Keep,
};
