//! Requests about apps, as they come by the local API and as commands of the control plane.

use crate::{core::apps::Simple, wire::json::fields};

/// Request to deploy an app.
#[derive(Debug, Default)]
pub struct ApplyRequest {
    /// Name.
    pub app: String,
    /// Namespace; empty: the one of the manifests.
    pub namespace: String,
    /// YAML or JSON.
    pub manifests: String,
    /// True if more than half of its objects may go.
    pub prune_most: bool,
    /// True if objects of others become the app's.
    pub adopt: bool,
}
fields!(ApplyRequest {
    app,
    namespace,
    manifests,
    prune_most,
    adopt
});

/// Repository that the control plane names, in place of manifests.
#[derive(Debug, Default)]
pub struct GitArgs {
    /// The repository.
    pub git: Option<GitPlace>,
}
fields!(GitArgs { git });

/// Place in a repository.
#[derive(Debug, Default)]
pub struct GitPlace {
    /// Address.
    pub url: String,
    /// Branch, tag or commit; empty: the default branch.
    pub reference: String,
    /// File or folder; empty: its root.
    pub path: String,
}
fields!(GitPlace {
    url,
    reference: "ref",
    path
});

/// Request to deploy an app from a repository and to keep it up to date.
#[derive(Debug, Default)]
pub struct SourceRequest {
    /// Address; empty: it is deployed by hand from now on.
    pub git: String,
    /// Branch, tag or commit; empty: the default branch.
    pub reference: String,
    /// File or folder in the repository; empty: its root.
    pub path: String,
    /// File with credentials; empty: none.
    pub credentials: String,
    /// Namespace; empty: that of the app, or the one of the manifests.
    pub namespace: String,
    /// True if more than half of its objects may go.
    pub prune_most: bool,
}
fields!(SourceRequest {
    git,
    reference: "ref",
    path,
    credentials,
    namespace,
    prune_most
});

/// Request to look at the source of an app at once.
#[derive(Debug, Default)]
pub struct PullRequest {
    /// True if more than half of its objects may go.
    pub prune_most: bool,
}
fields!(PullRequest { prune_most });

/// Arguments of a command that is about one app.
#[derive(Debug, Default)]
pub struct AppArgs {
    /// Name.
    pub app: String,
}
fields!(AppArgs { app });

/// Request to read the log of an app.
#[derive(Debug, Default)]
pub struct LogRequest {
    /// Container; empty: the one that says most.
    pub container: String,
    /// Lines from its end; absent: 100.
    pub lines: Option<u64>,
    /// True for the container that ran before.
    pub previous: bool,
}
fields!(LogRequest {
    container,
    lines,
    previous
});

/// Request to go back, or to change who does that.
#[derive(Debug, Default)]
pub struct RollbackRequest {
    /// Revision; 0: the last good one before what runs.
    pub to: u64,
    /// `on` or `off`: whether the agent goes back by itself from now on. Empty: go back now.
    pub auto: String,
}
fields!(RollbackRequest { to, auto });

/// Request to change the number of Pods.
#[derive(Debug, Default)]
pub struct ScaleRequest {
    /// Number; absent: the one of the manifest again.
    pub to: Option<u64>,
    /// Workload: `Deployment/web`; empty: the only one.
    pub workload: String,
}
fields!(ScaleRequest { to, workload });

fields!(Simple {
    namespace,
    image,
    port,
    host,
    env,
    secret_env,
    volumes,
    pull_secret
});
