//! Sends samples to the receiver in the settings: oldest first, one batch at a time, until it has
//! all.
//!
//! It wakes up when there is new data on disk, and not before. Refused samples are found by
//! [`crate::core::bisect`], counted and settled with the rest: no sample delays those after it.

use std::time::Duration;

use litemap::LiteMap;
use smol::{Timer, channel};

use crate::{
    core::{
        backoff::Backoff,
        bisect::{Bisection, Grid, ReceiverAnswer},
        health::Severity,
        outbox::{Acknowledgement, Batch, Body, Next, Order, Outbox, Range, Samples, Stream},
        secret::Secret,
    },
    error::{Error, Retry},
    host::random,
    outside::post::Authorization,
    outside::remote_write::{RemoteWriteClient, WriteResponse},
    store::{Failure, telemetry},
    tasks::state::SharedState,
    wire::remote_write::{Requests, empty_body},
};
#[cfg(test)]
mod tests;

/// The name of the receiver among those who get samples.
pub const DESTINATION: &str = "remote-write";
/// Condition of a receiver that does not get samples.
pub const UNREACHED: &str = "telemetry.remote-write";
/// Samples that it does not want.
pub const REFUSED: &str = "telemetry.remote-write-refused";

/// Bytes read from the disk at once: about a quarter of an hour of a hundred series.
const BATCH_BYTES_MAX: usize = 8 * 1024;
/// Samples in one request: about 24 KiB, which take 25 ms of a link of 8 Mbit/s.
const SAMPLES_MAX: usize = 2_000;
/// Waits while the receiver, or the way to it, does not work.
const RETRY_FIRST: Duration = Duration::from_secs(5);
const RETRY_LONGEST: Duration = Duration::from_secs(300);
/// Back-off while a setting, here or at the receiver, has to be changed.
const WRONG_FIRST: Duration = Duration::from_secs(30);
const WRONG_LONGEST: Duration = Duration::from_secs(600);
/// Failures in a row that are worth a condition: a receiver may restart.
const FAILURES_MAX: u32 = 2;

/// Components of the delivery.
pub struct DeliveryDependencies<'a> {
    /// Store of samples.
    pub samples: telemetry::Handle,
    /// Receiver of samples.
    pub receiver: RemoteWriteClient,
    /// Credentials; read again for each delivery.
    pub authorization: &'a dyn Fn() -> Authorization,
    /// Labels of every series; `None` while it is not known yet who this agent is.
    pub labels: &'a dyn Fn() -> Option<LiteMap<String, String>>,
    /// Something new may be on disk.
    pub flushed: channel::Receiver<()>,
    /// State for conditions.
    pub shared_state: &'a SharedState,
}

impl std::fmt::Debug for DeliveryDependencies<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeliveryDependencies({:?})", self.receiver)
    }
}

/// Delivers for as long as the agent runs.
pub async fn run(dependencies: DeliveryDependencies<'_>) {
    let mut delivery = Delivery::new(dependencies);
    loop {
        let ended = delivery.drain().await;
        delivery.dependencies.receiver.0.hang_up();
        delivery.report_refused();
        match ended {
            Ok(()) => {
                if delivery.dependencies.flushed.recv().await.is_err() {
                    return;
                }
            }
            Err(stop) => {
                let wait = delivery.stopped(stop);
                Timer::after(wait).await;
            }
        }
    }
}

/// Reasons why a delivery stopped before its end.
enum Stop {
    /// The receiver cannot be reached, or cannot take anything now.
    Failed(Error, Option<Duration>),
    /// A setting, here or at the receiver, has to be changed.
    Wrong(Error),
    /// The disk does not answer.
    Disk(Failure),
    /// It is not known yet who this agent is.
    Nameless,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Disk(failure)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        if error.retry == Retry::Never {
            Self::Wrong(error)
        } else {
            Self::Failed(error, None)
        }
    }
}

/// Samples since the start.
struct Counts {
    refused: u64,
    /// Of those, since it was told last.
    refused_now: u64,
    taken_now: u64,
    why: String,
}

