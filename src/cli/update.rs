//! `update`: looks for a release, verifies it, and has the previous version try it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use nix::unistd::geteuid;
use serde_json::json;
use smol::Timer;

use super::{
    VERSION,
    args::Args,
    changes::Executor,
    keeper::ROOT,
    load,
    output::{Output, Tone, printable, size},
    releases, service, socket,
    table::{CONFIG, Command, JSON, Opt, SET, Takes},
    view::View,
};
use crate::{
    config::{self, Loaded},
    core::{
        link::LinkState,
        safe_mode,
        time::{Mono, Wall},
        update::{
            Version,
            list::{Choice, List, Machine, Trigger},
            signed::{BYTES_MAX, SignedFile, Trust},
            trial::{AgentStatus, WITHIN},
        },
    },
    daemon,
    error::{Error, Exit, Result},
    files,
    host::clock,
    keeper::{
        Keeper,
        update::{INSTALL_WITHIN, NewProgram, PreviousPackage, Watched, is_under_way, services},
    },
    outside::{
        download::{self, Address, Length, Redirects, Wanted},
        transport::Transport,
    },
    store,
    wire::{
        api,
        keeper::{PackageKind, Update, UpdateNote, UpdateStep},
        state::read_identity,
    },
};

const LIST: &str = "SHA256SUMS";
/// Longer than the service needs for anything but the trial itself.
const MARGIN: Duration = Duration::from_secs(120);
const TRIAL_S_MIN: u64 = 10;

/// `update`.
pub(super) static COMMAND: Command = Command {
    name: "update",
    about: "Update this program, and roll back if the new version fails",
    options: &[
        Opt::flag("check", "Show what an update would do, and change nothing"),
        Opt::value(
            "to",
            Takes::Text,
            "VERSION",
            "Install this version instead of the newest of update.channel",
        ),
        Opt::value(
            "from",
            Takes::Folder,
            "FOLDER",
            "Folder with the release, not the network: SHA256SUMS, SHA256SUMS.minisig and the program or package",
        ),
        Opt::flag(
            "automatic",
            "For a timer: respect the staged rollout, the expiry of the list and earlier failures",
        ),
        Opt::value(
            "within",
            Takes::Text,
            "SECONDS",
            "Seconds for the new version to prove itself",
        )
        .default("300"),
        Opt::flag(
            "finish",
            "Carry out the pending update (used by its service)",
        ),
        Opt::flag(
            "services",
            "Print the units and init scripts of this program as JSON (used by an update)",
        ),
        CONFIG,
        SET,
        ROOT,
        JSON,
    ],
    notes: "The release must be signed by the key of this program, or by update.key.\n\
            The new version must answer, open its databases and link again within five minutes; otherwise the previous one is restored, also after a power cut.\n\
            Where a package manager installed this program, it installs the new package, and the previous one if that fails.",
    examples: &[
        "pipeops-agent update --check",
        "sudo pipeops-agent update",
        "sudo pipeops-agent update --from /media/usb/pipeops",
    ],
    exit: "0 updated or nothing to do, 1 there is a newer version (--check), the version asked for is not installed, the list of the release expired, or the update was rolled back, 2 the command could not run.",
    run: Some(update),
    ..Command::BARE
};

/// A release whose list was verified.
struct Release {
    list: List,
    source: ReleaseSource,
}

/// Source of the files of a release.
enum ReleaseSource {
    /// A folder that came by hand.
    Folder(PathBuf),
    /// An address, and the transport to it.
    Net(String, Transport),
}

