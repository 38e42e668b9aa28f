//! A key is forgotten if too many nodes lost data and cannot tell if the key was used before.
//! Forgotten keys appear as an event, as a log line, in counters, in reports and in lookups.

use std::time::Duration;

use palisade::idempotency::{ParkedReason, Status};
use palisade::node::{NodeEvent, NodeEvents};
use palisade::{Forgotten, Idempotency, MemoryNode, Outcome, Redlock};
use tokio::time::sleep;
use tracing_subscriber::filter::LevelFilter;

use crate::support::idem::{Effects, World, at, boom, secs};
use crate::support::logs::Log;

const KEEP: Duration = Duration::from_secs(3_600);

fn orders(redlock: &Redlock, keep: Duration) -> Idempotency {
    let builder = redlock.idempotency("orders").at_most_once();
    builder.retention(keep).build().unwrap()
}

async fn run(orders: &Idempotency, key: &str) -> Outcome<u32> {
    orders.key(key).run(|_| async { Ok::<_, String>(1) }).await.unwrap()
}

async fn lose(w: &World, nodes: &[usize]) {
    w.lose(nodes, MemoryNode::restart_empty).await;
}

/// Returns the events about a time in which keys count as forgotten (too few nodes can exclude an
/// earlier use), each with its node.
fn reported(events: &mut NodeEvents) -> Vec<String> {
    let mut reported = Vec::new();
    while let Some(named) = events.try_next() {
        if let NodeEvent::KeysForgotten { remaining, .. } = named.event {
            let node = named.node;
            reported.push(format!("{node} for {}s", remaining.as_secs()));
        }
    }
    reported
}

