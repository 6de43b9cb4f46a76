//! Commands of the control plane, on the one path of every change.

use std::rc::Rc;

use super::{Apps, Asker};
use crate::{
    core::command::{Command, Verb},
    error::{Error, Result},
    store::Seen,
    wire::{
        apps::{AppArgs, ApplyWish},
        control::CommandAnswer,
        json::{self, Shape},
    },
};

impl Apps {
    /// Begins what a command asks for. Returns when its intent is on disk; how it ends is a record of the stream of outcomes.
    ///
    /// # Errors
    /// Reason why nothing was changed.
    pub async fn carry_out(self: Rc<Self>, command: &Command, args: &str) -> Result<CommandAnswer> {
        match self.store.seen_command(&command.id, command.issued).await? {
            Seen::Before => return Ok(CommandAnswer::Known),
            Seen::Forgotten => {
                return Err(Error::new("the command is not accepted")
                    .why("it is older than the oldest one that is remembered, so it may have been carried out before")
                    .fix("send it again under another id"));
            }
            Seen::Never => {}
        }
        let asker = Asker::commanding(command);
        match command.verb {
            Verb::Apply => {
                let example = r#"{"app":"web","namespace":"shop","manifests":"apiVersion: …"}"#;
                let wish = ApplyWish {
                    // What is not ours is taken over by its owner alone.
                    adopt: false,
                    ..read(args, example)?
                };
                self.apply(&wish, &asker).await?;
            }
            Verb::Restart => {
                let AppArgs { app } = read(args, r#"{"app":"web"}"#)?;
                self.restart(&app, &asker).await?;
            }
        }
        Ok(CommandAnswer::Accepted)
    }
}

/// Arguments of a command. They may hold Secrets: what cannot be read is not quoted.
fn read<W: Shape + Default>(args: &str, example: &str) -> Result<W> {
    json::shape(args.as_bytes()).map_err(|_values| {
        Error::new("the args of the command cannot be read").fix(format!("send them as {example}"))
    })
}
