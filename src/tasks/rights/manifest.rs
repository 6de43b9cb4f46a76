//! Compares the cluster with the agent's manifest periodically, and removes bindings that are no
//! longer needed.
//!
//! It changes nothing but our own bindings: differences are reported with their fix.

use std::{cell::Cell, fmt, rc::Rc, time::Duration};

use smol::{Timer, future::FutureExt as _, lock::Mutex};

use super::delegate::Delegate;
use crate::{
    core::{
        health::{Condition, Severity},
        policy::{Level, Rules},
        time::Mono,
        verdict::sentences,
    },
    kube::rbac::check::{Deviation, DeviationKind, ObjectPurpose},
    tasks::state::SharedState,
};

/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_secs(600);
/// The same while the cluster does not answer, or something is wrong that a person may be mending.
const POLL_INTERVAL_WRONG: Duration = Duration::from_secs(60);
/// A refused token is a reason to look at once, but not all the time.
const COMPARE_INTERVAL_MIN: Duration = Duration::from_secs(20);
/// The same while something is wrong and a person wants to know, or a call proves the contrary.
const PROMPT_INTERVAL_MIN: Duration = Duration::from_secs(2);
/// Proofs in a row that are looked at so soon.
const PROOFS_MAX: u32 = 3;
/// Between two looks after a person was offered a fix, and how long it is expected to be applied.
const POLL_INTERVAL_EXPECTED: Duration = Duration::from_secs(10);
const EXPECTED_FOR: Duration = Duration::from_secs(600);
/// Time that a person waits for a look.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Objects that are named in one sentence at most.
const NAMED_MAX: usize = 4;
/// The first Kubernetes in which ValidatingAdmissionPolicies are to be had without being asked for:
/// 1.30.
const POLICIES_SINCE: u32 = 30;

const MISSING: &str = "access.rbac";
const DIFFERS: &str = "access.rbac-differs";
const OPEN: &str = "access.second-lock";
/// Conditions of others that end with rights too.
const LOGS: &str = "cluster.logs-hidden";
const STATS: &str = "cluster.stats-unread";
const CONDITIONS: [&str; 3] = [MISSING, DIFFERS, OPEN];

/// The look at the rights, for as long as the agent runs.
pub struct Rights {
    delegate: Rc<Delegate>,
    shared_state: Rc<SharedState>,
    /// The rules that hold at the moment.
    rules: Box<dyn Fn() -> Rules>,
    /// One look at a time, and when the last one ended.
    looking: Mutex<Option<Mono>>,
    /// Time when a person asked for the last time.
    asked: Cell<Option<Mono>>,
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rights")
    }
}

impl Rights {
    /// Looks at nothing yet.
    pub fn new(
        delegate: Rc<Delegate>,
        shared_state: Rc<SharedState>,
        rules: Box<dyn Fn() -> Rules>,
    ) -> Self {
        Self {
            delegate,
            shared_state,
            rules,
            looking: Mutex::new(None),
            asked: Cell::new(None),
        }
    }

    /// Looks now and then.
    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    pub async fn run(&self) {
        let mut proofs = 0_u32;
        loop {
            self.compare().await;
            // A call that works although rights seem to be missing proves that they are there, or
            // that others are missing.
            let is_prompt = self.is_wrong() && proofs < PROOFS_MAX;
            let pause = if is_prompt {
                PROMPT_INTERVAL_MIN
            } else {
                COMPARE_INTERVAL_MIN
            };
            Timer::after(pause).await;
            let wait = self.wait();
            let time = async {
                Timer::after(wait.saturating_sub(pause)).await;
                false
            };
            let proof = async {
                self.delegate.changed().await;
                true
            };
            let is_proof = time.or(proof).await;
            proofs = if is_proof { proofs + 1 } else { 0 };
        }
    }

    /// Looks again where something is wrong, because a person wants to know, and soon again after
    /// that: the fix was offered.
    pub async fn refresh(&self) {
        if !self.is_wrong() && !self.holds(STATS) {
            return;
        }
        self.asked.set(Some(self.shared_state.now().mono));
        let late = async {
            Timer::after(TIMEOUT).await;
        };
        self.compare().or(late).await;
        if self.holds(STATS) {
            self.delegate.rights_changed();
        }
    }

