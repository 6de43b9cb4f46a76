use super::*;
use crate::core::{
    apps::{Revision, parse},
    rollout::{Object, RolloutVerdict},
};

const A: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

/// A workload with one container, and the fields of its Pods that are given.
fn workload_of(kind: &str, name: &str, pod: &Value) -> Manifest {
    let spec = if kind == "CronJob" {
        json!({"jobTemplate": {"spec": {"template": {"spec": pod}}}})
    } else {
        json!({"template": {"spec": pod}})
    };
    let group = if kind.ends_with("Job") {
        "batch/v1"
    } else {
        "apps/v1"
    };
    let object =
        json!({"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec});
    parse(&object.to_string(), Some("shop")).unwrap().remove(0)
}

fn web(image: &str) -> Manifest {
    workload_of(
        "Deployment",
        "web",
        &json!({"containers": [{"name": "web", "image": image}]}),
    )
}

/// What is seen of the Deployment `web` with a Pod for each of these `imageID`s.
fn seen(image: &str, ids: &[&str]) -> Observation {
    let mut seen = Observation::default();
    let mut add = |kind: &str, name: &str, owner: &str, more: &Value| {
        let mut whole = more.clone();
        whole["metadata"] = json!({"name": name, "namespace": "shop", "uid": name, "ownerReferences": [{"uid": owner}]});
        seen.add(Object::reduced(kind, &whole));
    };
    add("Deployment", "web", "", &json!({}));
    add("ReplicaSet", "web-1", "web", &json!({}));
    for (number, id) in ids.iter().enumerate() {
        let pod = json!({"spec": {"containers": [{"name": "web", "image": image}]},
            "status": {"containerStatuses": [{"name": "web", "imageID": id}]}});
        add("Pod", &format!("web-1-{number}"), "web-1", &pod);
    }
    seen
}

fn kept(image: &str, ids: &[&str]) -> String {
    let mut found = digests(&[web(image)], &seen(image, ids));
    found.remove(image).unwrap_or_default()
}

fn overlay(image: &str, digest: &str) -> Overlay {
    Overlay {
        digests: LiteMap::from_iter([(image.to_owned(), digest.to_owned())]),
        ..Overlay::default()
    }
}

#[test]
fn the_digest_of_an_image_is_that_which_its_pods_run() {
    let of = |repository: &str| format!("{repository}@{A}");
    for (image, id) in [
        ("web:1", of("docker.io/library/web")),
        ("acme/web", of("docker.io/acme/web")),
        ("index.docker.io/web:1", of("docker.io/library/web")),
        ("web:1", format!("docker-pullable://web@{A}")),
        ("localhost/web:1", of("localhost/web")),
        ("r.example/a/web:1", of("r.example/a/web")),
        ("r.example:5000/web", of("r.example:5000/web")),
        ("r.example:5000/a/web:1.2", of("r.example:5000/a/web")),
    ] {
        assert_eq!(kept(image, &[&id, &id]), A, "{image} {id}");
    }
}

#[test]
fn an_id_that_is_no_digest_of_its_repository_pins_nothing() {
    let long = "x".repeat(1 << 20);
    for (id, wanted) in [
        (A.to_owned(), LOCAL),
        (format!("docker://{A}"), LOCAL),
        ("a".repeat(64), LOCAL),
        ("r.example/web".to_owned(), LOCAL),
        ("r.example/web@".to_owned(), LOCAL),
        ("r.example/web@sha256:".to_owned(), LOCAL),
        ("r.example/web@sha256:AAAA".to_owned(), LOCAL),
        (format!("r.example/web@{}", A.to_uppercase()), LOCAL),
        (format!("r.example/web@{A}0"), LOCAL),
        (format!("r.example/web@{A}@{A}"), LOCAL),
        (format!("r.example/web@{A}\n"), LOCAL),
        (format!("r.example/web@sha512:{}", "a".repeat(128)), LOCAL),
        (format!("@{A}"), ELSEWHERE),
        (format!("r.example/web\u{1b}[2J@{A}"), ELSEWHERE),
        (format!("other.example/web@{A}"), ELSEWHERE),
        (format!("r.example/other/web@{A}"), ELSEWHERE),
        (format!("{long}@{A}"), LOCAL),
        (format!("r.example/web@sha256:{long}"), LOCAL),
        (long, LOCAL),
    ] {
        let short: String = id.chars().take(40).collect();
        assert_eq!(kept("r.example/web:1", &[&id]), wanted, "{short}");
    }
    let (a, b) = (format!("r.example/web@{A}"), format!("r.example/web@{B}"));
    assert_eq!(kept("r.example/web:1", &[&a, &b, &a]), SEVERAL);
    assert_eq!(kept("r.example/web:1", &[&a, A]), SEVERAL);
    assert_eq!(kept("r.example/web:1", &[]), UNSEEN);
    for word in [SEVERAL, LOCAL, ELSEWHERE, UNSEEN, "", "\u{7}", "sha256:x"] {
        assert!(unpinned(word).is_some(), "{word}");
    }
    assert_eq!(unpinned(A), None);
}

#[test]
fn only_pods_of_the_version_count() {
    let image = "r.example/web:2";
    let id = format!("r.example/web@{A}");
    // A Pod of the version before, and one that is going.
    let mut all = seen(image, &[&id]);
    for (name, image, gone) in [
        ("old", "r.example/web:1", Value::Null),
        ("gone", image, json!("2026-01-01T00:00:00Z")),
    ] {
        let pod = json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "deletionTimestamp": gone, "ownerReferences": [{"uid": "web-1"}]},
            "spec": {"containers": [{"name": "web", "image": image}]},
            "status": {"containerStatuses": [{"name": "web", "imageID": format!("r.example/web@{B}")}]}});
        all.add(Object::reduced("Pod", &pod));
    }
    let found = digests(&[web(image)], &all);
    assert_eq!(
        found,
        LiteMap::from_iter([(image.to_owned(), A.to_owned())])
    );
}

