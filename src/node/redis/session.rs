//! One connection to one server process: opened, asked who it is, used, and thrown away at the
//! first doubt. A session never reconnects and never repeats what may have run.
//!
//! A batch that confirms something to a holder is followed by `ROLE` in the same write to the
//! socket: inside the script only the offset before its own writes can be seen, and `ROLE` comes
//! right behind it, so its offset is that of the last write or, if others write too, a later one.

mod order;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use futures_util::poll;
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, Pipeline, PushInfo, PushKind, RedisError, Value};
use tokio::sync::{Notify, broadcast};

use self::order::Order;
use super::encode::{self, Guarding};
use super::endpoint::Endpoint;
use super::{decode, faults, script};
use crate::error::{NodeError, NodeFault};
use crate::node::NodeEvent;
use crate::op::{Batch, Facts, Op, Replies, Terms};
use crate::receipt::Predecessor;
use crate::sentinel::conn::fields;
use crate::sentinel::words::said;

/// Where releases that somebody waits for are told.
const CHANGED: &str = "palisade:changed";
/// Oldest server that can serve: `SET … PX` in one command, ACL selectors of `INFO` in scripts.
const OLDEST: (u32, u32) = (6, 2);

/// What a server said of itself when the connection was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerFacts {
    /// `run_id`: the process.
    pub(crate) run_id: Arc<str>,
    /// `master_replid`: the data history.
    pub(crate) replid: String,
    /// The history that this one went on from: `master_replid2`, `second_repl_offset`.
    pub(crate) predecessor: Option<Predecessor>,
    /// Whether `ROLE` is answered, so that writes get receipts.
    pub(crate) tells_offset: bool,
    /// `redis_version` as (major, minor).
    pub(crate) version: (u32, u32),
    /// `connected_slaves`, in whatever state they are.
    pub(crate) connected_replicas: u32,
    /// Those of them that follow: a backup that only takes a snapshot does not.
    pub(crate) online_replicas: u32,
    /// `min_slaves_good_slaves`; `None` if the min-replicas guard is off.
    pub(crate) good_replicas: Option<u32>,
    /// `min-replicas-to-write`, if asked for and CONFIG may be read.
    pub(crate) min_replicas: Option<u32>,
    /// `min-replicas-max-lag` in seconds, if asked for and CONFIG may be read.
    pub(crate) min_replicas_max_lag: Option<u32>,
}

/// Whether a connection is known to be gone.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    yes: AtomicBool,
    told: Notify,
}

impl Lost {
    fn is(&self) -> bool {
        self.yes.load(Ordering::Acquire)
    }

    /// Ends when it is.
    pub(crate) async fn wait(&self) {
        let told = self.told.notified();
        tokio::pin!(told);
        told.as_mut().enable();
        if !self.is() {
            told.await;
        }
    }

    fn tell(&self, events: &broadcast::Sender<NodeEvent>) {
        if !self.yes.swap(true, Ordering::AcqRel) {
            self.told.notify_waiters();
            let _ = events.send(NodeEvent::Down);
        }
    }
}

/// An open connection to a master.
pub(crate) struct Session {
    con: MultiplexedConnection,
    facts: ServerFacts,
    generation: Option<u64>,
    /// What the last batch said; the first one supposes it is so.
    backlog: AtomicBool,
    awaited: AtomicBool,
    order: Order,
    /// What the server said when its marker was touched, until somebody is told.
    touched: Mutex<Option<Facts>>,
    lost: Arc<Lost>,
    events: broadcast::Sender<NodeEvent>,
}

