//! Nodes that break one rule about locks or quarantines: the suite has to find each.

use super::*;

#[tokio::test]
async fn wrong_answers_about_locks_are_caught() {
    tells!("says Done to a stranger's release", "release_by_another_changes_nothing",
        Op::Release { .. }, reply @ Reply::NotOwner => *reply = Reply::Done);
    tells!("grants a held lock", "another_owner_is_held_off",
        _, reply @ Reply::Held { .. } => *reply = Reply::Granted { fence: 1 });
    tells!("rounds large tokens as a float would", "tokens_are_exact_up_to_the_largest",
        _, Reply::Granted { fence } => *fence &= !1);
    caught(
        "gives a fresh fence to a repeated acquire",
        as_is,
        |_, reply| {
            static NEXT: AtomicU64 = AtomicU64::new(1);
            if let Reply::Granted { fence } = reply {
                *fence += NEXT.fetch_add(1, Ordering::Relaxed);
            }
        },
        "same_owner_gets_the_same_answer",
    )
    .await;
}

#[tokio::test]
async fn wrong_answers_about_permits_are_caught() {
    tells!("counts permits and does not number them", "rule_1_each_slot_has_one_owner",
        _, Reply::Permit { slot, .. } => *slot = 0);
    asks!("gives any slot to who moves", "rule_2_a_move_takes_the_slot_and_leaves_the_other",
        Op::Acquire { mode: LockMode::Slot(slots), .. } => *slots = Slots::any(slots.of));
    asks!("looks for no waiter where nothing is freed",
        "rule_5_a_release_that_frees_nothing_wakes_a_waiter_for_a_free_slot",
        Op::Release { mode: LockMode::Slot(_), keys, .. } => *keys = LockKeys::new("another"));
    tells!("forgets that a permit is extended", "rule_4_an_extension_leaves_a_slot_to_its_owner",
        Op::Extend { mode: LockMode::Slot(_), .. }, reply => *reply = Reply::Done);
}

#[tokio::test]
async fn wrong_refusals_are_caught() {
    asks!("gives a candidate no hint", "release_wakes_who_watches_and_who_waits",
        Op::Acquire { if_held: if_held @ Some(IfHeld::Watch), .. } => *if_held = None);
    asks!("refuses who takes a lock from its owner", "a_lock_is_taken_from_its_owner",
        Op::Acquire { if_held: if_held @ Some(IfHeld::TakeFrom(_)), .. } => *if_held = None);
    asks!("gives away what its owner had for longer", "a_closing_is_never_shortened",
        Op::Acquire { ttl, if_held: Some(IfHeld::TakeFrom(_)), .. } =>
            *ttl = Duration::from_secs(3_600));
}

#[tokio::test]
async fn wrong_orders_are_caught() {
    let unfair = |op: &mut Op| {
        if let Op::Acquire { if_held, .. } = op
            && let Some(IfHeld::Fair { place, .. }) = *if_held
        {
            *if_held = Some(IfHeld::Queue(place));
        }
    };
    let passes = "rule_3_no_grant_passes_a_fresh_place";
    caught("lets fair callers pass each other", unfair, truly, passes).await;
    let forgetful = |op: &mut Op| {
        if let Op::Acquire { if_held: Some(IfHeld::Fair { ticket, .. }), .. } = op {
            *ticket = None;
        }
    };
    let settled = "rule_2_a_place_moves_to_the_settled_ticket";
    caught("gives a new ticket to who has one", forgetful, truly, settled).await;
    let sticky = |op: &mut Op| {
        if let Op::Release { meta, .. } = op {
            *meta = false;
        }
    };
    let gives_up = "rule_4_only_its_handle_gives_a_place_up";
    caught("keeps a place that was given up", sticky, truly, gives_up).await;
}

fn handing(op: &mut Op, change: impl FnOnce(&mut OwnerToken, &mut FencingToken)) {
    if let Op::Acquire { if_held: Some(IfHeld::TakeOnly { from, token }), .. } = op {
        change(from, token);
    }
}

#[tokio::test]
async fn wrong_hand_overs_are_caught() {
    let from_nothing = |op: &mut Op| {
        if let Op::Acquire { if_held, .. } = op
            && let Some(IfHeld::TakeOnly { from, .. }) = *if_held
        {
            *if_held = Some(IfHeld::TakeFrom(from));
        }
    };
    let nothing = "rule_2_a_node_where_the_owner_has_nothing_refuses";
    caught("hands over what its owner has not", from_nothing, truly, nothing).await;
    let late = |op: &mut Op| handing(op, |_, token| *token = FencingToken::new(1 << 52));
    let later = "rule_3_nothing_is_handed_over_after_a_later_grant";
    caught("hands over after a later grant", late, truly, later).await;
    let never = |op: &mut Op| handing(op, |from, _| *from = OwnerToken::KEPT);
    let owner = "rule_2_a_lock_is_handed_over_by_its_owner";
    caught("hands nothing over", never, truly, owner).await;
}

fn first_only(keys: &mut LockKeys) {
    *keys = LockKeys::new(keys.lock());
}