#[tokio::test(start_paused = true)]
async fn it_is_said_once_per_node_and_loss() {
    let w = World::new(3);
    let mut events = w.redlock.events();
    let orders = orders(&w.redlock, KEEP);
    lose(&w, &[0]).await;
    assert!(run(&orders, "a").await.is_executed());
    assert_eq!(reported(&mut events), [""; 0], "a minority makes no difference");
    lose(&w, &[1]).await;
    for key in ["b", "c", "d"] {
        assert!(matches!(run(&orders, key).await, Outcome::Parked(_)));
        sleep(secs(60)).await;
    }
    // Keys are forgotten (their records may be lost) for the retention and twice E (the clock
    // error), counted from the loss of data. The node's quarantine, in which it grants nothing, is
    // part of this time.
    assert_eq!(reported(&mut events), ["node-0 for 3542s", "node-1 for 3573s"]);
    // A further loss of data on the same node is reported again.
    lose(&w, &[1]).await;
    assert!(matches!(run(&orders, "e").await, Outcome::Parked(_)));
    assert_eq!(reported(&mut events), ["node-1 for 3573s"]);
    // A key that was made after the loss of data cannot be among the lost data, so it is not
    // forgotten, and no event is sent.
    lose(&w, &[0]).await;
    let made = at(w.now());
    let call = orders.key("f").created_at(made).run(|_| async { Ok::<_, String>(1) });
    assert!(call.await.unwrap().is_executed());
    assert_eq!(reported(&mut events), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn counters_and_looks_show_it() {
    let w = World::new(1);
    lose(&w, &[0]).await;
    let orders = orders(&w.redlock, KEEP);
    let Outcome::Parked(parked) = run(&orders, "a").await else { panic!("not parked") };
    assert_eq!(parked.reason, ParkedReason::Forgotten);
    let text = parked.to_string();
    let want = "\"orders:a\": too few nodes know whether this key was used before, for they are \
                new or lost data (may have lost every write until ";
    assert!(text.starts_with(want), "{text}");
    assert!(text.ends_with("(for another 3573s so are new keys without `created_at`)"));
    let Status::Forgotten { remaining } = orders.key("a").lookup::<u32>().await.unwrap() else {
        panic!("not forgotten")
    };
    assert_eq!(remaining, parked.forgotten_for);
    let known = orders.key("a").created_at(at(w.now())).lookup::<u32>().await.unwrap();
    assert_eq!(known, Status::Absent);
    let call = orders.key("b").on_forgotten(Forgotten::Run).run(|_| async { Ok::<_, String>(1) });
    assert!(call.await.unwrap().is_executed());
    // This key runs because of its policy, and its handler fails.
    let failed = orders.key("c").on_forgotten(Forgotten::Run).run(|_| boom()).await;
    assert!(failed.is_err());
    let m = orders.metrics();
    assert_eq!((m.parked_forgotten, m.parked_lapsed), (1, 0));
    assert_eq!((m.forgotten_runs, m.reruns), (2, 0));
    assert_eq!((m.executed, m.failed_unknown), (1, 1));
    assert_eq!(w.redlock.metrics()[0].keys_forgotten, 3);
    assert!(matches!(run(&orders, "c").await, Outcome::Parked(p) if p.attempt == 1));
    assert_eq!(orders.clone().metrics().parked_lapsed, 1);
}

#[tokio::test(start_paused = true)]
async fn in_quarantine_a_look_says_what_a_call_will_find() {
    let w = World::new(3);
    let orders = orders(&w.redlock, KEEP);
    assert!(run(&orders, "done").await.is_executed());
    w.nodes.iter().for_each(MemoryNode::restart_keeping);
    let look = |key: &'static str| orders.key(key).lookup::<u32>();
    assert!(matches!(look("new").await.unwrap(), Status::Forgotten { .. }));
    assert_eq!(look("done").await.unwrap(), Status::Stored(1));
    assert_eq!(run(&orders, "done").await, Outcome::Replayed(1), "results are replayed");
}

#[tokio::test(start_paused = true)]
async fn one_line_of_the_log_says_until_when() {
    let log = Log::of_this_thread(LevelFilter::INFO);
    let w = World::new(1);
    lose(&w, &[0]).await;
    // The namespaces of one handle (client) share the events about the nodes, so the second
    // namespace adds no log line.
    for keep in [KEEP, KEEP / 2] {
        let orders = orders(&w.redlock, keep);
        for key in 0..10 {
            assert!(matches!(run(&orders, &format!("{key}")).await, Outcome::Parked(_)));
            sleep(secs(5)).await;
        }
    }
    let lines = log.lines(&["keys_forgotten"]);
    assert_eq!(lines.len(), 1, "{}", log.text());
    for part in ["WARN", "palisade::node", "node=\"node-0\"", "remaining_ms=3573001"] {
        assert!(lines[0].contains(part), "{part} in {}", lines[0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_stumbles_beside_one_that_lost_data_parks_nothing() {
    let (w, e) = (World::new(3), Effects::default());
    let h = w.handle(0);
    assert!(h.orders().key("k").run(|_| e.act(secs(1))).await.unwrap().is_executed());
    w.nodes[0].restart_empty();
    tokio::time::sleep(secs(40)).await;
    let stumbles = async {
        h.faults[2].cut();
        tokio::time::sleep(Duration::from_millis(400)).await;
        h.faults[2].heal();
    };
    let (new, ()) = tokio::join!(h.orders().key("new").run(|_| e.act(secs(1))), stumbles);
    assert!(matches!(new.unwrap(), Outcome::Executed { value: 2, attempt: 1, .. }));
    // While the third node is cut off, too few nodes can tell if the key was used before, so the
    // call is parked. Before that, the call repeats its requests for some time.
    h.faults[2].cut();
    let began = tokio::time::Instant::now();
    match h.orders().key("newer").run(|_| e.act(secs(1))).await.unwrap() {
        Outcome::Parked(p) => assert_eq!((p.attempt, p.reason), (0, ParkedReason::Forgotten)),
        other => panic!("{other:?}"),
    }
    assert!(began.elapsed() < secs(5), "{:?}", began.elapsed());
    h.faults[2].heal();
    let newer = h.orders().key("newer").run(|_| e.act(secs(1))).await.unwrap();
    assert!(matches!(newer, Outcome::Executed { value: 3, attempt: 1, .. }));
}
