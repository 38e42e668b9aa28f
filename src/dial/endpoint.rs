//! The address of a server, with a login. No output contains the password.

use std::fmt;
use std::sync::Arc;

use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, IntoConnectionInfo as _, ProtocolVersion,
    RedisConnectionInfo, RedisResult, cmd,
};

use crate::dial::frames::Limits;
use crate::dial::wire::Wire;
use crate::dial::{self, Line, Place, secrets};
use crate::error::ConfigError;
use crate::safe_text::Secrets;
use crate::tls::Tls;

const DB_MAX: i64 = i32::MAX as i64;

/// The address of one server, with a login. A clone is cheap.
#[derive(Clone)]
pub struct Endpoint {
    place: Place,
    tls: Option<Tls>,
    tls_name: Option<Arc<str>>,
    login: RedisConnectionInfo,
}

impl Endpoint {
    /// Parses `redis://`, `rediss://` (feature `tls`) and `unix://` addresses.
    pub fn parse(url: &str) -> Result<Self, ConfigError> {
        if !cfg!(feature = "tls") && (url.starts_with("rediss://") || url.starts_with("valkeys://"))
        {
            let rule = "TLS needs the cargo feature `tls` of palisade";
            return Err(ConfigError::new("url", redacted(url), rule));
        }
        if url.matches("://").count() > 1 {
            let rule = "holds several addresses: give each of them alone, or write : in a password \
                        as %3A";
            return Err(ConfigError::new("url", redacted(url), rule));
        }
        if is_ambiguous(url) {
            let rule = "an @ comes after one of / ? #: if these belong to the password, write them \
                        as %2F %3F %23";
            return Err(ConfigError::new("url", redacted(url), rule));
        }
        if let Some(rule) = unknown_part(url) {
            return Err(ConfigError::new("url", redacted(url), rule));
        }
        let (parsed, zone) = without_zone(url).unwrap_or_else(|| (url.to_owned(), String::new()));
        let info = parsed.as_str().into_connection_info().map_err(|e| {
            // The detail at its end quotes a part of the address.
            let words = e.to_string();
            let cause = e.detail().map_or(&*words, |d| words.trim_end_matches(d));
            let cause = cause.trim_end_matches([':', ' ']);
            let rule = if has_odd_port(url) {
                "a port is a number from 1 to 65535".to_owned()
            } else {
                format!("must be redis://, rediss:// or unix:// with host or path ({cause})")
            };
            ConfigError::new("url", redacted(url), rule)
        })?;
        let (place, tls) = match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                (Place::Tcp(format!("{host}{zone}").into(), *port), None)
            }
            ConnectionAddr::TcpTls { insecure: true, host, port, .. } => {
                let rule = "certificates are always verified; give your own CA to `tls` instead";
                return Err(ConfigError::new("url", format!("{host}:{port} with #insecure"), rule));
            }
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, port, .. } => {
                let host = format!("{host}{zone}");
                (Place::Tcp(host.into(), *port), Some(Tls::new("url", None, None)?))
            }
            ConnectionAddr::Unix(path) => (Place::Unix(path.as_path().into()), None),
            _ => {
                let rule = "must be redis://, rediss:// or unix:// with host or path";
                return Err(ConfigError::new("url", redacted(url), rule));
            }
        };
        Self { place, tls, tls_name: None, login: info.redis_settings().clone() }.checked()
    }

    /// Creates an endpoint from a host and a port, for example those that a Sentinel reports. The
    /// login and the TLS settings are those of `like`.
    pub fn at(host: &str, port: u16, like: &Self) -> Self {
        Self { place: Place::Tcp(host.into(), port), ..like.clone() }
    }

    pub(crate) fn url(&self) -> String {
        let scheme = match (&self.place, self.is_tls()) {
            (Place::Unix(_), _) => "unix",
            (Place::Tcp(..), true) => "rediss",
            (Place::Tcp(..), false) => "redis",
        };
        let db = match (&self.place, self.login.db()) {
            (_, 0) => String::new(),
            (Place::Unix(_), db) => format!("?db={db}"),
            (Place::Tcp(..), db) => format!("/{db}"),
        };
        format!("{scheme}://{self}{db}")
    }

    pub(crate) fn database(&self) -> i64 {
        self.login.db()
    }

    /// Returns true if connections to the server use TLS.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Sets the root certificate that verifies the server, and the client certificate with its key.
    /// All are PEM texts.
    #[cfg(feature = "tls")]
    pub fn tls(
        self,
        root: Option<&[u8]>,
        client: Option<(&[u8], &[u8])>,
    ) -> Result<Self, ConfigError> {
        if !self.is_tls() {
            let value = format!("given with the plain address {self}");
            return Err(ConfigError::new("tls", value, "needs an address with rediss://"));
        }
        Ok(Self { tls: Some(Tls::new("tls", root, client)?), ..self })
    }

    /// A template for [`at`](Self::at).
    pub(crate) fn anywhere() -> Self {
        let place = Place::Tcp("localhost".into(), 0);
        Self { place, tls: None, tls_name: None, login: RedisConnectionInfo::default() }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn over(self, tls: Tls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// Replaces the user name of the login.
    #[must_use]
    pub fn username(self, name: &str) -> Self {
        Self { login: self.login.set_username(name), ..self }
    }

    /// Replaces the password of the login.
    #[must_use]
    pub fn password(self, password: &str) -> Self {
        Self { login: self.login.set_password(password), ..self }
    }

    pub(crate) fn db(self, db: u32) -> Result<Self, ConfigError> {
        Self { login: self.login.set_db(i64::from(db)), ..self }.checked()
    }

    /// Returns the user name, and true if there is a password.
    pub fn login(&self) -> (Option<&str>, bool) {
        (self.login.username(), self.login.password().is_some())
    }

    /// Returns the user name and the password of the login, so that they can be hidden in texts.
    pub fn secrets(&self) -> Secrets {
        secrets(&self.login)
    }

    #[cfg(feature = "tls")]
    pub(crate) fn tls_name(self, field: &'static str, name: &str) -> Result<Self, ConfigError> {
        crate::tls::server_name(field, name)?;
        Ok(Self { tls_name: Some(name.into()), ..self })
    }

    pub(crate) fn check_tls_name(
        &self,
        field: &'static str,
        rule: &'static str,
    ) -> Result<(), ConfigError> {
        match &self.tls_name {
            Some(name) if !self.is_tls() => {
                Err(ConfigError::new(field, format!("{name:?}, without TLS"), rule))
            }
            _ => Ok(()),
        }
    }

    fn transport(&self) -> Option<Tls> {
        self.tls.clone().map(|tls| tls.named(self.tls_name.as_ref()))
    }

    /// Logs in with RESP3, whose pushes report hints and lost connections, without Nagle's delay.
    /// The caller has to set a time-out. A dropped future closes the connection.
    pub(crate) async fn dial(
        &self,
        config: AsyncConnectionConfig,
        limits: Limits,
    ) -> RedisResult<Line> {
        let login = self.login.clone().set_protocol(ProtocolVersion::RESP3);
        let login = login.set_lib_name("palisade", env!("CARGO_PKG_VERSION"));
        let config = config.set_connection_timeout(None).set_response_timeout(None);
        dial::dial(&self.place, self.transport().as_ref(), &login, config, limits).await
    }

    /// This library's name is not sent, because a Sentinel's user need not have the permission for
    /// that.
    pub(crate) async fn dial_sentinel(&self, config: AsyncConnectionConfig) -> RedisResult<Line> {
        let login = self.login.clone().set_protocol(ProtocolVersion::RESP3);
        let login = login.set_skip_set_lib_name();
        dial::dial(&self.place, self.transport().as_ref(), &login, config, Limits::SENTINEL).await
    }

    /// Sends no command: the caller sends [`hello`](Self::hello) and [`settle_in`](Self::settle_in)
    /// first.
    pub(crate) async fn wire(&self, load: fn() -> Vec<u8>) -> RedisResult<Wire> {
        Ok(dial::wire(&self.place, self.transport().as_ref(), Limits::BATCHES, load).await?)
    }

    pub(crate) fn hello(&self) -> Cmd {
        let mut hello = cmd("HELLO");
        hello.arg("3");
        if let Some(password) = self.login.password() {
            let user = self.login.username().unwrap_or("default");
            hello.arg("AUTH").arg(user).arg(password);
        }
        hello
    }

    /// A server may refuse the client's name and version.
    pub(crate) fn settle_in(&self) -> Vec<Cmd> {
        let info =
            |name: &str, value: &str| cmd("CLIENT").arg("SETINFO").arg(name).arg(value).take();
        let version = env!("CARGO_PKG_VERSION");
        let mut all = vec![info("LIB-NAME", "palisade"), info("LIB-VER", version)];
        if self.login.db() != 0 {
            all.push(cmd("SELECT").arg(self.login.db()).take());
        }
        all
    }

    fn checked(self) -> Result<Self, ConfigError> {
        let db = self.login.db();
        if (0..=DB_MAX).contains(&db) {
            return Ok(self);
        }
        Err(ConfigError::new("db", db.to_string(), format!("between 0 and {DB_MAX}")))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Place::Tcp(host, port) => write!(f, "{host}:{port}"),
            Place::Unix(path) => path.display().fmt(f),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

fn unknown_part(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let (rest, fragment) = rest.split_once('#').map_or((rest, None), |(r, f)| (r, Some(f)));
    if fragment.is_some_and(|f| f != "insecure") {
        return Some("nothing may follow a #; write one in a password as %23".to_owned());
    }
    let (_, query) = rest.split_once('?')?;
    let known: &[&str] =
        if scheme.contains("unix") { &["db", "user", "pass", "protocol"] } else { &["protocol"] };
    let names = query.split('&').map(|pair| pair.split('=').next().unwrap_or_default());
    let unknown = names.filter(|name| !name.is_empty()).any(|name| !known.contains(&name));
    unknown.then(|| {
        let place = "user and password belong before the host (redis://user:password@host)";
        format!("after a ? only {} may be given; {place}", known.join(", "))
    })
}

/// Of `[fe80::1%eth0]` or `[fe80::1%25eth0]`: the parser of URLs knows no zones.
fn without_zone(url: &str) -> Option<(String, String)> {
    let (scheme, _) = url.split_once("://")?;
    if scheme.contains("unix") {
        return None;
    }
    let host = url.rfind('@').map_or(0, |at| at + 1);
    let begin = host + url[host..].find('[')?;
    let end = begin + url[begin..].find(']')?;
    let at = begin + url[begin..end].find('%')?;
    let zone = zone_of(&url[at + 1..end]);
    let is_zone = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let alone = format!("{}{}", &url[..at], &url[end..]);
    (!zone.is_empty() && zone.chars().all(is_zone)).then(|| (alone, format!("%{zone}")))
}

pub(crate) fn zone_of(written: &str) -> &str {
    let is_name = |zone: &&str| zone.starts_with(|c: char| c.is_ascii_alphabetic());
    written.strip_prefix("25").filter(is_name).unwrap_or(written)
}

fn has_odd_port(url: &str) -> bool {
    let (_, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let behind = host.rsplit(']').next().unwrap_or_default();
    behind.rsplit_once(':').is_some_and(|(_, port)| {
        port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_err()
    })
}

/// A parser would take a part of the password for the host, which is shown.
fn is_ambiguous(url: &str) -> bool {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let is_path = scheme.contains("unix");
    !is_path && !authority.contains('@') && behind.contains('@')
}

/// If it is not clear where a secret part ends, more is left out.
fn redacted(url: &str) -> String {
    let is_scheme = |s: &str| s.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    let (scheme, rest) = url.split_once("://").filter(|(s, _)| is_scheme(s)).unwrap_or(("", url));
    let (secret, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    // It may belong to a query. Then the text after it may be a part of a password.
    let rest = if secret.contains(['?', '#']) { "…" } else { rest };
    // Without a host, as in `redis://user:password`, the text after the colon is the password.
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
    fn a_link_local_address_keeps_its_zone() {
        for (url, shown) in [
            ("redis://[fe80::1%lo]:7001", "[fe80::1%lo]:7001"),
            ("redis://joe:s3%40cret@[fe80::1%25eth0.7]:7001/2", "[fe80::1%eth0.7]:7001"),
            ("redis://[fe80::1%2]", "[fe80::1%2]:6379"),
        ] {
            assert_eq!(Endpoint::parse(url).unwrap().to_string(), shown, "{url}");
        }
        for url in ["redis://[fe80::1%]:1", "redis://[fe80::1%a b]:1", "redis://[fe80%lo]:1"] {
            assert!(Endpoint::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn bad_addresses_are_told_with_field_value_and_rule() {
        for (url, field, rule) in [
            ("", "url", "must be redis://"),
            ("http://h", "url", "must be redis://"),
            ("redis://joe:s3cret@h:99999", "url", "from 1 to 65535"),
            ("redis://joe:s3cret@h/x", "url", "must be redis://"),
            ("redis://:s3cret", "url", "must be redis://"),
            ("redis://joe:s3cret", "url", "must be redis://"),
            ("redis://:1s3cret", "url", "must be redis://"),
            ("redis://joe:s3cret/0", "url", "must be redis://"),
            ("redis://joe:s3#cret@h:x", "url", "as %2F %3F %23"),
            ("redis://joe:s3/cret@h:x", "url", "as %2F %3F %23"),
            ("redis://:s3cret@h,redis://:s3cret@i", "url", "give each of them alone"),
            ("redis://h;redis://i", "url", "give each of them alone"),
            ("unix://joe:s3cret@/x?db=y&pass=s3cret", "url", "must be redis://"),
            ("redis://h:x?pass=s3cret@", "url", "as %2F %3F %23"),
            ("redis://h?password=s3cret", "url", "belong before the host"),
            ("redis://h/0?db=1&pass=s3cret", "url", "belong before the host"),
            ("redis://h#s3cret", "url", "nothing may follow a #"),
            ("unix:///run/r.sock?password=s3cret", "url", "belong before the host"),
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
