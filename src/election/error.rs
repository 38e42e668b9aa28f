//! Errors of the election operations, one type for each operation.

use std::time::Duration;

use crate::error::{Advice, ConfigError, NoQuorum, Resource, Taken, advise};

advise!(CampaignError, ProclaimError, LeaderError);

/// The error of a campaign that did not win the leadership.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CampaignError {
    /// The value to publish is too long, or a setting of the awaited builder is invalid.
    #[error("cannot campaign: {0}")]
    Config(ConfigError),
    /// Too few nodes answered. This process does not lead. Grants that it has received from single
    /// nodes are released in the background.
    #[error("cannot campaign now: {0}")]
    NoQuorum(NoQuorum),
    /// Another process led until the deadline, or another program's value was under the key of the
    /// election ([`Taken::foreign`]).
    #[error("{of}: not elected within {waited:?}, {}", who_leads(taken))]
    TimedOut {
        /// The election of the campaign.
        of: Resource,
        /// Time from the start of the campaign to the error.
        waited: Duration,
        /// Refusal that the last attempt received.
        taken: Taken,
    },
    /// This process is set to be [not eligible](crate::ElectionBuilder::eligible), so it does not
    /// attempt to lead.
    #[error(
        "{of}: not elected within {waited:?}, this process is not eligible; `set_eligible(true)` \
         changes that"
    )]
    Ineligible {
        /// The election of the campaign.
        of: Resource,
        /// Time from the start of the campaign to the error.
        waited: Duration,
    },
    /// [`Redlock::close`](crate::Redlock::close) was called. This process does not lead.
    #[error("{0}: cannot campaign, the handle was closed; build a new one")]
    Closed(Resource),
}

fn who_leads(taken: &Taken) -> &'static str {
    if taken.foreign {
        "another program's value is under its key: use another name or `prefix`, or delete the key \
         if no program needs it"
    } else {
        "another candidate leads"
    }
}

impl CampaignError {
    /// Returns the next step for the caller.
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

/// The error of a proclamation that failed, or that the nodes did not confirm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProclaimError {
    /// The value to proclaim is too long. Nothing was sent to the nodes.
    #[error("not proclaimed: {0}")]
    Config(ConfigError),
    /// The leadership has ended, and another process may lead.
    #[error("{0}: not proclaimed, the leadership is lost; a new leader may exist")]
    Lost(Resource),
    /// Too few nodes answered. The term continues, and each renewal sends the value again. Readers
    /// may see the value already. At the latest they see it after the next successful renewal.
    #[error("not confirmed as proclaimed, the next renewal sends it again: {0}")]
    Unknown(NoQuorum),
}

impl ProclaimError {
    /// Returns the next step for the caller.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Config(_) => Advice::Misconfigured,
            Self::Lost(_) => Advice::GiveUp,
            Self::Unknown(e) => e.advice(),
        }
    }
}

/// The error of a read that could not determine the leader, or of a request to step down without a
/// known result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaderError {
    /// Too few nodes gave a reply that counts. A node in quarantine may have lost data, so its
    /// reply counts only if the leader has renewed its lease on this node since the quarantine
    /// began. If a request to step down ends with this error, the leader may or may not have
    /// received the request.
    #[error("no answer about the leader: {0}")]
    NoQuorum(NoQuorum),
    /// [`Redlock::close`](crate::Redlock::close) was called.
    #[error("{0}: no answer about the leader, the handle was closed; build a new one")]
    Closed(Resource),
}

impl LeaderError {
    /// Returns the next step for the caller.
    pub fn advice(&self) -> Advice {
        match self {
            Self::NoQuorum(e) => e.advice(),
            Self::Closed(_) => Advice::Rebuild,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Commands;

    #[test]
    fn a_campaign_that_timed_out_tells_a_leader_from_a_value_of_another_program() {
        for (foreign, told) in [(false, "leads"), (true, "another program's value")] {
            let (of, taken) = (
                Resource::Election("e".into()),
                Taken { retry_after: None, foreign, queued: None },
            );
            let e = CampaignError::TimedOut { of, waited: Duration::from_secs(2), taken };
            assert!(e.to_string().contains(told), "{e}");
        }
    }

    #[test]
    fn an_error_names_its_election_and_says_its_cause_once() {
        let of = || Resource::Election("billing".into());
        let why = || NoQuorum {
            of: Some(of()),
            needed: 1,
            nodes: Vec::new(),
            waited: None,
            commands: Commands::default(),
        };
        let config = || ConfigError::new("value", "9 bytes", "too long").of(of());
        let taken = Taken { retry_after: None, foreign: false, queued: None };
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
