//! Tests of an operator's work in the console: decisions about keys and losses of data, and changes
//! of leaders.

mod common;

use std::time::Duration;

use common::{Events, World};
use palisade::Failed;
use palisade_console::{Console, Options};
use serde_json::{Value, json};

fn acting() -> Options {
    let mut options = Options::default();
    options.allow_actions = true;
    options
}

fn key(action: &str, key: &str) -> Value {
    json!({ "action": action, "namespace": "orders", "key": key, "confirm": key,
            "reason": "the host is gone" })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_hangs_is_released_and_run_again() {
    let world = World::with(3, "app:", acting()).await;
    let keys = world.client().idempotency("orders").at_most_once().build().unwrap();
    let hangs =
        tokio::spawn(keys.key("7").run(|_| std::future::pending::<Result<String, Failed>>()));
    let state = |state: &'static str| {
        move |page: &Value| page["keys"][0]["key"] == "7" && page["keys"][0]["state"] == state
    };
    let page = world.until("keys", state("running")).await;
    assert_eq!(page["keys"][0]["actions"], json!(["release"]));
    let refused = world.act(&key("rerun", "7"), &[]).await.json();
    assert_eq!(refused["result"], "refused", "it runs: {refused}");
    let done = world.act(&key("release", "7"), &[]).await.json();
    assert_eq!(done["result"], "done", "{done}");
    let page = world.until("keys", state("parked")).await;
    assert_eq!(page["keys"][0]["actions"], json!(["resolve", "rerun", "purge"]));
    hangs.abort();
    let done = world.act(&key("rerun", "7"), &[]).await.json();
    assert_eq!(done["result"], "done", "{done}");
    let outcome = keys.key("7").run(|_| async { Ok::<_, Failed>("booked".to_owned()) }).await;
    assert!(outcome.unwrap().value().is_some());
    let none = world.act(&key("rerun", "unheard of"), &[]).await.json();
    assert_eq!(none["result"], "unchanged", "{none}");
    let lines = world.get("audit").await;
    let results: Vec<_> =
        lines["lines"].as_array().unwrap().iter().map(|line| line["result"].clone()).collect();
    assert_eq!(results, ["unchanged", "done", "done", "refused"]);
    assert_eq!(lines["lines"][1]["target"], "orders/7");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incident_has_one_decision() {
    let mut world = World::with(1, "", acting()).await;
    let keys = world.client().idempotency("orders").at_most_once().build().unwrap();
    let _ = keys.key("1").run(|_| async { Ok::<_, Failed>(1) }).await.unwrap();
    world.until("keys", |page| page["keys"][0]["state"] == "done").await;
    let none = world.get("incidents").await;
    assert_eq!((&none["incidents"], &none["whole"]), (&json!([]), &json!(true)), "{none:#}");
    world.servers[0].restart();
    let page = loop {
        // The console refuses the page of incidents until the server answers again.
        let answer = world.request("GET", "incidents", &[], "").await;
        match answer.json()["incidents"].as_array().map(Vec::len) {
            Some(1..) => break answer.json(),
            _ => tokio::time::sleep(Duration::from_millis(300)).await,
        }
    };
    assert_eq!((&page["left_out"], &page["undecided"]), (&json!(0), &json!(1)), "{page:#}");
    let incident = &page["incidents"][0];
    let loss = incident["loss"].as_str().unwrap().to_owned();
    let orders = &incident["namespaces"][0];
    assert_eq!(
        (&orders["namespace"], &orders["standing"]),
        (&json!("orders"), &json!("undecided"))
    );
    assert_eq!(orders["may"], json!(["run", "park"]));
    let decide = |decision: &str, replace: bool| {
        json!({ "action": "decide", "namespace": "orders", "loss": loss, "decision": decision,
                "replace": replace, "confirm": loss, "reason": "no order was lost" })
    };
    // The request names another loss of data than the page showed, as if a new loss had become part
    // of the incident since then.
    let mut joined = decide("run", false);
    joined["loss"] = json!(format!("20200101-000000.000,{loss}"));
    let refused = world.act(&joined, &[]).await.json();
    assert_eq!(refused["result"], "refused", "{refused}");
    assert!(refused["text"].as_str().unwrap().contains("list the losses again"), "{refused}");
    // A node in quarantine, the time after a loss of data, does not store a decision.
    let parked = loop {
        let answer = world.act(&decide("park", false), &[]).await.json();
        if answer["result"] != "unknown" {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    };
    assert_eq!(parked["result"], "done", "{parked}");
    let other = world.act(&decide("run", false), &[]).await.json();
    assert_eq!(other["result"], "unchanged", "the first decision stands: {other}");
    let replaced = world.act(&decide("run", true), &[]).await.json();
    assert_eq!(replaced["result"], "done", "{replaced}");
    let page = world.get("incidents").await;
    let orders = &page["incidents"][0]["namespaces"][0];
    assert_eq!((&orders["standing"], &orders["may"]), (&json!("run"), &json!([])));
    assert_eq!((&page["undecided"], &page["retention_ms"]), (&json!(0), &json!(86_400_000)));
    world.until("overview", |page| page["counts"]["incidents"] == 0).await;
    assert_eq!((&orders["by"], &orders["reason"]), (&json!("local"), &json!("no order was lost")));
    let mut unknown = decide("run", false);
    (unknown["loss"], unknown["confirm"]) =
        (json!("20200101-000000.000"), json!("20200101-000000.000"));
    assert_eq!(world.act(&unknown, &[]).await.json()["result"], "refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_steps_down() {
    let world = World::with(1, "", acting()).await;
    let client = world.client();
    let election = client.election("billing").build().unwrap();
    let step_down = json!({ "action": "step-down", "name": "billing", "confirm": "billing",
                            "reason": "maintenance" });
    let vacant = world.act(&step_down, &[]).await.json();
    assert_eq!(vacant["result"], "unchanged", "{vacant}");
    let leads = election.campaign("one").await.unwrap();
    let asked = tokio::spawn(async move {
        let request = leads.asked_to_resign().await;
        leads.resign().await.unwrap();
        request.reason
    });
    let done = world.act(&step_down, &[]).await.json();
    assert_eq!(done["result"], "done", "{done}");
    assert_eq!(asked.await.unwrap(), "maintenance (local)");
    let refused =
        json!({ "action": "run-now", "job": "cron/j", "confirm": "cron/j", "reason": "x" });
    assert_eq!(world.act(&refused, &[]).await.json()["result"], "refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_changes_only_what_the_page_showed() {
    let world = World::with(1, "", acting()).await;
    let client = world.client();
    let first = client.mutex("deploy").build().unwrap().acquire().await.unwrap();
    let shown = world.get("lock?name=deploy").await["holders"][0]["owner"].clone();
    first.release().await.unwrap();
    let second = client.mutex("deploy").build().unwrap().acquire().await.unwrap();
    let mut force = json!({ "action": "force-release", "name": "deploy", "confirm": "deploy",
                            "reason": "it hangs", "expect": shown });
    let refused = world.act(&force, &[]).await.json();
    assert_eq!(refused["result"], "refused", "{refused}");
    assert!(refused["text"].as_str().unwrap().contains("has changed since"), "{refused}");
    assert!(second.extend().await.is_ok(), "the second holder keeps the lock");
    force["expect"] = world.get("lock?name=deploy").await["holders"][0]["owner"].clone();
    assert_eq!(world.act(&force, &[]).await.json()["result"], "done");

    let election = client.election("billing").build().unwrap();
    let leads = election.campaign("one").await.unwrap();
    let step_down = json!({ "action": "step-down", "name": "billing", "confirm": "billing",
                            "reason": "maintenance", "expect": "1" });
    let refused = world.act(&step_down, &[]).await.json();
    assert_eq!(refused["result"], "refused", "{refused}");
    leads.resign().await.unwrap();

    let keys = client.idempotency("orders").at_most_once().build().unwrap();
    let never = keys.key("7").run(|_| std::future::pending::<Result<i32, Failed>>());
    drop(tokio::time::timeout(Duration::from_millis(300), never).await);
    let parked = world.until("key?namespace=orders&key=7", |key| key["state"] == "parked").await;
    assert!(parked["seen_ms"].as_u64().unwrap() + 60_000 > parked["now_ms"].as_u64().unwrap());
    for action in ["rerun", "purge", "resolve", "release"] {
        let mut body = key(action, "7");
        (body["expect"], body["value"]) = (json!("parked:2:1"), json!(9));
        let refused = world.act(&body, &[]).await.json();
        assert_eq!(refused["result"], "refused", "{action}: {refused}");
        assert!(refused["text"].as_str().unwrap().contains("look again"), "{refused}");
    }
    let mut resolve = key("resolve", "7");
    (resolve["expect"], resolve["value"]) = (parked["shown"].clone(), json!(9));
    assert_eq!(world.act(&resolve, &[]).await.json()["result"], "done");
    // The page of a key asks the nodes each time, so it shows the new state at once.
    let shown = world.get("key?namespace=orders&key=7").await;
    assert_eq!(shown["state"], "done");
    let mut purge = key("purge", "7");
    purge["expect"] = shown["shown"].clone();
    let purged = world.act(&purge, &[]).await.json();
    assert_eq!(purged["result"], "done", "{purged}");
    let lines = world.get("audit").await;
    let refused = lines["lines"].as_array().unwrap().iter().filter(|l| l["result"] == "refused");
    assert_eq!(refused.count(), 6);
    let detail = |n: usize| lines["lines"][n]["detail"].as_str().unwrap().to_owned();
    assert!(detail(0).starts_with("shown: done:"), "{}", detail(0));
    // The audit has the digest of the result `9`, and not the result itself.
    let digest =
        "SHA-256 of the value: 19581e27de7ced00ff1ce50b2047e7a567c76b1cbaebabe5ef03f7c3017bb5b7";
    assert_eq!(detail(1), format!("{digest}; shown: {}", parked["shown"].as_str().unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_looks_like_an_earlier_one_is_not_ended() {
    let world = World::with(1, "", acting()).await;
    let keys = world.client().idempotency("orders").at_most_once().build().unwrap();
    let (fail, fails) = tokio::sync::oneshot::channel::<()>();
    let first = tokio::spawn(keys.key("7").run(|_| async {
        drop(fails.await);
        Err::<i32, _>(Failed::no_effect("the relay is closed"))
    }));
    let path = "key?namespace=orders&key=7";
    let shown = world.until(path, |key| key["state"] == "running").await;
    fail.send(()).unwrap();
    assert!(first.await.unwrap().is_err());
    let second = tokio::spawn(keys.key("7").run(|_| std::future::pending::<Result<i32, Failed>>()));
    let now =
        world.until(path, |key| key["state"] == "running" && key["shown"] != shown["shown"]).await;
    assert_eq!((&now["state"], &now["attempts"]), (&shown["state"], &shown["attempts"]));
    let mut release = key("release", "7");
    release["expect"] = shown["shown"].clone();
    let refused = world.act(&release, &[]).await.json();
    assert_eq!(refused["result"], "refused", "{refused}");
    release["expect"] = now["shown"].clone();
    assert_eq!(world.act(&release, &[]).await.json()["result"], "done");
    second.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_one_of_three_nodes_made_is_done_in_part() {
    let mut world = World::with(3, "", acting()).await;
    let keys = world.client().idempotency("orders").at_most_once().build().unwrap();
    let _ = keys.key("7").run(|_| async { Ok::<_, Failed>(1) }).await.unwrap();
    for server in &mut world.servers[1..] {
        server.kill();
    }
    let purged = world.act(&key("purge", "7"), &[]).await.json();
    assert_eq!(purged["result"], "partly", "{purged}");
    assert!(purged["text"].as_str().unwrap().contains("done on too few nodes"), "{purged}");
    // Only one node answers. It cannot show that the other nodes have no record of this key.
    let absent = world.act(&key("rerun", "unheard of"), &[]).await.json();
    assert_eq!(absent["result"], "failed", "{absent}");
    let page = world.get("happened").await;
    let begins = |one: &Value| one["text"].as_str().unwrap().ends_with("begins");
    let began = page["happened"].as_array().unwrap().iter().filter(|one| begins(one)).count();
    assert_eq!(began, 2, "other visitors see what is under way: {page:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_console_that_ends_answers_the_actions_that_end_in_time() {
    let world = World::new(1).await;
    let deployment = world.deployment();
    let redlock = deployment.handle().unwrap().build().unwrap();
    let console = Console::bind(redlock, deployment, acting()).await.unwrap();
    let at = console.address();
    let at = at.trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let run = tokio::spawn(console.run(async { drop(ended.await) }));
    let election = world.client().election("billing").build().unwrap();
    let leads = election.campaign("one").await.unwrap();
    let mut events = Events::open(at, "locks").await;
    events.next("hello").await;
    let body = json!({ "action": "step-down", "name": "billing", "confirm": "billing",
                       "reason": "maintenance" });
    let act = tokio::spawn(async move {
        let own = [("X-Palisade-Console", "1"), ("Content-Type", "application/json")];
        common::request(at, "POST", "/api/v1/actions", &own, &body.to_string()).await
    });
    leads.asked_to_resign().await;
    end.send(()).unwrap();
    events.next("closing").await;
    leads.resign().await.unwrap();
    let answer = act.await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["result"], "done", "{answer:?}");
    run.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_of_all_records_waits_for_a_decision() {
    let mut world = World::with(1, "", acting()).await;
    let keys = world.client().idempotency("orders").at_most_once().build().unwrap();
    let _ = keys.key("1").run(|_| async { Ok::<_, Failed>(1) }).await.unwrap();
    world.until("keys", |page| page["keys"][0]["state"] == "done").await;
    world.servers[0].restart_empty();
    let page = loop {
        let answer = world.request("GET", "incidents", &[], "").await;
        match answer.json()["incidents"].as_array().map(Vec::len) {
            Some(1..) => break answer.json(),
            _ => tokio::time::sleep(Duration::from_millis(300)).await,
        }
    };
    // Wait until two more rounds of the scan have found no record.
    let rounds = |page: &Value| page["poll"]["scan"]["rounds"].as_u64().unwrap();
    let before = rounds(&world.get("overview").await);
    world.until("keys", |page| page["total"] == 0 && rounds(page) > before + 1).await;
    world.until("overview", |page| page["counts"]["incidents"] == 1).await;
    let loss = page["incidents"][0]["loss"].as_str().unwrap().to_owned();
    let standing = |page: &Value| {
        let orders = &page["incidents"][0]["namespaces"][0];
        (orders["namespace"].clone(), orders["standing"].clone(), page["undecided"].clone())
    };
    let now = world.get("incidents").await;
    assert_eq!(standing(&now), (json!("orders"), json!("undecided"), json!(1)), "{now:#}");
    let decide = json!({ "action": "decide", "namespace": "orders", "loss": loss,
                         "decision": "park", "confirm": loss, "reason": "it lost all" });
    let parked = loop {
        let answer = world.act(&decide, &[]).await.json();
        if answer["result"] != "unknown" {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    };
    assert_eq!(parked["result"], "done", "{parked}");
    let now = world.get("incidents").await;
    assert_eq!(standing(&now), (json!("orders"), json!("park"), json!(0)), "{now:#}");
}

/// Returns the job of this name from the JSON of the page `cron`; null if the page does not have
/// the job.
fn found<'a>(page: &'a Value, job: &str) -> &'a Value {
    let jobs = page["jobs"].as_array().unwrap();
    jobs.iter().find(|one| one["name"] == format!("cron/{job}")).unwrap_or(&Value::Null)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_now_once_for_each_request_although_its_leader_goes() {
    use std::sync::{Arc, Mutex};

    use palisade_cron::{Cron, Job, Tick};
    const SECOND: Duration = Duration::from_secs(1);

    let world = World::with(3, "app:", acting()).await;
    let run = |job: &str| {
        let (id, reason) = (format!("cron/{job}"), "the file came late");
        json!({ "action": "run-now", "job": id, "confirm": id, "reason": reason })
    };
    let runs = Arc::<Mutex<Vec<(i64, u32)>>>::default();
    let process = |job: Job| {
        let (redlock, runs) = (world.client(), Arc::clone(&runs));
        let cron = Cron::new(&redlock);
        let runner = cron.clone();
        let task = tokio::spawn(async move {
            let run = runner.run(job, |tick: Tick| {
                let runs = Arc::clone(&runs);
                async move {
                    assert!(tick.is_requested(), "{tick:?}");
                    tokio::time::sleep(SECOND / 2).await;
                    runs.lock().unwrap().push((tick.unix_seconds(), tick.attempt()));
                    Ok::<_, Failed>(())
                }
            });
            drop(run.await);
        });
        (cron, redlock, task)
    };
    let rare = |name: &str| Job::new(name, "0 0 29 2 *");
    let (_, silent, _) = process(rare("silent"));
    let mut two = vec![process(rare("report").on_request()), process(rare("report").on_request())];
    world
        .until("cron", |page| {
            found(page, "report")["run_now"]["possible"] == true
                && found(page, "silent")["run_now"]["possible"] == false
        })
        .await;
    let refused = world.act(&run("silent"), &[]).await.json();
    assert_eq!(refused["result"], "refused", "{refused}");
    assert!(refused["text"].as_str().unwrap().contains("does not allow requests"), "{refused}");
    // The leader that allows no requests ends, so one of the two other processes leads now.
    drop(silent.close(2 * SECOND).await);

    for n in 1..=2 {
        let done = world.act(&run("report"), &[]).await.json();
        assert_eq!(done["result"], "done", "{done}");
        let again = world.act(&run("report"), &[]).await.json();
        // Within the same ten seconds, the second request counts as the first one: `unchanged`. If
        // the next ten seconds have begun, it is a new request: `done`.
        assert!(again["result"] == "done" || again["result"] == "unchanged", "{again}");
        // Stop the leader. In the first round it closes its handle, and in the second round its
        // task is aborted. Then the other process must continue. On a busy machine it is possible
        // that there is no leader for a moment.
        let leads = async {
            loop {
                match two.iter().position(|(cron, _, _)| cron.term().is_some()) {
                    Some(at) => break at,
                    None => tokio::time::sleep(SECOND / 10).await,
                }
            }
        };
        let at = tokio::time::timeout(common::SOON, leads).await.expect("one leads");
        let (_, redlock, task) = &mut two[at];
        if n == 1 {
            drop(redlock.close(2 * SECOND).await);
        } else {
            task.abort();
        }
        tokio::time::sleep(15 * SECOND).await;
        two.push(process(rare("report").on_request()));
    }
    let runs = runs.lock().unwrap().clone();
    let mut once: Vec<i64> = runs.iter().map(|(at, _)| at.div_euclid(10)).collect();
    once.sort_unstable();
    assert!(once.windows(2).all(|w| w[0] < w[1]) && (2..=4).contains(&once.len()), "{runs:?}");
    let shown = world
        .until("cron", |page| {
            let job = found(page, "report");
            job["last"].as_array().unwrap().len() == runs.len()
                && job["last"].as_array().unwrap().iter().all(|tick| tick["end"] == "done")
        })
        .await;
    let tick = &found(&shown, "report")["last"][0];
    assert_eq!(tick["requested"]["by"], "local", "{tick}");
    assert_eq!(tick["requested"]["reason"], "the file came late");
    let lines = world.get("audit").await;
    let last = &lines["lines"].as_array().unwrap()[0];
    assert_eq!((&last["action"], &last["target"]), (&json!("run-now"), &json!("cron/report")));
    for (_, _, task) in two {
        task.abort();
    }
}
