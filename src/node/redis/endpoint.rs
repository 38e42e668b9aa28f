//! Where a server is and how to log in: parsed once, checked when it is built, and never printed
//! with its password.

use std::fmt;
use std::sync::Arc;

use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, ProtocolVersion,
};

use crate::error::ConfigError;
use crate::sentinel::named;
#[cfg(feature = "tls")]
use crate::tls;

/// The largest database index a server can be configured for.
const DB_MAX: i64 = i32::MAX as i64;

/// One server's address with the credentials for it. Cheap enough to clone per connection.
#[derive(Clone)]
pub(crate) struct Endpoint {
    info: ConnectionInfo,
    /// The name that is looked for in a certificate, if it is not the host.
    tls_name: Option<Arc<str>>,
}

impl Endpoint {
    /// Reads `redis://`, `rediss://` (feature `tls`) and `unix://` addresses.
    pub(crate) fn parse(url: &str) -> Result<Self, ConfigError> {
        if !cfg!(feature = "tls") && (url.starts_with("rediss://") || url.starts_with("valkeys://"))
        {
            let rule = "TLS needs the cargo feature `tls` of palisade";
            return Err(ConfigError::new("url", redacted(url), rule));
        }
        if is_ambiguous(url) {
            let rule = "an @ stands behind one of / ? #: if these belong to the password, write \
                        them as %2F %3F %23";
            return Err(ConfigError::new("url", redacted(url), rule));
        }
        let info = url.into_connection_info().map_err(|e| {
            // The crate's words say what is wrong; its detail quotes a part of the address.
            let words = e.to_string();
            let cause = e.detail().map_or(&*words, |d| words.trim_end_matches(d));
            let cause = cause.trim_end_matches([':', ' ']);
            let rule =
                format!("must be redis://, rediss:// or unix:// with host or path ({cause})");
            ConfigError::new("url", redacted(url), rule)
        })?;
        Self { info, tls_name: None }.checked()
    }

    /// A TCP address, as a Sentinel names it, with the login and transport of `like`.
    pub(crate) fn at(host: &str, port: u16, like: &Self) -> Self {
        let addr = match like.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host: host.to_owned(),
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host.to_owned(), port),
        };
        let info = like.info.clone().set_addr(addr);
        Self { info, tls_name: like.tls_name.clone() }
    }

    /// Whether it is met over TLS.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.info.addr(), ConnectionAddr::TcpTls { .. })
    }

    /// With these certificates (PEM).
    #[cfg(feature = "tls")]
    pub(crate) fn tls(
        self,
        root: Option<Vec<u8>>,
        client: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Result<Self, ConfigError> {
        let ConnectionAddr::TcpTls { host, port, .. } = self.info.addr() else {
            let value = format!("given with the plain address {self}");
            return Err(ConfigError::new("tls", value, "needs an address with rediss://"));
        };
        let like = Self::over(tls_transport("tls", root, client)?);
        let addr = Self::at(host, *port, &like).info.addr().clone();
        Ok(Self { info: self.info.set_addr(addr), ..self })
    }

    /// Over this transport, without a login.
    pub(crate) fn over(addr: ConnectionAddr) -> Self {
        let info = addr.into_connection_info().expect("an address alone is always valid");
        Self { info, tls_name: None }
    }

    /// Replaces the user.
    pub(crate) fn username(self, name: &str) -> Self {
        let redis = self.info.redis_settings().clone().set_username(name);
        Self { info: self.info.set_redis_settings(redis), ..self }
    }

    /// Replaces the password.
    pub(crate) fn password(self, password: &str) -> Self {
        let redis = self.info.redis_settings().clone().set_password(password);
        Self { info: self.info.set_redis_settings(redis), ..self }
    }

    /// Replaces the database index.
    pub(crate) fn db(self, db: u32) -> Result<Self, ConfigError> {
        let redis = self.info.redis_settings().clone().set_db(i64::from(db));
        Self { info: self.info.set_redis_settings(redis), ..self }.checked()
    }

    /// As [`Self::tls_name`], checked before; without TLS it means nothing.
    pub(crate) fn named(self, tls_name: Option<Arc<str>>) -> Self {
        Self { tls_name, ..self }
    }

    /// Looks for this name in the server's certificate, wherever the server is.
    #[cfg(feature = "tls")]
    pub(crate) fn tls_name(self, name: &str) -> Result<Self, ConfigError> {
        tls::server_name("tls_server_name", name)?;
        if !self.is_tls() {
            let value = format!("given with the plain address {self}");
            return Err(ConfigError::new("tls_server_name", value, "needs TLS (rediss://, `tls`)"));
        }
        Ok(Self { tls_name: Some(name.into()), ..self })
    }

    /// What the connection is opened with: RESP3 (pushes tell of hints and of a lost connection),
    /// without Nagle's delay, and with no time-outs but those of whoever asks.
    pub(crate) fn connection(&self) -> (ConnectionInfo, AsyncConnectionConfig) {
        let tcp = TcpSettings::default().set_nodelay(true);
        let redis = self
            .info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("palisade", env!("CARGO_PKG_VERSION"));
        let (addr, config) = named::under(self.tls_name.as_ref(), self.info.addr().clone());
        let info = self.info.clone().set_addr(addr).set_tcp_settings(tcp);
        let config = config.set_connection_timeout(None).set_response_timeout(None);
        (info.set_redis_settings(redis), config)
    }

    fn checked(self) -> Result<Self, ConfigError> {
        #[cfg(feature = "tls")]
        if let ConnectionAddr::TcpTls { insecure, .. } = self.info.addr() {
            if *insecure {
                let rule = "certificates are always verified; give your own CA to `tls` instead";
                return Err(ConfigError::new("url", format!("{self} with #insecure"), rule));
            }
            tls::provider("url")?;
        }
        let db = self.info.redis_settings().db();
        if (0..=DB_MAX).contains(&db) {
            return Ok(self);
        }
        Err(ConfigError::new("db", db.to_string(), format!("between 0 and {DB_MAX}")))
    }
}

