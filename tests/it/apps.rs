//! Apps on the real cluster, by the command line as root: deployed under the account that root lets
//! in, judged, explained, and never more than what is ours.

mod auto_rollback;
mod cancel;
mod charts;
mod command;
mod command_git;
mod custom;
mod cuts;
mod digests;
mod drift;
mod folder;
mod forge;
mod git;
mod half_written;
mod kept;
mod last_lines;
mod ordered;
mod pins;
mod promises;
mod reread;
mod run_first;
mod scaled;
mod since;
mod slots;
mod ssh;
mod standby;
mod storm;
mod suggest;
mod supersede;
mod who;

use std::{path::Path, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use plane::{Direction, Options, Plane};
use serde_json::{Value, json};

use crate::{
    accounts::{Accounts, GrantScope},
    agent::{Agent, clock, command, put, until_every},
    cluster::{Held, calm, kubectl, leave},
};

/// A value that must be nowhere but in the cluster.
const SEED: &str = "s3ed-4f1c9e";
const IMAGE: &str = "pipeops-test.invalid/testpod:1";
/// On a machine with other things to do.
const SOON: Duration = Duration::from_secs(60);

struct Bench {
    agent: Agent,
    accounts: Accounts,
    namespace: String,
    plane: Plane,
    _cluster: Held,
}

impl Bench {
    fn new() -> Option<Self> {
        Self::prepared(|agent| agent)
    }

    /// With an agent that is prepared before it starts.
    fn prepared(prepare: impl FnOnce(Agent) -> Agent) -> Option<Self> {
        let held = calm()?;
        let accounts = Accounts::new(GrantScope::Managed);
        let namespace = format!("apps-of-{}", accounts.namespace());
        kubectl(&["create", "namespace", &namespace]);
        let plane = Plane::start(Options::default()).unwrap();
        let kubeconfig = accounts.kubeconfig("pipeops-agent");
        let mut agent = Agent::new(&plane)
            .with("KUBECONFIG", kubeconfig.display().to_string())
            .with("PIPEOPS_AGENT_NAMESPACE", accounts.namespace())
            .with("PIPEOPS_AGENT_GO_STATE_NAMESPACE", accounts.namespace());
        agent = prepare(agent);
        agent.start();
        agent.until_linked();
        Some(Self {
            agent,
            accounts,
            namespace,
            plane,
            _cluster: held,
        })
    }

    /// What root does so that apps may be deployed there.
    fn bind(&self) {
        self.bind_in(&self.namespace);
    }

    fn bind_in(&self, namespace: &str) {
        let own = self.accounts.namespace();
        let role = format!("--clusterrole=pipeops-apps-deploy.{own}");
        let account = format!("--serviceaccount={own}:pipeops-apps");
        kubectl(&[
            "-n",
            namespace,
            "create",
            "rolebinding",
            "pipeops-apps",
            &role,
            &account,
        ]);
    }

    /// A command of the family: its exit code and everything that it said.
    fn apps(&self, words: &[&str]) -> (i32, String) {
        Self::apps_of(&self.agent, words)
    }

    fn apps_of(agent: &Agent, words: &[&str]) -> (i32, String) {
        let output = agent
            .command(&[&["apps"], words].concat())
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.code().unwrap(),
            String::from_utf8(said).unwrap(),
        )
    }

    fn apply(&self, app: &str, manifests: &str) -> (i32, String) {
        let file = self.agent.folder().join(format!("{app}.yaml"));
        put(&file, manifests);
        let file = file.display().to_string();
        self.apps(&["apply", "-f", &file, "--namespace", &self.namespace])
    }

    fn why(&self, app: &str) -> (i32, Value) {
        let (code, said) = self.apps(&["why", app, "--json"]);
        (
            code,
            serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}")),
        )
    }

    fn until_verdict(&self, app: &str, verdict: &str) -> (i32, Value) {
        let what = format!("{app} is {verdict}");
        until_every(Duration::from_millis(500), &what, SOON, || {
            let (code, why) = self.why(app);
            (why["verdict"] == verdict).then_some((code, why))
        })
    }

    /// Waits until the change to a revision of an app is over and in this state. Returns why.
    fn until_ended(&self, app: &str, revision: u64, state: &str) -> Value {
        let what = format!("revision {revision} is {state}");
        until_every(drift::LOOK, &what, SOON, || {
            let record = self.record(app);
            let last = record["revisions"].as_array()?.last()?["number"].clone();
            let change = self.why(app).1["change"].clone();
            let is_it =
                last == revision && change["state"] == state && record["change"]["stage"] == "over";
            is_it.then(|| change["why"].clone())
        })
    }

    fn get(&self, object: &str, fields: &str) -> String {
        let fields = format!("jsonpath={fields}");
        kubectl(&[
            "-n",
            &self.namespace,
            "get",
            object,
            "--show-managed-fields",
            "-o",
            &fields,
        ])
    }

    /// The record of an app.
    fn record(&self, app: &str) -> Value {
        let own = self.accounts.namespace();
        let secret = format!("secret/pipeops-app.{app}");
        let packed = kubectl(&["-n", own, "get", &secret, "-o", "jsonpath={.data.record}"]);
        let record = STANDARD.decode(packed).unwrap();
        serde_json::from_slice(&record).unwrap()
    }

    /// Changes the record of an app, as nobody but the agent does.
    fn change_record(&self, app: &str, change: impl Fn(&mut Value)) {
        let own = self.accounts.namespace();
        let secret = format!("secret/pipeops-app.{app}");
        let mut record = self.record(app);
        change(&mut record);
        let packed = STANDARD.encode(record.to_string());
        let patch = json!({"data": {"record": packed}}).to_string();
        kubectl(&["-n", own, "patch", &secret, "--type=merge", "-p", &patch]);
    }

    fn objects(&self, kind: &str) -> String {
        kubectl(&["-n", &self.namespace, "get", kind, "-o", "name"])
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        leave(&self.namespace);
    }
}

