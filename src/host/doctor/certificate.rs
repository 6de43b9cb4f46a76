//! Validity of the certificate in a file.

use std::path::Path;

use rustls::pki_types::{CertificateDer, pem::PemObject};

use crate::{
    core::{facts::Fact, time::Wall},
    files,
    wire::certificate::validity,
};

/// A chain of k3s has 2 KB.
const BYTES_MAX: usize = 256 * 1024;

/// `not_before not_after`, in milliseconds, of the first certificate of a PEM file.
pub(super) fn dates(path: &Path) -> Fact {
    let content = match files::read(path, BYTES_MAX) {
        Ok(content) => content,
        Err(error) => {
            return match std::fs::File::open(path) {
                Ok(_) => Fact::Failed(error.why.join(": ")),
                Err(error) => super::failed(&error),
            };
        }
    };
    if content.is_empty() {
        return Fact::Failed("it is empty".to_owned());
    }
    match of_pem(&content) {
        Some((from, to)) => Fact::Text(format!("{} {}", from.millis(), to.millis())),
        None => Fact::Failed("it holds no certificate".to_owned()),
    }
}

/// The first and the last moment of the first certificate in a text of PEM.
pub fn of_pem(content: &[u8]) -> Option<(Wall, Wall)> {
    let certificate = CertificateDer::from_pem_slice(content).ok()?;
    validity(&certificate)
}
