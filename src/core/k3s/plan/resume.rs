//! The service that goes on with a change after a power cut.

use crate::core::k3s::{
    step::{Step, file, gone},
    texts::{self, Init},
};

pub(super) const RESUME_UNIT: &str = "/etc/systemd/system/pipeops-k3s-resume.service";

pub(super) const RESUME_WANTS_LINK: &str =
    "/etc/systemd/system/multi-user.target.wants/pipeops-k3s-resume.service";

pub(super) const RESUME_SERVICE: &str = "/etc/init.d/pipeops-k3s-resume";

pub(super) const RESUME_RUNLEVEL_LINK: &str = "/etc/runlevels/default/pipeops-k3s-resume";

/// The service that goes on after a power cut, for the time of a change.
pub fn resume(init: Init, program: &str, data_dir: &str) -> Vec<Step> {
    let text = texts::resume(init, program, data_dir);
    let link = |path: &str, target: &str| Step::Link {
        path: path.to_owned(),
        target: target.to_owned(),
    };
    match init {
        Init::Systemd => vec![
            file(RESUME_UNIT, text, 0o644),
            link(RESUME_WANTS_LINK, RESUME_UNIT),
        ],
        Init::OpenRc => vec![
            file(RESUME_SERVICE, text, 0o755),
            link(RESUME_RUNLEVEL_LINK, RESUME_SERVICE),
        ],
    }
}

/// The end of [`resume`].
pub fn no_resume(init: Init) -> Vec<Step> {
    let paths = match init {
        Init::Systemd => [RESUME_WANTS_LINK, RESUME_UNIT],
        Init::OpenRc => [RESUME_RUNLEVEL_LINK, RESUME_SERVICE],
    };
    paths.map(gone).into()
}

/// Returns whether a path is of the service that goes on after a power cut.
pub fn is_resume(path: &str) -> bool {
    [
        RESUME_UNIT,
        RESUME_WANTS_LINK,
        RESUME_SERVICE,
        RESUME_RUNLEVEL_LINK,
    ]
    .contains(&path)
}
