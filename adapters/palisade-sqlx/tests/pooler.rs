//! PgBouncer for one test, in transaction mode, between the clients and the server. PgBouncer
//! listens on a free loopback port and has its files in the server's directory. When the test ends
//! or is killed, a shell ends PgBouncer by its process id.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

use crate::child::{Child, free_port};
use crate::server::{Postgres, as_postgres};

/// Maximum time for which a client waits for a server connection.
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) struct Pooler {
    port: u16,
    _child: Child,
}

impl Pooler {
    pub(crate) fn start(server: &Postgres, connections: u32) -> Self {
        for _ in 0..5 {
            if let Some(pooler) = run(server, connections) {
                return pooler;
            }
        }
        panic!("PgBouncer did not start: {}", log(server.dir()));
    }

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
    let debian = Path::new("/usr/sbin/pgbouncer");
    let mut program = as_postgres(if debian.exists() { debian } else { Path::new("pgbouncer") });
    program.arg(&ini);
    let listens = || log(dir).contains(&format!("listening on 127.0.0.1:{port}"));
    let failed = || log(dir).contains("FATAL");
    let child = Child::start(&program, (dir, "pooler.log", "TERM"), listens, failed)?;
    Some(Pooler { port, _child: child })
}
