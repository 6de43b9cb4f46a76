//! How strict this box is, in lines for a tired person: the level and its meaning first, then why, then what was asked and refused.

use super::{
    super::output::{Output, Tone, ago, printable, size},
    counted, joined, table,
};
use crate::{
    core::{policy::Level, time::Wall},
    wire::api::{AccessReport, Asked, LastDay, RefusedCall},
};

/// Refusals that are told; `--json` has more.
const REFUSALS_MAX: usize = 5;

/// The whole report.
pub(super) fn told(report: &AccessReport, now: Wall, output: &Output) -> Vec<String> {
    let mut lines = vec![
        output.toned(Tone::Strong, &meaning(&report.level)),
        String::new(),
    ];
    let mut rows = reasons(report, now);
    let running = &report.running;
    rows.push((
        "running",
        joined([
            counted(running.short, "short request", "short requests"),
            counted(running.waiting, "that waits", "that wait"),
            counted(running.long, "watch or exec", "watches and execs"),
        ])
        .unwrap_or_else(|| "nothing".to_owned()),
    ));
    match &report.last_day {
        Some(day) => rows.extend(kinds(day)),
        None => rows.push((
            "last day",
            format!(
                "not known: {}",
                report
                    .last_day_why
                    .as_deref()
                    .unwrap_or("the agent does not say")
            ),
        )),
    }
    lines.extend(table(rows));
    let refusals = report
        .last_day
        .as_ref()
        .map_or(&[][..], |day| &day.refusals);
    if !refusals.is_empty() {
        lines.push(String::new());
        lines.push(output.toned(Tone::Strong, "Refused, the newest first"));
    }
    for refused in refusals.iter().take(REFUSALS_MAX) {
        lines.extend(told_refusal(refused, now, output));
    }
    if refusals.len() > REFUSALS_MAX {
        lines.push("and others: pipeops-agent access --json".to_owned());
    }
    lines
}

/// A level in a sentence.
fn meaning(level: &str) -> String {
    let meaning = match Level::from_word(level) {
        Some(Level::Full) => "the control plane does whatever the cluster's own rules permit",
        Some(Level::Managed) => {
            "the control plane reads all but Secrets; Secrets, changes and exec in managed namespaces only"
        }
        Some(Level::ReadOnly) => "the control plane reads all but Secrets, and changes nothing",
        Some(Level::Off) => "the control plane reaches nothing in the cluster",
        None => "a level that this program does not know",
    };
    format!("{}: {meaning}", printable(level))
}

/// Why it is so, and how to have it otherwise.
fn reasons(report: &AccessReport, now: Wall) -> Vec<(&'static str, String)> {
    let configured = &report.configured;
    let configuration = format!("{} ({})", configured.level, configured.from);
    let mut rows = Vec::new();
    if let Some(by_hand) = &report.by_hand {
        let who = by_hand.by.as_deref().map(person);
        let since = by_hand.since.as_deref().and_then(|since| ago(since, now));
        let since = since.map(|ago| format!("{ago} ago"));
        let details = joined([who.map(|who| format!("by {who}")), since]);
        let details = details.map_or_else(String::new, |details| format!(", {details}"));
        rows.push((
            "set by hand",
            match (&by_hand.level, by_hand.is_in_force) {
                (None, _) => {
                    "that is not known, so nothing passes until somebody says what is to hold"
                        .to_owned()
                }
                (Some(level), true) => format!("{level}{details}"),
                (Some(level), false) => {
                    format!("{level}{details}; the configuration is no less strict")
                }
            },
        ));
    }
    rows.push(("configuration", configuration));
    if report
        .by_hand
        .as_ref()
        .is_some_and(|by_hand| by_hand.is_in_force)
    {
        rows.push((
            "to undo",
            format!("sudo pipeops-agent access {}", configured.level),
        ));
    }
    rows
}

/// `uid 0, pid 12` for people.
fn person(by: &str) -> String {
    match by.strip_prefix("uid 0, ") {
        Some(process) => format!("root ({process})"),
        None => by.to_owned(),
    }
}

fn kinds(day: &LastDay) -> Vec<(&'static str, String)> {
    let mut rows = vec![("last day", verdicts(&day.total))];
    for (name, asked) in [
        ("  reads", &day.reads),
        ("  changes", &day.changes),
        ("  exec and such", &day.entries),
        ("  others", &day.others),
    ] {
        if asked.count > 0 && asked.count < day.total.count {
            rows.push((name, verdicts(asked)));
        }
    }
    rows
}

fn verdicts(asked: &Asked) -> String {
    if asked.count == 0 {
        return "nothing was asked".to_owned();
    }
    let bytes = [asked.received_bytes, asked.sent_bytes].map(size);
    format!(
        "{} permitted, {} refused; {} in, {} out",
        asked.permitted, asked.refused, bytes[0], bytes[1]
    )
}

fn told_refusal(refused: &RefusedCall, now: Wall, output: &Output) -> Vec<String> {
    let last = ago(&refused.last, now).map_or_else(String::new, |ago| format!("{ago} ago"));
    let often = match refused.count {
        1 => last,
        count => format!("{count} times, the last {last}"),
    };
    let mut lines = vec![
        format!("  {} ({often})", printable(&refused.what)),
        format!("    {}", printable(&refused.why)),
    ];
    if let Some(fix) = &refused.fix {
        lines.push(format!(
            "    {} {}",
            output.toned(Tone::Strong, "fix:"),
            printable(fix)
        ));
    }
    lines
}
