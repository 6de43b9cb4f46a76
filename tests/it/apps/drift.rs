//! A good revision is kept as it was deployed: what a person changes or deletes is put back, what
//! others own is left alone.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    Bench, SOON, deployment,
    half_written::{leave_policy, refuse},
};
use crate::{
    agent::{command, until_every},
    cluster::{admin, kubectl, variable},
};

pub(super) const LOOK: Duration = Duration::from_millis(200);

impl Bench {
    pub(super) fn kubectl(&self, words: &[&str]) -> String {
        kubectl(&[&["-n", &self.namespace], words].concat())
    }

    /// Changes values of a ConfigMap as this field manager.
    fn edit(&self, map: &str, values: &Value, manager: &str) {
        let patch = json!({"data": values}).to_string();
        let manager = format!("--field-manager={manager}");
        self.kubectl(&[
            "patch",
            "configmap",
            map,
            "--type=merge",
            "-p",
            &patch,
            &manager,
        ]);
    }

    fn until_data(&self, map: &str, wanted: &Value) {
        let what = format!("{map} is {wanted}");
        until_every(LOOK, &what, SOON, || {
            let maps =
                self.kubectl(&["get", "configmaps", map, "-o", "json", "--ignore-not-found"]);
            let found: Value = serde_json::from_str(&maps).ok()?;
            (found["data"] == *wanted).then_some(())
        });
    }

    /// Everything that was seen before this is done when a change of another app is put back.
    pub(super) fn until_all_is_looked_at(&self) {
        self.edit("other", &json!({"x": "edited"}), "person");
        self.until_data("other", &json!({"x": "1"}));
    }

    /// Has the first revision of these apps good, without the minute that it takes.
    pub(super) fn are_good(&mut self, apps: &[&str]) {
        self.agent.kill();
        for app in apps {
            self.change_record(app, |record| {
                record["good"] = json!(1);
                record["revisions"][0]["verdict"] = json!("good");
                record["change"]["stage"] = json!("over");
            });
        }
        self.agent.start();
        self.agent.until_linked();
    }

    fn drift(&self) -> Value {
        self.why("web").1["drift"].clone()
    }
}

fn map(name: &str, data: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {data}\n")
}

#[test]
fn a_good_revision_is_kept_as_it_was_deployed_and_what_others_own_is_left_alone() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.bind();
    let web =
        deployment("web", "").replace("spec:\n  selector", "spec:\n  replicas: 1\n  selector");
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}\n";
    let all = [web.as_str(), claim, &map("settings", "{a: b, z: \"1\"}")].join("---\n");
    for (app, manifests) in [
        ("web", all.as_str()),
        ("other", &map("other", "{x: \"1\"}")),
    ] {
        let (code, said) = bench.apply(app, manifests);
        assert_eq!(code, 0, "{said}");
        until_every(LOOK, "it is written", SOON, || {
            let (_, said) = bench.apps(&["history", app, "--json"]);
            let judged = bench.why(app).1["verdict"] != "progressing";
            judged.then_some(said)
        });
    }
    bench.are_good(&["web", "other"]);

    // Ours is put back, what a person added stays.
    bench.edit(
        "settings",
        &json!({"a": "edited", "theirs": "kept"}),
        "person",
    );
    bench.kubectl(&["scale", "deployment", "web", "--replicas=3"]);
    bench.until_data("settings", &json!({"a": "b", "z": "1", "theirs": "kept"}));
    until_every(LOOK, "the number of Pods is put back", SOON, || {
        (bench.get("deployment/web", "{.spec.replicas}") == "1").then_some(())
    });
    let repaired = bench.drift()["repaired"].to_string();
    for part in ["\"data.a\"", "\"person\"", "\"spec.replicas\""] {
        assert!(repaired.contains(part), "{repaired}");
    }
    let (_, said) = bench.apps(&["show", "web"]);
    assert!(
        said.contains("  put back ") && said.contains("data.a of ConfigMap"),
        "{said}"
    );

    // So is what was deleted, but for what held data.
    bench.kubectl(&["delete", "configmap", "settings"]);
    bench.until_data("settings", &json!({"a": "b", "z": "1"}));
    bench.kubectl(&["delete", "pvc", "data"]);
    let condition = bench.agent.until_condition("apps.drift", SOON);
    let sentence = condition["sentence"].as_str().unwrap();
    assert!(
        sentence.starts_with("PersistentVolumeClaim ") && sentence.contains("it held data"),
        "{sentence}"
    );
    bench.until_all_is_looked_at();
    assert_eq!(bench.objects("pvc"), "");

    is_left_alone_while_paused(&bench);
    is_left_to_an_autoscaler(&bench);
    is_left_to_who_takes_it_back(&bench);
    is_left_deleted(&bench);
    works_on_with_the_manifest_of_yesterday(&mut bench);
}

fn is_left_alone_while_paused(bench: &Bench) {
    assert_eq!(bench.apps(&["pause", "web"]).0, 0);
    bench.edit("settings", &json!({"z": "mine"}), "person");
    bench.until_all_is_looked_at();
    bench.until_data("settings", &json!({"a": "b", "z": "mine"}));
    assert_eq!(bench.apps(&["resume", "web"]).0, 0);
    bench.until_data("settings", &json!({"a": "b", "z": "1"}));
}

