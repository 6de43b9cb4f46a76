//! Charts: only root's own sources deploy, change and remove them, and not where the control plane
//! deploys. A controller installs them with all rights, under an account in their namespace that
//! whoever runs Pods there could use.

use serde_json::Value;

use super::{
    Apps,
    requester::{Origin, Submission},
};
use crate::{
    core::apps::{App, Kind, Manifest, Upstream, account_of_chart},
    error::{Error, Result, Retry},
    kube::query_escaped,
};

/// Label of a namespace where the control plane makes Pods.
const MANAGED: &str = "/metadata/labels/pipeops.io~1managed";

impl Submission<'_> {
    /// Returns whether a version is root's own. What stands in a repository is written by whoever
    /// pushes there.
    fn is_of_root(&self) -> bool {
        match &self.origin {
            Origin::Manifests | Origin::Known => self.requester.is_root,
            Origin::Source(source) | Origin::Update(source, _) => {
                matches!(source.upstream, Upstream::Folder(_))
            }
        }
    }

    /// Refuses charts, apps that have some, and Pods with the rights of a chart, where root does
    /// not deploy them.
    pub(super) fn may_deploy(&self, app: &App, manifests: &[Manifest]) -> Result<()> {
        if self.is_of_root() {
            return Ok(());
        }
        without_charts(app, manifests)?;
        // What runs already is no news.
        let is_known = matches!(self.origin, Origin::Known);
        let mut pods = manifests.iter().filter(|_| !is_known);
        let found = pods.find_map(|manifest| Some((manifest, account_of_chart(&manifest.object)?)));
        found.map_or(Ok(()), |(manifest, account)| {
            Err(Error::new(format!("{} is not deployed", manifest.in_words()))
                .why(format!(
                    "its Pods run as {account}, and an account of this name has all rights where k3s installs a chart"
                ))
                .fix("use a ServiceAccount whose name does not begin with helm-, or deploy it as root"))
        })
    }
}

/// Refuses a change of an app that has charts, or is about to have some.
pub(super) fn without_charts(app: &App, manifests: &[Manifest]) -> Result<()> {
    let manifest = manifests.iter().find(|manifest| manifest.kind.is_chart());
    let is_chart = |kind: Option<Kind>| kind.is_some_and(|kind| kind.is_chart());
    let mut inventory = app.inventory.iter();
    let chart = manifest.map(Manifest::in_words).or_else(|| {
        let entry = inventory.find(|entry| is_chart(entry.known_kind()));
        entry.map(|entry| entry.in_words(&app.namespace))
    });
    chart.map_or(Ok(()), |chart| {
        Err(Error::new("nothing was changed")
            .why(format!(
                "only root deploys, changes and removes charts, which k3s installs with all rights: {chart}"
            ))
            .fix("on this machine, as root: sudo pipeops-agent apps, or the folder of apps (apps.folder)"))
    })
}

impl Apps {
    /// Refuses charts in a namespace where the control plane makes Pods, and in those of the
    /// cluster and the agent.
    pub(super) async fn check_chart_namespace(&self, manifests: &[Manifest]) -> Result<()> {
        let mut charts = manifests.iter().filter(|it| it.kind.is_chart()).peekable();
        let Some(first) = charts.peek().copied() else {
            return Ok(());
        };
        for chart in charts {
            let target = chart.object.pointer("/spec/targetNamespace");
            self.allowed(target.and_then(Value::as_str).unwrap_or_default())?;
        }
        let namespace = &first.namespace;
        let refused = |error: Error| error.within(format!("{} is not deployed", first.in_words()));
        let path = format!("/api/v1/namespaces/{}", query_escaped(namespace));
        match self.client.get::<Value>(&path).await {
            Ok(found) if found.pointer(MANAGED).and_then(Value::as_str) == Some("true") => {
                Err(refused(Error::new(format!(
                    "the control plane may run Pods in the managed namespace {namespace}"
                )))
                .fix("use another namespace for the chart; spec.targetNamespace says where it is installed"))
            }
            Ok(_) => Ok(()),
            // The API server says so itself.
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(refused(Error::new(error.to_string()).retry(Retry::Soon))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        core::apps::{InventoryEntry, Owner, Source, parse, repository::Repository},
        tasks::apps::Requester,
    };

    const CHART: &str = "apiVersion: helm.cattle.io/v1\nkind: HelmChart\nmetadata: {name: web}\n\
        spec: {failurePolicy: abort, chartContent: aGVsbG8=}\n";
    const MORE: &str = "apiVersion: helm.cattle.io/v1\nkind: HelmChartConfig\nmetadata: {name: web}\n\
        spec: {failurePolicy: abort}\n";
    const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\n";
    const JOB: &str = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: web}\n\
        spec: {template: {spec: {serviceAccountName: helm-web}}}\n";

    fn manifests(text: &str) -> Vec<Manifest> {
        parse(text, Some("shop")).unwrap()
    }

    fn requester(owner: Owner, is_root: bool) -> Requester {
        Requester {
            owner,
            is_root,
            ..Requester::here("somebody")
        }
    }

    fn source(upstream: Upstream) -> Origin {
        Origin::Source(Source {
            upstream,
            taken: String::new(),
        })
    }

    #[test]
    fn charts_come_from_roots_command_line_and_folder_alone() {
        let git = || source(Upstream::Git(Repository::default()));
        let folder = || source(Upstream::Folder("/etc/pipeops-agent/apps/web".to_owned()));
        let (machine, plane) = (Owner::Machine, Owner::ControlPlane);
        let holds = App {
            inventory: vec![InventoryEntry::of(&manifests(CHART)[0])],
            ..App::default()
        };
        for (door, requester, origin, may) in [
            ("root", requester(machine, true), Origin::Manifests, true),
            ("the folder", requester(machine, false), folder(), true),
            ("root again", requester(machine, true), Origin::Known, true),
            (
                "operators, the page",
                requester(machine, false),
                Origin::Manifests,
                false,
            ),
            (
                "the same again",
                requester(machine, false),
                Origin::Known,
                false,
            ),
            ("a repository", requester(machine, false), git(), false),
            (
                "a repository that root sets",
                requester(machine, true),
                git(),
                false,
            ),
            (
                "the control plane",
                requester(plane, false),
                Origin::Manifests,
                false,
            ),
            ("its repository", requester(plane, false), git(), false),
        ] {
            let is_known = matches!(origin, Origin::Known);
            let submission = Submission {
                is_partial: false,
                requester: &requester,
                origin,
            };
            let may_have =
                |app: &App, text: &str| submission.may_deploy(app, &manifests(text)).is_ok();
            let app = App::default();
            for chart in [CHART, MORE] {
                assert_eq!(may_have(&app, chart), may, "{door}");
            }
            // Nor does anybody else have a version take a chart away.
            assert_eq!(may_have(&holds, MAP), may, "{door}");
            assert!(may_have(&app, MAP), "{door}");
            assert_eq!(may_have(&app, JOB), may || is_known, "{door}");
        }
    }
}
