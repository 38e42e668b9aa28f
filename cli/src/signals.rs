//! Receives signals. A signal ends `palisade`, or `palisade` passes the signal on to the command
//! that it runs.

use std::cell::RefCell;
use std::io;
use std::task::{Context, Poll, Waker};

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};

const ALL: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

pub(crate) struct Signals {
    heard: RefCell<Vec<(Signal, unix::Signal)>>,
    /// Handler of SIGCHLD. A parent process may have set SIGCHLD to be ignored. Without this
    /// handler, `palisade` could then not read the end of a command.
    _children: Option<unix::Signal>,
}

impl Signals {
    /// Creates a receiver of all signals that were not ignored when this program started. For
    /// example, `nohup` starts a program with SIGHUP ignored.
    pub(crate) fn new() -> io::Result<Self> {
        let ignored = ignored();
        let heard = ALL.into_iter().filter(|signal| ignored >> (*signal as u32 - 1) & 1 == 0);
        let hear = |signal| Ok((signal, unix::signal(SignalKind::from_raw(signal as i32))?));
        let heard = heard.map(hear).collect::<io::Result<_>>()?;
        let children = Some(unix::signal(SignalKind::child())?);
        Ok(Self { heard: RefCell::new(heard), _children: children })
    }

    /// Creates a receiver without signals. Each signal then has its default effect on this program.
    pub(crate) fn none() -> Self {
        Self { heard: RefCell::default(), _children: None }
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&self) -> Signal {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// Returns a signal that has already arrived, or `None`.
    pub(crate) fn came(&self) -> Option<Signal> {
        match self.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(signal) => Some(signal),
            Poll::Pending => None,
        }
    }

    /// Polls for the next signal.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Signal> {
        let came = |(signal, stream): &mut (Signal, unix::Signal)| {
            stream.poll_recv(cx).is_ready().then_some(*signal)
        };
        self.heard.borrow_mut().iter_mut().find_map(came).map_or(Poll::Pending, Poll::Ready)
    }
}

/// Returns the mask of ignored signals. Returns zero if the mask cannot be read.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}
