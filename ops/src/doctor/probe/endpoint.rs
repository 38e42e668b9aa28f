//! One node of the deployment: finds its server, tries all features there, and judges each.

use std::sync::Arc;
use std::time::Duration;

use super::super::super::deployment::Access;
use super::super::super::facts::Fields;
use super::super::super::gather::conn::{info, raw};
use super::super::super::masters::{Absent, find_with};
use super::super::super::{Deployment, gather::conn::fields};
use super::super::checks::servers::rule;
use super::door::{self, Door, Said, Tried};
use super::report::{
    Ability, CLEANING, CONNECTION, DURABILITY, ELECTION, EVICTION, Feature, HANDOVER, HISTORY,
    KEYS, Kind, LOCKS, MIN_REPLICAS, OPERATOR, SCRIPTS, SENTINEL, SERVER, SHARED, WAKING, WINDOW,
};
use super::trials::{self, Failure, Outcome, Trials};
use palisade::ConfigError;
use palisade::error::NodeFault;
use palisade::internal::{Endpoint, NodeUrl, objection, unsupported};
use palisade::node::spi::{Env as _, Facts, LockNode, SystemEnv};

pub(super) struct Node {
    subject: String,
    /// All addresses of the URL, for the service to which they belong.
    pub(super) hosts: String,
    url: String,
    /// `None` in a group: the address of a lone server may lead to a replica one day.
    window: Option<Duration>,
    allows_eviction: bool,
    /// The server, and the beginning of a command line to it.
    server: Option<(Endpoint, String)>,
    sentinel: Option<Feature>,
    voter: Arc<dyn LockNode>,
    trial: u64,
    within: Duration,
}

/// Groups first.
pub(super) async fn all(
    deployment: &Deployment,
    access: &Access,
) -> Result<Vec<Node>, ConfigError> {
    let within = deployment.within();
    let (mut groups, mut lone) = (Vec::new(), Vec::new());
    for node in deployment.nodes()? {
        let of = if matches!(node, NodeUrl::Group(_)) { &mut groups } else { &mut lone };
        let trial = SystemEnv.random() as u64;
        of.push((node.on_trial(trial).build()?, trial));
    }
    let found = if groups.is_empty() { vec![] } else { find_with(deployment, false).await?.1 };
    let groups = access.groups.iter().zip(found).zip(groups);
    let groups = groups.map(|((login, found), (voter, trial))| {
        let (server, sentinel) = match found.master {
            Ok(master) => {
                let (votes, known) = (master.sentinels.len(), master.known);
                let says = format!("{votes} of {known} say that {} is master", master.at);
                (Some((master.target, master.hand)), SENTINEL.works(says))
            }
            Err(Absent::Refused(why)) => (None, SENTINEL.cannot(why)),
            Err(Absent::Unreachable(why)) => (None, SENTINEL.unknown(why)),
        };
        Node {
            subject: login.name.clone(),
            hosts: login.sentinels.join(" "),
            url: login.url.clone(),
            window: None,
            allows_eviction: login.allows_eviction,
            server,
            sentinel: Some(sentinel),
            voter,
            trial,
            within,
        }
    });
    let lone = access.lone.iter().zip(lone).map(|(lone, (voter, trial))| Node {
        subject: lone.at.clone(),
        hosts: lone.at.clone(),
        url: lone.url.clone(),
        window: Some(lone.window),
        allows_eviction: lone.allows_eviction,
        server: Some((lone.target.clone(), lone.hand.clone())),
        sentinel: None,
        voter,
        trial,
        within,
    });
    Ok(groups.chain(lone).collect())
}

impl Node {
    pub(super) async fn probe(mut self) -> Vec<Feature> {
        let mut found: Vec<_> = self.sentinel.take().into_iter().collect();
        if let Some(target) = self.server.as_ref().map(|(target, _)| target) {
            let mut door = Door::new(target, self.within);
            match door.open().await {
                Said::Yes(_) => {
                    found.push(CONNECTION.works("logged in with RESP3"));
                    self.server(&mut door, target, &mut found).await;
                }
                Said::No { words, .. } => found.push(CONNECTION.cannot(words)),
                Said::Nothing(why) => found.push(CONNECTION.unknown(why)),
            }
        }
        let on = |f| Feature { subject: self.subject.clone(), ..f };
        found.into_iter().map(on).collect()
    }

