//! A planned handover: of a group to one of its replicas, or of a lone server to itself after a
//! restart. No lock and no key is lost, and the interruption is short.
//!
//! # How, and why nothing is lost
//!
//! 1. The master is *closed*: its marker says so for a time D. From then on the master refuses
//!    every whole batch, so it confirms nothing. Opening it again (by a person, or by the first
//!    batch after D) removes the mark first.
//! 2. Every known replica confirms that it has the closing. Replication keeps the order of writes,
//!    so each replica has everything that was ever confirmed; and because the mark closes replicas
//!    too, none of them would answer if it were promoted.
//! 3. A Sentinel is asked for a failover. The old master immediately becomes a replica of the new
//!    one, in one transaction that also reads its mark: the mark is still there, so nothing was
//!    confirmed since step 1, and nothing will be.
//! 4. The new master goes on. The script checks two things itself: its data hold this closing, so
//!    they hold all earlier writes and were not used since; and the time is more than twice E (the
//!    most that two clocks differ) before the closing ends, so no other server with the mark can
//!    have opened by itself. So its data are everything that was ever confirmed. Its memory is as
//!    complete as the old master's was, it continues the same data history, and there is nothing to
//!    wait for.
//!
//! One thing changes: leases now end by the new server's clock, which may be ahead by twice E. So
//! for the length of one quarantine a recently used name that is free by that clock is kept for
//! twice E from the first request for it, and claims last that much longer. Names and keys that
//! were not in use are granted at once. During this time it cannot be handed over again: the next
//! server would not know of those leases.
//!
//! Wherever this stops (a replica does not confirm, nobody or another one is promoted, the old
//! master is not reached any more), nothing is lost that a failover would keep. The mark is removed
//! from the old master or, if a replica was promoted, from that replica, which then begins its
//! quarantine at once. If that is impossible, because this process dies, the old master opens by
//! itself when D is over; a new one stays closed until then and begins its quarantine only then. A
//! copy of the mark that appears later has no effect, because its time is over. A second failover
//! soon after begins its own data history, with its own quarantine: a server goes on only if its
//! mark is *this* closing, unused.
//!
//! This does not cover replicas that lose data that they confirmed (killed, back with an older
//! disk, and promoted, all within D); no durability level does.
//!
//! A restart of a lone server is a handover to itself: the data that it reads from its disk hold
//! the closing, or writes are missing. The closing is a transaction, as every grant is, so a server
//! that skips transactions while loading skips both.

mod given_up;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use self::given_up::{Shut, Shutter, unanswered};
use super::Deployment;
use super::gather::conn::info;
use super::masters::{self, Absent, Found, Master};
use super::promotion::Promotion;
use super::script;
use palisade::ConfigError;
use palisade::internal::default_clock_error;

/// Interval of the checks for progress.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// Longest wait for the replicas to have the closing.
const REPLICAS: Duration = Duration::from_millis(1_500);
/// Time left for the last steps when a promotion is no longer waited for.
const LAST_STEPS: Duration = Duration::from_secs(2);

/// A planned handover of one node.
#[derive(Clone, Debug)]
#[must_use = "a handover does nothing before it is run"]
pub struct Handover {
    pub(super) deployment: Deployment,
    closed_for: Duration,
    clock_error: Duration,
    /// How far it has come, until a server is open again; for [`give_up`](Self::give_up).
    shut: Arc<Mutex<Option<Shut>>>,
}

/// The result of a handover.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandedOver {
    /// The new server goes on where the old one stopped.
    Done {
        /// The server that serves now.
        at: String,
        /// Time for which no request was answered.
        closed: Duration,
    },
    /// Nothing was changed, or every change was undone, or the server undoes it by itself: why, and
    /// what to do.
    Refused(String),
    /// The handover failed: another server may serve now, and begins with a quarantine.
    FellBack(String),
    /// The last step got no answer: the new server goes on where the old one stopped, or the
    /// handover failed.
    Unknown(String),
    /// Nobody could be reached.
    Unreachable(String),
}

impl HandedOver {
    /// 0 done, 2 not, 69 not reached, before or at the end.
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
                write!(
                    f,
                    "not handed over; it was an ordinary failover, with its quarantine: \
                           {why}"
                )
            }
            Self::Unknown(why) => write!(f, "unknown whether it was handed over: {why}"),
            Self::Unreachable(why) => write!(f, "not reached: {why}"),
        }
    }
}

/// Cause that stopped it.
pub(super) enum Stopped {
    /// Before anything was changed, or where it could be opened again.
    Back(String),
    /// Where another server may have been promoted.
    Late(String),
}

/// Reason for which the new server may not go on.
enum Unfinished {
    Failed(String),
    /// It may, but for all answers that came.
    Unknown(String),
}

