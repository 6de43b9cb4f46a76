//! Plans and the state of k3s, for people.

use serde_json::json;

use crate::{
    cli::{
        args::Args,
        output::{Output, Tone, columns, moment, printable, size},
        table::JSON,
    },
    host::clock,
    wire::{
        api::{ChangeReport, Row, k3s_rows},
        backup::Volume,
        keeper::{Finding, K3sPlan, K3sStatus},
    },
};

/// Prints a plan.
pub(in super::super) fn plan(plan: &K3sPlan, args: &Args, output: &mut Output) {
    if args.has(JSON.long) {
        output.json(&json!({ "plan": plan }));
        return;
    }
    output.line(&output.toned(Tone::Strong, &printable(&plan.does)));
    let rows: Vec<_> = plan
        .steps
        .iter()
        .map(|step| {
            let undo = if step.undo.is_empty() {
                String::new()
            } else {
                format!("undo: {}", printable(&step.undo))
            };
            vec![format!("  {}", printable(&step.does)), undo]
        })
        .collect();
    for line in columns(&rows) {
        output.line(&line);
    }
    for (title, lines) in [("managed", &plan.manages), ("not changed", &plan.unchanged)] {
        if !lines.is_empty() {
            output.line(&format!("{title}:"));
        }
        for line in lines {
            output.line(&format!("  {}", printable(line)));
        }
    }
    warnings(plan, output);
    for finding in &plan.refused {
        print_finding("refused", Tone::Bad, finding, output);
    }
    let mut rows = Vec::new();
    if let Some(download) = &plan.download {
        let length = download
            .bytes
            .map_or_else(|| "as the server says".to_owned(), size);
        let hash = format!("{}, by {}", download.sha256, download.hash_of);
        for (name, text) in [
            ("download", &download.url),
            ("length", &length),
            ("SHA-256", &hash),
            ("to", &download.to),
        ] {
            rows.push(vec![format!("  {name}"), printable(text)]);
        }
    }
    rows.extend([
        vec!["  size".to_owned(), size(plan.bytes)],
        vec!["  undo".to_owned(), printable(&plan.undo)],
    ]);
    for line in columns(&rows) {
        output.line(&line);
    }
}

/// Prints the warnings of a plan.
pub(super) fn warnings(plan: &K3sPlan, output: &mut Output) {
    for finding in &plan.warned {
        print_finding("warning", Tone::Doubtful, finding, output);
    }
}

fn print_finding(word: &str, tone: Tone, finding: &Finding, output: &mut Output) {
    let word = output.toned(tone, &format!("{word}:"));
    output.line(&format!(
        "{word} {} ({})",
        printable(&finding.what),
        printable(&finding.id)
    ));
    if let Some(fix) = output.fix(Some(finding.fix.as_str()).filter(|fix| !fix.is_empty())) {
        output.line(&fix);
    }
}

/// Prints the state.
pub(super) fn status(status: &K3sStatus, output: &mut Output) {
    let rows = k3s_rows(status, status.copies.as_ref(), clock::now().wall);
    let (copies, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.id == "copies");
    let mut rows = rows.into_iter();
    if let Some(head) = rows.next() {
        let tone = match head.state.as_str() {
            "ok" => Tone::Good,
            "critical" => Tone::Bad,
            _ => Tone::Faint,
        };
        output.line(&output.toned(tone, &printable(&head.value)));
    }
    let rows = rows.map(|row| {
        vec![
            format!("  {}", row.title.to_lowercase()),
            printable(&row.value),
        ]
    });
    for line in columns(&rows.collect::<Vec<_>>()) {
        output.line(&line);
    }
    for sentence in &status.open {
        output.line(&output.toned(Tone::Doubtful, &printable(sentence)));
    }
    for fault in &status.faults {
        print_finding("fault", Tone::Bad, fault, output);
    }
    if status.server.is_none() {
        backups(status, output);
    }
    if let Some(row) = copies.first() {
        print_copies(row, output);
    }
    volumes(&status.volumes, output);
    changes(&status.changes, output);
}

/// Prints where the copies are, and how old the newest is.
pub(super) fn print_copies(row: &Row, output: &mut Output) {
    output.line(&format!("copies: {}", printable(&row.value)));
    for detail in &row.details {
        output.line(&format!("  {}", printable(detail)));
    }
}

/// Prints the latest changes, and how each is undone.
fn changes(changes: &[ChangeReport], output: &mut Output) {
    if !changes.is_empty() {
        output.line("changes:");
    }
    for change in changes {
        let why = change.why.as_ref().map(|why| format!(": {why}"));
        let told = format!("{}{}", change.what, why.unwrap_or_default());
        let (at, outcome) = (moment(&change.at), &change.outcome);
        output.line(&format!("  {at}  {outcome}  {}", printable(&told)));
        if let Some(way) = change
            .undo
            .command
            .as_ref()
            .or(change.undo.why_not.as_ref())
        {
            output.line(&format!("    undo: {}", printable(way)));
        }
    }
}

fn backups(status: &K3sStatus, output: &mut Output) {
    let rows: Vec<_> = status
        .backups
        .iter()
        .map(|entry| {
            vec![
                format!("  {}", printable(&entry.name)),
                size(entry.bytes),
                printable(entry.word()),
            ]
        })
        .collect();
    if !rows.is_empty() {
        output.line("backups:");
    }
    for line in columns(&rows) {
        output.line(&line);
    }
}

/// Prints the volumes that no backup has.
pub(super) fn volumes(volumes: &[Volume], output: &mut Output) {
    if volumes.is_empty() {
        return;
    }
    output.line(&output.toned(
        Tone::Doubtful,
        "not in any backup, volumes of this machine:",
    ));
    let rows = volumes
        .iter()
        .map(|volume| vec![format!("  {}", printable(&volume.path)), size(volume.bytes)]);
    for line in columns(&rows.collect::<Vec<_>>()) {
        output.line(&line);
    }
}
