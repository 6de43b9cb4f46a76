//! pipeops-agent: the program.

fn main() {}
