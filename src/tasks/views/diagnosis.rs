//! "Link or node?", asked when somebody looks, and at most once in a while.

use std::{path::Path, rc::Rc, time::Duration};

use super::kept::Kept;
use crate::{
    core::{
        diagnosis::{Rung, verdict},
        time::Now,
    },
    host::network,
    link::{dial::Caller, ladder},
    wire::{
        api::{self, Diagnosis},
        handshake::Target,
    },
};

/// How long an answer is given again: anybody on this machine may ask.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// The way to the control plane, and what was last seen of it.
pub struct Doubt {
    target: Result<Target, String>,
    caller: Box<dyn Fn() -> Result<Caller, String>>,
    clock: fn() -> Now,
    last: Kept<Diagnosis>,
}

impl std::fmt::Debug for Doubt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Doubt")
    }
}

impl Doubt {
    /// The control plane at this address. What cannot be used of the settings is said when somebody asks; files are read then.
    pub fn new(
        target: Result<Target, String>,
        caller: Box<dyn Fn() -> Result<Caller, String>>,
        clock: fn() -> Now,
    ) -> Self {
        Self {
            target,
            caller,
            clock,
            last: Kept::new(clock, KEPT_FOR),
        }
    }

    /// Tests every step, or says what was seen a moment ago.
    pub async fn diagnosis(&self) -> Rc<Diagnosis> {
        self.last.get(self.test()).await
    }

    async fn test(&self) -> Diagnosis {
        let mut rungs = smol::unblock(|| network::rungs(Path::new("/")))
            .await
            .to_vec();
        let unusable = match (&self.target, (self.caller)()) {
            (Ok(target), Ok(caller)) => {
                rungs.extend(ladder::climb(&caller, target, self.clock).await);
                None
            }
            (Err(why), _) => Some(why.clone()),
            (_, Err(why)) => Some(why),
        };
        let (side, sentence) = verdict(&rungs);
        let (side, sentence) = match unusable {
            Some(why) => (
                crate::core::diagnosis::Side::Node,
                format!("the settings cannot be used: {why}"),
            ),
            None => (side, sentence),
        };
        Diagnosis {
            side: side.word().to_owned(),
            sentence,
            at: (self.clock)().wall.rfc3339(),
            steps: rungs.into_iter().map(shape).collect(),
        }
    }
}

fn shape(rung: Rung) -> api::Rung {
    let (id, title) = rung.step.words();
    api::Rung {
        id: id.to_owned(),
        title: title.to_owned(),
        outcome: rung.outcome.word().to_owned(),
        seen: rung.seen,
        took_ms: rung
            .took
            .map(|took| (took.as_secs_f64() * 1e4).round() / 10.0),
        fix: rung.fix,
    }
}
