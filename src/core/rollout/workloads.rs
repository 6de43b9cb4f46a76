//! Controllers: what each kind must report before it is complete, and which Pods are of its newest
//! version.

use serde_json::Value;

use super::{
    Cause, Finding, Object, Observation, charts, custom,
    earlier::Earlier,
    evidence::{ContainerLines, trouble_suffix},
    messages::{self, refused},
    object::{is_custom, text},
    pods::{self, is_ready},
    state::{FailedPods, ObjectState, Readiness, has_failed, is_leaving, waits},
};

/// Label with the version of a Pod.
const REVISION_HASH: &str = "controller-revision-hash";
const STRATEGY: &str = "/spec/updateStrategy/type";
const PARTITION: &str = "/spec/updateStrategy/rollingUpdate/partition";

/// Pods of earlier versions of a StatefulSet that are deleted, so that it can go on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stuck {
    /// All that are not ready: no version of before worked.
    NotReady,
    /// Pods of a version that never ran whole, because it did not work, and Pods that fail.
    NotCurrent,
    /// Only those that fail: the others may be on their way.
    Failing,
}

/// Returns whether a kind has a state of its own to wait for.
pub fn is_watched(kind: &str) -> bool {
    matches!(
        kind,
        "Deployment" | "StatefulSet" | "DaemonSet" | "Job" | "HelmChart"
    ) || is_custom(kind)
}

/// Judges one object.
pub(super) fn state<'a>(
    target: &'a Object,
    generation: u64,
    seen: &'a Observation,
) -> ObjectState<'a> {
    match target.kind() {
        "Deployment" => deployment(target, generation, seen),
        "StatefulSet" => stateful_set(target, generation, seen),
        "DaemonSet" => daemon_set(target, generation, seen),
        "Job" => job(target, seen),
        "PersistentVolumeClaim" => claim(target, seen),
        "HelmChart" => {
            let of_job = seen.get(&charts::job_of(target));
            charts::state(target, of_job.map(|found| job(found, seen)))
        }
        kind if is_custom(kind) => custom::state(target, generation),
        _ => ObjectState::applied(),
    }
}

fn deployment<'a>(target: &'a Object, generation: u64, seen: &'a Observation) -> ObjectState<'a> {
    let wanted = target.number("/spec/replicas").unwrap_or(1);
    let updated = target.count("/status/updatedReplicas");
    let available = target.count("/status/availableReplicas");
    let total = target.count("/status/replicas");
    let is_seen = has_seen(target, generation);
    let newest = newest_replica_set(target, seen);
    let pods: Vec<_> = newest
        .map(|set| owned(set, seen).collect())
        .unwrap_or_default();
    let failure = newest.and_then(|set| failure_of(target, set, seen));
    // With the strategy Recreate there are none until all of before have ended.
    let sets = seen.of_kind("ReplicaSet");
    let mut sets = sets.filter(|set| updated == 0 && set.is_owned_by(target.uid()));
    let held = sets.find_map(|set| terminating(target, set, seen));
    let ready = newest.map_or(0, |set| set.count("/status/availableReplicas"));
    let missing = if !is_seen {
        waits(target)
    } else if updated < wanted {
        format!(
            "{} has made {updated} of {wanted} Pods of the new version",
            target.in_words()
        )
    } else if total > updated {
        format!(
            "{} still has {} Pods of the old version",
            target.in_words(),
            total - updated
        )
    } else {
        format!(
            "{} has {available} of {wanted} Pods available",
            target.in_words()
        )
    };
    ObjectState {
        is_complete: is_seen && updated >= wanted && total == updated && available >= wanted,
        is_seen,
        is_paused: target.is("/spec/paused") && updated < wanted,
        open_jobs: 0,
        readiness: Readiness::Reported,
        ready,
        wanted,
        missing,
        findings: failure.into_iter().chain(held).collect(),
        pods,
        failed: FailedPods::Tell,
    }
}

/// The set of the newest version: the one with the Deployment's own revision.
fn newest_replica_set<'a>(target: &Object, seen: &'a Observation) -> Option<&'a Object> {
    const REVISION: &str = "/metadata/annotations/deployment.kubernetes.io~1revision";
    let revision = target.text(REVISION);
    let mut sets = seen
        .of_kind("ReplicaSet")
        .filter(|set| set.is_owned_by(target.uid()));
    sets.find(|set| !revision.is_empty() && set.text(REVISION) == revision)
}

