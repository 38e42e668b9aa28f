//! The part that knows rustls: certificates before a handshake, the reason after a refused one.

use std::error::Error;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;

use super::inside;
use crate::error::ConfigError;

/// The crypto provider of this process. Without one rustls would panic in the task that
/// connects, and the user would only see that connecting was cut off.
pub(crate) fn provider(field: &'static str) -> Result<&'static Arc<CryptoProvider>, ConfigError> {
    CryptoProvider::get_default().ok_or_else(|| {
        let rule = "TLS needs a crypto provider; install one when the program starts, as \
                    `rustls::crypto::ring::default_provider().install_default()`";
        ConfigError::new(field, "without a crypto provider", rule)
    })
}

/// Certificates and key are such that rustls will take them. Says nothing of what is in the
/// PEM, not even rustls' words: they may quote the line that holds the key.
pub(crate) fn check(
    field: &'static str,
    root: Option<&[u8]>,
    client: Option<(&[u8], &[u8])>,
) -> Result<(), ConfigError> {
    let provider = provider(field)?;
    if let Some(pem) = root {
        let what = || format!("a root certificate of {} bytes", pem.len());
        let mut store = RootCertStore::empty();
        for certificate in certificates(pem, field, &what)? {
            let rule = "must be an X.509 certificate (version 3) that rustls can use as a root";
            store.add(certificate).map_err(|_| ConfigError::new(field, what(), rule))?;
        }
    }
    if let Some((chain, key)) = client {
        let what = || format!("a client certificate of {} bytes", chain.len());
        let chain = certificates(chain, field, &what)?;
        let refuse = |rule| ConfigError::new(field, "a client key (not shown)", rule);
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| refuse("must be PEM with one private key, without a passphrase"))?;
        CertifiedKey::from_der(chain, key, provider).map_err(|e| match e {
            rustls::Error::InconsistentKeys(_) => {
                refuse("must belong to the first client certificate")
            }
            rustls::Error::InvalidCertificate(_) => {
                ConfigError::new(field, what(), "must be an X.509 certificate (version 3)")
            }
            _ => refuse("must be of a kind that the crypto provider can use"),
        })?;
    }
    Ok(())
}

/// A name that can stand in a certificate.
pub(crate) fn server_name(field: &'static str, name: &str) -> Result<(), ConfigError> {
    ServerName::try_from(name).map(|_| ()).map_err(|_| {
        let shown: String = name.chars().take(64).collect();
        ConfigError::new(field, format!("{shown:?}"), "must be a host name or an IP address")
    })
}

fn certificates(
    pem: &[u8],
    field: &'static str,
    what: &dyn Fn() -> String,
) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    // What is no PEM at all reads as PEM with nothing in it.
    found.ok().filter(|list| !list.is_empty()).ok_or_else(|| {
        ConfigError::new(field, what(), "must be PEM with at least one BEGIN CERTIFICATE")
    })
}

/// What to change so that the handshake succeeds, with rustls' own words. `None`: it is not TLS
/// that failed.
pub(crate) fn refusal(e: &(dyn Error + 'static)) -> Option<String> {
    let e = inside::<rustls::Error>(e)?;
    Some(format!("{}: {e}", remedy(e)))
}

fn remedy(e: &rustls::Error) -> &'static str {
    use rustls::{AlertDescription as A, CertificateError as C, Error as E};
    match e {
        E::InvalidCertificate(C::UnknownIssuer | C::BadSignature) => {
            "the server's certificate has an unknown issuer; give the CA that signed it to \
             `tls` (`sentinel_tls`)"
        }
        E::InvalidCertificate(C::NotValidForName | C::NotValidForNameContext { .. }) => {
            "the server's certificate is for another name; connect by a name that is in it (to \
             Sentinel groups by announced host names or `map_address`), or say which by \
             `tls_server_name` (`sentinel_tls_server_name`)"
        }
        E::InvalidCertificate(
            C::Expired | C::ExpiredContext { .. } | C::NotValidYet | C::NotValidYetContext { .. },
        ) => "the server's certificate is out of its time; renew it, or set the clock here",
        E::InvalidCertificate(_) => "the server's certificate cannot be used; replace it",
        E::InvalidMessage(_) => {
            "the server does not speak TLS on this port; name its TLS port, or connect without"
        }
        E::AlertReceived(A::CertificateRequired) => {
            "the server wants a client certificate; give one to `tls` (`sentinel_tls`)"
        }
        E::AlertReceived(
            A::AccessDenied
            | A::BadCertificate
            | A::CertificateExpired
            | A::CertificateRevoked
            | A::CertificateUnknown
            | A::UnknownCA
            | A::UnsupportedCertificate,
        ) => "the server refused our client certificate; give one that its CA signed",
        E::AlertReceived(A::HandshakeFailure) => {
            "the server refused; it may want a client certificate (`tls`) or other ciphers"
        }
        E::AlertReceived(A::ProtocolVersion) | E::PeerIncompatible(_) => {
            "no version or cipher in common; the server needs TLS 1.2 or 1.3"
        }
        _ => "the handshake failed",
    }
}
