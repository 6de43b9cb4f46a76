//! pipeops-agent: the program.

use std::process::ExitCode;

fn main() -> ExitCode {
    let exit = pipeops_agent::cli::main(std::env::args_os());
    ExitCode::from(exit.code())
}
