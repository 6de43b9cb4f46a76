//! Last lines of failed containers: read once from the cluster and stored, because the container
//! may be gone later.

use std::{collections::BTreeSet, rc::Rc, time::Duration};

use smol::{
    Timer,
    channel::{Receiver, Sender, bounded},
};

use crate::{
    core::{
        event::LogLine, health::Severity, last_words::Quota, lines::Lines, order::GatherExt as _,
        time::Wall,
    },
    kube::{Client, Error},
    store::telemetry::Handle,
    tasks::state::SharedState,
    wire::kube::Pod,
};

/// Containers that wait to be asked for: more that fail at once are told by the events of the
/// cluster.
const WAITING_MAX: usize = 16;
/// Time between two of them, so that a cluster in which everything fails is not asked for all of it
/// at once.
const EVERY: Duration = Duration::from_secs(10);
/// Time for one container.
const WITHIN: Duration = Duration::from_secs(10);
/// Lines that are kept of each end.
const LINES_MAX: usize = 20;
/// Characters of each line.
const LINE_CHARS_MAX: usize = 500;
/// Bytes that are asked for them.
const BYTES_MAX: usize = 64 * 1024;
/// The condition of logs that may not be read.
const HIDDEN: &str = "cluster.logs-hidden";

/// A container that failed.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Failed {
    namespace: String,
    pod: String,
    container: String,
}

/// Reports failures.
#[derive(Clone, Debug)]
pub struct FailureSender(Sender<Failed>);

/// Channel from the observer of failures to the reader of logs.
pub fn channel() -> (FailureSender, Receiver<Failed>) {
    let (sender, receiver) = bounded(WAITING_MAX);
    (FailureSender(sender), receiver)
}

impl FailureSender {
    /// A container of this Pod was started again, or ended for good.
    pub fn restarted(&self, pod: &Pod) {
        for container in pod.failed_containers() {
            let failed = Failed {
                namespace: pod.metadata.namespace.clone(),
                pod: pod.metadata.name.clone(),
                container: container.to_owned(),
            };
            // Full: others are being asked for, and this one fails again.
            self.0.try_send(failed).ok();
        }
    }
}

/// Asks for ever. `fix` is what gives the agent the right to.
pub async fn run(
    client: &Client,
    failures: &Receiver<Failed>,
    (samples, shared_state): (&Handle, &Rc<SharedState>),
    fix: &str,
) {
    let mut quota = Quota::default();
    while let Ok(first) = failures.recv().await {
        let mut asked: BTreeSet<_> = std::iter::once(first).gather();
        while let Ok(more) = failures.try_recv() {
            asked.insert(more);
        }
        for failed in asked {
            if shared_state.stands_by() {
                continue;
            }
            if !quota.admits(&failed.subject(), shared_state.now().mono) {
                log::debug!(
                    "the last lines of {} are not read: the limit per hour is reached skipped={}",
                    failed.subject(),
                    quota.skipped()
                );
                continue;
            }
            ask(client, &failed, (samples, shared_state), fix).await;
            Timer::after(EVERY).await;
        }
    }
}

async fn ask(
    client: &Client,
    failed: &Failed,
    (samples, shared_state): (&Handle, &Rc<SharedState>),
    fix: &str,
) {
    match read(client, failed).await {
        Ok(lines) => {
            shared_state.clear(HIDDEN);
            let lines = failed.lines(&lines, shared_state.now().wall);
            if let Err(failure) = samples.note_logs(lines).await {
                log::debug!("the last lines of {} were not kept: {failure}", failed.pod);
            }
        }
        Err(error) if error.is_forbidden() => {
            let sentence = "the agent may not read logs of the cluster, so the last lines of failed containers are not stored";
            shared_state.report(HIDDEN, Severity::Note, sentence, Some(fix.to_owned()));
        }
        // The Pod is gone already, or the API is away: others say that.
        Err(error) => log::debug!("the last lines of {}: {error}", failed.pod),
    }
}

async fn read(client: &Client, failed: &Failed) -> Result<String, Error> {
    let Failed {
        namespace,
        pod,
        container,
    } = failed;
    let path = format!(
        "/api/v1/namespaces/{namespace}/pods/{pod}/log?container={container}&previous=true&tailLines={LINES_MAX}&limitBytes={BYTES_MAX}&timestamps=true"
    );
    let bytes = client.read(&path, WITHIN).await?;
    // The server was asked for no more, and may send more. The newest stand at the end.
    let last = bytes.len().saturating_sub(BYTES_MAX);
    let (mut lines, mut text) = (Lines::default(), String::new());
    lines.take(bytes.get(last..).unwrap_or_default(), &mut text);
    lines.finish(&mut text);
    Ok(text)
}

impl Failed {
    fn subject(&self) -> String {
        format!("{}/{}/{}", self.namespace, self.pod, self.container)
    }

    /// The last lines, each with its own time where it has one.
    fn lines(&self, text: &str, now: Wall) -> Vec<LogLine> {
        let subject = self.subject();
        let all: Vec<_> = text.lines().collect();
        let from = all.len().saturating_sub(LINES_MAX);
        let last = all.into_iter().skip(from).map(|line| {
            let stamped = line.split_once(' ');
            let stamped = stamped.and_then(|(at, rest)| Some((Wall::parse_rfc3339(at)?, rest)));
            let (at, text) = stamped.unwrap_or((now, line));
            LogLine {
                at,
                subject: subject.clone(),
                text: text.chars().take(LINE_CHARS_MAX).collect(),
            }
        });
        last.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_have_the_times_that_the_kubelet_gave_them() {
        let failed = Failed {
            namespace: "shop".to_owned(),
            pod: "web-0".to_owned(),
            container: "app".to_owned(),
        };
        let mut text = "early\n".repeat(30);
        text.push_str("2026-06-16T05:50:28.123456789Z panic: no disk\nno stamp\n");
        let lines = failed.lines(&text, Wall::from_millis(7));
        assert_eq!(lines.len(), LINES_MAX);
        let [.., one, two] = lines.as_slice() else {
            panic!("{lines:?}");
        };
        assert_eq!(one.at, Wall::from_millis(1_781_589_028_123));
        assert_eq!(
            (&*one.text, &*one.subject),
            ("panic: no disk", "shop/web-0/app")
        );
        assert_eq!((two.at, &*two.text), (Wall::from_millis(7), "no stamp"));
    }
}
