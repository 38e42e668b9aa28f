//! Wrong TLS settings. Each error must name the setting to change.

use palisade::error::NodeFault;
use palisade::{AcquireError, Advice, ConfigError};

use super::*;

#[tokio::test]
async fn a_ca_that_is_not_trusted_here() {
    let (ca, stranger) = (Authority::new("ours"), Authority::new("strangers"));
    let server = ca.serve("redis-server", &NAMES, &[]);
    for roots in [None, Some(stranger.root())] {
        let node = builder(tls_url(&server));
        let node = if roots.is_some() { node.tls(roots, None) } else { node };
        let e = refusal(&node.build().unwrap()).await;
        assert_eq!((e.fault(), e.advice()), (NodeFault::Tls, Advice::Misconfigured), "{e}");
        assert!(e.to_string().contains("unknown issuer; give the CA that signed it"), "{e}");
    }
    // A program that acquires a lock gets the same error (unknown issuer).
    let redlock = redlock(builder(tls_url(&server)).build().unwrap());
    let e = redlock.mutex("m").build().unwrap().try_acquire().await.expect_err("no quorum");
    assert!(matches!(e, AcquireError::NoQuorum(_)), "{e}");
    assert_eq!(e.advice(), Advice::Misconfigured);
    assert!(e.to_string().contains("unknown issuer"), "{e}");
}

#[tokio::test]
async fn a_certificate_for_another_name() {
    let ca = Authority::new("ours");
    let server = ca.serve("redis-server", &["elsewhere.test"], &[]);
    let e = refusal(&builder(tls_url(&server)).tls(Some(ca.root()), None).build().unwrap()).await;
    assert_eq!((e.fault(), e.advice()), (NodeFault::Tls, Advice::Misconfigured), "{e}");
    let text = e.to_string();
    assert!(text.contains("for another name; connect by a name that is in it"), "{text}");
    assert!(text.contains("elsewhere.test"), "which names it has: {text}");
}

#[tokio::test]
async fn plain_to_a_tls_port() {
    let ca = Authority::new("ours");
    let server = ca.serve("redis-server", &NAMES, &[]);
    let e = refusal(&builder(server.url()).build().unwrap()).await;
    assert!(e.to_string().contains("rediss://"), "{:?} {e}", e.fault());
}

/// A server without TLS reads the TLS greeting as a command. The greeting contains random bytes. So
/// the server may return an error at once, or may wait for the end of the line.
#[tokio::test]
async fn tls_to_a_plain_port() {
    let server = Server::start(&[]);
    let node = || {
        let limit = Duration::from_millis(400);
        builder(tls_url(&server)).connect_timeout(limit).build().unwrap()
    };
    for _ in 0..6 {
        let e = refusal(&node()).await;
        assert!(matches!(e.fault(), NodeFault::Tls | NodeFault::Unreachable), "{e}");
        let text = e.to_string();
        assert!(text.contains("TLS on this port") || text.contains("no TLS here"), "{text}");
    }
}

#[tokio::test]
async fn a_client_certificate_that_is_missing_or_another_cas() {
    let (ca, stranger) = (Authority::new("ours"), Authority::new("strangers"));
    let server = ca.serve("redis-server", &NAMES, &["--tls-auth-clients", "yes"]);
    // With TLS 1.3, the server refuses the client certificate only after the client has finished
    // the handshake. So the connection may break before the server's reason arrives.
    for client in [None, Some(stranger.sign(&["the-client"]))] {
        let e =
            refusal(&builder(tls_url(&server)).tls(Some(ca.root()), client).build().unwrap()).await;
        assert!(matches!(e.fault(), NodeFault::Tls | NodeFault::Unreachable), "{e}");
        assert!(e.to_string().contains("client certificate"), "{e}");
    }
    server.cli(&["config", "set", "tls-protocols", "TLSv1.2"]);
    let e = refusal(&builder(tls_url(&server)).tls(Some(ca.root()), None).build().unwrap()).await;
    assert!(e.to_string().contains("client certificate"), "{e}");
}

