//! A server that is told, over real HTTP.

#![expect(
    clippy::disallowed_types,
    reason = "the server of a test runs in a thread of its own"
)]

use std::{
    cell::RefCell,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    rc::Rc,
    sync::{Arc, Mutex},
};

use smol::{block_on, future::or};

use super::*;
use crate::{
    core::{
        secret::Secret,
        time::{Mono, Wall},
    },
    executor::Executor,
    host::clock,
    net::{dial::Dialer, proxy::Proxies, target::Target},
    outside::{
        post::{Address, HttpClient},
        transport::Transport,
    },
    store::Store,
};

/// A request as it arrived: its head and its body.
type Arrived = Arc<Mutex<Vec<(String, String)>>>;

/// A server that gives these answers one after the other, the last one for ever.
#[expect(
    clippy::disallowed_methods,
    reason = "a server of a test blocks in a thread of its own"
)]
fn server(answers: &'static [&'static str]) -> (u16, Arrived) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let arrived = Arrived::default();
    let shared = Arc::clone(&arrived);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream);
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) <= 2 {
                    break;
                }
                let lower = line.to_ascii_lowercase();
                if let Some(text) = lower.strip_prefix("content-length:") {
                    length = text.trim().parse().unwrap();
                }
                head.push_str(&line);
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let mut arrived = shared.lock().unwrap();
            let answer = answers[arrived.len().min(answers.len() - 1)];
            arrived.push((head, String::from_utf8(body).unwrap()));
            drop(arrived);
            let text = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n");
            reader.get_mut().write_all(text.as_bytes()).ok();
        }
    });
    (port, arrived)
}

/// Runs the task beside `work`, with steps of milliseconds instead of seconds.
fn beside(port: u16, reader: ReceiverKind, work: &impl AsyncFn(&SharedState, &store::Handle)) {
    let directory = tempfile::tempdir().unwrap();
    let executor = Rc::new(Executor::new());
    block_on(executor.run(async {
        let path = directory.path().join("state");
        let (store, _) = Store::open(&path, Wall::default()).await.unwrap();
        let handle = store.handle();
        let shared_state = SharedState::new(clock::now);
        let dependencies = NotifyDependencies {
            receiver: NotifyClient(HttpClient {
                address: Address {
                    target: Target::new("127.0.0.1", port),
                    path: "/hook?a=b".to_owned(),
                    host: format!("127.0.0.1:{port}"),
                },
                transport: Transport {
                    dialer: Dialer::default(),
                    proxies: Proxies::default(),
                    tls: None,
                    user_agent: "pipeops-agent/test".to_owned(),
                    clock: || Mono::since_boot(Duration::ZERO),
                },
                answer_within: Duration::from_secs(20),
                line: RefCell::default(),
            }),
            reader,
            wanted: Wanted {
                minimum: Severity::Warning,
                quiet: None,
                settle: Duration::from_millis(50),
            },
            authorization: &|| {
                let secret = Secret::new("Bearer of-a-file".to_owned());
                Box::pin(std::future::ready(Ok(Some(secret))))
            },
            notified: None,
            store: store.handle(),
            host: "edge".to_owned(),
            shared_state: &shared_state,
            poll_interval: Duration::from_millis(10),
        };
        let reporting = async {
            run(dependencies).await;
        };
        or(work(&shared_state, &handle), reporting).await;
        store.close().await.unwrap();
    }));
}

/// Waits until so many requests have arrived.
async fn until(arrived: &Arrived, count: usize) {
    let deadline = clock::now().mono.after(Duration::from_secs(60));
    while arrived.lock().unwrap().len() < count {
        assert!(
            clock::now().mono < deadline,
            "{count} requests did not arrive"
        );
        smol::Timer::after(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_condition_is_told_as_it_begins_and_ends_and_kept_for_the_next_start() {
    let (port, arrived) = server(&["204 No Content"]);
    beside(port, ReceiverKind::Webhook, &async |shared_state, _| {
        shared_state.report(
            "disk.full",
            Severity::Critical,
            "the disk is full",
            Some("make room".to_owned()),
        );
        shared_state.report("cluster.none", Severity::Note, "no cluster", None);
        until(&arrived, 1).await;
        shared_state.clear("disk.full");
        until(&arrived, 2).await;
    });
    let arrived = arrived.lock().unwrap();
    let (head, body) = &arrived[0];
    assert!(head.starts_with("POST /hook?a=b HTTP/1.1\r\n"), "{head}");
    let lower = head.to_ascii_lowercase();
    assert!(
        lower.contains("authorization: bearer of-a-file\r\n"),
        "{head}"
    );
    assert!(
        lower.contains("content-type: application/json\r\n"),
        "{head}"
    );
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["text"], "critical: the disk is full\n  fix: make room");
    assert_eq!(body["conditions"].as_array().unwrap().len(), 1);
    let body: serde_json::Value = serde_json::from_str(&arrived[1].1).unwrap();
    assert_eq!(body["conditions"][0]["change"], "ended");
    assert_eq!(body["severity"], serde_json::Value::Null);
}

#[test]
fn a_receiver_that_refuses_is_a_condition_and_is_asked_again() {
    let (port, arrived) = server(&["403 Forbidden", "200 OK"]);
    beside(port, ReceiverKind::Ntfy, &async |shared_state, _| {
        shared_state.report("disk.full", Severity::Warning, "the disk is full", None);
        until(&arrived, 1).await;
        let deadline = clock::now().mono.after(Duration::from_secs(30));
        let holds = || shared_state.with_conditions(|all| all.get(UNREACHED).cloned());
        while holds().is_none() {
            assert!(clock::now().mono < deadline, "no condition");
            smol::Timer::after(Duration::from_millis(5)).await;
        }
        let fix = holds().unwrap().fix.unwrap();
        assert!(fix.contains("notify.token_file"), "{fix}");
        // The first pause is ten seconds.
        until(&arrived, 2).await;
        while holds().is_some() {
            assert!(clock::now().mono < deadline, "the condition stays");
            smol::Timer::after(Duration::from_millis(5)).await;
        }
    });
    let arrived = arrived.lock().unwrap();
    let (head, body) = &arrived[1];
    assert!(
        head.to_ascii_lowercase().contains("\r\npriority: 3\r\n"),
        "{head}"
    );
    assert!(
        body.starts_with("warning: the disk is full\nNo notification could be sent for "),
        "{body}"
    );
    assert!(!body.contains("do not reach"), "{body}");
}

#[test]
fn the_offset_of_the_local_time_is_read_as_date_prints_it() {
    for (text, minutes) in [
        ("+0000", 0),
        ("+0530", 330),
        ("-0330", -210),
        ("+1345", 825),
    ] {
        assert_eq!(offset_minutes(text), Some(minutes));
    }
    for text in ["", "Z", "0530", "+5", "+ab00", "+05:30"] {
        assert_eq!(offset_minutes(text), None, "{text}");
    }
}

#[test]
fn the_minute_of_the_day_is_the_one_that_date_shows() {
    let minute = block_on(Offset::default().minute(clock::now()));
    assert!(minute < 1440);
}
