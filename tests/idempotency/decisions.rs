//! After a loss of data, the nodes cannot tell for some keys if they were used before: these keys
//! are forgotten. One decision of an operator about the loss applies to all keys that the loss made
//! forgotten, in every process (rule idempotency 20 in docs/design). It does not apply to keys of
//! another loss.

use std::time::Duration;

use palisade::error::NodeFault;
use palisade::idempotency::{Decision, Parked, ParkedReason, Probed};
use palisade::node::spi::{LockNode as _, Op, Reply};
use palisade::{Idempotency, MemoryNode, Outcome, Redlock};
use palisade_ops::{Audit, DecidedLoss, Incident, incidents};
use tokio::time::sleep;

use crate::support::idem::{Effects, World, at, secs};
use crate::support::wrap::{Wrap, refused};

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

/// One node of three was away for one order, and another one is emptied: so a minority lost data,
/// no key is parked, and the decision to run is about what that node lost. It does not run what the
/// third node has, when that one is silent for a moment.
#[tokio::test(start_paused = true)]
async fn a_decision_to_run_does_not_run_what_a_silent_node_may_have() {
    for (away, emptied, silent) in [(1, 0, 2), (0, 2, 1), (2, 1, 0)] {
        let (w, effects) = (World::new(3), Effects::default());
        let h = w.handle(0);
        let of = h.orders();
        h.faults[away].cut();
        assert_eq!(run(&of, "k", &effects).await.into_value(), Some(1));
        h.faults[away].heal();
        sleep(secs(60)).await;
        w.lose(&[emptied], MemoryNode::restart_empty).await;
        assert!(run(&of, "other", &effects).await.is_executed(), "a minority parks nothing");
        sleep(secs(60)).await; // so that the emptied node keeps the decision, too
        let _ = decide(&of, Decision::Run, false).await;
        sleep(secs(600)).await;
        h.faults[silent].cut();
        for key in ["k", "new"] {
            let Outcome::Parked(parked) = run(&of, key, &effects).await else { panic!("{key}") };
            assert!(parked.undecided && parked.reason == ParkedReason::Forgotten, "{parked}");
            let name = format!("node-{silent}");
            let unheard: Vec<_> = parked.unheard.iter().map(|node| &**node).collect();
            assert_eq!(unheard, [&*name], "{key}: {parked}");
            assert!(parked.to_string().contains(&format!("--without {name}`")), "{parked}");
        }
        h.faults[silent].heal();
        assert_eq!(run(&of, "k", &effects).await, Outcome::Replayed(1));
        assert!(run(&of, "new", &effects).await.is_executed());
        assert_eq!(effects.count(), 3);
    }
}

/// The silence of a node that an operator has given up holds no key back. That of another node
/// does.
#[tokio::test(start_paused = true)]
async fn a_node_that_was_given_up_is_not_waited_for_and_each_other_one_is() {
    let (w, effects) = (World::new(5), Effects::default());
    let h = w.handle(0);
    let of = h.orders();
    w.lose(&[0, 1], MemoryNode::restart_empty).await;
    h.faults[4].cut();
    let unheard = async |key: &str| match run(&of, key, &effects).await {
        Outcome::Parked(parked) => parked.unheard.iter().map(ToString::to_string).collect(),
        other => vec![format!("{other:?}")],
    };
    for one in decide(&of, Decision::Run, false).await {
        assert_eq!((one.on, one.unread), (4, 1), "its silence is not that it has nothing");
    }
    sleep(READ_AGAIN).await;
    assert_eq!(unheard("a").await, ["node-4"]);
    let audit = Audit::new("alice", "its disk is dead").unwrap();
    last(&of).await.give_up(&of, "node-4", &audit).await.unwrap();
    sleep(READ_AGAIN).await;
    assert!(run(&of, "a", &effects).await.is_executed());
    h.faults[4].heal();
    h.faults[3].cut();
    assert_eq!(unheard("b").await, ["node-3"]);
    h.faults[3].heal();
    assert!(run(&of, "b", &effects).await.is_executed());
    assert_eq!(effects.count(), 2);
}

