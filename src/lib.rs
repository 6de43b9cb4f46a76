#![doc = include_str!("ARCHITECTURE.md")]
// The program is all that this library is for. Tests, benches and fuzz targets reach its modules by
// a feature; without it the compiler finds what nobody calls. `make check` lints both.
#![cfg_attr(
    not(feature = "internals"),
    allow(
        unreachable_pub,
        unused_imports,
        unfulfilled_lint_expectations,
        reason = "for the modules as they are with the feature"
    )
)]
#![cfg_attr(
    feature = "internals",
    allow(
        missing_docs,
        reason = "what is not exported says in its name what a comment would repeat"
    )
)]

pub mod cli;
#[cfg(not(feature = "internals"))]
mod config;
#[cfg(feature = "internals")]
pub mod config;
#[cfg(not(feature = "internals"))]
mod core;
#[cfg(feature = "internals")]
pub mod core;
#[cfg(not(feature = "internals"))]
mod daemon;
#[cfg(feature = "internals")]
pub mod daemon;
#[cfg(not(feature = "internals"))]
mod dashboard;
#[cfg(feature = "internals")]
pub mod dashboard;
#[cfg(not(feature = "internals"))]
mod error;
#[cfg(feature = "internals")]
pub mod error;
#[cfg(not(feature = "internals"))]
mod executor;
#[cfg(feature = "internals")]
pub mod executor;
#[cfg(not(feature = "internals"))]
mod files;
#[cfg(feature = "internals")]
pub mod files;
#[cfg(not(feature = "internals"))]
mod host;
#[cfg(feature = "internals")]
pub mod host;
#[cfg(not(feature = "internals"))]
mod keeper;
#[cfg(feature = "internals")]
pub mod keeper;
#[cfg(not(feature = "internals"))]
mod kube;
#[cfg(feature = "internals")]
pub mod kube;
#[cfg(not(feature = "internals"))]
mod link;
#[cfg(feature = "internals")]
pub mod link;
#[cfg(not(feature = "internals"))]
mod log;
#[cfg(feature = "internals")]
pub mod log;
#[cfg(not(feature = "internals"))]
mod net;
#[cfg(feature = "internals")]
pub mod net;
#[cfg(not(feature = "internals"))]
mod outside;
#[cfg(feature = "internals")]
pub mod outside;
#[cfg(not(feature = "internals"))]
mod store;
#[cfg(feature = "internals")]
pub mod store;
#[cfg(not(feature = "internals"))]
mod tasks;
#[cfg(feature = "internals")]
pub mod tasks;
#[cfg(not(feature = "internals"))]
mod wire;
#[cfg(feature = "internals")]
pub mod wire;
