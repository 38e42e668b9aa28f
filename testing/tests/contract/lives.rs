//! Nodes on which a client ends early what another relies on: the suite has to find each.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Instant;

use palisade::node::spi::{Enlist, Holder};

use super::*;

fn keys(op: &mut Op) -> Option<&mut LockKeys> {
    match op {
        Op::Acquire { keys, .. }
        | Op::Raise { keys, .. }
        | Op::Extend { keys, .. }
        | Op::Release { keys, .. }
        | Op::Inspect { keys, .. } => Some(keys),
        _ => None,
    }
}

/// Keeps the data of a lock for as long as the client of the last acquire needs.
fn shortening(inner: MemoryNode) -> Wrap {
    let lives: Arc<Mutex<HashMap<String, (Instant, u32)>>> = Arc::default();
    Wrap::new(inner, move |inner, mut batch, deadline| {
        let lives = Arc::clone(&lives);
        async move {
            let life = batch.terms.max_ttl + 4 * batch.terms.clock_error + Duration::from_secs(1);
            for op in &mut batch.ops {
                let acquires = matches!(op, Op::Acquire { .. });
                let Some(keys) = keys(op) else { continue };
                let (mut lives, now) = (lives.lock().unwrap(), Instant::now());
                let (end, deaths) = lives.entry(keys.lock().to_owned()).or_insert((now + life, 0));
                if *end <= now {
                    *deaths += 1;
                }
                if acquires || *end <= now {
                    *end = now + life;
                }
                if *deaths > 0 {
                    *keys = LockKeys::new(&format!("{}-{deaths}", keys.lock()));
                }
            }
            inner.call(batch, deadline).await
        }
    })
}

#[tokio::test]
async fn nodes_that_shorten_what_others_rely_on_are_caught() {
    for by in [
        "a_shorter_lease_does_not_shorten_a_permit",
        "a_shorter_lease_does_not_shorten_the_fence_of_readers",
        "a_shorter_lease_does_not_shorten_the_fence_of_a_mutex",
        "a_shorter_lease_does_not_shorten_the_fences_of_a_multi_lock",
        "a_shorter_lease_does_not_shorten_a_place_or_a_watch",
    ] {
        failure(shortening(memory()), Hooks::default(), by).await;
    }
    tells!("counts readers that are gone", "readers_whose_grants_are_over_take_no_place",
    Op::Acquire { ttl, .. }, reply => if *ttl == Duration::from_secs(60) {
        static READERS: AtomicU64 = AtomicU64::new(0);
        if READERS.fetch_add(1, Ordering::Relaxed) > 100 {
            *reply = Reply::Held { remaining: Some(Duration::ZERO), foreign: false };
        }
    });
    tells!("forgets candidates", "a_shorter_lease_does_not_shorten_the_list_of_candidates",
        Op::Enlist(Enlist { entry: None, .. }), Reply::Candidates(listed) => listed.clear());
    tells!("gives readers any token", "a_reader_of_a_new_history_is_not_below_the_floor",
        Op::Acquire { mode: LockMode::Shared, .. }, Reply::Granted { fence } => *fence = 1);
    tells!("forgets a promise", "a_shorter_lease_does_not_shorten_a_promise",
        Op::ExtendClaim { .. }, reply @ Reply::NotOwner => *reply = Reply::Done);
}

/// Keeps a name after a planned handover until a holder has put itself back.
fn keeping_once(inner: MemoryNode) -> Wrap {
    let back: Arc<Mutex<HashSet<String>>> = Arc::default();
    Wrap::new(inner, move |inner, batch, deadline| {
        let back = Arc::clone(&back);
        async move {
            let mut kept = Vec::new();
            for op in &batch.ops {
                let Op::Acquire { keys, .. } = op else {
                    kept.push(false);
                    continue;
                };
                let ops = vec![Op::Inspect { keys: keys.clone(), wait: false }];
                let shown = inner.call(Batch { ops, ..batch.clone() }, deadline).await;
                let shown = shown.items.into_iter().next();
                kept.push(matches!(shown, Some(Ok(Reply::Holder(Some(Holder { owner, .. }))))
                    if owner == Some(OwnerToken::KEPT)));
            }
            let mut replies = inner.call(batch.clone(), deadline).await;
            let mut back = back.lock().unwrap();
            for ((op, item), is_kept) in batch.ops.iter().zip(&mut replies.items).zip(kept) {
                match op {
                    Op::Extend { keys, .. } => _ = back.insert(keys.lock().to_owned()),
                    Op::Acquire { keys, .. } if is_kept && back.contains(keys.lock()) => {
                        *item = Ok(Reply::Granted { fence: 1 });
                    }
                    _ => {}
                }
            }
            replies
        }
    })
}

#[tokio::test]
async fn nodes_that_keep_a_name_for_too_few_are_caught() {
    let inner = memory();
    let hooks = hooks(&inner);
    let by = "a_lock_with_several_readers_is_kept_when_one_of_them_leaves";
    failure(keeping_once(inner), hooks, by).await;
    tells!("keeps a name from writers only", "a_lock_that_may_still_be_held_is_kept_from_readers",
        Op::Acquire { mode: LockMode::Shared, .. }, reply @ Reply::Held { .. } =>
            *reply = Reply::Granted { fence: 1 });
}
