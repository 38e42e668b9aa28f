//! The cleanup after the future of a handover was dropped.

use std::sync::PoisonError;
use std::time::Duration;

use super::super::masters;
use super::super::script::{Kind, Refusal};
use super::marked::open_on;
use super::{Closed, HandedOver, Handover};

#[derive(Clone, Debug)]
pub(super) enum Shut {
    /// No answer has arrived.
    Asked,
    Closed(Closed),
    /// The server may have executed the last request already.
    Finishing(Closed),
    Done {
        at: String,
        closed: Duration,
    },
}

impl Handover {
    pub(super) fn shut(&self, what: Option<Shut>) -> Option<Shut> {
        std::mem::replace(&mut *self.shut.lock().unwrap_or_else(PoisonError::into_inner), what)
    }

    /// Ends a handover after the drop of its future. Opens the server that is still closed: the old
    /// master or the promoted replica, which then begins its quarantine at once. Returns the result
    /// of the handover: `Done` if the handover was done before its future was dropped, `Unknown` if
    /// the last step was not answered. Returns `None` if no server was closed.
    ///
    /// # Cancellation safety
    /// If the future is dropped at an await, the server opens by itself after `closed_for`.
    pub async fn give_up(&self) -> Option<HandedOver> {
        let (closed, is_last) = match self.shut(None)? {
            Shut::Asked => {
                let why = format!("the closing was not answered{}", self.opens_itself());
                return Some(HandedOver::Refused(why));
            }
            Shut::Done { at, closed } => return Some(HandedOver::Done { at, closed }),
            Shut::Closed(closed) => (closed, false),
            Shut::Finishing(closed) => (closed, true),
        };
        let why = match self.reopen(&closed).await {
            Ok(()) => "it is open again".to_owned(),
            // The server may have executed the last step.
            Err(why) if is_last => return Some(HandedOver::Unknown(unanswered(&why))),
            Err(why) => why,
        };
        Some(if closed.is_new { HandedOver::FellBack(why) } else { HandedOver::Refused(why) })
    }

    pub(super) async fn reopen(&self, closed: &Closed) -> Result<(), String> {
        let opened = match masters::open(&closed.target, &self.deployment).await {
            Ok(conn) => open_on(&conn, closed).await,
            Err(why) => Err(Refusal::failed(why)),
        };
        match opened {
            Ok(()) => Ok(()),
            Err(Refusal { kind: Kind::Failed, why }) => {
                let most = self.closed_for;
                Err(format!("not opened ({why}): it opens by itself, {most:?} after it was closed"))
            }
            Err(refusal) => Err(refusal.why),
        }
    }
}

pub(super) fn unanswered(why: &str) -> String {
    format!(
        "no answer to the last step ({why}): the new master continues where the old server \
         stopped, or begins with a quarantine. Nothing has to be undone; its answers to clients \
         show which"
    )
}
