//! A planned handover that is stopped or dropped during or after its last step, or whose last step
//! is late. `palisade` must not report that a handover failed which was done.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use palisade_ops::{HandedOver, Handover, init};

use super::handover::{DURABLE, fresh, on, on_group};
use super::support::proxy::Proxy;
use super::*;

#[test]
fn the_program_that_is_stopped_during_the_last_step_does_not_say_that_it_failed() {
    let mut server = Server::start(DURABLE);
    assert_eq!(palisade(&["init", "--new", "--node", &server.url()]).status.code(), Some(0));
    let proxy = Proxy::to(&server.addr());
    // The last step of the handover is done. The proxy loses the reply to the last step and all
    // later replies.
    proxy.edit(loses(GOES_ON, true, || ()));
    let tool = Command::new(env!("CARGO_BIN_EXE_palisade"))
        .args(["handover", "--node", &format!("redis://{}", proxy.addr())])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mark =
        |server: &Server, what: &str| server.cli(&["GET", "palisade:generation"]).contains(what);
    let until = |what: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !what() {
            assert!(begun.elapsed() < SOON, "in time");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until(&|| mark(&server, " n c"));
    server.restart();
    until(&|| mark(&server, " s"));
    let kill = Command::new("kill").args(["-TERM", &tool.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let out = tool.wait_with_output().unwrap();
    assert!(mark(&server, " s"), "it goes on");
    assert_eq!(out.status.code(), Some(69), "{}", words(&out));
    assert!(words(&out).contains("the result of the handover is unknown"), "{}", words(&out));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handover_that_is_given_up_after_its_last_step_is_said_to_be_done() {
    let groups = Groups::up_with(1, 5_000, 2, &[]);
    drop(fresh(&on_group(&groups), "before").await);
    let handover = Handover::new(group(&groups));
    let goes_on = std::sync::Mutex::new(None);
    let (tx, rx) = tokio::sync::oneshot::channel();
    *goes_on.lock().unwrap() = Some(tx);
    let tell = |step: &str| {
        if step.contains("goes on where") {
            goes_on.lock().unwrap().take().unwrap().send(()).unwrap();
        }
    };
    tokio::select! {
        biased;
        _ = rx => {}
        done = handover.group(tell) => panic!("{done:?}"),
    }
    let done = handover.give_up().await;
    assert!(matches!(done, Some(HandedOver::Done { .. })), "{done:?}");
}

/// Between the look at the server and the last step the closing ends by the server's own clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_last_step_that_comes_too_late_lets_no_server_go_on() {
    let mut server = Server::start(DURABLE);
    assert!(init(&lone(&server), "").await.unwrap().is_done());
    drop(fresh(&on(&server), "before").await);
    let (closed_for, held_up) = (Duration::from_secs(7), 6_000_000_u64);
    let is_back = Arc::new(AtomicBool::new(false));
    let proxy = Proxy::to(&server.addr());
    proxy.edit({
        let is_back = Arc::clone(&is_back);
        // What the look shows is of some seconds ago: status, then the clock in µs.
        let head: &[u8] = b"$2\r\nok\r\n$16\r\n";
        move |bytes: &mut Vec<u8>| {
            let found = bytes.windows(head.len()).position(|part| part == head);
            let Some(at) = found.filter(|_| is_back.load(SeqCst)).map(|at| at + head.len()) else {
                return;
            };
            let shown: u64 = String::from_utf8_lossy(&bytes[at..at + 16]).parse().expect("a clock");
            bytes[at..at + 16].copy_from_slice((shown - held_up).to_string().as_bytes());
        }
    });
    let handover = Handover::new(Deployment::new().node(format!("redis://{}", proxy.addr())))
        .clock_error(Duration::from_millis(50))
        .closed_for(closed_for);
    let restart = async {
        server.restart();
        tokio::time::sleep(closed_for).await;
        is_back.store(true, SeqCst);
        Ok(())
    };
    let done = handover.lone(restart, |_| ()).await.unwrap();
    let HandedOver::FellBack(why) = &done else { panic!("{done}") };
    assert!(why.contains("took longer") && why.contains("it is open again"), "{why}");
    let marker = server.cli(&["GET", "palisade:generation"]);
    assert!(!marker.contains(" s"), "{marker}");
}
