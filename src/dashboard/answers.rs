//! What the server asks the agent. The agent's side of it is in `tasks`.

use super::Peer;
use crate::{
    core::{access::Inquiry, policy::Level},
    wire::api::{AccessChange, AccessReport, Decision, Refusal, Status},
};

/// Where the answers come from. A route is a line in `routes.rs` and a function here.
pub trait Answers: 'static {
    /// How everything is.
    fn status(&self) -> Status;

    /// What a Prometheus reads. `None` where the machine does not say in time.
    fn metrics(&self) -> impl Future<Output = Option<String>>;

    /// How strict this box is.
    fn access(&self) -> impl Future<Output = AccessReport>;

    /// What would become of a request.
    fn decision(&self, inquiry: Inquiry) -> impl Future<Output = Decision>;

    /// Sets how strict this box is, on behalf of somebody who may operate it.
    fn set_access(
        &self,
        level: Level,
        peer: Peer,
    ) -> impl Future<Output = Result<AccessChange, Refused>>;
}

/// Why something is not done that was asked for in good form.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Refused {
    /// This peer may not.
    Forbidden(Refusal),
    /// Nobody may, as things stand.
    Conflict(Refusal),
}
