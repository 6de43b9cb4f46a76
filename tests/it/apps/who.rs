//! Deployment permissions: each requester against each class of objects, on the real cluster. The
//! table stands in `docs/access.md`.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, chown},
    path::PathBuf,
    time::Duration,
};

use nix::unistd::geteuid;
use serde_json::{Value, json};

use super::{IMAGE, SOON, charts, command::Bench, custom::Group, forge::Forge};
use crate::{
    agent::{put, until_every},
    cluster::{kubectl, leave, leave_object},
    login,
};

const LOOK: Duration = Duration::from_millis(300);
/// A user of `apps.operators`, and one who is only let to the socket.
const OPERATOR: u32 = 65_534;
const ANYBODY: u32 = 65_531;

/// A class of objects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Class {
    Usual,
    Custom,
    Namespace,
    Definition,
    Chart,
    Rights,
}

const CLASSES: [(Class, &str); 6] = [
    (Class::Usual, "workloads, configuration, services, routes"),
    (Class::Custom, "custom resources of `apps.groups`"),
    (Class::Namespace, "the app's own Namespace"),
    (Class::Definition, "definitions of `apps.groups`"),
    (Class::Chart, "charts of k3s"),
    (Class::Rights, "roles and their bindings"),
];

/// A way in.
#[derive(Clone, Copy, Debug)]
enum Way {
    Socket(u32),
    Page(&'static str),
    Folder,
    Git,
    Commands(&'static str),
    GitByCommands,
}

impl Way {
    /// The `access.level` of the settings under which it is tried; commands tighten it.
    fn level(self) -> &'static str {
        match self {
            Self::Commands("full") | Self::Socket(_) | Self::Page(_) | Self::Folder | Self::Git => {
                "full"
            }
            Self::Commands(_) | Self::GitByCommands => "managed",
        }
    }
}

/// In an order in which remote access only becomes tighter.
const WAYS: [(Way, &str); 12] = [
    (Way::Socket(0), "root, by `apps apply`"),
    (
        Way::Socket(OPERATOR),
        "a user of `apps.operators`, by `apps apply`",
    ),
    (Way::Socket(ANYBODY), "any other user of the socket"),
    (Way::Page("operator"), "the page, logged in as operator"),
    (Way::Page("viewer"), "the page, logged in as viewer"),
    (Way::Folder, "the folder of root (`apps.folder`)"),
    (
        Way::Git,
        "a Git repository, by root with `apps deploy --git`",
    ),
    (Way::Commands("full"), "the control plane under `full`"),
    (
        Way::Commands("managed"),
        "the control plane under `managed`",
    ),
    (
        Way::GitByCommands,
        "a Git repository that the control plane set, of a host in `apps.git_hosts`",
    ),
    (
        Way::Commands("read-only"),
        "the control plane under `read-only`",
    ),
    (Way::Commands("off"), "the control plane under `off`"),
];

/// Kinds of the first class, besides ConfigMap and the routes of Gateways. None starts a Pod.
const USUAL: [(&str, &str, &str); 13] = [
    (
        "v1",
        "ServiceAccount",
        "automountServiceAccountToken: false",
    ),
    ("v1", "Secret", "stringData: {word: secret}"),
    (
        "v1",
        "PersistentVolumeClaim",
        "spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}",
    ),
    (
        "networking.k8s.io/v1",
        "NetworkPolicy",
        "spec: {podSelector: {matchLabels: {app: APP}}}",
    ),
    (
        "v1",
        "Service",
        "spec: {selector: {app: APP}, ports: [{port: 80}]}",
    ),
    (
        "batch/v1",
        "Job",
        "spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: CONTAINERS}}}",
    ),
    ("apps/v1", "Deployment", "spec: {replicas: 0, WORKLOAD}"),
    ("apps/v1", "StatefulSet", "spec: {replicas: 0, WORKLOAD}"),
    ("apps/v1", "DaemonSet", "spec: {WORKLOAD}"),
    (
        "batch/v1",
        "CronJob",
        "spec: {suspend: true, schedule: '@daily', jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: CONTAINERS}}}}}",
    ),
    (
        "policy/v1",
        "PodDisruptionBudget",
        "spec: {maxUnavailable: 1, selector: {matchLabels: {app: APP}}}",
    ),
    (
        "autoscaling/v2",
        "HorizontalPodAutoscaler",
        "spec: {maxReplicas: 2, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: none}}",
    ),
    (
        "networking.k8s.io/v1",
        "Ingress",
        "spec: {rules: [{host: APP.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: APP, port: {number: 80}}}}]}}]}",
    ),
];

/// Objects of [`USUAL`] that are called like the app.
fn usual((app, namespace): (&str, &str)) -> String {
    let containers = format!("[{{name: web, image: \"{IMAGE}\"}}]");
    let workload = "selector: {matchLabels: {app: APP}}, template: {metadata: {labels: {app: APP}}, \
                    spec: {nodeSelector: {no: node}, containers: CONTAINERS}}";
    let object = |(version, kind, rest): (&str, &str, &str)| {
        let rest = rest.replace("WORKLOAD", workload);
        let rest = rest.replace("CONTAINERS", &containers).replace("APP", app);
        format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {app}, namespace: {namespace}}}\n{rest}\n---\n"
        )
    };
    USUAL.map(object).concat()
}

