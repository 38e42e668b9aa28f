//! Any tenant of a server can write the marker, the key `palisade:generation`. If no honest client
//! can have written its value, the marker counts as lost, and the next batch writes a new marker
//! (rule quarantine 2 in docs/design).

use palisade::internal::lineage::{Handover, Losses, Marker, ReplicationId};
use palisade::node::Loss;

use super::*;
use crate::support::marker::marker;

/// Terms (settings) that a client sends with a batch. Their clock error E is small, compared with
/// all other times in these tests.
const TERMS: Terms =
    Terms { max_ttl: Duration::from_secs(20), clock_error: Duration::from_secs(2) };
const DAY: u64 = 86_400_000;

/// Words of a marker, by their number.
const SINCE: usize = 6;
const ERROR: usize = 12;
const LENGTH: usize = 13;
const FLOOR: usize = 14;
const BEGAN: usize = 15;
const STATE: usize = 16;
const WRITTEN: usize = 17;

/// Returns the marker that an honest client with a correct clock has written. The client began a
/// quarantine of `q` ms at the time `since`.
fn honest(server: &Server, since: u64, q: u64) -> Marker {
    let replid = ReplicationId::parse(&replid(server)).unwrap();
    Marker {
        since,
        quarantine: q,
        clock_error: 2_000_000,
        floor: (since + 4_000 + q) * 1_000,
        written: since,
        losses: Losses::default().and(Loss { from: 0, began: since, to: since }),
        ..Marker::born(0, 0, 7, replid)
    }
}

pub(super) fn replid(server: &Server) -> String {
    let info = server.cli(&["info", "replication"]);
    let line = info.lines().find_map(|l| l.strip_prefix("master_replid:"));
    line.expect("a history").trim().to_owned()
}

fn now() -> u64 {
    SystemEnv.wall_micros() / 1_000
}

/// Stores this marker and sends a batch. Returns the facts of the reply (the server's clock and
/// data history), and the marker that the batch left.
async fn met(server: &Server, node: &RedisNode, marker: &str) -> (Facts, String) {
    server.cli(&["set", "palisade:generation", marker]);
    let got = facts(node, TERMS).await;
    (got, server.cli(&["get", "palisade:generation"]))
}

