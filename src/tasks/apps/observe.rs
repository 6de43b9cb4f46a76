//! Observation of a namespace: everything that a verdict on its rollouts reads, in one round of
//! lists.

use serde_json::Value;

use crate::{
    core::{
        apps::{Kind, read_for},
        order::OrderExt as _,
        rollout::{Died, LINES_MAX, Object, Observation},
    },
    kube::{Client, Detail, Error, Identity, query_escaped},
};

/// Objects of one kind that are read; Pods, events and sets of one namespace. What is beyond makes
/// a verdict later, not wrong. Of events the newest are kept: a new one says why nothing works.
pub const OBJECTS_MAX: usize = 2_000;
/// Events that are forgotten at once, so that they are not compared for each one that comes.
const FORGOTTEN: usize = OBJECTS_MAX / 8;

/// Makes room for one more object of a kind of which there are so many. Returns how many there are
/// then, one less than may be; `None`: there is no room.
pub(super) fn make_room(seen: &mut Observation, kind: &str, count: usize) -> Option<usize> {
    if count < OBJECTS_MAX {
        return Some(count);
    }
    if kind != "Event" {
        return None;
    }
    let events = seen.of_kind(kind);
    let mut events: Vec<_> = events.map(|event| (event.moment(), event.key())).collect();
    events.order_by(|(one, _), (other, _)| one.cmp(other));
    events.truncate(FORGOTTEN);
    for (_, oldest) in &events {
        seen.remove(oldest);
    }
    Some(count.saturating_sub(events.len()))
}

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

/// Reads what is in a namespace as `identity`, as far as versions with these kinds need it; what
/// belongs to the whole cluster as the agent itself.
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
        let (identity, namespace) = if kind.is_of_cluster() {
            (&Identity::Agent, "")
        } else {
            (identity, namespace)
        };
        let found = read(client, identity, (&kind, namespace), &mut seen).await;
        match found {
            Err(error) if has_none(&kind, &error) => {}
            found => found?,
        }
    }
    Ok(seen)
}

/// Returns whether an error means that there are no objects of a kind, as far as a verdict is
/// concerned: its definition is gone, and with it all of them; or the agent was given no right to
/// read what only a doubt needs.
pub(super) fn has_none(kind: &Kind, error: &Error) -> bool {
    (kind.is_defined() && error.is_not_found())
        || (kind.name == "IngressClass" && error.is_forbidden())
}

async fn read(
    client: &Client,
    identity: &Identity,
    (kind, namespace): (&Kind, &str),
    seen: &mut Observation,
) -> Result<(), Error> {
    let mut count = 0_usize;
    let each = |whole: Value| {
        if let Some(room) = make_room(seen, &kind.name, count) {
            count = room.saturating_add(1);
            seen.add(Object::reduced(&kind.name, &whole));
        }
    };
    let path = kind.path(namespace, "");
    client.list_as(identity, &path, Detail::Whole, each).await?;
    Ok(())
}
