//! Receipts: a client is granted as many locks as it can around the fault, keeps all of them, and
//! asks each in the end what became of it. Whether the new master has the write it looks up itself,
//! in plain Redis protocol, as soon as there is a new master: the fence key of a name that nobody
//! else uses.

use std::cell::RefCell;
use std::io::{self, BufRead as _};
use std::rc::Rc;
use std::time::Duration;

use palisade::LockGuard;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::client::Locks;
use super::watch::{Line, Reply};
use super::witness::PREFIX;
use crate::event::{Fate, What};
use crate::wire::Ledger;

/// At once, and how many each is granted at most.
const TASKS: u32 = 6;
const EACH: u32 = 500;

/// The library's word in the ledger's.
pub(super) fn fate(fate: palisade::Fate) -> Fate {
    match fate {
        palisade::Fate::Standing => Fate::Standing,
        palisade::Fate::Survived => Fate::Survived,
        palisade::Fate::Lost => Fate::Lost,
        _ => Fate::Unknown,
    }
}

/// Does what its input says: `write`, later `look host:port` and in the end `judge`.
pub(super) async fn work(redlock: Locks, id: u8, mut ledger: Ledger) -> io::Result<()> {
    let mut lines = input();
    let guards = Rc::new(RefCell::new(Vec::new()));
    // Dropped with the process only: thousands of releases would come between.
    let mut kept = Vec::new();
    let mut writing = JoinSet::new();
    while let Some(line) = lines.recv().await {
        if let Some(master) = line.strip_prefix("look ") {
            writing.abort_all();
            kept = look(guards.take(), master).await?;
        } else if line == "judge" {
            judge(&kept, &mut ledger).await?;
        } else {
            for task in 0..TASKS {
                let guards = Rc::clone(&guards);
                writing.spawn_local(write(redlock.clone(), format!("{id}-{task}"), guards));
            }
        }
    }
    // Without input there is nothing more to do; the others go on.
    std::future::pending().await
}

/// Until the first that is not granted: that is the fault.
async fn write(redlock: Locks, who: String, guards: Rc<RefCell<Vec<LockGuard>>>) {
    for n in 0..EACH {
        let mutex = redlock.mutex(format!("receipt-{who}-{n}")).auto_renew(false);
        let Ok(taken) = mutex.try_acquire().await else { return };
        guards.borrow_mut().extend(taken.acquired());
        sleep(Duration::from_millis(4)).await;
    }
}

/// Each guard, and whether the new master has its grant.
async fn look(guards: Vec<LockGuard>, master: &str) -> io::Result<Vec<(LockGuard, bool)>> {
    let mut line = Line::to(master);
    let mut there = Vec::new();
    for some in guards.chunks(100) {
        let fences = some.iter().map(|g| format!("{{{PREFIX}{}}}:fence", g.name()));
        let question = format!("MGET {}", fences.collect::<Vec<_>>().join(" "));
        let Some(Reply::List(tokens)) = line.ask(&question).await else {
            return Err(io::Error::other("the new master does not say what it has"));
        };
        let pairs = some.iter().zip(tokens);
        there.extend(pairs.map(|(guard, at)| at == guard.fencing_token().get().to_string()));
    }
    Ok(guards.into_iter().zip(there).collect())
}

async fn judge(guards: &[(LockGuard, bool)], ledger: &mut Ledger) -> io::Result<()> {
    for (guard, there) in guards {
        let Some(receipt) = guard.receipts().into_iter().next() else { continue };
        let (name, fate, there) = (guard.name().into(), fate(receipt.fate), *there);
        ledger.say(What::Receipt { name, fate, there }).await?;
    }
    ledger.say(What::Receipted).await
}

fn input() -> UnboundedReceiver<String> {
    let (say, lines) = unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if say.send(line).is_err() {
                return;
            }
        }
    });
    lines
}