#[tokio::test]
async fn an_impossible_marker_counts_as_lost_whichever_field_it_is() {
    let server = Server::start(&[]);
    let node = RedisNode::new(server.url()).unwrap();
    facts(&node, TERMS).await;
    let now = now();
    let good = honest(&server, now - DAY, 20_000);
    let change = |edit: &dyn Fn(&mut Marker)| {
        let mut marker = good;
        edit(&mut marker);
        marker.to_string()
    };
    let words = |at: usize, with: &str| {
        let text = good.to_string();
        let mut words: Vec<&str> = text.split(' ').collect();
        words[at] = with;
        words.join(" ")
    };
    let tail = |tail: &str| format!("{}{tail}", change(&|m| m.losses = Losses::default()));
    let ahead = |ms: u64| now + ms;
    let state = |state| change(&|m| m.handover = Some(state));
    let loss =
        |began, to| change(&|m| m.losses = Losses::default().and(Loss { from: 0, began, to }));
    let forged = [
        ("since in the future", change(&|m| m.since = ahead(60_000))),
        ("since at the end of time", words(SINCE, "9999999999999")),
        ("since below zero", words(SINCE, "-000000000001")),
        ("since in other digits", words(SINCE, "0x00000000001")),
        ("since with a fraction", words(SINCE, "00000000001.5")),
        ("since a power", words(SINCE, "0000000001e12")),
        ("since blank", words(SINCE, "             ")),
        ("since without end", words(SINCE, &"9".repeat(400))),
        ("since too short", words(SINCE, "1")),
        ("since of another width", words(SINCE, &"0".repeat(12))),
        ("floor of another width", words(FLOOR, &"0".repeat(17))),
        ("length of another width", words(LENGTH, "0000020000")),
        ("length beyond the maximum", change(&|m| m.quarantine = 172_800_001)),
        ("length of the maximum of digits", words(LENGTH, "999999999")),
        ("length zero after a loss", words(LENGTH, "000000000")),
        ("length below zero", words(LENGTH, "-00000001")),
        ("an error of more than half a day", change(&|m| m.clock_error = 43_200_000_001)),
        ("an error in words", words(ERROR, "xxxxxxxxxxxx")),
        ("floor beyond all tokens", change(&|m| m.floor = (now + 60_000) * 1_000)),
        ("floor at 2^53", words(FLOOR, "9007199254740993")),
        ("floor infinite", words(FLOOR, "00000000000000inf")),
        ("another letter", words(BEGAN, "x")),
        ("closed for ever", words(STATE, "c9999999999999")),
        ("closed for an hour", state(Handover::Closed(ahead(3_600_000)))),
        ("settling for a month", state(Handover::Settling(ahead(30 * DAY)))),
        ("another letter behind", words(STATE, "x0000000000000")),
        ("closed until a word", words(STATE, "cxxxxxxxxxxxxx")),
        ("ten thousand bytes", words(STATE, &"x".repeat(10_000))),
        ("written in the future", change(&|m| m.written = ahead(60_000))),
        ("written in words", words(WRITTEN, "xxxxxxxxxxxxx")),
        ("a loss that ends in the future", loss(ahead(0), ahead(2 * DAY))),
        ("data that begin in the future", loss(ahead(60_000), ahead(60_000))),
        ("a loss in words", tail(" 0000000000000-0000000000000-xxxxxxxxxxxxx")),
        ("a loss without its window", tail(" 0000000000000-0000000000000")),
        ("nine losses", tail(&" 0000000000000-0000000000001-0000000000001".repeat(9))),
        ("half a loss", tail(" 0000000000000")),
        ("another format", good.to_string().replacen("p1", "p2", 1)),
        ("nothing at all", String::new()),
        ("a word", "hello".to_owned()),
    ];
    for (what, marker) in forged {
        let (got, left) = met(&server, &node, &marker).await;
        assert!(got.marker_missing && got.new_history, "{what} was believed: {got:?}");
        assert!(got.began == Began::Empty && !got.quarantine.is_zero(), "{what}: {got:?}");
        assert_eq!(got.quarantine_len, TERMS.max_ttl, "{what}: {got:?}");
        let left =
            Marker::parse(left.trim(), self::now()).unwrap_or_else(|| panic!("{what}: {left}"));
        assert_eq!(left.losses.iter().count(), 1, "{what}");
        // The next batch reads the new marker (the record of the server's data) and accepts it.
        let next = facts(&node, TERMS).await;
        assert!(!next.marker_missing && !next.new_history, "{what}: {next:?}");
        assert_eq!(next.since, got.since, "{what}");
    }
    for other in
        [&["rpush", "palisade:generation", "a"][..], &["hset", "palisade:generation", "a", "b"]]
    {
        server.cli(&["del", "palisade:generation"]);
        server.cli(other);
        assert!(facts(&node, TERMS).await.marker_missing, "{other:?}");
        assert!(!facts(&node, TERMS).await.marker_missing, "{other:?}");
    }
}

/// A marker is judged by the clock error that is in it, whatever the error of the client that reads
/// it.
#[tokio::test]
async fn what_an_honest_client_wrote_is_believed_by_every_clock_that_is_allowed() {
    let server = Server::start(&[]);
    for error in [2_000, 20] {
        let terms = Terms { clock_error: Duration::from_millis(error), ..TERMS };
        let node = RedisNode::new(server.url()).unwrap();
        facts(&node, terms).await;
        // The times in the marker are 2E ahead of the server's clock, the most that is allowed:
        // either the server that wrote it was ahead, or this server's clock was set back.
        let apart = 2 * 2_000;
        let (day, at) = (2 * DAY, now() + apart);
        let old = honest(&server, at - DAY, 20_000);
        let eight = (0..8).map(|_| Loss { from: at, began: at, to: at });
        let believed = [
            ("a quarantine that began just now", honest(&server, at, 20_000)),
            ("the longest, begun just now", honest(&server, at, day)),
            (
                "nothing was ever lost",
                Marker { floor: 0, losses: Losses::default(), ..honest(&server, 0, 20_000) },
            ),
            (
                "eight losses, written just now",
                Marker { written: at, losses: eight.fold(Losses::default(), Losses::and), ..old },
            ),
            ("handed over", Marker { handover: Some(Handover::Settling(at + 20_000)), ..old }),
            ("as made by init", Marker::born(0, 0, 7, old.replid)),
            (
                "written in a quarantine of an empty server",
                Marker { began: Began::Empty, ..honest(&server, at, 20_000) },
            ),
        ];
        for (what, marker) in believed {
            let (got, _) = met(&server, &node, &marker.to_string()).await;
            let is_kept = !got.marker_missing && !got.new_history;
            assert!(is_kept, "{what} was refused with {error} ms: {got:?}");
            assert_eq!(got.since, marker.since, "{what}");
        }
    }
}

