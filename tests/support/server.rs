//! Real `redis-server` processes for tests, on a free loopback port, below a temporary directory.
//! They end with the test even if the test process is killed.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Maximum time for a server to answer.
const START: Duration = Duration::from_secs(10);
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A server. Dropping it ends the process.
pub struct Server {
    program: String,
    dir: PathBuf,
    /// The address on which the server listens and from which it connects to others.
    host: String,
    port: u16,
    /// If true, the server's port is a TLS port, and it has no other.
    tls: bool,
    args: Vec<String>,
    /// Further arguments with which `redis-cli` logs in.
    login: Vec<String>,
    run: Option<Run>,
}

/// The shell that ends the server together with this process, and the server's process id.
struct Run {
    shell: Child,
    pid: u32,
}

impl Server {
    /// Starts a server with these arguments in addition to the necessary ones.
    pub fn start(args: &[&str]) -> Self {
        Self::start_program("redis-server", args)
    }

    /// Starts a program with the same command line as a server (`redis-sentinel`, `valkey-server`).
    pub fn start_program(program: &str, args: &[&str]) -> Self {
        Self::start_any(program, "127.0.0.1", args, false)
    }

    /// Starts a program on another loopback address, as on another machine.
    pub fn start_on(host: &str, program: &str, args: &[&str]) -> Self {
        Self::start_any(program, host, args, false)
    }

    /// Starts a program with TLS on its port. The arguments name the certificates.
    pub fn start_tls(program: &str, args: &[&str]) -> Self {
        Self::start_any(program, "127.0.0.1", args, true)
    }

    /// Starts a server with the users of this ACL file. `cli` logs in as the given user.
    pub fn start_with_users(acl: &str, args: &[&str], (user, password): (&str, &str)) -> Self {
        let dir = directory();
        std::fs::write(dir.join("users.acl"), acl).expect("a file below it");
        let args = [&["--aclfile", "users.acl"], args].concat();
        let mut server = Self::start_in(dir, "redis-server", "127.0.0.1", &args, false);
        let login = ["--no-auth-warning", "--user", user, "--pass", password];
        server.login = login.map(ToOwned::to_owned).to_vec();
        server
    }

    fn start_any(program: &str, host: &str, args: &[&str], tls: bool) -> Self {
        Self::start_in(directory(), program, host, args, tls)
    }

    fn start_in(dir: PathBuf, program: &str, host: &str, args: &[&str], tls: bool) -> Self {
        if program.ends_with("sentinel") {
            // A Sentinel's first argument must be a configuration file that it can write to.
            std::fs::write(dir.join("sentinel.conf"), "").expect("a file below it");
        }
        let args = args.iter().map(|a| (*a).to_owned()).collect();
        let (program, host) = (meant(program), host.to_owned());
        let port = free_port();
        let mut server = Self { program, dir, host, port, tls, args, login: vec![], run: None };
        // If another process takes the free port before the server does, try the next one.
        for _ in 0..5 {
            if server.spawn() {
                return server;
            }
            server.port = free_port();
        }
        panic!("{} did not start; its log: {}", server.program, server.log());
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns `host:port`.
    pub fn addr(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// Returns the server's directory, which contains its unix socket `redis.sock`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("redis.sock")
    }

    pub fn pid(&self) -> u32 {
        self.run.as_ref().expect("the server runs").pid
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut run) = self.run.take() {
            signal("KILL", run.pid);
            drop(run.shell.stdin.take());
            let _ = run.shell.wait();
        }
    }

    /// Stops the server with SIGSTOP.
    pub fn freeze(&self) {
        signal("STOP", self.pid());
    }

    /// Limits the length of the server's files, as if the disk were full then. `None` removes the
    /// limit.
    pub fn limit_files(&self, bytes: Option<u32>) {
        let limit = bytes.map_or("unlimited".to_owned(), |b| b.to_string());
        let set = format!("--fsize={limit}:unlimited");
        let set = Command::new("prlimit").args([&set, "--pid", &self.pid().to_string()]).status();
        assert!(set.expect("prlimit of util-linux").success(), "{limit} bytes");
    }

    /// Resumes the server with SIGCONT.
    pub fn resume(&self) {
        signal("CONT", self.pid());
    }

    /// Kills the server and starts it again on the same port with its data.
    pub fn restart(&mut self) {
        self.kill();
        self.again();
    }

    /// Kills the server, deletes all its data, and starts it again on the same port.
    pub fn restart_empty(&mut self) {
        self.kill();
        let _ = std::fs::remove_file(self.dir.join("dump.rdb"));
        let _ = std::fs::remove_dir_all(self.dir.join("appendonlydir"));
        self.again();
    }