fn update(args: &Args, output: &mut Output) -> Result<Exit> {
    if args.has("services") {
        output.json(&json!(services::own()));
        return Ok(Exit::Fine);
    }
    let loaded = load(args);
    let within = trial_time(args)?;
    if let Some(why) = held_at_night(args, &loaded) {
        output.line(&format!("no automatic update: {why}"));
        return Ok(Exit::Fine);
    }
    let is_root = geteuid().is_root();
    if args.has("finish") {
        let stream = std::env::var_os("JOURNAL_STREAM");
        daemon::log_of_root(stream.as_deref().and_then(|stream| stream.to_str()))?;
        let keeper = keeper(&loaded, args)?;
        keeper.finish_update(&Agent(socket::candidates_of(&loaded)))?;
        return Ok(Exit::Fine);
    }
    let keeper = is_root.then(|| keeper(&loaded, args)).transpose()?;
    let (mut note, under_way) = match &keeper {
        Some(keeper) => (keeper.update_note()?, keeper.update_under_way()?),
        None => (UpdateNote::default(), None),
    };
    if args.has("check") {
        tell_earlier(&note, under_way.as_ref(), (args, output));
    } else if let (Some(keeper), Some(_)) = (&keeper, under_way) {
        let _lock = keeper.lock_updates()?;
        if let Some(update) = keeper.continue_update()? {
            if args.has("from") || args.text("to").is_some_and(|it| it != update.version) {
                return Err(is_under_way(format!("to {}", update.version)));
            }
            output.note(&format!("an update to {} is under way", update.version));
            let agent = Agent(socket::candidates_of(&loaded));
            return end_of(&update, (keeper, &agent), args, output);
        }
    }
    let release = release(args, &loaded, &note)?;
    let is_named = named(args, &loaded.update()).is_some();
    if let Some(keeper) = &keeper {
        // A version that somebody names may be signed later than the newest: its list says nothing
        // about the order.
        let sequence = if is_named { 0 } else { release.list.sequence };
        keeper.update_list_seen(sequence, &release.list)?;
        note = keeper.update_note()?;
    }
    let choice = choose(&release.list, args, &loaded, &note)?;
    // The list of a release that somebody names, or brings along, is not signed again.
    let is_meant = is_named || args.has("from");
    let expired = release.list.expired(clock::now().wall);
    let expired = expired.filter(|_| !is_meant);
    if args.has("check") || choice != Choice::Install {
        let seen = (&note, expired.as_deref());
        return Ok(print(&release.list, &choice, seen, (args, output)));
    }
    if let Some(expired) = expired {
        output.note(&expired);
    }
    match keeper {
        Some(keeper) => install(&release, &loaded, (&keeper, within), args, output),
        None => Err(Error::new("an update needs root").fix("sudo pipeops-agent update")),
    }
}

/// Time for the new version to prove itself. Read before anything is downloaded.
fn trial_time(args: &Args) -> Result<Duration> {
    let seconds = args.text("within").unwrap_or_default().parse().ok();
    let seconds = seconds.filter(|seconds| (TRIAL_S_MIN..=WITHIN.as_secs()).contains(seconds));
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| Error::new("--within cannot be used").fix("give 10 to 300 seconds"))
}

/// Decides whether this machine installs the release of a list.
fn choose(list: &List, args: &Args, loaded: &Loaded, note: &UpdateNote) -> Result<Choice> {
    let versions = |texts: &[String]| -> Vec<Version> {
        texts.iter().filter_map(|text| text.parse().ok()).collect()
    };
    let (banned, withdrawn) = (versions(&note.banned), versions(&note.withdrawn));
    let seed = seed(Path::new("/etc/machine-id"), loaded.state_dir());
    let machine = Machine {
        current: VERSION
            .parse()
            .map_err(|()| Error::new("this program has no version"))?,
        banned: &banned,
        withdrawn: &withdrawn,
        not_before: Wall::from_millis(note.not_before_ms),
        seed: &seed,
        now: clock::now().wall,
    };
    let occasion = if args.has("automatic") {
        Trigger::Automatic
    } else {
        Trigger::ByHand
    };
    Ok(list.choose(&machine, occasion))
}

/// Prints what is known of the last update and of the one that is under way, also where no release
/// can be had.
fn tell_earlier(
    note: &UpdateNote,
    under_way: Option<&Update>,
    (args, output): (&Args, &mut Output),
) {
    if args.has("json") {
        return;
    }
    if let Some(last) = &note.last {
        output.line(&printable(&last.in_words()));
    }
    if let Some(update) = under_way {
        output.line(&format!("an update to {} is under way", update.version));
        if let Some(words) = progress(update) {
            output.line(&words);
        }
    }
}

/// A text that stays the same on this machine and differs from those of others: the id of the
/// system, or that of the agent where the system has none, as on Alpine.
fn seed(machine_id: &Path, state: &Path) -> String {
    let id = files::read(machine_id, 256).unwrap_or_default();
    let id = String::from_utf8_lossy(&id);
    // systemd's word for an image that was never started.
    if !matches!(id.trim(), "" | "uninitialized") {
        return id.into_owned();
    }
    let path = state.join(store::IDENTITY);
    // The folder is the agent's: what it puts there must not hold root up.
    let content = path.is_file().then(|| files::read(&path, BYTES_MAX).ok());
    let identity = content.flatten().and_then(|it| read_identity(&it).ok());
    identity.map_or_else(String::new, |identity| identity.agent_id)
}

