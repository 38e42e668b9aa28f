//! Test cases for the list of the candidates of an election, which each node stores.

use std::time::Duration;

use palisade::node::spi::{
    Enlist, Listed, MAX_ENTRY, MAX_LISTED, Op, OwnerToken, RecordKey, Reply,
};
use tokio::time::timeout;

use super::bench::{Bench, LONG, SHORT};
use super::hints::{HUSH, TRIES, listening, next_hint};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: the_list_shows_who_is_in_it_in_order_of_arrival,
        Nothing: an_entry_is_replaced_by_its_owner_and_taken_out_by_it_alone,
        Nothing: an_entry_that_is_not_written_again_is_gone_after_its_ttl,
        Nothing: a_full_list_takes_no_candidate_until_one_leaves,
        Nothing: what_an_entry_says_comes_back_byte_for_byte,
        Nothing: a_list_that_is_only_read_is_not_made,
        Nothing: news_of_an_entry_reach_those_who_wrote_one,
    ]
}

pub(super) fn write(key: &RecordKey, owner: OwnerToken, ttl: Duration, text: &[u8]) -> Op {
    Op::Enlist(Enlist { key: key.clone(), owner, ttl, entry: Some(text.into()), news: false })
}

fn take_out(key: &RecordKey, owner: OwnerToken) -> Op {
    Op::Enlist(Enlist { key: key.clone(), owner, ttl: LONG, entry: None, news: false })
}

async fn shown(b: &Bench, op: Op) -> Vec<Listed> {
    match b.ask(op).await {
        Reply::Candidates(all) => all,
        other => b.broken("the answer is the list", &other),
    }
}

/// Reads the list of candidates. The operation removes an owner that is not in the list, so it
/// changes nothing.
pub(super) async fn read(b: &Bench, key: &RecordKey) -> Vec<Listed> {
    shown(b, take_out(key, b.owner())).await
}

pub(super) fn owners(all: &[Listed]) -> Vec<OwnerToken> {
    all.iter().map(|listed| listed.owner).collect()
}

async fn the_list_shows_who_is_in_it_in_order_of_arrival(b: Bench) {
    let (key, all) = (b.key(), [b.owner(), b.owner(), b.owner()]);
    for (i, owner) in all.into_iter().enumerate() {
        let got = shown(&b, write(&key, owner, LONG, b"here")).await;
        b.check(owners(&got) == all[..=i], "who writes is shown behind the others", &got);
    }
    let got = shown(&b, write(&key, all[0], LONG, b"again")).await;
    b.check(owners(&got) == all, "who writes again keeps its place", &got);
    let got = read(&b, &key).await;
    b.check(owners(&got) == all, "who reads is not listed", &got);
    let within = got.iter().all(|l| !l.remaining.is_zero() && l.remaining <= LONG);
    b.check(within, "an entry is there for its ttl at most", &got);
}

async fn an_entry_is_replaced_by_its_owner_and_taken_out_by_it_alone(b: Bench) {
    let (key, (a, c)) = (b.key(), b.owners());
    shown(&b, write(&key, a, LONG, b"one")).await;
    shown(&b, write(&key, c, LONG, b"other")).await;
    let got = shown(&b, write(&key, a, LONG, b"two")).await;
    let texts: Vec<&[u8]> = got.iter().map(|l| &*l.entry).collect();
    b.check(texts == [&b"two"[..], b"other"], "each owner has one entry, its last", &got);
    let got = shown(&b, take_out(&key, a)).await;
    b.check(owners(&got) == [c], "the owner's entry is taken out, and no other", &got);
    let got = shown(&b, take_out(&key, c)).await;
    b.check(got.is_empty(), "the last one is taken out", &got);
}

async fn an_entry_that_is_not_written_again_is_gone_after_its_ttl(b: Bench) {
    let (key, (a, c)) = (b.key(), b.owners());
    shown(&b, write(&key, a, SHORT, b"brief")).await;
    shown(&b, write(&key, c, LONG, b"stays")).await;
    let gone = |reply: &Reply| match reply {
        Reply::Candidates(all) => owners(all) == [c],
        _ => false,
    };
    let rule = "an entry is gone after its ttl, and the others stay";
    b.until(rule, take_out(&key, b.owner()), gone).await;
    let got = shown(&b, write(&key, a, LONG, b"back")).await;
    b.check(owners(&got) == [c, a], "who was gone comes last", &got);
}

async fn a_full_list_takes_no_candidate_until_one_leaves(b: Bench) {
    let (key, all) = (b.key(), (0..MAX_LISTED).map(|_| b.owner()).collect::<Vec<_>>());
    b.all(all.iter().map(|owner| write(&key, *owner, LONG, b"here")).collect()).await;
    let late = b.owner();
    let got = shown(&b, write(&key, late, LONG, b"late")).await;
    b.check(owners(&got) == all, "a full list takes no candidate", &got);
    let got = shown(&b, write(&key, all[3], LONG, b"again")).await;
    b.check(&*got[3].entry == b"again", "who is in a full list can write again", &got);
    shown(&b, take_out(&key, all[0])).await;
    let got = shown(&b, write(&key, late, LONG, b"late")).await;
    let there = got.len() == MAX_LISTED && got.last().is_some_and(|l| l.owner == late);
    b.check(there, "a place that is left is taken by the next", &got);
}

async fn what_an_entry_says_comes_back_byte_for_byte(b: Bench) {
    let every: Vec<u8> = (0..=255).collect();
    let longest = vec![b' '; MAX_ENTRY];
    let key = b.key();
    for text in [&every[..], &longest, b"0", b" 7 7 7 ", b"\0"] {
        let owner = b.owner();
        let got = shown(&b, write(&key, owner, LONG, text)).await;
        b.check(got.len() == 1 && *got[0].entry == *text, "the text comes back", &got);
        shown(&b, take_out(&key, owner)).await;
    }
}

async fn a_list_that_is_only_read_is_not_made(b: Bench) {
    let key = b.key();
    for _ in 0..3 {
        let got = read(&b, &key).await;
        b.check(got.is_empty(), "a list without entries is empty", &got);
    }
}

async fn news_of_an_entry_reach_those_who_wrote_one(b: Bench) {
    let mut events = b.events();
    listening(&b, &mut events).await;
    let mut got = Vec::new();
    for _ in 0..TRIES {
        let (key, (a, c)) = (b.key(), b.owners());
        shown(&b, write(&key, a, LONG, b"here")).await;
        shown(&b, write(&key, c, LONG, b"too")).await;
        let quiet = timeout(HUSH, next_hint(&mut events, &key)).await.unwrap_or(None);
        let Op::Enlist(entry) = write(&key, c, LONG, b"preferred") else { return };
        shown(&b, Op::Enlist(Enlist { news: true, ..entry })).await;
        got = vec![quiet, next_hint(&mut events, &key).await];
        if got == [None, Some(None)] {
            return;
        }
    }
    b.broken("news wake who wrote an entry, and nothing else does", &got);
}
