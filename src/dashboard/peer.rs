//! Peer of the socket, as the kernel reports it.

use std::os::fd::AsFd;

use nix::{
    sys::socket::{getsockopt, sockopt::PeerCredentials},
    unistd::geteuid,
};

use crate::core::authorization::Role;

/// The process that connected, as it was at that moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Peer {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    pub pid: i32,
}

impl Peer {
    /// Asks the kernel. `None` where it does not say; such a peer gets nothing.
    pub fn of(socket: &impl AsFd) -> Option<Self> {
        let credentials = getsockopt(&socket.as_fd(), PeerCredentials).ok()?;
        Some(Self {
            uid: credentials.uid(),
            gid: credentials.gid(),
            pid: credentials.pid(),
        })
    }

    /// Root and the agent's own user operate; who else can open the socket (its group) views.
    pub fn role(self) -> Role {
        self.role_for(geteuid().as_raw())
    }

    const fn role_for(self, own_uid: u32) -> Role {
        if self.uid == 0 || self.uid == own_uid {
            Role::Operator
        } else {
            Role::Viewer
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_kernel_says_who_connected() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(&one).unwrap();
        assert_eq!(peer.uid, geteuid().as_raw());
        assert_eq!(peer.pid, i32::try_from(std::process::id()).unwrap());
        assert_eq!(peer.role(), Role::Operator);
    }

    #[test]
    fn root_and_the_agents_user_operate_and_others_view() {
        let peer = |uid| Peer {
            uid,
            gid: 1,
            pid: 1,
        };
        assert_eq!(peer(0).role_for(990), Role::Operator);
        assert_eq!(peer(990).role_for(990), Role::Operator);
        assert_eq!(peer(1000).role_for(990), Role::Viewer);
    }
}