fn stateful_set<'a>(target: &'a Object, generation: u64, seen: &'a Observation) -> ObjectState<'a> {
    let wanted = target.number("/spec/replicas").unwrap_or(1);
    let partition = target.count(PARTITION);
    let is_seen = has_seen(target, generation);
    let newest = target.text("/status/updateRevision");
    let is_rolled = is_by_hand(target)
        || target.count("/status/updatedReplicas") >= wanted.saturating_sub(partition);
    let ready = target
        .count("/status/readyReplicas")
        .min(target.count("/status/replicas"));
    let pods: Vec<_> = owned(target, seen)
        .filter(|pod| !newest.is_empty() && pod.label(REVISION_HASH) == newest)
        .collect();
    let waits_for = is_ordered(target).then(|| first_not_ready(target, wanted, seen));
    let missing = if !is_seen {
        waits(target)
    } else if let Some(pod) = waits_for.flatten() {
        waits_for_pod(target, &pod, seen)
    } else {
        format!("{} has {ready} of {wanted} Pods ready", target.in_words())
    };
    ObjectState {
        is_complete: is_seen && is_rolled && ready >= wanted,
        is_seen,
        is_paused: false,
        open_jobs: 0,
        readiness: Readiness::Reported,
        ready: if is_by_hand(target) {
            ready
        } else {
            let new = pods.iter().filter(|pod| is_ready(pod));
            new.count().try_into().unwrap_or(u64::MAX)
        },
        wanted,
        missing,
        findings: refused_creation(target, seen)
            .filter(|_| target.count("/status/replicas") < wanted)
            .into_iter()
            .chain(on_lost_node(target, seen))
            .chain(terminating(target, target, seen))
            .collect(),
        pods,
        failed: FailedPods::Tell,
    }
}

fn first_not_ready(target: &Object, wanted: u64, seen: &Observation) -> Option<String> {
    let first = target.count("/spec/ordinals/start");
    let numbers = (0..wanted.min(1000)).map(|number| first.saturating_add(number));
    let mut names = numbers.map(|number| format!("{}-{number}", target.name()));
    names.find(|name| {
        let found = owned(target, seen).find(|pod| pod.name() == name);
        !found.is_some_and(is_ready)
    })
}

/// Sentence on a StatefulSet that waits for this Pod.
fn waits_for_pod(target: &Object, name: &str, seen: &Observation) -> String {
    let object = target.in_words();
    let is_it = |pod: &Object| pod.name() == name && is_behind(target, pod);
    if owned(target, seen).any(is_it) {
        let namespace = target.text("/metadata/namespace");
        return format!(
            "{object} waits for Pod {name}, which runs an earlier version and is not ready; if it stays so: kubectl -n {namespace} delete pod {name}"
        );
    }
    format!("{object} waits for Pod {name}; its Pods start one after the other")
}

fn daemon_set<'a>(target: &'a Object, generation: u64, seen: &'a Observation) -> ObjectState<'a> {
    let wanted = target.count("/status/desiredNumberScheduled");
    let updated = target.count("/status/updatedNumberScheduled");
    let available = target.count("/status/numberAvailable");
    let is_seen = has_seen(target, generation);
    let is_rolled = is_by_hand(target) || updated >= wanted;
    let newest = owned(target, seen)
        .max_by_key(|pod| pod.text("/metadata/creationTimestamp").to_owned())
        // Those of before are replaced first, one after the other.
        .filter(|_| updated > 0)
        .map(|pod| pod.label(REVISION_HASH));
    let pods: Vec<_> = owned(target, seen)
        .filter(|pod| Some(pod.label(REVISION_HASH)) == newest)
        .collect();
    let missing = if is_seen {
        format!(
            "{} has {available} of {wanted} Pods available, {updated} of the new version",
            target.in_words()
        )
    } else {
        waits(target)
    };
    ObjectState {
        is_complete: is_seen && is_rolled && available >= wanted,
        is_seen,
        is_paused: false,
        open_jobs: 0,
        readiness: Readiness::Reported,
        ready: if is_by_hand(target) {
            available
        } else {
            updated.min(available)
        },
        wanted,
        missing,
        findings: refused_creation(target, seen)
            .filter(|_| !is_rolled)
            .into_iter()
            .chain(on_lost_node(target, seen))
            .chain(terminating(target, target, seen))
            .collect(),
        pods,
        failed: FailedPods::Tell,
    }
}

/// Returns whether a person deletes the Pods of before.
fn is_by_hand(target: &Object) -> bool {
    target.text(STRATEGY) == "OnDelete"
}

