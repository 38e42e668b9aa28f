//! The Lua script that executes a batch. The script is assembled from several files. One call
//! executes a whole batch, so the script reads the clock and the data history (sequence of writes)
//! only once, and the ops keep their order.

use std::sync::LazyLock;

use redis::Script;

use super::codes::{codes, lua_text};

macro_rules! lua {
    ($($file:literal)*) => { concat!($(include_str!(concat!("../lua/", $file, ".lua")), "\n"),*) };
}

/// Text of the script: the functions of the fast paths, the functions of the slow paths, and the
/// loop over the batch. The functions come first, so that the variables of the loop are not
/// upvalues of these functions. The closures inside the slow paths are created only when an op
/// needs them.
const TEXT: &str = concat!(
    lua!("acquire_fast" "wake" "release_fast" "extend_fast"),
    lua!("claim_fast" "complete_fast" "claim_replay"),
    "local function fast(kind, k, a, count, marker, now_us, life, second)\n",
    lua!("shared_fast" "slots_fast" "many_fast"),
    "end\n",
    "local function batch(now_us, note, out)\n",
    lua!("batch"),
    "end\n",
    "local function rare(b, kind, k, a, count, rest, found, release, wake)\n",
    codes!(lua_text),
    lua!("helpers" "late"),
    "if find('AVWOTDQMRXISHGPYFUNJK', kind, 1, true) then\n",
    lua!("locks" "queue" "acquire" "release" "release_meta" "raise" "extend" "inspect"),
    lua!("shared" "slots" "many"),
    "end\n",
    lua!("candidates"),
    lua!("records" "claim" "raise_claim" "extend_claim" "complete" "steps" "unclaim" "lookup"),
    "end\n",
    lua!("prelude" "main"),
);

/// The Lua script that executes a batch, and its SHA-1 digest, the argument of `EVALSHA`.
pub(crate) static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(TEXT));

/// Returns the command that loads the script into a server's cache.
pub(crate) fn load() -> redis::Cmd {
    let mut cmd = redis::cmd("SCRIPT");
    cmd.arg("LOAD").arg(TEXT);
    cmd
}

/// Returns the Redis commands that this line of the script calls, in lower case. The first line has
/// the number 1, as in the servers' error messages.
pub(crate) fn commands_at(line: usize) -> Vec<String> {
    let text = line.checked_sub(1).and_then(|at| TEXT.lines().nth(at)).unwrap_or_default();
    let calls = text.split("call('").skip(1).filter_map(|rest| rest.split_once('\''));
    calls.map(|(command, _)| command.to_ascii_lowercase()).collect()
}
