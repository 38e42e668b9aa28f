//! Access of simulated clients to the nodes without the library. Other programs use locks as in the
//! Redlock documentation. Operators decide about keys.

use std::sync::Arc;

use palisade::idempotency::Resolved;
use palisade::node::spi::Env as _;
use palisade::test_util::RecordChange;
use tokio::time::sleep;

use crate::client::Actor;
use crate::dice::Dice;
use crate::names;
use crate::orders::Believes;
use crate::plan::{Decision, ms};
use crate::process::Gated;
use crate::trace::Event;

impl Actor {
    pub(crate) async fn classic(&self, name: usize, wait: u64, hold: u64, mut d: Dice) {
        let key = names::lock(name);
        let env = Gated(Arc::clone(&self.process));
        let (began, settings) = (env.now(), &self.settings);
        let ttl = ms(settings.ttl);
        let all = || self.nodes.iter().enumerate().filter(|(i, _)| settings.has(*i));
        while env.now().since(began) <= ms(wait) {
            let requested_at = env.now();
            let mut granted = 0;
            for (_, node) in all() {
                sleep(ms(d.range(0, 3))).await;
                granted += usize::from(node.set_foreign(&key, ttl) == Some(true));
            }
            let drift = ttl * settings.drift_ppm / 1_000_000;
            let until = requested_at + ttl.saturating_sub(drift + ms(2));
            if granted > all().count() / 2 && env.now() < until {
                let left = Gated(Arc::clone(&self.process));
                let belief = Box::new(move || Some(until.since(left.now())));
                let id = self.world.claims((self.client, name as u16), 0, belief);
                let _believes = Believes { world: Arc::clone(&self.world), hold: id };
                sleep(ms(hold)).await;
            }
            for (_, node) in all() {
                sleep(ms(d.range(0, 3))).await;
                node.delete_foreign(&key);
            }
            sleep(ms(d.range(1, 20))).await;
        }
    }

    /// Decides about a key as an operator does. The decision `Resolve` is possible for each key.
    /// The other decisions are possible only for a parked key, whose handler does not run without a
    /// decision.
    pub(crate) async fn decide(&self, key: usize, later: u64, decision: Decision) {
        let (client, name) = (self.client, names::number_of(&names::order(key)));
        if decision == Decision::Resolve {
            sleep(ms(later)).await;
            let value = self.world.next_value();
            let call = self.orders().key(names::order(key));
            if let Ok(Resolved::Stored) = call.resolve(&value).await {
                let (print, executed, kept) = (0, true, true);
                self.world.tell(Event::Result { client, name, value, print, executed, kept });
            }
            return;
        }
        let record = format!("idem:sim:{}", names::order(key));
        let seen: Vec<_> = self.nodes.iter().map(|n| n.record(&record, &self.settings)).collect();
        if seen.iter().flatten().count() == 0 || seen.iter().flatten().any(|s| !s.is_parked) {
            return;
        }
        sleep(ms(later)).await;
        // The event comes before the change, because a new claim may find the changed record at
        // once.
        self.world.tell(Event::Decided { client, name, decision });
        let change = match decision {
            Decision::Purge => RecordChange::PurgeUnfinished,
            Decision::Rerun | Decision::Resolve => RecordChange::Rerun,
        };
        for (node, seen) in self.nodes.iter().zip(seen) {
            sleep(ms(later / 4)).await;
            if let Some(seen) = seen {
                node.change(&record, seen.fence, change);
            }
        }
    }
}
