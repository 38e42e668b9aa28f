//! TLS for a Sentinel group: only to the data server, only to the Sentinel, or to both.

use palisade::error::NodeFault;
use palisade::node::{MinReplicas, SentinelNode, SentinelNodeBuilder};

use super::*;

/// Returns the builder of a node that knows only this Sentinel. The tests need no other Sentinel,
/// because they test one connection.
pub(crate) fn node(sentinel: &str) -> SentinelNodeBuilder {
    provider();
    let node = SentinelNode::builder("orders", [sentinel]);
    node.min_replicas_check(MinReplicas::Off).trust_fresh(true).sentinel_deadline(PATIENCE)
}

/// Configures the Sentinel to watch this master.
fn watch(sentinel: &Server, master: &Server) {
    let port = master.port().to_string();
    assert_eq!(sentinel.cli(&["sentinel", "monitor", "orders", "127.0.0.1", &port, "1"]), "OK");
}

const MASTER: &[&str] = &[];
/// Arguments of a master whose replication links use TLS. The Sentinel then connects to the master
/// with TLS, too.
const OVER_TLS: &[&str] = &["--tls-replication", "yes"];

#[tokio::test]
async fn tls_to_the_data_servers_alone() {
    let ca = Authority::new("ours");
    let master = ca.serve("redis-server", &NAMES, MASTER);
    let sentinel = Server::start_program("redis-sentinel", &["sentinel.conf"]);
    watch(&sentinel, &master);
    let node = || node(&sentinel.addr());
    works(node().tls(Some(ca.root()), None).build().unwrap()).await;
    let e = refusal(&node().build().unwrap()).await;
    assert!(e.to_string().contains("use TLS here"), "{e}");
    let e = refusal(&node().tls(None, None).build().unwrap()).await;
    assert_eq!(e.fault(), NodeFault::Tls, "{e}");
    assert!(e.to_string().contains("unknown issuer"), "{e}");
    // This Sentinel has no TLS port. So TLS to it fails, although TLS to the data server works.
    let both = node().tls(Some(ca.root()), None).sentinel_tls(Some(ca.root()), None);
    let both = both.sentinel_deadline(Duration::from_millis(300)).build().unwrap();
    let e = refusal(&both).await;
    assert!(matches!(e.fault(), NodeFault::Tls | NodeFault::NoSentinel), "{e}");
    assert!(e.to_string().contains("TLS on this port"), "{e}");
}

#[tokio::test]
async fn tls_to_the_sentinels_alone() {
    let ca = Authority::new("ours");
    let master = Server::start(&[]);
    let sentinel = ca.serve("redis-sentinel", &NAMES, &[]);
    watch(&sentinel, &master);
    let node = || node(&sentinel.addr());
    works(node().sentinel_tls(Some(ca.root()), None).build().unwrap()).await;
    let e = refusal(&node().sentinel_tls(None, None).build().unwrap()).await;
    assert_eq!(e.fault(), NodeFault::Tls, "{e}");
    assert!(e.to_string().contains("unknown issuer"), "{e}");
    let e = refusal(&node().build().unwrap()).await;
    assert!(e.to_string().contains("sentinel_tls"), "{:?} {e}", e.fault());
}

/// By default a Sentinel announces IP addresses, and certificates contain names. So the settings
/// must map an announced address to a name.
#[tokio::test]
async fn tls_to_both_with_a_name_for_an_announced_address() {
    let (data, watchers) = (Authority::new("data"), Authority::new("watchers"));
    let master = data.serve("redis-server", &["localhost"], OVER_TLS);
    let client = ["--tls-auth-clients", "yes", "--tls-replication", "yes"];
    let sentinel = watchers.serve("redis-sentinel", &NAMES, &client);
    watch(&sentinel, &master);
    let ours = watchers.sign(&["the-client"]);
    let node = || {
        let node = node(&sentinel.addr()).tls(Some(data.root()), None);
        node.sentinel_tls(Some(watchers.root()), Some(ours.clone()))
    };
    let e = refusal(&node().build().unwrap()).await;
    assert_eq!(e.fault(), NodeFault::Tls, "{e}");
    assert!(e.to_string().contains("`map_address`"), "{e}");
    let reached = format!("localhost:{}", master.port());
    let mapped = node().map_address([(master.addr(), reached.clone())]).build().unwrap();
    assert!(acquire(&mapped).await.is_ok());
    assert_eq!(mapped.status().master, Some(reached));
    works(mapped).await;
    // The CA of the Sentinels must not be accepted for the data servers.
    let wrong = node().tls(Some(watchers.root()), None).build().unwrap();
    assert!(refusal(&wrong).await.to_string().contains("unknown issuer"));
}

/// The names in the certificates cannot be resolved by DNS. So the node connects to IP addresses,
/// and checks the certificates against the configured names.
#[tokio::test]
async fn tls_to_both_by_names_that_lead_nowhere() {
    let (data, watchers) = (Authority::new("data"), Authority::new("watchers"));
    let master = data.serve("redis-server", &["data.invalid"], OVER_TLS);
    let flags = ["--tls-auth-clients", "no", "--tls-replication", "yes"];
    let sentinel = watchers.serve("redis-sentinel", &["watchers.invalid"], &flags);
    watch(&sentinel, &master);
    let node = || {
        let node = node(&sentinel.addr()).tls(Some(data.root()), None);
        node.sentinel_tls(Some(watchers.root()), None)
    };
    let e = refusal(&node().build().unwrap()).await;
    assert_eq!(e.fault(), NodeFault::Tls, "{e}");
    assert!(e.to_string().contains("`sentinel_tls_server_name`"), "{e}");
    assert!(e.to_string().contains(&sentinel.addr()), "{e}");
    // The name is configured for the Sentinels' certificates only. It does not apply to the data
    // servers, so TLS to the data server fails.
    let half = node().sentinel_tls_server_name("watchers.invalid").build().unwrap();
    let e = refusal(&half).await;
    assert!(e.to_string().contains("`tls_server_name`"), "{e}");
    assert!(e.to_string().contains("data.invalid"), "which names it has: {e}");
    let both = || half_named(node()).tls_server_name("data.invalid").build().unwrap();
    let named = both();
    assert!(acquire(&named).await.is_ok());
    assert_eq!(named.status().master, Some(master.addr()), "as announced");
    works(named).await;
    // The node must compare the name with the certificate, not only send the name.
    let wrong = half_named(node()).tls_server_name("other.invalid").build().unwrap();
    assert_eq!(refusal(&wrong).await.fault(), NodeFault::Tls);
    let e = node().tls_server_name("not a name").build().unwrap_err();
    assert!(
        e.to_string().starts_with("`tls_server_name` is \"not a name\": must be a host"),
        "{e}"
    );
}

fn half_named(node: SentinelNodeBuilder) -> SentinelNodeBuilder {
    node.sentinel_tls_server_name("watchers.invalid")
}

#[tokio::test]
async fn a_lone_server_by_the_name_in_its_certificate() {
    let ca = Authority::new("ours");
    let server = ca.serve("redis-server", &["redis.invalid"], &[]);
    // The order of the two settings does not matter.
    let named = builder(tls_url(&server)).tls_server_name("redis.invalid");
    let named = named.tls(Some(ca.root()), None).build().unwrap();
    assert_eq!(*named.name(), *server.addr());
    works(named).await;
    let plain = builder(server.url()).tls_server_name("redis.invalid").build().unwrap_err();
    assert!(plain.to_string().contains("needs TLS"), "{plain}");
}
