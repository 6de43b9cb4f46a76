//! View of the cluster: nodes and namespaces, Pods and workloads page by page, queried on demand.

use super::{ViewResult, newest};
use crate::{
    core::{order::GatherExt as _, series::float, time::Wall},
    kube::{Client, Detail, query_escaped, services::is_name},
    store::telemetry::Handle,
    tasks::{state::SharedState, telemetry::cluster::Known},
    wire::{
        api::{
            ClusterReport, NamespaceReport, NodeReport, PodPage, PodReport, WorkloadPage,
            WorkloadReport,
        },
        json::Shape,
        kube::{List, shown},
    },
};
use litemap::LiteMap;

/// Objects of a page that is shown.
const SHOWN_MAX: usize = 200;
/// Pages of the API that one answer may look through for a part of a name: 1,000 Pods.
const LOOKED_THROUGH_MAX: usize = 20;
/// Nodes that are shown: pages of 50.
const NODE_PAGES_MAX: usize = 4;
/// Maximum age of a node's newest value.
const FRESH_MS: i64 = 300_000;
/// Kinds of workloads, and where they are.
const KINDS: [(&str, &str); 3] = [
    ("Deployment", "deployments"),
    ("StatefulSet", "statefulsets"),
    ("DaemonSet", "daemonsets"),
];

/// Sources of the view.
#[derive(Debug)]
pub struct View<'a> {
    /// The way to the API; `None`: there is no cluster.
    pub client: Option<&'a Client>,
    /// State of the watches.
    pub known: &'a Known,
    /// State of all components.
    pub shared_state: &'a SharedState,
    pub samples: &'a Handle,
}

impl View<'_> {
    /// Nodes and namespaces. `state` is the cluster's in the status, with its reason.
    pub async fn report(&self, state: (String, Option<String>)) -> ClusterReport {
        let now = self.shared_state.now().wall;
        let namespaces = self.known.phases.borrow().by_namespace();
        let mut report = ClusterReport {
            state: state.0,
            why: state.1,
            at: self.heard(now).rfc3339(),
            nodes: Vec::new(),
            namespaces: namespaces
                .into_iter()
                .map(|counts| {
                    let [pending, _, failed, ..] = counts.phases.map(u64::from);
                    let [running, not_ready] = counts.running.map(u64::from);
                    NamespaceReport {
                        name: counts.namespace,
                        pods: counts.phases.map(u64::from).iter().sum(),
                        running,
                        not_ready,
                        pending,
                        failed,
                        restarts: counts.restarts,
                    }
                })
                .collect(),
        };
        match self.nodes(now).await {
            Ok(nodes) => report.nodes = nodes,
            Err(why) => report.why = report.why.or(Some(why)),
        }
        report
    }

    /// The moment that numbers of the watches are of: now, as long as the cluster answers.
    fn heard(&self, now: Wall) -> Wall {
        let Some(heard) = self.client.map(Client::heard) else {
            return now;
        };
        let (Some(_), Some(last)) = (heard.silence(), heard.last()) else {
            return now;
        };
        let silence = self.shared_state.now().mono.since(last).as_millis();
        let silence = i64::try_from(silence).unwrap_or(i64::MAX);
        Wall::from_millis(now.millis().saturating_sub(silence))
    }

    async fn nodes(&self, now: Wall) -> ViewResult<Vec<NodeReport>> {
        let mut nodes: Vec<NodeReport> = Vec::new();
        let mut next = String::new();
        for _ in 0..NODE_PAGES_MAX {
            let page: List<shown::Node> = self.page("/api/v1/nodes", &next).await?;
            nodes.extend(page.items.into_iter().map(|node| node.report(now)));
            next = page.metadata.next;
            if next.is_empty() {
                break;
            }
        }
        let cores = self.used("cluster_node_cpu_cores", now).await;
        let memory = self
            .used("cluster_node_memory_working_set_bytes", now)
            .await;
        for node in &mut nodes {
            node.cpu_percent = share(cores.get(&node.name).copied(), node.cpu_cores);
            let bytes = node
                .memory_bytes
                .and_then(|bytes| u32::try_from(bytes >> 20).ok());
            let used = memory.get(&node.name).map(|bytes| bytes / 1_048_576.0);
            node.memory_percent = share(used, bytes.map(f64::from));
        }
        Ok(nodes)
    }

    /// Usage of each node, by its name.
    async fn used(&self, metric: &str, now: Wall) -> LiteMap<String, f64> {
        let found = newest(self.samples, metric, now, FRESH_MS).await;
        let values = found.into_iter().filter_map(|(known, aggregate)| {
            let series = known.series;
            let node = series.key.label("node")?.to_owned();
            Some((node, float(aggregate.mean, series.digits)))
        });
        values.gather()
    }

    /// Pods of a namespace, or of all, with this in their name.
    pub async fn pods(&self, namespace: &str, contains: &str, next: &str) -> ViewResult<PodPage> {
        let now = self.shared_state.now().wall;
        let path = collection("/api/v1", namespace, "pods")?;
        let mut pods: Vec<PodReport> = Vec::new();
        let mut next = next.to_owned();
        for _ in 0..LOOKED_THROUGH_MAX {
            let page: List<shown::Pod> = self.page(&path, &next).await?;
            let found = page.items.into_iter().filter(|pod| pod.has(contains));
            pods.extend(found.map(|pod| pod.report(now)));
            next = page.metadata.next;
            // Another page of the API would not fit.
            if next.is_empty() || pods.len() + Detail::Whole.page() > SHOWN_MAX {
                break;
            }
        }
        Ok(PodPage {
            pods,
            next: Some(next).filter(|next| !next.is_empty()),
        })
    }

    /// Workloads of a namespace, or of all: one kind after the other.
    pub async fn workloads(&self, namespace: &str, next: &str) -> ViewResult<WorkloadPage> {
        let now = self.shared_state.now().wall;
        // Which kind, and where in it.
        let (kind, mut next) = next.split_once('.').unwrap_or(("0", next));
        let mut owned: String;
        let first = kind
            .parse::<usize>()
            .ok()
            .filter(|kind| *kind < KINDS.len());
        let first = first.ok_or("there is no such page")?;
        let mut workloads: Vec<WorkloadReport> = Vec::new();
        for (index, (kind, plural)) in KINDS.iter().enumerate().skip(first) {
            let path = collection("/apis/apps/v1", namespace, plural)?;
            loop {
                if workloads.len() + Detail::Whole.page() > SHOWN_MAX {
                    let next = Some(format!("{index}.{next}"));
                    return Ok(WorkloadPage { workloads, next });
                }
                let page: List<shown::Workload> = self.page(&path, next).await?;
                let found = page.items.into_iter();
                workloads.extend(found.map(|workload| workload.report(kind, now)));
                owned = page.metadata.next;
                next = &owned;
                if next.is_empty() {
                    break;
                }
            }
        }
        Ok(WorkloadPage {
            workloads,
            next: None,
        })
    }

    async fn page<T: Shape + Default>(&self, path: &str, next: &str) -> ViewResult<List<T>> {
        let client = self.client.ok_or("no cluster is configured")?;
        if let Some(error) = client.heard().silence() {
            return Err(crate::error::Error::from(&error).sentence());
        }
        let page = client.page_of(path, Detail::Whole, next).await;
        page.map_err(|error| crate::error::Error::from(&error).sentence())
    }
}