struct Delivery<'a> {
    dependencies: DeliveryDependencies<'a>,
    outbox: Option<Outbox>,
    failed: Backoff,
    wrong: Backoff,
    /// It has taken a request once: when it refuses one, that is about the samples in it.
    is_receiver: bool,
    is_past: bool,
    counts: Counts,
}

impl<'a> Delivery<'a> {
    const fn new(dependencies: DeliveryDependencies<'a>) -> Self {
        Self {
            dependencies,
            outbox: None,
            failed: Backoff::new(RETRY_FIRST, RETRY_LONGEST),
            wrong: Backoff::new(WRONG_FIRST, WRONG_LONGEST),
            is_receiver: false,
            is_past: false,
            counts: Counts {
                refused: 0,
                refused_now: 0,
                taken_now: 0,
                why: String::new(),
            },
        }
    }

    /// Sends everything that waits.
    async fn drain(&mut self) -> Result<(), Stop> {
        let labels = (self.dependencies.labels)().ok_or(Stop::Nameless)?;
        let authorization = (self.dependencies.authorization)().await?;
        loop {
            let holdings = self.dependencies.samples.stock(Stream::Metrics).await?;
            let now = self.dependencies.shared_state.now().mono;
            let jitter = jitter();
            let outbox = self.outbox(holdings.epoch).await?;
            let Some(next) = outbox.next(holdings.view(), jitter, now) else {
                return Ok(());
            };
            let Batch { range, body } = match next {
                Next::Records(range) => {
                    let samples = &self.dependencies.samples;
                    samples
                        .read(Stream::Metrics, range, BATCH_BYTES_MAX)
                        .await?
                }
                Next::Gap(gap) => Batch {
                    range: gap.range,
                    body: Body::Gap(gap.loss),
                },
            };
            // The protocol has no word for what is missing: a gap is settled without one.
            if let Body::Samples(samples) = body {
                self.send(&samples, &labels, authorization.as_ref()).await?;
            }
            self.settle(range, holdings.last).await?;
        }
    }

    /// The outbox of this epoch, with what was settled before.
    async fn outbox(&mut self, epoch: u64) -> Result<&mut Outbox, Stop> {
        let known = self.outbox.take().filter(|outbox| outbox.epoch() == epoch);
        let outbox = if let Some(outbox) = known {
            outbox
        } else {
            let destination = DESTINATION.to_owned();
            let samples = &self.dependencies.samples;
            let (epoch, cursor) = samples.position(destination, Stream::Metrics).await?;
            Outbox::new(epoch, Order::OldestFirst, cursor)
        };
        Ok(self.outbox.insert(outbox))
    }

    async fn settle(&mut self, range: Range, last: u64) -> Result<(), Stop> {
        let Some(outbox) = &mut self.outbox else {
            return Ok(());
        };
        outbox.sent(range, self.dependencies.shared_state.now().mono);
        let epoch = outbox.epoch();
        let (from, to) = (range.from(), range.to());
        let said = Acknowledgement { epoch, from, to };
        if let Err(ignored) = outbox.acknowledge(said, last) {
            debug_assert!(false, "{range:?} was sent: {ignored:?}");
        }
        let cursor = outbox.cursor().clone();
        let destination = DESTINATION.to_owned();
        let samples = &self.dependencies.samples;
        samples
            .settle(destination, Stream::Metrics, epoch, cursor)
            .await?;
        Ok(())
    }

    /// Sends a batch until each sample is taken or refused.
    async fn send(
        &mut self,
        samples: &Samples,
        labels: &LiteMap<String, String>,
        authorization: Option<&Secret>,
    ) -> Result<(), Stop> {
        let requests = Requests::new(samples, labels);
        let mut bisection = Bisection::new(Grid::of(samples), SAMPLES_MAX, self.is_past);
        while let Some(piece) = bisection.question() {
            let verdict = self.ask(requests.body(&piece), authorization).await?;
            bisection.answered(verdict);
        }
        // What takes nothing of a batch may no longer be a receiver.
        if bisection.taken() == 0 {
            self.ask_nothing(authorization).await?;
        }
        self.is_past = bisection.is_past();
        let counts = &mut self.counts;
        counts.taken_now = counts.taken_now.saturating_add(bisection.taken());
        counts.refused_now = counts.refused_now.saturating_add(bisection.refused());
        Ok(())
    }

