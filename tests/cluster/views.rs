//! Who is asked for the owners of slots, and whose answers count.

use std::sync::Arc;
use std::time::Duration;

use palisade::error::NodeFault;
use palisade::node::ClusterNode;
use palisade::node::spi::{Batch, BoxFuture, LockNode, NodeSignal, Replies};
use palisade::{Moment, Redlock, TryAcquire};
use palisade_testing::fault::Fault;
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep};

use crate::moves::{NODE_TIMEOUT, PATIENCE, TTL, name_at, redlock, try_acquire, until_granted};
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;

fn handle(node: impl LockNode) -> Redlock {
    let builder = Redlock::builder().ttl(TTL).max_ttl(TTL);
    builder.node_deadline(Duration::from_millis(700)).node(node).build().unwrap()
}

/// The near master answers twice, by its name and by its address, before the others are connected.
#[tokio::test(flavor = "multi_thread")]
async fn masters_that_are_far_away_are_waited_for() {
    let cluster = Cluster::start(3, 0, NODE_TIMEOUT);
    let far = [1, 2].map(|n: usize| {
        let proxy = Proxy::to(&cluster.addresses()[n]);
        proxy.edit(|_| std::thread::sleep(Duration::from_millis(60)));
        (cluster.addresses()[n].clone(), proxy)
    });
    let map = far.iter().map(|(at, proxy)| (at.clone(), proxy.addr()));
    let seed = format!("localhost:{}", cluster.servers[0].port());
    let node = ClusterNode::builder([seed]).trust_fresh(true).map_address(map);
    let client = handle(node.build().unwrap());
    let (waited, last) = until_granted(&client, &name_at(&cluster, 0, "n")).await;
    assert!(waited < Duration::from_secs(10), "{waited:?}: {last:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_of_two_clusters_are_refused() {
    let [one, other] = [(); 2].map(|()| Cluster::start(3, 0, NODE_TIMEOUT));
    let both = [&one.addresses()[0], &other.addresses()[0]].map(Clone::clone);
    let client = handle(ClusterNode::builder(both).trust_fresh(true).build().unwrap());
    for _ in 0..5 {
        let refused = try_acquire(&client, "n").await.map(drop).unwrap_err().to_string();
        assert!(refused.contains("lead to two clusters"), "{refused}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// As where the address of one was given to another.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_another_server_than_the_owner_is_not_used() {
    let cluster = Cluster::start(3, 0, NODE_TIMEOUT);
    let [first, second, _] = &cluster.addresses()[..] else { unreachable!() };
    let node = ClusterNode::builder([second]).trust_fresh(true);
    let node = node.map_address([(first.clone(), second.clone())]).build().unwrap();
    let (client, name) = (handle(node), name_at(&cluster, 0, "n"));
    let begun = Instant::now();
    loop {
        let refused = try_acquire(&client, &name).await.map(drop).unwrap_err().to_string();
        if refused.contains(&format!("the owner has the id {}", cluster.id(0))) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{refused}");
    }
    until_granted(&client, &name_at(&cluster, 1, "n")).await;
}

/// Knows nothing of parts.
struct Bare(ClusterNode);

impl LockNode for Bare {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        self.0.call(batch, deadline)
    }

    fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.0.events()
    }

    fn name(&self) -> Arc<str> {
        self.0.name()
    }
}

/// What a client remembers of one slot says nothing of another.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrapper_that_forwards_no_parts_begins_no_histories() {
    let cluster = Cluster::start(3, 0, NODE_TIMEOUT);
    let node = || ClusterNode::builder(cluster.addresses()).trust_fresh(true).build().unwrap();
    let clients = [handle(Bare(node())), handle(Fault::new(node()))];
    for (which, client) in clients.iter().enumerate() {
        for name in (0..2).flat_map(|_| (0..20).map(|n| format!("n-{which}-{n}"))) {
            let (waited, last) = until_granted(client, &name).await;
            assert!(waited < TTL, "{name} after {waited:?}: {last:?}");
        }
    }
}

/// The faults of a node are those of its parts.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_node_is_cut_in_every_slot() {
    let cluster = Cluster::start(3, 0, NODE_TIMEOUT);
    let node = ClusterNode::builder(cluster.addresses()).trust_fresh(true).build().unwrap();
    let fault = Fault::new(node);
    let control = fault.control();
    let client = handle(fault);
    until_granted(&client, "n").await;
    control.cut();
    let refused = try_acquire(&client, "n").await.map(drop).unwrap_err();
    assert_eq!(crate::moves::fault(&refused), Some(NodeFault::Unreachable), "{refused}");
    control.heal();
    until_granted(&client, "n").await;
    assert!(matches!(try_acquire(&redlock(&cluster), "n").await, Ok(TryAcquire::Acquired(_))));
}
