//! The reference control plane of pipeops-agent.
