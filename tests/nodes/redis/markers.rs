//! Any tenant of a server can write the marker, the key `palisade:generation`. If no honest client
//! can have written its value, the marker counts as lost, and the next batch writes a new marker
//! (rule quarantine 2 in docs/design).

use super::*;

/// Terms (settings) that a client sends with a batch. Their clock error E is small, compared with
/// all other times in these tests.
const TERMS: Terms =
    Terms { max_ttl: Duration::from_secs(20), clock_error: Duration::from_secs(2) };
const DAY: u64 = 86_400_000;

/// The fields of a marker (the server's record of its data history) as texts, so that a test can
/// forge each field.
#[derive(Clone)]
struct Fields {
    since: String,
    floor: String,
    q: String,
    agreed: String,
    waited: String,
    rest: String,
    note: String,
    losses: String,
}

/// Returns the marker (the server's record of its data) that an honest client with a correct clock
/// has written. The client began a quarantine (time without grants) of `q` ms at the time `since`.
fn honest(since: u64, q: u64) -> Fields {
    Fields {
        since: format!("{since:013}"),
        floor: format!("{:016}", (since + 4_000 + q) * 1_000),
        q: format!("{q:09}"),
        agreed: format!("{:013}", since + 2 * q),
        waited: format!("{:013}", 0),
        rest: "n -0000000000000".to_owned(),
        note: format!("{since:013}"),
        losses: format!(" {:013}-{since:013}-{since:013}", 0),
    }
}