struct Whole {
    bench: Bench,
    group: Group,
    forge: Forge,
    port: u16,
}

impl Whole {
    /// With this `access.level`, which the manifest of the rights goes by.
    fn new(level: &str) -> Option<Self> {
        if !geteuid().is_root() {
            return None;
        }
        let group = Group::new(&format!("who-{level}-"));
        let forge = Forge::start();
        let bench = Bench::prepared(level, |agent| {
            forge.is_trusted_by(&agent);
            let folder = agent.folder().join("apps");
            fs::create_dir(&folder).unwrap();
            fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
            agent
                .with("PIPEOPS_APPS_FOLDER", folder.display().to_string())
                .with("PIPEOPS_APPS_GIT_HOSTS", forge.host())
                .with("PIPEOPS_APPS_GROUPS", group.name())
                .with("PIPEOPS_APPS_OPERATORS", "nobody")
                .with("PIPEOPS_DASHBOARD_LISTEN", "127.0.0.1:0")
        })?;
        let port = login::port(&bench.agent, 0);
        let whole = Self {
            bench,
            group,
            forge,
            port,
        };
        whole.let_in();
        Some(whole)
    }

    /// What the owner of the cluster does so that local sources may have as much as they ever may.
    fn let_in(&self) {
        let own = self.bench.accounts.namespace();
        let account = format!("--serviceaccount={own}:pipeops-apps");
        let of = |role: &str| format!("--clusterrole={role}");
        self.group
            .knows(&self.bench.agent, ("Widget", "widgets"), "Namespaced");
        let namespace = ["-n", &self.bench.namespace];
        let deploy = of(&format!("pipeops-apps-deploy.{own}"));
        let widgets = format!("--resource=widgets.{}", self.group.name());
        let custom = format!("who-custom.{own}");
        let stage = format!("who-stage.{own}");
        let all = "--verb=get,list,watch,create,patch,delete";
        let kinds = "--resource=namespaces,customresourcedefinitions.apiextensions.k8s.io";
        charts::define();
        let charts = self.namespace((Class::Chart, ""));
        let at = ["-n", &charts];
        let chart = "--resource=helmcharts.helm.cattle.io";
        kubectl(&["create", "namespace", &charts]);
        for words in [
            &["create", "rolebinding", "pipeops-apps", &deploy, &account][..],
            &["create", "role", "charts", all, chart],
            &["create", "rolebinding", "charts", "--role=charts", &account],
        ] {
            kubectl(&[&at, words].concat());
        }
        for words in [
            &["create", "rolebinding", "pipeops-apps", &deploy, &account][..],
            &["create", "role", "who-custom", all, &widgets],
            &[
                "create",
                "rolebinding",
                &custom,
                "--role=who-custom",
                &account,
            ],
        ] {
            kubectl(&[&namespace, words].concat());
        }
        kubectl(&["create", "clusterrole", &stage, "--verb=get,create", kinds]);
        kubectl(&[
            "create",
            "clusterrolebinding",
            &stage,
            &of(&stage),
            &account,
        ]);
    }

    /// Namespace of an app of this name.
    fn namespace(&self, (class, app): (Class, &str)) -> String {
        let shared = &self.bench.namespace;
        match class {
            Class::Namespace => format!("{shared}-{app}"),
            // No namespace of theirs is managed.
            Class::Chart => format!("{shared}-charts"),
            Class::Usual | Class::Custom | Class::Definition | Class::Rights => shared.clone(),
        }
    }