/// Reason why a timer has nothing to do, where that is no failure.
fn held_at_night(args: &Args, loaded: &Loaded) -> Option<&'static str> {
    let settings = loaded.update();
    if !args.has("automatic") {
        None
    } else if !settings.automatic {
        Some("update.automatic is false")
    } else if !releases::has_key(&settings) {
        Some("this program was built without the key of its releases")
    } else {
        None
    }
}

/// Prints what is known, and returns the exit code for it.
fn print(
    list: &List,
    choice: &Choice,
    (note, expired): (&UpdateNote, Option<&str>),
    (args, output): (&Args, &mut Output),
) -> Exit {
    let withdrawn = note.withdrawn.iter().any(|version| version == VERSION)
        || VERSION.parse().is_ok_and(|version| list.withdraws(version));
    let sentence = match (choice, expired) {
        (Choice::Install, _) => format!("{} is available; {VERSION} is installed", list.version),
        (Choice::Current, None) => format!("{VERSION} is installed; there is nothing to update"),
        (Choice::Current, Some(why)) => format!("{VERSION} is installed; {why}"),
        (Choice::Held(why), _) => why.clone(),
    };
    if args.has("json") {
        output.json(&json!({
            "installed": VERSION,
            "available": list.version.to_string(),
            "is_newer": *choice == Choice::Install,
            "is_withdrawn": withdrawn,
            "expires": list.expires.rfc3339(),
            "sentence": sentence,
            "last": note.last,
        }));
    } else {
        output.line(&sentence);
        if withdrawn {
            output.line(&format!("{VERSION} was withdrawn: replace it soon"));
        }
        if *choice == Choice::Install {
            if let Some(why) = expired {
                output.line(why);
            }
            output.line("install it: sudo pipeops-agent update");
        }
    }
    // A timer would fail with it every night.
    let is_by_hand = !args.has("automatic");
    let is_open = match choice {
        Choice::Install => true,
        Choice::Current => expired.is_some() && is_by_hand,
        Choice::Held(_) => (args.has("to") || args.has("from")) && is_by_hand,
    };
    if is_open || withdrawn {
        Exit::Problem
    } else {
        Exit::Fine
    }
}

fn install(
    release: &Release,
    loaded: &Loaded,
    (keeper, within): (&Keeper, Duration),
    args: &Args,
    output: &mut Output,
) -> Result<Exit> {
    let version = release.list.version;
    // Until the end is known.
    let _lock = keeper.lock_updates()?;
    let agent = Agent(socket::candidates_of(loaded));
    let seen = agent.seen();
    if seen.version.is_none() && keeper.agent_is_stopped() {
        return not_running(args, output);
    }
    let kind = keeper.package_kind();
    let wanted = file_of(&release.list, kind)?;
    // First of all: without the way back nothing begins.
    let previous = match kind {
        Some(kind) => Some(previous_package(release, kind, loaded, args, keeper)?),
        None => None,
    };
    let file = fetch(&release.source, &wanted, "program", loaded)?;
    let new = NewProgram {
        file,
        sha256: wanted.sha256,
        version: version.to_string(),
        previous: VERSION.to_owned(),
        was_linked: seen.is_linked,
        within,
        package: previous,
    };
    let update = keeper.stage_update(&new)?;
    end_of(&update, (keeper, &agent), args, output)
}

/// Waits for the end of an update and prints it.
fn end_of(
    update: &Update,
    (keeper, agent): (&Keeper, &Agent),
    args: &Args,
    output: &mut Output,
) -> Result<Exit> {
    let Update {
        version, previous, ..
    } = update;
    follow(keeper, Duration::from_secs(update.within_s), agent, output)?;
    let note = keeper.update_note()?;
    let last = note.last.filter(|last| last.version == *version);
    let last = last.ok_or_else(|| {
        Error::new(format!("there is no result of the update to {version}"))
            .why("somebody ended it, or removed the agent")
            .fix("pipeops-agent version says which one is there; sudo pipeops-agent update tries it again")
    })?;
    if args.has("json") {
        output.json(&json!(last));
    } else {
        let line = match &last.why {
            None => output.toned(Tone::Good, &format!("updated to {version}")),
            Some(why) if last.is_kept => printable(&format!("{version} is not judged: {why}")),
            Some(why) => printable(&format!("{version} was rolled back to {previous}: {why}")),
        };
        output.line(&line);
    }
    Ok(if last.is_kept {
        Exit::Fine
    } else {
        Exit::Problem
    })
}

