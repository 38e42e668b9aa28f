//! A lock: acquire it, work with its token, notice a loss, release it.
//!
//! ```text
//! cargo run -p examples --bin quickstart
//! cargo run -p examples --bin quickstart -- --node redis://127.0.0.1
//! cargo run -p examples --bin quickstart -- --node sentinel://10.0.0.1,10.0.0.2/orders-a
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

    // `try_acquire` does not wait. It returns at once, without an error, how long the lock may
    // still be held.
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

    // A dropped guard is released in the background. `close` waits for such releases.
    drop(mutex.acquire().await?);
    println!("{}", redlock.close(Duration::from_secs(5)).await);
    Ok(())
}

/// Writes an invoice; your own work takes its place. A real resource stores the largest token that
/// it has seen, and refuses a write with a smaller token.
async fn write_invoice(token: FencingToken) -> Result<(), Box<dyn Error + Send + Sync>> {
    tokio::time::sleep(Duration::from_millis(50)).await;
    println!("written with token {token}");
    Ok(())
}
