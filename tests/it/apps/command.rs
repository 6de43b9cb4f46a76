//! Apps that the control plane deploys by commands, against the real cluster: under its own account
//! and the access policy.

use std::time::Duration;

use plane::{Cut, Options, Plane, Sessions};
use serde_json::{Value, json};

use super::{IMAGE, SEED, SOON, deployment};
use crate::{
    accounts::{Accounts, GrantScope},
    agent::{Agent, put, until_every},
    cluster::{Held, calm, kubectl, leave},
};

/// An agent at a level, with a managed namespace.
pub(super) struct Bench {
    pub(super) agent: Agent,
    pub(super) plane: Plane,
    pub(super) namespace: String,
    pub(super) accounts: Accounts,
    _cluster: Held,
}

impl Bench {
    fn new(level: &str) -> Option<Self> {
        Self::prepared(level, |agent| agent)
    }

    /// With an agent that is prepared before it starts.
    pub(super) fn prepared(level: &str, prepare: impl FnOnce(Agent) -> Agent) -> Option<Self> {
        let held = calm()?;
        let accounts = Accounts::new(match level {
            "full" => GrantScope::Full,
            _ => GrantScope::Managed,
        });
        let namespace = format!("commands-of-{}", accounts.namespace());
        kubectl(&["create", "namespace", &namespace]);
        let labels = [
            "pipeops.io/managed=true",
            "pod-security.kubernetes.io/enforce=baseline",
        ];
        kubectl(&["label", "namespace", &namespace, labels[0], labels[1]]);
        let plane = Plane::start(Options::default()).unwrap();
        let kubeconfig = accounts.kubeconfig("pipeops-agent");
        let mut agent = Agent::new(&plane)
            .with("KUBECONFIG", kubeconfig.display().to_string())
            .with("PIPEOPS_ACCESS_LEVEL", level)
            .with("PIPEOPS_AGENT_NAMESPACE", accounts.namespace())
            .with("PIPEOPS_AGENT_GO_STATE_NAMESPACE", accounts.namespace());
        agent = prepare(agent);
        agent.start();
        agent.until_linked();
        let bench = Self {
            agent,
            plane,
            namespace,
            accounts,
            _cluster: held,
        };
        bench.until_agreed_after(0);
        Some(bench)
    }

    /// Waits until the extension is agreed on: no command is taken before.
    pub(super) fn until_agreed_after(&self, mark: u64) {
        let agreed = self
            .plane
            .wait_for(mark, SOON, |frame| frame.is_from_agent("edge_hello_ack"));
        assert!(agreed.is_some(), "no edge_hello_ack");
    }

    pub(super) fn commanded(&self, id: &str, verb: &str, args: &Value) -> Value {
        let answer = self.plane.commanded(id, verb, args, SOON);
        answer.unwrap_or_else(|| panic!("{id}: no answer; {}", self.agent.log()))
    }

    pub(super) fn accepted(&self, id: &str, verb: &str, args: &Value) {
        let answer = self.commanded(id, verb, args);
        assert_eq!(
            answer,
            json!({"id": id, "state": "accepted"}),
            "{}",
            self.agent.log()
        );
    }

    /// The error and the fix of a refusal.
    pub(super) fn refused(&self, id: &str, verb: &str, args: &Value) -> String {
        let answer = self.commanded(id, verb, args);
        assert_eq!(answer["state"], "refused", "{answer:#}");
        let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        format!("{}; fix: {}", text("error"), text("fix"))
    }

    pub(super) fn outcome(&self, id: &str) -> Value {
        // A batch whose session was cut is sent again after half a minute.
        let outcome = self.plane.outcome(id, 3 * SOON);
        outcome.unwrap_or_else(|| panic!("{id}: no outcome; {}", self.agent.log()))
    }

    pub(super) fn apply(&self, app: &str, manifests: &str) -> Value {
        json!({"app": app, "namespace": self.namespace, "manifests": manifests})
    }

    pub(super) fn apps(&self, words: &[&str]) -> (i32, String) {
        let words = [&["apps"], words].concat();
        let output = self.agent.command(&words).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.code().unwrap(),
            String::from_utf8(said).unwrap(),
        )
    }

    pub(super) fn until_verdict(&self, app: &str, verdict: &str) -> Value {
        let what = format!("{app} is {verdict}");
        until_every(Duration::from_millis(500), &what, SOON, || {
            let (_, said) = self.apps(&["why", app, "--json"]);
            let why: Value = serde_json::from_str(&said).unwrap_or_default();
            (why["verdict"] == verdict).then_some(why)
        })
    }

    pub(super) fn get(&self, object: &str, fields: &str) -> String {
        let fields = format!("jsonpath={fields}");
        kubectl(&["-n", &self.namespace, "get", object, "-o", &fields])
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        leave(&self.namespace);
    }
}

