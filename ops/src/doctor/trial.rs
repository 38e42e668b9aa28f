//! The doctor's trial shows that locking works.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Doctor;
use super::facts::{Outcome, Trial};
use palisade::Redlock;
use palisade::TryAcquire;
use palisade::error::{AcquireError, Advice, ConfigError, NoQuorum, NodeOutcome};
use palisade::internal::NodeUrl;
use palisade::node::spi::LockNode;
use palisade::node::spi::{Env as _, SystemEnv};

/// If this process dies, the nodes free the lock after this time.
const TTL: Duration = Duration::from_secs(5);
const DEADLINE: Duration = Duration::from_secs(1);

/// One handle for each node, and one for all nodes together.
pub(super) struct Plan {
    nodes: Vec<(Arc<dyn LockNode>, Redlock)>,
    /// In `nodes`, groups come before lone servers.
    groups: usize,
    /// `None` if there is only one node.
    all: Option<Result<Redlock, ConfigError>>,
}

impl Plan {
    pub(super) fn new(doctor: &Doctor) -> Result<Self, ConfigError> {
        // As in `Facts`, so that each trial gets the name of the right node.
        let (mut nodes, mut lone): (Vec<Arc<dyn LockNode>>, Vec<_>) = (Vec::new(), Vec::new());
        for node in doctor.deployment.nodes()? {
            match node {
                group @ NodeUrl::Group(_) => nodes.push(group.build()?),
                other => lone.push(other.build()?),
            }
        }
        let groups = nodes.len();
        nodes.extend(lone);
        let all = (nodes.len() > 1).then(|| handle(doctor, &nodes));
        let alone = |node: Arc<dyn LockNode>| {
            let redlock = handle(doctor, &[Arc::clone(&node)])?;
            Ok((node, redlock))
        };
        let nodes = nodes.into_iter().map(alone).collect::<Result<_, ConfigError>>()?;
        Ok(Self { nodes, groups, all })
    }

    /// On each node, except those in `alone`: they are new, and a trial lock would make them look
    /// used. If `alone` is empty, also on all nodes together.
    pub(super) async fn run(self, alone: &BTreeSet<String>) -> Vec<Trial> {
        let subject = |(n, (node, redlock)): (usize, &'_ (Arc<dyn LockNode>, Redlock))| {
            let name = node.name();
            let subject = if n < self.groups { name.to_string() } else { format!("node {name}") };
            (subject, redlock.clone())
        };
        let each = self.nodes.iter().enumerate().map(subject).filter(|(s, _)| !alone.contains(s));
        let each = each.map(|(subject, redlock)| async move {
            Trial { subject, outcome: warm(&redlock).await }
        });
        let mut trials = join_all(each).await;
        if let Some(all) = self.all.as_ref().filter(|_| alone.is_empty()) {
            let outcome = match all {
                Ok(redlock) => warm(redlock).await,
                Err(e) => Outcome::Refused { why: e.to_string(), misconfigured: true },
            };
            trials.push(Trial { subject: "nodes".to_owned(), outcome });
        }
        trials
    }
}

fn handle(doctor: &Doctor, nodes: &[Arc<dyn LockNode>]) -> Result<Redlock, ConfigError> {
    let ttl = TTL.min(doctor.max_ttl);
    let builder = Redlock::builder()
        .ttl(ttl)
        .max_ttl(doctor.max_ttl)
        .clock_error(doctor.clock_error)
        .node_deadline(DEADLINE.min(doctor.deployment.within()).min(ttl / 4))
        .allow_even_nodes();
    let builder = match doctor.deployment.id()? {
        Some(id) => builder.deployment(format!("{id:016x}")),
        None => builder,
    };
    nodes.iter().fold(builder, |all, node| all.node_arc(Arc::clone(node))).build()
}

/// Returns the second outcome: the first opens the connections, for which a slow machine may need
/// longer than a node may take to answer.
async fn warm(redlock: &Redlock) -> Outcome {
    match once(redlock).await {
        Outcome::Granted { .. } | Outcome::Refused { misconfigured: false, .. } => {
            once(redlock).await
        }
        other => other,
    }
}

async fn once(redlock: &Redlock) -> Outcome {
    let mut name = "palisade:doctor:".to_owned();
    let _ = write!(name, "{:032x}", SystemEnv.random());
    let started = SystemEnv.now();
    let mutex = match redlock.mutex(name).auto_renew(false).build() {
        Ok(mutex) => mutex,
        Err(e) => return Outcome::Refused { why: e.to_string(), misconfigured: true },
    };
    let guard = match mutex.try_acquire().await {
        Ok(TryAcquire::Acquired(guard)) => guard,
        Ok(TryAcquire::Taken(_)) => {
            let why = "a random name is already taken; run the doctor again".to_owned();
            return Outcome::Refused { why, misconfigured: false };
        }
        Err(e) => return refused(&e),
    };
    let granted = SystemEnv.now().since(started);
    let started = SystemEnv.now();
    match guard.release().await {
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
            _ => return Outcome::Refused { why: outcomes(nodes), misconfigured },
        }
    }
    match longest {
        Some(left) => Outcome::Quarantined(left),
        None => Outcome::Refused { why: outcomes(nodes), misconfigured },
    }
}

fn outcomes(nodes: &[(Arc<str>, NodeOutcome)]) -> String {
    if let [(_, only)] = nodes {
        return only.to_string();
    }
    let each: Vec<_> = nodes.iter().map(|(name, said)| format!("{name}: {said}")).collect();
    each.join("; ")
}
