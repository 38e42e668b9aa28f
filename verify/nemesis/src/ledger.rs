//! The ledger: the system outside the clients on which their work has effects. The ledger accepts
//! or refuses writes and bookings, gives each order to clients at least once, and logs the events.
//! It does not use the library.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use palisade::FencingToken;
use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::books::{Ledger as Books, Verdict};
use crate::event::{Answer, Event, EventKind, TaskId, Verb, now};
use crate::wire::{Item, LedgerReply, LedgerRequest, Line};

/// Number of orders that are open at the same time.
const OPEN: usize = 24;
/// Number of finished orders that the ledger may give to clients again.
const DONE: usize = 200;

/// Number of batch keys that the ledger may give to clients again. Creating this number of keys
/// takes longer than several leases. The ledger often uses the newest [`YOUNG`] keys.
const KEYS: usize = 1_000;
const YOUNG: usize = 60;
/// Number of keys in a batch.
const BATCH: usize = 10;

/// Kinds of work. After the end of all faults, each client must get each kind of work done.
const WORK: [&str; 7] = [
    "a lock",
    "an order",
    "an election",
    "a reader's or a writer's lock",
    "a permit",
    "several names",
    "a fair lock",
];

fn work_of(verb: Verb) -> Option<&'static str> {
    let at = match verb {
        Verb::Acquire | Verb::TryAcquire => 0,
        Verb::Run => 1,
        Verb::Campaign | Verb::Leader => 2,
        Verb::Read | Verb::Write => 3,
        Verb::Permit | Verb::AcquireMany => 4,
        Verb::AcquireMulti => 5,
        Verb::AcquireFair => 6,
        _ => return None,
    };
    Some(WORK[at])
}

/// The ledger and its log.
pub(crate) struct Ledger {
    books: Books,
    /// Largest token of an accepted write, for each name.
    fences: BTreeMap<Arc<str>, u64>,
    open: Vec<Arc<str>>,
    done: VecDeque<Arc<str>>,
    made: u64,
    /// The newest idempotency keys for batches, at most [`KEYS`].
    keys: VecDeque<Item>,
    /// First effect of each idempotency key that a batch used.
    acted: BTreeMap<Arc<str>, Arc<str>>,
    /// True if the ledger no longer creates orders for clients.
    closing: bool,
    dice: StdRng,
    log: Log,
}

/// The log of the ledger: all events, in memory and in a file.
pub(crate) struct Log {
    events: Vec<Event>,
    file: BufWriter<File>,
    /// Clients whose work was done after the end of all faults, each with the kind of work.
    served: BTreeSet<(u8, &'static str)>,
}

impl Log {
    fn add(&mut self, event: Event) -> io::Result<()> {
        serde_json::to_writer(&mut self.file, &event)?;
        self.file.write_all(b"\n")?;
        if let EventKind::End { verb, answer: Answer::Done | Answer::Taken, .. } = event.kind {
            self.served.extend(work_of(verb).map(|work| (event.who.client, work)));
        }
        self.events.push(event);
        Ok(())
    }
}

/// The ledger, which the tasks of one thread share.
pub(crate) type Shared = Rc<RefCell<Ledger>>;

impl Ledger {
    pub(crate) fn new(file: &Path, dice: StdRng) -> io::Result<Shared> {
        let file = BufWriter::new(File::create(file)?);
        Ok(Rc::new(RefCell::new(Self {
            books: Books::default(),
            fences: BTreeMap::new(),
            open: Vec::new(),
            done: VecDeque::new(),
            made: 0,
            keys: VecDeque::new(),
            acted: BTreeMap::new(),
            closing: false,
            dice,
            log: Log { events: Vec::new(), file, served: BTreeSet::new() },
        })))
    }

    /// Logs an event of the program `nemesis` itself (of no client), with the current time.
    pub(crate) fn note(&mut self, kind: EventKind) -> io::Result<()> {
        self.note_of(0, 0, now(), kind)
    }

    pub(crate) fn note_of(
        &mut self,
        client: u8,
        life: u16,
        at: u64,
        kind: EventKind,
    ) -> io::Result<()> {
        self.log.add(Event { at, who: TaskId { client, life, task: 0 }, kind })
    }

    /// Begins the phase after all faults. From now on, the ledger records the clients whose work
    /// was done, and creates no new orders.
    pub(crate) fn calm(&mut self) -> io::Result<()> {
        self.closing = true;
        self.log.served.clear();
        self.note(EventKind::Calm)
    }

    pub(crate) fn all_served(&self, clients: u8) -> bool {
        self.open.is_empty() && self.missing(clients).next().is_none()
    }

    fn missing(&self, clients: u8) -> impl Iterator<Item = (u8, &'static str)> {
        let all = (1..=clients).flat_map(|c| WORK.map(|work| (c, work)));
        all.filter(|served| !self.log.served.contains(served))
    }

