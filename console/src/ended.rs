//! Results of actions: the word for the audit, and the sentence for people.

use palisade::idempotency::{Decided, Decision};
use palisade::node::Loss;
use palisade_ops::{KeyChange, NodeChange};

/// Result of an action.
pub(crate) struct Ended {
    /// The word for the audit, such as `done` or `refused`.
    pub(crate) word: &'static str,
    pub(crate) text: String,
}

impl Ended {
    pub(crate) fn new(word: &'static str, text: impl Into<String>) -> Self {
        Self { word, text: text.into() }
    }
}

/// Returns the result of a decision about an incident. Each loss of data in the incident has its
/// own decision, so a new decision may be stored for only some of the losses.
pub(crate) fn of_decision(all: &[(Loss, &Decided, bool)], decision: Decision) -> Ended {
    let new = all.iter().filter(|(.., is_new)| *is_new).map(|(loss, ..)| loss.number());
    let new = new.collect::<Vec<_>>().join(", ");
    let Some((loss, stands, _)) = all.iter().find(|(_, one, _)| one.decision != decision) else {
        let text = "decided; the keys follow within a minute";
        return Ended::new(if new.is_empty() { "unchanged" } else { "done" }, text);
    };
    let (number, by, why) = (loss.number(), &stands.by, &stands.reason);
    let stands = format!("another decision stands about loss {number}, by {by}: {why}");
    if new.is_empty() {
        return Ended::new("unchanged", stands);
    }
    Ended::new("partly", format!("decided about loss {new} and not about all of them: {stands}"))
}

pub(crate) fn of_change(changed: &KeyChange) -> Ended {
    let unreached = |(_, change): &&(_, NodeChange)| matches!(change, NodeChange::Unreachable(_));
    let unreached = changed.nodes.iter().filter(unreached).count();
    let word = if changed.is_unknown() {
        "unchanged"
    } else if changed.is_done() {
        "done"
    } else if changed.may_be_done() {
        "unknown"
    } else if changed.is_partly_done() {
        "partly"
    } else if 2 * unreached >= changed.nodes.len() {
        "failed"
    } else {
        "refused"
    };
    Ended::new(word, changed.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_decision_about_some_losses_is_neither_unchanged_nor_done() {
        let loss = |minute: u64| {
            let at = 1_763_906_600_000 + minute * 60_000;
            Loss { from: at - 1_000, began: at, to: at }
        };
        let of = |decision: &str| -> Decided {
            let decided = json!({ "decision": decision, "by": "bob", "reason": "x", "at": 1 });
            serde_json::from_value(decided).unwrap()
        };
        let (run, park) = (of("run"), of("park"));
        for (all, word, texts) in [
            (vec![(&run, true), (&run, true)], "done", &["decided"][..]),
            (vec![(&run, false), (&run, true)], "done", &["decided"]),
            (vec![(&run, false)], "unchanged", &["decided"]),
            (vec![(&park, false), (&park, false)], "unchanged", &["another", "bob: x"]),
            (
                vec![(&park, false), (&run, true)],
                "partly",
                &[
                    "decided about loss 20251123-140420.000",
                    "stands about loss 20251123-140320.000, by bob",
                ],
            ),
        ] {
            let all = all.into_iter().zip(0..).map(|((of, new), n)| (loss(n), of, new));
            let all: Vec<_> = all.collect();
            let ended = of_decision(&all, Decision::Run);
            assert_eq!(ended.word, word, "{}", ended.text);
            for text in texts {
                assert!(ended.text.contains(text), "{}", ended.text);
            }
        }
    }
}
