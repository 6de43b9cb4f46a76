//! Downloads from a server on loopback that misbehaves in every way.

use std::cell::{Cell, RefCell};

use ring::digest::digest;
use smol::{
    future::or,
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::{
    core::time::Mono,
    net::{dial::Dialer, proxy::Proxies},
};

fn transport() -> Transport {
    Transport {
        dialer: Dialer::default(),
        proxies: Proxies::default(),
        tls: None,
        user_agent: "test".to_owned(),
        clock: || Mono::since_boot(Duration::ZERO),
    }
}

/// Answers one request each, the last one for ever; returns the heads of the requests.
async fn served<T>(
    answers: &[&[u8]],
    work: impl AsyncFnOnce(&Transport, &str) -> T,
) -> (T, Vec<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/latest/program", listener.local_addr().unwrap());
    let heads = RefCell::new(Vec::new());
    let serving = async {
        for turn in 0.. {
            let (mut peer, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 4096];
            let read = peer.read(&mut head).await.unwrap();
            head.truncate(read);
            heads.borrow_mut().push(String::from_utf8(head).unwrap());
            // One that has enough hangs up.
            drop(peer.write_all(answers[turn.min(answers.len() - 1)]).await);
        }
        unreachable!()
    };
    let done = or(work(&transport(), &url), serving).await;
    (done, heads.into_inner())
}

/// Downloads what should be `content`, beside what is there already.
fn downloaded(
    content: &[u8],
    there: Option<&[u8]>,
    answers: &[&[u8]],
) -> (Result<Vec<u8>>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("program");
    if let Some(there) = there {
        files::replace(&to, there, 0o600).unwrap();
    }
    let hash = digest(&SHA256, content);
    let sha256 = hex(hash.as_ref());
    let (done, heads) =
        smol::block_on(served(answers, async |transport: &Transport, url: &str| {
            let wanted = Wanted {
                from: from(url),
                to: to.clone(),
                length: Length::Exact(u64::try_from(content.len()).unwrap()),
                sha256,
                redirects: Redirects::Refused,
            };
            let progress: Progress = Arc::new(|_, _| {});
            file(transport, &wanted, &progress).await
        }));
    let read = done.map(|()| files::read(&to, 1 << 20).unwrap());
    if read.is_err() {
        let left = files::read_if_there(&to, 1 << 20)
            .unwrap()
            .unwrap_or_default();
        assert!(left.len() <= content.len(), "{} bytes stay", left.len());
    }
    (read, heads)
}

fn from(url: &str) -> Address {
    Address {
        url: url.to_owned(),
        setting: "update.url",
    }
}

const WHOLE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\netag: \"one\"\r\n\r\n0123456789";

#[test]
fn what_is_cut_goes_on_where_it_ended_if_it_is_still_the_same() {
    let cut = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\netag: \"one\"\r\n\r\n0123";
    let rest = b"HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 4-9/10\r\ncontent-length: 6\r\n\r\n456789";
    let (read, heads) = downloaded(b"0123456789", None, &[cut, rest]);
    assert_eq!(read.unwrap(), b"0123456789");
    let second = heads[1].to_ascii_lowercase();
    assert!(second.contains("range: bytes=4-\r\n"), "{second}");
    assert!(second.contains("if-range: \"one\"\r\n"), "{second}");
    // It changed meanwhile: the server sends all of it.
    let (read, _) = downloaded(b"0123456789", None, &[cut, WHOLE]);
    assert_eq!(read.unwrap(), b"0123456789");
    // What an earlier run left is used, and an answer with another part is not.
    let (read, heads) = downloaded(b"0123456789", Some(b"0123"), &[rest]);
    assert_eq!((read.unwrap().len(), heads.len()), (10, 1));
    let other = b"HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 5-9/10\r\ncontent-length: 5\r\n\r\n56789";
    let (read, _) = downloaded(b"0123456789", Some(b"0123"), &[other, WHOLE]);
    assert_eq!(read.unwrap(), b"0123456789");
    let (read, _) = downloaded(b"0123456789", Some(b"wrong"), &[
        b"HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 5-9/10\r\ncontent-length: 5\r\n\r\n56789",
        WHOLE,
    ]);
    assert_eq!(read.unwrap(), b"0123456789", "of another release");
    let (_, heads) = downloaded(b"0123456789", Some(b"0123456789"), &[b""]);
    assert!(heads.is_empty(), "it was there");
}

/// Downloads from a server that says what `serve` does after its head, until it is given up;
/// returns the number of attempts.
fn given_up(limits: Limits, serve: &impl AsyncFn(&mut TcpStream)) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let asked = Cell::new(0);
    let progress: Progress = Arc::new(|_, _| {});
    let done = smol::block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/program", listener.local_addr().unwrap());
        let wanted = Wanted {
            from: from(&url),
            to: folder.path().join("program"),
            length: Length::Exact(1_000_000),
            sha256: String::new(),
            redirects: Redirects::Refused,
        };
        let serving = async {
            loop {
                let (mut peer, _) = listener.accept().await.unwrap();
                asked.set(asked.get() + 1);
                let read = peer.read(&mut [0; 4096]).await.unwrap();
                assert!(read > 0);
                let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n";
                peer.write_all(head).await.unwrap();
                serve(&mut peer).await;
            }
        };
        or(
            file_within(&transport(), &wanted, &progress, limits),
            serving,
        )
        .await
    });
    assert_eq!(done.unwrap_err().retry, Retry::Soon);
    asked.get()
}

#[test]
fn a_server_that_sends_a_byte_now_and_then_is_given_up() {
    let limits = Limits {
        body: Some(Duration::from_millis(300)),
        read: Some(Duration::from_secs(30)),
    };
    let attempts = given_up(limits, &async |peer: &mut TcpStream| {
        while peer.write_all(b"0").await.is_ok() {
            Timer::after(Duration::from_millis(20)).await;
        }
    });
    assert_eq!(attempts, 4);
}

#[test]
fn a_server_that_falls_silent_is_given_up() {
    let limits = Limits {
        body: None,
        read: Some(Duration::from_millis(200)),
    };
    // Until the other side closes the connection.
    let attempts = given_up(limits, &async |peer: &mut TcpStream| {
        let _end = peer.read(&mut [0; 16]).await;
    });
    assert_eq!(attempts, 4);
}

#[test]
fn what_is_not_the_file_of_the_list_is_refused() {
    let error_of = |answer: &[u8]| {
        let (read, heads) = downloaded(b"0123456789", None, &[answer]);
        assert_eq!(heads.len(), 1, "it asks again");
        read.unwrap_err().to_string()
    };
    let other = error_of(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabcdefghij");
    assert!(other.contains("its SHA-256 is"), "{other}");
    let long = error_of(b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n01234567890");
    assert!(long.contains("11 bytes or more, not 10"), "{long}");
    let endless = [b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &vec![b'0'; 300_000]].concat();
    assert!(error_of(&endless).contains("not 10"));
    let moved = error_of(
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    );
    assert!(moved.contains("redirects are not followed"), "{moved}");
    let gone = error_of(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
    assert!(gone.contains("HTTP 404"), "{gone}");
}

#[test]
fn a_text_is_short() {
    let answer = [WHOLE];
    let (read, _) = smol::block_on(served(&answer, async |transport: &Transport, url: &str| {
        let whole = text(transport, &from(url), 10).await.unwrap();
        (
            whole,
            text(transport, &from(url), 9).await.unwrap_err().sentence(),
        )
    }));
    assert_eq!(read.0, b"0123456789");
    assert!(read.1.contains("longer than 9 bytes"), "{}", read.1);
}
