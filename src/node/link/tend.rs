//! Keeps a node connected that was connected once: after a lost connection, or another master's
//! naming, it connects at once and not at the next call. So the holder of a lease there learns what
//! became of it within a round trip of the new master being known, and the first renewal after a
//! failover finds the way open. Ends with the link.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::{Current, PAUSE, Resolver, Shared, Turn, moved_on};

/// What prevents a connection, if anything.
enum Outlook {
    /// It exists.
    Stands(Arc<Current>),
    /// Somebody connects.
    Connecting,
    /// Not so soon after the last try.
    Pause(Duration),
    /// The way is open, and taken.
    Connect,
}

/// The task. However it ends, also with its runtime, the next connection starts another one.
struct Tend<R: Resolver>(Weak<Shared<R>>);

impl<R: Resolver> Drop for Tend<R> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.state().tended = false;
        }
    }
}

impl<R: Resolver> Shared<R> {
    /// Starts the task, unless it runs.
    pub(super) fn tend(self: &Arc<Self>) {
        if !std::mem::replace(&mut self.state().tended, true) {
            tokio::spawn(Tend(Arc::downgrade(self)).run(self.changed.clone()));
        }
    }

    fn outlook(&self) -> Outlook {
        let current = self.state().current.clone();
        if let Some(current) = current {
            if self.is_usable(&current) {
                return Outlook::Stands(current);
            }
            self.part_with(&current, false);
        }
        let mut state = self.state();
        if state.connecting || state.current.is_some() {
            // Somebody else was faster; the end of a turn says so.
            return Outlook::Connecting;
        }
        match &state.failed {
            Some(f) if self.pausing(&state).is_some() => {
                Outlook::Pause(f.until.since(self.options.env.now()))
            }
            _ => {
                state.connecting = true;
                Outlook::Connect
            }
        }
    }
}

impl<R: Resolver> Tend<R> {
    async fn run(self, mut changed: watch::Receiver<u64>) {
        loop {
            let (mut turns, epoch, outlook) = {
                let Some(shared) = self.0.upgrade() else { return };
                let epoch = *changed.borrow();
                // Before the look, so that no end of a try is missed; closed with the link.
                let turns = shared.turns.subscribe();
                let outlook = shared.outlook();
                if matches!(outlook, Outlook::Connect) {
                    tokio::spawn(Turn::new(&shared).connect());
                }
                (turns, epoch, outlook)
            };
            let lost = async {
                match outlook {
                    Outlook::Stands(current) => {
                        current.session.lost().await;
                        // Reported now, also if nobody asks for anything.
                        current.session.abandon();
                        // From a server that takes connections and drops them: one a second.
                        let Some(shared) = self.0.upgrade() else { return };
                        let stood = shared.options.env.now().since(current.opened);
                        drop((shared, current));
                        sleep(PAUSE.1.saturating_sub(stood)).await;
                    }
                    Outlook::Pause(pause) => sleep(pause).await,
                    Outlook::Connecting | Outlook::Connect => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                ended = turns.changed() => if ended.is_err() { return },
                () = moved_on(&mut changed, epoch) => {}
                () = lost => {}
            }
        }
    }
}
