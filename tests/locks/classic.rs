//! Clients of other libraries on the same servers. Their locks and the locks of this library
//! exclude each other. On this library's side, the holders are readers, writers and multi-locks.
//!
//! The library rslock is linked into this test program. The other libraries are separate programs
//! in a folder that an environment variable names. `scripts/other-clients` provides these programs
//! and runs the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use palisade::{RedisNode, Redlock};
use rslock::LockManager;

use crate::nodes::is_taken;
use crate::support::server::Server;

const TTL: Duration = Duration::from_secs(20);

/// A client of another library.
enum Classic {
    Rslock(LockManager),
    Program { run: Vec<String>, variable: (&'static str, PathBuf), ports: String },
}

/// A lock that a client of another library holds.
enum Held {
    Rslock(rslock::Lock),
    Value(String),
}

impl Classic {
    fn rslock(servers: &[Server]) -> Self {
        let manager = LockManager::new(servers.iter().map(Server::url).collect());
        Self::Rslock(manager)
    }

    /// Returns a client that runs the program `script` of another library. The environment variable
    /// `folder` names the folder of that library. The program receives this folder in the
    /// environment variable `variable`. Returns `None` if there is no such folder.
    fn program(
        servers: &[Server],
        folder: &str,
        (program, script): (&str, &str),
        variable: &'static str,
    ) -> Option<Self> {
        let Some(dir) = std::env::var_os(folder) else {
            println!("skipped: {folder} names no folder; scripts/other-clients sets it");
            return None;
        };
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/locks/classic");
        let run = vec![program.to_owned(), scripts.join(script).display().to_string()];
        let ports: Vec<_> = servers.iter().map(|server| server.port().to_string()).collect();
        Some(Self::Program { run, variable: (variable, dir.into()), ports: ports.join(",") })
    }

    /// Makes one attempt to acquire the lock. Returns `None` if the lock was refused.
    async fn lock(&self, name: &str) -> Option<Held> {
        match self {
            Self::Rslock(manager) => match manager.lock(name.as_bytes(), TTL).await {
                Ok(lock) => Some(Held::Rslock(lock)),
                Err(rslock::LockError::Unavailable) => None,
                Err(e) => panic!("{e}"),
            },
            Self::Program { .. } => match self.call(&["lock"], &[name]).trim() {
                "refused" => None,
                value => Some(Held::Value(value.to_owned())),
            },
        }
    }

    async fn unlock(&self, name: &str, held: Held) {
        match (self, held) {
            (Self::Rslock(manager), Held::Rslock(lock)) => manager.unlock(&lock).await,
            (_, Held::Value(value)) => drop(self.call(&["unlock"], &[name, &value])),
            (Self::Program { .. }, Held::Rslock(_)) => unreachable!("a lock of another client"),
        }
    }

    fn call(&self, verb: &[&str], rest: &[&str]) -> String {
        let Self::Program { run, variable: (variable, dir), ports } = self else {
            unreachable!("rslock is no program")
        };
        let out = Command::new(&run[0])
            .arg(&run[1])
            .args(verb)
            .arg(ports)
            .args(rest)
            .env(variable, dir)
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|e| panic!("{}: {e}", run[0]));
        let words = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{run:?}: {words}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }
}

fn servers() -> (Vec<Server>, Redlock) {
    let servers: Vec<_> = (0..3).map(|_| Server::start(&[])).collect();
    let redlock = servers.iter().fold(Redlock::builder().ttl(TTL), |builder, server| {
        builder.node(RedisNode::builder(server.url()).trust_fresh(true).build().unwrap())
    });
    (servers, redlock.build().unwrap())
}

/// Checks that a lock of the other library and each kind of lock of this library exclude each
/// other, whichever is acquired first.
async fn exclude_each_other(classic: Classic, redlock: Redlock) {
    let doc = redlock.rw_lock("a").build().unwrap();
    let both = redlock.multi(["a", "b"]).build().unwrap();

    let reader = doc.read().await.unwrap();
    assert!(classic.lock("a").await.is_none(), "beside a reader");
    // The other library's attempt failed and was rolled back. This must not remove the reader.
    assert!(reader.extend().await.is_ok() && reader.is_valid());
    assert_eq!(doc.inspect().await.unwrap().reader_count(), 1);
    reader.release().await.unwrap();

    let writer = doc.write().await.unwrap();
    assert!(classic.lock("a").await.is_none(), "beside a writer");
    writer.release().await.unwrap();

    let guard = both.acquire().await.unwrap();
    for name in ["a", "b"] {
        assert!(classic.lock(name).await.is_none(), "beside a multi-lock of {name}");
    }
    guard.release().await.unwrap();

    for name in ["a", "b"] {
        let held = classic.lock(name).await.expect("all is free");
        assert!(is_taken(&both.try_acquire().await), "a multi-lock beside {name}");
        if name == "a" {
            assert!(is_taken(&doc.try_read().await), "a reader beside it");
            assert!(is_taken(&doc.try_write().await), "a writer beside it");
        } else {
            let reader = doc.read().await.expect("the other name is taken");
            reader.release().await.unwrap();
        }
        classic.unlock(name, held).await;
    }
    let guard = both.acquire().await.expect("all is free");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn rslock_and_our_kinds_exclude_each_other() {
    let (servers, redlock) = servers();
    exclude_each_other(Classic::rslock(&servers), redlock).await;
}

#[tokio::test]
async fn redlock_py_and_our_kinds_exclude_each_other() {
    let (servers, redlock) = servers();
    let run = ("python3", "redlock_py.py");
    let Some(classic) = Classic::program(&servers, "PALISADE_REDLOCK_PY", run, "PYTHONPATH") else {
        return;
    };
    exclude_each_other(classic, redlock).await;
}

#[tokio::test]
async fn node_redlock_and_our_kinds_exclude_each_other() {
    let (servers, redlock) = servers();
    let run = ("node", "node_redlock.js");
    let Some(classic) = Classic::program(&servers, "PALISADE_NODE_REDLOCK", run, "NODE_PATH")
    else {
        return;
    };
    exclude_each_other(classic, redlock).await;
}