fn config_map(name: &str, value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{value: {value}}}\n"
    )
}

fn deployment(name: &str, more: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    \
         metadata: {{labels: {{app: {name}}}}}\n    spec:\n      terminationGracePeriodSeconds: 1\n      containers:\n      \
         - {{name: web, image: \"{IMAGE}\", imagePullPolicy: Never{more}}}\n"
    )
}

fn holds(folder: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(holds(&path, text));
        } else if let Ok(content) = std::fs::read(&path)
            && content
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        {
            found.push(path.display().to_string());
        }
    }
    found
}

#[test]
fn an_app_is_deployed_where_root_lets_it_and_says_why_it_fails() {
    let Some(bench) = Bench::new() else { return };
    let secret = format!(
        "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: keys}}\nstringData: {{password: {SEED}}}\n"
    );
    let broken = deployment("web", ", envFrom: [{configMapRef: {name: absent}}]") + &secret;
    // Nobody has let the account in: it says so, with the line that does.
    let (code, said) = bench.apply("web", &broken);
    assert_eq!(code, 2, "{said}");
    assert!(
        said.contains("create rolebinding pipeops-apps --clusterrole=pipeops-apps-deploy."),
        "{said}"
    );
    assert_eq!(
        bench.apps(&["list"]).1,
        "no apps: sudo pipeops-agent apps apply -f FILE --namespace NAME\n"
    );
    bench.bind();
    // A Secret that cannot be read is refused without its value.
    let odd =
        format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: keys}}\nstringData: [{SEED}]\n");
    let (code, said) = bench.apply("odd", &odd);
    assert!(code == 2 && !said.contains(SEED), "{said}");
    let (code, said) = bench.apply("web", &broken);
    assert_eq!(code, 0, "{said}");
    let (code, why) = bench.until_verdict("web", "bad");
    assert_eq!(
        (code, &why["cause"]),
        (1, &json!("config.missing")),
        "{why:#}"
    );
    assert!(
        why["sentence"]
            .as_str()
            .unwrap()
            .contains("configmap \"absent\" not found"),
        "{why:#}"
    );
    assert_eq!(why["running"]["revision"], 1, "{why:#}");
    // A failed first deploy stays for inspection.
    assert!(bench.objects("deployments").contains("deployment.apps/web"));
    // What is mended is under way, and soaks.
    let (code, said) = bench.apply("web", &(deployment("web", "") + &secret));
    assert_eq!(code, 0, "{said}");
    let (_, why) = bench.until_verdict("web", "soaking");
    assert_eq!(
        (&why["revision"], &why["running"]["verdict"]),
        (&json!(2), &json!("good")),
        "{why:#}"
    );
    // A restart goes on with it.
    let mut bench = bench;
    bench.agent.kill();
    bench.agent.start();
    bench.agent.until_linked();
    let (_, why) = bench.until_verdict("web", "soaking");
    assert_eq!(why["change"]["state"], "under way", "{why:#}");
    let (code, said) = bench.apps(&["remove", "web"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(bench.objects("deployments,secrets"), "");
    is_nowhere(&mut bench);
}

/// The value of the Secret is in no byte that the agent wrote: not on disk, in the log, on the wire
/// or in the support bundle, neither as it is nor as the API has it.
fn is_nowhere(bench: &mut Bench) {
    let unpacked = bench.agent.folder().join("unpacked");
    std::fs::create_dir(&unpacked).unwrap();
    let bundle = unpacked.with_extension("tar.gz");
    let file = bundle.display().to_string();
    let (code, said) = bench.agent.cli(&["bundle", "--yes", "--output", &file]);
    assert_eq!(code, 0, "{said}");
    let tar = command("tar")
        .args(["-xzf", &file, "-C"])
        .arg(&unpacked)
        .status();
    assert!(tar.unwrap().success());
    assert_ne!(holds(&unpacked, "pipeops-agent"), Vec::<String>::new());
    bench.agent.stop();
    for name in ["web.yaml", "odd.yaml"] {
        std::fs::remove_file(bench.agent.folder().join(name)).unwrap();
    }
    for text in [SEED, STANDARD.encode(SEED).as_str()] {
        assert_eq!(holds(bench.agent.folder(), text), Vec::<String>::new());
        assert!(!bench.agent.log().contains(text));
        let frames = bench.plane.frames();
        let of_agent = frames
            .iter()
            .filter(|frame| frame.direction == Direction::FromAgent);
        let texts: Vec<_> = of_agent.filter_map(|frame| frame.text.as_ref()).collect();
        assert!(!texts.is_empty());
        assert!(texts.iter().all(|sent| !sent.contains(text)));
    }
}

#[test]
fn what_belongs_to_others_is_never_taken_over() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {owner: them}\n";
    let file = bench.agent.folder().join("theirs.yaml");
    // They forge everything that they can write.
    put(&file, &map.replace("{name: settings}", "{name: settings, labels: {app.kubernetes.io/managed-by: pipeops-apps}, annotations: {pipeops.io/created-by: app-0}}"));
    kubectl(&[
        "-n",
        &bench.namespace,
        "apply",
        "-f",
        &file.display().to_string(),
    ]);
    let before = bench.get("configmap/settings", "{@}");
    let ours = map.replace("them", "us") + "---\n" + &map.replace("settings", "other");
    let (code, said) = bench.apply("shop", &ours);
    assert_eq!(code, 2, "{said}");
    assert!(
        said.contains("exists and does not belong to the app shop"),
        "{said}"
    );
    assert_eq!(before, bench.get("configmap/settings", "{@}"));
    assert!(
        !bench.objects("configmaps").contains("other"),
        "nothing was written"
    );
    forged_nonces_are_worth_nothing(&bench, map);
    accounts_stay_apart(&bench);
    for namespace in ["kube-system", bench.accounts.namespace()] {
        let file = bench.agent.folder().join("shop.yaml").display().to_string();
        let (code, said) = bench.apps(&["apply", "-f", &file, "--namespace", namespace]);
        assert!(
            code == 2 && said.contains("belongs to the cluster or to the agent"),
            "{said}"
        );
    }
}

