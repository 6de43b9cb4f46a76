//! Response of one exchange: streamed in chunks, or buffered and sent as one message.

use std::{io::Write as _, time::Duration};

use flate2::{Compression, write::GzEncoder};
use http_body_util::BodyExt;
use hyper::body::Bytes;

use crate::{
    core::proxy::{CallTarget, HeaderList, first},
    files::{Spool, SpoolFailure, SpoolFile},
    host::clock,
    kube::Body,
    link::outlet::{Fragment, Frame, Lane, Lost, Outlet},
    tasks::proxy::{deadline::until, denial::Denial},
    wire::control::{self, AnswerForm, Encoding, ResponseParts},
};

/// Raw bytes in one message or one part: with base64 around them they stay below the 32 KiB of a
/// lane's frame. A multiple of three, so that base64 can be cut here.
const PIECE_BYTES: usize = 24_000;
/// The largest message that is one frame.
const FRAME_BYTES_MAX: usize = 32 * 1024;
/// Bytes collected in memory before the spool is opened.
const MEMORY_BYTES_MAX: usize = 64 * 1024;
/// Smallest body that is sent as a binary message (docs/protocol.md, Buffered responses).
const BINARY_BYTES_MIN: usize = 10_240;
/// Smallest body that is compressed (docs/protocol.md, Buffered responses).
const GZIP_BYTES_MIN: usize = 1024;

/// Reasons why an answer ended early.
#[derive(Debug)]
pub(in crate::tasks::proxy) enum Failure {
    /// The caller is told so.
    Reported(String),
    /// The session is over; there is nobody to tell.
    Lost,
}

impl From<Lost> for Failure {
    fn from(Lost: Lost) -> Self {
        Self::Lost
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self::Reported(text)
    }
}

impl From<Denial> for Failure {
    fn from(denial: Denial) -> Self {
        Self::Reported(denial.text)
    }
}

/// A complete answer.
#[derive(Debug)]
pub(in crate::tasks::proxy) struct Whole {
    status: u16,
    headers: HeaderList,
    body: Collected,
}

#[derive(Debug)]
enum Collected {
    Memory(Vec<u8>),
    Spooled {
        file: SpoolFile,
        /// True if it begins as a gzip stream does.
        is_gzip: bool,
    },
}

/// The way back of one exchange.
#[derive(Debug)]
pub(in crate::tasks::proxy) struct Reply {
    id: String,
    answer: AnswerForm,
    lane: Lane,
}

impl Reply {
    pub(in crate::tasks::proxy) fn new(id: &str, answer: AnswerForm, outlet: &Outlet) -> Self {
        Self {
            id: id.to_owned(),
            answer,
            lane: outlet.open(),
        }
    }

    /// Says that the exchange failed, as its form of answer wants it.
    pub(in crate::tasks::proxy) async fn fail(mut self, text: &str) {
        let now = clock::now().wall;
        let message = match self.answer {
            AnswerForm::Buffered => control::proxy_error(&self.id, text, now),
            AnswerForm::Streaming => control::proxy_response_abort(&self.id, text, now),
            AnswerForm::Socket => control::stream_error(&self.id, text, now),
        };
        if self.lane.send(Frame::Text(message)).await.is_ok() {
            self.lane.finish();
        }
    }

    /// Sends head and pieces as they come, and the end. A piece is never held back for more to
    /// come.
    pub(in crate::tasks::proxy) async fn stream(
        &mut self,
        mut sent: impl FnMut(usize),
        head: (u16, &HeaderList),
        mut body: Body,
        target: &CallTarget,
        idle: Duration,
    ) -> Result<(), Failure> {
        let (status, headers) = head;
        self.head(status, headers).await?;
        while let Some(data) = next(&mut body, target, idle).await? {
            sent(data.len());
            for piece in data.chunks(PIECE_BYTES) {
                let now = clock::now().wall;
                self.text(control::proxy_response_chunk(&self.id, piece, now))
                    .await?;
            }
        }
        let now = clock::now().wall;
        self.text(control::proxy_response_end(&self.id, now))
            .await?;
        Ok(())
    }

    pub(in crate::tasks::proxy) async fn head(
        &mut self,
        status: u16,
        headers: &HeaderList,
    ) -> Result<(), Lost> {
        let now = clock::now().wall;
        self.text(control::proxy_response_header(
            &self.id, status, headers, now,
        ))
        .await
    }

