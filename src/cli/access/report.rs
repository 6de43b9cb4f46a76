//! Text of `access`: the level and its meaning first, then its origin, then requests and refusals.

use super::{counted, joined, table};
use crate::{
    cli::output::{Output, Tone, ago, moment, printable, size},
    core::{policy::Level, time::Wall},
    tasks::audit::report::what_in_words,
    wire::api::{AccessReport, LastDay, RefusedCall, RequestCounts},
};

/// Maximum number of refusals shown; `--json` has more.
const REFUSALS_MAX: usize = 5;

/// The whole report.
pub(super) fn lines(report: &AccessReport, now: Wall, output: &Output) -> Vec<String> {
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
        lines.extend(refusal_lines(refused, output));
    }
    if refusals.len() > REFUSALS_MAX {
        lines.push("and others: pipeops-agent access --json".to_owned());
    }
    lines
}

/// A level in a sentence.
fn meaning(level: &str) -> String {
    let meaning = match Level::from_word(level) {
        Some(Level::Full) => "the control plane may do whatever the cluster's RBAC allows",
        Some(Level::Managed) => {
            "the control plane reads all but Secrets; Secrets, changes and exec in managed namespaces only"
        }
        Some(Level::ReadOnly) => "the control plane reads all but Secrets, and changes nothing",
        Some(Level::Off) => "the control plane reaches nothing in the cluster",
        None => "a level that this program does not know",
    };
    format!("{}: {meaning}", printable(level))
}

/// Reasons of the level, and commands that change it.
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
                (None, _) => "unknown, so every request is refused until a level is set".to_owned(),
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

fn verdicts(asked: &RequestCounts) -> String {
    if asked.count == 0 {
        return "no requests".to_owned();
    }
    let bytes = [asked.received_bytes, asked.sent_bytes].map(size);
    format!(
        "{} permitted, {} refused; {} in, {} out",
        asked.permitted, asked.refused, bytes[0], bytes[1]
    )
}

fn refusal_lines(refused: &RefusedCall, output: &Output) -> Vec<String> {
    let last = moment(&refused.last);
    let often = match refused.count {
        1 => last,
        count => format!("{count} times, last {last}"),
    };
    let what = what_in_words(&refused.what);
    let mut lines = vec![
        format!("  {} ({often})", printable(&what)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::api::{ByHand, Configured, Running};

    fn text(report: &AccessReport) -> String {
        let now = Wall::parse_rfc3339("2026-06-16T06:00:00Z").unwrap();
        lines(report, now, &Output::plain()).join("\n")
    }

    fn report() -> AccessReport {
        AccessReport {
            level: "read-only".to_owned(),
            configured: Configured {
                level: "managed".to_owned(),
                from: "/etc/pipeops-agent/config.toml:12".to_owned(),
            },
            last_day: Some(LastDay::default()),
            ..AccessReport::default()
        }
    }

    #[test]
    fn the_level_comes_first_then_why_then_what_was_asked_and_refused() {
        let asked = |permitted, refused| RequestCounts {
            count: permitted + refused,
            permitted,
            refused,
            sent_bytes: 1234 * permitted,
            ..RequestCounts::default()
        };
        let report = AccessReport {
            by_hand: Some(ByHand {
                level: Some("read-only".to_owned()),
                is_in_force: true,
                since: Some("2026-06-16T04:00:00Z".to_owned()),
                by: Some("uid 0, pid 12".to_owned()),
            }),
            last_day: Some(LastDay {
                total: asked(1000, 2),
                reads: asked(1000, 0),
                changes: asked(0, 2),
                refusals: vec![RefusedCall {
                    what: "POST /api/v1/namespaces/a/pods".to_owned(),
                    why: "it was tightened\u{1b}[2J".to_owned(),
                    fix: Some("sudo pipeops-agent access managed".to_owned()),
                    last: "2026-06-16T05:57:00Z".to_owned(),
                    count: 2,
                }],
                ..LastDay::default()
            }),
            running: Running {
                short: 2,
                waiting: 0,
                long: 1,
            },
            ..report()
        };
        assert_eq!(
            text(&report),
            "read-only: the control plane reads all but Secrets, and changes nothing\n\n\
             set by hand    read-only, by root (pid 12), 2 h ago\n\
             configuration  managed (/etc/pipeops-agent/config.toml:12)\n\
             to undo        sudo pipeops-agent access managed\n\
             running        2 short requests, 1 watch or exec\n\
             last day       1000 permitted, 2 refused; 0 B in, 1.2 MB out\n\
             \x20 reads        1000 permitted, 0 refused; 0 B in, 1.2 MB out\n\
             \x20 changes      0 permitted, 2 refused; 0 B in, 0 B out\n\n\
             Refused, the newest first\n\
             \x20 create pods in a: POST /api/v1/namespaces/a/pods (2 times, last 2026-06-16 05:57:00Z)\n\
             \x20   it was tightened\\u{1b}[2J\n\
             \x20   fix: sudo pipeops-agent access managed"
        );
    }

    #[test]
    fn what_is_not_known_is_said_and_a_quiet_box_is_short() {
        let quiet = text(&report());
        assert!(
            quiet.ends_with("running        nothing\nlast day       no requests"),
            "{quiet}"
        );
        let unknown = text(&AccessReport {
            by_hand: Some(ByHand::default()),
            last_day: None,
            last_day_why: Some("the disk is away".to_owned()),
            ..report()
        });
        assert!(
            unknown.contains("set by hand    unknown, so every request is refused"),
            "{unknown}"
        );
        assert!(
            unknown.contains("last day       not known: the disk is away"),
            "{unknown}"
        );
    }

    #[test]
    fn many_refusals_are_cut_short() {
        let mut report = report();
        let refusals = vec![RefusedCall::default(); REFUSALS_MAX + 1];
        report.last_day.as_mut().unwrap().refusals = refusals;
        assert!(text(&report).ends_with("and others: pipeops-agent access --json"));
    }
}
