//! A planned handover: of a group to one of its replicas, or of a lone server to itself after a
//! restart. No lock and no key is lost, and the interruption is short.
//!
//! # The steps, and why nothing is lost
//!
//! 1. The master is *closed* for a time D: a script writes a mark into its marker, the key
//!    `palisade:generation`. From then on the master refuses every batch of requests as a whole, so
//!    the master confirms nothing. The mark is removed before the master confirms anything again. A
//!    person can remove the mark; else the first batch after D removes it.
//! 2. Every known replica confirms that it has the mark. Replication keeps the order of writes, so
//!    each replica has every write that was ever confirmed. The mark also closes the replicas: a
//!    replica that is promoted refuses every batch.
//! 3. The handover requests a failover from a Sentinel. Then one transaction reads the mark of the
//!    old master and makes the old master a replica of the new one. If the mark is still there, the
//!    old master has confirmed nothing since step 1. As a replica it will confirm nothing. A
//!    majority of the known Sentinels names the new master in the configuration epoch of the
//!    promotion about a second later, and step 4 writes it: clients hear it, and a marker below it
//!    would begin a quarantine.
//! 4. The new master continues the data history if a script finds two conditions. First, the new
//!    master's data contain the mark of this closing: then the data contain all earlier writes, and
//!    no batch has used the data since. Second, the closing ends later than twice E from now. E is
//!    the largest error of any clock, so two clocks differ by at most twice E, and no other server
//!    with the mark can have opened by itself. So the new master has every write that was ever
//!    confirmed, and needs no quarantine.
//!
//! After the handover, leases end by the new server's clock, which may be ahead of the old one by
//! twice E. So for the length of one quarantine the new server lets leases end later. If a recently
//! used name is free by the new clock, the new server grants the name only to its last holder,
//! until twice E after the first request for the name. Claims last twice E longer. Names and keys
//! that were not in use are granted at once. During this time the server refuses another handover,
//! because the next server would have no record of those leases.
//!
//! A handover can stop for several reasons: a replica does not confirm the mark, no replica is
//! promoted, the wrong replica is promoted, or the old master can no longer be reached. Such a
//! handover loses no more than a failover loses. The mark is removed from the old master. If a
//! replica was promoted, the mark is removed from that replica, and the replica begins its
//! quarantine at once. If this process dies, the mark stays until D is over. Then the old master
//! opens by itself, and a new master begins its quarantine. After D, a copy of the mark on another
//! server has no effect. A second failover soon after the first one begins another data history,
//! with a quarantine: a server continues a data history only if it has the mark of *this* closing
//! and no batch has used the server since.
//!
//! A handover does not protect against replicas that lose confirmed data: within D, a replica would
//! have to be killed, restarted with an older disk, and promoted. No durability level protects
//! against that case.
//!
//! The restart of a lone server is a handover to itself. The server reads its data from its disk.
//! If these data lack the mark, writes are missing. The server stores the mark in a transaction,
//! like every grant. So a server that skips transactions while it loads its data skips the mark
//! too.

mod given_up;
mod marked;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use self::given_up::{Shut, unanswered};
use self::marked::{close_on, finish_on, open_on};
use super::gather::conn::info;
use super::masters::{self, Absent, Found, Master};
use super::promotion::Promotion;
use super::script::{self, Kind, Refusal};
use super::{Deployment, backlog};
use palisade::ConfigError;
use palisade::internal::lineage::Marker;
use palisade::internal::{Endpoint, default_clock_error};

pub(super) const LOOK: Duration = Duration::from_millis(50);
const REPLICAS: Duration = Duration::from_millis(1_500);
/// The wait for a promotion ends this much before the closed server opens by itself.
const LAST_STEPS: Duration = Duration::from_secs(2);

/// A planned handover of one node.
#[derive(Clone, Debug)]
#[must_use = "a handover does nothing before it is run"]
pub struct Handover {
    pub(super) deployment: Deployment,
    closed_for: Duration,
    clock_error: Duration,
    /// While a server is closed; for [`give_up`](Self::give_up).
    shut: Arc<Mutex<Option<Shut>>>,
}

/// The result of a handover.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandedOver {
    /// The new server continues the old server's data history: no lock and no key is lost.
    Done {
        /// The address of the master after the handover.
        at: String,
        /// Time for which the node answered no request.
        closed: Duration,
    },
    /// The handover stopped: nothing was changed, every change was undone, or the closed server
    /// accepts requests again by itself when its closed time ends. The text has the reason and an
    /// instruction.
    Refused(String),
    /// The handover failed. Another server may be the master now. It begins with a quarantine.
    FellBack(String),
    /// The last step of the handover was not answered. Either the new server continues the old
    /// server's data history without a loss of data, or the handover failed.
    Unknown(String),
    /// No server could be reached.
    Unreachable(String),
}

