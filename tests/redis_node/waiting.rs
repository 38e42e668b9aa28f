//! Who waits is told, also by clients that did not know of it; and the marker that says so keeps
//! what else it says.

use super::*;

/// The marker's words.
fn marker(server: &Server) -> Vec<String> {
    let words = server.cli(&["get", "palisade:generation"]);
    words.split_whitespace().map(str::to_owned).collect()
}

fn waiting(name: &str, owner: OwnerToken) -> Op {
    let proposal = SystemEnv.wall_micros();
    Op::Acquire { keys: LockKeys::new(name), owner, ttl: TTL, proposal, wait: true }
}

fn release_plainly(name: &str, owner: OwnerToken) -> Op {
    Op::Release { keys: LockKeys::new(name), owner, words: false }
}

/// The lock that the next hint is about.
async fn hinted(events: &mut tokio::sync::broadcast::Receiver<NodeEvent>) -> Arc<str> {
    let hint = async {
        loop {
            if let NodeEvent::Changed(key) = events.recv().await.expect("the node is there") {
                return key;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), hint).await.expect("nobody woke who waits")
}

#[tokio::test]
async fn a_client_that_does_not_know_that_somebody_waits_wakes_it_all_the_same() {
    let server = Server::start(&[]);
    let (mine, other) = (fresh(&server), fresh(&server));
    let (a, b) = (owner(), owner());
    // What this answers says that nobody waits, and is the last that `mine` hears of it.
    fence(one(&mine, LONG, acquire("k", a)).await);
    assert_eq!(marker(&server).len(), 4, "nobody waits");
    let mut events = other.events();
    let held = one(&other, LONG, waiting("k", b)).await;
    assert!(matches!(held, Ok(Reply::Held { .. })), "{held:?}");
    assert_eq!(one(&mine, LONG, release_plainly("k", a)).await, Ok(Reply::Done));
    while &*hinted(&mut events).await != "k" {}
    // From here on it knows, and wakes nobody who does not wait.
    fence(one(&mine, LONG, acquire("l", a)).await);
    let mut events = other.events();
    fence(one(&mine, LONG, acquire("k", a)).await);
    one(&other, LONG, waiting("k", b)).await.unwrap();
    let both = vec![release_plainly("l", a), release_plainly("k", a)];
    let got = batch(&mine, LONG, both, TTL).await;
    assert_eq!(got.items, [Ok(Reply::Done), Ok(Reply::Done)]);
    assert_eq!(&*hinted(&mut events).await, "k", "a hint that nobody asked for");
}

#[tokio::test]
async fn the_marker_says_how_long_somebody_may_wait_and_keeps_its_other_words() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    let (a, b) = (owner(), owner());
    fence(one(&node, SHORT, acquire("k", a)).await);
    let before = marker(&server);
    one(&node, SHORT, waiting("k", b)).await.unwrap();
    let after = marker(&server);
    assert_eq!(after[..4], before[..], "a new generation was written");
    let until: u64 = after[4].parse().unwrap();
    let now = SystemEnv.wall_micros() / 1_000;
    assert!(until > now && until < now + 60_000, "{until} at {now}");
    // Others who wait as long do not write it again, and a longer quarantine keeps it.
    one(&node, SHORT, waiting("k", owner())).await.unwrap();
    assert_eq!(marker(&server), after);
    assert!(facts(&node, LONG).await.quarantine_raised);
    assert_eq!(marker(&server)[4], after[4]);
    assert_eq!(marker(&server)[..3], before[..3]);
}

#[tokio::test]
async fn a_fifth_word_of_another_kind_is_nobody_who_waits() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    fence(one(&node, LONG, acquire("k", owner())).await);
    let words = marker(&server).join(" ");
    for fifth in ["1234567890123456789", "12345678901f", "x", "run-id 1795243818246"] {
        server.cli(&["set", "palisade:generation", &format!("{words} {fifth}")]);
        let a = owner();
        fence(one(&node, LONG, acquire("l", a)).await);
        assert_eq!(one(&node, LONG, release_plainly("l", a)).await, Ok(Reply::Done), "{fifth}");
        assert!(marker(&server).join(" ").starts_with(&words), "{fifth}");
    }
}
