//! Update of this program: staged by the command that downloaded it, carried out and judged by the
//! previous version.
//!
//! The new program and a copy of the running one are in root's directory, checked there. A service
//! that exists for the time of the update runs that copy: it puts the new program in place, watches
//! it, and keeps it or puts the previous one back, also after a power cut. The new program never
//! runs for any of that; it is asked only for its version and its [`services`], before anything is
//! changed. `update.json` is replaced before and after each step, and each may be done twice. Where
//! a package manager owns the program, [`package`] puts it in place.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{Journal, Keeper, now, system::SELINUX, with_fix};
use crate::{
    core::{
        VERSION,
        packed::script,
        safe_mode::RECORD,
        time::{Mono, Wall},
        update::{
            Version,
            list::{List, PROGRAM_BYTES_MAX},
            signed,
            trial::{AgentStatus, Cause, STARTS_MAX, Trial, TrialVerdict},
        },
    },
    error::{Error, Result, Retry},
    files::{self, PRIVATE},
    wire::keeper::{LastUpdate, PackageKind, ServiceFile, Update, UpdateNote, UpdateStep},
};

pub use package::{INSTALL_WITHIN, PreviousPackage};

use package::Side;

mod package;
pub mod services;

/// Path of the program.
pub const PROGRAM: &str = "/usr/bin/pipeops-agent";
/// Time until a version that lost the link is tried again by itself.
const RETRY_AFTER: Duration = Duration::from_secs(24 * 3600);
const RECORD_BYTES_MAX: usize = 64 * 1024;
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Room that is kept for the way back beside a second copy of the previous program: records, units,
/// and the files of a package.
const RESERVE_BYTES: u64 = 1 << 20;

/// Time between two attempts to put the previous version back.
const RETURN_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// The agent's runtime directory.
const RUNTIME_DIRECTORY: &str = "/run/pipeops-agent";
const SYSTEMD_UNIT: &str = "/etc/systemd/system/pipeops-update.service";
/// Directory of OpenRC's states, with a link for each service in one.
const OPENRC: &str = "/run/openrc";
const OPENRC_SCRIPT: &str = "/etc/init.d/pipeops-update";
/// Link that has OpenRC start it at boot.
const OPENRC_LINK: &str = "/etc/runlevels/default/pipeops-update";

/// A program, or a package of it, that was downloaded or came by hand.
#[derive(Clone, Debug)]
pub struct NewProgram {
    /// Its file. Root's own copy of it is what is checked and used.
    pub file: PathBuf,
    /// SHA-256 by the signed list.
    pub sha256: String,
    /// Version by the signed list.
    pub version: String,
    /// Version that is installed.
    pub previous: String,
    /// True if the agent is linked now.
    pub was_linked: bool,
    /// Time for the new version to prove itself.
    pub within: Duration,
    /// Package to go back to, where a package manager owns the program.
    pub package: Option<PreviousPackage>,
}

/// The agent and the clock, as the one that judges an update needs them.
pub trait Watched {
    /// State of the agent.
    fn seen(&self) -> AgentStatus;
    /// Waits, and returns the time after that.
    fn wait(&self, time: Duration) -> Mono;
}

impl Keeper {
    /// Everything about updates that outlives them.
    pub fn update_note(&self) -> Result<UpdateNote> {
        // A question makes nothing, least of all after a purge.
        if !self.directory.exists() {
            return Ok(UpdateNote::default());
        }
        let note = Journal::open(&self.directory)?;
        read(&note.directory().join("updates.json")).map(Option::unwrap_or_default)
    }

    /// Records that this list was accepted: an older one is refused from now on, and what it
    /// withdraws is withdrawn until a newer one is accepted. `sequence` is 0 where the list says
    /// nothing about the order.
    pub fn update_list_seen(&self, sequence: u64, list: &List) -> Result<()> {
        let mut note = self.update_note()?;
        let sequence = signed::remembered(sequence, now());
        if sequence <= note.sequence && list.keys <= note.keys {
            return Ok(());
        }
        if list.keys > note.keys {
            note.keys = list.keys;
            note.sequence = 0;
        }
        if sequence > note.sequence {
            note.sequence = sequence;
            note.withdrawn = list.withdrawn.iter().map(ToString::to_string).collect();
        }
        self.note(&note)
    }

