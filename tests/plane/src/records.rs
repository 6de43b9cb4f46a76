//! The records that agents delivered: each once, whatever was sent twice, with what is missing
//! among them.
//!
//! A record is known by (agent id, stream, epoch, sequence). They outlive a restart of the plane,
//! as an acknowledgement promises: in a file of the state directory, or with the
//! [`Plane`](crate::Plane) where there is none.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::state::Failure;
use crate::unpack;

/// Where sequences count: those of two of these have nothing to do with each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Source {
    /// The agent.
    pub agent_id: String,
    /// `metrics`, `events`, `logs`, `audit`, `outcomes`.
    pub stream: String,
    /// Another one when the agent's database began anew.
    pub epoch: u64,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// What was measured within a minute.
    Minute(Minute),
    /// Everything else.
    Row {
        /// When it was, in RFC 3339.
        at: String,
        /// What it says.
        body: Value,
    },
    /// It will never come.
    Gap {
        /// Why.
        reason: String,
    },
}

/// What was measured within a minute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Minute {
    /// Which boot the ticks count from.
    pub boot: u64,
    /// The wall clock minus the clock since boot.
    pub wall_offset_ms: i64,
    /// True if that wall clock can be believed.
    pub clock_is_set: bool,
    /// Milliseconds since boot of each tick.
    pub ticks: Vec<u64>,
    /// Name, digits and values of each series that has one.
    pub lines: Vec<(String, u8, Vec<Option<i64>>)>,
}

impl Minute {
    /// Returns whether another one says the same, by whatever wall clock.
    fn is_same(&self, other: &Self) -> bool {
        let sorted = |minute: &Self| {
            let mut lines = minute.lines.clone();
            lines.sort();
            lines
        };
        self.boot == other.boot && self.ticks == other.ticks && sorted(self) == sorted(other)
    }
}

/// What was received of one source.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// Each record by its sequence.
    pub records: BTreeMap<u64, Record>,
    /// Records that came again.
    pub duplicates: u64,
    /// Batches and gaps that came.
    pub batches: u64,
}

impl Received {
    /// Ranges below the newest record that are not there.
    pub fn missing(&self) -> Vec<(u64, u64)> {
        let mut missing = Vec::new();
        let mut next = 1;
        for sequence in self.records.keys() {
            if *sequence > next {
                missing.push((next, sequence - 1));
            }
            next = sequence + 1;
        }
        missing
    }
}

/// Everything that was delivered.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// By where it came from.
    pub sources: BTreeMap<Source, Received>,
}

const FILE: &str = "records.jsonl";

/// One line of the file.
#[derive(Serialize, Deserialize)]
struct Line {
    source: Source,
    sequence: u64,
    record: Record,
}

