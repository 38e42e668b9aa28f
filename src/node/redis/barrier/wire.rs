//! The connection for barriers. A round has three steps: a write, a `WAIT` for replicas that have
//! it, and an `INFO` that shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{Either, join, join3, ready};
use redis::{AsyncConnectionConfig, Cmd, Pipeline, PushInfo, PushKind, RedisError, Value};
use tokio::time::{sleep, timeout};

use super::super::facts::{field, is_history};
use super::super::faults;
use super::super::session::ask;
use super::replicas::{Attached, attached};
use crate::dial::Line;
use crate::dial::endpoint::Endpoint;
use crate::dial::frames::Limits;
use crate::error::{NodeError, NodeFault};
use crate::name::slot_key;

/// Written by each round before its `WAIT`: without a write before it, or after a command that
/// changes nothing (`PING`, a refused `SET NX`), the server answers at once, and that proves
/// nothing.
pub(super) const KEY: &str = crate::name::BARRIER;
/// In milliseconds. No program reads the key.
const LIFE: u32 = 1_000;
/// After a `WAIT`'s time-out: then another command makes the server answer an overdue one.
const LATE: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_millis(250);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) have: u32,
    pub(super) attached: Vec<Attached>,
    /// The master's, when the round began. A replica that has acknowledged it has everything
    /// written before.
    pub(super) offset: u64,
    pub(super) history_id: u64,
    /// Slots in which nothing could be written.
    pub(super) refused: BTreeMap<Option<u16>, NodeError>,
}

impl Round {
    pub(super) fn connected(&self) -> u32 {
        u32::try_from(self.attached.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn online(&self) -> u32 {
        u32::try_from(self.attached.iter().filter(|a| a.online).count()).unwrap_or(u32::MAX)
    }
}

/// For barriers alone, because a blocked `WAIT` blocks all later requests on its connection.
pub(super) struct Wire {
    con: Line,
    lost: Arc<AtomicBool>,
}

impl Wire {
    /// Checks that the server is still the process `run_id`. The caller has to set a time-out.
    pub(super) async fn open(at: &Endpoint, run_id: &str) -> Result<Self, NodeError> {
        let lost = Arc::new(AtomicBool::new(false));
        let gone = Arc::clone(&lost);
        let config = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                gone.store(true, Ordering::Release);
            }
            Ok::<(), redis::aio::SendError>(())
        });
        let opening = |e| faults::opening(&e, at.is_tls(), &at.secrets());
        let con = at.dial("confirmations", config, Limits::WORDS).await.map_err(opening)?;
        let info = ask(&con, redis::cmd("INFO").arg("server")).await;
        let info = text(info).map_err(|e| faults::connecting(&con.blamed(e), &con.secrets()))?;
        if field(&info, "run_id") != Some(run_id) {
            let detail = "another server process listens there since";
            return Err(NodeError::maybe_executed(NodeFault::NotDurable, detail));
        }
        Ok(Self { con, lost })
    }

    /// By the server, or a proxy on the way.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// At most for `within`, until `k` replicas have everything that the server has executed so
    /// far. After an error the connection must not be used again.
    /// `slots`: of a cluster, in each of which it writes.
    pub(super) async fn round(
        &self,
        k: u32,
        within: Duration,
        slots: &BTreeSet<Option<u16>>,
    ) -> Result<Round, NodeError> {
        let mut write = Pipeline::with_capacity(slots.len() + 1);
        for slot in slots {
            let key = slot.map_or(KEY.to_owned(), |slot| slot_key(slot, KEY));
            write.cmd("SET").arg(key).arg("").arg("PX").arg(LIFE);
        }
        // Together with the write, so that a write of another client rarely comes between.
        write.cmd("INFO").arg("replication");
        // With a time-out of zero, `WAIT` would block without limit.
        let ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1);
        let wait = redis::cmd("WAIT").arg(k).arg(ms).take();
        // After the `WAIT`: whether the server is still the master, in the same data history as at
        // the grant. If so, it was not demoted in between, because every promotion begins a new
        // one.
        let info = redis::cmd("INFO").arg("replication").take();
        let count = if k == 0 {
            Either::Left(ready(Ok(Value::Int(0))))
        } else {
            Either::Right(self.ask(&wait))
        };
        let begun =
            async { self.con.clone().send_packed_commands(&write, 0, slots.len() + 1).await };
        let mut answers = pin!(join3(begun, count, self.ask(&info)));
        let (begun, have, info) = tokio::select! {
            biased;
            answers = &mut answers => answers,
            () = sleep(within + LATE) => {
                // An idle server checks the time-outs of blocked clients only ten times a second; a
                // request makes it check at once.
                let nudge = redis::cmd("TIME");
                let all = join(&mut answers, self.ask(&nudge));
                timeout(PATIENCE, all).await.map_err(|_| silent())?.0
            }
        };
        let calling = |e| faults::calling(&self.con.blamed(e), &self.con.secrets());
        let mut written = begun.map_err(calling)?;
        let before = text(written.pop().unwrap_or(Value::Nil).extract_error()).map_err(calling)?;
        let refused = slots.iter().zip(written).filter_map(|(slot, written)| {
            Some((*slot, calling(written.extract_error().err()?).after_execution()))
        });
        let refused = refused.collect();
        let have = have.map_err(calling)?;
        let info = text(info).map_err(calling)?;
        Ok(Round { refused, ..read(&before, &have, &info)? })
    }

    async fn ask(&self, cmd: &Cmd) -> Result<Value, RedisError> {
        ask(&self.con, cmd).await
    }
}

