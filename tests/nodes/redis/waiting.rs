//! A release must wake waiters even if the releasing client has not read yet that there are any.
//! The server's note (the key `palisade:note`) records until when waiters may exist. The marker
//! does not change.

use palisade::node::spi::NodeSignal;

use super::*;
use crate::support::marker::marker;

/// Returns the time in ms until which waiters may exist, from the server's note.
fn waited(server: &Server) -> u64 {
    let note = server.cli(&["get", "palisade:note"]);
    note.trim().rsplit(' ').next().unwrap().parse().unwrap()
}

fn release_plainly(name: &str, owner: OwnerToken) -> Op {
    Op::Release { mode: LockMode::Exclusive, keys: LockKeys::new(name), owner, meta: false }
}

/// Returns the name of the lock in the next hint (a message that wakes a waiter).
async fn hinted(events: &mut tokio::sync::broadcast::Receiver<NodeSignal>) -> Arc<str> {
    let hint = async {
        loop {
            match events.recv().await.expect("the node is there") {
                NodeSignal::Changed(key) | NodeSignal::Turn { key, .. } => return key,
                _ => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), hint).await.expect("nobody woke who waits")
}

#[tokio::test]
async fn a_client_that_does_not_know_of_a_waiter_wakes_it_all_the_same() {
    let server = Server::start(&[]);
    let (mine, other) = (fresh(&server), fresh(&server));
    let (a, b) = (owner(), owner());
    // The reply to this acquire reports that there is no waiter. The client `mine` gets no other
    // reply before its release.
    fence(one(&mine, LONG, acquire("k", a)).await);
    assert_eq!(waited(&server), 0, "nobody waits");
    let mut events = other.events();
    let held = one(&other, LONG, waiting("k", b)).await;
    assert!(matches!(held, Ok(Reply::Held { .. })), "{held:?}");
    assert_eq!(one(&mine, LONG, release_plainly("k", a)).await, Ok(Reply::Done));
    while &*hinted(&mut events).await != "k" {}
    // The reply to this acquire reports to the client `mine` that waiters exist. Its releases then
    // send a hint (a wake-up message) only for the lock that has a waiter.
    fence(one(&mine, LONG, acquire("l", a)).await);
    let mut events = other.events();
    fence(one(&mine, LONG, acquire("k", a)).await);
    one(&other, LONG, waiting("k", b)).await.unwrap();
    let both = vec![release_plainly("l", a), release_plainly("k", a)];
    let got = batch(&mine, LONG, both, TTL).await;
    assert_eq!(got.items, [Ok(Reply::Done), Ok(Reply::Done)]);
    assert_eq!(&*hinted(&mut events).await, "k", "a hint that nobody asked for");
}

/// A client of another library does not use the queue of waiters. So it cannot get a lock that is
/// reserved for the first caller of the queue.
#[tokio::test]
async fn a_classic_client_does_not_take_a_lock_that_is_reserved() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    let (a, b) = (owner(), owner());
    let place = Place { needs: Duration::from_millis(99), ..PLACE };
    let mut events = node.events();
    let patient =
        redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
    let classic = redis::Client::open(server.url()).unwrap();
    let mut classic = classic.get_multiplexed_async_connection_with_config(&patient).await.unwrap();
    let mut refused = false;
    for turn in 0..40 {
        let name = format!("k{turn}");
        fence(one(&node, LONG, acquire(&name, a)).await);
        let waits = if_held(acquire(&name, b), IfHeld::Queue(place));
        one(&node, LONG, waits.clone()).await.unwrap();
        assert_eq!(one(&node, LONG, release_plainly(&name, a)).await, Ok(Reply::Done));
        // A reservation (the lock is kept for the first waiter) ends soon, and there is none if the
        // waiter's client is not subscribed. So the other library's client may get the lock.
        let set = redis::cmd("SET").arg(&[&*name, "classic", "NX", "PX", "60000"]).clone();
        if set.query_async::<Option<String>>(&mut classic).await.unwrap().is_some() {
            continue;
        }
        refused = true;
        while *hinted(&mut events).await != *name {}
        // The reservation for the first waiter is a value under the lock's key. The key must
        // disappear when the reservation ends.
        let gone = async {
            while !server.cli(&["get", &name]).is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone).await.expect("it ends by itself");
    }
    assert!(refused, "a classic client takes the lock before the one that was woken");
}

#[tokio::test]
async fn the_note_says_how_long_waiters_may_exist_and_the_marker_stays() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    let (a, b) = (owner(), owner());
    fence(one(&node, SHORT, acquire("k", a)).await);
    let before = marker(&server);
    one(&node, SHORT, waiting("k", b)).await.unwrap();
    assert_eq!(marker(&server), before, "a new history was written");
    let until = waited(&server);
    let now = SystemEnv.wall_micros() / 1_000;
    assert!(until > now && until < now + 60_000, "{until} at {now}");
    // Another waiter with the same waiting time changes nothing. A longer quarantine changes the
    // marker, and later writes renew the note, but not the time until which clients wait.
    one(&node, SHORT, waiting("k", owner())).await.unwrap();
    assert_eq!(waited(&server), until);
    assert!(facts(&node, LONG).await.quarantine_raised);
    fence(one(&node, LONG, acquire("l", a)).await);
    assert_eq!(waited(&server), until);
    assert_eq!((marker(&server).history, marker(&server).since), (before.history, before.since));
}