/// A command that was carried out is known also after its time: nobody may hear that it was not.
fn assert_known_also_late(bench: &Bench, id: &str) {
    let mark = bench.plane.mark();
    let late = json!({
        "id": id, "verb": "app.apply", "args": {},
        "issued_at": "2026-01-01T00:00:00Z", "deadline": "2026-01-01T00:00:01Z",
    });
    bench.plane.send("edge_command", None, late);
    let answer = bench.plane.answer(mark, id, SOON).unwrap();
    assert_eq!(answer["state"], "known", "{answer:#}");
}

#[test]
fn an_app_is_deployed_by_a_command_once_and_its_outcome_comes() {
    let Some(mut bench) = Bench::new("managed") else {
        return;
    };
    let web = bench.apply("web", &deployment("web", ""));
    bench.accepted("c-1", "app.apply", &web);
    let again = bench.commanded("c-1", "app.apply", &web);
    assert_eq!(again, json!({"id": "c-1", "state": "known"}));
    assert_known_also_late(&bench, "c-1");
    bench.until_verdict("web", "soaking");
    assert_eq!(
        bench.get(
            "deployment/web",
            "{.spec.template.spec.containers[0].image}"
        ),
        IMAGE
    );
    // A version that does not work: it is the first, so nothing is put back, and it says why.
    let broken = deployment("bad", ", envFrom: [{configMapRef: {name: absent}}]");
    bench.accepted("c-2", "app.apply", &bench.apply("bad", &broken));
    // The link is cut before it has ended.
    bench.plane.cut(Sessions::All, Cut::Reset);
    let outcome = bench.outcome("c-2");
    assert_eq!(
        (&outcome["verb"], &outcome["state"], &outcome["origin"]),
        (
            &json!("app.apply"),
            &json!("failed"),
            &json!("control-plane")
        ),
        "{outcome:#}"
    );
    let why = outcome["why"].as_str().unwrap();
    assert!(
        why.contains("configmap \"absent\" not found"),
        "{outcome:#}"
    );
    assert!(outcome["fix"].as_str().is_some(), "{outcome:#}");
    let detail = &outcome["evidence"][1]["detail"];
    assert!(
        detail.as_str().unwrap().starts_with("config.missing: "),
        "{outcome:#}"
    );
    // Nobody on the machine changes what comes from there, unless he takes it over.
    let (code, said) = bench.apps(&["restart", "web"]);
    assert!(
        code == 2 && said.contains("it comes from the control plane"),
        "{said}"
    );
    outlives_a_kill(&mut bench, &web);
}

fn outlives_a_kill(bench: &mut Bench, web: &Value) {
    // The agent is killed: what was accepted goes on, and is not begun again.
    bench.accepted("c-3", "app.restart", &json!({"app": "web"}));
    // The change that it took the place of is over.
    let outcome = bench.outcome("c-1");
    assert_eq!(outcome["state"], "failed", "{outcome:#}");
    let mark = bench.plane.mark();
    bench.agent.kill();
    bench.agent.start();
    bench.agent.until_linked();
    bench.until_agreed_after(mark);
    for id in ["c-1", "c-3"] {
        let again = bench.commanded(id, "app.apply", web);
        assert_eq!(again["state"], "known", "{again:#}");
    }
    let why = bench.until_verdict("web", "soaking");
    assert_eq!(
        (&why["revision"], &why["owner"]),
        (&json!(2), &json!("control-plane")),
        "{why:#}"
    );
    assert_eq!(bench.plane.violations(), Vec::<String>::new());
}

