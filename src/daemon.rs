//! Start order, wiring, supervision, stop order.

use crate::{
    config::Settings,
    error::{Error, Exit, Result},
};

/// Runs the agent until it is told to stop.
pub fn run(settings: Settings) -> Result<Exit> {
    Err(
        Error::new(format!("cannot link to {}", settings.pipeops.api_url))
            .why("this build has no daemon yet"),
    )
}
