//! Two plain TLS relays of socat in a row: the hops of a proxied call, and nothing else. The rival
//! of the download.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::child::Running;
use crate::https::{Address, Connection, Trust};
use crate::os;

/// 10 s: how long a relay may take until it listens.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Both relays; they end with it.
#[derive(Debug)]
pub(crate) struct Relays {
    address: Address,
    _running: [Running; 2],
}

impl Relays {
    /// Starts them before `target`, with a certificate that is written to `file`.
    pub(crate) fn start(file: &Path, target: &Address) -> Result<Self, String> {
        os::write(file, &certificate()?)?;
        let ports = [free_port()?, free_port()?];
        let second = relay(file, ports[1], target.host())?;
        let first = relay(file, ports[0], &format!("127.0.0.1:{}", ports[1]))?;
        let url = format!("https://127.0.0.1:{}", ports[0]);
        let relays = Self {
            address: Address::new(&url, None, Trust::Anybody)?,
            _running: [first, second],
        };
        let start = os::now();
        loop {
            match Connection::open(&relays.address, START_LIMIT)
                .and_then(|mut connection| connection.get("/bytes?n=1"))
            {
                Ok(_) => return Ok(relays),
                Err(why) if os::since(start) > START_LIMIT => {
                    return Err(format!("two socat relays do not answer: {why}"));
                }
                Err(_) => os::pause(Duration::from_millis(50)),
            }
        }
    }

    /// Address of the first one.
    pub(crate) const fn address(&self) -> &Address {
        &self.address
    }
}

/// A certificate and its key in one text, as socat wants them.
fn certificate() -> Result<String, String> {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])
        .map_err(|error| format!("cannot make a certificate for the relays: {error}"))?;
    Ok(made.cert.pem() + &made.signing_key.serialize_pem())
}

fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = listener.map_err(|error| format!("no port is free for a relay: {error}"))?;
    Ok(address.port())
}

/// One relay, with socat's own defaults but for certificates, which nobody checks here.
fn relay(certificate: &Path, port: u16, target: &str) -> Result<Running, String> {
    let certificate = certificate.display();
    Running::start(
        "socat",
        os::program("socat")
            .arg(format!(
                "OPENSSL-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork,verify=0,cert={certificate}"
            ))
            .arg(format!("OPENSSL:{target},verify=0"))
            .stderr(Stdio::null()),
    )
}
