//! Pins: images that the kubelet's garbage collection leaves on this node, because an app needs
//! them while their registry is away.
//!
//! A pin is a label in containerd. Beside it stands a label of our own, written and removed with
//! it, so that a pin of k3s or of a person is never taken off, and no file has to remember ours.

use super::BINARY;
use crate::core::images::ImageDigest;

/// Images that are pinned at once. A request with all of their digests takes 19 KB of the 64 KB of
/// a line.
pub const PINS_MAX: usize = 256;
/// Labels that are written for one request, each by a program that runs for some 0.1 s: the rest
/// is left to the next request, because the keeper does one thing at a time.
const CHANGES_MAX: usize = 32;

/// Socket of k3s' containerd.
pub const SOCKET: &str = "/run/k3s/containerd/containerd.sock";
/// Label by which containerd tells the kubelet that an image is pinned.
const PINNED: &str = "io.cri-containerd.pinned";
/// Label of the pins that are k3s' own.
const OF_K3S: &str = "io.cattle.k3s.pinned";
/// Label of the pins that are ours.
const OURS: &str = "io.pipeops.pinned";
/// Value of all.
const VALUE: &str = "pinned";

/// Names of images in containerd.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Names {
    /// All that are named by a digest.
    pub all: Vec<String>,
    /// Those that are pinned, by whomever.
    pub pinned: Vec<String>,
    /// Those that we pinned.
    pub ours: Vec<String>,
}

/// Labels to write.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Labels {
    /// Names of images that are no longer pinned.
    pub unpin: Vec<String>,
    /// Names of images that are pinned from now on.
    pub pin: Vec<String>,
    /// Digests that are pinned then, or would be once nothing is left.
    pub pinned: Vec<ImageDigest>,
    /// Names that are left to the next request.
    pub left: usize,
}

/// Command that lists the names of images, of containerd's client.
pub fn list_command(filter: Option<&str>) -> Vec<String> {
    let words = [
        BINARY,
        "ctr",
        "--namespace",
        "k8s.io",
        "images",
        "ls",
        "--quiet",
    ];
    let words = words.into_iter().chain(filter);
    words.map(str::to_owned).collect()
}

/// Filter of the images that are pinned.
pub fn pinned() -> String {
    format!("labels.\"{PINNED}\"=={VALUE}")
}

/// Filter of the images that k3s pinned.
pub fn of_k3s() -> String {
    format!("labels.\"{OF_K3S}\"=={VALUE}")
}

/// Filter of the images that we pinned.
pub fn ours() -> String {
    format!("labels.\"{OURS}\"=={VALUE}")
}

/// Command that pins an image.
pub fn pin(name: &str) -> Vec<String> {
    label(name, VALUE)
}

/// Command that takes our pin off an image: a label without a value is removed.
pub fn unpin(name: &str) -> Vec<String> {
    label(name, "")
}

/// Both labels are written at once: nothing can come in between.
fn label(name: &str, value: &str) -> Vec<String> {
    let words = [BINARY, "ctr", "--namespace", "k8s.io", "images", "label"];
    let mut words: Vec<_> = words.map(str::to_owned).into();
    words.push(name.to_owned());
    words.extend([PINNED, OURS].map(|key| format!("{key}={value}")));
    words
}

