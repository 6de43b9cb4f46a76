//! One change in the place of another: which of the two goes on where the agent is killed, or the
//! new one cannot be kept.

use std::time::Duration;

use pipeops_agent::{
    core::{
        journal::{Change, ChangeEnd, Intent, Journal, Outcome},
        time::Wall,
    },
    store::{Handle, Store},
};
use serde_json::json;
use smol::block_on;

use super::{Bench, SOON};
use crate::{agent::until_every, cluster::kubectl};

const LOOK: Duration = Duration::from_millis(200);

fn map(value: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: web}}\ndata: {{value: {value}}}\n")
}

/// Kills the agent, does something with its journal, and starts it again.
fn between_two_starts(bench: &mut Bench, work: impl AsyncFnOnce(&Bench, &Handle)) {
    bench.agent.kill();
    let folder = bench.agent.folder().join("state");
    block_on(async {
        let (store, _) = Store::open(folder, Wall::default()).await.unwrap();
        work(bench, &store.handle()).await;
        store.close().await.unwrap();
    });
    bench.agent.start();
    bench.agent.until_linked();
}

async fn begin(journal: &Handle, id: &str, body: &str) {
    let lock = Journal::new().lock(id).unwrap();
    let intent = Intent {
        origin: "test".to_owned(),
        kind: "app.rollback".to_owned(),
        body: body.to_owned(),
    };
    let begun = journal.begin_change(&lock, intent, Wall::default());
    begun.await.unwrap();
}

fn ids(changes: &[Change]) -> Vec<&str> {
    changes.iter().map(|change| change.id.as_str()).collect()
}

fn until_soaking(bench: &Bench, revision: u64) {
    until_every(LOOK, "it is judged", SOON, || {
        let (_, why) = bench.why("web");
        (why["revision"] == revision && why["verdict"] == "soaking").then_some(())
    });
}

#[test]
fn a_change_ends_only_once_the_one_in_its_place_is_accepted() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.bind();
    let (code, said) = bench.apply("web", &map("first"));
    assert_eq!(code, 0, "{said}");
    until_soaking(&bench, 1);
    let first = bench.why("web").1["change"]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    is_refused_where_it_cannot_be_kept(&bench);
    // A kill between an intent and the record: the one before it goes on.
    let plan = json!({"app": "web", "verb": "rollback", "revision": 1, "before": 1, "back_to": 0});
    let plan = plan.to_string();
    between_two_starts(&mut bench, async |_, journal| {
        assert_eq!(ids(&journal.unfinished_changes().await.unwrap()), [&first]);
        begin(journal, "app-cut-off", &plan).await;
    });
    until_soaking(&bench, 1);
    let change = &bench.why("web").1["change"];
    assert_eq!(
        (&change["id"], &change["why"]),
        (
            &json!("app-cut-off"),
            &json!("it was cut off before it began, and nothing of it was done")
        )
    );
    // A kill after the record has it: it goes on, and the one before it has ended.
    let noted = json!({"id": "app-noted", "by": "test", "body": plan, "stage": "write"});
    between_two_starts(&mut bench, async |bench, journal| {
        bench.change_record("web", |record| record["change"] = noted.clone());
        assert_eq!(ids(&journal.unfinished_changes().await.unwrap()), [&first]);
        begin(journal, "app-noted", &plan).await;
    });
    until_soaking(&bench, 1);
    between_two_starts(&mut bench, async |_, journal| {
        let unfinished = journal.unfinished_changes().await.unwrap();
        assert_eq!(ids(&unfinished), ["app-noted"]);
        let recent = journal.recent_changes(9).await.unwrap();
        let first = recent.iter().find(|change| change.id == first).unwrap();
        let (_, ending) = first.ended.as_ref().unwrap();
        assert_eq!(ending.why.as_deref(), Some("another change took its place"));
        // A change whose end was told is not begun again, whatever its record says.
        let lock = Journal::new().lock("app-noted").unwrap();
        let ending = ChangeEnd::new(Outcome::Failed);
        let ended = journal.finish_change(&lock, ending, Wall::default());
        ended.await.unwrap();
    });
    until_every(LOOK, "the record says that it is over", SOON, || {
        (bench.record("web")["change"]["stage"] == "over").then_some(())
    });
    assert_eq!(bench.why("web").1["change"]["id"], "app-noted");
}

/// The content of a new version lies in a Secret, and there is no room for one.
fn is_refused_where_it_cannot_be_kept(bench: &Bench) {
    let own = bench.accounts.namespace();
    kubectl(&["-n", own, "create", "quota", "full", "--hard=secrets=0"]);
    until_every(LOOK, "the quota is in force", SOON, || {
        let hard = [
            "get",
            "quota",
            "full",
            "-o",
            "jsonpath={.status.hard.secrets}",
        ];
        (kubectl(&[&["-n", own], hard.as_slice()].concat()) == "0").then_some(())
    });
    let (code, said) = bench.apply("web", &map("second"));
    assert!(code == 2 && said.contains("quota"), "{said}");
    // The version before is still judged.
    until_soaking(bench, 1);
    assert_eq!(bench.record("web")["change"]["stage"], "judge");
    assert_eq!(bench.get("configmap/web", "{.data.value}"), "first");
    kubectl(&["-n", own, "delete", "quota", "full"]);
}
