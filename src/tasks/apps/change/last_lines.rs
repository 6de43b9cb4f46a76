//! Last lines of the containers of a version that died, asked for while it is judged: once for each
//! death, without values of Secrets.

use std::{collections::BTreeSet, time::Duration};

use super::{
    super::{
        observe::{LOG_BYTES_MAX, log_query},
        watched::Watched,
    },
    Work,
    version::Version,
};
use crate::{
    core::{
        apps::{secret_names, values},
        rollout::{Died, Object, Scope, Sight, died, last_lines},
        secret::Secret,
    },
    error::{Error, Retry},
    net::deadline,
};

/// Time for one question; the verdict waits for it.
const WITHIN: Duration = Duration::from_secs(5);
/// Questions while one version is judged. A container that dies again and again is started later
/// each time, five minutes at most.
const ASKED_MAX: usize = 100;

/// Deaths that were asked about.
#[derive(Default)]
pub(super) struct LastLines {
    asked: BTreeSet<Died>,
    /// Values that lines must not show, once they were needed.
    hidden: Option<Vec<Secret>>,
}

impl Work {
    /// Adds to what is seen the last lines of containers that died since.
    pub(super) async fn hear(
        &self,
        version: &Version,
        (watched, scope): (&Watched, &Scope),
        lines: &mut LastLines,
    ) {
        let dead = || {
            let dead = watched.look(|sight| match sight {
                Sight::Seen(seen) => died(scope, seen),
                Sight::Refused(_) | Sight::Blind => Vec::new(),
            });
            dead.unwrap_or_default()
        };
        let found = dead();
        watched.keep_lines(&found.iter().map(Died::key).collect());
        for died in found {
            if lines.asked.len() >= ASKED_MAX || !lines.asked.insert(died.clone()) {
                continue;
            }
            let asking = Box::pin(self.ask(version, &died, &mut lines.hidden));
            let Ok(wrote) = deadline(WITHIN, asking).await else {
                watched.take_lines(died.is_hidden("the node did not give them in time"));
                // The others are asked for after the next look.
                return;
            };
            // Another container may have been started meanwhile, whose lines these are.
            if dead().contains(&died) {
                watched.take_lines(wrote);
            }
        }
    }

    async fn ask(
        &self,
        version: &Version,
        died: &Died,
        hidden: &mut Option<Vec<Secret>>,
    ) -> Object {
        let known = match hidden {
            Some(known) => known,
            None => match self.values(version, died).await {
                Ok(known) => hidden.insert(known),
                Err(error) => return died.is_hidden(&in_words(&error)),
            },
        };
        let place = (died.namespace.as_str(), died.pod.as_str());
        match self.cluster().log(place, &log_query(died)).await {
            Ok(bytes) => {
                let is_whole = bytes.len() < LOG_BYTES_MAX;
                died.wrote(&last_lines(&bytes, is_whole, known))
            }
            // The container or its Pod is gone, or the node is away: others say that.
            Err(error) if error.retry == Retry::Soon => {
                log::debug!("the last lines of {}: {}", died.pod, error.sentence());
                died.wrote(&[])
            }
            Err(error) => died.is_hidden(&in_words(&error)),
        }
    }

    /// Values of the Secrets that the Pods of a version read. What is not known cannot be hidden,
    /// so no lines are shown without.
    async fn values(&self, version: &Version, died: &Died) -> Result<Vec<Secret>, Error> {
        let own = version.manifests.iter();
        let own = own.filter(|manifest| manifest.kind.name == "Secret");
        let mut known: Vec<_> = own.flat_map(|own| values(&own.object)).collect();
        let cluster = self.cluster();
        // On the way back a Secret keeps its value of today.
        for name in secret_names(&version.manifests) {
            let found = cluster.secret(&died.namespace, &name).await;
            let found = found.map_err(|error| {
                error.within(format!(
                    "they may hold values of the Secret {name}, which cannot be read"
                ))
            })?;
            known.extend(found.iter().flat_map(values));
        }
        Ok(known)
    }
}

fn in_words(error: &Error) -> String {
    let fix = error.fix.iter().map(|fix| format!("; {fix}"));
    format!("{}{}", error.what, fix.collect::<String>())
}
