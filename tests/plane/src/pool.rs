//! Streams that wait for their next request.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use smol::Timer;

use crate::bell::within;
use crate::mux::Mux;
use crate::streams::{Lane, Target};
use crate::world::World;

/// Streams that wait at once.
const IDLE_MAX: usize = 8;

/// 5 s: how long one waits.
const IDLE_LIMIT: Duration = Duration::from_secs(5);

/// 5 s: how long a stream may take to end properly.
const END_LIMIT: Duration = Duration::from_secs(5);

/// The idle streams of one session of yamux.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    idle: RefCell<Vec<(u64, Lane)>>,
    next: Cell<u64>,
}

impl Pool {
    /// A stream to this target that the agent has not closed, the last used one.
    pub(crate) fn take(&self, target: &Target) -> Option<Lane> {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|(_, lane)| !lane.sender.is_closed());
        let place = idle
            .iter()
            .rposition(|(_, lane)| lane.target == *target && lane.sender.is_ready())?;
        Some(idle.remove(place).1)
    }

    /// Keeps a stream for a while.
    pub(crate) fn put(&self, world: &Rc<World>, mux: &Rc<Mux>, lane: Lane) {
        if mux.is_over() {
            return;
        }
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let mut idle = self.idle.borrow_mut();
        let oldest = (idle.len() >= IDLE_MAX).then(|| idle.remove(0).1);
        idle.push((number, lane));
        drop(idle);
        let mux = Rc::clone(mux);
        world.tasks.spawn(async move {
            if let Some(oldest) = oldest {
                end(oldest).await;
            }
            Timer::after(IDLE_LIMIT).await;
            let unused = mux.pool.remove(number);
            if let Some(unused) = unused {
                end(unused).await;
            }
        });
    }

    fn remove(&self, number: u64) -> Option<Lane> {
        let mut idle = self.idle.borrow_mut();
        let place = idle.iter().position(|(other, _)| *other == number)?;
        Some(idle.remove(place).1)
    }

    /// Resets all of them.
    pub(crate) fn clear(&self) {
        drop(self.idle.take());
    }
}

/// Lets hyper finish the stream.
async fn end(lane: Lane) {
    let Lane { sender, task, .. } = lane;
    drop(sender);
    within(END_LIMIT, task).await;
}
