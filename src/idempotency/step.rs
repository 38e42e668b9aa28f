//! Steps of a handler: parts of its work whose values are stored in the record of its key, so that
//! a later attempt does not run them again (idempotency 14).
//!
//! The finished steps are one list, which is stored in the way in which a result is stored: under
//! the claim's ballot, on a majority, before the handler goes on. Each write has the whole list, so
//! that a node never has a step without the steps before it. An attempt begins with the list that
//! has the highest ballot among the promises of its claim, and stores this list under its own
//! ballot on a majority before it returns a value from it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::run::{decode, encode};
use super::{CodecError, Context, Failed};
use crate::error::{Advice, NoQuorum, advise};
use crate::op::StoredSteps;

/// Largest size of all finished steps of a key together, in bytes of JSON.
const MOST: usize = 64 * 1024;

/// The error of a step that has no value for another reason than an error of its work. If the
/// handler returns it by `?`, the effect of the handler counts as unknown, and the next call
/// decides by its policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// An earlier attempt finished another step at this place in the order of steps, so the handler
    /// was changed since then. The new step was not run.
    #[error(
        "step {found:?}: an earlier attempt finished {recorded:?} at this place; run it with the \
         version of the handler that began it, or resolve the key"
    )]
    Changed {
        /// Name of the step that was not run.
        found: String,
        /// Name of the step that the earlier attempt finished at this place.
        recorded: String,
    },
    /// The handler ended without a step that an earlier attempt finished, so the handler was
    /// changed since then.
    #[error(
        "the handler ended without step {recorded:?}, which an earlier attempt finished; run it \
         with the version of the handler that began it, or resolve the key"
    )]
    Missing {
        /// Name of the step that the earlier attempt finished.
        recorded: String,
    },
    /// Another step of this run has the same name already. The second step was not run.
    #[error("step {name:?}: the name is used twice in one run; give each step its own")]
    Twice {
        /// Name that both steps have.
        name: String,
    },
    /// Another step of this run is still running, or was dropped before its end, so the order of
    /// the two steps is not known. The second step was not run.
    #[error("step {name:?}: another step of this run has no end; run them one after the other")]
    Overlaps {
        /// Name of the step that was not run.
        name: String,
    },
    /// The claim was lost before the step began, so another caller may run the key now. The step
    /// was not run.
    #[error("step {name:?}: not run, because the claim was lost")]
    Lost {
        /// Name of the step that was not run.
        name: String,
    },
    /// The value of the step cannot be written as JSON, or what an earlier attempt recorded cannot
    /// be read.
    #[error("step {name:?}: {error}")]
    #[non_exhaustive]
    Codec {
        /// Name of the step. Empty if the list of all steps cannot be read and the handler ended
        /// without a step.
        name: String,
        /// The value that could not be converted, and the cause.
        error: CodecError,
    },
    /// With the value of this step, the finished steps of the key would be larger than 64 KiB. The
    /// step ran, and is not recorded.
    #[error(
        "step {name:?} ran and is not recorded: with it the key's steps have {bytes} bytes, at \
         most {MOST}; store the value elsewhere, and the reference here"
    )]
    #[non_exhaustive]
    TooLarge {
        /// Name of the step whose value is too large.
        name: String,
        /// Size of all steps of the key with this one, in bytes of JSON.
        bytes: usize,
    },
    /// It is not known whether a majority of nodes has stored the step. The step ran, unless an
    /// earlier attempt had finished it.
    #[error("step {name:?} is not known to be recorded{}: {nodes}", by_another(*.overtaken))]
    #[non_exhaustive]
    NotRecorded {
        /// Name of the step.
        name: String,
        /// True if nodes promised a higher ballot to another attempt, which took this one for dead.
        overtaken: bool,
        /// Answer of each node to the request to store the step.
        nodes: NoQuorum,
    },
}

advise!(StepError);

impl StepError {
    /// Returns what to do about the error, for a handler that does not return the error but handles
    /// it.
    pub fn advice(&self) -> Advice {
        match self {
            Self::NotRecorded { nodes, .. } => nodes.advice(),
            Self::Lost { .. } => Advice::RetryAfter(Duration::from_secs(1)),
            Self::Changed { .. }
            | Self::Missing { .. }
            | Self::Twice { .. }
            | Self::Overlaps { .. }
            | Self::Codec { .. }
            | Self::TooLarge { .. } => Advice::GiveUp,
        }
    }
}

fn by_another(yes: bool) -> &'static str {
    if yes { ", another attempt took over" } else { "" }
}

/// Name and value (as JSON) of each finished step, in their order.
type List = Vec<(String, String)>;

