//! One observation, judged by itself: what is ready, what is missing, what keeps it from being so.

use std::mem;

use super::{
    Cause, Finding, Key, Observation, Scope,
    earlier::Earlier,
    object::is_custom,
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
    /// Finding about a program that may still need one of the app whose image the node is pulling:
    /// it is not held against it.
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

    /// Takes what the Pods of the version say.
    fn hear(&mut self, state: &ObjectState<'_>, (seen, earlier): (&Observation, &Earlier)) {
        for pod in state.heard() {
            self.restarts = self.restarts.saturating_add(pods::restarts(pod));
            self.findings.extend(pods::findings(pod, seen, earlier));
        }
    }

    /// Takes the findings of all targets. A program may need another one of its app, such as a
    /// database: what it does before the image of that one has come is not held against it.
    fn gather(&mut self, mut parts: Vec<Vec<Finding>>) {
        let pulls = |found: &Finding| found.cause == Cause::ImagePulling;
        let count = parts.iter().filter(|part| part.iter().any(pulls)).count();
        let is_held = |part: &&mut Vec<Finding>| count > usize::from(part.iter().any(pulls));
        let excused: Vec<_> = parts
            .iter_mut()
            .filter(is_held)
            .flat_map(|part| part.extract_if(.., |found| may_need_another(found.cause)))
            .collect();
        self.excused = excused.into_iter().next();
        self.findings = parts.into_iter().flatten().collect();
        if let Some(excused) = &self.excused {
            for found in self.findings.iter_mut().filter(|found| pulls(found)) {
                found.sentence = format!("{}; meanwhile {}", found.sentence, excused.sentence);
            }
        }
    }
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
    for (key, generation) in &scope.targets {
        let Some(target) = seen.get(key) else {
            if workloads::is_watched(&key.kind) {
                look.is_complete = false;
                look.is_seen = false;
                look.missing = format!("{} is not there yet", key.in_words());
                look.behind = key.in_words();
            }
            if is_route(&key.kind) {
                unknown.push(key);
            }
            continue;
        };
        let mut state = workloads::state(target, *generation, seen);
        look.ready = look.ready.saturating_add(state.ready);
        wanted = wanted.saturating_add(state.wanted);
        if state.readiness == Readiness::Unknown {
            unknown.push(key);
        }
        look.is_paused |= state.is_paused;
        look.open_jobs = look.open_jobs.saturating_add(state.open_jobs);
        look.is_seen &= state.is_seen;
        if !state.is_complete {
            look.is_complete = false;
            look.behind = target.in_words();
            look.missing = mem::take(&mut state.missing);
        }
        // Until its controller has seen the version, all of it is about the one before.
        if state.is_seen {
            look.findings.append(&mut state.findings);
            look.hear(&state, (seen, earlier));
            parts.push(mem::take(&mut look.findings));
        }
    }
    look.gather(parts);
    if scope.targets.keys().any(|key| may_make(&key.kind)) {
        let missing = |found: &&mut Finding| found.cause == Cause::ConfigMissing;
        for found in look.findings.iter_mut().filter(missing) {
            found.is_definite = false;
        }
    }
    if look.is_complete {
        // Routes say nothing while Pods are still missing.
        look.findings.extend(routes::findings(scope, seen));
        let definite: Vec<_> = look
            .findings
            .iter()
            .filter(|found| found.is_definite)
            .collect();
        if let Some(first) = definite.first() {
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

/// Returns whether a program may be so because it does not reach another one of its app.
const fn may_need_another(cause: Cause) -> bool {
    matches!(
        cause,
        Cause::CrashLoop
            | Cause::InitCrash
            | Cause::ProbeStartup
            | Cause::ProbeLiveness
            | Cause::ProbeReadiness
    )
}

/// Returns whether this is a route of the Gateway API. Each Gateway says of it what it thinks, and
/// one that no Gateway takes has nobody who would say so.
fn is_route(kind: &str) -> bool {
    kind.ends_with("Route")
}

/// Returns whether an object of this kind may make a Secret or a ConfigMap that others of its app
/// read: a certificate, a secret from elsewhere, a chart. That may take longer than their Pods.
fn may_make(kind: &str) -> bool {
    is_custom(kind) || kind == "HelmChart"
}
