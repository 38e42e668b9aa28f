//! A planned handover: of a group to one of its replicas, or of a lone server to itself after a
//! restart, so that no lock, no key and hardly a second is lost.
//!
//! # How, and why nothing is lost
//!
//! 1. The master is *closed*: its marker says so until a moment that is D ahead. From that script
//!    on every batch is refused there, whole, so nothing is confirmed any more. Whatever opens it
//!    again (a person, or the first batch after D) takes the mark away first.
//! 2. Every replica that anybody knows confirms that it has the closing. Replication keeps the
//!    order of writes, so each has everything that was ever confirmed; and closed by the same mark,
//!    none of them would answer anything either if it were promoted.
//! 3. A Sentinel is asked for a failover. The old master is made a replica of the new one at once,
//!    in one transaction with a look at its mark: as it is still there, nothing was confirmed
//!    since 1, and nothing will be.
//! 4. The new master is told to go on. The script looks itself: its data hold this closing, so they
//!    hold all that was written before it, and were not used since; and the time is more than twice
//!    E (the most that two clocks differ) before the closing ends, so no other server that has the
//!    mark can have opened by itself. So its data are all that anybody ever confirmed. Its memory
//!    is as complete as the old master's was, it goes on from the same beginning, and there is
//!    nothing to wait for.
//!
//! One thing changes: leases now end by the new server's clock, which may be ahead by twice E. So
//! for the length of one quarantine a name that was used lately and is free by that clock is kept
//! for twice E from the first time that somebody asks for it, and claims last so much longer. Names
//! and keys that were not in use are granted at once. Until then it is not handed over again: taken
//! back, that would leave a server that does not know of those leases any more.
//!
//! Wherever this stops (this process dies, a replica does not confirm, nobody or another one is
//! promoted, the old master is not reached any more), the servers are as after any other failover:
//! the old one opens by itself when D is over; a new one that was not told to go on stays closed
//! until then and begins with a quarantine. A copy of the mark that turns up later says "closed
//! until" a time that is over. A second failover soon after begins a history of its own, with its
//! own quarantine: a server goes on only if its mark is *this* closing, unused.
//!
//! Outside of this are replicas that forget what they confirmed (killed, back with an older disk,
//! and promoted, all within D), as for every durability level.
//!
//! A restart of a lone server is the same with itself: what it reads back from its disk holds the
//! closing, or it lacks writes. The closing is a transaction, as every grant is, so a server that throws
//! transactions away in loading throws both away.

use std::fmt;
use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, sleep};

use super::Deployment;
use super::deployment::Access;
use super::facts::Read;
use super::gather::conn::{Conn, info, info_for, text};
use super::masters::{self, Absent, Found, Master};
use super::script;
use crate::config::default_clock_error;
use crate::dial::endpoint::Endpoint;
use crate::error::ConfigError;
use crate::name::MARKER;

/// How often it is looked whether something has happened.
const LOOK: Duration = Duration::from_millis(50);
/// How long replicas may take to have the closing.
const REPLICAS: Duration = Duration::from_millis(1_500);
/// What is left for the last steps when a promotion is no longer waited for.
const LAST_STEPS: Duration = Duration::from_secs(2);
/// How long all may take to find together afterwards.
const TOGETHER: Duration = Duration::from_secs(30);

/// A planned handover of one node.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before it is run"]
pub struct Handover {
    deployment: Deployment,
    closed_for: Duration,
    clock_error: Duration,
}

/// What it came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandedOver {
    /// The new server goes on where the old one stopped.
    Done {
        /// The server that serves now.
        at: String,
        /// For how long nothing was answered.
        closed: Duration,
    },
    /// Nothing was changed, or all is again as it was: why, and what to do.
    Refused(String),
    /// It was no handover: another server may serve now, and begins with a quarantine.
    FellBack(String),
    /// Nobody could be reached.
    Unreachable(String),
}

impl HandedOver {
    /// 0 done, 2 not, 69 not reached.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Done { .. } => 0,
            Self::Refused(_) | Self::FellBack(_) => 2,
            Self::Unreachable(_) => 69,
        }
    }
}

impl fmt::Display for HandedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done { at, closed } => {
                write!(f, "handed over to {at}; closed for {:.1} s", closed.as_secs_f64())
            }
            Self::Refused(why) => write!(f, "not handed over: {why}"),
            Self::FellBack(why) => {
                write!(f, "no handover, a failover as any other, with its quarantine: {why}")
            }
            Self::Unreachable(why) => write!(f, "not reached: {why}"),
        }
    }
}

/// What stopped it.
enum Stopped {
    /// Before anything was changed, or where it could be opened again.
    Back(String),
    /// Where another server may have been promoted.
    Late(String),
}

