//! The agent's side of a byte stream that carries yamux, and an application on it that does what
//! the first byte of a stream says:
//!
//! | byte | then | the application |
//! |---|---|---|
//! | `E` | bytes, FIN | sends back what comes, then FIN |
//! | `S` | u64 n | sends n bytes, then FIN |
//! | `N` | anything | never reads, ends with the stream |
//! | `R` | u64 n, bytes | reads n bytes and drops the stream |

use std::{cell::RefCell, future::poll_fn, io, rc::Rc, time::Duration};

use pipeops_agent::{
    core::yamux::{Load, MuxLimits},
    executor::Executor,
    host::clock,
    link::{
        mux::{Mux, MuxEnd, MuxStream},
        outlet::{Frame, Outlet},
    },
};
use smol::{
    Task, Timer,
    future::{or, yield_now},
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
};

use crate::agent::SOON;

/// The most that was seen at once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peak {
    pub(super) streams: usize,
    pub(super) buffered_bytes: usize,
    pub(super) outgoing_bytes: usize,
    pub(super) control_frames: usize,
    pub(super) tasks: usize,
}

impl Peak {
    fn look_at(&mut self, mux: &Mux, outlet: &Outlet) {
        let load = mux.load();
        self.streams = self.streams.max(load.streams);
        self.buffered_bytes = self.buffered_bytes.max(load.buffered_bytes);
        self.control_frames = self.control_frames.max(load.control_frames);
        self.outgoing_bytes = self.outgoing_bytes.max(outlet.load().1);
    }
}

/// An agent at the end of a byte stream.
pub(super) struct Agent {
    pub(super) mux: Mux,
    pub(super) outlet: Outlet,
    pub(super) peak: Rc<RefCell<Peak>>,
    _tasks: [Task<()>; 4],
}

impl Agent {
    /// Runs the application on all streams of the socket.
    pub(super) fn start(
        executor: &Rc<Executor>,
        socket: impl AsyncRead + AsyncWrite + Clone + Unpin + 'static,
        settings: MuxLimits,
    ) -> Self {
        let outlet = Outlet::new();
        let mux = Mux::new(settings, outlet.clone());
        let peak = Rc::new(RefCell::new(Peak::default()));
        let tasks = [
            executor.spawn(drive(mux.clone())),
            executor.spawn(read(
                socket.clone(),
                mux.clone(),
                outlet.clone(),
                Rc::clone(&peak),
            )),
            executor.spawn(write(socket, outlet.clone())),
            executor.spawn(accept(Rc::clone(executor), mux.clone(), Rc::clone(&peak))),
        ];
        Self {
            mux,
            outlet,
            peak,
            _tasks: tasks,
        }
    }

    /// Waits until nothing is left of any stream.
    pub(super) async fn until_empty(&self) -> Load {
        let until = clock::now().mono.after(SOON);
        loop {
            let load = self.mux.load();
            let (lanes, bytes) = self.outlet.load();
            // One lane is there as long as the session: the driver's.
            if lanes <= 1 && (load.streams, load.buffered_bytes, bytes) == (0, 0, 0) {
                return load;
            }
            let is_late = clock::now().mono >= until;
            assert!(
                !is_late,
                "not empty within {SOON:?}: {load:?}, {lanes} lanes, {bytes} bytes"
            );
            Timer::after(Duration::from_millis(2)).await;
        }
    }
}

/// Runs a test on an executor of its own, with a deadline.
pub(super) fn run<F: Future>(test: impl FnOnce(Rc<Executor>) -> F) -> F::Output {
    let executor = Rc::new(Executor::new());
    let test = test(Rc::clone(&executor));
    let late = async {
        Timer::after(Duration::from_secs(120)).await;
        panic!("the test has not ended in time")
    };
    smol::block_on(executor.run(or(test, late)))
}

async fn drive(mux: Mux) {
    let over = mux.drive().await;
    assert_eq!(over, MuxEnd::SessionLost, "no peer breaks the framing");
}

async fn read(
    mut socket: impl AsyncRead + Unpin,
    mux: Mux,
    outlet: Outlet,
    peak: Rc<RefCell<Peak>>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = socket.read(&mut buffer).await.unwrap_or(0);
        if count == 0 {
            outlet.lose();
            mux.session_lost();
            return;
        }
        mux.receive(&buffer[..count].to_vec().into());
        peak.borrow_mut().look_at(&mux, &outlet);
        // A socket that always has something would leave no turn to those who read the streams.
        yield_now().await;
    }
}

async fn write(mut socket: impl AsyncWrite + Unpin, outlet: Outlet) {
    while let Some(frame) = poll_fn(|context| outlet.poll_next(context)).await {
        let Frame::Binary(bytes) = frame else {
            panic!("not a binary message: {frame:?}");
        };
        assert!(
            bytes.len() <= 32 * 1024 + 12,
            "a message of {}",
            bytes.len()
        );
        if socket.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn accept(executor: Rc<Executor>, mux: Mux, peak: Rc<RefCell<Peak>>) {
    let mut tasks: Vec<Task<()>> = Vec::new();
    while let Some(stream) = mux.accept().await {
        tasks.retain(|task| !task.is_finished());
        tasks.push(executor.spawn(async move {
            // A stream that breaks is the peer's doing; what the peer sees is what the tests look
            // at.
            serve(stream).await.unwrap_or_default();
        }));
        let mut peak = peak.borrow_mut();
        peak.tasks = peak.tasks.max(tasks.len());
    }
}

async fn serve(mut stream: MuxStream) -> io::Result<()> {
    let mut command = [0];
    stream.read_exact(&mut command).await?;
    match command {
        [b'E'] => echo(stream).await,
        [b'S'] => {
            let mut left = number(&mut stream).await?;
            let block = vec![0x5a; 32 * 1024];
            while left > 0 {
                let part = left.min(block.len());
                stream.write_all(&block[..part]).await?;
                left -= part;
            }
            stream.close().await
        }
        [b'N'] => {
            stream.watch().ended().await;
            Ok(())
        }
        [b'R'] => {
            let mut read = vec![0; number(&mut stream).await?];
            stream.read_exact(&mut read).await
        }
        other => panic!("unknown command {other:?}"),
    }
}

async fn number(stream: &mut MuxStream) -> io::Result<usize> {
    let mut number = [0; 8];
    stream.read_exact(&mut number).await?;
    Ok(usize::try_from(u64::from_be_bytes(number)).unwrap())
}

async fn echo(mut stream: MuxStream) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return stream.close().await;
        }
        stream.write_all(&buffer[..count]).await?;
    }
}
