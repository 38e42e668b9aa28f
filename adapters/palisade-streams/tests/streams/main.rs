//! Tests of Redis Streams on a real server. If a consumer dies, another consumer handles its
//! entries. A slow consumer changes nothing about an entry that another consumer has taken over.

#[path = "../../examples/orders.rs"]
#[allow(dead_code, reason = "its `main` is not called here")]
mod example;
#[path = "../../../../tests/support/fake.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod fake;
#[path = "../../../../tests/support/frozen.rs"]
#[allow(unreachable_pub, missing_docs)]
mod frozen;
#[path = "../../../../tests/support/held.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod held;
mod hostile;
mod incident;
mod late;
#[path = "../../../../tests/support/hostile.rs"]
mod letters;
#[path = "../../../../tests/support/logs.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod logs;
#[path = "../../../../tests/support/server.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod server;
#[path = "../../../../tests/support/wait.rs"]
mod wait;

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use palisade::idempotency::Context;
use palisade::{Failed, Idempotency, MemoryNode, Redlock};
use palisade_consumer::Rules;
use palisade_streams::{Consumer, Message, Publisher, Stream, redrive};
use tokio::time::{sleep, timeout};
use tracing_subscriber::filter::LevelFilter;

use logs::Log;
use server::Server;

const LEASE: Duration = Duration::from_secs(2);

fn orders() -> Idempotency {
    let redlock = Redlock::builder().node(MemoryNode::new()).ttl(LEASE).build().unwrap();
    redlock.idempotency("orders").at_most_once().build().unwrap()
}

pub(crate) fn stream(server: &Server) -> Stream {
    Stream::new(&server.url(), "orders", "billing")
}

fn consumer(server: &Server, of: &Idempotency) -> Consumer<Stream> {
    Consumer::builder(stream(server), of.clone()).build().unwrap()
}

async fn add(server: &Server, keys: &[&str]) {
    let publisher = Publisher::new(&server.url(), "orders");
    for key in keys {
        publisher.publish(key, SystemTime::now(), b"10 GBP").await.unwrap();
    }
}

