//! Measures pipeops-agent, and the existing agent beside it, and prints what was promised and
//! what came out.
//!
//! Everything is real: a Kubernetes cluster, the reference control plane, TLS on every hop. Both
//! agents are measured in the same run, each with a control plane of its own; requests are paired
//! with direct ones in time, because the machine is not quiet. A goal that is missed is printed
//! as missed; with `--gate` it is a failure.

mod agent;
mod child;
mod cluster;
mod goals;
mod https;
mod measure;
mod options;
mod os;
mod plane;
mod process;
mod relays;
mod stats;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agent::{Agent, Kind, RIVAL_NAMESPACE};
use cluster::Cluster;
use goals::Goals;
use measure::{Bench, GROUPS, GROUPS_WITHOUT_START};
use options::Options;
use table::Row;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    if words.next_if(|word| word == plane::ARGUMENT).is_some() {
        let dir = words.next().unwrap_or_default();
        return ended(plane::run(Path::new(&dir)));
    }
    match Options::parse(words) {
        Ok(Some(options)) => ended(run(options)),
        Ok(None) => {
            os::say(&options::usage());
            ExitCode::SUCCESS
        }
        Err(error) => {
            os::progress(&format!("{error}\n\n{}", options::usage()));
            ExitCode::from(2)
        }
    }
}

fn ended(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            os::progress(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<(), String> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .map_err(|error| format!("the checkout that the bench was built in is gone: {error}"))?;
    let target = repository.join("target");
    let is_gate = options.is_gate;
    // Before anything is measured: a wrong line would cost ten minutes.
    let goals = std::fs::read_to_string(repository.join(goals::FILE))
        .map_err(|error| format!("cannot read {}: {error}", goals::FILE))?;
    let goals = Goals::parse(&goals, GROUPS.iter().flat_map(|group| group.figures))?;
    let mut bench = set_up(options, &repository, &target.join("bench"))?;
    let rows = measured(&mut bench, &goals);
    os::say(&table::table(&rows));
    let path = target.join("bench.json");
    os::write(&path, &table::json(&rows)?)?;
    os::progress(&format!("written to {}", path.display()));
    if is_gate {
        goals::gate(&rows)?;
    }
    Ok(())
}

fn set_up(options: Options, repository: &Path, work: &Path) -> Result<Bench, String> {
    let binary = agent_binary(&options, &repository.join("target"))?;
    std::fs::create_dir_all(work)
        .map_err(|error| format!("cannot make {}: {error}", work.display()))?;
    os::progress("starting the test cluster");
    let cluster = Cluster::start(repository, work)?;
    let manifest = work.join("rbac.yaml");
    os::write(&manifest, &printed(&binary, &["rbac", "--full"])?)?;
    cluster.kubectl(&["apply", "-f", &manifest.display().to_string()])?;
    let mut agents = Vec::new();
    agents.push(Agent::new(Kind::Ours, binary, work)?);
    if let Some(binary) = &options.rival {
        if let Err(error) = cluster.kubectl(&["create", "namespace", RIVAL_NAMESPACE]) {
            os::progress(&format!("{error} (it is there from an earlier run)"));
        }
        agents.push(Agent::new(Kind::Rival, binary.clone(), work)?);
    }
    Ok(Bench {
        options,
        agents,
        failed: Vec::new(),
        cluster,
        repository: repository.to_owned(),
        work: work.to_owned(),
    })
}

/// What a program prints.
fn printed(binary: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = os::program(binary).args(arguments).output();
    let output = output.map_err(|error| format!("cannot run {}: {error}", binary.display()))?;
    if !output.status.success() {
        return Err(format!(
            "{} {arguments:?}: {}",
            binary.display(),
            output.status
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The release build that is handed out, else one that cargo left.
fn agent_binary(options: &Options, target: &Path) -> Result<PathBuf, String> {
    if let Some(binary) = &options.agent {
        return Ok(binary.clone());
    }
    let places = [
        target.join("dist/pipeops-agent"),
        target.join("release/pipeops-agent"),
    ];
    let found = places.iter().find(|place| place.is_file());
    found.cloned().ok_or_else(|| {
        "no release build of the agent; fix: make bench, or: cargo build --release".to_owned()
    })
}

fn measured(bench: &mut Bench, goals: &Goals) -> Vec<Row> {
    let has_rival = bench.options.rival.is_some();
    let mut rows = Vec::new();
    let mut is_started = false;
    for group in GROUPS {
        if bench.options.wants(group.name) {
            os::progress(&format!("{}: {}", group.name, group.about));
            if !GROUPS_WITHOUT_START.contains(&group.name) && !is_started {
                bench.start();
                is_started = true;
            }
            let results = (group.measure)(bench);
            rows.extend(measure::rows(
                group,
                results,
                goals,
                &bench.failed,
                has_rival,
            ));
        }
    }
    rows
}
