//! Certificate of the dashboard for other machines: the user's own, or a self-signed one. Nobody
//! vouches for that one, so a person compares its fingerprint once; it is replaced as seldom as
//! possible.

use std::{
    cell::RefCell,
    net::IpAddr,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::{
    rand::{SecureRandom, SystemRandom},
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair},
};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject};

use crate::{
    core::{order::OrderExt as _, time::Wall},
    error::{Error, Result},
    files,
    net::served::Served,
    wire::certificate::{Fields, signed, to_be_signed, validity},
};

/// Lifetime of a self-signed certificate: some systems reject those of more than 825 days.
const LIFE: Duration = Duration::from_secs(820 * 24 * 3600);
/// Time before its end at which it is renewed.
const MARGIN: Duration = Duration::from_secs(60 * 24 * 3600);
/// Backdated by one day to tolerate clock skew.
const BEFORE: Duration = Duration::from_secs(24 * 3600);
/// Time before the end of the user's own certificate at which a warning begins. Automatic renewals
/// happen earlier.
const SOON: Duration = Duration::from_secs(7 * 24 * 3600);
/// A chain of some certificates is ten thousand bytes.
const FILE_BYTES_MAX: usize = 256 * 1024;

/// The certificate that is shown now, for everybody who shows it. It may be replaced while they do.
#[derive(Clone, Debug)]
pub struct Shown(Rc<RefCell<Served>>);

impl Shown {
    /// Begins with this one.
    pub fn new(served: Served) -> Self {
        Self(Rc::new(RefCell::new(served)))
    }

    /// The current one, for new connections.
    pub fn now(&self) -> Served {
        self.0.borrow().clone()
    }

    /// Shows another one from now on. Who is connected stays so.
    pub fn replace(&self, served: Served) {
        self.0.replace(served);
    }
}

/// Origin of the certificate.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Origin {
    /// These files of the user: the certificate with those up to its authority, and its key.
    Files {
        /// PEM.
        certificate: PathBuf,
        /// PEM.
        key: PathBuf,
        /// Configured names that it must contain.
        names: Vec<String>,
    },
    /// It is made here.
    Own {
        /// File with the certificate and its key.
        file: PathBuf,
        /// Names that it must contain; without one of these, a new one is made.
        names: Vec<String>,
        /// Addresses that a new one also contains. They come and go with the network, and do not
        /// change a certificate that somebody has compared.
        addresses: Vec<IpAddr>,
    },
}

/// Current time.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    /// Never before a time that has certainly been.
    pub now: Wall,
    /// True if the clock may have been set since boot. By one that was not, nothing that is there
    /// is judged.
    pub is_believed: bool,
}

/// A certificate that can be shown.
#[derive(Debug)]
pub struct Loaded {
    /// The certificate.
    pub served: Served,
    /// Until when it holds, where it says so.
    pub until: Option<Wall>,
    /// Problem with a certificate that is usable all the same.
    pub doubt: Option<Error>,
    /// The fingerprint of the one that it was made in the place of.
    pub replaces: Option<String>,
}

/// Prefix of every problem with the certificate.
const UNUSABLE: &str = "the dashboard cannot use its certificate";

impl Origin {
    /// Reads the certificate, or makes it. Blocking, and some milliseconds of arithmetic: call it
    /// in the pool.
    pub fn load(&self, time: Time) -> Result<Loaded> {
        let loaded = match self {
            Self::Files {
                certificate,
                key,
                names,
            } => of_user(certificate, key, names, time),
            Self::Own {
                file,
                names,
                addresses,
            } => own(file, names, addresses, time),
        };
        loaded.map_err(|error| error.within(UNUSABLE))
    }

    /// Describes the certificate or its problem, in the words of [`Self::load`]; makes and changes
    /// nothing. Blocking.
    pub fn inspect(&self, time: Time) -> Result<String> {
        let until = match self {
            Self::Files { .. } => {
                let loaded = self.load(time)?;
                match loaded.doubt {
                    Some(doubt) => return Err(doubt),
                    None => loaded.until,
                }
            }
            Self::Own { file, names, .. } => {
                let kept = files::read_if_there(file, FILE_BYTES_MAX);
                let Some(kept) = kept.map_err(|error| error.within(UNUSABLE))? else {
                    return Ok("the agent creates it at its next start".to_owned());
                };
                let served = Served::from_pem(&kept, &kept)
                    .map_err(|error| Error::from(&error).within(UNUSABLE));
                let stale = |error: Error| error.fix(MADE_ANEW);
                let served = served.map_err(stale)?;
                let held = validity(served.certificate());
                let ended = held.and_then(|held| term(held, time, Duration::ZERO));
                if let Some(doubt) = ended.or_else(|| uncovered_name(&served, names)) {
                    return Err(stale(doubt));
                }
                held.map(|(_, to)| to)
            }
        };
        Ok(until.map_or_else(
            || "its validity cannot be read".to_owned(),
            |until| format!("valid until {}", until.rfc3339()),
        ))
    }
}

