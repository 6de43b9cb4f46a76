//! Credentials of the dashboard: one-time tokens, a password, sessions, and the delay for failed
//! attempts.
//!
//! Secrets are here as hashes only. A wrong guess is counted before it is looked at, so that
//! neither a restart nor a second guess at the same time is a way around the wait.

use std::time::Duration;

use super::Role;
use crate::core::time::{Mono, Now, Wall};

/// Lifetime of a login token.
pub const TOKEN_LIFE: Duration = Duration::from_secs(3600);
/// Lifetime of a session.
pub const SESSION_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Tokens at a time; the oldest goes first.
const TOKENS_MAX: usize = 16;
/// Sessions at a time; the oldest ends first.
const SESSIONS_MAX: usize = 32;
/// Addresses whose guesses are counted one by one; all together are counted anyhow.
const SOURCES_MAX: usize = 64;
/// Wrong guesses of one address without a wait: people mistype.
const FREE_TRIES: u32 = 3;
/// The same of all addresses together: behind many there may be one.
const FREE_TRIES_OF_ALL: u32 = 20;
/// The longest wait after a wrong guess.
pub const WAIT_MAX: Duration = Duration::from_secs(900);
/// Time after which failed attempts are forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(24 * 3600);
/// The name under which all addresses are counted together.
const ALL: &str = "";
/// Source address of this machine. Its failed logins are counted separately, so that those of other
/// machines lock nobody out here.
pub const LOOPBACK: &str = "loopback";

/// SHA-256 of a secret.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Returns whether both are the same, in a time that does not tell how much of them is.
    fn is(&self, other: &Self) -> bool {
        let differences = self.0.iter().zip(&other.0);
        differences.fold(0, |all, (one, other)| all | (one ^ other)) == 0
    }

    /// A name for what it is of, which says nothing about it.
    pub fn name(&self) -> String {
        let [a, b, c, d, ..] = self.0;
        format!("{a:02x}{b:02x}{c:02x}{d:02x}")
    }
}

/// A password, as it is kept.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Password {
    /// Random salt of the hash.
    pub salt: [u8; 16],
    /// Its PBKDF2-HMAC-SHA256.
    pub hash: [u8; 32],
    /// Number of hash rounds.
    pub rounds: u32,
    /// Role that it grants.
    pub role: Role,
}

/// A token that has not been used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Token {
    /// SHA-256 of the token.
    pub hash: Hash,
    /// Role that it grants.
    pub role: Role,
    /// Expiry.
    pub until: Mono,
}

/// Session of a logged-in user.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Session {
    /// SHA-256 of the cookie's value.
    pub hash: Hash,
    /// Name in the audit.
    pub name: String,
    /// Role of the session.
    pub role: Role,
    /// Expiry.
    pub until: Mono,
}

/// Wrong guesses from one address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Guesses {
    /// The address.
    pub source: String,
    /// Number since the last success.
    pub count: u32,
    /// Time when the last one was.
    pub last: Mono,
}

impl Guesses {
    /// Returns whether these make somebody at that address wait.
    fn are_about(&self, source: &str) -> bool {
        self.source == source || (self.source == ALL && source != LOOPBACK)
    }

    fn wait(&self) -> Duration {
        let free = if self.source == ALL {
            FREE_TRIES_OF_ALL
        } else {
            FREE_TRIES
        };
        match self.count.checked_sub(free + 1) {
            None => Duration::ZERO,
            Some(doublings) => Duration::from_secs(1 << doublings.min(20)).min(WAIT_MAX),
        }
    }
}

/// Everything that opens the dashboard.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Credentials {
    /// The password, where there is one.
    pub password: Option<Password>,
    /// The oldest first.
    pub tokens: Vec<Token>,
    /// The oldest first.
    pub sessions: Vec<Session>,
    /// In no order.
    pub guesses: Vec<Guesses>,
}

