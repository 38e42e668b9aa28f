//! The writes of a planned handover that open a server again, or let another one go on.

use super::super::gather::conn::Conn;
use super::super::marking;
use super::super::script::{Kind, Refusal};
use super::Closed;
use palisade::internal::lineage::Handover as State;

pub(super) const UNMARKED: &str = "its marker is missing: run `palisade init --new` on a new \
                                   deployment, or let an application connect first";

/// Opens a server that is closed by this marker.
pub(super) async fn open_on(conn: &Conn, closed: &Closed) -> Result<(), Refusal> {
    let looked = marking::look(conn).await?;
    if looked.shown.marker != Some(closed.marker) {
        let why = "it is no longer closed by this handover".to_owned();
        return Err(Refusal { kind: Kind::Refused, why });
    }
    marking::swap(conn, &looked, &closed.marker.opened(), false, u64::MAX).await
}

/// Lets a server go on with the history of the closed one, in this epoch of the Sentinels. An
/// earlier write whose answer was lost is recognised. `sent` is set if a write was not answered.
/// `apart` is 2E in ms.
pub(super) async fn finish_on(
    conn: &Conn,
    closed: &Closed,
    (epoch, apart): (Option<u64>, u64),
    sent: &mut bool,
) -> Result<(), Refusal> {
    let looked = marking::look(conn).await.map_err(|refusal| match refusal.kind {
        // A server that is a replica by now no longer shows what an earlier write did.
        Kind::Refused => Refusal { kind: Kind::Changed, ..refusal },
        _ => refusal,
    })?;
    let refused = |kind, why: &str| Err(Refusal { kind, why: why.to_owned() });
    let Some(marker) = looked.shown.marker.filter(|marker| *marker == closed.marker) else {
        let is_done = looked.shown.marker.is_some_and(|now| {
            now.replid == looked.shown.replid
                && matches!(now.handover, Some(State::Settling(_)))
                && (now.id(), now.floor) == (closed.marker.id(), closed.marker.floor)
        });
        let why = "its data do not hold the closing: writes are missing, or it was used since";
        return if is_done { Ok(()) } else { refused(Kind::Changed, why) };
    };
    match marker.finish(&looked.shown, epoch, apart) {
        Ok(finished) => {
            // Held up for longer, it would let this server go on beside another one, which has
            // opened by its own clock (quarantine 11).
            let till = if let Some(State::Closed(till)) = marker.handover { till } else { 0 };
            let last = till.saturating_sub(apart);
            let done = marking::swap(conn, &looked, &finished, true, last).await;
            *sent |= done.as_ref().is_err_and(|refusal| refusal.kind == Kind::Failed);
            done
        }
        Err(why) => refused(Kind::Refused, &why),
    }
}