    /// Describes the last update, where it was taken back and nothing as new was installed since.
    pub(super) fn update_taken_back(&self) -> Option<String> {
        let last = self.update_note().ok()?.last?;
        let version = |text: &str| text.parse::<Version>().ok();
        let is_behind = version(VERSION)? < version(&last.version)?;
        (is_behind && !last.is_kept).then(|| last.in_words())
    }

    /// The update that is under way.
    pub fn update_under_way(&self) -> Result<Option<Update>> {
        let ended = |update: &Update| match update.step {
            UpdateStep::Kept | UpdateStep::Returned => !self.has_service(),
            UpdateStep::Staged
            | UpdateStep::Switched
            | UpdateStep::Trying
            | UpdateStep::Returning => false,
        };
        let update: Option<Update> = read(&self.record())?;
        Ok(update.filter(|update| !ended(update)))
    }

    /// Refuses to stop the agent while an update is tried: its end starts the agent again. A record
    /// that cannot be read is no reason to keep an agent running.
    ///
    /// # Errors
    /// The update that is under way.
    pub fn check_no_update_runs(&self) -> Result<()> {
        match self.update_under_way() {
            // One that was stopped would go on at the next boot.
            Ok(Some(update)) if self.service_runs() || self.has_service() => {
                Err(is_under_way(format!("to {}", update.version)))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Returns whether the service manager neither runs the agent nor starts it again: it was never
    /// set up, or somebody stopped it.
    pub fn agent_is_stopped(&self) -> bool {
        if self.has_systemd() {
            let property = "--property=ActiveState";
            let argv = ["systemctl", "show", property, "--value", "pipeops-agent"];
            let said = self.system.run(&argv);
            return said.is_ok_and(|said| said.stdout.trim() == "inactive");
        }
        let is = |state: &str| {
            self.system
                .is_there(&format!("{OPENRC}/{state}/pipeops-agent"))
        };
        // It is started there also while it crashes.
        self.system.is_there(OPENRC) && !is("started") && !is("starting")
    }

    /// Takes the lock of updates, which ends with this process at the latest: two commands would
    /// download into one file, and one would replace what the other has checked.
    pub fn lock_updates(&self) -> Result<fs::File> {
        Journal::open(&self.directory)?;
        files::create_directory(&self.folder())?;
        files::lock_directory(&self.folder())?
            .ok_or_else(|| is_under_way("by another command on this machine"))
    }

    /// Returns the update that has begun; one that was stopped goes on. The caller has the lock of
    /// updates.
    pub fn continue_update(&self) -> Result<Option<Update>> {
        let _lock = self.open()?;
        let Some(update) = self.update_under_way()?.filter(|it| self.has_begun(it)) else {
            return Ok(None);
        };
        if self.end_cut_off(&update)? {
            return Ok(None);
        }
        if !self.service_runs() {
            self.start_service()?;
        }
        Ok(Some(update))
    }

    /// Checks a new program in root's own directory, and has the service of the update carry it
    /// out; returns the update. The caller has the lock of updates.
    pub fn stage_update(&self, new: &NewProgram) -> Result<Update> {
        let _lock = self.open()?;
        if let Some(update) = self.update_under_way()?.filter(|it| self.has_begun(it))
            && !self.end_cut_off(&update)?
        {
            return Err(is_under_way(format!("to {}", update.version)));
        }
        self.system.guard(PROGRAM)?;
        files::create_directory(&self.folder())?;
        let (next, prev) = (self.folder().join("next"), self.folder().join("prev"));
        for old in [&next, &prev] {
            files::remove_unfinished_of(old)?;
        }
        let copy = |from: &Path, to: &Path, sha256: Option<&str>| {
            let limits: (u64, &mut dyn FnMut(u64)) = (PROGRAM_BYTES_MAX, &mut |_| {});
            files::copy(from, to, 0o755, sha256, limits)
        };
        let previous = copy(&self.system.path(PROGRAM), &prev, None)?;
        self.label(&prev)?;
        // That both run here: another processor, or a disk that may not hold programs, is noticed
        // now.
        self.try_program(&prev, &new.previous)?;
        if let Some(package) = &new.package {
            self.stage_packages(new, package)?;
        } else {
            copy(&new.file, &next, Some(&new.sha256))?;
            self.try_program(&next, &new.version)?;
            write(&self.services_file(), &self.services_of(&next))?;
        }
        self.reserve(previous.bytes)?;
        let package = new.package.as_ref();
        let update = Update {
            version: new.version.clone(),
            sha256: new.sha256.clone(),
            previous: new.previous.clone(),
            previous_sha256: package.map_or(previous.sha256, |package| package.sha256.clone()),
            package: package.map(|package| package.kind),
            was_linked: new.was_linked,
            within_s: new.within.as_secs(),
            step: UpdateStep::Staged,
            starts: 0,
            why: None,
            is_banned: false,
        };
        self.write_update(&update)?;
        self.start_service().inspect_err(|_| {
            // Nothing was changed yet, and nothing shall be.
            for path in [self.record(), self.reserve_file()] {
                drop(fs::remove_file(path));
            }
        })?;
        Ok(update)
    }

    /// Carries the update out that waits, or goes on with it. The service runs this, in the
    /// previous program.
    pub fn finish_update(&self, watched: &dyn Watched) -> Result<()> {
        let Some(mut update) = self.update_under_way()? else {
            // One that was cut off before it was written down.
            return self.remove_service();
        };
        update.starts = update.starts.saturating_add(1);
        self.write_update(&update)?;
        while let Some(step) = self.update_step(&mut update, watched)? {
            update.step = step;
            self.write_update(&update)?;
        }
        self.end_update(&update)
    }

    /// Carries out a step, and returns the next one; `None`: it is over.
    fn update_step(
        &self,
        update: &mut Update,
        watched: &dyn Watched,
    ) -> Result<Option<UpdateStep>> {
        Ok(match update.step {
            UpdateStep::Staged => match self.go_forward(update, watched) {
                Ok(()) => Some(UpdateStep::Switched),
                Err(error) => {
                    update.why = Some(with_fix(&error));
                    Some(UpdateStep::Returning)
                }
            },
            UpdateStep::Switched => {
                self.restart_agent();
                Some(UpdateStep::Trying)
            }
            UpdateStep::Trying => Some(match self.judge(update, watched) {
                None => UpdateStep::Kept,
                Some(_) if self.has_other(update, &[Side::Next, Side::Previous])? => {
                    replaced(update)
                }
                Some(cause) => {
                    let is_back = self.has_other(update, &[Side::Next])?;
                    update.why = Some(if is_back {
                        "the previous version was installed during its trial".to_owned()
                    } else {
                        cause.as_str().to_owned()
                    });
                    update.is_banned = cause.bans() && !is_back;
                    UpdateStep::Returning
                }
            }),
            // A package manager may have been waited for.
            UpdateStep::Returning if self.has_other(update, &[Side::Next, Side::Previous])? => {
                Some(replaced(update))
            }
            UpdateStep::Returning => {
                self.go_back(update, watched).inspect_err(|error| {
                    // Until the next attempt a bad version is better than none.
                    self.restart_agent();
                    let sentence = format!("{} cannot be put back: {error}", update.previous);
                    (self.system.watch)(&sentence);
                    watched.wait(RETURN_AGAIN_AFTER);
                })?;
                Some(UpdateStep::Returned)
            }
            UpdateStep::Returned => {
                self.restart_agent();
                self.restart_helper();
                None
            }
            UpdateStep::Kept => {
                self.restart_helper();
                None
            }
        })
    }

    fn go_forward(&self, update: &Update, watched: &dyn Watched) -> Result<()> {
        if let Some(kind) = update.package {
            return self.install_next(update, kind, watched);
        }
        self.exchange_services(&services::own(), &self.new_services()?)?;
        self.switch("next", &update.sha256)
    }

    fn go_back(&self, update: &Update, watched: &dyn Watched) -> Result<()> {
        if let Some(kind) = update.package {
            // Another package manager may be waited for, with an agent that runs.
            return match self.install_previous(update, kind, watched) {
                Err(error) if error.retry != Retry::Soon => {
                    self.make_room(Some(kind));
                    self.install_previous(update, kind, watched)
                }
                ended => ended,
            };
        }
        self.make_room(None);
        self.exchange_services(&self.new_services()?, &services::own())?;
        self.switch("prev", &update.previous_sha256)
    }

    /// Watches the new version; `None`: it proved itself.
    fn judge(&self, update: &Update, watched: &dyn Watched) -> Option<Cause> {
        if update.starts > STARTS_MAX {
            return Some(Cause::Restarts);
        }
        let began = watched.wait(Duration::ZERO);
        let within = Duration::from_secs(update.within_s);
        let mut trial = Trial::new(&update.version, update.was_linked, within, began);
        (self.system.watch)(&format!("{} must prove itself now", update.version));
        loop {
            let at = watched.wait(POLL_INTERVAL);
            match trial.look(&watched.seen(), at) {
                TrialVerdict::Wait => {}
                TrialVerdict::Keep => return None,
                TrialVerdict::Return(cause) => return Some(cause),
            }
        }
    }

    /// Returns whether a person or a package manager has installed another version than those of
    /// these sides meanwhile.
    fn has_other(&self, update: &Update, sides: &[Side]) -> Result<bool> {
        if let Some(kind) = update.package {
            return self.has_other_package(update, kind, sides);
        }
        let is_of = |sha256: &str, side: &Side| match side {
            Side::Next => sha256 == update.sha256,
            Side::Previous => sha256 == update.previous_sha256,
        };
        let program = self.system.path(PROGRAM);
        let found = files::sum(&program)?;
        // One that a bad disk has damaged does not run.
        Ok(
            found.is_some_and(|found| !sides.iter().any(|side| is_of(&found.sha256, side)))
                && self
                    .version_of(&program)
                    .is_ok_and(|said| said.starts_with("pipeops-agent ")),
        )
    }

    fn end_update(&self, update: &Update) -> Result<()> {
        drop(fs::remove_file(self.reserve_file()));
        let mut note = self.update_note()?;
        let is_kept = update.step == UpdateStep::Kept;
        if is_kept {
            if update.why.is_none() {
                note.banned.clear();
            }
        } else if update.is_banned {
            if !note.banned.contains(&update.version) {
                note.banned.push(update.version.clone());
            }
        } else {
            let day = i64::try_from(RETRY_AFTER.as_millis()).unwrap_or(i64::MAX);
            note.not_before_ms = now().millis().saturating_add(day);
        }
        note.last = Some(LastUpdate {
            version: update.version.clone(),
            is_kept,
            why: update.why.clone(),
            at: Wall::from_millis(now().millis()).rfc3339(),
        });
        self.note(&note)?;
        let sentence = match &update.why {
            None => format!("updated to {}", update.version),
            Some(why) if is_kept => format!("{} is not judged: {why}", update.version),
            Some(why) => format!(
                "{} was rolled back to {}: {why}",
                update.version, update.previous
            ),
        };
        log::info!("{sentence}");
        (self.system.watch)(&sentence);
        #[cfg(test)]
        super::journal::cut::after()?;
        // First the service: the next update makes it again.
        self.remove_service()?;
        #[cfg(test)]
        super::journal::cut::after()?;
        if let Some(kind) = update.package {
            self.remove_packages(kind);
        }
        fs::remove_file(self.record())
            .map_err(|error| files::explain("cannot end the update", &error))
    }

    /// Returns whether the service of an update has begun; where it never did, nothing was changed.
    fn has_begun(&self, update: &Update) -> bool {
        update.step != UpdateStep::Staged || update.starts > 0 || self.service_runs()
    }

    /// Ends an update that a power cut left with nothing to do but to remove its service, which may
    /// not start any more. Returns whether it was one.
    fn end_cut_off(&self, update: &Update) -> Result<bool> {
        let is_decided = matches!(update.step, UpdateStep::Kept | UpdateStep::Returned);
        if !is_decided || self.service_runs() {
            return Ok(false);
        }
        self.end_update(update)?;
        Ok(true)
    }

    /// Returns whether there is a service of an update, which a boot starts.
    fn has_service(&self) -> bool {
        self.system.is_there(SYSTEMD_UNIT) || self.system.is_there(OPENRC_SCRIPT)
    }

    /// Returns whether the service of an update runs.
    fn service_runs(&self) -> bool {
        let service: &[&str] = if self.has_systemd() {
            &["systemctl", "is-active", "pipeops-update"]
        } else {
            &["rc-service", "pipeops-update", "status"]
        };
        self.system.run(service).is_ok()
    }

    /// Puts one of the checked copies into place. It appears whole or not at all.
    fn switch(&self, copy: &str, sha256: &str) -> Result<()> {
        let program = self.system.path(PROGRAM);
        files::remove_unfinished_of(&program)?;
        if files::sum(&program)?.is_some_and(|found| found.sha256 == sha256) {
            return Ok(());
        }
        let from = self.folder().join(copy);
        let limits: (u64, &mut dyn FnMut(u64)) = (PROGRAM_BYTES_MAX, &mut |_| {});
        files::copy(&from, &program, 0o755, Some(sha256), limits).map(drop)?;
        #[cfg(test)]
        super::journal::cut::after()?;
        Ok(())
    }

    /// Labels a copy of the program as the program is, where SELinux is in use: of its label as
    /// data in `/var/lib` the service manager may start nothing.
    fn label(&self, copy: &Path) -> Result<()> {
        if !self.system.is_there(SELINUX) {
            return Ok(());
        }
        files::copy_label(&self.system.path(PROGRAM), copy).map_err(|error| {
            let path = copy.display();
            files::explain(
                format!("cannot label {path} for SELinux, so nothing was changed"),
                &error,
            )
        })
    }

    fn try_program(&self, file: &Path, version: &str) -> Result<()> {
        let said =
            self.version_of(file).map_err(|error| {
                error
                .within(format!("{version} does not run on this machine, so nothing was changed"))
                .fix("if its directory is mounted noexec, set keeper.state_dir to one that is not")
            })?;
        let wanted = format!("pipeops-agent {version}");
        if said == wanted {
            return Ok(());
        }
        Err(Error::new(format!(
            "{} is not {wanted}, so nothing was changed",
            file.display()
        )))
    }

    /// Output of `version` of a program.
    fn version_of(&self, file: &Path) -> Result<String> {
        let path = file.display().to_string();
        let ended = self.system.run(&[path.as_str(), "version"])?;
        Ok(ended.stdout.trim().to_owned())
    }

    fn folder(&self) -> PathBuf {
        self.directory.join("update")
    }

    fn record(&self) -> PathBuf {
        self.directory.join("update").join("update.json")
    }

    fn services_file(&self) -> PathBuf {
        self.folder().join("services.json")
    }

    /// Units and init scripts of the new version.
    fn new_services(&self) -> Result<Vec<ServiceFile>> {
        read(&self.services_file()).map(Option::unwrap_or_default)
    }

    /// Writes a step down. On a disk that is full once the new version runs, room is made for it.
    fn write_update(&self, update: &Update) -> Result<()> {
        write(&self.record(), update).or_else(|error| {
            if update.step == UpdateStep::Staged || error.retry != Retry::Later {
                return Err(error);
            }
            log::warn!("{}; stopping the agent to make room", error.sentence());
            self.make_room(update.package);
            write(&self.record(), update)
        })
    }

    fn reserve_file(&self) -> PathBuf {
        self.folder().join("reserve")
    }

    /// Takes the room that the way back needs, while it is there.
    fn reserve(&self, program_bytes: u64) -> Result<()> {
        let cannot = "cannot keep room for a way back, so nothing was changed";
        let path = self.reserve_file();
        files::replace(&path, b"", PRIVATE)?;
        let file = fs::OpenOptions::new().write(true).open(&path);
        let file = file.map_err(|error| files::explain(cannot, &error))?;
        let bytes = program_bytes.saturating_add(RESERVE_BYTES);
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            // A file system that cannot promise room.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            Err(error) => {
                drop(fs::remove_file(&path));
                Err(files::explain(cannot, &error.into()))
            }
        }
    }

    /// Stops the new version, which may be what fills the disk, and gives up what only it needs.
    fn make_room(&self, package: Option<PackageKind>) {
        self.ask_for_agent(&["stop"], "stop");
        let next = match package {
            None => self.folder().join("next"),
            Some(kind) => self.package(Side::Next, kind),
        };
        for path in [next, self.reserve_file()] {
            drop(fs::remove_file(path));
        }
    }

    fn note(&self, note: &UpdateNote) -> Result<()> {
        Journal::open(&self.directory)?;
        write(&self.directory.join("updates.json"), note)
    }

    fn has_systemd(&self) -> bool {
        self.system.is_there("/run/systemd/system")
    }

    /// Writes the service of the update, which a boot starts as well, and starts it.
    fn start_service(&self) -> Result<()> {
        let program = self.folder().join("prev").display().to_string();
        let systemd: &[&[&str]] = &[
            &["systemctl", "daemon-reload"],
            &["systemctl", "enable", "pipeops-update"],
            &["systemctl", "restart", "--no-block", "pipeops-update"],
        ];
        let openrc: &[&[&str]] = &[
            &["rc-update", "add", "pipeops-update", "default"],
            // To OpenRC a service whose process has ended is started still.
            &["rc-service", "pipeops-update", "zap"],
            &["rc-service", "pipeops-update", "start"],
        ];
        let (path, mode, text, commands) = if self.has_systemd() {
            let text = script("src/keeper/update/pipeops-update.service");
            (SYSTEMD_UNIT, 0o644, text, systemd)
        } else if self.system.is_there(OPENRC) {
            let text = script("src/keeper/update/pipeops-update.openrc");
            (OPENRC_SCRIPT, 0o755, text, openrc)
        } else {
            return Err(
                Error::new("there is no service manager that could watch an update")
                    .fix("update with install.sh, or replace the program and start it again"),
            );
        };
        self.system.guard(path)?;
        let text = text.replace("@PROGRAM@", &program);
        files::replace(&self.system.path(path), text.as_bytes(), mode)?;
        commands
            .iter()
            .try_for_each(|argv| self.system.run(argv).map(drop))
    }

    fn remove_service(&self) -> Result<()> {
        let path = if self.has_systemd() {
            SYSTEMD_UNIT
        } else {
            OPENRC_SCRIPT
        };
        if !self.system.is_there(path) {
            return Ok(());
        }
        if self.has_systemd() {
            self.system
                .run(&["systemctl", "disable", "pipeops-update"])?;
        } else {
            self.system.run(&["rc-service", "pipeops-update", "zap"])?;
            // To rc-update it is an error where this was cut off after it the last time.
            if self.system.path(OPENRC_LINK).is_symlink() {
                self.system
                    .run(&["rc-update", "delete", "pipeops-update", "default"])?;
            }
        }
        #[cfg(test)]
        super::journal::cut::after()?;
        let removed = fs::remove_file(self.system.path(path));
        removed.map_err(|error| files::explain(format!("cannot remove {path}"), &error))
    }

    /// Restarts the agent. Whether that worked is for the trial to judge. Crashes of the version
    /// before count for nothing: this one does not begin in safe mode for them.
    fn restart_agent(&self) {
        let record = self.system.path(RUNTIME_DIRECTORY).join(RECORD);
        match fs::remove_file(&record) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                log::warn!("cannot remove {}: {error}", record.display());
            }
            Ok(()) | Err(_) => {}
        }
        self.ask_for_agent(&["restart", "--no-block"], "restart");
    }

    /// Restarts the root helper with the program that stays. With systemd it ends by itself a
    /// minute after its last answer, and the next request starts the program that is in place.
    fn restart_helper(&self) {
        if self.has_systemd() {
            return;
        }
        let argv = ["rc-service", "--ifstarted", "pipeops-keeper", "restart"];
        if let Err(error) = self.system.run(&argv) {
            log::warn!("{}", error.sentence());
        }
    }

    /// Asks the service manager to stop or restart the agent.
    fn ask_for_agent(&self, systemd: &[&str], openrc: &str) {
        let command = if self.has_systemd() {
            [&["systemctl"], systemd, &["pipeops-agent"]].concat()
        } else {
            vec!["rc-service", "pipeops-agent", openrc]
        };
        if let Err(error) = self.system.run(&command) {
            log::warn!("{}", error.sentence());
        }
    }
}

