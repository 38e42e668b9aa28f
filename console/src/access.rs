//! Which requests the console accepts, and the role of a visitor.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use sha2::{Digest as _, Sha256};

use crate::refusal::Refusal;
use crate::visitor::{Peer, Role, Visitor};

/// Header that every change must have. A browser lets a page of another site send this header only
/// with permission, which the console never gives.
const OWN_HEADER: &str = "x-palisade-console";
/// Prefix of the name of the session cookie. The console's port follows the prefix: browsers send a
/// cookie to all ports of a host, so two consoles on one host need two names.
const SESSION: &str = "palisade_console";
/// Time after which a session ends.
const SESSION_LIFE: Duration = Duration::from_secs(12 * 3_600);
/// The oldest session ends.
const SESSIONS: usize = 1_024;
/// The address at which the console listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// An address and a port.
    Tcp(SocketAddr),
    /// The path of a unix socket, which only the user of this process may use.
    Unix(PathBuf),
}

/// A reverse proxy that logs users in and terminates TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Address from which the proxy connects. Connections from other addresses are refused.
    pub address: IpAddr,
    /// Name of the header in which the proxy sends the user's name. If a client sends a header of
    /// this name, the proxy must replace this header.
    pub header: String,
    /// Users with the right to act. The other users may only read. A proxy that connects over TCP
    /// from this machine cannot be distinguished from another local process. Such a proxy must send
    /// the act token for these users instead.
    pub actors: Vec<String>,
}

/// Tokens of the two roles. Empty tokens are refused.
#[derive(Clone, Default)]
pub struct Tokens {
    /// Token of the role that may read.
    pub read: Option<String>,
    /// Token of the role that may read and act.
    pub act: Option<String>,
}

