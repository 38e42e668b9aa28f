//! An operator's user lacks one right at a time. No command then answers as if there were less, and
//! a change that cannot be made as a whole changes nothing.

use std::time::Instant;

use palisade::{Failed, RedisNode, Redlock};
use palisade_ops::{Ask, Records, Select, Survey, held, init};

use super::*;

const COMMANDS: [&str; 9] =
    ["scan", "eval", "info", "time", "get", "getrange", "hmget", "pttl", "zrange"];
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_records_that_cannot_all_be_read_changes_none() {
    let (server, _redlock) = new_server().await;
    let keys = ["palisade:generation", "idem:orders:7", "idem:orders:8"];
    let record = |key: &str| server.cli(&["HGETALL", key]);
    let before = keys[1..].iter().map(|key| record(key)).collect::<Vec<_>>();
    let ballots = keys[1..].iter().map(|key| server.cli(&["HGET", key, "fence"]));
    let ballots: Vec<_> = ballots.collect();
    let purge = |rules: &[&str]| {
        allow(&server, rules);
        let login = ["--no-auth-warning", "--user", "ops", "--pass", "ops"];
        let change = ["purge", "0", "9999999999999", &ballots[0], &ballots[1]];
        server.cli(&[&login[..], &["EVAL", CHANGE, "3"], &keys, &change].concat())
    };
    for (rules, what) in [
        (&["-hmget"][..], "'hmget'"),
        (&["resetkeys", "~palisade:*", "~idem:orders:7", "~idem:orders:9"], "key"),
    ] {
        let refused = purge(rules);
        assert!(refused.contains(what), "{rules:?}: {refused}");
        assert!(keys[1..].iter().map(|key| record(key)).eq(before.iter().cloned()), "{rules:?}");
    }
    assert_eq!(purge(&[]), "done\ndone");
    assert!(keys[1..].iter().map(|key| record(key)).all(|record| !before.contains(&record)));
}
