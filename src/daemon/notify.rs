//! Starts notifications about conditions, if a setting names a receiver.

use std::rc::Rc;

use super::Agent;
use crate::{
    outside::notify::NotifyClient,
    tasks::telemetry::notify::{self, NotifyDependencies, POLL_INTERVAL},
    wire::notify::ReceiverKind,
};

impl Agent {
    /// Sends notifications to `notify.url`; `told` holds those sent before this start.
    pub(super) async fn notify_people(self: Rc<Self>, notified: Option<String>) {
        let Some(settings) = &self.settings.notify else {
            return;
        };
        let dependencies = NotifyDependencies {
            receiver: NotifyClient(self.client(&settings.url, notify::UNREACHED).await),
            reader: match settings.kind.as_str() {
                "ntfy" => ReceiverKind::Ntfy,
                "slack" => ReceiverKind::Slack,
                _ => ReceiverKind::Webhook,
            },
            wanted: settings.wanted,
            authorization: &self.authorization(settings.credentials.as_ref()),
            notified,
            store: self.store.clone(),
            host: self.registrar.host().hostname.clone().unwrap_or_default(),
            shared_state: &self.shared_state,
            poll_interval: POLL_INTERVAL,
        };
        notify::run(dependencies).await;
    }
}
