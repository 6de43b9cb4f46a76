//! The settings of `[telemetry.remote_write]`.

use super::super::{
    keys,
    layers::Merged,
    settings::RemoteWrite,
    token::{self, Credentials},
    value::Value,
};
use crate::{
    core::url::{Security, Url, is_loopback},
    error::Error,
};
use litemap::LiteMap;

impl Merged {
    /// A receiver of samples; `None` where none is set, or where `problems` says what is wrong with
    /// it.
    pub(super) fn remote_write(&mut self) -> Option<RemoteWrite> {
        if self.text(&keys::REMOTE_WRITE_URL).is_none() {
            self.without_url();
            return None;
        }
        let url = self.remote_write_url();
        let credentials = self.credentials();
        let labels = self.entry(&keys::REMOTE_WRITE_LABELS);
        let labels = match labels.map(|entry| &entry.value) {
            Some(Value::Labels(labels)) => labels.clone(),
            _ => LiteMap::new(),
        };
        for name in labels.keys().filter(|name| !is_label(name)) {
            let what = self.about(&keys::REMOTE_WRITE_LABELS, "cannot be used");
            self.problems.push(
                what.why(format!("no receiver takes a label of the name {name:?}"))
                    .fix("use letters, digits and underscores, no digit first, not two underscores first"),
            );
        }
        Some(RemoteWrite {
            url: url?,
            credentials,
            labels,
        })
    }

    /// Warns of settings without a URL: it was forgotten or misspelt.
    fn without_url(&mut self) {
        let rest = [
            &keys::REMOTE_WRITE_BEARER_TOKEN_FILE,
            &keys::REMOTE_WRITE_USERNAME,
            &keys::REMOTE_WRITE_PASSWORD_FILE,
            &keys::REMOTE_WRITE_LABELS,
        ];
        if let Some(key) = rest.into_iter().find(|key| self.entry(key).is_some()) {
            let warning = self.about(key, "has no effect");
            self.warnings.push(
                warning
                    .why("no samples are sent without telemetry.remote_write.url")
                    .fix("set telemetry.remote_write.url too, or remove it"),
            );
        }
    }

    fn remote_write_url(&mut self) -> Option<Url> {
        let key = &keys::REMOTE_WRITE_URL;
        let url = match Url::parse(&self.text(key)?) {
            Ok(url) => url,
            Err(why) => {
                let problem = self.about(key, "cannot be used");
                self.problems.push(problem.why(why).fix(
                    "write it like https://metrics.example/api/v1/write, user and password in their own keys",
                ));
                return None;
            }
        };
        let is_open = url.security == Security::Plain && !is_loopback(&url.host);
        if is_open && !self.is_on(&keys::REMOTE_WRITE_ALLOW_PLAINTEXT) {
            let problem = self.about(key, "is not encrypted");
            self.problems.push(
                problem
                    .why(format!("samples would cross the network to {} in the open", url.host))
                    .fix("write https://; or set telemetry.remote_write.allow_plaintext = true where the network is yours alone"),
            );
            return None;
        }
        if is_open {
            self.warnings.push(
                Error::new(format!("samples go to {} unencrypted", url.host))
                    .why("telemetry.remote_write.allow_plaintext is true"),
            );
        }
        Some(url)
    }

    fn credentials(&mut self) -> Option<Credentials> {
        let token_file = self.path(&keys::REMOTE_WRITE_BEARER_TOKEN_FILE);
        let username = self.text(&keys::REMOTE_WRITE_USERNAME);
        let password_file = self.path(&keys::REMOTE_WRITE_PASSWORD_FILE);
        let credentials = match (token_file, username, password_file) {
            (None, None, None) => return None,
            (Some(file), None, None) => Credentials::Bearer(file),
            (None, Some(username), Some(password_file)) if !username.contains(':') => {
                Credentials::Basic {
                    username,
                    password_file,
                }
            }
            (None, Some(_), Some(_)) => {
                let problem = self.about(&keys::REMOTE_WRITE_USERNAME, "cannot be used");
                self.problems.push(
                    problem
                        .why("HTTP ends a user name at the first colon")
                        .fix("write it without a colon"),
                );
                return None;
            }
            (None, Some(_), None) => {
                let problem = self.about(&keys::REMOTE_WRITE_USERNAME, "needs a password");
                self.problems
                    .push(problem.fix("set telemetry.remote_write.password_file too"));
                return None;
            }
            (None, None, Some(_)) => {
                let problem = self.about(&keys::REMOTE_WRITE_PASSWORD_FILE, "needs a user name");
                self.problems
                    .push(problem.fix("set telemetry.remote_write.username too"));
                return None;
            }
            (Some(_), _, _) => {
                let problem = self.about(&keys::REMOTE_WRITE_BEARER_TOKEN_FILE, "is one too many");
                self.problems.push(
                    problem
                        .why("a receiver is shown a token or a password, not both")
                        .fix("remove it, or username and password_file"),
                );
                return None;
            }
        };
        let doubts = token::doubts(credentials.file(), "samples wait for it");
        self.warnings.extend(doubts);
        Some(credentials)
    }
}

/// A name of Prometheus' data model that is not one of its own.
fn is_label(name: &str) -> bool {
    let is_word = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_word && !name.starts_with(|first: char| first.is_ascii_digit()) && !name.starts_with("__")
}
