//! `k3s install`: from the network, or a folder that came by hand.

use super::{
    DRY_RUN, IGNORE, TIMEOUT, connect, keeper, print_outcome, program,
    release::{self, Release},
    report, text_of, within,
};
use crate::{
    cli::{
        args::Args,
        changes, load,
        output::Output,
        table::{Command, Opt, Takes},
    },
    config::value::Value,
    core::{
        k3s::{
            index::{Choice, PINNED},
            proxy::Proxy,
            texts::InstallOptions,
        },
        url::ProxyUrl,
    },
    error::{Error, Exit, Result},
    keeper::{Keeper, k3s::Install},
    net::tls::build_date,
};

/// Options of a node, which a worker takes, too.
pub(super) const DATA_DIR: Opt = Opt::value(
    "data-dir",
    Takes::Folder,
    "FOLDER",
    "Directory of its data (default: /var/lib/rancher/k3s)",
);
pub(super) const NODE_NAME: Opt = Opt::value(
    "node-name",
    Takes::Text,
    "NAME",
    "Name of the node (default: the host name)",
);
pub(super) const NODE_IP: Opt = Opt::value(
    "node-ip",
    Takes::Text,
    "ADDRESS",
    "Address of the node, if the machine has several",
);
pub(super) const LABEL: Opt = Opt::many("label", "KEY=VALUE", "Label of the node");
pub(super) const REGISTRIES: Opt = Opt::value(
    "registries",
    Takes::File,
    "FILE",
    "Mirrors and credentials of registries, copied to registries.yaml",
);

pub(super) const PROXY: Opt = Opt::value(
    "proxy",
    Takes::Text,
    "URL",
    "HTTP proxy by which k3s pulls images; off: none (default: pipeops.proxy, or HTTPS_PROXY)",
);
pub(super) const NO_PROXY: Opt = Opt::value(
    "no-proxy",
    Takes::Text,
    "LIST",
    "Destinations without that proxy, besides the cluster (default: pipeops.no_proxy)",
);

/// `k3s install`.
pub(super) static COMMAND: Command = Command {
    name: "install",
    about: "Install k3s, and wait until its node is Ready",
    options: &[
        release::FROM,
        Opt::value(
            "version",
            Takes::Text,
            "VERSION",
            "Version to install, such as v1.34.4+k3s1 (default: the one that this program names)",
        ),
        release::CHANNEL,
        release::SHA256,
        DATA_DIR,
        NODE_NAME,
        NODE_IP,
        LABEL,
        Opt::many(
            "tls-san",
            "NAME",
            "Name or address under which others reach its API",
        ),
        Opt::many(
            "disable",
            "PART",
            "Leave out this part of k3s: traefik, servicelb, metrics-server, …",
        ),
        Opt::flag("all-parts", "Keep all parts of k3s even if memory is low"),
        REGISTRIES,
        PROXY,
        NO_PROXY,
        Opt::flag(
            "cluster-init",
            "Keep the data in embedded etcd, which further servers can join: needs an SSD",
        ),
        Opt::flag(
            "reuse-data",
            "Continue with the cluster in the data directory",
        ),
        IGNORE,
        TIMEOUT,
        DRY_RUN,
    ],
    notes: "The program is downloaded from k3s.mirror, through proxies; an interrupted download is resumed. Its hash comes from the signed index at k3s.index, or from --sha256.\n\
            With --from nothing is downloaded: copy the files of a release to FOLDER, such as a USB stick.\n\
            A failed change is undone; after a power cut, the next start finishes or undoes it.\n\
            Put your own settings into /etc/rancher/k3s/config.yaml; this command writes a separate file beside it.",
    examples: &[
        "sudo pipeops-agent k3s install --dry-run",
        "sudo pipeops-agent k3s install --channel stable",
        "sudo pipeops-agent k3s install --from /media/usb/k3s --dry-run",
        "sudo pipeops-agent k3s install --from /media/usb/k3s --data-dir /mnt/ssd/k3s --disable traefik",
    ],
    exit: "0 the node is Ready, 1 it failed and was undone, 2 the command could not run.",
    run: Some(install),
    ..Command::BARE
};