    /// Sends a message of any size: in parts where it is larger than a frame of a lane.
    pub(in crate::tasks::proxy) async fn large_text(
        &mut self,
        message: String,
    ) -> Result<(), Lost> {
        if message.len() <= FRAME_BYTES_MAX {
            return self.text(message).await;
        }
        let mut rest = Bytes::from(message);
        let mut kind = Fragment::FirstText;
        while !rest.is_empty() {
            let part = rest.split_to(rest.len().min(FRAME_BYTES_MAX));
            self.part(kind, part, rest.is_empty()).await?;
            kind = Fragment::Next;
        }
        Ok(())
    }

    pub(in crate::tasks::proxy) async fn text(&mut self, message: String) -> Result<(), Lost> {
        self.lane.send(Frame::Text(message)).await
    }

    /// Lets what is queued go out.
    pub(in crate::tasks::proxy) fn finish(self) {
        self.lane.finish();
    }

    /// Sends a collected answer as one message, in parts where it is large.
    pub(in crate::tasks::proxy) async fn send_whole(mut self, whole: Whole) {
        let Whole {
            status,
            headers,
            body,
        } = whole;
        let sent = match &body {
            Collected::Memory(body) if body.len() < BINARY_BYTES_MIN => {
                let gzip = compressed(&headers, body);
                let packed = match &gzip {
                    Some(gzip) => (gzip.as_slice(), Encoding::Gzip),
                    None => (body.as_slice(), Encoding::Base64),
                };
                let now = clock::now().wall;
                let message = control::proxy_response(&self.id, status, &headers, packed, now);
                self.text(message).await.map_err(Failure::from)
            }
            Collected::Memory(_) | Collected::Spooled { .. } => {
                self.send_parts(status, &headers, &body).await
            }
        };
        match sent {
            Ok(()) => self.lane.finish(),
            // Dropping the lane ends the message: the receiver gets one that is too short, which
            // nothing can mend any more.
            Err(Failure::Reported(text)) => log::warn!("proxy: an answer was cut short: {text}"),
            Err(Failure::Lost) => {}
        }
    }

    /// Sends the binary form, except where the body itself is gzip, which the receiver would take
    /// for our compression, and where binary messages belong to yamux (docs/protocol.md, Buffered
    /// responses).
    async fn send_parts(
        &mut self,
        status: u16,
        headers: &HeaderList,
        body: &Collected,
    ) -> Result<(), Failure> {
        let head = if body.is_gzip() || self.lane.carries_streams() {
            None
        } else {
            control::binary_response_head(&self.id, status, headers)
        };
        let now = clock::now().wall;
        let Some(head) = head else {
            let parts = ResponseParts::new(&self.id, status, headers, Encoding::Base64, now);
            self.part(Fragment::FirstText, parts.opening.into(), false)
                .await?;
            let mut at = 0;
            while let Some(piece) = body.piece(&mut at).await? {
                self.part(Fragment::Next, ResponseParts::body(&piece).into(), false)
                    .await?;
            }
            self.part(Fragment::Next, parts.closing.into(), true)
                .await?;
            return Ok(());
        };
        if let Collected::Memory(body) = body
            && head.len() + body.len() <= FRAME_BYTES_MAX
        {
            let message = [head.as_slice(), body].concat();
            self.lane.send(Frame::Binary(message.into())).await?;
            return Ok(());
        }
        self.part(Fragment::FirstBinary, head.into(), false).await?;
        let mut at = 0;
        while let Some(piece) = body.piece(&mut at).await? {
            self.part(Fragment::Next, piece, false).await?;
        }
        self.part(Fragment::Next, Bytes::new(), true).await?;
        Ok(())
    }

    async fn part(&mut self, kind: Fragment, data: Bytes, is_last: bool) -> Result<(), Lost> {
        self.lane
            .send(Frame::Part {
                kind,
                data,
                is_last,
            })
            .await
    }
}

impl Whole {
    /// Bytes of the body.
    pub(in crate::tasks::proxy) fn body_bytes(&self) -> usize {
        match &self.body {
            Collected::Memory(body) => body.len(),
            Collected::Spooled { file, .. } => usize::try_from(file.length()).unwrap_or(usize::MAX),
        }
    }
}

