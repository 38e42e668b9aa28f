//! Steps of a handler: recovery points in the record of its key (idempotency 14).
//!
//! The steps that are finished are one list, which is stored as a result is: under the claim's
//! ballot, on a majority, before the handler goes on. Each write has the whole list, so that a node
//! never has a step without those before it. An attempt begins with the list under the highest
//! ballot among its promises, and makes that list certain before it answers anything out of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::run::{decode, encode};
use super::{CodecError, Context, Failed};
use crate::error::{Advice, NoQuorum, advise};
use crate::op::StoredSteps;

/// Largest size of all finished steps of a key in bytes.
const MOST: usize = 64 * 1024;

/// The error of a step without a value. A handler returns it by `?`: its effect is then unknown,
/// and the next call decides by its policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// An earlier attempt finished another step at this place: the handler was changed. Nothing was
    /// run.
    #[error(
        "step {found:?}: an earlier attempt finished {recorded:?} at this place; run it with the \
         version of the handler that began it, or resolve the key"
    )]
    Changed {
        /// The step that was to be run.
        found: String,
        /// The step that is recorded at this place.
        recorded: String,
    },
    /// The handler ended without a step that an earlier attempt finished: the handler was changed.
    #[error(
        "the handler ended without step {recorded:?}, which an earlier attempt finished; run it \
         with the version of the handler that began it, or resolve the key"
    )]
    Missing {
        /// The step that is recorded.
        recorded: String,
    },
    /// The name was used before in this run. Nothing was run.
    #[error("step {name:?}: the name is used twice in one run; give each step its own")]
    Twice {
        /// The repeated name.
        name: String,
    },
    /// Another step of this run is under way, or was dropped before its end, so their order is not
    /// known. Nothing was run.
    #[error("step {name:?}: another step of this run has no end; run them one after the other")]
    Overlaps {
        /// The step that was to be run.
        name: String,
    },
    /// The claim was lost before the step began: others may run this key now. Nothing was run.
    #[error("step {name:?}: not run, because the claim was lost")]
    Lost {
        /// The step that was to be run.
        name: String,
    },
    /// The value of the step, or what an earlier attempt recorded, is not what it has to be.
    #[error("step {name:?}: {error}")]
    #[non_exhaustive]
    Codec {
        /// The step whose value it is.
        name: String,
        /// The value that could not be converted, and the cause.
        error: CodecError,
    },
    /// The finished steps of the key would be too large. The step ran, and is not recorded.
    #[error(
        "step {name:?} ran and is not recorded: with it the key's steps have {bytes} bytes, at \
         most {MOST}; store the value elsewhere, and the reference here"
    )]
    #[non_exhaustive]
    TooLarge {
        /// The step whose value is too large.
        name: String,
        /// Size of all steps of the key with this one.
        bytes: usize,
    },
    /// It is not known that a majority of nodes has the step. It ran, if no earlier attempt had
    /// finished it.
    #[error("step {name:?} is not known to be recorded{}: {nodes}", by_another(*.overtaken))]
    #[non_exhaustive]
    NotRecorded {
        /// The step that was stored.
        name: String,
        /// True if a higher ballot was promised to another attempt, which treated this one as dead.
        overtaken: bool,
        /// Answers of the nodes.
        nodes: NoQuorum,
    },
}

advise!(StepError);

impl StepError {
    /// Returns what to do about it, where the handler does not pass it on.
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

/// Name and value (as JSON) of each finished step.
type List = Vec<(String, String)>;

/// The steps of one attempt.
#[derive(Debug)]
pub(super) struct Steps(Mutex<State>);

#[derive(Debug)]
struct State {
    list: List,
    /// The error if the record of earlier attempts cannot be read as a list.
    unreadable: Option<CodecError>,
    /// Number of entries of `list` that this run has reached.
    reached: usize,
    /// True if a majority has `list` under this attempt's ballot, or the list is empty.
    certain: bool,
    /// True if a step is running, or was dropped before its end.
    open: bool,
}

/// Result of beginning a step.
enum Begun {
    /// An earlier attempt finished the step; its value as JSON.
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

