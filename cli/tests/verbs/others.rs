//! A command becomes the process of another user. `palisade` may not end such a process.

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use crate::ground::{Ground, Running, is_alive, signal, text, until};

const SOON: Duration = Duration::from_secs(40);

/// A command that becomes the process of another user.
const OTHER: &str = "setpriv --reuid=65534 --clear-groups sleep 60";

/// A process that `palisade` may not end. The test runs as root, and ends it when the value is
/// dropped.
struct Other(u32);

impl Drop for Other {
    fn drop(&mut self) {
        signal(self.0, "KILL");
    }
}

/// Runs `lock` without the right to signal processes of other users. Returns `None` if the test
/// does not run as root.
fn weak(ground: &Ground, script: &str) -> Option<(Running, Other)> {
    if std::fs::metadata("/proc/self").expect("Linux").uid() != 0 {
        eprintln!("skipped: only root can start another user's process");
        return None;
    }
    let weak = ["setpriv", "--bounding-set=-kill", "--inh-caps=-kill"];
    let mut command = ground.through(&weak, &["lock", "a", "--json", "-c", script]);
    let run = ground.logged(&mut command);
    until("a process id", SOON, || text(&ground.file("pid")).ends_with('\n'));
    let pid = text(&ground.file("pid")).trim().parse().expect("a number");
    let other = Other(pid);
    // At first the process is the shell, and then `setpriv`.
    let exe = format!("/proc/{pid}/comm");
    until("it is another user's", SOON, || text(exe.as_ref()) == "sleep\n");
    Some((run, other))
}

fn warned(ground: &Ground) -> bool {
    let lines = text(&ground.file("err"));
    let lines = lines.lines().filter_map(|line| serde_json::from_str(line).ok());
    lines.filter(|line: &serde_json::Value| line["event"] == "still_runs").count() == 1
}

#[test]
fn a_command_that_cannot_be_ended_is_reported_before_the_lock_is_free() {
    let mut ground = Ground::new();
    let script = format!("echo $$ >pid; exec {OTHER}");
    let Some((run, other)) = weak(&ground, &script) else { return };
    ground.server.kill();
    until("it says so", SOON, || warned(&ground));
    assert!(is_alive(run.pid()), "it waits for its command");
    drop(other);
    assert_eq!(run.end(SOON).code, 200);
}

#[test]
fn a_process_left_behind_that_cannot_be_ended_is_reported() {
    let ground = Ground::new();
    let script = format!("{OTHER} & echo $! >pid; while [ ! -e go ]; do sleep 0.02; done");
    let Some((run, _other)) = weak(&ground, &script) else { return };
    std::fs::write(ground.file("go"), "").unwrap();
    assert_eq!(run.end(3 * SOON).code, 0);
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