/// A master that is closed.
struct Closed {
    /// The marker as the closing left it.
    marker: String,
    since: Instant,
}

impl Handover {
    /// Of the one node that this deployment names. A master stays closed for 20 s at the most.
    pub fn new(deployment: Deployment) -> Self {
        let clock_error = default_clock_error(crate::Config::default().max_ttl);
        Self { deployment, closed_for: Duration::from_secs(20), clock_error }
    }

    /// D: for how long the server stays closed at the most if nobody opens it again; one second to
    /// ten minutes. It has to be enough for the failover or the restart, and more than twice
    /// `clock_error` besides.
    pub fn closed_for(mut self, span: Duration) -> Self {
        self.closed_for = span;
        self
    }

    /// E: how far any server's clock may be off, as the application has it. Default 2 s.
    pub fn clock_error(mut self, error: Duration) -> Self {
        self.clock_error = error;
        self
    }

    /// Hands a group over to one of its replicas. Steps are told as they are done.
    ///
    /// # Errors
    /// What was given makes no sense, or names no group or more than one. What the servers did is
    /// in the result.
    ///
    /// # Cancellation safety
    /// Dropped at an await the master opens again by itself after `closed_for`; if a replica was
    /// promoted by then, that is a failover as any other.
    pub async fn group(&self, tell: impl Fn(&str)) -> Result<HandedOver, ConfigError> {
        self.check(
            self.deployment.watches.len() == 1 && self.deployment.nodes.is_empty(),
            "group",
        )?;
        let (access, found) = masters::find(&self.deployment).await?;
        let (master, name) = match only(found) {
            Ok(found) => found,
            Err(absent) => return Ok(absent),
        };
        let promotion = Promotion { of: self, access: &access, name: &name, master: &master };
        let closed = match self.close(&master).await {
            Ok(closed) => closed,
            Err(why) => return Ok(HandedOver::Refused(why)),
        };
        tell(&format!("{} is closed, and all its replicas have it", master.at));
        let new = match promotion.promoted(&closed).await {
            Ok(new) => new,
            Err(Stopped::Back(why)) => return Ok(self.open(&master, &closed, why).await),
            Err(Stopped::Late(why)) => {
                self.open(&master, &closed, String::new()).await;
                return Ok(HandedOver::FellBack(why));
            }
        };
        tell(&format!("{new} is promoted"));
        if let Err(why) = promotion.demote(&new, &closed).await {
            return Ok(HandedOver::FellBack(why));
        }
        tell(&format!("{} is its replica", master.at));
        let target = promotion.target(&new);
        match self.finish(&target, &new, &closed).await {
            Ok(()) => {}
            Err(why) => return Ok(HandedOver::FellBack(why)),
        }
        let done = HandedOver::Done { at: new.clone(), closed: closed.since.elapsed() };
        tell(&format!("{new} goes on where {} stopped", master.at));
        promotion.together(&new, &tell).await;
        Ok(done)
    }

    /// Hands a lone server over to itself: closes it, awaits `restart`, which restarts it with its
    /// data, and lets it go on. Steps are told as they are done.
    ///
    /// # Errors
    /// What was given makes no sense, or names no lone server or more than one. What the server did
    /// is in the result.
    ///
    /// # Cancellation safety
    /// Dropped at an await the server opens again by itself after `closed_for`; if it was restarted
    /// by then, it begins with a quarantine.
    pub async fn lone(
        &self,
        restart: impl Future<Output = Result<(), String>>,
        tell: impl Fn(&str),
    ) -> Result<HandedOver, ConfigError> {
        let one = self.deployment.nodes.len() == 1 && self.deployment.watches.is_empty();
        self.check(one, "node")?;
        let (_, found) = masters::find(&self.deployment).await?;
        let master = match only(found) {
            Ok((master, _)) => master,
            Err(absent) => return Ok(absent),
        };
        let closed = match self.close(&master).await {
            Ok(closed) => closed,
            Err(why) => return Ok(HandedOver::Refused(why)),
        };
        tell(&format!(
            "{} is closed for {:?}: it may be restarted now",
            master.at, self.closed_for
        ));
        if let Err(why) = restart.await {
            return Ok(self.open(&master, &closed, why).await);
        }
        let until = self.until(&closed);
        while !self.is_another(&master).await {
            if Instant::now() >= until {
                let why = format!("no other process answered at {} in time", master.at);
                return Ok(self.open(&master, &closed, why).await);
            }
            sleep(LOOK).await;
        }
        tell(&format!("{} is back", master.at));
        Ok(match self.finish(&master.target, &master.at, &closed).await {
            Ok(()) => HandedOver::Done { at: master.at, closed: closed.since.elapsed() },
            Err(why) => HandedOver::FellBack(why),
        })
    }

