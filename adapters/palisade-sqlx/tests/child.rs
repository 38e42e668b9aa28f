//! Servers that end with the test that started them, even if the test is killed.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::time::{Duration, Instant};

const START: Duration = Duration::from_mins(1);

/// The shell process that ends a server when this process ends. Dropping the value ends the server.
pub(crate) struct Child(process::Child);

impl Child {
    /// Starts the server in the directory, with its output in the file `log`. Returns the server
    /// when `ready` returns true. Returns `None` if the server ends or `failed` returns true before
    /// that. At its end, the server gets the signal `end`.
    pub(crate) fn start(
        server: &Command,
        (dir, log, end): (&Path, &str, &str),
        ready: impl Fn() -> bool,
        failed: impl Fn() -> bool,
    ) -> Option<Self> {
        // At the end of this process, the shell reads the end of its standard input. Then the shell
        // ends the server.
        let script = format!(
            "\"$@\" </dev/null >>{log} 2>&1 & p=$!
             read _
             kill -{end} $p 2>/dev/null
             wait $p 2>/dev/null"
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, "sh"]).arg(server.get_program()).args(server.get_args());
        let shell = shell.current_dir(dir).stdin(Stdio::piped()).spawn();
        let mut child = Self(shell.expect("a shell"));
        let begun = Instant::now();
        while begun.elapsed() < START && !matches!(child.0.try_wait(), Ok(Some(_))) && !failed() {
            if ready() {
                return Some(child);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

pub(crate) fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().expect("id");
    id.stdout.starts_with(b"0")
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free loopback port");
    listener.local_addr().expect("an address").port()
}