/// Leaves an agent alone that was never set up, or that somebody stopped: an update would start it,
/// and there is nothing to compare the new version with.
fn not_running(args: &Args, output: &mut Output) -> Result<Exit> {
    if args.has("automatic") {
        output.line("no automatic update: the agent does not run");
        return Ok(Exit::Fine);
    }
    Err(Error::new("a new version is tried by running it")
        .why("the agent does not run: it was never set up, or somebody stopped it")
        .fix(service::start_line()))
}

/// The file that an update of this machine installs: the program, or a package of that kind.
fn file_of(list: &List, kind: Option<PackageKind>) -> Result<SignedFile> {
    let (debian, red_hat) = match std::env::consts::ARCH {
        "x86_64" => Ok(("amd64", "x86_64")),
        "aarch64" => Ok(("arm64", "aarch64")),
        other => Err(Error::new(format!("there are no releases for {other}"))),
    }?;
    let version = list.version;
    match kind {
        None => list.program(&format!("linux-{debian}")),
        Some(PackageKind::Deb) => list.file(&format!("pipeops-agent_{version}_{debian}.deb")),
        Some(PackageKind::Rpm) => list.file(&format!("pipeops-agent-{version}.{red_hat}.rpm")),
    }
}

/// The package of this version, from its release: beside the new one, in a folder that has its
/// version as name.
fn previous_package(
    release: &Release,
    kind: PackageKind,
    loaded: &Loaded,
    args: &Args,
    keeper: &Keeper,
) -> Result<PreviousPackage> {
    let settings = loaded.update();
    let note = keeper.update_note()?;
    let source = match &release.source {
        ReleaseSource::Folder(folder) => {
            let folder = folder.canonicalize().unwrap_or_else(|_| folder.clone());
            ReleaseSource::Folder(folder.with_file_name(VERSION))
        }
        ReleaseSource::Net(..) => ReleaseSource::Net(
            format!("{}/{VERSION}", settings.url.trim_end_matches('/')),
            releases::transport(args)?,
        ),
    };
    let get = || {
        let list = list_of(&source, Some(VERSION), &settings, &note)?;
        let wanted = file_of(&list, Some(kind))?;
        let file = fetch(&source, &wanted, "previous", loaded)?;
        Ok(PreviousPackage {
            kind,
            file,
            sha256: wanted.sha256,
        })
    };
    get().map_err(|error: Error| {
        error
            .within(format!(
                "cannot get the package of {VERSION}, which comes back if the new version fails; nothing was changed"
            ))
            .fix(match kind {
                PackageKind::Deb => "update without a way back: sudo apt-get update && sudo apt-get install --only-upgrade pipeops-agent",
                PackageKind::Rpm => "update without a way back: sudo dnf upgrade pipeops-agent (openSUSE: sudo zypper update pipeops-agent)",
            })
    })
}

/// A file of a release: where it came by hand, or downloaded to a folder of root's.
fn fetch(source: &ReleaseSource, file: &SignedFile, to: &str, loaded: &Loaded) -> Result<PathBuf> {
    match source {
        ReleaseSource::Folder(folder) => Ok(folder.join(&file.name)),
        ReleaseSource::Net(base, transport) => {
            let folder = loaded.keeper().state_dir.join("download");
            files::create_directory(&folder)?;
            let wanted = Wanted {
                from: address(base, &file.name),
                to: folder.join(to),
                length: Length::Exact(file.bytes),
                sha256: file.sha256.clone(),
                redirects: Redirects::Refused,
            };
            Output::of_process().note(&format!("downloading {}, {}", file.name, size(file.bytes)));
            smol::block_on(download::file(transport, &wanted, &releases::progress()))?;
            Ok(wanted.to)
        }
    }
}

