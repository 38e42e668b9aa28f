//! How to log in, and the `redis-cli` options for that without a secret.

use std::fmt;

use super::facts::{host_of, is_plain};
use super::gather::Lone;
use palisade::ConfigError;
use palisade::internal::Endpoint;
use palisade::internal::Secrets;
use palisade::internal::Tls;

/// PEM: a root certificate in place of the system's, and a client certificate with its key.
#[derive(Clone, Default)]
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "nothing to give them to"))]
pub(crate) struct Certificates {
    pub(crate) root: Option<Vec<u8>>,
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

/// User, password and transport. Not printable.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    /// Plain TCP if `None`.
    pub(crate) tls: Option<Tls>,
    /// Further options that `redis-cli` needs.
    pub(crate) more: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "…"))
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

impl Login {
    /// What must not be shown.
    pub(crate) fn secrets(&self) -> Secrets {
        Secrets::of(self.username.as_deref(), self.password.as_deref())
    }

    /// The beginning of a `redis-cli` command line to `host:port`, or to a socket's path.
    pub(crate) fn by_hand(&self, at: &str) -> String {
        let (user, password) = (self.username.as_deref(), self.password.is_some());
        by_hand(at, (user, password), self.tls.is_some(), &self.more)
    }

    /// Over TLS, if certificates are given.
    pub(crate) fn over(
        self,
        field: &'static str,
        tls: Option<&Certificates>,
    ) -> Result<Self, ConfigError> {
        let tls = tls.map(|certificates| transport(field, certificates)).transpose()?;
        Ok(Self { tls, ..self })
    }
}

/// A lone server from its address; a login that the address lacks is taken from `data`.
pub(crate) fn lone(
    url: &str,
    name: &str,
    data: &Login,
    tls: Option<&Certificates>,
) -> Result<Lone, ConfigError> {
    let mut target = Endpoint::parse(url)?;
    if let (None, Some(user)) = (target.login().0, &data.username) {
        target = target.username(user);
    }
    if let (false, Some(password)) = (target.login().1, &data.password) {
        target = target.password(password);
    }
    #[cfg(feature = "tls")]
    if let (true, Some(Certificates { root, client })) = (target.is_tls(), tls) {
        target = target.tls(root.as_deref(), pair(client.as_ref()))?;
    }
    #[cfg(not(feature = "tls"))]
    let _ = tls;
    let hand = by_hand(name, target.login(), target.is_tls(), &data.more);
    Ok(Lone { at: name.to_owned(), hand, target })
}

#[cfg(feature = "tls")]
fn transport(field: &'static str, given: &Certificates) -> Result<Tls, ConfigError> {
    Tls::new(field, given.root.as_deref(), pair(given.client.as_ref()))
}

#[cfg(feature = "tls")]
fn pair(client: Option<&(Vec<u8>, Vec<u8>)>) -> Option<(&[u8], &[u8])> {
    client.map(|(chain, key)| (&chain[..], &key[..]))
}

#[cfg(not(feature = "tls"))]
fn transport(field: &'static str, _: &Certificates) -> Result<Tls, ConfigError> {
    Err(ConfigError::new(field, "given", "TLS needs the cargo feature `tls` of palisade"))
}

/// As [`Login::by_hand`]; `redis-cli` asks for the password, so it is never in the command line.
fn by_hand(at: &str, login: (Option<&str>, bool), tls: bool, more: &str) -> String {
    let (user, password) = login;
    let mut line = if at.contains('/') {
        format!("redis-cli -s {}", quoted(at))
    } else {
        let port = at.rsplit_once(':').map_or("6379", |(_, port)| port);
        format!("redis-cli -h {} -p {port}", host_of(at))
    };
    if tls {
        line.push_str(" --tls");
        if !more.is_empty() {
            line.push(' ');
            line.push_str(more);
        }
    }
    if let Some(user) = user {
        line.push_str(" --user ");
        line.push_str(&quoted(user));
    }
    if password {
        line.push_str(" --askpass");
    }
    line
}

/// Quoted for a shell.
fn quoted(word: &str) -> String {
    if is_plain(word) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_to_paste_is_one_command() {
        let odd = by_hand("/run/a b.sock", (Some("o'ps;"), false), false, "");
        assert_eq!(odd, "redis-cli -s '/run/a b.sock' --user 'o'\\''ps;'");
    }

    #[test]
    fn a_line_to_paste_holds_no_secret() {
        let login = Login {
            username: Some("ops".into()),
            password: Some("s3cret".into()),
            ..Login::default()
        };
        let line = login.by_hand("10.0.0.1:6379");
        assert_eq!(line, "redis-cli -h 10.0.0.1 -p 6379 --user ops --askpass");
        assert!(!format!("{login:?}").contains("s3cret"));
        assert_eq!(
            by_hand("[::1]:5", (None, false), true, "--cacert ca.pem"),
            "redis-cli -h ::1 -p 5 --tls --cacert ca.pem"
        );
        assert_eq!(by_hand("/run/r.sock", (None, false), false, "x"), "redis-cli -s /run/r.sock");
    }
}
