//! Checks the min-replicas settings of a node's servers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::broadcast;

use super::min_replicas_rule::{LAG_SLACK, MinReplicas, MinReplicasFacts, MinReplicasRule};
use super::redis::encode::GroupTerms;
use super::redis::facts::ServerFacts;
use super::redis::read_max_lag::max_lag_at;
use super::{NodeEvent, NodeSignal};
use crate::dial::endpoint::Endpoint;
use crate::error::{Commands, NodeError, NodeFault};
use crate::sync::SyncMutex;
use crate::time::Moment;

const READ: Duration = Duration::from_secs(1);
const READ_EVERY: Duration = Duration::from_secs(60);

pub(crate) struct Judge {
    name: Arc<str>,
    rule: MinReplicasRule,
    last: SyncMutex<Last>,
}

#[derive(Clone, Default)]
pub(crate) struct Last {
    pub(crate) facts: Option<MinReplicasFacts>,
    pub(crate) window: Option<Duration>,
    pub(crate) error: Option<NodeError>,
    master: Option<String>,
    lags: BTreeMap<String, (Option<Duration>, Moment)>,
    lags_known: bool,
    wrong: Option<String>,
    advised: Option<String>,
}

impl Last {
    fn change(&mut self, wrong: Option<String>) -> Option<NodeEvent> {
        if self.wrong == wrong {
            return None;
        }
        self.wrong.clone_from(&wrong);
        Some(match wrong {
            Some(why) => NodeEvent::MinReplicasMissing { why: why.into() },
            None => NodeEvent::MinReplicasRestored,
        })
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Group {
    pub(crate) down_after: Option<Duration>,
    pub(crate) replicas: Option<u32>,
}

impl Judge {
    pub(crate) fn new(name: Arc<str>, rule: MinReplicasRule) -> Self {
        Self { name, rule, last: SyncMutex::default() }
    }

    pub(crate) fn rule(&self) -> &MinReplicasRule {
        &self.rule
    }

    pub(crate) fn last(&self) -> Last {
        self.last.lock().clone()
    }

    /// Any server may have been the previous master, so L is the largest of all.
    pub(crate) fn group_terms(&self) -> GroupTerms {
        let last = self.last.lock();
        // A master whose lag is above `max_lag` has no vote here, so no L is longer than `longest`.
        let longest = self.rule.max_lag + LAG_SLACK;
        let own = last.window.unwrap_or(self.rule.unread());
        let read = last.lags.values().filter_map(|(lag, _)| *lag);
        let known = self.rule.group_window(own, read);
        let all_read = last.lags_known && last.lags.values().all(|(lag, _)| lag.is_some());
        let unread = if all_read { known } else { known.max(longest) };
        GroupTerms {
            failover_window: known,
            unread_window: unread,
            widest_window: known.max(longest),
            trust_fresh: false,
            allow_eviction: false,
            durable: false,
            trial: None,
            named: None,
            slot: None,
            good_replicas: good_replicas(&self.rule, last.facts.as_ref()),
        }
    }

    pub(crate) fn accept(
        &self,
        at: &str,
        server: &ServerFacts,
        (group, now): (Group, Moment),
        events: &broadcast::Sender<NodeSignal>,
    ) -> Result<(), NodeError> {
        let facts = min_replicas_facts(server);
        let verdict = self.rule.judge(&facts, group.down_after, group.replicas);
        let wrong = self.rule.wrong(&facts, group.down_after);
        let mut last = self.last.lock();
        let reported = last.change(wrong);
        let advice = verdict.warning.filter(|_| last.wrong.is_none());
        if advice.is_some() && advice != last.advised {
            tracing::warn!(node = %self.name, "{}", advice.as_deref().unwrap_or_default());
        }
        last.advised = advice;
        last.master = Some(at.to_owned());
        if let Some(lag) = facts.max_lag {
            // Needed after this master is replaced, when it may be down and unreadable.
            last.lags.insert(at.to_owned(), (Some(lag), now));
        }
        last.facts = Some(facts);
        last.window = Some(verdict.window);
        last.error =
            verdict.fault.map(|text| NodeError::not_executed(NodeFault::MinReplicasMissing, text));
        let error = last.error.clone();
        drop(last);
        if let Some(event) = reported {
            self.tell(events, event);
        }
        error.map_or(Ok(()), Err)
    }

    pub(crate) async fn read_others(&self, servers: &[Endpoint], now: Moment) {
        // No Sentinel has answered.
        if servers.is_empty() {
            return;
        }
        let names: Vec<String> = servers.iter().map(ToString::to_string).collect();
        let mut reads = FuturesUnordered::new();
        {
            let mut last = self.last.lock();
            let master = last.master.clone();
            last.lags.retain(|at, _| names.contains(at) || master.as_ref() == Some(at));
            for (endpoint, at) in servers.iter().zip(names) {
                let (lag, read) = last.lags.entry(at.clone()).or_insert((None, now));
                if lag.is_none() || now.since(*read) >= READ_EVERY {
                    reads.push(async move { (at, max_lag_at(endpoint, READ).await) });
                }
            }
            last.lags_known = true;
        }
        while let Some((at, lag)) = reads.next().await {
            let mut last = self.last.lock();
            let known = last.lags.get(&at).and_then(|(lag, _)| *lag);
            last.lags.insert(at, (lag.or(known), now));
        }
    }

    fn tell(&self, events: &broadcast::Sender<NodeSignal>, event: NodeEvent) {
        event.log(&self.name, &Commands::default());
        let _ = events.send(event.into());
    }
}

fn min_replicas_facts(server: &ServerFacts) -> MinReplicasFacts {
    MinReplicasFacts {
        good_replicas: server.good_replicas,
        connected_replicas: None,
        min_replicas: server.min_replicas,
        max_lag: server.min_replicas_max_lag.map(|s| Duration::from_secs(u64::from(s))),
    }
}

/// With the largest age of an acknowledgement, in seconds. `(0, 0)` if the check is off.
fn good_replicas(rule: &MinReplicasRule, facts: Option<&MinReplicasFacts>) -> (u32, u64) {
    let Some(facts) = facts.filter(|facts| facts.is_on()) else { return (0, 0) };
    let asked = match rule.policy {
        MinReplicas::Require => rule.replicas,
        MinReplicas::Warn | MinReplicas::Off => 0,
    };
    let lag = facts.max_lag.unwrap_or(rule.max_lag);
    (facts.min_replicas.unwrap_or(asked), lag.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::event::tests::Log;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn judge(lags: &[(&str, Option<u64>)]) -> Judge {
        let rule = MinReplicasRule { max_lag: S(5), ..MinReplicasRule::default() };
        let judge = Judge::new("group".into(), rule);
        let mut last = judge.last.lock();
        last.window = Some(S(3));
        let lag =
            |(at, lag): &(&str, Option<u64>)| ((*at).to_owned(), (lag.map(S), Moment::default()));
        last.lags = lags.iter().map(lag).collect();
        last.lags_known = !lags.is_empty();
        drop(last);
        judge
    }

    fn master() -> ServerFacts {
        ServerFacts {
            run_id: "run".into(),
            replid: "0".repeat(40),
            version: (7, 0, 0),
            connected_replicas: 1,
            online_replicas: 1,
            good_replicas: Some(1),
            min_replicas: Some(1),
            min_replicas_max_lag: Some(2),
            eviction: None,
            cluster_id: None,
        }
    }

    #[test]
    fn the_largest_lag_of_any_server_of_the_group_counts() {
        let windows = |lags| {
            let group_terms = judge(lags).group_terms();
            (group_terms.failover_window.as_secs(), group_terms.unread_window.as_secs())
        };
        assert_eq!(windows(&[]), (3, 7), "no server has named the others yet");
        assert_eq!(windows(&[("a:1", Some(1)), ("b:1", Some(2))]), (4, 4));
        assert_eq!(windows(&[("a:1", Some(2)), ("b:1", None)]), (4, 7));
        assert_eq!(windows(&[("a:1", Some(60))]), (7, 7), "with that lag it was never let vote");
    }

    #[tokio::test]
    async fn what_the_master_said_is_known_when_it_is_down() {
        let judge = judge(&[("b:1", Some(2))]);
        let (events, _heard) = broadcast::channel(4);
        // A frozen server accepts connections and never answers.
        let frozen = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = frozen.local_addr().unwrap().to_string();
        let then = Moment::default() + S(1_000);
        judge.accept(&at, &master(), (Group::default(), then), &events).unwrap();
        let endpoint = Endpoint::parse(&format!("redis://{at}")).unwrap();
        judge.last.lock().master = None;
        for (now, asked) in [(then + READ_EVERY - S(1), false), (then + READ_EVERY, true)] {
            judge.read_others(std::slice::from_ref(&endpoint), now).await;
            let came = tokio::time::timeout(Duration::from_millis(100), frozen.accept()).await;
            assert_eq!(came.is_ok(), asked, "a lag that was read a moment ago is not read again");
            let group_terms = judge.group_terms();
            assert_eq!((group_terms.failover_window, group_terms.unread_window), (S(4), S(4)));
        }
    }

    #[test]
    fn advice_is_logged_once_and_again_after_a_change() {
        let judge = judge(&[]);
        let (events, _heard) = broadcast::channel(4);
        let log = Log::default();
        log.capture(|| {
            for (replicas, logged, advised) in [(1, 0, 1), (3, 1, 2), (5, 2, 3), (3, 3, 2)] {
                for _ in 0..3 {
                    let group = Group { down_after: None, replicas: Some(replicas) };
                    judge.accept("a:1", &master(), (group, Moment::default()), &events).unwrap();
                }
                let text = log.text();
                let lines: Vec<&str> = text.lines().filter(|line| line.contains("WARN")).collect();
                assert_eq!(lines.len(), logged, "{text}");
                let advice = format!("set it to {advised} to prevent that");
                assert!(lines.last().is_none_or(|line| line.contains(&advice)), "{text}");
            }
        });
    }

    #[test]
    fn replicas_are_counted_where_the_server_counts_them() {
        let rule = |policy| MinReplicasRule { policy, ..MinReplicasRule::default() };
        let facts = |replicas, lag: Option<u64>| MinReplicasFacts {
            good_replicas: Some(1),
            connected_replicas: None,
            min_replicas: replicas,
            max_lag: lag.map(S),
        };
        let (off, on) = (MinReplicasFacts::default(), facts(Some(2), Some(3)));
        let require = rule(MinReplicas::Require);
        assert_eq!(good_replicas(&require, None), (0, 0));
        assert_eq!(good_replicas(&require, Some(&off)), (0, 0));
        assert_eq!(good_replicas(&require, Some(&on)), (2, 3));
        assert_eq!(good_replicas(&require, Some(&facts(None, None))), (1, 10));
        assert_eq!(good_replicas(&rule(MinReplicas::Off), Some(&facts(None, None))), (0, 10));
        assert_eq!(good_replicas(&rule(MinReplicas::Warn), Some(&on)), (2, 3));
    }
}
