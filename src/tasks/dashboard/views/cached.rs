//! Cache of a costly response that changes slowly: computed once for all who ask at the same time.

use std::{cell::RefCell, fmt, rc::Rc, time::Duration};

use crate::core::time::{Mono, Now};

/// The last answer.
pub struct Cached<T> {
    clock: fn() -> Now,
    keep_for: Duration,
    last: RefCell<Option<(Mono, Rc<T>)>>,
    making: smol::lock::Mutex<()>,
}

impl<T> fmt::Debug for Cached<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cached")
    }
}

impl<T> Cached<T> {
    /// Nothing was asked yet.
    pub fn new(clock: fn() -> Now, keep_for: Duration) -> Self {
        Self {
            clock,
            keep_for,
            last: RefCell::default(),
            making: smol::lock::Mutex::new(()),
        }
    }

    /// The last answer where it is not too old, else a new one.
    pub async fn get(&self, make: impl Future<Output = T>) -> Rc<T> {
        let _turn = self.making.lock().await;
        let now = (self.clock)().mono;
        if let Some((at, known)) = &*self.last.borrow()
            && now.since(*at) < self.keep_for
        {
            return Rc::clone(known);
        }
        let answer = Rc::new(make.await);
        self.last.replace(Some((now, Rc::clone(&answer))));
        answer
    }

    /// Forgets the last answer.
    pub fn forget(&self) {
        self.last.replace(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_again_gets_the_same_until_it_is_forgotten() {
        let kept = Cached::new(Now::default, Duration::from_secs(1));
        let get = |value| *smol::block_on(kept.get(async move { value }));
        assert_eq!((get(1), get(2)), (1, 1));
        kept.forget();
        assert_eq!(get(3), 3);
    }
}