/// Note on a self-signed certificate: the agent checks it at the start and while it runs.
const MADE_ANEW: &str =
    "start or restart the agent: it creates a new one, with the same key if that is readable";

fn of_user(certificate: &Path, key: &Path, names: &[String], time: Time) -> Result<Loaded> {
    let read = |setting: &str, path: &Path| {
        files::read(path, FILE_BYTES_MAX).map_err(|error| {
            let fix = format!(
                "make {setting} readable for the user pipeops-agent: copy it in a renewal hook (install -m 600 -o pipeops-agent …); \
                 or remove dashboard.cert_file and dashboard.key_file to use a self-signed certificate"
            );
            error.fix(fix)
        })
    };
    let certificate_pem = read("dashboard.cert_file", certificate)?;
    let key_pem = read("dashboard.key_file", key)?;
    let served = Served::from_pem(&certificate_pem, &key_pem).map_err(|error| {
        let what = format!("{} with {}", certificate.display(), key.display());
        Error::new(what).because(&error).fix(
            "set dashboard.cert_file to the certificate of this machine, followed by its chain, and dashboard.key_file to its key",
        )
    })?;
    let held = validity(served.certificate());
    let ends = held.and_then(|held| term(held, time, SOON));
    let ends = ends.map(|doubt| {
        doubt.fix(format!(
            "renew {}: the dashboard reloads it within a minute",
            certificate.display()
        ))
    });
    let is_strange = || {
        let fix = format!(
            "use a certificate in {} that also contains it, or remove it from dashboard.names",
            certificate.display()
        );
        uncovered_name(&served, names).map(|doubt| doubt.fix(fix))
    };
    Ok(Loaded {
        doubt: ends.or_else(|| files::exposed(key)).or_else(is_strange),
        until: held.map(|(_, to)| to),
        served,
        replaces: None,
    })
}

/// Problem with the validity period; `soon` is the time before its end at which that is reported.
fn term((from, to): (Wall, Wall), time: Time, soon: Duration) -> Option<Error> {
    let verb = match () {
        () if !time.is_believed => return None,
        () if from > time.now => format!("holds from {} on only", from.rfc3339()),
        () if to <= time.now => format!("ended {}", to.rfc3339()),
        () if to <= later(time.now, soon) => format!("ends {}", to.rfc3339()),
        () => return None,
    };
    Some(Error::new(format!(
        "the certificate of the dashboard {verb}"
    )))
}

/// Error for the first of these names that the certificate is not for.
fn uncovered_name(served: &Served, names: &[String]) -> Option<Error> {
    let name = names.iter().find(|name| !served.is_for(name))?;
    Some(Error::new(format!(
        "the certificate of the dashboard is not for {name}"
    )))
}

/// The certificate in this file with its key; made where there is none, where it does not hold
/// (much longer), or lacks one of the names.
fn own(file: &Path, names: &[String], addresses: &[IpAddr], time: Time) -> Result<Loaded> {
    let kept = files::read_if_there(file, FILE_BYTES_MAX)?;
    let before = kept
        .as_ref()
        .and_then(|pem| Served::from_pem(pem, pem).ok());
    let held = before
        .as_ref()
        .and_then(|before| validity(before.certificate()));
    if let (Some(before), Some((from, to))) = (&before, held)
        && names.iter().all(|name| before.is_for(name))
        && (!time.is_believed || (from <= time.now && later(time.now, MARGIN) < to))
    {
        return Ok(Loaded {
            served: before.clone(),
            until: Some(to),
            doubt: None,
            replaces: None,
        });
    }
    // The key stays the same, for who has pinned that.
    let key = kept.and_then(|pem| PrivatePkcs8KeyDer::from_pem_slice(&pem).ok());
    let pem = make(key, names, addresses, time.now)?;
    files::replace(file, pem.as_bytes(), files::PRIVATE)?;
    let served =
        Served::from_pem(pem.as_bytes(), pem.as_bytes()).map_err(|error| Error::from(&error))?;
    Ok(Loaded {
        until: validity(served.certificate()).map(|(_, to)| to),
        served,
        doubt: None,
        replaces: before.map(|before| before.fingerprint().to_owned()),
    })
}