impl Credentials {
    /// Credentials after the file could not be read: nothing is valid, and failed attempts wait the
    /// longest delay.
    pub fn unreadable(now: Mono) -> Self {
        let all = [ALL, LOOPBACK].map(|source| Guesses {
            source: source.to_owned(),
            count: u32::MAX,
            last: now,
        });
        Self {
            guesses: all.into(),
            ..Self::default()
        }
    }

    /// Checks whether an address may log in now; otherwise returns its delay.
    pub fn may_guess(&self, source: &str, now: Mono) -> Result<(), Duration> {
        let wait = |guesses: &Guesses| guesses.wait().saturating_sub(now.since(guesses.last));
        let of_both = self
            .guesses
            .iter()
            .filter(|guesses| guesses.are_about(source));
        match of_both.map(wait).max() {
            Some(wait) if !wait.is_zero() => Err(wait),
            Some(_) | None => Ok(()),
        }
    }

    /// Counts a guess from that address as wrong. To be kept before the guess is looked at.
    pub fn guess(&mut self, source: &str, now: Mono) {
        self.guesses
            .retain(|guesses| now.since(guesses.last) < FORGET_AFTER);
        let of_all = (source != LOOPBACK).then_some(ALL);
        for source in [Some(source), of_all].into_iter().flatten() {
            match self.guesses.iter_mut().find(|known| known.source == source) {
                Some(known) => {
                    known.count = known.count.saturating_add(1);
                    known.last = now;
                }
                None => self.guesses.push(Guesses {
                    source: source.to_owned(),
                    count: 1,
                    last: now,
                }),
            }
        }
        if self.guesses.len() > SOURCES_MAX {
            let others = self.guesses.iter().enumerate();
            let others =
                others.filter(|(_, guesses)| guesses.source != ALL && guesses.source != LOOPBACK);
            if let Some((mildest, _)) =
                others.min_by_key(|(_, guesses)| (guesses.count, guesses.last))
            {
                self.guesses.swap_remove(mildest);
            }
        }
    }

    /// Clears the wrong guesses from an address after a login.
    pub fn clear_guesses(&mut self, source: &str) {
        self.guesses.retain(|guesses| !guesses.are_about(source));
    }

    /// Takes a new token up.
    pub fn issue(&mut self, hash: Hash, role: Role, now: Mono) {
        self.forget(now);
        if self.tokens.len() >= TOKENS_MAX {
            self.tokens.remove(0);
        }
        self.tokens.push(Token {
            hash,
            role,
            until: now.after(TOKEN_LIFE),
        });
    }

    /// Uses a token up: what it opens. `None`: there is none like it.
    pub fn spend(&mut self, hash: &Hash, now: Mono) -> Option<Role> {
        self.forget(now);
        let place = self.tokens.iter().position(|token| token.hash.is(hash))?;
        Some(self.tokens.remove(place).role)
    }

    /// Begins a session, and says what it is called.
    pub fn open(&mut self, hash: Hash, role: Role, now: Mono) -> String {
        self.forget(now);
        if self.sessions.len() >= SESSIONS_MAX {
            self.sessions.remove(0);
        }
        let name = hash.name();
        self.sessions.push(Session {
            hash,
            name: name.clone(),
            role,
            until: now.after(SESSION_LIFE),
        });
        name
    }

    /// The session of this cookie.
    pub fn session(&self, hash: &Hash, now: Mono) -> Option<&Session> {
        let mut living = self.sessions.iter().filter(|known| known.until > now);
        living.find(|known| known.hash.is(hash))
    }

    /// Ends a session. Says whether there was one.
    pub fn close(&mut self, hash: &Hash) -> bool {
        let before = self.sessions.len();
        self.sessions.retain(|known| !known.hash.is(hash));
        self.sessions.len() < before
    }