impl Records {
    /// Reads the records of a directory.
    pub(crate) fn load(dir: Option<&Path>) -> Result<Self, Failure> {
        let mut records = Self::default();
        let Some(path) = dir.map(|dir| dir.join(FILE)) else {
            return Ok(records);
        };
        let cannot = |error: &dyn std::fmt::Display| {
            Failure::new(format!("cannot read {}: {error}", path.display()))
        };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(records),
            Err(error) => return Err(cannot(&error)),
        };
        // A line that was cut was not acknowledged.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            let cut = OpenOptions::new().write(true).open(&path);
            let length = u64::try_from(whole).unwrap_or_default();
            cut.and_then(|file| file.set_len(length))
                .map_err(|error| cannot(&error))?;
        }
        for line in text.get(..whole).unwrap_or_default().lines() {
            let line: Line = serde_json::from_str(line).map_err(|error| cannot(&error))?;
            let received = records.sources.entry(line.source).or_default();
            received.records.insert(line.sequence, line.record);
        }
        Ok(records)
    }

    /// Takes records; gives what does not fit what was there before.
    pub(crate) fn take(
        &mut self,
        source: &Source,
        batch: Vec<(u64, Record)>,
        dir: Option<&Path>,
    ) -> Result<Vec<String>, Failure> {
        let received = self.sources.entry(source.clone()).or_default();
        received.batches += 1;
        let mut wrong = Vec::new();
        let mut new = Vec::new();
        for (sequence, record) in batch {
            let Some(before) = received.records.get(&sequence) else {
                new.push((sequence, record));
                continue;
            };
            received.duplicates += 1;
            let is_same = match (before, &record) {
                (Record::Minute(before), Record::Minute(again)) => before.is_same(again),
                // It was delivered, the acknowledgement was lost, and then it was thinned.
                (_, Record::Gap { .. }) => true,
                _ => *before == record,
            };
            if !is_same {
                let Source { stream, epoch, .. } = source;
                wrong.push(format!(
                    "record {sequence} of {stream} in epoch {epoch} is another one than before"
                ));
            }
        }
        if let Some(dir) = dir {
            append(dir, source, &new)?;
        }
        received.records.extend(new);
        Ok(wrong)
    }

    /// The records of a batch's samples: one for each sequence of `from..=to`.
    pub(crate) fn minutes(
        (from, to): (u64, u64),
        samples: &unpack::Samples,
    ) -> Result<Vec<(u64, Record)>, String> {
        let sequences = samples.minutes.iter().map(|(sequence, _)| *sequence);
        if !sequences.eq(from..=to) {
            return Err(format!("the minutes are not those of {from}..={to}"));
        }
        let mut minutes = Vec::new();
        let mut first = 0_usize;
        for (sequence, count) in &samples.minutes {
            let end = usize::try_from(*count)
                .ok()
                .and_then(|count| first.checked_add(count))
                .filter(|end| *end <= samples.ticks.len())
                .ok_or("the minutes have more ticks than there are")?;
            let lines = samples.lines.iter().filter_map(|line| {
                let values = line.values.get(first..end)?;
                let is_there = values.iter().any(Option::is_some);
                is_there.then(|| (line.key.clone(), line.digits, values.to_vec()))
            });
            let minute = Minute {
                boot: samples.boot,
                wall_offset_ms: samples.wall_offset_ms,
                clock_is_set: samples.clock_is_set,
                ticks: samples.ticks.get(first..end).unwrap_or_default().to_vec(),
                lines: lines.collect(),
            };
            minutes.push((*sequence, Record::Minute(minute)));
            first = end;
        }
        if first == samples.ticks.len() {
            Ok(minutes)
        } else {
            Err("there are ticks of no minute".to_owned())
        }
    }
}

/// Writes records behind those that are there; they are on disk when this returns.
fn append(dir: &Path, source: &Source, new: &[(u64, Record)]) -> Result<(), Failure> {
    let path = dir.join(FILE);
    let cannot =
        |error: io::Error| Failure::new(format!("cannot write {}: {error}", path.display()));
    let mut text = Vec::new();
    for (sequence, record) in new {
        let line = Line {
            source: source.clone(),
            sequence: *sequence,
            record: record.clone(),
        };
        serde_json::to_writer(&mut text, &line)
            .map_err(|error| Failure::new(format!("a record cannot be written: {error}")))?;
        text.push(b'\n');
    }
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .map_err(cannot)?;
    file.write_all(&text).map_err(cannot)?;
    file.sync_data().map_err(cannot)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(text: &str) -> Record {
        Record::Row {
            at: "2026-06-16T05:50:28Z".to_owned(),
            body: json!({ "text": text }),
        }
    }

    #[test]
    fn a_record_counts_once_and_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let source = Source {
            agent_id: "a".to_owned(),
            stream: "logs".to_owned(),
            epoch: 7,
        };
        let mut records = Records::load(Some(dir.path())).unwrap();
        let mut take = |batch| records.take(&source, batch, Some(dir.path())).unwrap();
        assert!(take(vec![(9, row("nine"))]).is_empty());
        assert!(take(vec![(1, row("one")), (2, row("two"))]).is_empty());
        let lost = Record::Gap {
            reason: "damaged".to_owned(),
        };
        assert!(take(vec![(2, lost.clone()), (3, lost)]).is_empty());
        let wrong = take(vec![(1, row("another"))]);
        assert!(wrong[0].contains("record 1 of logs"), "{wrong:?}");
        let mut torn = OpenOptions::new()
            .append(true)
            .open(dir.path().join(FILE))
            .unwrap();
        torn.write_all(b"{\"source\"").unwrap();
        for _ in 0..2 {
            let again = Records::load(Some(dir.path())).unwrap();
            let received = &again.sources[&source];
            assert_eq!(received.records.len(), 4);
            assert_eq!(received.records[&1], row("one"));
            assert_eq!(received.missing(), [(4, 8)]);
        }
        assert_eq!(records.sources[&source].duplicates, 2);
    }
}
