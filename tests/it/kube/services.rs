//! Services: from the name to a Pod, HTTP and WebSockets to it, and WebSockets to the API server.

use std::time::Duration;

use async_tungstenite::tungstenite::Message;
use http_body_util::BodyExt;
use hyper::Request;
use hyper::header::HeaderMap;
use pipeops_agent::kube::services::{self, Address, Pod, Scheme};
use pipeops_agent::kube::socket::{self, Ask, Opened, Socket};
use pipeops_agent::kube::{Body, Client, Error, Identity};
use smol::stream::StreamExt;

use super::certificates::Authority;
use super::server::{Reply, Server, json};
use super::{Executor, Kubeconfig, SOON, run, until};

async fn set_up(executor: &Executor) -> (Server, Kubeconfig, Client) {
    let authority = Authority::new();
    let server = Server::tls(executor, &authority).await;
    let kubeconfig = Kubeconfig::new();
    kubeconfig.write(&server, &authority, "{token: t}");
    let client = kubeconfig.client(executor);
    (server, kubeconfig, client)
}

fn at(server: &Server) -> Address {
    Address {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        port: 80,
        pods: vec![Pod {
            name: "web-1".to_owned(),
            address: server.address(),
        }],
        forward_as: None,
    }
}

#[test]
fn a_service_is_found_by_its_name_and_why_not_is_said() {
    run(|executor| async move {
        let (server, _kubeconfig, client) = set_up(&executor).await;
        server.on(
            "GET /api/v1/namespaces/shop/services/web",
            [json(200, r#"{"spec":{"type":"ClusterIP","clusterIP":"None","ports":[{"port":80,"name":"http"}]}}"#)],
        );
        let slices = "GET /apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
        let slice = |ready: bool| {
            json(
                200,
                &format!(
                    r#"{{"metadata":{{}},"items":[{{"addressType":"IPv4","ports":[{{"name":"http","port":8080,"protocol":"TCP"}}],"endpoints":[{{"addresses":["10.42.0.9"],"conditions":{{"ready":{ready}}},"targetRef":{{"kind":"Pod","namespace":"shop","name":"web-1"}}}}]}}]}}"#
                ),
            )
        };
        server.on(slices, [slice(true), slice(false)]);
        let address = client.service("shop", "web", 80).await.unwrap();
        let pod = Pod {
            name: "web-1".to_owned(),
            address: "10.42.0.9:8080".parse().unwrap(),
        };
        assert_eq!(address.pods, vec![pod]);
        let asked = server.seen().pop().unwrap().uri;
        assert!(
            asked.contains("labelSelector=kubernetes.io%2Fservice-name%3Dweb"),
            "{asked}"
        );
        for (result, wanted) in [
            (
                client.service("shop", "web", 80).await,
                "its Pod is not ready",
            ),
            (
                client.service("shop", "web", 81).await,
                "it has no TCP port 81",
            ),
            (
                client.service("shop", "none", 80).await,
                "there is no such service",
            ),
        ] {
            let Err(Error::Service { why, fix, .. }) = result else {
                panic!("{result:?}");
            };
            assert_eq!(why, wanted);
            assert!(!fix.is_empty());
        }
        let hostile = client.service("shop", "web/../../nodes", 80).await;
        assert!(matches!(hostile, Err(Error::BadRequest(_))));
    });
}

#[test]
fn a_service_gets_the_callers_headers_and_its_own_name() {
    run(|executor| async move {
        let (_api, _kubeconfig, client) = set_up(&executor).await;
        let pod = Server::start(&executor, None).await;
        pod.on("POST /login", [json(302, "moved")]);
        let ask = || {
            Request::post("/login?x=1&flag")
                .header("authorization", "Basic abc")
                .header("cookie", "a=b")
                .header("connection", "close")
                .body(Body::full("name=x"))
                .unwrap()
        };
        let answer = services::send(&client, &at(&pod), Scheme::Plain, ask(), SOON)
            .await
            .unwrap();
        assert_eq!(answer.status(), 302);
        assert_eq!(
            answer.into_body().collect().await.unwrap().to_bytes(),
            "moved"
        );
        let mut named = ask();
        named
            .headers_mut()
            .insert("host", "shop.example".parse().unwrap());
        services::send(&client, &at(&pod), Scheme::Plain, named, SOON)
            .await
            .unwrap();
        let seen = pod.seen();
        assert_eq!(
            (seen[0].uri.as_str(), seen[0].body.as_slice()),
            ("/login?x=1&flag", b"name=x".as_slice())
        );
        assert_eq!(seen[0].header("host"), Some("web.shop.svc:80"));
        assert_eq!(seen[1].header("host"), Some("shop.example"));
        assert_eq!(
            (seen[0].header("authorization"), seen[0].header("cookie")),
            (Some("Basic abc"), Some("a=b"))
        );
        until("no connection stays", || {
            pod.open() == 0 && client.open_connections() == 0
        })
        .await;
    });
}

#[test]
fn a_service_with_a_certificate_of_nobody_is_reached_by_tls() {
    run(|executor| async move {
        let (_api, _kubeconfig, client) = set_up(&executor).await;
        let pod = Server::tls(&executor, &Authority::new()).await;
        pod.on("GET /", [json(200, "hello")]);
        let ask = Request::get("/").body(Body::empty()).unwrap();
        let answer = services::send(&client, &at(&pod), Scheme::Tls, ask, SOON)
            .await
            .unwrap();
        assert_eq!(
            answer.into_body().collect().await.unwrap().to_bytes(),
            "hello"
        );
        let plain = Server::start(&executor, None).await;
        let ask = Request::get("/").body(Body::empty()).unwrap();
        let error = services::send(&client, &at(&plain), Scheme::Tls, ask, SOON)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::Service { fix, .. } if fix.contains("scheme http")),
            "{error}"
        );
    });
}

