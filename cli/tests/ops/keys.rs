//! Listing idempotency keys on real servers: what an operator looks for is there, nothing else.

use std::time::Duration;

use palisade::ops::{KeyState, keys};
use palisade::{Failed, RedisNode, Redlock};

use super::{Deployment, Server};

#[tokio::test]
async fn keys_are_listed_with_their_state() {
    let servers: Vec<_> = (0..3).map(|_| Server::start(&[])).collect();
    let node = |s: &Server| RedisNode::builder(s.url()).trust_fresh(true).build().unwrap();
    let redlock = servers.iter().fold(Redlock::builder(), |b, s| b.node(node(s)));
    let redlock = redlock.prefix("app:").build().unwrap();
    let orders = redlock.idempotency("orders").at_most_once().build().unwrap();
    let others = redlock.idempotency("orders2").at_most_once().build().unwrap();
    let done = async |call: palisade::idempotency::Call| {
        assert!(call.run(|_| async { Ok::<_, Failed>(1) }).await.unwrap().is_executed());
    };
    done(orders.key("done*")).await;
    done(others.key("not ours")).await;
    let fails = |failed: Failed| async move { Err::<u32, _>(failed) };
    let _ = orders.key("lapsed").run(|_| fails(Failed::unknown("broken pipe"))).await;
    let _ = orders.key("free").run(|_| fails(Failed::no_effect("closed"))).await;
    let running = tokio::spawn(orders.key("running").run(|_| async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok::<_, Failed>(1)
    }));
    let deployment = servers.iter().fold(Deployment::new(), |d, s| d.node(s.url()));
    let listed = loop {
        let listed = keys(&deployment, "app:", "orders").await.unwrap();
        if listed.keys.len() == 4 && listed.keys.iter().all(|k| k.nodes == 3) {
            break listed;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    running.abort();
    assert_eq!(listed.unread, []);
    let short: Vec<_> = listed.keys.iter().map(|k| (k.key.as_str(), k.state, k.attempts)).collect();
    let KeyState::Running { remaining } = short[3].1 else { panic!("{short:?}") };
    assert!(remaining > Duration::from_secs(5) && remaining <= Duration::from_secs(15));
    assert_eq!(
        short,
        [
            ("done*", KeyState::Stored, 1),
            ("free", KeyState::Free, 0),
            ("lapsed", KeyState::Lapsed, 1),
            ("running", KeyState::Running { remaining }, 1),
        ]
    );
    let day = Duration::from_secs(24 * 3_600);
    assert!(listed.keys[0].expires_in + Duration::from_secs(60) > day);

    // A node that is away is said to be unread; the others are listed.
    let [down, ..] = &servers[..] else { panic!() };
    let url = down.url();
    drop(servers);
    let listed = keys(&Deployment::new().node(url), "app:", "orders").await.unwrap();
    assert_eq!((listed.keys.len(), listed.unread.len()), (0, 1));
}