#[test]
fn digests_take_a_bounded_part_of_a_record() {
    let long = format!("r.example/{}", "x".repeat(IMAGE_BYTES_MAX));
    let by_digest = format!("r.example/web@{A}");
    for image in ["", "a b", "a\u{0}", "ä", long.as_str(), by_digest.as_str()] {
        assert_eq!(
            digests(&[web(image)], &Observation::default()),
            LiteMap::new(),
            "{image:?}"
        );
    }
    let many: Vec<_> = (0..500)
        .map(|number| json!({"name": "c", "image": format!("web:{number}")}))
        .collect();
    let pod = json!({"containers": many, "initContainers": 7});
    let found = digests(
        &[workload_of("DaemonSet", "all", &pod)],
        &Observation::default(),
    );
    assert_eq!(found.len(), IMAGES_MAX);
    let version: Vec<_> = (0..500)
        .map(|number| {
            workload_of(
                "Deployment",
                &format!("web-{number}"),
                &json!({"containers": [{"image": "web:1"}]}),
            )
        })
        .collect();
    let pinned = overlay("web:1", A).to_pin((&version, &[]), &LiteMap::new());
    assert_eq!(pinned.len(), IMAGES_MAX);
}

#[test]
fn a_workload_goes_back_by_digest_unless_it_still_runs_the_same() {
    let local = overlay("web:1", LOCAL);
    let overlay = overlay("web:1", A);
    let (version, other) = ([web("web:1")], [web("web:2")]);
    let running = |digest: &str| LiteMap::from_iter([("web:1".to_owned(), digest.to_owned())]);
    let wanted = vec!["Deployment/web".to_owned()];
    assert_eq!(overlay.to_pin((&version, &other), &running(A)), wanted);
    assert_eq!(overlay.to_pin((&version, &[]), &LiteMap::new()), wanted);
    assert_eq!(overlay.to_pin((&version, &version), &running(B)), wanted);
    assert_eq!(
        overlay.to_pin((&version, &version), &running(SEVERAL)),
        wanted
    );
    assert_eq!(
        overlay.to_pin((&version, &version), &LiteMap::new()),
        wanted
    );
    let nothing: [String; 0] = [];
    assert_eq!(overlay.to_pin((&version, &version), &running(A)), nothing);
    // Without a digest, or without the image, there is nothing to go back by.
    assert_eq!(overlay.to_pin((&other, &[]), &LiteMap::new()), nothing);
    assert_eq!(local.to_pin((&version, &other), &running(A)), nothing);
    let job = [workload_of(
        "Job",
        "web",
        &json!({"containers": [{"image": "web:1"}]}),
    )];
    assert_eq!(overlay.to_pin((&job, &[]), &LiteMap::new()), nothing);
}

