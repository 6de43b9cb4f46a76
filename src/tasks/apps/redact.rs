//! Values of Secrets that are hidden in what programs of an app have written.

use std::time::Duration;

use super::cluster::Cluster;
use crate::{
    core::{
        apps::{Manifest, secret_names, values},
        rollout::Finding,
        secret::Secret,
    },
    error::{Error, Result},
    net::deadline,
};

/// Time for the Secrets of an app; who asks waits for it.
pub(super) const WITHIN: Duration = Duration::from_secs(5);

/// Values of the Secrets that the Pods of these manifests read. What is not known cannot be hidden,
/// so nothing is shown without.
///
/// # Errors
/// The Secret that cannot be read, and why.
pub(super) async fn secrets(
    cluster: &Cluster<'_>,
    (manifests, namespace): (&[Manifest], &str),
) -> Result<Vec<Secret>> {
    let own = manifests.iter();
    let own = own.filter(|manifest| manifest.kind.name == "Secret");
    let mut known: Vec<_> = own.flat_map(|own| values(&own.object)).collect();
    // On the way back a Secret keeps its value of today.
    for name in secret_names(manifests) {
        let found = cluster.secret(namespace, &name).await;
        let found = found.map_err(|error| {
            error.within(format!(
                "they may hold values of the Secret {name}, which cannot be read"
            ))
        })?;
        known.extend(found.iter().flat_map(values));
    }
    Ok(known)
}

/// Hides these values in evidence that a program may have written.
pub(super) async fn redact(
    cluster: &Cluster<'_>,
    of: (&[Manifest], &str),
    found: Option<&mut Finding>,
) {
    let Some(found) = found.filter(|found| found.quotes()) else {
        return;
    };
    match deadline(WITHIN, Box::pin(secrets(cluster, of))).await {
        Ok(Ok(known)) => found.hide(&known),
        Ok(Err(error)) => found.evidence = format!("its words are not shown: {}", in_words(&error)),
        Err(_elapsed) => {
            "its words are not shown: the Secrets that they may hold could not be read in time"
                .clone_into(&mut found.evidence);
        }
    }
}

/// An error with its fix.
pub(super) fn in_words(error: &Error) -> String {
    let fix = error.fix.iter().map(|fix| format!("; {fix}"));
    format!("{}{}", error.what, fix.collect::<String>())
}
