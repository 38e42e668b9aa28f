//! Finds the master and judges it: the [`Resolver`] of a [`SentinelNode`](super::SentinelNode).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::settings::Settings;
use super::status::SentinelStatus;
use crate::env::Env;
use crate::error::{NodeError, NodeFault};
use crate::node::BoxFuture;
use crate::node::link::Resolver;
use crate::node::redis::endpoint::Endpoint;
use crate::node::redis::session::ServerFacts;
use crate::sentinel::ask::Inquiry;
use crate::sentinel::guard::{GuardFacts, GuardRule, LAG_SLACK};
use crate::sentinel::watch::Watch;
use crate::time::Moment;

pub(super) struct Finder {
    name: Arc<str>,
    watch: Watch,
    /// The login and transport that every data server is met with.
    like: Endpoint,
    rule: GuardRule,
    env: Arc<dyn Env>,
    judged: Mutex<Judged>,
}

/// The last master that was looked at.
#[derive(Default)]
struct Judged {
    run_id: Option<Arc<str>>,
    replid: Option<Arc<str>>,
    facts: Option<GuardFacts>,
    window: Option<Duration>,
    error: Option<NodeError>,
    /// The warning logged last, so that it is not repeated at every look.
    warned: Option<String>,
}

impl Finder {
    pub(super) fn new(settings: &Settings, env: Arc<dyn Env>) -> Self {
        let inquiry = Inquiry {
            name: settings.name.clone(),
            access: settings.access.clone(),
            within: settings.within,
            map: settings.map.clone(),
        };
        let sentinels = settings.sentinels.clone();
        Self {
            name: settings.name.clone(),
            watch: Watch::new(inquiry, sentinels, settings.poll_every, env.clone()),
            like: settings.data.endpoint(),
            rule: settings.rule,
            env,
            judged: Mutex::default(),
        }
    }

    pub(super) fn status(&self) -> SentinelStatus {
        let seen = self.watch.seen();
        let judged = self.judged();
        SentinelStatus {
            name: self.name.clone(),
            master: seen.master.as_ref().map(|m| m.at.to_string()),
            epoch: seen.master.as_ref().and_then(|m| m.epoch),
            run_id: judged.run_id.clone(),
            replication_id: judged.replid.clone(),
            sentinels_known: seen.known,
            sentinels_reachable: seen.reachable,
            guard: judged.facts.clone(),
            failover_window: judged.window,
            last_error: seen.error.or_else(|| judged.error.clone()),
        }
    }

    /// Whether a master with these facts may vote; notes for how long a replaced one may write.
    fn judge(&self, server: &ServerFacts) -> Result<(), NodeError> {
        let facts = guard_facts(server);
        let master = self.watch.seen().master;
        let down_after = master.as_ref().and_then(|m| m.down_after);
        let verdict = self.rule.judge(&facts, down_after, master.and_then(|m| m.replicas));
        let mut judged = self.judged();
        if verdict.warning.is_some() && verdict.warning != judged.warned {
            let warning = verdict.warning.as_deref().unwrap_or_default();
            tracing::warn!(group = %self.name, "{warning}");
        }
        judged.warned = verdict.warning;
        judged.run_id = Some(server.run_id.clone());
        judged.replid = Some(server.replid.as_str().into());
        judged.facts = Some(facts);
        judged.window = Some(verdict.window);
        judged.error =
            verdict.fault.map(|words| NodeError::not_executed(NodeFault::GuardMissing, words));
        judged.error.clone().map_or(Ok(()), Err)
    }

    fn judged(&self) -> MutexGuard<'_, Judged> {
        // Nothing panics while it is held, and every value in it is whole at any time.
        self.judged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn guard_facts(server: &ServerFacts) -> GuardFacts {
    GuardFacts {
        good_replicas: server.good_replicas,
        connected_replicas: None,
        min_replicas: server.min_replicas,
        max_lag: server.min_replicas_max_lag.map(|s| Duration::from_secs(u64::from(s))),
    }
}

impl Resolver for Finder {
    fn resolve(&self, deadline: Moment) -> BoxFuture<'_, Result<Endpoint, NodeError>> {
        Box::pin(async move {
            let left = deadline.since(self.env.now());
            let master = timeout(left, self.watch.resolve()).await.map_err(|_| {
                let words = format!("the Sentinels of {} did not answer in time", self.name);
                NodeError::not_executed(NodeFault::NoSentinel, words)
            })??;
            Ok(Endpoint::at(master.at.host(), master.at.port(), &self.like))
        })
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.watch.changed()
    }

    fn is_tls(&self) -> bool {
        self.like.is_tls()
    }

    fn accept(&self, facts: &ServerFacts) -> Result<(), NodeError> {
        self.judge(facts)
    }

    fn window(&self) -> Duration {
        // Before the first look the longest that can come out of it.
        let longest = self.rule.window.max(self.rule.max_lag + LAG_SLACK);
        self.judged().window.unwrap_or(longest)
    }
}
