//! `host:port`, in the form of the Sentinels' reports and of the user's settings.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

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

    /// With `default_port` where no port is written.
    pub(crate) fn split(text: &str, default_port: Option<u16>) -> Option<Self> {
        let behind = text.rfind(']').map_or(0, |end| end + 1);
        let (host, port) = match text[behind..].rfind(':') {
            Some(colon) => {
                let (host, port) = text.split_at(behind + colon);
                let is_number = port[1..].bytes().all(|b| b.is_ascii_digit());
                (host, is_number.then(|| port[1..].parse().ok())??)
            }
            None => (text, default_port?),
        };
        let Some(v6) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) else {
            let is_name = !host.contains(['/', '@', '[', ']', '?', '#', ',', ':']);
            return is_name.then(|| Self::new(host, port))?;
        };
        let (ip, zone) = v6.split_once('%').map_or((v6, None), |(ip, zone)| (ip, Some(zone)));
        ip.parse::<Ipv6Addr>().ok()?;
        let Some(zone) = zone.map(zone_of) else { return Self::new(ip, port) };
        let is_zone = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let is_zone = !zone.is_empty() && zone.chars().all(is_zone);
        is_zone.then(|| Self::new(&format!("{ip}%{zone}"), port))?
    }

    pub(crate) fn parse(field: &'static str, text: &str) -> Result<Self, ConfigError> {
        Self::split(text, None).ok_or_else(|| {
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

/// Of a link-local address, `[fe80::1%eth0]` or `[fe80::1%25eth0]`.
fn zone_of(written: &str) -> &str {
    let is_name = |zone: &&str| zone.starts_with(|c: char| c.is_ascii_alphabetic());
    written.strip_prefix("25").filter(is_name).unwrap_or(written)
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
