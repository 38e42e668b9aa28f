//! Real clusters for tests: masters with replicas on free loopback ports. They end with the test.

use std::time::{Duration, Instant};

use super::server::{Server, free_port};

const SLOTS: usize = 16_384;

/// Servers of one cluster. The masters come first, then the replicas in the order of their masters.
pub struct Cluster {
    pub servers: Vec<Server>,
    masters: usize,
}

impl Cluster {
    /// Starts a cluster with this number of masters, each with `replicas` replicas.
    pub fn start(masters: usize, replicas: usize, node_timeout: Duration) -> Self {
        Self::start_with(masters, replicas, node_timeout, &[])
    }

    /// As [`start`](Self::start), with more arguments for each server.
    pub fn start_with(
        masters: usize,
        replicas: usize,
        node_timeout: Duration,
        args: &[&str],
    ) -> Self {
        let node_timeout = node_timeout.as_millis().to_string();
        let start = |_| {
            let bus = free_port().to_string();
            let own = [
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus,
                "--cluster-node-timeout",
                &node_timeout,
                "--cluster-require-full-coverage",
                "no",
                "--repl-diskless-sync-delay",
                "0",
            ];
            Server::start(&[&own, args].concat())
        };
        let servers: Vec<Server> = (0..masters * (1 + replicas)).map(start).collect();
        let cluster = Self { servers, masters };
        let of = |n: usize| (n * SLOTS / masters).to_string();
        for (n, server) in cluster.servers.iter().enumerate() {
            assert_eq!(server.cli(&["cluster", "set-config-epoch", &(n + 1).to_string()]), "OK");
            if n < masters {
                let last = ((n + 1) * SLOTS / masters - 1).to_string();
                assert_eq!(server.cli(&["cluster", "addslotsrange", &of(n), &last]), "OK");
            }
        }
        let first = &cluster.servers[0];
        cluster.until("all know all", |server| {
            // On a busy machine a handshake may end without a meeting.
            let known = first.cli(&["cluster", "nodes"]);
            for other in &cluster.servers {
                let (port, bus) = (other.port().to_string(), other.bus().to_string());
                if !known.contains(&format!(":{port}@")) {
                    first.cli(&["cluster", "meet", "127.0.0.1", &port, &bus]);
                }
            }
            let nodes = server.cli(&["cluster", "nodes"]);
            !nodes.contains("handshake")
                && nodes.matches(" connected").count() == cluster.servers.len()
        });
        for (n, replica) in cluster.servers.iter().enumerate().skip(masters) {
            let master = cluster.id((n - masters) / replicas);
            assert_eq!(replica.cli(&["cluster", "replicate", &master]), "OK");
        }
        cluster.until("the cluster is complete", |server| {
            let info = server.cli(&["cluster", "info"]);
            let nodes = server.cli(&["cluster", "nodes"]);
            let size = format!("cluster_size:{masters}");
            info.contains("cluster_state:ok")
                && info.contains(&size)
                && nodes.matches("slave").count() == masters * replicas
        });
        cluster.until("all replicas follow", |server| {
            let info = server.cli(&["info", "replication"]);
            info.contains("role:master") || info.contains("master_link_status:up")
        });
        cluster
    }

    /// Waits until this is true for every server that runs.
    pub fn until(&self, what: &str, holds: impl Fn(&Server) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        for server in self.servers.iter().filter(|server| server.runs()) {
            while !holds(server) {
                let shown = || server.cli(&["cluster", "nodes"]);
                assert!(Instant::now() < end, "{what}: {}\n{}", server.addr(), shown());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Waits until all servers that run serve all slots.
    pub fn until_ok(&self) {
        let ok = |info: &str| {
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
        };
        self.until("the cluster is there", |server| ok(&server.cli(&["cluster", "info"])));
    }

    /// Returns the addresses of the masters, as `ClusterNode` takes them.
    pub fn addresses(&self) -> Vec<String> {
        self.servers[..self.masters].iter().map(Server::addr).collect()
    }

    pub fn id(&self, n: usize) -> String {
        self.servers[n].cli(&["cluster", "myid"])
    }

    /// Returns the number of the master that had this slot at the start.
    pub fn owner(&self, slot: u16) -> usize {
        (0..self.masters).rfind(|n| n * SLOTS / self.masters <= usize::from(slot)).unwrap_or(0)
    }

    /// Returns the slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        self.servers[0].cli(&["cluster", "keyslot", key]).parse().expect("a number")
    }

    /// Begins to move a slot: the servers answer ASK and TRYAGAIN until it is finished.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let (slot, source, target) = (slot.to_string(), self.id(from), self.id(to));
        let set = |n: usize, what, id: &str| {
            assert_eq!(self.servers[n].cli(&["cluster", "setslot", &slot, what, id]), "OK");
        };
        set(to, "importing", &source);
        set(from, "migrating", &target);
    }

    /// Moves the keys of a slot that is being moved, and gives it to its new owner.
    pub fn finish_move(&self, slot: u16, from: usize, to: usize) {
        let (number, target) = (slot.to_string(), self.id(to));
        let port = self.servers[to].port().to_string();
        loop {
            let keys = self.servers[from].cli(&["cluster", "getkeysinslot", &number, "100"]);
            let keys: Vec<&str> = keys.lines().filter(|key| !key.is_empty()).collect();
            if keys.is_empty() {
                break;
            }
            let migrate = ["migrate", "127.0.0.1", &port, "", "0", "5000", "keys"];
            let moved = self.servers[from].cli(&[&migrate[..], &keys].concat());
            assert!(moved == "OK" || moved == "NOKEY", "{moved}");
        }
        for n in [to, from] {
            let set = ["cluster", "setslot", &number, "node", &target];
            assert_eq!(self.servers[n].cli(&set), "OK");
        }
    }

    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        self.finish_move(slot, from, to);
    }

    /// Waits until all servers that run name this server as the owner of the slot.
    pub fn until_owned(&self, slot: u16, owner: usize) {
        let id = self.id(owner);
        self.until("the slot has its new owner", |server| {
            let nodes = server.cli(&["cluster", "nodes"]);
            let line = nodes.lines().find(|line| line.starts_with(&id)).unwrap_or_default();
            let mut words = line.split(' ').skip(8).filter(|word| !word.starts_with('['));
            words.any(|word| {
                let (first, last) = word.split_once('-').unwrap_or((word, word));
                let of = |text: &str| text.parse::<u16>().expect("a slot");
                (of(first)..=of(last)).contains(&slot)
            })
        });
    }
}