/// A master that is closed.
pub(super) struct Closed {
    /// The marker as the closing left it.
    pub(super) marker: String,
    since: Instant,
}

impl Handover {
    /// Of the one node that this deployment names. A master stays closed for at most 20 s.
    pub fn new(deployment: Deployment) -> Self {
        let clock_error = default_clock_error(palisade::Config::default().max_ttl);
        Self { deployment, closed_for: Duration::from_secs(20), clock_error, shut: Arc::default() }
    }

    /// D: longest time for which the server stays closed if it is not opened again; one second to
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

    /// Hands a group over to one of its replicas. `tell` is called with each step that is done.
    ///
    /// # Errors
    /// What was given makes no sense, or names no group or more than one. What the servers did is
    /// in the result.
    ///
    /// # Cancellation safety
    /// Dropped at an await the master opens again by itself after `closed_for`; if a replica was
    /// promoted by then, that was an ordinary failover.
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
        let closed = match promotion.rights().await {
            Ok(()) => self.close(&master).await,
            Err(why) => Err(why),
        };
        let closed = match closed {
            Ok(closed) => closed,
            Err(why) => return Ok(HandedOver::Refused(why)),
        };
        tell(&format!("{} is closed, and all its replicas confirmed it", master.at));
        let new = match promotion.promoted(&closed).await {
            Ok(new) => new,
            Err(Stopped::Back(why)) => return Ok(self.open(&master, &closed, why).await),
            Err(Stopped::Late(why)) => {
                self.open(&master, &closed, String::new()).await;
                return Ok(HandedOver::FellBack(why));
            }
        };
        let target = promotion.target(&new);
        let shutter =
            Shutter { target: target.clone(), marker: closed.marker.clone(), is_new: true };
        self.shut(Some(Shut::Closed(shutter.clone())));
        tell(&format!("{new} is promoted"));
        let taken_over = async {
            let note = promotion.demote(&new, &closed).await.map_err(Unfinished::Failed)?;
            tell(&format!("{} is its replica{note}", master.at));
            self.finish(shutter, &new, &closed).await
        };
        let closed_for = match taken_over.await {
            Ok(closed_for) => closed_for,
            Err(why) => return Ok(self.ended(&new, why).await),
        };
        let done = HandedOver::Done { at: new.clone(), closed: closed_for };
        tell(&format!("{new} goes on where {} stopped", master.at));
        promotion.together(&new, &tell).await;
        Ok(done)
    }

    /// Hands a lone server over to itself: closes it, awaits `restart`, which restarts it with its
    /// data, and lets it go on. `tell` is called with each step that is done.
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
                let why = format!("no restarted server answered at {} in time", master.at);
                return Ok(self.open(&master, &closed, why).await);
            }
            sleep(LOOK).await;
        }
        tell(&format!("{} is back", master.at));
        let (target, marker) = (master.target.clone(), closed.marker.clone());
        let shutter = Shutter { target, marker, is_new: false };
        Ok(match self.finish(shutter, &master.at, &closed).await {
            Ok(closed) => HandedOver::Done { at: master.at, closed },
            Err(why) => self.ended(&master.at, why).await,
        })
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
        if self.closed_for <= 2 * self.clock_error + LAST_STEPS {
            let rule =
                format!("more than 2·clock_error + 2 s ({:?})", 2 * self.clock_error + LAST_STEPS);
            return Err(ConfigError::new("closed_for", value, rule));
        }
        Ok(())
    }

    /// Returns the time after which a promotion or restart is too late to be finished.
    pub(super) fn until(&self, closed: &Closed) -> Instant {
        closed.since + self.closed_for.saturating_sub(2 * self.clock_error + LAST_STEPS)
    }

    /// Closes the master, and waits until every replica has it.
    async fn close(&self, master: &Master) -> Result<Closed, String> {
        let conn = master.open(&self.deployment).await?;
        let since = Instant::now();
        let ms = self.closed_for.as_millis().to_string();
        self.shut(Some(Shut::Asked));
        let marker = script::run(&conn, script::CLOSE, &[&ms]).await;
        let closed = match marker {
            Ok(marker) => {
                let (target, its) = (master.target.clone(), marker.clone());
                self.shut(Some(Shut::Closed(Shutter { target, marker: its, is_new: false })));
                Closed { marker, since }
            }
            Err(refusal) => {
                self.shut(None);
                let perhaps = matches!(refusal, script::Refusal::Failed(_));
                let then = if perhaps { self.opens_itself() } else { String::new() };
                return Err(format!("{}: {}{then}", master.at, refusal.reason()));
            }
        };
        let wanted = master.replicas.len();
        if wanted > 0 {
            let have = script::wait(&conn, wanted, REPLICAS.min(self.deployment.within)).await;
            if have < wanted {
                let why = format!(
                    "only {have} of {wanted} replicas of {} confirmed the \
                             closing",
                    master.at
                );
                return Err(self.open(master, &closed, why).await.to_string());
            }
        }
        Ok(closed)
    }

    fn opens_itself(&self) -> String {
        format!("; if it is closed, it opens by itself within {:?}", self.closed_for)
    }

    /// Opens the master again after a failure, and reports its state.
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
        let opened = script::run(&conn, script::OPEN, &[&closed.marker]).await;
        self.shut(None);
        let run_id = conn.say("INFO server", "INFO").await.then("INFO", info);
        let run_id = run_id.ok().and_then(|facts| facts.get("run_id"));
        if run_id.is_some_and(|now| *now != master.run_id) {
            let state = match opened {
                Ok(_) => "it is open".to_owned(),
                Err(refusal) => refusal.reason(),
            };
            return HandedOver::FellBack(format!(
                "{why}; {at} was restarted nevertheless: {state}"
            ));
        }
        HandedOver::Refused(match opened {
            Ok(_) => format!("{why}; {at} is open again"),
            Err(refusal) => {
                let left = self.closed_for.saturating_sub(closed.since.elapsed());
                format!("{why}; {at} opens by itself within {left:.0?} ({})", refusal.reason())
            }
        })
    }

    /// Returns true if another process answers, with its data loaded.
    async fn is_another(&self, master: &Master) -> bool {
        let Ok(conn) = master.open(&self.deployment).await else { return false };
        let facts = conn.say("INFO", "INFO").await.then("INFO", info);
        let Some(facts) = facts.ok() else { return false };
        let is = |name: &str, value: &str| facts.get(name).is_some_and(|v| v == value);
        facts.contains_key("run_id") && !is("run_id", &master.run_id) && !is("loading", "1")
    }

    /// Lets the server go on as soon as it takes writes. An answer that was lost is asked for
    /// again: the script tells what it has done before from what it has not.
    /// Returns how long it was closed.
    async fn finish(
        &self,
        shutter: Shutter,
        at: &str,
        closed: &Closed,
    ) -> Result<Duration, Unfinished> {
        let apart = (2 * self.clock_error).as_millis().to_string();
        // An earlier request may have been executed.
        let mut sent = false;
        loop {
            let why = match masters::open(&shutter.target, &self.deployment).await {
                Ok(conn) => {
                    self.shut(Some(Shut::Finishing(shutter.clone())));
                    match script::run(&conn, script::FINISH, &[&closed.marker, &apart]).await {
                        Ok(_) => {
                            let (at, span) = (at.to_owned(), closed.since.elapsed());
                            self.shut(Some(Shut::Done { at, closed: span }));
                            return Ok(span);
                        }
                        Err(script::Refusal::Changed(why)) if sent => {
                            return Err(Unfinished::Unknown(why));
                        }
                        // A new master takes no writes before a replica follows it.
                        Err(script::Refusal::Failed(why)) => {
                            sent = true;
                            why
                        }
                        Err(refusal) => {
                            // It did nothing, nor did an earlier one.
                            self.shut(Some(Shut::Closed(shutter)));
                            return Err(Unfinished::Failed(format!("{at}: {}", refusal.reason())));
                        }
                    }
                }
                Err(why) => why,
            };
            // Whoever answers after the closing is over says what has become of it.
            let over = closed.since.elapsed().saturating_sub(self.closed_for);
            if sent && over > LAST_STEPS {
                return Err(Unfinished::Unknown(why));
            } else if !sent && !over.is_zero() {
                return Err(Unfinished::Failed(format!("{at}: {why}")));
            }
            sleep(LOOK).await;
        }
    }

    /// Returns the result if the new server may not go on; opens that again if it is closed.
    async fn ended(&self, at: &str, why: Unfinished) -> HandedOver {
        match why {
            Unfinished::Failed(why) => {
                let then = match self.shut(None) {
                    Some(Shut::Closed(shutter) | Shut::Finishing(shutter)) => {
                        let opened = self.reopen(&shutter).await;
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

fn not_one(what: &'static str) -> ConfigError {
    let rule = "one at a time: name one group, or one lone server";
    ConfigError::new(what, "another number", rule)
}

/// The only node there is.
fn only(found: Vec<Found>) -> Result<Master, HandedOver> {
    let Some(found) = found.into_iter().next() else {
        return Err(HandedOver::Refused(
            "no node was named: name a group or a lone \
                                        server"
                .to_owned(),
        ));
    };
    match found.master {
        Ok(master) => Ok(master),
        Err(Absent::Refused(why)) => Err(HandedOver::Refused(why)),
        Err(Absent::Unreachable(why)) => Err(HandedOver::Unreachable(why)),
    }
}
