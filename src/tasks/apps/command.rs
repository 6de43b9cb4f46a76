//! Commands of the control plane, on the one path of every change.

use std::{collections::BTreeSet, rc::Rc};

use serde_json::Value;

use super::{
    Apps, Automation, Requester,
    cancel::CANCELLED,
    ledger::api_error,
    redact::{WITHIN, secrets},
};
use crate::{
    core::{
        apps::{App, Owner},
        command::{Command, Verb},
        journal::{ChangeStep, Intent, Journal, Outcome, StepState},
        rollout::shown_log,
        secret::Secret,
        time::Wall,
    },
    error::{Error, Result, Retry},
    kube::query_escaped,
    net::deadline,
    store::CommandHistory,
    wire::{
        apps::{
            AppArgs, ApplyRequest, GitArgs, GitPlace, LogRequest, RollbackRequest, SourceRequest,
        },
        edge::bodies::LOG_BYTES_MAX,
        json::{self, Shape},
    },
};

/// Example of arguments that name an app and nothing else.
const NAME: &str = r#"{"app":"web"}"#;
/// Example of arguments that name a repository.
const FROM_GIT: &str = r#"{"app":"web","namespace":"shop","git":{"url":"https://git.example/shop/web.git","ref":"main","path":"deploy"}}"#;
/// Lines of a log where no number is named, and at most.
const LINES: u64 = 100;
const LINES_MAX: u64 = 1_000;
/// Bytes of a log that are read for its end.
const READ_BYTES_MAX: usize = 1 << 20;

impl Apps {
    /// Memory of a command, by its id and the time that it was issued.
    ///
    /// # Errors
    /// The disk does not say it.
    pub async fn seen_command(&self, id: &str, issued: Wall) -> Result<CommandHistory> {
        Ok(self.store.seen_command(id, issued).await?)
    }

    /// Begins what a command asks for that was never accepted. Returns when its intent is on disk;
    /// how it ends is a record of the stream of outcomes.
    ///
    /// # Errors
    /// Reason why nothing was changed.
    pub async fn carry_out(self: Rc<Self>, command: &Command, args: &str) -> Result<()> {
        let requester = Requester::commanding(command);
        match command.verb {
            Verb::Apply => {
                let example = r#"{"app":"web","namespace":"shop","manifests":"apiVersion: …"}"#;
                let request = ApplyRequest {
                    // What is not ours is taken over by its owner alone.
                    adopt: false,
                    ..read(args, example)?
                };
                match read::<GitArgs>(args, FROM_GIT)?.git {
                    None => drop(Box::pin(self.apply(&request, &requester)).await?),
                    Some(git) => {
                        let request = source(request, git)?;
                        drop(Box::pin(self.follow(&request.0, &request.1, &requester)).await?);
                    }
                }
            }
            Verb::Rollback => {
                let example = r#"{"app":"web","to":3}"#;
                let (AppArgs { app }, request) = (read(args, example)?, read(args, example)?);
                let RollbackRequest { to, auto } = request;
                if !auto.is_empty() {
                    let fix = "on the machine: sudo pipeops-agent apps rollback NAME --auto on|off";
                    let what = "a command cannot turn automatic rollback on or off";
                    return Err(Error::new(what).fix(fix));
                }
                self.rollback(&app, to, &requester).await?;
            }
            Verb::Scale => {
                let example = r#"{"app":"web","to":3}"#;
                let AppArgs { app } = read(args, example)?;
                self.scale(&app, &read(args, example)?, &requester).await?;
            }
            Verb::Logs => {
                let example = r#"{"app":"web","lines":100,"previous":false}"#;
                let AppArgs { app } = read(args, example)?;
                let log = self.log(&app, &read(args, example)?, &requester).await?;
                self.note(command, "it was read", Some(log)).await?;
            }
            Verb::Restart => {
                let AppArgs { app } = read(args, NAME)?;
                self.restart(&app, &requester).await?;
            }
            Verb::Remove => {
                let AppArgs { app } = read(args, NAME)?;
                self.start_removal(&app, &requester).await?;
            }
            Verb::Cancel => {
                let AppArgs { app } = read(args, NAME)?;
                let answer = Rc::clone(&self).cancel(&app, &requester).await?;
                let text = |name| answer.get(name).and_then(Value::as_str).unwrap_or_default();
                if text("state") == CANCELLED {
                    self.note(command, text("sentence"), None).await?;
                }
            }
            // Twice is the same as once, so a power cut before the note costs nothing: nobody was
            // told, and the command comes again.
            Verb::Pause => {
                let AppArgs { app } = read(args, NAME)?;
                self.automate(&app, Automation::Paused, &requester).await?;
                self.note(command, "it is paused", None).await?;
            }
            Verb::Resume => {
                let AppArgs { app } = read(args, NAME)?;
                let answer = self.automate(&app, Automation::Resumed, &requester);
                let answer = answer.await?;
                let why = answer.get("sentence").and_then(Value::as_str);
                self.note(command, why.unwrap_or_default(), None).await?;
            }
        }
        Ok(())
    }