impl Collected {
    fn is_gzip(&self) -> bool {
        match self {
            Self::Memory(body) => is_gzip(body),
            Self::Spooled { is_gzip, .. } => *is_gzip,
        }
    }

    /// The next piece from `at`, which moves behind it; `None` at the end.
    async fn piece(&self, at: &mut u64) -> Result<Option<Bytes>, Failure> {
        let piece = match self {
            Self::Memory(body) => {
                let from = usize::try_from(*at).unwrap_or(usize::MAX);
                let rest = body.get(from..).unwrap_or_default();
                Bytes::copy_from_slice(rest.get(..PIECE_BYTES).unwrap_or(rest))
            }
            Self::Spooled { file, .. } => file
                .read(*at, PIECE_BYTES)
                .await
                .map_err(|error| Failure::Reported(error.to_string()))?,
        };
        *at = at.saturating_add(u64::try_from(piece.len()).unwrap_or(0));
        Ok((!piece.is_empty()).then_some(piece))
    }
}

fn is_gzip(body: &[u8]) -> bool {
    body.starts_with(&[0x1f, 0x8b])
}

/// Collects an answer: a little in memory, more on disk, too much not at all.
pub(in crate::tasks::proxy) async fn collect(
    head: (u16, HeaderList),
    mut body: Body,
    spool: &Spool,
    target: &CallTarget,
    idle: Duration,
) -> Result<Whole, Failure> {
    let (status, headers) = head;
    let mut memory = Vec::new();
    let mut file: Option<SpoolFile> = None;
    let mut begins_as_gzip = false;
    while let Some(data) = next(&mut body, target, idle).await? {
        if let Some(file) = &mut file {
            file.append(data).await?;
            continue;
        }
        memory.extend_from_slice(&data);
        if memory.len() > MEMORY_BYTES_MAX {
            begins_as_gzip = is_gzip(&memory);
            let mut opened = spool.open().await?;
            let collected = std::mem::take(&mut memory);
            opened.append(collected.into()).await?;
            file = Some(opened);
        }
    }
    let body = match file {
        Some(file) => Collected::Spooled {
            file,
            is_gzip: begins_as_gzip,
        },
        None => Collected::Memory(memory),
    };
    Ok(Whole {
        status,
        headers,
        body,
    })
}

impl From<SpoolFailure> for Failure {
    fn from(failure: SpoolFailure) -> Self {
        let text = failure.to_string();
        Self::Reported(match failure {
            SpoolFailure::TooLarge => {
                format!("{text}; ask for it with supports_response_streaming")
            }
            SpoolFailure::Full => {
                format!("busy: {text}; try again, or with supports_response_streaming")
            }
            SpoolFailure::Disk(_) => text,
        })
    }
}

/// The next data of a body; `None` at its end. Trailers are passed over: the wire has no place for
/// them.
async fn next(
    body: &mut Body,
    target: &CallTarget,
    idle: Duration,
) -> Result<Option<Bytes>, Failure> {
    let what = match target {
        CallTarget::Kubernetes(_) => "kubernetes API request failed",
        CallTarget::Service(_) => "service request failed",
    };
    loop {
        let moment = clock::now().mono.after(idle);
        let Some(frame) = until(moment, body.frame()).await else {
            let silence = crate::core::time::in_words(idle);
            return Err(Failure::Reported(format!(
                "{what}: context deadline exceeded: no byte for {silence}"
            )));
        };
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(Failure::Reported(format!("{what}: {error}"))),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data()
                    && !data.is_empty()
                {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// Compresses uncompressed text where that makes it smaller (docs/protocol.md, Buffered
/// responses).
fn compressed(headers: &HeaderList, body: &[u8]) -> Option<Vec<u8>> {
    if body.len() < GZIP_BYTES_MIN || first(headers, "content-encoding").is_some() {
        return None;
    }
    let kind = first(headers, "content-type")?;
    let has = |words: &[&str]| words.iter().any(|word| kind.contains(word));
    let is_packed = has(&["gzip", "compress", "zip", "image/", "video/", "audio/"]);
    if is_packed || !has(&["text/", "json", "javascript", "xml", "html", "yaml"]) {
        return None;
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body).ok()?;
    let packed = encoder.finish().ok()?;
    (packed.len() < body.len()).then_some(packed)
}
