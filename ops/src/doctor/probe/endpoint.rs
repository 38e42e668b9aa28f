//! Finds the server of the node, tries all features there, and judges each.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::super::super::deployment::Access;
use super::super::super::facts::Fields;
use super::super::super::gather::conn::{info, raw};
use super::super::super::login::quoted;
use super::super::super::{Deployment, gather, masters};
use super::super::checks::servers::rule;
use super::door::{self, Door, Failure, Tried, met};
use super::report::{
    CLEANING, CONNECTION, DURABILITY, Feature, HANDOVER, HISTORY, KEYS, Kind, LOCKS, OPERATOR,
    SCRIPTS, SENTINEL, SERVER, SHARED, WAKING,
};
use super::trials::{self, Outcome, Trials};
use palisade::ConfigError;
use palisade::internal::{Endpoint, MARKER, NOTE, trial_key, unsupported};
use palisade::node::spi::{Env as _, Facts, LockNode, SystemEnv};

pub(super) struct Node {
    pub(super) subject: String,
    pub(super) url: String,
    /// The server, and the beginning of a command line to it.
    server: Option<(Endpoint, String)>,
    sentinel: Option<Feature>,
    voter: Arc<dyn LockNode>,
    trial: u64,
    within: Duration,
}

impl Node {
    pub(super) async fn find(
        deployment: &Deployment,
        access: &Access,
    ) -> Result<Self, ConfigError> {
        let several = || ConfigError::new("node", "several", "name the one node to probe");
        let (subject, url, server, sentinel) = match (&*access.lone, &*access.groups) {
            ([lone], []) => {
                let server = (lone.target.clone(), lone.hand.clone());
                (lone.at.clone(), lone.url.clone(), Some(server), None)
            }
            ([], [login]) => {
                let (groups, _) = gather::masters(deployment, access).await;
                let (server, sentinel) = match masters::named(&groups[0]) {
                    Ok(server) => {
                        let target = login.data.at(deployment.reach(&server.at));
                        let says = format!("a majority says that {} is master", server.at);
                        (Some((target, server.hand.clone())), SENTINEL.works(says))
                    }
                    Err(absent) => (None, SENTINEL.unknown(absent.why())),
                };
                (login.name.clone(), login.url.clone(), server, Some(sentinel))
            }
            _ => return Err(several()),
        };
        let trial = SystemEnv.random() as u64;
        let voter = deployment.nodes()?.pop().ok_or_else(several)?.on_trial(trial).build()?;
        Ok(Self { subject, url, server, sentinel, voter, trial, within: deployment.within() })
    }

    pub(super) async fn probe(&self, stop: impl Future<Output = ()>) -> Vec<Feature> {
        let mut found = Vec::from_iter(self.sentinel.clone());
        let Some((target, _)) = &self.server else { return found };
        let mut door = Door::new(target.clone(), self.within);
        if let Err(failure) = door.open().await {
            found.push(self.failed(CONNECTION, failure, ""));
        } else {
            found.push(CONNECTION.works("logged in with RESP3"));
            self.server(&mut door, &mut found, stop).await;
        }
        found
    }

    async fn server(
        &self,
        door: &mut Door,
        found: &mut Vec<Feature>,
        stop: impl Future<Output = ()>,
    ) {
        let text = match door.ask(&redis::cmd("INFO")).await {
            Ok(value) => raw(&value).unwrap_or_default(),
            Err(failure) => return found.push(self.failed(SERVER, failure, "+info")),
        };
        let info = info(&redis::Value::SimpleString(text.clone())).unwrap_or_default();
        let refused = unsupported(&text).map(|e| e.detail().to_owned());
        let clustered = Some(CLUSTER.to_owned()).filter(|_| shown(&info, "cluster_enabled") == "1");
        let role = format!("role:{}", shown(&info, "role"));
        let replica = Some(role).filter(|role| role != "role:master");
        if let Some(why) = refused.or(clustered).or(replica) {
            return found.push(SERVER.cannot(why));
        }
        tokio::select! {
            biased;
            () = stop => {}
            () = self.features(door, &info, found) => {}
        }
        found.extend(self.cleaned(door).await);
    }

    async fn features(&self, door: &mut Door, info: &Fields, found: &mut Vec<Feature>) {
        let tried = door.commands(self.trial).await;
        let moves = |words: &String| CLUSTER_CODES.iter().any(|code| words.contains(code));
        if let Some(words) = tried.iter().filter_map(Tried::words).find(moves) {
            return found.push(SERVER.cannot(format!("{words}: {CLUSTER}")));
        }
        let version = ["valkey_version", "redis_version"].map(|name| shown(info, name));
        let version = version.iter().find(|version| !version.is_empty()).unwrap_or(&"?");
        found.push(SERVER.works(format!("version {version}, a master, no cluster")));
        let judge = |kind, outcome| self.judged(kind, &tried, outcome);
        let ran = tried.iter().filter(|t| t.in_script && t.is_of(SCRIPTS)).count();
        found.push(judge(SCRIPTS, Ok(format!("{ran} commands ran in a script"))));
        let node = Arc::clone(&self.voter);
        let (mut trials, facts) = Trials::new(node, door, self.trial, self.within).await;
        found.push(judge(HISTORY, history(facts, trials.door, info).await));
        let locks = trials.locks().await;
        found.push(judge(LOCKS, locks.clone()));
        found.push(judge(KEYS, trials.keys().await));
        found.push(judge(SHARED, trials.shared().await));
        found.push(judge(WAKING, trials.waking().await));
        found.push(judge(DURABILITY, self.confirmed(door, info).await));
        let undeclared = locks.map(|_| "keys that the script does not declare".to_owned());
        found.push(judge(HANDOVER, undeclared));
        let mut operator = judge(OPERATOR, Ok("EVAL, SCAN and ROLE, too".to_owned()));
        let login = "ACL SETUSER operator on '>PASSWORD' '~*' '&*' +@all";
        operator.fix.iter_mut().for_each(|fix| *fix = self.by_hand(login));
        found.push(operator);
    }