#[test]
fn a_pinned_workload_names_the_tag_and_the_digest() {
    let containers = json!({"containers": [{"image": "web:1"}, {"image": "db:1", "imagePullPolicy": "Always"}, {"image": "local:1"}],
        "initContainers": [{"image": "web:1", "imagePullPolicy": "Always"}]});
    let mut laid =
        ["Deployment", "CronJob", "Job"].map(|kind| workload_of(kind, "web", &containers));
    let before = laid.clone();
    let mut overlay = overlay("web:1", A);
    overlay.keep_digests(LiteMap::from_iter([
        ("web:1".to_owned(), B.to_owned()),
        ("db:1".to_owned(), B.to_owned()),
        ("local:1".to_owned(), LOCAL.to_owned()),
    ]));
    overlay.apply(&mut laid);
    assert_eq!(laid, before, "it did not go back");
    overlay.pinned = ["Deployment/web", "CronJob/web", "Job/web"]
        .map(str::to_owned)
        .to_vec();
    overlay.apply(&mut laid);
    let wanted = json!({
        "containers": [{"image": format!("web:1@{A}"), "imagePullPolicy": "IfNotPresent"}, {"image": format!("db:1@{B}"), "imagePullPolicy": "Always"}, {"image": "local:1"}],
        "initContainers": [{"image": format!("web:1@{A}"), "imagePullPolicy": "Always"}]});
    assert_eq!(laid[0].object["spec"]["template"]["spec"], wanted);
    assert_eq!(
        laid[1].object["spec"]["jobTemplate"]["spec"]["template"]["spec"],
        wanted
    );
    assert_eq!(laid[2], before[2], "a Job does not run again");
    // What runs by digest is as it was judged.
    assert_eq!(
        digests(&laid[..1], &Observation::default())
            .into_iter()
            .map(|(key, _)| key)
            .collect::<Vec<_>>(),
        ["local:1"]
    );
    let again = laid.clone();
    overlay.apply(&mut laid);
    assert_eq!(laid, again);
    // The next version has the words of its manifests.
    overlay.fit(&before);
    assert_eq!(overlay, Overlay::default());
}

#[test]
fn what_does_not_start_without_its_registry_is_named_with_its_fix() {
    let of = |container: Value, more: Value| {
        let mut pod = json!({"containers": [container]});
        pod.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let mut found = needs(&[workload_of("Deployment", "web", &pod)], |_| false);
        found
            .pop()
            .map(|need| (need.why, need.fix))
            .unwrap_or_default()
    };
    let plain = |container: Value| of(container, json!({})).0;
    for fine in [
        json!({"image": "web:1"}),
        json!({"image": "r.example:5000/web:1"}),
        json!({"image": format!("web@{A}")}),
        json!({"image": format!("web:1@{A}")}),
        json!({"image": "web", "imagePullPolicy": "IfNotPresent"}),
        json!({"image": "web:latest", "imagePullPolicy": "Never"}),
    ] {
        assert_eq!(plain(fine.clone()), "", "{fine}");
    }
    for image in [
        "web",
        "web:latest",
        "r.example:5000/web",
        &format!("web:latest@{A}"),
    ] {
        assert!(
            plain(json!({"image": image})).ends_with("it names no version"),
            "{image}"
        );
    }
    let always = of(
        json!({"image": "web:1", "imagePullPolicy": "Always"}),
        json!({}),
    );
    assert_eq!(
        always,
        (
            "it is pulled at each start (imagePullPolicy: Always)".to_owned(),
            "set imagePullPolicy: IfNotPresent".to_owned()
        )
    );
    let secret = json!({"imagePullSecrets": [{"name": "ghcr"}]});
    let (why, fix) = of(json!({"image": format!("web:1@{A}")}), secret.clone());
    assert!(
        why.contains("the pull secret ghcr") && fix.ends_with(" web:1"),
        "{why}: {fix}"
    );
    assert_eq!(
        of(
            json!({"image": "web:1", "imagePullPolicy": "Never"}),
            secret
        ),
        Default::default()
    );
}

