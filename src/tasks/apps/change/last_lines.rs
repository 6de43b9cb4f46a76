//! Last lines of the containers of a version that died, asked for while it is judged: once for each
//! death, without values of Secrets.

use std::collections::BTreeSet;

use super::{
    super::{
        observe::{LOG_BYTES_MAX, log_query},
        redact::{WITHIN, in_words, redact, secrets},
        watched::Watched,
    },
    Work,
    version::Version,
};
use crate::{
    core::{
        order::GatherExt as _,
        rollout::{ClusterView, Died, JudgedRollout, Object, died, last_lines},
        secret::Secret,
    },
    error::Retry,
    net::deadline,
};

/// Questions while one version is judged. A container that dies again and again is started later
/// each time, five minutes at most.
const ASKED_MAX: usize = 100;

/// Deaths that were asked about.
#[derive(Default)]
pub(super) struct LastLines {
    asked: BTreeSet<Died>,
    /// Values that lines must not show, once they were needed.
    hidden: Option<Vec<Secret>>,
    /// The last evidence that a program may have written, and how it is shown.
    redacted: (String, String),
}

impl Work {
    /// Adds to what is seen the last lines of containers that died since.
    pub(super) async fn hear(&self, version: &Version, watched: &Watched, lines: &mut LastLines) {
        let dead = || {
            let dead = watched.look(|view| match view {
                ClusterView::Seen(seen) => died(&watched.scope, seen),
                ClusterView::Refused(_) | ClusterView::Blind => Vec::new(),
            });
            dead.unwrap_or_default()
        };
        let found = dead();
        watched.keep_lines(&found.iter().map(Died::key).gather());
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

    /// Hides in the evidence of a judgement what the app's Secrets hold; once for each evidence.
    pub(super) async fn redact(
        &self,
        of: (&Version, &str),
        judgement: &mut JudgedRollout,
        lines: &mut LastLines,
    ) {
        let Some(found) = judgement.finding.as_mut() else {
            return;
        };
        let (raw, shown) = &mut lines.redacted;
        if *raw != found.evidence {
            raw.clone_from(&found.evidence);
            let (version, namespace) = of;
            redact(
                &self.cluster(),
                (&version.manifests, namespace),
                Some(&mut *found),
            )
            .await;
            shown.clone_from(&found.evidence);
        }
        found.evidence.clone_from(shown);
    }

    async fn ask(
        &self,
        version: &Version,
        died: &Died,
        hidden: &mut Option<Vec<Secret>>,
    ) -> Object {
        let known = match hidden {
            Some(known) => known,
            None => match secrets(&self.cluster(), (&version.manifests, &died.namespace)).await {
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
}
