//! Heads of HTTP/1.1 answers that are read without an HTTP client: of proxies, of probes, of the
//! agent's own socket.

/// More headers than any of these answers has.
const HEADERS_MAX: usize = 100;

/// Head of an answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// Reason behind the status, without control characters; empty where it is not ASCII.
    pub reason: String,
    headers: Vec<(String, String)>,
}

impl Head {
    /// Reads a head, or as much as came of it. `None` where it has no valid status line, or a line
    /// that is not one of HTTP.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut answer = httparse::Response::new(&mut headers);
        answer.parse(bytes).ok()?;
        let headers = answer.headers.iter().map(|header| {
            let value = String::from_utf8_lossy(header.value).trim().to_owned();
            (header.name.to_owned(), value)
        });
        Some(Self {
            headers: headers.filter(|(name, _)| !name.is_empty()).collect(),
            reason: answer.reason.unwrap_or_default().to_owned(),
            status: answer.code?,
        })
    }

    /// The value of the first header of that name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let (_, value) = headers.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_line_cannot_write_on_our_terminal() {
        let head = Head::parse(b"HTTP/1.1 407 Pay up\r\nDate: now \r\n\r\n").unwrap();
        assert_eq!((head.status, head.reason.as_str()), (407, "Pay up"));
        assert_eq!(head.header("date"), Some("now"));
        for bytes in [
            b"HTTP/1.1 407 Pay \x1b[2J up\r\n\r\n".as_slice(),
            b"HTTP/1.1 lots\r\n\r\n",
            b"SSH-2.0-x\r\n",
            b"",
        ] {
            assert_eq!(Head::parse(bytes), None);
        }
        let german = Head::parse("HTTP/1.1 403 Verboten für alle\r\n\r\n".as_bytes()).unwrap();
        assert_eq!((german.status, german.reason.as_str()), (403, ""));
        assert_eq!(Head::parse(b"HTTP/1.1 200 OK\r\nDa").unwrap().status, 200);
    }
}
