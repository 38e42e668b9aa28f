//! Kills a consumer process at its third message, at each of the five crash points. After each
//! death the demo compares the ledger, the records on the nodes, and the broker with the expected
//! counts.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::ops::RangeInclusive;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum as _;
use palisade::Idempotency;
use palisade::idempotency::{Call, Status};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::Failure;
use crate::brokers::{Broker, Kind};
use crate::child::{self, DieAt};
use crate::fleet;
use crate::group::Group;
use crate::invoices::{self, Invoice, Letter};
use crate::ledger::Ledger;
use crate::process::{Process, command};

const MESSAGES: usize = 6;
/// Counted from 1.
const AT: usize = 3;
/// Lease of the claims. The lease is long enough that even a busy machine renews it in time. So no
/// message is delivered twice.
const LEASE: Duration = Duration::from_secs(8);
const PATIENCE: Duration = Duration::from_secs(90);
/// Time for which the broker must have no message before all messages count as handled. A consumer
/// that cannot handle a message yet keeps the message for less than this time.
const STEADY: Duration = Duration::from_secs(2);
const SIGABRT: i32 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    booked: usize,
    stored: usize,
    begun: usize,
}

impl DieAt {
    /// After a consumer process has died at this crash point.
    fn seen(self) -> Seen {
        let before = AT - 1;
        match self {
            Self::Fetched => Seen { booked: before, stored: before, begun: 0 },
            Self::Claimed => Seen { booked: before, stored: before, begun: 1 },
            Self::Effect => Seen { booked: AT, stored: before, begun: 1 },
            Self::Completed | Self::Acknowledged => Seen { booked: AT, stored: AT, begun: 0 },
        }
    }

    /// Returns the number of messages that the broker may have after a consumer process has died at
    /// this crash point.
    fn left(self, kind: Kind) -> RangeInclusive<usize> {
        let acknowledged = if self == Self::Acknowledged { AT } else { AT - 1 };
        let left = MESSAGES - acknowledged;
        match kind {
            // RabbitMQ does not confirm an acknowledgement. So the last acknowledgement may be lost
            // with the connection.
            Kind::Rabbitmq if self == Self::Acknowledged => left..=left + 1,
            Kind::Nats | Kind::Rabbitmq | Kind::Streams => left..=left,
            // A consumer commits offsets only five times a second. So the broker may still count
            // finished messages.
            Kind::Kafka => left..=MESSAGES,
        }
    }
}

struct Stage {
    broker: Broker,
    group: Group,
    ledger: Ledger,
    of: Idempotency,
}

/// Kills a consumer process at each crash point. Fails if a process did not die at its crash point,
/// if an invoice was lost, or if an invoice was booked twice.
pub(crate) async fn run(kind: Kind) -> Result<(), Failure> {
    let points = DieAt::value_variants();
    let all = invoices::load(Some(MESSAGES * points.len()))?;
    let ledger = Ledger::serve()?;
    let (broker, group) = tokio::try_join!(Broker::start(kind), Group::up())?;
    let (redlock, of) = child::memory(&group.name, &group.sentinels, LEASE)?;
    let stage = Stage { broker, group, ledger, of };
    println!("crash point   booked  stored  begun  left at the broker  then booked");
    let mut killed = BTreeMap::new();
    for (at, invoices) in points.iter().zip(all.chunks(MESSAGES)) {
        stage.strike(*at, invoices).await.map_err(|e| format!("{} at {at:?}: {e}", kind.name()))?;
        killed.insert(format!("{at:?}").to_lowercase(), 1);
    }
    let keys: Vec<_> = all.iter().map(|invoice| invoice.number.clone()).collect();
    let audit = stage.ledger.audit(&keys);
    let dead = stage.broker.dead_letters().await?.len();
    let line = json!({
        "broker": kind.name(), "killed": killed, "executed": audit.executed,
        "doubles": audit.doubles, "lost": audit.lost, "dead_letters": dead,
    });
    println!("{line}");
    let _ = redlock.close(Duration::from_secs(5)).await;
    if (audit.executed, audit.doubles, audit.lost, dead) == (all.len(), 0, 0, 0) {
        return Ok(());
    }
    Err("not every order took effect exactly once".into())
}

