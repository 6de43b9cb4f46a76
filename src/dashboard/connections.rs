//! Connection slots of viewers: bounded in number, time and bytes, over all listeners.

use std::{
    cell::Cell,
    cmp::Reverse,
    convert::Infallible,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use hyper::{Response, server::conn::http1, service::service_fn};
use smol::{
    Task, Timer,
    future::FutureExt,
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
};
use smol_hyper::rt::{FuturesIo, SmolTimer};

use super::{
    answers::Rejection,
    connection::{Accepted, Protocol, Source, Stream},
    reply::{Reply, Sending},
    site::{Site, StreamPermit},
};
use crate::executor::Executor;

/// Connections at a time over one way, beside those whose answer flows; from other machines as many
/// again.
pub const CONNECTIONS_MAX: usize = 16;
/// Maximum number of those for one other machine. A browser opens six.
const OF_ONE_MAX: usize = 8;
/// Time for a viewer to send the head of a request, and to begin with the next one.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// Time for which a viewer may not read while data waits for it.
const READ_DEADLINE: Duration = Duration::from_secs(30);
/// Time for the refusal of a connection.
const REFUSAL_DEADLINE: Duration = Duration::from_secs(1);
/// A request's head at most.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Activity of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Activity {
    /// It has no request yet, or no further one; the number says since when, in the order of such
    /// moments.
    Waits(u64),
    /// It has begun one since.
    Begins(u64),
    /// Its request is being answered.
    IsAnswered,
    /// Its answer flows: it has a place of its own, see `site`.
    Flows,
}

struct Connection {
    task: Task<()>,
    source: Source,
    doing: Rc<Cell<Activity>>,
}

impl Connection {
    /// Returns whether it takes a place from whoever comes from there: other machines have places
    /// of their own.
    fn is_rival_of(&self, source: Source) -> bool {
        let is_here = |source| source == Source::Here;
        self.doing.get() != Activity::Flows && is_here(self.source) == is_here(source)
    }
}

/// The connections over one way. Dropping it ends them all.
pub(super) struct Connections {
    executor: Rc<Executor>,
    site: Rc<Site>,
    moments: Rc<Cell<u64>>,
    // Never longer than twice CONNECTIONS_MAX and the places of flows together.
    served: Vec<Connection>,
    // Never longer than CONNECTIONS_MAX.
    refused: Vec<Task<()>>,
}

impl Connections {
    pub(super) fn new(executor: Rc<Executor>, site: Rc<Site>) -> Self {
        Self {
            executor,
            site,
            moments: Rc::default(),
            served: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Serves what was accepted, or sends it away.
    pub(super) async fn take(&mut self, accepted: io::Result<Accepted>) {
        self.served
            .retain(|connection| !connection.task.is_finished());
        self.refused.retain(|refusal| !refusal.is_finished());
        if accepted.is_ok() {
            self.site.answers.accepted();
        }
        match accepted {
            // Whoever was to be let in is gone: that is its own affair.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                Timer::after(self.site.answers.accept_failed(&error)).await;
            }
            Ok(accepted) if self.has_room(accepted.source()) => self.serve(accepted),
            Ok(Accepted::Plain(stream, _)) if self.refused.len() < CONNECTIONS_MAX => {
                self.site.answers.turned_away(Rejection::Full);
                self.refused.push(self.executor.spawn(refuse(stream)));
            }
            // A flood, or one that would have to agree on keys to be told: closed without a word.
            Ok(_) => self.site.answers.turned_away(Rejection::Full),
        }
        // Who was accepted gets a turn before the next one is: a thousand that say nothing must not
        // push out one that does.
        smol::future::yield_now().await;
    }

    /// Returns whether one more is served: where all places are taken, whoever has been silent the
    /// longest gives up its own. Of other machines that is one of those who have the most, so that
    /// nobody pushes out the rest.
    fn has_room(&mut self, source: Source) -> bool {
        let of = |source: Source| {
            let own = self.served.iter().filter(|rival| rival.source == source);
            own.filter(|rival| rival.is_rival_of(source)).count()
        };
        let is_greedy = source != Source::Here && of(source) >= OF_ONE_MAX;
        let rivals = self.served.iter().filter(|rival| rival.is_rival_of(source));
        if !is_greedy && rivals.count() < CONNECTIONS_MAX {
            return true;
        }
        let silent = self
            .served
            .iter()
            .enumerate()
            .filter(|(_, rival)| rival.is_rival_of(source))
            .filter(|(_, rival)| !is_greedy || rival.source == source)
            .filter_map(|(n, rival)| match rival.doing.get() {
                Activity::Waits(since) | Activity::Begins(since) => {
                    Some((Reverse(of(rival.source)), since, n))
                }
                Activity::IsAnswered | Activity::Flows => None,
            });
        let Some((_, _, longest)) = silent.min() else {
            return false;
        };
        drop(self.served.swap_remove(longest));
        self.site.answers.turned_away(Rejection::Full);
        true
    }

    fn serve(&mut self, accepted: Accepted) {
        let mark = Mark {
            doing: Rc::new(Cell::new(Activity::Waits(0))),
            moments: Rc::clone(&self.moments),
            permit: None,
        };
        mark.waits();
        let (source, doing) = (accepted.source(), Rc::clone(&mark.doing));
        let conversation = answer(Rc::clone(&self.site), accepted, mark);
        let task = self.executor.spawn(conversation);
        self.served.push(Connection {
            task,
            source,
            doing,
        });
    }
}

/// Marks the activity of a connection while it lives; then the connection waits.
struct Mark {
    doing: Rc<Cell<Activity>>,
    moments: Rc<Cell<u64>>,
    permit: Option<StreamPermit>,
}

impl Mark {
    fn waits(&self) {
        let moment = self.moments.get().wrapping_add(1);
        self.moments.set(moment);
        self.doing.set(Activity::Waits(moment));
    }

