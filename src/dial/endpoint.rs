//! A server's place, login and TLS, and the connections to it. No output contains the password.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, ProtocolVersion, RedisConnectionInfo, RedisError,
    RedisResult, cmd,
};
use tokio::time::timeout;

use crate::dial::credentials::CredentialsProvider;
use crate::dial::frames::Limits;
use crate::dial::login::{Given, Logins, NoCredentials};
#[cfg(not(feature = "tls"))]
use crate::dial::url::WITHOUT_TLS;
use crate::dial::url::{SERVER_PORT, Url, server_tls};
use crate::dial::wire::Wire;
use crate::dial::{self, Line, Place};
use crate::env::{Env, SystemEnv};
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
    /// Replaces the password, and the user name if it gives one.
    logins: Option<Arc<Logins>>,
    given: Option<Box<Given>>,
}

impl Endpoint {
    /// Parses `redis://`, `rediss://` (feature `tls`) and `unix://` addresses.
    pub fn parse(url: &str) -> Result<Self, ConfigError> {
        let mut url = Url::parse(url)?;
        let endpoint = Self::of(&mut url)?;
        if url.options.is_empty() {
            return Ok(endpoint);
        }
        let known = if url.is_path() { "db, user, pass, protocol" } else { "protocol" };
        let place = "user and password belong before the host (redis://user:password@host)";
        Err(url.refused(format!("after a ? only {known} may be given; {place}")))
    }

