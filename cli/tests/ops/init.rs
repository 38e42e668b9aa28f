//! A new deployment grants at once and has a complete record of its keys. `palisade init` refuses a
//! deployment that is not new.

use std::time::Instant;

use palisade::error::{AcquireError, NodeOutcome};
use palisade::{Failed, Outcome, RedisNode, Redlock, RunError, SentinelNode, TryAcquire};
use palisade_ops::doctor::Doctor;
use palisade_ops::{HandedOver, Handover, Init, Initialised, init, init_lost};
use tracing_subscriber::filter::LevelFilter;

use super::support::group::cli;
use super::support::logs::Log;
use super::*;

async fn begun(deployment: &Deployment, prefix: &str) -> Initialised {
    init(deployment, prefix).await.unwrap()
}

/// Asserts that a lock is granted without a quarantine, that a new key runs, and that its result is
/// then replayed. A server that does not answer in time is asked again.
async fn serves(redlock: &Redlock) {
    let begun = Instant::now();
    let guard = loop {
        let refused = match redlock.mutex("job").build().unwrap().try_acquire().await {
            Ok(TryAcquire::Acquired(guard)) => break guard,
            Err(AcquireError::NoQuorum(no)) => no,
            other => panic!("{other:?}"),
        };
        let waits = matches!(refused.nodes[0].1, NodeOutcome::Quarantined { .. });
        assert!(!waits && begun.elapsed() < SOON, "{refused:?}");
    };
    assert!(guard.release().await.is_ok());
    let orders = redlock.idempotency("orders").at_most_once().build().unwrap();
    let run = async || loop {
        match orders.key("7").run(|_| async { Ok::<_, Failed>(42) }).await {
            Ok(outcome) => return outcome,
            Err(e) => assert!(begun.elapsed() < 2 * SOON, "{e}"),
        }
    };
    let first = run().await;
    assert!(matches!(first, Outcome::Executed { value: 42, .. }), "{first:?}");
    let again = run().await;
    assert!(matches!(again, Outcome::Replayed(42)), "{again:?}");
}

/// Asks for a lock until the refusal contains `what`. The lock must not be granted.
async fn is_refused(redlock: &Redlock, what: &str) {
    let begun = Instant::now();
    loop {
        let mutex = redlock.mutex("job").build().unwrap();
        let refused = mutex.try_acquire().await.unwrap_err().to_string();
        if refused.contains(what) {
            return;
        }
        assert!(begun.elapsed() < SOON, "{what}: {refused}");
    }
}