    fn of_request(&self) -> Self {
        self.doing.set(Activity::IsAnswered);
        Self {
            doing: Rc::clone(&self.doing),
            moments: Rc::clone(&self.moments),
            permit: None,
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.waits();
        drop(self.permit.take());
    }
}

/// Tells one viewer too many that it is.
async fn refuse(mut stream: Stream) {
    let answer = Reply::unavailable(
        "too many viewers are connected",
        Some("try again in a second"),
    );
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.bytes().len()
    );
    let answered = async {
        // Heard before answered: a viewer that is still writing when its peer closes sees a broken
        // pipe and not the answer.
        let mut request = [0; 1024];
        let _heard = stream.read(&mut request).await?;
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(answer.bytes()).await?;
        stream.close().await
    };
    // Whoever does not read it is gone already.
    drop(answered.or(late(REFUSAL_DEADLINE)).await);
}

async fn answer(site: Rc<Site>, accepted: Accepted, mark: Mark) {
    let (stream, manner) = match accepted.arrive().await {
        Ok(arrived) => arrived,
        Err(away) => {
            return away
                .into_iter()
                .for_each(|why| site.answers.turned_away(why));
        }
    };
    let doing = Rc::clone(&mark.doing);
    let service = service_fn(|request| {
        let mut mark = mark.of_request();
        let site = Rc::clone(&site);
        async move {
            let (reply, permit) = match manner {
                Protocol::Expected(from) => site.answer(request, from).await,
                Protocol::Plaintext => (site.send_to_tls(&request), None),
            };
            if permit.is_some() {
                mark.doing.set(Activity::Flows);
            }
            mark.permit = permit;
            Ok::<Response<Sending<Mark>>, Infallible>(reply.response(mark))
        }
    });
    let stream = Watched {
        stream,
        doing: Rc::clone(&doing),
        overdue: None,
    };
    let connection = http1::Builder::new()
        .timer(SmolTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(FuturesIo::new(stream), service);
    // A viewer that breaks off or sends nonsense is none of the agent's troubles; hyper has
    // answered what it could.
    let Err(error) = connection.await else {
        return;
    };
    // Whoever keeps a connection for later, and lets it be, is not slow.
    let is_slow = error.is_timeout() && matches!(doing.get(), Activity::Begins(_));
    if is_slow {
        site.answers.turned_away(Rejection::Slow);
    } else if error.is_parse() {
        site.answers.turned_away(Rejection::Unreadable);
    }
}

/// A connection that ends when its viewer does not read for [`READ_DEADLINE`], and that knows
/// whether a request has begun.
struct Watched {
    stream: Stream,
    doing: Rc<Cell<Activity>>,
    overdue: Option<Timer>,
}

impl Watched {
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.overdue = None;
            return written;
        }
        let overdue = self
            .overdue
            .get_or_insert_with(|| Timer::after(READ_DEADLINE));
        match Pin::new(overdue).poll(context) {
            Poll::Ready(_) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let (Poll::Ready(Ok(1..)), Activity::Waits(since)) = (&read, self.doing.get()) {
            self.doing.set(Activity::Begins(since));
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, flushed)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_close(context);
        self.watch(context, closed)
    }
}

/// Ends a wait.
async fn late(deadline: Duration) -> io::Result<()> {
    Timer::after(deadline).await;
    Err(io::ErrorKind::TimedOut.into())
}