    /// Takes the options that belong to an address. The others are left.
    pub(crate) fn of(url: &mut Url<'_>) -> Result<Self, ConfigError> {
        let is_tls = server_tls(url.scheme).ok_or_else(|| url.odd())?;
        // Every connection speaks RESP3, whatever the address says.
        url.take("protocol");
        let (place, (user, password), db) = if url.is_path() {
            let path = url.path.filter(|path| path.starts_with('/')).ok_or_else(|| url.odd())?;
            let path = url.decoded("path", path)?;
            let login = (url.take("user"), url.take("pass"));
            (Place::Unix(Path::new(&path).into()), login, url.take("db"))
        } else {
            let [at] = &*url.addresses(SERVER_PORT)? else { return Err(url.odd()) };
            url.check_host(at)?;
            let db = url.path.map(|path| path.trim_matches('/').to_owned());
            let login = url.login.clone().unwrap_or_default();
            (Place::Tcp(at.host().into(), at.port()), login, db.filter(|db| !db.is_empty()))
        };
        let db = db.map_or(Ok(0), |db| db.parse()).map_err(|_| url.odd())?;
        let endpoint = Self { place, ..Self::anywhere() };
        let endpoint = user.iter().fold(endpoint, |endpoint, user| endpoint.username(user));
        let endpoint =
            password.iter().fold(endpoint, |endpoint, password| endpoint.password(password));
        let endpoint = endpoint.db(db)?;
        if !is_tls {
            return Ok(endpoint);
        }
        #[cfg(feature = "tls")]
        return Ok(endpoint.over(Tls::new("url", None, None)?));
        #[cfg(not(feature = "tls"))]
        Err(url.refused(WITHOUT_TLS))
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

    /// A template for [`at`](Self::at): the address is a placeholder, without login and TLS.
    pub(crate) fn anywhere() -> Self {
        let place = Place::Tcp("localhost".into(), 0);
        let login = RedisConnectionInfo::default();
        Self { place, tls: None, tls_name: None, login, logins: None, given: None }
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

    /// Replaces the password of the login, or what gives one.
    #[must_use]
    pub fn password(self, password: &str) -> Self {
        Self { login: self.login.set_password(password), logins: None, ..self }
    }

    pub(crate) fn credentials(self, provider: Arc<dyn CredentialsProvider>) -> Self {
        Self { logins: Some(Arc::new(Logins::new(provider, Arc::new(SystemEnv)))), ..self }
    }

    /// Each node asks its own questions.
    pub(crate) fn of_node(self, env: &Arc<dyn Env>) -> Self {
        let logins = self.logins.as_ref().map(|logins| Arc::new(logins.of_node(env)));
        Self { logins, ..self }
    }

    pub(crate) fn logins(&self) -> Option<&Arc<Logins>> {
        self.logins.as_ref()
    }

    /// With the login of one connection. The caller has to set a time-out.
    pub(crate) async fn logged(&self, purpose: &'static str) -> Result<Self, NoCredentials> {
        let Some(logins) = &self.logins else { return Ok(self.clone()) };
        let login = logins.ask(None).await?;
        Ok(self.with(Given { login, logins: Arc::clone(logins), purpose }))
    }

    pub(super) fn with(&self, given: Given) -> Self {
        Self { given: Some(Box::new(given)), ..self.clone() }
    }

    pub(super) fn given(&self) -> Option<&Given> {
        self.given.as_deref()
    }

    /// What a provider gave is no setting that a person has to correct first.
    pub(crate) fn blamed(&self, e: RedisError) -> RedisError {
        let is_login = matches!(e.code(), Some("NOAUTH" | "WRONGPASS"))
            || e.kind() == ErrorKind::AuthenticationFailed;
        match self.given().filter(|_| is_login) {
            Some(given) => given.refused(self, &e).into(),
            None => e,
        }
    }

    pub(crate) fn db(self, db: i64) -> Result<Self, ConfigError> {
        if !(0..=DB_MAX).contains(&db) {
            let rule = format!("between 0 and {DB_MAX}");
            return Err(ConfigError::new("db", db.to_string(), rule));
        }
        Ok(Self { login: self.login.set_db(db), ..self })
    }

    /// Without a password a client does not log in, so it would be the user `default`.
    pub(crate) fn check_login(&self, field: &'static str) -> Result<(), ConfigError> {
        let (Some(user), false) = self.login() else { return Ok(()) };
        let rule = "needs its password; give an empty one if it has none (in an address: user:@)";
        Err(ConfigError::new(field, format!("{user:?}"), rule))
    }

    /// Returns the user name, and true if there is a password.
    pub fn login(&self) -> (Option<&str>, bool) {
        (self.login.username(), self.login.password().is_some() || self.logins.is_some())
    }

    /// Returns the user names and the passwords of the logins, so that they can be hidden in texts.
    pub fn secrets(&self) -> Secrets {
        let own = Secrets::of(self.login.username(), self.login.password());
        self.logins.iter().fold(own, |own, logins| own.and(&logins.secrets()))
    }

    /// `None` if this connection does not log in.
    fn user_and_password(&self) -> Option<[&str; 2]> {
        let given = self.given.as_ref().map(|given| &given.login.credentials);
        let password = given.map(|given| &*given.password).or_else(|| self.login.password())?;
        let user = given.and_then(|given| given.user.as_deref()).or_else(|| self.login.username());
        Some([user.unwrap_or("default"), password])
    }

    pub(super) fn auth(&self) -> Cmd {
        cmd("AUTH").arg(&self.user_and_password().unwrap_or_default()).take()
    }

    fn resp3_login(&self) -> RedisConnectionInfo {
        let login = self.login.clone().set_protocol(ProtocolVersion::RESP3);
        match self.user_and_password() {
            Some([user, password]) => login.set_username(user).set_password(password),
            None => login,
        }
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

    /// Connects and logs in with RESP3, whose pushes report hints and lost connections, without
    /// Nagle's delay. The caller has to set a time-out. A dropped future closes the connection.
    pub(crate) async fn dial(
        &self,
        purpose: &'static str,
        config: AsyncConnectionConfig,
        limits: Limits,
    ) -> RedisResult<Line> {
        let config = config.set_connection_timeout(None).set_response_timeout(None);
        let socket = dial::socket(&self.place, self.transport().as_ref()).await?;
        let at = self.logged(purpose).await?;
        let login = at.resp3_login().set_lib_name("palisade", env!("CARGO_PKG_VERSION"));
        dial::log_in(socket, at, &login, config, limits).await
    }

    /// Like [`dial`](Self::dial), with the time-outs in `config`. This library's name is not sent,
    /// because a Sentinel's user need not have the permission for that.
    pub(crate) async fn dial_sentinel(
        &self,
        config: AsyncConnectionConfig,
        within: Duration,
    ) -> RedisResult<Line> {
        let socket = dial::socket(&self.place, self.transport().as_ref()).await?;
        let logged = timeout(within / 2, self.logged("questions")).await;
        let late = |_| Err(NoCredentials("the provider has not answered yet".into()));
        let at = logged.unwrap_or_else(late)?;
        let login = at.resp3_login().set_skip_set_lib_name();
        dial::log_in(socket, at, &login, config, Limits::SENTINEL).await
    }

    /// A connection for batches. It sends no command: the caller sends [`hello`](Self::hello) and
    /// [`settle_in`](Self::settle_in) first. `load` returns the command that loads the script.
    pub(crate) async fn wire(&self, load: fn() -> Vec<u8>) -> RedisResult<Wire> {
        Ok(dial::wire(&self.place, self.transport().as_ref(), Limits::BATCHES, load).await?)
    }

    pub(crate) fn hello(&self) -> Cmd {
        let mut hello = cmd("HELLO");
        hello.arg("3");
        if let Some(login) = self.user_and_password() {
            hello.arg("AUTH").arg(&login);
        }
        hello
    }

    /// After the login: they select the database, and set the client's name and version, which a
    /// server may refuse.
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

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_every_machine_is_refused_and_blanks_around_one_do_not_count() {
        for url in ["redis://0.0.0.0:6379", "redis://[::]"] {
            let why = Endpoint::parse(url).expect_err(url).to_string();
            assert!(why.contains("no addresses of a server"), "{why}");
        }
        assert_eq!(Endpoint::parse(" redis://:pw@h:6379\n").unwrap().to_string(), "h:6379");
    }

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
