//! Addresses of servers, in the form of the Sentinels' reports and of the user's settings.

use std::fmt;
use std::str::FromStr;

use crate::dial::endpoint::zone_of;
use crate::error::ConfigError;
use crate::safe_text::is_plain;

const HOST_MAX: usize = 255;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Address {
    host: Box<str>,
    port: u16,
}

impl Address {
    /// `None` for port 0, and for a host that is empty, too long, or has white space or control
    /// characters.
    pub(crate) fn new(host: &str, port: u16) -> Option<Self> {
        let bad = host.is_empty() || port == 0;
        let odd = host.len() > HOST_MAX || host.contains(char::is_whitespace) || !is_plain(host);
        (!bad && !odd).then(|| Self { host: host.into(), port })
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn parse(field: &'static str, text: &str) -> Result<Self, ConfigError> {
        split(text).ok_or_else(|| {
            let rule = "write host:port, with a port from 1 to 65535 ([…] around an IPv6 address), \
                        and nothing else: no scheme, no password, no path";
            ConfigError::new(field, format!("{:?}", shown(text)), rule)
        })
    }
}

/// Without what is before an `@` or in the place of a port: it may be a password.
fn shown(text: &str) -> String {
    let is_scheme = |s: &str| s.bytes().all(|b| b.is_ascii_alphabetic());
    let (secret, rest) = text.rsplit_once('@').unwrap_or(("", text));
    let is_port = |p: &str| p.bytes().all(|b| b.is_ascii_digit());
    let rest = match (rest.split_once("://"), rest.split_once(':')) {
        _ if secret.contains(['?', '#']) => "…".to_owned(),
        (Some((scheme, _)), _) if is_scheme(scheme) => format!("{scheme}://…"),
        (Some(_), _) => "…".to_owned(),
        (None, Some((host, port))) if !is_port(port) => format!("{host}:…"),
        _ => rest.to_owned(),
    };
    rest.chars().take(64).collect()
}

fn split(text: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let inner = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host = inner.unwrap_or(host);
    let v6 = inner.is_some();
    if host.contains(['/', '@', '[', ']', '?', '#', ',']) || (host.contains(':') && !v6) {
        return None;
    }
    if !port.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let host = match host.split_once('%') {
        Some((ip, zone)) if v6 => format!("{ip}%{}", zone_of(zone)),
        _ => host.to_owned(),
    };
    Address::new(&host, port.parse().ok()?)
}

impl FromStr for Address {
    type Err = ConfigError;
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        Self::parse("address", text)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_alike() {
        for text in ["10.0.0.1:26379", "sentinel-a:1", "[::1]:65535", "a.b-c.d:26379"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["[fe80::1%lo]:26379", "[fe80::1%25lo]:26379"] {
            let at = text.parse::<Address>().unwrap();
            assert_eq!((at.host(), at.port()), ("fe80::1%lo", 26_379));
        }
    }

    #[test]
    fn what_is_not_host_and_port_is_refused_without_showing_a_password() {
        for text in [
            "",
            "a",
            ":1",
            "a:",
            "a:0",
            "a:65536",
            "a:x",
            "::1:5",
            "redis://a:1",
            "a b:1",
            "a\n:1",
            "u:pw@a:1",
            "a:1/0",
            "a:+1",
        ] {
            let error = Address::parse("sentinels", text).unwrap_err();
            assert!(error.to_string().starts_with("`sentinels` is"), "{error}");
            assert!(!error.to_string().contains("pw"), "{error}");
        }
    }
}