pub(crate) fn ask(server: &Server, words: &[&str]) -> String {
    let port = server.port().to_string();
    let mut cli = std::process::Command::new("redis-cli");
    let out = cli.args(["-p", &port]).args(words).output().expect("redis-cli can be run");
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

pub(crate) async fn drained(server: &Server, entries: usize) {
    loop {
        let groups = ask(server, &["XINFO", "GROUPS", "orders"]);
        let facts: Vec<_> = groups.lines().collect();
        let of = |name: &str| facts.iter().position(|f| *f == name).map(|at| facts[at + 1]);
        let read = of("entries-read").and_then(|n| n.parse().ok()).unwrap_or(0);
        if of("pending") == Some("0") && read >= entries {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn what_a_dead_consumer_left_is_taken_over_and_its_copies_have_one_effect() {
    let (server, of) = (Server::start(&[]), orders());
    add(&server, &["order-1", "order-2", "order-1"]).await;
    ask(&server, &["XGROUP", "CREATE", "orders", "billing", "0"]);
    // The consumer `dead` reads all entries and then stops.
    let read = ["XREADGROUP", "GROUP", "billing", "dead", "STREAMS", "orders", ">"];
    assert!(ask(&server, &read).contains("order-2"));
    let effects = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&effects);
    let handler = move |cx: Context, _: Arc<Message>| {
        seen.lock().unwrap().push(cx.key().to_owned());
        async { Ok::<_, Failed>(()) }
    };
    let run = consumer(&server, &of).run(handler, drained(&server, 3)).await.unwrap();
    effects.lock().unwrap().sort();
    assert_eq!(*effects.lock().unwrap(), ["order-1", "order-2"], "{run:?}");
    assert_eq!((run.acked, run.parked), (3, 0));
    // A live consumer removes its own name when it ends. The name of the dead consumer is removed
    // only after an hour.
    let names = ask(&server, &["XINFO", "CONSUMERS", "orders", "billing"]);
    assert_eq!(names.lines().filter(|l| *l == "name").count(), 1, "{names}");
    assert!(names.contains("dead"), "{names}");
}

#[tokio::test]
async fn a_long_handler_keeps_its_entry() {
    let (server, of) = (Server::start(&[]), orders());
    add(&server, &["order-1"]).await;
    let slow = |_: Context, _: Arc<Message>| async {
        sleep(5 * LEASE).await;
        Ok::<_, Failed>(())
    };
    let (a, b) = (consumer(&server, &of), consumer(&server, &of));
    let (a, b) = tokio::join!(a.run(slow, drained(&server, 1)), b.run(slow, drained(&server, 1)));
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!((a.delivered + b.delivered, a.acked + b.acked), (1, 1), "{a:?} {b:?}");
}

#[tokio::test]
async fn a_dead_letter_has_the_entry_and_its_reason() {
    let (server, of) = (Server::start(&[]), orders());
    add(&server, &["order-1", "fails"]).await;
    let tries = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&tries);
    let handler = move |cx: Context, _: Arc<Message>| {
        let fails = cx.key() == "fails";
        seen.fetch_add(u32::from(fails), SeqCst);
        async move { if fails { Err(Failed::no_effect("the bank is closed")) } else { Ok(()) } }
    };
    let rules = palisade_consumer::Rules::default().max_failures(2);
    let builder = Consumer::builder(stream(&server), of.clone());
    let consumer = builder.rules(rules).build().unwrap();
    let ended = consumer.run(handler, drained(&server, 2)).await.unwrap();
    assert_eq!((ended.parked, ended.acked, tries.load(SeqCst)), (1, 1, 2), "{ended:?}");
    let letter = ask(&server, &["XRANGE", "{orders}:dead", "-", "+"]);
    for part in ["key\nfails", "body\n10 GBP", "reason\nexhausted", "the bank is closed"] {
        assert!(letter.contains(part), "{part} is not in {letter}");
    }
}

#[tokio::test]
async fn a_dead_letter_that_cannot_be_written_stays_in_the_queue() {
    let (server, of) = (Server::start(&[]), orders());
    ask(&server, &["SET", "{orders}:dead", "another program's"]);
    add(&server, &["order-1"]).await;
    let consumer = Consumer::builder(stream(&server), of).build().unwrap();
    let handler =
        |_: Context, _: Arc<Message>| async { Err::<(), _>(Failed::permanent("unknown")) };
    let run = consumer.run(handler, std::future::pending());
    // The consumer either ends with an error or tries again and again.
    let ended = timeout(Duration::from_secs(3), run).await;
    assert!(!matches!(ended, Ok(Ok(_))), "{ended:?}");
    let pending = ask(&server, &["XPENDING", "orders", "billing"]);
    assert!(pending.starts_with('1'), "lost: {pending}");
}

#[tokio::test]
async fn a_refusal_ends_the_consumer_with_what_to_check() {
    let of = orders();
    let refused = Server::start(&["--requirepass", "secret"]);
    let consumer = consumer(&refused, &of);
    let run = consumer
        .run(|_: Context, _: Arc<Message>| async { Ok::<_, Failed>(()) }, std::future::pending());
    let e = timeout(Duration::from_secs(20), run).await.expect("it ends").unwrap_err();
    let text = e.to_string();
    assert!(text.contains("stream \"orders\"") && text.contains("check the login"), "{text}");
}

/// Some entries are delivered again and again, for example those that wait for an operator's
/// decision. The consumer can claim such entries at each read, and must read new entries
/// nevertheless.
#[tokio::test]
async fn new_entries_go_on_beside_many_that_were_left() {
    let (server, of) = (Server::start(&[]), orders());
    let left: Vec<_> = (0..100).map(|n| format!("left-{n}")).collect();
    add(&server, &left.iter().map(String::as_str).collect::<Vec<_>>()).await;
    ask(&server, &["XGROUP", "CREATE", "orders", "billing", "0"]);
    let dead = ["XREADGROUP", "GROUP", "billing", "dead", "COUNT", "100", "STREAMS", "orders", ">"];
    ask(&server, &dead);
    add(&server, &["new-1", "new-2", "new-3"]).await;
    sleep(2 * LEASE).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let keys = Arc::clone(&order);
    let handler = move |cx: Context, _: Arc<Message>| {
        keys.lock().unwrap().push(cx.key().to_owned());
        async { Ok::<_, Failed>(()) }
    };
    let builder = Consumer::builder(stream(&server), of);
    let one = builder.rules(Rules::default().concurrency(1)).build().unwrap();
    one.run(handler, drained(&server, 103)).await.unwrap();
    let order = order.lock().unwrap();
    let place = |key: &str| order.iter().position(|one| one == key).expect("it was handled");
    assert_eq!(order.len(), 103);
    assert!(place("new-3") < 20, "{order:?}");
}

#[tokio::test]
async fn the_example_runs_on_a_server_that_was_marked() {
    let server = Server::start(&[]);
    let deployment = palisade_ops::Deployment::new().node(server.url());
    assert!(palisade_ops::init(&deployment, "").await.unwrap().is_done());
    // The example runs twice on one server. The data of the first run must not disturb the second
    // run.
    for _ in 0..2 {
        example::run(server.url()).await.unwrap();
    }
}

fn add_letters(server: &Server, n: u32) {
    let add = "for n = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'key', n, 'reason', \
               'forgotten', 'detail', 'd', 'id', '1-1') end";
    ask(server, &["EVAL", add, "1", "{orders}:dead", &n.to_string()]);
}

#[tokio::test]
async fn a_redrive_logs_what_it_moved_also_if_it_fails_or_is_dropped() {
    let log = Log::of_this_thread(LevelFilter::WARN);
    let lines = || log.lines(&["palisade_streams", "event=\"redrive\""]);
    let (server, most) = (Server::start(&[]), 20_000);
    let url = server.url();
    let back = || ask(&server, &["XLEN", "orders"]).parse::<u32>().unwrap();

    add_letters(&server, 120);
    assert_eq!(redrive(&url, "orders").await.unwrap().moved, 120);
    let done = "stream=\"orders\" moved=120 incomplete=0 done=true";
    assert!(lines().len() == 1 && lines()[0].contains(done), "{:?}", lines());

    ask(&server, &["SET", "{bills}:dead", "is no stream"]);
    redrive(&url, "bills").await.unwrap_err();
    let failed = "stream=\"bills\" moved=0 incomplete=0 done=false";
    assert!(lines().len() == 2 && lines()[1].contains(failed), "{:?}", lines());

    add_letters(&server, most);
    let mut dropped = Box::pin(redrive(&url, "orders"));
    while back() == 120 {
        let _ = timeout(Duration::from_millis(1), &mut dropped).await;
    }
    drop(dropped);
    let line = lines().pop().unwrap();
    assert!(lines().len() == 3 && line.contains("done=false"), "{line}");
    let moved = line.split_once("moved=").unwrap().1.split(' ').next().unwrap();
    let (moved, back) = (moved.parse::<u32>().unwrap(), back() - 120);
    // Each step of a redrive moves at most 50 entries. The logged number may lack the entries of
    // two steps: of one whose reply was not received, and of one that was still running.
    assert!(moved <= back && back <= moved + 100 && back < most, "{moved} of {back}");
}