#[test]
fn only_root_and_the_operators_of_the_settings_deploy() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let plane = Plane::start(Options::default()).unwrap();
    let of = |operators: &str| {
        let mut agent = Agent::new(&plane).with("PIPEOPS_APPS_OPERATORS", operators);
        agent.start();
        agent.until_linked();
        agent
    };
    // Who may deploy finds out that there is no cluster; the group only opens the socket.
    let says = |agent: &Agent, user: u32, wanted: &str| {
        let (_, said) = agent.cli_as(user, 0, &["apps", "restart", "web"]);
        assert!(said.contains(wanted), "{user}: {said}");
    };
    let (refused, let_in) = ("only root and apps.operators", "has no cluster");
    let agent = of("");
    says(&agent, 0, let_in);
    says(&agent, 65_534, refused);
    let agent = of("somebody-else, nobody");
    says(&agent, 65_534, let_in);
    says(&agent, 65_531, refused);
    // Groups count by membership; this one by the group of the process.
    let agent = of("@root");
    says(&agent, 65_531, let_in);
    // With a repository comes a file that the agent reads and sends.
    let follow = ["apps", "deploy", "web", "--namespace", "shop", "--git"];
    let follow = [&follow[..], &["https://git.example/web.git"]].concat();
    let (_, said) = agent.cli_as(65_531, 0, &follow);
    assert!(said.contains("only root, the agent's own user"), "{said}");
}

