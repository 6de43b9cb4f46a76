//! Audit of proxied calls.

use pipeops_agent::{
    core::{audit::AuditDecision, policy::Level},
    host::clock,
    store::Store,
};
use serde_json::json;

use super::bench::{Bench, with_bench};

/// A store of its own directory, and the proxy writing into it.
async fn audited(bench: &mut Bench, level: Level) -> Store {
    let directory = bench.directory().join("state");
    let (store, loaded) = Store::open(directory, clock::now().wall).await.unwrap();
    assert_eq!(loaded.conditions, []);
    bench.audit(level, store.handle());
    store
}

#[test]
fn a_write_is_a_row_before_its_effect_and_a_read_is_summed() {
    with_bench(async |mut bench| {
        let store = audited(&mut bench, Level::Full).await;
        bench.ask("w", json!({"method": "POST", "path": "/api/v1/hang", "query": "token=secret", "body": "hello"}));
        bench
            .until("it reached the server", |bench| {
                bench.seen.requests.get() == 1
            })
            .await;
        let rows = store.handle().recent_audit(10).await.unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].entry.what(), "POST /api/v1/hang");
        assert_eq!(rows[0].entry.decision(), AuditDecision::Permitted);
        assert_eq!(rows[0].entry.why(), "access.level = full");
        assert!(rows[0].ended.is_none());
        bench.say(&json!({"type": "proxy_cancel", "request_id": "w"}));
        bench.until_idle().await;
        for id in ["a", "b"] {
            bench.ask(id, json!({"path": "/api/v1/bytes/500"}));
            bench.expect("proxy_response", id).await;
        }
        bench.until_idle().await;
        bench.proxy.flush_audit().await;
        let rows = store.handle().recent_audit(10).await.unwrap();
        assert_eq!(rows.len(), 1, "reads are no rows");
        let (outcome, effect) = rows[0].ended.clone().unwrap();
        assert_eq!((outcome.as_str(), effect.received_bytes), ("cancelled", 5));
        let sums = store.handle().recent_sums(10).await.unwrap();
        let sum = sums
            .iter()
            .find(|sum| sum.entry.what() == "GET /api/v1/bytes/500")
            .unwrap();
        assert_eq!((sum.count, sum.effect.sent_bytes), (2, 1000));
        store.close().await.unwrap();
    });
}

#[test]
fn what_cannot_be_written_down_does_not_happen() {
    with_bench(async |mut bench| {
        let store = audited(&mut bench, Level::Full).await;
        store.close().await.unwrap();
        bench.ask("w", json!({"method": "DELETE", "path": "/api/v1/echo"}));
        let error = bench.expect("proxy_error", "w").await["error"].clone();
        assert!(error.as_str().unwrap().contains("audit"), "{error}");
        bench.say(&json!({"type": "ws_start", "payload": {"stream_id": "x", "path": "/api/v1/namespaces/a/pods/b/exec"}}));
        bench.expect("proxy_error", "x").await;
        bench.expect("proxy_websocket_close", "x").await;
        assert_eq!(bench.seen.requests.get(), 0);
        bench.until_idle().await;
    });
}

#[test]
fn a_flood_of_refusals_does_not_wear_the_disk_out() {
    with_bench(async |mut bench| {
        let store = audited(&mut bench, Level::Managed).await;
        for number in 0..60 {
            let id = format!("{number}");
            bench.ask(
                &id,
                json!({"method": "DELETE", "path": format!("/api/v1/x{number}")}),
            );
            bench.expect("proxy_error", &id).await;
        }
        bench.proxy.flush_audit().await;
        let rows = store.handle().recent_audit(100).await.unwrap();
        assert_eq!(rows.len(), 30);
        assert!(
            rows.iter()
                .all(|row| row.entry.decision() == AuditDecision::Refused)
        );
        let sums = store.handle().recent_sums(100).await.unwrap();
        assert_eq!(sums.iter().map(|sum| sum.count).sum::<u64>(), 30);
        store.close().await.unwrap();
    });
}

#[test]
fn a_flood_of_reads_hides_no_secret_and_no_way_in() {
    with_bench(async |mut bench| {
        let store = audited(&mut bench, Level::Full).await;
        for number in 1..=72 {
            let id = format!("{number}");
            bench.ask(&id, json!({"path": format!("/api/v1/bytes/{number}")}));
            bench.expect("proxy_response", &id).await;
        }
        let hidden = [
            "/api/v1/namespaces/a/secrets/x",
            "/api/v1/namespaces/a/secrets",
            "/apis/helm.cattle.io/v1/namespaces/a/helmcharts",
            "/api/v1/namespaces/a/pods/b:80/proxy/x",
        ];
        for path in hidden {
            bench.ask(path, json!({"path": path}));
            bench.expect("proxy_response", path).await;
        }
        // The second one to the same Pod within the minute is counted.
        let again = "/api/v1/namespaces/a/pods/b:80/proxy/y";
        bench.ask("again", json!({"path": again}));
        bench.expect("proxy_response", "again").await;
        bench.until_idle().await;
        bench.proxy.flush_audit().await;
        let rows = store.handle().recent_audit(100).await.unwrap();
        let rows: Vec<&str> = rows.iter().rev().map(|row| row.entry.what()).collect();
        let wanted: Vec<String> = hidden.iter().map(|path| format!("GET {path}")).collect();
        assert_eq!(rows, wanted);
        let sums = store.handle().recent_sums(100).await.unwrap();
        let root = "GET /api/v1/namespaces/a/pods/b:80/proxy/";
        let visits = sums.iter().find(|sum| sum.entry.what() == root);
        assert_eq!(visits.map(|sum| sum.count), Some(1), "{sums:?}");
        store.close().await.unwrap();
    });
}

#[test]
fn a_long_read_is_in_the_audit_while_it_runs() {
    with_bench(async |mut bench| {
        let store = audited(&mut bench, Level::Full).await;
        let watch = json!({"path": "/api/v1/watch", "query": "watch=true", "supports_response_streaming": true});
        bench.ask("w", watch);
        bench
            .until("the watch runs", |bench| bench.seen.bodies.get() == 1)
            .await;
        bench.proxy.flush_audit().await;
        let sums = store.handle().recent_sums(10).await.unwrap();
        let counted: Vec<_> = sums
            .iter()
            .map(|sum| (sum.entry.what(), sum.count))
            .collect();
        assert_eq!(counted, [("GET /api/v1/watch?watch=true", 1)]);
        bench.say(&json!({"type": "proxy_cancel", "request_id": "w"}));
        bench.until_idle().await;
        store.close().await.unwrap();
    });
}

#[test]
fn what_the_api_server_rejects_is_not_done() {
    with_bench(async |mut bench| {
        let store = audited(&mut bench, Level::Full).await;
        bench.ask(
            "w",
            json!({"method": "POST", "path": "/api/v1/refused/409"}),
        );
        bench.expect("proxy_response", "w").await;
        bench.until_idle().await;
        bench.proxy.flush_audit().await;
        let rows = store.handle().recent_audit(10).await.unwrap();
        let (outcome, _) = rows[0].ended.clone().unwrap();
        assert_eq!(
            outcome,
            "rejected: the API server answered with HTTP status 409"
        );
        store.close().await.unwrap();
    });
}
