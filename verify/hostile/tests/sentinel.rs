//! A fake Sentinel for tests of clients. It reports a master.

use crate::fake::{Command, View};
use crate::server::{Honest, Phase};

pub(crate) struct SentinelServer {
    id: char,
    view: View,
}

impl SentinelServer {
    /// Creates one of three Sentinels. Each needs a different `id`.
    pub(crate) fn new(id: char, master: &str) -> Self {
        Self { id, view: View { master: master.to_owned(), epoch: 1, ..View::default() } }
    }
}

impl Honest for SentinelServer {
    fn answer(&self, asked: &Command) -> (Phase, Vec<u8>) {
        let words: Vec<_> = asked.iter().map(|word| String::from_utf8_lossy(word)).collect();
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let phase = match &words[..] {
            ["HELLO", ..] => Phase::Hello,
            ["SUBSCRIBE", ..] => Phase::Subscribe,
            ["SENTINEL", "MYID"] => Phase::MyId,
            ["SENTINEL", "MASTER", ..] => Phase::Master,
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", ..] => Phase::Address,
            ["SENTINEL", "SENTINELS", ..] => Phase::Peers,
            ["SENTINEL", "REPLICAS", ..] => Phase::Replicas,
            ["SENTINEL", "CKQUORUM", ..] => Phase::Quorum,
            ["SENTINEL", "CONFIG", ..] => Phase::Config,
            ["INFO", ..] => Phase::Info,
            _ => Phase::Client,
        };
        (phase, self.view.answer(self.id, &words))
    }
}