    /// Ends all sessions and takes back all tokens. Says how many sessions there were.
    pub fn close_all(&mut self, now: Mono) -> usize {
        self.forget(now);
        self.tokens.clear();
        std::mem::take(&mut self.sessions).len()
    }

    fn forget(&mut self, now: Mono) {
        self.tokens.retain(|token| token.until > now);
        self.sessions.retain(|session| session.until > now);
    }
}

/// A moment as it is kept: by the wall clock, since the other one restarts with each boot.
pub fn kept(until: Mono, now: Now) -> Wall {
    let left = until.since(now.mono).as_millis();
    let left = i64::try_from(left).unwrap_or(i64::MAX);
    Wall::from_millis(now.wall.millis().saturating_add(left))
}

/// The same moment after a restart. A wall clock that went back in between makes nobody's life
/// longer than a new one.
pub fn ahead(until: Wall, life: Duration, now: Now) -> Mono {
    let left = until.millis().saturating_sub(now.wall.millis());
    let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
    now.mono.after(left.min(life))
}

/// A moment of the past after a restart. A wall clock that went back in between, or one that is not
/// set yet, makes no wait shorter.
pub fn behind(at: Wall, now: Now) -> Mono {
    let ago = now.wall.millis().saturating_sub(at.millis());
    let ago = Duration::from_millis(u64::try_from(ago).unwrap_or(0));
    let since_boot = now.mono.elapsed_since_boot();
    Mono::since_boot(since_boot.saturating_sub(ago))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono::since_boot(Duration::from_secs(100_000 + seconds))
    }

    fn hash(byte: u8) -> Hash {
        Hash([byte; 32])
    }

    #[test]
    fn a_token_logs_in_once_and_not_for_ever() {
        let mut keys = Credentials::default();
        keys.issue(hash(1), Role::Viewer, at(0));
        keys.issue(hash(2), Role::Operator, at(0));
        assert_eq!(keys.spend(&hash(3), at(1)), None);
        assert_eq!(keys.spend(&hash(1), at(1)), Some(Role::Viewer));
        assert_eq!(keys.spend(&hash(1), at(1)), None);
        assert_eq!(keys.spend(&hash(2), at(TOKEN_LIFE.as_secs())), None);
    }

    #[test]
    fn a_session_lasts_a_week_unless_it_is_ended() {
        let mut keys = Credentials::default();
        let name = keys.open(hash(0xab), Role::Operator, at(0));
        assert_eq!(name, "abababab");
        keys.open(hash(2), Role::Viewer, at(0));
        let role = |keys: &Credentials, byte, seconds| {
            keys.session(&hash(byte), at(seconds))
                .map(|known| known.role)
        };
        let week = SESSION_LIFE.as_secs();
        assert_eq!(role(&keys, 0xab, week - 1), Some(Role::Operator));
        assert_eq!(role(&keys, 0xab, week), None);
        assert!(keys.close(&hash(0xab)));
        assert!(!keys.close(&hash(0xab)));
        assert_eq!(role(&keys, 0xab, 1), None);
        assert_eq!(role(&keys, 2, 1), Some(Role::Viewer));
        keys.issue(hash(9), Role::Operator, at(1));
        assert_eq!(keys.close_all(at(1)), 1);
        assert_eq!(role(&keys, 2, 1), None);
        assert_eq!(keys.spend(&hash(9), at(1)), None);
    }

    #[test]
    fn sessions_and_tokens_are_bounded_and_the_newest_stay() {
        let mut keys = Credentials::default();
        for byte in 0..=100 {
            keys.open(hash(byte), Role::Viewer, at(0));
            keys.issue(hash(byte), Role::Viewer, at(0));
        }
        assert_eq!((keys.sessions.len(), keys.tokens.len()), (32, 16));
        assert!(keys.session(&hash(100), at(0)).is_some());
        assert_eq!(keys.spend(&hash(100), at(0)), Some(Role::Viewer));
    }

    #[test]
    fn who_guesses_waits_twice_as_long_each_time_up_to_a_quarter_of_an_hour() {
        let mut keys = Credentials::default();
        let mut now = 0;
        let mut waits = Vec::new();
        for _ in 0..16 {
            assert_eq!(keys.may_guess("a", at(now)), Ok(()));
            keys.guess("a", at(now));
            let wait = keys.may_guess("a", at(now)).err().unwrap_or_default();
            waits.push(wait.as_secs());
            now += wait.as_secs();
        }
        assert_eq!(
            waits,
            [
                0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900
            ]
        );
        // Others are let in meanwhile, and so is this one once it knew, or after a day.
        keys.guess("a", at(now));
        assert_eq!(keys.may_guess("b", at(now)), Ok(()));
        let mut knowing = keys.clone();
        knowing.clear_guesses("a");
        assert_eq!(knowing.may_guess("a", at(now)), Ok(()));
        keys.guess("a", at(now + 24 * 3600));
        assert_eq!(keys.may_guess("a", at(now + 24 * 3600)), Ok(()));
    }

    #[test]
    fn many_addresses_are_not_many_guesses() {
        let mut keys = Credentials::default();
        let mut let_in = 0;
        for n in 0..1000 {
            let source = format!("192.0.2.{n}");
            if keys.may_guess(&source, at(0)).is_ok() {
                keys.guess(&source, at(0));
                let_in += 1;
            }
        }
        assert_eq!(let_in, 21);
        for n in 0..1000 {
            keys.guess(&format!("192.0.2.{n}"), at(0));
        }
        assert!(keys.guesses.len() <= SOURCES_MAX + 1);
        assert!(keys.may_guess("198.51.100.1", at(0)).is_err());
    }

    #[test]
    fn guesses_from_elsewhere_make_nobody_wait_on_this_machine() {
        let mut keys = Credentials::default();
        for n in 0..100 {
            keys.guess(&format!("192.0.2.{n}"), at(0));
        }
        assert!(keys.may_guess("198.51.100.1", at(0)).is_err());
        assert_eq!(keys.may_guess(LOOPBACK, at(0)), Ok(()));
        // Here it is as slow for whoever guesses here, and who knew here has said nothing about the
        // others.
        for _ in 0..5 {
            keys.guess(LOOPBACK, at(0));
        }
        assert!(keys.may_guess(LOOPBACK, at(0)).is_err());
        keys.clear_guesses(LOOPBACK);
        assert_eq!(keys.may_guess(LOOPBACK, at(0)), Ok(()));
        assert!(keys.may_guess("198.51.100.1", at(0)).is_err());
    }

    #[test]
    fn a_restart_makes_no_wait_shorter_and_no_life_longer() {
        let before = Now {
            mono: at(0),
            wall: Wall::from_millis(1_000_000),
        };
        let until = kept(at(60), before);
        let after = |wall_s: i64| Now {
            mono: Mono::since_boot(Duration::from_secs(5)),
            wall: Wall::from_millis(1_000_000 + wall_s * 1000),
        };
        let left = |wall_s| {
            let now = after(wall_s);
            ahead(until, TOKEN_LIFE, now).since(now.mono).as_secs()
        };
        assert_eq!((left(20), left(60), left(90)), (40, 0, 0));
        // In 1970 again: at most a whole life.
        assert_eq!(left(-1_000_000), TOKEN_LIFE.as_secs());
        let ago = |wall_s| {
            let now = after(wall_s);
            now.mono.since(behind(before.wall, now)).as_secs()
        };
        assert_eq!((ago(3), ago(-1_000_000)), (3, 0));
        let keys = Credentials::unreadable(at(0));
        assert_eq!(keys.may_guess("a", at(0)), Err(WAIT_MAX));
        assert_eq!(keys.may_guess("a", at(900)), Ok(()));
        assert_eq!(keys.may_guess(LOOPBACK, at(0)), Err(WAIT_MAX));
    }
}
