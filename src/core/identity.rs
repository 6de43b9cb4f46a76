//! Identity of this agent: decided from the disk, the configuration, the cluster and the machine.
//!
//! It reads nothing itself: the store keeps the answer, tasks bring the evidence. Deciding again
//! with the same evidence gives the same answer.

use crate::core::health::Severity;

/// Maximum length of a text that is believed from outside. Ids are below 64 characters, addresses
/// below 300.
const TEXT_BYTES_MAX: usize = 512;

/// Fingerprint of the machine, which tells it from a copy of its disk. Each part is a hash; `None`
/// if it cannot be read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Fingerprint {
    /// Of the machine id, which belongs to the installed system.
    pub machine: Option<String>,
    /// Of the board's serial number, which belongs to the hardware.
    pub board: Option<String>,
}

impl Fingerprint {
    /// Returns whether the two are surely not of the same machine. A part that one of them does not
    /// know says nothing: the agent reads more as root than as an ordinary user.
    pub fn contradicts(&self, other: &Self) -> bool {
        let differ = |one: &Option<String>, other: &Option<String>| {
            one.is_some() && other.is_some() && one != other
        };
        differ(&self.machine, &other.machine) || differ(&self.board, &other.board)
    }

    /// These parts, and those of `older` where this does not know them.
    fn or(&self, older: &Self) -> Self {
        Self {
            machine: self.machine.clone().or_else(|| older.machine.clone()),
            board: self.board.clone().or_else(|| older.board.clone()),
        }
    }
}

/// Identity of this agent.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Identity {
    /// Grows with every change: of two copies on disk the higher one is the newer one.
    pub generation: u64,
    /// The id that the agent gives itself.
    pub agent_id: String,
    /// The id that the control plane gave this cluster.
    pub cluster_id: Option<String>,
    /// The cluster's id at the gateway; mostly the same.
    pub cluster_uuid: Option<String>,
    /// Gateway that the control plane assigned.
    pub gateway_ws_url: Option<String>,
    /// The machine that this identity belongs to.
    pub fingerprint: Fingerprint,
    /// Identity of the machine that this disk was copied from.
    pub left_behind: Option<ForeignIdentity>,
}

/// An identity that belongs to another machine. The copied cluster still has it in its state, so it
/// must be known for good.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ForeignIdentity {
    /// The other machine's agent id.
    pub agent_id: String,
    /// The other machine's cluster id.
    pub cluster_id: Option<String>,
}

/// Values from a registration or the gateway.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Registration {
    /// The cluster's id.
    pub cluster_id: String,
    /// The cluster's id at the gateway, if the registration named it.
    pub cluster_uuid: Option<String>,
    /// Assigned gateway, if any.
    pub gateway_ws_url: Option<String>,
}

impl Identity {
    /// This identity after a registration; `None` where nothing changed. An identity is never taken
    /// back: a refusal of the control plane does not come here.
    pub fn registered(&self, registration: &Registration) -> Option<Self> {
        let registered = Self {
            generation: self.generation,
            cluster_id: clean(&registration.cluster_id).or_else(|| self.cluster_id.clone()),
            cluster_uuid: registration.cluster_uuid.as_deref().and_then(clean),
            gateway_ws_url: registration.gateway_ws_url.as_deref().and_then(clean),
            ..self.clone()
        };
        (registered != *self).then(|| Self {
            generation: self.generation.saturating_add(1),
            ..registered
        })
    }
}

/// Content of the ConfigMap `pipeops-agent-state` of another installation in the cluster.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ClusterState {
    /// Its key `agent_id`; empty is none.
    pub agent_id: String,
    /// Its key `cluster_id`; empty is none.
    pub cluster_id: String,
    /// Its key `gateway_ws_url`; empty is none.
    pub gateway_ws_url: String,
}

/// Knowledge about an earlier installation in the cluster.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Installed {
    /// There is no cluster, or the wait for it is over.
    #[default]
    NoCluster,
    /// There is a cluster that has not answered yet.
    NotAsked,
    /// The cluster has no state of an earlier installation.
    Nothing,
    /// An earlier installation left its state.
    State(ClusterState),
    /// The Go agent runs in the cluster now.
    GoAgentRuns,
}

