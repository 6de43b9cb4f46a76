//! The doctor's look: facts of the host and answers of the network meet the table of checks, within two seconds in all.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use smol::{
    Timer,
    channel::{Receiver, bounded},
    future::or,
};

use crate::{
    core::{
        environment::Environment,
        preflight::{
            self, Verdict,
            facts::{Fact, Facts},
        },
        rates::Reading,
        time::Wall,
    },
    host::{clock, doctor, sample},
    net::tls::build_date,
    wire::api::Doctor,
};

/// What the disk and the kernel have to tell everything: a file that hangs costs what stands behind it.
const READ_WITHIN: Duration = Duration::from_millis(1200);
/// Facts on the way from the reading thread.
const FACTS_MAX: usize = 64;

/// Where to look.
#[derive(Clone, Debug)]
pub struct Place {
    /// `/`, or a captured tree.
    pub root: PathBuf,
}

/// Everything that was found out.
#[derive(Debug)]
pub struct Report {
    /// What kind of machine this is.
    pub environment: Environment,
    /// All checks: problems first, the worst on top.
    pub verdicts: Vec<Verdict>,
    /// When.
    pub at: Wall,
    /// How long it took.
    pub took: Duration,
}

impl Report {
    /// As the API and the command line tell it.
    pub fn told(&self) -> Doctor {
        let took_ms = u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX);
        Doctor::new(&self.environment, &self.verdicts, self.at, took_ms)
    }
}

/// Looks at everything. `by_root` is what the root helper could see, where there is one.
pub async fn look(place: &Place, by_root: BTreeMap<String, Fact>) -> Report {
    let started = clock::now();
    let mut facts = facts(place).await;
    facts.complete(by_root);
    let environment = Environment::of(&facts);
    let verdicts = preflight::judge(&facts, &environment);
    Report {
        environment,
        verdicts,
        at: started.wall,
        took: clock::now().mono.since(started.mono),
    }
}

/// The environment alone.
pub async fn environment(place: &Place) -> Environment {
    Environment::of(&facts(place).await)
}

enum Found {
    Fact(String, Fact),
    Reading(Box<Reading>),
}

async fn facts(place: &Place) -> Facts {
    let mut facts = Facts {
        now: clock::now().wall,
        built: build_date(),
        ..Facts::default()
    };
    let (tell, told) = bounded(FACTS_MAX);
    let root = place.root.clone();
    // It owns itself: a file that hangs cannot be cancelled, only left behind. Dropping `told` ends it at its next fact.
    let reading = smol::unblock(move || {
        doctor::read(&root, doctor::names(), |name, fact| {
            tell.send_blocking(Found::Fact(name, fact)).is_ok()
        });
        let reading = sample::read_below(&root, &sample::space);
        // Nobody waits any more where it came too late.
        drop(tell.send_blocking(Found::Reading(Box::new(reading))));
    });
    let late = async {
        Timer::after(READ_WITHIN).await;
    };
    or(collect(&told, &mut facts), late).await;
    drop(reading);
    facts
}

async fn collect(told: &Receiver<Found>, facts: &mut Facts) {
    while let Ok(found) = told.recv().await {
        match found {
            Found::Fact(name, fact) => {
                facts.found.insert(name, fact);
            }
            Found::Reading(reading) => facts.reading = *reading,
        }
    }
}
