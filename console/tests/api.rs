//! Tests that each page shows what an independent client did on real servers.

mod common;

use std::time::{Duration, Instant};

use common::{Events, SOON, World};
use palisade::{Failed, RwLock};
use palisade_console::Options;
use palisade_cron::{Cron, Job, Tick};
use serde_json::{Value, json};

fn found<'a>(page: &'a Value, list: &str, field: &str, name: &str) -> Option<&'a Value> {
    page[list].as_array().unwrap().iter().find(|one| one[field] == name)
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_show_their_holder_and_their_waiters() {
    let world = World::new(3).await;
    let client = world.client();
    let held = client.mutex("deploy").build().unwrap().acquire().await.unwrap();
    let other = world.client();
    let waits = tokio::spawn(async move {
        let mutex = other.mutex("deploy").acquire_timeout(SOON * 2).build().unwrap();
        mutex.acquire().await.unwrap().release().await.unwrap();
    });
    let page = world
        .until("locks", |page| {
            found(page, "locks", "name", "deploy").is_some_and(|lock| lock["waiting"] == 1)
        })
        .await;
    let lock = found(&page, "locks", "name", "deploy").unwrap();
    assert_eq!((&lock["kind"], &lock["state"]), (&json!("mutex"), &json!("held")));
    let holder = &lock["holders"][0];
    // The nodes store no host or process id of the holder, so the page has no such fields.
    assert!(["host", "pid"].iter().all(|field| holder.get(field).is_none()), "{holder}");
    assert_eq!(holder["token"], held.fencing_token().to_string());
    assert_eq!((&holder["on"], &holder["of"]), (&json!(3), &json!(3)));
    let (now, since) = (page["now_ms"].as_u64().unwrap(), holder["since_ms"].as_u64().unwrap());
    assert!(since <= now + 2_000 && since + 60_000 > now, "{since} {now}");
    assert!(holder["until_ms"].as_u64().unwrap() > now);
    let waiter = &lock["waiters"][0];
    assert_eq!((&waiter["place"], &waiter["mode"]), (&json!(1), &json!("exclusive")));
    let owner = holder["owner"].as_str().unwrap();
    assert_eq!(waiter["why"], format!("behind the holder {owner}"));
    let one = world.get("lock?name=deploy").await;
    let nodes = one["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 3);
    assert!(nodes.iter().all(|node| node["state"] == "held" && node["owner"] == *owner));
    held.release().await.unwrap();
    waits.await.unwrap();
    world.until("locks", |page| found(page, "locks", "name", "deploy").is_none()).await;
    let free = world.get("lock?name=deploy").await;
    assert_eq!(free["state"], "free");
    let kinds: Vec<_> =
        free["happened"].as_array().unwrap().iter().map(|one| &one["kind"]).collect();
    assert!(kinds.contains(&&json!("lock_free")), "{free:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_and_permits_are_locks_of_their_kind() {
    let world = World::with(1, "app:", Options::default()).await;
    let client = world.client();
    let prices = RwLock::from(client.mutex("prices").build().unwrap());
    let _first = prices.read().await.unwrap();
    let second = RwLock::from(world.client().mutex("prices").build().unwrap());
    let _second = second.read().await.unwrap();
    let uploads = client.semaphore("uploads", 3).build().unwrap();
    let permit = uploads.acquire().await.unwrap();
    let page = world
        .until("locks", |page| {
            found(page, "locks", "name", "prices").is_some_and(|lock| lock["holder_count"] == 2)
                && found(page, "locks", "name", "uploads")
                    .is_some_and(|lock| lock["holder_count"] == 1)
        })
        .await;
    assert_eq!(found(&page, "locks", "name", "prices").unwrap()["kind"], "read");
    let uploads = found(&page, "locks", "name", "uploads").unwrap();
    assert_eq!(
        (&uploads["kind"], &uploads["permits"]),
        (&json!("semaphore"), &json!({ "held": 1 }))
    );
    assert_eq!(uploads["holders"][0]["slot"], permit.slot());
    let semaphores = world.get("locks?kind=semaphore").await;
    assert_eq!(semaphores["total"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_election_shows_its_terms_and_a_cron_job_its_ticks() {
    let world = World::new(1).await;
    let client = world.client();
    let election = client.election("billing").build().unwrap();
    let first = election.campaign("one").await.unwrap();
    let led = |value: &'static str| {
        move |page: &Value| {
            found(page, "elections", "name", "billing")
                .is_some_and(|election| election["leader"]["value"] == value)
        }
    };
    let page = world.until("elections", led("one")).await;
    let shown = found(&page, "elections", "name", "billing").unwrap();
    assert_eq!(shown["leader"]["term"], first.term().to_string());
    assert_eq!(shown["leader"]["pid"], std::process::id());
    assert_eq!(shown["candidates"][0]["leads"], true);
    first.resign().await.unwrap();
    world
        .until("elections", |page| {
            found(page, "elections", "name", "billing").unwrap()["state"] == "leaderless"
        })
        .await;
    let _second = election.campaign("two").await.unwrap();
    let page = world.until("elections", led("two")).await;
    let shown = found(&page, "elections", "name", "billing").unwrap();
    let terms: Vec<_> = shown["terms"].as_array().unwrap().iter().map(|t| &t["value"]).collect();
    assert_eq!(terms, ["one", "two"]);
    assert!(shown["terms"][0]["to_ms"].is_u64() && shown["terms"][1]["to_ms"].is_null());
    assert!(shown["gaps"][0]["to_ms"].is_u64());

    let job = tokio::spawn(async move {
        let cron = Cron::new(&client);
        let job = Job::new("report", "* * * * * *").zone("Europe/Zurich");
        let run = |tick: Tick| async move {
            if tick.unix_seconds() % 2 == 0 { Err(Failed::unknown("no paper")) } else { Ok(()) }
        };
        cron.run(job, run).await
    });
    let page = world
        .until("cron", |page| {
            found(page, "jobs", "name", "cron/report").is_some_and(|job| {
                let ends: Vec<_> =
                    job["last"].as_array().unwrap().iter().map(|tick| &tick["end"]).collect();
                ends.contains(&&json!("done")) && ends.contains(&&json!("failed"))
            })
        })
        .await;
    let job_shown = found(&page, "jobs", "name", "cron/report").unwrap();
    assert_eq!(
        (&job_shown["schedule"], &job_shown["zone"]),
        (&json!("* * * * * *"), &json!("Europe/Zurich"))
    );
    assert!(job_shown["next_ms"].as_u64().unwrap() + 2_000 > page["now_ms"].as_u64().unwrap());
    let last = job_shown["last"].as_array().unwrap();
    let failed = last.iter().find(|tick| tick["end"] == "failed").unwrap();
    assert!(failed["why"].as_str().unwrap().contains("no paper"));
    assert!(failed["by"].as_str().unwrap().ends_with(&std::process::id().to_string()));
    job.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_show_their_state_and_results_stay_hidden() {
    let world = World::new(1).await;
    let keys = world.client().idempotency("orders").at_most_once().build().unwrap();
    let secret = || async { Ok::<_, Failed>("S3cret".to_owned()) };
    let _ = keys.key("done").run(|_| secret()).await.unwrap();
    let never = keys.key("parked").run(|_| std::future::pending::<Result<String, Failed>>());
    drop(tokio::time::timeout(Duration::from_millis(300), never).await);
    let runs =
        tokio::spawn(keys.key("running").run(|_| std::future::pending::<Result<String, Failed>>()));
    let state = |page: &Value, key: &str| {
        found(page, "keys", "key", key).map(|key| key["state"].clone()).unwrap_or_default()
    };
    let page = world
        .until("keys?namespace=orders", |page| {
            state(page, "done") == "done"
                && state(page, "running") == "running"
                && state(page, "parked") == "parked"
        })
        .await;
    let orders = found(&page, "namespaces", "namespace", "orders").unwrap();
    assert_eq!(
        (&orders["running"], &orders["parked"], &orders["done"], orders.get("holding")),
        (&json!(1), &json!(1), &json!(1), None)
    );
    let only = world.get("keys?namespace=orders&state=parked").await;
    assert_eq!((&only["total"], &only["keys"][0]["key"]), (&json!(1), &json!("parked")));
    let one = world.get("key?namespace=orders&key=done").await;
    assert_eq!(one["result"]["shown"], false);
    assert!(!one.to_string().contains("S3cret"));
    runs.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_shows_and_recovers() {
    let mut world = World::new(3).await;
    let mut events = Events::open(world.at, "overview").await;
    let hello = events.next("hello").await;
    assert_eq!((&hello["nodes"], &hello["signed_in"]), (&json!(3), &json!(true)));
    while events.next("overview").await["voting"] != 3 {}
    world.servers[1].kill();
    let at = Instant::now();
    let lost = loop {
        let page = events.next("overview").await;
        if page["voting"] == 2 {
            break page;
        }
    };
    // The page must show the change within three seconds. A debug build on a busy machine may need
    // longer.
    assert!(at.elapsed() < Duration::from_secs(3) || cfg!(debug_assertions), "{:?}", at.elapsed());
    common::measured("killed_node_shown_ms", at.elapsed().as_millis() as f64);
    assert_eq!(lost["verdict"]["state"], "degraded");
    let vote = lost["votes"].as_array().unwrap().iter().find(|vote| vote["voting"] == false);
    assert_eq!(vote.unwrap()["state"], "unreachable");
    world.servers[1].again();
    let quarantine = loop {
        let page = events.next("overview").await;
        let votes = page["votes"].as_array().unwrap();
        if let Some(vote) = votes.iter().find(|vote| vote["state"] == "quarantine") {
            break vote.clone();
        }
    };
    let why = quarantine["why"].as_str().unwrap();
    assert!(why.contains("grants nothing until") && why.contains("it came back without"), "{why}");
    assert!(quarantine["until_ms"].is_u64());
    while events.next("overview").await["voting"] != 3 {}
    let page = world.until("failovers", |page| page["failovers"][0]["state"] == "over").await;
    let failover = &page["failovers"][0];
    assert_eq!(failover["cause"], "restart", "{failover:#}");
    let kinds: Vec<_> = failover["steps"].as_array().unwrap().iter().map(|s| &s["kind"]).collect();
    for kind in ["lost", "quarantine", "vote"] {
        assert!(kinds.contains(&&json!(kind)), "{failover:#}");
    }
    assert_eq!(failover["loss"]["proved"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_does_not_hold_up_the_others() {
    let world = World::new(3).await;
    let mut events = Events::open(world.at, "overview").await;
    while events.next("overview").await["voting"] != 3 {}
    world.servers[0].freeze();
    let lost = loop {
        let page = events.next("overview").await;
        if page["voting"] == 2 {
            break page;
        }
    };
    assert_eq!(lost["votes"][0]["state"], "unreachable", "{lost:#}");
    let held = world.client().mutex("deploy").build().unwrap().acquire().await.unwrap();
    let shown = |page: &Value| {
        found(page, "locks", "name", "deploy").is_some_and(|lock| lock["state"] == "held")
    };
    let page = world.until("locks", shown).await;
    let lock = found(&page, "locks", "name", "deploy").unwrap();
    assert_eq!((&lock["state"], &lock["holders"][0]["on"]), (&json!("held"), &json!(2)));
    assert_eq!(page["unread"].as_array().unwrap().len(), 1, "{page:#}");
    world.servers[0].resume();
    while events.next("overview").await["voting"] != 3 {}
    world.until("locks", |page| page["unread"].as_array().unwrap().is_empty()).await;
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_foreign_keys_are_read_within_the_budget() {
    let mut options = Options::default();
    options.keys_per_second = 500;
    let world = World::with(1, "", options).await;
    let fill = "for i = 1, 20000 do redis.call('SET', 'user:' .. i, 'x') end";
    world.servers[0].cli(&["EVAL", fill, "0"]);
    let client = world.client();
    let mut held = Vec::new();
    for n in 0..30 {
        held.push(client.mutex(format!("job-{n:02}")).build().unwrap().acquire().await.unwrap());
    }
    // Open a page, and keep it open during the whole test.
    let mut events = Events::open(world.at, "locks").await;
    let first = events.next("tick").await;
    assert_eq!(first["poll"]["scan"]["keys_per_second"], 500);
    let read = |tick: &Value| tick["poll"]["scan"]["progress"][0]["keys"].as_u64().unwrap();
    let (before, began) = (read(&first), Instant::now());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let tick = events.next("tick").await;
    let (keys, took) = (read(&tick) - before, began.elapsed().as_secs_f64());
    assert!(keys as f64 <= 550.0 * (took + 2.0), "{keys} keys in {took:.1} s");
    assert!(read(&tick) < 20_000, "the round is not over: {tick:#}");
    assert!(tick["poll"]["requests_per_second"].as_f64().unwrap() <= 5.5, "{tick:#}");
    // Keys of other programs are not shown as locks, and each page of the list continues the last
    // one.
    let locks = world.get("locks").await;
    let names = locks["locks"].as_array().unwrap().iter();
    assert!(names.clone().all(|lock| lock["name"].as_str().unwrap().starts_with("job-")));
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_read_by_cursors() {
    let world = World::new(1).await;
    let client = world.client();
    let mut held = Vec::new();
    for n in 0..25 {
        held.push(client.mutex(format!("job-{n:02}")).build().unwrap().acquire().await.unwrap());
    }
    world.until("locks", |page| page["total"] == 25).await;
    let (mut names, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = world.get(&format!("locks?limit=10&cursor={cursor}")).await;
        let locks = page["locks"].as_array().unwrap();
        names.extend(locks.iter().map(|lock| lock["name"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => break,
        }
    }
    let expected: Vec<String> = (0..25).map(|n| format!("job-{n:02}")).collect();
    assert_eq!(names, expected);
}

/// Returns the number of requests that the first server has read from its clients. All commands
/// that a client sends in one write count as one request.
fn requests(world: &World) -> u64 {
    let stats = world.servers[0].cli(&["INFO", "stats"]);
    let field = |line: &str| line.trim().strip_prefix("total_reads_processed:")?.parse().ok();
    stats.lines().find_map(field).expect("a field of INFO")
}

/// Returns the requests per second to the first server during `within`, without the request that
/// this function sends.
async fn rate(world: &World, within: Duration) -> f64 {
    let (before, began) = (requests(world), Instant::now());
    tokio::time::sleep(within).await;
    (requests(world) - before - 1) as f64 / began.elapsed().as_secs_f64()
}

/// Returns the processor time in seconds that this process has used, on all processors.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("a system with /proc");
    let (_, fields) = stat.rsplit_once(')').expect("the name of the program");
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks.map(|ticks| ticks.parse::<f64>().expect("a number") / 100.0).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_pages_share_one_reader_and_none_costs_almost_nothing() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let world = World::lasting(1, HOUR).await;
    // The deployment has one item of each kind: a lock, an election, a key and so on. During the
    // measurement only the console may send requests, so the locks are copied keys, which no handle
    // renews or releases.
    let client = world.client();
    let mutex = client.mutex("deploy").ttl(HOUR).auto_renew(false).build().unwrap();
    let held = mutex.acquire().await.unwrap();
    let election = client.election("billing").build().unwrap();
    election.campaign("one").await.unwrap().resign().await.unwrap();
    let keys = client.idempotency("orders").at_most_once().build().unwrap();
    let _ = keys.key("7").run(|_| async { Ok::<_, Failed>(7) }).await.unwrap();
    let cron = Cron::new(&client);
    let yearly = cron.run(Job::new("yearly", "0 0 1 1 *"), |_| async { Ok::<(), Failed>(()) });
    drop(tokio::time::timeout(Duration::from_secs(1), yearly).await);
    for (from, to) in [("deploy", "kept"), ("{deploy}:fence", "{kept}:fence")] {
        assert_eq!(world.servers[0].cli(&["COPY", from, to]), "1");
    }
    held.release().await.unwrap();
    drop((mutex, election, keys, cron, client));
    let topics = ["overview", "locks", "elections", "cron", "keys", "nodes", "failovers"];
    let mut pages = Vec::new();
    for topic in topics.iter().cycle().take(10) {
        pages.push(Events::open(world.at, topic).await);
    }
    for page in &mut pages {
        page.next("tick").await;
    }
    world.until("locks", |page| found(page, "locks", "name", "kept").is_some()).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (cpu, began) = (cpu_seconds(), Instant::now());
    let with_pages = rate(&world, Duration::from_secs(10)).await;
    let cpu = (cpu_seconds() - cpu) / began.elapsed().as_secs_f64() * 100.0;
    // The figures are those of a debug build, and include the work of this test's ten readers.
    common::measured("cpu_percent_with_ten_pages", (cpu * 10.0).round() / 10.0);
    common::measured("requests_per_second_with_ten_pages", (with_pages * 10.0).round() / 10.0);
    assert!(with_pages <= 5.0, "{with_pages:.1} requests a second");
    drop(pages);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let without = rate(&world, Duration::from_secs(5)).await;
    assert!(without < 1.0, "{without:.1} requests a second while no page is open");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_examines_once_and_its_findings_show() {
    let world = World::new(1).await;
    let own = [("X-Palisade-Console", "1"), ("Content-Type", "application/json")];
    let answer = world.request("POST", "doctor", &own, "{}").await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let page = world.until("nodes", |page| page["doctor"]["state"] == "done").await;
    let findings = page["doctor"]["findings"].as_array().unwrap();
    assert!(findings.iter().all(|one| one["verdict"] != "fine" && one["fix"].is_array()));
    assert!(page["nodes"][0]["marker"]["history"].is_string(), "{page:#}");
    let again = world.request("POST", "doctor", &own, "{}").await;
    assert_eq!((again.status, &*again.code()), (429, "too_many"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_not_free_because_a_minority_has_its_holder() {
    let world = World::new(3).await;
    let held = world.client().mutex("deploy").build().unwrap().acquire().await.unwrap();
    let shown = world.get("lock?name=deploy").await;
    assert_eq!(shown["state"], "held");
    for server in &world.servers[1..] {
        server.freeze();
    }
    // One node reports the holder, and the other nodes do not answer.
    let unknown = world.until("lock?name=deploy", |page| page["state"] != "held").await;
    assert_eq!(
        (&unknown["state"], &unknown["sentence"], &unknown["holders"]),
        (&json!("unknown"), &json!("too few nodes answered"), &json!([]))
    );
    for server in &world.servers[1..] {
        server.resume();
    }
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_a_key_asks_each_node_for_little() {
    let world = World::new(3).await;
    let keys = world.client().idempotency("orders").at_most_once().build().unwrap();
    let _ = keys.key("7").run(|_| async { Ok::<_, Failed>(1) }).await.unwrap();
    world.get("key?namespace=orders&key=7").await;
    let server = &world.servers[0];
    server.cli(&["CONFIG", "RESETSTAT"]);
    for n in 0..10 {
        // Each request is for another key, so the console reads from the nodes for each of them.
        drop(world.request("GET", &format!("key?namespace=orders&key={n}"), &[], "").await);
    }
    let logins = server.cli(&["INFO", "stats"]);
    let logins = logins.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    // The only new connection is that of this INFO command.
    assert_eq!(logins.unwrap().trim(), "1", "the pages share a connection");
    // One node does not answer, so the console's survey of keys searches for the masters again and
    // again.
    world.servers[2].freeze();
    world
        .until("overview", |page| page["unread"].as_array().is_some_and(|of| !of.is_empty()))
        .await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        world.get("overview").await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let asked = server.cli(&["INFO", "commandstats"]);
    assert!(asked.contains("cmdstat_role"), "they are searched: {asked}");
    assert!(!asked.contains("dryrun"), "{asked}");
    world.servers[2].resume();
}
