//! The machines under the servers: their wall clocks step and their disks are slow on command.
//!
//! A small library is preloaded into each data server (`machine.c`). It is compiled when it is
//! needed; where there is no C compiler these two kinds of fault are left out.

use std::fs;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("machine.c");
/// The file beside a server's `redis.conf`.
const FILE: &str = "machine";

/// What to set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// Microseconds that the wall clock is ahead.
    Clock,
    /// Microseconds that a flush takes more.
    Disk,
}

/// Makes the program to start servers with; `None` where it cannot be made.
pub(crate) fn make(dir: &Path) -> io::Result<Option<PathBuf>> {
    let dir = dir.canonicalize()?;
    let (source, library, program) =
        (dir.join("machine.c"), dir.join("machine.so"), dir.join("server"));
    fs::write(&source, SOURCE)?;
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source);
    let Ok(out) = cc.output() else { return Ok(None) };
    if !out.status.success() {
        return Ok(None);
    }
    let real = std::env::var("PALISADE_REDIS_SERVER").unwrap_or("redis-server".to_owned());
    let script = format!(
        "#!/bin/sh\n\
         # Starts a data server on a machine that can be disturbed; all else as it is.\n\
         case \"$1\" in */redis.conf)\n\
         \x20   NEMESIS_MACHINE=${{1%redis.conf}}{FILE}\n\
         \x20   [ -s \"$NEMESIS_MACHINE\" ] || head -c 16 /dev/zero >\"$NEMESIS_MACHINE\"\n\
         \x20   export NEMESIS_MACHINE LD_PRELOAD='{}' ;;\n\
         esac\n\
         exec '{real}' \"$@\"\n",
        library.display()
    );
    fs::write(&program, script)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    Ok(Some(program))
}

/// Sets a part of the machine whose server lives in this directory.
pub(crate) fn set(home: &Path, part: Part, micros: i64) -> io::Result<()> {
    // In place: the server has it mapped.
    let mut file = fs::OpenOptions::new().write(true).open(home.join(FILE))?;
    file.seek(SeekFrom::Start(if matches!(part, Part::Clock) { 0 } else { 8 }))?;
    file.write_all(&micros.to_ne_bytes())
}
