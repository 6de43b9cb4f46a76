//! `apps deploy --git` and `apps pull`.

use serde_json::{Value, json};

use super::{
    super::{
        args::Args,
        output::{Output, printable},
        socket::{self, Ask},
        table::{CONFIG, Command, JSON, Opt, SET, SOCKET, Takes},
        view::View,
    },
    VERSION, WAIT,
    apply::{PRUNE_MOST, follow},
    path,
};
use crate::error::{Error, Exit, Result};

/// Address of a repository.
pub(super) const GIT: Opt = Opt::value(
    "git",
    Takes::Text,
    "URL",
    "Git repository to deploy from and to follow; 'none': deploy manually again",
);
/// Branch, tag or commit.
pub(super) const REF: Opt = Opt::value(
    "ref",
    Takes::Text,
    "REF",
    "With --git: branch, tag or commit (default: the default branch)",
);
/// Place in the repository.
pub(super) const PATH: Opt = Opt::value(
    "path",
    Takes::Text,
    "PATH",
    "With --git: file or folder of manifests in it (default: its root)",
);
/// Credentials for the server.
pub(super) const CREDENTIALS: Opt = Opt::value(
    "credentials",
    Takes::File,
    "FILE",
    "With --git: file with user:password or a token, with ssh the private key",
);

/// Options that belong to an image.
const OF_IMAGE: [&str; 7] = [
    "image",
    "port",
    "host",
    "env",
    "secret",
    "volume",
    "pull-secret",
];

/// Options that belong to a repository.
pub(super) const OF_GIT: [&str; 4] = [REF.long, PATH.long, CREDENTIALS.long, PRUNE_MOST.long];

/// `apps pull`.
pub(super) static PULL: Command = Command {
    name: "pull",
    about: "Check the Git repository, or the folder, of an app for a change now",
    options: &[PRUNE_MOST, WAIT, SOCKET, CONFIG, SET, JSON],
    notes: "What failed is tried again. Otherwise the agent checks a repository every few minutes (apps.interval), a folder every few seconds.",
    examples: &["sudo pipeops-agent apps pull web --wait"],
    exit: "0 nothing is new, or accepted (with --wait: good), 1 bad or rolled back, 2 nothing was deployed.",
    run: Some(pull),
    ..VERSION
};

/// Deploys from a repository.
pub(super) fn deploy(args: &Args, output: &mut Output, git: &str) -> Result<Exit> {
    let app = args.text("NAME").unwrap_or_default();
    let cannot = format!("{app} was not deployed");
    if let Some(other) = OF_IMAGE.iter().find(|name| args.has(name)) {
        return Err(Error::new(cannot)
            .why(format!("--git and --{other} do not go together"))
            .fix("an app comes from an image or from a repository"));
    }
    let credentials = args.path("credentials").unwrap_or_default();
    let body = json!({
        "git": if git == "none" { "" } else { git },
        "ref": args.text("ref").unwrap_or_default(),
        "path": args.text("path").unwrap_or_default(),
        "credentials": credentials,
        "namespace": args.text("namespace").unwrap_or_default(),
        "prune_most": args.has("prune-most"),
    });
    let pulled = socket::request(args, &Ask::Fetch(&path(app, "/source"), body), &cannot)?;
    if git != "none" || args.has("json") {
        return over(args, output, (app, &pulled));
    }
    let app = printable(app);
    output.line(&format!(
        "{app} is deployed manually from now on; what runs stays"
    ));
    Ok(Exit::Fine)
}

fn pull(args: &Args, output: &mut Output) -> Result<Exit> {
    let app = args.text("NAME").unwrap_or_default();
    let body = json!({"prune_most": args.has("prune-most")});
    let cannot = format!("{app} was not pulled");
    let pulled = socket::request(args, &Ask::Fetch(&path(app, "/pull"), body), &cannot)?;
    over(args, output, (app, &pulled))
}

fn over(args: &Args, output: &mut Output, (app, pulled): (&str, &Value)) -> Result<Exit> {
    let view = View::new(pulled);
    if view.text("state") == "accepted" {
        return follow(args, output, (app, pulled));
    }
    if args.has("json") {
        output.json(pulled);
    } else {
        let revision = view.count("revision").unwrap_or(0);
        let commit = view.maybe("commit");
        let commit = commit.map_or_else(String::new, |it| format!(", commit {}", printable(it)));
        output.line(&format!(
            "{} is up to date: revision {revision}{commit}",
            printable(app)
        ));
    }
    Ok(Exit::Fine)
}
