//! Removal of a worker: the volumes that stay on its disk.

/// Template whose output [`volumes`] reads, for `kubectl get pv -o jsonpath=`.
pub const JSONPATH: &str = "{range .items[*]}{.metadata.name}|{.spec.claimRef.namespace}/{.spec.claimRef.name}|\
    {.spec.capacity.storage}|{.spec.local.path}{.spec.hostPath.path}|\
    {.spec.nodeAffinity.required.nodeSelectorTerms[*].matchExpressions[?(@.key==\"kubernetes.io/hostname\")].values[*]}{\"\\n\"}{end}";

/// A volume that is a directory of one machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Bound {
    /// Claim that has it: `namespace/name`.
    pub claim: String,
    /// Capacity that was asked for, as Kubernetes writes it.
    pub capacity: String,
    /// Directory on the machine.
    pub path: String,
}

/// Volumes that are on this node and nowhere else, in the output of [`JSONPATH`].
pub fn volumes(answer: &str, node: &str) -> Vec<Bound> {
    let found = answer.lines().filter_map(|line| {
        let mut fields = line.split('|');
        let mut next = || fields.next();
        let (_name, claim, capacity, path, nodes) = (next()?, next()?, next()?, next()?, next()?);
        let is_here = nodes.split_ascii_whitespace().any(|name| name == node);
        (is_here && !path.is_empty()).then(|| Bound {
            claim: claim.to_owned(),
            capacity: capacity.to_owned(),
            path: path.to_owned(),
        })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_volumes_of_that_machine_are_named() {
        let answer = "pvc-1|shop/db|1Gi|/var/lib/rancher/k3s/storage/pvc-1|pi\n\
                      pvc-2|shop/web|2Gi|/data/2|box\n\
                      pvc-3|shop/nfs|2Gi||\nbroken\n";
        let found = volumes(answer, "pi");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].claim, "shop/db");
        assert!(volumes(answer, "p").is_empty());
    }
}
