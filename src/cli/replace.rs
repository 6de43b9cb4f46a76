//! `replace-go-agent`: takes over from the Go agent that runs as a Deployment in the cluster.
//!
//! It finds that agent by the label of all its manifests and charts, takes its token, and scales it
//! down. Its ids are in a ConfigMap that this agent reads at its first start.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    args::Args,
    ask,
    install::{self, Basis, Plan, TOKEN_FILE, UNCHECKED},
    output::{Output, Tone, printable},
    table::{CONFIG, Command, JSON, Opt},
    view::View,
};
use crate::{
    core::secret::Secret,
    daemon::oneshot,
    error::{Error, Exit, Result},
    files,
    kube::{Client, Patch},
};

const LABEL: &str = "labelSelector=app.kubernetes.io%2Fname%3Dpipeops-agent";

/// `replace-go-agent`.
pub(super) static COMMAND: Command = Command {
    name: "replace-go-agent",
    about: "Replace the agent that runs as a Deployment in the cluster",
    options: &[
        TOKEN_FILE,
        Opt::flag(
            "remove",
            "Delete its Deployment instead of scaling it to 0; the manifest is saved to a file",
        ),
        Opt::flag(
            "no-start",
            "Copy its settings and stop it, without starting this agent",
        ),
        Opt::flag("yes", "Skip the confirmation").short('y'),
        UNCHECKED,
        CONFIG,
        JSON,
    ],
    notes: "Shows what it found and what it will do, and asks for confirmation.\n\
            The token, the address of the control plane and the name of the cluster are taken over where this machine has none.\n\
            Its ConfigMap and its Secrets stay: this agent reads its ids from there at its first start.",
    examples: &[
        "sudo pipeops-agent replace-go-agent",
        "sudo pipeops-agent replace-go-agent --remove",
    ],
    exit: "0 replaced, 1 cancelled, 2 there is no such agent or the command could not run.",
    run: Some(replace),
    ..Command::BARE
};

/// The Go agent in the cluster.
struct GoAgent {
    namespace: String,
    name: String,
    replicas: u64,
    image: String,
    /// The whole Deployment, without what the API server adds.
    manifest: Value,
    token: Option<Secret>,
    /// Keys of ours, with its values.
    keys: Vec<(&'static str, String)>,
}

impl GoAgent {
    fn take(&mut self, name: &str, value: Option<String>) {
        let Some(value) = value.filter(|value| !value.is_empty()) else {
            return;
        };
        let key = match name {
            "PIPEOPS_TOKEN" => {
                self.token = Some(Secret::new(value));
                return;
            }
            "PIPEOPS_API_URL" => "pipeops.api_url",
            "PIPEOPS_CLUSTER_NAME" => "pipeops.cluster_name",
            _ => return,
        };
        self.keys.retain(|(known, _)| *known != key);
        self.keys.push((key, value));
    }