    async fn server(&self, door: &mut Door<'_>, target: &Endpoint, found: &mut Vec<Feature>) {
        let text = match door.ask(&redis::cmd("INFO")).await {
            Said::Yes(value) => raw(&value).unwrap_or_default(),
            Said::No { lacks_right: true, words } => {
                let user = target.login().0.unwrap_or("default");
                let mend = self.by_hand(&format!("ACL SETUSER {user} +info"));
                return found.push(SERVER.with(words, vec![mend]));
            }
            Said::No { words, .. } => return found.push(SERVER.cannot(words)),
            Said::Nothing(why) => return found.push(SERVER.unknown(why)),
        };
        let info = info(&redis::Value::SimpleString(text.clone())).unwrap_or_default();
        let shows = |name: &str| info.get(name).map_or("", String::as_str);
        let role = format!("role:{}", shows("role"));
        let refused = unsupported(&text).map(|e| e.detail().to_owned());
        let clustered = Some(CLUSTER.to_owned()).filter(|_| shows("cluster_enabled") == "1");
        let replica = Some(role).filter(|role| role != "role:master");
        if let Some(why) = refused.or(clustered).or(replica) {
            return found.push(SERVER.cannot(why));
        }
        let tried = door.commands(self.trial).await;
        if let Some(words) = &door.elsewhere {
            found.push(SERVER.cannot(format!("{words}: {CLUSTER}")));
        } else {
            let version = ["valkey_version", "redis_version"].map(shows);
            let version = version.iter().find(|version| !version.is_empty()).unwrap_or(&"?");
            found.push(SERVER.works(format!("version {version}, a master, no cluster")));
            self.features(target, door, &info, &text, &tried, found).await;
        }
        found.extend(self.cleaned(door).await);
    }

    async fn features(
        &self,
        target: &Endpoint,
        door: &mut Door<'_>,
        info: &Fields,
        text: &str,
        tried: &[Tried],
        found: &mut Vec<Feature>,
    ) {
        let replicas = info.get("connected_slaves").and_then(|n| n.parse().ok()).unwrap_or(0_u32);
        let user = target.login().0.unwrap_or("default");
        let judge = |kind, outcome| self.judged(kind, tried, outcome, user);
        let ran = tried.iter().filter(|t| t.in_script && t.is_of(SCRIPTS)).count();
        found.push(judge(SCRIPTS, Ok(format!("{ran} commands ran in a script"))));
        let (trials, facts) = Trials::new(Arc::clone(&self.voter), self.trial, self.within).await;
        found.push(judge(HISTORY, history(facts, tried, info)));
        let locks = trials.locks().await;
        found.push(judge(LOCKS, locks.clone()));
        found.push(judge(KEYS, trials.keys().await));
        found.push(judge(ELECTION, trials.election().await));
        found.push(judge(SHARED, trials.shared().await));
        found.push(judge(WAKING, trials.waking().await));
        found.push(judge(DURABILITY, confirmed(door, self.trial, replicas).await));
        let is_tried = tried.iter().any(|t| t.is_of(HANDOVER));
        let undeclared = if is_tried { Ok(String::new()) } else { locks };
        let undeclared = undeclared.map(|_| "keys that the script does not declare".to_owned());
        found.push(judge(HANDOVER, undeclared));
        found.push(self.eviction(info, text));
        found.push(self.min_replicas(tried, replicas));
        found.extend(self.window.map(|window| self.failover_window(window, replicas)));
        let operator = judge(OPERATOR, Ok("EVAL, SCAN and ROLE, too".to_owned()));
        let login = "ACL SETUSER operator on '>PASSWORD' '~*' '&*' +@all";
        found.push(match operator.verdict {
            Ability::WorksWith => Feature { fix: vec![self.by_hand(login)], ..operator },
            _ => operator,
        });
    }

