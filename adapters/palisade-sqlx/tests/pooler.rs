//! PgBouncer for one test, in transaction mode, between the clients and the server. PgBouncer
//! listens on a free loopback port and has its files in the server's directory. When the test ends
//! or is killed, a shell ends PgBouncer by its process id.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

use crate::server::{Postgres, as_postgres, free_port};

const START: Duration = Duration::from_mins(1);
/// Maximum time for which a client waits for a server connection.
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) struct Pooler {
    port: u16,
    /// The shell process that ends PgBouncer when this process ends.
    shell: Child,
}

impl Pooler {
    /// Starts PgBouncer with `connections` connections to the server.
    pub(crate) fn start(server: &Postgres, connections: u32) -> Self {
        for _ in 0..5 {
            if let Some(pooler) = run(server, connections) {
                return pooler;
            }
        }
        panic!("PgBouncer did not start: {}", log(server.dir()));
    }

    /// Returns a client with `connections` connections. Its settings are those in the README.
    pub(crate) async fn client(&self, connections: u32) -> PgPool {
        let options: PgConnectOptions = self.url().parse().expect("a URL");
        let options = options.statement_cache_capacity(0).extra_float_digits(None);
        let options = options.application_name("pooled");
        let pool = PgPoolOptions::new().max_connections(connections).acquire_timeout(PATIENCE);
        pool.connect_with(options).await.expect("it takes clients")
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://palisade@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

fn log(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("pooler.log")).unwrap_or_default()
}

/// Tries to start PgBouncer. Returns `None` if PgBouncer ends at once because another program took
/// the port.
fn run(server: &Postgres, connections: u32) -> Option<Pooler> {
    let (port, dir) = (free_port(), server.dir());
    let settings = format!(
        "[databases]\npostgres = host=127.0.0.1 port={} user=palisade\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = any\npool_mode = transaction\ndefault_pool_size = {connections}\n\
         max_client_conn = 100\n",
        server.port()
    );
    let ini = dir.join("pooler.ini");
    let mut file = std::fs::File::create(&ini).expect("a file in the server's directory");
    file.write_all(settings.as_bytes()).expect("written");
    // At the end of this process, the shell reads the end of its standard input. Then the shell
    // ends PgBouncer.
    let script = r#"
"$@" </dev/null >pooler.log 2>&1 & p=$!
read _
kill -TERM $p 2>/dev/null
wait $p 2>/dev/null"#;
    let debian = Path::new("/usr/sbin/pgbouncer");
    let program = as_postgres(if debian.exists() { debian } else { Path::new("pgbouncer") });
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(program.get_program()).args(program.get_args());
    let shell = shell.arg(&ini).current_dir(dir).stdin(Stdio::piped()).spawn().expect("a shell");
    let mut pooler = Pooler { port, shell };
    let end = Instant::now() + START;
    while Instant::now() < end {
        if log(dir).contains(&format!("listening on 127.0.0.1:{port}")) {
            return Some(pooler);
        }
        if log(dir).contains("FATAL") || matches!(pooler.shell.try_wait(), Ok(Some(_))) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    None
}
