//! One query to one name server (RFC 1035), to test whether it answers. Other names are resolved by
//! libc.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use smol::Async;

use super::{Elapsed, deadline};

const PORT: u16 = 53;
/// Maximum size of an answer that every server may send.
const ANSWER_BYTES_MAX: usize = 512;
/// Types of records: A and NS.
const ADDRESS: u8 = 1;
const SERVERS: u8 = 2;

/// Answer of a server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DnsAnswer {
    /// The response code: 0 is fine, 2 is a server that cannot look anything up itself, 3 is no
    /// such name, 5 is refused.
    pub code: u8,
    /// Number of records.
    pub records: u16,
}

/// Asks a server for the addresses of `name`; for the servers of the root where the name is `.`. It
/// is asked twice, because a packet may get lost.
///
/// # Errors
/// Why there is no answer, in words.
pub async fn ask(server: IpAddr, name: &str, limit: Duration) -> Result<DnsAnswer, String> {
    let question = question(name).ok_or_else(|| format!("{name} is not a valid name"))?;
    let any: IpAddr = match server {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let explained = |error: std::io::Error| {
        if error.kind() == std::io::ErrorKind::ConnectionRefused {
            "no DNS server answers there".to_owned()
        } else {
            error.to_string()
        }
    };
    let socket = Async::<UdpSocket>::bind(SocketAddr::new(any, 0)).map_err(explained)?;
    // A connected socket hears that nothing listens there.
    socket
        .get_ref()
        .connect(SocketAddr::new(server, PORT))
        .map_err(explained)?;
    for _ in 0..2 {
        if let Ok(answer) = deadline(limit / 2, exchange(&socket, &question)).await {
            return answer.map_err(explained);
        }
    }
    Err(Elapsed(limit).to_string())
}

async fn exchange(socket: &Async<UdpSocket>, question: &[u8]) -> std::io::Result<DnsAnswer> {
    socket.send(question).await?;
    let mut buffer = [0; ANSWER_BYTES_MAX];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(answer) = answer(question, buffer.get(..length).unwrap_or_default()) {
            return Ok(answer);
        }
    }
}

/// A question of the class IN: for an address, or at the root for its servers.
fn question(name: &str) -> Option<Vec<u8>> {
    let id = fastrand::u16(..).to_be_bytes();
    // Recursion desired; one question.
    let mut packet = vec![id[0], id[1], 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        packet.push(
            u8::try_from(label.len())
                .ok()
                .filter(|length| *length < 64)?,
        );
        packet.extend(label.bytes());
    }
    let kind = if name == "." { SERVERS } else { ADDRESS };
    packet.extend([0, 0, kind, 0, 1]);
    (packet.len() <= 12 + 255 + 4).then_some(packet)
}

/// `None` where it is no answer to this question.
fn answer(question: &[u8], packet: &[u8]) -> Option<DnsAnswer> {
    let head: [u8; 12] = packet.get(..12)?.try_into().ok()?;
    let [id_high, id_low, flags, code, _, _, high, low, ..] = head;
    let is_ours = question.starts_with(&[id_high, id_low]) && flags & 0x80 != 0;
    is_ours.then_some(DnsAnswer {
        code: code & 0xf,
        records: u16::from_be_bytes([high, low]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_what_the_standard_says() {
        let packet = question("a.example").unwrap();
        assert_eq!(packet[2..12], [1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(packet[12..], *b"\x01a\x07example\0\0\x01\0\x01");
        assert_eq!(question(".").unwrap()[12..], *b"\0\0\x02\0\x01");
        assert_eq!(question(&"x".repeat(64)), None);
        assert_eq!(question(&"abc.".repeat(80)), None);
    }

    #[test]
    fn only_an_answer_to_this_question_is_one() {
        let asked = question("a.example").unwrap();
        let (high, low) = (asked[0], asked[1]);
        let packet = [high, low, 0x81, 0x83, 0, 1, 0, 2, 0, 0, 0, 0];
        assert_eq!(
            answer(&asked, &packet),
            Some(DnsAnswer {
                code: 3,
                records: 2
            })
        );
        assert_eq!(answer(&asked, &packet[..11]), None);
        assert_eq!(answer(&asked, &asked), None);
        let other = [high ^ 1, low, 0x81, 0x80, 0, 1, 0, 2, 0, 0, 0, 0];
        assert_eq!(answer(&asked, &other), None);
    }
}
