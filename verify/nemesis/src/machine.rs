//! Simulated machines: a small library (`machine.c`) is preloaded into each data server and client,
//! and changes their clocks and disks. Without a C compiler, all clocks are equal and no disk is
//! slow.

use std::fs;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::world::Failure;

const SOURCE: &str = include_str!("machine.c");
/// File name of the preloaded library.
const LIBRARY: &str = "machine.so";

/// Part of a machine that can be disturbed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// Wall clock, as the number of microseconds by which it is ahead.
    Clock,
    /// Disk, as the number of additional microseconds for each flush.
    Disk,
}

/// Compiles the library `machine.c`, which changes a clock and slows a disk, and writes the program
/// that starts a server with this library. Returns the path of the program. Returns `None` if there
/// is no working C compiler.
pub(crate) fn make(dir: &Path) -> io::Result<Option<PathBuf>> {
    let dir = dir.canonicalize()?;
    let (source, library, program) = (dir.join("machine.c"), dir.join(LIBRARY), dir.join("server"));
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
         \x20   NEMESIS_MACHINE=${{1%/redis.conf}}.machine\n\
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

/// Returns the path of the file with the clock error and the disk delay of the server in the folder
/// `home`. The file is not in this folder, so a deletion of the server's data keeps the file.
pub(crate) fn of(home: &Path) -> PathBuf {
    home.with_extension("machine")
}

/// Preloads the library `machine.so` into the program that `command` will start. The wall clock of
/// this program is `ahead` microseconds ahead. `server` is the path that [`make`] returned.
pub(crate) fn place(
    command: &mut Command,
    server: &Path,
    machine: &Path,
    ahead: i64,
) -> Result<(), Failure> {
    fs::write(machine, [ahead.to_ne_bytes(), [0; 8]].concat())?;
    command.env("NEMESIS_MACHINE", machine).env("LD_PRELOAD", server.with_file_name(LIBRARY));
    Ok(())
}

/// Sets the clock error, or the disk delay, of a simulated machine to `micros`. `machine` is the
/// path of the file with these two values.
pub(crate) fn set(machine: &Path, part: Part, micros: i64) -> io::Result<()> {
    // The server has mapped the file into memory, so the file is changed in place.
    let mut file = fs::OpenOptions::new().write(true).open(machine)?;
    file.seek(SeekFrom::Start(if matches!(part, Part::Clock) { 0 } else { 8 }))?;
    file.write_all(&micros.to_ne_bytes())
}
