//! Asks real servers what `docs/design` assumes of them. One function for each assumption: it
//! starts servers of its own, does something to them, and says what it saw. The run fails if that
//! differs from what is relied upon.
//!
//! ```text
//! assumptions                 all of them, as a table
//! assumptions epoch tilt      those that contain one of these words
//! ```
//!
//! The servers are `redis-server` and `redis-sentinel`, or the programs in `PALISADE_REDIS_SERVER`
//! and `PALISADE_REDIS_SENTINEL`.

mod ask;
mod counters;
mod identity;
mod keys;
mod logins;
mod refusals;
mod replicas;
mod scripts;
mod sentinels;
/// Server processes, shared with the library's own tests.
#[path = "../../../tests/support/server.rs"]
#[allow(dead_code, unreachable_pub)]
mod server;

use std::collections::VecDeque;
use std::panic;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Number of assumptions that are tried at the same time. Most of them wait most of the time.
const AT_ONCE: usize = 6;

/// Something that a server or a Sentinel does.
#[derive(Clone, Copy)]
struct Assumption {
    /// Rule of `docs/design` that relies upon it, by file and number.
    rule: &'static str,
    says: &'static str,
    /// What `observe` must return.
    relied: &'static str,
    /// Servers that do something else, by the beginning of their version, and what they do. The
    /// rule must hold with both.
    except: &'static [(&'static str, &'static str)],
    observe: fn() -> String,
}

impl Assumption {
    const fn new(
        rule: &'static str,
        says: &'static str,
        relied: &'static str,
        observe: fn() -> String,
    ) -> Self {
        Self { rule, says, relied, except: &[], observe }
    }

    const fn except(self, except: &'static [(&'static str, &'static str)]) -> Self {
        Self { except, ..self }
    }

    fn relied(&self, version: &str) -> &'static str {
        let other = self.except.iter().find(|(of, _)| version.starts_with(of));
        other.map_or(self.relied, |(_, seen)| seen)
    }
}

fn main() -> ExitCode {
    let version = ask::version();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let all = [
        identity::ALL,
        counters::ALL,
        scripts::ALL,
        refusals::ALL,
        keys::ALL,
        logins::ALL,
        replicas::ALL,
        sentinels::ALL,
    ];
    let wanted = |a: &&Assumption| {
        words.is_empty() || words.iter().any(|w| a.says.contains(w.as_str()) || a.rule == w)
    };
    let wanted: Vec<_> = all.concat().iter().filter(wanted).copied().collect();
    let seen = observed(&wanted);
    let mut wrong = 0;
    println!("| rule | assumption | observed at {version} |\n|---|---|---|");
    for (assumption, seen) in wanted.iter().zip(seen) {
        println!("| {} | {} | {seen} |", assumption.rule, assumption.says);
        let relied = assumption.relied(&version);
        if seen != relied {
            wrong += 1;
            println!("| | **relied upon** | **{relied}** |");
        }
    }
    println!("\n{version}: {} assumptions, {wrong} not as relied upon", wanted.len());
    ExitCode::from(u8::from(wrong > 0 || wanted.is_empty()))
}

/// Makes all observations, in the order of the assumptions.
fn observed(wanted: &[Assumption]) -> Vec<String> {
    let queue: Mutex<VecDeque<usize>> = Mutex::new((0..wanted.len()).collect());
    let seen = Mutex::new(vec![String::new(); wanted.len()]);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(n) = next else { break };
                    let found = panic::catch_unwind(wanted[n].observe);
                    let found = found.unwrap_or_else(|_| "nothing: the attempt failed".to_owned());
                    seen.lock().unwrap_or_else(PoisonError::into_inner)[n] = found;
                }
            });
        }
    });
    seen.into_inner().unwrap_or_else(PoisonError::into_inner)
}
