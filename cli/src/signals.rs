//! Receives the signals that end this program, or that it passes on to its command.

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

/// Receiver of the signals that are sent to this program.
pub(crate) struct Signals {
    heard: RefCell<Vec<(Signal, unix::Signal)>>,
    /// Handler of SIGCHLD. Without it, the end of a command could not be read if a parent process
    /// left SIGCHLD ignored.
    _children: Option<unix::Signal>,
}

impl Signals {
    /// Creates a receiver of all signals except those that this program was started to ignore, as
    /// `nohup` does with SIGHUP.
    pub(crate) fn new() -> io::Result<Self> {
        let ignored = ignored();
        let heard = ALL.into_iter().filter(|signal| ignored >> (*signal as u32 - 1) & 1 == 0);
        let hear = |signal| Ok((signal, unix::signal(SignalKind::from_raw(signal as i32))?));
        let heard = heard.map(hear).collect::<io::Result<_>>()?;
        let children = Some(unix::signal(SignalKind::child())?);
        Ok(Self { heard: RefCell::new(heard), _children: children })
    }

    /// Creates a receiver of no signals: each has its default effect on this program.
    pub(crate) fn none() -> Self {
        Self { heard: RefCell::default(), _children: None }
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&self) -> Signal {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// Returns a signal that has arrived already, if any.
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

/// Returns the mask of ignored signals; zero if it cannot be read.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}
