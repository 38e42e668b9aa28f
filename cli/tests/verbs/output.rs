//! The output of the command that `palisade once` or `lock` runs. The reader of the output is slow,
//! or another process keeps the output open.

use std::cell::RefCell;
use std::time::Duration;

use serde_json::Value;

use crate::ground::{Ground, signal, text, until};

const SOON: Duration = Duration::from_secs(40);

/// Waits until a result is stored, and returns the result.
fn stored(ground: &Ground, key: &str) -> Value {
    let shown = RefCell::new(Value::Null);
    until("a result is stored", SOON, || {
        let run = ground.run(&["idem", "show", key]);
        *shown.borrow_mut() = serde_json::from_str(&run.out).unwrap_or_default();
        shown.borrow()["state"] == "stored"
    });
    shown.into_inner()["result"].take()
}

/// A script with a long output. The output is longer than the pipes and the buffers of `palisade`
/// together. It is shorter than the limit of the stored output.
const LETTERS: &str = "head -c 79006 /dev/zero | tr '\\0' x";

/// A script that leaves a process behind. This process is not in the command's group, and keeps the
/// output open.
const HOLDS: &str = "setsid sh -c 'touch away; exec sleep 60' & echo $! >pid; \
                     while [ ! -e away ]; do sleep 0.01; done; echo out";

#[test]
fn output_is_kept_whole_and_written_whole_if_its_reader_is_slow() {
    let ground = Ground::new();
    // The test does not read the output until the result is stored.
    let run = ground.spawn(&["once", "k", "-c", LETTERS]);
    let result = stored(&ground, "k");
    assert_eq!(result["stdout"].as_str().map(str::len), Some(79_006));
    assert_eq!(result["cut"], false);
    let run = run.read();
    assert_eq!((run.code, run.out.len()), (0, 79_006), "{}", run.err);
    assert_eq!(ground.run(&["once", "k", "-c", LETTERS]).out.len(), 79_006);
}

#[test]
fn a_signal_ends_the_program_while_nobody_reads_its_output() {
    let ground = Ground::new();
    let run = ground.spawn(&["once", "k", "-c", LETTERS]);
    stored(&ground, "k");
    run.signal("TERM");
    assert_eq!(run.end(SOON).code, 143);
    assert_eq!(ground.run(&["once", "k", "-c", LETTERS]).out.len(), 79_006);
}

#[test]
fn a_command_is_ended_in_time_while_nobody_reads_the_messages() {
    let ground = Ground::new();
    // The command and `palisade` have the same standard error. The command fills the pipe.
    let fills = "head -c 1000000 /dev/zero >&2";
    let run = ground.spawn(&["lock", "job", "--at-most", "1s", "-c", fills]);
    assert_eq!(run.end(SOON).code, 124);
}

#[test]
fn a_signal_ends_the_program_while_nobody_reads_what_was_recorded() {
    let ground = Ground::new();
    assert_eq!(ground.run(&["once", "k", "-c", LETTERS]).code, 0);
    for stream in ["once k", "once err", "idem show k"] {
        let errors = format!("{LETTERS} >&2");
        let args: Vec<_> = match stream {
            "once k" => vec!["once", "k", "-c", LETTERS],
            "once err" => {
                assert_eq!(ground.run(&["once", "err", "-c", &errors]).err.len(), 79_006);
                vec!["once", "err", "-c", &errors]
            }
            _ => vec!["idem", "show", "k"],
        };
        let run = ground.spawn(&args);
        // `palisade` has more output than the pipe can hold.
        until("it waits for its reader", SOON, || pipe_is_full(run.pid()));
        run.signal("TERM");
        let ended = run.end(SOON);
        // The signal itself ends `palisade`, or `palisade` ends with the exit code for the signal.
        assert!([143, -1].contains(&ended.code), "{stream}: {ended:?}");
        assert!(ended.out.len() + ended.err.len() < 79_006, "{stream}");
    }
    // The stored output is complete.
    assert_eq!(ground.run(&["once", "k", "-c", LETTERS]).out.len(), 79_006);
}

/// Returns true if a thread of the process waits in a write to a pipe.
fn pipe_is_full(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    threads.into_iter().flatten().flatten().any(|thread| {
        let waits = std::fs::read_to_string(thread.path().join("wchan")).unwrap_or_default();
        waits.contains("pipe_write")
    })
}

#[test]
fn output_that_is_still_held_open_is_marked_as_cut() {
    let ground = Ground::new();
    let run = ground.run(&["once", "k", "-c", HOLDS]);
    let left = text(&ground.file("pid")).trim().parse().expect("a process id");
    signal(left, "KILL");
    assert_eq!((run.code, &*run.out), (0, "out\n"), "{}", run.err);
    let result = stored(&ground, "k");
    assert_eq!((&result["stdout"], &result["cut"]), (&"out\n".into(), &true.into()));
    let again = ground.run(&["once", "k", "-c", HOLDS]);
    assert!(again.out == "out\n" && again.err.contains("incomplete"), "{}", again.err);
}

#[test]
fn output_without_a_reader_is_kept() {
    let ground = Ground::new();
    let mut command = ground.command(&["once", "k", "-c", "seq 20000"]);
    command.stdout(std::process::Stdio::piped());
    let mut child = command.spawn().expect("it can be run");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("a child").code(), Some(0));
    let result = stored(&ground, "k");
    assert!(result["stdout"].as_str().is_some_and(|out| out.starts_with("1\n2\n")));
    assert_eq!(result["cut"], true, "more than is kept");
}
