//! The one script, put together from its files. One call runs a whole batch, so that clock and
//! generation are read once and the order of the ops is kept.

use std::sync::LazyLock;

use redis::Script;

macro_rules! lua {
    ($($file:literal)*) => { concat!($(include_str!(concat!("../lua/", $file, ".lua")), "\n"),*) };
}

/// The script's text: what every batch needs with the common ops, what is made only when it is
/// needed, the loop over the batch.
const TEXT: &str = concat!(
    lua!("prelude" "acquire" "release"),
    "function rare()\n",
    lua!(
        "helpers" "refuse" "raise" "extend" "inspect" "claim" "raise_claim" "extend_claim"
        "complete" "unclaim" "lookup" "rarely"
    ),
    "end\n",
    lua!("main"),
);

/// The script with its digest.
pub(crate) static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(TEXT));

/// The command that puts the script into a server's cache.
pub(crate) fn load() -> redis::Cmd {
    let mut cmd = redis::cmd("SCRIPT");
    cmd.arg("LOAD").arg(TEXT);
    cmd
}
