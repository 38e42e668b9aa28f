//! Moves dead letters back into their stream. The messages became dead letters because the nodes
//! with the idempotency records lost data, so it was unknown if the messages had been handled. An
//! operator has decided about this loss.

use palisade::internal::{Endpoint, Line};
use palisade_consumer::BrokerError;
use redis::{RedisError, Script};

use crate::error::{address, failed};
use crate::session::{answered, connect, dead_letters};

/// Maximum number of dead letters that one call of the Lua script reads.
const PAGE: usize = 50;

/// The numbers of dead letters that [`redrive`] moved and did not move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Redriven {
    /// Number of dead letters that were moved back into the stream.
    pub moved: u64,
    /// Number of dead letters that were not moved. They do not contain their whole entry, because
    /// the entry was too large for a copy. Add those entries to the stream again from their source.
    pub incomplete: u64,
}

/// Moves dead letters back into `stream`, with the fields that their producer set. Only dead
/// letters with the reason
/// [`Forgotten`](palisade_consumer::DeadLetterReason::Forgotten) are moved. This
/// reason means that nodes lost data. So it was unknown if the message had been handled before.
/// Dead letters that are added during the call are not moved.
///
/// Consumers then handle each message by the state of its key. If an operator has decided to run
/// the keys of that loss, the handler runs once. If the key has a result, the message is
/// acknowledged, and the handler does not run. If the key is still parked, the message becomes a
/// dead letter again.
///
/// Each step moves a few entries atomically. So no entry is lost or duplicated if the call stops
/// early or is repeated. The function logs the number of moved entries, even if the call fails or
/// is dropped. The caller must log the person who calls it and the reason, as `palisade idem
/// redrive` does.
///
/// # Errors
/// [`BrokerError`] if the server failed before all entries were moved. Some entries may have been
/// moved. Call the function again for the others.
///
/// # Cancellation safety
/// If the future is dropped, the entries moved so far stay moved. Another call moves the others.
pub async fn redrive(url: &str, stream: &str) -> Result<Redriven, BrokerError> {
    let endpoint = Endpoint::parse(url).map_err(|e| address(stream, &e))?;
    let failed = |e: RedisError| failed(stream, &e, &endpoint.secrets());
    let line = connect(&endpoint).await.map_err(failed)?;
    let mut logged = Logged { stream, redriven: Redriven::default(), done: false };
    let moved = move_all(&line, stream, &mut logged.redriven).await;
    logged.done = moved.is_ok();
    moved.map(|()| logged.redriven).map_err(failed)
}

/// The numbers of entries that a call of [`redrive`] has moved and not moved. They are logged when
/// the value is dropped. So they are also logged if the future of the call is dropped.
struct Logged<'a> {
    stream: &'a str,
    redriven: Redriven,
    done: bool,
}

impl Drop for Logged<'_> {
    fn drop(&mut self) {
        tracing::warn!(
            target: "palisade_streams",
            event = "redrive",
            stream = self.stream,
            moved = self.redriven.moved,
            incomplete = self.redriven.incomplete,
            done = self.done,
            "forgotten dead letters were moved back into their stream"
        );
    }
}

async fn move_all(line: &Line, stream: &str, redriven: &mut Redriven) -> Result<(), RedisError> {
    let (dead, script) = (dead_letters(stream), Script::new(include_str!("lua/redrive.lua")));
    let mut newest = redis::cmd("XREVRANGE");
    newest.arg(&dead).arg("+").arg("-").arg("COUNT").arg(1);
    let newest = answered(newest.query_async::<redis::Value>(&mut (**line).clone())).await?;
    let newest: Vec<(String, redis::Value)> = redis::from_redis_value(newest)?;
    let Some((last, _)) = newest.first() else { return Ok(()) };
    let mut on = "-".to_owned();
    while !on.is_empty() {
        let mut page = script.key(&dead);
        page.key(stream).arg(on).arg(last).arg(PAGE);
        let looked = answered(page.invoke_async(&mut (**line).clone())).await?;
        let (next, moved, stay): (String, u64, u64) = looked;
        redriven.moved += moved;
        redriven.incomplete += stay;
        on = next;
    }
    Ok(())
}
