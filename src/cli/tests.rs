//! The table of commands as a whole, and the command lines that it accepts.

use std::os::unix::ffi::OsStringExt;

use super::{
    args::{called, parse},
    table::Takes,
    *,
};

/// Every command with those that it is below of.
fn all() -> Vec<Vec<&'static Command>> {
    let mut found = vec![vec![&PROGRAM]];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        for below in path.last().unwrap().below {
            found.push(path.iter().copied().chain([*below]).collect());
        }
        next += 1;
    }
    found
}

/// The words of a line as a shell sees them, as far as examples go.
fn words(line: &str) -> Vec<OsString> {
    let line = line
        .split_once("pipeops-agent ")
        .map_or("", |(_, rest)| rest);
    let line = line.split([')', '>', '|']).next().unwrap();
    let quoted = line.split('\'').enumerate();
    quoted
        .flat_map(|(index, part)| match index % 2 {
            0 => part.split_whitespace().map(OsString::from).collect(),
            _ => vec![OsString::from(part)],
        })
        .collect()
}

fn read(line: &str) -> Result<Invocation, Error> {
    parse(words(&format!("pipeops-agent {line}")).into_iter())
}

fn args(line: &str) -> Args {
    match read(line) {
        Ok(Invocation::Run(args)) => args,
        other => panic!("{line}: {other:?}"),
    }
}

fn message_of(line: &str) -> String {
    read(line).unwrap_err().to_string()
}

#[test]
fn every_command_is_described_and_its_names_are_unique() {
    assert!(all().len() > 20);
    for path in all() {
        let (name, command) = (called(&path), path.last().unwrap());
        assert!(command.about.len() > 10 || command.name == "off", "{name}");
        assert!(!command.about.ends_with('.'), "{name}: {}", command.about);
        assert!(command.run.is_some() || !command.below.is_empty(), "{name}");
        for option in command.options {
            let has_value = option.takes != Takes::Nothing;
            assert_eq!(has_value, !option.value.is_empty(), "{name}");
        }
    }
    // Names that are not unique, conflicts with options that do not exist.
    parser::program().debug_assert();
}

#[test]
fn every_example_is_a_command_line_that_can_run() {
    let mut count = 0;
    for path in all() {
        for example in path.last().unwrap().examples {
            let Ok(Invocation::Run(args)) = parse(words(example).into_iter()) else {
                panic!("{example}");
            };
            // Examples of a family may be of any command in it.
            assert!(example.contains(&called(&path)), "{example}");
            assert!(args.command().run.is_some());
            count += 1;
        }
    }
    assert!(count > 20);
}

#[test]
fn values_are_taken_in_every_way_that_people_write_them() {
    let args = args("access --json test --set a=1 --set=b=2 GET -- --odd");
    assert!(args.has("json") && !args.has("socket"));
    assert_eq!(args.all("set"), ["a=1", "b=2"]);
    assert_eq!(args.text("METHOD"), Some("GET"));
    assert_eq!(args.text("PATH"), Some("--odd"));
}

#[test]
fn a_default_holds_until_something_is_given() {
    assert_eq!(args("metrics query").text("last"), Some("24h"));
    assert_eq!(args("metrics query --last 1h").text("last"), Some("1h"));
    assert_eq!(args("metrics query --from x").text("from"), Some("x"));
    assert_eq!(args("status").text("socket"), None);
}

#[test]
fn an_option_is_also_known_by_its_former_name() {
    for name in ["secret", "env-secret"] {
        let args = args(&format!("apps deploy web --{name} A=a --{name} B=b"));
        assert_eq!(args.all("secret"), ["A=a", "B=b"], "{name}");
    }
}

