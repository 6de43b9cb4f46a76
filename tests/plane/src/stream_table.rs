//! The streams of one yamux session, as the wire has them.
//!
//! A stream is in the table from before its first byte until both halves are over on the wire, and
//! so is its place among the streams that may be open at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use smol::lock::SemaphoreGuardArc;

use crate::framing::{Header, Kind};
use crate::record::{Direction, StreamChange};
use crate::wire::{End, Fate, Holder};

/// 5 s: how long the agent may take to finish its half of a stream that the plane finished and
/// nobody reads any more.
const LINGER: Duration = Duration::from_secs(5);

/// A stream that is not over yet.
#[derive(Debug)]
struct Entry {
    target: String,
    fate: Arc<Fate>,
    place: Option<SemaphoreGuardArc>,
    is_opened: bool,
    left_at: Option<Instant>,
}

/// Update of a stream.
#[derive(Debug)]
pub(crate) struct StreamUpdate {
    pub(crate) stream: u32,
    pub(crate) target: String,
    pub(crate) change: StreamChange,
}

/// Open streams of one yamux session, as seen on the wire.
#[derive(Debug, Default)]
pub(crate) struct StreamTable {
    entries: BTreeMap<u32, Entry>,
    /// Those whose half the plane finished: always a subset of `entries`.
    finishing: BTreeSet<u32>,
    opened: u64,
    /// For the record.
    pub(crate) news: Vec<StreamUpdate>,
    /// Places of streams that were just reset.
    pub(crate) freed: Vec<SemaphoreGuardArc>,
    /// Who said that the session is over, and with which code.
    pub(crate) go_away: Option<(Direction, u32)>,
}

impl StreamTable {
    /// A stream that is about to be opened.
    pub(crate) fn add(
        &mut self,
        stream: u32,
        target: String,
        place: Option<SemaphoreGuardArc>,
    ) -> Arc<Fate> {
        let fate = Arc::new(Fate::default());
        let entry = Entry {
            target,
            fate: Arc::clone(&fate),
            place,
            is_opened: false,
            left_at: None,
        };
        self.entries.insert(stream, entry);
        fate
    }

    /// Streams that were ever opened.
    pub(crate) const fn opened(&self) -> u64 {
        self.opened
    }

    /// Streams that are open.
    pub(crate) fn open(&self) -> usize {
        let entries = self.entries.values();
        entries.filter(|entry| entry.is_opened).count()
    }

    /// The plane sends this frame.
    pub(crate) fn sent(&mut self, header: &Header) {
        if header.kind == Kind::GoAway {
            self.go_away
                .get_or_insert((Direction::ToAgent, header.length));
        }
        let id = header.stream;
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if header.is_syn() {
            entry.is_opened = true;
            self.opened = self.opened.saturating_add(1);
            self.tell(id, StreamChange::Opened);
        }
        if header.is_rst() {
            self.tell(id, StreamChange::ResetByPlane);
            let place = self.remove(id);
            self.freed.extend(place);
        } else if header.is_fin() {
            self.tell(id, StreamChange::FinishedByPlane);
            self.finishing.insert(id);
            self.remove_finished(id);
        }
    }

    /// The agent sent this frame.
    pub(crate) fn came(&mut self, header: &Header) {
        if header.kind == Kind::GoAway {
            self.go_away
                .get_or_insert((Direction::FromAgent, header.length));
        }
        let id = header.stream;
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if header.kind == Kind::Data {
            entry.fate.came(header.length);
        }
        if header.is_rst() {
            entry.fate.ended(End::Reset);
            self.tell(id, StreamChange::ResetByAgent);
            drop(self.remove(id));
        } else if header.is_fin() {
            entry.fate.ended(End::Finished);
            self.tell(id, StreamChange::FinishedByAgent);
            self.remove_finished(id);
        }
    }

    /// Streams that the plane finished, that nobody holds, and that must be reset now: the crate
    /// resets only what was not finished. They are out of the table.
    pub(crate) fn given_up(&mut self, now: Instant) -> Vec<u32> {
        let mut reset = Vec::new();
        for id in &self.finishing {
            let Some(entry) = self.entries.get_mut(id) else {
                continue;
            };
            let is_late = match entry.fate.holder() {
                Holder::Holds => false,
                Holder::Aborted => true,
                Holder::Left => {
                    let left_at = *entry.left_at.get_or_insert(now);
                    now.saturating_duration_since(left_at) >= LINGER
                }
            };
            if is_late {
                reset.push(*id);
            }
        }
        for id in &reset {
            self.tell(*id, StreamChange::ResetByPlane);
            let place = self.remove(*id);
            self.freed.extend(place);
        }
        reset
    }

    /// The session is over.
    pub(crate) fn lose(&mut self) {
        let ids: Vec<u32> = self.entries.keys().copied().collect();
        for id in ids {
            self.tell(id, StreamChange::Lost);
            if let Some(entry) = self.entries.get(&id) {
                entry.fate.ended(End::Lost);
            }
            drop(self.remove(id));
        }
    }

    fn remove_finished(&mut self, id: u32) {
        let entry = self.entries.get(&id);
        let is_finished = entry.is_some_and(|entry| entry.fate.end() == End::Finished);
        if is_finished && self.finishing.contains(&id) {
            drop(self.remove(id));
        }
    }

    fn remove(&mut self, id: u32) -> Option<SemaphoreGuardArc> {
        self.finishing.remove(&id);
        self.entries.remove(&id).and_then(|entry| entry.place)
    }

    fn tell(&mut self, id: u32, change: StreamChange) {
        if let Some(entry) = self.entries.get(&id).filter(|entry| entry.is_opened) {
            self.news.push(StreamUpdate {
                stream: id,
                target: entry.target.clone(),
                change,
            });
        }
    }
}
