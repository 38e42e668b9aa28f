//! The command `palisade console`.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use palisade_console::demo::Demo;
use palisade_console::{AuditLine, Console, Listen, Options, Proxy, Sink, StartError, Tokens};
use serde_json::json;

use super::GroundArgs;
use crate::Done;
use crate::codes::{Fail, UNAVAILABLE, USAGE};
use crate::say::Say;

const READ_TOKEN: &str = "PALISADE_CONSOLE_READ_TOKEN";
const ACT_TOKEN: &str = "PALISADE_CONSOLE_ACT_TOKEN";

/// Shows the deployment live in the browser: votes, locks, elections, cron jobs, keys, nodes and
/// failovers. With --allow-actions also acts.
///
/// The console listens at 127.0.0.1 or at a unix socket. At another address it starts only with TLS
/// or behind a named proxy, and with tokens or the proxy's header. Runs until it receives a signal.
#[derive(Debug, Args)]
pub(crate) struct ConsoleArgs {
    #[command(flatten)]
    ground: GroundArgs,
    /// Address to listen at: ADDRESS:PORT (port 0: any free one), or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7420", value_parser = listen)]
    listen: Listen,
    /// Start three servers with some traffic, and show them
    #[arg(long, conflicts_with = "embedded")]
    demo: bool,
    /// Let visitors with the role `act` change things. For each action they have to give a reason
    /// and to type the name of what they change
    #[arg(long)]
    allow_actions: bool,
    /// Show the stored results of idempotency keys
    #[arg(long)]
    show_results: bool,
    /// File to which each action is appended as a line of JSON [default: standard error]
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    /// Number of keys that are read from each node per second, to find names
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    keys_per_second: usize,
    /// Maximum number of idempotency keys that are kept
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    keys: usize,
    /// Host name under which browsers may reach the console, besides addresses and localhost
    #[arg(long, value_name = "NAME", help_heading = "Access")]
    host: Vec<String>,
    /// File with the token of the role that may read, as its first line; else the variable
    /// `PALISADE_CONSOLE_READ_TOKEN`
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    read_token_file: Option<PathBuf>,
    /// File with the token of the role that may read and act, as its first line; else the variable
    /// `PALISADE_CONSOLE_ACT_TOKEN`
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    act_token_file: Option<PathBuf>,
    /// Certificate chain (PEM) for HTTPS
    #[arg(long, value_name = "FILE", help_heading = "Access", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Key of the certificate (PEM)
    #[arg(long, value_name = "FILE", help_heading = "Access", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Header in which the proxy in front of the console names the user
    #[arg(long, value_name = "HEADER", help_heading = "Access", requires = "proxy_address")]
    behind_proxy: Option<String>,
    /// Address from which the proxy connects; all others are refused
    #[arg(long, value_name = "ADDRESS", help_heading = "Access", requires = "behind_proxy")]
    proxy_address: Option<IpAddr>,
    /// User of the proxy who may act; all other users may only read. If the proxy is on this
    /// machine and the console does not listen at a unix socket, let the proxy send the act token
    /// instead
    #[arg(long, value_name = "NAME", help_heading = "Access", requires = "behind_proxy")]
    proxy_actor: Vec<String>,
}

fn listen(text: &str) -> Result<Listen, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Listen::Unix(path.into()));
    }
    let at = text.parse::<SocketAddr>();
    at.map(Listen::Tcp).map_err(|_| "write 127.0.0.1:7420, [::1]:7420 or unix:/path".to_owned())
}

/// Returns the token from the file. If there is no file, returns the token from the environment
/// variable.
fn token(file: Option<&PathBuf>, variable: &str) -> Result<Option<String>, Fail> {
    let token = match file {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|e| Fail::new(USAGE, format!("{}: {e}", path.display())))?;
            Some(text.lines().next().unwrap_or_default().trim().to_owned())
        }
        None => std::env::var(variable).ok(),
    };
    match token {
        Some(token) if token.is_empty() => {
            let of = file.map_or(variable.to_owned(), |path| path.display().to_string());
            Err(Fail::new(USAGE, format!("{of}: the token is empty")))
        }
        token => Ok(token),
    }
}

