//! File, drop-ins, environment and flags become settings; every message has file:line and the fix.
