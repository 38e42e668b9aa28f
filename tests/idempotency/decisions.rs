//! After a loss of data, the nodes cannot tell for some keys if they were used before: these keys
//! are forgotten. One decision of an operator about the loss applies to all keys that the loss made
//! forgotten, in every process (rule idempotency 20 in docs/design). It does not apply to keys of
//! another loss.

use std::time::Duration;

use palisade::idempotency::{Decision, Parked, ParkedReason, Probed};
use palisade::{Idempotency, MemoryNode, Outcome, Redlock};
use palisade_ops::{Audit, DecidedLoss, Incident, incidents};
use tokio::time::sleep;

use crate::support::idem::{Effects, World, at, secs};

/// Time after which a process has certainly read the decisions again.
const READ_AGAIN: Duration = Duration::from_secs(6);

fn orders(redlock: &Redlock) -> Idempotency {
    redlock.idempotency("orders").at_most_once().build().unwrap()
}

async fn run(of: &Idempotency, key: &str, effects: &Effects) -> Outcome<u32> {
    of.key(key).run(|_| effects.act(Duration::ZERO)).await.unwrap()
}

/// Runs a key that is forgotten (the nodes cannot tell if it was used before). Returns true if no
/// operator has decided yet about the losses that made it forgotten.
async fn is_undecided(of: &Idempotency, key: &str) -> bool {
    let outcome = run(of, key, &Effects::default()).await;
    let Outcome::Parked(Parked { reason: ParkedReason::Forgotten, undecided, losses, .. }) =
        outcome
    else {
        panic!("{outcome:?}")
    };
    assert!(!losses.is_empty());
    undecided
}

async fn last(of: &Idempotency) -> Incident {
    incidents(of).await.incidents.pop().expect("a loss")
}

