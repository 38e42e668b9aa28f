//! Actions of simulated clients in elections. Clients campaign, proclaim, resign and observe. Some
//! leaders die without a resignation.

use std::sync::Arc;
use std::time::Duration;

use palisade::ElectionBuilder;
use palisade::election::Observation;
use tokio::time::{sleep, timeout};

use crate::client::{Actor, cut};
use crate::names;
use crate::plan::{Parting, ms};
use crate::trace::Event;

impl Actor {
    fn election(&self, seat: usize) -> ElectionBuilder {
        let election = self.redlock.election(names::seat(seat));
        let drain = self.drain();
        let election =
            election.ttl(ms(self.settings.ttl)).drain(drain).durability(self.plan.durability);
        // A third of the clients have no priority.
        match self.client % 3 {
            0 => election,
            priority => election.priority(priority as u8),
        }
    }

    /// Returns the drain time that leaders declare: their work may continue for this time after a
    /// loss. The ttl and the drain time together must not exceed the longest lease.
    fn drain(&self) -> Duration {
        ms((self.settings.max_ttl - self.settings.ttl) / 2)
    }

    /// Campaigns for at most `wait`. Then leads for `span`, and publishes a value after each time
    /// `every`. Then gives the leadership up.
    pub(crate) async fn lead(
        &self,
        seat: usize,
        (wait, span, every): (u64, u64, u64),
        how: Parting,
    ) {
        let (client, task, name) = (self.client, self.task, names::number_of(&names::seat(seat)));
        self.world.tell(Event::Asks { client, task, name });
        let requested_at = self.world.micros();
        let election = self.election(seat).acquire_timeout(ms(wait)).build();
        let election = election.expect("the plan's settings fit together");
        let value = client.to_string();
        let Ok(leadership) = election.campaign(value.clone()).await else {
            return self.world.tell(Event::Refused { client, task, name, taken: true });
        };
        let leadership = Arc::new(leadership);
        let weak = Arc::downgrade(&leadership);
        // After the loss of a leadership, the leader's work may continue for the drain time. So the
        // leader counts as a holder until the drain time has ended.
        let belief = Box::new(move || weak.upgrade().map(|l| l.drain_remaining()));
        let term = leadership.term().get();
        let hold = self.world.holds((client, name), (term, false, false), requested_at, belief);
        let end = self.world.start.elapsed() + ms(span);
        while self.world.start.elapsed() < end && leadership.is_valid() {
            tokio::select! {
                biased;
                () = leadership.lost() => break,
                () = sleep(ms(every)) => {}
            }
            let _ = leadership.proclaim(value.clone()).await;
        }
        if !leadership.is_valid() {
            sleep(leadership.drain_remaining()).await;
        }
        self.world.tell(Event::Parts { hold, client, name, how });
        self.world.parts(hold);
        let Ok(leadership) = Arc::try_unwrap(leadership) else { return };
        match how {
            Parting::Release => {
                let _ = leadership.resign().await;
            }
            Parting::CutShort(polls) => {
                cut(polls, leadership.resign()).await;
            }
            Parting::Drop | Parting::Forget | Parting::HandOver => drop(leadership),
        }
    }

    /// Observes an election for the time `span`.
    pub(crate) async fn watch(&self, seat: usize, span: u64) {
        let Ok(election) = self.election(seat).build() else { return };
        let name = names::number_of(&names::seat(seat));
        let requested_at = self.world.micros();
        if let Ok(None) = election.leader().await {
            self.world.vacant((self.client, name), requested_at);
        }
        let mut observer = election.observe();
        let (client, watch) = (self.client, self.world.next_value());
        let end = self.world.start.elapsed() + ms(span);
        loop {
            let left = end.saturating_sub(self.world.start.elapsed());
            match timeout(left, observer.next()).await {
                Ok(Some(Observation::Leader { leader, gap })) => {
                    let (term, number) = (leader.term.get(), leader.number);
                    let leader = leader.value.parse().unwrap_or(usize::MAX);
                    let (name, watch) = (name, watch);
                    let seen = Event::Sees { client, watch, name, leader, term, number, gap };
                    self.world.tell(seen);
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }
}