#[tokio::test]
async fn wrong_rules_about_several_locks_are_caught() {
    asks!("grants the first name only", "rule_1_all_names_are_granted_or_none",
        Op::Acquire { keys, .. } => first_only(keys));
    asks!("raises one fence", "rule_3_all_fences_are_raised_or_none",
        Op::Raise { keys, .. } => first_only(keys));
    asks!("extends one name", "rule_4_all_names_are_extended_or_none",
        Op::Extend { keys, .. } => first_only(keys));
    asks!("takes no name over", "rule_6_names_that_were_collected_are_taken_over_together",
        Op::Acquire { if_held: if_held @ Some(IfHeld::TakeFrom(_)), .. } => *if_held = None);
    asks!("takes a name that another had for longer", "rule_6_a_takeover_shortens_no_grant",
        Op::Acquire { ttl, if_held: Some(IfHeld::TakeFrom(_)), .. } =>
            *ttl = Duration::from_secs(3_600));
}

#[tokio::test]
async fn wrong_deeds_on_locks_are_caught() {
    asks!("forgets who waits", "release_wakes_an_inspector",
        Op::Inspect { wait, .. } => *wait = false);
    caught(
        "ignores the ttl of an extension",
        |op| {
            if let Op::Extend { keys, .. } = op {
                *op = Op::Inspect { keys: keys.clone(), wait: false };
            }
        },
        |op, reply| {
            if matches!(op, Op::Extend { .. }) {
                *reply = Reply::Done;
            }
        },
        "extend_prolongs",
    )
    .await;
    asks!("forgets the holder's metadata", "metadata_is_kept_and_replaced",
        Op::Extend { meta, .. } => *meta = None);
    caught(
        "takes all metadata for new",
        |op| {
            static TEXTS: AtomicU64 = AtomicU64::new(0);
            if let Op::Extend { meta: Some(meta), .. } = op {
                let n = TEXTS.fetch_add(1, Ordering::Relaxed);
                *meta = n.to_be_bytes().to_vec().into();
            }
        },
        truly,
        "metadata_wakes_an_inspector_once_and_only_if_it_is_new",
    )
    .await;
    tells!("grants in quarantine", "a_restarted_node_grants_after_the_quarantine",
        _, reply @ Reply::Quarantined { .. } => *reply = Reply::Granted { fence: 1 });
}

#[tokio::test]
async fn wrong_rules_about_quarantines_are_caught() {
    tells!("extends in quarantine without its name",
        "a_forgotten_lock_is_put_back_only_for_this_quarantine",
        Op::Extend { .. } | Op::ExtendClaim { .. }, reply @ Reply::Quarantined { .. } =>
            *reply = Reply::Done);
    tells!("raises in quarantine", "a_restart_with_data_is_quarantined_too",
        Op::Raise { .. }, reply @ Reply::Quarantined { .. } => *reply = Reply::Done);
}

fn writes(op: &mut Op) {
    if let Op::Acquire { mode, .. } | Op::Extend { mode, .. } | Op::Release { mode, .. } = op {
        *mode = LockMode::Exclusive;
    }
}

#[tokio::test]
async fn wrong_rules_about_readers_are_caught() {
    let beside = "rule_1_readers_are_granted_beside_readers";
    caught("takes readers for owners", writes, truly, beside).await;
    tells!("raises the fence for readers", "rule_2_reading_does_not_raise_the_fence",
        Op::Acquire { mode: LockMode::Shared, .. }, Reply::Granted { fence } => *fence += 1);
    tells!("grants to a reader beside an owner", "rule_1_an_owner_keeps_readers_out",
        Op::Acquire { mode: LockMode::Shared, .. }, reply @ Reply::Held { .. } =>
            *reply = Reply::Granted { fence: 1 });
    asks!("extends a reader that asks as a writer", "rule_6_no_extension_makes_a_reader_a_writer",
        Op::Extend { mode, .. } => *mode = LockMode::Shared);
    let downgrade = "rule_6_a_writer_becomes_a_reader";
    caught("keeps a writer that becomes a reader", writes, truly, downgrade).await;
    asks!("forgets the writers that wait", "rule_9_a_writer_that_waits_keeps_later_readers_out",
        Op::Acquire { if_held, .. } => *if_held = None);
}

#[tokio::test(start_paused = true)]
async fn wrong_lists_of_candidates_are_caught() {
    tells!("shows the last first", "the_list_shows_who_is_in_it_in_order_of_arrival",
        _, Reply::Candidates(all) => all.reverse());
    asks!("keeps the entries of the dead",
        "an_entry_that_is_not_written_again_is_gone_after_its_ttl",
        Op::Enlist(enlist) => enlist.ttl = Duration::from_secs(3_600));
    tells!("has room without end", "a_full_list_takes_no_candidate_until_one_leaves",
        _, Reply::Candidates(all) => all.extend(all.last().cloned()));
    let keeps = |op: &mut Op| {
        if let Op::Enlist(enlist) = op {
            enlist.entry.get_or_insert_with(|| b"stays"[..].into());
        }
    };
    let alone = "an_entry_is_replaced_by_its_owner_and_taken_out_by_it_alone";
    caught("lets no candidate leave", keeps, truly, alone).await;
    let read = "a_list_that_is_only_read_is_not_made";
    caught("lists who only reads", keeps, truly, read).await;
    tells!("cuts texts at a zero", "what_an_entry_says_comes_back_byte_for_byte",
    _, Reply::Candidates(all) => for listed in all {
        listed.entry = listed.entry.split(|byte| *byte == 0).next().unwrap().into();
    });
}
