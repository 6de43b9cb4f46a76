//! Sends notifications about conditions to the receiver in the settings.

use std::{path::Path, time::Duration};

use crate::{
    core::{
        health::Severity,
        notify::{Next, Notifier, Wanted},
        time::{Mono, Now},
    },
    error::Error,
    executor,
    host::{
        clock,
        exec::{self, Limits},
        random,
    },
    outside::notify::{NotifyClient, NotifyResponse},
    outside::post::Authorization,
    store,
    tasks::state::SharedState,
    wire::notify::{ReceiverKind, kept, read_kept, request},
};
#[cfg(test)]
mod tests;

/// The note of what was told before this start.
pub const NOTE: &str = "notify.told";
/// Condition of undelivered notifications: the one that is not reported this way.
pub const UNREACHED: &str = "notify.unreached";
/// Interval between checks of the conditions.
pub const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Failures in a row that are worth a condition.
const FAILURES_MAX: u32 = 3;
/// Time for which the offset of the local time is trusted: summer time begins and ends once a year.
const OFFSET_FOR: Duration = Duration::from_secs(900);

/// Dependencies of the task.
pub struct NotifyDependencies<'a> {
    /// Receiver of notifications.
    pub receiver: NotifyClient,
    /// In which form.
    pub reader: ReceiverKind,
    /// Selection and quiet hours.
    pub wanted: Wanted,
    /// Credentials; read again for each message.
    pub authorization: &'a dyn Fn() -> Authorization,
    /// Conditions reported before this start, as in [`NOTE`].
    pub notified: Option<String>,
    /// Store of that note.
    pub store: store::Handle,
    /// Name of this machine.
    pub host: String,
    /// Current conditions.
    pub shared_state: &'a SharedState,
    /// Interval between checks: [`POLL_INTERVAL`].
    pub poll_interval: Duration,
}

impl std::fmt::Debug for NotifyDependencies<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NotifyDependencies({:?})", self.receiver)
    }
}

/// Tells for as long as the agent runs.
#[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
pub async fn run(dependencies: NotifyDependencies<'_>) {
    let earlier = dependencies
        .notified
        .as_deref()
        .map(read_kept)
        .unwrap_or_default();
    let shared_state = dependencies.shared_state;
    let mut notifier = Notifier::new(dependencies.wanted, earlier, shared_state.now().mono);
    let mut offset = Offset::default();
    loop {
        let now = shared_state.now();
        shared_state.with_conditions(|conditions| {
            let mut all = conditions.worst_first();
            all.retain(|condition| condition.id != UNREACHED);
            notifier.see(&all, now.mono);
        });
        let minute = match dependencies.wanted.quiet {
            Some(_) => offset.minute(now).await,
            None => 0,
        };
        if let Next::Send(message) = notifier.next(now.mono, minute) {
            let request = request(dependencies.reader, &message, &dependencies.host, now.wall);
            let sent = match (dependencies.authorization)().await {
                Ok(authorization) => {
                    dependencies
                        .receiver
                        .send(&request, authorization.as_ref())
                        .await
                }
                Err(error) => Ok(NotifyResponse::Wrong(error)),
            };
            let (error, wait) = match sent {
                Ok(NotifyResponse::Taken) => {
                    shared_state.clear(UNREACHED);
                    let word = kept(notifier.sent(&message, shared_state.now().mono));
                    if let Err(failure) = dependencies.store.keep_note(NOTE, Some(word)).await {
                        log::debug!("notify: the state of notifications is not saved: {failure}");
                    }
                    continue;
                }
                Ok(NotifyResponse::Busy(error, wait)) => (error, wait),
                Ok(NotifyResponse::Wrong(error)) => {
                    report(shared_state, &error);
                    (error, None)
                }
                Err(error) => (error, None),
            };
            notifier.failed(shared_state.now(), random::jitter(), wait);
            if notifier.failures() >= FAILURES_MAX {
                report(shared_state, &error);
            }
        }
        clock::tick(dependencies.poll_interval).await;
    }
}

fn report(shared_state: &SharedState, error: &Error) {
    shared_state.report(
        UNREACHED,
        Severity::Warning,
        error.sentence(),
        error.fix.clone(),
    );
}

/// Offset of the local time from UTC, as the system's `date` reports it: it knows the rules of all
/// zones.
#[derive(Default)]
struct Offset {
    known: Option<(Mono, i64)>,
}

impl Offset {
    /// The minute of the day where the machine is; of UTC where it does not say.
    async fn minute(&mut self, now: Now) -> u16 {
        let minutes = match self.known {
            Some((asked, minutes)) if now.mono.since(asked) < OFFSET_FOR => minutes,
            Some(_) | None => {
                let minutes = executor::unblock(|| {
                    let ended = exec::run(Path::new("/"), &["date", "+%z"], Limits::SHORT).ok()?;
                    offset_minutes(ended.stdout.trim())
                })
                .await
                .unwrap_or(0);
                self.known = Some((now.mono, minutes));
                minutes
            }
        };
        let local = now.wall.millis().div_euclid(60_000).saturating_add(minutes);
        u16::try_from(local.rem_euclid(1440)).unwrap_or(0)
    }
}

/// `+0530`
fn offset_minutes(text: &str) -> Option<i64> {
    let (sign, digits) = match text.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    let number: i64 = digits.parse().ok().filter(|_| digits.len() == 4)?;
    Some(sign * (number / 100 * 60 + number % 100))
}
