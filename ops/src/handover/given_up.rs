//! The progress of a planned handover, and the cleanup after the future of a handover was dropped.

use std::sync::PoisonError;
use std::time::Duration;

use super::super::masters;
use super::super::script::{Kind, Refusal};
use super::marked::open_on;
use super::{Closed, HandedOver, Handover};

/// Progress of a handover after the request to close the server, which makes it refuse requests.
#[derive(Clone, Debug)]
pub(super) enum Shut {
    /// The request to close the server was sent. No answer has arrived.
    Asked,
    Closed(Closed),
    /// The last request was sent to this server: to accept requests again, and to continue its data
    /// history (sequence of writes). The server may have executed the request already.
    Finishing(Closed),
    /// The handover is done: the server has opened and continues its data history.
    Done {
        at: String,
        closed: Duration,
    },
}

impl Handover {
    /// Stores the present progress of the handover, and returns the earlier progress.
    pub(super) fn shut(&self, what: Option<Shut>) -> Option<Shut> {
        std::mem::replace(&mut *self.shut.lock().unwrap_or_else(PoisonError::into_inner), what)
    }

    /// Ends a handover after the drop of its future. Opens the server that is still closed: the old
    /// master or the promoted replica. A promoted replica then begins its quarantine (a time
    /// without grants) at once. Returns the result of the handover: `Done` if the handover was done
    /// before its future was dropped, `Unknown` if the last step was not answered. Returns `None`
    /// if no server was closed.
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
            // The server is no longer closed or could not be reached, so it may have executed the
            // last step of the handover.
            Err(why) if is_last => return Some(HandedOver::Unknown(unanswered(&why))),
            Err(why) => why,
        };
        Some(if closed.is_new { HandedOver::FellBack(why) } else { HandedOver::Refused(why) })
    }

    /// Opens a closed server, so that it accepts requests again.
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

/// Returns the text for a handover whose last step was not answered.
pub(super) fn unanswered(why: &str) -> String {
    format!(
        "no answer to the last step ({why}): the new master continues where the old server \
         stopped, or begins with a quarantine. Nothing has to be undone; its answers to clients \
         show which"
    )
}
