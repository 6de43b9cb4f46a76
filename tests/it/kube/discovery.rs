//! Hostile answers of aggregated APIs to discovery.

use pipeops_agent::{core::apps::discovered, error::Retry, tasks::apps::custom::resources};

use super::certificates::Authority;
use super::server::{Reply, Server, Then, json};
use super::{Kubeconfig, certificate_user, run};

const CALL: &str = "GET /apis/example.com/v1";
const API: &str = "example.com/v1";

#[test]
fn what_an_api_says_about_its_resources_is_bounded_in_size_and_depth() {
    run(|executor| async move {
        let authority = Authority::new();
        let server = Server::tls(&executor, &authority).await;
        let kubeconfig = Kubeconfig::new();
        kubeconfig.write(&server, &authority, &certificate_user(&authority));
        let client = kubeconfig.client(&executor);
        let widget = r#"{"name":"widgets","kind":"Widget","namespaced":true}"#;
        let list = |inner: &str| format!(r#"{{"resources":[{inner}]}}"#);
        server.on(CALL, [json(200, &list(widget))]);
        let found = resources(&client, API).await.unwrap();
        let found = discovered(&found, API, "Widget").unwrap();
        assert_eq!(found.name, "widgets.example.com");

        let many = vec![widget; 6_000].join(",");
        let part = Then::Send(vec![b' '; 1 << 20]);
        let endless = vec![part; 64];
        for (reply, why) in [
            (json(200, &list(&many)), "its answer takes 3"),
            (Reply::Answer(200, endless), "larger than"),
            (json(200, &"[".repeat(100_000)), "recursion limit"),
            (json(200, "<html>"), "expected value"),
        ] {
            server.on(CALL, [reply]);
            let refused = resources(&client, API).await.unwrap_err();
            let said = refused.sentence();
            assert!(said.contains(why) && said.len() < 500, "{why}: {said}");
            assert_eq!(
                (refused.retry, refused.fix.is_some()),
                (Retry::Never, true),
                "{said}"
            );
        }
        for (status, retry) in [(404, Retry::Later), (503, Retry::Soon)] {
            server.on(CALL, [json(status, "{}")]);
            let refused = resources(&client, API).await.unwrap_err();
            assert_eq!(refused.retry, retry);
        }
    });
}
