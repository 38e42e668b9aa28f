//! The tokio runtimes of the processes that `nemesis` starts.

use crate::world::Failure;
use tokio::task::LocalSet;

/// Runs the work on this thread. A process is killed when the thread that started it ends, so this
/// thread lives until the end of the work.
pub(crate) fn run<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(LocalSet::new().run_until(work))
}

pub(crate) fn run_client(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    // By default, the runtime catches a panic in a task. Here a panic ends the process, so that the
    // ledger logs the end.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        std::process::exit(101);
    }));
    run(work)
}