/// Doubt about a controller whose Pods of before nobody has deleted yet: nothing shows whether the
/// new version works.
pub(super) fn on_delete(target: &Object) -> Option<Finding> {
    let (wanted, updated) = if target.kind() == "DaemonSet" {
        (
            target.count("/status/desiredNumberScheduled"),
            target.count("/status/updatedNumberScheduled"),
        )
    } else {
        (
            target.number("/spec/replicas").unwrap_or(1),
            target.count("/status/updatedReplicas"),
        )
    };
    let object = target.in_words();
    (is_by_hand(target) && updated < wanted).then(|| Finding {
        cause: Cause::OnDelete,
        sentence: format!(
            "{updated} of {wanted} Pods of {object} run the new version: a person has to delete the others"
        ),
        object,
        evidence: messages::evidence("updateStrategy", "OnDelete"),
        fix: format!(
            "kubectl -n {} delete pod NAME, one after the other; or set updateStrategy.type: RollingUpdate",
            target.text("/metadata/namespace")
        ),
        is_definite: false,
    })
}

/// Doubt about a DaemonSet that no node has to run: its nodeSelector may be meant for another
/// cluster, or be wrong.
pub(super) fn nowhere(target: &Object) -> Option<Finding> {
    if target.number("/status/desiredNumberScheduled") != Some(0) {
        return None;
    }
    let selector = target.value().pointer("/spec/template/spec/nodeSelector");
    let labels = selector.and_then(Value::as_object);
    let labels: Vec<_> = labels
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    let object = target.in_words();
    Some(Finding {
        cause: Cause::ScheduleAffinity,
        sentence: format!("{object} runs nowhere: no node fits its nodeSelector, affinity or tolerations"),
        object,
        evidence: match labels.as_slice() {
            [] => String::new(),
            labels => messages::evidence("nodeSelector", &labels.join(",")),
        },
        fix: "if it should run, correct nodeSelector, or label the node: kubectl label node NODE KEY=VALUE".to_owned(),
        is_definite: false,
    })
}

/// End of a Job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum JobEnd {
    /// It still runs.
    Open,
    /// It succeeded.
    Done,
    Failed,
}

/// End of a Job by its conditions.
pub fn job_end(job: &Object) -> JobEnd {
    let is_true = |kind: &&str| {
        let condition = job.condition(kind);
        condition.is_some_and(|condition| text(condition, "/status") == "True")
    };
    if ["Complete", "SuccessCriteriaMet"].iter().any(&is_true) {
        JobEnd::Done
    } else if ["Failed", "FailureTarget"].iter().any(is_true) {
        JobEnd::Failed
    } else {
        JobEnd::Open
    }
}

fn job<'a>(target: &'a Object, seen: &'a Observation) -> ObjectState<'a> {
    let is_true = |kind: &str| {
        target
            .condition(kind)
            .filter(|condition| text(condition, "/status") == "True")
    };
    let is_done = job_end(target) == JobEnd::Done;
    let is_suspended = target.is("/spec/suspend");
    // The first sign comes before its Pods have ended.
    let failed = is_true("Failed").or_else(|| is_true("FailureTarget"));
    let lacks_pods = !is_done && !is_suspended && target.count("/status/active") == 0;
    let finding = match failed {
        Some(failed) => Some(job_failed(target, failed, seen)),
        None => refused_creation(target, seen).filter(|_| lacks_pods),
    };
    // Its controller deletes one that it restarts no more.
    let pods: Vec<_> = if is_done {
        Vec::new()
    } else {
        every(target, seen).collect()
    };
    let stay = || pods.iter().filter(|pod| !is_leaving(pod));
    let is_open = job_end(target) == JobEnd::Open;
    // Kubernetes ends one with a deadline of its own.
    let has_time = target.number("/spec/activeDeadlineSeconds").is_some()
        || stay().any(|pod| pod.text("/status/phase") == "Running");
    ObjectState {
        is_complete: is_done || is_suspended,
        is_seen: true,
        is_paused: false,
        open_jobs: u64::from(is_open && !is_suspended && has_time),
        readiness: Readiness::Reported,
        ready: u64::from(is_done),
        wanted: 1,
        missing: if failed.is_some() {
            format!("{} has failed", target.in_words())
        } else {
            format!("{} has not finished", target.in_words())
        },
        findings: finding.into_iter().collect(),
        failed: if is_open && stay().any(|pod| !has_failed(pod)) {
            FailedPods::Replaced
        } else {
            FailedPods::Tell
        },
        pods,
    }
}