    fn holds(&self, id: &str) -> bool {
        self.shared_state
            .with_conditions(|list| list.get(id).is_some())
    }

    fn is_wrong(&self) -> bool {
        CONDITIONS.iter().any(|id| self.holds(id))
    }

    /// Time until the next look.
    fn wait(&self) -> Duration {
        let now = self.shared_state.now().mono;
        let is_expected = self
            .asked
            .get()
            .is_some_and(|asked| now.since(asked) < EXPECTED_FOR);
        match self.is_wrong() {
            true if is_expected => POLL_INTERVAL_EXPECTED,
            true => POLL_INTERVAL_WRONG,
            false => POLL_INTERVAL,
        }
    }

    /// Compares, unless that was just done.
    async fn compare(&self) {
        let mut looked = self.looking.lock().await;
        if looked
            .is_some_and(|looked| self.shared_state.now().mono.since(looked) < PROMPT_INTERVAL_MIN)
        {
            return;
        }
        let was_missing = self.holds(MISSING);
        compare(&self.delegate, &self.shared_state, &self.rules).await;
        self.delegate.set_doubted(self.holds(MISSING));
        if was_missing && !self.holds(MISSING) {
            // One cause, and all that followed from it: whoever was refused tries again now.
            self.delegate.rights_changed();
            self.shared_state.clear(LOGS);
        }
        *looked = Some(self.shared_state.now().mono);
    }
}

/// Compares once.
async fn compare(delegate: &Delegate, shared_state: &SharedState, rules: &dyn Fn() -> Rules) {
    let level = rules().level;
    if let Err(error) = delegate.sweep().await {
        log::debug!("rights: {error}");
    }
    if level == Level::Off {
        // No call runs, so nothing is needed for it.
        return shared_state.show_all(&CONDITIONS, Vec::new());
    }
    let findings = match delegate.compare().await {
        Ok(findings) => findings,
        Err(error) => {
            log::debug!("rights: cannot compare the cluster with the manifest: {error}");
            return;
        }
    };
    let is_full = delegate.manifest().is_full();
    let lacks_account = findings
        .iter()
        .any(|found| found.part == ObjectPurpose::Rights && found.state == DeviationKind::Missing);
    let reaches = if is_full || lacks_account {
        None
    } else {
        reaches_secrets(delegate).await
    };
    if rules().level != level {
        // The change of the level is the reason for another look.
        return;
    }
    let rights = GrantedRights {
        findings,
        reaches_secrets: reaches.unwrap_or(false),
        is_full,
        version: shared_state.cluster.borrow().version.clone(),
        level,
        command: delegate.manifest().command(),
        full_binding: delegate.manifest().wide("pipeops-full"),
        account: delegate.account(),
    };
    let conditions = rights.conditions(shared_state);
    shared_state.show_all(&CONDITIONS, conditions);
}

/// Asks whether the account reaches Secrets; the API server learns of a binding that was just
/// removed within a second or so.
async fn reaches_secrets(delegate: &Delegate) -> Option<bool> {
    let reaches = delegate.reaches_secrets().await?;
    if !reaches {
        return Some(false);
    }
    Timer::after(PROMPT_INTERVAL_MIN).await;
    delegate.reaches_secrets().await
}

/// Rights that the cluster grants, compared with the manifest.
struct GrantedRights {
    findings: Vec<Deviation>,
    /// True if the account reaches what no rule of ours gives it.
    reaches_secrets: bool,
    is_full: bool,
    version: Option<String>,
    level: Level,
    command: String,
    full_binding: String,
    account: String,
}

impl GrantedRights {
    fn conditions(&self, shared_state: &SharedState) -> Vec<Condition> {
        let since = shared_state.now().wall;
        let found = [
            (MISSING, self.missing()),
            (DIFFERS, self.differs()),
            (OPEN, self.open()),
        ];
        let holding = found.into_iter().filter_map(|(id, report)| {
            let (sentence, fix) = report?;
            Some(Condition {
                id,
                severity: Severity::Warning,
                since,
                sentence,
                fix: Some(fix),
            })
        });
        holding.collect()
    }

    fn of(&self, part: ObjectPurpose, states: &[DeviationKind]) -> Vec<&Deviation> {
        let all = self.findings.iter();
        all.filter(|found| found.part == part && states.contains(&found.state))
            .collect()
    }

