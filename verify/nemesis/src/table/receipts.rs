//! Receipts: a client is granted as many locks as it can around the fault, keeps all of them, and
//! asks each in the end what became of it. Whether the new master has the write is asked there in
//! plain Redis protocol, as soon as it is master: the fence key of a name that nobody else uses.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{self, BufRead as _};
use std::rc::Rc;
use std::time::Duration;

use palisade::LockGuard;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::client::Locks;
use super::witness::PREFIX;
use crate::event::{Fate, What};
use crate::wire::Ledger;

/// At once, and how many each is granted at most.
const TASKS: u32 = 6;
const EACH: u32 = 500;
/// How long nothing is struck yet.
const BEFORE: Duration = Duration::from_millis(700);

/// The library's fate as the ledger's.
pub(super) fn fate(fate: palisade::Fate) -> Fate {
    match fate {
        palisade::Fate::Standing => Fate::Standing,
        palisade::Fate::Survived => Fate::Survived,
        palisade::Fate::Lost => Fate::Lost,
        _ => Fate::Unknown,
    }
}

/// Does what its input says: `write`, later `look FILE` and in the end `judge`.
pub(super) async fn work(redlock: Locks, id: u8, mut ledger: Ledger) -> io::Result<()> {
    let mut lines = input();
    let guards = Rc::new(RefCell::new(Vec::new()));
    // Dropped with the process only: thousands of releases would come between.
    let mut kept = Vec::new();
    let mut writing = JoinSet::new();
    while let Some(line) = lines.recv().await {
        if let Some(file) = line.strip_prefix("look ") {
            writing.abort_all();
            kept = look(guards.take(), file)?;
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

/// Until the first that is not granted: that is the fault, unless nothing was struck yet.
async fn write(redlock: Locks, who: String, guards: Rc<RefCell<Vec<LockGuard>>>) {
    let begun = Instant::now();
    for n in 0..EACH {
        let mutex = redlock
            .mutex(format!("receipt-{who}-{n}"))
            .auto_renew(false)
            .build()
            .expect("settings fit together");
        match mutex.try_acquire().await {
            Ok(taken) => guards.borrow_mut().extend(taken.acquired()),
            Err(_) if begun.elapsed() < BEFORE => {}
            Err(_) => return,
        }
        sleep(Duration::from_millis(4)).await;
    }
}

/// Each guard, and whether the new master has its grant: a fence and its token each line.
fn look(guards: Vec<LockGuard>, file: &str) -> io::Result<Vec<(LockGuard, bool)>> {
    let text = std::fs::read_to_string(file)?;
    let fences: BTreeSet<&str> = text.lines().collect();
    let there = |guard: &LockGuard| {
        let fence = format!("{{{PREFIX}{}}}:fence {}", guard.name(), guard.fencing_token().get());
        fences.contains(&*fence)
    };
    Ok(guards.into_iter().map(|guard| (there(&guard), guard)).map(|(t, g)| (g, t)).collect())
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
