//! Watch of a list: list, watch from there, resume, and list again when the resource version is too
//! old.
//!
//! Nothing is stored: each change goes to the caller, so memory stays flat whatever the size of the
//! cluster.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::calls::{Detail, collected, query_escaped, refused, request};
use super::client::{Client, Identity};
use super::error::Error;
use crate::core::backoff::Backoff;
use crate::net::Body;
use crate::net::{Elapsed, deadline};
use crate::wire::json::{self, Shape};
use crate::wire::kube::{HeadOnly, Object, Status};

/// The time for the head of a watch.
const HEAD_WITHIN: Duration = Duration::from_secs(30);

/// The longest silence of a watch. The API server sends a bookmark each minute; half of that again
/// for a loaded board. Where it sends none (no watch cache), a quiet watch is resumed each time,
/// which costs one small request.
const SILENCE_MAX: Duration = Duration::from_secs(90);

/// Timeout that the server is asked for. It would choose 5 to 10 min itself; with this, both ends
/// agree.
const LIFETIME_S: u32 = 540;

/// The longest line. An object is at most 1.5 MiB in the datastore, and JSON is longer than what is
/// stored there.
const LINE_BYTES_MAX: usize = 4 << 20;

/// Maximum size of a buffer between two lines: one large object must not stay in memory for ever.
const BUFFER_KEPT_BYTES: usize = 16 * 1024;

/// The largest error body that is read.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// The waits between failures.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Events of a watch, in this order: `Restarted`, `Added` for existing objects, `Synced`, then
/// changes; after a gap that cannot be bridged it begins with `Restarted` again.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<T> {
    /// Everything known is void: the list begins.
    Restarted,
    /// The object exists and was not reported before.
    Added(T),
    /// The object has changed.
    Modified(T),
    /// The object is gone; its last state.
    Deleted(T),
    /// The list is complete.
    Synced,
    /// The API cannot be watched for now; trying goes on by itself.
    Failed(Error),
}

/// Object with the resource version from which a watch is resumed.
pub trait Versioned: Shape + Default {
    /// Its resource version; empty where it has none.
    fn version(&self) -> &str;
}

impl<T: Object> Versioned for T {
    fn version(&self) -> &str {
        &self.metadata().resource_version
    }
}

impl Versioned for Value {
    fn version(&self) -> &str {
        let version = self.pointer("/metadata/resourceVersion");
        version.and_then(Self::as_str).unwrap_or_default()
    }
}

/// Subject of a watch.
#[derive(Clone, Debug)]
pub struct Watch<T> {
    path: String,
    detail: Detail,
    kind: PhantomData<fn() -> T>,
}

impl<T: Versioned> Watch<T> {
    /// Whole objects of a collection: `/api/v1/nodes`. May have a query (a selector).
    pub fn whole(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            detail: Detail::Whole,
            kind: PhantomData,
        }
    }
}

impl Watch<Value> {
    /// Only the heads of the objects of a collection, with everything that is in them.
    pub fn heads_whole(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            detail: Detail::Head,
            kind: PhantomData,
        }
    }
}

#[cfg(feature = "internals")]
impl Watch<HeadOnly> {
    /// Only the heads of the objects of a collection: for the many, such as Pods.
    pub fn heads(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            detail: Detail::Head,
            kind: PhantomData,
        }
    }
}

/// End of a watch.
#[derive(Debug)]
enum End {
    /// By itself, or cut: resume.
    Over,
    /// The past is gone (410), or what came cannot be followed: list again.
    ListAgain,
}

impl<T: Versioned> Watch<T> {
    /// Watches for ever. Dropping the future ends the watch and closes its connection.
    pub async fn run(&self, client: &Client, mut on: impl FnMut(Event<T>)) -> ! {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        let mut version: Option<String> = None;
        let heard = client.heard();
        loop {
            let chances = heard.chances();
            let mut lines = 0_u32;
            let as_agent = (client, &Identity::Agent);
            let round = Box::pin(self.round(as_agent, &mut version, &mut lines, &mut on)).await;
            if let Err(error) = round {
                on(Event::Failed(error));
            }
            if lines > 0 {
                backoff.reset();
            }
            // Also after a watch that ended well: a server that ends every watch at once must not
            // be asked in a loop.
            let wait = backoff.next(fastrand::u16(..));
            // The wait is cut short where the API server answers again. One that just started
            // refuses what it answers a second later.
            if deadline(wait, heard.chance(chances)).await.is_ok() {
                backoff.reset();
            }
        }
    }

