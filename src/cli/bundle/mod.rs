//! `bundle`: writes a support bundle, a small archive without secrets, and lists its content first.

mod archive;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};

use self::archive::{File, packed};
use super::{
    VERSION,
    args::Args,
    ask, load,
    output::{Output, Tone, columns, size},
    socket::{self, Ask},
    table::{CONFIG, Command, JSON, Opt, SET, SOCKET, Takes},
};
use crate::{
    config::Settings,
    core::{redact::redacted, secret::Secret, time::Wall},
    error::{Error, Exit, Result},
    files,
    host::{clock, exec, facts::hostname},
};

/// Content in all: the archive is smaller than that.
const BYTES_MAX: usize = 4_500_000;
/// Content of one file: its end is what is new.
const FILE_BYTES_MAX: usize = 700_000;

/// Answers of the agent: file, path.
const ANSWERS: &[(&str, &str)] = &[
    ("status.json", "/api/v1/status"),
    ("problems.json", "/api/v1/problems"),
    ("diagnosis.json", "/api/v1/diagnosis"),
    ("host.json", "/api/v1/host"),
    ("link.json", "/api/v1/link"),
    ("access.json", "/api/v1/access"),
    ("cluster.json", "/api/v1/cluster"),
    ("workloads.json", "/api/v1/cluster/workloads"),
    ("k3s.json", "/api/v1/k3s"),
    ("changes.json", "/api/v1/changes"),
    ("settings.json", "/api/v1/settings"),
    ("events.json", "/api/v1/events?limit=500"),
    ("apps.json", "/api/v1/apps"),
    ("log.json", "/api/v1/logs?tail=2000"),
];

/// Files of the system.
const FILES: &[&str] = &[
    "/etc/os-release",
    "/proc/version",
    "/proc/cmdline",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/mounts",
    "/proc/swaps",
    "/proc/pressure/cpu",
    "/proc/pressure/memory",
    "/proc/pressure/io",
    "/proc/net/route",
    "/proc/net/dev",
    "/etc/resolv.conf",
    "/proc/device-tree/model",
];

/// Logs of services where there is no journal. Their end is included.
const LOGS: [&str; 3] = [
    "/var/log/pipeops-agent.log",
    "/var/log/pipeops-keeper.log",
    "/var/log/k3s.log",
];

/// Programs whose output is included, if they are installed.
const PROGRAMS: &[(&str, &[&str])] = &[
    (
        "journal-agent.txt",
        &[
            "journalctl",
            "-u",
            "pipeops-agent",
            "-u",
            "pipeops-keeper",
            "-u",
            "pipeops-update",
            "-n",
            "3000",
            "--no-pager",
            "-o",
            "short-iso",
        ],
    ),
    (
        "journal-k3s.txt",
        &[
            "journalctl",
            "-u",
            "k3s",
            "-u",
            "k3s-agent",
            "-n",
            "2000",
            "--no-pager",
            "-o",
            "short-iso",
        ],
    ),
    (
        "journal-kernel.txt",
        &[
            "journalctl",
            "-k",
            "-n",
            "1000",
            "--no-pager",
            "-o",
            "short-iso",
        ],
    ),
    (
        "services.txt",
        &[
            "systemctl",
            "status",
            "--no-pager",
            "-n",
            "0",
            "pipeops-agent",
            "pipeops-keeper",
            "k3s",
            "k3s-agent",
        ],
    ),
    ("disks.txt", &["df", "-h", "-l"]),
    ("addresses.txt", &["ip", "-brief", "address"]),
];

const LIMITS: exec::Limits = exec::Limits {
    within: Duration::from_secs(20),
    output_bytes_max: FILE_BYTES_MAX,
};

/// `bundle`.
pub(super) static COMMAND: Command = Command {
    name: "bundle",
    about: "Create a support bundle: the state of this machine, without secrets",
    options: &[
        Opt::value(
            "output",
            Takes::File,
            "FILE",
            "Path of the archive (default: in the current directory); - for standard output",
        )
        .short('o'),
        Opt::flag("list", "List the contents without writing the archive"),
        Opt::flag("yes", "Skip the confirmation").short('y'),
        SOCKET,
        CONFIG,
        SET,
        JSON,
    ],
    notes: "It is at most 5 MB. Tokens, passwords and keys are hidden; names of machines, Pods and addresses are in it.\n\
            It works without a running agent, too: then it holds what the system says.",
    examples: &[
        "sudo pipeops-agent bundle",
        "sudo pipeops-agent bundle --list",
        "sudo pipeops-agent bundle --yes --output /tmp/support.tar.gz",
        "ssh pi sudo pipeops-agent bundle --yes --output - >support.tar.gz",
    ],
    exit: "0 written or listed, 1 cancelled, 2 the command could not run.",
    run: Some(bundle),
    ..Command::BARE
};

