//! A PostgreSQL server for one test, on a free loopback port and in a temporary directory. When the
//! test ends or is killed, a shell ends the server by the server's process id.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::child::{Child, free_port, is_root};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A server. Dropping the value ends the server's process.
pub(crate) struct Postgres {
    dir: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Postgres {
    pub(crate) fn start() -> Self {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("palisade-pg-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory below the temporary one");
        // The value is created early. So its drop removes the directory even if the server does not
        // start.
        let mut server = Self { dir, port: 0, child: None };
        let dir = &server.dir;
        if is_root() {
            let owned = Command::new("chown").arg("postgres").arg(dir).status();
            assert!(owned.expect("chown").success(), "the user postgres is missing");
        }
        let made = as_postgres(&program("initdb"))
            .args(["-D", "data", "-A", "trust", "-U", "palisade", "-E", "UTF8"])
            .args(["--no-sync", "--no-locale"])
            .current_dir(dir)
            .output()
            .expect("initdb");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        for _ in 0..5 {
            server.port = free_port();
            if server.run() {
                return server;
            }
        }
        panic!("PostgreSQL did not start: {}", server.log());
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://palisade@127.0.0.1:{}/postgres", self.port)
    }

    /// Ends the server at once, as a crash does. `again` starts the server with the same data.
    pub(crate) fn kill(&mut self) {
        self.child = None;
    }

    pub(crate) fn again(&mut self) {
        assert!(self.run(), "PostgreSQL did not start again: {}", self.log());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    fn run(&mut self) -> bool {
        let (port, dir) = (self.port.to_string(), self.dir.display().to_string());
        let mut server = as_postgres(&program("postgres"));
        server.args(["-D", "data", "-p", &port, "-k", &dir, "-h", "127.0.0.1"]);
        server.args(["-c", "fsync=off", "-c", "max_connections=60"]);
        let is_ready = || {
            let mut ready = Command::new(program("pg_isready"));
            ready.args(["-q", "-h", &dir, "-p", &port]).status().expect("pg_isready").success()
        };
        let failed = || self.log().contains("could not create any TCP/IP sockets");
        // QUIT ends the server and its children at once.
        self.child = Child::start(&server, (&self.dir, "log", "QUIT"), is_ready, failed);
        self.child.is_some()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "PostgreSQL's log:\n{}", self.log());
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Returns the path of the newest version of a program in Debian's directory. If there is none,
/// returns the name, so that the program is searched in `PATH`.
fn program(name: &str) -> PathBuf {
    let mut all: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.flatten().map(|e| e.path().join("bin").join(name)).collect())
        .unwrap_or_default();
    all.retain(|path| path.exists());
    all.sort();
    all.pop().unwrap_or_else(|| Path::new(name).to_owned())
}

/// Returns a command that does not run as root. PostgreSQL and PgBouncer refuse to run as root.
pub(crate) fn as_postgres(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command
}
