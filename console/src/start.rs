//! The settings of a console, its start and its end.

use std::fmt;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use palisade::{ConfigError, Redlock};
use palisade_ops::{Deployment, Survey};
use serde_json::json;

use crate::access::{Access, Listen, Proxy, Tokens};
use crate::audit::{Audits, Sink};
use crate::collect;
use crate::events::Hub;
use crate::exposure;
use crate::history::{Entry, History, now_ms};
use crate::listen::{self, Bound, Tls};
use crate::model::Model;
use crate::pages::Readings;
use crate::server;

/// Maximum time for which a console that ends waits for the results of its actions.
const LAST: Duration = Duration::from_secs(5);

/// Settings of a console.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Address at which the console listens. Default: `127.0.0.1`, any free port.
    pub listen: Listen,
    /// Host names under which browsers may reach the console. IP addresses and `localhost` are
    /// always allowed.
    pub hosts: Vec<String>,
    /// Tokens of the two roles. Without a token, everyone who reaches the address may read and act:
    /// on a loopback address, each local user.
    pub tokens: Tokens,
    /// The reverse proxy in front of the console.
    pub proxy: Option<Proxy>,
    /// Certificate chain and key (PEM) for HTTPS. Needs the feature `tls`.
    pub tls: Option<(Vec<u8>, Vec<u8>)>,
    /// If true, visitors with the role `act` may perform actions.
    pub allow_actions: bool,
    /// If true, the results of idempotency keys are shown.
    pub show_results: bool,
    /// Function that receives the audit's line for each action of a visitor.
    pub audit: Option<Sink>,
    /// Number of keys that the console reads from each node per second to find names.
    pub keys_per_second: usize,
    /// Largest number of idempotency keys that the console keeps.
    pub keys: usize,
    /// If true, the pages show that the deployment is a demo.
    pub is_demo: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: Listen::Tcp(([127, 0, 0, 1], 0).into()),
            hosts: Vec::new(),
            tokens: Tokens::default(),
            proxy: None,
            tls: None,
            allow_actions: false,
            show_results: false,
            audit: None,
            keys_per_second: 2_000,
            keys: 20_000,
            is_demo: false,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("listen", &self.listen).finish_non_exhaustive()
    }
}