/// Ends an update without a verdict: whoever installed another version wants it.
fn replaced(update: &mut Update) -> UpdateStep {
    update.why = Some("another version was installed meanwhile".to_owned());
    UpdateStep::Kept
}

/// The error of what may not be done beside an update.
pub(crate) fn is_under_way(why: impl Into<String>) -> Error {
    Error::new("an update is under way")
        .why(why)
        .fix("wait for its end: sudo pipeops-agent update --check (one that was stopped goes on by sudo pipeops-agent update)")
        .retry(Retry::Soon)
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let Some(content) = files::read_if_there(path, RECORD_BYTES_MAX)? else {
        return Ok(None);
    };
    serde_json::from_slice(&content).map(Some).map_err(|error| {
        Error::new(format!("cannot understand {}", path.display()))
            .because(&error)
            .fix("move it away, and update again")
    })
}

fn write(path: &Path, record: &(impl serde::Serialize + ?Sized)) -> Result<()> {
    let content = serde_json::to_vec_pretty(record)
        .map_err(|error| Error::new("cannot write an update down").because(&error))?;
    #[cfg(test)]
    super::journal::cut::after()?;
    files::replace(path, &content, PRIVATE)?;
    #[cfg(test)]
    super::journal::cut::after()?;
    Ok(())
}
