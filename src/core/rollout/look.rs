//! One observation, judged by itself: what is ready, what is missing, what keeps it from being so.

use std::mem;

use super::{
    Blame, Cause, Finding, Key, Object, Observation, Scope,
    earlier::Earlier,
    object::may_make,
    pods, routes,
    state::{ObjectState, Readiness},
    workloads,
};

/// Result of looking at one observation.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RolloutProgress {
    /// True if everything is as it was meant to be.
    pub is_complete: bool,
    /// True if every controller has seen the version.
    pub is_seen: bool,
    /// True if a person has paused the rollout.
    pub is_paused: bool,
    /// Number of Jobs of the version that run, whose time only they know.
    pub open_jobs: u64,
    /// Number of Pods and Jobs of the version that are ready or done.
    pub ready: u64,
    /// Number of Pods that the manifests, or autoscalers, want.
    pub replicas: u64,
    /// Finding about a program that may still need another one of the app, which is on its way: it
    /// is not held against it.
    pub excused: Option<Finding>,
    /// Restarts of the version's containers.
    pub restarts: u64,
    /// One sentence on what is missing, or that nothing is.
    pub missing: String,
    /// Object that is behind; empty where none is.
    pub behind: String,
    /// Reasons.
    pub findings: Vec<Finding>,
    /// Doubt about a version that is complete.
    pub doubt: Option<Finding>,
}

impl RolloutProgress {
    /// The most telling finding.
    pub fn worst(&self) -> Option<Finding> {
        let order = |found: &&Finding| (!found.is_definite, found.cause);
        self.findings.iter().min_by_key(order).cloned()
    }

    /// Notes that an object is not there.
    fn lacks(&mut self, key: &Key) {
        (self.is_complete, self.is_seen) = (false, false);
        self.missing = format!("{} is not there yet", key.in_words());
        self.behind = key.in_words();
    }

    /// Takes what the Pods of the version say.
    fn hear(&mut self, state: &ObjectState<'_>, (seen, earlier): (&Observation, &Earlier)) {
        for pod in state.heard() {
            self.restarts = self.restarts.saturating_add(pods::restarts(pod));
            self.findings.extend(pods::findings(pod, seen, earlier));
            // One of before stays where others work in its place.
            if !state.is_complete {
                self.findings.extend(pods::rejected(pod, seen));
            }
        }
    }

    /// Takes the findings of all targets. A program may need another one of its app, such as a
    /// database: what it does before that one has come is not held against it. A pull stops
    /// deadlines; a start does not.
    fn gather(&mut self, mut parts: Vec<Part>) {
        let waiting = parts.iter().filter(|part| part.pulls()).count();
        let coming = parts.iter().filter(|part| part.is_coming).count();
        let mut excused = Vec::new();
        for part in &mut parts {
            if waiting > usize::from(part.pulls()) {
                excused.extend(
                    part.findings
                        .extract_if(.., |found| may_depend_on_another(found)),
                );
            } else if coming > usize::from(part.is_coming) {
                let held = part.findings.iter_mut();
                for found in held.filter(|found| may_depend_on_another(found)) {
                    excused.push(found.clone());
                    found.is_definite = false;
                }
            }
        }
        self.excused = excused.into_iter().min_by_key(|found| !found.is_definite);
        self.findings = parts.into_iter().flat_map(|part| part.findings).collect();
        if let Some(excused) = &self.excused {
            for found in self.findings.iter_mut().filter(|found| is_pull(found)) {
                found.sentence = format!("{}; meanwhile {}", found.sentence, excused.sentence);
            }
        }
    }
}

/// Findings of one target.
struct Part {
    findings: Vec<Finding>,
    /// True if nothing of it is ready yet, nothing of it has failed, and nothing keeps it.
    is_coming: bool,
    is_job: bool,
}