    /// Starts a killed server again.
    pub fn again(&mut self) {
        let end = Instant::now() + START;
        while !self.spawn() {
            assert!(Instant::now() < end, "{} did not restart: {}", self.program, self.log());
        }
    }

    /// Returns the operator's user and password, if the server accepts no other user.
    pub fn credentials(&self) -> Option<(&str, &str)> {
        match self.login.as_slice() {
            [_, _, user, _, password] => Some((user, password)),
            _ => None,
        }
    }

    /// Runs one command over the unix socket, as the default user unless set otherwise, and returns
    /// the raw answer.
    pub fn cli(&self, args: &[&str]) -> String {
        let out = Command::new("redis-cli")
            .arg("-s")
            .arg(self.socket())
            .args(&self.login)
            .args(args)
            .output()
            .unwrap_or_else(|e| panic!("redis-cli is missing ({e}): install redis-tools"));
        String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
    }

    /// Runs these commands, one in each line, on one connection, and returns the raw answers.
    pub fn session(&self, commands: &str) -> String {
        let mut cli = Command::new("redis-cli")
            .arg("-s")
            .arg(self.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("redis-cli is missing ({e}): install redis-tools"));
        cli.stdin.take().expect("piped").write_all(commands.as_bytes()).expect("it reads");
        let out = cli.wait_with_output().expect("it ends");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Returns the server's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    fn spawn(&mut self) -> bool {
        let pidfile = self.dir.join("pid");
        let _ = std::fs::remove_file(&pidfile);
        // The shell waits for the end of its standard input, which the kernel closes even if this
        // process dies by SIGKILL, and then ends the server by its process id. It ignores XFSZ, so
        // that a file that may not grow is a write error for the server, as on a full disk, and
        // does not end it.
        let script = r#"trap '' XFSZ
prog=$1; shift
command -v "$prog" >/dev/null || exit 127
"$prog" "$@" </dev/null >>log 2>&1 & p=$!
echo $p > pid.new && mv pid.new pid
read _
kill -9 $p 2>/dev/null
wait $p 2>/dev/null"#;
        let mut all = self.args.clone();
        if !self.program.ends_with("sentinel") && !all.iter().any(|a| a == "--save") {
            all.extend(["--save".into(), String::new()]);
        }
        if self.tls {
            all.extend(["--port".into(), "0".into(), "--tls-port".into()]);
        } else {
            all.push("--port".into());
        }
        all.push(self.port.to_string());
        all.extend(["--bind".into(), self.host.clone()]);
        if self.host != "127.0.0.1" {
            all.extend(["--bind-source-addr".into(), self.host.clone()]);
            // Protected mode would accept connections from 127.0.0.1 only.
            all.extend(["--protected-mode".into(), "no".into()]);
        }
        all.extend(["--unixsocket".into(), self.socket().display().to_string()]);
        let mut shell = Command::new("sh")
            .args(["-c", script, "sh", &self.program])
            .args(&all)
            .current_dir(&self.dir)
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell");
        let end = Instant::now() + START;
        loop {
            if let Ok(Some(status)) = shell.try_wait() {
                assert!(
                    status.code() != Some(127),
                    "{} is missing: install the package redis-server",
                    self.program
                );
                return false;
            }
            let pid = std::fs::read_to_string(&pidfile).ok().and_then(|p| p.trim().parse().ok());
            if let Some(pid) = pid {
                if self.answers() {
                    self.run = Some(Run { shell, pid });
                    return true;
                }
                if !Path::new(&format!("/proc/{pid}")).exists() || Instant::now() > end {
                    signal("KILL", pid);
                    drop(shell.stdin.take());
                    let _ = shell.wait();
                    return false;
                }
            }
            assert!(Instant::now() < end + START, "the shell for {} hangs", self.program);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns true if this server answers. Another server on the port would not have this server's
    /// socket.
    fn answers(&self) -> bool {
        let Ok(mut tcp) = TcpStream::connect((&*self.host, self.port)) else {
            return false;
        };
        let _ = tcp.write_all(b"PING\r\n");
        let text = self.cli(&["ping"]);
        text.contains("PONG") || text.contains("NOAUTH") || text.contains("NOPERM")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Returns the program with this name, or the one that the environment names in its place, for
/// example a newer version or Valkey.
fn meant(program: &str) -> String {
    let named = match program {
        "redis-server" => std::env::var("PALISADE_REDIS_SERVER"),
        "redis-sentinel" => std::env::var("PALISADE_REDIS_SENTINEL"),
        _ => return program.to_owned(),
    };
    named.unwrap_or_else(|_| program.to_owned())
}

fn directory() -> PathBuf {
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("palisade-{}-{n}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory below the temporary one");
    dir
}

/// Returns a port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|l| l.local_addr())
        .expect("a free loopback port")
        .port()
}

fn signal(name: &str, pid: u32) {
    let _ = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
}
