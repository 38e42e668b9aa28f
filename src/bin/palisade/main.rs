//! The program `palisade`: what operators do from a shell.

mod access;
mod args;
mod doctor;
mod handover;
mod init;

use std::io::Write as _;
use std::process::ExitCode;

/// Wrong use, as `sysexits` has it.
const USAGE: u8 = 64;

/// What a command came to.
struct Done {
    text: String,
    code: u8,
}

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
        Ok(done) => {
            // Whoever closed the pipe has read enough.
            let _ = std::io::stdout().write_all(done.text.as_bytes());
            ExitCode::from(done.code)
        }
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "palisade: {why}");
            ExitCode::from(USAGE)
        }
    }
}

/// Runs it to its end on this thread.
fn block_on<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.map_err(|e| format!("no runtime: {e}"))?.block_on(work))
}
