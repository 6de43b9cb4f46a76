//! Telling somebody elsewhere of conditions, where a setting names them.

use std::rc::Rc;

use smol::Timer;

use super::{Agent, TEND_EVERY};
use crate::{
    config::Credentials,
    core::health::Severity,
    tasks::notify::{self, LOOK_EVERY, Parts},
    wire::notify::Reader,
};

impl Agent {
    /// Tells whoever `notify.url` names; `told` is what was told before this start.
    pub(super) async fn tell_people(self: Rc<Self>, told: Option<String>) {
        let Some(settings) = &self.settings.notify else {
            return;
        };
        let receiver = loop {
            match self
                .network
                .notices(&self.settings, settings, &self.executor)
            {
                Ok(receiver) => break receiver,
                Err(error) => self.board.report(
                    notify::UNREACHED,
                    Severity::Warning,
                    error.sentence(),
                    error.fix,
                ),
            }
            Timer::after(TEND_EVERY).await;
        };
        let parts = Parts {
            receiver,
            reader: match settings.kind.as_str() {
                "ntfy" => Reader::Ntfy,
                "slack" => Reader::Slack,
                _ => Reader::Webhook,
            },
            wanted: settings.wanted,
            authorization: &|| {
                let credentials = settings.credentials.as_ref();
                credentials.map(Credentials::authorization).transpose()
            },
            told,
            store: self.store.clone(),
            host: self.facts.host().hostname.clone().unwrap_or_default(),
            board: &self.board,
            look_every: LOOK_EVERY,
        };
        notify::run(parts).await;
    }
}
