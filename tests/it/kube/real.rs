//! The same client against a real API server, its Pods and its faults: the test cluster of
//! `tests/cluster`.
//!
//! One cluster serves all tests here but those that break it.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use async_tungstenite::tungstenite::Message;
use http_body_util::BodyExt;
use hyper::header::HeaderMap;
use hyper::{Request, StatusCode};
use pipeops_agent::core::secret::Secret;
use pipeops_agent::host::clock;
use pipeops_agent::kube::counts::{Nodes, Pods};
use pipeops_agent::kube::kubeconfig::Source;
use pipeops_agent::kube::services::{self, Scheme};
use pipeops_agent::kube::socket::{self, Ask, Opened};
use pipeops_agent::kube::watch::{Event, Watch};
use pipeops_agent::kube::{Body, Client, Detail, Error, Identity, Patch, Settings};
use pipeops_agent::net::dial::Dialer;
use pipeops_agent::net::proxy::Proxies;
use pipeops_agent::net::{ErrorKind, deadline};
use pipeops_agent::wire::kube::{ConfigMap, HeadOnly, Metadata, Node};
use smol::stream::StreamExt;

use super::{Executor, now_clock};
use crate::accounts::{Accounts, GrantScope};
use crate::cluster::{alone, calm, cluster, must_in};

/// A restart of the API server takes 10 s on two quiet cores.
const WITHIN: Duration = Duration::from_secs(120);

pub(super) fn run<F: Future<Output = ()>>(test: impl FnOnce(Executor) -> F) {
    let executor = Executor::default();
    let test = Box::pin(test(Rc::clone(&executor)));
    smol::block_on(executor.run(deadline(WITHIN, test))).expect("the test took too long");
}

pub(super) async fn until(what: &str, level: impl Fn() -> bool) {
    let waiting = async {
        while !level() {
            smol::Timer::after(Duration::from_millis(20)).await;
        }
    };
    assert!(
        deadline(WITHIN / 2, waiting).await.is_ok(),
        "not in time: {what}"
    );
}

pub(crate) fn client_of(executor: &Executor, kubeconfig: &Path) -> Client {
    let settings = Settings {
        source: Source::Files(vec![kubeconfig.to_path_buf()]),
        proxies: Proxies::default(),
        clock: now_clock(),
        now: clock::now,
        jobs: pipeops_agent::files::Jobs::default(),
    };
    Client::new(&settings, Dialer::default(), Rc::clone(executor))
}

fn kubeconfig() -> PathBuf {
    cluster().expect("a cluster").join("kubeconfig.yaml")
}