    fn check(&self, one: bool, what: &'static str) -> Result<(), ConfigError> {
        self.deployment.check()?;
        let masters: usize = self.deployment.watches.iter().map(|w| w.masters.len()).sum();
        if !one || masters > 1 {
            let rule = "one at a time: name one group, or one lone server";
            return Err(ConfigError::new(what, "another number", rule));
        }
        let value = format!("{:?}", self.closed_for);
        if !(Duration::from_secs(1)..=Duration::from_secs(600)).contains(&self.closed_for) {
            let rule = "between one second and ten minutes";
            return Err(ConfigError::new("closed_for", value, rule));
        }
        if self.closed_for <= 2 * self.clock_error + LAST_STEPS {
            let rule =
                format!("more than 2·clock_error + 2 s ({:?})", 2 * self.clock_error + LAST_STEPS);
            return Err(ConfigError::new("closed_for", value, rule));
        }
        Ok(())
    }

    /// When a promotion or restart comes too late to be finished.
    fn until(&self, closed: &Closed) -> Instant {
        closed.since + self.closed_for.saturating_sub(2 * self.clock_error + LAST_STEPS)
    }

    /// Closes the master, and waits until every replica has it.
    async fn close(&self, master: &Master) -> Result<Closed, String> {
        let conn = master.open(&self.deployment).await?;
        let since = Instant::now();
        let ms = self.closed_for.as_millis().to_string();
        let marker = script::run(&conn, script::CLOSE, &[&ms]).await;
        let closed = match marker {
            Ok(marker) => Closed { marker, since },
            Err(refusal) => return Err(format!("{}: {}", master.at, refusal.words())),
        };
        let wanted = master.replicas.len();
        if wanted > 0 {
            let have = script::wait(&conn, wanted, REPLICAS.min(self.deployment.within)).await;
            if have < wanted {
                let why =
                    format!("{have} of {wanted} replicas of {} confirm the closing", master.at);
                return Err(self.open(master, &closed, why).await.to_string());
            }
        }
        Ok(closed)
    }

    /// Opens the master again, after this.
    async fn open(&self, master: &Master, closed: &Closed, why: String) -> HandedOver {
        let opened = match master.open(&self.deployment).await {
            Ok(conn) => script::run(&conn, script::OPEN, &[&closed.marker]).await,
            Err(why) => Err(script::Refusal::Failed(why)),
        };
        HandedOver::Refused(match opened {
            Ok(_) => format!("{why}; {} is open again", master.at),
            Err(refusal) => {
                let left = self.closed_for.saturating_sub(closed.since.elapsed());
                let said = refusal.words();
                format!("{why}; {} opens by itself within {left:.0?} ({said})", master.at)
            }
        })
    }

    /// Whether another process answers, with its data loaded.
    async fn is_another(&self, master: &Master) -> bool {
        let Ok(conn) = master.open(&self.deployment).await else { return false };
        let facts = conn.say("INFO", "INFO").await.then("INFO", info);
        let Some(facts) = facts.ok() else { return false };
        let is = |name: &str, value: &str| facts.get(name).is_some_and(|v| v == value);
        facts.contains_key("run_id") && !is("run_id", &master.run_id) && !is("loading", "1")
    }

    /// Has the server go on, as soon as it takes writes.
    async fn finish(&self, target: &Endpoint, at: &str, closed: &Closed) -> Result<(), String> {
        let apart = (2 * self.clock_error).as_millis().to_string();
        loop {
            let done = match masters::open(target, &self.deployment).await {
                Ok(conn) => script::run(&conn, script::FINISH, &[&closed.marker, &apart]).await,
                Err(why) => Err(script::Refusal::Failed(why)),
            };
            match done {
                Ok(_) => return Ok(()),
                Err(script::Refusal::Said(why)) => return Err(format!("{at}: {why}")),
                // A new master takes no writes before a replica follows it.
                Err(script::Refusal::Failed(why)) => {
                    if closed.since.elapsed() > self.closed_for {
                        return Err(format!("{at}: {why}"));
                    }
                }
            }
            sleep(LOOK).await;
        }
    }
}

/// The only node there is.
fn only(found: Vec<Found>) -> Result<(Master, String), HandedOver> {
    let Some(found) = found.into_iter().next() else {
        return Err(HandedOver::Refused("nothing to hand over".to_owned()));
    };
    match found.master {
        Ok(master) => Ok((master, found.node)),
        Err(Absent::Refused(why)) => Err(HandedOver::Refused(why)),
        Err(Absent::Unreachable(why)) => Err(HandedOver::Unreachable(why)),
    }
}

