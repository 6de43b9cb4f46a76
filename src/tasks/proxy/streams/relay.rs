//! Relay of raw bytes after a 101: exec, attach, port-forward, and protocols of applications.

use std::{cell::OnceCell, io, rc::Rc};

use hyper::body::Bytes;
use smol::{
    future::{FutureExt as _, yield_now},
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
};

use super::LAST_WORD_WITHIN;
use crate::{
    core::audit::RequestOutcome,
    host::clock,
    kube::UpgradedStream,
    link::mux::MuxStream,
    tasks::proxy::{admission::Pass, audit::Record, deadline::until},
};

/// Size of a read. The frames of a stream are not larger.
const PIECE_BYTES: usize = 16 * 1024;
/// Pieces in a row before other tasks get a turn.
const PIECES_A_TURN: u32 = 16;

/// Connection after a 101.
pub(super) struct Switched {
    pub(super) stream: UpgradedStream,
    pub(super) pass: Pass,
    pub(super) written: Rc<OnceCell<Record>>,
}

/// Carries bytes until the backend has said everything, or the caller is gone.
pub(super) async fn run(stream: MuxStream, read_before: Bytes, switched: Switched) {
    let Switched {
        stream: backend,
        pass,
        written,
    } = switched;
    let watch = stream.watch();
    let (mut from_caller, mut to_caller) = smol::io::split(stream);
    let (mut from_backend, mut to_backend) = smol::io::split(backend);
    let count = |count: fn(&Record, usize), bytes| {
        if let Some(record) = written.get() {
            count(record, bytes);
        }
    };
    let up = async {
        let written = to_backend.write_all(&read_before).await;
        written.map_err(Over::Broken)?;
        count(Record::received, read_before.len());
        let counted = |bytes| count(Record::received, bytes);
        match copy(&mut from_caller, &mut to_backend, counted).await {
            // The caller has said everything; the backend may still answer.
            Ok(()) => to_backend.close().await.map_err(Over::Broken)?,
            Err(Side::From(error)) => return Err(Over::CallerGone(error)),
            Err(Side::To(error)) => return Err(Over::Broken(error)),
        }
        std::future::pending().await
    };
    let down = async {
        let counted = |bytes| count(Record::sent, bytes);
        match copy(&mut from_backend, &mut to_caller, counted).await {
            Ok(()) => Ok(()),
            Err(Side::From(error)) => Err(Over::Broken(error)),
            Err(Side::To(error)) => Err(Over::CallerGone(error)),
        }
    };
    let gone = async {
        watch.broken().await;
        Err(Over::CallerGone(io::ErrorKind::ConnectionReset.into()))
    };
    let cut = async { Err(Over::Broken(io::Error::other(pass.cut().await.text))) };
    let over = down.or(up).or(gone).or(cut).await;
    if let Some(record) = written.get() {
        record.ended(match &over {
            // Whoever is done with a terminal or a forwarded port hangs up.
            Ok(()) | Err(Over::CallerGone(_)) => RequestOutcome::Done,
            Err(Over::Broken(_)) => RequestOutcome::Failed,
        });
    }
    match over {
        Ok(()) => {
            let moment = clock::now().mono.after(LAST_WORD_WITHIN);
            let closed = until(moment, to_caller.close()).await;
            log::trace!("proxy: a switched stream is over: {closed:?}");
        }
        // Dropped without a close: the caller sees a reset and not a clean end.
        Err(Over::CallerGone(error) | Over::Broken(error)) => {
            log::debug!("proxy: a switched stream broke: {error}");
        }
    }
}

/// Reasons why a stream ended before the backend had said everything.
enum Over {
    CallerGone(io::Error),
    Broken(io::Error),
}

/// The side of a copy that broke.
enum Side {
    From(io::Error),
    To(io::Error),
}

/// Carries bytes one way until there are no more.
async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    counted: impl Fn(usize),
) -> Result<(), Side> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut in_a_row = 0;
    loop {
        let count = from.read(&mut piece).await.map_err(Side::From)?;
        if count == 0 {
            return Ok(());
        }
        let read = piece.get(..count).unwrap_or_default();
        to.write_all(read).await.map_err(Side::To)?;
        to.flush().await.map_err(Side::To)?;
        counted(count);
        in_a_row += 1;
        if in_a_row >= PIECES_A_TURN {
            in_a_row = 0;
            yield_now().await;
        }
    }
}
