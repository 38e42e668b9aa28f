//! Each name has the expected keys, and two different things never share a key.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::fuzzing::config;

#[test]
fn side_keys_share_the_slot() {
    assert_eq!(LockKeys::new("invoice:42").fence(), "{invoice:42}:fence");
    assert_eq!(LockKeys::new("{acct}:7").queue(), "{acct}:7:queue");
    assert_eq!(LockKeys::new("a{}b").meta(), "{a{}b}:meta");
    let keys = LockKeys::prefixed("app:", "x");
    assert_eq!(keys.lock(), "app:x");
    assert_eq!(keys.fence(), "{app:x}:fence");
    assert_eq!(keys.queue(), "{app:x}:queue");
    assert_eq!(keys.meta(), "{app:x}:meta");
}

#[test]
fn a_leader_is_asked_in_the_slot_of_its_election() {
    let keys = LockKeys::of_election("app:", "x");
    assert_eq!(keys.request().lock(), "{app:election:x}:ask");
    assert_eq!(keys.request().fence(), "{app:election:x}:ask:fence");
    let tagged = LockKeys::of_election("{app}:", "x");
    assert_eq!(tagged.request().lock(), "{app}:election:x:ask");
    assert_eq!(&*keys.candidates(), "{app:election:x}:candidates");
    assert_eq!(&*tagged.candidates(), "{app}:election:x:candidates");
    for (prefix, name) in [
        ("{app}:", "x:ask"),
        ("{app}:", "x:ask:fence"),
        ("{", "x}:ask"),
        ("{app}:", "x:candidates"),
        ("{", "x}:candidates"),
    ] {
        let keys = LockKeys::of_election(prefix, name);
        assert!(check_election(name, &keys).is_err(), "{prefix}{name}");
    }
    check_election("x:ask", &LockKeys::of_election("app:", "x:ask")).unwrap();
}

#[test]
fn a_main_key_leads_back_to_its_name() {
    let lock = |name: &str| Some(Resource::Lock(name.into()));
    let election = |name: &str| Some(Resource::Election(name.into()));
    let semaphore = |name: &str| Some(Resource::Semaphore(name.into()));
    for (prefix, key, is) in [
        ("", "job", lock("job")),
        ("", "election:boss", election("boss")),
        ("", "app:election:boss", election("app:election:boss")),
        ("app:", "app:job", lock("job")),
        ("app:", "app:election:boss", election("boss")),
        ("{app}:", "{app}:election:boss", election("boss")),
        ("app:", "other:job", None),
        ("app:", "{app:job}:fence", None),
        ("", "{job}:fence", None),
        ("", "{election:boss}:meta", None),
        ("", "{election:boss}:ask", None),
        ("", "{election:boss}:candidates", None),
        ("", "{app:election:boss}:ask:fence", None),
        ("{app}:", "{app}:election:boss:ask", None),
        ("", "permits:gpu", semaphore("gpu")),
        ("", "app:permits:gpu", semaphore("app:permits:gpu")),
        ("app:", "app:permits:gpu", semaphore("gpu")),
        ("{app}:", "{app}:permits:gpu", semaphore("gpu")),
        ("", "{permits:gpu}:queue", None),
        ("", "idem:ns:key", None),
        ("", "app:idem:ns:key", None),
        ("", "palisade:generation", None),
    ] {
        assert_eq!(of_key(prefix, key), is, "{prefix:?} {key:?}");
    }
}

#[test]
fn bad_names_are_reported_with_field_value_and_rule() {
    for (name, rule) in [
        ("", "must not be empty"),
        (" \u{a0}\u{feff}", "must not be empty"),
        ("a\nb", "no control characters"),
        ("\u{7f}", "control"),
    ] {
        let text = check_name("name", name).unwrap_err().to_string();
        assert!(text.contains("name") && text.contains(rule), "{text}");
    }
    let long = "x".repeat(NAME_MAX + 1);
    assert!(check_name("name", &long).unwrap_err().to_string().contains("513 bytes"));
    assert!(check_name("name", &long[1..]).is_ok());
}
/// By the names that a user gave.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Thing {
    Lock(String),
    Election(String),
    Semaphore(String),
    Record(String, String),
}

impl Thing {
    fn at(key: &str, prefix: &str) -> Self {
        let name = key.strip_prefix(prefix).unwrap_or(key);
        match (name.strip_prefix(ELECTION), name.strip_prefix(RECORD)) {
            (Some(name), _) if name.len() % 2 == 0 => Self::Election(name.to_owned()),
            (_, Some(rest)) if rest.len() % 2 == 0 => {
                let (namespace, key) = rest.split_once(':').unwrap_or((rest, ""));
                Self::Record(namespace.to_owned(), key.to_owned())
            }
            _ => match name.strip_prefix(PERMITS) {
                Some(name) if name.len() % 2 == 0 => Self::Semaphore(name.to_owned()),
                _ => Self::Lock(name.to_owned()),
            },
        }
    }

