//! Lease of the link in the API: `coordination.k8s.io/v1`.
//!
//! Its fields are filled as other tools expect them, but its times are only written, never read:
//! they come from wall clocks. Everything that has no field is in two annotations, as JSON. Foreign
//! text is shortened and freed of control characters here.

use std::time::Duration;

use litemap::LiteMap;
use serde::Serialize;

use super::json::{self, fields, object};
use crate::core::{
    format::is_unprintable,
    lease::{Candidate, Change, Record, Standby},
    order::GatherExt as _,
    time::Wall,
};

/// The name of the object.
pub const NAME: &str = "pipeops-agent";
/// About the holder: agent, host, beat; the cluster's id, and who registered it last.
const HOLDER: &str = "pipeops.io/link-holder";
/// Those that stand by.
const STANDBY: &str = "pipeops.io/link-standby";
/// Maximum characters of the name of an agent or host.
const NAME_CHARS_MAX: usize = 100;

/// The object, as far as it is read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Lease {
    metadata: Head,
    spec: Spec,
}
fields!(Lease { metadata, spec });

#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Head {
    resource_version: String,
    annotations: LiteMap<String, String>,
}
fields!(Head {
    resource_version: "resourceVersion",
    annotations
});

#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Spec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<u32>,
    lease_transitions: Option<u32>,
}
fields!(Spec {
    holder_identity: "holderIdentity",
    lease_duration_seconds: "leaseDurationSeconds",
    lease_transitions: "leaseTransitions",
});

#[derive(Debug, Default, Serialize)]
struct HolderNote {
    agent: String,
    host: String,
    beat: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    registered: Option<String>,
}
fields!(HolderNote {
    agent,
    host,
    beat,
    cluster_id,
    registered
});

#[derive(Debug, Default, Serialize)]
struct StandbyNote {
    id: String,
    agent: String,
    host: String,
    beat: u64,
}
fields!(StandbyNote {
    id,
    agent,
    host,
    beat
});

impl Lease {
    /// Resource version.
    pub fn version(&self) -> &str {
        &self.metadata.resource_version
    }

    /// Content. An annotation that cannot be read counts as absent.
    pub fn record(&self) -> Record {
        let about: HolderNote = self.note(HOLDER);
        let standby: Vec<StandbyNote> = self.note(STANDBY);
        let id = self.spec.holder_identity.as_deref().map(printable);
        let holder = id.filter(|id| !id.is_empty()).map(|id| Candidate {
            id,
            agent: short(&about.agent),
            host: short(&about.host),
        });
        let standby = standby.into_iter().map(|note| Standby {
            party: Candidate {
                id: printable(&note.id),
                agent: short(&note.agent),
                host: short(&note.host),
            },
            beat: note.beat,
        });
        let seconds = self.spec.lease_duration_seconds.unwrap_or(u32::MAX);
        Record {
            version: self.metadata.resource_version.clone(),
            holder,
            beat: about.beat,
            duration: Duration::from_secs(seconds.into()),
            transitions: self.spec.lease_transitions.unwrap_or_default(),
            cluster_id: about.cluster_id.map(|id| printable(&id)),
            registered: about.registered,
            standby: standby.collect(),
        }
    }

    fn note<T: json::Shape + Default>(&self, name: &str) -> T {
        let text = self.metadata.annotations.get(name);
        text.and_then(|text| json::shape(text.as_bytes()).ok())
            .unwrap_or_default()
    }
}

fn printable(text: &str) -> String {
    text.chars().filter(|c| !is_unprintable(*c)).collect()
}

fn short(text: &str) -> String {
    let printable = text.chars().filter(|c| !is_unprintable(*c));
    printable.take(NAME_CHARS_MAX).collect()
}

/// The object, as far as a write changes it: the whole of it for a new one, else a merge patch that
/// the API refuses where the object is not in the state that is named.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Write {
    api_version: &'static str,
    kind: &'static str,
    metadata: WrittenHead,
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<WrittenSpec>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenHead {
    name: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    resource_version: String,
    #[serde(serialize_with = "object")]
    annotations: LiteMap<&'static str, String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenSpec {
    /// `null` takes it away.
    holder_identity: Option<String>,
    lease_duration_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    acquire_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    renew_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_transitions: Option<u32>,
}

