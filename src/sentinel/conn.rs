//! One RESP3 connection to one Sentinel, for requests and events.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{AsyncConnectionConfig, ErrorKind, PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::time::timeout;

use super::discovery::{Answer, MasterFacts, Peer, SentinelReply, Trouble};
use super::events::EventCollector;
use crate::dial::Line;
use crate::dial::address::Address;
use crate::dial::endpoint::Endpoint;
use crate::dial::error_text::{error_text, refusal};
use crate::dial::login::NoCredentials;
use crate::safe_text::{Quoted, Secrets};
use crate::tls;

const CHANNELS: [&str; 8] = [
    "+switch-master",
    "+sdown",
    "-sdown",
    "+odown",
    "-odown",
    "+try-failover",
    "+failover-end",
    "+config-update-from",
];

/// Dropped after any time-out or error: a late answer could be mistaken for the next one.
pub(crate) struct SentinelConn {
    handle: Line,
    id: Option<Box<str>>,
}

pub(crate) enum Subscription {
    Events,
    PollOnly(String),
}

impl SentinelConn {
    /// `within` limits each answer; the caller has to limit the whole time.
    pub(crate) async fn open(
        at: &Address,
        name: &Arc<str>,
        like: &Endpoint,
        collector: Arc<EventCollector>,
        within: Duration,
    ) -> Result<(Self, Subscription), (Trouble, Box<str>)> {
        let ours = name.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(Some(within))
            .set_push_sender(move |push: PushInfo| {
                if let Some(at) = promotes(&push, &ours) {
                    // All Sentinels say it.
                    collector
                        .promoted
                        .send_if_modified(|last| last.replace(at.clone()) != Some(at));
                }
                if !collector.is_full() && concerns(&push, &ours) {
                    collector.record();
                }
                Ok::<(), std::convert::Infallible>(())
            });
        let endpoint = Endpoint::at(at.host(), at.port(), like);
        let mut handle = timeout(within, endpoint.dial_sentinel(config, within))
            .await
            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
            .map_err(|e| no_connection(&e, like.is_tls(), &like.secrets()))?;
        let subscription = match handle.subscribe(&CHANNELS[..]).await {
            Ok(()) => Subscription::Events,
            Err(e) if e.is_timeout() || e.is_io_error() => {
                return Err(trouble(&e, &handle.secrets()));
            }
            Err(e) => Subscription::PollOnly(error_text(&e, &handle.secrets())),
        };
        let id = redis::cmd("SENTINEL").arg("MYID").query_async(&mut *handle).await;
        let id = own_id(id, &handle.secrets())?;
        Ok((Self { handle, id }, subscription))
    }

    pub(crate) async fn ask(&mut self, from: &Address, name: &str) -> Answer {
        // The facts come before the address: with a failover between the two, the answer has the
        // new address with the old epoch, which no majority names together. It never has the old
        // address with the new epoch.
        let mut pipe = redis::pipe();
        pipe.cmd("SENTINEL").arg("MASTER").arg(name);
        pipe.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        pipe.cmd("SENTINEL").arg("SENTINELS").arg(name);
        pipe.cmd("INFO").arg("sentinel");
        pipe.ignore_errors();
        let got: RedisResult<Vec<RedisResult<Value>>> = pipe.query_async(&mut *self.handle).await;
        let mut in_tilt = false;
        let mut reply = match got.map(<[RedisResult<Value>; 4]>::try_from) {
            Ok(Ok([facts, address, peers, info])) => {
                in_tilt = info.is_ok_and(|info| says_tilt(&info));
                judged(facts, address, peers, &self.handle.secrets())
            }
            Ok(Err(_)) => SentinelReply::Failed(Trouble::Strange, "wrong number of answers".into()),
            Err(e) => {
                let (trouble, detail) = trouble(&e, &self.handle.secrets());
                SentinelReply::Failed(trouble, detail)
            }
        };
        if let SentinelReply::Unknown(detail) = &mut reply {
            *detail = not_monitored(name, &self.masters().await, &self.handle.secrets()).into();
        }
        Answer { from: from.clone(), id: self.id.clone(), reply, in_tilt }
    }

    async fn masters(&mut self) -> Vec<String> {
        let ask = redis::cmd("SENTINEL").arg("MASTERS").take();
        let answer: RedisResult<Value> = ask.query_async(&mut *self.handle).await;
        let Ok(Value::Array(items)) = answer else { return Vec::new() };
        items.iter().filter_map(|item| fields(item)?.remove("name")).collect()
    }

