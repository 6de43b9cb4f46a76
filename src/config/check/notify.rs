//! The settings of `[notify]`.

use super::super::{
    keys,
    layers::Merged,
    settings::Notify,
    token::{self, Credentials},
};
use crate::core::{
    health::Severity,
    notify::{Quiet, SETTLE, Wanted},
    url::{Security, Url, is_loopback},
};

impl Merged {
    /// Receiver of notifications; `None` without one, or if `problems` has the reason.
    pub(super) fn notify(&mut self) -> Option<Notify> {
        if self.text(&keys::NOTIFY_URL).is_none() {
            let rest = [&keys::NOTIFY_TOKEN_FILE, &keys::NOTIFY_QUIET];
            if let Some(key) = rest.into_iter().find(|key| self.entry(key).is_some()) {
                let warning = self.about(key, "has no effect");
                self.warnings.push(
                    warning
                        .why("without notify.url nobody is notified")
                        .fix("set notify.url too, or remove it"),
                );
            }
            return None;
        }
        let url = self.notify_url();
        let quiet = self.quiet_hours();
        let token_file = self.path(&keys::NOTIFY_TOKEN_FILE);
        if let Some(file) = &token_file {
            let doubts = token::doubts(file, "notices wait for it");
            self.warnings.extend(doubts);
        }
        let minimum = match self.text(&keys::NOTIFY_MINIMUM).as_deref() {
            Some("note") => Severity::Note,
            Some("critical") => Severity::Critical,
            Some(_) | None => Severity::Warning,
        };
        Some(Notify {
            url: url?,
            kind: self.text(&keys::NOTIFY_KIND)?,
            credentials: token_file.map(Credentials::Bearer),
            wanted: Wanted {
                minimum,
                quiet: quiet?,
                settle: SETTLE,
            },
        })
    }

    /// Address of the receiver. Errors never repeat it: with most receivers it contains the
    /// password.
    fn notify_url(&mut self) -> Option<Url> {
        let key = &keys::NOTIFY_URL;
        let Ok(url) = Url::parse(&self.text(key)?) else {
            let problem = self.about(key, "cannot be used");
            self.problems
                .push(problem.fix("write it like https://ntfy.sh/a-topic-nobody-guesses, without a user or password in it"));
            return None;
        };
        let is_open = url.security == Security::Plain && !is_loopback(&url.host);
        if is_open && !self.is_on(&keys::NOTIFY_ALLOW_PLAINTEXT) {
            let problem = self.about(key, "is not encrypted");
            self.problems.push(
                problem
                    .why(format!("what is wrong with this machine would cross the network to {} in the open", url.host))
                    .fix("write https://; or set notify.allow_plaintext = true where the network is yours alone"),
            );
            return None;
        }
        Some(url)
    }

    /// `Some(None)`: no hour is quiet.
    #[expect(clippy::option_option, reason = "none wanted, and none understood")]
    fn quiet_hours(&mut self) -> Option<Option<Quiet>> {
        let Some(text) = self.text(&keys::NOTIFY_QUIET) else {
            return Some(None);
        };
        let quiet = Quiet::parse(&text);
        if quiet.is_none() {
            let problem = self.about(&keys::NOTIFY_QUIET, "cannot be used");
            self.problems.push(
                problem
                    .why(format!("{text:?} is not a part of a day"))
                    .fix("write it like 22:00-07:00"),
            );
        }
        quiet.map(Some)
    }
}
