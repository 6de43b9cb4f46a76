//! Observation of a namespace: everything that a verdict on its rollouts reads, in one round of lists.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    core::rollout::{Object, Observation},
    kube::{Client, Detail, Error, Identity},
};

/// Objects of one kind that are read; Pods, events and sets of one namespace. What is beyond makes a verdict later, not wrong.
const OBJECTS_MAX: usize = 2_000;

/// Kinds that are always read: they hold most of the reasons.
const ALWAYS: [(&str, &str); 3] = [
    ("Pod", "/api/v1"),
    ("Event", "/api/v1"),
    ("PersistentVolumeClaim", "/api/v1"),
];

/// Kinds that are read where the version has one of the second.
const WHERE_USED: [(&str, &str, &[&str]); 7] = [
    ("Deployment", "/apis/apps/v1", &["Deployment"]),
    ("ReplicaSet", "/apis/apps/v1", &["Deployment"]),
    ("StatefulSet", "/apis/apps/v1", &["StatefulSet"]),
    ("DaemonSet", "/apis/apps/v1", &["DaemonSet"]),
    ("Job", "/apis/batch/v1", &["Job"]),
    ("Service", "/api/v1", &["Service", "Ingress"]),
    ("Ingress", "/apis/networking.k8s.io/v1", &["Ingress"]),
];

/// Reads what is in a namespace as `identity`, as far as versions with these kinds need it. Nodes are read by the agent itself:
/// no account of an app sees them.
///
/// # Errors
/// Why the cluster cannot be seen.
pub async fn observe(
    client: &Client,
    identity: &Identity,
    namespace: &str,
    kinds: &BTreeSet<&str>,
) -> Result<Observation, Error> {
    let mut seen = Observation::default();
    for (kind, group) in ALWAYS {
        read(
            client,
            identity,
            (kind, &path(group, namespace, kind)),
            &mut seen,
        )
        .await?;
    }
    for (kind, group, users) in WHERE_USED {
        if users.iter().any(|user| kinds.contains(user)) {
            read(
                client,
                identity,
                (kind, &path(group, namespace, kind)),
                &mut seen,
            )
            .await?;
        }
    }
    read(
        client,
        &Identity::Agent,
        ("Node", "/api/v1/nodes"),
        &mut seen,
    )
    .await?;
    Ok(seen)
}

fn path(group: &str, namespace: &str, kind: &str) -> String {
    let plural = match kind {
        "Ingress" => "ingresses".to_owned(),
        kind => format!("{}s", kind.to_ascii_lowercase()),
    };
    format!("{group}/namespaces/{namespace}/{plural}")
}

async fn read(
    client: &Client,
    identity: &Identity,
    (kind, path): (&str, &str),
    seen: &mut Observation,
) -> Result<(), Error> {
    let mut count = 0_usize;
    let each = |whole: Value| {
        count = count.saturating_add(1);
        if count <= OBJECTS_MAX {
            seen.add(Object::reduced(kind, &whole));
        }
    };
    client.list_as(identity, path, Detail::Whole, each).await?;
    Ok(())
}
