//! The release of k3s that a command line means: files in a folder, or a download that the signed
//! index or `--sha256` vouches for.

use std::{cell::OnceCell, fs::File, path::Path};

use super::text_of;
use crate::{
    cli::{
        args::Args,
        load,
        output::{Output, size},
        releases,
        table::{Opt, Takes},
    },
    core::k3s::{
        self, Names, Version,
        index::{self, Channel, Choice, Index, PROGRAM_BYTES_MAX},
    },
    error::{Error, Result, Retry},
    files,
    host::{clock, facts},
    keeper::{
        Keeper,
        k3s::{Program, Source},
    },
    outside::download::{self, Address, Length, Redirects, Wanted},
    wire::keeper::{Download, IndexNote, K3sPlan},
};

/// The folder.
pub(super) const FROM: Opt = Opt::value(
    "from",
    Takes::Folder,
    "FOLDER",
    "Folder with the files of a release, not the network: k3s, sha256sum-ARCH.txt, and the images if they are there",
);

/// The version behind a name that moves.
pub(super) const CHANNEL: Opt = Opt::value(
    "channel",
    Takes::Text,
    "CHANNEL",
    "Version of this channel of the signed index: stable, latest, or v1.34",
)
.against("from");

/// A checksum from somewhere else.
pub(super) const SHA256: Opt = Opt::value(
    "sha256",
    Takes::Text,
    "HEX",
    "SHA-256 that the program must have, instead of the one in the signed index or the list of the folder",
);

pub(super) struct Release {
    /// The program, which a download has yet to bring.
    pub(super) binary: Program,
    /// Archives of images.
    pub(super) images: Vec<Source>,
    /// Version that it must be.
    pub(super) version: Option<Version>,
    download: Option<Fetch>,
}

/// A download.
struct Fetch {
    wanted: Wanted,
    shown: Download,
    seen: Option<IndexNote>,
    /// Held from the download to the end of the command.
    lock: OnceCell<File>,
}

/// A version on the command line.
fn version(args: &Args, name: &'static str) -> Result<Option<Version>> {
    args.read(name, |text| {
        let fix = |()| "versions look like v1.34.4+k3s1".to_owned();
        text.parse::<Version>().map_err(fix)
    })
}

/// The release that is meant: `pin` is the option that names its version, `usual` what is taken
/// without one.
pub(super) fn release(
    args: &Args,
    keeper: &Keeper,
    pin: &'static str,
    usual: impl FnOnce() -> Choice,
) -> Result<Release> {
    let version = version(args, pin)?;
    let names = machine_names()?;
    let sum = args.read("sha256", |text| {
        let fix = || "it is 64 hexadecimal digits, as sha256sum prints them".to_owned();
        k3s::is_sha256(text)
            .then(|| text.to_ascii_lowercase())
            .ok_or_else(fix)
    })?;
    if let Some(folder) = args.path(FROM.long) {
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        let list = text_of(&folder.join(names.checksums));
        return Ok(Release {
            binary: Program::Here(binary(&folder, &names, sum, &list)?),
            images: images(&folder, &names, &list)?,
            version,
            download: None,
        });
    }
    let channel = args.read(CHANNEL.long, |text| {
        let fix = |()| "channels are stable, latest, or a minor version such as v1.34".to_owned();
        text.parse::<Channel>().map_err(fix)
    })?;
    let choice = match (version, channel) {
        (Some(version), None) => Choice::Version(version),
        (None, Some(channel)) => Choice::Channel(channel),
        (None, None) => usual(),
        (Some(_), Some(_)) => {
            return Err(
                Error::new(format!("--{pin} and --channel name two versions"))
                    .fix("leave one of them out"),
            );
        }
    };
    online((args, pin), keeper, &names, choice, sum)
}