/// To run replaced to park, and nodes lost that: all that had it, or a majority. What the operators
/// decided is not known, so the keys wait, and each of the two decisions can be made again.
#[tokio::test(start_paused = true)]
async fn a_park_whose_replacement_may_be_lost_is_undecided() {
    for (is_on_two, again) in [true, false]
        .into_iter()
        .flat_map(|two| [Decision::Park, Decision::Run].map(|again| (two, again)))
    {
        let (w, effects) = (World::new(3), Effects::default());
        let h = w.handle(0);
        let of = h.orders();
        w.lose(&[0, 1, 2], MemoryNode::restart_empty).await;
        let first = last(&of).await;
        let audit = Audit::new("alice", "looked at the ledger").unwrap();
        let _ = first.decide(&of, Decision::Park, false, &audit).await.unwrap();
        sleep(secs(60)).await;
        let before = [w.nodes[0].snapshot(), w.nodes[1].snapshot()];
        if is_on_two {
            h.faults[2].cut();
        }
        let _ = first.decide(&of, Decision::Run, true, &audit).await.unwrap();
        sleep(secs(60)).await;
        h.faults[2].heal();
        w.nodes[0].restore(before[0].clone());
        w.nodes[1].restore(before[1].clone());
        sleep(secs(60)).await;
        let lost = last(&of).await;
        assert_ne!(lost.name(), first.name());
        let _ = lost.decide(&of, Decision::Run, false, &audit).await.unwrap();
        sleep(READ_AGAIN).await;
        assert!(is_undecided(&of, "k").await, "{is_on_two}");
        let decided = first.decide(&of, again, true, &audit).await.unwrap();
        // Where a node still has the replacement, that stands.
        let stands = if is_on_two { again } else { Decision::Run };
        assert!(decided.iter().all(|one| one.stands.decision == stands), "{decided:?}");
        sleep(READ_AGAIN).await;
        let outcome = run(&of, "k", &effects).await;
        match stands {
            Decision::Run => assert!(outcome.is_executed(), "{outcome:?}"),
            Decision::Park => {
                assert!(matches!(&outcome, Outcome::Parked(p) if !p.undecided), "{outcome:?}");
                let _ = first.decide(&of, Decision::Run, true, &audit).await.unwrap();
                sleep(READ_AGAIN).await;
                assert!(run(&of, "k", &effects).await.is_executed());
            }
        }
    }
}

/// To run is about to replace to park: its claim runs, or one node has it already. Until it is
/// there, or its claim has lapsed, the keys wait.
#[tokio::test(start_paused = true)]
async fn a_park_whose_replacement_is_under_way_is_undecided() {
    for has_it in [None, Some(0)] {
        let w = World::new(3);
        w.lose(&[0, 1, 2], MemoryNode::restart_empty).await;
        let _ = decide(&orders(&w.redlock), Decision::Park, false).await;
        // The nodes grant the operator's claim. No node takes the result, or one does.
        let deaf = |i: usize| {
            Wrap::new(w.nodes[i].clone(), move |node, batch, deadline| async move {
                let is_result = |op: &Op| matches!(op, Op::Complete { .. });
                if has_it != Some(i) && batch.ops.iter().any(is_result) {
                    return refused(&batch, NodeFault::Server);
                }
                node.call(batch, deadline).await
            })
        };
        let operator = (0..3).fold(w.over(&[], 0), |builder, i| builder.node(deaf(i)));
        let operator = orders(&operator.build().unwrap());
        let (loss, audit) = (last(&operator).await, Audit::new("alice", "looked").unwrap());
        let looks = async {
            sleep(Duration::from_millis(500)).await;
            is_undecided(&orders(&w.builder(0).build().unwrap()), "k").await
        };
        let replaces = loss.decide(&operator, Decision::Run, true, &audit);
        let (decided, is_open) = tokio::join!(replaces, looks);
        assert!(decided.is_err() && is_open, "{has_it:?}: {decided:?}");
        sleep(secs(60)).await;
        let of = orders(&w.redlock);
        assert_eq!(is_undecided(&of, "k").await, has_it.is_some(), "{has_it:?}");
        let decided = decide(&of, Decision::Run, true).await;
        assert!(decided.iter().all(|one| one.stands.decision == Decision::Run), "{decided:?}");
        sleep(READ_AGAIN).await;
        assert!(run(&of, "k", &Effects::default()).await.is_executed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_contradicts_a_result_runs_nothing_whatever_was_decided() {
    let (w, effects) = (World::new(3), Effects::default());
    // The last node counts one attempt only, as one that is sent the result after its grant.
    let last = Wrap::new(w.nodes[2].clone(), |node, batch, deadline| async move {
        let mut replies = node.call(batch, deadline).await;
        for reply in replies.items.iter_mut().flatten() {
            if let Reply::Claimed { record: Some(_), attempt, .. } = reply {
                *attempt = 1;
            }
        }
        replies
    });
    let of = orders(&w.over(&w.nodes[..2], 0).node(last).build().unwrap());
    assert!(run(&of, "k", &effects).await.is_executed());
    w.lose(&[0, 1], MemoryNode::restart_empty).await;
    let _ = decide(&of, Decision::Run, false).await;
    sleep(READ_AGAIN).await;
    for found in [Probed::NotFound, Probed::Unknown] {
        let call = of.key("k").probe(move |_| std::future::ready(found.clone()));
        let outcome = call.run(|_| effects.act(Duration::ZERO)).await.unwrap();
        let Outcome::Parked(parked) = outcome else { panic!("{outcome:?}") };
        assert_eq!((parked.reason, parked.undecided), (ParkedReason::Forgotten, false));
    }
    assert_eq!(effects.count(), 1);
    assert_eq!(run(&of, "k", &effects).await, Outcome::Replayed(1), "without a probe it is one");
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
