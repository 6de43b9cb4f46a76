//! Apps that the control plane deploys from Git repositories: from hosts that the owner lists, with
//! credentials that he laid down, and under no level that forbids it.

use std::{fs::Permissions, os::unix::fs::PermissionsExt, time::Duration};

use serde_json::{Value, json};

use super::{
    SOON,
    command::Bench,
    forge::{CREDENTIALS, Forge, Mood},
    git::map,
};
use crate::agent::{Agent, clock, put, until_every};

/// An agent whose owner trusts a forge, and what he laid down for it.
struct Whole {
    bench: Bench,
    forge: Forge,
}

impl Whole {
    fn new() -> Option<Self> {
        let forge = Forge::start();
        forge.is(Mood::CLOSED);
        forge.commit(&[("deploy/page.yaml", &map("one"))]);
        let bench = Bench::prepared("managed", |agent| prepared(agent, &forge))?;
        Some(Self { bench, forge })
    }

    fn args(&self, url: &str) -> Value {
        let git = json!({"url": url, "ref": "main", "path": "deploy"});
        let mut args = self.bench.apply("web", "");
        args["git"] = git;
        args
    }

    fn until_page(&self, text: &str) {
        let what = format!("the page is {text}");
        until_every(Duration::from_millis(500), &what, SOON, || {
            // Of the list: the object itself is not there yet at first.
            let texts = "{.items[?(@.metadata.name==\"page\")].data.text}";
            (self.bench.get("configmaps", texts) == text).then_some(())
        });
    }

    /// Connections to the forge, once the poll that may be under way has ended: git makes several,
    /// each soon after the other.
    fn asked_so_far(&self) -> u32 {
        const QUIET: Duration = Duration::from_secs(3);
        let (mut asked, mut since) = (self.forge.asked(), clock());
        until_every(Duration::from_millis(100), "git is done", SOON, || {
            if self.forge.asked() != asked {
                (asked, since) = (self.forge.asked(), clock());
            }
            (clock().duration_since(since) > QUIET).then_some(asked)
        })
    }

    /// The failure of the source, once it is this one.
    fn until_failure(&self, cause: &str) -> String {
        until_every(Duration::from_millis(500), cause, SOON, || {
            let (_, said) = self.bench.apps(&["why", "web", "--json"]);
            let why: Value = serde_json::from_str(&said).unwrap_or_default();
            let failure = &why["source"]["failure"];
            (failure["cause"] == cause).then(|| failure.to_string())
        })
    }
}

fn prepared(agent: Agent, forge: &Forge) -> Agent {
    forge.is_trusted_by(&agent);
    let folder = agent.folder().join("git-credentials");
    std::fs::create_dir(&folder).unwrap();
    let file = format!("https_{}", forge.host().replace(':', "_"));
    put(&folder.join(&file), CREDENTIALS);
    std::fs::set_permissions(folder.join(&file), Permissions::from_mode(0o600)).unwrap();
    agent
        .with(
            "PIPEOPS_APPS_GIT_HOSTS",
            format!("git.example, {}", forge.host()),
        )
        .with("PIPEOPS_APPS_GIT_CREDENTIALS", folder.display().to_string())
        .with("PIPEOPS_APPS_INTERVAL", "30s")
}