fn address(base: &str, name: &str) -> Address {
    Address {
        url: format!("{base}/{name}"),
        setting: "update.url",
    }
}

/// Waits for the end of the update, which the service carries out, and tells its steps.
fn follow(keeper: &Keeper, within: Duration, agent: &Agent, output: &mut Output) -> Result<()> {
    let patience = within.saturating_add(MARGIN);
    let mut until = clock::now().mono.after(patience);
    let mut last = None;
    while let Some(update) = keeper.update_under_way()? {
        let now = agent.wait(Duration::from_secs(1));
        if last != Some(update.step) {
            last = Some(update.step);
            until = now.after(match update.step {
                UpdateStep::Staged | UpdateStep::Returning if update.package.is_some() => {
                    INSTALL_WITHIN.saturating_add(MARGIN)
                }
                UpdateStep::Staged
                | UpdateStep::Switched
                | UpdateStep::Trying
                | UpdateStep::Kept
                | UpdateStep::Returning
                | UpdateStep::Returned => patience,
            });
            if let Some(words) = progress(&update) {
                output.note(&words);
            }
        }
        if now >= until {
            return Err(Error::new("the update has not ended yet").fix(format!(
                "see its log: {}; sudo pipeops-agent update --check shows the result",
                service::log_of_update()
            )));
        }
    }
    Ok(())
}

/// The step that comes next, where people wait for it.
fn progress(update: &Update) -> Option<String> {
    let Update {
        version, previous, ..
    } = update;
    match (update.step, update.package) {
        (UpdateStep::Staged, Some(_)) => Some(format!(
            "waiting for the package manager to install {version}"
        )),
        (UpdateStep::Trying, _) => Some(format!(
            "trying {version}; if it fails, {previous} is restored automatically"
        )),
        (UpdateStep::Returning, _) => Some(format!("restoring {previous}")),
        (
            UpdateStep::Staged | UpdateStep::Switched | UpdateStep::Kept | UpdateStep::Returned,
            _,
        ) => None,
    }
}

impl ReleaseSource {
    /// The list of the release that is here.
    fn list(&self, trust: &Trust) -> Result<List> {
        match self {
            Self::Folder(folder) => {
                let read = |name: &str| files::read(&folder.join(name), BYTES_MAX);
                List::verified(&read(LIST)?, &read("SHA256SUMS.minisig")?, trust)
            }
            Self::Net(base, transport) => {
                let (text, signature) = releases::list(transport, &address(base, LIST))?;
                List::verified(&text, &signature, trust)
            }
        }
    }
}

fn release(args: &Args, loaded: &Loaded, note: &UpdateNote) -> Result<Release> {
    let settings = loaded.update();
    let source = if let Some(folder) = args.path("from") {
        ReleaseSource::Folder(folder)
    } else {
        let release = args.text("to").unwrap_or(&settings.channel);
        let base = format!("{}/{release}", settings.url.trim_end_matches('/'));
        ReleaseSource::Net(base, releases::transport(args)?)
    };
    let list = list_of(&source, named(args, &settings).as_deref(), &settings, note)?;
    Ok(Release { list, source })
}

/// The version that somebody named: on the command line, or as the channel to stay at.
fn named(args: &Args, settings: &config::Update) -> Option<String> {
    let channel = Some(settings.channel.as_str())
        .filter(|it| !args.has("from") && it.parse::<Version>().is_ok());
    args.text("to").or(channel).map(str::to_owned)
}

/// The list of a release. One that was named may be older than the newest that was seen, and must
/// be of that version.
fn list_of(
    source: &ReleaseSource,
    named: Option<&str>,
    settings: &config::Update,
    note: &UpdateNote,
) -> Result<List> {
    let sequence = if named.is_some() { 0 } else { note.sequence };
    // The release that is installed may have been signed before a change of the key that this
    // machine saw since. Its list is judged by the key of the program that runs: otherwise there
    // would be no way back to it, and without that no update to a program that has the new key.
    // The price: whoever stole the old key, and can answer at the address of the releases, can pass
    // another package off as the installed version until then. It is used only if the new version,
    // which the new key signed, fails.
    let keys = if named == Some(VERSION) { 0 } else { note.keys };
    let list = source.list(&releases::trust(settings, sequence, keys)?)?;
    match named {
        Some(version) if version != list.version.to_string() => Err(Error::new(format!(
            "the release is {} and not {version}",
            list.version
        ))),
        Some(_) | None => Ok(list),
    }
}