/// Everything that the decision rests on.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// The identity in the database.
    pub database: Option<Identity>,
    /// The identity in the small file next to the database.
    pub file: Option<Identity>,
    /// The agent id in the settings.
    pub configured_id: Option<String>,
    /// The machine now. Empty where the machine is not the agent's own: in a pod, which may move.
    pub fingerprint: Fingerprint,
    /// Installation in the cluster.
    pub installed: Installed,
    /// A new random id, in case one is needed: see [`random_id`].
    pub fresh_id: String,
}

/// Permission to link with this identity.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Linking {
    /// Linking is allowed.
    Free,
    /// Not before the cluster answered: registering now could make a second cluster out of one that
    /// is known.
    AfterCluster,
    /// Not while the Go agent runs: two links of one cluster take it from each other.
    Held,
}

/// Event of the identity that people should know.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum IdentityEvent {
    /// A new id was made.
    Created,
    /// One of the two copies on disk is missing, damaged or older, and is rewritten.
    CopyRepaired,
    /// The settings give another id than the one on disk.
    Renamed {
        /// The id before.
        from: String,
    },
    /// An earlier installation's identity goes on here.
    TakenOver {
        /// The cluster id that goes on.
        cluster_id: Option<String>,
    },
    /// The disk is a copy of another machine's.
    Copied {
        /// The id of the machine that it was copied from.
        from: String,
        /// True if the settings still give that machine's id to this one too.
        is_id_shared: bool,
    },
    /// The Go agent still runs.
    GoAgentRuns,
}

impl IdentityEvent {
    /// The condition's id and severity, for what stays true until somebody acts; `None` for what is
    /// said once, in the log.
    pub const fn condition(&self) -> Option<(&'static str, Severity)> {
        match self {
            Self::Copied {
                is_id_shared: true, ..
            } => Some(("identity.shared", Severity::Critical)),
            Self::Copied {
                is_id_shared: false,
                ..
            } => Some(("identity.copied", Severity::Warning)),
            Self::GoAgentRuns => Some(("identity.go-agent-runs", Severity::Critical)),
            Self::Created | Self::CopyRepaired | Self::Renamed { .. } | Self::TakenOver { .. } => {
                None
            }
        }
    }

    /// The sentence, as seen by the agent that is now called `agent_id`.
    pub fn sentence(&self, agent_id: &str) -> String {
        match self {
            Self::Created => format!("this agent is new; its id is {agent_id}"),
            Self::CopyRepaired => {
                "one copy of the identity on disk was missing or outdated and has been rewritten"
                    .to_owned()
            }
            Self::Renamed { from } => {
                format!("the configuration names this agent {agent_id}; it was {from} before")
            }
            Self::TakenOver { cluster_id } => match cluster_id {
                Some(cluster_id) => format!(
                    "took over the installation found in the cluster: agent {agent_id}, cluster {cluster_id}"
                ),
                None => {
                    format!("took over the installation found in the cluster: agent {agent_id}")
                }
            },
            Self::Copied {
                from,
                is_id_shared: false,
            } => format!(
                "this disk is a copy of the machine {from}, so this machine is now {agent_id} and registers as new"
            ),
            Self::Copied {
                from,
                is_id_shared: true,
            } => format!(
                "this disk is a copy of the machine {from}, and the configuration gives the same id to this machine"
            ),
            Self::GoAgentRuns => {
                "the Go agent still runs in this cluster, so this agent does not connect".to_owned()
            }
        }
    }

    /// Action for a person.
    pub const fn fix(&self) -> Option<&'static str> {
        match self {
            Self::Copied {
                is_id_shared: true, ..
            } => Some(
                "remove pipeops.agent_id (PIPEOPS_AGENT_ID) from the configuration of one of the two",
            ),
            Self::Copied {
                is_id_shared: false,
                ..
            } => Some(
                "none needed if this is a new machine; if its board was replaced, remove the old cluster in the control plane",
            ),
            Self::GoAgentRuns => Some(
                "kubectl -n pipeops-system scale deployment pipeops-agent --replicas=0; this agent then takes over automatically",
            ),
            Self::Created | Self::CopyRepaired | Self::Renamed { .. } | Self::TakenOver { .. } => {
                None
            }
        }
    }
}

/// Decision on the identity.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Decision {
    pub identity: Identity,
    /// True if the disk does not say so yet.
    pub is_changed: bool,
    /// Permission to link.
    pub linking: Linking,
    /// Remarks to log.
    pub remarks: Vec<IdentityEvent>,
}