    /// Manifests with an object of the class, called like the app.
    fn manifests(&self, of @ (class, app): (Class, &str)) -> String {
        let namespace = self.namespace(of);
        let map = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {app}, namespace: {namespace}}}\n---\n"
        );
        map + &match class {
            Class::Usual => usual((app, &namespace)),
            Class::Custom => format!(
                "apiVersion: {}/v1\nkind: Widget\nmetadata: {{name: {app}, namespace: {namespace}}}\n",
                self.group.name()
            ),
            Class::Namespace => {
                format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}\n")
            }
            Class::Definition => self.group.definition((app, app), "Namespaced").to_string(),
            Class::Chart => charts::manifest(app, &namespace),
            Class::Rights => format!(
                "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: {app}, namespace: {namespace}}}\nrules: []\n"
            ),
        }
    }

    /// Objects of the class that are there, and that are expected.
    fn found(&self, of @ (class, app): (Class, &str)) -> (usize, usize) {
        let namespace = self.namespace(of);
        let definition = format!("{app}.{}", self.group.name());
        let widgets = format!("widgets.{}", self.group.name());
        let usual = USUAL.map(|(_, kind, _)| kind).join(",");
        let object = match class {
            Class::Usual => [&usual, app],
            Class::Custom => [&widgets, app],
            Class::Namespace => ["namespace", &namespace],
            Class::Definition => ["crd", &definition],
            Class::Chart => ["helmchart", app],
            Class::Rights => ["role", app],
        };
        let found = ["--ignore-not-found", "-o", "name"];
        let found = kubectl(&[&["-n", &namespace, "get"], &object[..], &found].concat());
        let expected = if class == Class::Usual {
            USUAL.len()
        } else {
            1
        };
        (found.lines().count(), expected)
    }

    fn is_there(&self, of: (Class, &str)) -> bool {
        let (found, expected) = self.found(of);
        found == expected
    }

    /// Tries a way in. What is accepted is there soon, and what is refused never is.
    fn has_deployed(&self, way: Way, of @ (class, app): (Class, &str)) -> bool {
        let manifests = self.manifests(of);
        let (namespace, id) = (self.namespace(of), app);
        let body = json!({"app": app, "namespace": namespace, "manifests": manifests});
        let is_accepted = match way {
            Way::Socket(user) => {
                let file = self.bench.agent.folder().join(format!("{app}.yaml"));
                put(&file, &manifests);
                chown(&file, Some(user), None).unwrap();
                let file = file.display().to_string();
                let words = ["apps", "apply", "-f", &file, "--namespace", &namespace];
                let (code, said) = self.bench.agent.cli_as(user, 0, &words);
                is_taken(class, (code, &said))
            }
            Way::Page(role) => self.on_the_page(role, "/api/v1/apps", &body) < 300,
            Way::Folder => {
                put(&self.folder().join(format!("{app}.yaml")), &manifests);
                self.is_good_source(of)
            }
            Way::Git => {
                self.forge
                    .commit(&[(&format!("{app}/all.yaml"), &manifests)]);
                let url = self.forge.url();
                let words = ["--git", &url, "--ref", "main", "--path", app];
                let words = [&["deploy", app, "--namespace", &namespace][..], &words].concat();
                let (code, said) = self.bench.apps(&words);
                is_taken(class, (code, &said)) && self.is_good_source(of)
            }
            Way::Commands(level) => {
                let (code, said) = self.bench.agent.cli(&["access", level]);
                assert_eq!(code, 0, "{said}");
                self.commanded(id, &body)
            }
            Way::GitByCommands => {
                self.forge
                    .commit(&[(&format!("{app}/all.yaml"), &manifests)]);
                let git = json!({"url": self.forge.url(), "ref": "main", "path": app});
                let body = json!({"app": app, "namespace": namespace, "git": git});
                self.commanded(id, &body) && self.is_good_source(of)
            }
        };
        if is_accepted {
            let what = format!("{way:?}: {class:?} is there; {}", self.bench.agent.log());
            until_every(LOOK, &what, SOON, || self.is_there(of).then_some(()));
        } else {
            let (found, _) = self.found(of);
            assert_eq!(found, 0, "{way:?}: {class:?} was refused and is there");
        }
        is_accepted
    }

    fn folder(&self) -> PathBuf {
        self.bench.agent.folder().join("apps")
    }

    fn commanded(&self, id: &str, body: &Value) -> bool {
        let answer = self.bench.commanded(id, "app.apply", body);
        let is_accepted = answer["state"] == "accepted";
        assert!(is_accepted || answer["fix"].is_string(), "{answer:#}");
        is_accepted
    }

    /// Waits until a source has deployed its objects, or was refused.
    fn is_good_source(&self, of @ (_, app): (Class, &str)) -> bool {
        until_every(LOOK, "the source is judged", SOON, || {
            let (_, said) = self.bench.apps(&["why", app, "--json"]);
            let why: Value = serde_json::from_str(&said).unwrap_or_default();
            let is_refused = why["source"]["failure"].is_object()
                || said.contains(&format!("there is no app {app} yet: "));
            if is_refused {
                return Some(false);
            }
            self.is_there(of).then_some(true)
        })
    }

    fn on_the_page(&self, role: &str, path: &str, body: &Value) -> u16 {
        let (code, told) = self
            .bench
            .agent
            .post("/api/v1/tokens", &json!({"role": role}).to_string());
        assert_eq!(code, 200, "{told}");
        let told: Value = serde_json::from_str(&told).unwrap();
        let login = json!({"token": told["token"]}).to_string();
        let session = login::ask(self.port, "POST /api/v1/session", "", &login);
        let cookie = session.cookie();
        login::ask(
            self.port,
            &format!("POST {path}"),
            &cookie,
            &body.to_string(),
        )
        .code
    }
}

