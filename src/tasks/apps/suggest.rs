//! Requests and limits that fit the stored usage of an app: shown, and deployed as a revision.

use std::rc::Rc;

use serde_json::{Map, Value, json};

use super::{Apps, cluster::Cluster, ledger::api_error, requester::Requester, verdict::kinds};
use crate::{
    core::{
        apps::{
            App, InventoryEntry, Manifest, Overlay, containers, pod_of,
            suggest::{
                CONTAINERS_MAX, Observed, PERIOD, STEP, Sizes, Suggestion, is_pod_of, suggest,
                unchanged_since,
            },
            workload,
        },
        order::GatherExt as _,
        rollout::{Object, Observation, owned},
        series::{Key, Line, Listed, Query, Search, Select},
        time::Wall,
    },
    error::{Error, Result, Retry},
    store::{Failure, telemetry::Handle},
};

/// Pods of one workload whose usage is read. Of more, those that run come first, and those that
/// have ended are taken evenly from all.
const PODS_MAX: usize = 96;
/// Series of one query: its values come to half of what one may have.
const SERIES_MAX: usize = 16;
/// Pages of the list of series, and series of one.
const PAGES_MAX: usize = 10;
const PAGE: usize = 1000;

const CPU: &str = "cluster_pod_cpu_cores";
const MEMORY: &str = "cluster_pod_memory_working_set_bytes";

/// Judgement on one container.
struct Judged {
    key: String,
    /// Sizes that its manifest has, without any overlay.
    manifest: Sizes,
    now: Sizes,
    /// The error is a sentence.
    found: std::result::Result<Suggestion, String>,
}

impl Judged {
    /// Other sizes than it has.
    fn change(&self) -> Option<Sizes> {
        let sizes = self.found.as_ref().ok()?.sizes;
        (sizes != self.now).then_some(sizes)
    }

    fn shown(&self) -> Value {
        let (workload, container) = self.key.rsplit_once('/').unwrap_or_default();
        let change = self.change();
        let (state, why, usage) = match &self.found {
            Ok(found) if change.is_some() => ("change", &found.why, &found.usage),
            Ok(found) => ("fits", &found.why, &found.usage),
            Err(why) => ("unknown", why, &Value::Null),
        };
        json!({
            "workload": workload, "container": container, "state": state, "now": self.now.shown(),
            "suggested": change.map(|sizes| sizes.shown()), "why": why, "usage": usage,
        })
    }
}

/// Running version of an app, with its start.
struct Version {
    /// As it was deployed, without overlay.
    manifests: Vec<Manifest>,
    applied: Vec<Manifest>,
    /// Other revisions with their times.
    others: Vec<([Wall; 2], Vec<Manifest>)>,
    /// Times of the revision that runs.
    times: [Wall; 2],
    seen: Observation,
}

impl Apps {
    /// Requests and limits that fit the usage of an app.
    ///
    /// # Errors
    /// There is no such app, nothing of it runs, or the cluster or the usage cannot be seen.
    pub async fn suggestion(&self, app: &str, samples: &Handle) -> Result<Value> {
        let read = self.require_record(app).await?;
        let judged = self.judge_sizes(&read.app, samples).await?;
        Ok(Value::Object(answer(&read.app, &judged)))
    }

    /// Deploys the requests and limits that fit, as a revision of its own. Changes nothing where
    /// nothing would change.
    ///
    /// # Errors
    /// Reason why nothing was changed.
    pub async fn apply_suggestion(
        self: Rc<Self>,
        app: &str,
        samples: &Handle,
        requester: &Requester,
    ) -> Result<Value> {
        self.require_leadership().await?;
        let read = self.require_record(app).await?;
        requester.owns(&read)?;
        let judged = self.judge_sizes(&read.app, samples).await?;
        let mut answer = answer(&read.app, &judged);
        if judged.iter().all(|one| one.change().is_none()) {
            return Ok(Value::Object(answer));
        }
        let resize = |overlay: &mut Overlay, manifests: &[Manifest]| {
            overlay.fit_sizes(manifests);
            for one in &judged {
                if let Some(sizes) = one.change() {
                    overlay.resize(&one.key, (&one.manifest, &sizes));
                }
            }
            let wanted = overlay.sized.clone();
            overlay.fit_sizes(manifests);
            if overlay.sized == wanted {
                return Ok(());
            }
            Err(Error::new("nothing was changed")
                .why(format!("another version of {app} runs by now"))
                .retry(Retry::Soon))
        };
        let accepted = Box::pin(self.again(app, resize, requester)).await?;
        if let Value::Object(accepted) = accepted {
            answer.extend(accepted);
        }
        let before = read.app.running;
        let undo = format!("sudo pipeops-agent apps rollback {app} --to {before}");
        answer.insert("undo".to_owned(), json!(undo));
        Ok(Value::Object(answer))
    }

