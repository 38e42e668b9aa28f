//! Logins that end while a node uses them, on real servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use palisade::error::NodeFault;
use palisade::node::{
    Credentials, NodeEvent, NodeEvents, PasswordFile, RedisNode, RedisNodeBuilder,
};
use palisade::{Durability, Redlock, Settings};
use tokio::time::{sleep, timeout};

use crate::delay::delayed;
use crate::support::server::{Server, free_port};
use crate::support::tokens::{Ends, Gives, Tokens, Trouble};
use crate::support::wait::until;

const S: Duration = Duration::from_secs(1);

fn tokens(server: &Arc<Server>, ends: Ends, life: Duration, cuts: bool) -> Tokens {
    let server = Arc::clone(server);
    Tokens::new(ends, life, cuts, move |args| server.cli(args))
}

fn node(server: &Server) -> RedisNodeBuilder {
    at(&server.url())
}

fn at(url: &str) -> RedisNodeBuilder {
    RedisNode::builder(url).trust_fresh(true)
}

/// Returns the cause of the next failed login.
async fn failed_login(events: &mut NodeEvents) -> String {
    let next = async {
        loop {
            if let NodeEvent::LoginFailed { why, .. } = events.next().await.unwrap().event {
                return why.to_string();
            }
        }
    };
    timeout(60 * S, next).await.expect("an event")
}

fn handle(node: RedisNode) -> Redlock {
    // A busy machine must not fail a call.
    Redlock::builder().ttl(12 * S).node_deadline(2 * S).node(node).build().unwrap()
}

/// Returns the id and the user of each connection that listens for hints.
fn listening(server: &Server) -> Vec<(String, String)> {
    let list = server.cli(&["CLIENT", "LIST", "TYPE", "pubsub"]);
    let part = |line: &str, name: &str| {
        line.split(' ').find_map(|p| p.strip_prefix(name).map(ToOwned::to_owned)).unwrap()
    };
    list.lines().filter(|l| !l.is_empty()).map(|l| (part(l, "id="), part(l, "user="))).collect()
}

/// Locks and unlocks until `end`, alone and in competition, while another lock is renewed.
/// Returns the number of acquired locks.
async fn load(redlock: &Redlock, end: Instant) -> u64 {
    let held = redlock.mutex("held").ttl(6 * S).build().unwrap().acquire().await.unwrap();
    let lost = held.lost_signal();
    let work = async |name: String, pause: Duration, durable| {
        let mutex = redlock.mutex(&name).durability(durable).build().unwrap();
        let (mut before, mut times) = (None, 0);
        while Instant::now() < end {
            let guard = mutex.acquire().await.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(before < Some(guard.fencing_token()), "{name}: a token again");
            before = Some(guard.fencing_token());
            sleep(pause).await;
            guard.release().await.unwrap_or_else(|e| panic!("{name}: {e}"));
            times += 1;
        }
        times
    };
    let levels = [Durability::Primary, Durability::Primary, Durability::Replicas(1)];
    let alone = levels.iter().enumerate();
    let alone = alone.map(|(n, durable)| work(format!("alone-{n}"), Duration::ZERO, *durable));
    let pause = Duration::from_millis(3);
    let together = (0..3).map(|_| work("together".to_owned(), pause, Durability::Primary));
    let (alone, together) = tokio::join!(join_all(alone), join_all(together));
    assert!(!lost.is_lost() && held.is_valid(), "the lease is lost");
    held.release().await.unwrap();
    assert!(together.iter().all(|times| *times > 0), "{together:?}");
    alone.iter().chain(&together).sum()
}

async fn no_call_fails(ends: Ends, (life, lives): (Duration, u32), way: Duration) {
    let server = Arc::new(Server::start(&[]));
    let of = ["--replicaof".to_owned(), server.addr().replace(':', " ")];
    let _replica = Server::start(&of.each_ref().map(String::as_str));
    let online = || server.cli(&["INFO", "replication"]).contains("state=online");
    until("the replica is there", online).await;
    let tokens = tokens(&server, ends, life, true);
    let url = if way.is_zero() { server.url() } else { delayed(&server.addr(), way) };
    let redlock = handle(at(&url).credentials(tokens.clone()).build().unwrap());
    let mut events = redlock.events();
    let begun = Instant::now();
    let (acquired, before) = tokio::join!(load(&redlock, begun + life * lives), async {
        until("it listens", || !listening(&server).is_empty()).await;
        listening(&server)
    });
    let after = listening(&server);
    let metrics = redlock.metrics().remove(0);
    println!("{ends:?}: {acquired} acquired, {} tokens, {} cut", tokens.issued(), tokens.cut());
    assert_eq!((metrics.faults_total(), metrics.logins_failed), (0, 0), "{metrics:?}");
    assert_eq!(tokens.cut(), 0, "a connection had a login that ended");
    assert_eq!((before.len(), after.len()), (1, 1), "{before:?} {after:?}");
    assert_ne!(before[0].1, after[0].1, "it logged in again");
    assert_eq!(before[0].0, after[0].0, "on the same connection");
    assert!(tokens.issued() >= lives, "{} of {lives}", tokens.issued());
    assert_eq!(tokens.most_at_once(), 1);
    assert!(acquired > u64::from(lives) * 10, "{acquired}");
    let events: Vec<_> = std::iter::from_fn(|| events.try_next().map(|e| e.event)).collect();
    assert!(!events.contains(&NodeEvent::Down), "{events:?}");
}

