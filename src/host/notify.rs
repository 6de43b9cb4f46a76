//! Notifies the service manager: the datagrams of `sd_notify`.
//!
//! It never blocks and never fails: a service manager that does not listen is not the agent's
//! problem.

use std::{
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

/// The way to the service manager, where there is one.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
}

impl Notifier {
    /// From the value of `NOTIFY_SOCKET`: a path, or `@` and an abstract name. Without one every
    /// call does nothing.
    pub fn new(notify_socket: Option<&OsStr>) -> Self {
        let socket = notify_socket
            .filter(|value| !value.is_empty())
            .and_then(|value| open(value).ok());
        Self { socket }
    }

    /// Returns whether there is a service manager to tell.
    pub const fn is_heard(&self) -> bool {
        self.socket.is_some()
    }

    /// The agent is up; `status` is one sentence.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// Sets the text that `systemctl status` shows.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={}", one_line(status)));
    }

    /// The agent is on its way down.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// The agent is alive.
    pub fn watchdog(&self) {
        self.send("WATCHDOG=1");
    }

    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.socket {
            // A full queue loses one status line; the next one says it again.
            drop(socket.send_to_addr(message.as_bytes(), address));
        }
    }
}

fn open(value: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match value.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(value)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

/// A line feed would begin another assignment.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r', '\0'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 512];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn the_service_manager_hears_each_step() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let notifier = Notifier::new(Some(path.as_os_str()));
        assert!(notifier.is_heard());
        notifier.ready("linked");
        assert_eq!(received(&manager), "READY=1\nSTATUS=linked");
        notifier.status("one\nWATCHDOG=trigger");
        assert_eq!(received(&manager), "STATUS=one WATCHDOG=trigger");
        notifier.watchdog();
        assert_eq!(received(&manager), "WATCHDOG=1");
        notifier.stopping();
        assert_eq!(received(&manager), "STOPPING=1");
    }

    #[test]
    fn an_abstract_socket_is_reached() {
        let name = format!("pipeops-agent-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        manager
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        Notifier::new(Some(format!("@{name}").as_ref())).watchdog();
        assert_eq!(received(&manager), "WATCHDOG=1");
    }

    #[test]
    fn nobody_listening_is_no_trouble() {
        Notifier::new(None).ready("x");
        Notifier::new(Some(OsStr::new(""))).stopping();
        let gone = Notifier::new(Some(OsStr::new("/nowhere/notify")));
        gone.ready("x");
        assert!(!Notifier::new(None).is_heard());
    }

    #[test]
    fn a_manager_that_does_not_read_does_not_stop_the_agent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let _manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::new(Some(path.as_os_str()));
        for _ in 0..5000 {
            notifier.watchdog();
        }
    }
}
