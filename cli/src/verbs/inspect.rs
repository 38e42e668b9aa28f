//! The commands `palisade inspect` and `palisade force-release`.

use std::cmp::Reverse;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use nix::sys::signal::Signal;
use palisade::election::Leader;
use palisade::{Inspection, LockGuard, LockHolder, NodeView};
use serde_json::{Value, json};

use super::leader::{leader_json, leader_line};
use super::{Ground, GroundArgs, permits, refused};
use crate::Done;
use crate::codes::{Fail, NOT_ACQUIRED, REFUSED, UNAVAILABLE, USAGE};
use crate::say::Say;

/// Number of readers that are printed one by one.
const SHOWN: usize = 8;

/// Prints the holder or the readers of the lock NAME, according to each node, or with --permits who
/// has the slots of the semaphore NAME. Changes nothing.
///
/// Elections, semaphores and locks have separate names. If the lock is free and an election NAME
/// has a leader, the command also prints the leader.
///
/// Exit code 0 if the lock is held, by a holder or by readers, or free; 69 if a majority shows
/// none of these, or does not report the permits.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    ground: GroundArgs,
    /// Name of the lock, or of the semaphore
    name: String,
    /// Print the permits of the semaphore NAME, which has this number of them
    #[arg(long, value_name = "K")]
    permits: Option<u16>,
}

/// Takes the lock NAME from a holder that hangs. A lock that is held for reading cannot be taken,
/// nor can a permit of a semaphore: end the processes that have them.
///
/// The fence (the last fencing token) rises at once. So a resource that checks fencing tokens
/// refuses the old holder. The lock stays closed until the end of the old holder's lease. So two
/// holders never rely on the lock at the same time. After that the lock is free, even if this
/// command ends early. The command prints the time until then, and waits.
///
/// Exit code 0 if the lock was taken and is free again, 2 if readers hold it or permits are held,
/// 75 if it is free.
#[derive(Debug, Args)]
pub(crate) struct ForceArgs {
    #[command(flatten)]
    ground: GroundArgs,
    /// Name of the lock
    name: String,
    /// Reason, which `inspect` prints until the lock is free again
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Print the holders of the semaphore NAME with K permits; takes no permit
    #[arg(long, value_name = "K")]
    permits: Option<u16>,
    /// Take the lock; without this option, the command only prints the holder who would lose the
    /// lock
    #[arg(long)]
    yes: bool,
}

impl InspectArgs {
    pub(crate) async fn run(self) -> Result<Done, Fail> {
        let json = self.ground.say.json;
        let ground = self.ground.without_signals()?;
        if let Some(permits) = self.permits {
            return permits::inspect(&ground, &self.name, permits, json).await;
        }
        let seen = ground.mutex(&self.name, None)?.inspect().await;
        let seen = seen.map_err(|e| refused(&e, None))?;
        let known = seen.holder().is_some() || seen.reader_count() > 0 || seen.is_free();
        let leader = if seen.is_free() { leader(&ground, &self.name).await } else { None };
        let text = if json {
            whole(&self.name, &seen, leader.as_ref()).to_string()
        } else {
            table(&self.name, &seen, leader.as_ref())
        };
        Ok(Done { text: text + "\n", code: if known { 0 } else { UNAVAILABLE } })
    }
}