    async fn judge_sizes(&self, app: &App, samples: &Handle) -> Result<Vec<Judged>> {
        let cluster = self.cluster(app.owner);
        let version = self.version(app, &cluster).await?;
        let mut judged = Vec::new();
        for (manifest, applied) in version.manifests.iter().zip(&version.applied) {
            let all = containers(manifest).zip(containers(applied));
            let rest = CONTAINERS_MAX.saturating_sub(judged.len());
            let all: Vec<_> = all.take(rest).collect();
            if all.is_empty() {
                continue;
            }
            let uid = app.uid(&InventoryEntry::of(manifest)).unwrap_or_default();
            let pods = owned("Pod", uid, &version.seen);
            let usage = self.usage(&version, (applied, uid), &pods, samples).await?;
            let autoscaler = match &*manifest.kind.name {
                "Deployment" | "StatefulSet" => {
                    let target = (&*manifest.kind.name, &*manifest.name);
                    cluster.autoscaler(&app.namespace, target).await?
                }
                _ => None,
            };
            for (of_manifest, of_laid) in all {
                let live = live(of_laid, &pods);
                let now = live.map_or_else(|| Sizes::of(of_laid), Sizes::of);
                let found = match &usage {
                    Err(why) => Err(why.clone()),
                    Ok([cpu, memory]) => suggest(&Observed {
                        now,
                        cpu,
                        memory,
                        ran_out: ran_out(of_laid, &now, &pods),
                        is_run: &*manifest.kind.name == "CronJob",
                        autoscaler: autoscaler.as_deref().unwrap_or_default(),
                    }),
                };
                judged.push(Judged {
                    key: Overlay::container_key(manifest, of_manifest),
                    manifest: Sizes::of(of_manifest),
                    now,
                    found,
                });
            }
        }
        Ok(judged)
    }

    async fn version(&self, app: &App, cluster: &Cluster<'_>) -> Result<Version> {
        let mut running = None;
        let mut others = Vec::new();
        for revision in &app.revisions {
            let times = [revision.at, revision.outcome.since];
            let kept = self.ledger().manifests(&app.name, revision.number).await;
            let manifests = kept.map_err(api_error)?;
            let mut applied = manifests.clone().unwrap_or_default();
            revision.overlay.apply(&mut applied);
            match manifests {
                Some(manifests) if revision.number == app.running => {
                    running = Some((times, manifests, applied));
                }
                Some(_) | None => others.push((times, applied)),
            }
        }
        let Some((times, manifests, applied)) = running else {
            return Err(Error::new(format!("nothing of {} runs yet", app.name))
                .fix(format!("pipeops-agent apps why {}", app.name)));
        };
        let workloads: Vec<_> = manifests
            .iter()
            .filter(|manifest| pod_of(manifest).is_some())
            .collect();
        let seen = cluster.observe(&app.namespace, &kinds(&workloads)).await?;
        Ok(Version {
            manifests,
            applied,
            others,
            times,
            seen,
        })
    }

    /// CPU and memory of the Pods of a workload since it is as it runs. The inner error is a
    /// sentence.
    async fn usage(
        &self,
        version: &Version,
        (applied, uid): (&Manifest, &str),
        pods: &[&Object],
        samples: &Handle,
    ) -> Result<std::result::Result<[Vec<Line>; 2], String>> {
        let count = pods.iter().map(|pod| running_at_once(pod.value())).max();
        let count = count.unwrap_or_else(|| containers(applied).count());
        if count > 1 {
            return Ok(Err(format!(
                "its Pods run {count} containers, and usage is stored for whole Pods"
            )));
        }
        let same = |manifests: &[Manifest]| {
            let is_it = |one: &&Manifest| workload(one) == workload(applied);
            manifests.iter().find(is_it).map(spec) == Some(spec(applied))
        };
        let others = version.others.iter();
        let mut revisions: Vec<_> = others.map(|(times, of)| (*times, same(of))).collect();
        revisions.push((version.times, true));
        let now = self.now().wall;
        let period = i64::try_from(PERIOD.as_millis()).unwrap_or(0);
        let earliest = Wall::from_millis(now.millis().saturating_sub(period));
        let Some(since) = unchanged_since(&revisions).map(|since| since.max(earliest)) else {
            return Ok(Err("this version has only just been restored".to_owned()));
        };
        let sets = owned("ReplicaSet", uid, &version.seen);
        let sets: Vec<_> = sets.iter().map(|set| set.name()).collect();
        let usage = async {
            let names = names(samples, applied, &sets).await?;
            let mut all = [Vec::new(), Vec::new()];
            for (metric, lines) in [CPU, MEMORY].iter().zip(&mut all) {
                for names in names.chunks(SERIES_MAX) {
                    let key = |name: &String| series(metric, &applied.namespace, name);
                    let query = Query {
                        select: Select::Keys(names.iter().map(key).collect()),
                        from: since,
                        to: now,
                        step: Some(STEP),
                    };
                    lines.extend(samples.query(query).await?);
                }
            }
            Ok::<_, Failure>(all)
        };
        let usage = usage.await.map_err(|failure| {
            Error::new("the stored usage cannot be read")
                .why(failure.to_string())
                .fix("pipeops-agent status")
                .retry(Retry::Soon)
        });
        usage.map(Ok)
    }
}

