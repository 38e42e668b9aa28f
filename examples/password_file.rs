//! A password in a file that changes, as a mounted secret does, and a lock that is held and worked
//! with meanwhile. No restart, no failed call.
//!
//! The program makes an ACL user for itself, and deletes it at its end. Run this on a server for
//! trials: it needs the rights of an administrator.
//!
//! ```text
//! cargo run -p examples --bin password_file -- --server redis://127.0.0.1
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use clap::Parser;
use palisade::Redlock;
use palisade::node::{PasswordFile, RedisNode};
use redis::cmd;
use tokio::time::sleep;

#[derive(Parser)]
struct Cli {
    /// Address of the server, with the login of an administrator if it needs one
    #[arg(long, default_value = "redis://127.0.0.1")]
    server: String,
}

/// A minute by default.
const READ_EVERY: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let cli = Cli::parse();
    let mut admin = redis::Client::open(&*cli.server)?.get_multiplexed_async_connection().await?;
    let user = format!("palisade-example-{:08x}", rand::random::<u32>());
    let file = std::env::temp_dir().join(&user);
    let acl = |rights: &[&str]| cmd("ACL").arg("SETUSER").arg(&user).arg(rights).take();
    acl(&["on", ">password-0", "~*", "&*", "+@all"]).query_async::<()>(&mut admin).await?;
    std::fs::write(&file, "password-0\n")?;

    // A trial on a new server, hence `trust_fresh`.
    let node = RedisNode::builder(&cli.server)
        .trust_fresh(true)
        .username(&user)
        .credentials(PasswordFile::new(&file).read_every(READ_EVERY));
    let redlock = Redlock::builder().node(node.build()?).build()?;
    let held = redlock.mutex("held").ttl(Duration::from_secs(3)).build()?.acquire().await?;
    let mutex = redlock.mutex("again and again").build()?;
    let mut times = 0;
    for n in 1..4 {
        // Both are good until every program has read the file.
        let (new, old) = (format!(">password-{n}"), format!("<password-{}", n - 1));
        acl(&[&new]).query_async::<()>(&mut admin).await?;
        std::fs::write(&file, &new[1..])?;
        println!("password {n} is in the file");
        let end = Instant::now() + 2 * READ_EVERY;
        while Instant::now() < end {
            mutex.acquire().await?.release().await?;
            times += 1;
            sleep(Duration::from_millis(20)).await;
        }
        acl(&[&old]).query_async::<()>(&mut admin).await?;
    }
    if !held.is_valid() {
        return Err("the lock was lost".into());
    }
    held.release().await?;
    println!("{}", redlock.close(Duration::from_secs(5)).await);
    let faults = redlock.metrics()[0].faults_total();
    println!("{times} times locked with 4 passwords, {faults} faults");
    cmd("ACL").arg("DELUSER").arg(&user).query_async::<()>(&mut admin).await?;
    std::fs::remove_file(&file)?;
    if faults > 0 { Err("a call failed".into()) } else { Ok(()) }
}
