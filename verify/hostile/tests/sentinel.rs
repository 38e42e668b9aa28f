//! A Sentinel that names a master.

use crate::server::{Honest, Phase};
use crate::wire::{Command, array, bulk, map, ok, subscribed, word};

/// The group's name.
pub(crate) const NAME: &str = "orders";

pub(crate) struct SentinelServer {
    id: char,
    master: String,
}

impl SentinelServer {
    /// One of three, each with its own `id`.
    pub(crate) fn new(id: char, master: &str) -> Self {
        Self { id, master: master.to_owned() }
    }

    fn id(&self) -> String {
        self.id.to_string().repeat(40)
    }

    fn facts(&self) -> Vec<u8> {
        let (host, port) = self.master.rsplit_once(':').expect("host:port");
        map(&[
            ("name", NAME),
            ("ip", host),
            ("port", port),
            ("flags", "master"),
            ("config-epoch", "1"),
            ("num-slaves", "1"),
            ("num-other-sentinels", "2"),
            ("quorum", "2"),
            ("down-after-milliseconds", "5000"),
            ("failover-timeout", "60000"),
        ])
    }
}

impl Honest for SentinelServer {
    fn answer(&self, asked: &Command) -> (Phase, Vec<u8>) {
        let what = word(asked, 1);
        match (&*word(asked, 0), &*what) {
            ("HELLO", _) => (Phase::Hello, map(&[("server", "redis"), ("mode", "sentinel")])),
            ("SUBSCRIBE", _) => (Phase::Subscribe, subscribed(&asked[1..])),
            ("SENTINEL", "MYID") => (Phase::MyId, bulk(self.id())),
            ("SENTINEL", "MASTER") => (Phase::Master, self.facts()),
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME") => {
                let (host, port) = self.master.rsplit_once(':').expect("host:port");
                (Phase::Address, array(&[bulk(host), bulk(port)]))
            }
            ("SENTINEL", "SENTINELS") => (Phase::Peers, array(&[])),
            ("SENTINEL", "REPLICAS") => (Phase::Replicas, array(&[])),
            ("SENTINEL", "CKQUORUM") => (Phase::Quorum, b"+OK 3 usable Sentinels\r\n".to_vec()),
            ("SENTINEL", "CONFIG") => (Phase::Config, map(&[("resolve-hostnames", "no")])),
            ("INFO", _) => {
                let id = self.id();
                let info =
                    format!("redis_version:7.0.15\r\nredis_mode:sentinel\r\nrun_id:{id}\r\n");
                (Phase::Info, bulk(info))
            }
            _ => (Phase::Client, ok()),
        }
    }
}
