//! Client of the root helper on its socket: one request, one response, and an error if it is not
//! running.

use std::{io, path::Path, time::Duration};

use smol::{
    Timer,
    future::FutureExt as _,
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::UnixStream,
};

use crate::{
    error::{Error, Result, Retry},
    wire::{
        api::{ChangeList, ChangeReport, ErrorBody},
        json::{self, Shape},
        keeper::{Ask, Done, Inspection, LINE_BYTES_MAX, Pinned, Plan},
    },
};

/// A fix may run `update-grub`, and another one may be under way before it.
const CHANGE_WITHIN: Duration = Duration::from_secs(620);
/// Reading takes a moment, and waits for no more than one program that hangs.
const LOOK_WITHIN: Duration = Duration::from_secs(20);

/// The way to the root helper.
#[derive(Clone, Copy, Debug)]
pub struct Keeper<'a> {
    socket: &'a Path,
}

impl<'a> Keeper<'a> {
    /// The one that listens at `socket`.
    pub const fn at(socket: &'a Path) -> Self {
        Self { socket }
    }

    /// Facts that only root can read.
    pub async fn inspect(self) -> Result<Inspection> {
        self.ask(&ask("inspect"), LOOK_WITHIN).await
    }

    /// Describes a fix on this machine now.
    pub async fn plan(self, check: &str) -> Result<Plan> {
        let ask = Ask {
            check: Some(check.to_owned()),
            ..ask("plan")
        };
        self.ask(&ask, LOOK_WITHIN).await
    }

    /// Repairs what a check found.
    pub async fn fix(self, check: &str) -> Result<Done> {
        let ask = Ask {
            check: Some(check.to_owned()),
            ..ask("fix")
        };
        self.ask(&ask, CHANGE_WITHIN).await
    }

    /// Takes a change back.
    pub async fn undo(self, change: &str) -> Result<Done> {
        let ask = Ask {
            change: Some(change.to_owned()),
            ..ask("undo")
        };
        self.ask(&ask, CHANGE_WITHIN).await
    }

    /// Its changes, newest first.
    pub async fn changes(self) -> Result<Vec<ChangeReport>> {
        let list: ChangeList = self.ask(&ask("changes"), LOOK_WITHIN).await?;
        Ok(list.changes)
    }

    /// Pins these images on this node, and takes the pin off all others that it pinned before.
    pub async fn pin(self, images: Vec<String>) -> Result<Pinned> {
        let ask = Ask {
            images: Some(images),
            ..ask("pin")
        };
        self.ask(&ask, CHANGE_WITHIN).await
    }

    async fn ask<T: Shape + Default>(self, ask: &Ask, within: Duration) -> Result<T> {
        let talk = async { self.talk(ask).await.map_err(|error| self.silent(&error)) };
        let late = async {
            Timer::after(within).await;
            let why = format!("no answer within {} s", within.as_secs());
            Err(Error::new("the root helper does not answer")
                .why(why)
                .fix("journalctl -u pipeops-keeper -n 50 (with OpenRC: tail -n 50 /var/log/pipeops-keeper.log)")
                .retry(Retry::Later))
        };
        understood(&talk.or(late).await?)
    }

    async fn talk(self, ask: &Ask) -> io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(self.socket).await?;
        let mut line = serde_json::to_vec(ask)?;
        line.push(b'\n');
        // One that is not served is told so before it has said anything: its answer is there to be
        // read all the same.
        let sent = stream.write_all(&line).await;
        let mut answer = Vec::new();
        let limit = u64::try_from(LINE_BYTES_MAX)
            .unwrap_or(u64::MAX)
            .saturating_add(1);
        let read = stream.take(limit).read_to_end(&mut answer).await;
        if answer.is_empty() {
            sent?;
            read?;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(answer)
    }

    fn silent(self, error: &io::Error) -> Error {
        let is_down = matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
        );
        if is_down {
            return Error::new("the root helper is not running")
                .why(format!("nothing listens at {}", self.socket.display()))
                .fix("run the command as root (sudo), which does not need it; or start it: sudo systemctl start pipeops-keeper (with OpenRC: sudo rc-service pipeops-keeper start)")
                .retry(Retry::Later);
        }
        let refusal = Error::new(format!(
            "cannot connect to the root helper at {}",
            self.socket.display()
        ));
        refusal.because(error).fix("run the command with sudo")
    }
}

fn ask(verb: &str) -> Ask {
    Ask {
        verb: verb.to_owned(),
        ..Ask::default()
    }
}

fn understood<T: Shape + Default>(answer: &[u8]) -> Result<T> {
    let odd = |error: &serde_json::Error| {
        Error::new("the answer of the root helper is not valid")
            .because(error)
            .fix("restart it after an update: sudo systemctl restart pipeops-keeper (with OpenRC: sudo rc-service pipeops-keeper restart)")
    };
    let refusal: ErrorBody = json::shape(answer).map_err(|error| odd(&error))?;
    if refusal.error.is_empty() {
        return json::shape(answer).map_err(|error| odd(&error));
    }
    Err(Error {
        fix: refusal.fix,
        ..Error::new(refusal.error)
    })
}
