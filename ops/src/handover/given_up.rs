//! The progress of a handover, and the end of a handover whose future was dropped.

use std::sync::PoisonError;
use std::time::Duration;

use super::super::masters;
use super::super::script::{self, Kind, Refusal};
use super::{Closed, HandedOver, Handover};

/// Progress of a handover since its closing.
#[derive(Clone, Debug)]
pub(super) enum Shut {
    /// The closing was sent, and its answer is not known.
    Asked,
    Closed(Closed),
    /// The last step was sent to this server: it may have continued already.
    Finishing(Closed),
    /// The server has continued.
    Done {
        at: String,
        closed: Duration,
    },
}

impl Handover {
    /// Stores the progress, and returns the progress that was stored before.
    pub(super) fn shut(&self, what: Option<Shut>) -> Option<Shut> {
        std::mem::replace(&mut *self.shut.lock().unwrap_or_else(PoisonError::into_inner), what)
    }

    /// Ends a handover whose future was dropped: opens the server that was left closed, which is
    /// the old master or the promoted replica. A promoted replica then begins its quarantine at
    /// once. Returns the result of the handover. That is `Done` if the handover was done before its
    /// future was dropped, and `Unknown` if the last step was not answered. Returns `None` if no
    /// server was closed.
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
            // The server is no longer closed, or could not be reached: the last step may have been
            // executed.
            Err(why) if is_last => return Some(HandedOver::Unknown(unanswered(&why))),
            Err(why) => why,
        };
        Some(if closed.is_new { HandedOver::FellBack(why) } else { HandedOver::Refused(why) })
    }

    /// Opens a server that is closed.
    pub(super) async fn reopen(&self, closed: &Closed) -> Result<(), String> {
        let opened = match masters::open(&closed.target, &self.deployment).await {
            Ok(conn) => script::run(&conn, script::OPEN, &[&closed.marker]).await,
            Err(why) => Err(Refusal::failed(why)),
        };
        match opened {
            Ok(_) => Ok(()),
            Err(Refusal { kind: Kind::Failed, why }) => {
                let most = self.closed_for;
                Err(format!("not opened ({why}): it opens by itself, {most:?} after it was closed"))
            }
            Err(refusal) => Err(refusal.why),
        }
    }
}

/// Returns the sentence about a last step whose answer is not known.
pub(super) fn unanswered(why: &str) -> String {
    format!(
        "no answer to the last step ({why}): it goes on where the old server stopped, or begins \
         with a quarantine. Nothing has to be undone; what its clients are answered shows which"
    )
}
