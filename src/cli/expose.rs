//! `dashboard expose`: opens the dashboard to other machines, and closes it again.

use std::{net::SocketAddr, time::Duration};

use serde_json::{Value, json};
use smol::{Timer, block_on};

use super::{
    args::Args,
    install::{self, Basis, Plan},
    load,
    output::{Output, printable},
    service,
    socket::{self, Ask},
    status,
    table::{Command, Opt, Takes},
    view::View,
};
use crate::{
    config::Loaded,
    error::{Error, Exit, Result},
    host::clock,
    wire::api::STATUS_PATH,
};

/// The setting.
const KEY: &str = "dashboard.listen";
/// The port where the settings name none.
const USUAL_PORT: u16 = 7480;
/// Deadline for a restarted agent to open the page: opening databases on a slow card takes long.
const OPENS_WITHIN: Duration = Duration::from_secs(45);
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// `dashboard expose`.
pub(super) static COMMAND: Command = Command {
    name: "expose",
    about: "Make the dashboard reachable from other machines over TLS with a login, or undo that",
    options: &[
        Opt::value(
            "listen",
            Takes::Text,
            "ADDRESS:PORT",
            "Address and port to listen on (default: all addresses, current port)",
        )
        .against("off"),
        Opt::flag("off", "Listen on this machine only"),
        Opt::flag(
            "no-start",
            "Write the setting without restarting the service",
        ),
    ],
    notes: "It writes dashboard.listen to a file in config.d and restarts the agent.\n\
            Without dashboard.cert_file the agent creates a certificate: the browser warns once, and you compare the fingerprint.\n\
            The file of dashboard.key_file must belong to the agent's user with mode 600: members of its group may view the page, but must not get the key.\n\
            A login is required: pipeops-agent dashboard token, or dashboard password.",
    examples: &[
        "sudo pipeops-agent dashboard expose",
        "sudo pipeops-agent dashboard expose --listen 192.0.2.7:7480",
        "sudo pipeops-agent dashboard expose --off",
    ],
    exit: "0 success, 1 the agent was started but does not serve the dashboard, 2 the command could not run.",
    run: Some(expose),
    ..Command::BARE
};

fn expose(args: &Args, output: &mut Output) -> Result<Exit> {
    let (file, before) = install::now(args);
    let listen = wanted(args, &before)?;
    install::check_may_write(&file, "dashboard expose")?;
    let keys = vec![install::override_of(KEY, listen.to_string(), "--listen")];
    let plan = Plan::new(file, keys, Basis::Process, output)?;
    let written = plan.write_keys()?;
    check_that_it_holds(args, &listen.to_string())?;
    let line = if args.has("no-start") {
        None
    } else {
        install::start(&plan)?
    };
    let is_started = !args.has("no-start") && line.is_none();
    let dashboard = if is_started {
        opened(args, output, listen)?
    } else {
        None
    };
    if args.has("json") {
        output.json(&json!({
            "settings": written, "listen": listen.to_string(), "started": is_started, "run": line, "dashboard": dashboard,
        }));
    } else {
        if let Some(written) = written {
            output.line(&format!("Setting written to {}.", written.display()));
        }
        if let Some(line) = line {
            output.line(&format!(
                "No service is installed. Restart the agent: {line}"
            ));
        }
        match &dashboard {
            Some(dashboard) => {
                for line in lines(View::new(dashboard), listen) {
                    output.line(&printable(&line));
                }
            }
            None if listen.ip().is_loopback() => {}
            None => output.line("Then: pipeops-agent status; sudo pipeops-agent dashboard token"),
        }
    }
    Ok(if is_started && dashboard.is_none() {
        Exit::Problem
    } else {
        Exit::Fine
    })
}

/// The address that is to be set.
fn wanted(args: &Args, before: &Loaded) -> Result<SocketAddr> {
    let shown = before.shown();
    let now = shown.iter().find(|shown| shown.key.path == KEY);
    let now: Option<SocketAddr> = now.and_then(|now| now.value.as_deref()?.parse().ok());
    let port = now.map_or(USUAL_PORT, |now| now.port());
    if args.has("off") {
        return Ok(([127, 0, 0, 1], port).into());
    }
    let Some(text) = args.text("listen") else {
        return Ok(now
            .filter(|now| !now.ip().is_loopback())
            .unwrap_or_else(|| ([0, 0, 0, 0], port).into()));
    };
    let fix = "write it like 0.0.0.0:7480, [::]:7480 or 192.0.2.7:7480";
    let listen: SocketAddr = text.parse().map_err(|_no_address| {
        Error::new(format!("{text:?} is not an address with a port")).fix(fix)
    })?;
    if listen.ip().is_loopback() {
        return Err(
            Error::new(format!("{listen} is not reachable from other machines"))
                .fix(format!("{fix}; to undo it: --off")),
        );
    }
    Ok(listen)
}

