//! A program that uses the library. It has metrics that the program `palisade` does not have.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use metrics_exporter_prometheus::PrometheusBuilder;
use palisade::idempotency::Context;
use palisade::{Failed, Idempotency, Outcome, RedisNode, Redlock, RunError};
use palisade_streams::{Consumer, Message, Publisher, Stream};
use tokio::runtime::{Builder, Runtime};

/// An application that runs keys of the namespace `orders` on one server, and serves its metrics on
/// a page of its own.
pub(crate) struct Application {
    pub(crate) address: String,
    orders: Idempotency,
    runtime: Runtime,
}

impl Application {
    /// Starts the application. `ttl` is the length of its leases, and also of a quarantine.
    pub(crate) fn start(url: &str, ttl: Duration) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        let counted = recorder.handle();
        let orders = metrics::with_local_recorder(&recorder, || {
            let node = RedisNode::new(url).expect("an address");
            let redlock = Redlock::builder().node(node).ttl(ttl);
            // A busy server connects late.
            let redlock = redlock.node_deadline(ttl / 5).build().expect("good settings");
            redlock.idempotency("orders").at_most_once().build().expect("good settings")
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        // The thread ends with the process.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.read(&mut [0; 4_096]);
                let page = counted.render();
                let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", page.len());
                let _ = stream.write_all((head + &page).as_bytes());
            }
        });
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Self { address, orders, runtime: runtime.expect("a runtime") }
    }

    /// The request has no birth.
    pub(crate) fn order(&self, key: &str) -> Result<Outcome<u32>, RunError> {
        self.runtime.block_on(self.orders.key(key).run(|_| async { Ok::<_, Failed>(7) }))
    }

    /// Publishes one message with this key and a birth one hour ago. Then consumes the stream until
    /// the application is dropped.
    pub(crate) fn consume(&self, url: &str, key: &str) {
        let hour_ago = SystemTime::now() - Duration::from_secs(3_600);
        let added = Publisher::new(url, "jobs");
        self.runtime.block_on(added.publish(key, hour_ago, b"")).expect("a stream");
        let consumer =
            Consumer::builder(Stream::new(url, "jobs", "all"), self.orders.clone()).build();
        let consumer = consumer.expect("good settings");
        self.runtime.spawn(async move {
            let handler = |_: Context, _: Arc<Message>| async { Ok::<_, Failed>(()) };
            consumer.run(handler, std::future::pending::<()>()).await
        });
    }
}
