//! What a probe found out, as values and as text.

use std::fmt;

use serde::Serialize;

use super::super::report::COMMAND_MAX;
use super::super::text::wrapped;
use super::services::Service;
use palisade::internal::{SENTENCE_MAX, Secrets};

/// What the trials of a feature showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ability {
    /// Every trial succeeded.
    Works,
    /// It needs the settings in [`Feature::fix`].
    WorksWith,
    /// The server refused a trial, and not for want of a right.
    Cannot,
    /// Not tried to the end: no answer, a lost connection, or nothing to try it with.
    Unknown,
}

/// The result of the trials of one feature at one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Feature {
    /// The feature, such as `locks`. It never changes, because people filter by it.
    pub feature: &'static str,
    /// Address of the server, or name of the group.
    pub subject: String,
    /// What the trials showed.
    pub verdict: Ability,
    /// True if palisade does not use a node that lacks it.
    pub needed: bool,
    /// What was tried; else what palisade lacks without it, or why it is unknown.
    pub message: String,
    /// The server's words against it; empty if there are none.
    pub said: String,
    /// Settings with which it works, each a whole command.
    pub fix: Vec<String>,
}

/// All results of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Probe {
    /// False if a node could not be connected to.
    pub reached: bool,
    /// The services to which the addresses belong.
    pub services: Vec<Service>,
    /// In the order of the trials.
    pub features: Vec<Feature>,
}

/// A feature, before it is tried.
#[derive(Clone, Copy)]
pub(super) struct Kind(pub(super) &'static str, pub(super) bool, pub(super) &'static str);

pub(super) const CONNECTION: Kind = Kind("connection", true, "nothing can be tried");
pub(super) const SENTINEL: Kind = Kind("sentinel", true, "no majority names a master");
pub(super) const SERVER: Kind = Kind("server", true, "palisade uses no such server");
pub(super) const SCRIPTS: Kind = Kind("scripts", true, "each request is one script");
pub(super) const HISTORY: Kind = Kind("history", true, "a loss of data could not be noticed");
pub(super) const LOCKS: Kind = Kind("locks", true, "no locks");
pub(super) const SHARED: Kind = Kind("shared-locks", false, "no read-write locks, no semaphores");
pub(super) const KEYS: Kind = Kind("idempotency", true, "no idempotency keys");
pub(super) const ELECTION: Kind = Kind("elections", true, "no elections");
pub(super) const WAKING: Kind = Kind("wake-ups", false, "callers that wait ask again by a timer");
pub(super) const DURABILITY: Kind = Kind("durability", false, "no durability above `Primary`");
pub(super) const MIN_REPLICAS: Kind =
    Kind("min-replicas", false, "a replaced master may go on for longer than is assumed");
pub(super) const WINDOW: Kind =
    Kind("failover-window", false, "if the address can move to a replica, state for how long");
pub(super) const EVICTION: Kind = Kind("eviction", true, "the server may delete held locks");
pub(super) const HANDOVER: Kind =
    Kind("handover", false, "no planned handover, no release while the memory is full");
pub(super) const OPERATOR: Kind =
    Kind("operator", false, "this login cannot run `init`, `list`, `idem`");
pub(super) const CLEANING: Kind = Kind("cleaning", false, "keys of the probe may be left");

impl Kind {
    fn is(self, verdict: Ability, message: impl Into<String>, said: impl Into<String>) -> Feature {
        let (message, said) = (message.into(), said.into());
        let Self(feature, needed, _) = self;
        Feature { feature, subject: String::new(), verdict, needed, message, said, fix: vec![] }
    }

    pub(super) fn works(self, message: impl Into<String>) -> Feature {
        self.is(Ability::Works, message, "")
    }

    pub(super) fn with(self, said: impl Into<String>, fix: Vec<String>) -> Feature {
        Feature { fix, ..self.is(Ability::WorksWith, self.2, said) }
    }

    pub(super) fn cannot(self, said: impl Into<String>) -> Feature {
        self.is(Ability::Cannot, self.2, said)
    }

    pub(super) fn unknown(self, why: impl Into<String>) -> Feature {
        self.is(Ability::Unknown, why, "")
    }
}

impl Probe {
    pub(super) fn new(
        mut features: Vec<Feature>,
        services: Vec<Service>,
        secrets: &Secrets,
    ) -> Self {
        for f in &mut features {
            for text in [&mut f.subject, &mut f.message, &mut f.said] {
                *text = secrets.sentence(text, SENTENCE_MAX);
            }
            f.fix.iter_mut().for_each(|command| *command = secrets.sentence(command, COMMAND_MAX));
        }
        let lost = |f: &Feature| f.feature == CONNECTION.0 && f.verdict != Ability::Works;
        Self { reached: !features.iter().any(lost), services, features }
    }

    /// Returns the exit code for a program: 69 if a node was not reached, 2 if a needed feature
    /// cannot work, 69 if one is unknown, 1 if one needs a setting or, with `strict`, if any other
    /// feature does or cannot work, else 0.
    pub fn exit_code(&self, strict: bool) -> u8 {
        use Ability as A;
        let has = |is, needed| self.features.iter().any(|f| f.verdict == is && f.needed >= needed);
        if self.reached && has(A::Cannot, true) {
            2
        } else if !self.reached || has(A::Unknown, true) {
            69
        } else {
            u8::from(has(A::WorksWith, !strict) || strict && has(A::Cannot, false))
        }
    }

    /// Returns all fields as JSON.
    ///
    /// # Panics
    /// Never: texts and lists are always JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts and lists are always JSON")
    }
}

impl fmt::Display for Ability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Works => "works",
            Self::WorksWith => "works with",
            Self::Cannot => "cannot",
            Self::Unknown => "unknown",
        })
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut subject = "";
        for tried in &self.features {
            if tried.subject != subject {
                subject = &tried.subject;
                writeln!(f, "{subject}")?;
            }
            writeln!(f, "{:<11}{:<16}{}", tried.verdict, tried.feature, tried.message)?;
            if !tried.said.is_empty() {
                wrapped(f, 27, &format!("said: {}", tried.said))?;
            }
            for command in &tried.fix {
                writeln!(f, "{:27}$ {command}", "")?;
            }
        }
        for Service { name, verdict, says, basis, .. } in &self.services {
            wrapped(f, 0, &format!("known of {name} ({basis}): {verdict}: {says}"))?;
        }
        Ok(())
    }
}
