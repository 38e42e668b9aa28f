//! A node's min-replicas guard as its link sees it: judged by fresh facts, set where that was asked
//! for, and each change told. `RedisNode` and `SentinelNode` share it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast;

use super::NodeEvent;
use super::redis::endpoint::Endpoint;
use super::redis::guard::{Applied, apply_at};
use super::redis::session::{ServerFacts, Session};
use crate::error::{NodeError, NodeFault};
use crate::sentinel::guard::{GuardFacts, GuardRule, LAG_SLACK, MinReplicas};

/// Longest time for one replica to be connected to and set.
const APPLY: Duration = Duration::from_secs(1);

/// Judges a node's servers and remembers the last verdict.
pub(crate) struct Judge {
    /// The node's name.
    name: Arc<str>,
    rule: GuardRule,
    last: Mutex<Last>,
}

/// What was seen last.
#[derive(Clone, Default)]
pub(crate) struct Last {
    pub(crate) facts: Option<GuardFacts>,
    /// L, as it follows from the facts.
    pub(crate) window: Option<Duration>,
    pub(crate) error: Option<NodeError>,
    /// Servers that refused what `Apply` has to set, or cannot be reached for it, with why.
    pub(crate) refused: BTreeMap<Arc<str>, Arc<str>>,
    /// The server that was set last as the group's master.
    master: Option<Arc<str>>,
    /// What was told as wrong; not told again until it changes.
    wrong: Option<String>,
    /// The advice logged last.
    advised: Option<String>,
}

impl Last {
    /// What is to be told of what is wrong now, if anything.
    fn change(&mut self, wrong: Option<String>) -> Option<NodeEvent> {
        if self.wrong == wrong {
            return None;
        }
        self.wrong.clone_from(&wrong);
        Some(match wrong {
            Some(why) => NodeEvent::GuardAbsent { why: why.into() },
            None => NodeEvent::GuardRestored,
        })
    }

    /// Servers that left the group are not complained of any more. Of none nothing is concluded:
    /// then the Sentinels could not be asked.
    fn forget_all_but(&mut self, replicas: &[String]) {
        let master = self.master.as_deref();
        if !replicas.is_empty() {
            self.refused.retain(|at, _| {
                master == Some(&**at) || replicas.iter().any(|replica| **replica == **at)
            });
        }
    }
}

/// What the Sentinels tell of a group; nothing for a lone server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Group {
    /// The shortest `down-after` of any of them.
    pub(crate) down_after: Option<Duration>,
    pub(crate) replicas: Option<u32>,
}

impl Judge {
    pub(crate) fn new(name: Arc<str>, rule: GuardRule) -> Self {
        Self { name, rule, last: Mutex::default() }
    }

    pub(crate) fn rule(&self) -> &GuardRule {
        &self.rule
    }

    pub(crate) fn last(&self) -> Last {
        self.lock().clone()
    }

    /// L: before the first look the longest that can come out of it.
    pub(crate) fn window(&self) -> Duration {
        let longest = self.rule.window.max(self.rule.max_lag + LAG_SLACK);
        self.lock().window.unwrap_or(longest)
    }

    /// Whether a server with these facts may vote; notes for how long a replaced one may write.
    pub(crate) fn accept(
        &self,
        server: &ServerFacts,
        group: Group,
        events: &broadcast::Sender<NodeEvent>,
    ) -> Result<(), NodeError> {
        let facts = guard_facts(server);
        let verdict = self.rule.judge(&facts, group.down_after, group.replicas);
        let wrong = self.rule.wrong(&facts, group.down_after);
        let mut last = self.lock();
        let told = last.change(wrong);
        let advice = verdict.warning.filter(|_| last.wrong.is_none());
        if advice.is_some() && advice != last.advised {
            tracing::warn!(node = %self.name, "{}", advice.as_deref().unwrap_or_default());
        }
        last.advised = advice;
        last.facts = Some(facts);
        last.window = Some(verdict.window);
        last.error = verdict.fault.map(|words| {
            let refused = last.refused.iter().map(|(at, why)| format!("; {at}: {why}"));
            let words = words + &refused.collect::<String>();
            NodeError::not_executed(NodeFault::GuardMissing, words)
        });
        let error = last.error.clone();
        drop(last);
        if let Some(event) = told {
            self.tell(events, event);
        }
        error.map_or(Ok(()), Err)
    }