/// Decides who this agent is.
pub fn decide(evidence: &Evidence) -> Decision {
    let mut remarks = Vec::new();
    let stored = newest(evidence);
    let mut identity = match stored {
        None => created(evidence, &mut remarks),
        Some(stored) if stored.fingerprint.contradicts(&evidence.fingerprint) => {
            parted(stored, &evidence.fresh_id)
        }
        Some(stored) => stored.clone(),
    };
    take_over(&mut identity, &evidence.installed, &mut remarks);
    if let Some(configured) = evidence.configured_id.as_deref().and_then(clean)
        && configured != identity.agent_id
    {
        let from = std::mem::replace(&mut identity.agent_id, configured);
        if stored.is_some_and(|stored| stored.agent_id == from) {
            remarks.push(IdentityEvent::Renamed { from });
        }
    }
    identity.fingerprint = evidence.fingerprint.or(&identity.fingerprint);
    say_copied(&identity, &mut remarks);
    if evidence.installed == Installed::GoAgentRuns {
        remarks.push(IdentityEvent::GoAgentRuns);
    }
    let is_changed = stored != Some(&identity) || evidence.database != evidence.file;
    if is_changed {
        if stored == Some(&identity) {
            remarks.push(IdentityEvent::CopyRepaired);
        }
        identity.generation = identity.generation.saturating_add(1);
    }
    Decision {
        linking: linking(&identity, &evidence.installed),
        identity,
        is_changed,
        remarks,
    }
}

/// A new agent id out of eight random bytes in hexadecimal.
pub fn random_id(hex: &str) -> String {
    format!("agent-{hex}")
}

/// The newer of the two copies on disk; the database where both are equally new.
fn newest(evidence: &Evidence) -> Option<&Identity> {
    let copies = [evidence.file.as_ref(), evidence.database.as_ref()];
    copies
        .into_iter()
        .flatten()
        .filter(|copy| clean(&copy.agent_id).is_some())
        .max_by_key(|copy| copy.generation)
}

fn created(evidence: &Evidence, remarks: &mut Vec<IdentityEvent>) -> Identity {
    remarks.push(IdentityEvent::Created);
    Identity {
        agent_id: evidence.fresh_id.clone(),
        ..Identity::default()
    }
}

/// The identity of a machine whose disk came from another one.
fn parted(stored: &Identity, fresh_id: &str) -> Identity {
    Identity {
        generation: stored.generation,
        agent_id: fresh_id.to_owned(),
        left_behind: Some(ForeignIdentity {
            agent_id: stored.agent_id.clone(),
            cluster_id: stored.cluster_id.clone(),
        }),
        ..Identity::default()
    }
}

/// Goes on as the installation in the cluster, where this agent is not registered itself.
fn take_over(identity: &mut Identity, installed: &Installed, remarks: &mut Vec<IdentityEvent>) {
    let Installed::State(state) = installed else {
        return;
    };
    if identity.cluster_id.is_some() {
        return;
    }
    let (agent_id, cluster_id) = (clean(&state.agent_id), clean(&state.cluster_id));
    // The state of a copied cluster is the other machine's.
    let is_left_behind = identity.left_behind.as_ref().is_some_and(|left| {
        agent_id.as_ref() == Some(&left.agent_id)
            || (cluster_id.is_some() && cluster_id == left.cluster_id)
    });
    let is_known = agent_id.as_ref() == Some(&identity.agent_id) && cluster_id.is_none();
    if is_left_behind || is_known || (agent_id.is_none() && cluster_id.is_none()) {
        return;
    }
    if let Some(agent_id) = agent_id {
        identity.agent_id = agent_id;
    }
    identity.cluster_id.clone_from(&cluster_id);
    // The earlier agent knew one id only and used it at the gateway too.
    identity.cluster_uuid.clone_from(&cluster_id);
    identity.gateway_ws_url = clean(&state.gateway_ws_url);
    remarks.retain(|remark| *remark != IdentityEvent::Created);
    remarks.push(IdentityEvent::TakenOver { cluster_id });
}

