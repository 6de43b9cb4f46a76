//! The description of the local API, held against the table of routes, against the shapes, and by
//! schemathesis against a running agent.

use std::collections::BTreeSet;

use pipeops_agent::{
    core::authorization::{Method, ROUTES},
    wire::{api, backup, keeper},
};
use serde_json::Value;

use crate::{agent::command, login::House};

fn description() -> Value {
    serde_json::from_str(include_str!("../../src/dashboard/assets/openapi.json")).unwrap()
}

fn keys(object: &Value) -> BTreeSet<&str> {
    object
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

#[test]
fn every_route_is_described_and_nothing_else() {
    let description = description();
    let mut described = BTreeSet::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in keys(methods) {
            described.insert(format!("{method} {path}"));
        }
    }
    let is_api = |path: &&str| !matches!(*path, "/" | "/assets/{id}");
    let routes = ROUTES.iter().filter(|route| is_api(&route.path));
    let there: BTreeSet<_> = routes
        .map(|route| {
            let method = match route.method {
                Method::Get => "get",
                Method::Post => "post",
                Method::Put => "put",
                Method::Delete => "delete",
            };
            format!("{method} {}", route.path)
        })
        .collect();
    assert_eq!(described, there);
}

#[test]
fn each_shape_is_described_field_by_field() {
    let description = description();
    let schemas = &description["components"]["schemas"];
    let mut count = 0;
    let mut check = |name: &str, shape: Value| {
        assert_eq!(keys(&shape), keys(&schemas[name]["properties"]), "{name}");
        count += 1;
    };
    macro_rules! check {
        ($($module:ident :: $shape:ident),* $(,)?) => {
            $(check(stringify!($shape), serde_json::to_value($module::$shape::default()).unwrap());)*
        };
    }
    check!(
        api::Status,
        api::Health,
        api::Readiness,
        api::Verdict,
        api::PartVerdict,
        api::Condition,
        api::Link,
        api::Cluster,
        api::Host,
        api::Access,
        api::Dashboard,
        api::Load,
        api::HostReport,
        api::Figure,
        api::Environment,
        api::Note,
        api::Diagnosis,
        api::Probe,
        api::SeriesList,
        api::SeriesHead,
        api::Values,
        api::Column,
        api::Mark,
        api::ClusterReport,
        api::NodeReport,
        api::NodeCondition,
        api::NamespaceReport,
        api::PodPage,
        api::PodReport,
        api::WorkloadPage,
        api::WorkloadReport,
        api::EventPage,
        api::EventReport,
        api::K3sReport,
        api::Copies,
        api::LogPage,
        api::LogEntry,
        api::LinkReport,
        api::Outage,
        api::Destination,
        api::SettingsReport,
        api::SettingReport,
        api::ChangeList,
        api::ChangeReport,
        api::Undo,
        api::Doctor,
        api::Check,
        api::Automatic,
        api::SessionReport,
        api::SessionsEnded,
        api::NewToken,
        api::PasswordReport,
        keeper::Done,
    );
    assert_eq!(count, 53);
}

/// Clients are generated from the document: its names stay when a type is renamed.
#[test]
fn a_renamed_type_keeps_its_name_in_the_document() {
    let description = description();
    let schemas = &description["components"]["schemas"];
    let refusal = serde_json::to_value(api::ErrorBody::default()).unwrap();
    assert_eq!(keys(&refusal), keys(&schemas["Refusal"]["properties"]));
    let part = serde_json::to_value(api::PartStatus::default()).unwrap();
    assert_eq!(keys(&part), keys(&schemas["Part"]["properties"]));
}

#[test]
fn each_shape_of_k3s_is_described_field_by_field() {
    let description = description();
    let schemas = &description["components"]["schemas"];
    macro_rules! check {
        ($($module:ident :: $shape:ident),* $(,)?) => {
            $(
                let shape = serde_json::to_value($module::$shape::default()).unwrap();
                let name = stringify!($shape);
                assert_eq!(keys(&shape), keys(&schemas[name]["properties"]), "{name}");
            )*
        };
    }
    check!(
        keeper::K3sStatus,
        keeper::Doing,
        keeper::Finding,
        backup::BackupEntry,
        backup::Volume,
    );
}

/// Where tests/setup puts it.
const SCHEMATHESIS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/target/schemathesis/bin/schemathesis"
);

/// Has schemathesis invent questions. It knows no streams.
fn invented(house: &House, more: &[&str]) {
    let output = command(SCHEMATHESIS)
        .args(["run", concat!(env!("CARGO_MANIFEST_DIR"), "/src/dashboard/assets/openapi.json")])
        .args(["--url", &format!("http://127.0.0.1:{}", house.port)])
        .args(["--max-examples", "12", "--seed", "7", "--no-color", "--phases", "examples,coverage,fuzzing"])
        // An error of ours (500) is described nowhere; that something cannot be said now (503) is.
        .args(["--checks", "status_code_conformance,content_type_conformance,response_schema_conformance"])
        .args(["--exclude-path", "/api/v1/stream"])
        .args(more)
        .current_dir(house.agent.folder())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}");
    // A run that asked nothing would be no failure to it.
    assert!(told.contains(" passed"), "{told}");
}

#[test]
fn what_schemathesis_invents_is_answered_as_described() {
    if !std::path::Path::new(SCHEMATHESIS).exists() {
        println!("skipped: schemathesis is not installed: tests/setup test installs it");
        return;
    }
    let house = House::new(&[]);
    invented(&house, &[]);
    // Who logs out sees nothing more.
    let stay = [
        "--exclude-operation-id",
        "delete_session",
        "--exclude-operation-id",
        "delete_sessions",
    ];
    for role in ["viewer", "operator"] {
        let cookie = house.session(role);
        let mut more = vec!["--header", cookie.trim_end()];
        more.extend(stay);
        invented(&house, &more);
    }
}