#[tokio::test]
async fn a_new_server_grants_at_once_and_remembers_everything() {
    let server = Server::start(&[]);
    let out = palisade(&["init", "--new", "--node", &server.url()]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    assert!(words(&out).contains(&format!("marked at {}", server.addr())), "{}", words(&out));
    assert!(!words(&out).contains("attach it before the server is used"), "{}", words(&out));
    let redlock = Redlock::builder().node(RedisNode::new(server.url()).unwrap()).build().unwrap();
    serves(&redlock).await;

    let before = server.cli(&["GET", "palisade:generation"]);
    let out = palisade(&["init", "--new", "--node", &server.url()]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    assert!(words(&out).contains("has the marker palisade:generation"), "{}", words(&out));
    assert!(words(&out).contains("nothing was changed"), "{}", words(&out));
    assert_eq!(server.cli(&["GET", "palisade:generation"]), before);
}

/// A server whose counters were reset cannot prove that a rename of its data lost nothing.
#[tokio::test]
async fn a_server_that_cannot_prove_a_rename_keeps_its_backlog() {
    for (rights, note) in
        [("+@all", "repl-backlog-ttl is 0 now"), ("-config|set", "repl-backlog-ttl could not be")]
    {
        let server = Server::start(&[]);
        server.cli(&["CONFIG", "RESETSTAT"]);
        assert_eq!(server.cli(&["ACL", "SETUSER", "default", rights]), "OK");
        let done = begun(&lone(&server), "").await;
        assert!(done.is_done(), "{done}");
        assert!(done.to_string().contains("attach it before the server is used"), "{done}");
        assert!(done.to_string().contains(note), "{done}");
        let ttl = server.cli(&["CONFIG", "GET", "repl-backlog-ttl"]);
        assert_eq!(ttl.lines().last() == Some("0"), rights == "+@all", "{ttl}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_has_the_id_of_its_settings_and_another_one_is_refused() {
    const ID: &str = "00000000000000a1";
    let (ours, theirs) = (Server::start(&[]), Server::start(&[]));
    let (our_url, their_url) = (ours.url(), theirs.url());
    let named = |urls: &[&str]| {
        let nodes = urls.iter().flat_map(|url| ["--node", *url]);
        let args: Vec<&str> =
            ["init", "--new", "--deployment", ID].into_iter().chain(nodes).collect();
        palisade(&args)
    };
    let out = named(&[&our_url]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    assert_eq!(word(&ours, 4), ID);
    assert!(begun(&lone(&theirs), "").await.is_done());
    let handle = |server: &Server| {
        let node = RedisNode::new(server.url()).unwrap();
        Redlock::builder().node(node).deployment(ID).build().unwrap()
    };
    serves(&handle(&ours)).await;
    // A new program remembers nothing, and refuses the address all the same.
    let before = theirs.cli(&["GET", "palisade:generation"]);
    is_refused(&handle(&theirs), &format!("this node's are {ID}/")).await;
    assert_eq!(theirs.cli(&["GET", "palisade:generation"]), before);
    let out = named(&[&our_url, &their_url]);
    assert_eq!(out.status.code(), Some(2), "{}", words(&out));
    assert!(unwrapped(&out).contains("the settings name another one"), "{}", words(&out));
    let wrong = Redlock::builder().node(RedisNode::new(&*our_url).unwrap()).deployment("orders");
    let wrong = wrong.build().unwrap_err().to_string();
    assert!(wrong.contains("16 hexadecimal digits"), "{wrong}");
}

/// Several processes of a program may run `palisade init` at the same time before they start.
#[tokio::test]
async fn several_who_initialise_one_server_at_once_all_succeed() {
    let server = Server::start(&[]);
    let deployment = lone(&server).timeout(SOON);
    let one = || begun(&deployment, "");
    let (a, b, c, d) = tokio::join!(one(), one(), one(), one());
    let all = [a, b, c, d];
    let marked = |done: &&Initialised| matches!(done.nodes[0].1, Init::Marked { .. });
    assert_eq!(all.iter().filter(marked).count(), 1, "{all:?}");
    assert!(all.iter().all(Initialised::is_done), "{all:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_server_that_an_application_found_first_is_marked_while_it_waits() {
    let server = Server::start(&[]);
    let redlock = Redlock::builder().node(RedisNode::new(server.url()).unwrap()).build().unwrap();
    let whole = format!("deployment is new: `palisade init --new --node {}`", server.url());
    is_refused(&redlock, &whole).await;
    let report = palisade(&["doctor", "--node", &server.url(), "--no-trial"]);
    assert!(unwrapped(&report).contains("palisade init --new --node"), "{}", words(&report));
    let out = palisade(&["init", "--new", "--node", &server.url()]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    serves(&redlock).await;
    let out = palisade(&["init", "--new", "--node", &server.url()]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_programs_used_before_it_was_marked_is_marked_later() {
    let server = Server::start(&[]);
    let node = RedisNode::new(server.url()).unwrap();
    let brief = Duration::from_secs(1);
    let redlock = Redlock::builder().node(node).ttl(brief).max_ttl(brief).build().unwrap();
    let guard =
        redlock.mutex("job").acquire_timeout(SOON).build().unwrap().acquire().await.unwrap();
    let token = guard.fencing_token();
    let repeats = redlock.idempotency("repeats").at_least_once().build().unwrap();
    let run = async || repeats.key("7").run(|_| async { Ok::<_, Failed>(42) }).await.unwrap();
    assert!(run().await.is_executed());
    let strict = redlock.idempotency("orders").at_most_once().build().unwrap();
    let refused = strict.key("7").run(|_| async { Ok::<_, Failed>(42) }).await;
    assert!(matches!(refused, Err(RunError::NotInitialised { .. })), "{refused:?}");
    let field = |at: usize| word(&server, at);
    // The beginning of the history, the length of a quarantine, and the floor.
    let kept = || [field(6), field(13), field(14)];
    let before = kept();
    let done = begun(&lone(&server), "").await;
    assert!(done.is_done(), "{done}");
    assert!(done.to_string().contains("programs have used it already"), "{done}");
    assert_eq!((kept(), &*field(15)), (before, "n"), "its quarantine and floor stay");
    assert!(guard.release().await.is_ok());
    let again = run().await;
    assert!(matches!(again, Outcome::Replayed(42)), "{again:?}");
    serves(&redlock).await;
    let next = redlock.mutex("job").build().unwrap().try_acquire().await.unwrap().acquired();
    assert!(next.expect("free").fencing_token() > token);
    assert!(begun(&lone(&server), "").await.is_done(), "a second time");
}

/// Returns a word of the server's marker.
fn word(server: &Server, at: usize) -> String {
    let marker = server.cli(&["GET", "palisade:generation"]);
    marker.split_whitespace().nth(at).unwrap_or_else(|| panic!("{marker}")).to_owned()
}

/// As after a person has deleted the marker: a record is older than the data history.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_records_from_before_its_data_began_is_not_marked() {
    let server = Server::start(&[]);
    assert!(begun(&lone(&server), "").await.is_done());
    let brief = Duration::from_secs(1);
    let handle = || {
        let node = RedisNode::new(server.url()).unwrap();
        Redlock::builder().node(node).ttl(brief).max_ttl(brief).build().unwrap()
    };
    serves(&handle()).await;
    server.cli(&["DEL", "palisade:generation", "{job}:fence"]);
    let redlock = handle();
    let mutex = redlock.mutex("other").acquire_timeout(SOON).build().unwrap();
    drop(mutex.acquire().await.unwrap());
    let marker = server.cli(&["GET", "palisade:generation"]);
    let less = ["ACL", "SETUSER", "ops", "on", ">ops", "~*", "&*", "+@all", "-getrange"];
    assert_eq!(server.cli(&less), "OK");
    let by_ops = Deployment::new().node(format!("redis://ops:ops@{}", server.addr()));
    let unread = begun(&by_ops.timeout(SOON), "").await.to_string();
    assert!(unread.contains("allow this user +getrange ("), "{unread}");
    let refused = begun(&lone(&server), "").await;
    assert_eq!(refused.exit_code(), 2, "{refused}");
    assert!(refused.to_string().contains("\"idem:orders:7\""), "{refused}");
    assert_eq!(server.cli(&["GET", "palisade:generation"]), marker);
}

#[tokio::test]
async fn data_lost_under_a_program_are_not_taken_for_a_new_deployment() {
    let log = Log::of_this_thread(LevelFilter::INFO);
    let mut server = Server::start(&[]);
    assert!(begun(&lone(&server), "").await.is_done());
    let node = RedisNode::new(server.url()).unwrap();
    let brief = Duration::from_secs(1);
    let redlock = Redlock::builder().node(node).ttl(brief).max_ttl(brief).build().unwrap();
    let orders = redlock.idempotency("orders").at_most_once().build().unwrap();
    let ran = std::cell::Cell::new(0);
    let run = async |key: &str| {
        let end = Instant::now() + SOON;
        loop {
            let handler = |_| {
                ran.set(ran.get() + 1);
                async { Ok::<_, Failed>(42) }
            };
            match orders.key(key).run(handler).await {
                Ok(outcome) => return outcome,
                Err(e) => {
                    assert!(!e.to_string().contains("palisade init"), "{e}");
                    assert!(Instant::now() < end, "{e}");
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(run("7").await.is_executed());
    server.restart_empty();
    for key in ["7", "8"] {
        let outcome = run(key).await;
        assert!(matches!(outcome, Outcome::Parked(_)), "{outcome:?}");
    }
    assert_eq!(ran.get(), 1, "nothing ran twice");
    assert!(!log.lines(&["its data are lost"]).is_empty(), "{}", log.text());
    assert_eq!(log.lines(&["palisade init"]), [""; 0], "no line advises it");

    let url = server.url();
    let out = palisade(&["init", "--new", "--node", &url]);
    assert_eq!(out.status.code(), Some(2), "{}", words(&out));
    assert!(unwrapped(&out).contains("lost its data"), "{}", words(&out));
    assert!(unwrapped(&out).contains("--lost-everything"), "{}", words(&out));
    assert!(matches!(run("8").await, Outcome::Parked(_)), "nothing was changed");
    let out = palisade(&["init", "--lost-everything", "--node", &url]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    assert!(unwrapped(&out).contains("keys used before count as new"), "{}", words(&out));
    assert!(run("8").await.is_executed());
    assert!(run("7").await.is_executed(), "as it says");
}

/// The server restarts without its data, and all programs that used it restart, too. So no program
/// can tell that the server ever had data.
#[tokio::test]
async fn an_emptied_server_that_nobody_remembers_is_new_only_if_a_person_says_so() {
    let mut server = Server::start(&[]);
    assert!(begun(&lone(&server), "").await.is_done());
    server.restart_empty();
    let url = server.url();
    let brief = Duration::from_secs(1);
    let node = RedisNode::new(&*url).unwrap();
    let redlock = Redlock::builder().node(node).ttl(brief).max_ttl(brief).build().unwrap();
    let mutex = redlock.mutex("job").acquire_timeout(SOON).build().unwrap();
    drop(mutex.acquire().await.unwrap());
    let report = unwrapped(&palisade(&["doctor", "--node", &url, "--no-trial"]));
    let [first, second] = ["palisade idem incidents --node", "palisade init --new --node"];
    let at = |command: &str| report.find(command).unwrap_or_else(|| panic!("{command}: {report}"));
    assert!(at(first) < at(second), "{report}");
    let out = palisade(&["init", "--node", &url]);
    assert_eq!(out.status.code(), Some(64), "{}", words(&out));
    assert!(unwrapped(&out).contains("palisade idem incidents"), "{}", words(&out));
    let began = |server: &Server| word(server, 15);
    assert_eq!(began(&server), "e", "nothing was changed");

    // An operator decides about this server's loss of data. So the operator has confirmed that the
    // server had data.
    let out = palisade(&["idem", "incidents", "--json", "--namespace", "orders", "--node", &url]);
    let list: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let number = list["incidents"][0]["loss"].as_str().unwrap_or_else(|| panic!("{list}"));
    let decide = ["idem", "decide", "--namespace", "orders", "--loss", number, "--park"];
    let decide = [&decide[..], &["--reason", "in the ledger", "--node", &url]].concat();
    // The command `idem decide` uses the default `max_ttl`, so the quarantine of the server is
    // longer now.
    let end = Instant::now() + 2 * SOON;
    while palisade(&decide).status.code() != Some(0) {
        assert!(Instant::now() < end, "{}", words(&palisade(&decide)));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let out = palisade(&["init", "--new", "--node", &url]);
    assert_eq!(out.status.code(), Some(2), "{}", words(&out));
    assert!(unwrapped(&out).contains("an operator has decided"), "{}", words(&out));
    assert_eq!(began(&server), "e", "nothing was changed");
}

#[tokio::test]
async fn a_replaced_server_is_marked_for_who_lost_everything_and_keeps_its_quarantine() {
    let (first, replaced) = (Server::start(&[]), Server::start(&[]));
    assert!(begun(&lone(&first), "").await.is_done());
    let both = lone(&first).node(replaced.url());
    let refused = begun(&both, "").await.to_string();
    assert!(refused.contains("--lost-everything"), "{refused}");
    // Only a program that connects sets the length of a server's quarantine. No program has
    // connected to the replaced server yet, so the server cannot be marked.
    let done = init_lost(&both).await.unwrap();
    assert!(done.to_string().contains("no program has connected to it yet"), "{done}");
    let mut builder = Redlock::builder().allow_even_nodes();
    for server in [&first, &replaced] {
        builder = builder.node(RedisNode::new(server.url()).unwrap());
    }
    let redlock = builder.build().unwrap();
    let mutex = redlock.mutex("job").build().unwrap();
    assert!(mutex.try_acquire().await.is_err(), "two of two are needed");
    let done = init_lost(&both).await.unwrap();
    assert!(done.is_done(), "{done}");
    assert!(matches!(done.nodes[0].1, Init::Already { .. }), "{done}");
    assert!(matches!(done.nodes[1].1, Init::Marked { .. }), "{done}");
    assert!(mutex.try_acquire().await.is_err(), "leases that it forgot may be held");
}

#[tokio::test]
async fn a_replaced_server_is_not_marked_beside_nodes_with_data() {
    let (first, second) = (Server::start(&[]), Server::start(&[]));
    assert!(begun(&lone(&first).node(second.url()), "").await.is_done());
    let replaced = Server::start(&[]);
    let all = lone(&first).node(second.url()).node(replaced.url());
    let refused = begun(&all, "").await;
    assert_eq!(refused.exit_code(), 2);
    assert!(matches!(refused.nodes[2].1, Init::Replaced { .. }), "{refused}");
    assert!(refused.to_string().contains("it joins by itself after one quarantine"), "{refused}");
    assert_eq!(replaced.cli(&["EXISTS", "palisade:generation"]), "0");
    let urls = [first.url(), second.url(), replaced.url()];
    let report = palisade(&["doctor", "--node", &urls[0], "--node", &urls[1], "--node", &urls[2]]);
    let said = unwrapped(&report);
    assert!(said.contains("do not initialise it"), "{said}");
    assert!(!said.contains("palisade init"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_group_grants_at_once_and_its_replicas_know() {
    let groups = Groups::up_with(1, 5_000, 2, &["--no-marker", "--acl"]);
    let done = begun(&group(&groups), "").await;
    assert!(done.is_done(), "{done}");
    assert!(done.to_string().contains("its 2 replicas have it"), "{done}");
    let secret = groups.password().expect("users");
    let node = SentinelNode::builder(groups.name(0), groups.sentinels(0));
    let node = node.min_replicas(1, Duration::from_secs(2));
    let node = node.username("palisade").password(&*secret);
    let node = node.sentinel_username("palisade").sentinel_password(secret).build().unwrap();
    serves(&Redlock::builder().node(node).build().unwrap()).await;
    for server in groups.servers(0) {
        let mark = groups.cli(&server, &["GET", "palisade:generation"]);
        assert!(mark.contains(" 0000000000000 "), "{server}: {mark}");
    }
}

#[tokio::test]
async fn what_is_not_new_is_refused_and_the_key_is_named() {
    let server = Server::start(&[]);
    server.cli(&["SET", "users:7", "x"]);
    server.cli(&["SET", "{job}:fence", "17"]);
    for n in 0..3_000 {
        server.cli(&["SET", &format!("filler:{n}"), "x"]);
        if n == 20 {
            break;
        }
    }
    let refused = begun(&lone(&server), "").await;
    assert_eq!(refused.exit_code(), 2);
    assert!(refused.to_string().contains("\"{job}:fence\""), "{refused}");
    assert_eq!(server.cli(&["EXISTS", "palisade:generation"]), "0");
    server.cli(&["DEL", "{job}:fence"]);
    let refused = begun(&lone(&server), "users:").await;
    assert!(refused.to_string().contains("\"users:7\""), "{refused}");
    let done = begun(&lone(&server), "orders:").await;
    assert!(done.is_done(), "another application's keys are none of ours: {done}");
}

/// A group's name is a matter of capital letters, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_no_sentinel_monitors_is_quoted_beside_those_that_are() {
    let (master, sentinel) =
        (Server::start(&[]), Server::start_program("redis-sentinel", &["sentinel.conf"]));
    let monitor = ["SENTINEL", "MONITOR", "a", "127.0.0.1", &master.port().to_string(), "1"];
    assert_eq!(sentinel.cli(&monitor), "OK");
    let url = format!("sentinel://{}/A", sentinel.addr());
    let sentence = "monitors no master \"A\", but \"a\"";
    let deployment = Deployment::new().node(&*url).timeout(SOON);
    let refused = begun(&deployment, "").await;
    assert_eq!(refused.exit_code(), 2, "{refused}");
    assert!(refused.to_string().contains(sentence), "{refused}");
    let kept = Handover::new(deployment.clone()).group(|_| ()).await.unwrap();
    assert!(matches!(&kept, HandedOver::Refused(why) if why.contains(sentence)), "{kept}");
    let report = Doctor::new(deployment).trial(false).examine().await.unwrap();
    let unreachable = report.findings.iter().filter(|f| f.check == "unreachable");
    let evidence: Vec<_> = unreachable.map(|f| &*f.evidence).collect();
    assert!(evidence.iter().any(|evidence| evidence.contains(sentence)), "{evidence:?}");
}

#[tokio::test]
async fn a_replica_is_refused_and_none_is_marked_with_it() {
    let (first, master) = (Server::start(&[]), Server::start(&[]));
    let replica = Server::start(&["--replicaof", "127.0.0.1", &master.port().to_string()]);
    let both = lone(&first).node(replica.url());
    let refused = begun(&both, "").await;
    assert_eq!(refused.exit_code(), 2);
    assert!(refused.to_string().contains("is a replica of"), "{refused}");
    assert!(matches!(refused.nodes[0].1, Init::Left { .. }), "{refused}");
    assert_eq!(first.cli(&["EXISTS", "palisade:generation"]), "0");
}

#[tokio::test]
async fn a_group_without_all_of_its_replicas_is_refused() {
    let groups = Groups::up_with(1, 5_000, 2, &["--no-marker"]);
    groups.break_("kill", 0, &["--server", "a3"]);
    let end = Instant::now() + SOON;
    loop {
        let refused = begun(&group(&groups), "").await;
        assert_eq!(refused.exit_code(), 2, "{refused}");
        if refused.to_string().contains("is not attached: start it") {
            break;
        }
        assert!(Instant::now() < end, "{refused}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(cli(&groups.servers(0)[0], &["EXISTS", "palisade:generation"]), "0");
}

#[test]
fn nobody_there_and_wrong_use_have_their_exit_codes() {
    let gone = format!("redis://127.0.0.1:{}", support::server::free_port());
    let out = palisade(&["init", "--new", "--json", "--node", &gone]);
    let object: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(
        (&object["done"], &object["nodes"][0]["state"]),
        (&false.into(), &"unreachable".into())
    );
    let out = palisade(&["handover", "--json", "--node", &gone, "--", "true"]);
    let object: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!((out.status.code(), &object["outcome"]), (Some(69), &"unreachable".into()));
    let out = palisade(&["init", "--new", "--node", &gone]);
    assert_eq!(out.status.code(), Some(69), "{}", words(&out));
    let out = palisade(&["init", "--new"]);
    assert_eq!(out.status.code(), Some(64), "{}", words(&out));
    let out = palisade(&["init", "--new", "--node", "sentinel:///orders-a"]);
    assert_eq!(out.status.code(), Some(64), "{}", words(&out));
}

#[test]
fn a_handover_reads_the_group_from_the_environment() {
    let nobody = format!("127.0.0.1:{}", support::server::free_port());
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
    command.env("PALISADE_URLS", format!("sentinel://{nobody}/orders-a"));
    let out = command.args(["handover", "--timeout", "300ms"]).output().expect("it can be run");
    // The exit code 69 shows that `palisade handover` found the group in the variable and did not
    // reach it. Otherwise it would print `name one server`.
    assert_eq!(out.status.code(), Some(69), "{}", words(&out));
}