/// A copy is told about until this machine has a cluster of its own; a shared id for as long as it
/// is shared.
fn say_copied(identity: &Identity, remarks: &mut Vec<IdentityEvent>) {
    let Some(left) = &identity.left_behind else {
        return;
    };
    let is_id_shared = left.agent_id == identity.agent_id;
    if is_id_shared || identity.cluster_id.is_none() {
        remarks.push(IdentityEvent::Copied {
            from: left.agent_id.clone(),
            is_id_shared,
        });
    }
}

fn linking(identity: &Identity, installed: &Installed) -> Linking {
    match installed {
        Installed::GoAgentRuns => Linking::Held,
        Installed::NotAsked if identity.cluster_id.is_none() => Linking::AfterCluster,
        Installed::NotAsked | Installed::NoCluster | Installed::Nothing | Installed::State(_) => {
            Linking::Free
        }
    }
}

/// Text from outside, where it can be an id or an address; `None` otherwise.
fn clean(text: &str) -> Option<String> {
    let text = text.trim();
    let is_clean =
        !text.is_empty() && text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control);
    is_clean.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(machine: &str, board: &str) -> Fingerprint {
        let part = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Fingerprint {
            machine: part(machine),
            board: part(board),
        }
    }

    fn stored() -> Identity {
        Identity {
            generation: 5,
            agent_id: "agent-old".to_owned(),
            cluster_id: Some("c-1".to_owned()),
            cluster_uuid: Some("u-1".to_owned()),
            gateway_ws_url: Some("wss://gateway".to_owned()),
            fingerprint: machine("m1", "b1"),
            left_behind: None,
        }
    }

    /// Both copies on disk, the same machine, no cluster.
    fn evidence() -> Evidence {
        Evidence {
            database: Some(stored()),
            file: Some(stored()),
            fingerprint: machine("m1", "b1"),
            fresh_id: "agent-fresh".to_owned(),
            ..Evidence::default()
        }
    }

    fn state(agent_id: &str, cluster_id: &str) -> Installed {
        Installed::State(ClusterState {
            agent_id: agent_id.to_owned(),
            cluster_id: cluster_id.to_owned(),
            gateway_ws_url: "wss://go".to_owned(),
        })
    }

    /// Evidence at the next start after this decision was saved.
    fn next_start(evidence: &Evidence, decision: &Decision) -> Evidence {
        Evidence {
            database: Some(decision.identity.clone()),
            file: Some(decision.identity.clone()),
            fresh_id: "agent-fresher".to_owned(),
            ..evidence.clone()
        }
    }

    #[test]
    fn nothing_new_changes_nothing() {
        let decision = decide(&evidence());
        assert_eq!(decision.identity, stored());
        assert!(!decision.is_changed && decision.remarks.is_empty());
        assert_eq!(decision.linking, Linking::Free);
    }

    /// Evidence, and the agent id, the cluster id and the words that follow from it.
    type Case = (
        &'static str,
        Evidence,
        &'static str,
        Option<&'static str>,
        &'static str,
    );

    fn named(name: &str, evidence: Evidence) -> Evidence {
        Evidence {
            configured_id: Some(name.to_owned()),
            ..evidence
        }
    }

    fn cases_on_new_machines() -> [Case; 3] {
        let new = || Evidence {
            database: None,
            file: None,
            ..evidence()
        };
        let emptied = Some(Identity {
            generation: 9,
            ..Identity::default()
        });
        let emptied = Evidence {
            file: emptied,
            ..new()
        };
        [
            ("a new box", new(), "agent-fresh", None, "is new"),
            ("with a name", named(" me ", new()), "me", None, "is new"),
            ("an emptied file", emptied, "agent-fresh", None, "is new"),
        ]
    }

    fn cases_on_this_machine() -> [Case; 5] {
        let newer = Identity {
            generation: 6,
            agent_id: "agent-6".to_owned(),
            ..stored()
        };
        let no_database = Evidence {
            database: None,
            ..evidence()
        };
        let no_file = Evidence {
            file: None,
            ..evidence()
        };
        let newer = Evidence {
            file: Some(newer),
            ..evidence()
        };
        let renamed = "names this agent me; it was agent-old before";
        [
            (
                "no database",
                no_database,
                "agent-old",
                Some("c-1"),
                "rewritten",
            ),
            ("no file", no_file, "agent-old", Some("c-1"), "rewritten"),
            ("a newer file", newer, "agent-6", Some("c-1"), "rewritten"),
            (
                "a name",
                named("me", evidence()),
                "me",
                Some("c-1"),
                renamed,
            ),
            (
                "no name",
                named("  ", evidence()),
                "agent-old",
                Some("c-1"),
                "",
            ),
        ]
    }

    fn cases_on_other_machines() -> [Case; 5] {
        let on = |machine_id, board| Evidence {
            fingerprint: machine(machine_id, board),
            ..evidence()
        };
        let copied = "copy of the machine agent-old, so this machine is now agent-fresh";
        let shared = named("agent-old", on("m2", "b2"));
        [
            (
                "another machine id",
                on("m2", "b1"),
                "agent-fresh",
                None,
                copied,
            ),
            ("another board", on("m1", "b2"), "agent-fresh", None, copied),
            (
                "an unknown board",
                on("m1", ""),
                "agent-old",
                Some("c-1"),
                "",
            ),
            ("in a pod", on("", ""), "agent-old", Some("c-1"), ""),
            (
                "a copy that kept its name",
                shared,
                "agent-old",
                None,
                "the configuration gives the same id to this machine",
            ),
        ]
    }

    #[test]
    fn each_case_has_its_identity_and_its_words_and_stays_as_it_is() {
        let cases = cases_on_new_machines()
            .into_iter()
            .chain(cases_on_this_machine())
            .chain(cases_on_other_machines());
        for (case, evidence, agent_id, cluster_id, words) in cases {
            let decision = decide(&evidence);
            assert_eq!(decision.identity.agent_id, agent_id, "{case}");
            assert_eq!(
                decision.identity.cluster_id.as_deref(),
                cluster_id,
                "{case}"
            );
            let said: Vec<_> = decision
                .remarks
                .iter()
                .map(|remark| remark.sentence(agent_id))
                .collect();
            assert_eq!(
                said.len(),
                usize::from(!words.is_empty()),
                "{case}: {said:?}"
            );
            assert!(
                said.iter().all(|said| said.contains(words)),
                "{case}: {said:?}"
            );
            let copies = [&evidence.database, &evidence.file].into_iter().flatten();
            let believed = copies.filter(|copy| !copy.agent_id.is_empty());
            let highest = believed.map(|copy| copy.generation).max().unwrap_or(0);
            let expected = highest + u64::from(decision.is_changed);
            assert_eq!(decision.identity.generation, expected, "{case}");
            let again = decide(&next_start(&evidence, &decision));
            assert!(!again.is_changed, "{case}: {:?}", again.remarks);
            assert_eq!(again.identity, decision.identity, "{case}");
        }
    }

    #[test]
    fn an_installation_in_the_cluster_goes_on_where_this_one_has_no_cluster_yet() {
        let mut evidence = Evidence {
            database: None,
            file: None,
            installed: state("agent-go", "c-go"),
            ..evidence()
        };
        let decision = decide(&evidence);
        assert_eq!(decision.identity.agent_id, "agent-go");
        assert_eq!(decision.identity.cluster_id.as_deref(), Some("c-go"));
        assert_eq!(decision.identity.cluster_uuid.as_deref(), Some("c-go"));
        assert_eq!(
            decision.identity.gateway_ws_url.as_deref(),
            Some("wss://go")
        );
        assert!(matches!(
            decision.remarks[..],
            [IdentityEvent::TakenOver { .. }]
        ));
        // A name in the settings wins, and the cluster still goes on.
        evidence.configured_id = Some("me".to_owned());
        let decision = decide(&evidence);
        assert_eq!(decision.identity.agent_id, "me");
        assert_eq!(decision.identity.cluster_id.as_deref(), Some("c-go"));
    }

    #[test]
    fn an_installation_in_the_cluster_is_left_alone_where_it_says_nothing_new() {
        for installed in [state("agent-go", "c-go"), state("", ""), Installed::Nothing] {
            let decision = decide(&Evidence {
                installed,
                ..evidence()
            });
            assert_eq!(decision.identity, stored());
            assert!(!decision.is_changed);
        }
        let odd = state(&"x".repeat(10_000), "c\n-1");
        let new = Evidence {
            database: None,
            file: None,
            installed: odd,
            ..evidence()
        };
        assert_eq!(decide(&new).identity.agent_id, "agent-fresh");
        assert_eq!(decide(&new).identity.cluster_id, None);
    }

    #[test]
    fn a_copied_disk_does_not_take_its_old_identity_back_from_the_copied_cluster() {
        let copied = Evidence {
            fingerprint: machine("m2", "b2"),
            ..evidence()
        };
        let first = decide(&copied);
        for installed in [
            state("agent-old", "c-1"),
            state("", "c-1"),
            state("agent-old", ""),
        ] {
            let later = Evidence {
                installed,
                ..next_start(&copied, &first)
            };
            let decision = decide(&later);
            assert_eq!(decision.identity.agent_id, "agent-fresh");
            assert_eq!(decision.identity.cluster_id, None);
            assert!(matches!(
                decision.remarks[..],
                [IdentityEvent::Copied {
                    is_id_shared: false,
                    ..
                }]
            ));
        }
        // The copy of the copy is told from both.
        let second = Evidence {
            fingerprint: machine("m3", "b3"),
            ..next_start(&copied, &first)
        };
        assert_eq!(decide(&second).identity.agent_id, "agent-fresher");
    }

    #[test]
    fn a_copy_is_told_about_until_it_has_its_own_cluster() {
        let copied = Evidence {
            fingerprint: machine("m2", "b2"),
            ..evidence()
        };
        let decision = decide(&copied);
        let again = decide(&next_start(&copied, &decision));
        let [remark] = &again.remarks[..] else {
            panic!("{:?}", again.remarks)
        };
        assert_eq!(
            remark.condition(),
            Some(("identity.copied", Severity::Warning))
        );
        assert!(remark.fix().is_some());
        let registration = Registration {
            cluster_id: "c-2".to_owned(),
            ..Registration::default()
        };
        let identity = decision.identity.registered(&registration).unwrap();
        let registered = Decision {
            identity,
            ..decision
        };
        assert!(decide(&next_start(&copied, &registered)).remarks.is_empty());
    }

    #[test]
    fn while_the_go_agent_runs_there_is_no_second_link() {
        for (installed, has_cluster, linking) in [
            (Installed::GoAgentRuns, true, Linking::Held),
            (Installed::GoAgentRuns, false, Linking::Held),
            (Installed::NotAsked, true, Linking::Free),
            (Installed::NotAsked, false, Linking::AfterCluster),
            (Installed::Nothing, false, Linking::Free),
            (Installed::NoCluster, false, Linking::Free),
            (state("a", "c"), false, Linking::Free),
        ] {
            let mut evidence = Evidence {
                installed,
                ..evidence()
            };
            if !has_cluster {
                (evidence.database, evidence.file) = (None, None);
            }
            let decision = decide(&evidence);
            assert_eq!(
                decision.linking, linking,
                "{:?} {has_cluster}",
                evidence.installed
            );
            let runs = evidence.installed == Installed::GoAgentRuns;
            assert_eq!(decision.remarks.contains(&IdentityEvent::GoAgentRuns), runs);
        }
    }

    #[test]
    fn a_registration_is_kept_once_and_an_empty_one_takes_nothing_away() {
        let registration = Registration {
            cluster_id: "c-2".to_owned(),
            cluster_uuid: Some("u-2".to_owned()),
            gateway_ws_url: None,
        };
        let registered = stored().registered(&registration).unwrap();
        assert_eq!(registered.generation, 6);
        assert_eq!(registered.cluster_id.as_deref(), Some("c-2"));
        assert_eq!(registered.gateway_ws_url, None);
        assert_eq!(registered.registered(&registration), None);
        let empty = stored().registered(&Registration::default()).unwrap();
        assert_eq!(empty.cluster_id.as_deref(), Some("c-1"));
    }

    #[test]
    fn a_part_that_one_side_does_not_know_contradicts_nothing() {
        for (one, other, contradicts) in [
            (machine("a", "b"), machine("a", "b"), false),
            (machine("a", ""), machine("a", "b"), false),
            (machine("", ""), machine("a", "b"), false),
            (machine("a", ""), machine("", "b"), false),
            (machine("a", "b"), machine("a", "c"), true),
            (machine("a", "b"), machine("c", "b"), true),
            (machine("a", ""), machine("c", "b"), true),
        ] {
            assert_eq!(one.contradicts(&other), contradicts, "{one:?} {other:?}");
            assert_eq!(other.contradicts(&one), contradicts, "{one:?} {other:?}");
        }
    }
}
