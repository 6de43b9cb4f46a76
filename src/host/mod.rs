//! The party Linux: clock, randomness, /proc and /sys, files, processes, signals, the service manager.
