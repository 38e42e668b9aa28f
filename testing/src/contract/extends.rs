//! Test cases for the extension of a lock, and for the holder's metadata.

use std::sync::Arc;

use palisade::node::spi::{Holder, LockKeys, Reply};

use super::bench::{Bench, LONG, SHORT};
use super::ops::{acquire, extend, extend_saying, inspect, release};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: extend_prolongs,
        Nothing: extend_sets_the_ttl_anew,
        Nothing: extend_makes_an_absent_lock,
        Nothing: extend_never_lowers_the_fence,
        Nothing: extend_by_another_changes_nothing,
        Nothing: late_extend_spares_the_next_holder,
        Nothing: metadata_is_kept_and_replaced,
        Nothing: metadata_ends_with_the_lock,
        Nothing: metadata_may_be_long_and_of_any_bytes,
    ]
}

async fn holder(b: &Bench, k: &LockKeys) -> Holder {
    match b.ask(inspect(k)).await {
        Reply::Holder(Some(h)) => h,
        other => b.broken("the lock has a holder", &other),
    }
}

async fn extend_prolongs(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    // So that the lock does not end before the extension even on a slow machine.
    let ttl = LONG / 4;
    let fence = b.granted(acquire(&k, a, ttl), "a free lock is granted").await;
    for _ in 0..2 {
        b.expect(extend(&k, a, LONG, fence), Reply::Done, "the owner extends").await;
    }
    let h = holder(&b, &k).await;
    b.check(h.remaining > Some(ttl), "an extended lock lasts the new ttl", &h);
    b.check(h.remaining <= Some(LONG), "an extended lock lasts the new ttl only", &h);
    b.check(h.fence == fence, "an extension keeps the fence", &h);
}

async fn extend_sets_the_ttl_anew(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let fence = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.expect(extend(&k, a, SHORT, fence), Reply::Done, "the owner extends").await;
    b.until("the ttl counts from the extension", acquire(&k, c, LONG), |r| {
        matches!(r, Reply::Granted { .. })
    })
    .await;
}

async fn extend_makes_an_absent_lock(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let t = b.high().await.get();
    b.expect(extend(&k, a, LONG, t), Reply::Done, "an absent lock is made again").await;
    let h = holder(&b, &k).await;
    b.check(h.owner == Some(a), "the lock made again is the owner's", &h);
    b.check(h.fence == t, "the lock made again carries the token", &h);
    let held = b.ask(acquire(&k, c, LONG)).await;
    b.check(matches!(held, Reply::Held { .. }), "the lock made again excludes", &held);
    b.expect(release(&k, a), Reply::Done, "the owner releases").await;
    let next = b.granted(acquire(&k, c, LONG), "a released lock is granted").await;
    b.check(next > t, "the next fence is above the token brought back", &(t, next));
}

async fn extend_never_lowers_the_fence(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    let fence = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.expect(extend(&k, a, LONG, fence - 1), Reply::Done, "the owner extends").await;
    let h = holder(&b, &k).await;
    b.check(h.fence == fence, "an extension never lowers the fence", &h);
    b.expect(extend(&k, a, LONG, fence + 9), Reply::Done, "the owner extends").await;
    let h = holder(&b, &k).await;
    b.check(h.fence == fence + 9, "an extension lifts the fence to its token", &h);
}

async fn extend_by_another_changes_nothing(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let fence = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    let t = b.high().await.get();
    b.expect(extend(&k, c, LONG, t), Reply::NotOwner, "only the owner extends").await;
    b.expect(extend_saying(&k, c, t, b"me"), Reply::NotOwner, "only the owner writes metadata")
        .await;
    let h = holder(&b, &k).await;
    let same = h.owner == Some(a) && h.fence == fence && h.meta.is_none();
    b.check(same, "a refused extension changes nothing", &h);
}

async fn late_extend_spares_the_next_holder(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let fence = b.granted(acquire(&k, a, SHORT), "a free lock is granted").await;
    b.until("a lock ends with its ttl", acquire(&k, c, LONG), |r| {
        matches!(r, Reply::Granted { .. })
    })
    .await;
    b.expect(extend(&k, a, LONG, fence), Reply::NotOwner, "a lapsed owner does not extend").await;
    let h = holder(&b, &k).await;
    b.check(h.owner == Some(c), "a late extension leaves the next holder", &h);
}

async fn metadata_is_kept_and_replaced(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    for text in [&b"first"[..], b"second"] {
        b.expect(extend_saying(&k, a, t, text), Reply::Done, "the owner writes metadata").await;
        b.expect(extend(&k, a, LONG, t), Reply::Done, "the owner extends").await;
        let h = holder(&b, &k).await;
        b.check(h.meta.as_deref() == Some(text), "metadata stays until replaced", &h);
    }
}

async fn metadata_ends_with_the_lock(b: Bench) {
    let (k, (a, c)) = (b.lock(), b.owners());
    let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    b.expect(extend_saying(&k, a, t, b"mine"), Reply::Done, "the owner writes metadata").await;
    b.expect(release(&k, a), Reply::Done, "the owner releases").await;
    b.granted(acquire(&k, c, LONG), "a released lock is granted").await;
    let h = holder(&b, &k).await;
    b.check(h.meta.is_none(), "a new holder does not have its predecessor's metadata", &h);
}

async fn metadata_may_be_long_and_of_any_bytes(b: Bench) {
    let (k, a) = (b.lock(), b.owner());
    let t = b.granted(acquire(&k, a, LONG), "a free lock is granted").await;
    let text: Arc<[u8]> = (0..65_536_u32).map(|n| (n % 256) as u8).collect();
    b.expect(extend_saying(&k, a, t, &text), Reply::Done, "the owner writes metadata").await;
    let h = holder(&b, &k).await;
    b.check(h.meta.as_ref() == Some(&text), "metadata keeps every byte", &h.meta.map(|m| m.len()));
}
