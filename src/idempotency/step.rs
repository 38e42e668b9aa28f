//! Steps of a handler (idempotency 14). The finished steps are one list, stored like a result. An
//! attempt begins with the list of the highest ballot in the replies to its claim, and stores it
//! under its own before it returns a value from it.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::run::{decode, encode};
use super::{CodecError, Context, Failed};
use crate::error::{Advice, NoQuorum, advise};
use crate::op::StoredSteps;
use crate::sync::SyncMutex;

/// Of all steps together, in bytes of JSON.
const MOST: usize = 64 * 1024;

/// The error of a step that returned no value, although its work did not return an error. If the
/// handler returns this error by `?`, the effect of the handler counts as unknown, and the next
/// call of the key applies the policy for keys without a result ([`Lapsed`](super::Lapsed)).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// An earlier attempt finished another step at this place in the order of steps. So the handler
    /// was changed after that attempt. The new step did not run.
    #[error(
        "step {found:?}: an earlier attempt finished {recorded:?} at this place; run it with the \
         version of the handler that began it, or resolve the key"
    )]
    Changed {
        /// Name of the new step, which did not run.
        found: String,
        /// Name of the step that the earlier attempt finished in place of the new step.
        recorded: String,
    },
    /// The handler ended and did not run a step that an earlier attempt had finished. So the
    /// handler was changed after that attempt.
    #[error(
        "the handler ended without step {recorded:?}, which an earlier attempt finished; run it \
         with the version of the handler that began it, or resolve the key"
    )]
    Missing {
        /// Name of the finished step of the earlier attempt.
        recorded: String,
    },
    /// Another step of this run already has the same name. The second step did not run.
    #[error("step {name:?}: the name is used twice in one run; give each step its own")]
    Twice {
        /// Name of both steps.
        name: String,
    },
    /// Another step of this run has not ended: it still runs, it was dropped, or it ran and is not
    /// recorded. So a later attempt could not reach the two steps in this order. The second step
    /// did not run.
    #[error(
        "step {name:?}: another step of this run still runs, was dropped, or ran and is not \
         recorded; run steps one after the other, and end the handler when one fails"
    )]
    Overlaps {
        /// Name of the second step, which did not run.
        name: String,
    },
    /// The claim was lost before the start of the step, so another caller may run a handler under
    /// the key now. The step did not run.
    #[error("step {name:?}: not run, because the claim was lost")]
    Lost {
        /// Name of the step, which did not run.
        name: String,
    },
    /// The value of the step cannot be converted to JSON, or the record of an earlier attempt
    /// cannot be parsed.
    #[error("step {name:?}: {error}")]
    #[non_exhaustive]
    Codec {
        /// Name of the step. Empty if the handler ended without a step and the list of steps cannot
        /// be parsed.
        name: String,
        /// The value that could not be converted, and the cause.
        error: CodecError,
    },
    /// The value of this step would make the finished steps of the key larger than 64 KiB. The step
    /// ran, and is not recorded.
    #[error(
        "step {name:?} ran and is not recorded: with it the key's steps have {bytes} bytes, at \
         most {MOST}; store the value elsewhere, and the reference here"
    )]
    #[non_exhaustive]
    TooLarge {
        /// Name of the step with the value.
        name: String,
        /// Size of all steps of the key including this step, in bytes of JSON.
        bytes: usize,
    },
    /// Fewer nodes than a majority have confirmed the record of the step. The step ran now, or an
    /// earlier attempt had finished it.
    #[error("step {name:?} is not known to be recorded{}: {nodes}", by_another(*.overtaken))]
    #[non_exhaustive]
    NotRecorded {
        /// Name of the step.
        name: String,
        /// True if another attempt has claimed the key with a higher ballot. It treats this attempt
        /// as ended.
        overtaken: bool,
        /// Reply of each node to the request to store the step.
        nodes: NoQuorum,
    },
}

advise!(StepError);

impl StepError {
    /// Returns the advised action after the error, for a handler that does not return the error.
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

/// The value is JSON.
type List = Vec<(String, String)>;

#[derive(Debug)]
pub(super) struct Steps(SyncMutex<State>);

#[derive(Debug)]
struct State {
    list: List,
    unreadable: Option<CodecError>,
    reached: usize,
    /// A majority has `list` under this attempt's ballot, or it is empty.
    certain: bool,
    /// A step is running, was dropped before its end, or ran and is not recorded.
    open: bool,
}

impl Steps {
    pub(super) fn new(stored: Option<&StoredSteps>) -> Self {
        let read = stored.map(|steps| decode::<List>(&steps.list)).transpose();
        let (list, unreadable) = match read {
            Ok(list) => (list.unwrap_or_default(), None),
            Err(e) => (List::new(), Some(e)),
        };
        let certain = list.is_empty();
        Self(SyncMutex::new(State { list, unreadable, reached: 0, certain, open: false }))
    }

