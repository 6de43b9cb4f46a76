//! Draining of a node: the Pods that go, those that stay, and those that block it.

use crate::core::order::OrderExt as _;

/// Template whose output [`pods`] reads, for `kubectl get pods -o jsonpath=`.
pub const JSONPATH: &str = "{range .items[*]}{.metadata.namespace}|{.metadata.name}|\
    {.metadata.ownerReferences[?(@.controller==true)].kind}|\
    {.metadata.annotations.kubernetes\\.io/config\\.mirror}|{.status.phase}|\
    {.spec.volumes[?(@.emptyDir)].name}{\"\\n\"}{end}";

/// Fate of a Pod when its node is drained.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fate {
    /// It belongs to the node: a DaemonSet, or a static Pod.
    Stays,
    /// Evicted: its controller starts another one elsewhere.
    Moves,
    /// Ended for good: it has no controller, so nothing starts it again.
    Ends,
}

/// A Pod of a node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pod {
    /// `namespace/name`.
    pub name: String,
    pub fate: Fate,
    /// Names of its emptyDir volumes, whose data goes with it.
    pub empty_dirs: Vec<String>,
}

/// Reads the output of [`JSONPATH`]. Pods that have ended are left out.
pub fn pods(text: &str) -> Vec<Pod> {
    let found = text.lines().filter_map(|line| {
        let mut fields = line.split('|');
        let mut next = || fields.next();
        let (namespace, name, owner, mirror, phase) = (next()?, next()?, next()?, next()?, next()?);
        let empty_dirs = next()?.split_ascii_whitespace().map(str::to_owned);
        let fate = match (owner, mirror) {
            ("DaemonSet" | "Node", _) => Fate::Stays,
            (_, mirror) if !mirror.is_empty() => Fate::Stays,
            ("", _) => Fate::Ends,
            (_, _) => Fate::Moves,
        };
        let is_over = matches!(phase, "Succeeded" | "Failed");
        (!is_over).then(|| Pod {
            name: format!("{namespace}/{name}"),
            fate,
            empty_dirs: empty_dirs.collect(),
        })
    });
    found.collect()
}

/// Template whose output [`takes_pods`] reads, for `kubectl get nodes -o jsonpath=`.
pub const NODES: &str = "{range .items[*]}{.metadata.name}|{.spec.unschedulable}|\
    {.spec.taints[*].effect}|{.status.conditions[?(@.type==\"Ready\")].status}{\"\\n\"}{end}";

/// Returns whether another node than this one can take its Pods, by the answer to [`NODES`].
pub fn takes_pods(text: &str, node: &str) -> bool {
    text.lines().any(|line| {
        let mut fields = line.split('|');
        let mut next = || fields.next().unwrap_or_default();
        let (name, is_cordoned, effects, ready) = (next(), next(), next(), next());
        let is_closed = is_cordoned == "true"
            || effects
                .split(' ')
                .any(|effect| matches!(effect, "NoSchedule" | "NoExecute"));
        name != node && !is_closed && ready == "True"
    })
}

/// Pods that a PodDisruptionBudget held, in what `kubectl drain` said.
pub fn held(said: &str) -> Vec<String> {
    let lines = said
        .lines()
        .filter(|line| line.contains("disruption budget"));
    let mut names: Vec<_> = lines
        .filter_map(|line| {
            let (_, rest) = line.split_once("pods/\"")?;
            let (name, rest) = rest.split_once('"')?;
            let (_, rest) = rest.split_once("-n \"")?;
            let (namespace, _) = rest.split_once('"')?;
            Some(format!("{namespace}/{name}"))
        })
        .collect();
    names.order();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_node_that_is_ready_and_open_takes_pods() {
        for (others, takes) in [
            ("", false),
            ("pi|||True\n", true),
            ("pi|||Unknown\n", false),
            ("pi|true||True\n", false),
            ("pi||NoSchedule|True\n", false),
            ("pi||PreferNoSchedule|True\n", true),
            ("pi||NoSchedule NoExecute|True\nnas|||True\n", true),
            ("garbage\n", false),
        ] {
            let answer = format!("box|||True\n{others}");
            assert_eq!(takes_pods(&answer, "box"), takes, "{answer}");
        }
    }

    #[test]
    fn a_pod_stays_moves_or_ends() {
        let answer = "kube-system|svclb-x|DaemonSet||Running|\n\
                      shop|web-1|ReplicaSet||Running|cache tmp\n\
                      shop|job-1|Job||Succeeded|\n\
                      default|shell|||Running|\n\
                      kube-system|static-box|Node|abc|Running|\n\nbroken\n";
        let found = pods(answer);
        let fates: Vec<_> = found.iter().map(|pod| (&*pod.name, pod.fate)).collect();
        assert_eq!(
            fates,
            [
                ("kube-system/svclb-x", Fate::Stays),
                ("shop/web-1", Fate::Moves),
                ("default/shell", Fate::Ends),
                ("kube-system/static-box", Fate::Stays),
            ]
        );
        assert_eq!(found[1].empty_dirs, ["cache", "tmp"]);
    }

    #[test]
    fn a_pod_that_a_budget_holds_is_named_once() {
        let line = "error when evicting pods/\"web-1\" -n \"shop\" (will retry after 5s): \
                    Cannot evict pod as it would violate the pod's disruption budget.";
        assert_eq!(
            held(&format!("evicting pod shop/web-1\n{line}\n{line}\n")),
            ["shop/web-1"]
        );
        assert!(held("node/box drained").is_empty());
    }
}
