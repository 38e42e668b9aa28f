//! The demo's own Redis servers.

use std::fmt;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

/// Time limit for the start of a server.
const START: Duration = Duration::from_secs(10);

/// Error of a server that did not start.
#[derive(Debug)]
pub struct ServerError(String);

impl ServerError {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ServerError {}

/// Servers and their directory. Dropping this value ends the servers and removes the directory.
#[derive(Debug)]
pub(super) struct Servers {
    dir: PathBuf,
    all: Vec<Server>,
}

#[derive(Debug)]
struct Server {
    port: u16,
    dir: PathBuf,
    /// The shell that ends the server when its standard input ends.
    shell: Option<Child>,
}

impl Servers {
    pub(super) async fn start(n: usize) -> Result<Self, ServerError> {
        let name = format!("palisade-demo-{}-{:08x}", std::process::id(), rand::random::<u32>());
        let dir = std::env::temp_dir().join(name);
        let mut servers = Self { dir: dir.clone(), all: Vec::new() };
        for number in 0..n {
            let dir = dir.join(number.to_string());
            let failed = |e: std::io::Error| ServerError::new(format!("{}: {e}", dir.display()));
            std::fs::create_dir_all(&dir).map_err(failed)?;
            let port = free_port().map_err(failed)?;
            servers.all.push(Server { port, dir: dir.clone(), shell: None });
        }
        for server in &mut servers.all {
            server.start().await?;
        }
        Ok(servers)
    }

    pub(super) fn urls(&self) -> Vec<String> {
        self.all.iter().map(|server| format!("redis://127.0.0.1:{}", server.port)).collect()
    }

    pub(super) async fn restart(&mut self, number: usize, away: Duration) {
        let Some(server) = self.all.get_mut(number) else { return };
        server.stop().await;
        sleep(away).await;
        if let Err(e) = server.start().await {
            tracing::warn!(target: "palisade_console", %e, "a server of the demo is gone");
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // Dropping a server closes the standard input of its shell, and the shell then kills the
        // server.
        self.all.clear();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl Server {
    async fn start(&mut self) -> Result<(), ServerError> {
        self.shell = Some(spawn(self.port, &self.dir)?);
        let end = Instant::now() + START;
        loop {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await.is_ok() {
                return Ok(());
            }
            let exit = self.shell.as_mut().and_then(|shell| shell.try_wait().ok().flatten());
            if exit.is_some_and(|status| status.code() == Some(127)) {
                let why = "redis-server is missing: install it (Debian and Ubuntu: `apt-get \
                           install redis-server`), or name your servers by --node";
                return Err(ServerError::new(why));
            }
            if exit.is_some() || Instant::now() > end {
                let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
                let last = log.lines().last().unwrap_or_default().to_owned();
                return Err(ServerError::new(format!("redis-server did not start: {last}")));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn stop(&mut self) {
        if let Some(mut shell) = self.shell.take() {
            drop(shell.stdin.take());
            let _ = shell.wait().await;
        }
    }
}

/// Starts a server through a shell. The shell waits until its standard input is closed, and then
/// kills the server. The kernel closes this input even if this process is killed.
fn spawn(port: u16, dir: &Path) -> Result<Child, ServerError> {
    const SCRIPT: &str = r#"command -v redis-server >/dev/null || exit 127
redis-server --port "$1" --bind 127.0.0.1 --save '' --appendonly yes --appendfsync everysec \
    </dev/null >>log 2>&1 & p=$!
read _
kill -9 $p 2>/dev/null
wait $p 2>/dev/null"#;
    let shell = Command::new("sh")
        .args(["-c", SCRIPT, "sh", &port.to_string()])
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // In a process group of its own, the shell does not receive the signals of the terminal. So
        // Ctrl-C ends only the console, and the console then ends the server.
        .process_group(0)
        .spawn();
    shell.map_err(|e| ServerError::new(format!("cannot start a shell: {e}")))
}