fn is_left_to_an_autoscaler(bench: &Bench) {
    bench.kubectl(&["autoscale", "deployment", "web", "--min=2", "--max=3"]);
    bench.kubectl(&["scale", "deployment", "web", "--replicas=2"]);
    bench.until_all_is_looked_at();
    assert_eq!(bench.get("deployment/web", "{.spec.replicas}"), "2");
}

fn is_left_to_who_takes_it_back(bench: &Bench) {
    let mut count = 0;
    until_every(LOOK, "it is left alone", SOON, || {
        let value = format!("robot{count}");
        bench.edit("settings", &json!({"a": value}), "robot");
        count += 1;
        let drift = bench.drift();
        let left = drift["left"].as_array().unwrap();
        (left
            .iter()
            .any(|left| left["field"] == "data.a" && left["by"] == "robot"))
        .then_some(())
    });
    assert!(count > 3, "{count}");
    bench.edit("settings", &json!({"a": "robots", "z": "mine"}), "robot");
    bench.until_data("settings", &json!({"a": "robots", "z": "1"}));
    let condition = bench.agent.until_condition("apps.drift", SOON);
    assert_eq!(condition["severity"], "warning");
}

fn is_left_deleted(bench: &Bench) {
    let is_there = || bench.objects("configmaps").contains("configmap/settings");
    let mut count = 0;
    until_every(LOOK, "it is left deleted", SOON, || {
        if is_there() {
            bench.kubectl(&["delete", "configmap", "settings"]);
            count += 1;
        }
        let drift = bench.drift();
        let mut left = drift["left"].as_array().unwrap().iter();
        left.any(|left| left["field"] == "").then_some(())
    });
    assert!(count >= 3, "{count}");
    assert!(!is_there());
    assert_eq!(bench.apps(&["resume", "web"]).0, 0);
    until_every(LOOK, "it is recreated", SOON, || is_there().then_some(()));
}

fn works_on_with_the_manifest_of_yesterday(bench: &mut Bench) {
    let role = format!("pipeops-apps-deploy.{}", bench.accounts.namespace());
    let found = kubectl(&["get", "clusterrole", &role, "-o", "json"]);
    let mut found: Value = serde_json::from_str(&found).unwrap();
    for rule in found["rules"].as_array_mut().unwrap() {
        if rule["verbs"] == json!(["watch"]) {
            rule["resources"]
                .as_array_mut()
                .unwrap()
                .retain(|kind| kind != "configmaps");
        }
    }
    let rules = json!({"rules": found["rules"]}).to_string();
    kubectl(&["patch", "clusterrole", &role, "--type=merge", "-p", &rules]);
    // The repair of its drift may be under way: the removal waits for it.
    let (code, said) = bench.apps(&["remove", "web"]);
    assert_eq!(code, 0, "{said}");
    bench.agent.kill();
    bench.agent.start();
    bench.agent.until_linked();
    // Until the app is gone, the field that was left to the robot comes first.
    let condition = bench.agent.until("the missing right", SOON, |status| {
        let mut all = status["conditions"].as_array()?.iter();
        let found = all.find(|condition| condition["id"] == "apps.drift")?;
        let sentence = found["sentence"].as_str()?;
        let is_it = sentence.contains("may not watch configmaps");
        is_it.then(|| found.clone())
    });
    let fix = condition["fix"].as_str().unwrap();
    assert!(
        fix.starts_with("pipeops-agent rbac ") && fix.ends_with("| kubectl apply -f -"),
        "{fix}"
    );
    let (code, said) = bench.apply("other", &map("other", "{x: \"2\"}"));
    assert_eq!(code, 0, "{said}");
    bench.until_data("other", &json!({"x": "2"}));
}

#[test]
fn what_cannot_be_put_back_is_named_and_holds_up_nothing_else() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.bind();
    let both = map("first", "{a: b}") + "---\n" + &map("second", "{a: b}");
    let (code, said) = bench.apply("web", &both);
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("web", "soaking");
    bench.are_good(&["web"]);
    let policy = format!("not-put-back.{}", bench.namespace);
    let created = ["create", "configmap", "first", "--dry-run=server"];
    bench.kubectl(&["delete", "configmap", "first"]);
    bench.until_data("first", &json!({"a": "b"}));
    refuse(
        &bench,
        &policy,
        ("CREATE", "object.metadata.name != 'first'"),
    );
    until_every(LOOK, "its creation is refused", SOON, || {
        let mut tried = command(variable("KUBECTL"));
        tried.arg("--kubeconfig").arg(admin());
        tried.args(["-n", &bench.namespace]).args(created);
        let said = String::from_utf8(tried.output().unwrap().stderr).unwrap();
        said.contains(&policy).then_some(())
    });
    bench.kubectl(&["delete", "configmap", "first", "second"]);
    bench.until_data("second", &json!({"a": "b"}));
    let condition = bench.agent.until_condition("apps.drift", SOON);
    let sentence = condition["sentence"].as_str().unwrap();
    assert!(
        sentence.starts_with("ConfigMap ") && sentence.contains("/first of app web "),
        "{sentence}"
    );
    assert!(sentence.contains("cannot be reverted: "), "{sentence}");
    let (_, said) = bench.apps(&["show", "web"]);
    assert!(said.contains("  not put back: ConfigMap "), "{said}");
    leave_policy(&policy);
    bench.until_data("first", &json!({"a": "b"}));
    until_every(LOOK, "nothing is told any more", SOON, || {
        let stuck = bench.drift()["stuck"].clone();
        (stuck == json!([])).then_some(())
    });
}