/// How long a credential is good, and how many of them end: two of six seconds, or as many of five
/// seconds as `CREDENTIALS_SECONDS` has room for.
fn lives() -> (Duration, u32) {
    let seconds = std::env::var("CREDENTIALS_SECONDS").ok().and_then(|s| s.parse::<u32>().ok());
    seconds.map_or((6 * S, 2), |seconds| (5 * S, seconds / 5))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_end_under_load_fail_no_call() {
    no_call_fails(Ends::Token, lives(), Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_end_under_load_fail_no_call_and_go_on() {
    no_call_fails(Ends::Session, lives(), Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_end_behind_a_long_way_fail_no_call() {
    no_call_fails(Ends::Token, lives(), Duration::from_millis(80)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_end_behind_a_long_way_fail_no_call() {
    no_call_fails(Ends::Session, lives(), Duration::from_millis(80)).await;
}

#[tokio::test]
async fn a_session_that_ends_is_prolonged_with_the_same_password_and_far_ends_are_not() {
    let server = Server::start(&[]);
    server.cli(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all"]);
    let far = |given: Credentials| given.token_ends(Duration::MAX).session_ends(Duration::MAX);
    for (ends, least) in [
        (far as fn(Credentials) -> Credentials, 0),
        (|given: Credentials| given.session_ends(S), 2),
    ] {
        let gives = Gives(move || ends(Credentials::new("pw").user("app")));
        let redlock = handle(node(&server).credentials(gives).build().unwrap());
        let mutex = redlock.mutex("a").build().unwrap();
        mutex.acquire().await.unwrap().release().await.unwrap();
        let id = || {
            let list = server.cli(&["CLIENT", "LIST"]);
            let ours = list.lines().find(|l| l.contains(" user=app "));
            ours.and_then(|l| l.split(' ').next()).map(ToOwned::to_owned)
        };
        let (before, calls) = (id(), server.calls("auth"));
        sleep(3 * S).await;
        mutex.acquire().await.unwrap().release().await.unwrap();
        let sent = server.calls("auth") - calls;
        assert!(sent >= least && sent <= 6 * least, "{sent}");
        assert!(before.is_some() && before == id());
        assert_eq!(redlock.metrics()[0].faults_total(), 0);
    }
}

#[tokio::test]
async fn a_server_that_is_down_costs_no_question() {
    let server = Arc::new(Server::start(&[]));
    let tokens = tokens(&server, Ends::Token, 60 * S, false);
    let url = format!("redis://127.0.0.1:{}", free_port());
    let redlock = handle(at(&url).credentials(tokens.clone()).build().unwrap());
    let mutex = redlock.mutex("a").build().unwrap();
    for _ in 0..20 {
        mutex.try_acquire().await.expect_err("nothing listens");
    }
    assert_eq!(tokens.issued(), 0);
    assert!(redlock.metrics()[0].faults.contains_key(&NodeFault::Unreachable));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_the_server_does_not_know_yet_fails_no_waiter_and_no_campaign() {
    for was_connected in [false, true] {
        let server = Arc::new(Server::start(&[]));
        let tokens = tokens(&server, Ends::Token, 60 * S, false);
        let redlock = handle(node(&server).credentials(tokens.clone()).build().unwrap());
        let mutex = redlock.mutex("a").acquire_timeout(10 * S).build().unwrap();
        let election = redlock.election("e").acquire_timeout(10 * S).build().unwrap();
        if was_connected {
            mutex.acquire().await.unwrap().release().await.unwrap();
            // The answer serves no other connection after that.
            sleep(S + S / 10).await;
        }
        tokens.trouble(Trouble::WrongPassword);
        let mut events = redlock.events();
        server.cli(&["CLIENT", "KILL", "USER", "app-0"]);
        let right = async {
            let why = failed_login(&mut events).await;
            sleep(Duration::from_millis(300)).await;
            tokens.trouble(None);
            why
        };
        let (guard, leads, why) = tokio::join!(mutex.acquire(), election.campaign("me"), right);
        guard.expect("granted").release().await.unwrap();
        leads.expect("elected").resign().await.unwrap();
        assert!(why.contains("connection for batches: WRONGPASS"), "{why}");
        let faults = redlock.metrics()[0].faults.clone();
        assert!(!faults.contains_key(&NodeFault::Auth), "{faults:?}");
    }
}

async fn trouble_on_an_open_connection(trouble: Trouble, ends: Ends, why: &str) {
    let server = Arc::new(Server::start(&[]));
    let tokens = tokens(&server, ends, S, false);
    let redlock = handle(node(&server).credentials(tokens.clone()).build().unwrap());
    let mut events = redlock.events();
    let mutex = redlock.mutex("a").build().unwrap();
    mutex.acquire().await.unwrap().release().await.unwrap();
    tokens.trouble(trouble);
    let works = async {
        loop {
            let guard = mutex.acquire().await.expect("the session goes on");
            guard.release().await.expect("the session goes on");
            sleep(Duration::from_millis(5)).await;
        }
    };
    let said = tokio::select! {
        said = failed_login(&mut events) => said,
        () = works => unreachable!(),
    };
    assert!(
        said.starts_with("login at the servers: ")
            && said.contains(why)
            && !said.contains("s3cret"),
        "{trouble:?}: {said}"
    );
    tokens.trouble(None);
    let issued = tokens.issued();
    until("it asks again", || tokens.issued() > issued + 1).await;
    let metrics = redlock.metrics().remove(0);
    assert_eq!(metrics.faults_total(), 0, "{trouble:?}: {metrics:?}");
    until("the event is counted", || redlock.metrics()[0].logins_failed > 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trouble_with_a_new_login_is_an_event_and_the_session_goes_on() {
    let all = [
        (Trouble::Hangs, "no answer within 10s"),
        (Trouble::Errs, "the token service is down"),
        (Trouble::Expired, "token has ended"),
        (Trouble::Panics, "panicked"),
        (Trouble::WrongPassword, "connection for batches: WRONGPASS"),
    ];
    let token = |(trouble, why)| trouble_on_an_open_connection(trouble, Ends::Token, why);
    join_all(all.map(token)).await;
    let session = all[1..]
        .iter()
        .map(|(trouble, why)| trouble_on_an_open_connection(*trouble, Ends::Session, why));
    join_all(session).await;
}

#[tokio::test]
async fn a_node_without_credentials_names_the_cause() {
    let server = Arc::new(Server::start(&[]));
    for (trouble, fault, why) in [
        (Trouble::Hangs, NodeFault::Credentials, "has not answered yet"),
        (Trouble::Errs, NodeFault::Credentials, "the provider failed: the token service is down"),
        (Trouble::Expired, NodeFault::Credentials, "token has ended"),
        (Trouble::Panics, NodeFault::Credentials, "panicked"),
        (Trouble::WrongPassword, NodeFault::Credentials, "refused what the provider gave"),
    ] {
        let tokens = tokens(&server, Ends::Token, 60 * S, false);
        tokens.trouble(trouble);
        let limit = Duration::from_millis(200);
        let node = node(&server).connect_timeout(limit).credentials(tokens.clone());
        let redlock = handle(node.build().unwrap());
        let mutex = redlock.mutex("a").build().unwrap();
        let refused = mutex.try_acquire().await.expect_err("no login");
        let (text, debug) = (refused.to_string(), format!("{refused:?} {redlock:?}"));
        assert!(text.contains(why) && !text.contains("s3cret"), "{trouble:?}: {text}");
        assert!(!debug.contains("s3cret"), "{debug}");
        let faults = redlock.metrics()[0].faults.clone();
        assert!(faults.contains_key(&fault) && faults.len() == 1, "{trouble:?}: {faults:?}");
        tokens.trouble(None);
        if trouble == Trouble::Hangs {
            // The one question under way ends after ten seconds.
            assert_eq!(tokens.most_at_once(), 1);
            continue;
        }
        sleep(Duration::from_millis(100)).await;
        mutex.acquire().await.expect("asked again").release().await.unwrap();
    }
}

#[tokio::test]
async fn calls_that_are_dropped_leave_one_question() {
    let server = Arc::new(Server::start(&[]));
    let tokens = tokens(&server, Ends::Token, 60 * S, false);
    let redlock = handle(node(&server).credentials(tokens.clone()).build().unwrap());
    let mutex = redlock.mutex("a").build().unwrap();
    for _ in 0..20 {
        let _ = timeout(Duration::from_millis(1), mutex.acquire()).await;
    }
    mutex.acquire().await.unwrap().release().await.unwrap();
    assert_eq!((tokens.most_at_once(), tokens.issued()), (1, 1));
}

#[tokio::test]
async fn a_changed_password_file_is_used_on_the_open_connection_and_on_the_next() {
    let server = Server::start(&[]);
    let user = |args: &[&str]| server.cli(&[&["ACL", "SETUSER", "app"], args].concat());
    user(&["on", ">first", "~*", "&*", "+@all"]);
    let file = server.dir().join("password");
    std::fs::write(&file, "first\n").unwrap();
    let provider = PasswordFile::new(&file).read_every(Duration::from_millis(300));
    let redlock = handle(node(&server).username("app").credentials(provider).build().unwrap());
    let mutex = redlock.mutex("a").build().unwrap();
    mutex.acquire().await.unwrap().release().await.unwrap();
    sleep(S).await;
    assert_eq!(server.calls("auth"), 0, "the same password again is not sent");
    user(&[">second"]);
    std::fs::write(&file, "second\n").unwrap();
    until("it logs in again", || server.calls("auth") == 1).await;
    user(&["<first"]);
    mutex.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(server.cli(&["CLIENT", "KILL", "USER", "app"]), "1");
    mutex.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(redlock.metrics()[0].logins_failed, 0);
}

#[tokio::test]
async fn the_password_file_of_the_settings_may_change_and_its_last_password_outlives_it() {
    let server = Server::start(&[]);
    let file = server.dir().join("password");
    std::fs::write(&file, "\nfirst\n").unwrap();
    let mut settings = Settings::new([format!("{}?trust_fresh=true", server.url())]);
    (settings.username, settings.password_file) = (Some("app".into()), Some(file.clone()));
    let empty = settings.build().unwrap_err().to_string();
    assert!(empty.contains("first line is empty") && empty.contains("password_file"), "{empty}");
    std::fs::write(&file, "first\n").unwrap();
    server.cli(&["ACL", "SETUSER", "app", "on", ">first", "~*", "&*", "+@all"]);
    let redlock = settings.build().unwrap();
    let mutex = redlock.mutex("a").build().unwrap();
    for change in ["none", "gone", "second", "empty"] {
        match change {
            "gone" => std::fs::remove_file(&file).unwrap(),
            "second" => {
                std::fs::write(&file, "second\n").unwrap();
                server.cli(&["ACL", "SETUSER", "app", ">second", "<first"]);
            }
            "empty" => std::fs::write(&file, "").unwrap(),
            _ => {}
        }
        sleep(S + S / 10).await;
        server.cli(&["CLIENT", "KILL", "USER", "app"]);
        mutex.acquire().await.expect(change).release().await.unwrap();
    }
    assert_eq!(redlock.metrics()[0].logins_failed, 0);
}

async fn a_waiter_is_woken_by_its_hint(ends: Ends, refused: bool) {
    let server = Arc::new(Server::start(&[]));
    let life = if refused { 60 * S } else { S };
    let tokens = tokens(&server, ends, life, true);
    let waits = handle(node(&server).credentials(tokens.clone()).build().unwrap());
    let mut events = waits.events();
    let holds = handle(node(&server).build().unwrap());
    let held = holds.mutex("a").build().unwrap().acquire().await.unwrap();
    let waiter = tokio::spawn(async move {
        waits.mutex("a").build().unwrap().acquire().await.map(|guard| (guard, Instant::now()))
    });
    until("it listens", || !listening(&server).is_empty()).await;
    let first = listening(&server);
    if refused {
        sleep(S + S / 10).await;
        tokens.trouble(Trouble::WrongPassword);
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        let why = failed_login(&mut events).await;
        assert!(why.contains("connection for hints: WRONGPASS"), "{why}");
        sleep(3 * S).await;
        tokens.trouble(None);
    }
    until("another login listens", || {
        let now = listening(&server);
        !now.is_empty() && now.iter().all(|(_, user)| *user != first[0].1)
    })
    .await;
    assert_eq!(listening(&server)[0].0 == first[0].0, !refused, "the same connection");
    sleep(S / 2).await;
    let asked = server.calls("evalsha");
    sleep(S / 2).await;
    assert!(server.calls("evalsha") - asked <= 4, "renewals alone, so a hint wakes it");
    let released = Instant::now();
    held.release().await.unwrap();
    let (guard, at) = waiter.await.unwrap().unwrap();
    let took = at - released;
    assert!(took < 2 * S, "{took:?}");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_arrive_on_a_connection_that_has_logged_in_again() {
    tokio::join!(
        a_waiter_is_woken_by_its_hint(Ends::Token, false),
        a_waiter_is_woken_by_its_hint(Ends::Session, false),
        a_waiter_is_woken_by_its_hint(Ends::Token, true),
    );
}