impl Part {
    fn of(
        target: &Object,
        (state, findings): (&ObjectState<'_>, Vec<Finding>),
        earlier: &Earlier,
    ) -> Self {
        let is_kept = |found: &Finding| found.is_definite || found.cause.blame() == Blame::Outside;
        let is_job = target.kind() == "Job";
        let is_ready = ["/status/readyReplicas", "/status/numberReady"]
            .iter()
            .any(|field| target.count(field) > 0);
        // A Job is never ready, and may itself wait for the others.
        let is_coming = !state.is_complete
            && !is_ready
            && !is_job
            && !findings.iter().any(is_kept)
            && !state.heard().any(|pod| pods::has_ended(pod, earlier));
        Self {
            findings,
            is_coming,
            is_job,
        }
    }

    fn pulls(&self) -> bool {
        self.findings.iter().any(is_pull)
    }
}

fn is_pull(found: &Finding) -> bool {
    found.cause == Cause::ImagePulling
}

/// Judges an observation. When a container that runs was restarted, nobody knows: it may have been
/// a year ago.
pub fn look(scope: &Scope, seen: &Observation) -> RolloutProgress {
    look_since(scope, seen, &Earlier::replaced(seen))
}

/// Judges an observation by what has ended since a change was first seen.
pub(super) fn look_since(scope: &Scope, seen: &Observation, earlier: &Earlier) -> RolloutProgress {
    let mut look = RolloutProgress {
        is_complete: true,
        is_seen: true,
        ..RolloutProgress::default()
    };
    let (mut wanted, mut unknown, mut parts) = (0_u64, Vec::new(), Vec::new());
    let may_come = scope.targets.keys().any(|key| may_make(&key.kind));
    let mut has_open_job = false;
    for (key, generation) in &scope.targets {
        let Some(target) = seen.get(key) else {
            if workloads::is_watched(&key.kind) {
                look.lacks(key);
            }
            if is_route(&key.kind) {
                unknown.push(key);
            }
            continue;
        };
        let mut state = workloads::state(target, *generation, seen);
        look.ready = look.ready.saturating_add(state.ready);
        look.replicas = look.replicas.saturating_add(target.count("/spec/replicas"));
        wanted = wanted.saturating_add(state.wanted);
        if state.readiness == Readiness::Unknown {
            unknown.push(key);
        }
        look.is_paused |= state.is_paused;
        look.open_jobs = look.open_jobs.saturating_add(state.open_jobs);
        look.is_seen &= state.is_seen;
        if !state.is_complete {
            // A Job may make a Secret as well.
            has_open_job |= target.kind() == "Job";
            look.is_complete = false;
            look.behind = target.in_words();
            look.missing = mem::take(&mut state.missing);
        }
        // Until its controller has seen the version, all of it is about the one before.
        if state.is_seen {
            look.findings.append(&mut state.findings);
            look.hear(&state, (seen, earlier));
            let findings = mem::take(&mut look.findings);
            parts.push(Part::of(target, (&state, findings), earlier));
        }
    }
    let missing = |found: &&mut Finding| found.cause == Cause::ConfigMissing;
    // A Job does not make what it needs to start.
    let waits_for_it = |part: &&mut Part| may_come || (has_open_job && !part.is_job);
    for part in parts.iter_mut().filter(waits_for_it) {
        for found in part.findings.iter_mut().filter(missing) {
            found.is_definite = false;
        }
    }
    look.gather(parts);
    if look.is_complete {
        // Routes say nothing while Pods are still missing.
        look.findings.extend(routes::findings(scope, seen));
        let is_open =
            |found: &&Finding| found.is_definite || found.cause == Cause::IngressNoBackend;
        if let Some(first) = look.findings.iter().find(is_open) {
            look.is_complete = false;
            look.behind.clone_from(&first.object);
            look.missing.clone_from(&first.sentence);
        }
    }
    if look.is_complete {
        look.findings.clear();
        look.missing = complete(look.ready, wanted, &unknown);
        look.doubt = routes::doubt(scope, seen);
        if let Some(doubt) = &look.doubt {
            look.missing = format!("{}, but {}", look.missing, doubt.sentence);
        }
    }
    look
}

/// Sentence on a version that is complete, with the objects of which nobody knows that they are
/// ready.
fn complete(ready: u64, wanted: u64, unknown: &[&Key]) -> String {
    let said = match wanted {
        0 => "everything is applied".to_owned(),
        1 => "1 of 1 is ready".to_owned(),
        _ => format!("{ready} of {wanted} are ready"),
    };
    let are_custom = || unknown.iter().all(|key| !is_route(&key.kind));
    let applied = match unknown {
        [] => return said,
        [one] => format!("{} is applied", one.in_words()),
        many if are_custom() => format!("{} custom resources are applied", many.len()),
        many => format!("{} routes and custom resources are applied", many.len()),
    };
    format!("{said}; {applied}, readiness unknown")
}

/// Returns whether a program may be so because it does not reach another one of its app, or because
/// that one has not made yet what it reads.
const fn may_depend_on_another(found: &Finding) -> bool {
    matches!(
        found.cause,
        Cause::CrashLoop
            | Cause::InitCrash
            | Cause::ProbeStartup
            | Cause::ProbeLiveness
            | Cause::ProbeReadiness
    ) || (matches!(found.cause, Cause::ConfigMissing) && !found.is_definite)
}

/// Returns whether this is a route of the Gateway API. Each Gateway says of it what it thinks, and
/// one that no Gateway takes has nobody who would say so.
fn is_route(kind: &str) -> bool {
    kind.ends_with("Route")
}
