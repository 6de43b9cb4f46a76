//! Plans and the state of k3s, for people.

use serde_json::json;

use super::copies;
use crate::{
    cli::{
        args::Args,
        output::{Output, Tone, columns, moment, printable, size},
        table::JSON,
    },
    wire::{
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
    for (word, tone, findings) in [
        ("warning", Tone::Doubtful, &plan.warned),
        ("refused", Tone::Bad, &plan.refused),
    ] {
        for finding in findings {
            print_finding(word, tone, finding, output);
        }
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
    let (tone, head) = match (status.managed.as_str(), status.is_ready) {
        ("none", _) => (Tone::Faint, "k3s is not installed on this machine"),
        (_, true) => (Tone::Good, "k3s runs, and its node is Ready"),
        (_, false) => (Tone::Bad, "k3s is here, but its node is not Ready"),
    };
    output.line(&output.toned(tone, head));
    let managed = match status.managed.as_str() {
        "found" => Some("no: it came from somewhere else".to_owned()),
        "none" => None,
        word => Some(format!("yes, {word}")),
    };
    let ends = status.certificate_ends.as_deref().map(moment);
    let file = status.certificate.clone().unwrap_or_default();
    let rows = [
        ("why", status.why.clone()),
        ("managed", managed),
        (
            "another Kubernetes",
            status
                .other
                .clone()
                .map(|name| format!("{name}, which is not managed")),
        ),
        ("server", status.server.clone()),
        ("version", status.version.clone()),
        ("service", status.service.clone()),
        ("node", status.node.clone()),
        ("data", status.data_dir.clone()),
        ("datastore", status.datastore_bytes.map(size)),
        (
            "certificates",
            ends.map(|end| format!("the first ends {end} ({file})")),
        ),
        ("watched", watched(status)),
        ("next backup", status.next_backup.as_deref().map(moment)),
        (
            "unfinished",
            status
                .unfinished
                .clone()
                .map(|id| format!("{id}; go on with it: sudo pipeops-agent k3s resume")),
        ),
    ];
    let rows = rows
        .into_iter()
        .filter_map(|(name, text)| Some(vec![format!("  {name}"), printable(&text?)]));
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
    if let Some(copies) = &status.copies {
        copies::print(copies, output);
    }
    volumes(&status.volumes, output);
}

fn backups(status: &K3sStatus, output: &mut Output) {
    let rows: Vec<_> = status
        .backups
        .iter()
        .map(|entry| {
            vec![
                format!("  {}", printable(&entry.name)),
                size(entry.bytes),
                match &entry.version {
                    Some(version) => printable(version),
                    None if entry.is_encrypted => "encrypted".to_owned(),
                    None => "damaged".to_owned(),
                },
            ]
        })
        .collect();
    if status.managed != "none" || !rows.is_empty() {
        output.line("backups:");
    }
    if rows.is_empty() && status.managed != "none" {
        output.line("  none: sudo pipeops-agent k3s backup");
    }
    for line in columns(&rows) {
        output.line(&line);
    }
}

fn watched(status: &K3sStatus) -> Option<String> {
    let is_managed =
        !matches!(status.managed.as_str(), "none" | "found") && status.server.is_none();
    let looked = status.looked.as_deref().map(moment);
    let text = looked.map_or_else(
        || "no: sudo pipeops-agent k3s watch".to_owned(),
        |looked| format!("yes, looked at {looked}"),
    );
    is_managed.then_some(text)
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
