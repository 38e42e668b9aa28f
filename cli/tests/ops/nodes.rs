//! The command `palisade inspect-node`: it prints the marker of a server, the key
//! `palisade:generation` with the history of its data, before and after a loss of data.

use palisade::{RedisNode, Redlock};
use serde_json::Value;

use super::*;

async fn lock(server: &Server) {
    let node = RedisNode::new(server.url()).unwrap();
    let redlock = Redlock::builder().node(node).ttl(Duration::from_secs(5)).build().unwrap();
    // The server refuses the lock after a loss of data, so the result is ignored. The request
    // itself makes the server record the loss in the key `palisade:generation`.
    let _ = redlock.mutex("job").build().unwrap().try_acquire().await;
}

fn data(server: &Server) -> Value {
    let out = palisade(&["inspect-node", "--json", "--node", &server.url()]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    let all: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(all["nodes"][0]["node"], format!("node {}", server.addr()));
    all["nodes"][0]["data"].clone()
}

#[tokio::test]
async fn a_node_is_shown_with_its_history_and_its_losses() {
    let mut server = Server::start(&["--appendonly", "yes"]);
    assert_eq!(data(&server), Value::Null);
    palisade(&["init", "--new", "--node", &server.url()]);
    lock(&server).await;
    let marker = server.cli(&["GET", "palisade:generation"]);
    let new = data(&server);
    assert_eq!((&new["since_ms"], &new["losses"]), (&Value::Null, &Value::Array(Vec::new())));
    assert_eq!(new["history"], new["history_now"]);
    let note = new["note_age_ms"].as_u64().unwrap();
    assert!(note < 20_000, "{new}");
    assert_eq!(server.cli(&["GET", "palisade:generation"]), marker, "it reads only");

    server.restart();
    let before = data(&server);
    assert_eq!(before["history"], new["history"]);
    assert_ne!(before["history"], before["history_now"], "no client has seen it since");
    lock(&server).await;
    let after = data(&server);
    let loss = &after["losses"][0];
    let (from, to) = (loss["from_ms"].as_u64().unwrap(), loss["to_ms"].as_u64().unwrap());
    let marker = server.cli(&["GET", "palisade:generation"]);
    let is_listed =
        marker.contains(&format!(" {from:013}-")) && marker.ends_with(&format!("-{to:013}"));
    assert!(is_listed, "{marker}: {loss}");
    assert_eq!(loss["at_most_ms"].as_u64().unwrap(), to - from + 1);
    assert_eq!(after["quarantine_until_ms"].as_u64().unwrap(), to + 5_000);
    let left = after["quarantine_left_ms"].as_u64().unwrap();
    assert!(left > 0 && left <= 5_000, "{after}");
    let out = palisade(&["inspect-node", "--node", &server.url()]);
    let shown = words(&out);
    assert!(shown.contains(loss["text"].as_str().unwrap()), "{shown}");
    assert!(shown.contains("with its earlier data") && shown.contains("UTC"), "{shown}");

    drop(server);
    let nobody = format!("redis://127.0.0.1:{}", support::server::free_port());
    let out = palisade(&["inspect-node", "--node", &nobody]);
    assert_eq!(out.status.code(), Some(69), "{}", words(&out));
    assert!(words(&out).contains("not read"), "{}", words(&out));
}