#[test]
fn what_kubectl_made_is_adopted_on_demand() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {owner: them, only: theirs}\n";
    let theirs = bench.agent.folder().join("theirs.yaml");
    put(&theirs, map);
    let theirs = theirs.display().to_string();
    kubectl(&["-n", &bench.namespace, "apply", "-f", &theirs]);
    let label = ["label", "configmap", "settings", "team=blue"];
    kubectl(&[&["-n", &bench.namespace], label.as_slice()].concat());
    let before = bench.get("configmap/settings", "{@}");
    let ours = map.replace("them, only: theirs", "us");
    let file = bench.agent.folder().join("shop.yaml");
    put(&file, &ours);
    let file = file.display().to_string();
    let apply = |more: &[&str]| {
        let words = ["apply", "-f", &file, "--namespace", &bench.namespace];
        bench.apps(&[&words, more].concat())
    };
    let (code, said) = apply(&[]);
    assert!(code == 2 && said.contains("--adopt --dry-run"), "{said}");
    let (code, said) = apply(&["--adopt", "--dry-run"]);
    assert_eq!(code, 1, "{said}");
    for line in [
        "/settings adopted\n",
        "  data.owner: them -> us\n",
        "  data.only: (set by kubectl) -> -\n",
    ] {
        assert!(said.contains(line), "{said}");
    }
    assert!(!said.contains("labels"), "{said}");
    assert_eq!(before, bench.get("configmap/settings", "{@}"));
    let (code, said) = apply(&["--adopt"]);
    assert!(
        code == 0 && said.contains("data.owner: them -> us"),
        "{said}"
    );
    bench.until_verdict("shop", "soaking");
    let fields =
        "{.data} {.metadata.labels} {.metadata.annotations} {.metadata.managedFields[*].manager}";
    assert_eq!(
        bench.get("configmap/settings", fields),
        r#"{"owner":"us"} {"team":"blue"}  pipeops-apps kubectl-label"#
    );
    // Another app does not get it.
    let (code, said) = bench.apply("other", &ours);
    assert!(code == 2 && said.contains("does not belong"), "{said}");
    let words = [
        "apply",
        "-f",
        &file,
        "--namespace",
        &bench.namespace,
        "--app",
        "other",
    ];
    let (code, said) = bench.apps(&[words.as_slice(), &["--adopt"]].concat());
    assert!(
        code == 2 && said.contains("belongs to another app"),
        "{said}"
    );
    assert_eq!(bench.apps(&["remove", "shop"]).0, 0);
    assert!(!bench.objects("configmaps").contains("settings"));
}

/// The state after a power cut between the write of an object and the note of its UID, with
/// somebody who forges the second object.
fn forged_nonces_are_worth_nothing(bench: &Bench, map: &str) {
    let named = |name: &str| map.replace("settings", name);
    let (code, said) = bench.apply("cut", &named("first"));
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("cut", "soaking");
    let nonce = "{.metadata.annotations.pipeops\\.io/created-by}";
    let seen = bench.get("configmap/first", nonce);
    assert_eq!(seen.len(), 32, "{seen}");
    let secret = "0123456789abcdef0123456789abcdef";
    let entry = json!({"api_version": "v1", "kind": "ConfigMap", "name": "second", "uid": "", "nonce": secret});
    bench.change_record("cut", |record| {
        assert_eq!(record["inventory"][0]["nonce"], "", "{record:#}");
        record["inventory"]
            .as_array_mut()
            .unwrap()
            .push(entry.clone());
    });
    let create = |nonce: &str| {
        let file = bench.agent.folder().join("second.yaml");
        let forged =
            format!("{{name: second, annotations: {{pipeops.io/created-by: \"{nonce}\"}}}}");
        put(&file, &map.replace("{name: settings}", &forged));
        let file = file.display().to_string();
        kubectl(&["-n", &bench.namespace, "create", "-f", &file]);
    };
    let both = named("first") + "---\n" + &named("second").replace("them", "us");
    // Everything that stands on what is there already is forged.
    create(&seen);
    let (code, said) = bench.apply("cut", &both);
    assert!(code == 2 && said.contains("does not belong"), "{said}");
    assert_eq!(bench.get("configmap/second", "{.data.owner}"), "them");
    kubectl(&["-n", &bench.namespace, "delete", "configmap", "second"]);
    // What was written under the nonce of the record is ours.
    create(secret);
    let (code, said) = bench.apply("cut", &both);
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("cut", "soaking");
    assert_eq!(bench.get("configmap/second", "{.data.owner}"), "us");
    assert_eq!(bench.apps(&["remove", "cut"]).0, 0);
}

