//! Fuzz tests of all input from users and stores through the public interface: settings, names,
//! keys and stored results. The fuzz tests for answers of servers are next to the parsers, in
//! `src`.
//!
//! `make fuzz` runs all fuzz tests for longer.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use palisade::Moment;
use palisade::idempotency::Status;
use palisade::node::spi::LockKeys;
use palisade::node::spi::{Ballot, Op};
use palisade::{
    ConfigError, FencingToken, MemoryNode, Outcome, RedisNode, Redlock, RunError, SentinelNode,
    node::spi::{LockNode, OwnerToken},
};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use crate::support::ops;

const MARKS: [&str; 2] = ["Sa1x", "Kb2y"];

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

fn corpus(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    lines.map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect()
}

fn leaks(text: &str) -> bool {
    MARKS.iter().any(|mark| text.to_lowercase().contains(&mark.to_lowercase()))
}

fn any_name() -> impl Strategy<Value = String> {
    let part = "[a-z{}: ]{0,3}";
    let tail =
        proptest::sample::select(&["", ":fence", "}:fence", "}:queue", ":meta", "}:meta"][..]);
    prop_oneof![
        4 => (part, tail).prop_map(|(a, b)| format!("{a}{b}")),
        2 => ("\\{[a-z{}]{0,3}", tail_of()).prop_map(|(a, b)| format!("{a}{b}")),
        2 => any::<String>(),
        1 => (509_usize..515).prop_map(|n| "x".repeat(n)),
    ]
}

fn tail_of() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(&["}:fence", "}:queue", "}:meta"][..])
}

/// Returns true if the text is a valid name by the documented rule. It is implemented independently
/// of the library.
fn is_name(name: &str) -> bool {
    let widthless = ['\u{200b}', '\u{200c}', '\u{200d}', '\u{2060}', '\u{feff}'];
    let is_blank = |c: char| c.is_whitespace() || widthless.contains(&c);
    is_text(name) && !name.chars().all(is_blank)
}

/// As [`is_name`], but a blank or empty text is valid, too.
fn is_text(text: &str) -> bool {
    text.len() <= 512 && !text.chars().any(char::is_control)
}

fn reported(e: &ConfigError, field: &str) -> Result<(), TestCaseError> {
    prop_assert_eq!(e.field(), field);
    let text = e.to_string();
    prop_assert!(text.len() < 4_000 && !text.chars().any(char::is_control), "{text:?}");
    Ok(())
}

fn redlock(node: &MemoryNode) -> Redlock {
    Redlock::builder().node(node.clone()).node_deadline(Duration::from_secs(2)).build().unwrap()
}

