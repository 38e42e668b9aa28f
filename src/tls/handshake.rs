//! The part of TLS that uses rustls: reads the certificates before a handshake, and finds the cause
//! of a failed one.

use std::error::Error;
use std::io;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::inside;
use crate::error::ConfigError;

/// Settings of TLS with a server: the trusted root certificates, and the client certificate.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: Option<Arc<str>>,
}

impl Tls {
    /// Makes the settings from PEM texts. `root` is a root certificate; with `None` the system's
    /// root certificates are used. `client` is a client certificate with its key. An error contains
    /// no part of these texts. It does not contain rustls' message either, because this message may
    /// contain a line of the key.
    pub fn new(
        field: &'static str,
        root: Option<&[u8]>,
        client: Option<(&[u8], &[u8])>,
    ) -> Result<Self, ConfigError> {
        let provider = provider(field)?;
        let roots = match root {
            Some(pem) => given(field, pem)?,
            None => systems(),
        };
        let config = ClientConfig::builder_with_provider(Arc::clone(provider))
            .with_safe_default_protocol_versions()
            .map_err(|_| {
                let rule = "the process' crypto provider must be able to speak TLS 1.2 or 1.3";
                ConfigError::new(field, "given", rule)
            })?
            .with_root_certificates(roots);
        let config = match client {
            Some((chain, key)) => {
                let (chain, key) = shown(field, provider, chain, key)?;
                config.with_client_auth_cert(chain, key).map_err(|_| {
                    let rule = "must be of a kind that the crypto provider can use";
                    ConfigError::new(field, "a client key (not shown)", rule)
                })?
            }
            None => config.with_no_client_auth(),
        };
        Ok(Self { config: Arc::new(config), name: None })
    }

    pub(crate) fn named(self, name: Option<&Arc<str>>) -> Self {
        Self { name: name.cloned(), ..self }
    }

    pub(crate) async fn over(
        &self,
        host: &str,
        tcp: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(self.name.as_deref().unwrap_or(host))
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?
            .to_owned();
        let connector = TlsConnector::from(Arc::clone(&self.config));
        connector.connect(name, tcp).await
    }
}

/// Without this check, rustls would panic in the task that connects, and the user would see only
/// that the attempt was cut off.
fn provider(field: &'static str) -> Result<&'static Arc<CryptoProvider>, ConfigError> {
    CryptoProvider::get_default().ok_or_else(|| {
        let rule = "TLS needs a crypto provider; install one when the program starts, as \
                    `rustls::crypto::ring::default_provider().install_default()`";
        ConfigError::new(field, "without a crypto provider", rule)
    })
}

fn systems() -> RootCertStore {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    store
}

fn given(field: &'static str, pem: &[u8]) -> Result<RootCertStore, ConfigError> {
    let what = || format!("a root certificate of {} bytes", pem.len());
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem, field, &what)? {
        let rule = "must be an X.509 certificate (version 3) that rustls can use as a root";
        store.add(certificate).map_err(|_| ConfigError::new(field, what(), rule))?;
    }
    Ok(store)
}

fn shown(
    field: &'static str,
    provider: &CryptoProvider,
    chain: &[u8],
    key: &[u8],
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), ConfigError> {
    let what = || format!("a client certificate of {} bytes", chain.len());
    let chain = certificates(chain, field, &what)?;
    let refuse = |rule| ConfigError::new(field, "a client key (not shown)", rule);
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|_| refuse("must be PEM with one private key, without a passphrase"))?;
    CertifiedKey::from_der(chain.clone(), key.clone_key(), provider).map_err(|e| match e {
        rustls::Error::InconsistentKeys(_) => refuse("must belong to the first client certificate"),
        rustls::Error::InvalidCertificate(_) => {
            ConfigError::new(field, what(), "must be an X.509 certificate (version 3)")
        }
        _ => refuse("must be of a kind that the crypto provider can use"),
    })?;
    Ok((chain, key))
}

/// A host name or an IP address: a server can have a certificate only for such a name.
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
    // Of a text that is not PEM, the list is empty and there is no error.
    found.ok().filter(|list| !list.is_empty()).ok_or_else(|| {
        ConfigError::new(field, what(), "must be PEM with at least one BEGIN CERTIFICATE")
    })
}

/// With rustls' message, which may contain the names in the server's certificate. `None` if it is
/// no error of TLS.
pub(crate) fn refusal(e: &(dyn Error + 'static)) -> Option<(&'static str, String)> {
    let e = inside::<rustls::Error>(e)?;
    Some((remedy(e), e.to_string()))
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
