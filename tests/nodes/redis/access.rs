//! Users and passwords of a Redis server, and the minimal rights that a user needs.

use super::*;

#[tokio::test]
async fn users_and_passwords() {
    let server = Server::start(&["--requirepass", "s3cret"]);
    let open = |b: palisade::node::RedisNodeBuilder| b.trust_fresh(true).build().unwrap();
    let node = open(RedisNode::builder(server.url()));
    let got = one(&node, LONG, acquire("k", owner())).await;
    assert_eq!(fault(got), (NodeFault::Auth, false));
    let node = open(RedisNode::builder(server.url()).password("wr0ng"));
    let e = one(&node, LONG, acquire("k", owner())).await.unwrap_err();
    assert_eq!(e.fault(), NodeFault::Auth);
    assert!(!format!("{e} {e:?} {node:?}").contains("wr0ng"));
    let node = open(RedisNode::builder(format!("redis://:s3cret@{}", server.addr())));
    fence(one(&node, LONG, acquire("k", owner())).await);
    assert_eq!(*node.name(), server.addr());
    assert!(!format!("{node:?}").contains("s3cret"));
}

#[tokio::test]
async fn few_rights_are_enough_and_a_missing_one_is_reported() {
    let server = Server::start(&[]);
    let text = "acl setuser joe on >pw ~* -@all &palisade:changed* +evalsha +script|load +hello \
                +info +time +get +getrange +mget +exists +set +del +pttl +pexpire +pexpireat \
                +setrange +strlen +hset +hmget +zadd +zrem +zrange +zcard +zscore \
                +zremrangebyscore +publish +subscribe +select";
    let text: Vec<_> = text.split(' ').collect();
    assert_eq!(server.cli(&text), "OK");
    let joe = || {
        let b = RedisNode::builder(server.url()).username("joe").password("pw");
        b.trust_fresh(true).build().unwrap()
    };
    let (a, node) = (owner(), joe());
    let token = fence(one(&node, LONG, acquire("k", a)).await);
    assert_eq!(one(&node, LONG, extend("k", a, token, Some(b"m"))).await, Ok(Reply::Done));
    assert_eq!(one(&node, LONG, release("k", a)).await, Ok(Reply::Done));
    // The user may also run the requests of readers, and downgrade a writer to a reader.
    let token = fence(one(&node, LONG, acquire("w", a)).await);
    assert_eq!(one(&node, LONG, shared(extend("w", a, token, None))).await, Ok(Reply::Done));
    fence(one(&node, LONG, shared(acquire("w", owner()))).await);
    assert_eq!(one(&node, LONG, shared(release("w", a))).await, Ok(Reply::Done));
    // Without the right to the channel of hints (wake-up messages), the user receives no hints. All
    // other operations work.
    server.cli(&["acl", "setuser", "joe", "resetchannels"]);
    let node = joe();
    fence(one(&node, LONG, acquire("k", a)).await);
    server.cli(&["set", "{k}:queue", "1"]);
    assert_eq!(one(&node, LONG, release("k", a)).await, Ok(Reply::Done));
    // Without the right to run scripts, no operation works.
    server.cli(&["acl", "setuser", "joe", "-evalsha"]);
    let got = one(&joe(), LONG, acquire("k", a)).await;
    assert_eq!(fault(got), (NodeFault::NoPermission, false));
    // A lock on a key that the user may not access is refused by the server.
    server.cli(&["acl", "setuser", "joe", "+evalsha", "resetkeys", "~palisade:*", "~mine"]);
    let got = one(&joe(), LONG, acquire("mine", a)).await;
    assert_eq!(fault(got).0, NodeFault::NoPermission);
}
