//! Invalid settings cause an error in the call that sets or builds them, before anything is sent to
//! a server. The error is a sentence with the field, the value and the rule, and never contains a
//! secret.

use std::fmt::Debug;
use std::time::Duration;

use palisade::Drift;
use palisade::node::{RedisNode, SentinelNode};
use palisade::{Advice, ConfigError, MemoryNode, Redlock, RedlockBuilder, RetryPolicy, RunError};

const NS: Duration = Duration::from_nanos(1);
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// Asserts that the error is "`field` is value: …rule…" and tells a person the next step.
#[track_caller]
fn refused<T: Debug>(got: Result<T, ConfigError>, field: &str, value: &str, rule: &str) {
    let error = got.map(|_| ()).expect_err("refused");
    let text = error.to_string();
    assert_eq!(error.field(), field, "{text}");
    assert_eq!(error.advice(), Advice::Misconfigured, "{text}");
    let says = format!("`{field}` is {value}: ");
    // Only the name of a lock, an election or a key may come before this text.
    let (of, rest) = text.split_once(&says).unwrap_or_else(|| panic!("{text:?} without {says:?}"));
    assert!(of.is_empty() || of.ends_with("\": "), "{text:?} begins otherwise");
    assert!(rest.contains(rule), "{text:?} should say {rule:?}");
    assert!(!text.contains('\n') && !text.contains('\t'), "one line: {text:?}");
}

fn nodes(n: usize) -> RedlockBuilder {
    (0..n).fold(Redlock::builder(), |b, _| b.node(MemoryNode::new()))
}

fn handle() -> Redlock {
    nodes(1).build().expect("defaults fit together")
}

#[test]
fn the_number_of_nodes() {
    refused(nodes(0).build(), "node", "0 nodes", "between 1 and 31");
    refused(nodes(32).build(), "node", "32 nodes", "between 1 and 31");
    for even in [2, 4, 30] {
        refused(nodes(even).build(), "node", &format!("{even} nodes"), "allow_even_nodes()");
    }
    for odd in [1, 3, 5, 31] {
        nodes(odd).build().expect("odd");
    }
    nodes(4).allow_even_nodes().build().expect("asked for");
}

#[test]
fn a_main_that_returns_it_prints_the_sentence() {
    let error = nodes(2).build().map(drop).expect_err("an even number");
    assert_eq!(format!("{error:?}"), error.to_string());
    // If `main` returns the error, Rust prints it in this form.
    let returned: Box<dyn std::error::Error> = error.clone().into();
    assert_eq!(format!("{returned:?}"), error.to_string());
}

#[test]
fn the_same_node_twice() {
    let twin = || MemoryNode::builder().name("a").build();
    let twice = Redlock::builder().node(twin()).node(MemoryNode::new()).node(twin());
    refused(twice.build(), "node", "\"a\"", "must be distinct");
    let url = "redis://10.0.0.1";
    let redis = || RedisNode::new(url).expect("an address");
    let twice = Redlock::builder().node(redis()).node(redis()).node(MemoryNode::new());
    refused(twice.build(), "node", "\"10.0.0.1:6379\"", "must be distinct");
}

#[test]
fn times_of_the_handle() {
    let one = || nodes(1);
    refused(one().ttl(Duration::ZERO).build(), "ttl", "0ns", "at least 10ms");
    refused(one().ttl(9 * MS).build(), "ttl", "9ms", "at least 10ms");
    let longer = one().max_ttl(15 * SECOND).ttl(31 * SECOND);
    refused(longer.build(), "ttl", "31s", "at most max_ttl (15s)");
    refused(one().max_ttl(5 * SECOND).build(), "ttl", "15s", "at most max_ttl (5s)");
    refused(one().max_ttl(DAY + MS).build(), "max_ttl", "86400.001s", "at most one day");
    refused(one().node_deadline(Duration::ZERO).build(), "node_deadline", "0ns", "at least 1 ms");
    refused(
        one().clock_error(8 * SECOND).build(),
        "clock_error",
        "8s",
        "less than half of max_ttl",
    );
    let drift = Drift::from_ppm(100_001);
    refused(one().drift(drift).build(), "drift", "100001 ppm", "at most 100000 ppm (10 %)");
    one().max_ttl(DAY).ttl(DAY).clock_error(3_600 * SECOND).build().expect("at the limits");
}

#[test]
fn a_ttl_without_room_for_its_renewal_is_reported_with_the_sum() {
    // ttl/4 + 2·node_deadline + 2 ms must be at most ttl·(1 − 1 %). With a node_deadline of 250 ms,
    // this needs a ttl of at least about 679 ms.
    let short = nodes(1).ttl(650 * MS).build();
    refused(short, "ttl", "650ms", "use a longer ttl or a shorter node_deadline");
    nodes(1).ttl(700 * MS).build().expect("room enough");
    nodes(1).ttl(650 * MS).node_deadline(100 * MS).build().expect("answers come sooner");
    let lock = handle().mutex("a").ttl(650 * MS);
    let rule = "use a longer ttl or a shorter node_deadline";
    refused(lock.clone().build(), "ttl", "650ms", rule);
    lock.auto_renew(false).build().expect("nothing is renewed");
}