    /// Describes the work that is still missing for [`Self::all_served`].
    pub(crate) fn waiting_for(&self, clients: u8) -> String {
        let missing = self.missing(clients).map(|(c, work)| format!("client {c}: {work}"));
        let missing: Vec<_> = missing.collect();
        format!("{} orders open {:?}; {}", self.open.len(), self.open, missing.join(", "))
    }

    pub(crate) fn close(&mut self) -> io::Result<Vec<Event>> {
        self.log.file.flush()?;
        Ok(std::mem::take(&mut self.log.events))
    }

    /// Returns the events logged so far, in the order of arrival.
    pub(crate) fn so_far(&self) -> &[Event] {
        &self.log.events
    }

    pub(crate) fn events(&self) -> usize {
        self.log.events.len()
    }

    fn answer(&mut self, who: TaskId, request: LedgerRequest) -> io::Result<LedgerReply> {
        let mut note = |kind| self.log.add(Event { at: now(), who, kind });
        Ok(match request {
            LedgerRequest::Write { name, token } => {
                let fence = self.fences.entry(Arc::clone(&name)).or_default();
                let accepted = token >= *fence;
                *fence = token.max(*fence);
                note(EventKind::Write { name, token, accepted })?;
                if accepted { LedgerReply::Yes } else { LedgerReply::No }
            }
            LedgerRequest::Book { key, token, value } => {
                let verdict = self.books.book(&key, FencingToken::new(token), &value);
                let accepted = verdict != Verdict::OldToken;
                note(EventKind::Booked { key, token, value, accepted })?;
                if accepted { LedgerReply::Yes } else { LedgerReply::No }
            }
            LedgerRequest::Probe { key, token } => {
                LedgerReply::Value(self.books.probe(&key, FencingToken::new(token)))
            }
            LedgerRequest::Settle { key } => {
                self.settle(&key);
                LedgerReply::Yes
            }
            LedgerRequest::Next => LedgerReply::Value(self.next_order()),
            LedgerRequest::Batch => {
                LedgerReply::Batch((0..BATCH).map(|_| self.next_key()).collect())
            }
            LedgerRequest::Act { key, token, value } => {
                self.acted.entry(Arc::clone(&key)).or_insert_with(|| Arc::clone(&value));
                note(EventKind::Acted { key, token, value })?;
                LedgerReply::Yes
            }
            LedgerRequest::Decide { key } => {
                let effect = self.acted.get(&key).cloned();
                note(EventKind::Decided { key, rerun: effect.is_none() })?;
                LedgerReply::Value(effect)
            }
        })
    }

    fn settle(&mut self, key: &Arc<str>) {
        if let Some(at) = self.open.iter().position(|k| k == key) {
            self.open.swap_remove(at);
            self.done.push_back(Arc::clone(key));
            if self.done.len() > DONE {
                self.done.pop_front();
            }
        }
    }

    /// Returns an idempotency key for a batch, most often one of the newest keys. Every second call
    /// creates a new key first, on average.
    fn next_key(&mut self) -> Item {
        if self.keys.is_empty() || self.dice.random_ratio(1, 2) {
            self.made += 1;
            let made = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let key = format!("key-{}", self.made).into();
            self.keys.push_back(Item { key, made_ms: made.as_millis() as u64 });
            if self.keys.len() > KEYS {
                self.keys.pop_front();
            }
        }
        let all = self.keys.len();
        let oldest = if self.dice.random_ratio(1, 5) { 0 } else { all.saturating_sub(YOUNG) };
        self.keys[self.dice.random_range(oldest..all)].clone()
    }

    /// Returns an order, most often one that is not done. Several clients may get the same order.
    fn next_order(&mut self) -> Option<Arc<str>> {
        while self.open.len() < OPEN && !self.closing {
            self.made += 1;
            self.open.push(format!("order-{}", self.made).into());
        }
        let again = !self.done.is_empty() && self.dice.random_ratio(3, 10);
        if again || self.open.is_empty() {
            let at = self.dice.random_range(0..self.done.len().max(1));
            return self.done.get(at).cloned();
        }
        Some(Arc::clone(&self.open[self.dice.random_range(0..self.open.len())]))
    }
}

/// Accepts connections of clients to the ledger. Runs until the future is dropped.
pub(crate) async fn serve(ledger: Shared, listener: UnixListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let ledger = Rc::clone(&ledger);
        // A client may be killed in the middle of a line, so the error of a connection is ignored.
        tokio::task::spawn_local(async move { talk(ledger, stream).await.ok() });
    }
}

async fn talk(ledger: Shared, stream: UnixStream) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Some(line) = lines.next_line().await? {
        match serde_json::from_str(&line)? {
            Line::Say(event) => ledger.borrow_mut().log.add(event)?,
            Line::Ask(who, request) => {
                let reply = ledger.borrow_mut().answer(who, request)?;
                let mut text = serde_json::to_vec(&reply)?;
                text.push(b'\n');
                write.write_all(&text).await?;
            }
        }
    }
    Ok(())
}