/// Error of a console that did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The settings would give others access, or contradict each other. The text names the remedy.
    Refused(String),
    /// The address could not be bound.
    Bind(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => f.write_str(why),
            Self::Bind(e) => write!(f, "cannot listen: {e}; use another --listen"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<ConfigError> for StartError {
    fn from(e: ConfigError) -> Self {
        Self::Refused(e.to_string())
    }
}

pub(crate) struct Shared {
    pub(crate) redlock: Redlock,
    pub(crate) deployment: Deployment,
    pub(crate) access: Arc<Access>,
    pub(crate) allow_actions: bool,
    pub(crate) show_results: bool,
    pub(crate) is_demo: bool,
    pub(crate) keys_per_second: usize,
    pub(crate) keys: usize,
    pub(crate) since: u64,
    pub(crate) hub: Arc<Hub>,
    pub(crate) history: History,
    pub(crate) audits: Audits,
    pub(crate) recent: Readings,
    /// Survey with which the pages of single keys read records. The collector has its own survey.
    pub(crate) survey: tokio::sync::Mutex<Survey>,
    /// Number of requests that surveys, which read keys, have sent to each node.
    pub(crate) requests: AtomicU64,
    model: Mutex<Model>,
}

impl Shared {
    pub(crate) fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn happened(&self, entry: Entry) {
        let entry = self.history.add(entry);
        self.hub.send("happened", &entry);
    }

    pub(crate) fn all_happened(&self, entries: impl IntoIterator<Item = Entry>) {
        for entry in entries {
            self.happened(entry);
        }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.redlock.config().prefix
    }
}

/// A console that listens. [`run`](Self::run) serves its pages.
pub struct Console {
    shared: Arc<Shared>,
    bound: Bound,
    tls: Tls,
    is_tls: bool,
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").field("bound", &self.bound).finish_non_exhaustive()
    }
}

impl Console {
    /// Binds the address, after a check that these settings give no access to strangers. The handle
    /// and the deployment must have the same nodes.
    ///
    /// # Errors
    /// [`StartError`] if the settings are refused or the address cannot be bound.
    ///
    /// # Cancellation safety
    /// If the future is dropped, nothing listens.
    pub async fn bind(
        redlock: Redlock,
        deployment: Deployment,
        options: Options,
    ) -> Result<Self, StartError> {
        let Options { listen, hosts, tokens, proxy, tls, .. } = options;
        let is_tls = tls.is_some();
        exposure::check(&listen, is_tls, proxy.as_ref(), &tokens, options.allow_actions)
            .map_err(StartError::Refused)?;
        let acceptor = acceptor(tls).map_err(StartError::Refused)?;
        let bound = listen::bind(&listen).await.map_err(StartError::Bind)?;
        // With port 0, the system chooses the port, which is known only after the bind.
        let listen = match &bound {
            Bound::Tcp(listener) => Listen::Tcp(listener.local_addr().map_err(StartError::Bind)?),
            Bound::Unix(..) => listen,
        };
        let survey = Survey::new(&deployment.clone().timeout(collect::SURVEY));
        let shared = Shared {
            redlock,
            access: Arc::new(Access::new(listen, proxy, &tokens, hosts)),
            allow_actions: options.allow_actions,
            show_results: options.show_results,
            is_demo: options.is_demo,
            keys_per_second: options.keys_per_second.clamp(10, 20_000),
            keys: options.keys,
            since: now_ms(),
            hub: Arc::new(Hub::new()),
            history: History::default(),
            audits: Audits::new(options.audit),
            recent: Readings::default(),
            survey: tokio::sync::Mutex::new(survey),
            requests: AtomicU64::new(0),
            deployment,
            model: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared), bound, tls: acceptor, is_tls })
    }

    /// Returns the address of the console for people: a URL, or the path of the unix socket.
    pub fn address(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        match &self.bound {
            Bound::Tcp(listener) => {
                listener.local_addr().map(|at| format!("{scheme}://{at}/")).unwrap_or_default()
            }
            Bound::Unix(listener, _) => {
                let at = listener.local_addr().ok();
                let path = at.as_ref().and_then(|at| at.as_pathname());
                path.map(|path| path.display().to_string()).unwrap_or_default()
            }
        }
    }

    /// Serves the pages until the future `end` is ready. Then sends all streams an event that the
    /// console ends, and waits a few seconds for the results of the actions that are under way, so
    /// that the audit has them. An action that takes longer gets the result `unknown`.
    ///
    /// # Cancellation safety
    /// If the future is dropped, all connections end.
    pub async fn run(self, end: impl Future<Output = ()>) {
        let Self { shared, bound, tls, .. } = self;
        let router = server::router(&shared);
        let serve = listen::serve(bound, tls, Arc::clone(&shared.access), router);
        let collect = collect::run(Arc::clone(&shared));
        // The connections end when the future `serve` is dropped, so it lives until they have
        // received the last answers and events. It is not polled any more, so no new connection is
        // accepted.
        tokio::pin!(serve);
        tokio::select! {
            () = &mut serve => {}
            () = collect => {}
            () = end => {}
        }
        shared.hub.send("closing", &json!({ "text": "the console ends", "now_ms": now_ms() }));
        shared.audits.end(LAST).await;
        // The connections get a moment to send the last event and the results of actions.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[cfg(feature = "tls")]
fn acceptor(tls: Option<(Vec<u8>, Vec<u8>)>) -> Result<Tls, String> {
    use rustls_pki_types::pem::PemObject as _;
    use rustls_pki_types::{CertificateDer, PrivateKeyDer};
    let Some((chain, key)) = tls else { return Ok(None) };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
    let chain = chain.map_err(|e| format!("--tls-cert: {e}"))?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|e| format!("--tls-key: {e}"))?;
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    let mut config = config
        .with_single_cert(chain, key)
        .map_err(|e| format!("--tls-cert and --tls-key: {e}"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(Arc::new(config).into()))
}

#[cfg(not(feature = "tls"))]
fn acceptor(tls: Option<(Vec<u8>, Vec<u8>)>) -> Result<Tls, String> {
    match tls {
        None => Ok(()),
        Some(_) => {
            Err("this program was built without TLS; build it with the feature `tls`".into())
        }
    }
}