fn online(
    (args, pin): (&Args, &str),
    keeper: &Keeper,
    names: &Names,
    choice: Choice,
    sum: Option<String>,
) -> Result<Release> {
    let loaded = load(args);
    let settings = loaded.k3s();
    let to = loaded.keeper().state_dir.join("download/k3s");
    let (version, length, sha256, seen) = match (sum, choice) {
        (Some(sum), Choice::Version(version)) => {
            (version, Length::AtMost(PROGRAM_BYTES_MAX), sum, None)
        }
        (Some(_), Choice::Channel(channel)) => {
            return Err(Error::new(format!(
                "--sha256 identifies one version, but channel {channel} changes"
            ))
            .fix("name the version that the hash is of"));
        }
        (None, choice) => {
            let note = keeper.k3s_index()?;
            let index = index((args, pin), &settings.index, note)
                .map_err(|error| error.within("the hash of k3s is not known"))?;
            let version = index.version(choice)?;
            let file = index.program(version, names)?;
            let seen = IndexNote {
                sequence: index.sequence,
                keys: index.keys,
            };
            (version, Length::Exact(file.bytes), file.sha256, Some(seen))
        }
    };
    let bytes = match length {
        Length::Exact(bytes) => Some(bytes),
        Length::AtMost(_) => None,
    };
    let url = index::url(&settings.mirror, version, names);
    let hash_of = if seen.is_some() {
        "the signed index"
    } else {
        "--sha256"
    };
    Ok(Release {
        binary: Program::Promised {
            version,
            sha256: sha256.clone(),
            bytes: bytes.unwrap_or(0),
        },
        images: Vec::new(),
        version: Some(version),
        download: Some(Fetch {
            shown: Download {
                url: url.clone(),
                bytes,
                sha256: sha256.clone(),
                hash_of: hash_of.to_owned(),
                to: to.display().to_string(),
            },
            wanted: Wanted {
                from: Address {
                    url,
                    setting: "k3s.mirror",
                },
                to,
                length,
                sha256,
                // GitHub sends on to its storage.
                redirects: Redirects::ToHttps,
            },
            seen,
            lock: OnceCell::new(),
        }),
    })
}

/// A lock on the directory of downloads: two commands would write into one file.
fn alone(folder: &Path) -> Result<File> {
    files::lock_directory(folder)?.ok_or_else(|| {
        Error::new(format!("cannot download to {}", folder.display()))
            .why("another command on this machine downloads k3s, or installs what it downloaded")
            .fix("wait until it has ended, then try again")
            .retry(Retry::Soon)
    })
}

/// The signed index, verified.
fn index((args, pin): (&Args, &str), base: &str, note: IndexNote) -> Result<Index> {
    let loaded = load(args);
    // A key that replaced another did so for all lists.
    let with_fix = |error: Error| {
        let fix = error.fix.clone().unwrap_or_default();
        error.fix(format!(
            "{fix}; or name version and hash: --{pin} VERSION --sha256 HEX; or bring the files by hand: --from FOLDER"
        ))
    };
    let trust = releases::trust(&loaded.update(), note.sequence, note.keys).map_err(with_fix)?;
    let from = Address {
        url: format!("{}/{}", base.trim_end_matches('/'), index::FILE),
        setting: "k3s.index",
    };
    let transport = releases::transport(args)?;
    let (text, signature) = releases::list(&transport, &from).map_err(with_fix)?;
    Index::verified(&text, &signature, &trust, clock::now().wall)
}

impl Release {
    /// Says in a plan what would be downloaded.
    pub(super) fn shown(&self, mut plan: K3sPlan) -> K3sPlan {
        plan.download = self.download.as_ref().map(|fetch| fetch.shown.clone());
        plan
    }

    /// Downloads the program, if it is not here, into a directory of root's, where its hash is
    /// checked. A change that `plan` refuses downloads nothing.
    pub(super) fn fetch(
        &self,
        args: &Args,
        keeper: &Keeper,
        plan: impl FnOnce() -> Result<K3sPlan>,
    ) -> Result<Program> {
        let Some(fetch) = &self.download else {
            return Ok(self.binary.clone());
        };
        if !plan()?.refused.is_empty() {
            return Ok(self.binary.clone());
        }
        if let Some(seen) = fetch.seen {
            keeper.k3s_index_seen(seen)?;
        }
        if let Some(folder) = fetch.wanted.to.parent() {
            files::create_directory(folder)?;
            // It is empty: this is the first time.
            let _kept = fetch.lock.set(alone(folder)?).is_ok();
        }
        let bytes = fetch.shown.bytes.map(size).unwrap_or_default();
        let note = format!("downloading {} {bytes}", fetch.shown.url);
        Output::of_process().note(note.trim_end());
        let transport = releases::transport(args)?;
        smol::block_on(download::file(
            &transport,
            &fetch.wanted,
            &releases::progress(),
        ))?;
        Ok(Program::Here(Source {
            path: fetch.wanted.to.clone(),
            sha256: fetch.wanted.sha256.clone(),
            name: "k3s".to_owned(),
        }))
    }

    /// Removes what was downloaded; what stays takes room and does no harm.
    pub(super) fn clean(&self) {
        if let Some(fetch) = &self.download {
            drop(std::fs::remove_file(&fetch.wanted.to));
        }
    }
}

/// Names of the files of a release for this machine.
fn machine_names() -> Result<Names> {
    let machine = facts::architecture().unwrap_or_default();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_commands_do_not_download_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let first = alone(folder.path()).unwrap();
        let refused = alone(folder.path()).unwrap_err();
        assert!(refused.sentence().contains("another command"), "{refused}");
        drop(first);
        assert!(alone(folder.path()).is_ok());
    }
}