impl HandedOver {
    /// Returns the exit code: 0 if the handover is done, 69 if no server could be reached or the
    /// last step was not answered, else 2.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Done { .. } => 0,
            Self::Refused(_) | Self::FellBack(_) => 2,
            Self::Unknown(_) | Self::Unreachable(_) => 69,
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
                let what = "not handed over; it was an ordinary failover, with its quarantine";
                write!(f, "{what}: {why}")
            }
            Self::Unknown(why) => write!(f, "the result of the handover is unknown: {why}"),
            Self::Unreachable(why) => write!(f, "not reached: {why}"),
        }
    }
}

enum Unfinished {
    Failed(String),
    /// The new server may have continued the data history all the same.
    Unknown(String),
}

/// The master, or the replica that was promoted.
#[derive(Clone, Debug)]
pub(super) struct Closed {
    /// `host:port`.
    at: String,
    target: Endpoint,
    /// A replica that was promoted.
    is_new: bool,
    pub(super) marker: Marker,
    /// The own E, or the one by which clients go if that is larger.
    clock_error: Duration,
    allows_eviction: bool,
    since: Instant,
}

impl Handover {
    /// Creates a handover of the only node of a deployment. By default, a server stays closed for
    /// at most 20 s.
    pub fn new(deployment: Deployment) -> Self {
        let default = default_clock_error(palisade::Config::default().max_ttl);
        let clock_error = deployment.settings.clock_error.unwrap_or(default);
        Self { deployment, closed_for: Duration::from_secs(20), clock_error, shut: Arc::default() }
    }

    /// Sets D: the time after which a closed server opens by itself, one second to ten minutes. D
    /// must be longer than the failover or the restart plus twice `clock_error`.
    pub fn closed_for(mut self, span: Duration) -> Self {
        self.closed_for = span;
        self
    }

    /// Sets the largest error of any server's clock (E). Use the application's setting
    /// `clock_error`. Default: that of the deployment's settings, or 2 s.
    pub fn clock_error(mut self, error: Duration) -> Self {
        self.clock_error = error;
        self
    }

    /// Hands a group over to one of its replicas. Calls `tell` after each step, with a description
    /// of the step.
    ///
    /// # Errors
    /// [`ConfigError`] if a setting is invalid, or if the deployment does not name exactly one
    /// group. Failures of the servers are in the result.
    ///
    /// # Cancellation safety
    /// If the future is dropped at an await, the closed master opens again by itself after
    /// `closed_for`. If a replica was promoted before that, the promotion counts as an ordinary
    /// failover, with a quarantine.
    pub async fn group(&self, tell: impl Fn(&str)) -> Result<HandedOver, ConfigError> {
        let access = self.deployment.access()?;
        self.check(access.groups.len() == 1 && access.lone.is_empty(), "group")?;
        let (access, found) = masters::find(&self.deployment).await?;
        let Some(group) = access.groups.first() else { return Err(not_one("group")) };
        let master = match only(found) {
            Ok(master) => master,
            Err(absent) => return Ok(absent),
        };
        let promotion = Promotion { of: self, group, master: &master };
        let closing = async {
            promotion.rights().await?;
            let able = promotion.able().await?;
            Ok::<_, String>((able, self.close(&master, group.allows_eviction).await?))
        };
        let (able, closed) = match closing.await {
            Ok(closed) => closed,
            Err(why) => return Ok(HandedOver::Refused(why)),
        };
        tell(&format!("{} is closed, and all its replicas confirmed it", master.at));
        let new = match promotion.promoted(&able, self.until(&closed)).await {
            Ok(new) => new,
            Err(why) => return Ok(self.open(&master, &closed, why).await),
        };
        let target = promotion.target(&new);
        let taken = Closed { at: new.clone(), target, is_new: true, ..closed.clone() };
        self.shut(Some(Shut::Closed(taken.clone())));
        tell(&format!("{new} is promoted"));
        let taken_over = async {
            let note = promotion.demote(&new, &closed).await.map_err(Unfinished::Failed)?;
            tell(&format!("{} is its replica{note}", master.at));
            let epoch =
                promotion.epoch(&new, self.until(&closed)).await.map_err(Unfinished::Failed)?;
            self.finish(&taken, epoch).await
        };
        let closed_for = match taken_over.await {
            Ok(closed_for) => closed_for,
            Err(why) => return Ok(self.ended(&new, why).await),
        };
        let done = HandedOver::Done { at: new.clone(), closed: closed_for };
        tell(&format!("{new} goes on where {} stopped", master.at));
        backlog::keep_at((new.as_str(), &taken.target), &self.deployment, &tell).await;
        promotion.together(&new, &tell).await;
        Ok(done)
    }

