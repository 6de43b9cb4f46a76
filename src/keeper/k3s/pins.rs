//! Pins of images in k3s' containerd, as the agent asks for them.
//!
//! They are no changes of the journal: the set of the last request holds, the state is in
//! containerd, and taking a pin off an image does nothing to what runs.

use std::time::Duration;

use super::super::{Keeper, system::System};
use crate::{
    core::{
        images::ImageDigest,
        k3s::pins::{self, Names},
    },
    error::{Error, Result},
    host::exec::Limits,
    wire::keeper::Pinned,
};

/// Names of images are short; a node has some hundred of them.
const LIST: Limits = Limits {
    within: Duration::from_secs(20),
    output_bytes_max: 1024 * 1024,
};

impl Keeper {
    /// Pins these images, as far as they are on this node, and takes our pin off all others.
    pub fn k3s_pin(&self, wanted: &[ImageDigest]) -> Result<Pinned> {
        let cannot = |why: &str| Error::new("no image is pinned").why(why.to_owned());
        if self.managed()?.is_none() {
            return Err(cannot(
                "k3s on this machine is not managed by pipeops-agent",
            ));
        }
        // The lock is looked at and not kept: pins hold up neither a change nor the watch.
        drop(self.open()?);
        if let Some(id) = self.unfinished()? {
            return Err(cannot(&format!("the change {id} is not finished")));
        }
        if !self.system.is_there(pins::SOCKET) {
            return Err(cannot("containerd of k3s does not run"));
        }
        let names = Names {
            all: self.system.image_names(None)?,
            pinned: self.system.image_names(Some(&pins::pinned()))?,
            ours: self.system.image_names(Some(&pins::ours()))?,
        };
        let labels = pins::plan(wanted, &names);
        let unpin = labels.unpin.iter().map(|name| pins::unpin(name));
        let pin = labels.pin.iter().map(|name| pins::pin(name));
        for argv in unpin.chain(pin) {
            self.system.run(&argv)?;
        }
        if !labels.unpin.is_empty() || !labels.pin.is_empty() {
            log::info!(
                "images of apps: pinned {}, no longer pinned {}",
                labels.pin.len(),
                labels.unpin.len()
            );
        }
        let images = labels.pinned.iter().map(ImageDigest::to_string);
        Ok(Pinned {
            images: images.collect(),
            left: u64::try_from(labels.left).unwrap_or(u64::MAX),
        })
    }
}

impl System {
    fn image_names(&self, filter: Option<&str>) -> Result<Vec<String>> {
        Ok(pins::names(&self.images(filter)?))
    }

    /// Names of images in containerd, a line each.
    pub(super) fn images(&self, filter: Option<&str>) -> Result<String> {
        let argv = pins::list_command(filter);
        let argv: Vec<_> = argv.iter().map(String::as_str).collect();
        Ok(self.run_unattended(&argv, LIST, &[])?.stdout)
    }
}
