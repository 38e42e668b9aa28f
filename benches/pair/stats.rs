//! Medians with their range, processor time, and memory.

use std::fmt;

/// Median, minimum and maximum of a figure over the rounds.
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

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:.2} ({:.2}-{:.2})", self.median, self.min, self.max);
        f.pad(&text)
    }
}

/// Returns the quantile `q` of sorted durations, in µs.
pub(crate) fn quantile_us(sorted: &[std::time::Duration], q: f64) -> f64 {
    let at = (sorted.len().saturating_sub(1) as f64 * q) as usize;
    sorted.get(at).map_or(f64::NAN, |d| d.as_secs_f64() * 1e6)
}

/// Returns the processor time used by a process so far, in µs.
pub(crate) fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let of_thread = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = of_thread.split_whitespace().skip(11).take(2);
    ticks.filter_map(|t| t.parse::<f64>().ok()).sum::<f64>() * 1e4
}

/// Returns the number of context switches of all threads of a running process.
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