impl Session {
    /// Connects and asks the server who it is. `guard_facts` reads the min-replicas settings too.
    /// The caller holds the deadline.
    pub(crate) async fn open(
        endpoint: &Endpoint,
        events: broadcast::Sender<NodeEvent>,
        guard_facts: bool,
    ) -> Result<Self, NodeError> {
        let lost = Arc::<Lost>::default();
        // The crate's own time-outs are off: every wait is inside one of ours, and its time-out
        // would hide whether the request had left.
        let (info, config) = endpoint.connection();
        let client = Client::open(info).map_err(|e| faults::connecting(&e))?;
        let config = config.set_push_sender(listener(events.clone(), Arc::clone(&lost)));
        let con = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|e| faults::opening(&e, endpoint.is_tls()))?;
        let facts = introduce(&con, guard_facts).await?;
        let generation = generation(&facts.replid);
        let (backlog, awaited) = (AtomicBool::new(true), AtomicBool::new(true));
        let order = Order::default();
        let touched = Mutex::default();
        Ok(Self { con, facts, generation, backlog, awaited, order, touched, lost, events })
    }

    /// What the server said of itself.
    pub(crate) fn facts(&self) -> &ServerFacts {
        &self.facts
    }

    /// The data history as the script will tell it, and what it went on from.
    pub(crate) fn history(&self) -> Option<(u64, Option<Predecessor>)> {
        Some((self.generation?, self.facts.predecessor))
    }

    /// Asks again what it said of itself, with the min-replicas settings.
    pub(crate) async fn look_again(&self) -> Result<ServerFacts, NodeError> {
        introduce(&self.con, true).await
    }

    /// Whether no earlier batch is being sent again: what leaves meanwhile would overtake it.
    pub(crate) fn is_in_order(&self) -> bool {
        self.order.is_kept_now()
    }

    /// Ends when it is so.
    pub(crate) async fn in_order(&self) {
        self.order.is_kept().await;
    }

    /// Whether the connection is known to be gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is()
    }

    /// The same to wait for.
    pub(crate) fn lost(&self) -> Arc<Lost> {
        Arc::clone(&self.lost)
    }

    /// The connection shall not be used again. Tells it once.
    pub(crate) fn abandon(&self) {
        self.lost.tell(&self.events);
    }

    /// Has the server look at its marker, and write it if its history is new. What that showed is
    /// told with the next batch.
    pub(crate) async fn touch(&self, terms: Terms, guarding: Guarding) -> Result<(), NodeError> {
        let nothing = Batch { terms, not_after: None, ops: Vec::new() };
        let facts = self.call(&nothing, guarding).await?.facts;
        *self.touched.lock().unwrap_or_else(PoisonError::into_inner) = facts;
        Ok(())
    }

    /// Executes a batch. A fault of the connection or the server as a whole is `Err`.
    pub(crate) async fn call(
        &self,
        batch: &Batch,
        guarding: Guarding,
    ) -> Result<Replies, NodeError> {
        let cmd = encode::batch(batch, guarding, self.awaited.load(Ordering::Relaxed));
        // A history that nobody can go on from needs no receipts.
        let receipt = self.facts.tells_offset
            && self.backlog.load(Ordering::Relaxed)
            && batch.ops.iter().any(Op::is_confirming);
        let call = if receipt { Call::with_receipt(cmd) } else { Call::Plain(cmd) };
        let mut place = self.order.take();
        let answer = match call.ask(&self.con).await {
            Err(e) if faults::is_noscript(&e) => {
                // SCRIPT FLUSH: nothing was executed, so calling again is no repetition. Both leave
                // together: a later batch must not find the script before this one does.
                place.again().await;
                let load = script::load();
                let both = async { tokio::join!(ask(&self.con, &load), call.ask(&self.con)) };
                tokio::pin!(both);
                let first = poll!(both.as_mut());
                place.left();
                let answers = match first {
                    Poll::Ready(answers) => answers,
                    Poll::Pending => both.await,
                };
                match answers {
                    (Err(cause), Err(e)) if faults::is_noscript(&e) => {
                        return Err(faults::connecting(&cause));
                    }
                    (_, answer) => answer,
                }
            }
            answer => answer,
        };
        drop(place);
        let (answer, offset) = answer.map_err(|e| faults::calling(&e))?;
        let standing = decode::standing(&answer);
        self.backlog.store(standing.backlog, Ordering::Relaxed);
        self.awaited.store(standing.awaited, Ordering::Relaxed);
        let lost = (guarding.longest_window(), batch.terms.clock_error);
        let mut replies = decode::replies(answer, &batch.ops, &self.facts.run_id, lost)?;
        if let Some(facts) = &mut replies.facts {
            // Longer than any that agrees with this client: another one does not.
            facts.quarantine_asked = batch
                .terms
                .max_ttl
                .saturating_add(guarding.widest_window.max(guarding.failover_window));
            facts.offset = offset;
            if Some(facts.generation) == self.generation {
                facts.predecessor = self.facts.predecessor;
            }
            let touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(first) = touched.filter(|first| first.generation == facts.generation) {
                facts.new_generation |= first.new_generation;
                facts.marker_missing |= first.marker_missing;
                facts.quarantine_raised |= first.quarantine_raised;
            }
        }
        Ok(replies)
    }
}

