//! Tests of the disposition (the action that a consumer takes with a message) for each outcome and
//! each error of the message's call.

use std::sync::Arc;

use palisade::Failed;
use palisade::error::{Commands, ConfigError, NoQuorum, NodeError, NodeFault, NodeOutcome};
use palisade::internal::made;

use super::*;

type CallResult = Result<Outcome<u32>, RunError>;

fn nodes(fault: NodeFault) -> NoQuorum {
    let failed = NodeOutcome::Failed(NodeError::not_executed(fault, "it said so"));
    NoQuorum {
        of: None,
        needed: 1,
        nodes: vec![(Arc::from("a"), failed)],
        waited: None,
        commands: Commands::default(),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as all that can come of a call")]
fn parked(reason: ParkedReason) -> CallResult {
    Ok(Outcome::Parked(made::parked(reason, &[], false)))
}

/// Returns the outcome for a forgotten key (too few nodes can exclude an earlier use), before an
/// operator has decided about such keys.
#[expect(clippy::unnecessary_wraps, reason = "as all that can come of a call")]
fn undecided() -> CallResult {
    Ok(Outcome::Parked(made::parked(ParkedReason::Forgotten, &[], true)))
}

#[test]
fn rules_may_park_what_is_undecided() {
    let rules = Rules::default().park_forgotten();
    assert_eq!(short(&rules.disposition(&undecided(), 0)), "park forgotten");
}

fn failed(failed: Failed) -> CallResult {
    failed_in(1, failed)
}

fn failed_in(attempt: u32, failed: Failed) -> CallResult {
    Err(made::failed(attempt, failed, false))
}

/// The claim was lost before the handler failed.
fn overtaken(failed: Failed) -> CallResult {
    Err(made::failed(1, failed, true))
}

fn not_recorded(overtaken: bool) -> CallResult {
    Err(made::not_recorded(nodes(NodeFault::Timeout), overtaken))
}

/// Formats a disposition as a short text, for example `ack`, `retry 500`, `park mismatch` or
/// `stop`.
fn short(disposition: &Disposition) -> String {
    match disposition {
        Disposition::Ack => "ack".to_owned(),
        Disposition::Retry(wait) => format!("retry {}", wait.as_millis()),
        Disposition::Park(why) => format!("park {}", why.reason.code()),
        Disposition::Stop(_) => "stop".to_owned(),
    }
}

#[test]
fn every_outcome_and_every_error_has_one_disposition() {
    let executed = |kept| Ok(made::executed(1, kept));
    let in_flight = |ms| Ok(Outcome::InFlight { retry_after: Duration::from_millis(ms) });
    let no_quorum = |fault| Err(made::no_quorum(nodes(fault)));
    let codec = serde_json::from_str::<u32>("{").unwrap_err();
    let config = ConfigError::new("key", "\"\"", "not empty");
    let table: Vec<(&str, CallResult, &str)> = vec![
        ("executed", executed(true), "ack"),
        ("executed, too large to be kept", executed(false), "ack"),
        ("replayed", Ok(Outcome::Replayed(1)), "ack"),
        ("replayed, not kept", Ok(Outcome::NotKept), "ack"),
        ("in flight", in_flight(4_000), "retry 4000"),
        ("in flight, lease about to end", in_flight(0), "retry 250"),
        ("mismatch", Ok(Outcome::Mismatch), "park mismatch"),
        ("too old", Ok(Outcome::TooOld), "park too-old"),
        ("lapsed", parked(ParkedReason::Lapsed), "park lapsed"),
        ("forgotten, decided", parked(ParkedReason::Forgotten), "park forgotten"),
        ("forgotten, undecided", undecided(), "retry 250"),
        ("not initialised", Err(made::not_initialised()), "retry 5000"),
        ("bad key", Err(made::config(config)), "park unreadable"),
        ("codec", Err(made::codec(&codec)), "park codec"),
        ("failed without effect", failed(Failed::no_effect("x")), "retry 250"),
        ("failed, may be repeated", failed(Failed::retry("x")), "retry 250"),
        ("failed, effect unknown", failed(Failed::unknown("x")), "retry 250"),
        ("refused for good", failed(Failed::permanent("x")), "park refused"),
        (
            "failed, with a time",
            failed(Failed::retry("x").after(Duration::from_secs(90))),
            "retry 90000",
        ),
        ("failed without effect, overtaken", overtaken(Failed::no_effect("x")), "retry 1000"),
        ("failed, effect unknown, overtaken", overtaken(Failed::unknown("x")), "retry 1000"),
        ("refused for good, overtaken", overtaken(Failed::permanent("x")), "retry 1000"),
        ("nodes silent", no_quorum(NodeFault::Timeout), "retry 500"),
        ("nodes unreachable", no_quorum(NodeFault::Unreachable), "retry 500"),
        ("nodes refuse the password", no_quorum(NodeFault::Auth), "stop"),
        ("nodes evict", no_quorum(NodeFault::Eviction), "stop"),
        ("handle closed", no_quorum(NodeFault::Closed), "stop"),
        ("not recorded", not_recorded(false), "retry 500"),
        ("not recorded, overtaken", not_recorded(true), "retry 500"),
    ];
    let rules = Rules::default();
    for (case, outcome, want) in table {
        assert_eq!(short(&rules.disposition(&outcome, 0)), want, "{case}");
    }
}

#[test]
fn failures_wait_longer_each_time_and_end_as_a_dead_letter() {
    let rules = Rules::default().retry(Duration::from_millis(100), Duration::from_secs(1));
    let rules = rules.max_failures(6);
    let after = |before| short(&rules.disposition(&failed(Failed::unknown("x")), before));
    let waits: Vec<_> = (0..7).map(after).collect();
    let parked = "park exhausted";
    assert_eq!(
        waits,
        ["retry 100", "retry 200", "retry 400", "retry 800", "retry 1000", parked, parked]
    );
    // The handler did not cause this error, so the message never becomes a dead letter.
    let silent = Err(made::no_quorum(nodes(NodeFault::Timeout)));
    assert_eq!(short(&rules.disposition::<u32>(&silent, u32::MAX)), "retry 500");
    assert_eq!(after(u32::MAX), parked);
}

/// Attempts whose process died are in the record alone. The broker counts no failure for them.
#[test]
fn attempts_that_left_no_result_count_as_failures() {
    let errors: [fn() -> Failed; 3] =
        [|| Failed::unknown("x"), || Failed::no_effect("x"), || Failed::retry("x")];
    for most in [1, 2, 7] {
        let rules = Rules::default().max_failures(most);
        for attempt in 1..=most + 2 {
            for error in errors {
                let how = short(&rules.disposition(&failed_in(attempt, error()), 0));
                assert_eq!(how == "park exhausted", attempt >= most, "{attempt} of {most}: {how}");
            }
            assert_eq!(rules.may_run(attempt), attempt <= most, "{attempt} of {most}");
        }
        let late = rules.disposition(&overtaken(Failed::permanent("x")), u32::MAX);
        assert_eq!(short(&late), "retry 1000");
    }
}

#[test]
fn a_dead_letter_says_its_reason_its_key_and_what_to_do() {
    let say = |outcome: CallResult| match Rules::default().disposition(&outcome, 9) {
        Disposition::Park(why) => why.to_string(),
        other => panic!("{other:?}"),
    };
    let lapsed = say(parked(ParkedReason::Lapsed));
    assert!(lapsed.starts_with("lapsed: \"orders:536365\": attempt 1 began"), "{lapsed}");
    assert!(lapsed.contains("then resolve the key or rerun it"), "{lapsed}");
    let exhausted = say(failed(Failed::no_effect("bank closed")));
    assert!(exhausted.starts_with("exhausted: failure 10, the last one: the handler of"));
    assert!(exhausted.ends_with("bank closed"), "{exhausted}");
    let killed = say(failed_in(11, Failed::no_effect("too many")));
    assert!(killed.starts_with("exhausted: not run again: 10 attempts began and left"), "{killed}");
    assert!(killed.contains("a larger `max_failures`"), "{killed}");
    let refused = say(failed(Failed::permanent("no such customer")));
    assert!(refused.contains("for good, without effect: no such customer"), "{refused}");
}

#[test]
fn rules_that_cannot_be_kept_are_refused() {
    let (ms, secs) = (Duration::from_millis, Duration::from_secs);
    for (rules, field) in [
        (Rules::default().concurrency(0), "concurrency"),
        (Rules::default().concurrency(10_001), "concurrency"),
        (Rules::default().retry(Duration::ZERO, secs(1)), "retry"),
        (Rules::default().retry(secs(2), ms(1_999)), "retry"),
        (Rules::default().max_failures(0), "max_failures"),
    ] {
        assert_eq!(rules.check().unwrap_err().field(), field);
    }
    Rules::default().check().unwrap();
}