impl Fields {
    fn text(&self, replid: &str) -> String {
        let Self { since, floor, q, agreed, waited, rest, note, losses } = self;
        format!("{replid} {since} {floor} {q} {agreed} {waited} {rest} {note}{losses}")
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
    let (replid, now) = (replid(&server), now());
    let over = |change: &dyn Fn(&mut Fields)| {
        let mut fields = honest(now - DAY, 20_000);
        change(&mut fields);
        fields.text(&replid)
    };
    let ahead = |ms: u64| format!("{:013}", now + ms);
    let forged = [
        ("since in the future", over(&|f| f.since = ahead(60_000))),
        ("since at the end of time", over(&|f| f.since = "9999999999999".into())),
        ("since below zero", over(&|f| f.since = "-000000000001".into())),
        ("since in other digits", over(&|f| f.since = "0x00000000001".into())),
        ("since with a fraction", over(&|f| f.since = "00000000001.5".into())),
        ("since a power", over(&|f| f.since = "0000000001e12".into())),
        ("since blank", over(&|f| f.since = "             ".into())),
        ("since without end", over(&|f| f.since = "9".repeat(400))),
        ("since too short", over(&|f| f.since = "1".into())),
        (
            "since and floor of other widths",
            over(&|f| (f.since, f.floor) = ("0".repeat(12), "0".repeat(17))),
        ),
        (
            "floor and length of other widths",
            over(&|f| (f.floor, f.q) = ("0".repeat(15), "0000020000".into())),
        ),
        (
            "length and its end of other widths",
            over(&|f| (f.q, f.agreed) = ("00020000".into(), "0".repeat(14))),
        ),
        (
            "two ends of other widths",
            over(&|f| (f.agreed, f.waited) = ("0".repeat(12), "0".repeat(14))),
        ),
        ("length beyond the maximum", over(&|f| f.q = "172800001".into())),
        ("length of the maximum of digits", over(&|f| f.q = "999999999".into())),
        ("length zero after a loss", over(&|f| f.q = "000000000".into())),
        ("length below zero", over(&|f| f.q = "-00000001".into())),
        ("length without end", over(&|f| f.q = "9".repeat(400))),
        ("floor beyond all tokens", over(&|f| f.floor = format!("{:016}", (now + 60_000) * 1_000))),
        ("floor at 2^53", over(&|f| f.floor = "9007199254740993".into())),
        ("floor infinite", over(&|f| f.floor = "00000000000000inf".into())),
        ("floor not a number", over(&|f| f.floor = "0000000000000nan".into())),
        ("agreed too far ahead", over(&|f| f.agreed = ahead(60_000))),
        ("waited too far ahead", over(&|f| f.waited = ahead(2 * 3_600_000))),
        ("waited not a number", over(&|f| f.waited = "xxxxxxxxxxxxx".into())),
        ("another letter", over(&|f| f.rest = "x -0000000000000".into())),
        ("closed for ever", over(&|f| f.rest = "n c9999999999999".into())),
        ("closed for an hour", over(&|f| f.rest = format!("n c{}", ahead(3_600_000)))),
        ("settling for a month", over(&|f| f.rest = format!("n s{}", ahead(30 * DAY)))),
        ("another letter behind", over(&|f| f.rest = format!("n x{}", ahead(1_000)))),
        ("closed until a word", over(&|f| f.rest = "n cxxxxxxxxxxxxx".into())),
        ("ten thousand bytes", over(&|f| f.rest = format!("n {}", "x".repeat(10_000)))),
        ("noted in the future", over(&|f| f.note = ahead(60_000))),
        ("noted in words", over(&|f| f.note = "xxxxxxxxxxxxx".into())),
        (
            "a loss that ends in the future",
            over(&|f| f.losses = format!(" {:013}-{}-{}", 0, ahead(0), ahead(2 * DAY))),
        ),
        (
            "data that begin in the future",
            over(&|f| f.losses = format!(" {:013}-{1}-{1}", 0, ahead(60_000))),
        ),
        ("a loss in words", over(&|f| f.losses = format!(" {:013}-{0:013}-xxxxxxxxxxxxx", 0))),
        ("a loss without its window", over(&|f| f.losses.truncate(28))),
        ("nine losses", over(&|f| f.losses = f.losses.repeat(9))),
        ("half a loss", over(&|f| f.losses.truncate(14))),
        ("nothing at all", String::new()),
        ("a word", "hello".to_owned()),
    ];
    for (what, marker) in forged {
        let (got, left) = met(&server, &node, &marker).await;
        assert!(got.marker_missing && got.new_history, "{what} was believed: {got:?}");
        assert!(got.began == Began::Empty && !got.quarantine.is_zero(), "{what}: {got:?}");
        assert_eq!(got.quarantine_len, TERMS.max_ttl, "{what}: {got:?}");
        assert!(left.starts_with(&replid) && left.len() == 182, "{what}: {left}");
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

#[tokio::test]
async fn what_an_honest_client_wrote_is_believed_by_every_clock_that_is_allowed() {
    let server = Server::start(&[]);
    let node = RedisNode::new(server.url()).unwrap();
    facts(&node, TERMS).await;
    let replid = replid(&server);
    // The times in the marker (the key with the data history) are 2E (twice the clock error) ahead
    // of the server's clock, the most that is allowed: either the server that wrote the marker was
    // ahead, or this server's clock was set back.
    let apart = 2 * 2_000;
    let (day, at) = (2 * DAY, now() + apart);
    let floor = |ms: u64| format!("{:016}", ms * 1_000);
    let ahead = |ms: u64| format!("{:013}", at + ms);
    let lowered = Fields { floor: floor(at + apart), ..honest(at - day, 20_000) };
    let believed = [
        ("a quarantine that began just now", honest(at, 20_000)),
        ("the longest, begun just now", honest(at, day)),
        ("asked for just now", Fields { agreed: ahead(40_000), ..honest(at - DAY, 20_000) }),
        ("the length came down just now", lowered),
        (
            "somebody waits for an hour",
            Fields { waited: ahead(3_610_000), ..honest(at - DAY, 20_000) },
        ),
        (
            "nothing was ever lost",
            Fields { floor: floor(0), losses: String::new(), ..honest(0, 20_000) },
        ),
        (
            "eight losses, noted just now",
            Fields {
                note: ahead(0),
                losses: format!(" {0}-{0}-{0}", ahead(0)).repeat(8),
                ..honest(at - DAY, 20_000)
            },
        ),
        (
            "handed over",
            Fields { rest: format!("n s{}", ahead(20_000)), ..honest(at - DAY, 20_000) },
        ),
        (
            "as made by init",
            Fields {
                since: "0".repeat(13),
                floor: "0".repeat(16),
                q: "0".repeat(9),
                agreed: "0".repeat(13),
                waited: "0".repeat(13),
                rest: "n -0000000000000".into(),
                note: "0".repeat(13),
                losses: String::new(),
            },
        ),
        (
            "written in a quarantine of an empty server",
            Fields { rest: "e -0000000000000".into(), ..honest(at, 20_000) },
        ),
    ];
    for (what, fields) in believed {
        let (got, _) = met(&server, &node, &fields.text(&replid)).await;
        assert!(!got.marker_missing && !got.new_history, "{what} was refused: {got:?}");
        assert_eq!(format!("{:013}", got.since), fields.since, "{what}");
        // With the id of another data history (`master_replid`), the same marker (the server's
        // record of its data) is accepted as well. The server then begins a new data history.
        let (got, _) = met(&server, &node, &fields.text(&"f".repeat(40))).await;
        assert!(got.new_history && !got.marker_missing, "{what} was refused: {got:?}");
    }
    let closed = Fields { rest: format!("n c{}", ahead(600_000)), ..honest(at - DAY, 20_000) };
    server.cli(&["set", "palisade:generation", &closed.text(&replid)]);
    let got = one(&node, TERMS, acquire("k", owner())).await;
    assert_eq!(fault(got), (NodeFault::HandingOver, false));
}

/// The length of a quarantine (time without grants) is the longest that any client asks for. A
/// shorter length replaces it when it covers all leases of the clients that asked for the longer
/// length, but never during a quarantine (rule quarantine 7 in docs/design).
#[tokio::test]
async fn the_length_of_a_quarantine_rises_at_once_and_falls_when_no_client_asks_for_it() {
    let server = Server::start(&[]);
    let node = RedisNode::new(server.url()).unwrap();
    facts(&node, TERMS).await;
    let replid = replid(&server);
    // Each row has four inputs: the seconds since the data history began, the current length of a
    // quarantine, the remaining time for which the node must keep this length, and the length that
    // a client asks for. The outputs follow: true if the node reports the event for a longer
    // quarantine, the length, and the remaining time for which the node must keep it. All
    // differences are at least 5 s, because a row may take this time.
    for (age, length, agreed, asked, raised, then, agreed_then) in [
        // A longer quarantine counts at once. Its length stays fixed for twice this length. The
        // event about the longer quarantine is sent only if there was a loss of data.
        (500, 20, 5, 30, true, 30, 60),
        (500, 20, -5, 30, true, 30, 60),
        (10, 20, 5, 30, true, 30, 60),
        // A request for the quarantine's current length prolongs the time in which this length is
        // agreed on, but only if that time would end within one length.
        (500, 20, 35, 20, false, 20, 35),
        (500, 20, 10, 20, false, 20, 40),
        (500, 20, -5, 20, false, 20, 40),
        // A request for a shorter quarantine has no effect until it covers the rest of the time for
        // which the present length is agreed on, and the quarantine itself has ended.
        (500, 20, 35, 10, false, 20, 35),
        (500, 20, 15, 10, false, 20, 15),
        (500, 20, 5, 10, false, 10, 20),
        (500, 20, -5, 10, false, 10, 20),
        (10, 20, 5, 10, false, 20, 5),
        (10, 20, -5, 10, false, 20, -5),
        (30, 20, -5, 10, false, 10, 20),
    ] {
        let (row, now) = (format!("{age} {length} {agreed} {asked}"), now());
        let ms = |seconds: i64| format!("{:013}", now.cast_signed() + 1_000 * seconds);
        let since = now - 1_000 * age;
        // The time in the marker (the note) is fresh, so no renewal of it is due. A changed marker
        // is therefore the effect of the requested length alone.
        let fields = Fields { agreed: ms(agreed), note: ms(0), ..honest(since, 1_000 * length) };
        server.cli(&["set", "palisade:generation", &fields.text(&replid)]);
        let asks = Terms { max_ttl: Duration::from_secs(asked), ..TERMS };
        let got = facts(&node, asks).await;
        assert_eq!((got.since, got.new_history), (since, false), "{row}");
        assert_eq!((got.quarantine_len.as_secs(), got.quarantine_raised), (then, raised), "{row}");
        let left = server.cli(&["get", "palisade:generation"]);
        assert_eq!(left[72..81].parse(), Ok(1_000 * then), "{row}: {left}");
        let written: i64 = left[82..95].parse().unwrap();
        let late = written - now.cast_signed() - 1_000 * agreed_then;
        let is_kept = agreed == agreed_then;
        assert!((0..5_000).contains(&late) && (!is_kept || late == 0), "{row}: {late} ms, {left}");
    }
    // This value of the marker lists no losses of data. So the new, longer quarantine causes no
    // event: the event is sent only if there was a loss of data.
    let new = Fields { agreed: format!("{:013}", 0), losses: String::new(), ..honest(0, 0) };
    server.cli(&["set", "palisade:generation", &new.text(&replid)]);
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
    let forged = Fields { since: "9999999999999".into(), ..honest(now(), 20_000) };
    server.cli(&["set", "palisade:generation", &forged.text(&replid(&server))]);
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