    /// The list where there is nothing to resume from, then one watch to its end, counting its
    /// lines. Leaves in `version` where to resume. The caller waits between rounds.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn round(
        &self,
        (client, identity): (&Client, &Identity),
        version: &mut Option<String>,
        lines: &mut u32,
        on: &mut impl FnMut(Event<T>),
    ) -> Result<(), Error> {
        let mut last = if let Some(known) = version.take() {
            known
        } else {
            on(Event::Restarted);
            let each = |object| on(Event::Added(object));
            let list = client.list_as(identity, &self.path, self.detail, each);
            let from = list.await?;
            on(Event::Synced);
            from
        };
        match self.follow((client, identity), &mut last, lines, on).await {
            Ok(End::ListAgain) => Ok(()),
            Err(error) if error.is_expired() => Ok(()),
            // An event that cannot be read would come again from the same version, for ever.
            Err(error @ (Error::Undecodable { .. } | Error::TooLarge { .. })) => Err(error),
            other => {
                *version = Some(last);
                other.map(|_over| ())
            }
        }
    }

    /// One watch from `last` on, which moves with each line.
    async fn follow(
        &self,
        (client, identity): (&Client, &Identity),
        last: &mut String,
        lines: &mut u32,
        on: &mut impl FnMut(Event<T>),
    ) -> Result<End, Error> {
        let separator = if self.path.contains('?') { '&' } else { '?' };
        let path = format!(
            "{}{separator}watch=true&allowWatchBookmarks=true&timeoutSeconds={LIFETIME_S}&resourceVersion={}",
            self.path,
            query_escaped(last)
        );
        let call = format!("WATCH {}", self.path);
        let request = request(Method::GET, &path, self.detail.of_object(), None)?;
        let response = client.send(request, identity, HEAD_WITHIN).await?;
        if response.status() != StatusCode::OK {
            let status = response.status().as_u16();
            let body = collected(&call, response.into_body(), REFUSAL_BYTES_MAX);
            let body = deadline(HEAD_WITHIN, body).await;
            let body = body.map_err(|Elapsed(limit)| Error::NoAnswer {
                call: call.clone(),
                limit,
            })??;
            return Err(refused(&call, status, &body));
        }
        let mut reader = Lines::new(response.into_body());
        let heard = client.heard();
        loop {
            let next = async { Some(reader.next().await) };
            // What comes over a connection that was silent may come minutes late: it is resumed
            // over another one.
            let silenced = async {
                heard.silenced().await;
                None
            };
            let next = smol::future::or(next, silenced);
            let line = match deadline(SILENCE_MAX, next).await {
                Ok(Some(Ok(Some(line)))) => line,
                // Cut, silent, or ended by the server: the same, for the version says where to go
                // on.
                Ok(None | Some(Ok(None) | Err(Cut::Broken))) | Err(Elapsed(_)) => {
                    return Ok(End::Over);
                }
                Ok(Some(Err(Cut::TooLong))) => {
                    return Err(Error::TooLarge {
                        call,
                        bytes_max: LINE_BYTES_MAX,
                    });
                }
            };
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let said = decoded::<T>(line).map_err(|why| Error::Undecodable {
                call: call.clone(),
                why,
            });
            match said? {
                Notification::Change(version, event) => {
                    *last = version;
                    on(event);
                }
                Notification::Bookmark(version) => *last = version,
                Notification::Error(status) if status.code == 410 => return Ok(End::ListAgain),
                Notification::Error(status) => {
                    return Err(Error::Refused {
                        call,
                        status: status.code,
                        reason: status.reason,
                        message: status.message,
                    });
                }
            }
            *lines = lines.saturating_add(1);
        }
    }
}

/// One line of a watch.
#[derive(Debug)]
enum Notification<T> {
    Change(String, Event<T>),
    Bookmark(String),
    Error(Status),
}

fn decoded<T: Versioned>(line: &[u8]) -> Result<Notification<T>, String> {
    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(rename = "type")]
        kind: &'a str,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let wrong = |error: serde_json::Error| error.to_string();
    let line: Line<'_> = serde_json::from_slice(line).map_err(wrong)?;
    let text = line.object.get().as_bytes();
    match line.kind {
        "BOOKMARK" => {
            let head: HeadOnly = json::shape(text).map_err(wrong)?;
            Ok(Notification::Bookmark(head.metadata.resource_version))
        }
        "ERROR" => json::shape(text).map(Notification::Error).map_err(wrong),
        kind => {
            let object: T = json::shape(text).map_err(wrong)?;
            let version = object.version().to_owned();
            if version.is_empty() {
                return Err("an object without a resource version".to_owned());
            }
            let event = match kind {
                "ADDED" => Event::Added(object),
                "MODIFIED" => Event::Modified(object),
                "DELETED" => Event::Deleted(object),
                other => {
                    return Err(format!(
                        "an event of the unknown type {:?}",
                        shortened(other)
                    ));
                }
            };
            Ok(Notification::Change(version, event))
        }
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Reasons why there is no next line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Cut {
    Broken,
    TooLong,
}

/// A body as lines. Holds one line and what came with it.
struct Lines {
    body: Body,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were given out.
    taken: usize,
    /// Bytes of the buffer that hold no end of a line.
    searched: usize,
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lines({} bytes)", self.buffer.len())
    }
}

