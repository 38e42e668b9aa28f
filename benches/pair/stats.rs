//! Helpers of the benchmarks: load by many callers, medians with their range, processor time and
//! memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;

/// Median, minimum and maximum of a measured number over the rounds of a benchmark.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        Self { median: at(values.len() / 2), min: at(0), max: at(last) }
    }
}

/// Makes calls in `callers` tasks until the span is over, and waits for the calls in progress. The
/// closure `call` receives the number of the caller and the number of its call. Returns all
/// results.
pub(crate) async fn load<F: Future<Output: Send> + Send + 'static>(
    callers: usize,
    span: Duration,
    call: impl Fn(usize, u64) -> F + Clone + Send + 'static,
) -> Vec<F::Output> {
    let stop = Arc::new(AtomicBool::new(false));
    let caller = |caller| {
        let (call, stop) = (call.clone(), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut done = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                done.push(call(caller, done.len() as u64).await);
            }
            done
        })
    };
    let callers: Vec<_> = (0..callers).map(caller).collect();
    tokio::time::sleep(span).await;
    stop.store(true, Ordering::Relaxed);
    join_all(callers).await.into_iter().flat_map(|done| done.expect("a caller")).collect()
}

/// Returns the quantile `q` of sorted durations, in µs.
pub(crate) fn quantile_us(sorted: &[Duration], q: f64) -> f64 {
    let at = (sorted.len().saturating_sub(1) as f64 * q) as usize;
    sorted.get(at).map_or(f64::NAN, |d| d.as_secs_f64() * 1e6)
}

/// Returns the processor time that a process has used since its start, in µs.
pub(crate) fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let of_thread = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = of_thread.split_whitespace().skip(11).take(2);
    ticks.filter_map(|t| t.parse::<f64>().ok()).sum::<f64>() * 1e4
}

/// Returns the number of context switches of all threads of a running process since its start.
pub(crate) fn switches(pid: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |thread: std::fs::DirEntry| {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
        lines.filter_map(|line| line.rsplit('\t').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    threads.map(of).sum()
}

/// Returns the resident memory of this process in bytes.
pub(crate) fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|p| p.parse::<usize>().ok());
    pages.unwrap_or(0) * 4_096
}