    pub(crate) async fn replicas(&mut self, name: &str) -> RedisResult<ReplicaList> {
        let ask = redis::cmd("SENTINEL").arg("REPLICAS").arg(name).take();
        ask.query_async(&mut *self.handle).await.map(|value: Value| replica_list(&value))
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplicaList {
    pub(crate) at: Vec<Address>,
    pub(crate) can_promote: bool,
}

const NAMES: usize = 8;

/// Returns the text for a Sentinel that does not monitor the master `name`, with some of those that
/// it does, the `known`.
pub fn not_monitored(name: &str, known: &[String], secrets: &Secrets) -> String {
    let quoted = |name: &String| format!("\"{}\"", secrets.clean(name));
    let mut names: Vec<String> = known.iter().take(NAMES).map(quoted).collect();
    names.extend((known.len() > NAMES).then(|| format!("{} more", known.len() - NAMES)));
    let instead =
        if names.is_empty() { String::new() } else { format!(", but {}", names.join(", ")) };
    format!("monitors no master {}{instead}", Quoted(name))
}

fn replica_list(answer: &Value) -> ReplicaList {
    let Value::Array(items) = answer else { return ReplicaList::default() };
    let all: Vec<Fields> = items.iter().filter_map(fields).collect();
    let place = |f: &Fields| Address::new(f.get("ip")?, f.get("port")?.parse().ok()?);
    let is_away = |flag: &str| matches!(flag, "s_down" | "o_down" | "disconnected");
    let fits = |f: &Fields| {
        let flags = f.get("flags").map(String::as_str).unwrap_or_default();
        f.get("slave-priority").is_none_or(|p| p != "0") && !flags.split(',').any(is_away)
    };
    ReplicaList { at: all.iter().filter_map(place).collect(), can_promote: all.iter().any(fits) }
}

/// A malformed reply makes the answer not count: a vote without an epoch is never too old.
fn judged(
    facts: RedisResult<Value>,
    address: RedisResult<Value>,
    peers: RedisResult<Value>,
    secrets: &Secrets,
) -> SentinelReply {
    let strange = |what: &str| SentinelReply::Failed(Trouble::Strange, what.into());
    let failed = |e: &RedisError| {
        let (trouble, detail) = trouble(e, secrets);
        SentinelReply::Failed(trouble, detail)
    };
    let at = match address {
        Ok(Value::Nil) => return SentinelReply::Unknown("monitors no such master".into()),
        Ok(value) => match master_address(&value) {
            Some(at) => at,
            None => return strange("the master's address is invalid"),
        },
        Err(e) => return failed(&e),
    };
    let facts = match facts {
        Ok(value) => match fields(&value).as_ref().and_then(master_facts) {
            Some(facts) => Some(facts),
            None => return strange("SENTINEL MASTER has no readable epoch or counts"),
        },
        Err(e) if matches!(kind(&e), Trouble::NoPermission) => None,
        Err(e) => return failed(&e),
    };
    let peers = match peers {
        // A peer without an address is skipped, but is still in the number of `facts`.
        Ok(Value::Array(items)) => match items.iter().map(fields).collect::<Option<Vec<_>>>() {
            Some(all) => all.iter().filter_map(peer).collect(),
            None => return strange("SENTINEL SENTINELS is not a list of Sentinels"),
        },
        Ok(_) => return strange("SENTINEL SENTINELS is not a list"),
        Err(e) if matches!(kind(&e), Trouble::NoPermission) => Vec::new(),
        Err(e) => return failed(&e),
    };
    SentinelReply::Master { at, facts, peers }
}

fn says_tilt(info: &Value) -> bool {
    text(info).is_some_and(|all| all.lines().any(|line| line == "sentinel_tilt:1"))
}

/// Host and port must be text: a number would be truncated to the size of a port.
fn master_address(value: &Value) -> Option<Address> {
    let Value::Array(items) = value else { return None };
    let [host, port] = items.as_slice() else { return None };
    Address::new(text(host)?, text(port)?.parse().ok()?)
}

fn own_id(
    answer: RedisResult<Value>,
    secrets: &Secrets,
) -> Result<Option<Box<str>>, (Trouble, Box<str>)> {
    match answer {
        Ok(id) => match text(&id) {
            Some(id) if !id.is_empty() => Ok(Some(id.into())),
            // Without the id, one Sentinel with two addresses would count twice.
            _ => Err((Trouble::Strange, "SENTINEL MYID is not an id".into())),
        },
        Err(e) if e.is_timeout() || e.is_io_error() => Err(trouble(&e, secrets)),
        Err(_) => Ok(None),
    }
}

type Fields = std::collections::BTreeMap<String, String>;

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// From a map or a flat list. `None` if a name occurs twice.
pub(crate) fn fields(value: &Value) -> Option<Fields> {
    let pairs: Vec<(&Value, &Value)> = match value {
        Value::Map(pairs) => pairs.iter().map(|(name, value)| (name, value)).collect(),
        Value::Array(items) if items.len() % 2 == 0 => {
            items.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect()
        }
        _ => return None,
    };
    let mut all = Fields::new();
    for (name, value) in pairs {
        if all.insert(text(name)?.to_owned(), text(value)?.to_owned()).is_some() {
            return None;
        }
    }
    Some(all)
}

fn master_facts(f: &Fields) -> Option<MasterFacts> {
    let number = |key: &str| f.get(key)?.parse::<u64>().ok();
    let flags = f.get("flags").map(String::as_str).unwrap_or_default();
    let alarm = |flag: &str| matches!(flag, "s_down" | "o_down" | "failover_in_progress");
    Some(MasterFacts {
        epoch: number("config-epoch")?,
        quorum: u32::try_from(number("quorum")?).ok()?,
        others: u32::try_from(number("num-other-sentinels")?).ok()?,
        replicas: u32::try_from(number("num-slaves")?).ok()?,
        down_after: Duration::from_millis(number("down-after-milliseconds")?),
        troubled: flags.split(',').any(alarm),
    })
}

fn peer(f: &Fields) -> Option<Peer> {
    let at = Address::new(f.get("ip")?, f.get("port")?.parse().ok()?)?;
    let id = f.get("runid").filter(|id| !id.is_empty()).map(|id| id.as_str().into());
    Some(Peer { at, id })
}

/// `+switch-master` begins with the group's name. The others begin with the kind and the name of an
/// instance; for a Sentinel or a replica, the group follows after `@`.
fn concerns(push: &PushInfo, name: &str) -> bool {
    if push.kind == PushKind::Disconnection {
        return true;
    }
    if push.kind != PushKind::Message {
        return false;
    }
    let Some(Value::BulkString(payload)) = push.data.get(1) else { return false };
    let payload = String::from_utf8_lossy(payload);
    payload.split(' ').any(|word| word == name)
}

fn promotes(push: &PushInfo, name: &str) -> Option<Address> {
    let [Value::BulkString(channel), Value::BulkString(payload)] = &push.data[..] else {
        return None;
    };
    let payload = String::from_utf8_lossy(payload);
    let mut words = payload.split(' ');
    let is_ours = &channel[..] == b"+switch-master" && words.next() == Some(name);
    Address::new(words.nth(2).filter(|_| is_ours)?, words.next()?.parse().ok()?)
}

fn no_connection(e: &RedisError, with_tls: bool, secrets: &Secrets) -> (Trouble, Box<str>) {
    let (kind, detail) = trouble(e, secrets);
    let hint = match kind {
        Trouble::Timeout if with_tls => Some(tls::SILENT),
        Trouble::Tls => None,
        Trouble::Strange if !with_tls && e.kind() == ErrorKind::Parse => Some(tls::GARBLED),
        _ => tls::hint(e, with_tls),
    };
    (kind, hint.map_or(detail.clone(), |hint| format!("{detail}; {hint}").into()))
}

fn trouble(e: &RedisError, secrets: &Secrets) -> (Trouble, Box<str>) {
    match refusal(e, secrets) {
        Some(detail) => (Trouble::Tls, detail.into()),
        None => (kind(e), error_text(e, secrets).into()),
    }
}

fn kind(e: &RedisError) -> Trouble {
    let unknown = |text: &str| text.to_ascii_lowercase().starts_with("unknown command");
    match e.code() {
        _ if tls::inside::<NoCredentials>(e).is_some() => Trouble::NoCredentials,
        _ if e.is_timeout() => Trouble::Timeout,
        Some("NOAUTH" | "WRONGPASS") => Trouble::Auth,
        Some("NOPERM") => Trouble::NoPermission,
        _ if e.kind() == ErrorKind::AuthenticationFailed => Trouble::Auth,
        _ if e.kind() == ErrorKind::Io => Trouble::Unreachable,
        _ if e.detail().is_some_and(unknown) => Trouble::NotSentinel,
        _ => Trouble::Strange,
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    fn event(channel: &str, payload: &str) -> PushInfo {
        let text = |t: &str| Value::BulkString(t.as_bytes().to_vec());
        PushInfo { kind: PushKind::Message, data: vec![text(channel), text(payload)] }
    }

    #[test]
    fn events_of_other_groups_are_ignored() {
        let message = |payload| event("+sdown", payload);
        for ours in [
            "orders-a 10.0.0.1 6379 10.0.0.2 6379",
            "master orders-a 10.0.0.1 6379",
            "master orders-a 10.0.0.1 6379 #quorum 2/2",
            "slave 10.0.0.2:6379 10.0.0.2 6379 @ orders-a 10.0.0.1 6379",
        ] {
            assert!(concerns(&message(ours), "orders-a"), "{ours}");
        }
        assert!(!concerns(&message("master orders-b 10.0.0.1 6379"), "orders-a"));
        assert!(!concerns(&message("master orders-ab 10.0.0.1 6379"), "orders-a"));
        let subscribed = PushInfo { kind: PushKind::Subscribe, data: message("orders-a").data };
        assert!(!concerns(&subscribed, "orders-a"));
        let gone = PushInfo { kind: PushKind::Disconnection, data: Vec::new() };
        assert!(concerns(&gone, "orders-a"));
    }

    #[test]
    fn a_promoted_server_is_named_by_one_kind_of_event() {
        let of = |channel, payload| promotes(&event(channel, payload), "orders-a");
        let payload = "orders-a 10.0.0.1 6379 10.0.0.2 6380";
        assert_eq!(of("+switch-master", payload), Address::new("10.0.0.2", 6380));
        assert_eq!(of("+sdown", payload), None);
        assert_eq!(of("+switch-master", "orders-b 10.0.0.1 6379 10.0.0.2 6380"), None);
        assert_eq!(of("+switch-master", "orders-a 10.0.0.1 6379"), None);
    }

    #[test]
    fn an_unknown_name_is_shown_with_those_that_are_known() {
        let of = |known: &[&str]| {
            let known: Vec<String> = known.iter().map(|name| (*name).to_owned()).collect();
            not_monitored("a ", &known, &Secrets::default())
        };
        assert_eq!(of(&[]), "monitors no master \"a \"");
        assert_eq!(of(&["A", "b\n"]), "monitors no master \"a \", but \"A\", \"b\\n\"");
        assert!(of(&["x"; 11]).ends_with("\"x\", 3 more"));
    }

    #[test]
    fn a_replica_that_is_down_or_has_priority_0_is_not_promoted() {
        let replica = |flags: &str, priority: &str| {
            let words = ["ip", "10.0.0.2", "port", "7", "flags", flags, "slave-priority", priority];
            Value::Array(words.map(|word| Value::BulkString(word.into())).into())
        };
        let can = |all: &[Value]| {
            let list = replica_list(&Value::Array(all.to_vec()));
            assert_eq!(list.at.len(), all.len());
            list.can_promote
        };
        let fit = replica("slave", "100");
        let unfit = [replica("slave", "0"), replica("slave,s_down", "100")];
        assert!(!can(&[]) && !can(&unfit) && can(&[unfit[0].clone(), fit]));
        assert!(!can(&[replica("slave,disconnected", "1")]));
    }

    #[test]
    fn tilt_is_read_from_a_line_of_its_own() {
        let says = |info: &str| says_tilt(&Value::BulkString(info.as_bytes().to_vec()));
        assert!(says("# Sentinel\r\nsentinel_masters:1\r\nsentinel_tilt:1\r\n"));
        assert!(!says("sentinel_tilt:0\r\nsentinel_tilt_since_seconds:-1\r\n"));
        assert!(!says("sentinel_tilt:12\r\n") && !says_tilt(&Value::Nil));
    }

    #[test]
    fn facts_are_read_whole_or_not_at_all() {
        let mut f: Fields = [
            ("config-epoch", "7"),
            ("quorum", "2"),
            ("num-other-sentinels", "2"),
            ("num-slaves", "3"),
            ("down-after-milliseconds", "5000"),
            ("flags", "master,o_down"),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect();
        let facts = master_facts(&f).unwrap();
        assert_eq!((facts.epoch, facts.others, facts.replicas), (7, 2, 3));
        assert!(facts.troubled);
        assert_eq!(facts.down_after, Duration::from_secs(5));
        f.insert("config-epoch".into(), "many".into());
        assert_eq!(master_facts(&f), None);
    }
}
