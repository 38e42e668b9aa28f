//! The table of the demo that looks whether a name is held twice: it says so where two clients do
//! not exclude each other, and only there.

use std::time::Duration;

use palisade::Redlock;
use palisade::node::MemoryNode;
use tokio::time::sleep;

#[path = "../orders/holders.rs"]
#[allow(unreachable_pub)]
mod table;

async fn held_twice(nodes: [MemoryNode; 2]) -> u64 {
    let client = |node| Redlock::builder().node(node).build().expect("settings fit together");
    let clients = nodes.map(client);
    let names = ["first", "second"].map(str::to_owned);
    let holders = table::Holders::start(&clients, &names).expect("names fit");
    sleep(Duration::from_secs(2)).await;
    let [holds, _, twice] = holders.end().await.expect("no task panics");
    assert!(holds > 10, "{holds} holds");
    twice
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_two_clients_hold_at_once_is_found() {
    let node = MemoryNode::new();
    assert_eq!(held_twice([node.clone(), node]).await, 0);
    // Each client has a node of its own, so nobody excludes anybody.
    assert!(held_twice([MemoryNode::new(), MemoryNode::new()]).await > 0);
}
