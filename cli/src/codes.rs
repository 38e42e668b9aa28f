//! Exit codes of `palisade`, and the failures that end it with an exit code.

/// Exit code if palisade or a node refuses what was requested, for example because there is no
/// leader.
pub(crate) const REFUSED: u8 = 2;
/// Exit code of wrong use, as in `sysexits`.
pub(crate) const USAGE: u8 = 64;
/// Exit code if the key was already used for another command.
pub(crate) const MISMATCH: u8 = 65;
/// Exit code if too few nodes could be reached.
pub(crate) const UNAVAILABLE: u8 = 69;
/// Exit code of a local failure that is unrelated to the nodes.
pub(crate) const INTERNAL: u8 = 70;
/// Exit code if another process holds the lock. `-E` sets another exit code. A command that exits
/// with this code requests another run.
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// Exit code if the command was found but could not be run.
pub(crate) const CANNOT_RUN: u8 = 126;
/// Exit code if the command was not found.
pub(crate) const NOT_FOUND: u8 = 127;
/// Exit code if the lock was lost while the command ran. `palisade` then ended the command.
pub(crate) const LOST: u8 = 200;
/// Exit code if an earlier run may have taken effect. A person has to decide.
pub(crate) const PARKED: u8 = 201;
/// Exit code if the command ran but the nodes did not confirm that its result is stored.
pub(crate) const NOT_RECORDED: u8 = 202;

/// Table of the exit codes for `--help`.
pub(crate) const TABLE: &str = "\
Exit codes:
  that of the command; 128+N if signal N ended it
  64   wrong use
  65   the key was used for another command (once)
  69   the nodes cannot be reached, or too few of them
  70   no process could be started
  75   not acquired: another owner holds it (another code with -E)
  124  the command ran for longer than --at-most
  126  the command cannot be run
  127  the command was not found
  200  lost while running: the command was ended before the lease ended
  201  parked: an earlier run may have taken effect; see `palisade idem` (once)
  202  the command ran, and its result is not known to be stored (once)";

/// A failure of `palisade`, with its exit code.
#[derive(Debug)]
pub(crate) struct Fail {
    pub(crate) code: u8,
    pub(crate) why: String,
}

impl Fail {
    pub(crate) fn new(code: u8, why: impl Into<String>) -> Self {
        Self { code, why: why.into() }
    }
}

/// Creates the failure for an error in the command line or in a setting.
impl From<String> for Fail {
    fn from(why: String) -> Self {
        Self { code: USAGE, why }
    }
}

impl From<palisade::ConfigError> for Fail {
    fn from(e: palisade::ConfigError) -> Self {
        let why = e.to_string();
        Self::from(why.replace("say `allow_even_nodes()`", "add --allow-even-nodes"))
    }
}

impl From<std::io::Error> for Fail {
    fn from(e: std::io::Error) -> Self {
        Self { code: INTERNAL, why: e.to_string() }
    }
}