impl ForceArgs {
    pub(crate) async fn run(self) -> Result<u8, Fail> {
        let ground = self.ground.ground()?;
        if let Some(permits) = self.permits {
            return Err(permits::cannot_be_taken(&ground, &self.name, permits).await);
        }
        // The guard is not renewed. So the printed end of its lease is correct even if this process
        // dies.
        let mutex = ground.redlock.mutex(&self.name).auto_renew(false).build();
        let mutex = mutex?;
        let seen = mutex.inspect().await.map_err(|e| refused(&e, None))?;
        let Some(holder) = seen.holder() else {
            let (code, why) = if seen.is_free() {
                (NOT_ACQUIRED, "no owner holds it".to_owned())
            } else if seen.reader_count() > 0 {
                let why = "a lock cannot be taken from a reader: end the processes that read; \
                           their grants end within their ttl (a program limits that of a reader \
                           that hangs by `max_hold`)";
                (REFUSED, format!("held by {}; {why}", readers(&seen)))
            } else {
                (UNAVAILABLE, "no majority names a holder".to_owned())
            };
            return Err(Fail::new(code, format!("lock {:?}: {why}", self.name)));
        };
        if !self.yes {
            let why = format!("lock {:?} is held by {}; add --yes", self.name, line(&holder));
            return Err(Fail::new(USAGE, why));
        }
        let longest = ground.redlock.config().max_ttl;
        if holder.remaining > longest {
            let left = holder.remaining;
            let text = format!(
                "lock {:?}: its lease ends in {left:.1?}, later than max_ttl ({longest:?}) allows: \
                 the lock is taken when the rest of the lease is at most max_ttl, which does not \
                 happen while the holder renews it; to take it now, set --max-ttl to the holder's \
                 max_ttl",
                self.name
            );
            let fields = json!({ "name": self.name, "remaining_ms": left.as_millis(),
                                 "max_ttl_ms": longest.as_millis() });
            ground.say.warn("long_lease", fields, &text);
        }
        let perhaps = format!("where nodes gave it away, it stays closed for {longest:?} at most");
        let taken = tokio::select! {
            biased;
            taken = mutex.take_over(&holder, &self.reason) => taken,
            signal = ground.signals.next() => {
                return Ok(stopped(ground.say, signal, &self.name, &perhaps));
            }
        };
        let won = taken.map_err(|e| {
            let Fail { code, why } = refused(&e, None);
            Fail::new(code, format!("{why}; {perhaps}"))
        })?;
        let fence = won.guard.fencing_token();
        let (until_ms, closed) = closed_until(&won.guard);
        let fields = json!({ "name": self.name, "token": fence.get(), "reason": self.reason,
                             "from": holder.owner, "free_in_ms": won.closed_for.as_millis(),
                             "closed_until_ms": until_ms });
        let text = format!(
            "lock {:?}: taken from {}; the fence is {fence} now; {closed}, whatever becomes of \
             this command, and is free then",
            self.name,
            line(&holder)
        );
        ground.say.warn("forced", fields, &text);
        tokio::select! {
            biased;
            () = tokio::time::sleep(won.closed_for) => {}
            signal = ground.signals.next() => {
                let (_, closed) = closed_until(&won.guard);
                return Ok(stopped(ground.say, signal, &self.name, &closed));
            }
        }
        // The lease has ended here. The release wakes the waiters. So they get the lock a little
        // sooner.
        drop(won.guard.release().await);
        ground.close().await;
        Ok(0)
    }
}

/// Returns the leader of the election `name`, or `None` if no leader was found.
async fn leader(ground: &Ground, name: &str) -> Option<Leader> {
    let election = ground.redlock.election(name).build().ok()?;
    election.leader().await.ok().flatten()
}

/// Reports that a signal ended the command, and returns its exit code.
fn stopped(say: Say, signal: Signal, name: &str, then: &str) -> u8 {
    let text = format!("lock {name:?}: stopped by {signal}; {then}");
    say.warn("stopped", json!({ "name": name, "signal": signal.as_str() }), &text);
    128 + signal as u8
}

/// Returns the earliest time at which the lock is free, in ms since 1970 and as text.
fn closed_until(guard: &LockGuard) -> (u128, String) {
    let left = guard.remaining();
    let until = (SystemTime::now() + left).duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = until.as_secs() % 86_400;
    let (h, m, s) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let words = format!("it stays closed for {left:.1?}, until {h:02}:{m:02}:{s:02} UTC");
    (until.as_millis(), words)
}

/// Returns the holder as text.
pub(super) fn line(holder: &LockHolder) -> String {
    let LockHolder { owner, fence, remaining, note, .. } = holder;
    let note = note.as_ref().map(|note| format!(", {note:?}")).unwrap_or_default();
    format!("{owner} (fence {fence}, {remaining:.1?} of its lease left{note})")
}

