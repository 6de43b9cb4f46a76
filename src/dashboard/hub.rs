//! Event hub for viewers: a ring of messages that each viewer reads at its own pace.
//!
//! Per viewer only its position in the ring is stored, so a slow one costs nothing and is told how
//! much it missed. Without viewers nothing is published and no task is woken; a viewer that was
//! away for a moment misses nothing.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use hyper::body::Bytes;
use smol::stream::Stream;

use crate::core::authorization::Role;

/// Messages that are kept for who comes back.
const MESSAGES_MAX: usize = 256;
/// Their bytes: what waits for one viewer at most.
const BYTES_MAX: usize = 64 * 1024;
/// Size of a chunk.
const CHUNK_BYTES: usize = 8 * 1024;

/// Topic of the event stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Topic {
    /// Status of everything.
    Status,
    /// Samples of the host.
    Ticks,
    /// Samples of the cluster; requested as ticks, and sent to those who may see names of
    /// workloads.
    ClusterTicks,
    Events,
    /// The agent's own log lines.
    Logs,
    Changes,
}

impl Topic {
    const fn bit(self) -> u8 {
        match self {
            Self::Status => 1,
            Self::Ticks => 2,
            Self::ClusterTicks => 4,
            Self::Events => 8,
            Self::Logs => 16,
            Self::Changes => 32,
        }
    }

    /// The name of a message in the stream.
    const fn event(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Ticks | Self::ClusterTicks => "tick",
            Self::Events => "event",
            Self::Logs => "log",
            Self::Changes => "change",
        }
    }
}

/// A choice of topics.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Topics(u8);

/// Reasons why a choice of topics is not granted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NoTopics {
    /// One of them does not exist, or there is none.
    Unknown,
    /// One of them is for who has logged in.
    NotForYou,
}

impl Topics {
    /// Topics of a list such as `status,ticks` that a role may see.
    pub fn of(list: &str, role: Role) -> Result<Self, NoTopics> {
        let mut bits = 0;
        for word in list.split(',') {
            let topic = match word {
                "status" => Topic::Status,
                "ticks" => Topic::Ticks,
                "events" => Topic::Events,
                "logs" => Topic::Logs,
                "changes" => Topic::Changes,
                _ => return Err(NoTopics::Unknown),
            };
            bits |= topic.bit();
        }
        let open = Topic::Status.bit() | Topic::Ticks.bit();
        if role < Role::Viewer {
            return if bits & !open == 0 {
                Ok(Self(bits))
            } else {
                Err(NoTopics::NotForYou)
            };
        }
        if bits & Topic::Ticks.bit() != 0 {
            bits |= Topic::ClusterTicks.bit();
        }
        Ok(Self(bits))
    }

    pub(super) const fn has(self, topic: Topic) -> bool {
        self.0 & topic.bit() != 0
    }
}

#[derive(Debug)]
struct Message {
    id: u64,
    topic: Topic,
    text: Bytes,
}

/// Hub that publishes changes to viewers.
#[derive(Debug)]
pub struct Hub {
    ring: RefCell<VecDeque<Message>>,
    bytes: Cell<usize>,
    last_id: Cell<u64>,
    /// The newest beat: its number, and its text.
    beat: RefCell<(u64, Bytes)>,
    viewers: Cell<usize>,
    /// True if messages are kept: from the first viewer on, until [`Hub::drop_backlog`].
    is_kept: Cell<bool>,
    wakers: RefCell<Vec<Waker>>,
    /// Publishers that wait for the first viewer.
    publishers: RefCell<Vec<Waker>>,
}

impl Hub {
    /// A hub without news. `first_id` should be higher than any of the program that ran before, so
    /// that who comes back with one of its numbers is told that something was missed.
    pub fn new(first_id: u64) -> Self {
        Self {
            ring: RefCell::default(),
            bytes: Cell::new(0),
            last_id: Cell::new(first_id),
            beat: RefCell::default(),
            viewers: Cell::new(0),
            is_kept: Cell::new(false),
            wakers: RefCell::default(),
            publishers: RefCell::default(),
        }
    }

    /// Viewers that watch now.
    pub const fn viewers(&self) -> usize {
        self.viewers.get()
    }

    /// Returns whether what is published is kept: somebody watches, or did a moment ago and may
    /// come back.
    pub const fn is_heard(&self) -> bool {
        self.is_kept.get()
    }