#[test]
fn a_version_that_does_not_work_is_taken_back_and_its_outcome_says_so() {
    // Each version has to soak for a minute.
    if std::env::var_os("PIPEOPS_CORPUS").is_none() {
        return;
    }
    let Some(bench) = Bench::new("managed") else {
        return;
    };
    let web = bench.apply("web", &deployment("web", ""));
    bench.accepted("c-1", "app.apply", &web);
    assert_eq!(bench.outcome("c-1")["state"], "done");
    let broken = deployment("web", ", command: [/app/missing]");
    bench.accepted("c-2", "app.apply", &bench.apply("web", &broken));
    let outcome = bench.outcome("c-2");
    let why = outcome["why"].as_str().unwrap();
    assert_eq!(outcome["state"], "undone", "{outcome:#}");
    assert!(
        why.starts_with("rolled back to revision 1: "),
        "{outcome:#}"
    );
    let command = "{.spec.template.spec.containers[0].command}";
    assert_eq!(bench.get("deployment/web", command), "");
    bench.accepted("c-3", "app.remove", &json!({"app": "web"}));
    assert_eq!(bench.outcome("c-3")["state"], "done");
}

#[test]
fn an_app_of_the_control_plane_is_operated_by_commands_until_the_level_is_tightened() {
    let Some(bench) = Bench::new("managed") else {
        return;
    };
    let key = ", env: [{name: KEY, valueFrom: {secretKeyRef: {name: keys, key: key}}}]";
    let script = ", command: [sh, -c, \"echo it is up with $KEY; sleep 900\"]";
    let secret = format!(
        "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: keys}}\nstringData: {{key: {SEED}}}\n"
    );
    let manifests = deployment("web", &(key.to_owned() + script)) + &secret;
    let web = bench.apply("web", &manifests);
    bench.accepted("c-1", "app.apply", &web);
    bench.until_verdict("web", "soaking");
    bench.accepted("c-2", "app.logs", &json!({"app": "web"}));
    let outcome = bench.outcome("c-2");
    let log = &outcome["evidence"][0];
    assert!(
        log["name"].as_str().unwrap().starts_with("log of Pod "),
        "{outcome:#}"
    );
    assert_eq!(log["detail"], "it is up with (hidden)\n", "{outcome:#}");
    bench.accepted("c-3", "app.pause", &json!({"app": "web"}));
    assert_eq!(bench.outcome("c-3")["state"], "done");
    assert!(bench.apps(&["list"]).1.contains("paused"));
    bench.accepted("c-4", "app.resume", &json!({"app": "web"}));
    let said = bench.refused("c-5", "app.rollback", &json!({"app": "web"}));
    assert!(said.contains("no earlier revision was good"), "{said}");
    let auto = json!({"app": "web", "auto": "off"});
    let said = bench.refused("c-7", "app.rollback", &auto);
    assert!(said.contains("turn automatic rollback on or off"), "{said}");
    bench.accepted("c-6", "app.scale", &json!({"app": "web", "to": 2}));
    bench.until_verdict("web", "soaking");
    assert_eq!(bench.get("deployment/web", "{.spec.replicas}"), "2");
    // What runs when the level is tightened ends, with the level in its outcome.
    let tighten = |level: &str| {
        let output = bench.agent.command(&["access", level]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    tighten("off");
    let outcome = bench.outcome("c-6");
    let why = outcome["why"].as_str().unwrap();
    assert_eq!(outcome["state"], "failed", "{outcome:#}");
    assert!(
        why.contains("access was tightened to \"off\""),
        "{outcome:#}"
    );
    for (level, id) in [("off", "d-1"), ("read-only", "d-2")] {
        tighten(level);
        for (verb, args) in [
            ("app.apply", &web),
            ("app.remove", &json!({"app": "web"})),
            ("app.pause", &json!({"app": "web"})),
            ("app.scale", &json!({"app": "web", "to": 1})),
        ] {
            let said = bench.refused(&format!("{id}-{verb}"), verb, args);
            let tightened = format!("access was tightened to \"{level}\"");
            assert!(said.contains(&tightened), "{level} {verb}: {said}");
            assert!(
                said.contains("sudo pipeops-agent access managed"),
                "{level} {verb}: {said}"
            );
        }
    }
    tighten("managed");
    bench.accepted("c-7", "app.remove", &json!({"app": "web"}));
    assert_eq!(bench.outcome("c-7")["state"], "done");
    assert_eq!(bench.get("deployments", "{.items}"), "[]");
    assert_eq!(bench.plane.violations(), Vec::<String>::new());
}

#[test]
fn commands_that_reach_for_more_are_refused() {
    let Some(bench) = Bench::new("managed") else {
        return;
    };
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n";
    // An app of the machine's owner, in the same namespace.
    let own = bench.accounts.namespace();
    let role = format!("--clusterrole=pipeops-apps-deploy.{own}");
    let account = format!("--serviceaccount={own}:pipeops-apps");
    let bind = ["create", "rolebinding", "pipeops-apps", &role, &account];
    kubectl(&[&["-n", bench.namespace.as_str()], bind.as_slice()].concat());
    let file = bench.agent.folder().join("local.yaml");
    put(&file, map);
    let file = file.display().to_string();
    let (code, said) = bench.apps(&["apply", "-f", &file, "--namespace", &bench.namespace]);
    assert_eq!(code, 0, "{said}");
    // It is accepted; what is not there yet would be nobody's.
    kubectl(&[
        "-n",
        &bench.namespace,
        "wait",
        "--for=create",
        "configmap/settings",
        "--timeout=60s",
    ]);
    let chart = "apiVersion: helm.cattle.io/v1\nkind: HelmChart\nmetadata: {name: x}\nspec: {failurePolicy: abort, chartContent: aGVsbG8=}\n";
    let port = "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {type: NodePort, ports: [{port: 80}]}\n";
    let system = json!({"app": "x", "namespace": "kube-system", "manifests": map});
    let agents = json!({"app": "x", "namespace": own, "manifests": map});
    let default = json!({"app": "x", "namespace": "default", "manifests": map});
    let foreign = bench.apply("x", map);
    for (verb, args, why) in [
        (
            "app.apply",
            &bench.apply("local", map),
            "it was deployed on the machine",
        ),
        (
            "app.remove",
            &json!({"app": "local"}),
            "sudo pipeops-agent apps remove local",
        ),
        (
            "app.logs",
            &json!({"app": "local"}),
            "it was deployed on the machine",
        ),
        ("app.apply", &foreign, "does not belong to the app x"),
        (
            "app.apply",
            &system,
            "belongs to the cluster or to the agent",
        ),
        (
            "app.apply",
            &agents,
            "belongs to the cluster or to the agent",
        ),
        ("app.apply", &default, "default is never managed"),
        (
            "app.apply",
            &bench.apply("x", chart),
            "only root deploys, changes and removes charts",
        ),
        ("app.apply", &bench.apply("x", port), "access.expose"),
    ] {
        let said = bench.refused("same-id", verb, args);
        assert!(said.contains(why), "{verb}: {said}");
    }
    nonsense_is_refused(&bench);
    late_and_many_commands_are_answered(&bench, map);
}

fn nonsense_is_refused(bench: &Bench) {
    for (verb, args, why) in [
        (
            "app.apply",
            &json!({"app": "x", "manifests": 7}),
            "send them as",
        ),
        ("app.apply", &json!("x"), "send them as"),
        ("app.restart", &json!({"app": ["x"]}), "send them as"),
        (
            "app.restart",
            &json!({"app": "none"}),
            "there is no app none",
        ),
        ("app.explode", &json!({}), "this agent knows app.apply, "),
        (
            "app.apply",
            &json!({"app": "x", "manifests": "x".repeat(10 << 20)}),
            "524288 is the most",
        ),
    ] {
        let said = bench.refused("same-id", verb, args);
        assert!(said.contains(why), "{verb}: {said}");
    }
}

fn late_and_many_commands_are_answered(bench: &Bench, map: &str) {
    let mark = bench.plane.mark();
    let late = json!({
        "id": "late", "verb": "app.restart", "args": {"app": "web"},
        "issued_at": "2026-01-01T00:00:00Z", "deadline": "2026-01-01T00:00:01Z",
    });
    bench.plane.send("edge_command", None, late);
    let answer = bench.plane.answer(mark, "late", SOON).unwrap();
    assert!(
        answer["error"].as_str().unwrap().contains("it expired at"),
        "{answer:#}"
    );
    // Without an id there is nothing to answer; of a flood each one is answered, and the link
    // stays.
    bench
        .plane
        .send("edge_command", None, json!({"verb": "app.restart"}));
    for number in 0..1_000 {
        let args = json!({"app": "none"});
        bench
            .plane
            .command(&format!("flood-{number}"), "app.restart", &args);
    }
    let last = bench.plane.answer(mark, "flood-999", SOON).unwrap();
    assert_eq!(last["state"], "refused");
    bench.accepted(
        "after",
        "app.apply",
        &bench.apply("after", &map.replace("settings", "after")),
    );
    assert_eq!(bench.plane.sessions().len(), 1);
    assert_eq!(bench.plane.violations(), Vec::<String>::new());
}
