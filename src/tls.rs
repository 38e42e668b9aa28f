//! TLS: checks before a connection is made, and the causes of failed handshakes.

#[cfg(feature = "tls")]
mod handshake;

use std::error::Error;
use std::io;
use std::sync::Arc;

/// A server without TLS waits for the end of a line before it answers, and a TLS client never sends
/// one.
pub(crate) const SILENT: &str = "TLS is on: check that the server speaks TLS on this port";

/// A server with TLS answers with an alert of its protocol.
pub(crate) const GARBLED: &str = "if the server speaks TLS on this port, use TLS here too \
                                  (rediss://, `tls`, `sentinel_tls`)";

/// Before the first answer. `None` if the error has another cause; `tls`: the connection uses TLS.
pub(crate) fn hint(e: &(dyn Error + 'static), tls: bool) -> Option<&'static str> {
    use io::ErrorKind as K;
    let dropped = [K::BrokenPipe, K::ConnectionAborted, K::ConnectionReset, K::UnexpectedEof];
    let kind = inside::<io::Error>(e)?.kind();
    let text = if tls {
        "the server hung up on TLS: it may want a client certificate (`tls`), or speaks no TLS here"
    } else {
        "the server hung up before its first answer: if it speaks TLS on this port, use TLS here \
         too (rediss://, `tls`, `sentinel_tls`)"
    };
    dropped.contains(&kind).then_some(text)
}

/// Searches inside an `io::Error` or an `Arc`, whose `source` skips what it contains.
pub(crate) fn inside<'a, T: Error + 'static>(e: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(e);
    while let Some(e) = next {
        if let Some(found) = e.downcast_ref::<T>() {
            return Some(found);
        }
        next = if let Some(held) = e.downcast_ref::<Arc<dyn Error + Send + Sync>>() {
            Some(held.as_ref())
        } else if let Some(held) = e.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(held)
        } else {
            e.source()
        };
    }
    None
}

#[cfg(not(feature = "tls"))]
pub(crate) fn refusal(_: &(dyn Error + 'static)) -> Option<(&'static str, String)> {
    None
}

#[cfg(feature = "tls")]
pub use self::handshake::Tls;
#[cfg(feature = "tls")]
pub(crate) use self::handshake::{refusal, server_name};

/// TLS settings. Without the feature `tls` this type has no values.
#[cfg(not(feature = "tls"))]
#[derive(Clone)]
pub enum Tls {}

#[cfg(not(feature = "tls"))]
impl Tls {
    pub(crate) fn named(self, _: Option<&Arc<str>>) -> Self {
        self
    }

    #[expect(clippy::unused_async, reason = "as with the feature")]
    pub(crate) async fn over<S>(&self, _: &str, _: S) -> io::Result<S> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_found_through_io_errors_and_arcs() {
        let io = io::Error::from(io::ErrorKind::ConnectionReset);
        let wrapped = redis::RedisError::from(io::Error::other(io));
        let kind = inside::<io::Error>(&wrapped).map(io::Error::kind);
        assert_eq!(kind, Some(io::ErrorKind::Other), "the outermost first");
        let direct = redis::RedisError::from(io::Error::from(io::ErrorKind::ConnectionReset));
        assert!(hint(&direct, true).is_some_and(|w| w.contains("client certificate")));
        assert!(hint(&direct, false).is_some_and(|w| w.contains("rediss://")));
        let refused = redis::RedisError::from(io::Error::from(io::ErrorKind::ConnectionRefused));
        assert_eq!(hint(&refused, true), None);
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_refused_handshake_is_distinguished_from_other_faults() {
        let tls = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let e = redis::RedisError::from(io::Error::new(io::ErrorKind::InvalidData, tls));
        assert!(refusal(&e).is_some_and(|(w, _)| w.contains("unknown issuer; give the CA")));
        let e = redis::RedisError::from(io::Error::from(io::ErrorKind::InvalidData));
        assert_eq!(refusal(&e), None);
    }
}
