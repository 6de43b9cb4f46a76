//! The figures: a table for people, `bench.json` for programs.

use serde::Serialize;

use crate::goals::Goal;

/// One measured thing, of one agent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) value: Option<f64>,
    /// Spread, count, or why there is no value.
    pub(crate) note: String,
}

impl Measured {
    pub(crate) fn new(value: f64, note: impl Into<String>) -> Self {
        Self {
            value: Some(value).filter(|value| value.is_finite()),
            note: note.into(),
        }
    }

    pub(crate) fn missing(why: impl Into<String>) -> Self {
        Self {
            value: None,
            note: why.into(),
        }
    }
}

/// A figure; its goal stands in `tests/bench/goals.txt`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    /// What the existing agent was measured at before, where it was.
    pub(crate) published: Option<f64>,
}

impl Figure {
    /// One that was not measured of the existing agent before.
    pub(crate) const fn new(name: &'static str, unit: &'static str) -> Self {
        Self {
            name,
            unit,
            published: None,
        }
    }
}

/// A row of the table.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) figure: Figure,
    pub(crate) goal: Goal,
    pub(crate) ours: Measured,
    /// Without it the published value stands.
    pub(crate) rival: Option<Measured>,
}

/// A row of `bench.json`.
#[derive(Debug, Serialize)]
struct Record {
    name: &'static str,
    value: Option<f64>,
    unit: &'static str,
    goal: String,
    is_met: Option<bool>,
    note: String,
    rival: &'static str,
    rival_value: Option<f64>,
    rival_note: String,
}

/// Where the rival's value comes from.
const THIS_RUN: &str = "existing Go agent, this run";
const PUBLISHED: &str = "existing Go agent, published earlier, not this run";

impl Row {
    fn record(&self) -> Record {
        let published = self.rival.is_none();
        let rival = self.rival.clone().unwrap_or_else(|| Measured {
            value: self.figure.published,
            note: String::new(),
        });
        Record {
            name: self.figure.name,
            value: self.ours.value,
            unit: self.figure.unit,
            goal: self.goal.text(),
            is_met: self.goal.verdict(self.ours.value),
            note: self.ours.note.clone(),
            rival: if published { PUBLISHED } else { THIS_RUN },
            rival_value: rival.value,
            rival_note: rival.note,
        }
    }

    fn cells(&self) -> [String; 7] {
        let record = self.record();
        let verdict = match record.is_met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        let mark = match (&self.rival, record.rival_value) {
            (None, Some(_)) => "*",
            (None | Some(_), _) => "",
        };
        let notes: Vec<String> = [("", &record.note), ("rival: ", &record.rival_note)]
            .into_iter()
            .filter(|(_, note)| !note.is_empty())
            .map(|(whose, note)| format!("{whose}{note}"))
            .collect();
        [
            record.name.to_owned(),
            value(record.value),
            record.unit.to_owned(),
            record.goal,
            verdict.to_owned(),
            format!("{}{mark}", value(record.rival_value)),
            notes.join("; "),
        ]
    }
}

fn value(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

/// Three digits that count.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// The table, aligned, with what the star means.
pub(crate) fn table(rows: &[Row]) -> String {
    let heads = [
        "figure",
        "ours",
        "unit",
        "goal",
        "",
        "rival",
        "spread and notes",
    ];
    let mut lines = vec![heads.map(str::to_owned)];
    lines.extend(rows.iter().map(Row::cells));
    let mut widths = [0_usize; 7];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in &lines {
        let mut written = String::new();
        for (place, (width, cell)) in widths.iter().zip(line).enumerate() {
            // Values stand on the right of their column, words on the left.
            let gap = " ".repeat(width.saturating_sub(cell.chars().count()));
            match place {
                1 | 5 => written.extend([gap.as_str(), cell, "  "]),
                _ => written.extend([cell, gap.as_str(), "  "]),
            }
        }
        text.push_str(written.trim_end());
        text.push('\n');
    }
    if rows
        .iter()
        .any(|row| row.rival.is_none() && row.figure.published.is_some())
    {
        text.push_str(
            "* published earlier, not this run (PIPEOPS_BENCH_RIVAL names no Go agent)\n",
        );
    }
    text
}

/// The rows as JSON: name, value, unit, goal, rival, the rival's value, and the notes.
pub(crate) fn json(rows: &[Row]) -> Result<String, String> {
    let records: Vec<Record> = rows.iter().map(Row::record).collect();
    serde_json::to_string_pretty(&records)
        .map(|text| text + "\n")
        .map_err(|error| format!("cannot write the figures as JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(value: Option<f64>, goal: Goal, rival: Option<f64>) -> Row {
        Row {
            figure: Figure {
                name: "memory, idle",
                unit: "MB",
                published: Some(62.0),
            },
            goal,
            ours: Measured {
                value,
                note: "of 5".to_owned(),
            },
            rival: rival.map(|value| Measured::new(value, "")),
        }
    }

    #[test]
    fn a_missed_goal_is_printed_as_missed() {
        let text = table(&[row(Some(4.2), Goal::AtMost(4.0), Some(60.0))]);
        assert!(text.contains("MISSED"), "{text}");
        let text = table(&[row(Some(3.9), Goal::AtMost(4.0), Some(60.0))]);
        assert!(!text.contains("MISSED") && text.contains("met"), "{text}");
        assert_eq!(Measured::new(f64::NAN, "").value, None);
    }

    #[test]
    fn a_published_value_is_marked_and_a_measured_one_is_not() {
        let published = table(&[row(Some(3.0), Goal::Compare, None)]);
        assert!(published.contains("62.0*") && published.contains("not this run"));
        let measured = table(&[row(Some(3.0), Goal::Compare, Some(61.0))]);
        assert!(measured.contains("61.0") && !measured.contains('*'));
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [
            row(Some(3.0), Goal::Compare, Some(61.0)),
            row(Some(1234.5), Goal::AtMost(2.0), Some(1.0)),
        ];
        let text = table(&rows);
        let starts: Vec<_> = text.lines().skip(1).map(|line| line.find("of 5")).collect();
        assert_eq!(starts[0], starts[1], "{text}");
    }

    #[test]
    fn bench_json_names_value_unit_goal_and_rival() {
        let text = json(&[row(Some(3.0), Goal::AtMost(4.0), None)]).unwrap();
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        let first = &read[0];
        assert_eq!(first["name"], "memory, idle");
        assert_eq!(first["value"], 3.0);
        assert_eq!(first["unit"], "MB");
        assert_eq!(first["goal"], "<= 4");
        assert_eq!(first["is_met"], true);
        assert_eq!(first["rival_value"], 62.0);
        assert!(first["rival"].as_str().unwrap().contains("not this run"));
    }
}