fn answer(app: &App, judged: &[Judged]) -> Map<String, Value> {
    let changes = judged.iter().filter(|one| one.change().is_some()).count();
    let known = judged.iter().filter(|one| one.found.is_ok()).count();
    let sentence = match (changes, known, judged.len()) {
        (_, _, 0) => "it has no container that runs on".to_owned(),
        (_, 0, _) => "nothing can be suggested yet".to_owned(),
        (0, known, all) if known == all => {
            "nothing to change: requests and limits fit the usage".to_owned()
        }
        (0, known, all) => format!("nothing to change in {known} of {all} containers"),
        (changes, _, all) => format!("{changes} of {all} containers would change"),
    };
    let containers: Vec<_> = judged.iter().map(Judged::shown).collect();
    [
        ("app", json!(app.name)),
        ("namespace", json!(app.namespace)),
        ("runs", json!(app.running)),
        ("containers", json!(containers)),
        ("sentence", json!(sentence)),
        ("change", Value::Null),
        ("revision", Value::Null),
        ("state", Value::Null),
        ("undo", Value::Null),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
    .gather()
}

/// Specification of the Pods of a workload.
fn spec(manifest: &Manifest) -> Option<&Value> {
    pod_of(manifest).and_then(|path| manifest.object.pointer(path))
}

fn list<'a>(pod: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    let list = pod.pointer(path).and_then(Value::as_array);
    list.into_iter().flatten()
}

/// Containers of a Pod that run at the same time: init containers end, but for those that are
/// restarted.
fn running_at_once(pod: &Value) -> usize {
    let inits = list(pod, "/spec/initContainers");
    let sidecars = inits.filter(|one| one.get("restartPolicy").is_some());
    sidecars
        .count()
        .saturating_add(list(pod, "/spec/containers").count())
}

/// A container as the newest of these Pods has it: defaults of the namespace are among its sizes.
fn live<'a>(container: &Value, pods: &[&'a Object]) -> Option<&'a Value> {
    let pod = pods.first()?.value();
    list(pod, "/spec/containers").find(|one| one.get("name") == container.get("name"))
}

/// Returns whether a container with these sizes was killed because there was no more memory.
fn ran_out(container: &Value, now: &Sizes, pods: &[&Object]) -> bool {
    let name = container.get("name");
    pods.iter().any(|pod| {
        let of = |path| list(pod.value(), path).find(|one| one.get("name") == name);
        let has = of("/spec/containers").map(Sizes::of);
        has.is_some_and(|has| has.memory_limit == now.memory_limit)
            && of("/status/containerStatuses").is_some_and(|status| {
                ["/state", "/lastState"].iter().any(|state| {
                    let reason = status.pointer(&format!("{state}/terminated/reason"));
                    reason.and_then(Value::as_str) == Some("OOMKilled")
                })
            })
    })
}

fn series(metric: &str, namespace: &str, pod: &str) -> String {
    format!("{metric}{{namespace=\"{namespace}\",pod=\"{pod}\"}}")
}

/// Names of the Pods of a workload whose usage is stored.
async fn names(
    samples: &Handle,
    applied: &Manifest,
    sets: &[&str],
) -> std::result::Result<Vec<String>, Failure> {
    let whole = series(MEMORY, &applied.namespace, &format!("{}-", applied.name));
    let mut search = Search {
        contains: whole.trim_end_matches("\"}").to_owned(),
        limit: PAGE,
        ..Search::default()
    };
    let (mut live, mut ended) = (Vec::new(), Vec::new());
    for _ in 0..PAGES_MAX {
        let page = samples.series(search.clone()).await?;
        search.after = page.series.last().cloned();
        for Listed { has_ended, key } in page.series {
            let pod = Key::parse(&key).ok();
            let pod = pod.as_ref().and_then(|key| key.label("pod"));
            let of = (&*applied.kind.name, &*applied.name);
            if let Some(pod) = pod.filter(|pod| is_pod_of(of, sets, pod)) {
                if has_ended { &mut ended } else { &mut live }.push(pod.to_owned());
            }
        }
        if !page.has_more {
            break;
        }
    }
    live.truncate(PODS_MAX);
    let rest = PODS_MAX.saturating_sub(live.len());
    let every = ended.len().div_ceil(rest.max(1)).max(1);
    live.extend(ended.into_iter().rev().step_by(every).take(rest));
    Ok(live)
}
