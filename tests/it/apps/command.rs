//! Apps that the control plane deploys by commands, against the real cluster: under its own account and the access policy.

use std::time::Duration;

use plane::{Options, Plane};
use serde_json::{Value, json};

use super::{IMAGE, SOON, deployment};
use crate::{
    accounts::{Accounts, Reach},
    agent::{Agent, until_every},
    cluster::{Held, calm, kubectl, leave},
};

/// An agent at a level, with a managed namespace.
struct Bench {
    agent: Agent,
    plane: Plane,
    namespace: String,
    _accounts: Accounts,
    _cluster: Held,
}

impl Bench {
    fn new(level: &str) -> Option<Self> {
        let held = calm()?;
        let accounts = Accounts::new(Reach::Managed);
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
        agent.start();
        agent.until_linked();
        let bench = Self {
            agent,
            plane,
            namespace,
            _accounts: accounts,
            _cluster: held,
        };
        bench.until_agreed();
        Some(bench)
    }

    /// Waits until the extension is agreed on: no command is taken before.
    fn until_agreed(&self) {
        let agreed = self
            .plane
            .wait_for(0, SOON, |frame| frame.is_from_agent("edge_hello_ack"));
        assert!(agreed.is_some(), "no edge_hello_ack");
    }

    fn commanded(&self, id: &str, verb: &str, args: &Value) -> Value {
        let answer = self.plane.commanded(id, verb, args, SOON);
        answer.unwrap_or_else(|| panic!("{id}: no answer; {}", self.agent.log()))
    }

    fn accepted(&self, id: &str, verb: &str, args: &Value) {
        let answer = self.commanded(id, verb, args);
        assert_eq!(
            answer,
            json!({"id": id, "state": "accepted"}),
            "{}",
            self.agent.log()
        );
    }

    /// The error and the fix of a refusal.
    fn refused(&self, id: &str, verb: &str, args: &Value) -> String {
        let answer = self.commanded(id, verb, args);
        assert_eq!(answer["state"], "refused", "{answer:#}");
        let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        format!("{}; fix: {}", text("error"), text("fix"))
    }

    fn outcome(&self, id: &str) -> Value {
        let outcome = self.plane.outcome(id, SOON);
        outcome.unwrap_or_else(|| panic!("{id}: no outcome; {}", self.agent.log()))
    }

    fn apply(&self, app: &str, manifests: &str) -> Value {
        json!({"app": app, "namespace": self.namespace, "manifests": manifests})
    }

    fn apps(&self, words: &[&str]) -> (i32, String) {
        let words = [&["apps"], words].concat();
        let output = self.agent.command(&words).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.code().unwrap(),
            String::from_utf8(said).unwrap(),
        )
    }

    fn until_verdict(&self, app: &str, verdict: &str) -> Value {
        let what = format!("{app} is {verdict}");
        until_every(Duration::from_millis(500), &what, SOON, || {
            let (_, said) = self.apps(&["why", app, "--json"]);
            let why: Value = serde_json::from_str(&said).unwrap_or_default();
            (why["verdict"] == verdict).then_some(why)
        })
    }

    fn get(&self, object: &str, fields: &str) -> String {
        let fields = format!("jsonpath={fields}");
        kubectl(&["-n", &self.namespace, "get", object, "-o", &fields])
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        leave(&self.namespace);
    }
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
    // The link is cut and the agent killed: what was accepted goes on, and is not begun again.
    bench.accepted("c-3", "app.restart", &json!({"app": "web"}));
    // The change that it took the place of is over.
    let outcome = bench.outcome("c-1");
    assert_eq!(outcome["state"], "failed", "{outcome:#}");
    bench.agent.kill();
    bench.agent.start();
    bench.agent.until_linked();
    let mark = bench.plane.mark();
    let agreed = bench
        .plane
        .wait_for(mark.saturating_sub(50), SOON, |frame| {
            frame.is_from_agent("edge_hello_ack")
        });
    assert!(agreed.is_some());
    for id in ["c-1", "c-3"] {
        let again = bench.commanded(id, "app.apply", &web);
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
fn what_the_access_policy_refuses_is_refused_by_its_level() {
    let Some(bench) = Bench::new("read-only") else {
        return;
    };
    let web = bench.apply("web", &deployment("web", ""));
    let said = bench.refused("c-1", "app.apply", &web);
    assert!(
        said.contains("access.level is \"read-only\", so changes and exec are refused"),
        "{said}"
    );
    assert!(said.contains("set access.level = \"managed\""), "{said}");
}
