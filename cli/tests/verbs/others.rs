//! A command becomes the process of another user. The program may not end such a process.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::ground::{Ground, signal, text, until};

const SOON: Duration = Duration::from_secs(10);

/// A command that becomes the process of another user.
const OTHER: &str = "setpriv --reuid=65534 --clear-groups sleep 60";

/// A run of the program, and a process that the program may not end. The test runs as root and may
/// end this process.
struct Weak {
    child: Child,
    other: Option<u32>,
}

impl Weak {
    fn end_other(&mut self) {
        if let Some(pid) = self.other.take() {
            signal(pid, "KILL");
        }
    }
}

impl Drop for Weak {
    fn drop(&mut self) {
        self.end_other();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `lock` without the right to signal processes of other users. Returns `None` if the test
/// does not run as root.
fn weak(ground: &Ground, script: &str) -> Option<Weak> {
    if std::fs::metadata("/proc/self").expect("Linux").uid() != 0 {
        eprintln!("skipped: only root can start another user's process");
        return None;
    }
    let line = ground.command(&["lock", "a", "--json", "-c", script]);
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-kill", "--inh-caps=-kill"]);
    command.arg(line.get_program()).args(line.get_args()).current_dir(&ground.dir);
    command.envs(line.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(Stdio::null()).stderr(File::create(ground.file("err")).expect("a file"));
    let mut weak = Weak { child: command.spawn().expect("it can be run"), other: None };
    until("a process id", SOON, || text(&ground.file("pid")).ends_with('\n'));
    let pid = text(&ground.file("pid")).trim().parse().expect("a number");
    weak.other = Some(pid);
    // At first the process is the shell, and then `setpriv`.
    let exe = format!("/proc/{pid}/comm");
    until("it is another user's", SOON, || text(exe.as_ref()) == "sleep\n");
    Some(weak)
}

fn warned(ground: &Ground) -> bool {
    let lines = text(&ground.file("err"));
    let lines = lines.lines().filter_map(|line| serde_json::from_str(line).ok());
    lines.filter(|line: &serde_json::Value| line["event"] == "still_runs").count() == 1
}

#[test]
fn a_command_that_cannot_be_ended_is_reported_before_the_lock_is_free() {
    let mut ground = Ground::new();
    let Some(mut weak) = weak(&ground, &format!("echo $$ >pid; exec {OTHER}")) else { return };
    ground.server.kill();
    until("it says so", SOON, || warned(&ground));
    assert!(weak.child.try_wait().expect("a child").is_none(), "it waits for its command");
    weak.end_other();
    assert_eq!(weak.child.wait().expect("a child").code(), Some(200));
}

#[test]
fn a_process_left_behind_that_cannot_be_ended_is_reported() {
    let ground = Ground::new();
    let script = format!("{OTHER} & echo $! >pid; while [ ! -e go ]; do sleep 0.02; done");
    let Some(mut weak) = weak(&ground, &script) else { return };
    std::fs::write(ground.file("go"), "").unwrap();
    assert_eq!(weak.child.wait().expect("a child").code(), Some(0));
    assert!(warned(&ground), "{}", text(&ground.file("err")));
}

#[test]
fn a_command_that_leaves_the_group_is_ended_with_the_lease() {
    let mut ground = Ground::new();
    let script = "echo $$ >pid; exec sleep 60";
    let run = ground.spawn(&["lock", "a", "--", "setsid", "sh", "-c", script]);
    until("it runs", SOON, || text(&ground.file("pid")).ends_with('\n'));
    ground.server.kill();
    assert_eq!(run.end(SOON).code, 200);
}
