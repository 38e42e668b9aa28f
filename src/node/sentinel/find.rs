//! The [`Resolver`] of a [`SentinelNode`](super::SentinelNode).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::settings::GroupSettings;
use super::status::SentinelStatus;
use crate::dial::address::Address;
use crate::dial::endpoint::Endpoint;
use crate::dial::wire::Wire;
use crate::env::Env;
use crate::error::{NodeError, NodeFault};
use crate::node::builder::NodeSettings;
use crate::node::link::Resolver;
use crate::node::min_replicas::{Group, Judge};
use crate::node::min_replicas_rule::MinReplicas;
use crate::node::redis::barrier::replicas::{Known, Place};
use crate::node::redis::encode::{GroupTerms, Named};
use crate::node::redis::facts::ServerFacts;
use crate::node::redis::session::Session;
use crate::node::{BoxFuture, FailoverTimes, NodeSignal};
use crate::sentinel::ask::Inquiry;
use crate::sentinel::watch::Watch;
use crate::sync::SyncMutex;
use crate::time::Moment;

const IN_TILT: &str = "most of its Sentinels are in tilt: their clocks jumped or they stood still, \
                       and they begin no failover for half a minute";
const NONE_FITS: &str = "its Sentinels may promote none of its replicas: each is down for them or \
                         has priority 0";

/// For which a connection to a promoted replica waits for the word of a majority.
const EARLY: Duration = Duration::from_secs(2);

pub(super) struct Finder {
    name: Arc<str>,
    watch: Watch,
    /// The address is a placeholder.
    like: Endpoint,
    judge: Judge,
    trust_unconfirmed: bool,
    env: Arc<dyn Env>,
    last_master: Arc<SyncMutex<LastMaster>>,
}

#[derive(Default)]
struct LastMaster {
    run_id: Option<Arc<str>>,
    replid: Option<Arc<str>>,
    replicas: BTreeSet<Place>,
    /// By their reported addresses.
    agreed: BTreeMap<Address, Endpoint>,
    /// To one of them, perhaps still under way. Nothing is sent on it.
    early: Option<(String, oneshot::Receiver<Wire>)>,
    none_fits: bool,
}

impl Finder {
    pub(super) fn new(settings: &NodeSettings<GroupSettings>, env: Arc<dyn Env>) -> Self {
        let own = &settings.own;
        let inquiry = Inquiry {
            name: own.name.clone(),
            like: own.sentinel.clone(),
            within: own.within,
            map: own.map.clone(),
        };
        Self {
            name: own.name.clone(),
            watch: Watch::new(inquiry, own.sentinels.clone(), own.poll_every, env.clone()),
            like: settings.data.clone(),
            judge: Judge::new(own.name.clone(), settings.rule),
            trust_unconfirmed: own.trust_unconfirmed,
            env,
            last_master: Arc::default(),
        }
    }

    pub(super) fn status(&self) -> SentinelStatus {
        let seen = self.watch.seen();
        let (master, judged) = (self.last_master.lock(), self.judge.last());
        SentinelStatus {
            name: self.name.clone(),
            master: seen.master.as_ref().map(|m| m.at.to_string()),
            epoch: seen.master.as_ref().and_then(|m| m.epoch),
            run_id: master.run_id.clone(),
            replication_id: master.replid.clone(),
            sentinels_known: seen.known,
            sentinels_reachable: seen.reachable,
            min_replicas: judged.facts,
            failover_window: judged.window,
            last_error: seen.error.or(judged.error),
        }
    }

    pub(super) fn failover(&self) -> Option<FailoverTimes> {
        let down_after = self.group().down_after?;
        Some(FailoverTimes { down_after, window: self.judge.group_terms().failover_window })
    }

    pub(super) fn no_failover(&self) -> Option<&'static str> {
        if self.watch.seen().is_in_tilt() {
            return Some(IN_TILT);
        }
        if self.group().replicas == Some(0) {
            return Some("its Sentinels know no replica of it");
        }
        self.last_master.lock().none_fits.then_some(NONE_FITS)
    }

    fn group(&self) -> Group {
        let master = self.watch.seen().master;
        Group {
            down_after: master.as_ref().and_then(|m| m.down_after),
            replicas: master.and_then(|m| m.replicas),
        }
    }
}

/// At most one connection in that time, as one Sentinel alone may send any event (sentinel 9).
async fn meet(mut promoted: watch::Receiver<Option<Address>>, last: Arc<SyncMutex<LastMaster>>) {
    while promoted.changed().await.is_ok() {
        let named = promoted.borrow_and_update().clone();
        let known = named.and_then(|at| last.lock().agreed.get(&at).cloned());
        let Some(at) = known else { continue };
        let (opened, early) = oneshot::channel();
        last.lock().early = Some((at.to_string(), early));
        match timeout(EARLY, Session::dial(&at)).await {
            Ok(Ok(wire)) => drop(opened.send(wire)),
            _ => drop(opened),
        }
        sleep(EARLY).await;
        last.lock().early = None;
    }
}

