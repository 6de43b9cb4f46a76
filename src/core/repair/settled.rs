//! Settings of the machine that make a repair needless: one definition for the doctor, which judges
//! them, and the keeper, which plans the repair.

/// Files with settings of the journal, as names of facts.
pub const JOURNAL: [&str; 4] = [
    "/etc/systemd/journald.conf",
    "/etc/systemd/journald.conf.d/*.conf",
    "/run/systemd/journald.conf.d/*.conf",
    "/usr/lib/systemd/journald.conf.d/*.conf",
];

/// Files with settings of NetworkManager, as names of facts.
pub const NETWORK_MANAGER: [&str; 4] = [
    "/etc/NetworkManager/NetworkManager.conf",
    "/etc/NetworkManager/conf.d/*.conf",
    "/run/NetworkManager/conf.d/*.conf",
    "/usr/lib/NetworkManager/conf.d/*.conf",
];

/// Returns whether settings of journald bound the journal on disk, or keep it off the disk.
pub fn limits_journal(text: &str) -> bool {
    text.lines().any(|line| {
        let (key, value) = line.split_once('=').unwrap_or_default();
        let value = value.trim();
        match key.trim() {
            "SystemMaxUse" => !value.is_empty(),
            "Storage" => matches!(value, "volatile" | "none"),
            _ => false,
        }
    })
}

/// Returns whether settings of NetworkManager leave the interfaces of Pods alone: those of CNI and
/// of flannel.
pub fn spares_pods(text: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim_start();
        let is_of_pods = line.contains("cni") && line.contains("flannel");
        line.starts_with("unmanaged-devices") && is_of_pods
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_limited_by_a_size_or_kept_in_memory() {
        for (text, is_limited) in [
            ("[Journal]\nSystemMaxUse=100M\n", true),
            ("[Journal]\n  SystemMaxUse = 100M\n", true),
            ("Storage=volatile", true),
            ("Storage = none", true),
            ("#SystemMaxUse=\n#Storage=volatile\n", false),
            ("SystemMaxUse=\nStorage=auto\nRuntimeMaxUse=1M", false),
        ] {
            assert_eq!(limits_journal(text), is_limited, "{text}");
        }
    }

    #[test]
    fn a_comment_does_not_keep_network_manager_away() {
        let line = "unmanaged-devices=interface-name:cni*;interface-name:flannel*";
        assert!(spares_pods(&format!("[keyfile]\n{line}\n")));
        assert!(!spares_pods(&format!("[keyfile]\n# {line}\n")));
        assert!(!spares_pods("unmanaged-devices=interface-name:flannel*"));
    }
}
