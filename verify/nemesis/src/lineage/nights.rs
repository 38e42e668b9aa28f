//! Seven nights in fast motion: a master is backed up once a night, with `redis-cli --rdb`.
//! That is a replica which comes and goes. It loses nothing, so it may cost nothing.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use palisade::{Failed, Outcome, RedisNode, Redlock, TryAcquire};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::lone::marked;
use crate::groups::{ask, back_up};
use crate::world::Failure;

const NIGHTS: usize = 7;
/// Length of a day. It is also the retention of the keys, as in ordinary life.
const DAY: Duration = Duration::from_secs(12);
/// Longest lease, and so the length of a quarantine.
pub(super) const TTL: Duration = Duration::from_secs(2);
/// A gap between two grants that a busy machine may cause.
const BUSY: Duration = Duration::from_millis(1_500);
const BEAT: Duration = Duration::from_millis(25);

/// What the nights cost.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Nights {
    #[serde(rename = "nights")]
    count: usize,
    /// Number of times that the server took another replication id.
    renamed: usize,
    /// Gaps between two grants that are longer than a busy machine explains.
    outages: usize,
    /// Sum of these gaps, in seconds.
    refused_s: f64,
    executed: usize,
    parked: usize,
    /// True if the backups have to rename the data.
    #[serde(skip)]
    renames: bool,
}

impl Nights {
    pub(super) fn is_good(&self) -> bool {
        self.outages == 0 && self.parked == 0 && (self.renamed > 0 || !self.renames)
    }
}

pub(super) async fn nights() -> Result<Nights, Failure> {
    // With these seconds in place of an hour the id is also changed after each backup.
    let server = marked(&["--repl-backlog-ttl", "1"]).await?;
    let node = RedisNode::new(server.url())?;
    let redlock = Redlock::builder().ttl(TTL).max_ttl(TTL).node(node).build()?;
    of(&redlock, &server.addr(), true).await
}

/// The nights of the master at `addr`, which this handle uses alone.
pub(super) async fn of(redlock: &Redlock, addr: &str, renames: bool) -> Result<Nights, Failure> {
    let keys = redlock.idempotency("nights").at_most_once().retention(DAY).build()?;
    let (executed, parked) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let end = Instant::now() + DAY * (NIGHTS as u32 + 1);
    let locks = async {
        let (mut last, mut gaps) = (Instant::now(), Vec::new());
        for n in 0_u64.. {
            if Instant::now() > end {
                break;
            }
            let lock = redlock.mutex(format!("fresh-{n}")).auto_renew(false).build()?;
            if let Ok(TryAcquire::Acquired(guard)) = lock.try_acquire().await {
                if last.elapsed() > BUSY {
                    gaps.push(last.elapsed());
                }
                last = Instant::now();
                let _ = guard.release().await;
            }
            sleep(BEAT).await;
        }
        Ok::<_, Failure>(gaps)
    };
    let orders = async {
        for n in 0_u64.. {
            if Instant::now() > end {
                break;
            }
            match keys.key(format!("order-{n}")).run(|_| async move { Ok::<_, Failed>(n) }).await {
                Ok(Outcome::Executed { .. }) => executed.fetch_add(1, Relaxed),
                Ok(Outcome::Parked(_)) => parked.fetch_add(1, Relaxed),
                _ => 0,
            };
            sleep(8 * BEAT).await;
        }
    };
    let backups = async {
        let (mut id, mut count) = (String::new(), 0);
        for night in 0..=NIGHTS {
            let dawn = Instant::now() + DAY;
            if night > 0 {
                back_up(addr).await?;
            }
            while Instant::now() < dawn {
                let info = ask(addr, &["INFO", "replication"]).await;
                let now = info.lines().find_map(|l| l.strip_prefix("master_replid:"));
                let now = now.unwrap_or_default().trim();
                count += usize::from(!id.is_empty() && now != id);
                now.clone_into(&mut id);
                sleep(4 * BEAT).await;
            }
        }
        Ok::<_, Failure>(count)
    };
    let (gaps, (), names) = tokio::join!(locks, orders, backups);
    let (gaps, names) = (gaps?, names?);
    let refused: Duration = gaps.iter().sum();
    let _ = redlock.close(Duration::from_secs(1)).await;
    Ok(Nights {
        count: NIGHTS,
        renamed: names,
        outages: gaps.len(),
        refused_s: (refused.as_secs_f64() * 10.0).round() / 10.0,
        executed: executed.into_inner(),
        parked: parked.into_inner(),
        renames,
    })
}
