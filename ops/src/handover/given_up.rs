//! A handover that was dropped midway: how far it had come, and what that means.

use std::sync::PoisonError;
use std::time::Duration;

use super::super::{masters, script};
use super::{HandedOver, Handover};
use palisade::internal::Endpoint;

/// How far a handover has come, from its closing on.
#[derive(Clone, Debug)]
pub(super) enum Shut {
    /// The closing was sent, and its answer is not known.
    Asked,
    Closed(Shutter),
    /// The last step was sent to this server: it may go on already.
    Finishing(Shutter),
    /// The server goes on.
    Done {
        at: String,
        closed: Duration,
    },
}

/// A server that is closed, and how its marker reads.
#[derive(Clone, Debug)]
pub(super) struct Shutter {
    pub(super) target: Endpoint,
    pub(super) marker: String,
    /// True if it is a replica that was promoted.
    pub(super) is_new: bool,
}

impl Handover {
    /// Notes how far it has come, and returns what was noted before.
    pub(super) fn shut(&self, what: Option<Shut>) -> Option<Shut> {
        std::mem::replace(&mut *self.shut.lock().unwrap_or_else(PoisonError::into_inner), what)
    }

    /// Ends a handover that was dropped: opens the server that it left closed, the old master or
    /// the promoted replica, which then begins its quarantine at once. Returns what has become of
    /// the handover, also if it was done before it was dropped, or if that is unknown because its
    /// last step has no answer; nothing if no server was closed.
    ///
    /// # Cancellation safety
    /// Dropped at an await the server opens by itself after `closed_for`.
    pub async fn give_up(&self) -> Option<HandedOver> {
        let (shutter, is_last) = match self.shut(None)? {
            Shut::Asked => {
                let why = format!("the closing was not answered{}", self.opens_itself());
                return Some(HandedOver::Refused(why));
            }
            Shut::Done { at, closed } => return Some(HandedOver::Done { at, closed }),
            Shut::Closed(shutter) => (shutter, false),
            Shut::Finishing(shutter) => (shutter, true),
        };
        let why = match self.reopen(&shutter).await {
            Ok(()) => "it is open again".to_owned(),
            // Not closed any more, or not asked: as it would be if it went on.
            Err(why) if is_last => return Some(HandedOver::Unknown(unanswered(&why))),
            Err(why) => why,
        };
        Some(if shutter.is_new { HandedOver::FellBack(why) } else { HandedOver::Refused(why) })
    }

    /// Opens a server that is closed.
    pub(super) async fn reopen(
        &self,
        Shutter { target, marker, .. }: &Shutter,
    ) -> Result<(), String> {
        let opened = match masters::open(target, &self.deployment).await {
            Ok(conn) => script::run(&conn, script::OPEN, &[marker]).await,
            Err(why) => Err(script::Refusal::Failed(why)),
        };
        match opened {
            Ok(_) => Ok(()),
            Err(script::Refusal::Failed(why)) => {
                let most = self.closed_for;
                Err(format!("not opened ({why}): it opens by itself, {most:?} after it was closed"))
            }
            Err(refusal) => Err(refusal.reason()),
        }
    }
}

/// Sentence about a last step whose answer is not known.
pub(super) fn unanswered(why: &str) -> String {
    format!(
        "no answer to the last step ({why}): it goes on where the old server stopped, or begins \
         with a quarantine. Nothing has to be undone; what its clients are answered shows which"
    )
}
