//! Connects to a server and checks that it may vote.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Current, Resolver, Shared, cut_off, moved_on};
use crate::error::{NodeError, NodeFault as F};
use crate::node::redis::barrier::Barriers;
use crate::node::redis::facts::ServerFacts;
use crate::node::redis::session::Session;
use crate::tls;

const GROUP: Duration = Duration::from_millis(100);

impl Current {
    pub(super) fn ended_by_limit(&self) -> Option<NodeError> {
        let excess = self.session.excess()?;
        Some(NodeError::not_executed(F::Protocol, excess.why_it_ended()))
    }
}

/// Dropping it ends the waiting calls, even if the task never ran.
pub(super) struct Turn<R: Resolver> {
    shared: Arc<Shared<R>>,
    version: u64,
    outcome: Option<Result<Current, NodeError>>,
}

impl<R: Resolver> Turn<R> {
    pub(super) fn new(shared: &Arc<Shared<R>>) -> Self {
        // A later change makes the session outdated.
        let version = *shared.changed.borrow();
        Self { shared: Arc::clone(shared), version, outcome: None }
    }

    pub(super) async fn connect(mut self) {
        let limit = self.shared.options.connect_timeout;
        let mut changed = self.shared.changed.clone();
        let shared = Arc::clone(&self.shared);
        let outcome = loop {
            let version = self.version;
            tokio::select! {
                biased;
                done = shared.open(version) => break done,
                () = moved_on(&mut changed, version) => self.version = *changed.borrow(),
                () = sleep(limit) => {
                    break Err(self.shared.late(&format!("no connection within {limit:?}")));
                }
            }
        };
        let connected = outcome.is_ok();
        self.outcome = Some(outcome);
        // Notifies the waiting calls, so it comes first.
        drop(self);
        if connected {
            shared.tend();
        }
    }
}

impl<R: Resolver> Drop for Turn<R> {
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| Err(cut_off()));
        self.shared.ended(self.version, outcome.map(Arc::new));
    }
}

impl<R: Resolver> Shared<R> {
    /// If a quarantine is due, it begins now and not with the first batch. A failed call is only
    /// logged, because each batch is judged, too. Of a server that deletes keys, only that it did
    /// is written (quarantine 21). In a cluster the queue of each slot touches its own data.
    async fn touch(&self, session: &Arc<Session>, version: u64, is_refused: bool) {
        if self.resolver.wants().cluster {
            return;
        }
        let Some(last) = self.state().last else { return };
        let Some(group_terms) = self.terms_at(version) else { return };
        if let Err(cause) = session.touch(last, (group_terms, is_refused)).await {
            tracing::debug!(node = &*self.options.name, %cause, "marker not touched");
        }
    }

    /// Stops using the session if the server may not vote, does not answer, is no master, or does
    /// not permit to read its facts. The node then does not vote until a new connection passes the
    /// check.
    pub(super) async fn judge(self: Arc<Self>, current: Arc<Current>) {
        let limit = self.options.connect_timeout;
        let outcome = timeout(limit, async {
            let facts = current.session.look_again().await?;
            self.accept(&current.at, &facts)
        });
        let cause = match outcome.await {
            Ok(Ok(())) => return self.resolver.follow_up().await,
            Ok(Err(cause)) => cause,
            Err(_) => {
                let detail = format!("no answer within {limit:?} to how it is set");
                NodeError::not_executed(F::Timeout, detail)
            }
        };
        self.part_with(&current, true);
        let mut state = self.state();
        // If the server is unreachable, the next try fails, and that is counted and logged.
        state.failed = Some(self.failed(state.failures, cause, current.version));
    }

    fn accept(&self, at: &str, facts: &ServerFacts) -> Result<(), NodeError> {
        // First, so that the resolver's terms are this server's in `touch`.
        let accepted = self.resolver.accept(at, facts, &self.events);
        match &facts.eviction {
            Some(eviction) if !self.options.allow_eviction => Err(eviction.objection().at(at, "")),
            _ => accepted,
        }
    }

    pub(super) async fn open(self: &Arc<Self>, version: u64) -> Result<Current, NodeError> {
        let deadline = self.options.env.now() + self.options.connect_timeout;
        {
            let mut state = self.state();
            (state.trying, state.wants_login) = (None, false);
        }
        let endpoint = self.resolver.resolve(deadline).await?;
        let at = endpoint.to_string();
        self.state().trying = Some(at.as_str().into());
        let wants = self.resolver.wants();
        let located = |e: NodeError| {
            let hint = if e.fault() == F::Unreachable { self.resolver.hint() } else { "" };
            e.at(&at, hint)
        };
        let wire = self.resolver.dial(&endpoint).await.map_err(located)?;
        // The Sentinels answer while the server does. It ends with a try that fails, because it
        // would keep the next one from asking them.
        let mut follow_up = JoinSet::new();
        let shared = Arc::clone(self);
        follow_up.spawn(async move { shared.resolver.follow_up().await });
        // Once there is a socket: a server that is down costs no question.
        self.state().wants_login = true;
        let logged = endpoint.logged("batches").await;
        self.state().wants_login = false;
        let endpoint = logged.map_err(|why| located(why.into()))?;
        let (events, env) = (self.events.clone(), &self.options.env);
        let session = Session::open(wire, &endpoint, events, wants, env);
        let session = Arc::new(session.await.map_err(located)?);
        let facts = session.facts().clone();
        let run_id = Arc::clone(&facts.run_id);
        let (connected, online) = (facts.connected_replicas, facts.online_replicas);
        if let Err(cause) = self.accept(&at, &facts) {
            if cause.fault() == F::Eviction {
                self.touch(&session, version, true).await;
            }
            return Err(cause);
        }
        // Healthy servers answer at once; the new connection is used even if the others do not.
        let _ = timeout(GROUP, follow_up.join_next()).await;
        self.touch(&session, version, false).await;
        follow_up.detach_all();
        let now = self.options.env.now();
        let env = Arc::clone(&self.options.env);
        let replicas = (connected, self.most_replicas(&run_id, online));
        let barriers = Arc::new(Barriers::new(endpoint, run_id, replicas, env));
        Ok(Current { session, at: at.into(), barriers, version, opened: now })
    }

    fn most_replicas(&self, run_id: &Arc<str>, online: u32) -> Arc<AtomicU32> {
        let mut state = self.state();
        let most = match &state.replicas {
            Some((known, most)) if known == run_id => Arc::clone(most),
            _ => Arc::clone(&state.replicas.insert((Arc::clone(run_id), Arc::default())).1),
        };
        most.fetch_max(online, Ordering::Relaxed);
        most
    }

    pub(super) fn late(&self, text: &str) -> NodeError {
        let state = self.state();
        if state.wants_login {
            let why = format!("the provider has not answered yet: {text}");
            return NodeError::not_executed(F::Credentials, why);
        }
        let (place, hint) = match &state.trying {
            Some(at) => (format!("at {at}: "), self.resolver.hint()),
            None => (String::new(), ""),
        };
        let silent =
            if self.resolver.is_tls() { format!("; {}", tls::SILENT) } else { String::new() };
        NodeError::not_executed(F::Unreachable, format!("{place}{text}{hint}{silent}"))
    }
}
