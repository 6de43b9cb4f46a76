//! Commands of the control plane: judged, handed to [`Apps`], and acknowledged, one after another.
//!
//! An acknowledgement belongs to the session that the command came in on. What was accepted goes on
//! without it.

use std::{cell::RefCell, fmt, rc::Rc};

use smol::{
    Task,
    channel::{Receiver, Sender, bounded},
};

use crate::{
    core::{
        command::{self, RawCommand},
        time::Wall,
    },
    error::{Error, Result, Retry},
    executor::Executor,
    link::outlet::{Frame, Lane, Outlet},
    store::CommandHistory,
    tasks::apps::Apps,
    wire::control::{CommandAnswer, edge_command_ack},
};

/// Commands that wait for their turn.
const WAITING_MAX: usize = 16;
/// Bytes of their arguments.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Answers that wait, with those of commands that there is no room for: 200 bytes each. Of a
/// control plane that floods, the rest gets none.
const ANSWERS_MAX: usize = 1_024;

/// Refusals of a session that get a line in the log each. Of those that follow, every doubling of
/// their number gets one.
const REFUSALS_LOGGED: u64 = 20;

/// Commands of one session after another.
pub struct Commands {
    apps: Option<Rc<Apps>>,
    time: Box<dyn Fn() -> Wall>,
    executor: Rc<Executor>,
    running: RefCell<Option<Running>>,
}

impl fmt::Debug for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commands")
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}

/// A command and the answer that it has already.
type Item = (Box<RawCommand>, Option<CommandAnswer>);

#[derive(Debug)]
struct Running {
    queue: Sender<Item>,
    waiting: Rc<RefCell<Load>>,
    unanswered: u64,
    _task: Task<()>,
}

/// Commands in the queue.
#[derive(Debug, Default)]
struct Load {
    count: usize,
    bytes: usize,
}

impl Commands {
    /// No session yet. `time` is the clock by which deadlines are judged.
    pub fn new(
        apps: Option<Rc<Apps>>,
        time: impl Fn() -> Wall + 'static,
        executor: Rc<Executor>,
    ) -> Self {
        Self {
            apps,
            time: Box::new(time),
            executor,
            running: RefCell::default(),
        }
    }

    /// The control plane agreed on the extension: its commands are taken from now on.
    pub fn begin(self: &Rc<Self>, outlet: &Outlet) {
        if self.running.borrow().is_some() {
            return;
        }
        let (queue, items) = bounded(ANSWERS_MAX);
        let waiting = Rc::<RefCell<Load>>::default();
        let work = Rc::clone(self).work(items, Rc::clone(&waiting), outlet.open());
        let running = Running {
            queue,
            waiting,
            unanswered: 0,
            _task: self.executor.spawn(work),
        };
        self.running.replace(Some(running));
    }

    /// Takes a command; `None`: it has no id, so there is nothing to answer. `false`: nothing was
    /// agreed on, and no command is known.
    pub fn take(&self, said: Option<Box<RawCommand>>) -> bool {
        let mut running = self.running.borrow_mut();
        let Some(running) = running.as_mut() else {
            return false;
        };
        let Some(said) = said else {
            log::info!("a command of the control plane has no usable id and is dropped");
            return true;
        };
        let mut load = running.waiting.borrow_mut();
        let bytes = load.bytes.saturating_add(said.args_bytes);
        let has_room = load.count < WAITING_MAX && (load.count == 0 || bytes <= WAITING_BYTES_MAX);
        let is_large = said.args.is_none() && said.args_bytes > 0;
        let item = if has_room || is_large {
            (said, None)
        } else {
            let answer = CommandAnswer::Refused(busy());
            let args = None;
            (Box::new(RawCommand { args, ..*said }), Some(answer))
        };
        let held = held(&item);
        match running.queue.try_send(item) {
            Ok(()) => {
                load.count += usize::from(held.is_some());
                load.bytes = load.bytes.saturating_add(held.unwrap_or(0));
            }
            Err(_full) => {
                running.unanswered += 1;
                if running.unanswered.is_power_of_two() {
                    log::warn!(
                        "the control plane sends more commands than are answered; dropped={}",
                        running.unanswered
                    );
                }
            }
        }
        true
    }

    /// The session is over: what was not accepted yet is for the next one.
    pub fn session_lost(&self) {
        let running = self.running.replace(None);
        drop(running);
    }

    async fn work(
        self: Rc<Self>,
        items: Receiver<Item>,
        waiting: Rc<RefCell<Load>>,
        mut lane: Lane,
    ) {
        let mut refusals = 0_u64;
        while let Ok(item) = items.recv().await {
            if let Some(bytes) = held(&item) {
                let mut load = waiting.borrow_mut();
                load.count = load.count.saturating_sub(1);
                load.bytes = load.bytes.saturating_sub(bytes);
            }
            let (said, answer) = item;
            let answer = match answer {
                Some(answer) => answer,
                None => self
                    .answer(&said)
                    .await
                    .unwrap_or_else(CommandAnswer::Refused),
            };
            if let CommandAnswer::Refused(error) = &answer {
                refusals += 1;
                if refusals <= REFUSALS_LOGGED || refusals.is_power_of_two() {
                    let why = error.sentence();
                    log::info!(
                        "the command {} is refused: {why}; refused={refusals}",
                        said.id
                    );
                }
            }
            let text = edge_command_ack(&said.id, &answer, (self.time)());
            if lane.send(Frame::Text(text)).await.is_err() {
                return;
            }
        }
    }

    async fn answer(&self, said: &RawCommand) -> Result<CommandAnswer> {
        // What was accepted in time stays so, however late it is asked about again.
        let seen = match (&self.apps, said.issued) {
            (Some(apps), Some(issued)) => apps.seen_command(&said.id, issued).await?,
            _ => CommandHistory::Never,
        };
        if seen == CommandHistory::Before {
            return Ok(CommandAnswer::Known);
        }
        let command = command::judge(said, (self.time)())?;
        if seen == CommandHistory::Forgotten {
            return Err(Error::new("the command is not accepted")
                .why("it is older than the oldest one that is remembered, so it may have been carried out before")
                .fix("send it again under another id"));
        }
        let apps = self.apps.as_ref().ok_or_else(|| {
            Error::new("the command is not accepted")
                .why("this agent has no cluster to deploy to, or is in safe mode")
                .fix("pipeops-agent status shows why")
        })?;
        let args = said.args.as_deref().unwrap_or("{}");
        Rc::clone(apps).carry_out(&command, args).await?;
        Ok(CommandAnswer::Accepted)
    }
}

/// Bytes of a command that waits; `None`: it has its answer.
fn held((said, answer): &Item) -> Option<usize> {
    answer
        .is_none()
        .then(|| said.args.as_ref().map_or(0, String::len))
}

fn busy() -> Error {
    Error::new("the command is not accepted")
        .why(format!("{WAITING_MAX} commands wait already"))
        .fix("send it again, under the same id, when those are answered")
        .retry(Retry::Soon)
}
