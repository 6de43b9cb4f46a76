//! `apps replay`: the verdict on a recorded rollout, from the same observations and the same rules.

use serde_json::json;

use super::super::{
    args::Args,
    output::{Output, Tone, indented, printable},
    table::{Argument, Command, JSON, Need, Takes},
};
use crate::{
    core::{
        rollout::{self, JudgedRollout, RolloutVerdict},
        time::{Mono, in_words},
    },
    error::{Error, Exit, Result},
    files,
    wire::rollout::{read, shown},
};

/// The largest recording: an hour of a rollout with a hundred Pods takes 20 MB.
const FILE_BYTES_MAX: usize = 64 << 20;

/// `apps replay`.
pub(super) static COMMAND: Command = Command {
    name: "replay",
    about: "Judge a recorded rollout again",
    options: &[JSON],
    arguments: &[Argument {
        name: "FILE",
        takes: Takes::File,
        need: Need::One,
        help: "Recording of a rollout: a line of JSON for each observation",
    }],
    notes: "It needs neither an agent nor a cluster: the same recording gives the same verdict.",
    examples: &["pipeops-agent apps replay tests/data/rollouts/crash-exit-1.jsonl"],
    exit: "0 good, 1 bad, 2 neither, or the recording cannot be read.",
    run: Some(replay),
    ..Command::BARE
};

fn replay(args: &Args, output: &mut Output) -> Result<Exit> {
    let path = args.path("FILE").unwrap_or_default();
    let cannot = || Error::new(format!("cannot read the recording {}", path.display()));
    let content = files::read(&path, FILE_BYTES_MAX)?;
    let text = String::from_utf8(content).map_err(|error| cannot().because(&error.utf8_error()))?;
    let recording = read(&text).map_err(|why| cannot().why(why))?;
    let mut wrong = None;
    let frames = recording
        .frames()
        .map_while(|frame| frame.map_err(|why| wrong = Some(why)).ok());
    let mut judged = rollout::replay(&recording.scope, frames);
    if let Some(why) = wrong {
        return Err(cannot().why(why));
    }
    // The sentence of a soak counts down every second.
    judged.dedup_by(|(_, next), (_, step)| {
        let cause = |step: &JudgedRollout| step.finding.as_ref().map(|found| found.cause);
        (next.verdict, cause(next)) == (step.verdict, cause(step))
    });
    let Some((_, last)) = judged.last() else {
        return Err(cannot().why("it holds no observation"));
    };
    if args.has(JSON.long) {
        let steps: Vec<_> = judged
            .iter()
            .map(|(at, step)| at_moment(*at, step))
            .collect();
        output.json(&json!({ "steps": steps }));
    } else {
        for (at, step) in &judged {
            output.line(&step_line(*at, step, output));
        }
        if let Some(found) = &last.finding {
            for (name, text) in [
                ("object", &found.object),
                ("seen", &found.evidence),
                ("fix", &found.fix),
            ] {
                if !text.is_empty() {
                    output.line(&format!("  {name}: {}", indented(text)));
                }
            }
        }
    }
    Ok(exit(last.verdict))
}

fn at_moment(at: Mono, step: &JudgedRollout) -> serde_json::Value {
    let mut shown = shown(step);
    if let Some(fields) = shown.as_object_mut() {
        let at_ms = u64::try_from(at.elapsed_since_boot().as_millis()).unwrap_or(u64::MAX);
        fields.insert("at_ms".to_owned(), json!(at_ms));
    }
    shown
}

fn step_line(at: Mono, step: &JudgedRollout, output: &Output) -> String {
    let word = output.toned(tone(step.verdict), step.verdict.as_str());
    let at = in_words(at.elapsed_since_boot());
    format!("{at:>8}  {word}: {}", printable(&step.sentence))
}

/// Colour of a verdict.
pub(super) const fn tone(verdict: RolloutVerdict) -> Tone {
    match verdict {
        RolloutVerdict::Good => Tone::Good,
        RolloutVerdict::Bad => Tone::Bad,
        RolloutVerdict::Waiting
        | RolloutVerdict::Progressing
        | RolloutVerdict::Blind
        | RolloutVerdict::Soaking
        | RolloutVerdict::Paused => Tone::Strong,
    }
}

/// Exit code of a verdict.
pub(super) const fn exit(verdict: RolloutVerdict) -> Exit {
    match verdict {
        RolloutVerdict::Good => Exit::Fine,
        RolloutVerdict::Bad => Exit::Problem,
        RolloutVerdict::Waiting
        | RolloutVerdict::Progressing
        | RolloutVerdict::Blind
        | RolloutVerdict::Soaking
        | RolloutVerdict::Paused => Exit::CouldNotRun,
    }
}
