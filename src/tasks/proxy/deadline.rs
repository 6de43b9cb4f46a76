//! Deadlines of calls: time that is left, and work that ends with it.

use std::time::Duration;

use super::denial::{Denial, late};
use crate::{
    core::{proxy::Limits, time::Mono},
    host::clock,
};

/// Time that a call may still take, or the denial where none is left.
pub(super) fn left(limits: &Limits) -> Result<Duration, Denial> {
    let left = limits.head.since(clock::now().mono);
    if left.is_zero() {
        return Err(late());
    }
    Ok(left)
}

/// Waits for `work` until a moment; `None` where the moment came first.
pub(super) async fn until<T>(moment: Mono, work: impl Future<Output = T>) -> Option<T> {
    smol::future::or(async { Some(work.await) }, async {
        clock::until(moment).await;
        None
    })
    .await
}
