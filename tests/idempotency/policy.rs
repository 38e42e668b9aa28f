//! The policies for lapsed keys (an earlier attempt left no result) and for forgotten keys (the
//! nodes cannot tell if there was an attempt), the probe, and the birth (creation time) of a key,
//! in every combination. Also the state of a key after a failed handler.

use std::time::Duration;

use palisade::idempotency::{Call, Effect, Parked, ParkedReason, Resolved, Status};
use palisade::{
    Advice, Failed, Forgotten, Idempotency, Lapsed, MemoryNode, Outcome, Probed, RedlockBuilder,
    RunError,
};
use palisade_testing::fault::Fault;
use tokio::time::{sleep, timeout};

use crate::support::idem::{Effects, World, at, boom, secs};

/// Birth of the request (the time at which it was made), relative to the loss of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    Unknown,
    BeforeTheLoss,
    AfterTheLoss,
}

/// One combination of the state of a key and the policies of a call.
#[derive(Clone, Debug)]
struct Case {
    nodes: usize,
    /// If true, an earlier attempt left no result.
    lapsed: bool,
    /// If true, a majority of the nodes may have lost data.
    lost: bool,
    made: Made,
    on_lapsed: Lapsed,
    on_forgotten: Forgotten,
    probe: Option<Probed<u32>>,
}

/// The expected outcome of the call.
#[derive(Debug, PartialEq, Eq)]
enum Want {
    /// The handler runs as this attempt.
    Runs(u32),
    Replays(u32),
    Parks(ParkedReason),
}

impl Case {
    fn want(&self) -> Want {
        let forgotten = self.lost && self.made != Made::AfterTheLoss;
        let next = 1 + u32::from(self.lapsed);
        match (self.lapsed, forgotten, &self.probe) {
            (false, false, _) => Want::Runs(1),
            (_, _, Some(Probed::Found(value))) => Want::Replays(*value),
            (true, _, Some(Probed::Unknown)) => Want::Parks(ParkedReason::Lapsed),
            (false, _, Some(Probed::Unknown)) => Want::Parks(ParkedReason::Forgotten),
            (true, _, None) if self.on_lapsed == Lapsed::Park => Want::Parks(ParkedReason::Lapsed),
            (_, true, None) if self.on_forgotten == Forgotten::Park => {
                Want::Parks(ParkedReason::Forgotten)
            }
            (_, _, Some(Probed::NotFound) | None) => Want::Runs(next),
        }
    }

    /// Builds the namespace with the policies of this case. Uses a preset if one fits. With
    /// `by_call`, the namespace gets other policies, and each call for a key in it sets those of
    /// this case.
    fn orders(&self, w: &World, by_call: bool) -> Idempotency {
        let b = w.redlock.idempotency("orders");
        let b = match (self.on_lapsed, self.on_forgotten) {
            // The preset contradicts the policies of the call. So the test shows that the policies
            // of the call win.
            (Lapsed::Park, _) if by_call => b.at_least_once(),
            _ if by_call => b.at_most_once(),
            (Lapsed::Park, Forgotten::Park) => b.at_most_once(),
            (Lapsed::Rerun, Forgotten::Run) => b.at_least_once(),
            (Lapsed::Park, other) => b.on_forgotten(other).at_most_once(),
            (other, _) => b.at_most_once().on_lapsed(other),
        };
        b.build().unwrap()
    }

    fn call(&self, orders: &Idempotency, lost_at: u64, by_call: bool) -> Call {
        let call = orders.key("k").fingerprint("the order");
        let call = match self.made {
            Made::Unknown => call,
            Made::BeforeTheLoss => call.created_at(at(lost_at)),
            Made::AfterTheLoss => call.created_at(at(lost_at + 4_001)),
        };
        if by_call {
            return call.on_lapsed(self.on_lapsed).on_forgotten(self.on_forgotten);
        }
        call
    }

