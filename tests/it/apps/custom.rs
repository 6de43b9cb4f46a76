//! Custom resources on the real cluster: of groups that root allows, where its owner lets the
//! account have them, judged by what they say about themselves, and never more than what is ours.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Bench, SOON, deployment};
use crate::{
    agent::{Agent, put, until_every},
    cluster::{define, kubectl, leave_object, set_status},
};

const LOOK: Duration = Duration::from_millis(200);

/// A group of custom resources, until it is dropped.
pub(super) struct Group(String);

impl Group {
    pub(super) fn new(name: &str) -> Self {
        Self(format!("{name}{}.example.com", std::process::id()))
    }

    pub(super) fn name(&self) -> &str {
        &self.0
    }

    pub(super) fn definition(&self, (kind, plural): (&str, &str), scope: &str) -> Value {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let version = json!({"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": schema}});
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{}", self.0)},
            "spec": {"group": self.0, "scope": scope, "versions": [version],
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()}}})
    }

    /// Has the cluster know a kind of it.
    pub(super) fn knows(&self, agent: &Agent, names: (&str, &str), scope: &str) {
        let definition = self.definition(names, scope);
        let file = agent.folder().join("definition.json");
        put(&file, &definition.to_string());
        define(&file, &[&format!("{}.{}", names.1, self.0)]);
    }

    fn object(&self, kind: &str, name: &str, size: u32) -> String {
        format!(
            "apiVersion: {}/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{size: {size}}}\n",
            self.0
        )
    }

    fn widget(&self, name: &str) -> String {
        format!("widgets.{}/{name}", self.0)
    }
}

impl Bench {
    /// Runs lines of kubectl as the administrator, as they are shown to people.
    pub(super) fn does(lines: &str) {
        for line in lines.split(" && ") {
            let words: Vec<_> = line.split(' ').collect();
            assert_eq!(words[0], "kubectl", "{lines}");
            kubectl(&words[1..]);
        }
    }

    /// What a deployment is refused for, and its fix.
    fn refused(&self, manifests: &str) -> (String, String) {
        self.refused_in(&self.namespace, manifests)
    }

    fn refused_in(&self, namespace: &str, manifests: &str) -> (String, String) {
        let file = self.agent.folder().join("shop.yaml");
        put(&file, manifests);
        let file = file.display().to_string();
        let (code, said) = self.apps(&["apply", "-f", &file, "--namespace", namespace]);
        assert_eq!(code, 2, "{said}");
        let (error, fix) = said.split_once("fix: ").unwrap_or((&said, ""));
        (error.to_owned(), fix.trim_end().to_owned())
    }

    fn says(&self, object: &str, conditions: &Value) {
        let status = json!({"status": {"conditions": conditions}}).to_string();
        set_status(&self.namespace, object, &status);
    }
}

#[test]
fn custom_resources_are_deployed_where_root_and_the_cluster_allow_them() {
    let group = Group::new("one");
    let allowed = group.0.clone();
    let Some(bench) = Bench::prepared(|agent| {
        agent
            .with(
                "PIPEOPS_APPS_GROUPS",
                format!("other.example.com, {allowed}"),
            )
            .with("PIPEOPS_TEST_SOAK_MS", "1000")
    }) else {
        return;
    };
    bench.bind();
    group.knows(&bench.agent, ("Widget", "widgets"), "Namespaced");
    group.knows(&bench.agent, ("Planet", "planets"), "Cluster");
    group.knows(&bench.agent, ("Secret", "secrets"), "Namespaced");
    refuses_what_is_not_allowed(&bench, &group);

    let theirs = bench.agent.folder().join("theirs.yaml");
    put(&theirs, &group.object("Widget", "theirs", 1));
    kubectl(&[
        "-n",
        &bench.namespace,
        "apply",
        "-f",
        &theirs.display().to_string(),
    ]);
    let before = bench.get(&group.widget("theirs"), "{@}");
    // One that is called as what is built in is not taken for it.
    let all = ["a", "b"].map(|name| group.object("Widget", name, 1));
    let all = [all.join("---\n"), group.object("Secret", "a", 1)].join("---\n");
    // Root lets it into the namespace, and the owner of the cluster lets it have these as well.
    for resource in ["widgets", "secrets"] {
        let (error, fix) = bench.refused(&all);
        let may_not = format!("may not get {resource}");
        assert!(error.contains(&may_not), "{error}");
        Bench::does(&fix);
    }
    let (error, _) = bench.refused(&(all.clone() + "---\n" + &group.object("Widget", "theirs", 2)));
    assert!(error.contains("does not belong to the app"), "{error}");

    let (code, said) = bench.apply("shop", &all);
    assert_eq!(code, 0, "{said}");
    let (code, why) = bench.until_verdict("shop", "good");
    let sentence = "everything is applied; 3 custom resources are applied, readiness unknown";
    assert_eq!((code, &why["sentence"]), (0, &json!(sentence)), "{why:#}");

    is_judged_by_its_conditions(&bench, &group);
    is_kept_as_it_was_deployed(&bench, &group);

    goes_with_its_version(&bench, &group);
    assert_eq!(before, bench.get(&group.widget("theirs"), "{@}"));
    leave_object(&["crd", &format!("planets.{}", group.0)]);
    leave_object(&["crd", &format!("secrets.{}", group.0)]);
    leave_object(&["crd", &format!("widgets.{}", group.0)]);
}

