//! Real `redis-server` processes for tests, on free loopback ports, each with its own directory in
//! the temporary directory. The servers end with the test, even if the test process is killed.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time limit for the start of a server.
const START: Duration = Duration::from_secs(90);
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A server process. Dropping this value ends the process.
pub struct Server {
    program: String,
    dir: PathBuf,
    /// Address on which the server listens. The server's own connections use this address, too.
    host: String,
    port: u16,
    /// If true, the server's only port is a TLS port.
    tls: bool,
    args: Vec<String>,
    /// Arguments that make `redis-cli` log in.
    login: Vec<String>,
    run: Option<Run>,
}

/// A running server: the shell that ends the server when this process ends, and the server's
/// process id.
struct Run {
    shell: Child,
    pid: u32,
}

impl Server {
    /// Starts a server with the necessary arguments and these additional ones.
    pub fn start(args: &[&str]) -> Self {
        Self::start_program("redis-server", args)
    }

    /// Starts a program with the command line of a server, for example `redis-sentinel` or
    /// `valkey-server`.
    pub fn start_program(program: &str, args: &[&str]) -> Self {
        Self::start_any(program, "127.0.0.1", args, false)
    }

    /// Starts a program on another loopback address, to imitate another machine.
    pub fn start_on(host: &str, program: &str, args: &[&str]) -> Self {
        Self::start_any(program, host, args, false)
    }

    /// Starts a program whose only port is a TLS port. The arguments name the certificates.
    pub fn start_tls(program: &str, args: &[&str]) -> Self {
        Self::start_any(program, "127.0.0.1", args, true)
    }

    /// Starts a server with the users in this ACL file. `cli` then logs in as the given user.
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
            // The first argument of a Sentinel must be a configuration file with write access.
            std::fs::write(dir.join("sentinel.conf"), "").expect("a file below it");
        }
        let args = args.iter().map(|a| (*a).to_owned()).collect();
        let (program, host) = (meant(program), host.to_owned());
        let port = free_port();
        let mut server = Self { program, dir, host, port, tls, args, login: vec![], run: None };
        // Another process may take the free port before the server uses it. Then try another port.
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

    /// Returns the port of the cluster bus, as it was given to the server.
    pub fn bus(&self) -> &str {
        let at = self.args.iter().position(|arg| arg == "--cluster-port");
        at.and_then(|at| self.args.get(at + 1)).expect("a server of a cluster")
    }

    pub fn runs(&self) -> bool {
        self.run.is_some()
    }

    /// Returns the server's address as `host:port`.
    pub fn addr(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// Returns the server's directory. The unix socket `redis.sock` is in this directory.
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

    /// Limits the length of the server's files to `bytes`, to imitate a full disk. `None` removes
    /// the limit.
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

    /// Returns the operator's user name and password, if the server was started with users.
    pub fn credentials(&self) -> Option<(&str, &str)> {
        match self.login.as_slice() {
            [_, _, user, _, password] => Some((user, password)),
            _ => None,
        }
    }

    /// Runs one command over the unix socket and returns the raw reply. Logs in as the default
    /// user, or as the user of `start_with_users`.
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

    /// Returns the number of calls of this command on the server.
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.cli(&["info", "commandstats"]);
        let calls = format!("cmdstat_{command}:calls=");
        let calls = stats.lines().find_map(|line| line.strip_prefix(&calls)?.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    }

    /// Runs these commands on one connection and returns the raw replies. Each line is one command.
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
        // The shell waits for the end of its standard input. The kernel closes this input even if
        // SIGKILL ends this process. The shell then ends the server by its process id.
        //
        // The shell ignores the signal XFSZ. So a file at its length limit causes a write error in
        // the server, as on a full disk, and does not end the server.
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
            // With protected mode, the server would accept connections only from 127.0.0.1.
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

    /// Returns true if this server replies. The unix socket belongs to this server only. Another
    /// server may have taken the port.
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

/// Returns the program to start. An environment variable can replace `redis-server` and
/// `redis-sentinel`, for example by a newer version or by Valkey.
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

/// Returns a port that no process used at the time of the call.
pub fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|l| l.local_addr())
        .expect("a free loopback port")
        .port()
}

fn signal(name: &str, pid: u32) {
    let _ = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
}
