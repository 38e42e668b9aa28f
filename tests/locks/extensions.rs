//! Extensions of leases of which one node has not answered the acquire yet: they arrive behind it,
//! what they leave on the node is released, and they hinder nobody. In virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use palisade::election::TryCampaign;
use palisade::node::spi::{LockNode as _, Op};
use palisade::{Redlock, RedlockBuilder};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::memory::Timed;
use crate::support::wrap::Wrap;

const MS: Duration = Duration::from_millis(1);

/// What a holder does that sends extensions as soon as a majority has granted its lease.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    Permit,
    Extend,
    Downgrade,
    Proclaim,
}

impl Work {
    async fn run(self, redlock: &Redlock, pause: Duration) {
        match self {
            Self::Permit => {
                let permit = redlock.semaphore("n", 2).build().unwrap().acquire().await.unwrap();
                sleep(pause).await;
                permit.release().await.unwrap();
            }
            Self::Extend => {
                let guard = redlock.mutex("n").build().unwrap().acquire().await.unwrap();
                sleep(pause).await;
                guard.extend().await.unwrap();
                guard.release().await.unwrap();
            }
            Self::Downgrade => {
                let writer = redlock.rw_lock("n").build().unwrap().write().await.unwrap();
                sleep(pause).await;
                writer.downgrade().await.release().await.unwrap();
            }
            Self::Proclaim => {
                let leader = redlock.election("n").build().unwrap().campaign("a").await.unwrap();
                sleep(pause).await;
                leader.proclaim("b").await.unwrap();
                leader.resign().await.unwrap();
            }
        }
    }

    /// Takes everything that the holder had, and gives it back.
    async fn again(self, redlock: &Redlock) {
        match self {
            Self::Permit => {
                let pool = redlock.semaphore("n", 2).build().unwrap();
                drop(pool.try_acquire_many(2).await.unwrap().acquired().expect("both are free"));
            }
            Self::Extend | Self::Downgrade => {
                let mutex = redlock.mutex("n").build().unwrap();
                drop(mutex.try_acquire().await.unwrap().acquired().expect("it is free"));
            }
            Self::Proclaim => {
                let election = redlock.election("n").build().unwrap();
                let tried = election.try_campaign("c").await.unwrap();
                assert!(matches!(tried, TryCampaign::Won(_)), "{tried:?}");
            }
        }
    }
}

/// Three nodes. The third one executes nothing while `gate` is false. For each owner, `seen` has
/// the kinds of the owner's ops in the order in which they arrived there.
struct World {
    timed: Timed,
    gate: watch::Sender<bool>,
    seen: Arc<std::sync::Mutex<BTreeMap<String, String>>>,
}

impl World {
    fn new() -> (Self, Redlock) {
        let (timed, gate, seen) = (Timed::new(3), watch::Sender::new(true), Arc::default());
        let world = Self { timed, gate, seen };
        let (gate, seen) = (world.gate.subscribe(), Arc::clone(&world.seen));
        let slow = Wrap::new(world.timed.nodes[2].clone(), move |inner, batch, deadline| {
            for op in &batch.ops {
                let (kind, owner) = match op {
                    Op::Acquire { owner, .. } => ('a', owner),
                    Op::Extend { owner, .. } => ('x', owner),
                    Op::Release { owner, .. } => ('r', owner),
                    _ => continue,
                };
                seen.lock().unwrap().entry(owner.as_str().to_owned()).or_default().push(kind);
            }
            let mut gate = gate.clone();
            async move {
                gate.wait_for(|open| *open).await.unwrap();
                inner.call(batch, deadline).await
            }
        });
        let nodes = world.timed.nodes[..2].iter().cloned();
        let builder = nodes.fold(world.timed.settings(), RedlockBuilder::node).node(slow);
        let redlock = builder.build().unwrap();
        (world, redlock)
    }

    fn lone(&self) -> Redlock {
        self.timed.settings().node(self.timed.nodes[2].clone()).build().unwrap()
    }
}

/// The slow node is asked `ahead` other things first, and works again after `slow`.
async fn history(work: Work, ahead: usize, pause: Duration, slow: Duration) {
    let (world, redlock) = World::new();
    // The node's clock is known, so the batch under way is one of requests.
    drop(redlock.mutex("first").build().unwrap().inspect().await);
    world.gate.send_replace(false);
    let mut others = JoinSet::new();
    for n in 0..=ahead {
        let other = redlock.mutex(format!("other-{n}")).build().unwrap();
        others.spawn(async move { drop(other.inspect().await) });
        if n == 0 {
            sleep(MS).await;
        }
    }
    sleep(MS).await;
    let opens = world.gate.clone();
    let opens = tokio::spawn(async move {
        sleep(slow).await;
        opens.send_replace(true);
    });
    work.run(&redlock, pause).await;
    opens.await.unwrap();
    let closed = redlock.close(Duration::from_secs(3)).await;
    let of = format!("{work:?}, {ahead} ahead, extended after {pause:?}, slow for {slow:?}");
    assert!(closed.is_clean(), "{of}: {closed}");
    for ops in world.seen.lock().unwrap().values() {
        let [acquire, extend, release] = ['a', 'x', 'r'].map(|kind| ops.find(kind));
        assert!(acquire.is_none() || extend.is_none() || acquire < extend, "{of}: {ops}");
        assert!(extend.is_none() || release > extend, "{of}: {ops}");
    }
    work.again(&world.lone()).await;
}

#[tokio::test(start_paused = true)]
async fn an_extension_stays_behind_its_acquire_and_is_released() {
    for work in [Work::Permit, Work::Extend, Work::Downgrade, Work::Proclaim] {
        for ahead in [0, 5, 127, 130, 300] {
            for (pause, slow) in [(0, 10), (3, 70), (70, 20), (100, 260), (200, 300), (300, 900)] {
                history(work, ahead, pause * MS, slow * MS).await;
            }
        }
    }
}

/// The slow node needs 30 ms for a batch, so it cannot answer all requests of 60 callers in time.
#[tokio::test(start_paused = true)]
async fn the_extensions_of_new_permits_leave_a_slow_node_time_for_acquires() {
    let timed = Timed::new(3);
    let counts = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let counted = Arc::clone(&counts);
    let slow = Wrap::new(timed.nodes[2].clone(), move |inner, batch, deadline| {
        for op in &batch.ops {
            match op {
                Op::Acquire { .. } => counted[0].fetch_add(1, Relaxed),
                Op::Extend { .. } => counted[1].fetch_add(1, Relaxed),
                _ => 0,
            };
        }
        async move {
            sleep(30 * MS).await;
            inner.call(batch, deadline).await
        }
    });
    let swift = |node: palisade::MemoryNode| {
        Wrap::new(node, |inner, batch, deadline| async move {
            sleep(5 * MS).await;
            inner.call(batch, deadline).await
        })
    };
    let [one, two] = [0, 1].map(|n| swift(timed.nodes[n].clone()));
    let redlock = timed.settings().node(one).node(two).node(slow).build().unwrap();
    let (mut all, until) = (JoinSet::new(), Instant::now() + Duration::from_secs(2));
    for n in 0..60 {
        let pool = redlock.semaphore(format!("pool-{n}"), 2).build().unwrap();
        all.spawn(async move {
            while Instant::now() < until {
                pool.acquire().await.unwrap().release().await.unwrap();
            }
        });
    }
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
    let [acquires, extensions] = [0, 1].map(|i| counts[i].load(Relaxed));
    assert!(acquires > 500 && acquires * 2 > extensions, "{acquires} beside {extensions}");
}