/// What a version no longer has goes with it, and what is somebody else's stays.
fn goes_with_its_version(bench: &Bench, group: &Group) {
    let (code, said) = bench.apply("shop", &group.object("Widget", "a", 1));
    assert!(code == 2 && said.contains("--prune-most"), "{said}");
    let two = [
        group.object("Widget", "a", 1),
        group.object("Secret", "a", 1),
    ]
    .join("---\n");
    let (code, said) = bench.apply("shop", &two);
    assert_eq!(code, 0, "{said}");
    let widgets = format!("widgets.{}", group.0);
    let names = |wanted: &[&str]| {
        let wanted: Vec<_> = wanted
            .iter()
            .map(|name| format!("widget.{}/{name}", group.0))
            .collect();
        until_every(LOOK, "only what is wanted is there", SOON, || {
            (bench.objects(&widgets).lines().collect::<Vec<_>>() == wanted).then_some(())
        });
    };
    names(&["a", "theirs"]);
    let (code, said) = bench.apps(&["remove", "shop"]);
    assert_eq!(code, 0, "{said}");
    names(&["theirs"]);
}

fn refuses_what_is_not_allowed(bench: &Bench, group: &Group) {
    let of = |api_version: &str, kind: &str| {
        format!("apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: a}}\n")
    };
    for (manifest, why, how) in [
        (
            of("unknown.example.com/v1", "Widget"),
            "apps.groups does not list unknown.example.com",
            "unknown.example.com\" in [apps]",
        ),
        (
            of("rbac.authorization.k8s.io/v1", "Role"),
            "apps deploys no Role",
            "rights are granted by the cluster's owner",
        ),
        (
            of("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
            "apps define nothing in the group",
            "kubectl apply",
        ),
        (
            of("v1", "Namespace"),
            "creates no other one",
            "kubectl create namespace a",
        ),
        (
            of(
                "admissionregistration.k8s.io/v1",
                "ValidatingWebhookConfiguration",
            ),
            "apps deploys no ValidatingWebhookConfiguration",
            "apply it with kubectl",
        ),
        (
            of("helm.cattle.io/v1", "HelmChart"),
            "spec.failurePolicy is not abort",
            "add failurePolicy: abort",
        ),
        (
            group.object("Gadget", "a", 1),
            "the cluster does not have this kind",
            "create its CustomResourceDefinition first",
        ),
        (
            group.object("Planet", "a", 1),
            "it belongs to the whole cluster",
            "kubectl apply",
        ),
        (
            of("other.example.com/v1", "Widget"),
            "the cluster has no other.example.com/v1",
            "create its CustomResourceDefinition first",
        ),
        (
            of(&format!("{}/v7", group.0), "Widget"),
            "the cluster has no",
            "create its CustomResourceDefinition first",
        ),
    ] {
        let (error, fix) = bench.refused(&manifest);
        assert!(
            error.contains(why) && fix.contains(how),
            "{manifest}: {error}: {fix}"
        );
    }
}

fn is_judged_by_its_conditions(bench: &Bench, group: &Group) {
    let condition = |kind: &str, status: &str| json!([{"type": kind, "status": status, "reason": "Waits", "message": "for its parts"}]);
    let widget = group.widget("a");
    bench.says(&widget, &condition("Ready", "False"));
    let (_, why) = bench.why("shop");
    assert_eq!(why["running"]["verdict"], "progressing", "{why:#}");
    assert_eq!(why["running"]["cause"], "custom.not-ready", "{why:#}");
    assert_eq!(
        why["running"]["evidence"], "Waits: for its parts",
        "{why:#}"
    );
    bench.says(&widget, &condition("Stalled", "True"));
    let (_, why) = bench.why("shop");
    assert_eq!(why["running"]["verdict"], "bad", "{why:#}");
    assert_eq!(why["running"]["cause"], "custom.stalled", "{why:#}");
    let fix = why["running"]["fix"].as_str().unwrap();
    Bench::does(fix);
    bench.says(&widget, &condition("Ready", "True"));
    let (_, why) = bench.why("shop");
    let sentence = "1 of 1 is ready; 2 custom resources are applied, readiness unknown";
    assert_eq!(why["running"]["sentence"], sentence, "{why:#}");
}

fn is_kept_as_it_was_deployed(bench: &Bench, group: &Group) {
    let (a, b) = (group.widget("a"), group.widget("b"));
    let patch = json!({"spec": {"size": 7, "theirs": true}}).to_string();
    let words = [
        "patch",
        &a,
        "--type=merge",
        "--field-manager=person",
        "-p",
        &patch,
    ];
    kubectl(&[&["-n", &bench.namespace], words.as_slice()].concat());
    kubectl(&["-n", &bench.namespace, "delete", &b]);
    for (object, wanted) in [(&a, r#"{"size":1,"theirs":true}"#), (&b, r#"{"size":1}"#)] {
        until_every(LOOK, "it is as it was deployed", SOON, || {
            let spec = [
                "get",
                object,
                "--ignore-not-found",
                "-o",
                "jsonpath={.spec}",
            ];
            let spec = kubectl(&[&["-n", &bench.namespace], spec.as_slice()].concat());
            (spec == wanted).then_some(())
        });
    }
    let (_, why) = bench.why("shop");
    let repaired = why["drift"]["repaired"].to_string();
    assert!(
        repaired.contains("\"spec.size\"") && repaired.contains("\"person\""),
        "{repaired}"
    );
}

#[test]
fn a_custom_resource_that_may_not_shrink_keeps_nothing_else_from_going_back() {
    let group = Group::new("grows");
    let allowed = group.0.clone();
    let Some(bench) = Bench::prepared(|agent| {
        agent
            .with("PIPEOPS_APPS_GROUPS", allowed)
            .with("PIPEOPS_TEST_SOAK_MS", "300")
    }) else {
        return;
    };
    bench.bind();
    let name = format!("widgets.{}", group.0);
    let mut definition = group.definition(("Widget", "widgets"), "Namespaced");
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] = json!({"spec": {
        "type": "object", "properties": {"size": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.size >= oldSelf.size"}]}});
    let file = bench.agent.folder().join("definition.json");
    put(&file, &definition.to_string());
    define(&file, &[&name]);
    let version =
        |size, more| group.object("Widget", "a", size) + "---\n" + &deployment("web", more);
    let (_, fix) = bench.refused(&version(1, ""));
    Bench::does(&fix);
    for (revision, size, more, state) in [
        (1, 1, "", "done"),
        (2, 2, ", command: [/app/missing]", "undone"),
    ] {
        let (code, said) = bench.apply("shop", &version(size, more));
        assert_eq!(code, 0, "{said}");
        bench.until_ended("shop", revision, state);
    }
    let command = "{.spec.template.spec.containers[0].command}";
    assert_eq!(bench.get("deployment/web", command), "");
    assert_eq!(bench.get(&group.widget("a"), "{.spec.size}"), "2");
    leave_object(&["crd", &name]);
}

#[test]
fn a_group_that_root_takes_back_is_written_no_more() {
    let group = Group::new("two");
    let allowed = group.0.clone();
    let Some(mut bench) = Bench::prepared(|agent| {
        agent
            .with("PIPEOPS_APPS_GROUPS", allowed)
            .with("PIPEOPS_TEST_SOAK_MS", "1000")
    }) else {
        return;
    };
    bench.bind();
    group.knows(&bench.agent, ("Widget", "widgets"), "Namespaced");
    let widget = group.object("Widget", "a", 1);
    Bench::does(&bench.refused(&widget).1);
    let (code, said) = bench.apply("shop", &widget);
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("shop", "good");
    bench.agent.kill();
    bench.agent.set("PIPEOPS_APPS_GROUPS", "");
    bench.agent.start();
    bench.agent.until_linked();
    let (_, why) = bench.why("shop");
    assert_eq!(why["running"]["cause"], "access.refused", "{why:#}");
    assert!(
        bench
            .refused(&widget)
            .0
            .contains("apps.groups does not list")
    );
    let condition = bench.agent.until_condition("apps.drift", SOON);
    let sentence = condition["sentence"].as_str().unwrap();
    assert!(
        sentence.contains("apps.groups") || sentence.contains("is not deployed"),
        "{sentence}"
    );
    // Nobody takes away what it may not touch, and it says why.
    let (code, said) = bench.apps(&["remove", "shop"]);
    assert!(code == 2 && said.contains("is not removed yet"), "{said}");
    let (_, why) = bench.why("shop");
    assert_eq!(why["cause"], "access.refused", "{why:#}");
    assert!(
        bench
            .objects(&format!("widgets.{}", group.0))
            .ends_with("/a\n")
    );
    leave_object(&["crd", &format!("widgets.{}", group.0)]);
}

#[test]
fn namespaces_and_definitions_are_created_for_root_before_the_rest_and_stay() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let group = Group::new("three");
    let allowed = group.0.clone();
    let Some(bench) = Bench::prepared(|agent| {
        agent
            .with("PIPEOPS_APPS_GROUPS", allowed)
            .with("PIPEOPS_APPS_OPERATORS", "nobody")
            .with("PIPEOPS_TEST_SOAK_MS", "1000")
    }) else {
        return;
    };
    let shop = format!("{}-new", bench.namespace);
    let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {shop}}}\n");
    let definition = group.definition(("Widget", "widgets"), "Namespaced");
    let name = format!("widgets.{}", group.0);
    let with = |definition: &Value| {
        let widget = group.object("Widget", "a", 1);
        [widget, definition.to_string(), namespace.clone()].join("\n---\n")
    };
    let all = with(&definition);
    let is_there = |words: &[&str]| {
        let found = kubectl(&[&["get"], words, &["--ignore-not-found", "-o", "name"]].concat());
        !found.is_empty()
    };
    let (error, lets_create) = bench.refused_in(&shop, &all);
    assert!(
        error.contains(&format!("Namespace {shop} is not created")),
        "{error}"
    );
    Bench::does(&lets_create);
    // An operator cannot have them created, not even with that right.
    let file = bench.agent.folder().join("shop.yaml").display().to_string();
    let apply = ["apps", "apply", "-f", &file, "--namespace", &shop];
    std::os::unix::fs::chown(&file, Some(65_534), None).unwrap();
    let (code, said) = bench.agent.cli_as(65_534, 0, &apply);
    assert!(code == 2 && said.contains("only root creates"), "{said}");
    assert!(!is_there(&["namespace", &shop]) && !is_there(&["crd", &name]));
    // One that is refused keeps the others from being created.
    let mut odd = definition.clone();
    odd["spec"]["versions"] = json!([]);
    bench.refused_in(&shop, &with(&odd));
    keeps_the_others_from_being_created(&bench, &group, (&shop, &all));
    // Nor are they created for nothing.
    let (error, _) = bench.refused_in(&shop, &namespace);
    assert!(error.contains("only what comes before an app"), "{error}");
    assert!(!is_there(&["namespace", &shop]));

    let (error, lets_in) = bench.refused_in(&shop, &all);
    assert!(
        error.contains("may not get widgets in the namespace"),
        "{error}"
    );
    assert!(is_there(&["namespace", &shop]) && is_there(&["crd", &name]));
    Bench::does(&lets_in);
    bench.bind_in(&shop);
    let (code, said) = bench.agent.cli_as(65_534, 0, &apply);
    assert_eq!(code, 0, "{said}");
    bench.until_verdict("shop", "good");

    // What is there is never changed.
    let mut other = definition;
    other["spec"]["versions"][0]["subresources"] = json!({"status": {}, "scale": {}});
    let (error, _) = bench.refused_in(&shop, &with(&other));
    assert!(
        error.contains("is there and has another spec.versions[0]"),
        "{error}"
    );
    stays_when_the_app_goes(&bench, &shop, &name);
    let role = format!("pipeops-apps-stage.{}", bench.accounts.namespace());
    for kind in ["clusterrole", "clusterrolebinding"] {
        leave_object(&[kind, &role]);
    }
    leave_object(&["crd", &name]);
    leave_object(&["namespace", &shop]);
}

/// One of the rest that is refused does so too, before anything is there.
fn keeps_the_others_from_being_created(bench: &Bench, group: &Group, (shop, all): (&str, &str)) {
    let role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: a}\n";
    let unserved = group.object("Widget", "b", 1).replace("/v1", "/v7");
    for (more, why) in [
        (role.to_owned(), "apps deploys no Role"),
        (unserved, "serves no"),
        (group.object("Widget", "a", 2), "it is there twice"),
    ] {
        let (error, _) = bench.refused_in(shop, &format!("{all}\n---\n{more}"));
        assert!(error.contains(why), "{error}");
    }
}

fn stays_when_the_app_goes(bench: &Bench, shop: &str, name: &str) {
    let (code, said) = bench.apps(&["remove", "shop"]);
    assert_eq!(code, 0, "{said}");
    for (kind, kept) in [("Namespace", shop), ("CustomResourceDefinition", name)] {
        assert!(said.contains(&format!("{kind} {kept}")), "{said}");
        kubectl(&["get", kind, kept]);
    }
}
