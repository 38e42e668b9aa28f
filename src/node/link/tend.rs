//! The task that keeps a node connected after its first connection, so that the first renewal after
//! a failover finds an open one. Without calls, the pauses become longer.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::open::Turn;
use super::redial::PAUSE;
use super::{Current, Resolver, Shared, moved_on};

enum Outlook {
    Stands(Arc<Current>),
    Connecting,
    Pause(Duration),
    /// `State::connecting` is already set.
    Connect,
}

/// Dropping it clears `State::tended`: if the task ended with its runtime, the next connection
/// starts a new one.
struct Tend<R: Resolver>(Weak<Shared<R>>);

impl<R: Resolver> Drop for Tend<R> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.state().tended = false;
        }
    }
}

impl<R: Resolver> Shared<R> {
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
        let now = self.options.env.now();
        let mut state = self.state();
        if state.connecting || state.current.is_some() {
            // `turns` reports the end of each try.
            return Outlook::Connecting;
        }
        match &state.failed {
            Some(f) if f.version == *self.changed.borrow() && f.idle_until > now => {
                Outlook::Pause(f.idle_until.since(now))
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
            let (mut turns, version, outlook) = {
                let Some(shared) = self.0.upgrade() else { return };
                let version = *changed.borrow();
                // Before the state is read, so it cannot miss the end of a try.
                let turns = shared.turns.subscribe();
                let outlook = shared.outlook();
                if matches!(outlook, Outlook::Connect) {
                    tokio::spawn(Turn::new(&shared).connect());
                }
                (turns, version, outlook)
            };
            let lost = async {
                match outlook {
                    Outlook::Stands(current) => {
                        current.session.lost().await;
                        current.session.abandon();
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
                () = moved_on(&mut changed, version) => {}
                () = lost => {}
            }
        }
    }
}

#[cfg(all(test, feature = "test-util"))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use tokio::sync::broadcast;

    use super::super::{Link, LinkOptions};
    use super::*;
    use crate::dial::endpoint::Endpoint;
    use crate::env::TokioEnv;
    use crate::error::{NodeError, NodeFault};
    use crate::node::redis::encode::GroupTerms;
    use crate::node::redis::facts::ServerFacts;
    use crate::node::{BoxFuture, NodeSignal};
    use crate::time::Moment;

    struct Gone {
        asked: Arc<AtomicU32>,
        version: watch::Sender<u64>,
    }

    impl Resolver for Gone {
        fn resolve(&self, _: Moment) -> BoxFuture<'_, Result<Endpoint, NodeError>> {
            self.asked.fetch_add(1, SeqCst);
            Box::pin(async { Err(NodeError::not_executed(NodeFault::Unreachable, "gone")) })
        }

        fn changed(&self) -> watch::Receiver<u64> {
            self.version.subscribe()
        }

        fn is_tls(&self) -> bool {
            false
        }

        fn accept(
            &self,
            _: &str,
            _: &ServerFacts,
            _: &broadcast::Sender<NodeSignal>,
        ) -> Result<(), NodeError> {
            Ok(())
        }

        fn group_terms(&self) -> GroupTerms {
            self.version.send_modify(|n| *n += 1);
            GroupTerms::ALONE
        }
    }

    fn link(asked: &Arc<AtomicU32>, version: &watch::Sender<u64>) -> Link<Gone> {
        let resolver = Gone { asked: Arc::clone(asked), version: version.clone() };
        let options = LinkOptions {
            trust_fresh: false,
            allow_eviction: false,
            trial: None,
            name: "gone".into(),
            connect_timeout: Duration::from_secs(1),
            env: Arc::new(TokioEnv::new()),
        };
        Link::new(resolver, options)
    }

    #[tokio::test(start_paused = true)]
    async fn the_terms_of_another_master_are_not_used_for_a_connection() {
        let (asked, version) = (Arc::default(), watch::Sender::new(0));
        let link = link(&asked, &version);
        assert!(link.shared.terms_at(0).is_none());
        assert!(link.shared.terms_at(2).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_node_that_is_gone_is_tried_less_and_less_often() {
        let (asked, version) = (Arc::new(AtomicU32::new(0)), watch::Sender::new(0));
        let link = link(&asked, &version);
        link.shared.tend();
        sleep(Duration::from_secs(10)).await;
        let first = asked.swap(0, SeqCst);
        assert!((8..=14).contains(&first), "often at first: {first}");
        sleep(Duration::from_secs(3_600)).await;
        let hour = asked.swap(0, SeqCst);
        assert!((350..=730).contains(&hour), "every 5 to 10 s: {hour}");
        // The long pause is only for a node without calls.
        let until = link.shared.state().failed.as_ref().map(|f| f.until).expect("it has failed");
        let now = link.shared.options.env.now();
        assert!(until.since(now) <= PAUSE.1, "{until:?} {now:?}");
        asked.store(0, SeqCst);
        version.send_modify(|n| *n += 1);
        sleep(Duration::from_millis(1)).await;
        assert_eq!(asked.load(SeqCst), 1);
    }
}