/// A file of the archive, and its source.
struct Part {
    file: File,
    from: String,
}

/// Place of the archive.
enum Destination {
    /// A file; `None`: one with a name of its own, in the current directory.
    File(Option<PathBuf>),
    /// Standard output, so that everything else goes to standard error.
    Output,
}

fn bundle(args: &Args, output: &mut Output) -> Result<Exit> {
    let destination = destination(args, output)?;
    let parts = collect(args);
    let listed: Vec<Value> = parts
        .iter()
        .map(|part| json!({ "name": part.file.name, "bytes": part.file.content.len(), "from": part.from }))
        .collect();
    if !args.has("json") {
        show(&parts, &destination, output);
    }
    if args.has("list") {
        if args.has("json") {
            output.json(&json!({ "files": listed }));
        }
        return Ok(Exit::Fine);
    }
    if !args.has("yes") && ask::is_possible() && !ask::is_agreed("Write it?")? {
        output.note("Nothing was written.");
        return Ok(Exit::Problem);
    }
    let now = clock::now().wall;
    let name = name(now);
    let modified_s = u64::try_from(now.millis() / 1000).unwrap_or(0);
    let files: Vec<File> = parts.into_iter().map(|part| part.file).collect();
    let archive = packed(&name, &files, modified_s)
        .map_err(|error| Error::new("cannot pack the archive").because(&error))?;
    let path = match destination {
        Destination::File(path) => path.unwrap_or_else(|| format!("{name}.tar.gz").into()),
        Destination::Output => return output.bytes(&archive).map(|()| Exit::Fine),
    };
    let path = std::path::absolute(&path).unwrap_or(path);
    files::replace(&path, &archive, 0o600)?;
    let bytes = u64::try_from(archive.len()).unwrap_or(u64::MAX);
    if args.has("json") {
        output.json(&json!({ "path": path, "bytes": bytes, "files": listed }));
    } else {
        output.line(&format!(
            "Written to {}, {}. Review it before you send it.",
            path.display(),
            size(bytes)
        ));
    }
    Ok(Exit::Fine)
}

/// Place where the archive is wanted.
fn destination(args: &Args, output: &Output) -> Result<Destination> {
    let path = args.path("output");
    if path.as_deref() != Some(Path::new("-")) {
        return Ok(Destination::File(path));
    }
    let refused = Error::new("the archive cannot be written to standard output");
    if args.has("json") {
        return Err(refused
            .why("--json is written there")
            .fix("give --output FILE"));
    }
    if output.is_terminal() {
        return Err(refused
            .why("it is a terminal")
            .fix("give --output FILE, or redirect it: --output - >support.tar.gz"));
    }
    Ok(Destination::Output)
}

/// Lists the content for people.
fn show(parts: &[Part], destination: &Destination, output: &mut Output) {
    let row = |part: &Part| {
        let bytes = u64::try_from(part.file.content.len()).unwrap_or(u64::MAX);
        let name = format!("  {}", part.file.name);
        vec![name, size(bytes), part.from.clone()]
    };
    let rows: Vec<_> = parts.iter().map(row).collect();
    let title = "Contents, without tokens, passwords and keys:".to_owned();
    for (at, line) in [title].into_iter().chain(columns(&rows)).enumerate() {
        match destination {
            Destination::Output => output.note(&line),
            Destination::File(_) if at == 0 => output.line(&output.toned(Tone::Strong, &line)),
            Destination::File(_) => output.line(&line),
        }
    }
}

/// Name of the archive and of the folder in it: the machine and the time.
fn name(now: Wall) -> String {
    let stamp = now.rfc3339();
    let stamp = stamp.chars().filter(|c| !matches!(c, ':' | '-')).take(15);
    let host = hostname(Path::new("/")).unwrap_or_else(|| "machine".to_owned());
    let host = host
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .take(40);
    format!(
        "pipeops-{}-{}",
        host.collect::<String>(),
        stamp.collect::<String>()
    )
}

