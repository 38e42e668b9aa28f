//! A server, and runs of the program `palisade` with this server.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::server::Server;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Returns a command that runs `palisade` without settings from the environment.
pub(crate) fn palisade() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PALISADE_")) {
        command.env_remove(name);
    }
    command
}

/// A server that was marked as new, and a temporary directory.
pub(crate) struct Ground {
    pub(crate) server: Server,
    pub(crate) dir: PathBuf,
}

impl Ground {
    pub(crate) fn new() -> Self {
        let server = Server::start(&[]);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("palisade-verbs-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let ground = Self { server, dir };
        let init =
            palisade().args(["init", "--new", "--node", &ground.url()]).output().expect("it runs");
        assert!(init.status.success(), "{}", String::from_utf8_lossy(&init.stderr));
        ground
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.server.addr())
    }

    /// Returns a command that runs `palisade` with these arguments.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = palisade();
        command.env("PALISADE_URLS", self.url());
        // A quarantine is as long as the longest permitted lease. This command sets that length to
        // its own lease, so that quarantines are short.
        let given = args.iter().skip_while(|arg| **arg != "--ttl").nth(1);
        command.env("PALISADE_TTL", "2s").env("PALISADE_MAX_TTL", given.unwrap_or(&"2s"));
        // On a busy machine a server replies late. The tests of `palisade` do not test late
        // replies.
        command.env("PALISADE_NODE_DEADLINE", "600ms");
        command.args(args).current_dir(&self.dir);
        command
    }

    /// Runs `palisade` with these arguments to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Run {
        Run::of(&self.command(args).output().expect("it can be run"))
    }

    /// Returns a command that starts `palisade` through another program: `words` are that program
    /// and its arguments, and `palisade` with `args` follows.
    pub(crate) fn through(&self, words: &[&str], args: &[&str]) -> Command {
        let plain = self.command(args);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(plain.get_program()).args(plain.get_args());
        command.current_dir(&self.dir);
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Starts `palisade` with the default effect of signals. The process that runs the tests may
    /// ignore signals, and its children would inherit this.
    pub(crate) fn spawn(&self, args: &[&str]) -> Running {
        let mut command = self.through(&["env", "--default-signal=HUP,INT,QUIT"], args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().expect("it can be run")))
    }

    /// Starts `palisade` with a command that runs for 60 s, and waits until the command has begun.
    /// Then `palisade` holds the lock, permit or leadership that `args` name.
    pub(crate) fn holding(&self, args: &[&str]) -> Running {
        let file = self.file("held");
        let _ = std::fs::remove_file(&file);
        let run = self.spawn(&[args, &["-c", "touch held; sleep 60"]].concat());
        until("it is held", Duration::from_secs(10), || file.exists());
        run
    }

    /// Starts the command, with its messages in the file `err`.
    pub(crate) fn logged(&self, command: &mut Command) -> Running {
        command.stdin(Stdio::null()).stderr(File::create(self.file("err")).expect("a file"));
        // A process that another test started a moment ago may still have the program open for
        // writing.
        let busy = |child: &io::Result<Child>| {
            child.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::ExecutableFileBusy)
        };
        let mut child = command.spawn();
        for _ in 0..100 {
            if !busy(&child) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            child = command.spawn();
        }
        Running(Some(child.expect("it can be run")))
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The result of a run of `palisade`.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Run {
    pub(crate) fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or(-1);
        Self { code, out: text(&output.stdout), err: text(&output.stderr) }
    }

    pub(crate) fn json(&self) -> Value {
        object(&self.out)
    }
}

/// A running `palisade`. Dropping the value kills it.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.0.as_ref().expect("it runs").id()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits until `palisade` handles signals itself. Before that, a signal would end it at once.
    pub(crate) fn listens(&self) {
        let term = 1_u64 << 14;
        until("it listens to signals", Duration::from_secs(10), || {
            let status = text(Path::new(&format!("/proc/{}/status", self.pid())));
            let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            mask.is_some_and(|hex| u64::from_str_radix(hex.trim(), 16).unwrap_or(0) & term > 0)
        });
    }

    /// Reads all output of `palisade`, waits for its end, and returns the result.
    pub(crate) fn read(mut self) -> Run {
        let child = self.0.take().expect("it runs");
        Run::of(&child.wait_with_output().expect("a child"))
    }

    /// Waits until `palisade` ends, for at most `within`, and returns the result.
    pub(crate) fn end(mut self, within: Duration) -> Run {
        let mut child = self.0.take().expect("it runs");
        let until = Instant::now() + within;
        while child.try_wait().expect("a child").is_none() {
            if Instant::now() > until {
                let _ = child.kill();
                panic!("it did not end within {within:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Run::of(&child.wait_with_output().expect("a child"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            signal(child.id(), "CONT");
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
}

/// Returns true if the process runs. A zombie does not run.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// Waits until `is` returns true.
pub(crate) fn until(what: &str, within: Duration, is: impl Fn() -> bool) {
    let end = Instant::now() + within;
    while !is() {
        assert!(Instant::now() < end, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn object(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Returns the present content of a file. Returns an empty text if the file does not exist.
pub(crate) fn text(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

/// Runs the command with `input` on its standard input.
pub(crate) fn fed(command: &mut Command, input: &str) -> Run {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it can be run");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes()).expect("a line");
    drop(stdin);
    Run::of(&child.wait_with_output().expect("a child"))
}
