//! Moves dead letters back into their stream after a decision about a loss of data.

use palisade::idempotency::consumer::BrokerError;
use palisade::internal::{Endpoint, Line};
use redis::{RedisError, Script};

use crate::error::{address, failed};
use crate::session::{answered, connect, dead_letters};

/// Number of dead letters that one script call looks at.
const PAGE: usize = 50;

/// Numbers of the dead letters that [`redrive`] handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Redriven {
    /// Dead letters that were moved back into the stream.
    pub moved: u64,
    /// Dead letters that stay, because their entries were too large to be copied. Add those entries
    /// again from their source.
    pub incomplete: u64,
}

/// Moves the dead letters of `stream` whose reason is
/// [`Forgotten`](palisade::idempotency::consumer::DeadLetterReason::Forgotten) back into it, with
/// the fields that their producer set. Consumers then handle them by the state of their keys. If
/// the decision about the loss was to run them, each runs once. A key that has a result is
/// replayed. A key that is still parked makes a dead letter again. Dead letters that are added
/// during the call stay.
///
/// Each step moves a few entries atomically, so none is lost or duplicated, however often the call
/// is repeated and wherever it is stopped. The number of moved entries is logged, even if the call
/// fails or is dropped. The caller has to log who redrives and why, as `palisade idem redrive`
/// does.
///
/// # Errors
/// [`BrokerError`] if the server did not complete the call. Some entries may have been moved. Call
/// it again.
///
/// # Cancellation safety
/// If the future is dropped, the entries moved so far stay moved. Calling it again continues.
pub async fn redrive(url: &str, stream: &str) -> Result<Redriven, BrokerError> {
    let endpoint = Endpoint::parse(url).map_err(|e| address(stream, &e))?;
    let failed = |e: RedisError| failed(stream, &e, &endpoint.secrets());
    let line = connect(&endpoint).await.map_err(failed)?;
    let mut logged = Logged { stream, redriven: Redriven::default(), done: false };
    let moved = move_all(&line, stream, &mut logged.redriven).await;
    logged.done = moved.is_ok();
    moved.map(|()| logged.redriven).map_err(failed)
}

/// Logs the number of moved entries on drop, so that they are logged even if the call is dropped.
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