/// TLS with an own root certificate (else the system's), and a client certificate with its key, all
/// PEM. The address in the result means nothing.
#[cfg(feature = "tls")]
pub(crate) fn tls_transport(
    field: &'static str,
    root_cert: Option<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
) -> Result<ConnectionAddr, ConfigError> {
    let pair = client.as_ref().map(|(chain, key)| (&chain[..], &key[..]));
    tls::check(field, root_cert.as_deref(), pair)?;
    let addr = ConnectionAddr::TcpTls {
        host: "localhost".to_owned(),
        port: 1,
        insecure: false,
        tls_params: None,
    };
    let client_tls =
        client.map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
    let certificates = redis::TlsCertificates { client_tls, root_cert };
    let build = |info| redis::Client::build_with_tls(info, certificates);
    let client = addr.into_connection_info().and_then(build).map_err(|_| {
        ConfigError::new(field, "given", "certificates and key must be PEM that rustls can use")
    })?;
    Ok(client.get_connection_info().addr().clone())
}

/// Host and port or path only.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }
                if host.contains(':') =>
            {
                write!(f, "[{host}]:{port}")
            }
            addr => addr.fmt(f),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

/// Whether an `@` stands only behind what ends host and port. Then a part of the password would be
/// taken for the host, and be shown as such. Paths may hold one.
fn is_ambiguous(url: &str) -> bool {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let is_path = scheme.contains("unix");
    !is_path && !authority.contains('@') && behind.contains('@')
}

/// The address without what stands before the last `@` and without the query, where secrets live.
/// Where it is not certain what is which, nothing is shown.
fn redacted(url: &str) -> String {
    let is_scheme = |s: &str| s.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    let (scheme, rest) = url.split_once("://").filter(|(s, _)| is_scheme(s)).unwrap_or(("", url));
    let (secret, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    // Behind a query's start an `@` may be the query's, and a part of a password follows it.
    let rest = if secret.contains(['?', '#']) { "…" } else { rest };
    // Who forgot the host leaves the password where a port belongs.
    let is_port = |text: &str| {
        let port = text.split('/').next().unwrap_or_default();
        port.parse::<u16>().is_ok()
    };
    let rest = match rest.split_once(':') {
        _ if is_v6(rest, is_port) => rest.to_owned(),
        Some((host, port)) if host.is_empty() || !is_port(port) => format!("{host}:…"),
        _ => rest.to_owned(),
    };
    let shown: String = rest.chars().take(64).collect();
    if scheme.is_empty() {
        format!("{shown:?}")
    } else {
        format!("\"{scheme}://{}\"", shown.escape_debug())
    }
}

/// Whether it begins with an IPv6 address in brackets, and with a port if anything.
fn is_v6(rest: &str, is_port: impl Fn(&str) -> bool) -> bool {
    let Some((host, behind)) = rest.strip_prefix('[').and_then(|r| r.split_once(']')) else {
        return false;
    };
    let port = behind.strip_prefix(':');
    host.parse::<std::net::Ipv6Addr>().is_ok()
        && port.map_or_else(|| behind.is_empty() || behind.starts_with('/'), is_port)
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_shows_where_but_never_the_secret() {
        let e = Endpoint::parse("redis://joe:s3cret@10.0.0.1:7001/2").unwrap();
        assert_eq!(e.to_string(), "10.0.0.1:7001");
        assert!(!format!("{e:?}").contains("s3cret"));
        assert_eq!(Endpoint::parse("redis://[::1]:7001").unwrap().to_string(), "[::1]:7001");
        assert_eq!(Endpoint::parse("unix:///run/r.sock").unwrap().to_string(), "/run/r.sock");
        assert_eq!(Endpoint::at("h", 5, &e).to_string(), "h:5");
    }

    #[test]
    fn bad_addresses_are_told_with_field_value_and_rule() {
        for (url, field, rule) in [
            ("", "url", "must be redis://"),
            ("http://h", "url", "must be redis://"),
            ("redis://joe:s3cret@h:99999", "url", "must be redis://"),
            ("redis://joe:s3cret@h/x", "url", "must be redis://"),
            ("redis://:s3cret", "url", "must be redis://"),
            ("redis://joe:s3cret", "url", "must be redis://"),
            ("redis://:1s3cret", "url", "must be redis://"),
            ("redis://joe:s3cret/0", "url", "must be redis://"),
            ("redis://joe:s3#cret@h:x", "url", "as %2F %3F %23"),
            ("redis://joe:s3/cret@h:x", "url", "as %2F %3F %23"),
            ("unix://joe:s3cret@/x?db=y&pass=s3cret", "url", "must be redis://"),
            ("redis://h:x?pass=s3cret@", "url", "as %2F %3F %23"),
            ("redis://h/-1", "db", "between 0 and"),
            ("redis://h/9999999999", "db", "between 0 and"),
        ] {
            let e = Endpoint::parse(url).unwrap_err();
            let text = e.to_string();
            assert_eq!(e.field(), field, "{text}");
            assert!(text.contains(rule) && !text.contains("s3cret"), "{text}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_without_the_feature_says_which_feature() {
        let text = Endpoint::parse("rediss://joe:s3cret@h").unwrap_err().to_string();
        assert!(text.contains("feature `tls`") && !text.contains("s3cret"), "{text}");
    }
}