    fn lacks_account(&self) -> bool {
        let missing = self.of(ObjectPurpose::Rights, &[DeviationKind::Missing]);
        let mut objects = missing.iter().map(|found| found.object.as_str());
        objects.any(|object| object.starts_with("ServiceAccount "))
    }

    fn missing(&self) -> Option<(String, String)> {
        let missing = self.of(ObjectPurpose::Rights, &[DeviationKind::Missing]);
        if !missing.is_empty() {
            let sentence = sentences::rights_missing(&named(&missing));
            return Some((sentence, self.command.clone()));
        }
        let hidden: Vec<_> = self
            .findings
            .iter()
            .filter(|found| found.state == DeviationKind::Hidden)
            .collect();
        if hidden.is_empty() {
            return None;
        }
        let sentence = format!(
            "the agent may not read what it needs in the cluster: {}",
            named(&hidden)
        );
        Some((sentence, self.command.clone()))
    }

    fn differs(&self) -> Option<(String, String)> {
        let more = self.of(ObjectPurpose::Rights, &[DeviationKind::More]);
        let less = self.of(ObjectPurpose::Rights, &[DeviationKind::Less]);
        let mut other = self.of(ObjectPurpose::Rights, &[DeviationKind::Other]);
        if self.is_full {
            // Where everything is allowed a lock of another kind is no danger, only not what was
            // applied.
            other.extend(self.of(
                ObjectPurpose::Lock,
                &[DeviationKind::Missing, DeviationKind::Other],
            ));
        }
        let parts: Vec<String> = [
            ("grants more", more),
            ("grants less", less),
            ("differs", other),
        ]
        .into_iter()
        .filter(|(_, found)| !found.is_empty())
        .map(|(what, found)| format!("{what}: {}", named(&found)))
        .collect();
        (!parts.is_empty()).then(|| {
            let sentence = format!(
                "the cluster differs from this agent's manifest; {}",
                parts.join("; ")
            );
            (sentence, self.command.clone())
        })
    }

    /// Returns why the API server does not hold the account as it should.
    fn open(&self) -> Option<(String, String)> {
        if self.is_full {
            return None;
        }
        let level = self.level.as_str();
        if !self
            .of(ObjectPurpose::Lock, &[DeviationKind::Unwanted])
            .is_empty()
        {
            let sentence = format!(
                "admission policies are not enforced: {} is cluster-admin although access.level is \"{level}\"",
                self.account
            );
            return Some((
                sentence,
                format!("kubectl delete clusterrolebinding {}", self.full_binding),
            ));
        }
        if self.reaches_secrets {
            let sentence = format!(
                "admission policies are not enforced: {} has more rights than this agent's manifest grants, although access.level is \"{level}\"",
                self.account
            );
            let fix = "kubectl get clusterrolebindings,rolebindings --all-namespaces -o wide | grep pipeops-cp";
            return Some((sentence, fix.to_owned()));
        }
        let wrong = self.of(
            ObjectPurpose::Lock,
            &[DeviationKind::Missing, DeviationKind::Other],
        );
        // Without the account nobody is to be held, and the whole manifest is missing: one cause is
        // one warning.
        if wrong.is_empty() || self.lacks_account() {
            return None;
        }
        if let Some(version) = self
            .version
            .as_deref()
            .filter(|version| lacks_policies(version))
        {
            let sentence = format!(
                "no admission policies: Kubernetes {version} does not support ValidatingAdmissionPolicy, so only roles and Pod Security restrict {}",
                self.account
            );
            return Some((sentence, "upgrade Kubernetes to 1.30 or later".to_owned()));
        }
        let sentence = format!(
            "admission policies are missing or changed: {}",
            named(&wrong)
        );
        Some((sentence, self.command.clone()))
    }
}

fn named(found: &[&Deviation]) -> String {
    let names: Vec<&str> = found.iter().map(|found| found.object.as_str()).collect();
    match names.get(..NAMED_MAX) {
        Some(some) if names.len() > NAMED_MAX => {
            format!("{} and {} more", some.join(", "), names.len() - NAMED_MAX)
        }
        Some(_) | None => names.join(", "),
    }
}

