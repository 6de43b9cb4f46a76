//! Pins of images, with a program in the place of containerd's client.

use super::{
    super::server::{Allowed, Peer, act},
    k3s_life::{good, install},
    *,
};
use crate::{
    core::{images::ImageDigest, k3s::pins::SOCKET},
    wire::keeper::Pinned,
};

/// A machine with k3s, and the client of a containerd that has the images of `all`; `pinned` and
/// `ours` have the names of those with either label.
fn machine(all: &[String]) -> Tree {
    let tree = good();
    install(&tree).unwrap();
    let tree = tree.with(SOCKET.trim_start_matches('/'), "").program(
        "k3s",
        "case \"$*\" in\n\
         *images*ls*cri-containerd*) cat pinned;;\n\
         *images*ls*pipeops*) cat ours;;\n\
         *images*ls*) cat all;;\n\
         *images*label*=pinned*=pinned) echo \"$6\" >> pinned; echo \"$6\" >> ours;;\n\
         *images*label*) for it in pinned ours; do grep -vxF \"$6\" $it > rest; mv rest $it; done;;\n\
         *) exit 3;;\n\
         esac",
    );
    let tree = tree.with("pinned", "").with("ours", "");
    tree.with("all", &lines(all))
}

fn lines(names: &[String]) -> String {
    names.iter().flat_map(|name| [name, "\n"]).collect()
}

fn hash(number: usize) -> String {
    format!("sha256:{number:064x}")
}

fn name(number: usize) -> String {
    format!("ghcr.io/acme/web@{}", hash(number))
}

fn pin(tree: &Tree, numbers: &[usize]) -> Result<Pinned> {
    let digests = numbers
        .iter()
        .map(|number| ImageDigest::parse(&hash(*number)).unwrap());
    tree.keeper().k3s_pin(&digests.collect::<Vec<_>>())
}

fn read(tree: &Tree, file: &str) -> Vec<String> {
    let mut names: Vec<_> = tree
        .read(file)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    names.sort();
    names
}

fn pinned(tree: &Tree) -> [Vec<String>; 2] {
    ["pinned", "ours"].map(|file| read(tree, file))
}

#[test]
fn images_are_pinned_by_their_digests_and_the_next_set_takes_the_place_of_the_last() {
    let tag = "ghcr.io/acme/web:1".to_owned();
    let tree = machine(&[tag, name(1), name(2)]);
    let answer = pin(&tree, &[1, 2, 3]).unwrap();
    assert_eq!((answer.images, answer.left), (vec![hash(1), hash(2)], 0));
    let both = vec![name(1), name(2)];
    assert_eq!(pinned(&tree), [both.clone(), both]);
    // Again: nothing is written.
    let labels = |tree: &Tree| tree.calls().matches(" label ").count();
    assert_eq!(labels(&tree), 2);
    pin(&tree, &[1, 2, 3]).unwrap();
    assert_eq!(labels(&tree), 2);
    pin(&tree, &[2]).unwrap();
    assert_eq!(pinned(&tree), [vec![name(2)], vec![name(2)]]);
    pin(&tree, &[]).unwrap();
    assert_eq!(pinned(&tree), [[""; 0], [""; 0]]);
}

#[test]
fn a_pin_of_somebody_else_stays() {
    let tree = machine(&[name(1), name(2)]).with("pinned", &lines(&[name(1)]));
    let answer = pin(&tree, &[1]).unwrap();
    assert_eq!(answer.images, [hash(1)]);
    pin(&tree, &[]).unwrap();
    assert_eq!(pinned(&tree), [vec![name(1)], vec![]]);
}

#[test]
fn many_images_take_several_requests() {
    let tree = machine(&(0..50).map(name).collect::<Vec<_>>());
    let all: Vec<_> = (0..50).collect();
    let left: Vec<_> = (0..3).map(|_| pin(&tree, &all).unwrap().left).collect();
    assert_eq!(left, [18, 0, 0]);
    assert_eq!(pinned(&tree)[0].len(), 50);
}

#[test]
fn nothing_is_pinned_where_k3s_is_not_ours_or_does_not_run() {
    let tree = machine(&[name(1)]);
    let why = |tree: &Tree| pin(tree, &[1]).unwrap_err().sentence();
    std::fs::remove_file(tree.root().join(SOCKET.trim_start_matches('/'))).unwrap();
    assert!(why(&tree).contains("does not run"), "{}", why(&tree));
    std::fs::remove_file(tree.root().join("var/keeper/k3s.managed")).unwrap();
    assert!(why(&tree).contains("not managed"), "{}", why(&tree));
    assert!(!tree.calls().contains("images"), "{}", tree.calls());
    // Looking for it leaves nothing on a machine without k3s.
    let tree = Tree::new();
    let before = tree.snapshot();
    pin(&tree, &[1]).unwrap_err();
    assert!(tree.snapshot() == before && !tree.root().join("var/keeper").exists());
}

#[test]
fn a_change_that_is_under_way_is_left_alone_and_pins_hold_none_up() {
    let tree = machine(&[name(1)]);
    let lock = Journal::open(&tree.root().join("var/keeper"))
        .unwrap()
        .lock()
        .unwrap();
    let refused = pin(&tree, &[1]).unwrap_err();
    assert!(refused.sentence().contains("another change"), "{refused}");
    drop(lock);
    // The client of containerd tries the lock itself.
    let try_lock = "flock -n var/keeper/lock true || touch held\n";
    let script = tree.read("usr/sbin/k3s").unwrap();
    tree.put(
        "usr/sbin/k3s",
        &script.replacen("case", &format!("{try_lock}case"), 1),
        0o755,
    );
    pin(&tree, &[1]).unwrap();
    assert!(!tree.root().join("held").exists());
}

#[test]
fn the_agent_names_digests_and_nothing_else_and_only_where_root_allows_repairs() {
    let tree = machine(&[name(1)]);
    let ask = |images: &str, repair: bool| {
        let allowed = Allowed {
            repair,
            ..Allowed::default()
        };
        let asked = format!("{{\"verb\":\"pin\"{images}}}");
        act(&tree.keeper(), asked.as_bytes(), &Peer::agent(998, allowed))
    };
    let good = format!(",\"images\":[{:?}]", hash(1));
    let refused = ask(&good, false).unwrap_err();
    assert!(refused.sentence().contains("keeper.allow"), "{refused}");
    let many = vec![hash(1); 257];
    for bad in [
        String::new(),
        ",\"images\":null".to_owned(),
        format!(",\"images\":[{:?}]", name(1)),
        ",\"images\":[\"../../etc/passwd\"]".to_owned(),
        ",\"images\":[\"--help\"]".to_owned(),
        format!(",\"images\":[{:?},\"\"]", hash(1)),
        format!(",\"images\":{many:?}"),
        ",\"images\":[1]".to_owned(),
    ] {
        ask(&bad, true).unwrap_err();
    }
    assert!(!tree.calls().contains("images"), "{}", tree.calls());
    assert_eq!(
        ask(&good, true).unwrap(),
        format!("{{\"images\":[{:?}],\"left\":0}}", hash(1))
    );
    assert_eq!(pinned(&tree)[1], [name(1)]);
    // A whole set fits into a line.
    assert!(ask(&format!(",\"images\":{:?}", &many[1..]), true).is_ok());
}