fn make(
    key: Option<PrivatePkcs8KeyDer<'_>>,
    names: &[String],
    addresses: &[IpAddr],
    now: Wall,
) -> Result<String> {
    let cannot = || Error::new("cannot make a certificate for the dashboard");
    let random = SystemRandom::new();
    let pair = |key: &[u8]| {
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, key, &random)
            .map_err(|error| cannot().why(error.to_string()))
    };
    let kept = key.map(|key| key.secret_pkcs8_der().to_vec());
    let key = match kept.filter(|key| pair(key).is_ok()) {
        Some(key) => key,
        None => EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random)
            .map_err(|ring::error::Unspecified| cannot())?
            .as_ref()
            .to_vec(),
    };
    let pair = pair(&key)?;
    let mut serial = [0; 16];
    random
        .fill(&mut serial)
        .map_err(|ring::error::Unspecified| cannot())?;
    // An address that it has to be for is among the names.
    let (mut plain, mut all) = (Vec::new(), addresses.to_vec());
    for name in names {
        match name.parse() {
            Ok(address) => all.push(address),
            Err(_no_address) => plain.push(name.clone()),
        }
    }
    all.order();
    all.dedup();
    let from = Wall::from_millis(now.millis().saturating_sub(millis(BEFORE)));
    let body = to_be_signed(&Fields {
        serial,
        common_name: plain.first().map_or("pipeops-agent", String::as_str),
        names: &plain,
        addresses: &all,
        from,
        to: later(from, LIFE),
        public_key: pair.public_key().as_ref(),
    });
    let signature = pair
        .sign(&random, &body)
        .map_err(|ring::error::Unspecified| cannot())?;
    let certificate = signed(&body, signature.as_ref());
    Ok(pem("CERTIFICATE", &certificate) + &pem("PRIVATE KEY", &key))
}