/// Returns whether a command was taken. A namespace that it made lets nobody in yet: the command
/// fails, and the namespace is there all the same.
fn is_taken(class: Class, (code, said): (i32, &str)) -> bool {
    assert!(code == 0 || said.contains("fix: "), "{said}");
    code == 0 || (class == Class::Namespace && said.contains("create rolebinding"))
}

#[test]
fn what_each_way_in_deploys_is_what_the_documentation_says() {
    let mut table = "| |".to_owned();
    table.extend(CLASSES.map(|(_, name)| format!(" {name} |")));
    table += "\n|---|---|---|---|---|---|---|\n";
    let mut whole: Option<(&str, Whole)> = None;
    for (number, (way, name)) in WAYS.into_iter().enumerate() {
        let level = way.level();
        if whole.as_ref().is_none_or(|(known, _)| *known != level) {
            whole.take().inspect(|(_, whole)| leave_all(whole));
            let Some(next) = Whole::new(level) else {
                return;
            };
            whole = Some((level, next));
        }
        let Some((_, whole)) = &whole else { return };
        table.extend(["| ", name, " |"]);
        for (class, _) in CLASSES {
            let app = format!("w{number}{class:?}").to_lowercase();
            let word = if whole.has_deployed(way, (class, &app)) {
                "yes"
            } else if class == Class::Usual && is_an_image_deployed(whole, (way, &app)) {
                "from an image"
            } else {
                "–"
            };
            table.extend([" ", word, " |"]);
        }
        table.push('\n');
    }
    whole.take().inspect(|(_, whole)| leave_all(whole));
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/access.md");
    let page = fs::read_to_string(page).unwrap();
    assert!(
        page.contains(&table),
        "docs/access.md needs this table:\n{table}"
    );
}

/// The page has no manifests; its form makes them of an image.
fn is_an_image_deployed(whole: &Whole, (way, app): (Way, &str)) -> bool {
    let Way::Page(role) = way else { return false };
    let body = json!({"namespace": whole.bench.namespace, "image": IMAGE});
    let path = format!("/api/v1/apps/{app}/deploy");
    whole.on_the_page(role, &path, &body) < 300
}

fn leave_all(whole: &Whole) {
    let own = whole.bench.accounts.namespace();
    for kind in ["clusterrole", "clusterrolebinding"] {
        leave_object(&[kind, &format!("who-stage.{own}")]);
    }
    let widgets = format!("widgets.{}", whole.group.name());
    leave_object(&["crd", &widgets]);
    leave(&whole.namespace((Class::Chart, "")));
    for number in 0..WAYS.len() {
        let app = |class: Class| format!("w{number}{class:?}").to_lowercase();
        let definition = format!("{}.{}", app(Class::Definition), whole.group.name());
        leave_object(&["crd", &definition]);
        leave(&whole.namespace((Class::Namespace, &app(Class::Namespace))));
    }
}