#[test]
fn changes_of_many_apps_wait_for_their_turn() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let map = |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n");
    for name in ["a", "b", "c", "d", "e", "f", "g", "h", "late"] {
        let (code, said) = bench.apply(name, &map(name));
        assert_eq!(code, 0, "{said}");
    }
    let (_, why) = bench.until_verdict("late", "waiting");
    let sentence = why["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("it waits for its turn: 8 "), "{why:#}");
    assert!(!bench.objects("configmaps").contains("late"));
    let (code, said) = bench.apps(&["remove", "a"]);
    assert!(
        code == 0 || said.contains("it waits for its turn"),
        "{said}"
    );
    bench.until_verdict("late", "soaking");
    assert!(bench.objects("configmaps").contains("late"));
}

fn accounts_stay_apart(bench: &Bench) {
    // The control plane's account reads and writes no record of an app.
    for verb in ["get", "list", "create", "update", "delete"] {
        let can = bench.accounts.run(&[
            "auth",
            "can-i",
            verb,
            "secrets",
            "-n",
            bench.accounts.namespace(),
        ]);
        assert_eq!(String::from_utf8_lossy(&can.stdout).trim(), "no", "{verb}");
    }
    // And the agent's own account writes no workloads.
    let agents = bench
        .accounts
        .kubectl_as(
            "pipeops-agent",
            &[
                "auth",
                "can-i",
                "create",
                "deployments",
                "-n",
                &bench.namespace,
            ],
        )
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&agents.stdout).trim(), "no");
}

#[test]
fn a_kill_and_missing_rights_only_delay_a_change() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.bind();
    let map = |data: &str| {
        format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: kept, finalizers: [test.example/wait]}}\ndata: {data}\n"
        )
    };
    let (code, said) = bench.apply("web", &(deployment("web", "") + &map("{a: b, old: x}")));
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("web", "soaking");
    // A field that the next version no longer has is gone, also of what was created.
    let (code, said) = bench.apply("web", &(deployment("web", "") + &map("{a: b}")));
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("web", "soaking");
    let kept = bench.get(
        "configmap/kept",
        "{.data}{.metadata.managedFields[*].operation}",
    );
    assert_eq!(kept, r#"{"a":"b"}Apply"#);
    // Rights that are taken away meanwhile are what is missing, not the API; and watches that are
    // open are cut.
    kubectl(&[
        "-n",
        &bench.namespace,
        "delete",
        "rolebinding",
        "pipeops-apps",
    ]);
    let taken = clock();
    let (_, why) = bench.until_verdict("web", "waiting");
    let cut = clock() - taken;
    assert!(cut < Duration::from_secs(10), "{cut:?}");
    assert_eq!(why["cause"], "access.refused", "{why:#}");
    let sentence = why["sentence"].as_str().unwrap();
    assert!(
        sentence.starts_with("the account pipeops-apps may not "),
        "{why:#}"
    );
    let fix = why["fix"].as_str().unwrap();
    assert!(fix.contains("create rolebinding pipeops-apps "), "{why:#}");
    bench.bind();
    bench.until_verdict("web", "soaking");
    // A removal names the finalizer that blocks, outlives a kill, and ends by itself.
    let (code, said) = bench.apps(&["remove", "web"]);
    assert!(
        code == 2 && said.contains("ConfigMap") && said.contains("finalizers: test.example/wait"),
        "{said}"
    );
    bench.agent.kill();
    bench.agent.start();
    bench.agent.until_linked();
    let (_, why) = bench.until_verdict("web", "waiting");
    assert_eq!(why["cause"], "object.finalizer", "{why:#}");
    let patch = r#"{"metadata":{"finalizers":null}}"#;
    kubectl(&[
        "-n",
        &bench.namespace,
        "patch",
        "configmap",
        "kept",
        "--type=merge",
        "-p",
        patch,
    ]);
    until_every(Duration::from_millis(500), "it is removed", SOON, || {
        bench.apps(&["list"]).1.starts_with("no apps").then_some(())
    });
    assert_eq!(bench.objects("deployments"), "");
}

