//! Tests with clients that close the connection before they receive the response.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::lab::{Shop, Wish, keys, layer, memory, until};

const SLOW: u64 = 600;

fn slow() -> Wish {
    Wish { sleep_ms: SLOW, ..Wish::default() }
}

async fn hang_up(shop: &Shop, key: &str, wish: &Wish, after: Duration) {
    let body = serde_json::to_string(wish).expect("a form");
    let mut tcp = TcpStream::connect(shop.address).await.expect("a connection");
    let head = format!(
        "POST /orders HTTP/1.1\r\nhost: shop\r\nx-user: alice\r\nidempotency-key: {key}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    tcp.write_all((head + &body).as_bytes()).await.expect("it reads");
    tokio::time::sleep(after).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_gets_the_response_when_it_asks_again() {
    let shop = Shop::new().await;
    for (i, after) in [0, 50, 200, 500].into_iter().enumerate() {
        let key = format!("k-{i}");
        hang_up(&shop, &key, &slow(), Duration::from_millis(after)).await;
        let name = format!("alice:{key}");
        // If the connection closed at once (`after` is 0), the server has perhaps not read the
        // first request. Then this request is not a repetition.
        tokio::time::sleep(Duration::from_millis(2 * SLOW)).await;
        let again = shop.send(&key, &slow()).await;
        assert_eq!(again.status, 201, "{again:?}");
        assert!(again.is_replayed() || after == 0, "{after}: {again:?}");
        assert_eq!(shop.ledger.of(&name), 1, "{after}");
    }
}

#[tokio::test]
async fn retries_of_an_impatient_client_find_one_effect() {
    let shop = Shop::new().await;
    let client = reqwest::Client::builder().timeout(Duration::from_millis(150)).build();
    let client = client.expect("a client");
    let mut answers = Vec::new();
    for _ in 0..40 {
        let request = shop.order("k", &slow()).build().expect("a request");
        if let Ok(response) = client.execute(request).await {
            answers.push(response.status().as_u16());
            if response.status() == 201 {
                assert_eq!(response.headers()["idempotent-replayed"], "true");
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(answers.pop(), Some(201), "{answers:?}");
    assert!(answers.iter().all(|status| *status == 409), "{answers:?}");
    assert_eq!(shop.ledger.of("alice:k"), 1);
}

#[tokio::test]
async fn a_client_that_hangs_up_in_the_middle_of_its_body_has_asked_for_nothing() {
    let shop = Shop::new().await;
    let mut tcp = TcpStream::connect(shop.address).await.expect("a connection");
    let half = "POST /orders HTTP/1.1\r\nhost: shop\r\nx-user: alice\r\nidempotency-key: k\r\n\
                content-type: application/json\r\ncontent-length: 500\r\n\r\n{\"note\":";
    tcp.write_all(half.as_bytes()).await.expect("it reads");
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(tcp);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(shop.ledger.all(), 0);
    let whole = shop.send("k", &Wish::default()).await;
    assert_eq!((whole.status, whole.is_replayed()), (201, false), "{whole:?}");
}

#[tokio::test]
async fn the_end_of_a_program_waits_for_handlers_whose_clients_are_gone() {
    let shop = Shop::with(layer(keys(&memory()))).await;
    hang_up(&shop, "k", &slow(), Duration::from_millis(200)).await;
    until("it runs", || shop.ledger.of("alice:k") == 1).await;
    assert_eq!(shop.layer.finish(Duration::from_millis(10)).await, 1, "it runs on");
    assert_eq!(shop.layer.finish(Duration::from_secs(20)).await, 0);
    assert!(shop.send("k", &slow()).await.is_replayed());
    assert_eq!(shop.ledger.of("alice:k"), 1);
}