fn client(executor: &Executor) -> Client {
    client_of(executor, &kubeconfig())
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

const SOON: Duration = Duration::from_secs(60);

fn config_map(name: &str) -> ConfigMap {
    ConfigMap {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        metadata: Metadata {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            ..Metadata::default()
        },
        ..ConfigMap::default()
    }
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[test]
fn the_administrators_certificate_lends_nothing_to_others() {
    let Some(_guard) = calm() else { return };
    run(|executor| async move {
        let client = client(&executor);
        assert!(client.version().await.unwrap().starts_with('v'));
        for (identity, status) in [
            (Identity::Agent, StatusCode::OK),
            (Identity::Anonymous, StatusCode::FORBIDDEN),
            (
                Identity::Bearer(Secret::new("nobody's")),
                StatusCode::UNAUTHORIZED,
            ),
        ] {
            let answer = client
                .send(get("/api/v1/secrets"), &identity, SOON)
                .await
                .unwrap();
            assert_eq!(answer.status(), status, "{identity:?}");
        }
    });
}

/// The API server believes a certificate before a token. k3s writes an administrator's into its
/// kubeconfig, and none of it may lend its rights to calls that bring a token.
#[test]
fn a_token_beside_the_administrators_certificate_is_who_it_says() {
    let Some(_guard) = calm() else { return };
    let accounts = Accounts::new(GrantScope::Managed);
    let token = Secret::new(accounts.token("pipeops-cp"));
    let account = format!("system:serviceaccount:{}:pipeops-cp", accounts.namespace());
    run(|executor| async move {
        let client = client(&executor);
        // The administrator first and in between, so that there are idle connections with a
        // certificate to be taken by mistake.
        for (identity, who) in [
            (Identity::Agent, "system:admin"),
            (Identity::Bearer(token.clone()), &account),
            (Identity::Agent, "system:admin"),
            (Identity::Bearer(token), &account),
        ] {
            let question = serde_json::json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
            let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
            let answer: serde_json::Value =
                client.create_as(&identity, path, &question).await.unwrap();
            let user = &answer["status"]["userInfo"];
            assert!(
                user["username"].as_str().unwrap().ends_with(who),
                "{identity:?}: {answer}"
            );
            let is_master = user["groups"].to_string().contains("system:masters");
            assert_eq!(is_master, identity == Identity::Agent, "{answer}");
        }
    });
}

#[test]
fn objects_are_written_watched_and_deleted() {
    let Some(_guard) = calm() else { return };
    run(|executor| async move {
        let client = client(&executor);
        let words: Rc<RefCell<Vec<String>>> = Rc::default();
        let (heard, watching) = (Rc::clone(&words), client.clone());
        let task = executor.spawn(async move {
            let path = format!("{CONFIG_MAPS}?fieldSelector=metadata.name%3Dwatched");
            let watch = Watch::<ConfigMap>::whole(path);
            watch
                .run(&watching, |event| {
                    let word = match event {
                        Event::Added(map) => format!("+{:?}", map.data.get("k")),
                        Event::Modified(map) => format!("~{:?}", map.data.get("k")),
                        Event::Deleted(_) => "-".to_owned(),
                        other @ (Event::Restarted | Event::Synced | Event::Failed(_)) => {
                            format!("{other:?}")
                        }
                    };
                    heard.borrow_mut().push(word);
                })
                .await
        });
        until("synced", || words.borrow().len() == 2).await;
        let mut map = config_map("watched");
        let made: ConfigMap = client.create(CONFIG_MAPS, &map).await.unwrap();
        map.metadata = made.metadata;
        map.data.insert("k".to_owned(), "replaced".to_owned());
        let path = format!("{CONFIG_MAPS}/watched");
        client.replace::<_, ConfigMap>(&path, &map).await.unwrap();
        let stale = client
            .replace::<_, ConfigMap>(&path, &map)
            .await
            .unwrap_err();
        assert!(
            matches!(stale, Error::Refused { status: 409, .. }),
            "{stale}"
        );
        let change = serde_json::json!({"data": {"k": "patched"}});
        client
            .patch::<_, ConfigMap>(&path, Patch::Merge, &change)
            .await
            .unwrap();
        client.delete(&path).await.unwrap();
        assert!(
            client
                .get::<ConfigMap>(&path)
                .await
                .unwrap_err()
                .is_not_found()
        );
        until("deleted", || words.borrow().len() == 6).await;
        drop(task);
        let wanted = [
            "Restarted",
            "Synced",
            "+None",
            "~Some(\"replaced\")",
            "~Some(\"patched\")",
            "-",
        ];
        assert_eq!(*words.borrow(), wanted);
        until("its connection is closed", || {
            client.open_connections() <= 1
        })
        .await;
    });
}

#[test]
fn nodes_and_pods_are_counted() {
    let Some(_guard) = calm() else { return };
    run(|executor| async move {
        let client = client(&executor);
        let counts: Rc<RefCell<(Nodes, Pods)>> = Rc::default();
        let (of_nodes, of_pods) = (Rc::clone(&counts), Rc::clone(&counts));
        let (first, second) = (client.clone(), client.clone());
        let nodes = executor.spawn(async move {
            let watch = Watch::<Node>::whole("/api/v1/nodes");
            watch
                .run(&first, |event| of_nodes.borrow_mut().0.update(&event))
                .await
        });
        let pods = executor.spawn(async move {
            let watch = Watch::<HeadOnly>::heads("/api/v1/pods");
            watch
                .run(&second, |event| of_pods.borrow_mut().1.update(&event))
                .await
        });
        until("counted", || {
            let counts = counts.borrow();
            counts.0.ready() == Some(1) && counts.1.total().is_some()
        })
        .await;
        let mut listed = 0;
        client
            .list("/api/v1/pods", Detail::Head, |_: HeadOnly| listed += 1)
            .await
            .unwrap();
        assert!(listed >= 5, "{listed} Pods");
        assert_eq!(counts.borrow().1.total(), Some(listed));
        drop((nodes, pods));
    });
}

#[test]
fn services_lead_to_their_pods() {
    let Some(_guard) = calm() else { return };
    run(|executor| async move {
        let client = client(&executor);
        for (name, port, scheme) in [
            ("echo", 80, Scheme::Plain),
            ("echo", 8080, Scheme::Plain),
            ("echo", 443, Scheme::Tls),
            ("echo-unnamed", 80, Scheme::Plain),
            ("echo-headless", 8080, Scheme::Plain),
        ] {
            let address = client.service("fixtures", name, port).await.unwrap();
            let path = "/bytes?n=3000000";
            let answer = services::send(&client, &address, scheme, get(path), SOON)
                .await
                .unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let is_right = body
                .iter()
                .enumerate()
                .all(|(index, byte)| usize::from(*byte) == index % 251);
            assert!(
                is_right && body.len() == 3_000_000,
                "{name}:{port}: {} bytes",
                body.len()
            );
            let ask = Ask {
                path: "/ws",
                headers: HeaderMap::new(),
                protocols: &[],
            };
            let opened = services::open_socket(&client, (&address, scheme), ask, SOON)
                .await
                .unwrap();
            let Opened::Open(mut socket) = opened else {
                panic!("{name}:{port}: {opened:?}");
            };
            let message = Message::text("to and fro");
            socket.messages.send(message.clone()).await.unwrap();
            assert_eq!(socket.messages.next().await.unwrap().unwrap(), message);
        }
        // A host that is not in the network of the Pods: nobody answers at these addresses.
        let mut address = client.service("fixtures", "echo", 80).await.unwrap();
        for pod in &mut address.pods {
            pod.address.set_ip("192.0.2.1".parse().unwrap());
        }
        let answer =
            services::send(&client, &address, Scheme::Plain, get("/bytes?n=10"), SOON).await;
        assert!(answer.is_err(), "nobody was named to ask for a way");
        address.forward_as = Some(Identity::Agent);
        for bytes in [3_000_000, 10] {
            let path = format!("/bytes?n={bytes}");
            let answer = services::send(&client, &address, Scheme::Plain, get(&path), SOON)
                .await
                .unwrap();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body.len(), bytes);
        }
        for (name, port, wanted) in [
            ("echo-external", 80, "ExternalName"),
            ("empty", 80, "it has no Pods"),
            ("unready", 80, "its Pod is not ready"),
            ("echo", 81, "it has no TCP port 81"),
            ("nothing", 80, "no such service"),
        ] {
            let error = client.service("fixtures", name, port).await.unwrap_err();
            assert!(error.to_string().contains(wanted), "{name}: {error}");
        }
    });
}

#[test]
fn a_command_runs_in_a_pod_with_input_output_and_exit_code() {
    let Some(_guard) = calm() else { return };
    run(|executor| async move {
        let client = client(&executor);
        let protocols = ["v5.channel.k8s.io", "v4.channel.k8s.io"].map(str::to_owned);
        let ask = Ask {
            path: "/api/v1/namespaces/fixtures/pods/shell/exec?command=sh&command=-c&command=read+x%3B+echo+got+%24x%3B+echo+oops+%3E%262%3B+exit+7&stdin=true&stdout=true&stderr=true",
            headers: HeaderMap::new(),
            protocols: &protocols,
        };
        let opened = socket::open(&client, &Identity::Agent, ask, SOON)
            .await
            .unwrap();
        let Opened::Open(mut socket) = opened else {
            panic!("{opened:?}");
        };
        assert_eq!(socket.protocol.as_deref(), Some("v5.channel.k8s.io"));
        socket
            .messages
            .send(Message::binary(b"\0input\n".to_vec()))
            .await
            .unwrap();
        let mut channels = [const { String::new() }; 4];
        while let Some(Ok(message)) = socket.messages.next().await {
            if let Message::Binary(bytes) = message {
                let (channel, text) = bytes.split_first().unwrap();
                channels[usize::from(*channel)].push_str(std::str::from_utf8(text).unwrap());
            }
        }
        assert_eq!(
            (channels[1].as_str(), channels[2].as_str()),
            ("got input\n", "oops\n")
        );
        assert!(channels[3].contains("\"7\""), "{}", channels[3]);
    });
}

#[test]
fn a_watch_outlives_the_api_server_and_new_certificates_are_believed() {
    let Some(_guard) = alone() else { return };
    run(|executor| async move {
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join("kubeconfig.yaml");
        std::fs::copy(kubeconfig(), &copy).unwrap();
        let client = client_of(&executor, &copy);
        let seen: Rc<RefCell<Vec<String>>> = Rc::default();
        let (heard, watching) = (Rc::clone(&seen), client.clone());
        let task = executor.spawn(async move {
            let watch = Watch::<HeadOnly>::heads(CONFIG_MAPS);
            watch
                .run(&watching, |event| {
                    if let Event::Added(map) = event {
                        heard.borrow_mut().push(map.metadata.name);
                    }
                })
                .await
        });
        let add = |name: &'static str| {
            let client = client.clone();
            async move {
                while client
                    .create::<_, ConfigMap>(CONFIG_MAPS, &config_map(name))
                    .await
                    .is_err()
                {
                    smol::Timer::after(Duration::from_millis(200)).await;
                }
            }
        };
        let has = |name: &str| seen.borrow().iter().any(|known| known == name);
        let cluster = cluster().expect("a cluster");
        let must = |verb: &'static str, more: &'static [&'static str]| {
            pipeops_agent::executor::unblock(move || must_in(cluster, verb, more))
        };
        add("before").await;
        until("the first is seen", || has("before")).await;
        must("restart-apiserver", &["--kill"]).await;
        add("after-restart").await;
        until("the watch has gone on", || has("after-restart")).await;
        must("rotate-serving-cert", &["--new-ca"]).await;
        let unknown = async {
            loop {
                match client
                    .send(get("/version"), &Identity::Anonymous, SOON)
                    .await
                {
                    Err(Error::Connection(error)) if error.kind == ErrorKind::UnknownIssuer => {
                        return;
                    }
                    _ => smol::Timer::after(Duration::from_millis(200)).await,
                };
            }
        };
        deadline(WITHIN / 2, unknown)
            .await
            .expect("the new CA is not known");
        let next = kubeconfig().with_file_name("kubeconfig-next-ca.yaml");
        std::fs::copy(next, &copy).unwrap();
        add("after-new-ca").await;
        until("the watch has gone on again", || has("after-new-ca")).await;
        drop(task);
        must("rotate-serving-cert", &[]).await;
        tidy_up(
            &client_of(&executor, &kubeconfig()),
            &["before", "after-restart", "after-new-ca"],
        )
        .await;
    });
}

async fn tidy_up(client: &Client, names: &[&str]) {
    for name in names {
        let path = format!("{CONFIG_MAPS}/{name}");
        let gone = async {
            while client
                .delete(&path)
                .await
                .is_err_and(|error| !error.is_not_found())
            {
                smol::Timer::after(Duration::from_millis(200)).await;
            }
        };
        deadline(WITHIN / 4, gone).await.expect("deleted");
    }
}
