//! `metrics`: samples as a chart or a table, and undelivered data by destination.
//!
//! It reads the files themselves, so it also works while the agent is stopped or broken.

mod chart;
mod missing;
mod unit;

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};

use super::{
    args::Args,
    load,
    output::{Output, Tone, columns, printable},
    table::{Argument, CONFIG, Command, JSON, Need, Opt, Takes},
};
use crate::{
    config,
    core::{
        order::{GatherExt as _, OrderExt as _},
        outbox::{Backlog, Stream},
        series::{Aggregate, Key, Known, Line, Query, Select, decimal},
        time::{Wall, in_words},
    },
    error::{Error, Exit, Result},
    host::clock,
    store::telemetry::TelemetryReader,
};

/// Time range of one request of an export, so that its result stays below the limit of an answer.
const EXPORT_AT_ONCE: Duration = Duration::from_secs(6 * 3600);
/// Series of one question: 16 series at 5 s through six hours are 69,000 values.
const SERIES_MAX: usize = 16;
/// Charts of one answer.
const CHARTS_MAX: usize = 12;
/// Width of a chart if that of the terminal is unknown.
const WIDTH: usize = 80;

/// `metrics`.
pub(super) static COMMAND: Command = Command {
    name: "metrics",
    about: "Query and export metrics, show undelivered data",
    options: &[
        Opt::value(
            "state-dir",
            Takes::Folder,
            "DIR",
            "Directory of the data files (default: agent.state_dir)",
        ),
        CONFIG,
        JSON,
    ],
    below: &[&QUERY, &EXPORT, &STREAMS, &OUTBOX],
    examples: &[
        "pipeops-agent metrics query host_load1 --last 7d",
        "pipeops-agent metrics outbox",
    ],
    ..Command::BARE
};

static QUERY: Command = Command {
    name: "query",
    about: "Chart a series, or list all series with their latest values",
    options: &[LAST, FROM, TO, STEP],
    arguments: &[Argument {
        name: "SERIES",
        takes: Takes::Text,
        need: Need::Maybe,
        help: "Metric, optionally with labels",
    }],
    notes: "The line is the mean of each column; the band around it spans the smallest and largest values.\n\
            Gaps mean that nothing was measured.",
    examples: &[
        "pipeops-agent metrics query",
        "pipeops-agent metrics query host_load1",
        "pipeops-agent metrics query 'host_cpu_ratio{mode=\"iowait\"}' --last 7d",
    ],
    run: Some(query),
    ..Command::BARE
};

static EXPORT: Command = Command {
    name: "export",
    about: "Export values for other programs",
    options: &[
        LAST,
        FROM,
        TO,
        STEP,
        Opt::value(
            "format",
            Takes::Word(&["csv", "json"]),
            "FORMAT",
            "Output format",
        )
        .default("csv"),
    ],
    arguments: &[Argument {
        name: "SERIES",
        takes: Takes::Text,
        need: Need::Maybe,
        help: "Metric, optionally with labels (default: all series)",
    }],
    notes: "CSV has a header; JSON is one object per line. value is the mean where a row covers a time step.",
    examples: &[
        "pipeops-agent metrics export --last 1h > last-hour.csv",
        "pipeops-agent metrics export host_load1 --last 30d --step 15min --format json",
        "pipeops-agent metrics export --state-dir /mnt/old-card/var/lib/pipeops-agent --last 2d",
    ],
    run: Some(export),
    ..Command::BARE
};

static STREAMS: Command = Command {
    name: "streams",
    about: "Show stored streams: latest records and gaps",
    run: Some(streams),
    ..Command::BARE
};

static OUTBOX: Command = Command {
    name: "outbox",
    about: "Show undelivered data for each receiver, and its age",
    run: Some(outbox),
    ..Command::BARE
};

const LAST: Opt = Opt::value(
    "last",
    Takes::Text,
    "LENGTH",
    "Time range back from now, like 90min, 24h, 30d",
)
.default("24h");
const FROM: Opt = Opt::value(
    "from",
    Takes::Text,
    "TIME",
    "Start time, like 2026-06-16T05:00:00Z",
)
.against("last");
const TO: Opt = Opt::value("to", Takes::Text, "TIME", "End time");
const STEP: Opt = Opt::value(
    "step",
    Takes::Text,
    "LENGTH",
    "Time step of the values (default: the stored resolution)",
);

/// The time that is asked about.
#[derive(Debug)]
struct Time {
    from: Wall,
    to: Wall,
    step: Option<Duration>,
}

