//! The end of a run: all faults are over, no key is left behind, and each client is served.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use palisade::node::spi::{LockKeys, Op, Reply};
use tokio::time::{sleep, timeout};

use super::{Handle, PATIENCE, Stage};
use crate::client::cut;
use crate::names;
use crate::plan::{NetPlan, ms};
use crate::several;
use crate::trace::Event;

impl Stage {
    /// Ends all faults. Then checks that no expired key remains on a node and that each client can
    /// acquire a lock.
    pub(super) async fn aftermath(&self) {
        self.world.tell(Event::Healed);
        *self.net.lock().unwrap_or_else(PoisonError::into_inner) = NetPlan::CALM;
        for node in &self.nodes {
            node.heal();
        }
        if let Some(cluster) = &self.cluster {
            cluster.heal();
        }
        let handles: Vec<Handle> = {
            let mut seats = self.seats();
            for seat in seats.iter_mut() {
                seat.wires.iter().for_each(|w| w.heal());
                seat.process.resume(Duration::ZERO);
                seat.forgotten.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
            let stages = &self.plan.stages;
            seats
                .iter()
                .map(|s| (Arc::clone(&s.process), s.redlock.clone(), stages[s.stage]))
                .collect()
        };
        if let Some(cluster) = &self.plan.cluster {
            // Until nobody stands for election any more, and the servers agree.
            sleep(ms(6 * cluster.node_timeout + 200 + cluster.window)).await;
        }
        // The quarantine of a node begins with its first request. So each node gets a request now,
        // and then the run waits until all quarantines have ended.
        for (process, redlock, _) in &handles {
            let touch = redlock.mutex(names::calm(99)).build().unwrap();
            process.run(async move { drop(touch.try_acquire().await) });
        }
        let p = &self.plan;
        let silent = p.most(|s| s.max_ttl) + p.window();
        sleep(ms(silent) * 5 / 4 + ms(2 * p.deadline + 400 + p.clocks_apart())).await;
        // If a planned handover has closed a server, its quarantine begins only after the server
        // has opened again.
        sleep(p.longest_closing() * 9 / 4).await;
        for n in 0..p.names {
            self.must_be_gone(&names::lock(n), "its ttl is long over");
            self.must_be_gone(&format!("permits:{}", names::pool(n)), "its ttl is long over");
        }
        for (client, (process, redlock, settings)) in handles.iter().enumerate() {
            let polls = p.dice(40 + client as u64).range(1, 5) as u32;
            let mutex =
                redlock.mutex(names::calm(client)).ttl(ms(settings.max_ttl)).build().unwrap();
            process.run(async move { drop(cut(polls, mutex.acquire()).await) });
            let polls = p.dice(60 + client as u64).range(1, 8) as u32;
            let pool = redlock.semaphore(names::calm_pool(client), names::PERMITS);
            let pool = pool.ttl(ms(settings.max_ttl)).build().unwrap();
            let all = async move { drop(cut(polls, pool.acquire_many(names::PERMITS)).await) };
            process.run(all);
        }
        sleep(ms(40)).await;
        for client in 0..handles.len() {
            let pool = format!("permits:{}", names::calm_pool(client));
            for key in [names::calm(client), pool] {
                self.must_be_gone(&key, "the request was dropped 40 ms ago");
            }
        }
        self.serve_all_clients(handles).await;
    }

    /// Makes all clients acquire the same lock, and at the same time all permits of one semaphore.
    /// No client may keep a part of the permits while it waits.
    async fn serve_all_clients(&self, handles: Vec<Handle>) {
        // The clients of `beside_busy_names` send many requests, so only a quarter of the plans has
        // them.
        let beside_busy_names = self.plan.seed.is_multiple_of(4);
        let mut tasks = Vec::new();
        if beside_busy_names {
            tasks = several::beside_busy_names(&self.world, &handles);
        }
        for (client, (process, redlock, settings)) in handles.into_iter().enumerate() {
            let ttl = ms(settings.max_ttl);
            let gives_up = client % 3 == 2;
            let wait = ms(if gives_up { 2 } else { 5_000 });
            let not_served = |name: &str| {
                let (world, name) = (Arc::clone(&self.world), names::number_of(name));
                move || {
                    if !gives_up {
                        world.tell(Event::NotServed { client, name });
                    }
                }
            };
            let (name, pool) = (names::calm(50), names::calm_pool(9));
            let refused = not_served(&name);
            let mutex = redlock.mutex(name).ttl(ttl).acquire_timeout(wait).build().unwrap();
            tasks.push(process.run(async move {
                let Ok(guard) = mutex.acquire().await else { return refused() };
                sleep(ms(3)).await;
                let _ = guard.release().await;
            }));
            let refused = not_served(&pool);
            let pool = redlock.semaphore(pool, names::PERMITS).ttl(ttl).acquire_timeout(wait);
            let pool = pool.build().unwrap();
            tasks.push(process.run(async move {
                let Ok(all) = pool.acquire_many(names::PERMITS).await else { return refused() };
                sleep(ms(3)).await;
                let _ = all.release().await;
            }));
        }
        for task in tasks {
            if timeout(PATIENCE, task).await.is_err() {
                self.world.tell(Event::Stuck);
            }
        }
        sleep(ms(40)).await;
        let pool = format!("permits:{}", names::calm_pool(9));
        for key in [names::calm(50), names::calm(60), names::calm(61), pool] {
            self.must_be_gone(&key, "the last holder released it 40 ms ago");
        }
    }

    fn must_be_gone(&self, key: &str, why: &'static str) {
        let settings = &self.plan.stages[0];
        let inspect = || Op::Inspect { keys: LockKeys::new(key), wait: false };
        let nodes = self.nodes.iter().map(|node| (node.index, node.ask(inspect(), settings)));
        let cluster = self.cluster.iter().map(|cluster| (0, cluster.ask(inspect(), settings)));
        for (node, seen) in nodes.chain(cluster) {
            let has_permits = matches!(&seen, Some(Reply::Permits(all)) if !all.is_empty());
            if matches!(seen, Some(Reply::Holder(Some(_)) | Reply::Readers(_))) || has_permits {
                let name = names::number_of(key);
                self.world.tell(Event::KeyLeft { node, name, why });
            }
        }
    }
}