#[test]
fn a_silent_pod_is_given_up_at_the_deadline() {
    run(|executor| async move {
        let (_api, _kubeconfig, client) = set_up(&executor).await;
        let pod = Server::start(&executor, None).await;
        pod.on("GET /", [Reply::Silence]);
        let ask = Request::get("/").body(Body::empty()).unwrap();
        let limit = Duration::from_millis(300);
        let error = services::send(&client, &at(&pod), Scheme::Plain, ask, limit)
            .await
            .unwrap_err();
        assert!(error.is_deadline(), "{error}");
        until("the connection is closed", || pod.open() == 0).await;
    });
}

async fn echoed(socket: &mut Socket, message: Message) {
    socket.messages.send(message.clone()).await.unwrap();
    assert_eq!(socket.messages.next().await.unwrap().unwrap(), message);
}

/// A WebSocket to a service, or to the API server.
async fn opened(
    client: &Client,
    service: Option<(&Address, Scheme)>,
    protocols: &[String],
) -> Box<Socket> {
    let ask = Ask {
        path: "/ws?x=1",
        headers: HeaderMap::new(),
        protocols,
    };
    let opened = match service {
        Some(service) => services::open_socket(client, service, ask, SOON).await,
        None => socket::open(client, &Identity::Agent, ask, SOON).await,
    };
    match opened.unwrap() {
        Opened::Open(socket) => socket,
        Opened::Refused(response) => panic!("refused: {}", response.status()),
    }
}

#[test]
fn messages_go_both_ways_to_the_api_and_to_services() {
    run(|executor| async move {
        let (api, _kubeconfig, client) = set_up(&executor).await;
        let plain = Server::start(&executor, None).await;
        let tls = Server::tls(&executor, &Authority::new()).await;
        for server in [&api, &plain, &tls] {
            server.on("GET /ws", [Reply::Echo]);
        }
        let protocols = [
            "v5.channel.k8s.io".to_owned(),
            "v4.channel.k8s.io".to_owned(),
        ];
        let (at_plain, at_tls) = (at(&plain), at(&tls));
        for service in [
            None,
            Some((&at_plain, Scheme::Plain)),
            Some((&at_tls, Scheme::Tls)),
        ] {
            let mut socket = opened(&client, service, &protocols).await;
            assert_eq!(socket.protocol.as_deref(), Some("v5.channel.k8s.io"));
            echoed(&mut socket, Message::text("hello")).await;
            echoed(&mut socket, Message::binary(vec![9; 300_000])).await;
        }
        until("all are closed", || {
            api.open() + plain.open() + tls.open() == 0
        })
        .await;
    });
}

#[test]
fn a_refused_websocket_comes_back_with_its_answer() {
    run(|executor| async move {
        let (api, _kubeconfig, client) = set_up(&executor).await;
        api.on("GET /ws", [json(403, "no")]);
        let ask = Ask {
            path: "/ws",
            headers: HeaderMap::new(),
            protocols: &[],
        };
        let answer = socket::open(&client, &Identity::Anonymous, ask, SOON)
            .await
            .unwrap();
        let Opened::Refused(response) = answer else {
            panic!("open");
        };
        assert_eq!(response.status(), 403);
        assert_eq!(
            response.into_body().collect().await.unwrap().to_bytes(),
            "no"
        );
    });
}
