//! Dialling through proxies and with clocks that are wrong.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pipeops_agent::core::time::Wall;
use pipeops_agent::core::url::ProxyUrl;
use pipeops_agent::net::proxy::Proxy;
use pipeops_agent::net::tls::{self, Clock, Roots, Tls};
use pipeops_agent::net::{Error, ErrorKind, Phase};
use pipeops_agent::net::{
    dial::{Dialer, Route},
    target::Target,
};
use smol::Task;
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::net::{TcpListener, TcpStream};

use super::certificates::Authority;
use super::server::Server;
use super::{Executor, SOON, now_clock, run};

/// A proxy that answers `answer`, and copies where that is 200. Remembers the heads that it got.
struct FakeProxy {
    target: Target,
    heads: Rc<RefCell<Vec<String>>>,
    _task: Task<()>,
}

async fn proxy(executor: &Executor, answer: &'static str) -> FakeProxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heads: Rc<RefCell<Vec<String>>> = Rc::default();
    let seen = Rc::clone(&heads);
    let task = executor.spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte).await.unwrap() == 1 {
                head.extend(byte);
            }
            let head = String::from_utf8(head).unwrap();
            let host = head.split(' ').nth(1).unwrap().to_owned();
            seen.borrow_mut().push(head);
            client.write_all(answer.as_bytes()).await.unwrap();
            if answer.starts_with("HTTP/1.1 200") {
                let server = TcpStream::connect(host).await.unwrap();
                let up = smol::io::copy(client.clone(), server.clone());
                let down = smol::io::copy(server, client);
                let _ended = smol::future::or(up, down).await;
            }
        }
    });
    FakeProxy {
        target: Target::new("127.0.0.1", port),
        heads,
        _task: task,
    }
}

fn trusting(authority: &Authority, clock: Clock) -> Tls {
    let settings = tls::Settings {
        roots: Roots::ExtraOnly,
        extra_ca_pem: Some(authority.pem().into_bytes()),
        ..tls::Settings::default()
    };
    Tls::new(&settings, clock).unwrap()
}

fn by(proxy: &FakeProxy, user: &str) -> Proxy {
    let url = format!("http://{user}{}", proxy.target.authority());
    Proxy::new(&ProxyUrl::parse(&url).unwrap(), None)
}

async fn dial(server: &Server, proxy: &Proxy, tls: &Tls) -> Result<(), Error> {
    let target = Target::new("127.0.0.1", server.address().port());
    let route = Route::direct(&target)
        .through(Some(proxy))
        .with_tls(Some(tls));
    Dialer::default().dial(&route, SOON).await.map(|_stream| ())
}

#[test]
fn tls_goes_through_a_proxy_with_its_password() {
    run(|executor| async move {
        let authority = Authority::new();
        let server = Server::tls(&executor, &authority).await;
        let tls = trusting(&authority, now_clock());
        let fake = proxy(&executor, "HTTP/1.1 200 fine\r\nX: y\r\n\r\n").await;
        dial(&server, &by(&fake, "user:pass@"), &tls).await.unwrap();
        let head = fake.heads.borrow()[0].clone();
        assert!(
            head.starts_with(&format!("CONNECT {} HTTP/1.1\r\n", server.address())),
            "{head}"
        );
        assert!(
            head.contains("Proxy-Authorization: Basic dXNlcjpwYXNz\r\n"),
            "{head}"
        );
    });
}

#[test]
fn what_a_proxy_refuses_is_told_with_the_fix() {
    run(|executor| async move {
        let authority = Authority::new();
        let server = Server::tls(&executor, &authority).await;
        let tls = trusting(&authority, now_clock());
        let fake = proxy(&executor, "HTTP/1.1 407 who are you\r\n\r\n").await;
        let error = dial(&server, &by(&fake, ""), &tls).await.unwrap_err();
        assert_eq!(error.phase, Phase::Proxy);
        assert!(error.to_string().ends_with("407 who are you"), "{error}");
        assert!(error.fix().unwrap().contains("user and password"));
        for answer in ["SSH-2.0-OpenSSH\r\n", "HTTP/1.1 lots\r\n\r\n"] {
            let fake = proxy(&executor, answer).await;
            let error = dial(&server, &by(&fake, ""), &tls).await.unwrap_err();
            assert!(matches!(error.kind, ErrorKind::ProxyGarbage(_)), "{error}");
        }
    });
}

#[test]
fn a_proxy_that_talks_without_end_is_cut() {
    run(|executor| async move {
        let authority = Authority::new();
        let server = Server::tls(&executor, &authority).await;
        let tls = trusting(&authority, now_clock());
        let endless: &'static str = String::leak(format!("HTTP/1.1 200 {}", "x".repeat(9000)));
        let fake = proxy(&executor, endless).await;
        let error = dial(&server, &by(&fake, ""), &tls).await.unwrap_err();
        assert!(error.to_string().contains("8 KiB"), "{error}");
    });
}

#[test]
fn a_board_that_thinks_it_is_1970_connects() {
    run(|executor| async move {
        let authority = Authority::new();
        let server = Server::tls(&executor, &authority).await;
        let clock = Clock::new(|| Wall::from_millis(1_000), Wall::from_millis(0));
        let tls = trusting(&authority, clock);
        let target = Target::new("127.0.0.1", server.address().port());
        let route = Route::direct(&target).with_tls(Some(&tls));
        assert!(clock.is_behind());
        Dialer::default().dial(&route, SOON).await.unwrap();
    });
}

#[test]
fn a_server_without_tls_and_a_silent_one_are_told_apart() {
    run(|executor| async move {
        let tls = trusting(&Authority::new(), now_clock());
        let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target::new("127.0.0.1", plain.local_addr().unwrap().port());
        let answering = executor.spawn(async move {
            let (mut client, _) = plain.accept().await.unwrap();
            client
                .write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n")
                .await
                .unwrap();
            let (_silent, _) = plain.accept().await.unwrap();
            std::future::pending::<()>().await;
        });
        let route = Route::direct(&target).with_tls(Some(&tls));
        let error = Dialer::default().dial(&route, SOON).await.unwrap_err();
        assert_eq!(
            (error.phase, &error.kind),
            (Phase::Tls, &ErrorKind::NotTls),
            "{error}"
        );
        let limit = Duration::from_millis(200);
        let error = Dialer::default().dial(&route, limit).await.unwrap_err();
        assert_eq!(
            (error.phase, &error.kind),
            (Phase::Tls, &ErrorKind::Deadline(limit)),
            "{error}"
        );
        drop(answering);
    });
}

#[test]
fn a_certificate_for_another_name_is_refused_unless_the_name_is_given() {
    run(|executor| async move {
        let authority = Authority::new();
        let server = Server::tls(&executor, &authority).await;
        let target = Target::new("127.0.0.1", server.address().port());
        let named = |name: &str| {
            let settings = tls::Settings {
                roots: Roots::ExtraOnly,
                extra_ca_pem: Some(authority.pem().into_bytes()),
                server_name: Some(name.to_owned()),
                ..tls::Settings::default()
            };
            Tls::new(&settings, now_clock()).unwrap()
        };
        let wrong = named("k3s.example");
        let route = Route::direct(&target).with_tls(Some(&wrong));
        let error = Dialer::default().dial(&route, SOON).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::WrongName(_)), "{error}");
        let right = named("localhost");
        let route = Route::direct(&target).with_tls(Some(&right));
        Dialer::default().dial(&route, SOON).await.unwrap();
    });
}