impl Time {
    fn of(args: &Args) -> Result<Self> {
        // A sample of this very moment is meant, too.
        let now = || Wall::from_millis(clock::now().wall.millis().saturating_add(1));
        let to = args.read("to", moment)?.unwrap_or_else(now);
        let last = args.read("last", length)?.unwrap_or_default();
        let last = i64::try_from(last.as_millis()).unwrap_or(i64::MAX);
        let back = || Wall::from_millis(to.millis().saturating_sub(last));
        Ok(Self {
            from: args.read("from", moment)?.unwrap_or_else(back),
            to,
            step: args.read("step", length)?,
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum Format {
    Csv,
    Json,
}

fn length(text: &str) -> std::result::Result<Duration, String> {
    config::value::length(text)
        .filter(|length| !length.is_zero())
        .ok_or_else(|| "write a number and s, min, h or d, like 24h".to_owned())
}

fn moment(text: &str) -> std::result::Result<Wall, String> {
    Wall::parse_rfc3339(text).ok_or_else(|| "write it like 2026-06-16T05:00:00Z".to_owned())
}

fn reader(args: &Args) -> Result<TelemetryReader> {
    match args.path("state-dir") {
        Some(directory) => TelemetryReader::open(&directory),
        None => TelemetryReader::open(load(args).state_dir()),
    }
}

fn query(args: &Args, output: &mut Output) -> Result<Exit> {
    let time = Time::of(args)?;
    let reader = reader(args)?;
    match args.text("SERIES") {
        None => list(&reader, &time, args.has("json"), output),
        Some(text) => draw(&reader, text, &time, args.has("json"), output),
    }
}

/// The series that `text` means: all of a metric that have the labels.
fn select(text: Option<&str>) -> Result<Select> {
    let Some(text) = text else {
        return Ok(Select::All);
    };
    let key = Key::parse(text).map_err(|error| {
        Error::new(format!("{text:?} is not a series"))
            .because(&error)
            .fix("list them: pipeops-agent metrics query")
    })?;
    let labels = key
        .labels()
        .map(|(label, value)| (label.to_owned(), value.to_owned()))
        .collect();
    Ok(Select::Matching(key.name().to_owned(), labels))
}

fn none(what: &str) -> Error {
    Error::new(what.to_owned())
        .fix("look further back (--last 30d), or list all series: pipeops-agent metrics query")
}

fn list(reader: &TelemetryReader, time: &Time, is_json: bool, output: &mut Output) -> Result<Exit> {
    let Time { from, to, .. } = *time;
    let mut rows = Vec::new();
    let mut values = Vec::new();
    for (line, aggregate) in newest(
        reader,
        &keys(&reader.series(&Select::All, from)?),
        (from, to),
    )? {
        let series = line.known.series;
        values.push(json!({
            "series": series.key.to_string(),
            "value": number(aggregate.mean, series.digits),
            "time": aggregate.at.rfc3339(),
        }));
        let age = to.millis().saturating_sub(aggregate.at.millis());
        let age = Duration::from_millis(u64::try_from(age).unwrap_or(0));
        rows.push(vec![
            printable(&series.key.to_string()),
            unit::in_words(series.key.name(), &decimal(aggregate.mean, series.digits)),
            output.toned(Tone::Faint, &format!("{} ago", in_words(age))),
        ]);
    }
    if is_json {
        output.json(&Value::from(values));
        return Ok(Exit::Fine);
    }
    if rows.is_empty() {
        return Err(Error::new("no samples in that time").fix(
            "look further back: --last 30d; an agent that was just started writes its samples once a minute",
        ));
    }
    rows.order();
    for line in columns(&rows) {
        output.line(&line);
    }
    Ok(Exit::Fine)
}

/// The newest value of each series that has one. The last quarter of an hour is searched first: it
/// nearly always has it.
fn newest(
    reader: &TelemetryReader,
    keys: &[String],
    (from, to): (Wall, Wall),
) -> Result<Vec<(Line, Aggregate)>> {
    let near = Wall::from_millis(to.millis().saturating_sub(900_000)).max(from);
    let mut found = Vec::new();
    for group in keys.chunks(SERIES_MAX) {
        let mut lines = reader.query(&Query {
            select: Select::Keys(group.to_vec()),
            from: near,
            to,
            step: None,
        })?;
        let has = |line: &Line, key: &str| line.known.series.key.to_string() == key;
        let is_missing = |key: &&String| !lines.iter().any(|line| has(line, key));
        let missing: Vec<String> = group.iter().filter(is_missing).cloned().collect();
        if !missing.is_empty() {
            lines.extend(reader.query(&Query {
                select: Select::Keys(missing),
                from,
                to,
                step: Some(Duration::from_secs(900)),
            })?);
        }
        found.extend(lines.into_iter().filter_map(|line| {
            let newest = *line.aggregates.last()?;
            Some((line, newest))
        }));
    }
    Ok(found)
}

/// The keys of series, each once: one whose digits changed is there twice.
fn keys(known: &[Known]) -> Vec<String> {
    let keys: BTreeSet<_> = known
        .iter()
        .map(|known| known.series.key.to_string())
        .gather();
    keys.into_iter().collect()
}

fn draw(
    reader: &TelemetryReader,
    text: &str,
    time: &Time,
    is_json: bool,
    output: &mut Output,
) -> Result<Exit> {
    let Time { from, to, .. } = *time;
    let area = chart::Area::new(from, to, output.width().unwrap_or(WIDTH));
    let lines = reader.query(&Query {
        select: select(Some(text))?,
        from,
        to,
        step: Some(time.step.unwrap_or_else(|| area.step())),
    })?;
    if lines.is_empty()
        && let Some(error) = missing::unknown(reader, text)?
    {
        return Err(error);
    }
    if is_json {
        let values: Vec<Value> = lines.iter().map(line_json).collect();
        output.json(&Value::from(values));
        return Ok(Exit::Fine);
    }
    if lines.is_empty() {
        return Err(none(&format!("no samples of {text} in that time")));
    }
    for line in lines.iter().take(CHARTS_MAX) {
        let key = &line.known.series.key;
        output.line(&output.toned(Tone::Strong, &printable(&key.to_string())));
        for row in area.draw(line, |text| unit::in_words(key.name(), text)) {
            output.line(&row);
        }
        output.line("");
    }
    if let Some(more) = lines.len().checked_sub(CHARTS_MAX).filter(|more| *more > 0) {
        output.line(&format!(
            "and {more} more: name one by its labels, as in the list"
        ));
    }
    Ok(Exit::Fine)
}

fn line_json(line: &Line) -> Value {
    let digits = line.known.series.digits;
    let aggregates: Vec<Value> = line
        .aggregates
        .iter()
        .map(|aggregate| aggregate_json(aggregate, digits))
        .collect();
    json!({ "series": line.known.series.key.to_string(), "values": aggregates })
}

fn aggregate_json(aggregate: &Aggregate, digits: u8) -> Value {
    json!({
        "time": aggregate.at.rfc3339(),
        "value": number(aggregate.mean, digits),
        "min": number(aggregate.min, digits),
        "max": number(aggregate.max, digits),
        "count": aggregate.count,
    })
}

/// A value as a number of JSON, with exactly its digits where JSON has them.
fn number(value: i64, digits: u8) -> Value {
    decimal(value, digits)
        .parse::<serde_json::Number>()
        .map_or(Value::Null, Value::Number)
}

fn export(args: &Args, output: &mut Output) -> Result<Exit> {
    let Time { from, to, step } = Time::of(args)?;
    let format = match args.text("format") {
        Some("json") => Format::Json,
        _ if args.has("json") => Format::Json,
        _ => Format::Csv,
    };
    let reader = reader(args)?;
    let known = reader.series(&select(args.text("SERIES"))?, from)?;
    if known.is_empty() {
        let unknown = args
            .text("SERIES")
            .map(|text| missing::unknown(&reader, text));
        let unknown = unknown.transpose()?.flatten();
        return Err(unknown.unwrap_or_else(|| none("no samples yet")));
    }
    if matches!(format, Format::Csv) {
        output.line("time,series,value,min,max,count");
    }
    // Whole steps, so that none lies in two pieces.
    let at_once = step.map_or(EXPORT_AT_ONCE, |step| {
        let steps = EXPORT_AT_ONCE.as_millis().div_ceil(step.as_millis().max(1));
        step.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX))
    });
    let pieces = reader.pieces((from, to), at_once)?;
    for group in keys(&known).chunks(SERIES_MAX) {
        let select = Select::Keys(group.to_vec());
        for (begin, end) in &pieces {
            let lines = reader.query(&Query {
                select: select.clone(),
                from: *begin,
                to: *end,
                step,
            })?;
            for line in &lines {
                for aggregate in &line.aggregates {
                    output.line(&exported(line, aggregate, format));
                }
            }
        }
    }
    Ok(Exit::Fine)
}

fn exported(line: &Line, aggregate: &Aggregate, format: Format) -> String {
    let series = &line.known.series;
    let key = series.key.to_string();
    match format {
        Format::Json => {
            let mut value = aggregate_json(aggregate, series.digits);
            if let Some(fields) = value.as_object_mut() {
                fields.insert("series".to_owned(), Value::from(key));
            }
            value.to_string()
        }
        Format::Csv => {
            let text = |value| decimal(value, series.digits);
            // Keys have quotes and commas in them.
            let key = key.replace('"', "\"\"");
            format!(
                "{},\"{key}\",{},{},{},{}",
                aggregate.at.rfc3339(),
                text(aggregate.mean),
                text(aggregate.min),
                text(aggregate.max),
                aggregate.count
            )
        }
    }
}

fn streams(args: &Args, output: &mut Output) -> Result<Exit> {
    let reader = reader(args)?;
    let streams = [Stream::Metrics, Stream::Events, Stream::Logs]
        .map(|stream| (stream, reader.holdings(stream)));
    let levels = reader.levels()?;
    if args.has("json") {
        let streams = streams.map(|(stream, holdings)| {
            let gaps: Vec<Value> = holdings
                .gaps
                .iter()
                .map(|gap| json!({ "from": gap.range.from(), "to": gap.range.to(), "reason": gap.loss.as_str() }))
                .collect();
            json!({ "stream": stream.as_str(), "epoch": holdings.epoch, "last": holdings.last, "gaps": gaps })
        });
        let levels: Vec<Value> = levels
            .iter()
            .map(|kept| json!({ "level": kept.level.words(), "from": kept.from.rfc3339(), "to": kept.to.rfc3339(), "bytes": kept.bytes }))
            .collect();
        output.json(&json!({ "streams": streams, "samples": levels }));
        return Ok(Exit::Fine);
    }
    let mut rows = vec![
        ["stream", "records", "of them gone", "epoch"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for (stream, holdings) in streams {
        let gone: u64 = holdings.gaps.iter().map(|gap| gap.range.count()).sum();
        rows.push(vec![
            stream.as_str().to_owned(),
            holdings.last.to_string(),
            gone.to_string(),
            holdings.epoch.to_string(),
        ]);
    }
    table(&rows, output);
    output.line("");
    let mut rows = vec![
        ["samples", "from", "to", "size"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for kept in levels {
        rows.push(vec![
            kept.level.words().to_owned(),
            kept.from.rfc3339(),
            kept.to.rfc3339(),
            super::output::size(kept.bytes),
        ]);
    }
    table(&rows, output);
    Ok(Exit::Fine)
}

/// Rows with a head.
fn table(rows: &[Vec<String>], output: &mut Output) {
    for (index, line) in columns(rows).iter().enumerate() {
        let line = if index == 0 {
            output.toned(Tone::Strong, line)
        } else {
            line.clone()
        };
        output.line(&line);
    }
}

fn outbox(args: &Args, output: &mut Output) -> Result<Exit> {
    let reader = reader(args)?;
    let backlog = reader.backlog()?;
    let now = clock::now().wall;
    if args.has("json") {
        let values: Vec<Value> = backlog
            .iter()
            .map(|waiting| {
                json!({
                    "destination": waiting.destination,
                    "stream": waiting.stream.as_str(),
                    "records": waiting.records,
                    "oldest": waiting.oldest.map(Wall::rfc3339),
                })
            })
            .collect();
        output.json(&Value::from(values));
        return Ok(Exit::Fine);
    }
    if backlog.is_empty() {
        output.line("Nothing has been delivered yet, and there is no undelivered data.");
        return Ok(Exit::Fine);
    }
    let mut rows = vec![
        ["destination", "stream", "waiting", "oldest"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(backlog.iter().map(|waiting| waiting_row(waiting, now)));
    table(&rows, output);
    Ok(Exit::Fine)
}

fn waiting_row(waiting: &Backlog, now: Wall) -> Vec<String> {
    let age = waiting
        .oldest
        .filter(|_| waiting.records > 0)
        .and_then(|oldest| u64::try_from(now.millis().saturating_sub(oldest.millis())).ok())
        .map(|millis| format!("{} ago", in_words(Duration::from_millis(millis))));
    vec![
        printable(&waiting.destination),
        waiting.stream.as_str().to_owned(),
        waiting.records.to_string(),
        age.unwrap_or_else(|| "-".to_owned()),
    ]
}