    fn by_hand(&self, command: &str) -> String {
        let hand = self.server.as_ref().map_or("redis-cli", |(_, hand)| hand);
        format!("{hand} {command}")
    }

    fn judged(&self, kind: Kind, tried: &[Tried], outcome: Outcome, user: &str) -> Feature {
        let of = |kind| tried.iter().filter(move |t| t.is_of(kind));
        let no = |t: &&Tried| matches!(t.said, Said::No { .. });
        let lacks = |t: &&Tried| matches!(t.said, Said::No { lacks_right: true, .. });
        // Each feature needs the commands of all scripts, too.
        let rules = of(kind).chain(of(SCRIPTS)).filter(lacks);
        let mut rules: Vec<_> = rules.filter_map(|t| Some(rule(&t.command, &t.words()?))).collect();
        rules.sort();
        rules.dedup();
        let mend = self.by_hand(&format!("ACL SETUSER {user} {}", rules.join(" ")));
        let words = |kind| {
            let mut all: Vec<_> = of(kind).filter_map(Tried::words).collect();
            let others = all.len().saturating_sub(2);
            all.truncate(2);
            all.extend((others > 0).then(|| format!("{others} more")));
            Some(all.join("; ")).filter(|words| !words.is_empty())
        };
        let silent = of(kind).find_map(|t| match &t.said {
            Said::Nothing(why) => Some(format!("{}: {why}", t.command)),
            _ => None,
        });
        let own = words(kind);
        if let Some(own) = own.as_ref().filter(|_| of(kind).any(|t| no(&t) && !lacks(&t))) {
            return kind.cannot(own);
        }
        match (outcome, silent) {
            (Err(Failure::Refused(why)), _) => kind.cannot(words(SCRIPTS).unwrap_or(why)),
            (Err(Failure::LacksRight(why)), _) if rules.is_empty() => kind.cannot(why),
            (Err(Failure::LacksRight(why)), _) => {
                kind.with(own.or_else(|| words(SCRIPTS)).unwrap_or(why), vec![mend])
            }
            _ if own.is_some() => kind.with(own.unwrap_or_default(), vec![mend]),
            (_, Some(why)) | (Err(Failure::Unknown(why)), _) => kind.unknown(why),
            (Ok(done), None) => kind.works(done),
        }
    }

    fn eviction(&self, info: &Fields, text: &str) -> Feature {
        let policy =
            info.get("maxmemory_policy").map(|policy| format!("maxmemory_policy:{policy}"));
        match (objection(text, false).map(|e| e.fault()), policy) {
            (_, None) => EVICTION.unknown("INFO shows no maxmemory_policy"),
            (Some(NodeFault::Eviction), Some(policy)) if self.allows_eviction => {
                EVICTION.works(format!("{policy}, which the address accepts"))
            }
            (Some(NodeFault::Eviction), Some(policy)) => {
                let set = self.by_hand("CONFIG SET maxmemory-policy noeviction");
                EVICTION.with(policy, vec![set])
            }
            (_, Some(policy)) => {
                let max = info.get("maxmemory").map_or("?", String::as_str);
                EVICTION.works(format!("{policy}, maxmemory:{max}"))
            }
        }
    }

    fn min_replicas(&self, tried: &[Tried], replicas: u32) -> Feature {
        let Some(config) = tried.iter().find(|t| t.is_of(MIN_REPLICAS)) else {
            return MIN_REPLICAS.unknown("not tried");
        };
        let needs = self.window.is_none() || replicas > 0;
        match (&config.said, config.words()) {
            (Said::Nothing(why), _) => MIN_REPLICAS.unknown(why),
            (_, Some(words)) if needs => MIN_REPLICAS.with(words, vec![self.option("max_lag=10s")]),
            (_, Some(said)) => Feature { said, ..MIN_REPLICAS.works("not read; no replica") },
            (Said::Yes(value), _) => {
                let all = fields(value).unwrap_or_default();
                let number = |name| all.get(name).map_or("?", String::as_str);
                let (min, lag) = (number("min-replicas-to-write"), number("min-replicas-max-lag"));
                let shown = format!("min-replicas-to-write {min}, min-replicas-max-lag {lag}");
                if needs && min == "0" {
                    let set = self.by_hand("CONFIG SET min-replicas-to-write 1");
                    MIN_REPLICAS.with(shown, vec![set])
                } else {
                    MIN_REPLICAS.works(shown)
                }
            }
            (Said::No { .. }, None) => MIN_REPLICAS.unknown("not tried"),
        }
    }