/// Returns a number of readers in words.
pub(super) fn number(readers: usize) -> String {
    if readers == 1 { "1 reader".to_owned() } else { format!("{readers} readers") }
}

/// Returns the number of readers, and the first of them: those whose grants end last.
fn readers(seen: &Inspection) -> String {
    let mut listed = seen.readers();
    listed.sort_by_key(|reader| Reverse(reader.remaining));
    let left = |reader: &LockHolder| format!("{} ({:.1?} left)", reader.owner, reader.remaining);
    let mut words: Vec<_> = listed.iter().take(SHOWN).map(left).collect();
    let more = seen.reader_count() - words.len();
    if more > 0 {
        words.push(format!("{more} more (`inspect --json` lists 64 of each node)"));
    }
    format!("{}: {}", number(seen.reader_count()), words.join(", "))
}

fn table(name: &str, seen: &Inspection, leader: Option<&Leader>) -> String {
    let mut text = match (seen.holder(), leader) {
        (Some(holder), _) => format!("held by {}", line(&holder)),
        (None, Some(leader)) => {
            let leader = leader_line(leader);
            format!("free as a lock; {name:?} is an election: {leader}")
        }
        (None, None) if seen.is_free() => "free".to_owned(),
        (None, None) if seen.reader_count() > 0 => format!("held by {}", readers(seen)),
        (None, None) => {
            "unknown: no majority names a holder or readers, or reports that it is free".to_owned()
        }
    };
    for (node, view) in &seen.nodes {
        let (_, view) = shown(view);
        text.extend(["\n  ", node.as_ref(), ": ", &view]);
    }
    text
}

/// Returns the reply of a node as a JSON object and as text.
fn shown(view: &NodeView) -> (Value, String) {
    match view {
        NodeView::Free => (json!({ "state": "free" }), "free".to_owned()),
        NodeView::Held(holder) => {
            (json!({ "state": "held", "holder": holder_json(holder) }), line(holder))
        }
        NodeView::Readers { count, listed, .. } => {
            let left = listed.iter().map(|reader| reader.remaining).max().unwrap_or_default();
            let listed: Vec<_> = listed.iter().map(holder_json).collect();
            (
                json!({ "state": "read", "count": count, "readers": listed }),
                format!("{}, for {left:.1?}", number(*count as usize)),
            )
        }
        NodeView::Kept(left) => (
            json!({ "state": "kept", "remaining_ms": left.as_millis() }),
            format!("free after a handover; kept for its old holder for another {left:.1?}"),
        ),
        NodeView::Foreign(left) => {
            let end = left.map_or("without an end".to_owned(), |left| format!("for {left:.1?}"));
            let left = left.map(|left| left.as_millis());
            (
                json!({ "state": "foreign", "remaining_ms": left }),
                format!(
                    "another program's, or readers that this user may not read (+zrange), {end}"
                ),
            )
        }
        NodeView::Unknown(why) => {
            (json!({ "state": "unknown", "why": why.to_string() }), why.to_string())
        }
        _ => (json!({}), String::new()),
    }
}

fn holder_json(holder: &LockHolder) -> Value {
    json!({ "owner": holder.owner, "fence": holder.fence.get(),
            "remaining_ms": holder.remaining.as_millis(), "note": holder.note })
}

fn whole(name: &str, seen: &Inspection, leader: Option<&Leader>) -> Value {
    let state = match seen.holder() {
        Some(_) => "held",
        None if seen.is_free() => "free",
        None if seen.reader_count() > 0 => "read",
        None => "unknown",
    };
    let nodes = seen.nodes.iter().map(|(node, view)| {
        let (mut object, _) = shown(view);
        object["node"] = node.as_ref().into();
        object
    });
    json!({ "name": name, "state": state, "holder": seen.holder().as_ref().map(holder_json),
            "reader_count": seen.reader_count(), "election": leader.map(leader_json),
            "nodes": nodes.collect::<Vec<_>>() })
}