impl Write {
    /// Makes the object say this. An agent that stands by touches nothing of what the holder wrote.
    ///
    /// # Errors
    /// What the encoder says.
    pub fn new(record: &Record, change: Change, wall: Wall) -> Result<Self, serde_json::Error> {
        let standby = record.standby.iter().map(|other| StandbyNote {
            id: other.party.id.clone(),
            agent: other.party.agent.clone(),
            host: other.party.host.clone(),
            beat: other.beat,
        });
        let standby: Vec<_> = standby.collect();
        let standby = (STANDBY, serde_json::to_string(&standby)?);
        let mut annotations: LiteMap<_, _> = std::iter::once(standby).gather();
        let mut spec = None;
        if change != Change::Standby {
            let holder = record.holder.clone().unwrap_or_default();
            let note = HolderNote {
                agent: holder.agent,
                host: holder.host,
                beat: record.beat,
                cluster_id: record.cluster_id.clone(),
                registered: record.registered.clone(),
            };
            annotations.insert(HOLDER, serde_json::to_string(&note)?);
            let stamp = micro_time(wall);
            let is_new = change == Change::Acquired;
            spec = Some(WrittenSpec {
                holder_identity: record.holder.as_ref().map(|holder| holder.id.clone()),
                lease_duration_seconds: record.duration.as_secs(),
                acquire_time: is_new.then(|| stamp.clone()),
                renew_time: (change != Change::Released).then_some(stamp),
                lease_transitions: is_new.then_some(record.transitions),
            });
        }
        Ok(Self {
            api_version: "coordination.k8s.io/v1",
            kind: "Lease",
            metadata: WrittenHead {
                name: NAME,
                resource_version: record.version.clone(),
                annotations,
            },
            spec,
        })
    }
}

/// A stamp with exactly six digits after the second, as `MicroTime` wants it.
fn micro_time(wall: Wall) -> String {
    let millis = wall.rfc3339();
    match millis.strip_suffix('Z') {
        Some(stamp) => format!("{stamp}000Z"),
        None => millis,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn party(name: &str) -> Candidate {
        Candidate {
            id: format!("{name}-1"),
            agent: name.to_owned(),
            host: format!("{name}-host"),
        }
    }

    fn record() -> Record {
        Record {
            version: "77".to_owned(),
            holder: Some(party("a")),
            beat: 9,
            duration: Duration::from_secs(12),
            transitions: 2,
            cluster_id: Some("c-1".to_owned()),
            registered: Some("a-1".to_owned()),
            standby: vec![Standby {
                party: party("b"),
                beat: 4,
            }],
        }
    }

    fn written(record: &Record, change: Change) -> Value {
        let wall = Wall::from_millis(1_781_589_028_123);
        serde_json::to_value(Write::new(record, change, wall).unwrap()).unwrap()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let object = written(&record(), Change::Acquired);
        assert_eq!(object["spec"]["renewTime"], "2026-06-16T05:50:28.123000Z");
        assert_eq!(object["spec"]["acquireTime"], object["spec"]["renewTime"]);
        let lease: Lease = serde_json::from_value(object).unwrap();
        assert_eq!(lease.record(), record());
    }

    #[test]
    fn one_that_stands_by_touches_nothing_of_the_holders() {
        let object = written(&record(), Change::Standby);
        assert_eq!(object.get("spec"), None);
        let annotations = object["metadata"]["annotations"].as_object().unwrap();
        assert_eq!(annotations.len(), 1);
        assert_eq!(object["metadata"]["resourceVersion"], "77");
    }

    #[test]
    fn a_release_takes_the_holder_away() {
        let released = Record {
            holder: None,
            ..record()
        };
        let object = written(&released, Change::Released);
        assert_eq!(object["spec"]["holderIdentity"], Value::Null);
        assert_eq!(object["spec"].get("renewTime"), None);
        let lease: Lease = serde_json::from_value(object).unwrap();
        assert_eq!((lease.record().holder, lease.record().beat), (None, 9));
    }

    #[test]
    fn garbage_makes_nobody_hasty_and_reaches_no_log() {
        let lease: Lease = serde_json::from_value(json!({
            "metadata": {"resourceVersion": "5", "annotations": {
                HOLDER: "{\"agent\": 7", STANDBY: "[]"}},
            "spec": {"holderIdentity": "x\n\u{1b}[2J"},
        }))
        .unwrap();
        let record = lease.record();
        assert_eq!(record.holder.as_ref().unwrap().words(), "agent x[2J");
        assert_eq!(record.patience(), Duration::from_secs(300));
        let lease: Lease = serde_json::from_value(json!({"metadata": {}, "spec": {}})).unwrap();
        assert_eq!(lease.record().holder, None);
        let long = "n".repeat(5000);
        assert_eq!(short(&long).len(), NAME_CHARS_MAX);
    }
}
