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
    /// Beginning of a `redis-cli` command line to the server.
    pub(crate) hand: String,
    pub(crate) target: Endpoint,
    /// True if the settings accept that the server deletes keys when its memory is full.
    pub(crate) allows_eviction: bool,
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

    /// Returns the beginning of a `redis-cli` command line to `host:port`.
    pub(crate) fn by_hand(&self, at: &str) -> String {
        by_hand(at, self.like.login(), self.like.is_tls(), &self.more)
    }
}

/// Returns the beginning of a `redis-cli` command line to `host:port` or to a socket's path. The
/// command line contains no password, because `redis-cli` prompts for it.
pub(crate) fn by_hand(at: &str, login: (Option<&str>, bool), is_tls: bool, more: &str) -> String {
    let (user, has_password) = login;
    let mut command = if at.contains('/') {
        format!("redis-cli -s {}", quoted(at))
    } else {
        let port = at.rsplit_once(':').map_or("6379", |(_, port)| port);
        format!("redis-cli -h {} -p {port}", host_of(at))
    };
    if is_tls {
        command.push_str(" --tls");
        if !more.is_empty() {
            command.push(' ');
            command.push_str(more);
        }
    }
    if let Some(user) = user {
        command.push_str(" --user ");
        command.push_str(&quoted(user));
    }
    if has_password {
        command.push_str(" --askpass");
    }
    command
}

/// Returns a word quoted for a shell.
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
        let like = Endpoint::parse("redis://ops:s3cret@h").expect("an address");
        let command = Login { like, more: "x".to_owned() }.by_hand("10.0.0.1:6379");
        assert_eq!(command, "redis-cli -h 10.0.0.1 -p 6379 --user ops --askpass");
        assert_eq!(
            by_hand("[::1]:5", (None, false), true, "--cacert ca.pem"),
            "redis-cli -h ::1 -p 5 --tls --cacert ca.pem"
        );
        assert_eq!(by_hand("/run/r.sock", (None, false), false, "x"), "redis-cli -s /run/r.sock");
    }
}