impl Tokens {
    /// Sets a new random token of the role that may act, and returns it.
    pub fn make_act(&mut self) -> String {
        let token = format!("{:032x}", rand::random::<u128>());
        self.act = Some(token.clone());
        token
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(crate) struct Access {
    listen: Listen,
    proxy: Option<Proxy>,
    read: Option<[u8; 32]>,
    act: Option<[u8; 32]>,
    hosts: Vec<String>,
    sessions: Mutex<BTreeMap<String, (Role, Instant)>>,
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

impl Access {
    pub(crate) fn new(
        listen: Listen,
        proxy: Option<Proxy>,
        tokens: &Tokens,
        hosts: Vec<String>,
    ) -> Self {
        let hash = |token: &Option<String>| token.as_deref().map(digest);
        let (read, act) = (hash(&tokens.read), hash(&tokens.act));
        Self { listen, proxy, read, act, hosts, sessions: Mutex::default() }
    }

    pub(crate) fn login(&self) -> &'static str {
        match (&self.proxy, self.has_tokens()) {
            (Some(_), _) => "proxy",
            (None, true) => "token",
            (None, false) => "none",
        }
    }

    fn has_tokens(&self) -> bool {
        self.read.is_some() || self.act.is_some()
    }

    pub(crate) fn accepts(&self, peer: &Peer) -> bool {
        match (&self.proxy, peer) {
            (Some(proxy), Peer::Tcp(at)) => at.ip().to_canonical() == proxy.address.to_canonical(),
            _ => true,
        }
    }

    /// Checks the name under which the browser reached the console. Without this check, a foreign
    /// page whose host name resolves to this machine could use the console.
    pub(crate) fn check_host(&self, headers: &HeaderMap, uri: Option<&str>) -> Result<(), Refusal> {
        let host = match uri {
            Some(host) => Some(host.to_owned()),
            None => authority(headers).map(|at| at.host().to_owned()),
        };
        let wrong = || {
            let why = "the Host header names neither an address nor localhost; a name has to be \
                       allowed by --host";
            Refusal::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", why)
        };
        let host = host.ok_or_else(wrong)?;
        if headers.get_all(HOST).iter().count() > 1 {
            return Err(wrong());
        }
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let named = |name: &str| name.eq_ignore_ascii_case(&host);
        let is_ours =
            address.is_ok() || named("localhost") || self.hosts.iter().any(|name| named(name));
        if is_ours { Ok(()) } else { Err(wrong()) }
    }

    /// Checks that a request does not come from another site's page.
    pub(crate) fn check_origin(method: &Method, headers: &HeaderMap) -> Result<(), Refusal> {
        let wrong = |why: &str| Refusal::new(StatusCode::FORBIDDEN, "wrong_origin", why);
        if let Some(site) = headers.get("sec-fetch-site")
            && site != "same-origin"
            && site != "none"
        {
            return Err(wrong("the request comes from another site's page"));
        }
        if let Some(origin) = headers.get(ORIGIN) {
            let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
            let same = origin.is_some_and(|(_, at)| {
                authority(headers).is_some_and(|host| host.as_str().eq_ignore_ascii_case(at))
            });
            if !same {
                return Err(wrong("the Origin header names another site"));
            }
        }
        let reads = [Method::GET, Method::HEAD].contains(method);
        // A browser may send `Authorization: Basic` by itself, but never `Bearer`. So a request
        // with a bearer token comes from a program, and does not need `OWN_HEADER`.
        let bearer = |value: &HeaderValue| value.as_bytes().starts_with(b"Bearer ");
        let is_tool = headers.get(AUTHORIZATION).is_some_and(bearer);
        if !reads && headers.get(OWN_HEADER).is_none() && !is_tool {
            return Err(wrong("a change needs the header X-Palisade-Console: 1"));
        }
        Ok(())
    }

    /// Returns the address of a visitor, for the audit. The proxy names the visitor's own address
    /// as the last one of `X-Forwarded-For`.
    pub(crate) fn origin(&self, peer: &Peer, headers: &HeaderMap) -> String {
        let named = headers.get_all("x-forwarded-for").iter().next_back();
        let named = named.and_then(|all| all.to_str().ok()?.rsplit(',').next());
        let named = named.and_then(|at| at.trim().parse::<IpAddr>().ok());
        match (&self.proxy, named) {
            (Some(_), Some(at)) => format!("{at} through {peer}"),
            _ => peer.to_string(),
        }
    }

    /// Returns the visitor who sent a request, with the role. Fails if the console does not know
    /// the visitor.
    pub(crate) fn visitor(&self, peer: &Peer, headers: &HeaderMap) -> Result<Visitor, Refusal> {
        let (user, found) = match (&self.proxy, self.has_tokens()) {
            (Some(proxy), has_tokens) => {
                // If the proxy adds its header without removing the client's, the client can choose
                // its user name. So two headers of this name are refused.
                if headers.get_all(&*proxy.header).iter().count() > 1 {
                    let why = format!(
                        "the header {} is there twice: the proxy has to replace it, and not to \
                         add its own",
                        proxy.header
                    );
                    return Err(Refusal::new(StatusCode::UNAUTHORIZED, "no_token", why));
                }
                let name = headers.get(&*proxy.header).and_then(|name| name.to_str().ok());
                let name = name.filter(|name| {
                    (1..=256).contains(&name.len()) && !name.chars().any(char::is_control)
                });
                let Some(name) = name else {
                    let why = format!("the proxy sent no user in the header {}", proxy.header);
                    return Err(Refusal::new(StatusCode::UNAUTHORIZED, "no_token", why));
                };
                let acts = proxy.actors.iter().any(|actor| actor == name);
                let by_token = if has_tokens { self.by_token(headers)? } else { None };
                let role = if acts || by_token == Some(Role::Act) { Role::Act } else { Role::Read };
                (name.to_owned(), Some(role))
            }
            (None, true) => {
                let role = self.by_token(headers)?;
                let user = role.map(|role| format!("{} token", role.word()));
                (user.unwrap_or_default(), role)
            }
            (None, false) => {
                let user = match peer {
                    Peer::Unix(Some(uid)) => format!("uid {uid}"),
                    _ => "local".to_owned(),
                };
                (user, Some(Role::Act))
            }
        };
        found.map(|role| Visitor { role, user }).ok_or_else(|| {
            let why = "sign in with a token: send it as `Authorization: Bearer TOKEN`, or use the \
                       form of the page";
            Refusal::new(StatusCode::UNAUTHORIZED, "no_token", why)
        })
    }

    /// Returns the role of the token or the session in the headers; `None` if there is neither.
    fn by_token(&self, headers: &HeaderMap) -> Result<Option<Role>, Refusal> {
        if let Some(value) = headers.get(AUTHORIZATION) {
            let token = value.to_str().ok().and_then(|value| value.strip_prefix("Bearer "));
            return match token.and_then(|token| self.role_of(token)) {
                Some(role) => Ok(Some(role)),
                None => Err(bad_token()),
            };
        }
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(id) = self.session(headers) else { return Ok(None) };
        match sessions.get(id) {
            Some((_, began)) if began.elapsed() > SESSION_LIFE => {
                sessions.remove(id);
                Ok(None)
            }
            Some((role, _)) => Ok(Some(*role)),
            None => Ok(None),
        }
    }

    /// Returns the role of a token. Digests are compared, so the time of the comparison reveals
    /// nothing of the token.
    fn role_of(&self, token: &str) -> Option<Role> {
        let token = Some(digest(token));
        if token == self.act {
            Some(Role::Act)
        } else if token == self.read {
            Some(Role::Read)
        } else {
            None
        }
    }

    pub(crate) fn sign_in(&self, token: &str) -> Result<String, Refusal> {
        let role = self.role_of(token).ok_or_else(bad_token)?;
        let id = format!("{:032x}", rand::random::<u128>());
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() >= SESSIONS {
            let oldest = sessions.iter().min_by_key(|(_, (_, began))| *began);
            if let Some(oldest) = oldest.map(|(id, _)| id.clone()) {
                sessions.remove(&oldest);
            }
        }
        sessions.insert(id.clone(), (role, Instant::now()));
        Ok(self.cookie(&id, SESSION_LIFE))
    }

    pub(crate) fn sign_out(&self, headers: &HeaderMap) -> String {
        if let Some(id) = self.session(headers) {
            self.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        }
        self.cookie("", Duration::ZERO)
    }

    fn cookie_name(&self) -> String {
        match &self.listen {
            Listen::Tcp(at) => format!("{SESSION}_{}", at.port()),
            Listen::Unix(_) => SESSION.to_owned(),
        }
    }

    fn session<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let own = self.cookie_name();
        let all = headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
        let pairs = all.flat_map(|cookies| cookies.split(';'));
        let mut pairs = pairs.filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(name, _)| *name == own).map(|(_, id)| id)
    }