impl ConsoleArgs {
    pub(crate) async fn run(self) -> Result<Done, Fail> {
        let say = Say::new(self.ground.say.json, self.ground.say.verbose);
        let mut options = self.options(say)?;
        if self.demo {
            let demo = Demo::start().await;
            let demo = demo.map_err(|e| Fail::new(UNAVAILABLE, e.to_string()))?;
            let signals = crate::signals::Signals::new()?;
            options.is_demo = true;
            let console = Console::bind(demo.handle()?, demo.deployment(), options).await;
            let console = console.map_err(|e| not_started(&e))?;
            announce(&console, say);
            let traffic = demo.run();
            return Ok(Done::from(tokio::select! {
                code = until_signal(console, &signals) => code,
                ended = traffic => ended.map(|()| 0)?,
            }));
        }
        let ground = self.ground.ground()?;
        let Some(servers) = ground.servers.clone() else {
            let why = "--embedded: the data are in this process's memory, so there is nothing to \
                       show; use --demo for a first look";
            return Err(Fail::new(USAGE, why));
        };
        let console = Console::bind(ground.redlock.clone(), servers, options).await;
        let console = console.map_err(|e| not_started(&e))?;
        announce(&console, say);
        let code = until_signal(console, &ground.signals).await;
        ground.close().await;
        Ok(Done::from(code))
    }

    fn options(&self, say: Say) -> Result<Options, Fail> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|e| Fail::new(USAGE, format!("{}: {e}", path.display())))
        };
        let mut options = Options::default();
        options.listen = self.listen.clone();
        options.hosts.clone_from(&self.host);
        options.tokens = Tokens {
            read: token(self.read_token_file.as_ref(), READ_TOKEN)?,
            act: token(self.act_token_file.as_ref(), ACT_TOKEN)?,
        };
        if let (Some(header), Some(address)) = (&self.behind_proxy, self.proxy_address) {
            let actors = self.proxy_actor.clone();
            options.proxy = Some(Proxy { address, header: header.clone(), actors });
        }
        if let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) {
            options.tls = Some((read(cert)?, read(key)?));
        }
        options.allow_actions = self.allow_actions;
        let has_login = options.tokens.read.is_some()
            || options.tokens.act.is_some()
            || options.proxy.is_some();
        if self.allow_actions && !has_login && matches!(self.listen, Listen::Tcp(_)) {
            // Every local user reaches a TCP address, also an address of the loopback interface. So
            // the console makes a token, and a visitor needs it to change things.
            let token = options.tokens.make_act();
            let text = format!("sign in with the token {token}, which is good until the end");
            say.warn("token", json!({ "token": token }), &text);
        }
        options.show_results = self.show_results;
        options.keys_per_second = self.keys_per_second;
        options.keys = self.keys;
        options.audit = Some(self.audit_sink(say)?);
        Ok(options)
    }

    /// Returns the function that writes the audit (log of actions): one line for each action of a
    /// visitor. Without an audit file, or if the file cannot be written, the line is printed as a
    /// message.
    fn audit_sink(&self, say: Say) -> Result<Sink, Fail> {
        let show = move |line: &AuditLine| say.warn("action", line.to_json(), &line.to_string());
        let Some(path) = self.audit.clone() else { return Ok(Arc::new(show)) };
        let failed = |e: std::io::Error| Fail::new(USAGE, format!("{}: {e}", path.display()));
        let file = OpenOptions::new().append(true).create(true).open(&path).map_err(failed)?;
        let file = Mutex::new(file);
        Ok(Arc::new(move |line: &AuditLine| {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            let text = format!("{}\n", line.to_json());
            if let Err(e) = file.write_all(text.as_bytes()).and_then(|()| file.flush()) {
                let why = format!("{}: {e}", path.display());
                say.warn("audit", json!({ "why": why }), &format!("the audit failed: {why}"));
                show(line);
            }
        }))
    }
}

fn not_started(e: &StartError) -> Fail {
    Fail::new(USAGE, e.to_string())
}

fn announce(console: &Console, say: Say) {
    let address = console.address();
    let text = format!("the console is at {address}");
    say.warn("console", json!({ "address": address }), &text);
}

/// Serves the console until a signal arrives, and returns the exit code.
async fn until_signal(console: Console, signals: &crate::signals::Signals) -> u8 {
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let run = console.run(async {
        let _ = ended.await;
    });
    let signal = async {
        let signal = signals.next().await;
        drop(end);
        signal
    };
    let ((), signal) = tokio::join!(run, signal);
    128 + signal as u8
}