#[test]
fn the_control_plane_deploys_from_listed_hosts_as_long_as_they_are() {
    let Some(mut whole) = Whole::new() else {
        return;
    };
    reaches_for_no_other_host(&whole);
    let url = whole.forge.url();
    whole.bench.accepted("c-1", "app.apply", &whole.args(&url));
    whole.until_page("one");
    // Polls are half a minute apart.
    let is_patient = std::env::var_os("PIPEOPS_CORPUS").is_some();
    let mut page = "one";
    if is_patient {
        page = "two";
        whole.forge.commit(&[("deploy/page.yaml", &map(page))]);
        whole.until_page(page);
    }
    // At a level that forbids it nobody asks the repository.
    let tighten = |level: &str| {
        let output = whole.bench.agent.command(&["access", level]).output();
        assert!(output.unwrap().status.success());
    };
    tighten("off");
    let asked = whole.asked_so_far();
    let said = whole.bench.refused("c-2", "app.apply", &whole.args(&url));
    assert!(said.contains("access was tightened to \"off\""), "{said}");
    if is_patient {
        let failure = whole.until_failure("source.refused");
        assert!(
            failure.contains("access was tightened to \\\"off\\\""),
            "{failure}"
        );
    }
    assert_eq!(whole.forge.asked(), asked);
    tighten("managed");
    // A host that is taken from the list ends it, with what would allow it.
    // The change comes when nobody is there who may take it.
    whole.bench.agent.kill();
    whole.forge.commit(&[("deploy/page.yaml", &map("three"))]);
    let bench = &mut whole.bench;
    let other = Agent::new(&bench.plane);
    let agent = std::mem::replace(&mut bench.agent, other);
    bench.agent = agent.with("PIPEOPS_APPS_GIT_HOSTS", "git.example");
    let asked = whole.asked_so_far();
    whole.bench.agent.start();
    whole.bench.agent.until_linked();
    let failure = whole.until_failure("source.host-not-listed");
    assert!(failure.contains("does not list 127.0.0.1:"), "{failure}");
    assert!(
        failure.contains("git_hosts = \\\"git.example, 127.0.0.1:"),
        "{failure}"
    );
    whole.bench.agent.until_condition("apps.source", SOON);
    assert_eq!(whole.forge.asked(), asked);
    assert_eq!(whole.bench.get("configmap/page", "{.data.text}"), page);
    // Manifests take the place of the repository.
    let mut manifests = whole.bench.apply("web", &map("four"));
    manifests["prune_most"] = json!(true);
    whole.bench.accepted("c-3", "app.apply", &manifests);
    whole.until_page("four");
    let (_, shown) = whole.bench.apps(&["show", "web"]);
    assert!(!shown.contains("source:"), "{shown}");
    let (_, said) = whole.bench.apps(&["why", "web", "--json"]);
    assert!(said.contains("\"source\": null"), "{said}");
    let status = whole.bench.agent.status();
    assert!(!status.to_string().contains("apps.source"), "{status:#}");
    let (_, password) = CREDENTIALS.split_once(':').unwrap();
    assert!(!whole.bench.agent.log().contains(password));
    assert_eq!(whole.bench.plane.violations(), Vec::<String>::new());
}

fn reaches_for_no_other_host(whole: &Whole) {
    let host = whole.forge.host();
    let (name, port) = host.split_once(':').unwrap();
    for (url, why) in [
        (
            format!("https://{name}/web/.git"),
            "does not list 127.0.0.1 in apps.git_hosts",
        ),
        (
            format!("https://localhost:{port}/web/.git"),
            "does not list localhost:",
        ),
        (
            format!("https://{host}@evil.example/web"),
            "has a user name or a password",
        ),
        (
            format!("http://{host}/web/.git"),
            "the connection is neither encrypted nor authenticated",
        ),
        ("/etc".to_owned(), "names no host"),
        (String::new(), "comes from manifests or from the url"),
    ] {
        let said = whole
            .bench
            .refused("same-id", "app.apply", &whole.args(&url));
        assert!(said.contains(why), "{url}: {said}");
    }
    let mut both = whole.args(&whole.forge.url());
    both["manifests"] = json!(map("x"));
    let said = whole.bench.refused("same-id", "app.apply", &both);
    assert!(said.contains("not from both"), "{said}");
    let mut system = whole.args(&whole.forge.url());
    system["namespace"] = json!("kube-system");
    let said = whole.bench.refused("same-id", "app.apply", &system);
    assert!(said.contains("belongs to the cluster"), "{said}");
    assert_eq!(whole.forge.asked(), 0);
}
