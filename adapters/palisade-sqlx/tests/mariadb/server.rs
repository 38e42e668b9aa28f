//! A MariaDB server for one test, on a free loopback port and in a temporary directory. When the
//! test ends or is killed, a shell kills the server by the server's process id.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::child::{Child, free_port, is_root};

/// Lock for `mariadb-install-db`. Two runs of this program at the same time disturb each other.
static INSTALL: Mutex<()> = Mutex::new(());
/// Options that let several servers run on one machine. The kernel has few contexts for
/// asynchronous IO. With the default size of their buffers, the servers would use the whole
/// machine.
const MODEST: &[&str] = &["--innodb-use-native-aio=0", "--innodb-buffer-pool-size=32M"];
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A server. Dropping the value ends the server's process.
pub(crate) struct MariaDb {
    dir: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl MariaDb {
    pub(crate) fn start() -> Self {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("palisade-my-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory below the temporary one");
        // The value is created early. So its drop removes the directory even if the server does not
        // start.
        let mut server = Self { dir, port: 0, child: None };
        let dir = &server.dir;
        let root = is_root();
        if root {
            let owned = Command::new("chown").arg("mysql").arg(dir).status();
            assert!(owned.expect("chown").success(), "the user mysql is missing");
        }
        let user =
            if root { "mysql".to_owned() } else { std::env::var("USER").unwrap_or_default() };
        let data = dir.join("data");
        // Each server needs a directory of its own for temporary files. Otherwise the servers
        // remove each other's files.
        let tmp = dir.join("tmp");
        std::fs::create_dir_all(&tmp).expect("a directory in its own");
        if root {
            let owned = Command::new("chown").arg("mysql").arg(&tmp).status();
            assert!(owned.expect("chown").success(), "the user mysql is missing");
        }
        let one_at_a_time = INSTALL.lock().unwrap_or_else(PoisonError::into_inner);
        let made = Command::new("mariadb-install-db")
            .arg("--no-defaults")
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--tmpdir={}", tmp.display()))
            .arg(format!("--user={user}"))
            .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
            .args(MODEST)
            .output()
            .expect("mariadb-install-db: install the package mariadb-server");
        drop(one_at_a_time);
        let text = [&made.stdout[..], &made.stderr[..]].concat();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&text));
        for _ in 0..5 {
            server.port = free_port();
            if server.run(&user) {
                return server;
            }
        }
        panic!("MariaDB did not start: {}", server.log());
    }

    pub(crate) fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/palisade", self.port)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    fn run(&mut self, user: &str) -> bool {
        let dir = self.dir.display();
        let mut server = Command::new("mariadbd");
        server.arg("--no-defaults").arg(format!("--datadir={dir}/data"));
        server.arg(format!("--tmpdir={dir}/tmp")).arg(format!("--socket={dir}/my.sock"));
        server.arg(format!("--pid-file={dir}/pid")).arg(format!("--port={}", self.port));
        server.arg(format!("--user={user}")).arg("--bind-address=127.0.0.1");
        server.arg("--innodb-flush-log-at-trx-commit=0").args(MODEST);
        let is_ready = || {
            let made = Command::new("mariadb")
                .arg("--no-defaults")
                .arg(format!("--socket={dir}/my.sock"))
                .args(["--user=root", "--execute=CREATE DATABASE IF NOT EXISTS palisade"])
                .stderr(Stdio::null())
                .status();
            made.expect("mariadb: install mariadb-client").success()
        };
        let failed = || self.log().contains("Can't start server");
        self.child = Child::start(&server, (&self.dir, "log", "KILL"), is_ready, failed);
        self.child.is_some()
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        self.child = None;
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