    fn by_hand(&self, command: &str) -> String {
        let hand = self.server.as_ref().map_or("redis-cli", |(_, hand)| hand);
        format!("{hand} {command}")
    }

    fn failed(&self, kind: Kind, failure: Failure, rules: &str) -> Feature {
        let words = match failure {
            Failure::Refused(words) => return kind.cannot(words),
            Failure::LacksRight(words) if !rules.is_empty() => words,
            Failure::LacksRight(why) | Failure::Unknown(why) => return kind.unknown(why),
        };
        let user = self.server.as_ref().and_then(|(target, _)| target.login().0);
        let user = user.unwrap_or("default");
        let all = if user == "default" { "; a service may refuse it to each login" } else { "" };
        let allow = format!("ACL SETUSER {} {rules}", quoted(user));
        kind.with(format!("{words}{all}"), self.by_hand(&allow))
    }

    fn judged(&self, kind: Kind, tried: &[Tried], outcome: Outcome) -> Feature {
        let failure = match (met(tried, kind), outcome) {
            (None, Ok(done)) => return kind.works(done),
            (Some(failure), _) | (None, Err(failure @ Failure::Unknown(_))) => failure,
            (None, Err(failure)) => met(tried, SCRIPTS).unwrap_or(failure),
        };
        // Each feature needs the commands of all scripts, too.
        let lacking = tried.iter().filter(|t| t.is_of(kind) || t.is_of(SCRIPTS));
        let lacking = lacking.filter(|t| matches!(t.failure, Some(Failure::LacksRight(_))));
        let rules = lacking.filter_map(|t| Some(rule(t.command, &t.words()?)));
        let rules: BTreeSet<_> = rules.map(|rule| rule.replace("~*", "~palisade:*")).collect();
        self.failed(kind, failure, &Vec::from_iter(rules).join(" "))
    }

    async fn confirmed(&self, door: &mut Door, info: &Fields) -> Outcome {
        let unknown = |why: &str| Err(Failure::Unknown(why.to_owned()));
        let replicas = shown(info, "connected_slaves");
        if ["", "0"].contains(&replicas) {
            return unknown("WAIT answers, but there is no replica to try it with");
        }
        door.reopen();
        let key = door::keys(self.trial).next().unwrap_or_default();
        let write = redis::cmd("SET").arg(key).arg("").arg("PX").arg(door::LEFT_FOR).take();
        let millis = (self.within / 2).as_millis().min(500) as u64;
        if door.ask(&write).await.is_err() {
            return unknown("the write to wait for was refused");
        }
        match door.ask(redis::cmd("WAIT").arg(1).arg(millis)).await {
            Ok(redis::Value::Int(have)) if have > 0 => {
                Ok(format!("{have} of {replicas} replicas confirmed a write"))
            }
            _ => unknown(&format!("no replica confirmed a write in {millis} ms")),
        }
    }

    /// `None` if no key is left.
    async fn cleaned(&self, door: &mut Door) -> Option<Feature> {
        let keys: Vec<_> = door::keys(self.trial).chain(trials::keys(self.trial)).collect();
        door.reopen();
        let (Failure::LacksRight(why) | Failure::Refused(why) | Failure::Unknown(why)) =
            door.ask(redis::cmd("DEL").arg(&keys)).await.err()?;
        let lasting = [MARKER, NOTE].map(|key| quoted(&trial_key(self.trial, key)));
        Some(CLEANING.with(why, self.by_hand(&format!("DEL {}", lasting.join(" ")))))
    }
}

const CLUSTER: &str = "a server of a Redis Cluster cannot be a node; use standalone servers or \
                       Sentinel groups";
/// As they begin what a server of a cluster answers to a client that it sends elsewhere.
const CLUSTER_CODES: [&str; 3] = [": MOVED ", ": ASK ", ": CROSSSLOT "];

fn shown<'a>(info: &'a Fields, name: &str) -> &'a str {
    info.get(name).map_or("", String::as_str)
}

/// The node's own connection has to reach the process that answers INFO, unless the server was
/// restarted between both.
async fn history(facts: Result<Facts, Failure>, door: &mut Door, before: &Fields) -> Outcome {
    let facts = facts?;
    if shown(before, "run_id") != &*facts.identity {
        door.reopen();
        let now = door.ask(redis::cmd("INFO").arg("server")).await?;
        let now = info(&now).unwrap_or_default();
        let run = shown(&now, "run_id");
        if run != &*facts.identity {
            let why = format!("two connections reached two servers: {run} and {}", facts.identity);
            return Err(Failure::Unknown(why));
        }
    }
    Ok("run id, replication id and evictions, shown in the script".to_owned())
}
