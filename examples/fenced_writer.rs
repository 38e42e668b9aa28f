//! A write with a fencing token. A lock holder is paused until its lock has ended. Then it
//! continues and writes too late. No lock can prevent the late write. Only the resource can refuse
//! the write, by its token.
//!
//! ```text
//! cargo run -p examples --bin fenced_writer
//! cargo run -p examples --bin fenced_writer -- --node redis://127.0.0.1
//! ```

mod common;

use std::error::Error;
use std::sync::Mutex;
use std::time::Duration;

use clap::Parser as _;
use palisade::{FencingToken, LockGuard};

/// A resource with several writing processes, such as a row, a file or a device. It refuses writes
/// with an old token. In SQL the same rule is
/// `UPDATE account SET balance = ?, token = ? WHERE id = ? AND token <= ?`.
#[derive(Debug, Default)]
struct Account(Mutex<(FencingToken, i64)>);

#[derive(Debug, PartialEq, Eq)]
struct TooLate {
    token: FencingToken,
    seen: FencingToken,
}

impl Account {
    fn set(&self, balance: i64, token: FencingToken) -> Result<(), TooLate> {
        let mut row = self.0.lock().expect("no writer panics");
        if token < row.0 {
            return Err(TooLate { token, seen: row.0 });
        }
        *row = (token, balance);
        Ok(())
    }

    fn balance(&self) -> i64 {
        self.0.lock().expect("no writer panics").1
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let connect = common::Connect::parse();
    let redlock = connect.builder(connect.ttl(Duration::from_millis(400)))?.build()?;
    common::ready(&redlock).await?;
    let account = Account::default();
    // This process does not renew its lock. So the lock ends as if the process were paused.
    let mutex = redlock.mutex("account:7").auto_renew(false).build()?;

    let first = mutex.acquire().await?;
    println!(
        "first holder, token {}: reads {} and is paused",
        first.fencing_token(),
        account.balance()
    );
    pause_of_the_machine(&first).await;

    // The lock has expired. So another holder can acquire the lock.
    let second = mutex.acquire().await?;
    account.set(200, second.fencing_token()).map_err(|late| format!("refused: {late:?}"))?;
    println!("second holder, token {}: writes 200", second.fencing_token());
    second.release().await?;

    // The first holder continues in the middle of its write. So it cannot check its guard first.
    match account.set(100, first.fencing_token()) {
        Err(TooLate { token, seen }) => {
            println!("first holder wakes and writes 100: refused, {token} is older than {seen}");
        }
        Ok(()) => return Err("a late write got through".into()),
    }
    let held = first.is_valid();
    let Err(late) = first.release().await else { return Err("a lost lock was released".into()) };
    println!("its guard says: held = {held}; its release says: {late}");
    assert_eq!(account.balance(), 200);
    println!("{}", redlock.close(Duration::from_secs(5)).await);
    println!("balance {}", account.balance());
    Ok(())
}

async fn pause_of_the_machine(guard: &LockGuard) {
    guard.lost().await;
    // A node keeps a lock slightly longer than the holder may use it. So wait until the lock has
    // ended on the nodes too.
    tokio::time::sleep(Duration::from_millis(50)).await;
}
