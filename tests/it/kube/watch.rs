//! Watches against a server that cuts them, forgets the past, and talks nonsense.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use pipeops_agent::kube::Client;
use pipeops_agent::kube::watch::{Event, Watch};
use pipeops_agent::wire::kube::HeadOnly;
use smol::Task;

use super::certificates::Authority;
use super::server::{Reply, Server, Then, json};
use super::{Executor, Kubeconfig, run, until};
use crate::agent::clock;

const PODS: &str = "GET /api/v1/pods";

fn list(version: &str, names: &[&str]) -> Reply {
    let items: Vec<_> = names
        .iter()
        .map(|name| format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"1"}}}}"#))
        .collect();
    let items = items.join(",");
    json(
        200,
        &format!(r#"{{"metadata":{{"resourceVersion":"{version}"}},"items":[{items}]}}"#),
    )
}

fn line(kind: &str, name: &str, version: &str) -> Then {
    let object = format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"{version}"}}}}"#);
    Then::Send(format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n").into_bytes())
}

/// Runs a watch of Pods through these replies and gives what was told, until `count` words were.
async fn told(executor: &Executor, replies: Vec<Reply>, count: usize) -> (Vec<String>, Server) {
    let authority = Authority::new();
    let server = Server::tls(executor, &authority).await;
    server.on(PODS, replies);
    let kubeconfig = Kubeconfig::new();
    kubeconfig.write(&server, &authority, "{token: t}");
    let client = kubeconfig.client(executor);
    let words: Rc<RefCell<Vec<String>>> = Rc::default();
    let heard = Rc::clone(&words);
    let task = executor.spawn(async move {
        let watch = Watch::<HeadOnly>::heads("/api/v1/pods");
        watch
            .run(&client, |event| {
                let word = match event {
                    Event::Restarted => "restarted".to_owned(),
                    Event::Added(pod) => format!("+{}", pod.metadata.name),
                    Event::Modified(pod) => format!("~{}", pod.metadata.name),
                    Event::Deleted(pod) => format!("-{}", pod.metadata.name),
                    Event::Synced => "synced".to_owned(),
                    Event::Failed(error) => format!("failed {error}"),
                };
                heard.borrow_mut().push(word);
            })
            .await
    });
    until("everything is told", || words.borrow().len() >= count).await;
    drop(task);
    let words = words.borrow().clone();
    (words, server)
}

#[test]
fn a_watch_lists_then_follows_and_ends_with_its_owner() {
    run(|executor| async move {
        let live = Reply::Answer(
            200,
            vec![
                line("ADDED", "c", "11"),
                line("DELETED", "a", "12"),
                Then::Hang,
            ],
        );
        let (words, server) = told(&executor, vec![list("10", &["a", "b"]), live], 6).await;
        assert_eq!(words, ["restarted", "+a", "+b", "synced", "+c", "-a"]);
        let seen = server.seen();
        assert!(
            seen[1].uri.contains("resourceVersion=10"),
            "{}",
            seen[1].uri
        );
        assert!(
            seen[1].uri.contains("allowWatchBookmarks=true"),
            "{}",
            seen[1].uri
        );
        until("the connections are closed", || server.open() == 0).await;
    });
}

#[test]
fn a_cut_watch_goes_on_from_the_last_bookmark() {
    run(|executor| async move {
        let cut = Reply::Answer(
            200,
            vec![
                line("ADDED", "c", "11"),
                line("BOOKMARK", "", "20"),
                Then::Send(b"{\"type\":\"ADD".to_vec()),
                Then::Breathe,
                Then::Cut,
            ],
        );
        let live = Reply::Answer(200, vec![line("MODIFIED", "c", "21"), Then::Hang]);
        let (words, server) = told(&executor, vec![list("10", &[]), cut, live], 4).await;
        assert_eq!(words, ["restarted", "synced", "+c", "~c"]);
        assert!(server.seen()[2].uri.contains("resourceVersion=20"));
    });
}

