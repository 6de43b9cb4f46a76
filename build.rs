//! Stamps the program with its build date, below which no clock is believed (see `net::tls::Clock`): a board without a battery
//! wakes up in 1970, and every certificate is then "not yet valid". `SOURCE_DATE_EPOCH` wins, so that builds are reproducible.

use std::time::{SystemTime, UNIX_EPOCH};

fn main() {
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    println!("cargo:rerun-if-changed=build.rs");
    let given = std::env::var_os("SOURCE_DATE_EPOCH")
        .and_then(|text| text.to_str().and_then(|text| text.trim().parse().ok()));
    let epoch_s: u64 = given.unwrap_or_else(now_s);
    println!("cargo:rustc-env=BUILD_EPOCH_S={epoch_s}");
}

#[expect(
    clippy::disallowed_methods,
    reason = "the build has no host/clock.rs; a wrong clock here only makes the lower bound weaker"
)]
fn now_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