    /// Waits until there is a viewer.
    pub async fn watched(&self) {
        smol::future::poll_fn(|context| {
            if self.is_heard() {
                return Poll::Ready(());
            }
            let mut waiting = self.publishers.borrow_mut();
            if !waiting.iter().any(|known| known.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Drops the events that are kept for viewers that come back, and keeps none until somebody
    /// watches. A viewer with an earlier number is told that it missed something. While somebody
    /// watches, nothing happens.
    pub fn drop_backlog(&self) {
        if self.viewers.get() > 0 || !self.is_kept.replace(false) {
            return;
        }
        self.ring.borrow_mut().clear();
        self.bytes.set(0);
        self.last_id.set(self.last_id.get() + 1);
    }

    /// Tells those who asked for the topic. `json` is one line. While nobody watches, it is not
    /// kept.
    pub fn publish(&self, topic: Topic, json: &str) {
        if !self.is_heard() {
            return;
        }
        let id = self.last_id.get() + 1;
        self.last_id.set(id);
        let text = Bytes::from(format!(
            "id: {id}\nevent: {}\ndata: {json}\n\n",
            topic.event()
        ));
        {
            let mut ring = self.ring.borrow_mut();
            self.bytes.set(self.bytes.get() + text.len());
            ring.push_back(Message { id, topic, text });
            while ring.len() > MESSAGES_MAX || self.bytes.get() > BYTES_MAX {
                let Some(oldest) = ring.pop_front() else {
                    break;
                };
                self.bytes.set(self.bytes.get() - oldest.text.len());
            }
        }
        self.wake();
    }

    /// Tells everybody that the agent lives. `time_s` is by the wall clock.
    pub fn beat(&self, time_s: i64) {
        let id = self.last_id.get();
        let text = format!("id: {id}\nevent: beat\ndata: {{\"time\":{time_s}}}\n\n");
        let number = self.beat.borrow().0 + 1;
        self.beat.replace((number, Bytes::from(text)));
        self.wake();
    }

    fn wake(&self) {
        for waker in self.wakers.take() {
            waker.wake();
        }
    }

    /// Subscribes a viewer from now on, or from `last_id` on.
    pub fn watch(self: &Rc<Self>, topics: Topics, last_id: Option<u64>) -> Watch {
        self.viewers.set(self.viewers.get() + 1);
        self.is_kept.set(true);
        for publisher in self.publishers.take() {
            publisher.wake();
        }
        let mut first = "retry: 1000\n\n".to_owned();
        let position = match last_id {
            Some(last_id) if self.remembers(last_id) => last_id,
            Some(_) => {
                first.push_str(&self.reset());
                self.last_id.get()
            }
            None => self.last_id.get(),
        };
        Watch {
            hub: Rc::clone(self),
            topics,
            position,
            beat: self.beat.borrow().0,
            first: Some(first),
        }
    }

    /// Returns whether nothing after this id was dropped.
    fn remembers(&self, id: u64) -> bool {
        let before_ring = match self.ring.borrow().front() {
            Some(oldest) => oldest.id - 1,
            None => self.last_id.get(),
        };
        (before_ring..=self.last_id.get()).contains(&id)
    }

    fn reset(&self) -> String {
        format!("id: {}\nevent: reset\ndata: {{}}\n\n", self.last_id.get())
    }
}

/// A viewer.
#[derive(Debug)]
pub struct Watch {
    hub: Rc<Hub>,
    topics: Topics,
    /// The last message that it was told of, or passed over.
    position: u64,
    beat: u64,
    first: Option<String>,
}

impl Watch {
    /// Tells this viewer alone, before everything else.
    pub(super) fn greet(&mut self, topic: Topic, json: &str) {
        let (id, event) = (self.position, topic.event());
        let first = self.first.get_or_insert_default();
        for part in [
            "id: ",
            &id.to_string(),
            "\nevent: ",
            event,
            "\ndata: ",
            json,
            "\n\n",
        ] {
            first.push_str(part);
        }
    }

    /// Pending messages.
    fn take_pending(&mut self) -> Vec<u8> {
        let hub = &self.hub;
        let mut text = self.first.take().unwrap_or_default();
        if !hub.remembers(self.position) {
            text.push_str(&hub.reset());
            self.position = hub.last_id.get();
        }
        let mut bytes = text.into_bytes();
        let ring = hub.ring.borrow();
        let after = self.position;
        for message in ring.iter().filter(|message| message.id > after) {
            if bytes.len() > CHUNK_BYTES {
                return bytes;
            }
            self.position = message.id;
            if self.topics.has(message.topic) {
                bytes.extend_from_slice(&message.text);
            }
        }
        let beat = hub.beat.borrow();
        if self.beat != beat.0 {
            self.beat = beat.0;
            bytes.extend_from_slice(&beat.1);
        }
        bytes
    }
}

impl Stream for Watch {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let take_pending = self.take_pending();
        if take_pending.is_empty() {
            // As many as viewers at most: all are taken out at each message.
            let mut wakers = self.hub.wakers.borrow_mut();
            if !wakers.iter().any(|known| known.will_wake(context.waker())) {
                wakers.push(context.waker().clone());
            }
            return Poll::Pending;
        }
        Poll::Ready(Some(Ok(Bytes::from(take_pending))))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.hub
            .viewers
            .set(self.hub.viewers.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(watch: &mut Watch) -> String {
        String::from_utf8(watch.take_pending()).unwrap()
    }

    fn topics(list: &str) -> Topics {
        Topics::of(list, Role::Viewer).unwrap()
    }

    #[test]
    fn topics_are_granted_by_role() {
        let of = |list: &str, role| Topics::of(list, role);
        assert!(of("status,ticks", Role::Anonymous).is_ok());
        assert_eq!(of("status,logs", Role::Anonymous), Err(NoTopics::NotForYou));
        for list in ["", "status,", "weather", "Status"] {
            assert_eq!(of(list, Role::Operator), Err(NoTopics::Unknown), "{list}");
        }
        let seen = of("ticks", Role::Anonymous).unwrap();
        assert!(!seen.has(Topic::ClusterTicks));
        assert!(topics("ticks").has(Topic::ClusterTicks));
    }

    #[test]
    fn a_viewer_is_told_what_it_asked_for_and_resumes_where_it_was() {
        let hub = Rc::new(Hub::new(100));
        hub.publish(Topic::Logs, "\"nobody watches\"");
        let mut watch = hub.watch(topics("logs"), None);
        assert_eq!(read(&mut watch), "retry: 1000\n\n");
        hub.publish(Topic::Logs, "1");
        hub.publish(Topic::Status, "2");
        hub.publish(Topic::Logs, "3");
        assert_eq!(
            read(&mut watch),
            "id: 101\nevent: log\ndata: 1\n\nid: 103\nevent: log\ndata: 3\n\n"
        );
        assert_eq!(read(&mut watch), "");
        hub.beat(7);
        assert_eq!(
            read(&mut watch),
            "id: 103\nevent: beat\ndata: {\"time\":7}\n\n"
        );
        let mut back = hub.watch(topics("logs"), Some(101));
        let sent = read(&mut back);
        assert_eq!(sent, "retry: 1000\n\nid: 103\nevent: log\ndata: 3\n\n");
        for unknown in [99, 104, u64::MAX] {
            let mut lost = hub.watch(topics("logs"), Some(unknown));
            let sent = read(&mut lost);
            let reset = "retry: 1000\n\nid: 103\nevent: reset\ndata: {}\n\n";
            assert_eq!(sent, reset, "{unknown}");
        }
        assert_eq!(hub.viewers(), 2);
        drop((watch, back));
        assert_eq!(hub.viewers(), 0);
    }

    #[test]
    fn who_was_away_for_a_moment_misses_nothing_and_for_longer_is_told_so() {
        let hub = Rc::new(Hub::new(100));
        let mut watch = hub.watch(topics("logs"), None);
        hub.publish(Topic::Logs, "1");
        read(&mut watch);
        hub.drop_backlog();
        assert!(hub.is_heard(), "somebody watches");
        drop(watch);
        hub.publish(Topic::Logs, "2");
        let mut back = hub.watch(topics("logs"), Some(101));
        let sent = read(&mut back);
        assert_eq!(sent, "retry: 1000\n\nid: 102\nevent: log\ndata: 2\n\n");
        drop(back);
        hub.drop_backlog();
        assert!(!hub.is_heard());
        hub.publish(Topic::Logs, "3");
        let mut late = hub.watch(topics("logs"), Some(102));
        assert!(read(&mut late).contains("event: reset"));
        hub.publish(Topic::Logs, "4");
        assert_eq!(read(&mut late), "id: 104\nevent: log\ndata: 4\n\n");
    }

    #[test]
    fn who_does_not_read_misses_something_and_is_told() {
        let hub = Rc::new(Hub::new(0));
        let mut mute = hub.watch(topics("logs"), None);
        read(&mut mute);
        let line = "x".repeat(1000);
        for _ in 0..300 {
            hub.publish(Topic::Logs, &line);
        }
        assert!(hub.bytes.get() <= BYTES_MAX);
        assert!(read(&mut mute).starts_with("id: 300\nevent: reset\n"));
        assert_eq!(read(&mut mute), "");
        for _ in 0..20 {
            hub.publish(Topic::Logs, &line);
        }
        let mut logs = 0;
        loop {
            let take_pending = read(&mut mute);
            if take_pending.is_empty() {
                break;
            }
            assert!(take_pending.len() < CHUNK_BYTES + 2000);
            logs += take_pending.matches("event: log").count();
        }
        assert_eq!(logs, 20);
    }
}
