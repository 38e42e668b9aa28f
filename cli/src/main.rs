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

/// The result of a command: the text to print, and the exit code.
struct Done {
    text: String,
    code: u8,
}

/// Creates the result of a command that prints nothing at its end.
impl From<u8> for Done {
    fn from(code: u8) -> Self {
        Self { text: String::new(), code }
    }
}

fn main() -> ExitCode {
    if let Some(code) = watchdog::run() {
        return code;
    }
    let line = match args::read() {
        Ok(line) => line,
        Err(e) => {
            // clap returns the texts of `--help` and `--version` as errors, too; they are a
            // success.
            let _ = e.print();
            return if e.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let json = line.json;
    let say = Say::new(json, false);
    let code = match block_on(line.run()) {
        Ok(done) => {
            // The reader of standard output may have closed it, so an error is ignored. The
            // command's own output is not affected.
            if !done.text.is_empty() {
                // `idem show` always prints a JSON object.
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

/// Runs a future to its end on the main thread, because a command is killed when the thread that
/// started it ends.
fn block_on<T>(work: impl Future<Output = Result<T, Fail>>) -> Result<T, Fail> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let failed = |e| Fail::new(INTERNAL, format!("cannot start the runtime: {e}"));
    let runtime = runtime.map_err(failed)?;
    let done = runtime.block_on(work);
    // A write to an output that is not read must not prevent the program from ending.
    runtime.shutdown_background();
    done
}
