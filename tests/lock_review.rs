//! What an impatient user, a shared server and a dying runtime do to a lock.

#[path = "support/memory.rs"]
mod memory;
#[path = "support/mod.rs"]
mod support;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use memory::Cluster;
use palisade::env::{Env, SystemEnv};
use palisade::node::LockNode;
use palisade::node::fault::Odds;
use palisade::op::{Batch, Terms};
use palisade::time::Moment;
use palisade::{RedisNode, Redlock};
use support::server::Server;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

const LONG: Duration = Duration::from_secs(20);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Polls once; what it spawned on a current-thread runtime has not run yet.
async fn poll_once<F: Future>(future: F) -> bool {
    let mut future = Box::pin(future);
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}

#[test]
fn leases_are_renewed_after_the_runtime_of_the_first_guard_is_gone() {
    let c = Cluster::new(3);
    let r = c.builder().ttl(ms(900)).node_deadline(ms(150)).build().unwrap();
    let first = runtime();
    let old = first.block_on(async { r.mutex("old").acquire().await.unwrap() });
    first.shutdown_background();
    let second = runtime();
    second.block_on(async {
        let new = r.mutex("new").acquire().await.unwrap();
        let (old_until, new_until) = (old.valid_until(), new.valid_until());
        sleep(ms(700)).await;
        assert!(new.valid_until() > new_until, "nobody renews the new guard");
        assert!(old.valid_until() > old_until, "nobody renews the old guard");
    });
}

#[test]
fn a_node_connects_although_the_runtime_of_its_first_try_ended() {
    let server = Server::start(&[]);
    let node = RedisNode::builder(server.url()).trust_fresh(true).build().unwrap();
    let node: Arc<dyn LockNode> = Arc::new(node);
    let r = Redlock::builder().node_arc(Arc::clone(&node)).build().unwrap();
    let terms = Terms { max_ttl: LONG, clock_error: LONG };
    let first = Builder::new_current_thread().enable_all().build().unwrap();
    first.block_on(async {
        // The connecting task is spawned and never runs.
        let deadline = SystemEnv.now() + ms(1_000);
        assert!(!poll_once(node.call(Batch { terms, ops: Vec::new() }, deadline)).await);
    });
    drop(first);
    let second = runtime();
    second.block_on(async {
        let guard = timeout(LONG, r.mutex("k").wait(ms(3_000)).acquire()).await.unwrap().unwrap();
        assert!(guard.release().await.is_released());
    });
}

#[test]
fn settings_beyond_reason_are_refused_and_never_panic() {
    let c = Cluster::new(1);
    for d in [Duration::MAX, Duration::MAX / 2, Duration::from_secs(u64::MAX)] {
        c.builder().node_deadline(d).build().unwrap_err();
        c.builder().max_ttl(d).build().unwrap_err();
        c.builder().ttl(d).build().unwrap_err();
        c.builder().clock_error(d).build().unwrap_err();
    }
}

#[derive(Debug, Default)]
struct Suspended(AtomicU64);

impl Env for Suspended {
    fn now(&self) -> Moment {
        SystemEnv.now() + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
    fn wall_micros(&self) -> u64 {
        SystemEnv.wall_micros()
    }
    fn random(&self) -> u128 {
        SystemEnv.random()
    }
}

#[tokio::test]
async fn a_machine_that_wakes_tells_the_loss_also_without_renewal() {
    let c = Cluster::new(3);
    let env = Arc::new(Suspended::default());
    let r = c.builder().env(Arc::clone(&env) as Arc<dyn Env>).build().unwrap();
    let guard = r.mutex("s").ttl(LONG).auto_renew(false).acquire().await.unwrap();
    let told = guard.lost();
    tokio::pin!(told);
    assert!(timeout(ms(20), &mut told).await.is_err());
    // Timers stood still for an hour, our clock did not.
    env.0.store(3_600, Ordering::SeqCst);
    timeout(ms(5_000), told).await.expect("the loss was not told");
}

#[tokio::test]
async fn a_name_that_is_a_side_key_of_another_name_is_refused() {
    let c = Cluster::new(1);
    let r = c.redlock();
    let tagged = c.builder().prefix("{app}:").build().unwrap();
    for side in ["fence", "queue", "meta"] {
        for m in [r.mutex(format!("{{jobs}}:{side}")), tagged.mutex(format!("jobs:{side}"))] {
            let text = m.try_acquire().await.unwrap_err().to_string();
            assert!(text.contains("`name`") && text.contains(side), "{text}");
        }
        // Without a hash tag it is nobody's side key.
        r.mutex(format!("jobs:{side}")).check().unwrap();
        r.mutex(format!("{{}}:{side}")).check().unwrap();
    }
}

#[tokio::test]
async fn keys_of_other_programs_beside_a_lock_are_left_alone() {
    let server = Server::start(&[]);
    let node = || RedisNode::builder(server.url()).trust_fresh(true).build().unwrap();
    let r = Redlock::builder().node(node()).ttl(ms(900)).build().unwrap();
    server.cli(&["rpush", "{orders}:queue", "job"]);
    server.cli(&["hset", "{orders}:meta", "a", "b"]);
    let guard = r.mutex("orders").acquire().await.unwrap();
    let until = guard.valid_until();
    let other = Redlock::builder().node(node()).build().unwrap();
    // A waiter asks for a hint, and gets none here: it polls.
    let m = other.mutex("orders");
    let waiter = tokio::spawn(async move { m.acquire().await });
    let renewed = async {
        while guard.valid_until() == until {
            sleep(ms(10)).await;
        }
    };
    timeout(LONG, renewed).await.unwrap();
    assert!(guard.release().await.is_released());
    let guard = timeout(LONG, waiter).await.unwrap().unwrap().unwrap();
    assert!(guard.release().await.is_released());
    assert_eq!(server.cli(&["lrange", "{orders}:queue", "0", "-1"]), "job");
    assert_eq!(server.cli(&["hget", "{orders}:meta", "a"]), "b");
    assert_eq!(server.cli(&["ttl", "{orders}:queue"]), "-1");
    assert_eq!(server.cli(&["ttl", "{orders}:meta"]), "-1");
}

#[tokio::test]
async fn callers_who_met_do_not_meet_for_ever() {
    const CALLERS: u64 = 8;
    const ROUNDS: u64 = 10;
    let c = Cluster::new(3);
    for (seed, control) in c.controls.iter().enumerate() {
        let odds = Odds { delay: 1.0, max_delay: ms(4), ..Odds::default() };
        control.dice(seed as u64, odds);
    }
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let r = c.redlock();
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let guard = r.mutex("hot").wait(LONG * 3).acquire().await.unwrap();
                    assert!(guard.release().await.is_released());
                }
            })
        })
        .collect();
    for caller in callers {
        timeout(LONG * 3, caller).await.expect("nobody wins any more").unwrap();
    }
    // Each roll-back used to call everybody to the next meeting: five hundred calls for one lock.
    let calls = c.controls[0].calls() / (CALLERS * ROUNDS);
    assert!(calls < 60, "{calls} calls for one lock");
}