async fn met(early: Option<oneshot::Receiver<Wire>>, at: &Endpoint) -> Result<Wire, NodeError> {
    if let Some(early) = early
        && let Ok(wire) = early.await
        && !wire.is_over()
    {
        return Ok(wire);
    }
    Session::dial(at).await
}

impl Resolver for Finder {
    fn resolve(&self, deadline: Moment) -> BoxFuture<'_, Result<Endpoint, NodeError>> {
        Box::pin(async move {
            let left = deadline.since(self.env.now());
            let meets = meet(self.watch.promoted(), Arc::clone(&self.last_master));
            let master = timeout(left, self.watch.resolve(meets)).await.map_err(|_| {
                let text = format!("the Sentinels of {} did not answer in time", self.name);
                NodeError::not_executed(NodeFault::NoSentinel, text)
            })??;
            Ok(Endpoint::at(master.at.host(), master.at.port(), &self.like))
        })
    }

    fn dial<'a>(&'a self, at: &'a Endpoint) -> BoxFuture<'a, Result<Wire, NodeError>> {
        let early = self.last_master.lock().early.take_if(|(to, _)| *to == at.to_string());
        Box::pin(met(early.map(|(_, wire)| wire), at))
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.watch.changed()
    }

    fn hint(&self) -> &'static str {
        if self.group().replicas == Some(0) {
            return "; the Sentinels know no replica of it, so none of them can replace it: start \
                    this server again, or make one of its replicas the master (REPLICAOF NO ONE) \
                    and have every Sentinel monitor that one (SENTINEL REMOVE, MONITOR)";
        }
        "; the Sentinels name this address: if this client reaches the server under another one \
         (NAT, containers), say which by `map_address`, or have the server announce it \
         (replica-announce-ip, sentinel announce-ip)"
    }

    fn is_tls(&self) -> bool {
        self.like.is_tls()
    }

    fn accept(
        &self,
        at: &str,
        facts: &ServerFacts,
        events: &broadcast::Sender<NodeSignal>,
    ) -> Result<(), NodeError> {
        let mut master = self.last_master.lock();
        master.run_id = Some(facts.run_id.clone());
        master.replid = Some(facts.replid.as_str().into());
        drop(master);
        self.judge.accept(at, facts, (self.group(), self.env.now()), events)?;
        self.watch.ask_within(self.judge.group_terms().failover_window);
        Ok(())
    }

    fn follow_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let replicas = self.watch.replicas().await;
            let place = |r: &Address| Place::new(r.host(), r.port());
            let at = |r: Address| Endpoint::at(r.host(), r.port(), &self.like);
            let agreed: BTreeMap<_, _> =
                replicas.agreed.into_iter().map(|(named, r)| (named, at(r))).collect();
            let servers: Vec<_> = agreed.values().cloned().collect();
            {
                let mut last = self.last_master.lock();
                last.replicas = replicas.reported.iter().map(place).collect();
                (last.agreed, last.none_fits) = (agreed, replicas.none_fits);
            }
            // With any other policy the servers' lags are not used.
            if self.judge.rule().policy == MinReplicas::Require {
                self.judge.read_others(&servers, self.env.now()).await;
            }
        })
    }

    fn replicas(&self) -> Result<Option<Known>, NodeError> {
        let master = self.watch.seen().master;
        let Some(count) = master.as_ref().and_then(|master| master.replicas) else {
            let detail = "the Sentinels do not say how many replicas there are; allow \
                          `sentinel|master` to this client, or ask for Replicas(k)";
            return Err(NodeError::maybe_executed(NodeFault::NoPermission, detail));
        };
        let mut named = self.last_master.lock().replicas.clone();
        // A Sentinel without the result of the last failover may list the new master as a replica.
        if let Some(master) = master {
            named.remove(&Place::new(master.at.host(), master.at.port()));
        }
        Ok(Some(Known { count, named }))
    }

    fn group_terms(&self) -> GroupTerms {
        let group_terms = self.judge.group_terms();
        let (epoch, asked) = self.watch.named();
        let until = (!self.trust_unconfirmed).then(|| asked + group_terms.failover_window);
        GroupTerms {
            named: Some(Named { epoch, until, since: None, disturbed: None }),
            ..group_terms
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn a_socket_under_way_is_waited_for_and_one_that_failed_or_ended_is_not_used() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = Endpoint::parse(&format!("redis://{}", server.local_addr().unwrap())).unwrap();
        for (failed, ended) in [(false, false), (false, true), (true, false)] {
            let (opened, early) = oneshot::channel();
            let to = at.clone();
            let waits = tokio::spawn(async move { met(Some(early), &to).await });
            yield_now().await;
            let wire = Session::dial(&at).await.unwrap();
            let (first, _) = server.accept().await.unwrap();
            if ended {
                wire.close("the test ends it");
            }
            if failed {
                drop(opened);
            } else {
                assert!(opened.send(wire).is_ok());
            }
            waits.await.unwrap().unwrap();
            let again = timeout(Duration::from_millis(100), server.accept()).await;
            assert_eq!(again.is_ok(), failed || ended);
            drop(first);
        }
    }
}