#[test]
fn fuzz_corpus_of_addresses_shows_no_password() {
    for text in corpus(include_str!("../corpus/addresses.txt")) {
        let e = SentinelNode::new("orders", [text.clone()]).unwrap_err();
        assert!(!leaks(&format!("{e} {e:?}")), "{text}: {e}");
        let map = [("10.0.0.1:1".to_owned(), text.clone())];
        let e = SentinelNode::builder("orders", ["a:1"]).map_address(map).build().unwrap_err();
        assert!(!leaks(&format!("{e} {e:?}")), "{text}: {e}");
    }
    for url in corpus(include_str!("../corpus/urls.txt")) {
        let text = match RedisNode::new(&url) {
            Ok(node) => format!("{node:?} {}", node.name()),
            Err(e) => format!("{e} {e:?}"),
        };
        assert!(!leaks(&text), "{url}: {text}");
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn fuzz_sentinel_lists(
        name in prop_oneof!["[a-z -]{0,6}", any::<String>()],
        list in proptest::collection::vec(prop_oneof![
            3 => "[a-c]:[1-3]",
            1 => "\\[::[1-3]\\]:[1-9]",
            1 => "[ -~]{0,12}",
            1 => any::<String>(),
        ], 0..20),
    ) {
        match SentinelNode::new(name.clone(), list.clone()) {
            Ok(node) => {
                prop_assert_eq!(&*node.name(), name.as_str());
                prop_assert!(is_name(&name) && (1..=16).contains(&list.len()));
                let mut distinct: Vec<_> = list.iter().map(|a| a.to_lowercase()).collect();
                distinct.sort();
                distinct.dedup();
                prop_assert_eq!(distinct.len(), list.len());
            }
            Err(e) => {
                let field = e.field();
                prop_assert!(matches!(field, "name" | "sentinels"));
                reported(&e, field)?;
            }
        }
    }

    #[test]
    fn fuzz_an_address_with_a_password_never_shows_it(
        scheme in prop_oneof![Just(""), Just("redis://"), Just("rediss://"), Just("redis:")],
        odd in "[:/?#@%\\[\\]&= .]{0,3}",
        host in prop_oneof![Just("@h:1"), Just("@h"), Just("@"), Just(""), Just("@[::1]:x")],
    ) {
        // If `host` has no @, the text after an @ in `odd` counts as the host. An error may show
        // this text, so such an address is left out.
        if !host.contains('@') && odd.contains('@') {
            return Ok(());
        }
        let text = format!("{scheme}joe:{}{odd}{}{host}", MARKS[0], MARKS[1]);
        if let Err(e) = SentinelNode::new("orders", [text.clone()]) {
            prop_assert!(!leaks(&format!("{e} {e:?}")), "{text}: {e}");
        } else {
            prop_assert!(false, "{text} is an address");
        }
    }

    #[test]
    fn fuzz_node_names(url in any::<String>(), name in any_name()) {
        if let Err(e) = RedisNode::new(&url) {
            let field = e.field();
            reported(&e, field)?;
        }
        match RedisNode::builder("redis://h").name(name.clone()).build() {
            Ok(node) => prop_assert!(is_name(&name) && *node.name() == *name),
            Err(e) => {
                prop_assert!(!is_name(&name));
                reported(&e, "name")?;
            }
        }
    }

    /// A lock's key never equals a side key (for the fence, the queue or the metadata) of another
    /// lock.
    #[test]
    fn fuzz_names_never_meet_the_side_keys_of_another(one in any_name(), other in any_name()) {
        let redlock = redlock(&MemoryNode::new());
        let check = |name: &str| redlock.mutex(name).build().map(drop);
        for name in [&one, &other] {
            match check(name) {
                Ok(()) => prop_assert!(is_name(name)),
                Err(e) => reported(&e, "name")?,
            }
            if let Err(e) = redlock.election(name).build() {
                reported(&e, "name")?;
            }
        }
        if one.is_empty() || !is_name(&one) {
            return Ok(());
        }
        let keys = LockKeys::new(&one);
        prop_assert_eq!(keys.lock(), one.as_str());
        for side in [keys.fence(), keys.queue(), keys.meta()] {
            prop_assert!(side.contains(&one));
            if is_name(side) {
                prop_assert!(check(side).is_err(), "{side:?} is a side key of {one:?}");
            }
        }
    }

    #[test]
    fn fuzz_prefixes_and_namespaces(
        prefix in any_name(), separated in any::<bool>(), namespace in any_name(),
    ) {
        let prefix = if separated { prefix + ":" } else { prefix };
        let is_prefix = is_text(&prefix) && !prefix.ends_with(char::is_alphanumeric);
        let built = Redlock::builder().node(MemoryNode::new()).prefix(prefix.clone()).build();
        match built {
            Ok(redlock) => {
                prop_assert!(prefix.is_empty() || is_prefix);
                match redlock.idempotency(namespace.clone())
                    .at_most_once()
                    .build() {
                    Ok(_) => prop_assert!(is_name(&namespace) && !namespace.contains(':')),
                    Err(e) => {
                        prop_assert!(!is_name(&namespace) || namespace.contains(':'));
                        reported(&e, "namespace")?;
                    }
                }
            }
            Err(e) => {
                prop_assert!(!prefix.is_empty() && !is_prefix);
                reported(&e, "prefix")?;
            }
        }
    }

    #[test]
    fn fuzz_owner_tokens(
        (bits, at, byte) in (any::<u128>(), 0_usize..22, any::<u8>()),
        bytes in proptest::collection::vec(any::<u8>(), 0..30),
    ) {
        let token = OwnerToken::from_random(bits);
        prop_assert_eq!(OwnerToken::parse(token.as_str().as_bytes()), Some(token));
        let mut hurt = token.as_str().as_bytes().to_vec();
        hurt[at] = byte;
        for text in [bytes, hurt] {
            if let Some(read) = OwnerToken::parse(&text) {
                prop_assert_eq!(read.as_str().as_bytes(), &text[..]);
            }
        }
    }
}

/// A result type, as in a user's program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Paid {
    id: u32,
    note: String,
}