/// Returns whether a version is from before the policies: `v1.29.4+k3s1`.
fn lacks_policies(version: &str) -> bool {
    let minor = version.strip_prefix("v1.").and_then(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    });
    minor.is_some_and(|minor| minor < POLICIES_SINCE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::Now;

    fn rights(findings: &[(&str, ObjectPurpose, DeviationKind)]) -> GrantedRights {
        let findings = findings.iter().map(|(object, part, state)| Deviation {
            object: (*object).to_owned(),
            part: *part,
            state: *state,
        });
        GrantedRights {
            findings: findings.collect(),
            reaches_secrets: false,
            is_full: false,
            version: Some("v1.34.4".to_owned()),
            level: Level::Managed,
            command: "apply".to_owned(),
            full_binding: "pipeops-full".to_owned(),
            account: "cp".to_owned(),
        }
    }

    fn reported(rights: &GrantedRights) -> Vec<(&'static str, String, String)> {
        let shared_state = SharedState::new(Now::default);
        let conditions = rights.conditions(&shared_state).into_iter();
        conditions
            .map(|condition| (condition.id, condition.sentence, condition.fix.unwrap()))
            .collect()
    }

    #[test]
    fn a_cluster_as_the_manifest_has_it_is_no_condition() {
        assert!(reported(&rights(&[])).is_empty());
    }

    #[test]
    fn what_is_missing_is_named_with_the_line_that_mends_it() {
        let names = ["a", "b", "c", "d", "e", "f"]
            .map(|name| (name, ObjectPurpose::Rights, DeviationKind::Missing));
        let reports = reported(&rights(&names));
        assert_eq!(reports.len(), 1);
        let (id, sentence, fix) = &reports[0];
        assert_eq!((*id, fix.as_str()), (MISSING, "apply"));
        assert!(
            sentence.ends_with("lacks a, b, c, d and 2 more"),
            "{sentence}"
        );
    }

    #[test]
    fn a_manifest_that_is_not_there_is_one_warning() {
        let reports = reported(&rights(&[
            (
                "ServiceAccount pipeops-cp",
                ObjectPurpose::Rights,
                DeviationKind::Missing,
            ),
            (
                "ValidatingAdmissionPolicy x",
                ObjectPurpose::Lock,
                DeviationKind::Missing,
            ),
        ]));
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0].0, MISSING);
    }

    #[test]
    fn wider_and_narrower_are_told_apart() {
        let reports = reported(&rights(&[
            (
                "ClusterRole wide",
                ObjectPurpose::Rights,
                DeviationKind::More,
            ),
            (
                "ClusterRole narrow",
                ObjectPurpose::Rights,
                DeviationKind::Less,
            ),
        ]));
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0].0, DIFFERS);
        assert!(
            reports[0]
                .1
                .contains("grants more: ClusterRole wide; grants less: ClusterRole narrow")
        );
    }

    #[test]
    fn an_open_second_lock_is_told_whoever_opened_it() {
        let unwanted = rights(&[("x", ObjectPurpose::Lock, DeviationKind::Unwanted)]);
        assert_eq!(
            reported(&unwanted)[0].2,
            "kubectl delete clusterrolebinding pipeops-full"
        );
        let mut reaches = rights(&[]);
        reaches.reaches_secrets = true;
        assert_eq!(reported(&reaches)[0].0, OPEN);
        let gone = [(
            "ValidatingAdmissionPolicy x",
            ObjectPurpose::Lock,
            DeviationKind::Missing,
        )];
        assert_eq!(reported(&rights(&gone))[0].2, "apply");
        let mut old = rights(&gone);
        old.version = Some("v1.29.4+k3s1".to_owned());
        assert!(reported(&old)[0].1.contains("v1.29.4"));
        let mut full = rights(&gone);
        full.is_full = true;
        assert_eq!(reported(&full)[0].0, DIFFERS);
    }

    #[test]
    fn policies_are_in_kubernetes_since_1_30() {
        for (version, wanted) in [
            ("v1.29.0", true),
            ("v1.30.0-rc.1", false),
            ("v1.34.4+k3s1", false),
            ("v2.0.0", false),
            ("", false),
        ] {
            assert_eq!(lacks_policies(version), wanted, "{version}");
        }
    }
}
