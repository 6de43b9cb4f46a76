//! Samples the machine at every interval, and on demand.
//!
//! One reading at a time, in the blocking pool. A kernel that does not answer (a sensor that hangs,
//! a dying disk) blocks that one reading and nothing else.

use std::{cell::Cell, fmt, rc::Rc, time::Duration};

use litemap::LiteMap;
use smol::{
    Timer,
    channel::{Receiver, Sender, bounded},
    future::{self, FutureExt as _},
};

use crate::{
    core::{
        health::Severity,
        rates::{Reading, points},
        series::Tick,
        time::{Mono, Wall, in_words},
    },
    executor,
    host::{clock, sample},
    tasks::state::SharedState,
};

/// The condition of what cannot be read on this machine.
const UNREAD: &str = "telemetry.unread";
/// The condition of a reading that does not end.
const STUCK: &str = "telemetry.stuck";
/// A reading takes a few milliseconds, on the slowest board and with a thousand mounts some
/// hundred.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Time that a requester waits.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// A reading that is younger is as good as a new one for who asks.
const FRESH: Duration = Duration::from_secs(1);
/// Time for which the memory of this program is taken as known: four of the usual samples. To add
/// it up costs the kernel a fifth of a whole reading.
const OWN_MEMORY_FOR: Duration = Duration::from_secs(50);
/// Maximum number of waiting requesters: there are fewer connections than twice this.
const ASKING_MAX: usize = 16;

/// Reads the machine.
#[derive(Debug)]
pub struct Sampler {
    options: SamplerOptions,
    ask: Sender<Sender<Rc<Reading>>>,
    asked: Receiver<Sender<Rc<Reading>>>,
    /// Memory of this program, and when it was read.
    own_memory: Cell<Option<(Mono, u64)>>,
}

/// Options of the sampler.
pub struct SamplerOptions {
    /// Time between two samples.
    pub every: Duration,
    /// True if a wall clock that shows this can be believed.
    pub is_believed: Box<dyn Fn(Wall) -> bool>,
    /// State for conditions about unreadable values.
    pub shared_state: Rc<SharedState>,
    /// Reader: [`sample::read`], or a test.
    pub read: fn(Option<u64>) -> Reading,
    /// Time for a reading before it becomes a condition.
    pub timeout: Duration,
}

impl SamplerOptions {
    /// The parts that read this machine.
    pub fn new(
        every: Duration,
        is_believed: Box<dyn Fn(Wall) -> bool>,
        shared_state: Rc<SharedState>,
    ) -> Self {
        Self {
            every,
            is_believed,
            shared_state,
            read: sample::read,
            timeout: TIMEOUT,
        }
    }
}

impl fmt::Debug for SamplerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "every {:?}", self.every)
    }
}

impl Sampler {
    /// A sampler that reads nothing until it runs.
    pub fn new(options: SamplerOptions) -> Self {
        let (ask, asked) = bounded(ASKING_MAX);
        Self {
            options,
            ask,
            asked,
            own_memory: Cell::default(),
        }
    }

    /// Samples until it is dropped, and gives each sample to `keep`.
    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    pub async fn run(&self, mut keep: impl AsyncFnMut(Tick)) {
        let mut before: Option<Rc<Reading>> = None;
        let mut newest = Rc::new(Reading::default());
        let mut due = self.options.shared_state.now().mono;
        loop {
            if let Some(answer) = self.next(due).await {
                let age = self.options.shared_state.now().mono.since(newest.at.mono);
                if age >= FRESH {
                    newest = Rc::new(self.read().await);
                }
                // Who asked may have gone.
                answer.try_send(Rc::clone(&newest)).ok();
                continue;
            }
            newest = Rc::new(self.read().await);
            if before
                .as_ref()
                .is_none_or(|before| before.unread != newest.unread)
            {
                self.report_unread(&newest.unread);
            }
            keep(self.tick(before.as_deref(), &newest)).await;
            before = Some(Rc::clone(&newest));
            due = following(
                due,
                self.options.every,
                self.options.shared_state.now().mono,
            );
        }
    }

    /// Current reading of the machine. `None` if the kernel does not answer within five seconds, or
    /// nobody samples.
    pub async fn reading(&self) -> Option<Rc<Reading>> {
        let (answer, answered) = bounded(1);
        self.ask.try_send(answer).ok()?;
        let late = async {
            Timer::after(ANSWER_WITHIN).await;
            None
        };
        let answered = async { answered.recv().await.ok() };
        answered.or(late).await
    }

    /// Waits until the next sample is due, or somebody asks.
    async fn next(&self, due: Mono) -> Option<Sender<Rc<Reading>>> {
        let is_due = async {
            clock::until(due).await;
            None
        };
        let is_asked = async { self.asked.recv().await.ok() };
        // A sample is not late because somebody asks without end.
        is_due.or(is_asked).await
    }

    async fn read(&self) -> Reading {
        let shared_state = &self.options.shared_state;
        let stuck = async {
            Timer::after(self.options.timeout).await;
            let sentence = format!(
                "no measurements: the kernel has not answered for {}",
                in_words(self.options.timeout)
            );
            let fix =
                "dmesg | tail; a disk or sensor that hangs blocks every program that reads it";
            shared_state.report(STUCK, Severity::Warning, sentence, Some(fix.to_owned()));
            future::pending().await
        };
        let now = shared_state.now().mono;
        let known = self.own_memory.get();
        let known = known.filter(|(read, _)| now.since(*read) < OWN_MEMORY_FOR);
        let (read, pss) = (self.options.read, known.map(|(_, pss)| pss));
        let reading = executor::unblock(move || read(pss)).or(stuck).await;
        if known.is_none() {
            self.own_memory.set(reading.own.pss.map(|pss| (now, pss)));
        }
        shared_state.clear(STUCK);
        shared_state.root.set(reading.root);
        reading
    }

    fn tick(&self, before: Option<&Reading>, now: &Reading) -> Tick {
        Tick {
            at: now.at,
            clock_is_set: (self.options.is_believed)(now.at.wall),
            points: points(before, now),
        }
    }

    /// Says what is not measured on this machine, all of it in one condition.
    fn report_unread(&self, unread: &LiteMap<&'static str, String>) {
        if unread.is_empty() {
            return self.options.shared_state.clear(UNREAD);
        }
        let each: Vec<_> = unread
            .iter()
            .map(|(what, why)| format!("{what} ({why})"))
            .collect();
        let sentence = format!("not measured on this machine: {}", each.join(", "));
        let fix = unread.contains_key("pressure").then(|| {
            "for pressure: append psi=1 to the kernel command line (on a Raspberry Pi the single line of /boot/firmware/cmdline.txt), then reboot".to_owned()
        });
        self.options
            .shared_state
            .report(UNREAD, Severity::Note, sentence, fix);
    }
}

/// The moment of the next sample: at the same distance each time, but what was missed while the
/// machine slept is not made up for.
pub(super) fn following(due: Mono, every: Duration, now: Mono) -> Mono {
    let next = due.after(every);
    if next > now { next } else { now.after(every) }
}

#[cfg(test)]
mod tests;
