//! The form of an address, of servers, groups and nodes in memory: this is its one parser.
//!
//! ```text
//! scheme://[user[:password]@]host[:port][,host[:port],…][/path][?option=value&…]
//! ```
//!
//! No error shows a login, or the value of an option, which may be secrets.

use super::address::Address;
use crate::error::ConfigError;
use crate::safe_text::Quoted;

pub(crate) struct Url<'a> {
    text: &'a str,
    pub(crate) scheme: &'a str,
    /// User and password; `None` if the address has no `@`.
    pub(crate) login: Option<(Option<String>, Option<String>)>,
    /// As written, without the login; empty for a socket.
    pub(crate) hosts: &'a str,
    /// Behind the `/` after the hosts, as written.
    pub(crate) path: Option<&'a str>,
    /// Values are decoded.
    pub(crate) options: Vec<(&'a str, String)>,
}

pub(crate) const SERVER_PORT: u16 = 6_379;
pub(crate) const SENTINEL_PORT: u16 = 26_379;

#[cfg(not(feature = "tls"))]
pub(crate) const WITHOUT_TLS: &str = "TLS needs the cargo feature `tls` of palisade";
const SEVERAL: &str = "holds several addresses: give each of them alone, or write : in a password \
                       as %3A";
const AMBIGUOUS: &str = "an address with an @ after a ? / or #: if these belong to the password, \
                         write them as %2F %3F %23";

impl<'a> Url<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self, ConfigError> {
        // As a secret's file or a variable has it.
        let text = text.trim();
        let mut url =
            Self { text, scheme: "", login: None, hosts: "", path: None, options: Vec::new() };
        let Some((scheme, rest)) = text.split_once("://") else { return Err(url.odd()) };
        url.scheme = scheme;
        if rest.contains("://") {
            return Err(url.refused(SEVERAL));
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        // A path, and a password in the options of a path, may contain an @.
        if !url.is_path() && rest[end..].contains('@') {
            return Err(url.refused(AMBIGUOUS));
        }
        let (rest, fragment) = rest.split_once('#').map_or((rest, None), |(r, f)| (r, Some(f)));
        if fragment.is_some_and(|fragment| fragment != "insecure") {
            let rule = "nothing may follow a #; write one in a password as %23";
            return Err(url.refused(rule));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        if url.is_path() {
            url.path = Some(place);
        } else {
            let (authority, path) =
                place.split_once('/').map_or((place, None), |(a, path)| (a, Some(path)));
            let (login, hosts) =
                authority.rsplit_once('@').map_or((None, authority), |(l, hosts)| (Some(l), hosts));
            (url.hosts, url.path) = (hosts, path);
            if let Some(login) = login {
                let (user, password) =
                    login.split_once(':').map_or((login, None), |(user, p)| (user, Some(p)));
                let user = Some(url.decoded("user", user)?).filter(|user| !user.is_empty());
                let password = password.map(|p| url.decoded("password", p)).transpose()?;
                let password = password.filter(|p| user.is_some() || !p.is_empty());
                url.login = Some((user, password));
            }
        }
        if fragment.is_some() {
            let at = url.addresses(SERVER_PORT)?.remove(0);
            let rule = "certificates are always verified; give your own CA to `tls` instead";
            return Err(ConfigError::new("url", format!("{at} with #insecure"), rule));
        }
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let options = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((name, url.decoded(&plain(name), value)?))
        });
        url.options = options.collect::<Result<_, ConfigError>>()?;
        Ok(url)
    }

    /// A socket instead of hosts.
    pub(crate) fn is_path(&self) -> bool {
        self.scheme.contains("unix")
    }

    /// Removes an option, and returns its value.
    pub(crate) fn take(&mut self, option: &str) -> Option<String> {
        let at = self.options.iter().position(|(name, _)| *name == option)?;
        Some(self.options.remove(at).1)
    }

    pub(crate) fn addresses(&self, default_port: u16) -> Result<Vec<Address>, ConfigError> {
        let address = |host: &str| {
            Address::split(host, Some(default_port)).ok_or_else(|| {
                let behind = host.rsplit(']').next().unwrap_or_default();
                let port = behind.rsplit_once(':').map_or("", |(_, port)| port);
                let is_number = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
                if is_number && port.parse::<u16>().unwrap_or_default() == 0 {
                    self.refused("a port is a number from 1 to 65535")
                } else {
                    self.odd()
                }
            })
        };
        self.hosts.split(',').map(address).collect()
    }

    /// Each machine would reach a server of its own. `0` is how resolvers write 0.0.0.0, too.
    pub(crate) fn check_host(&self, at: &Address) -> Result<(), ConfigError> {
        let of_all = at.host().parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_unspecified());
        if of_all || at.host().bytes().all(|b| b"0.".contains(&b)) {
            return Err(self.refused("0.0.0.0 and :: are no addresses of a server: write its own"));
        }
        Ok(())
    }

    pub(crate) fn decoded(&self, what: &str, text: &str) -> Result<String, ConfigError> {
        decode(text).ok_or_else(|| {
            let rule = "write two hexadecimal digits after a %, as in %25 for % itself, and UTF-8 \
                        only";
            self.refused(format!("`{what}` is not shown: {rule}"))
        })
    }

    pub(crate) fn refused(&self, rule: impl Into<String>) -> ConfigError {
        ConfigError::new("url", shown(self.text), rule)
    }

    pub(crate) fn odd(&self) -> ConfigError {
        self.refused("must be redis://, rediss:// or unix:// with host or path")
    }
}

/// Whether a server of this scheme uses TLS; `None` if the scheme is not that of a server.
pub(crate) fn server_tls(scheme: &str) -> Option<bool> {
    match scheme {
        "redis" | "valkey" | "unix" | "redis+unix" | "valkey+unix" => Some(false),
        "rediss" | "valkeys" => Some(true),
        _ => None,
    }
}

fn decode(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [a, b, tail @ ..] = rest else { return None };
        let digit = |c: u8| char::from(c).to_digit(16);
        bytes.push((digit(*a)? * 16 + digit(*b)?) as u8);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

/// The name of an option, which is shown.
pub(crate) fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(32).collect()
}

/// Without the login and the options. If it is not clear where these end, more is left out.
pub(crate) fn shown(url: &str) -> String {
    if url.is_empty() {
        return "\"\"".to_owned();
    }
    let is_scheme = |s: &str| s.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    let Some((scheme, rest)) = url.split_once("://").filter(|(s, _)| is_scheme(s)) else {
        return "\"…\"".to_owned();
    };
    let (login, place) = rest.rsplit_once('@').map_or(("", rest), |(login, p)| (login, p));
    let place = match place.split('?').next().unwrap_or_default() {
        _ if login.contains(['@', '?']) || rest.contains('#') => "…".to_owned(),
        place if rest.contains('@') => format!("…@{place}"),
        place => without_password(place),
    };
    let scheme: String = scheme.chars().take(16).collect();
    Quoted(&format!("{scheme}://{place}")).to_string()
}

/// Without a host, as in `redis://user:password`, the text in the place of a port is the password.
fn without_password(place: &str) -> String {
    let end = place.find('/').unwrap_or(place.len());
    let is_host = |at: &str| at.is_empty() || Address::split(at, Some(1)).is_some();
    match place[..end].split(',').find(|at| !is_host(at)) {
        None => place.to_owned(),
        Some(odd) => {
            let (name, _) = odd.split_once(':').unwrap_or((odd, ""));
            if is_host(name) && !name.is_empty() { format!("{name}:…") } else { "…".to_owned() }
        }
    }
}
