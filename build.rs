//! Stamps the program with its build date, below which no clock is believed (see
//! `net::tls::Clock`): a board without a battery wakes up in 1970, and every certificate is then
//! "not yet valid". `SOURCE_DATE_EPOCH` wins, so that builds are reproducible. Stamps it with its
//! commit (`PIPEOPS_COMMIT`, where the release sets it), its target and its compiler, for
//! `version --json`.
//! Stamps it with the key that signs its releases (`PIPEOPS_RELEASE_KEY`), if it is one.
//! Compresses the files of the page, so that the program never has to, the manifest of its rights,
//! and the units, scripts and short manifests that it writes.

use std::{
    error::Error,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use zopfli::{Format, Options};

const ASSETS: &str = "src/dashboard/assets";
/// The manifest of the program's rights in a cluster.
const MANIFEST: &str = "src/kube/rbac/manifest.yaml";
/// Units, scripts and short manifests that the program writes. They are alike, and take a quarter of
/// their length as one file.
const SCRIPTS: [&str; 30] = [
    "openrc/pipeops-agent",
    "openrc/pipeops-agent-update",
    "openrc/pipeops-keeper",
    "src/cli/completions/bash",
    "src/cli/completions/fish",
    "src/cli/completions/zsh",
    "src/core/k3s/texts/connect.openrc",
    "src/core/k3s/texts/connect.service",
    "src/core/k3s/texts/connect.timer",
    "src/core/k3s/texts/k3s.logrotate",
    "src/core/k3s/texts/k3s.openrc",
    "src/core/k3s/texts/k3s.service",
    "src/core/k3s/texts/killall.sh",
    "src/core/k3s/texts/resume.openrc",
    "src/core/k3s/texts/resume.service",
    "src/core/k3s/texts/shutdown.openrc",
    "src/core/k3s/texts/shutdown.service",
    "src/core/k3s/texts/uninstall.sh",
    "src/core/k3s/texts/watch.openrc",
    "src/core/k3s/texts/watch.service",
    "src/core/k3s/texts/watch.timer",
    "src/keeper/update/pipeops-update.openrc",
    "src/keeper/update/pipeops-update.service",
    "src/kube/rbac/full.yaml",
    "src/kube/rbac/node-stats.yaml",
    "systemd/pipeops-agent-update.service",
    "systemd/pipeops-agent-update.timer",
    "systemd/pipeops-agent.service",
    "systemd/pipeops-keeper.service",
    "systemd/pipeops-keeper.socket",
];
/// What every look at the page needs goes over the wire as one file: it packs better, and is there
/// after one answer instead of three. Each of these imports those before it only; the others import
/// them by the name of the last.
const JOINED: [&str; 3] = ["base.js", "pages.js", "app.js"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    println!("cargo:rerun-if-env-changed=PIPEOPS_COMMIT");
    println!("cargo:rerun-if-env-changed=PIPEOPS_RELEASE_KEY");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={ASSETS}");
    let given = std::env::var_os("SOURCE_DATE_EPOCH")
        .and_then(|text| text.to_str().and_then(|text| text.trim().parse().ok()));
    let epoch_s: u64 = given.unwrap_or_else(now_s);
    println!("cargo:rustc-env=BUILD_EPOCH_S={epoch_s}");
    let text = |name: &str| std::env::var_os(name).and_then(|value| value.into_string().ok());
    let commit = text("PIPEOPS_COMMIT").unwrap_or_default();
    println!("cargo:rustc-env=BUILD_COMMIT={}", commit.trim());
    let key = text("PIPEOPS_RELEASE_KEY").unwrap_or_default();
    if !key.is_empty() && !is_key(&key) {
        return Err(format!(
            "PIPEOPS_RELEASE_KEY is not a minisign public key: {key:?}; use the last line of \
             minisign.pub, with the number of the key before it once it was changed (1 RW…)"
        )
        .into());
    }
    println!("cargo:rustc-env=BUILD_RELEASE_KEY={key}");
    let target = text("TARGET").ok_or("no TARGET")?;
    println!("cargo:rustc-env=BUILD_TARGET={target}");
    println!("cargo:rustc-env=BUILD_COMPILER={}", compiler()?);
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("no OUT_DIR")?);
    println!("cargo:rerun-if-changed={MANIFEST}");
    pack(&fs::read(MANIFEST)?, &out.join("rbac.yaml.gz"))?;
    // Each after its path, with a zero byte after both.
    let mut scripts = Vec::new();
    for path in SCRIPTS {
        println!("cargo:rerun-if-changed={path}");
        for part in [path.as_bytes(), &fs::read(path)?] {
            scripts.extend_from_slice(part);
            scripts.push(0);
        }
    }
    pack(&scripts, &out.join("scripts.gz"))?;
    assets(&out)
}

