//! Runs the demo on each broker with fewer invoices. The last line of the demo's output must show
//! that no invoice was lost or booked twice.

use std::process::{Command, Output};

use serde_json::{Value, json};

/// Text of an assertion that can fail in librdkafka's mock cluster. The mock cluster names members
/// by memory addresses and may use an address again. If the machine was frozen for a while, a
/// removed member may return under a newer member's name. The consumers do not cause this failure,
/// so the trial is repeated.
const MOCK_ABORTED: &str = "rd_kafka_mock_cgrp_classic_member_add: Assertion `!member->resp'";
const TRIALS: usize = 3;

fn trial(args: &[&str]) -> Output {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_broker-demo"));
    demo.args(args).output().expect("the demo can be run")
}

/// Runs the demo and returns the last line of its output. The demo itself ends its servers.
fn demo(args: &[&str]) -> Value {
    let mut out = trial(args);
    for _ in 1..TRIALS {
        if !String::from_utf8_lossy(&out.stderr).contains(MOCK_ABORTED) {
            break;
        }
        println!("the mock cluster aborted; once more");
        out = trial(args);
    }
    let (said, erred) =
        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    println!("{said}");
    assert!(out.status.success(), "{}\n{said}\n{erred}", out.status);
    let last = said.trim_end().lines().last().expect("a last line");
    serde_json::from_str(last).expect("the last line is JSON")
}

fn run(broker: &str) {
    let last = demo(&[broker, "--limit", "400"]);
    let delivered = last["delivered"].as_u64().expect("a number");
    assert!(delivered > 400, "{last}");
    let want = json!({"broker": broker, "delivered": delivered, "executed": 400, "doubles": 0,
        "lost": 0, "dead_letters": 10});
    assert_eq!(last, want);
}

/// Runs the demo's command in which consumers die at each crash point, a step of the handling of a
/// message. After each death the demo compares the booked, stored and remaining messages with the
/// expected counts. The demo fails if a consumer does not die at its crash point.
fn killed_at_each_crash_point(broker: &str) {
    let last = demo(&["crash-points", broker]);
    let killed = json!({"fetched": 1, "claimed": 1, "effect": 1, "completed": 1,
        "acknowledged": 1});
    let want = json!({"broker": broker, "killed": killed, "executed": 30, "doubles": 0, "lost": 0,
        "dead_letters": 0});
    assert_eq!(last, want);
}

#[test]
fn rabbitmq() {
    run("rabbitmq");
}

#[test]
fn redis_streams() {
    run("streams");
}

#[test]
fn nats_jetstream() {
    run("nats");
}

#[test]
fn kafka() {
    run("kafka");
}

#[test]
fn rabbitmq_consumers_killed_at_each_crash_point() {
    killed_at_each_crash_point("rabbitmq");
}

#[test]
fn redis_streams_consumers_killed_at_each_crash_point() {
    killed_at_each_crash_point("streams");
}

#[test]
fn nats_jetstream_consumers_killed_at_each_crash_point() {
    killed_at_each_crash_point("nats");
}

#[test]
fn kafka_consumers_killed_at_each_crash_point() {
    killed_at_each_crash_point("kafka");
}