    async fn check(self) {
        let w = World::with_nodes(&vec![0; self.nodes], Duration::ZERO);
        let e = Effects::default();
        let by_call = self.nodes == 3;
        let orders = self.orders(&w, by_call);
        let lost_at = w.now();
        let late = self.made == Made::AfterTheLoss;
        if self.lapsed && !late {
            self.lapse(self.call(&orders, lost_at, by_call)).await;
        }
        if self.lost {
            w.nodes[..=self.nodes / 2].iter().for_each(MemoryNode::restart_keeping);
            assert!(orders.key("look").lookup::<u32>().await.is_ok());
        }
        sleep(secs(40)).await;
        if self.lapsed && late {
            self.lapse(self.call(&orders, lost_at, by_call)).await;
        }
        let mut asked = 0;
        let outcome = {
            let call = self.call(&orders, lost_at, by_call);
            match self.probe.clone() {
                Some(found) => {
                    let probe = |_| {
                        asked += 1;
                        std::future::ready(found)
                    };
                    call.probe(probe).run(|_| e.act(Duration::ZERO)).await
                }
                None => call.run(|_| e.act(Duration::ZERO)).await,
            }
        };
        let got = match outcome.unwrap() {
            Outcome::Executed { attempt, value: 1, .. } => Want::Runs(attempt),
            Outcome::Replayed(value) => Want::Replays(value),
            Outcome::Parked(parked) => {
                self.stays_parked(&w, &parked, (&orders, lost_at, by_call)).await;
                Want::Parks(parked.reason)
            }
            other => panic!("{self:?}: {other:?}"),
        };
        let want = self.want();
        let doubt = !matches!(want, Want::Runs(1)) || self.lost && self.made != Made::AfterTheLoss;
        assert_eq!(got, want, "{self:?}");
        assert_eq!(e.count(), u32::from(matches!(want, Want::Runs(_))), "{self:?}");
        assert_eq!(asked, u32::from(doubt && self.probe.is_some()), "{self:?}");
        assert_eq!(w.redlock.held(), 0);
    }

    /// Makes an attempt that leaves no result: its handler fails, or with five nodes its process
    /// dies.
    async fn lapse(&self, call: Call) {
        if self.nodes < 5 {
            let failed = call.run(|_| boom()).await;
            assert!(matches!(&failed, Err(RunError::Handler { attempt: 1, .. })), "{failed:?}");
            return;
        }
        let run = call.run(|_| std::future::pending::<Result<u32, Failed>>());
        assert!(timeout(secs(2), run).await.is_err());
        sleep(secs(11)).await;
    }

    /// Asserts that a lookup and another call do not change a parked key (one whose handler does
    /// not run), and that an operator can decide about the key.
    async fn stays_parked(
        &self,
        w: &World,
        parked: &Parked,
        (orders, lost_at, by_call): (&Idempotency, u64, bool),
    ) {
        assert_eq!(parked.attempt, u32::from(self.lapsed));
        let call = || self.call(orders, lost_at, by_call);
        let look = call().lookup::<u32>().await.unwrap();
        if self.lapsed {
            assert_eq!(look, Status::Lapsed { attempt: 1 });
        } else {
            assert!(matches!(look, Status::Forgotten { .. }), "{look:?}");
        }
        let again = call().probe(|_| async { Probed::<u32>::Unknown }).run(|_| boom()).await;
        assert!(matches!(&again, Ok(Outcome::Parked(p)) if p.attempt == parked.attempt));
        if w.nodes.len() == 3 {
            assert_eq!(call().resolve(&9).await.unwrap(), Resolved::Stored);
        } else {
            let rerun = call().rerun(|_| async { Ok::<_, String>(9) }).await.unwrap();
            assert!(rerun.is_executed());
        }
        assert_eq!(call().run(|_| boom()).await.unwrap(), Outcome::Replayed(9));
    }
}

/// A node is away while an attempt without effect is given back, and counts that attempt alone.
/// Later it is among the first that answer.
#[tokio::test(start_paused = true)]
async fn a_node_that_was_away_when_an_attempt_was_given_back_parks_nothing() {
    for failed in [Failed::no_effect, Failed::retry] {
        for (nodes, away) in [(3, &[0][..]), (3, &[2]), (5, &[0, 1])] {
            let (w, effects) = (World::new(nodes), Effects::default());
            let h = w.handle(0);
            let of = h.orders();
            for round in 0..3 {
                let ended = of.key("k").run(async |_| {
                    for node in away {
                        h.faults[*node].cut();
                    }
                    Err::<u32, _>(failed("closed"))
                });
                assert!(ended.await.is_err(), "{round}");
                tokio::time::sleep(secs(150)).await;
                for node in away {
                    h.faults[*node].heal();
                }
            }
            let out = of.key("k").run(|_| effects.act(Duration::ZERO)).await.unwrap();
            assert!(
                matches!(out, Outcome::Executed { attempt: 1, .. }),
                "{nodes} {away:?}: {out:?}"
            );
        }
    }
}