fn install(args: &Args, output: &mut Output) -> Result<Exit> {
    let keeper = keeper(args, "k3s install")?;
    let release = release::release(args, &keeper, "version", || Choice::Version(PINNED))?;
    let options = InstallOptions {
        tls_san: args.all("tls-san"),
        disable: args.all("disable"),
        has_all_parts: args.has("all-parts"),
        has_etcd: args.has("cluster-init"),
        ..InstallOptions::default()
    };
    let wanted = Install {
        reuses_data: args.has("reuse-data"),
        connects: connect::user(&load(args)).is_some(),
        ..wanted(args, &release, options)?
    };
    carry_out((args, output), &keeper, &release, wanted)
}

/// Shows an installation, or carries it out.
pub(super) fn carry_out(
    (args, output): (&Args, &mut Output),
    keeper: &Keeper,
    release: &Release,
    mut wanted: Install,
) -> Result<Exit> {
    if args.has(DRY_RUN.long) {
        let plan = keeper.k3s_install_plan(&wanted)?;
        let is_fine = plan.refused.is_empty();
        report::plan(&release.shown(plan), args, output);
        return Ok(if is_fine { Exit::Fine } else { Exit::Problem });
    }
    wanted.binary = release.fetch(args, keeper, || {
        keeper.k3s_resume()?;
        keeper.k3s_install_plan(&wanted)
    })?;
    let done = keeper.k3s_install(&wanted, &changes::who())?;
    release.clean();
    Ok(print_outcome(&done, args, output))
}

/// The installation that the options describe, besides these options.
pub(super) fn wanted(args: &Args, release: &Release, options: InstallOptions) -> Result<Install> {
    let text = |name: &str| args.text(name).map(str::to_owned);
    Ok(Install {
        binary: release.binary.clone(),
        images: release.images.clone(),
        version: release.version,
        options: InstallOptions {
            data_dir: text("data-dir"),
            node_name: text("node-name"),
            node_ip: text("node-ip"),
            node_labels: args.all("label"),
            ..options
        },
        registries: args
            .path("registries")
            .map(|path| text_of(&path))
            .transpose()?,
        ignored: args.all("ignore"),
        reuses_data: false,
        within: within(args, 900)?,
        join: None,
        proxy: proxy(args)?,
        connects: false,
        program: program()?,
        built: build_date(),
    })
}

/// The proxy of k3s: of the options, else of the settings.
fn proxy(args: &Args) -> Result<Option<Proxy>> {
    let loaded = load(args);
    let set = |path: &str| {
        let Value::Text(text) = &loaded.entry(path)?.value else {
            return None;
        };
        Some(text.clone())
    };
    let option = args.text(PROXY.long);
    let text = option.map(str::to_owned).or_else(|| set("pipeops.proxy"));
    let Some(text) = text.filter(|text| !text.is_empty() && text != "off") else {
        return Ok(None);
    };
    let cannot = || Error::new("k3s cannot use this proxy");
    let url = ProxyUrl::parse(&text)
        .map_err(|why| cannot().why(why).fix("--proxy http://proxy.example:3128"))?;
    if option.is_some() && url.credentials.is_some() {
        return Err(cannot()
            .why("every user can read a password on a command line")
            .fix(
                "set it as pipeops.proxy in /etc/pipeops-agent/config.toml, and leave --proxy out",
            ));
    }
    let direct = args.text(NO_PROXY.long).map(str::to_owned);
    let direct = direct
        .or_else(|| set("pipeops.no_proxy"))
        .unwrap_or_default();
    let direct = direct.split([',', ' ']).filter(|it| !it.is_empty());
    Ok(Some(Proxy {
        url,
        direct: direct.map(str::to_owned).collect(),
    }))
}
