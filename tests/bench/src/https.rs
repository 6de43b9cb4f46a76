//! A small HTTP/1.1 client over rustls: one connection, one request at a time, blocking. It is
//! the same for every address, so that its own cost cancels out.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
    StreamOwned,
};

/// Somewhere to send requests to.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    socket: SocketAddr,
    name: ServerName<'static>,
    host: String,
    /// What comes before each path.
    prefix: String,
    token: Option<String>,
    tls: Arc<ClientConfig>,
}

/// Whose certificates are believed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trust<'a> {
    /// Those of the authorities in a PEM text.
    Pem(&'a str),
    /// All: a pod of the test cluster that made its certificate itself.
    Anybody,
}

impl Address {
    /// Takes `https://host:port/prefix` apart.
    pub(crate) fn new(url: &str, token: Option<String>, trust: Trust<'_>) -> Result<Self, String> {
        let rest = url
            .strip_prefix("https://")
            .ok_or_else(|| format!("{url} does not begin with https://"))?;
        let (host, prefix) = match rest.find('/') {
            Some(place) => rest.split_at(place),
            None => (rest, ""),
        };
        let (bare, _port) = host
            .rsplit_once(':')
            .ok_or_else(|| format!("{url} names no port"))?;
        let name = ServerName::try_from(bare.to_owned())
            .map_err(|error| format!("{bare} is no server's name: {error}"))?;
        let socket = host
            .to_socket_addrs()
            .map_err(|error| format!("cannot resolve {host}: {error}"))?
            .next()
            .ok_or_else(|| format!("{host} has no address"))?;
        Ok(Self {
            socket,
            name,
            host: host.to_owned(),
            prefix: prefix.trim_end_matches('/').to_owned(),
            token,
            tls: Arc::new(config(trust)?),
        })
    }

    /// Host and port.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }
}

fn config(trust: Trust<'_>) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("cannot set TLS up: {error}"))?;
    match trust {
        Trust::Anybody => Ok(builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
            .with_no_client_auth()),
        Trust::Pem(text) => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
                let certificate =
                    certificate.map_err(|error| format!("a CA certificate is not PEM: {error}"))?;
                roots
                    .add(certificate)
                    .map_err(|error| format!("a CA certificate is unusable: {error}"))?;
            }
            Ok(builder.with_root_certificates(roots).with_no_client_auth())
        }
    }
}

#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked,
    Close,
}

/// Status and framing of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) status: u16,
    framing: Framing,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<StreamOwned<ClientConnection, TcpStream>>,
    request: String,
    prefix: String,
}

/// 128 KiB: more than a TLS record, so that large bodies take few calls.
const BUFFER_BYTES: usize = 128 * 1024;

impl Connection {
    /// Connects; every read and write has this deadline.
    pub(crate) fn open(address: &Address, deadline: Duration) -> Result<Self, String> {
        let fault = |error: std::io::Error| format!("cannot connect to {}: {error}", address.host);
        let socket = TcpStream::connect_timeout(&address.socket, deadline).map_err(fault)?;
        socket.set_nodelay(true).map_err(fault)?;
        socket.set_read_timeout(Some(deadline)).map_err(fault)?;
        socket.set_write_timeout(Some(deadline)).map_err(fault)?;
        let session = ClientConnection::new(Arc::clone(&address.tls), address.name.clone())
            .map_err(|error| format!("cannot start TLS with {}: {error}", address.host))?;
        let authorization = address
            .token
            .as_ref()
            .map(|token| format!("Authorization: Bearer {token}\r\n"))
            .unwrap_or_default();
        Ok(Self {
            stream: BufReader::with_capacity(BUFFER_BYTES, StreamOwned::new(session, socket)),
            // Without "identity" a Go client in the middle would ask for gzip by itself.
            request: format!(
                " HTTP/1.1\r\nHost: {}\r\n{authorization}Accept: application/json, */*\r\n\
                 Accept-Encoding: identity\r\n\r\n",
                address.host
            ),
            prefix: address.prefix.clone(),
        })
    }

    /// Sends a GET and reads the head of its answer.
    pub(crate) fn begin(&mut self, path: &str) -> Result<Head, String> {
        let text = format!("GET {}{path}{}", self.prefix, self.request);
        let fault = |error: std::io::Error| format!("GET {path}: {error}");
        let stream = self.stream.get_mut();
        stream.write_all(text.as_bytes()).map_err(fault)?;
        stream.flush().map_err(fault)?;
        head(&mut self.stream).map_err(|error| format!("GET {path}: {error}"))
    }

    /// Reads the body of the answer, handing over the size of each piece; ends early when told
    /// to, after which the connection is of no more use.
    pub(crate) fn body(
        &mut self,
        head: Head,
        mut piece: impl FnMut(usize) -> Go,
    ) -> Result<u64, String> {
        body(&mut self.stream, head.framing, &mut piece)
            .map_err(|error| format!("the body broke off: {error}"))
    }

    /// A whole GET; gives the status and the size of the body.
    pub(crate) fn get(&mut self, path: &str) -> Result<(u16, u64), String> {
        let head = self.begin(path)?;
        let bytes = self.body(head, |_| Go::On)?;
        Ok((head.status, bytes))
    }
}

