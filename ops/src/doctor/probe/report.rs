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

/// The result of the trials of one feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Feature {
    /// The feature, such as `locks`. It never changes, because people filter by it.
    pub feature: &'static str,
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
    /// Address of the server, or name of the group.
    pub subject: String,
    /// False if the server could not be connected to, or its Sentinels name none.
    pub reached: bool,
    /// The service to which the address belongs.
    pub service: Option<Service>,
    /// In the order of the trials.
    pub features: Vec<Feature>,
    /// The command that judges the settings of the server, which no trial shows.
    pub then: String,
}

/// A feature, before it is tried.
#[derive(Clone, Copy)]
pub(super) struct Kind(pub(super) &'static str, pub(super) bool, pub(super) &'static str);

pub(super) const CONNECTION: Kind = Kind("connection", true, "nothing can be tried");
pub(super) const SENTINEL: Kind = Kind("sentinel", true, "no majority names a master");
pub(super) const SERVER: Kind = Kind("server", true, "palisade uses no such server");
pub(super) const SCRIPTS: Kind = Kind("scripts", true, "each request is one script");
pub(super) const HISTORY: Kind = Kind("history", true, "a loss of data could not be noticed");
pub(super) const LOCKS: Kind = Kind("locks", true, "no locks, no elections");
pub(super) const SHARED: Kind = Kind("shared-locks", false, "no read-write locks, no semaphores");
pub(super) const KEYS: Kind = Kind("idempotency", true, "no idempotency keys");
pub(super) const WAKING: Kind = Kind("wake-ups", false, "callers that wait ask again by a timer");
pub(super) const DURABILITY: Kind = Kind("durability", false, "no durability above `Primary`");
pub(super) const HANDOVER: Kind =
    Kind("handover", false, "no planned handover, no release while the memory is full");
pub(super) const OPERATOR: Kind =
    Kind("operator", false, "this login cannot run `init`, `list`, `idem`");
pub(super) const CLEANING: Kind =
    Kind("cleaning", true, "keys of the probe are left for a minute, and these perhaps for ever");

impl Kind {
    fn is(self, verdict: Ability, message: impl Into<String>, said: impl Into<String>) -> Feature {
        let (message, said) = (message.into(), said.into());
        let Self(feature, needed, _) = self;
        Feature { feature, verdict, needed, message, said, fix: vec![] }
    }

    pub(super) fn works(self, message: impl Into<String>) -> Feature {
        self.is(Ability::Works, message, "")
    }

    pub(super) fn with(self, said: impl Into<String>, fix: String) -> Feature {
        Feature { fix: vec![fix], ..self.is(Ability::WorksWith, self.2, said) }
    }

    pub(super) fn cannot(self, said: impl Into<String>) -> Feature {
        self.is(Ability::Cannot, self.2, said)
    }

    pub(super) fn unknown(self, why: impl Into<String>) -> Feature {
        self.is(Ability::Unknown, why, "")
    }
}

impl Probe {
    /// No trial disproves what is known of a service's history.
    pub(super) fn new(
        subject: &str,
        url: &str,
        service: Option<Service>,
        mut features: Vec<Feature>,
        secrets: &Secrets,
    ) -> Self {
        let unsafe_ = service.filter(|service| service.verdict == "cannot");
        for f in &mut features {
            if let Some(Service { name, says, .. }) = unsafe_
                && f.feature == HISTORY.0
                && f.verdict == Ability::Works
            {
                *f = HISTORY.unknown(format!("the trial succeeded, but {name}: {says}"));
            }
            for text in [&mut f.message, &mut f.said] {
                *text = secrets.sentence(text, SENTENCE_MAX);
            }
            f.fix.iter_mut().for_each(|command| *command = secrets.sentence(command, COMMAND_MAX));
        }
        let lost = |f: &Feature| {
            [CONNECTION.0, SENTINEL.0].contains(&f.feature) && f.verdict == Ability::Unknown
        };
        Self {
            subject: secrets.sentence(subject, SENTENCE_MAX),
            reached: !features.iter().any(lost),
            service,
            features,
            then: secrets.sentence(&format!("palisade doctor --node '{url}'"), COMMAND_MAX),
        }
    }

    /// Returns the exit code for a program: 2 if a needed feature cannot work, 69 if one is
    /// unknown, 1 if one needs a setting or, with `strict`, if another feature does or cannot work,
    /// else 0. Another feature that is unknown never counts.
    pub fn exit_code(&self, strict: bool) -> u8 {
        use Ability as A;
        let has = |is, needed| self.features.iter().any(|f| f.verdict == is && f.needed >= needed);
        if has(A::Cannot, true) {
            2
        } else if has(A::Unknown, true) {
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

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.subject)?;
        for tried in &self.features {
            let verdict = serde_json::to_string(&tried.verdict).map_err(|_| fmt::Error)?;
            let verdict = verdict.trim_matches('"');
            writeln!(f, "{verdict:<11}{:<16}{}", tried.feature, tried.message)?;
            if !tried.said.is_empty() {
                wrapped(f, 27, &format!("said: {}", tried.said))?;
            }
            for command in &tried.fix {
                writeln!(f, "{:27}$ {command}", "")?;
            }
        }
        if let Some(Service { name, verdict, says, basis, .. }) = &self.service {
            wrapped(f, 0, &format!("known of {name} ({basis}): {verdict}: {says}"))?;
        }
        writeln!(f, "then: {}  # judges its settings: eviction, files, replicas", self.then)
    }
}

#[cfg(test)]
mod tests {
    use super::super::services;
    use super::*;

    #[test]
    fn a_service_that_is_known_to_be_unsafe_is_not_called_fine() {
        let of = |url: &str| {
            let found = vec![LOCKS.works("locks"), HISTORY.works("shown")];
            Probe::new("a", url, services::of(url), found, &Secrets::default())
        };
        assert_eq!(of("redis://a.example:6379").exit_code(false), 0);
        let found = of("rediss://a.serverless.use1.cache.amazonaws.com:6379");
        assert_eq!((found.exit_code(false), found.features[1].verdict), (69, Ability::Unknown));
        assert!(found.to_string().contains("ElastiCache Serverless: no WAIT"), "{found}");
    }
}
