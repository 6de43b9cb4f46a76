//! The client against a server: identities, connections, deadlines, and what changes on disk.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Method, Request};
use pipeops_agent::core::secret::Secret;
use pipeops_agent::error::Retry;
use pipeops_agent::kube::{Body, Client, Detail, Error, Identity, Upgraded};
use pipeops_agent::net::{ErrorKind, Phase};
use pipeops_agent::wire::kube::HeadOnly;

use super::certificates::{Authority, Valid};
use super::server::{Reply, Server, Then, json};
use super::{Executor, Kubeconfig, SOON, certificate_user, run, until};

const VERSION: &str = r#"{"major":"1","gitVersion":"v1.34.4+k3s1"}"#;

async fn set_up(executor: &Executor) -> (Server, Authority, Kubeconfig, Client) {
    let authority = Authority::new();
    let server = Server::tls(executor, &authority).await;
    server.on("GET /version", [json(200, VERSION)]);
    let kubeconfig = Kubeconfig::new();
    kubeconfig.write(&server, &authority, &certificate_user(&authority));
    let client = kubeconfig.client(executor);
    (server, authority, kubeconfig, client)
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

#[test]
fn a_call_is_answered_and_its_connection_used_again() {
    run(|executor| async move {
        let (server, _authority, _kubeconfig, client) = set_up(&executor).await;
        for _ in 0..5 {
            assert_eq!(client.version().await.unwrap(), "v1.34.4+k3s1");
        }
        let connections: Vec<_> = server.seen().iter().map(|seen| seen.connection).collect();
        assert_eq!(connections, [0, 0, 0, 0, 0]);
        assert_eq!(client.open_connections(), 1);
    });
}

#[test]
fn only_the_agent_shows_the_certificate_and_nobody_else_its_token() {
    run(|executor| async move {
        let (server, authority, kubeconfig, _) = set_up(&executor).await;
        let user = certificate_user(&authority).replace('}', ", token: own}");
        kubeconfig.write(&server, &authority, &user);
        let client = kubeconfig.client(&executor);
        for identity in [
            Identity::Agent,
            Identity::Bearer(Secret::new("handed")),
            Identity::Anonymous,
            Identity::Agent,
        ] {
            let mut request = get("/version");
            request
                .headers_mut()
                .insert(AUTHORIZATION, "Bearer smuggled".parse().unwrap());
            request
                .headers_mut()
                .insert(HOST, "elsewhere".parse().unwrap());
            let response = client.send(request, &identity, SOON).await.unwrap();
            response.into_body().collect().await.unwrap();
        }
        let seen = server.seen();
        let shown: Vec<_> = seen
            .iter()
            .map(|seen| (seen.certificate, seen.header("authorization")))
            .collect();
        let wanted = [
            (true, Some("Bearer own")),
            (false, Some("Bearer handed")),
            (false, None),
            (true, Some("Bearer own")),
        ];
        assert_eq!(shown, wanted);
        let host = server.address().to_string();
        assert!(seen.iter().all(|seen| seen.header("host") == Some(&host)));
        // The foreign identities share connections; the agent's are its own.
        assert_eq!(client.open_connections(), 2);
    });
}

#[test]
fn dropping_an_answer_closes_its_connection() {
    run(|executor| async move {
        let (server, _authority, _kubeconfig, client) = set_up(&executor).await;
        let endless = Reply::Answer(200, vec![Then::Send(b"line\n".to_vec()), Then::Hang]);
        server.on("GET /log", [endless]);
        let response = client
            .send(get("/log"), &Identity::Agent, SOON)
            .await
            .unwrap();
        let mut body = response.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first, "line\n");
        assert_eq!(server.open(), 1);
        drop(body);
        until("the server sees the end", || server.open() == 0).await;
        until("the client has let go", || client.open_connections() == 0).await;
    });
}

#[test]
fn a_call_that_is_not_answered_ends_at_its_deadline_and_lets_go() {
    run(|executor| async move {
        let (server, _authority, _kubeconfig, client) = set_up(&executor).await;
        server.on("GET /slow", [Reply::Silence]);
        let limit = Duration::from_millis(300);
        let error = client
            .send(get("/slow"), &Identity::Agent, limit)
            .await
            .unwrap_err();
        assert!(error.is_deadline(), "{error}");
        assert!(error.to_string().contains("GET /slow"), "{error}");
        until("the connection is closed", || server.open() == 0).await;
    });
}

#[test]
fn an_answer_cut_in_the_middle_is_an_error_and_not_an_end() {
    run(|executor| async move {
        let (server, _authority, _kubeconfig, client) = set_up(&executor).await;
        let cut = Reply::Answer(
            200,
            vec![Then::Send(b"half".to_vec()), Then::Breathe, Then::Cut],
        );
        server.on("GET /half", [cut]);
        let response = client
            .send(get("/half"), &Identity::Agent, SOON)
            .await
            .unwrap();
        assert!(response.into_body().collect().await.is_err());
        let error = client.get::<HeadOnly>("/half").await.unwrap_err();
        assert!(matches!(error, Error::Broken { .. }), "{error}");
        until("nothing stays open", || client.open_connections() == 0).await;
    });
}

