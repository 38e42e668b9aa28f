//! A visitor of the console: the role, the name, and the address.

use std::net::SocketAddr;

/// Rights of a visitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Read,
    Act,
}

impl Role {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Act => "act",
        }
    }
}

/// A visitor whom the console has identified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Visitor {
    pub(crate) role: Role,
    /// Name of the user, for the audit.
    pub(crate) user: String,
}

/// The address of the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Tcp(SocketAddr),
    /// User id of the process at the other end of a unix socket.
    Unix(Option<u32>),
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(at) => at.fmt(f),
            Self::Unix(Some(uid)) => write!(f, "unix socket, user id {uid}"),
            Self::Unix(None) => f.write_str("unix socket"),
        }
    }
}