/// What leaves in one write to the socket.
enum Call {
    /// The script.
    Plain(Cmd),
    /// The script, and `ROLE` right behind it.
    Receipt(Pipeline),
}

impl Call {
    fn with_receipt(cmd: Cmd) -> Self {
        let mut both = Pipeline::with_capacity(2);
        both.add_command(cmd).cmd("ROLE");
        Self::Receipt(both)
    }

    /// The script's answer and, if it was asked for and given, the offset.
    async fn ask(&self, con: &MultiplexedConnection) -> Result<(Value, Option<u64>), RedisError> {
        let both = match self {
            Self::Plain(cmd) => return Ok((ask(con, cmd).await?, None)),
            Self::Receipt(both) => both,
        };
        let mut answers = con.clone().send_packed_commands(both, 0, 2).await?.into_iter();
        let answer = answers.next().unwrap_or(Value::Nil).extract_error()?;
        // A refusal to tell is no fault: there is no receipt then.
        Ok((answer, answers.next().as_ref().and_then(decode::offset)))
    }
}

pub(super) async fn ask(con: &MultiplexedConnection, cmd: &Cmd) -> Result<Value, RedisError> {
    // An error reply inside `Value` is turned into `Err`.
    con.clone().send_packed_command(cmd).await.and_then(Value::extract_error)
}

/// Asks all that is to be known in one round trip.
async fn introduce(
    con: &MultiplexedConnection,
    guard_facts: bool,
) -> Result<ServerFacts, NodeError> {
    let info = |section: &'static str| redis::cmd("INFO").arg(section).take();
    let (server, replication) = (info("server"), info("replication"));
    let load = script::load();
    let role = redis::cmd("ROLE");
    let subscribe = redis::cmd("SUBSCRIBE").arg(CHANGED).take();
    let config = redis::cmd("CONFIG").arg("GET").arg("min-replicas-*").take();
    let (server, replication, role, load, hints, config) = tokio::join!(
        ask(con, &server),
        ask(con, &replication),
        ask(con, &role),
        ask(con, &load),
        ask(con, &subscribe),
        async { if guard_facts { ask(con, &config).await.ok() } else { None } },
    );
    if let Err(e) = hints {
        // Without the permission waiters poll; nothing else changes.
        tracing::debug!(error = said(&e), "no release hints from this server");
    }
    let mut facts = read(&text(server)?, &text(replication)?, config.as_ref())?;
    // Decided once per connection; without the permission nothing changes but the receipts.
    facts.tells_offset = role.is_ok_and(|answer| decode::offset(&answer).is_some());
    load.map_err(|e| faults::connecting(&e))?;
    Ok(facts)
}

/// What `INFO server`, `INFO replication` and, if they were answered, the settings say. Garbage is
/// a fault: a setting that cannot be read is not one that may not be asked for.
fn read(server: &str, replication: &str, config: Option<&Value>) -> Result<ServerFacts, NodeError> {
    let version = kind_and_version(server)?;
    if field(replication, "role") != Some("master") {
        let role: String = field(replication, "role").unwrap_or("none").chars().take(32).collect();
        let detail = format!("INFO replication says role:{}", role.escape_debug());
        return Err(NodeError::not_executed(NodeFault::NotMaster, detail));
    }
    let garbage = |what| NodeError::not_executed(NodeFault::Protocol, what);
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
        number.map_err(|_| garbage("CONFIG GET tells no number"))
    };
    Ok(ServerFacts {
        run_id: run_id.into(),
        replid: replid.to_owned(),
        predecessor: predecessor(replication),
        tells_offset: false,
        version,
        connected_replicas: field(replication, "connected_slaves")
            .and_then(|n| n.parse().ok())
            .unwrap_or(0),
        online_replicas: online(replication),
        good_replicas: field(replication, "min_slaves_good_slaves").and_then(|n| n.parse().ok()),
        min_replicas: setting("min-replicas-to-write")?,
        min_replicas_max_lag: setting("min-replicas-max-lag")?,
    })
}