    /// Under `Apply`: sets what lacks at the session's server, which is then asked again.
    pub(crate) async fn apply(
        &self,
        session: &Session,
        facts: ServerFacts,
        at: &str,
        group: Group,
        events: &broadcast::Sender<NodeEvent>,
    ) -> Result<ServerFacts, NodeError> {
        if self.rule.policy != MinReplicas::Apply {
            return Ok(facts);
        }
        let again = {
            let mut last = self.lock();
            last.master = Some(at.into());
            last.refused.contains_key(at)
        };
        let applied = session.apply(&self.rule, group.down_after, again).await;
        let changed = matches!(applied, Applied::Set(_) | Applied::NotKept(..));
        self.note(at, applied, events);
        if changed { session.look_again().await } else { Ok(facts) }
    }

    /// Under `Apply`: the same at the other servers of the group, one after the other.
    pub(crate) async fn apply_all(
        &self,
        servers: &[Endpoint],
        group: Group,
        events: &broadcast::Sender<NodeEvent>,
    ) {
        let names: Vec<String> = servers.iter().map(ToString::to_string).collect();
        self.lock().forget_all_but(&names);
        for (endpoint, at) in servers.iter().zip(names) {
            let again = self.lock().refused.contains_key(&*at);
            let applied = apply_at(endpoint, &self.rule, group.down_after, again, APPLY).await;
            self.note(&at, applied, events);
        }
    }

    fn note(&self, at: &str, applied: Applied, events: &broadcast::Sender<NodeEvent>) {
        let server: Arc<str> = at.into();
        if let Applied::Set(setting) | Applied::NotKept(setting, _) = &applied {
            let setting = setting.to_string().into();
            self.tell(events, NodeEvent::GuardApplied { server: server.clone(), setting });
        }
        let (why, refused): (Arc<str>, bool) = match applied {
            Applied::Stands | Applied::Set(_) => {
                self.lock().refused.remove(&server);
                return;
            }
            Applied::NotKept(_, why) | Applied::Refused(why) => (why.into(), true),
            Applied::Later(why) => (format!("not reachable, done later: {why}").into(), false),
        };
        let before = self.lock().refused.insert(server.clone(), why.clone());
        if refused && before.as_ref() != Some(&why) {
            self.tell(events, NodeEvent::GuardRefused { server, why });
        }
    }

    fn tell(&self, events: &broadcast::Sender<NodeEvent>, event: NodeEvent) {
        event.log(&self.name);
        // Nobody listening is no fault.
        let _ = events.send(event);
    }

    fn lock(&self) -> MutexGuard<'_, Last> {
        // Nothing panics while it is held, and every value in it is whole at any time.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn guard_facts(server: &ServerFacts) -> GuardFacts {
    GuardFacts {
        good_replicas: server.good_replicas,
        connected_replicas: None,
        min_replicas: server.min_replicas,
        max_lag: server.min_replicas_max_lag.map(|s| Duration::from_secs(u64::from(s))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_servers_of_the_group_are_complained_of() {
        let judge = Judge::new("group".into(), GuardRule::default());
        let events = broadcast::Sender::new(8);
        for at in ["a:1", "b:2", "c:3"] {
            judge.note(at, Applied::Refused("NOPERM".into()), &events);
        }
        judge.lock().master = Some("a:1".into());
        let refused =
            || judge.last().refused.into_keys().map(|k| k.to_string()).collect::<Vec<_>>();
        judge.lock().forget_all_but(&[]);
        assert_eq!(refused(), ["a:1", "b:2", "c:3"]);
        judge.lock().forget_all_but(&["c:3".to_owned(), "d:4".to_owned()]);
        assert_eq!(refused(), ["a:1", "c:3"]);
    }
}
