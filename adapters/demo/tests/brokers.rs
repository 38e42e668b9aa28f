//! Each broker's demo with fewer invoices: what it prints last is what was promised.

use std::process::Command;

use serde_json::{Value, json};

/// Runs the demo; the program takes its servers down itself, and they end with it.
fn run(broker: &str) {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_broker-demo"));
    let out = demo.args([broker, "--limit", "400"]).output().expect("the demo can be run");
    let (said, erred) =
        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{}\n{said}\n{erred}", out.status);
    let last = said.trim_end().lines().last().expect("a last line");
    let last: Value = serde_json::from_str(last).expect("the last line is JSON");
    let delivered = last["delivered"].as_u64().expect("a number");
    assert!(delivered > 400, "{last}");
    let want = json!({"broker": broker, "delivered": delivered, "executed": 400, "doubles": 0,
        "lost": 0, "dead_letters": 10});
    assert_eq!(last, want, "{said}");
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

/// On librdkafka's mock cluster.
#[test]
fn kafka() {
    run("kafka");
}