#[test]
fn times_of_each_kind() {
    let (r, brief) = (handle(), 9 * MS);
    refused(r.mutex("a").ttl(brief).build(), "ttl", "9ms", "at least 10ms");
    refused(r.rw_lock("a").ttl(brief).build(), "ttl", "9ms", "at least 10ms");
    refused(r.semaphore("a", 1).ttl(brief).build(), "ttl", "9ms", "at least 10ms");
    refused(r.multi(["a", "b"]).ttl(brief).build(), "ttl", "9ms", "at least 10ms");
    refused(r.election("a").ttl(brief).build(), "ttl", "9ms", "at least 10ms");
    for d in [Duration::MAX, Duration::MAX / 2, Duration::from_secs(u64::MAX)] {
        nodes(1).node_deadline(d).build().unwrap_err();
        nodes(1).max_ttl(d).build().unwrap_err();
        nodes(1).ttl(d).build().unwrap_err();
        nodes(1).clock_error(d).build().unwrap_err();
    }
}

#[test]
fn numbers_of_permits_and_names() {
    let r = handle();
    for n in [0, 257, u16::MAX] {
        let value = n.to_string();
        refused(r.semaphore("gpu", n).build(), "permits", &value, "between 1 and 256");
    }
    let text = r.semaphore("gpu", 0).build().unwrap_err().to_string();
    assert!(text.starts_with("semaphore \"gpu\": "), "{text}");
    r.semaphore("gpu", 256).build().expect("at the limit");
    let many: Vec<_> = (0..33).map(|i| format!("n{i}")).collect();
    let names = |n: usize| r.multi(&many[..n]).build();
    refused(names(0), "names", "0 names", "between 2 and 32; for one name use `mutex`");
    refused(names(1), "names", "1 names", "between 2 and 32");
    refused(names(33), "names", "33 names", "between 2 and 32");
    names(32).expect("at the limit");
    let twice = r.multi(["b", "a", "b"]).build();
    refused(twice, "names", "\"b\"", "each name once: leave out the second");
}

/// A lock may not have the key of an election, a semaphore or a record as its name, nor a side key
/// of another lock (its fence, queue or metadata).
#[test]
fn names_of_other_things() {
    let r = handle();
    let kept = |name: &str, words: &str| {
        let all = [r.mutex(name).build().map(drop), r.rw_lock(name).build().map(drop)];
        for e in all.into_iter().chain([r.multi(["x", name]).build().map(drop)]) {
            let text = e.expect_err(name).to_string();
            assert!(text.contains("`name`") && text.contains(words), "{text}");
        }
    };
    kept("election:boss", "is where elections are kept");
    kept("permits:gpu", "semaphores");
    for words in ["permits:", "a:election:"] {
        let text = nodes(1).prefix(words).build().unwrap_err().to_string();
        assert!(text.contains(words.trim_start_matches("a:")), "{text}");
    }
    let tagged = nodes(1).prefix("{app}:").build().unwrap();
    for side in ["fence", "queue", "meta"] {
        kept(&format!("{{jobs}}:{side}"), side);
        let e = tagged.mutex(format!("jobs:{side}")).build().unwrap_err().to_string();
        assert!(e.contains("`name`") && e.contains(side), "{e}");
        // A side key has the lock's name as its hash tag, as in `{jobs}:fence`. These names have no
        // hash tag or an empty one, so they are valid.
        r.mutex(format!("jobs:{side}")).build().unwrap();
        r.mutex(format!("{{}}:{side}")).build().unwrap();
    }
}

#[test]
fn names() {
    let long = "n".repeat(513);
    let shown = "\"nnnnnnnnnnnnnnnn\"… (513 bytes)";
    for (name, value, rule) in [
        ("", "\"\"", "must not be empty"),
        (" ", "\" \"", "must not be empty"),
        ("a\nb", "\"a\\nb\"", "no control characters"),
        ("a\0", "\"a\\0\"", "no control characters"),
        ("\u{9b}x", "\"\\u{9b}x\"", "no control characters"),
        (&long, shown, "at most 512 bytes"),
    ] {
        refused(handle().mutex(name).build(), "name", value, rule);
        refused(handle().rw_lock(name).build(), "name", value, rule);
        refused(handle().semaphore(name, 1).build(), "name", value, rule);
        refused(handle().multi(["x", name]).build(), "name", value, rule);
        refused(handle().election(name).build(), "name", value, rule);
    }
    // These unusual names are valid, because a name is always data and never a part of a command.
    for name in ["n".repeat(512).as_str(), "a b", "{a}:b", "ключ", "\"'\\;*"] {
        handle().mutex(name).build().expect("a name");
    }
    refused(nodes(1).prefix("a\tb").build(), "prefix", "\"a\\tb\"", "no control characters");
    refused(nodes(1).prefix(&*long).build(), "prefix", shown, "at most 512 bytes");
    nodes(1).prefix("").build().expect("no prefix");
}