/// A batch that only reads counts as no write, so it does not make up for a note that is missing. A
/// note with nothing but the time until which clients wait would be none of ours.
#[tokio::test]
async fn who_watches_where_the_note_is_missing_leaves_no_broken_one() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    fence(one(&node, LONG, acquire("k", owner())).await);
    server.cli(&["del", "palisade:note"]);
    let watch = Op::Inspect { keys: LockKeys::new("k"), wait: true };
    let seen = one(&node, LONG, watch).await;
    assert!(matches!(seen, Ok(Reply::Holder(Some(_)))), "{seen:?}");
    let text = server.cli(&["get", "palisade:note"]);
    assert!([0, 67].contains(&text.trim().len()), "{text}");
    one(&node, LONG, waiting("k", owner())).await.unwrap();
    assert!(waited(&server) > SystemEnv.wall_micros() / 1_000);
}

/// Redis disconnects a subscriber whose output buffer grows too large. So results, which can be
/// large, do not use the connection on which hints (wake-up messages) arrive.
#[tokio::test]
async fn hints_come_on_a_connection_of_their_own() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    let (a, b) = (owner(), owner());
    fence(one(&node, LONG, acquire("k", a)).await);
    assert_eq!(server.cli(&["client", "list", "type", "pubsub"]), "", "nobody waits");
    let mut events = node.events();
    one(&node, LONG, waiting("k", b)).await.unwrap();
    // The waiter asked before the node's subscription was ready, so it may have missed a hint (a
    // wake-up message). Therefore the node wakes it when the subscription is ready.
    assert_eq!(&*hinted(&mut events).await, "k");
    let subscribed = server.cli(&["client", "list", "type", "pubsub"]);
    assert_eq!(subscribed.lines().count(), 1, "{subscribed}");
    assert!(!subscribed.contains("cmd=evalsha"), "{subscribed}");
    // The connection for hints (wake-up messages) breaks. Batches continue on their own connection.
    // Hints arrive on a new connection.
    let before = facts(&node, LONG).await;
    let list = |kind: &str| server.cli(&["client", "list", "type", kind]);
    let commands = list("normal");
    assert_eq!(server.cli(&["client", "kill", "type", "pubsub"]), "1");
    let begun = Instant::now();
    while list("pubsub").is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody listens any more");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(facts(&node, LONG).await.identity, before.identity);
    let id = |clients: &str| {
        let line = clients.lines().find(|l| l.contains("cmd=evalsha")).expect("batches").to_owned();
        line.split_whitespace().next().expect("id=").to_owned()
    };
    assert_eq!(id(&list("normal")), id(&commands), "the batches' connection was given up");
    let reported = std::iter::from_fn(|| events.try_recv().ok()).collect::<Vec<_>>();
    assert!(!reported.contains(&NodeEvent::Down.into()), "{reported:?}");
    one(&node, LONG, release("k", a)).await.unwrap();
    assert_eq!(&*hinted(&mut events).await, "k");
}

/// The queue contains the place (entry) of a caller that sends no more requests. The server's clock
/// was set back by a minute, so the place seems to be a minute younger. After the next request, the
/// place must keep out others for at most 3 s, for fair callers and for readers. A memory node does
/// the same.
#[tokio::test]
async fn a_step_back_of_the_clock_prolongs_no_place() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    let seconds = server.cli(&["time"]).lines().next().unwrap().trim().parse::<u64>().unwrap();
    for (name, kind, mode) in [("fair", "X", LockMode::Exclusive), ("doc", "x", LockMode::Shared)] {
        let late = format!("{:013}", (seconds + 60) * 1_000);
        let place = format!("0{:016}{kind}{:016x}00{late}", (seconds - 9) * 1_000_000, 7);
        let queue = LockKeys::new(name).queue().to_owned();
        server.cli(&["set", &queue, &place, "px", "600000"]);
        // By this request, the server records in its note that waiters may exist. Otherwise the Lua
        // script would not read the queue of waiters.
        let (a, b) = (owner(), owner());
        let other = format!("beside-{name}");
        fence(one(&node, LONG, acquire(&other, a)).await);
        one(&node, LONG, waiting(&other, b)).await.unwrap();
        let asks = |ticket| {
            let place = Place { waiter: 8, ..PLACE };
            let then = match mode {
                LockMode::Shared => IfHeld::Queue(place),
                _ => IfHeld::Fair { place, ticket },
            };
            if_held(in_mode(acquire(name, b), mode), then)
        };
        let ticket = Some((seconds + 1) * 1_000_000);
        let refused = one(&node, LONG, asks(ticket)).await.unwrap();
        let (Reply::Queued { remaining, .. } | Reply::Held { remaining, .. }) = refused else {
            panic!("{name}: the place is ahead: {refused:?}")
        };
        let rest = remaining.expect("the place ends");
        assert!(rest <= Duration::from_secs(3), "{name}: for {rest:?}");
        tokio::time::sleep(rest + Duration::from_millis(10)).await;
        let granted = one(&node, LONG, asks(ticket)).await;
        assert!(matches!(granted, Ok(Reply::Granted { .. })), "{name}: {granted:?}");
    }
}
