//! The records of apps, as they are listed.

use std::rc::Rc;

use pipeops_agent::{
    core::apps::{App, Owner},
    tasks::{
        apps::ledger::Ledger,
        link::lease_gate::{LeaseGate, Permission},
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

/// The head of a Secret that is there.
fn head(name: &str) -> Value {
    json!({"metadata": {"name": name, "uid": "u-1", "resourceVersion": "41"}})
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
        let is_revision = |uri: &str| uri.ends_with(".r1");
        assert!(!server.seen().iter().any(|seen| is_revision(&seen.uri)));
    });
}