#[test]
fn an_app_that_runs_is_scaled_restarted_compared_and_left_alone() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let secret =
        "---\napiVersion: v1\nkind: Secret\nmetadata: {name: keys}\nstringData: {password: old}\n";
    let whole = deployment("web", "") + secret;
    let until_soaking = |(code, said): (i32, String)| {
        assert_eq!(code, 0, "{said}");
        bench.until_verdict("web", "soaking");
    };
    let replicas = || bench.get("deployment/web", "{.spec.replicas}");
    until_soaking(bench.apply("web", &whole));
    let (code, said) = bench.apps(&["logs", "web", "--tail", "5"]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = bench.apps(&["logs", "web", "--previous"]);
    assert!(code == 2 && said.contains("did not run before"), "{said}");
    let (code, said) = bench.apps(&["events", "web"]);
    assert!(
        code == 0 && said.contains("ScalingReplicaSet") && said.contains("Pod apps-of-"),
        "{said}"
    );
    shows_differences(&bench, &whole);
    // The number of Pods outlives a deployment, until it is given back to the manifest.
    until_soaking(bench.apps(&["scale", "web", "--to", "2"]));
    assert_eq!(replicas(), "2");
    until_soaking(bench.apply("web", &whole));
    assert_eq!(replicas(), "2");
    until_soaking(bench.apps(&["scale", "web", "--to", "manifest"]));
    assert_eq!(replicas(), "1");
    kubectl(&[
        "-n",
        &bench.namespace,
        "autoscale",
        "deployment",
        "web",
        "--max=3",
    ]);
    let (code, said) = bench.apps(&["scale", "web", "--to", "2"]);
    assert!(
        code == 2 && said.contains("HorizontalPodAutoscaler web does that"),
        "{said}"
    );
    let template = "{.spec.template.metadata.annotations}";
    assert_eq!(bench.get("deployment/web", template), "");
    until_soaking(bench.apps(&["restart", "web"]));
    let restarted = bench.get("deployment/web", template);
    assert!(restarted.contains("pipeops.io/restarted-at"), "{restarted}");
    // A paused app says so.
    assert_eq!(bench.apps(&["pause", "web"]).0, 0);
    assert!(bench.apps(&["list"]).1.contains("(paused)"));
    assert_eq!(bench.why("web").1["paused"], true);
    assert_eq!(bench.apps(&["resume", "web"]).0, 0);
    assert_eq!(bench.why("web").1["paused"], false);
}

fn shows_differences(bench: &Bench, whole: &str) {
    let diff = |manifests: &str| {
        let file = bench.agent.folder().join("diff.yaml");
        put(&file, manifests);
        let file = file.display().to_string();
        bench.apps(&[
            "diff",
            "-f",
            &file,
            "--app",
            "web",
            "--namespace",
            &bench.namespace,
        ])
    };
    let nothing = (0, "nothing would change\n".to_owned());
    assert_eq!(diff(whole), nothing);
    // Manifests are longer than other requests.
    let long = format!("# {}\n{whole}", "long ".repeat(10_000));
    assert_eq!(diff(&long), nothing);
    let other = whole
        .replace("spec:\n  selector", "spec:\n  replicas: 2\n  selector")
        .replace("password: old", &format!("password: {SEED}"));
    let (code, said) = diff(&other);
    assert!(
        code == 1
            && said.contains("  spec.replicas: 1 -> 2\n")
            && said.contains("data.password: (hidden) -> (hidden)"),
        "{said}"
    );
}

#[test]
fn an_image_is_deployed_and_changed_by_a_few_words() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let file = bench.agent.folder().join("key.txt");
    put(&file, &format!("{SEED}\n"));
    let key = format!("KEY={}", file.display());
    let first = [
        "deploy",
        "web",
        "--namespace",
        &bench.namespace,
        "--image",
        IMAGE,
        "--env",
        "A=1",
        "--env",
        "B=2",
        "--secret",
        &key,
    ];
    let (code, said) = bench.apps(&["deploy", "web", "--image", IMAGE]);
    assert!(code == 2 && said.contains("add --namespace NAME"), "{said}");
    let (code, said) = bench.apps(&first);
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("web", "soaking");
    let value = bench.get("secret/web-env", "{.data.KEY}");
    let before = bench.get("deployment/web", "{.spec.template.spec}");
    let (code, said) = bench.apps(&["deploy", "web", "--env", "B=3"]);
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("web", "soaking");
    let after = bench.get("deployment/web", "{.spec.template.spec}");
    assert_eq!(
        before.replace(r#"{"name":"B","value":"2"}"#, r#"{"name":"B","value":"3"}"#),
        after
    );
    assert_ne!(before, after);
    assert_eq!(bench.get("secret/web-env", "{.data.KEY}"), value);
    let (code, said) = bench.apps(&["deploy", "web", "--host", "web.example"]);
    assert!(code == 2 && said.contains("--port PORT"), "{said}");
    assert!(!bench.agent.log().contains(SEED));
}

/// From the command that deploys a version that cannot start to the last good one: 30 s, and a
/// second that its Pods may take to end.
const ROLLED_BACK_WITHIN: Duration = Duration::from_secs(31);

