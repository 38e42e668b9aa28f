//! A lock: acquire it, work with its token, notice a loss, release it.
//!
//! ```text
//! cargo run -p examples --bin quickstart
//! cargo run -p examples --bin quickstart -- --node redis://127.0.0.1
//! cargo run -p examples --bin quickstart -- --sentinel 10.0.0.1:26379,10.0.0.2:26379 \
//!     --master orders-a
//! ```

mod common;

use std::error::Error;
use std::time::Duration;

use clap::Parser as _;
use palisade::{FencingToken, TryAcquire};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let connect = common::Connect::parse();
    let redlock = connect.builder(connect.ttl(Duration::from_secs(3)))?.build()?;
    common::ready(&redlock).await?;
    let mutex = redlock.mutex("invoice:42").build()?;

    let guard = mutex.acquire().await?;
    println!("held with fencing token {}", guard.fencing_token());

    // Another caller learns at once, without an error, how long the lock may be held.
    match mutex.try_acquire().await? {
        TryAcquire::Taken(taken) => {
            println!("another one is refused: retry in {:?}", taken.retry_after);
        }
        TryAcquire::Acquired(_) => return Err("two holders".into()),
    }

    // The lock is renewed in the background. It may still be lost, for example by a network fault
    // or a long pause. Then the work is dropped at its next await, and the resource refuses a late
    // write by its fencing token.
    tokio::select! {
        biased;
        () = guard.lost() => return Err("lock lost, work interrupted".into()),
        written = write_invoice(guard.fencing_token()) => written?,
    }

    match guard.release().await {
        Ok(()) => println!("released"),
        Err(other) => println!("not a clean release: {other}"),
    }

    // The next holder's token is larger, so a resource can recognise a late writer.
    let next = mutex.acquire().await?;
    println!("held again with fencing token {}", next.fencing_token());
    next.release().await?;

    // A dropped guard is released in the background; `close` leaves time for that.
    drop(mutex.acquire().await?);
    println!("{}", redlock.close(Duration::from_secs(5)).await);
    Ok(())
}

/// Writes an invoice, in place of your own work. The resource keeps the largest token that it has
/// seen, and refuses smaller ones.
async fn write_invoice(token: FencingToken) -> Result<(), Box<dyn Error + Send + Sync>> {
    tokio::time::sleep(Duration::from_millis(50)).await;
    println!("written with token {token}");
    Ok(())
}
