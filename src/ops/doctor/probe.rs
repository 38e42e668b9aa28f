//! A grant and a release of a name that nobody uses, as an application would do it.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Doctor;
use super::facts::{Outcome, Probe};
#[cfg(feature = "tls")]
use super::login::Certificates;
use crate::env::{Env, SystemEnv};
use crate::error::{AcquireError, Advice, ConfigError, NoQuorum, NodeOutcome};
use crate::lock::TryAcquire;
use crate::{LockNode, RedisNode, Redlock, SentinelNode};

/// Lease of the probe's lock: if we die it is gone after this.
const TTL: Duration = Duration::from_secs(5);
/// Longest that a node may take.
const DEADLINE: Duration = Duration::from_secs(1);

/// The nodes as an application makes them, each by itself and all together.
pub(super) struct Plan {
    nodes: Vec<(Arc<dyn LockNode>, Redlock)>,
    lone: usize,
    /// All together, if there are several; or why not.
    all: Option<Result<Redlock, ConfigError>>,
}

impl Plan {
    /// # Errors
    /// Names, addresses, certificates or ranges that no application could use.
    pub(super) fn new(doctor: &Doctor) -> Result<Self, ConfigError> {
        let mut nodes: Vec<Arc<dyn LockNode>> = Vec::new();
        for watch in &doctor.watches {
            for master in &watch.masters {
                nodes.push(Arc::new(group(doctor, &watch.sentinels, master)?));
            }
        }
        for url in &doctor.nodes {
            nodes.push(Arc::new(lone(doctor, url)?));
        }
        let all = (nodes.len() > 1).then(|| handle(doctor, &nodes));
        let alone = |node: Arc<dyn LockNode>| {
            let redlock = handle(doctor, &[Arc::clone(&node)])?;
            Ok((node, redlock))
        };
        let nodes = nodes.into_iter().map(alone).collect::<Result<_, ConfigError>>()?;
        Ok(Self { nodes, lone: doctor.nodes.len(), all })
    }

    /// Where the lone nodes are, without what is secret in their addresses.
    pub(super) fn lone_names(&self) -> Vec<Arc<str>> {
        let first = self.nodes.len() - self.lone;
        self.nodes[first..].iter().map(|(node, _)| node.name()).collect()
    }

    /// Tries each node by itself, all at once, then all together.
    pub(super) async fn run(self) -> Vec<Probe> {
        let first_lone = self.nodes.len() - self.lone;
        let each = self.nodes.iter().enumerate().map(|(n, (node, redlock))| async move {
            let name = node.name();
            let subject = if n < first_lone { name.to_string() } else { format!("node {name}") };
            Probe { subject, came_to: warm(redlock).await }
        });
        let mut probes = join_all(each).await;
        if let Some(all) = &self.all {
            let came_to = match all {
                Ok(redlock) => warm(redlock).await,
                Err(e) => Outcome::Refused { why: e.to_string(), misconfigured: true },
            };
            probes.push(Probe { subject: "nodes".to_owned(), came_to });
        }
        probes
    }
}

fn group(doctor: &Doctor, at: &[String], master: &str) -> Result<SentinelNode, ConfigError> {
    let node = SentinelNode::new(master, at.iter().cloned())?;
    let mut node = node.map_address(doctor.map.iter().cloned())?;
    if let Some(max_lag) = doctor.max_lag {
        node = node.min_replicas(1, max_lag)?;
    }
    if let Some(name) = &doctor.data.username {
        node = node.username(name);
    }
    if let Some(password) = &doctor.data.password {
        node = node.password(password);
    }
    if let Some(name) = &doctor.sentinels.username {
        node = node.sentinel_username(name);
    }
    if let Some(password) = &doctor.sentinels.password {
        node = node.sentinel_password(password);
    }
    #[cfg(feature = "tls")]
    {
        if let Some(Certificates { root, client }) = doctor.tls.clone() {
            node = node.tls(root, client)?;
        }
        if let Some(Certificates { root, client }) = doctor.sentinel_tls.clone() {
            node = node.sentinel_tls(root, client)?;
        }
    }
    Ok(node)
}