#[test]
fn a_path_may_be_made_of_any_bytes_and_a_text_may_not() {
    let odd = OsString::from_vec(b"a\xffb".to_vec());
    let line = ["status", "--socket"].map(OsString::from).into_iter();
    let Ok(Invocation::Run(args)) = parse(line.chain([odd.clone()])) else {
        panic!("a path is refused");
    };
    assert_eq!(args.path("socket").unwrap().as_os_str(), odd);
    let line = ["status", "--set"].map(OsString::from).into_iter();
    let refused = parse(line.chain([odd])).unwrap_err();
    assert!(refused.what.contains("not valid UTF-8"), "{refused}");
}

#[test]
fn a_mistake_is_told_with_what_was_probably_meant() {
    for (line, wanted) in [
        (
            "stauts",
            "unknown command \"stauts\" of pipeops-agent\nfix: did you mean status? see pipeops-agent --help",
        ),
        (
            "completions tcsh",
            "unknown command \"tcsh\" of pipeops-agent completions\nfix: did you mean zsh? see pipeops-agent completions --help",
        ),
        (
            "help stauts",
            "unknown command \"stauts\" of pipeops-agent\nfix: did you mean status? see pipeops-agent --help",
        ),
        (
            "status --jsn",
            "unknown option \"--jsn\" of pipeops-agent status\nfix: did you mean --json? see pipeops-agent status --help",
        ),
        (
            "status -x",
            "unknown option \"-x\" of pipeops-agent status\nfix: see pipeops-agent status --help",
        ),
        (
            "status now",
            "unexpected argument \"now\" of pipeops-agent status\nfix: see pipeops-agent status --help",
        ),
        (
            "status --json=yes",
            "--json takes no value\nfix: see pipeops-agent status --help",
        ),
        (
            "status --socket",
            "--socket <PATH> needs a value\nfix: see pipeops-agent status --help",
        ),
        (
            "status --socket --json",
            "--socket <PATH> needs a value\nfix: see pipeops-agent status --help",
        ),
        (
            "status --socket a --socket b",
            "--socket <PATH> is repeated\nfix: see pipeops-agent status --help",
        ),
        (
            "access test GET",
            "<PATH> is missing: path of the Kubernetes API with its query, or NAMESPACE/SERVICE:PORT/PATH\nfix: see pipeops-agent access test --help",
        ),
        (
            "rbac --full --node-stats",
            "--full and --node-stats cannot be combined\nfix: see pipeops-agent rbac --help",
        ),
        (
            "rbac --pod-security base-line",
            "invalid value \"base-line\" for --pod-security <LEVEL>\nfix: did you mean baseline? possible values: privileged, baseline, restricted",
        ),
        (
            "apps why ../web",
            "invalid value \"../web\" for <NAME>\nfix: names of apps have up to 40 lowercase letters, digits and dashes",
        ),
        (
            "metrics query --last 24h --from x",
            "--last <LENGTH> and --from <TIME> cannot be combined\nfix: see pipeops-agent metrics query --help",
        ),
    ] {
        assert_eq!(message_of(line), wanted, "{line}");
    }
}

#[test]
fn help_is_given_wherever_it_is_asked_for() {
    for line in [
        "--help",
        "access --help",
        "access test --help",
        "status --socket x -h",
        "help",
        "help access test",
    ] {
        assert!(matches!(read(line), Ok(Invocation::Help(..))), "{line}");
    }
    assert!(matches!(read("-v"), Ok(Invocation::Version(_))));
    assert!(matches!(read("-V"), Ok(Invocation::Version(_))));
    assert!(read("status -V").is_err());
    assert!(matches!(read("metrics"), Ok(Invocation::Nothing(_))));
    let help = |line: &str| match read(line) {
        Ok(Invocation::Help(text)) => text,
        other => panic!("{line}: {other:?}"),
    };
    for key in keys::KEYS {
        assert!(help("run --help").contains(key.path), "{}", key.path);
    }
    assert!(help("run -h").len() < 1000);
    assert!(help("status -h").contains("Usage: pipeops-agent status [OPTIONS]"));
}

#[test]
fn internal_commands_are_shown_nowhere() {
    assert!(!message_of("completions nex").contains("did you mean next"));
}
