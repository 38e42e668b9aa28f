//! Tests of a `Wire` over a pipe in memory.

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::time::timeout;

use super::*;
use crate::name::LockKeys;
use crate::op::{LockMode, Op, Remembered, Terms};
use crate::token::OwnerToken;

const NONE: &[u8] = b"-NOSCRIPT No matching script.\r\n";

fn pair() -> (Wire, DuplexStream) {
    let (ours, theirs) = duplex(1 << 16);
    (Wire::new(Box::new(ours), Limits::BATCHES, || b"load;".to_vec()), theirs)
}

fn numbers(answer: Answer) -> Vec<i64> {
    let number = |v| if let Value::Int(n) = v { n } else { panic!("{v:?}") };
    answer.unwrap().into_iter().map(number).collect()
}

fn sent(server: &mut DuplexStream) -> String {
    let mut all = vec![0; 1 << 12];
    let n = server.read(&mut all).now_or_never().map_or(0, Result::unwrap);
    String::from_utf8_lossy(&all[..n]).into_owned()
}

struct Again(Batch);

impl Retry for Again {
    fn batch(&self) -> &Batch {
        &self.0
    }

    fn again(&mut self, answer: &mut Value) -> Option<Vec<u8>> {
        (*answer == Value::Int(99)).then(|| b"again;".to_vec())
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as the wire takes it")]
fn batch(releases: bool, owner: u128) -> Option<Box<dyn Retry>> {
    let (keys, owner) = (LockKeys::new("k"), OwnerToken::from_random(owner));
    let op = if releases {
        Op::Release { mode: LockMode::Exclusive, keys, owner, meta: false }
    } else {
        Op::Acquire {
            mode: LockMode::Exclusive,
            keys,
            owner,
            ttl: Duration::from_secs(1),
            proposal: 1,
            if_held: None,
        }
    };
    let second = Duration::from_secs(1);
    let terms = Terms { max_ttl: second, clock_error: second };
    let batch = Batch { terms, not_after: None, remembers: Remembered::default(), ops: vec![op] };
    Some(Box::new(Again(batch)))
}

fn send(wire: &Wire, text: &str, batch: Option<Box<dyn Retry>>) -> Reply {
    wire.send(text.into(), 1, batch).expect("it is open")
}

#[tokio::test]
async fn each_request_gets_its_own_answer_also_when_another_one_reads() {
    let (wire, mut server) = pair();
    let (a, b) = (wire.send(b"a".to_vec(), 2, None).unwrap(), send(&wire, "b", None));
    let c = send(&wire, "c", None);
    assert_eq!(sent(&mut server), "abc", "each leaves at once");
    server.write_all(b":1\r\n:2\r\n:3\r\n:4\r\n").await.unwrap();
    assert_eq!(numbers(c.await), [4], "one that does not come first reads for all");
    assert_eq!(numbers(a.await), [1, 2]);
    assert_eq!(numbers(b.await), [3]);
}

#[tokio::test]
async fn the_answer_to_an_abandoned_request_is_dropped() {
    let (wire, mut server) = pair();
    let (a, b) = (send(&wire, "a", None), send(&wire, "b", None));
    // The future of the first request reads, and is dropped after data have arrived.
    let mut reads = Box::pin(a);
    assert!(futures_util::poll!(&mut reads).is_pending());
    let waits = tokio::spawn(b);
    tokio::task::yield_now().await;
    server.write_all(b":1\r\n:2\r\n").await.unwrap();
    drop(reads);
    let answer = timeout(Duration::from_secs(5), waits).await.expect("the other future reads");
    assert_eq!(numbers(answer.unwrap()), [2]);
}

#[tokio::test]
async fn the_end_is_noticed_although_nothing_was_asked() {
    let (wire, server) = pair();
    assert!(wire.over().now_or_never().is_none() && !wire.is_over());
    drop(server);
    timeout(Duration::from_secs(5), wire.over()).await.expect("it hears of it");
    assert!(wire.is_over() && wire.send(b"late".to_vec(), 1, None).is_none());
}

#[tokio::test]
async fn an_unobserved_end_is_noticed_before_anything_is_sent() {
    let (wire, server) = pair();
    drop(server);
    assert!(wire.send(b"late".to_vec(), 1, None).is_none(), "certainly not executed");
    let (unused, server) = pair();
    assert!(!unused.is_over());
    let (never_looked_at, gone) = pair();
    drop((server, gone));
    assert!(unused.is_over() && never_looked_at.is_over());
}

#[tokio::test]
async fn what_is_under_way_ends_with_the_connection() {
    let (wire, server) = pair();
    let (a, b) = (send(&wire, "a", None), send(&wire, "b", None));
    drop(server);
    assert!(a.await.is_err() && b.await.is_err());
}

#[tokio::test]
async fn one_that_was_given_up_answers_what_is_under_way() {
    let (wire, mut server) = pair();
    let a = send(&wire, "a", None);
    wire.give_up();
    assert!(wire.is_over() && wire.send(b"b".to_vec(), 1, None).is_none());
    server.write_all(b":1\r\n").await.unwrap();
    assert_eq!(numbers(a.await), [1]);
}

#[tokio::test]
async fn an_answer_to_nothing_ends_it_and_a_push_does_not() {
    let (wire, mut server) = pair();
    server.write_all(b">1\r\n+hello\r\n").await.unwrap();
    assert!(!wire.is_over() && wire.over().now_or_never().is_none());
    server.write_all(b":1\r\n").await.unwrap();
    timeout(Duration::from_secs(5), wire.over()).await.expect("the answer ends it");
}

#[tokio::test]
async fn a_lost_script_is_loaded_and_all_are_sent_again_in_order_before_anything_new() {
    let (wire, mut server) = pair();
    let (mut a, b) = (send(&wire, "a;", batch(false, 1)), send(&wire, "b;", batch(true, 1)));
    assert_eq!(sent(&mut server), "a;b;");
    server.write_all(NONE).await.unwrap();
    assert!(futures_util::poll!(&mut a).is_pending());
    let c = send(&wire, "c;", batch(true, 2));
    assert_eq!(sent(&mut server), "", "what b found is not known yet");
    server.write_all(NONE).await.unwrap();
    assert!(futures_util::poll!(&mut a).is_pending());
    assert_eq!(sent(&mut server), "load;a;b;c;");
    server.write_all(b"+digest\r\n:1\r\n:2\r\n:3\r\n").await.unwrap();
    assert_eq!([numbers(a.await), numbers(b.await), numbers(c.await)], [[1], [2], [3]]);
}

#[tokio::test]
async fn a_batch_that_was_refused_as_a_whole_is_sent_again_before_anything_new() {
    let (wire, mut server) = pair();
    let (a, b) = (send(&wire, "a;", batch(false, 1)), send(&wire, "b;", batch(true, 2)));
    assert_eq!(sent(&mut server), "a;b;");
    server.write_all(b":99\r\n").await.unwrap();
    let c = send(&wire, "c;", batch(true, 3));
    assert_eq!(sent(&mut server), "", "nothing leaves before all is answered");
    server.write_all(b":99\r\n").await.unwrap();
    let (a, b, c) = tokio::join!(a, b, async {
        tokio::task::yield_now().await;
        assert_eq!(sent(&mut server), "again;again;c;");
        server.write_all(b":1\r\n:99\r\n:3\r\n").await.unwrap();
        tokio::task::yield_now().await;
        assert_eq!(sent(&mut server), "again;", "as often as the batch has it");
        server.write_all(b":2\r\n").await.unwrap();
        c.await
    });
    assert_eq!((numbers(a), numbers(b), numbers(c)), (vec![1], vec![2], vec![3]));
}

#[tokio::test]
async fn an_acquire_whose_release_was_executed_is_not_sent_again() {
    let (wire, mut server) = pair();
    let (a, b) = (send(&wire, "a;", batch(false, 1)), send(&wire, "b;", batch(false, 2)));
    let c = send(&wire, "c;", batch(true, 1));
    sent(&mut server);
    // A second client loads the script.
    server.write_all(&[NONE, NONE, b":0\r\n"].concat()).await.unwrap();
    let refused = a.await.unwrap().remove(0).extract_error().unwrap_err();
    assert_eq!(refused.code(), Some("NOSCRIPT"), "it certainly was not executed");
    assert_eq!(numbers(c.await), [0]);
    assert_eq!(sent(&mut server), "load;b;");
    server.write_all(b"+digest\r\n:5\r\n").await.unwrap();
    assert_eq!(numbers(b.await), [5]);
}

#[tokio::test]
async fn a_script_that_cannot_be_loaded_is_missing_once_and_for_all() {
    let (wire, mut server) = pair();
    let mut a = send(&wire, "a;", batch(false, 1));
    server.write_all(NONE).await.unwrap();
    assert!(futures_util::poll!(&mut a).is_pending());
    server.write_all(&[b"-NOPERM no\r\n", NONE].concat()).await.unwrap();
    assert!(matches!(a.await.unwrap()[..], [Value::ServerError(_)]));
    assert_eq!(wire.refused_script().expect("it says why").code(), Some("NOPERM"));
    let mut b = send(&wire, "b;", batch(false, 2));
    server.write_all(NONE).await.unwrap();
    assert!(futures_util::poll!(&mut b).is_pending());
    server.write_all(b"+digest\r\n:1\r\n").await.unwrap();
    assert_eq!(numbers(b.await), [1]);
    assert!(wire.refused_script().is_none(), "it took the script at last");
}

#[tokio::test]
async fn a_server_that_does_not_read_delays_only_its_own_callers() {
    let (wire, mut server) = pair();
    let large = wire.send(vec![b'x'; 3 << 16], 1, None).unwrap();
    let small = send(&wire, "end", None);
    let waits = tokio::spawn(async move { (numbers(large.await), numbers(small.await)) });
    let mut all = vec![0; (3 << 16) + 3];
    timeout(Duration::from_secs(5), server.read_exact(&mut all)).await.expect("all comes").unwrap();
    assert!(all.ends_with(b"xend"));
    server.write_all(b":1\r\n:2\r\n").await.unwrap();
    assert_eq!(waits.await.unwrap(), (vec![1], vec![2]));
}
