//! pipeops-agent.