impl Lines {
    fn new(body: Body) -> Self {
        Self {
            body,
            buffer: Vec::new(),
            taken: 0,
            searched: 0,
        }
    }

    /// The next line without its end. What comes after the last end of a line is half an event and
    /// is left out.
    async fn next(&mut self) -> Result<Option<&[u8]>, Cut> {
        self.buffer.drain(..self.taken);
        self.taken = 0;
        self.searched = 0;
        if self.buffer.is_empty() {
            self.buffer.shrink_to(BUFFER_KEPT_BYTES);
        }
        loop {
            let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
            if let Some(end) = unsearched.iter().position(|byte| *byte == b'\n') {
                let end = self.searched + end;
                self.taken = end + 1;
                return Ok(self.buffer.get(..end));
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > LINE_BYTES_MAX {
                return Err(Cut::TooLong);
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(_)) => return Err(Cut::Broken),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::kube::Node;
    use hyper::body::{Bytes, Frame};
    use proptest::prelude::*;
    use std::io;

    /// A body that comes in these pieces.
    struct Pieces(std::collections::VecDeque<Vec<u8>>);

    impl hyper::body::Body for Pieces {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<Frame<Bytes>, io::Error>>> {
            let piece = self.0.pop_front();
            std::task::Poll::Ready(piece.map(|piece| Ok(Frame::data(Bytes::from(piece)))))
        }
    }

    fn lines_of(pieces: Vec<Vec<u8>>) -> (Vec<Vec<u8>>, Option<Cut>) {
        smol::block_on(async {
            let mut lines = Lines::new(Body::of_io(Pieces(pieces.into())));
            let mut all = Vec::new();
            loop {
                match lines.next().await {
                    Ok(Some(line)) => all.push(line.to_vec()),
                    Ok(None) => return (all, None),
                    Err(cut) => return (all, Some(cut)),
                }
            }
        })
    }

    #[test]
    fn a_line_without_an_end_stops_at_the_cap() {
        let piece = vec![b'a'; 1 << 20];
        let (lines, cut) = lines_of(vec![piece; 6]);
        assert_eq!((lines.len(), cut), (0, Some(Cut::TooLong)));
    }

    #[test]
    fn an_event_of_another_kind_is_an_error_and_not_silence() {
        for line in [
            r#"{"type":"RENAMED","object":{"metadata":{}}}"#,
            r#"{"type":"ADDED","object":{"metadata":[]}}"#,
            r#"{"type":"ADDED"}"#,
            r#"{"object":{}}"#,
            "[]",
        ] {
            assert!(decoded::<Node>(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn a_change_carries_the_version_to_resume_from() {
        let line = br#"{"type":"MODIFIED","object":{"metadata":{"name":"n","resourceVersion":"42"},"status":{}}}"#;
        let Ok(Notification::Change(version, Event::Modified(node))) = decoded::<Node>(line) else {
            panic!("no change");
        };
        assert_eq!((version.as_str(), node.metadata.name.as_str()), ("42", "n"));
    }

    proptest! {
        #[test]
        fn however_a_watch_is_cut_into_pieces_its_lines_are_the_same(
            lines in proptest::collection::vec("[a-z]{0,20}", 0..10),
            size in 1_usize..30,
        ) {
            let text: Vec<u8> = lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect();
            let pieces = text.chunks(size).map(<[u8]>::to_vec).collect();
            let (found, cut) = lines_of(pieces);
            prop_assert_eq!(cut, None);
            let wanted: Vec<Vec<u8>> = lines.into_iter().map(String::into_bytes).collect();
            prop_assert_eq!(found, wanted);
        }

        #[test]
        fn garbage_in_a_watch_is_an_error_with_a_reason(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(decoded::<HeadOnly>(&line).map_or_else(|why| !why.is_empty(), |_| true));
        }
    }
}
