//! Logins that end: a stub of a token service, whose tokens last five seconds, and a lock that is
//! held and worked with meanwhile.
//!
//! The stub makes an ACL user on the server for each token, and deletes the user at the token's
//! end, which cuts all connections that have logged in with it. Your own provider asks your cloud's
//! service instead. Run this on a server for trials: the stub needs the rights of an administrator.
//!
//! ```text
//! cargo run -p examples --bin credentials -- --server redis://127.0.0.1
//! ```

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use palisade::Redlock;
use palisade::node::{Credentials, CredentialsAnswer, CredentialsProvider, NodeEvents, RedisNode};
use redis::aio::MultiplexedConnection;
use redis::cmd;
use tokio::time::sleep;

#[derive(Parser)]
struct Cli {
    /// Address of the server, with the login of an administrator if it needs one
    #[arg(long, default_value = "redis://127.0.0.1")]
    server: String,

    /// End after this number of seconds
    #[arg(long, default_value_t = 12)]
    seconds: u64,
}

const LIFE: Duration = Duration::from_secs(5);

/// The token service, and what a program needs to ask it.
#[derive(Clone)]
struct TokenService {
    server: MultiplexedConnection,
    issued: Arc<AtomicU32>,
}

impl TokenService {
    async fn issue(&self) -> CredentialsAnswer {
        let n = self.issued.fetch_add(1, Ordering::Relaxed) + 1;
        let user = format!("palisade-example-{:08x}", rand::random::<u32>());
        let token = format!("{:032x}", rand::random::<u128>());
        let mut make = cmd("ACL").arg("SETUSER").arg(&user).arg("on").take();
        make.arg(format!(">{token}")).arg(&["~*", "&*", "+@all"]);
        make.query_async::<()>(&mut self.server.clone()).await?;
        println!("token {n} lasts {LIFE:?}");
        let (mut server, ended) = (self.server.clone(), user.clone());
        tokio::spawn(async move {
            sleep(LIFE).await;
            let delete = cmd("ACL").arg("DELUSER").arg(&ended).take();
            let _ = delete.query_async::<()>(&mut server).await;
            println!("token {n} has ended");
        });
        Ok(Credentials::new(token).user(user).token_ends(LIFE))
    }
}

impl CredentialsProvider for TokenService {
    fn credentials(&self) -> Pin<Box<dyn Future<Output = CredentialsAnswer> + Send + '_>> {
        Box::pin(self.issue())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let cli = Cli::parse();
    let server = redis::Client::open(&*cli.server)?.get_multiplexed_async_connection().await?;
    let tokens = TokenService { server, issued: Arc::default() };

    // A trial on a new server, hence `trust_fresh`.
    let node = RedisNode::builder(&cli.server).trust_fresh(true).credentials(tokens.clone());
    let redlock = Redlock::builder().node(node.build()?).build()?;
    tokio::spawn(print(redlock.events()));

    let held = redlock.mutex("held").ttl(Duration::from_secs(3)).build()?.acquire().await?;
    let mutex = redlock.mutex("again and again").build()?;
    let (mut times, end) = (0, Instant::now() + Duration::from_secs(cli.seconds));
    while Instant::now() < end {
        mutex.acquire().await?.release().await?;
        times += 1;
        sleep(Duration::from_millis(20)).await;
    }
    if !held.is_valid() {
        return Err("the lock was lost".into());
    }
    held.release().await?;
    println!("{}", redlock.close(Duration::from_secs(5)).await);
    let faults = redlock.metrics()[0].faults_total();
    drop((mutex, redlock));
    // Nobody asks for a token any more, and the last user is deleted, too.
    sleep(LIFE + Duration::from_millis(200)).await;
    let tokens = tokens.issued.load(Ordering::Relaxed);
    println!("{times} times locked with {tokens} tokens, {faults} faults");
    if faults > 0 { Err("a call failed".into()) } else { Ok(()) }
}

async fn print(mut events: NodeEvents) {
    while let Some(named) = events.next().await {
        println!("{}: {:?}", named.node, named.event);
    }
}