/// The steps of the handler in one attempt.
#[derive(Debug)]
pub(super) struct Steps(Mutex<State>);

#[derive(Debug)]
struct State {
    list: List,
    /// Error of reading the list that earlier attempts stored; `None` if it could be read.
    unreadable: Option<CodecError>,
    /// Number of entries of `list`, from its beginning, that this attempt has finished or replayed.
    reached: usize,
    /// True if a majority of nodes has `list` under this attempt's ballot, or the list is empty.
    certain: bool,
    /// True if a step is running, or was dropped before its end.
    open: bool,
}

/// Task of a step that begins.
enum Begun {
    /// Return this value (as JSON), because an earlier attempt finished the step.
    Replay(String),
    Run,
}

impl Steps {
    pub(super) fn new(stored: Option<&StoredSteps>) -> Self {
        let read = stored.map(|steps| decode::<List>(&steps.list)).transpose();
        let (list, unreadable) = match read {
            Ok(list) => (list.unwrap_or_default(), None),
            Err(e) => (List::new(), Some(e)),
        };
        let certain = list.is_empty();
        Self(Mutex::new(State { list, unreadable, reached: 0, certain, open: false }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock panics half-way through a change, so a poisoned lock is safe
        // to use.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error if an earlier attempt finished a step that this attempt did not reach.
    pub(super) fn unfinished(&self) -> Option<StepError> {
        let state = self.state();
        if let Some(error) = &state.unreadable {
            return Some(StepError::Codec { name: String::new(), error: error.clone() });
        }
        let (recorded, _) = state.list.get(state.reached)?;
        Some(StepError::Missing { recorded: recorded.clone() })
    }

    fn begin(&self, name: &str) -> Result<Begun, StepError> {
        let mut state = self.state();
        let name = || name.to_owned();
        if let Some(error) = &state.unreadable {
            return Err(StepError::Codec { name: name(), error: error.clone() });
        }
        if state.open {
            return Err(StepError::Overlaps { name: name() });
        }
        let (before, after) = state.list.split_at(state.reached);
        if before.iter().any(|(used, _)| *used == name()) {
            return Err(StepError::Twice { name: name() });
        }
        let begun = match after.first() {
            Some((recorded, value)) if *recorded == name() => Begun::Replay(value.clone()),
            Some((recorded, _)) => {
                let recorded = recorded.clone();
                return Err(StepError::Changed { found: name(), recorded });
            }
            None => Begun::Run,
        };
        state.open = true;
        Ok(begun)
    }

    /// Returns the list of finished steps with this step at its end, as JSON.
    fn with(&self, name: &str, value: &str) -> Result<Arc<[u8]>, StepError> {
        let mut list = self.state().list.clone();
        list.push((name.to_owned(), value.to_owned()));
        bytes(name, &list)
    }

    /// Returns the whole list as JSON if it has to be stored under this attempt's ballot; `None` if
    /// a majority has it.
    fn uncertain(&self, name: &str) -> Result<Option<Arc<[u8]>>, StepError> {
        let state = self.state();
        if state.certain { Ok(None) } else { bytes(name, &state.list).map(Some) }
    }

    /// Marks the current step as finished. `run` has the name and the value of a step that ran, and
    /// is `None` for one that was replayed.
    fn finish(&self, run: Option<(&str, String)>) {
        let mut state = self.state();
        state.list.extend(run.map(|(name, value)| (name.to_owned(), value)));
        state.certain = true;
        state.reached += 1;
        state.open = false;
    }

    /// Ends the current step, which failed and is not recorded, so that it may be begun again.
    fn give_up(&self) {
        self.state().open = false;
    }
}

fn bytes(name: &str, list: &List) -> Result<Arc<[u8]>, StepError> {
    encode(list).map_err(|error| StepError::Codec { name: name.to_owned(), error })
}

impl Context {
    /// Runs `work` as a step of the handler, and records its value with the key, so that a later
    /// attempt returns the recorded value instead of running the step again. When this method
    /// returns the value, a majority of nodes has it.
    ///
    /// ```
    /// # use palisade::idempotency::{Context, Failed};
    /// # async fn charge(key: &str) -> Result<u32, std::io::Error> { Ok(1) }
    /// # async fn ship(receipt: u32) -> Result<String, std::io::Error> { Ok("track".into()) }
    /// async fn order(cx: Context) -> Result<String, Failed> {
    ///     let receipt = cx.step("charge", charge(&cx.child_key("charge"))).await?;
    ///     // If this fails and the handler runs again, the step above is not run a second time.
    ///     cx.step("ship", ship(receipt)).await
    /// }
    /// ```
    ///
    /// If an attempt left no result, the handler runs again by the
    /// [policy](super::IdempotencyBuilder::on_lapsed), or when an operator reruns it (`palisade
    /// idem rerun`); then the finished steps are replayed in their order and the other steps are
    /// run. If a handler fails with [`Failed::no_effect`](super::Failed::no_effect) after a
    /// finished step, this means that nothing after the step took effect, and the finished steps
    /// stay recorded.
    ///
    /// If the process crashes while `work` runs, or after its effect and before the value is
    /// recorded, this one step runs again in the next attempt. So pass a
    /// [`child_key`](Self::child_key) to the system that the step calls, by which the system
    /// recognises the repeat.
    ///
    /// A name is used only once in a run. A later attempt has to reach the finished steps in the
    /// same order; other steps may follow them. The values of all steps of a key together, as JSON,
    /// have at most 64 KiB. Steps run one after the other.
    ///
    /// # Errors
    /// The error of `work`: nothing is recorded then, and the step may be tried again in the same
    /// run. Any other error is a [`StepError`], which
    /// [`Failed::downcast_ref`](super::Failed::downcast_ref) returns.
    ///
    /// # Cancellation safety
    /// If dropped while `work` runs, `work` is dropped with it and not recorded; the handler can
    /// then make no other step ([`StepError::Overlaps`]). If dropped while the value is being
    /// stored, the value may be recorded or not.
    pub async fn step<T, E, Fut>(&self, name: &str, work: Fut) -> Result<T, Failed>
    where
        T: Serialize + DeserializeOwned,
        E: Into<Failed>,
        Fut: Future<Output = Result<T, E>>,
    {
        let steps = self.steps();
        let codec = |error| StepError::Codec { name: name.to_owned(), error };
        if let Begun::Replay(value) = steps.begin(name)? {
            // A list that only one node has may be lost together with the node, so no value is
            // returned before a majority has the list under this attempt's ballot.
            if let Some(list) = steps.uncertain(name)? {
                self.store(name, &list).await?;
            }
            let value = decode(value.as_bytes()).map_err(codec)?;
            steps.finish(None);
            return Ok(value);
        }
        if !self.is_valid() {
            steps.give_up();
            return Err(StepError::Lost { name: name.to_owned() }.into());
        }
        let value = match work.await {
            Ok(value) => value,
            Err(e) => {
                steps.give_up();
                return Err(e.into());
            }
        };
        let json = encode(&value).map_err(codec)?;
        let json = String::from_utf8_lossy(&json).into_owned();
        let list = steps.with(name, &json)?;
        if list.len() > MOST {
            return Err(StepError::TooLarge { name: name.to_owned(), bytes: list.len() }.into());
        }
        self.store(name, &list).await?;
        steps.finish(Some((name, json)));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::FencingToken;

    fn steps(list: &str) -> Steps {
        let list = Arc::from(list.as_bytes());
        Steps::new(Some(&StoredSteps { token: FencingToken::new(1), list }))
    }

    fn begun(steps: &Steps, name: &str) -> String {
        match steps.begin(name) {
            Ok(Begun::Replay(value)) => format!("replay {value}"),
            Ok(Begun::Run) => "run".to_owned(),
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn finished_steps_are_replayed_in_their_order() {
        let steps = steps(r#"[["charge","1"],["ship","\"x\""]]"#);
        assert_eq!(begun(&steps, "charge"), "replay 1");
        assert!(begun(&steps, "ship").contains("has no end"));
        assert!(steps.uncertain("charge").unwrap().is_some());
        steps.finish(None);
        assert!(steps.uncertain("ship").unwrap().is_none());
        assert!(begun(&steps, "charge").contains("used twice"));
        let changed = begun(&steps, "pack");
        assert!(changed.contains("\"pack\"") && changed.contains("\"ship\""), "{changed}");
        assert_eq!(steps.unfinished(), Some(StepError::Missing { recorded: "ship".into() }));
        assert_eq!(begun(&steps, "ship"), "replay \"x\"");
        steps.finish(None);
        assert_eq!(begun(&steps, "pack"), "run");
        steps.finish(Some(("pack", "2".to_owned())));
        assert_eq!(steps.unfinished(), None);
        assert!(begun(&steps, "pack").contains("used twice"));
    }

    #[test]
    fn a_list_that_cannot_be_read_runs_nothing() {
        let steps = steps("[1,2]");
        assert!(begun(&steps, "charge").contains("cannot be read"));
        assert!(steps.unfinished().is_some());
    }
}
