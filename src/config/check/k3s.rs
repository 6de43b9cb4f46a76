//! The settings of `[k3s]`.

use super::super::{
    keys::{self, Key},
    layers::{Merged, Origin},
    settings::{K3s, K3sBackup, S3},
};
use crate::{
    core::{
        age::Recipient,
        k3s::window::Window,
        s3::Bucket,
        url::{Security, Url},
    },
    error::Error,
};

impl Merged {
    /// Sources of k3s.
    pub(in super::super) fn k3s(&self) -> K3s {
        K3s {
            mirror: self.text(&keys::K3S_MIRROR).unwrap_or_default(),
            index: self.text(&keys::K3S_INDEX).unwrap_or_default(),
            window: self
                .text(&keys::K3S_WINDOW)
                .and_then(|text| Window::parse(&text)),
            backup_every: self.time(&keys::K3S_BACKUP_EVERY),
        }
    }

    /// A window that nobody understands would be none.
    pub(in super::super) fn check_window(&mut self) {
        let key = &keys::K3S_WINDOW;
        let text = self.text(key);
        if text.is_some_and(|text| Window::parse(&text).is_none()) {
            let problem = self.about(key, "is no time of the day");
            self.problems.push(problem.fix("write it like 02:00-05:00"));
        }
    }

    pub(in super::super) fn k3s_backup(&self) -> Result<K3sBackup, Error> {
        let key = &keys::K3S_BACKUP_RECIPIENTS;
        let text = self.text(key).unwrap_or_default();
        let texts = text.split([',', ' ']).filter(|text| !text.is_empty());
        let recipients = texts.map(|text| {
            Recipient::parse(text).map_err(|why| {
                Error::new(format!(
                    "{}: {} cannot have {text:.12}…",
                    self.origin(key),
                    key.path
                ))
                .why(why)
                .fix("name the public key that age-keygen prints: age1…")
            })
        });
        let dir = self.path(&keys::K3S_BACKUP_DIR);
        let recipients: Vec<_> = recipients.collect::<Result<_, _>>()?;
        let s3 = self.s3()?;
        if let Some(s3) = s3.as_ref().filter(|_| recipients.is_empty()) {
            let problem = self.about(&keys::K3S_BACKUP_S3, "cannot be used");
            return Err(problem
                .why(format!("backups have the keys of the cluster, and would be readable at {}", s3.url.host))
                .fix("set k3s.backup_recipients to the public key of an identity that is kept elsewhere (age-keygen makes one)"));
        }
        Ok(K3sBackup {
            dir: dir.map(|dir| dir.display().to_string()),
            recipients,
            s3,
        })
    }

    /// Warns of S3 settings without a bucket: it was forgotten or misspelt.
    pub(in super::super) fn warn_of_lone_s3(&mut self) {
        let rest = [
            &keys::K3S_BACKUP_S3_REGION,
            &keys::K3S_BACKUP_S3_KEY_ID,
            &keys::K3S_BACKUP_S3_SECRET_FILE,
            &keys::K3S_BACKUP_S3_ALLOW_PLAINTEXT,
        ];
        let is_set = |key: &&Key| self.origin(key) != Origin::Default;
        if self.text(&keys::K3S_BACKUP_S3).is_some() {
            return;
        }
        if let Some(key) = rest.into_iter().find(is_set) {
            let warning = self.about(key, "has no effect");
            self.warnings.push(
                warning
                    .why("no backups are copied without k3s.backup_s3")
                    .fix("set k3s.backup_s3 too, or remove it"),
            );
        }
    }

    /// Bucket of copies; `None` where none is set.
    fn s3(&self) -> Result<Option<S3>, Error> {
        let key = &keys::K3S_BACKUP_S3;
        let Some(text) = self.text(key) else {
            return Ok(None);
        };
        let like =
            "write it like https://s3.example/bucket/folder; the key has settings of its own";
        let cannot = || self.about(key, "cannot be used");
        let url = Url::parse(&text).map_err(|why| cannot().why(why).fix(like))?;
        let bucket = Bucket::parse(&url.path).map_err(|why| cannot().why(why).fix(like))?;
        if url.query.is_some() {
            return Err(cannot().why("it has a query").fix(like));
        }
        let is_open = url.security == Security::Plain && !url.is_loopback();
        if is_open && !self.is_on(&keys::K3S_BACKUP_S3_ALLOW_PLAINTEXT) {
            return Err(self
                .about(key, "is not encrypted")
                .why(format!("whoever is on the way to {} could forge its answers", url.host))
                .fix("write https://; or set k3s.backup_s3_allow_plaintext = true where the network is yours alone"));
        }
        let with = |needed: &Key| {
            let fix = format!("set {}, too", needed.path);
            cannot().why("it needs another setting").fix(fix)
        };
        let (key_id, secret_file) = (
            &keys::K3S_BACKUP_S3_KEY_ID,
            &keys::K3S_BACKUP_S3_SECRET_FILE,
        );
        Ok(Some(S3 {
            url,
            bucket,
            region: self.text(&keys::K3S_BACKUP_S3_REGION).unwrap_or_default(),
            key_id: self.text(key_id).ok_or_else(|| with(key_id))?,
            secret_file: self.path(secret_file).ok_or_else(|| with(secret_file))?,
        }))
    }
}
