//! Files of a release of k3s in a folder that came by hand.

use std::path::Path;

use super::text_of;
use crate::{
    cli::{
        args::Args,
        table::{Opt, Takes},
    },
    core::k3s::{self, Names, Version},
    error::{Error, Result},
    keeper::k3s::Source,
};

/// The folder.
pub(super) const FROM: Opt = Opt::value(
    "from",
    Takes::Folder,
    "FOLDER",
    "Folder with the files of a release: k3s, sha256sum-ARCH.txt, and the images if they are there",
);

/// A checksum from somewhere else.
pub(super) const SHA256: Opt = Opt::value(
    "sha256",
    Takes::Text,
    "HEX",
    "SHA-256 that the program must have, instead of the one in the list of the folder",
);

/// A version on the command line.
pub(super) fn version(args: &Args, name: &'static str) -> Result<Option<Version>> {
    args.read(name, |text| {
        let fix = |()| "versions look like v1.34.4+k3s1".to_owned();
        text.parse::<Version>().map_err(fix)
    })
}

/// The program and the archive of its images.
pub(super) fn sources(args: &Args) -> Result<(Source, Vec<Source>)> {
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
    let sum = args.read("sha256", |text| {
        let fix = || "it is 64 hexadecimal digits, as sha256sum prints them".to_owned();
        k3s::is_sha256(text)
            .then(|| text.to_ascii_lowercase())
            .ok_or_else(fix)
    })?;
    let list = text_of(&folder.join(names.checksums));
    Ok((
        binary(&folder, &names, sum, &list)?,
        images(&folder, &names, &list)?,
    ))
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
