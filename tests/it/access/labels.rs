//! Running calls whose namespace changes or is not heard of any more, with an
//! API server of our own.

use std::{collections::BTreeMap, time::Duration};

use plane::{Failed, ProxyRequest, Response, Streams};

use super::Bench;
use crate::agent::{SOON, clock, until};

/// What happens to the watched namespaces, and when each watch has ended by then, in seconds.
const NAMESPACES: [(&str, Option<(u64, u64)>); 5] = [
    ("unlabelled", Some((0, 10))),
    ("recreated", Some((0, 10))),
    ("deleted", Some((0, 10))),
    // 30 s after the last look that was answered.
    ("silent", Some((20, 36))),
    ("annotated", None),
];

fn watch(bench: &Bench, path: &str) -> Response {
    let watch = format!("{path}?watch=true");
    let mut watch = bench
        .plane
        .request(ProxyRequest::get(&watch), SOON)
        .unwrap();
    let event = watch.body.next(SOON).unwrap().unwrap();
    assert!(event.starts_with(b"{\"type\":\"ADDED\""), "{event:?}");
    watch
}

fn has_ended(response: &mut Response) -> bool {
    let next = response.body.next(Duration::from_millis(1));
    !matches!(next, Some(Ok(_) | Err(Failed::Late)))
}

#[test]
fn a_watch_ends_with_what_its_namespace_was() {
    let bench = Bench::linked(Streams::Preferred);
    let mut free = watch(&bench, "/api/v1/configmaps");
    let before = bench.api.looks();
    let mut watches: BTreeMap<&str, Response> = BTreeMap::new();
    for (name, _) in NAMESPACES {
        let path = format!("/api/v1/namespaces/{name}/secrets");
        watches.insert(name, watch(&bench, &path));
    }
    until("every namespace was looked at again", SOON, || {
        // Each was looked at when its watch began, and its right when it was bound.
        (bench.api.looks() >= before + 4 * NAMESPACES.len()).then_some(())
    });
    bench.api.change_namespaces();
    let began = clock();
    let mut ended: BTreeMap<&str, u64> = BTreeMap::new();
    until("all that have to end have ended", SOON, || {
        for (name, response) in &mut watches {
            if !ended.contains_key(name) && has_ended(response) {
                ended.insert(name, (clock() - began).as_secs());
            }
        }
        (ended.len() >= 4).then_some(())
    });
    println!("seconds until the end: {ended:?}");
    for (name, within) in NAMESPACES {
        let after = ended.get(name);
        let is_right = match (within, after) {
            (Some((first, last)), Some(after)) => (first..=last).contains(after),
            (None, None) => true,
            _ => false,
        };
        assert!(is_right, "{name}: {after:?}");
    }
    assert!(!has_ended(&mut free), "a plain read relies on no namespace");
    until("the API server is let go", SOON, || {
        (bench.api.watches() == 2).then_some(())
    });
}
