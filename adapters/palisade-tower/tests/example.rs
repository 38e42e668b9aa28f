//! A test that runs the endpoint of the example `orders` and sends requests to it.

use palisade::{MemoryNode, Redlock};

use crate::lab::{got, serve};

#[path = "../examples/orders.rs"]
#[allow(dead_code, reason = "its `main` is not called here")]
mod orders;

#[tokio::test]
async fn the_example_takes_each_order_once() {
    let redlock = Redlock::builder().node(MemoryNode::new()).build().expect("settings");
    let ledger = orders::Ledger::default();
    let (app, once) = orders::app(&redlock, ledger.clone()).expect("settings");
    let url = format!("http://{}/orders", serve(app).await);
    let order = |secret: &str, key: &str, item: &str| {
        let request = reqwest::Client::new().post(&url).bearer_auth(secret);
        got(request.header("idempotency-key", key).json(&serde_json::json!({ "item": item })))
    };
    let first = order("alices-secret", "\"8e03978e\"", "tea").await;
    let again = order("alices-secret", "\"8e03978e\"", "tea").await;
    assert_eq!((first.status, again.status, again.is_replayed()), (201, 201, true));
    assert_eq!(first.text, again.text);
    assert_eq!(order("alices-secret", "\"8e03978e\"", "milk").await.status, 422);
    assert_eq!(order("nobodys-secret", "\"8e03978e\"", "tea").await.status, 401);
    let bobs = order("bobs-secret", "\"8e03978e\"", "tea").await;
    assert_eq!((bobs.status, bobs.is_replayed()), (201, false));
    assert_eq!(*ledger.lock().expect("no panic"), ["tea", "tea"]);
    assert_eq!(once.finish(std::time::Duration::from_secs(5)).await, 0);
}
