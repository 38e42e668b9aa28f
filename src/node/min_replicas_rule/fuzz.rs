//! No report of a server causes an overflow, and a setting that is unknown never counts as strong.

use proptest::prelude::*;

use super::*;
use crate::fuzzing::{any_bytes, config};

fn any_count() -> impl Strategy<Value = Option<u32>> {
    const EDGES: &[u32] = &[0, 1, 2, (1 << 31) - 1, 1 << 31, u32::MAX - 1, u32::MAX];
    proptest::option::of(prop_oneof![proptest::sample::select(EDGES), any::<u32>()])
}

fn any_span() -> impl Strategy<Value = Option<Duration>> {
    const EDGES: &[u64] = &[0, 1, 3, 10, 3_600, 0xFFFF_FFFF, u64::MAX];
    let seconds = prop_oneof![proptest::sample::select(EDGES), any::<u64>(), 0_u64..60];
    proptest::option::of(seconds.prop_map(Duration::from_secs))
}

fn any_text() -> impl Strategy<Value = String> {
    any_bytes().prop_map(|b| String::from_utf8_lossy(&b).into_owned())
}

#[test]
fn the_largest_numbers_of_a_server_overflow_nothing() {
    let facts = MinReplicasFacts {
        good_replicas: Some(u32::MAX),
        connected_replicas: Some(u32::MAX),
        // The largest value that a server accepts.
        min_replicas: Some((1 << 31) - 1),
        max_lag: Some(Duration::from_secs(1)),
    };
    let verdict = MinReplicasRule::default().judge(&facts, Some(Duration::MAX), Some(u32::MAX));
    assert_eq!(verdict.fault, None);
    assert!(verdict.warning.is_some_and(|w| w.contains("set it to 2147483648")));
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn fuzz_a_guard_that_may_vote_is_on_and_strong_enough(
        (good, connected) in (any_count(), any_count()),
        (k, lag) in (any_count(), any_span()),
        (down_after, replicas) in (any_span(), any_count()),
        (requested, requested_lag) in (1_u32..5, 1_u64..=3_600),
    ) {
        let facts = MinReplicasFacts {
            good_replicas: good,
            connected_replicas: connected,
            min_replicas: k,
            max_lag: lag,
        };
        let rule = MinReplicasRule {
            policy: MinReplicas::Require,
            replicas: requested,
            max_lag: Duration::from_secs(requested_lag),
            window: Some(Duration::from_secs(15)),
        };
        let verdict = rule.judge(&facts, down_after, replicas);
        if verdict.fault.is_none() {
            prop_assert!(good.is_some() && k.is_none_or(|k| k >= requested));
            let bound = u128::from(lag.map_or(requested_lag, |l| l.as_secs())) + 2;
            prop_assert!(lag.is_none_or(|l| l.as_secs() >= 1 && l.as_secs() <= requested_lag));
            prop_assert!(down_after.is_none_or(|d| bound <= u128::from(d.as_secs())));
            prop_assert!(u128::from(verdict.window.as_secs()) >= bound);
        }
    }

    #[test]
    fn fuzz_facts_are_read_as_they_stand(
        (head, good, k, lag) in (any_text(), any_text(), any_text(), any_text()),
    ) {
        let info = format!("# Replication\r\n{head}\r\nmin_slaves_good_slaves:{good}\r\n");
        let pairs = [("min-replicas-to-write".to_owned(), k.clone()),
            ("min-replicas-max-lag".to_owned(), lag.clone())];
        let facts = MinReplicasFacts::parse(&info, Some(&pairs));
        prop_assert_eq!(facts.min_replicas, k.parse().ok());
        prop_assert_eq!(facts.max_lag, lag.parse().ok().map(Duration::from_secs));
        if let Some(n) = facts.good_replicas {
            let value = |l: &str| l.split_once(':').and_then(|(_, v)| v.trim_end().parse().ok());
            let says = |l: &str| value(l) == Some(n);
            prop_assert!(info.lines().any(says));
        }
        prop_assert!(!facts.to_string().is_empty());
    }
}
