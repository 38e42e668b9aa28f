//! What a server reports about itself: process, data history, replicas and settings. Read on each
//! new connection, and again while it is used.

use std::sync::Arc;

use redis::{RedisError, Value};

use super::faults;
use super::news::{Look, look_at_data};
use crate::dial::endpoint::Endpoint;
use crate::dial::wire::Wire;
use crate::env::Env;
use crate::error::{NodeError, NodeFault};
use crate::safe_text::Secrets;
use crate::sentinel::conn::fields;

/// Before 6.2.7 a server does not apply `min-replicas-to-write` to scripts, so a master that lost
/// its replicas would still grant.
const OLDEST: Version = (6, 2, 7);

pub(crate) type Version = (u32, u32, u32);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerFacts {
    pub(crate) run_id: Arc<str>,
    pub(crate) replid: String,
    /// A Valkey server reports the Redis version with which it is compatible.
    pub(crate) version: Version,
    pub(crate) connected_replicas: u32,
    /// They receive each write. A backup tool that only takes a snapshot has another state.
    pub(crate) online_replicas: u32,
    /// `min_slaves_good_slaves`; `None` if the min-replicas check is off.
    pub(crate) good_replicas: Option<u32>,
    /// `None` if it was not requested or the user may not read CONFIG.
    pub(crate) min_replicas: Option<u32>,
    /// In seconds; `None` if it was not requested or the user may not read CONFIG.
    pub(crate) min_replicas_max_lag: Option<u32>,
    /// `None` if the server never deletes keys because its memory is full.
    pub(crate) eviction: Option<Eviction>,
    /// Of a server of a cluster.
    pub(crate) cluster_id: Option<Arc<str>>,
}

/// What a node has to know of its servers, and of which kind they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wants {
    pub(crate) min_replicas: bool,
    pub(crate) cluster: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Eviction {
    /// In bytes; not zero.
    pub(crate) max_memory: u64,
    /// Not `noeviction`.
    pub(crate) policy: String,
}

impl Eviction {
    pub(crate) fn objection(&self) -> NodeError {
        let Self { max_memory, policy } = self;
        let detail = format!(
            "maxmemory is {max_memory} bytes and the policy {policy}; \
             `CONFIG SET maxmemory-policy noeviction`, use a server of its own for locks, or \
             accept it by `allow_eviction(true)`"
        );
        NodeError::not_executed(NodeFault::Eviction, detail)
    }
}

/// Neither as a master nor after a promotion. `allow_eviction`: the server may delete keys when its
/// memory is full.
pub(crate) fn objection(info: &str, allow_eviction: bool) -> Option<NodeError> {
    let secrets = Secrets::default();
    let evicts = || match eviction(info, &secrets) {
        Ok(eviction) => eviction.filter(|_| !allow_eviction).map(|e| e.objection()),
        Err(e) => Some(e),
    };
    kind_and_version(info, &secrets).err().or_else(evicts)
}

/// Logs in, and reads what a new connection has to know of the server and of its data, in one round
/// trip. A server that lacks the script gets it in a second one.
pub(super) async fn introduce(
    wire: &Wire,
    at: &Endpoint,
    wants: Wants,
    env: &Arc<dyn Env>,
) -> Result<(ServerFacts, Option<Look>), NodeError> {
    let secrets = at.secrets();
    let hello = wire.ask(&[at.hello()]);
    let settled = wire.ask(&at.settle_in());
    let facts = look(wire, at, wants);
    let data = (!wants.cluster).then(|| look_at_data(wire, env));
    // All requests are already sent; the first refusal is the cause.
    first(hello.await).map_err(|e| faults::opening(&at.blamed(e), at.is_tls(), &secrets))?;
    let connecting = |e| faults::connecting(&e, &secrets);
    // The first two are for the client's name and version, which a server may refuse. The choice of
    // the database must succeed.
    for database in settled.await.map_err(connecting)?.into_iter().skip(2) {
        database.extract_error().map_err(connecting)?;
    }
    let facts = facts.await?;
    let data = match data {
        Some(data) => data.await.map_err(connecting)?,
        None => return Ok((facts, None)),
    };
    match wire.refused_script().filter(|_| data.is_none()) {
        Some(refused) => Err(connecting(refused)),
        None => Ok((facts, data)),
    }
}

