//! The goals: one file that is reviewed like code, and the verdict of `--gate` on the figures.

use std::collections::BTreeMap;

use crate::table::{Figure, Row};

/// The file, relative to the checkout.
pub(crate) const FILE: &str = "tests/bench/goals.txt";

/// What a figure should be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
    /// Nothing was promised; it is measured to compare.
    #[default]
    Compare,
}

impl Goal {
    pub(crate) fn text(self) -> String {
        match self {
            Self::AtMost(limit) => format!("<= {limit}"),
            Self::AtLeast(limit) => format!(">= {limit}"),
            Self::Compare => "-".to_owned(),
        }
    }

    /// Returns whether the goal is met; `None` where nothing was promised or measured.
    pub(crate) fn verdict(self, value: Option<f64>) -> Option<bool> {
        match (self, value?) {
            (_, value) if value.is_nan() => None,
            (Self::AtMost(limit), value) => Some(value <= limit),
            (Self::AtLeast(limit), value) => Some(value >= limit),
            (Self::Compare, _) => None,
        }
    }
}

/// Goals by the name of their figure.
#[derive(Clone, Debug, Default)]
pub(crate) struct Goals(BTreeMap<String, Goal>);

impl Goals {
    /// Reads lines of `figure | goal | unit | reason`. Every line has to name a figure of `figures`
    /// with its unit, once, so that a renamed figure does not lose its goal in silence.
    pub(crate) fn parse(
        text: &str,
        figures: impl Iterator<Item = &'static Figure>,
    ) -> Result<Self, String> {
        let units: BTreeMap<&str, &str> = figures.map(|it| (it.name, it.unit)).collect();
        let mut goals = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |why: &str| format!("{FILE}:{number}: {why}: {line}");
            let parts: Vec<&str> = line.split('|').map(str::trim).collect();
            let [name, goal, unit, reason] = parts.as_slice() else {
                return Err(wrong("not \"figure | goal | unit | reason\""));
            };
            let goal = limit(goal).ok_or_else(|| wrong("the goal is not \"<= N\" or \">= N\""))?;
            if reason.is_empty() {
                return Err(wrong("a goal needs a reason"));
            }
            match units.get(name) {
                None => return Err(wrong("no such figure")),
                Some(known) if known != unit => {
                    return Err(wrong(&format!("the unit of this figure is {known:?}")));
                }
                Some(_) => {}
            }
            if goals.insert((*name).to_owned(), goal).is_some() {
                return Err(wrong("a second goal of the same figure"));
            }
        }
        Ok(Self(goals))
    }

    pub(crate) fn of(&self, figure: &str) -> Goal {
        self.0.get(figure).copied().unwrap_or_default()
    }
}

fn limit(text: &str) -> Option<Goal> {
    let (sign, number) = text.split_once(' ')?;
    let number: f64 = number.trim().parse().ok()?;
    match sign {
        _ if !number.is_finite() => None,
        "<=" => Some(Goal::AtMost(number)),
        ">=" => Some(Goal::AtLeast(number)),
        _ => None,
    }
}

/// Fails when a goal was missed, when a figure with a goal was not measured, and when there was no
/// goal to look at.
pub(crate) fn gate(rows: &[Row]) -> Result<(), String> {
    let promised: Vec<&Row> = rows
        .iter()
        .filter(|row| row.goal != Goal::Compare)
        .collect();
    if promised.is_empty() {
        return Err("the gate is closed: no figure with a goal was measured".to_owned());
    }
    let failures: Vec<String> = promised
        .into_iter()
        .filter_map(|row| {
            let name = row.figure.name;
            match row.goal.verdict(row.ours.value) {
                Some(true) => None,
                Some(false) => Some(format!(
                    "{name}: {} {}, the goal is {}",
                    row.ours.value.map(crate::table::number).unwrap_or_default(),
                    row.figure.unit,
                    row.goal.text()
                )),
                None => Some(format!("{name}: not measured: {}", row.ours.note)),
            }
        })
        .collect();
    if failures.is_empty() {
        return Ok(());
    }
    Err(format!("the gate is closed:\n  {}", failures.join("\n  ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::GROUPS;
    use crate::table::Measured;

    static SIZE: Figure = Figure::new("binary", "MB");

    fn figures() -> impl Iterator<Item = &'static Figure> {
        GROUPS.iter().flat_map(|group| group.figures)
    }

    fn row(goal: Goal, ours: Measured) -> Row {
        Row {
            figure: SIZE,
            goal,
            ours,
            rival: None,
        }
    }

    #[test]
    fn the_file_of_goals_fits_the_figures_that_are_measured() {
        let goals = Goals::parse(include_str!("../goals.txt"), figures()).unwrap();
        for (figure, goal) in [
            ("binary, stripped", Goal::AtMost(8.0)),
            ("exec to ready", Goal::AtMost(30.0)),
            ("PSS, linked and idle", Goal::AtMost(8.0)),
            ("anonymous memory, linked and idle", Goal::AtMost(2.0)),
            ("processor, idle", Goal::AtMost(0.05)),
            ("written to the disk a day, 100 series", Goal::AtMost(10.0)),
            ("exec to linked", Goal::Compare),
        ] {
            assert_eq!(goals.of(figure), goal, "{figure}");
        }
    }

    #[test]
    fn a_line_that_promises_nothing_is_an_error_with_its_number() {
        for (line, why) in [
            ("binary | <= 8 | MB", "not \"figure"),
            ("binary | 8 | MB | x", "the goal is not"),
            ("binary | < 8 | MB | x", "the goal is not"),
            ("binary | <= NaN | MB | x", "the goal is not"),
            ("binary | <= 8 | MB | ", "a reason"),
            ("binaries | <= 8 | MB | x", "no such figure"),
            (
                "binary | <= 8 | KB | x",
                "the unit of this figure is \"MB\"",
            ),
            (
                "binary | <= 8 | MB | x\nbinary | <= 9 | MB | x",
                "a second goal",
            ),
        ] {
            let text = format!("# a comment\n\n{line}\n");
            let error = Goals::parse(&text, std::iter::once(&SIZE)).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
            assert!(error.starts_with("tests/bench/goals.txt:"), "{error}");
        }
    }

    #[test]
    fn the_gate_is_closed_by_a_missed_goal_a_missing_figure_and_no_goal_at_all() {
        let met = row(Goal::AtMost(8.0), Measured::new(8.0, ""));
        let compared = row(Goal::Compare, Measured::missing("no rival"));
        assert_eq!(gate(&[met.clone(), compared.clone()]), Ok(()));
        let missed = row(Goal::AtMost(8.0), Measured::new(8.01, ""));
        let error = gate(&[met.clone(), missed]).unwrap_err();
        assert!(
            error.contains("binary: 8.01 MB, the goal is <= 8"),
            "{error}"
        );
        let missing = row(Goal::AtLeast(8.0), Measured::missing("it ended"));
        let error = gate(&[met, missing]).unwrap_err();
        assert!(error.contains("binary: not measured: it ended"), "{error}");
        assert!(gate(&[compared]).is_err());
        assert!(gate(&[]).is_err());
    }

    #[test]
    fn what_was_not_measured_is_neither_met_nor_missed() {
        assert_eq!(Goal::AtMost(4.0).verdict(None), None);
        assert_eq!(Goal::AtMost(4.0).verdict(Some(f64::NAN)), None);
        assert_eq!(Goal::AtLeast(50.0).verdict(Some(49.0)), Some(false));
        assert_eq!(Goal::AtLeast(50.0).verdict(Some(50.0)), Some(true));
    }
}
