//! Starts the upload of backups of k3s, if a setting names a bucket.

use std::{path::PathBuf, rc::Rc};

use super::Agent;
use crate::{
    config::S3,
    core::{k3s::copies::SPOOL, stall::Job},
    outside::s3::Store,
    tasks::machine::copies::{self, MISSING, POLL_INTERVAL, Signing, Uploader},
};

impl Agent {
    /// Copies what root leaves for it to the bucket of `k3s.backup_s3`.
    pub(super) async fn copy_backups(self: Rc<Self>) {
        let settings = &self.settings;
        let Some(s3) = settings.k3s_backup.s3.clone() else {
            return;
        };
        let store = Store {
            transport: self.client(&s3.url, MISSING).await.transport,
            url: s3.url.clone(),
            bucket: s3.bucket.clone(),
        };
        copies::run(&Uploader {
            store,
            signer: self.signer(s3),
            spool: PathBuf::from(SPOOL),
            every: settings
                .keeper
                .allow
                .backup
                .then_some(settings.k3s.backup_every),
            poll_interval: POLL_INTERVAL,
            shared_state: Rc::clone(&self.shared_state),
        })
        .await;
    }

    /// Signer of requests to a bucket, as its file is each time.
    fn signer(&self, s3: S3) -> Box<dyn Fn() -> Signing> {
        let jobs = self.jobs.clone();
        Box::new(move || {
            let (jobs, s3) = (jobs.clone(), s3.clone());
            Box::pin(async move { jobs.run(Job::Secret, move || s3.signer()).await.flatten() })
        })
    }
}
