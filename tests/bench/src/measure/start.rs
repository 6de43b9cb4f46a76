//! Size, start, and finding back after a cut.

use std::time::Duration;

use super::{Bench, Group, Results, all, each};
use crate::agent::{Agent, Kind};
use crate::options::Options;
use crate::os;
use crate::process;
use crate::stats::Samples;
use crate::table::{Figure, Measured};

pub(crate) const SIZE: Group = Group {
    name: "size",
    about: "the binary",
    figures: &[Figure {
        name: "binary, stripped",
        unit: "MB",
        published: Some(83.0),
    }],
    measure: size,
};

pub(crate) const START: Group = Group {
    name: "start",
    about: "from exec to ready and to linked",
    figures: &[
        Figure::new("exec to ready", "ms"),
        Figure::new("exec to linked", "ms"),
    ],
    measure: start,
};

pub(crate) const RECONNECT: Group = Group {
    name: "reconnect",
    about: "TCP reset by the control plane until linked again",
    figures: &[Figure::new("linked again after a reset", "ms")],
    measure: reconnect,
};

fn size(bench: &mut Bench) -> Results {
    each(bench, |_, _, agent| {
        let metadata = std::fs::metadata(&agent.binary)
            .map_err(|error| format!("cannot look at {}: {error}", agent.binary.display()))?;
        Ok(vec![Measured::new(os::float(metadata.len()) / 1e6, "")])
    })
}

fn start(bench: &mut Bench) -> Results {
    each(bench, |options, cluster, agent| {
        let mut ready = Vec::new();
        let mut linked = Vec::new();
        for _ in 0..options.starts(agent.kind) {
            if agent.address.is_some() {
                keep_peak(agent)?;
                agent.stop()?;
            }
            let times = agent.start(cluster)?;
            ready.push(times.ready_ms);
            linked.push(times.linked_ms);
        }
        let measured = |times, what: &str| {
            let times = Samples::of(times);
            Measured::new(times.median(), format!("{what}{}", times.spread()))
        };
        let what = match agent.kind {
            Kind::Ours => "READY=1; ",
            Kind::Rival => "its /health; ",
        };
        Ok(vec![measured(ready, what), measured(linked, "")])
    })
}

fn keep_peak(agent: &mut Agent) -> Result<(), String> {
    let peak = process::peak_mb(agent.pid()?)?;
    agent.note_peak(peak);
    Ok(())
}

impl Options {
    const fn starts(&self, kind: Kind) -> u32 {
        match kind {
            Kind::Ours => self.starts,
            // Each takes seconds.
            Kind::Rival => self.starts.div_ceil(3),
        }
    }
}

/// 62 s: ours calls a link that lasted for less unstable and waits longer, as it should. What is
/// measured is the loss of a good one.
const STABLE_AFTER: Duration = Duration::from_secs(62);

fn reconnect(bench: &mut Bench) -> Results {
    all(bench, |bench| {
        let mut times = vec![Vec::new(); bench.agents.len()];
        for _ in 0..bench.options.resets {
            for (agent, times) in bench.agents.iter_mut().zip(&mut times) {
                agent.pid()?;
                let age = agent.linked_at.map(os::since).unwrap_or_default();
                os::pause(STABLE_AFTER.saturating_sub(age));
                times.push(agent.plane.reset(Duration::from_secs(90))?);
                agent.linked_at = Some(os::now());
            }
        }
        let measured = |times: Vec<f64>| {
            let times = Samples::of(times);
            vec![Measured::new(times.median(), times.spread())]
        };
        Ok(times.into_iter().map(measured).collect())
    })
}
