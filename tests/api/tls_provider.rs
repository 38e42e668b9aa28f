//! If a program has no crypto provider, building a node with TLS fails. No other test of this
//! binary may install a provider, because the whole process shares one provider.

use palisade::error::ConfigError;
use palisade::node::{RedisNode, SentinelNode};

fn reported<T>(got: Result<T, ConfigError>, field: &str) {
    let e = got.err().expect("refused");
    let text = e.to_string();
    assert_eq!(e.field(), field, "{text}");
    assert!(text.starts_with(&format!("`{field}` is without a crypto provider: ")), "{text}");
    assert!(text.contains("default_provider().install_default()"), "{text}");
    assert!(!text.contains("s3cret"), "{text}");
}

#[test]
fn without_a_crypto_provider_tls_is_refused_with_what_to_do() {
    let group = || SentinelNode::builder("orders", ["s:1"]);
    reported(RedisNode::new("rediss://joe:s3cret@h"), "url");
    reported(RedisNode::builder("rediss://h").tls(None, None).build(), "url");
    reported(group().tls(None, None).build(), "tls");
    reported(group().sentinel_tls(None, None).build(), "sentinel_tls");
    // A node without TLS needs no provider.
    RedisNode::new("redis://h").unwrap();

    rustls::crypto::ring::default_provider().install_default().expect("the first one");
    RedisNode::builder("rediss://h").tls(None, None).build().unwrap();
    group().tls(None, None).sentinel_tls(None, None).build().unwrap();
}