    fn cookie(&self, id: &str, life: Duration) -> String {
        // Not every browser sends a cookie with `Secure` without TLS, and a console at a loopback
        // address or a unix socket may have no TLS. At other addresses the visitor has TLS.
        let is_local = match &self.listen {
            Listen::Tcp(at) => at.ip().is_loopback(),
            Listen::Unix(_) => true,
        };
        let secure = if is_local { "" } else { "; Secure" };
        let (name, life) = (self.cookie_name(), life.as_secs());
        format!("{name}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={life}{secure}")
    }
}

fn bad_token() -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, "bad_token", "this is no token of this console")
}

fn authority(headers: &HeaderMap) -> Option<Authority> {
    headers.get(HOST)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(read: &str, act: &str) -> Tokens {
        let some = |token: &str| Some(token.to_owned()).filter(|token| !token.is_empty());
        Tokens { read: some(read), act: some(act) }
    }

    #[test]
    fn a_session_has_the_role_of_its_token_until_it_is_signed_out() {
        let (read, act) = ("0123456789abcdef", "fedcba9876543210");
        let listen = |port: u16| Listen::Tcp(([127, 0, 0, 1], port).into());
        let access = Access::new(listen(7420), None, &tokens(read, act), Vec::new());
        let other = Access::new(listen(7421), None, &tokens(read, act), Vec::new());
        let peer = Peer::Unix(None);
        let none = HeaderMap::new();
        assert_eq!(access.visitor(&peer, &none).unwrap_err().code(), "no_token");
        assert_eq!(access.sign_in("wrong").unwrap_err().code(), "bad_token");
        for (token, role) in [(read, Role::Read), (act, Role::Act)] {
            let set = access.sign_in(token).unwrap();
            let cookie = set.split(';').next().unwrap();
            let foreign = other.sign_in(token).unwrap();
            assert_ne!(cookie.split('=').next(), foreign.split('=').next(), "one for each port");
            let mut headers = HeaderMap::new();
            headers.insert(COOKIE, format!("other=1; {cookie}").parse().unwrap());
            assert_eq!(access.visitor(&peer, &headers).unwrap().role, role);
            access.sign_out(&headers);
            assert_eq!(access.visitor(&peer, &headers).unwrap_err().code(), "no_token");
        }
    }

    #[test]
    fn a_proxy_sends_the_act_token_for_users_who_may_act() {
        let tcp = Listen::Tcp("127.0.0.1:0".parse().unwrap());
        let proxy = Proxy {
            address: [127, 0, 0, 1].into(),
            header: "x-user".to_owned(),
            actors: Vec::new(),
        };
        let act = "fedcba9876543210";
        let access = Access::new(tcp, Some(proxy), &tokens("", act), Vec::new());
        let peer = Peer::Tcp("127.0.0.1:5".parse().unwrap());
        let mut headers = HeaderMap::new();
        headers.insert("x-user", "alice".parse().unwrap());
        assert_eq!(access.visitor(&peer, &headers).unwrap().role, Role::Read);
        headers.insert(AUTHORIZATION, format!("Bearer {act}").parse().unwrap());
        let visitor = access.visitor(&peer, &headers).unwrap();
        assert_eq!((visitor.role, &*visitor.user), (Role::Act, "alice"));
    }

    #[test]
    fn only_the_proxy_names_users() {
        let proxy = Proxy {
            address: [10, 0, 0, 1].into(),
            header: "x-user".to_owned(),
            actors: vec!["alice".to_owned()],
        };
        let listen = Listen::Tcp("0.0.0.0:0".parse().unwrap());
        let access = Access::new(listen, Some(proxy), &Tokens::default(), Vec::new());
        let peer = |text: &str| Peer::Tcp(text.parse().unwrap());
        assert!(access.accepts(&peer("10.0.0.1:5")) && !access.accepts(&peer("10.0.0.2:5")));
        let of = |name: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-user", name.parse().unwrap());
            access.visitor(&peer("10.0.0.1:5"), &headers)
        };
        assert_eq!(of("alice").unwrap().role, Role::Act);
        assert_eq!(of("bob").unwrap().role, Role::Read);
        assert_eq!(of("").unwrap_err().code(), "no_token");
        let mut twice = HeaderMap::new();
        twice.append("x-user", "alice".parse().unwrap());
        twice.append("X-User", "bob".parse().unwrap());
        let refused = access.visitor(&peer("10.0.0.1:5"), &twice).unwrap_err();
        assert_eq!(refused.code(), "no_token");
        assert!(refused.text().contains("twice"), "{}", refused.text());
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", "1.2.3.4, 10.9.9.9".parse().unwrap());
        let from = access.origin(&peer("10.0.0.1:5"), &headers);
        assert_eq!(from, "10.9.9.9 through 10.0.0.1:5");
        let listen = Listen::Tcp("127.0.0.1:0".parse().unwrap());
        let open = Access::new(listen, None, &Tokens::default(), Vec::new());
        assert_eq!(open.origin(&peer("127.0.0.1:5"), &headers), "127.0.0.1:5");
    }
}
