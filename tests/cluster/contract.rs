//! The contract suite, which every kind of node must pass, in one slot of a cluster.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::error::NodeError;
use palisade::node::ClusterNode;
use palisade::node::spi::{
    BarrierPoint, Batch, BoxFuture, LockKeys, LockNode, NodeSignal, Op, Replies,
};
use palisade::{Durability, Moment};
use palisade_testing::contract::{self, Hooks};
use tokio::sync::broadcast;

use crate::support::cluster::Cluster;
use crate::support::contract::quiet_cases;
use crate::support::server::Server;

/// Puts all keys of the suite into one slot, by a hash tag before them.
struct InOneSlot(Arc<dyn LockNode>);

const TAG: &str = "{suite}";

fn tagged(keys: &LockKeys) -> LockKeys {
    let all = keys.all().map(|keys| LockKeys::new(&format!("{TAG}{}", keys.lock())));
    LockKeys::many(all.collect())
}

fn in_one_slot(mut op: Op) -> Op {
    let key = |key: &Arc<str>| Arc::from(format!("{TAG}{key}"));
    match &mut op {
        Op::Acquire { keys, .. }
        | Op::Raise { keys, .. }
        | Op::Extend { keys, .. }
        | Op::Release { keys, .. }
        | Op::Inspect { keys, .. } => *keys = tagged(keys),
        Op::Claim(claim) => claim.key = key(&claim.key),
        Op::Enlist(enlist) => enlist.key = key(&enlist.key),
        Op::RaiseClaim { key: of, .. }
        | Op::Unclaim { key: of, .. }
        | Op::Lookup { key: of, .. } => {
            *of = key(of);
        }
        Op::ExtendClaim { ballot, .. } | Op::Complete { ballot, .. } | Op::Steps { ballot, .. } => {
            ballot.key = key(&ballot.key);
        }
    }
    op
}

impl LockNode for InOneSlot {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        let ops = batch.ops.into_iter().map(in_one_slot).collect();
        self.0.call(Batch { ops, ..batch }, deadline)
    }

    fn barrier(
        &self,
        after: BarrierPoint,
        level: Durability,
        deadline: Moment,
    ) -> BoxFuture<'_, Result<u32, NodeError>> {
        self.0.barrier(after, level, deadline)
    }

    fn depth(&self) -> usize {
        self.0.depth()
    }

    fn events(&self) -> broadcast::Receiver<NodeSignal> {
        let mut tagged = self.0.events();
        let (plain, events) = broadcast::channel(1_024);
        tokio::spawn(async move {
            let cut = |key: Arc<str>| key.strip_prefix(TAG).unwrap_or(&key).into();
            while let Ok(signal) = tagged.recv().await {
                let _ = plain.send(match signal {
                    NodeSignal::Changed(key) => NodeSignal::Changed(cut(key)),
                    NodeSignal::Turn { key, waiter } => NodeSignal::Turn { key: cut(key), waiter },
                    other => other,
                });
            }
        });
        events
    }

    fn name(&self) -> Arc<str> {
        self.0.name()
    }

    fn server(&self) -> Option<Arc<str>> {
        self.0.server()
    }
}

/// The cases that restart or empty the slot's master. Those of a planned handover are left out.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_of_a_cluster_passes_the_contract_over_restarts_and_losses() {
    let durable = ["--appendonly", "yes", "--appendfsync", "always"];
    let cluster = Cluster::start_with(3, 0, Duration::from_secs(1), &durable);
    let node = ClusterNode::new(cluster.addresses()).unwrap();
    let slot = cluster.slot(TAG);
    let master = cluster.owner(slot);
    let node: Arc<dyn LockNode> = Arc::new(InOneSlot(node.part(slot).expect("it has slots")));
    let cluster = Arc::new(Mutex::new(cluster));
    let on_master = |act: fn(&mut Server)| {
        let cluster = Arc::clone(&cluster);
        move || {
            let mut cluster = cluster.lock().unwrap();
            act(&mut cluster.servers[master]);
            cluster.until_ok();
            std::future::ready(())
        }
    };
    let hooks = Hooks::default()
        .restart_empty(on_master(Server::restart_empty))
        .restart_keeping(on_master(Server::restart))
        .flush(on_master(|server| assert_eq!(server.cli(&["flushall"]), "OK")));
    let mut ran = 0;
    for case in contract::cases().into_iter().filter(contract::Case::disturbs) {
        ran += usize::from(case.run(Arc::clone(&node), &hooks).await);
    }
    assert!(ran > 10, "{ran}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_of_a_cluster_passes_the_contract() {
    let cluster = Arc::new(Cluster::start(3, 1, Duration::from_secs(5)));
    let node = ClusterNode::builder(cluster.addresses()).trust_fresh(true).build().unwrap();
    let slot = cluster.slot(TAG);
    let master = cluster.owner(slot);
    let node = node.part(slot).expect("a cluster has slots");
    let foreign = Arc::clone(&cluster);
    let hooks = Hooks::default().put_foreign(move |key, ttl| {
        let (server, key) = (&foreign.servers[master], format!("{TAG}{key}"));
        server.cli(&["del", &key]);
        assert_eq!(server.cli(&["hset", &key, "uuid:1", "1"]), "1");
        if let Some(ttl) = ttl {
            server.cli(&["pexpire", &key, &ttl.as_millis().to_string()]);
        }
        std::future::ready(())
    });
    quiet_cases(Arc::new(InOneSlot(node)), &hooks).await;
}
