//! Probes for keys that the nodes have forgotten: too few nodes can decide if there was an attempt,
//! so the caller's function (the probe) looks if there was an effect.

use palisade::{MemoryNode, Outcome, Probed};

use crate::support::idem::{Effects, World, secs};

/// Two of three nodes lose the result of a call. The first node still has this result.
async fn forgotten_but_for_one(w: &World, e: &Effects) {
    assert!(w.orders().key("k").run(|_| e.act(secs(1))).await.unwrap().is_executed());
    w.nodes[1..].iter().for_each(MemoryNode::restart_empty);
    // A node notices at its first request that it lost its data, so its quarantine (the time
    // without grants) begins here.
    assert!(w.orders().key("other").run(|_| e.act(secs(1))).await.is_err());
    tokio::time::sleep(secs(40)).await;
}

#[tokio::test(start_paused = true)]
async fn the_probe_decides_about_a_result_that_too_few_remember() {
    let (w, e) = (World::new(3), Effects::default());
    forgotten_but_for_one(&w, &e).await;
    let parked = w.orders().key("k").run(|_| e.act(secs(1))).await.unwrap();
    assert!(matches!(parked, Outcome::Parked(_)), "{parked:?}");
    tokio::time::sleep(secs(40)).await;
    let call = w.orders().key("k").probe(async |_| Probed::Found(1));
    assert_eq!(call.run(|_| e.act(secs(1))).await.unwrap(), Outcome::Replayed(1));
    // The last call stored the result on a majority again, so this call needs no probe.
    let again = w.orders().key("k").run(|_| e.act(secs(1))).await.unwrap();
    assert_eq!((again, e.count()), (Outcome::Replayed(1), 1));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_contradicts_a_stored_result_runs_nothing() {
    let (w, e) = (World::new(3), Effects::default());
    forgotten_but_for_one(&w, &e).await;
    let call = w.orders().key("k").probe(async |_| Probed::NotFound);
    let out = call.run(|_| e.act(secs(1))).await.unwrap();
    assert!(matches!(out, Outcome::Parked(_)), "{out:?}");
    assert_eq!(e.count(), 1);
}
