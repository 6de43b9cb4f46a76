//! The logger: journald priorities, timestamps on a terminal, or JSON lines.
