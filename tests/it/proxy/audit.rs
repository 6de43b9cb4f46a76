//! What is written down about proxied calls.

use pipeops_agent::{
    core::{audit::Verdict, policy::Level},
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
        assert_eq!(rows[0].entry.verdict(), Verdict::Permitted);
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
                .all(|row| row.entry.verdict() == Verdict::Refused)
        );
        let sums = store.handle().recent_sums(100).await.unwrap();
        assert_eq!(sums.iter().map(|sum| sum.count).sum::<u64>(), 30);
        store.close().await.unwrap();
    });
}
