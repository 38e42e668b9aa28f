//! The program `palisade`: locks, leaders, once-only commands from a shell, and operations on
//! nodes.

mod args;
mod capture;
mod child;
mod codes;
mod doctor;
mod handover;
mod init;
mod metrics;
mod say;
mod settings;
mod signals;
mod span;
mod verbs;
mod warnings;
mod watchdog;

use std::io::Write as _;
use std::process::ExitCode;

use codes::{Fail, INTERNAL, USAGE};
use say::Say;
use serde_json::json;

/// The result of a command.
struct Done {
    text: String,
    code: u8,
}

fn main() -> ExitCode {
    if let Some(code) = watchdog::run() {
        return code;
    }
    let line = match args::read() {
        Ok(line) => line,
        Err(e) => {
            // Help and version are not errors.
            let _ = e.print();
            return if e.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let json = line.json;
    let say = Say::new(json, false);
    let code = match line.run() {
        Ok(done) => {
            // The reader may close the pipe. What a command wrote may still be on its way there.
            if !done.text.is_empty() {
                // `idem show` prints an object always.
                let json = json || done.text.starts_with('{');
                let text = if json { say::escaped(&done.text) } else { done.text };
                let _ = std::io::stdout().write_all(text.as_bytes());
            }
            done.code
        }
        Err(Fail { code, why }) => {
            say.warn("error", json!({ "code": code }), &why);
            code
        }
    };
    say::end();
    ExitCode::from(code)
}

/// Runs it to its end on this thread: a command is killed with the thread that started it.
fn block_on<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| format!("cannot start the runtime: {e}"))?;
    let done = runtime.block_on(work);
    // Output that nobody reads does not keep the program from ending.
    runtime.shutdown_background();
    Ok(done)
}

/// The same of a verb.
fn run<T>(work: impl Future<Output = Result<T, Fail>>) -> Result<T, Fail> {
    block_on(work).map_err(|why| Fail::new(INTERNAL, why))?
}