#[test]
fn bad_pem_is_reported_by_field_value_and_rule_and_the_key_is_not_shown() {
    let ca = Authority::new("ours");
    let (certificate, key) = ca.sign(&["c"]);
    let (_, other_key) = ca.sign(&["d"]);
    let key_text = String::from_utf8(key.clone()).unwrap();
    let glued: Vec<u8> = key_text.replace('\n', "").into_bytes();
    let secret = key_text.lines().nth(1).unwrap().to_owned();
    let bytes = |b: &[u8]| Some(b.to_vec());
    let bad_der = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (root, client, value, rule) in [
        (bytes(b""), None, "a root certificate of 0 bytes", "BEGIN CERTIFICATE"),
        (bytes(b"nonsense"), None, "a root certificate of 8 bytes", "BEGIN CERTIFICATE"),
        (bytes(bad_der), None, "a root certificate of", "X.509"),
        (bytes(&key), None, "a root certificate of", "BEGIN CERTIFICATE"),
        (bytes(&glued), None, "a root certificate of", "BEGIN CERTIFICATE"),
        (None, Some((vec![], key.clone())), "a client certificate of 0 bytes", "BEGIN CERT"),
        (None, Some((bad_der.to_vec(), key.clone())), "a client certificate of", "X.509"),
        (None, Some((certificate.clone(), vec![])), "a client key", "one private key"),
        (None, Some((certificate.clone(), glued.clone())), "a client key", "one private key"),
        (None, Some((key.clone(), certificate.clone())), "a client certificate", "BEGIN CERT"),
        (None, Some((certificate.clone(), other_key.clone())), "a client key", "must belong to"),
    ] {
        let refused = |e: ConfigError, field: &str| {
            let text = e.to_string();
            assert_eq!(e.field(), field, "{text}");
            assert!(text.starts_with(&format!("`{field}` is {value}")), "{text}");
            assert!(text.contains(rule) && !text.contains('\n'), "{text}");
            assert!(!text.contains(&secret) && !format!("{e:?}").contains(&secret), "{text}");
        };
        let node = builder("rediss://h".to_owned()).tls(root.clone(), client.clone());
        refused(node.build().unwrap_err(), "tls");
        refused(group::node("s:1").tls(root.clone(), client.clone()).build().unwrap_err(), "tls");
        refused(group::node("s:1").sentinel_tls(root, client).build().unwrap_err(), "sentinel_tls");
    }
    let node = builder("rediss://h".to_owned()).tls(Some(ca.root()), Some((certificate, key)));
    assert!(!format!("{node:?} {:?}", node.clone().build().unwrap()).contains(&secret));
}

#[test]
fn an_address_that_does_not_fit_is_reported() {
    let text = |b: RedisNodeBuilder| b.build().unwrap_err().to_string();
    let ca = Authority::new("ours");
    let plain = text(builder("redis://joe:s3cret@h".to_owned()).tls(Some(ca.root()), None));
    assert!(plain.starts_with("`tls` is given with the plain address h:6379: "), "{plain}");
    assert!(plain.contains("rediss://") && !plain.contains("s3cret"), "{plain}");
    let named = text(builder("redis://h".to_owned()).tls_server_name("other"));
    assert_eq!(named, "`tls_server_name` is \"other\", without TLS: needs TLS (rediss://, `tls`)");
    for (named, field) in [
        (group::node("s:1").tls_server_name("other"), "tls_server_name"),
        (group::node("s:1").sentinel_tls_server_name("other"), "sentinel_tls_server_name"),
    ] {
        assert_eq!(named.build().unwrap_err().field(), field);
    }
    let insecure = text(builder("rediss://joe:s3cret@h/#insecure".to_owned()));
    assert!(insecure.starts_with("`url` is h:6379 with #insecure: "), "{insecure}");
    assert!(insecure.contains("always verified") && !insecure.contains("s3cret"), "{insecure}");
}