fn job_failed(target: &Object, condition: &Value, seen: &Observation) -> Finding {
    let is_late = text(condition, "/reason") == "DeadlineExceeded";
    let evidence = messages::evidence(text(condition, "/reason"), text(condition, "/message"));
    let object = target.in_words();
    let finding = |cause, (sentence, evidence, fix)| Finding {
        cause,
        object: target.in_words(),
        sentence,
        evidence,
        fix,
        is_definite: true,
    };
    let fix = format!(
        "kubectl -n {} logs job/{}",
        target.text("/metadata/namespace"),
        target.name()
    );
    if is_late {
        let limit = target.count("/spec/activeDeadlineSeconds");
        let sentence = format!("{object} ran longer than its activeDeadlineSeconds of {limit} s");
        return finding(Cause::JobDeadline, (sentence, evidence, fix));
    }
    // With restartPolicy: OnFailure its controller deletes the Pod, and the log with it.
    let fix = match owned(target, seen).next() {
        Some(_) => fix,
        None => {
            "run it again with restartPolicy: Never and without ttlSecondsAfterFinished: then its Pods and their logs stay".to_owned()
        }
    };
    let told =
        every(target, seen).filter_map(|pod| Some((pods::last_end(pod), pod_failed(pod, seen)?)));
    let Some((_, found)) = told.max_by_key(|(ended, _)| *ended) else {
        let failed = target.count("/status/failed");
        let sentence = format!("{object} failed: {failed} Pods ended with an error");
        return finding(Cause::JobFailed, (sentence, evidence, fix));
    };
    let cause = if matches!(found.cause, Cause::Oom | Cause::ContainerStart) {
        found.cause
    } else {
        Cause::JobFailed
    };
    let sentence = format!("{object} failed: {}", found.sentence);
    let evidence = format!("{evidence}\n{}", found.evidence);
    let fix = if found.fix.is_empty() { fix } else { found.fix };
    finding(cause, (sentence, evidence.trim_end().to_owned(), fix))
}

/// Reason why a Pod of a Job has failed; an empty fix where only its log says more.
fn pod_failed(pod: &Object, seen: &Observation) -> Option<Finding> {
    let ends = pods::ends(pod, seen).into_iter();
    let last = ends.max_by_key(|(_, end)| text(end.terminated, "/finishedAt"));
    let last = last.filter(|_| pod.text("/status/reason") != "Evicted");
    let Some((status, end)) = last else {
        let mut found = pods::findings(pod, seen, &Earlier::default()).into_iter();
        return found.next().or_else(|| pods::rejected(pod, seen));
    };
    let (name, code) = (text(status, "/name"), pods::code_of(end.terminated));
    let last_lines = ContainerLines::of(pod, name, end.terminated, seen);
    let trouble = last_lines.trouble();
    let exit_code = messages::exit_code(code);
    let suffix = trouble_suffix(trouble);
    Some(Finding {
        cause: Cause::JobFailed,
        object: String::new(),
        sentence: format!("its container {name} ended with exit code {code} ({exit_code}){suffix}"),
        evidence: last_lines
            .below(String::new())
            .trim_start_matches('\n')
            .to_owned(),
        fix: trouble.map_or_else(String::new, |trouble| trouble.fix.to_owned()),
        is_definite: true,
    })
}

fn claim<'a>(target: &'a Object, seen: &'a Observation) -> ObjectState<'a> {
    ObjectState {
        findings: pods::claim_findings(target, seen),
        ..ObjectState::applied()
    }
}

/// A set that cannot make its Pods says so in a condition.
fn failure_of(target: &Object, set: &Object, seen: &Observation) -> Option<Finding> {
    let condition = set
        .condition("ReplicaFailure")
        .filter(|condition| text(condition, "/status") == "True");
    match condition {
        Some(condition) => Some(refused_now(target, text(condition, "/message"), seen)),
        None if set.count("/status/replicas") < set.count("/spec/replicas") => {
            refused_creation(set, seen).map(|found| Finding {
                object: target.in_words(),
                ..found
            })
        }
        None => None,
    }
}

/// Other controllers say so in events only; one that is followed by a success says nothing any
/// more. Nor does one of a controller that needs no more Pods: the events of an hour are kept, and
/// scaling down makes none that would follow.
fn refused_creation(target: &Object, seen: &Observation) -> Option<Finding> {
    let about = messages::events_about(target, seen);
    let last = about
        .filter(|event| matches!(event.text("/reason"), "FailedCreate" | "SuccessfulCreate"))
        .max_by_key(|event| (event.moment(), event.text("/reason") == "FailedCreate"))?;
    (last.text("/reason") == "FailedCreate")
        .then(|| refused_now(target, last.text("/message"), seen))
}

