//! Moves dead letters back into their stream after a decision about a loss of data.

use palisade::idempotency::consumer::BrokerError;
use palisade::internal::{Endpoint, Line};
use redis::{RedisError, Script};

use crate::error::{address, failed};
use crate::session::{answered, connect, dead_letters};

/// Dead letters that one script looks at.
const PAGE: usize = 50;

/// Numbers of dead letters that [`redrive`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Redriven {
    /// Moved back into the stream.
    pub moved: u64,
    /// Left, because their entries were too large for a dead letter: add them again from where
    /// they came from.
    pub incomplete: u64,
}

/// Moves the dead letters of `stream` whose reason is
/// [`Forgotten`](palisade::idempotency::consumer::DeadLetterReason::Forgotten) back into it, with
/// the fields that their producer set. They run as their keys say: where the loss was decided to
/// run, once; what has a result is replayed; what is still decided to be parked becomes a dead
/// letter again. Dead letters that come while it works are left alone.
///
/// Each step moves a few entries as a whole, so none is lost and none is there twice, however often
/// it is called and wherever it is stopped. How many were moved is written to the log, also if it
/// fails or is dropped; who did it and why, the caller has to say, as `palisade idem redrive` does.
///
/// # Errors
/// [`BrokerError`]: some may have been moved. Call it again.
///
/// # Cancellation safety
/// Dropped, what was moved until then stays moved. Calling it again goes on.
pub async fn redrive(url: &str, stream: &str) -> Result<Redriven, BrokerError> {
    let endpoint = Endpoint::parse(url).map_err(|e| address(stream, &e))?;
    let failed = |e: RedisError| failed(stream, &e, &endpoint.secrets());
    let line = connect(&endpoint).await.map_err(failed)?;
    let mut logged = Logged { stream, redriven: Redriven::default(), done: false };
    let moved = move_all(&line, stream, &mut logged.redriven).await;
    logged.done = moved.is_ok();
    moved.map(|()| logged.redriven).map_err(failed)
}

/// Writes to the log what was moved, also if the call is dropped.
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