async fn decide(of: &Idempotency, decision: Decision, replace: bool) -> Vec<DecidedLoss> {
    let audit = Audit::new("alice", "looked at the ledger").unwrap();
    last(of).await.decide(of, decision, replace, &audit).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn one_decision_runs_the_keys_of_every_process_once() {
    let (w, effects) = (World::new(3), Effects::default());
    w.lose(&[0, 1], MemoryNode::restart_empty).await;
    let processes: Vec<_> = (0..3).map(|_| orders(&w.builder(0).build().unwrap())).collect();
    for of in &processes {
        assert!(is_undecided(of, "k").await);
    }
    let other = w.redlock.idempotency("invoices").at_most_once().build().unwrap();
    assert!(is_undecided(&other, "k").await);
    let decided = decide(&processes[0], Decision::Run, false).await;
    assert!(decided.iter().all(|one| one.is_new && one.on == 3), "{decided:?}");
    assert_eq!(decided[0].stands.by, "alice");
    sleep(READ_AGAIN).await;
    for (i, of) in processes.iter().enumerate() {
        assert_eq!(run(of, "k", &effects).await.is_executed(), i == 0);
        assert!(run(of, &format!("own-{i}"), &effects).await.is_executed());
    }
    assert_eq!(effects.count(), 4);
    assert!(is_undecided(&other, "k").await, "another namespace");
}

#[tokio::test(start_paused = true)]
async fn a_decision_to_run_does_not_run_what_a_later_loss_made_forgotten() {
    for (how, is_kept) in
        [(MemoryNode::restart_empty as fn(&_), false), (MemoryNode::restart_keeping, true)]
    {
        let (w, effects) = (World::new(3), Effects::default());
        w.lose(&[0, 1], how).await;
        let (before, of) = (orders(&w.redlock), orders(&w.builder(0).build().unwrap()));
        let _ = decide(&of, Decision::Run, false).await;
        assert!(run(&before, "first", &effects).await.is_executed());
        assert!(run(&of, "second", &effects).await.is_executed());
        sleep(secs(120)).await;
        assert!(run(&before, "again", &effects).await.is_executed());
        // The process of the handle `before` has just read the decision when more nodes lose data.
        w.lose(&[1, 2], how).await;
        for of in [&before, &of] {
            assert!(!run(of, "second", &effects).await.is_executed());
            assert!(is_undecided(of, "third").await);
        }
        if is_kept {
            // The key is parked: its handler does not run. The outcome names only the later loss of
            // data, because an operator has already decided about the first loss.
            let Outcome::Parked(parked) = run(&of, "third", &effects).await else { panic!() };
            let incidents = incidents(&of).await.incidents;
            let (first, later) = (&incidents[0], &incidents[1]);
            let text = parked.to_string();
            assert!(text.contains(&format!("--loss {} ", later.name())), "{text}");
            assert!(!text.contains(&first.name()), "{text}");
        }
        assert_eq!(effects.count(), 3);
        let _ = decide(&of, Decision::Run, false).await;
        sleep(READ_AGAIN).await;
        if !is_kept {
            // Two of three nodes have lost the operator's first decision, so an operator must
            // decide again.
            assert!(is_undecided(&of, "third").await);
            let first = incidents(&of).await.incidents.remove(0);
            let audit = Audit::new("alice", "the same again").unwrap();
            let _ = first.decide(&of, Decision::Run, false, &audit).await.unwrap();
            sleep(READ_AGAIN).await;
        }
        assert!(run(&of, "third", &effects).await.is_executed());
    }
}

/// An operator lists a loss, and looks at what it took. Before the decision, the server crashes
/// again. The losses belong together, and the decision is about the first one alone or about none.
#[tokio::test(start_paused = true)]
async fn a_loss_that_came_after_the_list_is_not_decided_about() {
    for pause in [3, 17, 27] {
        let (w, effects) = (World::new(1), Effects::default());
        let of = orders(&w.redlock);
        w.lose(&[0], MemoryNode::restart_keeping).await;
        let listed = last(&of).await;
        sleep(secs(pause)).await;
        w.lose(&[0], MemoryNode::restart_keeping).await;
        let now = incidents(&of).await;
        assert_eq!(now.incidents.len(), 1, "they belong together");
        let refused = now.named(&listed.name()).unwrap_err();
        assert!(refused.to_string().contains("list the losses again"), "{refused}");
        // The library decides about what was listed.
        let audit = Audit::new("alice", "looked at the ledger").unwrap();
        let decided = listed.decide(&of, Decision::Run, false, &audit).await.unwrap();
        assert!(decided.iter().all(|one| one.is_new), "{decided:?}");
        sleep(READ_AGAIN).await;
        let Outcome::Parked(parked) = run(&of, "k", &effects).await else { panic!() };
        assert!(parked.undecided, "{parked}");
        assert!(parked.losses.iter().all(|loss| listed.losses.iter().all(|one| one.loss != *loss)));
    }
}

/// One command decides about all losses that a parked key names, also about those of several
/// incidents.
#[tokio::test(start_paused = true)]
async fn a_parked_key_names_all_losses_and_one_decision_about_them_lets_it_run() {
    for (nodes, lost) in [(1, &[&[0][..], &[0], &[0]][..]), (3, &[&[0, 1], &[1, 2], &[0, 2]])] {
        let (w, effects) = (World::new(nodes), Effects::default());
        let of = orders(&w.redlock);
        for nodes in lost {
            w.lose(nodes, MemoryNode::restart_keeping).await;
            sleep(secs(150)).await;
        }
        let Outcome::Parked(parked) = run(&of, "k", &effects).await else { panic!() };
        let text = parked.to_string();
        let name = text.split("--loss ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        assert_eq!(name.split(',').count(), lost.len(), "{text}");
        let named = incidents(&of).await.named(name).unwrap();
        let audit = Audit::new("alice", "looked at the ledger").unwrap();
        let _ = named.decide(&of, Decision::Run, false, &audit).await.unwrap();
        sleep(READ_AGAIN).await;
        assert!(run(&of, "k", &effects).await.is_executed());
    }
}

#[tokio::test(start_paused = true)]
async fn to_park_stands_until_it_is_replaced_and_to_run_for_good() {
    let (w, effects) = (World::new(3), Effects::default());
    w.lose(&[0, 1, 2], MemoryNode::restart_empty).await;
    let of = orders(&w.redlock);
    let all = |decided: &[DecidedLoss], decision, is_new| {
        assert!(!decided.is_empty());
        for one in decided {
            assert_eq!((one.stands.decision, one.is_new), (decision, is_new), "{one:?}");
        }
    };
    all(&decide(&of, Decision::Park, false).await, Decision::Park, true);
    sleep(READ_AGAIN).await;
    assert!(!is_undecided(&of, "k").await);
    let text = run(&of, "k", &effects).await;
    let Outcome::Parked(parked) = text else { panic!("{text:?}") };
    assert!(parked.to_string().contains("decided: park"), "{parked}");
    all(&decide(&of, Decision::Park, false).await, Decision::Park, false);
    all(&decide(&of, Decision::Run, false).await, Decision::Park, false);
    all(&decide(&of, Decision::Run, true).await, Decision::Run, true);
    sleep(READ_AGAIN).await;
    assert!(run(&of, "k", &effects).await.is_executed());
    for replace in [false, true] {
        all(&decide(&of, Decision::Park, replace).await, Decision::Run, false);
        all(&decide(&of, Decision::Run, replace).await, Decision::Run, false);
    }
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn two_operators_who_disagree_are_given_one_answer() {
    let w = World::new(3);
    w.lose(&[0, 1, 2], MemoryNode::restart_empty).await;
    let (one, two) = (orders(&w.redlock), orders(&w.builder(0).build().unwrap()));
    let audit = Audit::new("alice", "looked at the ledger").unwrap();
    let incident = last(&one).await;
    for _ in 0..5 {
        let (run, park) = tokio::join!(
            incident.decide(&one, Decision::Run, false, &audit),
            incident.decide(&two, Decision::Park, false, &audit),
        );
        if let (Ok(run), Ok(park)) = (run, park) {
            let stand =
                |all: &[DecidedLoss]| all.iter().map(|one| one.stands.clone()).collect::<Vec<_>>();
            assert_eq!(stand(&run), stand(&park));
            return;
        }
    }
    panic!("none is told what stands");
}

#[tokio::test(start_paused = true)]
async fn what_has_a_result_is_replayed_whatever_was_decided() {
    for decision in [Decision::Run, Decision::Park] {
        let (w, effects) = (World::new(3), Effects::default());
        let of = orders(&w.redlock);
        assert!(run(&of, "done", &effects).await.is_executed());
        w.lose(&[0, 1], MemoryNode::restart_empty).await;
        // Only one node still has the result, so no majority confirms the result.
        assert!(is_undecided(&of, "done").await);
        let _ = decide(&of, decision, false).await;
        sleep(READ_AGAIN).await;
        match run(&of, "done", &effects).await {
            Outcome::Replayed(1) => assert_eq!(decision, Decision::Run),
            Outcome::Parked(parked) => {
                assert_eq!((parked.undecided, decision), (false, Decision::Park));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(effects.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_is_asked_first_and_what_it_does_not_know_is_decided() {
    let (w, effects) = (World::new(3), Effects::default());
    w.lose(&[0, 1, 2], MemoryNode::restart_empty).await;
    let of = orders(&w.redlock);
    let _ = decide(&of, Decision::Run, false).await;
    let probed = |key: &'static str, found: Probed<u32>| {
        let call = of.key(key).probe(move |_| std::future::ready(found));
        call.run(|_| effects.act(Duration::ZERO))
    };
    assert_eq!(probed("a", Probed::Found(7)).await.unwrap(), Outcome::Replayed(7));
    assert!(probed("b", Probed::Unknown).await.unwrap().is_executed());
    assert!(probed("c", Probed::NotFound).await.unwrap().is_executed());
    assert_eq!(effects.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_birth_after_the_loss_needs_no_decision() {
    let (w, effects) = (World::new(3), Effects::default());
    w.lose(&[0, 1, 2], MemoryNode::restart_empty).await;
    let of = orders(&w.redlock);
    let born = of.key("new").created_at(at(w.now()));
    assert!(born.run(|_| effects.act(Duration::ZERO)).await.unwrap().is_executed());
    let refused = w.redlock.idempotency("palisade-decisions").at_most_once().build().unwrap_err();
    assert!(refused.to_string().contains("decisions of operators"), "{refused}");
}