    pub(super) fn unfinished(&self) -> Option<StepError> {
        let state = self.0.lock();
        if let Some(error) = &state.unreadable {
            return Some(StepError::Codec { name: String::new(), error: error.clone() });
        }
        let (recorded, _) = state.list.get(state.reached)?;
        Some(StepError::Missing { recorded: recorded.clone() })
    }

    /// The value, as JSON, of an earlier attempt; `None` if the step has to run.
    fn begin(&self, name: &str) -> Result<Option<String>, StepError> {
        let mut state = self.0.lock();
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
            Some((recorded, value)) if *recorded == name() => Some(value.clone()),
            Some((recorded, _)) => {
                let recorded = recorded.clone();
                return Err(StepError::Changed { found: name(), recorded });
            }
            None => None,
        };
        state.open = true;
        Ok(begun)
    }

    fn with(&self, name: &str, value: &str) -> Result<Arc<[u8]>, StepError> {
        let mut list = self.0.lock().list.clone();
        list.push((name.to_owned(), value.to_owned()));
        bytes(name, &list)
    }

    /// The list; `None` if a majority has it.
    fn uncertain(&self, name: &str) -> Result<Option<Arc<[u8]>>, StepError> {
        let state = self.0.lock();
        if state.certain { Ok(None) } else { bytes(name, &state.list).map(Some) }
    }

    /// `run` is the step that ran; `None` if an earlier attempt had finished it.
    fn finish(&self, run: Option<(&str, String)>) {
        let mut state = self.0.lock();
        state.list.extend(run.map(|(name, value)| (name.to_owned(), value)));
        state.certain = true;
        state.reached += 1;
        state.open = false;
    }

    fn give_up(&self) {
        self.0.lock().open = false;
    }
}

fn bytes(name: &str, list: &List) -> Result<Arc<[u8]>, StepError> {
    encode(list).map_err(|error| StepError::Codec { name: name.to_owned(), error })
}

impl Context {
    /// Runs `work` as a step of the handler, and records its value with the key. A later attempt
    /// returns the recorded value and does not run the step again. This method returns the value
    /// only after a majority of the nodes has recorded it.
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
    /// After an attempt without a result, the handler may run again, by the
    /// [policy](super::IdempotencyBuilder::on_lapsed) or by an operator (`palisade idem rerun`). In
    /// this run the finished steps are replayed in their order, and the other steps run. A handler
    /// may fail with [`Failed::no_effect`](super::Failed::no_effect) after a finished step. It then
    /// means that nothing after the step took effect, and the finished steps stay recorded.
    ///
    /// If the process crashes after the start of `work` and before the record of its value, this
    /// step runs again in the next attempt. So pass a [`child_key`](Self::child_key) to the system
    /// that the step calls. By this key the system recognises the repeat.
    ///
    /// A run uses each name only once. A later attempt must reach the finished steps in the same
    /// order; other steps may follow them. The values of all steps of a key together have at most
    /// 64 KiB as JSON. Steps must not run at the same time.
    ///
    /// # Errors
    /// The error of `work`. The step is then not recorded, and the handler may try it again in the
    /// same run. Any other error is a [`StepError`];
    /// [`Failed::downcast_ref`](super::Failed::downcast_ref) returns it.
    ///
    /// # Cancellation safety
    /// If the future is dropped during `work`, `work` is dropped, too, and not recorded. After that
    /// the handler cannot run another step ([`StepError::Overlaps`]). If the future is dropped
    /// while the value is being stored, the value may or may not be recorded.
    pub async fn step<T, E, Fut>(&self, name: &str, work: Fut) -> Result<T, Failed>
    where
        T: Serialize + DeserializeOwned,
        E: Into<Failed>,
        Fut: Future<Output = Result<T, E>>,
    {
        let steps = self.steps();
        let codec = |error| StepError::Codec { name: name.to_owned(), error };
        if let Some(value) = steps.begin(name)? {
            // A single node's list may be lost with the node.
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
            Ok(Some(value)) => format!("replay {value}"),
            Ok(None) => "run".to_owned(),
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn finished_steps_are_replayed_in_their_order() {
        let steps = steps(r#"[["charge","1"],["ship","\"x\""]]"#);
        assert_eq!(begun(&steps, "charge"), "replay 1");
        assert!(begun(&steps, "ship").contains("still runs"));
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