#[test]
fn a_forgotten_past_is_listed_again() {
    run(|executor| async move {
        let expired =
            r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}"#;
        let in_line = Reply::Answer(200, vec![Then::Send(format!("{expired}\n").into_bytes())]);
        let in_head = json(410, r#"{"kind":"Status","code":410,"reason":"Expired"}"#);
        let live = Reply::Answer(200, vec![Then::Hang]);
        let replies = vec![
            list("10", &["a"]),
            in_line,
            list("30", &["b"]),
            in_head,
            list("40", &["c"]),
            live,
        ];
        let (words, _server) = told(&executor, replies, 9).await;
        let wanted = [
            "restarted",
            "+a",
            "synced",
            "restarted",
            "+b",
            "synced",
            "restarted",
            "+c",
            "synced",
        ];
        assert_eq!(words, wanted);
    });
}

#[test]
fn nonsense_is_told_and_listed_again() {
    run(|executor| async move {
        let nonsense = Reply::Answer(200, vec![Then::Send(b"<html>busy</html>\n".to_vec())]);
        let live = Reply::Answer(200, vec![Then::Hang]);
        let replies = vec![list("10", &[]), nonsense, list("20", &["a"]), live];
        let (words, _server) = told(&executor, replies, 6).await;
        assert!(
            words[2].starts_with("failed WATCH /api/v1/pods"),
            "{words:?}"
        );
        assert_eq!(words[3..], ["restarted", "+a", "synced"]);
    });
}

#[test]
fn a_refused_watch_is_tried_again_from_where_it_was() {
    run(|executor| async move {
        let live = Reply::Answer(200, vec![line("ADDED", "a", "11"), Then::Hang]);
        let replies = vec![list("10", &[]), json(503, "later"), live];
        let (words, server) = told(&executor, replies, 4).await;
        assert_eq!(words[0..2], ["restarted", "synced"]);
        assert!(words[2].contains("503"), "{words:?}");
        assert_eq!(words[3], "+a");
        assert!(server.seen()[2].uri.contains("resourceVersion=10"));
    });
}

/// Watches Pods; counts the failures, and says when the list was complete.
fn watched(executor: &Executor, client: Client) -> (Rc<Cell<u32>>, Rc<Cell<bool>>, Task<()>) {
    let failed: Rc<Cell<u32>> = Rc::default();
    let synced: Rc<Cell<bool>> = Rc::default();
    let (fails, syncs) = (Rc::clone(&failed), Rc::clone(&synced));
    let task = executor.spawn(async move {
        let watch = Watch::<HeadOnly>::heads("/api/v1/pods");
        watch
            .run(&client, |event| match event {
                Event::Failed(_) => fails.set(fails.get() + 1),
                Event::Synced => syncs.set(true),
                Event::Restarted | Event::Added(_) | Event::Modified(_) | Event::Deleted(_) => {}
            })
            .await
    });
    (failed, synced, task)
}

#[test]
fn a_cluster_that_came_later_is_watched_at_once() {
    run(|executor| async move {
        let authority = Authority::new();
        let server = Server::tls(&executor, &authority).await;
        server.on(PODS, [list("10", &[])]);
        server.on("GET /version", [json(200, "{}")]);
        let kubeconfig = Kubeconfig::new();
        let client = kubeconfig.client(&executor);
        let (failed, synced, _task) = watched(&executor, client.clone());
        // It waits for some eight seconds then, and for a minute in the end.
        until("there is no cluster", || failed.get() == 4).await;
        kubeconfig.write(&server, &authority, "{token: t}");
        let came = clock();
        client.version().await.unwrap();
        until("the list is complete", || synced.get()).await;
        assert!(clock().duration_since(came) < Duration::from_secs(2));
    });
}

#[test]
fn an_api_server_that_answers_again_and_refuses_at_first_is_asked_again_at_once() {
    run(|executor| async move {
        let authority = Authority::new();
        let server = Server::tls(&executor, &authority).await;
        let refused = || json(503, "later");
        server.on(PODS, [refused(), refused(), refused(), list("10", &[])]);
        let kubeconfig = Kubeconfig::new();
        kubeconfig.write(&server, &authority, "{token: t}");
        let client = kubeconfig.client(&executor);
        let heard = client.heard();
        let (failed, synced, _task) = watched(&executor, client);
        until("it is refused twice", || failed.get() == 2).await;
        // It waits for two seconds now, and would for four after another refusal.
        heard.try_again();
        let again = clock();
        until("it is refused once more", || failed.get() == 3).await;
        until("it is answered", || synced.get()).await;
        assert!(clock().duration_since(again) < Duration::from_secs(3));
    });
}
