//! Addresses at which a console listens. A console does not start at an address that strangers
//! could use. Its unix socket accepts only its own user and root. With a certificate it accepts
//! only TLS.

#![cfg_attr(not(feature = "tls"), allow(unused_imports, reason = "one test needs the feature"))]

mod common;

use common::{Attack, answer};
use palisade_console::{Console, Listen, Options, StartError, Tokens};
use palisade_ops::Deployment;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

const READ: &str = "read-0123456789abcdef";

#[tokio::test(flavor = "multi_thread")]
async fn an_open_address_does_not_start() {
    let _attack = Attack::begin();
    let deployment = || Deployment::new().node("redis://127.0.0.1:1");
    let start = |options: Options| async {
        let redlock = deployment().handle().unwrap().build().unwrap();
        Console::bind(redlock, deployment(), options).await
    };
    let mut open = Options::default();
    open.listen = Listen::Tcp(([0, 0, 0, 0], 0).into());
    let Err(StartError::Refused(why)) = start(open.clone()).await else { panic!("it started") };
    assert!(why.contains("encryption") && why.contains("--tls-cert"), "{why}");
    open.tokens.read = Some(READ.to_owned());
    assert!(matches!(start(open).await, Err(StartError::Refused(_))));
    assert!(start(Options::default()).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket_is_for_its_user_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    use tokio::io::AsyncReadExt as _;
    let _attack = Attack::begin();
    let server = common::server::Server::start(&[]);
    let path = server.dir().join("console.sock");
    let deployment = Deployment::new().node(server.url());
    let mut options = Options::default();
    options.listen = Listen::Unix(path.clone());
    let redlock = deployment.handle().unwrap().build().unwrap();
    let console = Console::bind(redlock, deployment, options).await.unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let run = tokio::spawn(console.run(std::future::pending()));
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    let head = "GET /api/v1/session HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.contains("\"user\":\"uid "), "{text}");
    run.abort();
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread")]
async fn with_a_certificate_only_tls_is_answered() {
    use std::sync::Arc;
    use tokio::io::AsyncReadExt as _;
    let _attack = Attack::begin();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let mut options = Options::default();
    options.tokens = Tokens { read: Some(READ.to_owned()), act: None };
    options.tls = Some((made.cert.pem().into(), made.signing_key.serialize_pem().into()));
    let deployment = Deployment::new().node("redis://127.0.0.1:1");
    let redlock = deployment.handle().unwrap().build().unwrap();
    let console = Console::bind(redlock, deployment, options).await.unwrap();
    let at = console.address();
    let at = at.trim_start_matches("https://").trim_end_matches('/');
    let at: std::net::SocketAddr = at.parse().unwrap();
    let run = tokio::spawn(console.run(std::future::pending()));
    let mut plain = TcpStream::connect(at).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    assert_eq!(answer(&mut plain).await.status, 0);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let client = rustls::ClientConfig::builder().with_root_certificates(roots);
    let client = tokio_rustls::TlsConnector::from(Arc::new(client.with_no_client_auth()));
    let stream = TcpStream::connect(at).await.unwrap();
    let mut stream = client.connect("localhost".try_into().unwrap(), stream).await.unwrap();
    let head = format!(
        "GET /api/v1/session HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {READ}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text).await;
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("\"role\":\"read\""), "{text}");
    run.abort();
}
