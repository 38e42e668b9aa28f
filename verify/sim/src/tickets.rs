//! Hand-overs of locks between simulated client processes. A ticket, by which another process takes
//! the lock, is sent to all clients, so it is delivered more than once, and late.

use std::time::Duration;

use tokio::time::sleep;

use crate::client::{Actor, Guard, cut};
use crate::dice::Dice;
use crate::plan::{Parting, ms};
use crate::trace::Event;

impl Actor {
    /// Hands a lock over to another process: makes a ticket, by which a client can take the lock,
    /// and sends it to all clients. The user's code no longer relies on the lock.
    pub(crate) async fn hand_over(&self, name: u16, guard: Guard) {
        let Some(guard) = guard.into_lock() else { return };
        let (client, token) = (self.client, guard.fencing_token().get());
        if let Ok(ticket) = guard.hand_over().await {
            self.world.tell(Event::HandedOver { client, name, token });
            self.world.send_ticket(name, ticket);
        }
    }

    pub(crate) async fn resume(
        &self,
        name: usize,
        (wait, polls): (u64, u32),
        (span, parting): (u64, Parting),
        dice: Dice,
    ) {
        let (client, task, n) = (self.client, self.task, name as u16);
        let end = self.world.start.elapsed() + ms(wait);
        let ticket = loop {
            if let Some(ticket) = self.world.ticket(n) {
                break ticket;
            }
            if self.world.start.elapsed() >= end {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        };
        self.world.tell(Event::Asks { client, task, name: n });
        let requested_at = self.world.micros();
        match cut(polls, self.redlock.resume(&ticket)).await {
            None => self.world.tell(Event::Cancelled { client, task, name: n }),
            Some(Err(_)) => {
                self.world.tell(Event::Refused { client, task, name: n, taken: true });
            }
            Some(Ok(guard)) => {
                let (token, left) = (ticket.fencing_token().get(), guard.remaining());
                let left = left.as_micros() as u64;
                self.world.tell(Event::Resumed { client, name: n, token, left });
                let held = self.holds(name, Guard::Lock(guard), (requested_at, false));
                let held = self.hold(held, span, (9, true), dice).await;
                self.part(held, parting).await;
            }
        }
    }
}
