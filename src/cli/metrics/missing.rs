//! Errors for unknown series, with similar names.

use std::collections::BTreeSet;

use super::{TelemetryReader, select};
use crate::{
    core::nearest::nearest,
    core::{
        order::GatherExt as _,
        series::{Key, Select},
        time::Wall,
    },
    error::{Error, Result},
};

/// Names that are suggested at most.
const NAMES_MAX: usize = 5;

/// The error of a question for `text` where no series fits it; `None` where one does.
pub(super) fn unknown(reader: &TelemetryReader, text: &str) -> Result<Option<Error>> {
    if !reader
        .series(&select(Some(text))?, Wall::default())?
        .is_empty()
    {
        return Ok(None);
    }
    let known = reader.series(&Select::All, Wall::default())?;
    let keys: Vec<&Key> = known.iter().map(|known| &known.series.key).collect();
    Ok(Some(suggested(text, &keys)))
}

fn suggested(text: &str, keys: &[&Key]) -> Error {
    let name = text.split('{').next().unwrap_or(text).trim();
    let same: Vec<_> = keys.iter().filter(|key| key.name() == name).collect();
    if !same.is_empty() {
        let shown: Vec<_> = same
            .iter()
            .take(NAMES_MAX)
            .map(ToString::to_string)
            .collect();
        let more = match same.len().saturating_sub(shown.len()) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        return Error::new(format!("no series of {name} has these labels"))
            .fix(format!("there is {}{more}", shown.join(", ")));
    }
    let names: BTreeSet<&str> = keys.iter().map(|key| key.name()).gather();
    let error = Error::new(format!("there is no series {name}"));
    if let Some(meant) = nearest(name, names.iter().copied()) {
        return error.fix(format!("did you mean {meant}?"));
    }
    let near: Vec<_> = names
        .iter()
        .copied()
        .filter(|known| known.contains(name))
        .take(NAMES_MAX)
        .collect();
    error.fix(match near.as_slice() {
        [] => "list them: pipeops-agent metrics query".to_owned(),
        [meant] => format!("did you mean {meant}?"),
        several => format!("did you mean one of {}?", several.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_probably_meant_is_suggested() {
        let keys = [
            "host_load1",
            "host_load15",
            "host_cpu_ratio{mode=\"user\"}",
            "host_cpu_ratio{mode=\"iowait\"}",
        ];
        let keys = keys.map(|key| Key::parse(key).unwrap());
        let keys: Vec<&Key> = keys.iter().collect();
        let message = |text: &str| {
            let error = suggested(text, &keys);
            format!("{}; {}", error.what, error.fix.unwrap())
        };
        for (text, wanted) in [
            (
                "host_laod1",
                "there is no series host_laod1; did you mean host_load1?",
            ),
            (
                "load",
                "there is no series load; did you mean one of host_load1, host_load15?",
            ),
            (
                "cpu",
                "there is no series cpu; did you mean host_cpu_ratio?",
            ),
            (
                "zzz",
                "there is no series zzz; list them: pipeops-agent metrics query",
            ),
            (
                "host_cpu_ratio{mode=\"idle\"}",
                "no series of host_cpu_ratio has these labels; there is host_cpu_ratio{mode=\"user\"}, \
                 host_cpu_ratio{mode=\"iowait\"}",
            ),
        ] {
            assert_eq!(message(text), wanted);
        }
    }
}