/// True if a body is read further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Go {
    On,
    Stop,
}

impl Go {
    /// On, until somebody says that it is over.
    pub(crate) fn until(is_over: &AtomicBool) -> Self {
        if is_over.load(Ordering::Relaxed) {
            Self::Stop
        } else {
            Self::On
        }
    }
}

fn head(stream: &mut impl BufRead) -> Result<Head, String> {
    let status_line = line(stream)?;
    let status = status_line
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.split(' ').next())
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| format!("no HTTP/1.1 answer: {status_line:?}"))?;
    let mut framing = Framing::Close;
    loop {
        let header = line(stream)?;
        if header.is_empty() {
            return Ok(Head { status, framing });
        }
        let Some((name, value)) = header.split_once(':') else {
            return Err(format!("no header: {header:?}"));
        };
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") && framing != Framing::Chunked {
            let bytes = value
                .parse()
                .map_err(|error| format!("no length: {value:?}: {error}"))?;
            framing = Framing::Length(bytes);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            framing = Framing::Chunked;
        }
    }
}

fn line(stream: &mut impl BufRead) -> Result<String, String> {
    let mut text = String::new();
    // 64 KiB: no line of an answer is longer.
    let read = stream
        .take(64 * 1024)
        .read_line(&mut text)
        .map_err(|error| error.to_string())?;
    if read == 0 {
        return Err("the connection ended".to_owned());
    }
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn body(
    stream: &mut impl BufRead,
    framing: Framing,
    piece: &mut impl FnMut(usize) -> Go,
) -> Result<u64, String> {
    match framing {
        Framing::Length(bytes) => exactly(stream, bytes, piece).map(|(read, _)| read),
        Framing::Close => exactly(stream, u64::MAX, piece).map(|(read, _)| read),
        Framing::Chunked => {
            let mut total: u64 = 0;
            loop {
                let size_line = line(stream)?;
                let digits = size_line.split(';').next().unwrap_or_default().trim();
                let size = u64::from_str_radix(digits, 16)
                    .map_err(|error| format!("no chunk: {size_line:?}: {error}"))?;
                if size == 0 {
                    // The trailers end with an empty line.
                    while !line(stream)?.is_empty() {}
                    return Ok(total);
                }
                let (read, go) = exactly(stream, size, piece)?;
                total = total.saturating_add(read);
                if go == Go::Stop {
                    return Ok(total);
                }
                if !line(stream)?.is_empty() {
                    return Err("a chunk is longer than it says".to_owned());
                }
            }
        }
    }
}

/// Reads so many bytes without copying them; `u64::MAX` means until the end.
fn exactly(
    stream: &mut impl BufRead,
    bytes: u64,
    piece: &mut impl FnMut(usize) -> Go,
) -> Result<(u64, Go), String> {
    let mut read: u64 = 0;
    while read < bytes {
        let waiting = stream.fill_buf().map_err(|error| error.to_string())?.len();
        if waiting == 0 {
            if bytes == u64::MAX {
                break;
            }
            return Err(format!("it ended after {read} of {bytes} bytes"));
        }
        let missing = usize::try_from(bytes.saturating_sub(read)).unwrap_or(usize::MAX);
        let taken = waiting.min(missing);
        stream.consume(taken);
        read = read.saturating_add(u64::try_from(taken).unwrap_or_default());
        if piece(taken) == Go::Stop {
            return Ok((read, Go::Stop));
        }
    }
    Ok((read, Go::On))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(answer: &str) -> Result<(u16, u64), String> {
        let mut stream = answer.as_bytes();
        let head = head(&mut stream)?;
        let bytes = body(&mut stream, head.framing, &mut |_| Go::On)?;
        Ok((head.status, bytes))
    }

    #[test]
    fn bodies_end_by_length_by_chunks_or_with_the_connection() {
        let length = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloREST";
        assert_eq!(read(length), Ok((200, 5)));
        let chunks = "HTTP/1.1 404 Not Found\r\ntransfer-encoding: chunked\r\n\r\n\
                      3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(read(chunks), Ok((404, 13)));
        let close = "HTTP/1.1 200 OK\r\n\r\nuntil the end";
        assert_eq!(read(close), Ok((200, 13)));
    }

    #[test]
    fn a_body_that_breaks_off_is_an_error_and_not_a_small_body() {
        for broken in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 200 OK\r\nContent-Len",
            "SSH-2.0\r\n\r\n",
            "",
        ] {
            assert!(read(broken).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn reading_can_be_given_up_in_the_middle() {
        let mut stream = &b"0123456789"[..];
        let read = body(&mut stream, Framing::Length(1_000_000), &mut |_| Go::Stop);
        assert_eq!(read, Ok(10));
    }

    #[test]
    fn addresses_need_https_a_host_and_a_port() {
        let address = |url| Address::new(url, None, Trust::Anybody);
        let known = address("https://127.0.0.1:6443/a/b/").unwrap();
        assert_eq!(known.prefix, "/a/b");
        assert_eq!(known.socket.port(), 6443);
        assert!(address("http://127.0.0.1:1").is_err());
        assert!(address("https://127.0.0.1").is_err());
    }
}
