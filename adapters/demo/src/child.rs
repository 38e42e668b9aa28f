//! A consumer process of the demo. If a consumer was started with a crash point, it aborts itself
//! after this step, unless the demo kills it earlier.

use std::future::Future;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use palisade::idempotency::Context;
use palisade::{Failed, Idempotency, Probed, Redlock, SentinelNode};
use palisade_consumer::{Broker, Consumer, Delivery as _, Rules, json, probed};
use palisade_testing::delivery::{CrashPoint, CrashPoints, Passing};
use tokio::signal::unix::{SignalKind, signal};

use crate::Failure;
use crate::brokers::Kind;
use crate::invoices::Invoice;
use crate::ledger::{LedgerReply, Line};

/// Named after the last step of the handling that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DieAt {
    Fetched,
    Claimed,
    Effect,
    Completed,
    Acknowledged,
}

impl DieAt {
    /// Each crash point has its own byte, so that the main process can count the deaths.
    pub(crate) fn mark(self) -> u8 {
        b'1' + self as u8
    }
}

/// The byte that a consumer process writes to its output for each message that it receives.
pub(crate) const DELIVERED: u8 = b'd';

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    broker: Kind,
    #[arg(long)]
    uri: String,
    #[arg(long)]
    ledger: PathBuf,
    #[arg(long)]
    master: String,
    #[arg(long)]
    sentinels: String,
    #[arg(long)]
    die_at: Option<DieAt>,
    /// Number of the message at which the process aborts, counted from 1. Earlier messages count
    /// only if they are acknowledged.
    #[arg(long, default_value_t = 1)]
    after: u32,
    /// Lease of a claim in milliseconds. The lease is short, so that another consumer soon takes
    /// over the messages of a dead consumer.
    #[arg(long, default_value_t = 2_000)]
    lease_ms: u64,
    /// Maximum number of messages that the consumer handles at the same time.
    #[arg(long, default_value_t = 16)]
    concurrency: usize,
}

/// The same for all brokers: the handler books an invoice in the ledger, and the probe asks the
/// ledger for it.
#[derive(Clone)]
pub(crate) struct Work {
    ledger: Arc<Line>,
    death: Arc<Death>,
}

struct Death {
    at: Option<DieAt>,
    after: u32,
    acknowledged: AtomicU32,
}

impl Death {
    /// Aborts the process if `at` is its crash point and the process has acknowledged enough
    /// messages.
    fn pass(&self, at: DieAt) {
        if self.at == Some(at) && self.acknowledged.load(Ordering::Relaxed) + 1 >= self.after {
            write(at.mark());
            // `abort` runs no destructors. So the kernel closes the sockets, as after a real crash.
            std::process::abort();
        }
    }
}

fn write(byte: u8) {
    let _ = std::io::stdout().write_all(&[byte]);
    let _ = std::io::stdout().flush();
}

impl Work {
    /// Handles a message by booking its invoice in the ledger.
    pub(crate) async fn book(
        self,
        cx: Context,
        invoice: Result<Invoice, Failed>,
    ) -> Result<(), Failed> {
        self.death.pass(DieAt::Claimed);
        let invoice = invoice?;
        let reply = self.ledger.book(&invoice.number, cx.fencing_token().get()).await?;
        if reply == LedgerReply::OldToken {
            return Err(Failed::no_effect("the ledger has seen a larger token for this order"));
        }
        self.death.pass(DieAt::Effect);
        Ok(())
    }

    pub(crate) async fn probe(self, cx: Context) -> Probed<()> {
        match self.ledger.probe(cx.key(), cx.fencing_token().get()).await {
            Ok(LedgerReply::Booked) => Probed::Found(()),
            Ok(LedgerReply::NotBooked) => Probed::NotFound,
            Ok(LedgerReply::OldToken) | Err(_) => Probed::Unknown,
        }
    }
}

impl Work {
    pub(crate) async fn consume<B: Broker>(
        self,
        broker: B,
        of: Idempotency,
        rules: Rules,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Failure> {
        let death = Arc::clone(&self.death);
        let broker = CrashPoints::new(broker, move |point| match point {
            CrashPoint::Fetched => {
                write(DELIVERED);
                death.pass(DieAt::Fetched);
            }
            CrashPoint::Completed => death.pass(DieAt::Completed),
            CrashPoint::Acknowledged => {
                death.pass(DieAt::Acknowledged);
                death.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        });
        let consumer = Consumer::builder(broker, of).rules(rules).build()?;
        let prober = self.clone();
        let book = move |cx: Context, message: Arc<Passing<B::Delivery>>| {
            self.clone().book(cx, json::<Invoice>(message.body()))
        };
        consumer.run(probed(book, move |cx| prober.clone().probe(cx)), stop).await?;
        Ok(())
    }
}

pub(crate) fn memory(
    master: &str,
    sentinels: &[String],
    lease: Duration,
) -> Result<(Redlock, Idempotency), Failure> {
    let node = SentinelNode::new(master, sentinels)?;
    let redlock = Redlock::builder().node(node).ttl(lease).max_ttl(2 * lease);
    let redlock = redlock.node_deadline(lease / 8).build()?;
    let of = redlock.idempotency("invoices").retention(Duration::from_secs(3_600));
    let of = of.at_most_once().build()?;
    Ok((redlock, of))
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let sentinels: Vec<String> = args.sentinels.split(',').map(str::to_owned).collect();
    let lease = Duration::from_millis(args.lease_ms);
    let (redlock, of) = memory(&args.master, &sentinels, lease)?;
    let ledger = Arc::new(Line::open(&args.ledger).await?);
    let (at, after) = (args.die_at, args.after);
    let death = Arc::new(Death { at, after, acknowledged: AtomicU32::new(0) });
    let work = Work { ledger, death };
    let rules = Rules::default().concurrency(args.concurrency).grace(Duration::from_secs(10));
    let mut term = signal(SignalKind::terminate())?;
    let stop = async move {
        term.recv().await;
    };
    args.broker.consume(&args.uri, of, rules, work, stop).await?;
    let _ = redlock.close(2 * lease).await;
    Ok(())
}