#[tokio::test]
async fn a_mutex_and_an_election_are_refused_when_they_are_built() {
    let node = std::sync::Arc::new(MemoryNode::new());
    let redlock = Redlock::builder().node_arc(node.clone()).build().expect("one node");
    let error = redlock.mutex("a").ttl(31 * SECOND).build().expect_err("too long");
    assert_eq!((error.field(), error.advice()), ("ttl", Advice::Misconfigured));
    let text = error.to_string();
    let want = "lock \"a\": `ttl` is 31s: at most max_ttl (15s); raise `max_ttl`";
    assert!(text.starts_with(want), "{text}");
    let error = redlock.election("").build().expect_err("no name");
    assert_eq!(error.advice(), Advice::Misconfigured);
    assert!(error.to_string().contains("`name` is \"\": must not be empty"), "{error}");
    let words = "w".repeat(palisade::election::MAX_METADATA + 1);
    let error =
        redlock.election("e").build().unwrap().campaign(words).await.expect_err("too many words");
    assert!(error.to_string().contains("`value` is 65537 bytes: "), "{error}");
    assert!(node.is_empty(), "something was sent");
}

#[test]
fn idempotency_settings() {
    let calls = |namespace: &str| handle().idempotency(namespace);
    let named = || calls("n").at_most_once();
    refused(calls("").build(), "namespace", "\"\"", "must not be empty");
    refused(calls("a:b").build(), "namespace", "\"a:b\"", "no colon");
    refused(calls("a\n").build(), "namespace", "\"a\\n\"", "no control characters");
    refused(named().lease(Duration::ZERO).build(), "lease", "0ns", "at least 10ms");
    refused(named().lease(31 * SECOND).build(), "lease", "31s", "at most max_ttl (15s)");
    refused(named().lease(650 * MS).build(), "lease", "650ms", "shorter node_deadline");
    let same = named().lease(15 * SECOND).retention(15 * SECOND).build();
    refused(same, "retention", "15s", "longer than the lease (15s)");
    let large = named().max_result((8 << 20) + 1).build();
    refused(large, "max_result", "8388609 bytes", "at most 8 MiB");
    let long = named().retention(366 * DAY + SECOND).build();
    refused(long, "retention", "31622401s", "at most 366 days");
    named().lease(15 * SECOND).retention(16 * SECOND).build().expect("longer than the lease");
}

#[test]
fn idempotency_settings_at_their_limits() {
    let named = || handle().idempotency("n").at_most_once();
    named().max_result(8 << 20).build().expect("8 MiB");
    named().retention(366 * DAY).build().expect("366 days");
    let longer = named().retention(366 * DAY + NS).build();
    refused(longer, "retention", "31622400.000000001s", "at most 366 days");
    named().lease(15 * SECOND).retention(15 * SECOND + NS).build().expect("longer than the lease");
    named().lease(15 * SECOND).build().expect("max_ttl");
    let longer = named().lease(15 * SECOND + NS).build();
    refused(longer, "lease", "15.000000001s", "at most max_ttl (15s)");
    let accepting = |longest| named().retention(DAY).accept_loss(longest).build();
    accepting(Duration::new(86_399, 999_999_999)).expect("less than the retention");
    refused(accepting(DAY), "accept_loss", "86400s", "less than the retention (86400s)");
}

#[tokio::test]
async fn a_bad_idempotency_key_runs_nothing() {
    let calls = handle().idempotency("n").at_most_once().build().expect("settings");
    let long = "k".repeat(513);
    for (key, rule) in [("", "must not be empty"), ("a\r", "no control"), (&long, "at most 512")] {
        let run = calls.key(key).run(|_| async { panic!("ran") as Result<(), String> });
        let error = run.await.expect_err("refused");
        assert_eq!(error.advice(), Advice::Misconfigured);
        let RunError::Config { error, .. } = error else { panic!("{error}") };
        assert_eq!(error.field(), "key");
        assert!(error.to_string().contains(rule), "{error}");
    }
}