    /// The main key first; `None` if the name is invalid.
    fn keys(&self, prefix: &str) -> Option<Vec<String>> {
        check_prefix(prefix).ok()?;
        let keys = match self {
            Self::Lock(name) => {
                let keys = LockKeys::prefixed(prefix, name);
                check_lock(name, &keys).ok()?;
                keys
            }
            Self::Election(name) => {
                let keys = LockKeys::of_election(prefix, name);
                check_election(name, &keys).ok()?;
                let request = keys.request();
                let of =
                    |k: &LockKeys| [k.lock(), k.fence(), k.queue(), k.meta()].map(str::to_owned);
                return Some([of(&keys), of(&request)].concat());
            }
            Self::Semaphore(name) => {
                let keys = LockKeys::of_semaphore(prefix, name);
                check_semaphore(name, &keys).ok()?;
                keys
            }
            Self::Record(namespace, key) => {
                check_namespace(namespace).ok()?;
                check_name("key", key).ok()?;
                return Some(vec![record_key(prefix, namespace, key).to_string()]);
            }
        };
        let all = [keys.lock(), keys.fence(), keys.queue(), keys.meta()];
        Some(all.map(str::to_owned).to_vec())
    }
}

fn name() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "a",
        "b",
        "{",
        "}",
        ":",
        "{a}",
        "{a",
        "a}",
        "{}",
        "fence",
        "queue",
        "meta",
        ":fence",
        "}:meta",
        "election",
        "election:",
        "idem",
        "idem:",
        "permits",
        "permits:",
        "palisade:",
        "generation",
        "barrier",
        "settled",
    ]);
    prop::collection::vec(part, 1..6).prop_map(|parts| parts.concat())
}

fn thing() -> impl Strategy<Value = Thing> {
    prop_oneof![
        3 => name().prop_map(Thing::Lock),
        2 => name().prop_map(Thing::Election),
        2 => name().prop_map(Thing::Semaphore),
        2 => (name(), name()).prop_map(|(n, k)| Thing::Record(n, k)),
    ]
}

fn prefix() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), name().prop_map(|name| name + ":"), name()]
}

fn slot(key: &str) -> &str {
    let open = key.find('{').filter(|_| has_hash_tag(key));
    let tag = open.and_then(|open| key[open + 1..].split('}').next());
    tag.unwrap_or(key)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..config() })]

    #[test]
    fn two_things_never_share_a_key(
        a in thing(), other in thing(), here in prefix(), there in prefix(),
        same in any::<bool>(), aim in proptest::option::weighted(0.8, 0_usize..4),
    ) {
        let there = if same { here.clone() } else { there };
        let Some(left) = a.keys(&here) else { return Ok(()) };
        let aimed = aim.map(|n| Thing::at(&left[n % left.len()], &there));
        let b = aimed.unwrap_or(other);
        let Some(right) = b.keys(&there) else { return Ok(()) };
        // Other programs use the whole main key as the name of the lock.
        let are_locks = matches!((&a, &b), (Thing::Lock(_), Thing::Lock(_)));
        let is_one = (a == b && here == there) || (are_locks && left[0] == right[0]);
        let left: BTreeSet<_> = left.into_iter().collect();
        let shared: Vec<_> = right.iter().filter(|key| left.contains(*key)).collect();
        prop_assert!(is_one || shared.is_empty(), "{shared:?}");
        for own in [MARKER, NOTE, BARRIER, SETTLED] {
            prop_assert!(!left.contains(own), "{own}");
        }
    }

    #[test]
    fn the_keys_of_one_thing_are_distinct_and_share_a_slot(a in thing(), here in prefix()) {
        let Some(keys) = a.keys(&here) else { return Ok(()) };
        let distinct: BTreeSet<_> = keys.iter().collect();
        prop_assert_eq!(distinct.len(), keys.len());
        // A closing brace outside of a hash tag ends the hash tag of the other keys too early.
        if has_hash_tag(&keys[0]) || !keys[0].contains('}') {
            for key in &keys {
                prop_assert_eq!(slot(key), slot(&keys[0]), "{:?}", keys);
            }
        }
    }
}

#[test]
fn what_would_be_another_kind_is_refused_with_advice() {
    for (prefix, name, advice) in [
        ("", "election:boss", "elections are kept"),
        ("", "idem:pay:k", "idempotency keys are kept"),
        ("", "app:idem:pay:k", "idempotency keys are kept"),
        ("app", "election:boss", "elections are kept"),
        ("", "permits:gpu", "the permits of semaphores are kept"),
        ("", "app:permits:gpu", "the permits of semaphores are kept"),
        ("", "{election:boss}:meta", "elections are kept"),
        ("", "{acct}", "leave out the braces"),
        ("", "{a}:fence", "the lock \"{a}\" keeps its fence"),
    ] {
        let text = check_lock(name, &LockKeys::prefixed(prefix, name)).unwrap_err().to_string();
        assert!(text.starts_with("`name`") && text.contains(advice), "{text}");
    }
    for name in ["selection:5", "idempotent", "election", "a}b", "{acct}:7", "order:7"] {
        check_lock(name, &LockKeys::new(name)).unwrap_or_else(|e| panic!("{e}"));
    }
    assert!(check_prefix("app:election:").unwrap_err().to_string().contains("election:"));
    for prefix in ["", "selection:", "app/", "app_", "{app}", "größe-"] {
        check_prefix(prefix).unwrap_or_else(|e| panic!("{e}"));
    }
    // Else the election "boss" of the prefix "app" would have the key of the lock
    // "appelection:boss" without a prefix.
    for prefix in ["app", "app:2", "größe", "idem"] {
        let text = check_prefix(prefix).unwrap_err().to_string();
        let advice = format!("must end with a separator, as \"{prefix}:\"");
        assert!(text.starts_with("`prefix`") && text.contains(&advice), "{text}");
    }
}
