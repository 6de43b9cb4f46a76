//! Containers that run already: attach, and a container that is added to look into a Pod.

use super::{
    bench::{Bench, Form, Upgrade},
    running::Running,
};
use crate::{agent::SOON, cluster::variable};

/// Says each line of its input on one output, and that it did on the other.
const PARROT: &str =
    "echo ready; while read line; do echo \"heard $line\"; echo \"noted $line\" >&2; done";

#[test]
fn attach_and_debug_reach_a_pod_that_runs() {
    let Some(mut bench) = Bench::calm() else {
        return;
    };
    let image = format!("--image={}", variable("IMAGE"));
    bench.use_form(Form::Streams);
    let run = ["run", "parrot", "-n", "fixtures", &image, "--stdin"];
    let how = [
        "--image-pull-policy=Never",
        "--attach=false",
        "--leave-stdin-open",
        "--restart=Never",
    ];
    let parrot = ["--command", "--", "sh", "-c", PARROT];
    bench.text(&[&run[..], &how, &parrot].concat());
    let ready = ["pod/parrot", "-n", "fixtures", "--for=condition=Ready"];
    bench.text(&[&["wait", "--timeout=30s"], &ready[..]].concat());
    bench.in_both_forms(|bench, form| {
        for upgrade in Upgrade::of(form) {
            let attach = bench.kubectl(&["attach", "-i", "parrot", "-n", "fixtures"]);
            let mut attach = Running::start(upgrade.on(attach));
            for word in ["one", "two"] {
                attach.say(&format!("{word}\n"));
                let heard = format!("heard {word}");
                let noted = format!("noted {word}");
                let first = attach.line("an echo", |line| line == heard || line == noted);
                attach.line("the other one", |line| {
                    line != first && (line == heard || line == noted)
                });
            }
            attach.interrupt();
            attach.ends(SOON);
            let name = format!("--container=look-{form:?}-{upgrade:?}").to_lowercase();
            let debug = ["debug", "parrot", "-n", "fixtures", "-i", &image, &name];
            let how = ["--image-pull-policy=Never", "--profile=general", "--quiet"];
            let look = [
                "--",
                "sh",
                "-c",
                // The container runtime may drop what a container wrote right before it ended.
                "read word; echo \"looked for $word\"; read word; exit 0",
            ];
            let debug = bench.kubectl(&[&debug[..], &how, &look].concat());
            let mut debug = Running::start(upgrade.on(debug));
            debug.say("it\n");
            debug.line("what it read", |line| line.contains("looked for it"));
            debug.say("enough\n");
            assert_eq!(debug.ends(SOON).code(), Some(0), "{form:?} {upgrade:?}");
        }
    });
    let delete = [
        "delete",
        "pod",
        "parrot",
        "-n",
        "fixtures",
        "--force",
        "--grace-period=0",
    ];
    bench.text(&delete);
}