    fn path(&self) -> String {
        format!(
            "/apis/apps/v1/namespaces/{}/deployments/{}",
            self.namespace, self.name
        )
    }
}

fn replace(args: &Args, output: &mut Output) -> Result<Exit> {
    let (file, before) = install::now(args);
    let shown = before.shown();
    let is_set = |key: &str| {
        let found = shown.iter().find(|shown| shown.key.path == key);
        found.is_some_and(|shown| {
            shown.value.is_some() && shown.origin != crate::config::Origin::Default
        })
    };
    install::check_may_write(&file, "replace-go-agent")?;
    let mut keys = install::from_environment(&before, true);
    if !is_set("pipeops.token_file") && !is_set("pipeops.token") {
        let path = file.with_file_name("token");
        let path = path.display().to_string();
        keys.push(install::override_of(
            "pipeops.token_file",
            path,
            "this command",
        ));
    }
    let plan = Plan::new(file.clone(), keys.clone(), Basis::Files, output)?;
    let namespace = plan.settings.agent.go_state_namespace.clone();
    let found = oneshot::with_cluster(&plan.settings, async |client| {
        find(&client, &namespace).await
    })?;
    let adopted = found.keys.iter().filter(|(key, _)| !is_set(key));
    keys.extend(
        adopted.map(|(key, value)| install::override_of(key, value, "the agent in the cluster")),
    );
    let plan = Plan::new(file, keys, Basis::Files, output)?;

    let own = plan.settings.pipeops.control_plane()?.token.read().ok();
    let token = match install::new_token(args, None)? {
        Some(token) => token,
        None => own.clone().or_else(|| found.token.clone()).ok_or_else(|| {
            Error::new("cannot find the token of the agent in the cluster")
                .fix("pass it: --token-file FILE, or PIPEOPS_TOKEN in the environment")
        })?,
    };
    if !args.has("json") {
        print_plan(&found, &plan, args, output);
    }
    if !ask::is_permitted(args, "Do it?")? {
        output.line("Nothing was changed.");
        return Ok(Exit::Problem);
    }
    plan.check(&token, args, output)?;
    if own.as_ref() != Some(&token) {
        plan.write_token(&token)?;
    }
    plan.write_keys()?;
    let undo = stop(&found, &plan, args)?;
    let line = if args.has("no-start") {
        None
    } else {
        install::start(&plan)?
    };
    print_result(&found, &undo, line, args, output);
    Ok(Exit::Fine)
}

/// Prints what was done, and what is left to do.
fn print_result(
    found: &GoAgent,
    undo: &str,
    line: Option<String>,
    args: &Args,
    output: &mut Output,
) {
    if args.has("json") {
        output.json(&json!({
            "namespace": found.namespace, "deployment": found.name, "image": found.image, "undo": undo, "run": line,
        }));
        return;
    }
    output.line(&printable(&format!(
        "{}/{} is stopped.",
        found.namespace, found.name
    )));
    output.line(&printable(&format!(
        "To undo it: sudo pipeops-agent down; {undo}"
    )));
    match line {
        Some(line) => output.line(&format!(
            "No service is installed, so this agent will not start at boot. Run it: {line}"
        )),
        None if args.has("no-start") => {}
        None => output.line("This agent was started: pipeops-agent status"),
    }
}

fn print_plan(found: &GoAgent, plan: &Plan, args: &Args, output: &mut Output) {
    let title = format!("{}/{} runs {}", found.namespace, found.name, found.image);
    output.line(&output.toned(Tone::Strong, &printable(&title)));
    let act = if args.has("remove") {
        format!(
            "delete it, and keep its manifest in {}",
            manifest_path(plan).display()
        )
    } else {
        format!("scale it from {} to 0", found.replicas)
    };
    let written: Vec<String> = plan
        .keys
        .iter()
        .map(|entry| format!("{} = {}", entry.key, entry.shown()))
        .collect();
    let written = if written.is_empty() {
        "nothing: everything is already set here".to_owned()
    } else {
        written.join(", ")
    };
    output.line(&printable(&format!("  taken over: {written}")));
    output.line(&printable(&format!("  in the cluster: {act}")));
    output.line("  not touched: its ConfigMap, its Secrets, its accounts, everything else");
}

fn manifest_path(plan: &Plan) -> std::path::PathBuf {
    plan.file.with_file_name("go-agent.json")
}

/// Stops the Go agent; returns the command that undoes it.
fn stop(found: &GoAgent, plan: &Plan, args: &Args) -> Result<String> {
    let path = found.path();
    if args.has("remove") {
        let kept = manifest_path(plan);
        // Values of its environment may be secrets.
        files::replace(&kept, found.manifest.to_string().as_bytes(), files::PRIVATE)?;
        oneshot::with_cluster(&plan.settings, async |client| {
            client
                .delete(&path)
                .await
                .map_err(|error| Error::new("cannot delete its Deployment").because(&error))
        })?;
        return Ok(format!("kubectl apply -f {}", kept.display()));
    }
    let body = json!({ "spec": { "replicas": 0 } });
    oneshot::with_cluster(&plan.settings, async |client| {
        let scaled: std::result::Result<Value, _> = client.patch(&path, Patch::Merge, &body).await;
        scaled.map_err(|error| Error::new("cannot scale its Deployment").because(&error))
    })?;
    Ok(format!(
        "kubectl -n {} scale deployment {} --replicas={}",
        found.namespace, found.name, found.replicas
    ))
}

async fn find(client: &Client, namespace: &str) -> Result<GoAgent> {
    let cannot = || Error::new("cannot look for the agent in the cluster");
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments?{LABEL}");
    let list: Value = client
        .get(&path)
        .await
        .map_err(|error| cannot().because(&error))?;
    let all: Vec<View<'_>> = View::new(&list).list("items").collect();
    let [one] = all.as_slice() else {
        return Err(Error::new(format!(
            "there are {} Deployments of it in the namespace {namespace}", all.len()
        ))
        .why("they are looked for by the label app.kubernetes.io/name=pipeops-agent")
        .fix("where it is in another namespace: set the namespace of its state, as `pipeops-agent config show` names it"));
    };
    let (meta, spec) = (one.at("metadata"), one.at("spec"));
    let pod = spec.at("template").at("spec");
    let mut found = GoAgent {
        namespace: namespace.to_owned(),
        name: meta.text("name").to_owned(),
        replicas: spec.count("replicas").unwrap_or(1).max(1),
        image: String::new(),
        manifest: json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": meta.text("name"),
                "namespace": namespace,
                "labels": meta.at("labels").json(),
                "annotations": meta.at("annotations").json(),
            },
            "spec": spec.json(),
        }),
        token: None,
        keys: Vec::new(),
    };
    for container in pod.list("containers") {
        if found.image.is_empty() {
            found.image = container.text("image").to_owned();
        }
        // The variables that it names itself come later and win.
        for source in container.list("envFrom") {
            for (reference, resource) in [("secretRef", "secrets"), ("configMapRef", "configmaps")]
            {
                let name = source.at(reference).text("name");
                for variable in ["PIPEOPS_TOKEN", "PIPEOPS_API_URL", "PIPEOPS_CLUSTER_NAME"] {
                    let value = entry(client, namespace, resource, name, variable).await;
                    found.take(variable, value);
                }
            }
        }
        for variable in container.list("env") {
            let value = value_of(client, namespace, variable).await;
            found.take(variable.text("name"), value);
        }
    }
    Ok(found)
}

/// Value of a variable: literal, or from the Secret or ConfigMap that it names.
async fn value_of(client: &Client, namespace: &str, variable: View<'_>) -> Option<String> {
    if let Some(value) = variable.maybe("value") {
        return Some(value.to_owned());
    }
    let from = variable.at("valueFrom");
    for (reference, resource) in [
        ("secretKeyRef", "secrets"),
        ("configMapKeyRef", "configmaps"),
    ] {
        let reference = from.at(reference);
        if let Some(name) = reference.maybe("name") {
            return entry(client, namespace, resource, name, reference.text("key")).await;
        }
    }
    None
}

/// An entry of a Secret or a ConfigMap, where there is one.
async fn entry(
    client: &Client,
    namespace: &str,
    resource: &str,
    name: &str,
    key: &str,
) -> Option<String> {
    if name.is_empty() {
        return None;
    }
    let path = format!("/api/v1/namespaces/{namespace}/{resource}/{name}");
    let object: Value = client.get(&path).await.ok()?;
    let value = View::new(&object).at("data").maybe(key)?;
    match resource {
        "secrets" => String::from_utf8(STANDARD.decode(value).ok()?).ok(),
        _ => Some(value.to_owned()),
    }
}
