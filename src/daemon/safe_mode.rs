//! Record of starts in the runtime directory, for [`crate::core::safe_mode`].
//!
//! Only a service manager starts again what crashed, and it is what gives us that directory. A
//! crash leaves the record; every other end removes it.

use std::{cell::Cell, path::PathBuf};

use smol::{Timer, future};

use crate::{
    config::ServiceEnvironment,
    core::{
        health::Severity,
        safe_mode::{self, Mode, RECORD, SETTLED_AFTER, Starts},
    },
    files,
    tasks::state::SharedState,
};

/// Two numbers.
const BYTES_MAX: usize = 64;

/// This start, until it has succeeded or ended.
#[derive(Debug)]
pub(super) struct Start {
    path: Option<PathBuf>,
    starts: Cell<Starts>,
    mode: Mode,
    is_under_systemd: bool,
}

impl Start {
    /// Records a start.
    pub(super) fn begin(around: &ServiceEnvironment) -> Self {
        let directory = around.runtime_directory.as_ref();
        let path = directory.map(|directory| directory.join(RECORD));
        let (starts, mode) = path.as_ref().map_or_else(
            // Nobody starts it again, so nothing is counted.
            || (Starts::default(), Mode::Normal),
            |path| {
                let record = files::read_if_there(path, BYTES_MAX).ok().flatten();
                let record = record.and_then(|record| String::from_utf8(record).ok());
                Starts::parse(&record.unwrap_or_default()).begin()
            },
        );
        let start = Self {
            path,
            starts: Cell::new(starts),
            mode,
            is_under_systemd: around.notify_socket.is_some(),
        };
        start.keep();
        start
    }

    /// Extent of what may run.
    pub(super) const fn mode(&self) -> Mode {
        self.mode
    }

    /// Says that this is safe mode, where it is.
    pub(super) fn report(&self, shared_state: &SharedState) {
        let Mode::Safe {
            early_ends,
            retry_after,
        } = self.mode
        else {
            return;
        };
        let sentence = safe_mode::sentence(early_ends);
        let (log, restart) = if self.is_under_systemd {
            (
                "journalctl -u pipeops-agent -n 200",
                "sudo systemctl restart pipeops-agent",
            )
        } else {
            (
                "tail -n 200 /var/log/pipeops-agent.log",
                "sudo rc-service pipeops-agent restart",
            )
        };
        let fix = safe_mode::fix(log, restart, retry_after);
        shared_state.report(
            safe_mode::CONDITION,
            Severity::Critical,
            sentence,
            Some(fix),
        );
    }

    /// Waits until it is time to leave safe mode, and has the next start run everything. In normal
    /// mode it notes the success of this start, and never returns.
    pub(super) async fn watch(&self) {
        match self.mode {
            Mode::Normal => {
                Timer::after(SETTLED_AFTER).await;
                self.forget();
                future::pending().await
            }
            Mode::Safe { retry_after, .. } => {
                Timer::after(retry_after).await;
                ::log::info!("leaving safe mode: everything is tried again");
                self.starts.set(self.starts.get().retry());
                self.keep();
            }
        }
    }

    /// Removes the record: this start succeeded, or ends because somebody or the agent itself
    /// decided so.
    pub(super) fn forget(&self) {
        if let Some(path) = &self.path {
            // Nothing to remove: it succeeded before.
            drop(std::fs::remove_file(path));
        }
    }

    fn keep(&self) {
        let Some(path) = &self.path else { return };
        let record = self.starts.get().to_string();
        if let Err(error) = files::replace(path, record.as_bytes(), 0o600) {
            ::log::warn!("this start is not counted: {}", error.sentence());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(directory: &tempfile::TempDir) -> Start {
        Start::begin(&ServiceEnvironment {
            runtime_directory: Some(directory.path().to_owned()),
            ..ServiceEnvironment::default()
        })
    }

    #[test]
    fn crashes_lead_to_safe_mode_and_a_stop_leads_out_of_it() {
        let directory = tempfile::tempdir().unwrap();
        for _ in 0..safe_mode::EARLY_ENDS_MAX {
            assert!(start(&directory).mode().is_normal());
        }
        let safe = start(&directory);
        assert!(!safe.mode().is_normal());
        assert!(!start(&directory).mode().is_normal(), "it crashed again");
        safe.forget();
        assert!(start(&directory).mode().is_normal());
    }

    #[test]
    fn without_a_service_manager_nothing_is_counted() {
        for _ in 0..=safe_mode::EARLY_ENDS_MAX {
            assert!(
                Start::begin(&ServiceEnvironment::default())
                    .mode()
                    .is_normal()
            );
        }
    }

    #[test]
    fn a_directory_that_is_gone_is_no_safe_mode() {
        let directory = tempfile::tempdir().unwrap();
        let gone = directory.path().join("gone");
        for _ in 0..=safe_mode::EARLY_ENDS_MAX {
            let around = ServiceEnvironment {
                runtime_directory: Some(gone.clone()),
                ..ServiceEnvironment::default()
            };
            assert!(Start::begin(&around).mode().is_normal());
        }
    }
}
