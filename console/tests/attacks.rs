//! Attacks on the console. Each attack is refused, and the audit log contains what was tried.

mod common;

use std::time::{Duration, Instant};

use common::{Attack, World, answer, request};
use palisade::{Failed, Redlock};
use palisade_console::{Console, Options, Tokens};
use palisade_ops::Deployment;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

const READ: &str = "read-0123456789abcdef";
const ACT: &str = "act-0123456789abcdef";

fn acting() -> Options {
    let mut options = Options::default();
    options.allow_actions = true;
    options
}

fn with_tokens() -> Options {
    let mut options = acting();
    options.tokens = Tokens { read: Some(READ.to_owned()), act: Some(ACT.to_owned()) };
    options
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

fn force(name: &str) -> Value {
    json!({ "action": "force-release", "name": name, "confirm": name, "reason": "it hangs" })
}

async fn is_held(redlock: &Redlock, name: &str, owner: &str) -> bool {
    let seen = redlock.mutex(name).build().unwrap().inspect().await.unwrap();
    seen.holder().is_some_and(|holder| holder.owner == owner)
}

async fn owner(redlock: &Redlock, name: &str) -> String {
    let seen = redlock.mutex(name).build().unwrap().inspect().await.unwrap();
    seen.holder().unwrap().owner
}

#[tokio::test(flavor = "multi_thread")]
async fn another_sites_page_can_neither_act_nor_read() {
    let _attack = Attack::begin();
    let world = World::with(1, "", acting()).await;
    let client = world.client();
    let _held = client.mutex("deploy").build().unwrap().acquire().await.unwrap();
    let holder = owner(&client, "deploy").await;
    let json = ("Content-Type", "application/json");
    let own = ("X-Palisade-Console", "1");
    let body = force("deploy").to_string();
    for headers in [
        &[json, own, ("Origin", "https://evil.example")][..],
        &[json, own, ("Origin", "null")],
        &[json, own, ("Sec-Fetch-Site", "cross-site")],
        &[json, own, ("Sec-Fetch-Site", "same-site")],
        // A form on another site's page cannot send the console's own header.
        &[json],
        &[("Content-Type", "text/plain"), ("Origin", "https://evil.example")],
        // A browser adds `Authorization: Basic` by itself.
        &[json, ("Authorization", "Basic YTpi")],
    ] {
        let refused = world.request("POST", "actions", headers, &body).await;
        assert_eq!((refused.status, &*refused.code()), (403, "wrong_origin"), "{headers:?}");
    }
    let plain =
        world.request("POST", "actions", &[("Content-Type", "text/plain"), own], &body).await;
    assert_eq!(plain.status, 415);
    let read = world.request("GET", "overview", &[("Sec-Fetch-Site", "cross-site")], "").await;
    assert_eq!(read.status, 403);
    assert!(read.header("access-control-allow-origin").is_none());
    let preflight =
        world.request("OPTIONS", "actions", &[("Origin", "https://evil.example")], "").await;
    assert_eq!(preflight.status, 403);
    assert!(is_held(&client, "deploy", &holder).await);
    // The console's own page may act.
    let origin = format!("http://{}", world.at);
    let ours = [("Origin", &*origin), ("Sec-Fetch-Site", "same-origin")];
    let done = world.act(&force("deploy"), &ours).await;
    assert_eq!(done.json()["result"], "done", "{}", done.body);
    assert!(!is_held(&client, "deploy", &holder).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_resolves_to_the_console_is_refused() {
    let _attack = Attack::begin();
    let mut options = acting();
    options.hosts = vec!["console.example.com".to_owned()];
    let world = World::with(1, "", options).await;
    for (host, status) in [
        ("evil.example", 421),
        ("evil.example:80", 421),
        ("localhost.evil.example", 421),
        ("", 421),
        ("localhost", 200),
        ("127.0.0.1:7420", 200),
        ("[::1]:7420", 200),
        ("Console.Example.com", 200),
    ] {
        for path in ["/", "/api/v1/session", "/app.js"] {
            let answer = request(world.at, "GET", path, &[("Host", host)], "").await;
            assert_eq!(answer.status, status, "{host:?} {path}");
        }
    }
    let mut stream = TcpStream::connect(world.at).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").await.unwrap();
    let none = answer(&mut stream).await;
    assert!([400, 421].contains(&none.status), "{none:?}");
    let two = [("Host", "localhost"), ("Host", "evil.example")];
    let two = request(world.at, "GET", "/", &two, "").await;
    assert!([400, 421].contains(&two.status), "{two:?}");
    let absolute = request(world.at, "GET", "http://evil.example/", &[], "").await;
    assert_eq!(absolute.status, 421);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_nothing_is_shown_and_the_read_role_does_not_act() {
    let _attack = Attack::begin();
    let world = World::with(1, "", with_tokens()).await;
    let client = world.client();
    let _held = client.mutex("deploy").build().unwrap().acquire().await.unwrap();
    let holder = owner(&client, "deploy").await;
    for path in [
        "overview",
        "locks",
        "lock?name=deploy",
        "elections",
        "cron",
        "keys",
        "nodes",
        "failovers",
        "incidents",
        "happened",
        "audit",
        "events?topics=locks",
    ] {
        let refused = world.request("GET", path, &[], "").await;
        assert_eq!((refused.status, &*refused.code()), (401, "no_token"), "{path}");
        let wrong = bearer("act-0123456789abcdeg");
        let refused = world.request("GET", path, &[("Authorization", &wrong)], "").await;
        assert_eq!((refused.status, &*refused.code()), (401, "bad_token"), "{path}");
    }
    let stranger = world.get("session").await;
    assert_eq!(
        (&stranger["signed_in"], &stranger["login"], &stranger["prefix"]),
        (&json!(false), &json!("token"), &Value::Null)
    );
    let refused = world.act(&force("deploy"), &[]).await;
    assert_eq!((refused.status, &*refused.code()), (401, "no_token"));

    let read = bearer(READ);
    let refused = world.act(&force("deploy"), &[("Authorization", &read)]).await;
    assert_eq!((refused.status, &*refused.code()), (403, "role"));
    assert!(is_held(&client, "deploy", &holder).await);
    let lines = world.audit.lock().unwrap().clone();
    let [stranger, line] = &lines[..] else { panic!("{lines:#?}") };
    assert_eq!((&*stranger.by, stranger.role, stranger.result), ("unknown", "none", "refused"));
    assert_eq!((&*line.by, line.role, line.result), ("read token", "read", "refused"));
    assert_eq!(
        (&*line.action, &*line.target, &*line.reason),
        ("force-release", "deploy", "it hangs")
    );
    assert!(line.from.starts_with("127.0.0.1:"), "{}", line.from);

    // A session has the role of its token, and scripts cannot read its cookie.
    let own = [("X-Palisade-Console", "1"), ("Content-Type", "application/json")];
    let sign_in = |token: &str| json!({ "token": token }).to_string();
    let bad = world.request("POST", "session", &own, &sign_in("wrong")).await;
    assert_eq!((bad.status, &*bad.code()), (401, "bad_token"));
    let signed = world.request("POST", "session", &own, &sign_in(READ)).await;
    assert_eq!(signed.status, 204);
    let cookie = signed.header("set-cookie").unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    assert!(!cookie.contains(READ));
    let cookie = cookie.split(';').next().unwrap();
    let session = world.request("GET", "session", &[("Cookie", cookie)], "").await.json();
    assert_eq!((&session["role"], &session["actions"]), (&json!("read"), &json!(false)));
    let refused = world.act(&force("deploy"), &[("Cookie", cookie)]).await;
    assert_eq!(refused.code(), "role");
    let mut stream = TcpStream::connect(world.at).await.unwrap();
    let head = format!(
        "GET /api/v1/events?topics=locks HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // Wait until the stream has begun: it must begin before the session ends.
    stream.readable().await.unwrap();
    let out = [own[0], own[1], ("Cookie", cookie)];
    assert_eq!(world.request("DELETE", "session", &out, "").await.status, 204);
    let events = answer(&mut stream).await;
    assert!(events.body.contains("event: hello"), "the stream ends with its session: {events:?}");
    let gone = world.request("GET", "locks", &[("Cookie", cookie)], "").await;
    assert_eq!(gone.status, 401);

    let act = bearer(ACT);
    let done = world.act(&force("deploy"), &[("Authorization", &act)]).await;
    assert_eq!(done.json()["result"], "done", "{}", done.body);
    let last = world.audit.lock().unwrap().last().unwrap().clone();
    assert_eq!((&*last.by, last.result), ("act token", "done"));
    let lines = world.audit.lock().unwrap().clone();
    let begun = lines.iter().find(|line| line.result == "begun").unwrap();
    assert_eq!((begun.id, &*begun.target), (last.id, "deploy"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_console_without_permission_acts_for_no_one() {
    let _attack = Attack::begin();
    let world = World::new(1).await;
    let client = world.client();
    let _held = client.mutex("deploy").build().unwrap().acquire().await.unwrap();
    let holder = owner(&client, "deploy").await;
    let keys = client.idempotency("orders").at_most_once().build().unwrap();
    let _ = keys.key("1").run(|_| async { Ok::<_, Failed>(7) }).await.unwrap();
    let key = |action: &str| {
        json!({ "action": action, "namespace": "orders", "key": "1", "confirm": "1",
                "reason": "x" })
    };
    let mut resolve = key("resolve");
    resolve["value"] = json!(8);
    let decide = json!({ "action": "decide", "namespace": "orders", "loss": "20261123-140321.417",
                         "decision": "run", "confirm": "20261123-140321.417", "reason": "x" });
    let step_down = json!({ "action": "step-down", "name": "e", "confirm": "e", "reason": "x" });
    let run_now =
        json!({ "action": "run-now", "job": "cron/j", "confirm": "cron/j", "reason": "x" });
    let all = [
        force("deploy"),
        step_down,
        key("rerun"),
        key("release"),
        key("purge"),
        resolve,
        decide,
        run_now,
    ];
    for body in &all {
        let refused = world.act(body, &[]).await;
        assert_eq!((refused.status, &*refused.code()), (403, "read_only"), "{body}");
    }
    assert_eq!(world.audit.lock().unwrap().len(), all.len());
    assert!(is_held(&client, "deploy", &holder).await);
    assert_eq!(world.get("session").await["actions"], false);
    let state = keys.key("1").lookup::<i32>().await.unwrap();
    assert!(matches!(state, palisade::idempotency::Status::Stored(7)), "{state:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_needs_a_reason_and_the_typed_name() {
    let _attack = Attack::begin();
    let world = World::with(1, "", acting()).await;
    let client = world.client();
    let keys = client.idempotency("orders").at_most_once().build().unwrap();
    let never = keys.key("7").run(|_| std::future::pending::<Result<i32, Failed>>());
    drop(tokio::time::timeout(Duration::from_millis(300), never).await);
    let body = |confirm: &str, reason: &str| {
        json!({ "action": "resolve", "namespace": "orders", "key": "7", "value": 9,
                "confirm": confirm, "reason": reason })
    };
    let long = "x".repeat(600);
    for (confirm, reason, code) in [
        ("8", "seen", "confirm"),
        ("", "seen", "confirm"),
        ("7", "", "reason"),
        ("7", "  ", "reason"),
        ("7", "a\nb", "reason"),
        ("7", &long, "reason"),
    ] {
        let refused = world.act(&body(confirm, reason), &[]).await;
        assert_eq!((refused.status, &*refused.code()), (400, code), "{confirm:?} {reason:?}");
    }
    let odd =
        world.act(&json!({ "action": "drop-tables", "confirm": "", "reason": "x" }), &[]).await;
    assert_eq!(odd.status, 400);
    let last = world.audit.lock().unwrap().last().unwrap().clone();
    assert_eq!((&*last.by, last.result), ("local", "refused"));
    assert!(last.text.contains("drop-tables"), "{}", last.text);
    // The action is refused until the lease of the dropped claim has ended.
    let done = loop {
        let answer = world.act(&body("7", "seen on paper"), &[]).await.json();
        if answer["result"] != "refused" {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert_eq!(done["result"], "done", "{done}");
    let stored = keys.key("7").lookup::<i32>().await.unwrap();
    assert!(matches!(stored, palisade::idempotency::Status::Stored(9)), "{stored:?}");
    let mut other = body("7", "once more");
    other["value"] = json!(10);
    let again = world.act(&other, &[]).await.json();
    assert_eq!(again["result"], "unchanged");
    let lines = world.get("audit").await;
    assert_eq!(
        (&lines["lines"][0]["result"], &lines["lines"][1]["result"]),
        (&json!("unchanged"), &json!("done"))
    );
    let purge = json!({ "action": "purge", "namespace": "orders", "key": "7", "confirm": "7",
                        "reason": "x" });
    assert_eq!(world.act(&purge, &[]).await.json()["result"], "done");
    let gone = keys.key("7").lookup::<i32>().await.unwrap();
    assert!(!matches!(gone, palisade::idempotency::Status::Stored(_)), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_do_not_keep_others_out() {
    let _attack = Attack::begin();
    let world = World::new(1).await;
    // The test may be allowed fewer than ten thousand open files, so it closes old connections.
    let (mut idle, mut made) = (Vec::new(), 0_u32);
    for _ in 0..10_000 {
        match TcpStream::connect(world.at).await {
            Ok(stream) => idle.push(stream),
            // No file is free: close the oldest connections, as the console does.
            Err(_) => idle.drain(..idle.len().min(200)).for_each(drop),
        }
        made += 1;
        if idle.len() > 700 {
            idle.drain(..200).for_each(drop);
        }
        if made % 1_000 == 0 {
            let began = Instant::now();
            assert_eq!(world.get("session").await["signed_in"], true);
            let ms = began.elapsed().as_secs_f64() * 1e3;
            common::measured("answered_ms_after_idle_connections", (ms * 10.0).round() / 10.0);
        }
    }
    assert_eq!(made, 10_000);
    common::measured("idle_connections", f64::from(made));
    assert_eq!(request(world.at, "GET", "/", &[], "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_and_large_heads_end() {
    let _attack = Attack::begin();
    let world = World::new(1).await;
    let mut slow = TcpStream::connect(world.at).await.unwrap();
    let drip = async {
        let mut n = 0_u32;
        // The write fails after the console has closed the connection.
        while slow.write_all(b"GET /"[..1].as_ref()).await.is_ok() && n < 600 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            n += 1;
        }
        n
    };
    let dripped = tokio::time::timeout(Duration::from_secs(60), drip).await.unwrap();
    assert!(dripped < 600, "the connection stayed open");
    let large = "x".repeat(64 << 10);
    let refused = request(world.at, "GET", "/", &[("X-Large", &large)], "").await;
    assert!([0, 431].contains(&refused.status), "{}", refused.status);
    let many: Vec<(String, &str)> = (0..200).map(|n| (format!("X-{n}"), "1")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (&**name, *value)).collect();
    let refused = request(world.at, "GET", "/", &many, "").await;
    assert!([0, 431].contains(&refused.status), "{}", refused.status);
    assert_eq!(request(world.at, "GET", "/", &[], "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_a_gibibyte_is_not_read() {
    let _attack = Attack::begin();
    let world = World::with(1, "", acting()).await;
    let head = |length: &str| {
        format!(
            "POST /api/v1/actions HTTP/1.1\r\nHost: localhost\r\nX-Palisade-Console: 1\r\n\
             Content-Type: application/json\r\nConnection: close\r\n{length}\r\n\r\n"
        )
    };
    let mut declared = TcpStream::connect(world.at).await.unwrap();
    declared.write_all(head("Content-Length: 1073741824").as_bytes()).await.unwrap();
    assert_eq!(answer(&mut declared).await.status, 413);
    let mut chunked = TcpStream::connect(world.at).await.unwrap();
    chunked.write_all(head("Transfer-Encoding: chunked").as_bytes()).await.unwrap();
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(1 << 16));
    let mut sent = 0_usize;
    for _ in 0..16_384 {
        if chunked.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
        sent += 1 << 16;
    }
    common::measured("bytes_sent_of_a_gibibyte", sent as f64);
    assert!(sent < 64 << 20, "{sent} bytes were read");
    assert_eq!(request(world.at, "GET", "/", &[], "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_values_with_markup_stay_text() {
    let _attack = Attack::begin();
    let mut options = acting();
    options.show_results = true;
    let world = World::with(1, "", options).await;
    let client = world.client();
    let name = "<script>alert('1')</script>\"&\u{202e}x";
    let _held = client.mutex(name).build().unwrap().acquire().await.unwrap();
    let election = client.election("<img src=x onerror=alert(1)>").build().unwrap();
    let _leads = election.campaign("</script>\u{1b}[31m\r\nevent: closing\n\n<b>").await.unwrap();
    let keys = client.idempotency("<i>").at_most_once().build().unwrap();
    let value = "</script><script>alert(2)</script>\u{0}\u{1b}\n\ndata: x";
    let _ = keys.key("k").run(|_| async { Ok::<_, Failed>(value.to_owned()) }).await.unwrap();
    let page = world.until("locks", |page| page["total"] == 1).await;
    assert_eq!(page["locks"][0]["name"], name);
    let raw = world.request("GET", "locks", &[], "").await;
    assert_eq!(raw.header("content-type").unwrap(), "application/json");
    assert_eq!(raw.header("x-content-type-options").unwrap(), "nosniff");
    let page = world.until("elections", |page| page["elections"][0]["leader"].is_object()).await;
    let shown = page["elections"][0]["leader"]["value"].as_str().unwrap();
    assert!(!shown.chars().any(char::is_control), "{shown:?}");
    world.until("keys", |page| page["keys"][0]["state"] == "done").await;
    let one = world.get("key?namespace=%3Ci%3E&key=k").await;
    assert_eq!(one["result"]["value"], value);
    // An event is one line of data, no matter which characters a name contains.
    let mut events = common::Events::open(world.at, "elections").await;
    let sent = events.next("elections").await;
    assert_eq!(sent["elections"][0]["name"], "<img src=x onerror=alert(1)>");
    let index = request(world.at, "GET", "/", &[], "").await;
    let policy = index.header("content-security-policy").unwrap();
    for part in
        ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"]
    {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"));
    assert_eq!(index.header("x-frame-options").unwrap(), "DENY");
    let bad = world.request("GET", "lock?name=a%0Ab", &[], "").await;
    assert_eq!((bad.status, &*bad.code()), (400, "bad_request"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_on_any_page() {
    let _attack = Attack::begin();
    let server = common::server::Server::start(&["--requirepass", "S3cret-pass"]);
    let mut settings = palisade::Settings::new([server.url()]);
    settings.password = Some("S3cret-pass".to_owned());
    let deployment = Deployment::of(settings);
    let redlock = deployment.handle().unwrap().build().unwrap();
    let console = Console::bind(redlock, deployment, with_tokens()).await.unwrap();
    let at = console.address();
    let at = at.trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
    let run = tokio::spawn(console.run(std::future::pending()));
    let act = bearer(ACT);
    for page in [
        "session",
        "overview",
        "locks",
        "elections",
        "cron",
        "keys",
        "nodes",
        "failovers",
        "incidents",
        "happened",
        "audit",
    ] {
        let path = format!("/api/v1/{page}");
        let answer = request(at, "GET", &path, &[("Authorization", &act)], "").await;
        for secret in ["S3cret", READ, ACT] {
            assert!(!answer.body.contains(secret) && !answer.head.contains(secret), "{answer:?}");
        }
    }
    run.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_with_slow_bodies_do_not_end_the_streams_of_visitors() {
    let world = World::with(1, "", with_tokens()).await;
    let mut stream = TcpStream::connect(world.at).await.unwrap();
    let head = format!(
        "GET /api/v1/events?topics=locks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \
         {READ}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.readable().await.unwrap();
    let slow = "POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nX-Palisade-Console: 1\r\n\
                Content-Type: application/json\r\nContent-Length: 100\r\nConnection: close\r\n\r\n";
    let mut strangers = Vec::new();
    for _ in 0..300 {
        let mut stranger = TcpStream::connect(world.at).await.unwrap();
        stranger.write_all(slow.as_bytes()).await.unwrap();
        strangers.push(stranger);
    }
    let late = answer(strangers.last_mut().unwrap()).await;
    assert_eq!((late.status, &*late.code()), (408, "late"), "the body is not awaited for long");
    assert_eq!(world.get("session").await["signed_in"], false);
    let mut seen = vec![0; 1 << 20];
    let read = async {
        let mut text = String::new();
        while text.matches("event: tick").count() < 2 {
            let n = tokio::io::AsyncReadExt::read(&mut stream, &mut seen).await.unwrap();
            assert!(n > 0, "the stream was ended: {text}");
            text.push_str(&String::from_utf8_lossy(&seen[..n]));
        }
    };
    tokio::time::timeout(common::SOON, read).await.unwrap();
}
