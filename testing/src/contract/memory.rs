//! Test cases for idempotency keys without a record, of which the node may have lost a claim.

use std::time::Duration;

use palisade::node::spi::{Began, Claim, Op, Reply};
use tokio::time::sleep;

use super::bench::{Bench, KEEP, LONG};
use super::crash::after;
use super::ops::{claim, claim_terms, complete, lookup, lookup_born};
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: a_request_older_than_the_retention_is_too_old,
        Nothing: a_result_is_shown_to_old_requests_too,
        RestartKeeping: keys_born_after_a_loss_are_remembered,
        RestartKeeping: a_loss_is_no_longer_than_was_proved,
        RestartEmpty: a_loss_of_everything_is_never_accepted,
        RestartEmpty: an_empty_node_is_fresh_until_a_client_remembers_its_data,
        RestartEmpty: a_client_that_connects_again_reports_that_data_are_lost,
        RestartKeeping: a_longer_quarantine_outlives_a_new_history,
        RestartKeeping: a_result_is_reported_in_quarantine,
    ]
}

fn millis(d: Duration) -> u64 {
    d.as_millis() as u64
}

async fn now(b: &Bench) -> u64 {
    b.facts().await.node_micros / 1_000
}

async fn a_request_older_than_the_retention_is_too_old(b: Bench) {
    let (r, a, now) = (b.key(), b.owner(), now(&b).await);
    let made = |created| {
        let terms = claim_terms(&r, a, LONG, None, false);
        Op::Claim(Claim { created: Some(created), born: Some(created), ..terms })
    };
    let old = made(now - millis(KEEP) - 1_000);
    b.expect(old.clone(), Reply::TooOld, "a request older than the retention is not run").await;
    b.granted(made(now - millis(KEEP) / 2), "a younger one is claimed").await;
    let again = b.ask(old).await;
    let same = matches!(again, Reply::Claimed { .. });
    b.check(same, "who holds the claim hears the same again", &again);
}

async fn a_result_is_shown_to_old_requests_too(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    b.expect(complete(&r, a, t, b"v"), Reply::Done, "the claimant completes").await;
    let terms = claim_terms(&r, c, LONG, None, false);
    let reply = b.ask(Op::Claim(Claim { created: Some(1), ..terms })).await;
    b.check(matches!(reply, Reply::Completed(_)), "a result is shown to every caller", &reply);
}

async fn keys_born_after_a_loss_are_remembered(b: Bench) {
    after(&b, b.hooks.restart_keeping.as_ref()).await;
    b.settle().await;
    let now = now(&b).await;
    let born = |at: u64| {
        let key = b.key();
        let terms = claim_terms(&key, b.owner(), LONG, None, false);
        Op::Claim(Claim { born: Some(at), ..terms })
    };
    // The quarantine was longer than the error of the clocks, so a key that is made now is younger
    // than the loss.
    for (at, knows) in [(now, true), (now - 3_600_000, false)] {
        let rule = "a node remembers keys that are born after its loss";
        match b.ask(born(at)).await {
            Reply::Claimed { unsure, .. } if unsure.is_zero() == knows => (),
            other => b.broken(rule, &other),
        }
        match b.ask(lookup_born(&b.key(), Some(at))).await {
            Reply::Record { state: None, unsure, .. } if unsure.is_zero() == knows => (),
            other => b.broken(rule, &other),
        }
    }
}

/// With losses of the length `accepted`. Returns the time for which the node may lack an earlier
/// claim.
async fn unsure(b: &Bench, accepted: Duration) -> Duration {
    let op = claim(&b.key(), b.owners().0, LONG);
    let Op::Claim(terms) = op else { unreachable!("a claim") };
    match b.ask(Op::Claim(Claim { accepted, ..terms })).await {
        Reply::Claimed { unsure, .. } => unsure,
        other => b.broken("an unused key is claimed", &other),
    }
}

async fn a_loss_is_no_longer_than_was_proved(b: Bench) {
    b.granted(claim(&b.key(), b.owners().0, LONG), "an unused key is claimed").await;
    let before = b.facts().await;
    // A server writes to its disk within two seconds.
    sleep(Duration::from_millis(2_500)).await;
    b.granted(claim(&b.key(), b.owners().0, LONG), "an unused key is claimed").await;
    let facts = after(&b, b.hooks.restart_keeping.as_ref()).await;
    let Some(loss) = facts.losses.last().copied() else { b.broken("a restart is a loss", &facts) };
    let (then, now) = (before.node_micros / 1_000, facts.node_micros / 1_000);
    // A loss begins at the restored note, which is at most a second older than the last record.
    let is_proved = then.saturating_sub(1_100) <= loss.from && loss.from <= loss.to;
    // A replaced server may have granted for the failover window, which is added to the lost range.
    let window = facts.quarantine_len.saturating_sub(b.terms.max_ttl).as_millis() as u64;
    let is_within = then + window <= loss.to && loss.to <= now + window;
    b.check(is_proved && is_within, "a loss begins with a note that came back", &(then, loss));
    b.settle().await;
    let none = unsure(&b, Duration::ZERO).await;
    b.check(!none.is_zero(), "no loss is accepted unasked", &none);
    let long = Duration::from_millis(loss.to - loss.from + 1) + 2 * b.terms.clock_error;
    let rest = unsure(&b, long).await;
    // Earlier losses of this node may be longer than the accepted length.
    let is_accepted = rest < none && (facts.losses.len() > 1 || rest.is_zero());
    b.check(is_accepted, "a loss that is short enough is accepted", &(&facts, none, rest));
}