/// In one round trip, because the facts can change during a connection.
pub(super) fn look(
    wire: &Wire,
    at: &Endpoint,
    wants: Wants,
) -> impl Future<Output = Result<ServerFacts, NodeError>> + use<> {
    let mut commands: Vec<_> = ["server", "replication", "memory"]
        .map(|section| redis::cmd("INFO").arg(section).take())
        .into();
    if wants.min_replicas {
        commands.push(redis::cmd("CONFIG").arg("GET").arg("min-replicas-*").take());
    }
    if wants.cluster {
        commands.push(redis::cmd("CLUSTER").arg("MYID").take());
    }
    let (answers, at) = (wire.ask(&commands), at.clone());
    async move {
        let secrets = at.secrets();
        let answers = answers.await.map_err(|e| faults::connecting(&e, &secrets))?;
        let answer = |value: Value| value.extract_error().map_err(|e| at.blamed(e));
        let mut answers = answers.into_iter().map(answer);
        let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
        let mut word = || text(next(), &secrets);
        let (server, replication, memory) = (word()?, word()?, word()?);
        let config = wants.min_replicas.then(&mut next).and_then(Result::ok);
        let id = wants.cluster.then(|| text(next(), &secrets)).transpose()?;
        let all = [&*server, &replication, &memory];
        let facts = read(all, config.as_ref(), (wants.cluster, &secrets))?;
        Ok(ServerFacts { cluster_id: id.map(Into::into), ..facts })
    }
}

fn first(answers: Result<Vec<Value>, RedisError>) -> Result<Value, RedisError> {
    answers?.into_iter().next().unwrap_or(Value::Nil).extract_error()
}

fn read(
    [server, replication, memory]: [&str; 3],
    config: Option<&Value>,
    (in_cluster, secrets): (bool, &Secrets),
) -> Result<ServerFacts, NodeError> {
    let version = if in_cluster {
        version_in_cluster(server, secrets)?
    } else {
        kind_and_version(server, secrets)?
    };
    if field(replication, "role") != Some("master") {
        let role = secrets.clean(field(replication, "role").unwrap_or("none"));
        let detail = format!("INFO replication says role:{role}");
        return Err(NodeError::not_executed(NodeFault::NotMaster, detail));
    }
    let run_id = field(server, "run_id").filter(|id| is_word(id));
    let replid = field(replication, "master_replid").filter(|id| is_history(id));
    let (Some(run_id), Some(replid)) = (run_id, replid) else {
        return Err(garbage("INFO lacks run_id or replid"));
    };
    let settings = config
        .map(|c| fields(c).ok_or_else(|| garbage("CONFIG GET is no list of settings")))
        .transpose()?
        .unwrap_or_default();
    let setting = |name| {
        let number = settings.get(name).map(|n: &String| n.parse::<u32>()).transpose();
        number.map_err(|_| garbage("CONFIG GET shows no number"))
    };
    Ok(ServerFacts {
        run_id: run_id.into(),
        replid: replid.to_owned(),
        version,
        connected_replicas: field(replication, "connected_slaves")
            .and_then(|n| n.parse().ok())
            .unwrap_or(0),
        online_replicas: online(replication),
        good_replicas: field(replication, "min_slaves_good_slaves").and_then(|n| n.parse().ok()),
        min_replicas: setting("min-replicas-to-write")?,
        min_replicas_max_lag: setting("min-replicas-max-lag")?,
        eviction: eviction(memory, secrets)?,
        cluster_id: None,
    })
}

/// `None` if the server does not delete keys when its memory is full, or reports no policy.
fn eviction(memory: &str, secrets: &Secrets) -> Result<Option<Eviction>, NodeError> {
    let max = field(memory, "maxmemory").map(str::parse::<u64>).transpose();
    let max = max.map_err(|_| garbage("INFO memory shows no number for maxmemory"))?;
    let (Some(max_memory), Some(policy)) = (max, field(memory, "maxmemory_policy")) else {
        return Ok(None);
    };
    if max_memory == 0 || policy == "noeviction" {
        return Ok(None);
    }
    if policy.len() > 32 || !is_word(policy) {
        return Err(garbage("INFO memory shows no maxmemory_policy that is known"));
    }
    Ok(Some(Eviction { max_memory, policy: secrets.clean(policy) }))
}

fn garbage(what: &'static str) -> NodeError {
    NodeError::not_executed(NodeFault::Protocol, what)
}

pub(super) fn online(replication: &str) -> u32 {
    let replicas = replication.lines().filter(|line| line.starts_with("slave"));
    u32::try_from(replicas.filter(|line| line.contains(",state=online,")).count()).unwrap_or(0)
}

fn is_word(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic())
}

/// 40 hexadecimal digits, as the script accepts.
pub(super) fn is_history(id: &str) -> bool {
    id.len() == 40 && id.bytes().all(|b| b.is_ascii_hexdigit())
}