    /// Writes down a command that was carried out at once. Its intent has no body: there is nothing
    /// left to go on with.
    async fn note(
        &self,
        command: &Command,
        why: &str,
        seen: Option<(String, String)>,
    ) -> Result<()> {
        let now = self.now().wall;
        let intent = Intent {
            origin: Owner::ControlPlane.as_str().to_owned(),
            kind: command.verb.as_str().to_owned(),
            body: String::new(),
        };
        let journal = Journal::new();
        let lock = journal
            .lock(&command.id)
            .map_err(|occupied| Error::new(format!("{} is under way", occupied.by)))?;
        let store = self.store();
        store
            .begin_command(&lock, intent, command.issued, now)
            .await?;
        if let Some((name, detail)) = seen {
            let step = ChangeStep {
                position: 0,
                name,
                state: StepState::Intended,
                undo: None,
                detail: Some(detail),
            };
            store.intend_step(&lock, step, now).await?;
            for state in [StepState::Acted, StepState::Verified, StepState::Done] {
                store.advance_step(&lock, (0, state), None, now).await?;
            }
        }
        self.finish(&command.id, Outcome::Done, why).await
    }

    /// The end of the log of the Pod that says most, with its name.
    async fn log(
        &self,
        app: &str,
        request: &LogRequest,
        requester: &Requester,
    ) -> Result<(String, String)> {
        self.require_leadership().await?;
        let read = self.require_record(app).await?;
        requester.owns(&read)?;
        let pods = self.pod_lines(app).await?;
        let Some(pod) = pods.first() else {
            return Err(Error::new(format!("{app} has no Pod"))
                .fix("the outcome of its last change says why"));
        };
        let container = match request.container.as_str() {
            "" => pod
                .containers
                .first()
                .map(String::as_str)
                .unwrap_or_default(),
            named => named,
        };
        let query = format!(
            "container={}&tailLines={}&limitBytes={READ_BYTES_MAX}&previous={}",
            query_escaped(container),
            request.lines.unwrap_or(LINES).min(LINES_MAX),
            request.previous
        );
        let place = (pod.namespace.as_str(), pod.name.as_str());
        let hidden = self.hidden_in_logs(&read.app).await?;
        let bytes = self.cluster(read.app.owner).log(place, &query).await?;
        let text = shown_log(&bytes, bytes.len() < READ_BYTES_MAX, &hidden);
        // The end says most.
        let from = text.ceil_char_boundary(text.len().saturating_sub(LOG_BYTES_MAX));
        let text = text.get(from..).unwrap_or_default().to_owned();
        let name = format!("log of Pod {}/{}, {container}", pod.namespace, pod.name);
        Ok((name, text))
    }

    /// Values of the Secrets that the Pods of an app may have written into their logs.
    pub(super) async fn hidden_in_logs(&self, app: &App) -> Result<Vec<Secret>> {
        let mut manifests = Vec::new();
        // Until a version is good, its Pods may be those of the one before.
        for number in BTreeSet::from([app.running, app.good]) {
            let kept = self.ledger().manifests(&app.name, number).await;
            manifests.extend(kept.map_err(api_error)?.unwrap_or_default());
        }
        let cluster = self.cluster(app.owner);
        let reading = secrets(&cluster, (&manifests, &app.namespace));
        let known = deadline(WITHIN, Box::pin(reading)).await;
        known
            .unwrap_or_else(|_elapsed| {
                let what = "the Secrets that it may hold could not be read in time";
                Err(Error::new(what).retry(Retry::Soon))
            })
            .map_err(|error| error.within(format!("the log of {} is not shown", app.name)))
    }
}

/// App and repository that a command names. Credentials are those of the owner of the machine.
fn source(request: ApplyRequest, git: GitPlace) -> Result<(String, SourceRequest)> {
    if git.url.is_empty() || !request.manifests.is_empty() {
        return Err(Error::new("nothing was deployed")
            .why("an app comes from manifests or from the url of a repository, not from both")
            .fix(format!("send them as {FROM_GIT}")));
    }
    let source = SourceRequest {
        git: git.url,
        reference: git.reference,
        path: git.path,
        credentials: String::new(),
        namespace: request.namespace,
        prune_most: request.prune_most,
    };
    Ok((request.app, source))
}

/// Arguments of a command. They may hold Secrets: what cannot be read is not quoted.
fn read<W: Shape + Default>(args: &str, example: &str) -> Result<W> {
    json::shape(args.as_bytes()).map_err(|_values| {
        Error::new("the args of the command cannot be read").fix(format!("send them as {example}"))
    })
}