fn keeper(loaded: &Loaded, args: &Args) -> Result<Keeper> {
    match Executor::of(loaded, args)? {
        Executor::Own(keeper) => Ok(keeper.watched(|text| log::info!("{text}"))),
        Executor::Helper(_) => {
            Err(Error::new("an update needs root").fix("sudo pipeops-agent update"))
        }
    }
}

/// The agent behind its socket.
struct Agent(socket::Sockets);

impl Watched for Agent {
    fn seen(&self) -> AgentStatus {
        let status = socket::ask(&self.0, &socket::Ask::Get(api::STATUS_PATH));
        let Some(status) = status.ok().and_then(|answer| answer.json().ok()) else {
            return AgentStatus::default();
        };
        let status = View::new(&status);
        let mut parts = status.at("readiness").list("parts");
        AgentStatus {
            version: status.maybe("version").map(str::to_owned),
            up: Duration::from_secs(status.count("uptime_s").unwrap_or_default()),
            stores: parts
                .any(|part| part.text("id") == "store" && part.flag("ready") == Some(true)),
            is_linked: LinkState::of(status.at("link").text("state")) == Some(LinkState::Ready),
            is_in_safe_mode: status
                .list("conditions")
                .any(|condition| condition.text("id") == safe_mode::CONDITION),
        }
    }

