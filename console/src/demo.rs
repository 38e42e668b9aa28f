//! The demo, a deployment with traffic for a first look: three servers of its own on loopback
//! addresses, with orders, contended locks, an election and a cron job. One of the servers is
//! killed and started again from time to time.

mod servers;
mod traffic;

use std::time::Duration;

use palisade::{ConfigError, Redlock, Settings};
use palisade_ops::{Deployment, init};

pub use self::servers::ServerError;
use self::servers::Servers;

/// Lease of the demo's locks. It is short, because a server grants nothing for about a lease after
/// its restart.
const TTL: Duration = Duration::from_secs(4);
/// Time until the first restart of a server, and the pause between two restarts.
const RESTART: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(75));
/// Time for which a killed server stays away.
const AWAY: Duration = Duration::from_secs(4);
const PREFIX: &str = "demo:";

/// The servers of a demo. They end when this value is dropped, and also if this process is killed.
#[derive(Debug)]
pub struct Demo {
    servers: Servers,
}

impl Demo {
    /// Starts three servers and initialises them as new servers.
    ///
    /// # Errors
    /// [`ServerError`] if `redis-server` is missing or does not start.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the servers end.
    pub async fn start() -> Result<Self, ServerError> {
        let demo = Self { servers: Servers::start(3).await? };
        let marked = init(&demo.deployment(), PREFIX).await;
        match marked {
            Ok(done) if done.is_done() => Ok(demo),
            Ok(done) => Err(ServerError::new(format!("the servers were not marked: {done}"))),
            Err(e) => Err(ServerError::new(e.to_string())),
        }
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::new(self.servers.urls());
        settings.prefix = Some(PREFIX.to_owned());
        (settings.ttl, settings.max_ttl) = (Some(TTL), Some(TTL));
        settings
    }

    /// Returns the demo's servers.
    pub fn deployment(&self) -> Deployment {
        Deployment::of(self.settings())
    }

    /// Builds a handle, the client of the demo's servers.
    ///
    /// # Errors
    /// [`ConfigError`] if a setting is invalid.
    pub fn handle(&self) -> Result<Redlock, ConfigError> {
        self.deployment().handle()?.build()
    }

    /// Uses the servers as some processes of an application would, and kills one of them from time
    /// to time. Does not return.
    ///
    /// # Errors
    /// [`ConfigError`] if a setting is invalid.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the traffic ends.
    pub async fn run(mut self) -> Result<(), ConfigError> {
        let handles = (0..4).map(|_| self.handle()).collect::<Result<Vec<_>, _>>()?;
        let restarts = async {
            let mut pause = RESTART.0;
            for server in (0..3).cycle() {
                tokio::time::sleep(pause).await;
                self.servers.restart(server, AWAY).await;
                pause = RESTART.1;
            }
        };
        tokio::join!(traffic::run(&handles), restarts);
        Ok(())
    }
}
