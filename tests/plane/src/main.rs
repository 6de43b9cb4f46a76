//! Runs the reference control plane until SIGINT or SIGTERM.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use async_signal::{Signal, Signals};
use log::{LevelFilter, Log, Metadata, Record};
use plane::{Behaviour, Mode, Options, Plane, Redirect, Streams};
use smol::stream::StreamExt;

const USAGE: &str = "\
plane - the reference control plane of pipeops-agent, for trying the agent

usage: plane [--listen ADDRESS]... [--gateway-listen ADDRESS] [--plain-listen ADDRESS]
             [--state DIR] [--token-file FILE] [--no-gateway] [--no-streams] [--buffered]
             [--verbose]

  --listen ADDRESS          where to serve with TLS (default 127.0.0.1:0; may come twice)
  --gateway-listen ADDRESS  serve the gateway at an address of its own
  --plain-listen ADDRESS    serve without TLS too
  --state DIR               keep certificates, tokens and clusters here (default: plane-state);
                            ca.pem, token, api_url and kubeconfig.yaml are written there
  --token-file FILE         the PipeOps token that agents must show (default: a generated one)
  --no-gateway              keep agents on the controller's address
  --no-streams              carry requests in messages, as for agents that offer no streams
  --buffered                ask agents for answers in one message
  --verbose                 log every heartbeat and connection
";

struct Arguments {
    options: Options,
    changes: Vec<fn(&mut Behaviour)>,
    level: LevelFilter,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            say(&mut io::stdout(), USAGE);
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            say(&mut io::stderr(), &format!("plane: {error}\n\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&mut io::stderr(), &format!("plane: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
    let mut options = Options {
        state_dir: Some(PathBuf::from("plane-state")),
        ..Options::default()
    };
    let mut listen = Vec::new();
    let mut changes: Vec<fn(&mut Behaviour)> = Vec::new();
    let mut level = LevelFilter::Info;
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--listen" => listen.push(address(&value()?)?),
            "--gateway-listen" => options.gateway_listen = Some(address(&value()?)?),
            "--plain-listen" => options.plaintext_listen = Some(address(&value()?)?),
            "--state" => options.state_dir = Some(PathBuf::from(value()?)),
            "--token-file" => options.token = Some(token(&value()?)?),
            "--no-gateway" => changes.push(|behaviour| behaviour.redirect = Redirect::None),
            "--no-streams" => changes.push(|behaviour| behaviour.streams = Streams::Off),
            "--buffered" => changes.push(|behaviour| behaviour.mode = Mode::Buffered),
            "--verbose" => level = LevelFilter::Debug,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown argument {other}")),
        }
    }
    if !listen.is_empty() {
        options.listen = listen;
    }
    Ok(Some(Arguments {
        options,
        changes,
        level,
    }))
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|error| format!("{text} is no address like 127.0.0.1:8443: {error}"))
}

fn token(path: &str) -> Result<String, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(format!("{path} is empty"));
    }
    Ok(token.to_owned())
}

fn run(arguments: Arguments) -> Result<(), Box<dyn std::error::Error>> {
    log::set_logger(&Lines).map_err(|error| error.to_string())?;
    log::set_max_level(arguments.level);
    let mut signals = Signals::new([Signal::Int, Signal::Term])?;
    let dir = arguments.options.state_dir.clone().unwrap_or_default();
    let mut plane = Plane::start(arguments.options)?;
    plane.set(|behaviour| {
        for change in arguments.changes {
            change(behaviour);
        }
    });
    log::info!("serving at {}", plane.api_url());
    log::info!(
        "agents need: PIPEOPS_API_URL={} PIPEOPS_TOKEN_FILE={} and the CA {}",
        plane.api_url(),
        dir.join("token").display(),
        dir.join("ca.pem").display(),
    );
    smol::block_on(signals.next());
    log::info!("stopping");
    plane.stop();
    Ok(())
}

/// Writes lines to standard error.
struct Lines;

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("plane")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let line = format!("{} {}\n", record.level(), record.args());
            say(&mut io::stderr(), &line);
        }
    }

    fn flush(&self) {}
}

/// Nobody can be told when the terminal is gone.
fn say(out: &mut impl Write, text: &str) {
    drop(out.write_all(text.as_bytes()));
}
