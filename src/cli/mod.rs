//! The command line: one file a command family.
//!
//! A second daemon as far as wiring goes: for the length of one command it may introduce parties to each other. It is the only
//! room that prints.

mod access;
mod config;
mod metrics;
mod output;
mod rbac;
mod socket;
mod status;

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand};

use self::output::Output;
use crate::{
    config::{self as settings, Loaded, Sources, keys},
    daemon,
    error::{Error, Exit},
};

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

const RUN_EXAMPLES: &str = "Examples:\n  \
    PIPEOPS_TOKEN_FILE=token PIPEOPS_STATE_DIR=state pipeops-agent run\n  \
    pipeops-agent run --config agent.toml --set log.level=debug";

#[derive(Debug, Parser)]
#[command(
    name = "pipeops-agent",
    version,
    about = "Connects this machine and its cluster to a control plane over one outbound connection",
    after_help = "Exit codes: 0 fine, 1 a problem was found, 2 the command could not run.",
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent in the foreground
    #[command(
        after_help = format!("{RUN_EXAMPLES}\n\n--help lists all settings."),
        after_long_help = format!("{RUN_EXAMPLES}\n\n{}", keys::help())
    )]
    Run {
        #[command(flatten)]
        from: From,
    },
    /// Say how the agent of this machine is doing
    #[command(
        after_help = "Examples:\n  pipeops-agent status\n  pipeops-agent status --json\n\n\
            Exit code 0 when everything works, 1 when something does not, 2 when no agent answers."
    )]
    Status {
        /// Ask the agent behind this socket
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
        #[command(flatten)]
        from: From,
        #[command(flatten)]
        form: Form,
    },
    /// Show how strict this machine is, make it stricter at once, explain a decision
    #[command(
        after_help = "Without a command it shows what holds, why, and what was asked in the last day.\n\n\
            Examples:\n  pipeops-agent access\n  pipeops-agent access read-only\n  \
            sudo pipeops-agent access managed\n  pipeops-agent access test GET /api/v1/pods\n\n\
            A level that is set here holds at once and after a restart, never beyond access.level of the settings.\n\
            The agent's own user may make it stricter, root also less strict.\n\
            Exit code 0 when it is done, 1 when it is refused or a problem was found, 2 when no agent answers."
    )]
    Access {
        #[command(flatten)]
        wanted: access::Wanted,
    },
    /// Show what was measured, export it, say what waits for whom
    Metrics {
        #[command(flatten)]
        wanted: metrics::Wanted,
    },
    /// Check and show the settings
    #[command(subcommand)]
    Config(Config),
    /// Print what the agent needs in the cluster, for kubectl
    #[command(after_help = "Examples:\n  \
        pipeops-agent rbac | kubectl apply -f -\n  \
        pipeops-agent rbac --full | kubectl apply -f -\n  \
        pipeops-agent rbac | kubectl delete -f -\n\n\
        It asks nobody and reads no settings. The text says what each part is for.")]
    Rbac {
        #[command(flatten)]
        asked: rbac::Asked,
        #[command(flatten)]
        form: Form,
    },
    /// Print the version
    Version {
        #[command(flatten)]
        form: Form,
    },
}

#[derive(Debug, Subcommand)]
enum Config {
    /// Say everything that is wrong with the settings
    #[command(after_help = "Examples:\n  pipeops-agent config check\n  \
        pipeops-agent config check --config /tmp/new.toml --json")]
    Check {
        #[command(flatten)]
        from: From,
        #[command(flatten)]
        form: Form,
    },
    /// Print every setting, its value and where it came from
    #[command(after_help = "Examples:\n  pipeops-agent config show\n  \
        pipeops-agent config show --set access.level=off --json")]
    Show {
        #[command(flatten)]
        from: From,
        #[command(flatten)]
        form: Form,
    },
    /// Print a file with every setting, its meaning and default
    #[command(after_help = "Example:\n  \
        pipeops-agent config example > /etc/pipeops-agent/config.toml")]
    Example {
        #[command(flatten)]
        form: Form,
    },
}

#[derive(Args, Debug)]
struct From {
    /// Read this file instead of /etc/pipeops-agent/config.toml, and config.d/*.toml beside it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one key, stronger than files and environment
    #[arg(long = "set", value_name = "KEY=VALUE")]
    assignments: Vec<String>,
}

impl From {
    fn load(self) -> Loaded {
        settings::load(&Sources::of_process(self.config, self.assignments))
    }
}

#[derive(Args, Clone, Copy, Debug)]
struct Form {
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
}

/// Runs the command in `argv` and says how it ended.
pub fn main(argv: impl Iterator<Item = OsString>) -> Exit {
    let mut output = Output::of_process();
    let arguments = match Arguments::try_parse_from(argv) {
        Ok(arguments) => arguments,
        Err(told) => {
            let is_help = !told.use_stderr();
            output.usage(&told);
            return if is_help {
                Exit::Fine
            } else {
                Exit::CouldNotRun
            };
        }
    };
    match arguments.command {
        Command::Run { from } => run(from, &mut output),
        Command::Status { socket, from, form } => {
            status::status(socket, &from.load(), form, &mut output)
        }
        Command::Access { wanted } => access::access(wanted, &mut output),
        Command::Metrics { wanted } => metrics::metrics(wanted, &mut output),
        Command::Config(Config::Check { from, form }) => {
            config::check(&from.load(), form, &mut output)
        }
        Command::Config(Config::Show { from, form }) => {
            config::show(&from.load(), form, &mut output)
        }
        Command::Config(Config::Example { form }) => config::example(form, &mut output),
        Command::Rbac { asked, form } => rbac::rbac(&asked, form, &mut output),
        Command::Version { form } => version(form, &mut output),
    }
}

fn run(from: From, output: &mut Output) -> Exit {
    match from.load().settings() {
        Ok(settings) => daemon::run(settings).unwrap_or_else(|error| {
            output.error(&error);
            Exit::CouldNotRun
        }),
        Err(problems) => {
            for problem in &problems {
                output.error(problem);
            }
            Exit::CouldNotRun
        }
    }
}

fn version(form: Form, output: &mut Output) -> Exit {
    if form.json {
        output.json(&serde_json::json!({ "version": VERSION }));
    } else {
        output.line(&format!("pipeops-agent {VERSION}"));
    }
    Exit::Fine
}

/// An error as JSON, the same for every command.
fn error_json(error: &Error) -> serde_json::Value {
    serde_json::json!({ "what": error.what, "why": error.why, "fix": error.fix })
}