/// Stores these bytes as the result of the key `k` in the namespace `pay`, as another program or
/// another version could have done.
async fn plant(node: &MemoryNode, bytes: &[u8]) {
    let complete = Op::Complete {
        ballot: Ballot {
            key: "idem:pay:k".into(),
            owner: OwnerToken::from_random(1),
            token: FencingToken::new((1 << 53) - 1),
            retention: Duration::from_secs(3_600),
            fingerprint: None,
        },
        value: Some(bytes.into()),
    };
    let batch = ops::batch(Duration::from_secs(30), vec![complete]);
    let replies = node.call(batch, Moment::from_nanos(u64::MAX)).await;
    replies.items[0].as_ref().unwrap();
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work)
}

/// Returns the results of a lookup and of a run for these stored bytes. Panics if the handler runs.
fn answers(bytes: &[u8]) -> (Option<Paid>, Option<Paid>) {
    block_on(async {
        let node = MemoryNode::new();
        plant(&node, bytes).await;
        let idem = redlock(&node).idempotency("pay").at_most_once().build().unwrap();
        let looked = match idem.key("k").lookup::<Paid>().await {
            Ok(Status::Stored(paid)) => Some(paid),
            Err(RunError::Codec { error: e, .. }) => {
                assert!(e.to_string().len() < 1_000, "{e}");
                None
            }
            other => panic!("{other:?} out of {bytes:?}"),
        };
        let ran = Arc::new(AtomicBool::new(false));
        let run = idem.key("k").run(async |_| {
            ran.store(true, Ordering::SeqCst);
            Ok::<_, Infallible>(Paid { id: 0, note: String::new() })
        });
        let run = match run.await {
            Ok(Outcome::Replayed(paid)) => Some(paid),
            Err(RunError::Codec { .. }) => None,
            other => panic!("{other:?} out of {bytes:?}"),
        };
        assert!(!ran.load(Ordering::SeqCst), "a result stood there: {bytes:?}");
        (looked, run)
    })
}

#[test]
fn fuzz_corpus_of_records_is_reported() {
    for text in corpus(include_str!("../corpus/records.txt")) {
        assert_eq!(answers(text.as_bytes()), (None, None), "{text}");
    }
    let long = format!("{{\"id\":\"{}\"}}", "x".repeat(1 << 20));
    assert_eq!(answers(long.as_bytes()), (None, None), "an error as long as what it quotes");
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn fuzz_results_are_read_as_they_were_stored(id in any::<u32>(), note in any::<String>()) {
        let paid = Paid { id, note };
        let result = paid.clone();
        let (first, second) = block_on(async {
            let redlock = redlock(&MemoryNode::new());
            let idem = redlock.idempotency("pay").at_most_once();
            let idem = idem.build().unwrap();
            let first = idem.key("k").run(async |_| Ok::<_, Infallible>(result)).await;
            (first, idem.key("k").lookup::<Paid>().await)
        });
        prop_assert_eq!(first.unwrap(), executed(paid.clone(), 1));
        prop_assert_eq!(second.unwrap(), Status::Stored(paid));
    }

    #[test]
    fn fuzz_damaged_results_are_errors_or_keep_their_value(
        (id, note) in (any::<u32>(), "[ -~]{0,6}"),
        (at, bit, how) in (any::<proptest::sample::Index>(), 0_u8..8, 0_u8..4),
        junk in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut bytes = serde_json::to_vec(&Paid { id, note }).unwrap();
        let at = at.index(bytes.len());
        match how {
            0 => bytes[at] ^= 1 << bit,
            1 => bytes.truncate(at),
            2 => bytes.extend(&junk),
            _ => bytes = junk,
        }
        // The expected result is computed independently: the bytes are parsed as generic JSON
        // first.
        let want = serde_json::from_slice::<serde_json::Value>(&bytes).ok().and_then(|json| {
            let id = u32::try_from(json.get("id")?.as_u64()?).ok()?;
            Some(Paid { id, note: json.get("note")?.as_str()?.to_owned() })
        });
        prop_assert_eq!(answers(&bytes), (want.clone(), want));
    }
}

/// Returns the outcome of a run in which the handler has just run, at the default durability.
fn executed<T>(value: T, attempt: u32) -> Outcome<T> {
    Outcome::Executed { value, attempt, durability: palisade::Achieved::default(), kept: true }
}