/// A group on its way from one master to the next.
struct Promotion<'a> {
    of: &'a Handover,
    access: &'a Access,
    name: &'a str,
    master: &'a Master,
}

impl Promotion<'_> {
    /// Has a Sentinel promote a replica; which one, as soon as it calls itself master.
    async fn promoted(&self, closed: &Closed) -> Result<String, Stopped> {
        let asked = self.ask_for_failover().await.map_err(Stopped::Back)?;
        let until = self.of.until(closed);
        loop {
            for at in &self.master.replicas {
                let opened = masters::open(&self.target(at), &self.of.deployment).await;
                let Ok(conn) = opened else { continue };
                if role(&conn).await.as_deref() == Some("master") {
                    return Ok(at.clone());
                }
            }
            if Instant::now() >= until {
                let why = format!("Sentinel {asked} was asked, and promoted nobody in time");
                return Err(Stopped::Late(why));
            }
            sleep(LOOK).await;
        }
    }

    /// Asks one Sentinel after the other until one begins.
    async fn ask_for_failover(&self) -> Result<String, String> {
        let mut words = Vec::new();
        for at in self.of.deployment.watches.iter().flat_map(|w| &w.sentinels) {
            let conn = match self.sentinel(at).await {
                Ok(conn) => conn,
                Err(why) => {
                    words.push(format!("{at}: {why}"));
                    continue;
                }
            };
            let command = redis::cmd("SENTINEL").arg("FAILOVER").arg(self.name).take();
            match conn.ask(&command, "SENTINEL FAILOVER").await {
                Read::Got(_) => return Ok(at.clone()),
                Read::Closed(why) | Read::Failed(why) => words.push(format!("{at}: {why}")),
            }
        }
        Err(format!("no Sentinel begins a failover: {}", words.join("; ")))
    }

    async fn sentinel(&self, at: &str) -> Result<Conn, String> {
        let target = info_for(at, &self.access.sentinels);
        masters::open(&target, &self.of.deployment).await
    }

    /// How to reach a server of the group.
    fn target(&self, at: &str) -> Endpoint {
        let ways = self.of.deployment.ways(self.access, None);
        info_for(ways.reach(at), &self.access.data)
    }

    /// Makes the old master a replica of the new one, if it has answered nothing since it was
    /// closed: both in one transaction.
    async fn demote(&self, new: &str, closed: &Closed) -> Result<(), String> {
        let old = &self.master.at;
        let doubt = |why: String| format!("{old}: {why}");
        let (host, port) =
            new.rsplit_once(':').ok_or_else(|| doubt(format!("{new} is no address")))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let conn = self.master.open(&self.of.deployment).await.map_err(doubt)?;
        let steps = [
            redis::cmd("MULTI"),
            redis::cmd("GET").arg(MARKER).take(),
            redis::cmd("REPLICAOF").arg(host).arg(port).take(),
            redis::cmd("EXEC"),
        ];
        let mut last = Read::Failed("not asked".to_owned());
        for step in &steps {
            last = conn.ask(step, "REPLICAOF").await;
            if let Read::Closed(why) | Read::Failed(why) = &last {
                return Err(doubt(why.clone()));
            }
        }
        let mark = match &last {
            Read::Got(Value::Array(said)) => said.first().and_then(text),
            _ => None,
        };
        if mark.as_ref() != Some(&closed.marker) {
            return Err(doubt("it was used after it was closed".to_owned()));
        }
        // So that it is a replica after a restart, too; without a file there is nothing to write.
        let _ = conn.say("CONFIG REWRITE", "CONFIG").await;
        Ok(())
    }

    /// Waits until every Sentinel names the new master and all servers follow it.
    async fn together(&self, new: &str, tell: &impl Fn(&str)) {
        let until = Instant::now() + TOGETHER;
        loop {
            let Ok((_, found)) = masters::find(&self.of.deployment).await else { return };
            let state = match found.into_iter().next().map(|f| f.master) {
                Some(Ok(master)) if master.at == new => {
                    return tell(&format!("all Sentinels and replicas follow {new}"));
                }
                Some(Ok(master)) => format!("the Sentinels name {}", master.at),
                Some(Err(Absent::Refused(why) | Absent::Unreachable(why))) => why,
                None => return,
            };
            if Instant::now() >= until {
                return tell(&format!("not all is together yet: {state}; look with the doctor"));
            }
            sleep(4 * LOOK).await;
        }
    }
}

/// What a server calls itself.
async fn role(conn: &Conn) -> Option<String> {
    match conn.say("ROLE", "ROLE").await {
        Read::Got(Value::Array(parts)) => text(parts.first()?),
        _ => None,
    }
}
