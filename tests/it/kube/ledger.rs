//! The records of apps: how they are listed, and what a write and a deletion name as their
//! precondition.

use std::rc::Rc;

use pipeops_agent::{
    core::apps::{App, Owner, parse},
    tasks::{
        apps::ledger::Ledger,
        lease_gate::{LeaseGate, Permission},
    },
    wire::apps::{record, record_name},
};
use serde_json::{Value, json};

use super::{
    Executor, Kubeconfig, certificate_user,
    certificates::Authority,
    run,
    server::{Reply, Server, json as reply},
};

const SECRETS: &str = "/api/v1/namespaces/own/secrets";
/// More than there ever were in a list.
const MANY: usize = 600;

async fn set_up(executor: &Executor) -> (Server, Kubeconfig, Ledger) {
    let authority = Authority::new();
    let server = Server::tls(executor, &authority).await;
    let kubeconfig = Kubeconfig::new();
    kubeconfig.write(&server, &authority, &certificate_user(&authority));
    let client = kubeconfig.client(executor);
    let gate = Rc::new(LeaseGate::new(Permission::Always));
    (server, kubeconfig, Ledger::new(client, gate, "own"))
}

fn answer(status: u16, value: &Value) -> Reply {
    reply(status, &value.to_string())
}

fn conflict() -> Reply {
    let status =
        json!({"kind": "Status", "reason": "AlreadyExists", "message": "it is there", "code": 409});
    answer(409, &status)
}

/// The head of a Secret that is there.
fn head(name: &str) -> Value {
    json!({"metadata": {"name": name, "uid": "u-1", "resourceVersion": "41"}})
}

/// Bodies of the requests with this method and path, in order.
fn bodies(server: &Server, path: &str) -> Vec<Value> {
    let seen = server.seen();
    let meant = seen.iter().filter(|seen| seen.uri == path);
    let bodies = meant.filter_map(|seen| serde_json::from_slice(&seen.body).ok());
    bodies.collect()
}

#[test]
fn the_owners_app_is_listed_behind_any_number_of_others() {
    run(|executor| async move {
        let (server, _kubeconfig, ledger) = set_up(&executor).await;
        let mut items = Vec::new();
        let mut add = |name: String, owner: Owner| {
            let app = App {
                name,
                owner,
                ..App::default()
            };
            let secret = record_name(&app.name);
            items.push(head(&secret));
            items.push(head(&format!("{secret}.r1")));
            let call = format!("GET {SECRETS}/{secret}");
            server.on(&call, [answer(200, &record(&app, "own", "41"))]);
        };
        (0..MANY).for_each(|number| add(format!("a{number:03}"), Owner::ControlPlane));
        add("web".to_owned(), Owner::Machine);
        let list = json!({"metadata": {}, "items": items});
        server.on(&format!("GET {SECRETS}"), [answer(200, &list)]);
        let apps = ledger.list().await.unwrap();
        assert_eq!(apps.len(), MANY + 1);
        assert_eq!(apps.last().unwrap().name, "web");
        // Content of revisions is not read for it.
        let is_revision = |uri: &str| uri.rsplit('.').next() == Some("r1");
        assert!(!server.seen().iter().any(|seen| is_revision(&seen.uri)));
    });
}

#[test]
fn content_takes_the_place_of_the_version_that_was_looked_at() {
    run(|executor| async move {
        let (server, _kubeconfig, ledger) = set_up(&executor).await;
        let path = format!("{SECRETS}/pipeops-app.web.r2");
        let left = head("pipeops-app.web.r2");
        server.on(&format!("POST {SECRETS}"), [conflict()]);
        server.on(&format!("GET {path}"), [answer(200, &left)]);
        server.on(&format!("PUT {path}"), [answer(200, &left)]);
        let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
        let manifests = parse(text, Some("shop")).unwrap();
        ledger.keep("web", 2, &manifests).await.unwrap();
        let written = bodies(&server, &path);
        assert_eq!(written.len(), 1, "{written:?}");
        assert_eq!(written[0]["metadata"]["resourceVersion"], "41");
    });
}

#[test]
fn a_revision_that_was_changed_meanwhile_is_not_deleted() {
    run(|executor| async move {
        let (server, _kubeconfig, ledger) = set_up(&executor).await;
        let path = format!("{SECRETS}/pipeops-app.web.r2");
        server.on(
            &format!("GET {path}"),
            [answer(200, &head("pipeops-app.web.r2"))],
        );
        server.on(&format!("DELETE {path}"), [conflict()]);
        let error = ledger.drop_revision("web", 2).await.unwrap_err();
        assert!(error.sentence().contains("it is there"), "{error:?}");
        let asked = bodies(&server, &path);
        assert_eq!(
            asked[0]["preconditions"],
            json!({"uid": "u-1", "resourceVersion": "41"})
        );
        // One that is gone is not deleted at all.
        ledger.drop_revision("web", 3).await.unwrap();
        let gone = format!("{SECRETS}/pipeops-app.web.r3");
        assert!(bodies(&server, &gone).is_empty());
    });
}