/// Deploys a bad version of `web`: what the command gave, and the time until the version before it
/// ran again.
fn rolled_back<T: Send>(bench: &Bench, apply: impl FnOnce() -> T + Send) -> (T, Duration) {
    let began = clock();
    std::thread::scope(|scope| {
        let command = "{.spec.template.spec.containers[0].command}";
        let look = Duration::from_millis(100);
        let change = scope.spawn(apply);
        until_every(look, "the bad version is written", SOON, || {
            let is_bad = bench.get("deployment/web", command).contains("missing");
            is_bad.then_some(())
        });
        // It is told to be good a minute later, when it has soaked.
        until_every(look, "the version before runs again", SOON, || {
            let status = bench.get("deployment/web", "{.status}");
            let status: Value = serde_json::from_str(&status).unwrap_or_default();
            let is_whole = status["updatedReplicas"] == 1
                && status["availableReplicas"] == 1
                && status["replicas"] == 1;
            (is_whole && bench.get("deployment/web", command).is_empty()).then_some(())
        });
        let took = clock() - began;
        (change.join().unwrap(), took)
    })
}

/// The soak takes a minute each time, so this runs with the recordings: make corpus.
#[test]
fn a_version_that_does_not_work_is_rolled_back_by_itself() {
    if std::env::var_os("PIPEOPS_CORPUS").is_none() {
        return;
    }
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let extra = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: only-new}\n";
    let apply = |manifests: &str| {
        let file = bench.agent.folder().join("web.yaml");
        put(&file, manifests);
        bench.apps(&[
            "apply",
            "-f",
            &file.display().to_string(),
            "--namespace",
            &bench.namespace,
            "--wait",
        ])
    };
    let (code, said) = apply(&deployment("web", ""));
    assert_eq!(code, 0, "{said}");
    let bad = deployment("web", ", command: [/app/missing]") + extra;
    let ((code, said), took) = rolled_back(&bench, || apply(&bad));
    assert_eq!(code, 1, "{said}");
    println!("from apply to the last good version: {took:?}");
    assert!(took < ROLLED_BACK_WITHIN, "{took:?}");
    assert!(said.contains("rolled back to revision 1"), "{said}");
    assert!(
        said.contains("\ngoing back to revision 1, soaking: "),
        "{said}"
    );
    let (code, why) = bench.why("web");
    assert_eq!(
        (code, &why["cause"], &why["running"]["verdict"]),
        (1, &json!("container.start"), &json!("good")),
        "{why:#}"
    );
    assert_eq!(
        (&why["running"]["revision"], &why["change"]["state"]),
        (&json!(1), &json!("undone")),
        "{why:#}"
    );
    assert!(
        !bench.objects("configmaps").contains("only-new"),
        "what only the bad version had is gone"
    );
    let (_, history) = bench.apps(&["history", "web"]);
    assert!(
        history.contains("good") && history.contains("bad"),
        "{history}"
    );
    // A paused app stays as it is.
    assert_eq!(bench.apps(&["pause", "web"]).0, 0);
    let (code, said) = apply(&deployment("web", ", command: [/app/other]"));
    assert!(
        code == 1 && said.contains("stays, because the app is paused"),
        "{said}"
    );
    assert_eq!(bench.why("web").1["running"]["revision"], 3);
}

/// A Job that runs this once.
fn job(script: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: once}}\nspec:\n  backoffLimit: 0\n  template:\n    spec:\n      \
         restartPolicy: Never\n      terminationGracePeriodSeconds: 0\n      containers:\n      \
         - {{name: once, image: \"{IMAGE}\", imagePullPolicy: Never, command: [sh, -c, \"{script}\"]}}\n"
    )
}