    /// Returns an error if an earlier attempt finished a step that this one did not reach.
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

    /// Returns the list with this step at its end, as bytes.
    fn with(&self, name: &str, value: &str) -> Result<Arc<[u8]>, StepError> {
        let mut list = self.state().list.clone();
        list.push((name.to_owned(), value.to_owned()));
        bytes(name, &list)
    }

    /// Returns the whole list, if it is not certain yet.
    fn uncertain(&self, name: &str) -> Result<Option<Arc<[u8]>>, StepError> {
        let state = self.state();
        if state.certain { Ok(None) } else { bytes(name, &state.list).map(Some) }
    }

    /// Marks the current step as finished; `run` is its name and value unless it was replayed.
    fn finish(&self, run: Option<(&str, String)>) {
        let mut state = self.state();
        state.list.extend(run.map(|(name, value)| (name.to_owned(), value)));
        state.certain = true;
        state.reached += 1;
        state.open = false;
    }

    /// Ends the current step, which failed and left no record: it may be begun again.
    fn give_up(&self) {
        self.state().open = false;
    }
}

fn bytes(name: &str, list: &List) -> Result<Arc<[u8]>, StepError> {
    encode(list).map_err(|error| StepError::Codec { name: name.to_owned(), error })
}

impl Context {
    /// Runs `work` as a step of the handler, and records its value with the key, so that a later
    /// attempt returns the recorded value instead of running the step again. When this returns, a
    /// majority of nodes has the value.
    ///
    /// ```
    /// # use palisade::idempotency::{Context, Failed};
    /// # async fn charge(key: &str) -> Result<u32, std::io::Error> { Ok(1) }
    /// # async fn ship(receipt: u32) -> Result<String, std::io::Error> { Ok("track".into()) }
    /// async fn order(cx: Context) -> Result<String, Failed> {
    ///     let receipt = cx.step("charge", charge(&cx.child_key("charge"))).await?;
    ///     // If this fails and the key runs again, nobody is charged a second time.
    ///     cx.step("ship", ship(receipt)).await
    /// }
    /// ```
    ///
    /// A key with an attempt that left no result runs again by its
    /// [policy](super::IdempotencyBuilder::on_lapsed), or when an operator reruns it (`palisade
    /// idem rerun`); then the finished steps are replayed in their order and the rest is run. If a
    /// handler fails with [`Failed::no_effect`](super::Failed::no_effect) after a finished step,
    /// that refers to what came after the step: the finished steps stay.
    ///
    /// A crash inside `work`, or between its effect and the record, is not undone: that one step
    /// runs again. Give the system that the step calls a [`child_key`](Self::child_key).
    ///
    /// Names are unique in a run. A rerun has to reach the same steps in the same order; steps may
    /// be added after them. The values of all steps of a key together, as JSON, have at most 64
    /// KiB. Steps run one after the other.
    ///
    /// # Errors
    /// The error of `work`; nothing is recorded then, and the step may be tried again in the same
    /// run. Otherwise a [`StepError`] ([`Failed::downcast_ref`](super::Failed::downcast_ref)).
    ///
    /// # Cancellation safety
    /// If dropped while `work` runs, `work` is dropped with it and not recorded; the handler can
    /// then make no other step ([`StepError::Overlaps`]). If dropped while the value is being
    /// stored, it may be recorded.
    pub async fn step<T, E, Fut>(&self, name: &str, work: Fut) -> Result<T, Failed>
    where
        T: Serialize + DeserializeOwned,
        E: Into<Failed>,
        Fut: Future<Output = Result<T, E>>,
    {
        let steps = self.steps();
        let codec = |error| StepError::Codec { name: name.to_owned(), error };
        if let Begun::Replay(value) = steps.begin(name)? {
            // A list that only one node has may be lost with the node, so no value is returned
            // before a majority has the list under this attempt's ballot.
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