/// Writes a file that is compressed. There are no time and no name inside: the same content gives
/// the same program.
#[expect(
    clippy::disallowed_methods,
    reason = "an interrupted build is repeated: its files need not survive a power cut"
)]
fn pack(content: &[u8], to: &Path) -> Result<(), Box<dyn Error>> {
    let mut gzip = Vec::new();
    zopfli::compress(Options::default(), Format::Gzip, content, &mut gzip)?;
    fs::write(to, gzip)?;
    Ok(())
}

/// Returns whether the program will believe this: a key of minisign, in its usual 56 letters, and
/// the number before it.
fn is_key(text: &str) -> bool {
    let (number, key) = text.split_once(' ').unwrap_or(("0", text));
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    number.parse::<u32>().is_ok()
        && key.len() == 56
        && key.starts_with("RW")
        && key.bytes().all(is_letter)
}

/// Version of the compiler: the same source gives other bytes with another one.
#[expect(clippy::disallowed_methods, reason = "the build has no host/exec.rs")]
fn compiler() -> Result<String, Box<dyn Error>> {
    let rustc = std::env::var_os("RUSTC").ok_or("no RUSTC")?;
    let said = Command::new(rustc).arg("--version").output()?;
    Ok(String::from_utf8(said.stdout)?.trim().to_owned())
}

#[expect(
    clippy::disallowed_methods,
    reason = "the build has no host/clock.rs; a wrong clock here only makes the lower bound weaker"
)]
fn now_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Writes `assets.rs`: an array of the files of the page but `index.html`, which the server fills
/// in.
#[expect(
    clippy::disallowed_methods,
    reason = "an interrupted build is repeated: its files need not survive a power cut"
)]
fn assets(out: &Path) -> Result<(), Box<dyn Error>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(ASSETS)? {
        let path = entry?.path();
        println!("cargo:rerun-if-changed={}", path.display());
        files.push(path);
    }
    files.sort();
    let mut table = "&[\n".to_owned();
    for path in files {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or("a file of the page has a name that is not text")?;
        let bytes = match JOINED.iter().position(|one| *one == name) {
            _ if name == "index.html" => continue,
            Some(place) if place + 1 < JOINED.len() => continue,
            Some(_) => joined(Path::new(ASSETS))?.into_bytes(),
            None => lean(name, fs::read(&path)?),
        };
        let kind = kind(name).ok_or_else(|| format!("{name}: of what type is this?"))?;
        let packed = out.join(format!("{name}.gz"));
        pack(&bytes, &packed)?;
        writeln!(
            table,
            "    Asset {{ name: {name:?}, kind: {kind:?}, packed: include_bytes!(\"{}\") }},",
            packed.display()
        )?;
    }
    table.push(']');
    fs::write(out.join("assets.rs"), table)?;
    Ok(())
}

/// The files of [`JOINED`] as one module. Two of them with the same name at their top are an error
/// of the browser, which every test of the page meets.
fn joined(assets: &Path) -> Result<String, Box<dyn Error>> {
    let mut all = String::new();
    for name in JOINED {
        let file = lean(name, fs::read(assets.join(name))?);
        let mut is_import = false;
        for line in String::from_utf8(file)?.lines() {
            is_import |= line.starts_with("import {");
            if !is_import {
                all.push_str(line);
                all.push('\n');
            }
            is_import &= !line.ends_with(';');
        }
    }
    Ok(all)
}

/// A file of our own without the lines and the indentation that only its readers need: a sixth of
/// what goes over the wire. In these files a comment has a line of its own, and no text goes over
/// several lines.
fn lean(name: &str, file: Vec<u8>) -> Vec<u8> {
    let comment = match name.rsplit_once('.') {
        // What others wrote stays as it is.
        _ if name.starts_with("uplot") => return file,
        Some((_, "js")) => Some("//"),
        Some((_, "css")) => Some("/*"),
        Some((_, "json")) => None,
        _ => return file,
    };
    let Ok(text) = std::str::from_utf8(&file) else {
        return file;
    };
    let mut lean = String::new();
    for line in text.lines().map(str::trim) {
        if !line.is_empty() && !comment.is_some_and(|comment| line.starts_with(comment)) {
            lean.push_str(line);
            lean.push('\n');
        }
    }
    lean.replace("'./base.js'", "'./app.js'").into_bytes()
}

fn kind(name: &str) -> Option<&'static str> {
    let (_, ending) = name.rsplit_once('.')?;
    Some(match ending {
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "webmanifest" => "application/manifest+json",
        "txt" => "text/plain; charset=utf-8",
        _ => return None,
    })
}
