//! The measurements, in groups that can be run alone.

mod backlog;
mod bulk;
mod dashboard;
mod requests;
mod rest;
mod samples;
mod start;
mod truth;
mod watches;

use std::path::PathBuf;

use crate::agent::{Agent, Kind};
use crate::cluster::Cluster;
use crate::goals::Goals;
use crate::options::Options;
use crate::process;
use crate::table::{Figure, Measured, Row};

/// Everything that runs while figures are taken.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) options: Options,
    // Agents end before the cluster does.
    pub(crate) agents: Vec<Agent>,
    /// Those that could not be started, and why.
    pub(crate) failed: Vec<(Kind, String)>,
    pub(crate) cluster: Cluster,
    pub(crate) repository: PathBuf,
    /// Folder for all output.
    pub(crate) work: PathBuf,
}

/// What a group found out about each agent: a value for each of its figures.
pub(crate) type Results = Vec<(Kind, Result<Vec<Measured>, String>)>;

/// Figures that are measured together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) figures: &'static [Figure],
    pub(crate) measure: fn(&mut Bench) -> Results,
}

/// In the order in which they run: rest comes before stress, and the peak last.
pub(crate) const GROUPS: [Group; 16] = [
    start::SIZE,
    samples::SAMPLES,
    start::START,
    rest::REST,
    rest::KEEPER,
    dashboard::DASHBOARD,
    requests::LATENCY,
    bulk::DOWNLOAD,
    bulk::LOAD,
    watches::WATCHES,
    requests::SLOW_READER,
    bulk::BUFFERED,
    backlog::BACKLOG,
    start::RECONNECT,
    rest::PEAK,
    truth::TRUTH,
];

/// The groups for which nothing has to run.
pub(crate) const GROUPS_WITHOUT_START: [&str; 4] = [
    start::SIZE.name,
    samples::SAMPLES.name,
    backlog::BACKLOG.name,
    truth::TRUTH.name,
];

/// The groups that take so long that they run only when they are named.
pub(crate) const GROUPS_ON_DEMAND: [&str; 1] = [truth::TRUTH.name];

/// The rows of a group that was measured.
pub(crate) fn rows(
    group: Group,
    mut results: Results,
    goals: &Goals,
    failed: &[(Kind, String)],
    has_rival: bool,
) -> Vec<Row> {
    let mut of = |kind| {
        let place = results.iter().position(|(of, _)| *of == kind)?;
        Some(results.swap_remove(place).1)
    };
    let why = |kind| {
        let failure = failed.iter().find(|(of, _)| *of == kind);
        Err(failure.map_or_else(|| "not measured".to_owned(), |(_, why)| why.clone()))
    };
    let ours = of(Kind::Ours).unwrap_or_else(|| why(Kind::Ours));
    let rival = has_rival.then(|| of(Kind::Rival).unwrap_or_else(|| why(Kind::Rival)));
    let pick = |results: &Result<Vec<Measured>, String>, place: usize| match results {
        Ok(measured) => measured.get(place).cloned().unwrap_or_default(),
        Err(why) => Measured::missing(why.as_str()),
    };
    let row = |(place, figure): (usize, &Figure)| Row {
        figure: *figure,
        goal: goals.of(figure.name),
        ours: pick(&ours, place),
        rival: rival.as_ref().map(|rival| pick(rival, place)),
    };
    group.figures.iter().enumerate().map(row).collect()
}

impl Bench {
    /// Starts all agents; those that cannot be started are measured no further.
    pub(crate) fn start(&mut self) {
        for mut agent in std::mem::take(&mut self.agents) {
            match agent.start(&self.cluster) {
                Ok(_) => self.agents.push(agent),
                Err(why) => self.failed.push((agent.kind, why)),
            }
        }
    }
}

/// Measures one agent after the other.
fn each(
    bench: &mut Bench,
    measure: impl Fn(&Options, &Cluster, &mut Agent) -> Result<Vec<Measured>, String>,
) -> Results {
    let (options, cluster) = (&bench.options, &bench.cluster);
    bench
        .agents
        .iter_mut()
        .map(|agent| (agent.kind, measure(options, cluster, agent)))
        .collect()
}

/// Gives a result of all agents' common measurement to each of them.
fn all(
    bench: &mut Bench,
    measure: impl FnOnce(&mut Bench) -> Result<Vec<Vec<Measured>>, String>,
) -> Results {
    let kinds: Vec<Kind> = bench.agents.iter().map(|agent| agent.kind).collect();
    match measure(bench) {
        Ok(measured) => kinds
            .into_iter()
            .zip(measured.into_iter().map(Ok))
            .collect(),
        Err(why) => kinds
            .into_iter()
            .map(|kind| (kind, Err(why.clone())))
            .collect(),
    }
}

/// Runs something and gives the agent's peak memory while it ran, in MB.
fn peak_during<T>(
    agent: &mut Agent,
    run: impl FnOnce(&mut Agent) -> Result<T, String>,
) -> Result<(T, f64), String> {
    let pid = agent.pid()?;
    agent.note_peak(process::peak_mb(pid)?);
    process::forget_peak(pid)?;
    let made = run(agent)?;
    let peak = process::peak_mb(agent.pid()?)?;
    agent.note_peak(peak);
    Ok((made, peak))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURES: [Figure; 2] = [
        Figure::new("one", "MB"),
        Figure {
            name: "two",
            unit: "MB",
            published: Some(2.0),
        },
    ];

    fn group() -> Group {
        Group {
            name: "test",
            about: "",
            figures: &FIGURES,
            measure: |_| Vec::new(),
        }
    }

    #[test]
    fn a_failure_of_one_agent_leaves_the_other_its_values() {
        let measured = vec![Measured::new(1.0, ""), Measured::new(2.0, "")];
        let results = vec![
            (Kind::Rival, Ok(measured)),
            (Kind::Ours, Err("it ended".to_owned())),
        ];
        let rows = rows(group(), results, &Goals::default(), &[], true);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[1].ours.value, None);
        assert_eq!(rows[1].ours.note, "it ended");
        assert_eq!(rows[1].rival.as_ref().unwrap().value, Some(2.0));
    }

    #[test]
    fn an_agent_that_did_not_start_has_the_reason_in_its_rows() {
        let failed = [(Kind::Ours, "no READY=1".to_owned())];
        let rows = rows(group(), Vec::new(), &Goals::default(), &failed, true);
        assert_eq!(rows[0].ours.note, "no READY=1");
        assert_eq!(rows[0].rival.as_ref().unwrap().note, "not measured");
    }

    #[test]
    fn without_a_rival_nothing_is_said_to_be_measured_of_it() {
        let results = vec![(Kind::Ours, Ok(vec![Measured::new(1.0, "")]))];
        let rows = rows(group(), results, &Goals::default(), &[], false);
        assert!(rows.iter().all(|row| row.rival.is_none()));
        assert_eq!(rows[1].ours.value, None);
    }

    #[test]
    fn groups_have_names_of_their_own() {
        let mut names: Vec<_> = GROUPS.iter().map(|group| group.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), GROUPS.len());
    }
}
