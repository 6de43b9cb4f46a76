//! Images of apps that stay on this node while no Pod runs them: what a way back and a new Pod
//! need while their registry is away.
//!
//! Every agent does it for its own node, also one that stands by. Where there is no k3s of ours,
//! or no root helper that knows how, nothing is pinned.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    time::Duration,
};

use smol::{
    Timer,
    channel::{Receiver, Sender, bounded},
    future::{BoxedLocal, FutureExt as _},
};

use super::{Apps, ledger::api_error};
use crate::{
    core::{
        apps::{App, images_to_keep},
        backoff::Backoff,
        images::ImageDigest,
        k3s::pins::PINS_MAX,
        order::GatherExt as _,
    },
    error::{Error, Result, Retry},
    host::random,
    wire::keeper::Pinned,
};

/// Pins these images on this node, and no others.
pub type PinImages = Box<dyn Fn(Vec<String>) -> BoxedLocal<Result<Pinned>>>;

/// Interval at which the set is repeated: an image that is pulled again has lost its pin.
const EVERY: Duration = Duration::from_secs(3_600);
/// Pause after a failure, which doubles.
const RETRY_FIRST: Duration = Duration::from_secs(60);
/// Requests for one set: each writes 32 labels, an image may have several names, and as many pins
/// of the set before may go.
const REQUESTS_MAX: usize = 64;

pub(super) struct Pins {
    pin: PinImages,
    wakeups: (Sender<()>, Receiver<()>),
    /// Digests of the images that are pinned on this node.
    pinned: RefCell<BTreeSet<String>>,
    /// True from the first set of images until an empty set was carried out: an agent without
    /// apps asks nothing.
    has_asked: Cell<bool>,
}

impl Pins {
    pub(super) fn new(pin: PinImages) -> Self {
        Self {
            pin,
            wakeups: bounded(1),
            pinned: RefCell::default(),
            has_asked: Cell::default(),
        }
    }

    /// Wakes the comparison of the set.
    pub(super) fn wake(&self) {
        // A word that waits already says the same.
        self.wakeups.0.try_send(()).ok();
    }

    /// Returns whether an image is pinned on this node.
    pub(super) fn has(&self, digest: &str) -> bool {
        self.pinned.borrow().contains(digest)
    }

    async fn ask(&self, wanted: &[ImageDigest]) -> Result<()> {
        let images: Vec<_> = wanted.iter().map(ImageDigest::to_string).collect();
        for _ in 0..REQUESTS_MAX {
            let answer = (self.pin)(images.clone()).await;
            let answer = answer.inspect_err(|_| self.pinned.borrow_mut().clear())?;
            *self.pinned.borrow_mut() = answer.images.into_iter().gather();
            if answer.left == 0 {
                return Ok(());
            }
        }
        Err(Error::new("the root helper still has images to pin").retry(Retry::Later))
    }
}

impl Apps {
    /// Keeps images of apps on this node.
    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    pub async fn keep_images(&self) {
        let mut backoff = Backoff::new(RETRY_FIRST, EVERY);
        let mut told = String::new();
        loop {
            let pause = match self.pin_images().await {
                Ok(()) => {
                    backoff.reset();
                    told.clear();
                    EVERY
                }
                Err(error) => {
                    let sentence = error.sentence();
                    if told != sentence {
                        log::debug!("images of apps are not pinned on this node: {sentence}");
                        told = sentence;
                    }
                    backoff.next(random::jitter())
                }
            };
            let waited = async {
                Timer::after(pause).await;
            };
            let wakeups = async {
                self.pins.wakeups.1.recv().await.ok();
            };
            waited.or(wakeups).await;
        }
    }

    async fn pin_images(&self) -> Result<()> {
        let apps = self.ledger().list().await.map_err(api_error)?;
        let wanted = images_to_keep(&apps, PINS_MAX);
        if wanted.is_empty() && !self.pins.has_asked.get() {
            return Ok(());
        }
        self.pins.has_asked.set(true);
        self.pins.ask(&wanted).await?;
        self.pins.has_asked.set(!wanted.is_empty());
        Ok(())
    }

    /// Returns whether an image of what runs stays on all nodes, because it is pinned on the only
    /// one.
    pub(super) fn stays(&self, app: &App, image: &str) -> bool {
        let is_only_node = self.shared_state.cluster.borrow().nodes == Some(1);
        let overlay = app.revision(app.running).map(|running| &running.overlay);
        let digest = overlay.and_then(|overlay| overlay.known_digest(image));
        is_only_node && digest.is_some_and(|digest| self.pins.has(digest))
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    /// A root helper that writes `count` labels for each request, and the number of requests.
    fn helper(count: u64) -> (Pins, Rc<RefCell<u64>>) {
        let asked = Rc::new(RefCell::new(0));
        let counted = Rc::clone(&asked);
        let pins = Pins::new(Box::new(move |images| {
            let asked = *counted.borrow() + 1;
            *counted.borrow_mut() = asked;
            let all = u64::try_from(images.len()).unwrap();
            let left = all.saturating_sub(asked * count);
            Box::pin(async move { Ok(Pinned { images, left }) })
        }));
        (pins, asked)
    }

    fn wanted() -> Vec<ImageDigest> {
        let digests = (0..PINS_MAX).map(|it| ImageDigest::parse(&format!("sha256:{it:064x}")));
        digests.map(Option::unwrap).collect()
    }

    #[test]
    fn a_large_set_is_asked_for_until_nothing_is_left() {
        let (pins, asked) = helper(32);
        smol::block_on(pins.ask(&wanted())).unwrap();
        assert_eq!(*asked.borrow(), 8);
        assert!(pins.has(&wanted()[255].to_string()) && !pins.has("sha256:"));
    }

    #[test]
    fn a_helper_that_comes_to_no_end_is_not_asked_for_ever() {
        let (pins, asked) = helper(0);
        smol::block_on(pins.ask(&wanted())).unwrap_err();
        assert_eq!(*asked.borrow(), 64);
    }
}
