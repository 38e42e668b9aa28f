//! The logins at servers, and the `redis-cli` command lines for them. Command lines contain no
//! password.

use std::time::Duration;

use super::facts::{host_of, is_plain};
use palisade::internal::Endpoint;

/// A lone server and its login.
#[derive(Clone)]
pub(crate) struct Lone {
    /// Address of the server: `host:port`, or the path of a socket.
    pub(crate) at: String,
    /// Address that names the server in a command.
    pub(crate) url: String,
    /// Beginning of a `redis-cli` command line to the server.
    pub(crate) hand: String,
    pub(crate) target: Endpoint,
    /// True if the settings accept that the server deletes keys when its memory is full.
    pub(crate) allows_eviction: bool,
    /// True if the settings declare that the server loses no confirmed write.
    pub(crate) durable: bool,
    /// Failover window by the settings.
    pub(crate) window: Duration,
}

/// Login and TLS settings for servers whose addresses are found at run time.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) like: Endpoint,
    /// Further options that `redis-cli` needs for TLS.
    pub(crate) more: String,
}

impl Login {
    /// Returns the endpoint of the server `host:port`, with this login.
    pub(crate) fn at(&self, at: &str) -> Endpoint {
        let port = at.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0);
        Endpoint::at(host_of(at), port, &self.like)
    }

    /// Returns how a person reaches these servers.
    pub(crate) fn hand(&self) -> Hand {
        Hand::of(&self.like, &self.more)
    }
}

/// How a person reaches servers by `redis-cli`. Without a password: `redis-cli` prompts for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hand {
    pub(crate) user: Option<String>,
    pub(crate) has_password: bool,
    pub(crate) tls: bool,
    /// Further options for TLS.
    pub(crate) more: String,
}

impl Hand {
    pub(crate) fn of(server: &Endpoint, more: &str) -> Self {
        let (user, has_password) = server.login();
        let (user, more) = (user.map(str::to_owned), more.to_owned());
        Self { user, has_password, tls: server.is_tls(), more }
    }

    /// Returns the beginning of a command line to `host:port`, or to a socket's path.
    pub(crate) fn to(&self, at: &str) -> String {
        let mut command = if at.contains('/') {
            format!("redis-cli -s {}", quoted(at))
        } else {
            let port = at.rsplit_once(':').map_or("6379", |(_, port)| port);
            format!("redis-cli -h {} -p {port}", host_of(at))
        };
        if self.tls {
            command.push_str(" --tls");
            if !self.more.is_empty() {
                command.push(' ');
                command.push_str(&self.more);
            }
        }
        if let Some(user) = &self.user {
            command.push_str(" --user ");
            command.push_str(&quoted(user));
        }
        if self.has_password {
            command.push_str(" --askpass");
        }
        command
    }
}

/// Returns a word quoted for a shell.
pub(crate) fn quoted(word: &str) -> String {
    if is_plain(word) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_to_paste_is_one_command() {
        let odd = Hand { user: Some("o'ps;".to_owned()), ..Hand::default() };
        let command = "redis-cli -s '/run/a b.sock' --user 'o'\\''ps;'";
        assert_eq!(odd.to("/run/a b.sock"), command);
    }

    #[test]
    fn a_line_to_paste_holds_no_secret() {
        let like = Endpoint::parse("redis://ops:s3cret@h").expect("an address");
        let command = Login { like, more: "x".to_owned() }.hand().to("10.0.0.1:6379");
        assert_eq!(command, "redis-cli -h 10.0.0.1 -p 6379 --user ops --askpass");
        let tls = Hand { tls: true, more: "--cacert ca.pem".to_owned(), ..Hand::default() };
        assert_eq!(tls.to("[::1]:5"), "redis-cli -h ::1 -p 5 --tls --cacert ca.pem");
        let plain = Hand { tls: false, ..tls };
        assert_eq!(plain.to("/run/r.sock"), "redis-cli -s /run/r.sock");
    }
}