fn later(wall: Wall, time: Duration) -> Wall {
    Wall::from_millis(wall.millis().saturating_add(millis(time)))
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

fn pem(kind: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {kind}-----\n");
    for line in STANDARD.encode(der).as_bytes().chunks(64) {
        text.extend(line.iter().copied().map(char::from));
        text.push('\n');
    }
    text + &format!("-----END {kind}-----\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time {
        now: Wall::from_millis(1_800_000_000_000),
        is_believed: true,
    };
    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn origin(folder: &Path, names: &[&str], addresses: &[&str]) -> Origin {
        Origin::Own {
            file: folder.join("dashboard.pem"),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            addresses: addresses
                .iter()
                .map(|address| address.parse().unwrap())
                .collect(),
        }
    }

    fn key_of(folder: &Path) -> String {
        let pem = std::fs::read_to_string(folder.join("dashboard.pem")).unwrap();
        pem.split_once("-----BEGIN PRIVATE KEY")
            .unwrap()
            .1
            .to_owned()
    }

    fn after(days: u32) -> Time {
        Time {
            now: later(NOW.now, DAY * days),
            ..NOW
        }
    }

    #[test]
    fn it_is_for_the_names_and_addresses_of_the_machine_and_its_owners_eyes() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["edge-7", "edge-7.local", "localhost", "192.0.2.9"];
        let origin = origin(folder.path(), &names, &["192.0.2.7", "2001:db8::7"]);
        let loaded = origin.load(NOW).unwrap();
        for name in names.into_iter().chain(["192.0.2.7", "2001:db8::7"]) {
            assert!(loaded.served.is_for(name), "{name}");
        }
        for name in ["edge-8", "192.0.2.8", "edge-7.example", "", "a b"] {
            assert!(!loaded.served.is_for(name), "{name}");
        }
        let file = std::fs::metadata(folder.path().join("dashboard.pem")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&file.permissions());
        assert_eq!(mode & 0o777, 0o600);
        let (from, to) = validity(loaded.served.certificate()).unwrap();
        assert_eq!(later(from, BEFORE), NOW.now);
        assert!(to < later(from, DAY * 825), "{}", to.rfc3339());
    }

    #[test]
    fn it_stays_the_same_while_it_holds_and_its_key_longer() {
        let folder = tempfile::tempdir().unwrap();
        let here = |names: &[&str], addresses: &[&str], time| {
            origin(folder.path(), names, addresses).load(time).unwrap()
        };
        let print = |loaded: &Loaded| loaded.served.fingerprint().to_owned();
        let first = here(&["edge-7"], &["192.0.2.7"], NOW);
        let key = key_of(folder.path());
        assert_eq!(first.replaces, None);
        // Another address is what DHCP does; a machine that is called otherwise is another one.
        let moved = here(&["edge-7"], &["198.51.100.3"], after(700));
        assert_eq!(print(&moved), print(&first));
        let renamed = here(&["edge-8"], &["198.51.100.3"], NOW);
        assert_eq!(renamed.replaces, Some(print(&first)));
        assert!(renamed.served.is_for("198.51.100.3") && !renamed.served.is_for("192.0.2.7"));
        let renewed = here(&["edge-8"], &[], after(780));
        assert_eq!(renewed.replaces, Some(print(&renamed)));
        assert_eq!(key_of(folder.path()), key);
        // What cannot be read is nothing that somebody could have compared.
        files::replace(
            &folder.path().join("dashboard.pem"),
            b"damaged",
            files::PRIVATE,
        )
        .unwrap();
        let anew = here(&["edge-8"], &[], NOW);
        assert_eq!(anew.replaces, None);
        assert_ne!(key_of(folder.path()), key);
    }

    #[test]
    fn a_clock_that_is_not_set_judges_nothing_and_what_it_makes_holds_later() {
        let folder = tempfile::tempdir().unwrap();
        let origin = origin(folder.path(), &["edge-7"], &[]);
        let load = |time: Time| origin.load(time).unwrap().served.fingerprint().to_owned();
        // Made at the build date, while the machine is in 1970; then the clock is set.
        let unset = Time {
            is_believed: false,
            ..NOW
        };
        let first = load(unset);
        assert_eq!(load(after(200)), first);
        assert_eq!(
            load(Time {
                is_believed: false,
                ..after(5000)
            }),
            first
        );
        let second = load(after(5000));
        assert_ne!(second, first);
        // A clock that was ahead when it was made, and is right now.
        assert_ne!(load(NOW), second);
    }

    #[test]
    fn one_of_the_user_is_read_with_what_is_wrong_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let put = |name: &str, text: &str| {
            files::replace(&path(name), text.as_bytes(), files::PRIVATE).unwrap();
        };
        let load = |time| {
            let origin = Origin::Files {
                certificate: path("cert.pem"),
                key: path("key.pem"),
                names: vec!["box.example".to_owned()],
            };
            let loaded = origin.load(time);
            // Whoever only looks says the same.
            let seen = origin.inspect(time).map_err(|error| error.to_string());
            let expected = match &loaded {
                Ok(loaded) => loaded.doubt.as_ref().map(Error::to_string),
                Err(error) => Some(error.to_string()),
            };
            assert_eq!(seen.err(), expected);
            loaded
        };
        let refused = |why: &str| {
            let error = load(NOW).unwrap_err();
            assert!(error.sentence().contains(why), "{error}");
            assert!(error.fix.is_some(), "{error}");
        };
        refused("cert.pem");
        let one = |name: &str| make(None, &[name.to_owned()], &[], NOW.now).unwrap();
        let (first, other) = (one("box.example"), one("other.example"));
        put("cert.pem", &first);
        refused("key.pem");
        put("key.pem", &other);
        refused("it does not match the certificate");
        put("key.pem", "nothing");
        refused("the key");
        put("key.pem", &first);
        let loaded = load(NOW).unwrap();
        assert!(loaded.doubt.is_none() && loaded.until.is_some());
        let doubt = |time| load(time).unwrap().doubt.map(|doubt| doubt.what);
        let says = |time, what: &str| {
            let doubt = doubt(time).unwrap();
            assert!(doubt.contains(what), "{doubt}");
        };
        says(after(815), "the certificate of the dashboard ends 20");
        says(after(820), "the certificate of the dashboard ended 20");
        let before = Time {
            now: Wall::default(),
            ..NOW
        };
        says(before, "the certificate of the dashboard holds from");
        let unset = Time {
            is_believed: false,
            ..before
        };
        assert_eq!(doubt(unset), None);
        put("cert.pem", &other);
        put("key.pem", &other);
        says(NOW, "is not for box.example");
        put("cert.pem", "nothing");
        refused("there is none in its file");
    }

    #[test]
    fn whoever_only_looks_at_the_own_one_makes_none_and_says_what_is_wrong_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let here = |names: &[&str]| origin(folder.path(), names, &[]);
        let says = |names: &[&str], time, what: &str| {
            let message = match here(names).inspect(time) {
                Ok(seen) => seen,
                Err(error) => {
                    assert_eq!(error.fix.as_deref(), Some(MADE_ANEW));
                    format!("wrong: {}", error.sentence())
                }
            };
            assert!(message.starts_with(what), "{message}");
        };
        says(&["edge-7"], NOW, "the agent creates it at its next start");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        here(&["edge-7"]).load(NOW).unwrap();
        says(&["edge-7"], NOW, "valid until 20");
        // It is made anew in time, and until then nothing is wrong.
        says(&["edge-7"], after(815), "valid until 20");
        let wrong = "wrong: the certificate of the dashboard";
        says(&["edge-7"], after(821), &format!("{wrong} ended 20"));
        says(&["edge-8"], NOW, &format!("{wrong} is not for edge-8"));
        let file = folder.path().join("dashboard.pem");
        files::replace(&file, b"damaged", files::PRIVATE).unwrap();
        says(&["edge-7"], NOW, &format!("wrong: {UNUSABLE}: "));
    }
}