    async fn ask(
        &mut self,
        body: Vec<u8>,
        authorization: Option<&Secret>,
    ) -> Result<ReceiverAnswer, Stop> {
        match self.dependencies.receiver.send(body, authorization).await? {
            WriteResponse::Taken => {
                self.works();
                Ok(ReceiverAnswer::Taken)
            }
            WriteResponse::Refused(why) => {
                if !self.is_receiver {
                    self.ask_nothing(authorization).await?;
                }
                self.counts.why = why;
                Ok(ReceiverAnswer::Refused)
            }
            WriteResponse::Busy(error, wait) => Err(Stop::Failed(error, wait)),
            WriteResponse::Wrong(error) => Err(Stop::Wrong(error)),
        }
    }

    /// Returns whether it is a receiver at all: a server of another kind refuses everything, and
    /// would be sent everything in vain.
    async fn ask_nothing(&mut self, authorization: Option<&Secret>) -> Result<(), Stop> {
        match self
            .dependencies
            .receiver
            .send(empty_body(), authorization)
            .await?
        {
            WriteResponse::Taken => {
                self.works();
                Ok(())
            }
            WriteResponse::Refused(why) => {
                let error = self.dependencies.receiver.failure().why(why);
                Err(Stop::Wrong(error.fix(
                    "check telemetry.remote_write.url: the server there does not accept remote write; check scheme (https or http) and path",
                )))
            }
            WriteResponse::Busy(error, wait) => Err(Stop::Failed(error, wait)),
            WriteResponse::Wrong(error) => Err(Stop::Wrong(error)),
        }
    }

    fn works(&mut self) {
        self.is_receiver = true;
        self.failed.reset();
        self.wrong.reset();
        self.dependencies.shared_state.clear(UNREACHED);
    }

    /// Returns the wait before the next try. Samples in flight are sent again.
    fn stopped(&mut self, stop: Stop) -> Duration {
        if let Some(outbox) = &mut self.outbox {
            outbox.session_lost();
        }
        match stop {
            Stop::Failed(error, wait) => {
                let after = self.failed.next(jitter());
                if self.failed.failures() >= FAILURES_MAX {
                    self.report(&error);
                }
                wait.map_or(after, |wait| wait.max(RETRY_FIRST))
            }
            Stop::Wrong(error) => {
                self.report(&error);
                self.wrong.next(jitter())
            }
            Stop::Disk(failure) => {
                log::debug!("remote write: cannot read the samples: {failure}");
                self.failed.next(jitter())
            }
            Stop::Nameless => RETRY_FIRST,
        }
    }

    fn report(&self, error: &Error) {
        let shared_state = self.dependencies.shared_state;
        shared_state.report(
            UNREACHED,
            Severity::Warning,
            error.sentence(),
            error.fix.clone(),
        );
    }

    /// Says what was refused in the last delivery. A line a minute at most.
    fn report_refused(&mut self) {
        let counts = &mut self.counts;
        let (taken, refused) = (
            std::mem::take(&mut counts.taken_now),
            std::mem::take(&mut counts.refused_now),
        );
        if refused == 0 {
            if taken > 0 {
                self.dependencies.shared_state.clear(REFUSED);
            }
            return;
        }
        counts.refused = counts.refused.saturating_add(refused);
        let host = &self.dependencies.receiver.0.address.host;
        self.dependencies.shared_state.report(
            REFUSED,
            Severity::Note,
            format!(
                "{host} has rejected {} samples since the start, the last because {}; all others were delivered",
                counts.refused, counts.why
            ),
            Some("if they were too old, configure an out-of-order window (Prometheus: storage.tsdb.out_of_order_time_window); this machine keeps them".to_owned()),
        );
    }
}

/// A random number, for the waits of many agents not to be the same.
fn jitter() -> u16 {
    random::bytes::<2>().map_or(0, u16::from_ne_bytes)
}
