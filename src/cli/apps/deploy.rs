//! `apps deploy`: an app of one container, or of a Git repository.

use std::{io, path::Path};

use litemap::LiteMap;
use serde_json::json;

use super::{
    super::{
        args::Args,
        output::Output,
        socket::{self, Ask},
        table::{CONFIG, Command, JSON, Opt, SET, SOCKET, Takes},
    },
    VERSION, WAIT,
    apply::{PRUNE_MOST, follow},
    git::{self, CREDENTIALS, GIT, PATH, REF},
    path,
};
use crate::{
    core::order::GatherExt as _,
    error::{Error, Exit, Result},
    files,
    wire::json::AsObject,
};

/// Standard input in the place of a file.
const STDIN: &str = "-";
/// The largest value of a Secret.
const SECRET_BYTES_MAX: usize = 64 << 10;

/// `apps deploy`.
pub(super) static DEPLOY: Command = Command {
    name: "deploy",
    about: "Deploy an image or a Git repository as an app, or change one of its options",
    options: &[
        Opt::value("image", Takes::Text, "IMAGE", "Image"),
        GIT,
        REF,
        PATH,
        CREDENTIALS,
        PRUNE_MOST,
        Opt::value(
            "namespace",
            Takes::Text,
            "NAMESPACE",
            "Namespace (needed the first time)",
        ),
        Opt::value(
            "port",
            Takes::Text,
            "PORT",
            "Port that the program listens on",
        ),
        Opt::value(
            "host",
            Takes::Text,
            "HOST",
            "Host name under which it is served",
        ),
        Opt::many("env", "KEY=VALUE", "Environment variable"),
        Opt {
            former: Some("env-secret"),
            ..Opt::many(
                "secret",
                "KEY=FILE",
                "Environment variable with a secret value from a file; '-' reads standard input",
            )
        },
        Opt::many("volume", "PATH:SIZE", "Persistent volume: /data:1Gi"),
        Opt::value(
            "pull-secret",
            Takes::Text,
            "SECRET",
            "Secret with the credentials of the registry",
        ),
        WAIT,
        SOCKET,
        CONFIG,
        SET,
        JSON,
    ],
    notes: "From an image it creates a Deployment, a Service (port 80), an Ingress, a Secret and volume claims, and deploys them like 'apps apply'.\n\
        For an existing app, only the given options change.\n\
        From a repository it deploys manifests, and again whenever there is a new commit. ssh hosts must be in apps.known_hosts.",
    examples: &[
        "sudo pipeops-agent apps deploy web --namespace shop --image ghcr.io/acme/web:42 --port 8080 --host web.example --wait",
        "sudo pipeops-agent apps deploy web --image ghcr.io/acme/web:43",
        "sudo pipeops-agent apps deploy web --secret API_KEY=key.txt",
        "sudo pipeops-agent apps deploy web --namespace shop --git https://git.example/shop/web.git --ref main --path deploy/",
    ],
    exit: "0 accepted (with --wait: good), 1 bad or rolled back, 2 nothing was deployed.",
    run: Some(deploy),
    ..VERSION
};

fn deploy(args: &Args, output: &mut Output) -> Result<Exit> {
    if let Some(url) = args.text("git") {
        return git::deploy(args, output, url);
    }
    let app = args.text("NAME").unwrap_or_default();
    if let Some(other) = git::OF_GIT.iter().find(|name| args.has(name)) {
        return Err(Error::new(format!("{app} was not deployed"))
            .why(format!("--{other} needs --git URL"))
            .fix(format!("sudo pipeops-agent apps deploy {app} --git URL")));
    }
    let port = args.read("port", |text| {
        let port = text.parse::<u16>().ok().filter(|port| *port > 0);
        port.ok_or_else(|| "use a number from 1 to 65535".to_owned())
    })?;
    let secrets = pairs(args, ("secret", '='))?;
    if secrets.values().filter(|file| *file == STDIN).count() > 1 {
        return Err(Error::new("standard input has one secret value")
            .fix("name a file for each of the others: --secret KEY=FILE"));
    }
    let mut secret_env = LiteMap::new_vec();
    for (key, file) in secrets {
        let value = secret(&key, Path::new(&file))?;
        secret_env.insert(key, value);
    }
    let env = pairs(args, ("env", '='))?;
    let volumes = pairs(args, ("volume", ':'))?;
    let body = json!({
        "namespace": args.text("namespace").unwrap_or_default(),
        "image": args.text("image"),
        "port": port,
        "host": args.text("host"),
        "env": AsObject(&env),
        "secret_env": AsObject(&secret_env),
        "volumes": AsObject(&volumes),
        "pull_secret": args.text("pull-secret"),
    });
    let cannot = format!("{app} was not deployed");
    let ask = Ask::Fetch(&path(app, "/deploy"), body);
    let accepted = socket::request(args, &ask, &cannot)?;
    follow(args, output, (app, &accepted))
}