fn collect(args: &Args) -> Vec<Part> {
    let loaded = load(args);
    let shown: Vec<String> = loaded
        .shown()
        .iter()
        .map(|shown| format!("{} = {:?} ({})", shown.key.path, shown.value, shown.origin))
        .chain(
            loaded
                .problems()
                .iter()
                .map(|problem| format!("problem: {problem}")),
        )
        .chain(
            loaded
                .warnings()
                .iter()
                .map(|warning| format!("warning: {warning}")),
        )
        .collect();
    let sockets = socket::candidates(args, &loaded);
    let known = loaded
        .settings()
        .map(|settings| secrets(&settings))
        .unwrap_or_default();
    let mut parts = Archive {
        known,
        list: Vec::new(),
        missing: Vec::new(),
        left: BYTES_MAX,
    };
    let now = clock::now().wall.rfc3339();
    let about = format!("pipeops-agent {VERSION}\nwritten at {now} by the clock of this machine\n");
    parts.add("about.txt", "this program", &about);
    parts.add(
        "settings.txt",
        "pipeops-agent config show",
        &shown.join("\n"),
    );
    for (name, path) in ANSWERS {
        let answer = socket::ask(&sockets, &Ask::Test(path)).map_err(|silence| silence.error);
        match answer.and_then(|answer| answer.fine("the agent does not say it")) {
            Ok(value) => parts.add(name, &format!("the agent, {path}"), &format!("{value:#}")),
            Err(error) => parts.missing.push(format!("{name}: {}", error.sentence())),
        }
    }
    for path in FILES {
        let name = format!("system{}.txt", path.replace('/', "-"));
        match files::read(Path::new(path), FILE_BYTES_MAX) {
            Ok(content) => parts.add(&name, path, &String::from_utf8_lossy(&content)),
            Err(error) => parts.missing.push(format!("{name}: {}", error.sentence())),
        }
    }
    let mut run = |name: &str, argv: &[&str]| match exec::run(Path::new("/"), argv, LIMITS) {
        Ok(ended) => parts.add(name, &argv.join(" "), &(ended.stdout + &ended.stderr)),
        Err(error) => parts.missing.push(format!("{name}: {}", error.sentence())),
    };
    for (name, argv) in PROGRAMS {
        run(name, argv);
    }
    for path in LOGS.iter().filter(|path| Path::new(path).exists()) {
        let name = format!("system{}.txt", path.replace('/', "-"));
        run(&name, &["tail", "-n", "3000", path]);
    }
    let missing = parts.missing.join("\n");
    parts.add("missing.txt", "what could not be had", &missing);
    parts.list
}

/// Secrets that are redacted in all files.
fn secrets(settings: &Settings) -> Vec<Secret> {
    let server = settings.pipeops.control_plane.as_ref();
    let token = server.and_then(|server| server.token.read().ok());
    let proxy = settings.pipeops.proxy.as_ref();
    let proxy = proxy.and_then(|proxy| proxy.credentials.clone());
    let remote_write = settings.telemetry.remote_write.as_ref();
    let credentials = remote_write.and_then(|it| it.credentials.as_ref());
    let header = credentials.and_then(|credentials| credentials.authorization().ok());
    // Without the word before it.
    let header = header.and_then(|header| {
        let (_, value) = header.reveal().split_once(' ')?;
        Some(Secret::new(value))
    });
    [token, proxy, header].into_iter().flatten().collect()
}

/// Files of the bundle so far.
struct Archive {
    known: Vec<Secret>,
    list: Vec<Part>,
    missing: Vec<String>,
    left: usize,
}

impl Archive {
    fn add(&mut self, name: &str, from: &str, text: &str) {
        let safe = redacted(text, &self.known);
        let most = FILE_BYTES_MAX.min(self.left);
        // The newest lines are at the end; a character is not cut in two.
        let start = safe.len().saturating_sub(most);
        let start = (start..=safe.len()).find(|at| safe.is_char_boundary(*at));
        let kept = start
            .and_then(|start| safe.get(start..))
            .unwrap_or_default();
        self.left = self.left.saturating_sub(kept.len());
        let cut = if kept.len() < safe.len() {
            ", its end only"
        } else {
            ""
        };
        self.list.push(Part {
            file: File {
                name: name.to_owned(),
                content: kept.as_bytes().to_vec(),
            },
            from: format!("{from}{cut}"),
        });
    }
}