fn lone(doctor: &Doctor, url: &str) -> Result<RedisNode, ConfigError> {
    let mut node = RedisNode::builder(url);
    let (user, password) = told(url);
    if let (false, Some(name)) = (user, &doctor.data.username) {
        node = node.username(name);
    }
    if let (false, Some(word)) = (password, &doctor.data.password) {
        node = node.password(word);
    }
    #[cfg(feature = "tls")]
    if let (true, Some(Certificates { root, client })) =
        (url.starts_with("rediss://"), doctor.node_tls.clone())
    {
        node = node.tls(root, client);
    }
    node.build()
}

/// Whether the address itself names a user, and a password.
fn told(url: &str) -> (bool, bool) {
    use redis::IntoConnectionInfo as _;
    // What is no address is refused, without its secrets, by the node that is made from it.
    url.into_connection_info().map_or((true, true), |info| {
        let redis = info.redis_settings();
        (redis.username().is_some(), redis.password().is_some())
    })
}

fn handle(doctor: &Doctor, nodes: &[Arc<dyn LockNode>]) -> Result<Redlock, ConfigError> {
    let ttl = TTL.min(doctor.max_ttl);
    let builder = Redlock::builder()
        .ttl(ttl)
        .max_ttl(doctor.max_ttl)
        .node_deadline(DEADLINE.min(doctor.within).min(ttl / 4))
        .allow_even_nodes();
    nodes.iter().fold(builder, |all, node| all.node_arc(Arc::clone(node))).build()
}

/// Twice: the first time connects, the second shows what an application sees.
async fn warm(redlock: &Redlock) -> Outcome {
    match once(redlock).await {
        Outcome::Granted { .. } => once(redlock).await,
        other => other,
    }
}

async fn once(redlock: &Redlock) -> Outcome {
    let mut name = "palisade:doctor:".to_owned();
    let _ = write!(name, "{:032x}", SystemEnv.random());
    let started = SystemEnv.now();
    let guard = match redlock.mutex(name).auto_renew(false).try_acquire().await {
        Ok(TryAcquire::Acquired(guard)) => guard,
        Ok(TryAcquire::Taken(_)) => {
            let why = "a name that nobody can know is taken".to_owned();
            return Outcome::Refused { why, misconfigured: false };
        }
        Err(e) => return refused(&e),
    };
    let granted = SystemEnv.now().since(started);
    let started = SystemEnv.now();
    match guard.release().await.into_result() {
        Ok(()) => Outcome::Granted { granted, released: SystemEnv.now().since(started) },
        Err(outcome) => Outcome::NotReleased(outcome.to_string()),
    }
}

fn refused(e: &AcquireError) -> Outcome {
    let misconfigured = e.advice() == Advice::Misconfigured;
    let AcquireError::NoQuorum(NoQuorum { nodes, .. }) = e else {
        return Outcome::Refused { why: e.to_string(), misconfigured };
    };
    let mut longest = None;
    for (_, outcome) in nodes {
        match outcome {
            NodeOutcome::Granted => {}
            NodeOutcome::Quarantined { remaining, .. } => longest = longest.max(Some(*remaining)),
            _ => return Outcome::Refused { why: words(nodes), misconfigured },
        }
    }
    match longest {
        Some(left) => Outcome::Quarantined(left),
        None => Outcome::Refused { why: words(nodes), misconfigured },
    }
}

fn words(nodes: &[(Arc<str>, NodeOutcome)]) -> String {
    if let [(_, only)] = nodes {
        return only.to_string();
    }
    let each: Vec<_> = nodes.iter().map(|(name, said)| format!("{name}: {said}")).collect();
    each.join("; ")
}
