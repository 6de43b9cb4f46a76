//! `k3s install`: from a folder that came by hand.

use std::path::Path;

use super::{DRY_RUN, TIMEOUT, keeper, program, report, tell, text_of, within};
use crate::{
    cli::{
        args::Args,
        changes,
        output::Output,
        table::{Command, Opt, Takes, Times},
    },
    core::k3s::{self, Names, Version, texts::Wishes},
    error::{Error, Exit, Result},
    keeper::k3s::{Install, Source},
    net::tls::build_date,
};

/// `k3s install`.
pub(super) static COMMAND: Command = Command {
    name: "install",
    about: "Install k3s, and wait until its node is Ready",
    options: &[
        Opt::value(
            "from",
            Takes::Folder,
            "FOLDER",
            "Folder with the files of a release: k3s, sha256sum-ARCH.txt, and the images if they are there",
        ),
        Opt::value(
            "k3s-version",
            Takes::Text,
            "VERSION",
            "Version that it must be, such as v1.34.4+k3s1",
        ),
        Opt::value(
            "sha256",
            Takes::Text,
            "HEX",
            "SHA-256 that the program must have, instead of the one in the list of the folder",
        ),
        Opt::value(
            "data-dir",
            Takes::Folder,
            "FOLDER",
            "Directory of its data (default: /var/lib/rancher/k3s)",
        ),
        Opt::value(
            "node-name",
            Takes::Text,
            "NAME",
            "Name of the node (default: the host name)",
        ),
        Opt::value(
            "node-ip",
            Takes::Text,
            "ADDRESS",
            "Address of the node, where there are several",
        ),
        many("label", "KEY=VALUE", "Label of the node"),
        many(
            "tls-san",
            "NAME",
            "Name or address under which others reach its API",
        ),
        many(
            "disable",
            "PART",
            "Leave this part of k3s out: traefik, servicelb, metrics-server, …",
        ),
        Opt::flag(
            "all-parts",
            "Keep all parts of k3s, also where there is little memory",
        ),
        Opt::value(
            "registries",
            Takes::File,
            "FILE",
            "Mirrors and credentials of registries, copied to registries.yaml",
        ),
        Opt::flag(
            "reuse-data",
            "Go on with the cluster that the data directory holds",
        ),
        many("ignore", "CHECK", "Continue in spite of this finding"),
        TIMEOUT,
        DRY_RUN,
    ],
    notes: "Nothing is taken from the network: copy the files of a release to FOLDER, or a USB stick.\n\
            What fails is undone, and after a power cut it is finished or undone with the next start.\n\
            Your own settings belong into /etc/rancher/k3s/config.yaml; this command writes a file beside it.",
    examples: &[
        "sudo pipeops-agent k3s install --from /media/usb/k3s --dry-run",
        "sudo pipeops-agent k3s install --from /media/usb/k3s --data-dir /mnt/ssd/k3s --disable traefik",
    ],
    exit: "0 the node is Ready, 1 it failed and was undone, 2 the command could not run.",
    run: Some(install),
    ..Command::BARE
};

const fn many(long: &'static str, value: &'static str, help: &'static str) -> Opt {
    Opt {
        times: Times::Many,
        ..Opt::value(long, Takes::Text, value, help)
    }
}

fn install(args: &Args, output: &mut Output) -> Result<Exit> {
    let keeper = keeper(args, "install")?;
    let wanted = wanted(args)?;
    if args.has(DRY_RUN.long) {
        let plan = keeper.k3s_install_plan(&wanted)?;
        report::plan(&plan, args, output);
        let is_fine = plan.refused.is_empty();
        return Ok(if is_fine { Exit::Fine } else { Exit::Problem });
    }
    let done = keeper.k3s_install(&wanted, &changes::who())?;
    Ok(tell(&done, args, output))
}

fn wanted(args: &Args) -> Result<Install> {
    let names = machine_names()?;
    let folder = args.path("from").ok_or_else(|| {
        Error::new("no folder with the files of a release was named").fix(format!(
            "copy {} and {} of a release there, and {} for a machine without internet; then: --from FOLDER",
            names.binary,
            names.checksums,
            names.images.first().copied().unwrap_or_default(),
        ))
    })?;
    let folder = std::path::absolute(&folder).unwrap_or(folder);
    let text = |name: &str| args.text(name).map(str::to_owned);
    let sum = args.read("sha256", |text| {
        let fix = || "it is 64 hexadecimal digits, as sha256sum prints them".to_owned();
        k3s::is_sha256(text)
            .then(|| text.to_ascii_lowercase())
            .ok_or_else(fix)
    })?;
    let list = text_of(&folder.join(names.checksums));
    Ok(Install {
        binary: binary(&folder, &names, sum, &list)?,
        images: images(&folder, &names, &list)?,
        version: args.read("k3s-version", |text| {
            let fix = |()| "versions look like v1.34.4+k3s1".to_owned();
            text.parse::<Version>().map_err(fix)
        })?,
        wishes: Wishes {
            data_dir: text("data-dir"),
            node_name: text("node-name"),
            node_ip: text("node-ip"),
            node_labels: args.all("label"),
            tls_san: args.all("tls-san"),
            disable: args.all("disable"),
            has_all_parts: args.has("all-parts"),
        },
        registries: args
            .path("registries")
            .map(|path| text_of(&path))
            .transpose()?,
        ignored: args.all("ignore"),
        reuses_data: args.has("reuse-data"),
        within: within(args)?,
        program: program()?,
        built: build_date(),
    })
}

/// Names of the files of a release for this machine.
fn machine_names() -> Result<Names> {
    let machine = nix::sys::utsname::uname()
        .map_err(|error| Error::new("cannot find out which processor this is").because(&error))?;
    let machine = machine.machine().to_string_lossy().into_owned();
    k3s::names(&machine).ok_or_else(|| {
        Error::new("there is no k3s for this processor").why(format!(
            "it is {machine}; k3s is built for x86_64, aarch64 and armv7l"
        ))
    })
}

fn binary(
    folder: &Path,
    names: &Names,
    sum: Option<String>,
    list: &Result<String>,
) -> Result<Source> {
    let sha256 = match (sum, list) {
        (Some(sum), _) => sum,
        (None, Err(error)) => {
            return Err(error
                .clone()
                .within("the checksum of k3s is not known")
                .fix(format!(
                    "copy {} of the same release into {}, or name the checksum: --sha256 HEX",
                    names.checksums,
                    folder.display()
                )));
        }
        (None, Ok(list)) => k3s::checksum(list, names.binary).ok_or_else(|| {
            Error::new(format!(
                "{} has no checksum of {}",
                names.checksums, names.binary
            ))
            .fix("copy the list of the same release and processor")
        })?,
    };
    Ok(Source {
        path: folder.join(names.binary),
        sha256,
        name: "k3s".to_owned(),
    })
}

/// The archive of images, where the folder has one: k3s takes any of its forms, one is enough.
fn images(folder: &Path, names: &Names, list: &Result<String>) -> Result<Vec<Source>> {
    let found = names
        .images
        .into_iter()
        .find(|name| folder.join(name).exists());
    let Some(name) = found else {
        return Ok(Vec::new());
    };
    let sha256 = list
        .as_ref()
        .ok()
        .and_then(|list| k3s::checksum(list, name));
    let sha256 = sha256.ok_or_else(|| {
        Error::new(format!("{} has no checksum of {name}", names.checksums)).fix(format!(
            "copy the list of the same release, or remove {name} to install without images"
        ))
    })?;
    Ok(vec![Source {
        path: folder.join(name),
        sha256,
        name: name.to_owned(),
    }])
}