#[test]
fn a_connection_that_died_in_the_pool_is_replaced() {
    run(|executor| async move {
        let (server, _authority, _kubeconfig, client) = set_up(&executor).await;
        client.version().await.unwrap();
        server.cut();
        client.version().await.unwrap();
        // Closed in the very moment of the request: answered by nobody, so asked again.
        server.on("GET /version", [Reply::Close, json(200, VERSION)]);
        client.version().await.unwrap();
        let connections: Vec<_> = server.seen().iter().map(|seen| seen.connection).collect();
        assert_eq!(connections, [0, 1, 1, 2]);
    });
}

#[test]
fn a_write_that_may_have_happened_is_not_sent_again() {
    run(|executor| async move {
        let (server, _authority, _kubeconfig, client) = set_up(&executor).await;
        client.version().await.unwrap();
        server.on("POST /objects", [Reply::Close]);
        server.on("DELETE /objects/a", [Reply::Close]);
        let request = Request::post("/objects").body(Body::full("{}")).unwrap();
        let error = client
            .send(request, &Identity::Agent, SOON)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Broken { .. }), "{error}");
        client.version().await.unwrap();
        assert!(client.delete("/objects/a").await.is_err());
        let writes = server
            .seen()
            .iter()
            .filter(|seen| seen.uri != "/version")
            .count();
        assert_eq!(writes, 2);
    });
}

#[test]
fn a_large_body_streams_both_ways() {
    run(|executor| async move {
        let (server, _authority, _kubeconfig, client) = set_up(&executor).await;
        let large = vec![7_u8; 3 << 20];
        let parts = large
            .chunks(100_000)
            .map(|chunk| Then::Send(chunk.to_vec()))
            .collect();
        server.on("POST /large", [Reply::Answer(200, parts)]);
        let request = Request::post("/large")
            .body(Body::full(large.clone()))
            .unwrap();
        let response = client
            .send(request, &Identity::Anonymous, SOON)
            .await
            .unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(body == large && server.seen()[0].body == large);
    });
}

#[test]
fn what_the_api_says_comes_back_as_an_error_with_its_words() {
    run(|executor| async move {
        let (server, _authority, _kubeconfig, client) = set_up(&executor).await;
        let gone = client.get::<HeadOnly>("/nowhere").await.unwrap_err();
        assert!(gone.is_not_found(), "{gone}");
        server.on("GET /broken", [json(200, "{\"metadata\":")]);
        let error = client.get::<HeadOnly>("/broken").await.unwrap_err();
        assert!(matches!(error, Error::Undecodable { .. }), "{error}");
        let many = Reply::Answer(200, vec![Then::Send(vec![b' '; 5 << 20])]);
        server.on("GET /endless", [many]);
        let error = client.get::<HeadOnly>("/endless").await.unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. }), "{error}");
        server.on("GET /unauthorized", [json(403, "no")]);
        let error = client.get::<HeadOnly>("/unauthorized").await.unwrap_err();
        let told = pipeops_agent::error::Error::from(&error);
        assert!(told.fix.is_some() && told.retry == Retry::Later, "{told}");
    });
}

#[test]
fn a_renewed_token_is_used_without_a_restart() {
    run(|executor| async move {
        let (server, authority, kubeconfig, _) = set_up(&executor).await;
        let token = kubeconfig.path().with_file_name("token");
        super::put(&token, "old\n");
        kubeconfig.write(&server, &authority, "{tokenFile: token}");
        let client = kubeconfig.client(&executor);
        client.version().await.unwrap();
        super::put(&token, "renewed\n");
        server.on("GET /version", [json(401, "{}"), json(200, VERSION)]);
        // A refusal is a reason to look at the files, but not more than once a second.
        let renewed = || async { client.version().await.is_ok() };
        while !renewed().await {
            server.on("GET /version", [json(401, "{}"), json(200, VERSION)]);
        }
        let last = server.seen().pop().unwrap();
        assert_eq!(last.header("authorization"), Some("Bearer renewed"));
    });
}

#[test]
fn a_cluster_installed_anew_is_believed_after_its_kubeconfig_is_rewritten() {
    run(|executor| async move {
        let (server, _old, kubeconfig, client) = set_up(&executor).await;
        client.version().await.unwrap();
        let new = Authority::new();
        server.show(new.server(Valid::Now));
        server.cut();
        let error = client.version().await.unwrap_err();
        let Error::Connection(why) = &error else {
            panic!("{error}");
        };
        assert_eq!(
            (why.phase, &why.kind),
            (Phase::Tls, &ErrorKind::UnknownIssuer)
        );
        kubeconfig.write(&server, &new, &certificate_user(&new));
        while client.version().await.is_err() {}
        assert!(server.seen().pop().unwrap().certificate);
    });
}