pub(crate) fn kind_and_version(server: &str, secrets: &Secrets) -> Result<Version, NodeError> {
    // Valkey uses the field name `server_mode`.
    match field(server, "redis_mode").or_else(|| field(server, "server_mode")) {
        Some("sentinel") => {
            let detail = "this is a Sentinel; name it to SentinelNode, not to RedisNode";
            return Err(unsupported(detail.to_owned()));
        }
        Some("cluster") => {
            let detail = "one server of a Redis Cluster cannot be a node; use standalone servers, \
                          Sentinel groups, or the whole cluster (cluster://host:port,…)";
            return Err(unsupported(detail.to_owned()));
        }
        _ => {}
    }
    version(server, secrets)
}

fn version_in_cluster(server: &str, secrets: &Secrets) -> Result<Version, NodeError> {
    let mode = field(server, "redis_mode").or_else(|| field(server, "server_mode"));
    if mode != Some("cluster") {
        let detail = "this server is of no cluster (cluster-enabled); name it by redis://";
        return Err(unsupported(detail.to_owned()));
    }
    version(server, secrets)
}

fn unsupported(detail: String) -> NodeError {
    NodeError::not_executed(NodeFault::Unsupported, detail)
}

fn version(server: &str, secrets: &Secrets) -> Result<Version, NodeError> {
    // Valkey reports in this field the Redis version with which it is compatible: 7.2.4.
    let words = field(server, "redis_version").unwrap_or_default();
    let mut parts = words.split('.').map_while(|p| p.parse::<u32>().ok());
    let mut next = || parts.next().unwrap_or(0);
    let version = (next(), next(), next());
    if version < OLDEST {
        let shown = secrets.clean(words);
        return Err(unsupported(format!(
            "server version \"{shown}\"; at least 6.2.7 is needed, for older ones write inside \
             scripts also without their replicas (min-replicas-to-write); update the server"
        )));
    }
    Ok(version)
}

fn text(answer: Result<Value, RedisError>, secrets: &Secrets) -> Result<String, NodeError> {
    let value = answer.map_err(|e| faults::connecting(&e, secrets))?;
    redis::from_redis_value(value).map_err(|e| faults::connecting(&e.into(), secrets))
}

pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_serve_says_why() {
        let e = |info: &str| kind_and_version(info, &Secrets::default()).unwrap_err();
        for name in ["redis_mode", "server_mode"] {
            assert!(e(&format!("{name}:sentinel\r\n")).detail().contains("SentinelNode"));
            assert!(e(&format!("{name}:cluster\r\n")).detail().contains("Cluster"));
        }
        assert!(e("redis_version:6.0.16\r\nredis_mode:standalone\r\n").detail().contains("6.2.7"));
        assert!(e("").detail().contains("6.2.7"));
        assert_eq!(
            kind_and_version("redis_version:7.0.15\r\n", &Secrets::default()).unwrap(),
            (7, 0, 15)
        );
    }

    #[test]
    fn servers_that_write_in_scripts_without_their_replicas_are_refused() {
        for version in ["6.2.0", "6.2.6", "6.2"] {
            let e = kind_and_version(&format!("redis_version:{version}\r\n"), &Secrets::default())
                .unwrap_err();
            assert_eq!(e.fault(), NodeFault::Unsupported);
            for words in [&format!("{version:?}"), "6.2.7", "update the server"] {
                assert!(e.detail().contains(words), "{words} in {e}");
            }
        }
        for version in ["6.2.7", "6.2.14", "7.0.0", "7.2.4", "8.0.0-rc1"] {
            kind_and_version(&format!("redis_version:{version}\r\n"), &Secrets::default()).unwrap();
        }
    }

    #[test]
    fn only_a_server_that_deletes_keys_evicts() {
        let of = |max: &str, policy: &str| {
            eviction(
                &format!("maxmemory:{max}\r\nmaxmemory_policy:{policy}\r\n"),
                &Secrets::default(),
            )
        };
        assert_eq!(of("0", "allkeys-lru"), Ok(None));
        assert_eq!(of("3145728", "noeviction"), Ok(None));
        let e = of("3145728", "volatile-lru").unwrap().unwrap().objection();
        for words in ["3145728", "volatile-lru", "CONFIG SET maxmemory-policy noeviction"] {
            assert!(e.detail().contains(words), "{words} in {e}");
        }
        assert!(of("many", "allkeys-lru").is_err());
        assert!(of("1", "two words").is_err());
        assert_eq!(
            eviction("used_memory:1\r\n", &Secrets::default()),
            Ok(None),
            "a server without the field is not refused"
        );
    }
}