/// Names by a digest in an answer of containerd: `docker.io/library/nginx@sha256:…`. Others, and
/// what could be an option, are left out.
pub fn names(answer: &str) -> Vec<String> {
    let is_plain = |name: &&str| {
        name.starts_with(|first: char| first.is_ascii_alphanumeric())
            && name.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let named = answer.lines().map(str::trim).filter(is_plain);
    named
        .filter(|name| digest(name).is_some())
        .map(str::to_owned)
        .collect()
}

fn digest(name: &str) -> Option<ImageDigest> {
    let (_, digest) = name.rsplit_once('@')?;
    ImageDigest::parse(digest)
}

/// Labels by which these images are pinned and no other one of ours. What is no longer wanted goes
/// first.
pub fn plan(wanted: &[ImageDigest], names: &Names) -> Labels {
    let is_wanted = |name: &&String| digest(name).is_some_and(|digest| wanted.contains(&digest));
    let unpin = names.ours.iter().filter(|name| !is_wanted(name));
    let there = names.all.iter().filter(is_wanted);
    let pin = there.clone().filter(|name| !names.pinned.contains(name));
    let mut labels = Labels {
        unpin: unpin.cloned().collect(),
        pin: pin.cloned().collect(),
        ..Labels::default()
    };
    for digest in there.filter_map(|name| digest(name)) {
        if !labels.pinned.contains(&digest) {
            labels.pinned.push(digest);
        }
    }
    let count = labels.unpin.len().saturating_add(labels.pin.len());
    labels.left = count.saturating_sub(CHANGES_MAX);
    labels.unpin.truncate(CHANGES_MAX);
    let room = CHANGES_MAX.saturating_sub(labels.unpin.len());
    labels.pin.truncate(room);
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: usize) -> String {
        format!("sha256:{number:064x}")
    }

    fn name(number: usize) -> String {
        format!("ghcr.io/acme/web@{}", hash(number))
    }

    fn wanted(numbers: impl IntoIterator<Item = usize>) -> Vec<ImageDigest> {
        let digests = numbers
            .into_iter()
            .map(|it| ImageDigest::parse(&hash(it)).unwrap());
        digests.collect()
    }

    #[test]
    fn what_is_wanted_and_there_is_pinned_and_only_our_own_pins_are_taken_off() {
        let names = Names {
            all: vec![name(1), name(2), name(3), name(4)],
            pinned: vec![name(2), name(3), name(4)],
            ours: vec![name(3)],
        };
        // 1 is new, 2 is a pin of somebody else, 3 is no longer wanted, 4 is none of our business,
        // and 5 is not on this node.
        let labels = plan(&wanted([1, 2, 5]), &names);
        assert_eq!((labels.pin, labels.unpin), (vec![name(1)], vec![name(3)]));
        assert_eq!((labels.pinned, labels.left), (wanted([1, 2]), 0));
        let none = plan(&[], &names);
        assert_eq!((none.pin, none.unpin), (Vec::new(), vec![name(3)]));
    }

    #[test]
    fn the_same_set_again_writes_nothing() {
        let names = Names {
            all: vec![name(1)],
            pinned: vec![name(1)],
            ours: vec![name(1)],
        };
        let labels = plan(&wanted([1]), &names);
        assert_eq!((labels.pin, labels.unpin), (Vec::new(), Vec::new()));
        assert_eq!(labels.pinned, wanted([1]));
    }

    #[test]
    fn a_request_writes_a_bounded_number_of_labels_and_says_what_is_left() {
        let names = Names {
            all: (0..100).map(name).collect(),
            pinned: (60..100).map(name).collect(),
            ours: (60..100).map(name).collect(),
        };
        let labels = plan(&wanted(0..50), &names);
        assert_eq!((labels.unpin.len(), labels.pin.len()), (CHANGES_MAX, 0));
        assert_eq!(labels.left, 40 + 50 - CHANGES_MAX);
    }

    #[test]
    fn an_image_has_several_names_by_one_digest_and_none_of_them_is_an_option() {
        let answer = format!(
            "docker.io/library/nginx:1.27\n{}\nquay.io/nginx@{}\n{}\n--help@{}\nhttp://x/\u{7f}@{}\n",
            name(1),
            hash(1),
            hash(1),
            hash(1),
            hash(1)
        );
        let all = names(&answer);
        assert_eq!(all, [name(1), format!("quay.io/nginx@{}", hash(1))]);
        let names = Names {
            all,
            ..Names::default()
        };
        let labels = plan(&wanted([1]), &names);
        assert_eq!((labels.pin.len(), labels.pinned), (2, wanted([1])));
    }

    #[test]
    fn both_labels_are_written_at_once() {
        let words = pin("web").join(" ");
        assert!(
            words.ends_with(
                "images label web io.cri-containerd.pinned=pinned io.pipeops.pinned=pinned"
            ),
            "{words}"
        );
        let words = unpin("web").join(" ");
        assert!(
            words.ends_with("web io.cri-containerd.pinned= io.pipeops.pinned="),
            "{words}"
        );
    }
}