#[test]
fn a_cluster_may_come_later_and_a_half_written_file_changes_nothing() {
    run(|executor| async move {
        let authority = Authority::new();
        let server = Server::tls(&executor, &authority).await;
        server.on("GET /version", [json(200, VERSION)]);
        let kubeconfig = Kubeconfig::new();
        let client = kubeconfig.client(&executor);
        let error = client.version().await.unwrap_err();
        assert!(
            matches!(&error, Error::Unconfigured(told) if told.fix.is_some()),
            "{error}"
        );
        kubeconfig.write(&server, &authority, "{token: t}");
        client.version().await.unwrap();
        super::put(&kubeconfig.path(), "clusters: [");
        server.on("GET /version", [json(401, "{}"), json(200, VERSION)]);
        assert!(client.version().await.is_err());
        client.version().await.unwrap();
    });
}

#[test]
fn a_certificate_out_of_its_time_is_told_apart() {
    run(|executor| async move {
        let (server, authority, _kubeconfig, client) = set_up(&executor).await;
        for (valid, word) in [
            (Valid::Ended, "expired"),
            (Valid::Later, "not valid before"),
        ] {
            server.show(authority.server(valid));
            let error = client.version().await.unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    });
}

#[test]
fn a_long_list_comes_page_by_page() {
    run(|executor| async move {
        let (server, _authority, _kubeconfig, client) = set_up(&executor).await;
        let page = |names: &[&str], next: &str| {
            let items: Vec<_> = names
                .iter()
                .map(|name| format!(r#"{{"metadata":{{"name":"{name}"}}}}"#))
                .collect();
            let text = format!(
                r#"{{"metadata":{{"resourceVersion":"7","continue":"{next}"}},"items":[{}]}}"#,
                items.join(",")
            );
            json(200, &text)
        };
        server.on(
            "GET /api/v1/pods",
            [page(&["a", "b"], "x+/="), page(&["c"], "")],
        );
        let mut names = Vec::new();
        let version = client
            .list("/api/v1/pods", Detail::Head, |object: HeadOnly| {
                names.push(object.metadata.name)
            })
            .await
            .unwrap();
        assert_eq!((names.join(""), version.as_str()), ("abc".to_owned(), "7"));
        let seen = server.seen();
        assert_eq!(seen[1].uri, "/api/v1/pods?limit=500&continue=x%2B%2F%3D");
        assert!(
            seen[0]
                .header("accept")
                .unwrap()
                .contains("PartialObjectMetadataList")
        );
        // A server that always names a next page does not keep us for ever.
        server.on("GET /api/v1/pods", [page(&["a"], "again")]);
        let endless = client
            .list("/api/v1/pods", Detail::Head, |_: HeadOnly| {})
            .await;
        assert!(endless.is_err());
    });
}

#[test]
fn an_upgrade_gives_the_raw_stream_or_the_answer() {
    run(|executor| async move {
        let (server, _authority, _kubeconfig, client) = set_up(&executor).await;
        server.on("GET /exec", [Reply::Echo]);
        let ask = |path: &str| {
            Request::builder()
                .method(Method::GET)
                .uri(path)
                .header("upgrade", "websocket")
                .header("connection", "Upgrade, X-Nominated")
                .header("x-nominated", "1")
                .body(Body::empty())
                .unwrap()
        };
        let answer = client
            .upgrade(ask("/exec"), &Identity::Agent, SOON)
            .await
            .unwrap();
        let Upgraded::Switched(head, stream) = answer else {
            panic!("not switched");
        };
        assert_eq!(head.status, 101);
        let seen = server.seen().pop().unwrap();
        assert_eq!(seen.header("connection"), Some("Upgrade"));
        assert_eq!(seen.header("x-nominated"), None);
        drop(stream);
        until("the server sees the end", || server.open() == 0).await;
        let answer = client
            .upgrade(ask("/none"), &Identity::Agent, SOON)
            .await
            .unwrap();
        let Upgraded::Refused(response) = answer else {
            panic!("switched");
        };
        assert_eq!(response.status(), 404);
        assert!(response.into_body().collect().await.is_ok());
        let without = client.upgrade(get("/exec"), &Identity::Agent, SOON).await;
        assert!(matches!(without, Err(Error::BadRequest(_))));
        let mut tunnel = get("/exec");
        *tunnel.method_mut() = Method::CONNECT;
        let tunnel = client.send(tunnel, &Identity::Agent, SOON).await;
        assert!(matches!(tunnel, Err(Error::BadRequest(_))));
    });
}
