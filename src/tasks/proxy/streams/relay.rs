//! Raw bytes both ways after a 101: exec, attach, port-forward, and whatever an application speaks.

use std::{cell::OnceCell, io, rc::Rc};

use hyper::body::Bytes;
use smol::{
    future::{FutureExt as _, yield_now},
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
};

use crate::{
    host::clock,
    kube::UpgradedStream,
    link::mux::MuxStream,
    tasks::proxy::{audit::Record, gate::Pass, upstream::until},
};

use super::LAST_WORD_WITHIN;

/// What is read at once. The frames of a stream are not larger.
const PIECE_BYTES: usize = 16 * 1024;
/// Pieces in a row before other tasks get a turn.
const PIECES_A_TURN: u32 = 16;

/// What follows a 101.
pub(super) struct Switched {
    pub(super) stream: UpgradedStream,
    pub(super) pass: Pass,
    pub(super) book: Rc<OnceCell<Record>>,
}

/// Carries bytes until the backend has said everything, or the caller is gone.
pub(super) async fn run(stream: MuxStream, read_before: Bytes, switched: Switched) {
    let Switched {
        stream: backend,
        pass,
        book,
    } = switched;
    let watch = stream.watch();
    let (mut from_caller, mut to_caller) = smol::io::split(stream);
    let (mut from_backend, mut to_backend) = smol::io::split(backend);
    let count = |count: fn(&Record, usize), bytes| {
        if let Some(record) = book.get() {
            count(record, bytes);
        }
    };
    let up = async {
        to_backend.write_all(&read_before).await?;
        count(Record::received, read_before.len());
        let counted = |bytes| count(Record::received, bytes);
        copy(&mut from_caller, &mut to_backend, counted).await?;
        // The caller has said everything; the backend may still answer.
        to_backend.close().await?;
        std::future::pending::<io::Result<()>>().await
    };
    let down = async {
        let counted = |bytes| count(Record::sent, bytes);
        copy(&mut from_backend, &mut to_caller, counted).await
    };
    let gone = async {
        watch.broken().await;
        Err(io::ErrorKind::ConnectionReset.into())
    };
    let cut = async { Err(io::Error::other(pass.cut().await.text)) };
    let over = down.or(up).or(gone).or(cut).await;
    if let Some(record) = book.get() {
        record.ended(if over.is_ok() { "done" } else { "failed" });
    }
    match over {
        Ok(()) => {
            let moment = clock::now().mono.after(LAST_WORD_WITHIN);
            let closed = until(moment, to_caller.close()).await;
            log::trace!("proxy: a switched stream is over: {closed:?}");
        }
        // Dropped without a close: the caller sees a reset and not a clean end.
        Err(error) => log::debug!("proxy: a switched stream broke: {error}"),
    }
}

/// Carries bytes one way until there are no more.
async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    counted: impl Fn(usize),
) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut in_a_row = 0;
    loop {
        let count = from.read(&mut piece).await?;
        if count == 0 {
            return Ok(());
        }
        let read = piece.get(..count).unwrap_or_default();
        to.write_all(read).await?;
        to.flush().await?;
        counted(count);
        in_a_row += 1;
        if in_a_row >= PIECES_A_TURN {
            in_a_row = 0;
            yield_now().await;
        }
    }
}