/// An attempt that began is counted by a majority, so it is found whichever nodes answer.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_began_is_found_by_any_majority() {
    for missed in 0..3 {
        for silent in 0..3 {
            let (w, effects) = (World::new(3), Effects::default());
            let h = w.handle(0);
            let of = h.orders();
            h.faults[missed].cut();
            assert!(of.key("k").run(|_| boom()).await.is_err());
            tokio::time::sleep(secs(150)).await;
            h.faults[missed].heal();
            h.faults[silent].cut();
            let out = of.key("k").run(|_| effects.act(Duration::ZERO)).await.unwrap();
            let is_found = matches!(&out, Outcome::Parked(p) if p.reason == ParkedReason::Lapsed);
            assert!(is_found, "{missed} {silent}: {out:?}");
            assert_eq!(effects.count(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_combination_of_past_policy_and_probe() {
    let mut cases = 0;
    for nodes in [1, 3, 5] {
        for (lapsed, lost) in [(false, false), (true, false), (false, true), (true, true)] {
            for made in [Made::Unknown, Made::BeforeTheLoss, Made::AfterTheLoss] {
                for on_lapsed in [Lapsed::Park, Lapsed::Rerun] {
                    for on_forgotten in [Forgotten::Park, Forgotten::Run] {
                        let probes = [Probed::Found(7), Probed::NotFound, Probed::Unknown];
                        for probe in probes.map(Some).into_iter().chain([None]) {
                            let case =
                                Case { nodes, lapsed, lost, made, on_lapsed, on_forgotten, probe };
                            case.check().await;
                            cases += 1;
                        }
                    }
                }
            }
        }
    }
    assert_eq!(cases, 3 * 4 * 3 * 4 * 4);
}

#[tokio::test(start_paused = true)]
async fn one_of_the_presets_has_to_be_chosen() {
    let w = World::new(1);
    let builder = || w.redlock.idempotency("orders");
    let refused = |b: palisade::idempotency::IdempotencyBuilder| {
        let error = b.build().unwrap_err();
        (error.field().to_owned(), error.to_string())
    };
    let (field, text) = refused(builder());
    assert_eq!(field, "at_most_once() or at_least_once()");
    assert!(
        text.contains("is not chosen: call `at_most_once()` if the handler must not run twice")
    );
    assert!(text.contains(". Call `at_least_once()` if its effect recognises repeats"), "{text}");
    assert_eq!(refused(builder().on_lapsed(Lapsed::Rerun)).0, "on_forgotten");
    assert_eq!(refused(builder().on_forgotten(Forgotten::Run)).0, "on_lapsed");
    builder().on_lapsed(Lapsed::Park).on_forgotten(Forgotten::Run).build().unwrap();
}

fn effect<T: std::fmt::Debug>(out: Result<Outcome<T>, RunError>) -> Effect {
    match out {
        Err(RunError::Handler { failed, .. }) => failed.effect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_unknown_effect_is_decided_by_the_next_call_at_once() {
    for n in [1, 3, 5] {
        let (w, e) = (World::new(n), Effects::default());
        let (first, other) = (w.handle(0), w.handle(1));
        // The first node does not receive the requests of the process `first`.
        if n > 1 {
            first.faults[0].freeze();
        }
        let out = first.orders().key("k").run(|_| boom()).await;
        assert_eq!(effect(out), Effect::Unknown);
        let before = w.now();
        let call = || other.orders().key("k");
        let parked = call().run(|_| e.act(secs(1))).await.unwrap();
        assert!(matches!(&parked, Outcome::Parked(p) if p.attempt == 1), "{n} nodes: {parked:?}");
        let out = call().on_lapsed(Lapsed::Rerun).run(|_| e.act(Duration::ZERO)).await.unwrap();
        assert!(matches!(out, Outcome::Executed { attempt: 2, .. }), "{n} nodes: {out:?}");
        assert!(w.now() - before < 1_000, "nobody waits for the end of a lease");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_for_a_result_learns_soon_that_there_is_none() {
    let w = World::new(3);
    let e = Effects::default();
    let (first, second) = (w.handle(0).orders(), w.handle(1).orders());
    let failing = first.key("k").run(|_| async {
        sleep(secs(2)).await;
        Err::<u32, _>("late")
    });
    let waiting = async {
        sleep(secs(1)).await;
        let out =
            second.key("k").in_flight_timeout(secs(60)).run(|_| e.act(secs(1))).await.unwrap();
        (out, w.now())
    };
    let (failed, (out, at)) = tokio::join!(failing, waiting);
    assert_eq!(effect(failed), Effect::Unknown);
    assert!(matches!(out, Outcome::Parked(_)), "{out:?}");
    assert!(
        at < crate::support::idem::BEGIN + 5_000,
        "within a pause between two looks, not within a lease"
    );
}

#[tokio::test(start_paused = true)]
async fn what_may_be_repeated_runs_again_whatever_the_policy_and_keeps_its_request() {
    for n in [1, 3] {
        let (w, e) = (World::new(n), Effects::default());
        for _ in 0..3 {
            let call = w.orders().key("k").fingerprint("the order");
            let out = call.run(|cx| async move {
                assert_eq!(cx.attempt(), 1);
                Err::<u32, _>(Failed::retry("the bank is closed"))
            });
            assert_eq!(effect(out.await), Effect::Repeatable);
            let look = w.orders().key("k").lookup::<u32>().await.unwrap();
            assert_eq!(look, Status::Absent);
            // The failed handler may have acted for this request. So a request with another
            // fingerprint does not get the key.
            let other = w.orders().key("k").fingerprint("another").run(|_| boom()).await.unwrap();
            assert_eq!(other, Outcome::Mismatch);
        }
        let call = w.orders().key("k").fingerprint("the order");
        assert!(call.run(|_| e.act(secs(1))).await.unwrap().is_executed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_speaks_for_its_own_attempt_only() {
    for failed in [Failed::no_effect, Failed::retry] {
        let (w, e) = (World::new(3), Effects::default());
        let orders = w.orders();
        assert_eq!(effect(orders.key("k").run(|_| boom()).await), Effect::Unknown);
        // A second attempt runs and reports no effect.
        let out = orders.key("k").rerun(|cx| async move {
            assert_eq!(cx.attempt(), 2);
            Err::<u32, _>(failed("not now"))
        });
        assert_ne!(effect(out.await), Effect::Unknown);
        // The effect of the first attempt is still unknown.
        let out = orders.key("k").run(|_| e.act(secs(1))).await.unwrap();
        let one = |p: &Parked| (p.attempt, p.reason) == (1, ParkedReason::Lapsed);
        assert!(matches!(&out, Outcome::Parked(p) if one(p)), "{out:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_no_json_leaves_a_lapsed_attempt() {
    type Odd = std::collections::BTreeMap<(u8, u8), u8>;
    let w = World::new(3);
    let call = w.orders().key("k");
    let out = call.run(|_| async { Ok::<_, String>(Odd::from([((1, 2), 3)])) }).await;
    let error = out.unwrap_err();
    assert!(matches!(&error, RunError::Codec { .. }), "{error}");
    assert!(error.to_string().starts_with("\"orders:k\": the result cannot be stored as JSON"));
    let look = w.orders().key("k").lookup::<u32>().await.unwrap();
    assert_eq!(look, Status::Lapsed { attempt: 1 });
}

#[tokio::test(start_paused = true)]
async fn errors_of_handlers_keep_their_type_and_name_the_key() {
    use std::error::Error as _;
    let w = World::new(1);
    let call = || w.orders().key("alice:order-7");
    let io = || std::io::Error::other("disk full");
    let error = call().run(|_| async { Err::<u32, _>(io()) }).await.unwrap_err();
    let text = error.to_string();
    let want = "the handler of \"orders:alice:order-7\" failed (attempt 1) and may have taken \
                effect; the next call decides by its policy or probe";
    assert_eq!(text, want, "what it failed with is the source, and not in the sentence");
    let source = error.source().unwrap();
    assert!(source.downcast_ref::<std::io::Error>().is_some() && source.to_string() == "disk full");
    assert_eq!(error.advice(), Advice::RetryAfter(Duration::from_secs(1)));
    let RunError::Handler { failed, .. } = error else { panic!("{text}") };
    assert!(failed.downcast_ref::<std::io::Error>().is_some());
    let parked = call().run(|_| boom()).await.unwrap();
    let Outcome::Parked(parked) = parked else { panic!("{parked:?}") };
    assert!(
        parked.to_string().starts_with("\"orders:alice:order-7\": attempt 1 began"),
        "{parked}"
    );
    assert_eq!((parked.key.namespace(), parked.key.key()), ("orders", "alice:order-7"));
    w.nodes[0].restart_empty();
    let error = call().run(|_| boom()).await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("handler of \"orders:alice:order-7\" not run: no quorum"), "{text}");
    assert!(error.source().is_none(), "the sentence says it all");
}

#[tokio::test(start_paused = true)]
async fn dropped_while_its_claim_ends_a_failure_means_what_it_said() {
    for unknown in [false, true] {
        let (w, e) = (World::new(3), Effects::default());
        let (mut before, mut after) = (0, 0);
        for k in 0..60 {
            let (key, orders) = (format!("{unknown}{k}"), w.orders());
            let began = std::cell::Cell::new(false);
            let mut run = Box::pin(orders.key(&key).run(|_| {
                began.set(true);
                let failed = if unknown { Failed::unknown("?") } else { Failed::no_effect("!") };
                std::future::ready(Err::<u32, _>(failed))
            }));
            for _ in 0..k {
                if futures_util::poll!(run.as_mut()).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(run);
            // The dropped call ends its lease itself, and its last requests still arrive. So no
            // caller waits for the end of the lease.
            sleep(Duration::from_millis(100)).await;
            let out = orders.key(&key).run(|_| e.act(Duration::ZERO)).await.unwrap();
            match &out {
                Outcome::Executed { attempt: 1, .. } if !unknown || !began.get() => before += 1,
                Outcome::Parked(p) if unknown && began.get() && p.attempt == 1 => after += 1,
                other => panic!("dropped after {k} polls: {other:?}"),
            }
            assert_eq!(w.redlock.held(), 0);
        }
        assert!(before > 0 && (after > 0) == unknown, "{before}, {after}");
    }
}

/// While a node joins or leaves, processes have one node more or fewer. `away` did not answer while
/// the key ran for the first time.
#[tokio::test(start_paused = true)]
async fn an_attempt_counts_for_processes_with_another_number_of_nodes() {
    for (earlier, away, later) in [
        (0..1, None, 0..2),
        (0..2, None, 0..3),
        (0..3, Some(2), 0..2),
        (0..3, Some(0), 0..4),
        (0..4, Some(1), 1..4),
        (0..2, None, 0..1),
    ] {
        let w = World::with_nodes(&[0; 4], secs(1));
        let faults: Vec<_> = w.nodes[earlier.clone()].iter().cloned().map(Fault::new).collect();
        let controls: Vec<_> = faults.iter().map(Fault::control).collect();
        let builder = faults.into_iter().fold(w.over(&[], 0), RedlockBuilder::node);
        let first = builder.build().unwrap();
        let second = w.over(&w.nodes[later.clone()], 0).build().unwrap();
        let orders = |redlock: &palisade::Redlock| {
            redlock.idempotency("orders").at_most_once().build().unwrap()
        };
        if let Some(node) = away {
            controls[node].cut();
        }
        let born = at(w.now());
        sleep(secs(1)).await;
        let key = orders(&first);
        let failed = key.key("k").created_at(born).run(|_| boom());
        drop(failed.await);
        let key = orders(&second);
        let effects = Effects::default();
        let again = key.key("k").created_at(born).run(|_| effects.act(Duration::ZERO)).await;
        let parked = matches!(&again, Ok(Outcome::Parked(p)) if p.reason == ParkedReason::Lapsed);
        assert!(parked && effects.count() == 0, "{earlier:?} {away:?} {later:?}: {again:?}");
    }
}
