//! Read-only account: it has Kubernetes' own role `view` in all namespaces, which shows no Secrets.

/// Its name.
pub const ACCOUNT: &str = "pipeops-viewer";
/// Its namespace, which every k3s has.
pub const NAMESPACE: &str = "kube-system";
/// Kubernetes' own role that it has.
pub const ROLE: &str = "view";
/// The account and its binding.
pub const MANIFEST: &str = include_str!("texts/viewer.yaml");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_binds_the_account_to_the_role_view_and_to_nothing_else() {
        assert_eq!(MANIFEST.matches(&format!("name: {ACCOUNT}\n")).count(), 3);
        assert_eq!(MANIFEST.matches(NAMESPACE).count(), 2);
        let roles = MANIFEST.split("roleRef:").count() - 1;
        assert_eq!(roles, 1);
        assert!(MANIFEST.contains(&format!("  kind: ClusterRole\n  name: {ROLE}\n")));
    }
}