impl Stage {
    async fn strike(&self, at: DieAt, invoices: &[Invoice]) -> Result<(), Failure> {
        let letters: Vec<_> = invoices.iter().map(letter).collect();
        self.broker.publish_all(&letters).await?;
        let name = at.to_possible_value().ok_or("a crash point without a name")?;
        let mut doomed =
            self.consumer(&["--die-at", name.get_name(), "--after", &AT.to_string()])?;
        let status = doomed.ended(PATIENCE).await?;
        let mut wrote = Vec::new();
        doomed.child().stdout.take().ok_or("no output")?.read_to_end(&mut wrote)?;
        if status.signal() != Some(SIGABRT) || wrote.last() != Some(&at.mark()) {
            return Err(format!("it was not killed there: {status}, {wrote:?}").into());
        }
        let (seen, want) = (self.seen(&letters).await?, at.seen());
        if seen != want {
            return Err(format!("{want:?} was to be seen, and {seen:?} is").into());
        }
        let left = self.left(&at.left(self.broker.kind())).await?;
        let mut heir = self.consumer(&[])?;
        let keys: Vec<_> = letters.iter().map(|letter| letter.key.clone()).collect();
        self.settled(&keys).await?;
        heir.signal("TERM");
        let status = heir.ended(PATIENCE).await?;
        if !status.success() {
            return Err(format!("the consumer after it ended with {status}").into());
        }
        let then = self.ledger.audit(&keys);
        println!(
            "{:13} {:6}  {:6}  {:5}  {left:18}  {:11}",
            format!("{at:?}"),
            seen.booked,
            seen.stored,
            seen.begun,
            then.executed
        );
        if (then.executed, then.doubles) == (MESSAGES, 0) {
            return Ok(());
        }
        Err(format!("of {MESSAGES} orders {} are lost, {} double", then.lost, then.doubles).into())
    }

    fn consumer(&self, more: &[&str]) -> Result<Process, Failure> {
        let program = std::env::current_exe()?;
        let mut command = command(&program.to_string_lossy());
        command.args(fleet::consumer(&self.broker, &self.group, &self.ledger));
        command.args(["--concurrency", "1", "--lease-ms", &LEASE.as_millis().to_string()]);
        command.args(more).stdout(Stdio::piped());
        Process::spawn(command)
    }

    async fn seen(&self, letters: &[Letter]) -> Result<Seen, Failure> {
        let keys: Vec<_> = letters.iter().map(|letter| letter.key.clone()).collect();
        let booked = self.ledger.audit(&keys).executed;
        let mut seen = Seen { booked, stored: 0, begun: 0 };
        for letter in letters {
            let call = self.of.key(&*letter.key).fingerprint_bytes(letter.body.as_bytes());
            match status_of(call).await? {
                Status::Stored(()) => seen.stored += 1,
                Status::Running { .. } | Status::Lapsed { .. } => seen.begun += 1,
                Status::Absent | Status::Forgotten { .. } => {}
                other => return Err(format!("{}: {other:?}", letter.key).into()),
            }
        }
        Ok(seen)
    }

    /// Waits until all invoices are booked and the broker has had no message for two seconds. A
    /// consumer may hold a message while it waits for the result of another delivery. The broker
    /// does not count such a message. The consumer holds the message for at most one second.
    async fn settled(&self, keys: &[Arc<str>]) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut none_since = None;
        loop {
            let left = self.broker.left().await?;
            let executed = self.ledger.audit(keys).executed;
            if left > 0 || executed < keys.len() {
                none_since = None;
            } else if none_since.get_or_insert_with(Instant::now).elapsed() > STEADY {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("the broker has {left} messages, {executed} are booked").into());
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until the number of messages on the broker is in `want`, and returns the number. The
    /// number may change late, because the broker notices the death of a consumer late.
    async fn left(&self, want: &RangeInclusive<usize>) -> Result<usize, Failure> {
        let begun = Instant::now();
        loop {
            let left = self.broker.left().await?;
            if want.contains(&left) {
                return Ok(left);
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("the broker has {left} messages, not {want:?}").into());
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Returns the status of a key on the nodes. Tries again after an error, because the nodes may
/// reply late on a busy machine.
async fn status_of(call: Call) -> Result<Status<()>, Failure> {
    let begun = Instant::now();
    loop {
        match call.clone().lookup().await {
            Ok(status) => return Ok(status),
            Err(e) if begun.elapsed() > PATIENCE => return Err(e.into()),
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

fn letter(invoice: &Invoice) -> Letter {
    let body = serde_json::to_string(invoice).expect("texts are JSON");
    Letter { key: invoice.number.clone(), body }
}
