//! Images of archives, which k3s imports from `agent/images` when it starts, and pins.
//!
//! Where `agent/images/.cache.json` is there, it skips archives that it has imported before. Until
//! July 2026 it took the pins off their images then (k3s 14265), so that a full disk removed them
//! for good. Emptied, the file has all archives imported by the next start.

use crate::core::format::size;

/// Folder of the archives, below the data directory.
pub const FOLDER: &str = "agent/images";
/// File in it by which k3s knows what it has imported.
pub const CACHE: &str = ".cache.json";
/// Beginning of the archives of a release, which have the images of k3s' own Pods.
pub const OF_A_RELEASE: &str = "k3s-airgap-images-";
/// Endings of archives.
const ENDINGS: [&str; 8] = [
    ".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.lz4", ".tar.bz2", ".tbz",
];
/// Image of CoreDNS in such an archive, without its version.
const COREDNS: &str = "rancher/mirrored-coredns-coredns:";
/// Registry of names that do not say any.
const REGISTRY: &str = "docker.io/";
/// Unpacked, images take about three times as much room as the archive of a release.
const UNPACKED: u64 = 3;

/// Archives of this machine, and what became of their images.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Archives {
    /// True if there is the archive of a release.
    pub has_release: bool,
    /// True if k3s skips archives when it starts, and has pinned no image at all.
    pub are_unpinned: bool,
}

/// Returns whether k3s imports a file of that name.
pub fn is_archive(name: &str) -> bool {
    let name = name.to_lowercase();
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Returns whether k3s' record of what it has imported names an archive.
pub fn is_skipped(cache: &str, name: &str) -> bool {
    cache.contains(&format!("/{name}\""))
}

/// The image of CoreDNS that k3s comes with, where a Pod of this node waits for it.
pub fn wanted(pod: &str, node: &str) -> Option<String> {
    let waits = pod.contains(&format!(" on {node}:")) && pod.contains("Image");
    let quoted = pod.split('"').skip(1).step_by(2);
    let mut names = quoted.map(|name| name.trim_start_matches(REGISTRY));
    let name = names
        .find(|name| name.starts_with(COREDNS))
        .filter(|_| waits)?;
    Some(format!("{REGISTRY}{name}"))
}

/// Question for an image of that name, as a filter for containerd.
pub fn named(name: &str) -> String {
    format!("name=={name}")
}

/// Reason not to import archives of that length now.
pub fn lacks_room(archives_bytes: u64, free_bytes: u64) -> Option<String> {
    let need = archives_bytes.saturating_mul(UNPACKED);
    (free_bytes < need).then(|| {
        format!(
            "the images need {}, and {} are free",
            size(need),
            size(free_bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_one_of_the_endings_that_k3s_imports() {
        for name in ["a.tar", "k3s-airgap-images-arm64.tar.zst", "B.TGZ"] {
            assert!(is_archive(name), "{name}");
        }
        for name in ["images.txt", ".cache.json", "a.tar.new", "tar", "a.zip"] {
            assert!(!is_archive(name), "{name}");
        }
    }

    #[test]
    fn an_archive_is_skipped_where_the_record_names_it_in_whatever_directory() {
        let cache =
            r#"{"/mnt/disk/k3s/agent/images/web.tar":{"size":7,"modTime":"2026-06-23T18:05:52Z"}}"#;
        assert!(is_skipped(cache, "web.tar"));
        for (cache, name) in [(cache, "eb.tar"), (cache, "web.tar.gz"), ("", "web.tar")] {
            assert!(!is_skipped(cache, name), "{name}");
        }
    }

    #[test]
    fn only_the_image_that_a_release_has_is_one_that_its_archive_brings_back() {
        let waits = "Pod coredns-1 on box: Pending, ImagePullBackOff, Back-off pulling image \
            \"rancher/mirrored-coredns-coredns:1.12.3\"";
        let image = Some("docker.io/rancher/mirrored-coredns-coredns:1.12.3".to_owned());
        assert_eq!(wanted(waits, "box"), image);
        let full = waits.replace("\"rancher", "\"docker.io/rancher");
        assert_eq!(wanted(&full, "box"), image);
        for (pod, node) in [
            (waits, "other"),
            (waits, "bo"),
            (
                &*waits.replace("\"rancher", "\"registry.example/rancher"),
                "box",
            ),
            (
                "Pod coredns-1 on box: Running, CrashLoopBackOff, back-off 5m0s",
                "box",
            ),
        ] {
            assert_eq!(wanted(pod, node), None, "{pod}");
        }
    }

    #[test]
    fn the_images_need_more_room_than_their_archive() {
        assert_eq!(lacks_room(100, 300), None);
        let why = lacks_room(200_000_000, 500_000_000).unwrap();
        assert_eq!(why, "the images need 600.0 MB, and 500.0 MB are free");
        assert!(lacks_room(u64::MAX, 5).is_some());
    }
}