/// The length of a quarantine and the clock error are the largest that any client has asked for,
/// and every client uses them.
#[tokio::test]
async fn the_length_of_a_quarantine_rises_at_once_and_stays() {
    let server = Server::start(&[]);
    let node = RedisNode::new(server.url()).unwrap();
    facts(&node, TERMS).await;
    for (age, length, asked, error, raised, then) in [
        (500, 20, 30, 2, true, (30, 2)),
        (10, 20, 30, 2, true, (30, 2)),
        (500, 20, 20, 2, false, (20, 2)),
        (500, 20, 10, 2, false, (20, 2)),
        (10, 20, 10, 2, false, (20, 2)),
        (500, 20, 20, 3, true, (20, 3)),
        (10, 20, 10, 3, true, (20, 3)),
        (500, 20, 20, 1, false, (20, 2)),
        (10, 20, 30, 1, true, (30, 2)),
    ] {
        let since = now() - 1_000 * age;
        let text = honest(&server, since, 1_000 * length).to_string();
        server.cli(&["set", "palisade:generation", &text]);
        let clock_error = Duration::from_secs(error);
        let asks = Terms { max_ttl: Duration::from_secs(asked), clock_error };
        let got = facts(&node, asks).await;
        let row = format!("{age} {length} {asked} {error}");
        assert_eq!((got.since, got.new_history), (since, false), "{row}");
        let kept = (got.quarantine_len.as_secs(), got.clock_error.as_secs());
        assert_eq!((kept, got.quarantine_raised), (then, raised), "{row}");
        assert_eq!((got.quarantine_asked, got.clock_error_asked), (asks.max_ttl, clock_error));
        let written = marker(&server);
        let (length, error) = (1_000 * then.0, 1_000_000 * then.1);
        assert_eq!((written.quarantine, written.clock_error), (length, error), "{row}");
    }
    // A server that has never lost anything has no length yet, so nothing disagrees.
    let new = Marker::born(0, 0, 7, marker(&server).replid);
    server.cli(&["set", "palisade:generation", &new.to_string()]);
    let got = facts(&node, TERMS).await;
    assert_eq!((got.quarantine_len, got.quarantine_raised), (TERMS.max_ttl, false));
}

#[tokio::test]
async fn a_forged_marker_is_reported_as_lost_data() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    let redlock = palisade::Redlock::builder().node(node).build().unwrap();
    let guard = redlock.mutex("k").build().unwrap().acquire().await.unwrap();
    let mut events = redlock.events();
    let forged = Marker { since: 9_999_999_999_999, ..honest(&server, now(), 20_000) };
    server.cli(&["set", "palisade:generation", &forged.to_string()]);
    assert!(
        redlock.mutex("l").build().unwrap().try_acquire().await.is_err(),
        "granted out of a quarantine"
    );
    let reported = async {
        let (mut lost, mut begun) = (false, None);
        while begun.is_none() || !lost {
            match events.next().await.expect("the handle is there").event {
                NodeEvent::HistoryChanged { cause, .. } => {
                    lost = cause == palisade::node::HistoryCause::DataLost;
                }
                NodeEvent::QuarantineBegun { remaining, .. } => begun = Some(remaining),
                _ => {}
            }
        }
        begun.unwrap()
    };
    let remaining = tokio::time::timeout(Duration::from_secs(5), reported).await.expect("an event");
    assert!(remaining <= Duration::from_secs(16), "blocked for {remaining:?}");
    assert!(guard.is_valid(), "who held something goes on");
}