async fn a_loss_of_everything_is_never_accepted(b: Bench) {
    b.granted(claim(&b.key(), b.owners().0, LONG), "an unused key is claimed").await;
    let facts = after(&b, b.hooks.restart_empty.as_ref()).await;
    let from = facts.losses.last().map(|loss| loss.from);
    b.check(from == Some(0), "nothing proves what an empty server lost", &facts);
    b.settle().await;
    let rest = unsure(&b, Duration::MAX).await;
    b.check(!rest.is_zero(), "a loss of everything is not accepted", &rest);
}

/// Checks that the node may have forgotten an earlier claim. True if its server may be new.
async fn is_fresh(b: &Bench) -> bool {
    let op = claim(&b.key(), b.owners().0, LONG);
    match b.ask(op).await {
        Reply::Claimed { unsure, fresh, .. } if !unsure.is_zero() => fresh,
        other => b.broken("an empty node is not sure of an unused key", &other),
    }
}

async fn an_empty_node_is_fresh_until_a_client_remembers_its_data(b: Bench) {
    let known = b.facts().await.node_micros;
    // The new data must begin in a later millisecond than `known`.
    sleep(Duration::from_millis(5)).await;
    let facts = after(&b, b.hooks.restart_empty.as_ref()).await;
    b.check(facts.began == Began::Empty, "an empty node may be new", &facts);
    b.settle().await;
    b.check(is_fresh(&b).await, "a node that may be new reports that", &facts);
    if b.hooks.restart_keeping.is_some() {
        let facts = after(&b, b.hooks.restart_keeping.as_ref()).await;
        b.check(facts.began == Began::Empty, "a restart does not change how data began", &facts);
        b.settle().await;
    }
    // This client saw the node for the first time after it was emptied.
    let now = b.facts().await.node_micros;
    let b = b.knowing(Some(now));
    let facts = b.facts().await;
    b.check(facts.began == Began::Empty, "its own data are no earlier ones", &facts);
    let b = b.knowing(Some(known));
    let facts = b.facts().await;
    b.check(facts.began == Began::Lost, "a client remembers data that are gone", &facts);
    let b = b.knowing(None);
    let facts = b.facts().await;
    b.check(facts.began == Began::Lost, "what one client knew is kept", &facts);
    b.check(!is_fresh(&b).await, "a node that lost its data is not new", &facts);
}

async fn a_client_that_connects_again_reports_that_data_are_lost(b: Bench) {
    let known = b.facts().await.node_micros;
    let b = b.knowing(Some(known));
    sleep(Duration::from_millis(5)).await;
    let facts = after(&b, b.hooks.restart_empty.as_ref()).await;
    b.check(facts.began == Began::Lost, "a client that knew of data is there first", &facts);
    b.settle().await;
    b.check(!is_fresh(&b).await, "a node that lost its data is not new", &facts);
}

async fn a_longer_quarantine_outlives_a_new_history(b: Bench) {
    let long = 3 * b.terms.max_ttl;
    let error = b.terms.clock_error;
    let b = b.with_terms(long, error);
    b.facts().await;
    let short = b.with_terms(long / 3, error);
    let facts = after(&short, short.hooks.restart_keeping.as_ref()).await;
    short.check(
        facts.quarantine_len >= long,
        "what others asked for counts in a new history",
        &facts,
    );
}

async fn a_result_is_reported_in_quarantine(b: Bench) {
    let (r, (a, c)) = (b.key(), b.owners());
    let t = b.granted(claim(&r, a, LONG), "an unused key is claimed").await;
    b.expect(complete(&r, a, t, b"v"), Reply::Done, "the claimant completes").await;
    after(&b, b.hooks.restart_keeping.as_ref()).await;
    // If the server writes to its disk once a second, the result may be lost.
    let kept = b.ask(lookup(&r)).await;
    if matches!(kept, Reply::Record { state: Some(state), .. } if state.record.is_some()) {
        let reply = b.ask(claim(&r, c, LONG)).await;
        b.check(matches!(reply, Reply::Completed(_)), "a result is shown in quarantine", &reply);
    }
}