/// The pairs of an option that may be given many times.
fn pairs(args: &Args, (name, separator): (&str, char)) -> Result<LiteMap<String, String>> {
    let pair = |text: String| {
        let pair = text
            .split_once(separator)
            .filter(|(key, value)| !key.is_empty() && (name == "env" || !value.is_empty()));
        // The text is not repeated: people take one option for the other.
        let pair = pair.map(|(key, value)| (key.to_owned(), value.to_owned()));
        pair.ok_or_else(|| {
            Error::new(format!("invalid value for --{name}"))
                .fix("pipeops-agent apps deploy --help has an example")
        })
    };
    let pairs: Vec<_> = args
        .all(name)
        .into_iter()
        .map(pair)
        .collect::<Result<_>>()?;
    Ok(pairs.into_iter().gather())
}

/// The secret value of a variable: a file without the end of its last line.
fn secret(key: &str, file: &Path) -> Result<String> {
    let content = if file == Path::new(STDIN) {
        Some(at_most(io::stdin(), SECRET_BYTES_MAX)?)
    } else {
        files::read_if_there(file, SECRET_BYTES_MAX)?
    };
    let content = content.ok_or_else(|| {
        // The name is not repeated: it may be the value.
        Error::new(format!("the file that --secret {key}= names does not exist")).fix(format!(
            "--secret takes a file, not the value: --secret {key}=FILE, or --secret {key}=- for standard input"
        ))
    })?;
    let text = String::from_utf8(content).map_err(|error| {
        Error::new(format!(
            "cannot read a secret value from {}",
            file.display()
        ))
        .because(&error.utf8_error())
    })?;
    let line = text
        .strip_suffix("\r\n")
        .or_else(|| text.strip_suffix('\n'));
    Ok(line.unwrap_or(&text).to_owned())
}

/// Reads standard input. What is longer is refused, because a part of it is not what was meant.
fn at_most(input: impl io::Read, bytes_max: usize) -> Result<Vec<u8>> {
    let cannot = || Error::new("cannot read a secret value from standard input");
    let content = files::at_most(input, bytes_max).map_err(|error| cannot().because(&error))?;
    content.ok_or_else(|| cannot().why(format!("it is longer than {bytes_max} bytes")))
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::args::{Invocation, parse},
        *,
    };

    #[test]
    fn options_of_a_repository_need_one() {
        for (option, value) in [("--ref", Some("v2")), ("--prune-most", None)] {
            let words = ["apps", "deploy", "web", option].into_iter().chain(value);
            let Ok(Invocation::Run(args)) = parse(words.map(Into::into)) else {
                panic!("the command line is wrong");
            };
            let error = deploy(&args, &mut Output::plain()).unwrap_err();
            let wanted = format!("{option} needs --git URL");
            assert!(error.sentence().contains(&wanted), "{error:?}");
        }
    }

    #[test]
    fn a_secret_of_standard_input_is_whole_or_refused() {
        assert_eq!(at_most(&b"abc"[..], 3).unwrap(), b"abc");
        let error = at_most(&b"abcd"[..], 3).unwrap_err();
        assert!(
            error.sentence().contains("longer than 3 bytes"),
            "{error:?}"
        );
    }

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "a test's own file need not survive a power cut"
    )]
    fn a_secret_is_a_file_without_the_end_of_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        for (content, wanted) in [
            ("a\nb\n", "a\nb"),
            ("a\r\n", "a"),
            ("a", "a"),
            ("a\n\n", "a\n"),
        ] {
            std::fs::write(&file, content).unwrap();
            assert_eq!(secret("KEY", &file).unwrap(), wanted, "{content:?}");
        }
    }

    #[test]
    fn a_value_in_the_place_of_a_file_is_not_repeated() {
        let error = secret("API_KEY", Path::new("s3cret")).unwrap_err();
        let said = format!("{error:?}");
        assert!(!said.contains("s3cret"), "{said}");
        assert!(said.contains("--secret API_KEY=FILE"), "{said}");
    }
}
