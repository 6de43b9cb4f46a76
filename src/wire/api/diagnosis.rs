//! "Link or node?": which side is broken, step by step; and the cards of the overview.

use serde::{Deserialize, Serialize};

use super::Environment;

/// Path of the connectivity probe.
pub const DIAGNOSIS_PATH: &str = "/api/v1/diagnosis";
/// Path of the machine and its cards.
pub const HOST_PATH: &str = "/api/v1/host";

/// Side that has the problem.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Diagnosis {
    /// `none`, `node`, `network`, `control plane` or `unknown`.
    pub side: String,
    /// The verdict in words.
    pub sentence: String,
    /// Time when it was tested: RFC 3339 in UTC.
    pub at: String,
    /// From the cable to the session with the control plane, and the cluster.
    pub steps: Vec<Probe>,
}

/// One step of the way.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Probe {
    /// `carrier`, `address`, `route`, `dns`, `tcp`, `tls`, `http`, `clock`, `session` or `cluster`.
    pub id: String,
    /// Its name for people.
    pub title: String,
    /// `ok`, `failed`, `skipped` or `unknown`.
    pub outcome: String,
    /// Observation.
    pub seen: String,
    /// Duration.
    pub took_ms: Option<f64>,
    /// Action for a person.
    pub fix: Option<String>,
}

/// The machine, and the cards of the overview.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct HostReport {
    /// Environment of the machine.
    pub environment: Environment,
    /// The cards.
    pub figures: Vec<Figure>,
}

/// One card of the overview.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Figure {
    /// `link`, `k3s`, `node`, `disk`, `clock`, `power` or `backlog`.
    pub id: String,
    /// Its name for people.
    pub title: String,
    /// The answer in a few words.
    pub value: String,
    /// More about it.
    pub detail: Option<String>,
    /// Age of the value.
    pub age_s: Option<u64>,
    /// Source of the value.
    pub source: String,
    /// `ok`, `warning`, `critical` or `unknown`.
    pub state: String,
}