#[test]
fn a_job_that_failed_runs_again_and_never_counts_as_good() {
    let Some(bench) = Bench::new() else { return };
    let (code, said) = bench.apply("once", &job("exit 3"));
    assert!(code == 2 && said.contains("create rolebinding"), "{said}");
    bench.bind();
    let (code, said) = bench.apply("once", &job("exit 3"));
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("once", "bad");
    let uid = bench.get("job/once", "{.metadata.uid}");
    let (code, said) = bench.apps(&["restart", "once"]);
    assert!(code == 2 && said.contains("has no Deployment"), "{said}");
    // Its namespace is known.
    let file = bench.agent.folder().join("once.yaml");
    let again = ["apply", "-f", &file.display().to_string()];
    let (code, said) = bench.apps(&again);
    assert_eq!(code, 0, "{said}");
    let (_, why) = bench.until_verdict("once", "bad");
    assert_eq!(
        (&why["revision"], &why["cause"]),
        (&json!(2), &json!("job.failed"))
    );
    let running = &why["running"];
    assert_eq!(
        (&running["verdict"], &running["cause"]),
        (&json!("bad"), &json!("job.failed")),
        "{why:#}"
    );
    assert_ne!(bench.get("job/once", "{.metadata.uid}"), uid);
    // Content that was kept by a change that was cut off before it was accepted is not deployed in
    // place of what is asked for.
    let secret = |number: u64| format!("pipeops-app.once.r{number}");
    let own = bench.accounts.namespace();
    let kept = kubectl(&["-n", own, "get", "secret", &secret(2), "-o", "json"]);
    let mut kept: Value = serde_json::from_str(&kept).unwrap();
    kept["metadata"] =
        json!({"name": secret(3), "namespace": own, "labels": kept["metadata"]["labels"]});
    let left = bench.agent.folder().join("left.json");
    put(&left, &kept.to_string());
    kubectl(&["create", "-f", &left.display().to_string()]);
    let (code, said) = bench.apply("once", &job("true"));
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("once", "soaking");
    let ran = bench.get("job/once", "{.spec.template.spec.containers[0].command[2]}");
    assert_eq!(ran, "true");
    // What succeeded does not run again.
    let uid = bench.get("job/once", "{.metadata.uid}");
    let (code, said) = bench.apps(&again);
    assert_eq!(code, 0, "{said}");
    until_every(
        Duration::from_millis(200),
        "revision 4 is judged",
        SOON,
        || {
            let (_, why) = bench.why("once");
            (why["revision"] == 4 && why["verdict"] == "soaking").then_some(())
        },
    );
    assert_eq!(bench.get("job/once", "{.metadata.uid}"), uid);
}

#[test]
fn two_changes_at_once_are_one_after_the_other() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let map = |value: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings}}\ndata: {{value: {value}}}\n"
        )
    };
    for round in 0..5 {
        let deploy = |side: &str| {
            let value = format!("{side}{round}");
            let file = bench.agent.folder().join(format!("{side}.yaml"));
            put(&file, &map(&value));
            let file = file.display().to_string();
            let words = [
                "apply",
                "-f",
                &file,
                "--app",
                "web",
                "--namespace",
                &bench.namespace,
                "--json",
            ];
            let (code, said) = bench.apps(&words);
            // The one that comes second is told so, and not that a record changed under it.
            assert!(!said.contains("the record of the app"), "{said}");
            let said: Value = serde_json::from_str(&said).unwrap();
            (code == 0).then(|| (said["revision"].as_u64().unwrap(), value))
        };
        let accepted = std::thread::scope(|scope| {
            let left = scope.spawn(|| deploy("left"));
            [deploy("right"), left.join().unwrap()]
        });
        let mut accepted: Vec<_> = accepted.into_iter().flatten().collect();
        accepted.sort();
        let (revision, value) = accepted.last().unwrap();
        if let [(one, _), (other, _)] = accepted.as_slice() {
            assert_ne!(one, other, "each has a number of its own");
        }
        until_every(
            Duration::from_millis(100),
            "the last one is written",
            SOON,
            || {
                let (_, why) = bench.why("web");
                (why["revision"] == *revision && why["verdict"] == "soaking").then_some(())
            },
        );
        assert_eq!(&bench.get("configmap/settings", "{.data.value}"), value);
    }
    outlive_their_client(&bench, map);
}

/// A client that goes away leaves a change that goes on.
fn outlive_their_client(bench: &Bench, map: impl Fn(&str) -> String) {
    let file = bench.agent.folder().join("gone.yaml");
    let words = [
        "apps",
        "apply",
        "-f",
        &file.display().to_string(),
        "--app",
        "web",
    ];
    for round in 0..8 {
        put(&file, &map(&format!("gone{round}")));
        let mut client = bench.agent.command(&words).spawn().unwrap();
        let mut is_late = false;
        let part = Duration::from_millis(25 + 7 * round);
        until_every(part, "a part of its time", SOON, || {
            std::mem::replace(&mut is_late, true).then_some(())
        });
        client.kill().unwrap();
        client.wait().unwrap();
        let what = format!("what runs is judged after round {round}");
        until_every(Duration::from_millis(100), &what, SOON, || {
            let (_, why) = bench.why("web");
            let is_judged = ["soaking", "good"].map(|verdict| why["verdict"] == verdict);
            is_judged.contains(&true).then_some(())
        });
    }
}
