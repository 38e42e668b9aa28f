//! Callers on a single-threaded runtime. Callers whose replies arrive together send their next
//! requests in one batch.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use palisade::{Failed, Redlock};

use super::*;

const CALLERS: u64 = 64;

#[tokio::test]
async fn callers_whose_answers_come_together_share_the_next_batch() {
    let server = Server::start(&[]);
    let handle = Redlock::builder().node(fresh(&server)).node_deadline(Duration::from_secs(2));
    let handle = handle.build().unwrap();
    let orders = handle.idempotency("orders").at_most_once().build().unwrap();
    let call = |caller: u64| {
        let call = orders.key(format!("order-{caller}"));
        async move { call.run(|_| async { Ok::<_, Failed>(1) }).await.unwrap() }
    };
    futures_util::future::join_all((0..CALLERS).map(call)).await;
    let (stop, count) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let before = server.calls("evalsha");
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (orders, stop, count) = (orders.clone(), Arc::clone(&stop), Arc::clone(&count));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let call = orders.key(format!("order-{caller}"));
                    let replayed = call.run(|_| async { Err::<u32, _>("there is a result") });
                    assert!(!replayed.await.unwrap().is_executed());
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    while count.load(Ordering::Relaxed) < 500 * CALLERS {
        assert!(!callers.iter().any(tokio::task::JoinHandle::is_finished), "a call failed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    let batches = (server.calls("evalsha") - before) as f64;
    let together = count.load(Ordering::Relaxed) as f64 / batches;
    // If each caller sent alone, the batches would contain only a few requests. If all callers
    // always sent together, the server would idle while the client works, and the other way round.
    assert!(together > CALLERS as f64 / 4.0, "{together} calls leave together");
    assert!(together < CALLERS as f64 - 4.0, "{together} calls leave together");
}
