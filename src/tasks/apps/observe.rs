//! Observation of a namespace: everything that a verdict on its rollouts reads, in one round of
//! lists.

use serde_json::Value;

use crate::{
    core::{
        apps::{Kind, NODE, read_for},
        rollout::{Died, LINES_MAX, Object, Observation},
    },
    kube::{Client, Detail, Error, Identity, query_escaped},
};

/// Objects of one kind that are read; Pods, events and sets of one namespace. What is beyond makes
/// a verdict later, not wrong.
pub const OBJECTS_MAX: usize = 2_000;

/// Bytes that are asked for the last lines of a container. The kubelet cuts off what is beyond.
pub const LOG_BYTES_MAX: usize = 16 * 1024;

/// Query for the last lines of a container that died.
pub fn log_query(died: &Died) -> String {
    format!(
        "container={}&previous={}&tailLines={LINES_MAX}&limitBytes={LOG_BYTES_MAX}",
        query_escaped(&died.container),
        died.is_previous
    )
}

/// Reads what is in a namespace as `identity`, as far as versions with these kinds need it. Nodes
/// are read by the agent itself: no account of an app sees them.
///
/// # Errors
/// Reason why the cluster cannot be seen.
pub async fn observe(
    client: &Client,
    identity: &Identity,
    namespace: &str,
    kinds: &[Kind],
) -> Result<Observation, Error> {
    let mut seen = Observation::default();
    for kind in read_for(kinds) {
        let found = read(client, identity, (&kind, namespace), &mut seen).await;
        match found {
            // Its definition is gone, and with it all objects.
            Err(error) if kind.is_defined() && error.is_not_found() => {}
            found => found?,
        }
    }
    read(client, &Identity::Agent, (&NODE, ""), &mut seen).await?;
    Ok(seen)
}

async fn read(
    client: &Client,
    identity: &Identity,
    (kind, namespace): (&Kind, &str),
    seen: &mut Observation,
) -> Result<(), Error> {
    let mut count = 0_usize;
    let each = |whole: Value| {
        count = count.saturating_add(1);
        if count <= OBJECTS_MAX {
            seen.add(Object::reduced(&kind.name, &whole));
        }
    };
    let path = kind.path(namespace, "");
    client.list_as(identity, &path, Detail::Whole, each).await?;
    Ok(())
}
