//! Settings, checks, conditions and the words of the log and the API.

use pipeops_agent::{
    config::keys::{KEYS, SECTIONS, Secrecy},
    config::value::ValueKind,
    core::{
        diagnosis, doctor,
        health::Severity,
        notify::Transition,
        policy::{Level, PodSecurity},
        rollout::Cause,
    },
    error::Exit,
};

use super::{hold, quoted, words};

/// Kind of value of a setting.
fn kind(kind: ValueKind) -> String {
    match kind {
        ValueKind::Text => "text".to_owned(),
        ValueKind::Path => "path".to_owned(),
        ValueKind::Flag => "flag".to_owned(),
        ValueKind::Time { min_s, max_s } => format!("time of {min_s} to {max_s} s"),
        ValueKind::Bytes { min } => format!("bytes, at least {min}"),
        ValueKind::Choice(words) => format!("one of {}", words.join(", ")),
        ValueKind::Words(words) => format!("some of {}", words.join(", ")),
        ValueKind::Ip => "IP address".to_owned(),
        ValueKind::Address => "address with port, or off".to_owned(),
        ValueKind::Labels => "labels".to_owned(),
    }
}

#[test]
fn settings_keep_their_names_types_and_defaults() {
    let sections = words("sections", SECTIONS.iter().map(|(name, _)| *name));
    let keys = KEYS.iter().map(|key| {
        let default = key
            .default
            .map_or_else(String::new, |it| format!(" = {it:?}"));
        let older = key.older_names.iter().map(|name| format!(", {name}"));
        let secrecy = match key.secrecy {
            Secrecy::Open => "",
            Secrecy::Hidden => "; hidden",
            Secrecy::Password => "; with a password in it",
        };
        let (path, kind, variable) = (key.path, kind(key.kind), key.variable());
        let older: String = older.collect();
        format!("{path}: {kind}{default}; {variable}{older}{secrecy}")
    });
    hold("settings.txt", [sections].into_iter().chain(keys));
}

#[test]
fn texts_name_only_settings_that_exist() {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._-/*@".contains(c);
    let is_setting = |word: &str| {
        let (section, key) = word.rsplit_once('.').unwrap_or_default();
        let is_section = SECTIONS.iter().any(|(name, _)| *name == section);
        is_section && !key.is_empty() && key.bytes().all(|b| matches!(b, b'a'..=b'z' | b'_'))
    };
    let is_known = |word: &str| {
        let is_file = [".db", ".toml"].iter().any(|end| word.ends_with(end));
        is_file
            || KEYS.iter().any(|key| key.path == word)
            || doctor::checks().any(|check| check.id == word)
    };
    let texts = quoted();
    let words = texts.iter().filter(|text| text.contains(' '));
    let words = words.flat_map(|text| text.split(|c| !is_part(c)));
    let words = words.map(|word| word.trim_end_matches('.'));
    let settings: Vec<_> = words.filter(|word| is_setting(word)).collect();
    assert!(settings.contains(&"pipeops.agent_id"), "{settings:?}");
    let wrong: Vec<_> = settings.iter().filter(|word| !is_known(word)).collect();
    assert!(wrong.is_empty(), "no such settings: {wrong:?}");
}

#[test]
fn checks_keep_their_names_and_what_they_wait_for() {
    let checks = doctor::checks().map(|check| {
        let after = check.after.join(", ");
        format!("{} after [{after}]", check.id)
    });
    hold("checks.txt", checks);
}

#[test]
fn conditions_keep_their_names() {
    const PARTS: [&str; 14] = [
        "access",
        "apps",
        "cluster",
        "dashboard",
        "delivery",
        "files",
        "identity",
        "keeper",
        "lease",
        "link",
        "notify",
        "store",
        "telemetry",
        "workloads",
    ];
    let is_condition = |text: &String| {
        let Some((part, what)) = text.split_once('.') else {
            return false;
        };
        let is_word = |text: &str| text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'-'));
        let is_single = [
            "agent.safe-mode",
            "agent.settings",
            "clock.wrong",
            "k3s.copies",
            "k3s.fault",
            "machine.doctor",
        ]
        .contains(&text.as_str());
        let is_known = PARTS.contains(&part) || is_single;
        // Files have these ends, and settings are held elsewhere.
        let is_file = matches!(
            what,
            "json" | "db" | "db-wal" | "toml" | "txt" | "rs" | "pem"
        );
        let is_key = KEYS.iter().any(|key| key.path == text);
        // Causes of a failed rollout are words of another place.
        let is_cause = Cause::ALL.iter().any(|cause| cause.id() == text);
        is_known && !what.is_empty() && is_word(what) && !is_file && !is_key && !is_cause
    };
    hold("conditions.txt", quoted().into_iter().filter(is_condition));
}

#[test]
fn words_of_the_api_and_the_exit_codes_stay() {
    use diagnosis::{PathStep, Side, StepResult};
    let steps = [
        PathStep::Carrier,
        PathStep::Address,
        PathStep::Route,
        PathStep::Dns,
        PathStep::Tcp,
        PathStep::Tls,
        PathStep::Http,
        PathStep::Clock,
        PathStep::Session,
        PathStep::Cluster,
    ];
    let sides = [
        Side::None,
        Side::Node,
        Side::Network,
        Side::ControlPlane,
        Side::Unknown,
    ];
    let outcomes = [
        StepResult::Ok,
        StepResult::Failed(Side::Node),
        StepResult::Skipped,
        StepResult::Unknown,
    ];
    let checked = [
        doctor::CheckOutcome::Problem,
        doctor::CheckOutcome::Unknown,
        doctor::CheckOutcome::Skipped,
        doctor::CheckOutcome::Ok,
    ];
    let severities = [Severity::Note, Severity::Warning, Severity::Critical];
    let levels = [Level::Full, Level::Managed, Level::ReadOnly, Level::Off];
    let pods = [
        PodSecurity::Privileged,
        PodSecurity::Baseline,
        PodSecurity::Restricted,
    ];
    let exits = [Exit::Fine, Exit::Problem, Exit::CouldNotRun].map(|exit| exit.code().to_string());
    hold(
        "words.txt",
        [
            words("exit codes (fine, a problem, could not run)", exits),
            words("severity", severities.map(Severity::as_str)),
            words(
                "turn",
                [Transition::Began, Transition::Worse, Transition::Ended].map(Transition::as_str),
            ),
            words("access level", levels.map(Level::as_str)),
            words("pod security", pods.map(PodSecurity::as_str)),
            words("step of the diagnosis", steps.map(|step| step.words().0)),
            words("outcome of a step", outcomes.map(StepResult::as_str)),
            words("side of the diagnosis", sides.map(Side::as_str)),
            words(
                "outcome of a check",
                checked.map(doctor::CheckOutcome::as_str),
            ),
        ],
    );
}