    /// Hands a lone server over to itself: closes the server, awaits `restart`, and lets the server
    /// continue its data history. `restart` has to restart the server with its data. Calls `tell`
    /// after each step, with a description of the step.
    ///
    /// # Errors
    /// [`ConfigError`] if a setting is invalid, or if the deployment does not name exactly one lone
    /// server. Failures of the server are in the result.
    ///
    /// # Cancellation safety
    /// If the future is dropped at an await, the server opens again by itself after `closed_for`.
    /// If the server was restarted before that, the server begins with a quarantine.
    pub async fn lone(
        &self,
        restart: impl Future<Output = Result<(), String>>,
        tell: impl Fn(&str),
    ) -> Result<HandedOver, ConfigError> {
        let access = self.deployment.access()?;
        self.check(access.lone.len() == 1 && access.groups.is_empty(), "node")?;
        let (_, found) = masters::find(&self.deployment).await?;
        let master = match only(found) {
            Ok(master) => master,
            Err(absent) => return Ok(absent),
        };
        if master.keeps_nothing {
            let why = "it keeps nothing on disk (appendonly no, no save), so a restart empties it: \
                       CONFIG SET appendonly yes first";
            return Ok(HandedOver::Refused(format!("{}: {why}", master.at)));
        }
        let allows_eviction = access.lone.first().is_some_and(|lone| lone.allows_eviction);
        let closed = match self.close(&master, allows_eviction).await {
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
                let why = format!("no restarted server answered at {} in time", master.at);
                return Ok(self.open(&master, &closed, why).await);
            }
            sleep(LOOK).await;
        }
        tell(&format!("{} is back", master.at));
        let closed = match self.finish(&closed, None).await {
            Ok(closed) => closed,
            Err(why) => return Ok(self.ended(&master.at, why).await),
        };
        backlog::keep_at((master.at.as_str(), &master.target), &self.deployment, &tell).await;
        Ok(HandedOver::Done { at: master.at, closed })
    }

    fn check(&self, one: bool, what: &'static str) -> Result<(), ConfigError> {
        if !one {
            return Err(not_one(what));
        }
        let value = format!("{:?}", self.closed_for);
        if !(Duration::from_secs(1)..=Duration::from_secs(600)).contains(&self.closed_for) {
            let rule = "between one second and ten minutes";
            return Err(ConfigError::new("closed_for", value, rule));
        }
        let least = least(self.clock_error);
        if self.closed_for <= least {
            let rule = format!("more than 2·clock_error + 2 s ({least:?})");
            return Err(ConfigError::new("closed_for", value, rule));
        }
        Ok(())
    }

    /// After a later promotion or restart, the last steps would have too little time.
    pub(super) fn until(&self, closed: &Closed) -> Instant {
        closed.since + self.closed_for.saturating_sub(least(closed.clock_error))
    }

    /// Waits until every replica has the mark.
    async fn close(&self, master: &Master, allows_eviction: bool) -> Result<Closed, String> {
        if let Some(why) = &master.evicts {
            return Err(why.clone());
        }
        let conn = master.open(&self.deployment).await?;
        let since = Instant::now();
        self.shut(Some(Shut::Asked));
        let (marker, clock_error) =
            close_on(&conn, self, master.epoch).await.map_err(|refusal| {
                self.shut(None);
                let perhaps = refusal.kind == Kind::Failed;
                let then = if perhaps { self.opens_itself() } else { String::new() };
                format!("{}: {}{then}", master.at, refusal.why)
            })?;
        let (at, target) = (master.at.clone(), master.target.clone());
        let closed =
            Closed { at, target, is_new: false, marker, clock_error, allows_eviction, since };
        self.shut(Some(Shut::Closed(closed.clone())));
        let wanted = master.replicas.len();
        if wanted > 0 {
            let have = script::wait(&conn, wanted, REPLICAS.min(self.deployment.within())).await;
            if have < wanted {
                let at = &master.at;
                let why = format!("only {have} of {wanted} replicas of {at} confirmed the closing");
                return Err(self.open(master, &closed, why).await.to_string());
            }
        }
        Ok(closed)
    }

    fn opens_itself(&self) -> String {
        format!("; if it is closed, it opens by itself within {:?}", self.closed_for)
    }

    async fn open(&self, master: &Master, closed: &Closed, why: String) -> HandedOver {
        let at = &master.at;
        let conn = match master.open(&self.deployment).await {
            Ok(conn) => conn,
            Err(said) => {
                self.shut(None);
                let left = self.closed_for.saturating_sub(closed.since.elapsed());
                return HandedOver::Refused(format!(
                    "{why}; {at} cannot be reached ({said}): it opens by itself within {left:.0?}, \
                     and begins with a quarantine if it was restarted"
                ));
            }
        };
        let opened = open_on(&conn, closed).await;
        self.shut(None);
        let facts = conn.query("INFO server", "INFO", info).await.unwrap_or_default();
        if facts.get("run_id").is_some_and(|now| *now != master.run_id) {
            let state = match opened {
                Ok(()) => "it is open".to_owned(),
                Err(refusal) => refusal.why,
            };
            let what = format!("{why}; {at} was restarted nevertheless: {state}");
            return HandedOver::FellBack(what);
        }
        HandedOver::Refused(match opened {
            Ok(()) => format!("{why}; {at} is open again"),
            Err(refusal) => {
                let left = self.closed_for.saturating_sub(closed.since.elapsed());
                format!("{why}; {at} opens by itself within {left:.0?} ({})", refusal.why)
            }
        })
    }

    /// A new process, which has loaded its data.
    async fn is_another(&self, master: &Master) -> bool {
        let Ok(conn) = master.open(&self.deployment).await else { return false };
        let facts = conn.query("INFO", "INFO", info).await.unwrap_or_default();
        let is = |name: &str, value: &str| facts.get(name).is_some_and(|v| v == value);
        facts.contains_key("run_id") && !is("run_id", &master.run_id) && !is("loading", "1")
    }

    /// As soon as the server accepts writes. Returns the time for which it was closed. If no answer
    /// arrives, sends the request again: an earlier write of it is recognised.
    async fn finish(&self, closed: &Closed, epoch: Option<u64>) -> Result<Duration, Unfinished> {
        let at = &closed.at;
        let apart = u64::try_from((2 * closed.clock_error).as_millis()).unwrap_or(u64::MAX);
        let under = (epoch, apart, closed.allows_eviction);
        // The server may have executed a write without an answer.
        let mut sent = false;
        loop {
            let why = match masters::open(&closed.target, &self.deployment).await {
                Ok(conn) => {
                    self.shut(Some(Shut::Finishing(closed.clone())));
                    match finish_on(&conn, closed, under, &mut sent).await {
                        Ok(()) => {
                            let (at, span) = (at.clone(), closed.since.elapsed());
                            self.shut(Some(Shut::Done { at, closed: span }));
                            return Ok(span);
                        }
                        Err(Refusal { kind: Kind::Changed, why }) if sent => {
                            return Err(Unfinished::Unknown(why));
                        }
                        // A new master refuses writes until a replica follows it.
                        Err(Refusal { kind: Kind::Failed, why }) => why,
                        Err(refusal) => {
                            // The closing is still there, or was gone before the first write.
                            self.shut(Some(Shut::Closed(closed.clone())));
                            return Err(Unfinished::Failed(format!("{at}: {}", refusal.why)));
                        }
                    }
                }
                Err(why) => why,
            };
            // For some seconds after the server has opened by itself an answer shows if an earlier
            // request was executed.
            let over = closed.since.elapsed().saturating_sub(self.closed_for);
            if sent && over > LAST_STEPS {
                return Err(Unfinished::Unknown(why));
            } else if !sent && !over.is_zero() {
                return Err(Unfinished::Failed(format!("{at}: {why}")));
            }
            sleep(LOOK).await;
        }
    }

    /// Opens the server if it is still closed.
    async fn ended(&self, at: &str, why: Unfinished) -> HandedOver {
        match why {
            Unfinished::Failed(why) => {
                let then = match self.shut(None) {
                    Some(Shut::Closed(closed) | Shut::Finishing(closed)) => {
                        let opened = self.reopen(&closed).await;
                        opened.err().unwrap_or_else(|| "it is open again".to_owned())
                    }
                    _ => String::new(),
                };
                HandedOver::FellBack(format!("{why}; {at}: {then}"))
            }
            Unfinished::Unknown(why) => {
                self.shut(None);
                HandedOver::Unknown(format!("{at}: {}", unanswered(&why)))
            }
        }
    }
}

fn least(clock_error: Duration) -> Duration {
    2 * clock_error + LAST_STEPS
}

fn not_one(what: &'static str) -> ConfigError {
    let rule = "one at a time: name one group, or one lone server";
    ConfigError::new(what, "another number", rule)
}

fn only(found: Vec<Found>) -> Result<Master, HandedOver> {
    let Some(found) = found.into_iter().next() else {
        let why = "no node was named: name a group or a lone server";
        return Err(HandedOver::Refused(why.to_owned()));
    };
    match found.master {
        Ok(master) => Ok(master),
        Err(Absent::Refused(why)) => Err(HandedOver::Refused(why)),
        Err(Absent::Unreachable(why)) => Err(HandedOver::Unreachable(why)),
    }
}