/// Collection to page through: a namespace, or all of them.
fn collection(group: &str, namespace: &str, plural: &str) -> ViewResult<String> {
    if namespace.is_empty() {
        return Ok(format!("{group}/{plural}"));
    }
    named(namespace)?;
    Ok(format!("{group}/namespaces/{namespace}/{plural}"))
}

/// Refuses what cannot be the name of an object, before it is a part of a path.
pub fn named(name: &str) -> ViewResult<()> {
    if is_name(name) {
        Ok(())
    } else {
        Err(format!("{name:?} is not a valid object name"))
    }
}

/// The path of the log of a container.
pub fn log_path(
    (namespace, pod, container): (&str, &str, &str),
    (tail, since): (u32, Option<Wall>),
    (follow, previous): (bool, bool),
) -> ViewResult<String> {
    named(namespace)?;
    named(pod)?;
    let mut path =
        format!("/api/v1/namespaces/{namespace}/pods/{pod}/log?tailLines={tail}&timestamps=true");
    if !container.is_empty() {
        path.push_str("&container=");
        path.push_str(&query_escaped(container));
    }
    if let Some(since) = since {
        path.push_str("&sinceTime=");
        path.push_str(&query_escaped(&since.rfc3339()));
    }
    if follow {
        path.push_str("&follow=true");
    }
    if previous {
        path.push_str("&previous=true");
    }
    Ok(path)
}

fn share(used: Option<f64>, all: Option<f64>) -> Option<f64> {
    let all = all.filter(|all| *all > 0.0)?;
    crate::wire::api::percent(used? / all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_place_in_the_path() {
        for name in [
            "",
            "..",
            "a/../b",
            "a?x",
            "A",
            "-a",
            "a-",
            "a b",
            "é",
            &"a".repeat(254),
        ] {
            assert!(named(name).is_err(), "{name}");
        }
        for name in ["a", "web-0", "kube-system", "web-7d4b.x", "0"] {
            assert!(named(name).is_ok(), "{name}");
        }
        let path = log_path(
            ("shop", "web-0", "a&follow=true"),
            (10, None),
            (false, true),
        )
        .unwrap();
        assert_eq!(
            path,
            "/api/v1/namespaces/shop/pods/web-0/log?tailLines=10&timestamps=true&container=a%26follow%3Dtrue&previous=true"
        );
    }
}