/// The refusal of a Pod. A Pod that ends still counts towards the quota of its namespace.
fn refused_now(target: &Object, message: &str, seen: &Observation) -> Finding {
    let found = refused(target, message);
    let ends = || pods::leaving(target, seen).next().is_some();
    Finding {
        is_definite: found.is_definite && !(found.cause == Cause::Quota && ends()),
        ..found
    }
}

/// Trouble of the node of a Pod of any version. A controller whose Pods are bound to their names or
/// nodes replaces one on a lost node only once that node is back, and until then the Pod is being
/// deleted.
fn on_lost_node(target: &Object, seen: &Observation) -> Option<Finding> {
    let pods = seen.of_kind("Pod");
    pods.filter(|pod| pod.is_owned_by(target.uid()) && !is_ready(pod))
        .find_map(|pod| pods::on_lost_node(pod, seen))
}

/// A Pod of `owner` that is still terminating, for which `target` may have to wait: its grace
/// period is its own affair, and after that its node is in trouble.
fn terminating(target: &Object, owner: &Object, seen: &Observation) -> Option<Finding> {
    let mut pods = pods::leaving(target, seen);
    let pod = pods.find(|pod| pod.is_owned_by(owner.uid()) && !has_failed(pod))?;
    pods::on_lost_node(pod, seen).or_else(|| {
        let object = pod.in_words();
        let until = pod.text("/metadata/deletionTimestamp");
        Some(Finding {
            cause: Cause::PodTerminating,
            sentence: format!("{} waits for {object}, which is still terminating", target.in_words()),
            object,
            evidence: messages::evidence("deletionTimestamp", until),
            fix: "wait for the end of its grace period; after that: kubectl describe the Pod, and pipeops-agent doctor on its node".to_owned(),
            is_definite: false,
        })
    })
}

fn has_seen(target: &Object, generation: u64) -> bool {
    let wanted = generation.max(target.count("/metadata/generation"));
    target.number("/status/observedGeneration").unwrap_or(0) >= wanted
}

/// Pods of a controller that are not being deleted.
fn owned<'a>(owner: &'a Object, seen: &'a Observation) -> impl Iterator<Item = &'a Object> {
    every(owner, seen).filter(|pod| !is_leaving(pod))
}

/// Pods of a controller.
fn every<'a>(owner: &'a Object, seen: &'a Observation) -> impl Iterator<Item = &'a Object> {
    let pods = seen.of_kind("Pod");
    pods.filter(move |pod| pod.is_owned_by(owner.uid()))
}

/// Returns whether a Pod is being deleted.
pub(super) fn has_leaving(seen: &Observation) -> bool {
    seen.of_kind("Pod").any(is_leaving)
}

/// Pods of earlier versions that keep a StatefulSet from its newest one: namespace, name and UID.
/// Its controller waits for them for ever, unless it takes all at once.
pub(super) fn stuck(
    target: &Object,
    which: Stuck,
    seen: &Observation,
) -> Vec<(String, String, String)> {
    if target.kind() != "StatefulSet" || !has_seen(target, 0) || !is_ordered(target) {
        return Vec::new();
    }
    let fails = |pod: &Object| {
        let found = pods::findings(pod, seen, &Earlier::replaced(seen));
        !is_by_hand(target) && found.iter().any(|found| found.is_definite)
    };
    let current = target.text("/status/currentRevision");
    let is_meant = |pod: &&Object| match which {
        Stuck::NotReady => true,
        Stuck::NotCurrent => pod.label(REVISION_HASH) != current || fails(pod),
        Stuck::Failing => fails(pod),
    };
    owned(target, seen)
        .filter(|pod| is_behind(target, pod))
        .filter(is_meant)
        .map(|pod| {
            let text = |pointer| pod.text(pointer).to_owned();
            (
                text("/metadata/namespace"),
                text("/metadata/name"),
                text("/metadata/uid"),
            )
        })
        .collect()
}

/// Returns whether the Pods of a StatefulSet start one after the other.
fn is_ordered(target: &Object) -> bool {
    target.text("/spec/podManagementPolicy") != "Parallel"
}

/// Returns whether a Pod of a StatefulSet is not ready and of an earlier version, though it is to
/// be of the newest one. A new one in the place of a Pod below the partition would be of the
/// earlier version again.
fn is_behind(target: &Object, pod: &Object) -> bool {
    let newest = target.text("/status/updateRevision");
    let number = pod.name().rsplit('-').next();
    let number = number.and_then(|number| number.parse::<u64>().ok());
    let first = target
        .count("/spec/ordinals/start")
        .saturating_add(target.count(PARTITION));
    !newest.is_empty()
        && !is_ready(pod)
        && pod.label(REVISION_HASH) != newest
        && number.is_some_and(|number| number >= first)
}
