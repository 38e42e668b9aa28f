//! The writes of a planned handover that open a server again, or let another one go on.

use std::time::Duration;

use super::super::gather::conn::Conn;
use super::super::marking;
use super::super::script::{Kind, Refusal};
use super::{Closed, Handover, least};
use palisade::internal::lineage::{Handover as State, Marker};

const UNMARKED: &str = "its marker is missing: run `palisade init --new` on a new \
                        deployment, or let an application connect first";

/// Returns the marker that closes the server, and E: the handover's own, or that by which all
/// clients go if it is larger (quarantine 7).
pub(super) async fn close_on(
    conn: &Conn,
    of: &Handover,
    epoch: Option<u64>,
) -> Result<(Marker, Duration), Refusal> {
    let looked = marking::look(conn).await?;
    let refused = |why| Refusal { kind: Kind::Refused, why };
    let marker = looked.shown.marker.ok_or_else(|| refused(UNMARKED.to_owned()))?;
    let span = u64::try_from(of.closed_for.as_millis()).unwrap_or(u64::MAX);
    let closed = marker.close(&looked.shown, epoch, span).map_err(refused)?;
    let clock_error = of.clock_error.max(Duration::from_micros(marker.clock_error));
    let least = least(clock_error);
    if of.closed_for <= least {
        return Err(refused(format!(
            "its clients reckon with a clock_error of {clock_error:?} (`palisade settings`), so it \
             has to be closed for more than {least:?} (`--closed-for`)"
        )));
    }
    let until = looked.now().saturating_add(span);
    marking::swap(conn, &looked, &closed, false, until).await.map(|()| (closed, clock_error))
}

pub(super) async fn open_on(conn: &Conn, closed: &Closed) -> Result<(), Refusal> {
    let looked = marking::look(conn).await?;
    if looked.shown.marker != Some(closed.marker) {
        let why = "it is no longer closed by this handover".to_owned();
        return Err(Refusal { kind: Kind::Refused, why });
    }
    marking::swap(conn, &looked, &closed.marker.opened(), false, u64::MAX).await
}

/// An earlier write whose answer was lost is recognised. `sent` is set if a write was not answered.
/// `apart` is 2E in ms. Keys that the server has deleted forbid it, or are left to others.
pub(super) async fn finish_on(
    conn: &Conn,
    closed: &Closed,
    (epoch, apart, allows_eviction): (Option<u64>, u64, bool),
    sent: &mut bool,
) -> Result<(), Refusal> {
    let looked = marking::look(conn).await.map_err(|refusal| match refusal.kind {
        // A replica no longer shows what an earlier write did.
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
    let left = if allows_eviction { marker.leaving_evictions(&looked.shown) } else { marker };
    match left.finish(&looked.shown, epoch, apart) {
        Ok(finished) => {
            // Held up for longer, it would let this server go on beside another one that has opened
            // by its own clock (quarantine 11).
            let till = if let Some(State::Closed(till)) = marker.handover { till } else { 0 };
            let last = till.saturating_sub(apart);
            let done = marking::swap(conn, &looked, &finished, true, last).await;
            *sent |= done.as_ref().is_err_and(|refusal| refusal.kind == Kind::Failed);
            done
        }
        Err(why) => refused(Kind::Refused, &why),
    }
}
