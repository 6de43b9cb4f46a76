//! The same at a terminal: what is drawn there, and what is asked there.

use std::{io::Write, os::unix::fs::PermissionsExt};

use plane::Plane;

use super::Running;
use crate::agent::{Agent, has, is_root_or_skip, put};

impl Running {
    fn types(&mut self, keys: &str) {
        let terminal = self.child.stdin.as_mut().unwrap();
        terminal.write_all(keys.as_bytes()).unwrap();
        terminal.flush().unwrap();
    }
}

/// An agent and a terminal.
fn room() -> Option<(Plane, Agent)> {
    has("script").then(|| {
        let plane = Plane::start(plane::Options::default()).unwrap();
        let agent = Agent::new(&plane);
        (plane, agent)
    })
}

#[test]
fn a_status_that_is_watched_at_a_terminal_is_drawn_until_ctrl_c() {
    let Some((_plane, mut agent)) = room() else {
        return;
    };
    agent.start();
    agent.until_linked();
    let mut watch = Running::start(agent.at_terminal(&["status", "--watch"]));
    watch.until_out("ends with ctrl-C");
    watch.until_out("\u{1b}[32m");
    // Drawn over, not below.
    let out = watch.out();
    assert!(
        out.starts_with("\u{1b}[H") && out.contains("\u{1b}[J"),
        "{out:?}"
    );
    watch.types("\u{3}");
    assert_eq!(watch.end().code(), Some(130));

    // Without colours, but drawn.
    let mut command = agent.at_terminal(&["status", "--watch"]);
    command.env("NO_COLOR", "1");
    let watch = Running::start(command);
    watch.until_out("ends with ctrl-C");
    let out = watch.out();
    assert!(out.contains("\u{1b}[H"), "{out:?}");
    for colour in ["[0m", "[1m", "[2m", "[31m", "[32m", "[33m"] {
        assert!(!out.contains(&format!("\u{1b}{colour}")), "{out:?}");
    }

    // A terminal that can do nothing gets lines.
    let mut command = agent.at_terminal(&["status", "--watch"]);
    command.env("TERM", "dumb");
    let watch = Running::start(command);
    watch.until_out("link connected");
    assert!(!watch.out().contains('\u{1b}'), "{:?}", watch.out());
}

#[test]
fn a_no_at_the_terminal_changes_nothing() {
    let Some((_plane, agent)) = room() else {
        return;
    };
    if !is_root_or_skip("repairs are root's") {
        return;
    }
    std::fs::set_permissions(agent.folder(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let tree = agent.folder().join("tree");
    let inotify = tree.join("proc/sys/fs/inotify");
    let made = tree.join("etc/sysctl.d");
    for folder in [&inotify, &made] {
        std::fs::create_dir_all(folder).unwrap();
    }
    let is_untouched = || std::fs::read_dir(&made).unwrap().next().is_none();
    put(&inotify.join("max_user_instances"), "128\n");
    put(&inotify.join("max_user_watches"), "8192\n");
    let keeper = agent.folder().join("keeper");
    let config = agent.folder().join("config.toml");
    put(&config, &format!("[keeper]\nstate_dir = {keeper:?}\n"));
    let (root, config) = (tree.display().to_string(), config.display().to_string());
    let words = [
        "doctor",
        "--fix",
        "limits.inotify",
        "--root",
        &root,
        "--config",
        &config,
    ];
    let read = || std::fs::read_to_string(inotify.join("max_user_instances")).unwrap();
    for answer in ["n\n", "\n", "\u{4}", "yeah\n"] {
        let mut fix = Running::start(agent.at_terminal(&words));
        fix.until_out("Apply this repair? [y/N]");
        fix.types(answer);
        assert_eq!(fix.end().code(), Some(0), "{answer:?}");
        assert!(fix.out().contains("skipped"), "{}", fix.out());
        assert_eq!(read(), "128\n", "{answer:?}");
        assert!(is_untouched());
    }
    let mut fix = Running::start(agent.at_terminal(&words));
    fix.until_out("Apply this repair? [y/N]");
    fix.types("\u{3}");
    assert_eq!(fix.end().code(), Some(130));
    assert_eq!(read(), "128\n");
    let mut fix = Running::start(agent.at_terminal(&words));
    fix.until_out("Apply this repair? [y/N]");
    fix.types("y\n");
    assert_eq!(fix.end().code(), Some(0));
    assert!(
        fix.out()
            .contains("undo: sudo pipeops-agent undo limits-inotify-1")
    );
    assert!(!is_untouched());
}

#[test]
fn what_is_given_up_half_way_wrote_nothing_and_a_secret_is_not_shown() {
    let Some((plane, agent)) = room() else {
        return;
    };
    let file = agent.folder().join("new/config.toml");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    let config = file.display().to_string();
    let fresh = |words: &[&str]| {
        let mut command = agent.at_terminal(words);
        for gone in [
            "PIPEOPS_TOKEN_FILE",
            "PIPEOPS_CLUSTER_NAME",
            "PIPEOPS_CONFIG",
        ] {
            command.env_remove(gone);
        }
        Running::start(command)
    };
    let words = ["up", "--config", &config, "--no-start"];
    let mut up = fresh(&words);
    up.until_out("Name of this cluster");
    up.types("\u{3}");
    assert_eq!(up.end().code(), Some(130));
    let nothing = || std::fs::read_dir(file.parent().unwrap()).unwrap().count() == 0;
    assert!(nothing());

    let mut up = fresh(&words);
    up.until_out("Name of this cluster");
    up.types("berlin-3\n");
    up.until_out("(input is hidden): ");
    up.types("\u{3}");
    assert_eq!(up.end().code(), Some(2), "{}", up.out());
    assert!(up.out().contains("cancelled"), "{}", up.out());
    assert!(nothing());

    let mut up = fresh(&words);
    up.until_out("Name of this cluster");
    up.types("berlin-3\n");
    up.until_out("(input is hidden): ");
    up.types(&format!("{}\n", plane.token()));
    assert_eq!(up.end().code(), Some(0), "{}", up.out());
    assert!(!up.out().contains(plane.token()), "{}", up.out());
    assert!(std::fs::read_to_string(&file).unwrap().contains("berlin-3"));

    // The opposite asks before it removes anything.
    let mut down = fresh(&["down", "--purge", "--config", &config]);
    down.until_out("for good? [y/N]");
    down.types("n\n");
    assert_eq!(down.end().code(), Some(1), "{}", down.out());
    assert!(down.out().contains("Nothing was removed"), "{}", down.out());
    assert!(file.exists());
}
