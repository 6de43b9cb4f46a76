#![doc = include_str!("ARCHITECTURE.md")]

pub mod cli;
pub mod config;
pub mod core;
pub mod daemon;
pub mod dashboard;
pub mod error;
pub mod files;
pub mod host;
pub mod kube;
pub mod link;
pub mod log;
pub mod net;
pub mod outside;
pub mod store;
pub mod tasks;
pub mod wire;