/// How many replicas follow, by `INFO replication`.
pub(super) fn online(replication: &str) -> u32 {
    let replicas = replication.lines().filter(|line| line.starts_with("slave"));
    u32::try_from(replicas.filter(|line| line.contains(",state=online,")).count()).unwrap_or(0)
}

fn is_word(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|b| b.is_ascii_graphic())
}

/// A `replid` as the script reads it: 40 hexadecimal digits.
pub(super) fn is_history(id: &str) -> bool {
    id.len() == 40 && id.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The identity of a data history: what the script cuts out of its `replid`.
fn generation(replid: &str) -> Option<u64> {
    u64::from_str_radix(replid.get(..16)?, 16).ok()
}

/// What the server's history went on from, when it was promoted or came back from its snapshot.
fn predecessor(replication: &str) -> Option<Predecessor> {
    let before = field(replication, "master_replid2").filter(|id| is_history(id))?;
    // -1 if there is none.
    let offset = field(replication, "second_repl_offset")?.parse().ok()?;
    Some(Predecessor { generation: generation(before)?, offset })
}

fn kind_and_version(server: &str) -> Result<(u32, u32), NodeError> {
    let unsupported = |detail: String| NodeError::not_executed(NodeFault::Unsupported, detail);
    match field(server, "redis_mode") {
        Some("sentinel") => {
            let detail = "this is a Sentinel; name it to SentinelNode, not to RedisNode";
            return Err(unsupported(detail.to_owned()));
        }
        Some("cluster") => {
            let detail =
                "Redis Cluster cannot be a node; use standalone servers or Sentinel groups";
            return Err(unsupported(detail.to_owned()));
        }
        _ => {}
    }
    let words = field(server, "redis_version").unwrap_or_default();
    let mut parts = words.split('.').map_while(|p| p.parse::<u32>().ok());
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version < OLDEST {
        let shown: String = words.chars().take(32).collect();
        return Err(unsupported(format!("server version {shown:?}; at least 6.2 is needed")));
    }
    Ok(version)
}

fn text(answer: Result<Value, RedisError>) -> Result<String, NodeError> {
    let value = answer.map_err(|e| faults::connecting(&e))?;
    redis::from_redis_value(value).map_err(|e| faults::connecting(&e.into()))
}

/// The value of `name:` in an INFO text.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))
}

/// Takes what the server tells without being asked.
fn listener(
    events: broadcast::Sender<NodeEvent>,
    lost: Arc<Lost>,
) -> impl Fn(PushInfo) -> Result<(), redis::aio::SendError> + Send + Sync + 'static {
    move |push: PushInfo| {
        match push.kind {
            PushKind::Disconnection => lost.tell(&events),
            PushKind::Message => {
                if let [_, Value::BulkString(key)] = push.data.as_slice()
                    && let Ok(key) = std::str::from_utf8(key)
                {
                    // No receiver, no interest.
                    let _ = events.send(NodeEvent::Changed(key.into()));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promoted_server_says_what_it_went_on_from() {
        let ids = |id2: &str, offset: &str| {
            predecessor(&format!("master_replid2:{id2}\r\nsecond_repl_offset:{offset}\r\n"))
        };
        let id = "00000000000000ff0123456789abcdef01234567";
        assert_eq!(ids(id, "2951"), Some(Predecessor { generation: 255, offset: 2951 }));
        assert_eq!(ids(&"0".repeat(40), "-1"), None);
        assert_eq!(ids("ff", "2951"), None);
        assert_eq!(predecessor("role:master\r\n"), None);
    }

    #[test]
    fn what_cannot_serve_says_why() {
        let e = |info: &str| kind_and_version(info).unwrap_err();
        assert!(e("redis_mode:sentinel\r\n").detail().contains("SentinelNode"));
        assert!(e("redis_mode:cluster\r\n").detail().contains("Cluster"));
        assert!(e("redis_version:6.0.16\r\nredis_mode:standalone\r\n").detail().contains("6.2"));
        assert!(e("").detail().contains("6.2"));
        assert_eq!(kind_and_version("redis_version:7.0.15\r\n").unwrap(), (7, 0));
    }
}