fn silent() -> NodeError {
    let detail = "the server did not answer when WAIT had to be over";
    NodeError::maybe_executed(NodeFault::Timeout, detail)
}

fn text(answer: Result<Value, RedisError>) -> Result<String, RedisError> {
    answer.and_then(|value| redis::from_redis_value(value).map_err(Into::into))
}

fn read(before: &str, have: &Value, info: &str) -> Result<Round, NodeError> {
    let garbage = |what| NodeError::maybe_executed(NodeFault::Protocol, what);
    let role = field(info, "role");
    if role != Some("master") {
        let detail = "the server is no longer the master since it granted";
        return Err(NodeError::maybe_executed(NodeFault::NotMaster, detail));
    }
    let Value::Int(have) = have else { return Err(garbage("WAIT answered no number")) };
    let have = u32::try_from(*have).map_err(|_| garbage("WAIT answered no number of replicas"))?;
    let offset = field(before, "master_repl_offset").and_then(|n| n.parse().ok());
    let history_id = field(info, "master_replid")
        .filter(|id| is_history(id))
        .and_then(|id| u64::from_str_radix(&id[..16], 16).ok());
    match (attached(info), offset, history_id) {
        (Some(attached), Some(offset), Some(history_id)) => {
            Ok(Round { have, attached, offset, history_id, refused: BTreeMap::new() })
        }
        _ => Err(garbage("INFO lacks the replicas, the offset or replid")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "role:master\r\nmaster_repl_offset:40\r\n";

    fn info(role: &str, replid: &str, replicas: &str) -> String {
        let states = "slave0:ip=a,port=1,state=online,offset=41,lag=0\r\n\
                      slave1:ip=a,port=0,state=wait_bgsave,offset=0,lag=0\r\n";
        format!("role:{role}\r\nconnected_slaves:{replicas}\r\n{states}master_replid:{replid}\r\n")
    }

    #[test]
    fn a_round_is_read_whole_or_is_a_fault() {
        let replid = "00000000000000ff0123456789abcdef01234567";
        let good = read(BEFORE, &Value::Int(1), &info("master", replid, "2")).unwrap();
        let numbers = (good.have, good.connected(), good.online(), good.offset, good.history_id);
        assert_eq!(numbers, (1, 2, 1, 40, 255));
        let fault = |have: &Value, info: &str| {
            let e = read(BEFORE, have, info).unwrap_err();
            assert!(e.is_ambiguous(), "{e}");
            e.fault()
        };
        assert_eq!(fault(&Value::Int(2), &info("slave", replid, "2")), NodeFault::NotMaster);
        for (have, info) in [
            (Value::Int(-1), info("master", replid, "2")),
            (Value::Okay, info("master", replid, "2")),
            (Value::Int(2), info("master", &replid[1..], "2")),
            (Value::Int(2), info("master", &replid.replace('f', "é"), "2")),
            (Value::Int(2), info("master", replid, "many")),
            (Value::Int(2), info("master", replid, "3")),
            (Value::Int(2), "role:master\r\n".to_owned()),
        ] {
            assert_eq!(fault(&have, &info), NodeFault::Protocol, "{have:?} {info}");
        }
        assert!(read("", &Value::Int(1), &info("master", replid, "2")).is_err());
    }
}
