//! A PostgreSQL server for one test, on a free loopback port and in a temporary directory. When the
//! test ends or is killed, a shell ends the server by the server's process id.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const START: Duration = Duration::from_mins(1);
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A server. Dropping the value ends the server's process.
pub(crate) struct Postgres {
    dir: PathBuf,
    port: u16,
    /// The shell process that ends the server when this process ends.
    shell: Option<Child>,
}

impl Postgres {
    pub(crate) fn start() -> Self {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("palisade-pg-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory below the temporary one");
        // The value is created early. So its drop removes the directory even if the server does not
        // start.
        let mut server = Self { dir, port: 0, shell: None };
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
        if let Some(mut shell) = self.shell.take() {
            drop(shell.stdin.take());
            let _ = shell.wait();
        }
    }

    pub(crate) fn again(&mut self) {
        assert!(self.run(), "PostgreSQL did not start again: {}", self.log());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    fn run(&mut self) -> bool {
        // At the end of this process, the shell reads the end of its standard input. Then the shell
        // sends QUIT to the server. QUIT ends the server and its children at once.
        let script = r#"
"$@" </dev/null >>log 2>&1 & p=$!
read _
kill -QUIT $p 2>/dev/null
wait $p 2>/dev/null"#;
        let server = as_postgres(&program("postgres"));
        let (port, dir) = (self.port.to_string(), self.dir.display().to_string());
        let shell = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(server.get_program())
            .args(server.get_args())
            .args(["-D", "data", "-p", &port, "-k", &dir, "-h", "127.0.0.1"])
            .args(["-c", "fsync=off", "-c", "max_connections=60"])
            .current_dir(&self.dir)
            .stdin(Stdio::piped())
            .spawn();
        let mut shell = shell.expect("a shell");
        let end = Instant::now() + START;
        while Instant::now() < end {
            if matches!(shell.try_wait(), Ok(Some(_))) {
                return false;
            }
            let ready =
                Command::new(program("pg_isready")).args(["-q", "-h", &dir, "-p", &port]).status();
            if ready.expect("pg_isready").success() {
                self.shell = Some(shell);
                return true;
            }
            if self.log().contains("could not create any TCP/IP sockets") {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(shell.stdin.take());
        let _ = shell.wait();
        false
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

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().expect("id");
    id.stdout.starts_with(b"0")
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free loopback port");
    listener.local_addr().expect("an address").port()
}