#[test]
fn the_list_of_needs_is_bounded_and_names_an_image_once() {
    let same = json!({"containers": [{"image": "web"}, {"image": "web"}], "initContainers": [{"image": "web"}]});
    assert_eq!(
        needs(&[workload_of("StatefulSet", "db", &same)], |_| false)[0].object,
        "StatefulSet shop/db"
    );
    assert_eq!(
        needs(&[workload_of("StatefulSet", "db", &same)], |_| false).len(),
        1
    );
    let many: Vec<_> = (0..500)
        .map(|number| json!({"image": format!("web-{number}")}))
        .collect();
    let many = workload_of(
        "CronJob",
        "all",
        &json!({"containers": many, "imagePullSecrets": "odd"}),
    );
    assert_eq!(needs(&[many], |_| false).len(), NEEDS_MAX);
}

fn revision(number: u64, verdict: &str, digest: &str) -> Revision {
    let mut revision = Revision {
        number,
        overlay: overlay("web:1", digest),
        ..Revision::default()
    };
    revision.outcome.verdict = RolloutVerdict::of(verdict);
    revision
}

#[test]
fn images_are_kept_of_what_runs_and_of_what_it_goes_back_to() {
    let hash = |number: usize| format!("sha256:{number:064x}");
    let app = |name: &str, good: u64, running: u64, revisions: &[(u64, &str, usize)]| App {
        name: name.to_owned(),
        good,
        running,
        revisions: revisions
            .iter()
            .map(|(number, verdict, digest)| revision(*number, verdict, &hash(*digest)))
            .collect(),
        ..App::default()
    };
    // The fourth version is being judged; of a bad one nothing is known.
    let judged = [(1, "good", 1), (2, "good", 2), (3, "bad", 3), (4, "", 4)];
    let judged = app("a", 2, 4, &judged);
    let settled = app("b", 8, 8, &[(6, "good", 6), (7, "bad", 7), (8, "good", 8)]);
    let images = |apps: &[App], max| {
        let images = images_to_keep(apps, max);
        images.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let both = [judged, settled];
    assert_eq!(images(&both, 256), [4, 8, 2, 6].map(hash));
    assert_eq!(images(&both, 3), [4, 8, 2].map(hash));
    // The same image in several revisions and apps is one.
    let same = app("c", 2, 2, &[(1, "good", 1), (2, "good", 1)]);
    assert_eq!(images(&[same.clone(), same], 256), [hash(1)]);
    let imported = App {
        revisions: vec![revision(1, "good", LOCAL)],
        running: 1,
        good: 1,
        ..App::default()
    };
    assert_eq!(images(&[imported], 256), [""; 0]);
}

#[test]
fn an_image_that_stays_on_the_node_needs_no_pull_secret() {
    let pod = json!({
        "imagePullSecrets": [{"name": "ghcr"}],
        "containers": [
            {"name": "a", "image": "ghcr.io/a:1"},
            {"name": "b", "image": "ghcr.io/b:1"},
            {"name": "c", "image": "ghcr.io/c:1", "imagePullPolicy": "Always"},
        ],
    });
    let found = needs(&[workload_of("Deployment", "web", &pod)], |image| {
        image != "ghcr.io/b:1"
    });
    let images: Vec<_> = found.iter().map(|it| &*it.image).collect();
    assert_eq!(images, ["ghcr.io/b:1", "ghcr.io/c:1"]);
}

#[test]
fn the_digest_of_an_image_is_the_one_that_its_name_has_or_that_was_kept() {
    let overlay = overlay("web:1", A);
    assert_eq!(overlay.known_digest("web:1"), Some(A));
    let pinned = format!("web:1@{B}");
    assert_eq!(overlay.known_digest(&pinned), Some(B));
    assert_eq!(overlay.known_digest("web:2"), None);
}