/// Refuses an address that a later file or the environment overrides.
fn check_that_it_holds(args: &Args, listen: &str) -> Result<()> {
    let (_, after) = install::now(args);
    let shown = after.shown();
    match shown.iter().find(|shown| shown.key.path == KEY) {
        Some(now) if now.value.as_deref() != Some(listen) => {
            Err(Error::new(format!("{KEY} is not {listen}"))
                .why(format!("{} overrides it", now.origin))
                .fix("remove it there, then try again"))
        }
        Some(_) | None => Ok(()),
    }
}

/// The agent's report on the page, once it is at the address. `None`, with a warning, at the
/// deadline.
fn opened(args: &Args, output: &mut Output, listen: SocketAddr) -> Result<Option<Value>> {
    let is_for_others = !listen.ip().is_loopback();
    let sockets = socket::candidates(args, &load(args));
    let until = clock::now().mono.after(OPENS_WITHIN);
    loop {
        let is_late = until.since(clock::now().mono).is_zero();
        let asked = socket::ask(&sockets, &Ask::Get(STATUS_PATH)).map_err(|silence| silence.error);
        match asked.and_then(|answer| answer.fine("the agent did not return its status")) {
            Ok(value) => {
                let view = View::new(&value);
                let dashboard = view.at("dashboard");
                let is_there = dashboard.list("urls").next().is_some();
                if is_there && dashboard.maybe("fingerprint").is_some() == is_for_others {
                    return Ok(Some(dashboard.json().clone()));
                }
                let wrong = view.list("conditions");
                let mut wrong = wrong.filter(|it| it.text("id").starts_with("dashboard."));
                if let Some(condition) = wrong.next() {
                    let now = clock::now().wall;
                    for line in status::condition_lines(condition, now, output) {
                        output.line(&line);
                    }
                    return Ok(None);
                }
                if is_late {
                    return Err(Error::new(
                        "the agent was started but the dashboard is not reachable",
                    )
                    .fix(format!("pipeops-agent status; {}", service::log_line())));
                }
            }
            Err(error) if is_late => {
                return Err(error
                    .within("the agent was started but does not answer")
                    .fix(service::log_line()));
            }
            Err(_) => {}
        }
        block_on(Timer::after(POLL_INTERVAL));
    }
}

/// Lines for the person: address, fingerprint, login, the way back.
fn lines(dashboard: View<'_>, listen: SocketAddr) -> Vec<String> {
    let urls = dashboard.list("urls");
    let urls: Vec<_> = urls.filter_map(|url| url.json().as_str()).collect();
    let Some(fingerprint) = dashboard.maybe("fingerprint") else {
        return vec![format!(
            "The dashboard is reachable from this machine only: {}",
            urls.join(", ")
        )];
    };
    let mut lines = vec!["The dashboard is reachable from other machines at".to_owned()];
    lines.extend(urls.iter().map(|url| format!("  {url}")));
    let certificate = if dashboard.flag("is_self_made") == Some(false) {
        "with your certificate, whose SHA-256 fingerprint is"
    } else {
        "with a certificate that the agent created. The browser warns once; continue only if it shows this SHA-256 fingerprint:"
    };
    lines.extend([
        certificate.to_owned(),
        format!("  {fingerprint}"),
        "A login is required:".to_owned(),
        "  sudo pipeops-agent dashboard token       a token that works once".to_owned(),
        "  sudo pipeops-agent dashboard password    a permanent password".to_owned(),
        format!(
            "Allow TCP {} in your firewall. To undo: sudo pipeops-agent dashboard expose --off",
            listen.port()
        ),
    ]);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::api::Dashboard;

    #[test]
    fn what_is_told_has_the_address_the_fingerprint_a_login_and_the_way_back() {
        let listen = "0.0.0.0:7480".parse().unwrap();
        let lines = |dashboard: &Dashboard| {
            let view = serde_json::to_value(dashboard).unwrap();
            lines(View::new(&view), listen).join("\n")
        };
        let mut dashboard = Dashboard {
            urls: vec!["https://192.0.2.7:7480".to_owned()],
            fingerprint: Some("AB:CD".to_owned()),
            until: None,
            is_self_made: Some(true),
            ..Dashboard::default()
        };
        let own = lines(&dashboard);
        for part in [
            "  https://192.0.2.7:7480\n",
            "that the agent created",
            "  AB:CD\n",
            "dashboard token",
            "dashboard password",
            "TCP 7480",
            "expose --off",
        ] {
            assert!(own.contains(part), "{part}: {own}");
        }
        dashboard.is_self_made = Some(false);
        assert!(lines(&dashboard).contains("with your certificate"));
        dashboard.fingerprint = None;
        dashboard.urls = vec!["http://127.0.0.1:7480".to_owned()];
        assert_eq!(
            lines(&dashboard),
            "The dashboard is reachable from this machine only: http://127.0.0.1:7480"
        );
    }
}
