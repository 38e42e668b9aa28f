//! How to log in, and how to say so to `redis-cli` without a secret.

use std::fmt;

use redis::{ConnectionAddr, IntoConnectionInfo as _};

use super::facts::{host_of, is_plain};
use super::gather::Lone;
use crate::error::ConfigError;

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
    /// Plain TCP if `None`; else TLS with these parameters, whatever address stands in it.
    pub(crate) tls: Option<ConnectionAddr>,
    /// What else `redis-cli` needs.
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

/// A lone server from its address; what that does not say of the login is as for all.
pub(crate) fn lone(
    url: &str,
    name: &str,
    data: &Login,
    tls: Option<&Certificates>,
) -> Result<Lone, ConfigError> {
    // The node was made from the same address before: this does not fail.
    let refused = |_| ConfigError::new("node", name, "must be an address that Redis clients take");
    let mut target = url.into_connection_info().map_err(refused)?;
    let mut redis = target.redis_settings().clone();
    if let (None, Some(user)) = (redis.username(), &data.username) {
        redis = redis.set_username(user);
    }
    if let (None, Some(password)) = (redis.password(), &data.password) {
        redis = redis.set_password(password);
    }
    let mut over_tls = false;
    if let ConnectionAddr::TcpTls { host, port, .. } = target.addr() {
        over_tls = true;
        let (host, port) = (host.clone(), *port);
        if let Some(ConnectionAddr::TcpTls { insecure, tls_params, .. }) =
            tls.map(|certificates| transport("tls", certificates)).transpose()?
        {
            target = target.set_addr(ConnectionAddr::TcpTls { host, port, insecure, tls_params });
        }
    }
    let login = (redis.username(), redis.password().is_some());
    let hand = by_hand(name, login, over_tls, &data.more);
    Ok(Lone { at: name.to_owned(), hand, target: target.set_redis_settings(redis) })
}

/// TLS with these certificates. The address in the result means nothing.
#[cfg(feature = "tls")]
fn transport(field: &'static str, given: &Certificates) -> Result<ConnectionAddr, ConfigError> {
    let addr = ConnectionAddr::TcpTls {
        host: "localhost".to_owned(),
        port: 1,
        insecure: false,
        tls_params: None,
    };
    let client_tls = given.client.clone();
    let certificates = redis::TlsCertificates {
        client_tls: client_tls
            .map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key }),
        root_cert: given.root.clone(),
    };
    let build = |info| redis::Client::build_with_tls(info, certificates);
    let client = addr.into_connection_info().and_then(build).map_err(|_| {
        ConfigError::new(field, "given", "certificates and key must be PEM that rustls can use")
    })?;
    Ok(client.get_connection_info().addr().clone())
}

#[cfg(not(feature = "tls"))]
fn transport(field: &'static str, _: &Certificates) -> Result<ConnectionAddr, ConfigError> {
    Err(ConfigError::new(field, "given", "TLS needs the cargo feature `tls` of palisade"))
}

/// As [`Login::by_hand`]; a password is asked for and never stands on the line.
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

/// As a shell takes it for one word.
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