    fn wait(&self, time: Duration) -> Mono {
        smol::block_on(Timer::after(time));
        clock::now().mono
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::{
        super::args::{self, Invocation},
        *,
    };
    use crate::{
        core::{
            identity::Identity,
            update::tests::{Signer, list},
        },
        wire::state::write_identity,
    };

    /// The release of a version in a folder of that name.
    fn release_in(folder: &Path, version: &str, head: &str, key: &Signer) -> ReleaseSource {
        let text = list(head).replace("0.2.0", version);
        write_release(&folder.join(version), text, key)
    }

    fn write_release(folder: &Path, text: String, key: &Signer) -> ReleaseSource {
        files::create_directory(folder).unwrap();
        for (name, content) in [
            ("SHA256SUMS.minisig", key.minisig(&text)),
            (LIST, text.into_bytes()),
        ] {
            files::replace(&folder.join(name), &content, 0o644).unwrap();
        }
        ReleaseSource::Folder(folder.to_owned())
    }

    fn believing(key: &Signer) -> config::Update {
        config::Update {
            key: Some(key.public()),
            ..config::Update::default()
        }
    }

    #[test]
    fn the_time_of_the_trial_is_10_to_300_seconds() {
        let read = |words: &[&str]| {
            let all = ["update"].iter().chain(words).map(OsString::from);
            let Ok(Invocation::Run(args)) = args::parse(all) else {
                panic!("{words:?}");
            };
            trial_time(&args).map_err(|error| error.sentence())
        };
        assert_eq!(read(&[]), Ok(Duration::from_secs(300)));
        assert_eq!(read(&["--within", "10"]), Ok(Duration::from_secs(10)));
        for bad in ["9", "301", "5m", ""] {
            let refused = read(&["--within", bad]);
            assert_eq!(refused, Err("--within cannot be used".to_owned()), "{bad}");
        }
    }

    #[test]
    fn a_channel_that_is_a_version_is_that_version_however_old_its_list_is() {
        let key = Signer::new(1);
        let folder = tempfile::tempdir().unwrap();
        // Its list has the number 7.
        let source = release_in(folder.path(), "0.2.0", "", &key);
        let note = UpdateNote {
            sequence: 8,
            ..UpdateNote::default()
        };
        let read = |channel: &str, words: &[&str]| {
            let settings = config::Update {
                channel: channel.to_owned(),
                ..believing(&key)
            };
            let words = ["update"].iter().chain(words).map(OsString::from);
            let Ok(Invocation::Run(args)) = args::parse(words) else {
                panic!("{channel}");
            };
            list_of(
                &source,
                named(&args, &settings).as_deref(),
                &settings,
                &note,
            )
        };
        for (channel, words) in [("0.2.0", &[][..]), ("latest", &["--to", "0.2.0"])] {
            let list = read(channel, words).unwrap();
            assert_eq!(list.version.to_string(), "0.2.0");
        }
        // What is at the address of one version must be that version.
        let other = read("0.1.0", &[]).unwrap_err().sentence();
        assert!(
            other.contains("the release is 0.2.0 and not 0.1.0"),
            "{other}"
        );
        // A folder has what it has; the channel does not say how old it may be.
        for (channel, words) in [("latest", &[][..]), ("0.2.0", &["--from", "/x"])] {
            let old = read(channel, words).unwrap_err();
            assert!(old.to_string().contains("--to 0.2.0"), "{old}");
        }
    }

    #[test]
    fn after_a_change_of_the_key_only_the_installed_version_is_believed_with_the_one_before() {
        let (old, new) = (Signer::new(1), Signer::new(2));
        let folder = tempfile::tempdir().unwrap();
        let settings = believing(&old);
        let change = old.change(1, &new);
        let newest = release_in(folder.path(), "9.0.0", &change, &new);
        let keys = list_of(&newest, None, &settings, &UpdateNote::default());
        let note = UpdateNote {
            keys: keys.unwrap().keys,
            ..UpdateNote::default()
        };
        assert_eq!(note.keys, 1);
        let installed = release_in(folder.path(), VERSION, "", &old);
        let way_back = list_of(&installed, Some(VERSION), &settings, &note).unwrap();
        assert_eq!(way_back.version.to_string(), VERSION);
        // The old key signs no other version any more, whatever it is called.
        for version in ["8.0.0", "0.0.1"] {
            let other = release_in(folder.path(), version, "", &old);
            for named in [None, Some(version), Some(VERSION)] {
                list_of(&other, named, &settings, &note).unwrap_err();
            }
        }
        // Nor does it for a program that has the new one.
        let later = config::Update {
            key: Some(format!("1 {}", new.public())),
            ..settings
        };
        list_of(&installed, Some(VERSION), &later, &note).unwrap_err();
    }

    /// A machine with systemd, and a release of 9.0.0 in a folder.
    struct TestMachine(tempfile::TempDir);

    impl TestMachine {
        /// `None` where this test is not root, which an update needs.
        fn new() -> Option<Self> {
            if !geteuid().is_root() {
                println!("skipped: an update needs root");
                return None;
            }
            let made = Self(tempfile::tempdir().unwrap());
            let key = Signer::new(1);
            release_in(made.0.path(), "9.0.0", "", &key);
            let settings = format!(
                "[update]\nkey = \"{}\"\n[keeper]\nstate_dir = \"{}\"\n[dashboard]\nsocket = \"{}\"\n",
                key.public(),
                made.at("keeper").display(),
                made.at("no.sock").display()
            );
            for path in ["tree/run/systemd/system", "tree/usr/sbin"] {
                std::fs::create_dir_all(made.at(path)).unwrap();
            }
            files::replace(&made.at("config.toml"), settings.as_bytes(), 0o644).unwrap();
            Some(made)
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        /// Runs `update` while systemd says that of the agent.
        fn update(&self, state: &str, more: &[&str]) -> Result<Exit> {
            let script = format!("#!/bin/sh\necho {state}\n");
            let systemctl = self.at("tree/usr/sbin/systemctl");
            files::replace(&systemctl, script.as_bytes(), 0o755)?;
            let named = [
                ("--root", "tree"),
                ("--config", "config.toml"),
                ("--from", "9.0.0"),
            ];
            let named = named.map(|(option, path)| [option.into(), self.at(path).into_os_string()]);
            let words = ["update"].iter().chain(more).map(OsString::from);
            let Ok(Invocation::Run(args)) = args::parse(words.chain(named.into_iter().flatten()))
            else {
                panic!("{more:?}");
            };
            update(&args, &mut Output::plain())
        }
    }

    #[test]
    fn an_agent_that_nobody_runs_is_left_alone() {
        let Some(machine) = TestMachine::new() else {
            return;
        };
        let automatic = machine.update("inactive", &["--automatic"]);
        assert_eq!(automatic.unwrap(), Exit::Fine);
        let refused = |state: &str, more: &[&str]| machine.update(state, more).unwrap_err();
        let by_hand = refused("inactive", &[]).to_string();
        assert!(by_hand.contains("the agent does not run"), "{by_hand}");
        assert!(by_hand.contains("sudo pipeops-agent up"), "{by_hand}");
        // One that crashes may need the update: this goes on, to a program that is not there.
        let crashed = refused("activating", &["--automatic"]).to_string();
        assert!(!crashed.contains("does not run"), "{crashed}");
    }

    #[test]
    fn an_expired_list_is_no_news_that_there_is_no_update() {
        let key = Signer::new(1);
        let text = list("");
        let list = List::verified(text.as_bytes(), &key.minisig(&text), &key.trust()).unwrap();
        let of = |choice: &Choice, expired: Option<&str>, words: &[&str]| {
            let words = ["update"].iter().chain(words).map(OsString::from);
            let Ok(Invocation::Run(args)) = args::parse(words) else {
                panic!("{choice:?}");
            };
            let note = UpdateNote::default();
            print(
                &list,
                choice,
                (&note, expired),
                (&args, &mut Output::plain()),
            )
        };
        let (current, held) = (Choice::Current, Choice::Held("older".to_owned()));
        assert_eq!(of(&current, None, &[]), Exit::Fine);
        assert_eq!(of(&current, Some("expired"), &[]), Exit::Problem);
        // A timer would find it again each night.
        assert_eq!(of(&current, Some("expired"), &["--automatic"]), Exit::Fine);
        assert_eq!(of(&held, None, &[]), Exit::Fine);
        assert_eq!(of(&held, None, &["--to", "0.0.9"]), Exit::Problem);
    }

    #[test]
    fn an_expired_list_that_somebody_brings_along_is_as_good_as_another() {
        let Some(machine) = TestMachine::new() else {
            return;
        };
        let text = list("").replace("2027-", "2025-").replace("0.2.0", VERSION);
        write_release(&machine.at("9.0.0"), text, &Signer::new(1));
        assert_eq!(machine.update("active", &[]).unwrap(), Exit::Fine);
    }

    #[test]
    fn a_newer_list_says_alone_what_is_withdrawn() {
        let Some(machine) = TestMachine::new() else {
            return;
        };
        for (number, head, version) in [
            ("7", "# withdrawn 9.0.1\n", "9.0.0"),
            // The second one is read by a machine that knows of the withdrawal.
            ("8", "", "9.0.1"),
        ] {
            let text = list(head).replace("0.2.0", version);
            let text = text.replace("sequence 7", &format!("sequence {number}"));
            write_release(&machine.at("9.0.0"), text, &Signer::new(1));
            let said = machine.update("active", &["--check", "--automatic"]);
            assert_eq!(said.unwrap(), Exit::Problem, "{version} is available");
        }
    }

    #[test]
    fn one_command_at_a_time_updates_this_machine() {
        let Some(machine) = TestMachine::new() else {
            return;
        };
        let first = Keeper::new(&machine.at("tree"), &machine.at("keeper"));
        let lock = first.lock_updates().unwrap();
        for more in [&[][..], &["--automatic"]] {
            let second = machine.update("active", more).unwrap_err().to_string();
            assert!(
                second.contains("an update is under way: by another command on this machine"),
                "{second}"
            );
            assert!(second.contains("update --check"), "{second}");
        }
        // Who only looks is not held up.
        assert_eq!(
            machine.update("active", &["--check"]).unwrap(),
            Exit::Problem
        );
        // As the end of its process does it, whatever the reason.
        drop(lock);
        let next = machine.update("active", &[]).unwrap_err().to_string();
        assert!(!next.contains("under way"), "{next}");
    }

    #[test]
    fn machines_without_an_id_of_their_system_do_not_share_one_place_in_a_rollout() {
        let machine = |id: Option<&str>, agent: &str| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("machine-id");
            if let Some(id) = id {
                files::replace(&path, id.as_bytes(), 0o444).unwrap();
            }
            let identity = Identity {
                agent_id: agent.to_owned(),
                ..Identity::default()
            };
            let content = write_identity(&identity).unwrap();
            files::replace(&folder.path().join(store::IDENTITY), &content, 0o600).unwrap();
            seed(&path, folder.path())
        };
        assert_eq!(machine(Some("1f\n"), "a"), "1f\n");
        for none in [None, Some("\n"), Some("uninitialized\n")] {
            assert_eq!(machine(none, "a"), "a");
            assert_ne!(machine(none, "a"), machine(none, "b"));
        }
    }
}
