//! An operator's user lacks one right at a time. No command then answers as if there were less, and
//! a change that cannot be made as a whole changes nothing.

use std::time::Instant;

use palisade::{Failed, RedisNode, Redlock};
use palisade_ops::{Ask, Records, Select, Survey, held, init};

use super::*;

/// Those of the scripts, and `SCAN`.
const COMMANDS: [&str; 8] = ["scan", "eval", "info", "time", "getrange", "pttl", "zrange", "zcard"];
pub(super) const CHANGE: &str = concat!(
    include_str!("../../../ops/src/lua/read.lua"),
    include_str!("../../../ops/src/lua/change.lua")
);

/// Gives the user `ops` all rights, with these changes.
fn allow(server: &Server, rules: &[&str]) {
    let all = ["ACL", "SETUSER", "ops", "reset", "on", ">ops", "~*", "&*", "+@all"];
    assert_eq!(server.cli(&[&all[..], rules].concat()), "OK", "{rules:?}");
}

fn by_ops(server: &Server) -> Deployment {
    Deployment::new().node(format!("redis://ops:ops@{}", server.addr())).timeout(SOON)
}

/// Returns what each reader shows, without times, or its error.
async fn shown(deployment: &Deployment) -> [(&'static str, Result<String, String>); 3] {
    let read = |unread: &[(String, String)], shown: String| match unread {
        [] => Ok(shown),
        [(_, why), ..] => Err(why.clone()),
    };
    let records = Records::new(deployment, "", "orders").unwrap();
    let list = records.list(&Select::default()).await.unwrap();
    let keys = list.keys.iter().map(|key| format!("{} {:?} ", key.key, key.state));
    let all = held(deployment, "").await.unwrap();
    let grants = all.held.iter().map(|one| format!("{:?} {:?} {} ", one.of, one.slot, one.readers));
    let ask = Ask { locks: &["job"], ..Ask::default() };
    let (_, queues) = Survey::new(deployment).read(&ask).await.unwrap().queues.remove(0);
    let queue = |queue: &palisade_ops::LockQueue| (queue.is_there, queue.waiters.len());
    [
        ("records", read(&list.unread, keys.collect())),
        ("held", read(&all.unread, grants.collect())),
        ("queues", queues.map(|all| format!("{:?}", all.iter().map(queue).collect::<Vec<_>>()))),
    ]
}

async fn new_server() -> (Server, Redlock) {
    let server = Server::start(&[]);
    assert!(init(&lone(&server), "").await.unwrap().is_done());
    let node = RedisNode::new(server.url()).unwrap();
    let redlock = Redlock::builder().node(node).ttl(Duration::from_secs(120)).build().unwrap();
    let orders = redlock.idempotency("orders").at_most_once().build().unwrap();
    for key in ["7", "8"] {
        let begun = Instant::now();
        while let Err(e) = orders.key(key).run(|_| async { Ok::<_, Failed>(42) }).await {
            assert!(begun.elapsed() < 2 * SOON, "{e}");
        }
    }
    (server, redlock)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_operator_may_not_read_is_an_error_that_names_the_right() {
    let (server, redlock) = new_server().await;
    let patient = |name| redlock.mutex(name).acquire_timeout(10 * SOON);
    let _lock = patient("job").build().unwrap().acquire().await.unwrap();
    let prices = redlock.rw_lock("prices").acquire_timeout(SOON).build().unwrap();
    let _reader = prices.read().await.unwrap();
    let _permit = redlock.semaphore("gpu", 1).build().unwrap().acquire().await.unwrap();
    let next = patient("job").build().unwrap();
    let waiting = tokio::spawn(async move { next.acquire().await.map(drop) });

    allow(&server, &[]);
    let deployment = by_ops(&server);
    let full = [
        "7 Stored 8 Stored ",
        "Lock(\"job\") None 0 Semaphore(\"gpu\") Some(0) 0 Lock(\"prices\") None 1 ",
        "[(true, 1)]",
    ];
    let begun = Instant::now();
    loop {
        let shown = shown(&deployment).await;
        if shown.iter().zip(full).all(|((_, shown), full)| shown.as_deref() == Ok(full)) {
            break;
        }
        assert!(begun.elapsed() < SOON, "{shown:?}");
    }
    for command in COMMANDS {
        allow(&server, &[&format!("-{command}")]);
        let right = format!("allow this user +{command} ");
        for ((reader, shown), full) in shown(&deployment).await.into_iter().zip(full) {
            match shown {
                Ok(shown) => assert_eq!(shown, full, "{reader} without {command}"),
                Err(why) => assert!(why.contains(&right), "{reader} without {command}: {why}"),
            }
        }
    }
    waiting.abort();
}

/// A part of the records may not be read, or the first write is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_records_that_a_right_is_missing_for_changes_none() {
    let (server, _redlock) = new_server().await;
    let marker = server.cli(&["GET", "palisade:generation"]);
    let keys = ["palisade:generation", "idem:orders:7", "idem:orders:8"];
    let records = || keys[1..].iter().map(|key| server.cli(&["GET", key])).collect::<Vec<_>>();
    let before = records();
    let change = |is_whole: &str, rules: &[&str]| {
        allow(&server, rules);
        let login = ["--no-auth-warning", "--user", "ops", "--pass", "ops"];
        let of = [&*before[0], "p1changed", is_whole, &*before[1], "p1changed", is_whole];
        let change = [&[&*marker, "9999999999999"][..], &of].concat();
        server.cli(&[&login[..], &["EVAL", CHANGE, "3"], &keys, &change].concat())
    };
    let other_keys = ["resetkeys", "~palisade:*", "~idem:orders:7", "~idem:orders:9"];
    for (is_whole, rules, what) in [
        ("1", &["-getrange"][..], "'getrange'"),
        ("1", &["-time"], "'time'"),
        ("1", &["-set"], "'set'"),
        ("0", &["-setrange"], "'setrange'"),
        ("1", &other_keys, "key"),
        ("0", &["resetkeys", "%R~*"], "key"),
    ] {
        let refused = change(is_whole, rules);
        assert!(refused.contains(what), "{rules:?}: {refused}");
        assert_eq!(records(), before, "{rules:?}");
    }
    assert_eq!(change("0", &[]), "done\ndone");
    let part = before.iter().map(|record| format!("p1changed{}", &record[9..]));
    assert_eq!(records(), part.collect::<Vec<_>>());
    assert_eq!(change("1", &[]), "changed\nchanged");
}
