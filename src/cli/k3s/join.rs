//! `k3s join`: this machine becomes a worker of a server, or a further server.

use std::path::Path;

use super::{
    DRY_RUN, IGNORE, TIMEOUT, connect,
    install::{self, DATA_DIR, LABEL, NO_PROXY, NODE_IP, NODE_NAME, PROXY, REGISTRIES},
    keeper, release, text_of,
};
use crate::{
    cli::{
        args::Args,
        ask, load,
        output::Output,
        table::{Command, Opt, Takes},
    },
    core::{
        k3s::{
            Role,
            index::{Choice, PINNED},
            join::{Credential, Token, doubts, server},
            texts::InstallOptions,
        },
        secret::Secret,
        time::Wall,
        url::Url,
    },
    error::{Error, Exit, Result},
    files,
    host::clock,
    keeper::k3s::{Install, Join},
    kube,
    net::tls::Clock,
};

/// `k3s join`.
pub(super) static COMMAND: Command = Command {
    name: "join",
    about: "Make this machine a worker of a k3s server, or a further server, and wait until its node is Ready",
    options: &[
        Opt::value(
            "server",
            Takes::Text,
            "URL",
            "Address of the server: https://ADDRESS:6443",
        ),
        Opt::value(
            "token-file",
            Takes::File,
            "FILE",
            "File with the token; -: prompt for it, or read standard input",
        )
        .default("-"),
        Opt::flag(
            "server-role",
            "Become a further server of a cluster with embedded etcd, with the token of the cluster",
        ),
        release::FROM,
        Opt::value(
            "version",
            Takes::Text,
            "VERSION",
            "Version to install, never newer than the server (default: that of the server)",
        ),
        release::CHANNEL,
        release::SHA256,
        DATA_DIR,
        NODE_NAME,
        NODE_IP,
        LABEL,
        REGISTRIES,
        PROXY,
        NO_PROXY,
        IGNORE,
        TIMEOUT,
        DRY_RUN,
    ],
    notes: "The token comes from `sudo pipeops-agent k3s token` on the server. It has the hash of the server's CA, which is compared before the token is sent.\n\
            A failed change is undone; after a power cut, the next start finishes or undoes it.\n\
            To leave the cluster again: `sudo pipeops-agent node leave`.",
    examples: &[
        "sudo pipeops-agent k3s join --server https://192.0.2.10:6443 --dry-run",
        "sudo pipeops-agent k3s join --server https://192.0.2.10:6443 --token-file /root/join-token --node-name pi2",
        "sudo pipeops-agent k3s join --server https://192.0.2.10:6443 --from /media/usb/k3s",
    ],
    exit: "0 the node is Ready, 1 it failed and was undone, 2 the command could not run.",
    run: Some(join),
    ..Command::BARE
};

fn join(args: &Args, output: &mut Output) -> Result<Exit> {
    let keeper = keeper(args, "k3s join")?;
    let role = if args.has("server-role") {
        Role::Server
    } else {
        Role::Worker
    };
    let url = address(args)?;
    let token = token(args.text("token-file").unwrap_or("-"))?;
    if let (Role::Server, Credential::Bootstrap(_)) = (role, &token.credential) {
        return Err(Error::new("this token is for workers only")
            .why("a further server gets the keys of the cluster, for which k3s accepts no token that expires")
            .fix("print that of the cluster on the first server: sudo pipeops-agent k3s token --server-role"));
    }
    let clock = Clock::new(|| clock::now().wall, Wall::from_millis(0));
    let server = smol::block_on(kube::join::look(&url, (&token, role), clock, clock::now))?;
    let ignored = args.all("ignore");
    let mut doubts = doubts(&server).into_iter();
    // With a wrong clock nothing that follows would be told right.
    if let Some((id, what, fix)) = doubts.find(|(id, ..)| !ignored.iter().any(|name| name == id)) {
        return Err(Error::new("this machine cannot join")
            .why(what)
            .fix(format!("{fix}; or continue anyway: --ignore {id}")));
    }
    let is_chosen = ["version", release::CHANNEL.long, release::FROM.long]
        .into_iter()
        .any(|option| args.has(option));
    if server.version.is_none() && !is_chosen {
        return Err(Error::new("the version of the servers is not known")
            .why("k3s does not tell it for a token that never ends")
            .fix("name it: --version VERSION; on the server: sudo pipeops-agent k3s status"));
    }
    let usual = server.version.unwrap_or(PINNED);
    let release = release::release(args, &keeper, "version", || Choice::Version(usual))?;
    let address = format!("https://{}", url.authority());
    let shared = match role {
        Role::Worker => None,
        Role::Server => Some(server.shared.clone().ok_or_else(|| {
            Error::new(format!(
                "{address} did not return the settings that all servers share"
            ))
            .fix("is it a server of k3s, and ready? sudo pipeops-agent k3s status, there")
        })?),
    };
    let options = InstallOptions {
        server: Some(address.clone()),
        disable: shared
            .as_ref()
            .map_or_else(Vec::new, |it| it.disable.clone()),
        has_all_parts: shared.is_some(),
        shared: shared.map(|it| it.settings),
        ..InstallOptions::default()
    };
    let wanted = Install {
        join: Some(Join {
            token,
            server,
            address,
        }),
        connects: role == Role::Server && connect::user(&load(args)).is_some(),
        ..install::wanted(args, &release, options)?
    };
    install::carry_out((args, output), &keeper, &release, wanted)
}

fn address(args: &Args) -> Result<Url> {
    let url = args.read("server", server)?;
    url.ok_or_else(|| {
        Error::new("the server to join is not named").fix(
            "name it: --server https://ADDRESS:6443; `sudo pipeops-agent k3s token` there prints the whole command",
        )
    })
}

/// The token of a file, of standard input, or of whoever sits there.
fn token(from: &str) -> Result<Token> {
    let text = if from == "-" {
        ask::secret("Token of the server")?
    } else {
        let path = Path::new(from);
        if let Some(exposed) = files::exposed(path) {
            return Err(exposed);
        }
        Secret::new(text_of(path)?)
    };
    Token::parse(text.reveal()).map_err(|why| {
        Error::new("this is not a join token")
            .why(why)
            .fix("make one on the server: sudo pipeops-agent k3s token")
    })
}
