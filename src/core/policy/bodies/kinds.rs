//! Kinds of objects whose bodies are judged, and the fields of each that matter.

use super::super::{
    Attributes, Verb,
    schema::{Field, Kind, Others, Schema, field},
};
use crate::core::proxy::{Call, Target, values};

/// A kind of object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Subject {
    /// `Service`.
    Service,
    /// `Secret`.
    Secret,
    /// `Ingress`.
    Ingress,
    /// `Certificate` of cert-manager.
    Certificate,
    /// `Pod`.
    Pod,
    /// A Deployment, ReplicaSet, StatefulSet or ReplicationController: the kind.
    Workload(&'static str),
    /// `DaemonSet`.
    DaemonSet,
    /// `Job`.
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
    pub subject: Subject,
    /// The form of the write.
    pub write: Write,
}

/// The content type of server-side apply.
pub(super) const APPLY: &str = "application/apply-patch+yaml";

/// Names a call whose body is judged; `None` for any other.
pub fn written(call: &Call) -> Option<Written> {
    let Target::Kubernetes(path) = &call.target else {
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
        ("", "services") => Subject::Service,
        ("", "secrets") => Subject::Secret,
        ("", "pods") => Subject::Pod,
        ("", "replicationcontrollers") => Subject::Workload("ReplicationController"),
        ("apps", "daemonsets") => Subject::DaemonSet,
        ("apps", "deployments") => Subject::Workload("Deployment"),
        ("apps", "replicasets") => Subject::Workload("ReplicaSet"),
        ("apps", "statefulsets") => Subject::Workload("StatefulSet"),
        ("batch", "jobs") => Subject::Job,
        ("batch", "cronjobs") => Subject::CronJob,
        ("networking.k8s.io", "ingresses") => Subject::Ingress,
        ("cert-manager.io", "certificates") => Subject::Certificate,
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
    let Target::Kubernetes(path) = &call.target else {
        return None;
    };
    Attributes::of(&call.method, path, &call.query).map(|attributes| attributes.to_string())
}

impl Subject {
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

const VERSION: Field = field("apiVersion", 0, Kind::Text);
const KIND: Field = field("kind", 0, Kind::Text);

static SERVICE: Schema =
    Schema::of(&[VERSION, KIND, field("spec", 2, Kind::Object(&SERVICE_SPEC))]);
static SERVICE_SPEC: Schema = Schema::of(&[
    field("type", 4, Kind::Text),
    field("externalIPs", 5, Kind::Texts),
]);

static SECRET: Schema = Schema::of(&[VERSION, KIND, field("type", 3, Kind::Text)]);

/// Annotations by which cert-manager is asked for a certificate.
pub(super) const ISSUER_ANNOTATIONS: &[&str] = &[
    "cert-manager.io/",
    "certmanager.k8s.io/",
    "kubernetes.io/tls-acme",
];

static INGRESS: Schema = Schema::of(&[
    VERSION,
    KIND,
    field("metadata", 1, Kind::Object(&INGRESS_METADATA)),
]);
static INGRESS_METADATA: Schema =
    Schema::of(&[field("annotations", 12, Kind::TextMap(ISSUER_ANNOTATIONS))]);

// A custom resource: there is no protobuf of it.
static CERTIFICATE: Schema = Schema::of(&[
    VERSION,
    KIND,
    field("spec", 0, Kind::Object(&CERTIFICATE_SPEC)),
]);
static CERTIFICATE_SPEC: Schema =
    Schema::of(&[field("issuerRef", 0, Kind::Object(&ISSUER_REFERENCE))]);
static ISSUER_REFERENCE: Schema = Schema::of(&[
    field("name", 0, Kind::Text),
    field("kind", 0, Kind::Text),
    field("group", 0, Kind::Text),
]);

static POD: Schema = Schema::of(&[VERSION, KIND, field("spec", 2, Kind::Object(&POD_SPEC))]);
static TEMPLATE: Schema = Schema::of(&[field("spec", 2, Kind::Object(&POD_SPEC))]);
static WORKLOAD: Schema = Schema::of(&[
    VERSION,
    KIND,
    field("spec", 2, Kind::Object(&WORKLOAD_SPEC)),
]);
static WORKLOAD_SPEC: Schema = Schema::of(&[field("template", 3, Kind::Object(&TEMPLATE))]);
static DAEMON_SET: Schema = Schema::of(&[
    VERSION,
    KIND,
    field("spec", 2, Kind::Object(&DAEMON_SET_SPEC)),
]);
static DAEMON_SET_SPEC: Schema = Schema::of(&[field("template", 2, Kind::Object(&TEMPLATE))]);
static JOB: Schema = Schema::of(&[VERSION, KIND, field("spec", 2, Kind::Object(&JOB_SPEC))]);
static JOB_SPEC: Schema = Schema::of(&[field("template", 6, Kind::Object(&TEMPLATE))]);
static CRON_JOB: Schema = Schema::of(&[
    VERSION,
    KIND,
    field("spec", 2, Kind::Object(&CRON_JOB_SPEC)),
]);
static CRON_JOB_SPEC: Schema = Schema::of(&[field("jobTemplate", 5, Kind::Object(&JOB_TEMPLATE))]);
static JOB_TEMPLATE: Schema = Schema::of(&[field("spec", 2, Kind::Object(&JOB_SPEC))]);

static POD_SPEC: Schema = Schema::of(&[
    field("volumes", 1, Kind::Objects(&VOLUME)),
    field("containers", 2, Kind::Objects(&CONTAINER)),
    field("initContainers", 20, Kind::Objects(&CONTAINER)),
    field("priorityClassName", 24, Kind::Text),
    field("resources", 40, Kind::Object(&RESOURCES)),
]);
static CONTAINER: Schema = Schema::of(&[
    field("name", 1, Kind::Text),
    field("resources", 8, Kind::Object(&RESOURCES)),
]);
static RESOURCES: Schema = Schema::of(&[
    field("limits", 1, Kind::Names),
    field("requests", 2, Kind::Names),
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
        field("name", 1, Kind::Text),
        // In protobuf the sources lie in a message of their own.
        field("volumeSource", 2, Kind::Inline(&VOLUME_SOURCE)),
    ],
    others: Others::Keep,
};
static VOLUME_SOURCE: Schema = Schema {
    fields: &[
        field("hostPath", 1, Kind::Presence),
        field("emptyDir", 2, Kind::Presence),
        field("gcePersistentDisk", 3, Kind::Whole),
        field("awsElasticBlockStore", 4, Kind::Whole),
        field("gitRepo", 5, Kind::Whole),
        field("secret", 6, Kind::Presence),
        field("nfs", 7, Kind::Whole),
        field("iscsi", 8, Kind::Whole),
        field("glusterfs", 9, Kind::Whole),
        field("persistentVolumeClaim", 10, Kind::Presence),
        field("rbd", 11, Kind::Whole),
        field("flexVolume", 12, Kind::Whole),
        field("cinder", 13, Kind::Whole),
        field("cephfs", 14, Kind::Whole),
        field("flocker", 15, Kind::Whole),
        field("downwardAPI", 16, Kind::Presence),
        field("fc", 17, Kind::Whole),
        field("azureFile", 18, Kind::Whole),
        field("configMap", 19, Kind::Presence),
        field("vsphereVolume", 20, Kind::Whole),
        field("quobyte", 21, Kind::Whole),
        field("azureDisk", 22, Kind::Whole),
        field("photonPersistentDisk", 23, Kind::Whole),
        field("portworxVolume", 24, Kind::Whole),
        field("scaleIO", 25, Kind::Whole),
        field("projected", 26, Kind::Presence),
        field("storageos", 27, Kind::Whole),
        field("csi", 28, Kind::Whole),
        field("ephemeral", 29, Kind::Presence),
        field("image", 30, Kind::Presence),
    ],
    others: Others::Keep,
};
