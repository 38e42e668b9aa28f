//! The program `palisade`. It runs commands under locks, on a leader, or only once, and operates
//! the nodes.

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

/// Creates the result of a command that prints nothing.
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
            // clap also returns the texts of `--help` and `--version` as errors. They are a
            // success.
            let _ = e.print();
            return if e.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    // rustls needs a TLS provider. Only a program may choose the provider, and not a library.
    #[cfg(feature = "tls")]
    let _ = rustls::crypto::ring::default_provider().install_default();
    let json = line.json;
    let say = Say::new(json, false);
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for unknown in palisade::internal::unknown_variables(names) {
        say.warn("unknown_variable", json!({}), &unknown);
    }
    let code = match block_on(line.run()) {
        Ok(done) => {
            // The reader of standard output may have closed the stream. So an error is ignored. The
            // error does not affect the command's own output.
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

/// Runs a future to its end on the main thread. A command is killed when the thread that started
/// the command ends. So this thread has to be the main thread.
fn block_on<T>(work: impl Future<Output = Result<T, Fail>>) -> Result<T, Fail> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let failed = |e| Fail::new(INTERNAL, format!("cannot start the runtime: {e}"));
    let runtime = runtime.map_err(failed)?;
    let done = runtime.block_on(work);
    // An output without a reader can block a write. Such a write must not prevent the end of the
    // program.
    runtime.shutdown_background();
    done
}