    fn failover_window(&self, window: Duration, replicas: u32) -> Feature {
        if replicas > 0 && window.is_zero() {
            let said = format!("connected_slaves:{replicas}");
            return WINDOW.with(said, vec![self.option("failover_window=12s")]);
        }
        WINDOW.works(format!("{} s, {replicas} replicas", window.as_secs()))
    }

    fn option(&self, option: &str) -> String {
        let mark = if self.url.contains('?') { '&' } else { '?' };
        format!("palisade doctor --node '{}{mark}{option}'", self.url)
    }

    /// `None` if no key is left.
    async fn cleaned(&self, door: &mut Door<'_>) -> Option<Feature> {
        let keys: Vec<_> = door::keys(self.trial).chain(trials::keys(self.trial)).collect();
        door.reopen();
        let delete = redis::cmd("DEL").arg(&keys).take();
        let why = match door.ask(&delete).await {
            Said::Yes(_) => return None,
            Said::No { words, .. } => words,
            Said::Nothing(why) => why,
        };
        // Without the right to delete.
        let mut left = Vec::new();
        for key in keys {
            let end = redis::cmd("SET").arg(&key).arg("").arg("PX").arg(1).take();
            if !matches!(door.ask(&end).await, Said::Yes(_)) {
                left.push(key);
            }
        }
        let delete = self.by_hand(&format!("DEL {}", left.join(" ")));
        (!left.is_empty()).then(|| Feature { fix: vec![delete], ..CLEANING.unknown(why) })
    }
}

const CLUSTER: &str = "a server of a Redis Cluster cannot be a node; use standalone servers or \
                       Sentinel groups";

/// Both the script and the node's own connection have to show the process that answers INFO.
fn history(facts: Result<Facts, Failure>, tried: &[Tried], info: &Fields) -> Outcome {
    let facts = facts?;
    let shown = |command: &str| {
        let of = tried.iter().find(|t| t.in_script && t.command == command);
        of.and_then(|t| if let Said::Yes(value) = &t.said { raw(value) } else { None })
    };
    for (command, field) in [
        ("INFO server", "run_id:"),
        ("INFO replication", "master_replid:"),
        ("INFO stats", "evicted_keys:"),
    ] {
        if shown(command).is_some_and(|text| !text.contains(field)) {
            return Err(Failure::Refused(format!("{command} in a script shows no {field}")));
        }
    }
    let run = info.get("run_id").map_or("", String::as_str);
    if run != &*facts.identity {
        let why = format!("two connections reached two servers: {run} and {}", facts.identity);
        return Err(Failure::Refused(why));
    }
    Ok("run id, replication id and evictions, shown in the script".to_owned())
}

async fn confirmed(door: &mut Door<'_>, trial: u64, replicas: u32) -> Outcome {
    if replicas == 0 {
        let why = "WAIT answers, but there is no replica to try it with";
        return Err(Failure::Unknown(why.to_owned()));
    }
    let key = door::keys(trial).next().unwrap_or_default();
    let write = redis::cmd("SET").arg(key).arg("").arg("PX").arg(1_000).take();
    door.ask(&write).await;
    let wait = redis::cmd("WAIT").arg(1).arg(500).take();
    match door.ask(&wait).await {
        Said::Yes(redis::Value::Int(have)) if have > 0 => {
            Ok(format!("{have} of {replicas} replicas confirmed a write"))
        }
        Said::Yes(_) => Err(Failure::Refused("no replica confirmed a write in 500 ms".to_owned())),
        // As the trial of the command says.
        Said::No { words, .. } | Said::Nothing(words) => Err(Failure::Unknown(words)),
    }
}
