//! Errors of the election operations, one type for each operation.

use std::time::Duration;

use crate::error::{Advice, ConfigError, NoQuorum, Resource, Taken, advise};

advise!(CampaignError, ProclaimError, LeaderError, StepDownError);

/// The error of a campaign that ended without a leadership.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CampaignError {
    /// The value is too long, or a setting of the awaited builder is invalid.
    #[error("cannot campaign: {0}")]
    Config(ConfigError),
    /// Too few nodes answered. Nothing is held; what nodes may have granted is being released.
    #[error("cannot campaign now: {0}")]
    NoQuorum(NoQuorum),
    /// Another process led until the deadline, or another program's value was under the election's
    /// key ([`Taken::foreign`]).
    #[error("{of}: not elected within {waited:?}, {}", who_leads(taken))]
    TimedOut {
        /// The election.
        of: Resource,
        /// Time from the start of the campaign to the error.
        waited: Duration,
        /// Refusal of the last attempt.
        taken: Taken,
    },
    /// This process does not attempt to lead, because it was set to be [not
    /// eligible](crate::ElectionBuilder::eligible). Nothing is held.
    #[error(
        "{of}: not elected within {waited:?}, this process is not eligible; `set_eligible(true)` \
         changes that"
    )]
    Ineligible {
        /// The election.
        of: Resource,
        /// Time from the start of the campaign to the error.
        waited: Duration,
    },
    /// [`Redlock::close`](crate::Redlock::close) was called. Nothing is held.
    #[error("{0}: cannot campaign, the handle was closed; build a new one")]
    Closed(Resource),
}

fn who_leads(taken: &Taken) -> &'static str {
    if taken.foreign {
        "another program's value is under its key: use another name or `prefix`, or delete the key \
         if nobody needs it"
    } else {
        "somebody else leads"
    }
}

impl CampaignError {
    /// Returns what the caller should do about the error.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Config(_) => Advice::Misconfigured,
            Self::NoQuorum(e) => e.advice(),
            Self::TimedOut { taken, .. } => taken.advice(),
            Self::Ineligible { .. } => Advice::GiveUp,
            Self::Closed(_) => Advice::Rebuild,
        }
    }
}

impl From<NoQuorum> for CampaignError {
    fn from(error: NoQuorum) -> Self {
        Self::NoQuorum(error)
    }
}

/// The error of a value that was not, or not certainly, proclaimed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProclaimError {
    /// The value is too long; nothing was sent.
    #[error("not proclaimed: {0}")]
    Config(ConfigError),
    /// The leadership has ended, so there may be a new leader.
    #[error("{0}: not proclaimed, the leadership is lost; a new leader may exist")]
    Lost(Resource),
    /// Too few nodes answered. The term goes on, and each renewal sends the value again. Readers
    /// may see the value already, and see it at the latest after a renewal that succeeds.
    #[error("not confirmed as proclaimed, the next renewal sends it again: {0}")]
    Unknown(NoQuorum),
}

impl ProclaimError {
    /// Returns what the caller should do about the error.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Config(_) => Advice::Misconfigured,
            Self::Lost(_) => Advice::GiveUp,
            Self::Unknown(e) => e.advice(),
        }
    }
}

/// The error of a read after which it is not known who leads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaderError {
    /// Too few nodes gave an answer that counts; nodes in quarantine do not count.
    #[error("leader unknown: {0}")]
    NoQuorum(NoQuorum),
    /// [`Redlock::close`](crate::Redlock::close) was called.
    #[error("{0}: leader not read, the handle was closed; build a new one")]
    Closed(Resource),
}

impl LeaderError {
    /// Returns what the caller should do about the error.
    pub fn advice(&self) -> Advice {
        match self {
            Self::NoQuorum(e) => e.advice(),
            Self::Closed(_) => Advice::Rebuild,
        }
    }
}

/// The error of a request to step down whose result is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StepDownError {
    /// Too few nodes answered, so the leader may or may not have received the request.
    #[error("step-down not confirmed: {0}")]
    NoQuorum(NoQuorum),
    /// [`Redlock::close`](crate::Redlock::close) was called.
    #[error("{0}: step-down not confirmed, the handle was closed; build a new one")]
    Closed(Resource),
}

impl StepDownError {
    /// Returns what the caller should do about the error.
    pub fn advice(&self) -> Advice {
        match self {
            Self::NoQuorum(e) => e.advice(),
            Self::Closed(_) => Advice::Rebuild,
        }
    }
}

impl From<LeaderError> for StepDownError {
    fn from(error: LeaderError) -> Self {
        match error {
            LeaderError::NoQuorum(why) => Self::NoQuorum(why),
            LeaderError::Closed(of) => Self::Closed(of),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_campaign_that_timed_out_tells_a_leader_from_a_value_of_another_program() {
        for (foreign, told) in [(false, "leads"), (true, "another program's value")] {
            let (of, taken) =
                (Resource::Election("e".into()), Taken { retry_after: None, foreign });
            let e = CampaignError::TimedOut { of, waited: Duration::from_secs(2), taken };
            assert!(e.to_string().contains(told), "{e}");
        }
    }

    #[test]
    fn an_error_names_its_election_and_says_its_cause_once() {
        let of = || Resource::Election("billing".into());
        let why = || NoQuorum { of: Some(of()), needed: 1, nodes: Vec::new(), waited: None };
        let config = || ConfigError::new("value", "9 bytes", "too long").of(of());
        let taken = Taken { retry_after: None, foreign: false };
        let waited = Duration::from_secs(2);
        let all: [Box<dyn std::error::Error>; 10] = [
            Box::new(CampaignError::Config(config())),
            Box::new(CampaignError::NoQuorum(why())),
            Box::new(CampaignError::TimedOut { of: of(), waited, taken }),
            Box::new(CampaignError::Ineligible { of: of(), waited }),
            Box::new(CampaignError::Closed(of())),
            Box::new(ProclaimError::Config(config())),
            Box::new(ProclaimError::Lost(of())),
            Box::new(ProclaimError::Unknown(why())),
            Box::new(LeaderError::NoQuorum(why())),
            Box::new(LeaderError::Closed(of())),
        ];
        for e in all {
            assert!(e.to_string().contains("election \"billing\""), "{e} names no election");
            assert!(e.source().is_none(), "{e} has a source besides");
        }
    }
}
