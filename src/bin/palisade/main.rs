//! The program `palisade`: what operators do from a shell.

mod args;

use std::io::Write as _;
use std::process::ExitCode;

/// Wrong use, as `sysexits` has it.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let told = match args::read() {
        Ok(told) => told,
        Err(e) => {
            // Help and version are no errors.
            let _ = e.print();
            return if e.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match told.run() {
        Ok((text, code)) => {
            // Whoever closed the pipe has read enough.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::from(code)
        }
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "palisade: {why}");
            ExitCode::from(USAGE)
        }
    }
}