#[test]
fn retry_policies() {
    let policy = RetryPolicy::exponential;
    refused(policy(Duration::ZERO, SECOND, 2.0), "retry", "0ns..1s", "0 < min");
    refused(policy(2 * SECOND, SECOND, 2.0), "retry", "2s..1s", "min ≤ max");
    refused(policy(MS, 61 * SECOND, 2.0), "retry", "1ms..61s", "max ≤ 60 s");
    refused(policy(MS, SECOND, 0.9), "retry", "factor 0.9", "1 ≤ factor");
    refused(policy(MS, SECOND, f32::NAN), "retry", "factor NaN", "1 ≤ factor");
    policy(MS, 60 * SECOND, 1.0).expect("at the limits");
}

#[test]
fn addresses_of_servers() {
    let url = "must be redis://, rediss:// or unix://";
    refused(RedisNode::new(""), "url", "\"\"", url);
    refused(RedisNode::new("http://h"), "url", "\"http://h\"", url);
    let port = "a port is a number from 1 to 65535";
    refused(RedisNode::new("redis://h:99999"), "url", "\"redis://h:…\"", port);
    refused(RedisNode::new("redis://h/-1"), "db", "-1", "between 0 and 2147483647");
    let node = || RedisNode::builder("redis://h");
    refused(node().db(u32::MAX).build(), "db", "4294967295", "between 0 and 2147483647");
    refused(node().name("").build(), "name", "\"\"", "must not be empty");
    let window = node().failover_window(DAY + SECOND).build();
    refused(window, "failover_window", "86401s", "at most one day");
    let memory = |window| MemoryNode::builder().failover_window(window).map(drop);
    memory(DAY).expect("at most one day");
    refused(memory(DAY + SECOND), "failover_window", "86401s", "at most one day");
    let patience = node().connect_timeout(Duration::ZERO).build();
    refused(patience, "connect_timeout", "0ns", "at least 1 ms");
}

#[test]
fn sentinels() {
    let group = |sentinels: &[&str]| SentinelNode::new("g", sentinels.iter().copied()).map(drop);
    let form = "write host:port";
    refused(group(&[]), "sentinels", "0 of them", "between 1 and 16");
    refused(group(&["10.0.0.1"]), "sentinels", "\"10.0.0.1\"", form);
    refused(group(&["10.0.0.1:0"]), "sentinels", "\"10.0.0.1:0\"", form);
    refused(group(&["::1:26379"]), "sentinels", "\":…\"", form);
    refused(group(&["redis://h:26379"]), "sentinels", "\"redis://…\"", "no scheme");
    refused(group(&["S:1", "t:1", "s:1"]), "sentinels", "S:1", "each Sentinel once");
    let many: Vec<String> = (1..=17).map(|n| format!("h:{n}")).collect();
    refused(SentinelNode::new("g", many).map(drop), "sentinels", "17 of them", "three are usual");
    let named = |name: &str| SentinelNode::new(name, ["h:1"]).map(drop);
    refused(named(""), "name", "\"\"", "must not be empty");
    refused(named("a b"), "name", "\"a b\"", "no white space");
}

#[test]
fn settings_of_a_sentinel_group() {
    let group = || SentinelNode::builder("g", ["h:1"]);
    let guard = |n, lag| group().min_replicas(n, lag).build().map(drop);
    refused(guard(0, SECOND), "min_replicas", "0 replicas", "min_replicas_check(MinReplicas::Off)");
    refused(guard(1, 1_500 * MS), "min_replicas", "1.5s of lag", "whole seconds");
    refused(guard(1, Duration::ZERO), "min_replicas", "0ns of lag", "from one second");
    let window = group().failover_window(DAY + SECOND).build().map(drop);
    refused(window, "failover_window", "86401s", "one day");
    let deadline = |d| group().sentinel_deadline(d).build().map(drop);
    refused(deadline(Duration::ZERO), "sentinel_deadline", "0ns", "between 1ms");
    refused(deadline(61 * SECOND), "sentinel_deadline", "61s", "between 1ms and one minute");
    let poll = group().poll_every(Duration::ZERO).build().map(drop);
    refused(poll, "poll_every", "0ns", "between 1ms");
    refused(group().db(u32::MAX).build().map(drop), "db", "4294967295", "between 0 and 2147483647");
}

#[test]
fn no_refusal_shows_a_password() {
    let urls = ["redis://joe:s3cret@h:99999", "rediss://:s3cret@h:0x", "http://joe:s3cret@h/?p=1"];
    let bad = urls.iter().map(|url| RedisNode::new(url).map(drop));
    let sentinels = ["joe:s3cret@h", "redis://:s3cret@h:1"];
    let bad = bad.chain(sentinels.iter().map(|s| SentinelNode::new("g", [*s]).map(drop)));
    for error in bad.map(|b| b.expect_err("refused")) {
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
    }
    let node = RedisNode::builder("redis://joe:s3cret@h").password("s3cret2");
    assert!(!format!("{node:?} {:?}", node.clone().build()).contains("s3cret"));
}
